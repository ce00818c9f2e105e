"""Training: text and tokenizer, baselines, the loop and its resumption, the checkpoint and where it is loaded from."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lab import cli, results, training
from lab.training.loop import SCHEDULES
from lipscan import models

SIZES = {"vocabulary": 300, "positions": 16, "width": 16, "layers": 2, "heads": 2}
TEXT = "the cat sat on the mat and the dog sat on the log; " * 60
SMALL = {
    "steps": 12,
    "sizes": SIZES,
    "batch": 4,
    "rate": 1e-2,
    "evaluate_every": 4,
    "precision": "float32",
    "texts": {"cats": TEXT, "dogs": TEXT.replace("cat", "dog")},
    "progress": False,
}


def network(**changes):
    return training.new_gpt2(60, **{"positions": 8, "width": 16, "layers": 1, "heads": 2, **changes})


def trained(net, ids, record, folder, **options):
    state = folder / "state.pt"
    return training.train(net, ids, ids[:200], record, state=state, length=8, progress=False, **options)


def test_the_end_of_each_text_is_held_out():
    beginnings, ends = training.split_text(["a" * 100, "b" * 200], held_out=0.1)
    assert [len(part) for part in beginnings] == [90, 180] and [len(part) for part in ends] == [10, 20]
    assert set(ends[0]) == {"a"} and set(ends[1]) == {"b"}


def test_the_tokenizer_reads_any_text_and_gives_it_back():
    tokenizer = training.train_tokenizer([TEXT], 300)
    strange = "the mat — naïve \u4e2d\u6587 \U0001f600\n\ttabs"
    assert tokenizer.decode(tokenizer.encode(strange).ids) == strange
    assert len(tokenizer.encode("the cat").ids) < len("the cat") / 2  # merges were learned
    ids = training.token_ids(tokenizer, ["the cat", "the dog"])
    assert (ids == tokenizer.token_to_id("<|endoftext|>")).sum() == 2 and ids[-1] == ids.min() == 0


def test_baselines_by_hand():
    uniform = np.arange(8).repeat(5)
    assert training.unigram_loss(uniform, uniform, 8) == pytest.approx(math.log(8))
    # counts 3 + 1 and 1 + 1 of 6
    assert training.unigram_loss([0, 0, 0, 1], [1], 2) == pytest.approx(math.log(3))
    circle = np.tile([0, 1, 2, 3], 200)
    assert training.bigram_loss(circle, circle[:100], 4) < 0.01 < training.unigram_loss(circle, circle, 4)
    pair = -math.log((2 + 10 * 3 / 7) / (2 + 10))  # c(0, 1) = c(0) = 2, frequency of 1 is (2 + 1) / 7
    assert training.bigram_loss([0, 1, 0, 1], [0, 1], 3, masses=(10,)) == pytest.approx(pair)


def test_validation_loss_is_the_mean_over_all_windows():
    net, ids = network(), torch.randint(60, (50,), generator=torch.Generator().manual_seed(0))
    parts = []
    with torch.no_grad():
        for first in range(0, 48, 8):
            logits = net(ids[None, first : first + 8])[0]
            parts.append(torch.nn.functional.cross_entropy(logits, ids[first + 1 : first + 9]))
    assert training.validation_loss(net, ids, 8) == pytest.approx(torch.stack(parts).mean().item(), rel=1e-5)


@pytest.mark.parametrize("name", SCHEDULES)
def test_without_warmup_the_first_step_has_the_whole_rate(results_folder, name):
    ids = torch.arange(50).repeat(30)
    with results.recording("cold", {}) as record:
        options = {"steps": 4, "batch": 2, "rate": 1e-3, "warmup": 0, "evaluate_every": 1, "schedule": name}
        trained(network(), ids, record, results_folder, **options)
        rates = record.finish().rate.tolist()
    assert len(rates) == 4 and rates == sorted(rates, reverse=True)
    assert rates[0] == 1e-3 or (name == "cosine" and rates[0] > 0.8e-3)
    assert name != "inverse_sqrt" or rates[3] == pytest.approx(0.5e-3)


def test_training_learns_and_beats_frequencies(results_folder):
    ids = torch.arange(50).repeat(30)  # after each token one other
    net = network()
    with results.recording("curve", {}) as record:
        options = {"steps": 60, "batch": 16, "rate": 1e-2, "warmup": 5, "evaluate_every": 20}
        loss = trained(net, ids, record, results_folder, **options)
        curve = record.finish()
    assert loss < 0.4 * training.unigram_loss(ids, ids, 60)
    assert list(curve.step) == [20, 40, 60] and curve.validation_loss.iloc[-1] == pytest.approx(loss)
    assert list(curve.tokens) == [20 * 128, 40 * 128, 60 * 128]
    assert curve.validation_loss.is_monotonic_decreasing and not (results_folder / "state.pt").exists()


def test_a_checkpoint_is_written_and_loaded(results_folder, tmp_path):
    folder = training.make_gpt2_mini(folder=tmp_path / "model", table="tiny", **SMALL)
    model = models.load(folder)
    ids = model.token_ids("the dog sat on the log")
    assert model.masked and model.layers == 2 and model.width == 16 and len(ids) < 16
    assert model.activations(ids[None], 1).shape == (1, len(ids), 16)
    assert max(file.stat().st_size for file in folder.iterdir()) < 5e6
    facts = json.loads((folder / "training.json").read_text())
    curve = results.load("tiny")
    assert facts["loss"] == pytest.approx(curve.validation_loss.iloc[-1], rel=1e-5) and list(curve.step) == [4, 8, 12]
    whole = training.load_gpt2(folder)  # the stored float16 weights, as a language model
    beginnings, ends = training.split_text(list(SMALL["texts"].values()))
    held_out = training.token_ids(model.tokenizer.backend_tokenizer, ends)
    assert training.validation_loss(whole, held_out, 16) == pytest.approx(facts["loss"], rel=2e-3)
    card = (folder / "README.md").read_text()
    assert "cats, dogs" in card and f"{facts['bigram']:.3f}" in card and str(tmp_path) not in card


def test_matrices_decay_and_biases_do_not(tmp_path):
    """Parameters whose gradient is zero move by the decay alone: a matrix shrinks each step, biases and gains stay."""

    class Idle(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words = torch.nn.Parameter(torch.zeros(7, 7))
            self.matrix, self.bias = torch.nn.Parameter(torch.ones(3, 4)), torch.nn.Parameter(torch.ones(4))
            self.gain = torch.nn.Parameter(torch.ones(()))

        def forward(self, ids):
            return self.words[ids] + 0 * (self.matrix.sum() + self.bias.sum() + self.gain)

    ids, record = torch.arange(60) % 7, SimpleNamespace(rows=lambda unit: [], add=lambda *row: None)
    for decay in (0.5, 0.0):
        idle = Idle()
        trained(idle, ids, record, tmp_path, steps=5, batch=2, rate=0.01, schedule="constant", decay=decay)
        assert torch.equal(idle.bias.detach(), torch.ones(4)) and idle.gain.item() == 1
        assert torch.allclose(idle.matrix.detach(), torch.full((3, 4), (1 - 0.01 * decay) ** 5), rtol=1e-6)


KILLED = {**SMALL, "steps": 60}
PROGRAM = """
import sys
from lab import training
sys.path.insert(0, {tests!r})
from test_training import KILLED
training.make_gpt2_mini(folder={folder!r}, table="killed", **KILLED)
"""


def test_a_training_run_killed_in_the_middle_ends_the_same(tmp_path, monkeypatch):
    """kill -9 between two evaluations; the same work again; weights and curve are those of an undisturbed run."""

    def run(name):
        monkeypatch.setenv("LIPNB_RESULTS", str(tmp_path / name / "results"))
        training.make_gpt2_mini(folder=tmp_path / name / "model", table="killed", **KILLED)

    run("undisturbed")
    program = PROGRAM.format(tests=os.path.dirname(__file__), folder=str(tmp_path / "killed" / "model"))
    environment = {**os.environ, "LIPNB_RESULTS": str(tmp_path / "killed" / "results")}
    partial = tmp_path / "killed" / "results" / "killed.partial.jsonl"
    with subprocess.Popen([sys.executable, "-c", program], env=environment) as process:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not (partial.exists() and partial.read_bytes().count(b"\n") >= 4):
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    assert 4 <= partial.read_bytes().count(b"\n") < 16, "the run was not killed in its middle"
    run("killed")
    curves = [(tmp_path / name / "results" / "killed.csv").read_bytes() for name in ("undisturbed", "killed")]
    assert curves[0] == curves[1] and curves[0].count(b"\n") == 16
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("undisturbed", "killed")]
    assert weights[0] == weights[1]


def test_the_command_speaks_plainly(tmp_path, results_folder, capsys, monkeypatch):
    (tmp_path / "file").write_text("")
    assert cli.main(["train", "--folder", str(tmp_path / "file" / "model")]) == 1
    assert "cannot be written" in capsys.readouterr().err
    monkeypatch.setattr(models, "mini_folder", lambda: tmp_path / "none")
    monkeypatch.setattr(models.demo.fetching, "mini_folder", lambda: tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="`make model` trains it again"):
        models.load("gpt2-mini")
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    assert "kill -9" in capsys.readouterr().out


def test_bigrams_against_a_loop():
    generator = np.random.default_rng(0)
    ids, after = generator.integers(0, 9, 400), generator.integers(0, 9, 50)
    counts, single = np.zeros((9, 9)), np.zeros(9)
    for a, b in zip(ids[:-1], ids[1:], strict=True):
        counts[a, b] += 1
        single[a] += 1
    p = (np.bincount(ids, minlength=9) + 1) / (len(ids) + 9)
    pairs = zip(after[:-1], after[1:], strict=True)
    losses = [-math.log((counts[a, b] + 3 * p[b]) / (single[a] + 3)) for a, b in pairs]
    assert training.bigram_loss(ids, after, 9, masses=(3,)) == pytest.approx(np.mean(losses))
