"""Networks that differ in their positions alone: equal weights at the start, equal computations without turns."""

import pytest
import torch
from cases import constant

from lab import results, training
from lab.experiments import twins
from lipscan import models

SIZES = {"length": 24, "width": 16, "layers": 2, "heads": 2}
IDS = torch.randint(50, (3, 20), generator=torch.Generator().manual_seed(0))
TEXT = "the cat sat on the mat and the dog sat on the log; a bird saw both of them and sang. " * 80


def logits(network):
    with torch.no_grad():
        return network.eval()(IDS)


@pytest.mark.parametrize("seed", [0, 3])
def test_twins_begin_as_the_same_network(seed):
    learned, none, rotary = (training.new_twin(kind, 50, seed=seed, **SIZES) for kind in training.KINDS)
    given = training.new_gpt2(50, positions=24, width=16, layers=2, heads=2, seed=seed)
    assert torch.equal(logits(learned), logits(given))
    assert not torch.allclose(logits(learned), logits(none), atol=1e-3)
    assert not torch.allclose(logits(rotary), logits(none), atol=1e-6)
    rotary.model.gpt_neox.rotary_emb.inv_freq.zero_()
    assert torch.allclose(logits(rotary), logits(none), atol=1e-6)
    with torch.no_grad():  # the learned positions are all that the second one lacks
        learned.model.transformer.wpe.weight.zero_()
    assert torch.equal(logits(learned), logits(none))


def test_what_has_no_positions_learns_none():
    state = torch.random.get_rng_state()
    network = training.new_twin("none", 50, **SIZES)
    assert torch.equal(torch.random.get_rng_state(), state)
    adam = torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], lr=0.1)
    torch.nn.functional.cross_entropy(network(IDS).flatten(0, 1), IDS.flatten()).backward()
    adam.step()
    places = network.model.transformer.wpe.weight
    assert not places.any() and network.model.transformer.wte.weight.grad.any()
    # rotary: not even a place for them
    assert not any("wpe" in name for name, _ in training.new_twin("rotary", 50, **SIZES).named_parameters())


@pytest.fixture(scope="module")
def material():
    tokenizer = training.train_tokenizer([TEXT], 300)
    beginnings, ends = training.split_text([TEXT], held_out=0.2)
    return tokenizer, tuple(training.token_ids(tokenizer, part) for part in (beginnings, ends))


@pytest.mark.parametrize("kind", training.KINDS)
def test_checkpoints_are_measured_as_the_network_computes(kind, material, tmp_path):
    tokenizer, ids = material
    losses = twins.train_twin(kind, 1, tokenizer, ids, tmp_path / kind, sizes=SIZES, steps=16, checkpoints=(0, 4, 16))
    assert set(losses) == {0, *range(2, 17, 2)} and losses[16] < losses[0]
    folders = sorted(int(path.name) for path in (tmp_path / kind).iterdir() if path.is_dir())
    assert folders == [0, 4, 16]
    rows = twins.measured_rows(tmp_path / kind / "16", (5, 8), 2, "python_reference")
    assert len(rows) == 2 * 2 * SIZES["layers"] and all(row["converged"] for row in rows)
    # the slow twin: the dense Jacobian of that layer's attention by autograd
    from lipscan import corpora

    model = models.load(tmp_path / kind / "16", dtype=torch.float64)
    tokens = models.random_windows(model, corpora.read("python_reference"), 5, 2, seed=5, special=False)
    x = model.activations(tokens, 1)
    [row] = [row for row in rows if (row["layer"], row["length"], row["window"]) == (1, 5, 1)]
    assert row["lipschitz"] == pytest.approx(constant(model.attention(1), x[1]).item(), rel=2e-3)
    # what was trained stays trained: the same call again measures without a step
    again = twins.train_twin(kind, 1, tokenizer, ids, tmp_path / kind, sizes=SIZES, steps=16, checkpoints=(0, 4, 16))
    assert again == losses


def test_the_stored_table():
    table = results.load("twins")
    birth = results.provenance("twins")["settings"]
    layers = table[table.row == "layer"]
    assert layers.converged.all() and set(layers.positions) == set(training.KINDS)
    shape = birth["sizes"]["layers"] * len(birth["lengths"]) * birth["windows"] * len(birth["checkpoints"])
    assert (layers.groupby(["positions", "seed"]).size() == shape).all()
    ends = table[table.row == "loss"].sort_values("step").groupby(["positions", "seed"]).loss
    assert (ends.last() < ends.first() - 2).all()
    # 1 <= |P| <= sqrt(its largest column sum), up to single precision
    assert (layers.attention_norm > 1 - 1e-5).all() and (layers.attention_norm**2 < layers.column * (1 + 1e-4)).all()
