"""Every family of transformers against its own network: RoBERTa, DistilBERT, ViT, and Llama-type with rotary places."""

import json
from functools import cache

import pytest
import torch
from cases import normal, relative
from hub import WORDS, given, tiny_bert, tiny_gpt2

from lipnb import AttentionJacobian, local_lipschitz, models
from lipnb.jacobian import AutodiffJacobian
from lipnb.models import files

# networks that compute softmax and norms in float32 whatever their type agree with ours to float32
SINGLE = 1e-6
SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
TEXT = dict(vocab_size=len(WORDS), max_position_embeddings=40, **SIZES)
LLAMA = dict(TEXT, bos_token_id=0, eos_token_id=0, pad_token_id=None)
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 10}
FAMILIES = {
    "bert": (None, {}, 1e-10),
    "gpt2": (None, {}, 1e-10),
    "roberta": ("Roberta", dict(TEXT, pad_token_id=1), 1e-10),
    "xlm-roberta": ("XLMRoberta", dict(TEXT, pad_token_id=1), 1e-10),
    "distilbert": (
        "DistilBert",
        dict(vocab_size=len(WORDS), dim=32, n_layers=2, n_heads=4, hidden_dim=48, max_position_embeddings=40),
        1e-10,
    ),
    "vit": ("ViT", dict(image_size=16, patch_size=4, **SIZES), SINGLE),
    "llama": ("Llama", dict(LLAMA, num_key_value_heads=2), SINGLE),
    "llama biased": ("Llama", dict(LLAMA, num_key_value_heads=1, attention_bias=True, rope_theta=100.0), SINGLE),
    "llama yarn": ("Llama", dict(LLAMA, num_key_value_heads=2, rope_parameters=YARN), SINGLE),
    "mistral": ("Mistral", dict(LLAMA, num_key_value_heads=2, sliding_window=16), SINGLE),
    "qwen2": ("Qwen2", dict(LLAMA, num_key_value_heads=4), SINGLE),
}
NAMES = pytest.mark.parametrize("name", FAMILIES)


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
    for name, (kind, settings, _) in FAMILIES.items():
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


@NAMES
def test_our_map_of_what_a_layer_receives_is_what_the_network_gives(families, name):
    model, tolerance = loaded(families, name), FAMILIES[name][2]
    inputs = some_input(model)
    for layer in range(model.layers):
        x, out = given(model, inputs, layer)
        assert torch.equal(x, model.activations(inputs, layer))
        assert relative(model.attention(layer)(x), out) <= tolerance, f"layer {layer}"
        heads = model.attention(layer, "heads")(x)
        module = model.architecture.layers_of(model.module)[layer]
        last = {"distilbert": "attention.out_lin", "vit": "attention.o_proj", "gpt2": "attn.c_proj"}.get(
            name, "attention.output.dense" if "bert" in name else "self_attn.o_proj"
        )
        assert relative(module.get_submodule(last)(heads), out) <= tolerance, f"layer {layer}, heads"


@NAMES
def test_the_block_is_what_the_layer_computes(families, name):
    model, tolerance = loaded(families, name), FAMILIES[name][2]
    inputs = some_input(model)
    x = model.activations(inputs, 1, "block")
    seen = []
    module = model.architecture.layers_of(model.module)[1]
    after = {"distilbert": "ffn", "vit": "layernorm_after", "gpt2": "ln_2"}.get(
        name, "intermediate" if "bert" in name else "post_attention_layernorm"
    )
    hook = module.get_submodule(after).register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    model.module(**{model.architecture.reads: inputs})
    hook.remove()
    assert relative(model.attention(1, "block")(x), seen[0]) <= tolerance


@NAMES
def test_masks_are_those_of_the_family(families, name):
    model = loaded(families, name)
    assert model.masked == (name in ("gpt2", "llama", "llama biased", "llama yarn", "mistral", "qwen2"))
    x = model.activations(some_input(model), 1)
    changed = x.clone()
    changed[:, 8:] += 1.0
    change = (model.attention(1)(changed) - model.attention(1)(x))[:, :8].abs().max()
    assert change == 0 if model.masked else change > 1e-3


def test_a_roberta_can_be_a_decoder(families):
    for name in ["roberta", "xlm-roberta"]:
        model = loaded(families, name, masked=True)
        inputs = some_input(model)
        x, out = given(model, inputs, 1)
        assert model.masked and relative(model.attention(1)(x), out) <= 1e-10


@NAMES
def test_the_constant_is_that_of_automatic_differentiation(families, name):
    model = loaded(families, name)
    inputs = some_input(model, n=5, b=1)
    f, x = model.attention(1), model.activations(inputs, 1)
    expected = AutodiffJacobian(f, x).dense()
    assert relative(AttentionJacobian(f, x).dense(), expected) < 1e-12
    got = local_lipschitz(f, x, rtol=1e-6)
    assert got.route in ("cached", "dense")
    assert relative(got.value, torch.linalg.matrix_norm(expected, 2)) < 1e-5


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


def test_logits_of_rotary_attention_depend_on_distances_alone(families):
    f = loaded(families, "llama").attention(0)
    x = normal(1, 32).expand(9, 32)
    query, key, _ = f.project(x)
    logits = f.products(query, key)  # of one token, at nine places: constant along diagonals, and not across them
    assert relative(logits[:, 1:, 1:], logits[:, :-1, :-1]) < 1e-5
    assert (logits[:, 0, 0] - logits[:, 0, 5]).abs().min() > 1e-3


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ({"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4, "factor": 2.0}}, "rope_type = 'spiral'"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "is not a valid Llama configuration: .*short_factor"),
        ({"model_type": "mamba"}, "is a mamba model, which is not supported: its layers do not hold one attention"),
    ],
)
def test_what_is_not_known_is_refused(families, tmp_path, entries, sentence):
    (tmp_path / "config.json").write_text(
        json.dumps(json.loads((families / "llama" / "config.json").read_text()) | {"rope_parameters": None} | entries)
    )
    with pytest.raises(ValueError, match=sentence):
        models.load(tmp_path, random=True)


def test_code_in_a_model_folder_never_runs(families, tmp_path):
    """auto_map names Python code beside the weights: our families are read without it, others are refused."""
    witness = tmp_path / "it ran"
    for model_type, fails in (("llama", False), ("their own", True)):
        folder = tmp_path / model_type
        folder.mkdir()
        for file in (families / "llama").iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        code = f"open({str(witness)!r}, 'w').close()\nfrom transformers import LlamaConfig, LlamaModel, BertTokenizer\n"
        (folder / "theirs.py").write_text(code + "class C(LlamaConfig): pass\nclass M(LlamaModel): pass\n")
        for name in ("config.json", "tokenizer_config.json"):
            entries = json.loads((folder / name).read_text())
            entries["auto_map"] = {
                "AutoConfig": "theirs.C",
                "AutoModel": "theirs.M",
                "AutoTokenizer": ["theirs.BertTokenizer", None],
            }
            entries |= {"model_type": model_type} if name == "config.json" else {}
            (folder / name).write_text(json.dumps(entries))
        if fails:
            with pytest.raises(ValueError, match="is a their own model, which is not supported: this version"):
                models.load(folder)
        else:
            model = models.load(folder)
            assert model.token_ids("alice").tolist() and type(model.module).__name__ == "LlamaModel"
        assert not witness.exists()
