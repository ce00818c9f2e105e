"""A scan of a model: against the dense Jacobian, below every bound, continued when killed, refused when mixed."""

import json
import shutil
import subprocess
import sys
import time
from io import StringIO

import model_types
import needs
import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from hub import WORDS as VOCABULARY
from hub import small_model, write_tokenizer
from scans import BRIEF, QUIET, WORDS, scanned, small

from lipnb.jacobian import AutodiffJacobian
from lipscan import models, scanning
from lipscan.cli import main
from lipscan.scanning import folder, inputs, report, run, terminal
from lipscan.scanning.options import ScanOptions


@pytest.mark.parametrize("name", ["minilm", "gpt2-mini", pytest.param("stories260K", marks=needs.STORIES)])
def test_real_models_against_the_dense_jacobian(tmp_path, text, name):
    """All layers of three pretrained models on a short text: relative 1e-4, every layer self-checked."""
    place = needs.DATA / "models" / name if name == "stories260K" else name
    layers = "all" if name == "stories260K" else "0,3"
    found = scanning.scan(
        place, text, layers=layers, lengths=[3], windows=1, output=tmp_path / "out", upper=False, **QUIET
    )
    assert found.table.passed.all() and found.table.converged.all()
    assert len(found.table) == (5 if layers == "all" else 2)
    model = models.load(place, dtype=torch.float64)
    ids = models.random_windows(model, WORDS, 3, 1)
    for row in found.table.itertuples():
        f, x = model.attention(row.layer), model.activations(ids, row.layer)
        exact = torch.linalg.matrix_norm(AutodiffJacobian(f, x).dense(), 2).item()
        assert abs(row.lipschitz / exact - 1) < 1e-4
        assert row.radius == pytest.approx(x.norm(dim=-1).max().item(), rel=1e-4)
        for column in found.table.filter(like="log10_"):
            assert getattr(row, column) > np.log10(exact), column


@pytest.mark.parametrize("name", ["roberta", "vit", "gpt2", "llama biased"])
def test_every_family_is_scanned_and_every_bound_holds(families, story, tmp_path, name):
    options = {"vit": {"lengths": None}, "gpt2": {"tokenizer": families / "bert"}}.get(name, {})
    found = scanned(families / name, "random" if name == "vit" else story, tmp_path, **options)
    table = found.table
    assert table.passed.all() and table.converged.all() and (table.self_check < 1e-5).all()
    assert (table.leak == 0).all() if found.about["settings"]["masked"] else (table.leak > 1e-6).all()
    bounds = table.filter(like="log10_")
    assert bounds.shape[1] >= 2 and bounds[table.window == 0].notna().all(axis=None)
    assert (bounds.sub(np.log10(table.lipschitz), axis=0).stack().dropna() > -1e-9).all()
    expected = "log10_rotary_upper" if "llama" in name else "log10_general"
    assert set(bounds) & {"log10_general", "log10_rotary_upper"} == {expected}
    certified = table[table.certified.notna()]
    assert len(certified) == len(table) // 2
    assert (certified.certified >= certified.lipschitz * (1 - 1e-9)).all()
    assert (certified.certified_lower <= certified.lipschitz * (1 + 1e-4)).all()


def test_of_a_hybrid_the_layers_with_attention_are_scanned_and_the_others_named(bert, tmp_path, text):
    settings = model_types.small("jamba").to_dict() | {"num_hidden_layers": 5, "vocab_size": len(VOCABULARY)}
    settings |= {"attn_layer_period": 2, "attn_layer_offset": 1}
    small_model(tmp_path / "jamba", "jamba", settings)
    options = {"tokenizer": bert, "dtype": "float32"}
    found = scanned(tmp_path / "jamba", text, tmp_path, close=True, **options)
    assert found.table.passed.all() and set(found.table.layer) == {1, 3} == set(found.heads.layer)
    assert set(found.whole.layer) == {1, 3, -1} and found.table.certified.notna().any()
    said = "Layers 0, 2, 4 of jamba hold no attention: not measured."
    assert said in found.about["settings"]["left_out"] and said in report.html(found)
    with pytest.raises(ValueError, match="layer 0, 2: .* 1, 3"):
        scanned(tmp_path / "jamba", text, tmp_path, layers="0-3", **options)
    small_model(tmp_path / "none", "jamba", settings | {"num_hidden_layers": 1})  # ended in an IndexError
    with pytest.raises(ValueError, match="no layer that holds attention"):
        models.load(tmp_path / "none")


def test_a_rotation_of_two_tables_is_scanned_on_either_side(tmp_path, text):
    tables = {"short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [2.0, 3.0, 4.0, 5.0]}
    rope = {"rope_type": "longrope", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 8, **tables}
    settings = model_types.small("llama").to_dict() | {"vocab_size": len(VOCABULARY), "rope_parameters": rope}
    small_model(tmp_path / "llama", "llama", settings)
    write_tokenizer(tmp_path / "llama")
    found = scanned(tmp_path / "llama", text, tmp_path, close=True, dtype="float32")
    assert found.table.passed.all() and set(found.table.length) == {4, 9} and "hidden" in set(found.whole.part)
    again = scanning.remeasure(found.table, found.about["settings"], tmp_path / "llama", text, rows=4)
    assert (again["lipschitz difference"] < 1e-5).all()


def test_killed_and_started_again_it_continues(bert, tmp_path, text, capsys):
    """kill -9 after the first units: the same command measures what is missing, and gives the undisturbed table."""
    command = ["scan", str(bert), "--text", str(text), "--lengths", "3,5,7", "--dtype", "float64"]
    command += ["--output", str(tmp_path / "out")]
    slow = """import lipscan.scanning.run as r, sys, time
m = r.measure
def slow(*a, **k):
    time.sleep(0.6)
    return m(*a, **k)
r.measure = slow
from lipscan.cli import main
main(sys.argv[1:])"""
    process = subprocess.Popen([sys.executable, "-c", slow, *command], stdout=subprocess.DEVNULL)
    partial = tmp_path / "out" / "scan.partial.jsonl"
    while process.poll() is None and (not partial.exists() or partial.read_text().count("\n") < 4):
        time.sleep(0.02)
    process.kill()
    process.wait()
    done = len(partial.read_text().splitlines()) - 1
    assert 3 <= done < 6
    with partial.open("a") as file:
        file.write('{"unit": "1/7", "rows": [{"lay')  # half a line
    assert main(command) == 0
    said = capsys.readouterr()
    assert "Self-checks passed: 6 of 6" in said.out and "\x1b" not in said.out + said.err
    assert "step/s" in said.err  # progress, in a file too
    assert main(command) == 0 and "nothing was measured again" in (again := capsys.readouterr()).err
    assert again.out == said.out
    alone = scanning.scan(bert, text, lengths=[3, 5, 7], dtype="float64", output=tmp_path / "alone", **QUIET)
    pd.testing.assert_frame_equal(scanning.load(tmp_path / "out").table, alone.table)


def counted(monkeypatch):
    """Layers and lengths that are measured from now on."""
    calls, measure = [], run.measure
    monkeypatch.setattr(run, "measure", lambda *given, **options: calls.append(given[1:]) or measure(*given, **options))
    return calls


def test_a_scan_is_lengthened_and_answers_a_shorter_request(bert, tmp_path, text, monkeypatch, capsys):
    """What is measured is kept, all is as if it had been measured at once, and the close look follows the length."""
    model, calls = small(bert), counted(monkeypatch)
    look = {"upper": False, "progress": True}
    scanned(model, text, tmp_path, layers="0", lengths=[9], **look)
    for asked, new, said in (
        ({"layers": "0", "lengths": [5], "close": True}, [(0, 5)], "lengths 5 and the close look"),
        ({"layers": "0,1", "lengths": [9], "close": True}, [(1, 5), (1, 9)], "layers 1"),
        ({"layers": "0", "lengths": [4], "close": True}, [(0, 4), (1, 4)], "lengths 4. The close look is repeated"),
        ({"layers": "1", "lengths": [5, 9]}, [], None),
    ):
        calls.clear(), capsys.readouterr()
        grown, told = scanned(model, text, tmp_path, **asked, **look), capsys.readouterr().err
        assert calls == new
        assert (f"New in the folder 'out': {said}" if said else "holds more, layers 0,1 and lengths 4,5,9") in told
    monkeypatch.undo()
    once = scanned(model, text, tmp_path / "once", lengths=[4, 5, 9], close=True, upper=False)
    for name in ("table", "summary", "heads", "tokens", "whole"):
        pd.testing.assert_frame_equal(getattr(grown, name), getattr(once, name), check_like=True, rtol=1e-5)
    assert all(grown.about[name] == once.about[name] for name in ("settings", "rows"))
    assert [one["lengths"] for one in grown.about["earlier"]] == [[9], [5, 9], [5, 9]] and "earlier" not in once.about
    assert [one["layers_scanned"] for one in grown.about["earlier"]] == [[0], [0], [0, 1]]


def test_a_longer_scan_that_was_stopped_leaves_the_shorter_one_and_loses_nothing(bert, tmp_path, text, monkeypatch):
    model, calls = small(bert), counted(monkeypatch)
    brief = {"upper": False, "windows": 1}

    def stopped(units):
        with monkeypatch.context() as patched:
            patched.setattr(run, "_in_order", lambda *given: sys.exit("stopped"))
            patched.setattr(run, "_units", lambda *given: {"scan": units_of(*given)["scan"][:units]})
            with pytest.raises(SystemExit):
                scanned(model, text, tmp_path, lengths=[4, 9], **brief)

    units_of = run._units
    stopped(3)  # begun longer; the shorter one is answered from what is there, and keeps the rest
    assert len(scanned(model, text, tmp_path, lengths=[4], **brief).table) == 2 and len(calls) == 3
    assert folder.state(tmp_path / "out").startswith("a finished scan of bert on story.txt at n = 4: 2 rows")
    stopped(3)  # lengthened, and stopped again
    assert set(scanning.load(tmp_path / "out").table.length) == {4} and len(calls) == 3
    assert "that has not ended: it keeps 3 of 4 layers and lengths" in folder.state(tmp_path / "out")
    assert len(scanned(model, text, tmp_path, lengths=[4], **brief).table) == 2 and len(calls) == 3
    assert len(scanned(model, text, tmp_path, lengths=[4, 9], **brief).table) == 4 and len(calls) == 4
    assert not list((tmp_path / "out").glob("*.partial.jsonl"))


def test_a_scan_that_has_not_ended_is_not_mixed_with_another(bert, tmp_path, text, monkeypatch):
    model, where = small(bert), tmp_path / "out"
    look = {"close": True, "lengths": [4], "upper": False}
    with monkeypatch.context() as patched:
        patched.setattr(run, "digest", lambda *given: sys.exit("stopped"))  # before scan.json is written
        with pytest.raises(SystemExit):
            scanned(model, text, tmp_path, **look)
    before = {path.name: path.read_bytes() for path in where.iterdir()}
    assert {"heads.csv", "scan.partial.jsonl"} <= {*before} and "scan.json" not in before
    other = shutil.copytree(bert, tmp_path / "other")
    for new, given, named in ((model, {"windows": 1}, "windows 2, not 1"), (other, {}, "model bert, not other")):
        with pytest.raises(ValueError, match=rf"'out' holds another scan that has not ended \({named}\): name another"):
            scanned(new, text, tmp_path, **look, **given)
    assert {path.name: path.read_bytes() for path in where.iterdir()} == before
    found = scanned(model, text, tmp_path, windows=1, again=True, lengths=[4], upper=False)
    assert set(found.table.window) == {0} and found.heads.empty and not (where / "heads.csv").exists()


def test_a_network_trained_on_but_for_its_attention_is_another(bert, tmp_path, text):
    folder = shutil.copytree(bert, tmp_path / "trained")
    scanned(folder, text, tmp_path, **BRIEF)
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("intermediate.dense.weight"))
    safetensors.torch.save_file({**weights, name: 2 * weights[name]}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"another scan \(weights "):
        scanned(folder, text, tmp_path, **BRIEF)


@pytest.mark.parametrize(("name", "changed"), [("llama", {"rms_norm_eps": 0.5}), ("mistral", {"sliding_window": 2})])
def test_another_configuration_of_the_same_weights_is_another_scan(families, tmp_path, text, name, changed):
    """The folder went on with the old numbers: a digest of the weights alone is the same."""
    folder = shutil.copytree(families / name, tmp_path / name)
    found = scanned(folder, text, tmp_path, **BRIEF)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"transformers_version": "1", "architectures": None}))
    scanned(folder, text, tmp_path, **BRIEF)  # in these nothing is computed
    (folder / "config.json").write_text(json.dumps(settings | changed))
    [(key, value)] = changed.items()
    with pytest.raises(ValueError, match=rf"another scan \(configuration: {key} .*, not {value}\): name "):
        scanned(folder, text, tmp_path, **BRIEF)
    with pytest.raises(ValueError, match="the configuration here differ from"):
        scanning.remeasure(found.table, found.about["settings"], folder, text)


def test_an_entry_that_a_version_of_transformers_lacks_and_another_has_by_default_changes_nothing(
    families, tmp_path, text, monkeypatch
):
    """Versions write more entries into a configuration: the folder of the earlier one read as another scan."""
    folder, where = shutil.copytree(families / "llama", tmp_path / "llama"), tmp_path / "out" / "scan.json"
    scanned(folder, text, tmp_path, **BRIEF)
    calls, about = counted(monkeypatch), json.loads(where.read_text())
    entries, usual = (about["settings"][name] for name in ("config", "config_defaults"))
    assert {"attention_bias", "model_type"} <= {*usual} <= {*entries} and "hidden_size" not in usual
    fewer, more = {key: entries[key] for key in entries if key != "attention_bias"}, entries | {"gate": 2}
    for known, default, said in (
        (fewer, usual, None),
        (more, [*usual, "gate"], None),
        (more, usual, "gate 2, not none"),
        ({key: entries[key] for key in entries if key != "hidden_size"}, usual, "hidden_size none, not 32"),
    ):
        settings = about["settings"] | {"config": known, "config_defaults": default}
        where.write_text(json.dumps(about | {"settings": settings}))
        if said is None:
            assert len(scanned(folder, text, tmp_path, **BRIEF).table) == 2 and not calls
            continue
        with pytest.raises(ValueError, match=rf"another scan \(configuration: {said}\)"):
            scanned(folder, text, tmp_path, **BRIEF)


def test_a_number_changed_in_a_module_in_memory_is_another_scan(families, tmp_path, text):
    model = models.load(families / "llama", dtype=torch.float64)
    scanned(model, text, tmp_path, **BRIEF)
    models.readings(model, torch.tensor([[3, 4, 5, 6, 7]]))
    scanned(model, text, tmp_path, **BRIEF)  # nothing that is changed by use
    model.module.layers[1].input_layernorm.variance_epsilon = 0.5
    with pytest.raises(ValueError, match=r"another scan \(numbers that the modules of the network keep, in this "):
        scanned(model, text, tmp_path, **BRIEF)


def test_remeasure_compares_the_same_text_and_weights_only(bert, tmp_path, text):
    found = scanned(bert, text, tmp_path, windows=1)
    again = scanning.remeasure(found.table, found.about["settings"], bert, text)
    assert len(again) == 2 and (again["lipschitz difference"] < 1e-5).all()
    settings = {**found.about["settings"], "weights_sha256": "0" * 12}
    with pytest.raises(ValueError, match="the weights or the configuration here differ from the table"):
        scanning.remeasure(found.table, settings, bert, text)
    text.write_text(WORDS.replace("rabbit", "queen"))
    with pytest.raises(ValueError, match="another edition"):  # as page 05 takes it on another Python
        scanning.remeasure(found.table, found.about["settings"], bert, text)


def test_a_mask_that_changes_nothing_is_said(bert, families, text):
    for name, own in (("gpt2", True), ("llama biased", True), ("bert", False)):
        asked = run.begin(families / name, text, ScanOptions(lengths=[4], masked=True, tokenizer=bert)).settings
        said = asked.get("left_out", "")
        assert said == (f"{name} is causal by itself: --masked changed nothing." if own else ""), name


def test_weights_that_the_seed_drew_are_no_baseline_of_themselves(tmp_path, text):
    """A network saved as it was drawn stood beside itself, at exactly one times its constant."""
    model = models.load("gpt2-mini", random=True)
    model.weights = "pretrained"
    twin, _ = inputs.Reader(model, {4: torch.tensor([[5, 6, 7, 8]])}).of("random", 4)
    name, own = next(iter(model.module.state_dict().items()))
    assert not torch.equal(twin.module.state_dict()[name], own)


def test_a_block_is_measured_by_automatic_differentiation(bert, tmp_path, text):
    found = scanned(small(bert), text, tmp_path, object="block", lengths=[3], windows=1)
    assert set(found.table.route) == {"autodiff"} and found.table.filter(like="log10_").empty
    model = small(bert)
    ids = models.random_windows(model, WORDS, 3, 1)
    exact = AutodiffJacobian(model.attention(1, "block"), model.activations(ids, 1, "block")).dense()
    assert found.table.lipschitz.iloc[1] == pytest.approx(torch.linalg.matrix_norm(exact, 2).item(), rel=1e-4)
    assert "whole blocks" in report.html(found)


def test_a_network_that_cannot_be_run_at_a_length_leaves_the_others(bert, story, tmp_path, monkeypatch):
    def readings(model, inputs):
        if inputs.shape[1] in lost:
            raise RuntimeError("out of memory")
        return models.readings(model, inputs)

    monkeypatch.setattr("lipscan.scanning.inputs.readings", readings)
    lost = {9}
    out = scanned(small(bert), story, tmp_path, lengths=[5, 9], windows=1, close=True)
    assert out.gaps.gap.tolist() == ["layer 0 at n = 9", "layer 1 at n = 9"] and len(out.table) == 4
    assert out.table.lipschitz.notna().tolist() == [True, False, True, False]
    assert "Self-checks passed: 2 of 4 layers" in report.html(out) and "failed its self-check" not in report.html(out)
    lost = {5, 9}
    out = scanned(small(bert), story, tmp_path, lengths=[5, 9], windows=1, close=True, again=True)
    assert out.table.lipschitz.isna().all() and out.whole.empty and out.heads.empty
    terminal.show(out, file=(printed := StringIO()))
    assert "No layer could be measured" in printed.getvalue() and "out of memory" in printed.getvalue()
