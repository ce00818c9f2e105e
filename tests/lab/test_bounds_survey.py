"""The survey of bounds: no bound is exceeded but those that are said to be, wrong uses are refused, rows come back."""

import math

import pytest
import torch

from lab import results
from lab.bounds_survey import ENTRIES, KINDS, draw, formulas, rougher, truth
from lab.experiments import bounds_survey as tables
from lipnb import Attention

EYE = torch.eye(2, dtype=torch.float64)
COUPLES = [
    (key, masked)
    for key, entry in ENTRIES.items()
    for masked in (entry.masks if entry.family in tables.MASKED else (False,))
]
HOLDING = [(key, masked) for key, masked in COUPLES if ENTRIES[key].holds]


@pytest.mark.parametrize(("key", "masked"), HOLDING)
def test_no_bound_is_exceeded(key, masked):
    entry, ratios = ENTRIES[key], []
    for kind in KINDS[:2]:
        cases = [draw(entry.family, kind, seed, masked=masked) for seed in range(100, 106)]
        ratios += [entry.ratio(case) for case in cases]
    ratios = [ratio for ratio in ratios if not math.isnan(ratio)]
    assert len(ratios) > 3 and max(ratios) <= 1 + 1e-9
    assert max(ratios) > 0 and (key != "certify" or min(ratios) > 1 - 1e-6)


@pytest.mark.parametrize(("key", "least"), [("released_castin", 1.5), ("newhouse_heads", 2.5), ("l2_quoted", 1.0)])
def test_the_formulas_said_to_be_exceeded_are(key, least):
    entry = ENTRIES[key]
    ratios = [
        entry.ratio(draw(entry.family, kind, seed, masked=masked))
        for masked in (entry.masks if entry.family in tables.MASKED else (False,))
        for kind in KINDS[:2]
        for seed in range(12)
    ]
    assert not entry.holds and max(ratios) > least


def test_a_search_makes_inputs_rougher_and_keeps_their_radius():
    entry = ENTRIES["general_sharp"]
    case = draw("head", "random", 3)
    worse = rougher(case, entry.ratio)
    assert entry.ratio(case) < entry.ratio(worse) <= 1 and worse.R == pytest.approx(case.R)
    assert torch.equal(rougher(case, entry.ratio).x, worse.x)


def test_the_published_cosine_bounds_are_above_ours_at_every_length():
    for seed in range(20):
        f = draw("cosine", "random", seed).f
        for n in (2, 10, 1000):
            published = formulas.lipsformer_refined(f, n), formulas.lipsformer_upper(f, n)
            assert formulas.cosine_upper(f, n) <= min(published)


def test_a_factor_of_the_logits_does_not_stand_before_the_value_term():
    f = Attention(EYE[None], EYE[None], EYE[None], EYE[None], scale=0.05)  # sharpness 0.1 of q . k / 2
    x = torch.zeros(3, 2).double()
    stated = formulas.released_newhouse(f, 1.0, sharpness=0.1)
    assert truth.largest_token(truth.blocks(f, x)) == pytest.approx(1) and stated < 0.31


def test_norms_by_autograd():
    g = torch.Generator().manual_seed(0)
    J = torch.randn(3, 2, 3, 2, generator=g, dtype=torch.float64)
    u = torch.nn.functional.normalize(torch.randn(4000, 3, 2, generator=g, dtype=torch.float64), dim=-1)
    sampled = torch.einsum("imjd,sjd->sim", J, u).norm(dim=-1).amax().item()
    assert sampled <= truth.largest_token(J) <= torch.linalg.matrix_norm(J.movedim(1, 2), 2).sum(
        -1
    ).amax() and sampled > 0.9 * truth.largest_token(J)
    assert truth.largest_row(J) == pytest.approx(torch.linalg.matrix_norm(J.reshape(6, 6), math.inf).item())
    p = torch.tensor([0.2, 0.3, 0.5]).double()
    signs = torch.tensor([[1.0, 1, 1], [1, 1, -1], [1, -1, 1], [-1, 1, 1]]).double()
    softened = torch.diag(p) - torch.outer(p, p)
    assert truth.sign_norm(p) == pytest.approx((signs @ softened @ signs.T).amax().item())


def test_rows_of_the_stored_tables_come_back():
    stored = results.load("bounds-survey")
    for row in stored[stored.kind != "ascended"].dropna(subset="over").iloc[::400].to_dict("records"):
        again = tables.again(row)
        assert again["truth"] == pytest.approx(row["truth"], rel=1e-5)
        assert again["stated"] == pytest.approx(row["stated"], rel=1e-5)
    exceeded = set(stored[stored.over < 1 - 1e-9].bound)
    assert exceeded == {key for key, entry in ENTRIES.items() if not entry.holds}
    assert set(stored.bound) == {*ENTRIES}, "`python -m lab tables bounds-survey --again` makes it"


def test_bounds_of_one_head_at_its_fork():
    rows = tables.growth_rows("along n", 8, 2.0, width=3)
    assert {row["input"] for row in rows} == {"fork", "random"}
    assert all(10 ** row["log10"] >= row["truth"] * (1 - 1e-3) for row in rows)
