"""Two-sided, guaranteed bounds on the local Lipschitz constant of attention at an input."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lipnb.attention import Attention
from lipnb.attention.features import active_heads
from lipnb.attention.heads import check_attention
from lipnb.attention.units import in_units
from lipnb.bounds.columns import sizes_of_columns, upper_by_columns
from lipnb.bounds.rounded_linearization import RoundedLinearization
from lipnb.bounds.rounding import RoundingErrors
from lipnb.checks import number, whole
from lipnb.scaling import shifted
from lipnb.spectral import lanczos, start_vectors
from lipnb.spectral.answer import table_of
from lipnb.spectral.upper_norms import gamma

__all__ = ["Bracket", "certify"]

SMALL = 64  # tokens times width up to which the lower bound takes the whole Jacobian


@dataclass(frozen=True)
class Bracket:
    r"""Guaranteed bounds on local Lipschitz constants, and the parts of the upper bound.

    .. math:: \text{lower} \le \|D_X f\|_2 \le \text{upper}
        = \big(\|J \Pi\|_2^2 + (\text{query} + \text{key} + \text{value})^2\big)^{1/2} + \text{rounding}

    Attributes
    ----------
    lower, upper : Tensor, shape of the batch
        Guaranteed bounds, float64: the constant lies between them, rounding included.
    columns_norm : Tensor, shape of the batch
        :math:`\|J \Pi\|_2`, the norm of the Jacobian on the input directions taken column by column; 0 if none, and
        infinite if `upper` is, as all parts are.
    query, key, value : Tensor, shape of the batch
        Norms of the three terms of the Jacobian on all other input directions; upper bounds only together with
        `rounding`.
    rounding : Tensor, shape of the batch
        Rounding that the other parts do not include already.
    columns : Tensor of int, shape of the batch
        Number of input directions taken column by column; with all n d the bracket closes, up to rounding.

    Examples
    --------
    A table, with one row for each item of a batch (b, n, d):

    >>> import torch
    >>> from lipnb import Attention, certify
    >>> eye = torch.eye(3, dtype=torch.float64)
    >>> bracket = certify(Attention.from_matrices(eye, eye), torch.stack([eye, 2 * eye]))
    >>> [*bracket.table][:2], len(bracket.table)
    (['lower', 'upper'], 2)
    """

    lower: Tensor
    upper: Tensor
    columns_norm: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    rounding: Tensor
    columns: Tensor

    @property
    def table(self) -> Any:
        """The bracket as a pandas table, one row for each item of the batch."""
        return table_of(self)

    @property
    def ratio(self) -> Tensor:
        """The ratio upper / lower, at least 1; 1 if both are zero."""
        return torch.where(self.upper > 0, self.upper / self.lower, 1.0)


@torch.no_grad()
def certify(
    attention: Attention,
    x: Tensor,
    *,
    weights: Tensor | None = None,
    rtol: float = 1e-4,
    seed: int = 0,
    columns: int | None = None,
) -> Bracket:
    r"""Local Lipschitz constant of attention at tokens `x`, bracketed from below and above with guarantee.

    With S (n, r) and Y (d, s) orthonormal, E = I - S S^T and F = I - Y Y^T, the input directions split into those that
    :math:`E \otimes F` keeps and the rest, :math:`\Pi`, of dimension d r + (n - r) s, and

    .. math::
        \|J\|_2^2 \le \|J \Pi\|_2^2 + \|J (E \otimes F)\|_2^2 .

    The first is computed from its columns, the second bounded by `lipnb.bounds.three_terms`. The lower bound is
    :math:`\|J v\| / \|v\|` less its rounding, with a Ritz vector for v: any other v gives a lower bound, too.

    Parameters
    ----------
    attention : Attention
        Any heads with dot-product scores, plain or with features of transformers: rotary positions, shared keys,
        normalised queries and keys, capped logits, relative positions, sinks, any mask.
    x : Tensor, shape (..., n, d)
        Tokens; leading dimensions are a batch. Computed in float64 whatever their type.
    weights : Tensor, shape (n,) or (..., n), optional
        Positive token weights a; the bracket is then that of the norm of :math:`D_a^{1/2} J D_a^{-1/2}`.
    rtol : float
        Relative tolerance of the solver behind `lower`; it affects the tightness of `lower`, never its validity.
    seed : int
        Seed of the solver's start vector.
    columns : int, optional
        Maximal number of input directions to treat exactly; 0: closed form only; n d or more: all. By default as many
        as take seconds, and none for inputs so long and wide that only few would (n = 256, d = 384: none, as with 0).

    Returns
    -------
    Bracket
        Bounds and their parts, each of the batch shape, float64.

    Raises
    ------
    ValueError
        As `Attention.check_input`; if `attention` is not an `Attention` or has L2 scores, if `columns` is negative, or
        if `rtol` is not between 1e-14 and 1.
    TypeError
        If `columns` or `seed` is not an integer, or `rtol` not a number.

    Notes
    -----
    The terms are those of castin2024smooth, Lemma C.2; the bracket is derived in the book.

    Rounding is counted to every order: errors of projections and logits with all products of errors, any change of the
    probabilities that these errors allow, the change of the Jacobian for all such probabilities, and the arithmetic of
    columns, terms and norms. `lipnb.bounds.rounding` and the book have the proof line by line, and comments in the code
    cite these lines. Matrices and tokens are first scaled by powers of two, values and outputs by one for each head;
    heads whose values or outputs are zero are left out.

    Assumed, not proved, with u = 2^-53:

    - IEEE float64: additions, products, quotients and square roots rounded to the nearest number, gradual
      underflow (no flush to zero);
    - sums, norms and products of float64 matrices use additions and products of float64 only, fused or not, in any
      order: no Strassen, no lower precision (PyTorch lowers that of float32 products, not of these);
    - exp, expm1, log, tanh, cosh, hypot, powers and the reciprocal square root have a relative error of at most 4 u;
    - eigenvalues of a symmetric matrix of order p err by at most 8 p u times the sum of their moduli (its trace, if
      none is negative);
    - the triangular factor of QR is that of a matrix each of whose columns, of r entries, differs by at most 8 r u
      times its length;
    - a Cholesky factorisation of order b that succeeds is that of a matrix at most (8 b + 16) u times the trace away.

    Nothing is assumed of singular vectors, eigenvectors, inverses and the solver: the deviation of vectors from
    orthonormality, and of their products from the matrices they represent, is measured. ``make verify`` compares
    brackets with values in fifty digits.

    Cosines and sines of rotary positions are those of the map, in the type of its frequencies: they define the map.
    If float64 does not resolve the attention matrix, numbers leave its range, an iteration does not converge, or a
    width or the number of tokens exceeds :math:`2^{20}`, the answer is :math:`[0, \infty]`, not an error.

    Examples
    --------
    >>> import torch
    >>> from lipnb import Attention, certify
    >>> eye = torch.eye(3, dtype=torch.float64)
    >>> bracket = certify(Attention.from_matrices(eye, 2 * eye), torch.eye(4, 3, dtype=torch.float64))
    >>> round(bracket.lower.item(), 6), round(bracket.upper.item(), 6)  # few unknowns: all columns are exact
    (2.610362, 2.610362)
    """
    check_attention(attention, "certify")
    attention.check_score("certify")
    attention.check_input(x, weights)
    seed, columns = whole("seed", seed), None if columns is None else whole("columns", columns, 0)
    rtol = number("rtol", rtol)
    if not 1e-14 <= rtol < 1:
        raise ValueError(f"rtol must lie between 1e-14 and 1, got {rtol}.")
    attention, batch, (n, d) = attention.to(dtype=torch.float64), x.shape[:-2], x.shape[-2:]
    x = x.double()
    sizes = sizes_of_columns(attention, n, d, columns)
    sequences = x.reshape(-1, n, d)
    each = [None] * len(sequences) if weights is None else weights.double().expand(x.shape[:-1]).reshape(-1, n)
    items = [_of_sequence(attention, x, a, sizes, rtol, seed) for x, a in zip(sequences, each, strict=True)]
    fields = vars(items[0])
    return Bracket(**{name: torch.stack([vars(item)[name] for item in items]).reshape(batch) for name in fields})


def _without_columns(lower, upper):
    """The bracket [lower, upper] of a sequence, all parts equal to `upper`, without columns."""
    parts = dict.fromkeys(("columns_norm", "query", "key", "value", "rounding"), upper)
    return Bracket(lower=lower, upper=upper, **parts, columns=torch.tensor(0, device="cpu"))


def _of_sequence(attention, x, weights, sizes, rtol, seed):
    """The bracket of one sequence (n, d)."""
    zero, infinite = x.new_zeros(()), x.new_full((), torch.inf)
    if not active_heads(attention).any():
        return _without_columns(zero, zero)
    unknown = _without_columns(zero, infinite)
    heads_per_key = attention.heads // attention.groups
    attention, x, tokens, outputs = in_units(attention, x)
    if attention is None:
        return unknown
    try:
        found = _bracket(RoundedLinearization(attention, x, weights, heads_per_key=heads_per_key), sizes, rtol, seed)
    except torch.linalg.LinAlgError:  # numbers that are not finite, or no convergence
        return unknown
    if found is None:
        return unknown
    parts = {name: shifted(part, outputs - tokens) for name, part in vars(found).items() if name != "columns"}
    if not torch.isfinite(torch.stack([*parts.values()])).all():
        return unknown
    parts["lower"] = torch.nextafter(parts["lower"], zero)
    parts["upper"] = torch.nextafter(parts["upper"], infinite)
    return replace(found, **parts) if torch.isfinite(parts["upper"]) else unknown


def _bracket(at, sizes, rtol, seed):
    """The bracket in the units of `at`, before the last rounding; None if the attention matrix is not resolved."""
    errors = RoundingErrors(at)
    if not errors.resolved():
        return None
    found = upper_by_columns(at, errors, sizes)
    vector = _longest(at, found.size, rtol, seed)  # any vector gives a lower bound
    top = vector.abs().amax()
    vector = vector / torch.where(top > 0, top, 1)  # no square that counts for its length underflows
    size, image = torch.linalg.vector_norm(vector), torch.linalg.vector_norm(at.jvp(vector))
    stretch = image / torch.where(size > 0, size, 1)
    # two lengths and their quotient; `rounding` includes the error of the product, as that of one column
    lower = stretch * (1 - gamma(4 * at.x.numel() + 4 * image.numel() + 64)) - found.rounding
    return Bracket(
        lower=lower.clamp_min(0),
        upper=found.upper,
        columns_norm=found.columns_norm,
        **found.terms._asdict(),
        rounding=found.rounding,
        columns=torch.tensor(found.columns, device="cpu"),
    )


def _longest(at, size, rtol, seed):
    """A perturbation (1, n, d) that the Jacobian stretches strongly: from the matrix if small, else by Lanczos."""
    x = at.x
    if not 0 < size < torch.inf:
        return torch.ones_like(x)[None]
    if x.numel() <= SMALL:
        images = at.jvp(torch.eye(x.numel(), dtype=x.dtype, device=x.device).view(-1, *x.shape)).flatten(1) / size
        return torch.linalg.eigh(images @ images.mT).eigenvectors[:, -1].view(1, *x.shape)

    def gram(u):
        return (at.vjp(at.jvp(u.view(1, *x.shape)) / size) / size).view_as(u)

    start = start_vectors(1, x.numel(), seed=seed, dtype=x.dtype, device=x.device)
    try:
        return lanczos(gram, start, rtol=rtol).vector.view(1, *x.shape)
    except ValueError:  # products leave the range of float64
        return torch.ones_like(x)[None]
