"""Matrix products of this machine: in the full precision of their type, by the fastest route that has it.

PyTorch lets a program lower the precision of all its float32 products (``torch.autocast``,
``torch.set_float32_matmul_precision``, ``torch.backends``). The package's own products run inside `full_precision` or
`fastest`, where such settings are off. On some processors PyTorch's default float32 product reaches half of what oneDNN
reaches. A small self-test, once a process, times both routes and checks their accuracy; the winner is used inside
`fastest` only. What is set for the whole process is put back when no thread is inside any more; where it was inherited
from the setting of all backends, it is set to the same.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps

import torch
from torch import Tensor

__all__ = ["fastest", "float32_route"]

SHAPE = (512, 768, 768)  # rows of tokens, width, width: about 0.6 GFLOP
# where the route must be as accurate too: oneDNN chooses its method by shape
MORE_SHAPES = ((64, 64, 64), (16, 2048, 16), (768, 768, 1))
LOWER = ("bf16", "tf32")
WORST_ERROR = 2e-6  # relative, in the Frobenius norm; float32 products of this size have about 3e-7
GAIN = 1.05  # a route must be faster by this much to be taken


def _has_choice():
    """Whether this PyTorch lets the route be chosen: ``torch.backends.mkldnn.matmul.fp32_precision``, from 2.9 on."""
    return hasattr(getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision")


class _Settings:
    """Precision of float32 products in the whole process, while any thread is inside; the last one out puts it back.

    Threads ask for "ieee", full float32, or for "onednn", which on the CPU sends products through oneDNN by allowing it
    bfloat16: without matrix units for that type it is full float32 as well, which is tested before.
    """

    def __init__(self):
        self.lock, self.inside = threading.Lock(), {"ieee": 0, "onednn": 0}
        self.before, self.now = None, None  # settings by place

    @contextmanager
    def __call__(self, wanted):
        with self.lock:
            if self.before is None:
                self.before = _settings()
                self.now = dict(self.before)
            self.inside[wanted] += 1
            if self.inside[wanted] == 1:
                self._set()
        try:
            yield
        finally:
            with self.lock:
                self.inside[wanted] -= 1
                if not self.inside[wanted]:
                    self._set()
                if not any(self.inside.values()):
                    self.before = None

    def _set(self):
        """The settings that those inside need; what is not lower than float32 is left as it was."""
        for place, before in self.before.items():
            new = before
            if any(self.inside.values()) and before in LOWER:
                new = "ieee"
            if self.inside["onednn"] and place == "cpu":
                new = "bf16"
            if new != self.now[place]:
                _set(place, new)
                self.now[place] = new


_inside = _Settings()
_PLACES = {"cpu": "mkldnn", "cuda": "cuda"}


def _settings():
    """What float32 products may be rounded to, by place: "none", "ieee", "bf16" or "tf32"."""
    if _has_choice():
        return {place: getattr(torch.backends, name).matmul.fp32_precision for place, name in _PLACES.items()}
    legacy = {"highest": "ieee", "high": "tf32", "medium": "bf16"}  # before PyTorch 2.9: one setting for all
    return {"all": legacy[torch.get_float32_matmul_precision()]}


def _set(place, precision):
    if place != "all":
        getattr(torch.backends, _PLACES[place]).matmul.fp32_precision = precision
    else:
        torch.set_float32_matmul_precision({"ieee": "highest", "tf32": "high", "bf16": "medium"}[precision])


def _autocast(device):
    """The type of this device, if ``torch.autocast`` is on for it; else None."""
    kind = torch.device(device).type
    return kind if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind) else None


def lowered(device: torch.device | str) -> bool:
    """Whether PyTorch is set to round float32 products on `device` to less, outside `full_precision`."""
    with _inside.lock:  # another thread may be inside, or on its way in
        around = _inside.before or _settings()
    return _autocast(device) is not None or any(now in LOWER for now in around.values())


@contextmanager
def full_precision(device: torch.device | str) -> Iterator[None]:
    """Run the block with float32 products in float32, whatever PyTorch is set to around it; for own products only.

    A map that a user gives runs outside, since it is measured as it is.
    """
    kind = _autocast(device)
    with _inside("ieee"):
        if kind is None:
            yield
        else:
            with torch.autocast(kind, enabled=False):
                yield


def _seconds(product):
    """Shortest time of a few calls."""
    product()
    times = []
    for _ in range(5):
        began = time.perf_counter()
        product()
        times.append(time.perf_counter() - began)
    return min(times)


@cache
def _measured():
    """Seconds of one product by each route, and the largest relative error of the oneDNN route, on this CPU."""
    generator = torch.Generator().manual_seed(0)

    def drawn(rows, inner, columns):
        shapes = (rows, inner), (inner, columns)
        return [torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32) for shape in shapes]

    left, right = drawn(*SHAPE)
    out = left @ right
    with torch.no_grad(), full_precision("cpu"):
        seconds = {"default": _seconds(lambda: torch.mm(left, right, out=out))}
        with _inside("onednn"):
            seconds["onednn"] = _seconds(lambda: torch.mm(left, right, out=out))
            errors = []
            for a, b in ((left, right), *(drawn(*shape) for shape in MORE_SHAPES)):
                exact = a.double() @ b.double()
                errors.append((((a @ b).double() - exact).norm() / exact.norm()).item())
    return seconds, max(errors)


def float32_route() -> str:
    """The route of float32 products: "default", or "onednn" where that is 5 % faster and as accurate as float32 is."""
    if not (torch.backends.mkldnn.is_available() and _has_choice()):
        return "default"
    seconds, error = _measured()
    return "onednn" if error <= WORST_ERROR and seconds["onednn"] * GAIN < seconds["default"] else "default"


@contextmanager
def fastest(dtype: torch.dtype, device: torch.device | str) -> Iterator[None]:
    """As `full_precision`, by the fastest accurate route for products of `dtype`; only the CPU has a choice."""
    if dtype == torch.float64:  # nothing lowers it
        yield
        return
    with full_precision(device):
        if dtype == torch.float32 and torch.device(device).type == "cpu" and float32_route() == "onednn":
            with _inside("onednn"):
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
