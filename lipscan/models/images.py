"""Pictures as inputs of networks: their shape, number of patches, and further arguments."""

from inspect import signature
from math import isqrt, prod
from typing import Any

import torch
from torch import Tensor

CHANNELS = ("num_channels", "in_channels")


def picture_shape(config: Any) -> tuple[int, ...]:
    """Shape of a picture for a configuration: (c, h, w), or (frames, c, h, w) for videos.

    Raises
    ------
    ValueError
        The configuration has no image size, or one that is not one or two positive whole numbers.
    """
    channels = next((count for name in CHANNELS if isinstance(count := getattr(config, name, None), int)), 3)
    sides: tuple[int, ...]
    if getattr(config, "image_size", None) is not None:
        sides = _pair("image_size", config.image_size)
    elif isinstance(getattr(config, "num_patches", None), int):  # SigLIP 2 reads any picture with that many patches
        sides = tuple(isqrt(config.num_patches) * side for side in patch_sides(config))
    else:
        raise ValueError("its config.json gives no image size (image_size), so lipnb cannot make a picture for it.")
    frames = getattr(config, "num_frames", None)
    return (frames, channels, *sides) if isinstance(frames, int) else (channels, *sides)


def patch_sides(config: Any) -> tuple[int, int]:
    """Height and width of the patches of a configuration; ValueError if it has none."""
    said = getattr(config, "patch_size", None)
    cubes = getattr(config, "tubelet_size", None)
    if said is None and isinstance(cubes, list | tuple):
        said = cubes[-2:]
    return _pair("patch_size", said)


def patches(config: Any) -> int:
    """Number of patches of a picture of the configured shape; a patch of a video spans several frames."""
    shape, sides = picture_shape(config), patch_sides(config)
    count = prod(length // side for length, side in zip(shape[-2:], sides, strict=True))
    if len(shape) == 3:
        return count
    cubes = getattr(config, "tubelet_size", 1)
    return count * (shape[0] // (cubes[0] if isinstance(cubes, list | tuple) else cubes))


def given(network: Any, images: Tensor) -> dict[str, Tensor]:
    """Keyword arguments for a network that reads images (b, c, h, w).

    SigLIP 2 reads patches, (b, n, p p c), with their numbers per column and row, and a mask of those present (all).
    MAE reads numbers that order its patches before it hides some; it hides none here, and increasing numbers keep their
    order.
    """
    config, reads = network.config, signature(getattr(network, "forward", network)).parameters
    if "spatial_shapes" in reads:
        high, wide = (length // side for length, side in zip(images.shape[2:], patch_sides(config), strict=True))
        cut = images.unflatten(3, (wide, -1)).unflatten(2, (high, -1))  # (b, c, high, p, wide, p)
        cut = cut.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        mask = torch.ones(cut.shape[:2], dtype=torch.long, device=images.device)
        return {
            "pixel_values": cut,
            "pixel_attention_mask": mask,
            "spatial_shapes": mask.new_tensor([[high, wide]]).repeat(len(images), 1),
        }
    if "noise" in reads and getattr(config, "mask_ratio", None) == 0:
        order = torch.arange(patches(config), dtype=images.dtype, device=images.device)
        return {"pixel_values": images, "noise": order.repeat(len(images), 1)}
    return {"pixel_values": images}


def _pair(name, said):
    pair = (said, said) if isinstance(said, int) else said
    if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(type(one) is int and one > 0 for one in pair):
        raise ValueError(f"its {name} must be one whole number, or two (height and width), got {said!r}.")
    return pair[0], pair[1]
