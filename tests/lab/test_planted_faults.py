"""Planted faults: each changes what it says, where it says, against formulas; afterwards the network is as before."""

import pytest
import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from lab.experiments import planted_faults
from lab.experiments.planted_faults import FAULTS, OUTSIDE, Absent, planted
from lipscan.drift.passes import network_of, passed, with_halves
from lipscan.drift.precision import exact

N, LAYER = 16, 1
IDS = torch.randint(5, 60, (1, N), generator=torch.Generator().manual_seed(0))
SHAPE = {"num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 64}


def _drawn(kind, config):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        module = kind._from_config(config, attn_implementation="eager").double().eval().requires_grad_(False)
        for name, one in module.named_parameters():  # trained networks have biases and attention that is not uniform
            one.data = torch.randn_like(one) / (one.shape[-1] ** 0.5 if one.ndim > 1 else 4) + one * ("orm" in name)
    network = network_of(module).to(torch.float64)
    with exact():
        return with_halves(network, IDS)


@pytest.fixture(scope="module")
def networks():
    """A random network of each family, in float64."""
    gpt2 = {"n_layer": 3, "n_embd": 32, "n_head": 4, "vocab_size": 64, "n_positions": 64}
    return {
        "bert": _drawn(BertModel, BertConfig(**SHAPE)),
        "gpt2": _drawn(GPT2LMHeadModel, GPT2Config(**gpt2)),
        "llama": _drawn(LlamaForCausalLM, LlamaConfig(**SHAPE, num_key_value_heads=2, rms_norm_eps=1e-5)),
    }


CASES = [(family, kind, size) for kind, one in FAULTS.items() for family in one.families for size in range(3)]


@pytest.mark.parametrize(("family", "kind", "size"), CASES, ids=lambda one: str(one).replace(" ", "-"))
def test_a_fault_changes_its_half_of_its_layer_and_nothing_before(networks, family, kind, size):
    network, half = networks[family], FAULTS[kind].half_in(family, size)
    assert half in ("attention", "mlp", "both", "layer", *OUTSIDE)
    before = passed(network, IDS)
    with planted(network, network, kind, size, [LAYER], N) as same:
        after = passed(same, IDS)
        fed = passed(same, IDS, streams=before.hidden, attention=before.attention)
    equal = [torch.equal(x, y) for x, y in zip(before.hidden, after.hidden, strict=True)]
    if half in OUTSIDE:
        assert not any(equal) if half == "embedding" else all(equal) and not torch.equal(before.logits, after.logits)
    else:
        assert equal == [True, True, False, False]
        if half != "both":
            assert torch.equal(before.attention[LAYER], after.attention[LAYER]) == (half != "attention")
        if half == "layer":  # the norm after both halves
            assert torch.equal(before.mlp[LAYER], fed.mlp[LAYER])
        # with the right attention put in its place, a fault of attention is gone
        assert torch.equal(before.hidden[LAYER + 1], fed.hidden[LAYER + 1]) == (half == "attention")
    again = passed(network, IDS)
    assert all(map(torch.equal, before.hidden, again.hidden))
    assert before.logits is None or torch.equal(before.logits, again.logits)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_fault_of_no_strength_changes_nothing(networks, dtype):
    network = networks["llama"]
    low = network.to(dtype)
    before = passed(low, IDS)
    for kind in ("LoRA not merged", "quantised tensor", "interleaved rotation", "heads share other keys"):
        with planted(network, low, kind, 2, [0, 1, 2], N, strength=0.0) as same:
            assert all(map(torch.equal, before.hidden, passed(same, IDS).hidden))


def test_what_is_no_fault_in_a_type_is_absent(networks):
    low = networks["llama"].to(torch.bfloat16)
    for kind, size in (("gate in bfloat16", 0), ("rotation in bfloat16", 2)):
        with pytest.raises(Absent), planted(networks["llama"], low, kind, size, [0], N):
            pass


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_truncated_numbers_are_the_nearest_towards_zero(dtype):
    x = torch.randn(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    x = torch.cat([x.to(planted_faults.WIDER[dtype]), torch.tensor([0.0, 1.0, -2.0])])
    cut = planted_faults.truncated(x, dtype)
    step = (cut.view(planted_faults.BITS[dtype]) + 1).view(dtype).double()  # the next number away from zero
    assert (cut.double().abs() <= x.double().abs()).all() and (step.abs() > x.double().abs()).all()
    assert (cut.to(x.dtype) == x).sum() < 100 and torch.equal(cut[-3:].double(), x[-3:].double())


# attention of the llama by formula


def _rotated(x, place, theta, interleaved=False):
    """Vectors (n, k), pairs of whose coordinates are rotated by their place."""
    k = x.shape[-1]
    angle = place[:, None] * theta ** -(torch.arange(0, k, 2) / k).double()
    a, b = (x[:, ::2], x[:, 1::2]) if interleaved else x.chunk(2, -1)
    a, b = a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()
    return torch.stack((a, b), -1).flatten(-2) if interleaved else torch.cat((a, b), -1)


def _attention(network, x, *, theta=10000.0, shift=0, interleaved=False, keys=lambda h: h // 2, scale=1.0, sees=None):
    """What attention of the layer gives for its input x (n, d): head h reads keys ``keys(h)``."""
    layer, place = network.layers[LAYER], torch.arange(N).double()
    x, part = layer.input_layernorm(x), layer.self_attn
    q, k, v = ((x @ one.weight.T).unflatten(-1, (-1, 8)) for one in (part.q_proj, part.k_proj, part.v_proj))
    sees = torch.ones(N, N, dtype=bool).tril() if sees is None else sees
    heads = []
    for h in range(4):
        query, key = (
            _rotated(one, place + more, theta, interleaved) for one, more in ((q[:, h], shift), (k[:, keys(h)], 0))
        )
        logits = (query @ key.T * scale / 8**0.5).masked_fill(~sees, -torch.inf)
        heads.append(logits.softmax(-1) @ v[:, keys(h)])
    return torch.cat(heads, -1) @ part.o_proj.weight.T


Q, K = torch.arange(N)[:, None], torch.arange(N)  # places of a query and of a key
SEES_ONE = (K <= Q) | ((Q == N // 2) & (K == N // 2 + 1))
FORMULAS = [
    ("attention scale", 2, {"scale": 1.1}),
    ("rotary base", 2, {"theta": 1e5}),
    ("positions off by one", 0, {"shift": 1}),
    ("positions off by one", 2, {"shift": 8}),
    ("interleaved rotation", 2, {"interleaved": True}),
    ("heads share other keys", 2, {"keys": lambda h: h % 2}),
    ("heads share other keys", 0, {"keys": lambda h: (1, 0, 0, 1)[h]}),
    ("mask off by one", 0, {"sees": SEES_ONE}),
    ("mask off by one", 1, {"sees": K <= Q + 1}),
    ("mask off by one", 2, {"sees": (K < Q) | ((Q == 0) & (K == 0))}),
    ("window off by one", 0, {"sees": (K <= Q) & (Q - K < N - 1)}),
    ("window off by one", 2, {"sees": (K <= Q) & (Q - K < N // 2)}),
]


@pytest.mark.parametrize(("kind", "size", "options"), FORMULAS)
def test_a_fault_of_attention_is_the_formula(networks, kind, size, options):
    network = networks["llama"]
    with exact():
        before = passed(network, IDS)
        x = before.hidden[LAYER][0]
        assert torch.allclose(_attention(network, x), before.attention[LAYER][0], atol=1e-12)
        wanted = _attention(network, x, **options)
        with planted(network, network, kind, size, [LAYER], N) as same:
            found = passed(same, IDS).attention[LAYER][0]
    assert torch.allclose(found, wanted, atol=1e-10) and not torch.allclose(
        found, before.attention[LAYER][0], atol=1e-3
    )


def test_the_last_tokens_of_a_text_may_be_taken_for_padding(networks):
    with planted(networks["bert"], networks["bert"], "mask off by one", 2, [LAYER], N) as same:
        before = passed(same, IDS).hidden
        other = torch.cat([before[LAYER][:, :-4], before[LAYER][:, -4:] + 1], 1)
        after = passed(same, IDS, streams=[*before[:LAYER], other, *before[LAYER + 1 :]]).hidden
    assert torch.allclose(before[LAYER + 1][:, :-4], after[LAYER + 1][:, :-4], atol=1e-12)


def test_weights_are_rounded_to_so_many_bits(networks):
    network = networks["gpt2"]
    before = network.layers[0].mlp.c_proj.weight.T  # Conv1D keeps its transpose
    for size, bits in enumerate((8, 6, 4)):
        copy = planted_faults.faulty(network, "quantised tensor", size, 0, torch.float32, N)
        weight = copy.mlp.c_proj.weight.T
        step, off = before.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1), (weight - before).abs()
        assert ((weight / step).round() - weight / step).abs().max() < 1e-9
        assert max(len(row.round(decimals=12).unique()) for row in weight) <= 2**bits
        assert (off <= step / 2 + 1e-12).all() and off.max() > step.max() / 4


@pytest.mark.parametrize(("family", "kind"), [("llama", "norm in bfloat16"), ("gpt2", "norm in bfloat16")])
def test_a_norm_in_a_wrong_type_is_near_the_right_one(networks, family, kind):
    """By the relative precision of bfloat16, 2**-8, except a running sum, which loses what it adds."""
    network = networks[family]
    before = passed(network, IDS)
    off = []
    for size in range(3):
        with planted(network, network, kind, size, [LAYER], N) as same:
            after = passed(same, IDS)
        off.append(((after.mlp[LAYER] - before.mlp[LAYER]).norm() / before.mlp[LAYER].norm()).item())
    assert 1e-4 < off[0] < 2**-7 and off[1] < 2**-6 and off[2] < 0.2


def test_a_softmax_in_a_wrong_type_is_rounded(networks):
    logits = torch.randn(2, 4, N, N, generator=torch.Generator().manual_seed(0))
    layer = networks["bert"].layers[0]
    copy = planted_faults.faulty(networks["bert"], "softmax in a wrong type", 0, 0, torch.float32, N)
    assert type(copy.attention.self).__name__ == type(layer.attention.self).__name__
    with planted_faults._Softmax(lambda x: planted_faults.rounded(torch.exp(x))):
        assert torch.equal(torch.nn.functional.softmax(logits, -1), logits.exp().bfloat16().float())
    total = planted_faults._running_sum(torch.full((1, 600), 1.0))
    assert total.item() == 256  # a sum of ones in bfloat16 stays where one is half a step
