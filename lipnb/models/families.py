"""The families of transformers whose attention is known here: one entry of ``ARCHITECTURES`` each.

The key is ``model_type`` in config.json. To add a family, say where its parts lie and how its weights split into heads.
"""

from dataclasses import replace

from lipnb.models.layers import Architecture

__all__ = ["ARCHITECTURES"]

ROPES = ("default", "linear", "llama3", "yarn")  # rotations that do not change with the length of a text


def _projections(inner, query, key, value, output, **rest):
    """Weights and biases of four linear maps, under the names that attention has for them."""
    return dict(
        query=query.weight,
        key=key.weight,
        value=value.weight,
        output=output.weight,
        query_bias=query.bias,
        key_bias=key.bias,
        value_bias=value.bias,
        output_bias=output.bias,
        scale=inner.scaling,
        **rest,
    )


def _bert(layer):
    inner = layer.attention.self
    dense = layer.attention.output.dense
    return _projections(inner, inner.query, inner.key, inner.value, dense, heads=inner.num_attention_heads)


def _gpt2(layer):
    inner = layer.attn
    # Conv1D computes x W + b, so W is (in, out): queries, keys, values are blocks of columns, so are heads
    query, key, value = inner.c_attn.weight.T.chunk(3)
    query_bias, key_bias, value_bias = inner.c_attn.bias.chunk(3)
    return dict(
        query=query,
        key=key,
        value=value,
        output=inner.c_proj.weight.T,
        query_bias=query_bias,
        key_bias=key_bias,
        value_bias=value_bias,
        output_bias=inner.c_proj.bias,
        heads=inner.num_heads,
        scale=inner.scaling,
    )


def _distilbert(layer):
    inner = layer.attention
    return _projections(inner, inner.q_lin, inner.k_lin, inner.v_lin, inner.out_lin, heads=inner.n_heads)


def _vit(layer):
    inner = layer.attention
    return _projections(inner, inner.q_proj, inner.k_proj, inner.v_proj, inner.o_proj, heads=inner.num_attention_heads)


def _llama(layer):
    inner = layer.self_attn
    heads = inner.config.num_attention_heads
    return _projections(
        inner,
        inner.q_proj,
        inner.k_proj,
        inner.v_proj,
        inner.o_proj,
        heads=heads,
        groups=heads // inner.num_key_value_groups,
    )


def _after_padding(config):
    """RoBERTa counts places from the one after its padding token's."""
    return config.max_position_embeddings - config.pad_token_id - 1


def _window_everywhere(config, layer):
    """Mistral: all layers have the sliding window of its configuration, or none has."""
    return config.sliding_window


def _window_of_some(config, layer):
    """Qwen2: a list says which layers have the sliding window."""
    return config.sliding_window if config.layer_types[layer] == "sliding_attention" else None


def _patches(config):
    """Every image gives as many tokens: its patches, and one more."""
    return (config.image_size // config.patch_size) ** 2 + 1


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
    matrices=_bert,
    settings={"use_cache": False},
    required={"position_embedding_type": ("absolute",)},
    options={"add_pooling_layer": False},
)
LLAMA = Architecture(
    title="Llama",
    masks=(True,),
    layers="layers",
    attention="self_attn",
    projected="self_attn",
    norm="input_layernorm",
    positions=None,
    pre_norm=True,
    matrices=_llama,
    settings={"use_cache": False},
    required={"rope_type": ROPES},
    rotary="rotary_emb",
)

ARCHITECTURES = {
    "bert": BERT,
    "gpt2": Architecture(
        title="GPT-2",
        masks=(True,),
        layers="h",
        attention="attn",
        projected="attn",
        norm="ln_1",
        positions="wpe",
        pre_norm=True,
        matrices=_gpt2,
        # the same map, but it would compute the logits of a float64 network in float32
        settings={"use_cache": False, "reorder_and_upcast_attn": False},
    ),
    "roberta": replace(BERT, title="RoBERTa", longest=_after_padding),
    "xlm-roberta": replace(BERT, title="XLM-RoBERTa", longest=_after_padding),
    "distilbert": Architecture(
        title="DistilBERT",
        masks=(False,),
        layers="transformer.layer",
        attention="attention",
        projected="attention",
        norm="sa_layer_norm",
        positions="embeddings.position_embeddings",
        pre_norm=False,
        matrices=_distilbert,
    ),
    "vit": Architecture(
        title="ViT",
        masks=(False,),
        layers="layers",
        attention="attention",
        projected="attention",
        norm="layernorm_before",
        positions="embeddings.position_embeddings",
        pre_norm=True,
        matrices=_vit,
        options={"add_pooling_layer": False},
        reads="pixel_values",
        longest=_patches,
    ),
    "llama": LLAMA,
    "mistral": replace(LLAMA, title="Mistral", window=_window_everywhere),
    "qwen2": replace(LLAMA, title="Qwen2", window=_window_of_some),
}
