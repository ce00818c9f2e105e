"""Measurements that the book shows: windows of texts, explicit and adversarial inputs; one row for each.

Each module registers its tables, see `lab.experiments.table.table`. ``TABLES`` holds every table that `make results`
makes, by name; ``TRAINED`` those whose rows each take the training of a network, made only on request.
"""

from importlib import import_module
from pkgutil import iter_modules

from lab.experiments import table
from lab.experiments.own_model import of_model
from lab.experiments.table import Table, make
from lipscan.recording import remeasure

__all__ = ["TABLES", "TRAINED", "Table", "make", "of_model", "remeasure"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
TABLES = {name: one for name, one in table.TABLES.items() if not one.trains}
TRAINED = {name: one for name, one in table.TABLES.items() if one.trains}
