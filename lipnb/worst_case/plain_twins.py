"""Plain heads that are alike: where the constructions of rough inputs for attention in use come from."""

import torch

from lipnb.attention import Attention
from lipnb.attention.rope_norm import rotation, turned

__all__ = ["plain_twins"]


def plain_twins(attention: Attention, n: int) -> list[Attention]:
    r"""Plain heads that read like these, one for each of a few distances where they have rotary positions.

    At the distance m = i - j logits are :math:`q_i^\top R_m^\top k_j`: the keys of that twin are
    :math:`R_m^\top W_K`. Norms become the scaling that they are for the longest rows of tokens of length 1; caps,
    relative positions, sinks and the biases of keys and values are left out. Nothing is claimed of the twins: what
    they suggest is measured with the map itself.

    Parameters
    ----------
    attention : Attention
        With dot products, each head with keys of its own.
    n : int
        Number of tokens.

    Returns
    -------
    list of Attention
        Of the map itself, where it is plain, nothing but that map.

    Examples
    --------
    >>> eye = torch.eye(2)
    >>> f = Attention.from_matrices(eye, eye).replace(frequencies=torch.tensor([torch.pi / 2]))
    >>> [(twin.key.round() + 0).tolist() for twin in plain_twins(f, 2)]
    [[[[1.0, 0.0], [0.0, 1.0]]], [[[0.0, 1.0], [-1.0, 0.0]]]]
    """
    if not attention.more:
        return [attention]
    without = ("key_bias", "value_bias", "query_norm", "key_norm", "cap", "relative", "sinks", "frequencies")
    plain = attention.replace(**dict.fromkeys(without), **_scaled(attention))
    return [plain] if attention.frequencies is None else _at_distances(attention, plain, n)


def _at_distances(attention, plain, n):
    """The plain heads with keys turned back by a few distances, from none to the largest."""
    far = (n if attention.window is None else min(n, attention.window)) - 1
    cos, sin = rotation(attention.frequencies, far + 1, attention.dtype)
    chosen = sorted({0, min(1, far), far // 2, far})
    return [plain.replace(key=turned(plain.key.mT, (cos[m], -sin[m])).mT) for m in chosen]


def _scaled(attention):
    """Queries with their biases, and keys, as norms scale the longest rows."""
    parts = {name: getattr(attention, name) for name in ("query", "key", "query_bias")}
    for name in ("query", "key"):
        weight = getattr(attention, f"{name}_norm")
        if weight is None:
            continue
        longest = torch.linalg.matrix_norm(parts[name], 2).square() / attention.key_width
        scale = weight * (longest + attention.norm_eps).rsqrt()[:, None]
        parts[name] = scale[..., None] * parts[name]
        if name == "query" and parts["query_bias"] is not None:
            parts["query_bias"] = scale * parts["query_bias"]
    return parts
