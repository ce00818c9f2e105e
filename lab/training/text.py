"""Training texts, cut into training and validation parts, as byte pairs or as characters."""

import numpy as np
import torch

from lipscan import corpora

__all__ = [
    "END",
    "character_ids",
    "character_parts",
    "gutenberg_or_embedded",
    "split_text",
    "token_ids",
    "train_tokenizer",
]

END = "<|endoftext|>"
HELD_OUT = 0.02  # share at the end of each text, for validation


def split_text(texts, held_out=HELD_OUT):
    """Training and validation parts: the end of each text is held out.

    Parameters
    ----------
    texts : sequence of str
        Complete texts.
    held_out : float
        Share of the characters of each text that is held out.

    Returns
    -------
    list of str, list of str
        Beginnings, ends.

    Raises
    ------
    ValueError
        No text is given.
    """
    if not any(text.strip() for text in texts):
        raise ValueError("there is no text to train on: give at least one that is not empty.")
    places = [int(len(text) * (1 - held_out)) for text in texts]
    return (
        [text[:place] for text, place in zip(texts, places, strict=True)],
        [text[place:] for text, place in zip(texts, places, strict=True)],
    )


def train_tokenizer(texts, vocabulary):
    """A byte-level byte-pair tokenizer trained on texts, by the library `tokenizers`.

    Parameters
    ----------
    texts : sequence of str
        Training parts only.
    vocabulary : int
        Number of token ids, at least 257: all bytes and the end of a text. A short text can give fewer.

    Returns
    -------
    tokenizers.Tokenizer
        It reads any text, and decodes it again exactly. The end of a text is `END`.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocabulary < 257:
        raise ValueError(f"a byte-level vocabulary has at least 257 entries, got {vocabulary}.")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def token_ids(tokenizer, texts):
    """All texts as one row of token ids, `END` after each: LongTensor, shape (t,)."""
    end = tokenizer.token_to_id(END)
    ids = []
    for text in texts:
        ids += [*tokenizer.encode(text).ids, end]
    return torch.tensor(ids)


def gutenberg_or_embedded(without=("carroll-alice.txt",)):
    """NLTK's Gutenberg texts or, without them, the text that ships with Python.

    Parameters
    ----------
    without : sequence of str
        Texts to leave out, so that a model trained on the others can be measured on text it never read.

    Returns
    -------
    str, dict of str to str
        Description of the texts; name -> text.
    """
    texts = {name: text for name, text in corpora.gutenberg().items() if name not in without}
    if texts:
        return f"{len(texts)} texts of NLTK's Gutenberg corpus, without {', '.join(without)}", texts
    return corpora.describe("python_reference"), {"python_reference": corpora.read("python_reference")}


def character_parts(name):
    """Training, validation and test part of a text, for a model of characters.

    Parameters
    ----------
    name : str
        "ptb", which comes in these parts, or any other name or path for `lipnb.corpora.read`: then the last tenth is
        held out, one half of it for validation, the other for the test.

    Returns
    -------
    tuple of str
        The three parts.
    """
    if name == "ptb":
        return corpora.penn_treebank()
    text = corpora.read(name)
    ends = [int(len(text) * share) for share in (0.9, 0.95)]
    return text[: ends[0]], text[ends[0] : ends[1]], text[ends[1] :]


def character_ids(parts):
    """Characters as numbers.

    Parameters
    ----------
    parts : sequence of str
        Parts of a text; the first one, on which a model is trained, defines the alphabet.

    Returns
    -------
    list of LongTensor, shape (t,), and int
        Numbers of the characters of each part, in the order of the alphabet, and the size of the vocabulary. The last
        number represents every character that the first part lacks.

    Raises
    ------
    ValueError
        The first part has no text.
    """
    if not parts or not parts[0].strip():
        raise ValueError("there is no text to train on: give at least one that is not empty.")
    codes = [np.frombuffer(part.encode("utf-32-le"), dtype=np.uint32) for part in parts]
    alphabet = np.unique(codes[0])
    ids = []
    for code in codes:
        place = np.searchsorted(alphabet, code).clip(max=len(alphabet) - 1)
        ids.append(torch.from_numpy(np.where(alphabet[place] == code, place, len(alphabet))))
    return ids, len(alphabet) + 1
