"""Jacobian of any differentiable map of tokens, by automatic differentiation: the slow reference implementation."""

import math
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from lipnb.checks import as_tensor, check_finite_tokens, check_precision, check_vector, refuse_large_dense
from lipnb.scaling import exponent, powers_of_two
from lipnb.threads import Shared, turn

__all__ = ["AutodiffJacobian"]

PROBE = 0x5EED_0F_A_920BE  # seed of the vectors on which products are compared
ROUNDING = 256  # units of rounding by which two computations of a product may differ
LINEAR = 1e-11  # relative linearity of products in float64; products with a float32 part are not as linear
SINGLE = 1e-4  # the same for float32, where sharp attention cancels; products with a TF32 part are not as linear
KINKS = 4  # slopes of the map's values count against a product if this many times farther from it than from each other
FAR = (1 / 64, 1 / 32, 1 / 16, 1 / 4, 1)  # steps of slopes far from x, as shares of its largest entry
FARTHER = 0.9  # share of the distance of near slopes: a far slope closer to the product may be that of a quantised map


@contextmanager
def _plain() -> Iterator[None]:
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


_kernels = Shared(_plain)
_uncompiled = Shared(lambda: torch.compiler.set_stance("force_eager"))


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Run the block with PyTorch's plain attention and layers, uncompiled: fused ones lack derivatives.

    Inference mode, which records no graph, is off inside.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(_kernels())
        if "torch._dynamo" in sys.modules:  # else nothing is compiled, and importing it takes seconds
            stack.enter_context(_uncompiled())
        yield


PRETRAINED = "; of a network in a folder lipnb.models.load(folder) gives model.attention(layer) and model.network()"
FIRST = ": give the part that holds the tokens, such as lambda x: module(x)[0]"
ONCE = ("torch::autograd::Error", "torch::autograd::NotImplemented")  # PyTorch's nodes for a missing derivative
UNLIKE = (
    "the values of this map around x do not change as its reverse mode says, and it has no forward mode to compare "
    "with: the backward pass of a custom autograd function is not the derivative of its forward pass, or a part "
    "is cut off by detach(), or rounds. Correct that backward pass; if another derivative is intended, give the "
    "function a jvp as well, or write a straight-through estimator as z + (rounded(z) - z).detach()."
)
DISAGREE = (
    "forward and reverse mode disagree about this map: a part of it runs under no_grad() (write detach() to leave it "
    "out), a backward hook changes gradients, a custom autograd function has two different derivatives, it "
    "draws random numbers, or its derivative cancels and leaves only rounding (its constant is then 0)."
)
MIXES = (
    "the map mixes the sequences of its batch: the output of one depends on the input of another. The leading "
    "dimensions of x are the batch, as are those of each tensor of a list, and must be independent: use "
    "batch_first=True in nn.MultiheadAttention, call .eval() on a module with batch norm, take means over dim=-2, not "
    "dim=0, or give one sequence (n, d) at a time."
)


class AutodiffJacobian:
    """Jacobian of any differentiable map of tokens at an input, by automatic differentiation.

    The slow reference implementation of `AttentionJacobian`, and the only route for maps without a closed form. A
    batch is treated as independent sequences, so the map must not mix them.

    Parameters
    ----------
    f : callable
        From tokens (..., n, d) to outputs (..., n, m), differentiable by PyTorch in reverse mode.
    x : Tensor, shape (..., n, d)
        Tokens; leading dimensions are a batch of independent sequences.

    Attributes
    ----------
    precision : torch.dtype
        Measured precision of `f`: that of `x`, or a lower one whose rounding shows in its products, because of
        ``torch.autocast``, ``torch.set_float32_matmul_precision``, a part of `f` in that type, or large numbers that
        cancel in `f`. TF32 has as many digits as float16 and is reported as such.

    Raises
    ------
    ValueError
        If `f` is not a map of tokens or fails in its first run (that error is chained), does not return one real tensor
        (..., n, m), gives NaN or two different outputs for `x`, or mixes the sequences of its batch (tested with
        cotangents of half a batch); if reverse mode fails, or autograd finds no path from output to input, as after
        ``detach`` of everything. A map that detaches only a part is differentiated without that part, and no error
        tells. If forward and reverse mode disagree, or the values of `f` around `x` contradict its reverse mode (see
        Notes).

    Notes
    -----
    Products use the backward passes of `f`. A straight-through estimator is differentiated as its surrogate. Wrong
    backward passes are detected along one random direction, in `dense`, in `lipnb.block_norms` and in the solvers: by
    comparison with forward mode, up to the square root of the rounding unit; without forward mode, by comparison with
    two values of `f` near x, up to its cube root (6e-6 in float64, 5e-3 in float32), unless kinks, jumps or the
    curvature of `f` hide the error. Errors that change the product with this direction by less are not detected.

    Fused kernels have no forward-mode derivative, so `f` runs with PyTorch's plain attention (`plain_kernels`). If
    forward mode is still missing, reverse mode twice gives the products: see `RecordedJacobian`.

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
        check_map(f)
        _check_input(x)
        self.f, self.batch_shape = (lambda tokens: f(tokens.clone())), x.shape[:-2]  # a map may modify its argument
        with torch.enable_grad(), plain_kernels():
            self.x = x.detach().clone()
            self._input = self.x.clone().requires_grad_()
            out = _first_run(self.f, self._input, PRETRAINED if isinstance(f, torch.nn.Module) else "")
            _check_output(out, x)
            self._output = out.to(x.dtype)  # torch.autocast may return another type
        self._out_shape = out.shape
        self._check_reverse()
        self._check_same()
        if self.batch_shape and self.batch_shape.numel() == 1:
            self._check_alone()

    @property
    def shape(self) -> tuple[int, ...]:
        """Batch shape, then (outputs, inputs) of one sequence, both flattened."""
        return (*self.batch_shape, math.prod(self._out_shape[-2:]), math.prod(self.x.shape[-2:]))

    def _pulled(self, w):
        """`vjp`, or None if the output does not depend on the input."""
        if not self._output.requires_grad:
            return None
        with plain_kernels():
            return torch.autograd.grad(self._output, self._input, w, retain_graph=True, allow_unused=True)[0]

    def jvp(self, u: Tensor) -> Tensor:
        """Jacobian-vector product, shape (..., n, m), of `u`, shape (..., n, d).

        Raises
        ------
        ValueError
            If neither forward mode nor reverse mode twice goes through the map (`vjp` and `dense` need neither), or if
            `u` does not fit.
        """
        check_vector("u", u, self.x.shape, self.x, several=False)
        try:
            return self._pushed(u)
        except Exception as error:  # a map without forward mode may raise anything
            found = self._twice()
            if isinstance(found, Exception):
                raise _no_products(error, found) from error
            return _derivative(found[1], found[0], u)

    def _pushed(self, u):
        """`jvp` by forward mode."""
        with turn(), plain_kernels():  # PyTorch counts the levels of forward mode for all threads together
            # [1] is the tangent, [0] the output
            return torch.func.jvp(lambda x: self.f(x).to(self.x.dtype), (self.x,), (u,))[1]

    def _twice(self):
        """A cotangent and its pullback, with their graph; or the exception if reverse mode twice fails."""
        try:
            with torch.enable_grad(), plain_kernels():
                w = torch.ones_like(self._output).requires_grad_()
                (back,) = torch.autograd.grad(self._output, self._input, w, create_graph=True)
                _derivative(back, w, torch.zeros_like(back))
        except Exception as error:  # whatever a map raises
            return error
        return w, back

    def vjp(self, w: Tensor) -> Tensor:
        """Vector-Jacobian product, shape (..., n, d), of `w`, shape (..., n, m)."""
        check_vector("w", w, self._out_shape, self.x, several=False)
        return _derivative(self._output, self._input, w)

    def vjps(self, w: Tensor) -> Tensor:
        """`vjp` of several cotangents at once, shape (p, ..., n, d), of `w`, shape (p, ..., n, m)."""
        check_vector("w", w, self._out_shape, self.x, several=True)
        try:
            with plain_kernels():
                return torch.autograd.grad(self._output, self._input, w, retain_graph=True, is_grads_batched=True)[0]
        except RuntimeError:  # a backward pass that cannot be vectorised
            return torch.stack([self.vjp(one) for one in w])

    def dense(self) -> Tensor:
        """The matrix, shape (..., n m, n d), one row at a time by reverse mode; ValueError if it is too large."""
        refuse_large_dense(self.shape)
        rows = torch.zeros(self._out_shape, dtype=self.x.dtype, device=self.x.device).flatten(-2)
        dense = []
        for i in range(rows.shape[-1]):
            rows.zero_()[..., i] = 1
            # a copy: the result may be the input tensor itself
            dense.append(self.vjp(rows.unflatten(-1, self._out_shape[-2:])).flatten(-2).clone())
        matrix = torch.stack(dense, dim=-2)
        self.check_product((matrix @ self.probe.flatten(-2)[..., None])[..., 0])
        return matrix

    # checks of a map before its products are used, each with its own error message

    @property
    def probe(self) -> Tensor:
        """The vector, shape (..., n, d), on which the two modes are compared."""
        return self._probe(self.x.shape, 0)

    def _probe(self, shape, place):
        """A random tensor of this shape, reproducible, and different for each `place`."""
        generator = torch.Generator().manual_seed(PROBE + place)
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(self.x)

    def _check_reverse(self):
        """Check that reverse mode works and sequences do not mix; measure `precision` on the way."""
        w, apart, triple = self._probe(self._out_shape, 1), None, None
        try:
            back = self._pulled(w)
            if back is not None:
                apart = self._pulled_apart(w, back)
                triple = None if apart is None else self._pulled(3 * w)
        except Exception as error:
            raise ValueError(
                f"reverse mode fails on this map, {_short(error)}; torch.utils.checkpoint needs use_reentrant=False."
            ) from error
        if back is None:
            raise ValueError(
                "autograd finds no path from the map's output to its input, so its Jacobian would be 0: remove "
                "detach(), .data, no_grad() and NumPy from the map (if it is truly constant, the answer is 0)."
            )
        if apart is None:
            raise ValueError(MIXES)
        self._check_number(apart)
        self.gap, self.precision = _precision(apart, triple)

    def _pulled_apart(self, w, back):
        """The pullback `back` of w, computed from separate halves of the batch; None if one half affects the other.

        Two sequences differ in some bit of their indices: for each bit, cotangents of each half are pulled back alone.
        """
        b = self.batch_shape.numel()
        number = torch.arange(b, device=self.x.device).view(*self.batch_shape, 1, 1)
        for bit in range((b - 1).bit_length()):
            half = (number >> bit) % 2 == 0
            one, other = self._pulled(torch.where(half, w, 0)), self._pulled(torch.where(half, 0, w))
            mixed = torch.where(half, other, one)  # at sequences without a cotangent: exactly zero
            if (torch.isfinite(mixed) & (mixed != 0)).any():
                return None
            back = torch.where(half, one, other)
        return back

    def _check_number(self, product):
        """Raise ValueError if a product is NaN; solvers detect overflow."""
        if torch.isnan(product).any():
            raise ValueError(
                (
                    "the map gives NaN at this input, and so has no Jacobian there: "
                    if torch.isnan(self._output).any()
                    else "a Jacobian product is NaN or infinite, though the map's output is not NaN: it is not "
                    "differentiable here, or leaves the range of its precision, or hides the NaN inside: "
                )
                + "a softmax over a fully masked row gives NaN (mask with torch.finfo(dtype).min instead of -inf, or "
                "leave such tokens out), and so does the direction of a zero vector."
            )

    def _check_alone(self):
        """Check that the only sequence of a batch has the same output in a batch of two."""
        beside = self.x + self._probe(self.x.shape, 3) * self.x.abs().max().clamp_min(1)
        try:
            with torch.no_grad(), plain_kernels():
                both = self.f(torch.cat([self.x, beside]))
        except Exception:  # a map may accept a single sequence only
            return
        once, near = self._output.detach(), torch.finfo(self.precision).eps ** 0.5
        if both.shape != (2 * len(once), *once.shape[1:]):
            return
        size = once.abs().max().item()
        if not torch.allclose(both[: len(once)].to(once), once, rtol=near, atol=near * size, equal_nan=True):
            raise ValueError(MIXES)

    def _check_same(self):
        """Check that a second run of the map gives the same output."""
        with torch.no_grad(), plain_kernels():
            again = self.f(self.x)
        once, near = self._output.detach(), torch.finfo(self.precision).eps ** 0.5
        finite = torch.isfinite(once)  # elsewhere the products will fail
        size = torch.where(finite, once, 0).abs().max().item()
        if not torch.allclose(again.to(once)[finite], once[finite], rtol=near, atol=near * size):
            raise ValueError(
                "the map gives two different outputs for one input: call .eval() on a module with dropout, and draw "
                "random weights once, outside the map."
            )

    def check_product(self, own: Tensor) -> None:
        """Compare `own`, the product of `probe` by reverse mode, with forward mode, or else with values of the map.

        `own` has shape (..., n m).
        """
        probe = self.probe
        try:
            image = self._pushed(probe).flatten(-2)
        except Exception:  # a map without forward mode may raise anything
            self._check_values(probe, own.unflatten(-1, self._out_shape[-2:]))
            return
        unit = torch.maximum(own.abs().amax(-1), image.abs().amax(-1))[..., None].double()
        unit = torch.where((unit > 0) & torch.isfinite(unit), unit, 1)

        def length(part):
            return torch.linalg.vector_norm(part / unit, dim=-1)

        eps = torch.finfo(self.precision).eps
        allowed = eps**0.5 * (length(own) + length(image))
        if (length(own - image) > allowed).any():
            # if all cancels, a product is pure rounding and not linear: the sum of two products measures it
            beside = self._probe(self.x.shape, 4)
            both = self._pushed(beside).flatten(-2) + image - self._pushed(probe + beside).flatten(-2)
            outputs, tokens = (part.detach().abs().max().double() for part in (self._output, self.x))
            slope = outputs / tokens.clamp_min(torch.finfo(self.x.dtype).tiny)
            largest = eps**0.5 * slope * torch.linalg.vector_norm(probe.double()) / unit[..., 0]
            allowed = allowed + torch.minimum(ROUNDING * length(both), largest)
        # moving tokens by their own size would change these outputs by less than their rounding
        moved, tokens = torch.linalg.vector_norm(probe.double()), self.x.detach().abs().max().double()
        least = eps * moved * self._output.detach().abs().double().flatten(-2)
        apart = own - image
        apart = apart.masked_fill((apart.abs().double() * tokens <= least) & (tokens > 0), 0)
        if (length(apart) > allowed).any():
            raise ValueError(DISAGREE)

    def _check_values(self, u, image):
        """Compare values of the map near x, along u, with `image`, the product with u, in each sequence.

        Two values suffice if the map is smooth. Otherwise slopes on both sides, at two distances, show how far kinks,
        jumps and rounding move a slope, and slopes far away show whether the map is quantised, so that its reverse mode
        is intentionally that of the map without steps.
        """
        eps, size = torch.finfo(self.precision).eps, self.x.abs().amax((-2, -1), keepdim=True)
        if self.precision.itemsize < torch.float32.itemsize:
            return  # too few digits for a difference
        try:
            with torch.no_grad(), plain_kernels():
                wrong = self._unlike(u, image.double(), eps ** (1 / 3), torch.where(size > 0, size, 1))
        except Exception:  # a map may accept no other input
            return
        if wrong:
            raise ValueError(UNLIKE)

    def _unlike(self, u, image, near, size):
        """Whether slopes of the map along u, at distances up to `near` times `size`, contradict `image`."""
        once, unit, other = self._output.double(), size / u.abs().amax((-2, -1), keepdim=True), _lengths(image)

        def slopes(share):
            steps = share * unit, -share * unit
            return torch.stack([(self.f(self.x + step * u).double() - once) / step for step in steps])

        wide = slopes(near)
        if (_lengths(wide.mean(0) - image) <= near * other).all():
            return False
        close = slopes(near / 8)
        slope = close.mean(0)
        apart, most = _lengths(slope - image), torch.maximum(_lengths(slope), other)
        moved = _lengths(torch.cat([wide, close]) - slope).amax(0)
        settled = (KINKS * moved <= torch.minimum(_lengths(slope), apart)) & (apart > near * most)
        # constant values, as of a quantised map between two steps, are no evidence; neither are changes below the
        # rounding of the values
        rounded = KINKS * torch.finfo(self.precision).eps * _lengths(once) / (near / 8 * unit[..., 0, 0])
        settled &= (_lengths(slope) > 0) & (apart > rounded)
        if not settled.any():
            return False
        far = torch.stack([slopes(share).mean(0) for share in FAR])
        # slopes of a smooth map deviate from that at x by a power of the distance, those of a quantised map in jumps
        bend = _lengths(far[:3] - slope)
        growth = bend[1:] / bend[:-1]
        jumps = ~((growth > 1.2) & (growth < 16)).all(0)
        steps = jumps & (_lengths(far - image) < FARTHER * apart).any(0)
        return bool((settled & ~steps).any())


class RecordedJacobian(AutodiffJacobian):
    r"""`AutodiffJacobian` for many products, from one recorded run; products over `unit` neither over- nor underflow.

    *The record.* One run of `f` at x, and one reverse pass through it, :math:`J^\top w` as a function of w.

    *Why it can be replayed.* x is fixed, so J is fixed. The reverse pass is linear in w, so its derivative in w,
    recorded at any w, gives the forward product

    .. math:: J u = \nabla_w \langle J^\top w, u \rangle .

    A forward-mode product runs `f` again together with its tangent: on transformers that took three to four times as
    long.

    *When it is not used.* If `f` cannot be differentiated twice; or if the replayed product of a random vector differs
    from that of forward mode, in any sequence, by more than 256 units of rounding of `precision` (or the square root of
    this unit, if that is less): a custom backward pass need not be linear. Forward mode is then used throughout. If
    forward mode is missing, the record is compared with reverse mode and with values of `f` near x.
    """

    def __init__(self, f: Callable[[Tensor], Tensor], x: Tensor) -> None:
        super().__init__(f, x)
        probe, image, missing = self.probe, None, None
        try:
            image = self._pushed(probe)
        except Exception as error:  # a map without forward mode may raise anything
            missing = error
        record = self._twice()
        if isinstance(record, Exception):
            if image is None:
                raise _no_products(missing, record) from missing
            record = None
        replayed = None if record is None else _derivative(record[1], record[0], probe)
        image = replayed if image is None else image
        assert image is not None  # otherwise an error was raised above
        self._check_number(image)
        self.unit = _unit(image)
        self._record = None if replayed is None or not self._same(replayed, image) else record
        if self._record is None or missing is not None:
            self._check_modes(probe, image)
        if missing is not None:
            self._check_values(probe, image)
        # a convolution on a GPU may round to TF32 in only one of the two computations
        once = image if self._record is None else replayed
        found = (self.gap, self.precision), _precision(once, self.jvp(3 * probe))
        self.gap, self.precision = max(found, key=lambda one: torch.finfo(one[1]).eps)

    def _same(self, replayed, image):
        """Whether two products of the probe agree up to rounding in each sequence."""
        scale = self.unit.to(image)[..., None, None]
        gap, long = (torch.linalg.vector_norm(part / scale, dim=(-2, -1)) for part in (replayed - image, image))
        rounding = torch.finfo(self.precision).eps
        return (gap <= min(ROUNDING * rounding, rounding**0.5) * long).all()

    def _check_modes(self, probe, image):
        """Check on one vector that reverse mode is the transpose of forward mode."""
        scale = self.unit.to(image)[..., None, None]
        image = image / scale
        back = self.vjp(image) / scale
        forth, to = (part.double().square().sum((-2, -1)) for part in (image, back))
        gap = ((probe * back).double().sum((-2, -1)) - forth).abs()
        most = forth + to.sqrt() * torch.linalg.vector_norm(probe.double(), dim=(-2, -1))
        if (gap > torch.finfo(self.precision).eps ** 0.5 * most).any():
            raise ValueError(DISAGREE)

    def jvp(self, u: Tensor) -> Tensor:
        """Jacobian-vector product, shape (..., n, m), of `u`, shape (..., n, d)."""
        check_vector("u", u, self.x.shape, self.x, several=False)
        return self._pushed(u) if self._record is None else _derivative(self._record[1], self._record[0], u)


def bilinear_form(f: Callable[[Tensor], Tensor], x: Tensor, v: Tensor, u: Tensor) -> Tensor:
    r"""The form :math:`\langle u, (D_X f)\, v \rangle` of each sequence, differentiable in x and parameters of `f`.

    Shape of the batch, from x and v (..., n, d) and u (..., n, m). Reverse mode goes twice through one run, because
    PyTorch records no gradient of the forward mode of an autograd function. One more reverse pass, whose result is
    discarded, tests that the gradient exists. A copy of u requires a gradient, without which PyTorch would treat a
    function that can be differentiated only once as constant.
    """
    tokens, u = x.clone() if x.requires_grad else x.detach().clone().requires_grad_(), u.clone().requires_grad_()
    try:
        with plain_kernels():
            (back,) = torch.autograd.grad(f(tokens.clone()).to(x.dtype), tokens, u, create_graph=True)
        form = (back * v).sum((-2, -1))
        nodes = list(_nodes(form))
        if any(node.name() in ONCE for node in nodes):  # it raises an error only if it is reached
            raise NotImplementedError("an operation in it can be differentiated only once")
        if form.requires_grad:
            torch.autograd.grad(form.sum(), tokens, retain_graph=True, allow_unused=True)
    except Exception as error:  # whatever a map raises
        raise ValueError(
            f"the gradient of the constant cannot be taken: reverse mode twice fails on this map, {_short(error)}; "
            "write the failing part in operations that can be differentiated twice. A module that checkpoints its "
            "attention runs it again in your backward pass: run the whole step with plain attention, under "
            "torch.nn.attention.sdpa_kernel(SDPBackend.MATH), or switch checkpoints off."
        ) from error
    if x.requires_grad:
        return form + (0 * x).sum((-2, -1))  # for a linear map the gradient in x is 0, but defined
    leaves = (node.variable for node in nodes if hasattr(node, "variable"))
    if all(leaf is tokens or leaf is u for leaf in leaves):
        raise ValueError(
            "nothing that the constant depends on requires a gradient, so a penalty would train nothing: pass the "
            "module being trained, not a copy such as model.attention(layer), or tokens that require a gradient; "
            "for the number alone use local_lipschitz(f, x).value."
        )
    return form


def _nodes(tensor):
    """The nodes of the graph behind a tensor."""
    nodes, seen = [tensor.grad_fn], {None}
    while nodes:
        node = nodes.pop()
        if node not in seen:
            seen.add(node)
            yield node
            nodes += [before for before, _ in node.next_functions]


def check_map(f):
    """Reject common mistakes, and name the map that was probably meant."""
    kind = type(f).__name__
    if isinstance(f, torch.nn.MultiheadAttention):
        raise ValueError(
            "nn.MultiheadAttention takes queries, keys and values and has two outputs, so it is not a map of tokens: "
            "with one made with batch_first=True, and in .eval(), give "
            "f = lambda x: mha(x, x, x, need_weights=False)[0]."
        )
    if (instead := getattr(f, "not_a_map", None)) is not None:  # message of an object that contains maps
        raise ValueError(instead)
    if not callable(f):
        raise ValueError(f"f must be an Attention or a callable, got {kind}: the map comes first, then the tokens.")


def _check_input(x):
    """Raise ValueError unless `x` holds finite tokens (..., n, d) of at least 32 bits."""
    if isinstance(x, torch.Tensor):
        as_tensor("x", x)
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.ndim < 2 or x.numel() == 0:
        got, vector = type(x).__name__, False
        if isinstance(x, torch.Tensor):
            got, vector = tuple(x.shape) if x.is_floating_point() else x.dtype, x.ndim == 1 and x.numel() > 0
        raise ValueError(
            "x must be a floating point tensor of shape (..., n, d) with at least one token, "
            f"got {got}{': for one vector use x[None]' if vector else ''}."
        )
    check_precision(x)
    check_finite_tokens(x)


def _first_run(f, tokens, instead):
    """The output of the map; an exception of its first run becomes a ValueError with advice."""
    try:
        return f(tokens)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if isinstance(error, ValueError) and _raised_by(error).startswith(("lipnb.", "lipscan.")):  # ours already
            raise
        raise ValueError(_first_error(f, tokens, error, instead)) from error


def _raised_by(error):
    """Name of the module whose code raised an error."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__", "")


def _first_error(f, tokens, error, instead):
    """Message for an error in the first run of a map, with advice; `instead` is appended to some messages."""
    short, said = _short(error), str(error)
    if isinstance(error, TypeError) and "required positional argument" in said:
        return (
            f"the map takes more than the tokens ({short}): give one that holds the rest, as lambda x: module(x, ...)."
        )
    if "Inference tensors" in said:
        return (
            "the map holds tensors that were made under torch.inference_mode(), through which nothing can be "
            "differentiated: make or load it outside, or under torch.no_grad()."
        )
    if "numpy()" in said:
        return (
            "the map goes through NumPy, where autograd cannot follow: write it in PyTorch, or wrap that part in a "
            "torch.autograd.Function with its derivative."
        )
    if "FlexAttention" in said:
        return (
            f"the map's flex_attention cannot be differentiated here ({short}): take scaled_dot_product_attention with "
            "the same mask, or a GPU."
        )
    refused = f"the map does not take tokens of shape {tuple(tokens.shape)} in {tokens.dtype} ({short})"
    for name, other in (("x[None]", tokens[None]), ("one sequence at a time, as x[0]", tokens[0])):
        if _runs(f, other):
            return f"{refused}, but it takes {tuple(other.shape)}: give {name}."
    if re.search("dtype|scalar type|cannot be multiplied", said):
        return (
            f"{refused}: give tokens of its width and type, such as x.float(), or a module in theirs, "
            f"module.double(){instead}."
        )
    return f"{refused}: f(x) has to run by itself first{instead}."


def _runs(f, tokens):
    """Whether a map accepts these tokens (..., n, d) and returns an output (..., n, m)."""
    try:
        with torch.no_grad(), plain_kernels():
            out = f(tokens)
    except Exception:  # whatever a map raises
        return False
    like = isinstance(out, torch.Tensor) and out.ndim == tokens.ndim > 1
    return like and out.shape[:-2] == tokens.shape[:-2]


def _mend(out, x):
    """What to write instead of a map with this output; empty if we cannot tell."""
    if isinstance(out, torch.Tensor):
        return ": for one number use lambda x: f(x).reshape(1, 1)" if out.ndim == 0 and x.ndim == 2 else ""
    if out is None:
        return ""
    return ": leave out .numpy(), so that torch can differentiate" if hasattr(out, "__array__") else FIRST


def _check_output(out, x):
    """Raise ValueError unless the output is one real tensor with the batch and dimensions of x."""
    fits = isinstance(out, torch.Tensor) and out.shape[:-2] == x.shape[:-2] and out.ndim == x.ndim
    if not fits or out.is_complex() or not out.numel():
        got = f"{tuple(out.shape)} in {out.dtype}" if isinstance(out, torch.Tensor) else type(out).__name__
        shape = ", ".join(map(str, (*x.shape[:-2], "n", "m")))
        raise ValueError(f"the map must return one tensor of shape ({shape}), got {got}{_mend(out, x)}.")
    as_tensor("the output of the map", out)


def _unit(image):
    """Powers of two near the sizes of products (..., n, m), shape of the batch, float64."""
    size = image.abs().amax((-2, -1)).double()
    size = torch.where((size > 0) & torch.isfinite(size), size, 1)
    far = exponent(torch.finfo(image.dtype).max) - 8  # both this power of two and its inverse are representable
    return powers_of_two(size, -far, far)


def _lengths(parts):
    """Euclidean lengths, shape of the batch, of tensors (..., n, m)."""
    return torch.linalg.vector_norm(parts, dim=(-2, -1))


def _derivative(out, x, w):
    """Gradient of <w, out> in x; the graph is retained."""
    with plain_kernels():  # a checkpoint runs the map again
        (found,) = torch.autograd.grad(out, x, w, retain_graph=True)
    return found


def _precision(back, triple):
    """Relative nonlinearity of products with w and 3 w, (..., n, d), and the type that rounds so."""
    dtype, limits = back.dtype, torch.finfo(back.dtype)
    size = back.double().abs().amax((-2, -1))
    # numbers near the limits of the range round differently, and those beyond it are NaN
    counted = (size > limits.tiny / limits.eps) & torch.isfinite(triple).all(-1).all(-1) & torch.isfinite(size)
    unit = torch.where(counted, size, 1)[..., None, None]
    once, thrice = (torch.where(counted[..., None, None], part.double() / unit, 0) for part in (back, triple))
    gap, long = (torch.linalg.vector_norm(part, dim=(-2, -1)) for part in (thrice - 3 * once, 3 * once))
    gap = torch.where(counted, gap / long, 0).max().item()
    half = torch.finfo(torch.float16).eps
    for kind, most in ((torch.float64, LINEAR), (torch.float32, SINGLE), (torch.float16, half)):
        if gap <= most and kind.itemsize <= dtype.itemsize:
            return gap, kind
    return gap, torch.bfloat16


def _no_products(forward, twice):
    """Error for a map without forward mode and without reverse mode twice."""
    return ValueError(
        f"neither forward mode ({_short(forward)}) nor reverse mode twice ({_short(twice)}) works on this map: use "
        "method='dense', which needs reverse mode only, or write the failing part in other operations "
        "(torch.cdist as the norms of differences)."
    )


def _short(error):
    """Kind and first sentence of an error."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0].partition('. ')[0][:120].rstrip('.')}"
