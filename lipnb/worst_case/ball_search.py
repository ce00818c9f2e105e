"""Search for a rough input in a ball: constructions, then gradient ascent on the top singular value."""

import math
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lipnb.attention import Attention, Feature
from lipnb.attention.heads import check_attention
from lipnb.bounds.heads import TRANSFORMER_FEATURES
from lipnb.checks import count, number, whole
from lipnb.jacobian import AttentionJacobian
from lipnb.lipschitz import local_lipschitz
from lipnb.spectral.answer import table_of
from lipnb.worst_case.ascent import adam, ascend, gaussian, unit_slope
from lipnb.worst_case.constructions import even_fork, tight_input
from lipnb.worst_case.forks import Shapes, bulk_directions, forks, plain_twins, two_clusters
from lipnb.worst_case.region import domain_of

__all__ = ["WorstCase", "on_ball"]

POINTS, TOKENS = (60, 200), 30  # steps of one ascent: of few distinct points (one head, several heads); of all tokens
PLACED = 100  # steps of the ascent of all tokens if positions matter, so that few points cannot stand for many
RATES = (0.0001, 0.001, 0.01, 0.05)  # initial rates of Adam, in radii: forks are stiff, random inputs are not
FORKS = 24  # forks kept, independent of the effort, so that first rounds are the same
STARTS = 6  # forks from which one round starts, with each of the rates
CONSTRUCTION_STEPS = 10  # steps of the progress bar for the constructions
BATCH = 8  # inputs compared at once
PLACES = {Feature.ROTARY, Feature.RELATIVE}  # features for which positions matter beyond the mask


class WorstCase(NamedTuple):
    """A rough input of a ball, and its local constant.

    Attributes
    ----------
    x : Tensor, shape (n, d)
        Tokens in the ball, and in the ellipsoid if given, up to rounding; in the floating point type of the map.
    value : float
        Local Lipschitz constant at `x`, within 1e-6 in float64: a lower bound on the constant of the ball. If logits
        exceed about 1e9 (tokens far from the origin), float64 has fewer digits left, which is not counted.
    kind : str
        "fork", "two clusters", "two sides" or "random", followed by ", ascended" if the ascent improved it.
    """

    x: Tensor
    value: float
    kind: str

    @property
    def table(self) -> Any:
        """The numbers as a pandas table with one row."""
        return table_of(self)


class _Found(NamedTuple):
    """Inputs as u (b, n, s), with their constants (b,) and kinds, the largest constant first."""

    u: Tensor
    value: Tensor
    kind: list[str]

    def and_more(self, u, value, kind):
        """Add inputs; of equal constants the earlier input stays first."""
        u, value, kind = torch.cat([self.u, u]), torch.cat([self.value, value]), self.kind + kind
        order = value.argsort(descending=True, stable=True)
        return _Found(u[order], value[order], [kind[i] for i in order.tolist()])


@torch.inference_mode(False)  # gradients are taken
def on_ball(
    attention: Attention,
    n: int,
    R: float,
    *,
    ellipsoid: tuple[Tensor, Tensor | None] | None = None,
    seed: int = 0,
    effort: int = 1,
    progress: bool = True,
) -> WorstCase:
    r"""Search for the roughest n tokens in the ball of radius R: a lower bound on the constant of the ball.

    Forks and two clusters over singular pairs, signs, angles and lengths (`lipnb.worst_case.forks`) are compared by
    their stated bounds; the best of them, the even fork of each head (`even_fork_input`), two sides and random inputs
    by their local constants. Gradient ascent then starts from the roughest and, in width 3 or more without
    positions in the scores and for three tokens or more, from an even fork, with steps of Adam
    along the derivative of the top singular value,

    .. math:: \nabla_X \|D_X f\|_2 = \nabla_X\, \langle w,\, D_X f\, v \rangle \quad (w, v \text{ held}),

    and tokens outside the ball are projected to its sphere. The search is on the span of the query, key and value
    matrices if that has fewer coordinates.

    With an ellipsoid the search moves the u of tokens :math:`\beta + G u`, :math:`|u| \le 1`, while derivatives are
    taken in the tokens, in all directions; if R is finite as well, tokens outside the ball are moved toward the
    shortest one of the ellipsoid.

    Parameters
    ----------
    attention : Attention
        Map with dot-product scores; any heads, shared keys, output matrix, biases and mask; rotary positions, norms,
        caps, relative positions and sinks. With these features `on_ball` starts from the forks of similar plain heads,
        at several distances.
    n : int
        Number of tokens.
    R : float
        Radius, positive. With `ellipsoid` it may be `math.inf`.
    ellipsoid : tuple of Tensor, shapes (d,) and (d,), optional
        Gain and shift of a LayerNorm, or ``(gain, None)`` of an RMSNorm: tokens are restricted to its possible outputs
        in the ball, as in `lipnb.bounds.ball_upper`.
    seed : int
        Seed of random inputs and start vectors.
    effort : int
        Rounds of the ascent; 0 only compares the constructions. Each round continues from the last result and from the
        next starts: more effort gives no less, up to the tolerance 1e-4 of the solver that compares.
    progress : bool
        Whether to show a progress bar if tqdm is installed.

    Returns
    -------
    WorstCase
        `value` is the answer of `lipnb.local_lipschitz` at `x`. Rougher inputs may exist; `lipnb.bounds` has upper
        bounds for comparison.

    Raises
    ------
    TypeError
        If n or R is not a number, or the seed not an integer.
    ValueError
        If `attention` is not an `Attention` with dot-product scores, or has an unmasked window; if n is not a positive
        integer, R is not positive, `effort` or `seed` is negative, or no token of the ellipsoid is in the ball; and as
        `lipnb.bounds.ball_upper`.

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
    n, R = _checked(attention, n, R, seed, effort)
    f = attention.expand_groups().to("cpu", torch.float64).without_irrelevant_biases()
    if n == 1 and not f.more:  # the map is affine
        effort = 0
    f, domain = domain_of(f, R, ellipsoid).spanned(f)
    placed = not PLACES.isdisjoint(f.more)
    with _bar(CONSTRUCTION_STEPS + effort * (PLACED if placed else POINTS[f.heads > 1] + TOKENS), progress) as bar:
        shapes, even, found = _constructions(f, n, domain, seed, bar)
        for i in range(effort):
            if placed:
                found = _with_tokens(f, found, domain, PLACED, seed + i, bar)
                continue
            some = _joined([shapes.take(slice(i * STARTS, (i + 1) * STARTS)), even.take(slice(1 if i == 0 else 0))])
            found = _round(f, found, some, domain, seed + i, bar)
        return _answer(attention, domain.whole_tokens(found.u[0]), found.kind[0])


def _checked(attention, n, R, seed, effort):
    """Number of tokens and radius, after validation of all arguments."""
    check_attention(attention, "on_ball")
    if not 0 <= whole("seed", seed) < 2**63:
        raise ValueError(f"seed must be 0 or more and below 2**63, got {seed}.")
    attention.check_plain("on_ball", also=TRANSFORMER_FEATURES)
    n, R = count(n), number("R", R)
    if not R > 0 or (R < math.inf and float(R) * float(R) == math.inf):
        raise ValueError(f"R must be positive, with a square within float64, got {R!r}.")
    if isinstance(effort, bool) or not isinstance(effort, int) or effort < 0:
        raise ValueError(f"effort must be 0 or more, a whole number of rounds, got {effort!r}.")
    return n, R


class _Silent:
    """A progress bar that shows nothing."""

    def update(self, steps=1):
        pass

    def set_description(self, words):
        pass


def _bar(total, wanted):
    """A progress bar, if wanted and tqdm is installed, which `lipnb` does not require."""
    if not wanted or find_spec("tqdm") is None:
        return nullcontext(_Silent())
    from tqdm import tqdm

    return tqdm(total=total, unit="step", smoothing=0.05)


def _answer(attention, x, kind):
    """The `WorstCase` of tokens x, rounded to the floating point type of the map before the measurement."""
    x = x.to(attention.dtype)
    f = attention.to("cpu", torch.float64)
    return WorstCase(x.to(attention.device), local_lipschitz(f, x.double(), rtol=1e-6).value.item(), kind)


def _constructions(f, n, domain, seed, bar):
    """Forks, even forks, and a `_Found` of explicit and random inputs and the roughest forks; the roughest first."""
    bar.set_description("constructions")
    twins = plain_twins(domain.pulled(f), n)
    directions = [bulk_directions(g, pairs=8 if f.heads == 1 else 4) for g in twins]
    bar.update()
    each = [
        forks(g, n, 1.0, some, keep=FORKS // len(twins), seed=seed) for g, some in zip(twins, directions, strict=True)
    ]
    shapes = _by_constant(f, domain, _joined(each))
    even = _by_constant(f, domain, _joined([_even_forks(g, n) for g in twins]))
    bar.update(CONSTRUCTION_STEPS // 2)
    inputs = [(_random(twins[0], n, seed), "random")]
    if len(shapes.points):
        inputs.append((shapes.take(slice(8)).tokens(), "fork"))
    if len(even.points):
        inputs.append((even.take(slice(4)).tokens(), "fork"))
    for g, some in zip(twins, directions, strict=True) if n > 1 else ():
        inputs += [(two_clusters(g, n, 1.0, some).tokens(), "two clusters"), (_tight(g, n), "two clusters")]
        inputs.append((_two_sides(n, some[: 2 * f.heads]), "two sides"))
    u = torch.cat([part for part, _ in inputs])
    nothing = _Found(u[:0], u.new_zeros(0), [])
    found = _with_best(f, domain, nothing, u, [kind for part, kind in inputs for _ in part], most=12)
    bar.update(CONSTRUCTION_STEPS - 1 - CONSTRUCTION_STEPS // 2)
    return shapes, even, found


def _joined(each):
    """The inputs of several `Shapes` of three points, in their order."""
    return Shapes(*(torch.cat(parts) for parts in zip(*each, strict=True)))


def _by_constant(f, domain, shapes):
    """Forks with a positive stated bound, ordered by the constant of their weighted points without a mask.

    If positions matter, ordered by the constant of all tokens.
    """
    shapes = shapes.take(shapes.stated > 0)
    if not len(shapes.points):
        return shapes
    if not PLACES.isdisjoint(f.more):
        return shapes.take(_rough(f, domain, domain.inside(shapes.tokens())).argsort(descending=True, stable=True))
    points, weights = domain.tokens(domain.inside(shapes.points)), shapes.counts / shapes.counts.sum(1, keepdim=True)
    bare = f.replace(masked=False, window=None)
    value = local_lipschitz(bare, points, weights=weights.double(), rtol=0.01, confidence=None).value
    return shapes.take(value.argsort(descending=True, stable=True))


def _with_best(f, domain, found, u, kind, *, most):
    """Add the roughest of the inputs u (b, n, s) to `found`: all are compared roughly, the best are then measured."""
    u = domain.inside(u)
    best = _rough(f, domain, u).argsort(descending=True)[:most]
    value = local_lipschitz(f, domain.tokens(u[best])).value
    return found.and_more(u[best], value, [kind[i] for i in best.tolist()])


def _rough(f, domain, u):
    """Local constants of inputs u (b, n, s), to a few percent."""
    some = [local_lipschitz(f, domain.tokens(part), rtol=0.03, confidence=None).value for part in u.split(BATCH)]
    return torch.cat(some)


def _random(g, n, seed):
    """Four random inputs with tokens on the sphere, (4, n, d)."""
    return unit_slope(gaussian(seed)(4, n, g.width), -1)


def _tight(g, n):
    """The inputs of `tight_input`, with both signs, for each head that has a real eigenvector."""
    found = []
    for Q, K in zip(g.query, g.key, strict=True):
        basis = torch.linalg.qr(torch.cat([Q, K]).mT).Q
        try:
            u = tight_input(g.slope * (K @ basis).mT @ (Q @ basis), n, 1.0) @ basis.mT
        except ValueError:
            continue
        found += [u, -u]
    return torch.stack(found) if found else g.query.new_zeros(0, n, g.width)


def _even_forks(g, n):
    """`Shapes` of the even fork of each head, in the span of its matrices; none in width 2 or for two tokens."""
    points, stated = [g.query.new_zeros(0, 3, g.width)], []
    for h, (Q, K) in enumerate(zip(g.query, g.key, strict=True)):
        V = g.value[h] if g.output is None else g.output[h] @ g.value[h]
        basis = torch.linalg.qr(torch.cat([Q, K, V]).mT).Q
        if n >= 3 and basis.shape[1] >= 3:
            found, lower = even_fork(g.slope * (K @ basis).mT @ (Q @ basis), V @ basis, n, 1.0)
            points.append((found @ basis.mT)[None])
            stated.append(lower)
    counts = torch.tensor([1, 1, n - 2], device="cpu").expand(len(stated), 3)
    return Shapes(torch.cat(points), counts, g.query.new_tensor(stated))


def _two_sides(n, directions):
    """Half of the tokens at v, half at -v, and for odd n the first at 0, as in `quadratic_input`."""
    factors = torch.tensor([0.0] * (n % 2) + [1.0] * (n // 2) + [-1.0] * (n // 2), dtype=directions.dtype, device="cpu")
    return factors[:, None] * directions[:, None]


def _round(f, found, shapes, domain, seed, bar):
    """Add the results of ascents: of the distinct points of the forks `shapes`, then of all tokens of the roughest."""
    bar.set_description("ascent")
    if len(shapes.points):
        # without a mask copies stay together, and few weighted points stand for all tokens
        points, counts = (_with_rates(part) for part in (shapes.points, shapes.counts))
        bare, n = f.replace(masked=False, window=None), counts[0].sum()
        points = _ascended(bare, domain, points, POINTS[f.heads > 1], seed, bar, weights=counts.to(points) / n)
        inputs = shapes._replace(points=points, counts=counts, stated=None).tokens()
        found = _with_best(f, domain, found, inputs, ["fork, ascended"] * len(inputs), most=2)
    return _with_tokens(f, found, domain, TOKENS, seed, bar)


def _with_tokens(f, found, domain, steps, seed, bar):
    """Add the results of ascents of all tokens, from the roughest inputs found so far."""
    bar.set_description("ascent")
    other = [i for i, kind in enumerate(found.kind) if not kind.startswith(found.kind[0].split(",")[0])]
    # the roughest, and the roughest of another kind; at constant 0 there is no direction of ascent
    starts = [i for i in (0, *other[:1]) if found.value[i] > 0]
    if not starts:
        return found
    u = _ascended(f, domain, _with_rates(found.u[starts]), steps, seed, bar)
    kinds = [found.kind[i].removesuffix(", ascended") + ", ascended" for i in starts * len(RATES)]
    return found.and_more(u, local_lipschitz(f, domain.tokens(u)).value, kinds)


def _with_rates(u):
    """Repeat the items once for each of `RATES`."""
    return u.repeat(len(RATES), *[1] * (u.ndim - 1))


def _ascended(f, domain, u, steps, seed, bar, *, weights=None):
    """End points of ascents from inputs (b, n, s) of `_with_rates`, in the norm of token weights (b, n)."""
    rates = torch.tensor(RATES, dtype=u.dtype, device="cpu").repeat_interleave(len(u) // len(RATES))
    unit = rates[:, None, None]  # so that one step of Adam of size one is a step of that rate
    root = 1 if weights is None else weights.sqrt()[..., None]
    left = gaussian(seed)(*u.shape[:2], f.output_width)
    refinements = 8

    def norm(y):
        """The length of M^T w, with w near the top left singular vector of M: at most the constant, and close to it."""
        nonlocal left, refinements
        x = domain.tokens(y * unit)
        jacobian = AttentionJacobian(f, x, weights)
        for _ in range(refinements):
            right = unit_slope(jacobian.vjp(root * left) / root, (-2, -1))
            left = unit_slope(root * jacobian.jvp(right / root), (-2, -1))
        refinements = 2  # from here on the last vector is a good start
        bar.update()
        (pulled,) = torch.autograd.grad((f(x, weights) * root * left).sum(), x, create_graph=True)
        return torch.linalg.vector_norm(pulled / root, dim=(-2, -1))

    step_of = adam(1.0, falling=steps, inside=lambda y: domain.inside(y * unit) / unit)

    def move(step, point, slopes):
        return step_of(step, point, (_tangential(point[0] * unit, slopes[0]),))

    (best,), _ = ascend(norm, (domain.inside(u) / unit,), move, steps=steps - 1, log=True)
    return domain.inside(best * unit)


def _tangential(u, slopes):
    """Slopes without their outward part at tokens on the unit sphere, which would dominate the steps of Adam."""
    outward = (u * slopes).sum(-1, keepdim=True).clamp_min(0)
    on_sphere = torch.linalg.vector_norm(u, dim=-1, keepdim=True) > 1 - 1e-9
    return slopes - torch.where(on_sphere, outward, 0) * u
