"""Windows of a text drawn at random, with the model's own special tokens, and no more tokenized than they need."""

import re
from typing import Any

import torch
from torch import Tensor

from lipnb import corpora

__all__ = ["random_windows", "special_tokens"]

CHARACTERS, MARGIN = 8, 64  # characters kept for a token, and tokens beyond those wanted, at first
GAP = re.compile(r"(?<=\S)\s")  # where a word ends


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


def random_windows(model: Any, text: str, length: int, count: int, *, seed: int = 0, special: bool = True) -> Tensor:
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
            f"a window of {length} tokens has no room for text beside {length - content} special tokens: take longer "
            "windows, or leave special tokens out."
        )
    size = CHARACTERS * (content + MARGIN)
    drawn: list[Tensor] = []
    while count * size < len(text) and len(drawn) < count:
        stretches = [text[start : start + size] for start in corpora.disjoint(len(text), size, count, seed)]
        read = [model.token_ids(_from_a_word(stretch)) for stretch in stretches if stretch.strip()]
        drawn = [ids[:content] for ids in read if len(ids) > content]  # one more: the last may be cut
        size *= 2
    if len(drawn) < count:
        ids = model.token_ids(text)
        corpora.windows(ids, content, count)  # its sentence where the text is too short
        drawn = [ids[start : start + content] for start in corpora.disjoint(len(ids), content, count, seed)]
    return torch.stack([torch.tensor([*before, *ids.tolist(), *after]) for ids in drawn])


def _from_a_word(stretch):
    """A stretch of a text from its first new word on, its space included."""
    gap = GAP.search(stretch)
    return stretch[gap.start() :] if gap and stretch[gap.start() :].strip() else stretch
