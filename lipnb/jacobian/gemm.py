"""Full precision for the package's own float32 products, independent of PyTorch's settings.

PyTorch lets a program lower the precision of all its float32 products (``torch.autocast``,
``torch.set_float32_matmul_precision``, ``torch.backends``). Inside `full_precision` such settings are off. Settings of
the whole process are restored when the last thread leaves; one inherited from the setting of all backends is then
set explicitly to the same value.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

LOWER = ("bf16", "tf32")
_PLACES = {"cpu": "mkldnn", "cuda": "cuda"}


def _settings():
    """Allowed precision of float32 products by backend: "none", "ieee", "bf16" or "tf32"."""
    if hasattr(getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision"):
        return {place: getattr(torch.backends, name).matmul.fp32_precision for place, name in _PLACES.items()}
    legacy = {"highest": "ieee", "high": "tf32", "medium": "bf16"}  # before PyTorch 2.9: one setting for all
    return {"all": legacy[torch.get_float32_matmul_precision()]}


def _set(place, precision):
    if place != "all":
        getattr(torch.backends, _PLACES[place]).matmul.fp32_precision = precision
    else:
        torch.set_float32_matmul_precision({"ieee": "highest", "tf32": "high", "bf16": "medium"}[precision])


class _Process:
    """Full float32 precision in the whole process while any thread is inside; the last one out restores settings."""

    def __init__(self):
        self.lock, self.inside, self.before = threading.Lock(), 0, None

    @contextmanager
    def __call__(self):
        with self.lock:
            if self.before is None:
                self.before = _settings()
                self._put("ieee")
            self.inside += 1
        try:
            yield
        finally:
            with self.lock:
                self.inside -= 1
                if not self.inside:
                    self._put(None)
                    self.before = None

    def _put(self, precision):
        """Set this precision, or with None the former one, in backends whose former one is lower than float32."""
        for place, before in self.before.items():
            if before in LOWER:
                _set(place, precision or before)


_process = _Process()


def _autocast(device):
    """The type of this device if ``torch.autocast`` is on for it; else None."""
    kind = torch.device(device).type
    return kind if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind) else None


def lowered(device: torch.device | str) -> bool:
    """Whether PyTorch lowers the precision of float32 products on `device`, outside `full_precision`."""
    with _process.lock:  # another thread may be inside, or on its way in
        around = _process.before or _settings()
    return _autocast(device) is not None or any(now in LOWER for now in around.values())


@contextmanager
def full_precision(dtype: torch.dtype, device: torch.device | str) -> Iterator[None]:
    """Run the block with products of `dtype` in full precision, whatever PyTorch's settings.

    For products of the package only: a user's map runs outside, since it is measured as it computes.
    """
    if dtype == torch.float64:  # nothing lowers it
        yield
        return
    kind = _autocast(device)
    with _process(), nullcontext() if kind is None else torch.autocast(kind, enabled=False):
        yield
