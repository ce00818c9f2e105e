"""The network's own attention modules as maps to differentiate, for families whose attention is not known here.

No closed form is claimed. What a module is given beside the tokens (positions, masks) is taken from a pass of the
network over other tokens, as many; whether that determines it is found out when the model is loaded.
"""

from typing import Any

import torch
from torch import Tensor

from lipnb.models.self_check import run, some_inputs

__all__ = ["OwnAttention"]


class OwnAttention:
    """The attention of one layer of a network, computed by the network's own modules.

    It works under `torch.func` where these do; one sequence after another.

    Parameters
    ----------
    network : torch.nn.Module
        The network, in evaluation mode.
    reads : str
        What it reads: "input_ids", "pixel_values" or "input_features".
    module, giver : torch.nn.Module
        What receives the tokens, and what gives the output: the same, or a part of it.
    call : int
        Which call of that module it is, from 0, in a network whose layers share it.

    Attributes
    ----------
    heads, width : int
        Heads, as its configuration says, and the dimension d of the tokens.
    """

    def __init__(
        self, network: Any, reads: str, module: torch.nn.Module, giver: torch.nn.Module, call: int = 0
    ) -> None:
        self._network, self._reads, self._module, self._giver, self._call = network, reads, module, giver, call
        self._others: dict[int, tuple] = {}
        self.heads = int(getattr(network.config, "num_attention_heads", None) or 1)
        self.width = int(getattr(network.config, "hidden_size", None) or 1)

    def __call__(self, x: Tensor) -> Tensor:
        """Output tokens, shape (..., n, d), of tokens `x`, shape (..., n, d)."""
        sequences = x.reshape(-1, *x.shape[-2:])
        return torch.cat([self._of_one(one) for one in sequences.split(1)]).reshape(*x.shape[:-1], -1)

    def __repr__(self):
        return f"OwnAttention({type(self._module).__name__}, width {self.width}, by automatic differentiation)"

    def _of_one(self, x):
        if x.shape[1] not in self._others:
            self._others[x.shape[1]] = self.others(x.shape[1])
        args, kwargs = self._others[x.shape[1]]
        given = []
        hook = self._giver.register_forward_hook(lambda module, args, output: given.append(output))
        try:
            self._module(x, *args, **kwargs)
        finally:
            hook.remove()
        return given[0][0] if isinstance(given[0], tuple) else given[0]

    @torch.no_grad()
    def others(self, n: int) -> tuple[tuple, dict[str, Any]]:
        """What else the module is given when the network reads n tokens: arguments by place, and by name."""
        network, seen = self._network, []

        def keep(module, args, kwargs):
            others = {name: value for name, value in kwargs.items() if name != "hidden_states"}
            seen.append((args[1:], others | {name: None for name in others if "past" in name or "cache" in name}))

        hook = self._module.register_forward_pre_hook(keep, with_kwargs=True)
        try:
            run(network, self._reads, some_inputs(network, self._reads, n))
        finally:
            hook.remove()
        return seen[self._call]
