"""The upper bounds that a scan puts beside what it measures: which exist, what they speak of, which apply to a map."""

import math
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from lipnb import bounds
from lipnb.attention import Attention
from lipnb.models import OwnAttention

__all__ = ["CATALOGUE", "SOURCES", "Bound", "applicable", "evaluate", "prepare"]

INPUT, BALL, MEASURES, EVERY = "this input", "the ball of its radius", "measures in that ball", "all inputs"


class Bound(NamedTuple):
    """An upper bound, in words.

    Attributes
    ----------
    key : str
        Its column is ``log10_<key>``.
    title : str
        Short name.
    scope : str
        What it holds for: this input alone, all sequences in a ball, all measures in a ball.
    source : str
        Bibliography key, or "ours".
    about : str
        One or two sentences.
    """

    key: str
    title: str
    scope: str
    source: str
    about: str


CATALOGUE = (
    Bound(
        "yudin",
        "Yudin et al.",
        INPUT,
        "yudin2025attention",
        "From the attention matrix: Theorem 3 for one head, summed over heads. A query bias enters in the key term.",
    ),
    Bound(
        "spread",
        "our form of C.3",
        INPUT,
        "castin2024smooth",
        "From how far the tokens lie apart: our form of Theorem C.3 of Castin et al., whose formulas we do not have; "
        "derived from its proof, summed over heads.",
    ),
    Bound(
        "column",
        "column sums",
        INPUT,
        "ours",
        "From the largest column sum of the attention matrix: the proof of Theorem 3.3 at one input.",
    ),
    Bound(
        "general",
        "Castin et al., 3.3",
        BALL,
        "castin2024smooth",
        "The general bound: Theorem 3.3 (4.3 with a mask, E.3 with query biases), heads by Lemma 3.8.",
    ),
    Bound("general_sharp", "3.3, sharper", BALL, "ours", "The same proof with less given away."),
    Bound(
        "mean_field",
        "Castin et al., 3.5",
        MEASURES,
        "castin2024smooth",
        "The bound that knows no length: Theorem 3.5 (4.4 with a mask, as corrected here), heads by Lemma 3.8.",
    ),
    Bound("mean_field_sharp", "3.5, sharper", MEASURES, "ours", "The same with half the exponent, either way."),
    Bound(
        "rotary_terms",
        "three terms, rotary",
        INPUT,
        "ours",
        "Each term of the Jacobian as a norm that is computed, summed over heads; holds with rotary positions. "
        "First window, up to 128 tokens.",
    ),
    Bound(
        "rotary_upper",
        "3.3 for rotary",
        BALL,
        "ours",
        "The proof of Theorem 3.3 with norms that rotations keep, in place of the norm of A. First window.",
    ),
    Bound("l2", "Kim et al., 3.2", EVERY, "kim2021lipschitz", "For L2 attention, on all inputs."),
)
SOURCES = {
    "castin2024smooth": "Castin, Ablin and Peyré, How Smooth Is Attention?, 2024",
    "yudin2025attention": "Yudin et al., 2025",
    "kim2021lipschitz": "Kim, Papamakarios and Mnih, The Lipschitz Constant of Self-Attention, 2021",
    "ours": "this project",
}
FOLDED = {"shared keys"}  # what heads with keys of their own can say too
ROTARY = ("rotary_terms", "rotary_upper")
MOST_TERMS = 128  # tokens up to which `rotary_terms`, a norm for each token and head, is computed


def applicable(f: Callable) -> tuple[list[str], dict[str, str]]:
    """Which bounds hold for a map, and why the others do not.

    Parameters
    ----------
    f : Attention or callable
        What is measured.

    Returns
    -------
    keys : list of str
        Those that hold.
    reasons : dict
        The others -> one sentence.
    """
    reasons = {"l2": "stated for L2 attention; dot products have no finite constant on all inputs (Kim et al., 3.1)"}
    if isinstance(f, OwnAttention):
        own = "needs the matrices of the attention; of this family lipnb runs the network's own module and reads none"
        reasons = {bound.key: own for bound in CATALOGUE}
    for bound in CATALOGUE:
        if not isinstance(f, Attention):
            reasons.setdefault(bound.key, "stated for attention, not for a block with residual and norm")
        elif bound.key in ROTARY:
            if not _rotary(f):
                reasons[bound.key] = "for rotary positions alone, which this layer has not"
        elif "rotary positions" in f.more:
            reasons.setdefault(bound.key, "stated for one matrix A, and rotary positions give each distance its own")
        elif more := [*{*f.more} - FOLDED]:
            reasons.setdefault(bound.key, f"stated for plain heads, not {', '.join(sorted(more))}")
    if isinstance(f, Attention) and f.window is not None:
        whole = "its proof is for attention to all earlier tokens, without a window"
        reasons |= {"mean_field": whole, "mean_field_sharp": whole}
    return [bound.key for bound in CATALOGUE if bound.key not in reasons], reasons


def prepare(f: Callable) -> bounds.HeadNorms | None:
    """What the bounds need of a map, whatever the input: norms of its heads."""
    return bounds.head_norms(f) if isinstance(f, Attention) and {*f.more} <= FOLDED else None


def _rotary(f):
    """Whether the bounds for rotary positions hold for an attention."""
    return "rotary positions" in f.more and {*f.more} <= {"rotary positions", *FOLDED}


def evaluate(f: Callable, prepared: bounds.HeadNorms | None, x: Tensor) -> dict[str, float]:
    """Base 10 logarithms of all bounds that hold for a map at tokens `x` of shape (n, d): key -> number."""
    R = x.double().norm(dim=-1).max().item()
    if isinstance(f, Attention) and prepared is not None:
        logs = {**bounds.heads_on_ball(prepared, len(x), R, f.masked), **bounds.heads_at_input(f, prepared, x)}
        return {key: value / math.log(10) for key, value in logs.items() if key in applicable(f)[0]}
    if isinstance(f, Attention) and _rotary(f):
        values = {"rotary_upper": bounds.rotary_upper(f, len(x), R)}
        if len(x) <= MOST_TERMS:
            values["rotary_terms"] = bounds.rotary_terms(f, x)
        return {key: math.log10(value) if value > 0 else -math.inf for key, value in values.items()}
    return {}
