"""Guards against networks that change themselves or draw random numbers in a forward pass: they are not one map."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from threading import get_ident
from typing import Any

import numpy as np
import torch

from lipnb.threads import turn

OWN = {*vars(torch.nn.Module())} - {"training"}  # attributes that PyTorch keeps in every module
NUMBERS = (int, float, type(None))


class Changed(ValueError):
    """Error for a network that is not one fixed map; the message gives the reason."""


class Draws:
    """Context that restores the global random states at its end; `moved` tells whether the block drew or seeded.

    These states belong to all threads, so use it inside `turn`.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed, self.moved = seed, False

    def __enter__(self) -> "Draws":
        self._before = _random_states()
        if self._seed is not None:
            random.seed(self._seed)
            np.random.seed(self._seed)
            torch.default_generator.manual_seed(self._seed)
        self._begun = _random_states()
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.moved = not equal(self._begun, _random_states())
        finally:
            python, numpy, torchs = self._before
            random.setstate(python)
            np.random.set_state(numpy)
            torch.default_generator.set_state(torchs)


@contextmanager
def unchanged(network: torch.nn.Module) -> Iterator[None]:
    """Context for one forward pass, after which the network is as before.

    Numbers that a module keeps for its next pass (position tables, their length) are restored silently, so that each
    pass is that of the checkpoint. If anything else changed, everything is restored and the pass is refused.

    `Changed` names the difference: an entry of the configuration, a module, a string or switch in a module, or a
    parameter; numbers written into a parameter are detected if PyTorch counts the write (its version). No two threads
    are in such a pass at the same time, whatever the network.
    """
    with turn():
        before, change = _State(network), ""
        try:
            try:
                yield
            finally:
                change = before.change()
                before.restore()
        finally:  # again: an interrupt may have hit the first attempt
            before.restore()
            if change and isinstance(sys.exc_info()[1], Exception | None):  # do not replace an interrupt
                raise _refusal(network, change)


@contextmanager
def unconverted(network: torch.nn.Module) -> Iterator[None]:
    """Context for a forward pass that refuses a network whose modules are moved to another type or device in it.

    Converting a parameter in the middle of a derivative leaves a dangling reference: PyTorch then reads memory that
    has been freed.
    """
    thread, converted = get_ident(), []

    def noted(module, *args, **kwargs):
        if get_ident() == thread:  # another thread may move another network
            converted.append(type(module).__name__)
        return own(module, *args, **kwargs)

    with turn():
        own = torch.nn.Module._apply
        try:
            torch.nn.Module._apply = noted
            yield
        finally:
            torch.nn.Module._apply = own
    if converted:
        raise Changed(
            f"the network {type(network).__name__} converts its own parameters as it reads (a {converted[0]}, by .to), "
            "which the derivatives of PyTorch do not survive: it is not measured."
        )


def _refusal(network, change):
    return Changed(
        f"the network {type(network).__name__} changes itself as it reads ({change}), so that its attention is another "
        "map afterwards than that of its checkpoint: set in its config.json what it is to be for every text."
    )


class _State:
    """Snapshot of a network: its configuration, its modules, and the contents of each."""

    def __init__(self, network):
        self.network = network
        self.config = deepcopy(vars(network.config))
        self.modules = dict(network.named_modules())
        self.held = {path: _Held(module) for path, module in self.modules.items()}

    def change(self):
        """A phrase for the first difference, ignoring numbers that a module keeps; "" without one."""
        now = vars(self.network.config)
        for key in [*self.config, *(now.keys() - self.config)]:
            if not equal(self.config.get(key), now.get(key)):
                return f"{key} of its configuration from {self.config.get(key)!r} to {now.get(key)!r}"
        if change := next(filter(None, (held.change(path) for path, held in self.held.items())), ""):
            return change
        modules = dict(self.network.named_modules())
        for path, module in self.modules.items():
            if modules.get(path) is not module:
                other = type(modules[path]).__name__ if path in modules else "nothing"
                return f"{path} from {type(module).__name__} to {other}"
        return ""

    def restore(self):
        """Restore everything but the numbers of parameters, and write only what differs.

        Other threads may read configurations and modules at any time.
        """
        now = vars(self.network.config)
        for key in now.keys() - self.config:
            del now[key]
        for key, old in self.config.items():
            if key not in now or not equal(now[key], old):
                now[key] = old
        for held in self.held.values():
            held.restore()


class _Held:
    """Snapshot of one module: settings, submodules, buffers with their numbers, and versions of its parameters."""

    def __init__(self, module):
        self.module = module
        self.settings = {key: value for key, value in vars(module).items() if key not in OWN}
        self.modules, self.buffers = dict(module._modules), dict(module._buffers)
        self.numbers = {key: buffer.clone() for key, buffer in self.buffers.items() if buffer is not None}
        self.versions = _versions(module)

    def change(self, path):
        place, now = f"{path}." if path else "", vars(self.module)
        for key, old in self.settings.items():
            new = now.get(key)
            plain = all(isinstance(value, (bool, str, *NUMBERS)) for value in (old, new))
            kept = all(isinstance(value, NUMBERS) and not isinstance(value, bool) for value in (old, new))
            if plain and not kept and not equal(old, new):
                return f"{place}{key} from {old!r} to {new!r}"
        versions = _versions(self.module)
        changed = (key for key, version in self.versions.items() if versions.get(key) != version)
        return next((f"the numbers of {place}{key}" for key in changed), "")

    def restore(self):
        now = vars(self.module)
        for key in now.keys() - self.settings - OWN:
            del now[key]
        for key, old in self.settings.items():
            if key not in now or now[key] is not old:
                now[key] = old
        for key, old in {"_modules": self.modules, "_buffers": self.buffers}.items():
            if not _same(now[key], old):
                now[key] = dict(old)
        for key, numbers in self.numbers.items():
            if not equal(now["_buffers"][key], numbers):
                now["_buffers"][key] = numbers


def _same(one, other):
    """Whether two dicts hold identical objects."""
    return one.keys() == other.keys() and all(one[key] is other[key] for key in other)


def _versions(module):
    """Identity and version (the count of in-place writes) of each parameter."""
    there = {key: value for key, value in module._parameters.items() if value is not None}
    return {key: (id(value), 0 if value.is_inference() else value._version) for key, value in there.items()}


def equal(old: Any, new: Any) -> bool:
    """Whether two values are the same; tensors, arrays and configurations are compared by their numbers."""
    if type(old) is not type(new):
        return False
    if isinstance(old, torch.Tensor):
        return old.shape == new.shape and old.dtype == new.dtype and torch.equal(old, new)
    if isinstance(old, np.ndarray):
        return np.array_equal(old, new)
    if isinstance(old, list | tuple):
        return len(old) == len(new) and all(map(equal, old, new))
    if isinstance(old, dict):
        return old.keys() == new.keys() and all(equal(old[key], new[key]) for key in old)
    if hasattr(old, "to_dict"):  # a nested configuration
        return equal(vars(old), vars(new))
    return bool(old == new or (old != old and new != new))


def _random_states():
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state()
