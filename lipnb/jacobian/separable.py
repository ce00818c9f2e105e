"""Jacobian of unmasked attention on many weighted particles, in time linear in their number.

For at most 3 key dimensions and no mask. `of_least_rank` rewrites the attention with the fewest key and value
dimensions, `Expansion` writes the kernel exp(q . k) of each head as a short sum of products, and `SeparableJacobian`
computes products with the Jacobian through these sums.
"""

import math
from typing import Self

import numpy as np
import torch
from scipy.special import ive
from torch import Tensor

from lipnb.attention import Attention
from lipnb.checks import check_weights
from lipnb.jacobian.matrices import ScaledMatrices
from lipnb.spectral import GramOperator

__all__ = ["SeparableJacobian"]

MAX_KEY_WIDTH = 3
MAX_NODES = 2**14  # nodes of one head, all dimensions together; beyond it the exact kernel is faster
MAX_DEGREE = 256  # nodes of one dimension
LEAST_RHO = 0.5  # a narrower box of keys is widened: the slope of the kernel needs two distinct nodes
PARTICLES_PER_NODE = 4  # with fewer per node, choosing the nodes costs more than a solve in exact tiles
PARTICLES = {"cpu": 4096, "cuda": 2**17}  # particles of a tile: chosen for speed, far below the memory limit

SMALLEST = 1e-30  # least value for the reach of tokens


class NotSeparable(ValueError):
    """Error: a separable kernel does not exist for these particles or does not pay; other routes still work."""


def of_least_rank(attention, reach, rtol):
    r"""An `Attention` with the same Jacobian and the fewest key and value dimensions, at tokens of norm up to `reach`.

    The logits need only :math:`W_K^\top [s W_Q, s b_Q]`, whose rank r may be below k: the part left out changes
    no logit, and no slope of a logit times a token, by more than `rtol`. Values wider than the tokens are replaced by
    the tokens, and the value matrix is joined to the output. Biases that never change the Jacobian are dropped. The key
    width is r (at least 1, the largest over the heads), the value width at most d.
    """
    h, k, d = attention.query.shape
    # a token and the 1 of the bias, in units of their largest
    units = torch.full((d + 1,), max(float(reach), SMALLEST), dtype=torch.float64, device=attention.device)
    units[-1] = 1
    bias = attention.query.new_zeros(h, k) if attention.query_bias is None else attention.query_bias
    joint = attention.scale * torch.cat([attention.query, bias[..., None]], -1)
    # W_K^T [s W_Q, s b_Q] = Q1 (R1 R2^T) Q2^T = (Q1 U) diag(values) (Vh Q2^T): its rank is at most k, far below d in
    # wide layers
    Q1, R1 = torch.linalg.qr(units[0] * attention.key.mT.double())
    Q2, R2 = torch.linalg.qr(units[:, None] * joint.mT.double())
    U, values, Vh = torch.linalg.svd(R1 @ R2.mT, full_matrices=False)
    left, right = Q1 @ U, Vh @ Q2.mT
    rank = max(1, int((values > rtol / 2).sum(1).max()))  # |(x / reach, 1)|^2 is at most 2
    if rank < k:
        key = left[..., :rank].mT.to(attention.dtype)
        joint = (values[:, :rank, None] * right[:, :rank] / units[0] / units).to(attention.dtype)
    else:
        key = attention.key
    value, output = attention.value, attention.output
    if attention.value_width > d:
        output = attention.output_matrices() @ value
        value = torch.eye(d, dtype=attention.dtype, device=attention.device).expand(h, d, d)
    return Attention(joint[..., :-1], key, value, output, query_bias=joint[..., -1], scale=1.0)


class Expansion:
    r"""Separable kernel of one head, with the slope of the kernel in the keys.

    .. math::
        e^{q_i \cdot k_j} = \epsilon_i \, c_j \, e^{s_i \cdot t_j}, \qquad
        e^{s \cdot t} \approx \prod_{c=1}^{k} \sum_{a=1}^{p_c} e^{s_c y_a} \, \ell_a(t_c),

    with :math:`t \in [-1, 1]^k` the keys in the coordinates of their bounding box, :math:`s` the queries, minus the
    point of their box nearest to zero, times the half-widths of the keys' box, and :math:`\ell_a` the Lagrange
    polynomials of the Chebyshev nodes :math:`y_a`. The row factor cancels in a softmax and is chosen so that no
    exponential exceeds 1; the column factor joins the weights. From that origin the error of a row stays relative to
    the row's own largest possible term; from the centre of the queries it would not.

    `rho`, (k,), is the largest :math:`|s_c|`: reach of the queries times half-width of the keys, which decides how many
    nodes are needed; `nodes`, k numbers :math:`p_c`, are set by `choose` or `use`; `column`, (n,), are the factors c,
    weights included, at most 1. Queries (scale folded in) and keys come as (k, n).

    L. N. Trefethen, Approximation Theory and Approximation Practice (2013), chapters 3 (coefficients) and 8
    (analytic functions converge geometrically, entire ones faster).
    """

    def __init__(self, query, key, weights=None, sizes=None):
        low, high = torch.aminmax(query, dim=1)
        # the point of the queries' box nearest to 0: q = origin + s / half, k = centre + half t
        origin = torch.zeros_like(low).clamp(low, high)
        reach = torch.maximum(high - origin, origin - low)
        low, high = torch.aminmax(key, dim=1)
        least = torch.where(reach > 0, LEAST_RHO / reach.clamp_min(1e-30), 1.0)
        half = torch.maximum((high - low) / 2, least)
        centred = key - ((low + high) / 2)[:, None]
        self._s = (query - origin[:, None]) * half[:, None]
        self._t = centred / half[:, None]
        logarithm = origin @ centred  # q . k = [q . centre] + origin . (k - centre) + s . t, the first of the row alone
        if weights is not None:
            logarithm = logarithm + weights.log()
        self.column = (logarithm - logarithm.max()).exp()
        # sampling weights of `error`: those of the sums, and those times the `sizes` of values
        self._looks = [self.column.double()] + ([] if sizes is None else [self.column.double() * sizes.double()])
        self.rho = (reach * half).double().cpu().numpy()
        self._origin, self._half = origin.double(), half.double()
        self._largest_query = query.abs().amax(1)

    def use(self, nodes):
        """Set `nodes`, k numbers of Chebyshev nodes, and prepare the small matrices for them; returns self."""
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
            # d/dk of e^{origin . k} e^{s . t}: t' = 1 / half, and origin
            self._slopes.append(derivative / self._half[c] + self._origin[c] * identity)
        return self

    def choose(self, rtol):
        """Set the fewest nodes whose sampled `error` is at most `rtol`; NotSeparable if the exact route is better."""
        nodes, error = np.array([fewest_nodes(rho, rtol) for rho in self.rho]), math.inf
        while nodes.prod() <= MAX_NODES and nodes.max() <= MAX_DEGREE:
            before, error = error, self.use(nodes.tolist()).error()
            if error <= rtol:
                return self
            if (before < 1e3 * rtol and error >= before) or not self.rho.any():  # rounding: more nodes do not help
                break
            step = 1 if error < 1e3 * rtol else 2 + nodes.max() // 8
            nodes = nodes + step * (self.rho > 0)
        spread = ", ".join(f"{rho:.3g}" for rho in self.rho)
        raise NotSeparable(
            f"queries and keys spread too far for a separable kernel (rho = {spread}; an affordable "
            f"number of nodes does not reach rtol = {rtol:.1e} in {self._s.dtype}): use AttentionJacobian."
        )

    def error(self, seed=0, rows=256, columns=2048):
        r"""Relative error of the separable kernel and of its slope on sampled rows, the largest over the rows.

        .. math::
            \max_i \frac{\sum_j c_j |\tilde K_{ij} - K_{ij}|}{\sum_j c_j K_{ij}}, \qquad
            \max_{i, c} \frac{\sum_j c_j |\partial_c \tilde K_{ij} - q_{ic} K_{ij}|}{\max_l |q_{lc}| \sum_j c_j K_{ij}}

        Rows are random ones and the outermost ones of each dimension. Columns are drawn in proportion to their factor,
        their weight in the sums, and a second time to their factor times the size of their value, which then multiplies
        c_j: the weight of a large value matters even if it is small in all rows. Kernel entries are compared with exact
        ones, rounding included.
        """
        return max(self._error(look, seed, rows, columns) for look in self._looks)

    def _error(self, look, seed, rows, columns):
        """`error` by the weights `look`, (n,)."""
        generator = torch.Generator().manual_seed(seed)
        n, device = self._s.shape[1], self._s.device
        some = torch.randint(n, (rows,), generator=generator, device="cpu").to(device)
        some = torch.cat([some, self._s.argmax(1), self._s.argmin(1)])
        cumulative = look.cumsum(0)
        draws = torch.rand(columns, generator=generator, dtype=torch.float64, device="cpu").to(device) * cumulative[-1]
        drawn = torch.searchsorted(cumulative, draws).clamp_max(n - 1)
        s, t = self._s[:, some], self._t[:, drawn]
        # e^{s . t - |s|_1}
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
        """Factors of the queries `some` (slice or index), k tensors of shape (p_c, t): exponentials at nodes."""
        return [
            torch.exp(torch.addcmul(-s.abs(), points[:, None], s))  # e^{s y_a - |s|}, at most 1
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
    """Apply `matrix` (p, p) to one axis of `moments`."""
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


def kernels(attention, x, weights, rtol):
    """The attention `of_least_rank`, and one `Expansion` for each of its heads, accurate to `rtol`."""
    attention.check_plain("a separable kernel")
    attention.check_input(x, weights)
    if attention.masked:
        raise NotSeparable("masked attention has no separable kernel: use AttentionJacobian.")
    if x.ndim != 2:
        raise ValueError(f"x must have shape (n, d), one set of particles, got {tuple(x.shape)}.")
    rtol = max(rtol, 64 * torch.finfo(x.dtype).eps)
    try:
        low = of_least_rank(attention, torch.linalg.vector_norm(x, dim=1).amax(), rtol)
    except torch.linalg.LinAlgError as error:  # entries are not finite
        raise NotSeparable("the logits overflow: scale the particles or the query and key matrices down.") from error
    if low.key_width > MAX_KEY_WIDTH:
        raise NotSeparable(
            f"the logits depend on {low.key_width} key dimensions and a separable kernel serves at most "
            f"{MAX_KEY_WIDTH}: use AttentionJacobian."
        )
    query, key, value = low.project(x)
    sizes = torch.linalg.vector_norm(value - value.mean(-2, keepdim=True), dim=-1)
    sizes = sizes / sizes.amax(-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
    each = zip(query, key, sizes, strict=True)
    return low, [Expansion(q.mT, k.mT, weights, size).choose(rtol) for q, k, size in each]


class SeparableJacobian:
    r"""Jacobian of unmasked attention at n particles through a separable kernel: :math:`O(n p^k)` a product.

    With :math:`P_{ij} \approx r_i \sum_q F_{iq} \, c_j L_q(k_j)`, q running over the nodes, the tangent of a head is

    .. math::
        \dot f_i = C_i \dot q_i + r_i \sum_q F_{iq} \big(\dot M_q - o_i \dot N_q\big), \qquad
        \dot M_q = \sum_j c_j \big[(\nabla L_q(k_j) \cdot \dot k_j) v_j + L_q(k_j) \dot v_j\big], \quad
        \dot N_q = \sum_j c_j \nabla L_q(k_j) \cdot \dot k_j ,

    where :math:`C_i = \sum_j P_{ij} (v_j - o_i) k_j^\top`, the head's output :math:`o_i` and the normaliser
    :math:`1 / r_i` are computed once. Only the particles' own coordinates are kept, about 14 words a particle for
    d = 2; the factors are computed again in tiles.

    Parameters
    ----------
    attention : Attention
        Unmasked plain heads with any biases and output. Logits must depend on the keys through at most 3 dimensions:
        key width at most 3, or tokens of width at most 3, or key and query matrices whose product has rank at most 3.
    x : Tensor, shape (n, d)
        Particles, one set.
    weights : Tensor, shape (n,), optional
        Positive weights: the Jacobian is that of the weighted map :math:`f_a`. For the norm of W2, see `gram`.
    rtol : float
        Error allowed to the kernel, relative to each row's sum; raised to 64 times the rounding unit of the dtype.

    Attributes
    ----------
    kernel_error : float
        Largest error of the kernel and of its slope on fresh sampled rows, relative to the row sums (see
        `Expansion.error`). Measured, so it is neither an upper nor a lower bound on the error of a product, but
        products of unit vectors err by a small multiple of it times the size of the summands.
    nodes : tuple of tuple of int
        Nodes of each head and key dimension.

    Raises
    ------
    ValueError
        If the attention is masked or has features beyond plain heads, if its logits depend on more than 3 key
        dimensions, if `x` is not (n, d), or if queries and keys spread too far for a separable kernel.

    Notes
    -----
    castin2024smooth, Lemma C.6, for the Jacobian with weights. The exact reference is `AttentionJacobian`.

    Examples
    --------
    >>> import torch
    >>> from lipnb import Attention
    >>> from lipnb import AttentionJacobian
    >>> from lipnb.jacobian.separable import SeparableJacobian
    >>> eye, x = torch.eye(1, dtype=torch.float64), torch.linspace(-1, 1, 500, dtype=torch.float64)[:, None]
    >>> attention = Attention.from_matrices(eye, eye)
    >>> J = SeparableJacobian(attention, x)
    >>> J.shape, J.kernel_error < 1e-6, torch.dist(J.jvp(x), AttentionJacobian(attention, x).jvp(x)).item() < 1e-5
    ((500, 500), True, True)
    """

    @torch.no_grad()
    def __init__(self, attention: Attention, x: Tensor, weights: Tensor | None = None, *, rtol: float = 1e-6) -> None:
        self._build(attention, x, *kernels(attention, x, weights, rtol))

    @classmethod
    @torch.no_grad()
    def if_it_pays(
        cls, attention: Attention, x: Tensor, weights: Tensor | None = None, *, rtol: float = 1e-6
    ) -> Self | None:
        """The Jacobian if it applies and is faster than exact tiles, else None; decided in O(n)."""
        if attention.score != "dot" or attention.more or attention.masked:
            return None
        try:
            low, made = kernels(attention, x, weights, rtol)
        except NotSeparable:
            return None
        if len(x) < PARTICLES_PER_NODE * max(math.prod(kernel.nodes) for kernel in made):
            return None
        new = object.__new__(cls)
        new._build(attention, x, low, made)
        return new

    def _build(self, attention, x, low, kernels):
        """Set all attributes, from the attention `of_least_rank` and the kernels of its heads."""
        self._kernels = kernels
        self.n, self.d = x.shape
        self.attention, self._low = attention, low
        self.tile = PARTICLES.get(x.device.type, PARTICLES["cuda"])
        self.nodes = tuple(kernel.nodes for kernel in self._kernels)
        self.kernel_error = max(kernel.error(seed=1) for kernel in self._kernels)  # other random rows than in `choose`
        # channels linear in the tangent: the tangent itself, or those of values and keys if fewer
        v, k, d = low.value_width, low.key_width, low.width
        both = torch.cat([low.value, low.key], 1)
        eye = torch.eye(min(d, v + k), dtype=x.dtype, device=x.device).expand(low.heads, -1, -1)
        self._front, self._back = (eye, both) if d <= v + k else (both, eye)
        self._prepare(x)

    def _prepare(self, x):
        """Values, normalisers, head outputs and cross-covariances of all particles, tokens last."""
        low, dtype = self._low, x.dtype
        _, key, value = (part.mT for part in low.project(x))  # (h, ., n)
        self._value = value - value.mean(-1, keepdim=True)
        key = key - key.mean(-1, keepdim=True)
        self._inverse, self._output, self._covariance = [], [], []
        for kernel, k, v in zip(self._kernels, key, self._value, strict=True):
            channels = torch.cat([torch.ones_like(v[:1]), v, k, (v[:, None] * k).flatten(0, 1)]) * kernel.column
            moments = sum(contract(kernel.keys(some), channels[:, some]).double() for some in self._tiles())
            moments = kernel.to_nodes(moments).to(dtype)
            # r_i^{-1} = sum_j K_ij, and of v, k, v k^T the means under P_i
            sums = torch.cat([expand(kernel.queries(some), moments) for some in self._tiles()], 1)
            sums[1:] /= sums[0]
            mean, mean_key, covariance = sums[1:].split([len(v), len(k), len(v) * len(k)])
            self._inverse.append(1 / sums[0])
            self._output.append(mean.clone())
            self._covariance.append(covariance.unflatten(0, (len(v), len(k))) - mean[:, None] * mean_key)

    def _tiles(self):
        return (slice(start, start + self.tile) for start in range(0, self.n, self.tile))

    @property
    def shape(self) -> tuple[int, int]:
        """(n m, n d)."""
        return (self.n * self.attention.output_width, self.n * self.d)

    def _check(self, name, u, width):
        if u.shape != (self.n, width):
            raise ValueError(f"{name} must have shape {(self.n, width)}, got {tuple(u.shape)}.")

    def _forward_moments(self, u, scale):
        """M' and N' at the nodes, (v + 1, p_1, .., p_k) for each head, from a tangent (n, d) divided by `scale`."""
        low = self._low
        k, v = low.key_width, low.value_width
        total = [0.0] * low.heads
        for some in self._tiles():
            ut = u[some].mT / scale[some]
            for h, kernel in enumerate(self._kernels):
                pairs = (low.key[h] @ ut)[:, None] * self._value[h][:, some]  # k'_c v, (k, v, t)
                channels = torch.cat([self._front[h] @ ut, pairs.flatten(0, 1)]) * kernel.column[some]
                total[h] = total[h] + contract(kernel.keys(some), channels).double()
        moments = []
        for h, kernel in enumerate(self._kernels):
            linear = torch.tensordot(self._back[h].double(), total[h][: -k * v], 1)
            pairs = total[h][-k * v :].unflatten(0, (k, v))
            # M' = sum_j c_j [L v' + sum_c (d_c L) k'_c v], N' = sum_j c_j sum_c (d_c L) k'_c
            value = linear[:v] + sum(kernel.slopes(c, pairs[c]) for c in range(k))
            normaliser = sum(kernel.slopes(c, linear[v + c]) for c in range(k))
            moments.append(kernel.to_nodes(torch.cat([value, normaliser[None]])).to(u.dtype))
        return moments

    def _rows(self, some, u, moments):
        """Output tangents, shape (t, m), of the particles `some`."""
        low = self._low
        heads = []
        for h, kernel in enumerate(self._kernels):
            sums = expand(kernel.queries(some), moments[h])
            query = low.scale * (low.query[h] @ u.mT)  # q'
            own = (self._covariance[h][..., some] * query).sum(1)
            # o' = C q' + r [sum_q F_q M'_q - o sum_q F_q N'_q]
            heads.append(((sums[:-1] - self._output[h][:, some] * sums[-1]) * self._inverse[h][some] + own).mT)
        return low.combine(torch.stack(heads))

    def _rows_transposed(self, some, w, moments):
        """Add to `moments` the pullback of cotangents (t, m) of particles `some`; return the rest (t, d)."""
        low, own = self._low, 0.0
        cotangents = low.combine_transposed(w).mT  # (h, v, t)
        for h, kernel in enumerate(self._kernels):
            g = cotangents[h]
            g_row = g * self._inverse[h][some]  # cotangents of M': r g, of N': -r <g, o>
            channels = torch.cat([g_row, -(g_row * self._output[h][:, some]).sum(0, keepdim=True)])
            moments[h] = moments[h] + contract(kernel.queries(some), channels).double()
            query = (self._covariance[h][..., some] * g[:, None]).sum(0)  # C^T g
            own = own + low.scale * (query.mT @ low.query[h])
        return own

    def _add_backward(self, gradient, moments):
        """Add to `gradient`, shape (n, d), the pullback of the `moments` at the nodes to keys and values."""
        low = self._low
        k, v = low.key_width, low.value_width
        sources = []
        for h, kernel in enumerate(self._kernels):
            source = kernel.to_nodes(moments[h], transposed=True)
            pairs = torch.stack([kernel.slopes(c, source, transposed=True) for c in range(k)])  # (k, v + 1, nodes)
            linear = torch.tensordot(self._back[h].double().mT, torch.cat([source[:v], pairs[:, v]]), 1)
            sources.append(torch.cat([linear, pairs[:, :v].flatten(0, 1)]).to(gradient.dtype))
        for some in self._tiles():
            for h, kernel in enumerate(self._kernels):
                channels = expand(kernel.keys(some), sources[h]) * kernel.column[some]
                key = (channels[-k * v :].unflatten(0, (k, v)) * self._value[h][:, some]).sum(1)
                gradient[some] += channels[: -k * v].mT @ self._front[h] + key.mT @ low.key[h]
        return gradient

    @torch.no_grad()
    def jvp(self, u: Tensor) -> Tensor:
        """Jacobian-vector product: change of the outputs, shape (n, m), for a perturbation `u`, shape (n, d)."""
        self._check("u", u, self.d)
        moments = self._forward_moments(u, u.new_ones(self.n))
        return torch.cat([self._rows(some, u[some], moments) for some in self._tiles()])

    @torch.no_grad()
    def vjp(self, w: Tensor) -> Tensor:
        """Vector-Jacobian product, shape (n, d), for cotangents `w`, shape (n, m): the exact transpose of `jvp`."""
        self._check("w", w, self.attention.output_width)
        moments = [0.0] * self._low.heads
        own = torch.cat([self._rows_transposed(some, w[some], moments) for some in self._tiles()])
        return self._add_backward(own, moments)

    @torch.no_grad()
    def gram(self, u: Tensor, scale: Tensor | None = None) -> Tensor:
        r"""The product :math:`S^{-1} J^\top S^2 J S^{-1} u`, (n, d), in one sweep; S = diag(`scale`), or 1.

        If `scale`, (n,), holds the square roots of the weights, this is for the norm of W2 (Lemma C.6).
        """
        self._check("u", u, self.d)
        if scale is not None:
            check_weights(scale, u)
        return self._gram(u, u.new_ones(self.n) if scale is None else scale)

    def _gram(self, u, scale):
        """`gram` without validation: on a GPU the host would have to wait for its result."""
        forward, backward, own = self._forward_moments(u, scale), [0.0] * self._low.heads, []
        for some in self._tiles():
            image = self._rows(some, u[some] / scale[some, None], forward)
            own.append(self._rows_transposed(some, image * scale[some, None] ** 2, backward))
        return self._add_backward(torch.cat(own), backward) / scale[:, None]


class SeparableGram(GramOperator):
    """Gram operator of one long sequence of particles (1, n, d), from a separable kernel, in linear time."""

    name = "separable"

    def __init__(self, jacobian: SeparableJacobian, root: Tensor, unit: float) -> None:
        self.jacobian, self.root, self.unit = jacobian, root, unit

    @classmethod
    def if_it_pays(cls, attention: Attention, x: Tensor, weights: Tensor | None, *, rtol: float) -> Self | None:
        """As `SeparableJacobian.if_it_pays`, with values and output matrices divided by their units."""
        own = None if weights is None else weights[0]
        scaled, changes = ScaledMatrices.of(attention, x.dtype), {}
        value_unit = scaled.value_unit
        for name, unit in (("value", value_unit), ("value_bias", value_unit), ("output", scaled.unit / value_unit)):
            if (old := getattr(attention, name)) is not None:
                changes[name] = old / unit
        jacobian = SeparableJacobian.if_it_pays(attention.changed(**changes, kept={}), x[0], own, rtol=rtol)
        root = x.new_ones(x.shape[1]) if own is None else own.sqrt()
        return None if jacobian is None else cls(jacobian, root, scaled.unit)

    def gram(self, u: Tensor) -> Tensor:
        """M^T M u / unit^2, shape (1, N), for `u`, shape (1, N)."""
        product = self.jacobian._gram(u.to(self.root.dtype).view(self.jacobian.n, self.jacobian.d), self.root)
        return product.to(u.dtype).view_as(u)
