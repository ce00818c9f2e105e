"""Layers by their own modules: the map of the network at each length, or a sentence that says on what it depends."""

from dataclasses import replace
from types import SimpleNamespace

import model_types
import pytest
import torch
from cases import normal, relative
from hub import small_model

from lipnb import local_lipschitz, scan
from lipscan import models
from lipscan.models.module_attention import OwnAttention
from lipscan.models.network import some_inputs


def test_a_layer_of_own_modules_is_scanned_to_its_report(tmp_path):
    model_types.written(tmp_path / "it", "afmoe")
    options = {"tokenizer": tmp_path / "it" / "tokenizer", "lengths": [5, 9], "progress": False}
    text = " ".join(model_types.WORDS * 4)
    found = scan(tmp_path / "it", text + "\n", output=tmp_path / "out", **options)
    assert found.table.passed.all() and {*found.table.route} == {"autodiff"}
    assert found.heads.empty and {*found.tokens.layer} == {0, 1}
    assert len(found.whole) >= 3 and found.report(tmp_path).is_file()
    assert (tmp_path / "out" / "heads.csv").read_text().startswith("layer,")
    assert scan(tmp_path / "it", text + "\n", output=tmp_path / "out", **options).table.equals(found.table)
    weights = found.about["settings"]["weights_sha256"]
    model_types.written(tmp_path / "it", "afmoe", seed=2)
    other = scan(tmp_path / "it", text + "\n", output=tmp_path / "other", **options)
    assert other.about["settings"]["weights_sha256"] != weights


SIZES = dict(hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=2, vocab_size=40)


EXPERTS = dict(moe_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1)


RANKS = dict(q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8)


def loaded(folder, kind, **settings):
    """A small random model of one kind, float64."""
    return models.load(
        small_model(folder, kind, SIZES | {"max_position_embeddings": 128} | settings), dtype=torch.float64
    )


def texts(model, n):
    return some_inputs(model.module, "input_ids", n, count=2, seed=7)


def sparse(folder, most, layers=2):
    """A model whose second layer attends to what the first one chose, `most` tokens for each."""
    chosen = {"index_topk": most, "index_n_heads": 2, "index_head_dim": 8, "num_hidden_layers": layers}
    kinds = {"indexer_types": ["full", "shared"][:layers], "first_k_dense_replace": 1, "n_shared_experts": 1}
    return loaded(folder, "glm_moe_dsa", **RANKS, **EXPERTS, **chosen, **kinds)


def test_a_layer_that_takes_what_an_earlier_one_chose_is_refused_from_the_length_where_there_is_a_choice(tmp_path):
    model = sparse(tmp_path, 16)
    for n in (16, 24):
        ids = texts(model, n)
        for layer in (0, 1):
            x, f = model.activations(ids, layer), model.attention(layer)
            if n <= 16 or layer == 0:
                assert relative(f(x), models.readings(model, ids)[layer].given) < 1e-10
                continue
            for ask in (f, lambda x, f=f: local_lipschitz(f, x), model.attention(layer, n=n)):
                with pytest.raises(ValueError, match="prev_topk.*16 tokens or fewer"):
                    ask(x)
            read = models.readings(model, ids)[layer]  # the way out that the sentence names
            assert read.whole(read.stream).shape == read.stream.shape


def test_a_choice_among_the_fewest_tokens_is_refused_when_loaded(tmp_path):
    with pytest.raises(ValueError, match="earlier.*with 4 tokens"):
        sparse(tmp_path, 4)


class Layer(torch.nn.Module):
    """Attention whose values are scaled by `gate`, and by what `box` holds."""

    def __init__(self, box):
        super().__init__()
        self.box = box

    def forward(self, hidden_states, gate=None, past=None):
        scores = (hidden_states @ hidden_states.mT).softmax(-1)
        return scores @ hidden_states * (1 if gate is None else gate) * self.box.get("scale", 1.0)


class Network(torch.nn.Module):
    """Two layers; `gate` and `box` of the second as `kind` says, from more than `few` tokens on."""

    device, dtype = torch.device("cpu"), torch.float64

    def __init__(self, kind, few):
        super().__init__()
        self.config, self.kind, self.few, self.box = SimpleNamespace(vocab_size=40, hidden_size=4), kind, few, {}
        self.table = torch.nn.Embedding.from_pretrained(normal(40, 4))
        self.layers = torch.nn.ModuleList([Layer({}), Layer(self.box)])

    def forward(self, input_ids):
        x = self.table(input_ids)
        first = self.layers[0](x)
        gates = {"ids": x[..., :1], "earlier": first[..., :1], "position": torch.arange(1.0, 1 + x.shape[1])[:, None]}
        gate = gates.get(self.kind) if x.shape[1] > self.few else None
        if self.kind == "hidden" and x.shape[1] > self.few:
            self.box["scale"] = x.norm()
        out = self.layers[1](first, gate)
        self.box.clear()
        return SimpleNamespace(last_hidden_state=out)


@pytest.mark.parametrize("few", [0, 12])
@pytest.mark.parametrize(
    ("kind", "words"),
    {"ids": "argument gate", "earlier": "earlier layers", "hidden": "more than", "position": None}.items(),
)
@torch.no_grad()
def test_the_sentence_says_on_what_a_module_depends_and_from_which_length_on(kind, words, few):
    network = Network(kind, few)
    own = OwnAttention(network, "input_ids", network.layers[1], network.layers[1])
    for n in (6, 12, 13, 40, 80):
        x = normal(1, n, 4)
        if words is None or n <= few:
            assert own(x).shape == x.shape
            continue
        with pytest.raises(ValueError, match=words) as error:
            own(x)
        assert (f"texts of {few} tokens or fewer" in str(error.value)) == (few > 0)


def test_each_length_is_tried_once(monkeypatch):
    network, passes = Network("position", 0), []
    network.register_forward_pre_hook(lambda *given: passes.append(1))
    for _ in range(3):
        own = OwnAttention(network, "input_ids", network.layers[1], network.layers[1])
        for _ in range(3):
            own(torch.ones(2, 7, 4, dtype=torch.float64))
    assert len(passes) == 3 + 1 + 1  # the plainest text each time, and two others once


def test_a_closed_form_is_held_against_the_network_at_each_length_of_activations(tmp_path):
    model = loaded(tmp_path, "mistral", sliding_window=70, num_hidden_layers=2)
    assert model.activations(texts(model, 100), 1).shape == (2, 100, 16)
    model = models.load(tmp_path)
    model = replace(model, architecture=replace(model.architecture, window=lambda config, layer, number: None))
    assert model.activations(texts(model, 70), 1).shape == (2, 70, 16)
    for _ in range(2):
        with pytest.raises(ValueError, match="at 100 tokens"):
            model.activations(texts(model, 100), 1)
    assert len(models.readings(model, texts(model, 100))) == 2  # the way out that the sentence names


def test_activations_read_once_more_at_a_new_length_alone(tmp_path):
    model, passes = loaded(tmp_path, "llama", num_hidden_layers=2), []
    model.module.register_forward_pre_hook(lambda *given: passes.append(1))
    for n, expected in ((5, 2), (5, 1), (6, 2), (5, 1)):
        passes.clear()
        model.activations(texts(model, n), 1)
        assert len(passes) == expected


def test_a_network_that_looks_at_token_ids_again_is_refused_without_them(tmp_path):
    model = loaded(tmp_path, "llama", num_hidden_layers=2)
    ids = texts(model, 6)[:1]
    x, read = models.readings(model, ids)[0].stream, {}
    assert model.network()(x).shape == x.shape
    model.module.register_forward_pre_hook(
        lambda module, args, kwargs: read.update(ids=kwargs["input_ids"]), with_kwargs=True
    )
    model.module.norm.register_forward_hook(lambda module, args, out: out * (1 + read["ids"][..., None]))
    with pytest.raises(ValueError, match="inputs="):
        model.network()(x[:, :5])
    expected = model.module(input_ids=ids).last_hidden_state
    assert relative(model.network(inputs=ids)(x), expected) < 1e-10


def test_a_map_of_more_tokens_than_a_model_has_positions_is_refused(tmp_path):
    """Dynamic rotary positions: the network turns longer texts by another table."""
    rotary = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    model = loaded(tmp_path, "llama", num_hidden_layers=1, max_position_embeddings=16, rope_parameters=rotary)
    assert model.attention(0, n=16).heads == 2
    with pytest.raises(ValueError, match="has 16 positions, got n = 17"):
        model.attention(0, n=17)
