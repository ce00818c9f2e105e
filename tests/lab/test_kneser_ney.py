"""Kneser-Ney smoothing: sums, a literal twin in dictionaries, NLTK's one discount, and windows."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from nltk.lm import KneserNeyInterpolated

from lab import training
from lab.training import kneser_ney

V = 30


def text(size, seed):
    """Token ids with structure: each depends on the two before, some ids never come."""
    generator = np.random.default_rng(seed)
    ids = [1, 2]
    for _ in range(size - 2):
        follows = (ids[-1] * 7 + ids[-2] * 3) % 25
        ids.append(int(follows if generator.random() < 0.4 else generator.geometric(0.15) % 25))
    return np.array(ids)


def twin(ids, order):
    """Probability of a token after a context, by the formulas of Chen and Goodman, with dictionaries."""
    raw = {m: Counter(zip(*(ids[i:] for i in range(m)), strict=False)) for m in range(1, order + 1)}

    def counts(m):
        if m == order:
            return raw[m]
        before = defaultdict(set)
        for gram in raw[m + 1]:
            before[gram[1:]].add(gram[0])
        return {gram: len(tokens) for gram, tokens in before.items()}

    levels = {m: counts(m) for m in range(1, order + 1)}
    discounts = {}
    for m, level in levels.items():
        n1, n2, n3, n4 = (sum(c == i for c in level.values()) for i in (1, 2, 3, 4))
        if not n1 * n2 * n3 * n4:  # as for single tokens of these short texts
            discounts[m] = [0, 0.5, 1, 1.5]
            continue
        share = n1 / (n1 + 2 * n2)
        discounts[m] = [0, 1 - 2 * share * n2 / n1, 2 - 3 * share * n3 / n2, 3 - 4 * share * n4 / n3]

    def probability(token, context):
        m = len(context) + 1
        lower = probability(token, context[1:]) if context else 1 / V
        after = {gram[-1]: c for gram, c in levels[m].items() if gram[:-1] == context}
        if not after:
            return lower
        taken = sum(discounts[m][min(c, 3)] for c in after.values())
        c = after.get(token, 0)
        return (c - discounts[m][min(c, 3)] + taken * lower) / sum(after.values())

    return probability


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_probabilities_add_up_to_one_after_any_context(order):
    ids, generator = text(3000, 0), np.random.default_rng(1)
    model = training.KneserNey(ids, V, order)
    for m in range(1, order + 1):
        seen = ids[:-m][generator.integers(0, 2900, 20)[:, None] + np.arange(m - 1)]
        anything = generator.integers(0, V, (20, m - 1))  # ids of 25 and more are in no training text
        for context in np.concatenate([seen, anything]):
            p = model.probabilities(np.column_stack([np.tile(context, (V, 1)), np.arange(V)]))
            assert p.sum() == pytest.approx(1, abs=1e-12) and p.min() > 0


@pytest.mark.parametrize("order", [2, 3, 4])
def test_against_a_literal_twin(order):
    ids, other = text(2000, 0), text(60, 5)
    model, expected = training.KneserNey(ids, V, order), twin(ids.tolist(), order)
    grams = np.lib.stride_tricks.sliding_window_view(np.append(other, [27, 3, 3, 28]), order)
    p = [expected(gram[-1], tuple(gram[:-1])) for gram in grams.tolist()]
    assert model.probabilities(grams) == pytest.approx(np.array(p), rel=1e-12)
    assert kneser_ney._discounts(np.array([1, 1, 1, 1, 2, 2, 3, 4])) == pytest.approx([0, 0.5, 1.25, 1.0])


def test_windows_hide_what_is_before_them():
    ids, after = text(2000, 0), text(101, 7)
    model = training.KneserNey(ids, V, 4)
    losses = model.losses(after, 10)
    assert losses.shape == (10, 10)
    for window, place in ((0, 0), (3, 0), (3, 1), (3, 2), (9, 9)):
        now = 10 * window + place + 1
        gram = after[max(10 * window, now - 3) : now + 1]
        assert losses[window, place] == pytest.approx(-np.log(model.probabilities(gram[None])[0]))
        shorter = training.KneserNey(ids, V, len(gram))  # with few tokens before: a model of lower order
        assert losses[window, place] == pytest.approx(-np.log(shorter.probabilities(gram[None])[0]))
    whole = model.losses(after)
    assert whole.shape == (1, 100) and np.array_equal(whole[0, :10], losses[0])
    assert np.allclose(whole.reshape(10, 10)[:, 2:], losses[:, 2:]) and not np.allclose(whole[0, 10:12], losses[1, :2])
    assert training.kneser_ney_loss(ids, after, V, 4, 10) == pytest.approx(losses.mean())


def test_with_one_discount_it_is_that_of_nltk(monkeypatch):
    ids, other = text(400, 2), text(40, 3)
    ids = np.concatenate([ids, ids[:6]])  # so that the first n-grams also stand after something

    def one(counts):  # NLTK takes nothing from single tokens
        return np.array([0, 0.3, 0.3, 0.3]) if len(counts) > V else np.zeros(4)

    monkeypatch.setattr(kneser_ney, "_discounts", one)
    peer = KneserNeyInterpolated(3, discount=0.3)
    words = [str(i) for i in ids]
    peer.fit([[tuple(words[i : i + m]) for m in (1, 2, 3) for i in range(len(words) - m + 1)]], sorted(set(words)))
    grams = np.lib.stride_tricks.sliding_window_view(other, 3)
    p = [peer.score(str(c), [str(a), str(b)]) for a, b, c in grams if c in ids]
    mine = training.KneserNey(ids, V, 3).probabilities(grams[np.isin(grams[:, 2], ids)])
    assert len(p) > 30 and mine == pytest.approx(np.array(p), rel=1e-12)
