"""Inputs with exactly known local Lipschitz constants, each with its proof in a line: tests of an implementation."""

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
    r"""An attention map, an input, and the constant of the map there.

    Attributes
    ----------
    name : str
        Its own.
    family : str
        What decides the constant: "uniform", "equal tokens", "blind values" (values that are the same at all tokens),
        "two tokens", "query bias", "heads", "symmetry", "hard" (attention to one token each), "L2".
    attention : Attention
        Float64; ``attention.to(dtype=torch.float32)`` loses nothing.
    x : Tensor, shape (n, d)
        Tokens, float64; ``x.float()`` loses nothing but in the cases named in Notes.
    weights : Tensor, shape (n,), or None
        Token weights a: the constant is then :math:`\|D_a^{1/2} (D_X f_a) D_a^{-1/2}\|_2`.
    value : float
        The constant, the float64 number nearest to the exact one.
    kind : {"local", "limit", "ball"}
        Of the value: :math:`\|D_X f\|_2` at `x`; or its limit along multiples of `x`, which at `x` it equals up to
        1e-20; or the largest constant over all inputs of as many tokens of norm at most `radius`, attained at `x`.
    radius : float or None
        Of that ball; None for all inputs, and where `kind` is not "ball".
    tolerance : mapping of str to float
        Relative error that an implementation may have, by precision: "float64", "float32". It is 64 units of rounding,
        and where attention is not saturated that times one more than the largest logit.
    formula : str
        The exact value as a Python expression of sqrt, exp, cos, acos, cosh, tanh, max, abs and findroot (a function
        and where its root is near), its names after "where".
    digits : str
        The value in 30 digits.
    proof : str
        Why it is so.
    source : str
        Key of the bibliography and statement, or "ours".
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

    They are for tests of any implementation of :math:`\|D_X f\|_2`: one loop over them, a relative error each, compared
    with the tolerance. At each, whatever its `kind`, the local constant at `x` has that value.

    Returns
    -------
    tuple of ReferenceCase
        Of at most 80 tokens and at most 132 unknowns; the order does not change.

    Notes
    -----
    The file is ``reference_cases.json`` in the package, readable without it: matrices as lists, all settings written
    out, its conventions under the key "about". Its numbers are short binary fractions, so that float32 holds them; only
    ``x`` of the cases named "...-everywhere" is rounded, where the constant is stationary. Every value is made from its
    formula in sixty digits, by ``python -m lab cases`` in the repository.

    castin2024smooth, Lemma C.5 (weights), Lemma C.7, Theorems 3.7 and 4.5; the closed forms are ours.

    Examples
    --------
    Our own implementation; another one takes the place of `local_lipschitz`.

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
    """A case of the file with tensors in place of lists."""

    def tensor(entries):
        return None if entries is None else torch.tensor(entries, dtype=torch.float64)

    heads = {name: tensor(attention[name]) for name in HEADS}
    settings = {name: entry for name, entry in attention.items() if name not in HEADS}
    return ReferenceCase(attention=Attention(**heads, **settings), x=tensor(x), weights=tensor(weights), **rest)
