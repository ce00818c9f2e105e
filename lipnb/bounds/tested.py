r"""Norms of many matrices R X that share R, from above: a guess that one Cholesky factorisation proves.

With :math:`K = X X^\top` and any symmetric S,

.. math:: K \preceq \lambda^2 S + \epsilon I \quad\Longrightarrow\quad
    \|R X\|_2^2 = \|R K R^\top\|_2 \le \lambda^2 \|R S R^\top\|_2 + \epsilon \|R\|_2^2 .

S near :math:`(R^\top R)^{-1}` makes the bound tight; it is computed once, and no error of it matters. If the Cholesky
factorisation of :math:`\lambda^2 S - K` comes to its end, that matrix has no eigenvalue below minus its rounding. A
factorisation costs a third of :math:`b^3`, where products of matrices of order b cost two; K costs less where X is made
of blocks.
"""

import torch

from lipnb.bounds.rounding import UNIT, gamma, largest_singular

__all__ = ["Prover", "sandwich"]

SHIFT = 1e-4  # of the mean square of the singular values of R, added to its Gram matrix before that is inverted
ROUGH = 1.03  # factor of a guess of lambda^2
RAISED = 1.05  # and of one that failed
SWEEPS, VECTORS, TRIES = 8, 4, 200


def sandwich(inner, gram):
    r"""The matrices :math:`\mathrm{diag}_h(C_h)\, G\, \mathrm{diag}_h(C_h)^\top`, (c, h a, h a), of C (c, h, a, k).

    Parameters
    ----------
    inner : Tensor, shape (c, h, a, k)
    gram : Tensor, shape (h k, h k)
    """
    c, h, a, k = inner.shape
    half = inner @ gram.view(h, k, h * k)  # (c, h, a, h k)
    half = half.view(c, h * a, h, k).transpose(1, 2)  # (c, h', h a, k)
    return (half @ inner.mT).permute(0, 2, 1, 3).reshape(c, h * a, h * a)


class Prover:
    """Upper bounds on norms of R X.

    Parameters
    ----------
    R : Tensor, shape (p, b)
        Float64.
    """

    def __init__(self, R):
        b = R.shape[1]
        gram = R.mT @ R
        self.metric = gram + SHIFT * torch.diagonal(gram).mean() * torch.eye(b).to(R)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(self.metric))
        self.inverse = (inverse + inverse.mT) / 2
        lost = gamma(2 * b + 8) * R.square().sum() * torch.linalg.matrix_norm(self.inverse)
        self.slack = largest_singular(R @ self.inverse @ R.mT) + 2 * lost
        self.norm, self.trace = largest_singular(R), torch.trace(self.inverse)

    def guess(self, K):
        r"""Near the largest :math:`\|R X\|^2`, (c,): powers of K times the Gram matrix of R on a few vectors."""
        g = torch.Generator(device="cpu").manual_seed(0)
        y = torch.randn(K.shape[-1], VECTORS, generator=g, dtype=K.dtype).to(K).expand(len(K), -1, -1)
        size = K.new_zeros(len(K))
        for _ in range(SWEEPS):
            y = K @ (self.metric @ (y / y.norm(dim=1, keepdim=True).clamp_min(1e-150)))
            size = y.norm(dim=1).amax(-1)
        return size

    def upper(self, K, sizes, *, together=None):
        r"""Upper bounds on :math:`\|R X\|`, (c,), or one on the largest.

        Parameters
        ----------
        K : Tensor, shape (c, b, b)
            :math:`X X^\top` as computed.
        sizes : Tensor, shape (c,)
            Bounds on how far K is from it, in the Frobenius norm.
        together : Tensor, shape (), optional
            A number to begin with: the answer is one bound on all norms, at least that number.

        Returns
        -------
        Tensor, shape (c,) or ()

        Raises
        ------
        torch.linalg.LinAlgError
            "no bound was proved": entries that are not finite, or a guess that is wrong beyond repair.
        """
        b = K.shape[-1]
        if together is not None:  # whose Frobenius norm is no larger need no proof
            total = (self.metric * K).sum((1, 2))
            total = total + 2 * gamma(b * b + b) * torch.trace(self.metric) * torch.linalg.matrix_norm(K)
            far = ~(total + sizes * torch.trace(self.metric) <= together**2)  # so is what is no number
            if not far.any():
                return together
            K, sizes = K[far], sizes[far]
        square = ROUGH * self.guess(K)
        square = square.clamp_min(1e-12 * square.max() + torch.finfo(K.dtype).tiny)
        if together is not None:
            square = torch.maximum(square.max(), (together / (1 + 1e-9)) ** 2 / self.slack).expand(len(K)).clone()
        left = range(len(K))
        for _ in range(TRIES):
            left = [i for i in left if self._fails(K[i], square[i])]
            if not left:
                break
            square[left if together is None else slice(None)] *= RAISED
        else:
            raise torch.linalg.LinAlgError("no bound was proved: entries that are not finite, or a wrong guess.")
        epsilon = (8 * b + 16) * UNIT * square * self.trace + sizes
        found = (square * self.slack + epsilon * self.norm**2).sqrt() * (1 + 16 * UNIT)
        return found if together is None else torch.maximum(found.max(), together)

    def _fails(self, K, square):
        """Whether this multiple of the inverse metric is not seen to be above K."""
        return torch.linalg.cholesky_ex(torch.mul(self.inverse, square).sub_(K)).info != 0
