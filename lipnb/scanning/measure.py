"""One layer at one length: the self-check, the constants, the certified bounds and the published ones."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lipnb.attention import Attention
from lipnb.certified import certify
from lipnb.lipschitz import local_lipschitz
from lipnb.models import Model
from lipnb.scanning import catalogue

__all__ = ["TOLERANCE", "closed_form_work", "measure", "self_check"]

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-5}  # networks compute softmax in float32 whatever their type


@torch.no_grad()
def self_check(model: Model, layer: int, inputs: Tensor) -> tuple[Tensor, float, float, bool]:
    """Whether our map of a layer is that of the network, and the mask that of the model.

    Parameters
    ----------
    model : lipnb.models.Model
        The network.
    layer : int
        Layer.
    inputs : Tensor, shape (b, n) or (b, c, h, w)
        Token ids or images.

    Returns
    -------
    x : Tensor, shape (b, n, d)
        What the attention of the layer received.
    error : float
        Largest difference between our output and the network's, relative to the network's largest entry.
    leak : float
        How much the first half of the network's own outputs moves when the tokens that its attention receives in the
        second half are replaced, relative; 0 for a causal layer. NaN where there is one token.
    passed : bool
        The error is within the tolerance, and the leak is there exactly without a mask.
    """
    x, given = model.given(inputs, layer)
    f, tolerance = model.attention(layer), TOLERANCE[x.dtype]
    error = ((f(x) - given).abs().max() / given.abs().max().clamp_min(1e-30)).item()
    half, leak = x.shape[1] // 2, math.nan
    if half:
        _, changed = model.given(inputs, layer, lambda x: torch.cat([x[:, :half], x[:, half:].flip(1) + 1], 1))
        leak = ((changed - given)[:, :half].abs().max() / given[:, :half].abs().max().clamp_min(1e-30)).item()
    causal = not half or (leak <= tolerance) == model.masked
    return x, error, leak, bool(error <= tolerance and causal)


def closed_form_work(f: Callable, n: int) -> float | None:
    """Floating point operations that the closed form of `lipnb.certify` takes, roughly; None without one."""
    if not isinstance(f, Attention) or f.more:
        return None
    joined = min(f.output_width, f.heads * f.value_width)
    return 8.0 * n * joined**3 + 8.0 * f.heads * n**2 * f.value_width**2


def measure(
    model: Model, layer: int, inputs: Tensor, *, object: str, rtol: float, seed: int, certified: int, upper_work: float
) -> list[dict]:
    """Rows of one layer at one length, a dictionary for each window.

    Parameters
    ----------
    model, layer, inputs
        As for `self_check`.
    object : {"heads+output", "heads", "block"}
        What is measured, see `lipnb.models`.
    rtol, seed : float, int
        As for `lipnb.local_lipschitz`.
    certified : int
        How many windows get a certified upper bound, the first ones.
    upper_work : float
        Most operations that one may take.

    Returns
    -------
    list of dict
        Where the self-check failed, rows without measurements.
    """
    x, error, leak, passed = self_check(model, layer, inputs)
    f = model.attention(layer, object)
    if object == "block":
        x = model.activations(inputs, layer, object)
    norms = torch.linalg.vector_norm(x.double(), dim=-1)
    work = closed_form_work(f, x.shape[1])
    place = {"layer": layer, "length": x.shape[1], "self_check": error, "leak": leak, "passed": passed}
    rows = [
        {**place, "window": i, "radius": one.max().item(), "mean_radius": one.square().mean().sqrt().item()}
        for i, one in enumerate(norms)
    ]
    if not passed:
        return rows
    prepared = catalogue.prepare(f)
    for i, row in enumerate(rows):
        one = x[i : i + 1]
        lip = local_lipschitz(f, one, rtol=rtol, seed=seed)
        row |= {
            "lipschitz": lip.value.item(),
            "residual": lip.residual.item(),
            "converged": lip.converged.item(),
            "steps": lip.steps.item(),
            "probable": lip.upper.item(),
            "route": lip.route,
            "certified_lower": math.nan,
            "certified": math.nan,
        }
        if i < certified and work is not None and work <= upper_work:
            bracket = certify(f, x[i], columns=0, seed=seed)
            row |= {"certified_lower": bracket.lower.item(), "certified": bracket.upper.item()}
        row |= {f"log10_{key}": value for key, value in catalogue.evaluate(f, prepared, x[i]).items()}
    return rows
