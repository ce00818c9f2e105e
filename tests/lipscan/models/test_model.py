"""Our attention against the network it was cut from: MiniLM, small random BERT and GPT-2, encoder and masked."""

import copy
import json
import pickle
import shutil
from functools import cache, partial

import pytest
import torch
from cases import normal, relative
from hub import WORDS
from safetensors.torch import load_file, save_file

from lipscan import models

TEXT = "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do."


TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


CASES = {"minilm": {}, "minilm masked": {"masked": True}, "bert": {}, "bert masked": {"masked": True}, "decoder": {}}
CASES |= {"gpt2": {}, "gpt2 layer scaled": {}, "gpt2 unscaled": {}}


@cache
def loaded(root, case, dtype):
    name = case.split()[0] if "minilm" in case or "masked" in case else case
    return models.load("minilm" if name == "minilm" else root / name, dtype=dtype, **CASES[case])


def some_ids(network, n=12, b=2):
    vocabulary = network.module.config.vocab_size
    return torch.randint(vocabulary, (b, n), generator=torch.Generator().manual_seed(0))


def twin(network, ids):
    """What each attention of the running network receives and gives, as (received, given) by layer and object."""
    seen = {}

    def record(key, side, module, args, kwargs, output=None):
        tensor = args[0] if side == 0 else output[0] if isinstance(output, tuple) else output
        seen.setdefault(key, {})[side] = tensor

    hooks = []

    def watch(key, receiver, giver, gives_input=False):
        hooks.append(receiver.register_forward_pre_hook(partial(record, key, 0), with_kwargs=True))
        if gives_input:  # what the output projection receives is what the heads gave
            hooks.append(giver.register_forward_pre_hook(lambda module, args: seen[key].update({1: args[0]})))
        else:
            hooks.append(giver.register_forward_hook(partial(record, key, 1), with_kwargs=True))

    stack = network.module
    for i, layer in enumerate(stack.h if hasattr(stack, "h") else stack.encoder.layer):
        if hasattr(stack, "h"):
            watch((i, "heads"), layer.attn, layer.attn.c_proj, gives_input=True)
            watch((i, "heads+output"), layer.attn, layer.attn)
            watch((i, "block"), layer, layer.ln_2, gives_input=True)
        else:
            watch((i, "heads"), layer.attention.self, layer.attention.self)
            watch((i, "heads+output"), layer.attention.self, layer.attention.output.dense)
            watch((i, "block"), layer.attention, layer.attention)
    with torch.no_grad():
        stack(input_ids=ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    return {key: (sides[0], sides[1]) for key, sides in seen.items()}


def agrees(network, ids, tolerance):
    """Every layer and object receives and gives what the running network says."""
    expected = twin(network, ids)
    assert len(expected) == 3 * network.layers
    for (layer, object), (received, given) in expected.items():
        x = network.activations(ids, layer, object)
        assert x.dtype == given.dtype and x.is_contiguous() and not x.requires_grad
        assert relative(x, received) <= tolerance, f"layer {layer}, {object}: received"
        error = relative(network.attention(layer, object)(x), given)
        assert error <= tolerance, f"layer {layer}, {object}: {error:.1e}"


@pytest.mark.parametrize("case", CASES)
def test_attention_equals_the_running_network(families, case):
    for dtype, tolerance in TOLERANCE.items():
        network = loaded(families, case, dtype)
        agrees(network, network.token_ids(TEXT)[None] if case == "minilm" else some_ids(network), tolerance)


def test_activations_do_not_depend_on_the_chunks_and_stop_at_their_layer(families, monkeypatch):
    network = loaded(families, "bert", torch.float64)
    ids = some_ids(network, b=5)
    whole = network.activations(ids, 0)
    network.activations(ids, 1)  # the first time at this length the layer's map is held against the network
    monkeypatch.setattr("lipnb.checks.TILE", 1)
    later = []
    hook = network.module.encoder.layer[1].register_forward_pre_hook(lambda module, args: later.append(args[0]))
    assert relative(network.activations(ids, 0), whole) < 1e-12
    assert not later
    network.activations(ids, 1)
    hook.remove()
    assert [part.shape[0] for part in later] == [1] * 5
    assert not network.module.encoder.layer[0].attention.self._forward_pre_hooks


def test_a_block_works_in_batch_and_under_torch_func(families):
    for case in ["bert", "gpt2"]:
        network = loaded(families, case, torch.float64)
        block = network.attention(1, "block")
        x = network.activations(some_ids(network, b=3), 1, "block")
        u, w = normal(2, *x.shape)
        assert relative(torch.stack([block(part) for part in x]), block(x)) < 1e-12
        assert relative(torch.func.vmap(block)(x), block(x)) < 1e-12
        tangent = torch.func.jvp(block, (x,), (u,))[1]
        (gradient,) = torch.func.vjp(block, x)[1](w)
        assert relative((block(x + 1e-5 * u) - block(x - 1e-5 * u)) / 2e-5, tangent) < 1e-6
        assert abs((tangent * w).sum() - (gradient * u).sum()) < 1e-10 * tangent.norm() * w.norm()
        assert block.attention.heads == network.heads and callable(block.norm)
        assert "att(norm(x))" in repr(block) if case == "gpt2" else "norm(x + att(x))" in repr(block)


def test_the_key_bias_is_there_although_it_changes_nothing(families):
    for case in ["bert", "gpt2"]:
        network = loaded(families, case, torch.float64)
        ids = some_ids(network)
        x = network.activations(ids, 1)
        keys = network.attention(1).project(x)[1]  # (b, h, n, k)
        if case == "bert":
            expected = network.module.encoder.layer[1].attention.self.key(x)
        else:
            expected = network.module.h[1].attn.c_attn(x).chunk(3, dim=-1)[1]
        assert relative(keys.movedim(1, 2).flatten(-2), expected) < 1e-12


def test_the_map_is_a_copy(families):
    network = copy.deepcopy(loaded(families, "bert", torch.float64))
    before = network.attention(0)
    network.module.encoder.layer[0].attention.self.query.weight.data.zero_()
    assert before.query.any() and not network.attention(0).query.any()


def test_minilm_is_what_it_says(minilm):
    own = {"model": "minilm", "architecture": "BERT", "weights": "pretrained", "masked": False, "tokenizer": "minilm"}
    sizes = {"layers": 6, "heads": 12, "width": 384, "dtype": "float32", "device": "cpu"}
    assert minilm.describe() == own | sizes
    assert not minilm.module.training and not any(p.requires_grad for p in minilm.module.parameters())
    ids = minilm.token_ids("hello world [SEP]")
    assert ids.dtype == torch.long and ids.tolist() == [7592, 2088, 1031, 19802, 1033]  # the text, no marker
    assert len(minilm.token_ids("rabbit " * 700)) == 700


def hub_layout(families, folder, name, rename, extra):
    """A checkpoint with the tensor names that the well-known file on the hub has."""
    shutil.copytree(families / name, folder)
    tensors = load_file(folder / "model.safetensors")
    renamed = {rename(key): tensor for key, tensor in tensors.items()} | extra
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_tensor_names_of_the_well_known_checkpoints_are_understood(families, tmp_path):
    def old(key):
        return "bert." + key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    bert = hub_layout(families, tmp_path / "bert", "bert", old, {"cls.predictions.bias": torch.zeros(len(WORDS))})
    gpt2 = hub_layout(families, tmp_path / "gpt2", "gpt2", str, {"h.0.attn.bias": torch.ones(1, 1, 40, 40).tril()})
    for name, folder in (("bert", bert), ("gpt2", gpt2)):
        expected = loaded(families, name, torch.float32).module.state_dict()
        for key, tensor in models.load(folder).module.state_dict().items():
            assert torch.equal(tensor, expected[key]), key


def test_a_model_survives_a_pickle(families):
    for case in ("bert masked", "gpt2", "minilm"):
        model = loaded(families, case, torch.float32)
        ids = some_ids(model)
        x = model.activations(ids, 1)
        for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
            assert other.architecture is model.architecture and other.describe() == model.describe()
            assert torch.equal(other.activations(ids, 1), x)
            assert torch.equal(other.attention(1)(x), model.attention(1)(x))
            if model.tokenizer is not None:
                assert torch.equal(other.token_ids(TEXT), model.token_ids(TEXT))


def test_all_that_is_known_of_a_family_survives_a_pickle(tmp_path):
    for one in models.ARCHITECTURES.values():
        for part in (one, *one.parts.values()):
            assert pickle.loads(pickle.dumps(part)) is part
    settings = dict(model_type="seed_oss", vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    settings |= dict(num_key_value_heads=2, head_dim=8, intermediate_size=48, max_position_embeddings=40)
    (tmp_path / "config.json").write_text(json.dumps(settings))
    model = models.load(tmp_path, random=True)  # no entry: found by its structure
    other, ids = pickle.loads(pickle.dumps(model)), some_ids(model)
    x = model.activations(ids, 1)
    assert torch.equal(other.activations(ids, 1), x) and other.attending == [0, 1]
    assert torch.equal(other.attention(1)(x), model.attention(1)(x))
