r"""Bounds on the key and the query term of one head, from the alignment of its matrices; each token sees itself.

For tokens :math:`x = \beta + G u`, :math:`|u| \le 1`, of a `Region`, let :math:`a(x)` be the slope of the logits of a
token, M the product of output and value matrix, and P a row of attention in which that token sees itself. Two facts
hold at every input.

- *A token sees itself.* As :math:`\log P_j` is the logit of token j less :math:`\log Z`, the mean of the logits is
  :math:`\log Z` less the entropy of P, hence at least the own logit less the logarithm of the number of tokens seen.
  Where :math:`a` points at the token itself, the mean of the tokens that it sees lies there too, and their variance
  is what the ball leaves.
- *One covariance.* The query term is :math:`M C A` for a covariance C, and C is an average of :math:`c\,c^\top`,
  :math:`|c| \le R`: the largest :math:`|M c|\,|A^\top c|` replaces :math:`R^2 |M|\,|A|`.
"""

import math

import numpy as np
import torch
from scipy.optimize import brentq, minimize_scalar

from lipnb.attention import Attention
from lipnb.bounds.multihead_norms import Region
from lipnb.bounds.norms import log_of
from lipnb.spectral.upper_norms import UNIT, gamma, largest_eigenvalue, largest_singular, length, triangle

PRECISION = 1e-4  # of the searches for multipliers, which make the bounds tight but are not needed for their truth
LEAST = 1e-6  # of a share p or 1 - p, by which entries are divided before their rounding is counted


def aligned_sizes(att: Attention, regions: list[Region], entropy: torch.Tensor) -> list[tuple[float, float]]:
    r"""Logarithms of bounds on the key and on the query term of each head, as in `Sizes`: the least over the regions.

    `att`: a float64 map with dot-product scores whose tokens see themselves. `entropy` (h,): the logarithm of the
    largest number of tokens that a row sees, plus the range of the terms added to its logits.
    """
    outputs = triangle(att.output_matrices()) @ att.value
    found = []
    for region in regions:
        at_centre = att.query @ region.centre + (0 if att.query_bias is None else att.query_bias)
        slopes = att.scale * torch.cat([att.query @ region.map, at_centre[..., None]], -1)
        read = att.key @ region.map
        turned = att.scale * triangle(att.query.mT) @ read
        size = largest_singular(torch.linalg.qr(att.key.mT).Q.mT @ region.map)
        each = zip(outputs @ region.map, turned, slopes, read, triangle(att.key.mT), size, entropy, strict=True)
        found.append([_in_region(*of) for of in each])
    return [(min(key for key, _ in head), min(query for _, query in head)) for head in zip(*found, strict=True)]


def _in_region(output, turned, slopes, read, above, size, entropy):
    """Logarithms of the key and the query term of a head; the norms of its maps are those of these factors."""
    norm = log_of(largest_singular(output).item())
    key = norm + log_slope(slopes, read, above, size.item(), entropy.item()) if norm > -math.inf else norm
    return key, log_product(output, turned)


def log_product(left: torch.Tensor, right: torch.Tensor) -> float:
    r"""Logarithm of the largest :math:`|L c|\,|T c|` over :math:`|c| \le 1`, an upper bound that is tight.

    For every p > 0 it is at most half of the squared norm of :math:`p L` above :math:`T / p`, as :math:`2 x y \le p^2
    x^2 + y^2 / p^2`. The least over p is exact: all pairs :math:`(|L c|^2, |T c|^2)` together with the origin make a
    convex set, and the root of their product is concave.

    >>> eye = torch.eye(2).double()
    >>> round(math.exp(log_product(eye[:1], eye[1:])), 5), round(math.exp(log_product(eye[:1], 3 * eye)), 5)
    (0.5, 3.0)
    """
    sizes = [largest_singular(part).item() for part in (left, right)]
    if not all(sizes):
        return -math.inf
    left, right = left / sizes[0], right / sizes[1]
    stacked = torch.cat([left, right])
    gram = (stacked @ stacked.mT).numpy()

    def squared(log):
        p = np.repeat([math.exp(log / 2), math.exp(-log / 2)], [len(left), len(right)])
        return np.linalg.eigvalsh(p[:, None] * gram * p)[-1]

    # at p = 1 it is at most 2, at p^2 = 2 or 1/2 at least 2
    best = minimize_scalar(squared, bounds=(-math.log(2), math.log(2)), method="bounded", options={"xatol": PRECISION})
    p = math.exp(best.x / 2)
    norm = min(1.0, largest_singular(torch.cat([p * left, right / p])).item() ** 2 / 2)
    return log_of(sizes[0]) + log_of(sizes[1]) + log_of(norm)


def log_slope(queries: torch.Tensor, read: torch.Tensor, above: torch.Tensor, size: float, entropy: float) -> float:
    r"""Logarithm of the largest :math:`(|a|^2 - (a \cdot G u - \eta)_+^2 / g^2)^{1/2}` over :math:`|u| \le 1`.

    With y = (u, 1), :math:`a = W_K^\top Q y` is the slope of the logits at :math:`\beta + G u`, Q the `queries`
    (k, d + 1), `read` (k, d) is :math:`W_K G`, `above` (b, k) has the norms of :math:`W_K^\top`, :math:`\eta` is the
    `entropy`, and g, the `size`, is at least :math:`|G^\top a| / |a|`. As :math:`z_+^2 \ge 2 \theta z - \theta^2` for
    :math:`\theta \ge 0`, and :math:`|u| \le 1`, for all :math:`\theta \ge 0` and :math:`0 < p < 1` an upper bound is

    .. math:: \lambda_{\max}\big(D^{-1/2} (N^\top N - 2 \theta Z)\, D^{-1/2}\big)_+ + \theta^2, \quad
        D = \mathrm{diag}(p, \dots, p, 1 - p),

    with :math:`|a|^2 = y^\top N^\top N y` and :math:`(a \cdot G u - \eta) / g = y^\top Z y`. The least is exact
    without a bias and a centre: then :math:`(|a|^2, a \cdot G u)` fill a convex set. On a ball it is then at least
    half of the largest :math:`|a|`, and never above it, up to 1e-6. The rounding of Z and of the eigenvalue is
    counted as in `largest_singular`, and for N relative to its own entries. Not counted is the rounding of the products
    that give `queries` and N where they cancel, and of the reduction to the directions that queries and keys read.

    >>> one = torch.ones(1, 1).double()
    >>> round(math.exp(log_slope(torch.tensor([[1.0, 0.0]]).double(), one, one, 1.0, 0.0)), 5)  # A = 1
    0.5
    """
    # sizes first, because products of large and of small weights leave the range of float64
    w, r, k = (part.abs().max().item() for part in (queries, read, above))
    if w == 0 or k == 0:
        return -math.inf
    if r == 0 or size == 0:  # a set of one point, which sees itself alone
        return math.inf
    queries, read, above = queries / w, read / r, above / k
    ratio = math.exp(log_of(r) - log_of(k) - log_of(size))
    eta = log_of(entropy) - log_of(size) - log_of(k) - log_of(w)
    if eta > 300 or not math.isfinite(ratio):  # no logit comes near the entropy, and its square overflows
        return math.inf
    eta = math.exp(eta)
    if 2 * len(read) < read.shape[1]:
        basis = torch.linalg.qr(torch.cat([queries[:, :-1], read]).mT).Q
        queries, read = torch.cat([queries[:, :-1] @ basis, queries[:, -1:]], 1), read @ basis
    N = above @ queries
    Z = torch.zeros(N.shape[1], N.shape[1], dtype=torch.float64, device="cpu")
    Z[:-1] = ratio * (read.mT @ queries)
    Z = (Z + Z.mT) / 2
    Z[-1, -1] -= eta
    largest = N.abs().max().item()  # far below one where queries and keys are large in different directions
    if largest == 0:  # zero, or underflow: the product of norms says which
        return math.inf
    N, Z, queries = N / largest, Z / largest, queries / largest
    eta, k = eta / largest, k * largest
    theta, p = _multipliers((N.mT @ N).numpy(), Z.numpy())
    shrink = torch.full((len(Z),), p**-0.5, dtype=torch.float64, device="cpu")
    shrink[-1] = (1 - p) ** -0.5
    top = largest_eigenvalue(shrink[:, None] * (N.mT @ N - 2 * theta * Z) * shrink)
    entries = length(N * shrink, (0, 1)) ** 2
    entries += 2 * theta * (ratio * length(queries * shrink, (0, 1)) * length(read, (0, 1)) / p**0.5 + eta / (1 - p))
    slack = (gamma(len(read) + 8) + 8 * (len(Z) + 1) * UNIT) * entries
    bound = (top.clamp_min(0) + slack + theta**2).item() * (1 + 8 * UNIT)
    return log_of(k) + log_of(w) + log_of(bound) / 2 if math.isfinite(bound) else math.inf


@np.errstate(all="ignore")  # quotients by differences of eigenvalues: any finite multipliers are valid
def _multipliers(gram, Z):
    r"""The multipliers :math:`\theta` and p of `log_slope`, nearly the best: any are valid."""

    def at(theta):
        """The minimum of the bound over p, and its p."""
        M = gram - 2 * theta * Z
        values, vectors = np.linalg.eigh(M[:-1, :-1])
        along = vectors.T @ M[:-1, -1]
        low = max(values[-1], 0.0)

        def over(mu):  # positive below the root of sum (along / (mu - values))^2 = 1
            return 1 - 1 / np.linalg.norm(np.where(along == 0, 0, along / (mu - values)))

        high = low + np.linalg.norm(along)
        mu = low if not over(low) > 0 else high
        if over(low) > 0 > over(high):
            mu = brentq(over, low, high, xtol=1e-14 * high, rtol=1e-12)
        there = mu > values  # an entry along the others is zero or underflows
        rest = M[-1, -1] + (along[there] ** 2 / (mu - values[there])).sum()
        return mu + rest + theta**2, mu / (mu + rest) if mu + rest > 0 else 0.5

    most = math.sqrt(max(at(0.0)[0], 0.0))  # theta is the own logit less the entropy at the best u, at most |a|
    best = 0.0
    if at(PRECISION * most)[0] < at(0.0)[0]:
        best = minimize_scalar(
            lambda theta: at(theta)[0], bounds=(0.0, most), method="bounded", options={"xatol": PRECISION * most}
        ).x
    p = at(best)[1]
    return (best, min(max(p, LEAST), 1 - LEAST)) if math.isfinite(best + p) else (0.0, 0.5)
