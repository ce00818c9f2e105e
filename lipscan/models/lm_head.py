"""The output layer of a language model: the matching class of transformers, built around the loaded network.

No formula of an output layer is written here. The class of transformers (GPT2LMHeadModel, BertForMaskedLM, ...) is
built without its layers, transformers reads its other tensors from the checkpoint, and the loaded network replaces its
inner network. Biases, caps, scales and transforms therefore come from the class.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lipnb.threads import turn
from lipscan.models.changes import Draws
from lipscan.models.config_checks import reason
from lipscan.models.files import quiet
from lipscan.models.hooks import capture
from lipscan.models.network import ROUNDING, run, vocabulary

TOKENS = 9  # length of the text on which the class is tested
TEXTS = {"input_ids": "text", "pixel_values": "images", "input_features": "sound"}


class Source(NamedTuple):
    """Origin of a network: the folder of its weights, or the seed that drew them, and its whole configuration."""

    folder: Path | None
    config: Any
    seed: int = 0


class NoLogits(ValueError):
    """Error for a model without logits; its message is a clause with the reason."""


def why_no_logits(model: Any) -> str:
    """Reason why a model has no logits, in a clause; empty if it has them. Reads the output layer once."""
    try:
        model.language_model  # noqa: B018, the property reads the output layer
    except NoLogits as error:
        return str(error)
    return ""


def language_model(model: Any) -> torch.nn.Module:
    """The network of a model with its output layer, as a class of transformers that returns logits; or `NoLogits`.

    The result shares the model's network and adds only the tensors of the output layer: from the checkpoint or, for
    random weights, as transformers draws them for the same seed. A tied matrix is the network's.
    """
    network, architecture, source = model.module, model.architecture, model.source
    if architecture.reads != "input_ids":
        raise NoLogits(f"it reads {TEXTS[architecture.reads]}, not text")
    if getattr(source.config, "is_encoder_decoder", False):
        raise NoLogits("it is one half of an encoder-decoder, whose logits depend on both texts")
    kind = _class_of(source.config, model.masked)
    if kind is None:
        raise NoLogits(f"transformers has no class of {source.config.model_type} models that gives logits")
    name = kind.__name__
    with turn(), quiet(), Draws():
        try:
            whole, place, missing, unexpected = _around(kind, network, architecture, source)
        except NoLogits:
            raise
        except Exception as error:  # the library raises many kinds of errors
            raise NoLogits(f"the output layer of transformers' {name} could not be read ({reason(error)})") from error
    outside = {key for key, _ in whole.named_parameters(remove_duplicate=False) if not key.startswith(f"{place}.")}
    if lacking := sorted(key for key in missing if key in outside):
        raise NoLogits(
            f"its checkpoint holds no output layer ({lacking[0]}, which transformers' {name} needs, is missing)"
        )
    owners = {key.rpartition(".")[0] for key in outside}
    if more := sorted(key for key in unexpected if any(key.startswith(f"{one}.") for one in owners if one)):
        raise NoLogits(f"its checkpoint holds {more[0]}, which transformers' {name} does not use")
    whole = whole.to(device=network.device, dtype=network.dtype).eval().requires_grad_(False)
    _put_in(whole, place, network)
    _check(whole, network, _plain_words(source.config, vocabulary(network), min(TOKENS, model.longest)))
    return whole


def _class_of(config, masked):
    """Class of transformers for language models of this type: the class in config.json, else a class for the mask."""
    from transformers.models.auto import modeling_auto as auto

    causal, both = auto.MODEL_FOR_CAUSAL_LM_MAPPING, auto.MODEL_FOR_MASKED_LM_MAPPING
    known = [causal, both] if masked else [both, causal]
    known += [auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, auto.MODEL_FOR_MULTIMODAL_LM_MAPPING]
    found = [kind for mapping in known if (kind := mapping.get(type(config), None)) is not None]
    kinds = [one for kind in found for one in (kind if isinstance(kind, tuple | list) else [kind])]
    named = [kind for kind in kinds if kind.__name__ in (getattr(config, "architectures", None) or ())]
    return next(iter([*named, *kinds]), None)


def _around(kind, network, architecture, source):
    """The class without the layers of its network; path of that network; missing keys and unexpected keys."""
    from transformers import PreTrainedModel

    found: list[str] = []

    class Around(kind):
        def __init__(self, *given, **options):
            super().__init__(*given, **options)
            places = [path for path, module in self.named_modules() if type(module) is type(network)]
            if len(places) != 1 or not places[0]:
                raise NoLogits(f"the network is not a part of transformers' {kind.__name__}")
            place, inside = places[0], self.get_submodule(places[0])
            for path, module in [*self.named_modules()]:
                tower = isinstance(module, PreTrainedModel) and path and not f"{place}.".startswith(f"{path}.")
                if tower and not path.startswith(f"{place}."):  # another modality's tower, such as vision or audio
                    self.set_submodule(path, torch.nn.Identity())
            inside.set_submodule(architecture.layers, torch.nn.ModuleList())
            kept = {key for key, _ in self.named_parameters(remove_duplicate=False)}
            tied = {to: of for to, of in self.all_tied_weights_keys.items() if {to, of} <= kept}
            self.all_tied_weights_keys = tied
            found[:] = [place]

    # the library uses these to name the tensors of checkpoints, and to recognise its own code
    Around.__name__, Around.__module__ = kind.__name__, kind.__module__
    config, report = deepcopy(source.config), dict[str, Any]()
    if source.folder is None:
        torch.default_generator.manual_seed(source.seed)
        whole = Around._from_config(config, attn_implementation="eager", dtype=torch.float32)
    else:
        whole, report = Around.from_pretrained(
            source.folder,
            config=config,
            attn_implementation="eager",
            trust_remote_code=False,
            dtype=network.dtype,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    whole.__class__ = kind  # a class that can be pickled
    return whole, found[0], report.get("missing_keys", ()), report.get("unexpected_keys", ())


def _put_in(whole, place, network):
    """Insert the network at its path, and tie its parameters wherever the class shares them."""
    own = {id(one): key for key, one in whole.get_submodule(place).named_parameters()}
    tied = [
        (key, own[id(one)])
        for key, one in whole.named_parameters(remove_duplicate=False)
        if id(one) in own and not key.startswith(f"{place}.")
    ]
    whole.set_submodule(place, network)
    for key, inner in tied:
        path, _, leaf = key.rpartition(".")
        setattr(whole.get_submodule(path), leaf, network.get_parameter(inner))


def _plain_words(config, most, n):
    """Random token ids (1, n), except ids that have a meaning for the class, such as an image placeholder."""
    meant = [value for key, value in _entries(config.to_dict()) if str(key).endswith(("_token_id", "_token_index"))]
    plain = torch.ones(most, dtype=torch.bool)
    plain[[value for value in meant if type(value) is int and 0 <= value < most]] = False
    words = plain.nonzero()[:, 0] if plain.any() else torch.arange(most)
    return words[torch.randint(len(words), (1, n), generator=torch.Generator().manual_seed(0))]


def _entries(settings):
    """Names and values of a configuration at any depth."""
    for key, value in settings.items():
        yield from _entries(value) if isinstance(value, dict) else [(key, value)]


@torch.no_grad()
def _check(whole, network, inputs):
    """Raise `NoLogits` unless the class reads token ids like the bare network and returns logits for each of them."""
    name, reads, inputs = type(whole).__name__, "input_ids", inputs.to(network.device)
    alone = run(network, reads, inputs).last_hidden_state.double()
    try:
        with capture(network) as calls:
            logits = run(whole, reads, inputs).logits
        within = calls[-1].given
        within = within if isinstance(within, torch.Tensor) else within[0]
    except Exception as error:  # arbitrary code may run here
        raise NoLogits(f"transformers' {name} cannot be run on a text alone ({reason(error)})") from error
    if within.shape != alone.shape or not (within.double() - alone).norm() <= ROUNDING * alone.norm():
        raise NoLogits(f"within transformers' {name} the network computes something else than it does alone")
    if not isinstance(logits, torch.Tensor) or logits.ndim != 3 or logits.shape[:2] != inputs.shape:
        raise NoLogits(f"transformers' {name} does not give logits for each token")
    if not torch.isfinite(logits).all():
        raise NoLogits(f"the logits of transformers' {name} are NaN or infinite")
