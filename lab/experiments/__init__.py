"""Measurements that the book shows: windows of texts, explicit and attacked inputs; one row for each.

``TABLES`` holds every table that `make results` makes, by name; ``TRAINED`` those of which each row takes the training
of a network, made when they are asked for.
"""

from lab.experiments import (
    adversarial,
    atlas,
    audit,
    brackets,
    influence,
    interventions,
    inversion,
    inversion_curves,
    kv_rounding,
    l2_bounds,
    l2_tightness,
    language_model,
    mini_baselines,
    one_word,
    own_worst,
    positions,
    real_text,
    robustness,
    scaling_factor,
    twins,
    worst_inputs,
    worst_words,
    zoo,
)
from lab.experiments.atlas import of_model
from lab.experiments.table import Table, make
from lab.experiments.windows import again, measure, measured_with
from lipnb.recording import remeasure

__all__ = ["TABLES", "TRAINED", "Table", "again", "make", "measure", "measured_with", "of_model", "remeasure"]

# in this order
MODULES = (
    real_text,
    atlas,
    interventions,
    adversarial,
    own_worst,
    scaling_factor,
    positions,
    mini_baselines,
    audit,
    robustness,
    l2_bounds,
    l2_tightness,
    inversion,
    inversion_curves,
    brackets,
    worst_inputs,
    worst_words,
    zoo,
    influence,
    one_word,
    kv_rounding,
)
TABLES = {table.name: table for module in MODULES for table in module.TABLES}
TRAINED = {table.name: table for module in (language_model, twins) for table in module.TABLES}
