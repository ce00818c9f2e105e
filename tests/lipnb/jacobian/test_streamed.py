"""Which tiles there are; that their products are right is in test_closed_form.py, parts of them in test_cached.py."""

import pytest
import torch
from cases import random_case

from lipnb import Attention, local_lipschitz
from lipnb.jacobian.streamed import StreamedGram


def test_streamed_rows_of_logits_of_a_trillion_sum_to_one():
    generator = torch.Generator().manual_seed(2)
    x, eye = 1e5 * torch.randn(64, 4, generator=generator).double(), torch.eye(4)[None].double()
    weights = torch.rand(64, generator=generator).double() + 0.1
    streamed, cached = (local_lipschitz(Attention(eye, eye, eye), x, weights=weights, memory=m) for m in (1, 2**30))
    assert streamed.route == "streamed" and cached.route == "cached"
    assert streamed.value.item() == pytest.approx(cached.value.item(), rel=1e-3)


def test_tiles_hold_no_column_that_none_of_their_rows_sees():
    case = random_case(7, n=10)

    def tiles(**changes):
        made = StreamedGram(case.attention.replace(**changes), case.x, rows=4)._tiles()
        return [(rows.start, rows.stop, columns.start, columns.stop) for rows, columns in made]

    assert case.attention.masked and tiles() == [(0, 4, 0, 4), (4, 8, 0, 8), (8, 10, 0, 10)]
    assert tiles(window=3) == [(0, 4, 0, 4), (4, 8, 2, 8), (8, 10, 6, 10)]
    assert tiles(masked=False) == [(0, 4, 0, 10), (4, 8, 0, 10), (8, 10, 0, 10)]
