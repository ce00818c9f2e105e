"""Findings of a scan, computed from its tables: rows of a key, a number and its place; `words` has their sentences."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from lipscan.recording.table import GAP
from lipscan.scanning.fmt import factor, short, times
from lipscan.scanning.summary import closest, measured
from lipscan.scanning.words import ENDS, Finding, finding

__all__ = ["findings"]

MOST = 12  # places that a sentence names
TWICE, LITTLE = 2, 1.1  # times a baseline from which a layer differs from it, and below which it is as large


def findings(found: Any) -> list[Finding]:
    """Findings on the roughest layer and its baselines, a usual change, growth, bounds, heads, tokens and the network.

    Parameters
    ----------
    found : Scan
        From `lipnb.scan`.

    Returns
    -------
    list of Finding
        ``pandas.DataFrame(findings(scan))`` is a table of them.
    """
    summary = found.summary
    good, passed = measured(summary), int(summary.passed.sum())
    if summary.self_check.isna().all():
        return [finding("none_measured")]
    if not passed:
        return [finding("none_passed")]
    said = [finding("passed", passed, rows=len(summary))]
    if still(good):
        said.append(finding("zero"))
    elif len(good):
        top = roughest(good)
        said += [*_roughest(good, top, found), *_baselines(top), *_growth(good), *_usual(top)]
        said += [*_relative(good, top), *_bounds(good)]
        said += [*_heads(found.heads, top.layer), *_tokens(moving(found.tokens), top.layer)]
        open_rows = int((~good.converged.astype(bool)).sum())
        said += [finding("not_converged", open_rows, rows=len(good))] if open_rows else []
    said += [] if still(good) else _steepest(steepest(found.tokens))
    said += _whole(found.whole, found.about["settings"]["layers"])
    return said


def roughest(good: pd.DataFrame) -> pd.Series:
    """The layer with the largest constant at the longest length, from rows of a summary that have one."""
    longest = _longest(good)
    return longest.loc[longest.lipschitz.idxmax()]


def still(good: pd.DataFrame) -> bool:
    """Whether every constant is 0, from rows of a summary that have one: then nothing is roughest, or compared."""
    return bool(len(good) and (good.high == 0).all())


def moving(tokens: pd.DataFrame) -> pd.DataFrame:
    """Rows of tokens; empty if no token moves another, as for a single token."""
    return tokens if (tokens.moves > 0).any() else tokens[:0]


def steepest(tokens: pd.DataFrame) -> pd.DataFrame:
    """Rows of tokens if only their share of the steepest change is known; otherwise empty."""
    return tokens if len(tokens) and tokens.moves.isna().all() and tokens.place.max() > 0 else tokens[:0]


def weights_of(settings: dict) -> str:
    """Origin of the weights; a plain folder counts as pretrained."""
    return settings["weights"].removeprefix("pretrained").strip(" ()")


def gaps(table: pd.DataFrame) -> list[Finding]:
    """One finding for each reason of a gap in a scan, with the remedy; none without gaps.

    Examples
    --------
    >>> rows = [("scan", "layer 2", "overflow"), ("heads", "head 0 of layer 2", "overflow")]
    >>> str(gaps(pd.DataFrame(rows, columns=["table", "gap", "reason"]))[0])
    'Not measured: layer 2; head 0 of layer 2. Reason: overflow.'
    """
    said = []
    for reason, group in table.groupby("reason", sort=False):
        key, places = "gap_many" if len(group) > MOST else "gap", "; ".join(group[GAP].iloc[:MOST])
        said.append(finding(key, len(group), places=places, reason=str(reason).rstrip(".")))
    return [*said, finding("again")] if said else said


def left_out(about: dict, summary: pd.DataFrame) -> list[Finding]:
    """Findings on what was not measured, and why, from the settings of a scan."""
    settings = about["settings"]
    failed = summary[~summary.passed & summary.self_check.notna()].itertuples()
    said = [finding("failed", row.self_check, leak=row.leak, layer=row.layer, length=row.length) for row in failed]
    if settings.get("attention", "").startswith("closed form"):
        said.append(finding("attention", architecture=settings["architecture"], attention=settings["attention"]))
    said += [*_uncertified(settings), *_special(settings)]
    said += [finding(f"no_{name}") for name in ("random", "shuffled") if name not in settings["baselines"]]
    if settings["text"] == "python_reference":
        said.append(finding("edition", python=about["versions"]["python"]))
    stated = ("no_norms", "no_logits") if settings["close"] is not None else ()
    said += [finding("stated", sentence=settings[key]) for key in (*stated, "left_out") if settings.get(key)]
    return [*said, finding("one_token")] if 1 in settings["lengths"] else said


def _longest(good):
    return good[good.length == good.length.max()]


def _roughest(good, top, found):
    """The roughest layer at the longest length: how rough, in how many windows, proved to what; and the smoothest."""
    longest, at = _longest(good), {"layer": top.layer, "length": top.length}
    yield finding("roughest" if len(longest) > 1 else "only_layer", top.lipschitz, layers=len(longest), **at)
    if top.measured > 1:
        key = "windows_alike" if short(top.low) == short(top.high) else "windows"
        yield finding(key, top.high, low=top.low, windows=top.measured, **at)
    rows = found.table[(found.table.layer == top.layer) & (found.table.length == top.length)]
    if not top.converged:
        over = (rows.probable / rows.lipschitz).max()
        key = "open" if np.isfinite(over) else "open_unbounded"
        yield finding(key, over, rtol=found.about["settings"]["rtol"], **at)
    proved = rows[rows.certified.notna()]
    if len(proved):
        window = int(proved.window.iloc[0])
        key = "proved_several" if len(proved) > 1 else "proved_window" if window else "proved"
        of = {"constant": proved.lipschitz.max(), "proved": len(proved), "windows": len(rows)}
        yield finding(key, proved.certified.max(), window=window, **of, **at)
    else:
        yield finding("unproved", **at)
    if len(longest) > 1:
        low = longest.loc[longest.lipschitz.idxmin()]
        yield finding("smoothest", low.lipschitz, layer=low.layer, length=low.length)


def _baselines(top):
    """The roughest layer compared with random weights and with shuffled tokens."""
    at = {"layer": top.layer, "length": top.length}
    random, shuffled = (top.get(f"over_{name}", np.nan) for name in ("random", "shuffled"))
    if pd.notna(random):
        kind = "more" if random > TWICE else "less" if random < 1 / TWICE else "alike"
        yield finding(f"random_{kind}", random, **at)
    if pd.notna(shuffled):
        yield finding("shuffled_alike" if 1 / LITTLE < shuffled < LITTLE else "shuffled", shuffled, **at)
    if pd.isna(random) and pd.isna(shuffled):
        yield finding("no_baseline", **at)


def _growth(good):
    """Factors by which the constants of layers change between the shortest and the longest length."""
    first, last = int(good.length.min()), int(good.length.max())
    shortest, longest = (good[good.length == length].set_index("layer").lipschitz for length in (first, last))
    change = (longest / shortest.where(shortest > 0)).dropna()
    if first < last and len(change):
        key = "growth_alike" if factor(change.min()) == factor(change.max()) else "growth"
        yield finding(key, change.max(), low=change.min(), first=first, last=last, root=(last / first) ** 0.5)


def _usual(top):
    """A random small change compared with the worst one, and the token on which most of the worst one lies."""
    typical, share = (top.get(name, np.nan) for name in ("typical", "steepest_share"))
    if pd.notna(typical):
        yield finding("typical", typical, layer=top.layer, length=top.length, worst=top.lipschitz)
    if pd.notna(share) and top.length > 1:
        yield finding("steepest", share, layer=top.layer, length=top.length, token=int(top.steepest_token))


def _relative(good, top):
    """Growth of a small error relative to the tokens: most, least, and in the roughest layer."""
    longest = _longest(good)
    if longest.relative.isna().all():
        return
    most, least = (longest.loc[longest.relative.agg(which)] for which in ("idxmax", "idxmin"))
    key = "relative" if len(longest) > 1 else "relative_only"
    yield finding(key, most.relative, layer=most.layer, length=most.length)
    differ = short(least.relative) != short(most.relative)
    lowest = differ and least.layer == top.layer
    if most.layer != top.layer and pd.notna(top.relative):
        key = "relative_roughest_least" if lowest else "relative_roughest"
        yield finding(key, top.relative, layer=top.layer, length=top.length)
    if differ and not lowest:
        yield finding("relative_least", least.relative, layer=least.layer, length=least.length)
    yield finding("small")


def _bounds(good) -> Iterator[Finding]:
    """How close certified bounds come, and which bounds in closed form come closest."""
    if good.certified_over.notna().any():
        yield finding("certified", good.certified_over.max())
    near = closest(good)
    if len(near):
        yield finding("formulas", near.over.min())
    for title in near.title.value_counts().index:
        over = near.over[near.title == title]
        key = "closest_alike" if times(over.min()) == times(over.max()) else "closest"
        yield finding(key, over.max(), low=over.min(), title=title, count=len(over), rows=len(good))


def _heads(heads, layer):
    """The roughest head of all layers, and the roughest head of the roughest layer."""
    if len(heads) and not heads["head"].any():  # a layer of one head has no median head
        top = heads.loc[heads.lipschitz.idxmax()]
        yield finding("only_head", top.lipschitz, layer=top.layer, length=top.length)
        return
    for key, rows in (("head", heads), ("head_of_roughest", heads[heads.layer == layer])):
        if len(rows):
            top = rows.loc[rows.lipschitz.idxmax()]
            if key == "head" or top.layer != heads.loc[heads.lipschitz.idxmax(), "layer"]:
                median = heads[heads.layer == top.layer].lipschitz.median()
                yield finding(key, top.lipschitz, layer=top.layer, head=top["head"], length=top.length, median=median)


def _tokens(tokens, layer):
    """The token that moves the others most, in how many layers, and the corresponding token of the roughest layer."""
    if not len(tokens):
        return
    first = tokens.loc[tokens.groupby("layer").moves.idxmax()]
    top, here = first.loc[first.moves.idxmax()], first[first.layer == layer]
    for key, row in [("token", top), *(("token_of_roughest", row) for row in here.itertuples())]:
        if key == "token" or row.layer != top.layer:
            median = tokens[tokens.layer == row.layer].moves.median()
            at = {"layer": row.layer, "token": _named(row), "length": row.length}
            yield finding(key, row.moves, median=median, **at)
    yield _often("token_often", first)


def _steepest(tokens):
    """The token with most of the steepest change, if nothing else is known of tokens."""
    if len(tokens):
        first = tokens.loc[tokens.groupby("layer").in_steepest.idxmax()]
        top = first.loc[first.in_steepest.idxmax()]
        at = {"layer": top.layer, "token": _named(top), "length": top.length}
        yield finding("steepest_close", top.in_steepest**2, **at)
        yield _often("steepest_often", first)


def _often(key, first):
    """The token that comes first in most layers."""
    named = first[first.place == first.place.mode()[0]]
    return finding(key, len(named), token=_named(named.iloc[0]), layers=len(first))


def _named(token):
    """A token by its number and, for a text, its characters."""
    known = token.written != f"#{token.place}"
    return f"token {token.place} ({token.written})" if known else f"token {token.place}"


def _whole(whole, count):
    """Whole layers and the network; the product of its layers only if all of them were measured."""
    layers, ends = whole[whole.part == "layer"], whole[whole.part != "layer"]
    for row in ends.itertuples():
        yield finding(f"to_{row.part}", row.lipschitz, relative=row.relative, length=row.length)
        if not row.converged:
            yield finding("end_open", row.residual, end=ENDS[row.part], length=row.length)
        # of some layers alone it bounds nothing, nor what more than the layers makes
        if row.composed and len(layers) == count > 1:
            yield finding("product", layers.lipschitz.prod(), end=ENDS[row.part], length=row.length)
    if len(layers):
        low, top = layers.lipschitz.min(), layers.loc[layers.lipschitz.idxmax()]
        key = "whole_layers_alike" if short(low) == short(top.lipschitz) else "whole_layers"
        yield finding(key, top.lipschitz, low=low, layer=top.layer, length=top.length)
        if layers.relative.notna().any():
            most = layers.loc[layers.relative.idxmax()]
            yield finding("whole_relative", most.relative, layer=most.layer, length=most.length)


def _uncertified(settings):
    """Why certified bounds are missing."""
    work = {int(n): operations for n, operations in settings["work"].items()}
    if not settings["certified"]:
        yield finding("not_requested")
    elif all(operations is None for operations in work.values()):
        key = "block" if settings["object"] == "block" else "no_closed_form"
        yield finding(key, architecture=settings["architecture"])
        if settings["close"] is not None:
            yield finding("no_heads")
    else:
        limit = settings["upper_work"]
        yield from (finding("too_long", n, length=length, limit=limit) for length, n in work.items() if n > limit)
        if settings["certified"] < settings["windows"]:
            yield finding("some_certified", settings["certified"], windows=settings["windows"])


def _special(settings):
    """Special tokens around the windows."""
    before, after = settings["special"]
    if before or after:
        yield finding("special", window=" ".join([*before, "...", *after]))
    elif settings["tokenizer"]:
        yield finding("no_special")
