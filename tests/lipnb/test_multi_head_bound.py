"""Lemma 3.8: the sum over heads is an upper bound, exact for aligned heads, and lost where outputs cancel."""

import math

import pytest
import torch

from lipnb import Attention, local_lipschitz
from lipnb.bounds import multi_head_upper


def layer(seed, *, masked=False):
    """A random projected layer with heads of very different size, and its input."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    h, k, v, d, m, n = (1 + int(torch.randint(6, (), generator=generator)) for _ in range(6))
    size = normal(h, 1, 1).exp()
    heads = normal(h, k, d), normal(h, k, d), size * normal(h, v, d), normal(h, m, v)
    f = Attention(*heads, query_bias=normal(h, k), value_bias=normal(h, v), masked=masked)
    return f, (0.3, 1.0, 3.0)[seed % 3] * normal(n, d)


def head(f, h):
    """Head h of a layer, without its output matrix."""
    names = ("query", "key", "value", "query_bias", "value_bias")
    return f.replace(output=None, **{name: getattr(f, name)[h : h + 1] for name in names})


def exact(f, x):
    return local_lipschitz(f, x, method="dense").value.item()


def test_no_layer_exceeds_the_sum_over_its_heads():
    for masked in [False, True]:
        for block in range(5):
            for seed in range(20 * block, 20 * block + 20):
                f, x = layer(seed, masked=masked)
                each = [exact(head(f, h), x) for h in range(f.heads)]
                bound = multi_head_upper(f.output, each)
                assert exact(f, x) <= bound * (1 + 1e-9)
                formula = sum(torch.linalg.matrix_norm(W, 2).item() * L for W, L in zip(f.output, each, strict=True))
                assert bound == pytest.approx(formula, rel=1e-7)


def test_exact_for_aligned_heads_and_half_angle_for_rotated_ones():
    for degrees in [0, 40, 90, 179, 180]:
        generator = torch.Generator().manual_seed(degrees)
        q, k, v, x = (torch.randn(2, 2, generator=generator, dtype=torch.float64) for _ in range(4))
        angle = math.radians(degrees)
        rotation = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]).double()
        W = torch.stack([torch.eye(2, dtype=torch.float64), rotation])
        alone = exact(Attention(q[None], k[None], v[None]), x)
        f = Attention(*(matrix.expand(2, 2, 2) for matrix in (q, k, v)), W)
        ratio = exact(f, x) / multi_head_upper(W, [alone, alone])
        assert ratio == pytest.approx(abs(math.cos(angle / 2)), abs=1e-7)


def test_heads_of_any_positive_size_written_alike_are_exact():
    generator = torch.Generator().manual_seed(1)
    q, k, v, x = (torch.randn(3, 3, generator=generator, dtype=torch.float64) for _ in range(4))
    sizes = torch.tensor([0.1, 1.0, 7.0], dtype=torch.float64)
    W = sizes[:, None, None] * torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64)).Q
    f = Attention(*(matrix.expand(3, 3, 3) for matrix in (q, k, v)), W)
    alone = exact(Attention(q[None], k[None], v[None]), x)
    assert exact(f, x) == pytest.approx(multi_head_upper(W, [alone] * 3), rel=1e-7)


def test_zero_heads_add_nothing_and_infinite_bounds_stay():
    W = torch.eye(2, dtype=torch.float64).expand(2, 2, 2)
    assert multi_head_upper(W, [0.0, 3.0]) == pytest.approx(3.0, rel=1e-7)
    assert multi_head_upper(W, [math.inf, 3.0]) == math.inf


def test_bad_inputs_get_one_sentence():
    for shape, each, sentence in [
        ((2, 2), [1.0, 1.0], r"output must have shape \(h, m, v\)"),
        ((2, 2, 2), [1.0], "one bound for each of the 2 heads"),
        ((2, 2, 2), [[1.0, 1.0]], "one bound for each of the 2 heads"),
        ((2, 2, 2), [1.0, -1.0], "0 or more"),
        ((2, 2, 2), [1.0, math.nan], "no NaN"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            multi_head_upper(torch.ones(shape, dtype=torch.float64), each)
