"""Passes of a network: what a module receives and gives, on inputs that are checked, and no further than needed."""

import math
from contextlib import contextmanager

import torch

from lipnb.checks import at_once
from lipnb.models.calls import first_of, tokens_of, with_tokens
from lipnb.models.self_check import refuse_filling, run, vocabulary

__all__ = ["Captured", "given", "hooked", "inputs_of", "received"]


class Captured(Exception):
    """Stops a forward pass once the wanted tokens have been seen."""


def inputs_of(model, inputs):
    """Token ids (b, n), images (b, c, h, w) or spectra (b, c, t), checked, on the network's device."""
    read = {"input_ids": _ids, "pixel_values": _images, "input_features": _sounds}
    return read[model.architecture.reads](model, inputs)


@torch.no_grad()
def received(model, inputs, layer, object):
    """What `object` of a layer receives, shape (b, n, d). Layers after it are not run."""
    seen, calls = [], _Calls(model, layer, object)

    def capture(module, args, kwargs):
        if calls.is_it():
            seen.append(tokens_of(module, args, kwargs))
            raise Captured

    with hooked(model.architecture.receiver(model.module, layer, object), capture):
        _run(model, inputs)
    x = torch.cat(seen).detach().contiguous()
    refuse_filling(x, inputs, model.architecture.reads, model.name)
    return x


@torch.no_grad()
def given(model, inputs, layer, change=None):
    """What the attention of a layer receives, and what it gives of that or of its `change`; both (b, n, d)."""
    before, after, calls, ends = [], [], _Calls(model, layer), _Calls(model, layer)

    def capture(module, args, kwargs):
        if not calls.is_it():
            return None
        x = tokens_of(module, args, kwargs)
        before.append(x)
        return None if change is None else with_tokens(module, args, kwargs, change(x))

    def stop(module, args, output):
        if not ends.is_it():
            return
        after.append(first_of(output))
        raise Captured

    stopping = model.architecture.giver(model.module, layer).register_forward_hook(stop)
    try:
        with hooked(model.architecture.receiver(model.module, layer, "heads+output"), capture):
            _run(model, inputs)
    finally:
        stopping.remove()
    x, y = torch.cat(before).detach().contiguous(), torch.cat(after).detach().contiguous()
    refuse_filling(x, inputs, model.architecture.reads, model.name)
    return x, y


class _Calls:
    """Whether a call of a module is that of one layer: layers may share a module, which is then called for each."""

    def __init__(self, model, layer, object="heads+output"):
        self.wanted, self.count = model.architecture.call_of(model.module, layer, object), 0

    def is_it(self):
        found = self.count == self.wanted
        self.count = 0 if found else self.count + 1  # a network stops at the wanted call, and starts again
        return found


@contextmanager
def hooked(module, hook):
    """A module that calls `hook` before it is called, for as long as the context lasts."""
    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _run(model, inputs):
    """The network on parts of the inputs that fit, each stopped where it was captured."""
    reads = model.architecture.reads
    n = inputs.shape[1] if reads == "input_ids" else model.longest
    if reads == "pixel_values":
        n = math.prod(inputs.shape[2:]) // model.module.config.patch_size**2 + 1
    for part in inputs.split(at_once(n * (2 * model.heads * n + 8 * model.width), model.module.dtype)):
        try:
            run(model.module, reads, part)
        except Captured:
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
    most, positions = vocabulary(model.module), model.longest
    if token_ids.shape[1] > positions:
        raise ValueError(
            f"{model.name} has {positions} positions, got sequences of {token_ids.shape[1]} tokens: cut them shorter."
        )
    if token_ids.min() < 0 or token_ids.max() >= most:
        raise ValueError(
            f"token_ids must lie between 0 and {most - 1}, the vocabulary of "
            f"{model.name}, got {int(token_ids.min())} to {int(token_ids.max())}: use its "
            "own tokenizer."
        )
    return token_ids.to(model.module.device, torch.long)


def _images(model, images):
    config = model.module.config
    channels, side, patch = config.num_channels, config.image_size, config.patch_size
    images = torch.as_tensor(images)
    shape = tuple(images.shape)
    fits = len(shape) == 4 and shape[1] == channels and shape[0] > 0
    if model.architecture.interpolates:
        fits = fits and all(patch <= length <= side and length % patch == 0 for length in shape[2:])
        wanted = f"(b, {channels}, h, w) with h, w multiples of {patch} up to {side}"
    else:
        fits = fits and shape[2:] == (side, side)
        wanted = f"(b, {channels}, {side}, {side})"
    if not fits or not images.is_floating_point():
        raise ValueError(
            f"{model.name} reads images: a floating point tensor of shape {wanted}, got {shape} of {images.dtype}."
        )
    return images.to(model.module.device, model.module.dtype)


def _sounds(model, spectra):
    config = model.module.config
    shape = (config.num_mel_bins, 2 * config.max_source_positions)
    spectra = torch.as_tensor(spectra)
    if spectra.ndim != 3 or spectra.shape[1:] != shape or not len(spectra) or not spectra.is_floating_point():
        raise ValueError(
            f"{model.name} reads mel spectra: a floating point tensor of shape (b, *{shape}), got "
            f"{tuple(spectra.shape)} of {spectra.dtype}."
        )
    return spectra.to(model.module.device, model.module.dtype)
