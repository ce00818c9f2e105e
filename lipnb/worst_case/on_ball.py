"""The roughest input of a ball that is found: constructions first, then gradient ascent on the top singular value."""

from contextlib import nullcontext
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from lipnb.attention import Attention
from lipnb.checks import count, radius
from lipnb.jacobian import AttentionJacobian
from lipnb.lipschitz import local_lipschitz
from lipnb.worst_case.ascent import adam, ascend, unit_slope
from lipnb.worst_case.constructions import tight_input
from lipnb.worst_case.forks import bulk_directions, forks, two_clusters
from lipnb.worst_case.starts import gaussian

__all__ = ["WorstCase", "on_ball"]

STEPS = {"points": 60, "tokens": 30}  # of one ascent: of a few distinct points, of all tokens
RATES = (0.0001, 0.001, 0.01, 0.05)  # first steps of Adam, in radii: a fork is stiff, a random input is not
LINE = 24  # forks that are kept, whatever the effort: the first rounds are the same
STARTS = 6  # forks whose points one round ascends from, with each of the rates


class WorstCase(NamedTuple):
    """A rough input.

    Attributes
    ----------
    x : Tensor, shape (n, d)
        Tokens, of norm at most R up to rounding, in the floating point type of the map.
    value : float
        Local Lipschitz constant there, within 1e-6 in float64: a lower bound on that of the ball.
    kind : str
        "fork", "two clusters", "two sides" or "random", and ", ascended" where the ascent found more.
    """

    x: Tensor
    value: float
    kind: str


class _Found(NamedTuple):
    """Inputs (b, n, d), their constants (b,) and kinds, the largest constant first."""

    x: Tensor
    value: Tensor
    kind: list[str]

    def and_more(self, x, value, kind):
        """With more inputs; of equal constants the earlier one stays first."""
        x, value, kind = torch.cat([self.x, x]), torch.cat([self.value, value]), self.kind + kind
        order = value.argsort(descending=True, stable=True)
        return _Found(x[order], value[order], [kind[i] for i in order.tolist()])


def on_ball(
    attention: Attention, n: int, R: float, *, seed: int = 0, effort: int = 1, progress: bool = True
) -> WorstCase:
    r"""The roughest n tokens that are found in the ball of radius R: a lower bound on the constant there.

    Forks and two clusters over singular pairs, signs, angles and lengths (`lipnb.worst_case.forks`), compared by what
    they state; the best of them, two sides and random inputs by their local constants; then gradient ascent from the
    roughest, with steps of Adam along the derivative of the top singular value,

    .. math:: \nabla_X \|D_X f\|_2 = \nabla_X\, \langle w,\, D_X f\, v \rangle \quad (w, v \text{ held}),

    tokens outside the ball put back on its sphere. One head is taken on the span of its three matrices, which is the
    same problem in fewer coordinates.

    Parameters
    ----------
    attention : Attention
        Any heads, output matrix, biases and mask; dot products.
    n : int
        Tokens.
    R : float
        Radius, positive and finite.
    seed : int
        Of random inputs and start vectors.
    effort : int
        Rounds of the ascent; 0 takes the constructions as they are. Each round goes on where the last one ended and
        from the next starts: more effort gives no less, within the 1e-4 of the solver that compares.
    progress : bool
        Whether to show a progress bar, where tqdm is installed.

    Returns
    -------
    WorstCase
        `value` is what `lipnb.local_lipschitz` gives at `x`. No search shows that there is no rougher input; how far
        this one may be from the worst is what `lipnb.bounds` says.

    Raises
    ------
    TypeError
        "attention must be a lipnb.Attention ...", "seed must be an int ...".
    ValueError
        "R must be positive ...", "effort must be 0 or more ...", "on_ball knows dot-product scores only
        ...", and as `lipnb.bounds.general_upper`.

    Notes
    -----
    Ours. castin2024smooth, section 5.2, reports that gradient ascent gives poor results; here it begins at forks.

    Examples
    --------
    >>> eye = torch.eye(2).double()
    >>> found = on_ball(Attention.from_matrices(-eye, eye), 10, 2.0, progress=False)
    >>> found.kind, round(found.value, 2), bool(found.x.norm(dim=1).max() < 2 + 1e-9)
    ('fork, ascended', 8.88, True)
    """
    if not isinstance(attention, Attention):
        raise TypeError(f"attention must be a lipnb.Attention, got {type(attention).__name__}.")
    if not isinstance(seed, int):
        raise TypeError(f"seed must be an int, got {seed!r}.")
    attention.check_plain("on_ball")
    n, R = count(n), radius(R)
    if not R > 0:
        raise ValueError(f"R must be positive, got {R!r}.")
    if not isinstance(effort, int) or effort < 0:
        raise ValueError(f"effort must be 0 or more, a whole number of rounds, got {effort!r}.")
    f, basis = _spanned(attention.to(dtype=torch.float64))
    directions = bulk_directions(f, pairs=8 if f.heads == 1 else 4)
    line = forks(f, n, R, directions, keep=LINE, seed=seed)
    line = line.some(line.stated > 0)
    found = _constructions(f, n, R, line.some(slice(8)), directions, seed)
    with _bar(effort * sum(STEPS.values()), progress) as shown:
        for turn in range(effort):
            some = line.some(slice(turn * STARTS, (turn + 1) * STARTS))
            found = _round(f, found, some, R, seed + turn, shown)
    return _answer(attention, found.x[0] if basis is None else found.x[0] @ basis.mT, R, found.kind[0])


def _bar(total, wanted):
    """A progress bar where tqdm is installed, which `lipnb` alone does not bring."""
    if not wanted or find_spec("tqdm") is None:
        return nullcontext()
    from tqdm.auto import tqdm

    return tqdm(total=total, unit="step", smoothing=0.05)


def _answer(attention, x, R, kind):
    """The input in the floating point type of the map, and its constant measured there."""
    x = _projected(x, R).to(attention.dtype)
    f = attention.to(dtype=torch.float64)
    return WorstCase(x, local_lipschitz(f, x.double(), rtol=1e-6).value.item(), kind)


def _spanned(f):
    """The map on the span of its rows, and an orthonormal basis of that (d, r); the map and None where all is spanned.

    Key, value and output biases, which change no derivative, are left out.
    """
    plain = f.replace(key_bias=None, value_bias=None, output_bias=None)
    rows = torch.cat([part.flatten(0, 1) for part in (f.query, f.key, f.value)])
    if len(rows) >= f.width:
        return plain, None
    basis = torch.linalg.qr(rows.mT).Q
    return plain.replace(query=f.query @ basis, key=f.key @ basis, value=f.value @ basis), basis


def _constructions(f, n, R, line, directions, seed):
    """Explicit and random inputs, the roughest first, by their local constants."""
    inputs = [(_random(f, n, R, seed), "random")]
    if len(line.points):
        inputs.append((line.tokens(), "fork"))
    if n > 1:
        inputs += [(two_clusters(f, n, R, directions).tokens(), "two clusters"), (_tight(f, n, R), "two clusters")]
        inputs.append((_two_sides(n, R, directions[: 2 * f.heads]), "two sides"))
    x = torch.cat([part for part, _ in inputs])
    nothing = _Found(x[:0], x.new_zeros(0), [])
    return _with_best(f, nothing, x, [kind for part, kind in inputs for _ in part], most=12)


def _with_best(f, found, x, kind, *, most):
    """What was found, and the roughest of more inputs x (b, n, d): all compared roughly, these then measured."""
    best = local_lipschitz(f, x, rtol=0.03, confidence=None).value.argsort(descending=True)[:most]
    return found.and_more(x[best], local_lipschitz(f, x[best]).value, [kind[i] for i in best.tolist()])


def _random(f, n, R, seed):
    """Four inputs of tokens on the sphere."""
    return R * unit_slope(gaussian(seed)(4, n, f.width), -1)


def _tight(f, n, R):
    """The two clusters of `tight_input` for each head that has a real eigenvector, both signs."""
    found = []
    for Q, K in zip(f.query, f.key, strict=True):
        basis = torch.linalg.qr(torch.cat([Q, K]).mT).Q
        try:
            x = tight_input(f.slope * (K @ basis).mT @ (Q @ basis), n, R) @ basis.mT
        except ValueError:
            continue
        found += [x, -x]
    return torch.stack(found) if found else f.query.new_zeros(0, n, f.width)


def _two_sides(n, R, directions):
    """Half of the tokens at R v, half at -R v, and for odd n the first at 0, as `quadratic_input` has them."""
    factors = torch.tensor([0.0] * (n % 2) + [1.0] * (n // 2) + [-1.0] * (n // 2), dtype=directions.dtype)
    return R * factors[:, None] * directions[:, None]


def _projected(x, R):
    return x / (torch.linalg.vector_norm(x, dim=-1, keepdim=True) / R).clamp_min(1)


def _round(f, found, line, R, seed, shown):
    """With what ascents reach: of the distinct points of the forks in `line`, then of all tokens of the roughest."""
    if len(line.points):
        # without a mask copies stay together, and few weighted points stand for all tokens
        points, counts = (_with_rates(part) for part in (line.points, line.counts))
        bare, n = f.replace(masked=False, window=None), counts[0].sum()
        points = _ascended(bare, points, R, STEPS["points"], seed, shown, weights=counts.to(points) / n)
        inputs = line._replace(points=points, counts=counts, stated=None).tokens()
        found = _with_best(f, found, inputs, ["fork, ascended"] * len(inputs), most=2)
    other = [i for i, kind in enumerate(found.kind) if not kind.startswith(found.kind[0].split(",")[0])]
    # the roughest, and the roughest of another kind; where the constant is 0 no direction leads up
    starts = [i for i in (0, *other[:1]) if found.value[i] > 0]
    if not starts:
        return found
    x = _ascended(f, _with_rates(found.x[starts]), R, STEPS["tokens"], seed, shown)
    kinds = [found.kind[i].removesuffix(", ascended") + ", ascended" for i in starts * len(RATES)]
    return found.and_more(x, local_lipschitz(f, x).value, kinds)


def _with_rates(x):
    """Each item once for each of `RATES`."""
    return x.repeat(len(RATES), *[1] * (x.ndim - 1))


def _ascended(f, x, R, steps, seed, shown, *, weights=None):
    """Where ascents from inputs (b, n, d) of `_with_rates` lead, in the norm that goes with token weights (b, n)."""
    rates = torch.tensor(RATES, dtype=x.dtype).repeat_interleave(len(x) // len(RATES))
    unit = (R * rates)[:, None, None]  # so that one step of Adam of size one is a step of that rate
    root = 1 if weights is None else weights.sqrt()[..., None]
    left = gaussian(seed)(*x.shape[:2], f.output_width)
    refinements = 8

    def norm(y):
        """The length of M^T w, with w near the top left singular vector of M: at most the constant, and next to it."""
        nonlocal left, refinements
        x = y * unit
        jacobian = AttentionJacobian(f, x, weights)
        for _ in range(refinements):
            right = unit_slope(jacobian.vjp(root * left) / root, (-2, -1))
            left = unit_slope(root * jacobian.jvp(right / root), (-2, -1))
        refinements = 2  # from here on the last vector is a good start
        if shown is not None:
            shown.update()
        (pulled,) = torch.autograd.grad((f(x, weights) * root * left).sum(), x, create_graph=True)
        return torch.linalg.vector_norm(pulled / root, dim=(-2, -1))

    move = adam(1.0, falling=steps, inside=lambda y: _projected(y * unit, R) / unit)
    (best,), _ = ascend(norm, (x / unit,), move, steps=steps - 1, log=True)
    return _projected(best * unit, R)
