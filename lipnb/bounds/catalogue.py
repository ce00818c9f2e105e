"""Catalogue of all upper bounds: the name, source and scope of each, and the maps for which it holds.

Scans, the survey of bounds and the verification read `CATALOGUE`; none of them repeats what is recorded here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lipnb.attention import Attention, Feature
from lipnb.bounds.ball import ball_upper
from lipnb.bounds.castin import (
    biased_upper,
    column_upper,
    general_upper,
    general_upper_exact,
    general_upper_optimal,
    general_upper_sharp,
    spread_upper,
)
from lipnb.bounds.heads import TRANSFORMER_FEATURES, heads_at_input, heads_on_ball, max_token_terms, max_token_upper
from lipnb.bounds.kim import l2_upper, l2_upper_sharp
from lipnb.bounds.layer_norm import norm_layer_upper
from lipnb.bounds.mean_field import (
    masked_mean_field_upper,
    masked_mean_field_upper_sharp,
    mean_field_upper,
    mean_field_upper_sharp,
)
from lipnb.bounds.mean_field_rate import masked_mean_field_upper_exact, mean_field_upper_exact
from lipnb.bounds.norms import HeadNorms, head_norms, log_of
from lipnb.bounds.rotary import rotary_terms, rotary_upper
from lipnb.bounds.term_bounds import RoundedLinearization, three_terms
from lipnb.bounds.yudin import softmax_norm, yudin_upper, yudin_upper_sharp

__all__ = ["CATALOGUE", "Bound", "Case", "kind_of"]

INPUT, BALL, MEASURES, EVERY, LIMIT = "one input", "ball", "measures on a ball", "all inputs", "limit"
DOT, L2, ROTARY = "dot-product attention", "L2 attention", "rotary attention"
SOFTMAX, NORM_LAYER = "the softmax", "a norm layer"
EUCLID, TOKEN, ROW, TRANSPORT, MASKED = "Euclidean", "largest token", "maximum", "W2", "d2"
OURS, REBUILT = "ours", "reconstructed"
CASTIN, KIM, YUDIN = "castin2024smooth", "kim2021lipschitz", "yudin2025attention"


@dataclass(frozen=True)
class Case:
    """A map at tokens, and the quantities that bounds need, each computed once.

    Attributes
    ----------
    f : callable
        The map of tokens, usually an `Attention`.
    x : Tensor, shape (n, d)
        The tokens of one sequence.
    weights : Tensor, shape (n,), or None
        Token weights with sum one.
    unfolded : Tensor, shape (h, v, d), or None
        For L2 attention, the value matrices before the query matrices are folded into them.
    prepared : HeadNorms or None
        Norms of the map, if known from another input.
    """

    f: Any
    x: Tensor
    weights: Tensor | None = None
    unfolded: Tensor | None = None
    prepared: HeadNorms | None = None

    @property
    def n(self) -> int:
        """Number of tokens."""
        return len(self.x)

    @cached_property
    def R(self) -> float:
        """Largest token norm: the radius of the ball for bounds on a ball."""
        return self.x.double().norm(dim=-1).amax().item()

    @property
    def A(self) -> Tensor:
        """Logit matrix of the first head, shape (d, d)."""
        return self.f.scale * self.f.key[0].mT @ self.f.query[0]

    @property
    def V(self) -> Tensor:
        """Value matrix of the first head, the output matrix included, shape (m, d)."""
        return self.f.value[0] if self.f.output is None else self.f.output[0] @ self.f.value[0]

    @property
    def c(self) -> Tensor:
        """Vector that the query bias adds to the rows A x, shape (d,)."""
        bias = self.f.query_bias
        return self.x.new_zeros(self.x.shape[1]) if bias is None else self.f.scale * bias[0] @ self.f.key[0]

    @cached_property
    def norms(self) -> HeadNorms:
        """`head_norms` of the map."""
        return self.prepared or head_norms(self.f)

    @cached_property
    def on_ball(self) -> dict[str, float]:
        """Logarithms of `heads_on_ball`."""
        return heads_on_ball(self.norms, self.n, self.R, self.f.masked)

    @cached_property
    def at_input(self) -> dict[str, float]:
        """Logarithms of `heads_at_input`."""
        return heads_at_input(self.f, self.norms, self.x)


@dataclass(frozen=True)
class Bound:
    """Record of one upper bound.

    Attributes
    ----------
    name, key : str
        The function in `lipnb.bounds` or a module of it, or `lipnb.certify`; a short name for tables of bounds.
    title, about : str
        A few words, and a sentence.
    scope : str
        Where it holds: one input, a ball, measures on a ball, all inputs, or the limit of large tokens.
    source, statement : str
        Bibliography key, or "ours"; number of the published statement.
    evaluate : callable or None
        Function of a `Case` that returns the bound as stated; None if it needs more than the case.
    of, norm : str
        Kind of map, as from `kind_of`; norm of inputs and outputs.
    masks : tuple of bool
        Values of `masked` for which it holds.
    heads, biased, windows, free : bool
        Whether it holds for several heads, with query biases, with a window; whether it is independent of n.
    more : tuple of str
        The features in `Attention.more` that it supports.
    instead : str
        Key of the bound to use where it does not hold.
    form : str
        How we know the form, if `seen` cannot infer it.
    column : str
        Its column in the tables of a scan, without ``log10_``; empty for none.
    """

    name: str
    key: str
    title: str
    scope: str
    source: str
    about: str
    evaluate: Callable[[Case], Any] | None = None
    statement: str = ""
    of: str = DOT
    norm: str = EUCLID
    masks: tuple[bool, ...] = (False, True)
    heads: bool = True
    biased: bool = True
    windows: bool = True
    free: bool = False
    more: tuple[str, ...] = (Feature.SHARED_KEYS,)
    instead: str = "certify"
    form: str = ""
    column: str = ""

    @property
    def seen(self) -> str:
        """How we know the form of the bound: "ours" or "reconstructed", unless `form` is set."""
        return self.form or (OURS if self.source == OURS else REBUILT)

    def applies(self, f: Callable, *, layer: bool = False) -> str | None:
        """Reason why the bound does not hold for a map; None if it does.

        With `layer` this refers to `log`, where heads are summed and query biases counted.

        Examples
        --------
        >>> general = next(bound for bound in CATALOGUE if bound.key == "general")
        >>> two = Attention(*torch.ones(3, 2, 1, 2))
        >>> general.applies(two), general.applies(two, layer=True)
        ('for one head, not for 2: use multi_head or biased', None)
        """
        why = self._other_kind(kind_of(f))
        if why is None and isinstance(f, Attention):
            why = self._other_heads(f) or self._other_mask(f, layer) or (None if layer else self._heads_and_biases(f))
        return why

    def _other_kind(self, kind):
        if kind == self.of or (kind == ROTARY and Feature.ROTARY in self.more):
            return None
        why = ", where each distance has a matrix A of its own" if (self.of, kind) == (DOT, ROTARY) else ""
        return f"for {self.of}, not for {kind}{why}"

    def _other_heads(self, f):
        others = [word for word in f.more if word not in self.more]
        return f"for plain heads, not for {', '.join(others)}" if others else None

    def _other_mask(self, f, layer):
        if f.masked not in self.masks:
            return f"for attention {'with' if self.masks == (True,) else 'without'} a mask: use {self.instead}"
        # bounds at one input use the attention matrix itself, so a window is already included
        if f.window is not None and not self.windows and not (layer and self.scope == INPUT):
            return "for attention to all earlier tokens, without a window: use ball_upper"
        return None

    def _heads_and_biases(self, f):
        if not self.heads and f.heads > 1:
            return f"for one head, not for {f.heads}: use multi_head or {self.instead}"
        if not self.biased and f.query_bias is not None and f.query_bias.any():
            return f"for attention without query biases: use {self.instead}"
        return None

    def log(self, case: Case) -> float:
        """Natural logarithm of the bound for a whole layer; for bounds of layers and those with a column."""
        if self.heads and self.biased and self.evaluate is not None:
            return log_of(float(self.evaluate(case)))
        return {**case.on_ball, **case.at_input}[self.column or self.key]


def kind_of(f: Any) -> str:
    """Kind of a map in words, such as "L2 attention"; for other maps their attribute `kind`, if any."""
    if isinstance(f, Attention):
        return L2 if f.score == "l2" else DOT if f.frequencies is None else ROTARY
    if isinstance(f, torch.nn.LayerNorm | torch.nn.RMSNorm):
        return NORM_LAYER
    return getattr(f, "kind", "a map known by automatic differentiation alone")


def _exp(log):
    """A bound from its logarithm, infinite beyond the largest float."""
    return math.exp(log) if log < 709 else math.inf


def _norm_layer(layer, x):
    return norm_layer_upper(layer.weight.detach(), layer.eps, x, centred=isinstance(layer, torch.nn.LayerNorm))


_ANY = (*TRANSFORMER_FEATURES, Feature.TWO_SIDED_WINDOW)
_HEAD: dict[str, Any] = {"heads": False, "biased": False}
_FIELD: dict[str, Any] = {**_HEAD, "windows": False, "free": True}
_LARGEST: dict[str, Any] = {"norm": TOKEN, "free": True, "more": (Feature.SHARED_KEYS, Feature.RELATIVE)}
_ROTARY: dict[str, Any] = {"of": ROTARY, "more": (Feature.SHARED_KEYS, Feature.ROTARY)}

CATALOGUE = (
    Bound("certify", "certify", "certificate", INPUT, OURS, "Proved, rounding included.", more=_ANY),
    Bound("three_terms", "three_terms", "three terms", INPUT, OURS,
          "Each term of the Jacobian as a norm that is computed, for all heads together.",
          lambda c: sum(three_terms(RoundedLinearization(c.f, c.x, c.weights))), more=_ANY),
    Bound("yudin_upper", "yudin", "Yudin, Thm 3", INPUT, YUDIN,
          "From the attention matrix: Theorem 3 for one head, summed over heads. A query bias enters in the key term.",
          lambda c: yudin_upper(c.f, c.x), statement="Thm 3", biased=False, column="yudin"),
    Bound("yudin_upper_sharp", "yudin_sharp", "Yudin, exact softmax", INPUT, OURS,
          "The same with the norm of the softmax.", lambda c: yudin_upper_sharp(c.f, c.x)),
    Bound("spread_upper", "spread", "Castin, C.3 by its proof", INPUT, CASTIN,
          "From how far the tokens lie apart: our form of Theorem C.3 of Castin et al., whose formulas we do not have; "
          "derived from its proof, summed over heads.",
          lambda c: spread_upper(c.A, c.V, c.x), statement="Thm C.3", form=OURS, column="spread", **_HEAD),
    Bound("column_upper", "column", "column sums", INPUT, OURS,
          "From the largest column sum of the attention matrix: the proof of Theorem 3.3 at one input.",
          lambda c: column_upper(c.A, c.V, c.x, masked=c.f.masked), windows=False, column="column", **_HEAD),
    Bound("general_upper", "general", "Castin, Thm 3.3", BALL, CASTIN,
          "The general bound: Theorem 3.3 (4.3 with a mask, E.3 with query biases), heads by Lemma 3.8.",
          lambda c: general_upper(c.A, c.V, c.n, c.R), statement="Thm 3.3, 4.3", instead="biased", column="general",
          **_HEAD),
    Bound("general_upper_sharp", "general_sharp", "Thm 3.3, tighter", BALL, OURS,
          "The same proof with less given away.", lambda c: general_upper_sharp(c.A, c.V, c.n, c.R),
          instead="biased", column="general_sharp", **_HEAD),
    Bound("general_upper_optimal", "general_optimal", "Thm 3.3, leading constant", BALL, OURS,
          "A closed form, exact in the leading constant of long sequences.",
          lambda c: general_upper_optimal(c.A, c.V, c.n, c.R), instead="ball_upper", **_HEAD),
    Bound("general_upper_exact", "general_exact", "Thm 3.3, exact at every n", BALL, OURS,
          "Exact in the leading constant for every number of tokens.",
          lambda c: _exp(general_upper_exact(c.A, c.V, c.n, c.R, log=True)), instead="ball_upper", **_HEAD),
    Bound("heads_on_ball", "heads_on_ball", "all heads on a ball", BALL, OURS, "The least of some sums over heads.",
          lambda c: _exp(min(c.on_ball.values())), windows=False),
    Bound("heads_at_input", "heads_at_input", "all heads at an input", INPUT, OURS,
          "The least of three sums over heads.", lambda c: _exp(min(c.at_input.values()))),
    Bound("ball_upper", "ball_upper", "whole layer on a ball", BALL, OURS,
          "The least of all that is proved, heads together.",
          lambda c: _exp(ball_upper(c.f, c.n, c.R, log=True)), more=TRANSFORMER_FEATURES),
    Bound("biased_upper", "biased", "Castin, Thm E.3", BALL, CASTIN, "The general bound with query biases.",
          lambda c: biased_upper(c.A, c.V, c.n, c.R, c.c), statement="Thm E.3", heads=False),
    Bound("multi_head_upper", "multi_head", "Castin, Lemma 3.8", INPUT, CASTIN, "Heads summed, from a bound on each.",
          statement="Lemma 3.8"),
    Bound("nearby_upper", "nearby", "change near an input", INPUT, OURS,
          "How far the output moves when tokens move by so much."),
    Bound("large_radius_limit", "large_radius", "Castin, Thm 3.7", LIMIT, CASTIN,
          "The norm of V times the root of n bounds the limit of large tokens.",
          lambda c: torch.linalg.matrix_norm(c.V, 2) * c.n**0.5, statement="Thm 3.7, 4.5", **_HEAD),
    Bound("mean_field_upper", "mean_field", "Castin, Thm 3.5", MEASURES, CASTIN,
          "The bound that knows no length: Theorem 3.5 (4.4 with a mask, as corrected here), heads by Lemma 3.8.",
          lambda c: mean_field_upper(c.A, c.V, c.R), statement="Thm 3.5", norm=TRANSPORT, masks=(False,),
          instead="masked_mean_field", column="mean_field", **_FIELD),
    Bound("mean_field_upper_sharp", "mean_field_sharp", "Thm 3.5, tighter", MEASURES, OURS,
          "The same with half the exponent, either way.", lambda c: mean_field_upper_sharp(c.A, c.V, c.R),
          norm=TRANSPORT, masks=(False,), instead="masked_mean_field", column="mean_field_sharp", **_FIELD),
    Bound("mean_field_upper_exact", "mean_field_exact", "Thm 3.5, exact exponent", MEASURES, OURS,
          "Exact in the exponent for every A.", lambda c: mean_field_upper_exact(c.A, c.V, c.R),
          norm=TRANSPORT, masks=(False,), instead="masked_mean_field_exact", **_FIELD),
    Bound("masked_mean_field_upper", "masked_mean_field", "Thm 4.4, older form", MEASURES, OURS,
          "Theorem 4.4 as corrected here.", lambda c: masked_mean_field_upper(c.A, c.V, c.R),
          norm=MASKED, masks=(True,), instead="mean_field", column="mean_field", **_FIELD),
    Bound("masked_mean_field_upper_sharp", "masked_mean_field_sharp", "Thm 4.4, half the exponent", MEASURES, OURS,
          "The same with half the exponent.", lambda c: masked_mean_field_upper_sharp(c.A, c.V, c.R),
          norm=MASKED, masks=(True,), instead="mean_field_sharp", column="mean_field_sharp", **_FIELD),
    Bound("masked_mean_field_upper_exact", "masked_mean_field_exact", "Thm 4.4, exact exponent", MEASURES, OURS,
          "Exact in the exponent for every A.", lambda c: masked_mean_field_upper_exact(c.A, c.V, c.R),
          norm=MASKED, masks=(True,), instead="mean_field_exact", **_FIELD),
    Bound("max_token_upper", "max_token", "largest token, ball", BALL, OURS, "Whatever the length.",
          lambda c: max_token_upper(c.f, c.R), **_LARGEST),
    Bound("max_token_terms", "max_token_terms", "largest token, input", INPUT, OURS,
          "Each term of the Jacobian by its norm.", lambda c: max_token_terms(c.f, c.x), **_LARGEST),
    Bound("rotary_terms", "rotary_terms", "three terms, rotary", INPUT, OURS,
          "Each term of the Jacobian as a norm that is computed, summed over heads; holds with rotary positions.",
          lambda c: rotary_terms(c.f, c.x), column="rotary_terms", **_ROTARY),
    Bound("rotary_upper", "rotary", "Thm 3.3 for rotary", BALL, OURS,
          "The proof of Theorem 3.3 with norms that rotations keep, in place of the norm of A.",
          lambda c: rotary_upper(c.f, c.n, c.R), column="rotary_upper", **_ROTARY),
    Bound("l2_upper", "l2", "Kim, Thm 3.2", EVERY, KIM,
          "For L2 attention, on all inputs, where dot products have no finite constant (Kim et al., 3.1).",
          lambda c: l2_upper(c.f.query, c.unfolded, c.f.output, c.n), statement="Thm 3.2", of=L2, column="l2"),
    Bound("l2_upper", "l2_maximum", "Kim, Thm 3.2, maximum", EVERY, KIM, "The same in the maximum norm.",
          lambda c: l2_upper(c.f.query, c.unfolded, c.f.output, c.n, math.inf), statement="Thm 3.2", of=L2, norm=ROW),
    Bound("l2_upper_sharp", "l2_sharp", "Thm 3.2, tighter", EVERY, OURS, "Of the right order in n.",
          lambda c: l2_upper_sharp(c.f.query, c.unfolded, c.f.output, c.n, c.f.masked), of=L2),
    Bound("softmax_norm", "softmax_norm", "softmax, exact", INPUT, OURS, "The norm itself.",
          lambda c: softmax_norm(c.x[0].softmax(-1)), of=SOFTMAX, free=True),
    Bound("norm_layer_upper", "norm_layer", "LayerNorm, input", INPUT, OURS, "From the spread of a token.",
          lambda c: _norm_layer(c.f, c.x[0]), of=NORM_LAYER, free=True),
    Bound("norm_layer_upper", "norm_layer_everywhere", "LayerNorm, all inputs", EVERY, OURS, "From its epsilon.",
          lambda c: _norm_layer(c.f, None), of=NORM_LAYER, free=True),
)  # fmt: skip
