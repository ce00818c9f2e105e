"""The checks of all upper bounds: they pass, they would fail, they resume, and their worst cases come back."""

import mpmath
import pytest
import torch

from lab import cli, results, verification
from lab.experiments import make, remeasure
from lab.experiments.exact import definition
from lab.verification import CHECKS, KINDS, NOT_CHECKED, balls, digits, draws, table, truth
from lab.verification.ascent import weighted_dense, worsened
from lab.verification.cancelling import CANCELLING, IN_USE, draw_cancelling, draw_in_use
from lab.verification.checks import jacobian_norm
from lipnb import bounds, local_lipschitz
from lipnb.bounds.catalogue import CATALOGUE
from lipnb.bounds.rounding import RoundingErrors

NAMES = [check.name for check in CHECKS]
COUPLES = [(check, masked) for check in CHECKS for masked in check.masked]
SMALL = {"blocks": dict.fromkeys(KINDS, 1), "maps": 2, "progress": False}


@pytest.mark.parametrize(("check", "masked"), COUPLES, ids=lambda value: getattr(value, "name", str(value)))
def test_no_bound_is_exceeded_and_half_of_it_is(check, masked):
    for kind in KINDS:
        row = verification.measure(check, kind, 1000, masked=masked, maps=3 if kind == "degenerate" else 2)
        assert row["violations"] == 0 and row["worst"] <= 1 + 1e-9 and 0 < row["cases"] <= 36
        assert row["measured"] / row["stated"] == pytest.approx(row["worst"])
    half = verification.measure(check, "degenerate", 1000, masked=masked, maps=3, factor=0.5)
    assert half["violations"] > 0, f"half of {check.name} holds too: give it inputs that come near the bound"


def test_every_exported_upper_bound_has_a_row():
    also = {"heads_on_ball", "rotary_terms", "three_terms"}  # upper bounds of other names
    catalogued = {bound.name for bound in CATALOGUE} - {"certify", "large_radius_limit"}
    exported = {name for name in bounds.__all__ if "upper" in name} | also | catalogued
    held = {check.function for check in CHECKS}
    assert also <= set(bounds.__all__) and not set(NOT_CHECKED) & held
    unlisted = exported - {bound.name for bound in CATALOGUE} - {"printed_l2_upper"}
    assert not unlisted, f"{sorted(unlisted)}: no Bound in CATALOGUE of lipnb/bounds/catalogue.py has this name"
    unchecked = exported - held - set(NOT_CHECKED)
    assert not unchecked, f"{sorted(unchecked)}: neither in CHECKS nor in NOT_CHECKED of lab/verification/checks.py"
    absent = (held | set(NOT_CHECKED)) - exported - {"certify", "large_radius_limit"}
    assert not absent, f"{sorted(absent)}: checked, and neither public in lipnb.bounds nor in its catalogue"
    # of modules there, for tables and scans, which no user calls
    within = {"heads_at_input", "max_token_terms", "norm_layer_upper", "softmax_norm", "yudin_upper_sharp"}
    hidden = catalogued - set(bounds.__all__) - within
    assert not hidden, f"{sorted(hidden)}: export it in lipnb/bounds/__init__.py"


@pytest.mark.parametrize("kind", CANCELLING)
@pytest.mark.parametrize("bound", list(digits.BLOCKS))
def test_rounding_is_counted_in_fifty_digits(bound, kind):
    row = digits.measure(bound, CANCELLING.index(kind), cases=30)
    assert row["kind"] == kind and row["cases"] == 30
    assert row["violations"] == row["errors"] == 0 < row["margin"]
    assert row["unknown"] < 15


@pytest.mark.parametrize("kind", IN_USE)
def test_brackets_of_attention_in_use_hold_in_fifty_digits(kind):
    row = digits.in_use("certify", IN_USE.index(kind), cases=18)
    assert row["kind"] == kind and row["violations"] == row["errors"] == 0 < row["margin"] and row["unknown"] < 9
    case = draw_in_use(kind, 5)  # number 5 of six is a plain one
    f = case.attention.to(dtype=torch.float64)
    dense = local_lipschitz(f, case.x.double(), method="dense").value.item()
    assert float(truth.largest_stretch(*truth.jacobian(case.attention, case.x))) == pytest.approx(dense, rel=1e-8)


@pytest.mark.parametrize("kind", ["plain", "offsets", "weights"])
def test_truth_is_that_of_the_definition_alone(kind):
    """Balls with derivatives against complex steps: two ways that share nothing, to forty digits."""
    for seed in range(4):
        case = draw_cancelling(kind, seed, name="twins")
        names = ("query", "key", "value", "output", "query_bias", "key_bias", "value_bias")
        parts = {name: getattr(case.attention, name) for name in names}
        f = {name: None if part is None else part.tolist() for name, part in parts.items()}
        f |= {"scale": case.attention.scale, "masked": case.attention.masked, "window": case.attention.window}
        weights = None if case.weights is None else case.weights.tolist()
        exact = definition.constant({"attention": f | {"score": "dot"}, "x": case.x.tolist(), "weights": weights})
        J, bits = truth.jacobian(case.attention, case.x, case.weights)
        with mpmath.workdps(60):
            ours = mpmath.matrix([[mpmath.mpf(one.mid().str(60, radius=False)) for one in row] for row in J.tolist()])
            assert abs(mpmath.svd_r(ours, compute_uv=False)[0] / exact - 1) < 1e-38 and bits >= 256


def first_order_logits(errors):
    """As `RoundingErrors._logit_errors`, without the product of the errors of queries and keys."""
    return honest_logits(errors) - errors.query @ errors.key.mT * (1 + 1e-12)


honest_logits = RoundingErrors._logit_errors


@pytest.mark.parametrize(
    ("name", "fault"),
    [("_logit_errors", first_order_logits), ("_probability_errors", lambda errors, t: (torch.zeros_like(t),) * 2)],
)
def test_rounding_left_out_is_seen_in_fifty_digits(monkeypatch, name, fault):
    seeds = [15, 61, 77]
    assert all(digits.bracketed(draw_cancelling("products", seed)).margin > 0 for seed in seeds)
    monkeypatch.setattr(RoundingErrors, name, fault)
    assert all(digits.bracketed(draw_cancelling("products", seed)).margin < 0 for seed in seeds)


def test_fifty_digits_make_a_table(results_folder):
    few = {"blocks": {"certify": 7, "nearby_upper": 1}, "cases": 3, "progress": False}
    table = make(["verify-digits"], **few, save_as="few")["few"]
    assert len(table) == 7 and table.cases.sum() == 24 and table.violations.sum() == table.errors.sum() == 0
    again = remeasure(table, digits.again, rows=2)
    assert (again["margin again"] == again.margin).all()


def test_a_bound_whose_constant_is_broken_is_caught(results_folder, monkeypatch, capsys):
    assert cli.main(["verify", "--quick", "--bounds", "general_upper", "--save-as", "whole"]) == 0
    honest = bounds.general_upper
    monkeypatch.setattr("lipnb.bounds.catalogue.general_upper", lambda *given: honest(*given) / 2)
    assert cli.main(["verify", "--quick", "--bounds", "general_upper", "--save-as", "half"]) == 1
    broken = results.load("half")
    assert broken.violations.sum() > 0 and broken.worst.max() == pytest.approx(2 * results.load("whole").worst.max())
    assert "0 violations" in capsys.readouterr().out


def made(save_as="verify", **options):
    """The table of checks, small."""
    return make(["verify"], save_as=save_as, **options)[save_as]


def test_a_bound_is_put_into_the_stored_table_beside_the_others(results_folder):
    chosen = ["yudin_upper", "large_radius_upper"]
    whole = made(**SMALL, checks=chosen)
    file = (results_folder / "verify.csv").read_bytes()
    made(**SMALL, checks=chosen[1:])
    table.put(chosen[:1], **SMALL)
    assert (results_folder / "verify.csv").read_bytes() == file and len(whole) == 16
    birth = results.provenance("verify")
    assert birth["settings"]["checks"] == chosen and birth["rows"] == 16
    assert birth["made again"][0]["rows"] == "yudin_upper" and results.names() == ["verify"]
    table.put(chosen[1:], **SMALL)  # the rows that it had go
    assert (results_folder / "verify.csv").read_bytes() == file


def test_blocks_are_joined_to_their_worst(results_folder):
    check = CHECKS[1]
    rows = [verification.measure(check, "random", block, maps=2) for block in range(3)]
    joined = made(checks=[check.name], blocks={"random": 3}, maps=2, progress=False)
    first = joined[~joined.masked].iloc[0]
    worst = max(rows, key=lambda row: row["worst"])
    assert first.worst_hot == max(row["worst_hot"] for row in rows) <= first.worst
    assert first.cases == 72 and first.violations == 0
    assert (first.worst, first.seed, first["item"]) == (worst["worst"], worst["seed"], worst["item"])


def test_worst_cases_come_back_from_their_seeds(results_folder):
    whole = made(checks=["spread_upper", "yudin_upper"], **SMALL)
    found = remeasure(results.load("verify"), verification.again, rows=len(whole))
    assert len(found) == len(whole) == 16 and found["worst difference"].max() < 2e-5  # six digits are stored
    row = whole[(whole.bound == "yudin_upper") & (whole.kind == "ascended")].iloc[0]
    problem, measured, stated = verification.worst_case(row)
    assert problem.x.shape == (1, row.n, row.d) and measured / stated == pytest.approx(row.worst, rel=1e-12)
    direct = local_lipschitz(problem.attention, problem.x, method="dense").value
    assert direct.item() == pytest.approx(measured) and problem.radii.item() == pytest.approx(row.radius)


@pytest.mark.parametrize("family", draws.FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_problems_follow_from_their_seed(family, kind):
    for seed in (0, 7, 9):
        one, same = (draws.draw("any", family, kind, seed, masked=True) for _ in range(2))
        other = draws.draw("other", family, kind, seed, masked=True)
        assert torch.equal(one.x, same.x) and one.attention.masked
        assert one.x.shape != other.x.shape or not torch.equal(one.x, other.x)
        getattr(one.attention, "attention", one.attention).check_input(one.x, one.weights)
        assert (one.weights is not None) == (family == "measure" or (family == "full" and seed % 3 == 0))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_measured_is_the_exact_norm(masked, weighted):
    problem = draws.draw("norm", "measure" if weighted else "heads", "random", 3, masked=masked)
    expected = local_lipschitz(problem.attention, problem.x, weights=problem.weights, method="dense").value
    assert torch.allclose(jacobian_norm(problem), expected, rtol=1e-12)
    J = weighted_dense(problem.attention, problem.x, problem.weights)
    one = weighted_dense(problem.attention, problem.x[:1], None if problem.weights is None else problem.weights[:1])
    assert torch.allclose(J[:1], one, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("family", ["head", "measure"])
def test_ascent_climbs_and_stays_in_the_ball(family, masked):
    check = next(check for check in CHECKS if check.family == family)
    before = draws.draw("climb", family, "ascended", 0, masked=masked)
    after = worsened(before, check.goal(before))
    assert (after.radii <= before.radii * (1 + 1e-12)).all()
    assert torch.allclose(worsened(before, check.goal(before), keep=True).radii, before.radii)
    gain = jacobian_norm(after) / jacobian_norm(before)
    assert (gain > 1 - 1e-6).all() and gain.median() > 1.2
    if after.weights is not None:
        assert torch.allclose(after.weights.sum(-1), torch.ones(len(after.x), dtype=torch.float64))


def test_the_stored_table_is_whole():
    stored = results.load("verify")
    counts = stored.groupby(["bound", "masked"]).cases.sum()
    couples = {(check.name, masked) for check, masked in COUPLES}
    assert set(counts.index) == couples, "`python -m lab verify --bounds NAME --put` measures what is missing"
    least = {check.name: 3_000 if check.slow else 10_000 for check in CHECKS}
    assert all(count >= least[bound] for (bound, _), count in counts.items())
    assert stored.violations.sum() == 0 and stored.worst.max() <= 1 + 1e-9
    assert set(stored.kind) == set(KINDS) and (stored.worst_hot <= stored.worst).all()
    on_balls, in_use = results.load("verify-ball"), results.load("verify-ball-in-use")
    assert len(on_balls) == len(balls.CLASSES) and on_balls.cases.sum() >= 10_000 and on_balls.logits.min() >= 1
    near = on_balls.groupby(["heads", "mask"]).worst.max()
    assert all(near[heads, mask] > 0.9 for heads in ("one", "several") for mask in ("none", "causal"))
    assert len(in_use) == len(balls.IN_USE) and in_use.cases.sum() == 640
    assert all(table.violations.sum() == 0 and table.worst.max() <= 1 for table in (on_balls, in_use))


SHORT = [kind for kind in balls.CLASSES if kind.tokens != "64"]


@pytest.mark.parametrize("kind", SHORT[::5] + balls.CLASSES[9:10], ids=lambda kind: "-".join(map(str, kind)))
def test_ascended_layers_stay_in_their_ball_and_under_its_bound(kind):
    drawn, u = balls.draw(kind, 7, layers=6)
    x, (G, shift) = balls.ascended(drawn, u), drawn.maps()
    assert (torch.linalg.vector_norm(x, dim=-1) <= drawn.radius[:, None] * (1 + 1e-12)).all()
    if kind.region == "ellipsoid":  # undo the LayerNorm: what is left has mean 0 and at most its length
        inner = (x - shift) / drawn.gain[:, None]
        assert inner.mean(-1).abs().max() < 1e-12 and inner.square().mean(-1).max() <= 1 + 1e-12
    before, after = (torch.linalg.matrix_norm(weighted_dense(drawn, y), 2) for y in (shift + u @ G.mT, x))
    assert (after >= before * (1 - 1e-3)).all() and (after / before).max() > 1.02
    for i in range(6):
        assert torch.allclose(drawn.attention(i)(x[i]), drawn(x)[i], rtol=1e-9, atol=1e-12)
    row = balls.measure(kind, 7, layers=6)
    assert row["violations"] == 0 and 0.2 < row["worst"] <= 1 and row["cases"] == 6
    assert balls.measure(kind, 7, layers=6, factor=0.9 * row["worst"])["violations"] > 0


def test_ascended_layers_make_a_table(results_folder):
    few = {"blocks": {"3 to 12": 2}, "layers": {"3 to 12": 2}, "progress": False}
    table = make(["verify-ball"], **few, save_as="few")["few"]
    assert len(table) == len(SHORT) and set(table.cases) == {4} and table.violations.sum() == 0
    measured = [balls.measure(SHORT[0], block, layers=2)["worst"] for block in range(2)]
    assert table.worst[0] == max(measured) and table.block[0] == measured.index(max(measured))


@pytest.mark.parametrize("kind", balls.IN_USE[::3], ids=lambda kind: "-".join(kind))
def test_ascended_layers_in_use_are_those_of_the_package_and_stay_under_the_bound(kind):
    drawn, u = balls.draw(kind, 3, layers=6)
    x = u @ drawn.maps()[0].mT
    assert (torch.linalg.vector_norm(x, dim=-1) <= drawn.radius[:, None] * (1 + 1e-12)).all()
    for i in range(6):
        assert torch.allclose(drawn.attention(i)(x[i]), drawn(x)[i], rtol=1e-9, atol=1e-12)
    row = balls.measure(kind, 3, layers=6)
    assert row["violations"] == 0 and 0 < row["worst"] <= 1 and row["cases"] == 6
    assert balls.measure(kind, 3, layers=6, factor=0.9 * row["worst"])["violations"] > 0


def test_the_true_change_is_that_of_the_map():
    for seed in (0, 2):
        case = draw_cancelling("plain", seed, name="truth")
        f, x = case.attention.to(dtype=torch.float64), case.x.double()
        move = 1e-3 * torch.ones_like(x)
        moved = torch.linalg.vector_norm(f(x + move) - f(x)).item()
        assert float(truth.change(case.attention, case.x, move)) == pytest.approx(moved, rel=1e-7, abs=1e-12)
