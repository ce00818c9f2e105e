"""Interventions do to attention what they say, and changes of slopes are those that were put in."""

import numpy as np
import pandas as pd
import pytest
import torch
from cases import constant

from lab import results
from lab.experiments import interventions
from lab.experiments.atlas import Condition, windows_of
from lab.experiments.interventions import DELETED, agreement, altered, changes, scaled, without_most_attended
from lipnb.attention import Attention
from lipscan import models

STORED = pytest.mark.skipif("interventions" not in results.names(), reason="the table is not made yet")


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def drawn(heads=2, groups=2, k=4, d=6, **options):
    """A layer with what scaling must take along: biases of queries and keys, an output matrix, more by `options`."""
    query, key, value = numbers(heads, k, d), numbers(groups, k, d, seed=1), numbers(groups, 3, d, seed=2)
    biases = {"query_bias": numbers(heads, k, seed=3), "key_bias": numbers(groups, k, seed=4)}
    return Attention(query, key, value, numbers(heads, d, 3, seed=5), **biases, **options)


def by_hand(f, factor, x):
    """Output and P of a plain layer whose queries are multiplied by a factor, of its tensors alone."""
    query = factor * (torch.einsum("nd,hkd->hnk", x, f.query) + f.query_bias[:, None])
    key = torch.einsum("nd,hkd->hnk", x, f.key) + f.key_bias[:, None]
    logits = query @ key.mT / f.key_width**0.5
    if f.masked:
        logits = logits.masked_fill(torch.ones(len(x), len(x), dtype=torch.bool).triu(1), -torch.inf)
    P = logits.softmax(-1)
    value = torch.einsum("nd,hvd->hnv", x, f.value)
    return torch.einsum("hnv,hmv->nm", P @ value, f.output), P


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0, 2.0])
def test_scaled_queries_give_the_attention_and_the_jacobian_of_dense_formulas(factor, masked):
    f, x = drawn(masked=masked), numbers(2, 5, 6, seed=6)
    found = interventions._measured(scaled(f, factor), x, seed=0)
    for i, one in enumerate(x):
        P = by_hand(f, factor, one)[1]
        assert torch.allclose(scaled(f, factor).probabilities(one), P, atol=1e-12)
        exact = constant(lambda tokens: by_hand(f, factor, tokens)[0], one).item()
        assert found["lipschitz"][i].item() == pytest.approx(exact, rel=1e-3)
        assert found["attention_norm"][i].item() == pytest.approx(np.linalg.norm(P, 2, (1, 2)).max(), rel=2e-3)
        assert found["mean_radius"][i].item() == pytest.approx(one.square().sum(-1).mean().sqrt().item())
    assert torch.equal(f.query, drawn().query)


def test_scaling_multiplies_logits_of_attention_as_transformers_have_it():
    more = {"frequencies": torch.tensor([1.0, 0.3]), "query_norm": numbers(4, 4).abs(), "key_norm": numbers(2, 4).abs()}
    f, x = drawn(heads=4, masked=True, **more), numbers(6, 6, seed=7)
    query, key, _ = f.project(x)
    logits = f.hide(2 * f.products(query, key), 6)
    assert torch.allclose(scaled(f, 2).probabilities(x), logits.softmax(-1), atol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
def test_uniform_attention_grows_as_its_matrix_and_nothing_else(masked):
    f = scaled(drawn(masked=masked), 0)
    matrix = torch.einsum("hmv,hvd->md", f.output, f.value)
    for n in (3, 9):
        weights = torch.ones(n, n).double()
        P = (weights.tril() if masked else weights) / (torch.arange(1, n + 1)[:, None] if masked else n)
        expected = (torch.linalg.matrix_norm(P, 2) * torch.linalg.matrix_norm(matrix, 2)).item()
        found = interventions._measured(f, numbers(1, n, 6), seed=0)
        assert found["lipschitz"].item() == pytest.approx(expected, rel=1e-3)
        assert found["attention_norm"].item() == pytest.approx(torch.linalg.matrix_norm(P, 2).item(), rel=2e-3)


@pytest.mark.parametrize("masked", [False, True])
def test_the_deleted_token_is_the_one_with_the_largest_mean_column(masked):
    f, x = drawn(heads=3, groups=3, masked=masked), numbers(20, 7, 6, seed=8)
    rest, place = without_most_attended(f, x)
    columns = f.probabilities(x).sum(-2)
    alone = 0
    for i, one in enumerate(x):
        j = int(columns[i].numpy().mean(0).argmax())
        assert place[i] == j and torch.equal(rest[i], torch.cat([one[:j], one[j + 1 :]]))
        alone += j != int(columns[i].amax(0).argmax())  # of one head
    assert alone, "no case tells the mean over heads from the largest head"
    assert altered(DELETED, f, x)[2].tolist() == place.tolist() and altered("softer", f, x)[2].isnan().all()


def test_rows_are_those_of_the_layer_after_the_intervention():
    options, condition = {"name": "gpt2-mini", "dtype": "float32"}, Condition("python_reference", count=3)
    rows = pd.DataFrame(interventions._rows(options, condition, 8, 0))
    assert len(rows) == 6 * 3 * len(interventions.INTERVENTIONS)
    assert rows.groupby("window").text.nunique().eq(1).all() and rows.text.nunique() == 3
    assert (rows.deleted.notna() == (rows.intervention == DELETED)).all()
    model = models.load("gpt2-mini")
    ids = windows_of(model, condition, 8)[1:2]
    place = models.position_embeddings(model).mean(0)
    moved = models.with_positions(model, place.expand(512, -1))
    f = model.attention(2).to(dtype=torch.float64)
    own, other = (network.activations(ids, 2)[0].double() for network in (model, moved))
    gone = int(f.probabilities(own).sum(-2).mean(0).argmax())
    rest = torch.cat([own[:gone], own[gone + 1 :]])
    for name, g, x in (
        ("as read", f, own),
        ("sharper", f.replace(query=2 * f.query, query_bias=2 * f.query_bias), own),
        (DELETED, f, rest),
        ("one position", f, other),
    ):
        row = rows[(rows.intervention == name) & (rows.layer == 2) & (rows.window == 1)].iloc[0]
        assert row.lipschitz == pytest.approx(constant(g, x).item(), rel=2e-3), name
    assert set(interventions.FACTORS) < set(interventions.INTERVENTIONS)


def made(noise=0.02):
    """Two layers with slopes 0.5 and 0.3 as read, and the noise of a window in all its rows."""
    draw, rows = np.random.default_rng(0), []
    slopes = {"as read": (0.0, 0.0), "softer": (-0.2, -0.15), "sharper": (0.1, 0.3)}
    for layer in (0, 1):
        for n in (16, 32, 64):
            for window in range(4):
                shared = np.exp(noise * draw.standard_normal())
                for name, (steeper, norm) in slopes.items():
                    key = {"corpus": "alice", "model": "m", "masked": False, "layer": layer, "intervention": name}
                    value = shared * n ** (0.5 - 0.2 * layer + steeper)
                    rows.append(key | {"length": n, "window": window, "lipschitz": value, "attention_norm": n**norm})
    return pd.DataFrame(rows)


def test_changes_are_those_that_were_put_in_and_windows_are_paired():
    table = made()
    found = changes(table.sample(frac=1, random_state=0)).set_index(["intervention", "layer"]).sort_index()
    assert found.loc["softer"].change.tolist() == pytest.approx([-0.2, -0.2])
    assert found.loc["sharper"].norm_change.tolist() == pytest.approx([0.3, 0.3])
    assert found.loc["sharper"].gap.tolist() == pytest.approx([-0.2, -0.2])
    assert (found.high - found.low).max() < 1e-9 and (found.gap_high - found.gap_low).max() < 1e-9
    apart = found.slope.unstack("layer")
    assert (apart[0] - apart[1]).tolist() == pytest.approx([0.2, 0.2], abs=0.05)


def test_agreement_counts_each_layer_once():
    found = changes(made())
    each = agreement(found).set_index("intervention")
    assert each.layers.tolist() == [2, 2] and each.correlation.isna().all() and (each["sign"] == 1).all()
    assert each["within 0.05"].to_dict() == {"softer": 1.0, "sharper": 0.0}
    whole = agreement(found, by=(), limits=(0.2,)).iloc[0]
    assert whole.layers == 4 and whole["within 0.2"] == 1 and whole.correlation == pytest.approx(1)


@STORED
def test_stored_rows_hold_what_theory_says():
    table = results.load("interventions")
    assert table.converged.all() and not table.duplicated([*interventions.KEY, "intervention"]).any()
    complete = table.groupby(["model", "layer", "intervention", "length"]).window.nunique()
    assert complete.nunique() == 1
    assert (table.attention_norm <= table.column**0.5 * (1 + 1e-4)).all() and table.attention_norm.ge(1 - 1e-3).all()
    uniform = table[table.intervention == "uniform"]
    assert (uniform[~uniform.masked].attention_norm - 1).abs().max() < 1e-4
    factor = (uniform.lipschitz / uniform.attention_norm).groupby([uniform.model, uniform.layer])
    assert (factor.max() / factor.min()).max() < 1 + 2e-3 and (uniform.by_value - 1).abs().max() < 1e-4
    entropy = table.set_index([*interventions.KEY, "intervention"]).entropy.unstack()
    assert (entropy.uniform >= entropy.softer).all() and (entropy.softer >= entropy["as read"]).mean() > 0.99
    assert (table.deleted.notna() == (table.intervention == DELETED)).all()
    assert (table.deleted.dropna() < table.length[table.deleted.notna()]).all()
