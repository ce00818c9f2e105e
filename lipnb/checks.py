"""Validation of arguments (one message per mistake), and the memory policy.

Arrays that are kept, such as cached products, may take `memory_allowance` bytes, or as many as ``memory=`` allows;
temporary arrays may take `TILE` bytes.
"""

import math
import operator
import os
from numbers import Real

import torch
from torch import Tensor

ALLOWANCE = 2**31  # bytes of kept arrays on the CPU, and of a dense Jacobian in float64
TILE = 2**27  # bytes of one intermediate array


def memory_allowance(device: torch.device | str) -> int:
    """Bytes that cached products may take by default.

    On a GPU half of its free memory; else 2 GiB, or a quarter of the machine's memory if that is less.
    """
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 2
    try:
        return min(ALLOWANCE, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)
    except (ValueError, OSError, AttributeError):  # not known on this system
        return ALLOWANCE


def at_once(entries: int, dtype: torch.dtype = torch.float64) -> int:
    """Number of pieces with `entries` entries that fit in one intermediate array of `TILE` bytes, at least one.

    Examples
    --------
    >>> from lipnb.checks import at_once
    >>> at_once(2**20), at_once(2**20, torch.float32), at_once(2**40)
    (16, 32, 1)
    """
    return max(1, TILE // (max(1, entries) * dtype.itemsize))


def refuse_large_dense(shape: tuple[int, ...]) -> None:
    """Raise ValueError if a dense Jacobian of this shape would take more than 2 GiB in float64."""
    if math.prod(shape) * torch.float64.itemsize > ALLOWANCE:
        raise ValueError(
            f"a dense Jacobian of shape {tuple(shape)} would hold {math.prod(shape):.1e} entries: "
            "use jvp and vjp, or local_lipschitz(method='lanczos')."
        )


def holds(condition: Tensor) -> bool:
    """Whether a boolean tensor is true everywhere; True inside `torch.func.vmap`, where values cannot be read."""
    try:
        return bool(condition.all())
    except RuntimeError as error:
        if "vmap" not in str(error):
            raise
        return True


def require(*conditions: tuple[bool, str]) -> None:
    """Raise ValueError with the message of the first condition that does not hold."""
    for fits, sentence in conditions:
        if not fits:
            raise ValueError(sentence)


def _made(name, value, **new):
    """A tensor of `value`, made with the options `new`; ValueError otherwise."""
    try:
        return torch.as_tensor(value, **new)
    except (TypeError, ValueError, RuntimeError) as error:  # PyTorch raises any of these
        kind, mend = (
            type(value).__name__,
            "its weight" if isinstance(value, torch.nn.Module) else "torch.as_tensor(...)",
        )
        raise ValueError(f"{name} must be a tensor of real numbers, got {kind}: use {mend}.") from error


def as_tensor(name: str, value, **new) -> Tensor:
    """`value` as a dense real tensor, made with the options `new` if it is not a tensor yet; ValueError otherwise."""
    tensor = value if isinstance(value, Tensor) else _made(name, value, **new)
    if tensor.is_complex():
        raise ValueError(f"{name} must be real, got complex numbers: use .real.")
    if tensor.layout != torch.strided or tensor.is_nested:
        raise ValueError(
            f"{name} must be dense, got a sparse or nested tensor: use .to_dense(), or pass the parts of a nested "
            "tensor as a list."
        )
    if tensor.is_meta:
        raise ValueError(f"{name} must be on a device, got a meta tensor, which holds no numbers: load them first.")
    return tensor


def as_double(name: str, value) -> Tensor:
    """`value` as a checked float64 tensor: lists keep all their digits, tensors their device.

    By itself PyTorch rounds a list to its default type, and puts it on its default device.
    """
    exact = {} if hasattr(value, "dtype") else {"dtype": torch.float64}  # for an array this would drop imaginary parts
    return as_tensor(name, value, device="cpu", **exact).double()


def real_tensor(name: str, value, dimensions) -> Tensor:
    """`value` as a finite floating point tensor of at least 16 bits with these dimensions; ValueError otherwise."""
    tensor = as_tensor(name, value)  # a list goes to the default device
    if not tensor.is_floating_point() or tensor.dtype.itemsize < torch.float16.itemsize:
        raise ValueError(f"{name} must be a real floating point tensor, got {tensor.dtype}: use .float() or .double().")
    if tensor.ndim != len(dimensions):
        raise ValueError(
            f"{name} must have shape ({', '.join(dimensions)}), got {tuple(tensor.shape)}: "
            f"{len(dimensions)} dimensions are needed."
        )
    if not holds(torch.isfinite(tensor)):
        raise ValueError(f"{name} holds NaN or infinite values: remove them first.")
    return tensor


def check_precision(x: Tensor) -> None:
    """Raise ValueError for 16-bit tokens, in which no Jacobian has more than three digits."""
    if x.dtype.itemsize < torch.float32.itemsize:
        raise ValueError(
            f"x is {x.dtype}, whose resolution of {torch.finfo(x.dtype).eps:.1e} is too coarse: use "
            ".to(torch.float32) on the tokens "
            "and on the map."
        )


def check_tolerance(rtol: float, x: Tensor) -> float:
    """`rtol` as a number; ValueError unless the floating point type of `x` resolves it."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise ValueError("x must be a floating point tensor of shape (..., n, d): use torch.as_tensor(x).double().")
    check_precision(x)
    rtol = number("rtol", rtol)
    least = 8 * torch.finfo(x.dtype).eps
    if not least <= rtol < 1:
        raise ValueError(f"rtol must lie between {least:.1e} (the resolution of {x.dtype}) and 1, got {rtol}.")
    return rtol


def check_tokens(x: Tensor, width: int, dtype: torch.dtype, device: torch.device) -> None:
    """Raise ValueError unless `x` holds finite tokens, shape (..., n, d), of this width, type and device."""
    if not isinstance(x, torch.Tensor):
        several = isinstance(x, (list, tuple)) and any(isinstance(one, torch.Tensor) for one in x)
        mend = "give one of them at a time, or of equal shapes torch.stack(x)" if several else "use torch.as_tensor(x)"
        raise ValueError(f"x must be a torch tensor, got {type(x).__name__}: {mend}.")
    as_tensor("x", x)
    if x.ndim < 2 or x.shape[-1] != width:
        raise ValueError(f"x must have shape (..., n, d) with d = {width}, got {tuple(x.shape)}.")
    if x.numel() == 0:
        raise ValueError(f"x has shape {tuple(x.shape)} and holds no token: give at least one sequence, n >= 1.")
    if (x.dtype, x.device) != (dtype, device):
        raise ValueError(
            f"x is {x.dtype} on {x.device} but the attention is {dtype} on {device}: use x.to(attention.query)."
        )
    check_finite_tokens(x)


def check_finite_tokens(x: Tensor) -> None:
    """Raise ValueError unless tokens `x`, shape (..., n, d), are finite, naming the first bad item of a batch."""
    finite = torch.isfinite(x)
    if not holds(finite):
        item = (~finite.flatten(-2).all(-1)).nonzero()[0].tolist()  # for one sequence: []
        place = f" in x{item}" if item else ""
        raise ValueError(f"x holds NaN or infinite values{place}: remove them first.")


def check_list(x: list) -> None:
    """Raise ValueError unless `x` is a list of finite tokens (n, d) of one width, dtype and device."""
    wanted = "x must be a floating point tensor of shape (..., n, d), or a list of tensors (n, d)"
    if not x:
        raise ValueError(f"{wanted}: this list is empty.")
    for place, one in enumerate(x):
        if not isinstance(one, Tensor):
            raise ValueError(f"{wanted}: x[{place}] is of type {type(one).__name__}, use torch.as_tensor(...).")
        as_tensor(f"x[{place}]", one)
        if one.ndim != 2:
            shape = tuple(one.shape)
            raise ValueError(f"{wanted}: x[{place}] has shape {shape}; a batch of equal lengths is one tensor.")
        if not torch.isfinite(one).all():
            raise ValueError(f"x holds NaN or infinite values in x[{place}]: remove them first.")
    kinds = {f"d = {one.shape[1]} in {one.dtype} on {one.device}" for one in x}
    if len(kinds) > 1:
        raise ValueError(f"x must be a list of tensors (n, d) of one width, dtype and device, got {sorted(kinds)}.")


def check_list_of_weights(weights: list | Tensor, x: list) -> None:
    """Raise ValueError unless `weights` is a list with valid weights (n,) for each of the inputs (n, d)."""
    one_for_all = isinstance(weights, Tensor) and weights.ndim < 2
    if not isinstance(weights, (list, tuple, Tensor)) or one_for_all or len(weights) != len(x):
        raise ValueError(f"weights must be a list with one tensor for each of the {len(x)} inputs.")
    for some, one in zip(weights, x, strict=True):
        check_weights(some, one)


def check_weights(weights: Tensor, x: Tensor) -> None:
    """Raise ValueError unless `weights`, (n,) or (..., n), are positive finite weights of the tokens `x`."""
    if not isinstance(weights, torch.Tensor) or weights.shape[-1:] != x.shape[-2:-1]:
        raise ValueError(f"weights must be a tensor with one entry per token (n = {x.shape[-2]}).")
    if weights.ndim > 1 and weights.shape != x.shape[:-1]:
        shapes = dict.fromkeys([(x.shape[-2],), tuple(x.shape[:-1])])  # a single shape for one sequence
        raise ValueError(f"weights must have shape {' or '.join(map(str, shapes))}, got {tuple(weights.shape)}.")
    if (weights.dtype, weights.device) != (x.dtype, x.device):
        raise ValueError(
            f"weights are {weights.dtype} on {weights.device} but x is {x.dtype} on {x.device}: use weights.to(x)."
        )
    if not holds(torch.isfinite(weights) & (weights > 0)):
        raise ValueError("weights must be positive and finite: leave out the tokens of weight zero.")


def check_vector(name: str, u: Tensor, shape: tuple[int, ...], x: Tensor, *, several: bool) -> None:
    """Raise ValueError unless `u`, or `several` stacked, has the shape, dtype and device for a Jacobian product at `x`.

    Entries are not inspected, since each product would then wait for the GPU: NaN gives NaN.
    """
    fits = isinstance(u, Tensor) and u.shape[-len(shape) if several else 0 :] == shape and u.numel()
    if not fits or (u.dtype, u.device, u.layout) != (x.dtype, x.device, torch.strided):
        got = f"{tuple(u.shape)} in {u.dtype} on {u.device}" if isinstance(u, Tensor) else type(u).__name__
        raise ValueError(
            f"{name} must have shape {tuple(shape)}{' (leading dimensions may be added)' * several} and be a dense "
            f"tensor in {x.dtype} on {x.device}, as x is, got {got}."
        )


def square(A):
    """`A` as a finite float64 matrix of shape (d, d); ValueError otherwise."""
    A = as_double("A", A)
    if A.ndim != 2 or A.shape[0] != A.shape[1] or not A.numel():
        raise ValueError(f"A must be square, shape (d, d), got {tuple(A.shape)}.")
    if not torch.isfinite(A).all():
        raise ValueError("A holds NaN or infinite values: remove them first.")
    return A


def number(name, value):
    """`value`, a number or a tensor with one entry, as a number: infinite beyond floats; TypeError otherwise."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_meta:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        said = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise TypeError(f"{name} must be a number, got {said}.")
    try:
        float(value)
    except OverflowError:  # for an integer or a fraction
        value = math.inf if value > 0 else -math.inf
    return value


def whole(name, value, least=-math.inf):
    """`value` as an integer; TypeError for 2.5, "2", True and other types, ValueError below `least`."""
    try:
        found = operator.index(value)
    except TypeError:
        found = None
    if found is None or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, got {value!r}.")
    if found < least:
        raise ValueError(f"{name} must be {least} or more, got {found}.")
    return found


def count(n):
    """The number of tokens `n` as a positive integer; ValueError otherwise."""
    n = number("n", n)
    if not math.isfinite(n) or int(n) != n or n < 1:
        raise ValueError(f"n must be a positive integer, got {n!r}.")
    return int(n)


def radius(R):
    """The radius `R` as a finite float of at least 0; ValueError otherwise."""
    R = number("R", R)
    if not 0 <= R < math.inf:
        raise ValueError(f"R must be a finite number, 0 or more, got {R!r}.")
    return float(R)
