"""Influence of tokens on each other: norms of the blocks of a Jacobian, and its top singular pair by token."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lipnb.attention import Attention
from lipnb.checks import at_once, check_tolerance, memory_allowance, whole
from lipnb.jacobian import gemm
from lipnb.jacobian.autodiff import AutodiffJacobian
from lipnb.jacobian.closed_form import AttentionJacobian
from lipnb.jacobian.linearization import Linearization
from lipnb.jacobian.matrices import ScaledMatrices
from lipnb.jacobian.operators import KEPT_VECTORS, AutodiffGram, operator_of
from lipnb.spectral import GramOperator, MatrixGram, lanczos, start_vectors
from lipnb.spectral.answer import table_of
from lipnb.spectral.vectors import NotFinite

__all__ = ["SingularPair", "block_norms", "singular_pair"]

SMALL = 64  # widths m and d up to which all singular values of a block are computed


@torch.no_grad()
def block_norms(f: Attention | Callable[[Tensor], Tensor], x: Tensor, *, rtol: float = 1e-3, seed: int = 0) -> Tensor:
    r"""Norms of the blocks of the Jacobian: how much a change of token j moves output token i, for all pairs.

    .. math::
        N_{ij} = \|D_j f_i(X)\|_2 , \qquad
        \max_{ij} N_{ij} \le \|D_X f\|_2 \le \|N\|_2

    Parameters
    ----------
    f : Attention or callable
        An attention map (blocks in closed form, wide ones by their products only), or any differentiable map of
        tokens (..., n, d) to (..., n, m), by automatic differentiation: n m reverse passes.
    x : Tensor, shape (..., n, d)
        Tokens; the computation has their type: for more digits give ``x.double()`` and a map in float64.
    rtol : float
        Relative tolerance of each norm, for blocks wider than 64; narrower ones are exact up to rounding.
    seed : int
        Seed of the solver's start vector.

    Returns
    -------
    Tensor, shape (..., n, n)
        N, from below: each entry is at most `rtol` below the norm of its block, up to rounding, with probability
        1 - 10^-6 over the start vector (as `lipnb.LocalLipschitz.upper`). Rows are output tokens i, columns input
        tokens j. Pairs hidden by a mask are exactly zero.

    Raises
    ------
    ValueError
        As `Attention.check_input`; for callables as `AutodiffJacobian`; if the type of `x` does not resolve `rtol`.

    Notes
    -----
    With :math:`w_{ij} = P_{ij} \kappa'_{ij} (v_j - o_i)`, the blocks are those of castin2024smooth, Lemma C.2:

    .. math::
        D_j f_i = \sum_h W_O \big[P_{ij} W_V + w_{ij}\, (K_j^\top q_i)^\top
                  + \delta_{ij} \textstyle\sum_l w_{il} k_l^\top\, Q_i\big]

    The norm of a matrix of blocks lies between that of any block and that of the matrix of their norms.

    Examples
    --------
    >>> import torch
    >>> from lipnb import Attention, block_norms
    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> f = Attention.from_matrices(0 * eye, 3 * eye, masked=True)  # three times the mean of the visible tokens
    >>> block_norms(f, torch.eye(3, 2, dtype=torch.float64))
    tensor([[3.0000, 0.0000, 0.0000],
            [1.5000, 1.5000, 0.0000],
            [1.0000, 1.0000, 1.0000]], dtype=torch.float64)
    """
    seed = whole("seed", seed)
    if isinstance(f, Attention):
        f.check_input(x)
        rtol = check_tolerance(rtol, x)
        with gemm.full_precision(x.dtype, x.device):
            each = [_of_attention(f, one, rtol, seed) for one in x.reshape(-1, *x.shape[-2:])]
        return torch.stack(each).view(*x.shape[:-1], x.shape[-2])
    rows, norms = _rows_of(f, x), []
    rtol = check_tolerance(rtol, x)
    for blocks in rows:
        with gemm.full_precision(x.dtype, x.device):
            norms.append(_norms(blocks.flatten(0, -3), rtol, seed).view(x.shape[:-1]))
    return torch.stack(norms, -2)


def _of_attention(f, x, rtol, seed):
    """Norms (n, n) of the blocks of one sequence (n, d)."""
    n = len(x)
    found, hidden = x.new_zeros(n, n), f.hidden(n)
    seen = torch.ones(n, n, dtype=torch.bool, device=x.device) if hidden is None else ~hidden
    at, places = Linearization.of(f, x), torch.arange(n, device=x.device)
    small, heads = max(f.width, f.output_width) <= SMALL, f.heads * max(f.key_width, f.value_width)
    each = (f.width if small else KEPT_VECTORS) * f.width + 8 * heads
    own, others = places.expand(2, n), (seen & (places[:, None] != places)).nonzero().T
    for pairs, entries in ((own, each + heads * (n + f.key_width)), (others, each)):
        step = at_once(entries, x.dtype)
        for first in range(0, pairs.shape[1], step):
            i, j = pairs[:, first : first + step]
            blocks = Blocks(at, i, j)
            found[i, j] = (blocks.dense_norms() if small else _solved(f, x, blocks, rtol, seed)).to(x.dtype)
    return found


def _solved(f, x, blocks, rtol, seed):
    """Norms (b,) of wide blocks by Lanczos; if it does not converge, from singular values in float64."""
    b, (i, j) = len(blocks.unit), blocks.places
    start = start_vectors(b, f.width, seed=seed, dtype=x.dtype, device=x.device)
    answer = lanczos(blocks, start, rtol=rtol)
    norms = answer.value * blocks.unit
    f, x = f.to(dtype=torch.float64), x.double()
    for some in (~answer.converged).nonzero():  # one by one: they are few
        norms[some] = Blocks(Linearization.of(f, x), i[some], j[some]).dense_norms()
    return norms


class Blocks(GramOperator):
    r"""Gram operator of blocks :math:`D_j f_i`, (m, d), of the Jacobian of attention, for b pairs (i, j) at once.

    .. math::
        D_j f_i\, u = \sum_h W_O \big[P_{ij} W_V u + w_{ij}\, (q_i \cdot \dot k) + C_i\, \dot q\big], \qquad
        w_{ij} = P_{ij} \kappa'_{ij} (v_j - o_i), \qquad C_i = \textstyle\sum_l w_{il} k_l^\top

    with :math:`\dot k = K_j u`, :math:`\dot q = Q_i u` the derivatives of key and query (for scores -s |q - k|^2 with
    :math:`q_i - 2 s k_j` in place of :math:`q_i`), and the last term only if i = j. Either all pairs have i = j or
    none. `at` is the linearization of one sequence (n, d). Each block is divided by its `unit`, so that no norm leaves
    the range of its type.
    """

    unit: Tensor

    def __init__(self, at: Linearization, i: Tensor, j: Tensor) -> None:
        self.at, self.places, self.attention = at, (i, j), at.attention
        attention, self.matrices = at.attention, ScaledMatrices.of(at.attention, at.attention.dtype)
        group = torch.arange(attention.heads, device=i.device) // (attention.heads // attention.groups)
        P, values, heads = (
            at.probabilities,
            at.value[group] / self.matrices.value_unit,
            at.heads[:, i] / self.matrices.value_unit,
        )
        slopes = P if at.cap_slope is None else P * at.cap_slope  # P kappa'
        p, w, query, own = P[:, i, j], slopes[:, i, j, None] * (values[:, j] - heads), at.query[:, i], None
        if attention.score == "l2":
            query = query - attention.slope * at.key[group][:, j]
        unit = p.amax(0)
        self._of_query = None if at.of_query is None else at.of_query.at(i)
        self._of_key = None if at.of_key is None else at.of_key.at(j)
        if len(i) and i[0] == j[0]:
            every = slopes[:, i, :, None] * (values[:, None] - heads[:, :, None])  # w_il for all l, (h, b, n, v)
            own = every.mT @ at.key[group][:, None]
            unit = torch.maximum(unit, own.abs().amax((0, 2, 3)))
        unit = torch.where(unit > 0, unit, 1)  # a zero block is not divided
        self._P, self._w, self._query = p[..., None] / unit[:, None], w / unit[:, None], query
        self._C = None if own is None else own / unit[:, None, None]
        self.unit = unit.double() * self.matrices.unit

    def restrict(self, index: Tensor) -> "Blocks":
        """The operator of the pairs `index` only."""
        return Blocks(self.at, self.places[0][index], self.places[1][index])

    @property
    def _matrix(self):
        """Key and value matrices side by side, after those of queries if i = j; (d, columns)."""
        first = self.attention.heads * self.attention.key_width if self._C is None else 0
        return self.matrices.projection[:, first:]

    def forward(self, u: Tensor) -> Tensor:
        """Images, shape (b, m), of vectors `u`, shape (b, d), one per pair."""
        f = self.attention
        projected, g = u @ self._matrix, f.groups
        key, value = projected[:, -g * (f.key_width + f.value_width) :].split([g * f.key_width, g * f.value_width], 1)
        key = _split(key, g)
        key = self._to_heads(key if self._of_key is None else self._of_key.forward(key))
        out = self._P * self._to_heads(_split(value, g)) + (key * self._query).sum(-1, keepdim=True) * self._w
        if self._C is not None:
            query = _split(projected[:, : f.heads * f.key_width], f.heads)
            query = query if self._of_query is None else self._of_query.forward(query)
            out = out + (self._C @ query[..., None])[..., 0]
        return _merged(out) if self.matrices.output is None else _merged(out) @ self.matrices.output.mT

    def transposed(self, w: Tensor) -> Tensor:
        """Transpose of `forward`: (b, m) to (b, d)."""
        f = self.attention
        back = _split(w if self.matrices.output is None else w @ self.matrices.output, f.heads)
        key = self._to_groups((self._w * back).sum(-1, keepdim=True) * self._query)
        key = key if self._of_key is None else self._of_key.transposed(key)
        parts = [_merged(key), _merged(self._to_groups(self._P * back))]
        if self._C is not None:
            query = (self._C.mT @ back[..., None])[..., 0]
            parts.insert(0, _merged(query if self._of_query is None else self._of_query.transposed(query)))
        return torch.cat(parts, 1) @ self._matrix.mT

    def gram(self, u: Tensor) -> Tensor:
        """Products with the Gram matrices of all blocks, (b, d) to (b, d)."""
        return self.transposed(self.forward(u))

    def dense_norms(self) -> Tensor:
        """Norms (b,), float64, from the singular values of the blocks."""
        b, d = len(self.unit), self.attention.width
        eye = torch.eye(d, dtype=self.matrices.projection.dtype, device=self.unit.device)
        every = torch.arange(b, device=eye.device).repeat_interleave(d)
        images = self.restrict(every).forward(eye.repeat(b, 1)).view(b, d, -1)
        return torch.linalg.matrix_norm(images, 2).double() * self.unit

    def _to_heads(self, rows):
        """Rows (g, b, w) of the groups repeated for their heads, (h, b, w)."""
        return rows.repeat_interleave(self.attention.heads // self.attention.groups, 0)

    def _to_groups(self, rows):
        """Transpose of `_to_heads`."""
        return rows.unflatten(0, (self.attention.groups, -1)).sum(1)


def _split(rows, heads):
    """Rows (b, h w) cut into heads, (h, b, w)."""
    return rows.unflatten(1, (heads, -1)).movedim(1, 0)


def _merged(rows):
    """Transpose of `_split`."""
    return rows.movedim(0, 1).flatten(1)


def _rows_of(f: Callable[[Tensor], Tensor], x: Tensor) -> Iterator[Tensor]:
    """Yield the blocks (..., n, m, d) of each output token, by reverse mode."""
    jacobian = AutodiffJacobian(f, x)
    m, image = jacobian.shape[-2] // x.shape[-2], []
    for i in range(x.shape[-2]):
        picks = torch.zeros(m, *x.shape[:-1], m, dtype=x.dtype, device=x.device)
        picks[..., i, :] = torch.eye(m, dtype=x.dtype, device=x.device).view(m, *[1] * (x.ndim - 2), m)
        rows = torch.cat([jacobian.vjps(some) for some in picks.split(at_once(64 * x.numel(), x.dtype))])
        image.append((rows * jacobian.probe).sum((-2, -1)))
        yield rows.movedim(0, -2)
    jacobian.check_product(torch.stack(image).flatten(0, 1).movedim(0, -1))


def _norms(matrices, rtol, seed):
    """Spectral norms (b,) of matrices (b, m, d)."""
    if not torch.isfinite(matrices).all():
        raise NotFinite.of(())
    if max(matrices.shape[1:]) <= SMALL:
        return torch.linalg.matrix_norm(matrices, 2)
    b, _, d = matrices.shape
    unit = matrices.abs().amax((1, 2))
    scaled = matrices / torch.where(unit > 0, unit, 1)[:, None, None]

    start = start_vectors(b, d, seed=seed, dtype=matrices.dtype, device=matrices.device)
    answer = lanczos(MatrixGram(scaled), start, rtol=rtol)
    norms, open_ones = answer.value, ~answer.converged
    if open_ones.any():
        norms[open_ones] = torch.linalg.matrix_norm(scaled[open_ones].double(), 2)
    return (norms * unit).to(matrices.dtype)


@dataclass(frozen=True)
class SingularPair:
    r"""Top singular pair of the Jacobian: the direction in which a map is steepest at an input, and its image.

    .. math:: D_X f\, v = \sigma u, \qquad |v| = |u| = 1, \qquad \sigma = \|D_X f\|_2

    Attributes
    ----------
    value : Tensor, shape of the batch
        Lower bound on :math:`\sigma`.
    upper : Tensor, shape of the batch
        Upper bound, with probability 1 - 10^-6, as `lipnb.LocalLipschitz.upper`, the rounding of an attention included:
        far above `value` where the type of `x` is too coarse for this input, even if `converged`.
    input : Tensor, shape (..., n, d)
        v: the unit change of the tokens that is stretched most; its entry of largest modulus is positive.
    output : Tensor, shape (..., n, m)
        u: the resulting change of the output tokens, divided by its length; 0 if :math:`\sigma` is 0.
    residual : Tensor, shape of the batch
        Residual of the pair, see `lipnb.spectral.SpectralNorm`.
    converged : Tensor of bool, shape of the batch
        Whether the solver met its tolerance. If the two largest singular values differ by less, v may be any mixture
        of their vectors.
    """

    value: Tensor
    upper: Tensor
    input: Tensor
    output: Tensor
    residual: Tensor
    converged: Tensor

    @property
    def table(self) -> Any:
        """The answer as a pandas table, one row for each item of the batch, without the vectors."""
        return table_of(self)

    @property
    def moving(self) -> Tensor:
        """Norm of the change `input` at each token, shape (..., n); the squares sum to 1."""
        return torch.linalg.vector_norm(self.input, dim=-1)

    @property
    def moved(self) -> Tensor:
        """Norm of the change `output` at each output token, shape (..., n); the squares sum to 1 unless it is 0."""
        return torch.linalg.vector_norm(self.output, dim=-1)


@torch.no_grad()
def singular_pair(
    f: Attention | Callable[[Tensor], Tensor], x: Tensor, *, rtol: float = 1e-4, max_steps: int = 300, seed: int = 0
) -> SingularPair:
    r"""Top singular pair of the Jacobian of `f` at tokens `x`: which tokens move most, and which outputs.

    Parameters
    ----------
    f : Attention or callable
        As for `lipnb.local_lipschitz`.
    x : Tensor, shape (..., n, d)
        Tokens.
    rtol : float
        Relative tolerance on the value.
    max_steps : int
        Maximal number of products with the Jacobian and its transpose before the last one.
    seed : int
        Seed of the start vector.

    Returns
    -------
    SingularPair
        The pair as numbers without a gradient (for a penalty in training see `lipnb.differentiable_lipschitz`), and
        its norms by token, `moving` and `moved`.

    Raises
    ------
    ValueError
        As `lipnb.local_lipschitz`.

    Notes
    -----
    Lanczos with its certificate, as `lipnb.local_lipschitz`. In float32 `converged` is False if that precision
    cannot prove the tolerance; give `x` and `f` in float64 then.

    Examples
    --------
    >>> import torch
    >>> from lipnb import Attention, singular_pair
    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> f = Attention.from_matrices(0 * eye, eye, masked=True)  # means of visible tokens
    >>> pair = singular_pair(f, torch.eye(3, 2, dtype=torch.float64))
    >>> pair.moving.round(decimals=2)  # the first token is in every mean
    tensor([0.9400, 0.3100, 0.1000], dtype=torch.float64)
    """
    seed, max_steps = whole("seed", seed), whole("max_steps", max_steps, 1)
    if isinstance(f, Attention):
        f.check_input(x)
    rtol = check_tolerance(rtol, x)
    # a user's map is measured under PyTorch's settings, an Attention in the precision of x
    with gemm.full_precision(x.dtype, x.device) if isinstance(f, Attention) else nullcontext():
        return _pair(f, x, rtol, max_steps, seed)


def _pair(f, x, rtol, max_steps, seed):
    """`singular_pair` with validated options."""
    flat = x.reshape(-1, *x.shape[-2:]) if isinstance(f, Attention) else x
    operator = operator_of(f, flat, None, memory=memory_allowance(x.device), dense=False, rtol=rtol)
    dtype = x.dtype
    if isinstance(operator, AutodiffGram):
        operator.check(rtol, certified=False)
        dtype = operator.vectors
    start = start_vectors(x.shape[:-2].numel(), x.shape[-2:].numel(), seed=seed, dtype=dtype, device=x.device)
    found = lanczos(operator, start, rtol=rtol, max_steps=max_steps)
    assert found.vector is not None  # Lanczos always returns them
    largest = found.vector.take_along_dim(found.vector.abs().argmax(1, keepdim=True), 1)
    v = (found.vector * torch.where(largest < 0, -1, 1)).view(x.shape).to(x.dtype)
    v = v / torch.linalg.vector_norm(v, dim=(-2, -1), keepdim=True)
    u = AttentionJacobian(f, x).jvp(v) if isinstance(f, Attention) else operator.jacobian.jvp(v)
    size = u.abs().amax((-2, -1), keepdim=True)  # squares of the quotients stay in the range of the type
    u = u / torch.where(size > 0, size, 1)
    length = torch.linalg.vector_norm(u, dim=(-2, -1), keepdim=True)
    batch = x.shape[:-2]
    return SingularPair(
        (found.value * operator.unit).view(batch),
        (found.upper * operator.unit + operator.error).view(batch),
        v,
        u / torch.where(length > 0, length, 1),
        found.residual.view(batch),
        found.converged.view(batch),
    )
