"""One layer at one length: the constants, the certified bounds and the published ones, and the baselines."""

import math
from collections.abc import Callable

import torch

from lipnb.attention import Attention
from lipnb.bounds.terms import DEAR
from lipnb.certified import certify
from lipnb.lipschitz import local_lipschitz
from lipnb.scanning import catalogue
from lipnb.scanning.checking import self_check
from lipnb.scanning.closely import relative
from lipnb.scanning.reader import Reader

__all__ = ["closed_form_work", "measure"]


def closed_form_work(f: Callable, n: int) -> float | None:
    """Floating point operations that the closed form of `lipnb.certify` takes, roughly; None without one."""
    if not isinstance(f, Attention) or f.score != "dot":
        return None
    joined = min(f.output_width, f.heads * f.value_width)
    tested = n * joined**3 > DEAR and not f.joint_norm
    return (1.5 if tested else 6.0) * n * joined**3 + 8.0 * f.heads * n**2 * f.value_width**2


def measure(
    reader: Reader, layer: int, n: int, *, object: str, rtol: float, seed: int, certified: int, upper_work: float
) -> list[dict]:
    """Rows of one layer at one length, a dictionary for each window.

    Parameters
    ----------
    reader : Reader
        The network on its inputs.
    layer, n : int
        Layer and tokens of a window.
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
        What `lipnb.scanning.columns` explains. Where the self-check failed, rows without measurements.
    """
    model, read = reader.of("text", n)
    error, leak, passed = self_check(model, layer, read[layer])
    f, x = model.attention(layer, object, n), _input(read[layer], object)
    norms = torch.linalg.vector_norm(x.double(), dim=-1)
    place = {"layer": layer, "length": n, "self_check": error, "leak": leak, "passed": passed}
    rows = [
        {**place, "window": i, "radius": one.max().item(), "mean_radius": one.square().mean().sqrt().item()}
        for i, one in enumerate(norms)
    ]
    if not passed:
        return rows
    prepared, work, options = catalogue.prepare(f), closed_form_work(f, n), {"rtol": rtol, "seed": seed}
    for i, row in enumerate(rows):
        one = x[i : i + 1]
        lip = local_lipschitz(f, one, **options)
        row |= {
            "lipschitz": lip.value.item(),
            "relative": relative(lip.value.item(), one, f(one)),
            "residual": lip.residual.item(),
            "converged": lip.converged.item(),
            "steps": lip.steps.item(),
            "probable": lip.upper.item(),
            "route": lip.route,
            "column": _largest_column(f, one),
            "certified_lower": math.nan,
            "certified": math.nan,
        }
        if i < certified and work is not None and work <= upper_work:
            bracket = certify(f, x[i], columns=0, rtol=1e-3, seed=seed)
            row |= {"certified_lower": bracket.lower.item(), "certified": bracket.upper.item()}
        if prepared is None and i > 0:  # what is not prepared for all inputs is dear
            continue
        row |= {f"log10_{key}": value for key, value in catalogue.evaluate(f, prepared, x[i]).items()}
    for name in reader.baselines:
        other, read = reader.of(name, n)
        rows[0][name] = local_lipschitz(
            other.attention(layer, object, n), _input(read[layer], object), **options
        ).value.item()
    return rows


def _input(read, object):
    return read.stream if object == "block" else read.received


def _largest_column(f, x):
    """The largest column sum of the attention matrices at tokens (1, n, d): how much attention one token gets."""
    return f.probabilities(x).sum(-2).amax().item() if isinstance(f, Attention) else math.nan
