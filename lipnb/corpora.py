"""Texts to measure on, and windows of their tokens. The only door to NLTK."""

import hashlib
import os
import zipfile
from io import StringIO
from pathlib import Path

from lipnb import hub
from lipnb.origin import cache_folder, extra
from lipnb.windows import disjoint, windows

__all__ = ["NAMES", "available", "describe", "disjoint", "fingerprint", "gutenberg", "penn_treebank", "read", "windows"]

NAMES = {
    "alice": "Alice's Adventures in Wonderland, from NLTK's Gutenberg corpus",
    "ag_news": "AG_NEWS test split, 7,600 news items (title and description)",
    "ptb": "Penn Treebank characters, the three parts of Mikolov's edition",
    "reactions": "8,863 reactions of US patents as SMILES strings, each followed by a dot (Open Reaction Database)",
    "python_reference": "the language reference that Python carries (pydoc_data.topics); always there",
}


def read(name: str) -> str:
    """Text of a corpus.

    Parameters
    ----------
    name : str
        "alice" (NLTK's own data path, else NLTK's download), "ag_news" (the folder ``LIPNB_DATA``, else the
        Hugging Face hub), "ptb" (the folder ``LIPNB_DATA``), "reactions" (after ``lipnb fetch
        reactions``), "python_reference" (the embedded default, always there),
        or the path of a text file.

    Returns
    -------
    str

    Raises
    ------
    FileNotFoundError
        "the text ... was not found": names where it is looked for and the text that is always there.
    ValueError
        "the file ... is not UTF-8 text" or "... is empty", "... holds only white space".

    Notes
    -----
    castin2024smooth, section 5, measures on the first two; kim2021lipschitz trains on the third. The embedded text
    changes a little with each release of Python: `fingerprint` tells editions apart.

    Examples
    --------
    >>> len(read("python_reference")) > 300_000
    True
    """
    known = {
        "alice": _alice,
        "ag_news": _ag_news,
        "ptb": lambda: "".join(penn_treebank()),
        "reactions": _reactions,
        "python_reference": _python_reference,
    }
    if not isinstance(name, str | os.PathLike):
        raise ValueError(f"a text is read by its name or path, got {type(name).__name__}.")
    return known[name]() if name in known else _file(name)


def available(*names: str) -> str:
    """The first of `names` that can be read here, so that a page can say which text it really used.

    Parameters
    ----------
    *names : str
        Names or paths, as for `read`, in order of preference.

    Returns
    -------
    str

    Raises
    ------
    FileNotFoundError
        "none of ... can be read here".
    """
    for name in names:
        try:
            read(name)
        except FileNotFoundError:
            continue
        return name
    raise FileNotFoundError(f"none of {', '.join(map(repr, names))} can be read here: use 'python_reference'.")


def describe(name: str) -> str:
    """One line on a corpus, for captions."""
    return NAMES.get(name, f"the file {Path(name).name}")


def fingerprint(text: str) -> str:
    """First 12 hexadecimal digits of the SHA-256 of a text: which edition a row was measured on."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def gutenberg() -> dict[str, str]:
    """The texts of NLTK's Gutenberg corpus that are in NLTK's data path, name -> text; empty without it."""
    with extra("models"):
        from nltk.corpus import gutenberg
    try:
        return {name: gutenberg.raw(name) for name in sorted(gutenberg.fileids())}
    except LookupError:
        return {}


def penn_treebank() -> tuple[str, str, str]:
    """Training, validation and test part of the Penn Treebank, as characters: three strings.

    Lines are stripped, each ends with a newline, and the space is one of 50 characters. The official character files
    write it as "_", and a space between any two characters; the sequence is the same.

    Raises
    ------
    FileNotFoundError
        "the text 'ptb' was not found ...".
    """
    folder = os.environ.get("LIPNB_DATA")
    path = Path(folder, "ptb", "ptb.zip") if folder else None
    if path is None or not path.is_file():
        raise FileNotFoundError(
            "the text 'ptb' was not found: it is not in the folder LIPNB_DATA (ptb/ptb.zip). Set "
            "LIPNB_DATA, or use 'python_reference', which is always there."
        )
    try:
        with zipfile.ZipFile(path) as archive:
            parts = [archive.read(f"ptb/ptb.{part}.txt").decode() for part in ("train", "valid", "test")]
    except (zipfile.BadZipFile, KeyError, UnicodeDecodeError) as error:
        raise ValueError(
            f"the text 'ptb' in LIPNB_DATA is damaged ({_reason(error)}): copy ptb/ptb.zip again."
        ) from None
    train, valid, test = ("".join(line.strip() + "\n" for line in part.splitlines()) for part in parts)
    return train, valid, test


def _alice():
    with extra("models"):
        import nltk
        from nltk.corpus import gutenberg
    try:
        return gutenberg.raw("carroll-alice.txt")
    except LookupError:
        # NLTK prints its failures even when quiet; ours is the sentence below
        if nltk.download("gutenberg", quiet=True, print_error_to=StringIO()):
            return gutenberg.raw("carroll-alice.txt")
        raise FileNotFoundError(
            "the text 'alice' was not found: NLTK's Gutenberg corpus is neither in NLTK's data path nor could it be "
            "downloaded. Set NLTK_DATA to a folder that holds corpora/gutenberg, or use 'python_reference', "
            "which is always there."
        ) from None


def _ag_news():
    with extra("models"):
        import pandas as pd
    folder = os.environ.get("LIPNB_DATA")
    path = Path(folder, "ag_news_csv", "test.csv") if folder else None
    if path is not None and path.is_file():
        try:
            items = pd.read_csv(path, header=None, names=["class", "title", "description"])
            if items.empty:
                raise ValueError("it is empty")
            return "\n".join(items["title"] + " " + items["description"])
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"the text 'ag_news' in LIPNB_DATA is damaged ({_reason(error)}): ag_news_csv/test.csv "
                "has three columns, class, title and description."
            ) from None
    try:
        with extra("models"):
            path = hub.dataset_file("fancyzhx/ag_news", "data/test-00000-of-00001.parquet")
    except FileNotFoundError:
        raise FileNotFoundError(
            "the text 'ag_news' was not found: it is neither in the folder LIPNB_DATA (ag_news_csv/test.csv) nor "
            "could it be had from the Hugging Face hub. Set LIPNB_DATA, or use 'python_reference', which is always "
            "there."
        ) from None
    try:
        return "\n".join(pd.read_parquet(path)["text"])
    except ImportError:
        # no FileNotFoundError: the text is there, and `available` must not take another one without a word
        raise ModuleNotFoundError(
            "the text 'ag_news' from the hub is a Parquet file, which pandas cannot read here: "
            "pip install '.[hub]' in a clone of lipnb."
        ) from None
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"the text 'ag_news' from the hub is damaged ({_reason(error)}): delete it from the hub's "
            "cache, then it is fetched again."
        ) from None


def _reactions():
    path = cache_folder() / "texts" / "reactions" / "reactions.txt"
    if not path.is_file():
        raise FileNotFoundError(
            "the text 'reactions' is not here yet: run lipnb fetch reactions, or use 'python_reference', which is "
            "always there."
        )
    return path.read_text(encoding="utf-8")


def _reason(error):
    """The first line of an error."""
    return (str(error) or type(error).__name__).splitlines()[0]


def _python_reference():
    from pydoc_data.topics import topics

    return "\n\n".join(topics[key] for key in sorted(topics))


def _file(name):
    path = Path(name)
    if not path.is_file():
        raise FileNotFoundError(
            f"the text {name!r} was not found: it is no file, and no corpus of {', '.join(map(repr, NAMES))}."
        )
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"the file {path.name} is not UTF-8 text: convert it first.") from None
    if not text.strip():
        what = "holds only white space" if text else "is empty"
        raise ValueError(f"the file {path.name} {what}: give a text to measure on.")
    return text
