"""Calls of the modules of a network while it runs: what each received and gave, changed or stopped on the way."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

from torch import Tensor
from torch.nn import Module

from lipnb.threads import turn

__all__ = ["Call", "capture"]

USUAL = "hidden_states"


class _Stop(Exception):
    """Ends a pass of a network once what is wanted has been seen; `hooks` are those of the block that ends."""

    def __init__(self, hooks: tuple) -> None:
        super().__init__()
        self.hooks = hooks


class _Here(threading.local):
    """Hooks of the blocks of this thread that note calls at this moment."""

    active: tuple = ()


_here = _Here()


@dataclass
class Call:
    """One call of a module.

    Attributes
    ----------
    module : torch.nn.Module
        Which.
    number : int
        Which of its calls, from 0: layers may share a module.
    args, kwargs : tuple, dict
        Its arguments.
    given : Tensor
        What it gave, the first of several things; None as long as it runs.
    """

    module: Module
    number: int
    args: tuple
    kwargs: dict[str, Any]
    given: Any = None

    @property
    def tokens(self) -> Tensor:
        """The tokens among the arguments, by place or by whatever name; ValueError where no tensor is there."""
        found = self.args[0] if self.args else self.kwargs.get(self._name())
        if not isinstance(found, Tensor):
            raise ValueError(
                f"{type(self.module).__name__} is called without tokens: its first argument is no tensor, and which "
                "other one holds them is not known here."
            )
        return found

    def with_tokens(self, x: Tensor) -> tuple[tuple, dict[str, Any]]:
        """The arguments with other tokens in their place."""
        return ((x, *self.args[1:]), self.kwargs) if self.args else (self.args, {**self.kwargs, self._name(): x})

    @property
    def others(self) -> dict[str, Any]:
        """The arguments but the tokens, by name, without keys and values left behind."""
        names = [*signature(self.module.forward).parameters]
        given = dict(zip(names[1:], self.args[1:], strict=False)) | self.kwargs
        tokens = None if self.args else self._name()
        return {name: value for name, value in given.items() if name != tokens and not _cached(name)}

    def with_other(self, name: str, value: Any) -> "Call":
        """The call with another value of the argument of that name."""
        if name in self.kwargs:
            return replace(self, kwargs={**self.kwargs, name: value})
        place = [*signature(self.module.forward).parameters].index(name)
        return replace(self, args=(*self.args[:place], value, *self.args[place + 1 :]))

    def again(self, x: Tensor) -> Any:
        """What the module gives of other tokens, the rest as it was, but for keys and values left behind."""
        args, kwargs = self.with_tokens(x)
        cached = {name: None for name in kwargs if _cached(name)}
        with turn():
            return first_of(self.module(*args, **kwargs | cached))

    def _name(self):
        """The keyword that holds the tokens: the module's first parameter, unless the usual name is there."""
        return USUAL if USUAL in self.kwargs else next(iter(signature(self.module.forward).parameters), USUAL)


@contextmanager
def capture(
    *modules: Module,
    before: tuple[Module, int] | None = None,
    after: tuple[Module, int] | None = None,
    change: Callable[[Call], tuple[tuple, dict[str, Any]] | None] | None = None,
) -> Iterator[list[Call]]:
    """Note the calls of some modules for as long as a block lasts.

    Calls from other threads are not noted, nor those that `change` makes; another thread's block waits for the end of
    this one.

    Parameters
    ----------
    *modules : torch.nn.Module
        Any number; one that is named twice is noted once.
    before, after : (torch.nn.Module, int), optional
        The block ends, without an error, before this call of this module, or when it has given: the rest of the
        network is not run. The module is noted too.
    change : callable, optional
        Before each call, from `Call` to the arguments that it is given in place of its own, or None for those.

    Yields
    ------
    list of Call
        In the order in which they began.

    Examples
    --------
    >>> import torch
    >>> network = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Flatten(0), torch.nn.Linear(9, 9))
    >>> with capture(network[0], after=(network[1], 0)) as calls:
    ...     network(torch.tensor([[-1.0, 2.0]]))
    >>> calls[0].tokens, calls[1].given
    (tensor([[-1.,  2.]]), tensor([0., 2.]))
    """
    calls: list[Call] = []
    last: dict[Module, Call] = {}

    # a thread of the user may just run the module as hooks come and go: PyTorch then calls them with less
    def begin(module, args, kwargs=None):
        if own not in _here.active:
            return None
        call = Call(module, last[module].number + 1 if module in last else 0, args, kwargs)
        calls.append(call)
        last[module] = call
        if before is not None and (module, call.number) == before:
            raise _Stop(own)
        if change is None:
            return None
        active, _here.active = _here.active, ()  # it may run the network again
        try:
            return change(call)
        finally:
            _here.active = active

    def end(module, args, output=None):
        if own not in _here.active:
            return
        last[module].given = first_of(output)
        if after is not None and (module, last[module].number) == after:
            raise _Stop(own)

    own = (begin, end)
    ends = [stop[0] for stop in (before, after) if stop is not None]
    hooked = [*dict.fromkeys([*modules, *ends])]
    with turn():
        active = _here.active
        try:
            try:
                _here.active = (*active, own)
                for module in hooked:
                    module.register_forward_pre_hook(begin, with_kwargs=True)
                    module.register_forward_hook(end)
                yield calls
            except _Stop as stop:
                if stop.hooks is not own:
                    raise
            finally:
                _unhook(hooked, own)
                _here.active = active
        finally:  # once more: an interrupt may have fallen into the first time
            _unhook(hooked, own)
            _here.active = active


def _unhook(modules, own):
    """Take hooks off modules, whether or not PyTorch's handles of all of them came back."""
    for module in modules:
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key in [key for key, hook in hooks.items() if hook in own]:
                del hooks[key]
                module._forward_pre_hooks_with_kwargs.pop(key, None)


def _cached(name):
    return "past" in name or "cache" in name


def first_of(output: Any) -> Any:
    """The tokens among what a module gives: the first of several things."""
    return output[0] if isinstance(output, tuple | list) else output
