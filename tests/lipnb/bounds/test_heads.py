"""Bounds of all heads: those of one head summed, and the largest token, on both sides."""

import math

import pytest
import torch
from cases import layer_in_use, normal

from lipnb import Attention, bounds
from lipnb.bounds import general_upper, general_upper_sharp, masked_mean_field_upper, mean_field_upper, yudin_upper
from lipnb.worst_case import fork_input, gaussian


def test_bounds_of_heads_are_those_of_one_head():
    A, V, x = normal(6, 6), normal(4, 6, seed=1), normal(9, 6, seed=2) / 3
    R = x.norm(dim=-1).max().item()
    for masked in (False, True):
        f = Attention.from_matrices(A, V, masked=masked)
        norms = bounds.head_norms(f)
        found = {**bounds.heads_on_ball(norms, 9, R, masked), **bounds.heads.heads_at_input(f, norms, x)}
        mean_field = masked_mean_field_upper if masked else mean_field_upper
        expected = {
            "general": general_upper(A, V, 9, R),
            "general_sharp": general_upper_sharp(A, V, 9, R),
            "mean_field": mean_field(A, V, R),
            "spread": bounds.spread_upper(A, V, x).item(),
            "column": bounds.column_upper(A, V, x, masked=masked).item(),
            "yudin": yudin_upper(f, x).item(),
        }
        assert {name: math.exp(found[name]) for name in expected} == pytest.approx(expected, rel=1e-6)


def test_shared_keys_are_those_of_plain_heads_written_out():
    normal = gaussian(6)
    f, x = layer_in_use(normal, masked=True, window=3), normal(6, 3)
    apart = f.expand_groups()
    assert apart.groups == 4 and torch.allclose(apart(x), f(x)) and apart.expand_groups() is apart
    R = x.norm(dim=-1).max().item()
    for bound in (
        lambda g: bounds.ball_upper(g, 6, R),
        lambda g: bounds.max_token_upper(g, R),
        lambda g: bounds.heads.max_token_terms(g, x),
        lambda g: bounds.yudin.yudin_upper_sharp(g, x),
        lambda g: bounds.yudin_upper(g.replace(query_bias=None), x),
        lambda g: bounds.nearby_upper(g, x, [0.1]).best,
        lambda g: bounds.large_radius_limit(g, x),
        lambda g: bounds.head_norms(g).A,
        lambda g: bounds.heads.heads_at_input(g, bounds.head_norms(g), x)["spread"],
    ):
        assert torch.allclose(torch.as_tensor(bound(f)), torch.as_tensor(bound(apart)))


def test_relative_positions_leave_the_bound_in_the_norm_of_the_largest_token():
    normal = gaussian(8)
    layer, one = layer_in_use(normal, relative=2 * normal(4, 5)), torch.ones(1, 1).double()
    # the second: a token at 0 moves by its query alone, 24 times as far
    for f, x in ((layer, normal(5, 3)), (Attention.from_matrices(one, one), torch.tensor([[0], [6], [-6]]).double())):
        blocks = torch.linalg.matrix_norm(torch.func.jacrev(f)(x).movedim(2, 1), 2)  # (i, j)
        terms = bounds.heads.max_token_terms(f, x)
        assert blocks.sum(1).max() <= terms <= bounds.max_token_upper(f, x.norm(dim=-1).max().item())


EYE = torch.eye(3, dtype=torch.float64)


def dense(f, x):
    """Blocks (i, j, m, d) of the Jacobian, by autograd."""
    return torch.autograd.functional.jacobian(f, x, vectorize=True).movedim(2, 1)


def reached(J, rounds=40):
    """The norm for the largest token from below: unit moves and unit images in turn, from every start of the SVD."""
    w = torch.linalg.svd(J.movedim(1, 2).flatten(2)).U.mT
    for _ in range(rounds):
        u = torch.nn.functional.normalize(torch.einsum("ijmd,ism->isjd", J, w), dim=-1)
        image = torch.einsum("ijmd,isjd->ism", J, u)
        w = torch.nn.functional.normalize(image, dim=-1)
    return image.norm(dim=-1).amax().item()


def heads(seed, masked, output):
    """Two heads of width 3 with biases, and tokens."""
    query, key, value = (normal(2, 2, 3, seed=seed + k) for k in range(3))
    joined = normal(2, 3, 2, seed=seed + 3) if output else None
    bias = normal(2, 2, seed=seed + 4)
    f = Attention(query, key, value, joined, query_bias=bias, key_bias=bias.flip(0), masked=masked)
    return f, 2.0 ** (seed % 4 - 2) * normal(2 + seed % 4, 3, seed=seed + 5)


def test_the_largest_token_is_bounded_at_an_input_and_on_its_ball():
    for masked in [False, True]:
        for output in [False, True]:
            ratios = []
            for seed in range(12):
                f, x = heads(100 * seed, masked, output)
                J = dense(f, x)
                terms, ball = (
                    bounds.heads.max_token_terms(f, x).item(),
                    bounds.max_token_upper(f, x.norm(dim=-1).max().item()),
                )
                sums = torch.linalg.matrix_norm(J, 2).sum(1).amax().item()  # of blocks: never below the norm
                assert reached(J) <= sums * (1 + 1e-12) and sums <= terms * (1 + 1e-12) and terms <= ball * (1 + 1e-12)
                ratios.append(reached(J) / terms)
            assert max(ratios) > 0.7


def test_the_constant_two_of_the_largest_token_is_attained():
    for masked in [False, True]:
        f = Attention.from_matrices(-EYE, EYE, masked=masked)
        for R in (1.0, 3.0, 5.0):
            x = R * torch.stack([EYE[0], -EYE[0], EYE[1]])
            found = reached(dense(f, x))
            assert 2 * R**2 / (1 + math.exp(-(R**2)) / 2) * (1 - 1e-9) <= found <= bounds.max_token_upper(f, R)
        assert found > 0.97 * bounds.max_token_upper(f, R)


def test_a_query_bias_moves_the_largest_token():
    f = Attention(0 * EYE[None], EYE[None], EYE[None], query_bias=5 * EYE[None, 1], scale=1.0)
    x = 2 * torch.stack([EYE[0], -EYE[0]])
    assert (
        10 <= reached(dense(f, x)) <= bounds.heads.max_token_terms(f, x) <= bounds.max_token_upper(f, 2.0) <= 11 + 1e-9
    )


def test_the_largest_token_knows_no_length_and_the_euclidean_norm_does():
    f = Attention.from_matrices(-EYE, EYE)
    x, lower = fork_input(-EYE, EYE, 400, 2.0)
    assert lower > bounds.max_token_upper(f, 2.0)
    assert bounds.heads.max_token_terms(f, x) <= bounds.max_token_upper(f, 2.0)


def test_yudin_with_the_norm_of_the_softmax():
    for seed in range(12):
        f, x = heads(100 * seed, seed % 2 == 1, seed % 3 > 0)
        norm = torch.linalg.matrix_norm(dense(f, x).movedim(1, 2).flatten(2).flatten(0, 1), 2)
        assert norm <= bounds.yudin.yudin_upper_sharp(f, x)
        plain = f.replace(query_bias=None)
        assert bounds.yudin.yudin_upper_sharp(plain, x) <= bounds.yudin_upper(plain, x) * (1 + 1e-12) + 1e-12
    batch = torch.stack([x, 2 * x])
    assert torch.equal(bounds.yudin.yudin_upper_sharp(f, batch)[0], bounds.yudin.yudin_upper_sharp(f, x))
