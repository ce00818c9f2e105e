"""Bounds on what any small move can do: above every move found, and their formulas token by token."""

import math

import pytest
import torch
from cases import constant, drawn, random_case

from lipnb import Attention, AttentionJacobian, certify
from lipnb.bounds import biased_upper, nearby_upper
from lipnb.worst_case import attacks

ONE = torch.ones(1, 1, dtype=torch.float64)


def one_input(seed, spread=1.0, n=None):
    case = random_case(seed, n=n or 1 + seed % 6, spread=spread)
    return case.attention, case.x[0]


def test_bounds_hold_for_the_change_the_jacobian_and_the_remainder():
    for spread in (0.3, 1.0, 4.0):
        for seed in range(6):
            f, x = one_input(seed, spread)
            radii = torch.logspace(-4, 1, 6, dtype=torch.float64)
            bound = nearby_upper(f, x, radii)
            J = AttentionJacobian(f, x)
            assert constant(f, x) <= bound.local.item() * (1 + 1e-9)
            starts = torch.cat([attacks.singular(f, x).direction[None], attacks.random_directions(x, 2)])
            for i, radius in enumerate(radii):
                moves, found = attacks.push(f, x, starts, radius, steps=8, size=0.5)
                for upper in (bound.jacobian, bound.taylor, bound.outputs, bound.general):
                    assert found.max() <= upper[i] * (1 + 1e-9)
                for move in moves:
                    assert constant(f, x + move) * radius <= bound.jacobian[i] * (1 + 1e-9)
                    left = (f(x + move) - f(x) - J.jvp(move)).norm()
                    assert left <= (bound.taylor[i] - radius * bound.local) * (1 + 1e-9) + 1e-13
            assert (bound.best <= bound.taylor).all() and (bound.best <= bound.outputs).all()


def test_short_moves_are_bounded_to_five_per_cent():
    """First order is the certified constant, the rest small: by three terms it was 1.6 to 2.4 times as much."""
    for heads, width, tokens in ((1, 8, 4), (2, 16, 8), (4, 16, 16)):
        draw, size = drawn(0), width // heads
        query, key, value = draw(3, heads, size, width) / width**0.5
        f, x = Attention(query, key, value, draw(heads, width, size) / width**0.5), draw(tokens, width)
        bound, bracket = nearby_upper(f, x, [1e-2]), certify(f, x)
        assert bracket.lower <= bound.local <= bracket.upper * (1 + 1e-9)
        found = attacks.push(f, x, attacks.singular(f, x).direction[None], 1e-2)[1].item()
        assert found <= bound.best.item() <= 1.05 * found


def test_bounds_are_sharp_where_they_can_be():
    """Equal attention: the map is V times the mean, its constant |V|; huge logits: outputs run from end to end."""
    V = torch.tensor([[3.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    equal, x = Attention.from_matrices(torch.zeros(2, 2, dtype=torch.float64), V), torch.eye(2, dtype=torch.float64)
    radii = torch.tensor([0.1, 10.0], dtype=torch.float64)
    assert torch.allclose(nearby_upper(equal, x, radii).jacobian, 3 * radii, rtol=1e-9)
    assert attacks.change(equal, x, torch.tensor([[1.0, 0], [1, 0]]) / 2**0.5).item() == pytest.approx(3)
    hard, ends = Attention.from_matrices(1e6 * ONE, ONE), torch.tensor([[1e-3], [1.0]], dtype=torch.float64)
    flip = torch.tensor([[-2e-3], [0.0]], dtype=torch.float64)  # the first token now looks at itself
    assert attacks.change(hard, ends, flip).item() == pytest.approx(1.0, rel=1e-2)
    assert 1 <= nearby_upper(hard, ends, [2e-3]).best.item() < 1.02 * 2**0.5  # both tokens could have turned


def test_balls_larger_than_the_root_of_the_largest_float():
    """Squares of radii raised; the outputs are means of values, and change by no more than the values reach."""
    f, x = one_input(3, n=3)
    radii = torch.tensor([1e150, 1e160, 1e300], dtype=torch.float64)
    near = nearby_upper(f, x, radii)
    assert (near.best >= radii).all() and near.outputs[1] < 1e165
    assert (near.general[1:] == math.inf).all()


def test_units_change_no_nearby_bound():
    f, x = one_input(3, n=4)
    radii = torch.tensor([1e-3, 1.0], dtype=torch.float64)
    here = nearby_upper(Attention(f.query, f.key, f.value, f.output), x, radii)
    for unit in (2.0**-700, 2.0**700):
        far = Attention(f.query / unit, f.key / unit, f.value / unit, f.output)
        there = nearby_upper(far, x * unit, radii * unit)
        assert all(torch.allclose(one, two, rtol=1e-9) for one, two in zip(here[:4], there[:4], strict=True))


def test_remainder_bound_is_of_second_order():
    f, x = one_input(5, n=4)
    radii = torch.tensor([1e-8, 1e-7, 1e-6], dtype=torch.float64)
    bound = nearby_upper(f, x, radii)
    rest = (bound.taylor - radii * bound.local) / radii**2
    assert (rest / rest[0] - 1).abs().max() < 1e-2 and rest[0] > 0


def norm(matrix):
    return torch.linalg.matrix_norm(matrix, 2).item()


def spread(points, row):
    """Largest standard deviation in any direction under the probabilities of one row."""
    away = points - row @ points
    return norm(away.mT @ (row[:, None] * away)) ** 0.5


def diameter(points):
    return max((one - two).norm().item() for one in points for two in points)


def seen_by(f, n):
    return torch.ones(n, n).tril().bool() if f.masked else torch.ones(n, n).bool()


def head_of(f, x, h):
    """P, w, a, b, the output matrix and the query bias of one head."""
    out = f.output[h] if f.output is not None else torch.eye(f.value_width).double()
    bias = torch.zeros(f.key_width).double() if f.query_bias is None else f.query_bias[h]
    q, k = f.scale * (x @ f.query[h].mT + bias), x @ f.key[h].mT
    P = (q @ k.mT).masked_fill(~seen_by(f, len(x)), -math.inf).softmax(-1)
    return P, x @ f.value[h].mT @ out.mT, f.scale * k @ f.query[h], q @ f.key[h], out, bias


def second_derivative(f, x, r):
    """H(r), from matrices K_ij and numbers k_ij made one by one, from normed factors."""
    (n, d), root = x.shape, 2**0.5
    K, k, eye = torch.zeros(n, n, d, d).double(), torch.zeros(n, n).double(), torch.eye(d).double()
    for h in range(f.heads):
        P, w, a, b, out, _ = head_of(f, x, h)
        map = out @ f.value[h]
        M, N = norm(map), norm(f.scale * f.query[h].mT @ f.key[h])
        for i in range(n):
            omega = r * (diameter(a) + root * b[i].norm().item() + root * N * r)
            if omega >= 700:
                return math.inf
            g = math.exp(omega)
            p = (g * P[i]).clamp_max(1)
            m = p.max().item() ** 0.5
            deviation_w, deviation_a = spread(w, P[i]), spread(a, P[i])
            sigma = min(g**0.5 * deviation_w, diameter(w) / 2) + M * r
            s = min(g**0.5 * deviation_a, diameter(a) / 2) + N * r
            away = (w - P[i] @ w)[seen_by(f, n)[i]].norm(dim=-1).max().item()
            D = min(away + (g - 1) * deviation_w, diameter(w)) + root * M * r
            beta = b[i].norm().item() + N * r
            zeta = s + beta * m + 1e-300
            slopes = torch.outer(b[i], b[i]) / (b[i].norm() + 1e-300) + N * r * eye
            centred = a - P[i] @ a
            keys = g * centred.mT @ (P[i][:, None] * centred) / (s - N * r + 1e-300) + N * r * eye
            if g**0.5 * deviation_a > diameter(a) / 2:
                keys = s * eye
            for j in range(n):
                K[i, j] += p[j] * (zeta / (M * m) * map.mT @ map + (M + D * zeta / m) * slopes + sigma * N / m * eye)
                k[i, j] += p[j] * (zeta * M / m + (M + D * zeta / m) * beta + sigma * N / m)
            K[i, i] += (M * m + D * zeta) * keys + sigma * N * m * eye
            k[i, i] += (M * m + D * zeta) * s + sigma * N * m
    one = [min(norm((k[:, j, None, None] * K[:, j]).sum(0)), k[:, j].square().sum().item()) for j in range(n)]
    return max(one) ** 0.5


def written_out(f, x, eps, local):
    """The bounds `jacobian`, `taylor`, `outputs`, `general`, as the book states them."""
    n, root = len(x), 2**0.5
    seen = seen_by(f, n)
    G = general = moved = 0.0
    reach = torch.zeros(n)
    for h in range(f.heads):
        P, w, a, b, out, bias = head_of(f, x, h)
        M, N = norm(out @ f.value[h]), norm(f.scale * f.query[h].mT @ f.key[h])
        beta, column = b.norm(dim=-1).max().item(), P.sum(0).max().item()
        omega = eps * (diameter(a) + root * beta + root * N * eps)
        grow = math.exp(min(omega, 600))
        c = min(column * grow, n) ** 0.5
        wide_w, wide_a = (
            min(max(spread(z, row) for row in P) * grow**0.5, diameter(z) / 2) + size * eps
            for z, size in ((w, M), (a, N))
        )
        slope = beta + N * eps
        G += wide_w * (wide_a + slope * c) + M * c
        away = (P @ w)[:, None] - w
        reach += away.norm(dim=-1).masked_fill(~seen, 0).amax(-1)
        moved += M * c
        size = x.norm(dim=-1).max().item() + eps
        c_bias = f.scale * f.key[h].mT @ bias
        general += biased_upper(torch.tensor([[N]]), torch.tensor([[M]]), n, size, c_bias.norm()[None])
    parts = ((part / 8, (2 * (8 - part) + 1) / 128) for part in range(1, 9))
    taylor = eps * local + eps**2 * sum(share * second_derivative(f, x, eps * way) for way, share in parts)
    return {
        "jacobian": eps * G,
        "taylor": taylor,
        "outputs": reach.norm().item() + eps * moved,
        "general": eps * general,
    }


def test_bounds_are_those_of_the_book():
    """Neither below the formulas, which are proved, nor above by more than the rounding that they add."""
    for number in range(32):  # each radius with each size of the tokens, and most maps with both
        seed, eps, unit = number % 12, (0.0, 1e-3, 0.1, 1.0)[number % 4], (0.1, 1.0)[number // 4 % 2]
        case = random_case(seed, n=2 + seed % 5, spread=unit)
        f, x = case.attention, case.x[0]
        if f.output is None and f.heads > 1:
            eye = torch.eye(f.heads * f.value_width).double().unflatten(1, (f.heads, -1)).movedim(1, 0)
            f = Attention(f.query, f.key, f.value, eye, query_bias=f.query_bias, masked=f.masked)
        found = nearby_upper(f, x, [eps])
        for name, value in written_out(f, x, eps, found.local.item()).items():
            assert getattr(found, name).item() == pytest.approx(value, rel=1e-7, abs=1e-80), (name, number)
