"""Jacobian of any differentiable map of tokens, by automatic differentiation: the slow twin."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from lipnb.checks import refuse_large_dense

__all__ = ["AutodiffJacobian", "RecordedJacobian"]


class AutodiffJacobian:
    """Jacobian of any differentiable map of tokens at an input, by automatic differentiation.

    The slow twin of `AttentionJacobian`, and the only route for maps without a closed form here. A batch is
    treated as independent sequences, so the map must not mix them.

    Parameters
    ----------
    f : callable
        From tokens (..., n, d) to outputs (..., n, m), differentiable by `torch.func`.
    x : Tensor, shape (..., n, d)
        Tokens; leading dimensions are a batch of independent sequences.

    Raises
    ------
    ValueError
        "x must have shape (..., n, d)", "the map must return ...", "autograd finds no way from the map's output to its
        input": all of it is cut off, as by ``detach``. A map that cuts off a part is differentiated without that part,
        and nothing says so.

    Notes
    -----
    Fused attention kernels have no forward-mode derivative, so `f` runs with PyTorch's plain attention kernel.

    Examples
    --------
    >>> import torch
    >>> from lipnb.jacobian import AutodiffJacobian
    >>> J = AutodiffJacobian(torch.square, torch.tensor([[1.0, 2.0]]))
    >>> J.dense()
    tensor([[2., 0.],
            [0., 4.]])
    """

    def __init__(self, f: Callable[[Tensor], Tensor], x: Tensor) -> None:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.ndim < 2 or x.numel() == 0:
            raise ValueError("x must be a floating point tensor of shape (..., n, d) with at least one token.")
        if not torch.isfinite(x).all():
            raise ValueError("x holds NaN or infinite values: remove them first.")
        self.f, self.x = f, x.detach().clone()
        self.batch_shape = x.shape[:-2]
        joined = []

        def watched(tokens):
            out = f(tokens)
            joined.append(not isinstance(out, torch.Tensor) or out.requires_grad)
            return out

        with sdpa_kernel(SDPBackend.MATH):
            out, self._pullback = torch.func.vjp(watched, self.x)
        if not isinstance(out, torch.Tensor) or out.shape[:-2] != self.batch_shape or out.ndim != x.ndim:
            got = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
            raise ValueError(f"the map must return one tensor of shape {(*self.batch_shape, 'n', 'm')}, got {got}.")
        if not all(joined):
            raise ValueError(
                "autograd finds no way from the map's output to its input, so that its Jacobian would be 0: leave out "
                "detach(), .data, no_grad() and NumPy inside the map (where it is truly constant, the answer is 0)."
            )
        self._out_shape = out.shape

    @property
    def shape(self) -> tuple[int, ...]:
        """Batch shape, then (outputs, inputs) of one sequence, both flattened."""
        return (*self.batch_shape, math.prod(self._out_shape[-2:]), math.prod(self.x.shape[-2:]))

    def jvp(self, u: Tensor) -> Tensor:
        """Jacobian-vector product, shape (..., n, m), of `u`, shape (..., n, d)."""
        with sdpa_kernel(SDPBackend.MATH):
            return torch.func.jvp(self.f, (self.x,), (u,))[1]  # [1] is the tangent, [0] the output

    def vjp(self, w: Tensor) -> Tensor:
        """Vector-Jacobian product, shape (..., n, d), of `w`, shape (..., n, m)."""
        return self._pullback(w)[0]

    def dense(self) -> Tensor:
        """The matrix, shape (..., n m, n d), one row at a time by reverse mode; refused when it is too large."""
        refuse_large_dense(self.shape)
        rows = torch.zeros(self._out_shape, dtype=self.x.dtype, device=self.x.device).flatten(-2)
        dense = []
        for i in range(rows.shape[-1]):
            rows.zero_()[..., i] = 1
            dense.append(self.vjp(rows.unflatten(-1, self._out_shape[-2:])).flatten(-2))
        return torch.stack(dense, dim=-2)


class RecordedJacobian(AutodiffJacobian):
    r"""The same Jacobian for many products: `f` runs once, and every product goes along what was recorded.

    Reverse mode is linear in the cotangent w, so its derivative in w gives the forward product:

    .. math:: J u = \nabla_w \langle J^\top w, u \rangle .

    A forward-mode product computes `f` again beside its tangent; on transformers it takes three to five times as long.
    One product of a random vector is compared with forward mode: where they differ by more than rounding, or `f` cannot
    be differentiated twice, forward mode it is.

    Parameters
    ----------
    f, x
        As for `AutodiffJacobian`.

    Examples
    --------
    >>> import torch
    >>> from lipnb.jacobian.autodiff import RecordedJacobian
    >>> J = RecordedJacobian(torch.square, torch.tensor([[1.0, 2.0]]))
    >>> J.jvp(torch.ones(1, 2))
    tensor([[2., 4.]])
    """

    def __init__(self, f: Callable[[Tensor], Tensor], x: Tensor) -> None:
        super().__init__(f, x)
        self._pullback: Callable | None = None  # it holds all activations once more
        self._record = self._recorded()
        if self._record is None:
            with sdpa_kernel(SDPBackend.MATH):
                self._pullback = torch.func.vjp(f, self.x)[1]

    def _recorded(self):
        """Tokens, outputs, a cotangent and its pullback, with their graph; None where forward mode is to be taken."""
        probe = torch.randn(self.x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(self.x)
        expected = super().jvp(probe)
        try:
            with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
                x, w = self.x.clone().requires_grad_(), torch.ones_like(expected).requires_grad_()
                out = self.f(x)
                (back,) = torch.autograd.grad(out, x, w, create_graph=True)
            found = _derivative(back, w, probe)
        except RuntimeError:  # no second derivative
            return None
        near = torch.finfo(self.x.dtype).eps ** 0.5 * expected.norm()
        return (x, out, w, back) if (found - expected).norm() <= near else None

    def jvp(self, u: Tensor) -> Tensor:
        """Jacobian-vector product, shape (..., n, m), of `u`, shape (..., n, d)."""
        if self._record is None:
            return super().jvp(u)
        _, _, w, back = self._record
        return _derivative(back, w, u)

    def vjp(self, w: Tensor) -> Tensor:
        """Vector-Jacobian product, shape (..., n, d), of `w`, shape (..., n, m)."""
        if self._record is None:
            return super().vjp(w)
        x, out, _, _ = self._record
        return _derivative(out, x, w)


def _derivative(out, x, w):
    """Gradient of <w, out> in x along a graph that stays."""
    (found,) = torch.autograd.grad(out, x, w, retain_graph=True)
    return found
