"""Benchmarks: every peer finds the dense value, the wide layer is what it says, tables hold no path."""

import json
import math
import platform
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from lab import results
from lab.benchmarks import (
    device,
    layers,
    limit,
    machine,
    misconvergence,
    near_degenerate,
    nearby,
    ours,
    peers,
    products,
    shares,
    workload,
)
from lipnb import Attention, AttentionJacobian, local_lipschitz
from lipnb.spectral import start_vectors


@pytest.fixture(scope="module")
def small():
    """A random layer of two heads with biases, and one sequence; a gap that power iteration can live with."""
    generator = torch.Generator().manual_seed(3)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    attention = Attention(
        normal(2, 4, 8) / 3,
        normal(2, 4, 8) / 3,
        normal(2, 4, 8),
        normal(2, 8, 4),
        query_bias=normal(2, 4),
        key_bias=normal(2, 4),
        value_bias=normal(2, 4),
        output_bias=normal(8),
    )
    x = normal(6, 8)
    return attention, x, local_lipschitz(attention, x, method="dense").value.item()


@pytest.mark.parametrize("masked", [False, True])
def test_the_plain_forward_is_the_same_map(small, masked):
    attention, x, _ = small
    attention = Attention(**attention.tensors(), masked=masked)
    assert torch.allclose(layers.plain_forward(attention)(x), attention(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", peers.PEERS)
def test_every_peer_finds_the_dense_value(small, name):
    attention, x, dense = small
    answer = peers.PEERS[name](attention, x, seed=1)
    assert abs(answer.value / dense - 1) < 1e-4 and answer.converged
    assert answer.products > 0 or name == "dense"


def test_steps_of_shares_change_one_thing_each(small, monkeypatch):
    attention, x, dense = small
    pair = torch.stack([x, x.flip(0)])
    products = {}
    for step, run in shares.STEPS.items():
        if step != "released":  # from here on nothing is differentiated
            monkeypatch.setattr(peers, "plain_forward", None)
        values, products[step], *_ = run(attention, pair)
        assert abs(values[0] / dense - 1) < 1e-3
    released, closed, alone, batch = map(list, products.values())
    assert released == closed and alone == batch and sum(batch) < sum(released)


@pytest.fixture(scope="module")
def twin():
    return layers.layer("twin:1", "python_reference")


def test_the_twin_is_two_layers_side_by_side_rotated(twin):
    x = twin.tokens(5, 2)
    first, second = (layers._minilm().attention(number).to(dtype=torch.float64) for number in (1, 2))
    turn = layers.rotation(768)
    assert torch.allclose(turn @ turn.T, torch.eye(768, dtype=torch.float64), atol=1e-12)
    halves = (x.double() @ turn).chunk(2, dim=-1)  # back from y = Q x, in rows
    parts = [part.project(half) for part, half in zip((first, second), halves, strict=True)]
    P = sum(query @ key.mT for query, key, _ in parts).softmax(-1)
    out = [f.combine(P @ value) + f.output_bias for f, (_, _, value) in zip((first, second), parts, strict=True)]
    out = torch.cat(out, dim=-1) @ turn.T
    assert (twin.attention(x) - out).norm() / out.norm() < 1e-5


def test_windows_can_be_skipped_and_long_inputs_are_windows_in_a_row(twin):
    mini = layers.layer("mini:1", "python_reference")
    assert (mini.tokens(5, 4)[3:] - mini.tokens(5, 1, skip=3)).abs().max() < 1e-5
    assert (layers.wide_tokens(1, 700)[0, :512] - twin.tokens(512, 2)[0]).abs().max() < 1e-3


def test_every_mode_of_ours_agrees_with_the_dense_value(small):
    attention, x, dense = small
    for options in ours.OURS.values():
        lip = ours.solve(attention, x, **options)
        assert abs(lip.value.item() / dense - 1) < 1e-4
        if options["confidence"] is not None:
            assert dense * (1 - 1e-9) < ours.upper(lip).item()
    u = torch.ones_like(x)
    assert torch.allclose(ours.gram(attention, x)(u), peers.Products(attention, x).gram(u), rtol=1e-9)


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_without_a_gpu_nothing_is_measured_and_that_is_said(results_folder, capsys):
    device.main(["--quick"])
    assert "no CUDA device here" in capsys.readouterr().out and not list(results_folder.glob("*"))


def test_what_is_counted_on_a_gpu_is_counted_on_a_processor(monkeypatch):
    """The same code without a device: every map is exact there, and a wrong bound would be counted."""
    monkeypatch.setattr(device, "DEVICE", "cpu")
    monkeypatch.setattr(device, "BATCH", 3)
    maps, x = device.every_map(1)
    weights = torch.rand(x.shape[:2], generator=torch.Generator().manual_seed(0)).double() + 0.1
    for name in ("rotary", "l2"):
        exact = device.norm_of(maps[name], x, weights)
        f = maps[name].to(dtype=torch.float64)
        assert torch.allclose(local_lipschitz(f, x.double(), weights=weights, rtol=1e-10).value, exact, rtol=1e-9)
    few = {name: maps[name] for name in ("masked", "relative")}
    monkeypatch.setattr(device, "every_map", lambda seed: (few, x))
    rows = device.certificates([1], ("float32", "high"))
    assert {row["case"] for row in rows} == {f"{kind}{name}" for name in few for kind in ("", "callable, ")}
    assert all(row["wrong"] == row["missed"] == row["refused"] == 0 and row["inputs"] == 3 for row in rows)
    truth = torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)
    found = device._judged(truth, 0.9 * truth, torch.tensor([1.0, 0.99, 1.1]), torch.tensor([True, True, False]))
    assert (found["wrong"], found["missed"], found["unconverged"], found["over"]) == (1, 2, 1, 0)


def test_a_table_says_how_it_was_made_and_not_where(results_folder):
    workload.main(["--quick", "--layers", "mini:0", "--count", "2", "--repeats", "1", "--corpus", "python_reference"])
    table = results.load("bench-workload-trial")
    assert len(table) == 3 * (1 + len(ours.OURS)) and (table[table.method != workload.RELEASED].missed == 0).all()
    assert not list(results_folder.glob("*.partial.jsonl"))
    written = (results_folder / "bench-workload-trial.json").read_text()
    settings = json.loads(written)["settings"]
    assert settings["trial"] and settings["processor"]["threads"] >= 1 and "/" not in json.dumps(settings)
    assert platform.node() not in written and str(Path.home()) not in written


@pytest.mark.parametrize(
    ("kind", "size", "count"), [("diagonal", 64, 100), ("one token", 64, 6), ("float32 alone", 64, 6)]
)
@pytest.mark.parametrize("confidence", [1 - 1e-6, 0.5])
def test_float32_is_certified_truly_where_singular_values_nearly_coincide(kind, size, count, confidence):
    row = near_degenerate.runs(kind, size, count, confidence)
    assert row["runs"] == count and row["violated"] + row["violated_open"] <= near_degenerate.allowed(confidence, count)
    if kind != "float32 alone":
        assert row["converged"] == count and row["widest"] <= 1.0003
    if confidence > 0.5:  # what float32 cannot prove is seen: it goes on, or has not converged
        assert row["doubled"] + (count - row["converged"]) > 0


def test_ten_thousand_runs_are_planned_and_bounds_below_the_truth_are_counted(monkeypatch):
    planned = near_degenerate.units().values()
    assert sum(given[2] for given in planned if given[3] == near_degenerate.SURE) == 10_000
    given = [(1.0, 1, 3, 0, 1.01), (1.0, 0, 3, 0, 1.01), (1.02, 1, 3, 1, 1.01), (1.01 * (1 - 1e-6), 1, 3, 0, 1.01)]
    monkeypatch.setattr(near_degenerate, "diagonal", lambda *_: given)
    row = near_degenerate.runs("diagonal", 64, 4, 0.5)
    assert (row["violated"], row["violated_open"], row["converged"], row["doubled"]) == (1, 1, 3, 1)
    assert row["widest"] == pytest.approx(1.02 / 1.01) and row["widest_open"] == pytest.approx(1 / 1.01)


@pytest.fixture(scope="module")
def wide():
    """Three sequences of a random layer with more unknowns than the dense method takes."""
    generator = torch.Generator().manual_seed(8)
    given = [torch.randn(2, *shape, generator=generator, dtype=torch.float64) for shape in 3 * [(5, 10)] + [(10, 5)]]
    attention, x = Attention(*given), torch.randn(3, 12, 10, generator=generator, dtype=torch.float64)
    return attention, x, local_lipschitz(attention, x, method="dense").value


def test_needed_products_are_those_of_the_best_quotient_over_the_krylov_space(wide):
    """Rayleigh quotients over span(v, Av, ...), by the dense matrix and a QR of its powers, and no Lanczos."""
    attention, x, truth = wide
    expected = []
    for sequence, value in zip(x, truth, strict=True):
        dense = AttentionJacobian(attention, sequence).dense()
        gram = dense.mT @ dense / value**2
        basis = start_vectors(1, len(gram), seed=0, dtype=torch.float64, device="cpu").T
        while True:
            best = torch.linalg.eigvalsh(basis.mT @ gram @ basis)[-1].sqrt()
            if best >= 1 - 1e-4:
                break
            basis = torch.linalg.qr(torch.cat([basis, gram @ basis[:, -1:]], 1))[0]
        expected.append(basis.shape[1])
    found = limit.needed(attention, x, truth)
    assert found["estimate"] == np.mean(expected) and len(set(expected)) > 1
    assert found["estimate"] <= found["certified 0.99"] <= found["certified 1-1e-6"]


@pytest.mark.parametrize("mode", ["certified 0.99", "certified 1-1e-6"])
def test_no_certified_solve_takes_fewer_products_than_are_needed(wide, mode):
    attention, x, truth = wide
    taken = ours.solve(attention, x, **ours.OURS[mode]).steps.double().mean().item()
    assert limit.needed(attention, x, truth)[mode] <= taken < 2 * limit.needed(attention, x, truth)[mode]


def test_the_bound_in_a_ball_is_measured_with_or_without_its_peer(monkeypatch):
    attention, x = nearby.case(2, 8, 5)
    assert torch.allclose(nearby.Plain(attention)(x[None])[0], attention(x).flatten(), atol=1e-12)
    monkeypatch.setattr(nearby, "installed", lambda: None)
    alone = nearby.measure(1, 8, 4, 0.01)
    assert alone["first_order"] * 0.99 < alone["attack"] <= alone["bound"] <= 1.05 * alone["attack"]
    assert math.isnan(alone["lirpa"]) and math.isnan(alone["lirpa_seconds"])


def test_the_readme_compares_tools_by_the_stored_tables():
    """No page glues its numbers into README.md: each range there is that of a table."""
    said = " ".join((Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8").split())
    compare, ball, figure = (results.load(f"bench-{name}") for name in ("compare", "nearby", "workload"))
    seconds = compare.pivot(index=["layer", "length"], columns="method", values="seconds")
    plain, closed = (seconds[name] / seconds["certified 1-1e-6"] for name in ("scipy svds", "scipy svds, closed form"))
    released = workload.RELEASED
    trained = figure[(figure.layer != "gpt2r:6") & figure.method.isin([released, "certified 1-1e-6"])]
    total = trained.groupby(["method", "layer"])[["seconds", "missed", "count"]].sum()
    slower = total.seconds[released] / total.seconds["certified 1-1e-6"]
    wider, longer = ball.lirpa / ball.bound, ball.lirpa_seconds / ball.seconds
    assert (len(seconds), len(ball), len(slower)) == (6, 9, 4)
    assert f"{plain.min():.1f} to {plain.max():.1f} with autodiff" in said
    assert f"{closed.min():.1f} to {closed.max():.1f} with our products" in said
    assert f"{wider.min():.1f} to {wider.max():.0f} times those of" in said
    assert f"| yes | {longer.min():.1f} to {longer.max():.1f} |" in said
    assert f"mended, {slower.min():.1f} to {slower.max():.0f} (four layers)" in said
    missed, count = total.loc[released, ["missed", "count"]].sum().astype(int)
    assert (
        f"{missed} of {count} constants" in said
        and results.provenance("bench-nearby")["settings"]["auto_LiRPA"] == "0.3"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["limit", "--layers", "mini:6"],
        ["workload", "--corpus", "nope", "--quick"],
        ["compare", "--count", "-1"],
        ["long", "--solve", "8", "nowhere"],
    ],
    ids=" ".join,
)
def test_what_a_benchmark_cannot_do_is_one_sentence(words, results_folder, said, monkeypatch):
    name, *options = words
    benchmark = import_module(f"lab.benchmarks.{name}")
    monkeypatch.setattr("sys.argv", [benchmark.__file__])
    door = SimpleNamespace(main=lambda words: machine.enter(lambda: benchmark.main(words)))
    code, _, error = said(door, *options)
    assert code in (1, 2) and len(error.strip().splitlines()) == 1
    assert error.startswith(f"python -m lab bench {name}: ") and not list(results_folder.iterdir())


def test_a_row_of_the_workload_counts_what_is_off_in_either_direction():
    truth = np.array([1.0, 2.0, 4.0])
    answer = truth * [1, 1, 1 - 2e-4], np.array([3, 4, 5]), np.array([True, True, False]), truth * [1.1, 0.9, 1.1]
    row = workload.row("mini:0", 8, "certified 0.99", answer, {"seconds": 1.0}, truth)
    assert row["error"] == pytest.approx(2e-4) and (row["missed"], row["above_upper"], row["unconverged"]) == (1, 1, 1)


def test_the_ratio_is_of_summed_seconds_and_low_with_the_slowest_repeats():
    rows = {"layer": "mini:0", "products": 9.0, "missed": 0, "count": 2, "error": 0.0}
    seconds = {workload.RELEASED: (10.0, 10.0, 10.0), "estimate": (1.0, 0.5, 2.0)}  # median, fastest, slowest
    table = pd.DataFrame(
        {**rows, "method": method, "seconds": turns * middle, "fastest": turns * least, "slowest": turns * most}
        for method, (middle, least, most) in seconds.items()
        for turns in (1, 2)
    )
    found = workload.summary(table).loc["mini:0", "estimate"]
    assert (found.ratio, found.low, found.high) == (10, 5, 20)


def test_the_limit_of_a_product_is_the_best_product_that_is_float32():
    rates = {"part": ["gemm", "gemm", "product"], "rate": [100.0, 200.0, 50.0], "error": [1e-7, 1e-3, np.nan]}
    assert products.with_share(pd.DataFrame(rates)).share.tolist()[-1] == 0.5
    assert products.flops(20, 6) == 8 * products.flops(10, 3) == 8 * 16 * 10 * 3 * (10 + 3)


def test_seconds_are_a_median_and_what_lacks_an_option_is_a_trial(results_folder, monkeypatch):
    assert machine.spread([8.0, 1.0, 3.0]) == {"seconds": 3.0, "fastest": 1.0, "slowest": 8.0}
    monkeypatch.setattr(ours, "left_out", lambda *tables: ["confidence"])
    given = SimpleNamespace(quick=False, again=False)
    machine.make("seconds", {}, given, {"one": lambda: [{"seconds": 1.0}]}, "turn")
    assert results.names() == ["bench-seconds-trial"]


def test_a_miss_is_counted_by_its_size_and_a_bound_below_the_truth_by_its_start(monkeypatch):
    def solve(f, x, *, seed, **options):
        upper = torch.tensor([0.9 if seed % 2 else 1.1] * len(true))
        return SimpleNamespace(value=found, upper=upper, converged=found > 0, steps=0 * found + 3)

    true, found = torch.ones(3).double(), torch.tensor([1.0, 1 - 1e-3, 1.0])
    monkeypatch.setattr(ours, "solve", solve)
    monkeypatch.setattr(misconvergence, "cases", lambda *given: [(1, None, None, true)])
    rows = {row["mode"]: row for row in misconvergence.compared("random", 0, 3, "")}
    assert all((row["inputs"], row["missed"], row["unconverged"]) == (3, 1, 0) for row in rows.values())
    assert [row["above_upper"] for row in rows.values()] == [0, 3, 3]  # an estimate has no bound
    true, found = true[:1], found[:1]
    [row] = misconvergence.coverage("close cluster", 0, 5)
    assert (row["inputs"], row["above_upper"], row["products"]) == (5, 2, 3)


def test_few_bounds_below_the_truth_are_likely_at_a_high_confidence():
    assert near_degenerate.allowed(1 - 1e-6, 10_000) == 1 and 1000 < near_degenerate.allowed(0.5, 2000) < 1100
