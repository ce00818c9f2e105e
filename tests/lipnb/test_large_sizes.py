"""What only large inputs reach: the separable kernel chosen by the solver, a Lanczos eigenvalue in the joint bound."""

import pytest
import torch
from cases import normal

from lipnb import Attention, local_lipschitz
from lipnb.bounds import multihead_norms


def test_many_particles_in_the_plane_take_the_separable_kernel():
    """Two equal particles are one of twice the weight: here their differences are stretched less."""
    f, x = Attention.from_matrices(normal(2, 2), normal(2, 2, seed=1)), 0.5 * normal(2000, 2, seed=2)
    weights = torch.ones(2000, dtype=torch.float64)
    weights[:1000] = 2
    copies = torch.cat([x, x[:1000]])
    cached = local_lipschitz(f, copies, rtol=1e-6, memory=1e12)
    separable = local_lipschitz(f, copies, rtol=1e-6, memory=1e6)
    weighted = local_lipschitz(f, x, weights=weights, rtol=1e-6, memory=1e6)
    assert separable.route == weighted.route == "separable" and cached.route == "cached"
    assert separable.value.item() == pytest.approx(cached.value.item(), rel=1e-5)
    assert weighted.value.item() == pytest.approx(cached.value.item(), rel=1e-5)


def test_the_top_eigenvalue_of_a_wide_matrix_is_that_of_all():
    factor = normal(multihead_norms.DENSE + 50, 40).numpy()
    gram = factor @ factor.T
    value, vector = multihead_norms._top(gram, None)
    assert value == pytest.approx(torch.linalg.eigvalsh(torch.as_tensor(gram))[-1].item(), rel=1e-4)
    assert abs(vector @ gram @ vector / value - 1) < 1e-4
    assert multihead_norms._top(gram, vector)[0] == pytest.approx(value, rel=1e-4)
