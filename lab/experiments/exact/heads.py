"""Cases with several heads, and symmetric inputs in the plane: the square and the fork."""

from lab.experiments.exact.case import case, head
from lab.experiments.exact.pairs import ANTIPODAL, MASKED, MASKED_WHERE, antipodal, clusters

LINE, UNIT = [[1.0]], [[1.0, 0.0], [0.0, 1.0]]
NORM = "sqrt((s + sqrt(s**2 - 4*e**2))/2)"


def cases():
    """All cases of this module, in the order of the book."""
    return [*alike(), *apart(), weighted(), *squares(), *forks()]


def alike():
    """Cases of equal heads."""

    def heads(count, output=None):
        return {"query": [LINE] * count, "key": [LINE] * count, "value": [LINE] * count, "scale": 1.0, "output": output}

    both, family, where = [[1.0], [-1.0]], "heads", antipodal("1").partition(" where ")[2]
    return [
        case(
            "three-heads-side-by-side",
            family,
            f"sqrt(3)*{ANTIPODAL} where {where}",
            "h equal heads side by side: J^T J is h times that of one, of opposite.",
            both,
            heads(3),
            source="castin2024smooth, Lemma 3.8",
        ),
        case(
            "three-heads-added",
            family,
            f"3*{ANTIPODAL} where {where}",
            "h equal heads with output matrices 1 are h times one head: opposite.",
            both,
            heads(3, [LINE] * 3),
            source="castin2024smooth, Lemma 3.8",
        ),
        case(
            "heads-subtracted",
            family,
            antipodal("1"),
            "Equal heads with output matrices 2 and -1 are one head: opposite.",
            both,
            heads(2, [[[2.0]], [[-1.0]]]),
        ),
        case(
            "outputs-orthogonal",
            family,
            f"5*sqrt(2)*{ANTIPODAL} where {where}",
            "Output matrices with orthogonal columns of length 5: J^T J is 25 times that of two heads side by side.",
            both,
            heads(2, [[[3.0], [4.0]], [[-4.0], [3.0]]]),
        ),
        case(
            "two-heads-masked",
            family,
            f"sqrt(2)*{MASKED} where {MASKED_WHERE}",
            "Two equal heads side by side: sqrt(2) times pair-masked.",
            [[1.0], [-0.5]],
            heads(2),
            masked=True,
        ),
    ]


def apart():
    """Cases of heads that read and write separate coordinates."""
    rows, family = [[[1.0, 0.0]], [[0.0, 1.0]]], "heads"
    reading = {"query": rows, "key": rows, "value": rows, "scale": 1.0}
    first, second = (f"max(1 + 4*{t}*{w}, abs(2*{p} - 1 + 8*{t}*{w}))" for t, p, w in ("tpw", "uqv"))
    where = "t = 1; p = 1/(1 + exp(-2*t)); w = p*(1 - p); u = 1/4; q = 1/(1 + exp(-2*u)); v = q*(1 - q)"
    why = "Each head reads one coordinate alone: J is a block for each, that of opposite at t = 1 and at t = 1/4"
    tokens = [[1.0, 0.5], [-1.0, -0.5]]
    return [
        case("heads-apart", family, f"max({first}, {second}) where {where}", f"{why}.", tokens, reading),
        case(
            "heads-apart-outputs",
            family,
            f"max(2*{first}, 3*{second}) where {where}",
            f"{why}, times 2 and 3 by the output matrices, which exchange the coordinates.",
            tokens,
            reading | {"output": [[[0.0], [2.0]], [[3.0], [0.0]]]},
        ),
    ]


def weighted():
    """Cases of two different heads, at tokens with weights."""
    pair = clusters("1", "-1/2", ("1/4", "3/4"), "1", copies=False).partition(" where ")[2]
    return case(
        "two-heads-weights",
        "heads",
        f"sqrt((s + 4 + sqrt((s + 4)**2 - 4*(e**2 + 4*f)))/2) where {pair}; "
        "f = (j*sqrt(b) - k*sqrt(a))**2 + (l*sqrt(b) - m*sqrt(a))**2",
        "The first head is that of pair-weights, with Jacobian M; the second, of A = 0 and V = 2, has 2 r r^T, "
        "r = (a^(1/2), b^(1/2)) of length 1. Side by side J^T J = M^T M + 4 r r^T, of trace s + 4 and determinant "
        "e^2 + 4 |M (b^(1/2), -a^(1/2))|^2.",
        [[1.0], [-0.5]],
        {"query": [LINE, [[0.0]]], "key": [LINE] * 2, "value": [LINE, [[2.0]]], "scale": 1.0},
        weights=[0.25, 0.75],
        source="castin2024smooth, Lemma C.5",
    )


def squares():
    """Cases of four tokens at the corners of a square, and copies of them."""
    corners = [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]
    formula = (
        f"max(m + 2*g, {NORM}) where t = TT; m = tanh(t/2); g = t*(1 - m**2)/2; c = (1 + m**2)/2; d = (1 - m**2)/2; "
        "s = (c + g + g*m)**2 + (d - g*m)**2 + d**2 + (c + g)**2; e = (c + g + g*m)*(c + g) - d*(d - g*m)"
    )
    why = (
        "Means are m x_i, covariances (1 - m^2)/2 of the squared length. By the symmetries of the square J is m + 2 g "
        "on three motions (outward; outward and inward in turn; turned to and fro), m on rotations, and twice the "
        "matrix with rows (c + g + g m, d - g m), (d, c + g) on motions along an axis."
    )
    doubled = [[2.0 * entry for entry in row] for row in corners]
    return [
        case("square", "symmetry", formula.replace("TT", "1"), why, corners, head(UNIT, UNIT)),
        case("square-large", "symmetry", formula.replace("TT", "4"), why, doubled, head(UNIT, UNIT)),
        case(
            "square-12-copies",
            "symmetry",
            formula.replace("TT", "1"),
            f"{why} Copies of equal number change nothing on means; on their differences J is g, less.",
            corners * 12,
            head(UNIT, UNIT),
        ),
    ]


def forks():
    """Cases of the fork: two prongs and tokens that cannot decide between them, with values across."""
    formula = (
        "max(sqrt((f + h + sqrt((f - h)**2 + 4*o**2))/2), sqrt((t*N*c*k)**2 + (k + 2*t*(l - k**2))**2), 2*q*t) where "
        "N = NN; t = TT; Z = exp(t) + exp(-t) + N; a = exp(-t)/Z; b = exp(t)/Z; c = 1/Z; k = b - a; l = a + b; "
        "q = 1/(2 + N*exp(-t)); x = sqrt(2*N)*q; y = 1 - 2*q - 2*q*t; i = -t*N*c*k; j = l - 2*a*t*(1 + k); "
        "r = sqrt(2*N)*c*(1 - t*k); f = (t*x)**2 + x**2 + y**2; h = i**2 + j**2 + r**2; o = -t*x*i + x*j + y*r"
    )
    why = (
        "A = -I, V = e2^T, prongs R e2 and -R e2, N tokens R e1, t = R^2. The reflection of e2 splits J: odd motions "
        "(prongs along e1 against each other, all along e2) have the rows (-t x, x, y) and (i, j, r), of Gram matrix "
        "f, o, h; even ones one row; differences of the N tokens 2 q t."
    )
    prongs = [[0.0, 1.0], [0.0, -1.0]]

    def at(R, N):
        return [[R * entry for entry in row] for row in prongs] + [[R, 0.0]] * N

    minus, across, family = [[-1.0, 0.0], [0.0, -1.0]], [[0.0, 1.0]], "symmetry"
    return [
        case("fork", family, formula.replace("NN", "4").replace("TT", "1"), why, at(1.0, 4), head(minus, across)),
        case(
            "fork-64", family, formula.replace("NN", "64").replace("TT", "9/4"), why, at(1.5, 64), head(minus, across)
        ),
        case(
            "fork-limit",
            "hard",
            "sqrt((f + 1 + sqrt((f - 1)**2 + 4*o**2))/2) where N = 4; t = 64; f = N/2*(t**2 + 1) + t**2; o = sqrt(N/2)",
            "The fork with each prong attending to the other and q = 1/2, its limit at t fixed in the other factors: "
            "rows (-t x, x, -t) and (0, 1, 0), x = sqrt(N/2). It grows like t sqrt(N/2).",
            at(8.0, 4),
            head(minus, across),
            kind="limit",
        ),
    ]
