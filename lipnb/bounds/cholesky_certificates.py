r"""Upper bounds on norms of many matrices R X with a common R: guesses proved by one Cholesky factorisation each.

With :math:`K = X X^\top` and any symmetric S,

.. math:: K \preceq \lambda^2 S + \epsilon I \quad\Longrightarrow\quad
    \|R X\|_2^2 = \|R K R^\top\|_2 \le \lambda^2 \|R S R^\top\|_2 + \epsilon \|R\|_2^2 .

S near :math:`(R^\top R)^{-1}` makes the bound tight; it is computed once, and errors of S do not matter. If the
Cholesky factorisation of :math:`\lambda^2 S - K` succeeds, that matrix has no eigenvalue below minus its rounding. A
factorisation costs :math:`b^3 / 3`, a product of matrices of order b costs :math:`2 b^3`; K costs less if X consists of
blocks.
"""

import torch

from lipnb.checks import at_once
from lipnb.scaling import powers_of_two
from lipnb.spectral.upper_norms import UNIT, gamma, largest_eigenvalue, largest_singular, length

SHIFT = 1e-4  # of the mean square of the singular values of R, added to its Gram matrix before that is inverted
ROUGH = 1.03  # factor of a guess of lambda^2
RAISED = 1.05  # factor after a failed guess
CLOSE = 1.005  # both factors for a single matrix
SMALL = 512  # order up to which its eigenvalues are computed
SWEEPS, VECTORS, TRIES = 8, 4, 200


def largest_proved(gram):
    r"""Upper bound on the largest eigenvalue of a positive semidefinite matrix (b, b)."""
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
            return found * (1 + (8 * b + 24) * b * UNIT)  # as in `Prover._upper`
    raise torch.linalg.LinAlgError("no bound was proved: some entries are not finite, or the guess was wrong.")


def sandwich(inner, gram):
    r"""Products :math:`\mathrm{diag}_h(C_h) G\, \mathrm{diag}_h(C_h)^\top`, (c, h a, h a); C (c, h, a, k)."""
    c, h, a, k = inner.shape
    half = inner @ gram.view(h, k, h * k)  # (c, h, a, h k)
    half = half.view(c, h * a, h, k).transpose(1, 2)  # (c, h', h a, k)
    return (half @ inner.mT).permute(0, 2, 1, 3).reshape(c, h * a, h * a)


class Prover:
    """Upper bounds on norms of R X for one R (p, b), by Cholesky factorisations."""

    def __init__(self, R):
        b = R.shape[1]
        gram = R.mT @ R
        # at least R^T R; S is approximately its inverse
        self.gram = gram + SHIFT * torch.diagonal(gram).mean() * torch.eye(b, device="cpu").to(R)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(self.gram))
        self.S = (inverse + inverse.mT) / 2
        rounding = gamma(2 * b + 8) * R.square().sum() * torch.linalg.matrix_norm(self.S)
        self.RSR = largest_singular(R @ self.S @ R.mT) + 2 * rounding  # |R S R^T|
        self.norm, self.trace = largest_singular(R), torch.trace(self.S)

    def guess(self, K):
        r"""Estimates of :math:`\|R X\|^2`, (c,): power iteration with K times the Gram matrix of R on a few vectors."""
        c, h, v, _ = K.shape
        g = torch.Generator(device="cpu").manual_seed(0)
        y = torch.randn(h * v, VECTORS, generator=g, dtype=K.dtype, device="cpu").to(K).expand(c, -1, -1)
        size = K.new_zeros(c)
        for _ in range(SWEEPS):
            y = self.gram @ (y / y.norm(dim=1, keepdim=True).clamp_min(1e-150))
            y = (K @ y.unflatten(1, (h, v))).flatten(1, 2)
            size = y.norm(dim=1).amax(-1)
        return size

    def upper(self, K, K_errors, *, at_least=None):
        r"""Upper bounds on :math:`\|R X\|`, (c,); or with `at_least` one bound, (), on the largest and on this number.

        K, (c, h, v, v), are the computed diagonal blocks of :math:`X X^\top`, all other blocks being zero; `K_errors`,
        (c,), bounds their errors in the Frobenius norm. LinAlgError if entries are not finite.
        """
        size = K.abs().amax()
        if not torch.isfinite(size):
            raise torch.linalg.LinAlgError("no bound was proved: some entries are not finite.")
        if size > 0:  # exact scaling, so that no power of K leaves the range
            unit = powers_of_two(size.sqrt())
            found = self._upper(K / unit**2, K_errors / unit**2, None if at_least is None else at_least / unit)
            return unit * found
        found = K_errors.sqrt() * self.norm
        return found if at_least is None else torch.maximum(found.max(), at_least)

    def _upper(self, K, K_errors, at_least):
        b = len(self.gram)
        # |R X|_F^2 = <R^T R, K>
        frobenius = (_blocks(self.gram, K.shape[1]) * K).sum((1, 2, 3)) + K_errors * torch.trace(self.gram)
        frobenius = frobenius + 2 * gamma(b * b + b) * torch.trace(self.gram) * torch.linalg.vector_norm(
            K, dim=(1, 2, 3)
        )
        if at_least is not None:  # smaller Frobenius norms need no proof; NaN does
            larger = ~(frobenius <= at_least**2)
            if not larger.any():
                return at_least
            K, K_errors, frobenius = K[larger], K_errors[larger], frobenius[larger]
        square = ROUGH * self.guess(K)  # lambda^2
        square = square.clamp_min(1e-12 * square.max() + torch.finfo(K.dtype).tiny)
        if at_least is not None:
            square = torch.maximum(square.max(), (at_least / (1 + 1e-9)) ** 2 / self.RSR).expand(len(K)).clone()
        unproved = range(len(K))
        for _ in range(TRIES):
            unproved = [i for i in unproved if self._fails(K[i], square[i])]
            if not unproved:
                # K <= lambda^2 S + epsilon I: rounding of the factorisation, (8 b + 16) u times the trace, of the
                # product and the difference in each entry of the matrix, 2 u in its Frobenius norm, errors of K
                epsilon = (8 * b + 24) * UNIT * square * self.trace + K_errors
                found = (square * self.RSR + epsilon * self.norm**2).sqrt() * (1 + 16 * UNIT)
                break
            square[unproved if at_least is None else slice(None)] *= RAISED
        else:
            found = frobenius.sqrt() * (1 + 16 * UNIT)
        return found if at_least is None else torch.maximum(found.max(), at_least)

    def _fails(self, K, square):
        """Whether the factorisation does not prove that this multiple of S is above K."""
        gap = torch.mul(self.S, square)
        _blocks(gap, len(K)).sub_(K)
        return torch.linalg.cholesky_ex(gap).info != 0


def _blocks(matrix, h):
    """A view of the h diagonal blocks of a square matrix, (h, v, v)."""
    return matrix.unflatten(0, (h, -1)).unflatten(2, (h, -1)).diagonal(dim1=0, dim2=2).movedim(-1, 0)


class Computed:
    r"""The bounds of a `Prover`, computed from eigenvalues of :math:`R K R^\top`: tighter, but slower for many
    matrices."""

    def __init__(self, R):
        self.R, self.norm_square = R, largest_singular(R) ** 2 * (1 + 4 * UNIT)

    def upper(self, K, K_errors, *, at_least=None):
        r"""As `Prover.upper`: the root of :math:`\lambda_{\max}(\hat H) + 8 (p + 1) u\, (\mathrm{tr}\, \hat H + 2 p e)
        + e`, with e the error of :math:`H = R K R^\top = \sum_h R_h K_h R_h^\top`.

        No eigenvalue of :math:`\hat H` is below -e, so the sum of their moduli is at most the trace plus 2 p e.
        """
        best = self.R.new_zeros(()) if at_least is None else at_least
        p, (_, h, v, _) = len(self.R), K.shape
        R = self.R.unflatten(1, (h, v)).movedim(1, 0)  # (h, p, v)
        R_squares = length(R, (-2, -1)).square()
        found = []
        for tokens in torch.arange(len(K), device=K.device).split(at_once(p * max(p, h * v))):
            H = (R @ K[tokens]).transpose(1, 2).flatten(2) @ self.R.mT
            trace = torch.diagonal(H, dim1=1, dim2=2).sum(-1)
            errors = (
                gamma(h * v + v + 16) * (R_squares * length(K[tokens], (-2, -1))).sum(-1)
                + K_errors[tokens] * self.norm_square
            )
            errors = errors + 8 * (p + 1) * UNIT * (trace.clamp_min(0) + 2 * p * errors)
            if at_least is not None:
                frobenius = length(H, (-2, -1)) + errors
                H, errors = (part[~(frobenius <= best**2)] for part in (H, errors))
                if not len(H):
                    continue
            norms = (largest_eigenvalue(H).clamp_min(0) + errors).sqrt() * (1 + 8 * UNIT)
            best = torch.maximum(best, norms.max())
            found.append(norms)
        return best if at_least is not None else torch.cat(found)
