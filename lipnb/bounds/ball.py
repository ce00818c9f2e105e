r"""The least bound proved for a layer on a ball: each row of the Jacobian by two tokens, then all rows and heads.

Row i of the Jacobian of a head moves the output by :math:`V (q_i + k_i + v_i)`: its query, then keys and values of
the tokens it sees. The lemma behind every bound here: :math:`k_i + v_i` is at most
:math:`(1 + \tau^2 / 2)^{1/2}` times the Euclidean norm of the *two largest* perturbations of tokens, where
:math:`\tau = R\,|A x_i|`. The `Sizes` of
`multihead_norms` hold the required norms of one head or of several together; `alignment` has smaller key and query
sizes of one head, from its own matrices; `transformer_heads` computes sizes for heads with rotary positions, norms,
caps and sinks.
"""

import math
from typing import NamedTuple

import torch

from lipnb.attention import Attention, Feature
from lipnb.attention.heads import check_attention
from lipnb.bounds.alignment import aligned_sizes
from lipnb.bounds.gram import with_pairs
from lipnb.bounds.heads import TRANSFORMER_FEATURES, heads_on_ball
from lipnb.bounds.layer_norm import layer_norm_radius, norm_ellipsoid
from lipnb.bounds.mean_field import log_masked_sharp, log_mean_field_optimal
from lipnb.bounds.mean_field_rate import log_mean_field_exact
from lipnb.bounds.multihead_norms import Region, Sizes, sizes_of_heads, sizes_of_layer
from lipnb.bounds.norms import answer, head_norms, log_sum
from lipnb.bounds.rows_on_ball import norm_of_masked_rows, norm_of_rows
from lipnb.bounds.transformer_heads import range_of_relative, sizes_of_features
from lipnb.checks import count, number, radius, real_tensor
from lipnb.spectral.upper_norms import largest_singular

__all__ = ["ball_upper"]

ROWS = 4096  # rows of a mask that are distinguished; later rows count as if they saw only this many tokens
AVERAGES = 512  # tokens up to which the norm of their masked averages is computed
ROUNDING = 1e-10  # relative, for the scalars after the norms


def ball_upper(
    attention: Attention,
    n: int,
    R: float,
    *,
    ellipsoid: tuple[torch.Tensor, torch.Tensor | None] | None = None,
    log: bool = False,
) -> float:
    r"""Lipschitz constant of a whole layer on sequences of n tokens in a ball: the least of all proved bounds.

    With :math:`M_h = W_O^{(h)} W_V^{(h)}` and :math:`a_h(x) = s W_K^\top (W_Q x + b_Q)`, for any weights
    :math:`w_h > 0`,

    .. math:: \mathrm{Lip}(f) \le \big(n \kappa^2 + 2 \sqrt{2 h}\, q \kappa + 2 q^2\big)^{1/2}, \quad
        \kappa = \frac R{\sqrt 2}\, \big\|[M_h / \sqrt{w_h}]_h\big\|_2\,
        \sup_{|x| \le R} \big\|[\sqrt{w_h}\, a_h(x)]_h\big\|_2 + \beta, \quad
        q \ge R^2 \sup_{C_h \succeq 0,\ \mathrm{tr}\, C_h \le 1} \Big\|\sum_h M_h C_h A_h\Big\|_2,

    where :math:`\beta` bounds :math:`\sum_h M_h v_h` for averages :math:`v_h` of the same perturbations, divided by
    the joint Euclidean norm of 2h of them. For several heads the first term of :math:`\kappa` is also bounded by pairs
    of tokens (Notes).

    Parameters
    ----------
    attention : Attention
        Map with dot-product scores; any heads, shared keys, output matrices, biases, mask and masked window; rotary
        positions, norms, caps, relative positions and sinks.
    n : int
        Number of tokens.
    R : float
        Radius: every token has Euclidean norm at most R. With `ellipsoid` it may be `math.inf`.
    ellipsoid : tuple of Tensor, shapes (d,) and (d,), optional
        Gain and shift, in this order, of the LayerNorm that produces the tokens (for a layer of BERT type the one at
        the end of the previous layer): tokens are restricted to its possible outputs in the ball. ``(gain, None)``
        stands for an RMSNorm. Derivatives are still taken in all directions.
    log : bool
        Whether to return the natural logarithm.

    Returns
    -------
    float
        An upper bound on the local Lipschitz constant at all such inputs, hence on the Lipschitz constant; without a
        window never above the least of `heads_on_ball`, up to 1e-9. Norms are upper bounds with their rounding; the
        rounding of products of two weight matrices in float64 is not counted.

    Raises
    ------
    TypeError
        If n or R is not a number.
    ValueError
        If `attention` is not an `Attention` (other maps, such as the maps that `lipnb.models` differentiates
        automatically, have no proved bound on a ball), has L2 scores or a window on both sides; if n or R is out of
        range, or `ellipsoid` is not a finite gain and shift of the width of the layer; or if ``norm_eps=0`` and a
        normalised row may vanish.
    OverflowError
        If the bound exceeds the largest float: use ``log=True``.

    Notes
    -----
    Ours. The least of: the bound above for all heads jointly, with weights found by optimisation (any are valid); the
    sum over heads of the bound for one head, `general_upper_optimal` with the set of tokens kept inside the norms, with
    :math:`R^2 \sup_{|c| = 1} |M c|\, |A^\top c|` for the query term and
    :math:`\sup_{|x| \le R} (R^2 |a(x)|^2 - (a(x) \cdot x - \log n)_+^2)^{1/2}` for R times the largest slope, and
    with :math:`P_{ij} \le 1 / (1 + (n_i - 1) e^{-\delta})` for row i that sees :math:`n_i` tokens, :math:`\delta` the
    largest difference of logits; both also with :math:`\|U\|_2 (|\sum_h M_h| + \eta \beta)` for the values, where
    :math:`|P^{(h)} - U| \le \eta U` entry by entry, and row i of U is the average over the tokens that token i sees;
    for each head its rows by their two largest perturbations (`lipnb.bounds.rows_on_ball`), with a mask in their order:
    by norms alone no bound of a plain head is smaller to leading order;
    the sums of `heads_on_ball`, on sequences of any length; the sum of `mean_field_upper_exact`, or of the masked one.
    Exact for one token, and for R = 0 without a mask or up to 512 tokens, up to 1e-7 of the sum of the norms of the
    heads, which may far exceed the norm of their sum if heads cancel. At R = 0 it is not exact with relative positions,
    with sinks, and with biases that are rotated or normalised.

    Query terms: a covariance matrix of tokens is an average of :math:`\omega \omega^\top`, :math:`|\omega| \le R`, so
    that :math:`q = \frac12 (Q + R^2 \|\sum_h M_h A_h\|_2)` with a bound Q on :math:`R^2 \sum_h |M_h^\top v| |A_h u|`.
    Key terms of several heads: the attention that is worst in each head is one half at each of two tokens, and tokens
    that heads share are counted once; it uses the certified norms of `lipnb.bounds.gram`.

    Relative positions change none of these proofs: their range is added to :math:`\delta` and to :math:`\log n`, and
    only the last two sums are left out. For all other features (`lipnb.bounds.transformer_heads`) key and value terms
    are added, not their squares. Over all distances :math:`i - j` the largest :math:`\|s W_K^\top R_{i-j} W_Q\|_2`
    replaces :math:`\|A\|_2`, or for more than 512 tokens a product of norms; the bound is never above `rotary_upper`.
    Capped logits differ by at most 2 c. A normalised query or key has length at most :math:`\sqrt k \max |w|` for all
    tokens, but its derivative is up to :math:`\max |w| / \sqrt\epsilon` times that of its projection where the
    projection vanishes, and this happens in the ball unless biases prevent it: with the :math:`\epsilon` of networks
    such bounds are large, and so is the constant.

    Examples
    --------
    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> f = Attention.from_matrices(-eye, eye)
    >>> round(ball_upper(f, 400, 6.0), 2), round(ball_upper(f, 400, 1e200, log=True), 3)
    (514.55, 923.693)

    One head of a layer, here the second of two:

    >>> two = Attention(*torch.eye(4, 8).double().expand(3, 2, 4, 8))
    >>> second = two.replace(**{name: getattr(two, name)[1:2] for name in ("query", "key", "value")})
    >>> second.heads, math.isfinite(ball_upper(second, 10, 1.0))
    (1, True)
    """
    check_attention(attention, "ball_upper")
    attention.check_plain("ball_upper", also=TRANSFORMER_FEATURES)
    n = count(n)
    att, size = _of_size_one(attention.expand_groups().to("cpu", torch.float64))
    regions, reach = regions_of(att, R, ellipsoid)
    rows, apart = rows_of(att, n), {*att.more} <= {Feature.RELATIVE}
    heads, layer = _plain_sizes(att, regions, rows) if apart else sizes_of_features(att, regions, n)
    logs = [
        log_sum(_log_of_rows(head, rows, heads=1, apart=apart) for head in heads),
        _log_of_rows(layer, rows, heads=att.heads, apart=False),
    ]
    if not att.more and math.isfinite(reach):
        numbers = head_norms(att)
        published = heads_on_ball(numbers, n, reach, att.masked)
        if att.window is not None:  # proved for the whole past, not for a window
            published = {name: value for name, value in published.items() if "mean_field" not in name}
        logs += [value for value in published.values() if not math.isnan(value)]
        if att.window is None:
            logs.append(_by_exact_rates(att, numbers, reach, min(logs)))
    return answer(min(logs) + size + ROUNDING, log)


def _by_exact_rates(att, numbers, R, least):
    """Logarithm of the sum over heads of bounds with exact exponents; infinite if surely not below `least`."""
    by_norm = log_masked_sharp if att.masked else log_mean_field_optimal
    known = [
        (A * R * R, c, WV)
        for A, c, WV in zip(*(part.tolist() for part in (numbers.A, numbers.c, numbers.WV)), strict=True)
    ]
    # no rate is below norm(A) / 8
    if not log_sum(by_norm(t + c * R, WV, log_tau=t / 8 + c * R) for t, c, WV in known) < least:
        return math.inf
    matrices = att.scale * att.key.mT @ att.query
    return log_sum(
        log_mean_field_exact(A, t + c * R, WV, R, bias=c, masked=att.masked)
        for A, (t, c, WV) in zip(matrices, known, strict=True)
    )


def _plain_sizes(att, regions, rows):
    """`Sizes` of each head and of the layer; relative positions only increase the differences of logits."""
    added = range_of_relative(att, rows.n)
    # a row sees at most `widest` tokens, itself among them
    aligned = aligned_sizes(att, regions, math.log(rows.widest) + added)
    heads = [
        head._replace(key=min(head.key, key), query=min(head.query, query), spread=log_sum([head.spread, more]))
        for head, (key, query), more in zip(sizes_of_heads(att, regions), aligned, added.log().tolist(), strict=True)
    ]
    if att.heads == 1:
        return heads, heads[0]
    layer = with_pairs(att, regions, sizes_of_layer(att, regions))
    key, query = (log_sum(getattr(head, name) for head in heads) for name in ("key", "query"))
    spread = max(head.spread for head in heads)
    return heads, layer._replace(key=min(layer.key, key), query=min(layer.query, query), spread=spread)


def _of_size_one(att):
    """The layer with values and outputs scaled to size one, so that products do not underflow, and the log scale.

    Detached, because NumPy and SciPy cannot read tensors that require a gradient.
    """
    att = att.replace(**{name: part.detach() for name, part in att.tensors().items()})
    # the bias of the values matters with sinks
    values = ("value", "value_bias") if att.sinks is not None else ("value",)
    scaled, log = {}, 0.0
    for names in (values, ("output",)):
        there = {name: part for name in names if (part := getattr(att, name)) is not None and part.any()}
        if there:
            size = max(part.abs().amax() for part in there.values())
            scaled |= {name: part / size for name, part in there.items()}
            log += size.log().item()
    return att.replace(**scaled), log


def regions_of(att, R, ellipsoid):
    """One or two sets that contain all tokens, and the radius of a ball that does."""
    R = number("R", R)
    if ellipsoid is None and R == math.inf:
        raise ValueError("R must be a finite number, 0 or more, or ellipsoid=(gain, shift) must be given.")
    d, regions, new = att.width, [], {"dtype": torch.float64, "device": "cpu"}
    if R != math.inf:
        regions.append(Region(torch.zeros(d, **new), radius(R) * torch.eye(d, **new)))
    if ellipsoid is None:
        return regions, R
    gain, shift, reach = _layer_norm(ellipsoid, d)
    regions.append(Region(*norm_ellipsoid(gain, shift)))
    return regions, min(R, reach * (1 + ROUNDING))


def _layer_norm(ellipsoid, d):
    """Gain, shift or None, and `layer_norm_radius` of `ellipsoid`; ValueError if it is invalid."""
    if not (isinstance(ellipsoid, tuple | list) and len(ellipsoid) == 2):
        raise ValueError("ellipsoid must be (gain, shift), two tensors of shape (d,), or (gain, None) for an RMSNorm.")
    gain, shift = (
        None if part is None and name == "shift" else real_tensor(name, part, ("d",)).detach().to("cpu", torch.float64)
        for name, part in zip(("gain", "shift"), ellipsoid, strict=True)
    )
    reach = layer_norm_radius(gain, shift)
    if len(gain) != d:
        raise ValueError(f"ellipsoid must be (gain, shift) of the width of the layer, {d}, got {len(gain)}.")
    return gain, shift, reach


class Rows(NamedTuple):
    """Numbers of tokens seen by rows: `times` rows see `seen` tokens, and `column` of them share one token.

    No row sees more than `widest`; `uniform` bounds the norm of the averages that all rows take at equal logits;
    `sinks` is 1 if all rows also see a sink, of value zero.
    """

    n: int
    seen: torch.Tensor
    times: torch.Tensor
    column: torch.Tensor
    widest: int
    uniform: float
    sinks: int


def rows_of(att, n):
    """`Rows` of n tokens; rows that see more than `ROWS` count as seeing `ROWS`, which gives an upper bound."""
    one, sinks = torch.ones(1, dtype=torch.float64, device="cpu"), int(att.sinks is not None)
    if not att.masked:
        return Rows(n, float(n) * one, float(n) * one, float(n) * one, n, 1.0, sinks)
    widest = n if att.window is None else min(n, att.window)
    told = min(widest, ROWS)
    new = {"dtype": torch.float64, "device": "cpu"}
    seen, times, column = torch.arange(1, told + 1, **new), torch.ones(told, **new), torch.ones(told, **new)
    times[-1], column[-1] = float(n - told + 1), float(widest - told + 1)
    return Rows(n, seen, times, column, widest, _uniform(att, n, (column / seen).sum().item()), sinks)


def _uniform(att, n, harmonic):
    """Norm of the averages over the tokens that each of n tokens sees under a mask; `harmonic` is 1 + ... + 1/w.

    Computed for few tokens. For many at most 2, by Hardy's inequality. With a window w its square is at most 4 for the
    first w rows plus 1 for the others, and at most `harmonic`, the largest column sum.
    """
    if n <= AVERAGES:
        sees = (~att.hidden(n)).double()
        return largest_singular(sees / sees.sum(1, keepdim=True)).item()
    return 2.0 if att.window is None or att.window >= n else math.sqrt(min(harmonic, 5.0))


def _log_of_rows(sizes: Sizes, rows: Rows, *, heads: int, apart: bool) -> float:
    """Logarithm of the bound on a Jacobian with rows of these `Sizes`; `apart`: key and value add as squares."""
    scale = max(sizes[:3])
    if scale == -math.inf:
        return -math.inf
    value, key, query = (math.exp(size - scale) for size in sizes[:3])
    halved = math.exp(min(sizes.key, sizes.pairs) - scale) / math.sqrt(2)  # the key term of a row, any attention
    n, several = rows.n, rows.seen + rows.sinks > 1  # a token that sees only itself has no key and no query term
    if not several.any():
        return sizes.same
    delta = math.exp(min(sizes.spread, 20))  # the largest difference of logits in a row
    most = 1 / (1 + (rows.seen - 1) * math.exp(-delta))  # P_ij is at most p_i in a row that sees this many tokens

    # 1. |J| <= q + (sum_i r_i^2)^(1/2) with the values and keys of row i together at most r_i. With `apart`,
    #    r_i^2 = min(p_i (v^2 + k^2), v^2 + k^2 / 2); else r_i = p_i^(1/2) v + min(p_i, 1/2)^(1/2) k,
    #    or with the key term of heads that attend to pairs of tokens.
    #    Or the sum by columns: the sum of p_i over all rows that see one token, times v^2 + k^2 or (v + k)^2.
    if apart:
        free = value**2 + key**2
        squares = torch.minimum(most * (value**2 + several * key**2), value**2 + several * key**2 / 2)
        kappa = math.hypot(value, key / math.sqrt(2))
    else:
        free = (value + key) ** 2
        squares = (most.sqrt() * value + several * (most.clamp_max(0.5).sqrt() * key).clamp_max(halved)).square()
        kappa = value + halved
    by_terms = query + math.sqrt(min((rows.times * squares).sum().item(), free * (rows.column * most).sum().item()))

    # 2. Attention is the average U over all visible tokens, the same in all heads, plus at most eta U:
    #    |J| <= q + |U| (|sum_h M_h| + eta v) + k (sum_i min(p_i, 1/2) or, by columns, of p_i)^(1/2).
    eta = -math.expm1(-delta) * (rows.widest - 1) / (1 + (rows.widest - 1) * math.exp(-delta))
    averages = rows.uniform * (math.exp(sizes.same - scale) + eta * value)
    halves, columns = rows.times * several * most.clamp_max(0.5), rows.column * several * most
    if rows.n > rows.widest:  # one more row with a key term sees the second token than the first
        columns[-1] += most[-1]
    nearly_uniform = query + averages + key * math.sqrt(min(halves.sum().item(), columns.sum().item()))

    # 3. Each row by the two largest perturbations of each head, kappa^2 = v^2 + k^2 / 2; rows of one token have v only.
    first = value**2 - kappa**2 if not several.all() else 0.0
    few = _through_few(query, kappa, n * kappa**2 + first, min(2 * heads, n), n)
    # 4. Each row of one head by c_1 and c_2 times the two largest; with a mask by those before it.
    if heads == 1:
        of_rows = norm_of_rows if several.all() else norm_of_masked_rows
        few = min(few, of_rows(query, value, key, n, apart=apart))
    return scale + math.log(min(by_terms, nearly_uniform, few))


def _through_few(query, kappa, squares, few, n):
    r"""Norm of rows :math:`q \alpha_i + \kappa_i \tau`, :math:`\tau^2` the sum of the `few` largest of n squares.

    .. math:: q^2 + \tau^2 \sum_i \kappa_i^2 + 2 q \kappa \tau \big(\sqrt r\, \tau + \sqrt{n - r} \sqrt{1 - \tau^2}\big)

    is largest, over :math:`\tau`, at the top eigenvalue of a matrix of order two.
    """
    corner, side = squares + 2 * math.sqrt(few) * query * kappa, math.sqrt(n - few) * query * kappa
    return math.sqrt(query**2 + (corner + math.hypot(corner, 2 * side)) / 2)
