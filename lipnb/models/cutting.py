"""From the weights of a layer, as networks keep them, to the arguments of `lipnb.Attention`.

Rows are cut into heads, and what folds is folded: the gain of a rotation (its square, on the coordinates of the queries
that turn), rotations of neighbouring coordinates (their rows in another order), and LayerNorm in the head (rows of the
projection centred, then RMSNorm).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lipnb.models.norms import TokenNorm, token_norm

__all__ = ["Rotation", "arguments", "fused", "separate"]


class Rotation(NamedTuple):
    """Rotary positions of one layer.

    Attributes
    ----------
    frequencies : Tensor, shape (p,)
        What a place is multiplied with.
    gain : float
        Factor of cosines and sines.
    neighbours : bool
        Whether coordinates 2 c and 2 c + 1 turn together, in place of c and c + p.
    """

    frequencies: Tensor
    gain: float
    neighbours: bool


def separate(
    query: Any, key: Any, value: Any, output: Any, *, heads: int, groups: int | None = None, scale: float, **more: Any
) -> dict[str, Any]:
    """What `arguments` reads, of four linear maps."""
    linear = {"query": query, "key": key, "value": value, "output": output}
    weights = {name: module.weight for name, module in linear.items()}
    biases = {f"{name}_bias": module.bias for name, module in linear.items()}
    return weights | biases | {"heads": heads, "groups": groups or heads, "scale": scale} | more


def fused(
    weight: Tensor,
    bias: Tensor | None,
    output: Any,
    *,
    heads: int,
    groups: int | None = None,
    by_head: bool = False,
    scale: float,
) -> dict[str, Any]:
    """What `arguments` reads, of one map that makes queries, keys and values.

    Parameters
    ----------
    weight, bias : Tensor, shape ((h + 2 g) k, d) and ((h + 2 g) k,), or None
        Queries of all heads first, then keys, then values; with `by_head` all three of the first head first.
    output : torch.nn.Linear
        The output projection.
    heads, groups : int
        Heads h, and g of keys and values, h by default.
    by_head : bool
        In which order rows stand.
    scale : float
        Factor of the logits.
    """
    groups = groups or heads

    def parts(rows):
        if rows is None:
            return None, None, None
        if by_head:
            return (part.flatten(0, 1) for part in rows.unflatten(0, (heads, 3, -1)).unbind(1))
        k = len(rows) // (heads + 2 * groups)
        return rows.split([heads * k, groups * k, groups * k])

    names = ("query", "key", "value")
    weights = dict(zip(names, parts(weight), strict=True))
    biases = dict(zip((f"{name}_bias" for name in names), parts(bias), strict=True))
    last = {"output": output.weight, "output_bias": output.bias}
    return weights | biases | last | {"heads": heads, "groups": groups, "scale": scale}


def arguments(said: dict[str, Any], rotation: Rotation | None = None) -> dict[str, Any]:
    """Arguments of `lipnb.Attention` but mask, window and relative positions; all tensors are copies.

    Parameters
    ----------
    said : dict
        "query", "key", "value" and "output": weights (h k, d), (g k, d), (g v, d) and (m, h v); "query_bias" and the
        like; "heads" h, "groups" g, "scale"; and optionally "query_norm" and "key_norm", modules, and "cap".
    rotation : Rotation, optional
        What turns queries and keys.

    Raises
    ------
    ValueError
        "its queries and keys are normalised ..." in a way that `Attention` does not know.
    """
    h, g = said["heads"], said["groups"]
    given = {"scale": said["scale"], "cap": said.get("cap"), "output_bias": _copy(said["output_bias"])}
    given["output"] = said["output"].detach().unflatten(1, (h, -1)).movedim(1, 0).contiguous()
    for name in ("query", "key", "value"):
        for each in (name, f"{name}_bias"):
            rows = said[each]
            given[each] = None if rows is None else _copy(rows.unflatten(0, (h if name == "query" else g, -1)))
    if said.get("query_norm") is not None:
        _normalise(given, said["query_norm"], said["key_norm"])
    if rotation is not None:
        _turn(given, rotation)
    return given


def _copy(tensor):
    return None if tensor is None else tensor.detach().clone()


def _normalise(given, *modules):
    """Norms in the head; LayerNorm there is RMSNorm of rows whose mean over the head is taken off first."""
    found = [_head_norm(module) for module in modules]
    if any(not isinstance(norm, TokenNorm) or norm.weight is None for norm in found):
        raise ValueError("its queries and keys are normalised without weights, which is not known here.")
    if found[0].eps != found[1].eps:
        raise ValueError("its queries and keys are normalised with two epsilons, which is not known here.")
    given["norm_eps"], joint = found[0].eps, False
    for name, norm in zip(("query", "key"), found, strict=True):
        heads, k = given[name].shape[:2]
        if norm.bias is not None and norm.bias.any():
            raise ValueError("its queries and keys are normalised by LayerNorm with a bias, which is not known here.")
        if norm.size == heads * k and heads > 1:
            joint = True
            if norm.centred:
                raise ValueError("its queries and keys are centred over all heads together, which is not known here.")
        elif norm.size != k:
            raise ValueError(f"its norms of queries and keys are of {norm.size} numbers, heads of {k}.")
        given[f"{name}_norm"] = norm.weight.reshape(-1, k).expand(heads, k).clone()
        if norm.centred:
            for each in (name, f"{name}_bias"):
                given[each] = None if given[each] is None else given[each] - given[each].mean(1, keepdim=True)
    given["joint_norm"] = joint


def _head_norm(module):
    """The norm of a module, or of the list of modules that it has, one a head, as one."""
    if not hasattr(module, "norms"):
        return token_norm(module)
    each = [token_norm(norm) for norm in module.norms]
    if len({(norm.centred, norm.size, norm.eps, norm.bias is None) for norm in each}) > 1:
        raise ValueError("its heads are normalised in different ways, which is not known here.")
    weight = torch.stack([norm.weight for norm in each])
    return each[0]._replace(
        weight=weight, bias=None if each[0].bias is None else torch.stack([norm.bias for norm in each])
    )


def _turn(given, rotation):
    """Frequencies; coordinates that turn together brought to c and c + p; the gain, on the queries alone."""
    p = len(rotation.frequencies)
    given["frequencies"] = rotation.frequencies
    of_rows = [f"{name}{part}" for name in ("query", "key") for part in ("", "_bias", "_norm")]
    if rotation.neighbours:
        for name in of_rows:
            rows = given.get(name)
            if rows is not None:
                given[name] = torch.cat([rows[:, 0 : 2 * p : 2], rows[:, 1 : 2 * p : 2], rows[:, 2 * p :]], 1)
    if rotation.gain != 1:
        scaled = ("query_norm",) if given.get("query_norm") is not None else ("query", "query_bias")
        for name in scaled:
            if given[name] is not None:
                given[name][:, : 2 * p] *= rotation.gain**2
