"""Measurements that the book shows: windows of texts, explicit and attacked inputs; one row for each.

``TABLES`` holds every table that `make results` makes, by name.
"""

from lipnb.experiments import (
    adversarial,
    audit,
    inversion,
    inversion_curves,
    l2_tightness,
    positions,
    real_text,
    robustness,
    scaling_factor,
)
from lipnb.experiments.real_text import measurable, of_model
from lipnb.experiments.table import Table, Unit, make
from lipnb.experiments.windows import measure, remeasure

__all__ = ["TABLES", "Table", "Unit", "make", "measurable", "measure", "of_model", "remeasure"]

# in this order
MODULES = (real_text, adversarial, scaling_factor, positions, audit, robustness, l2_tightness, inversion,
           inversion_curves)
TABLES = {table.name: table for module in MODULES for table in module.TABLES}
