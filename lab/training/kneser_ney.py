"""Interpolated modified Kneser-Ney smoothing of n-grams of token ids (chen1999empirical), in arrays.

An n-gram of token ids is one 64-bit integer whose digits to the base of the vocabulary are its tokens: dropping the
last token is a quotient, dropping the first one a remainder, and the sorted distinct n-grams are grouped by context.
"""

from typing import NamedTuple

import numpy as np

__all__ = ["KneserNey", "kneser_ney_loss"]

FALLBACK = (0.5, 1.0, 1.5)  # discounts if counts of counts give none, as in KenLM


class _Level(NamedTuple):
    """Distinct n-grams of one length, sorted, with their discounted counts and their contexts."""

    grams: np.ndarray
    left: np.ndarray  # count less discount, over the sum of the counts of the context
    contexts: np.ndarray
    weights: np.ndarray  # sum of the discounts in each context, for the next lower level


def _discounts(counts):
    """Discounts for counts of one, two, and more, from the counts of counts; shape (4,), zero for zero counts."""
    n = np.bincount(np.minimum(counts, 5), minlength=6)[1:5].astype(float)
    if n.all():
        share = n[0] / (n[0] + 2 * n[1])
        found = np.array([i - (i + 1) * share * n[i] / n[i - 1] for i in (1, 2, 3)])
        if ((found >= 0) & (found <= (1, 2, 3))).all():
            return np.array([0.0, *found])
    return np.array([0.0, *FALLBACK])


def _level(grams, counts, vocabulary):
    contexts, first = np.unique(grams // vocabulary, return_index=True)
    lengths = np.diff(first, append=len(grams))
    totals, discount = np.add.reduceat(counts, first), _discounts(counts)[np.minimum(counts, 3)]
    left = (counts - discount) / np.repeat(totals, lengths)
    return _Level(grams, left, contexts, np.add.reduceat(discount, first) / totals)


def _find(table, wanted):
    """Positions of `wanted` in a sorted table, and whether they occur in it."""
    place = np.searchsorted(table, wanted).clip(max=len(table) - 1)
    return place, table[place] == wanted


class KneserNey:
    r"""Probabilities of the next token after up to ``order - 1`` tokens.

    .. math:: p(w \mid h) = \frac{c(hw) - D(c(hw))}{\sum_v c(hv)} + \lambda(h)\, p(w \mid h'), \qquad
        \lambda(h) = \frac{\sum_v D(c(hv))}{\sum_v c(hv)},

    where h' is h without its first token. The three discounts D of each length, for counts of one, two, and more,
    follow from its counts of counts. For the longest n-grams c counts their occurrences in the training text, for
    shorter ones the different tokens before them. Below single tokens is the uniform distribution; after contexts that
    do not occur in the training text, only the shorter context decides. So every token has a positive probability, and
    the probabilities add up to 1.

    Parameters
    ----------
    training : array_like of int, shape (t,)
        Token ids, at least `order` of them.
    vocabulary : int
        Number of token ids.
    order : int
        Tokens in the longest n-gram, 1 or more.

    Raises
    ------
    ValueError
        `order` is not positive, or the training text is too short.

    Examples
    --------
    >>> model = KneserNey([0, 1, 2, 0, 1, 0, 1, 2, 2, 1], vocabulary=4, order=3)
    >>> after = model.probabilities([[0, 1, w] for w in range(4)])
    >>> bool(after.argmax() == 2), round(float(after.sum()), 9)
    (True, 1.0)
    """

    def __init__(self, training, vocabulary, order):
        ids = np.asarray(training).ravel().astype(np.int64)
        if order < 1 or vocabulary**order > 2**63:
            raise ValueError(f"the order must be at least 1 and {vocabulary}**order at most 2**63, got {order}.")
        if len(ids) < order:
            raise ValueError(f"the training text has {len(ids)} tokens: give at least {order}, or a smaller order.")
        self.vocabulary, self.order = vocabulary, order
        grams = [np.unique(_keys(_windows(ids, m), vocabulary), return_counts=True) for m in range(1, order + 1)]
        # number of contexts, for n-grams that are counted as the end of longer ones
        ends = [np.unique(longer % vocabulary**m, return_counts=True) for m, (longer, _) in enumerate(grams[1:], 1)]
        self._longest = [_level(*found, vocabulary) for found in grams]
        self._shorter = [_level(*found, vocabulary) for found in ends]

    def probabilities(self, grams):
        """Probability of the last token of each n-gram given the others.

        Parameters
        ----------
        grams : array_like of int, shape (q, m)
            Token ids, m from 1 to `order`. With fewer than `order` the model is that of order m, fitted as such.

        Returns
        -------
        ndarray, shape (q,)
        """
        grams = np.asarray(grams).astype(np.int64)
        m = grams.shape[1]
        if not 1 <= m <= self.order:
            raise ValueError(f"n-grams must have 1 to {self.order} tokens, got {m}.")
        p = np.full(len(grams), 1 / self.vocabulary)
        for length, level in enumerate([*self._shorter[: m - 1], self._longest[m - 1]], 1):
            key = _keys(grams[:, m - length :], self.vocabulary)
            place, known = _find(level.contexts, key // self.vocabulary)
            p = np.where(known, level.weights[place], 1.0) * p
            place, known = _find(level.grams, key)
            p = p + np.where(known, level.left[place], 0.0)
        return p

    def losses(self, token_ids, length=None):
        """Loss of every token but the first, from the tokens before it in its window.

        Parameters
        ----------
        token_ids : array_like of int, shape (t,)
            At least two, and more than `length`.
        length : int, optional
            Cut the text into disjoint windows of that many tokens, as `lab.training.validation_loss` does: the token
            after position p (from 0) is predicted from at most p + 1 tokens, and a remainder at the end is not read. By
            default the text is one window.

        Returns
        -------
        ndarray, shape (windows, length)
            Nats. With fewer than ``order - 1`` preceding tokens, the model has a lower order.
        """
        ids = np.asarray(token_ids).ravel()
        length = len(ids) - 1 if length is None else length
        count = (len(ids) - 1) // length
        losses = np.empty((count, length))
        starts = length * np.arange(count)
        for place in range(min(self.order - 2, length)):  # windows with too few tokens before
            losses[:, place] = self.probabilities(ids[starts[:, None] + np.arange(place + 2)])
        if (rest := max(self.order - 2, 0)) < length:
            before = ids[starts[:, None] + np.arange(length + 1)]
            grams = _windows(before, self.order)[:, rest + 2 - self.order :]
            losses[:, rest:] = self.probabilities(grams.reshape(-1, self.order)).reshape(count, -1)
        return -np.log(losses)


def _windows(ids, m):
    """All n-grams of m tokens along the last axis: views, shape (..., t - m + 1, m)."""
    return np.lib.stride_tricks.sliding_window_view(ids, m, axis=-1)


def _keys(grams, vocabulary):
    """N-grams (..., m) as integers."""
    return grams @ vocabulary ** np.arange(grams.shape[-1] - 1, -1, -1)


def kneser_ney_loss(training, validation, vocabulary, order, length=None):
    """Cross entropy of the validation tokens under interpolated modified Kneser-Ney smoothing.

    Parameters
    ----------
    training, validation : array_like of int, shape (t,)
        Token ids, at least two of each.
    vocabulary : int
        Number of token ids.
    order : int
        Tokens in the longest n-gram, see `KneserNey`.
    length : int, optional
        Read the validation text in windows of that many tokens, see `KneserNey.losses`: the context of a network of
        this length.

    Returns
    -------
    float
        Nats per token, of all tokens but the first.

    Examples
    --------
    >>> circle = [0, 1, 2, 3] * 200
    >>> kneser_ney_loss(circle, circle[:100], 4, order=3) < 0.01
    True
    """
    return float(KneserNey(training, vocabulary, order).losses(validation, length).mean())
