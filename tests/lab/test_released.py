"""The released quantity and its loop: what it is, what its rates are, and the pieces of the other differences."""

import math

import pandas as pd
import pytest
import torch
from cases import CASES, random_case, relative

from lab import released, results
from lab.experiments import audit, differences
from lipnb import Attention, local_lipschitz
from lipnb.worst_case import tight_input
from lipscan import models

SOME = CASES[::5]
NO_BIAS = {f"{name}_bias": None for name in ("query", "key", "value", "output")}


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("seed", "spread"), SOME)
def test_it_is_the_gradient_of_half_the_squared_output(seed, spread):
    f, x, _ = random_case(seed, n=6, spread=spread)
    half = torch.func.grad(lambda tokens: f(tokens).square().sum() / 2)(x)
    assert relative(released.reported(f, x), half.flatten(1).norm(dim=1).sqrt()) < 1e-12
    as_callable = released.reported(lambda tokens: f(tokens), x)
    assert relative(as_callable, released.reported(f, x)) < 1e-12


@pytest.mark.parametrize(("seed", "spread"), SOME)
def test_its_square_is_at_most_constant_times_output(seed, spread):
    f, x, _ = random_case(seed, n=6, spread=spread)
    bound = local_lipschitz(f, x, method="dense").value * f(x).flatten(1).norm(dim=1)
    assert (released.reported(f, x) ** 2 <= bound * (1 + 1e-12)).all()


@pytest.mark.parametrize("n", [1, 2, 7, 50])
def test_benign_attention_gives_the_fourth_root_of_n(n):
    V, x = normal(3, 4), normal(n, 4, seed=1)
    f = Attention.from_matrices(torch.zeros(4, 4, dtype=torch.float64), V)
    expected = n**0.25 * (V.T @ V @ x.mean(0)).norm().sqrt()
    assert abs(released.reported(f, x) / expected - 1) < 1e-12
    assert abs(local_lipschitz(f, x, method="dense").value / torch.linalg.matrix_norm(V, 2) - 1) < 1e-12


@pytest.mark.parametrize("n", [1, 2, 7, 50])
def test_with_a_mask_too(n):
    V, x = normal(3, 4), normal(1, 4, seed=1).expand(n, 4)
    f = Attention.from_matrices(torch.zeros(4, 4, dtype=torch.float64), V, masked=True)
    harmonic = sum(1 / i for i in range(1, n + 1))
    expected = (2 * n - harmonic) ** 0.25 * (V.T @ V @ x[0]).norm().sqrt()
    assert abs(released.reported(f, x) / expected - 1) < 1e-12


@pytest.mark.parametrize("n", [2, 10, 60])
@pytest.mark.parametrize("R", [4.0, 6.0])
def test_two_clusters_give_the_root_of_n_and_of_the_radius(n, R):
    V = normal(3, 3)
    A = -torch.diag(torch.tensor([1.0, 0.5, 0.2], dtype=torch.float64))
    f, x = Attention.from_matrices(A, V), tight_input(A, n, R)
    pulled = R * (V.T @ V @ x[1] / R).norm()
    expected = ((n - 1) ** 2 + 1 / (n - 1)) ** 0.25 * pulled.sqrt()
    assert abs(released.reported(f, x) / expected - 1) < 1e-6
    defined = math.sqrt(n - 1) * torch.linalg.matrix_norm(V, 2)
    assert abs(local_lipschitz(f, x, method="dense").value / defined - 1) < 1e-6


def test_a_layer_norm_of_gain_one_reports_zero():
    f, x = Attention.from_matrices(normal(5, 5), normal(5, 5, seed=1)), normal(4, 5, seed=2)

    def block(tokens):
        return torch.nn.functional.layer_norm(tokens + f(tokens), (5,), eps=0)

    assert released.reported(block, x) < 1e-7
    assert local_lipschitz(block, x, method="dense").value > 0.5


@pytest.mark.parametrize("seed", range(8))
def test_the_loop_ends_with_the_reported_value_whatever_the_start(seed):
    f, x, _ = random_case(11, n=5)
    found = released.estimate(f, x[0], seed=seed)
    assert found.settled and found.steps == 3
    assert abs(found.value / released.reported(f, x[0]) - 1) < 1e-12
    assert released.estimate(lambda tokens: f(tokens), x[0], seed=seed).value == pytest.approx(found.value, rel=1e-12)


def test_the_twin_finds_the_constant_but_its_rule_is_absolute():
    f, x, _ = random_case(11, n=5)
    dense = local_lipschitz(f, x[0], method="dense").value.item()
    found = released.estimate(f, x[0], threshold=1e-12, most=3000, fed_back=True)
    assert abs(found.value / dense - 1) < 1e-5
    capped = released.estimate(f, x[0], threshold=0.0, most=4, fed_back=True)
    assert capped.steps == 5 and not capped.settled and capped.value < dense
    small = Attention(**{**f.tensors(), "output": f.output / 1000, "output_bias": None}, scale=f.scale, masked=f.masked)
    hasty = released.estimate(small, x[0], fed_back=True)
    assert hasty.settled and hasty.steps <= 2 and not abs(1000 * hasty.value / dense - 1) < 1e-2


def test_matrices_of_columns_and_of_rows():
    h, k = 3, 2
    weights = normal(2, h * k, h * k)  # of queries and keys, (in, out), as GPT-2 stores them
    heads = [W.T.unflatten(0, (h, k)) for W in weights]
    f = Attention(*heads, heads[0])
    x = normal(4, h * k, seed=3)
    for head in range(h):
        here = slice(head * k, (head + 1) * k)
        Wq, Wk = (W[here] for W in weights)
        assert torch.allclose(released.row_matrix(f, head), Wk.T @ Wq / k**0.5, rtol=0, atol=1e-12)
        P = (x @ released.head_matrix(f, head).T @ x.T).softmax(-1)
        assert torch.allclose(P, f.probabilities(x)[head], rtol=0, atol=1e-12)


def test_keys_and_values_beside_the_output():
    f, x, _ = random_case(13, n=4)
    f = Attention(**{name: tensor for name, tensor in f.tensors().items() if not name.startswith("output")})

    def outputs(tokens):
        _, key, value = f.project(tokens)
        return f(tokens), key, value

    out, pullback = torch.func.vjp(outputs, x[0])
    beside = released.with_keys_and_values(f)
    assert abs(released.reported(beside, x[0]) / pullback(out)[0].norm().sqrt() - 1) < 1e-12
    assert released.reported(beside, x).shape == (2,)


def test_dropout():
    f, x, _ = random_case(17, n=6)
    none = released.DropoutAttention(f, rate=0)
    assert torch.allclose(none(x), f(x), rtol=0, atol=1e-12)
    fixed, fresh = (released.DropoutAttention(f, rate=0.3, seed=5, fresh=fresh) for fresh in (False, True))
    assert torch.equal(fixed(x), fixed(x)) and not torch.equal(fresh(x), fresh(x))
    mean = sum(fresh(x) for _ in range(4000)) / 4000
    assert relative(mean, f(x)) < 0.1


@pytest.fixture(scope="module")
def gpt2():
    return audit._gpt2(0)


def test_token_types_add_the_embedding_of_token_0_and_dropout_leaves_no_trace(gpt2):
    ids = audit.random_ids(5, 2)
    plain = audit.received(gpt2, ids, 0)
    assert torch.equal(plain, gpt2.activations(ids, 0))
    network = gpt2.module
    stream = network.wte(ids) + network.wpe(torch.arange(5)) + network.wte.weight[0]
    assert relative(audit.received(gpt2, ids, 0, token_types=True), network.h[0].ln_1(stream)) < 1e-5
    dropped = audit.received(gpt2, ids, 0, dropout=True, seed=1)
    assert relative(dropped, plain) > 0.1
    assert torch.equal(dropped, audit.received(gpt2, ids, 0, dropout=True, seed=1))
    assert not network.training and torch.equal(plain, audit.received(gpt2, ids, 0))


def agrees(stored, now):
    """Every number of a stored row, measured again; nan where it was nan."""
    return all(
        stored[name] == pytest.approx(value, rel=1e-3, abs=1e-6, nan_ok=True)
        if isinstance(value, float)
        else stored[name] == value
        for name, value in now.items()
    )


def test_stored_rows_hold(gpt2):
    table = results.load("released-text")
    for length, dropout in ((2, True), (10, False)):
        rows = table.query("text == 'random' and embedding == 'token 0 added' and window == 1")
        row = rows[(rows.length == length) & (rows.dropout == dropout)].iloc[0]
        assert agrees(row, *audit.text_rows("random", length, [1], "token 0 added", dropout))
    table = results.load("released-adversarial")
    rows = table[(table.model == "minilm") & (table.length == 7)]
    assert len(rows) == 4
    for row in rows.to_dict("records"):
        now = audit.adversarial_row(*(row[name] for name in ("model", "cut", "layer", "head", "object", "length")))
        assert agrees(row, now)


def test_both_quantities_of_every_seed_are_measured_as_those_of_the_released_panel(monkeypatch):
    table = results.load("released-seeds")
    assert table.converged.all() and table.seed.nunique() == len(audit.SEEDS) >= 11
    assert (table.groupby("seed").size() == len(table) / len(audit.SEEDS)).all()
    for name, value in {"TEXT_LENGTHS": (), "ALICE": "random", "ADVERSARIAL": (2, 7)}.items():  # tokens, no text
        monkeypatch.setattr(audit, name, value)
    here = table[table.seed == 3].set_index(["input", "length"])
    now = audit.seed_rows(3)
    assert [(row["input"], row["length"]) for row in now] == [("rows", 2), ("rows", 7), ("columns", 2), ("columns", 7)]
    for row in now:
        assert agrees(here.loc[row["input"], row["length"]], {name: row[name] for name in ("lipschitz", "released")})
    panel = results.load("released-adversarial").query("model == 'gpt2, random'").set_index(["cut", "length"])
    same = table[table.seed == audit.SEED].set_index(["input", "length"]).loc[panel.index]
    for name in ("lipschitz", "released"):  # two tables that were made apart
        assert (same[name] / panel[name] - 1).abs().max() < 1e-3


def test_smaller_radii_are_measured_at_every_seed(monkeypatch):
    table = results.load("released-radii")
    assert table.converged.all() and table.groupby("radius").seed.nunique().to_dict() == dict.fromkeys(
        audit.SMALLER, 11
    )
    monkeypatch.setattr(audit, "RANGE", (7, 12))
    here = table[table.seed == 3].set_index(["radius", "length"])
    now = pd.DataFrame(audit.radius_rows(3)).set_index(["radius", "length"])
    assert len(now) == 6
    apart = now[["lipschitz", "head_alone"]] / here.loc[now.index, ["lipschitz", "head_alone"]] - 1
    assert apart.abs().max(axis=None) < 1e-3
    f = (
        models.load("gpt2", random=True, seed=3).attention(6).to(dtype=torch.float64)
    )  # tokens made apart, and no solver
    x = tight_input(released.head_matrix(f, 0), 7, 10.0)
    one = f.replace(**{name: getattr(f, name)[:1] for name in ("query", "key", "value")}, output=None, **NO_BIAS)
    for g, name in ((f, "lipschitz"), (one, "head_alone")):
        assert local_lipschitz(g, x).value.item() == pytest.approx(here.loc[(10.0, 7), name], rel=1e-3)


def test_every_difference_has_an_effect_or_a_word_on_why_not():
    tables = (results.load(f"released-{name}") for name in ("text", "layers", "adversarial"))
    stored = differences.stored_effects(*tables)
    others = differences.DIFFERENCES.keys() - stored.keys()
    assert others == {"biases", "bound", "pieces", "articles", "stop", "eigenvectors", "missing"}
    table = differences.effects_table(stored | dict.fromkeys(others, "a < b, n^0.26 and n^(1/4)"))
    assert table.count("<tr>") == 1 + 4 + len(differences.DIFFERENCES)
    assert "a &lt; b, n<sup>0.26</sup> and n<sup>1/4</sup>" in table and "n^" not in table


def test_the_released_numbers_come_from_rows():
    """The four numbers that were found with the released script, seed 320."""
    f = models.load("gpt2", random=True, seed=320).attention(6)
    x = tight_input(released.row_matrix(f, 0).double(), 7, 100).float()
    assert released.reported(f, x).item() == pytest.approx(2.66, abs=0.01)
    assert local_lipschitz(f, x).value.item() == pytest.approx(2.84, abs=0.01)
