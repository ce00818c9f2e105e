"""Every model type of transformers: made small with random weights, scanned, and compared with the network itself.

A scan may be right, or the model refused in one sentence; wrong constants and tracebacks are failures.
"""

import tempfile
import traceback
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch

import lipnb
import lipscan
from lipscan import models
from lipscan.models.generic import located, unknown_family
from lipscan.models.hooks import capture
from lipscan.models.images import picture_shape
from lipscan.models.network import inputs_of, one_call, run

ALLOWED = 2e-3  # relative error of a constant: both sides are computed in float32, by a solver with tolerance 1e-4
TOKENS = 9
WORDS = "the attention of every model reads these plain words and says how far each of them moves the others".split()
MOST = 30_000_000  # most numbers of a small network
LAYERS = 2
SMALL = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "emb_dim"), 32),
    **dict.fromkeys(("hidden_dim", "intermediate_size", "ffn_dim", "d_ff", "n_inner", "feed_forward_size"), 48),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "dim_feedforward", "inner_dim", "ffn_hidden_size"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_dim", "d_inner"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth", "encoder_layers"), LAYERS),
    **dict.fromkeys(("decoder_layers", "num_encoder_layers", "num_decoder_layers", "encoder_num_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "num_encoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "n_kv_heads", "num_kv_heads", "encoder_num_key_value_heads"), 2),
    **dict.fromkeys(("decoder_num_key_value_heads",), 2),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "attention_head_size", "kv_channels", "global_head_dim"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "index_head_dim", "linear_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "o_lora_rank"), 16),
    **dict.fromkeys(("vocab_size", "entity_vocab_size", "vocab_size_per_layer_input"), 40),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length"), 64),
    **dict.fromkeys(("max_source_positions", "max_encoder_position_embeddings", "max_2d_position_embeddings"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "num_experts_per_token", "top_k_experts"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace"), 1),
    **dict.fromkeys(("sliding_window", "attention_chunk_size", "local_attention", "window_size"), 6),
    **dict.fromkeys(("num_mel_bins",), 8),
    **dict.fromkeys(("num_frames", "num_detection_tokens"), 4),
    **dict.fromkeys(("num_patches",), 16),
    **dict.fromkeys(("image_size",), 32),
    **dict.fromkeys(("patch_size",), 8),
    **dict.fromkeys(("index_topk", "index_n_heads"), 4),
    **dict.fromkeys(("hidden_size_per_layer_input", "out_hidden_size", "projection_dim", "output_dim"), 32),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "linear_num_value_heads"), 8),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim", "linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("rotary_dim", "linear_num_key_heads", "linear_num_heads", "linear_conv_kernel_dim"), 4),
    **dict.fromkeys(("mamba_d_state", "attention_window", "ngram_size"), 4),
    **dict.fromkeys(("bottleneck_size", "cross_attention_dim", "word_embed_proj_dim", "adapter_dim"), 32),
    "type_vocab_size": 2,
}
NEEDED = ("vocab_size", "num_key_value_heads")  # required to make a network, although the default is None
LEFT_OUT = ("out_features", "out_indices", "stage_names", "per_layer_config")
ABOUT = ("transformers_version", "_name_or_path", "architectures", "dtype", "id2label", "label2id")
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ALIKE = {"num_key_value_heads": 4}
WIDTH = {"head_dim": 8}
BY_TYPE = {kind: {"rope_type": "default", "rope_theta": 50.0} for kind in ("full_attention", "sliding_attention")}
THREE = {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "mrope_section": [2, 1, 1]}}
PARTIAL = {"rope_parameters": THREE["rope_parameters"] | {"partial_rotary_factor": 1.0}}
QSA = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 8,
    "indexer_compress_ratio": 2,
}
# entries that the sizes above do not fit, by type; at any depth
SPECIAL: dict[str, dict] = {
    **dict.fromkeys(("esmc", "dots3_note", "dots3_note_text"), ALIKE),
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan_vl", "hunyuan_vl_text", "ministral"), WIDTH),
    **dict.fromkeys(("autoformer", "informer", "time_series_transformer"), {"prediction_length": 4}),
    **dict.fromkeys(("cohere_compass", "cohere_compass_text"), {"rope_parameters": BY_TYPE}),
    **dict.fromkeys(("granite_speech5_ctc", "granite_speech5_encoder"), {"context_size": 16}),
    **dict.fromkeys(("gradium_phonon_tts", "pocket_tts"), {"condition_dim": 32}),
    **dict.fromkeys(("donut-swin", "maskformer-swin", "swinv2"), {"embed_dim": 24}),
    **dict.fromkeys(
        ("nemo_speechlm", "nemotron3_5_transcribe_audio", "nemotron3_diarization"), {"audio_hidden_size": 32}
    ),
    **dict.fromkeys(("qwen4_exp", "qwen4_exp_text"), QSA),
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_5_omni_thinker"), THREE),
    **dict.fromkeys(("glm46v", "glm4v", "glm4v_text", "glm4v_moe", "glm4v_moe_text", "glmga"), PARTIAL),
    **dict.fromkeys(("glm_image", "glm_image_text", "glm_ocr", "glm_ocr_text"), PARTIAL),
    "esm": {"pad_token_id": 0, "mask_token_id": 4, "position_embedding_type": "rotary"},
    "falcon_h1": {"mamba_d_ssm": 64},
    "bridgetower": {"hidden_size": 64},
    "deepseek_ocr2": {"mlp_layer_types": ["dense", "sparse"]},
    "diffusion_gemma": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16},
    "dbrx": {"attn_config": {"rope_theta": 50.0, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_routed_experts": 4, "n_shared_experts": 1},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    "fun_asr_nano": {"intermediate_size": 8},
    "funnel": {"block_sizes": [1, 1], "block_repeats": [1, 1], "architectures": []},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    **dict.fromkeys(("glm5_next", "glm5_next_text"), ALIKE | {"index_kpool": 2, "head_dim": 0, "qk_rope_head_dim": 0}),
    "layoutlmv3": {"coordinate_size": 5, "shape_size": 6},
    "kyutai_speech_to_text": {"num_codebooks": 0},
    "inkling2": {"text_hidden_size": 32},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "molmo2": {"vision_feature_layer": [1, 0]},
    "musicgen": {"dropout": 0.0},
    "neomme": {"head_dim": 16},
    "reformer": {"axial_pos_shape": [8, 8], "axial_pos_embds_dim": [16, 16], "attn_layers": ["local", "lsh"]},
    "roc_bert": {"pronunciation_vocab_size": 40, "shape_vocab_size": 40, "concat_input": False},
    "t5gemma2_encoder": {"dropout_rate": 0.0},
    "zaya": {"num_experts_per_tok": 1},
}


def types():
    """All model types that the library's `AutoModel` can load, in order."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return sorted(MODEL_MAPPING_NAMES)


def small(model_type):
    """A configuration of this type with few and narrow layers; one layer of each kind if it has several."""
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    special = SPECIAL.get(model_type, {})
    return kind(**special | _shrunk(kind().to_dict(), special))


def _shrunk(entries, special):
    """Entries of a configuration, at any depth, made small."""
    found = {}
    count = next((entries[name] for name in SMALL if SMALL[name] == LAYERS and isinstance(entries.get(name), int)), 0)
    kinds = entries.get("layer_types")
    layers = max(LAYERS, len({*kinds})) if isinstance(kinds, list) else LAYERS
    if "kv_lora_rank" in entries:  # keys and values of low rank: each head has its own
        special = ALIKE | special
    for name, value in entries.items():
        if name in (*ABOUT, *LEFT_OUT) and name not in special:
            continue
        if name in special and (name != "rope_parameters" or "vocab_size" in entries):  # towers of images have others
            value = special[name]
        elif isinstance(value, dict) and all(isinstance(key, str) for key in value):
            value = _shrunk(value, special)
        elif name == "layer_types" and isinstance(value, list):
            value = [*dict.fromkeys(value)]
            value = (value * layers)[:layers]
        elif isinstance(value, list) and count > LAYERS and len(value) == count:
            value = [min(one, SMALL[name]) if type(one) is int and name in SMALL else one for one in value[:layers]]
        elif isinstance(value, list) and name in ("image_size", "patch_size"):
            value = [min(one, SMALL[name]) for one in value]
        elif name == "mrope_section" and value:
            value = [2, 1, 1][: len(value)]
        elif value is None and name in NEEDED:
            value = SMALL[name]
        elif type(value) is int and name in SMALL:
            value = layers if SMALL[name] == LAYERS and name not in ENDS else min(value, SMALL[name])
        elif name in ENDS and value is not None:
            value = ENDS[name]
        elif name.endswith("_token_id") and type(value) is int and value >= SMALL["vocab_size"]:
            value = 3 + value % 30
        found[name] = value
    return found


def written(folder, model_type, seed=1):
    """Save a small random network of one type in a folder, with a tokenizer of a few words.

    `seed`: the global random state is not changed.
    """
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import AutoModel, PreTrainedTokenizerFast

    config = small(model_type)
    with models.files.quiet(), torch.random.fork_rng():
        with torch.device("meta"):
            empty = AutoModel.from_config(config)
        if (count := sum(each.numel() for each in empty.parameters())) > MOST:
            if model_type not in models.ARCHITECTURES:  # refusals before loading need no weights
                located(empty, unknown_family(model_type, "it"), "it")
            raise ValueError(f"its configuration stays large: {count:,} numbers")
        torch.manual_seed(seed)
        network = AutoModel.from_config(config)
        generator = torch.Generator().manual_seed(seed)
        for parameter in network.parameters():
            if parameter.ndim > 1 and parameter.is_floating_point():
                parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
        network.save_pretrained(folder)
        vocabulary = {
            word: number for number, word in enumerate(dict.fromkeys(["[PAD]", "<s>", "</s>", "[UNK]", *WORDS]))
        }
        tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(
            Path(folder, "tokenizer")
        )


def measure(model_type):
    """Row of one type: made, scanned to its report, and its constants compared with the network's own Jacobians.

    Returns outcome: "right"; "refused" in a sentence; "wrong"; "traceback"; or "none" if no small network of that type
    can be made. error: the largest relative error of a constant. sentence: the refusal.
    """
    row = {"type": model_type, "error": float("nan"), "sentence": "", "route": "", "layers": 0}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "it")
        try:
            written(place, model_type)
        except Exception as error:  # the library raises many kinds of errors
            ours = "which is not supported" in str(error)
            return row | {"outcome": "refused" if ours else "none", "sentence": _sentence(error)}
        try:
            model = models.load(place, tokenizer=place / "tokenizer")
        except (ValueError, RuntimeError, OSError) as error:
            return row | {"outcome": "refused", "sentence": _sentence(error)} | _place(error)
        except Exception as error:
            return row | {"outcome": "traceback", "sentence": f"load: {_sentence(error)}"} | _place(error)
        images = model.architecture.reads == "pixel_values"
        text = "random" if images else " ".join(WORDS * 4)
        try:
            found = lipnb.scan(
                str(place),
                text + ("" if images else "\n"),
                lengths=None if images else [TOKENS],
                windows=1,
                tokenizer=place / "tokenizer",
                output=Path(folder, "scan"),
                progress=False,
            )
            found.report(folder)
        except (ValueError, RuntimeError, OSError) as error:
            return row | {"outcome": "refused", "sentence": f"scan: {_sentence(error)}"} | _place(error)
        except Exception as error:
            return row | {"outcome": "traceback", "sentence": f"scan: {_sentence(error)}"} | _place(error)
        if not found.table.passed.all():
            return row | {"outcome": "refused", "sentence": "scan: a layer failed its self-check, and is not measured"}
        if found.table.lipschitz.isna().any():
            gap = found.about["gaps"][0]
            return row | {"outcome": "refused", "sentence": f"scan: {gap['gap']}: {gap['reason']}"}
        inputs = _inputs(model, text, images)
        try:
            errors = [
                abs(float(one.lipschitz) / constant(model, inputs, one.layer) - 1) for one in found.table.itertuples()
            ]
        except RuntimeError as error:  # a network that runs its layers without gradients: no truth to compare with
            return row | {"outcome": "none", "sentence": f"truth: {_sentence(error)}"}
    error, routes = max(errors), " + ".join(sorted({*found.table.route}))
    return row | {
        "outcome": "right" if error <= ALLOWED else "wrong",
        "error": error,
        "route": routes,
        "layers": len(found.table),
    }


def _inputs(model, text, images):
    if not images:
        return models.random_windows(model, text, TOKENS, 1, seed=0)
    return torch.randn(1, *picture_shape(model.module.config), generator=torch.Generator().manual_seed(0))


def truth(model, inputs, number):
    """What a layer's own attention receives and gives in a pass of the whole network, and its dense Jacobian.

    `model`: from `lipnb.models.load`. `inputs`: one window of token ids (1, n), or images.
    """
    architecture, network = model.architecture, model.module
    wanted, tokens = architecture.call_of(network, number), []
    module, giver = architecture.attention_of(network, number), architecture.giver(network, number)

    def replaced(call):
        if (call.module, call.number) != (module, wanted):
            return None
        tokens.append(call.tokens.detach().clone().requires_grad_())
        return call.with_tokens(tokens[0])

    with torch.enable_grad(), capture(module, giver, change=replaced) as calls:
        run(network, architecture.reads, inputs_of(model, inputs))
    (x,), y = tokens, one_call(calls, giver, wanted).given
    rows = [torch.autograd.grad(one, x, retain_graph=True)[0].flatten() for one in y.flatten()]
    return x.detach(), y.detach(), torch.stack(rows)


def constant(model, inputs, number):
    """Largest singular value of the Jacobian of `truth`."""
    return torch.linalg.matrix_norm(truth(model, inputs, number)[2].double(), 2).item()


@contextmanager
def exactly():
    """What the library does in float32 is done in the type of its tensors; cosines and sines are its own."""
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


def _sentence(error):
    return (str(error) or type(error).__name__).strip().splitlines()[-1][:400]


def _place(error):
    """Module that raised the error: a sentence of ours is raised in the package itself."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    found = {"place": f"{Path(last.filename).name}:{last.lineno}"}
    ours = any(Path(last.filename).is_relative_to(Path(house.__file__).parent) for house in (lipnb, lipscan))
    return found if ours else found | {"outcome": "traceback"}
