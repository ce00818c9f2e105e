"""Comparison of the tensors of a checkpoint with the network of its configuration: none is dropped silently.

transformers fills the tensors of its network and drops all others with a warning at most. A dropped tensor may be
part of the map: a bias, a norm of queries, a factor of an adapter, a scale.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from lipnb.extras import extra
from lipscan.models.config_checks import Held
from lipscan.models.layers import Architecture

# modules that read the last hidden states, not layers; a checkpoint may lack them or hold ones we do not need
BEHIND = re.compile(r"(?:^|\.)(?:pooler|contact_head)\.")
# prefixes of modules wrapped by compilers and distributed training, and what remains of them in a checkpoint
AROUND = r"(?:(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\.)+"
WRAPPERS = {AROUND: "", r"^(?:module\.)+": "", rf"{AROUND}(?=\w)": ""}  # each is removed once
FOREIGN = re.compile(r"(?:(?:base_model|model|module|transformer|_orig_mod|_fsdp_wrapped_module)\.)*")
# numbers that the network computes itself or that no forward pass reads; old checkpoints of many families hold them
COMPUTED = re.compile(
    r"""(?:^|\.)(?:
        (?:original_|long_|short_)?inv_freq | (?:rope|rotary_emb|rotary_pos_emb)\.freqs | freqs_cis | cos_sin_cache |
        (?:cos|sin)_cached | position_ids | token_type_ids | masked_bias | relative_position_index |
        relative_coords_table | num_batches_tracked | version | _float_tensor
    )$ | ^(?:[a-z_]+\.)*mask_token$""",
    re.VERBOSE,
)
# causal masks of GPT-2, GPT-J, CodeGen, GPT-Neo and GPT-NeoX: the same table for all texts
MASK = re.compile(r"(?:^|\.)(?:attn|attention)\.(?:bias|causal_mask)$")
# heads and towers next to the network, where no prefix separates them from it
BESIDE = re.compile(
    r"""(?:
        cls | linear | score | scores | proj_out | embed_out | pred_layer | qa_outputs | crf | sequence_summary |
        \w*heads? | \w*classifier\w* | \w*pooler | \w*predictions? | \w*predictor | \w*projector |
        (?:text_|visual_|lm_|output_|vision_|image_)?projection | vocab_(?:transform|layer_norm|projector) |
        logit_(?:scale|bias) | final_logits_bias | seq_relationship | connector | mtp\w* |
        vision\w* | visual\w* | image\w* | video\w* | audio\w* | speech\w* | \w+_tower
    )(?:\.|$)""",
    re.VERBOSE,
)
LORA = re.compile(r"lora|adapter|hada_w|dora|ia3|(?:^|[._])peft", re.IGNORECASE)


@dataclass(frozen=True)
class Assigned:
    """Assignment of the tensors of a checkpoint to the tensors of the network."""

    places: dict[str, list[str]]  # tensor of the network -> tensors of the checkpoint loaded into it unchanged
    missing: set[str]  # tensors of the network that the checkpoint lacks
    left: dict[str, str]  # unused tensor of the checkpoint -> its name in the library
    prefixes: set[str]  # prefixes of the network's names in the checkpoint


def _assigned(empty: torch.nn.Module, keys: Iterable[str], mapping: Mapping[str, str]) -> Assigned:
    """Assignment that transformers makes for these names, renamed first by `mapping` (patterns, old -> new)."""
    with extra("models"):
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, rename_source_key

    steps = get_model_conversion_mapping(empty, dict(mapping))
    converters = [step for step in steps if isinstance(step, WeightConverter)]
    renamings = [step for step in steps if not isinstance(step, WeightConverter)]
    by_pattern = {pattern: step for step in converters for pattern in step.source_patterns}
    described, base = empty.state_dict(), empty.base_model_prefix
    places, left, prefixes, made = defaultdict(list), {}, set(), set()
    for key in keys:
        bare, pattern = rename_source_key(key, renamings, converters)
        place, _ = rename_source_key(key, renamings, converters, base, described)
        if place not in described and key in described:  # as the library does
            bare = place = key
            pattern = None
        if place not in described:
            left[key] = bare
            continue
        prefixes.add(bare.removesuffix(place) if bare.endswith(place) else "")
        if pattern is None:
            places[place].append(key)
        else:  # several tensors become one, or one becomes several
            first, *others = by_pattern[pattern].target_patterns
            made |= {place, *(place.replace(first, other) for other in others)}
    missing = described.keys() - places.keys() - made - (getattr(empty, "all_tied_weights_keys", None) or {}).keys()
    return Assigned(dict(places), {key for key in missing if not BEHIND.search(key)}, left, prefixes)


def renamed(empty: torch.nn.Module, keys: Iterable[str], name: str) -> tuple[Assigned, Mapping[str, str]]:
    """Assignment of a checkpoint's tensors, and the renaming that it needs first (patterns, old -> new).

    The renaming is empty if the names are already those that the library knows.
    """
    keys = list(keys)
    plain = _assigned(empty, keys, {})
    if not plain.missing:
        return plain, {}
    wrapped = _assigned(empty, keys, WRAPPERS)
    if len(wrapped.missing) < len(plain.missing):
        return wrapped, WRAPPERS
    if plain.places:
        return plain, {}
    anchors, own = sorted(plain.missing, key=len)[-3:], f".{empty.base_model_prefix}."
    prefixes = {key.removesuffix(one) for one in anchors for key in keys if key.endswith(f".{one}")}
    # the library removes its own prefix, which separates the network from its heads
    prefixes = {prefix.removesuffix(own[1:]) if prefix.endswith(own) else prefix for prefix in prefixes}
    found = {prefix: _assigned(empty, keys, _without(prefix)) for prefix in prefixes}
    most = max((len(one.places) for one in found.values()), default=0)
    whole = sorted(prefix for prefix, one in found.items() if len(one.places) == most)
    if len(whole) > 1:
        raise ValueError(
            f"the weights of {name!r} hold its network {len(whole)} times, under {' and '.join(whole)}: save the "
            "tensors of one of them to a separate folder."
        )
    if not whole:
        return plain, {}
    [prefix], one = whole, found[whole[0]]
    left = {key: bare for key, bare in one.left.items() if key.startswith(prefix) or LORA.search(key)}
    return replace(one, left=left), _without(prefix)


def _without(prefix):
    return {f"^{re.escape(prefix)}": ""}


def refuse_left_over(
    assigned: Assigned, empty: torch.nn.Module, architecture: Architecture, held: Mapping[str, Held], name: str
) -> None:
    """Refuse tensors of the measured network that its configuration does not describe.

    Tensors of other parts, such as heads and towers, are allowed, and so are numbers that the network computes itself.
    """
    network = architecture.network_of(empty)
    found = {
        key: inner for key, bare in assigned.left.items() if (inner := _inside(bare, assigned, empty, architecture))
    }
    found = {key: inner for key, inner in found.items() if not _harmless(inner, key, held[key], empty, network)}
    _refuse_more_layers(found.values(), network, architecture.layers, name)
    for place, keys in assigned.places.items():
        if len(keys) > 1 and not _equal([held[key] for key in keys], keys):
            raise ValueError(
                f"the weights of {name!r} hold two tensors for {place}, {keys[0]} and {keys[1]}, which differ: "
                "remove one of them."
            )
    if found:
        many = f"{len(found)} tensors" if len(found) > 1 else "a tensor"
        raise ValueError(
            f"the weights of {name!r} hold {many} that its config.json does not describe and that would be left out, "
            f"{', '.join([*found][:3])}{' and so on' * (len(found) > 3)}: give the config.json and model_type that the "
            "weights were saved with (biases, norms, sinks), merge an adapter into the weights (in PEFT "
            "merge_and_unload, then save_pretrained), load the unquantized checkpoint (scales), or, if "
            "the network runs without them, remove them from the file."
        )


def _inside(bare, assigned, empty, architecture):
    """Path of a tensor in the measured network; None for another part of the checkpoint."""
    prefix = max((one for one in assigned.prefixes if bare.startswith(one)), key=len, default=None)
    if prefix is None:  # of a tower or a head, unless the prefix is empty, a wrapper's or an adapter's
        if architecture.part is None and bare.partition(".")[0] in dict(empty.named_children()):
            return bare
        layer = re.search(rf"(?:^|\.)({re.escape(architecture.layers)}\.\d+\.)", bare)
        foreign = layer and (FOREIGN.fullmatch(bare[: layer.start(1)]) or LORA.search(bare))
        return bare[layer.start(1) :] if foreign else None
    inner = bare.removeprefix(prefix)
    if architecture.part is None:
        return inner
    if inner.startswith(f"{architecture.part}."):
        return inner.removeprefix(f"{architecture.part}.")
    return None if inner.partition(".")[0] in dict(empty.named_children()) else inner


def _harmless(inner, key, one, empty, network):
    """Whether no number of the network's hidden states depends on this tensor."""
    if COMPUTED.search(inner) or BEHIND.search(inner) or not math.prod(one.shape):
        return True
    if MASK.search(inner) and len(one.shape) > 1 and one.shape[-1] == one.shape[-2]:
        return inner.rpartition(".")[0] in dict(network.named_modules()) and _is_causal(_tensor(one, key), empty.config)
    if inner in dict(network.named_buffers()):  # computed from the configuration
        return True
    if BESIDE.match(inner) and inner.partition(".")[0] not in dict(network.named_children()):
        return True
    for pattern in empty._keys_to_ignore_on_load_unexpected or ():  # the library's own list for this family
        for match in re.finditer(pattern, inner):  # of whole names: `attn.bias` is a mask, `attn.bias_k` is not
            if match.end() == len(inner) or inner[match.end()] == "." or match[0].endswith("."):
                return True
    return False


def _refuse_more_layers(inside, network, layers, name):
    """Refuse weights with more layers than the configuration describes."""
    layer = re.compile(rf"{re.escape(layers)}\.(\d+)\.")
    numbers = [int(found[1]) for inner in inside if (found := layer.match(inner))]
    described = len(network.get_submodule(layers))
    if numbers and max(numbers) >= described:
        raise ValueError(
            f"the weights of {name!r} do not fit its config.json: they hold {max(numbers) + 1} layers, it "
            f"describes {described}: give the config.json that they were saved with."
        )


def _is_causal(mask, config):
    """Whether each token sees itself and all earlier ones or, in some layers of GPT-Neo, the last few."""
    n = mask.shape[-1]
    seen, earlier = mask.expand(1, *mask.shape).flatten(0, -3) != 0, torch.ones(n, n, dtype=torch.bool).tril()
    windows = {n, getattr(config, "window_size", None)} - {None}
    return any((seen == earlier ^ earlier.tril(-window)).all() for window in windows)


def _equal(held, keys):
    """Whether these tensors of a checkpoint are equal."""
    first, *others = (_tensor(one, key) for one, key in zip(held, keys, strict=True))
    return all(torch.equal(first, other) for other in others)


def _tensor(one, key):
    """A tensor of a checkpoint."""
    with extra("models"):
        from safetensors import safe_open

    with safe_open(one.file, framework="pt") as file:
        return file.get_tensor(key)
