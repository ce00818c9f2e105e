"""Bounds by the largest token, of the softmax and of norm layers: inequalities on both sides, by autograd."""

import math

import pytest
import torch
from cases import normal

from lipnb import Attention, bounds
from lipnb.bounds.heads import max_token_terms
from lipnb.bounds.layer_norm import norm_layer_upper
from lipnb.bounds.yudin import softmax_norm, yudin_upper_sharp
from lipnb.worst_case import fork_input

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
            for seed in range(30):
                f, x = heads(100 * seed, masked, output)
                J = dense(f, x)
                terms, ball = (max_token_terms(f, x).item(), bounds.max_token_upper(f, x.norm(dim=-1).max().item()))
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
    assert 10 <= reached(dense(f, x)) <= max_token_terms(f, x) <= bounds.max_token_upper(f, 2.0) <= 11 + 1e-9


def test_the_largest_token_knows_no_length_and_the_euclidean_norm_does():
    f = Attention.from_matrices(-EYE, EYE)
    x, lower = fork_input(-EYE, EYE, 400, 2.0)
    assert lower > bounds.max_token_upper(f, 2.0)
    assert max_token_terms(f, x) <= bounds.max_token_upper(f, 2.0)


def test_yudin_with_the_norm_of_the_softmax():
    for seed in range(40):
        f, x = heads(100 * seed, seed % 2 == 1, seed % 3 > 0)
        norm = torch.linalg.matrix_norm(dense(f, x).movedim(1, 2).flatten(2).flatten(0, 1), 2)
        assert norm <= yudin_upper_sharp(f, x)
        plain = f.replace(query_bias=None)
        assert yudin_upper_sharp(plain, x) <= bounds.yudin_upper(plain, x) * (1 + 1e-12) + 1e-12
    batch = torch.stack([x, 2 * x])
    assert torch.equal(yudin_upper_sharp(f, batch)[0], yudin_upper_sharp(f, x))


def test_the_norm_of_the_softmax():
    for n in (1, 2, 3, 7, 40):
        p = torch.rand(500, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64) ** 8
        p[::5] = (80 * p[::5]).softmax(-1)
        p = p / p.sum(-1, keepdim=True)
        p[1::7, n // 2 :] = 0  # no longer of sum one
        true = torch.linalg.eigvalsh(torch.diag_embed(p) - p[..., None] * p[..., None, :])[..., -1]
        found = softmax_norm(p)
        assert (found >= true - 1e-15).all() and (found - true <= 1e-13).all() and (found <= 0.5 + 1e-13).all()
    tied = torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.25, 0.25], [1.0, 0.0, 0.0]]).double()
    torch.testing.assert_close(softmax_norm(tied), torch.tensor([0.5, 0.25, 0.0]).double())


def test_norm_layers():
    for seed in range(20):
        d = 2 + seed % 4
        gain, x = normal(d, seed=seed), normal(5, d, seed=seed + 50) * 10 ** (seed % 5 - 3)
        layers = (
            (True, lambda y, g=gain, d=d: torch.nn.functional.layer_norm(y, (d,), g, None, 1e-3)),
            (False, lambda y, g=gain, d=d: torch.nn.functional.rms_norm(y, (d,), g, 1e-3)),
        )
        for centred, layer in layers:
            here = norm_layer_upper(gain, 1e-3, x, centred=centred)
            true = torch.stack([torch.linalg.matrix_norm(torch.autograd.functional.jacobian(layer, y), 2) for y in x])
            assert (true <= here * (1 + 1e-12)).all() and (here <= norm_layer_upper(gain, 1e-3)).all()
            if not centred and d > 2:
                assert (true / here).max() > 0.3
    at_zero = torch.autograd.functional.jacobian(layers[1][1], torch.zeros(d).double())
    torch.testing.assert_close(torch.linalg.matrix_norm(at_zero, 2), norm_layer_upper(gain, 1e-3))
    assert norm_layer_upper(torch.ones(2), 0.0, torch.ones(2)) == math.inf
    far = torch.tensor([-1.0, 0.0, 1.0]).double()  # of standard deviation (2/3)^(1/2)
    for size, place in ((1e160, 0.0), (1e-170, 0.0), (2.0**-10, 2.0**40), (2.0**-18, 2.0**27)):
        known = 1.5**0.5 / size
        assert norm_layer_upper(torch.ones(3), 0.0, place + size * far).item() == pytest.approx(known, rel=1e-12)


def test_wrong_uses_are_refused():
    l2 = Attention.l2(EYE[None], EYE[None])
    for call, words in (
        (lambda: bounds.max_token_upper(l2, 1.0), "max_token_upper knows dot-product scores only"),
        (lambda: max_token_terms(l2, EYE), "max_token_terms knows dot-product scores only"),
        (lambda: yudin_upper_sharp(l2, EYE), "yudin_upper_sharp knows dot-product scores only"),
        (lambda: bounds.max_token_upper(Attention.from_matrices(EYE, EYE), -1.0), "R must be a finite number"),
        (lambda: max_token_terms(Attention.from_matrices(EYE, EYE), EYE[None]), "x must hold one sequence"),
        (lambda: softmax_norm(torch.tensor([-0.1, 1.1])), "p must hold probabilities"),
        (lambda: softmax_norm(torch.tensor([math.nan])), "p must hold probabilities"),
        (lambda: norm_layer_upper(torch.ones(2), -1.0), "eps must be a finite number"),
        (lambda: norm_layer_upper(torch.ones(2), 1.0, torch.ones(3)), "x must have shape"),
        (lambda: norm_layer_upper(torch.ones(2, 2), 1.0), "gain must have shape"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
