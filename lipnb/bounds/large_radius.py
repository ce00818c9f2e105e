"""Limit of the local constant when all tokens are scaled up: each token then attends to a single one."""

import torch

from lipnb.attention import Attention, Feature
from lipnb.attention.heads import check_attention
from lipnb.spectral import lanczos, start_vectors

__all__ = ["chosen_tokens", "large_radius_limit"]

KNOWN = (Feature.SHARED_KEYS, Feature.ROTARY, Feature.RELATIVE)


@torch.no_grad()
def chosen_tokens(attention: Attention, x: torch.Tensor) -> torch.Tensor:
    r"""Token attended to by each token in the limit of large radius: :math:`j(i) = \arg\max_j x_i^\top A^\top x_j`.

    With rotary positions the scores are :math:`s\, (R_i W_Q x_i) \cdot (R_j W_K x_j)`.

    Parameters
    ----------
    attention : Attention
        Any heads, also with rotary positions and shared keys; a mask or window limits the choice to visible tokens.
        Biases and relative positions do not matter in the limit.
    x : Tensor, shape (..., n, d)
        Tokens.

    Returns
    -------
    Tensor of int, shape (..., h, n)

    Raises
    ------
    ValueError
        As `Attention.check_input`; if the map has other features, or a token has its largest logit at several tokens.

    Notes
    -----
    castin2024smooth, Thm 3.7 and 4.5.

    Examples
    --------
    >>> f = Attention.from_matrices(torch.eye(2).double(), torch.eye(2).double())
    >>> chosen_tokens(f, torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]).double())
    tensor([[1, 1, 2]])
    """
    check_attention(attention, "chosen_tokens")
    attention.check_plain("chosen_tokens", also=KNOWN)
    attention.check_input(x)
    x, bare = x.double(), attention.to(dtype=torch.float64).replace(query_bias=None, key_bias=None)
    query, key, _ = bare.project(x)
    scores = bare.products(query, key)
    size = scores.abs().amax((-2, -1), keepdim=True)
    attention.hide(scores, x.shape[-2])
    if x.shape[-2] > 1:
        top = scores.topk(2, dim=-1).values
        tied = (top[..., 0] - top[..., 1] <= 1e-12 * size[..., 0]).nonzero()
        if len(tied):
            raise ValueError(
                f"token {tied[0][-1].item()} has its largest logit at more than one token: the limit needs a "
                "unique one for each token. Move the tokens a little, or leave out repeated ones."
            )
    return scores.argmax(-1)


@torch.no_grad()
def large_radius_limit(attention: Attention, x: torch.Tensor) -> torch.Tensor:
    r"""Exact limit of the local Lipschitz constant at :math:`R x` as R grows.

    .. math:: \lim_{R \to \infty} \mathrm{Lip}_{RX}(f) = \|V\|_2 \max_j \sqrt{\#\{i : j(i) = j\}}
        \le \|V\|_2 \sqrt n

    for one head; for several, the norm of :math:`U \mapsto \big(\sum_h W^{(h)} V^{(h)} u_{j_h(i)}\big)_i`.

    Parameters
    ----------
    attention : Attention
        As for `chosen_tokens`.
    x : Tensor, shape (..., n, d)
        Tokens, each with its largest logit at a single token.

    Returns
    -------
    Tensor, shape of the batch
        The limit, float64: exact for one head and for concatenated heads, else to 1e-10.

    Notes
    -----
    castin2024smooth, Thm 3.7 and 4.5, give the upper bound :math:`\|V\|_2 \sqrt n`; the exact limit is ours.

    Examples
    --------
    >>> f = Attention.from_matrices(torch.eye(2).double(), torch.eye(2).double())
    >>> x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]).double()
    >>> round(large_radius_limit(f, x).item() ** 2, 6)
    2.0
    """
    chosen = chosen_tokens(attention, x)
    n, attention = x.shape[-2], attention.expand_groups()
    value = attention.value.double()
    if attention.output is None or attention.heads == 1:
        if attention.output is not None:
            value = attention.output.double() @ value
        followers = torch.nn.functional.one_hot(chosen, n).sum(-2).double()  # (..., h, j)
        gram = torch.einsum("...hj,hvd,hve->...jde", followers, value, value)
        return torch.linalg.eigvalsh(gram)[..., -1].amax(-1).sqrt()
    maps = attention.output.double() @ value  # (h, m, d)
    flat = chosen.reshape(-1, *chosen.shape[-2:])
    return torch.stack([_limit(one, maps) for one in flat]).reshape(x.shape[:-2])


def _limit(chosen, maps):
    """Norm of the limit of several heads at one input: choices (h, n), maps (h, m, d)."""
    (heads, n), d = chosen.shape, maps.shape[-1]

    def gram(u):
        u = u.reshape(-1, n, d)
        image = sum(u[:, chosen[h]] @ maps[h].mT for h in range(heads))
        back = torch.zeros_like(u)
        for h in range(heads):
            back.index_add_(1, chosen[h], image @ maps[h])
        return back.flatten(1)

    start = start_vectors(1, n * d, seed=0, dtype=maps.dtype, device=maps.device)
    return lanczos(gram, start, rtol=1e-10, max_steps=min(n * d, 500), confidence=1 - 1e-9).value[0]
