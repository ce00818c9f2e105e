"""Findings and gaps of a scan, in plain sentences computed from its tables."""

import re
from typing import Any, NamedTuple

import pandas as pd

from lipscan.recording.table import GAP
from lipscan.scanning import fmt
from lipscan.scanning.fmt import many, range_of, short
from lipscan.scanning.summary import closest, measured

__all__ = ["Finding", "answer", "findings"]

# the book's pages that findings name, by their files in notebooks/, with their titles
PAGES = {
    "12_local_lipschitz": "The local Lipschitz constant",
    "41_real_text": "Growth on real text (Figure 1)",
    "43_why_it_grows": "Why the constant grows",
    "55_invertible_attention": "Attention that can be inverted",
    "67_every_bound": "Every bound side by side",
    "62_certified_bracket": "A certified bracket of the local constant",
    "05_scan_your_model": "Scan your own model",
    "63_robustness": "How far an attack moves the output",
    "64_kv_rounding": "Rounded caches: what ranks the layers?",
}
NUMBER = re.compile(r"\((\d\d)\)")  # of a page, in what a finding means
WHERE = "Numbers in parentheses: pages of the book, notebooks/NN_*.ipynb in a clone of lipnb; `make html` renders them."
ENDS = {"layers": "last layer", "hidden": "last hidden states", "logits": "logits"}  # of the whole network
BASELINES = {  # and why there is none
    "random": "No baseline of random weights: those of this model are random themselves.",
    "shuffled": "No baseline of shuffled tokens: this model reads images, which are not put in another order.",
}
AGAIN = "What is shown was measured all the same; the same command tries the rest again."
MOST = 12  # places that a sentence names
TWICE, LITTLE = 2, 1.1  # times a baseline from which a layer is told from it, and below which it is as large


class Finding(NamedTuple):
    """A finding: a sentence, and whether it is bad or what would change it, with page numbers that explain it."""

    sentence: str
    means: str

    @property
    def pages(self) -> list[str]:
        """Keys of `PAGES` for the pages that it names."""
        return [page for number in NUMBER.findall(self.means) for page in PAGES if page.startswith(number)]


def findings(found: Any) -> list[Finding]:
    """Findings on the roughest layer and its baselines, growth, bounds, heads, tokens and the network.

    Parameters
    ----------
    found : Scan
        From `lipnb.scan`.

    Returns
    -------
    list of Finding
    """
    summary, settings = found.summary, found.about["settings"]
    good, passed = measured(summary), int(summary.passed.sum())
    trained = settings["weights"] != "random" and not _as_random(good)
    if summary.self_check.isna().all():
        means = "The reason is named above; what the same command cannot mend, another --dtype or model may (05)."
        return [Finding("No layer could be measured.", means)]
    if not passed:
        means = "lipnb does not compute what this network computes, so it says nothing about it (05)."
        return [Finding("No layer passed its self-check: nothing was measured.", means)]
    means = "What was measured is the model's own attention: same output, same mask (05)."
    said = [Finding(f"{passed} of {len(summary)} layers and lengths passed the self-check.", means)]
    if len(good):
        said += [*_roughest(good, _closely(found, roughest(good))), *_growth(good, trained)]
        said += _bounds(good, trained)
    said += [*_heads(found.heads), *_tokens(moving(found.tokens), trained), *_steepest(steepest(found.tokens))]
    said += [*_whole(found.whole, settings["layers"])]
    if len(good) and not good.converged.all():
        sentence = f"{int((~good.converged.astype(bool)).sum())} of {len(good)} did not converge"
        means = "A larger --rtol, or --dtype float64, lets the solver end (12)."
        said.append(Finding(f"{sentence}: their constants are lower bounds that may be too low.", means))
    return said


def _as_random(good):
    """Whether every layer is as rough as random weights of its shape, so that training shows no effect."""
    over = good.over_random.dropna() if "over_random" in good else []
    return len(over) > 0 and bool(over.between(1 / LITTLE, LITTLE).all())


def answer(found: Any) -> list[tuple[str, str]]:
    """What a scan means for its model: three questions, each answered in a sentence; empty without measurements."""
    good = measured(found.summary)
    if not len(good):
        return []
    longest, top = good[good.length == good.length.max()], roughest(good)
    return [
        ("How rough is it?", _how_rough(longest, top, found.table)),
        ("Is that much?", _how_unusual(good, top)),
        ("What does it do?", _how_far(longest, top, found.whole)),
    ]


def _how_rough(longest, top, table):
    """Sentence on the worst small change in the roughest layer, its certainty, and the smoothest layer."""
    low = longest.loc[longest.lipschitz.idxmin()]
    large, least = (range_of(short(row.low), short(row.high)) for row in (top, low))
    said = f"At {many(top.length, 'token')} the worst small change of what layer {top.layer} receives comes out "
    said += f"{'' if top.converged else 'at least '}{large} times as large"
    said += f", the most of {len(longest)} layers (the least, in layer {low.layer}: {least})" * (len(longest) > 1)
    if pd.notna(top.certified_over):
        tried = table[(table.layer == top.layer) & (table.length == top.length)].certified
        said += f"; none comes out more than {fmt.up(top.certified_over)} times that, proved in "
        said += f"{tried.notna().sum()} of {many(len(tried), 'window')}"
    return f"{said}."


def _how_unusual(good, top):
    """Sentence on the roughest layer compared with its baselines, and on all layers at another length."""
    random, shuffled = (top.get(name, float("nan")) for name in ("over_random", "over_shuffled"))
    parts = []
    if pd.notna(random):
        why = "more than its usual initialisation gives" if random > TWICE else "about what its shape alone gives"
        why = "less than its usual initialisation gives" if random < 1 / TWICE else why
        parts.append(f"it is {_times(random)} that of random weights of the same shape ({why})")
    if pd.notna(shuffled):
        little = 1 / LITTLE < shuffled < LITTLE
        why = " (their order matters little)" if little else ""
        parts.append(f"{'' if parts else 'it is '}{_times(shuffled)} that of the same tokens in random order{why}")
    said = "in the first window " * bool(parts and top.windows > 1) + " and ".join(parts)
    first, last, growth = _grown(good)
    if len(growth):
        said += f"{'; ' if said else ''}from {first} to {last} tokens the constants of layers change by a factor of "
        said += range_of(short(growth.min(), 2), short(growth.max(), 2))
    said = said or "this scan has no baseline and one length, so it does not say"
    return f"{said[0].upper()}{said[1:]}."


def _how_far(longest, top, whole):
    """Sentence on the growth of a small error relative to the tokens, in a layer and from end to end."""
    if longest.relative.isna().all():
        return "The worst small error grows as said; most grow far less (63)."
    most = longest.loc[longest.relative.idxmax()]
    where = f"in layer {most.layer}, where that is most" if len(longest) > 1 else f"in layer {most.layer}"
    said = "In units of the tokens a small error, from rounding or from an attack, is multiplied by up to "
    mean = f", on average over {most.measured} windows" * bool(most.measured > 1)
    said += f"{short(most.relative)} {where} (at {many(most.length, 'token')}{mean}"
    said += "" if most.layer == top.layer else f"; the constant itself is largest in layer {top.layer}"
    said += ")"
    ends = whole[whole.part.isin(ENDS)]
    if len(ends):
        end = min(ends.itertuples(), key=lambda row: ("hidden", "layers", "logits").index(row.part))
        least = "" if end.converged else "at least "
        said += f", and from end to end, to the {ENDS[end.part]}, by up to {least}{short(end.relative)}"
        said += f" (at {many(end.length, 'token')}, in the first window)"
    return f"{said}; most errors grow far less (63), and another word or patch is no small change."


def moving(tokens: pd.DataFrame) -> pd.DataFrame:
    """Rows of tokens; empty if no token moves another, as for a single token."""
    return tokens if (tokens.moves > 0).any() else tokens[:0]


def steepest(tokens: pd.DataFrame) -> pd.DataFrame:
    """Rows of tokens for which only their part of the steepest change is known; otherwise empty."""
    return tokens if len(tokens) and tokens.moves.isna().all() and tokens.place.max() > 0 else tokens[:0]


def _share(token):
    """Part of a change that lies on a token, by squared length, in percent."""
    return f"{100 * token.in_steepest**2:.3g} %"


def _times(value):
    """A ratio in words, to be followed by "that of"."""
    return "as large as" if short(value, 2) == "1" else f"{short(value)} times"


def roughest(good: pd.DataFrame) -> pd.Series:
    """The layer with the largest constant at the longest length, from rows of a summary that have one."""
    longest = good[good.length == good.length.max()]
    return longest.loc[longest.lipschitz.idxmax()]


def _closely(found, top):
    """Sentence on the roughest head of a layer and the token that moves the others most, if known."""
    heads, tokens = (table[table.layer == top.layer] for table in (found.heads, moving(found.tokens)))
    parts = []
    if len(heads):
        parts.append(f"its roughest head is head {heads.loc[heads.lipschitz.idxmax(), 'head']}")
    if len(tokens):
        parts.append(f"the token that moves the others most is {_named(tokens.loc[tokens.moves.idxmax()])}")
    elif len(tokens := steepest(found.tokens[found.tokens.layer == top.layer])):
        most = tokens.loc[tokens.in_steepest.idxmax()]
        parts.append(f"of its steepest change {_share(most)} lies on token {_named(most)}")
    if not parts:
        return ""
    length, said = (heads if len(heads) else tokens).length.iloc[0], " and ".join(parts)
    return f" {said[0].upper()}{said[1:]}." if length == top.length else f" At {many(length, 'token')} {said}."


def _named(token):
    """A token by its number and, for a text, its characters."""
    return f"number {token.place}" + ("" if token.written == f"#{token.place}" else f", {token.written}")


def _roughest(good, closely=""):
    """Findings on the roughest layer, its baselines and its details (`closely`), and on the smoothest."""
    longest, top = good[good.length == good.length.max()], roughest(good)
    low = longest.loc[longest.lipschitz.idxmin()]
    words = {"over_random": "that of random weights", "over_shuffled": "that of shuffled text"}
    there = {name: top[name] for name in words if name in top and pd.notna(top[name])}
    beside = " and ".join(f"{_times(value)} {words[name]}" for name, value in there.items())
    several, at = len(longest) > 1, f"at {many(top.length, 'token')}"
    said = f"Roughest {at}: layer {top.layer}, " if several else f"Layer {top.layer} {at}: "
    said += f"constant {short(top.lipschitz)}"
    if top.measured > 1:
        largest = f", the largest {short(top.high)}" if short(top.high) != short(top.lipschitz) else ""
        said += f" (mean of {many(top.measured, 'window')}{largest})"
    first = "; in the first window it is " if top.windows > 1 else ", "  # baselines are of that one
    said += (first + beside if beside else "") + "." + closely
    yield Finding(
        said + (f" Smoothest: layer {low.layer}, {short(low.lipschitz)}." if several else ""),
        "No fault by itself: that is the worst small change of the tokens, and most changes do far less (63). "
        + _baselines(there)
        + "Attention that is smooth by construction can do less (55).",
    )
    if several and longest.relative.notna().any():
        most = longest.loc[longest.relative.idxmax()]
        smallest, largest = short(longest.relative.min()), short(most.relative)
        yield Finding(
            f"In units of their tokens layers compare: from {smallest} to {largest}, the largest in layer {most.layer}."
            if smallest != largest
            else f"In units of their tokens layers are alike: {largest}.",
            f"At {largest} a small change by one part in a thousand of the tokens can move the outputs by {largest} "
            f"parts in a thousand of theirs{', on average over windows' if most.measured > 1 else ''}. The number to "
            "rank layers by where vectors are changed; it need not rank them where words are replaced (63) or "
            "caches rounded (64).",
        )


def _baselines(there):
    """Sentences on the baselines of the roughest layer."""
    said, random = "", there.get("over_random")
    if random is not None and random > TWICE:
        said = "That is larger than its usual initialisation gives, and not of its shape alone (43). "
    elif random is not None:
        near = "come within a factor of two" if random > 1 / TWICE else "are rougher"
        said = f"Random weights of this shape {near}. "
    if (shuffled := there.get("over_shuffled")) is not None:
        far = max(shuffled, 1 / shuffled) if shuffled > 0 else float("inf")
        part = "little part" if far < LITTLE else "some part, less than a factor of two" if far < TWICE else "a part"
        said += f"The order of the tokens plays {part}. "
    return said


def _grown(good):
    """The shortest and the longest length, and the factors by which constants change between them, by layer."""
    first, last = int(good.length.min()), int(good.length.max())
    shortest, longest = (good[good.length == length].set_index("layer").lipschitz for length in (first, last))
    return first, last, (longest / shortest).dropna() if first < last else shortest[:0]


def _growth(good, trained=True):
    first, last, growth = _grown(good)
    means = "Trained layers need not grow as random ones do (43)."
    if trained:
        means = (
            "In most trained layers the constant grows as attention gathers on the same few tokens (43), and no rate "
            "holds for all (41): measure at the length that you use."
        )
    if len(growth):
        spread = range_of(short(growth.min(), 2), short(growth.max(), 2))
        yield Finding(
            f"From {first} to {many(last, 'token')} the constant changes by a factor of {spread}"
            f"{', depending on the layer' if ' to ' in spread else ''}; the square root of the length would give "
            f"{short((last / first) ** 0.5, 2)}.",
            f"Bounds of the theory grow like the square root. {means}",
        )


def _bounds(good, trained=True):
    if good.certified_over.notna().any():
        yield Finding(
            f"Certified upper bounds lie within a factor of {fmt.up(good.certified_over.max())} of the constant.",
            "Proved, in the windows certified: no small change of the tokens is amplified more. For short windows "
            "lipnb.certify without columns=0 comes nearer, and takes longer (62).",
        )
    if len(found := closest(good)):
        first, *others = found.title.value_counts().items()
        where = f" in {first[1]} of {len(found)} layers and lengths" if others else ""
        where += "".join(f', "{title}" in {count}' for title, count in others)
        far = range_of(fmt.times(found.over.min()), fmt.times(found.over.max()))
        known = f" where one is known, in {len(found)} of {len(good)} layers and lengths" * (len(found) < len(good))
        yield Finding(
            f'Of bounds in closed form "{first[0]}" comes closest{where}{";" if others else ","}'
            f"{' the closest is' if others else ''} {far} times too high{known}.",
            f"Usual{' on trained layers' if trained else ''}: such a formula is simple, or holds for the worst input "
            "of all. For a number to rely on take the certified one (67).",
        )


def _heads(heads):
    if len(heads):
        top = heads.loc[heads.lipschitz.idxmax()]
        where = f"head {top['head']} of layer {top.layer}"
        beside = heads[heads.layer == top.layer].lipschitz
        usual = f", {short(top.lipschitz / beside.median(), 2)} times the median of that layer's heads"
        usual *= len(beside) > 1
        yield Finding(
            f"Roughest head alone: {where}, {short(top.lipschitz)} at {many(top.length, 'token')}, in the first "
            f"window{usual}.",
            "The head to look at first. Heads add up or cancel, so the layer may be rougher or smoother (05).",
        )


def _tokens(tokens, trained=True):
    """Finding on the token that moves the others most, and in how many layers it does."""
    if not len(tokens):
        return
    first = tokens.loc[tokens.groupby("layer").moves.idxmax()]
    place = first.place.mode()[0]
    named = first[first.place == place]
    top = first.loc[first.moves.idxmax()]
    median = tokens[tokens.layer == top.layer].moves.median()
    usual = ""
    if median > 0:
        usual = f"{short(top.moves / median, 2)} times as far as the median token of layer {top.layer}"
    sentence = "The token that moves the others most "
    if 2 * len(named) <= len(first):
        sentence += f"differs from layer to layer; farthest moves {_named(top)}, in layer {top.layer}"
        sentence += f", {usual}" if usual else ""
    else:
        layers = f"in {len(named)} of {len(first)} layers " if len(first) > 1 else ""
        sentence += f"is {layers}{_named(named.iloc[0])}, of {tokens.place.max() + 1}"
        moves = "it moves" if top.place == place else f"{_named(top)} moves"
        sentence += f"; {moves} them up to {usual}" if usual else ""
    often = "Trained layers often lean on one token, such as the first: what" if trained else "What"
    yield Finding(f"{sentence}.", f"{often} changes it changes what attends to it (43).")


def _steepest(tokens):
    """Finding on the token with most of the steepest change, if nothing else is known of tokens."""
    if not len(tokens):
        return
    first = tokens.loc[tokens.groupby("layer").in_steepest.idxmax()]
    top = first.loc[first.in_steepest.idxmax()]
    most = first[first.place == first.place.mode()[0]]
    where = f"; in {len(most)} of {len(first)} layers most of it lies on number {most.place.iloc[0]}" * (len(first) > 1)
    yield Finding(
        f"Steepest change of layer {top.layer}: {_share(top)} of it lies on token {_named(top)}{where}.",
        "Where nearly all of it lies on one token, the constant is about what a change of that token alone does (43).",
    )


def _whole(whole, count):
    layers, ends = whole[whole.part == "layer"], whole[whole.part != "layer"]
    if len(layers):
        top = layers.loc[layers.lipschitz.idxmax()]
        spread, far = range_of(short(layers.lipschitz.min()), short(top.lipschitz)), layers.relative.notna().any()
        yield Finding(
            f"Whole layers, with residuals, norms and MLP: {spread} at {many(top.length, 'token')}, in the first window"
            + (f", the largest in layer {top.layer}" if " to " in spread else "")
            + (f"; in units of their tokens up to {short(layers.relative.max())}." if far else "."),
            "What a layer does with all that it has; the constants above are of its attention alone (05).",
        )
    for row in ends.itertuples():
        rest = "" if row.converged else " (at least: not converged)"
        # of some layers alone it bounds nothing, nor what more than the layers makes
        multiplied = row.composed and len(layers) == count > 1
        sentence = f"The whole network, to its {ENDS[row.part]}: {short(row.lipschitz)}{rest}, in units of its tokens "
        sentence += short(row.relative)
        means = {
            "layers": "That is before the final norm, or whatever else follows the last layer (05).",
            "hidden": "What follows the last layer, such as a final norm, is in it (05).",
            "logits": "Of all logits together, whose number and scale are large: compare the relative number (05).",
        }[row.part]
        if row.part == "hidden" and row.composed:
            means = "What the worst small change of the embeddings does at the end (05)."
        if multiplied:
            sentence += f"; the product of its layers, an upper bound, is about {short(layers.lipschitz.prod())}"
            means += " Layers do not amplify the same change: a product of constants says little."
        yield Finding(f"{sentence}.", means)


def weights_of(settings: dict) -> str:
    """Origin of the weights; a plain folder counts as pretrained."""
    return settings["weights"].removeprefix("pretrained").strip(" ()")


def skipped(about: dict, summary: pd.DataFrame) -> list[str]:
    """Sentences on what was not measured, and why."""
    settings, said = about["settings"], []
    failed = summary[~summary.passed & summary.self_check.notna()]
    for row in failed.itertuples():
        what = f"(error {row.self_check:.1e}, leak {row.leak:.1e})"
        said.append(f"Layer {row.layer} at n = {row.length} failed its self-check {what}: not measured.")
    if settings.get("attention", "").startswith("closed form"):
        said.append(f"The attention of {settings['architecture']}: {settings['attention']}.")
    work = {int(n): operations for n, operations in settings["work"].items()}
    if not settings["certified"]:
        said.append("Certified upper bounds were not asked for.")
    elif all(operations is None for operations in work.values()):
        why = (
            "lipnb.certify knows attention in closed form, not whole blocks with residual and norm"
            if settings["object"] == "block"
            else f"lipnb knows no closed form of the attention of {settings['architecture']}, and measured the "
            "network's own module by automatic differentiation"
        )
        close = settings["close"] is not None
        said.append(f"No certified bounds{', and no look at single heads' if close else ''}: {why}.")
    else:
        for n, operations in work.items():
            if operations > settings["upper_work"]:
                said.append(
                    f"No certified bound at n = {n}: about {short(operations, 2)} operations each, more than "
                    f"the limit of {short(settings['upper_work'], 2)} (--upper-work)."
                )
        if settings["certified"] < settings["windows"]:
            some = f"{settings['certified']} of {many(settings['windows'], 'window')}"
            said.append(f"Certified: {some} of each length (upper_windows in Python).")
    before, after = settings["special"]
    if before or after:
        said.append(
            f"Each window is {' '.join([*before, '...', *after])}: special tokens are among its n; --no-special "
            "leaves them out."
        )
    elif settings["tokenizer"]:
        said.append("No special tokens stand around the windows.")
    said += [BASELINES[name] for name in BASELINES if name not in settings["baselines"]]
    if settings["close"] is not None:
        said += [settings[key] for key in ("no_norms", "no_logits") if settings.get(key)]
    if settings.get("left_out"):
        said.append(settings["left_out"])
    if 1 in settings["lengths"]:
        said.append("A window of one token has no mask to check.")
    return said


def as_sentences(gaps: pd.DataFrame) -> list[str]:
    """Sentences on the gaps, one for each reason, and on what to do; empty without gaps.

    Examples
    --------
    >>> rows = [("scan", "layer 2", "overflow"), ("heads", "head 0 of layer 2", "overflow")]
    >>> as_sentences(pd.DataFrame(rows, columns=["table", "gap", "reason"]))[0]
    'Not measured: layer 2; head 0 of layer 2. Reason: overflow.'
    """
    said = []
    for reason, group in gaps.groupby("reason", sort=False):
        named = [*group[GAP].iloc[:MOST]]
        if len(group) > MOST:
            named.append(f"and {len(group) - MOST} more, which the *.json files name")
        said.append(f"Not measured: {'; '.join(named)}. Reason: {str(reason).rstrip('.')}.")
    return [*said, AGAIN] if said else said
