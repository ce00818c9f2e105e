"""What the released experiments report, beside the local Lipschitz constant: a labelled comparison, not a bound."""

import torch

from lipnb.attention import Attention
from lipnb.jacobian import AttentionJacobian, AutodiffJacobian

__all__ = ["reported"]


def reported(f, x):
    r"""The number that the released estimator returns: :math:`\sqrt{\|J^\top f(x)\|_F}`, with J the Jacobian at x.

    One step of power iteration needs :math:`J^\top (J u)`. The released code takes the output :math:`f(x)` where the
    tangent :math:`J u` belongs, so the direction u plays no part, and two steps agree.

    Parameters
    ----------
    f : Attention or callable
        From shape (n, d) to shape (n, m); a callable is differentiated by autograd.
    x : Tensor, shape (..., n, d)
        Tokens.

    Returns
    -------
    Tensor, shape of the batch
        Neither a lower nor an upper bound on the local Lipschitz constant.

    Notes
    -----
    castin2024smooth, the released code at commit 60da456, in our words.
    """
    jacobian = (AttentionJacobian if isinstance(f, Attention) else AutodiffJacobian)(f, x)
    return torch.linalg.vector_norm(jacobian.vjp(f(x)), dim=(-2, -1)).sqrt()
