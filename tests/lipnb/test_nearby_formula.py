"""Bounds near an input against their formulas, written out token by token without any care for rounding."""

import math

import pytest
import torch
from cases import random_case

from lipnb import Attention, certify
from lipnb.bounds import biased_upper, nearby_upper


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


def test_a_certificate_computes_the_columns_it_says():
    """Features of all tokens, or all features of one token first: no other choice, and never more than asked for."""
    for seed in range(0, 24, 3):
        case = random_case(seed, n=5)
        f, x = case.attention, case.x[0]
        n, d = x.shape
        for most in range(0, n * d, max(1, d // 2)):
            count = int(certify(f, x, columns=most).columns)
            assert count in {0, most // n * n, d + (n - 1) * ((most - d) // (n - 1))}, most
            assert count <= most
