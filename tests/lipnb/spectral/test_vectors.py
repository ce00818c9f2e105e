"""Where a solver starts, and products that leave the range of their type."""

import torch
from cases import normal

from lipnb import AutodiffJacobian, local_lipschitz
from lipnb.spectral import lanczos, start_vectors


def test_the_start_is_not_what_a_user_draws_with_the_same_seed():
    """The root of x x^T would otherwise be tried from x itself, along which nothing of it moves."""
    for seed in (0, 1):
        x = normal(6, 8, seed=seed)
        start = start_vectors(1, 48, seed=seed, dtype=torch.float64, device="cpu")[0]
        assert abs(start @ x.flatten() / x.norm()) < 0.5
        f = lambda t: torch.linalg.inv(t @ t.mT + 3 * torch.eye(6, dtype=torch.float64))  # noqa: E731
        exact = torch.linalg.matrix_norm(AutodiffJacobian(f, x).dense(), 2)
        assert abs(local_lipschitz(f, x, seed=seed).value / exact - 1) < 1e-4


def test_products_that_underflow_are_not_certified():
    for factor in [1e-20, 1e-21, 1e-22, 3e-23]:
        factors = factor * torch.linspace(0.1, 1, 200)
        found = lanczos(lambda u: factors**2 * u, start_vectors(1, 200, seed=0, dtype=torch.float32, device="cpu"))
        assert found.precision_limited.all() and found.upper.isinf().all() or found.value.item() == 0
