"""Verdict on a difference: rounding, a fault in a named layer, or neither can be told; all thresholds are here.

They are taken token by token, because the norm of all tokens hangs on the one coordinate of a few tokens that a trained
network makes a hundred times as large as the others. Clean runs of MiniLM, gpt2-mini, stories260K and SmolLM2 in three
types (other kernels, batches, threads; products as sums of two and four rounded parts, as devices that share a matrix
compute them) reach 1.8 floors by median and 8 in the worst token, and lean up to 0.4: `lab.experiments.drift_power`.
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

FAULT = 2.0  # floors from which an error is not rounding, median over tokens
TOKEN = 10.0  # the same for the worst token
CLEAN = 0.75  # part of these up to which it is rounding; between them it cannot be told
LEANS = 0.4  # share of a local error that leans to one side, beyond what its floor does
TOGETHER = 0.2  # the same, median over all layers
SURE = 6.0  # standard deviations of the share of errors whose signs are drawn
WORTH = 0.5  # floors from which a leaning error is worth a word
HALVES = {"attention": "in its attention", "mlp": "in its MLP"}


class Verdict(NamedTuple):
    """Answer to whether a difference is rounding.

    Attributes
    ----------
    kind : str
        "rounding", "bug" or "cannot tell".
    layer, part : int and str, or None
        Where the largest local error is, in floors: "layer", "attention", "mlp", "embedding" or "logits".
    sentence : str
        The answer in a line.
    """

    kind: str
    layer: int | None
    part: str | None
    sentence: str


def verdict(table: pd.DataFrame, dtype: str) -> Verdict:
    """Verdict on the table of a `Drift` in a type, from the ratios and the signed shares of its parts."""
    unknown = table[~np.isfinite(table.floor + table.error)]
    if len(unknown):
        row = unknown.iloc[0]
        said = f"cannot tell: {_place(row)} gives NaN or infinity in {dtype} here; take another type"
        return Verdict("cannot tell", int(row.layer), row.part, said)
    streams = table[table.part == "layer"]
    count, height = len(streams), heights(table)
    top, highest = table.loc[height.idxmax()], height.max()
    place = int(top.layer), top.part
    if highest > 1:
        return Verdict("bug", *place, f"not rounding: {_fault(table, height)}")
    tilt = (table.signed - table.floor_signed).where(table.ratio > WORTH, 0.0)
    sure = SURE * table.signed_noise
    together = tilt.where(tilt.abs() > sure.clip(lower=TOGETHER), 0.0)[streams.index]
    if (together != 0).mean() > 0.5:
        leaning = together.median()
        said = f"in most of the {count} layers the error leans to one side (median {leaning:+.2f} of its sum); states "
        said += f"{'shrink' if leaning < 0 else 'grow'}, as when numbers are cut off instead of rounded"
        return Verdict("bug", None, None, f"not rounding: {said}")
    tilt = tilt.where(tilt.abs() > sure.clip(lower=LEANS), 0.0)
    if tilt.any():
        row = table.loc[tilt.abs().idxmax()]
        said = f"the error of {_place(row)} leans to one side ({tilt[row.name]:+.2f} of its sum)"
        return Verdict("bug", int(row.layer), row.part, f"not rounding: {said}")
    if highest > CLEAN:
        said = f"cannot tell: {_place(top)} {'are' if top.part == 'logits' else 'is'} at {_floors(top)} of {dtype}"
        said += "" if dtype == "float32" else "; hidden states in float32 would show it"
        return Verdict("cannot tell", *place, said)
    least = 100 * (streams.floor / streams["size"]).median()
    said = f"all {count} layers within {table.token_ratio.max():.1f} floors of {dtype}; a fault below {least:.1g} % of "
    said += "a layer's output"
    return Verdict("rounding", *place, f"rounding: {said} would not show")


def heights(table: pd.DataFrame) -> pd.Series:
    """How high the error of each part is: above 1 it is not rounding."""
    return np.maximum(table.token_ratio / FAULT, table.token_worst / TOKEN)


def _fault(table, height):
    """Clauses on errors above their floors: the layer of the highest, its half, and how many layers there are."""
    top, layers = table.loc[height.idxmax()], table.index[table.part == "layer"]
    said, own = f"{_place(top)}, {_floors(top)}", [at for at in layers if table.layer[at] == top.layer]
    if top.part in HALVES and own:
        said = f"layer {top.layer}, {_many(table.token_ratio[own[0]])} floors, {HALVES[top.part]} ({_floors(top)})"
    over = int((height[layers] > 1).sum())
    return said + (f"; {over} of {len(layers)} layers are above" if over > 1 else "")


def _floors(row):
    """Error over floor of a part in words, of the worst token if that tells more."""
    if row.token_worst / TOKEN > row.token_ratio / FAULT:
        return f"{_many(row.token_worst)} floors in one token, {_many(row.token_ratio)} in the median one"
    return f"{_many(row.token_ratio)} floors"


def _many(value: Any) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _place(row):
    """Name of a part in words."""
    if row.part in ("embedding", "logits"):
        return f"the {row.part}"
    return f"layer {row.layer}" if row.part == "layer" else f"the {row.part} of layer {row.layer}"
