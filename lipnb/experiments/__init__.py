"""Measurements that the book shows: windows of texts, explicit and attacked inputs; one row for each.

``TABLES`` holds every table that `make results` makes, by name.
"""

from lipnb.experiments import real_text, robustness
from lipnb.experiments.real_text import measurable, of_model
from lipnb.experiments.table import Table, Unit, make
from lipnb.experiments.windows import measure, remeasure

__all__ = ["TABLES", "Table", "Unit", "make", "measurable", "measure", "of_model", "remeasure"]

TABLES = {table.name: table for table in (*real_text.TABLES, *robustness.TABLES)}
