"""Key and query terms of a head's own matrices: exact suprema, true at every row, reached by forks."""

import math

import numpy as np
import pytest
import torch
from cases import constant

from lipnb import Attention, local_lipschitz
from lipnb.bounds import ball_upper
from lipnb.bounds.alignment import aligned_sizes, log_product, log_slope
from lipnb.bounds.multihead_norms import Region, sizes_of_heads
from lipnb.bounds.rows_on_ball import norm_of_rows
from lipnb.spectral.upper_norms import triangle
from lipnb.worst_case import climb, fork_input, gaussian

EYE, ZERO = torch.eye(3).double(), torch.zeros(3, 1).double()
KINDS = {
    "identity": EYE,
    "minus": -EYE,
    "rotation": torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]).double(),
    "turn": torch.tensor([[0.6, -0.8, 0], [0.8, 0.6, 0], [0, 0, 0.2]]).double(),
    "rank one": torch.outer(EYE[0], 0.8 * EYE[0] + 0.6 * EYE[1]),
    "nilpotent": torch.diag(torch.ones(2), 1).double(),
    "graded": torch.diag(torch.tensor([1.0, 0.1, 1e-3])).double(),
    "random": gaussian(5)(3, 3) / 3,
}
LEADING = {"identity": 0.5, "minus": 1.0, "nilpotent": 1.0, "graded": 0.5}  # of |A x| and a token that sees itself


def slope(A, entropy=0.0, centre=ZERO, G=EYE):
    """`log_slope` of the head with these scores, as a number."""
    queries = torch.cat([A @ G, centre], 1)
    return math.exp(log_slope(queries, G, EYE, torch.linalg.matrix_norm(G, 2).item(), entropy))


def directly(A, entropy, centre, points=400_000):
    """The same supremum over a cloud of u in the unit ball, refined around its best: never above it."""
    normal, at, width, best = gaussian(0), torch.zeros(3).double(), 1.0, 0.0
    for _ in range(6):
        u = at + width * normal(points // 10, 3)
        u = u / u.norm(dim=-1, keepdim=True).clamp_min(1)
        a = u @ A.mT + centre[:, 0]
        square = a.square().sum(-1) - ((a * u).sum(-1) - entropy).clamp_min(0).square()
        if square.max() > best:
            best, at = square.max().item(), u[square.argmax()]
        width *= 0.3
    return math.sqrt(best)


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_slope_beside_the_own_logit_is_found_exactly(kind):
    """Exactly without a bias, in every width of the entropy; with one it is an upper bound."""
    A = KINDS[kind]
    if kind in LEADING:
        assert slope(A) == pytest.approx(LEADING[kind], rel=1e-6)
    for entropy in (0.0, 0.1, 0.6):
        stated, found = slope(A, entropy), directly(A, entropy, ZERO)
        assert found <= stated <= found * (1 + 2e-3)
    for seed in range(3):
        centre = 0.5 * gaussian(seed)(3, 1)
        stated, found = slope(A, 0.1, centre), directly(A, 0.1, centre)
        assert found <= stated <= found * 1.2
    norm = torch.linalg.matrix_norm(A, 2).item()
    assert norm / 2 * (1 - 1e-9) <= slope(A) <= norm * (1 + 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_query_term_is_that_of_one_covariance(kind):
    """The largest product of two lengths, by brute force; and a token at the origin reaches it."""
    A, V = KINDS[kind], torch.diag(torch.tensor([0.3, 1.0, 0.6])).double()
    c = gaussian(1)(400_000, 3)
    c = c / c.norm(dim=-1, keepdim=True)
    lengths = (c @ V.mT).norm(dim=-1) * (c @ A).norm(dim=-1)
    stated, found = math.exp(log_product(V, A.mT)), lengths.max().item()
    assert found <= stated <= found * (1 + 1e-3)
    assert log_product(A.mT, V) == pytest.approx(math.log(stated), abs=1e-3)
    n, R = 41, 3.0
    x = torch.cat([torch.zeros(1, 3).double(), R * torch.stack([c[lengths.argmax()], -c[lengths.argmax()]] * 20)])
    f = Attention.from_matrices(A, V)
    J = local_lipschitz(f, x, method="dense").value.item()
    assert (n - 1) / n * R**2 * found - 1 / n <= J <= ball_upper(f, n, R)  # less its own value, at most norm(V) / n


def rows_of_tokens(f, x, region):
    """For each row |a|^2 times the trace of the covariance in units of u, and the norm of its query term."""
    P, A = f.probabilities(x)[..., 0, :, :], f.scale * f.key[0].mT @ f.query[0]
    a = x @ A.mT + (0 if f.query_bias is None else f.scale * f.query_bias[0] @ f.key[0])
    u = (x - region.centre) @ torch.linalg.inv(region.map).mT
    off = u[..., None, :, :] - (P @ u)[..., None, :]
    C = torch.einsum("...ij,...ijk,...ijl->...ikl", P, off, off)
    G, M = region.map, f.output_matrices()[0] @ f.value[0]
    key = a.norm(dim=-1) * C.diagonal(dim1=-2, dim2=-1).sum(-1).sqrt() * torch.linalg.matrix_norm(M @ G, 2)
    return key, torch.linalg.matrix_norm(M @ G @ C @ G.mT @ A, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_no_row_has_a_larger_key_or_query_term(kind):
    """Rows whose own logit is large and other tokens far; also with biases, signs, masks and an ellipsoid."""
    A, normal, most = KINDS[kind], gaussian(3), 0.0
    for case in range(16):
        n, t = 2 + case % 5, (1.0, 5.0, 30.0, 300.0)[case % 4]
        G = EYE if case < 8 else EYE + 0.5 * normal(3, 3)
        region = Region(0.3 * normal(3) * (case >= 8), G)
        bias = t * 0.3 * normal(1, 3) if case % 3 == 0 else None
        f = Attention((-1) ** case * A[None], t * EYE[None], normal(1, 3, 3), scale=(-1.0) ** case, query_bias=bias)
        f = f.replace(masked=case % 2 == 1)
        u = normal(4000, n, 3)
        u = u / u.norm(dim=-1, keepdim=True) * normal(4000, n, 1).abs().clamp_max(1).sqrt()
        u[:2000, 1:] = (u[:2000, :1] + 3 * t**-0.5 * normal(2000, n - 1, 3)) * (1 - 1 / t)
        u = u / u.norm(dim=-1, keepdim=True).clamp_min(1)
        key, query = rows_of_tokens(f, region.centre + u @ G.mT, region)
        stated = aligned_sizes(f, [region], torch.tensor([math.log(n)]).double())[0]
        assert key.max().log() <= stated[0] + 1e-12 and query.max().log() <= stated[1] + 1e-12
        most = max(most, (key.max().log() - stated[0]).item())
    assert most > math.log(0.5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_no_ascent_exceeds_the_bound_of_these_heads(kind, masked):
    normal = gaussian(len(kind))
    for n, R in ((2, 1.5), (3, 4.0), (6, 6.0)):
        f = Attention.from_matrices(KINDS[kind], normal(3, 3), masked=masked)
        x = R * torch.nn.functional.normalize(normal(8, n, 3), dim=-1)
        assert climb(f, x, R, steps=30)[1].max() <= ball_upper(f, n, R)


def fork_of(A, n, R, z, height):
    """Two prongs at this height above the bulk R z, across from each other."""
    k = torch.nn.functional.normalize(A @ z, dim=0)
    e = torch.linalg.svd(k[None]).Vh[1]
    side = (1 - height**2) ** 0.5 * e
    return R * torch.cat([torch.stack([height * k + side, height * k - side]), z.expand(n - 2, 3)])


@pytest.mark.parametrize("masked", [False, True])
def test_a_fork_below_its_prongs_reaches_the_leading_constant(masked):
    """With A = V = 1 the bulk is at 1/sqrt(2) of the radius, and half of norm(V) norm(A) is left."""
    n, R = 1500, 1e4
    f = Attention.from_matrices(EYE, EYE, masked=masked)
    x = fork_of(EYE, n, R, 2**-0.5 * (1 - 1e-6) * EYE[0], 2**-0.5)
    found, upper = local_lipschitz(f, x).value.item(), ball_upper(f, n, R)
    assert found / (R**2 * math.sqrt(n / 2)) == pytest.approx(0.5, rel=2e-3)
    assert 0.95 < found / upper < 1
    minus = local_lipschitz(f.replace(query=-f.query), fork_input(-EYE, EYE, n, R)[0]).value.item()
    assert minus / (R**2 * math.sqrt(n / 2)) == pytest.approx(1, rel=2e-3)
    assert minus / upper > 1.9  # of a head with the same norms


def test_the_bound_of_one_head_is_made_of_both_terms():
    """With A = V = 1 at every radius: the key term is t (1/4 + log(n) / t)^(1/2), the query term t."""
    for n, R in ((10, 4.0), (50, 6.0)):
        t = R**2
        stated = norm_of_rows(t, 1.0, t * (0.25 + math.log(n) / t) ** 0.5, n, apart=True)
        assert ball_upper(Attention.from_matrices(EYE, EYE), n, R) == pytest.approx(stated, rel=1e-4)
        # one direction for both norms of the query term: 5/8, where half of norm(V) norm(A) + norm(V A) is 3/4
        graded = Attention.from_matrices(-torch.diag(EYE[0] / 2 + EYE[1]), torch.diag(EYE[0] + EYE[1] / 2))
        assert ball_upper(graded, n, R) == pytest.approx(norm_of_rows(t * 5 / 8, 1.0, t, n, apart=True), rel=1e-4)
        aside = Attention.from_matrices(torch.outer(EYE[0], EYE[1]), torch.outer(EYE[0], EYE[2]))
        stated = norm_of_rows(t / 2, 1.0, t, n, apart=True)
        assert ball_upper(aside, n, R) == pytest.approx(stated, rel=1e-4)


def test_positions_that_hide_a_token_from_itself_are_counted():
    """Relative positions that take a token's own logit away leave the whole norm of A to the key term."""
    n, R = 400, 6.0
    far = torch.where(torch.arange(2 * n - 1) == n - 1, -3 * R**2, 0.0).double()[None]
    plain = Attention(EYE[None], EYE[None], EYE[None], scale=1.0)
    hidden = plain.replace(relative=far)
    stated, minus = ball_upper(hidden, n, R), ball_upper(plain.replace(query=-plain.query), n, R)
    assert stated == pytest.approx(minus, rel=1e-6) and ball_upper(plain, n, R) < 0.8 * stated
    x = R * torch.nn.functional.normalize(gaussian(0)(20, 6, 3), dim=-1)
    assert constant(hidden, x).max() <= ball_upper(hidden, 6, R)


def test_terms_are_never_above_products_of_norms():
    for seed in range(40):
        normal, d = gaussian(seed), 1 + seed % 7
        k, size = 1 + seed % 3, 10.0 ** (seed % 9 - 4)
        bias = {"query_bias": size * normal(2, k)} if seed % 2 else {}
        f = Attention(size * normal(2, k, d), normal(2, k, d), normal(2, 3, d), normal(2, 4, 3), **bias)
        region = Region(normal(d) * (seed % 3 == 0), normal(d, d))
        aligned = aligned_sizes(f, [region], torch.full((2,), math.log(5)).double())
        for (key, query), plain in zip(aligned, sizes_of_heads(f, [region]), strict=True):
            assert key <= plain.key + 1e-6 and query <= plain.query + 1e-6


def test_sets_of_one_point_and_heads_of_nothing_have_terms():
    point, ball = Region(EYE[0], 0 * EYE), Region(ZERO[:, 0], EYE)
    for name in ("query", "key", "value"):
        f = Attention.from_matrices(EYE, EYE)
        f = f.replace(**{name: 0 * getattr(f, name)})
        key, query = aligned_sizes(f, [ball], torch.zeros(1).double())[0]
        assert key == query == -math.inf
    key, query = aligned_sizes(Attention.from_matrices(EYE, EYE), [point], torch.zeros(1).double())[0]
    assert query == -math.inf
    assert np.isnan([key, query]).sum() == 0


def test_few_directions_are_read_without_loss():
    """Wide tokens, of which queries and keys read a few coordinates, have the same term after any rotation."""
    normal = gaussian(2)
    Q, K, turn = normal(2, 12), normal(2, 12), torch.linalg.qr(normal(12, 12)).Q
    queries = torch.cat([Q, normal(2, 1)], 1)
    turned = torch.cat([Q @ turn, queries[:, -1:]], 1)
    wide = log_slope(queries, K, triangle(K.mT), 1.0, 0.3)
    assert wide == pytest.approx(log_slope(turned, K @ turn, triangle(K.mT), 1.0, 0.3), abs=1e-9)
    flat = torch.linalg.qr(torch.cat([Q, K]).mT).Q
    small = torch.cat([Q @ flat, queries[:, -1:]], 1)
    assert wide == pytest.approx(log_slope(small, K @ flat, triangle(K.mT), 1.0, 0.3), abs=1e-9)


def test_queries_and_keys_that_are_large_in_different_directions():
    """A = -1e-162: squares of its entries, relative to those of the factors, would underflow."""
    n, small = 98, 1e-162
    query, key = (torch.diag(torch.tensor(pair, dtype=torch.float64)) for pair in ([1, small], [-small, -1]))
    R = math.sqrt(100 / small)
    head = Attention(query[None], key[None], torch.eye(2).double()[None], scale=1.0)
    minus = Attention.from_matrices(-torch.eye(2).double(), torch.eye(2).double())
    assert ball_upper(head, n, R) == pytest.approx(ball_upper(minus, n, 10.0), rel=1e-6)
