"""Bounds for rotary positions: what they know, and how far turned queries meet keys."""

import pytest
import torch
from cases import drawn, layer_in_use

from lipnb import Attention, bounds, local_lipschitz
from lipnb.attention.rope_norm import rotation, turned
from lipnb.bounds.rotary import RotaryNorms
from lipnb.worst_case import gaussian


def test_bounds_for_rotary_positions_know_shared_keys_and_nothing_else():
    draw = drawn(5)
    given = {"query": draw(4, 6, 5), "key": draw(2, 6, 5), "value": draw(2, 6, 5)}
    f, x = Attention(**given, frequencies=torch.ones(2), masked=True), draw(7, 5)
    constant, R = local_lipschitz(f, x).value.item(), x.norm(dim=-1).max().item()
    assert constant <= bounds.rotary_terms(f, x) <= bounds.rotary_upper(f, 7, R)
    apart = f.replace(key=draw(4, 6, 5), value=draw(4, 6, 5))
    assert bounds.rotary_terms(apart, x) > 0


@pytest.mark.parametrize("places", [(), (8,)], ids=["weights", "each distance"])
def test_turned_queries_meet_keys_no_more_than_stated(monkeypatch, places):
    monkeypatch.setattr("lipnb.bounds.rotary.PLACES", 0 if not places else 512)
    normal, n = gaussian(2), 8
    for frequencies in (torch.tensor([1.0, 0.2]), torch.tensor([0.5]).double(), torch.tensor([3000.0, 7.0])):
        for masked in (False, True):
            f = layer_in_use(normal, frequencies=frequencies, masked=masked).expand_groups()
            left, right, turns = normal(4, 5, 3), normal(4, 5, 2), RotaryNorms(f, n)
            cos, sin = rotation(frequencies, n, torch.float64)
            R = turned(torch.eye(5).double()[:, None].expand(-1, n, -1), (cos, sin)).movedim(0, -1)  # (n, 5, 5)
            met = torch.einsum("hka,jlk,ilm,hmb->hijab", left, R, R, right)
            seen = torch.ones(n, n).tril() > 0 if masked else torch.ones(n, n) > 0
            largest = torch.linalg.matrix_norm(met[:, seen], 2).amax(1)
            assert (largest <= turns.log_norms(left, right).exp()).all()
            y = normal(2)
            rows = torch.linalg.vector_norm(met[:, seen] @ y, dim=-1).amax(1)
            assert (rows <= torch.linalg.vector_norm(turns.bounding(left, right) @ y, dim=-1)).all()
            if places:  # exact but for what the cosines of the network are off
                assert torch.allclose(largest, turns.log_norms(left, right).exp(), rtol=1e-2)
