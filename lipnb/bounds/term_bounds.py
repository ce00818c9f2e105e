r"""The three terms of the Jacobian at an input, each as an upper bound that is computed, not searched for.

Block (i, j) of the Jacobian of multi-head attention, with :math:`z_{ij} = P_{ij}(v_j - o_i)`,
:math:`b_i = s W_K^\top q_i` and :math:`C_i = \sum_l P_{il} (v_l - o_i) k_l^\top`, is

.. math:: J_{ij} = \sum_h W_O^{(h)} \Big[ P_{ij} W_V + z_{ij} b_i^\top + \delta_{ij}\, s\, C_i W_Q \Big],

values, keys and queries. Here the norms are those of :math:`J\,(E \otimes F)`, where :math:`E = I - S S^\top` and
:math:`F = I - Y Y^\top` remove some token directions and some feature directions (none, by default).
"""

from typing import NamedTuple

import torch

from lipnb.attention import Local
from lipnb.bounds.cholesky_certificates import Computed, Prover, largest_proved, sandwich
from lipnb.bounds.norms import triangle
from lipnb.bounds.pieces import Pieces
from lipnb.bounds.rounding import UNIT, gamma, largest_singular, largest_singular_of_each, length
from lipnb.bounds.rounding_errors import RowErrors
from lipnb.checks import at_once
from lipnb.scaling import powers_of_two

__all__ = ["Pieces", "Terms", "bases", "three_terms"]

DEAR = 5e8  # matrices times order^3 from which norms are tested by a factorisation, not computed
FEW = 4  # of them tested together
LEADING = 4  # token directions, at most, that the value term treats exactly
BALANCED = 4  # times that weights of tokens are brought nearer to their best
FARTHEST = 1e3  # that one is from another
AT_ONCE = 16  # diagonal blocks whose spectral norm is computed together


class Terms(NamedTuple):
    """Upper bounds on the norms of the three terms, at one input.

    Attributes
    ----------
    query, key, value : Tensor, shape ()
        What moves when only the queries, only the keys, only the values do; up to rounding, which `certify` adds.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


def bases(pieces):
    """Orthonormal token directions, columns of (n, n), and feature directions, of (d, d), the weightiest first.

    S: the right singular directions of the attention matrices, each with the size of its value map. Y: of the slopes
    b_i, each with the size of its z_i, and of the query terms. Any orthonormal directions give valid bounds.
    """
    att = pieces.attention
    size = torch.linalg.matrix_norm(pieces.output) * torch.linalg.matrix_norm(att.value)
    S = torch.linalg.eigh(_unit(torch.einsum("h,hij,hil->jl", _unit(size) ** 2, pieces.Pt, pieces.Pt))).eigenvectors
    centred = pieces.values - pieces.values.mean(1, keepdim=True)
    reach = torch.einsum("hij,hjv->hi", pieces.Pt**2, _unit(centred) ** 2).sqrt()
    reach = reach * torch.linalg.matrix_norm(pieces.output)[:, None] * centred.abs().amax()
    b = (reach[..., None] * pieces.slopes).flatten(0, 1)
    N = sum((M := pieces.query_term(rows)).flatten(0, 1).T @ M.flatten(0, 1) for rows in pieces.some_rows())
    W = att.query.flatten(0, 1)
    Y = torch.linalg.eigh(_unit(b.T @ b + W.T @ N @ W)).eigenvectors
    return S.flip(1), Y.flip(1)


def _unit(tensor):
    """The tensor divided by its largest entry."""
    size = tensor.abs().amax()
    return tensor / torch.where(size > 0, size, 1)


@torch.no_grad()
def three_terms(pieces: Pieces, S: torch.Tensor | None = None, Y: torch.Tensor | None = None) -> Terms:
    r"""Upper bounds on the query, key and value terms of the Jacobian times :math:`E \otimes F`.

    .. math::
        \text{query: } \max_i \Big\|\sum_h s W_O C_i W_Q F\Big\|, \qquad
        \text{key: } \max_j \Big\|\big[\rho_i T^{(h)}_{ij} F b^{(h)}_{ij}\big]_{(i,h)}\Big\|,

    .. math::
        \text{value: } \Big\|\sum_h \kappa_h L_h L_h^\top\Big\|^{1/2} \Big\|\sum_h \kappa_h M_h^\top M_h\Big\|^{1/2},
        \quad \kappa_h = \|P^{(h)} E\|.

    For any positive weights T, with :math:`\rho_i = \|[W_O z_{ij} / T_{ij}]_{(j,h)}\|`, changes
    :math:`\varepsilon_j` of tokens move output i by
    :math:`\sum_{jh} W_O z_{ij} / T_{ij} \cdot T_{ij}\, b_{ij} \cdot \varepsilon_j`, at most :math:`\rho_i` times the
    root of :math:`\sum_{jh} (T_{ij}\, b_{ij} \cdot \varepsilon_j)^2`; summed over i that is the square of one norm for
    each token j. Without S and Y the weights are nearly the best for Frobenius norms. Where keys are one matrix times
    the tokens, one weight for all j is tried too, with Z E for Z. :math:`W_O W_V F = L_h M_h`. The value term is also
    bounded with some leading token directions treated exactly, and the smaller of the two bounds is kept.

    Parameters
    ----------
    pieces : Pieces
        Of an attention and an input.
    S : Tensor, shape (n, r), optional
        Orthonormal token directions to leave out.
    Y : Tensor, shape (d, s), optional
        Orthonormal feature directions to leave out.

    Returns
    -------
    Terms
        Upper bounds up to rounding; `lipnb.certify` adds what that may be, see `lipnb.bounds.rounding_errors`.

    Examples
    --------
    >>> from lipnb import Attention
    >>> eye = torch.eye(2).double()
    >>> terms = three_terms(Pieces(Attention.from_matrices(eye, eye), eye))
    >>> [round(term.item(), 4) for term in terms]
    [0.3932, 0.3932, 1.0]
    """
    if S is not None and S.shape[1] == pieces.n:
        return Terms(*[pieces.P.new_zeros(())] * 3)
    d = pieces.attention.width
    S = pieces.P.new_zeros(pieces.n, 0) if S is None else S
    Y = pieces.P.new_zeros(d, 0) if Y is None else Y
    norms = _norms(pieces.R, pieces.n)
    return Terms(_query(pieces, Y, norms), _key(pieces, S, Y, norms), _value(pieces, S, Y))


def _without(rows, Y):
    """`rows` (..., d) with the directions Y taken out."""
    return rows - (rows @ Y) @ Y.T


def _norms(R, count):
    """What bounds norms of R X, for so many X."""
    return Prover(R) if count * max(R.shape) ** 3 > DEAR and R.any() else Computed(R)


def _query(pieces, Y, norms):
    """The largest diagonal block."""
    W = torch.linalg.qr(_without(pieces.attention.query.flatten(0, 1), Y).mT, mode="r").R.mT  # (h k, p')
    if isinstance(norms, Prover) and not pieces.attention.joint_norm:
        return _largest_tested(pieces, W, norms)
    return _largest_block(pieces, lambda rows: pieces.query_term(rows) @ W)


def _largest_tested(pieces, W, tested):
    """Bound on the largest norm of R diag_h(C) W over all tokens, with blocks C (tokens, h, v, k) and W (h k, p')."""
    best, gram = W.new_zeros(()), W @ W.mT
    heads = length(W.unflatten(0, (pieces.heads, -1)), (-2, -1))
    for rows in torch.arange(pieces.n, device=W.device).split(FEW):
        C = pieces.pulled(rows, pieces.covariance(rows))
        lost = gamma(W.shape[1] + 2 * C.shape[-1] + 16) * (length(C, (-2, -1)) * heads).square().sum(-1)
        best = tested.upper(sandwich(C, gram)[:, None], 2 * lost, together=best)
    return best


def _largest_block(pieces, blocks):
    """Largest norm of one matrix for each token, in the order of Frobenius norms until no later one can be larger."""
    frobenius = []
    for rows in pieces.some_rows():
        N = blocks(rows)
        size = N.abs().amax()
        frobenius.append(size * torch.linalg.matrix_norm(_unit(N)) * (1 + gamma(N[0].numel() + 2)))
    frobenius = torch.cat(frobenius)
    best, order = frobenius.new_zeros(()), frobenius.argsort(descending=True)
    for some in order.split(AT_ONCE):
        if frobenius[some[0]] <= best:
            break
        best = torch.maximum(best, largest_singular_of_each(blocks(some)).max())
    return best


def _key(pieces, S, Y, norms):
    """One weight for all tokens j, where keys are one matrix times the tokens; one for each, where S mixes none."""
    alike, each = pieces.fixed_keys, S.shape[1] == 0 or not pieces.fixed_keys
    found = [_weighted(pieces, S, Y, norms, alike=True)] if alike else []
    return min([_weighted(pieces, S[:, :0], Y, norms, alike=False), *found] if each else found)


def _weighted(pieces, S, Y, norms, *, alike):
    r"""Bound on the key term with weights T: the largest norm, over tokens j, of all rows (i, h) of this matrix.

    .. math:: \rho_i T^{(h)}_{ij}\, (F b^{(h)}_{ij})^\top = \rho_i T^{(h)}_{ij}\, q_i^\top D_j\, W_K F

    with D_j the derivative of key j in its row. With :math:`(W_K F)^\top = Q R` the norm is that of
    :math:`\rho_i T_{ij}\, q_i^\top D_j R^\top`, from the Gram matrices :math:`\sum_{ih} (\rho_i T_{ij})^2 D_j^\top q_i
    q_i^\top D_j` of small order.
    """
    att, errors = pieces.attention, RowErrors(pieces, "key", pieces.key_tokens)
    gamma_n = gamma(16 * (pieces.times * pieces.n + sum(pieces.R.shape) + sum(att.key.shape)) + 256)
    weights = _weights(pieces, Y, alike, gamma_n)
    factors = weights.movedim(1, 0) * _rho(pieces, weights, S, norms, gamma_n)[:, None]  # rho_i T_ij, (h, i, j or 1)
    if pieces.hidden is not None and not alike:
        factors = factors.masked_fill(pieces.hidden, 0)
    unit = factors.amax()  # put back in the last line
    squares = (factors / torch.where(unit > 0, unit, 1)).square()
    row_squares = length(pieces.query).square()[..., None] * squares  # |q_i|^2 (rho_i T_ij)^2
    projection = 1 + 2 * Y.shape[1] ** 0.5  # by which computed directions Y may stretch what they are taken out of
    keys = _without(att.key[:: pieces.times].flatten(0, 1), Y)  # W_K F, (g k, d), each key once
    R = triangle(keys.mT)
    norm = pieces.norms["key"]
    # a norm of all heads joins their blocks; one of keys wider than tokens may leave what R sends to nearly nothing
    joined = norm is not None and (norm.joint or len(keys) > att.width)
    maps = R.mT.unflatten(0, (-1, att.key_width)) if joined else None
    # R X = (R / c)(c X), columns alike in size: small keys of large queries cost no digits, zero keys nothing
    c = _powers(length(R, 0)).unflatten(0, (-1, att.key_width))  # (g, k)
    inverse = torch.where(c > 0, 1 / torch.where(c > 0, c, 1), 0).flatten()
    # rounding of the Gram matrices, by token j; and of the rows themselves, from the keys' own errors
    stretch = projection * errors.whole if joined else c.amax(-1).repeat_interleave(pieces.times) * errors.absolute
    gram_errors = gamma_n * (stretch.square()[:, None, None] * row_squares).sum((0, 1))
    key_errors = (projection * errors.whole).square()[:, None, None] * row_squares
    rows_error = gamma_n * key_errors.sum((0, 1)).amax().sqrt()
    norms = _norms(torch.eye(len(R), device="cpu").to(R) if joined else R * inverse, len(gram_errors))
    best, order = R.new_zeros(()), gram_errors.argsort(descending=True)
    for some in order.split(at_once(max(len(keys) * att.key_width, len(R) ** 2 * (len(c) if joined else 1)))):
        grams = _grams(pieces, squares[..., some], some, maps)
        grams = grams if joined else c[..., None] * grams * c[:, None]
        best = norms.upper(grams, gram_errors[some], together=best)
    return unit * (best + rows_error) * (1 + 8 * UNIT)


def _powers(sizes):
    """The powers of two next to positive numbers, 2^-900 at least, and zero for zero."""
    return torch.where(sizes > 0, powers_of_two(sizes, least=-900), 0)


def _grams(pieces, reach, tokens, maps=None):
    r"""Gram matrices of :math:`R_j^\top q_i`, times the root of `reach`, for these tokens j: blocks (j, g, k, k).

    With `maps`, the matrices of keys (g, k, p): of the slopes, (j, 1, p, p).
    """
    k, found = pieces.query.shape[-1], []
    for one, asking in zip(reach, pieces.query, strict=True):
        found.append(one.mT @ (asking[:, :, None] * asking[:, None]).flatten(1))  # (j, k k)
    grams = torch.stack(found).unflatten(0, (-1, pieces.times)).sum(1).unflatten(-1, (k, k))  # (g, j, k, k)
    if pieces.fixed_keys:
        return grams.movedim(0, 1)
    shared, norm = slice(None, None, pieces.times), pieces.norms["key"]
    norm = norm and norm._replace(weight=norm.weight[shared])
    local = Local(pieces.turn, norm, pieces.rows["key"][shared]).at(tokens)
    if maps is not None:
        moved = local.matrices(maps)  # (g, j, k, p)
        return (moved.mT @ grams @ moved).sum(0)[:, None]
    for _ in range(2):  # G D, and D^T G D
        grams = local.transposed(grams.movedim(2, 0)).movedim(0, 3)
    return grams.movedim(0, 1)


def _weights(pieces, Y, alike, gamma_n):
    r"""Positive weights T of :math:`z_{ij}`, (n, h, n), or (n, h, 1) where they are alike for all j.

    Any are valid; nearly optimal for the Frobenius norms are roots of :math:`|W_O z_{ij}| / |b_i|`, times a number for
    each token j that makes the norms of its slopes alike.
    """
    R = pieces.R.unflatten(1, (pieces.heads, -1))
    alone = torch.linalg.matrix_norm(R.movedim(1, 0), 2)[:, None, None]
    values, means = pieces.values, pieces.means
    apart = values.square().sum(-1)[:, None] + means.square().sum(-1)[..., None] - 2 * means @ values.mT
    size = 3 * length(values).amax(-1)[:, None, None]
    # |v_j - o_i| is at most (1 - P) times what values differ by; the root resolves no more than half the digits
    most = size * (1 - pieces.P)
    apart = torch.minimum(torch.maximum(apart.clamp_min(0).sqrt(), 1e-7 * size), most)
    long = pieces.steep_t * apart + gamma_n * size * pieces.Pt  # (h, i, j)
    if alike:
        long = length(long)[..., None]
    slope = length(_without(pieces.slopes, Y))[..., None]
    if not alike and pieces.norms["key"] is not None:  # slopes at token j in place of token i
        gain = pieces.norms["key"].gain(pieces.rows["key"])[1].abs().amax(-1)
        slope = slope / gain[..., None] * gain[:, None]
    moved, slope = _positive(alone * long, (0, 2), 1e-16), _positive(slope, (0, 1, 2), 1e-8)
    weights = (moved / slope).sqrt()
    if not alike:
        both = (alone * long * slope).sum(0)
        if pieces.hidden is not None:
            both = both.masked_fill(pieces.hidden, 0)
        t = both.new_ones(pieces.n)
        for _ in range(BALANCED):
            found = t**2 * ((both / t**2).sum(1) @ both)
            t = (t / _positive(found, 0, 1e-16) ** 0.25).clamp_max(FARTHEST)
        weights = weights * t
    size = (long / weights).amax((0, 2), keepdim=True)
    return (weights * torch.where(size > 0, size, 1)).movedim(0, 1)


def _rho(pieces, weights, S, norms, gamma_n):
    """rho_i of these weights, (n,)."""
    size = 3 * length(pieces.values).amax(-1) * length(pieces.output, (-2, -1)) * (1 + 2 * S.shape[1] ** 0.5)
    found = []
    for rows in pieces.some_rows():
        Z, T = pieces.spread(rows, weights[rows]), weights[rows]
        if S.shape[1]:
            Z = Z - torch.einsum("jr,ihrv->ihjv", S, torch.einsum("jr,ihjv->ihrv", S, Z))
        grams = Z.mT @ Z
        lost = 2 * gamma(pieces.n + 8) * torch.diagonal(grams, dim1=2, dim2=3).sum((1, 2))
        rounding = gamma_n * length(size * length(pieces.Pt[:, rows].movedim(0, 1) / T))
        found.append(norms.upper(grams, lost) + rounding)
    return torch.cat(found)


def _positive(numbers, dim, least):
    """Numbers over the largest of these dimensions, and kept away from zero: weights must be positive."""
    top = numbers.amax(dim, keepdim=True)
    return (numbers / torch.where(top > 0, top, 1)).clamp_min(least)


def _value(pieces, S, Y):
    """Two ways, the smaller: all heads' P E at once, and that after the leading token directions."""
    att = pieces.attention
    W = _without(att.value, Y)
    # W_O W_V F = L M with balanced factors, through triangular factors of both
    Q1, R1 = torch.linalg.qr(pieces.output)
    Q2, R2 = torch.linalg.qr(W.mT)
    U, sigma, Vh = torch.linalg.svd(R1 @ R2.mT, full_matrices=False)
    L, M = (Q1 @ U) * sigma.sqrt()[:, None], (Q2 @ Vh.mT) * sigma.sqrt()[:, None]  # (h, m, p), (h, d, p)
    P = pieces.Pt - (pieces.Pt @ S) @ S.T

    def heads_together(P):
        root = largest_singular(P).sqrt()[:, None, None]
        left, right = (root * L).movedim(0, 1).flatten(1), (root * M).movedim(0, 1).flatten(1)
        return largest_singular(left) * largest_singular(right)

    size = torch.linalg.matrix_norm(sigma[..., None], 2)
    leading = torch.linalg.eigh(torch.einsum("h,hij,hil->jl", _unit(size) ** 2, P, P)).eigenvectors.flip(1)
    leading = leading[:, : max(1, min(LEADING, 2048 // att.width))]
    split = torch.hypot(_exactly(P @ leading, L, M), heads_together(P - (P @ leading) @ leading.mT))
    return torch.minimum(heads_together(P), split) * (1 + 16 * UNIT)


def _exactly(columns, L, M):
    r"""Norm of :math:`\sum_h c_h \otimes L_h M_h^\top`, from above; columns c (h, n, r), L (h, m, p), M (h, d, p).

    Block (a, b) of its Gram matrix is :math:`\sum_{hg} (c_h^\top c_g)_{ab}\, M_h L_h^\top L_g M_g^\top`.
    """
    (_, n, r), p = columns.shape, M.shape[-1]
    left, right = (one.movedim(0, 1).flatten(1) for one in (L, M))
    inner = left.mT @ left  # (h p, h p)
    blocks = {}
    for i in range(r):
        for j in range(i + 1):
            meet = (columns[..., i] @ columns[..., j].mT).repeat_interleave(p, 0).repeat_interleave(p, 1)
            blocks[i, j] = right @ (meet * inner) @ right.mT
            blocks[j, i] = blocks[i, j].mT
    gram = torch.cat([torch.cat([blocks[i, j] for j in range(r)], 1) for i in range(r)])
    size = (length(columns, 1) * (length(L, (1, 2)) * length(M, (1, 2)))[:, None]).sum(0)  # (r,)
    lost = gamma(n + len(left) + 2 * left.shape[1] + 16) * size.square().sum()
    return (largest_proved(gram) + lost).sqrt() * (1 + 8 * UNIT)
