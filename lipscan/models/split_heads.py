"""Conversion of a layer's weights, as networks store them, to the arguments of `lipnb.Attention`.

Rows are cut into heads, and the following is folded into the weights: the gain of a rotation (squared, on the rotated
coordinates of the queries), rotations of neighbouring coordinates (by reordering rows), and LayerNorm in the head (rows
of the projection centred, then RMSNorm).
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lipscan.models.norms import TokenNorm, token_norm


class Rotation(NamedTuple):
    """Rotary positions of a layer: frequencies (p,), the factor of cosines and sines, and the pairs of coordinates.

    With `neighbours`, 2 c and 2 c + 1 rotate together, otherwise c and c + p.
    """

    frequencies: Tensor
    gain: float
    neighbours: bool


def separate(inner: str, names: str, heads: str, scale: str | float = "scaling") -> Callable[[Any], dict[str, Any]]:
    """Reader for layers with separate linear maps for queries, keys and values, see `arguments`.

    Parameters
    ----------
    inner : str
        Attribute path from a layer to the module that contains all others.
    names : str
        Attribute paths to the linear maps of queries, keys, values and output.
    heads, scale : str
        Attribute paths to the number of heads and to the scale of the logits; a number is used as the scale.
    """

    def read(layer):
        module = attrgetter(inner)(layer)
        count = attrgetter(heads)(module)
        factor = attrgetter(scale)(module) if isinstance(scale, str) else scale
        return linear_maps(*attrgetter(*names.split())(module)) | {"heads": count, "groups": count, "scale": factor}

    return read


def linear_maps(query: Any, key: Any, value: Any, output: Any) -> dict[str, Any]:
    """Weights and biases of four linear maps, as the input of `arguments`."""
    linear = {"query": query, "key": key, "value": value, "output": output}
    weights = {name: module.weight for name, module in linear.items()}
    return weights | {f"{name}_bias": module.bias for name, module in linear.items()}


def fused(
    inner: str,
    names: str,
    heads: str,
    groups: str | None = None,
    scale: str | Callable[[Any], float] = "scaling",
    *,
    by_head: bool = False,
    columns: bool = False,
) -> Callable[[Any], dict[str, Any]]:
    """Reader for layers with a fused QKV projection.

    Parameters
    ----------
    inner : str
        Attribute path from a layer to the module that contains both maps.
    names : str
        Attribute paths to the fused map and to the output projection.
    heads, groups : str
        Attribute paths to the number of heads h, and to the number g of key and value heads, by default h.
    scale : str or callable
        Attribute path to the scale of the logits, or a function from the module to it.
    by_head : bool
        Whether query, key and value of the first head come first; else queries of all heads, then keys, then values.
    columns : bool
        Whether both maps are ``Conv1D``, x W + b with W (in, out), so that their columns serve as rows.
    """

    def read(layer):
        module = attrgetter(inner)(layer)
        rows, output = attrgetter(*names.split())(module)
        h = attrgetter(heads)(module)
        g = h if groups is None else attrgetter(groups)(module)

        weight, last = (each.weight.T if columns else each.weight for each in (rows, output))
        said = cut(weight, rows.bias, h, g, by_head)
        said |= {"output": last, "output_bias": output.bias, "heads": h, "groups": g}
        return said | {"scale": attrgetter(scale)(module) if isinstance(scale, str) else scale(module)}

    return read


def cut(weight: Tensor, bias: Tensor | None, h: int, g: int, by_group: bool) -> dict[str, Tensor | None]:
    """Weights and biases of queries, keys and values, cut from the rows of one fused map.

    With `by_group` the order is: queries of the heads that share the first keys, those keys, their values, and so on;
    else all queries, all keys, all values.
    """

    def parts(rows):
        if rows is None:
            return None, None, None
        if by_group:
            each = rows.unflatten(0, (g, h // g + 2, -1))
            return each[:, :-2].flatten(0, 2), each[:, -2].flatten(0, 1), each[:, -1].flatten(0, 1)
        k = len(rows) // (h + 2 * g)
        return rows.split([h * k, g * k, g * k])

    said = dict(zip(("query", "key", "value"), parts(weight), strict=True))
    return said | dict(zip(("query_bias", "key_bias", "value_bias"), parts(bias), strict=True))


def arguments(said: dict[str, Any], rotation: Rotation | None = None) -> dict[str, Any]:
    """Arguments of `lipnb.Attention` except mask, window and relative positions; all tensors are copies.

    Parameters
    ----------
    said : dict
        "query", "key", "value" and "output": weights (h k, d), (g k, d), (g v, d) and (m, h v); "query_bias" and the
        "query", "key", "value" and "output": weights (h k, d), (g k, d), (g v, d) and (m, h v); "query_bias" and the
        other biases; "heads" h, "groups" g, "scale"; optionally "query_norm" and "key_norm", modules, "cap", "sinks".
    rotation : Rotation, optional
        Rotation of queries and keys.
    """
    h, g = said["heads"], said["groups"]
    given = {"scale": said["scale"], "cap": said.get("cap"), "output_bias": _copy(said["output_bias"])}
    given["sinks"] = _copy(said.get("sinks"))
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
    """Add the norms in the head; LayerNorm becomes RMSNorm of rows from which the mean over the head is subtracted."""
    found = [_head_norm(module, given[name].shape[1]) for module, name in zip(modules, ("query", "key"), strict=True)]
    if not all(isinstance(norm, TokenNorm) for norm in found):
        raise ValueError("its norms of queries and keys change nothing, and lipnb does not know which others do.")
    if found[0].eps != found[1].eps:
        raise ValueError("its queries and keys are normalised with two epsilons, which is not supported.")
    given["norm_eps"], joint = found[0].eps, False
    for name, norm in zip(("query", "key"), found, strict=True):
        heads, k = given[name].shape[:2]
        if norm.bias is not None and norm.bias.any():
            raise ValueError("its queries and keys are normalised by LayerNorm with a bias, which is not supported.")
        if norm.size == heads * k and heads > 1:
            joint = True
            if norm.centred:
                raise ValueError("its queries and keys are centred over all heads together, which is not supported.")
        elif norm.size != k:
            raise ValueError(f"its norms of queries and keys are of {norm.size} numbers, heads of {k}.")
        weight = given[name].new_ones(norm.size) if norm.weight is None else norm.weight
        given[f"{name}_norm"] = weight.reshape(-1, k).expand(heads, k).clone()
        if norm.centred:
            for each in (name, f"{name}_bias"):
                given[each] = None if given[each] is None else given[each] - given[each].mean(1, keepdim=True)
    given["joint_norm"] = joint


def _head_norm(module, k):
    """The norm of a module as one `TokenNorm`, also for a list of one norm a head; `k` numbers without a weight."""
    if not hasattr(module, "norms"):
        return token_norm(module, k)
    each = [token_norm(norm, k) for norm in module.norms]
    if len({(norm.centred, norm.size, norm.eps, norm.bias is None) for norm in each}) > 1:
        raise ValueError("its heads are normalised in different ways, which is not supported.")
    weight = torch.stack([norm.weight for norm in each])
    return each[0]._replace(
        weight=weight, bias=None if each[0].bias is None else torch.stack([norm.bias for norm in each])
    )


def _turn(given, rotation):
    """Add frequencies; move coordinates that rotate together to c and c + p; fold the squared gain into the queries."""
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
