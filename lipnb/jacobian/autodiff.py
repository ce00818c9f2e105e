"""Jacobian of any differentiable map of tokens, by automatic differentiation: the slow twin."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from lipnb.checks import refuse_large_dense

__all__ = ["AutodiffJacobian", "RecordedJacobian", "plain_kernels"]

PROBE = 0x5EED_0F_A_920BE  # seed of the vector that two ways to a product are compared on
ROUNDING = 256  # units of rounding by which they may differ


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Run the block with PyTorch's plain attention and layers: fused ones have no forward-mode derivative."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


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
        input": all of it is cut off, as by ``detach``. A map that detaches a part is differentiated without that part,
        and nothing says so.

    Notes
    -----
    Fused kernels have no forward-mode derivative, so `f` runs with PyTorch's plain attention (`plain_kernels`).

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
            got = tuple(x.shape) if isinstance(x, torch.Tensor) else type(x).__name__
            raise ValueError(
                "x must be a floating point tensor of shape (..., n, d) with at least one token, "
                f"got {got}: one vector is x[None]."
            )
        if not torch.isfinite(x).all():
            raise ValueError("x holds NaN or infinite values: remove them first.")
        self.f, self.x = f, x.detach().clone()
        self.batch_shape = x.shape[:-2]
        joined = []

        def watched(tokens):
            out = f(tokens)
            joined.append(not isinstance(out, torch.Tensor) or out.requires_grad)
            return out

        with plain_kernels():
            out, self._pullback = torch.func.vjp(watched, self.x)
        if not isinstance(out, torch.Tensor) or out.shape[:-2] != self.batch_shape or out.ndim != x.ndim:
            got = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
            raise ValueError(f"the map must return one tensor of shape {(*self.batch_shape, 'n', 'm')}, got {got}.")
        if not all(joined):
            raise ValueError(
                "autograd finds no way from the map's output to its input, so that its Jacobian would be 0: leave out "
                "detach(), .data, no_grad() and NumPy inside the map (where it is truly constant, the answer is 0)."
            )
        self._out_shape, self._out = out.shape, out.detach()

    @property
    def shape(self) -> tuple[int, ...]:
        """Batch shape, then (outputs, inputs) of one sequence, both flattened."""
        return (*self.batch_shape, math.prod(self._out_shape[-2:]), math.prod(self.x.shape[-2:]))

    def jvp(self, u: Tensor) -> Tensor:
        """Jacobian-vector product, shape (..., n, m), of `u`, shape (..., n, d)."""
        with plain_kernels():
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
            # a copy: what comes back may be the very tensor that went in
            dense.append(self.vjp(rows.unflatten(-1, self._out_shape[-2:])).flatten(-2).clone())
        return torch.stack(dense, dim=-2)


class RecordedJacobian(AutodiffJacobian):
    r"""The same Jacobian for many products: they go along one recorded run, and `f` is not run again.

    Reverse mode is linear in the cotangent w, so its derivative in w gives the forward product:

    .. math:: J u = \nabla_w \langle J^\top w, u \rangle .

    A forward-mode product computes `f` again beside its tangent; on transformers it took three to four times as long.
    One product of a random vector is compared with forward mode, for each sequence. Forward mode is used throughout
    where they differ by more than 256 units of rounding, or `f` cannot be differentiated twice.

    Parameters
    ----------
    f, x
        As for `AutodiffJacobian`.

    Attributes
    ----------
    unit : Tensor, shape of the batch
        Power of two near the size of the Jacobian, float64: products over it neither overflow nor underflow.

    Raises
    ------
    ValueError
        As `AutodiffJacobian`; "the map gives two different outputs for one input"; "forward and reverse mode
        disagree about this map": they are of two different maps.

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
        self._record = None
        self._check_same()
        generator = torch.Generator().manual_seed(PROBE)
        probe = torch.randn(self.x.shape, generator=generator, dtype=torch.float64).to(self.x)
        image = super().jvp(probe)
        size = image.detach().abs().amax((-2, -1)).double()
        size = torch.where((size > 0) & torch.isfinite(size), size, 1)
        far = math.frexp(torch.finfo(self.x.dtype).max)[1] - 8  # a power of two that the type has, and its inverse
        self.unit = torch.ldexp(torch.ones_like(size), torch.frexp(size).exponent.clamp(-far, far))
        self._record = self._recorded(probe, image)
        if self._record is None:
            with plain_kernels():
                self._pullback = torch.func.vjp(f, self.x)[1]
            self._check_modes(probe, image)

    def _check_same(self):
        """Raise one sentence where a second run of the map gives something else."""
        with torch.no_grad(), plain_kernels():
            again = self.f(self.x)
        near, size = torch.finfo(self.x.dtype).eps ** 0.5, self._out.abs().max().item()
        # where the output is not finite, the products will say so
        if math.isfinite(size) and not torch.allclose(again, self._out, rtol=near, atol=near * size):
            raise ValueError(
                "the map gives two different outputs for one input: call .eval() on a module with dropout, and draw "
                "random weights once, outside the map."
            )

    def _recorded(self, probe, image):
        """Tokens, outputs, a cotangent and its pullback, with their graph; None where forward mode is to be taken."""
        try:
            with torch.enable_grad(), plain_kernels():
                x, w = self.x.clone().requires_grad_(), torch.ones_like(image).requires_grad_()
                out = self.f(x)
                (back,) = torch.autograd.grad(out, x, w, create_graph=True)
            found = _derivative(back, w, probe)
        except Exception:  # whatever a map raises that cannot be differentiated twice
            return None
        scale = self.unit.to(image)[..., None, None]
        gap, long = (torch.linalg.vector_norm(part / scale, dim=(-2, -1)) for part in (found - image, image))
        return (x, out, w, back) if (gap <= ROUNDING * torch.finfo(long.dtype).eps * long).all() else None

    def _check_modes(self, probe, image):
        """Raise one sentence unless reverse mode is the transpose of forward mode, as far as one vector shows."""
        scale = self.unit.to(image)[..., None, None]
        image = image / scale
        back = self.vjp(image) / scale
        forth, to = (part.double().square().sum((-2, -1)) for part in (image, back))
        gap = ((probe * back).double().sum((-2, -1)) - forth).abs()
        most = forth + to.sqrt() * torch.linalg.vector_norm(probe.double(), dim=(-2, -1))
        if (gap > torch.finfo(self.x.dtype).eps ** 0.5 * most).any():
            raise ValueError(
                "forward and reverse mode disagree about this map: a part of it runs under no_grad() (write detach() "
                "to leave it out), or an autograd function of its own has two different derivatives."
            )

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
