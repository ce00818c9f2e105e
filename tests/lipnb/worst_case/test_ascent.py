"""The ascent keeps the best of each item, never loses, and stays in its ball."""

import torch

from lipnb import Attention, local_lipschitz
from lipnb.worst_case import ascend, climb


def test_an_ascent_keeps_the_best_of_each_item():
    start = torch.tensor([[0.5], [3.0], [torch.nan]])

    def move(step, point, slopes):
        assert torch.equal(slopes[0][:2], -2 * point[0][:2] + 2)
        return (point[0] + 1,)

    (best,), most = ascend(lambda x: (2 * x - x * x)[:, 0], (start,), move, steps=3)
    assert best[:2].flatten().tolist() == [0.5, 3.0] and most[:2].tolist() == [0.75, -3.0]
    assert best[2].isnan() and most[2].isnan()
    (best,), most = ascend(lambda x: (2 * x - x * x)[:, 0], (start - 2,), lambda *given: (given[1][0] + 1,), steps=3)
    assert best[:2].flatten().tolist() == [0.5, 1.0] and most[:2].tolist() == [0.75, 1.0]


def test_climbing_never_loses_and_stays_in_the_ball():
    for masked in [False, True]:
        generator = torch.Generator().manual_seed(0)
        A, V = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((2, 2), (3, 2)))
        x = torch.randn(2, 3, 4, 2, generator=generator, dtype=torch.float64)
        x = x / x.norm(dim=-1, keepdim=True)
        f = Attention.from_matrices(A, V, masked=masked)
        best, found = climb(f, x, 1.5, steps=30)
        assert best.shape == x.shape and found.shape == (2, 3) and not found.requires_grad and not best.requires_grad
        assert best.norm(dim=-1).max() <= 1.5 * (1 + 1e-12)
        start = local_lipschitz(f, x, method="dense").value
        assert (found >= start * (1 - 1e-12)).all() and found.mean() > 1.2 * start.mean()
        assert torch.allclose(found, local_lipschitz(f, best, method="dense").value, rtol=1e-12)
        unmoved, same = climb(f, x, 1.5, steps=0)
        assert torch.equal(unmoved, x) and torch.allclose(same, start, rtol=1e-12)
        outside, _ = climb(f, 4 * x, 1.5, steps=0)  # starts outside are put on the sphere first
        assert torch.allclose(outside, 1.5 * x)
