"""Measured modes of `lipnb.local_lipschitz`; the only module in which a benchmark calls it.

All options that the benchmarks pass to it are in `OURS`, `REFERENCE` or `ROUTES`.
"""

import inspect
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec

import torch

from lipnb import Attention, AttentionJacobian, local_lipschitz

__all__ = ["OURS", "REFERENCE", "ROUTES", "gram", "left_out", "solve", "upper", "warm_up"]

RTOL = 1e-4
OURS = {
    "estimate": {"rtol": RTOL, "confidence": None},
    "certified 0.99": {"rtol": RTOL, "confidence": 0.99},
    "certified 1-1e-6": {"rtol": RTOL, "confidence": 1 - 1e-6},
}
# for references, in float64; the start differs from that of every measured run
REFERENCE = {"rtol": 1e-10, "confidence": 1 - 1e-6, "seed": 20_240_115}
ROUTES = {"cached": {"memory": 2**40}, "streamed": {"memory": 2**20}}  # bytes allowed for the cached state


def left_out(*tables):
    """Options of `tables` (default all) that the installed `local_lipschitz` lacks: a trial, not a result."""
    known = set(inspect.signature(local_lipschitz).parameters)
    options = [option for table in tables or (OURS, {"reference": REFERENCE}, ROUTES) for option in table.values()]
    return sorted({name for option in options for name in option} - known)


def solve(f, x, **options):
    """Call `lipnb.local_lipschitz` with those `options` that it supports; `left_out` lists the others.

    Parameters
    ----------
    f : Attention or callable
        The map.
    x : Tensor, shape (..., n, d)
        Tokens.
    **options
        An entry of `OURS`, `REFERENCE` or `ROUTES`, possibly with a seed.

    Returns
    -------
    LocalLipschitz
    """
    known = inspect.signature(local_lipschitz).parameters
    return local_lipschitz(f, x, **{name: value for name, value in options.items() if name in known})


def upper(lip, rtol=RTOL):
    """Certified upper bounds of an answer, float64, shape of the batch."""
    found = getattr(lip, "upper", None)
    return (lip.value * (1 + rtol) if found is None else found).double()


def warm_up():
    """Solve a small input in every mode, so that one-time costs of the process are not measured."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(4, 2, 16, 32, generator=generator)
    attention = Attention(*weights[:3], weights[3].mT)
    for options in OURS.values():
        solve(attention, torch.randn(2, 8, 32, generator=generator), **options)


def gram(attention, x):
    """The product u -> J^T J u of the closed form at tokens `x` (..., n, d), with its cached state computed now.

    For lipnb 0.3, which chose between routes for matrix products, it uses the route of the solver.
    """
    jacobian = AttentionJacobian(attention, x)
    product = getattr(jacobian, "gram", lambda u: jacobian.vjp(jacobian.jvp(u)))
    gemm = "lipnb.jacobian.gemm"
    route = getattr(import_module(gemm), "fastest", None) if find_spec(gemm) else None

    def by_route(u):
        with nullcontext() if route is None else route(x.dtype, x.device):
            return product(u)

    return by_route
