"""Rough inputs of whole layers in closed form: forks and two clusters, with lower bounds on their constants.

They are for plain heads; `plain_twins` are plain heads that approximate a map with rotary positions, norms and so on.
"""

import math
from typing import NamedTuple

import torch
from scipy.optimize import minimize
from torch import Tensor

from lipnb.attention import Attention
from lipnb.attention.rope_norm import rotation, turned
from lipnb.spectral.upper_norms import triangle
from lipnb.worst_case.ascent import gaussian
from lipnb.worst_case.constructions import eigenvector

__all__ = ["Shapes", "bulk_directions", "forks", "two_clusters"]

ANGLES = 32  # number of values of c, the component of a prong along the slope
CLIMBED, STEPS = 4, 100  # forks of one head that are moved to where they state the most, and steps of L-BFGS
SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)  # of the norm of A: multipliers theta of what a token of the bulk gives itself
LENGTHS = (1.0, 0.85, 0.7, 0.55, 0.4, 0.2)  # of the bulk token, in radii: shorter ones take less attention


class Shapes(NamedTuple):
    r"""Inputs of few distinct tokens, the roughest first.

    Attributes
    ----------
    points : Tensor, shape (b, r, d)
        The distinct tokens, in the ball; tokens to which the others attend come first, so that a mask never hides them.
    counts : Tensor of int, shape (b, r)
        Multiplicity of each, of sum n.
    stated : Tensor, shape (b,)
        Lower bound on the local constant, or an estimate, as the function that made them states.
    """

    points: Tensor
    counts: Tensor
    stated: Tensor

    def tokens(self) -> Tensor:
        """The inputs with all tokens, shape (b, n, d)."""
        if not len(self.points):
            return self.points
        return torch.stack([x.repeat_interleave(many, 0) for x, many in zip(self.points, self.counts, strict=True)])

    def take(self, places: slice | Tensor) -> "Shapes":
        """The inputs at the indices `places`."""
        return Shapes(self.points[places], self.counts[places], self.stated[places])


def slopes(attention: Attention, x: Tensor) -> Tensor:
    r"""Slopes :math:`g^h = s W_K^\top (W_Q x + b_Q)`, (..., h, d), of the logits of x, (..., d), in a token."""
    attention.check_plain("slopes")
    query = torch.einsum("...d,hkd->...hk", x, attention.query)
    if attention.query_bias is not None:
        query = query + attention.query_bias
    return attention.slope * torch.einsum("...hk,hkd->...hd", query, attention.key)


def bulk_directions(attention: Attention, *, pairs: int = 8) -> Tensor:
    r"""Candidate unit directions, shape (b, d), for the bulk of a rough input.

    For :math:`A^h = s W_K^{h\top} W_Q^h` of each head: the right singular vectors of the largest singular values, the
    two extreme eigenvectors of the symmetric part S, and the eigenvector of `eigenvector` if it exists; the tokens v
    with the largest :math:`|A^h v|^2 - 2 \theta\, v \cdot S v`, for some :math:`\theta` up to :math:`\|A^h\|_2`, which
    give themselves little attention, as the best bulk of a fork does (see `lipnb.bounds.ball_upper`); for several heads
    also the directions v with the largest :math:`\sum_h |A^h v|^2`. With query biases both signs.

    Parameters
    ----------
    attention : Attention
        Plain heads with dot-product scores, float64.
    pairs : int
        Number of singular pairs of each head, and of joint directions.

    Examples
    --------
    >>> f = Attention.from_matrices(-torch.eye(2).double(), torch.eye(2).double())
    >>> bulk_directions(f).shape[-1]
    2
    """
    attention.check_plain("bulk_directions")
    query, key = attention.slope * attention.query, attention.key
    found = []
    for Q, K in zip(query, key, strict=True):
        basis = torch.linalg.qr(torch.cat([Q, K]).mT).Q
        A = (K @ basis).mT @ (Q @ basis)
        symmetric = torch.linalg.eigh(A + A.mT).eigenvectors
        rows = [torch.linalg.svd(A).Vh[:pairs], symmetric[:, :1].mT, symmetric[:, -1:].mT]
        # 2 theta S is theta (A + A^T)
        size = torch.linalg.matrix_norm(A, 2) * A.new_tensor(SHARES)[:, None, None]
        rows.append(torch.linalg.eigh(A.mT @ A - size * (A + A.mT)).eigenvectors[..., -1])
        try:
            rows.append(eigenvector(A)[1][None])
        except ValueError:  # none is real
            pass
        found.append(torch.cat(rows) @ basis.mT)
    if attention.heads > 1:
        joint = torch.einsum("hkd,hke->de", *[triangle(key.mT) @ query] * 2)
        found.append(torch.linalg.eigh(joint).eigenvectors.mT.flip(0)[:pairs])
    units = torch.cat(found)
    return units if attention.query_bias is None else torch.cat([units, -units])


def _bulks(attention, R, directions):
    """Bulk tokens z, unit vectors k for the prongs, and slopes, each (b, l, ...), with l choices per direction."""
    z = R * directions.new_tensor(LENGTHS)[:, None] * directions[:, None]
    G = slopes(attention, z)  # g^h at z, (b, l, h, d)
    if attention.heads > 1:  # the largest slope of a head, and the sum over heads
        most = torch.linalg.vector_norm(G, dim=-1).argmax(-1)
        follow = torch.stack([_rows(G, most), G.sum(-2)], 2).flatten(1, 2)
        z, G = (part.repeat_interleave(2, 1) for part in (z, G))
    else:
        follow = G[:, :, 0]
    size = torch.linalg.vector_norm(follow, dim=-1, keepdim=True)
    return z, follow / torch.where(size > 0, size, 1), G


def _rows(x, places):
    """Rows of x (..., r, d) at the indices places (...), shape (..., d)."""
    return torch.take_along_dim(x, places[..., None, None], -2)[..., 0, :]


def _of_heads(attention, e):
    """The products W_O^h W_V^h e of each head, shape (b, h, m), for e (b, d)."""
    values = torch.einsum("hvd,bd->bhv", attention.value, e)
    return attention.combine(torch.diag_embed(values.mT).movedim(1, -1))


def _best_directions(attention, factors, off, e, *, steps):
    """Unit e, orthogonal to `off` (b, d, r), with large |sum_h factors_h W_O W_V e|, by power iteration."""
    for _ in range(steps):
        values = factors[..., None] * torch.einsum("hvd,bd->bhv", attention.value, e)
        back = attention.combine_transposed(attention.combine(values[:, :, None]))[:, :, 0]
        back = torch.einsum("bhv,hvd->bd", factors[..., None] * back, attention.value)
        back = back - (off @ (off.mT @ back[..., None]))[..., 0]
        size = torch.linalg.vector_norm(back, dim=-1, keepdim=True)
        e = torch.where(size > 0, back / torch.where(size > 0, size, 1), e)
    return e


def forks(attention: Attention, n: int, R: float, directions: Tensor, *, keep: int = 8, seed: int = 0) -> Shapes:
    r"""Forks of a whole layer: m prongs on each side, n - 2m tokens at one place z, the bulk.

    .. math:: R\,(c k \pm s e) \ (m \text{ times each}),\quad z, \dots, z, \qquad c^2 + s^2 = 1,\ e \perp k,

    with e orthogonal to all :math:`g^h = s W_K^\top (W_Q z + b_Q)`. In head h each bulk token gives each prong the
    attention

    .. math:: q_h = \frac 1 {2 m + (n - 2 m)\, e^{-g^h \cdot (R c k - z)}} ,

    and moving the prongs by :math:`\pm k / \sqrt{2 m}` moves the output of each bulk token by the same vector, so that

    .. math:: \mathrm{Lip}_X(f) \ge \sqrt{2 m (n - 2 m)}\; R s\, \Big| \sum_h q_h (g^h \cdot k)\, W_O^h W_V^h e \Big| .

    Parameters
    ----------
    attention : Attention
        Any heads and biases, dot products, float64.
    n : int
        Number of tokens; fewer than 3, or tokens of width 1, have no forks, nor have maps whose logits or values are
        constant.
    R : float
        Radius, positive.
    directions : Tensor, shape (b, d)
        Unit vectors for the bulk, tried at several lengths; k is along the slope of one head at z, or of the sum.
    keep : int
        Maximal number of forks returned, with one direction each.
    seed : int
        Seed of the start of the search for e.

    Returns
    -------
    Shapes
        `stated` is the bound above without a mask, and for a single masked head; with several masked heads, or at least
        as many heads as coordinates, it is an estimate.

    Notes
    -----
    Ours. With one head and no bias this is `fork_input`; there z = R v. Forks of one head are then moved along the
    gradient of the logarithm of their stated bound.

    Examples
    --------
    >>> f = Attention.from_matrices(-torch.eye(2).double(), torch.eye(2).double())
    >>> forks(f, 8, 2.0, bulk_directions(f), keep=1).tokens().shape
    torch.Size([1, 8, 2])
    """
    d = directions.shape[-1]
    if n < 3 or d < 2:  # no two prongs and a bulk
        none = directions.new_zeros(0, 3, dtype=torch.int64)
        return Shapes(directions.new_zeros(0, 3, d), none, directions.new_zeros(0))
    z, k, G = _bulks(attention, R, directions)
    choices = z.shape[1]
    z, k, G = z.flatten(0, 1), k.flatten(0, 1), G.flatten(0, 1)
    # e orthogonal to all g^h, so that both prongs get equal attention; to k only if h >= d leaves no such e
    off = torch.linalg.qr(G.mT if attention.heads < d else k[..., None]).Q
    e = _best_directions(attention, torch.einsum("bhd,bd->bh", G, k), off, gaussian(seed)(*z.shape).to(z), steps=12)
    found = _best_on_grid(attention, n, R, z, k, G, e)
    best = found.stated.unflatten(0, (-1, choices)).max(-1)  # one fork of each direction
    order = best.values.argsort(descending=True)[:keep]
    picked = order * choices + best.indices[order]
    z, k, G, off, e, factors = (part[picked] for part in (z, k, G, off, e, found.factors))
    e = _best_directions(attention, factors, off, e, steps=150)
    stated, c, m, _ = _best_on_grid(attention, n, R, z, k, G, e)
    side = (1 - c**2).sqrt() * e  # s e
    order = stated.argsort(descending=True)
    points = torch.stack([R * (c * k + side), R * (c * k - side), z], 1)
    found = Shapes(points, torch.stack([m, m, n - 2 * m], 1), stated).take(order[stated[order] > 0])
    return found if attention.heads > 1 else _climbed(attention, R, found)


def _climbed(attention, R, found):
    """Forks of one head, the roughest moved by L-BFGS on the logarithm of their stated bound, which is smooth.

    The point is (z / R, e, arcsin c); the part of a token that the head does not read is left out.
    """
    f = attention.to("cpu")
    basis = torch.linalg.qr(torch.cat([f.query[0], f.key[0], f.value[0]]).mT).Q
    f = f.replace(**{name: getattr(f, name) @ basis for name in ("query", "key", "value")})
    M, r = f.output_matrices()[0] @ f.value[0], basis.shape[1]

    def fork(p):
        z, c = R * p[:r] / p[:r].norm().clamp_min(1), p[-1].sin()
        g = slopes(f, z)[0]
        k = g / g.norm()
        e = p[r:-1] - (p[r:-1] @ k) * k
        return z, c, g, k, e / e.norm()

    def stated(p, prongs, bulk):
        z, c, g, k, e = fork(p)
        gap = R * c * g.norm() - g @ z
        below = torch.logaddexp(gap.new_tensor(math.log(prongs)), math.log(bulk) - gap)  # -log q
        size = R * (prongs * bulk) ** 0.5 * (1 - c**2).sqrt() * g.norm() * (M @ e).norm()
        return size.log() - below

    points, values = found.points.detach().clone(), found.stated.detach().clone()
    for i in range(min(CLIMBED, len(points))):
        first, second, z = found.points[i].cpu()
        counts = 2 * found.counts[i, 0].item(), found.counts[i, 2].item()
        c = ((first + second).norm() / (2 * R)).clamp_max(1).asin()
        start = torch.cat([z @ basis / R, (first - second) @ basis / R, c[None]]).detach().numpy()

        def slope(p, counts=counts):
            with torch.enable_grad():
                p = torch.from_numpy(p).requires_grad_()
                value = -stated(p, *counts)
                return value.item(), torch.autograd.grad(value, p)[0].numpy()

        best = minimize(slope, start, jac=True, method="L-BFGS-B", options={"maxiter": STEPS})
        if math.exp(-best.fun) > values[i]:
            z, c, _, k, e = fork(torch.from_numpy(best.x))
            side = (1 - c**2).sqrt() * e
            new = torch.stack([R * (c * k + side), R * (c * k - side), z])
            points[i], values[i] = (new @ basis.mT).to(points), math.exp(-best.fun)
    return Shapes(points, found.counts, values).take(values.argsort(descending=True))


class _Best(NamedTuple):
    """The best c and m of forks with given z, k, e (b, d)."""

    stated: Tensor  # (b,)
    c: Tensor  # share of a prong along k, (b, 1)
    m: Tensor  # prongs on each side, (b,)
    factors: Tensor  # q_h (g^h . k), (b, h)


def _best_on_grid(attention, n, R, z, k, G, e):
    """The `_Best` over a grid of c and m: the largest stated bounds."""
    sides = torch.unique(torch.logspace(0, 1, 6, base=max(1, (n - 1) // 2), dtype=z.dtype, device="cpu").round()).to(z)
    c, m = (
        part.flatten()
        for part in torch.meshgrid(torch.arange(ANGLES, device="cpu").to(z) / ANGLES, sides, indexing="ij")
    )
    along, own = torch.einsum("bhd,bd->bh", G, k), torch.einsum("bhd,bd->bh", G, z)
    gaps = R * c[:, None] * along[:, None] - own[:, None]  # g^h . (R c k - z), (b, grid, h)
    q = 1 / (2 * m[:, None] + (n - 2 * m[:, None]) * torch.exp(-gaps))
    factors = q * along[:, None]  # q_h (g^h . k)
    each = _of_heads(attention, e)  # W_O W_V e; `square` is that of their sum with these factors
    square = torch.einsum("bgh,bhi,bgi->bg", factors, each @ each.mT, factors)
    stated, at = (R * (2 * m * (n - 2 * m) * (1 - c**2) * square.clamp_min(0)).sqrt()).max(-1)
    return _Best(stated, c[at, None], m[at].long(), _rows(factors, at))


def two_clusters(attention: Attention, n: int, R: float, directions: Tensor, *, keep: int = 4) -> Shapes:
    r"""Inputs of two clusters: the first token at R k, and n - 1 tokens at one point z.

    .. math:: \mathrm{Lip}_X(f) \ge \sqrt{n - 1}\; \Big| \sum_h q_h W_O^h W_V^h
        \big( (1 - q_h)(g^h \cdot k)(R k - z) + k \big) \Big|, \qquad
        q_h = \frac 1 {1 + (n - 1)\, e^{-g^h \cdot (R k - z)}},

    because moving the first token by k moves the output of each other token by that vector.

    Parameters
    ----------
    attention, n, R, directions, keep
        As for `forks`; n is 2 or more.

    Returns
    -------
    Shapes
        `stated` is the bound above without a mask, an estimate with one.

    Notes
    -----
    Ours; `tight_input` is the case of an eigenvector.

    Examples
    --------
    >>> f = Attention.from_matrices(-torch.eye(2).double(), torch.eye(2).double())
    >>> two_clusters(f, 8, 2.0, bulk_directions(f), keep=1).tokens().shape
    torch.Size([1, 8, 2])
    """
    z, k, G = _bulks(attention, R, directions)
    (b, choices) = z.shape[:2]
    z, k, G = z.flatten(0, 1), k.flatten(0, 1), G.flatten(0, 1)
    along, gaps = torch.einsum("bhd,bd->bh", G, k), torch.einsum("bhd,bd->bh", G, R * k - z)
    q = 1 / (1 + (n - 1) * torch.exp(-gaps))
    # W_O W_V (q (1 - q) (g . k) (R k - z) + q k) of each head: (b, h, m)
    moved = (q * (1 - q) * along)[..., None] * _of_heads(attention, R * k - z) + q[..., None] * _of_heads(attention, k)
    stated = (n - 1) ** 0.5 * torch.linalg.vector_norm(moved.sum(1), dim=-1)
    best = stated.unflatten(0, (b, choices)).max(-1)
    order = best.values.argsort(descending=True)[:keep]
    picked = order * choices + best.indices[order]
    points = torch.stack([R * k[picked], z[picked]], 1)
    counts = picked.new_tensor([1, n - 1]).expand(len(picked), 2)
    return Shapes(points, counts, stated[picked])


def plain_twins(attention: Attention, n: int) -> list[Attention]:
    r"""Plain heads that approximate a map with features of transformers, one map for each of a few distances.

    At the distance m = i - j rotary logits are :math:`q_i^\top R_m^\top k_j`: the keys of that plain map
    are :math:`R_m^\top W_K`. Norms become their scaling of the longest rows of tokens of length 1; caps, relative
    positions, sinks and the biases of keys and values are left out. Nothing is claimed of these maps: inputs that they
    suggest are measured with the map itself. A plain map is returned alone, unchanged.

    >>> eye = torch.eye(2)
    >>> f = Attention.from_matrices(eye, eye).replace(frequencies=torch.tensor([torch.pi / 2]))
    >>> [(twin.key.round() + 0).tolist() for twin in plain_twins(f, 2)]
    [[[[1.0, 0.0], [0.0, 1.0]]], [[[0.0, 1.0], [-1.0, 0.0]]]]
    """
    if not attention.more:
        return [attention]
    without = ("key_bias", "value_bias", "query_norm", "key_norm", "cap", "relative", "sinks", "frequencies")
    plain = attention.replace(**dict.fromkeys(without), **_scaled(attention))
    return [plain] if attention.frequencies is None else _at_distances(attention, plain, n)


def _at_distances(attention, plain, n):
    """The plain heads with keys rotated back by a few distances, from 0 to the largest."""
    far = (n if attention.window is None else min(n, attention.window)) - 1
    cos, sin = rotation(attention.frequencies, far + 1, attention.dtype)
    chosen = sorted({0, min(1, far), far // 2, far})
    return [plain.replace(key=turned(plain.key.mT, (cos[m], -sin[m])).mT) for m in chosen]


def _scaled(attention):
    """Queries with their biases, and keys, scaled as norms scale the longest rows."""
    parts = {name: getattr(attention, name) for name in ("query", "key", "query_bias")}
    for name in ("query", "key"):
        weight = getattr(attention, f"{name}_norm")
        if weight is None:
            continue
        longest = torch.linalg.matrix_norm(parts[name], 2).square() / attention.key_width
        scale = weight * (longest + attention.norm_eps).rsqrt()[:, None]
        parts[name] = scale[..., None] * parts[name]
        if name == "query" and parts["query_bias"] is not None:
            parts["query_bias"] = scale * parts["query_bias"]
    return parts
