r"""The distance between the Jacobian that a solver multiplies with and the true one, bounded.

A solver multiplies with rounded queries, keys, values, attention probabilities and head outputs. All are computed in
float64 from the map and the tokens, `centred`, and rounded once to the type of the tokens: in float32 no number then
errs by more than a rounding unit of itself, however large the logits are and however far the tokens lie from zero.
`jacobian_error` bounds what this, and float64, change of the Jacobian. For a head, with :math:`|P_i|` the sums over j
with weights :math:`P_{ij}`,

.. math::
    (J u)_i = \sum_j P_{ij} (\dot q_i \cdot k_j + q_i \cdot \dot k_j)(v_j - o_i) + \sum_j P_{ij} \dot v_j .

1. *Sizes.* :math:`a_i^2 = \sum_j P_{ij} |k_j|^2`, :math:`b_i^2 = \sum_j P_{ij} |v_j|^2` and :math:`\sigma_i^2 = \sum_j
   P_{ij} |v_j - o_i|^2 = b_i^2 - |o_i|^2`, so :math:`|o_i| \le b_i`. With sinks :math:`b_i` plus the length of `offset`
   is larger than both :math:`|o_i|` and :math:`\sigma_i`.
2. *Terms.* By Cauchy the terms in :math:`\dot q` have norm at most :math:`\max_i a_i \sigma_i \|\dot q\|`; those in
   :math:`\dot k` at most :math:`\max_i |q_i| \sigma_i\, c\, \|\dot k\|` with :math:`c^2 = \max_j \sum_i P_{ij}`, since
   :math:`(\sum_j P_{ij} g_{ij} y_j)^2 \le \sum_j P_{ij} g_{ij}^2 \sum_j P_{ij} y_j^2`; the last at most
   :math:`c \|\dot v\|`. With token weights :math:`\omega`, :math:`P_{ij} \sqrt{\omega_i / \omega_j}`
   replaces P in the last two.
3. *Errors.* Numbers that err by e of a product of sizes s change it by at most
   :math:`\prod (s + e) - \prod s`: `change`. The errors are these: of P relatively :math:`\theta` (line 5), of q, k and
   v those of line 4, of o :math:`(3 U + \gamma_{n + 8}) b_i + \theta \sigma_i` plus that of v: the rows of a P rounded
   to U do not sum to one, and those of any softmax do, so that :math:`\sum_j \delta P_{ij} v_j = \sum_j \delta P_{ij}
   (v_j - o_i)`. U is the rounding unit of the tokens' type, 0 in float64.
4. *Rows.* :math:`\gamma_{d+4} (|x_i| \|W\|_F + |\beta|)` in float64, with the bias :math:`\beta`, times the gain of a
   norm, and U of the row itself.
5. *Probabilities.* Logits err by at most t (as in line 3 of `lipnb.bounds.rounding`, with lengths in place of entries),
   so :math:`\theta = e^{2 t} - 1`, and U for rounding P itself. A cap adds the error of its slope.
6. *Heads.* :math:`\|\sum_h W_O^{(h)} \delta_h\| \le \|W_O\| (\sum_h |\delta_h|^2)^{1/2}`.
"""

import torch
from torch import Tensor

from lipnb.attention import Attention
from lipnb.jacobian.linearization import Linearization, Projected
from lipnb.jacobian.matrices import MatrixNorms, ScaledMatrices

UNIT = torch.finfo(torch.float64).eps / 2
MORE = 1 + 1e-6  # for the rounding of the bound itself: sums of positive numbers in float64


def linearized(
    attention: Attention, x: Tensor, weights: Tensor | None = None, *, blocks: bool = False
) -> tuple[Linearization, Tensor]:
    """The linearization at tokens x (b, n, d), computed in float64 and rounded once, and the `jacobian_error`, (b,).

    With `blocks` the error counts the float64 arithmetic of `Linearization.blocks` too.

    Examples
    --------
    >>> import torch
    >>> from lipnb import Attention
    >>> from lipnb.jacobian.rounding_error import linearized
    >>> x = torch.tensor([[[100.0], [100.01], [99.987]]])
    >>> at, error = linearized(Attention.from_matrices(torch.eye(1), torch.eye(1)), x)
    >>> at.probabilities.dtype, bool(0 < error < 1e-5)
    (torch.float32, True)
    """
    at = Linearization.at(projected(attention, x, weights))
    columns = squares(at)
    means = at.attention.average(at.probabilities, columns)
    arithmetic = 0.0
    if blocks:  # absolute values have at most the root of the least dimension times the norm, for two matrices
        k, v, h, n = attention.key_width, attention.value_width, attention.heads, x.shape[-2]
        arithmetic = gamma(n + k + v + h + 16) * (max(k, v) * min(attention.output_width, h * v)) ** 0.5
    error = jacobian_error(
        at, x, means, received(at.root, at.probabilities), at.heads, at.offset, attention, arithmetic
    )
    return at.to(attention), error


def projected(attention: Attention, x: Tensor, weights: Tensor | None = None) -> Projected:
    """Queries, keys and values at tokens x (..., n, d), centred, in float64."""
    double = attention.to(dtype=torch.float64)
    return Projected.of(double, x.double(), None if weights is None else weights.double()).centred()


def squares(at: Projected) -> Tensor:
    """Squared lengths of keys and values, (..., g, n, 2); with weights also the latter, and 1, over roots."""
    key, value = at.key.square().sum(-1), at.value.square().sum(-1)
    if at.root is None:
        return torch.stack([key, value], -1)
    root = at.root[..., None, :, 0]
    return torch.stack([key, value, value / root, 1 / root.expand_as(value)], -1)


def received(root: Tensor | None, probabilities: Tensor) -> Tensor:
    """Attention that tokens receive from these rows of P (..., h, n, n), (..., h, n); with weights, times roots."""
    if root is None:
        return probabilities.sum(-2)
    return (root[..., None, :, :].mT @ probabilities)[..., 0, :]


def gamma(count: int) -> float:
    r""":math:`\gamma_c = c u / (1 - c u)`, of `count` roundings in float64."""
    return count * UNIT / (1 - count * UNIT)


def change(sizes: tuple, errors: tuple) -> Tensor:
    """Line 3: the change of a product of `sizes` by `errors`; without cancellation."""
    size, error = sizes[0], errors[0]
    for one, wrong in zip(sizes[1:], errors[1:], strict=True):
        size, error = size * one, error * (one + wrong) + size * wrong
    return error


def jacobian_error(
    at: Projected,
    x: Tensor,
    means: Tensor,
    sums: Tensor,
    heads: Tensor,
    offset: Tensor | None,
    attention: Attention,
    arithmetic: float = 0.0,
) -> Tensor:
    """Upper bound (b,) on the norm of the difference between the true Jacobian and `at` in the type of `x`.

    Parameters
    ----------
    at : Projected
        In float64, of tokens x (b, n, d).
    x : Tensor, shape (b, n, d)
        Tokens; the numbers of `at` are rounded to their type.
    means : Tensor, shape (b, h, n, 2 or 4)
        P times the `squares`.
    sums : Tensor, shape (b, h, n)
        What all rows together give to each token: `received`.
    heads, offset : Tensor, shape (b, h, n, v)
        As in `Linearization`; the second None without sinks.
    attention : Attention
        The map of `at`, in the type of x.
    arithmetic : float
        Relative error of results computed from these numbers without products.
    """
    att, n = at.attention, x.shape[-2]
    norms = ScaledMatrices.of(attention, x.dtype).norms
    unit = 0.0 if x.dtype == torch.float64 else torch.finfo(x.dtype).eps / 2
    times = att.heads // att.groups
    rows = _Rows(at, x, norms)
    query, key = (torch.linalg.vector_norm(part, dim=-1) for part in (at.query, at.key))
    largest_key = key.amax(-1, keepdim=True).repeat_interleave(times, -2)
    softmax, slope = _probability_errors(at, rows, query.amax(-1, keepdim=True), largest_key, x.dtype)
    theta = softmax + unit + arithmetic
    # line 1
    a, b = (means[..., i].clamp_min(0).sqrt() for i in (0, 1))
    output = torch.linalg.vector_norm(heads, dim=-1)
    variance = (b - output).clamp_min(0) * (b + output) + gamma(2 * (n + att.value_width) + 16) * b.square()
    size, spread = b, variance.sqrt()
    if offset is not None:
        size = spread = b + torch.linalg.vector_norm(offset, dim=-1)
    weighted_spread, row = spread, 1.0
    received_most = sums.amax(-1)
    if at.root is not None:
        root = at.root[..., None, :, 0]
        row = (root * means[..., 3]).clamp_min(0).sqrt()
        weighted_spread = (root * means[..., 2]).clamp_min(0).sqrt() + size * row
        received_most = (sums / root).amax(-1)
    c = received_most.clamp_min(0).sqrt()
    # lines 3 and 4
    value_error = unit * b + rows.value
    output_error = (3 * unit + gamma(n + 8)) * size + softmax * spread + rows.value
    both = value_error + output_error
    of_query = unit * norms.frobenius[0] / norms.query.clamp_min(UNIT**8) + rows.query_derivative
    # factors of a norm; cosines and sines, which are exact in the type of the frequencies
    turned = 2 * unit if att.frequencies is not None and att.frequencies.dtype != x.dtype else 0.0
    of_query = of_query + turned + (0.0 if att.query_norm is None else 6 * unit)
    of_key = rows.key_derivative + turned + (0.0 if att.key_norm is None else 6 * unit)
    weight = theta + slope + theta * slope
    one = torch.ones_like(a)
    query_size, query_error = query, unit * query + rows.query
    if att.score == "l2":
        query_size = query_size + abs(att.slope) * largest_key
        query_error = query_error + abs(att.slope) * (unit * largest_key + rows.key)
    first = (
        change((one, one, a, spread), (weight, of_query[..., None] * one, unit * a + rows.key, both)) * rows.query_gain
    )
    weighted = unit * (b if at.root is None else weighted_spread) + (rows.value + output_error) * row
    second = change((one, one, query_size, weighted_spread), (weight, of_key[..., None] * one, query_error, weighted))
    third = theta * norms.value.repeat_interleave(times)[:, None] * row
    head = first.amax(-1) * rows.query_norm + c * (second.amax(-1) * rows.key_norm + (third * one).amax(-1))
    error = norms.output * torch.linalg.vector_norm(head, dim=-1) * MORE
    return torch.nan_to_num(error, nan=torch.inf, posinf=torch.inf)


class _Rows:
    """Line 4: float64 errors of queries, keys and values, and norms of the derivatives of the first two.

    `query` (b, h, n); `key` and `value` (b, h, 1): the largest. `query_norm`, `key_norm` (h,) and (b, h): of the
    derivatives in the token, that of a query without its `query_gain` (b, h, n).
    """

    def __init__(self, at: Projected, x: Tensor, norms: MatrixNorms) -> None:
        att, d = at.attention, x.shape[-1]
        times = att.heads // att.groups
        length = torch.linalg.vector_norm(x.double(), dim=-1)[..., None, :]

        def projection(i, name):
            sizes = length * norms.frobenius[i][:, None]
            bias = getattr(att, f"{name}_bias")
            if bias is not None and not (name == "value" and att.sinks is not None):
                sizes = sizes + (abs(att.slope) if i == 0 else 1) * torch.linalg.vector_norm(bias, dim=-1)[:, None]
            return sizes

        query, key, value = (projection(i, name) for i, name in enumerate(("query", "key", "value")))
        value = gamma(d + 4) * value + 4 * UNIT * value  # the mean is any vector; the difference is rounded
        self.query, self.query_gain, self.query_derivative = self._through(
            query, at.of_query, att.query_norm, att, d, att.slope
        )
        self.key, key_gain, self.key_derivative = self._through(key, at.of_key, att.key_norm, att, d)
        if att.score == "l2":  # the centre of the keys, subtracted from both with its own rounding
            centre = key.amax(-1, keepdim=True).repeat_interleave(times, -2)
            self.query = self.query + 4 * UNIT * abs(att.slope) * centre
        # the difference from the mean key, of which a norm has at most this length
        self.key = self.key + 4 * UNIT * key * key_gain
        self.key, self.value = (one.amax(-1, keepdim=True).repeat_interleave(times, -2) for one in (self.key, value))
        joint = att.joint_norm
        query_norm, key_norm = (
            torch.linalg.vector_norm(one).expand_as(one) if joint else one for one in (norms.query, norms.key)
        )
        self.query_norm = query_norm
        self.key_norm = (key_norm * key_gain.amax(-1)).repeat_interleave(times, -1)
        self.key_derivative = self.key_derivative.repeat_interleave(times, -1)

    @staticmethod
    def _through(sizes, of, weight, att, d, slope=1.0):
        """Errors of rows of these `sizes` after norm and rotation, gains (b, h, n), and errors of derivatives (b, h).

        The length that a norm divides by moves by at most `moved`, relatively: lines 2a to 2c of
        `lipnb.bounds.rounding`. If that is not small, nothing is known.
        """
        error, none = gamma(d + 4) * sizes, torch.zeros_like(sizes)
        if of is None:
            return error, torch.ones_like(sizes), none[..., 0]
        if weight is None:
            return error + gamma(8) * sizes, torch.ones_like(sizes), none[..., 0] + gamma(8)
        gain, count = of.gain, weight.numel() if att.joint_norm else weight.shape[-1]
        least = weight.abs().amax(-1)[:, None].clamp_min(UNIT**8)
        whole = torch.linalg.vector_norm(error, dim=-2, keepdim=True) if att.joint_norm else error
        moved = gain / least * whole / abs(slope) / count**0.5 + gamma(count + 16)
        grown = torch.where(moved < 0.5, 1 / (1 - moved.clamp_max(0.5)), torch.inf)
        moved, gain = moved * grown, gain * grown
        error = gain * error + (gamma(count + 24) + moved) * gain * sizes
        return error, gain, (8 * moved).amax(-1) + gamma(count + 24)


def _probability_errors(at, rows, query, key, dtype):
    """Line 5: relative errors of P, (b, h, 1), and errors of slopes of the cap; from the largest queries and keys."""
    att = at.attention
    reach, query_error = query * key, rows.query.amax(-1, keepdim=True)
    t = gamma(att.key_width + 4) * reach + query_error * (key + rows.key) + query * rows.key
    slope = 0.0
    if att.score == "l2":
        t = t + abs(att.scale) * (gamma(att.key_width + 4) * key + 2 * rows.key) * (key + rows.key)
        reach = reach + abs(att.scale) * key.square()
    if att.cap is not None:
        t = t + 2 * UNIT * reach
        slope = (0.77 * t / att.cap).clamp_max(1) + 32 * UNIT
        slope = slope + (0.0 if dtype == torch.float64 else torch.finfo(dtype).eps / 2)
        t, reach = t.clamp_max(2 * att.cap) + 16 * UNIT * att.cap, reach.clamp_max(att.cap)
    terms = 0.0
    if at.root is not None:
        terms = 2 * at.root.log().abs().amax((-2, -1))[..., None, None]
    if att.relative is not None:
        terms = terms + att.relative.abs().amax(-1)[:, None]
    if att.sinks is not None:
        terms = terms + att.sinks.abs()[:, None]
    t = t + 8 * UNIT * (reach + terms) + gamma(at.key.shape[-2] + 16)
    return torch.expm1(2 * t), slope
