"""Choice of the tokenizer with which a model reads text; never chosen silently."""

import os
from contextlib import suppress
from pathlib import Path

from lipscan.models.config_checks import check_folder, json_of, passed_on
from lipscan.models.demo.fetching import DEMOS, demo_folder
from lipscan.models.files import TOKENIZER_FILES, minilm_folder, quiet, tokenizer_from_hub
from lipscan.models.gguf_files import gguf_folder

# endings of vocabulary files that are not supported: Mistral's, SentencePiece's, OpenAI's, code, halves of a pair
UNREAD = ("tekken.json", ".model", ".tiktoken", ".bpe", "vocab.json", "merges.txt", ".vocab", ".codes")


def find_tokenizer(wanted, name, folder, on_hub, vocabulary, random):
    """The tokenizer of a model and the name of its source, or None, None; with `wanted`, exactly that one.

    The model's own comes first: in its folder, in ``$LIPNB_DATA/tokenizers/NAME``, on the hub or in its cache. A random
    model without one reads MiniLM's ids if its vocabulary is large enough: random weights know no language, and the
    name tells the source.
    """
    if wanted is not None:
        if not isinstance(wanted, (str, os.PathLike)):
            raise ValueError(
                f"tokenizer must be a name, a folder or a tokenizer of transformers, got a {type(wanted).__name__}."
            )
        wanted = os.fspath(wanted)
        place = _named(wanted)
        if not _holds_tokenizer(place):
            if place is not None and (why := unread_tokenizer(place)):
                raise FileNotFoundError(f"the tokenizer {wanted!r} is not read ({why}): give another.")
            if place is not None and (Path(wanted).exists() or wanted in DEMOS):
                raise FileNotFoundError(f"{wanted!r} holds no tokenizer: give another, such as 'minilm'.")
            raise FileNotFoundError(
                f"no tokenizer {wanted!r} could be found: not as a folder, not under "
                "$LIPNB_DATA/tokenizers, not on the Hugging Face hub or in its cache. "
                "Without a network connection take --tokenizer minilm (tokenizer='minilm' in Python), which is "
                "embedded."
            )
        tokenizer = _read(place)
        if len(tokenizer) > vocabulary:
            raise ValueError(
                f"the tokenizer {wanted!r} has {len(tokenizer)} token ids, but {name} knows "
                f"only {vocabulary}: choose a smaller one."
            )
        return tokenizer, Path(wanted).resolve().name if Path(wanted).is_dir() else wanted
    if _holds_tokenizer(folder):
        return _read(folder), name
    if on_hub:
        place = _by_name(name)
        if _holds_tokenizer(place):
            return _read(place), name
    if random:
        try:
            tokenizer = _read(minilm_folder())
        except ModuleNotFoundError:
            return None, None
        if len(tokenizer) <= vocabulary:
            return tokenizer, "minilm"
    return None, None


def _named(wanted):
    """Folder of the tokenizer that belongs to any loadable name of a model."""
    if Path(wanted).is_dir():
        return Path(wanted)
    if wanted.endswith(".gguf"):
        return gguf_folder(Path(wanted))
    return demo_folder(wanted) or _by_name(wanted)


def unread_tokenizer(folder: str | os.PathLike | None) -> str:
    """Description of an unsupported tokenizer file in a folder; "" if there is none."""
    if folder is None or _holds_tokenizer(folder):
        return ""
    files = sorted(path.name for path in Path(folder).iterdir() if path.is_file())
    for file in (file for end in UNREAD for file in files if file.endswith(end)):
        return f"it is in {file}, a kind of file that lipnb does not read"
    if "tokenizer_config.json" in files:
        with suppress(ValueError):
            kind = json_of(Path(folder) / "tokenizer_config.json", "").get("tokenizer_class")
            return f"tokenizer_config.json says {kind!r:.60}, and no file with its words is there that is read"
    return ""


def _by_name(name):
    data = os.environ.get("LIPNB_DATA")
    place = Path(data, "tokenizers", name) if data else None
    return place if _holds_tokenizer(place) else tokenizer_from_hub(name)


def _holds_tokenizer(folder):
    # AutoTokenizer would invent an empty vocabulary without these files, so look for them first
    if folder is None:
        return False
    there = {file for file in TOKENIZER_FILES if (Path(folder) / file).is_file()}
    return bool(there & {"tokenizer.json", "vocab.txt"}) or {"vocab.json", "merges.txt"} <= there


def _read(folder):
    name = Path(folder).name
    check_folder(folder, name)
    refusal = f"the tokenizer in the folder {name!r} could not be read"
    mend = "give another with --tokenizer (tokenizer= in Python), or correct its files"
    with quiet(), passed_on(refusal, mend):
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
