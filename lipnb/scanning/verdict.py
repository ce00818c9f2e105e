"""What a scan found, in a few sentences of plain words, each computed from its tables."""

import pandas as pd

from lipnb.scanning.folder import Scan
from lipnb.scanning.summary import TITLES, closest, times

__all__ = ["as_written", "verdicts"]


def verdicts(found: Scan) -> list[str]:
    """Which layer is roughest and how far from its baselines, what grows, what the bounds miss; heads, tokens, network.

    Parameters
    ----------
    found : Scan
        From `lipnb.scan`.

    Returns
    -------
    list of str
    """
    summary = found.summary
    good = summary[summary.passed]
    if good.empty:
        return ["No layer passed its self-check: nothing was measured."]
    said = [
        f"{len(good)} of {len(summary)} layers and lengths passed the self-check: what was measured is the model's own "
        "attention."
    ]
    said += [*_roughest(good), *_growth(good, found.about["settings"]["lengths"]), *_bounds(good)]
    said += [*_heads(found.heads), *_tokens(found.tokens), *_whole(found.whole, found.about["settings"]["layers"])]
    if not good.converged.all():
        said.append(
            f"{int((~good.converged.astype(bool)).sum())} of {len(good)} did not converge: their constants are "
            "lower bounds that may be too low."
        )
    return said


def _roughest(good):
    """The layer with the largest constant at the longest length, beside its baselines; and the smoothest."""
    longest = good[good.length == good.length.max()]
    top, low = longest.loc[longest.lipschitz.idxmax()], longest.loc[longest.lipschitz.idxmin()]
    words = {"over_random": "that of random weights", "over_shuffled": "that of shuffled text"}
    beside = [f"{top[name]:.3g} times {rest}" for name, rest in words.items() if name in top and pd.notna(top[name])]
    yield (
        f"Roughest at {top.length} tokens: layer {top.layer}, constant {top.lipschitz:.3g}"
        + (f", {' and '.join(beside)}" if beside else "")
        + f". Smoothest: layer {low.layer}, {low.lipschitz:.3g}."
    )
    if longest.relative.notna().any():
        most = longest.loc[longest.relative.idxmax()]
        yield (
            f"In units of their tokens layers compare: from {longest.relative.min():.3g} to {most.relative:.3g}, the "
            f"largest in layer {most.layer}."
        )


def _growth(good, lengths):
    if len(lengths) < 2:
        return
    shortest, longest = (
        good[good.length == length].set_index("layer").lipschitz for length in (min(lengths), max(lengths))
    )
    growth = (longest / shortest).dropna()
    if len(growth):
        yield (
            f"From {min(lengths)} to {max(lengths)} tokens the constant changes by a factor of {growth.min():.2g} to "
            f"{growth.max():.2g}, depending on the layer; the square root of the length would give "
            f"{(max(lengths) / min(lengths)) ** 0.5:.2g}."
        )


def _bounds(good):
    if good.certified_over.notna().any():
        yield f"Certified upper bounds lie within a factor of {good.certified_over.max():.3g} of the constant."
    if order := closest(good):
        over = good[f"over_{order[0]}"]
        where = f" where it is known, in {over.count()} of {len(over)} layers and lengths" if over.isna().any() else ""
        yield (
            f'Of bounds in closed form "{TITLES[order[0]]}" comes closest, {times(over.mean())} times too high on '
            f"average{where}."
        )


def _heads(heads):
    if len(heads):
        top = heads.loc[heads.lipschitz.idxmax()]
        where = f"head {top['head']} of layer {top.layer}"
        yield f"Roughest head alone: {where}, {top.lipschitz:.3g} at {top.length} tokens."


def _tokens(tokens):
    """Which token moves the others most, in how many layers."""
    if not len(tokens):
        return
    first = as_written(tokens).loc[tokens.groupby("layer").moves.idxmax()]
    place = first.place.mode()[0]
    named = first[first.place == place]
    if 2 * len(named) <= len(first):
        yield "The token that moves the others most differs from layer to layer."
        return
    yield (
        f"The token that moves the others most is in {len(named)} of {len(first)} layers number {place}, "
        f"{named.written.iloc[0]}, of {tokens.place.max() + 1}."
    )


def as_written(tokens: pd.DataFrame) -> pd.DataFrame:
    """Tokens with a column `written`: folders of scans made before there was one have the vocabulary's signs."""
    return tokens if "written" in tokens else tokens.assign(written=tokens.token.map(repr))


def _whole(whole, count):
    layers, ends = whole[whole.part == "layer"], whole[whole.part != "layer"]
    if len(layers):
        top = layers.loc[layers.lipschitz.idxmax()]
        yield (
            f"Whole layers, with residuals, norms and MLP: {layers.lipschitz.min():.3g} to {top.lipschitz:.3g} at "
            f"{top.length} tokens, the largest in layer {top.layer}."
        )
    names = {"hidden": "last hidden states", "logits": "logits"}
    for row in ends.itertuples():
        rest = "" if row.converged else " (at least: not converged)"
        product = ""
        if row.part == "hidden" and len(layers) == count > 1:  # of some layers alone it bounds nothing
            product = f"; the product of its layers would be {layers.lipschitz.prod():.2g}"
        yield (
            f"The whole network, to its {names[row.part]}: {row.lipschitz:.3g}{rest}, in units of its tokens "
            f"{row.relative:.3g}{product}."
        )
