"""Attention in as many digits as a case asks for: its Jacobian, and its change, with balls of `python-flint`.

Written out from the definition, entry by entry, with nothing of the package: it decides whether the package is right.
Every number is a ball that holds the true one; the precision is doubled until the balls are small.
"""

import math

import torch

try:
    import flint
except ImportError as error:
    raise ImportError(
        "the checks in many digits need python-flint: pip install '.[test]' in a clone of lipnb."
    ) from error

__all__ = ["change", "jacobian", "largest_stretch", "seen_by", "settled", "small"]

DIGITS = 50
BITS = 1 << 15  # most that is tried


def _balls(tensor):
    """A float tensor of one or two dimensions as a matrix of exact balls."""
    rows = tensor.double().tolist()
    return flint.arb_mat(rows if tensor.ndim == 2 else [rows])


def _rows(matrix):
    return matrix.tolist() if hasattr(matrix, "tolist") else [list(row) for row in matrix.table()]


def seen_by(attention, n, i):
    """The tokens that token i of n sees."""
    if not attention.masked:
        return range(n)
    return range(0 if attention.window is None else max(0, i + 1 - attention.window), i + 1)


def _heads(attention, x, logs):
    """Of each head: scaled queries, keys, values, weights of attention, the output matrix; lists of balls."""
    n, scale = len(x), flint.arb(attention.scale)
    tokens = _balls(x)
    for h in range(attention.heads):
        parts = []
        for name in ("query", "key", "value"):
            rows = _rows(tokens * _balls(getattr(attention, name)[h]).transpose())
            bias = getattr(attention, f"{name}_bias")
            if bias is not None:
                rows = [[one + flint.arb(b) for one, b in zip(row, bias[h].tolist(), strict=True)] for row in rows]
            parts.append(rows)
        query, key, value = parts
        query = [[scale * one for one in row] for row in query]
        logits = _rows(flint.arb_mat(query) * flint.arb_mat(key).transpose())
        P = []
        for i, row in enumerate(logits):
            seen = seen_by(attention, n, i)
            row = [row[j] if logs is None else row[j] + logs[j] for j in seen]
            top = max(row, key=lambda one: one.mid())
            powers = [(one - top).exp() for one in row]
            total = sum(powers)
            P.append([flint.arb(0)] * seen.start + [one / total for one in powers] + [flint.arb(0)] * (n - seen.stop))
        yield query, key, value, P


def settled(make, size):
    """What `make` gives at a precision at which ``size(made)`` says that its balls are small."""
    bits = 256
    before = flint.ctx.prec
    try:
        while True:
            flint.ctx.prec = bits
            made = make()
            if size(made):
                return made, bits
            if bits >= BITS:
                raise ArithmeticError(f"{bits} bits do not settle this case.")
            bits *= 4
    finally:
        flint.ctx.prec = before


def small(entries, bits=0):
    """Whether the radii of balls are at most 10^-50 of the largest of them (or all are exactly zero)."""
    largest = max((abs(one).mid() for one in entries), default=flint.arb(0))
    return all(one.is_finite() for one in entries) and all(
        one.rad() <= largest * flint.arb(10) ** -DIGITS for one in entries
    )


def jacobian(attention, x, weights=None):
    r"""The Jacobian at `x` (n, d), with weights :math:`D_a^{1/2} J D_a^{-1/2}`, as a matrix of balls.

    Returns
    -------
    flint.arb_mat, int
        Of (n m, n d), and the bits it took: use it at that precision.
    """
    n, d, m = len(x), attention.width, attention.output_width
    given = [None] if weights is None else [weights.double().tolist()]

    def make():
        a = None if given[0] is None else [flint.arb(one) for one in given[0]]
        logs = None if a is None else [one.log() for one in a]
        J = flint.arb_mat(n * m, n * d)
        total = [[flint.arb(0)] * (n * d) for _ in range(n * m)]
        for h, (query, key, value, P) in enumerate(_heads(attention, x, logs)):
            WV = _balls(attention.value[h])
            if attention.output is not None:
                W = _balls(attention.output[h])
            else:
                W = flint.arb_mat(
                    [
                        [int(row == h * attention.value_width + column) for column in range(attention.value_width)]
                        for row in range(m)
                    ]
                )
            WWV = _rows(W * WV)
            slopes = _rows(flint.arb_mat(query) * _balls(attention.key[h]))
            curves = flint.arb_mat(key) * _balls(attention.query[h]) * flint.arb(attention.scale)
            wvalue = _rows(flint.arb_mat(value) * W.transpose())
            for i in range(n):
                seen = seen_by(attention, n, i)
                mean = [sum(P[i][j] * wvalue[j][c] for j in seen) for c in range(m)]
                Z = [[P[i][j] * (wvalue[j][c] - mean[c]) for c in range(m)] for j in range(n)]
                own = _rows(flint.arb_mat(Z).transpose() * curves)
                for c in range(m):
                    row = total[i * m + c]
                    for j in seen:
                        z, p, b, v, at = Z[j][c], P[i][j], slopes[i], WWV[c], j * d
                        for e in range(d):
                            row[at + e] += z * b[e] + p * v[e]
                    for e in range(d):
                        row[i * d + e] += own[c][e]
        if a is not None:
            roots = [one.sqrt() for one in a]
            for i in range(n):
                for j in range(n):
                    share = roots[i] / roots[j]
                    for c in range(m):
                        for e in range(d):
                            total[i * m + c][j * d + e] *= share
        J = flint.arb_mat(total)
        return J

    return settled(make, lambda J: small(J.entries()))


def largest_stretch(J, bits):
    r"""The norm of a matrix of balls from below: :math:`|J v| / |v|` at the singular vector of its rounded copy.

    The vector is right to some 1e-16 over the gap, so the quotient to its square.

    Returns
    -------
    flint.arb
        Its lower end is below the norm for certain.
    """
    before, flint.ctx.prec = flint.ctx.prec, bits
    try:
        entries = J.entries()
        size = max(abs(one).mid() for one in entries)
        if size == 0:
            return flint.arb(0)
        plain = torch.tensor([float((one / size).mid()) for one in entries], dtype=torch.float64).view(J.nrows(), -1)
        vector = torch.linalg.svd(plain).Vh[0]
        v = flint.arb_mat([[one] for one in vector.tolist()])
        image = J * v
        return (sum(one**2 for one in image.entries()) / sum(one**2 for one in v.entries())).sqrt()
    finally:
        flint.ctx.prec = before


def change(attention, x, move):
    """The length of f(x + move) - f(x) of an attention, a ball; the sum is taken exactly.

    Returns
    -------
    flint.arb
    """
    m = attention.output_width

    def outputs(tokens, added):
        shifted = tokens.double().tolist()
        rows = [
            [flint.arb(one) + flint.arb(two) for one, two in zip(row, other, strict=True)]
            for row, other in zip(shifted, added.double().tolist(), strict=True)
        ]
        out = [[flint.arb(0)] * m for _ in rows]
        for h, (_, _, value, P) in enumerate(_heads(attention, _Exact(rows), None)):
            heads = flint.arb_mat(P) * flint.arb_mat(value)
            if attention.output is not None:
                heads = _rows(heads * _balls(attention.output[h]).transpose())
                out = [[one + two for one, two in zip(*rows, strict=True)] for rows in zip(out, heads, strict=True)]
            else:
                for row, head in zip(out, _rows(heads), strict=True):
                    at = h * attention.value_width
                    row[at : at + attention.value_width] = head
        return out

    def make():
        there, here = outputs(x, move), outputs(x, torch.zeros_like(move))
        return [one - two for rows in zip(there, here, strict=True) for one, two in zip(*rows, strict=True)]

    gaps, bits = settled(make, small)
    before, flint.ctx.prec = flint.ctx.prec, bits
    try:
        return sum(one**2 for one in gaps).sqrt()
    finally:
        flint.ctx.prec = before


class _Exact(list):
    """Rows of balls in place of a tensor."""

    ndim = 2

    def double(self):
        return self

    def tolist(self):
        return list(self)


def radius_of(move):
    """Euclidean length of a float tensor, a ball."""
    return sum(flint.arb(one) ** 2 for one in move.double().flatten().tolist()).sqrt()


def below(number):
    """A float that is surely not above a ball: its lower end, rounded down."""
    return math.nextafter(float(number.lower()), -math.inf)


def above(number):
    """A float that is surely not below a ball."""
    return math.nextafter(float(number.upper()), math.inf)


def margin(smaller, larger):
    """``larger / smaller - 1`` of balls as a float, infinite where both may be zero; negative only if surely below."""
    if smaller == 0 or not smaller > 0:
        return math.inf
    before, flint.ctx.prec = flint.ctx.prec, 256
    try:
        over = larger / smaller - 1
        return float(over.mid()) if over < 0 or over.mid() > 0 else 0.0
    finally:
        flint.ctx.prec = before
