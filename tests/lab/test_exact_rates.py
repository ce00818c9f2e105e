"""Exact rates of trained heads, and the null model of independent tokens: stored rows come back."""

import math

import needs
import pytest
import torch

from lab import results
from lab.experiments import exact_rates, independent_tokens
from lab.statistics import growth
from lipnb import Attention, bounds, local_lipschitz


def test_the_long_input_at_the_pair_is_that_of_so_many_tokens():
    A = torch.randn(5, 5, generator=torch.Generator().manual_seed(0)).double()
    rate, R, n = bounds.mean_field_rate(A), 1.3, 40
    x = R * torch.stack([rate.y, *[rate.x] * (n - 1)])
    whole = local_lipschitz(Attention.from_matrices(A, torch.eye(5).double()), x, method="dense").value.item()
    # all copies alike: what one copy does alone is never more here
    assert exact_rates.at_pair(A, n, R) == pytest.approx(whole, rel=1e-9)


def test_stored_rates_come_back_and_are_never_below_the_papers():
    stored = results.load("exact-rates")
    assert stored.groupby("model").size().to_dict() == {
        "minilm": 72, "gpt2-mini": 24, "smollm2": 270, "gpt2-124m-attention": 144,
    }  # fmt: skip
    assert (stored.lower >= stored.gamma * (1 - 1e-6)).all() and (stored.lower >= stored.norm / 8).all()
    rows = exact_rates.rate_rows("gpt2-mini", 1)
    for row in rows:
        kept = stored[(stored.model == "gpt2-mini") & (stored.layer == 1) & (stored["head"] == row["head"])].iloc[0]
        assert [kept[name] for name in ("norm", "gamma", "lower", "upper")] == pytest.approx(
            [row[name] for name in ("norm", "gamma", "lower", "upper")], rel=1e-5
        )
    of_minilm = stored[stored.model == "minilm"]
    assert of_minilm[["R", "at pair", "at clusters"]].notna().all().all()
    assert (of_minilm["at pair"] >= 0.5 * math.sqrt(exact_rates.LONG - 1)).all()


@needs.ALICE
def test_independent_tokens_come_back(monkeypatch):
    stored = results.load("independent-tokens")
    assert len(stored) == 6 * len(independent_tokens.LENGTHS) * independent_tokens.DRAWS and stored.converged.all()
    monkeypatch.setattr(independent_tokens, "LENGTHS", (8, 64))
    again = independent_tokens.drawn_rows("minilm", 0)
    for row in again:
        kept = stored[(stored.layer == 0) & (stored.length == row["length"]) & (stored.window == row["window"])]
        assert kept.lipschitz.item() == pytest.approx(row["lipschitz"], rel=2e-2)
    # another pool or another draw would not do
    assert len({round(row["lipschitz"], 3) for row in again}) == len(again)
    late = [growth.slope(own[own.length >= 256]).slope for _, own in stored.groupby("layer")]
    assert sorted(late)[3] < 0.25


@needs.ALICE
def test_independent_tokens_beside_special_ones_come_back(monkeypatch):
    stored = results.load("independent-beside-special")
    draws = independent_tokens.DRAWS_BESIDE
    assert len(stored) == 6 * len(independent_tokens.BESIDE_SPECIAL) * draws and stored.converged.all()
    assert draws >= 8
    pools, sampled = [], []
    network = independent_tokens.load("minilm", masked=False, dtype="float32")
    monkeypatch.setattr(independent_tokens, "load", lambda *_, **__: network)
    original, solve = independent_tokens._pool, independent_tokens._solve
    monkeypatch.setattr(independent_tokens, "_pool", lambda *a: pools.append(original(*a)) or pools[-1])
    monkeypatch.setattr(independent_tokens, "_solve", lambda f, x, seed: sampled.append(x) or solve(f, x, seed))
    monkeypatch.setattr(independent_tokens, "BESIDE_SPECIAL", (8, 32))
    for row in independent_tokens.beside_special("minilm", 4):
        kept = stored[(stored.layer == 4) & (stored.length == row["length"]) & (stored.window == row["window"])]
        assert kept.lipschitz.item() == pytest.approx(row["lipschitz"], rel=2e-2)
    ends = pools[0][:, [0, -1]].flatten(0, 1)
    for x in sampled:  # both special tokens of a window, and no other special one
        special = (x[:, None] == ends).all(-1).any(-1)
        assert special[:2].all() and not special[2:].any()


@needs.ALICE
def test_the_limit_is_the_constant_at_the_whole_pool(monkeypatch):
    stored = results.load("independent-limit")
    assert list(stored.layer) == list(range(6)) and stored.converged.all() and set(stored.length) == {4096}
    monkeypatch.setattr(independent_tokens, "POOL", (2, 16))
    network = independent_tokens.load("minilm", masked=False, dtype="float32")
    x = independent_tokens._pool(network, 2, 0)
    assert x.shape[:2] == (2, 16)
    row = independent_tokens.pool_constant("minilm", 2)
    f = network.attention(2)
    assert row["length"] == 32
    # a pool given twice has the same constant: it is that of the measure
    twice = local_lipschitz(f, x.flatten(0, 1).repeat(2, 1), rtol=1e-3).value.item()
    assert row["lipschitz"] == pytest.approx(twice, rel=2e-2)
