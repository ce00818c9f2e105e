"""The Jacobian in tiles, what it refuses, and the constant by it."""

import torch
from cases import normal, random_case, relative

from lab.benchmarks.tiled import TiledJacobian
from lipnb import Attention, AttentionJacobian, local_lipschitz
from lipnb.spectral import lanczos, start_vectors


def test_tiled_products_equal_closed_form():
    for seed in range(12):
        case = random_case(seed, n=37)
        attention, x = case.attention, case.x[0]
        attention = attention.replace(window=(None, 3, 40)[seed // 2 % 3] if attention.masked else None)
        weights = None if case.weights is None else case.weights[0]
        tiled, closed = TiledJacobian(attention, x, weights, tile=8), AttentionJacobian(attention, x, weights)
        generator = torch.Generator().manual_seed(seed)
        u = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        w = torch.randn(len(x), attention.output_width, generator=generator, dtype=torch.float64)
        assert tiled.shape == closed.shape
        assert relative(tiled.jvp(u), closed.jvp(u)) < 1e-12
        assert relative(tiled.vjp(w), closed.vjp(w)) < 1e-12
        scale = torch.rand(len(x), generator=generator, dtype=torch.float64) + 0.1
        by_hand = closed.vjp(scale[:, None] ** 2 * closed.jvp(u / scale[:, None])) / scale[:, None]
        assert relative(tiled.gram(u, scale), by_hand) < 1e-12
        assert relative(tiled.gram(u), closed.vjp(closed.jvp(u))) < 1e-12
        rows = torch.randperm(len(x), generator=generator)[:9]
        some = TiledJacobian(attention, x, weights, tile=4, rows=rows)
        assert some.shape[0] == 9 * attention.output_width
        assert relative(some.jvp(u), closed.jvp(u)[rows]) < 1e-12
        placed = torch.zeros_like(w).index_copy(0, rows, w[rows])
        assert relative(some.vjp(w[rows]), closed.vjp(placed)) < 1e-12


def test_the_constant_by_tiles_is_the_dense_one():
    for seed in (3, 5):  # without weights, and with weights
        case = random_case(seed, n=20)
        f, x, weights = case.attention, case.x[0], None if case.weights is None else case.weights[0]
        jacobian, root = TiledJacobian(f, x, weights, tile=6), None if weights is None else weights.sqrt()
        start = start_vectors(1, x.numel(), seed=0, dtype=x.dtype, device=x.device)
        solved = lanczos(lambda u: jacobian.gram(u.view_as(x), scale=root).view(1, -1), start, rtol=1e-8)
        dense = local_lipschitz(f, x, weights=weights, method="dense").value
        assert solved.converged.all() and abs(solved.value / dense - 1) < 1e-7


def test_tiles_answer_where_a_kernel_is_too_sharp():
    eye, x = torch.eye(2, dtype=torch.float64), 20 * normal(300, 2)
    assert torch.isfinite(TiledJacobian(Attention.from_matrices(eye, eye), x).jvp(x)).all()
