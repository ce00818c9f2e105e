"""Local bounds of yudin2025attention from the attention matrix at the input, and with the norm of the softmax."""

import math

import torch

from lipnb.attention import Attention
from lipnb.bounds.norms import head_norms, or_infinite, plain_heads
from lipnb.checks import as_double, number
from lipnb.spectral.upper_norms import gamma, largest_singular, triangle

__all__ = ["without_query_bias", "yudin_upper"]

SUM = 2**-8  # allowed excess of sums of probabilities: rounding in bfloat16
HALVINGS = 60  # halvings of the interval of the softmax norm: to the last digit of float64


def attention_at(att, x):
    """Attention matrices (..., h, n, n) at tokens, and :math:`A x_i + c` in coordinates that preserve lengths."""
    query, key, _ = att.project(x)
    return att.probabilities_of(query, key), query @ triangle(att.key.mT).mT  # |W_K^T q| = |R q|


def g_1(P):
    """The :math:`g_1` of each row, from its two largest entries; with one token the second counts as 0."""
    first, second = torch.nn.functional.pad(P, (0, 1)).topk(2, dim=-1).values.unbind(-1)
    return first * (1 - first + second)


def yudin(P, rows, tokens, A_norm, keys, V_norm):
    """Both forms for heads: bounds `rows` on the softmax, norms of X and A, of the matrix of A x_i + c, and of V."""
    return V_norm * (largest_singular(P) + rows.amax(-1) * tokens * (tokens * A_norm + keys))


@torch.no_grad()
def yudin_upper(attention: Attention, x: torch.Tensor) -> torch.Tensor:
    r"""Local Lipschitz constant of attention at an input: upper bound from the two largest probabilities of each row.

    .. math::
        \|D_X f\|_2 \le \sum_h \|W_O^{(h)} W_V^{(h)}\|_2 \Big(\|P^{(h)}\|_2
            + 2 \|X\|_2^2 \|A^{(h)}\|_2 \max_i g_1(P^{(h)}_{i\cdot})\Big), \qquad
        g_1(p) = p_{(1)} (1 - p_{(1)} + p_{(2)}),

    with :math:`p_{(1)} \ge p_{(2)}` the two largest entries and :math:`A = K^\top Q / \sqrt k`.

    Parameters
    ----------
    attention : Attention
        Heads without query bias, masked or not. The sum over heads is the triangle inequality.
    x : Tensor, shape (..., n, d)
        Tokens; leading dimensions are a batch.

    Returns
    -------
    Tensor, shape of the batch
        An upper bound on the norm, float64.

    Raises
    ------
    ValueError
        As `Attention.check_input`; if the map has a nonzero query bias, L2 scores or features other than shared keys.

    Notes
    -----
    yudin2025attention, Thm 3 and Cor. 1, for one head. Biases of keys and values change no derivative.

    Examples
    --------
    >>> f = Attention.from_matrices(torch.eye(2).double(), torch.eye(2).double())
    >>> round(yudin_upper(f, torch.eye(2).double()).item(), 6)
    1.786448
    """
    attention = plain_heads("yudin_upper", attention)
    attention.check_input(x)
    if attention.query_bias is not None and attention.query_bias.any():
        raise ValueError(
            "this bound does not allow query biases: use lipnb.certify, or lipnb.bounds.without_query_bias first."
        )
    norms, tokens = head_norms(attention), largest_singular(x.double())[..., None]
    P, _ = attention_at(attention.to(dtype=torch.float64), x.double())
    return or_infinite(yudin(P, g_1(P), tokens, norms.A, tokens * norms.A, norms.WV).sum(-1))


@torch.no_grad()
def yudin_upper_sharp(attention: Attention, x: torch.Tensor) -> torch.Tensor:
    r"""Local Lipschitz constant of attention at an input: upper bound from the norm of the softmax of each row.

    .. math::
        \|D_X f\|_2 \le \sum_h \|W_O^{(h)} W_V^{(h)}\|_2 \Big(\|P^{(h)}\|_2
            + \max_i \|S^{(h)}_i\|_2\, \|X\|_2\, \big(\|X\|_2 \|A^{(h)}\|_2 + \|B^{(h)}\|_2\big)\Big),

    with the Jacobian :math:`S_i = \mathrm{diag}(P_{i\cdot}) - P_{i\cdot}^\top P_{i\cdot}` of the softmax in row i, and
    rows :math:`A x_i + c` of B, :math:`c = s W_K^\top b_Q`.

    Parameters
    ----------
    attention : Attention
        Any heads and biases, masked or not. The sum over heads is the triangle inequality.
    x : Tensor, shape (..., n, d)
        Tokens; leading dimensions are a batch.

    Returns
    -------
    Tensor, shape of the batch
        An upper bound on the norm, float64, up to the rounding of the logits; without query biases never above
        `yudin_upper`, rounding aside. The exact norm gains little: in 100,000 random rows :math:`g_1` was at most 1.12
        times the norm.

    Raises
    ------
    ValueError
        As `Attention.check_input`; if the map has L2 scores or features other than shared keys.

    Notes
    -----
    Ours, in the proof of yudin2025attention, Thm 3, with `softmax_norm`. The query term of row i is
    :math:`W_V X^\top S_i X A`; the key terms are :math:`W_V X^\top S_i\, \varepsilon\, B_i`, whose squares sum to at
    most :math:`(\max_i \|S_i\| \|W_V\| \|X\|)^2 \|\varepsilon B^\top\|_F^2`.

    Examples
    --------
    >>> f = Attention.from_matrices(torch.eye(2).double(), torch.eye(2).double())
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]).double()
    >>> round(yudin_upper(f, x).item(), 4), round(yudin_upper_sharp(f, x).item(), 4)
    (2.5432, 2.4848)
    """
    attention = plain_heads("yudin_upper_sharp", attention)
    attention.check_input(x)
    norms, tokens = head_norms(attention), largest_singular(x.double())[..., None]
    P, slopes = attention_at(attention.to(dtype=torch.float64), x.double())
    heads = yudin(P, softmax_norm(P), tokens, norms.A, largest_singular(slopes), norms.WV)
    return or_infinite(heads.sum(-1) * (1 + 1e-12))


def without_query_bias(attention: Attention, x: torch.Tensor, size: float) -> tuple[Attention, torch.Tensor]:
    r"""Rewrite a map without query bias, on tokens with one additional constant coordinate.

    .. math:: W_Q x + b_Q = (W_Q, b_Q / t)\,(x, t), \qquad \|D_x f\|_2 \le \|D_{(x, t)} f'\|_2 .

    Parameters
    ----------
    attention : Attention
        Any heads and biases. Key, value and output biases change no derivative and are left out.
    x : Tensor, shape (..., n, d)
        Tokens.
    size : float
        The constant t, positive and finite. Bounds depend on it; all are valid.

    Returns
    -------
    Attention, Tensor
        The map f' of width d + 1 and its tokens, shape (..., n, d + 1); the arguments if there is no query bias.

    Notes
    -----
    Compare castin2024smooth, Thm E.3, where the tokens are moved instead.

    Examples
    --------
    >>> eye = torch.eye(2)[None]
    >>> f = Attention(eye, eye, eye, query_bias=torch.ones(1, 2))
    >>> same, wider = without_query_bias(f, torch.zeros(3, 2), 1.0)
    >>> same.width, same.query_bias, wider.shape
    (3, None, torch.Size([3, 3]))
    """
    attention = plain_heads("without_query_bias", attention)
    attention.check_input(x)
    if not 0 < number("size", size) < math.inf:
        raise ValueError(f"size must be positive and finite, got {size!r}.")
    if attention.query_bias is None:
        return attention, x
    blank = torch.zeros_like(attention.query_bias[..., None])

    def wider(matrix, column):
        return torch.cat([matrix, column], dim=-1)

    same = attention.replace(
        query=wider(attention.query, attention.query_bias[..., None] / size),
        key=wider(attention.key, blank),
        value=wider(attention.value, attention.value.new_zeros(*attention.value.shape[:2], 1)),
        query_bias=None,
        key_bias=None,
        value_bias=None,
        output_bias=None,
    )
    return same, wider(x, torch.full_like(x[..., :1], size))


@torch.no_grad()
def softmax_norm(p: torch.Tensor) -> torch.Tensor:
    r"""Spectral norm of the Jacobian of the softmax, at probabilities p.

    .. math:: \|\mathrm{diag}(p) - p p^\top\|_2 = \lambda, \qquad \sum_j \frac{p_j^2}{p_j - \lambda} = 1, \quad
        p_{(2)} \le \lambda \le p_{(1)},

    with the two largest entries :math:`p_{(1)} \ge p_{(2)}`. It is at most :math:`g_1(p) = p_{(1)} (1 - p_{(1)} +
    p_{(2)})`, and that at most 1/2; all three are equal if two entries are 1/2.

    Parameters
    ----------
    p : Tensor, shape (..., n)
        Probabilities; zeros are allowed, as are rows that sum to less than one, as with sinks.

    Returns
    -------
    Tensor, shape (...)
        An upper bound, float64, above the norm by rounding only: at most about :math:`10^{-14} p_{(1)}` for n up to a
        hundred. It holds for the given p, whatever its sum; rounding in the computation of p is not counted.

    Raises
    ------
    ValueError
        If p does not hold probabilities, with sums of at most 1 up to rounding.

    Notes
    -----
    yudin2025attention states :math:`g_1`, nair2025softmax the 1/2. The equation is that of golub1973modified for a
    matrix of rank one taken from a diagonal one; its left side increases between :math:`p_{(2)}` and :math:`p_{(1)}`,
    and where it is 1 or more, the point is at or above :math:`\lambda`. A relative error u in each of its terms moves
    its root by at most :math:`u\, p_{(1)}`, because :math:`|p_j - \lambda| \le p_{(1)}`.

    Examples
    --------
    >>> softmax_norm(torch.tensor([[0.5, 0.5, 0.0], [0.9, 0.1, 0.0], [1.0, 0.0, 0.0]]).double()).round(decimals=6)
    tensor([0.5000, 0.1800, 0.0000], dtype=torch.float64)
    """
    p = as_double("p", p)
    if not p.ndim or not p.shape[-1] or not (p >= 0).all() or not (p.sum(-1) <= 1 + SUM).all():
        raise ValueError("p must hold probabilities, shape (..., n) with n >= 1: from 0 to 1, with a sum of at most 1.")
    two = torch.nn.functional.pad(p, (0, 1)).topk(2, dim=-1).values
    high, low = two.unbind(-1)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        gaps = p - middle[..., None]
        passed = torch.where(gaps == 0, 0, p.square() / gaps).sum(-1) >= 1
        # at an entry of p, or if no float lies between, the upper end is kept
        inside = (low < middle) & (middle < high)
        high = torch.where(passed & inside, middle, high)
        low = torch.where(~passed & inside, middle, low)
    return high + 4 * gamma(p.shape[-1] + 8) * two[..., 0]
