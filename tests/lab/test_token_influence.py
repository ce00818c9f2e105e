"""Tables of which token matters: special tokens, what is received, rows of a block matrix, pushes and their slopes."""

import os

import pandas as pd
import pytest
import torch

from lab import figures, results
from lab.experiments import influence
from lab.experiments.loading import load
from lipnb import Attention, AttentionJacobian, AutodiffJacobian, block_norms

alice = pytest.mark.skipif("NLTK_DATA" not in os.environ, reason="NLTK_DATA is not set: no Alice here")

SENTENCE = "Alice was beginning to get very tired"


@pytest.fixture(scope="module")
def head():
    """One random masked head of width 3, and five tokens."""
    generator = torch.Generator().manual_seed(1)
    A, V = torch.randn(2, 3, 3, generator=generator, dtype=torch.float64)
    return Attention.from_matrices(A, V, masked=True), torch.randn(5, 3, generator=generator, dtype=torch.float64)


def test_special_tokens_stand_where_they_are_asked_for():
    model = load("minilm")
    ids = model.token_ids(SENTENCE)[None]
    cls, sep = model.tokenizer.cls_token_id, model.tokenizer.sep_token_id
    assert influence.with_special(model, ids, "none") is ids
    first = influence.with_special(model, ids)[0].tolist()
    assert first == [cls, *ids[0].tolist(), sep]
    middle = influence.with_special(model, ids, "middle")[0].tolist()
    assert middle[len(middle) // 2] == cls and [i for i in middle if i != cls] == ids[0].tolist()


def test_what_is_received_is_a_mean_over_those_that_see():
    norms = torch.tensor([[9.0, 0, 0], [3, 9, 0], [4, 5, 9]])
    seen = torch.ones(3, 3).tril().bool()
    got = influence.received(norms, seen)
    assert got[:2].tolist() == pytest.approx([(25 / 2) ** 0.5, 5]) and got[2].isnan()


@pytest.mark.parametrize("i", [0, 4])
def test_a_row_of_the_matrix_of_norms(head, i):
    attention, x = head
    assert influence.row_norms(attention, x, i, at_once=2, rounds=200) == pytest.approx(block_norms(attention, x)[i])


def test_slopes_are_norms_of_columns_and_short_pushes_follow_them(head):
    attention, x = head
    push = influence.pushes(AttentionJacobian(attention, x.expand(5, 5, 3)), x, rounds=200)
    columns = AttentionJacobian(attention, x).dense().view(15, 5, 3).movedim(1, 0)
    assert push.slope.tolist() == pytest.approx(torch.linalg.matrix_norm(columns, 2).tolist(), rel=1e-6)
    assert (push.direction.norm(dim=-1) - torch.eye(5)).abs().max() < 1e-12
    short = influence.pushed(attention, x, push, 1e-6)
    assert short.tolist() == pytest.approx(push.slope.tolist(), rel=1e-4)


@pytest.mark.parametrize("name", ["minilm", "gpt2-mini"])
def test_the_whole_network_is_the_network(name):
    model = load(name)
    ids = model.token_ids(SENTENCE)[None, :5]
    f, x = influence.embedded(model, ids)
    with torch.no_grad():
        network = getattr(model.module, model.module.base_model_prefix, model.module)
        assert torch.allclose(f(x), network(ids).last_hidden_state, atol=1e-5)
    push = influence.pushes(AutodiffJacobian(f, x.expand(5, -1, -1)), x[0], rounds=2)
    assert influence.pushed(f, x[0], push, 1e-3).tolist() == pytest.approx(push.slope.tolist(), rel=0.05)


def test_ratios_compare_the_first_token_with_the_median_one():
    row = {"model": "minilm", "weights": "trained", "order": "text", "special": "none", "layer": 0}
    rows = [row | {"first_push": p, "median_push": 1, "first_look": 6, "median_look": 2} for p in (1, 4)]
    rows += [rows[0] | {"special": "middle"}, rows[0] | {"weights": "random 1"}]
    got = figures.token_sinks.against_median(pd.DataFrame(rows)).set_index("case")
    assert set(got.index) == {"as read", "random weights"}
    assert got.push["as read"] == pytest.approx(2) and got["look"]["as read"] == pytest.approx(3)


@alice
def test_a_stored_row_is_measured_again():
    rows = results.load("token-sinks")
    row = rows[(rows.model == "gpt2-mini") & (rows.special == "middle")].iloc[2].to_dict()
    assert all(value == pytest.approx(row[name], rel=0.02) for name, value in influence.again(row).items())
