"""The survey of bounds: no bound is exceeded but those that are said to be, wrong uses are refused, rows come back."""

import math

import pytest
import torch

from lab import figures, results
from lab.bounds_survey import ENTRIES, KINDS, LEFT_OUT, draw, formulas, rougher, truth
from lab.bounds_survey.maps import CosineAttention, SigmoidAttention
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


def test_wrong_uses_are_refused():
    masked = Attention.from_matrices(EYE, EYE, masked=True)
    two = Attention(*torch.ones(3, 2, 1, 2).double())
    biased = Attention(*torch.ones(3, 1, 1, 2).double(), query_bias=torch.ones(1, 1).double())
    l2 = Attention.l2(EYE[None], EYE[None])
    for key, f, words in (
        ("mean_field", masked, "mean_field is for attention without a mask: use masked_mean_field."),
        ("masked_mean_field", masked.replace(masked=False), "for attention with a mask: use mean_field."),
        ("general", two, "general is for one head, not for 2: use multi_head or biased."),
        ("yudin", biased, "yudin is for attention without query biases: use certify."),
        ("general", l2, "general is for dot-product attention, not for L2 attention: use l2_sharp."),
        ("l2", masked, "l2 is for L2 attention, not for dot-product attention: use certify."),
        ("sigmoid", CosineAttention(EYE, EYE, EYE), "not for cosine attention"),
        ("cosine", SigmoidAttention(EYE, EYE), "not for sigmoid attention"),
    ):
        with pytest.raises(ValueError, match=words):
            ENTRIES[key].check(f)
    with pytest.raises(ValueError, match="family must be one of"):
        draw("none", "random", 0)
    assert {key for key, _ in COUPLES} == {*ENTRIES} and len(ENTRIES) >= 30 and len(LEFT_OUT) >= 8


def test_the_published_cosine_bounds_are_above_ours_at_every_length():
    for seed in range(20):
        f = draw("cosine", "random", seed).f
        for n in (2, 3, 10, 1000):
            assert formulas.cosine_upper(f, n) <= formulas.lipsformer_refined(f, n)
            assert formulas.cosine_upper(f, n) <= formulas.lipsformer_upper(f, n)


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
    missing = {*ENTRIES} - set(stored.bound)
    assert not missing, f"no rows for {sorted(missing)}: `python -m lab tables bounds-survey --again` makes it"
    assert set(stored.bound) == {*ENTRIES}, "rows of a bound that is in no catalogue"


def test_bounds_of_one_head_at_its_fork():
    rows = tables.growth_rows("along n", 8, 2.0, width=3)
    assert {row["input"] for row in rows} == {"fork", "random"}
    assert all(10 ** row["log10"] >= row["truth"] * (1 - 1e-3) for row in rows)


def test_the_figure_refuses_two_layers():
    text = results.load("bounds-survey-text")
    with pytest.raises(ValueError, match="rows of one layer"):
        figures.bounds_survey.medians(text)
