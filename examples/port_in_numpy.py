"""A Llama in NumPy, checked layer by layer against PyTorch's.

    lipnb drift FOLDER --dump reference.safetensors
    python examples/port_in_numpy.py FOLDER reference.safetensors mine.safetensors
    lipnb drift FOLDER --against mine.safetensors

FOLDER holds config.json and model.safetensors of a small Llama. The port reads the token ids of the reference and
writes its own states under the keys of `lipnb drift --help`, each at the place where it arises: `keep` is all that a
port in another language has to add. It computes in float32.
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file


def norm(x, gain, eps):
    """Root mean square norm of each token."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain


def rotated(x, base):
    """Rotary positions of (heads, n, k): coordinate i turns with coordinate i + k/2."""
    n, k = x.shape[-2:]
    angle = np.outer(np.arange(n), base ** (-np.arange(0, k, 2) / k))
    cos, sin = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
    first, second = x[..., : k // 2], x[..., k // 2 :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def softmax(logits):
    """Softmax of the rows."""
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def attention(x, weights, config):
    """Causal attention of one layer on normalised tokens (n, d)."""
    heads, shared = config["num_attention_heads"], config["num_key_value_heads"]
    query, key, value = (x @ weights[f"self_attn.{one}_proj.weight"].T for one in "qkv")
    query, key, value = (
        one.reshape(len(x), count, -1).swapaxes(0, 1) for one, count in ((query, heads), (key, shared), (value, shared))
    )
    query, key = rotated(query, config["rope_theta"]), rotated(key, config["rope_theta"])
    key, value = (np.repeat(one, heads // shared, axis=0) for one in (key, value))
    logits = query @ key.swapaxes(1, 2) / np.float32(np.sqrt(query.shape[-1]))
    logits[:, np.triu(np.ones((len(x), len(x)), bool), 1)] = -np.inf
    mixed = softmax(logits) @ value
    return mixed.swapaxes(0, 1).reshape(len(x), -1) @ weights["self_attn.o_proj.weight"].T


def mlp(x, weights):
    """Gated MLP of one layer on normalised tokens (n, d)."""
    gate, up = (x @ weights[f"mlp.{one}_proj.weight"].T for one in ("gate", "up"))
    return gate / (1 + np.exp(-gate)) * up @ weights["mlp.down_proj.weight"].T


def states(ids, tensors, config):
    """States of the network on token ids (n,): key -> array (n, d)."""
    found, eps = {}, np.float32(config["rms_norm_eps"])
    x = tensors["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        begin = f"model.layers.{layer}."
        weights = {key.removeprefix(begin): value for key, value in tensors.items() if key.startswith(begin)}
        found[f"hidden_states.{layer}"] = x  # keep: what the layer receives
        found[f"attention.{layer}"] = attention(norm(x, weights["input_layernorm.weight"], eps), weights, config)
        x = x + found[f"attention.{layer}"]
        found[f"mlp.{layer}"] = mlp(norm(x, weights["post_attention_layernorm.weight"], eps), weights)
        x = x + found[f"mlp.{layer}"]
    found[f"hidden_states.{config['num_hidden_layers']}"] = x  # keep: before the final norm
    x = norm(x, tensors["model.norm.weight"], eps)
    found["logits"] = x @ tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"]).T
    return found


def main(folder, reference, mine):
    """Write the states of a Llama for the token ids of a reference."""
    config = json.loads(Path(folder, "config.json").read_text())
    config = {"rope_theta": config.get("rope_parameters", {}).get("rope_theta", 10000.0), **config}
    tensors = {key: value.astype(np.float32) for key, value in load_file(Path(folder, "model.safetensors")).items()}
    ids = load_file(reference)["input_ids"]
    found = [states(one, tensors, config) for one in ids]
    save_file({"input_ids": ids} | {key: np.stack([one[key] for one in found]) for key in found[0]}, mine)


if __name__ == "__main__":
    main(*sys.argv[1:])
