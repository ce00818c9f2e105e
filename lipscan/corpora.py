"""Texts to measure on, and windows of their tokens. The only module that imports NLTK."""

import hashlib
import json
import os
import re
import sys
import zipfile
from pathlib import Path

from lipnb.extras import extra
from lipscan import hub
from lipscan.origin import cache_folder
from lipscan.registry import Source, fetch_into
from lipscan.windows import disjoint, windows

__all__ = ["NAMES", "available", "describe", "disjoint", "fingerprint", "gutenberg", "penn_treebank", "read", "windows"]

NAMES = {
    "alice": "Alice's Adventures in Wonderland, as in NLTK's Gutenberg corpus",
    "ag_news": "AG_NEWS test split, 7,600 news items (title and description)",
    "ptb": "Penn Treebank characters, the three parts of Mikolov's edition",
    "reactions": "8,863 reactions of US patents as SMILES strings, each followed by a dot (Open Reaction Database)",
    "python_reference": "the language reference that Python carries (pydoc_data.topics); always available",
}


def read(name: str) -> str:
    """Text of a corpus.

    Parameters
    ----------
    name : str
        "alice" (NLTK's own data path, else the package registry, once: 27 MB), "ag_news" (the folder ``LIPNB_DATA``,
        else the Hugging Face hub), "ptb" (the folder ``LIPNB_DATA``), "reactions" (after ``lipnb fetch
        reactions``), "python_reference" (ships with Python, so always available),
        or the path of a text file.

    Returns
    -------
    str

    Raises
    ------
    FileNotFoundError
        The text was not found; the message lists where it was looked for and names the text that is always available.
    ValueError
        The file is not UTF-8 text, is empty or holds only white space.

    Notes
    -----
    castin2024smooth, section 5, measures on the first two; kim2021lipschitz trains on the third. The reference text
    changes a little with each release of Python: `fingerprint` tells editions apart. "alice" is the same text, to the
    byte, from both sources.

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
        raise ValueError(f"text must be a name or a path, got {type(name).__name__}.")
    return known[name]() if name in known else _file(name)


def available(*names: str) -> str:
    """The first of `names` that can be read on this machine, so that a page can report which text it used.

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
        None of the texts can be read on this machine.
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
    """First 12 hexadecimal digits of the SHA-256 of a text, which identify the edition behind a row."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def gutenberg() -> dict[str, str]:
    """Texts of NLTK's Gutenberg corpus found in NLTK's data path, name -> text; empty without the corpus."""
    with extra("models"):
        from nltk.corpus import gutenberg
    try:
        return {name: gutenberg.raw(name) for name in sorted(gutenberg.fileids())}
    except LookupError:
        return {}


def penn_treebank() -> tuple[str, str, str]:
    """Training, validation and test parts of the Penn Treebank, as three strings of characters.

    Lines are stripped, each ends with a newline, and the space is one of the 50 characters. The official character
    files write the space as "_" and separate characters by spaces; the sequence is the same.

    Raises
    ------
    FileNotFoundError
        The archive is not in the folder ``LIPNB_DATA``.
    """
    folder = os.environ.get("LIPNB_DATA")
    path = Path(folder, "ptb", "ptb.zip") if folder else None
    if path is None or not path.is_file():
        raise FileNotFoundError(
            "the text 'ptb' was not found: it is not in the folder LIPNB_DATA (ptb/ptb.zip). Set "
            "LIPNB_DATA, or use 'python_reference', which is always available."
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
        from nltk.corpus import gutenberg
    try:
        return gutenberg.raw("carroll-alice.txt")
    except LookupError:
        pass
    folder = text_folder("alice")
    if not folder.is_dir() and sys.stderr.isatty():
        print(f"fetching 'alice' from the package registry, {TEXTS['alice'].size / 1e6:.0f} MB, once", file=sys.stderr)
    try:
        fetch_into(folder, TEXTS["alice"], "alice")
    except OSError as error:  # no network, no space left
        raise FileNotFoundError(
            "the text 'alice' was not found: it is not in NLTK's data path, and could not be fetched from the package "
            f"registry ({_reason(error)}). Set NLTK_DATA to a folder that holds corpora/gutenberg, or use "
            "'python_reference', which is always available."
        ) from None
    return (folder / "alice.txt").read_text(encoding="utf-8")


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
            "the text 'ag_news' was not found: it is not in the folder LIPNB_DATA (ag_news_csv/test.csv), and could "
            "not be fetched from the Hugging Face hub. Set LIPNB_DATA, or use 'python_reference', which is always "
            "available."
        ) from None
    try:
        return "\n".join(pd.read_parquet(path)["text"])
    except ImportError:
        # not a FileNotFoundError: the text exists, and `available` must not silently take another one
        raise ModuleNotFoundError(
            "the text 'ag_news' from the hub is a Parquet file, which pandas cannot read here: "
            "pip install '.[hub]' in a clone of lipnb."
        ) from None
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"the text 'ag_news' from the hub is damaged ({_reason(error)}): delete it from the hub's cache, and it "
            "will be fetched again."
        ) from None


def _reactions():
    path = text_folder("reactions") / "reactions.txt"
    if not path.is_file():
        raise FileNotFoundError(
            "the text 'reactions' is not here yet: run lipnb fetch reactions, or use 'python_reference', which is "
            "always available."
        )
    return path.read_text(encoding="utf-8")


def _reason(error):
    """First line of an error."""
    return (str(error) or type(error).__name__).splitlines()[0]


def _python_reference():
    from pydoc_data.topics import topics

    return "\n\n".join(topics[key] for key in sorted(topics))


def text_folder(name: str) -> Path:
    """Folder in which a fetched text of `TEXTS` is stored."""
    return cache_folder() / "texts" / name


def unpack_reactions(path: Path, folder: Path, name: str) -> None:
    """Write reactions.txt: one reaction a line in SMILES, without repeats, and a dot after each but the last.

    The inputs stand before ``>>``, reactants and agents together in alphabetical order, as in the training data of the
    model. In SMILES a dot separates molecules, so a window longer than a reaction runs on into the next.
    """
    found = dict.fromkeys(map(_reaction, json.loads(path.read_text(encoding="utf-8"))))
    (folder / "reactions.txt").write_text(".\n".join(found), encoding="utf-8")


def _reaction(reaction):
    conditions = reaction["conditions"]
    agents = [conditions.get("solvent"), conditions.get("co_solvent"), *(conditions.get("reagents") or [])]
    return ".".join(sorted({*reaction["reactants_smiles"], *filter(None, agents)})) + ">>" + reaction["product_smiles"]


def unpack_alice(path: Path, folder: Path, name: str) -> None:
    """Write alice.txt, to the byte as NLTK's Gutenberg corpus has it, from a whole edition of Project Gutenberg.

    NLTK's edition is the book from the first chapter's heading to its last words, under a title line. It differs from
    the whole edition in a heading, and in a slip on its last page.
    """
    whole = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    book = whole[whole.index(FIRST_WORDS) : whole.index(LAST_WORDS) + len(LAST_WORDS)]
    for ours, theirs in NLTK_HAS.items():
        book = re.sub(ours, theirs, book, count=1)
    text = f"[Alice's Adventures in Wonderland by Lewis Carroll 1865]\n\n{book}\n".encode()
    if hashlib.sha256(text).hexdigest() != ALICE_SHA256:
        raise ValueError(f"the text made from {name!r} is not NLTK's (its SHA-256 differs): please report it.")
    (folder / "alice.txt").write_bytes(text)


def _file(name):
    path = Path(name)
    if not path.is_file():
        raise FileNotFoundError(
            f"the text {name!r} was not found: it is not a file, and not one of the corpora "
            f"{', '.join(map(repr, NAMES))}."
        )
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"the file {path.name} is not UTF-8 text: convert it first.") from None
    if not text.strip():
        what = "holds only white space" if text else "is empty"
        raise ValueError(f"the file {path.name} {what}: give a text to measure on.")
    return text


FIRST_WORDS, LAST_WORDS = "CHAPTER I. Down", "the happy summer days."
NLTK_HAS = {  # patterns in the whole edition, and NLTK's text for them
    r"\nCHAPTER XII\. Alice's Evidence": f"{'':13}CHAPTER XII\n\n{'':11}Alice's Evidence",
    r"became alive with the strange creatures\nof her": "became alive the strange creatures of\nher",
}
ALICE_SHA256 = "5ce9042c0d8536b072b61d4c7c4e6d70c72d9dbb5f3d816261326d9280749266"
TEXTS = {
    "alice": Source(
        title="Alice's Adventures in Wonderland, to the byte as NLTK has it; `lipnb.corpora` reads it",
        package="wordcloud",
        version="1.9.4",
        sha256="b273d8a5ded97d3ead904046b49464dcb71119ee79df875072a4c105cadd347a",
        member="wordcloud-1.9.4/examples/alice.txt",
        size=27_563_753,
        licence="public domain (the package: MIT)",
        unpack=unpack_alice,
        wheel=False,
    ),
    "reactions": Source(
        title="reactions of US patents as SMILES strings, from the Open Reaction Database; `lipnb.corpora` reads them",
        package="path-finder-retrosynthesis",
        version="1.0.26",
        sha256="0d1f097b90a7a0bfe95fc0a2873bc72e77c0552f2779e086dcab932d0bc83558",
        member="path_finder/data/generic_reactions.json",
        size=6_380_951,
        licence="MIT (the package; the database upstream is CC BY-SA 4.0)",
        unpack=unpack_reactions,
    ),
}
