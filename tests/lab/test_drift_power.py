"""Power of `lipnb drift`: usual comparisons by hand, clean runs, one network measured, stored tables."""

import math

import needs
import pytest
import torch

from lab import results
from lab.experiments import drift_power
from lab.experiments.planted_faults import FAULTS, planted
from lab.statistics import detection
from lipscan.drift.runs import States, run_of

TABLES = ("drift-power", "drift-power-smollm2")
TEXT = drift_power.TEXT


@pytest.fixture(scope="module")
def start():
    """gpt2-mini in float32 on a window of a text that is always there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drift_power, "TEXT", "python_reference")
        yield drift_power.start_of("gpt2-mini", "float32", 1)
    drift_power.start_of.cache_clear()
    drift_power._reference.cache_clear()


def _states(*hidden, logits=None):
    return States(torch.zeros(1, 2, dtype=torch.long), [torch.tensor(one)[None] for one in hidden], logits=logits)


def test_usual_comparisons_name_the_first_layer_that_fails(start):
    own = _states([[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 2.0]], [[4.0, 0.0], [0.0, 4.0]])
    low = _states([[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.1], [0.0, 2.0]], [[4.0, 0.1], [0.0, 4.0]])
    other = _states([[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.15], [0.0, 2.0]], [[4.0, 1.0], [0.0, 4.0]])
    seen = drift_power.usual(start._replace(own=own, own_low=low), other)
    assert seen["final"] == pytest.approx(1 / 32**0.5) and seen["needed"] == pytest.approx(1.0)
    assert seen["cosine"] == pytest.approx(32 / (32 * 33) ** 0.5)
    assert (seen["cosine_layer"], seen["cosine_99_layer"], seen["close_layer"], seen["twice_layer"]) == (0, 1, 0, 1)
    assert seen["twice"] == pytest.approx(10.0)
    same = drift_power.usual(start._replace(own=own, own_low=own), own)
    assert all(math.isnan(same[f"{name}_layer"]) for name in ("cosine", "cosine_99", "close", "twice"))


def test_sums_in_parts_are_the_sums():
    draw = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*one, generator=draw, dtype=torch.float64) for one in ((3, 10), (4, 10), (4,)))
    plain = torch.nn.functional.linear(x, weight, bias)
    with drift_power._Parts(3):
        parts = torch.nn.functional.linear(x, weight, bias)
        added = torch.addmm(bias, x, weight.T)
        low = torch.nn.functional.linear(x.bfloat16(), weight.bfloat16())
    assert torch.allclose(parts, plain) and torch.allclose(added, plain)
    halves = [
        one.bfloat16() @ other.bfloat16().T for one, other in zip(x.split(4, -1), weight.split(4, -1), strict=True)
    ]
    assert torch.equal(low, halves[0] + halves[1] + halves[2])


@pytest.mark.parametrize("run", drift_power.RUNS)
def test_a_clean_run_is_the_network_on_the_same_tokens(start, run):
    other = drift_power.RUNS[run](start)
    for one, own in zip(other.hidden, start.own.hidden, strict=True):
        assert one.shape == own.shape and (one.double() - own).norm() < 1e-5 * own.norm()
    assert (other.logits.double() - start.own.logits).norm() < 1e-5 * start.own.logits.norm()
    assert set(other.attention) == set(other.mlp) == set(range(6))
    assert drift_power.compared(start, other).verdict.kind == "rounding"


@pytest.mark.parametrize(("kind", "size"), [("missing bias of the MLP", 2), ("mask off by one", 0)])
def test_a_fault_is_found_in_its_layer_and_half(start, kind, size):
    with planted(start.reference, start.low, kind, size, [3], drift_power.LENGTH) as low:
        other = run_of(low, start.ids)
    drift = drift_power.compared(start, other)
    assert drift.verdict[:3] == ("bug", 3, FAULTS[kind].half_in("gpt2", size))
    seen = drift_power._seen(drift, [3])
    assert seen["height"] > 1 > seen["height_elsewhere"]
    rows = drift.table[(drift.table.layer == 3) & (drift.table.part == "layer")]
    # beside rounding, the local error is what the fault changes
    assert drift_power.effect(start, kind, size, 3) == pytest.approx(rows.error.item(), rel=0.01)


@pytest.mark.parametrize("name", TABLES)
def test_stored_faults(name):
    table, birth = results.load(name), results.provenance(name)
    assert birth["settings"]["faults"] == {kind: [*one.amounts] for kind, one in FAULTS.items()}
    assert set(table.groupby(["model", "dtype", "kind"]).groups) == set(drift_power._units(set(table.model)))
    for (model, dtype, kind), rows in table.groupby(["model", "dtype", "kind"]):
        planned = drift_power._cases(model, dtype, FAULTS[kind].half)
        absent = [(2, where) for _, where in planned] if (dtype, kind) == ("bfloat16", "rotation in bfloat16") else []
        assert sorted(zip(rows["size"], rows.place, strict=True)) == sorted({*planned} - {*absent})
    thresholds = birth["settings"]["thresholds"]
    sure = table[table.verdict == "rounding"]
    assert (sure[["height", "height_elsewhere"]].max(axis=1) <= thresholds["clean"]).all()
    high = table[table[["height", "height_elsewhere"]].max(axis=1) > 1]
    assert (high.verdict == "bug").all()


def test_stored_clean_runs():
    table = results.load("drift-clean")
    layers = detection.clean_layers(table)
    assert len(layers) > 1000 and set(layers.model) == set(drift_power.MODELS)
    assert detection.rate(layers.above | layers.leaning)["high"] < 0.01


@pytest.mark.parametrize("name", ["drift-clean", "drift-clean-unseen"])
def test_no_clean_run_is_called_a_fault(name):
    alarms = detection.alarms(results.load(name))
    assert alarms.loc["drift", "count"] == 0 < alarms.loc["close", "count"]


@needs.ALICE
def test_a_stored_case_is_measured_again(monkeypatch):
    monkeypatch.setattr(drift_power, "TEXT", TEXT)  # that of the table, whatever other tests read
    drift_power.start_of.cache_clear()
    drift_power._reference.cache_clear()
    stored = results.load("drift-power")
    stored = stored[
        (stored.model == "gpt2-mini") & (stored.dtype == "float32") & (stored.kind == "missing bias of the MLP")
    ]
    again = drift_power.fault_rows("gpt2-mini", "float32", "missing bias of the MLP")
    assert [row["verdict"] for row in again] == stored.verdict.tolist()
    assert [row["named_part"] for row in again] == stored.named_part.tolist()
    assert [row["effect"] for row in again] == pytest.approx(stored.effect.tolist(), rel=0.1, nan_ok=True)
