"""Windows of the tokens of a text: the first ones or random ones, and no more of the text read than they need."""

import re
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a text needs no torch
    from torch import Tensor

__all__ = ["disjoint", "first_tokens", "random_windows", "special_tokens", "windows"]

CHARACTERS, MARGIN = 8, 64  # characters read for a token, and tokens beyond those wanted, at first
SPACE = re.compile(r"(?<=\S) (?=\S)")  # one space between two words: no tokenizer here joins what it parts
GAP = re.compile(r"(?<=\S)\s")  # where a word ends


def windows(token_ids: "Tensor", length: int, count: int) -> "Tensor":
    """The first `count` windows of `length` tokens: never overlapping, never wrapping around.

    Parameters
    ----------
    token_ids : Tensor, shape (t,)
        Tokens of a text.
    length : int
        Tokens in a window, n.
    count : int
        Number of windows.

    Returns
    -------
    Tensor, shape (count, n)

    Raises
    ------
    ValueError
        "the text has ... tokens, but ... windows of ... tokens need ...": take fewer or shorter windows.

    Examples
    --------
    >>> import torch
    >>> windows(torch.arange(10), 3, 2)
    tensor([[0, 1, 2],
            [3, 4, 5]])
    """
    if length < 1 or count < 1:
        raise ValueError(f"windows need a length and a count of at least 1, got length {length}, count {count}.")
    if getattr(token_ids, "ndim", None) != 1:
        got = tuple(token_ids.shape) if hasattr(token_ids, "shape") else type(token_ids).__name__
        raise ValueError(f"token_ids must have shape (t,), got {got}: use model.token_ids(text).")
    if len(token_ids) < length * count:
        raise ValueError(
            f"the text has {len(token_ids)} tokens, but {count} window{'s' * (count > 1)} of {length} "
            f"tokens need{'s' * (count == 1)} {length * count}: take fewer or shorter windows, or a longer text."
        )
    return token_ids[: length * count].reshape(count, length)


def disjoint(total: int, length: int, count: int, seed: int = 0) -> list[int]:
    """Random places of `count` stretches of `length` among `total` that do not overlap, every placement equally likely.

    Parameters
    ----------
    total, length, count : int
        Of what, how long and how many; ``length * count <= total``.
    seed : int
        Of the draw; the global random state stays.

    Returns
    -------
    list of int
        Where they begin, in order.

    Raises
    ------
    ValueError
        "... do not fit ...".

    Examples
    --------
    >>> disjoint(10, 5, 2), len(disjoint(1000, 32, 8))
    ([0, 5], 8)
    """
    room = total - length * count
    if room < 0:
        raise ValueError(f"{count} stretches of {length} do not fit into {total} without overlap: take fewer.")
    # of `room` free places and `count` stretches in a row, which are the stretches
    chosen = sorted(Random(seed).sample(range(room + count), count))
    return [place + i * (length - 1) for i, place in enumerate(chosen)]


def first_tokens(model: Any, text: str, count: int) -> "Tensor":
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
    size, before = CHARACTERS * (count + MARGIN), None
    while size < len(text):
        gap = SPACE.search(text, size, min(len(text), 2 * size))
        beginning = text[: gap.start() if gap else size]
        if beginning.strip():
            ids = model.token_ids(beginning)
            enough = len(ids) >= count + MARGIN
            if enough and before is not None and before.tolist() == ids[:count].tolist():
                return before
            before = ids[:count] if enough else None
        size *= 2
    return model.token_ids(text)[:count]


def special_tokens(model: Any) -> tuple[list[int], list[int]]:
    """Ids that the model's own tokenizer puts before and after a text, such as [CLS] and [SEP].

    Parameters
    ----------
    model : lipnb.models.Model
        Whose tokenizer.

    Returns
    -------
    before, after : list of int
        Empty where its convention has none (GPT-2, SmolLM2).

    Examples
    --------
    >>> from lipnb import models
    >>> models.special_tokens(models.load("minilm"))
    ([101], [102])
    """
    bare = model.token_ids("a").tolist()
    whole = list(model.tokenizer("a", verbose=False)["input_ids"])
    places = [i for i in range(len(whole)) if whole[i : i + len(bare)] == bare]
    if not places:
        raise ValueError(f"the tokenizer of {model.name} does not put special tokens around a text: leave them out.")
    return whole[: places[0]], whole[places[0] + len(bare) :]


def random_windows(model: Any, text: str, length: int, count: int, *, seed: int = 0, special: bool = True) -> "Tensor":
    """Windows of a text at random places, disjoint, every placement equally likely.

    Parameters
    ----------
    model : lipnb.models.Model
        Whose tokenizer reads.
    text : str
        Any text.
    length : int
        Tokens of a window, n, special tokens included.
    count : int
        How many windows.
    seed : int
        Of the places.
    special : bool
        Whether each window stands between the model's special tokens, as a text of its own.

    Returns
    -------
    LongTensor, shape (count, n)

    Raises
    ------
    ValueError
        "a window of ... tokens has no room ..."; "the text has ... tokens, but ...": as `lipnb.corpora.windows`.

    Notes
    -----
    Of a long text, stretches of 8 (n + 64) characters are drawn, each read from its first new word on; where one holds
    too few tokens, all are drawn again twice as long. A short text is tokenized whole and windows are drawn among its
    tokens.

    Examples
    --------
    >>> from lipnb import corpora, models
    >>> ids = models.random_windows(models.load("minilm"), corpora.read("python_reference"), 8, 2)
    >>> ids.shape, ids[:, 0].tolist(), ids[:, -1].tolist()
    (torch.Size([2, 8]), [101, 101], [102, 102])
    """
    before, after = special_tokens(model) if special else ([], [])
    content = length - len(before) - len(after)
    if content < 1:
        raise ValueError(
            f"a window of {length} token{'s' * (length > 1)} has no room for text beside {length - content} special "
            "tokens: take longer windows, or leave special tokens out (--no-special; special=False in Python)."
        )
    size = CHARACTERS * (content + MARGIN)
    drawn: list[Tensor] = []
    while count * size < len(text) and len(drawn) < count:
        stretches = [text[start : start + size] for start in disjoint(len(text), size, count, seed)]
        read = [model.token_ids(_from_a_word(stretch)) for stretch in stretches if stretch.strip()]
        drawn = [ids[:content] for ids in read if len(ids) > content]  # one more: the last may be cut
        size *= 2
    if len(drawn) < count:
        ids = model.token_ids(text)
        windows(ids, content, count)  # its sentence where the text is too short
        drawn = [ids[start : start + content] for start in disjoint(len(ids), content, count, seed)]
    import torch

    return torch.tensor([[*before, *ids.tolist(), *after] for ids in drawn])


def _from_a_word(stretch):
    """A stretch of a text from its first new word on, its space included."""
    gap = GAP.search(stretch)
    return stretch[gap.start() :] if gap and stretch[gap.start() :].strip() else stretch


def decoded(tokenizer: Any, number: int) -> str:
    """What a tokenizer reads a token as: a space before it counts, and part of a character stays the vocabulary's.

    Examples
    --------
    >>> from lipnb import models
    >>> tokenizer = models.load("minilm").tokenizer
    >>> decoded(tokenizer, 102), decoded(tokenizer, 2_000)
    ('[SEP]', 'to')
    """
    token = str(tokenizer.convert_ids_to_tokens(number))
    read = tokenizer.decode([number], clean_up_tokenization_spaces=False)
    if token.startswith("\u2581") and not read.startswith(" "):  # SentencePiece drops the space that begins a text
        read = f" {read}"
    return token if not read or "\ufffd" in read else read
