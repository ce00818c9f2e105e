"""Maps and inputs to test each bound: random ones, explicit rough ones, and those that a search makes worse."""

import math
from dataclasses import replace
from zlib import crc32

import torch

from lab.bounds_survey.maps import CosineAttention, SigmoidAttention, softmax
from lipnb.attention import Attention
from lipnb.bounds.catalogue import Case
from lipnb.worst_case import ascend, fork_input
from lipnb.worst_case.ascent import unit_slope

KINDS = ("random", "rough", "ascended")
FAMILIES = ("head", "bias", "layer", "measure", "rotary", "l2", "cosine", "sigmoid", "softmax", "norm", "stacked")
STEPS, TRIALS = 40, 60  # of an ascent, and of the trials after it


def draw(family, kind, seed, *, masked=False):
    """Case number `seed` of its kind; equal arguments give equal cases.

    `family`: one of `FAMILIES`: one head; one with a query bias; several with biases and output matrices; one on
      weighted tokens; heads with rotary positions; L2 attention; cosine scores; a sigmoid; the softmax alone; a norm
      layer; or four heads of which one alone has queries.
    `kind` ("random", "rough", "ascended"): gaussian matrices and tokens; tokens near which bounds are tight (forks,
      equal tokens, two clusters); or the start of an ascent, for `rougher`.
    `seed`: 0 or more. The largest logit of a ball, t, runs from 1 to 30.
    `masked`: whether the map is causal, for the families that may be.
    """
    if family not in FAMILIES or kind not in KINDS:
        raise ValueError(f"family must be one of {FAMILIES}, kind one of {KINDS}, got {family!r} and {kind!r}.")
    # "zoo" was the name of this package when the stored tables were made: another word draws other cases
    g = torch.Generator().manual_seed(crc32(f"zoo/{family}/{kind}/{seed}/{masked}".encode()))
    n, d = integer(g, 2, 9 if kind == "rough" else 6), integer(g, 2, 4)
    t = 10 ** (1.5 * torch.rand((), generator=g, dtype=torch.float64).item())
    rough = kind == "rough" or (kind == "ascended" and seed % 2 == 1)
    f, unfolded = _map(g, family, d, masked, rough, seed)
    x = _tokens(g, f, family, n, d, t, seed, rough)
    weights = None
    if family == "measure":
        weights = torch.rand(len(x), generator=g, dtype=torch.float64).add(1e-3).pow(2)
        weights = weights / weights.sum()
    return Case(f, x, weights, unfolded)


def integer(g, low, high):
    """A whole number from a generator, both ends included."""
    return int(torch.randint(low, high + 1, (), generator=g))


def uniform(g, *shape, low=0.0, high=1.0):
    return low + (high - low) * torch.rand(*shape, generator=g, dtype=torch.float64)


def normal(g, *shape):
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def _map(g, family, d, masked, rough, seed):
    """A map of a family and, for L2 attention, its value matrices before folding."""
    if family in ("head", "measure"):
        eye = torch.eye(d).double()
        if rough and seed % 4 == 3:  # no query term in |A x|
            return Attention.from_matrices(5 * torch.outer(eye[0], eye[1]), eye, masked=masked), None
        if rough and seed % 2:  # where forks are the worst inputs
            return Attention.from_matrices(-eye, eye, masked=masked), None
        return Attention.from_matrices(normal(g, d, d), normal(g, integer(g, 1, d), d), masked=masked), None
    if family == "cosine":
        return CosineAttention(*normal(g, 3, d, d), tau=1 + 4 * normal(g, 1).abs().item()), None
    if family == "sigmoid":
        return SigmoidAttention(normal(g, d, d), normal(g, d, d), bias=normal(g, 1).item()), None
    if family == "softmax":
        return softmax, None
    if family == "norm":
        return torch.nn.LayerNorm(d, eps=10.0 ** -integer(g, 1, 6), bias=False).double(), None
    if family == "layer" and rough and seed % 4 == 1:
        eye = torch.eye(d).double()
        return Attention.from_matrices(-eye, eye, masked=masked).replace(output=eye[None]), None
    h, k = (1 if family == "bias" else integer(g, 1, 3)), 2
    if family == "l2":
        query, value = normal(g, h, k, d) * 2 ** normal(g, 1).item(), normal(g, h, d, d)
        output = normal(g, h, d, d) if integer(g, 0, 1) else None
        return Attention.l2(query, value, output, masked=masked), value
    if family == "stacked":  # one head of four reads and writes, in a plane of eight dimensions
        query, key, value = torch.zeros(3, 4, 2, 8).double()
        key[0, :, :2] = value[0, :, :2] = torch.eye(2)
        query[0] = -key[0] if rough else normal(g, 2, 8)
        return Attention(query, key, value, torch.eye(8).double().view(8, 4, 2).movedim(1, 0), scale=0.5), None
    parts = normal(g, h, k, d), normal(g, h, k, d), normal(g, h, k, d), normal(g, h, d, k)
    if family == "rotary":
        return Attention(*parts, masked=masked, frequencies=torch.ones(1)), None
    return Attention(*parts, query_bias=normal(g, h, k), key_bias=normal(g, h, k), masked=masked), None


def _tokens(g, f, family, n, d, t, seed, rough):
    """Tokens (n, d) for which the largest logit of their ball is t, if the map has such a number."""
    x = normal(g, n, d)
    if family == "softmax":
        return min(t, 6) * x[:1] if not rough else torch.tensor([[0.0, 0.0] + [-30.0] * (d - 1)]).double()
    if family == "norm":
        return x[:1]
    if family in ("l2", "cosine", "sigmoid"):
        return (x[:1].expand(n, d) if rough and seed % 4 == 0 else x) * 2 ** (t / 10 - 1)
    A = f.scale * f.key.mT @ f.query
    R = math.sqrt(t / max(torch.linalg.matrix_norm(A, 2).amax().item(), 1e-3))
    if family == "stacked":
        plane = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]).double() if rough else x[:, :2]
        x = torch.cat([plane, plane.new_zeros(len(plane), 6)], 1)
        return R * x / x.norm(dim=-1).amax()
    if rough and seed % 4 == 0:
        x = x[:1].expand(n, d)
    elif rough and seed % 4 == 3:  # two opposite tokens
        x = torch.eye(d).double()[[0, 0]] * torch.tensor([[1.0], [-1.0]])
    elif rough and seed % 4 == 1:  # a fork with a straight angle
        v, e = torch.linalg.svd(A[0]).Vh[:2]
        x = torch.stack([e, -e] + [v] * max(1, n - 2))
    elif rough:
        V = f.value[0] if f.output is None else f.output[0] @ f.value[0]
        return fork_input(A[0], V, max(n, 3), R)[0]
    return R * x / x.norm(dim=-1).amax()


def rougher(case, ratio):
    """The same map at an input where truth over bound is larger: an ascent, then trials; the largest token is kept.

    `ratio`: of a case: truth over bound, a float. Returns `Case`: the best of those visited, including the first.
    """
    size, g = case.R, torch.Generator().manual_seed(0)

    def kept(x):
        return x * size / x.norm(dim=-1).amax().clamp_min(1e-300)

    def goal(x):
        J = torch.autograd.functional.jacobian(
            case.f if case.weights is None else lambda y: case.f(y, case.weights), x[0], create_graph=True
        )
        return torch.linalg.matrix_norm(J.flatten(2).flatten(0, 1))[None]  # Frobenius: smooth, and near the other

    def move(step, point, slopes):
        slope = unit_slope(slopes[0].nan_to_num(0.0, 0.0, 0.0), (1, 2))
        return (kept(point[0] + 0.3 * size * 0.9**step * slope),)

    (x,), _ = ascend(goal, (case.x[None],), move, steps=STEPS)
    best = max((case, replace(case, x=x[0])), key=ratio)
    top = ratio(best)
    for trial in range(TRIALS):
        step = 0.3 * 0.93**trial * torch.randn(case.x.shape, generator=g, dtype=torch.float64)
        other = replace(best, x=kept(best.x + size / math.sqrt(case.x.shape[1]) * step))
        if (now := ratio(other)) > top:
            best, top = other, now
    return best
