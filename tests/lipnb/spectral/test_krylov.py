"""The Lanczos recurrence: vectors that stay orthogonal, parts of a batch, and products in pieces."""

import numpy as np
import pytest
import torch
from spectra import Diagonal, one, random_starts, tail

from lipnb.spectral import FunctionGram, lanczos
from lipnb.spectral.krylov import Krylov, _product


@pytest.mark.parametrize(
    "values",
    [
        one(1.0, 0.999, *[0.5] * 18, rest=0.0),
        one(*(1 - 1e-4 * i for i in range(20)), rest=0.0),
        torch.linspace(0.4, 1, 32, dtype=torch.float64),
    ],
    ids=["a gap", "near", "the whole space"],
)
def test_float32_vectors_stay_orthogonal_when_the_space_is_nearly_used_up(values):
    """With one pass of orthogonalisation a step the vectors were lost after some twenty, and 1 came out as 3.6."""
    operator = Diagonal(values.expand(8, -1), torch.float32)
    found = lanczos(operator.gram, random_starts(8, len(values), 3).float(), rtol=1e-5)
    assert (found.value <= 1 + 1e-6).all() and (found.value >= 1 - 1e-5).all() and found.converged.all()


def test_the_check_of_float32_vectors_has_more_digits_than_they():
    """Two vectors of four million entries: a float32 sum of their squares was off by 1,500 rounding units."""
    from lipnb.spectral.krylov import LOST

    limit, size = LOST * torch.finfo(torch.float32).eps, 2**22
    first, second = torch.randn(2, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first, second = (one / one.norm() for one in (first, second - (second @ first) / (first @ first) * first))
    krylov = Krylov(Diagonal(torch.ones(1, size), torch.float32), first[None].float())
    krylov.extend()
    krylov.extend()
    for length, cosine, lost in ((0, 0, False), (0.99, 0, False), (1.01, 0, True), (0, -0.99, False), (0, 1.01, True)):
        krylov.basis[0, 0] = (1 + length * limit) ** 0.5 * first
        krylov.basis[1, 0] = (1 - (cosine * limit) ** 2) ** 0.5 * second + cosine * limit * first
        krylov.lost[:] = False
        krylov.check_orthonormal(np.array([True]))
        assert krylov.lost[0] == lost


def test_what_is_left_of_a_product_is_made_orthogonal_twice():
    """A product that lies in the old vectors but for one part in a million: rounding hides it in the first pass."""
    N, asked = 40, iter(range(9))
    far = random_starts(1, N, 5).float()

    def gram(v):
        """Two ordinary products, then the oldest vector, much of the newest, and a little of another."""
        if next(asked) < 2:
            return v * torch.linspace(1, 2, N)
        return 1e3 * v + krylov.basis[0] + 1e-6 * far

    krylov = Krylov(FunctionGram(gram), random_starts(1, N, 4).float())
    for _ in range(3):
        krylov.extend()
    assert krylov.off_diagonal[0, -1] < 1e-2 and not krylov.lost.any()
    along = torch.bmm(krylov.basis[:3].transpose(0, 1).double(), krylov.current.double()[..., None])
    assert along.abs().max() < 1e-5


def test_krylov_goes_on_with_the_right_items():
    values = torch.stack([tail(50, 1.0 + i) for i in range(6)])
    start = random_starts(6, 50, seed=0)
    whole, part = Krylov(Diagonal(values), start), Krylov(Diagonal(values), start)
    kept = np.arange(6)
    for chosen in ([1, 2, 4, 5], [0, 2], [1]):
        for krylov in (whole, part):
            for _ in range(7):
                krylov.extend()
        kept = kept[chosen]
        part.restrict(np.array(chosen))
        # products of other batches may round otherwise; a wrong item is off by far more
        assert np.allclose(part.diagonal, whole.diagonal[kept], rtol=1e-8, atol=0)
        whole_ritz, ritz = whole.ritz(), part.ritz()
        items = np.arange(len(kept))
        others = whole.combine(whole_ritz.vectors[kept, :, -1], kept)
        for mine, other in zip(part.combine(ritz.vectors[:, :, -1], items), others, strict=True):
            assert torch.allclose(mine, other, rtol=1e-6, atol=1e-8)
    part.extend(), whole.extend()
    assert np.allclose(part.off_diagonal, whole.off_diagonal[kept], rtol=1e-8, atol=0)


def test_products_in_pieces_are_products():
    draw = torch.Generator().manual_seed(0)
    rows, vector = (torch.randn(*shape, 100_003, generator=draw, dtype=torch.float64) for shape in ((3,), ()))
    assert torch.allclose(_product(rows, vector), rows @ vector, rtol=0, atol=1e-9)
    near = (rows[0] / rows[0].norm()).float()
    exact = near.double() @ near.double()
    assert abs(_product(near[None], near).item() - exact.item()) < 1e-6


def test_long_vectors_stay_orthonormal_in_float32(monkeypatch):
    """Sums of two million entries were off by 6,000 rounding units: nothing was certified, or all done again."""
    seen, check = [], Krylov.check_orthonormal

    def looked(self, rows):
        if rows.any():
            gram = sum(piece.double() @ piece.double().mT for piece in self.basis[: self.steps, 0].split(2**16, 1))
            seen.append((gram - torch.eye(self.steps)).abs().max().item())
        return check(self, rows)

    monkeypatch.setattr(Krylov, "check_orthonormal", looked)
    size = 2**21
    factors = 20 * torch.rand(size, generator=torch.Generator().manual_seed(1)) ** 4
    factors[:50] = torch.cat([torch.tensor([84.0, 60.0]), torch.linspace(30, 50, 48)])
    found = lanczos(lambda u: factors * (factors * u), random_starts(1, size, 0).float(), confidence=0.99)
    assert found.converged.all() and 84 * (1 - 1e-6) < found.upper.item() < 84 * (1 + 2e-4)
    assert found.value.item() == pytest.approx(84, rel=1e-5) and max(seen) < 200 * torch.finfo(torch.float32).eps
