"""Summary of attention at an input: who is attended to, and which part of attention causes the local constant."""

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from lipnb.attention import Attention
from lipnb.jacobian import SingularPair
from lipnb.spectral import MatrixGram, lanczos, start_vectors

NORM_RTOL = 1e-3  # of the norms of attention matrices


@torch.no_grad()
def popularity(f: Attention, x: Tensor) -> dict[str, Tensor]:
    r"""Distribution of the attention of a layer at tokens x.

    `f`: a layer of h heads.
    `x` (b, n, d): tokens.
    Returns (b,): ``column``, the largest column sum :math:`\sum_i P_{ij}` over tokens j and heads: how much attention
    one token gets, between 1 and n without sinks in the softmax; ``popular``, the mean over heads of each head's
    largest; ``attention_norm``, the largest :math:`\|P\|_2` over heads, from below (relative 1e-3), which lies
    between 1 and :math:`\sqrt{\texttt{column}}` and is the factor by which a head's values act; ``entropy``, the mean
    over heads and rows of :math:`-\sum_j P_{ij} \log P_{ij}` in nats; ``sink``, the mean over heads and rows of
    :math:`P_{i1}`.
    """
    P = f.probabilities(x)
    columns = P.sum(-2).amax(-1)  # of each head
    b, h, n, _ = P.shape
    flat = P.reshape(b * h, n, n)

    start = start_vectors(b * h, n, seed=0, dtype=x.dtype, device=x.device)
    found = lanczos(MatrixGram(flat), start, rtol=NORM_RTOL)
    return {
        "column": columns.amax(-1),
        "popular": columns.mean(-1),
        "attention_norm": found.value.view(b, h).amax(-1),
        "entropy": torch.special.entr(P).sum(-1).mean((-2, -1)),
        "sink": P[..., 0].mean((-2, -1)),
    }


@torch.no_grad()
def concentration(pair: SingularPair) -> dict[str, Tensor]:
    r"""Number of tokens that the steepest direction moves, and number of outputs that feel it.

    `pair`: at inputs (b, n, d). Returns (b,): ``tokens_in`` and ``tokens_out``, the participation numbers :math:`1 /
    \sum_i s_i^2` of the shares :math:`s_i = |v_i|^2` of the tokens in the top singular vector: 1 if one token has it
    all, n if all have the same; ``most_in``, the largest share; ``place_in``, the token (from 0) with that share.
    """
    moving, moved = (share.double().square() for share in (pair.moving, pair.moved))
    most, place = moving.max(-1)
    return {
        "tokens_in": 1 / moving.square().sum(-1),
        "tokens_out": 1 / moved.square().sum(-1),
        "most_in": most,
        "place_in": place,
    }


@torch.no_grad()
def parts(f: Attention, x: Tensor, pair: SingularPair) -> dict[str, Tensor]:
    r"""Contributions of query, key and value to the constant, along the steepest direction.

    .. math:: \sigma = \langle u, D_X f\, v\rangle
        = \langle u, D^{\mathrm{value}} v\rangle + \langle u, D^{\mathrm{key}} v\rangle
        + \langle u, D^{\mathrm{query}} v\rangle ,

    where each derivative lets v act only through the values, the keys or the queries.

    `x` (b, n, d): tokens. `pair`: of f at x. Returns (b,): ``by_value``, ``by_key``, ``by_query``: the three terms over
    :math:`\sigma`. They add up to 1, and single ones may be negative.
    """
    projected, changes = torch.func.jvp(f.project, (x,), (pair.input,))

    def output(query, key, value):
        return f.combine(f.average(f.probabilities_of(query, key), value))

    found, zeros = {}, [torch.zeros_like(change) for change in changes]
    for place, name in enumerate(("by_query", "by_key", "by_value")):
        tangents = tuple(changes[i] if i == place else zeros[i] for i in range(3))
        with sdpa_kernel(SDPBackend.MATH):
            change = torch.func.jvp(output, projected, tangents)[1]
        found[name] = (pair.output * change).sum((-2, -1)) / pair.value
    return {name: found[name] for name in ("by_value", "by_key", "by_query")}
