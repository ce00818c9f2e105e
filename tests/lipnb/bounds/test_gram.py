"""Heads that act on one vector, and the keys of a row: above all that is found, attained where it can be, pinned."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import quickly, seeds

from lipnb import Attention
from lipnb.bounds import ball, ball_upper, gram
from lipnb.bounds.ball import _of_size_one, _plain_sizes, regions_of, rows_of
from lipnb.bounds.gram import head_maps, log_norm_on_one_vector, weights_on_one_vector
from lipnb.bounds.multihead_norms import balanced, gram_of, sizes_of_heads, sizes_of_layer
from lipnb.worst_case import gaussian

EYE = torch.eye(4, dtype=torch.float64)


def on_one_vector(left, right, weights=None, blocks=None):
    weights = torch.ones(len(left)).double() if weights is None else weights
    return math.exp(log_norm_on_one_vector(head_maps(left, right), weights, blocks))


def found_on_one_vector(maps, normal):
    """The supremum of (sum_h (v . X_h u)^2)^(1/2) found by alternating singular vectors from several starts."""
    best = 0.0
    for _ in range(5):
        u = normal(maps.shape[2])
        for _ in range(40):
            u = u / u.norm()
            v = torch.linalg.svd(maps @ u).Vh[0]
            values, vectors = torch.linalg.svd(torch.einsum("hmr,m->hr", maps, v))[1:]
            u = vectors[0]
        best = max(best, values[0].item())
    return best


@given(seed=seeds, h=st.integers(1, 5), k=st.integers(1, 3))
@settings(quickly, max_examples=15)
def test_its_certificate_is_above_what_ascent_finds_and_near_the_norm_of_the_map(seed, h, k):
    normal = gaussian(seed)
    left, right, weights = normal(h, 4, k), normal(h, k, 5), normal(h).exp()
    maps = left @ right / weights.sqrt()[:, None, None]
    norm = torch.linalg.matrix_norm(sum(torch.kron(one, one) for one in maps), 2).sqrt().item()
    slopes = normal(h, k, 6)
    chosen, blocks = weights_on_one_vector(head_maps(left, right), gram_of(slopes, 0), weights)
    assert found_on_one_vector(maps, normal) <= norm * (1 + 1e-9)
    assert norm <= on_one_vector(left, right, weights) and norm <= on_one_vector(left, right, weights, blocks)
    again = left @ right / chosen.sqrt()[:, None, None]
    exact = torch.linalg.matrix_norm(sum(torch.kron(one, one) for one in again), 2).sqrt().item()
    assert exact <= on_one_vector(left, right, chosen, blocks) < 1.1 * exact


def test_heads_that_agree_add_their_squares_and_orthogonal_ones_do_not():
    one, k = torch.tensor([[2.0, 0, 0, 0], [0, 1, 0, 0]]).double(), 4
    same = on_one_vector(one.mT.expand(3, 4, 2), EYE[:2].expand(3, 2, 4))
    assert same == pytest.approx(2 * 3**0.5, rel=1e-5)
    cancelling = torch.stack([one.mT, -one.mT])  # squares do not see the sign
    assert on_one_vector(cancelling, EYE[:2].expand(2, 2, 4)) == pytest.approx(2 * 2**0.5, rel=1e-5)
    apart = on_one_vector(EYE[:, :, None], EYE[:, None] * torch.tensor([1.0, 3, 2, 1]).double()[:, None, None])
    assert apart == pytest.approx(3, rel=1e-5)
    assert on_one_vector(1e-200 * EYE[:, :, None], 1e-90 * EYE[:, None]) == pytest.approx(1e-290, rel=1e-5)
    assert head_maps(0 * EYE[:, :, None], EYE[:, None]) is None and k == len(EYE)


def test_weights_of_one_vector_make_the_product_smaller():
    normal = gaussian(3)
    left, right, slopes = normal(5, 9, 2), normal(5, 2, 9), normal(5, 2, 9)
    start = balanced(left @ right, slopes, 0)
    maps = head_maps(left, right)

    def product(weights, blocks=None):
        norm = torch.linalg.matrix_norm((weights.sqrt()[:, None, None] * slopes).flatten(0, 1), 2)
        return math.exp(log_norm_on_one_vector(maps, weights, blocks)) * norm.item()

    best = product(*weights_on_one_vector(maps, gram_of(slopes, 0), start))
    assert best < 0.97 * product(start)
    assert best < min(product(start * normal(5).mul(0.3).exp()) for _ in range(20)) * 1.01


def keys_of_first_row(f, x):
    """Norm of the key part of the first row of the Jacobian: its slopes and the points that it averages are held."""
    slopes = f.scale * torch.einsum("hkd,hk->hd", f.key, torch.einsum("hkd,d->hk", f.query, x[0]) + f.query_bias)
    maps = f.output_matrices() @ f.value

    def means(y):
        return torch.einsum("hmd,hj,jd->m", maps, (slopes @ y.mT).softmax(1), x)

    return torch.linalg.matrix_norm(torch.autograd.functional.jacobian(means, x, create_graph=True).flatten(1), 2)


def bound_of_keys(f, R):
    att, log = _of_size_one(f)
    layer = _plain_sizes(att, regions_of(att, R, None)[0], rows_of(att, 9))[1]
    return math.exp(min(layer.key, layer.pairs) + log) / math.sqrt(2)


def several(normal, h, d, k=2):
    return Attention(normal(h, k, d), normal(h, k, d), normal(h, k, d), normal(h, 3, k), query_bias=normal(h, k))


@given(seed=seeds, h=st.integers(2, 5), n=st.integers(2, 7), R=st.floats(0.3, 6))
@settings(quickly, max_examples=8)
def test_no_row_of_keys_exceeds_it(seed, h, n, R):
    """At random inputs, and at what an ascent finds."""
    normal = gaussian(seed)
    f = several(normal, h, 3 + seed % 4)
    bound, x = bound_of_keys(f, R), normal(n, f.width)
    x.requires_grad_()
    optimizer = torch.optim.Adam([x], lr=0.1)
    for _ in range(40):
        inside = R * x / x.norm(dim=1, keepdim=True)
        norm = keys_of_first_row(f, inside)
        assert norm.item() <= bound
        optimizer.zero_grad()
        (-norm).backward()
        optimizer.step()


def star_layer(h, size):
    """Heads with one slope, that read orthogonal directions and write the same one."""
    eye = torch.eye(h + 2).double()
    key, query = eye[None, :1].expand(h, 1, -1), size * eye[None, 1:2].expand(h, 1, -1)
    output = torch.ones(h, 1, 1).double()
    return Attention(key, query, eye[2:, None], output, query_bias=torch.zeros(h, 1).double(), scale=1.0)


@pytest.mark.parametrize("h", [2, 4, 9])
def test_one_token_against_another_in_each_head_nearly_attains_it(h):
    """The worst graph is a star: no head alone, and no pair that all heads share, has so large a row."""
    f = star_layer(h, 7.0)
    centre, leaves = f.value[:, 0].sum(0) / h**0.5, -f.value[:, 0]
    slope = 7.0 * EYE.new_tensor([1.0])
    # the row of the star with halves at its two tokens: |sum_h c_h|^2 + sum_h |c_h|^2, c_h = a (b_h . (x_0 - x_h)) / 4
    parts = slope * torch.stack([value[0] @ (centre - leaf) for value, leaf in zip(f.value, leaves, strict=True)]) / 4
    star = (parts.sum() ** 2 + parts.square().sum()).sqrt().item()
    bound = bound_of_keys(f, 1.0)
    stated = 7 / 4 * (math.sqrt(2 * h) + math.sqrt(h + h**2))
    assert bound == pytest.approx(min(stated, 7 * h / 2**0.5), rel=1e-5)
    assert 0.9 * bound < star <= bound
    assert h < 9 or star > 1.1 * 7 * (h / 2) ** 0.5


def test_orthogonal_slopes_count_as_one_head_without_graphs():
    """The Gram lemma: heads that write and read alike, with slopes orthogonal at each input."""
    eye = torch.eye(6).double()
    output, query = torch.ones(4, 1, 1).double(), eye[None, 4:5].expand(4, 1, -1)
    f = Attention(eye[:4, None], query, eye[None, 5:].expand(4, 1, -1), output, query_bias=torch.zeros(4, 1).double())
    assert bound_of_keys(f, 1.0) == pytest.approx((4 / 2) ** 0.5, rel=1e-5)  # four parallel slopes: 4 / sqrt(2)


def test_it_is_never_above_the_bound_without_it(monkeypatch):
    normal = gaussian(5)
    layers = [several(normal, h, d, k) for h, d, k in ((2, 4, 2), (5, 6, 1), (3, 5, 5), (6, 12, 2))]
    now = [ball_upper(f, n, R) for f in layers for n, R in ((2, 0.2), (40, 2.0))]
    pinned = ball_upper(layers[3], 40, 2.0)
    monkeypatch.setattr(ball, "with_pairs", lambda att, regions, sizes: sizes)
    before = [ball_upper(f, n, R) for f in layers for n, R in ((2, 0.2), (40, 2.0))]
    assert all(one <= two for one, two in zip(now, before, strict=True))
    assert pinned == pytest.approx(PINNED[0], rel=1e-4) and before[-1] == pytest.approx(PINNED[1], rel=1e-4)


PINNED = 5422.897105, 6342.258180  # with and without the pairs


def test_keys_with_little_attention_each_count_as_before():
    """At small radii, with attention nearly uniform, the pairs of tokens do not lower the bound."""
    f = several(gaussian(8), 4, 6)
    att, _ = _of_size_one(f)
    regions = regions_of(att, 0.01, None)[0]
    sizes = sizes_of_layer(att, regions)
    assert sizes.pairs == math.inf and gram.with_pairs(att, regions, sizes).pairs <= sizes.key
    same = torch.linalg.matrix_norm((f.output_matrices() @ f.value).sum(0), 2).item()
    assert same < ball_upper(f, 1000, 0.01) < 1.2 * same


def test_queries_read_and_score_in_one_direction_or_count_half():
    e1, e2 = torch.outer(EYE[0], EYE[0]), torch.outer(EYE[1], EYE[1])
    R = 3.0
    regions = regions_of(Attention.from_matrices(e1, e1), R, None)[0]
    for A, V, size in ((e1, e1, 1), (-e1, e1, 1), (e1, e2, 0.5), (3 * e1, 2 * (e1 + e2), 6)):
        assert math.exp(sizes_of_heads(Attention.from_matrices(A, V), regions)[0].query) == pytest.approx(size * R**2)
    several = {  # both heads write the same; the second map of scores may cancel the first
        "equal": (torch.stack([e1, e1]), 2),
        "cancelling": (torch.stack([e1, -e1]), 1),
        "orthogonal": (torch.stack([e2, e2]), 1),
    }
    for queries, size in several.values():
        both = EYE.expand(2, 4, 4)
        f = Attention(queries, both, e1.expand(2, 4, 4), both, scale=1.0)
        assert math.exp(sizes_of_layer(f, regions).query) == pytest.approx(size * R**2)
    omega = R * (EYE[0] + EYE[1]) / 2**0.5  # tokens at both ends, attended to equally: attained
    covariance = torch.outer(omega, omega)
    assert torch.linalg.matrix_norm(e2 @ covariance @ e1, 2).item() == pytest.approx(0.5 * R**2)


@given(seed=seeds, h=st.integers(1, 4), R=st.floats(0.1, 10))
@settings(quickly, max_examples=20)
def test_no_covariances_exceed_the_size_of_the_queries(seed, h, R):
    normal = gaussian(seed)
    f = several(normal, h, 4)
    att, log = _of_size_one(f)
    regions = regions_of(att, R, None)[0]
    heads, layer = sizes_of_heads(att, regions), sizes_of_layer(att, regions)
    maps, scores = f.output_matrices() @ f.value, f.scale * f.key.mT @ f.query
    alone = torch.tensor([head.query for head in heads]).exp() * math.exp(log)
    for _ in range(20):
        v, e = normal(3), normal(4)
        v, e = v / v.norm(), e / e.norm()
        read, score = torch.einsum("hmd,m->hd", maps, v), scores @ e
        pairs = read / read.norm(dim=1, keepdim=True) + score / score.norm(dim=1, keepdim=True)
        pairs = R * pairs / pairs.norm(dim=1, keepdim=True)
        terms = (read * pairs).sum(1) * (pairs * score).sum(1)  # of the covariances of two tokens each
        assert (terms <= alone).all() and terms.sum().item() <= math.exp(layer.query + log)
