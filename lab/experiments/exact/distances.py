"""Cases of L2 attention, whose logits are minus squared distances."""

from lab.experiments.exact.case import case, evaluate

NORM = "sqrt((s + sqrt(s**2 - 4*e**2))/2)"
FAMILY, KIM = "L2", "ours, after kim2021lipschitz"
TURN, UNIT, LINE = [[3.0, 4.0], [-4.0, 3.0]], [[1.0, 0.0], [0.0, 1.0]], [[1.0]]
STRETCH = "tanh(u/2) + u/cosh(u/2)**2"
TOP = "u = findroot(lambda v: v*tanh(v/2) - 3/2, 2)"
HALF = float(evaluate(f"sqrt(u)/2 where {TOP}"))  # to the nearest float: the constant is stationary there
PAIR = (
    "The sum of two tokens is kept; their difference v goes to v tanh(u/2), u = |v|^2, so J is 1 on sums, "
    "h(u) = tanh(u/2) + u / cosh(u/2)^2 on differences along v, tanh(u/2) < 1 on those across."
)
RISE = "h' has the sign of 3/2 - u tanh(u/2)"


def distances(V):
    """Parameters of one head with A = I."""
    identity = [[float(i == j) for j in range(len(V))] for i in range(len(V))]
    return {"query": [identity], "key": [identity], "value": [V], "scale": 1.0, "score": "l2"}


def cases():
    """All cases of this module, in the order of the book."""
    return [*pairs(), biases(), between_clusters()]


def pairs():
    """Cases of two tokens, and copies of them."""
    return [
        case("l2-pair", FAMILY, f"3*({STRETCH}) where u = 4", f"{PAIR} V = 3.", [[1.0], [-1.0]], distances([[3.0]])),
        case(
            "l2-pair-30-copies",
            FAMILY,
            f"{STRETCH} where u = 4",
            f"{PAIR} Copies of equal number change nothing on means; on their differences J is u / (2 cosh(u/2)^2), "
            "less than h.",
            [[1.0], [-1.0]] * 30,
            distances(LINE),
        ),
        case(
            "l2-pair-ball",
            FAMILY,
            f"{STRETCH} where u = 1",
            f"{PAIR} {RISE}, so h is largest at the end of this ball, u = 4 R^2 = 1, where it is above 1.",
            [[0.5, 0.0], [-0.5, 0.0]],
            distances(UNIT),
            kind="ball",
            radius=0.5,
            source=KIM,
        ),
        case(
            "l2-pair-everywhere",
            FAMILY,
            f"5*({STRETCH}) where {TOP}",
            f"{PAIR} {RISE}: h is largest where that is 0. V is 5 times a rotation.",
            [[HALF, 0.0], [-HALF, 0.0]],
            distances(TURN),
            kind="ball",
            source=KIM,
        ),
        case(
            "l2-pair-masked-everywhere",
            FAMILY,
            f"{NORM} where {TOP}; p = 1/(1 + exp(-u)); a = p + 2*u*p*(1 - p); s = 1 + a**2 + (1 - a)**2; e = a",
            "The second output is x_1 + p(u) v: rows (1, 0), (1 - a, a) along v, a = p + 2 u p (1 - p), and with p for "
            "a across. p and a lie between 1/2 and the largest a, where u tanh(u/2) = 3/2; norms are convex, and at "
            "1/2 the norm, 1.144, is smaller.",
            [[HALF, 0.0], [-HALF, 0.0]],
            distances(UNIT),
            masked=True,
            kind="ball",
            source=KIM,
        ),
        case(
            "hard-l2",
            "hard",
            "5",
            "Far apart each token chooses itself and covariances vanish: J -> I (x) V.",
            [[8.0, 0.0], [0.0, 0.0], [0.0, -8.0]],
            distances(TURN),
            kind="limit",
        ),
    ]


def biases():
    """Cases of two tokens whose queries and keys have different biases."""
    return case(
        "l2-pair-biases",
        FAMILY,
        f"{NORM} where v = 1; c = 1/4; p = 1/(1 + exp(-v**2 - 2*c*v)); q = 1/(1 + exp(v**2 - 2*c*v)); "
        "a = p + 2*v*(v + c)*p*(1 - p); b = q + 2*v*(c - v)*q*(1 - q); "
        "s = a**2 + (1 - a)**2 + b**2 + (1 - b)**2; e = a - b",
        "Logits -(x_i - x_j + c)^2, c the bias of the queries less that of the keys. With v = x_1 - x_2 outputs are "
        "x_2 + p(v) v and x_2 + q(v) v, p and q what the tokens give the first: J has the rows (a, 1 - a), (b, 1 - b), "
        "a = (p v)', b = (q v)'.",
        [[0.5], [-0.5]],
        distances(LINE) | {"query_bias": [[0.75]], "key_bias": [[0.5]]},
        source=KIM,
    )


def between_clusters():
    """Cases of one token between two others."""
    formula = (
        f"max({NORM}, abs(w + 2*v - z)) where b = exp(-1); c = exp(-4); Y = 1 + 2*b; Z = 1 + b + c; q = b/Y; w = 1/Z; "
        "m = (1 - c)/Z; v = (1 + c)/Z - m**2; z = c/Z*(1 - 4*(1 + m)); f = 1/Y + 4*q; g = sqrt(2)*q*(1 - 2); "
        "h = sqrt(2)*b/Z*(1 - 2*m); i = w + 2*v + z; s = f**2 + g**2 + h**2 + i**2; e = f*i - g*h"
    )
    return case(
        "l2-between-two",
        FAMILY,
        formula,
        "Tokens 0, 1, -1. By reflection J is w + 2 v - z where the outer two part, and the matrix (f, g), (h, i) where "
        "they move together, from J_ij = P_ij (1 + 2 (x_j - m_i)(x_i - x_j)) + 2 delta_ij var_i.",
        [[0.0], [1.0], [-1.0]],
        distances(LINE),
        source=KIM,
    )
