"""Losses that any language model must beat: token frequencies, and frequencies given the previous token."""

import numpy as np
from scipy.sparse import coo_array

__all__ = ["bigram_loss", "bigram_losses", "unigram_loss", "unigram_losses"]


def _ids(token_ids):
    return np.asarray(token_ids).ravel()


def unigram_loss(training, validation, vocabulary):
    """Cross entropy of the validation tokens under the frequencies of the training tokens.

    Parameters
    ----------
    training, validation : array_like of int, shape (t,)
        Token ids.
    vocabulary : int
        Number of token ids; each is counted once more than it occurs, so that none has probability 0.

    Returns
    -------
    float
        Nats per token.
    """
    return float(unigram_losses(training, validation, vocabulary).mean())


def unigram_losses(training, validation, vocabulary):
    """Loss of each validation token, of which `unigram_loss` is the mean: ndarray, shape (t,)."""
    return -np.log(_frequencies(_ids(training), vocabulary)[_ids(validation)])


def _frequencies(ids, vocabulary):
    counts = np.bincount(ids, minlength=vocabulary) + 1.0
    return counts / counts.sum()


def bigram_loss(training, validation, vocabulary, masses=(1, 3, 10, 30, 100, 300)):
    r"""Cross entropy of the validation tokens under frequencies given the previous token.

    .. math:: p(b \mid a) = \frac{c(a, b) + \mu\, p(b)}{c(a) + \mu}

    with counts :math:`c` and the unigram frequencies :math:`p`. The mass :math:`\mu` is the best of `masses` on the
    validation tokens themselves, which favours this baseline.

    Parameters
    ----------
    training, validation : array_like of int, shape (t,)
        Token ids, at least two of each.
    vocabulary : int
        Number of token ids.
    masses : sequence of float
        Candidates for the mass of the unigram frequencies.

    Returns
    -------
    float
        Nats per token.
    """
    return float(bigram_losses(training, validation, vocabulary, masses).mean())


def bigram_losses(training, validation, vocabulary, masses=(1, 3, 10, 30, 100, 300)):
    """Loss of each validation token but the first, of which `bigram_loss` is the mean: ndarray, shape (t - 1,)."""
    ids, after = _ids(training), _ids(validation)
    frequencies = _frequencies(ids, vocabulary)
    counts = coo_array((np.ones(len(ids) - 1), (ids[:-1], ids[1:])), shape=(vocabulary, vocabulary)).tocsr()
    before, now = after[:-1], after[1:]
    pair, single = counts[before, now], counts.sum(axis=1)[before]
    pair = np.asarray(pair.todense()).ravel() if hasattr(pair, "todense") else np.asarray(pair).ravel()
    return min((-np.log((pair + m * frequencies[now]) / (single + m)) for m in masses), key=np.mean)
