"""Cases of inputs so large that each token attends to a single other token, up to e^-64."""

from lab.experiments.exact.case import case, head

LINE, SOURCE = [[1.0]], "castin2024smooth, Theorem 3.7 and 4.5; the limit itself is ours"
FAMILY = "hard"


def cases():
    """All cases of this module, in the order of the book."""
    common = {"kind": "limit", "source": SOURCE}
    why = (
        "As R grows token i chooses one m_i, f(x)_i -> V x_(m_i), and covariances vanish: "
        "|V| max_j (#{i: m_i = j})^(1/2)."
    )
    two = {"query": [LINE, [[-1.0]]], "key": [LINE] * 2, "value": [LINE] * 2, "scale": 1.0}
    return [
        case(
            "hard-leader",
            FAMILY,
            "2*sqrt(3)",
            f"{why} All choose the third.",
            line(1, 2, 4),
            head(LINE, [[2.0]]),
            **common,
        ),
        case(
            "hard-leader-query-bias",
            FAMILY,
            "2*sqrt(3)",
            f"{why} Biases of the queries grow more slowly than the logits: hard-leader.",
            line(1, 2, 4),
            head(LINE, [[2.0]]) | {"query_bias": [[-3.0]]},
            **common,
        ),
        case(
            "hard-leader-64",
            FAMILY,
            "8",
            f"{why} All 64 choose the last.",
            line(*[1] * 63, 2),
            head(LINE, LINE),
            **common,
        ),
        case(
            "hard-falling-masked",
            FAMILY,
            "sqrt(3)",
            f"{why} All choose the first.",
            line(4, 2, 1),
            head(LINE, LINE),
            masked=True,
            **common,
        ),
        case(
            "hard-rising-masked",
            FAMILY,
            "1",
            f"{why} Each chooses itself; without the mask all choose the last.",
            line(1, 2, 4),
            head(LINE, LINE),
            masked=True,
            **common,
        ),
        case(
            "hard-window-2",
            FAMILY,
            "sqrt(2)",
            f"{why} Each chooses the one before it, the first itself.",
            line(4, 2, 1),
            head(LINE, LINE),
            masked=True,
            window=2,
            **common,
        ),
        case(
            "hard-tie",
            FAMILY,
            "sqrt(3/2)",
            "All divide their attention between the two equal tokens, so covariances vanish: J -> 1 (0, 1/2, 1/2).",
            line(1, 2, 2),
            head(LINE, LINE),
            **common,
        ),
        case(
            "hard-heads-side-by-side",
            FAMILY,
            "sqrt(3)",
            "A = 1 chooses tokens 2, 2, 3 and A = -1 chooses 3, 3, 2: J^T J -> diag(0, 3, 3).",
            line(1, 2, -4),
            two,
            **common,
        ),
        case(
            "hard-heads-added",
            FAMILY,
            "sqrt(6)",
            "A = 1 chooses tokens 2, 2, 3 and A = -1 chooses 3, 3, 2: each row of the sum -> (0, 1, 1).",
            line(1, 2, -4),
            two | {"output": [LINE, LINE]},
            **common,
        ),
    ]


def line(*places):
    """Tokens on a line, scaled by eight."""
    return [[8.0 * place] for place in places]
