"""Recording of module calls in a network that runs: inputs, outputs, changed arguments, early stop."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

from torch import Tensor
from torch.nn import Module

from lipnb.threads import turn
from lipscan.models.changes import held

USUAL = "hidden_states"


class _Stop(Exception):
    """Exception that ends a pass of a network early; `hooks` identify the `capture` block that ends with it."""

    def __init__(self, hooks: tuple) -> None:
        super().__init__()
        self.hooks = hooks


class _Here(threading.local):
    """Hooks of the `capture` blocks of this thread that are recording now."""

    active: tuple = ()


_here = _Here()


@dataclass
class Call:
    """One call of a module.

    Attributes
    ----------
    module : torch.nn.Module
        The module called.
    number : int
        Index among the calls of this module, from 0; layers may share a module.
    args, kwargs : tuple, dict
        Arguments of the call.
    given : Tensor
        Its output, or the first item of several; None while the module runs.
    """

    module: Module
    number: int
    args: tuple
    kwargs: dict[str, Any]
    given: Any = None

    @property
    def tokens(self) -> Tensor:
        """The tokens among the arguments: the first positional one, or a keyword. ValueError if it is not a tensor."""
        found = self.args[0] if self.args else self.kwargs.get(self._name())
        if not isinstance(found, Tensor):
            raise ValueError(
                f"{type(self.module).__name__} is called without tokens: its first argument is not a tensor, and "
                "lipnb does not know which other argument holds them."
            )
        return found

    def with_tokens(self, x: Tensor) -> tuple[tuple, dict[str, Any]]:
        """Arguments with the tokens replaced by `x`."""
        return ((x, *self.args[1:]), self.kwargs) if self.args else (self.args, {**self.kwargs, self._name(): x})

    @property
    def others(self) -> dict[str, Any]:
        """Arguments by name, without the tokens and without cached keys and values."""
        names = [*signature(self.module.forward).parameters]
        given = dict(zip(names[1:], self.args[1:], strict=False)) | self.kwargs
        tokens = None if self.args else self._name()
        return {name: value for name, value in given.items() if name != tokens and not _cached(name)}

    def with_other(self, name: str, value: Any) -> "Call":
        """The call with another value for the argument of that name."""
        if name in self.kwargs:
            return replace(self, kwargs={**self.kwargs, name: value})
        place = [*signature(self.module.forward).parameters].index(name)
        return replace(self, args=(*self.args[:place], value, *self.args[place + 1 :]))

    def again(self, x: Tensor) -> Any:
        """Output of the module for other tokens; other arguments stay, but cached keys and values are dropped."""
        args, kwargs = self.with_tokens(x)
        cached = {name: None for name in kwargs if _cached(name)}
        with turn(), held(self.module):
            return first_of(self.module(*args, **kwargs | cached))

    def _name(self):
        """Keyword that holds the tokens: ``hidden_states`` if given, else the module's first parameter."""
        return USUAL if USUAL in self.kwargs else next(iter(signature(self.module.forward).parameters), USUAL)


@contextmanager
def capture(
    *modules: Module,
    before: tuple[Module, int] | None = None,
    after: tuple[Module, int] | None = None,
    change: Callable[[Call], tuple[tuple, dict[str, Any]] | None] | None = None,
) -> Iterator[list[Call]]:
    """Record the calls of modules inside a block.

    Calls from other threads and calls that `change` makes are not recorded. A block of another thread waits until this
    one ends.

    Parameters
    ----------
    *modules : torch.nn.Module
        Modules to record; a module given twice is recorded once.
    before, after : (torch.nn.Module, int), optional
        The block ends, without an error, before this call of this module, or after it has returned; the rest of the
        network does not run. The module is recorded too.
    change : callable, optional
        Called before each call with its `Call`; returns the arguments to use instead, or None to keep them.

    Yields
    ------
    list of Call
        The calls, in the order in which they began.

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

    # another thread may run the module while hooks are added or removed: PyTorch then passes fewer arguments
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
        active, _here.active = _here.active, ()  # `change` may run the network itself
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
        finally:  # again: an interrupt may have hit the first attempt
            _unhook(hooked, own)
            _here.active = active


def _unhook(modules, own):
    """Remove hooks from modules, even hooks whose handle PyTorch never returned."""
    for module in modules:
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key in [key for key, hook in hooks.items() if hook in own]:
                del hooks[key]
                module._forward_pre_hooks_with_kwargs.pop(key, None)


def _cached(name):
    return "past" in name or "cache" in name


def first_of(output: Any) -> Any:
    """The tokens in the output of a module: the first item of a tuple or list."""
    return output[0] if isinstance(output, tuple | list) else output
