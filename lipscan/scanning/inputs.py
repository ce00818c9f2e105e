"""Inputs of a scan: a model, a text or images, and how much of each; all checks run before measuring."""

import hashlib
import os
from pathlib import Path

import torch
from torch import Tensor

from lipscan import corpora, models
from lipscan.models import PICTURES, Model, Reading, picture, random_twin, readings
from lipscan.models.images import patch_sides, patches, picture_shape
from lipscan.models.loading import check_device, layer_count, name_of
from lipscan.models.memory import in_memory
from lipscan.scanning.fmt import many
from lipscan.scanning.options import numbers_of

DEFAULT = (32, 128, 512)  # tokens of a window
ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
HALF = (0.5, 0.5, 0.5)  # mean and deviation used in the training of a usual ViT: maps 0 ... 1 to -1 ... 1
TEXTS = f"give a text file or one of {', '.join(corpora.NAMES)}"


class Reader:
    """The network on its inputs and its baselines; only readings of the last length are kept.

    `inputs` maps a length n to token ids (windows, n) or images (windows, c, h, w). Shuffles keep the special tokens
    before and after each window, `ends`; `seed` seeds the random weights and the shuffle.
    """

    def __init__(self, model: Model, inputs: dict[int, Tensor], ends: tuple[int, int] = (0, 0), seed: int = 0) -> None:
        self.model, self.inputs, self.ends, self.seed = model, inputs, ends, seed
        # random weights need no second random baseline, and images are not shuffled
        there = {"random": model.weights != "random", "shuffled": model.architecture.reads == "input_ids"}
        self.baselines = tuple(name for name in there if there[name])
        self._twin: Model | None = None
        self._kept: dict[tuple[str, int], list[Reading]] = {}

    def of(self, kind: str, n: int) -> tuple[Model, list[Reading]]:
        """A model and the readings of its layers: all windows ("text"), the first window ("first"), or its baseline."""
        model = self.model
        if kind == "random":
            model = self._twin = self._twin or self._drawn()
        if (kind, n) not in self._kept:
            self._kept = {key: read for key, read in self._kept.items() if key[1] == n}
            inputs = self.inputs[n] if kind == "text" else self.inputs[n][:1]
            if kind == "shuffled":
                inputs = shuffled(inputs, self.ends, self.seed)
            self._kept[kind, n] = readings(model, inputs)
        return model, self._kept[kind, n]

    def _drawn(self):
        """The model with random weights, different from its own even if those were drawn with the same seed."""
        own, twin = self.model.module.state_dict(), random_twin(self.model, self.seed)
        alike = all(torch.equal(one, own[name]) for name, one in twin.module.state_dict().items())
        return random_twin(self.model, self.seed + 1) if alike else twin


def shuffled(ids: Tensor, ends: tuple[int, int], seed: int) -> Tensor:
    """Token ids in a random order, the same for all windows, with special tokens at either end kept in place.

    Parameters
    ----------
    ids : Tensor
        Token ids (b, n).
    ends : tuple of int
        Number of tokens at the start and at the end that stay in place.
    seed : int
        Seed of the order.

    Returns
    -------
    Tensor
        Token ids (b, n).

    Examples
    --------
    >>> import torch
    >>> shuffled(torch.arange(6)[None], (1, 1), 0)[0, [0, 5]].tolist()
    [0, 5]
    """
    first, last = ends[0], ids.shape[1] - ends[1]
    order = first + torch.randperm(last - first, generator=torch.Generator().manual_seed(seed))
    return torch.cat([ids[:, :first], ids[:, order], ids[:, last:]], 1)


def chosen_layers(layers, count, name, attending=None):
    """Layers as a sorted list; in a hybrid (`attending`) those with attention: all, or the requested ones."""
    wanted = numbers_of(layers)
    if wanted is None:
        return list(range(count or 0) if attending is None else attending)
    if count is not None and max(wanted) >= count:
        raise ValueError(f"{name} has layers 0 to {count - 1}, but layer {max(wanted)} was requested.")
    if attending is not None and not wanted <= {*attending}:
        without, those = (", ".join(map(str, some)) for some in (sorted(wanted - {*attending}), attending))
        raise ValueError(f"{name} has no attention in layer {without}: take 'all', or layers from {those}.")
    return sorted(wanted)


def prepare(model, text, options):
    """The network on its inputs, and a record of them: `text`, `text_sha256`, `special`, `left_out`."""
    if not isinstance(text, (str, os.PathLike)):
        raise ValueError(f"text must be a text or the name of a file or corpus, got a {type(text).__name__}.")
    itself = isinstance(text, str) and (len(text) > 255 or "\n" in text)  # a text itself, not its name
    if not isinstance(model, Model):
        known = itself or Path(text).is_dir() or str(text) in (*corpora.NAMES, "random", "pictures", *PICTURES)
        if not known and not (Path(text).is_file() and Path(text).name.endswith(ENDINGS)):
            corpora.read(str(text))  # report an unreadable text before a model is loaded
        check_device(options.device)
        if not in_memory(model):
            name = name_of(model)
            chosen_layers(options.layers, layer_count(name, options.random), name)
        model = models.load(model, dtype=getattr(torch, options.dtype), **options.loading)
    if model.architecture.reads == "pixel_values":
        if itself:
            raise ValueError(f"{model.name} reads images, not text: give an image, a folder of them, or 'random'.")
        pixels = sides(model, options.lengths, DEFAULT)
        source, digest, inputs = windows_of_images(model, str(text), pixels, options.windows, options.seed)
        return Reader(model, inputs, seed=options.seed), _read(source, digest)
    if model.architecture.reads != "input_ids":
        raise ValueError(
            f"{model.name} reads mel spectra of sound, which a scan cannot supply: measure it in Python with "
            "lipnb.models.load and Model.activations."
        )
    if not itself and not Path(text).is_file() and str(text) in ("random", "pictures", *PICTURES):
        raise ValueError(f"{model.name} reads text, and {str(text)!r} is for a model that reads images: {TEXTS}.")
    if not itself and (Path(text).is_dir() or Path(text).suffix.lower() in ENDINGS):
        raise ValueError(f"{model.name} reads text, not images, and {str(text)!r} is not a text file: {TEXTS}.")
    lengths = options.lengths or [length for length in DEFAULT if length <= model.longest] or [model.longest]
    if max(lengths) > model.longest:
        raise ValueError(
            f"{model.name} reads at most {many(model.longest, 'token')}, but a length of {max(lengths)} was "
            f"requested: take lengths up to {model.longest}."
        )
    words, source = (text, "a text given as such") if itself else (corpora.read(str(text)), Path(text).name)
    before, after = models.special_tokens(model) if options.special else ([], [])
    around, windows = len(before) + len(after), options.windows
    found = len(models.first_tokens(model, words, windows * max(lengths)))  # enough to know which lengths fit
    lengths, left_out = _that_fit(lengths, windows, found, around, by_default=options.lengths is None)
    inputs = {
        length: models.random_windows(model, words, length, windows, seed=options.seed, special=around > 0)
        for length in sorted(lengths)
    }
    digest, named = hashlib.sha256(words.encode()).hexdigest(), model.tokenizer.convert_ids_to_tokens
    read = _read(source, digest, [named(before), named(after)], left_out)
    return Reader(model, inputs, (len(before), len(after)), options.seed), read


def _read(source, digest, special=((), ()), left_out=""):
    return {"text": source, "text_sha256": digest, "special": special, "left_out": left_out}


def _that_fit(lengths, windows, tokens, around, by_default):
    """Lengths for which a text of `tokens` tokens is long enough, and a sentence on the default lengths left out.

    `around` tokens of each window are special tokens.
    """
    fit = [length for length in lengths if (length - around) * windows <= tokens]
    if len(fit) == len(lengths):
        return lengths, ""
    most = min(lengths) if by_default and not fit else max(lengths)
    need = (most - around) * windows
    said = f"the text has {many(tokens, 'token')}, but {many(windows, 'window')} of {many(most, 'token')} need {need}"
    said += f" besides {around} special tokens each" if around else ""
    if by_default and fit:
        return fit, f"Lengths {','.join(map(str, fit))} only: {said}."
    shorter = fit or ([tokens // windows + around] if tokens >= windows else [])
    ways = [f"--lengths {','.join(map(str, shorter))}"] if shorter else []
    ways += [f"--windows {tokens // (most - around)}"] if tokens >= most - around else []
    raise ValueError(f"{said}: take {' or '.join([*ways, 'a longer text'])}.")


def sides(model: Model, lengths: list[int] | None, default: tuple[int, ...]) -> dict[int, tuple[int, int]]:
    """Tokens n of an image -> its height and width; by default the largest squares of at most `default` tokens.

    A model reads only images of its own size or, like DINOv2, any square that its patches fill.
    """
    config, longest = model.module.config, model.longest
    (*_, own_high, own_wide), (high, wide) = picture_shape(config), patch_sides(config)
    if not model.architecture.interpolates:
        if lengths is not None and list(lengths) != [longest]:
            raise ValueError(f"{model.name} reads images, each of {many(longest, 'token')}: leave the lengths out.")
        return {longest: (own_high, own_wide)}
    rest = longest - patches(config)  # tokens that do not belong to the image
    most = min(own_high // high, own_wide // wide)
    squares = {side**2 + rest: (side * high, side * wide) for side in range(1, most + 1)}
    largest = [max((n for n in squares if n <= most), default=min(squares)) for most in default]
    wanted = dict.fromkeys(largest if lengths is None else lengths)
    if wrong := [n for n in wanted if n not in squares]:
        raise ValueError(
            f"{model.name} reads square images of s x s patches plus {rest} token{'s' * (rest > 1)}, so not "
            f"{many(wrong[0], 'token')}: take lengths such as {','.join(map(str, dict.fromkeys(largest)))}, at most "
            f"{longest}."
        )
    return {n: squares[n] for n in sorted(wanted)}


def windows_of_images(
    model: Model, source: str, pixels: dict[int, tuple[int, int]], windows: int, seed: int
) -> tuple[str, str, dict[int, Tensor]]:
    """Images at each size: their names, the SHA-256 of the normalised pixels, and n -> (windows, c, h, w).

    `source` is an image file, a folder of them, the name of one of `lipnb.models.PICTURES`, "pictures" for all of
    these, or "random".
    """
    *frames, channels = picture_shape(model.module.config)[:-2]
    if source == "random":
        generator = torch.Generator().manual_seed(seed)
        inputs = {n: torch.randn(windows, *frames, channels, *side, generator=generator) for n, side in pixels.items()}
        name = f"random {'videos' if frames else 'images'}, seed {seed}"
    else:
        if frames:
            raise ValueError(f"{model.name} reads videos of {frames[0]} images each, not single images: use 'random'.")
        if channels != 3:
            raise ValueError(f"{model.name} reads images of {channels} channels, not of three: use 'random'.")
        found = _images(source)
        if len(found) < windows:
            few = (
                f"holds fewer than {windows} of them"
                if found or Path(source).is_dir()
                else "is neither an image nor a folder of images"
            )
            raise ValueError(
                f"{model.name} reads images, and {Path(source).name!r} {few}: give a "
                f"folder with {', '.join(ENDINGS)}, 'pictures' ({', '.join(PICTURES)}), 'random', or --windows 1 for "
                "one image."
            )
        taken = found[:windows]
        scale = {} if model.architecture.imagenet else {"mean": HALF, "deviation": HALF}
        inputs = {n: torch.cat([picture(each, side, **scale) for each in taken]) for n, side in pixels.items()}
        name = ", ".join(taken) if source in ("pictures", *PICTURES) else Path(source).name
    digest = hashlib.sha256(b"".join(images.numpy().tobytes() for images in inputs.values())).hexdigest()
    return name, digest, inputs


def _images(source):
    """Names or paths of the images that `source` names, in order."""
    if source in ("pictures", *PICTURES):
        return [*PICTURES] if source == "pictures" else [source]
    path = Path(source)
    files = sorted(path.iterdir()) if path.is_dir() else [path] * path.is_file()
    return [str(file) for file in files if file.suffix.lower() in ENDINGS]
