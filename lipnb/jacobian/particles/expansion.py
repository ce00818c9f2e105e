"""Separable expansion of one head's kernel: exp(q . k) as a short sum of functions of q times functions of k.

The key side is a Chebyshev interpolant, dimension by dimension, so a sum over n particles costs O(n p^k) in place of
O(n^2). Tokens come last in every array here: (channels, n), which is the order the products run over.
"""

import math

import numpy as np
import torch
from scipy.special import ive

__all__ = ["Expansion", "NotSeparable", "contract", "expand"]

MAX_NODES = 2**14  # nodes of one head, all dimensions together; beyond it the exact kernel is the better route
MAX_DEGREE = 256  # nodes of one dimension
LEAST_RHO = 0.5  # a narrower box of keys is widened: the slope of the kernel needs two distinct nodes


class NotSeparable(ValueError):
    """These particles have no separable kernel that is worth having; any other route serves them."""


class Expansion:
    r"""Separable kernel of one head, with the slope of the kernel in the keys.

    .. math::
        e^{q_i \cdot k_j} = \epsilon_i \, c_j \, e^{s_i \cdot t_j}, \qquad
        e^{s \cdot t} \approx \prod_{c=1}^{k} \sum_{a=1}^{p_c} e^{s_c y_a} \, \ell_a(t_c),

    with :math:`t \in [-1, 1]^k` the keys in the coordinates of their bounding box, :math:`s` the queries, less the
    point of their box nearest to zero, times the half-widths of the keys' box, and :math:`\ell_a` the Lagrange
    polynomials of the Chebyshev nodes :math:`y_a`. The row factor cancels in a softmax and is chosen so that no
    exponential exceeds 1; the column factor joins the weights. From that origin the error of a row stays relative to
    the row's own largest possible term; from the centre of the queries it would not.

    Parameters
    ----------
    query, key : Tensor, shape (k, n)
        Queries (scale folded in) and keys.
    weights : Tensor, shape (n,), optional
        Positive weights of the particles.

    Attributes
    ----------
    rho : ndarray, shape (k,)
        Largest :math:`|s_c|`: reach of the queries times half-width of the keys. It decides how many nodes are needed.
    nodes : tuple of int, length k
        Nodes of each dimension; set by `choose` or `use`.
    column : Tensor, shape (n,)
        Column factors c, weights included, at most 1.

    Notes
    -----
    L. N. Trefethen, Approximation Theory and Approximation Practice (2013), chapters 3 (coefficients) and 8
    (analytic functions converge geometrically, entire ones faster).
    """

    def __init__(self, query, key, weights=None):
        low, high = torch.aminmax(query, dim=1)
        origin = torch.zeros_like(low).clamp(low, high)
        reach = torch.maximum(high - origin, origin - low)
        low, high = torch.aminmax(key, dim=1)
        least = torch.where(reach > 0, LEAST_RHO / reach.clamp_min(1e-30), 1.0)
        half = torch.maximum((high - low) / 2, least)
        centred = key - ((low + high) / 2)[:, None]
        self._s = (query - origin[:, None]) * half[:, None]
        self._t = centred / half[:, None]
        logarithm = origin @ centred
        if weights is not None:
            logarithm = logarithm + weights.log()
        self.column = (logarithm - logarithm.max()).exp()
        self.rho = (reach * half).double().cpu().numpy()
        self._origin, self._half = origin.double(), half.double()
        self._largest_query = query.abs().amax(1)

    def use(self, nodes):
        """Take `nodes`, a tuple of k numbers of Chebyshev nodes; prepare the small matrices that go with them."""
        self.nodes = tuple(nodes)
        self._points, self._to_nodes, self._slopes = [], [], []
        for c, p in enumerate(self.nodes):
            angle = (torch.arange(p, dtype=torch.float64, device=self._s.device) + 0.5) * math.pi / p
            degree = torch.arange(p, dtype=torch.float64, device=self._s.device)
            interpolation = torch.cos(angle[:, None] * degree) * (2 / p)  # node a from coefficient m
            interpolation[:, 0] /= 2
            # T_m' = 2 m (T_{m-1} + T_{m-3} + ...), the last term halved if it is T_0
            gap = degree[:, None] - degree
            derivative = torch.where((gap > 0) & (gap % 2 == 1), 2 * degree[:, None], 0.0)
            derivative[:, 0] /= 2
            identity = torch.eye(p, dtype=torch.float64, device=self._s.device)
            self._points.append(torch.cos(angle).to(self._s.dtype))
            self._to_nodes.append(interpolation)
            self._slopes.append(derivative / self._half[c] + self._origin[c] * identity)
        return self

    def choose(self, rtol, seed=0):
        """Take the fewest nodes whose sampled error is at most `rtol`.

        Parameters
        ----------
        rtol : float
            Bound on `error` over a sample of rows and columns.
        seed : int
            Seed of the sample.

        Raises
        ------
        ValueError
            "queries and keys spread too far for a separable kernel": names the exact route.
        """
        nodes = [fewest_nodes(rho, rtol) for rho in self.rho]
        error = math.inf
        while math.prod(nodes) <= MAX_NODES and max(nodes) <= MAX_DEGREE:
            before, error = error, self.use(nodes).error(seed)
            if error <= rtol:
                return self
            if (before < 1e3 * rtol and error >= before) or not self.rho.any():  # rounding: more nodes do not help
                break
            step = 1 if error < 1e3 * rtol else 2 + max(nodes) // 8
            nodes = [p + step if rho > 0 else p for p, rho in zip(nodes, self.rho, strict=True)]
        spread = ", ".join(f"{rho:.3g}" for rho in self.rho)
        raise NotSeparable(
            f"queries and keys spread too far for a separable kernel (rho = {spread}; an affordable "
            f"number of nodes does not reach rtol = {rtol:.1e} in {self._s.dtype}): use TiledJacobian."
        )

    def error(self, seed=0, rows=256, columns=2048):
        r"""Relative error of the separable kernel and of its slope on sampled rows, the largest over the rows.

        .. math::
            \max_i \frac{\sum_j c_j |\tilde K_{ij} - K_{ij}|}{\sum_j c_j K_{ij}}, \qquad
            \max_{i, c} \frac{\sum_j c_j |\partial_c \tilde K_{ij} - q_{ic} K_{ij}|}{\max_l |q_{lc}| \sum_j c_j K_{ij}}

        The rows are random ones and the outermost ones of each dimension; the columns are drawn in proportion to
        their factor, which is how the sums weigh them. Exact kernel entries, rounding included.

        Returns
        -------
        float
        """
        generator = torch.Generator().manual_seed(seed)
        n, device = self._s.shape[1], self._s.device
        some = torch.randint(n, (rows,), generator=generator, device="cpu").to(device)
        some = torch.cat([some, self._s.argmax(1), self._s.argmin(1)])
        cumulative = self.column.double().cumsum(0)
        draws = torch.rand(columns, generator=generator, dtype=torch.float64, device="cpu").to(device) * cumulative[-1]
        drawn = torch.searchsorted(cumulative, draws).clamp_max(n - 1)
        s, t = self._s[:, some], self._t[:, drawn]
        exact = torch.einsum("ci,cj->ij", s, t).sub_(s.abs().sum(0)[:, None]).exp_()
        total = exact.sum(1)
        one, slope = [], []
        for left, right, to_nodes, slopes in zip(
            self.queries(some), self.keys(drawn), self._to_nodes, self._slopes, strict=True
        ):
            one.append(left.mT @ (to_nodes.to(right.dtype) @ right))
            slope.append(left.mT @ ((to_nodes @ slopes).to(right.dtype) @ right))
        worst = ((math.prod(one) - exact).abs().sum(1) / total).max()
        for c, tilted in enumerate(slope):
            query = s[c] / self._half[c].to(s.dtype) + self._origin[c].to(s.dtype)
            others = math.prod(one[:c] + one[c + 1 :])
            gap = (tilted * others - query[:, None] * exact).abs().sum(1) / total
            worst = torch.maximum(worst, (gap / self._largest_query[c].clamp_min(1e-30)).max())
        return float(worst) if torch.isfinite(worst) else math.inf

    def queries(self, some):
        """Factors of the queries `some` (a slice or an index), k tensors of shape (p_c, t): exponentials at nodes."""
        return [
            torch.exp(torch.addcmul(-s.abs(), points[:, None], s))
            for s, points in zip(self._s[:, some], self._points, strict=True)
        ]

    def keys(self, some):
        """Factors of the keys `some`, k tensors of shape (p_c, t): Chebyshev polynomials of degree 0 to p_c - 1."""
        return [chebyshev(t, p) for t, p in zip(self._t[:, some], self.nodes, strict=True)]

    def slopes(self, c, moments, transposed=False):
        """Moments of the slope in key dimension `c` from moments (..., p_1, .., p_k) of the kernel; or transposed."""
        return along(self._slopes[c].mT if transposed else self._slopes[c], moments, c - len(self.nodes))

    def to_nodes(self, moments, transposed=False):
        """Moments at the nodes from moments in Chebyshev polynomials, shape (..., p_1, .., p_k); or transposed."""
        for c, matrix in enumerate(self._to_nodes):
            moments = along(matrix.mT if transposed else matrix, moments, c - len(self.nodes))
        return moments


def fewest_nodes(rho, rtol):
    """Fewest nodes for which the Chebyshev tail of exp(rho t) on [-1, 1], relative to its maximum, is below `rtol`."""
    if rho == 0:
        return 1
    degrees = np.arange(2, 2 * MAX_DEGREE)
    terms = 2 * ive(degrees, rho)
    tail = np.cumsum(terms[::-1])[::-1]
    return int(degrees[np.argmax(tail <= rtol)]) if tail[-1] <= rtol else 2 * MAX_DEGREE


def along(matrix, moments, axis):
    """`matrix` (p, p) applied to one axis of `moments`."""
    return (moments.movedim(axis, -1) @ matrix.mT).movedim(-1, axis)


def chebyshev(t, p):
    """Chebyshev polynomials of degree 0 to p - 1 at `t`, shape (n,), by doubling; shape (p, n)."""
    values = torch.empty(p, *t.shape, dtype=t.dtype, device=t.device)
    values[0] = 1
    if p > 1:
        values[1] = t
    m = 1  # T_{m+l} = 2 T_m T_l - T_{m-l}
    while m + 1 < p:
        count = min(m, p - 1 - m)
        torch.mul(values[1 : 1 + count], 2 * values[m], out=values[m + 1 : m + 1 + count])
        values[m + 1 : m + 1 + count] -= values[m - count : m].flip(0)
        m += count
    return values


def _columns(factors):
    """Column-wise Kronecker product of the factors (p_c, t) after the first, or of the only one; shape (p, t)."""
    joined = factors[-1]
    for factor in reversed(factors[1:-1]):
        joined = (factor[:, None] * joined).flatten(0, 1)
    return joined


def contract(factors, channels):
    """Sum over particles: moments, shape (C, p_1, .., p_k), of `channels` (C, t) with k `factors` (p_c, t)."""
    if len(factors) == 1:
        return channels @ factors[0].mT
    spread = channels[:, None] * factors[0]
    moments = spread.flatten(0, 1) @ _columns(factors).mT
    return moments.view(len(channels), *(len(factor) for factor in factors))


def expand(factors, moments):
    """Transpose of `contract`: channels, shape (C, t), at particles, of `moments` (C, p_1, .., p_k)."""
    if len(factors) == 1:
        return moments @ factors[0]
    spread = moments.flatten(2).flatten(0, 1) @ _columns(factors)
    return spread.view(*moments.shape[:2], -1).mul_(factors[0]).sum(1)
