"""What a scan looks at closely, its windows, baselines and folder: against definitions, and each refusal a sentence."""

import dataclasses
import re
import shutil
from copy import deepcopy
from functools import cache
from hashlib import sha256
from io import StringIO
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from cases import KINDS, every_kind
from hub import tiny_bert, tiny_gpt2

import lipnb
from lab.verification import families, model_types
from lipnb import local_lipschitz
from lipnb.jacobian import AutodiffJacobian
from lipscan import corpora, models, recording, scanning
from lipscan.cli import main
from lipscan.models.network import some_inputs
from lipscan.scanning import figures, fmt, measure, options, planning, report, run, sentences, summary, terminal
from lipscan.scanning.inputs import Reader, shuffled

ROOT = Path(__file__).parents[2]
WORDS = " ".join(["the alice rabbit sat by her sister on the bank and had nothing to do ."] * 60)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("close") / "bert")


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "story.txt"
    path.write_text(WORDS, encoding="utf-8")
    return path


@cache
def small(folder):
    return models.load(folder, dtype=torch.float64)


@pytest.fixture(scope="module")
def found(bert, story, tmp_path_factory):
    """One whole scan."""
    where = tmp_path_factory.mktemp("found") / "out"
    return lipnb.scan(small(bert), story, lengths=[5, 9], output=where, dtype="float64", progress=False), where


def exact(f, x):
    return torch.linalg.matrix_norm(AutodiffJacobian(f, x).dense(), 2).item()


def test_every_column_is_explained(found):
    scan, where = found
    for file, names in summary.COLUMNS.items():
        told = {name.strip() for names in names for name in names.split(",")}
        for column in pd.read_csv(where / file):
            generic = {"log10_NAME": "log10_", "over_NAME": "over_"}
            known = column in told or any(column.startswith(start) for name, start in generic.items() if name in told)
            assert known, (file, column)


def test_the_windows_can_be_read_again_from_the_settings(bert, found):
    settings, model = found[0].about["settings"], small(bert)
    for n in settings["lengths"]:
        ids = models.random_windows(model, WORDS, n, 2)
        assert settings["token_ids"][str(n)] == [" ".join(map(str, window)) for window in ids.tolist()]


def test_a_tower_is_chosen_at_a_terminal_and_progress_in_a_file_is_seldom():
    assert options.ScanOptions(part="vision").loading["part"] == "vision"
    with pytest.raises(ValueError, match="part must be one of text, vision, got 'audio'"):
        options.ScanOptions(part="audio")
    bar = recording.bar(3, "step")
    bar.close()
    assert bar.mininterval >= 1  # standard error is no terminal here


def test_constants_are_those_of_the_network_itself(bert, found):
    scan, _ = found
    model, (n, *_) = small(bert), sorted(set(scan.table.length))
    ids = models.random_windows(model, WORDS, n, 2)
    read = models.readings(model, ids[:1])
    for row in scan.whole.itertuples():
        x = read[max(0, row.layer)].stream
        if row.part == "layer":
            assert row.lipschitz == pytest.approx(exact(read[row.layer].whole, x), rel=2e-3)
    hidden = scan.whole[scan.whole.part == "hidden"].lipschitz.item()
    assert hidden == pytest.approx(exact(models.network.whole_network(model, ids[:1]), read[0].stream), rel=2e-3)
    chain = read[1].whole(read[0].whole(read[0].stream))
    assert torch.allclose(chain, model.module(ids[:1]).last_hidden_state, atol=1e-12)
    for row in scan.table[(scan.table.length == n) & (scan.table.window == 0)].itertuples():
        f, x = model.attention(row.layer), read[row.layer].received
        assert row.relative == pytest.approx(row.lipschitz * (x.norm() / f(x).norm()).item(), rel=1e-4)
        assert row.column == pytest.approx(f.probabilities(x).sum(-2).max().item(), rel=1e-4)


def test_heads_alone_add_up_to_all():
    for kind in KINDS:
        f, x, _ = every_kind(kind)
        if f.output is None:
            alone = [measure.one_head(f, head)(x) for head in range(f.heads)]
            total = sum(alone) if f.joint_norm else torch.cat(alone, -1)
        else:
            total = sum(measure.one_head(f, head)(x) for head in range(f.heads))
        bias = 0 if f.output_bias is None else f.output_bias
        assert torch.allclose(total + bias, f(x), rtol=1e-12, atol=1e-12)


def test_tables_of_heads_and_tokens(bert, found):
    scan, _ = found
    model = small(bert)
    ids = models.random_windows(model, WORDS, 5, 2)[:1]
    x = models.readings(model, ids)[1].received
    f = model.attention(1)
    heads = scan.heads[scan.heads.layer == 1]
    assert len(heads) == 4
    for row in heads.itertuples():
        assert row.lipschitz == pytest.approx(exact(measure.one_head(f, row.head), x), rel=1e-4)
    tokens, norms = scan.tokens[scan.tokens.layer == 1], lipnb.block_norms(f, x[0]).numpy()
    assert tokens.token.tolist() == model.tokenizer.convert_ids_to_tokens(ids[0].tolist())
    others = norms - np.diag(np.diag(norms))
    assert np.allclose(tokens.moves, np.sqrt((others**2).sum(0)), rtol=1e-5)
    assert np.allclose(tokens.moved, np.sqrt((others**2).sum(1)), rtol=1e-5)
    assert tokens.moves_most.tolist() == others.argmax(0).tolist()
    assert np.isclose((tokens.in_steepest**2).sum(), 1, rtol=1e-4)


def test_tokens_of_a_map_without_closed_form_come_from_its_jacobian(tmp_path, monkeypatch):
    """Families by autodiff had empty tables with other columns; a block of attention had none."""
    monkeypatch.setattr("lipscan.models.loading.tried", lambda network, architecture, masked: architecture)
    model_types.written(tmp_path / "starcoder2", "starcoder2")
    model = models.load(tmp_path / "starcoder2", dtype=torch.float64)
    reader, options = Reader(model, {5: torch.tensor([[7, 3, 9, 4, 8]])}), {"rtol": 1e-4, "seed": 0}
    x, f = reader.of("text", 5)[1][1].received, model.attention(1)
    blocks = AutodiffJacobian(f, x[0]).dense().unflatten(0, (5, -1)).unflatten(2, (5, -1))
    norms = torch.linalg.matrix_norm(blocks.movedim(1, 2), 2)
    others = norms - norms.diag().diag()
    rows = pd.DataFrame(measure.tokens(reader, 1, 5, object="heads+output", **options))
    assert [*rows] == [name for names in summary.TOKENS for name in names.split(", ")]
    for name, expected in (("own", norms.diag()), ("moves", others.norm(dim=0)), ("moved", others.norm(dim=1))):
        assert np.allclose(rows[name], expected, rtol=1e-4), name
    top = torch.linalg.svd(AutodiffJacobian(f, x[0]).dense())[2][0].view(5, -1).norm(dim=1)
    assert np.allclose(rows.in_steepest, top, atol=1e-2)
    monkeypatch.setattr(measure, "PAIRS", 0)
    alone = pd.DataFrame(measure.tokens(reader, 1, 5, object="heads+output", **options))
    assert [*alone] == [*rows] and alone[[*measure.MAPPED]].isna().all(axis=None)
    assert alone.in_steepest.equals(rows.in_steepest)
    told = [*sentences._steepest(sentences.steepest(alone))][0].sentence
    most = alone.loc[alone.in_steepest.idxmax()]
    assert told.startswith("Steepest change of layer 1: ") and f"lies on token number {most.place}" in told
    assert f"{100 * most.in_steepest**2:.3g} %" in told and sentences.steepest(rows).empty
    figures.tokens(alone, by="in_steepest")


def test_tokens_of_a_block_are_those_of_the_block(bert):
    model = small(bert)
    reader = Reader(model, {4: torch.tensor([[7, 3, 9, 4]])})
    rows = pd.DataFrame(measure.tokens(reader, 0, 4, object="block", rtol=1e-4, seed=0))
    x = reader.of("text", 4)[1][0].stream[0]
    norms = lipnb.block_norms(model.attention(0, "block"), x)
    assert np.allclose(rows.own, norms.diag(), rtol=1e-5)


def test_baselines_are_what_they_say(bert, found):
    scan, _ = found
    model = small(bert)
    ids = models.random_windows(model, WORDS, 9, 2)[:1]
    mixed = shuffled(ids, (1, 1), 0)
    assert not torch.equal(mixed, ids)
    row = scan.table[(scan.table.length == 9) & (scan.table.layer == 1) & (scan.table.window == 0)].iloc[0]
    x = models.readings(model, mixed)[1].received
    assert row.shuffled == pytest.approx(local_lipschitz(model.attention(1), x).value.item(), rel=1e-4)
    twin = models.random_twin(model, 0)
    x = models.readings(twin, ids)[1].received
    assert row.random == pytest.approx(local_lipschitz(twin.attention(1), x).value.item(), rel=1e-4)
    state = torch.get_rng_state()
    again = models.random_twin(model, 0)
    assert torch.equal(state, torch.get_rng_state()) and torch.equal(twin.attention(0).query, again.attention(0).query)
    assert Reader(twin, {}).baselines == ("shuffled",)


def test_special_tokens_do_not_move():
    for seed in range(4):
        mixed = shuffled(torch.arange(7)[None], (1, 2), seed)[0].tolist()
        assert (mixed[0], mixed[5:]) == (0, [5, 6]) and sorted(mixed) == list(range(7))


def test_one_pass_reads_what_every_layer_receives(bert):
    model = small(bert)
    ids = models.random_windows(model, WORDS, 6, 3)
    for layer, read in enumerate(models.readings(model, ids)):
        assert torch.equal(read.received, model.activations(ids, layer))
        assert torch.equal(read.stream, model.activations(ids, layer, "block"))
        changed = models.answer(model, layer, read, lambda x: x.flip(1))
        assert torch.allclose(changed, model.attention(layer)(read.received.flip(1)), rtol=0, atol=1e-5)
        assert torch.equal(read.given, models.answer(model, layer, read, lambda x: x))


def test_the_whole_network_is_its_layers_one_after_another_at_any_tokens(bert):
    """At embeddings that are not those of the ids, which play no part."""
    model = small(bert)
    ids = models.random_windows(model, WORDS, 6, 1)
    read = models.readings(model, ids)
    x = read[0].stream.flip(1).cos()
    found = models.network.whole_network(model, ids)(x)
    assert torch.allclose(found, read[1].whole(read[0].whole(x)), rtol=0, atol=1e-12)
    assert torch.equal(found, models.network.whole_network(model, ids.flip(1))(x))


def test_windows_are_random_disjoint_and_of_the_text(bert):
    for seed in range(5):
        for special in [True, False]:
            model, letters = small(bert), np.random.default_rng(0).choice(list("abcdefgh"), 20_000)
            text = "".join(f"{letter} " for letter in letters)
            ids = models.random_windows(model, text, 12, 3, seed=seed, special=special)
            bare = ids[:, 1:-1] if special else ids
            assert ids.shape == (3, 12) and ((ids[:, 0] == 2) & (ids[:, -1] == 3)).all() == special
            whole = " ".join(map(str, model.token_ids(text).tolist()))
            places = [whole.index(" ".join(map(str, window.tolist()))) for window in bare]
            assert places == sorted(places) and np.diff(places).min() > len("12 " * bare.shape[1]) / 2
            other, same = (models.random_windows(model, text, 12, 3, seed=s, special=special) for s in (seed + 1, seed))
            assert not torch.equal(ids, other) and torch.equal(ids, same)


def test_windows_of_a_short_text_fill_it_or_are_refused(bert):
    model = small(bert)
    ids = models.random_windows(model, "a b c d e f", 5, 2)
    assert ids[:, 1:-1].flatten().tolist() == model.token_ids("a b c d e f").tolist()
    with pytest.raises(ValueError, match="the text has 6 tokens, but 3 windows of 3 tokens need 9"):
        models.random_windows(model, "a b c d e f", 5, 3)
    with pytest.raises(ValueError, match="no room for text beside 2 special tokens"):
        models.random_windows(model, "a b c d e f", 2, 1)
    with pytest.raises(ValueError, match="a window of 1 token has no room"):
        models.random_windows(model, "a b c d e f", 1, 1)


def test_every_placement_is_as_likely():
    counts = pd.Series([tuple(corpora.disjoint(7, 2, 2, seed)) for seed in range(3000)]).value_counts()
    assert len(counts) == 10 and counts.min() > 220 and counts.max() < 380  # 5 choose 2
    assert corpora.disjoint(4, 2, 2) == [0, 2]
    with pytest.raises(ValueError, match="3 stretches of 2 do not fit into 5"):
        corpora.disjoint(5, 2, 3)


def test_scans_are_compared(bert, story, tmp_path, capsys):
    """A layer with twice its values is higher, the others are not."""
    from safetensors.torch import load_file, save_file

    after = shutil.copytree(bert, tmp_path / "after")
    tensors = load_file(after / "model.safetensors")
    name = next(name for name in tensors if "layer.1.attention.output.dense.weight" in name)
    save_file({**tensors, name: 2 * tensors[name]}, after / "model.safetensors", metadata={"format": "pt"})
    command = ["scan", str(bert), "--text", str(story), "--lengths", "4,6", "--no-upper", "--no-close"]
    command += ["--output", str(tmp_path / "first"), "--dtype", "float64", "--against", str(after)]
    (tmp_path / "here").mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path / "here")
        assert main(command) == 0
    assert not list((tmp_path / "here").iterdir())  # all lies where --output says
    second = tmp_path / "first" / "scan-after"
    said = capsys.readouterr().out
    assert "Of 4 layers and lengths 2 are higher in every window, by more" in said and "Farthest: layer 1" in said
    page = (tmp_path / "first" / "report.html").read_text(encoding="utf-8")
    section = page[page.index('id="against"') : page.index("<h2>Every layer")]
    assert section.count("<svg") == 1 and section.count('<td class="text">higher</td>') == 2
    assert section.count('<td class="main">2</td>') == 2 and "Of 4 layers and lengths 2 are higher" in section
    assert "<title>small against after</title>".replace("small", bert.name) in page
    assert page.index("Farthest: layer 1") < page.index("Of 4 layers and lengths") < page.index('class="tiles"')
    assert said.startswith(f"Below: {bert}. Its comparison with {after} comes last.\n")
    assert 'href="#against"' in page and str(tmp_path) not in page
    table = pd.read_csv(tmp_path / "first" / "against.csv", keep_default_na=False)
    assert table.differs.tolist() == ["", "", "higher", "higher"]
    assert table.ratio.tolist() == pytest.approx([1, 1, 2, 2], rel=1e-4)
    before, other = (scanning.load(folder) for folder in (tmp_path / "first", second))
    assert scanning.compare(other, before).differs.tolist() == ["", "", "lower", "lower"]
    assert summary.unpaired(before, other) == []
    fewer = SimpleNamespace(summary=other.summary[other.summary.layer == 0])
    assert summary.unpaired(before, fewer) == [
        "1 of 2 layers of the first scan have no partner in the other: layers are compared by their number."
    ]
    other.about["settings"]["seed"] = 5
    with pytest.raises(ValueError, match="cannot be compared: seed is 0 in the first and 5 in the second"):
        scanning.compare(before, other)
    with pytest.raises(ValueError, match=r"scans are compared, got 'first': lipscan.scanning.load\(folder\)"):
        before.report(tmp_path / "both.html", against="first")
    assert 'id="against"' not in report.html(before)
    other.about["settings"]["seed"] = 0
    assert 'id="against"' in before.report(tmp_path / "both.html", against=other).read_text(encoding="utf-8")
    unlike = tiny_gpt2(tmp_path / "gpt2")  # without special tokens
    given = ["--text", str(story), "--lengths", "4,6", "--tokenizer", str(bert), "--output", str(tmp_path / "none")]
    assert main(["scan", str(bert), "--against", str(unlike), *given]) == 1
    assert "scans cannot be compared: " in capsys.readouterr().err and not (tmp_path / "none").exists()
    kept = (tmp_path / "first" / "report.html").read_bytes()
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path / "here")
        assert main(["scan", str(tmp_path / "first"), "--against", str(second)]) == 0
    assert "2 are higher" in capsys.readouterr().out  # folders of scans, without the models, which stay as they are
    assert (tmp_path / "first" / "report.html").read_bytes() == kept
    made = tmp_path / "here" / "first-against-scan-after"
    assert {path.name for path in made.iterdir()} == {"against.csv", "report.html"}
    given = [*command[2:4], "--no-upper", "--no-close", "--dtype", "float64", "--output", str(tmp_path / "more")]
    assert main(["scan", str(bert), *given, "--lengths", "4,6,8", "--against", str(second)]) == 0
    told = "after has no lengths 8: measured, but not compared; --lengths 4,6 measures what is compared.\n"
    assert told.strip() in capsys.readouterr().err
    with pytest.MonkeyPatch.context() as patched:  # all was measured, and then there was nothing to compare
        patched.setattr(run, "measure", lambda *given, **options: pytest.fail("measured"))
        given[-1] = str(tmp_path / "none")
        assert main(["scan", str(bert), *given, "--lengths", "8", "--against", str(second)]) == 1
    told = "these scans cannot be compared: lengths are 8 in the first and 4,6 in the second, none in both; scan both "
    assert told in capsys.readouterr().err and not (tmp_path / "none").exists()
    with pytest.raises(ValueError, match="layers are 0,1 in the first and 2 in the second, none in both"):
        summary.check_common(*({"lengths": [4], "layers_scanned": layers} for layers in ([0, 1], [2])))
    third = tmp_path / "third"
    command = ["scan", str(tmp_path / "first"), "--against", str(second), "--output", str(third)]
    for given in (["--lengths", "4"], ["--text", str(story)], ["--no-upper"], ["--again"], ["--dry-run"]):
        assert main([*command, *given]) == 2
        assert "are of a scan to be made: leave them out, or name the model (" in capsys.readouterr().err
    assert main(command) == 0
    assert {path.name for path in third.iterdir()} == {"against.csv", "report.html"}


def test_two_models_of_one_name_have_two_folders(bert, story, tmp_path, monkeypatch, capsys):
    """The second scan, after the first had been measured, was refused by the folder of the first."""
    twin, after = (tiny_bert(tmp_path / "x" / name, num_hidden_layers=1) for name in ("bert", "after"))
    monkeypatch.chdir(tmp_path)
    given = ["--text", str(story), *"--lengths 4 --windows 1 --layers 0 --no-upper --no-close".split()]
    folders = ["scan-bert/scan-bert", "scan-bert-against-bert/scan-bert", "scan-after"]
    for first, second, folder in zip((bert, "scan-bert", bert), (twin, twin, after), folders, strict=True):
        assert main(["scan", str(first), "--against", str(second), *given]) == 0
        assert scanning.load(folder).about["settings"]["model"] == second.name
    assert not (tmp_path / "scan-bert" / "scan-after").exists()  # one that is measured already is found there
    capsys.readouterr()
    assert main(["scan", str(bert), "--against", "scan-bert", *given, "--again"]) == 1
    assert "--again would delete the scan scan-bert, with which" in capsys.readouterr().err
    assert scanning.load("scan-bert").about["settings"]["model"] == bert.name
    shutil.rmtree("scan-bert")
    assert main(["scan", str(bert), "--against", str(after), *given, "--seed", "1"]) == 1
    assert "'scan-after' holds another scan (seed 0, not 1)" in capsys.readouterr().err
    assert not Path("scan-bert").exists()  # refused before anything is measured


SETTINGS = {"text": "a.txt", "text_sha256": "0123456789ab", "special": [[], []], "windows": 2, "object": "heads"}
SETTINGS |= {"seed": 0, "masked": False}


def test_scans_that_cannot_be_compared_are_told_apart_in_words():
    for changed, said in [
        ({"text": "b.txt", "text_sha256": "ba9876543210"}, "the first read a.txt (SHA-256 01234567), the second b.txt"),
        (
            {"special": [["[CLS]"], ["[SEP]"]]},
            "are none in the first and [CLS] ... [SEP] in the second; scan both with",
        ),
        ({"windows": 3}, "the number of windows is 2 in the first and 3 in the second; scan both with one --windows"),
        ({"object": "block"}, "what is measured is heads in the first and block in the second; scan both with one --o"),
        ({"masked": True}, "the second attends to earlier tokens alone, the first to all"),
    ]:
        before, after = (SimpleNamespace(about={"settings": one}) for one in (SETTINGS, SETTINGS | changed))
        with pytest.raises(ValueError) as refused:
            scanning.compare(before, after)
        assert said in str(refused.value) and not re.search(r"\[\[|'|True|_", str(refused.value))


def test_a_difference_is_told_where_every_window_shows_it_beyond_the_solvers_error():
    """Constants known to one percent: of two windows both differ, one each way, or neither by enough."""
    alike = [((0.9, 5), ""), ((1.005, 1.005), ""), ((0.995, 0.995), "")]
    for factors, differs in [((2, 3), "higher"), ((0.5, 0.3), "lower"), *alike]:

        def scan(constants):
            table = pd.DataFrame({"layer": 0, "length": 8, "window": [0, 1], "passed": True, "relative": 1.0})
            table = table.assign(lipschitz=constants, probable=[1.01 * one for one in constants])
            return SimpleNamespace(table=table, about={"settings": dict.fromkeys(summary.SAME)})

        row = scanning.compare(scan((1.0, 7.0)), scan((factors[0], 7.0 * factors[1]))).iloc[0]
        assert row.differs == differs
        said = summary.compared(pd.DataFrame([row]))[0]
        assert said.startswith("Of 1 layers" if differs else "At no layer and length do all windows differ")
        assert row.ratio == pytest.approx(sum(factors) / 2) and row.error == pytest.approx(0.01)


def test_a_dry_run_measures_nothing(bert, story, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["scan", str(bert), "--text", str(story), "--lengths", "4,6", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "Constants: 2 layers at n = 4, 6, 2 windows each and baselines (random, shuffled) of the first: 16." in said
    assert "Roughly" in said and "would shorten it" not in said and list(tmp_path.iterdir()) == []
    monkeypatch.setattr(planning, "LONG", 0)
    monkeypatch.setattr(planning, "_seconds", lambda begun: (600.0, 5400.0))
    given = ["--text", str(story), "--lengths", "4", "--windows", "1", "--layers", "0"]
    assert main(["scan", str(bert), *given, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "Constants: 1 layer at n = 4, 1 window each" in said and "4 heads, 1 map of 4 x 4 tokens, 1 whole" in said
    assert "takes about 100 minutes, most of that the close look: --no-close (close=False in Python) or fewer" in said


def test_a_dry_run_says_what_the_folder_holds(bert, story, tmp_path, capsys, monkeypatch):
    """It planned a whole scan where all of it lay finished, and one that would be refused."""
    monkeypatch.chdir(tmp_path)
    command = ["scan", str(bert), "--text", str(story), "--lengths", "4", "--layers", "0", "--no-upper", "--no-close"]
    assert main(command) == 0
    capsys.readouterr()
    assert main([*command, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("scan-bert holds a finished scan of bert on story.txt at n = 4: 1 row in summary.csv.")
    assert said.endswith("Nothing would be measured again (--again does).\n")
    assert main([*command, "--dry-run", "--again"]) == 0
    assert capsys.readouterr().out.startswith("Constants: 1 layer at n = 4")
    assert main([*command, "--windows", "1", "--dry-run"]) == 1
    assert "holds another scan (windows 2, not 1)" in capsys.readouterr().err
    other = tiny_bert(tmp_path / "other", num_hidden_layers=1)
    assert main([*command, "--against", str(other), "--dry-run"]) == 0  # of two models it says both
    said = capsys.readouterr().out
    assert said.index("Nothing would be measured again") < said.index(f"{other}:") < said.index("Constants: 1 layer")
    elsewhere = [*command, "--layers", "1", "--output", "elsewhere"]
    assert main([*elsewhere, "--against", "scan-bert", "--dry-run"]) == 1
    assert "cannot be compared: layers are 1 in the first and 0 in the second" in capsys.readouterr().err


def test_the_time_of_a_close_look_is_that_of_the_layers_as_often_as_they_are_used(tmp_path, story, monkeypatch):
    """It counted the table of embeddings, which no product meets, and a shared layer once."""
    monkeypatch.setattr(planning, "_speed", lambda: 1e6)  # so slow that operations alone count

    def seconds(folder):
        model = models.load(folder, tokenizer=wordy)
        return planning._seconds(run.begin(model, story, options.ScanOptions(lengths=[8])))[1]

    wordy, sizes = tiny_bert(tmp_path / "bert"), families.SMALL["albert"][0] | {"num_hidden_groups": 1}
    for layers, vocabulary in ((2, 63), (4, 63), (2, 6300)):
        settings = sizes | {"num_hidden_layers": layers, "vocab_size": vocabulary}
        families.written(tmp_path / f"{layers} {vocabulary}", "albert", settings)
    plain = seconds(tmp_path / "2 63")
    assert seconds(tmp_path / "4 63") == pytest.approx(2 * plain, rel=0.01)
    assert seconds(tmp_path / "2 6300") == pytest.approx(plain, rel=1e-9)


class Spelling:
    """A tokenizer of four tokens: GPT's space, SentencePiece's space, the end of a line, and half a character."""

    tokens, texts = ["Ġis", "▁is", "Ċ", "ð"], [" is", "is", "\n", "\ufffd"]

    def convert_ids_to_tokens(self, number):
        return self.tokens[number]

    def decode(self, numbers, clean_up_tokenization_spaces):
        assert not clean_up_tokenization_spaces
        return "".join(self.texts[number] for number in numbers)


def test_tokens_are_shown_as_a_reader_would_write_them(found):
    model, ids = SimpleNamespace(tokenizer=Spelling()), torch.arange(4)[None]
    words = [measure._word(model, ids, place) for place in range(4)]
    assert [word["token"] for word in words] == Spelling.tokens
    assert [word["written"] for word in words] == ["' is'", "' is'", r"'\n'", "'ð'"]
    table = found[0].tokens
    assert table.written.tolist() == [repr(token) for token in table.token]  # words of BERT, through the file


def test_lengths_are_a_text_as_at_the_terminal_or_refused():
    for lengths in ["2,x", "", [2.5], "2,2", (0,), 2.5, object()]:
        assert options.lengths_of("32,128") == options.lengths_of([32, 128]) == [32, 128] and options.lengths_of(7) == [
            7
        ]
        with pytest.raises(ValueError, match="lengths must be different positive whole numbers"):
            options.lengths_of(lengths)


def test_options_of_a_scan_that_are_of_another_kind():
    for given, kind, said in (
        ({"masked": "no"}, ValueError, "masked must be True or False, got 'no'"),
        ({"layers": 1.5}, ValueError, "numbers or ranges such as 0,3,5 or 0-5; got '1.5'"),
        ({"layers": None}, ValueError, "numbers or ranges such as 0,3,5 or 0-5; got 'None'"),
        ({"close": "no"}, ValueError, "close must be True or False, got 'no'"),
        ({"windows": "3"}, TypeError, "windows must be a whole number, got '3'"),
        ({"windows": 2.5}, TypeError, "windows must be a whole number, got 2.5"),
        ({"seed": None}, TypeError, "seed must be a whole number, got None"),
        ({"seed": 10**30}, ValueError, "seed must lie between"),
        ({"rtol": "1e-4"}, TypeError, "rtol must be a number, got '1e-4'"),
        ({"upper_work": True}, TypeError, "upper_work must be a number, got True"),
    ):
        with pytest.raises(kind, match=said):
            options.ScanOptions(**given)
    taken = options.ScanOptions(windows=np.int64(3), rtol=np.float64(1e-3), upper_work=10**9, masked=None)
    assert (taken.windows, taken.rtol) == (3, 1e-3)


@pytest.mark.parametrize("place", ["./nosuch", "/no/such", "no/such/", "a/b/c"])
def test_a_path_that_is_not_there_is_no_name_on_the_hub(place, capsys):
    assert main(["scan", place]) == 1
    assert f"lipnb: there is no folder {place!r}: a model is a folder" in capsys.readouterr().err


def test_a_table_changed_later_is_not_read_again(found, tmp_path):
    _, where = found
    folder = shutil.copytree(where, tmp_path / "out")
    table = pd.read_csv(folder / "heads.csv")
    table.assign(lipschitz=1.0).to_csv(folder / "heads.csv", index=False)
    with pytest.raises(ValueError, match="heads.csv in the folder 'out' is damaged .it is not the file that the scan"):
        scanning.load(folder)


@pytest.mark.parametrize(("name", "column"), [("tokens", "written"), ("whole", "composed")])
def test_a_folder_of_an_older_scan_is_refused_with_the_way_out(found, tmp_path, name, column):
    folder = shutil.copytree(found[1], tmp_path / "out")
    table, sums = pd.read_csv(folder / f"{name}.csv"), (folder / "SHA256SUMS").read_text()
    before = sha256((folder / f"{name}.csv").read_bytes()).hexdigest()
    table.drop(columns=column).to_csv(folder / f"{name}.csv", index=False)
    after = sha256((folder / f"{name}.csv").read_bytes()).hexdigest()
    (folder / "SHA256SUMS").write_text(sums.replace(before, after))
    with pytest.raises(ValueError, match=f"{name}.csv .* .it has no column '{column}'.: measure its model anew"):
        scanning.load(folder)


def test_the_report_goes_where_it_is_asked_for(found, tmp_path):
    scan, _ = found
    assert scan.report(tmp_path) == tmp_path / "report.html"
    said = scan.report(tmp_path / "mine.html").read_text(encoding="utf-8")
    assert "A close look" in said and "The roughest heads" in said and "[CLS]" in said and "in_steepest" in said
    assert said.count("<svg") == 7
    assert "are in summary.csv and scan.csv, heads.csv, tokens.csv, whole.csv in the folder of" in said
    bare = report.html(dataclasses.replace(scan, tokens=scan.tokens[:0]))
    assert "are in summary.csv and scan.csv, heads.csv, whole.csv in the folder of" in bare
    assert "relative constant" in said and "relative to token norms" not in said
    assert ".wide, figure.map { overflow-x: auto; background: linear-gradient" in said  # a shadow where it is cut


def test_the_product_of_layers_is_told_only_where_all_were_scanned():
    whole = {"part": ["layer", "layer", "hidden"], "layer": [0, 1, -1], "lipschitz": [2.0, 3.0, 5.0]}
    whole = pd.DataFrame(whole).assign(length=8, relative=1.0, converged=True, composed=True)

    def said(whole, count):
        return " ".join(finding.sentence for finding in sentences._whole(whole, count))

    assert "the product of its layers, an upper bound, is about 6." in said(whole, 2)
    assert "product" not in said(whole, 30)
    assert "product" not in said(whole.assign(composed=[True, True, False]), 2)  # with a final norm


SEVERAL = ("bert", "gpt2", "albert", "vit", "dinov2", "t5", "whisper", "modernbert", "opt", "llama", "qwen3", "gemma2")


def test_no_product_of_layers_is_below_the_network_that_it_is_compared_with(tmp_path):
    """With the final norm in one and not in the other it was: here for one that amplifies."""
    ends, above = {}, []
    for name in SEVERAL:
        families.written(tmp_path / name, name, deepcopy(families.SMALL[name][0]))
        model = models.load(tmp_path / name)
        if name == "qwen3":
            model.module.norm.weight.mul_(100)
        sides = model.architecture.small_sides(model.module.config)
        reader = Reader(model, {6: some_inputs(model.module, model.architecture.reads, 6, seed=1, sides=sides)})
        rows = [row for layer in range(model.layers) for row in measure.layer(reader, layer, 6, seed=0)]
        rows += [row for to in ("layers", "hidden") for row in measure.network(reader, 6, to, seed=0)]
        whole = pd.DataFrame(rows)
        product = whole[whole.part == "layer"].lipschitz.prod()
        compared = whole[whole.composed & (whole.part != "layer")]
        assert len(compared) == 1 and compared.lipschitz.item() <= product * 1.01, name  # each known to 0.1 %
        ends[name] = compared.part.item()
        if whole[whole.part == "hidden"].lipschitz.item() > product:
            above.append(name)
        told = [said.sentence for said in sentences._whole(whole, model.layers)]
        assert ["product of its layers" in one for one in told].count(True) == 1
        assert "product" in next(one for one in told if sentences.ENDS[ends[name]] in one)
    assert above == ["qwen3"]
    assert [name for name in SEVERAL if ends[name] == "hidden"] == ["bert", "albert"]  # no norm follows


def fails(function, which, error):
    """The function, which raises an error in these of its calls, counted from one."""
    calls = count(1)

    def instead(*given, **options):
        if next(calls) in which:
            raise error
        return function(*given, **options)

    return instead


def test_what_cannot_be_measured_is_named_and_ends_nothing(bert, story, found, tmp_path, monkeypatch, capsys):
    """Windows, baselines, a head, tokens, whole layers: gaps in every answer, and the same command fills them."""
    command = ["scan", str(bert), "--text", str(story), "--lengths", "5,9", "--dtype", "float64"]
    command += ["--output", str(tmp_path / "out")]
    overflow = FloatingPointError("a Jacobian product is NaN or infinite.")
    with monkeypatch.context() as patched:
        # four constants of a layer and length: two windows, two baselines
        patched.setattr(measure, "local_lipschitz", fails(measure.local_lipschitz, {1, 2, 14, 16}, overflow))
        patched.setattr(measure, "certify", fails(measure.certify, {2}, MemoryError()))
        patched.setattr(measure, "one_head", fails(measure.one_head, {3}, overflow))
        patched.setattr(measure, "block_norms", fails(measure.block_norms, {1}, NotImplementedError("no rule\nmore")))
        patched.setattr(measure, "_row", fails(measure._row, {1, 3}, overflow))
        assert main(command) == 1
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    out = scanning.load(tmp_path / "out")
    assert sorted(out.gaps.gap) == [
        "baseline (shuffled) of layer 1 at n = 9",
        "certified bound of layer 1 at n = 5, window 0",
        "head 2 of layer 0 at n = 5",
        "layer 0 at n = 5, window 0",
        "layer 0 at n = 5, window 1",
        "layer 1 at n = 9, window 1",
        "the network to its last hidden states at n = 5",
        "tokens of layer 0 at n = 5",
        "whole layer 0 at n = 5",
    ]
    page = report.html(out)
    for row in out.gaps.itertuples():
        assert row.gap in said.out and row.gap in page, row.gap
    assert "Reason: a Jacobian product is NaN or infinite." in page and "NotImplementedError: no rule." in page
    rows = [line for line in said.out.splitlines() if line.split()[:2] in (["0", "5"], ["1", "9"])]
    assert rows[0].endswith("gap") and rows[1].endswith("1 of 2")
    whole, _ = found
    there = out.table.lipschitz.notna()
    assert there.tolist() == [False, False, True, True, True, True, True, False]
    assert np.allclose(out.table.lipschitz[there], whole.table.lipschitz[there], rtol=1e-5)
    assert len(out.heads) == 7 and len(out.tokens) == 5 and len(out.whole) == 1
    # the same command measures what is missing, and no more
    again = []
    counted = lambda *given, **options: again.append(given[1:]) or measure.measure(*given, **options)  # noqa: E731
    monkeypatch.setattr("lipscan.scanning.run.measure", counted)
    assert main(command) == 0
    assert again == [(0, 5), (1, 5), (1, 9)] and "Not measured" not in capsys.readouterr().out
    filled = scanning.load(tmp_path / "out")
    assert filled.gaps.empty and not list((tmp_path / "out").glob("*.partial.jsonl"))
    for name in ("table", "heads", "tokens", "whole"):
        pd.testing.assert_frame_equal(getattr(filled, name), getattr(whole, name), rtol=1e-4)


def test_a_network_that_cannot_be_run_at_a_length_leaves_the_others(bert, story, tmp_path, monkeypatch):
    real = models.readings

    def readings(model, inputs):
        if inputs.shape[1] in lost:
            raise RuntimeError("out of memory")
        return real(model, inputs)

    monkeypatch.setattr("lipscan.scanning.inputs.readings", readings)
    options = {"lengths": [5, 9], "windows": 1, "dtype": "float64", "progress": False, "output": tmp_path / "out"}
    lost = {9}
    out = lipnb.scan(small(bert), story, **options)
    assert out.gaps.gap.tolist() == ["layer 0 at n = 9", "layer 1 at n = 9"] and len(out.table) == 4
    assert out.table.lipschitz.notna().tolist() == [True, False, True, False]
    assert "2 of 4 layers and lengths passed" in report.html(out) and "failed its self-check" not in report.html(out)
    lost = {5, 9}
    out = lipnb.scan(small(bert), story, **options, again=True)
    assert out.table.lipschitz.isna().all() and out.whole.empty and out.heads.empty
    printed = StringIO()
    terminal.show(out, file=printed)
    assert "No layer could be measured." in printed.getvalue() and "out of memory" in printed.getvalue()


def test_each_finding_says_what_it_means_and_names_pages_that_are_there(found):
    scan, _ = found
    findings = sentences.findings(scan)
    assert len(findings) >= 9 and all(finding.pages for finding in findings)
    book = ROOT / "notebooks"
    for page, title in sentences.PAGES.items():
        assert f"# # {title}\n" in (book / f"{page}.py").read_text(encoding="utf-8"), page
    page = report.html(scan)
    links, places = set(re.findall(r'href="#([^"]+)"', page)), set(re.findall(r'id="([^"]+)"', page))
    assert links and links <= places
    top = sentences.roughest(scan.summary)
    assert f"<b>{fmt.short(top.lipschitz)}</b>" in page  # the tile says what the sentence says
    assert f"constant {fmt.short(top.lipschitz)} (mean of 2 windows" in findings[1].sentence


def test_the_first_screen_answers_in_three_sentences_from_the_tables(found):
    scan, _ = found
    rough, much, does = (sentence for _, sentence in sentences.answer(scan))
    good = scan.summary[scan.summary.length == 9]
    top, low = good.loc[good.lipschitz.idxmax()], good.loc[good.lipschitz.idxmin()]
    said = f"of what layer {top.layer} receives comes out {fmt.short(top.low)} to {fmt.short(top.high)} times"
    assert said in rough and f"in layer {low.layer}: {fmt.short(low.low)} to" in rough
    assert f"{fmt.up(top.certified_over)} times that, proved in 1 of 2 windows." in rough
    assert f"In the first window it is {top.over_random:.3g} times that of random weights" in much
    assert "from 5 to 9 tokens" in much
    end = scan.whole[scan.whole.part == "hidden"].iloc[0]
    most = good.loc[good.relative.idxmax()]
    assert f"up to {most.relative:.3g} in layer {most.layer}, where that is most (at 9 tokens, on average o" in does
    assert f"by up to {end.relative:.3g} (at 5 tokens, in the first window); most errors grow far less (63)" in does
    other = sentences._how_far(good.assign(relative=good.lipschitz.iloc[::-1].to_numpy()), top, scan.whole)
    assert f"in layer {low.layer}, where" in other and f"constant itself is largest in layer {top.layer})" in other
    same = sentences._how_far(good.assign(relative=good.lipschitz), top, scan.whole)
    assert "by up to" in other and "itself" not in same
    page = report.html(scan)
    assert page.index(str(report._linked(does))) < page.index('class="tiles"') < page.index("What was found")

    one = scan.summary[(scan.summary.length == 9) & (scan.summary.layer == top.layer)]
    one = one.assign(certified_over=np.nan, converged=False, low=2.0, high=2.0).drop(columns="over_random")
    bare = SimpleNamespace(summary=one.drop(columns="over_shuffled"), whole=scan.whole[:0], table=scan.table)
    rough, much, does = (sentence for _, sentence in sentences.answer(bare))
    assert rough.endswith(f"of what layer {top.layer} receives comes out at least 2 times as large.")
    assert much == "This scan has no baseline and one length, so it does not say." and "end to end" not in does
    for random, order, said in (
        (3, 1, "(more than its usual initialisation gives)"),
        (1.5, 1.3, "(about what its shape alone gives)"),
        (0.4, 1, "initialisation gives) and as large as that of the same"),
    ):
        bare.summary = one.assign(over_random=random, over_shuffled=order)
        told = sentences.answer(bare)[1][1]
        assert said in told and ("order matters little" in told) == (order == 1)
    assert sentences.answer(SimpleNamespace(summary=scan.summary.assign(passed=False))) == []


def test_words_stand_on_the_map_of_tokens_and_axes_say_1_10_100(found):
    scan, _ = found
    tokens = scan.tokens.assign(written=scan.tokens.written.where(scan.tokens.place != 1, "'$x_1$ and a long word'"))
    for ax, bar in (
        (figures.heads(scan.heads), "constant of the head alone"),
        (figures.tokens(tokens), "moves others"),
    ):
        assert ax.figure.axes[1].get_ylabel().startswith(bar)
    labels = ax.get_xticklabels()
    words = [label.get_text() for label in labels]
    assert words[0] == scan.tokens.written[0].strip("'") and words[1] == "$x_1$ and a l…" and len(words) == 5
    assert not any(label.get_parse_math() for label in labels)  # a dollar is a dollar
    many = pd.DataFrame({"layer": 0, "place": range(300), "written": [repr(f"w{n}") for n in range(300)], "moves": 1.0})
    many.loc[[7, 9, 250], "moves"] = 4.0, 3.0, 5.0
    words = [label.get_text() for label in figures.tokens(many).get_xticklabels()]
    assert words[:2] == ["w250", "w7"] and "w9" not in words and len(words) <= figures.WORDS

    good = summary.first_window(scan.table).query("length == 9").assign(relative=[2e-3, 3e7])
    ax = figures.baselines(good)
    ax.figure.canvas.draw()
    assert {"0.1", "1,000"} <= {label.get_text() for label in ax.get_yticklabels()}
    written = [figures._plain(value) for value in (0.001, 2.5, 100, 20000, 1e6, 2.5e8)]
    assert written == ["0.001", "2.5", "100", "20,000", "$10^{6}$", r"$2.5 \times 10^{8}$"]


def test_a_factor_near_one_is_told_from_one():
    row = {"layer": 1, "length": 8, "before": 0.967, "after": 0.9667, "ratio": 0.99969, "differs": "lower"}
    assert summary.compared(pd.DataFrame([row]))[1].endswith("a factor of 0.9997.")
    assert [fmt.factor(one) for one in (1.0, 2.3456, 1.00012)] == ["1", "2.35", "1.0001"]


def test_words_on_baselines_follow_their_numbers():
    for there, said, not_said in [
        (
            {"over_random": 3.0, "over_shuffled": 1.05},
            ["larger than its usual initialisation", "order of the tokens plays little"],
            [],
        ),
        ({"over_random": 1.5, "over_shuffled": 0.6}, ["within a factor of two", "some part, less than a factor"], []),
        ({"over_random": 0.4, "over_shuffled": 0.3}, ["are rougher", "plays a part."], ["usual initialisation"]),
        ({}, [], ["order", "andom"]),
    ]:
        words = sentences._baselines(there)
        assert all(part in words for part in said) and not any(part in words for part in not_said)


def test_a_range_of_one_number_is_one_number_and_a_bound_is_rounded_upward(found):
    scan, _ = found
    alike = scan.summary.assign(
        lipschitz=0.4004, low=0.4004, high=0.4004, relative=3.0, over_shuffled=1.001, over_yudin=2.0
    )
    told = [one.sentence for one in [*sentences._roughest(alike), *sentences._growth(alike), *sentences._bounds(alike)]]
    assert "(mean of 2 windows); " in told[0] and "as large as that of shuffled text" in told[0]
    assert told[1] == "In units of their tokens layers are alike: 3."
    assert "changes by a factor of 1; the square root" in told[2]
    within = float(re.search(r"within a factor of (\S+) of", told[3])[1])
    assert alike.certified_over.max() <= within < alike.certified_over.max() * 1.01
    assert not any("at most" in one or re.search(r"(\d\S*) to \1[ ,.]", one) for one in told)
    whole = pd.DataFrame({"part": "layer", "layer": [0, 1], "length": 8, "lipschitz": 2.0, "relative": 1.0})
    assert [one.sentence for one in sentences._whole(whole, 2)][0].endswith(
        "MLP: 2 at 8 tokens, in the first window; in units of their tokens up to 1."
    )
    still = scan.tokens.assign(moves=scan.tokens.moves.where(scan.tokens.place > 0, 0.0))
    ends = scan.whole.assign(lipschitz=1010.0)
    page = report.html(SimpleNamespace(**{**vars(scan), "summary": alike, "tokens": still, "whole": ends}))
    assert '<td class="text">100</td>' in page and "100 to 100" not in page
    assert "it moves none" in page and "it moves none" not in report.html(scan)
    assert '<td class="main">1,010</td>' in page and "1.01e+03" not in page


def test_nothing_is_said_of_training_where_there_was_none(found):
    scan, _ = found
    about = {**scan.about, "settings": scan.about["settings"] | {"weights": "random"}}
    trained, random = (
        " ".join(f"{one.sentence} {one.means}" for one in sentences.findings(SimpleNamespace(**{**vars(scan), **more})))
        for more in (
            {"summary": scan.summary.assign(over_random=3.0)},
            {"about": about, "summary": scan.summary.drop(columns="over_random")},
        )
    )
    assert sentences._as_random(scan.summary.assign(over_random=1.05))
    assert not sentences._as_random(scan.summary.assign(over_random=[1.0, 1.0, 1.0, 2.0]))
    assert "Usual on trained layers" in trained and "Trained layers often lean" in trained
    assert "on trained layers" not in random and "often lean" not in random and "usual initialisation" not in random


def test_a_finding_names_head_and_token_and_what_is_usual(found):
    scan, _ = found
    told = [one.sentence for one in sentences.findings(scan)]
    top = sentences.roughest(scan.summary)
    heads, tokens = (table[table.layer == top.layer] for table in (scan.heads, scan.tokens))
    head = heads.loc[heads.lipschitz.idxmax(), "head"]
    token = tokens.loc[tokens.moves.idxmax()]
    assert f"its roughest head is head {head} and the token that moves the others most is" in told[1]
    assert f"number {token.place}, {token.written}." in told[1]
    most = scan.heads.loc[scan.heads.lipschitz.idxmax()]
    usual = most.lipschitz / scan.heads[scan.heads.layer == most.layer].lipschitz.median()
    assert f"{usual:.2g} times the median of that layer's heads" in next(one for one in told if "Roughest head" in one)
    assert sum("at 5 tokens, in the first window, " in one for one in told) == 2  # that head, and whole layers
    of_first = f"; in the first window it is {top.over_random:.3g} times that of random weights and "
    assert "(mean of 2 windows" in told[1] and of_first in told[1]  # constants are means over both
    one = scan.summary.assign(windows=1, measured=1)
    assert "window" not in next(sentences._roughest(one)).sentence + sentences._how_unusual(one, one.iloc[0])
    far = scan.tokens.loc[scan.tokens.moves.idxmax()]
    usual = far.moves / scan.tokens[scan.tokens.layer == far.layer].moves.median()
    assert f"{usual:.2g} times as far as the median token of layer {far.layer}" in " ".join(told)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_of_one_token_nothing_is_said_of_others(bert, story, tmp_path):
    options = {"lengths": [1], "windows": 1, "special": False, "upper": False, "progress": False}
    scan = lipnb.scan(bert, story, output=tmp_path / "out", **options)
    told = " ".join(one.sentence for one in sentences.findings(scan))
    assert len(scan.tokens) and "moves" not in told and "roughest head is" in told
    page = report.html(scan)
    assert "<h3>Which token" not in page and "moves the outputs of the others" not in page


def test_of_a_family_without_closed_form_the_reasons_are_true_ones(tmp_path, story, monkeypatch):
    """They were those of a block."""
    from safetensors.torch import load_file, save_file

    monkeypatch.setattr("lipscan.models.loading.tried", lambda network, architecture, masked: architecture)
    model_types.written(tmp_path / "esm", "esm")
    weights = load_file(tmp_path / "esm" / "model.safetensors")
    kept = {key: value for key, value in weights.items() if not key.startswith(("pooler.", "contact_head."))}
    assert len(kept) == len(weights) - 4  # as in the checkpoints of ESM-2, whose task has no pooler
    save_file(kept, tmp_path / "esm" / "model.safetensors", metadata={"format": "pt"})
    options = {"tokenizer": tmp_path / "esm" / "tokenizer", "lengths": [6], "windows": 1, "progress": False}
    out = lipnb.scan(tmp_path / "esm", story, output=tmp_path / "out", **options)
    assert out.gaps.empty and out.table.passed.all() and {*out.whole.part} == {"layer", "layers", "hidden"}
    assert {*out.tokens.layer} == {0, 1} and out.heads.empty and len(out.heads.columns) == 7
    page, reasons = report.html(out), out.about["settings"]["reasons"]
    assert "of this family lipnb runs the network" in page and "block with residual" not in page
    assert {*reasons} == {*report.TITLES} and len({*reasons.values()}) == 1
    assert page.count("Not applicable here:") == 1 and page.count(reasons["yudin"].partition("'")[0]) == 1
    assert "no look at single heads: lipnb knows no closed form of the attention of esm" in page
    assert "No logits of esm: its checkpoint holds no output layer" in page
    del kept[next(key for key in kept if key.endswith("query.weight"))]
    save_file(kept, tmp_path / "esm" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ValueError, match="are not complete: 1 tensors of its config.json are missing, such as .*query.weight"
    ):
        models.load(tmp_path / "esm")


def test_why_there_are_no_logits_is_named(found):
    page = report.html(found[0])
    assert "No logits of bert: its checkpoint holds no output layer (cls.predictions.bias, which" in page


def test_one_layer_is_neither_roughest_nor_smoothest(found):
    scan, _ = found
    one = scan.summary[scan.summary.layer == 1]
    told = " ".join(finding.sentence for finding in [*sentences._roughest(one), *sentences._growth(one, [5, 9])])
    assert "Layer 1 at 9 tokens: constant" in told
    assert not any(word in told for word in ("Roughest", "Smoothest", "depending on the layer", "compare"))
