"""Discrete measures as weighted tokens: Wasserstein distances between them, and the mean-field map on them."""

from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from lipnb.attention import Attention
from lipnb.attention.heads import check_attention
from lipnb.extras import extra

__all__ = ["conditional_wasserstein", "mean_field_map", "repeat", "uniform", "wasserstein"]

LEAST = 1e-305  # total cost below which powers of distances may have underflowed


def uniform(n: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Equal weights with sum one, shape (n,).

    Examples
    --------
    >>> uniform(4)
    tensor([0.2500, 0.2500, 0.2500, 0.2500], dtype=torch.float64)
    """
    return torch.full((n,), 1 / n, dtype=dtype)


def repeat(x: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """Tokens (n, d) with token i repeated counts[i] times, shape (sum of counts, d): integer weights as copies.

    Examples
    --------
    >>> repeat(torch.tensor([[1.0], [2.0]]), [2, 1]).flatten().tolist()
    [1.0, 1.0, 2.0]
    """
    return x.repeat_interleave(torch.as_tensor(counts, device=x.device), dim=-2)


def wasserstein(
    x: torch.Tensor, y: torch.Tensor, a: torch.Tensor | None = None, b: torch.Tensor | None = None, *, p: float = 2
) -> float:
    r"""Wasserstein distance of order p between two discrete measures, by exact transport.

    .. math:: W_p(\mu, \nu) = \Big(\min_{\pi \in \Pi(\mu, \nu)} \int |x - y|^p\, d\pi(x, y)\Big)^{1/p}, \qquad
        \mu = \sum_i a_i \delta_{x_i}, \quad \nu = \sum_j b_j \delta_{y_j} .

    Parameters
    ----------
    x, y : Tensor, shapes (n, d) and (m, d)
        Points.
    a, b : Tensor, shapes (n,) and (m,), optional
        Weights, each of total one; default: equal ones.
    p : float
        Order, 1 or more.

    Returns
    -------
    float
        Exact up to the rounding of the linear programme: an optimal assignment if both measures have equally many
        points of equal weight, else network simplex (`ot.emd2` of flamary2021pot).

    Raises
    ------
    ValueError
        If the widths of x and y differ, points are not finite, weights are not 0 or more with total one, p is not a
        finite number of at least 1, or is so large that the powers of all distances that count underflow.

    Notes
    -----
    castin2024smooth, section 3.1 and Def. A.2.

    Examples
    --------
    >>> wasserstein(torch.tensor([[0.0], [1.0]]), torch.tensor([[3.0], [2.0]]))
    2.0
    """
    x, y = _points(x), _points(y)
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"x and y must have shapes (n, d) and (m, d), got {x.shape} and {y.shape}.")
    if not 1 <= p < np.inf:
        raise ValueError(f"p must be a finite number, 1 or more, got {p!r}.")
    a, b = _weights(a, len(x)), _weights(b, len(y))
    size = max(np.abs(x).max(), np.abs(y).max(), np.finfo(float).tiny)  # squares stay in the range of float64
    distances = cdist(x / size, y / size)
    scale = distances.max()
    if scale == 0:
        return 0.0
    costs = (distances / scale) ** p
    if len(x) == len(y) and np.ptp(a) == 0 and np.ptp(b) == 0:
        rows, columns = linear_sum_assignment(costs)
        total = costs[rows, columns].mean()
    else:
        with extra("transport"):
            import ot  # slow to import, and only needed here

        total = ot.emd2(a, b, costs, numItermax=10**7)
    if total < LEAST and (costs[distances > 0] < LEAST).any():
        raise ValueError(
            f"p = {p:g} is too large for these points: the powers of the distances that count fall below the smallest "
            "float, beside that of the largest distance. Take a smaller p."
        )
    return float(size * scale * max(total, 0.0) ** (1 / p))


def conditional_wasserstein(
    s: torch.Tensor,
    x: torch.Tensor,
    t: torch.Tensor,
    y: torch.Tensor,
    a: torch.Tensor | None = None,
    b: torch.Tensor | None = None,
    *,
    p: float = 2,
) -> float:
    r"""Distance between measures on positions and tokens, with transport within each position only.

    .. math:: d_p(\bar\mu, \bar\nu) = \Big(\int_0^1 W_p(\mu^s, \nu^s)^p\, d\theta(s)\Big)^{1/p}

    if both have the same first marginal :math:`\theta`, and infinity otherwise.

    Parameters
    ----------
    s, t : Tensor, shapes (n,) and (m,)
        Positions in [0, 1]; equal numbers are one position.
    x, y : Tensor, shapes (n, d) and (m, d)
        Tokens at these positions.
    a, b : Tensor, shapes (n,) and (m,), optional
        Weights, each of total one; default: equal ones.
    p : float
        Order, 1 or more.

    Returns
    -------
    float
        Exact up to rounding; infinity where the marginals on positions differ by more than 1e-12.

    Raises
    ------
    ValueError
        As `wasserstein`; if positions do not have shape (n,).

    Notes
    -----
    castin2024smooth, Def. 4.1.

    Examples
    --------
    >>> s, x = torch.tensor([0.0, 1.0]), torch.tensor([[0.0], [1.0]])
    >>> conditional_wasserstein(s, x, s, x.flip(0)), wasserstein(x, x.flip(0))
    (1.0, 0.0)
    """
    x, y = _points(x), _points(y)
    s, t = np.asarray(s, dtype=float), np.asarray(t, dtype=float)
    if s.shape != (len(x),) or t.shape != (len(y),):
        raise ValueError(
            f"positions must have shape (n,), one for each token, got {s.shape} for {len(x)} tokens and "
            f"{t.shape} for {len(y)}."
        )
    a, b = _weights(a, len(x)), _weights(b, len(y))
    places = np.union1d(s, t)
    mass, other = (np.array([weights[where == place].sum() for place in places]) for where, weights in ((s, a), (t, b)))
    if np.abs(mass - other).max() > 1e-12:
        return np.inf
    total = 0.0
    for place, amount in zip(places, mass, strict=True):
        here, there = s == place, t == place
        total += amount * wasserstein(x[here], y[there], a[here] / amount, b[there] / amount, p=p) ** p
    return float(total ** (1 / p))


@torch.no_grad()
def mean_field_map(attention: Attention, x: torch.Tensor, weights: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    r"""The mean-field map :math:`\Gamma_\mu(z)`: attention of any points z to a measure :math:`\mu`.

    .. math:: \Gamma_\mu(z) = \frac{\int e^{z^\top A^\top y}\, V y\, d\mu(y)}{\int e^{z^\top A^\top y}\, d\mu(y)},
        \qquad F(\mu) = (\Gamma_\mu)_\sharp \mu .

    Parameters
    ----------
    attention : Attention
        Any heads and biases, without a mask.
    x : Tensor, shape (n, d)
        Points of the measure.
    weights : Tensor, shape (n,)
        Their weights; only ratios matter.
    z : Tensor, shape (c, d)
        Points at which to evaluate the map; they need not be points of the measure.

    Returns
    -------
    Tensor, shape (c, m)
        At z = x, the output tokens ``attention(x, weights)``.

    Raises
    ------
    ValueError
        As `Attention.check_input`; if the map is masked or has features beyond plain heads, or `x` is not one measure
        (n, d).

    Notes
    -----
    castin2024smooth, Def. 2.4.

    Examples
    --------
    >>> f = Attention.from_matrices(torch.eye(1).double(), torch.eye(1).double())
    >>> x = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    >>> mean_field_map(f, x, uniform(2), torch.zeros(1, 1).double())
    tensor([[0.]], dtype=torch.float64)
    """
    check_field(attention, x, weights)
    attention.check_input(z)
    query = attention.project(z)[0]
    _, key, value = attention.project(x)
    out = attention.combine(attention.probabilities_of(query, key, weights) @ value)
    return out if attention.output_bias is None else out + attention.output_bias


def check_field(attention, x, weights):
    """Raise ValueError unless attention to atoms x (n, d) with these weights has a mean-field map."""
    check_attention(attention, "the mean-field map")
    attention.check_plain("the mean-field map", ("dot", "l2"))
    attention.check_input(x, weights)
    if x.ndim != 2:
        raise ValueError(f"x must hold one measure, shape (n, d), got {tuple(x.shape)}.")
    if attention.masked:
        raise ValueError(
            "a masked map has no field, because a token's output depends on its position: use a map without a mask."
        )


def _points(x):
    """Points (n, d) as a finite float64 array; ValueError otherwise."""
    x = np.asarray(x.detach().cpu() if isinstance(x, torch.Tensor) else x, dtype=float)
    if x.ndim != 2 or not x.size:
        raise ValueError(f"points must have shape (n, d) with n >= 1, got {x.shape}.")
    if not np.isfinite(x).all():
        raise ValueError("points hold NaN or infinite values: remove them first.")
    return x


def _weights(a, n):
    """Weights (n,) of total one; ValueError otherwise."""
    if a is None:
        return np.full(n, 1 / n)
    a = np.asarray(a.detach().cpu() if isinstance(a, torch.Tensor) else a, dtype=float)
    if a.shape != (n,) or not (a >= 0).all() or not np.isclose(a.sum(), 1, rtol=1e-9):
        raise ValueError(f"weights must be {n} numbers, 0 or more, with sum 1.")
    return a / a.sum()
