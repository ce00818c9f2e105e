"""Small random models of every known family, with random switches: our maps against the modules of transformers.

A configuration may be loaded and right, or refused in a sentence, but a loaded map must not differ from the network.
"""

import dataclasses
import random
import tempfile
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch

from lab.experiments.table import table
from lipnb import AttentionJacobian
from lipscan import models
from lipscan.models.hooks import capture
from lipscan.models.module_attention import OwnAttention
from lipscan.models.network import run, some_inputs

ALLOWED = 1e-9  # relative error, far above rounding in float64 and far below the effect of any switch
GAIN, OF_GAIN = ("yarn", "longrope"), 1e-6  # for these the library multiplies cosines and sines in float32
TOKENS = 9
EACH = 8  # configurations of a family


def numbers(text):
    """Settings from text of the form "name number, name number"."""
    return {name: int(number) for name, number in (one.split() for one in text.split(", "))}


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
TEXT = SIZES | {"vocab_size": 40, "max_position_embeddings": 40}
ENDS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
TODAY = TEXT | ENDS | {"num_key_value_heads": 2}
WIDE = TODAY | {"head_dim": 6}
IMAGE = SIZES | {"image_size": 16, "patch_size": 4}
TWO = numbers("vocab_size 40, d_model 32, encoder_layers 2, decoder_layers 1, encoder_attention_heads 4")
TWO |= numbers("decoder_attention_heads 4, encoder_ffn_dim 48") | numbers(
    "decoder_ffn_dim 48, pad_token_id 0, bos_token_id 1"
)
TWO |= numbers("eos_token_id 2, decoder_start_token_id 2")
LOCAL = ["sliding_attention", "full_attention"]
LINEAR = ["linear_attention", "full_attention"]
CONVOLVED = ["conv", "full_attention"]
STATES = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 4}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}

# model_type -> settings of a small model, and the module of a layer that receives the output of the block: None if the
# feed-forward part reads the same tokens as attention
SMALL = {
    "bert": (TEXT, "intermediate"),
    "gpt2": (
        numbers("vocab_size 40, n_embd 32, n_layer 2, n_head 4, n_positions 40, bos_token_id 0, eos_token_id 0"),
        "ln_2",
    ),
    "roberta": (TEXT | {"pad_token_id": 1}, "intermediate"),
    "xlm-roberta": (TEXT | {"pad_token_id": 1}, "intermediate"),
    "camembert": (TEXT | {"pad_token_id": 1}, "intermediate"),
    "electra": (TEXT | {"embedding_size": 16}, "intermediate"),
    "albert": (TEXT | {"embedding_size": 16, "num_hidden_groups": 2}, "ffn"),
    "distilbert": (
        numbers("vocab_size 40, dim 32, n_layers 2, n_heads 4, hidden_dim 48, max_position_embeddings 40"),
        "ffn",
    ),
    "modernbert": (
        TEXT
        | ENDS
        | numbers("pad_token_id 0, cls_token_id 1, sep_token_id 2, local_attention 6")
        | {"layer_types": LOCAL},
        "mlp_norm",
    ),
    "bart": (TWO | {"max_position_embeddings": 40}, "fc1"),
    "t5": (
        numbers("vocab_size 40, d_model 32, d_kv 6, d_ff 48")
        | numbers("num_layers 2, num_heads 4, relative_attention_num_buckets 8, relative_attention_max_distance 5"),
        "layer.1",
    ),
    "whisper": (TWO | {"num_mel_bins": 8, "max_source_positions": 9, "max_target_positions": 10}, "final_layer_norm"),
    "vit": (IMAGE, "layernorm_after"),
    "dinov2": (IMAGE, "norm2"),
    "clip_text_model": (TEXT | {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}, "layer_norm2"),
    "clip_vision_model": (IMAGE, "layer_norm2"),
    "opt": (
        numbers("vocab_size 40, hidden_size 32, num_hidden_layers 2")
        | numbers("ffn_dim 48, num_attention_heads 4, max_position_embeddings 40, word_embed_proj_dim 24"),
        "final_layer_norm",
    ),
    "gpt_neo": (
        ENDS
        | numbers("vocab_size 40, hidden_size 32, num_layers 2")
        | numbers("num_heads 4, intermediate_size 48, max_position_embeddings 40, window_size 4")
        | {"attention_types": [[["global", "local"], 1]]},
        "ln_2",
    ),
    "gpt_neox": (TEXT, None),
    "bloom": (numbers("vocab_size 40, hidden_size 24, n_layer 2, n_head 6"), "post_attention_layernorm"),
    "mpt": (numbers("vocab_size 40, d_model 24, n_layers 2, n_heads 6, max_seq_len 40"), "norm_2"),
    "llama": (TODAY, "post_attention_layernorm"),
    "mistral": (TODAY | {"sliding_window": 4}, "post_attention_layernorm"),
    "mixtral": (TODAY | {"sliding_window": 4, "num_local_experts": 2}, "post_attention_layernorm"),
    "qwen2": (TODAY, "post_attention_layernorm"),
    "qwen3": (
        WIDE | {"sliding_window": 4, "use_sliding_window": True, "layer_types": LOCAL},
        "post_attention_layernorm",
    ),
    "gemma": (WIDE, "post_attention_layernorm"),
    "gemma2": (
        WIDE | {"sliding_window": 4, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 5},
        "pre_feedforward_layernorm",
    ),
    "gemma3_text": (WIDE | {"sliding_window": 4, "layer_types": LOCAL}, "pre_feedforward_layernorm"),
    "phi": (TODAY, None),
    "phi3": (TODAY | {"sliding_window": 5}, "post_attention_layernorm"),
    "olmo2": (TODAY, "mlp"),
    "smollm3": (
        TODAY | {"no_rope_layers": [1, 0], "use_sliding_window": True, "sliding_window": 4, "layer_types": LOCAL},
        "post_attention_layernorm",
    ),
    "granite": (TODAY | {"attention_multiplier": 0.3, "residual_multiplier": 0.2}, "post_attention_layernorm"),
    "stablelm": (TODAY | {"qk_layernorm": True, "use_qkv_bias": True}, "post_attention_layernorm"),
    "cohere": (TODAY | {"use_qk_norm": True, "attention_bias": True}, None),
    "siglip_vision_model": (IMAGE, "layer_norm2"),
    "jamba": (
        TODAY | numbers("attn_layer_period 2, attn_layer_offset 1, num_experts 2, mamba_d_state 8, mamba_dt_rank 4"),
        "pre_ff_layernorm",
    ),
    "bamba": (TODAY | STATES | {"attn_layer_indices": [1]}, "pre_ff_layernorm"),
    "granitemoehybrid": (
        TODAY
        | STATES
        | {"layer_types": ["mamba", "attention"]}
        | numbers("num_local_experts 2, num_experts_per_tok 1, shared_intermediate_size 16")
        | {"position_embedding_type": "rope", "attention_multiplier": 0.3, "residual_multiplier": 0.2},
        "post_attention_layernorm",
    ),
    "lfm2": (TODAY | {"layer_types": CONVOLVED, "block_multiple_of": 8}, "ffn_norm"),
    "lfm2_moe": (TODAY | EXPERTS | {"layer_types": CONVOLVED}, "ffn_norm"),
    "nemotron_h": (
        WIDE
        | numbers("mamba_num_heads 4, mamba_head_dim 16, ssm_state_size 8, n_groups 1, chunk_size 4")
        | {"layers_block_type": ["linear_attention", "full_attention"]}
        | numbers("n_routed_experts 2, num_experts_per_tok 1, moe_intermediate_size 16"),
        None,
    ),
    "olmo_hybrid": (
        TODAY
        | {"layer_types": LINEAR}
        | numbers("linear_num_key_heads 2, linear_num_value_heads 4")
        | numbers("linear_key_head_dim 8, linear_value_head_dim 8"),
        "mlp",
    ),
}
MIXED = ("granitemoehybrid", "lfm2", "lfm2_moe", "olmo_hybrid")  # hybrids, with layers of other types than `LOCAL`
BY_TYPE = ("modernbert", "gemma3_text")  # rotations by the type of a layer
# switches that do not belong to attention, or that leave no network to compare with
APART = ("use_cache", "tie_word_embeddings", "add_cross_attention", "is_encoder_decoder", "deterministic_flash_attn")
STRETCHED = {"rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 10}
SHORT = [1.0, 1.5, 2.0, 2.5]
CHOICES = {
    "num_key_value_heads": (1, 2, 4),
    "head_dim": (6, 8, 12),
    "sliding_window": (None, 3, 4),
    "window_size": (1, 3, 5),
    "local_attention": (4, 6, 7),
    "use_bidirectional_attention": (None, False, True),
    "attn_logit_softcapping": (None, 0.5, 3.0),
    "query_pre_attn_scalar": (5, 16),
    "attention_multiplier": (0.1, 1.0),
    "residual_multiplier": (0.3, 1.0),
    "layer_norm_eps": (1e-12, 1e-2),
    "rms_norm_eps": (1e-6, 1e-2),
    "layer_norm_epsilon": (1e-5, 1e-2),
    "norm_eps": (1e-5, 1e-2),
    "layer_types": (None, LOCAL, LOCAL[::-1]),
    "no_rope_layers": (None, [1, 1], [0, 1]),
    "max_window_layers": (0, 1, 2),
    "num_hidden_groups": (1, 2),
    "inner_group_num": (1, 2),
    "relative_attention_num_buckets": (4, 8, 32),
    "relative_attention_max_distance": (5, 16),
    "position_embedding_type": ("absolute", "relative_key", "rope", None),
    "attention_types": ([[["global", "local"], 1]], [[["local", "global"], 1]], [[["global"], 2]]),
    "attn_config": (None, {"clip_qkv": 0.5}, {"softmax_scale": 0.1}, {"alibi_bias_max": 4}, {"qk_ln": True}),
    "rope_parameters": (
        None,
        {"rope_type": "default", "rope_theta": 50.0},
        {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.5},
        {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.0},
        {"rope_type": "dynamic", "rope_theta": 50.0, "factor": 2.0},
        {"rope_type": "yarn", **STRETCHED},
        {"rope_type": "llama3", **STRETCHED, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        {"rope_type": "longrope", **STRETCHED, "short_factor": SHORT, "long_factor": [2.0, 3.0, 4.0, 5.0]},
    ),
}


@contextmanager
def exactly():
    """Context in which float32 operations of the library use the type of their tensors; cosines and sines stay."""
    to, softmax = torch.Tensor.to, torch.nn.functional.softmax

    def kept(self, *args, **kwargs):
        args = [arg for arg in args if arg is not torch.float32]
        kwargs = {name: value for name, value in kwargs.items() if value is not torch.float32}
        return to(self, *args, **kwargs) if args or kwargs else self

    with (
        patch.object(torch.Tensor, "to", kept),
        patch.object(torch.Tensor, "float", lambda self: self),
        patch.object(torch.nn.functional, "softmax", lambda x, dim, dtype=None: softmax(x, dim=dim)),
    ):
        yield


def drawn(model_type, seed):
    """Random switches of a configuration: every boolean of its class, and other entries from `CHOICES`.

    `model_type`: a key of `SMALL`. `seed`: the global random state is not changed. Returns entries to add to the
    settings of the small model.
    """
    from transformers import CONFIG_MAPPING, PreTrainedConfig

    chance = random.Random(f"{model_type} {seed}")
    common = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    found = {}
    for field in dataclasses.fields(CONFIG_MAPPING[model_type]):
        if field.name in common or field.name in APART or chance.random() < 0.4:
            continue
        if field.name == "layer_types" and model_type in MIXED:
            continue
        if field.name == "rope_parameters" and model_type in BY_TYPE:
            found[field.name] = {kind: chance.choice(CHOICES[field.name][1:]) for kind in LOCAL}
        elif field.name in CHOICES:
            found[field.name] = chance.choice(CHOICES[field.name])
        elif isinstance(field.default, bool):
            found[field.name] = chance.random() < 0.5
    return found


def written(folder, model_type, settings, seed=1):
    """Save a random network of one family, with all its weights and biases drawn, in a folder."""
    from transformers import CONFIG_MAPPING, AutoModel

    with models.files.quiet(), torch.random.fork_rng():
        network = AutoModel.from_config(CONFIG_MAPPING[model_type](**settings))
        generator = torch.Generator().manual_seed(seed)
        for key, parameter in network.named_parameters():
            noise = 0.3 * torch.randn(parameter.shape, generator=generator)
            parameter.data = noise + (1 if "norm" in key.lower() and key.endswith("weight") else 0)
        network.save_pretrained(folder)


class Layer:
    """A layer as the library runs it, up to the end of its block: from tokens (1, n, d) to tokens (1, n, d).

    `model`: from `lipnb.models.load`. `ends`: the module of the layer that receives the output of the block; None: the
    output is the tokens plus attention.
    """

    def __init__(self, model, number, ends):
        architecture, network = model.architecture, model.module
        self.layer, self.ends = architecture.layers_of(network)[number], ends
        self.giver, call = architecture.giver(network, number), architecture.call_of(network, number)
        self.call = OwnAttention(network, architecture.reads, self.layer, self.giver, call).call

    def __call__(self, x):
        """Output of the block for tokens x, shape (1, n, d)."""
        call = self.call(x.shape[1])
        with capture(self.giver if self.ends is None else self.layer.get_submodule(self.ends)) as ends:
            call.again(x)
        return x + ends[0].given if self.ends is None else ends[0].args[0].reshape(x.shape)


def _misfit(ours, theirs):
    return ((ours - theirs).norm() / theirs.norm()).item()


@table(
    "verify-families",
    "small random models of every family, switches drawn, against the library's own modules",
    over=lambda families, each: [(one, seed) for one in families or SMALL for seed in range(each)],
    settings=lambda families: {"families": families or list(SMALL), "tokens": TOKENS, "allowed": ALLOWED},
    command="make verify",
    families=None,
    each=EACH,
)
def measure(family, seed):
    """Row of one configuration: loaded and compared layer by layer, or refused.

    Returns outcome ("right", "refused", "wrong", or "none" if the library has no such network); error, the largest
    of the relative errors of outputs, Jacobians and blocks; sentence, the refusal.
    """
    settings, ends = SMALL[family]
    switches = drawn(family, seed) if seed else {}
    row = {"switches": str(switches), "error": float("nan"), "sentence": ""}
    with tempfile.TemporaryDirectory() as folder:
        try:
            written(folder, family, deepcopy(settings | switches))  # configurations write into their arguments
            _run(folder)
        except Exception as error:  # the library raises many kinds of errors
            return row | {"outcome": "none", "sentence": _sentence(error)}
        try:
            model = models.load(folder, dtype=torch.float64)
        except (ValueError, RuntimeError) as error:
            return row | {
                "outcome": "refused",
                "sentence": _sentence(error).replace(folder, "it").replace(Path(folder).name, "it"),
            }
    error = max(_errors(model, layer, _end(ends, settings | switches)) for layer in model.attending)
    allowed = OF_GAIN if any(kind in str(switches) for kind in GAIN) else ALLOWED
    return row | {"outcome": "right" if error <= allowed else "wrong", "error": error}


def _sentence(error):
    return (str(error) or type(error).__name__).strip().splitlines()[-1][:200]


@torch.no_grad()
def _run(folder):
    """Check whether the library itself can read and run the network."""
    from transformers import AutoModel

    with models.files.quiet(), torch.random.fork_rng():  # some draw what they then read
        network = AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    architecture = models.ARCHITECTURES[network.config.model_type]
    inner = architecture.network_of(network.eval())
    run(inner, architecture.reads, some_inputs(inner, architecture.reads, TOKENS))


def _end(ends, settings):
    """The end of a block, which differs for parallel blocks and for OPT's post-norm."""
    if settings.get("use_parallel_residual", False):
        return None
    if settings.get("do_layer_norm_before") is False:
        return "fc1"
    return ends


def _errors(model, number, ends):
    """The largest relative error of one layer: outputs, block and Jacobian."""
    inputs = some_inputs(model.module, model.architecture.reads, TOKENS, seed=2)
    whole = replace(model.architecture, attention=model.architecture.attention.removesuffix(".self"))  # for BERT
    own, layer = whole.own_attention(model.module, number), Layer(model, number, ends)
    with exactly():
        x, stream = model.activations(inputs, number), model.activations(inputs, number, "block")
    f, block = (model.attention(number, object, x.shape[-2]) for object in ("heads+output", "block"))
    with exactly():
        y, out = own(x), layer(stream)
        J = torch.func.jacrev(own)(x).reshape(y.numel(), x.numel())
    found = _misfit(f(x), y), _misfit(block(stream), out), _misfit(AttentionJacobian(f, x).dense()[0], J)
    return max(found)
