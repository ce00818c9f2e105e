"""Record of one input with a known constant, and the evaluation of its formula in many digits."""

import re

import mpmath

DIGITS = 30  # of each value, all correct
WORKING = 60
FUNCTIONS = ("sqrt", "exp", "cos", "acos", "cosh", "tanh", "findroot")  # mpmath functions allowed in a formula
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?")
FAMILIES = ("uniform", "equal tokens", "blind values", "two tokens", "query bias", "heads", "symmetry", "hard", "L2")
KINDS = ("local", "limit", "ball")


def evaluate(formula):
    """Number that a formula denotes, to `WORKING` digits.

    `formula`: a Python expression, optionally followed by ``where name = expression; name = expression``, in which each
    may use the names before it. Allowed are `FUNCTIONS`, max and abs; ``findroot(lambda u: ..., near)`` is a zero.
    """
    known = {name: getattr(mpmath, name) for name in FUNCTIONS}
    known |= {"max": max, "abs": abs, "mpf": mpmath.mpf, "__builtins__": {}}

    def number(expression):
        return eval(NUMBER.sub(r"mpf('\g<0>')", expression), known)  # our own formulas, not user input

    body, _, definitions = formula.partition(" where ")
    with mpmath.workdps(WORKING):
        for definition in filter(None, definitions.split("; ")):
            name, _, expression = definition.partition(" = ")
            known[name] = number(expression)
        return +mpmath.mpf(number(body))


def head(A, V):
    """Parameters of one head as in the theorems: logits x_i^T A^T x_j, values V x_j; A and V lists of rows."""
    d = len(A)
    identity = [[float(i == j) for j in range(d)] for i in range(d)]
    return {"query": [A], "key": [identity], "value": [V], "scale": 1.0}


def case(name, family, formula, proof, x, heads, *, weights=None, kind="local", radius=None, source="ours", **settings):
    """Record of one case, without its tolerances.

    `name`, `family`, `formula`, `proof`, `source`: a unique name; one of `FAMILIES`; as for `evaluate`; the reason in a
    line; a key of the bibliography with the statement, or "ours".
    `heads`: parameters of the attention, as for `lipnb.Attention`; omitted ones take the defaults in this function.
    `kind` ("local", "limit", "ball"): the constant at x; its limit along R x, from which x differs by less than 1e-20;
      or the largest constant on all sequences of as many tokens of norm at most `radius`, attained at x.
    `radius`: of the ball; None for all inputs.
    `**settings`: more parameters of the attention.
    """
    assert family in FAMILIES and kind in KINDS and (radius is None or kind == "ball"), name
    plain = {"output": None, "query_bias": None, "key_bias": None, "value_bias": None, "output_bias": None}
    attention = {**plain, "masked": False, "window": None, "score": "dot", **heads, **settings}
    order = ("query", "key", "value", *plain, "scale", "masked", "window", "score")
    assert attention.keys() == {*order}, name
    exact = evaluate(formula)
    return {
        "name": name,
        "family": family,
        "kind": kind,
        "radius": radius,
        "attention": {key: attention[key] for key in order},
        "x": x,
        "weights": weights,
        "value": float(mpmath.nstr(exact, 25)),
        "digits": mpmath.nstr(exact, DIGITS, strip_zeros=False),
        "formula": formula,
        "proof": proof,
        "source": source,
    }
