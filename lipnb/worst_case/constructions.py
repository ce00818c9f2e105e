"""Inputs that make one head rough, in closed form: the constructions of castin2024smooth, and forks for any A."""

import math

import torch

from lipnb.attention import Attention
from lipnb.bounds.norms import growth_rate, norms
from lipnb.checks import as_double, count, number, radius, square, whole
from lipnb.lipschitz import local_lipschitz
from lipnb.spectral.upper_norms import triangle

__all__ = ["eigenvector", "even_fork_input", "fork_input", "quadratic_input", "tight_input", "two_diracs"]

PAIRS = 8  # singular pairs that `fork_input` compares
SHARES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7)  # ratios of the smaller component along f to the larger, in an even fork
LENGTHS = 32  # larger components along f that `even_fork_input` compares
HALVINGS = 60  # bisection steps for the multiplier of w . A w = 0 in an even fork


def eigenvector(A: torch.Tensor) -> tuple[float, torch.Tensor]:
    r"""The eigenvalue and unit eigenvector on which the constructions are based.

    The smallest real eigenvalue :math:`\gamma_{\min}` if :math:`-\gamma_{\min} \ge \gamma_{\max} / 8`, else the
    largest.

    Parameters
    ----------
    A : Tensor, shape (d, d)
        Matrix with at least one real eigenvalue.

    Returns
    -------
    float, Tensor of shape (d,)

    Raises
    ------
    ValueError
        If A has no real eigenvalue.

    Examples
    --------
    >>> value, u = eigenvector(torch.diag(torch.tensor([-1.0, 4.0])))
    >>> value, u.abs().tolist()
    (-1.0, [1.0, 0.0])
    """
    A, rate = square(A), growth_rate(A)
    values, vectors = torch.linalg.eig(A)
    real = values.imag.abs() <= 1e-10 * values.abs().max()
    candidates = values.real.masked_fill(~real, math.inf)
    lowest = candidates.argmin()
    if rate > 0 and -candidates[lowest] < rate:
        lowest = values.real.masked_fill(~real, -math.inf).argmax()
    u = vectors[:, lowest]
    u = (u * (u.abs().max() / u[u.abs().argmax()])).real  # removes a complex factor
    return values.real[lowest].item(), u / u.norm()


def tight_input(A: torch.Tensor, n: int, R: float) -> torch.Tensor:
    r"""Tokens in a ball at which the local constant grows like :math:`\sqrt n`.

    .. math:: R\,(u, \tfrac u2, \dots, \tfrac u2) \ \text{ if } \lambda \ge 0, \qquad
        R\,(-u, u, \dots, u) \ \text{ if } \lambda < 0,

    with :math:`\lambda, u` from `eigenvector`.

    Parameters
    ----------
    A : Tensor, shape (d, d)
        With at least one real eigenvalue.
    n : int
        Number of tokens.
    R : float
        Radius.

    Returns
    -------
    Tensor, shape (n, d)
        Tokens, float64. With :math:`V = I` the local constant is at least `lipnb.bounds.general_lower`.

    Notes
    -----
    castin2024smooth, Lemma C.7 (our reconstruction).

    Examples
    --------
    >>> tight_input(torch.eye(1), 3, 2.0).abs().flatten().tolist()
    [2.0, 1.0, 1.0]
    """
    n, R = count(n), radius(R)
    eigenvalue, u = eigenvector(A)
    first, rest = (1.0, 0.5) if eigenvalue >= 0 else (-1.0, 1.0)
    factors = u.new_full((n, 1), rest)
    factors[0] = first
    return R * factors * u


def two_diracs(A: torch.Tensor, R: float, *, share: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    r"""A measure of two points at which the mean-field map reaches its lower bound.

    .. math:: p\,\delta_{R u} + (1 - p)\,\delta_{R u / 2},\ p = s\,e^{-\lambda R^2 / 4} \ \text{ if } \lambda \ge 0;
        \qquad p\,\delta_{-R u} + (1 - p)\,\delta_{R u},\ p = s\,e^{-2 |\lambda| R^2} \ \text{ if } \lambda < 0 .

    Parameters
    ----------
    A : Tensor, shape (d, d)
        With at least one real eigenvalue.
    R : float
        Radius.
    share : float
        The factor s: 1 for the weight of the paper; 1/3 is best for large R, and increases the constant by a factor
        :math:`3 \sqrt 3 / 4`.

    Returns
    -------
    Tensor, shape (2, d), and Tensor, shape (2,)
        Points and weights, float64.

    Raises
    ------
    ValueError
        As `lipnb.bounds.mean_field_lower`; if a weight underflows or vanishes, or `share` is not in (0, 1].

    Notes
    -----
    castin2024smooth, Prop. C.8 (our reconstruction); the best weight is ours.

    Examples
    --------
    >>> points, weights = two_diracs(torch.eye(1), 2.0)
    >>> points.abs().flatten().tolist(), round(weights[0].item(), 6)
    ([2.0, 1.0], 0.367879)
    """
    R = radius(R)
    if not 0 < number("share", share) <= 1:
        raise ValueError(f"share must be above 0 and at most 1, got {share!r}.")
    eigenvalue, u = eigenvector(A)
    exponent = -eigenvalue * R * R / 4 if eigenvalue >= 0 else 2 * eigenvalue * R * R
    if exponent + math.log(share) < -700:
        raise ValueError(f"the weight exp({exponent:.4g}) is below the smallest float: take a smaller R.")
    p = share * math.exp(exponent)
    weights = u.new_tensor([p, -math.expm1(exponent + math.log(share))])
    if weights[1] <= 0:
        raise ValueError("both points need weight: take a larger R, or share below 1.")
    first, rest = (1.0, 0.5) if eigenvalue >= 0 else (-1.0, 1.0)
    return R * torch.stack([first * u, rest * u]), weights


def quadratic_input(n: int, R: float, direction: torch.Tensor) -> torch.Tensor:
    r"""Tokens at which the constant of :math:`A = V = I` grows like :math:`R^2`, for every odd number of them.

    .. math:: X = (0,\, R u, \dots, R u,\, -R u, \dots, -R u), \qquad
        \mathrm{Lip}_X(f) \ge \frac{n - 1}{n} R^2 + \frac 1 n .

    Parameters
    ----------
    n : int
        Odd number of tokens, 3 or more: one at 0, half of the others on each side.
    R : float
        Radius.
    direction : Tensor, shape (d,)
        The direction u, of any positive length.

    Returns
    -------
    Tensor, shape (n, d)
        Tokens, float64.

    Raises
    ------
    ValueError
        If n is even or less than 3, or the direction is not a finite nonzero vector.

    Notes
    -----
    castin2024smooth, section C.7 and Figure 3 (our reconstruction); the token at 0 is from kim2021lipschitz.

    Examples
    --------
    >>> quadratic_input(5, 2.0, torch.ones(1)).flatten().tolist()
    [0.0, 2.0, 2.0, -2.0, -2.0]
    """
    if count(n) % 2 == 0 or n < 3:
        raise ValueError(f"n must be odd, 3 or more, got {n!r}.")
    u = as_double("direction", direction)
    if u.ndim != 1 or not u.norm() > 0 or not torch.isfinite(u).all():
        raise ValueError("direction must be a finite vector other than 0, shape (d,).")
    half = u.new_ones((n - 1) // 2, 1)
    return radius(R) * torch.cat([u.new_zeros(1, 1), half, -half]) * u / u.norm()


def fork_input(A: torch.Tensor, V: torch.Tensor, n: int, R: float, *, angles: int = 33) -> tuple[torch.Tensor, float]:
    r"""Tokens at which the local constant of any A grows like :math:`R^2 \sqrt n`, without a real eigenvalue.

    With a singular pair :math:`A v = \sigma k` and a unit :math:`e \perp k`: n - 2 tokens at R v and two prongs,

    .. math:: R\,(c k + s e),\ R\,(c k - s e),\ R v, \dots, R v, \qquad c^2 + s^2 = 1 .

    Each of the n - 2 gives each prong the attention q; moving the prongs by :math:`\pm k / \sqrt 2` moves it by
    :math:`\sqrt 2 s \tau q\, V e`, so that

    .. math:: \mathrm{Lip}_X(f) \ge \sqrt{2 (n - 2)}\; s\, \tau\, q\, |V e|, \qquad \tau = \sigma R^2, \quad
        q = \frac 1 {2 + (n - 2)\, e^{-(c - k \cdot v) \tau}} .

    Parameters
    ----------
    A, V : Tensor, shape (d, d) and (m, d)
        Matrices of one head, masked or not: with a mask the prongs, which come first, get at least as much attention.
    n : int
        Number of tokens, 3 or more.
    R : float
        Radius.
    angles : int
        Number of values of c between 0 and 1 to compare by the bound, for each of the eight largest singular pairs.

    Returns
    -------
    Tensor, shape (n, d), and float
        The tokens, float64, and the lower bound on their local constant.

    Raises
    ------
    ValueError
        As `lipnb.bounds.general_upper`; if n is less than 3 or the width less than 2, or the bound exceeds the largest
        float.

    Examples
    --------
    >>> x, lower = fork_input(torch.eye(2), torch.eye(2), 10, 2.0)
    >>> x.shape, round(lower, 4)
    (torch.Size([10, 2]), 0.5093)
    """
    A, V, angles = square(A), as_double("V", V), whole("angles", angles, 1)
    norms(A, V)
    R = radius(R)
    if count(n) < 3 or len(A) < 2:
        raise ValueError(f"n must be 3 or more and tokens of width 2 or more, got n = {n!r}, width {len(A)}.")
    left, sigma, right = torch.linalg.svd(A)  # rows v of `right` and columns k of `left`: A v = sigma k
    c = torch.linspace(0, 1, angles + 1, dtype=A.dtype, device=A.device)[:-1]
    s, best, best_x = (1 - c**2).sqrt(), -1.0, A.new_empty(0)
    for k, size, v in zip(left.T[:PAIRS], sigma[:PAIRS], right[:PAIRS], strict=True):
        off = torch.eye(len(A), dtype=A.dtype, device=A.device) - torch.outer(k, k)
        e = off @ torch.linalg.svd(V @ off).Vh[0]  # |V e| is largest, e orthogonal to k
        e = e / e.norm()
        tau = size * R * R
        q = 1 / (2 + (n - 2) * torch.exp(-(c - k @ v) * tau))
        stated = (2 * (n - 2)) ** 0.5 * s * tau * q * (V @ e).norm()
        if not stated.isfinite().all():
            raise ValueError(f"the bound at R = {R:g} is above the largest float: take a smaller R.")
        at = stated.argmax()
        if stated[at] > best:
            prongs = c[at] * k + torch.stack([s[at] * e, -s[at] * e])
            best, best_x = stated[at].item(), R * torch.cat([prongs, v.expand(n - 2, -1)])
    return best_x, best


def even_fork_input(A: torch.Tensor, V: torch.Tensor, n: int, R: float) -> tuple[torch.Tensor, float]:
    r"""Tokens of which each attends evenly to the same two: the largest constant for large logits, for the best A.

    With unit :math:`w \perp f`, two prongs and n - 2 tokens at one place, the bulk,

    .. math:: R\,(s_1 w + b_1 f),\ R\,(-s_1 w + b_1 f),\ R\,(\pm s w + b f), \dots, R\,(\pm s w + b f), \qquad
        s_1^2 + b_1^2 = s^2 + b^2 = 1 .

    If :math:`w \cdot A w = w \cdot A f = 0`, every token, the prongs included, gives both prongs the same attention;
    if moreover :math:`f \cdot A w = 0` and :math:`f \cdot A f = -\mu < 0`, the bulk is behind them by
    :math:`\mu R^2 b (b - b_1)` in the logits of the bulk, and by :math:`\mu R^2 b_1 (b - b_1)` in those of the prongs.
    For :math:`A = \|A\|_2 (e w^\top + w e^\top - f f^\top)`, w, e, f orthonormal and :math:`|V w| = \|V\|_2`,
    without a mask, for :math:`0 \le b_1 \le b`

    .. math:: \mathrm{Lip}_X(f) \ge \|V\|_2\, t \sqrt{\lambda_n}\; (1 - b^2)(1 - p), \qquad
        p = \frac 1 {1 + 2 e^{t\, b_1 (b - b_1)} / (n - 2)},

    with :math:`t = \|A\|_2 R^2`, :math:`\lambda_n` as in `lipnb.bounds.general_upper_exact`, and p = 0 for n = 2.

    Parameters
    ----------
    A, V : Tensor, shape (d, d) and (m, d)
        Matrices of one head.
    n : int
        Number of tokens, 2 or more; for 2 there is no bulk.
    R : float
        Radius.

    Returns
    -------
    Tensor, shape (n, d), and float
        The tokens, float64, in the ball up to rounding, prongs first; and a lower bound on their local constant without
        a mask, up to rounding: the constant of moves in the plane of w and f, their images, and equal ones in the bulk.
        Rounding of logits counts: 1e-8 of it at :math:`t = 10^{12}`, and beyond about 1e14 it is not a lower bound.

    Raises
    ------
    ValueError
        As `lipnb.bounds.general_upper`; if n is less than 2, or the width less than 2, or less than 3 for three tokens
        or more.

    Notes
    -----
    Ours. w has the largest :math:`|V w|^2 / \|V\|_2^2 + (|A w|^2 + |A^\top w|^2) / (2 \|A\|_2^2)` among the unit
    vectors with :math:`w \cdot A w = 0`, and f is an eigenvector of the symmetric part of A on the complement of
    :math:`w, A w, A^\top w` (in width 3 of the first and last). If there is no such w, or f is not as above, the tokens
    are still in the ball, and the lower bound still holds. :math:`b`, :math:`b_1` and the sign of s are the best of a
    grid; where :math:`f \cdot A f > 0`, :math:`b < b_1`.

    Examples
    --------
    >>> A = 1e6 * torch.diag(torch.tensor([1.0, -1.0, -1.0], dtype=torch.float64))
    >>> x, lower = even_fork_input(A, torch.eye(3), 4, 1.0)
    >>> x.shape, round(lower / 1e6, 3)  # the root of 5.236
    (torch.Size([4, 3]), 2.288)
    """
    A, V = square(A), as_double("V", V)
    norms(A, V)
    R = radius(R)
    if count(n) < 2 or len(A) < min(n, 3):
        raise ValueError(
            f"n must be 2 or more, and tokens of width 2 for n = 2, else 3 or more, got n = {n!r}, width {len(A)}."
        )
    points, lower = even_fork(A.cpu(), V.cpu(), n, R)
    return points.repeat_interleave(_copies(points, n), 0).to(A.device), lower


def even_fork(A, V, n, R):
    """The two or three distinct tokens of `even_fork_input`, and the lower bound; valid float64 matrices."""
    w = _isotropic(A, V)
    if n == 2:
        some, points = w[None], torch.stack([w, -w])[None]
    else:
        f = _along_the_bulk(A, w)
        some, points = torch.stack([w, f]), _even_forks(w, f, (f @ A @ f).item() * R * R)
    # the constant of moves in the span of w, f and their images, equal ones in the bulk
    basis = torch.linalg.qr(torch.cat([some, some @ A.mT, some @ A]).mT).Q
    head = Attention.from_matrices(basis.mT @ A @ basis, triangle(V @ basis))
    shares = _copies(points[0], n).to(w).expand(len(points), -1) / n
    found = local_lipschitz(head, R * points @ basis, weights=shares, method="dense").value
    best = found.argmax()
    return R * points[best], found[best].item()


def _copies(points, n):
    """How many of n tokens are at each of the points of an even fork."""
    return torch.tensor([1, 1, n - 2][: len(points)], device=points.device)


def _isotropic(A, V):
    """Unit w with w . A w = 0, if any, and large |V w|^2 / |V|^2 + (|A w|^2 + |A^T w|^2) / (2 |A|^2)."""
    A, V = (part / torch.linalg.matrix_norm(part, 2).clamp_min(1e-300) for part in (A, V))  # squares could underflow
    form, gain = (A + A.mT) / 2, V.mT @ V + (A.mT @ A + A @ A.mT) / 2
    ends = torch.linalg.eigh(form)
    least, most = ends.eigenvalues[[0, -1]].tolist()
    if min(-least, most) < 1e-9:  # definite
        return ends.eigenvectors[:, ends.eigenvalues.abs().argmin()]

    def top(nu):
        return torch.linalg.eigh(gain - nu * form).eigenvectors[:, -1]

    # Lagrange: at the nu with the least top eigenvalue; below it w . A w >= 0, above it w . A w <= 0
    low, high = -2 / most, -2 / least  # gain <= 2
    for _ in range(HALVINGS):
        nu = (low + high) / 2
        w = top(nu)
        low, high = (nu, high) if w @ form @ w >= 0 else (low, nu)
    return _between(form, top(low), top(high))


def _between(form, p, q):
    """Unit w in the plane of unit p and q with w . form w = 0, the nearest to p, if p . form p >= 0 >= q . form q."""
    q = q - (q @ p) * p
    if not q.norm() > 0:
        return p
    q = q / q.norm()
    a, b, c = (p @ form @ p).item(), (p @ form @ q).item(), (q @ form @ q).item()
    below = b + math.copysign(math.sqrt(max(b * b - a * c, 0)), b)
    w = p - a / below * q if below else p  # a + 2 b s + c s^2 = 0 at the root s of smaller size
    return w / w.norm()


def _along_the_bulk(A, w):
    """Unit f orthogonal to w, A^T w and, if the width allows, A w: along it logits are most negative, or positive."""
    size = torch.linalg.matrix_norm(A, 2).clamp_min(1e-300)
    off = torch.linalg.svd(torch.stack([w, A.mT @ w / size, A @ w / size]))
    rank = (off.S > 1e-9).sum().item()
    free = off.Vh[rank:]
    if not len(free):  # width 3
        free = torch.linalg.svd(torch.stack([w, A.mT @ w / size])).Vh[2:]
    along = torch.linalg.eigh(free @ (A + A.mT) @ free.mT / 2)
    best = 0 if -along.eigenvalues[0] >= along.eigenvalues[-1] / 4 else -1
    return along.eigenvectors[:, best] @ free


def _even_forks(w, f, logit):
    """Candidates (b, 3, d) on the unit sphere: components along f on a grid, bulk on both sides. `logit`: f.A f R^2."""
    longest = torch.logspace(-math.log10(max(abs(logit), 1.0)) / 2, 0, LENGTHS, dtype=w.dtype, device=w.device)
    shares = torch.tensor(SHARES, dtype=w.dtype, device=w.device)
    b, b1 = (part.flatten() for part in torch.broadcast_tensors(longest[:, None], longest[:, None] * shares))
    if logit > 0:  # the longer component wins attention
        b, b1 = b1, b
    s, s1 = (1 - b * b).clamp_min(0).sqrt(), (1 - b1 * b1).clamp_min(0).sqrt()
    sides = [
        torch.stack([s1[:, None] * w, -s1[:, None] * w, side * s[:, None] * w], 1)
        + torch.stack([b1, b1, b], 1)[..., None] * f
        for side in (1, -1)
    ]
    return torch.cat(sides)
