"""A map that does not change once made: it owns copies of its tensors, and what is made of them can be kept."""

from collections.abc import Callable
from typing import Any, Self

import torch

__all__ = ["Unchanging", "copy_of"]


def copy_of(name):
    """A parameter, as a copy that is the caller's to change."""
    return property(
        lambda self: None if self._own[name] is None else self._own[name].clone(),
        doc=f"A copy of the parameter `{name}`, or None.",
    )


class Unchanging:
    """What holds tensors ``_own`` and settings ``_settings``, the arguments it was made of, and never changes them."""

    _own: dict[str, Any]
    _settings: dict
    _kept: dict

    def __setattr__(self, name, value):
        raise AttributeError(f"an Attention does not change once made: make a new one, e.g. f.replace({name}=...).")

    def __delattr__(self, name):
        self.__setattr__(name, None)

    def __getstate__(self):
        return {**vars(self), "_kept": {}}  # made again where it is needed

    def __deepcopy__(self, memo):
        return self

    def replace(self, **changes) -> Self:
        """A new map with other arguments: ``f.replace(value=2 * f.value, masked=True)``; the others stay."""
        return type(self)(**{**self._own, **self._settings, **changes})

    def kept(self, name, make: Callable):
        """What `make` makes of this map, made once for each `name` and kept with it: the map never changes."""
        if name not in self._kept:
            self._kept[name] = make(self)
        return self._kept[name]

    def _tensors(self):
        return {name: tensor for name, tensor in self._own.items() if tensor is not None}

    @property
    def dtype(self) -> torch.dtype:
        """Floating point type of the parameters; inputs must have the same."""
        return self._own["query"].dtype

    @property
    def device(self) -> torch.device:
        """Device of the parameters; inputs must lie on the same."""
        return self._own["query"].device

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """The same map on another device or in another floating point type; frequencies keep theirs."""
        changed = {name: tensor.to(device=device, dtype=dtype) for name, tensor in self._tensors().items()}
        return self.replace(**changed | ({"frequencies": self._own["frequencies"]} if "frequencies" in changed else {}))
