"""Measurements over a text: rows, resumption after kill -9, re-measurement, bad input."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
import torch
from hub import tiny_bert

from lab import cli, experiments, results, training
from lab.experiments import real_text
from lab.statistics import layer_growth
from lipnb import lipschitz
from lipscan import corpora, models
from lipscan.recording import Unit


@pytest.fixture(scope="module")
def minilm():
    return models.load("minilm")


COMMAND = [sys.executable, "-m", "lab", "tables", "real-text-embedded", "--lengths", "2,5,9,12,16", "--count", "2"]


def rows_of(length, count, layer=0, **options):
    return pd.DataFrame(real_text.length_rows("minilm", False, layer, length, count=count, **options))


def test_one_row_for_each_window(minilm):
    table = rows_of(6, 2, layer=1)
    assert list(table.length) == [6, 6] and list(table.window) == [0, 1] and table.text.nunique() == 2
    assert table.converged.all() and (table.lipschitz > 0).all() and (table.mean_radius <= table.radius).all()
    row = table.iloc[-1]
    tokens = minilm.token_ids(corpora.read("python_reference"))[6:12][None]
    x = minilm.activations(tokens, 1)
    assert abs(lipschitz.local_lipschitz(minilm.attention(1), x).value.item() / row.lipschitz - 1) < 1e-4
    assert row.radius == pytest.approx(x.norm(dim=-1).max().item(), rel=1e-5)


def test_rows_are_measured_again_and_a_false_row_is_seen():
    table = pd.concat([rows_of(4, 3), rows_of(8, 3)])

    def measured(row):
        now = rows_of(row["length"], 3).iloc[row["window"]]
        return None if now.text != row["text"] else {name: now[name] for name in ("lipschitz", "released")}

    again = experiments.remeasure(table, measured, rows=6)
    assert len(again) == 6 and again["lipschitz difference"].max() < 1e-5
    assert again["released difference"].max() < 1e-5
    assert len(experiments.remeasure(table, measured, rows=2)) == 2
    false = experiments.remeasure(table.assign(lipschitz=1.01 * table.lipschitz), measured)
    assert false["lipschitz difference"].max() > 5e-3
    with pytest.raises(ValueError, match="same edition"):
        experiments.remeasure(table.assign(text="other"), measured)


def test_rows_that_belong_together_are_measured_together():
    table = pd.DataFrame({"place": list("aabbcc"), "value": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]})

    def again(row):
        return None if row["value"] == 4 else {"value": 2 * row["value"]}

    found = experiments.remeasure(table, again, rows=3, by=["place"])
    assert sorted(found.place) == list("aacc") and (found["value again"] == 2 * found.value).all()
    assert (found["value difference"] == 1).all() and len(experiments.remeasure(table, again, rows=2)) == 2


def test_a_model_that_is_not_at_hand_is_said_before_anything_is_measured(results_folder, monkeypatch):
    monkeypatch.setattr(real_text, "PANELS", (*real_text.PANELS, ({"name": "no/such-model"}, (0,))))
    monkeypatch.setattr(real_text, "local_lipschitz", None)  # would fail if it were called
    with pytest.raises(FileNotFoundError, match="no/such-model"):
        experiments.make(["real-text-embedded"], count=2, progress=False)
    assert results.names() == []


def test_a_run_killed_in_the_middle_continues_and_ends_the_same(tmp_path, monkeypatch):
    """kill -9 at a moment when some rows are there and some are not; then the same command again."""

    def run_here(folder):
        monkeypatch.setenv("LIPNB_RESULTS", str(tmp_path / folder))
        assert cli.main(COMMAND[3:]) == 0

    run_here("undisturbed")
    partial = tmp_path / "killed" / "real-text-embedded.partial.jsonl"
    killed = {**os.environ, "LIPNB_RESULTS": str(tmp_path / "killed")}
    with subprocess.Popen(COMMAND, env=killed, stderr=subprocess.DEVNULL) as run:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not (partial.exists() and partial.read_bytes().count(b"\n") >= 4):
            time.sleep(0.005)
        run.send_signal(signal.SIGKILL)
    saved = partial.read_bytes()
    whole = saved[: saved.rfind(b"\n") + 1]
    assert 4 <= whole.count(b"\n") < 16, "the run was not killed in its middle"
    run_here("killed")
    files = [tmp_path / folder / "real-text-embedded.csv" for folder in ("undisturbed", "killed")]
    first, second = tables = [pd.read_csv(file) for file in files]
    assert len(first) == 3 * 5 * 2
    # each process takes the faster of two float32 routes, so rounding may differ, and with it the residual
    exact = [name for name in first if name not in ("lipschitz", "released", "residual", "steps")]
    pd.testing.assert_frame_equal(first[exact], second[exact])
    for name in ("lipschitz", "released"):
        assert np.allclose(*(table[name] for table in tables), rtol=1e-4)
    # what was there before the kill is in the table to the letter
    kept = [row for line in whole.splitlines()[1:] for row in json.loads(line)["rows"]]
    pd.testing.assert_frame_equal(
        pd.DataFrame(kept)[["lipschitz", "residual", "steps"]],
        second[["lipschitz", "residual", "steps"]].head(len(kept)),
        rtol=1e-5,
    )


def test_finished_units_are_not_measured_twice(results_folder):
    calls = []

    def table(broken):
        def unit(key):
            def rows():
                if key == broken:
                    raise RuntimeError("out of power")
                calls.append(key)
                return [{"key": key, "number": i} for i in range(2)]

            return Unit(key, rows, 2)

        return experiments.Table("small", lambda: ({"a": 1}, [unit("first"), unit("second")]))

    with pytest.raises(RuntimeError, match="out of power"):
        experiments.make([table("second")], progress=False)
    made = experiments.make([table(None)], progress=False)["small"]
    assert calls == ["first", "second"] and list(made.number) == [0, 1, 0, 1]
    pd.testing.assert_frame_equal(made, results.load("small"))
    with pytest.raises(ValueError, match="no table to make here has an option 'count'"):
        experiments.make([table(None)], count=3)


def test_units_that_are_asked_for_no_more_are_dropped(results_folder):
    """The partial file of a run that was stopped may hold some: the code has changed since."""

    def stop():
        raise RuntimeError("out of power")

    for units in ([Unit("gone", lambda: [{"n": 1}]), Unit("kept", stop)], [Unit("kept", lambda: [{"n": 2}])]):
        with suppress(RuntimeError):
            made = experiments.make([experiments.Table("small", lambda units=units: ({}, units))], progress=False)
    assert list(made["small"].n) == list(results.load("small").n) == [2]


def test_a_table_that_another_run_has_made_meanwhile_is_not_made_again(results_folder):
    calls = []

    def unit(who):
        return Unit("one", lambda: calls.append(who) or [{"who": who}])

    def prepare():
        results.make("small", {}, [unit("other")], progress=False)
        return {}, [unit("mine")]

    made = experiments.make([experiments.Table("small", prepare)], progress=False)["small"]
    assert calls == ["other"] and list(made.who) == ["other"] and not list(results_folder.glob("*.partial.jsonl"))
    made = experiments.make([experiments.Table("small", prepare)], progress=False)["small"]  # there before: anew
    assert calls == ["other", "other", "mine"] and list(made.who) == ["mine"]


def test_the_released_quantity_stands_beside_the_defined_one(minilm):
    table = rows_of(5, 2, layer=2)
    f = minilm.attention(2).to(dtype=torch.float64)
    x = minilm.activations(minilm.token_ids(corpora.read("python_reference"))[:10].view(2, 5), 2).double()
    for row, tokens in zip(table.itertuples(), x, strict=True):
        J = torch.func.jacrev(f)(tokens).reshape(tokens.numel(), -1)
        assert row.lipschitz == pytest.approx(torch.linalg.matrix_norm(J, 2).item(), rel=1e-4)
        assert row.released == pytest.approx((J.T @ f(tokens).flatten()).norm().sqrt().item(), rel=1e-4)


def test_tables_of_a_model_of_ones_own(tmp_path, results_folder, monkeypatch):
    """Every layer, with and without mask as the model allows, under the model's name and never its path."""
    text = "the cat sat on the mat and the dog sat on the log; " * 60
    sizes = {"vocabulary": 300, "positions": 16, "width": 16, "layers": 2, "heads": 2}
    training.make_gpt2_mini(
        folder=tmp_path / "small",
        table="curve",
        steps=1,
        sizes=sizes,
        batch=1,
        evaluate_every=1,
        precision="float32",
        texts={"cats": text},
        progress=False,
    )
    monkeypatch.setattr(corpora, "read", lambda name: text)
    tables = experiments.of_model(tmp_path / "small")
    assert [table.name for table in tables] == ["atlas-small", "released-map-small"]
    made = experiments.make(tables, lengths=(8, 16), count=2, progress=False)
    assert len(made["released-map-small"]) == 2 * 2 * 2 and made["released-map-small"].pre_norm.all()
    made = made["atlas-small"]
    assert set(made.layer) == {0, 1} and made.masked.all() and set(made.model) == {"small"}
    assert len(made) == 5 * 2 * 2 * 2 and made.converged.all() and (made.released > 0).all()
    settings = results.provenance("atlas-small")["settings"]
    assert settings["model"] == "small" and settings["lengths"] == [8, 16]
    assert str(tmp_path) not in (results_folder / "atlas-small.json").read_text()
    tiny_bert(tmp_path / "tiny")
    assert cli.main(["tables", "--model", str(tmp_path / "tiny"), "--lengths", "8,16", "--count", "2"]) == 0
    shown = layer_growth.of_other_models().set_index("map")
    assert shown.layers.to_dict() == {"small": 2, "tiny": 2, "tiny-masked": 2}
    assert shown["sub-layer"].str.fullmatch("[012] of 2").all()
    masked = results.load("released-map-tiny-masked")
    assert masked.masked.all() and not masked.pre_norm.any() and not results.load("atlas-tiny").masked.any()


def test_the_command_speaks_plainly(results_folder, capsys, monkeypatch):
    assert cli.main(["tables", "nonsense"]) == 2
    assert "there is no table 'nonsense': choose from adversarial," in capsys.readouterr().err
    assert cli.main(["tables", "real-text-embedded", "--lengths", "2", "--count", "1000000"]) == 1
    assert "the text has" in capsys.readouterr().err
    with monkeypatch.context() as patched:
        patched.setattr(results, "provenance", lambda name: {"seconds": 1.0})
        for settled, said in (([True, False], "1 converged (the others are lower"), ([True, True], "2 converged, mea")):
            patched.setattr(
                experiments, "make", lambda *_, done=settled, **__: {"some": pd.DataFrame({"converged": done})}
            )
            assert cli.main(["tables", "real-text-embedded"]) == 0 and f"2 rows, {said}" in capsys.readouterr().out
    (results_folder / "file").write_text("")
    monkeypatch.setenv("LIPNB_RESULTS", str(results_folder / "file"))
    assert cli.main(["tables", "real-text-embedded"]) == 1
    assert "cannot be written" in capsys.readouterr().err
    for arguments, said in (
        (["--help"], "--again"),
        (["--lengths", "2,x"], "such as 2,8,32"),
        (["--lengths", "0"], "such as 2,8,32"),
    ):
        with pytest.raises(SystemExit):
            cli.main(["tables", *arguments])
        assert said in "".join(capsys.readouterr())


def test_bad_input_is_said_before_anything_is_measured(monkeypatch):
    monkeypatch.setattr(real_text, "local_lipschitz", None)
    for options, error, said in (
        ({"corpus": "no corpus"}, FileNotFoundError, "was not found"),
        ({"lengths": ()}, ValueError, "lengths is empty"),
        ({"lengths": (2, 400), "count": 1000}, ValueError, "the text has"),
    ):
        with pytest.raises(error, match=said):
            experiments.TABLES["real-text-embedded"].work(**options)
