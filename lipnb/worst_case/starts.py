"""Random inputs: tokens and matrices from a seed, the same on every machine."""

from collections.abc import Callable

import torch

__all__ = ["gaussian"]


def gaussian(seed: int | torch.Generator) -> Callable[..., torch.Tensor]:
    """What draws tensors of independent standard normal numbers, float64, one after the other from one seed.

    Parameters
    ----------
    seed : int or torch.Generator
        A generator goes on from where it is, and may be used for other draws between.

    Returns
    -------
    callable
        Of the sizes of a tensor. The global random state is left alone.

    Examples
    --------
    >>> normal = gaussian(0)
    >>> normal(2, 3).shape, normal(4).shape
    (torch.Size([2, 3]), torch.Size([4]))
    """
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")

    return normal
