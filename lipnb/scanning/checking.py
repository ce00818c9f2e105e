"""The self-check: whether our map of a layer is that of the network, and its mask that of the model."""

import math

import torch

from lipnb.models import Model, Reading, answer

__all__ = ["TOLERANCE", "self_check"]

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-5}  # networks compute softmax in float32 whatever their type


@torch.no_grad()
def self_check(model: Model, layer: int, read: Reading) -> tuple[float, float, bool]:
    """Whether our map of a layer is that of the network, and the mask that of the model.

    Parameters
    ----------
    model : lipnb.models.Model
        The network.
    layer : int
        Layer.
    read : Reading
        What the layer received and gave, from `lipnb.models.readings`.

    Returns
    -------
    error : float
        Largest difference between our output and the network's, relative to the network's largest entry.
    leak : float
        How much the first half of the network's own outputs moves when the tokens that its attention receives in the
        second half are replaced, relative; 0 for a causal layer. NaN where there is one token.
    passed : bool
        The error is within the tolerance, and the leak is there exactly without a mask.
    """
    x, given = read.received, read.given
    f, tolerance = model.attention(layer, n=x.shape[-2]), TOLERANCE[x.dtype]
    error = ((f(x) - given).abs().max() / given.abs().max().clamp_min(1e-30)).item()
    half, leak = x.shape[1] // 2, math.nan
    if half:
        # coordinates too: other tokens do not notice an order alone, nor a shift that a norm inside takes away
        changed = answer(model, layer, read, lambda x: torch.cat([x[:, :half], x[:, half:].flip(1, 2) + 1], 1))
        leak = ((changed - given)[:, :half].abs().max() / given[:, :half].abs().max().clamp_min(1e-30)).item()
    causal = not half or (leak <= tolerance) == model.masked
    return error, leak, bool(error <= tolerance and causal)
