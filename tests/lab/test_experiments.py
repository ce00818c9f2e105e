"""Measurements over a text: rows, resumption after kill -9, re-measurement, bad input."""

from contextlib import suppress

import pandas as pd
import pytest
from hub import tiny_bert

from lab import cli, experiments, results, training
from lab.experiments import real_text
from lab.statistics import layer_growth
from lipnb import lipschitz
from lipscan import corpora
from lipscan.recording import Unit


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
    false = experiments.remeasure(table.assign(lipschitz=1.01 * table.lipschitz), measured)
    assert false["lipschitz difference"].max() > 5e-3


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


def test_the_command_speaks_plainly(results_folder, said, monkeypatch):
    code, _, error = said(cli, "tables", "real-text-embedded", "--lengths", "2", "--count", "1000000")
    assert code == 1 and "the text has" in error
    (results_folder / "file").write_text("")
    monkeypatch.setenv("LIPNB_RESULTS", str(results_folder / "file"))
    code, _, error = said(cli, "tables", "real-text-embedded")
    assert code == 1 and "cannot be written" in error
    monkeypatch.setattr(results, "provenance", lambda name: {"seconds": 1.0})
    for settled, words in (([True, False], "1 converged (the others are lower"), ([True, True], "2 converged, mea")):
        made = {"some": pd.DataFrame({"converged": settled})}
        monkeypatch.setattr(experiments, "make", lambda *_, made=made, **__: made)
        code, out, _ = said(cli, "tables", "real-text-embedded")
        assert code == 0 and f"2 rows, {words}" in out
