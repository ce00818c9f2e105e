"""The fastest honest matrix product of this machine: which route float32 takes, and whether bfloat16 pays.

On some processors PyTorch's default float32 product reaches half of what oneDNN reaches. A small self-test, once
a process, times both routes and checks their accuracy; the winner is used inside `fastest` only. The global setting is
put back when no thread is inside any more; where it was inherited from that of all backends, it is set to the same.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, wraps

import torch
from torch import Tensor

__all__ = ["by_fastest", "describe", "fastest", "float32_route", "low_precision"]

SHAPE = (512, 768, 768)  # rows of tokens, width, width: about 0.6 GFLOP
WORST_ERROR = 2e-6  # relative, in the Frobenius norm; float32 products of this size have about 3e-7
GAIN = 1.05  # a route must be faster by this much to be taken
LOW_GAIN = 1.3  # bfloat16 must be faster than float32 by this much to be worth its rounding


def _has_choice():
    """Whether this PyTorch lets the route be chosen: ``torch.backends.mkldnn.matmul.fp32_precision``, from 2.9 on."""
    return hasattr(getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision")


class _OneDNN:
    """Sends float32 products on the CPU through oneDNN while any thread is inside; the last one out puts it back."""

    def __init__(self):
        self.lock, self.inside, self.before = threading.Lock(), 0, None

    def __enter__(self):
        with self.lock:
            if not self.inside:
                self.before = torch.backends.mkldnn.matmul.fp32_precision
                # without matrix units for bfloat16 this is oneDNN in full float32: it is tested
                torch.backends.mkldnn.matmul.fp32_precision = "bf16"
            self.inside += 1

    def __exit__(self, *_):
        with self.lock:
            self.inside -= 1
            if not self.inside:
                torch.backends.mkldnn.matmul.fp32_precision = self.before


_onednn = _OneDNN()


def _seconds(product, rounds=5):
    """Shortest time of a few calls."""
    product()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        product()
        times.append(time.perf_counter() - began)
    return min(times)


@cache
def _measured():
    """Seconds of one product by each route, and the relative error of the oneDNN route, on this CPU."""
    rows, inner, columns = SHAPE
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(rows, inner, generator=generator)
    right = torch.randn(inner, columns, generator=generator)
    out = torch.empty(rows, columns)
    exact = left.double() @ right.double()
    with torch.no_grad():
        seconds = {"default": _seconds(lambda: torch.mm(left, right, out=out))}
        with _onednn if _has_choice() else nullcontext():
            seconds["onednn"] = _seconds(lambda: torch.mm(left, right, out=out))
            error = ((out.double() - exact).norm() / exact.norm()).item()
        low_left, low_right, low_out = left.bfloat16(), right.bfloat16(), out.bfloat16()
        seconds["bfloat16"] = _seconds(lambda: torch.mm(low_left, low_right, out=low_out))
    return seconds, error


def float32_route() -> str:
    """Name of the route that float32 products on the CPU take inside `fastest`.

    Returns
    -------
    {"default", "onednn"}
        "onednn" where it is at least 5 % faster on a 512 x 768 x 768 product and as accurate as float32 is.
    """
    if not (torch.backends.mkldnn.is_available() and _has_choice()):
        return "default"
    seconds, error = _measured()
    return "onednn" if error <= WORST_ERROR and seconds["onednn"] * GAIN < seconds["default"] else "default"


def describe() -> str:
    """The choices of this process in a few words, for the record: they are timed, so two runs can differ in rounding.

    Returns
    -------
    str
        "not chosen" as long as nothing was timed; else, for example, "float32 by onednn, bfloat16 not cheaper".

    Examples
    --------
    >>> from lipnb.jacobian import gemm
    >>> isinstance(gemm.describe(), str)
    True
    """
    if not _measured.cache_info().currsize:
        return "not chosen"
    cheaper = low_precision(torch.float32, "cpu") == torch.bfloat16
    return f"float32 by {float32_route()}, bfloat16 {'cheaper' if cheaper else 'not cheaper'}"


@contextmanager
def fastest(dtype: torch.dtype, device: torch.device | str) -> Iterator[None]:
    """Run the block with the fastest accurate route for products of `dtype` on `device`; only the CPU has a choice."""
    if dtype == torch.float32 and torch.device(device).type == "cpu" and float32_route() == "onednn":
        with _onednn:
            yield
    else:
        yield


def by_fastest(gram: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A method ``gram(self, u)`` run inside `fastest`, and nothing of what a solver does between two products.

    Inside it PyTorch sends products of a matrix with one vector to oneDNN too, which took 6 to 25 times as long.
    """

    @wraps(gram)
    def product(self, u):
        with fastest(u.dtype, u.device):
            return gram(self, u)

    return product


def low_precision(dtype: torch.dtype, device: torch.device | str) -> torch.dtype:
    """The cheaper floating point type for products whose rounding is mended afterwards.

    Parameters
    ----------
    dtype : torch.dtype
        Type of the answer.
    device : torch.device
        Where the products run.

    Returns
    -------
    torch.dtype
        float32 for float64; bfloat16 for float32 on a GPU, or on a CPU that multiplies it at least 1.3 times faster;
        else `dtype` itself.

    Examples
    --------
    >>> import torch
    >>> from lipnb.jacobian import gemm
    >>> gemm.low_precision(torch.float64, "cpu")
    torch.float32
    """
    if dtype == torch.float64:
        return torch.float32
    if dtype == torch.float32:
        if torch.device(device).type == "cuda":
            return torch.bfloat16
        seconds, _ = _measured()
        if seconds["bfloat16"] * LOW_GAIN < min(seconds["default"], seconds["onednn"]):
            return torch.bfloat16
    return dtype
