"""Norms of many matrices that share a factor: proved from above, also from a wrong guess."""

import pytest
import torch

from lipnb.bounds.cholesky_certificates import Computed, Prover, largest_proved, sandwich


def test_norms_of_many_matrices_from_above():
    """Above each norm, by a percent or two; one bound on the largest; zeros among them; what K may lack is added."""
    for kind in [Prover, Computed]:
        for h in [1, 3]:
            for shape in [(9, 9), (4, 9), (12, 9)]:
                g = torch.Generator().manual_seed(sum(shape))
                R = torch.randn(*shape, generator=g, dtype=torch.float64)
                X = torch.randn(6, h, 9 // h, 5, generator=g, dtype=torch.float64)
                X = X * torch.tensor([1.0, 1e-3, 0.0, 2.0, 1.0, 1.0], dtype=torch.float64)[:, None, None, None]
                whole = torch.stack([torch.block_diag(*one) for one in X])
                exact, norms, none = torch.linalg.matrix_norm(R @ whole, 2), kind(R), torch.zeros(6).double()
                K = X @ X.mT
                found = norms.upper(K, none)
                near = 1.04 if kind is Prover else 1 + 1e-7
                assert (found >= exact).all() and (found <= near * exact + 1e-5 * exact.max()).all()
                one = norms.upper(K, none, at_least=torch.tensor(0.0).double())
                assert exact.max() <= one <= near * exact.max()
                assert norms.upper(K, none, at_least=2 * one) == pytest.approx(2 * one.item(), rel=1e-6)
                away = norms.upper(K, 1 + none)
                assert (away**2 >= exact**2 + torch.linalg.matrix_norm(R, 2) ** 2 * (1 - 1e-9)).all()


def test_a_wrong_guess_is_mended():
    g = torch.Generator().manual_seed(0)
    R, X = torch.randn(9, 9, generator=g).double(), torch.randn(6, 1, 9, 5, generator=g).double()
    exact, prover, none = torch.linalg.matrix_norm(R @ X[:, 0], 2), Prover(R), torch.zeros(6).double()
    prover.guess = lambda K: torch.full((len(K),), 1e-3 * exact.max().item() ** 2)
    assert (prover.upper(X @ X.mT, none) >= exact).all()
    for at_least in (None, torch.tensor(1e9).double()):
        with pytest.raises(torch.linalg.LinAlgError, match="no bound was proved"):
            prover.upper(torch.nan * X @ X.mT, none, at_least=at_least)


def test_the_largest_eigenvalue_is_proved():
    for order in [7, 513, 700]:
        g = torch.Generator().manual_seed(order)
        X = torch.randn(order, 20, generator=g).double()
        exact = torch.linalg.matrix_norm(X, 2) ** 2
        assert exact <= largest_proved(X @ X.T) <= 1.02 * exact
        assert largest_proved(torch.zeros(order, order).double()) == 0
        with pytest.raises(torch.linalg.LinAlgError):
            largest_proved(torch.nan * (X @ X.T))


def test_blocks_between_a_gram_matrix():
    g = torch.Generator().manual_seed(0)
    C, W = torch.randn(2, 3, 4, 5, generator=g).double(), torch.randn(15, 7, generator=g).double()
    whole = torch.stack([torch.block_diag(*one) for one in C]) @ W
    assert torch.allclose(sandwich(C, W @ W.T), whole @ whole.mT)
