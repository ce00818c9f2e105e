r"""Several heads that act on one vector: how much less than with a vector each.

For factors :math:`X_h = L_h R_h` of the maps of heads, the numbers :math:`v \cdot X_h u` of one pair of vectors are
jointly smaller than the norms of :math:`X_h` suggest if the heads read or write in different directions:

.. math:: \sup_{|u| = |v| = 1} \sum_h (v \cdot X_h u)^2
    = \sup_{u, v}\, \langle v v^\top, \Phi(u u^\top) \rangle \le \|\Phi\|, \qquad \Phi(Y) = \sum_h X_h Y X_h^\top ,

the norm of a linear map of symmetric matrices, with Frobenius norms. `ball_upper` needs it for the keys of a layer.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize

from lipnb.bounds.multihead_norms import balanced, factors, gram_of, together, top_pair, wide_slopes
from lipnb.bounds.norms import log_sum
from lipnb.spectral.upper_norms import UNIT, gamma, largest_singular, length, triangle

STEPS = 4  # of the search for weights
POWERS = 1  # of the map at each step
FLOOR = 1e-2  # multiple of the identity that is added before a certificate, relative to the largest entry


class HeadMaps(NamedTuple):
    r"""Gram matrices of the factors of :math:`X_h = L_h Q_h^\top`, the columns of :math:`Q_h` orthonormal.

    `left`: :math:`L_h^\top L_g`, (h, h, k, k), for :math:`L_h` divided by `size`. `right`: :math:`Q_h^\top Q_g`.
    """

    left: torch.Tensor
    right: torch.Tensor
    log_size: float


def head_maps(left, right):
    """`HeadMaps` of the products of `left` (h, m, k) and `right` (h, k, r); None if all vanish."""
    sizes = [part.abs().amax() for part in (left, right)]
    if not all(size > 0 for size in sizes):
        return None
    frames, triangles = torch.linalg.qr((right / sizes[1]).mT)
    left = (left / sizes[0]) @ triangles.mT
    size = left.abs().amax()
    if not size > 0:
        return None
    left = left / size
    grams = (torch.einsum("hdk,gdl->hgkl", part, part) for part in (left, frames))
    return HeadMaps(next(grams), next(grams), sum(part.log().item() for part in (*sizes, size)))


def _congruences(grams, blocks):
    r""":math:`\sum_g G_{hg} Z_g G_{hg}^\top` for grams (h, h, k, k) and blocks (h, k, k)."""
    return (grams @ blocks @ grams.mT).sum(1)


def _power(maps, weights, blocks):
    r"""One step of :math:`\Phi^* \Phi` in the blocks :math:`Z_h = Q_h^\top Y Q_h`, and the step half done."""
    w = weights[:, None, None]
    half = _congruences(maps.left, blocks / w) / w
    return _congruences(maps.right, half), half


def log_norm_on_one_vector(maps: HeadMaps, weights: torch.Tensor, blocks: torch.Tensor | None = None) -> float:
    r"""Logarithm of an upper bound on :math:`\sup (\sum_h (v \cdot X_h u)^2 / w_h)^{1/2}` over unit u and v.

    Parameters
    ----------
    maps : HeadMaps
        The maps of h heads.
    weights : Tensor, shape (h,)
        Positive :math:`w_h`.
    blocks : Tensor, shape (h, k, k), optional
        Positive semidefinite :math:`Z_h`, approximately the top eigenvector of :math:`\Theta`; any give a bound.

    Returns
    -------
    float
        Half of the logarithm of :math:`\lambda^{1/2}`: if :math:`\Theta(Z)_h \preceq \lambda Z_h` for all h, with all
        :math:`Z_h` positive definite, then :math:`\|\Phi\|^2 = \rho(\Theta) \le \lambda`, where
        :math:`\Theta(Z)_h = \sum_g K_{hg} \big(\sum_f C_{gf} Z_f C_{gf}^\top / (w_g w_f)\big) K_{hg}^\top` for the
        Gram matrices K, `right`, and C, `left`. The rounding of :math:`\Theta` and of the comparison is counted, the
        rounding of the Gram matrices is not.

    Notes
    -----
    The Collatz-Wielandt bound on the spectral radius of a positive map: :math:`\Theta^n(Z) \preceq \lambda^n Z`, and
    every symmetric block matrix lies between multiples of Z.

    Examples
    --------
    Two heads that read and write in orthogonal directions are together no larger than one:

    >>> eye = torch.eye(2, dtype=torch.float64)[:, :, None]
    >>> round(math.exp(log_norm_on_one_vector(head_maps(3 * eye, eye.mT), torch.ones(2).double())), 6)
    3.0
    """
    h, _, k, _ = maps.left.shape
    eye = torch.eye(k, dtype=torch.float64, device="cpu")
    if blocks is None:
        blocks = eye.expand(h, k, k)
    blocks = (blocks + blocks.mT) / 2
    blocks = blocks / blocks.abs().amax() + FLOOR * eye
    image, _ = _power(maps, weights, blocks)
    factor = torch.linalg.cholesky(blocks)
    half = torch.linalg.solve_triangular(factor, image, upper=False)
    ratio = torch.linalg.solve_triangular(factor, half.mT, upper=False)
    top = torch.linalg.eigvalsh((ratio + ratio.mT) / 2)[:, -1].amax().clamp_min(0)
    # rounding: four products and two sums, each with all its factors in Frobenius norm; then Cholesky's factor, two
    # solves with it and the eigenvalues, relative to image and blocks, times the condition of the factor. All of it
    # counts in multiples of the least eigenvalue of the blocks.
    norms = [length(part, (-2, -1)) for part in (*maps[:2], blocks)]
    sizes = HeadMaps(norms[0][..., None, None], norms[1][..., None, None], 0.0)
    products = gamma(4 * k + 2 * h + 8) * _power(sizes, weights, norms[2][:, None, None])[0].amax()
    least = FLOOR / 2  # of blocks that are positive semidefinite up to rounding
    solves = gamma(16 * k * k) * ((length(image, (-2, -1)) + top * norms[2]) * (norms[2] / least).sqrt()).amax()
    bound = (top + (products + solves) / least) * (1 + 8 * UNIT)
    return maps.log_size + 0.25 * bound.clamp_min(1e-300).log().item()


def weights_on_one_vector(maps, gram, start):
    r"""Weights (h,) that make :math:`\sup (\sum_h (v \cdot X_h u)^2 / w_h)^{1/2}\, \|[\sqrt{w_h} S_h]_h\|_2` small.

    `gram`: Gram matrix of the blocks :math:`S_h`, (h b, h b), of size about one. `start`: weights. Returns the weights,
    and blocks for `log_norm_on_one_vector`; of both only speed and tightness depend on how far the search goes.
    """
    h, _, k, _ = maps.left.shape
    now = {"blocks": torch.eye(k, dtype=torch.float64, device="cpu").expand(h, k, k), "top": None}

    def slope(logs):
        weights = torch.from_numpy(logs).exp()
        for _ in range(POWERS):
            image, half = _power(maps, weights, now["blocks"])
            shares = (now["blocks"] * half).sum((1, 2))
            growth = (image * half).sum() / shares.sum().clamp_min(1e-300)
            now["blocks"] = image / image.abs().amax().clamp_min(1e-300)
        scale = np.exp(0.5 * np.repeat(logs, len(gram) // h))
        value, now["top"] = top_pair(scale[:, None] * gram * scale, now["top"])
        parts = (now["top"] ** 2).reshape(h, -1).sum(1)
        found = 0.25 * math.log(max(growth.item(), 1e-300)) + 0.5 * math.log(value)
        return found, 0.5 * parts - 0.5 * (shares / shares.sum().clamp_min(1e-300)).numpy()

    logs = (start.log() - start.log().median()).clamp(-40, 40).numpy()  # the product is that of multiples of weights
    bounds = [(one - 20, one + 20) for one in logs]
    best = minimize(slope, logs, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": STEPS})
    slope(best.x)
    return torch.from_numpy(best.x).exp(), now["blocks"]


def with_pairs(att, regions, sizes):
    r"""`Sizes` of a layer with the key term of heads that read or write in different directions.

    In units of :math:`\sqrt2`, with suprema over unit v and D, u and u' of length at most 1 and x in the region,

    .. math:: T = \sup \sum_h |G^\top M_h^\top v|\, |a_h(x)|, \quad
        E_1 \ge \sup \sum_h \frac{(v \cdot M_h G u)^2}{w_h} \sup \sum_h w_h |a_h(x)|^2, \quad
        E_2 \ge \sup \sum_h \frac{|G^\top M_h^\top v|^2}{w_h} \sup \sum_h w_h (D \cdot a_h(x))^2,

    the keys of a row of the Jacobian are at most :math:`(E_2 / 2)^{1/2}` and

    .. math:: \tfrac14 \big((2 E_1)^{1/2} + \min(E_1 + T^2,\ 2 E_2)^{1/2}\big)

    times the Euclidean norm of the perturbations of 2h tokens. Weights differ from term to term; any are valid.

    Parameters
    ----------
    att : Attention
        A float64 layer with dot-product scores.
    regions : list of Region
        Sets that contain all tokens.
    sizes : Sizes
        Sizes of all heads, jointly.

    Returns
    -------
    Sizes
        With a smaller `key`, if one was found, and with `pairs`.

    Notes
    -----
    Ours; the proof is in the book, "heads that attend to pairs".
    """
    if att.heads == 1 or -math.inf in (sizes.key, sizes.value):
        return sizes
    made = [factors(att, region) for region in regions]
    queries = [_least_wide(of) for of in made]
    slopes = [of.above @ query for of, query in zip(made, queries, strict=True)]  # |[a_h(x)]_h|, one above the other
    outputs, key, pairs = att.output_matrices(), [sizes.key], []
    for of, query, slope, region in zip(made, queries, slopes, regions, strict=True):
        start = balanced(of.outputs, slope, 0)
        total = together(of.outputs, 1 / start, 1) + _least_above(slopes, start)  # log T
        by_token = _log_product(outputs, att.value @ region.map, slope, 0, start, slopes)  # log E_1^(1/2)
        by_slope = _log_product(of.beside, query, of.outputs, 1, 1 / start)  # log E_2^(1/2)
        opposite = min(log_sum([2 * by_token, 2 * total]), math.log(2) + 2 * by_slope)
        key.append(by_slope)
        pairs.append(log_sum([by_token, (opposite - math.log(2)) / 2]) - math.log(2))
    return sizes._replace(key=min(key), pairs=min(*key, *pairs))


def _log_product(left, right, other, dim, start, every=None):
    r"""Logarithm of a bound on :math:`\sup (\sum_h (v \cdot L_h R_h u)^2 / w_h)^{1/2}\, \|[\sqrt{w_h} S_h]_h\|`.

    S is `other`, stacked along `dim`, or with `every` the blocks of any region, one above the other. The first factor
    is also at most the norm of all :math:`L_h R_h / \sqrt{w_h}`, stacked either way.
    """
    maps = head_maps(left, right)
    if maps is None:  # products that underflow
        return math.inf
    weights, blocks = weights_on_one_vector(maps, gram_of(other / largest_singular(other).amax(), dim), start)
    stacked = together(triangle(left) @ right, 1 / weights, 0), together(left @ triangle(right.mT).mT, 1 / weights, 1)
    rest = together(other, weights, dim) if every is None else _least_above(every, weights)
    return min(log_norm_on_one_vector(maps, weights, blocks), *stacked) + rest


def _least_wide(of):
    """The map of `wide_slopes` whose slopes, one above the other, have the least norm."""
    return min(wide_slopes(of), key=lambda query: together(of.above @ query, None, 0))


def _least_above(slopes, weights):
    r"""Logarithm of the least bound, over the regions, on :math:`\sup (\sum_h w_h |a_h(x)|^2)^{1/2}`."""
    return min(together(slope, weights, 0) for slope in slopes)
