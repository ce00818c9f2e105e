"""Verdict on a difference: rounding, a fault in a named layer, or neither can be told; all thresholds are here.

A clean run lies within 1.2 floors of its type in every layer of the models tried here (MiniLM, gpt2-mini, SmolLM2), and
leans no more than 0.1 to one side.
"""

from typing import Any, NamedTuple

import pandas as pd

FAULT = 2.0  # floors from which an error is not rounding
CLEAN = 1.5  # floors up to which it is; between them it cannot be told
LEANS = 0.2  # share of a local error that leans to one side, beyond what its floor does
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
    count = int((table.part == "layer").sum())
    unknown = table[~(table.ratio >= 0)]
    if len(unknown):
        row = unknown.iloc[0]
        said = f"cannot tell: {_place(row)} gives NaN or infinity in {dtype} here; take another type"
        return Verdict("cannot tell", int(row.layer), row.part, said)
    height = table[["ratio", "token_ratio"]].max(axis=1)
    top = table.loc[height.idxmax()]
    highest = height.max()
    tilt = (table.signed - table.floor_signed).abs()
    streams = table[table.part == "layer"]
    leaning = (streams.signed - streams.floor_signed).median()
    over = int((height[table.part == "layer"] > FAULT).sum())
    if highest > FAULT:
        return Verdict("bug", int(top.layer), top.part, _fault(table, height, top, over, count))
    if abs(leaning) > LEANS:
        way = "shrink" if leaning < 0 else "grow"
        said = (
            f"not rounding: in most of the {count} layers the error leans to one side (by {leaning:+.2f} of its sum in "
        )
        said += f"the median), so that the states {way}, as when numbers are cut off instead of rounded"
        return Verdict("bug", None, None, said)
    if tilt.max() > LEANS:
        row = table.loc[tilt.idxmax()]
        lean = row.signed - row.floor_signed
        said = f"not rounding: the error of {_place(row)} leans to one side (by {lean:+.2f} of its sum)"
        return Verdict("bug", int(row.layer), row.part, said)
    finest = (streams.floor / streams["size"]).median()
    if highest > CLEAN:
        said = f"cannot tell: {_place(top)} is at {highest:.1f} floors of {dtype}"
        said += "" if dtype == "float32" else "; hidden states in float32 would show it"
        return Verdict("cannot tell", int(top.layer), top.part, said)
    said = f"rounding: all {count} layers within {highest:.1f} floors of {dtype}; a fault below {finest:.0e} of what a "
    return Verdict("rounding", int(top.layer), top.part, said + "layer gives would not show")


def _fault(table, height, top, over, count):
    """Sentence on errors above their floors."""
    layer = table[(table.layer == top.layer) & (table.part == "layer")]
    if top.part in HALVES and len(layer):
        said = f"{HALVES[top.part]} ({_many(height[top.name])} floors)"
        said = f"layer {top.layer}, {_many(height[layer.index[0]])} floors, {said}"
    else:
        said = f"{_place(top)}, {_many(height[top.name])} floors"
    return f"not rounding: {said}" + (f"; {over} of {count} layers are above {FAULT:g} floors" if over > 1 else "")


def _many(value: Any) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _place(row):
    """Name of a part in words."""
    if row.part in ("embedding", "logits"):
        return f"the {row.part}"
    return f"layer {row.layer}" if row.part == "layer" else f"the {row.part} of layer {row.layer}"
