"""What a running network shows: the tokens that a layer's attention receives, and what it makes of them."""

from contextlib import contextmanager

import torch

from lipnb.checks import at_once

__all__ = ["given", "inputs_of", "received"]


class _Captured(Exception):
    """Stops a forward pass once the wanted tokens have been seen."""


def inputs_of(model, inputs):
    """Token ids (b, n) or images (b, c, h, w), checked, on the network's device; one sentence where they do not fit."""
    return _images(model, inputs) if model.architecture.reads == "pixel_values" else _ids(model, inputs)


@torch.no_grad()
def received(model, inputs, layer, object):
    """What `object` of a layer receives, shape (b, n, d). Layers after it are not run."""
    seen = []

    def capture(module, args, kwargs):
        seen.append(_tokens(args, kwargs))
        raise _Captured

    with _hooked(model.architecture.receiver(model.network, layer, object), capture):
        _run(model, inputs)
    return torch.cat(seen).detach().contiguous()


@torch.no_grad()
def given(model, inputs, layer, change=None):
    """What the attention of a layer receives, and what it gives of that or of its `change`; both (b, n, d)."""
    before, after = [], []

    def capture(module, args, kwargs):
        x = _tokens(args, kwargs)
        before.append(x)
        if change is None:
            return None
        return ((change(x), *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": change(x)})

    def stop(module, args, output):
        after.append(output[0] if isinstance(output, tuple) else output)
        raise _Captured

    stopping = model.architecture.giver(model.network, layer).register_forward_hook(stop)
    try:
        with _hooked(model.architecture.receiver(model.network, layer, "heads+output"), capture):
            _run(model, inputs)
    finally:
        stopping.remove()
    return torch.cat(before).detach().contiguous(), torch.cat(after).detach().contiguous()


def _tokens(args, kwargs):
    return args[0] if args else kwargs["hidden_states"]


@contextmanager
def _hooked(module, hook):
    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _run(model, inputs):
    """The network on parts of the inputs that fit, each stopped where it was captured."""
    reads = model.architecture.reads
    n = model.longest if reads == "pixel_values" else inputs.shape[1]
    options = {} if reads == "pixel_values" else {"use_cache": False}
    for part in inputs.split(at_once(n * (2 * model.heads * n + 8 * model.width), model.network.dtype)):
        try:
            model.network(**{reads: part}, **options)
        except _Captured:
            pass


def _ids(model, token_ids):
    token_ids = torch.as_tensor(token_ids)
    if token_ids.ndim != 2 or 0 in token_ids.shape:
        raise ValueError(
            f"token_ids must have shape (b, n) with b, n >= 1, got {tuple(token_ids.shape)}"
            ": one sequence ids is ids[None]."
        )
    if token_ids.dtype not in (torch.uint8, torch.int16, torch.int32, torch.int64):
        raise ValueError(f"token_ids must be integers, got {token_ids.dtype}.")
    vocabulary, positions = model.network.config.vocab_size, model.longest
    if token_ids.shape[1] > positions:
        raise ValueError(
            f"{model.name} has {positions} positions, got sequences of {token_ids.shape[1]} tokens: cut them shorter."
        )
    if token_ids.min() < 0 or token_ids.max() >= vocabulary:
        raise ValueError(
            f"token_ids must lie between 0 and {vocabulary - 1}, the vocabulary of "
            f"{model.name}, got {int(token_ids.min())} to {int(token_ids.max())}: use its "
            "own tokenizer."
        )
    return token_ids.to(model.network.device, torch.long)


def _images(model, images):
    config = model.network.config
    shape = (config.num_channels, config.image_size, config.image_size)
    images = torch.as_tensor(images)
    if images.ndim != 4 or images.shape[1:] != shape or not len(images) or not images.is_floating_point():
        raise ValueError(
            f"{model.name} reads images: a floating point tensor of shape (b, *{shape}), got "
            f"{tuple(images.shape)} of {images.dtype}."
        )
    return images.to(model.network.device, model.network.dtype)
