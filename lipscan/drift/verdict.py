"""Verdict on a difference: rounding, a fault in a named layer, or neither can be told; all thresholds are here.

Clean runs lie within 1.2 floors of their type in every part of the models that were tried: MiniLM, gpt2-mini,
stories260K and SmolLM2, in bfloat16, float16 and float32, with other kernels. Their errors lean no more than 0.1 to one
side beyond what the floor does.
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

FAULT = 2.0  # floors from which an error is not rounding
CLEAN = 1.5  # floors up to which it is; between them it cannot be told
LEANS = 0.2  # share of a local error that leans to one side, beyond what its floor does
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
    count, height = len(streams), table[["ratio", "token_ratio"]].max(axis=1)
    top, highest = table.loc[height.idxmax()], height.max()
    place = int(top.layer), top.part
    if highest > FAULT:
        return Verdict("bug", *place, f"not rounding: {_fault(table, height)}")
    tilt = (table.signed - table.floor_signed).where(table.ratio > WORTH, 0.0)
    tilt = tilt.where(tilt.abs() > (SURE * table.signed_noise).clip(lower=LEANS), 0.0)
    if (tilt[streams.index] != 0).mean() > 0.5:
        leaning = tilt[streams.index].median()
        said = f"in most of the {count} layers the error leans to one side (median {leaning:+.2f} of its sum); states "
        said += f"{'shrink' if leaning < 0 else 'grow'}, as when numbers are cut off instead of rounded"
        return Verdict("bug", None, None, f"not rounding: {said}")
    if tilt.any():
        row = table.loc[tilt.abs().idxmax()]
        said = f"the error of {_place(row)} leans to one side ({tilt[row.name]:+.2f} of its sum)"
        return Verdict("bug", int(row.layer), row.part, f"not rounding: {said}")
    if highest > CLEAN:
        said = f"cannot tell: {_place(top)} is at {highest:.1f} floors of {dtype}"
        said += "" if dtype == "float32" else "; hidden states in float32 would show it"
        return Verdict("cannot tell", *place, said)
    least = 100 * (streams.floor / streams["size"]).median()
    said = f"all {count} layers within {highest:.1f} floors of {dtype}; a fault below {least:.1g} % of a layer's output"
    return Verdict("rounding", *place, f"rounding: {said} would not show")


def _fault(table, height):
    """Clauses on errors above their floors: the layer of the highest, its half, and how many layers there are."""
    top, layers = table.loc[height.idxmax()], table.index[table.part == "layer"]
    said, own = f"{_place(top)}, {_many(height.max())} floors", [at for at in layers if table.layer[at] == top.layer]
    if top.part in HALVES and own:
        said = f"layer {top.layer}, {_many(height[own[0]])} floors, {HALVES[top.part]} ({_many(height.max())})"
    over = int((height[layers] > FAULT).sum())
    return said + (f"; {over} of {len(layers)} layers are above {FAULT:g} floors" if over > 1 else "")


def _many(value: Any) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _place(row):
    """Name of a part in words."""
    if row.part in ("embedding", "logits"):
        return f"the {row.part}"
    return f"layer {row.layer}" if row.part == "layer" else f"the {row.part} of layer {row.layer}"
