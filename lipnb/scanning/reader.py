"""What the layers of a network receive, read in one pass for each length: the text, and two baselines."""

import torch
from torch import Tensor

from lipnb.models import Model, Reading, random_twin, readings

__all__ = ["Reader", "shuffled"]


class Reader:
    """The network on the inputs of each length, as it is and as its baselines; only the last length read is kept.

    Parameters
    ----------
    model : lipnb.models.Model
        What is scanned.
    inputs : dict
        Length n -> token ids (windows, n) or images.
    ends : tuple of int
        Special tokens before and after each window, which no shuffle moves.
    seed : int
        Of random weights and of the shuffle.
    """

    def __init__(self, model: Model, inputs: dict[int, Tensor], ends: tuple[int, int] = (0, 0), seed: int = 0) -> None:
        self.model, self.inputs, self.ends, self.seed = model, inputs, ends, seed
        self._twin: Model | None = None
        self._kept: dict[tuple[str, int], list[Reading]] = {}

    @property
    def baselines(self) -> tuple[str, ...]:
        """Which baselines there are: no other random weights for random ones, no shuffle of images."""
        return tuple(
            name
            for name, there in (
                ("random", self.model.weights != "random"),
                ("shuffled", self.model.architecture.reads == "input_ids"),
            )
            if there
        )

    def of(self, kind: str, n: int) -> tuple[Model, list[Reading]]:
        """The model and what its layers receive: all windows ("text"), the first, or a baseline of it."""
        if kind == "random" and self._twin is None:
            self._twin = random_twin(self.model, self.seed)
        model = self._twin if kind == "random" else self.model
        assert model is not None
        if (kind, n) not in self._kept:
            self._kept = {key: read for key, read in self._kept.items() if key[1] == n}
            inputs = self.inputs[n] if kind == "text" else self.inputs[n][:1]
            if kind == "shuffled":
                inputs = shuffled(inputs, self.ends, self.seed)
            self._kept[kind, n] = readings(model, inputs)
        return model, self._kept[kind, n]


def shuffled(ids: Tensor, ends: tuple[int, int], seed: int) -> Tensor:
    """Token ids (b, n) in one random order, but for `ends` special tokens at either end.

    Examples
    --------
    >>> import torch
    >>> shuffled(torch.arange(6)[None], (1, 1), 0)[0, [0, 5]].tolist()
    [0, 5]
    """
    first, last = ends[0], ids.shape[1] - ends[1]
    order = first + torch.randperm(last - first, generator=torch.Generator().manual_seed(seed))
    return torch.cat([ids[:, :first], ids[:, order], ids[:, last:]], 1)
