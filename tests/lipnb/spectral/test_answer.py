"""The answers of all solvers: vectors that go with their value, and tables."""

import dataclasses

import torch
from cases import normal
from spectra import SPECTRA, Diagonal, random_starts

from lipnb import Attention, bounds, certify, local_lipschitz, singular_pair, spectral, worst_case
from lipnb.measures.splitting import splitting
from lipnb.spectral import lanczos, power_iteration, start_vectors
from lipnb.spectral.answer import evaluate
from lipnb.worst_case import attacks


def test_every_answer_is_a_table():
    """One row for each item, radius or input; of one sequence, of a batch of batches, and of a list."""
    eye = torch.eye(3, dtype=torch.float64)
    f, x = Attention.from_matrices(eye, eye), normal(2, 2, 4, 3)
    one, batch = x[0, 0], x[0]
    answers = [
        (local_lipschitz(f, one), 1), (local_lipschitz(f, batch), 2), (local_lipschitz(f, x), 4),
        (local_lipschitz(f, [one, one[:2], one]), 3), (certify(f, one), 1), (certify(f, batch), 2),
        (singular_pair(f, one), 1), (singular_pair(f, batch), 2), (singular_pair(torch.sin, x), 4),
        (bounds.nearby_upper(f, one, [0.1, 0.2, 0.3]), 3), (splitting(f, one), 1), (attacks.singular(f, one), 1),
        (spectral.baselines.dense_norm(batch), 2), (worst_case.WorstCase(one, 1.0, "fork"), 1),
    ]  # fmt: skip
    for answer, rows in answers:
        table = answer.table
        assert len(table) == rows and len(table.columns) >= 2, type(answer)
        assert all(not getattr(entry, "shape", ()) for entry in table.to_numpy().flatten()), "numbers and words alone"
    table, lip = local_lipschitz(f, x).table, local_lipschitz(f, x)
    assert table.value.tolist() == lip.value.flatten().tolist() and table.steps.dtype == int
    assert set(table.columns) == {field.name for field in dataclasses.fields(lip)}
    assert [*singular_pair(f, one).table] == ["value", "upper", "residual", "converged"]
    assert [*worst_case.WorstCase(one, 1.0, "fork").table] == ["value", "kind"]


NAMES = [name for name in SPECTRA if name not in ("near", "many near", "gap 1e-3", "bulk", "gap 1e-8", "zero")]
OPERATOR = Diagonal(torch.stack([SPECTRA[name] for name in NAMES]))


def test_vectors_are_unit_and_go_with_the_value():
    start = start_vectors(len(NAMES), 120, seed=0, dtype=torch.float64, device="cpu")
    for products in (OPERATOR.gram, OPERATOR):
        found = lanczos(products, start, rtol=1e-8)
        v, square = found.vector, found.value[:, None] ** 2
        assert ((v.norm(dim=1) - 1).abs() < 1e-12).all()
        misfit = (OPERATOR.gram(v) - square * v).norm(dim=1) / square[:, 0]
        assert (misfit <= 2e-4).all() and (misfit <= found.residual + 1e-12).all()
        value, residual = evaluate(OPERATOR.gram, 3 * v)
        assert torch.allclose(value, found.value, rtol=1e-12, atol=0)
        assert torch.allclose(residual, found.residual, rtol=1e-3, atol=1e-11)
    stopped = lanczos(OPERATOR.gram, start, max_steps=4, rtol=1e-8)
    assert ((stopped.vector.norm(dim=1) - 1).abs() < 1e-12).all()
    assert torch.allclose(evaluate(OPERATOR.gram, stopped.vector)[0], stopped.value, rtol=1e-12, atol=0)


def test_power_iteration_finds_them_too():
    exact, start = OPERATOR.values.max(1).values, random_starts(len(NAMES), 120, 0)
    found = power_iteration(OPERATOR.gram, start, rtol=1e-5)
    assert found.converged.all() and torch.isinf(found.upper).all()
    assert ((found.value / exact - 1).abs() <= 1e-5).all() and (found.value <= exact * (1 + 1e-12)).all()
