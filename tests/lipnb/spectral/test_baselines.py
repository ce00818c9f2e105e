"""Power iteration: a singular value, and what its start misses."""

import pytest
import torch
from cases import normal, truth_of

from lipnb import Attention, local_lipschitz, spectral


def test_power_iteration_stops_at_the_second_value_where_the_start_misses_the_first():
    values = torch.tensor([1, 0.9, *[0.4] * 38], dtype=torch.float64)
    start = normal(1, 40)
    found = {}
    for along in (1.0, 1e-12):
        planted = start.clone()
        planted[:, 0] *= along
        found[along] = spectral.power_iteration(lambda u: values**2 * u, planted, rtol=1e-6).value.item()
    assert found[1.0] == pytest.approx(1, abs=1e-4) and found[1e-12] == pytest.approx(0.9, abs=1e-4)


def test_power_iteration_has_not_converged_where_squares_underflow():
    g = torch.Generator().manual_seed(1)
    q, k, v, x = (torch.randn(*s, generator=g).double() for s in ((1, 3, 3), (1, 3, 3), (1, 3, 3), (30, 3)))
    for sink in (200.0, 345.0):
        f = Attention(q * 0.5, k * 0.5, v, sinks=torch.tensor([sink]).double())
        answer = local_lipschitz(f, x, method="power")
        assert not answer.converged or answer.value.item() == pytest.approx(truth_of(f, x), rel=1e-3)
    for method in ("power", "lanczos"):
        f32 = Attention(*(w.float() * s for w, s in ((q, 0.5), (k, 0.5), (v, 1))), sinks=torch.tensor([60.0]))
        assert local_lipschitz(f32, x.float(), method=method, confidence=None).value.item() > 0
