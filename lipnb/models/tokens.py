"""Which tokenizer a model reads text with, never chosen silently; the first tokens of a text, without reading on."""

import os
import re
from pathlib import Path
from typing import Any

import torch

from lipnb.models.checked import check_folder
from lipnb.models.files import TOKENIZER_FILES, minilm_folder, quiet, tokenizer_from_hub

__all__ = ["find_tokenizer", "first_tokens"]

MARGIN = 64  # tokens read beyond those that are wanted
GAP = re.compile(r"(?<=\S) (?=\S)")  # one space between two words: no tokenizer here joins what it parts


def find_tokenizer(wanted, name, folder, on_hub, vocabulary, random):
    """Tokenizer of a model, and whose it is.

    The model's own comes first: in its folder, in ``$LIPNB_DATA/tokenizers/<name>``, on the hub or in its
    cache. A random model without one reads MiniLM's WordPiece ids (below 30522), if its vocabulary is large
    enough: its weights know no language, so any ids do, and the name says which they are.

    Parameters
    ----------
    wanted : str or None
        "minilm", a name or a folder: this tokenizer and no other.
    name : str
        Name of the model.
    folder : Path or None
        Where the model's files are; None for a plain configuration.
    on_hub : bool
        Whether `name` is a name on the hub.
    vocabulary : int
        Number of token ids the model knows.
    random : bool
        Whether the model's weights are random.

    Returns
    -------
    tokenizer, str
        Or None, None.

    Raises
    ------
    FileNotFoundError
        "no tokenizer ... could be found ..."
    ValueError
        "tokenizer must be a name or a folder ..."; "the tokenizer ... has ... token ids, but ... knows only ..."
    """
    if wanted is not None:
        if not isinstance(wanted, (str, os.PathLike)):
            raise ValueError(
                f"tokenizer must be a name or a folder, got a {type(wanted).__name__}: one in memory is saved with "
                "tokenizer.save_pretrained('mine'), then give 'mine'."
            )
        wanted = os.fspath(wanted)
        place = minilm_folder() if wanted == "minilm" else Path(wanted)
        place = place if place.is_dir() else _by_name(wanted)
        if not _holds_tokenizer(place):
            raise FileNotFoundError(
                f"no tokenizer {wanted!r} could be found: not as a folder, not under "
                "$LIPNB_DATA/tokenizers, not on the Hugging Face hub or in its cache. "
                "Without network take --tokenizer minilm (tokenizer='minilm' in Python), which is embedded."
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


def _by_name(name):
    data = os.environ.get("LIPNB_DATA")
    place = Path(data, "tokenizers", name) if data else None
    return place if _holds_tokenizer(place) else tokenizer_from_hub(name)


def _holds_tokenizer(folder):
    # AutoTokenizer makes up an empty vocabulary where there is none, so the files are looked for first
    if folder is None:
        return False
    there = {file for file in TOKENIZER_FILES if (Path(folder) / file).is_file()}
    return bool(there & {"tokenizer.json", "vocab.txt"}) or {"vocab.json", "merges.txt"} <= there


def _read(folder):
    check_folder(folder, Path(folder).name)
    with quiet():
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # the library has many ways to refuse a file
            raise ValueError(
                f"the tokenizer in the folder {Path(folder).name!r} could not be read "
                f"({str(error).strip().splitlines()[0]}): give another with --tokenizer (tokenizer= in "
                "Python), or mend its files."
            ) from error


def first_tokens(model: Any, text: str, count: int) -> torch.Tensor:
    """The first token ids of a text, the same ones as of the whole text.

    Parameters
    ----------
    model : lipnb.models.Model
        Whose tokenizer reads.
    text : str
        Any text, as for `lipnb.models.Model.token_ids`.
    count : int
        How many ids are wanted; fewer come from a text that has fewer.

    Returns
    -------
    LongTensor, shape (at most count,)

    Raises
    ------
    ValueError
        "count must be 1 or more ...".

    Notes
    -----
    The text is cut at a single space between two words. WordPiece and byte-level BPE treat the words on both sides
    apart, so the tokens before the cut are those of the whole text. For any other tokenizer, and for a text without
    such spaces, two beginnings of which one is twice as long must agree on the wanted ids, with 64 more behind them;
    else the text is read further, in the end whole.
    """
    if not isinstance(text, str):
        return model.token_ids(text)  # its sentence
    if count < 1:
        raise ValueError(f"count must be 1 or more, got {count}.")
    size, before = 8 * (count + MARGIN), None
    while size < len(text):
        gap = GAP.search(text, size, min(len(text), 2 * size))
        beginning = text[: gap.start() if gap else size]
        if beginning.strip():
            ids = model.token_ids(beginning)
            enough = len(ids) >= count + MARGIN
            if enough and before is not None and torch.equal(before, ids[:count]):
                return before
            before = ids[:count] if enough else None
        size *= 2
    return model.token_ids(text)[:count]
