"""Passes that leave a network and the random states unchanged: its changes of itself are undone or refused."""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
import torch

from lipnb.threads import turn


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

    Buffers, numbers and tables that modules keep for their next pass (longrope and dynamic NTK keep frequencies) are
    restored, so that each pass computes what the checkpoint defines. A pass after which a word or switch of a module,
    an entry of the configuration, a module or a parameter is another is refused with `Changed`: its layers, called
    alone, would be another map. Writes into a parameter are detected if PyTorch counts them (its version). No two
    threads are in such a pass at the same time, whatever the network.
    """
    with turn():
        before, switched = _State(network), False
        try:
            try:
                with held(network):
                    yield
            finally:
                switched = before.switched()
                before.restore()
        finally:  # again: an interrupt may have hit the first attempt
            before.restore()
            if switched and isinstance(sys.exc_info()[1], Exception | None):  # do not replace an interrupt
                raise _refusal(network)


@contextmanager
def held(network: torch.nn.Module) -> Iterator[None]:
    """Context in which no module goes to another type or device: a derivative that is being taken does not survive it.

    Some networks convert a router in each pass, mostly to the type that it has.
    """
    own = [(vars(module), vars(module).get("_apply"), module) for module in network.modules()]
    try:
        for table, _, module in own:
            table["_apply"] = _checking(network, module)
        yield
    finally:
        for table, before, _ in own:
            if before is None:
                table.pop("_apply", None)
            else:
                table["_apply"] = before


def _refusal(network):
    return Changed(
        f"the network {type(network).__name__} changes itself in a pass, so its attention is no longer the map of "
        "its checkpoint: set in its config.json the value that holds for every text."
    )


class _State:
    """Snapshot of a network: its configuration, the attributes, modules, buffers and parameters of each module."""

    def __init__(self, network):
        self.network = network
        self.entries = vars(network.config)
        self.config = deepcopy(self.entries)
        self.modules = [*network.modules()]
        self.kept = [(table, dict(table)) for one in self.modules for table in (vars(one), one._buffers)]
        self.fixed = [(table, dict(table)) for one in self.modules for table in (one._modules, one._parameters)]
        self.numbers = [
            (one._buffers, key, buffer.clone())
            for one in self.modules
            for key, buffer in one._buffers.items()
            if buffer is not None
        ]
        self.versions = self._versions()

    def switched(self):
        """Whether more than numbers that a module keeps for its next pass is another than before."""
        return (
            not equal(self.config, self.entries)
            or any(_differ(old, table.get(key)) for table, before in self.kept for key, old in before.items())
            or any(table.get(key) is not old for table, before in self.fixed for key, old in before.items())
            or self._versions() != self.versions
        )

    def restore(self):
        """Write what differs, and nothing else: other threads may read configurations and modules at any time."""
        for key in self.entries.keys() - self.config:
            del self.entries[key]
        for key, old in self.config.items():
            if key not in self.entries or not equal(self.entries[key], old):
                self.entries[key] = old
        for table, before in (*self.kept, *self.fixed):
            for key in table.keys() - before:
                del table[key]
            for key, old in before.items():
                if key not in table or table[key] is not old:
                    table[key] = old
        for table, key, numbers in self.numbers:
            if not equal(table[key], numbers):
                table[key] = numbers

    def _versions(self):
        """Counts of in-place writes into the parameters."""
        return [0 if one.is_inference() else one._version for one in self.network.parameters()]


def _checking(network, module) -> Callable[..., torch.nn.Module]:
    """Method for a module in place of `_apply`, which refuses a change of type or device and ignores any other."""

    def apply(convert, recurse=True):
        for held in (*module.parameters(), *module.buffers()):
            new = convert(held.detach().new_empty(0))
            if (new.dtype, new.device) != (held.dtype, held.device):
                raise _refusal(network)
        return module

    return apply


def _differ(old, new):
    """Whether an attribute was, or is now, a word or a switch, and another."""
    return bool({type(old), type(new)} & {bool, str}) and (type(old) is not type(new) or old != new)


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
