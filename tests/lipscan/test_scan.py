"""A scan of a model: against the dense Jacobian, below every bound, continued when killed, reported safely."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import cache
from io import StringIO

import model_types
import needs
import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from cases import normal
from hub import WORDS as VOCABULARY
from hub import small_model, tiny_bert, tiny_gpt2, write_tokenizer
from test_families import families  # noqa: F401, a fixture

from lipnb import Attention, certify
from lipnb.jacobian import AutodiffJacobian
from lipscan import cli, corpora, models, scanning
from lipscan.cli import main
from lipscan.models.loading import layer_count
from lipscan.scanning import catalogue, figures, inputs, measure, report, run, sentences, terminal
from lipscan.scanning.fmt import times
from lipscan.scanning.folder import folder_of, state
from lipscan.scanning.inputs import chosen_layers
from lipscan.scanning.measure import self_check
from lipscan.scanning.options import ScanOptions
from lipscan.scanning.summary import TITLES, closest, first_window, summarise

WORDS = " ".join(["the alice rabbit sat by her sister on the bank and had nothing to do ."] * 60)
QUIET = {"progress": False}


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text(WORDS, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("scan") / "bert")


@cache
def small(folder):
    return models.load(folder, dtype=torch.float64)


def scanned(model, text, folder, **options):
    return scanning.scan(
        model,
        text,
        **{"lengths": [4, 9], "close": False, "output": folder / "out", "dtype": "float64", **QUIET, **options},
    )


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """The text of the scan `finished`."""
    path = tmp_path_factory.mktemp("text") / "story.txt"
    path.write_text(WORDS, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def finished(bert, story, tmp_path_factory):
    """One scan, to look at."""
    return scanned(small(bert), story, tmp_path_factory.mktemp("finished"))


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


@pytest.mark.parametrize("name", ["roberta", "distilbert", "vit", "gpt2", "llama biased"])
def test_every_family_is_scanned_and_every_bound_holds(families, tmp_path, name):  # noqa: F811
    if name == "vit":
        found = scanned(families / name, "random", tmp_path, lengths=None)
    else:
        (tmp_path / "t").write_text(WORDS)
        options = {"tokenizer": families / "bert"} if name == "gpt2" else {}
        found = scanned(families / name, tmp_path / "t", tmp_path, **options)
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
    assert "certified" in report.html(found)


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
    with pytest.raises(ValueError, match="jamba has no attention in layer 0, 2: take 'all', or of 1, 3"):
        scanned(tmp_path / "jamba", text, tmp_path, layers="0-3", **options)
    small_model(tmp_path / "none", "jamba", settings | {"num_hidden_layers": 1})  # ended in an IndexError
    with pytest.raises(ValueError, match="none' has no layer that holds attention: there is nothing to measure"):
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


def test_a_layer_that_is_not_the_networks_is_not_measured(bert, tmp_path, text, monkeypatch):
    model = small(bert)
    attention = type(model).attention

    def wrong(self, layer, object="heads+output", n=None):
        f = attention(self, layer, object, n)
        if layer == 1:
            value = f.value
            value[0, 0] += 0.5
            f = f.replace(value=value)
        return f

    monkeypatch.setattr(type(model), "attention", wrong)
    read = models.readings(model, torch.tensor([[5, 6, 7, 8]]))
    assert self_check(model, 0, read[0])[2]
    found = scanned(model, text, tmp_path)
    assert list(found.summary.passed) == [True, True, False, False]
    assert found.table[found.table.layer == 1].lipschitz.isna().all()
    said = report.html(found)
    assert "Layer 1 at n = 4 failed its self-check" in said and "FAILED" in said
    out = StringIO()
    terminal.show(found, file=out)
    assert out.getvalue().count("FAILED") == 2


def test_a_mask_that_is_not_the_models_is_found(tmp_path):
    model = models.load(tiny_gpt2(tmp_path / "gpt2"), dtype=torch.float64)
    model.masked = False
    error, leak, passed = self_check(model, 1, models.readings(model, torch.tensor([[5, 6, 7, 8]]))[1])
    assert not passed and leak == 0


def test_killed_and_started_again_it_continues(bert, tmp_path, text, capsys):
    """kill -9 after the first units: the same command measures what is missing, and gives the undisturbed table."""
    command = ["scan", str(bert), "--text", str(text), "--lengths", "3,5,7", "--dtype", "float64"]
    command += ["--output", str(tmp_path / "out")]
    slow = (
        "import lipscan.scanning.run as r, time; m = r.measure\n"
        "def slow(*a, **k):\n    time.sleep(0.6)\n    return m(*a, **k)\n"
        "r.measure = slow\nfrom lipscan.cli import main\nimport sys\nsys.exit(main(sys.argv[1:]))"
    )
    process = subprocess.Popen([sys.executable, "-c", slow, *command], stdout=subprocess.DEVNULL)
    partial = tmp_path / "out" / "scan.partial.jsonl"
    end = time.monotonic() + 60
    while (not partial.exists() or len(partial.read_text().splitlines()) < 4) and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = len(partial.read_text().splitlines()) - 1
    assert 3 <= done < 6
    with partial.open("a") as file:
        file.write('{"unit": "1/7", "rows": [{"lay')  # half a line
    assert main(command) == 0
    said = capsys.readouterr()
    assert "6 of 6 layers and lengths passed" in said.out and "\x1b" not in said.out + said.err
    assert "step/s" in said.err  # progress, in a file too
    assert main(command) == 0
    again = capsys.readouterr()
    assert again.out == said.out and "held this scan already: nothing was measured again" in again.err
    alone = scanning.scan(bert, text, lengths=[3, 5, 7], dtype="float64", output=tmp_path / "alone", **QUIET)
    pd.testing.assert_frame_equal(scanning.load(tmp_path / "out").table, alone.table)
    birth = json.loads((tmp_path / "out" / "scan.json").read_text())
    assert birth["rows"] == 12 and len(birth["settings"]["text_sha256"]) == 64
    assert birth["settings"]["text"] == "story.txt"


def test_stopped_by_ctrl_c_it_says_what_is_kept_and_status_does(bert, tmp_path, text, capsys, monkeypatch):
    command = ["scan", str(bert), "--text", str(text), "--lengths", "3,5", "--no-close", "--no-upper"]
    command += ["--output", str(tmp_path / "out")]
    calls = []

    def stopped(*given, **options):
        calls.append(given)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return measure.measure(*given, **options)

    monkeypatch.setattr("lipscan.scanning.run.measure", stopped)
    monkeypatch.chdir(tmp_path)
    assert main(command) == 130
    kept = "a scan of bert on story.txt at n = 3, 5 that has not ended: it keeps 3 of 4 layers and lengths. "
    assert capsys.readouterr().err.endswith(
        f"lipnb: stopped; {tmp_path / 'out'} holds {kept}The same command goes on.\n"
    )
    assert main(["status", "out"]) == 0 and f"out: {kept}" in capsys.readouterr().out
    with (tmp_path / "out" / "scan.partial.jsonl").open("a") as file:
        file.write('{"unit": "1/5", "rows": [{"lay}')  # half a line
    assert main(["status", "out"]) == 0 and "3 of 4" in capsys.readouterr().out
    assert main(command) == 0 and len(calls) == 5
    capsys.readouterr()
    assert main(["status", "out"]) == 0
    done = "out: a finished scan of bert on story.txt at n = 3, 5: 4 rows in summary.csv. report.html shows it.\n"
    assert capsys.readouterr().out == done
    (tmp_path / "out" / "report.html").unlink()
    assert main(["status", "out"]) == 0
    assert capsys.readouterr().out.endswith("summary.csv. No report.html: lipnb scan out writes it.\n")
    assert main(["scan", "out"]) == 0 and (tmp_path / "out" / "report.html").is_file()
    capsys.readouterr()
    assert main(["status", str(bert)]) == 0 and "a model, not the folder of a sweep or scan" in capsys.readouterr().out
    monkeypatch.setattr(
        "lipscan.scanning.run.begin", lambda *given, **options: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    assert main(["scan", str(bert), "--text", str(text), "--output", str(tmp_path / "new")]) == 130
    assert capsys.readouterr().err == "lipnb: stopped; nothing was measured yet\n"


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_a_finished_scan_is_not_measured_again(families, tmp_path, text, monkeypatch, name):  # noqa: F811
    model = small(families / name)
    first = scanned(model, text, tmp_path)
    monkeypatch.setattr("lipscan.scanning.run.measure", lambda *a, **k: pytest.fail("measured again"))
    (tmp_path / "out" / "SHA256SUMS").unlink()  # as after a kill -9 before the last file
    pd.testing.assert_frame_equal(scanned(model, text, tmp_path).table, first.table)
    assert len(pd.read_csv(tmp_path / "out" / "summary.csv")) == len(first.summary)
    another = r"'out' holds another scan \(lengths 4,9, not 4\): name another folder with --output, or measure anew "
    with pytest.raises(ValueError, match=f"{another}with --again"):
        scanned(model, text, tmp_path, lengths=[4])
    monkeypatch.undo()
    assert len(scanned(model, text, tmp_path, lengths=[4], again=True).table) == 4


@pytest.mark.parametrize("lost", ["SHA256SUMS", "scan.partial.jsonl"])
def test_a_scan_that_has_not_ended_is_not_mixed_with_another(bert, tmp_path, text, monkeypatch, capsys, lost):
    """Without SHA256SUMS another scan went over the first table, or went on without some of its layers."""
    model, folder = small(bert), tmp_path / "out"
    look = {"close": True, "lengths": [4], "upper": False}
    with monkeypatch.context() as patched:
        patched.setattr(run, "heads" if lost == "SHA256SUMS" else "seal", lambda *a, **k: sys.exit("stopped"))
        with pytest.raises(SystemExit):
            scanned(model, text, tmp_path, **look)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".csv", ".json")}
    assert "scan.csv" in before and not (folder / lost).exists()
    for other, named in (({"layers": "0"}, "layers 0,1, not 0"), ({"windows": 1}, "windows 2, not 1")):
        with pytest.raises(ValueError, match=rf"'out' holds another scan that has not ended \({named}\): name ano"):
            scanned(model, text, tmp_path, **look, **other)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".csv", ".json")} == before
    found = scanned(model, text, tmp_path, layers="0", again=True, lengths=[4], upper=False)
    assert set(found.table.layer) == {0} and found.heads.empty and not (folder / "heads.csv").exists()
    other = shutil.copytree(bert, tmp_path / "other")
    with pytest.raises(ValueError, match=r"holds another scan \(model bert, not other\)"):
        scanned(other, text, tmp_path, **look)


def test_status_of_a_scan_at_work_does_not_send_for_its_command(bert, tmp_path, text, monkeypatch):
    said = []
    monkeypatch.setattr(run, "seal", lambda folder: pytest.fail("sealed"))

    def looked(*given, **options):
        said.append(state(tmp_path / "out"))
        return measure.measure(*given, **options)

    monkeypatch.setattr(run, "measure", looked)
    with pytest.raises(pytest.fail.Exception):
        scanned(bert, text, tmp_path, upper=False)
    assert said[1] == "a scan of bert on story.txt at n = 4, 9 that is running: it keeps 1 of 4 layers and lengths."
    assert state(tmp_path / "out").endswith(
        "that has not ended: it keeps 4 of 4 layers and lengths. The same command goes on."
    )


def test_other_rotary_frequencies_are_not_called_other_weights_alone(families, tmp_path, text):  # noqa: F811
    folder = shutil.copytree(families / "llama", tmp_path / "llama")
    scanned(folder, text, tmp_path, **BRIEF)
    settings = json.loads((folder / "config.json").read_text())
    settings.pop("rope_parameters", None)
    (folder / "config.json").write_text(json.dumps({**settings, "rope_theta": 77.0}))
    with pytest.raises(ValueError, match=r"another scan \(weights and rotary frequencies \(SHA-256\) "):
        scanned(folder, text, tmp_path, **BRIEF)


def test_a_network_trained_on_but_for_its_attention_is_another(bert, tmp_path, text):
    folder = shutil.copytree(bert, tmp_path / "trained")
    scanned(folder, text, tmp_path, **BRIEF)
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("intermediate.dense.weight"))
    safetensors.torch.save_file({**weights, name: 2 * weights[name]}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"another scan \(weights "):
        scanned(folder, text, tmp_path, **BRIEF)


def test_remeasure_compares_the_same_text_and_weights_only(bert, tmp_path, text):
    found = scanned(bert, text, tmp_path, windows=1)
    again = scanning.remeasure(found.table, found.about["settings"], bert, text)
    assert len(again) == 2 and (again["lipschitz difference"] < 1e-5).all()
    text.write_text(WORDS.replace("rabbit", "queen"))
    with pytest.raises(ValueError, match="another edition"):
        scanning.remeasure(found.table, found.about["settings"], bert, text)


@pytest.mark.parametrize("name", ["scan.csv", "summary.csv", "report.html", "scan.json", "against.csv"])
def test_files_of_the_users_own_are_not_written_over(bert, brief, tmp_path, story, capsys, monkeypatch, name):
    """They were, without a word, or the advice was --again, which deleted them."""
    monkeypatch.setattr(run, "begin", lambda *given: pytest.fail("begun"))
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / name).write_text("mine")
    own = f"the folder 'out' holds {name}, which no scan of lipnb wrote: name another folder with --output.\n"
    others = [[str(brief), "--against", str(brief)], [str(brief)], [str(bert), "--against", str(brief)]]
    for given in ([str(bert)], [str(bert), "--again"], *others):
        assert main(["scan", *given, *["--text", str(story)] * (given[0] != str(brief)), "--output", str(folder)]) == 1
        assert capsys.readouterr().err.endswith(own)
    monkeypatch.undo()
    for again in (False, True):
        with pytest.raises(ValueError, match=own.strip()):  # before the model is looked for
            scanned("no such model", story, tmp_path, **BRIEF, again=again)
    with pytest.raises(ValueError, match="output must be the name of a folder, got ' '"):
        scanning.scan("no such model", story, output=" ")
    assert [path.name for path in folder.iterdir()] == [name] and (folder / name).read_text() == "mine"
    (folder / name).unlink()
    (folder / "notes.txt").write_text("mine")
    for _ in range(2):  # a folder of a report alone is lipnb's own
        assert main(["scan", str(brief), "--output", str(folder)]) == 0


BRIEF = {"lengths": [4], "windows": 1, "upper": False}


@pytest.fixture(scope="module")
def brief(bert, story, tmp_path_factory):
    """The folder of the quickest scan."""
    folder = tmp_path_factory.mktemp("brief")
    scanned(small(bert), story, folder, **BRIEF)
    return folder / "out"


@pytest.mark.parametrize(
    ("file", "spoil"),
    [
        ("scan.csv", lambda text: "\n".join(text.splitlines()[:-1])),
        ("scan.json", lambda text: text[:-9]),
        ("scan.json", lambda text: "[]"),
        ("scan.json", lambda text: ""),
        ("scan.csv", None),
    ],
)
def test_a_damaged_scan_is_named_with_the_way_out(bert, brief, tmp_path, text, file, spoil):
    model = small(bert)
    path = shutil.copytree(brief, tmp_path / "out") / file
    path.write_text(spoil(path.read_text())) if spoil else path.unlink()
    why = "it is not the file that the scan wrote" if spoil else "it is missing"
    again = r"measure its model anew \(lipnb scan MODEL --output \S+/out --again; again=True in Python\)"
    with pytest.raises(ValueError, match=rf"{file} in the folder 'out' is damaged \({why}\): {again}"):
        scanned(model, text, tmp_path, **BRIEF)
    assert len(scanned(model, text, tmp_path, **BRIEF, again=True).table) == 2


def test_a_summary_that_was_changed_costs_no_scan(bert, brief, tmp_path, text, monkeypatch):
    """It is made of scan.csv: deleted, it is there again after the same call, which measures nothing."""
    model, path = small(bert), shutil.copytree(brief, tmp_path / "out") / "summary.csv"
    written = path.read_text()
    path.write_text(written + "1")
    with pytest.raises(ValueError, match=r"summary.csv in the folder 'out' is damaged \(.*\): delete it, and the comm"):
        scanned(model, text, tmp_path, **BRIEF)
    path.unlink()
    monkeypatch.setattr(run, "measure", lambda *given, **options: pytest.fail("measured"))
    scanned(model, text, tmp_path, **BRIEF)
    assert path.read_text() == written and scanning.load(tmp_path / "out").gaps.empty


def test_a_full_disk_is_a_sentence_and_what_was_measured_is_kept(bert, tmp_path, text, monkeypatch):
    real, calls = os.fsync, []

    def full(descriptor):
        calls.append(1)
        if len(calls) > 3:
            raise OSError(28, "No space left on device")
        real(descriptor)

    model = small(bert)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(
            OSError,
            match="scan.partial.jsonl cannot be written any more .No space left on device.: "
            "what is measured is kept. Make room",
        ):
            scanned(model, text, tmp_path, upper=False)
    (partial,) = tmp_path.rglob("scan.partial.jsonl")
    kept = partial.read_text().count('"unit"')
    measured = []
    measure = run.measure
    monkeypatch.setattr("lipscan.scanning.run.measure", lambda *a, **k: measured.append(1) or measure(*a, **k))
    assert len(scanned(model, text, tmp_path, upper=False).table) == 8 and len(measured) == 4 - kept < 4


NASTY = "<script>alert(1)</script>&\"'[bold]"


def test_names_and_texts_are_escaped_and_the_report_asks_for_nothing(bert, tmp_path):
    folder = tmp_path / NASTY.replace("/", "_")
    folder.mkdir()
    for file in bert.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    story = tmp_path / (NASTY.replace("/", "_") + ".txt")
    story.write_text(NASTY + WORDS)
    found = scanned(folder, story, tmp_path)
    said = report.write_report(found, tmp_path / "out").read_text(encoding="utf-8")
    assert "<script" not in said and "&lt;script&gt;" in said and "alert(1)&lt;_script&gt;" in said
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!#)|url\((?!#)|@import|<link|<iframe""", said)
    addresses = {address.split("/")[2] for address in re.findall(r"https?://[^\s\"'<)]+", said)}
    assert addresses <= {"www.w3.org", "purl.org", "creativecommons.org"}  # names of formats
    out = StringIO()
    terminal.show(found, file=out)
    assert "[bold]" in out.getvalue()


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("all", [0, 1, 2, 3, 4, 5]), ("0,3,5", [0, 3, 5]), ("0-2,5", [0, 1, 2, 5]), ([2, 1], [1, 2]), (4, [4])],
)
def test_layers_can_be_named(asked, expected):
    assert chosen_layers(asked, 6, "m") == expected


@pytest.mark.parametrize(
    ("log10", "said"),
    [(0.0, "1"), (0.41, "2.6"), (1.0, "10"), (2.53, "340"), (5.08, "1.2e5"), (151.2, "1e151"), (float("nan"), "")],
)
def test_how_many_times(log10, said):
    assert times(log10) == said


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["minilm", "--text", "alise"], 2, "there is no file or corpus 'alise': did you mean alice?"),
        (["minilm", "--text", "nowhere/x.txt"], 1, "the text 'nowhere/x.txt' was not found"),
        (["minilm", "--text", "pictures"], 1, "minilm reads text, and 'pictures' is for a model that reads images"),
        (["minilm", "--lengths", "2"], 1, "take longer windows, or leave special tokens out (--no-special; "),
        (["minilm", "--text", "./folder"], 1, "minilm reads text, not images, and './folder' is no text file: give"),
        (["minilm", "--text", "empty.txt"], 1, "the file empty.txt holds only white space: give a text"),
        (["minilm", "--text", "latin.txt"], 1, "the file latin.txt is not UTF-8 text"),
        (["minilm", "--lengths", "32,1024"], 1, "minilm reads at most 512 tokens, but a length of 1024 was asked for"),
        (["minilm", "--lengths", "0,3"], 2, "different positive whole numbers, such as 2,8,32, got 0,3"),
        (["minilm", "--lengths", "-5,16"], 2, "different positive whole numbers, such as 2,8,32, got -5,16"),
        (["minilm", "--layers", "0-99999999999"], 2, "layers are 'all', numbers or ranges such as 0,3,5 or 0-5; got"),
        (["minilm", "--layers", "-1,2"], 2, "layers are 'all', numbers or ranges such as 0,3,5 or 0-5; got '-1,2'"),
        (["minilm", "--layers", "0-9"], 1, "minilm has layers 0 to 5, but layer 9 was asked for"),
        (["minilm", "--layers", "3-1"], 2, "layers are 'all', numbers or ranges such as 0,3,5 or 0-5; got '3-1'"),
        (["minilm", "--rtol", "nan"], 2, "rtol must lie between 1e-6 and 1, got nan"),
        (["minilm", "--text", "short.txt"], 1, "2 windows of 32 tokens need 60 beside 2 special ones each: take --l"),
        (["minilm", "--windows", "0"], 2, "windows must be 1 or more, got 0"),
        (["minilm", "--seed", "abc"], 2, "argument --seed: invalid int value: 'abc'"),
        (["minilm", "--upper-work", "nan"], 2, "upper_work must be a positive number of operations, got nan"),
        (["minilm", "--output", ""], 2, "argument --output: give the name of a folder; got ''"),
        (["minilm", "--output", "short.txt"], 1, "is a file: name a folder"),
        (["minilm", "--device", "warp"], 1, "the device 'warp' cannot be used here (there is no such kind)"),
        (["minilm", "--objekt", "heads"], 2, "there is no option --objekt: did you mean --object?"),
        (["nobody/nothing"], 1, "could not be found on the Hugging Face hub"),
        (["smolm2"], 1, "config.json and model.safetensors. Did you mean smollm2?"),
        (["minilm", "--against", "nowhere"], 1, "safetensors. OTHER may also be the folder of a scan"),
        (["gpt2-mini", "--tokenizer", "nobody/nothing"], 1, "no tokenizer 'nobody/nothing' could be found"),
    ],
)
def test_what_cannot_be_scanned_is_said_in_a_sentence(tmp_path, monkeypatch, capsys, arguments, code, sentence):
    monkeypatch.chdir(tmp_path)
    texts = {"empty": b" \n", "latin": "café".encode("latin-1"), "short": b"alice and the rabbit"}
    for name, content in texts.items():
        (tmp_path / f"{name}.txt").write_bytes(content)
    (tmp_path / "folder").mkdir()
    try:
        got = main(["scan", *arguments])
    except SystemExit as stop:
        got = stop.code
    said = capsys.readouterr().err
    assert got == code and sentence in said and len(said.strip().splitlines()) == 1
    assert not list(tmp_path.glob("scan-*/scan.*"))


def test_a_name_of_the_hub_is_no_slip(monkeypatch):
    """Without a network gpt2 was answered with "Did you mean gpt2-mini?"."""

    def absent(*given):
        raise FileNotFoundError("could not be found on the hub.")

    monkeypatch.setattr("lipscan.models.loading.layer_count", absent)
    with pytest.raises(FileNotFoundError, match="on the hub.$"):
        cli.scan._check_model("gpt2", False, other=False)


@pytest.mark.parametrize(
    ("tokens", "lengths", "ways"),
    [
        (600, (32, 128, 512), "--lengths 32,128 or --windows 1 or a longer text"),
        (600, (512,), "--lengths 300 or --windows 1 or a longer text"),
        (5, (32,), "--lengths 2 or a longer text"),
        (1, (32,), "a longer text"),
    ],
)
def test_a_text_too_short_names_the_options(tokens, lengths, ways):
    with pytest.raises(ValueError) as said:
        inputs._that_fit(lengths, 2, tokens, 0, by_default=False)
    need = 2 * max(lengths)
    assert str(said.value) == (
        f"the text has {tokens} token{'s' * (tokens > 1)}, but 2 windows of {max(lengths)} tokens need {need}: take "
        f"{ways}."
    )


def test_default_lengths_are_those_that_the_text_allows(bert, tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "DEFAULT", (4, 8, 16))
    short = tmp_path / "short.txt"
    short.write_text("the alice rabbit sat by her sister on the bank")
    found = scanned(bert, short, tmp_path, lengths=None, upper=False)
    tokens = len(models.first_tokens(small(bert), short.read_text(), 99))
    assert 16 <= tokens < 32 and found.about["settings"]["lengths"] == [4, 8]
    need = "2 windows of 16 tokens need 28 beside 2 special ones each"
    sentence = f"Lengths 4,8 only: the text has {tokens} tokens, but {need}."
    out = StringIO()
    terminal.show(found, file=out)
    assert sentence in out.getvalue().splitlines() and sentence in report.html(found)
    monkeypatch.setattr("lipscan.scanning.run.measure", lambda *a, **k: pytest.fail("measured again"))
    assert len(scanned(bert, short, tmp_path, lengths=[4, 8], upper=False).table) == 8  # the same scan, asked otherwise


def test_a_mask_that_changes_nothing_is_said(bert, families, text):  # noqa: F811
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


@pytest.mark.parametrize(
    ("weights", "said"), [("pretrained", "(BERT, unmasked)"), ("random", "(BERT, random, unmasked)")]
)
def test_of_a_folder_it_is_not_said_that_it_is_pretrained(finished, weights, said):
    about = {**finished.about, "settings": {**finished.about["settings"], "weights": weights}}
    out, found = StringIO(), dataclasses.replace(finished, about=about)
    terminal.show(found, file=out)
    assert said in out.getvalue().splitlines()[0] and "pretrained" not in out.getvalue() + report.html(found)


def test_lines_and_bands_break_where_no_layer_was_measured(finished):
    """They ran on, and the proved band with them, over layers between those that were asked for."""
    rows = first_window(finished.table).query("length == 4").assign(certified=9.0, certified_lower=1.0)
    rows = pd.concat([rows.assign(layer=[0, 4]), rows.iloc[:1].assign(layer=5)])
    compared = rows.assign(before=rows.lipschitz, after=rows.lipschitz)
    bounds = {key: TITLES[key] for key in report.PLOTTED}
    drawn = [figures.layers(rows, bounds), figures.radii(rows), figures.baselines(rows)]
    for ax in [*drawn, figures.comparison(compared, ("a", "b"))]:
        lines = [line for line in ax.lines if len(line.get_xdata()) > 3]
        assert len(lines) > 1 and all(np.isnan([*map(float, line.get_ydata()[1:4])]).all() for line in lines)
        assert all(line.get_marker() != "None" for line in lines)  # one layer alone is seen
    band, alone = [one for one in drawn[0].collections if one.get_alpha()]
    assert {tuple(path.get_extents().intervalx) for path in band.get_paths()} == {(0, 0), (4, 5)}
    assert [path.vertices.tolist() for path in alone.get_paths()] == [[[0, 1], [0, 9]]]


def test_figures_draw_what_was_measured_in_the_first_window(finished):
    """Lines were means over windows: outside the proved band, and over ratios of the first window no constants."""
    first = finished.table.query("length == 9 and window == 0")
    rows = first_window(finished.table).query("length == 9")
    constants = finished.table.query("length == 9").groupby("layer").lipschitz
    assert rows.low.tolist() == constants.min().tolist() and rows.high.tolist() == constants.max().tolist()
    assert (rows.low < rows.high).all()
    drawn = {line.get_label(): line.get_ydata() for line in figures.baselines(rows).lines}
    names = {"the model": "lipschitz", "random weights": "random", "shuffled text": "shuffled"}
    names |= {"relative constant": "relative"}
    assert {label: [*drawn[label]] for label in names} == {label: [*first[name]] for label, name in names.items()}
    ax = figures.layers(rows, {"column": "column sums"})
    drawn = {line.get_label(): [*line.get_ydata()] for line in ax.lines}
    assert drawn["column sums"] == pytest.approx([*10**first.log10_column])
    assert [*ax.containers[0].lines[0].get_ydata()] == [*first.lipschitz]
    assert (first.certified_lower <= first.lipschitz * (1 + 1e-9)).all() and (first.lipschitz <= first.certified).all()
    lost = finished.table.assign(lipschitz=finished.table.lipschitz.mask(finished.table.window == 0))
    assert first_window(lost).window.tolist() == [1, 1, 1, 1]  # a gap


def test_the_closest_bound_is_drawn_and_one_that_says_nothing_says_so_everywhere(finished):
    """Column sums came closest and were not drawn; and were called of no use, as their mean over layers was large."""
    logs = {name: 9.0 for name in finished.table if name.startswith("log10_")} | {"log10_column": 1.5}
    table = finished.table.assign(**logs)
    table.loc[table.layer == 1, "log10_column"] = 8.0
    page = report.html(dataclasses.replace(finished, table=table, summary=summarise(table)))
    assert "column sums" in page[page.index("<svg") : page.index("<figcaption>")]
    said = "measured constant in the first window, with its range over windows, and upper bounds on it, logarithmic"
    assert said in page
    [useless] = re.findall("at every layer and length says nothing of practical use here: <strong>(.*?)</strong>", page)
    assert TITLES["general"] in useless and "column sums" not in useless


def test_norms_that_are_all_alike_are_drawn_inside_the_plot(finished):
    alike = np.linspace(24, 24.001, len(finished.summary))
    ax = figures.radii(finished.summary.assign(radius=alike, mean_radius=alike))
    assert ax.get_ylim()[1] > 24.5


def test_text_and_layers_are_checked_before_weights_are_read(bert, tmp_path, text, monkeypatch):
    monkeypatch.setattr(models, "load", lambda *a, **k: pytest.fail("loaded"))
    with pytest.raises(FileNotFoundError, match="the text 'alise' was not found: it is no file, and no corpus of"):
        scanned(bert, "alise", tmp_path)
    for layers, sentence in (("9", "has layers 0 to 1, but layer 9 was asked for"), ("3-1", "layers are 'all'")):
        with pytest.raises(ValueError, match=sentence):
            scanned(bert, text, tmp_path, layers=layers)


def test_what_is_in_memory_is_refused_with_the_way_to_a_folder(tmp_path):
    """A network of transformers was taken for a path, and its text representation for a file name."""
    from transformers import BertConfig, BertModel

    with torch.random.fork_rng():
        network = BertModel(BertConfig(num_hidden_layers=1, hidden_size=8, num_attention_heads=2, intermediate_size=8))
        own = torch.nn.Linear(2, 2)
    save = r"this BertModel is in memory, and a folder is read: save it with model.save_pretrained\('mine'\)"
    for call in (models.load, layer_count, lambda model: scanning.scan(model, output=tmp_path / "out")):
        with pytest.raises(ValueError, match=save):
            call(network)
        with pytest.raises(ValueError, match="measure a module of your own with lipnb.local_lipschitz"):
            call(own)
    tokenizer = models.load("minilm").tokenizer
    with pytest.raises(ValueError, match=r"got a Bert\w+: one in memory is saved with tokenizer.save_pretrained"):
        scanning.scan("minilm", tokenizer=tokenizer, output=tmp_path / "out")
    with pytest.raises(ValueError, match="text must be a text or the name of a file or corpus, got a list"):
        scanning.scan("minilm", ["a", "b"], output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_layer_counts_of_every_family(families):  # noqa: F811
    for folder in families.iterdir():
        assert layer_count(folder) == small(folder).layers, folder.name
    assert layer_count("gpt2", random=True) is None


def test_the_closest_bound_is_chosen_for_each_layer_and_length():
    """One that is not known at some length was left out everywhere, and a far one stood in its place."""
    table = pd.DataFrame({"over_general": [2.0, 3.0, np.nan, 1.0], "over_yudin": [np.nan, 0.5, np.nan, 2.0]})
    found, (yudin, general) = closest(table), (TITLES[key] for key in ("yudin", "general"))
    assert found.title.tolist() == [general, yudin, general] and found.over.tolist() == [2.0, 0.5, 1.0]
    assert found.index.tolist() == [0, 1, 3] and closest(table[["over_yudin"]].iloc[:1]).empty
    [said] = [one.sentence for one in sentences._bounds(table.assign(certified_over=np.nan))]
    assert said == (
        f'Of bounds in closed form "{general}" comes closest in 2 of 3 layers and lengths, "{yudin}" in 1; the closest '
        "is 3.2 to 100 times too high where one is known, in 3 of 4 layers and lengths."
    )
    one_bound = table[["over_yudin"]].iloc[[1, 3]].assign(certified_over=np.nan)
    [said] = [one.sentence for one in sentences._bounds(one_bound)]
    assert said == f'Of bounds in closed form "{yudin}" comes closest, 3.2 to 100 times too high.'


def test_the_table_names_the_closest_bound_of_each_row(finished):
    summary = finished.summary.assign(over_general=[1.0, 3.0, 3.0, 3.0], over_yudin=[2.0, 2.0, np.nan, np.nan])
    others = [name for name in summary if name in {f"over_{key}" for key in TITLES} - {"over_general", "over_yudin"}]
    out, only = StringIO(), StringIO()
    terminal.show(dataclasses.replace(finished, summary=summary.drop(columns=others)), file=out, width=100)
    rows = [line for line in out.getvalue().splitlines() if line.endswith(" ok")]
    named = [re.search(r"x \d+ \w", row.split("certified")[-1][-25:])[0] for row in rows]
    assert named == ["x 10 a", "x 100 b", "x 1000 a", "x 1000 a"]
    assert f"\nbound: a {TITLES['general']}; b {TITLES['yudin']}\n" in out.getvalue()
    terminal.show(
        dataclasses.replace(finished, summary=summary.drop(columns=[*others, "over_yudin"])), file=only, width=100
    )
    assert "bound: a" not in only.getvalue() and "x 1000 a" not in only.getvalue()


def test_the_table_fits_the_terminal_and_a_pipe_gets_lines_of_a_length_to_read(finished, monkeypatch):
    for width, columns, longest in (
        *((None, columns, most) for columns, most in (("", 100), ("70", 70), ("none", 100), ("0", 100), ("160", 100))),
        *((width, "", min(width, 100)) for width in (40, 80, 160)),
    ):
        monkeypatch.setenv("COLUMNS", columns)
        out = StringIO()
        terminal.show(finished, file=out, width=width)
        table = out.getvalue().split(sentences.WHERE[:20])[0].splitlines()
        assert longest - 30 < max(map(len, table)) <= longest and any("constant" in line for line in table)
        assert all(line == line.rstrip() for line in out.getvalue().splitlines())


def test_the_help_and_the_report_say_which_columns_are_logarithms(finished, capsys):
    with pytest.raises(SystemExit):
        main(["scan", "--columns"])
    told = " ".join(capsys.readouterr().out.split())
    assert "over_NAME logarithm to base 10" in told and "each of the same window; a plain ratio" in told
    with pytest.raises(SystemExit):
        main(["scan", "--help"])
    told = capsys.readouterr().out
    assert ".*.partial.lock" in told and all(f"\n  {name} " in told for name in corpora.NAMES)
    found = finished
    said = " ".join(report.html(found).split())
    assert "over_* hold its logarithm to base 10, and certified_over a plain ratio" in said
    row, rows = found.summary.iloc[0], found.table[(found.table.layer == 0) & (found.table.length == 4)]
    assert row.over_general == pytest.approx((rows.log10_general - np.log10(rows.lipschitz)).mean())
    assert row.certified_over == pytest.approx((rows.certified / rows.lipschitz).max())


def test_images_are_read_from_a_folder(families, tmp_path):  # noqa: F811
    Image = pytest.importorskip("PIL.Image")
    for i in range(2):
        Image.new("RGB", (30 + i, 20), (255 * i, 100, 0)).save(tmp_path / f"{i}.png")
    found = scanned(families / "vit", tmp_path, tmp_path, lengths=None)
    assert found.table.passed.all() and set(found.table.length) == {17}
    with pytest.raises(ValueError, match="holds fewer than 3 of them"):
        scanned(families / "vit", tmp_path, tmp_path, lengths=None, windows=3)
    with pytest.raises(ValueError, match="vit reads images, and 'alice' is none, and no folder of them: give a folder"):
        scanned(families / "vit", "alice", tmp_path, lengths=None)
    with pytest.raises(ValueError, match="reads images, each of 17 tokens: leave the lengths out"):
        scanned(families / "vit", "random", tmp_path, lengths=[4])


def test_a_block_is_measured_by_automatic_differentiation(bert, tmp_path, text):
    found = scanned(small(bert), text, tmp_path, object="block", lengths=[3], windows=1)
    assert set(found.table.route) == {"autodiff"} and found.table.filter(like="log10_").empty
    model = small(bert)
    ids = models.random_windows(model, WORDS, 3, 1)
    exact = AutodiffJacobian(model.attention(1, "block"), model.activations(ids, 1, "block")).dense()
    assert found.table.lipschitz.iloc[1] == pytest.approx(torch.linalg.matrix_norm(exact, 2).item(), rel=1e-4)
    assert "whole blocks" in report.html(found)


def test_work_beyond_the_limit_is_left_out_and_said(bert, tmp_path, text):
    found = scanned(small(bert), text, tmp_path, upper_work=1e6)
    per_length = found.table.groupby("length").certified.count()
    assert per_length[4] == 2 and per_length[9] == 0
    assert "No certified bound at n = 9: about 1.9e6 operations each" in report.html(found)
    x = small(bert).activations(models.random_windows(small(bert), WORDS, 4, 2), 0)[0]
    bracket = certify(small(bert).attention(0), x, columns=0)
    assert found.table.certified.iloc[0] == pytest.approx(bracket.upper.item(), rel=1e-5)


def test_two_parts_of_a_model_have_two_folders():
    assert [str(folder_of("my clip", part)) for part in (None, "text")] == ["scan-my-clip", "scan-my-clip-text"]


def test_a_scan_states_no_bound_that_is_not_proved_for_windows():
    x, maps = normal(9, 4), [normal(2, 3, 4, seed=seed) for seed in range(3)]
    whole = Attention(*maps, normal(2, 5, 3, seed=3), query_bias=normal(2, 3, seed=4), masked=True)
    for f, there in ((whole.replace(window=3), False), (whole, True)):
        keys, reasons = catalogue.applicable(f)
        for name in ("mean_field", "mean_field_sharp"):
            assert (name in keys) == there == ("window" not in reasons.get(name, ""))
        assert set(catalogue.evaluate(f, catalogue.prepare(f), x)) == set(keys)
