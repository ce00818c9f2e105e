"""Forks and two clusters reach what they state, of plain heads and of heads in use."""

import math

import torch
from cases import constant, layer_in_use, narrow_layer, normal

from lipnb import Attention, local_lipschitz
from lipnb.bounds.alignment import aligned_sizes
from lipnb.bounds.multihead_norms import Region
from lipnb.worst_case import bulk_directions, fork_input, forks, gaussian, two_clusters
from lipnb.worst_case.forks import plain_twins, slopes


def test_twins_are_the_plain_heads_and_turn_their_keys():
    normal = gaussian(12)
    f = layer_in_use(normal, bias=False).expand_groups()
    assert plain_twins(f, 5) == [f]
    x, turning = normal(7, 3), f.replace(frequencies=torch.tensor([0.6, 0.2]).double())
    query, key, _ = turning.project(x)
    logits = turning.products(query, key)
    for m, twin in zip((0, 1, 3, 6), plain_twins(turning, 7), strict=True):
        asked, keys, _ = twin.project(x)
        assert torch.allclose(twin.products(asked, keys).diagonal(-m, 1, 2), logits.diagonal(-m, 1, 2))
    assert not plain_twins(f.replace(cap=1.0, sinks=normal(4), key_norm=normal(4, 5)), 3)[0].more


# heads, output, bias
UNMASKED = [(1, False, False), (1, True, True), (2, True, False), (3, False, True), (4, True, True)]


def test_forks_reach_what_they_state():
    """Without a mask, and for one head with one."""
    for heads, output, bias, masked in [*((*one, False) for one in UNMASKED), (1, True, True, True)]:
        for seed, n, R in ((0, 3, 0.4), (1, 4, 1.0), (2, 9, 1.7), (3, 12, 4.0)):
            f = narrow_layer(seed, heads, output=output, bias=bias, masked=masked)
            found = forks(f, n, R, bulk_directions(f), keep=5, seed=seed)
            x = found.tokens()
            assert x.shape == (len(found.stated), n, 5) and (found.counts.sum(1) == n).all() and len(x) == 5
            assert x.norm(dim=-1).max() <= R * (1 + 1e-12)
            assert found.stated.isfinite().all() and (found.stated.diff() <= 0).all()
            for one, stated in zip(x, found.stated.tolist(), strict=True):
                assert constant(f, one).item() >= stated * (1 - 1e-9)


def test_two_clusters_reach_what_they_state():
    for heads, output, bias in UNMASKED:
        for seed, n, R in ((0, 2, 0.4), (1, 4, 1.0), (2, 9, 1.7), (3, 12, 4.0)):
            f = narrow_layer(seed, heads, output=output, bias=bias)
            found = two_clusters(f, n, R, bulk_directions(f))
            for x, stated in zip(found.tokens(), found.stated.tolist(), strict=True):
                assert x.shape == (n, 5) and x.norm(dim=-1).max() <= R * (1 + 1e-12)
                assert constant(f, x).item() >= stated * (1 - 1e-9)


def test_a_fork_that_grows_is_nearly_as_rough_as_stated():
    """So that the statement is no empty one: many heads, a mask or none, the growth in n."""
    f = narrow_layer(0, 3)
    for n in (30, 120):
        found = forks(f, n, 4.0, bulk_directions(f), keep=1)
        assert local_lipschitz(f, found.tokens()[0]).value < 1.2 * found.stated[0]


def test_forks_of_one_head_state_no_less_than_fork_input():
    for seed in range(6):
        f = narrow_layer(seed, bias=False, output=False)
        A, V = f.scale * f.key[0].mT @ f.query[0], f.value[0]
        for n, R in ((5, 1.0), (30, 2.0)):
            assert forks(f, n, R, bulk_directions(f)).stated[0] >= 0.98 * fork_input(A, V, n, R)[1]


def test_the_slope_of_a_head_gives_its_logits():
    f = narrow_layer(0, 3)
    x = normal(6, 5, seed=1)
    logits = slopes(f, x).movedim(1, 0) @ x.mT
    assert torch.allclose(logits.softmax(-1), f.probabilities(x))


def test_forks_reach_the_leading_term_of_a_head():
    """Also where the singular vectors of the scores point at themselves: forks along them alone reach 0.93 of it."""
    n, R, eye = 100, 60.0, torch.eye(6).double()
    for seed in (2, 4, 18):
        A = gaussian(seed)(6, 6)
        f = Attention.from_matrices(A / torch.linalg.matrix_norm(A, 2), eye)
        leading = aligned_sizes(f, [Region(0 * eye[0], R * eye)], torch.zeros(1).double())[0][0]
        found = forks(f, n, R, bulk_directions(f), keep=1)
        stated = found.stated.item() / (((n - 2) / 2) ** 0.5 * math.exp(leading))
        assert 0.995 < stated <= 1
        assert constant(f, found.tokens()[0]).item() >= found.stated.item() * (1 - 1e-9)


def test_constant_logits_have_no_forks():
    eye = torch.eye(2).double()
    for f in (Attention.from_matrices(0 * eye, eye), Attention.from_matrices(eye, 0 * eye)):
        assert forks(f, 6, 1.0, bulk_directions(f)).tokens().shape[0] == 0
    assert forks(Attention.from_matrices(-eye, eye), 2, 1.0, eye).tokens().shape[0] == 0
