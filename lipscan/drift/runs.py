"""States between the layers of a network on some tokens: of a run here, or of another program."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lipscan.drift.passes import Network, Pass, network_of, passed, with_halves
from lipscan.drift.precision import exact, kernel
from lipscan.models import Model
from lipscan.models.network import inputs_of

__all__ = ["States", "states"]


@dataclass
class States:
    """States of a network between its layers, for a batch of token ids.

    Parameters
    ----------
    ids : LongTensor, shape (b, n)
        Token ids, special tokens included.
    hidden : list of Tensor, shape (b, n, d)
        L + 1 of them: what the first layer receives, then the output of each layer, the last before the final norm.
    attention, mlp : dict
        Layer -> output of that half of the layer before it is added to the stream, (b, n, d); may be empty.
    logits : Tensor, shape (b, n, vocabulary), or None
        Logits.
    about : dict
        Origin, such as ``model`` and ``dtype``.
    """

    ids: Tensor
    hidden: list[Tensor]
    attention: dict[int, Tensor] = field(default_factory=dict)
    mlp: dict[int, Tensor] = field(default_factory=dict)
    logits: Tensor | None = None
    about: dict[str, str] = field(default_factory=dict)

    def window(self, number: int) -> "States":
        """The states of one sequence of the batch."""
        part = slice(number, number + 1)
        return States(
            self.ids[part],
            [one[part] for one in self.hidden],
            {layer: one[part] for layer, one in self.attention.items()},
            {layer: one[part] for layer, one in self.mlp.items()},
            None if self.logits is None else self.logits[part],
            self.about,
        )

    def to(self, device: torch.device) -> "States":
        """The states on a device."""
        return States(
            self.ids.to(device),
            [one.to(device) for one in self.hidden],
            {layer: one.to(device) for layer, one in self.attention.items()},
            {layer: one.to(device) for layer, one in self.mlp.items()},
            None if self.logits is None else self.logits.to(device),
            self.about,
        )

    @property
    def dtype(self) -> torch.dtype:
        """Floating point type of the hidden states."""
        return self.hidden[-1].dtype


def states(model: Any, ids: Tensor, dtype: torch.dtype | None = None, kernel: str | None = None) -> States:
    """States of a run of a network here.

    Parameters
    ----------
    model : Model or torch.nn.Module
        A model of `lipnb.models.load`, or a network of transformers whose family is known. It stays as it is: it is run
        in place if its weights have the type that is meant, else a copy is.
    ids : LongTensor, shape (b, n)
        Token ids.
    dtype : torch.dtype, optional
        Floating point type; by default float64, and then in all parts of the network.
    kernel : str, optional
        "eager" (default), "sdpa", or "order", which takes sums in the opposite order.

    Returns
    -------
    States
        On the CPU, in the type of the run.

    Examples
    --------
    >>> from lipnb import models
    >>> model = models.load("minilm")
    >>> found = states(model, model.token_ids("how smooth?")[None], torch.bfloat16)
    >>> len(found.hidden), found.hidden[6].dtype, sorted(found.attention)
    (7, torch.bfloat16, [0, 1, 2, 3, 4, 5])
    """
    ids = inputs_of(model, ids) if isinstance(model, Model) else ids
    network, dtype = network_of(model), torch.float64 if dtype is None else dtype
    wide = network.to(torch.float64)
    with exact():
        halves = with_halves(wide, ids).halves
    if dtype == torch.float64:
        network = wide
    elif network.dtype != dtype:
        network = network.to(dtype)
    network = Network(network.whole, network.inner, network.architecture, halves)
    name = model.name if isinstance(model, Model) else type(model).__name__
    return run_of(network, ids, kernel or "eager", name)


def run_of(network: Network, ids: Tensor, by: str = "eager", name: str = "") -> States:
    """States of a network whose halves are known, one sequence after the other."""
    parts = [one_pass(network, one[None], by) for one in ids]
    hidden = [torch.cat(one).cpu() for one in zip(*(part.hidden for part in parts), strict=True)]
    attention, mlp = (
        {layer: torch.cat([getattr(part, half)[layer] for part in parts]).cpu() for layer in getattr(parts[0], half)}
        for half in ("attention", "mlp")
    )
    logits = None if parts[0].logits is None else torch.cat([part.logits for part in parts]).cpu()
    about = {"model": name, "dtype": str(network.dtype).removeprefix("torch.")}
    return States(ids.cpu(), hidden, attention, mlp, logits, about)


def one_pass(network: Network, ids: Tensor, by: str = "eager", **given: Any) -> Pass:
    """One pass by a kernel; truly in float64 for a float64 network."""
    if network.dtype == torch.float64:
        with exact(), kernel(network.inner, by):
            return passed(network, ids, **given)
    with kernel(network.inner, by):
        return passed(network, ids, **given)
