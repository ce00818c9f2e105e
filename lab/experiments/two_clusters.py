r"""Inputs of two clusters against one head of a real layer: its eigenpair, and constants without forming d dimensions.

:math:`A = s K^\top Q` has rank k < d. An eigenpair :math:`(\lambda, w)` of the small matrix :math:`s Q K^\top`,
shape (k, k), gives one of A: :math:`u = K^\top w`.
"""

from typing import NamedTuple

import torch

from lipnb import bounds
from lipnb.attention import Attention
from lipnb.lipschitz import local_lipschitz
from lipnb.spectral.upper_norms import largest_singular
from lipnb.worst_case import fork_input


class Head(NamedTuple):
    r"""One head as in the theorems, with the eigenpair and norms of its adversarial input.

    `attention`: the head in float64, only query, key and value, without biases and output matrix.
    `eigenvalue`: the real eigenvalue :math:`\lambda` used by the input, chosen by the rule of
      `lipnb.worst_case.eigenvector`.
    `u` (d,): its unit eigenvector; the largest entry is positive.
    `rate`: :math:`\gamma = \max(-\gamma_{\min}, \gamma_{\max} / 8)`, as `lipnb.bounds.growth_rate`.
    `A_norm`, `V_norm`: spectral norms of A and V, as upper bounds that include rounding.
    """

    attention: Attention
    eigenvalue: float
    u: torch.Tensor
    rate: float
    A_norm: float
    V_norm: float


def head_of(layer, head):
    """One head of a layer, biases left out, with its eigenpair.

    `layer`: any heads, biases and mask. `head`: index from 0.
    """
    if not 0 <= head < layer.heads:
        raise ValueError(f"head must be between 0 and {layer.heads - 1}, got {head}.")
    Q, K, V = (matrix[head].double() for matrix in (layer.query, layer.key, layer.value))
    values, vectors = torch.linalg.eig(layer.scale * Q @ K.mT)
    real = (values.imag.abs() <= 1e-10 * values.abs().max()) & (values.abs() > 1e-12 * values.abs().max())
    if not real.any():
        raise ValueError(f"head {head} has no real eigenvalue other than 0: there is no direction to follow.")
    lowest, highest = (values.real.masked_fill(~real, 0).min().item(), values.real.masked_fill(~real, 0).max().item())
    rate = max(-lowest, highest / 8)
    place = (values.real - (lowest if -lowest >= rate else highest)).abs().masked_fill(~real, torch.inf).argmin()
    w = vectors[:, place]
    u = K.mT @ (w * (w.abs().max() / w[w.abs().argmax()])).real  # a complex factor is arbitrary
    u = u * u[u.abs().argmax()].sign() / u.norm()
    A_norm = abs(layer.scale) * largest_singular(torch.linalg.qr(K.mT).R @ torch.linalg.qr(Q.mT).R.mT).item()
    alone = Attention(Q[None], K[None], V[None], scale=layer.scale, masked=layer.masked, window=layer.window)
    return Head(alone, values.real[place].item(), u, rate, A_norm, largest_singular(V).item())


def _places(head):
    """Positions of the first token and of all others, in units of R u."""
    return (1.0, 0.5) if head.eigenvalue >= 0 else (-1.0, 1.0)


def cluster_input(head, n, R):
    """Tokens of `lipnb.worst_case.tight_input` for this head, shape (n, d), float64."""
    first, rest = _places(head)
    factors = torch.full((n, 1), rest, dtype=torch.float64)
    factors[:1] = first
    return R * factors * head.u


def in_subspace(head, *, identity=False):
    r"""The head on the subspace outside which its Jacobian at inputs along u vanishes.

    That subspace is spanned by u, :math:`A^\top u` and the rows of V. With the identity in place of V the Jacobian
    outside is that of averaging, whose norm already occurs in the second of these directions.

    `head`: from `head_of`. `identity`: whether the value matrix is the identity, instead of the head's own. Returns
    `Attention` (r,): the head in r <= v + 2 coordinates, and u in them. Its Jacobian at multiples of u has the same
    norm.
    """
    (Q,), (K,), (V,) = head.attention.query, head.attention.key, head.attention.value
    adjoint = head.attention.scale * Q.mT @ (K @ head.u)  # A^T u
    columns = torch.stack([head.u, adjoint, *([] if identity else V)], 1)
    basis = torch.linalg.qr(columns).Q
    value = torch.eye(basis.shape[1], dtype=basis.dtype) if identity else V @ basis
    small = Attention(
        (Q @ basis)[None],
        (K @ basis)[None],
        value[None],
        scale=head.attention.scale,
        masked=head.attention.masked,
        window=head.attention.window,
    )
    return small, basis.mT @ head.u


def matrices(head):
    """A, (r, r), and V, (v, r), of a head on the span of the rows of Q, K and V; it ignores all other directions."""
    (Q,), (K,), (V,) = head.attention.query, head.attention.key, head.attention.value
    basis = torch.linalg.qr(torch.cat([Q, K, V]).mT).Q
    return head.attention.scale * (K @ basis).mT @ (Q @ basis), V @ basis


def fork_constant(head, n, R):
    """Local constant of a head at the n tokens of `lipnb.worst_case.fork_input`, and the lower bound stated there."""
    A, V = matrices(head)
    x, stated = fork_input(A, V, n, R)
    one = Attention.from_matrices(A, V, masked=head.attention.masked)
    if head.attention.masked:
        return local_lipschitz(one, x).value.item(), stated
    # all tokens except the prongs are copies, replaced by one weighted token
    weights = torch.tensor([1.0, 1.0, n - 2.0], dtype=torch.float64) / n
    return local_lipschitz(one, x[:3], weights=weights, method="dense").value.item(), stated


def fork_rows(head, n, R):
    """Constants of a fork and of two clusters, and bounds on the ball of radius R, by name.

    Returns masked; fork and stated, of `fork_constant`; clusters, the constant at the two clusters; upper and tighter,
    Theorem 3.3 of castin2024smooth and our bound.
    """
    (A, V), (fork, stated) = matrices(head), fork_constant(head, n, R)
    return {
        "masked": head.attention.masked,
        "fork": fork,
        "stated": stated,
        "clusters": cluster_constants(head, [n], R).item(),
        "upper": bounds.general_upper(A, V, n, R),
        "tighter": bounds.general_upper_sharp(A, V, n, R),
    }


def cluster_constants(head, lengths, R, *, identity=False, rtol=1e-6):
    r"""Local Lipschitz constants of one head at its adversarial inputs.

    Without a mask n tokens are two weighted ones, and

    .. math:: \|D_X f\|_2 = \max\big(\|D_a^{1/2} (D f_a) D_a^{-1/2}\|_2,\ \|V \Sigma_y A\|_2\big),
        \qquad a = (\tfrac1n, \tfrac{n - 1}n),

    so any n costs the same. With a mask all n tokens are used.

    `head`: from `head_of`. `lengths`: numbers of tokens, 2 or more. `identity`: whether the value matrix is the
    identity, as in Prop. 3.4 of castin2024smooth. `rtol`: relative tolerance if a constant is not computed densely.
    Returns one constant for each length: exact to rounding without a mask; with a mask a lower bound, within `rtol`.
    """
    small, u = in_subspace(head, identity=identity)
    first, rest = _places(head)
    points = R * torch.tensor([[first], [rest]], dtype=torch.float64) * u
    if head.attention.masked:
        return torch.stack(
            [
                local_lipschitz(small, torch.cat([points[:1], points[1:].expand(n - 1, -1)]), rtol=rtol).value
                for n in lengths
            ]
        )
    n = torch.as_tensor(lengths, dtype=torch.float64)
    weights = torch.stack([1 / n, (n - 1) / n], -1)
    points = points.expand(len(n), 2, -1)
    together = local_lipschitz(small, points, weights=weights, method="dense").value
    p = small.probabilities(points, weights)[:, 0, 1, 0]  # attention from a token of the cluster to the lonely one
    (Q,), (K,), (V,) = small.query, small.key, small.value
    spread = (R * (first - rest)) ** 2 * p * (1 - p)  # the variance that it sees
    apart = spread * (V @ u).norm() * (small.scale * Q.mT @ (K @ u)).norm()
    return torch.where(n > 2, torch.maximum(together, apart), together)


def ball_bounds(head, n, R):
    """Prop. 3.4 (for V = I), Thm 3.3 and its tighter form for this head on n tokens in the ball of radius R.

    `head`: from `head_of`. `n`, `R`: as for `lipnb.bounds.general_upper`. Returns `lower`, `upper`, `sharp`: the bounds
    depend on A and V only through their norms and the growth rate, so matrices of one entry suffice.
    """
    A, V, rate = (torch.tensor([[value]], dtype=torch.float64) for value in (head.A_norm, head.V_norm, -head.rate))
    return bounds.general_lower(rate, n, R), bounds.general_upper(A, V, n, R), bounds.general_upper_sharp(A, V, n, R)
