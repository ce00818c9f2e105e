"""Verdict on a difference: rounding, a fault in a named layer, or neither can be told; all thresholds are here.

They are taken token by token, because the norm of all tokens depends on the one coordinate of a few tokens that a
trained network makes a hundred times as large as the others. Clean runs of MiniLM, gpt2-mini, stories260K and SmolLM2
(other kernels, batches, threads; products as sums of two and four rounded parts, as devices that share a matrix compute
them) reach 1.9 floors in the median token, 3.3 in a tenth of the tokens and 8 in the worst one. Their errors lean by up
to 0.51, and by up to 4.7 standard deviations: `lab.experiments.drift_power`. In float32 the floors come from sums in
blocks and vectors, as PyTorch makes them. A right implementation in C that adds one term after the other reaches three
of these floors in the median token (`lab.experiments.drift_engine`), while most faults stand at thousands.
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

FLOORS = {"token_ratio": 2.0, "token_tenth": 4.0, "token_worst": 10.0}  # from which an error is not rounding
SUMS = {"float32": 2.5}  # type -> times as many, where sums are rounded as coarsely as results are
CLEAN = 0.75  # part of these up to which it is rounding; between them it cannot be told
LEANS = 0.4  # share of a local error that leans to one side, beyond what its floor does
TOGETHER = 0.2  # the same, median over all layers
SURE = 6.0  # standard deviations of that share by chance
WORTH = 0.5  # floors from which a leaning error is worth a word
MAKES = 0.5  # part of a layer's error that a half must make to be at fault; a half that makes 1 / MAKES is not in it
HALVES = {"attention": "in its attention", "mlp": "in its MLP"}
NAMES = {"attention": "attention", "mlp": "MLP"}


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
    """Verdict on the table of a `Drift` in a type, from the heights and the signed shares of its parts."""
    unknown = table[~np.isfinite(table.floor + table.error)]
    if len(unknown):
        row = unknown.iloc[0]
        said = f"cannot tell: {_place(row)} gives NaN or infinity in {dtype} here; take another type"
        return Verdict("cannot tell", int(row.layer), row.part, said)
    layers, astray = _layers(table), _astray(table)
    streams = table[table.part == "layer"]
    sound = table.drop(astray)
    count, top, highest = len(streams), sound.loc[sound.height.idxmax()], sound.height.max()
    if highest > 1:
        row = _at_fault(top, sound)
        return Verdict("bug", int(row.layer), row.part, f"not rounding: {_fault(row, sound, layers)}")
    tilt = (sound.signed - sound.floor_signed).where(sound.ratio > WORTH, 0.0)
    sure = SURE * sound.signed_noise
    together = tilt.where(tilt.abs() > sure.clip(lower=TOGETHER), 0.0)[streams.index]
    if (together != 0).mean() > 0.5:
        leaning = together.median()
        said = f"in most of the {count} layers the error leans to one side (median {leaning:+.2f} of its sum); states "
        said += f"{'shrink' if leaning < 0 else 'grow'}, as when numbers are cut off instead of rounded"
        return Verdict("bug", None, None, f"not rounding: {said}")
    tilt = tilt.where(tilt.abs() > sure.clip(lower=LEANS), 0.0)
    if tilt.any():
        row = sound.loc[tilt.abs().idxmax()]
        said = f"the error of {_place(row)} leans to one side ({tilt[row.name]:+.2f} of its sum)"
        return Verdict("bug", int(row.layer), row.part, f"not rounding: {said}")
    if len(astray):
        row = table.loc[astray[0]]
        said = f"{_place(row)} as written is at {_floors(row)}, but the states of that layer are right "
        said += f"({_floors(layers.loc[row.layer])}): {row.part}.{row.layer} is not what this layer adds to its stream"
        return Verdict("bug", int(row.layer), row.part, f"not rounding: {said}")
    if highest > CLEAN:
        said = f"cannot tell: {_place(top)} {'are' if top.part == 'logits' else 'is'} at {_floors(top)} of {dtype}"
        said += "" if dtype == "float32" else "; hidden states in float32 would show it"
        return Verdict("cannot tell", int(top.layer), top.part, said)
    least, left = 100 * (streams.floor / streams["size"]).median(), streams.switching.max()
    said = f"all {count} layers within {table.token_ratio.max():.1f} floors of {dtype}"
    said += f", up to {left:.0f} tokens left out that rounding may send to other experts" if left > 0 else ""
    said += f"; a fault below {least:.1g} % of a layer's output"
    return Verdict("rounding", int(top.layer), top.part, f"rounding: {said} would not show")


def heights(table: pd.DataFrame, dtype: str) -> pd.Series:
    """How high the error of each part is in a type: above 1 it is not rounding."""
    return (table[[*FLOORS]] / (pd.Series(FLOORS) * SUMS.get(dtype, 1.0))).max(axis=1)


def _layers(table):
    """The rows of whole layers, by their number."""
    return table[table.part == "layer"].set_index("layer", drop=False)


def _astray(table):
    """Rows of halves that are wrong as they are written, and are not what went into the states of their layer.

    What such a half changes there is larger than the error of the layer. An MLP that is given a wrong attention is
    wrong too.
    """
    layers, found = _layers(table), []
    for row in table[table.part.isin(HALVES)].itertuples():
        layer = layers.loc[row.layer]
        if row.height > 1 >= layer.height and MAKES * row.made > layer.error:
            found.append(row)
    given = [row.layer for row in found if row.part == "attention"]
    after = table.index[(table.part == "mlp") & table.layer.isin(given)]
    return [row.Index for row in found if row.part == "attention" or row.layer not in given] + [*after]


def _at_fault(top, table):
    """Row that a fault is told of: for one of a layer the half that makes it, where one does."""
    halves = table[(table.layer == top.layer) & table.part.isin(HALVES)]
    if top.part != "layer" or halves.empty:
        return top
    row = halves.loc[halves.made.idxmax()]
    return row if row.height > CLEAN and row.made > MAKES * top.error else top


def _fault(row, table, layers):
    """Clauses on errors above their floors: the layer of the highest, its half, and how many layers there are."""
    said, over = f"{_place(row)}, {_floors(row)}", int((layers.height > 1).sum())
    halves = table[(table.layer == row.layer) & table.part.isin(HALVES)]
    if row.part in HALVES:
        said = f"layer {row.layer}, {_many(layers.token_ratio[row.layer])} floors, {HALVES[row.part]} ({_floors(row)})"
    elif row.part == "layer" and len(halves) and (halves.height <= CLEAN).all():
        right = ", ".join(f"{NAMES[one.part]} {_many(one.token_ratio)}" for one in halves.itertuples())
        said += f", after its halves, which are right ({right})"
    return said + (f"; {over} of {len(layers)} layers are above" if over > 1 else "")


def _floors(row):
    """Error over floor of a part in words, of fewer tokens where that tells more."""
    values = {name: row[name] / floors for name, floors in FLOORS.items()}
    most = max(values, key=values.get)
    if most == "token_worst":
        return f"{_many(row.token_worst)} floors in one token, {_many(row.token_ratio)} in the median one"
    if most == "token_tenth":
        return f"{_many(row.token_tenth)} floors in a tenth of the tokens, {_many(row.token_ratio)} in the median one"
    return f"{_many(row.token_ratio)} floors"


def _many(value: Any) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _place(row):
    """Name of a part in words."""
    if row.part in ("embedding", "logits"):
        return f"the {row.part}"
    return f"layer {row.layer}" if row.part == "layer" else f"the {row.part} of layer {row.layer}"
