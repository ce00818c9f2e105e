"""The network's own attention modules as maps to differentiate, for families whose attention is not known here.

No closed form is claimed. What a module is given beside the tokens (positions, masks) is taken from a pass of the
network over other tokens, as many; whether that determines it is found out when the model is loaded.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from lipnb.models.changes import Draws
from lipnb.models.hooks import Call, capture
from lipnb.models.network import one_call, refuse_draws, run, some_inputs

__all__ = ["OwnAttention"]

HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head")  # names that modules and configurations have


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
        self._calls: dict[int, Call] = {}
        said = (getattr(where, name, None) for where in (module, network.config) for name in HEADS)
        self.heads = next((count for count in said if isinstance(count, int) and count > 0), 1)
        self.width = int(getattr(network.config, "hidden_size", None) or 1)

    def __call__(self, x: Tensor) -> Tensor:
        """Output tokens, shape (..., n, d), of tokens `x`, shape (..., n, d)."""
        sequences = x.reshape(-1, *x.shape[-2:])
        return torch.cat([self._of_one(one) for one in sequences.split(1)]).reshape(*x.shape[:-1], -1)

    def __repr__(self):
        return f"OwnAttention({type(self._module).__name__}, width {self.width}, by automatic differentiation)"

    def _of_one(self, x):
        if x.shape[1] not in self._calls:
            # a thread of its own: this pass has no part in the derivative that is being taken of `x`
            with ThreadPoolExecutor(1) as aside:
                self._calls[x.shape[1]] = aside.submit(self.call, x.shape[1]).result()
        with capture(self._giver) as calls, Draws():
            self._calls[x.shape[1]].again(x)
        return calls[0].given

    @property
    def own(self) -> dict[str, Tensor]:
        """Its weights and buffers, name -> tensor, as `Attention` has them."""
        parts = {"module": self._module, "giver": self._giver}
        return {f"{part}.{key}": value for part, module in parts.items() for key, value in module.state_dict().items()}

    @torch.no_grad()
    def call(self, n: int) -> Call:
        """The call of the module when the network reads n tokens: what else it is given, with them."""
        inputs, draws = some_inputs(self._network, self._reads, n), Draws()
        with capture(self._module) as calls:
            run(self._network, self._reads, inputs, draws)
        if draws.moved:
            refuse_draws(self._network, self._reads, inputs)
        return one_call(calls, self._module, self._call)
