"""Bounds that only the book compares: for other maps, for the softmax, and released formulas."""

import math

import torch
from scipy.special import lambertw

from lipnb.bounds.norms import norms
from lipnb.checks import radius
from lipnb.spectral.upper_norms import largest_singular


def _norm(matrix):
    return largest_singular(torch.as_tensor(matrix).double()).item()


def lipsformer_upper(f, n):
    r"""Theorem 1 of qi2023lipsformer, as others transcribe it, for n tokens and a `CosineAttention` of `maps`.

    .. math:: \nu \epsilon^{-1/2} \big(2 n (n - 1)\, \tau \|W_K\| + 2 (n - 1)\, \tau \|W_Q\| + 2 n \|W_V\|\big)

    True whatever its proof: from two tokens on each term is at least that of `cosine_upper`, and with one token only
    the last one matters.
    """
    inner = f.tau * (2 * n * (n - 1) * _norm(f.key) + 2 * (n - 1) * _norm(f.query))
    return f.nu * f.eps**-0.5 * (inner + 2 * n * _norm(f.value))


def lipsformer_refined(f, n):
    r"""The same with the norm 1/2 of the softmax, Theorem 2 of nair2025softmax as others transcribe it.

    .. math:: \nu \epsilon^{-1/2} \big(n^2 \tau \|W_K\| + n \tau \|W_Q\| + 2 n \|W_V\|\big)
    """
    inner = f.tau * (n**2 * _norm(f.key) + n * _norm(f.query))
    return f.nu * f.eps**-0.5 * (inner + 2 * n * _norm(f.value))


def cosine_upper(f, n):
    r"""The same by the proof of Theorem 3.3 of castin2024smooth, ours: a root of n instead of a square.

    .. math:: \nu \epsilon^{-1/2} \big(\sqrt{n/2}\, \tau \|W_K\| + \tau \|W_Q\| + \sqrt n\, \|W_V\|\big)

    Unit vectors, up to epsilon, rotate by at most :math:`\epsilon^{-1/2}` times the move of the vectors before
    normalisation. The rest is a head on unit balls: value term :math:`\sqrt n`; query term the covariance of two
    vectors of length at most one; key term of a row at most :math:`1 / \sqrt 2`, because :math:`z_j = P_j\, u \cdot
    (v_j - o)` sums to zero and its absolute values to at most one, so that its squares sum to at most a half.
    """
    inner = f.tau * (math.sqrt(n / 2) * _norm(f.key) + _norm(f.query))
    return f.nu * f.eps**-0.5 * (inner + math.sqrt(n) * _norm(f.value))


def sigmoid_upper(f, x):
    r"""The local bound of ramapuram2024theory on `lab.bounds_survey.maps.SigmoidAttention`, with a short proof.

    .. math:: \|V\|_2 \Big(n \sup \sigma + 2 \sup \sigma'\, \|A\|_2 \sum_i |x_i|^2\Big), \qquad
        \sup \sigma = 1,\ \sup \sigma' = \tfrac14

    Value term: n entries a row and column, each at most one. Query term: blocks :math:`\sum_j \sigma'_{ij} x_j x_j^\top
    A`. Key term: Frobenius norm of :math:`(\sigma'_{ij} |x_j| |A x_i|)_{ij}`.
    """
    A, V = norms(f.A, f.V)
    return V * (len(x) + 0.5 * A * x.square().sum().item())


def released_castin(A, V, x):
    r"""Formula that the released code of castin2024smooth uses as a bound of one head at an input.

    .. math:: \|V\|_2 \big(\max_i |A x_i|^2\, \mathrm{diam}(X)^2 (n + 1) + n\big)^{1/2}
    """
    _, V_norm = norms(A, V)
    reach, diameter = (x @ A.mT).norm(dim=-1).amax().item(), torch.cdist(x, x).amax().item()
    return V_norm * math.sqrt((reach * diameter) ** 2 * (len(x) + 1) + len(x))


def released_newhouse(attention, cap, *, sharpness=1.0):
    r"""Formula that the released code of newhouse2025training uses as a bound of attention, without its factor 1/3.

    .. math:: s\, \|W_O\| \big(\|W_V\| + 2 \|W_V\|\, a^2 \|W_Q\| \|W_K\|\big)

    in the norm of the largest token by root mean square, at most a for inputs, with logits
    :math:`s\, q \cdot k / k_{\mathrm{dim}}`; norms are of whole matrices, all heads stacked.

    `attention`: heads with output matrices, without biases. `cap`: largest root mean square of a token. `sharpness`: s,
    which the map has only in its logits and the formula as a factor of everything. Returns a bound for one head and s
    of at least 1: the proof is that of `lipnb.bounds.max_token_upper`. It is not a bound in general.
    """
    d, m = attention.width, attention.output_width
    stacked = [W.flatten(0, 1) for W in (attention.query, attention.key, attention.value)]
    Q, K, V = (_norm(W) * math.sqrt(d / len(W)) for W in stacked)
    joined = attention.output.movedim(0, 1).flatten(1)
    O = _norm(joined) * math.sqrt(joined.shape[1] / m)  # noqa: E741
    return sharpness * O * (V + 2 * V * radius(cap) ** 2 * Q * K)


def quoted_l2_upper(attention, unfolded, n):
    r"""Theorem 3.2 of kim2021lipschitz as others quote it, query norms once and :math:`\varphi^{-1} = W_0(n / e)`.

    .. math:: \sqrt{n / k}\, \big(4 W_0(n / e) + 1\big) \sqrt{\textstyle\sum_h \|W_Q\|_F^2 \|W_V\|_F^2}\; \|W_O\|

    `attention`: from `lipnb.Attention.l2`. `unfolded` (h, v, d): its value matrices before the query matrices are
    folded into them. Not a bound: it scales like the query matrices, and the constant like their squares.
    """
    growth = math.sqrt(n / attention.key_width) * (4 * lambertw(n / math.e).real + 1)
    sizes = (attention.query.square().sum((1, 2)) * unfolded.square().sum((1, 2))).sum().sqrt().item()
    joined = 1.0 if attention.output is None else _norm(attention.output.movedim(0, 1).flatten(1))
    return growth * sizes * joined


def two_largest(p):
    r""":math:`g_1(p) = p_{(1)} (1 - p_{(1)} + p_{(2)})` of probabilities (n,), yudin2025attention."""
    first, second = torch.nn.functional.pad(p, (0, 1)).topk(2).values
    return (first * (1 - first + second)).item()


def sign_upper(p):
    r"""A bound on :math:`\theta(p) = \max_S 4\, p(S) (1 - p(S))` in linear time, for probabilities p of shape (n,).

    One, or :math:`4 p_{(1)} (1 - p_{(1)})` if the largest entry is more than a half: then that is exact, because
    each set or its complement has at most :math:`1 - p_{(1)}`.

    emadi2026softmax states the norm of the softmax as theta over the temperature; the formula of theta is ours.
    """
    *others, first = p.sort().values.tolist()
    return 4 * first * sum(others) if first > 0.5 else 1.0
