r"""Computed upper bounds on the three terms of the Jacobian at an input.

Block (i, j) of the Jacobian of multi-head attention, with :math:`z_{ij} = P_{ij}(v_j - o_i)`,
:math:`b_i = W_K^\top q_i` (the scale s is in q) and :math:`C_i = \sum_l P_{il} (v_l - o_i) k_l^\top`, is

.. math:: J_{ij} = \sum_h W_O^{(h)} \Big[ P_{ij} W_V + z_{ij} b_i^\top + \delta_{ij}\, s\, C_i W_Q \Big],

the terms of values, keys and queries. Norms here are those of :math:`J\,(E \otimes F)`, where :math:`E = I - S S^\top`
and :math:`F = I - Y Y^\top` remove some token directions and some feature directions (none, by default). Steps are
those of the proof in the book, notebooks/62_certified_bracket.py.
"""

from typing import NamedTuple

import torch

from lipnb.attention import RowJacobian
from lipnb.bounds.cholesky_certificates import Computed, Prover, largest_proved, sandwich
from lipnb.bounds.rounded_linearization import RoundedLinearization
from lipnb.bounds.rounding import MORE, RowErrors, orthogonality
from lipnb.checks import at_once
from lipnb.scaling import powers_of_two
from lipnb.spectral.upper_norms import UNIT, gamma, largest_singular, largest_singular_of_each, length, triangle

__all__ = ["Terms", "three_terms"]

DEAR = 5e8  # number of matrices times order^3 from which norms are proved by a factorisation, not computed
FEW = 4  # number of matrices proved together
LEADING = 4  # most token directions that the value term treats exactly
BALANCED = 4  # iterations that improve the weights of tokens
FARTHEST = 1e3  # largest ratio of weights of tokens
AT_ONCE = 16  # number of diagonal blocks whose spectral norms are computed together


class Terms(NamedTuple):
    """Upper bounds on the norms of the three terms, at one input.

    Attributes
    ----------
    query, key, value : Tensor, shape ()
        Norms of the Jacobian when only queries, only keys or only values change; up to rounding, which `certify` adds.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


def bases(at):
    """Orthonormal token directions, columns of (n, n), and feature directions, of (d, d), the most important first.

    S: joint right singular directions of the attention matrices, weighted by the size of their value maps. Y: the
    directions of the slopes b_i, weighted by the size of z_i, and of the query terms. Any orthonormal directions give
    valid bounds.
    """
    att = at.attention
    size = torch.linalg.matrix_norm(at.output) * torch.linalg.matrix_norm(att.value)
    S = torch.linalg.eigh(_unit(torch.einsum("h,hij,hil->jl", _unit(size) ** 2, at.Pt, at.Pt))).eigenvectors
    centred = at.value - at.value.mean(1, keepdim=True)
    reach = torch.einsum("hij,hjv->hi", at.Pt**2, _unit(centred) ** 2).sqrt()
    reach = reach * torch.linalg.matrix_norm(at.output)[:, None] * centred.abs().amax()
    b = (reach[..., None] * at.slope).flatten(0, 1)
    N = sum((M := at.query_term(rows)).flatten(0, 1).T @ M.flatten(0, 1) for rows in at.row_blocks())
    W = att.query.flatten(0, 1)
    Y = torch.linalg.eigh(_unit(b.T @ b + W.T @ N @ W)).eigenvectors
    return S.flip(1), Y.flip(1)


def _unit(tensor):
    """The tensor divided by its largest entry."""
    size = tensor.abs().amax()
    return tensor / torch.where(size > 0, size, 1)


@torch.no_grad()
def three_terms(at: RoundedLinearization, S: torch.Tensor | None = None, Y: torch.Tensor | None = None) -> Terms:
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
    root of :math:`\sum_{jh} (T_{ij}\, b_{ij} \cdot \varepsilon_j)^2`, where :math:`b_{ij}` is :math:`b_i`, or, where
    keys are turned or normalised, the like for token j; summed over i that is the square of one norm for
    each token j. Without S and Y the weights are nearly the best for Frobenius norms. If keys are one matrix times
    the tokens, one weight for all j is tried too, with Z E in place of Z. :math:`W_O W_V F = L_h M_h`. The value term
    is also bounded with some leading token directions treated exactly, and the smaller of the two bounds is kept.

    Parameters
    ----------
    at : RoundedLinearization
        Linearization of an attention at an input.
    S : Tensor, shape (n, r), optional
        Orthonormal token directions to leave out.
    Y : Tensor, shape (d, s), optional
        Orthonormal feature directions to leave out.

    Returns
    -------
    Terms
        Upper bounds up to rounding; `lipnb.certify` adds a bound on it, see `lipnb.bounds.rounding`.

    Examples
    --------
    >>> from lipnb import Attention
    >>> eye = torch.eye(2).double()
    >>> terms = three_terms(RoundedLinearization(Attention.from_matrices(eye, eye), eye))
    >>> [round(term.item(), 4) for term in terms]
    [0.3932, 0.3932, 1.0]
    """
    if not isinstance(at, RoundedLinearization):
        raise ValueError(
            f"three_terms needs an attention at its tokens, three_terms(RoundedLinearization(attention, x)), got "
            f"{type(at).__name__}."
        )
    if S is not None and S.shape[1] == at.n:
        return Terms(*[at.P.new_zeros(())] * 3)
    d = at.attention.width
    S = at.P.new_zeros(at.n, 0) if S is None else S
    Y = at.P.new_zeros(d, 0) if Y is None else Y
    norms = _norms(at.R, at.n)
    return Terms(_query(at, Y, norms), _key(at, S, Y, norms), _value(at, S, Y))


def _without(rows, Y):
    """`rows` (..., d) without their components along Y."""
    return rows - (rows @ Y) @ Y.T


def _norms(R, count):
    """The `Prover` or `Computed` for norms of R X, whichever is cheaper for `count` matrices X."""
    return Prover(R) if count * max(R.shape) ** 3 > DEAR and R.any() else Computed(R)


def _query(at, Y, norms):
    """Step 3: bound on the largest diagonal block."""
    W = torch.linalg.qr(_without(at.attention.query.flatten(0, 1), Y).mT, mode="r").R.mT  # (h k, p')
    if isinstance(norms, Prover) and not at.attention.joint_norm:
        return _largest_proved(at, W, norms)
    return _largest_block(at, lambda rows: at.query_term(rows) @ W)


def _largest_proved(at, W, prover):
    """Bound on the largest norm of R diag_h(C) W over all tokens, with blocks C (tokens, h, v, k) and W (h k, p')."""
    best, gram = W.new_zeros(()), W @ W.mT
    W_norms = length(W.unflatten(0, (at.heads, -1)), (-2, -1))  # Frobenius, of each head
    for rows in torch.arange(at.n, device=W.device).split(FEW):
        C = at.in_query_rows(rows, at.covariance(rows))
        # K = C (W W^T) C^T errs by gamma |C| |W| |W|^T |C|^T
        K_errors = 2 * gamma(W.shape[1] + 2 * C.shape[-1] + 16) * (length(C, (-2, -1)) * W_norms).square().sum(-1)
        best = prover.upper(sandwich(C, gram)[:, None], K_errors, at_least=best)
    return best


def _largest_block(at, blocks):
    """Largest norm of one matrix per token, in decreasing order of Frobenius norms, until no other can be larger."""
    frobenius = []
    for rows in at.row_blocks():
        N = blocks(rows)
        size = N.abs().amax()
        frobenius.append(size * torch.linalg.matrix_norm(_unit(N)) * (1 + gamma(N[0].numel() + 8)))
    frobenius = torch.cat(frobenius)
    best, order = frobenius.new_zeros(()), frobenius.argsort(descending=True)
    for some in order.split(AT_ONCE):
        if frobenius[some[0]] <= best:
            break
        best = torch.maximum(best, largest_singular_of_each(blocks(some)).max())
    return best


def _key(at, S, Y, norms):
    """Step 4: the smaller of two bounds, with one weight for each token j (its first half), and with one for all.

    The first cannot use S, and is left out where the second does; the second needs keys that are one matrix times the
    tokens.
    """
    found = []
    if S.shape[1] == 0 or not at.fixed_keys:
        found.append(_weighted(at, S[:, :0], Y, norms, each=True))
    if at.fixed_keys:
        found.append(_weighted(at, S, Y, norms, each=False))
    return min(found)


def _weighted(at, S, Y, norms, *, each):
    r"""Bound on the key term with weights T: the largest norm, over tokens j, of all rows (i, h) of this matrix.

    .. math:: \rho_i T^{(h)}_{ij}\, (F b^{(h)}_{ij})^\top = \rho_i T^{(h)}_{ij}\, q_i^\top D_j\, W_K F

    with D_j the derivative of key j in its row. With :math:`(W_K F)^\top = Q R` the norm is that of
    :math:`\rho_i T_{ij}\, q_i^\top D_j R^\top`, from the Gram matrices :math:`\sum_{ih} (\rho_i T_{ij})^2 D_j^\top q_i
    q_i^\top D_j` of small order. `each`: one weight for each token j; else one for all.
    """
    att = at.attention
    # the triangular factor R of the outputs is made of `output_width` rows
    lengths = at.heads_per_key * at.n + att.output_width + sum(at.R.shape) + sum(att.key.shape)
    gamma_n = gamma(16 * lengths + 256)
    T = _weights(at, Y, each, gamma_n)
    rho_T = T.movedim(1, 0) * _rho(at, T, S, norms, gamma_n)[:, None]  # rho_i T_ij, (h, i, j or 1)
    if at.hidden is not None and each:
        rho_T = rho_T.masked_fill(at.hidden, 0)
    unit = rho_T.amax()  # multiplied again in the last line
    squares = (rho_T / torch.where(unit > 0, unit, 1)).square()
    W = _without(att.key[:: at.heads_per_key].flatten(0, 1), Y)  # W_K F, (g k, d), each key once
    R = triangle(W.mT)
    norm = at.norms["key"]
    # a joint norm couples the blocks of all heads; with keys wider than tokens a norm may leave vectors that R nearly
    # annihilates
    joined = norm is not None and (norm.joint or len(W) > att.width)
    if joined:
        maps, c, factor = R.mT.unflatten(0, (-1, att.key_width)), None, torch.eye(len(R), device="cpu").to(R)
    else:
        # R X = (R / c)(c X), columns of similar size: small keys of large queries lose no digits, zero keys are
        # harmless
        maps, c = None, _powers(length(R, 0)).unflatten(0, (-1, att.key_width))  # c (g, k)
        factor = R * torch.where(c > 0, 1 / torch.where(c > 0, c, 1), 0).flatten()
    gram_errors, rows_error = _key_rounding(at, Y, squares, c, gamma_n)
    norms = _norms(factor, len(gram_errors))
    best, order = R.new_zeros(()), gram_errors.argsort(descending=True)
    each_token = len(R) ** 2 * (len(W) // att.key_width if joined else 1)  # entries of its Gram matrices
    for tokens in order.split(at_once(max(len(W) * att.key_width, each_token))):
        grams = _grams(at, squares[..., tokens], tokens, maps)
        grams = grams if joined else c[..., None] * grams * c[:, None]
        best = norms.upper(grams, gram_errors[tokens], at_least=best)
    return unit * (best + rows_error) * (1 + 8 * UNIT)


def _key_rounding(at, Y, squares, c, gamma_n):
    r"""Rounding of the Gram matrices, by token j, and of the rows :math:`\rho_i T_{ij} q_i^\top D_j W_K F` themselves.

    Both from :math:`\sum_{ih} (\rho_i T_{ij})^2 |q_i|^2 |X|^2`, where X is the factor after the queries in absolute
    values: :math:`D_j W_K F` for the rows, and for the Gram matrices if c is None, else c D_j. For the rows the sum is
    a square: its root counts.
    """
    errors = RowErrors(at, "key", at.key_tokens)
    projection = 1 + 2 * Y.shape[1] ** 0.5  # factor by which removing computed directions Y may stretch
    query_squares = length(at.query).square()[..., None] * squares  # |q_i|^2 (rho_i T_ij)^2
    in_token = projection * errors.absolute_in_token
    X = in_token if c is None else c.amax(-1).repeat_interleave(at.heads_per_key) * errors.absolute_in_row
    gram_errors = gamma_n * (X.square()[:, None, None] * query_squares).sum((0, 1))
    rows_squares = in_token.square()[:, None, None] * query_squares
    return gram_errors, gamma_n * rows_squares.sum((0, 1)).amax().sqrt()


def _powers(sizes):
    """The powers of two just above positive numbers, at least 2^-900; zero for zero."""
    return torch.where(sizes > 0, powers_of_two(sizes, least=-900), 0)


def _grams(at, squares, tokens, maps=None):
    r"""Gram matrices of the rows :math:`(\rho_i T_{ij}) q_i^\top D_j`, for these tokens j, in blocks (j, g, k, k).

    `squares`, (h, i, j or 1), are those of :math:`\rho_i T_{ij}`. With `maps`, matrices of keys (g, k, p), Gram
    matrices of the rows times these maps, (j, 1, p, p).
    """
    k, by_head = at.query.shape[-1], []
    for head_squares, query in zip(squares, at.query, strict=True):
        outer = (query[:, :, None] * query[:, None]).flatten(1)  # q_i q_i^T, (i, k k)
        by_head.append(head_squares.mT @ outer)  # (j, k k)
    grams = torch.stack(by_head).unflatten(0, (-1, at.heads_per_key)).sum(1).unflatten(-1, (k, k))  # (g, j, k, k)
    if at.fixed_keys:
        return grams.movedim(0, 1)
    shared, norm = slice(None, None, at.heads_per_key), at.norms["key"]
    norm = norm and norm._replace(weight=norm.weight[shared])
    D = RowJacobian(at.turn, norm, at.rows["key"][shared]).at(tokens)
    if maps is not None:
        D_maps = D.matrices(maps)  # D_j R^T, (g, j, k, p)
        return (D_maps.mT @ grams @ D_maps).sum(0)[:, None]
    for _ in range(2):  # G D, and D^T G D
        grams = D.transposed(grams.movedim(2, 0)).movedim(0, 3)
    return grams.movedim(0, 1)


def _weights(at, Y, each, gamma_n):
    r"""Positive weights T of :math:`z_{ij}`, (n, h, n), one for `each` token j, or (n, h, 1), one for all.

    Any are valid; nearly optimal for the Frobenius norms are roots of :math:`|W_O z_{ij}| / |b_i|`, times a number t_j
    for each token that makes the norms of its slopes alike.
    """
    output_norm = torch.linalg.matrix_norm(at.R.unflatten(1, (at.heads, -1)).movedim(1, 0), 2)[:, None, None]
    size = 3 * length(at.value).amax(-1)[:, None, None]
    z = at.capped_Pt * _gaps(at, size) + gamma_n * size * at.Pt  # |z_ij|, (h, i, j)
    if not each:
        z = length(z)[..., None]
    slope = length(_without(at.slope, Y))[..., None]
    if each and at.norms["key"] is not None:  # slopes at token j instead of token i
        gain = at.norms["key"].gain(at.rows["key"])[1].abs().amax(-1)
        slope = slope / gain[..., None] * gain[:, None]
    outputs, slope = _positive(output_norm * z, (0, 2), 1e-16), _positive(slope, (0, 1, 2), 1e-8)
    T = (outputs / slope).sqrt()
    if each:
        both = (output_norm * z * slope).sum(0)
        if at.hidden is not None:
            both = both.masked_fill(at.hidden, 0)
        t = both.new_ones(at.n)
        for _ in range(BALANCED):
            norms = t**2 * ((both / t**2).sum(1) @ both)
            t = (t / _positive(norms, 0, 1e-16) ** 0.25).clamp_max(FARTHEST)
        T = T * t
    size = (z / T).amax((0, 2), keepdim=True)
    return (T * torch.where(size > 0, size, 1)).movedim(0, 1)


def _gaps(at, size):
    """Approximate |v_j - o_i|, (h, n, n): from squares, whose root resolves at most half the digits."""
    squares = at.value.square().sum(-1)[:, None] + at.mean.square().sum(-1)[..., None] - 2 * at.mean @ at.value.mT
    # at most (1 - P) times the largest difference of values
    return torch.minimum(torch.maximum(squares.clamp_min(0).sqrt(), 1e-7 * size), size * (1 - at.P))


def _rho(at, T, S, norms, gamma_n):
    r"""Bounds (n,) on :math:`\rho_i = \|[W_O z_{ij} / T_{ij}]_{(j,h)} E\|` for weights T, (n, h, n or 1)."""
    size = 3 * length(at.value).amax(-1) * length(at.output, (-2, -1)) * (1 + 2 * S.shape[1] ** 0.5)
    rho = []
    for rows in at.row_blocks():
        Z = at.z(rows, T[rows])
        if S.shape[1]:
            Z = Z - torch.einsum("jr,ihrv->ihjv", S, torch.einsum("jr,ihjv->ihrv", S, Z))
        grams = Z.mT @ Z
        gram_errors = 2 * gamma(at.n + 8) * torch.diagonal(grams, dim1=2, dim2=3).sum((1, 2))  # gamma |Z|_F^2
        Z_rounding = gamma_n * length(size * length(at.Pt[:, rows].movedim(0, 1) / T[rows]))
        rho.append(norms.upper(grams, gram_errors) + Z_rounding)
    return torch.cat(rho)


def _positive(numbers, dim, least):
    """Numbers divided by the largest over these dimensions, at least `least`: weights must be positive."""
    top = numbers.amax(dim, keepdim=True)
    return (numbers / torch.where(top > 0, top, 1)).clamp_min(least)


def _value(at, S, Y):
    """Step 5, the smaller of two bounds: with P E of all heads, and with leading token directions treated exactly."""
    W = _without(at.attention.value, Y)  # W_V F
    L, M, LM_error = _balanced_factors(at.output, W)
    P = at.Pt - (at.Pt @ S) @ S.T
    kappa = largest_singular(P)

    def heads_together(kappa):
        root = kappa.sqrt()[:, None, None]
        left, right = (root * L).movedim(0, 1).flatten(1), (root * M).movedim(0, 1).flatten(1)
        return largest_singular(left) * largest_singular(right)

    size = torch.linalg.vector_norm(length(L, 1) * length(M, 1), dim=-1)  # of the singular values of L M^T
    leading = torch.linalg.eigh(torch.einsum("h,hij,hil->jl", _unit(size) ** 2, P, P)).eigenvectors.flip(1)
    V = leading[:, : max(1, min(LEADING, 2048 // at.attention.width))]
    # with T = sum_h P_h (x) L_h M_h and Q = V (V^T V)^(-1/2), orthonormal: |T|^2 <= |T Q|^2 + |T (I - Q Q^T)|^2, where
    # |T Q| <= |T V| / sqrt(1 - defect), and T (I - Q Q^T) = T (I - V V^T)(I - Q Q^T), as V^T (I - Q Q^T) = 0
    bound, defect = heads_together(kappa), orthogonality(V)
    if defect < 1:
        # P V and P - P V V^T err by at most gamma_{n+4} (1 + 2 |V|_F + |V|_F^2) |P|_F, of 4 columns 9 times: counted
        # by `columns` among the two paths of gamma_{16 n}
        others = heads_together(largest_singular(P - (P @ V) @ V.mT))
        bound = torch.minimum(bound, torch.hypot(_on_tokens(P @ V, L, M) / (1 - defect) ** 0.5, others))
    return (bound + MORE * (kappa * LM_error).sum()) * (1 + 16 * UNIT)


def _balanced_factors(output, W):
    r"""L (h, m, p) and M (h, d, p), columns of similar length, with :math:`W_O W_V F = L M^\top` up to the error, (h,).

    The :math:`M_h` of `three_terms` is the transpose.

    Nothing is assumed of the singular vectors: the error is that of the product, plus the rounding of its
    computation.
    """
    Q1, R1 = torch.linalg.qr(output)
    Q2, R2 = torch.linalg.qr(W.mT)
    U, sigma, Vh = torch.linalg.svd(R1 @ R2.mT, full_matrices=False)
    L, M = (Q1 @ U) * sigma.sqrt()[:, None], (Q2 @ Vh.mT) * sigma.sqrt()[:, None]
    v, p = W.shape[1], L.shape[-1]
    error = torch.stack([length(output[h] @ W[h] - L[h] @ M[h].mT, (0, 1)) for h in range(len(W))])
    WO, WV, L_norm, M_norm = (length(one, (-2, -1)) for one in (output, W, L, M))
    return L, M, MORE * (error + gamma(v + 4) * WO * WV + gamma(p + 4) * L_norm * M_norm)


def _on_tokens(columns, L, M):
    r"""Upper bound on the norm of :math:`\sum_h c_h \otimes L_h M_h^\top`; c (h, n, r), L (h, m, p), M (h, d, p).

    Block (a, b) of its Gram matrix is :math:`\sum_{hg} (c_h^\top c_g)_{ab}\, M_h L_h^\top L_g M_g^\top`.
    """
    (_, n, r), p = columns.shape, M.shape[-1]
    left, right = (one.movedim(0, 1).flatten(1) for one in (L, M))
    inner = left.mT @ left  # (h p, h p)
    blocks = {}
    for i in range(r):
        for j in range(i + 1):
            overlap = (columns[..., i] @ columns[..., j].mT).repeat_interleave(p, 0).repeat_interleave(p, 1)
            blocks[i, j] = right @ (overlap * inner) @ right.mT
            blocks[j, i] = blocks[i, j].mT
    gram = torch.cat([torch.cat([blocks[i, j] for j in range(r)], 1) for i in range(r)])
    size = (length(columns, 1) * (length(L, (1, 2)) * length(M, (1, 2)))[:, None]).sum(0)  # (r,)
    # in Frobenius norm the Gram matrix errs by gamma (sum_a size_a^2), size_a = sum_h |c_ha| |L_h| |M_h|
    gram_error = gamma(n + len(left) + 2 * left.shape[1] + 16) * size.square().sum()
    return (largest_proved(gram) + gram_error).sqrt() * (1 + 8 * UNIT)
