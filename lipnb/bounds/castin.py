"""Bounds of castin2024smooth that hold for all inputs in a ball."""

import math

import torch

from lipnb.bounds.rounding import largest_singular

__all__ = ["general_upper"]


def general_upper(A, V, n, R):
    r"""Lipschitz constant of one head on sequences of n tokens in a ball: the general upper bound.

    .. math:: \mathrm{Lip}(f_{|B_R^n}) \le \sqrt 3\, \|V\|_2 \big(\|A\|_2^2 R^4 (4n + 1) + n\big)^{1/2}

    Parameters
    ----------
    A : Tensor, shape (d, d)
        :math:`A = K^\top Q / \sqrt k`.
    V : Tensor, shape (m, d)
        Value matrix.
    n : int
        Number of tokens.
    R : float
        Radius: every token has Euclidean norm at most R.

    Returns
    -------
    float
        An upper bound, unmasked and masked alike. Several heads: times the norm of each output matrix, summed.

    Raises
    ------
    ValueError
        "A must be square ...", "n must be ...", "R must be ...".

    Notes
    -----
    castin2024smooth, Thm 3.3 and, masked, Thm 4.3. Without biases: with a query bias c in the logits, R must bound
    the tokens after the shift that removes it.
    """
    A, V = torch.as_tensor(A).double(), torch.as_tensor(V).double()
    if A.ndim != 2 or A.shape[0] != A.shape[1] or V.ndim != 2 or V.shape[1] != A.shape[0]:
        raise ValueError(f"A must be square, shape (d, d), and V of shape (m, d), got {tuple(A.shape)} "
                         f"and {tuple(V.shape)}.")
    if not (torch.isfinite(A).all() and torch.isfinite(V).all()):
        raise ValueError("A or V holds NaN or infinite values: remove them first.")
    if int(n) != n or n < 1:
        raise ValueError(f"n must be a positive integer, got {n!r}.")
    if not 0 <= R < math.inf:
        raise ValueError(f"R must be a finite number, 0 or more, got {R!r}.")
    heat = largest_singular(A).item() * R**2
    return math.sqrt(3) * largest_singular(V).item() * math.hypot(heat * math.sqrt(4 * n + 1), math.sqrt(n))
