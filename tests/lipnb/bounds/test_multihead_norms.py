"""Norms of heads together: the weights between them, and the top eigenvalue of a wide matrix."""

import pytest
import torch
from cases import normal

from lipnb.bounds import multihead_norms
from lipnb.bounds.multihead_norms import balanced
from lipnb.worst_case import gaussian


def test_weights_only_improve():
    normal = gaussian(7)
    for dim in (0, 1):
        left, right = normal(5, 20, 4), normal(5, 4, 20) if dim == 0 else normal(5, 20, 4)

        def size(w, left=left, right=right, dim=dim):
            one = torch.cat([*(left / w.sqrt()[:, None, None])], 1)
            two = torch.cat([*(right * w.sqrt()[:, None, None])], dim)
            return torch.linalg.matrix_norm(one, 2) * torch.linalg.matrix_norm(two, 2)

        norms = [torch.linalg.matrix_norm(blocks, 2) for blocks in (left, right)]
        w = balanced(left, right, dim)
        assert size(w) < size(norms[0] / norms[1]) <= (norms[0] * norms[1]).sum() * (1 + 1e-12)
        assert size(w) <= min(size(w * normal(5).mul(0.3).exp()) for _ in range(50)) * 1.01


def test_the_top_eigenvalue_of_a_wide_matrix_is_that_of_all():
    factor = normal(multihead_norms.DENSE + 50, 40).numpy()
    gram = factor @ factor.T
    value, vector = multihead_norms.top_pair(gram, None)
    assert value == pytest.approx(torch.linalg.eigvalsh(torch.as_tensor(gram))[-1].item(), rel=1e-4)
    assert abs(vector @ gram @ vector / value - 1) < 1e-4
    assert multihead_norms.top_pair(gram, vector)[0] == pytest.approx(value, rel=1e-4)
