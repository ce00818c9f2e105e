"""Real pictures from installed packages, prepared for vision models; none is downloaded."""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from lipnb.extras import extra

__all__ = ["PICTURES", "picture"]

MOST = 100_000_000  # largest number of pixels in a file that is opened
# means and standard deviations of the channels of ImageNet, used in the training of DINOv2 and most others
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Picture:
    """A picture in an installed package: `package`, `file` in it, what it shows (`title`), and its `licence`."""

    package: str
    file: str
    title: str
    licence: str


PICTURES = {
    "grace_hopper": Picture(
        "matplotlib",
        "mpl-data/sample_data/grace_hopper.jpg",
        "Grace Hopper in uniform",
        "public domain (a photograph of the US Navy)",
    ),
    "china": Picture(
        "sklearn", "datasets/images/china.jpg", "a palace in China", "CC BY 2.0, danielbuechele on flickr"
    ),
    "flower": Picture("sklearn", "datasets/images/flower.jpg", "a dahlia", "CC BY 2.0, vultilion on flickr"),
}


def picture(
    name: str | os.PathLike,
    size: int | tuple[int, int] = 224,
    *,
    mean: tuple[float, ...] = MEAN,
    deviation: tuple[float, ...] = DEVIATION,
) -> Tensor:
    """A picture prepared for a vision model: its largest central part of the wanted shape, resized and normalised.

    Parameters
    ----------
    name : str or path
        "grace_hopper" (from matplotlib), "china", "flower" (from scikit-learn), or a file.
    size : int or (int, int)
        Height and width in pixels, or both at once.
    mean, deviation : tuple of float
        Of each channel, on the scale from 0 to 1; the default is ImageNet's, as DINOv2 needs.

    Returns
    -------
    Tensor, shape (1, 3, height, width)
        float32; bicubic interpolation, with as wide a filter as the reduction needs.

    Raises
    ------
    FileNotFoundError
        The file does not exist, or the package with the picture is not installed.
    ValueError
        The file is not a readable picture or too large, or `size` is invalid.

    Examples
    --------
    >>> picture("china", 56).shape
    torch.Size([1, 3, 56, 56])
    """
    height, width = size if isinstance(size, tuple) and len(size) == 2 else (size, size)
    if not all(type(side) is int and 1 <= side <= 10_000 for side in (height, width)):
        raise ValueError(f"size must be one or two whole numbers of pixels, got {size!r}.")
    path = _path(os.fspath(name))
    with extra("weights"):
        from PIL import Image, ImageOps
    try:
        with Image.open(path) as opened:
            if opened.width * opened.height > MOST:
                raise ValueError(f"it has {opened.width:,} x {opened.height:,} pixels")
            pixels = ImageOps.fit(opened.convert("RGB"), (width, height), Image.Resampling.BICUBIC)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(
            f"the file {path.name} is not a picture that can be read ({str(error).splitlines()[0]})."
        ) from None
    values = torch.frombuffer(bytearray(pixels.tobytes()), dtype=torch.uint8).view(height, width, 3)
    values = (values.float() / 255 - torch.tensor(mean)) / torch.tensor(deviation)
    return values.movedim(-1, 0)[None].contiguous()


def _path(name):
    known = PICTURES.get(name)
    if known is None:
        if not Path(name).is_file():
            raise FileNotFoundError(
                f"the picture {name!r} was not found: it is neither a file nor one of {', '.join(PICTURES)}."
            )
        return Path(name)
    package = find_spec(known.package)  # located, not imported
    path = None if package is None or package.origin is None else Path(package.origin).parent / known.file
    if path is None or not path.is_file():
        raise FileNotFoundError(
            f"the picture {name!r} was not found: it comes with {known.package}, which is not installed here."
        )
    return path
