"""Calls of the modules of a network while it runs: what each received and gave, changed or stopped on the way."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any

from torch import Tensor
from torch.nn import Module

__all__ = ["Call", "capture"]

USUAL = "hidden_states"


class _Stop(Exception):
    """Ends a pass of a network once what is wanted has been seen."""


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

    def again(self, x: Tensor) -> Any:
        """What the module gives of other tokens, the rest as it was, but for keys and values left behind."""
        args, kwargs = self.with_tokens(x)
        cached = {name: None for name in kwargs if "past" in name or "cache" in name}
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

    def begin(module, args, kwargs):
        call = Call(module, last[module].number + 1 if module in last else 0, args, kwargs)
        calls.append(call)
        last[module] = call
        if before is not None and (module, call.number) == before:
            raise _Stop
        return None if change is None else change(call)

    def end(module, args, output):
        last[module].given = first_of(output)
        if after is not None and (module, last[module].number) == after:
            raise _Stop

    ends = [stop[0] for stop in (before, after) if stop is not None]
    handles = []
    try:
        for module in dict.fromkeys([*modules, *ends]):
            handles += [module.register_forward_pre_hook(begin, with_kwargs=True), module.register_forward_hook(end)]
        yield calls
    except _Stop:
        pass
    finally:
        for handle in handles:
            handle.remove()


def first_of(output: Any) -> Any:
    """The tokens among what a module gives: the first of several things."""
    return output[0] if isinstance(output, tuple | list) else output
