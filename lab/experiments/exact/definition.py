"""The local constant from the definition, in many digits, which tests whether a closed form is right.

It shares no code with the package or the closed forms: the map is written out token by token, and its Jacobian is the
imaginary part of the map at complex tokens, exact here to a hundred digits.
"""

import mpmath
import numpy as np

WIDEST = 24  # unknowns; more take minutes
STEP = 60  # step of the derivative is 10^-STEP; the error is its square
DIGITS = 50  # of the norm


def constant(case):
    """Local constant of one case, from the definition.

    `case`: as in the file; at most `WIDEST` unknowns. Returns mpmath.mpf, correct to 40 digits.
    """
    n, d = len(case["x"]), len(case["x"][0])
    if n * d > WIDEST:
        raise ValueError(f"{case['name']} has {n * d} unknowns: at most {WIDEST} are done in many digits.")
    with mpmath.workdps(4 * STEP):
        tokens = [[mpmath.mpf(entry) for entry in row] for row in case["x"]]
        step, columns = mpmath.mpf(10) ** -STEP, []
        for i in range(n):
            for e in range(d):
                moved = [list(row) for row in tokens]
                moved[i][e] += mpmath.mpc(0, step)
                columns.append([[mpmath.im(entry) / step for entry in row] for row in _outputs(case, moved)])
        a = [mpmath.mpf(one) for one in case["weights"] or [1] * n]
        J = mpmath.matrix(
            [
                [mpmath.sqrt(a[i] / a[at // d]) * columns[at][i][c] for at in range(n * d)]
                for i in range(n)
                for c in range(len(columns[0][0]))
            ]
        )
    with mpmath.workdps(DIGITS):
        return mpmath.sqrt(max(mpmath.eigsy(J.T * J, eigvals_only=True)))


def _outputs(case, x):
    """Outputs at tokens that may be complex, from the definition."""
    f, n = case["attention"], len(x)
    logs = [mpmath.log(mpmath.mpf(one)) for one in case["weights"] or [1] * n]
    outputs, concatenated = None, [[] for _ in x]
    for h in range(len(f["query"])):
        query, key, value = (_rows(f[name][h], f[f"{name}_bias"], h, x) for name in ("query", "key", "value"))
        for i in range(n):
            seen = [j for j in range(n) if not f["masked"] or i - (f["window"] or n) < j <= i]
            powers = [mpmath.exp(_logit(f, query[i], key[j]) + logs[j]) for j in seen]
            total = mpmath.fsum(powers)
            mean = [
                mpmath.fsum(p * value[j][c] for p, j in zip(powers, seen, strict=True)) / total
                for c in range(len(value[0]))
            ]
            concatenated[i].append(mean)
    if f["output"] is None:
        outputs = [[entry for part in row for entry in part] for row in concatenated]
    else:
        outputs = [
            np.sum([_times(W, part) for W, part in zip(f["output"], row, strict=True)], 0) for row in concatenated
        ]
    return outputs


def _rows(matrix, biases, h, x):
    return [
        [entry + (0 if biases is None else mpmath.mpf(b)) for entry, b in zip(_times(matrix, token), bias, strict=True)]
        for token in x
        for bias in [biases[h] if biases is not None else [0] * len(matrix)]
    ]


def _times(matrix, vector):
    return [mpmath.fsum(mpmath.mpf(a) * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def _logit(f, query, key):
    if f["score"] == "dot":
        return mpmath.mpf(f["scale"]) * mpmath.fsum(a * b for a, b in zip(query, key, strict=True))
    return -mpmath.mpf(f["scale"]) * mpmath.fsum((a - b) ** 2 for a, b in zip(query, key, strict=True))
