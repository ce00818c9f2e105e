"""Loading of a transformer by name, from a folder, or with random weights; its mask and its maps are checked."""

import json
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from lipnb.checks import whole
from lipnb.threads import turn
from lipscan.models.checkpoint_keys import BEHIND, refuse_left_over, renamed
from lipscan.models.config_checks import (
    DEQUANTIZED,
    QUANTIZED,
    Steps,
    check_entries,
    check_size,
    check_weights,
    odd_sizes,
    passed_on,
    settings,
)
from lipscan.models.demo.fetching import demo_folder
from lipscan.models.families import ARCHITECTURES
from lipscan.models.files import from_hub, mini_folder, quiet, read_config
from lipscan.models.generic import LENGTHS as POSITIONS
from lipscan.models.generic import counted, located, own_mask, unknown_family
from lipscan.models.gguf_files import gguf_folder
from lipscan.models.lm_head import Source
from lipscan.models.memory import deleted_on_failure, deleted_with, in_memory, refuse_module, written
from lipscan.models.model import Model
from lipscan.models.network import vocabulary
from lipscan.models.self_check import assert_causality, check_maps
from lipscan.models.tokenizers import find_tokenizer, unread_tokenizer
from lipscan.models.trial import tried

__all__ = ["load"]

# starts of PyTorch's messages on devices that are not available, and what they mean
UNUSABLE = {
    "Expected one of": "there is no such kind",
    "Could not run": "this PyTorch was built without it",
    "INTERNAL ASSERT": "no tensor lies there",
}
BOTH_WAYS = "use_bidirectional_attention"  # Gemma 3, of which EmbeddingGemma is one
# Names with a known configuration, for which no file is needed.
PLAIN = {"gpt2": "gpt2", "bert-base-uncased": "bert"}


def load(
    name_or_path: str | os.PathLike | torch.nn.Module,
    *,
    masked: bool | None = None,
    random: bool = False,
    seed: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    tokenizer: Any = None,
    part: str | None = None,
) -> Model:
    """Load a transformer, to measure its attention.

    Parameters
    ----------
    name_or_path : str, path or transformers.PreTrainedModel
        "minilm" (embedded, needs no network); "smollm2", "dinov2-small", "rxnmapper-albert", "e5-small" or "minilm-l3",
        after ``lipnb fetch NAME``; "gpt2-mini" (trained by this project, in its checkout); a name on the Hugging Face
        hub such as "bert-base-uncased" or "gpt2"; a local folder with config.json, model.safetensors and tokenizer
        files; or a file model.gguf of the types llama, qwen2 or qwen3, whose weights become float32. Or a network of
        transformers in memory, such as one in training: lipnb reads what its save_pretrained writes, from a copy in a
        temporary folder that exists as long as the returned model; hooks and changes of its code are not included.
    masked : bool, optional
        Whether attention is causal. By default the mask of the model; True makes a decoder of a BERT, with the same
        weights, and False reads a decoder such as Llama in both directions, as LLM2Vec does.
    random : bool
        Draw the weights at random for the model's configuration; "gpt2" and "bert-base-uncased" then need
        no file.
    seed : int
        Seed of the random weights. The global random state is not changed.
    device, dtype : optional
        Device and floating point type of the computation; default CPU and float32, whatever the type of the
        checkpoint.
    tokenizer : str, path or PreTrainedTokenizer, optional
        A folder, or the name of any model, such as "minilm", to choose a tokenizer; or one in memory. By default the
        model's own; a network in memory has none; a
        random model without one uses MiniLM's, and `tokenizer_name` tells so.
    part : str, optional
        The tower to load of a model with two (CLIP), "text" or "vision".

    Returns
    -------
    Model
        In evaluation mode, without gradients.

    Raises
    ------
    FileNotFoundError
        The model or its folder was not found, lacks config.json or complete weights in safetensors format, or has not
        been fetched yet.
    ModuleNotFoundError
        The embedded model 'minilm' is not installed.
    ValueError
        The family, mask, device or type is not supported; the weights are damaged or do not fit config.json;
        config.json leaves tensors of the checkpoint undescribed; a layer's attention differs from the map known for its
        family; or a network in memory is not one of transformers, or cannot be written.
    RuntimeError
        The network's mask is not the requested one.

    Notes
    -----
    castin2024smooth, Def. 2.2 and 2.5; their experiments use bert-base-uncased with and without mask, and
    gpt2.

    Examples
    --------
    >>> model = load("minilm")
    >>> token_ids = model.token_ids("how smooth is attention?")
    >>> model.attention(3)(model.activations(token_ids[None], 3)).shape
    torch.Size([1, 5, 384])
    """
    if in_memory(name_or_path) or in_memory(tokenizer):
        copy = written(name_or_path, tokenizer)
        options: dict[str, Any] = {"masked": masked, "random": random, "seed": seed, "device": device}
        with deleted_on_failure(copy.folder):
            model = load(copy.model, tokenizer=copy.tokenizer, dtype=dtype, part=part, **options)
        deleted_with(model, copy.folder)  # its output layer is read on first use
        if in_memory(name_or_path) and not random:
            model.weights = "in memory"
        return model
    name = name_of(name_or_path)
    dtype = torch.float32 if dtype is None else dtype
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"dtype must be a floating point type such as torch.float64, got {dtype!r}.")
    seed = whole("seed", seed)
    check_device(device)
    if masked not in (None, True, False):
        raise ValueError(f"masked must be True, False or None, got {masked!r}.")
    folder, on_hub = _find(name, random)
    entries = {"model_type": PLAIN[name]} if folder is None else read_config(folder, name)
    architecture = _part(_architecture(entries, name), part, name)
    check_entries(entries, name)
    asked, masked = masked, _mask(architecture, entries, masked, name)
    if not random:
        if on_hub:  # only now, because a model that is not supported should not be downloaded
            folder = from_hub(name, weights=True)
        held = check_weights(folder, name)
    if Path(name).exists() and not on_hub:
        name = Path(name).resolve().name  # results name the model, never its path
    # meanwhile the library changes the default type and the initialisers of the whole process
    with turn(), torch.random.fork_rng(devices=[]):
        config = _configuration(entries, folder, architecture, masked, name)
        empty = _on_meta(config, architecture, name)
        if architecture.matrices is None:
            architecture = located(empty, architecture, name)
        with _building(config, name):
            attending = architecture.attending(architecture.network_of(empty))
        if not attending:
            raise ValueError(
                f"{name!r} has no layer that holds attention{odd_sizes(config)}: there is nothing to measure."
            )
        _check_memory(empty, 4 if random else dtype.itemsize, name)
        _check_positions(entries, architecture, architecture.network_of(empty).config, name)
        most = vocabulary(architecture.network_of(empty)) if architecture.reads == "input_ids" else None
        if most is not None and most < 1:
            raise ValueError(f"{settings(name)} has vocab_size = {most}: it must be a positive whole number.")
        found = (None, None) if most is None else find_tokenizer(tokenizer, name, folder, on_hub, most, random)
        network = (
            _draw(config, architecture, seed, name)
            if random
            else _read(folder, config, architecture, dtype, name, held, empty)
        )
    network = architecture.network_of(_retyped(network, dtype)).to(device).eval().requires_grad_(False)
    if architecture.matrices is None:
        masked = own_mask(network, asked, name, architecture)
        if architecture.reads == "pixel_values":
            architecture = counted(network, architecture, name)
        else:
            architecture = tried(network, architecture, masked)
    sides = architecture.small_sides(network.config)
    assert_causality(network, masked, name, architecture.reads, sides, architecture)
    heads, width = check_maps(network, architecture, masked, name)
    return Model(
        name=name,
        weights=_origin(entries, folder, random),
        masked=masked,
        tokenizer_name=found[1],
        layers=len(architecture.layers_of(network)),
        heads=heads,
        width=width,
        module=network,
        tokenizer=found[0],
        architecture=architecture,
        unread="" if most is None or found[0] is not None else unread_tokenizer(folder),
        source=Source(None if random else folder, config, seed),
    )


def name_of(name_or_path: str | os.PathLike) -> str:
    """The name or path as text; ValueError for anything else, such as a module of one's own."""
    if isinstance(name_or_path, torch.nn.Module):
        refuse_module(name_or_path)
    if not isinstance(name_or_path, (str, os.PathLike)) or not os.fspath(name_or_path).strip():
        raise ValueError(
            f"the model (name_or_path) must be a name, a folder or a network of transformers, got {name_or_path!r:.60}."
        )
    return os.fspath(name_or_path)


def check_device(device: torch.device | str | None) -> None:
    """Raise ValueError unless tensors can be allocated on a device."""
    if device is None:
        return
    try:
        found = torch.empty(0, device=device).device.type
    except (RuntimeError, AssertionError, TypeError, ValueError, ImportError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        for start, said in UNUSABLE.items():
            reason = said if start in reason else reason
        reason = "it must be a name or a torch.device" if isinstance(error, TypeError) else reason
        raise ValueError(f"the device {device!r} cannot be used here ({reason}): leave it out for the CPU.") from None
    if found == "meta":
        raise ValueError(f"the device {device!r} cannot be used here (it holds no numbers): leave it out for the CPU.")


def layer_count(name_or_path: str | os.PathLike, random: bool = False) -> int | None:
    """Number of layers in a model's config.json, read before any weights; None if it has no such entry."""
    name = name_of(name_or_path)
    folder, _ = _find(name, random)
    entries = {} if folder is None else read_config(folder, name)
    counts = [entries[key] for key in ("num_hidden_layers", "n_layer", "n_layers") if key in entries]
    return counts[0] if counts and type(counts[0]) is int and counts[0] > 0 else None


def _origin(entries, folder, random):
    """Origin of the weights, in a word or two."""
    if random:
        return "random"
    if folder == mini_folder():
        return "trained here"
    kinds = entries.get(DEQUANTIZED)
    return f"pretrained ({', '.join(map(str, kinds))})" if kinds and isinstance(kinds, list) else "pretrained"


def _find(name, random):
    if name.endswith(".gguf"):
        return gguf_folder(Path(name)), False
    if folder := demo_folder(name):
        return folder, False
    if random and name in PLAIN:
        return None, True
    if Path(name).is_dir():
        return Path(name), False
    if _is_path(name):
        raise FileNotFoundError(
            f"there is no folder {name!r}: a model is a folder with config.json and model.safetensors, a file .gguf, "
            "or a name such as 'minilm' or one on the Hugging Face hub."
        )
    return from_hub(name, weights=False), True


def _is_path(name):
    """Whether a name is a local path: a name on the hub is one or two words separated by one slash."""
    return name.startswith((".", "/", "~", "\\")) or name.endswith("/") or name.count("/") > 1 or Path(name).is_file()


def _architecture(entries, name):
    architecture = ARCHITECTURES.get(entries["model_type"])
    if architecture is None:
        return unknown_family(entries["model_type"], name)
    for entry, values in architecture.required.items():
        for found in _said(entries, entry):
            if found is not None and found not in values:
                if entry == BOTH_WAYS:
                    raise ValueError(
                        f"{name!r} has {entry} = {found!r}, which only some attention implementations of "
                        "transformers obey: remove it, and write is_causal = false for attention in both directions."
                    )
                raise ValueError(
                    f"{name!r} has {entry} = {found!r}, which is not supported: it selects an attention that lipnb "
                    f"does not know; only {', '.join(map(repr, values))} is supported."
                )
    return architecture


def _said(entries, name, old=None):
    """Values of an entry of config.json at any depth; the type of a rotation has two names."""
    for key, value in entries.items():
        if key in (name, old):
            yield value
        elif isinstance(value, dict):
            yield from _said(value, name, "type" if name == "rope_type" and key.startswith("rope") else old)


def _part(architecture, part, name):
    """Architecture of the requested tower in a model with two; the architecture itself if it has one network."""
    if part in architecture.parts:
        return architecture.parts[part]
    if architecture.parts:
        known = " or ".join(f"part={part!r}" for part in architecture.parts)
        raise ValueError(f"{name!r} has more than one network: pass {known}, got part={part!r} (at a terminal --part).")
    if part is not None:
        raise ValueError(f"{architecture.title} has one network: leave part={part!r} out.")
    return architecture


def _retyped(network, dtype):
    """The network in another floating point type; frequencies of rotations keep the type that networks compute in."""
    kept = [
        (module, name, buffer)
        for module in network.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name.endswith("inv_freq")
    ]
    network = network.to(dtype)
    for module, name, buffer in kept:
        setattr(module, name, buffer)
    return network


def _own_mask(architecture, entries):
    """The mask in config.json: encoders may be decoders, and decoders may read in both directions."""
    setting = architecture.mask_setting
    if setting is None:
        return architecture.masks[0]
    both = setting == "is_causal" and bool(entries.get(BOTH_WAYS))
    return bool(entries.get(setting, architecture.masks[0])) and not both


def _mask(architecture, entries, masked, name):
    if masked is None:
        return _own_mask(architecture, entries)
    if masked and architecture.mask_setting == "is_causal" and entries.get(BOTH_WAYS):
        raise ValueError(f"{name!r} has {BOTH_WAYS} = True and cannot be loaded with masked=True: leave masked out.")
    if bool(masked) not in architecture.masks:
        always = "masked" if architecture.masks[0] else "unmasked"
        raise ValueError(
            f"{architecture.title} is always {always} and {name!r} cannot be loaded with "
            f"masked={bool(masked)}: leave masked out (at a terminal --masked), or load a BERT such as 'minilm'."
        )
    return bool(masked)


def _check_positions(entries, architecture, config, name):
    """Raise ValueError for an invalid number of positions; the library checks only what its own networks need."""
    try:
        longest = architecture.longest(config)
    except TypeError:
        longest = None
    except ValueError as error:  # of a size of pictures
        raise ValueError(f"{settings(name)} is not read: {error}") from None
    if type(longest) is int and longest > 0:
        return
    sizes = dict.fromkeys((*POSITIONS, "max_source_positions"), 1) | {"pad_token_id": 0}  # RoBERTa counts from there
    known = {key: entries[key] for key in sizes if key in entries}
    wrong = [key for key, size in known.items() if type(size) is not int or size < sizes[key]] or [*known]
    said = "".join(f" ({key} = {json.dumps(known[key])[:60]})" for key in wrong[:1])
    raise ValueError(
        f"{settings(name)} leaves no positions for tokens{said}: give a whole number that leaves 1 or more."
    )


def _configuration(entries, folder, architecture, masked, name):
    # a feed-forward part that reads a text in pieces is the same map, at lengths that its pieces divide
    options = {"return_dict": True, "chunk_size_feed_forward": 0, **architecture.settings}
    with quiet(), _building(entries, name):
        from transformers import AutoConfig

        config = (
            AutoConfig.for_model(entries["model_type"], **options)
            if folder is None
            else AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **options)
        )
    for key in QUANTIZED:  # empty: nothing is quantized, but the library would look for the method
        if hasattr(config, key):
            delattr(config, key)
    if architecture.matrices is not None:
        _one_side(config)
    if architecture.mask_setting and masked != _own_mask(architecture, entries):
        setattr(config, architecture.mask_setting, masked)
    return config


def _one_side(config):
    """Write two equal sides of images or patches as one number if the configuration allows; some networks need it."""
    from huggingface_hub.errors import StrictDataclassError

    for inner in (config, *(getattr(config, part) for part in config.sub_configs)):
        for entry in ("image_size", "patch_size"):
            sides = getattr(inner, entry, None)
            if isinstance(sides, (list, tuple)) and len(set(sides)) == 1:
                with suppress(StrictDataclassError):
                    setattr(inner, entry, sides[0])


def _draw(config, architecture, seed, name):
    """A network with random weights."""
    with quiet(), _building(config, name):
        from transformers import AutoModel

        # only the CPU generator: torch.manual_seed would also reseed accelerators, permanently
        torch.default_generator.manual_seed(seed)
        # always drawn in float32, so that one seed is one network in every dtype
        return AutoModel.from_config(
            config, attn_implementation="eager", dtype=torch.float32, trust_remote_code=False, **architecture.options
        )


def _on_meta(config, architecture, name):
    """The network of a configuration on the meta device, without data."""
    with quiet(), _building(config, name):
        from transformers import AutoModel

        with torch.device("meta"), Steps():  # missing weights would be drawn at random, in any amount: count first
            return AutoModel.from_config(config, attn_implementation="eager", **architecture.options)


def _building(config, name):
    return passed_on(
        f"transformers builds no network from {settings(name)}", "correct that file or copy it again", config
    )


def _check_memory(empty, itemsize, name):
    """Refuse a network, here on the meta device, whose parameters and tables (buffers) this machine cannot hold."""
    held = [*empty.parameters(), *empty.buffers()]
    sizes = [one.numel() * (itemsize if one.is_floating_point() else one.itemsize) for one in held]
    check_size(sum(one.numel() for one in held), sum(sizes), name)


def _numbers(network):
    """Number of parameters of a network; works on the meta device."""
    return sum(parameter.numel() for parameter in network.parameters())


def _read(folder, config, architecture, dtype, name, held, empty):
    """The network with the weights `held` in a folder; `empty` is the same network on the meta device."""
    with quiet():
        from transformers import AutoModel

        # for an encoder-decoder, only the encoder has to be present
        described, there = _numbers(architecture.network_of(empty)), sum(math.prod(one.shape) for one in held.values())
        if described > 2 * there:
            raise ValueError(
                f"the weights of {name!r} do not fit its config.json: it describes {described:,} numbers, "
                f"they hold {there:,}: give the config.json that they were saved with."
            )
        assigned, names = renamed(empty, held, name)
        refuse_left_over(assigned, empty, architecture, held, name)
        refusal = f"the weights of {name!r} do not fit its config.json, or are damaged"
        with passed_on(refusal, "copy the folder again"):
            try:
                network, report = AutoModel.from_pretrained(
                    folder,
                    config=config,
                    dtype=dtype,
                    attn_implementation="eager",
                    use_safetensors=True,
                    local_files_only=True,
                    output_loading_info=True,
                    trust_remote_code=False,
                    key_mapping=dict(names),
                    **architecture.options,
                )
            except RuntimeError as error:  # of a report that was silenced
                raise ValueError("their shapes differ") from error
    missing = sorted(report["missing_keys"])
    beside = f"{architecture.part}." if architecture.part else ""
    for key in [key for key in missing if BEHIND.search(key) or _other_part(key, beside, network)]:
        # checkpoints of a task often lack tensors that no layer of ours reads
        network.get_parameter(key).data.fill_(torch.nan)  # so that nothing measured can depend on them
        missing.remove(key)
    if missing:  # the library would fill them with random numbers
        raise ValueError(
            f"the weights of {name!r} are not complete: {len(missing)} tensors of its "
            f"config.json are missing, such as {missing[0]}: download or copy the model again."
        )
    return network


def _other_part(key, part, network):
    """Whether a tensor belongs to the decoder next to the encoder that is measured."""
    place = key.partition(".")[0]
    return bool(part) and not key.startswith(part) and place == "decoder" and hasattr(network, place)
