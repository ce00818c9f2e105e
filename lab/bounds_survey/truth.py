"""Norms of the Jacobian of any map of tokens, by autograd and dense: slow references for the library."""

import itertools

import torch

from lipnb.jacobian import AutodiffJacobian


def blocks(f, x):
    """Jacobian of a map of tokens (n, d) to (n', m), shape (n', m, n, d)."""
    return AutodiffJacobian(f, x).dense().unflatten(-1, x.shape).unflatten(0, (len(f(x)), -1))


def jacobian(case):
    """Jacobian of a `Case` in the same shape, at its weights if it has any."""
    return blocks(case.f if case.weights is None else lambda x: case.f(x, case.weights), case.x)


def spectral(J, weights=None):
    """Spectral norm of blocks (n, m, n, d), a float; with weights that of :math:`D_a^{1/2} J D_a^{-1/2}`."""
    if weights is not None:
        root = weights.sqrt()
        J = root[:, None, None, None] * J / root[:, None]
    return torch.linalg.matrix_norm(J.flatten(2).flatten(0, 1), 2).item()


def largest_row(J):
    """Norm for the largest coordinate of inputs and outputs: the largest absolute row sum."""
    return J.abs().sum((-2, -1)).amax().item()


def largest_token(J, rounds=60):
    r"""Norm for the largest token, :math:`\max_i \max_{|u_j| \le 1} |\sum_j J_{ij} u_j|`: a close lower bound.

    For a unit w the best :math:`u_j` is :math:`J_{ij}^\top w` normalised, and for given u the best w is their image:
    each round is at least as good. It starts from every left singular vector of the row.
    """
    rows = J.movedim(2, 1)  # (i, j, m, d)
    w = torch.linalg.svd(J.flatten(2)).U.mT  # (i, starts, m)
    best = J.new_zeros(())
    for _ in range(rounds):
        u = torch.nn.functional.normalize(torch.einsum("ijmd,ism->isjd", rows, w), dim=-1)
        image = torch.einsum("ijmd,isjd->ism", rows, u)
        best = torch.maximum(best, image.norm(dim=-1).amax())
        w = torch.nn.functional.normalize(image, dim=-1)
    return best.item()


def sign_norm(p):
    r"""Norm of the Jacobian of the softmax at p, (n,), from the largest entry to the sum of absolute values.

    The matrix is positive semidefinite, so signs s and t that maximise :math:`s^\top J t` may be equal, and
    :math:`s^\top J s = 4\, p(S) (1 - p(S))`, the variance of a sign: all sets S are tried.
    """
    signs = torch.tensor([*itertools.product((0.0, 1.0), repeat=len(p))], dtype=p.dtype)
    return (4 * (signs @ p) * ((1 - signs) @ p)).amax().item()
