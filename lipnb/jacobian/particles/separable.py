"""Jacobian of unmasked attention on many weighted particles, in time linear in their number."""

import math

import torch
from torch import Tensor

from lipnb.attention import Attention
from lipnb.checks import check_weights
from lipnb.jacobian.particles.expansion import MAX_NODES, NotSeparable, contract, expand
from lipnb.jacobian.particles.narrowing import kernels

__all__ = ["SeparableJacobian", "separable_pays"]

PARTICLES_PER_NODE = 4  # with fewer for each node, choosing the nodes costs more than a solve in exact tiles
PARTICLES = {"cpu": 4096, "cuda": 2**17}  # of a tile: what is fast, far below what memory allows


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
        Unmasked; any heads, biases and output. Its logits must depend on the keys through at most 3 dimensions: key
        width at most 3, or tokens of width at most 3, or key and query matrices whose product has rank at most 3.
    x : Tensor, shape (n, d)
        Particles, one set.
    weights : Tensor, shape (n,), optional
        Positive weights: the Jacobian is that of the weighted map :math:`f_a`. For the norm of W2, see `gram`.
    rtol : float
        Error allowed to the kernel, relative to each row's sum; raised to 64 times the rounding unit of the dtype.
    nodes : int or tuple of k int, optional
        Chebyshev nodes of each key dimension. Default: the fewest that reach `rtol` on sampled rows.
    seed : int
        Seed of the sampled rows.
    tile : int, optional
        Particles at once.

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
        "masked attention has no separable kernel", "the key width is ...", "x must have shape (n, d)", "queries and
        keys spread too far for a separable kernel ...: use TiledJacobian".

    Notes
    -----
    castin2024smooth, Lemma C.6, for the Jacobian with weights. The exact twin is `TiledJacobian`.

    Examples
    --------
    >>> import torch
    >>> from lipnb import Attention
    >>> from lipnb.jacobian.particles import SeparableJacobian, TiledJacobian
    >>> eye, x = torch.eye(1, dtype=torch.float64), torch.linspace(-1, 1, 500, dtype=torch.float64)[:, None]
    >>> attention = Attention.from_matrices(eye, eye)
    >>> J = SeparableJacobian(attention, x)
    >>> J.shape, J.kernel_error < 1e-6, torch.dist(J.jvp(x), TiledJacobian(attention, x).jvp(x)).item() < 1e-5
    ((500, 500), True, True)
    """

    @torch.no_grad()
    def __init__(
        self,
        attention: Attention,
        x: Tensor,
        weights: Tensor | None = None,
        *,
        rtol: float = 1e-6,
        nodes: int | tuple[int, ...] | None = None,
        seed: int = 0,
        tile: int | None = None,
    ) -> None:
        low, expansions = kernels(attention, x, weights)
        self.n, self.d = x.shape
        self.attention, self._low = attention, low
        self.tile = tile or PARTICLES.get(x.device.type, PARTICLES["cuda"])
        if nodes is None:
            rtol = max(rtol, 64 * torch.finfo(x.dtype).eps)
            self._kernels = [kernel.choose(rtol, seed) for kernel in expansions]
        else:
            nodes = (nodes,) * low.key_width if isinstance(nodes, int) else tuple(nodes)
            if len(nodes) != low.key_width or min(nodes) < 1 or math.prod(nodes) > MAX_NODES:
                raise ValueError(
                    f"nodes must be {low.key_width} positive numbers, at most {MAX_NODES} nodes in all, got {nodes}."
                )
            self._kernels = [kernel.use(nodes) for kernel in expansions]
        self.nodes = tuple(kernel.nodes for kernel in self._kernels)
        self.kernel_error = max(kernel.error(seed + 1) for kernel in self._kernels)
        # channels that are linear in the tangent: the tangent itself, or the values' and keys' if they are fewer
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
        """Tangents of M and N at the nodes, (v + 1, p_1, .., p_k) for each head, of a tangent (n, d) over `scale`."""
        low = self._low
        k, v = low.key_width, low.value_width
        total = [0.0] * low.heads
        for some in self._tiles():
            ut = u[some].mT / scale[some]
            for h, kernel in enumerate(self._kernels):
                pairs = (low.key[h] @ ut)[:, None] * self._value[h][:, some]
                channels = torch.cat([self._front[h] @ ut, pairs.flatten(0, 1)]) * kernel.column[some]
                total[h] = total[h] + contract(kernel.keys(some), channels).double()
        moments = []
        for h, kernel in enumerate(self._kernels):
            linear = torch.tensordot(self._back[h].double(), total[h][: -k * v], 1)
            pairs = total[h][-k * v :].unflatten(0, (k, v))
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
            query = low.scale * (low.query[h] @ u.mT)
            own = (self._covariance[h][..., some] * query).sum(1)
            heads.append(((sums[:-1] - self._output[h][:, some] * sums[-1]) * self._inverse[h][some] + own).mT)
        return low.combine(torch.stack(heads))

    def _rows_transposed(self, some, w, moments):
        """Adds to `moments` what cotangents (t, m) of the particles `some` send through the kernel; returns (t, d)."""
        low, own = self._low, 0.0
        cotangents = low.combine_transposed(w).mT  # (h, v, t)
        for h, kernel in enumerate(self._kernels):
            g = cotangents[h]
            g_row = g * self._inverse[h][some]
            channels = torch.cat([g_row, -(g_row * self._output[h][:, some]).sum(0, keepdim=True)])
            moments[h] = moments[h] + contract(kernel.queries(some), channels).double()
            query = (self._covariance[h][..., some] * g[:, None]).sum(0)
            own = own + low.scale * (query.mT @ low.query[h])
        return own

    def _add_backward(self, gradient, moments):
        """Adds to `gradient`, shape (n, d), what the `moments` at the nodes send back to the keys and values."""
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
        """Vector-Jacobian product, the exact transpose of `jvp`: (n, d) from cotangents `w`, shape (n, m)."""
        self._check("w", w, self.attention.output_width)
        moments = [0.0] * self._low.heads
        own = torch.cat([self._rows_transposed(some, w[some], moments) for some in self._tiles()])
        return self._add_backward(own, moments)

    @torch.no_grad()
    def gram(self, u: Tensor, scale: Tensor | None = None) -> Tensor:
        r"""Product with :math:`S^{-1} J^\top S^2 J S^{-1}`, S = diag(`scale`), in one sweep over the query factors.

        Parameters
        ----------
        u : Tensor, shape (n, d)
            Vector to multiply.
        scale : Tensor, shape (n,), optional
            Square roots of the weights, for the Jacobian in the norm of W2 (Lemma C.6); default 1, plain J^T J.

        Returns
        -------
        Tensor, shape (n, d)
            The same as ``vjp(jvp(u))`` when there is no scale.
        """
        self._check("u", u, self.d)
        if scale is not None:
            check_weights(scale, u)
        return self._gram(u, u.new_ones(self.n) if scale is None else scale)

    def _gram(self, u, scale):
        """`gram` of what is known to be right: on a GPU the host need not wait for an answer to that."""
        forward, backward, own = self._forward_moments(u, scale), [0.0] * self._low.heads, []
        for some in self._tiles():
            image = self._rows(some, u[some] / scale[some, None], forward)
            own.append(self._rows_transposed(some, image * scale[some, None] ** 2, backward))
        return self._add_backward(torch.cat(own), backward) / scale[:, None]


@torch.no_grad()
def separable_pays(
    attention: Attention, x: Tensor, weights: Tensor | None = None, *, rtol: float = 1e-6, seed: int = 0
) -> bool:
    """Whether `SeparableJacobian` applies at these particles and is worth it against exact tiles.

    Parameters
    ----------
    attention, x, weights
        As `SeparableJacobian` takes them.
    rtol, seed
        As `SeparableJacobian` takes them.

    Returns
    -------
    bool
        True where the attention is unmasked, depends on at most 3 key dimensions, its queries and keys spread little
        enough, and there are at least four times as many particles as nodes. Costs O(n).

    Examples
    --------
    >>> import torch
    >>> from lipnb import Attention
    >>> from lipnb.jacobian.particles import separable_pays
    >>> eye, x = torch.eye(1, dtype=torch.float64), torch.linspace(-1, 1, 500, dtype=torch.float64)[:, None]
    >>> separable_pays(Attention.from_matrices(eye, eye), x), separable_pays(Attention.from_matrices(eye, eye), x[:9])
    (True, False)
    """
    if attention.score != "dot" or attention.more:
        return False
    try:
        _, expansions = kernels(attention, x, weights)
        rtol = max(rtol, 64 * torch.finfo(x.dtype).eps)
        nodes = max(math.prod(kernel.choose(rtol, seed).nodes) for kernel in expansions)
    except NotSeparable:
        return False
    return len(x) >= PARTICLES_PER_NODE * nodes
