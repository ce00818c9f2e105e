"""What means the same is taken; errors of a process apart arrive as they were. What is refused: test_refusals.py."""

import pickle

import numpy as np
import pytest
import torch

from lipnb import Attention, block_norms, bounds, certify, local_lipschitz, singular_pair

EYE = torch.eye(2).double()
F, X = Attention.from_matrices(EYE, EYE), torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.5]]).double()


def test_the_error_of_a_product_is_pickled():
    with pytest.raises(ValueError, match="a Jacobian product is NaN or infinite: ") as caught:
        local_lipschitz(F, 1e200 * X.repeat(10, 1))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_what_means_the_same_is_taken():
    """One number in a tensor or of NumPy, a truth value of NumPy, probabilities beside a sink or of 16 bits."""
    f = F.replace(scale=torch.tensor(0.5), cap=np.float32(2.0), masked=np.True_)
    assert (f.scale, f.cap, f.masked) == (0.5, 2.0, True) and type(f.masked) is bool
    assert bounds.phi_inverse(torch.tensor(15.0)) == bounds.phi_inverse(15)
    assert local_lipschitz(F, X, memory=10**400, seed=np.int64(3), max_steps=np.int32(50)).converged
    assert certify(F.to(torch.bfloat16), X.bfloat16()).lower > 0  # of the same numbers in float64
    long, rtol = X.repeat(20, 1), torch.tensor(1e-3)  # by Lanczos, not dense
    assert local_lipschitz(F, long, rtol=rtol, confidence=torch.tensor(0.99)).converged
    assert certify(F, long, rtol=rtol).lower > 0 and singular_pair(F, long, rtol=rtol).converged
    assert block_norms(F, X, rtol=rtol).shape == (3, 3)
    assert torch.equal(certify(F, X, seed=np.int64(1)).upper, certify(F, X, seed=1).upper)
    assert bounds.yudin.softmax_norm([0.25, 0.25]) > 0
    assert bounds.yudin.softmax_norm(torch.linspace(0, 5, 300).softmax(-1).bfloat16()) > 0
