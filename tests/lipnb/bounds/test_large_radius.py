"""The limit of large radius: that of scaled tokens, for heads, windows and ties."""

import math

import pytest
import torch
from cases import ADDED, constant, layer_in_use, normal, relative, windowed

from lipnb import Attention, bounds, local_lipschitz
from lipnb.bounds import chosen_tokens, large_radius_limit
from lipnb.worst_case import gaussian


def norm(matrix):
    return torch.linalg.matrix_norm(matrix, 2).item()


def test_the_limit_of_large_radius_is_approached_at_the_explicit_rate():
    for masked in [False, True]:
        for near in [False, True]:
            for seed in range(4):
                (A, V), x, n = normal(2, 3, 3, seed=seed), normal(6, 3, seed=50 + seed), 6
                if near:
                    x[4] = x[1] + 1e-3 * normal(3, seed=90 + seed)  # two tokens that later ones can hardly tell apart
                f = Attention.from_matrices(A, V, masked=masked)
                scores = x @ A.T @ x.T
                if masked:
                    scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)[1:]
                gap = -scores.topk(2).values.diff().max().item()
                limit = bounds.large_radius_limit(f, x).item()
                for u in (3.0, 10.0, 20.0):
                    y = math.sqrt(u / gap) * x
                    t = norm(A) * y.square().sum(1).max().item()
                    allowed = norm(V) * (4 * t * (1 + math.sqrt(n)) + math.sqrt(2 * n)) * (n - 1) * math.exp(-u)
                    assert abs(local_lipschitz(f, y, method="dense").value.item() - limit) <= allowed


EYE = torch.eye(2, dtype=torch.float64)


def case_of_heads(seed, *, masked):
    """Heads, tokens, and the smallest gap between the two best scores of a token."""
    h, n, d = 1 + seed % 3, 2 + seed % 6, 3
    output = None if seed % 4 == 1 else normal(h, 4, 3, seed=seed + 3)
    parts = (normal(h, size, d, seed=seed + i) for i, size in enumerate((2, 2, 3)))
    f = Attention(*parts, output, masked=masked)
    x = normal(n, d, seed=seed + 4)
    query, key, _ = f.project(x)
    scores = query @ key.mT
    if masked:
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
    best = scores.topk(2, dim=-1).values
    return f, x, (best[..., 0] - best[..., 1]).min().item()


def test_the_limit_is_that_of_scaled_tokens():
    for masked in [False, True]:
        for seed in range(12):
            f, x, gap = case_of_heads(10 * seed, masked=masked)
            limit = large_radius_limit(f, x).item()
            far = local_lipschitz(f, math.sqrt(60 / gap) * x, method="dense").value.item()
            assert far == pytest.approx(limit, rel=1e-8), seed
        batch = torch.stack([x, 1.5 * x, x.flip(0)])
        assert torch.allclose(large_radius_limit(f, batch[:2]), torch.tensor([limit, limit]).double())
        assert large_radius_limit(f, batch).shape == (3,)


def test_one_head_counts_followers():
    for seed in range(12):
        n, d = 2 + seed % 6, 3
        A, V, x = normal(d, d, seed=seed), normal(2, d, seed=seed + 50), normal(n, d, seed=seed + 99)
        f = Attention.from_matrices(A, V)
        followers = torch.bincount((x @ A.T @ x.T).argmax(1)).max().item()
        size = torch.linalg.matrix_norm(V, 2).item()
        limit = large_radius_limit(f, x).item()
        assert limit == pytest.approx(size * math.sqrt(followers), rel=1e-12)


def test_biases_do_not_matter_in_the_limit():
    f, x, gap = case_of_heads(30, masked=False)
    biases = {"key_bias": normal(f.heads, 2, seed=2), "value_bias": normal(f.heads, 3, seed=3)}
    biased = f.replace(query_bias=normal(f.heads, 2, seed=1), **biases)
    limit = large_radius_limit(f, x).item()
    assert large_radius_limit(biased, x).item() == pytest.approx(limit, rel=1e-12)
    far = local_lipschitz(biased, 100 * math.sqrt(60 / gap) * x, method="dense").value.item()
    assert far == pytest.approx(limit, rel=1e-8)


def test_ties_are_refused():
    f = Attention.from_matrices(EYE, EYE)
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]).double()
    with pytest.raises(ValueError, match="token 0 has its largest logit at more than one token"):
        large_radius_limit(f, x)
    assert large_radius_limit(f, x[:2]).item() == pytest.approx(1.0)
    assert large_radius_limit(f, x[:1]).item() == pytest.approx(1.0)  # one token has no rival
    # the mask hides the second of the two
    assert chosen_tokens(Attention.from_matrices(EYE, EYE, masked=True), x[:2]).tolist() == [[0, 1]]


def test_the_limit_is_that_of_large_tokens_with_positions_and_windows():
    for added in ("rotary", "relative"):
        draw = gaussian(7)
        f, x = layer_in_use(draw, **ADDED[added](draw), masked=True), draw(5, 3)
        assert relative(constant(f, 1e4 * x), large_radius_limit(f, x)) < 1e-5
    for w in (1, 2, 4, 8):
        f, x = windowed(w, seed=3, h=1, d=3).replace(query_bias=None), normal(8, 3, seed=40 + w)
        chosen = bounds.chosen_tokens(f, x)
        place = torch.arange(8)
        assert ((chosen <= place) & (chosen > place - w)).all()
        assert relative(constant(f, 1e4 * x), large_radius_limit(f, x)) < 1e-6
        if w < 4:
            assert (
                relative(bounds.large_radius_limit(f, x), bounds.large_radius_limit(f.replace(window=None), x)) > 1e-3
            )
