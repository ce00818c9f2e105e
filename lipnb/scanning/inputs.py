"""What a scan reads: a model, a text or images, and how much of each; all said before anything is measured."""

import hashlib
import os
from dataclasses import dataclass
from operator import index
from pathlib import Path

import torch

from lipnb import corpora, models
from lipnb.models.loading import layer_count, name_of
from lipnb.scanning import images

__all__ = ["Material", "chosen_layers", "prepare"]

DEFAULT = (32, 128, 512)  # tokens of a window
DTYPES = ("float32", "float64")
TEXTS = f"give a text file or one of {', '.join(corpora.NAMES)}"


@dataclass(frozen=True)
class Material:
    """A model and the inputs that it reads.

    Attributes
    ----------
    model : lipnb.models.Model
        What is scanned.
    source : str
        Name of the text or images, without folders.
    sha256 : str
        Of the text, or of the images as the model reads them.
    inputs : dict
        Length n -> inputs of the network: token ids (windows, n) or images (windows, c, h, w).
    left_out : str
        Which default lengths the text is too short for, in a sentence; empty where it is long enough.
    special : tuple of list of str
        Special tokens before and after each window.
    """

    model: models.Model
    source: str
    sha256: str
    inputs: dict
    left_out: str = ""
    special: tuple[list[str], list[str]] = ([], [])


def chosen_layers(layers, count, name, attending=None):
    """Layers as a sorted list: "all", "0,3,5", "0-5", mixtures of these, or a sequence; any if `count` is None.

    Of a hybrid those that hold attention (`attending`): all of them, or those that are asked for.
    """
    asked = str(layers) if isinstance(layers, int | str) else ",".join(map(str, layers))
    if asked.strip() == "all":
        return list(range(count or 0) if attending is None else attending)
    wanted = set()
    for part in asked.split(","):
        ends = part.strip().split("-")
        if not 1 <= len(ends) <= 2 or not all(end.isdecimal() for end in ends) or int(ends[0]) > int(ends[-1]):
            raise ValueError(f"layers are 'all', numbers or ranges such as 0,3,5 or 0-5; got {asked!r}.")
        wanted |= set(range(int(ends[0]), int(ends[-1]) + 1))
    if count is not None and max(wanted) >= count:
        raise ValueError(f"{name} has layers 0 to {count - 1}, but layer {max(wanted)} was asked for.")
    if attending is not None and not wanted <= {*attending}:
        without, those = (", ".join(map(str, some)) for some in (sorted(wanted - {*attending}), attending))
        raise ValueError(f"{name} has no attention in layer {without}: take 'all', or of {those}.")
    return sorted(wanted)


def _lengths(lengths):
    """Different whole numbers from 1 on: a sequence of them, one, or a text such as "32,128"."""
    parts = lengths.split(",") if isinstance(lengths, str) else [lengths] if isinstance(lengths, int) else [*lengths]
    try:
        found = [int(part) if isinstance(part, str) else index(part) for part in parts]
    except (TypeError, ValueError):
        found = []
    if not found or min(found) < 1 or len(set(found)) < len(found):
        raise ValueError(f"lengths must be different whole numbers from 1 on, got {','.join(map(str, parts))}.")
    return found


def prepare(model, text, *, lengths, windows, seed, layers="all", special=True, **options):
    """Load the model and what it reads.

    Parameters
    ----------
    model : str, path or lipnb.models.Model
        As for `lipnb.models.load`.
    text : str or path
        A text file, the name of a corpus of `lipnb.corpora`, or a text itself, of several lines or over 255 characters;
        for a model that reads images as for `images.windows_of_images`.
    lengths : sequence of int, int or str, optional
        Tokens of a window, several as a text "32,128"; None for those of (32, 128, 512) that the model can read
        and the text is long enough for; of images see `images.sides`.
    windows : int
        Windows for each length.
    seed : int
        Seed of where the windows lie, of random weights and of random images.
    special : bool
        Whether windows stand between the special tokens of the model's own convention.
    layers : str or sequence of int
        As for `chosen_layers`; checked before weights are read.
    **options
        For `lipnb.models.load`.

    Returns
    -------
    Material

    Raises
    ------
    ValueError, FileNotFoundError
        One sentence each: unknown model or text, lengths that the model cannot read, a text that is too short.
    """
    if windows < 1:
        raise ValueError(f"windows must be 1 or more, got {windows}.")
    if not isinstance(text, (str, os.PathLike)):
        raise ValueError(f"text must be a text or the name of a file or corpus, got a {type(text).__name__}.")
    lengths = None if lengths is None else _lengths(lengths)
    name = None if isinstance(model, models.Model) else name_of(model)
    chosen_layers(layers, None, name)
    if name is not None and not _itself(text) and Path(text).is_file() and not Path(text).name.endswith(images.ENDINGS):
        corpora.read(str(text))  # a text that cannot be read is said before a model is loaded
    if name is not None:
        dtype = options.pop("dtype", "float32")
        if dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}.")
        device = options.get("device")
        if device is not None:
            _check_device(device)
        chosen_layers(layers, layer_count(name, options.get("random", False)), name)
        model = models.load(name, dtype=getattr(torch, dtype), seed=seed, **options)
    if model.architecture.reads == "pixel_values":
        if _itself(text):
            raise ValueError(f"{model.name} reads images, not text: give an image, a folder of them, or 'random'.")
        pixels = images.sides(model, lengths, DEFAULT)
        return Material(model, *images.windows_of_images(model, str(text), pixels, windows, seed))
    if model.architecture.reads != "input_ids":
        raise ValueError(
            f"{model.name} reads mel spectra of sound, and a scan has none to give it: measure it in Python with "
            "lipnb.models.load and Model.activations."
        )
    if not _itself(text) and not Path(text).is_file() and str(text) in ("random", "pictures", *models.PICTURES):
        raise ValueError(f"{model.name} reads text, and {str(text)!r} is for a model that reads images: {TEXTS}.")
    if not _itself(text) and (Path(text).is_dir() or Path(text).suffix.lower() in images.ENDINGS):
        raise ValueError(f"{model.name} reads text, not images, and {Path(text).name!r} is no text file: {TEXTS}.")
    by_default = lengths is None
    if by_default:
        lengths = [length for length in DEFAULT if length <= model.longest] or [model.longest]
    if max(lengths) > model.longest:
        raise ValueError(
            f"{model.name} reads at most {model.longest} tokens, but a length of {max(lengths)} was asked "
            f"for: take lengths up to {model.longest}."
        )
    words, source = (text, "a text given as such") if _itself(text) else (corpora.read(str(text)), Path(text).name)
    ends = models.special_tokens(model) if special else ([], [])
    around = len(ends[0]) + len(ends[1])
    found = len(models.first_tokens(model, words, windows * max(lengths)))  # enough to know which lengths fit
    lengths, left_out = _that_fit(lengths, windows, found, around, by_default)
    inputs = {
        length: models.random_windows(model, words, length, windows, seed=seed, special=special and around > 0)
        for length in sorted(lengths)
    }
    digest, named = hashlib.sha256(words.encode()).hexdigest(), model.tokenizer.convert_ids_to_tokens
    return Material(model, source, digest, inputs, left_out, (named(ends[0]), named(ends[1])))


def _itself(text):
    """Whether this is a text and not the name of one."""
    return isinstance(text, str) and (len(text) > 255 or "\n" in text)


def _that_fit(lengths, windows, tokens, around, by_default):
    """Lengths that a text of so many tokens allows, and a sentence on those of the default that it does not.

    `around` of the tokens of each window are special ones.
    """
    fit = [length for length in lengths if (length - around) * windows <= tokens]
    if len(fit) == len(lengths):
        return lengths, ""
    most = min(lengths) if by_default and not fit else max(lengths)
    need = (most - around) * windows
    said = f"the text has {tokens} tokens, but {windows} windows of {most} tokens need {need}"
    said += f" beside {around} special ones each" if around else ""
    if by_default and fit:
        return fit, f"Lengths {','.join(map(str, fit))} only: {said}."
    shorter = fit or ([tokens // windows + around] if tokens >= windows else [])
    ways = [f"--lengths {','.join(map(str, shorter))}"] if shorter else []
    ways += [f"--windows {tokens // (most - around)}"] if tokens >= most - around else []
    raise ValueError(f"{said}: take {' or '.join([*ways, 'a longer text'])}.")


def _check_device(device):
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        reason = "there is no such kind" if reason.startswith("Expected one of") else reason
        raise ValueError(f"the device {device!r} cannot be used here ({reason}): leave it out for the CPU.") from None
