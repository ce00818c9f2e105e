"""Small networks of a few families, and what is theirs alone; their maps are compared in `test_families_drawn.py`."""

import json
from functools import cache

import pytest
import torch
from cases import relative
from hub import WORDS, given, tiny_bert, tiny_gpt2

from lipscan import models
from lipscan.models import files

SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
TEXT = dict(vocab_size=len(WORDS), max_position_embeddings=40, **SIZES)
LLAMA = dict(TEXT, bos_token_id=0, eos_token_id=0, pad_token_id=None)
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 10}
FAMILIES = {
    "bert": (None, {}),
    "gpt2": (None, {}),
    "roberta": ("Roberta", dict(TEXT, pad_token_id=1)),
    "xlm-roberta": ("XLMRoberta", dict(TEXT, pad_token_id=1)),
    "distilbert": (
        "DistilBert",
        dict(vocab_size=len(WORDS), dim=32, n_layers=2, n_heads=4, hidden_dim=48, max_position_embeddings=40),
    ),
    "vit": ("ViT", dict(image_size=16, patch_size=4, **SIZES)),
    "llama": ("Llama", dict(LLAMA, num_key_value_heads=2)),
    "llama biased": ("Llama", dict(LLAMA, num_key_value_heads=1, attention_bias=True, rope_theta=100.0)),
    "llama yarn": ("Llama", dict(LLAMA, num_key_value_heads=2, rope_parameters=YARN)),
    "mistral": ("Mistral", dict(LLAMA, num_key_value_heads=2, sliding_window=16)),
    "qwen2": ("Qwen2", dict(LLAMA, num_key_value_heads=4)),
}


def written(folder, kind, settings):
    """A random network of one kind, saved."""
    import transformers

    network = getattr(transformers, f"{kind}Model")
    with files.quiet(), torch.random.fork_rng():
        network = network(getattr(transformers, f"{kind}Config")(**settings))
        generator = torch.Generator().manual_seed(1)
        for key, parameter in network.named_parameters():
            noise = 0.3 * torch.randn(parameter.shape, generator=generator)
            parameter.data = noise + (1 if "norm" in key.lower() and key.endswith("weight") else 0)
        network.save_pretrained(folder)


@pytest.fixture(scope="session")
def families(tmp_path_factory):
    root = tmp_path_factory.mktemp("families")
    for name, (kind, settings) in FAMILIES.items():
        if kind is None:
            {"bert": tiny_bert, "gpt2": tiny_gpt2}[name](root / name)
            continue
        written(root / name, kind, settings)
        if kind != "ViT":
            from transformers import AutoTokenizer, PreTrainedTokenizerFast

            words = AutoTokenizer.from_pretrained(root / "bert").backend_tokenizer
            PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(root / name)
    return root


@cache
def loaded(root, name, dtype=torch.float64, **options):
    return models.load(root / name, dtype=dtype, **options)


def some_input(model, n=12, b=2):
    generator = torch.Generator().manual_seed(0)
    if model.architecture.reads == "pixel_values":
        return torch.randn(b, 3, 16, 16, generator=generator)
    return torch.randint(5, model.module.config.vocab_size, (b, n), generator=generator)


def test_a_roberta_can_be_a_decoder(families):
    for name in ["roberta", "xlm-roberta"]:
        model = loaded(families, name, masked=True)
        inputs = some_input(model)
        x, out = given(model, inputs, 1)
        assert model.masked and relative(model.attention(1)(x), out) <= 1e-10


def test_how_long_a_sequence_may_be(families):
    for name, most in [("bert", 40), ("roberta", 38), ("mistral", 40), ("llama", 40)]:
        model = loaded(families, name)
        assert model.longest == most
        assert model.activations(some_input(model, n=most), 1).shape[1] == most
        with pytest.raises(ValueError, match=f"{name} has {most} positions, got sequences of {most + 1}"):
            model.activations(some_input(model, n=most + 1), 1)


def test_a_vit_reads_images_of_its_size(families):
    model = loaded(families, "vit")
    assert model.longest == 17 and model.tokenizer is None
    assert model.activations(some_input(model), 0).shape == (2, 17, 32)
    for wrong in (torch.zeros(2, 3, 8, 8), torch.zeros(2, 3, 16, 16, dtype=torch.long), torch.zeros(3, 16, 16)):
        with pytest.raises(ValueError, match=r"vit reads images: .* \(b, 3, 16, 16\)"):
            model.activations(wrong, 0)


def test_what_is_not_known_is_refused(families, tmp_path):
    config = json.loads((families / "llama" / "config.json").read_text()) | {"rope_parameters": None}
    spiral = {"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4, "factor": 2.0}}
    for entries, sentence in (
        (spiral, "rope_type = 'spiral'"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "is not a valid Llama configuration: .*short_factor"),
        ({"model_type": "mamba"}, "is a mamba model, which is not supported: no list of layers was found in it"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | entries))
        with pytest.raises(ValueError, match=sentence):
            models.load(tmp_path, random=True)
