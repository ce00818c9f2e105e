"""Logits: those of the checkpoint's own class of transformers, values and Jacobian in float64, or a true sentence."""

import pickle
from copy import deepcopy

import model_types
import pytest
import torch
from hub import WORDS, small_model, write_tokenizer
from safetensors.torch import load_file, save_file

import lipnb
from lipnb.jacobian import AutodiffJacobian
from lipscan import models
from lipscan.models.files import quiet
from lipscan.models.lm_head import why_no_logits

IDS = torch.tensor([[5, 9, 7, 12]])


UNTIED, TIED = {"tie_word_embeddings": False}, {"tie_word_embeddings": True}


# class -> type, and what its output layer depends on
CASES = {
    "GPT2LMHeadModel": ("gpt2", TIED),
    "LlamaForCausalLM": ("llama", UNTIED),
    "GPTNeoXForCausalLM": ("gpt_neox", UNTIED),  # whose checkpoints name it otherwise
    "PhiForCausalLM": ("phi", UNTIED),  # with a bias
    "OPTForCausalLM": ("opt", TIED),  # behind a projection
    "BloomForCausalLM": ("bloom", TIED),
    "Gemma2ForCausalLM": ("gemma2", TIED | {"final_logit_softcapping": 0.5}),
    "CohereForCausalLM": ("cohere", TIED | {"logit_scale": 0.3}),
    "GraniteForCausalLM": ("granite", UNTIED | {"logits_scaling": 7.0}),
    "BertLMHeadModel": ("bert", TIED | {"is_decoder": True}),
    "RobertaForMaskedLM": ("roberta", UNTIED),
    "DistilBertForMaskedLM": ("distilbert", TIED),
    "AlbertForMaskedLM": ("albert", TIED),
    "ModernBertForMaskedLM": ("modernbert", UNTIED),
    # by automatic differentiation
    "Starcoder2ForCausalLM": ("starcoder2", TIED),
    "Gemma4ForConditionalGeneration": ("gemma4", TIED),  # one that sees too
    "EsmForMaskedLM": ("esm", TIED),
    "DebertaV2ForMaskedLM": ("deberta-v2", UNTIED),
}


def written(folder, name):
    """A checkpoint of such a class with every number random, in float64; and the class as the library reads it."""
    import transformers

    kind, more = CASES[name]
    config = model_types.small(kind)
    for key, value in more.items():
        setattr(config, key, value)
    generator = torch.Generator().manual_seed(1)
    with torch.random.fork_rng(), quiet():
        network = getattr(transformers, name)._from_config(config, dtype=torch.float64)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        network.save_pretrained(folder)
        options = {"dtype": torch.float64, "attn_implementation": "eager"}
        return getattr(transformers, name).from_pretrained(folder, **options).eval()


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_library_with_their_jacobian(tmp_path, name):
    whole, model = written(tmp_path, name), models.load(tmp_path, dtype=torch.float64)
    assert why_no_logits(model) == ""
    x, f = models.readings(model, IDS)[0].stream, models.network.whole_network(model, IDS, "logits")
    with torch.no_grad():
        expected = whole(IDS).logits
    assert torch.allclose(f(x), expected, rtol=1e-9, atol=1e-9 * expected.abs().max())
    inner = next(part for part in whole.modules() if type(part) is type(model.module))
    first = model.architecture.layers_of(inner)[0]

    def own(x):  # the class itself, with other tokens before its first layer
        calls = []

        def begun(module, args, kwargs):
            calls.append(module)
            if len(calls) > 1:  # layers share it
                return None
            return ((x, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": x})

        handle = first.register_forward_pre_hook(begun, with_kwargs=True)
        try:
            return whole(IDS).logits
        finally:
            handle.remove()

    J, expected = AutodiffJacobian(f, x).dense(), AutodiffJacobian(own, x).dense()
    assert expected.abs().max() > 0 and torch.allclose(J, expected, rtol=0, atol=1e-7 * expected.abs().max())


def test_beside_the_network_there_is_its_output_layer_alone_and_it_can_be_pickled(tmp_path):
    written(tmp_path, "LlamaForCausalLM")
    model = models.load(tmp_path)
    own, whole = ({id(one) for one in part.parameters()} for part in (model.module, model.language_model))
    assert own < whole and len(whole - own) == 1
    x, f = models.readings(model, IDS)[0].stream, model.network(to="logits")
    again = deepcopy(model)
    assert torch.equal(again.network(to="logits")(x), f(x)) and again.language_model is not model.language_model
    assert torch.equal(pickle.loads(pickle.dumps(model.language_model))(IDS).logits, model.language_model(IDS).logits)


def test_of_a_tied_layer_the_network_s_own_matrix_is_used(families):
    """Embeddings that were changed, random weights and other positions: logits are those of these."""
    model = models.load(families / "gpt2", dtype=torch.float64)
    silent = models.with_positions(model, 0 * models.position_embeddings(model))
    for one in (model, models.random_twin(model, 3), silent):
        one.module.wte.weight.mul_(1.5)
        x, matrix = models.readings(one, IDS)[0].stream, one.module.wte.weight
        hidden, logits = (models.network.whole_network(one, IDS, to)(x) for to in ("hidden", "logits"))
        assert torch.allclose(logits, hidden @ matrix.mT, rtol=0, atol=1e-12)


def test_of_random_weights_the_output_layer_is_drawn_too(tmp_path):
    written(tmp_path, "LlamaForCausalLM")
    state = torch.get_rng_state()
    one, same, other = (models.load(tmp_path, random=True, seed=seed) for seed in (4, 4, 5))
    matrix, again, another = (model.language_model.lm_head.weight for model in (one, same, other))
    assert torch.equal(matrix, again) and not torch.equal(matrix, another) and torch.equal(state, torch.get_rng_state())
    assert matrix.std().item() == pytest.approx(0.02, rel=0.2)  # its initializer_range


def test_where_there_are_no_logits_the_reason_is_a_true_one(tmp_path):
    for kind, said in (("t5", "one half of an encoder-decoder"), ("vit", "it reads images, not text")):
        model_types.written(tmp_path / kind, kind)
        assert said in why_no_logits(models.load(tmp_path / kind))
    model_types.written(tmp_path / "clip", "clip_text_model")
    assert "no class of clip_text_model models" in why_no_logits(models.load(tmp_path / "clip"))


def test_numbers_of_an_output_layer_that_its_class_does_not_use_are_named(tmp_path):
    """A bias beside an output layer that has none: its maker runs it, and it was dropped without a word."""
    written(tmp_path, "LlamaForCausalLM")
    weights = load_file(tmp_path / "model.safetensors")
    save_file(weights | {"lm_head.bias": torch.ones(40)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = models.load(tmp_path)
    with pytest.raises(ValueError, match="lm_head.bias"):
        model.network(to="logits")
    del weights["lm_head.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert "lm_head.weight" in why_no_logits(models.load(tmp_path))


def test_a_scan_goes_to_the_logits_of_an_untied_layer(tmp_path):
    settings = model_types.small("llama").to_dict() | UNTIED | {"vocab_size": len(WORDS)}
    small_model(write_tokenizer(tmp_path / "llama"), "llama", settings)
    options = {"windows": 1, "layers": [0], "upper": False, "progress": False, "random": True, "lengths": [4]}
    found = lipnb.scan(tmp_path / "llama", "the alice rabbit.\n" * 9, output=tmp_path / "out", **options)
    assert "logits" in {*found.whole.part} and "no_logits" not in found.about["settings"]
