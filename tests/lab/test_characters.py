"""Models of characters: the fast modules against the maps they stand for, what training keeps, and its tables."""

import copy
import math

import needs
import pandas as pd
import pytest
import torch
from cases import relative

from lab import cli, experiments, results, training
from lab.experiments import language_model
from lab.experiments.trained_layers import feed_forward_rows
from lipnb import bounds, local_lipschitz
from lipscan import corpora

TEXT = "the cat sat on the mat, and the dog sat on the log; " * 100
SMALL = {"length": 12, "width": 16, "heads": 2, "hidden": 24, "layers": 2}
FEW = {"schedule": "constant", "warmup": 1, "batch": 4, "steps": 9, "evaluate_every": 3}


def network(kind, **changes):
    return training.CharacterTransformer(30, attention=kind, **{**SMALL, **changes})


def windows(count=3, length=12, seed=0):
    return torch.randint(30, (count, length), generator=torch.Generator().manual_seed(seed))


def steps(net, count, rate):
    """Train a little, by Adam."""
    optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    for i in range(count):
        ids = windows(8, 12, seed=i)
        loss = torch.nn.functional.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net


@pytest.mark.parametrize("kind", training.ATTENTIONS)
@pytest.mark.parametrize(("norm", "positions"), [("after", "sinusoids"), ("before", "learned")])
def test_the_fast_module_is_the_map(kind, norm, positions):
    net = steps(network(kind, norm=norm, positions=positions), 3, 1e-2).double()
    frozen = training.CharacterTransformer(30, attention=kind, **SMALL, positions=positions).positions
    assert torch.equal(net.positions.float(), frozen) == (positions == "sinusoids")
    received = net.activations(windows())
    assert len(received) == 2 and net.training
    for layer, x in enumerate(received):
        assert relative(net.blocks[layer].attention(x), net.attention(layer)(x)) < 1e-12
    net.eval()
    x = received[0]  # the first block again, from the map and the definition
    block, embedded = net.blocks[0], net.embedding(windows()) + net.positions[:12]
    y = embedded + block.strength * net.attention(0)(x)
    if norm == "after" or kind == "contractive":
        y = block.norms[0](y)
        y = block.norms[1](y + block.strength * block.mixing(y))
    else:
        y = y + block.strength * block.mixing(block.norms[1](y))
    assert relative(block(embedded), y) < 1e-12
    assert (kind == "contractive") != net.normalised


@pytest.mark.parametrize("kind", training.ATTENTIONS)
def test_no_character_sees_a_later_one(kind):
    net, ids = network(kind).eval(), windows()
    other = ids.clone()
    other[:, 8:] = (other[:, 8:] + 1) % 30
    difference = (net(ids) - net(other)).abs().amax((0, 2))
    assert (difference[:8] == 0).all() and (difference[8:] > 0).all()


def test_the_contractive_module_divides_by_the_bound_of_the_theorem():
    net = steps(network("contractive"), 3, 1e-2).double()
    heads = net.blocks[0].attention
    tied = copy.deepcopy(heads)
    tied.kind = "l2-tied"
    plain = tied.attention()
    query, value = heads._split(heads.query), heads._split(heads.value)
    upper = bounds.l2_upper(query, value, plain.output, 12)
    assert abs(heads.bound().item() / upper - 1) < 1e-12 and tied.divisor() == 1
    assert heads.bound().item() < heads.divisor().item() < upper * (1 + 1e-12)
    assert relative(plain.output / net.attention(0).output, torch.full_like(plain.output, upper)) < 1e-12


@pytest.mark.parametrize("rate", [1e-3, 1e-1, 1.0])
def test_training_keeps_the_guarantee(rate):
    """After every step, in the precision that is trained in: bounds from the weights are at most 1."""
    net = network("contractive")
    for count in (1, 2, 5, 20):
        steps(net, count, rate)
        for row in feed_forward_rows(net):
            assert 1 - 1e-3 < row["bound"] <= 1
        for layer in range(2):
            heads = net.blocks[layer].attention  # what is divided out in float32, against the bound in float64
            query, value = (heads._split(matrix.detach().double()) for matrix in (heads.query, heads.value))
            output = heads.output.detach().double().unflatten(1, (2, 8)).movedim(1, 0) / heads.divisor().item()
            assert 1 - 1e-3 < bounds.l2_upper(query, value, output, 12) <= 1
    net, ids = net.double().eval(), windows()
    for layer, x in enumerate(net.activations(ids)):
        block, f = net.blocks[layer], net.attention(layer)
        generator = torch.Generator().manual_seed(layer)
        for size in (1e-2, 1, 1e2):
            y = size * torch.randn(4, 12, 16, generator=generator, dtype=torch.float64)
            assert local_lipschitz(f, y, method="dense").value.max() <= 1
        for g in (f, block.mixing):
            image = x + block.strength * g(x)
            z = image
            for _ in range(400):
                z = image - block.strength * g(z)
            assert relative(z, x) < 1e-10


@pytest.mark.parametrize("kind", training.WITHOUT)
def test_without_attention_no_character_learns_of_another(kind):
    net, ids = steps(network(kind), 3, 1e-2).eval(), windows()
    other = ids.clone()
    other[:, 5] = (other[:, 5] + 1) % 30
    difference = (net(ids) - net(other)).abs().amax((0, 2))
    assert difference[5] > 0 and (difference[:5] == 0).all() and (difference[6:] == 0).all()
    assert net.normalised == (kind == "none") and not any("attention" in name for name, _ in net.named_parameters())


def test_characters_are_numbered_by_the_training_part(tmp_path):
    (training_ids, other), size = training.character_ids(("abba\nc", "cab?é"))
    assert training_ids.tolist() == [1, 2, 2, 1, 0, 3] and other.tolist() == [3, 1, 2, 4, 4] and size == 5
    (tmp_path / "text.txt").write_text(TEXT)
    parts = training.character_parts(tmp_path / "text.txt")
    assert "".join(parts) == TEXT and [len(part) for part in parts] == [4680, 260, 260]


@needs.PENN_TREEBANK
def test_the_penn_treebank_is_the_official_sequence_of_characters():
    (first, valid, test), size = training.character_ids(training.character_parts("ptb"))
    assert [len(part) for part in (first, valid, test)] == [5_017_482, 393_042, 442_423]
    assert first.unique().numel() == 50 and size == 51 and max(valid.max(), test.max()) < 50
    assert corpora.read("ptb").startswith("aer banknote berlitz")


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A table of small runs on a small text."""
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    monkeypatch.setenv("LIPNB_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(language_model, "SIZES", {name: SMALL[name] for name in ("length", "width", "heads", "hidden")})
    monkeypatch.setattr(language_model, "WINDOWS", {"validation": 4, "test": 5, "measured": 2})
    for name in ("DEPTH", "SCAN", "FIXED", "LONGER"):
        monkeypatch.setattr(language_model, name, FEW)
    monkeypatch.setattr(
        language_model, "CHECK", {**language_model.CHECK, "corpus": str(path), "steps": 2, "evaluate_every": 1}
    )
    language_model.texts.cache_clear()
    return str(path)


RUN = {"attention": "contractive", "layers": 2, "rate": 1e-2, "seed": 1}


def test_a_run_that_diverges_is_a_row(small, monkeypatch):
    rows = language_model.train_run("x", corpus=small, options=FEW, **{**RUN, "attention": "dot", "rate": 1e30})
    assert [row["row"] for row in rows] == ["evaluation", "test"]
    assert math.isnan(rows[0]["validation_loss"]) and rows[0]["step"] < 9
    assert rows[1]["diverged"] and math.isnan(rows[1]["nats"])


def test_the_table_of_language_models(small):
    table = experiments.TRAINED["language-model"]
    table = experiments.make([table], corpus=small, depths=(1, 2), count=1, progress=False)["language-model"]
    assert {*table.part} >= {"unigram", "bigram", "depth again", "scan", "depth", "positions", "matched"}
    ends = table[table.row == "test"]
    assert (ends.bits / ends.nats - 1 / math.log(2)).abs().max() < 1e-9
    design = ["part", "attention", "start", "norm", "positions", "layers", "rate", "seed", "hidden"]
    assert not ends.duplicated(design).any()
    layers = table[(table.part == "depth") & (table.row == "layer") & (table.layers == 1)].set_index("attention")
    assert (layers.lowest <= layers.lipschitz).all() and (layers.lipschitz <= layers.highest).all()
    assert (layers.highest < layers.bound)[["l2-tied", "contractive"]].all() and layers.bound["contractive"] == 1
    assert layers.bound[["dot", "l2-untied"]].isna().all() and layers.converged.all()
    parts = table[table.row == "feed-forward"]
    assert set(parts.attention) == {"contractive", "none-contractive"} and parts.bound.between(0.999, 1).all()
    assert results.provenance("language-model")["settings"]["corpus"] == small


def test_networks_trained_at_the_same_time_are_those_trained_alone(small):
    table = experiments.TRAINED["training-longer"]
    made = experiments.make([table], corpus=small, depths=(2,), count=2, progress=False)["training-longer"]
    every = {*training.ATTENTIONS, *training.WITHOUT}
    assert set(made.attention) == every and made.groupby("row").size().to_dict() == {"evaluation": 36, "test": 12}
    names = ["step", "training_loss", "validation_loss", "nats"]
    for kind in every:
        run = {"attention": kind, "layers": 2, "rate": language_model.FIXED_RATE, "seed": 1}
        alone = pd.DataFrame(language_model.train_run("x", corpus=small, options=FEW, **run)).query("step.notna()")
        mine = made[(made.attention == kind) & (made.layers == 2) & (made.seed == 1)]
        gap = (mine[names].to_numpy() - alone[names].to_numpy())[:4]
        assert len(alone) == len(mine) == 4 and not (abs(gap) > 1e-5).any(), kind
        assert (mine.norm == alone.norm.to_numpy()).all()


def test_the_command_trains_only_when_told(monkeypatch):
    asked = []
    monkeypatch.setattr(experiments, "make", lambda tables, **options: asked.append([t.name for t in tables]) or {})
    assert cli.main(["tables", "--again"]) == 0 and cli.main(["tables", "training-stability", "--again"]) == 0
    assert asked == [list(experiments.TABLES), ["training-stability"]]
    assert not set(experiments.TABLES) & set(experiments.TRAINED)
