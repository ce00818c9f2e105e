"""What becomes of local errors at the end of a network, to first order: their Jacobians' products, gains and sum."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import jvp, vmap

from lipnb.checks import at_once
from lipscan.drift.passes import Network, passed

PROBES = 4  # random directions for the gain of a random error


class Carried(NamedTuple):
    """Local errors of one sequence, carried to the last state before the final norm.

    Attributes
    ----------
    errors : Tensor, shape (L + 1, n, d)
        Of the embedding, then of each layer.
    random : list of float
        For each, the root mean square gain of a random error.
    back : list of Tensor, shape (n, d)
        For each, the observed difference pulled back by the transposed Jacobian.
    """

    errors: Tensor
    random: list[float]
    back: list[Tensor]


def carried(
    network: Network,
    ids: Tensor,
    base: Sequence[Tensor],
    errors: Sequence[Tensor],
    difference: Tensor,
    seed: int = 0,
    tick: Callable[[], Any] = lambda: None,
) -> Carried:
    """Carry local errors to the end by the layers' Jacobians at the reference's states.

    Parameters
    ----------
    network : Network
        In float32: enough for the leading digits of a first-order term.
    ids : LongTensor, shape (1, n)
        Token ids.
    base : sequence of Tensor, shape (1, n, d)
        States of the reference, L + 1 of them.
    errors : sequence of Tensor, shape (1, n, d)
        Local errors of the embedding and of each layer, L + 1 of them.
    difference : Tensor, shape (1, n, d)
        Observed difference at the end.
    seed : int
        Seed of the random errors.
    tick : callable
        Called twice for each layer, as it is done.

    Returns
    -------
    Carried
        In float64.

    Notes
    -----
    All errors made so far go through a layer together, as one batch of tangents: L (L + 1) / 2 products of a layer.
    """
    dtype = network.dtype
    calls = passed(network, ids).calls
    base = [one.to(dtype) for one in base]
    scale = max((one.abs().max().item() for one in errors), default=0.0) or 1.0  # keep float32 away from its smallest
    sent = [(one / scale).to(dtype) for one in errors]
    n, d = base[0].shape[1:]
    heads = getattr(network.inner.config, "num_attention_heads", 1)
    chunk = at_once(n * (2 * heads * n + 8 * d), dtype)
    tangents = sent[0][None]
    for call, x, error in zip(calls, base, sent[1:], strict=False):
        tangents = torch.cat([_pushed(call.again, x, tangents, chunk), error[None]])
        tick()
    generator = torch.Generator().manual_seed(seed)
    probes = torch.randn(PROBES, *base[0].shape, generator=generator).to(base[0])
    length = difference.norm().item() or 1.0
    duals = torch.cat([(difference / length).to(dtype)[None], probes])
    back, random = [], []
    for number in range(len(calls), -1, -1):
        back.append(duals[0, 0].double() * length)
        random.append(duals[1:].double().square().mean().sqrt().item())
        if number:
            duals = _pulled(calls[number - 1].again, base[number - 1], duals)
            tick()
    return Carried(tangents[:, 0].double() * scale, random[::-1], back[::-1])


def _pushed(f, x, tangents, chunk):
    """Jacobian of f at x times each of some tangents: by forward mode, or where f has none by reverse mode twice."""
    try:
        return vmap(lambda u: jvp(f, (x,), (u,))[1], chunk_size=chunk)(tangents)
    except (RuntimeError, NotImplementedError):
        return torch.stack([_pushed_in_reverse(f, x, u) for u in tangents])


@torch.enable_grad()
def _pushed_in_reverse(f, x, tangent):
    """Jacobian of f at x times a tangent: the transpose of the transposed Jacobian, which is linear in its vector."""
    x = x.detach().requires_grad_(True)
    y = f(x)
    dual = torch.zeros_like(y).requires_grad_(True)
    pulled = torch.autograd.grad(y, x, dual, create_graph=True)[0]
    return torch.autograd.grad(pulled, dual, tangent)[0]


@torch.enable_grad()
def _pulled(f, x, duals):
    """Transposed Jacobian of f at x times each of some vectors."""
    x = x.detach().requires_grad_(True)
    y = f(x)
    return torch.stack([torch.autograd.grad(y, x, dual, retain_graph=True)[0] for dual in duals])
