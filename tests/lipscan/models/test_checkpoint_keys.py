"""Tensors of a checkpoint that its configuration does not describe: named and refused, or harmless and dropped."""

import json
import tempfile
from functools import cache

import model_types
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from lipscan import models
from lipscan.models.files import quiet

MORE = {"jamba": {"attn_layer_period": 2, "attn_layer_offset": 1}}  # of two layers, one with attention


@cache
def tensors(kind, head=None):
    """Configuration and tensors of a small random network, with a head or without, as they are saved."""
    with quiet(), torch.random.fork_rng(), tempfile.TemporaryDirectory() as folder:
        config = transformers.CONFIG_MAPPING[kind](**model_types.small(kind).to_dict() | MORE.get(kind, {}))
        made = getattr(transformers, head)(config) if head else transformers.AutoModel.from_config(config)
        made.save_pretrained(folder)
        with open(f"{folder}/config.json") as file:
            return json.load(file), load_file(f"{folder}/model.safetensors")


def write(folder, config, held, shards=1):
    """A folder in Hugging Face format, in one file or several."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(held, folder / "model.safetensors", {"format": "pt"})
        return folder
    weight_map = {key: f"model-{number % shards}.safetensors" for number, key in enumerate(held)}
    for name in {*weight_map.values()}:
        save_file({key: held[key] for key in held if weight_map[key] == name}, folder / name, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def planted(folder, kind, head, extra, shards=1):
    """The network with tensors more, by name and shape."""
    config, held = tensors(kind, head)
    more = {key: torch.ones(shape).mul(1.5).tril() if len(shape) == 4 else torch.ones(shape) * 1.5
            for key, shape in extra.items()}  # fmt: skip
    return write(folder, config, more | held, shards)


UNDESCRIBED = "that its config.json does not describe and that would be left out|they hold 3 layers, it describes 2"


CAUSAL, MASKED = "LlamaForCausalLM", "BertForMaskedLM"


A = "layers.1.self_attn."


# family, head, tensors more and their shapes
PLANTED = [
    ("llama", None, {f"{A}q_proj.bias": (32,)}),
    ("llama", CAUSAL, {f"model.{A}{part}_proj.bias": (32 if part in "qo" else 16,) for part in "qkvo"}),
    ("llama", CAUSAL, {f"model.{A}q_norm.weight": (8,), f"model.{A}k_norm.weight": (8,)}),
    ("llama", CAUSAL, {f"model.{A}q_proj.lora_A.weight": (2, 32), f"model.{A}q_proj.lora_B.weight": (32, 2)}),
    ("llama", CAUSAL, {f"base_model.model.model.{A}q_proj.lora_A.default.weight": (2, 32)}),
    ("llama", CAUSAL, {f"model.{A}q_proj.weight_scale": (1,)}),
    ("llama", None, {f"{A}k_scale": (1,)}),
    ("llama", None, {f"{A}gate.weight": (4, 32)}),
    ("llama", None, {f"{A}rotary_emb.scale": (4,)}),
    ("llama", CAUSAL, {"model.layers.0.mlp.up_proj.bias": (48,)}),
    ("llama", CAUSAL, {"model.layers.0.input_layernorm.bias": (32,)}),
    ("llama", CAUSAL, {"model.layers.0.post_self_attn_layernorm.weight": (32,)}),
    ("llama", None, {"layers.0.mlp.experts.0.up_proj.weight": (48, 32)}),
    ("llama", None, {"norm.bias": (32,)}),
    ("llama", None, {"layers.0.mask_token": (1, 1, 32)}),
    ("llama", CAUSAL, {"model.embed_norm.weight": (32,)}),
    ("llama", None, {"embed_positions.weight": (40, 32)}),
    ("llama", None, {f"model.{A}q_proj.bias": (32,)}),
    ("llama", CAUSAL, {f"{A}q_proj.bias": (32,)}),
    ("llama", CAUSAL, {"norm.bias": (32,)}),
    ("llama", CAUSAL, {f"module.{A}q_norm.weight": (8,)}),
    ("t5", None, {"encoder.final_norm_2.weight": (32,)}),
    ("llama", None, {"layers.2.self_attn.q_proj.weight": (32, 32)}),
    ("gpt2", "GPT2LMHeadModel", {"transformer.h.0.attn.bias_k": (1, 1, 32)}),
    ("gpt2", None, {"h.0.attn.rel_pos": (9, 4)}),
    ("bert", None, {"encoder.layer.0.attention.self.distance_embedding.weight": (79, 8)}),
    ("bert", MASKED, {"bert.encoder.layer.1.adapter.down.weight": (4, 32)}),
    ("bert", MASKED, {"bert.embeddings.scale": (1,)}),
    ("opt", "OPTForCausalLM", {"model.decoder.layers.0.self_attn.rope.weight": (8,)}),
    ("vit", "ViTForImageClassification", {"vit.layers.0.attention.q_norm.weight": (8,)}),
    ("dinov2", None, {"embeddings.register_tokens": (1, 4, 32)}),
    ("siglip_vision_model", None, {"vision_model.encoder.layers.0.self_attn.q_norm.weight": (8,)}),
    ("jamba", None, {"layers.1.self_attn.q_proj.bias": (32,)}),
    ("seed_oss", None, {f"{A}q_norm.weight": (8,)}),  # by automatic differentiation
]


@pytest.mark.parametrize("number", range(len(PLANTED)))
def test_a_tensor_that_the_configuration_does_not_describe_is_named(number, tmp_path):
    kind, head, extra = PLANTED[number]
    folder = planted(tmp_path / "model", kind, head, extra, shards=1 + number % 3)
    with pytest.raises(ValueError, match=UNDESCRIBED) as caught:
        models.load(folder)
    said = str(caught.value)
    assert len(said.splitlines()) == 1 and ("3 layers" in said or all(key in said for key in [*extra][:3])), said


HARMLESS = [
    ("llama", CAUSAL, {"model.layers.0.self_attn.rotary_emb.inv_freq": (4,)}),
    ("llama", CAUSAL, {"rope.freqs": (4,), "score.weight": (2, 32), "v_head.summary.weight": (1, 32)}),
    ("llama", CAUSAL, {"model.mtp.layers.0.self_attn.q_proj.bias": (32,)}),
    ("llama", None, {"lm_head.weight": (40, 32), "pooler.dense.weight": (32, 32)}),
    ("llama", None, {"layers.0.self_attn.q_proj._extra_state": (0,)}),
    ("gpt2", None, {"h.0.attn.bias": (1, 1, 40, 40), "h.0.attn.masked_bias": ()}),
    ("gpt_neo", None, {"h.0.attn.attention.bias": (1, 1, 40, 40), "h.0.attn.attention.masked_bias": ()}),
    ("gpt_neox", None, {f"layers.0.attention.{name}": shape for name, shape in
                        {"bias": (1, 1, 40, 40), "masked_bias": (), "rotary_emb.inv_freq": (4,)}.items()}),
    ("bert", None, {"pooler.dense.weight": (32, 32), "embeddings.position_ids": (1, 40)}),
    ("bart", None, {"encoder.version": (1,), "final_logits_bias": (1, 40), "decoder.new.weight": (3,)}),
    ("vit", "ViTForImageClassification", {"vit.pooler.dense.bias": (32,), "vit.embeddings.mask_token": (1, 1, 32)}),
    ("clip_text_model", None, {"logit_scale": (), "vision_model.encoder.layers.0.self_attn.q_norm.weight": (8,)}),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(HARMLESS)))
def test_heads_masks_and_frequencies_are_no_hindrance(number, tmp_path):
    kind, head, extra = HARMLESS[number]
    model = models.load(planted(tmp_path / "model", kind, head, extra))
    own = models.load(write(tmp_path / "own", *tensors(kind, head)))
    theirs = own.module.state_dict()
    assert all(torch.equal(value, theirs[key]) for key, value in model.module.state_dict().items())


MASKS = {
    "h.{}.attn.bias": ("gpt2", None),
    "transformer.h.{}.attn.attention.bias": ("gpt_neo", "GPTNeoForCausalLM"),
    "gpt_neox.layers.{}.attention.bias": ("gpt_neox", "GPTNeoXForCausalLM"),
}


def test_a_mask_is_dropped_where_it_is_that_of_the_family(tmp_path):
    """A table of zeros and ones that old releases read as the mask: its numbers decide, not its name."""
    whole = torch.ones(1, 1, 40, 40)
    for number, (key, (kind, head)) in enumerate(MASKS.items()):
        config, held = tensors(kind, head)
        windows = [config["window_size"]] if kind == "gpt_neo" else []
        for kept in [whole.tril(), whole.tril().to(torch.uint8), *(whole.tril() - whole.tril(-w) for w in windows)]:
            models.load(write(tmp_path / f"{number}", config, held | {key.format(1): kept}))
        for other in (whole, whole.triu(), whole.tril() - whole.tril(-7), whole.cumsum(-1) / 40, whole.tril(-1)):
            with pytest.raises(ValueError, match=f"left out, {key.format(1)}: give"):
                models.load(write(tmp_path / f"{number}", config, held | {key.format(1): other}))
    config, held = tensors("llama")
    with pytest.raises(ValueError, match=UNDESCRIBED):
        models.load(write(tmp_path / "llama", config, held | {f"{A}attn.bias": whole.tril()}))


@pytest.mark.parametrize("kind, head", [("llama", CAUSAL), ("bert", MASKED), ("t5", None)])
def test_a_missing_tensor_is_never_drawn(kind, head, tmp_path):
    config, held = tensors(kind, head)
    inner = [key for key in held if not key.startswith(("lm_head", "cls", "decoder"))]
    for number, key in enumerate(inner[:: max(1, len(inner) // 4)]):
        left = {other: value for other, value in held.items() if other != key}
        with pytest.raises(ValueError, match="are not complete: 1 tensors .* are missing|do not fit"):
            models.load(write(tmp_path / str(number), config, left, shards=1 + number % 2))


PREFIXES = ["_orig_mod.", "module.", "module._orig_mod.", "net.backbone.", "model.model."]


@pytest.mark.parametrize("kind, head", [("llama", None), ("bert", MASKED), ("seed_oss", None)])
def test_keys_under_one_prefix_are_those_without_it(kind, head, tmp_path):
    config, held = tensors(kind, head)
    theirs = models.load(write(tmp_path / "own", config, held)).module.state_dict()
    for number, prefix in enumerate(PREFIXES if kind == "llama" else PREFIXES[-2:]):
        folder = write(tmp_path / str(number), config, {prefix + key: value for key, value in held.items()})
        found = models.load(folder).module.state_dict()
        assert found.keys() == theirs.keys() and all(torch.equal(found[key], theirs[key]) for key in found)
        more = {prefix + key: value for key, value in held.items()}
        anchor = next(key for key in more if key.endswith(("q_proj.weight", "query.weight")))
        more[anchor.removesuffix("weight") + "weight_scale"] = torch.ones(1)
        with pytest.raises(ValueError, match=UNDESCRIBED):
            models.load(write(tmp_path / f"{number}-more", config, more))


def test_wrappers_inside_a_network_are_taken_out(tmp_path):
    config, held = tensors("llama", CAUSAL)
    theirs = models.load(write(tmp_path / "own", config, held)).module.state_dict()
    wrapped = {key.replace("layers.1.", "layers.1._checkpoint_wrapped_module."): value for key, value in held.items()}
    wrapped = {f"_fsdp_wrapped_module.{key}": value for key, value in wrapped.items()}
    found = models.load(write(tmp_path / "wrapped", config, wrapped)).module.state_dict()
    assert all(torch.equal(found[key], theirs[key]) for key in theirs)


def test_two_networks_or_two_tensors_for_one_place_are_refused(tmp_path):
    config, held = tensors("llama", None)
    both = {f"{who}.{key}": value + (who == "teacher") for key, value in held.items() for who in ("student", "teacher")}
    with pytest.raises(ValueError, match=r"hold its network 2 times, under student\. and teacher\.: save"):
        models.load(write(tmp_path / "both", config, both))
    key = "layers.0.self_attn.q_proj.weight"
    with pytest.raises(ValueError, match=f"hold two tensors for {key}, .*, which differ"):
        models.load(write(tmp_path / "twice", config, held | {f"model.{key}": held[key] + 1}))
    assert models.load(write(tmp_path / "same", config, held | {f"model.{key}": held[key].clone()})).layers == 2


def test_an_encoder_needs_no_decoder_beside_it(tmp_path):
    config, held = tensors("t5", "T5EncoderModel")
    whole = models.load(write(tmp_path / "whole", config, held))
    assert whole.attention(0).query.abs().sum() > 0
    name = "encoder.block.1.layer.0.SelfAttention.q.weight"
    with pytest.raises(ValueError, match="are not complete: 1 tensors .*SelfAttention.q.weight"):
        models.load(write(tmp_path / "less", config, {key: one for key, one in held.items() if key != name}))
