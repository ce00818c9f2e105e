"""What the bounds, the distances of measures and the worst-case searches refuse: rows of `test_refusals.py`."""

import math
from functools import partial
from itertools import product

import torch

from lipnb import Attention, bounds
from lipnb.jacobian.separable import SeparableJacobian
from lipnb.measures import conditional_wasserstein, mean_field_map, uniform, wasserstein
from lipnb.measures.splitting import far_splitting, query_blocks, splitting
from lipnb.worst_case import (
    attacks,
    climb,
    even_fork_input,
    fork_input,
    on_ball,
    quadratic_input,
    tight_input,
    two_diracs,
)
from lipnb.worst_case.forks import bulk_directions, slopes

EYE = torch.eye(2, dtype=torch.float64)
TURN = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
HEAD, MASKED = Attention.from_matrices(EYE, EYE), Attention.from_matrices(EYE, EYE, masked=True)
L2 = Attention.l2(EYE[None], EYE[None])
X, ONES = torch.eye(4, 3).double(), torch.ones(4).double()

# bounds of one head's matrices on a ball
ON_BALL = {
    "general_upper": lambda A, V, R: bounds.general_upper(A, V, 4, R),
    "general_upper_sharp": lambda A, V, R: bounds.general_upper_sharp(A, V, 4, R),
    "general_upper_exact": lambda A, V, R: bounds.general_upper_exact(A, V, 4, R),
    "mean_field_upper": bounds.mean_field_upper,
    "mean_field_upper_sharp": bounds.mean_field_upper_sharp,
    "mean_field_upper_exact": bounds.mean_field_upper_exact,
    "mean_field_lower_exact": bounds.mean_field_lower_exact,
    "masked_mean_field_upper": bounds.masked_mean_field_upper,
    "masked_mean_field_upper_sharp": bounds.masked_mean_field_upper_sharp,
}
WRONG = {
    "A not square": (EYE[:1], EYE, 1.0, "A must be square"),
    "A empty": (EYE[:0], EYE, 1.0, "A must be square"),
    "V of another width": (EYE, EYE[:, :1], 1.0, "V of shape"),
    "A of NaN": (EYE * torch.nan, EYE, 1.0, "NaN"),
    "negative R": (EYE, EYE, -1.0, "R must be"),
    "R of NaN": (EYE, EYE, math.nan, "R must be"),
}
# and at tokens
AT_TOKENS = {"column_upper": bounds.column_upper, "spread_upper": bounds.spread_upper}
WRONG_THERE = {
    "A not square": (EYE[:1], EYE, EYE, "A must be square"),
    "one token without its axis": (EYE, EYE, EYE[0], "x must have shape"),
    "narrow tokens": (EYE, EYE, EYE[:, :1], "x must have shape"),
    "infinite tokens": (EYE, EYE, EYE * torch.inf, "x holds NaN"),
}
LENGTHS = {
    "general_upper": lambda n: bounds.general_upper(EYE, EYE, n, 1.0),
    "general_lower": lambda n: bounds.general_lower(-EYE, n, 1.0),
    "general_lower_pair": lambda n: bounds.general_lower_pair(EYE, EYE, n, 1.0),
    "ball_upper": lambda n: bounds.ball_upper(HEAD, n, 1.0),
    "tight_input": lambda n: tight_input(EYE, n, 1.0),
    "on_ball": lambda n: on_ball(HEAD, n, 1.0),
    "l2_upper": lambda n: bounds.l2_upper(EYE[None], EYE[None], None, n),
}
# features that the theorems do not speak of, and what knows plain heads alone
MORE = {
    "shared keys": {"query": torch.ones(2, 2, 3).double()},
    "rotary positions": {"frequencies": torch.ones(1)},
    "normalised queries or keys": {"key_norm": torch.ones(1, 2).double()},
    "capped logits": {"cap": 1.0},
    "relative positions": {"relative": torch.ones(1, 3).double()},
    "sinks": {"sinks": torch.ones(1).double()},
}
PLAIN_ONLY = {
    "slopes": slopes,
    "bulk_directions": lambda f, x: bulk_directions(f),
    "mean-field map": lambda f, x: mean_field_map(f, x, ONES, x),
    "the mean-field map": query_blocks,
    "a separable kernel": SeparableJacobian,
    "head_norms": lambda f, x: bounds.head_norms(f),
    "nearby_upper": lambda f, x: bounds.nearby_upper(f, x, ONES[:1]),
    "max_token_terms": bounds.heads.max_token_terms,
    "yudin_upper": bounds.yudin_upper,
    "yudin_upper_sharp": bounds.yudin.yudin_upper_sharp,
    "chosen_tokens": bounds.chosen_tokens,
    "max_token_upper": lambda f, x: bounds.max_token_upper(f, 1.0),
}
WRITTEN_OUT = {"head_norms", "nearby_upper", "max_token_terms", "max_token_upper", "yudin_upper", "yudin_upper_sharp"}
KNOWN = {(name, "shared keys") for name in (*WRITTEN_OUT, "chosen_tokens")}
KNOWN |= {(name, "relative positions") for name in ("max_token_terms", "max_token_upper", "chosen_tokens")}
KNOWN |= {("chosen_tokens", "rotary positions")}


def with_more(more):
    """One head of width 2 in dimension 3 with one of the features."""
    return Attention(**{"query": X[None, :2], "key": X[None, :2], "value": X[None, :2], **MORE[more]})


# of a measure: the map, its atoms and their weights
MEASURE = {"attention": Attention.from_matrices(EYE[:1, :1], EYE[:1, :1]), "x": X[:2, :1], "weights": uniform(2)}
WRONG_MEASURES = {
    "masked": (
        {"attention": Attention.from_matrices(EYE[:1, :1], EYE[:1, :1], masked=True)},
        "a masked map has no field",
    ),
    "a batch": ({"x": X[None, :2, :1]}, "one measure"),
    "wide atoms": ({"x": X[:2]}, "d = 1"),
    "one weight": ({"weights": ONES[:1]}, "one entry per token"),
    "a weight of zero": ({"weights": X[0, :2]}, "positive and finite"),
}
OF_MEASURES = {
    "splitting": splitting,
    "query_blocks": query_blocks,
    "far_splitting": lambda *given: far_splitting(*given, torch.full((1, 1), 3.0).double()),
}

BOUNDS = [
    *((f"{name}: {wrong}", partial(ON_BALL[name], *given), word)
      for name, (wrong, (*given, word)) in product(ON_BALL, WRONG.items())),
    *((f"{name}: {wrong}", partial(AT_TOKENS[name], *given), word)
      for name, (wrong, (*given, word)) in product(AT_TOKENS, WRONG_THERE.items())),
    *((f"{name}: n = {n if n != 10**400 else 'ten to the 400'}", partial(bound, n), "n must be")
      for (name, bound), n in product(LENGTHS.items(), (0, 2.5, 10**400))),
    *((f"{name}: {more}", partial(PLAIN_ONLY[name], with_more(more), X), f"not {more}")
      for name, more in product(PLAIN_ONLY, MORE) if (name, more) not in KNOWN),
    *((f"{name}: {wrong}", partial(OF_MEASURES[name], *(MEASURE | change).values()), word)
      for name, (wrong, (change, word)) in product(OF_MEASURES, WRONG_MEASURES.items())),
    *((f"{name}: L2 scores", partial(bound, L2), "dot-product scores only")
      for name, bound in {
          "max_token_upper": lambda f: bounds.max_token_upper(f, 1.0),
          "max_token_terms": lambda f: bounds.heads.max_token_terms(f, EYE),
          "yudin_upper_sharp": lambda f: bounds.yudin.yudin_upper_sharp(f, EYE),
          "ball_upper": lambda f: bounds.ball_upper(f, 3, 1.0),
          "on_ball": lambda f: on_ball(f, 3, 1.0),
      }.items()),
    *((f"{name}: beyond the largest float", call, "log=True")
      for name, call in {
          "mean_field_upper": lambda: bounds.mean_field_upper(EYE, EYE, 30.0),
          "mean_field_lower": lambda: bounds.mean_field_lower(-EYE, 30.0),
          "mean_field_lower_exact": lambda: bounds.mean_field_lower_exact(EYE, EYE, 100.0),
          "masked_mean_field_upper_sharp": lambda: bounds.masked_mean_field_upper_sharp(EYE, EYE, 1e3),
          "ball_upper": lambda: bounds.ball_upper(HEAD, 3, 1e200),
      }.items()),
    *((f"{bound.__name__}: p = {p}", partial(bound, EYE, EYE, 1.0, p=p), "p must be greater than 1")
      for bound in (bounds.masked_mean_field_upper, bounds.masked_mean_field_upper_sharp) for p in (1, -1, math.nan)),
    # no real eigenvalue, no construction
    ("tight_input: a turn", lambda: tight_input(TURN, 3, 1.0), "no real eigenvalue"),
    ("general_lower: a turn", lambda: bounds.general_lower(TURN, 3, 1.0), "no real eigenvalue"),
    ("mean_field_lower: a turn", lambda: bounds.mean_field_lower(TURN, 1.0), "no real eigenvalue"),
    ("mean_field_lower: A not square", lambda: bounds.mean_field_lower(EYE[:1], 1.0), "A must be square"),
    ("mean_field_rate: A not square", lambda: bounds.mean_field_rate(EYE[:1]), "A must be square"),
    ("general_upper: infinite R", lambda: bounds.general_upper(EYE, EYE, 4, math.inf), "R must be"),
    ("biased_upper: long c", lambda: bounds.biased_upper(EYE, EYE, 3, 1.0, torch.zeros(3)), "c must have shape"),
    ("biased_upper: c of NaN", lambda: bounds.biased_upper(EYE, EYE, 3, 1.0, EYE[0] * torch.nan), "c must have shape"),
    # heads summed
    ("multi_head_upper: a matrix", lambda: bounds.multi_head_upper(EYE, [1.0, 1.0]), "output must have shape"),
    ("multi_head_upper: two bounds", lambda: bounds.multi_head_upper(EYE[None], [1.0, 1.0]), "one entry for each"),
    ("multi_head_upper: negative", lambda: bounds.multi_head_upper(EYE[None], [-1.0]), "0 or more"),
    ("multi_head_upper: NaN", lambda: bounds.multi_head_upper(EYE[None], [math.nan]), "without NaN"),
    # ball_upper and its ellipsoid
    *((f"ball_upper: {name} = {value}", partial(bounds.ball_upper, HEAD, **({"n": 4, "R": 1.0} | {name: value})), word)
      for name, value, word in (
          ("n", "4", "n must be a number"), ("n", None, "n must be a number"), ("n", True, "n must be a number"),
          ("n", torch.ones(2), "n must be a number"), ("R", 1j, "R must be a number"), ("R", -1.0, "R must be"),
          ("R", math.inf, "ellipsoid=(gain, shift) must be given"))),
    *((f"ball_upper: {name}", partial(bounds.ball_upper, HEAD, 3, 1.0, ellipsoid=ellipsoid), word)
      for name, ellipsoid, word in (
          ("no pair", ONES, "ellipsoid must be (gain, shift)"), ("whole numbers", (EYE[0].long(), EYE[0]), "gain must"),
          ("another width", (ONES, ONES), "width of the layer"), ("two shapes", (EYE[0], ONES), "one shape"))),
    ("ball_upper: another module", lambda: bounds.ball_upper(torch.nn.Identity(), 3, 1.0), "local_lipschitz"),
    ("ball_upper: a window on both sides", lambda: bounds.ball_upper(HEAD.replace(window=2), 8, 1.0), "both sides"),
    ("ball_upper: no epsilon",
     lambda: bounds.ball_upper(HEAD.replace(query_norm=EYE[:1], norm_eps=0.0), 3, 1.0), "norm_eps=0"),
    ("max_token_upper: negative R", lambda: bounds.max_token_upper(HEAD, -1.0), "R must be a finite number"),
    ("max_token_terms: a batch", lambda: bounds.heads.max_token_terms(HEAD, EYE[None]), "one sequence"),
    ("softmax_norm: negative", lambda: bounds.yudin.softmax_norm(torch.tensor([-0.1, 1.1])), "probabilities"),
    ("softmax_norm: NaN", lambda: bounds.yudin.softmax_norm(torch.tensor([math.nan])), "probabilities"),
    ("norm_layer_upper: epsilon", lambda: bounds.layer_norm.norm_layer_upper(ONES, -1.0), "eps must be"),
    ("norm_layer_upper: x", lambda: bounds.layer_norm.norm_layer_upper(ONES, 1.0, ONES[:3]), "x must have shape"),
    ("norm_layer_upper: gain", lambda: bounds.layer_norm.norm_layer_upper(EYE, 1.0), "gain must have shape"),
    ("yudin_upper: a bias",
     lambda: bounds.yudin_upper(HEAD.replace(query_bias=EYE[:1]), EYE), "does not allow query biases"),
    ("yudin_upper: narrow tokens", lambda: bounds.yudin_upper(HEAD, EYE[:, :1]), "d = 2"),
    ("without_query_bias: size 0",
     lambda: bounds.without_query_bias(HEAD.replace(query_bias=EYE[:1]), EYE, size=0), "size must be positive"),
    ("rotary_terms: no rotary positions", lambda: bounds.rotary_terms(HEAD, EYE), "rotary positions"),
    ("rotary_terms: a cap",
     lambda: bounds.rotary_terms(HEAD.replace(frequencies=torch.ones(1), cap=1.0), EYE), "rotary positions"),
    ("rotary_upper: no rotary positions", lambda: bounds.rotary_upper(HEAD, 7, 1.0), "rotary positions"),
    ("large_radius_limit: ties",
     lambda: bounds.large_radius_limit(HEAD, EYE[[0, 1, 0]]), "token 0 has its largest logit at more than one token"),
    ("chosen_tokens: ties",
     lambda: bounds.chosen_tokens(Attention.from_matrices(0 * EYE, EYE), EYE), "at more than one token"),
    # L2 attention
    ("l2_upper: p = 3", lambda: bounds.l2_upper(EYE[None], EYE[None], None, 1, 3), "p must be"),
    ("l2_upper: heads", lambda: bounds.l2_upper(torch.ones(2, 1, 3), torch.ones(1, 1, 3), None, 3), "value must have"),
    ("Attention.l2: widths", lambda: Attention.l2(torch.ones(1, 1, 3), torch.ones(1, 1, 4)), "value must have shape"),
    ("phi_inverse: negative", lambda: bounds.phi_inverse(-1), "y must be"),
    # distances of measures
    *((f"wasserstein: {name}", partial(wasserstein, **({"x": X, "y": X} | given)), word)
      for name, given, word in (
          ("two widths", {"y": EYE}, "x and y must have shapes"), ("one axis", {"x": ONES}, "points must have shape"),
          ("no points", {"x": X[:0]}, "points must have shape"), ("NaN", {"x": X * torch.nan}, "NaN"),
          ("p below 1", {"p": 0.5}, "p must be"), ("p infinite", {"p": math.inf}, "p must be"),
          ("one weight", {"a": [1.0]}, "weights must be 4 numbers"), ("total", {"b": ONES}, "with sum 1"),
          ("negative weight", {"a": [-0.5, 1.5, 0, 0]}, "0 or more"))),
    ("conditional_wasserstein: one position",
     lambda: conditional_wasserstein([0.0], EYE, [0.0, 1.0], EYE), "positions must have shape"),
    ("mean_field_map: masked", lambda: mean_field_map(MASKED, EYE, uniform(2), EYE), "a masked map has no field"),
    ("mean_field_map: narrow points", lambda: mean_field_map(HEAD, EYE, uniform(2), EYE[:, :1]), "d = 2"),
    ("mean_field_map: three weights", lambda: mean_field_map(HEAD, EYE, uniform(3), EYE), "weights must be"),
    ("far_splitting: z is an atom", lambda: far_splitting(*MEASURE.values(), X[:2, :1]), "every z is an atom"),
    ("far_splitting: a wide z", lambda: far_splitting(*MEASURE.values(), EYE), "d = 1"),
    # constructions and searches
    ("tight_input: negative R", lambda: tight_input(EYE, 3, -1.0), "R must be"),
    ("tight_input: A not square", lambda: tight_input(EYE[:1], 3, 1.0), "A must be square"),
    ("quadratic_input: even", lambda: quadratic_input(4, 1.0, [1.0]), "n must be odd"),
    ("quadratic_input: one token", lambda: quadratic_input(1, 1.0, [1.0]), "n must be odd"),
    ("quadratic_input: no direction", lambda: quadratic_input(3, 1.0, [0.0]), "other than 0"),
    ("quadratic_input: R of NaN", lambda: quadratic_input(3, math.nan, [1.0]), "R must be"),
    ("two_diracs: share 0", lambda: two_diracs(EYE, 1.0, share=0), "share must be above 0"),
    ("two_diracs: underflow", lambda: two_diracs(-EYE, 100.0), "below the smallest float"),
    ("two_diracs: R = 0", lambda: two_diracs(EYE, 0.0), "both points need weight"),
    ("even_fork_input: one token", lambda: even_fork_input(TURN, EYE, 1, 1.0), "n must be 2 or more"),
    ("even_fork_input: width 2", lambda: even_fork_input(TURN, EYE, 3, 1.0), "else 3 or more, got n = 3, width 2"),
    ("even_fork_input: NaN", lambda: even_fork_input(TURN, EYE * math.nan, 2, 1.0), "NaN"),
    ("fork_input: two tokens", lambda: fork_input(TURN, EYE, 2, 1.0), "n must be 3 or more"),
    ("climb: R = 0", lambda: climb(HEAD, EYE, 0.0), "R must be positive"),
    ("climb: narrow tokens", lambda: climb(HEAD, EYE[:, :1], 1.0), "shape"),
    ("push: starts that stay", lambda: attacks.push(HEAD, EYE, 0 * EYE, 1.0), "starts must move"),
    ("push: radius 0", lambda: attacks.push(HEAD, EYE, EYE, 0.0), "radii must be positive"),
    ("singular: narrow tokens", lambda: attacks.singular(HEAD, EYE[:, :1]), "x must have shape"),
    ("nearby_upper: a batch", lambda: bounds.nearby_upper(HEAD, EYE[None], [1.0]), "one sequence"),
    ("nearby_upper: negative radius", lambda: bounds.nearby_upper(HEAD, EYE, [-1.0]), "radii must be finite"),
    ("nearby_upper: narrow tokens", lambda: bounds.nearby_upper(HEAD, EYE[:, :1], [1.0]), "x must have shape"),
    *((f"on_ball: {name} = {value}", partial(on_ball, HEAD, **({"n": 3, "R": 1.0} | {name: value})), word)
      for name, value, word in (
          ("R", 0.0, "R must be positive"), ("R", math.nan, "R must be positive"),
          ("R", math.inf, "R must be a finite number"), ("R", 1e200, "a square within"),
          ("R", "1", "R must be a number"), ("n", [3], "n must be a number"), ("seed", "0", "seed must be a whole"),
          ("seed", 1.0, "seed must be a whole"), ("effort", -1, "effort must be 0 or more"),
          ("effort", None, "effort must be 0 or more"), ("ellipsoid", 1.0, "ellipsoid must be"),
          ("ellipsoid", (EYE[0],), "ellipsoid must be"))),
]  # fmt: skip
