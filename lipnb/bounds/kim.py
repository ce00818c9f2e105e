"""Bounds of kim2021lipschitz on L2 attention with tied queries and keys, over all inputs."""

import math

import torch
from scipy.special import lambertw

from lipnb.bounds.norms import or_infinite
from lipnb.checks import count, number, real_tensor
from lipnb.spectral.upper_norms import largest_singular

__all__ = ["l2_growth", "l2_growth_sharp", "l2_upper", "l2_upper_sharp", "phi_inverse", "printed_l2_upper"]


def phi_inverse(y: float) -> float:
    r"""Inverse of :math:`\varphi(x) = x e^{x + 1}`, which grows like :math:`\log y - \log \log y`.

    .. math:: \varphi^{-1}(y) = W_0(y / e), \qquad
        \max_{s \ge 0} \frac{\sum_{j=1}^{n-1} s_j e^{-s_j}}{1 + \sum_{j=1}^{n-1} e^{-s_j}} = \varphi^{-1}(n - 1)

    Parameters
    ----------
    y : float
        At least 0; n - 1 for n tokens.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If y is not a finite number of at least 0.

    Notes
    -----
    kim2021lipschitz, Thm 3.2, with the Lambert function W. The maximum is attained where all :math:`s_j =
    \varphi^{-1}(n - 1) + 1`.

    Examples
    --------
    >>> x = phi_inverse(15)
    >>> round(x, 6), round(x * math.exp(x + 1), 6)
    (1.383462, 15.0)
    """
    y = number("y", y)
    if not 0 <= y < math.inf:
        raise ValueError(f"y must be a number of at least 0, got {y!r}.")
    return float(lambertw(y / math.e).real)


def l2_upper(query: torch.Tensor, value: torch.Tensor, output: torch.Tensor | None, n: int, p: float = 2) -> float:
    r"""Lipschitz constant of `Attention.l2` on all sequences of n tokens: the bound of the theorem.

    With :math:`c = 4 \varphi^{-1}(n - 1)` and heads of key width k,

    .. math::
        \mathrm{Lip}_2(F) \le \sqrt{\tfrac nk}\, (c + 1)
            \Big(\sum_h \|W_Q^h\|_2^4\, \|W_V^h\|_2^2\Big)^{1/2} \|W_O\|_2, \qquad
        \mathrm{Lip}_\infty(F) \le \Big(c + \tfrac 1{\sqrt k}\Big)
            \max_h \|W_Q^h\|_\infty \|W_Q^{h\top}\|_\infty\, \max_h \|W_V^h\|_\infty\, \|W_O\|_\infty .

    Parameters
    ----------
    query : Tensor, shape (h, k, d)
        Query matrices, also used as key matrices.
    value : Tensor, shape (h, v, d)
        Value matrices, as for `Attention.l2`.
    output : Tensor, shape (h, m, v), or None
        Output matrices; None for concatenated heads.
    n : int
        Number of tokens.
    p : {2, math.inf}
        Norm of all coordinates, for inputs and outputs.

    Returns
    -------
    float
        An upper bound on the global constant, unmasked and masked alike.

    Raises
    ------
    ValueError
        If p or n is out of range, or matrices do not fit together.

    Notes
    -----
    kim2021lipschitz, Thm 3.2, with the corrected exponent 4, see `printed_l2_upper`. Norms are exact, rounding aside.

    Examples
    --------
    >>> eye = torch.eye(2)[None]
    >>> round(l2_upper(eye, eye, None, 16), 4), round(l2_upper(eye, eye, None, 16, math.inf), 4)
    (18.4805, 6.241)
    """
    if number("p", p) not in (2, math.inf):
        raise ValueError(f"p must be 2 or math.inf, got {p!r}.")
    if p == 2:
        return l2_growth(n) * _heads(query, value, output, exponent=4)
    query, value, joined = _matrices(query, value, output)
    norms = [_infinity(matrix).max().item() for matrix in (value, joined)]
    growth = 4 * phi_inverse(count(n) - 1) + 1 / math.sqrt(query.shape[1])
    return growth * (_infinity(query) * _infinity(query.mT)).max().item() * math.prod(norms)


def l2_upper_sharp(
    query: torch.Tensor, value: torch.Tensor, output: torch.Tensor | None, n: int, masked: bool = True
) -> float:
    r"""Lipschitz constant of `Attention.l2` on all sequences of n tokens, Euclidean: a tighter bound.

    .. math:: \mathrm{Lip}_2(F) \le \tfrac 1{\sqrt k}\, g(n)
              \Big(\sum_h \|W_Q^h\|_2^4\, \|W_V^h\|_2^2\Big)^{1/2} \|W_O\|_2

    with g of `l2_growth_sharp`, of order :math:`n^{1/4} \sqrt{\log n}` where the theorem has
    :math:`\sqrt n \log n`.

    Parameters
    ----------
    query, value, output, n
        As for `l2_upper`.
    masked : bool
        As for `l2_growth_sharp`.

    Returns
    -------
    float
        An upper bound on the global constant, never above `l2_upper`.

    Examples
    --------
    >>> eye = torch.eye(2)[None]
    >>> round(l2_upper_sharp(eye, eye, None, 16), 4)
    6.8709
    """
    return l2_growth_sharp(n, masked) * _heads(query, value, output, exponent=4)


def printed_l2_upper(query: torch.Tensor, value: torch.Tensor, output: torch.Tensor | None, n: int) -> float:
    """Our reconstruction of the 2-norm bound as printed, with exponent 2 of the query norms: false if they exceed 1.

    Parameters
    ----------
    query, value, output, n
        As for `l2_upper`.

    Returns
    -------
    float
        Not a bound: it scales like the query matrices, and the constant like their squares.

    Examples
    --------
    >>> query, value = 3 * torch.eye(2)[None], torch.eye(2)[None]
    >>> round(l2_upper(query, value, None, 16) / printed_l2_upper(query, value, None, 16), 6)
    3.0
    """
    return l2_growth(n) * _heads(query, value, output, exponent=2)


def l2_growth(n: int) -> float:
    r"""Lipschitz constant of a head :math:`P X A`, A of norm 1, on n tokens, Euclidean: the bound of the theorem.

    .. math:: \sqrt n\, \big(4 \varphi^{-1}(n - 1) + 1\big)

    Parameters
    ----------
    n : int
        Number of tokens.

    Returns
    -------
    float
        An upper bound; times :math:`\|A\|_2 = \|W_Q\|_2^2 / \sqrt k` in general.

    Notes
    -----
    kim2021lipschitz, a step of the proof of Thm 3.2.

    Examples
    --------
    >>> round(l2_growth(16), 6)
    26.135384
    """
    return math.sqrt(count(n)) * (4 * phi_inverse(n - 1) + 1)


def l2_growth_sharp(n: int, masked: bool = True) -> float:
    r"""Tighter form of `l2_growth`, of the right order in n: each term of the Jacobian is bounded separately.

    .. math:: \sqrt T + 2 \sqrt{\tau\, \varphi^{-1}(n - 1)} + 2 \varphi^{-1}(n - 1)

    with bounds T on the total attention that a token gets, and :math:`\tau` on the same weighted by squared distances
    along a line: :math:`T = \sqrt n`,
    :math:`\tau = \min\big((n - 1)\, \varphi^{-1}(1), \sqrt{(n - 1) / 2}\big)` without a mask, and
    :math:`T = \min\big(\frac{n + 1}2, \sqrt{2 n - 1}\big)`,
    :math:`\tau = \min\big((n - 1)\, \varphi^{-1}(1), \sqrt{n - \frac32}\big)` with one.

    Parameters
    ----------
    n : int
        Number of tokens.
    masked : bool
        Whether it must hold for masked attention too; if not, it is smaller, by a factor of at most :math:`2^{1/4}`.

    Returns
    -------
    float
        An upper bound; times :math:`\|A\|_2` in general.

    Notes
    -----
    Proved on page 58 of the book, with tokens at which the constant has this order, :math:`n^{1/4} \sqrt{\log n}`.

    Examples
    --------
    >>> round(l2_growth_sharp(16), 6), round(l2_growth_sharp(16, masked=False), 6)
    (9.716987, 8.659873)
    """
    spread, near = phi_inverse(count(n) - 1), (n - 1) * phi_inverse(1)
    if masked:
        received, along = min((n + 1) / 2, math.sqrt(2 * n - 1)), min(near, math.sqrt(max(0.0, n - 1.5)))
    else:
        received, along = math.sqrt(n), min(near, math.sqrt((n - 1) / 2))
    return math.sqrt(received) + 2 * math.sqrt(along * spread) + 2 * spread


def _matrices(query, value, output):
    """Checked query, value and joined output matrices, float64: (h, k, d), (h, v, d), (m, h v)."""
    query, value = real_tensor("query", query, ("h", "k", "d")), real_tensor("value", value, ("h", "v", "d"))
    if len(query) != len(value) or query.shape[2] != value.shape[2]:
        raise ValueError(
            f"value must have shape ({len(query)}, v, {query.shape[2]}) to go with query, got {tuple(value.shape)}."
        )
    if output is None:
        return query.double(), value.double(), torch.eye(len(value) * value.shape[1], dtype=torch.float64, device="cpu")
    output = real_tensor("output", output, ("h", "m", "v"))
    return query.double(), value.double(), output.double().movedim(0, 1).flatten(1)


def _heads(query, value, output, exponent):
    """Factor of the weights in the Euclidean bounds."""
    query, value, joined = _matrices(query, value, output)
    heads = largest_singular(query) ** (exponent // 2) * largest_singular(value) / math.sqrt(query.shape[1])
    largest = heads.max()  # whose square may leave the range of float64
    together = largest * torch.linalg.vector_norm(heads / torch.where(largest > 0, largest, 1))
    return or_infinite((together * largest_singular(joined)).item())


def _infinity(matrix):
    """Largest absolute row sum of each matrix."""
    return matrix.abs().sum(-1).amax(-1)
