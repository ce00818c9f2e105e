"""Attention in as many digits as a case needs: its Jacobian, and its change, with balls of `python-flint`.

Written out from the definition, with numbers that carry their derivatives and without code of the package, so that it
can test the package. Every number is a ball that contains the true one; the precision is doubled until the balls are
small. Cosines and sines are those of the map, computed in the type of its frequencies: they define it.
"""

import math

import torch

try:
    import flint
    from flint import arb, arb_mat
except ImportError as error:
    raise ImportError(
        "the checks in many digits need python-flint: pip install '.[test]' in a clone of lipnb."
    ) from error

DIGITS = 50
BITS = 1 << 15  # highest precision tried


def seen_by(attention, n, i):
    """The tokens that token i of n sees."""
    if not attention.masked:
        return range(n)
    return range(0 if attention.window is None else max(0, i + 1 - attention.window), i + 1)


def settled(make, size):
    """Result of `make` at a precision for which ``size(made)`` reports small balls."""
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
    largest = max((abs(one).mid() for one in entries), default=arb(0))
    return all(one.is_finite() for one in entries) and all(one.rad() <= largest * arb(10) ** -DIGITS for one in entries)


def _rows(attention, name, x):
    """Finished rows of heads, tokens and coordinates: lists of a value and its derivatives in the token, balls."""
    matrix, bias = getattr(attention, name).double(), getattr(attention, f"{name}_bias")
    heads, k, _ = matrix.shape
    weight = getattr(attention, f"{name}_norm", None)
    rows = []
    for h in range(heads):
        W = [[arb(one) for one in row] for row in matrix[h].tolist()]
        shift = [0] * k if bias is None else bias[h].double().tolist()
        rows.append(
            [
                [[sum((a * b for a, b in zip(W[c], token, strict=True)), arb(shift[c])), *W[c]] for c in range(k)]
                for token in x
            ]
        )
    if weight is not None:
        rows = _normalised(attention, rows, weight.double().tolist())
    if attention.frequencies is not None and name != "value":
        angles = torch.arange(len(x), dtype=attention.frequencies.dtype)[:, None] * attention.frequencies
        turns = angles.cos().double().tolist(), angles.sin().double().tolist()
        for tokens in rows:
            for row, cos, sin in zip(tokens, *turns, strict=True):
                p = len(cos)
                for c in range(p):
                    one, two = row[c], row[c + p]
                    row[c] = [cos[c] * a - sin[c] * b for a, b in zip(one, two, strict=True)]
                    row[c + p] = [cos[c] * b + sin[c] * a for a, b in zip(one, two, strict=True)]
    return rows


def _normalised(attention, rows, weight):
    """Rows divided by the root of their mean square plus epsilon, and multiplied by weights; with derivatives."""
    times = attention.heads // len(rows) if attention.joint_norm else 1  # heads that share keys are all counted
    out = [[None] * len(tokens) for tokens in rows]
    for h, tokens in enumerate(rows):
        for j in range(len(tokens)):
            together = [row for head in (rows if attention.joint_norm else [tokens]) for row in head[j]] * times
            mean = sum(y[0] ** 2 for y in together) / len(together) + arb(attention.norm_eps)
            slope = [sum(y[0] * y[e] for y in together) / len(together) for e in range(1, len(together[0]))]
            r = 1 / mean.sqrt()
            derivative = [-(r**3) * one for one in slope]
            out[h][j] = [
                [w * r * y[0], *(w * (r * y[e + 1] + y[0] * derivative[e]) for e in range(len(slope)))]
                for w, y in zip(weight[h], tokens[j], strict=True)
            ]
    return out


def _attention(attention, query, key, h, i, seen, logs):
    """Row i of head h: probabilities of the tokens seen, and their logits' derivatives in tokens i and j."""
    logits, by_query, by_key = [], [], []
    for j in seen:
        one, two = query[i], key[j]
        d = len(one[0]) - 1
        value = sum(a[0] * b[0] for a, b in zip(one, two, strict=True))
        bend = arb(1)
        if attention.cap is not None:
            ratio = value / arb(attention.cap)
            value, bend = arb(attention.cap) * ratio.tanh(), 1 / ratio.cosh() ** 2
        if attention.relative is not None:
            w = attention.relative.shape[1] // 2
            value += arb(attention.relative[h, max(-w, min(w, j - i)) + w].item())
        logits.append(value if logs is None else value + logs[j])
        by_query.append([bend * sum(b[0] * a[e] for a, b in zip(one, two, strict=True)) for e in range(1, d + 1)])
        by_key.append([bend * sum(a[0] * b[e] for a, b in zip(one, two, strict=True)) for e in range(1, d + 1)])
    sink = [] if attention.sinks is None else [arb(attention.sinks[h].item())]
    top = max(logits + sink, key=lambda one: one.mid())
    powers = [(one - top).exp() for one in logits]
    total = sum(powers) + sum((one - top).exp() for one in sink)
    return [one / total for one in powers], by_query, by_key


def _scaled(attention, rows):
    """Queries of one head with the scale of the logits."""
    scale = arb(attention.scale)
    return [[[scale * one for one in c] for c in row] for row in rows]


def _output_rows(attention, h):
    """Rows of the output matrix of a head, one for each output coordinate."""
    v = attention.value_width
    if attention.output is None:
        return {h * v + b: [arb(int(b == c)) for c in range(v)] for b in range(v)}
    return dict(enumerate([arb(one) for one in row] for row in attention.output[h].double().tolist()))


def jacobian(attention, x, weights=None):
    r"""The Jacobian at `x` (n, d), with weights :math:`D_a^{1/2} J D_a^{-1/2}`, as a matrix of balls.

    Returns flint.arb_mat: of (n m, n d), and the bits of precision used: evaluate it at that precision.
    """
    n, d, m, v = len(x), attention.width, attention.output_width, attention.value_width
    times = attention.heads // attention.groups

    def make():
        tokens = [[arb(one) for one in row] for row in x.double().tolist()]
        a = None if weights is None else [arb(one) for one in weights.double().tolist()]
        logs = None if a is None else [one.log() for one in a]
        total = [[arb(0)] * (n * d) for _ in range(n * m)]
        queries, keys, values = (_rows(attention, name, tokens) for name in ("query", "key", "value"))
        for h in range(attention.heads):
            query, W = _scaled(attention, queries[h]), _output_rows(attention, h)
            key, value = keys[h // times], values[h // times]
            for i in range(n):
                seen = seen_by(attention, n, i)
                P, by_query, by_key = _attention(attention, query, key, h, i, seen, logs)
                mean = [sum(p * value[j][c][0] for p, j in zip(P, seen, strict=True)) for c in range(v)]
                for p, j, left, right in zip(P, seen, by_query, by_key, strict=True):
                    share = arb(1) if a is None else a[i].sqrt() / a[j].sqrt()
                    for b, line in W.items():
                        row = total[i * m + b]
                        gap = p * sum(w * (value[j][c][0] - mean[c]) for c, w in enumerate(line))
                        for e in range(d):
                            row[i * d + e] += gap * left[e]
                            moved = gap * right[e] + p * sum(w * value[j][c][e + 1] for c, w in enumerate(line))
                            row[j * d + e] += share * moved
        return arb_mat(total)

    return settled(make, lambda J: small(J.entries()))


def largest_stretch(J, bits):
    r"""A lower bound on the norm of a matrix of balls: :math:`|J v| / |v|` at the singular vector of its rounded copy.

    The vector is accurate to about 1e-16 over the gap, so the quotient to its square.

    Returns flint.arb: its lower end is certainly below the norm.
    """
    before, flint.ctx.prec = flint.ctx.prec, bits
    try:
        entries = J.entries()
        size = max(abs(one).mid() for one in entries)
        if size == 0:
            return arb(0)
        plain = torch.tensor([float((one / size).mid()) for one in entries], dtype=torch.float64).view(J.nrows(), -1)
        vector = torch.linalg.svd(plain).Vh[0]
        v = arb_mat([[one] for one in vector.tolist()])
        image = J * v
        return (sum(one**2 for one in image.entries()) / sum(one**2 for one in v.entries())).sqrt()
    finally:
        flint.ctx.prec = before


def _outputs(attention, tokens):
    """Outputs at tokens that are lists of balls, as lists of balls."""
    out, times = [[arb(0)] * attention.output_width for _ in tokens], attention.heads // attention.groups
    queries, keys, values = (_rows(attention, name, tokens) for name in ("query", "key", "value"))
    for h in range(attention.heads):
        query = _scaled(attention, queries[h])
        W, value = _output_rows(attention, h), values[h // times]
        for i in range(len(tokens)):
            seen = seen_by(attention, len(tokens), i)
            P, *_ = _attention(attention, query, keys[h // times], h, i, seen, None)
            mean = [sum(p * value[j][c][0] for p, j in zip(P, seen, strict=True)) for c in range(len(value[0]))]
            for b, line in W.items():
                out[i][b] += sum(w * one for w, one in zip(line, mean, strict=True))
    return out


def change(attention, x, move):
    """The length of f(x + move) - f(x) of an attention, a ball; the sum is exact."""

    def make():
        here = [[arb(one) for one in row] for row in x.double().tolist()]
        moved = zip(here, move.double().tolist(), strict=True)
        there = [[one + arb(two) for one, two in zip(*rows, strict=True)] for rows in moved]
        pairs = zip(_outputs(attention, there), _outputs(attention, here), strict=True)
        return [one - two for rows in pairs for one, two in zip(*rows, strict=True)]

    gaps, bits = settled(make, small)
    before, flint.ctx.prec = flint.ctx.prec, bits
    try:
        return sum(one**2 for one in gaps).sqrt()
    finally:
        flint.ctx.prec = before


def radius_of(move):
    """Euclidean length of a float tensor, a ball."""
    return sum(arb(one) ** 2 for one in move.double().flatten().tolist()).sqrt()


def below(number):
    """A float certainly not above a ball: its lower end, rounded down."""
    return math.nextafter(float(number.lower()), -math.inf)


def above(number):
    """A float certainly not below a ball."""
    return math.nextafter(float(number.upper()), math.inf)


def margin(smaller, larger):
    """``larger / smaller - 1`` of balls as a float, infinite if both may be zero; negative only if certainly below."""
    if smaller == 0 or not smaller > 0:
        return math.inf
    before, flint.ctx.prec = flint.ctx.prec, 256
    try:
        over = larger / smaller - 1
        return float(over.mid()) if over < 0 or over.mid() > 0 else 0.0
    finally:
        flint.ctx.prec = before
