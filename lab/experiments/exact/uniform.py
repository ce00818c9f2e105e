"""Cases determined by the attention matrix alone: no logits, equal tokens, or equal values."""

from lab.experiments.exact.case import case, head

SHEAR, SYMMETRIC, TURN = [[1.0, 1.0], [0.0, 1.0]], [[2.0, 1.0], [1.0, 2.0]], [[3.0, 4.0], [-4.0, 3.0]]
ZERO, LINE = [[0.0, 0.0], [0.0, 0.0]], [[1.0]]
TILTED = [[1.0, 2.0], [0.0, -1.0]]
THREE = [[1.0, 0.5], [-2.0, 1.0], [0.25, -1.0]]
CESARO_3 = "sqrt(11/18 + 8/9*cos(acos(943/1024)/3))"
BIASES = {"query_bias": [[1.0, -2.0]], "key_bias": [[0.5, 1.0]], "value_bias": [[3.0, -1.0]], "output_bias": [4.0, 2.0]}


def cases():
    """All cases of this module, in the order of the book."""
    return [*uniform(), *equal_tokens(), *blind()]


def uniform():
    """Cases without logits: the output is linear in the tokens."""
    mean = "All logits are 0: every output is the mean of V x_j, so J = (1/n) 1 1^T (x) V, of norm |V|, at every input."
    masked = "All logits are 0: J = C (x) V with the averages C_ij = 1/i, j <= i, at every input."
    everywhere = {"kind": "ball"}
    return [
        case("uniform", "uniform", "(1 + sqrt(5))/2", mean, THREE, head(ZERO, SHEAR), **everywhere),
        case(
            "uniform-32-tokens",
            "uniform",
            "5",
            mean,
            [[0.25 * i, (-1.0) ** i] for i in range(32)],
            head(ZERO, TURN),
            **everywhere,
        ),
        case(
            "averages-of-2",
            "uniform",
            "(1 + sqrt(5))/sqrt(2)",
            f"{masked} For n = 2, |C|^2 is the larger root of z^2 - 3 z/2 + 1/4; V = 2.",
            [[1.0], [-3.0]],
            head([[0.0]], [[2.0]]),
            masked=True,
            **everywhere,
        ),
        case(
            "averages-of-3",
            "uniform",
            CESARO_3,
            f"{masked} For n = 3, |C|^2 is the largest root of z^3 - 11 z^2/6 + 19 z/36 - 1/36, here by cosines.",
            [[1.0], [-3.0], [2.0]],
            head([[0.0]], LINE),
            masked=True,
            **everywhere,
        ),
        case(
            "averages-of-3-window-3",
            "uniform",
            CESARO_3,
            "A window as long as the sequence hides nothing more than the mask: averages-of-3.",
            [[1.0], [-3.0], [2.0]],
            head([[0.0]], LINE),
            masked=True,
            window=3,
            **everywhere,
        ),
        case(
            "window-2",
            "uniform",
            "sqrt(z)/2 where z = (8 + 2*sqrt(19)*cos(acos(26/(19*sqrt(19)))/3))/3",
            "All logits are 0: J = B, B_11 = 1 and B_ii = B_i,i-1 = 1/2; 4 |B|^2 is the largest root of "
            "z^3 - 8 z^2 + 15 z - 4.",
            [[1.0], [-3.0], [2.0]],
            head([[0.0]], LINE),
            masked=True,
            window=2,
            **everywhere,
        ),
        case(
            "window-1",
            "uniform",
            "(1 + sqrt(5))/2",
            "Each token sees itself alone: f(x)_i = V x_i and J = I (x) V, for any A.",
            THREE,
            head(TILTED, SHEAR),
            masked=True,
            window=1,
            **everywhere,
        ),
        case(
            "uniform-weights",
            "uniform",
            "3",
            "All logits are 0: D^(1/2) J D^(-1/2) = r r^T (x) V with r_j = a_j^(1/2), a unit vector since the weights "
            "a have the sum 1.",
            THREE,
            head(ZERO, SYMMETRIC),
            weights=[0.5, 0.25, 0.25],
            source="castin2024smooth, Lemma C.5",
            **everywhere,
        ),
        case(
            "averages-of-2-weights",
            "uniform",
            "sqrt((7 + sqrt(13))/8)",
            "With weights 1 - b, b and a mask, D^(1/2) J D^(-1/2) has the rows (1, 0) and ((b - b^2)^(1/2), b): its "
            "squared norm is the larger root of z^2 - (1 + b) z + b^2, b = 3/4.",
            [[1.0], [-3.0]],
            head([[0.0]], LINE),
            weights=[0.25, 0.75],
            masked=True,
            source="castin2024smooth, Lemma C.5",
            **everywhere,
        ),
    ]


def equal_tokens():
    """Cases of equal tokens, where a change of the logits has no effect."""
    mean = "At equal tokens x_j - m = 0, so the logits have no first-order effect and J is as at A = 0:"
    token = [1.0, -0.5]
    two_heads = {"query": [[[1.0, 2.0]], [[-1.0, 0.5]]], "key": [[[0.5, 1.0]], [[2.0, 1.0]]], "scale": 1.0}
    distances = {"query": [TILTED], "key": [SHEAR], "value": [SYMMETRIC], "scale": 0.5, "score": "l2"}
    return [
        case("equal-tokens", "equal tokens", "3", f"{mean} |V|.", [token] * 4, head(TILTED, SYMMETRIC)),
        case(
            "equal-tokens-biases",
            "equal tokens",
            "3",
            f"{mean} |V|, whatever the biases.",
            [token] * 4,
            head(TILTED, SYMMETRIC) | BIASES,
        ),
        case("equal-tokens-40", "equal tokens", "5", f"{mean} |V|.", [token] * 40, head(TILTED, TURN)),
        case(
            "equal-tokens-weights",
            "equal tokens",
            "3",
            f"{mean} uniform-weights.",
            [token] * 3,
            head(TILTED, SYMMETRIC),
            weights=[0.125, 0.375, 0.5],
            source="castin2024smooth, Lemma C.5",
        ),
        case(
            "equal-tokens-masked",
            "equal tokens",
            f"5*{CESARO_3}",
            f"{mean} averages-of-3 times |V|.",
            [token] * 3,
            head(TILTED, TURN),
            masked=True,
        ),
        case("equal-tokens-l2", "equal tokens", "3", f"{mean} |V|.", [token] * 3, distances),
        case(
            "equal-tokens-two-heads",
            "equal tokens",
            "sqrt(5)",
            f"{mean} |W1 V1 + W2 V2|, here of the matrix with rows (1, 2), (2, -1).",
            [token] * 3,
            two_heads | {"value": [[[1.0, 2.0]], [[2.0, -1.0]]], "output": [[[1.0], [0.0]], [[0.0], [1.0]]]},
        ),
        case(
            "equal-tokens-side-by-side",
            "equal tokens",
            "sqrt(3 + sqrt(5))",
            f"{mean} the norm of V1 above V2, here of the matrix with rows (1, 2), (1, 0).",
            [token] * 3,
            two_heads | {"value": [[[1.0, 2.0]], [[1.0, 0.0]]]},
        ),
        case(
            "one-token",
            "equal tokens",
            "2",
            "One token attends to itself: f(x) = (W1 V1 + W2 V2) x + biases at every input, here the matrix of ones.",
            [token],
            two_heads
            | {
                "value": [SHEAR, [[1.0, 0.0], [0.0, 0.0]]],
                "output": [[[1.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 0.0]]],
                "query_bias": [[1.0], [-2.0]],
                "value_bias": [[1.0, -1.0], [0.5, 2.0]],
            },
            kind="ball",
        ),
    ]


def blind():
    """Cases of values that are the same at all tokens: the Jacobian is the attention matrix times V."""
    why = "V x_j is the same for all j, so only averages move: J = P (x) V."
    pair, V, across = [[1.0, 1.0], [-1.0, 1.0]], [[0.0, 3.0]], [[1.0, 0.0], [0.0, 0.0]]
    unit = [[float(i == j) for j in range(8)] for i in range(8)]
    return [
        case(
            "blind-pair",
            "blind values",
            "3",
            f"{why} P is symmetric with rows of sum 1: |P| = 1.",
            pair,
            head(across, V),
        ),
        case(
            "blind-pair-masked",
            "blind values",
            "3*sqrt((s + sqrt(s**2 - 4*p**2))/2) where p = 1/(1 + exp(-2)); s = 1 + (1 - p)**2 + p**2",
            f"{why} P has the rows (1, 0), (1 - p, p): trace of P^T P is s, determinant p^2.",
            pair,
            head(across, V),
            masked=True,
        ),
        case(
            "blind-pair-one-query",
            "blind values",
            "3*sqrt(2*(p**2 + (1 - p)**2)) where p = 1/(1 + exp(-2))",
            f"{why} Without A and with a bias of the queries all rows of P are (p, 1 - p).",
            pair,
            head(ZERO, V) | {"query_bias": [[1.0, 0.0]]},
        ),
        case(
            "blind-simplex",
            "blind values",
            "sqrt(8)",
            f"{why} Orthogonal tokens of one length: P is symmetric with rows of sum 1, |P| = 1; V = (1, ..., 1).",
            unit,
            head(unit, [[1.0] * 8]),
        ),
        star(),
    ]


def star(centre=3, leaves=2):
    """The star of L2 attention, with values that are equal at all tokens."""
    a, m = centre, leaves
    tokens = [[0.0] * m + [1.0] for _ in range(a)] + [[float(i == j) for j in range(m)] + [1.0] for i in range(m)]
    identity = [[float(i == j) for j in range(m + 1)] for i in range(m + 1)]
    return case(
        "blind-star",
        "blind values",
        f"max(sqrt((s + sqrt(s**2 - 4*d**2))/2), (1 - c)/Z) where a = {a}; m = {m}; b = exp(-1); c = exp(-2); "
        "Y = a + m*b; Z = 1 + a*b + (m - 1)*c; "
        "s = (a**2 + a*m*b**2)/Y**2 + (a*m*b**2 + (1 + (m - 1)*c)**2)/Z**2; "
        "d = a*(1 + (m - 1)*c - m*b**2)/(Y*Z)",
        "V x_j is the same for all j: J = P (x) V. a tokens at 0, m leaves at e_i, logits minus squared distances. On "
        "means of centre and leaves P is 2 by 2 with P^T P of trace s, determinant d^2; on differences of leaves it is "
        "(1 - c)/Z, on those of the centre 0.",
        tokens,
        {"query": [identity], "key": [identity], "value": [[[0.0] * m + [1.0]]], "scale": 1.0, "score": "l2"},
        source="ours, after the star of L2 attention",
    )
