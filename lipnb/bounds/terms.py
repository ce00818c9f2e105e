r"""The three terms of the Jacobian at an input, each as an upper bound that is computed, not searched for.

Block (i, j) of the Jacobian of multi-head attention, with :math:`z_{ij} = P_{ij}(v_j - o_i)`,
:math:`b_i = s W_K^\top q_i` and :math:`C_i = \sum_l P_{il} (v_l - o_i) k_l^\top`, is

.. math:: J_{ij} = \sum_h W_O^{(h)} \Big[ P_{ij} W_V + z_{ij} b_i^\top + \delta_{ij}\, s\, C_i W_Q \Big],

values, keys and queries. Here the norms are those of :math:`J\,(E \otimes F)`, where :math:`E = I - S S^\top` and
:math:`F = I - Y Y^\top` remove some token directions and some feature directions (none, by default).
"""

from typing import NamedTuple

import torch

from lipnb.bounds.pieces import Pieces
from lipnb.bounds.rounding import UNIT, gamma, largest_singular, largest_singular_of_each, length
from lipnb.bounds.rows import RowErrors
from lipnb.bounds.tested import Prover, sandwich

__all__ = ["Pieces", "Terms", "bases", "three_terms"]

LOT = 2**24  # entries of the rows that choose together how their norms are bounded, whatever fits in memory
DEAR = 1.5e10  # matrices times order^3 from which norms are tested by a factorisation, not computed
FEW = 4  # of them tested together
AT_ONCE = 16  # diagonal blocks whose spectral norm is computed together


class Terms(NamedTuple):
    """Upper bounds on the norms of the three terms, at one input.

    Attributes
    ----------
    query, key, value : Tensor, shape ()
        What moves when only the queries, only the keys, only the values do.
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
        \text{key: } \Big\|\big[\rho_i w_i^{(h)} F b^{(h)}_i\big]_{(i,h)}\Big\|,

    .. math::
        \text{value: } \Big\|\sum_h \kappa_h L_h L_h^\top\Big\|^{1/2} \Big\|\sum_h \kappa_h M_h^\top M_h\Big\|^{1/2},
        \quad \kappa_h = \|P^{(h)} E\|.

    Here :math:`\rho_i = \|[W_O Z_i^\top E / w_i^{(h)}]_h\|` for any positive weights w, nearly
    :math:`w^2 = \|W_O Z_i^\top E\| / \|F b_i\|`; and :math:`W_O W_V F = L_h M_h`. The value term is also bounded with
    the leading token direction treated exactly, and the smaller of the two bounds is kept.

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
        Upper bounds up to rounding; `lipnb.certify` adds what that may be, see `lipnb.bounds.accuracy`.

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
    return Terms(_query(pieces, Y), _key(pieces, S, Y), _value(pieces, S, Y))


def _without(rows, Y):
    """`rows` (..., d) with the directions Y taken out."""
    return rows - (rows @ Y) @ Y.T


def _query(pieces, Y):
    """The largest diagonal block."""
    W = torch.linalg.qr(_without(pieces.attention.query.flatten(0, 1), Y).mT, mode="r").R.mT  # (h k, p')
    if _dear(pieces.n, pieces.R.shape[1]) and not pieces.attention.joint_norm:
        return _largest_tested(pieces, lambda rows: pieces.pulled(rows, pieces.covariance(rows)), W, Prover(pieces.R))
    return _largest_block(pieces, lambda rows: pieces.query_term(rows) @ W)


def _dear(count, order):
    """Whether so many matrices of this order are better tested than multiplied."""
    return count * order**3 > DEAR


def _largest_tested(pieces, inner, W, tested):
    """Bound on the largest norm of R diag_h(C) W over all tokens, with blocks C (tokens, h, a, k) and W (h k, p')."""
    best, gram = W.new_zeros(()), W @ W.mT
    heads = None
    for rows in torch.arange(pieces.n, device=W.device).split(FEW):
        C = inner(rows)
        heads = length(W.unflatten(0, (C.shape[1], -1)), (-2, -1)) if heads is None else heads
        lost = gamma(W.shape[1] + 2 * C.shape[-1] + 16) * (length(C, (-2, -1)) * heads).square().sum(-1)
        best = tested.upper(sandwich(C, gram), 2 * lost, together=best)
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


def _key(pieces, S, Y):
    """Rows scaled by rho_i w_ih, stacked: of the slopes of all tokens, or for one token after the other."""
    b = _without(pieces.slopes, Y)
    # what the arithmetic on the way to b loses, before the weights w: (n, h)
    few = gamma(16 * sum(pieces.R.shape) + 16 * sum(b.shape[1:]) + 256)
    if pieces.fixed_keys:
        lost = (1 + 2 * Y.shape[1] ** 0.5) * length(pieces.attention.key, (-2, -1)) * length(pieces.query).T
        reach, _ = _reaches(pieces, S, length(b).T, few)
        stacked = reach[..., None] * b.movedim(0, 1)
        return largest_singular(stacked.flatten(0, 1)) + length(few * reach * lost, (0, 1))
    reach, near = _reaches(pieces, None, length(b).T, few)
    reach = reach[..., None] * near  # (i, h, j)
    if pieces.hidden is not None:
        reach = reach.masked_fill(pieces.hidden[:, None], 0)
    few = few + gamma(16 * pieces.keys.shape[-1])
    whole = RowErrors(pieces, "key", pieces.key_tokens).whole
    lost = (1 + 2 * Y.shape[1] ** 0.5) * whole * length(pieces.query).T
    more = length(few * reach * lost[..., None], (0, 1)).amax()
    shared = slice(None, None, pieces.times)  # one key for several heads
    keys = pieces.attention.key
    W = torch.linalg.qr(_without(keys[shared].flatten(0, 1), Y).mT, mode="r").R.mT  # (g k, p')

    def rows_at(tokens):
        """The queries times `reach`, as they meet the keys of these tokens j: (g, j, a, k)."""
        rows = reach[..., tokens].permute(1, 2, 0)[..., None] * pieces.query[:, None]  # (h, j, i, k)
        rows = rows.unflatten(0, (-1, pieces.times)).movedim(1, 2).flatten(2, 3)
        return torch.linalg.qr(rows, mode="r").R if rows.shape[-2] > rows.shape[-1] else rows

    def turned_back(tokens):
        return pieces.local[1].at(tokens).transposed(rows_at(tokens).movedim(2, 0)).permute(2, 1, 0, 3)

    if _dear(pieces.n, len(W)) and pieces.norms["key"] is None:
        a = min(len(keys) // len(keys[shared]) * pieces.n, keys.shape[1])
        one = torch.eye(len(W) // keys.shape[1] * a).to(W)
        return _largest_tested(pieces, turned_back, W, Prover(one)) + more
    whole = torch.linalg.qr(_without(keys.flatten(0, 1), Y).mT, mode="r").R.mT.unflatten(0, keys.shape[:2])

    def slopes_at(tokens):
        maps = pieces.local[1].at(tokens).matrices(whole)[shared]
        return (rows_at(tokens) @ maps).movedim(0, 1).flatten(1, 2)

    return _largest_block(pieces, slopes_at) + more


def _reaches(pieces, S, reached, few):
    """The products of rho_i and w_ih, (n, h), and weights of tokens j beside them, (n, h, n): all one given S.

    Without S, :math:`z_{ij}` is divided by a weight near the fourth root of its length, and b_ij multiplied by it.
    """
    R = pieces.R.unflatten(1, (pieces.heads, -1))
    alone = torch.linalg.matrix_norm(R.movedim(1, 0), 2)
    directions = 0 if S is None else S.shape[1]
    size = 3 * length(pieces.values).amax(-1) * length(pieces.output, (-2, -1)) * (1 + 2 * directions**0.5)
    found, nearness = [], []
    lot = min(pieces.n, max(1, LOT // pieces.entries))
    tested = Prover(pieces.R) if _dear(pieces.n, pieces.R.shape[1]) else None
    for rows in pieces.some_rows():
        Z, P, near = pieces.spread(rows), pieces.Pt[:, rows].movedim(0, 1), None
        if S is None:
            long = torch.linalg.vector_norm(Z, dim=-1)
            near = _positive(long / _positive(long.amax(-1, keepdim=True))) ** 0.25
            Z, P = Z / near[..., None], P / near
            nearness.append(near)
        else:
            Z = Z - torch.einsum("jr,ihrv->ihjv", S, torch.einsum("jr,ihjv->ihrv", S, Z))
        factor = torch.linalg.qr(Z, mode="r").R.mT
        reach = torch.linalg.matrix_norm(factor) * alone  # (rows, h): any positive numbers do
        beside = reached[rows] if near is None else reached[rows] * near.square().mean(-1).sqrt()
        w = _positive(reach).sqrt() / _positive(beside).sqrt()
        # |[W_O Z^T / w]|: the same after Z^T is replaced by its triangular factor
        factor = factor / w[..., None, None]
        if tested is None:
            rho = largest_singular_of_each(torch.einsum("phv,ihvu->iphu", R, factor).flatten(2), lot)
        else:
            rho = torch.cat([_tested(tested, some) for some in factor.split(FEW)])
        rho = rho + few * length(size * length(P) / w)
        found.append(rho[:, None] * w)
    return torch.cat(found), torch.cat(nearness) if nearness else None


def _tested(tested, factors):
    """Norms of R diag_h(F), from above, of blocks F (c, h, v, u)."""
    c, h, v, _ = factors.shape
    K, heads = factors.new_zeros(c, h, v, h, v), torch.arange(h, device=factors.device)
    K[:, heads, :, heads] = (factors @ factors.mT).movedim(1, 0)
    lost = gamma(factors.shape[-1] + 8) * length(factors, (-2, -1)).square().sum(-1)
    return tested.upper(K.view(c, h * v, h * v), 2 * lost)


def _positive(numbers):
    """Numbers kept away from zero, relative to the largest: weights must be positive."""
    top = numbers.amax()
    return numbers.clamp_min(1e-8 * torch.where(top > 0, top, 1))


def _value(pieces, S, Y):
    """Two ways, the smaller: all heads' P E at once, and that after the leading token direction."""
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

    best = heads_together(P)
    size = torch.linalg.matrix_norm(sigma[..., None], 2)
    lead = torch.linalg.eigh(torch.einsum("h,hij,hil->jl", _unit(size) ** 2, P, P)).eigenvectors[:, -1:]
    column = (P @ lead).flatten(1)  # (h, n): sum_h p_h (x) W_h has the Gram matrix of R_p (x) W
    T = torch.linalg.qr(column.T, mode="r").R  # (p, h)
    exact = largest_singular(torch.einsum("th,hma,hda->tmd", T, L, M).flatten(0, 1))
    return torch.minimum(best, torch.hypot(exact, heads_together(P - (P @ lead) @ lead.T))) * (1 + 16 * UNIT)
