"""What a scan of a vision model reads: pictures, and of how many pixels for how many tokens."""

import hashlib
from math import isqrt
from pathlib import Path

import torch
from torch import Tensor

from lipnb.models import PICTURES, Model, picture

__all__ = ["ENDINGS", "sides", "windows_of_images"]

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
HALF = (0.5, 0.5, 0.5)  # mean and deviation with which a usual ViT was trained: from 0 ... 1 to -1 ... 1


def sides(model: Model, lengths: tuple[int, ...] | list[int] | None, default: tuple[int, ...]) -> dict[int, int]:
    """Tokens n of an image -> pixels of its side.

    Parameters
    ----------
    model : Model
        One that reads images: of its own size alone, or, as DINOv2, any square that its patches fill.
    lengths : sequence of int, optional
        Tokens wanted; None for the largest squares of at most `default` tokens.
    default : tuple of int
        Most tokens, for each length.

    Returns
    -------
    dict of int to int

    Raises
    ------
    ValueError
        "... reads images, each of ... tokens: leave the lengths out.", "... reads square images: take lengths such as
        ..."
    """
    config, longest = model.module.config, model.longest
    if not model.architecture.interpolates:
        if lengths is not None and list(lengths) != [longest]:
            raise ValueError(f"{model.name} reads images, each of {longest} tokens: leave the lengths out.")
        return {longest: config.image_size}
    rest = longest - (config.image_size // config.patch_size) ** 2  # tokens that are no part of the image
    squares = {side**2 + rest: side * config.patch_size for side in range(1, isqrt(longest - rest) + 1)}
    largest = [max((n for n in squares if n <= most), default=min(squares)) for most in default]
    wanted = dict.fromkeys(largest if lengths is None else lengths)
    if wrong := [n for n in wanted if n not in squares]:
        raise ValueError(
            f"{model.name} reads square images, of s x s patches and {rest} token{'s' * (rest > 1)} more: not "
            f"{wrong[0]} tokens; take lengths such as {','.join(map(str, dict.fromkeys(largest)))}, at most {longest}."
        )
    return {n: squares[n] for n in sorted(wanted)}


def windows_of_images(
    model: Model, source: str, pixels: dict[int, int], windows: int, seed: int
) -> tuple[str, str, dict[int, Tensor]]:
    """The same images at each size.

    Parameters
    ----------
    model : Model
        One that reads images.
    source : str
        An image file, a folder of them, the name of one of `lipnb.models.PICTURES`, "pictures" for all of these, or
        "random".
    pixels : dict
        From `sides`.
    windows : int
        How many images.
    seed : int
        Of random ones.

    Returns
    -------
    name : str
        What was read, without folders.
    sha256 : str
        Of the images as the model reads them.
    inputs : dict
        n -> Tensor (windows, c, h, w).

    Raises
    ------
    ValueError
        "... holds fewer than ... of them ...", "... is not a picture that can be read ...".
    """
    channels = model.module.config.num_channels
    if source == "random":
        generator = torch.Generator().manual_seed(seed)
        inputs = {n: torch.randn(windows, channels, side, side, generator=generator) for n, side in pixels.items()}
        name = f"random images, seed {seed}"
    else:
        if channels != 3:
            raise ValueError(f"{model.name} reads images of {channels} channels, not of three: use 'random'.")
        found = _found(source)
        if len(found) < windows:
            raise ValueError(
                f"{model.name} reads images, and {Path(source).name!r} holds fewer than {windows} of them: give a "
                f"folder with {', '.join(ENDINGS)}, 'pictures' ({', '.join(PICTURES)}), 'random', or --windows 1 for "
                "one image."
            )
        taken = found[:windows]
        scale = {} if model.architecture.interpolates else {"mean": HALF, "deviation": HALF}
        inputs = {n: torch.cat([picture(each, side, **scale) for each in taken]) for n, side in pixels.items()}
        name = ", ".join(taken) if source in ("pictures", *PICTURES) else Path(source).name
    digest = hashlib.sha256(b"".join(images.numpy().tobytes() for images in inputs.values())).hexdigest()
    return name, digest, inputs


def _found(source):
    """Names or paths of the images that `source` names, in order."""
    if source == "pictures":
        return list(PICTURES)
    if source in PICTURES:
        return [source]
    path = Path(source)
    files = sorted(path.iterdir()) if path.is_dir() else [path] * path.is_file()
    return [str(file) for file in files if file.suffix.lower() in ENDINGS]
