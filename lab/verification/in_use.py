"""`lipnb.certify` on attention as models have it, against its Jacobian in fifty digits: cases, truth and table.

The truth is written out from the definition with numbers that carry their derivatives, each a ball of `python-flint`.
Cosines and sines are those of the map, computed in the type of its frequencies: they define it.
"""

import math
from zlib import crc32

import torch

from lab.experiments.table import Table
from lab.verification.cancelling import CANCELLING, draw_cancelling
from lipnb.recording import Unit

__all__ = ["IN_USE", "TABLE", "again", "draw_in_use", "jacobian", "measure"]

IN_USE = ("shared keys", "rotary", "norms", "cap", "relative", "sinks")
BLOCK, BLOCKS = 200, 30  # cases of a block; blocks, the kinds taking turns


def draw_in_use(kind, seed):
    """Case number `seed` of a kind: a case of `draw_cancelling` with that kind's part, and each other part or not.

    Parameters
    ----------
    kind : one of `IN_USE`
    seed : int

    Returns
    -------
    lab.verification.cancelling.Case
    """
    base = draw_cancelling(CANCELLING[seed % len(CANCELLING)], seed, name=f"in use/{kind}")
    g = torch.Generator().manual_seed(crc32(f"in use/{kind}/{seed}".encode()))

    def integer(low, high):
        return int(torch.randint(low, high + 1, (), generator=g))

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    def chosen(part):
        return part == kind or integer(0, 3) == 0

    f = base.attention
    given = {name: getattr(f, name) for name in ("query", "key", "value", "output", "query_bias", "key_bias")}
    given |= {"value_bias": f.value_bias, "masked": f.masked, "window": f.window, "scale": f.scale}
    if chosen("rotary"):
        if f.key_width == 1:  # a second coordinate, for a plane
            given |= {name: torch.cat([given[name], normal(f.heads, 1, f.width)], 1) for name in ("query", "key")}
            for name in ("query_bias", "key_bias"):
                if given[name] is not None:
                    given[name] = torch.cat([given[name], normal(f.heads, 1)], 1)
        given["frequencies"] = (normal(1).abs() * 10.0 ** integer(-4, 1)).to(
            (torch.float32, torch.float64)[integer(0, 1)]
        )
    if chosen("shared keys"):
        given |= {
            name: None
            if given[name] is None
            else given[name].repeat_interleave(2, 0) * (1 + normal(2 * f.heads).view(-1, *[1] * (given[name].ndim - 1)))
            for name in ("query", "query_bias", "output")
        }
    (h, k, _), groups = given["query"].shape, f.groups
    if chosen("norms"):
        given |= {"norm_eps": (0.0, 1e-6, 0.3)[integer(0, 2)], "joint_norm": integer(0, 1) == 1}
        which = integer(0, 2)
        given["query_norm"] = normal(h, k) * 2.0 ** integer(-4, 4) if which < 2 else None
        given["key_norm"] = normal(groups, k) if which > 0 else None
    if chosen("cap"):
        given["cap"] = 2.0 ** integer(-3, 6)
    if chosen("relative"):
        given["relative"] = normal(h, 2 * integer(0, 4) + 1) * 2.0 ** integer(-2, 6)
    if chosen("sinks"):
        given["sinks"] = normal(h) * 2.0 ** integer(-1, 6)
    dtype = f.dtype
    given = {
        name: one.to(dtype) if isinstance(one, torch.Tensor) and name != "frequencies" else one
        for name, one in given.items()
    }
    return base._replace(attention=type(f)(**given))


def _rows(attention, name, x):
    """Finished rows of heads, tokens and coordinates: lists of a value and its derivatives in the token, balls."""
    from flint import arb

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
    """Rows divided by the root of their mean square and epsilon, and multiplied by weights; with derivatives."""
    from flint import arb

    times = attention.heads // len(rows) if attention.joint_norm else 1  # of heads that share, all are counted
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
    from flint import arb

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


def jacobian(attention, x, weights=None):
    r"""The Jacobian at `x` (n, d), with weights :math:`D_a^{1/2} J D_a^{-1/2}`, as a matrix of balls.

    Returns
    -------
    flint.arb_mat, int
        Of (n m, n d), and the bits it took: use it at that precision.
    """
    from flint import arb, arb_mat

    from lab.verification.truth import seen_by, settled, small

    n, d, m, v = len(x), attention.width, attention.output_width, attention.value_width
    times = attention.heads // attention.groups

    def make():
        tokens = [[arb(one) for one in row] for row in x.double().tolist()]
        a = None if weights is None else [arb(one) for one in weights.double().tolist()]
        logs = None if a is None else [one.log() for one in a]
        total = [[arb(0)] * (n * d) for _ in range(n * m)]
        queries, keys, values = (_rows(attention, name, tokens) for name in ("query", "key", "value"))
        scale = arb(attention.scale)
        for h in range(attention.heads):
            query = [[[scale * one for one in c] for c in row] for row in queries[h]]
            key, value = keys[h // times], values[h // times]
            if attention.output is None:
                W = {h * v + b: [arb(int(b == c)) for c in range(v)] for b in range(v)}
            else:
                W = dict(enumerate([arb(one) for one in row] for row in attention.output[h].double().tolist()))
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


def measure(block, *, cases=BLOCK):
    """One block of cases of one kind.

    Returns
    -------
    dict
        As `lab.verification.digits.measure`.
    """
    from lab.verification.digits import bracketed

    kind = IN_USE[block % len(IN_USE)]
    violations = errors = unknown = 0
    margin, worst = math.inf, -1
    for seed in range(block * cases, (block + 1) * cases):
        try:
            outcome = bracketed(draw_in_use(kind, seed), jacobian)
        except Exception:  # whatever it is: an answer was due
            errors += 1
            continue
        violations, unknown = violations + (outcome.margin < 0), unknown + outcome.unknown
        if outcome.margin < margin:
            margin, worst = outcome.margin, seed
    found = {"bound": "certify", "kind": kind, "cases": cases, "violations": violations, "errors": errors}
    return found | {"unknown": unknown, "margin": margin, "seed": worst}


def _prepare(blocks, cases):
    settings = {"blocks": blocks, "cases": cases, "digits": 50, "dtype": "float32 and float64", "device": "cpu"}
    return settings, [
        Unit(f"certify/{block}", lambda block=block: [measure(block, cases=cases)], 1) for block in range(blocks)
    ]


def _joined(table):
    from lab.verification.digits import joined

    return joined(table)


TABLE = Table("verify-in-use", _prepare, {"blocks": BLOCKS, "cases": BLOCK}, _joined)


def again(row):
    """The tightest case of a row of a stored table measured again; for `lab.experiments.remeasure`."""
    from lab.verification.digits import bracketed

    return {"margin": bracketed(draw_in_use(row["kind"], int(row["seed"])), jacobian).margin}
