"""Table of L2 attention against its bounds: random, structured and ascended inputs, both norms."""

import math
from zlib import crc32

import torch

from lab.bounds_survey.draws import integer, normal
from lab.experiments.table import table
from lipnb import bounds
from lipnb.attention import Attention
from lipnb.jacobian.linearization import Linearization
from lipnb.worst_case import adam, ascend

KINDS = {"random": 180, "structured": 120, "ascended": 120}  # maps of each kind
INPUTS = 25  # inputs of each map
STEPS, RATE = 40, 0.15  # of the ascent, in units of the distance at which attention fades


def dense_l2(attention, x):
    """Dense Jacobian of attention, shape (..., n m, n d); gradients flow through it to the tokens."""
    return Linearization.of(attention, x).blocks().flatten(-4, -3).flatten(-2, -1)


def _norms(attention, x):
    """Local constants in the maximum norm and in the Euclidean norm, each of the batch shape."""
    J = dense_l2(attention, x)
    return J.abs().sum(-1).amax(-1), torch.linalg.matrix_norm(J, 2)


def l2_problem(kind, number):
    """One map of L2 attention and inputs to compare with its bounds; equal arguments give equal problems.

    `kind` ("random", "structured", "ascended"): gaussian matrices and tokens; matrices and tokens near which bounds are
    tight (equal tokens, pairs, a token between two clusters, copies); or few random tokens from which an ascent starts.
    `number`: 0 or more; odd ones are masked.
    Returns query, value and output matrices (or None) as `lipnb.Attention.l2` takes them; whether it is masked; and
      tokens, shape (b, n, d).
    """
    g = torch.Generator().manual_seed(crc32(f"l2/{kind}/{number}".encode()))
    h, d = integer(g, 1, 3), integer(g, 1, 4)
    n = integer(g, 2, 8)
    if kind == "random" and number % 10 == 9:
        n, d = integer(g, 12, 24), integer(g, 1, 2)
    if kind == "structured":
        h, n = integer(g, 1, 2), integer(g, 1, 9)
    k, v, m = integer(g, 1, d), integer(g, 1, d), integer(g, 1, 4)
    size = 10 ** (2 * torch.rand((), generator=g, dtype=torch.float64) - 1)  # of queries: a tenth to ten
    query, value, output = (
        size * normal(g, h, k, d),
        normal(g, h, v, d),
        normal(g, h, m, v) if integer(g, 0, 1) else None,
    )
    if kind == "structured" or (kind == "ascended" and number % 3):  # nothing is lost between heads, or in matrices
        h = h if kind == "structured" else 1
        value = torch.eye(d, dtype=torch.float64).expand(h, d, d).clone()
        query, output = size * value, None
    reach = (query.shape[1] ** 0.5 / torch.linalg.matrix_norm(query, 2).amax() ** 2).sqrt()
    spread = 10 ** (1.7 * torch.rand(INPUTS, 1, 1, generator=g, dtype=torch.float64) - 1)  # a tenth to five
    x = spread * normal(g, INPUTS, n, d)
    if kind == "structured":
        x = torch.stack([_structured(g, one, number + i) for i, one in enumerate(x)])
    return query, value, output, number % 2 == 1, reach * x


def _structured(g, x, which):
    """Tokens of one of five shapes, (n, d)."""
    n, d = x.shape
    if which % 5 == 0:  # equal
        return x[:1].expand(n, d)
    if which % 5 == 1:  # copies of two
        return x[torch.randint(0, min(2, n), (n,), generator=g)]
    if which % 5 == 2:  # on a line
        return x[:, :1] * torch.nn.functional.normalize(x[:1], dim=1)
    signs = 1.0 - 2.0 * (torch.arange(n)[:, None] % 2)  # one token between two clusters, at the best distance
    line = torch.nn.functional.normalize(x[-1:], dim=1) * signs * math.sqrt(1 + bounds.phi_inverse(n - 1))
    line[-1 if which % 2 else 0] = 0  # the last one sees all, masked or not
    return line if which % 5 == 3 else line + 0.1 * x


def _ascended(attention, x, goal):
    """Inputs with a larger constant in one of the norms, by Adam on its logarithm; the best ones seen."""
    unit = x.new_tensor(attention.scale).rsqrt() / torch.linalg.matrix_norm(attention.query, 2).amax()
    move = adam(RATE * unit.item())
    return ascend(lambda x: _norms(attention, x)[goal], (x,), move, steps=STEPS, log=True)[0][0]


@table(
    "l2-bounds",
    "L2 attention against its bounds, both norms, over 10,000 inputs",
    over=[(kind, number) for kind, count in KINDS.items() for number in range(count)],
    size=INPUTS,
    settings={"kinds": KINDS, "inputs": INPUTS, "steps": STEPS, "rate": RATE, "dtype": "float64"},
)
def l2_rows(kind, number):
    """Rows of the table `l2-bounds`: one map, measured over bound at each of its inputs.

    `kind`, `number`: as for `l2_problem`. Returns the measured constants and the ratios: inf and two to the theorem's
    bounds, sharp to the tighter one, printed to the one with exponent 2.
    """
    query, value, output, masked, x = l2_problem(kind, number)
    f, n = Attention.l2(query, value, output, masked=masked), x.shape[-2]
    if kind == "ascended":
        x = _ascended(f, x, number // 2 % 2)  # two maps each
    with torch.no_grad():
        maximum, euclidean = _norms(f, x)
    stated = [
        bounds.l2_upper(query, value, output, n, math.inf),
        bounds.l2_upper(query, value, output, n),
        bounds.l2_upper_sharp(query, value, output, n, masked),
        bounds.printed_l2_upper(query, value, output, n),
    ]
    about = {"masked": masked, "heads": len(query), "n": n, "d": x.shape[-1]}
    about |= {"query": torch.linalg.matrix_norm(query, 2).amax().item()}
    ratios = [maximum / stated[0], *(euclidean / bound for bound in stated[1:])]
    return [
        {**about, "inf": one, "two": two, "sharp": sharp, "printed": printed}
        for one, two, sharp, printed in zip(*(ratio.tolist() for ratio in ratios), strict=True)
    ]
