"""Windows of tokens, the first ones of a text or random ones; no more of the text is tokenized than they need."""

import re
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a text needs no torch
    from torch import Tensor

__all__ = ["disjoint", "first_tokens", "random_windows", "special_tokens", "windows"]

CHARACTERS, MARGIN = 8, 64  # characters read per token, and extra tokens, at first
SPACE = re.compile(r"(?<=\S) (?=\S)")  # one space between two words: no tokenizer here joins the two sides
GAP = re.compile(r"(?<=\S)\s")  # end of a word


def windows(token_ids: "Tensor", length: int, count: int) -> "Tensor":
    """The first `count` windows of `length` tokens, without overlap or wrapping around.

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
        The text is too short for these windows, or `length`, `count` or the shape is invalid.

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
    """Random starts of `count` stretches of `length` among `total` that do not overlap; all placements equally likely.

    Parameters
    ----------
    total, length, count : int
        Size of the whole, length and number of the stretches; ``length * count <= total``.
    seed : int
        Seed of the draw; the global random state is not changed.

    Returns
    -------
    list of int
        Starts of the stretches, in order.

    Raises
    ------
    ValueError
        The stretches do not fit.

    Examples
    --------
    >>> disjoint(10, 5, 2), len(disjoint(1000, 32, 8))
    ([0, 5], 8)
    """
    if min(length, count) < 0:
        raise ValueError(f"length and count must be 0 or more, got {length} and {count}.")
    room = total - length * count
    if room < 0:
        raise ValueError(f"{count} stretches of {length} do not fit into {total} without overlap: take fewer.")
    # choose which of `room` free positions and `count` stretches in a row are the stretches
    chosen = sorted(Random(seed).sample(range(room + count), count))
    return [place + i * (length - 1) for i, place in enumerate(chosen)]


def first_tokens(model: Any, text: str, count: int) -> "Tensor":
    """The first token ids of a text, equal to those of the whole text.

    Parameters
    ----------
    model : lipnb.models.Model
        Model whose tokenizer is used.
    text : str
        Any text, as for `lipnb.models.Model.token_ids`.
    count : int
        Number of ids wanted; a shorter text gives fewer.

    Returns
    -------
    LongTensor, shape (at most count,)

    Raises
    ------
    ValueError
        `count` is less than 1, or `text` has no token.

    Notes
    -----
    The text is cut at a single space between two words. WordPiece and byte-level BPE treat the words on both sides
    separately, so the tokens before the cut agree with the tokens of the whole text. For other tokenizers, and for a
    text without such spaces, two beginnings, one twice as long as the other, must agree on the wanted ids and have 64
    tokens more; otherwise more of the text is read, in the end all of it.
    """
    if not isinstance(text, str):
        return model.token_ids(text)  # raises its error
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
        Model whose tokenizer is used.

    Returns
    -------
    before, after : list of int
        Empty if its convention has none (GPT-2, SmolLM2).

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
    """Windows of a text at random positions, disjoint, every placement equally likely.

    Parameters
    ----------
    model : lipnb.models.Model
        Model whose tokenizer is used.
    text : str
        Any text.
    length : int
        Tokens of a window, n, special tokens included.
    count : int
        Number of windows.
    seed : int
        Seed of the positions.
    special : bool
        Whether the model's special tokens surround each window, as if it were a complete text.

    Returns
    -------
    LongTensor, shape (count, n)

    Raises
    ------
    ValueError
        A window has no room besides its special tokens, or the text is too short.

    Notes
    -----
    In a long text, stretches of 8 (n + 64) characters are drawn, and each is read from its first new word on; if one
    holds too few tokens, all are drawn again twice as long. A short text is tokenized whole, and windows are drawn
    among its tokens.

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
            f"a window of {length} token{'s' * (length > 1)} has no room for text next to {length - content} special "
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
        windows(ids, content, count)  # raises its error if the text is too short
        drawn = [ids[start : start + content] for start in disjoint(len(ids), content, count, seed)]
    import torch

    return torch.tensor([[*before, *ids.tolist(), *after] for ids in drawn])


def _from_a_word(stretch):
    """A stretch of a text from its first new word on, with the space before it."""
    gap = GAP.search(stretch)
    return stretch[gap.start() :] if gap and stretch[gap.start() :].strip() else stretch


def decoded(tokenizer: Any, number: int) -> str:
    """Text of a token, with a space before it if it has one; for a part of a character, its vocabulary entry.

    Examples
    --------
    >>> from lipnb import models
    >>> tokenizer = models.load("minilm").tokenizer
    >>> decoded(tokenizer, 102), decoded(tokenizer, 2_000)
    ('[SEP]', 'to')
    """
    token = str(tokenizer.convert_ids_to_tokens(number))
    read = tokenizer.decode([number], clean_up_tokenization_spaces=False)
    if token.startswith("\u2581") and not read.startswith(" "):  # SentencePiece drops an initial space
        read = f" {read}"
    return token if not read or "\ufffd" in read else read
