"""Local errors: what is planted in one place is found there, in full, and nowhere else."""

from dataclasses import replace

import pytest
import torch
from hub import small_model
from scans import small

from lipscan import drift, models
from lipscan.drift import local
from lipscan.drift.comparison import Bench
from lipscan.drift.local import at_least, local_errors
from lipscan.drift.passes import Pass, passed

IDS = torch.tensor([[2, 7, 5, 6, 9, 3]])


def pushed(state, size=1e-3):
    """A small change of a state."""
    return size * torch.randn(state.shape, dtype=state.dtype, generator=torch.Generator().manual_seed(0))


def errors(model, other, dtype=torch.float32):
    bench = Bench(model, dtype, other)
    found = local_errors(bench.reference, bench.low, other)
    return {(row["layer"], row["part"]): row for row in found.rows}, found


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_an_error_after_a_layer_is_that_layers_own(families, name):
    model = small(families / name)
    other = drift.states(model, IDS)
    bench = Bench(model, torch.float32, other)
    change = pushed(other.hidden[1])
    begun = [*other.hidden[:1], other.hidden[1] + change]
    for call in passed(bench.reference, IDS).calls[1:]:  # the layers after it pass it on without an error
        begun.append(call.again(begun[-1]))
    rows, found = errors(model, replace(other, hidden=begun, attention={}, mlp={}, logits=None))
    assert torch.allclose(found.streams[1], change, atol=1e-9)
    assert rows[0, "layer"]["error"] == pytest.approx(change.norm().item())
    assert all(row["error"] < 1e-6 for place, row in rows.items() if place != (0, "layer"))
    signs = begun[1].sign()  # nearly those of the reference
    assert rows[0, "layer"]["leaning"] == pytest.approx((change * signs).sum().item(), abs=0.01)
    assert rows[0, "layer"]["absolute"] == pytest.approx(change.abs().sum().item())


def test_an_error_of_a_half_is_that_halfs_own(families):
    model = small(families / "gpt2")
    other = drift.states(model, IDS)
    for half in ("attention", "mlp"):
        state = getattr(other, half)
        changed = {**state, 2: state[2] + pushed(state[2])}
        rows, _ = errors(model, replace(other, **{half: changed}))
        assert rows[2, half]["error"] == pytest.approx(pushed(state[2]).norm().item())
        others = {place: row["error"] for place, row in rows.items() if place != (2, half)}
        assert max(others.values()) < 1e-6 or half == "attention" and max(others, key=others.get) == (2, "mlp")


def test_floors_are_those_of_the_layers_in_the_type_fed_the_others_states(families):
    model = small(families / "bert")
    other = drift.states(model, IDS, torch.bfloat16)
    rows, _ = errors(model, other, torch.bfloat16)
    for row in rows.values():
        assert row["error"] == pytest.approx(row["floor_eager"], rel=1e-9)  # the same run
        assert row["token_ratio"] == pytest.approx(1, abs=0.3)
        assert {key for key in row if key.startswith("floor_")} >= {"floor_eager", "floor_batch", "floor_order"}
    assert rows[1, "attention"]["floor_sdpa"] != rows[1, "attention"]["floor_eager"]
    assert "floor_sdpa" not in rows[1, "mlp"]


def test_logits_and_the_embedding_have_errors_of_their_own(families):
    model = small(families / "gpt2")
    other = drift.states(model, IDS)
    shifted = replace(other, logits=other.logits + 0.5)
    rows, _ = errors(model, shifted)
    assert rows[4, "logits"]["error"] == pytest.approx(0.5 * other.logits.numel() ** 0.5)
    assert rows[-1, "embedding"]["error"] == 0
    moved = replace(other, hidden=[other.hidden[0] + pushed(other.hidden[0]), *other.hidden[1:]])
    assert errors(model, moved)[0][-1, "embedding"]["error"] == pytest.approx(pushed(other.hidden[0]).norm().item())


def test_where_a_type_makes_no_error_the_floor_is_part_of_its_last_place():
    eps = torch.finfo(torch.float32).eps
    assert at_least(0.0, 4.0, torch.float32) == eps
    assert at_least(eps, 4.0, torch.float32) == eps


def test_a_share_that_leans_is_judged_by_tokens():
    """Tokens that each lean wholly to one side, by turns: entries say that this is no chance, tokens that it is."""
    truth = torch.ones(1, 10, 400, dtype=torch.float64)
    sides = torch.tensor([1.0, 1.0, 1.0, -1.0, 1.0, 1.0, -1.0, 1.0, -1.0, 1.0])[:, None]
    turns = local._leaning(*local._signed(truth * sides, truth))
    assert turns["leaning"] / turns["absolute"] == pytest.approx(0.4)
    assert turns["leaning_noise"] / turns["absolute"] == pytest.approx((0.84 / 10) ** 0.5)
    same = local._leaning(*local._signed(-truth, truth))  # truncation: every token leans by as much
    assert same["leaning"] == -same["absolute"] and same["leaning_noise"] == 0


def test_a_tenth_of_the_tokens_or_two_are_above_a_ratio():
    for n, place in ((40, 5), (24, 3), (6, 3), (2, 2)):  # from the largest, the first is 1
        error = torch.arange(1.0, n + 1)[torch.randperm(n, generator=torch.Generator().manual_seed(n))]
        ones = torch.ones(n)
        floors, error = [local.Floor("eager", 1.0, ones, ones, ones)], error[None, :, None]
        found = local._joined(error, error, floors, 0 * ones, None)
        assert (found["token_tenth"], found["token_worst"]) == (n + 1 - place, n)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_what_a_half_makes_of_its_layer(families, name):
    model = small(families / name)
    own = drift.states(model, IDS)
    wrong = {**own.attention, 1: own.attention[1] + pushed(own.attention[1], 0.1)}
    rows, _ = errors(model, replace(own, attention=wrong))  # written wrong: the states do not have it
    assert rows[1, "attention"]["made"] > 1e3 * rows[1, "layer"]["error"]
    assert rows[0, "attention"]["made"] < 1e-9 and rows[0, "mlp"]["made"] < 1e-9
    if name == "gpt2":  # a sum, without a norm after it
        assert rows[1, "mlp"]["made"] == pytest.approx(rows[1, "mlp"]["error"])
    wrong = {**own.mlp, 1: own.mlp[1] + pushed(own.mlp[1], 0.1)}
    rows, _ = errors(model, replace(own, mlp=wrong))
    if name == "gpt2":
        assert rows[1, "mlp"]["made"] == pytest.approx(0.1 * pushed(own.mlp[1], 1.0).norm().item())
    assert rows[1, "mlp"]["made"] > 1e3 * rows[1, "attention"]["made"]


def test_tokens_that_rounding_may_send_to_other_experts_are_left_out(tmp_path):
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=63)
    more = dict(intermediate_size=48, num_local_experts=4, num_experts_per_tok=1, bos_token_id=0, eos_token_id=0)
    model = models.load(small_model(tmp_path / "moe", "mixtral", sizes | more))
    gate = model.module.layers[1].mlp.gate.weight.data
    gate[1:] = gate[0] + 1e-1 * gate[1:]  # so alike that rounding to bfloat16 decides
    ids = torch.arange(2, 34)[None]
    other = drift.states(model, ids, torch.bfloat16)
    rows, _ = errors(model, other, torch.bfloat16)
    open_ = rows[1, "layer"]["switching"]
    assert 0 < open_ < 32 and rows[1, "mlp"]["switching"] > 0 and rows[0, "layer"]["switching"] < open_
    assert "switching" not in rows[1, "attention"]


def test_a_choice_is_sure_if_it_is_far_from_a_tie_and_no_run_chose_otherwise():
    def run(logits, experts):
        return Pass(routing={0: torch.tensor(logits)}, experts={0: torch.tensor(experts)})

    # far apart; closer than ten errors; chosen otherwise by a run; chosen by more than the logits
    routed = local._Routed(run([[0.0, 2.0], [0.0, 0.5], [9.0, 0.0], [0.0, 5.0]], [[1], [1], [0], [0]]))
    routed.add(run([[0.1, 2.0], [0.1, 0.5], [8.9, 0.0], [0.1, 5.0]], [[1], [1], [1], [0]]))
    routed.add(run([[0.0, 2.0], [0.0, 0.5], [9.0, 0.0], [0.0, 5.0]], [[1], [1], [0], [0]]))
    assert routed.sure(0).tolist() == [True, False, False, True] and routed.sure(1) is None
