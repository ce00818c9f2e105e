"""Every family and its switches against the library's own modules; families without an entry; what a load sees."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import relative
from hub import given
from torch.func import jacrev
from transformers.models.starcoder2 import modeling_starcoder2

from lab import results
from lab.verification import families
from lipnb import local_lipschitz
from lipscan import models
from lipscan.models.module_attention import OwnAttention
from lipscan.models.network import some_inputs


def load(folder, model_type, changes=None, **options):
    """A small random model of a family, in float64."""
    settings = families.SMALL[model_type][0] if model_type in families.SMALL else OTHERS[model_type]
    families.written(folder, model_type, deepcopy(settings | (changes or {})))
    return models.load(folder, **{"dtype": torch.float64, **options})


def test_outputs_blocks_and_jacobians_are_those_of_the_library():
    for model_type in families.SMALL:
        found = families.measure(model_type, 0)
        assert found["outcome"] == "right" and found["error"] < 1e-12, found


def test_a_gain_of_rotations_is_in_the_map():
    found = families.measure("llama", 7)
    assert "yarn" in found["switches"] and found["outcome"] == "right", found


def test_a_hybrid_without_rotations_is_loaded():
    """Granite's hybrids have `position_embedding_type` for it, and then no module that rotates."""
    found = families.measure("granitemoehybrid", 4)
    assert "'position_embedding_type': None" in found["switches"] and found["outcome"] == "right", found


def test_of_all_stored_configurations_none_is_wrong():
    stored = results.load("verify-families")
    assert {*stored.family} == {*families.SMALL} and not (stored.outcome == "wrong").any()
    asked = stored[(stored.seed > 0) & (stored.outcome != "none")]
    assert len(asked) >= 200 and (asked.outcome == "right").mean() > 0.8
    assert (stored[stored.seed == 0].error < 1e-12).all()
    one = stored[stored.outcome == "refused"].iloc[0]
    again = families.measure(one.family, one.seed)
    assert (again["outcome"], again["switches"]) == (one.outcome, one.switches)


WRONG = {
    "cohere": {"pairs": "halves"},
    "qwen3": {"window": lambda config, layer, number: config.sliding_window},
    "gemma2": {"matrices": models.ARCHITECTURES["llama"].matrices},
    "mpt": {"relative": None},
    "modernbert": {"window": lambda config, layer, number: config.sliding_window},
}


@pytest.mark.parametrize("model_type", WRONG)
def test_a_map_that_is_not_the_networks_is_not_loaded(model_type, tmp_path, monkeypatch):
    entry = replace(models.ARCHITECTURES[model_type], **WRONG[model_type])
    monkeypatch.setitem(models.ARCHITECTURES, model_type, entry)
    with pytest.raises(ValueError, match=r"the attention of layer \d of .* is not the map that lipnb knows"):
        load(tmp_path, model_type)


@pytest.mark.parametrize(
    ("model_type", "changes", "sentence"),
    [
        ("phi", {"qk_layernorm": True}, "LayerNorm with a bias"),
        ("mpt", {"attn_config": {"clip_qkv": 0.5}}, "clip_qkv"),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm"),
        ("gemma2", {"use_bidirectional_attention": True}, "write is_causal = false"),
        ("mistral", {"sliding_window": 0}, "damaged"),
    ],
)
def test_what_the_closed_form_lacks_is_refused(model_type, changes, sentence, tmp_path):
    with pytest.raises((ValueError, RuntimeError), match=sentence):
        load(tmp_path, model_type, changes)


OTHERS = {
    "falcon": {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "alibi": True},
    "deberta-v2": families.TEXT | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8},
    "umt5": {"vocab_size": 40, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
}


GATED = {f"linear_{name}_head_dim": 8 for name in ("key", "value")}


GATED |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "layer_types": families.LINEAR * 2}


FOUR = families.WIDE | {"num_hidden_layers": 4}


SHARED = {"layers_block_type": ["mamba", "hybrid"] * 2, "mamba_d_state": 8}


# four layers, of which the second and the last hold attention, known by its own module alone or in closed form
HYBRIDS = {
    "qwen3_next": FOUR | GATED | families.EXPERTS | {"shared_expert_intermediate_size": 16},
    "zamba2": FOUR
    | SHARED
    | {"mamba_ngroups": 1, "n_mamba_heads": 4, "chunk_size": 4, "num_mem_blocks": 1, "adapter_rank": 4},
    "recurrent_gemma": FOUR | {"lru_width": 32, "attention_window_size": 5, "block_types": ["recurrent", "attention"]},
    "jamba": families.SMALL["jamba"][0] | {"num_hidden_layers": 4},
    "nemotron_h": families.SMALL["nemotron_h"][0]
    | {"layers_block_type": ["linear_attention", "full_attention", "mlp", "full_attention"]},
}


OTHERS |= HYBRIDS


def inside(model, layer, n):
    """What one attention receives and gives in a pass of the whole network, and its dense Jacobian, by autograd."""
    architecture, found = model.architecture, []
    receiver, giver = architecture.attention_of(model.module, layer), architecture.giver(model.module, layer)
    wanted, counts = architecture.call_of(model.module, layer), [0, 0]

    def begin(module, args, kwargs):
        counts[0] += 1
        if counts[0] == wanted + 1:
            x = (args[0] if args else kwargs["hidden_states"]).detach().requires_grad_(True)
            found.append(x)
            return ((x, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": x})

    def end(module, args, output):
        counts[1] += 1
        if counts[1] == wanted + 1:
            found.append(output[0] if isinstance(output, tuple) else output)

    hooks = [receiver.register_forward_pre_hook(begin, with_kwargs=True), giver.register_forward_hook(end)]
    inputs = some_inputs(model.module, model.architecture.reads, n, seed=2)
    with families.exactly():
        model.module(**{model.architecture.reads: inputs}, use_cache=False)
    for hook in hooks:
        hook.remove()
    x, y = found
    rows = [torch.autograd.grad(entry, x, retain_graph=True)[0].flatten() for entry in y.flatten()]
    return x.detach(), y.detach(), torch.stack(rows)


def assert_right(model, layer, n, tolerance=1e-6):
    """Output and constant of our map against the module itself inside the whole network."""
    x, y, J = inside(model, layer, n)
    f = model.attention(layer, n=n)
    with families.exactly():  # of maps by their own modules
        assert x.shape[1] == n and relative(f(x), y) < tolerance
        found = local_lipschitz(f, x, rtol=1e-8)
    assert relative(found.value[0], torch.linalg.matrix_norm(J, 2)) < tolerance


@pytest.mark.parametrize("model_type", HYBRIDS)
def test_the_layers_of_a_hybrid_that_hold_attention_are_measured(model_type, tmp_path):
    model = load(tmp_path, model_type, HYBRIDS[model_type])
    assert (model.layers, model.attending, model.masked) == (4, [1, 3], True)
    for layer in model.attending:
        assert_right(model, layer, 7)
    ids = some_inputs(model.module, "input_ids", 7, seed=2)
    read = models.readings(model, ids)
    assert [one.received is not None for one in read] == [one.given is not None for one in read] == [False, True] * 2
    for layer in model.attending:
        assert torch.equal(read[layer].received, model.activations(ids, layer))
        assert torch.equal(read[layer].stream, model.activations(ids, layer, "block"))
    for call in (model.attention, lambda layer: model.activations(ids, layer)):
        with pytest.raises(ValueError, match="layer 2 of .* holds no attention: the layers that do are 1, 3"):
            call(2)


def test_decoders_read_in_both_directions_where_their_configuration_says_so(tmp_path):
    both = {"is_causal": False}
    windows = {"use_sliding_window": True, "sliding_window": 3, "layer_types": families.LOCAL}
    cases = [
        ("llama", both, [None, None]),
        ("qwen2", both | windows, [4, None]),
        ("mistral", both, [5, 5]),  # that many on each side, beside itself
        ("gemma3_text", {"use_bidirectional_attention": True, "sliding_window": 6}, [4, None]),
        ("gemma3_text", both, [5, None]),
        ("gpt2", both, [None, None]),
        ("bloom", both, [None, None]),
        ("jamba", both, [None, None]),
    ]
    for i, (model_type, changes, expected) in enumerate(cases):
        model = load(tmp_path / str(i), model_type, changes)
        assert not model.masked and not model.describe()["masked"]
        for layer in model.attending:
            assert model.attention(layer).window == expected[layer]
            assert_right(model, layer, 9, 1e-9)
    for model_type, masked, always in (("mpt", False, "MPT is always masked"), ("vit", True, "ViT is always unmasked")):
        with pytest.raises(ValueError, match=always):
            load(tmp_path / model_type, model_type, masked=masked)
    load(tmp_path / "causal", "llama")  # as LLM2Vec: the weights of a decoder, and code that is not run
    model = models.load(tmp_path / "causal", masked=False, dtype=torch.float64)
    assert not model.masked and not models.random_twin(model).module.config.is_causal
    assert_right(model, 1, 9, 1e-9)


def test_rotations_that_depend_on_the_length_are_those_of_the_length(tmp_path):
    longrope = {"rope_type": "longrope", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 10}
    longrope |= {"short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [2.0, 3.0, 4.0, 5.0]}
    dynamic = {"rope_type": "dynamic", "rope_theta": 50.0, "factor": 2.0}
    wide = {"head_dim": 8, "rope_parameters": {"sliding_attention": longrope, "full_attention": dynamic}}
    cases = [
        ("llama", {"rope_parameters": longrope}),
        ("phi3", {"rope_parameters": longrope, "original_max_position_embeddings": 10}),
        ("gemma3_text", wide),
        ("llama", {"rope_parameters": dynamic}),
    ]
    for i, (model_type, changes) in enumerate(cases):
        model = load(tmp_path / str(i), model_type, changes)
        for n in (9, 10, 11, 40, 9):  # a network that has read a long text reads a short one as before
            assert_right(model, 0, n)
        both = [model.attention(0, n=n).frequencies for n in (10, 11)]
        assert torch.equal(*both) == (i == 3)
        if i < 3:
            with pytest.raises(ValueError, match="one table up to 10 tokens and another beyond: .*attention.layer, n="):
                model.attention(0)
    own = model.attention(0).frequencies
    with torch.no_grad():
        model.module(torch.zeros(1, 50, dtype=torch.long))  # beyond its positions, by hand
    assert torch.equal(model.attention(0).frequencies, own)


@pytest.mark.parametrize("model_type", ["falcon", "deberta-v2", "umt5"])
def test_another_family_goes_by_its_own_modules(model_type, tmp_path):
    model = load(tmp_path, model_type)
    assert model.masked == (model_type == "falcon")
    inputs = some_inputs(model.module, "input_ids", 7, count=2, seed=3)
    for layer in range(model.layers):
        f, (x, y) = model.attention(layer), given(model, inputs, layer)
        assert isinstance(f, OwnAttention) and relative(f(x), y) < 1e-12
    # without the residual and norm that DeBERTa's module goes on to
    assert isinstance(model.architecture.giver(model.module, 0), torch.nn.Linear) == (model_type == "deberta-v2")
    J = jacrev(f)(x[0]).flatten(2).flatten(0, 1)
    found = local_lipschitz(f, x, rtol=1e-6)  # float32 in a part of some resolves no less
    assert found.route == "autodiff" and relative(found.value[0], torch.linalg.matrix_norm(J, 2)) < 2e-6
    with pytest.raises(ValueError, match="measured only by automatic differentiation of its own module"):
        model.attention(0, "block")
    with pytest.raises(ValueError, match=f"cannot be loaded with masked={not model.masked}: leave masked out"):
        models.load(tmp_path, masked=not model.masked)


def test_layers_that_share_a_module_receive_their_own_tokens(tmp_path):
    model = load(tmp_path, "albert", {"num_hidden_layers": 4, "num_hidden_groups": 1, "inner_group_num": 1})
    inputs, seen = some_inputs(model.module, "input_ids", 6, count=2, seed=1), []
    module = model.architecture.attention_of(model.module, 0)
    hook = module.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    model.module(inputs)
    hook.remove()
    for layer in range(4):
        assert torch.equal(model.activations(inputs, layer), seen[layer])
        assert torch.equal(given(model, inputs, layer)[0], seen[layer])


def test_a_network_whose_layers_share_a_module_begins_once(tmp_path):
    model = load(tmp_path, "albert", {"num_hidden_layers": 3, "num_hidden_groups": 1, "inner_group_num": 1})
    ids = some_inputs(model.module, "input_ids", 6, count=2, seed=1)
    read = models.readings(model, ids)
    x = expected = read[0].stream.flip(1).cos()
    for layer in range(3):
        expected = read[layer].whole(expected)
    assert torch.allclose(models.network.whole_network(model, ids)(x), expected, rtol=0, atol=1e-12)


def test_attention_drawn_at_random_is_refused_and_a_draw_without_use_is_not(tmp_path, monkeypatch):
    own = modeling_starcoder2.Starcoder2Attention.forward
    monkeypatch.setitem(OTHERS, "starcoder2", families.TODAY)

    def noisy(self, hidden_states, *args, **kwargs):
        noise = torch.rand(hidden_states.shape[1], 1) if hidden_states.shape[1] > least else torch.zeros(1)
        return own(self, hidden_states * (1 + noise), *args, **kwargs)

    def wasteful(self, *args, **kwargs):
        torch.rand(3), np.random.rand()
        return own(self, *args, **kwargs)

    monkeypatch.setattr(modeling_starcoder2.Starcoder2Attention, "forward", wasteful)
    assert load(tmp_path, "starcoder2").layers == 2
    monkeypatch.setattr(modeling_starcoder2.Starcoder2Attention, "forward", noisy)
    least = 0
    with pytest.raises(ValueError, match="draws random numbers in each pass and gives another output at each call"):
        models.load(tmp_path)
    least = 12  # such as a network that hashes long texts alone
    model = models.load(tmp_path)
    for ask in (lambda ids: models.readings(model, ids), lambda ids: model.attention(0)(torch.ones(1, 16, 32))):
        with pytest.raises(ValueError, match="draws random numbers in each pass"):
            ask(some_inputs(model.module, "input_ids", 16))


def test_a_mask_made_of_padding_tokens_is_not_that_of_the_text(tmp_path, monkeypatch):
    entry = {"vocab_size": 40, "pad_token_id": 0, **families.SIZES, "num_key_value_heads": 2, "head_dim": 8}
    both = {"encoder": entry, "decoder": entry, "vocab_size": 40, "pad_token_id": 0}
    monkeypatch.setitem(OTHERS, "t5gemma", both)
    model = load(tmp_path, "t5gemma")
    ids = some_inputs(model.module, "input_ids", 7, seed=3)
    x, y = given(model, ids, 1)
    assert relative(model.attention(1)(x), y) < 1e-6 and not model.masked  # its softmax is in float32
