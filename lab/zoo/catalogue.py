"""The catalogue: each bound with its scope, which is checked, how its form is known, and what it is held against."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from lab.zoo import formulas, truth
from lab.zoo.maps import CosineAttention, SigmoidAttention, softmax
from lipnb import bounds
from lipnb.attention import Attention
from lipnb.certified import certify

__all__ = ["ENTRIES", "LEFT_OUT", "Entry", "kind_of"]

INPUT, BALL, MEASURES, EVERY, LIMIT = "one input", "ball", "measures on a ball", "all inputs", "limit"
TEXT, CODE, REBUILT, OURS = "text of the paper", "released code", "reconstructed", "ours"
FOR = {  # what there is for each map
    "dot-product attention": "certify",
    "L2 attention": "l2_sharp",
    "rotary attention": "rotary_terms",
    "cosine attention": "cosine",
    "sigmoid attention": "sigmoid",
    "the softmax": "softmax_norm",
    "a norm layer": "norm_layer",
}
EUCLID, TOKEN, ROW, SIGNS = "Euclidean", "largest token", "maximum", "maximum to sum"
TRANSPORT, MASKED = "W2", "d2"


def kind_of(f):
    """What sort of map this is, in words."""
    if isinstance(f, Attention):
        plain = "dot-product attention" if f.score == "dot" else "L2 attention"
        return "rotary attention" if f.frequencies is not None else plain
    named = {CosineAttention: "cosine attention", SigmoidAttention: "sigmoid attention"}
    return "the softmax" if f is softmax else named.get(type(f), "a norm layer")


@dataclass(frozen=True)
class Entry:
    """One bound of the zoo.

    Attributes
    ----------
    key, title : str
        Its name here, and on the page.
    of : str
        Which map it is for, as `kind_of` says.
    about : str
        What it holds for: one input, a ball, measures on a ball, all inputs, or the limit of large tokens.
    source, seen : str
        Bibliography key, or "ours"; how we know the form.
    bound : callable
        Of a `Case`: the bound, a float.
    family : str
        What `draw` gives it to be held against.
    norm : str
        Of inputs and outputs.
    masks : tuple of bool
        For which masks it holds.
    heads : bool
        Whether it holds for several heads.
    biased : bool
        Whether it holds with query biases.
    free : bool
        Whether it does not depend on the number of tokens.
    instead : str
        What to use where it does not hold.
    holds : bool
        False for a released or quoted formula that is exceeded.
    measured : callable, optional
        Of a `Case`: what it bounds, where that is no norm of the Jacobian.
    """

    key: str
    title: str
    of: str
    about: str
    source: str
    seen: str
    bound: Callable
    family: str
    norm: str = EUCLID
    masks: tuple = (False, True)
    heads: bool = True
    biased: bool = True
    free: bool = False
    instead: str = "certify"
    holds: bool = True
    measured: Callable | None = None

    def check(self, f):
        """Raise one sentence unless the bound holds for this map.

        Raises
        ------
        ValueError
            "... is for ..., not for ...: use ...".
        """
        kind = kind_of(f)
        if kind != self.of:
            raise ValueError(f"{self.key} is for {self.of}, not for {kind}: use {FOR[kind]}.")
        if getattr(f, "masked", False) not in self.masks:
            word = "with" if self.masks == (True,) else "without"
            raise ValueError(f"{self.key} is for attention {word} a mask: use {self.instead}.")
        if not self.heads and getattr(f, "heads", 1) > 1:
            raise ValueError(f"{self.key} is for one head, not for {f.heads}: use multi_head or {self.instead}.")
        if not self.biased and getattr(f, "query_bias", None) is not None and f.query_bias.any():
            raise ValueError(f"{self.key} is for attention without query biases: use {self.instead}.")

    def at(self, case):
        """The bound at a case, a float, after `check`."""
        self.check(case.f)
        return float(self.bound(case))

    def truth(self, case):
        """What it bounds, by autograd, a float."""
        if self.measured is not None:
            return self.measured(case)
        J = case.jacobian()
        if self.norm == TOKEN:
            return truth.largest_token(J)
        return truth.largest_row(J) if self.norm == ROW else truth.spectral(J, case.weights)

    def ratio(self, case):
        """Truth over bound, a float: at most 1 where the bound holds."""
        bound = self.at(case)
        return self.truth(case) / bound if bound > 0 else 0.0


def _on_ball(name):
    """A bound of A, V, n and R at the ball of the input."""
    return lambda case: getattr(bounds, name)(case.A, case.V, case.n, case.R)


def _on_measures(name):
    return lambda case: getattr(bounds, name)(case.A, case.V, case.R)


def _whole_layer(case):
    return bounds.ball_upper(case.f, case.n, case.R)


def _biased(case):
    c = case.f.scale * case.f.query_bias[0] @ case.f.key[0]
    return bounds.biased_upper(case.A, case.V, case.n, case.R, c)


def _heads(case):
    """Lemma 3.8 over the dense norms of the heads themselves."""
    f, alone = case.f, []
    for h in range(f.heads):
        bias = None if f.query_bias is None else f.query_bias[h : h + 1]
        parts = f.query[h : h + 1], f.key[h : h + 1], f.value[h : h + 1]
        alone.append(Attention(*parts, query_bias=bias, scale=f.scale, masked=f.masked))
    output = f.output
    if output is None:  # side by side
        output = torch.eye(f.output_width, dtype=case.x.dtype).unflatten(1, (f.heads, -1)).movedim(1, 0)
    return bounds.multi_head_upper(output, [truth.spectral(truth.blocks(head, case.x)) for head in alone])


def _l2(case, p=2):
    return bounds.l2_upper(case.f.query, case.unfolded, case.f.output, case.n, p)


def _l2_sharp(case):
    return bounds.l2_upper_sharp(case.f.query, case.unfolded, case.f.output, case.n, case.f.masked)


def _released_newhouse(case):
    """The released formula with everything before the product of query and key in the query matrix."""
    f = case.f
    eye = torch.eye(f.output_width, dtype=case.x.dtype)[None]
    f = f.replace(query=f.scale * f.key_width * f.query, scale=1 / f.key_width)
    f = f.replace(output=eye) if f.output is None else f
    return formulas.released_newhouse(f, case.R / f.width**0.5)


def _root_mean_square(case):
    """Norm for the token of largest root mean square."""
    J = case.jacobian()
    return truth.largest_token(J) * (J.shape[3] / J.shape[1]) ** 0.5


def _probabilities(case):
    return case.x[0].softmax(-1)


def _of_norm_layer(case, everywhere=False):
    layer = case.f
    centred = isinstance(layer, torch.nn.LayerNorm)
    return bounds.norm_layer_upper(layer.weight.detach(), layer.eps, None if everywhere else case.x[0], centred=centred)


def _limit(case):
    return torch.linalg.matrix_norm(case.V, 2).item() * case.n**0.5


def _reached_limit(case):
    """The limit, NaN where a token's largest score is attained twice."""
    try:
        return bounds.large_radius_limit(case.f, case.x).item()
    except ValueError:
        return math.nan


DOT, L2, ROTARY, COSINE = "dot-product attention", "L2 attention", "rotary attention", "cosine attention"
HEAD = {"of": DOT, "heads": False, "biased": False}
CASTIN, KIM, YUDIN = "castin2024smooth", "kim2021lipschitz", "yudin2025attention"
_ALL = (
    Entry("certify", "certificate", DOT, INPUT, OURS, OURS, lambda c: certify(c.f, c.x).upper, "layer"),
    Entry("three_terms", "three terms", DOT, INPUT, OURS, OURS, lambda c: certify(c.f, c.x, columns=0).upper, "layer"),
    Entry("yudin", "Yudin, Thm 3", DOT, INPUT, YUDIN, REBUILT, lambda c: bounds.yudin_upper(c.f, c.x), "head",
          biased=False),
    Entry("yudin_sharp", "Yudin, exact softmax", DOT, INPUT, OURS, OURS, lambda c: bounds.yudin_upper_sharp(c.f, c.x),
          "layer"),
    Entry("spread", "Castin, C.3 by its proof", about=INPUT, source=CASTIN, seen=OURS,
          bound=lambda c: bounds.spread_upper(c.A, c.V, c.x), family="head", **HEAD),
    Entry("released_castin", "Castin, released formula", about=INPUT, source=CASTIN, seen=CODE,
          bound=lambda c: formulas.released_castin(c.A, c.V, c.x), family="head", holds=False,
          instead="spread", **HEAD),
    Entry("column", "column sums", about=INPUT, source=OURS, seen=OURS, family="head",
          bound=lambda c: bounds.column_upper(c.A, c.V, c.x, masked=c.f.masked), **HEAD),
    Entry("general", "Castin, Thm 3.3", about=BALL, source=CASTIN, seen=REBUILT, bound=_on_ball("general_upper"),
          family="head", instead="biased", **HEAD),
    Entry("general_sharp", "Thm 3.3, tighter", about=BALL, source=OURS, seen=OURS,
          bound=_on_ball("general_upper_sharp"), family="head", instead="biased", **HEAD),
    Entry("general_optimal", "Thm 3.3, leading constant", about=BALL, source=OURS, seen=OURS,
          bound=_on_ball("general_upper_optimal"), family="head", instead="ball_upper", **HEAD),
    Entry("ball_upper", "whole layer on a ball", DOT, BALL, OURS, OURS, _whole_layer, "layer"),
    Entry("biased", "Castin, Thm E.3", DOT, BALL, CASTIN, REBUILT, _biased, "bias", heads=False),
    Entry("multi_head", "Castin, Lemma 3.8", DOT, INPUT, CASTIN, REBUILT, _heads, "layer"),
    Entry("large_radius", "Castin, Thm 3.7", about=LIMIT, source=CASTIN, seen=REBUILT, bound=_limit, family="head",
          measured=_reached_limit, **HEAD),
    Entry("mean_field", "Castin, Thm 3.5", about=MEASURES, source=CASTIN, seen=REBUILT, family="measure",
          bound=_on_measures("mean_field_upper"), norm=TRANSPORT, masks=(False,), free=True,
          instead="masked_mean_field", **HEAD),
    Entry("mean_field_sharp", "Thm 3.5, tighter", about=MEASURES, source=OURS, seen=OURS, family="measure",
          bound=_on_measures("mean_field_upper_sharp"), norm=TRANSPORT, masks=(False,), free=True,
          instead="masked_mean_field", **HEAD),
    Entry("masked_mean_field", "Thm 4.4, older form", about=MEASURES, source=OURS, seen=OURS, family="measure",
          bound=_on_measures("masked_mean_field_upper"), norm=MASKED, masks=(True,), free=True,
          instead="mean_field", **HEAD),
    Entry("masked_mean_field_sharp", "Thm 4.4, half the exponent", about=MEASURES, source=OURS, seen=OURS,
          family="measure", bound=_on_measures("masked_mean_field_upper_sharp"), norm=MASKED, masks=(True,),
          free=True, instead="mean_field_sharp", **HEAD),
    Entry("max_token", "largest token, ball", DOT, BALL, OURS, OURS, lambda c: bounds.max_token_upper(c.f, c.R),
          "layer", norm=TOKEN, free=True),
    Entry("max_token_terms", "largest token, input", DOT, INPUT, OURS, OURS, family="layer", norm=TOKEN, free=True,
          bound=lambda c: bounds.max_token_terms(c.f, c.x)),
    Entry("newhouse", "Newhouse, one head", about=BALL, source="newhouse2025training", seen=CODE, family="head",
          bound=_released_newhouse, norm=TOKEN, measured=_root_mean_square, free=True, instead="max_token", **HEAD),
    Entry("newhouse_heads", "Newhouse, heads stacked", DOT, BALL, "newhouse2025training", CODE, family="stacked",
          bound=_released_newhouse, norm=TOKEN, measured=_root_mean_square, free=True, biased=False, holds=False,
          instead="max_token"),
    Entry("rotary_terms", "three terms, rotary", ROTARY, INPUT, OURS, OURS, lambda c: bounds.rotary_terms(c.f, c.x),
          "rotary"),
    Entry("rotary", "Thm 3.3 for rotary", ROTARY, BALL, OURS, OURS, lambda c: bounds.rotary_upper(c.f, c.n, c.R),
          "rotary", instead="rotary_terms"),
    Entry("l2", "Kim, Thm 3.2", L2, EVERY, KIM, REBUILT, _l2, "l2", instead="l2_sharp"),
    Entry("l2_maximum", "Kim, Thm 3.2, maximum", L2, EVERY, KIM, REBUILT, lambda c: _l2(c, math.inf), "l2", norm=ROW),
    Entry("l2_sharp", "Thm 3.2, tighter", L2, EVERY, OURS, OURS, _l2_sharp, "l2"),
    Entry("l2_quoted", "Thm 3.2 as recalled", L2, EVERY, KIM, REBUILT, family="l2", holds=False, instead="l2",
          bound=lambda c: formulas.quoted_l2_upper(c.f, c.unfolded, c.n)),
    Entry("lipsformer", "LipsFormer, Thm 1", COSINE, EVERY, "qi2023lipsformer", REBUILT, family="cosine",
          bound=lambda c: formulas.lipsformer_upper(c.f, c.n)),
    Entry("lipsformer_refined", "Nair, Thm 2", COSINE, EVERY, "nair2025softmax", REBUILT, family="cosine",
          bound=lambda c: formulas.lipsformer_refined(c.f, c.n)),
    Entry("cosine", "cosine scores, tighter", COSINE, EVERY, OURS, OURS, family="cosine",
          bound=lambda c: formulas.cosine_upper(c.f, c.n)),
    Entry("sigmoid", "Ramapuram et al.", "sigmoid attention", INPUT, "ramapuram2024theory", REBUILT,
          lambda c: formulas.sigmoid_upper(c.f, c.x), "sigmoid"),
    Entry("half", "Nair, softmax", "the softmax", EVERY, "nair2025softmax", TEXT, lambda c: 0.5, "softmax", free=True),
    Entry("two_largest", "Yudin, softmax", "the softmax", INPUT, YUDIN, REBUILT, family="softmax", free=True,
          bound=lambda c: formulas.two_largest(_probabilities(c))),
    Entry("softmax_norm", "softmax, exact", "the softmax", INPUT, OURS, OURS, family="softmax", free=True,
          bound=lambda c: bounds.softmax_norm(_probabilities(c))),
    Entry("sign", "Emadi, softmax", "the softmax", INPUT, "emadi2026softmax", REBUILT, family="softmax", norm=SIGNS,
          bound=lambda c: formulas.sign_upper(_probabilities(c)), free=True,
          measured=lambda c: truth.sign_norm(_probabilities(c))),
    Entry("norm_layer", "LayerNorm, input", "a norm layer", INPUT, OURS, OURS, _of_norm_layer, "norm", free=True),
    Entry("norm_layer_everywhere", "LayerNorm, all inputs", "a norm layer", EVERY, OURS, OURS, family="norm",
          bound=lambda c: _of_norm_layer(c, everywhere=True), free=True),
)  # fmt: skip
ENTRIES = {entry.key: entry for entry in _ALL}
LEFT_OUT = (
    ("Kim et al., Thm 3.1", "2006.04710", "infinite: dot products have no constant on all inputs"),
    ("Havens et al., LoFAST", "ICML 2024", "formula and code not available to us"),
    ("SpecFormer", "2402.03317", "the form that we have is exceeded at small inputs; text not available to us"),
    ("Vuckovic et al.", "2007.02876", "formulas on compact sets, in W1, not available to us"),
    ("Geshkovski et al.", "2305.05465", "exponential in the squared radius; Theorem 3.5 sharpens it"),
    ("Castin et al. 2025", "2501.18322", "estimates inside proofs of well-posedness, not available to us"),
    ("Budzinskiy et al.", "2503.10251", "formulas not available to us; ours for the largest token is of this kind"),
    ("LipschitzNorm", "2103.04886", "another map: scores divided by norms, on graphs"),
    ("LipAttn", "ICLR 2026 submission", "a construction with constant one: nothing to compare"),
    ("Kan et al.", "2510.09904", "growth through depth, not the constant of a layer"),
)
