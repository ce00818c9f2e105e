"""Networks of a checked configuration: drawn at random, or read; neither is made before it is known to fit."""

import re

import torch

from lipnb.models.checked import check_size
from lipnb.models.files import quiet

__all__ = ["draw", "read"]


def draw(config, architecture, seed, name):
    """A network with random weights."""
    check_size(_described(config, architecture, name), 4, name)
    with quiet():
        from transformers import AutoModel

        # the CPU generator alone: torch.manual_seed would also reseed accelerators, which stay so afterwards
        torch.default_generator.manual_seed(seed)
        # always drawn in float32, so that one seed is one network in every dtype
        return AutoModel.from_config(
            config, attn_implementation="eager", dtype=torch.float32, trust_remote_code=False, **architecture.options
        )


def _described(config, architecture, name):
    """How many numbers a configuration stands for; none of them is made."""
    with quiet():
        from transformers import AutoModel

        try:
            with torch.device("meta"):  # what is missing would be drawn at random, in any amount: count first
                return sum(p.numel() for p in AutoModel.from_config(config, **architecture.options).parameters())
        except Exception as error:  # the library has many ways to refuse a value
            raise ValueError(
                f"no network can be built from config.json of {name!r}: "
                f"{(str(error) or type(error).__name__).strip().splitlines()[-1]}"
            ) from error


def read(folder, config, architecture, dtype, name, held):
    """The network of these weights, which hold `held` numbers."""
    with quiet():
        from transformers import AutoModel

        described = _described(config, architecture, name)
        check_size(described, dtype.itemsize, name)
        if described > 2 * held:
            raise ValueError(
                f"the weights of {name!r} do not fit its config.json: it describes {described:,} numbers, "
                f"they hold {held:,}."
            )
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
                **architecture.options,
            )
        except RuntimeError as error:
            raise ValueError(f"the weights of {name!r} do not fit its config.json: shapes differ.") from error
    _check_layers(report["unexpected_keys"], config, architecture, name)
    missing = sorted(report["missing_keys"])
    if missing:  # the library would fill them with random numbers
        raise ValueError(
            f"the weights of {name!r} are not complete: {len(missing)} tensors of its "
            f"config.json are missing, such as {missing[0]}."
        )
    return network


def _check_layers(unexpected, config, architecture, name):
    """Refuse weights that hold more layers than the network: those would be left out without a word."""
    inside = re.compile(rf"(?:^|\.){re.escape(architecture.layers)}\.(\d+)\.")
    numbers = [int(found[1]) for key in unexpected if (found := inside.search(key))]
    if numbers and max(numbers) >= config.num_hidden_layers:
        raise ValueError(
            f"the weights of {name!r} do not fit its config.json: they hold {max(numbers) + 1} layers, it "
            f"describes {config.num_hidden_layers}."
        )
