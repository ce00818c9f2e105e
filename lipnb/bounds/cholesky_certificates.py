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

from lipnb.bounds.rounding import UNIT, gamma, largest_eigenvalue, largest_singular, length
from lipnb.checks import at_once
from lipnb.scaling import powers_of_two

__all__ = ["Computed", "Prover", "largest_proved", "sandwich"]

SHIFT = 1e-4  # of the mean square of the singular values of R, added to its Gram matrix before that is inverted
ROUGH = 1.03  # factor of a guess of lambda^2
RAISED = 1.05  # and of one that failed
CLOSE = 1.005  # the same for one matrix alone
SMALL = 512  # its order up to which eigenvalues are computed
SWEEPS, VECTORS, TRIES = 8, 4, 200


def largest_proved(gram):
    r"""Upper bound on the largest eigenvalue of a positive semidefinite matrix (b, b): a multiple of 1 above it."""
    b = len(gram)
    trace = torch.trace(gram)
    if b <= SMALL or not trace > 0:
        return largest_eigenvalue(gram).clamp_min(0) + 8 * (b + 1) * UNIT * trace
    g = torch.Generator(device="cpu").manual_seed(0)
    y = torch.randn(b, VECTORS, generator=g, dtype=gram.dtype, device="cpu").to(gram)
    for _ in range(4 * SWEEPS):
        y = gram @ (y / y.norm(dim=0).clamp_min(1e-150))
    found = y.norm(dim=0).max()
    for _ in range(TRIES):
        found = CLOSE * found
        gap = -gram
        gap.diagonal().add_(found)
        if torch.linalg.cholesky_ex(gap).info == 0:
            return found * (1 + (8 * b + 16) * b * UNIT)
    raise torch.linalg.LinAlgError("no bound was proved: entries that are not finite, or a wrong guess.")


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
        self.metric = gram + SHIFT * torch.diagonal(gram).mean() * torch.eye(b, device="cpu").to(R)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(self.metric))
        self.inverse = (inverse + inverse.mT) / 2
        lost = gamma(2 * b + 8) * R.square().sum() * torch.linalg.matrix_norm(self.inverse)
        self.slack = largest_singular(R @ self.inverse @ R.mT) + 2 * lost
        self.norm, self.trace = largest_singular(R), torch.trace(self.inverse)

    def guess(self, K):
        r"""Near the largest :math:`\|R X\|^2`, (c,): powers of K times the Gram matrix of R on a few vectors."""
        c, h, v, _ = K.shape
        g = torch.Generator(device="cpu").manual_seed(0)
        y = torch.randn(h * v, VECTORS, generator=g, dtype=K.dtype, device="cpu").to(K).expand(c, -1, -1)
        size = K.new_zeros(c)
        for _ in range(SWEEPS):
            y = self.metric @ (y / y.norm(dim=1, keepdim=True).clamp_min(1e-150))
            y = (K @ y.unflatten(1, (h, v))).flatten(1, 2)
            size = y.norm(dim=1).amax(-1)
        return size

    def upper(self, K, sizes, *, together=None):
        r"""Upper bounds on :math:`\|R X\|`, (c,), or one on the largest.

        Parameters
        ----------
        K : Tensor, shape (c, h, v, v)
            The diagonal blocks of :math:`X X^\top`, as computed; there is nothing beside them.
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
            "no bound was proved: entries that are not finite."
        """
        size = K.abs().amax()
        if not torch.isfinite(size):
            raise torch.linalg.LinAlgError("no bound was proved: entries that are not finite.")
        if size > 0:  # exact, and no power of K leaves the range
            unit = powers_of_two(size.sqrt())
            found = self._upper(K / unit**2, sizes / unit**2, None if together is None else together / unit)
            return unit * found
        found = sizes.sqrt() * self.norm
        return found if together is None else torch.maximum(found.max(), together)

    def _upper(self, K, sizes, together):
        b = len(self.metric)
        rough = (_blocks(self.metric, K.shape[1]) * K).sum((1, 2, 3)) + sizes * torch.trace(self.metric)
        rough = rough + 2 * gamma(b * b + b) * torch.trace(self.metric) * torch.linalg.vector_norm(K, dim=(1, 2, 3))
        if together is not None:  # whose Frobenius norm is no larger need no proof
            far = ~(rough <= together**2)  # so is what is no number
            if not far.any():
                return together
            K, sizes, rough = K[far], sizes[far], rough[far]
        square = ROUGH * self.guess(K)
        square = square.clamp_min(1e-12 * square.max() + torch.finfo(K.dtype).tiny)
        if together is not None:
            square = torch.maximum(square.max(), (together / (1 + 1e-9)) ** 2 / self.slack).expand(len(K)).clone()
        left = range(len(K))
        for _ in range(TRIES):
            left = [i for i in left if self._fails(K[i], square[i])]
            if not left:
                epsilon = (8 * b + 16) * UNIT * square * self.trace + sizes
                found = (square * self.slack + epsilon * self.norm**2).sqrt() * (1 + 16 * UNIT)
                break
            square[left if together is None else slice(None)] *= RAISED
        else:
            found = rough.sqrt() * (1 + 16 * UNIT)
        return found if together is None else torch.maximum(found.max(), together)

    def _fails(self, K, square):
        """Whether this multiple of the inverse metric is not seen to be above K."""
        gap = torch.mul(self.inverse, square)
        _blocks(gap, len(K)).sub_(K)
        return torch.linalg.cholesky_ex(gap).info != 0


def _blocks(matrix, h):
    """A view of the h diagonal blocks of a square matrix, (h, v, v)."""
    return matrix.unflatten(0, (h, -1)).unflatten(2, (h, -1)).diagonal(dim1=0, dim2=2).movedim(-1, 0)


class Computed:
    r"""The same bounds as those of a `Prover`, from eigenvalues of :math:`R K R^\top`: tighter, and slower for many.

    Parameters
    ----------
    R : Tensor, shape (p, b)
        Float64.
    """

    def __init__(self, R):
        self.R, self.square = R, largest_singular(R) ** 2 * (1 + 4 * UNIT)

    def upper(self, K, sizes, *, together=None):
        r"""As `Prover.upper`: :math:`\lambda_{\max}(\hat H) + 8 (p + 1) u\, \mathrm{tr}\, \hat H` and what
        :math:`H = R K R^\top = \sum_h R_h K_h R_h^\top` loses.
        """
        best = self.R.new_zeros(()) if together is None else together
        p, (_, h, v, _) = len(self.R), K.shape
        R = self.R.unflatten(1, (h, v)).movedim(1, 0)  # (h, p, v)
        long = length(R, (-2, -1)).square()
        found = []
        for some in torch.arange(len(K), device=K.device).split(at_once(p * max(p, h * v))):
            H = (R @ K[some]).transpose(1, 2).flatten(2) @ self.R.mT
            trace = torch.diagonal(H, dim1=1, dim2=2).sum(-1)
            errors = gamma(h * v + v + 16) * (long * length(K[some], (-2, -1))).sum(-1) + sizes[some] * self.square
            errors = errors + 8 * (p + 1) * UNIT * trace.clamp_min(0)
            if together is not None:
                rough = torch.linalg.matrix_norm(H) * (1 + gamma(p * p + 2)) + errors
                H, errors = (part[~(rough <= best**2)] for part in (H, errors))
                if not len(H):
                    continue
            norms = (largest_eigenvalue(H).clamp_min(0) + errors).sqrt() * (1 + 8 * UNIT)
            best = torch.maximum(best, norms.max())
            found.append(norms)
        return best if together is not None else torch.cat(found)
