"""Inputs with exactly known local Lipschitz constants, each with a short proof: tests of an implementation."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

import torch

from lipnb.attention import Attention

__all__ = ["ReferenceCase", "reference_cases"]

FILE = "reference_cases.json"
HEADS = ("query", "key", "value", "output", "query_bias", "key_bias", "value_bias", "output_bias")


@dataclass(frozen=True, eq=False)
class ReferenceCase:
    r"""An attention map, an input, and the exact constant of the map at this input.

    Attributes
    ----------
    name : str
        Unique name.
    family : str
        What determines the constant: "uniform", "equal tokens", "blind values" (values equal at all tokens),
        "two tokens", "query bias", "heads", "symmetry", "hard" (each token attends to a single one), "L2".
    attention : Attention
        The map, float64; ``attention.to(dtype=torch.float32)`` loses nothing.
    x : Tensor, shape (n, d)
        Tokens, float64; ``x.float()`` loses nothing except in the cases named in Notes.
    weights : Tensor, shape (n,), or None
        Token weights a: the constant is then :math:`\|D_a^{1/2} (D_X f_a) D_a^{-1/2}\|_2`.
    value : float
        The constant, rounded to the nearest float64 number.
    kind : {"local", "limit", "ball"}
        Meaning of the value: :math:`\|D_X f\|_2` at `x`; or its limit along multiples of `x`, which it equals at `x`
        up to 1e-20; or the largest constant over all inputs of n tokens of norm at most `radius`, attained at `x`.
    radius : float or None
        Radius of that ball; None for all inputs, and if `kind` is not "ball".
    tolerance : mapping of str to float
        Allowed relative error of an implementation, by precision: "float64", "float32". It is 64 units of rounding;
        where attention is not saturated, that times (1 + the largest logit).
    formula : str
        The exact value as a Python expression of sqrt, exp, cos, acos, cosh, tanh, max, abs and findroot (a function
        and where its root is near), its names after "where".
    digits : str
        The value in 30 digits.
    proof : str
        Short proof of the value.
    source : str
        Bibliography key and statement, or "ours".
    """

    name: str
    family: str
    attention: Attention
    x: torch.Tensor
    weights: torch.Tensor | None
    value: float
    kind: str
    radius: float | None
    tolerance: Mapping[str, float]
    formula: str
    digits: str
    proof: str
    source: str


def reference_cases() -> tuple[ReferenceCase, ...]:
    r"""All reference cases: inputs of attention at which the local Lipschitz constant is known exactly.

    They test any implementation of :math:`\|D_X f\|_2`: loop over the cases and compare the relative error of each with
    its tolerance. In each case, whatever its `kind`, the local constant at `x` has the given value.

    Returns
    -------
    tuple of ReferenceCase
        Cases of at most 80 tokens and at most 132 unknowns, in a fixed order.

    Notes
    -----
    The file ``reference_cases.json`` in the package can be read without lipnb: matrices are lists, all settings are
    written out, and the conventions are under the key "about". Its numbers are short binary fractions, exact in
    float32; only ``x`` of the cases named "...-everywhere" is rounded, where the constant is stationary. Every value is
    computed from its formula with sixty digits, by ``python -m lab cases`` in the repository.

    castin2024smooth, Lemma C.5 (weights), Lemma C.7, Theorems 3.7 and 4.5; the closed forms are ours.

    Examples
    --------
    A test of `local_lipschitz`; put another implementation in its place.

    >>> from lipnb import local_lipschitz, reference_cases
    >>> worst = 0.0
    >>> for case in reference_cases():
    ...     found = local_lipschitz(case.attention, case.x, weights=case.weights, method="dense").value.item()
    ...     worst = max(worst, abs(found / case.value - 1) / case.tolerance["float64"])
    >>> worst < 1
    True
    >>> case = next(case for case in reference_cases() if case.name == "averages-of-2")
    >>> case.formula, round(case.value, 6), case.attention.masked
    ('(1 + sqrt(5))/sqrt(2)', 2.288246, True)
    """
    listed = json.loads(files("lipnb").joinpath(FILE).read_text(encoding="utf-8"))["cases"]
    return tuple(_made(**one) for one in listed)


def _made(attention, x, weights, **rest):
    """A `ReferenceCase` from an entry of the file, with tensors in place of lists."""

    def tensor(entries):
        return None if entries is None else torch.tensor(entries, dtype=torch.float64)

    heads = {name: tensor(attention[name]) for name in HEADS}
    settings = {name: entry for name, entry in attention.items() if name not in HEADS}
    return ReferenceCase(attention=Attention(**heads, **settings), x=tensor(x), weights=tensor(weights), **rest)
