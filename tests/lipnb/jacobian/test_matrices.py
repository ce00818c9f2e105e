"""Weights prepared for products: made once, in units that are powers of two."""

import math

import pytest
import torch
from cases import normal, parts_of_a_map, random_case, relative

from lipnb import Attention, AttentionJacobian, local_lipschitz
from lipnb.jacobian.matrices import ScaledMatrices


@pytest.mark.parametrize("power", [-20, -12, 12, 20])
@pytest.mark.parametrize("seed", [1, 4])
def test_value_and_output_matrices_of_any_size_do_not_overflow_in_float32(seed, power):
    case, unit = random_case(seed, n=6), 10.0**power
    for value_unit, output_unit in ((unit, 1.0), (1.0, unit), (unit, 1 / unit)):
        scaled = case.attention.replace(
            value=case.attention.value * value_unit, output=case.attention.output * output_unit, value_bias=None
        )
        exact = AttentionJacobian(scaled.to(torch.float32).to(torch.float64), case.x.float().double()).operator()
        single = AttentionJacobian(scaled.to(torch.float32), case.x.float()).operator()
        u = normal(*case.x.flatten(1).shape)
        assert relative(single.gram(u.float()).double() * single.unit**2, exact.gram(u) * exact.unit**2) < 1e-4


def test_units_are_powers_of_two_and_zeros_stay_zeros():
    """Dividing by them loses no digit, and zero matrices give zero, not 0 / 0."""
    for seed in (1, 2, 9):  # with and without output matrices, no biases
        case = random_case(seed, n=5)
        att, u = case.attention, normal(*case.x.shape, seed=seed)
        flat = AttentionJacobian(att, case.x).operator()
        assert math.frexp(flat.unit)[0] == math.frexp(flat.matrices.value_unit)[0] == 0.5
        if att.output is not None:
            size = flat.unit / flat.matrices.value_unit
            assert torch.equal(flat.matrices.output * size, att.output.movedim(0, 1).flatten(1))
        for zero in ("value", "output"):
            if (one := getattr(att, zero)) is not None:
                nothing = AttentionJacobian(att.replace(**{zero: 0 * one}), case.x)
                assert (nothing.jvp(u) == 0).all() and (nothing.gram(u) == 0).all()


def test_prepared_weights_are_made_once_for_each_type_and_go_with_the_map(monkeypatch):
    given, x = parts_of_a_map()
    f, made = Attention(**given), []
    inner = ScaledMatrices.__init__
    monkeypatch.setattr(ScaledMatrices, "__init__", lambda self, *rest: made.append(rest[1]) or inner(self, *rest))
    for _ in range(3):
        local_lipschitz(f, x)
    assert made == [torch.float64]
    assert ScaledMatrices.of(f, torch.float32).projection.dtype == torch.float32
    assert ScaledMatrices.of(f, torch.float64).projection.dtype == torch.float64
    assert made == [torch.float64, torch.float32]


def test_maps_that_share_their_tensors_share_no_matrices_of_another_scale():
    f, x = Attention(*normal(3, 2, 4, 12) / 3), normal(16, 12)
    tied = Attention(*normal(3, 2, 6, 12) / 3, output=normal(12, 2, 6).movedim(1, 0))
    for old, changes in ((f, {"scale": 3.0}), (f, {"score": "l2"}), (tied, {"output": None})):
        local_lipschitz(old, x)
        for new in (old.changed(**changes), old):  # that of the changed map, then again that of the old one
            assert local_lipschitz(new, x).value == local_lipschitz(new.replace(), x).value
            assert torch.equal(AttentionJacobian(new, x).jvp(x), AttentionJacobian(new.replace(), x).jvp(x))
