"""Attention rewritten with the fewest key and value dimensions, and the separable kernels of its heads."""

import torch

from lipnb.attention import Attention
from lipnb.jacobian.particles.expansion import Expansion, NotSeparable

__all__ = ["kernels", "narrowed"]

MAX_KEY_WIDTH = 3


def kernels(attention, x, weights):
    """The attention with the narrowest keys and values, and one `Expansion` for each of its heads."""
    attention.check_plain("a separable kernel")
    attention.check_input(x, weights)
    if attention.masked:
        raise NotSeparable("masked attention has no separable kernel: use TiledJacobian.")
    if x.ndim != 2:
        raise ValueError(f"x must have shape (n, d), one set of particles, got {tuple(x.shape)}.")
    low = narrowed(attention)
    if low.key_width > MAX_KEY_WIDTH:
        raise NotSeparable(
            f"the logits depend on {low.key_width} key dimensions and a separable kernel serves at most "
            f"{MAX_KEY_WIDTH}: use TiledJacobian, or AttentionJacobian for few tokens."
        )
    query, key, _ = low.project(x)
    return low, [Expansion(q.mT, k.mT, weights) for q, k in zip(query, key, strict=True)]


def narrowed(attention):
    r"""The same Jacobian from the fewest key and value dimensions.

    The logits need only :math:`W_K^\top [s W_Q, s b_Q]`, whose rank r may be below k; values wider than the tokens are
    the tokens themselves, the value matrix joined to the output. Biases that never change the Jacobian are dropped.

    Returns
    -------
    Attention
        Key width r (at least 1, the largest of the heads), value width at most d.
    """
    h, k, d = attention.query.shape
    bias = attention.query.new_zeros(h, k) if attention.query_bias is None else attention.query_bias
    joint = attention.scale * torch.cat([attention.query, bias[..., None]], -1)
    # W_K^T [s W_Q, s b_Q] through triangular factors: its rank is at most k, far below d in wide layers
    Q1, R1 = torch.linalg.qr(attention.key.mT.double())
    Q2, R2 = torch.linalg.qr(joint.mT.double())
    U, values, Vh = torch.linalg.svd(R1 @ R2.mT, full_matrices=False)
    left, right = Q1 @ U, Vh @ Q2.mT
    rank = int((values > 16 * max(k, d) * torch.finfo(attention.dtype).eps * values[:, :1]).sum(1).max())
    rank = max(rank, 1)
    if rank < k:
        key = left[..., :rank].mT.to(attention.dtype)
        joint = (values[:, :rank, None] * right[:, :rank]).to(attention.dtype)
    else:
        key = attention.key
    value, output = attention.value, attention.output
    if attention.value_width > d:
        output = _outputs(attention) @ value
        value = torch.eye(d, dtype=attention.dtype, device=attention.device).expand(h, d, d)
    return Attention(joint[..., :-1], key, value, output, query_bias=joint[..., -1], scale=1.0)


def _outputs(attention):
    """Output matrices, shape (h, m, v); those that place the heads side by side where the attention has none."""
    if attention.output is not None:
        return attention.output
    eye = torch.eye(attention.output_width, dtype=attention.dtype, device=attention.device)
    return eye.view(attention.output_width, attention.heads, attention.value_width).movedim(0, 1)
