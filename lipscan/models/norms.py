"""Norms of networks as plain functions, identified by trial because the class of a module does not tell its formula."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, rms_norm


class TokenNorm(NamedTuple):
    """LayerNorm (`centred`) or RMSNorm of rows of `size` numbers, with weights and, for LayerNorm, a bias."""

    centred: bool
    weight: Tensor | None
    bias: Tensor | None
    size: int
    eps: float

    def __call__(self, rows: Tensor) -> Tensor:
        """Normalised rows, of shape (..., k), or (..., h, k) if the weights have a row for each head."""
        shape = (self.size,)
        if self.weight is not None and self.weight.ndim > 1:
            plain = self._replace(weight=None, bias=None)
            return plain(rows) * self.weight
        if self.centred:
            return layer_norm(rows, shape, self.weight, self.bias, self.eps)
        return rms_norm(rows, shape, self.weight, self.eps)


def token_norm(module: torch.nn.Module, size: int | None = None) -> TokenNorm | Callable[[Tensor], Tensor]:
    """A norm of a network, or the identity, as a function with a copy of its weights, differentiable in `torch.func`.

    The module may be LayerNorm or RMSNorm under any name, with its gain stored as w or as w - 1, or without a gain for
    rows of `size` numbers: the candidate is chosen that agrees with the module on a random row. ValueError if none
    agrees.

    Examples
    --------
    >>> import torch
    >>> from lipscan.models.norms import token_norm
    >>> token_norm(torch.nn.LayerNorm(3)).centred, token_norm(torch.nn.RMSNorm(3, eps=1e-6)).centred
    (True, False)
    """
    if isinstance(module, torch.nn.Identity):
        return _identity
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    eps = getattr(module, "eps", getattr(module, "variance_epsilon", None))
    said = weight is not None or size is not None or isinstance(module, torch.nn.LayerNorm)
    if eps is None or not said:
        raise ValueError(f"the norm {type(module).__name__} is not supported: it has no epsilon or no weight.")
    shape = getattr(module, "normalized_shape", (size,)) if weight is None else tuple(weight.shape)
    weight, bias = (None if tensor is None else tensor.detach().clone() for tensor in (weight, bias))
    candidates = [TokenNorm(True, weight, bias, shape[-1], eps)]
    if bias is None:
        gains = (None,) if weight is None else (weight, 1 + weight)
        candidates += [TokenNorm(False, gain, None, shape[-1], eps) for gain in gains]
    row = 1 + torch.randn(shape, generator=torch.Generator().manual_seed(0))  # a mean away from 0 separates the two
    row = row if weight is None else row.to(weight)
    tolerance = max(1e-5, 3 * torch.finfo(row.dtype).eps ** 0.5)  # some compute in float32 whatever their type
    with torch.no_grad():
        given = module(row).double()
        for candidate in candidates:
            if (candidate(row).double() - given).norm() <= tolerance * given.norm():
                return candidate
    raise ValueError(f"the norm {type(module).__name__} is not supported: it is neither LayerNorm nor RMSNorm.")


def after_attention(part: Any) -> TokenNorm | Callable[[Tensor], Tensor]:
    """The operation on the output of attention before the residual: a norm, LayerScale, or one factor."""
    if isinstance(part, int | float):
        return partial(torch.mul, other=float(part))
    if hasattr(part, "lambda1"):
        return partial(torch.mul, other=part.lambda1.detach().clone())
    return token_norm(part)


def _identity(rows):
    return rows
