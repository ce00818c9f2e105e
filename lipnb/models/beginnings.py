"""The first tokens of a text, of which no more is tokenized than they need."""

import re

import torch

__all__ = ["first_tokens"]

MARGIN = 64  # tokens read beyond those that are wanted
GAP = re.compile(r"(?<=\S) (?=\S)")  # one space between two words: no tokenizer here joins what it parts


def first_tokens(model, text, count):
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

    Notes
    -----
    The text is cut at a single space between two words. WordPiece and byte-level BPE treat the words on both sides
    apart, so the tokens before the cut are those of the whole text. For any other tokenizer, and for a text without
    such spaces, two beginnings of which one is twice as long must agree on the wanted ids, with 64 more behind them;
    else the text is read further, in the end whole.
    """
    if not isinstance(text, str):
        return model.token_ids(text)  # its sentence
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
