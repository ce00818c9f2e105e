"""Inputs of attention with known constants: the file that `lipnb.reference_cases` reads, made from closed forms.

``python -m lab cases`` makes it. No value is typed: each is computed by its formula in sixty digits, and for small
inputs compared with the definition of the constant in fifty digits before the file is written.
"""

import json

import mpmath

from lab.experiments.exact import distances, heads, limits, pairs, uniform
from lab.experiments.exact.case import FUNCTIONS, evaluate
from lab.experiments.exact.definition import WIDEST, constant

__all__ = ["ABOUT", "FILE", "FUNCTIONS", "ROUNDINGS", "WIDEST", "cases", "disagreement", "text"]

MODULES = (uniform, pairs, heads, limits, distances)
FILE = "lipnb/reference_cases.json"
ROUNDINGS = 64  # allowed error of a value, in units of rounding
EPS = {"float64": 2.0**-52, "float32": 2.0**-23}
ABOUT = (
    "Inputs of attention with exactly known local Lipschitz constants: the largest singular value of the Jacobian "
    "of the map from all tokens x (n, d) to all outputs (n, m). With weights a the logits have log a_j added and "
    "the Jacobian J becomes D^(1/2) J D^(-1/2), D = diag(a). Output i is output_bias + sum over heads h of "
    "output[h] sum_j P_ij (value[h] x_j + value_bias[h]), heads side by side where output is null; row i of P is "
    "the softmax over j of the logits scale * (query[h] x_i + query_bias[h]) . (key[h] x_j + key_bias[h]), score "
    "dot, or minus scale times the squared distance of the two, score l2. masked: i sees j <= i; window: and j > "
    "i - window. value: the constant at x (kind local), its limit along multiples of x (of fork-limit: as its "
    "attention hardens, other factors held), from which it differs by less than 1e-20 (limit), or the largest constant "
    "at n tokens of norm at most radius, null for all, attained at x (ball). formula: a Python expression and, after "
    "where, its definitions in order; sqrt, exp, cos, acos, cosh, tanh, max, abs are functions of numbers, "
    "findroot(function, near) is the zero of a function near a number. "
    "tolerance: relative, of an implementation in that precision."
)


def cases():
    """All cases, in the order and format of the file."""
    return [one | {"tolerance": _tolerance(one)} for module in MODULES for one in module.cases()]


def _tolerance(one):
    """Relative tolerance: `ROUNDINGS`, times the magnification of logit roundings where P is not 0, 1/2 or 1."""
    t = 0.0 if one["kind"] == "limit" else _largest_logit(one["attention"], one["x"])
    return {name: float(f"{ROUNDINGS * eps * (1 + t):.1e}") for name, eps in EPS.items()}


def _largest_logit(f, x):
    def rows(name, h):
        bias = f[f"{name}_bias"][h] if f[f"{name}_bias"] else [0.0] * len(f[name][h])
        return [
            [sum(w * e for w, e in zip(row, token, strict=True)) + b for row, b in zip(f[name][h], bias, strict=True)]
            for token in x
        ]

    largest = 0.0
    for h in range(len(f["query"])):
        for q in rows("query", h):
            for k in rows("key", h):
                pairs = [*zip(q, k, strict=True)]
                score = sum(a * b for a, b in pairs) if f["score"] == "dot" else sum((a - b) ** 2 for a, b in pairs)
                largest = max(largest, abs(f["scale"] * score))
    return largest


def disagreement(one):
    """Relative difference between the formula of a case and the definition, in many digits; None for large inputs."""
    if len(one["x"]) * len(one["x"][0]) > WIDEST:
        return None
    with mpmath.workdps(50):
        return float(abs(constant(one) / evaluate(one["formula"]) - 1))


def text(listed):
    """Text of the file: one line for each entry of each case."""
    lines = [",\n".join(f"   {json.dumps(key)}: {json.dumps(entry)}" for key, entry in one.items()) for one in listed]
    inner = ",\n".join(f"  {{\n{line}\n  }}" for line in lines)
    return f'{{\n "version": 1,\n "about": {json.dumps(ABOUT)},\n "cases": [\n{inner}\n ]\n}}\n'
