"""Catalogue of the survey: that of `lipnb.bounds`, other people's formulas, and the truth for each bound."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from lab.bounds_survey import formulas, truth
from lipnb import bounds
from lipnb.attention import Attention
from lipnb.bounds.catalogue import (
    BALL,
    CATALOGUE,
    DOT,
    EUCLID,
    EVERY,
    INPUT,
    L2,
    NORM_LAYER,
    OURS,
    ROTARY,
    ROW,
    SOFTMAX,
    TOKEN,
    Bound,
    kind_of,
)
from lipnb.certified import certify

TEXT, CODE = "text of the paper", "released code"
COSINE, SIGMOID = "cosine attention", "sigmoid attention"
FOR = {  # what the library offers for each map
    DOT: "certify",
    L2: "l2_sharp",
    ROTARY: "rotary_terms",
    COSINE: "cosine",
    SIGMOID: "sigmoid",
    SOFTMAX: "softmax_norm",
    NORM_LAYER: "norm_layer",
}
FAMILIES = {L2: "l2", ROTARY: "rotary", COSINE: "cosine", SIGMOID: "sigmoid", SOFTMAX: "softmax", NORM_LAYER: "norm"}
NOT_SURVEYED = ("heads_on_ball", "heads_at_input", "nearby")  # sums of others, and not bounds on a constant


@dataclass(frozen=True)
class Entry(Bound):
    """One bound of the survey: a `Bound`, with the way to test it.

    `drawn`: family that `draw` uses to test it, if its scope does not determine it. `holds`: false for a released or
    quoted formula that is exceeded. `measured`: of a `Case`: the bounded quantity, if it is not a norm of the Jacobian.
    """

    drawn: str = ""
    holds: bool = True
    measured: Callable | None = None

    @property
    def family(self):
        """Family of inputs from `draw` that tests it."""
        if self.drawn or self.of != DOT:
            return self.drawn or FAMILIES[self.of]
        if self.biased:
            return "layer" if self.heads else "bias"
        return "measure" if self.norm not in (EUCLID, TOKEN) else "head"

    def check(self, f):
        """Raise ValueError unless the bound holds for this map."""
        if why := self.applies(f):
            raise ValueError(f"{self.key} is {why}{'' if ': use' in why else f': use {FOR[kind_of(f)]}'}.")

    def at(self, case):
        """The bound at a case, a float, after `check`."""
        self.check(case.f)
        return float(self.evaluate(case))

    def truth(self, case):
        """The bounded quantity, by autograd, a float."""
        if self.measured is not None:
            return self.measured(case)
        J = truth.jacobian(case)
        if self.norm == TOKEN:
            return truth.largest_token(J)
        return truth.largest_row(J) if self.norm == ROW else truth.spectral(J, case.weights)

    def ratio(self, case):
        """Truth over bound, a float: at most 1 if the bound holds."""
        bound = self.at(case)
        return self.truth(case) / bound if bound > 0 else 0.0


def heads_of(f):
    """Each head separately, without its output matrix and biases that change no derivative."""
    biases = [None] * f.heads if f.query_bias is None else f.query_bias[:, None]
    rows = zip(f.query[:, None], f.key[:, None], f.value[:, None], biases, strict=True)
    same = {"scale": f.scale, "masked": f.masked, "window": f.window}
    return [Attention(*parts, query_bias=bias, **same) for *parts, bias in rows]


def _heads(case):
    """Lemma 3.8 over the dense norms of the heads themselves."""
    output = case.f.output_matrices()
    return bounds.multi_head_upper(output, [truth.spectral(truth.blocks(f, case.x)) for f in heads_of(case.f)])


def _released_newhouse(case):
    """The released formula, with all factors before the product of query and key in the query matrix."""
    f = case.f
    eye = torch.eye(f.output_width, dtype=case.x.dtype)[None]
    f = f.replace(query=f.scale * f.key_width * f.query, scale=1 / f.key_width)
    f = f.replace(output=eye) if f.output is None else f
    return formulas.released_newhouse(f, case.R / f.width**0.5)


def _root_mean_square(case):
    """Norm for the token of largest root mean square."""
    J = truth.jacobian(case)
    return truth.largest_token(J) * (J.shape[3] / J.shape[1]) ** 0.5


def reached_limit(case):
    """The limit, NaN if a token's largest score is attained twice."""
    try:
        return bounds.large_radius_limit(case.f, case.x).item()
    except ValueError:
        return math.nan


# bounds that the catalogue cannot evaluate, or whose truth is not a norm of the Jacobian
OWN = {
    "certify": {"evaluate": lambda c: certify(c.f, c.x).upper},
    "three_terms": {"evaluate": lambda c: certify(c.f, c.x, columns=0).upper},
    "multi_head": {"evaluate": _heads},
    "large_radius": {"measured": reached_limit},
}
ONE = {"heads": False, "biased": False}


def _foreign(key, title, scope, source, evaluate, **more):
    """Entry for a formula that the library lacks."""
    return Entry("", key, title, scope, source, "", evaluate, **more)


_ALL = (
    *(Entry(**{**vars(bound), **OWN.get(bound.key, {})}) for bound in CATALOGUE if bound.key not in NOT_SURVEYED),
    _foreign("released_castin", "Castin, released formula", INPUT, "castin2024smooth",
             lambda c: formulas.released_castin(c.A, c.V, c.x), form=CODE, holds=False, instead="spread", **ONE),
    _foreign("newhouse", "Newhouse, one head", BALL, "newhouse2025training", _released_newhouse, form=CODE,
             norm=TOKEN, measured=_root_mean_square, free=True, instead="max_token", **ONE),
    _foreign("newhouse_heads", "Newhouse, heads stacked", BALL, "newhouse2025training", _released_newhouse, form=CODE,
             norm=TOKEN, measured=_root_mean_square, free=True, instead="max_token", biased=False, holds=False,
             drawn="stacked"),
    _foreign("l2_quoted", "Thm 3.2 as recalled", EVERY, "kim2021lipschitz",
             lambda c: formulas.quoted_l2_upper(c.f, c.unfolded, c.n), of=L2, holds=False, instead="l2"),
    _foreign("lipsformer", "LipsFormer, Thm 1", EVERY, "qi2023lipsformer",
             lambda c: formulas.lipsformer_upper(c.f, c.n), of=COSINE),
    _foreign("lipsformer_refined", "Nair, Thm 2", EVERY, "nair2025softmax",
             lambda c: formulas.lipsformer_refined(c.f, c.n), of=COSINE),
    _foreign("cosine", "cosine scores, tighter", EVERY, OURS, lambda c: formulas.cosine_upper(c.f, c.n), of=COSINE),
    _foreign("sigmoid", "Ramapuram et al.", INPUT, "ramapuram2024theory", lambda c: formulas.sigmoid_upper(c.f, c.x),
             of=SIGMOID),
    _foreign("half", "Nair, softmax", EVERY, "nair2025softmax", lambda c: 0.5, of=SOFTMAX, form=TEXT, free=True),
    _foreign("two_largest", "Yudin, softmax", INPUT, "yudin2025attention",
             lambda c: formulas.two_largest(c.x[0].softmax(-1)), of=SOFTMAX, free=True),
    _foreign("sign", "Emadi, softmax", INPUT, "emadi2026softmax", lambda c: formulas.sign_upper(c.x[0].softmax(-1)),
             of=SOFTMAX, norm="maximum to sum", free=True, measured=lambda c: truth.sign_norm(c.x[0].softmax(-1))),
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
