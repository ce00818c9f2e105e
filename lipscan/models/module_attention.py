"""The network's own attention modules as maps to differentiate, for families without a known closed form.

No closed form is claimed. The arguments of a module besides the tokens (positions, masks) are taken from a pass of
the network over another text with the same number of tokens. Whether they determine its output is tested at each
requested length, on a second text: some layers choose other tokens in each text, or use a choice of an earlier layer,
and with few tokens there is nothing to choose.
"""

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from lipnb.threads import aside
from lipscan.models.changes import Draws, equal
from lipscan.models.hooks import Call, capture
from lipscan.models.network import allowed, one_call, refuse_draws, run, some_inputs

__all__ = ["OwnAttention"]

HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head")  # attribute names in modules and configurations
FEW = 64  # tokens up to which the choices of two texts may agree by chance: more texts are tried
SEEDS = (1, 2)  # of the texts that are tried
_confirmed: WeakKeyDictionary = WeakKeyDictionary()  # network -> modules, calls and lengths confirmed to be maps


class Depends(ValueError):
    """The output of a module depends on more than its tokens; the message says on what, `why` without the way out."""

    def __init__(self, why: str, most: int) -> None:
        fewer = f"texts of {most} tokens or fewer, where it does not, or " if most > 1 else ""
        super().__init__(
            f"{why}: take {fewer}the whole layer, models.readings(model, inputs)[layer].whole, which is the layer at "
            "one text with everything chosen for that text."
        )
        self.why = f"{why}; with {most} tokens it does not" if most > 1 else why


class _Text(NamedTuple):
    """One text as a module sees it: its call within the network, and its output, (1, n, m)."""

    call: Call
    given: Tensor


class OwnAttention:
    """Attention of one layer of a network, computed by the network's own modules.

    It works under `torch.func` if these modules do, one sequence after another. If threads share a network, only one
    computes at a time.

    Parameters
    ----------
    network : torch.nn.Module
        The network, in evaluation mode.
    reads : str
        Kind of input: "input_ids", "pixel_values" or "input_features".
    module, giver : torch.nn.Module
        The modules that receive the tokens and that return the output: the same, or the second inside the first.
    call : int
        Index among the calls of that module, from 0, in a network whose layers share it.

    Attributes
    ----------
    heads, width : int
        Number of heads according to the configuration, and the dimension d of the tokens.

    Raises
    ------
    ValueError
        When it is called: the output at this number of tokens depends on more than the tokens. This is tested once for
        each number of tokens, at the cost of two passes of the network up to this layer (three, up to 64 tokens).
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
        n = x.shape[1]
        if n not in self._calls:  # aside: these passes are not part of the derivative being taken of `x`
            self._calls[n] = aside(self.call, n)
        return self._again(self._calls[n], x)

    def _again(self, call, x):
        """Output of the giver for tokens x, (1, n, d), with the other arguments of a call."""
        with capture(self._giver) as calls, Draws():
            call.again(x)
        return calls[0].given

    def tensors(self) -> dict[str, Tensor]:
        """Weights and buffers by name, as `Attention.tensors`."""
        parts = {"module": self._module, "giver": self._giver}
        return {f"{part}.{key}": value for part, module in parts.items() for key, value in module.state_dict().items()}

    @torch.no_grad()
    def call(self, n: int) -> Call:
        """The call of the module when the network reads n tokens, which holds its arguments besides the tokens.

        ValueError if these arguments do not determine its output for another text.
        """
        known = _confirmed.setdefault(self._network, set())
        place = (id(self._module), id(self._giver), self._call, n)
        if place in known:
            return self._text(n).call
        one, others = self._texts(n)
        self._confirm(one, others, n)
        known.add(place)
        return one.call

    def _text(self, n, seed=None, change=None):
        """A random text of n tokens, or the plainest one without a seed; `change` as in `capture`."""
        inputs, draws = some_inputs(self._network, self._reads, n, seed=seed), Draws()
        kind = type(self._module)
        alike = [] if change is None else [module for module in self._network.modules() if type(module) is kind]
        with capture(self._module, *alike, after=(self._giver, self._call), change=change) as calls:
            run(self._network, self._reads, inputs, draws)
        if draws.moved:
            refuse_draws(self._network, self._reads, inputs)
        call = one_call(calls, self._module, self._call)
        if self._reads == "pixel_values" and call.tokens.shape[-2] != n:  # positions in a picture may matter
            raise ValueError(
                f"the attention of a {type(self._network).__name__} can be measured only at the "
                f"{call.tokens.shape[-2]} tokens of pictures of its own size, as the network calls its module, not "
                f"at {n}."
            )
        return _Text(call, one_call(calls, self._giver, self._call).given)

    def _texts(self, n):
        """The plainest text, read last, and others; reading it last overwrites what the others leave in the network."""
        others = [self._text(n, seed) for seed in (SEEDS if n <= FEW else SEEDS[:1])]
        return self._text(n), others

    def _confirm(self, one, others, n):
        """Raise `Depends` if the arguments of one text do not reproduce the network's output for another."""
        for other in others:
            misfit = self._misfit(one.call, other)
            if not misfit <= allowed(other.given.dtype):
                raise Depends(
                    f"{type(self._module).__name__} called alone gives another output at {n} tokens than within the "
                    f"network (relative difference {misfit:.1e}), so its output depends on "
                    f"{self._dependence(one, other, n)}",
                    self._least(n) - 1,
                )

    def _misfit(self, call, text):
        """Relative difference between the module alone, with the arguments of `call`, and its output for a text."""
        size = text.given.double().norm().item()
        misfit = (self._again(call, text.call.tokens) - text.given).double().norm().item()
        return misfit / size if size else misfit

    def _same(self, call, text):
        return self._misfit(call, text) <= allowed(text.given.dtype)

    def _dependence(self, one, other, n):
        """The further dependence of the output, in words."""
        values, own = one.call.others, other.call.others
        differing = [name for name in own if not equal(own[name], values.get(name))]
        matter = [name for name in differing if not self._same(other.call.with_other(name, values.get(name)), other)]
        if not (matter and self._same(other.call, other)):
            return "more than the tokens it receives and their number"

        def changed(call):  # the tokens of earlier attention
            here = (call.module, call.number) == (self._module, self._call)
            return None if here else call.with_tokens(call.tokens.flip(-1))

        moved = self._text(n, SEEDS[0], changed).call.others
        names = f"(its {'argument' if len(matter) == 1 else 'arguments'} {', '.join(matter)})"
        if any(not equal(own[name], moved.get(name)) for name in matter):
            return f"what earlier layers chose for this text {names}"
        return f"the token ids {names}"

    def _least(self, n):
        """Smallest number of tokens at which it is not a map, by bisection; 0 if unknown."""
        right, wrong = 1, n
        if self._reads != "input_ids":
            return 0
        try:
            while wrong - right > 1:
                middle = (right + wrong) // 2
                one, others = self._texts(middle)
                same = all(self._same(one.call, other) for other in others)
                right, wrong = (middle, wrong) if same else (right, middle)
        except Exception:  # arbitrary code, which may refuse some lengths
            return 0
        return wrong
