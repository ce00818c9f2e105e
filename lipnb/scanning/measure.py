"""One layer at one length: the constants, the certified bounds and the published ones, and the baselines."""

import math
from collections.abc import Callable

import torch

from lipnb.attention import Attention
from lipnb.bounds.term_bounds import DEAR
from lipnb.certified import certify
from lipnb.lipschitz import local_lipschitz
from lipnb.scanning import catalogue
from lipnb.scanning.checking import self_check
from lipnb.scanning.closely import relative
from lipnb.scanning.gaps import tried
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
        What `lipnb.scanning.columns` explains. Where the self-check failed, rows without measurements. Behind them what
        could not be measured, as of `lipnb.scanning.gaps.tried`.
    """
    unknown = {"self_check": math.nan, "leak": math.nan, "passed": False, "radius": math.nan, "mean_radius": math.nan}
    place = {"layer": layer, "length": n} | unknown | {"lipschitz": math.nan}
    rows: list[dict] = [{**place, "window": i} for i in range(len(reader.inputs[n]))]
    gaps: list[dict] = []
    with tried(gaps, f"layer {layer} at n = {n}"):
        _fill(rows, gaps, reader, layer, n, object, {"rtol": rtol, "seed": seed}, certified, upper_work)
    return rows + gaps


def _fill(rows, gaps, reader, layer, n, object, options, certified, upper_work):
    """Measure what the rows lack, each part by itself: one that fails leaves the others."""
    model, read = reader.of("text", n)
    error, leak, passed = self_check(model, layer, read[layer])
    f, x = model.attention(layer, object, n), _input(read[layer], object)
    norms = torch.linalg.vector_norm(x.double(), dim=-1)
    for row, one in zip(rows, norms, strict=True):
        row |= {"self_check": error, "leak": leak, "passed": passed}
        row |= {"radius": one.max().item(), "mean_radius": one.square().mean().sqrt().item()}
    if not passed:
        return
    where, prepared, work = f"layer {layer} at n = {n}", None, closed_form_work(f, n)
    with tried(gaps, f"bounds in closed form of {where}"):
        prepared = catalogue.prepare(f)
    for i, row in enumerate(rows):
        one, here = x[i : i + 1], f"{where}, window {i}"
        with tried(gaps, here):
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
            }
        row |= {"certified_lower": math.nan, "certified": math.nan}
        if i < certified and work is not None and work <= upper_work:
            with tried(gaps, f"certified bound of {here}"):
                bracket = certify(f, x[i], columns=0, rtol=1e-3, seed=options["seed"])
                row |= {"certified_lower": bracket.lower.item(), "certified": bracket.upper.item()}
        if prepared is None and i > 0:  # what is not prepared for all inputs is dear
            continue
        with tried(gaps, f"bounds in closed form of {here}"):
            row |= {f"log10_{key}": value for key, value in catalogue.evaluate(f, prepared, x[i]).items()}
    for name in reader.baselines:
        with tried(gaps, f"baseline ({name}) of {where}"):
            other, read = reader.of(name, n)
            base, received = other.attention(layer, object, n), _input(read[layer], object)
            rows[0][name] = local_lipschitz(base, received, **options).value.item()


def _input(read, object):
    return read.stream if object == "block" else read.received


def _largest_column(f, x):
    """The largest column sum of the attention matrices at tokens (1, n, d): how much attention one token gets."""
    return f.probabilities(x).sum(-2).amax().item() if isinstance(f, Attention) else math.nan
