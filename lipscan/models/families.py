"""Families of transformers with a known attention layout: one entry of ``ARCHITECTURES`` each.

The key is ``model_type`` in config.json. To add a family, state the paths of its parts and how its weights split into
heads. Each entry is compared with the network's own attention when a model is loaded. A family without an entry is
read by trial (`lipscan.models.trial`), or its own modules are differentiated (`lipscan.models.generic`).
"""

import copyreg
from dataclasses import fields, replace
from operator import attrgetter

import torch

from lipscan.models.images import patches
from lipscan.models.layers import ROPES, Architecture
from lipscan.models.split_heads import fused, linear_maps, separate

__all__ = ["ARCHITECTURES"]

EXACT = {"experts_implementation": "eager"}  # the fast sums over experts do not support float64


def _llama(layer):
    """Recent decoders: separate projections, shared keys, and norms of queries and keys if the layer has them."""
    return _separate_in(layer.self_attn)


def _nemotron_h(layer):
    return _separate_in(layer.mixer)


def _separate_in(inner):
    output = next(getattr(inner, name) for name in ("o_proj", "out_proj", "dense") if hasattr(inner, name))
    found = next((kind for kind in ("norm", "layernorm") if hasattr(inner, f"q_{kind}")), None)
    norms = {} if found is None else {f"{name}_norm": getattr(inner, f"{name[0]}_{found}") for name in ("query", "key")}
    heads, groups = (linear.out_features // inner.head_dim for linear in (inner.q_proj, inner.k_proj))
    maps = linear_maps(inner.q_proj, inner.k_proj, inner.v_proj, output)
    return maps | {"heads": heads, "groups": groups, "scale": inner.scaling} | norms


def _gemma2(layer):
    return _llama(layer) | {"cap": layer.self_attn.attn_logit_softcapping}


def _after_padding(config):
    """Longest text of RoBERTa, which counts positions from the position after its padding token's."""
    return config.max_position_embeddings - config.pad_token_id - 1


def _window_everywhere(config, layer, number):
    """Sliding window of the configuration, the same for all layers, or None.

    A causal token sees that many tokens, itself included; without a mask it sees that many on each side besides itself.
    """
    window = config.sliding_window
    return window if window is None or getattr(config, "is_causal", True) else window + 1


def _window_of_some(config, layer, number):
    """Sliding window of the layers that the configuration lists; None for the others."""
    return _window_everywhere(config, layer, number) if config.layer_types[number] == "sliding_attention" else None


def _in_self_attn(layer):
    """Whether a layer of a hybrid holds attention; the others lack the module, or have None in its place."""
    return getattr(layer, "self_attn", None) is not None


def _and_one(config):
    """Number of tokens of an image: its patches, and a class token."""
    return patches(config) + 1


def _and_two(config):
    """Number of tokens of an image: its patches, a class token and a distillation token."""
    return patches(config) + 2


def _and_registers(config):
    """Number of tokens of an image: its patches, a class token, and registers, on which no other size depends."""
    return _and_one(config) + config.num_register_tokens


def _and_many(config):
    """Number of tokens of an image: its patches, class tokens, and RADIO's registers."""
    count = getattr(config, "n_cls_tokens", None)
    return patches(config) + (config.num_cls_tokens + config.num_registers if count is None else count)


def _and_objects(config):
    """Number of tokens of an image: its patches, a class token, and one token for each object that may be detected."""
    return _and_one(config) + config.num_detection_tokens


def _of_alibi(slopes, longest):
    """Terms that ALiBi adds to logits at the distances j - i from -w to w; causal maps use those up to 0."""
    return slopes[:, None] * torch.arange(1 - longest, longest, device=slopes.device)


def _bloom_relative(network):
    """ALiBi of Bloom: multiples of j, not j - i; the difference is constant in each row, so softmax ignores it."""
    heads = network.config.n_head
    alibi = network.build_alibi_tensor(torch.ones(1, 2, device=network.device), heads, torch.float32)
    return _of_alibi(alibi[:, 0, 1], _bloom_longest(network.config))


def _bloom_longest(config):
    return getattr(config, "seq_length", 2048)


def _mpt_relative(network):
    alibi = network.build_mpt_alibi_tensor(network.config.n_heads, 2, device=network.device)
    return _of_alibi(-alibi[:, 0, 0], network.config.max_seq_len)


def _t5_relative(network):
    """Learned terms of the first layer, added in all layers, for distances up to the longest text."""
    first = network.block[0].layer[0].SelfAttention
    reach = getattr(network.config, "n_positions", 512)
    try:
        return first.compute_bias(1, 2 * reach + 1, past_seen_tokens=reach)[0, :, 0]
    except IndexError:  # more distances than it has terms for
        raise ValueError(
            f"the entries relative_attention_max_distance = {first.relative_attention_max_distance} and "
            f"relative_attention_num_buckets = {first.relative_attention_num_buckets} of its config.json leave no "
            "term for some distances between tokens: make the first larger than a quarter of the second."
        ) from None


def _albert_layers(network):
    """Layers of ALBERT in the order of their use: groups take turns, and the layers of a group follow each other."""
    config = network.config
    each = config.num_hidden_layers / config.num_hidden_groups
    groups = [network.encoder.albert_layer_groups[int(i / each)] for i in range(config.num_hidden_layers)]
    return [layer for group in groups for layer in group.albert_layers]


BERT = Architecture(
    title="BERT",
    masks=(False, True),
    mask_setting="is_decoder",
    layers="encoder.layer",
    attention="attention.self",
    projected="attention.output.dense",
    norm="attention.output.LayerNorm",
    positions="embeddings.position_embeddings",
    pre_norm=False,
    matrices=separate(
        "attention", "self.query self.key self.value output.dense", "self.num_attention_heads", "self.scaling"
    ),
    required={"position_embedding_type": ("absolute",)},
    options={"add_pooling_layer": False},
)
ROBERTA = replace(BERT, title="RoBERTa", longest=_after_padding)
VIT = Architecture(
    title="ViT",
    masks=(False,),
    layers="layers",
    attention="attention",
    norm="layernorm_before",
    positions="embeddings.position_embeddings",
    matrices=separate("attention", "q_proj k_proj v_proj o_proj", "num_attention_heads"),
    options={"add_pooling_layer": False},
    reads="pixel_values",
    longest=_and_one,
)
DINOV2 = replace(
    VIT,
    title="DINOv2",
    layers="encoder.layer",
    norm="norm1",
    after="layer_scale1",
    positions=None,
    options={},
    imagenet=True,
    interpolates=True,
)
# BERT's modules, with the norm before attention
VIDEO_MAE = replace(
    VIT,
    title="VideoMAE",
    layers="encoder.layer",
    projected="attention.output.dense",
    positions=None,
    matrices=separate(
        "attention",
        "attention.query attention.key attention.value output.dense",
        "attention.num_attention_heads",
        "attention.scaling",
    ),
    options={},
    longest=patches,
)
LLAMA = Architecture(
    title="Llama",
    masks=(True, False),
    mask_setting="is_causal",
    layers="layers",
    attention="self_attn",
    norm="input_layernorm",
    matrices=_llama,
    required={"rope_type": ROPES},
    rotary="rotary_emb",
)
GPT2 = Architecture(
    title="GPT-2",
    masks=(True, False),
    mask_setting="is_causal",
    layers="h",
    attention="attn",
    norm="ln_1",
    positions="wpe",
    matrices=fused("attn", "c_attn c_proj", "num_heads", columns=True),
    # the same map, but this setting would compute the logits of a float64 network in float32
    settings={"reorder_and_upcast_attn": False},
)
BART = Architecture(
    title="BART encoder",
    masks=(False,),
    part="encoder",
    layers="layers",
    attention="self_attn",
    norm="self_attn_layer_norm",
    pre_norm=False,
    matrices=separate("self_attn", "q_proj k_proj v_proj out_proj", "num_heads"),
)
T5 = replace(
    BART,
    title="T5 encoder",
    layers="block",
    attention="layer.0.SelfAttention",
    norm="layer.0.layer_norm",
    pre_norm=True,
    matrices=separate("layer.0.SelfAttention", "q k v o", "n_heads"),
    relative=_t5_relative,
    longest=lambda config: getattr(config, "n_positions", 512),
)
CLIP = replace(
    BART,
    title="CLIP text",
    masks=(True,),
    part=None,
    layers="encoder.layers",
    norm="layer_norm1",
    pre_norm=True,
    matrices=separate("self_attn", "q_proj k_proj v_proj out_proj", "num_heads", "scale"),
)
CLIP_VISION = replace(CLIP, title="CLIP vision", masks=(False,), reads="pixel_values", longest=_and_one)
SIGLIP = replace(CLIP, title="SigLIP text", masks=(False,))
SIGLIP_VISION = replace(CLIP_VISION, title="SigLIP vision", longest=patches)
SIGLIP2_VISION = replace(SIGLIP_VISION, title="SigLIP 2 vision", interpolates=True)
AIMV2_VISION = replace(
    SIGLIP_VISION,
    title="AIMv2 vision",
    attention="attention",
    norm="rms_norm1",
    matrices=separate("attention", "q_proj k_proj v_proj out_proj", "num_heads", "scale"),
)


def _towers(text, vision):
    return {"text": replace(text, part="text_model"), "vision": replace(vision, part="vision_model")}


GEMMA2 = replace(
    LLAMA,
    title="Gemma 2",
    after="post_attention_layernorm",
    matrices=_gemma2,
    window=_window_of_some,
    required=LLAMA.required | {"use_bidirectional_attention": (False,)},
)
# bidirectional, like EmbeddingGemma, if the configuration says so
GEMMA3 = replace(GEMMA2, title="Gemma 3", matrices=_llama, required=LLAMA.required)
# hybrids: attention in some layers, a state space or a convolution in the others
JAMBA = replace(LLAMA, title="Jamba", rotary=None, attends=_in_self_attn, options=EXACT)
LFM2 = replace(LLAMA, title="LFM2", norm="operator_norm", attends=_in_self_attn)

ARCHITECTURES = {
    "bert": BERT,
    "gpt2": GPT2,
    "roberta": ROBERTA,
    "xlm-roberta": replace(ROBERTA, title="XLM-RoBERTa"),
    "camembert": replace(ROBERTA, title="CamemBERT"),
    "electra": replace(BERT, title="ELECTRA", options={}),
    "albert": replace(
        BERT,
        title="ALBERT",
        masks=(False,),
        mask_setting=None,
        layers="encoder.albert_layer_groups",
        order=_albert_layers,
        attention="attention",
        projected="attention.dense",
        norm="attention.LayerNorm",
        positions=None,
        matrices=separate("attention", "query key value dense", "num_attention_heads"),
    ),
    "distilbert": Architecture(
        title="DistilBERT",
        masks=(False,),
        layers="transformer.layer",
        attention="attention",
        norm="sa_layer_norm",
        positions="embeddings.position_embeddings",
        pre_norm=False,
        matrices=separate("attention", "q_lin k_lin v_lin out_lin", "n_heads"),
    ),
    "modernbert": Architecture(
        title="ModernBERT",
        masks=(False,),
        layers="layers",
        attention="attn",
        norm="attn_norm",
        matrices=fused("attn", "Wqkv Wo", "config.num_attention_heads", scale=lambda inner: inner.head_dim**-0.5),
        required={"rope_type": ROPES},
        rotary="rotary_emb",
        window=lambda config, layer, number: layer.attn.sliding_window,
    ),
    "bart": BART,
    "t5": T5,
    "whisper": replace(
        BART, title="Whisper encoder", pre_norm=True, reads="input_features", longest=attrgetter("max_source_positions")
    ),
    "vit": VIT,
    "deit": replace(VIT, title="DeiT", imagenet=True, longest=_and_two),
    "ijepa": replace(VIT, title="I-JEPA", imagenet=True, longest=patches),
    "vit_msn": replace(VIT, title="ViT MSN", imagenet=True, options={}),
    # keep all patches instead of a quarter of them drawn at random
    "vit_mae": replace(VIT, title="ViT MAE", imagenet=True, options={}, settings={"mask_ratio": 0.0}),
    "vivit": replace(VIT, title="ViViT"),
    "pixio": replace(
        VIT, title="Pixio", imagenet=True, options={}, positions=None, interpolates=True, longest=_and_many
    ),
    "dinov2": DINOV2,
    "dinov2_with_registers": replace(DINOV2, title="DINOv2 with registers", longest=_and_registers),
    "tipsv2_vision_model": replace(DINOV2, title="TIPSv2 vision", imagenet=False, longest=_and_registers),
    "radio": replace(DINOV2, title="RADIO", imagenet=False, longest=_and_many),
    "videomae": VIDEO_MAE,
    "yolos": replace(VIDEO_MAE, title="YOLOS", options={"add_pooling_layer": False}, longest=_and_objects),
    "dpt": replace(VIDEO_MAE, title="DPT", options={"add_pooling_layer": False}, longest=_and_one),
    "clip": replace(CLIP, title="CLIP", parts=_towers(CLIP, CLIP_VISION)),
    "clip_text_model": CLIP,
    "clip_vision_model": CLIP_VISION,
    "siglip": replace(SIGLIP, title="SigLIP", parts=_towers(SIGLIP, SIGLIP_VISION)),
    "siglip_vision_model": SIGLIP_VISION,
    "siglip2": replace(SIGLIP, title="SigLIP 2", parts=_towers(replace(SIGLIP, title="SigLIP 2 text"), SIGLIP2_VISION)),
    "siglip2_vision_model": SIGLIP2_VISION,
    "metaclip_2": replace(CLIP, title="MetaCLIP 2", parts=_towers(CLIP, CLIP_VISION)),
    "chinese_clip_vision_model": replace(CLIP_VISION, title="Chinese-CLIP vision"),
    "aimv2_vision_model": AIMV2_VISION,
    "opt": replace(
        BART,
        title="OPT",
        masks=(True, False),
        mask_setting="is_causal",
        part="decoder",
        pre_norm=attrgetter("do_layer_norm_before"),
    ),
    "gpt_neo": replace(
        GPT2,
        title="GPT-Neo",
        attention="attn.attention",
        matrices=separate("attn.attention", "q_proj k_proj v_proj out_proj", "num_heads", 1.0),  # no scale
        masks=(True,),
        mask_setting=None,
        window=lambda config, layer, number: config.window_size if config.attention_layers[number] == "local" else None,
    ),
    "gpt_neox": replace(
        LLAMA,
        title="GPT-NeoX",
        attention="attention",
        matrices=fused("attention", "query_key_value dense", "config.num_attention_heads", by_head=True),
    ),
    "bloom": replace(
        GPT2,
        title="BLOOM",
        attention="self_attention",
        projected="self_attention.dense",  # the module itself adds the residual
        norm="input_layernorm",
        positions=None,
        matrices=fused("self_attention", "query_key_value dense", "num_heads", scale="inv_norm_factor", by_head=True),
        required={"slow_but_exact": (False,), "apply_residual_connection_post_layernorm": (False,)},
        relative=_bloom_relative,
        longest=_bloom_longest,
    ),
    "mpt": replace(
        GPT2,
        title="MPT",
        layers="blocks",
        norm="norm_1",
        positions=None,
        matrices=fused("attn", "Wqkv out_proj", "n_heads", scale="softmax_scale"),
        masks=(True,),
        mask_setting=None,
        required={"clip_qkv": (0,)},
        relative=_mpt_relative,
        longest=attrgetter("max_seq_len"),
    ),
    "llama": LLAMA,
    "mistral": replace(LLAMA, title="Mistral", window=_window_everywhere),
    "mixtral": replace(LLAMA, title="Mixtral", window=_window_everywhere, options=EXACT),
    "qwen2": replace(LLAMA, title="Qwen2", window=_window_of_some),
    "qwen3": replace(LLAMA, title="Qwen3", window=_window_of_some),
    "gemma": replace(LLAMA, title="Gemma", required=GEMMA2.required),
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "gemma3": replace(
        GEMMA3,
        part="language_model",
        masks=(True,),
        mask_setting=None,
        required=GEMMA2.required | {"is_causal": (True,)},
    ),
    "phi": replace(LLAMA, title="Phi"),
    "phi3": replace(
        LLAMA,
        title="Phi-3",
        matrices=fused("self_attn", "qkv_proj o_proj", "config.num_attention_heads", "num_key_value_heads"),
        window=_window_everywhere,
    ),
    "olmo2": replace(LLAMA, title="OLMo 2", norm=None, after="post_attention_layernorm"),
    "smollm3": replace(LLAMA, title="SmolLM3", turns=lambda layer: layer.self_attn.use_rope, window=_window_of_some),
    "granite": replace(LLAMA, title="Granite", after="residual_multiplier"),
    "stablelm": replace(LLAMA, title="StableLM"),
    "cohere": replace(LLAMA, title="Cohere", pairs="neighbours"),
    "jamba": JAMBA,
    "bamba": replace(LLAMA, title="Bamba", attends=_in_self_attn),
    "granitemoehybrid": replace(
        LLAMA, title="Granite hybrid", after="residual_multiplier", attends=_in_self_attn, options=EXACT
    ),
    "lfm2": LFM2,
    "lfm2_moe": replace(LFM2, title="LFM2 MoE", rotary="pos_emb", options=EXACT),
    "nemotron_h": replace(
        JAMBA,
        title="Nemotron-H",
        attention="mixer",
        norm="norm",
        matrices=_nemotron_h,
        attends=lambda layer: layer.block_type == "full_attention",
    ),
    "olmo_hybrid": replace(
        LLAMA, title="OLMo hybrid", norm=None, after="post_attention_layernorm", attends=_in_self_attn
    ),
}


def _entry(kind, part):
    """The entry of ``ARCHITECTURES`` that a pickle names."""
    found = ARCHITECTURES[kind]
    return found if part is None else found.parts[part]


def _reduced(architecture):
    """How to pickle an architecture: an entry by its name, as its functions may have none; others by their fields."""
    for kind, one in ARCHITECTURES.items():
        for part, inner in ((None, one), *one.parts.items()):
            if inner is architecture:
                return _entry, (kind, part)
    return Architecture, tuple(getattr(architecture, entry.name) for entry in fields(architecture))


copyreg.pickle(Architecture, _reduced)
