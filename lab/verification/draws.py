"""Maps and inputs to compare with bounds: random ones, and those for which bounds are known to be nearly attained."""

import math
from dataclasses import dataclass, replace
from zlib import crc32

import torch

from lab.bounds_survey.draws import integer, normal, uniform
from lipnb.attention import Attention
from lipnb.bounds.catalogue import Case
from lipnb.worst_case import quadratic_input, tight_input, two_diracs

KINDS = ("random", "degenerate", "structured", "ascended")
INPUTS = 12  # inputs of one map
FAMILIES = ("head", "bias", "heads", "measure", "choice", "full", "layer", "rotary", "l2")


@dataclass(frozen=True)
class Problem:
    """One map and a batch of inputs.

    `attention`: the map, float64. `x` (b, n, d): inputs. `weights` (b, n): token weights with sum one. `unfolded` (h,
    v, d): for L2 attention, the value matrices before the query matrices are folded into them.
    """

    attention: Attention
    x: torch.Tensor
    weights: torch.Tensor | None = None
    unfolded: torch.Tensor | None = None

    @property
    def A(self):
        """Logit matrices of the heads, shape (h, d, d)."""
        f = self.attention
        return f.scale * f.key.mT @ f.query

    @property
    def V(self):
        """Value matrices of the heads, the output matrix included, shape (h, m, d)."""
        f = self.attention
        return f.value if f.output is None else f.output @ f.value

    @property
    def radii(self):
        """Largest token norm of each input, shape (b,)."""
        return torch.linalg.vector_norm(self.x, dim=-1).amax(-1)

    def cases(self):
        """Each input as a case of `lipnb.bounds.catalogue`."""
        weights = [None] * len(self.x) if self.weights is None else self.weights
        return [Case(self.attention, x, a, self.unfolded) for x, a in zip(self.x, weights, strict=True)]

    def at(self, x, weights=None):
        """The same map on other inputs."""
        return replace(self, x=x, weights=weights)


def draw(name, family, kind, seed, *, masked=False):
    """Problem number `seed` of its kind; equal arguments give equal problems.

    `name`: stream of random numbers; other names give other problems.
    `family` ("head", "bias", "heads", "measure", "choice", "full", "layer", "rotary", "l2"): one head; one with a query
    bias; several with output matrices; one on weighted tokens; one on tokens whose largest score is unique; several
    with biases and, at times, weights; the same without weights; those with rotary positions; or several heads of L2
    attention.
    `kind` ("random", "degenerate", "structured", "ascended"): gaussian matrices and tokens; a single token, equal ones,
    zeros, very small logits or no values; constructions, ties, repetitions; or the start of an ascent, random or
    structured, in few dimensions.
    `seed`: 0 or more.
    `masked`: whether the map is masked.
    """
    g = torch.Generator().manual_seed(crc32(f"{name}/{masked}/{kind}/{seed}".encode()))
    if kind == "ascended":
        kind, n, d = ("random", "structured")[seed % 2], integer(g, 2, 6), integer(g, 1, 3)
    elif seed % 10 == 9:
        n, d = integer(g, 9, 24), integer(g, 1, 2)
    else:
        n, d = integer(g, 2, 8), integer(g, 1, 5)
    if kind == "degenerate" and seed % 3 == 0:
        n = 1
    several, some = integer(g, 2, 3), integer(g, 1, 3)
    heads = {"heads": several, "full": some, "layer": some, "rotary": some, "l2": some}.get(family, 1)
    f, unfolded = _map(g, d, heads, kind, family, masked)
    # the largest logits, from averages to choices; bounds on measures grow with their exponential
    t = 10 ** uniform(g, INPUTS, low=-1, high=1 if family == "measure" else 2)
    steepest = torch.linalg.matrix_norm(Problem(f, None).A, 2).amax()
    R = (t / steepest.clamp_min(1e-3)).sqrt()
    place = {"random": _random_tokens, "degenerate": _degenerate_tokens, "structured": _structured_tokens}[kind]
    x, weights = place(g, f, n, d, R, family)
    weighted = family == "measure" or (family == "full" and seed % 3 == 0)
    return Problem(f, x, weights if weighted else None, unfolded)


def _pick(g, choices):
    return choices[integer(g, 0, len(choices) - 1)]


def _map(g, d, heads, kind, family, masked):
    """A map of the family, and for L2 attention the value matrices before they are folded."""
    k, v = integer(g, 1, d), integer(g, 1, d + 1)
    k = 2 * k if family == "rotary" else k
    query, key = normal(g, heads, k, d), normal(g, heads, k, d)
    value, output = normal(g, heads, v, d), None
    if kind == "degenerate":
        query = query * _pick(g, [1.0, 1e-9, 0.0 if family != "choice" else 1e-6])
        # no values except for a bias: then o_i - b_V in the measured number would be rounding, and bounds are 0
        biased = family in ("bias", "full", "layer", "rotary")
        value = value * _pick(g, [1.0, 1.0, 1.0, 1.0 if biased else 0.0])
        if family == "l2":  # attained by one token
            query = value = torch.eye(d, dtype=torch.float64).expand(heads, d, d)
            k = v = d
    if kind == "structured":
        eye = torch.eye(d, dtype=torch.float64)
        if family not in ("rotary", "l2"):  # rotations need an even width, L2 attention ties both matrices
            query, key, k = _logits(g, d).expand(heads, d, d), eye.expand(heads, d, d), d
        value = _pick(g, [eye, eye, normal(g, v, d), normal(g, v, 1) @ normal(g, 1, d)]).expand(heads, -1, -1)
        value, v = value.clone(), value.shape[1]
    if family in ("heads", "full", "layer", "rotary", "l2"):
        m = integer(g, 1, 4)
        output = normal(g, heads, m, v)
        if kind == "structured" and integer(g, 0, 1):  # heads that agree, or cancel
            output = output[:1] * _pick(g, [torch.ones(heads), torch.tensor([1.0, -1.0, 0.5])[:heads]])[:, None, None]
    biases = {}
    if family in ("bias", "full", "layer", "rotary"):
        size = 10 ** uniform(g, 1, low=-1, high=1)
        biases = {
            "query_bias": size * normal(g, heads, k),
            "key_bias": normal(g, heads, k),
            "value_bias": normal(g, heads, v),
        }
    if family == "l2":
        return Attention.l2(query, value, output, masked=masked), value
    f = Attention(
        query.contiguous(),
        key.contiguous(),
        value,
        output,
        masked=masked,
        scale=1.0 if kind == "structured" else None,
        **biases,
    )
    if family == "rotary":
        frequencies = 10 ** uniform(g, k // 2, low=-2, high=0.5)
        return f.replace(frequencies=frequencies.float(), scale=f.scale * _pick(g, [1.0, 1.0, 1.3]) ** 2), None
    return f, None


def _logits(g, d):
    """A matrix A for which the constructions work well, shape (d, d)."""
    eye, S, N = torch.eye(d, dtype=torch.float64), normal(g, d, d), normal(g, d, d)
    u = normal(g, d, 1)
    nilpotent = torch.zeros(d, d, dtype=torch.float64)
    nilpotent[0, -1] = 1.0  # for d = 1 just 1
    return _pick(g, [-eye, eye, S + S.T, S @ S.T, -S @ S.T, u @ u.T, -u @ u.T, nilpotent, N])


def _weights(g, b, n):
    """Weights with sum one, equal or over many orders of magnitude, shape (b, n)."""
    spread = uniform(g, b, 1, high=12) * (uniform(g, b, 1) < 0.8)
    return (spread * uniform(g, b, n, low=-1)).softmax(-1)


def _random_tokens(g, f, n, d, R, family):
    """Gaussian directions, on the sphere or inside, some gathered in a cluster: (b, n, d), and weights (b, n)."""
    b = len(R)
    x = normal(g, b, n, d) + 3 * normal(g, b, 1, d) * (uniform(g, b, 1, 1) < 0.3)
    x = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(1e-12)
    inside = uniform(g, b, n, 1) ** (1 / d)
    on_the_sphere = (uniform(g, b, 1, 1) < 0.5) & torch.tensor(family != "choice")  # in one dimension: all tied
    x = torch.where(on_the_sphere, x, x * inside)
    return R[:, None, None] * x, _weights(g, b, n)


def _degenerate_tokens(g, f, n, d, R, family):
    """Zeros, equal tokens, or random ones if nothing may be tied: (b, n, d), and weights (b, n)."""
    x, weights = _random_tokens(g, f, n, d, R, family)
    if family != "choice":
        alike = torch.randint(0, 3, (len(R), 1, 1), generator=g)  # 0: zeros, 1: all as the first, 2: unchanged
        x = torch.where(alike == 2, x, x[:, :1] * alike)
    return x, weights


def _structured_tokens(g, f, n, d, R, family):
    """Constructions, ties and repetitions, one after another: (b, n, d), and weights (b, n)."""
    x, weights = _random_tokens(g, f, n, d, torch.ones_like(R), family)
    A = Problem(f, None).A[0]
    for i in range(len(R)):
        if family == "choice":
            _choice(g, A, x[i], n, d)
            continue
        what = _pick(g, ["tight", "tight", "quadratic", "repeated", "near", "some zeros", "line"])
        if what == "tight":
            share = _pick(g, [1.0, 1 / 3, 0.1])
            x[i], weights[i] = _worst(A, n, R[i].item(), x[i], weights[i], family, share)
        elif what == "quadratic" and n % 2 and n > 1:
            x[i] = quadratic_input(n, 1.0, x[i, 0])
        elif what == "repeated":
            x[i] = x[i, torch.randint(0, max(1, n // 2), (n,), generator=g)]
        elif what == "near":
            x[i] = x[i, :1] + 10.0 ** -integer(g, 3, 12) * x[i]
        elif what == "some zeros":
            x[i, 1:] *= uniform(g, n - 1, 1) < 0.5
        elif what == "line":
            x[i] = x[i, :1] * (1 - 2 * torch.randint(0, 2, (n, 1), generator=g))
    return R[:, None, None] * x, weights


def _worst(A, n, R, x, weights, family, share):
    """The paper's constructions on the unit ball, for logits as large as at radius R."""
    try:
        if family != "measure" or n == 1:
            return tight_input(A, n, 1.0), weights
        points, two = two_diracs(A, R, share=share)
        head = torch.cat([two[:1], (two[1] / (n - 1)).expand(n - 1)])
        return torch.cat([points[:1], points[1:].expand(n - 1, -1)]) / R, head / head.sum()
    except ValueError:  # no real eigenvector, or no weight left in float64: keep the tokens
        return x, weights


def _choice(g, A, x, n, d):
    """Change tokens in place so that they mostly choose the same one, or nearly hesitate between two."""
    what = _pick(g, ["follow", "near", "as it is"])
    lead = torch.linalg.eigh(A + A.T).eigenvectors[:, -1]
    if what == "follow":
        x[:] = 0.1 * x + 0.3 * lead
        x[integer(g, 0, n - 1)] = lead
    elif what == "near" and n > 1:
        x[1] = x[0] * (1 + 10.0 ** -integer(g, 2, 6)) if d == 1 else x[0] + 10.0 ** -integer(g, 2, 6) * x[1]
    x /= max(1.0, math.sqrt(x.square().sum(-1).max().item()))
