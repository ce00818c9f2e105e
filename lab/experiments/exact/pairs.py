"""Cases of two tokens, or copies of two: the Jacobian consists of a few 2 by 2 matrices."""

from lab.experiments.exact.case import case, evaluate, head

LINE = [[1.0]]
ANTIPODAL = "max(1 + 4*t*w, abs(2*p - 1 + 8*t*w))"
# two tokens 1 and -1/2, A = V = 1, masked
MASKED = "sqrt((s + sqrt(s**2 - 4*e**2))/2)"
MASKED_WHERE = "p = 1/(1 + exp(3/4)); w = p*(1 - p); r = p - 3/4*w; e = 1 - p + 3*w; s = 1 + r**2 + e**2"
NORM = "sqrt((s + sqrt(s**2 - 4*e**2))/2)"  # of a 2 by 2 matrix with sum of squares s and determinant e
BY_HAND = (
    "J = V [P_ij (I + (x_j - m_i)(A x_i)^T) + delta_ij Sigma_i A], written out; s is the sum of its squares and e its "
    "determinant."
)
COPIES = (
    "Copies: on their means, the weighted Jacobian of two points; on differences of copies of x_i, V Sigma_i A alone."
)


def antipodal(t):
    """Formula for tokens x, -x on a line, with t = A x^2."""
    return f"{ANTIPODAL} where t = {t}; p = 1/(1 + exp(-2*t)); w = p*(1 - p)"


def clusters(first, second, weights, alpha, *, copies):
    """Formula for two weighted points on a line, A = alpha, V = 1; or for copies of the second."""
    definitions = {
        "x": first,
        "y": second,
        "a": weights[0],
        "b": weights[1],
        "c": alpha,
        "p": "a/(a + b*exp(-c*x*(x - y)))",
        "q": "a/(a + b*exp(-c*y*(x - y)))",
        "v": "c*p*(1 - p)*(x - y)",
        "w": "c*q*(1 - q)*(x - y)",
        "j": "p + v*(2*x - y)",
        "k": "(1 - p - v*x)*sqrt(a/b)",
        "l": "(q + w*y)*sqrt(b/a)",
        "m": "1 - q + w*(x - 2*y)",
        "s": "j**2 + k**2 + l**2 + m**2",
        "e": "j*m - k*l",
    }
    where = "; ".join(f"{name} = {value}" for name, value in definitions.items())
    return f"{f'max({NORM}, abs(w)*abs(x - y))' if copies else NORM} where {where}"


def cases():
    """All cases of this module, in the order of the book."""
    return [*opposite(), *any_two(), *query_bias()]


def opposite():
    """Cases of tokens x and -x."""
    why = (
        "P has the rows (p, 1 - p), (1 - p, p) and J commutes with the exchange: 1 + 4 t w on sums, 2 p - 1 + 8 t w on "
        "differences, w = p (1 - p), t = A x^2."
    )
    both, family = [[1.0], [-1.0]], "two tokens"
    plane = (
        "max(sqrt((s + sqrt(s**2 - 4*e**2))/2), sqrt((u + sqrt(u**2 - 4*f**2))/2)) where "
        "p = 1/(1 + exp(-1/2)); w = p*(1 - p); d = 2*p - 1; e = 1 + w; s = e**2 + 64*w**2 + 1; "
        "f = (d + 2*w)*d; u = (d + 2*w)**2 + 64*w**2 + d**2"
    )
    return [
        case("opposite", family, antipodal("1"), why, both, head(LINE, LINE)),
        case("opposite-negative", family, antipodal("-2"), why, both, head([[-2.0]], LINE)),
        case(
            "opposite-40-copies",
            family,
            antipodal("1"),
            f"{COPIES} The first is that of one copy each, as both have the weight 1/2; the second is 4 t w, less.",
            both * 40,
            head(LINE, LINE),
        ),
        case(
            "opposite-key-bias",
            family,
            antipodal("1"),
            "A bias of the keys adds the same to all logits of a row: opposite.",
            both,
            head(LINE, LINE) | {"key_bias": [[1.5]]},
        ),
        case(
            "opposite-value-bias",
            family,
            antipodal("1"),
            "Rows of P have the sum 1, so a bias of the values or the output adds a constant: opposite.",
            both,
            head(LINE, LINE) | {"value_bias": [[2.0]], "output_bias": [-7.0]},
        ),
        case(
            "opposite-scale",
            family,
            f"3*{antipodal('1/2')}",
            f"{why} Four rows of ones as queries and keys and the factor 1/sqrt(4) make A = 2; x = 1/2; V = 3.",
            [[0.5], [-0.5]],
            {"query": [LINE * 4], "key": [LINE * 4], "value": [[[3.0]]], "scale": 0.5},
        ),
        case(
            "opposite-in-the-plane",
            family,
            plane,
            "As opposite with x = e1, A with rows (1/4, 2), (0, -1): on sums I + 4 w x (A^T x)^T, on differences "
            "(2 p - 1) I + 4 w x ((A + A^T) x)^T.",
            [[1.0, 0.0], [-1.0, 0.0]],
            head([[0.25, 2.0], [0.0, -1.0]], [[1.0, 0.0], [0.0, 1.0]]),
        ),
        case(
            "opposite-square-keys",
            family,
            plane,
            "K^T Q is the A of opposite-in-the-plane, for queries Q with rows (1/4, 2), (-1/4, -3) and keys K with "
            "rows (1, 1), (0, 1).",
            [[1.0, 0.0], [-1.0, 0.0]],
            head([[0.25, 2.0], [-0.25, -3.0]], [[1.0, 0.0], [0.0, 1.0]]) | {"key": [[[1.0, 1.0], [0.0, 1.0]]]},
        ),
    ]


def any_two():
    """Cases of two tokens on a line, alone, masked, weighted or in copies."""
    family, tokens, one = "two tokens", [[1.0], [-0.5]], head(LINE, LINE)
    lemma = "castin2024smooth, Lemma C.7"
    return [
        case("pair", family, clusters("1", "-1/2", (1, 1), "1", copies=False), BY_HAND, tokens, one),
        case(
            "pair-masked",
            family,
            f"{MASKED} where {MASKED_WHERE}",
            "The first token sees itself: J has the rows (1, 0), (r, e), with p the attention of the second to the "
            "first; s is the sum of its squares and e its determinant.",
            tokens,
            one,
            masked=True,
        ),
        case(
            "pair-weights",
            family,
            clusters("1", "-1/2", ("1/4", "3/4"), "1", copies=False),
            f"{BY_HAND} Entries (1, 2) and (2, 1) times the roots of the quotients of weights.",
            tokens,
            one,
            weights=[0.25, 0.75],
            source="castin2024smooth, Lemma C.5",
        ),
        case(
            "pair-copies",
            family,
            clusters("1", "-1/2", (1, 3), "1", copies=True),
            f"{COPIES} {BY_HAND}",
            [tokens[0], *[tokens[1]] * 3],
            one,
        ),
        case(
            "two-clusters-negative",
            family,
            clusters("-1", "1", (1, 4), "-1", copies=True),
            f"{COPIES} {BY_HAND}",
            [[-1.0], *[[1.0]] * 4],
            head([[-1.0]], LINE),
            source=lemma,
        ),
        case(
            "two-clusters-negative-60",
            family,
            clusters("-1", "1", (1, 59), "-1", copies=True),
            f"{COPIES} {BY_HAND}",
            [[-1.0], *[[1.0]] * 59],
            head([[-1.0]], LINE),
            source=lemma,
        ),
        case(
            "two-clusters-positive",
            family,
            clusters("2", "1", (1, 4), "1", copies=True),
            f"{COPIES} {BY_HAND}",
            [[2.0], *[[1.0]] * 4],
            one,
            source=lemma,
        ),
    ]


def query_bias():
    """Cases in which the bias of the queries matters."""
    family, only = "query bias", head([[0.0]], LINE) | {"query_bias": [[1.0]]}
    slope = "p = 1/(1 + exp(-u)); a = p + p*(1 - p)*u"
    rows = (
        "A = 0: the logits are c x_j in each row, and with u = c (x_1 - x_2) each row of J is (a, 1 - a), "
        "a = p + p (1 - p) u."
    )
    most = "a' = p (1 - p) (2 - u tanh(u/2)), so a is largest where u tanh(u/2) = 2"
    top = "u = findroot(lambda v: v*tanh(v/2) - 2, 2.4)"
    half = float(evaluate(f"u/2 where {top}"))  # to the nearest float: the constant is stationary there
    spread = "Norms are convex and 1 - a(u) = a(-u): the largest is at an end of the range of a."
    masked = "sqrt((s + sqrt(s**2 - 4*(1 - a)**2))/2)"
    return [
        case(
            "one-query",
            family,
            f"sqrt(2*(a**2 + (1 - a)**2)) where u = 2; {slope}",
            f"{rows} {most}, beyond the u <= 2 of this ball. {spread}",
            [[1.0], [-1.0]],
            only,
            kind="ball",
            radius=1.0,
        ),
        case(
            "one-query-everywhere",
            family,
            f"sqrt(2*(a**2 + (1 - a)**2)) where {top}; {slope}",
            f"{rows} {most}. {spread}",
            [[half], [-half]],
            only,
            kind="ball",
        ),
        case(
            "one-query-masked",
            family,
            f"{masked} where u = 2; {slope}; s = 1 + a**2 + (1 - a)**2",
            f"{rows} With the mask the first row is (1, 0). {most}, beyond this ball. Norms are convex: the largest is "
            "at an end of the range of a, that with the smaller determinant 1 - a.",
            [[1.0], [-1.0]],
            only,
            masked=True,
            kind="ball",
            radius=1.0,
        ),
        case(
            "queries-cancelled",
            family,
            "2 + sqrt(5)",
            "A x_i + c = 0 at all tokens, so P_ij = 1/n and J_ij = I/n + delta_ij Sigma A: on sums the matrix with "
            "rows (1, 0), (4, 1), on differences its lower left entry alone.",
            [[1.0, 2.0], [1.0, -2.0], [1.0, 2.0], [1.0, -2.0]],
            head([[0.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]) | {"query_bias": [[0.0, -1.0]]},
        ),
    ]
