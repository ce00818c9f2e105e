"""Rough inputs of whole layers in closed form: forks and two clusters, with what they reach at least.

They are of plain heads; `plain_twins` are the plain heads most like a map with rotary positions, norms and so on.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lipnb.attention import Attention
from lipnb.attention.rope_norm import rotation, turned
from lipnb.bounds.upper_norms import triangle
from lipnb.worst_case.ascent import gaussian
from lipnb.worst_case.constructions import eigenvector

__all__ = ["Shapes", "bulk_directions", "forks", "two_clusters"]

ANGLES = 32  # values of c, the share of a prong along the slope
LENGTHS = (1.0, 0.85, 0.7, 0.55, 0.4, 0.2)  # of the bulk token, in radii: shorter ones need less room before the prongs


class Shapes(NamedTuple):
    r"""Inputs of a few distinct tokens, the roughest first.

    Attributes
    ----------
    points : Tensor, shape (b, r, d)
        The distinct tokens, in the ball; what the others attend to comes first, so that a mask hides it from none.
    counts : Tensor of int, shape (b, r)
        How often each stands, n in all.
    stated : Tensor, shape (b,)
        What the local constant is at least, where the function says so; else an estimate.
    """

    points: Tensor
    counts: Tensor
    stated: Tensor

    def tokens(self) -> Tensor:
        """The inputs themselves, shape (b, n, d)."""
        return torch.stack([x.repeat_interleave(many, 0) for x, many in zip(self.points, self.counts, strict=True)])

    def take(self, places: slice | Tensor) -> "Shapes":
        """Those at `places`."""
        return Shapes(self.points[places], self.counts[places], self.stated[places])


def slopes(attention: Attention, x: Tensor) -> Tensor:
    r"""The :math:`g^h = s W_K^\top (W_Q x + b_Q)`, (..., h, d), of x (..., d): its logits, up to one number for all."""
    attention.check_plain("slopes")
    query = torch.einsum("...d,hkd->...hk", x, attention.query)
    if attention.query_bias is not None:
        query = query + attention.query_bias
    return attention.slope * torch.einsum("...hk,hkd->...hd", query, attention.key)


def bulk_directions(attention: Attention, *, pairs: int = 8) -> Tensor:
    r"""Unit vectors along which the bulk of a rough input may stand, shape (b, d).

    Of :math:`A^h = s W_K^{h\top} W_Q^h` of each head: the right singular vectors of the largest singular values, the
    two extreme eigenvectors of the symmetric part, and the eigenvector of `eigenvector` where there is one; of several
    heads also the directions v of the largest :math:`\sum_h |A^h v|^2`. With query biases both signs.

    Parameters
    ----------
    attention : Attention
        With dot products, float64.
    pairs : int
        Singular pairs of each head, and joint directions.

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
    """Bulk tokens z, unit vectors k for the prongs and slopes, each (b, l, ...): l choices for each direction."""
    z = R * directions.new_tensor(LENGTHS)[:, None] * directions[:, None]
    G = slopes(attention, z)  # g^h at z, (b, l, h, d)
    if attention.heads > 1:  # the slope of the head that reads most strongly, and that of all together
        most = torch.linalg.vector_norm(G, dim=-1).argmax(-1)
        follow = torch.stack([_rows(G, most), G.sum(-2)], 2).flatten(1, 2)
        z, G = (part.repeat_interleave(2, 1) for part in (z, G))
    else:
        follow = G[:, :, 0]
    size = torch.linalg.vector_norm(follow, dim=-1, keepdim=True)
    return z, follow / torch.where(size > 0, size, 1), G


def _rows(x, places):
    """Of x (..., r, d) the rows at places (...), shape (..., d)."""
    return torch.take_along_dim(x, places[..., None, None], -2)[..., 0, :]


def _of_heads(attention, e):
    """W_O^h W_V^h e of each head, shape (b, h, m), of e (b, d)."""
    values = torch.einsum("hvd,bd->bhv", attention.value, e)
    return attention.combine(torch.diag_embed(values.mT).movedim(1, -1))


def _best_directions(attention, factors, off, e, *, steps):
    """Unit e off the columns of `off` (b, d, r) where |sum_h factors_h W_O W_V e| is large: power iteration."""
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

    with e orthogonal to all :math:`g^h = s W_K^\top (W_Q z + b_Q)`. In head h each of the bulk gives each prong the
    attention

    .. math:: q_h = \frac 1 {2 m + (n - 2 m)\, e^{-g^h \cdot (R c k - z)}} ,

    and moving the prongs by :math:`\pm k / \sqrt{2 m}` moves each of the bulk by the same vector, so that

    .. math:: \mathrm{Lip}_X(f) \ge \sqrt{2 m (n - 2 m)}\; R s\, \Big| \sum_h q_h (g^h \cdot k)\, W_O^h W_V^h e \Big| .

    Parameters
    ----------
    attention : Attention
        Any heads and biases, dot products, float64.
    n : int
        Tokens; fewer than 3, or of width 1, have no forks.
    R : float
        Radius, positive.
    directions : Tensor, shape (b, d)
        Unit vectors along which the bulk stands, at several lengths; k follows the slope of a head there, or of all.
    keep : int
        Most forks that are returned, of one direction each.
    seed : int
        Of the start of the search for e.

    Returns
    -------
    Shapes
        `stated` is the bound above without a mask, and for one head with one: with several masked heads, or as many
        heads as coordinates, an estimate.

    Notes
    -----
    Ours. With one head and no bias this is `fork_input`; there z = R v.

    Examples
    --------
    >>> f = Attention.from_matrices(-torch.eye(2).double(), torch.eye(2).double())
    >>> forks(f, 8, 2.0, bulk_directions(f), keep=1).tokens().shape
    torch.Size([1, 8, 2])
    """
    d = directions.shape[-1]
    if n < 3 or d < 2:  # no place for two prongs and a bulk
        none = directions.new_zeros(0, 3, dtype=torch.int64)
        return Shapes(directions.new_zeros(0, 3, d), none, directions.new_zeros(0))
    z, k, G = _bulks(attention, R, directions)
    choices = z.shape[1]
    z, k, G = z.flatten(0, 1), k.flatten(0, 1), G.flatten(0, 1)
    # e orthogonal to all g^h, so that both prongs get as much; k alone where as many heads as coordinates leave no room
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
    return Shapes(points, torch.stack([m, m, n - 2 * m], 1), stated).take(order)


class _Best(NamedTuple):
    """Of forks with given z, k, e (b, d): those of the best c and m."""

    stated: Tensor  # (b,)
    c: Tensor  # share of a prong along k, (b, 1)
    m: Tensor  # prongs on each side, (b,)
    factors: Tensor  # q_h (g^h . k), (b, h)


def _best_on_grid(attention, n, R, z, k, G, e):
    """The shares and numbers of prongs that state most, over a grid."""
    sides = torch.unique(torch.logspace(0, 1, 6, base=max(1, (n - 1) // 2), dtype=z.dtype, device="cpu").round()).to(z)
    c, m = (
        part.flatten()
        for part in torch.meshgrid(torch.arange(ANGLES, device="cpu").to(z) / ANGLES, sides, indexing="ij")
    )
    along, own = torch.einsum("bhd,bd->bh", G, k), torch.einsum("bhd,bd->bh", G, z)
    gaps = R * c[:, None] * along[:, None] - own[:, None]  # g^h . (R c k - z), (b, grid, h)
    q = 1 / (2 * m[:, None] + (n - 2 * m[:, None]) * torch.exp(-gaps))
    factors = q * along[:, None]  # q_h (g^h . k)
    each = _of_heads(attention, e)  # W_O W_V e; the square is that of their sum with these factors
    square = torch.einsum("bgh,bhi,bgi->bg", factors, each @ each.mT, factors)
    stated, at = (R * (2 * m * (n - 2 * m) * (1 - c**2) * square.clamp_min(0)).sqrt()).max(-1)
    return _Best(stated, c[at, None], m[at].long(), _rows(factors, at))


def two_clusters(attention: Attention, n: int, R: float, directions: Tensor, *, keep: int = 4) -> Shapes:
    r"""One token at R k, the first, and n - 1 at one place z.

    .. math:: \mathrm{Lip}_X(f) \ge \sqrt{n - 1}\; \Big| \sum_h q_h W_O^h W_V^h
        \big( (1 - q_h)(g^h \cdot k)(R k - z) + k \big) \Big|, \qquad
        q_h = \frac 1 {1 + (n - 1)\, e^{-g^h \cdot (R k - z)}},

    because moving the first token by k moves each of the others by that vector.

    Parameters
    ----------
    attention, n, R, directions, keep
        As for `forks`; n is 2 or more.

    Returns
    -------
    Shapes
        `stated` is the bound above without a mask, with one an estimate.

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
    r"""Plain heads that read like those of a map with all that transformers have, one for each of a few distances.

    At the distance m = i - j rotary logits are :math:`q_i^\top R_m^\top k_j`: the keys of that twin are
    :math:`R_m^\top W_K`. Norms become the scaling that they are for the longest rows of tokens of length 1; caps,
    relative positions, sinks and the biases of keys and values are left out. Nothing is claimed of the twins: what they
    suggest is measured with the map itself. Of a plain map, nothing but that map.

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
    """The plain heads with keys turned back by a few distances, from none to the largest."""
    far = (n if attention.window is None else min(n, attention.window)) - 1
    cos, sin = rotation(attention.frequencies, far + 1, attention.dtype)
    chosen = sorted({0, min(1, far), far // 2, far})
    return [plain.replace(key=turned(plain.key.mT, (cos[m], -sin[m])).mT) for m in chosen]


def _scaled(attention):
    """Queries with their biases, and keys, as norms scale the longest rows."""
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
