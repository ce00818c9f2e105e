"""Networks in another floating point type: truly in float64 for a reference, and in a low type by several kernels.

A network of transformers that is cast to float64 still computes parts in float32: norms, the softmax, the tables of
rotary positions. `exact` computes them in float64 too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lipnb.threads import turn

TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
NARROW = (torch.float32, torch.float16, torch.bfloat16)
KERNELS = ("eager", "sdpa", "batch", "order")  # "batch": the same text beside another in one batch
CLOSE = 1e-5  # frequencies of rotary positions that differ by more are not those of the formula


class _Exact(TorchFunctionMode):
    """Mode in which a cast to a type below float64 is one to float64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Call the function with float64 in place of each narrower type."""
        wide = {key: _wide(value) for key, value in (kwargs or {}).items()}
        if func is Tensor.float:
            func = Tensor.double
        return func(*map(_wide, args), **wide)


def _wide(value):
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value


class _Reordered(TorchFunctionMode):
    """Mode in which sums of matrix products run from the last term to the first."""

    PLAIN = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Call the function with the terms of its sums in the opposite order."""
        kwargs = kwargs or {}
        if func is torch.nn.functional.linear:
            args = (args[0].flip(-1), args[1].flip(-1), *args[2:])
        elif func in self.PLAIN and len(args) == 2 and args[1].ndim > 1:
            args = (args[0].flip(-1), args[1].flip(-2))
        elif func in (torch.addmm, Tensor.addmm) and len(args) == 3:
            args = (args[0], args[1].flip(-1), args[2].flip(-2))
        return func(*args, **kwargs)


def exact() -> TorchFunctionMode:
    """Context in which a float64 network computes everything in float64."""
    return _Exact()


def cast(network: Any, dtype: torch.dtype) -> Any:
    """A copy of a network in a type; of the frequencies of rotary positions, float64 ones for a float64 network.

    In a narrower type the frequencies stay as they are, in float32, which is how networks are run.
    """
    with turn():
        copy = deepcopy(network)
    kept = [
        (module, name, buffer)
        for module in copy.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name.endswith("inv_freq")
    ]
    copy = copy.to(dtype).eval().requires_grad_(False)
    for module, name, buffer in kept:
        setattr(module, name, _frequencies(module, buffer) if dtype == torch.float64 else buffer)
    return copy


def _frequencies(module, buffer):
    """Frequencies of a rotary table in float64, from their formula where it is known and agrees with the table."""
    initial, config = getattr(module, "compute_default_rope_parameters", None), getattr(module, "config", None)
    if getattr(module, "rope_type", None) == "default" and initial is not None and config is not None:
        try:
            with _Exact():
                found = initial(config)[0]
            if found.shape == buffer.shape and torch.allclose(found, buffer.double(), rtol=CLOSE, atol=0):
                return found
        except (KeyError, TypeError, AttributeError):  # other arguments: one table for each kind of layer
            pass
    return buffer.double()


@contextmanager
def kernel(network: Any, name: str) -> Iterator[None]:
    """Context in which a network computes by a kernel: "eager", "sdpa", or "order", sums in the opposite order.

    ValueError for "sdpa" if the network is not made for it: transformers would leave out parts of its attention.
    """
    config = network.config
    if name == "sdpa" and not getattr(network, "_supports_sdpa", True):
        raise ValueError(f"{type(network).__name__} has no fused attention.")
    before = config._attn_implementation
    wanted = "sdpa" if name == "sdpa" else "eager"
    try:
        if wanted != before:
            config._attn_implementation = wanted
        if name == "order":
            with _Reordered():
                yield
        else:
            yield
    finally:
        if wanted != before:
            config._attn_implementation = before
