"""One table of bad inputs: what is called, and the words that must occur in the sentence that answers.

A row is (id, call, words); the words are a regular expression. Rows that are alike are made by `rows`, of doors and
what they are given. Those of the bounds, with plain words, stand in refusals_of_bounds.py; maps whose
derivative is wrong in test_autodiff.py.
"""

import itertools
import math
import re
from functools import partial

import numpy as np
import pytest
import torch
from cases import l2_parameters, normal
from refusals_of_bounds import BOUNDS

from lipnb import (
    Attention,
    AttentionJacobian,
    AutodiffJacobian,
    block_norms,
    bounds,
    certify,
    differentiable_lipschitz,
    local_lipschitz,
    singular_pair,
)
from lipnb.jacobian import infinity_norm
from lipnb.jacobian.separable import Expansion, SeparableJacobian
from lipnb.measures import transport
from lipnb.worst_case import climb, constructions, on_ball

EYE = torch.eye(2).double()
HEADS = EYE.expand(2, 2, 2)
F, X = Attention.from_matrices(EYE, EYE), torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.5]]).double()
BIASED, TURNED = (Attention(HEADS, HEADS, HEADS, **one) for one in ({"query_bias": EYE}, {"frequencies": EYE[0, :1]}))
TIED, WIDE, ONES = Attention.l2(*l2_parameters(2)), Attention.from_matrices(*normal(2, 4, 4)), torch.ones(3, 4).double()
NORMS = bounds.head_norms(F)
MEASURES = (local_lipschitz, singular_pair, block_norms, AutodiffJacobian)
SOLVERS = (certify, *MEASURES[:3])


def rows(words, doors, *given):
    """One row for each door and each of what it is given, in the same words."""
    each = itertools.product(doors, given)
    return [(f"{words} {i}", partial(door, one), words) for i, (door, one) in enumerate(each)]


# what `Attention` is made of: four heads on two of keys
PARTS = {"query": normal(4, 6, 5), "key": normal(2, 6, 5), "value": normal(2, 6, 5)}
PARAMETERS = [
    ({"key": normal(2, 4, 5)}, "key must have shape"),
    ({"key": normal(3, 6, 5)}, "or fewer heads, a divisor of 4, got"),
    ({"value": normal(4, 6, 5)}, "value must have shape"),
    ({"value": PARTS["value"].float()}, "must share one dtype"),
    ({"query": normal(6, 5)}, "query must have shape"),
    ({"query": PARTS["query"] * torch.nan}, "query holds NaN"),
    ({"query": torch.ones(4, 6, 5, dtype=torch.int64)}, "floating point"),
    ({"query": PARTS["query"].to(torch.float8_e4m3fn)}, "query must be .* got torch.float8_e4m3fn"),
    ({name: normal(0, 6, 5) for name in PARTS}, "at least one head"),
    ({"output": normal(4, 5, 5)}, "output must have shape"),
    ({"output": normal(4, 0, 6)}, "output needs at least one head, one row and one column"),
    ({"query_bias": normal(4, 5)}, "query_bias must have shape"),
    ({"output_bias": normal(5)}, "output_bias must have shape"),
    ({"frequencies": torch.ones(4)}, "frequencies must have shape .* 1 <= p <= 3"),
    ({"frequencies": torch.ones(2).half()}, "in float32 or float64"),
    ({"query_norm": normal(6)}, "query_norm must have shape"),
    ({"key_norm": normal(4, 6)}, "key_norm must have shape"),
    ({"relative": normal(4, 4)}, "relative must have shape"),
    ({"sinks": normal(2)}, "sinks must have shape"),
    ({"sinks": normal(4), "score": "l2"}, "cap and sinks go with dot-product scores only"),
    ({"score": "cosine"}, "score must be one of"),
    *(({"norm_eps": eps}, "norm_eps must be") for eps in (-1.0, 10**400)),
    *(({"cap": cap}, "cap must be None or a positive number") for cap in (0.0, 10**400)),
    *(({"scale": s}, "scale must be None or a finite number") for s in (math.nan, math.inf, 10**400, -(10**400))),
    *(({"masked": value}, "masked must be True or False") for value in ("no", None, torch.ones(2))),
    *(({"joint_norm": value}, "joint_norm must be True or False") for value in ("a", 1)),
    *(({"window": w, "masked": True}, "window must be None or the number of tokens") for w in (0, -1, 2.0, "4", True)),
]
CORE = [(f"{words} {i}", partial(Attention, **{**PARTS, **one}), words) for i, (one, words) in enumerate(PARAMETERS)]
CORE += [
    ("an unknown part", lambda: F.replace(values=EYE), "values"),
    ("l2, two types", lambda: Attention.l2(HEADS.float(), HEADS), "all parameters must share one dtype"),
    ("l2, other heads", lambda: Attention.l2(HEADS, HEADS[:1]), r"value must have shape \(2, v, 2\).* got \(1, 2, 2\)"),
    ("from matrices", lambda: Attention.from_matrices(EYE, EYE, masked="no"), "masked must be True or False"),
    ("deleted", lambda: delattr(F, "output"), "cannot be changed"),
    ("an old pickle", lambda: object.__new__(Attention).__setstate__({"query": EYE}), "pickled by another version"),
]
for name in ("query", "key_bias", "masked", "window", "heads", "anything"):
    CORE += rows(rf"cannot be changed: make a new one.*replace\({name}=...\)", [partial(setattr, F, name)], None)

# what it is called with
CORE += [
    ("another width", lambda: F(normal(5, 3)), "x must have shape .* d = 2"),
    ("one vector", lambda: F(normal(2)), "x must have shape"),
    ("no token", lambda: F(X[:0]), "holds no token"),
    ("another type", lambda: F(X.float()), "x is torch.float32"),
    ("a list", lambda: F(X.tolist()), "x must be a torch tensor"),
    ("sparse", lambda: F(X.to_sparse()), "x must be dense, got a sparse"),
    ("too few weights", lambda: F(X, X[:2, 0].exp()), "one entry per token"),
    ("weights of a batch", lambda: F(X, torch.ones(2, 3).double()), r"weights must have shape \(3,\), got \(2, 3\)"),
    ("weights of another", lambda: F(X.expand(3, 3, 2), torch.ones(2, 3)), r"shape \(3,\) or \(3, 3\), got \(2, 3\)"),
    ("weights of zero", lambda: F(X, 0 * X[:, 0]), "weights must be positive"),
    ("weights of another type", lambda: F(X, torch.ones(3)), "weights are torch.float32"),
]

# maps, and what takes some of them alone
ATTENTION_ONLY = {
    "AttentionJacobian": lambda f: AttentionJacobian(f, X),
    "ball_upper": lambda f: bounds.ball_upper(f, 3, 1.0),
    "certify": lambda f: certify(f, X),
    "climb": lambda f: climb(f, X, 1.0),
    "chosen_tokens": lambda f: bounds.large_radius_limit(f, X),
    "head_norms": bounds.head_norms,
    "heads_at_input": lambda f: bounds.heads.heads_at_input(f, NORMS, X),
    "infinity_norm": lambda f: infinity_norm(f, X),
    "max_token_terms": lambda f: bounds.heads.max_token_terms(f, X),
    "max_token_upper": lambda f: bounds.max_token_upper(f, 1.0),
    "nearby_upper": lambda f: bounds.nearby_upper(f, X, [0.1]),
    "on_ball": lambda f: on_ball(f, 3, 1.0),
    "rotary_terms": lambda f: bounds.rotary_terms(f, X),
    "rotary_upper": lambda f: bounds.rotary_upper(f, 3, 1.0),
    "the mean-field map": lambda f: transport.mean_field_map(f, X, X.new_ones(3), X),
    "without_query_bias": lambda f: bounds.without_query_bias(f, X, 1.0),
    "yudin_upper": lambda f: bounds.yudin_upper(f, X),
    "yudin_upper_sharp": lambda f: bounds.yudin.yudin_upper_sharp(f, X),
}
DOT_ONLY = {
    "certify": certify,
    "yudin_upper": bounds.yudin_upper,
    "chosen_tokens": bounds.large_radius_limit,
    "nearby_upper": lambda f, x: bounds.nearby_upper(f, x, [0.1]),
    "a separable kernel": SeparableJacobian,
    "without_query_bias": lambda f, x: bounds.without_query_bias(f, x, 1.0),
}
for name, door in ATTENTION_ONLY.items():
    CORE += rows(f"^{name} needs a lipnb.Attention .*local_lipschitz", [door], None, torch.sin)
for name, door in DOT_ONLY.items():
    CORE += rows(f"{name}.* supports dot-product scores only", [partial(door, TIED)], normal(4, TIED.width))
for door in MEASURES:
    CORE += rows("^f must be an Attention or a callable, got", [lambda f, door=door: door(f, X)], None, "a")
CORE += [
    (
        "plain heads only",
        lambda: bounds.yudin_upper(TURNED.replace(cap=50.0), X),
        "not rotary positions, capped logits",
    ),
    ("a list first", lambda: local_lipschitz([X], torch.tanh), "got list: the map comes first"),
    ("tokens first", lambda: local_lipschitz(X, torch.tanh), "got Tensor: the map comes first"),
    ("norms", lambda: bounds.heads_on_ball(F, 3, 1.0, False), r"norms must come from head_norms\(.*got Attention"),
    ("three terms", lambda: bounds.three_terms(F), r"three_terms\(RoundedLinearization\(attention, x\)\), got Attent"),
]


class ThreeDimensions(torch.nn.Module):
    """Attention that unpacks the shape of a batch."""

    def forward(self, x):
        b, n, d = x.shape
        return torch.nn.functional.scaled_dot_product_attention(x, x, x).view(b, n, d)


def two_dimensions(x):
    n, d = x.shape
    return (x @ x.mT).softmax(-1).view(n, n) @ x.view(n, d)


class TakesWords(torch.nn.Module):
    """As a network that takes numbers of tokens, from the library of models."""

    def forward(self, x):
        return torch.nn.functional.embedding(x, EYE)


TakesWords.__module__ = "transformers.models"


def flexed(x):
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(x[:, None], x[:, None], x[:, None])[:, 0]


def module(kind, *sizes, **options):
    with torch.random.fork_rng():
        return kind(*sizes, **options).eval()


LINEAR = torch.nn.utils.skip_init(torch.nn.Linear, 2, 2)
MULTIHEAD = module(torch.nn.MultiheadAttention, 8, 2, batch_first=True)
DECODER = module(torch.nn.TransformerDecoderLayer, 8, 2, batch_first=True)
RAISING = {
    "three dimensions": (ThreeDimensions(), X, r"does not take tokens of shape \(3, 2\) .*\(1, 3, 2\): give x\[None\]"),
    "two": (two_dimensions, X.expand(2, 3, 2), r"does not take tokens of shape \(2, 3, 2\) .*one sequence at a time"),
    "a key": (lambda x: {}["key"], X, r"does not take tokens .*KeyError: 'key'.*f\(x\) has to run"),
    "a name": (lambda x: x.no_such_name, X, "does not take tokens .*no_such_name"),
    "an index": (lambda x: x[..., 5] + x, X, "does not take tokens .*IndexError"),
    "another type": (LINEAR, X, "does not take tokens .*float64 .*give tokens of its width and type"),
    "another width": (lambda x: x @ X, X, "tokens of its width and type"),
    "another type within": (lambda x: x @ EYE.float(), X, r"in torch.float64 .*x.float\(\), or a module"),
    "more than tokens": (torch.nn.functional.linear, X, "takes more than the tokens"),
    "a sentence of ours": (lambda x: F(x[..., :1]), X, "^x must have shape"),
    "one number": (lambda x: x.sum(), X, r"the map must return one tensor.*f\(x\).reshape\(1, 1\)"),
    "an array": (lambda x: x.detach().numpy(), X, r"got ndarray: leave out .numpy\(\)"),
    "no column": (lambda x: x[..., :0], X, "must return one tensor"),
    "one token": (lambda x: x[0], X, "the map must return one tensor"),
    "a sparse output": (lambda x: x.to_sparse(), X, "the output of the map must be dense"),
    "NumPy": (lambda x: torch.from_numpy(np.tanh(x.numpy())), X, "goes through NumPy"),
    "NaN": (lambda x: (-1 - x.abs()).sqrt(), X, "the map gives NaN"),
    "detached": (lambda x: x.detach(), X, "no path from the map's output to its input"),
    "no gradient": (torch.no_grad()(lambda x: 2 * x), X, "no path from the map's output to its input"),
    "flex attention": (flexed, normal(1, 16, 16), "flex_attention cannot be differentiated here"),
    "two outputs": (lambda x: (x, x), X, r"got tuple: give the part .*module\(x\)\[0\]"),
    "queries, keys and values": (
        MULTIHEAD,
        normal(3, 8),
        r"give f = lambda x: mha\(x, x, x, need_weights=False\)\[0\]",
    ),
    "a decoder": (DECODER, normal(3, 8), "takes more than the tokens .*: give one that"),
    "a network": (TakesWords(), X, r"of a network .*models.load\(folder\) gives model.attention\(layer\)"),
}
CORE += [(name, partial(local_lipschitz, f, x), words) for name, (f, x, words) in RAISING.items()]
for door in (*MEASURES[1:], differentiable_lipschitz):
    for name in ("three dimensions", "more than tokens", "one number", "detached"):
        CORE += rows(RAISING[name][2], [partial(door, RAISING[name][0])], X)

# options and tokens of the solvers
OPTIONS = {
    "method must be": [{"method": "magic"}],
    "rtol must lie between": [{"rtol": 1e-30}, {"rtol": 2.0}, {"rtol": math.nan}],
    "max_steps must be at least 1": [{"max_steps": 0}],
    "confidence must lie": [{"confidence": value} for value in (1.5, 1, 0, math.nan)],
    "memory must be a positive number of bytes, got": [{"memory": 0}, {"memory": -5}, {"memory": math.nan}],
    "max_steps must be a whole number, got 2.5": [{"max_steps": 2.5}],
    "confidence must be a number, got '0.99'": [{"confidence": "0.99"}],
    "memory must be a number, got '2G'": [{"memory": "2G"}],
    "x must be": [{"x": x} for x in ([[[1.0, 2.0, 3.0, 4.0]]], [1.0, 2.0], [torch.ones(3)], [ONES.long()])],
    "this list is empty": [{"x": []}],
    r"x\[1\] is of type ndarray": [{"x": [ONES, ONES.numpy()]}],
    r"x\[1\] must be dense": [{"x": [ONES, ONES.to_sparse()]}],
    r"x\[0\] has shape \(2, 3, 4\)": [{"x": [ONES.expand(2, 3, 4)]}],
    "x must be real, got complex numbers: use .real": [{"x": ONES + 0j}],
    "x must be on a device, got a meta": [{"f": f, "x": ONES.to("meta")} for f in (WIDE, torch.sin)],
    "x must be dense, got a sparse": [{"f": f, "x": ONES.to_sparse()} for f in (WIDE, torch.sin)],
    "dense, .* nested": [{"f": f, "x": torch.nested.nested_tensor([ONES, ONES[:2]])} for f in (WIDE, sum)],
    "holds no token": [{"x": ONES[:0]}, {"x": [ONES[:0]]}],
    "d = 4|one width": [{"x": ONES[:, :3]}, {"x": [ONES[:, :3]]}, {"x": [ONES, ONES[:, :3]]}],
    "float32": [{"x": [ONES, ONES.float()]}, {"x": [ONES, torch.ones(5, 4)]}],
    "weights must be positive": [
        {"weights": 0 * ONES[:, 0]},
        {"f": torch.tanh, "weights": 0 * ONES[:, 0]},
        {"x": [ONES], "weights": [0 * ONES[:, 0]]},
    ],
    "weights must be a list with one tensor for each of the 2 inputs": [
        {"x": [ONES, ONES], "weights": weights} for weights in ([ONES[:, 0]], 3.0, ONES[:, 0])
    ],
    "weights must be": [
        {"x": [ONES, ONES], "weights": [ONES[:, 0], other]} for other in (ONES[:2, 0], ONES[0], [1.0, 1.0, 1.0])
    ],
}
CERTIFIED = {
    r"must be a torch tensor, got list: use torch.as_tensor\(x\)": {"x": [[1.0]]},
    r"got list: give one of them at a time, or .* torch.stack\(x\)": {"x": [ONES] * 2},
    "d = 4": {"x": normal(3, 5)},
    "holds no token": {"x": ONES[:0]},
    r"x is torch.float16 .* use x.to\(attention.query\)": {"x": ONES.half()},
    r"weights are torch.float32 .*: use weights.to\(x\)": {"weights": torch.ones(3)},
    "weights must be positive": {"weights": 0 * ONES[:, 0]},
    "columns must be 0 or more": {"columns": -1},
    "rtol must lie": {"rtol": 0.0},
}
for words, changes in OPTIONS.items():
    CORE += rows(words, [lambda change: local_lipschitz(**{"f": WIDE, "x": ONES, **change})], *changes)
for words, change in CERTIFIED.items():
    CORE += rows(words, [lambda change: certify(**{"attention": WIDE, "x": ONES, **change})], change)
for door in (singular_pair, block_norms):
    CORE += rows("x must have shape", [partial(door, F)], X[:, :1])
    CORE += rows("rtol must lie between", [lambda rtol, door=door: door(F, X, rtol=rtol)], 0.0)
CORE += rows("max_steps must be 1 or more, got 0", [lambda most: singular_pair(F, X, max_steps=most)], 0)
for kind in (torch.bfloat16, torch.float16):
    doors = [partial(door, F.to(kind)) for door in (*MEASURES, AttentionJacobian)]
    doors += [partial(door, torch.sin) for door in MEASURES]
    CORE += rows(rf"{kind}, .*use \.to\(torch.float32\) on the tokens and on the map", doors, X.to(kind))
CORE += rows(r"use \.to\(torch.float32\) on the tokens", [partial(local_lipschitz, torch.sin)], [X.bfloat16()])

# items of a batch
NOT_FINITE = X.repeat(4, 1, 1).index_put((torch.tensor(2), torch.tensor(1), torch.tensor(1)), X.new_tensor(math.inf))
DOORS = [F, *(partial(door, F) for door in (local_lipschitz, certify, AttentionJacobian))]
DOORS += [partial(local_lipschitz, torch.sin), partial(bounds.spread_upper, EYE, EYE)]
for said, x in ((r" in x\[2\]", NOT_FINITE), (r" in x\[1, 0\]", NOT_FINITE.view(2, 2, 3, 2)), ("", NOT_FINITE[2])):
    CORE += rows(f"^x holds NaN or infinite values{said}: remove them", DOORS, x)
CORE += rows(
    r"values in x\[1\]: remove them", [partial(local_lipschitz, f) for f in (F, torch.sin)], [X, NOT_FINITE[2]]
)
LARGE = normal(5, 30, 2) * torch.tensor([1, 1, 1, 1e200, 1], dtype=torch.float64)[:, None, None]
SORTED = [LARGE[0], LARGE[1, :25], LARGE[2], LARGE[3, :25]]
ways = [partial(local_lipschitz, F, **how) for how in ({"memory": 1}, {"method": "power"}, {"method": "dense"})]
CORE += rows("is NaN or infinite, of item 3: ", [partial(local_lipschitz, F), *ways], LARGE)
CORE += rows("is NaN or infinite, of item 3: ", [partial(local_lipschitz, F)], SORTED)

# products
VECTORS = [X.float(), X.long(), X + 0j, X[:2], X[None][:0], X.to_sparse(), X.to("meta"), X.tolist(), None, X.numpy()]
PARTICLES = torch.rand(20, 2, generator=torch.Generator().manual_seed(0)).double()
KERNEL = SeparableJacobian(F, PARTICLES)
ZERO = Attention(*(torch.zeros(1, 1, 4000) for _ in range(2)), torch.zeros(1, 4000, 4000))
for kind, products in ((AttentionJacobian, ("jvp", "vjp", "gram")), (AutodiffJacobian, ("jvp", "vjp", "vjps"))):
    doors = [lambda u, kind=kind, product=product: getattr(kind(F, X), product)(u) for product in products]
    CORE += rows(r"^[uw] must have shape \(3, 2\).* in torch.float64 on cpu, .* got ", doors, *VECTORS)
CORE += [
    ("no token by autodiff", lambda: AutodiffJacobian(F, X[:0]), "at least one token"),
    ("too large a matrix", lambda: AttentionJacobian(ZERO, torch.zeros(20, 4000)).dense(), "use jvp and vjp"),
    ("a batch", lambda: AttentionJacobian(F, X.expand(2, 3, 2)).linear_operator(), "needs one sequence"),
    ("separable u", lambda: KERNEL.jvp(PARTICLES[:3]), "u must have shape"),
    ("separable w", lambda: KERNEL.vjp(PARTICLES[:, :1]), "w must have shape"),
    ("separable scale", lambda: KERNEL.gram(PARTICLES, torch.ones(3).double()), "one entry per token"),
    ("sets of particles", lambda: SeparableJacobian(F, PARTICLES[None]), "one set of particles"),
    ("separable NaN", lambda: SeparableJacobian(F, PARTICLES * torch.nan), "x holds NaN"),
    ("separable weights", lambda: SeparableJacobian(F, PARTICLES, 0 * PARTICLES[:, 0]), "weights must be positive"),
    (
        "masked",
        lambda: SeparableJacobian(F.replace(masked=True), PARTICLES),
        "masked attention has no separable kernel",
    ),
    ("wide", lambda: SeparableJacobian(WIDE, torch.cat([PARTICLES, PARTICLES], 1)), "depend on 4 key dimensions"),
    ("far particles", lambda: SeparableJacobian(F, 20 * PARTICLES - 10), "spread too far .*use AttentionJacobian"),
    ("a far kernel", lambda: Expansion(1e3 * PARTICLES.mT, PARTICLES.mT).choose(1e-3), "spread too far"),
]

# numbers, matrices and what is neither
NO_NUMBERS = {
    "tensor of real numbers, got NoneType: use torch.as_tensor": None,
    "tensor of real numbers, got Linear: use its weight": LINEAR,
    "tensor of real numbers, got str": "a",
    "tensor of real numbers, got object": object(),
    "real, got complex numbers: use .real": EYE * (1 + 1j),
    r"dense, got a sparse or nested tensor: use .to_dense\(\)": EYE.to_sparse(),
    "on a device, got a meta tensor": EYE.to("meta"),
}
MATRIX_DOORS = {
    "A": [lambda A: Attention.from_matrices(A, EYE), lambda A: bounds.general_upper(A, EYE, 3, 1.0)]
    + [bounds.growth_rate, lambda A: constructions.tight_input(A, 3, 1.0)],
    "V": [lambda V: Attention.from_matrices(EYE, V), lambda V: bounds.mean_field_upper(EYE, V, 1.0)]
    + [lambda V: constructions.fork_input(EYE, V, 3, 1.0)],
    "query": [lambda W: Attention(W, HEADS, HEADS), lambda W: bounds.l2_upper(W, HEADS, None, 3)],
    "output": [lambda W: bounds.multi_head_upper(W, [1.0])],
    "head_bounds": [lambda b: bounds.multi_head_upper(HEADS, b)],
    "c": [lambda c: bounds.biased_upper(EYE, EYE, 3, 1.0, c)],
    "x": [lambda x: bounds.spread_upper(EYE, EYE, x), lambda x: bounds.column_upper(EYE, EYE, x)],
    "p": [bounds.yudin.softmax_norm],
    "gain": [lambda g: bounds.layer_norm.norm_layer_upper(g, 0.1), lambda g: bounds.layer_norm_radius(g, None)],
    "radii": [lambda r: bounds.nearby_upper(F, X, r)],
}
NUMBERS = {
    "scale": [lambda s: F.replace(scale=s if s is not None else "None")],
    "cap": [lambda c: F.replace(cap=c if c is not None else "None")],
    "norm_eps": [lambda e: F.replace(norm_eps=e)],
    "rtol": [lambda rtol, door=door: door(F, X, rtol=rtol) for door in SOLVERS],
    "y": [bounds.phi_inverse],
    "share": [lambda s: constructions.two_diracs(EYE, 1.0, share=s)],
    "size": [lambda s: bounds.without_query_bias(BIASED, X, s)],
    "p": [
        lambda p: bounds.masked_mean_field_upper(EYE, EYE, 1.0, p=p),
        partial(bounds.l2_upper, HEADS, HEADS, None, 3),
    ],
    "eps": [lambda e: bounds.layer_norm.norm_layer_upper(torch.ones(2), e)],
    "n": [lambda n: bounds.rotary_upper(TURNED, n, 1.0), bounds.l2_growth],
    "R": [lambda R: bounds.rotary_upper(TURNED, 3, R), lambda R: bounds.max_token_upper(F, R)],
}
WHOLE = {
    "seed": [lambda s, door=door: door(F, X, seed=s) for door in SOLVERS] + [lambda s: on_ball(F, 3, 1.0, seed=s)],
    "columns": [lambda c: certify(F, X, columns=c if c is not None else "None")],
    "max_steps": [lambda m: singular_pair(F, X, max_steps=m)]
    + [lambda m: local_lipschitz(F, X, max_steps=m if m is not None else "None")],
    "angles": [lambda a: constructions.fork_input(EYE, EYE, 3, 1.0, angles=a)],
}
for name, doors in MATRIX_DOORS.items():
    for words, value in NO_NUMBERS.items():
        CORE += rows(f"^{name} must be (a )?{words}", doors, value)
for every, kind, values in ((NUMBERS, "number", ()), (WHOLE, "whole number", (1.5, math.inf))):
    for name, doors in every.items():
        CORE += rows(f"^{name} must be a {kind}, got ", doors, True, "a", None, 1j, torch.ones(2), *values)
CORE += [
    ("complex numbers of NumPy", lambda: bounds.growth_rate(np.eye(2) * 1j), "complex numbers"),
    ("a radius beyond floats", lambda: bounds.general_upper(EYE, EYE, 3, 10**400), "^R must be .*, got inf"),
    ("a length beyond floats", lambda: bounds.general_upper(EYE, EYE, 10**400, 1), "^n must be .*, got inf"),
    ("no angle", lambda: constructions.fork_input(EYE, EYE, 3, 1.0, angles=0), "angles must be 1 or more, got 0"),
    ("a far fork", lambda: constructions.fork_input(EYE, EYE, 3, 1e200), r"at R = 1e\+200 is above the largest float"),
    ("far Diracs", lambda: constructions.two_diracs(EYE, 1e200), "below the smallest float: take a smaller R"),
    ("no radius", lambda: bounds.nearby_upper(F, X, []), "radii must be finite numbers, .* with r >= 1"),
    ("another width", lambda: bounds.without_query_bias(BIASED, X[:, :1], 1.0), "x must have shape"),
    ("no tokens", lambda: bounds.without_query_bias(F, None, 1.0), "x must be a torch tensor, got NoneType"),
    ("an infinite size", lambda: bounds.without_query_bias(BIASED, X, math.inf), "size must be positive and finite"),
    ("no probabilities", lambda: bounds.yudin.softmax_norm([0.5, 0.6]), "p must hold probabilities, .* at most 1"),
    ("a batch, turned", lambda: bounds.rotary_terms(TURNED, X[None]), "x must hold one sequence"),
    ("a batch of heads", lambda: bounds.heads.heads_at_input(F, NORMS, X[None]), "x must hold one sequence"),
    ("a radius below zero", lambda: bounds.rotary_upper(TURNED, 3, -1.0), "R must be a finite number, 0 or more"),
]

REFUSALS = [*CORE, *((name, call, re.escape(words)) for name, call, words in BOUNDS)]


@pytest.mark.parametrize(("call", "words"), [pytest.param(call, words, id=name) for name, call, words in REFUSALS])
def test_bad_input_is_said_in_one_sentence(call, words):
    with pytest.raises((ValueError, TypeError, AttributeError, OverflowError), match=words):
        call()


@pytest.mark.parametrize("measure", [*MEASURES, differentiable_lipschitz])
def test_what_a_map_raised_stays_the_cause(measure):
    with pytest.raises(ValueError) as caught:
        measure(lambda x: {}["key"], X)
    assert isinstance(caught.value.__cause__, KeyError)
