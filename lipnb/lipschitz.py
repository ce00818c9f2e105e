"""Local Lipschitz constant of a map of tokens: the largest singular value of its Jacobian at an input."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from lipnb.attention import Attention
from lipnb.checks import as_tensor, check_list, check_list_of_weights, check_tolerance, check_weights, number, whole
from lipnb.jacobian import gemm, singular_pair
from lipnb.jacobian.autodiff import bilinear_form, check_map
from lipnb.jacobian.operators import AutodiffGram, DenseGram, double_operator, operator_of, operators_of
from lipnb.spectral import SpectralNorm, lanczos, power_iteration, start_vectors
from lipnb.spectral.answer import each_field, joined, put, table_of
from lipnb.spectral.baselines import dense_norm
from lipnb.spectral.vectors import NotFinite

__all__ = ["LocalLipschitz", "differentiable_lipschitz", "local_lipschitz"]

STEPS = {"lanczos": 300, "power": 1000}


@dataclass(frozen=True)
class LocalLipschitz:
    """Local Lipschitz constants of a batch of inputs, with bounds and the course of the computation.

    Attributes
    ----------
    value : Tensor, shape of the batch
        Lower bound on the local constant, up to rounding. If `converged`, it is at most ``1.25 rtol`` below the
        constant (``rtol + 16 eps`` if rtol is below 64 eps), apart from the rounding of attention that `upper` counts
        (in float32 at most rtol): with the probability of `upper`; by power iteration likely, by the dense method
        certainly. It has no gradient, so ``loss + value`` trains as `loss` alone; a
        penalty is `lipnb.differentiable_lipschitz`.
    residual : Tensor, shape of the batch
        Relative residual of the singular pair, see `lipnb.spectral.SpectralNorm`.
    steps : Tensor of int, shape of the batch
        Products with the Jacobian and its transpose until the item stopped, those in float32 before a repetition in
        float64 included; Lanczos takes one more for `value`. 0 for the dense method.
    converged : Tensor of bool, shape of the batch
        Whether the stopping rule was met. A value that did not converge is still a lower bound: allow more steps; if
        that changes nothing, the precision is the limit: use float64 or a larger `rtol`.
    upper : Tensor, shape of the batch
        Upper bound on the local constant, up to a relative rounding of 16 eps. For a single item, and an input not
        chosen by looking at answers from this start, it fails with probability at most ``1 - confidence`` over the
        random start if products are exact. Rounding in float64 adds less than 2e-7 to that probability at the default
        options. In float32, and for a much smaller rtol, the bound assumes that rounding of products acts like noise:
        its part along the top singular vector does not depend on the start (see `lipnb.spectral.lanczos`).
        Of an `Attention`, the rounding of queries, keys, values and attention probabilities is counted, whatever the
        logits and however far the tokens lie from zero: they are computed in float64 and rounded once to the type of
        `x`, and a proved bound on what this changes is added (`lipnb.jacobian.rounding_error`; in float32 less than
        1e-4 of the constant of trained layers). If float32 cannot prove the tolerance, or that bound exceeds rtol
        with a certificate, an `Attention` is solved again in float64, as is a callable that accepts float64 in the
        first case; otherwise the item has not converged, and `upper` is the bound that is still proved. Infinite if
        nothing was certified.
        The constant of a callable is that of the map as it computes: how rounding inside the callable changes its
        derivative is not counted. Nor is the error of a separable kernel, at most a tenth of rtol where it was sampled.
        The start vector depends on `seed` alone and is the same for all items.
    confidence : float or None
        Requested probability of `upper`; 1.0 for ``method="dense"``, where nothing is random; None without a
        certificate.
    route : str
        How products were computed: "cached", "streamed" (rows of the attention matrix recomputed in each product, for
        long sequences, and for masked ones of 1024 tokens or more), "separable" (a separable kernel, for many particles
        in few dimensions), "dense" or "autodiff"; several names if the inputs took several routes.
    precision : str
        Precision of the products: "input", or "float64" where float32 could not prove the tolerance or would round
        attention too much; or both. For a
        callable whose products are measured to have fewer digits than the type of `x`, the type with that many digits:
        "float32", "float16" (as many as TF32) or "bfloat16"; value and upper bound are then exact up to its rounding.

    Examples
    --------
    A table, with one row for each item of a batch (b, n, d):

    >>> import torch
    >>> from lipnb import Attention, local_lipschitz
    >>> eye = torch.eye(3, dtype=torch.float64)
    >>> lip = local_lipschitz(Attention.from_matrices(eye, eye), torch.stack([0 * eye, eye]))
    >>> lip.table[["value", "upper", "converged", "route"]].round(2)
       value  upper  converged  route
    0   1.00   1.00       True  dense
    1   1.36   1.36       True  dense
    """

    value: Tensor
    residual: Tensor
    steps: Tensor
    converged: Tensor
    upper: Tensor
    confidence: float | None = None
    route: str = "cached"
    precision: str = "input"

    @property
    def table(self) -> Any:
        """The answer as a pandas table, one row for each item of the batch."""
        return table_of(self)


@torch.no_grad()
def local_lipschitz(
    f: Attention | Callable[[Tensor], Tensor],
    x: Tensor | list[Tensor],
    *,
    weights: Tensor | list[Tensor] | None = None,
    rtol: float = 1e-4,
    max_steps: int | None = None,
    seed: int = 0,
    method: str = "lanczos",
    confidence: float | None = 1 - 1e-6,
    memory: int | None = None,
) -> LocalLipschitz:
    r"""Local Lipschitz constant of `f` at tokens `x`, in the Euclidean norm of all coordinates.

    .. math::
        \mathrm{Lip}_X(f) = \|D_X f\|_2, \qquad
        \text{and with weights } a: \quad \|D_a^{1/2} (D_X f_a) D_a^{-1/2}\|_2 ,

    the local constant for the 2-Wasserstein distance on measures with these weights, at distinct tokens.

    Parameters
    ----------
    f : Attention or callable
        An attention map (closed-form Jacobian), or any differentiable map from tokens (..., n, d) to (..., n, m)
        (automatic differentiation; where it has no derivative, as ReLU at 0, PyTorch's convention counts). A callable
        must treat the sequences of a batch independently and give the same output each time: a module in ``.eval()``.
        It is measured as it computes, even inside ``torch.autocast``: see the answer's `precision`. If it is piecewise
        constant, the answer is 0. Its backward pass is trusted: a straight-through estimator is measured as its
        surrogate, and `lipnb.AutodiffJacobian` states which wrong backward passes are found.
    x : Tensor, shape (..., n, d), or list of Tensors (n_i, d)
        Tokens; leading dimensions are a batch. Sequences of mixed lengths come as a list: inputs of equal length are
        solved together, and every field of the answer has shape (len(x),). Padding tokens count, as inputs and as
        outputs, even if attention hides them: give a list without padding, or a map that zeroes the padded outputs.
    weights : Tensor, shape (n,) or (..., n), or list of Tensors (n_i,), optional
        Positive token weights. A callable must apply them itself: for it, only the norm is weighted.
    rtol : float
        Relative tolerance on the value.
    max_steps : int, optional
        Most products with the Jacobian and its transpose before the last one, which gives the value; default 300
        ("lanczos") or 1000 ("power"); "dense" ignores it.
    seed : int
        Seed of the start vector, which is the same for all items of a batch. Without a certificate, half of the start
        is, on the cached route, a guess that suits trained attention: tokens weighted by the attention they get, in the
        direction that values stretch most.
    method : {"lanczos", "power", "dense"}
        Lanczos with a certificate (very small inputs of an `Attention` are solved by the dense method); power
        iteration; or the singular values of the dense Jacobian.
    confidence : float, optional
        Probability with which `upper`, and so the tolerance on the value, holds over the random start (in float32 if
        rounding of products acts like noise, see `LocalLipschitz`). None stops by the residual alone: in a quarter to a
        half of the time, and sometimes wrong by percents. "power" ignores it and answers None, "dense" ignores it and
        answers 1.0.
    memory : int, optional
        Bytes that cached matrices may take, default 2 GiB (on a GPU half of its free memory). Batches are split to
        fit; a sequence too long to fit is streamed, or uses a separable kernel if its key dimension is small.

    Returns
    -------
    LocalLipschitz
        Fields of the batch shape, without gradients (for these see `differentiable_lipschitz`), and how they were
        computed.

    Raises
    ------
    ValueError
        If `f` is not a map of tokens, if tokens or weights do not fit it, or if an option is out of range, such as a
        tolerance that the type of `x` does not resolve. For callables also as `lipnb.AutodiffJacobian`; if neither
        forward mode nor reverse mode twice goes through the map; and if its products have too few digits for the
        tolerance or for a certificate.
    TypeError
        If a numeric option is not a number of its kind.

    Notes
    -----
    castin2024smooth, section 3.1 (definition), Lemma C.5 (weights), appendix E.1 (power iteration).

    If the mean of the tokens is far larger than their distances, float32 products of a callable may err by far more
    than the 4 eps that the certificate counts (attention written as a function: by hundreds of eps at 1,000 times):
    give such tokens, and the map, in float64. Those of an `Attention` do not: keys and values are taken relative to
    their means, which changes no derivative.

    Examples
    --------
    >>> import torch
    >>> from lipnb import Attention, local_lipschitz
    >>> eye = torch.eye(3, dtype=torch.float64)
    >>> attention = Attention.from_matrices(eye, 2 * eye)
    >>> x = torch.zeros(5, 3, dtype=torch.float64)  # equal tokens: the norm of the value matrix
    >>> lip = local_lipschitz(attention, x)
    >>> round(lip.value.item(), 6), lip.route, lip.converged.item()
    (2.0, 'dense', True)
    >>> lips = local_lipschitz(attention, [x, torch.eye(4, 3, dtype=torch.float64)])
    >>> lips.value.round(decimals=3)
    tensor([2.0000, 2.6100], dtype=torch.float64)
    """
    return _answered(f, x, weights, Options(method, rtol, max_steps, seed, confidence, memory))[0]


@torch.no_grad()
def with_direction(
    f: Attention | Callable[[Tensor], Tensor], x: Tensor, *, rtol: float = 1e-4, seed: int = 0
) -> tuple[LocalLipschitz, Tensor]:
    """`local_lipschitz`, and from the same solve the unit changes of the tokens that are stretched most.

    Parameters
    ----------
    f, x, rtol, seed
        As for `local_lipschitz`.

    Returns
    -------
    LocalLipschitz
        The answer of `local_lipschitz` to all digits.
    Tensor, shape (..., n, d)
        For each sequence the unit change whose image has the length `value`; its sign is arbitrary.

    Examples
    --------
    >>> import torch
    >>> found, change = with_direction(torch.nn.Linear(2, 2), torch.eye(3, 2))
    >>> change.shape, round(change.norm().item(), 5)
    (torch.Size([3, 2]), 1.0)
    """
    found, vector = _answered(f, x, None, Options("lanczos", rtol, None, seed, 1 - 1e-6, None), directions=True)
    lengths = torch.linalg.vector_norm(vector, dim=1, keepdim=True)
    return found, (vector / torch.where(lengths > 0, lengths, 1)).view(x.shape).to(x.dtype)


def _answered(f, x, weights, options, directions=False):
    """The answer of `local_lipschitz`, and if `directions` the right singular vectors (b, n d), else None."""
    groups, parts = _checked(f, x, weights, options), []
    for group in groups:
        try:
            solve = _solve_attention if isinstance(f, Attention) else _solve_callable
            part = solve(f, group.x, group.weights, options)
        except NotFinite as error:
            raise error.among(group.places) from None
        # inputs of several lengths have vectors of several sizes
        parts.append(part if directions else part._replace(found=part.found._replace(vector=None)))
    answers = _Answers.joined(parts)
    found, shape = answers.found, groups[0].x.shape[:-2]
    if isinstance(x, (list, tuple)):
        found, shape = _in_order(found, groups), (len(x),)
    answer = LocalLipschitz(
        value=found.value.reshape(shape),
        residual=found.residual.reshape(shape),
        steps=found.steps.reshape(shape),
        converged=found.converged.reshape(shape),
        upper=found.upper.reshape(shape),
        confidence={"power": None, "dense": 1.0}.get(options.method, options.confidence),
        route=" + ".join(sorted({how.route for how in answers.how})),
        precision=" + ".join(sorted({how.precision for how in answers.how})),
    )
    return answer, found.vector


def differentiable_lipschitz(
    f: Attention | Callable[[Tensor], Tensor],
    x: Tensor | list[Tensor],
    *,
    rtol: float = 1e-4,
    max_steps: int = 300,
    seed: int = 0,
) -> Tensor:
    r"""Local Lipschitz constant of `f` at tokens `x` as a tensor with a gradient: a penalty in training.

    With the top singular pair v, u of the Jacobian (`lipnb.singular_pair`) held fixed,

    .. math:: \sigma = \langle u, (D_X f)\, v \rangle, \qquad d\sigma = \langle u, d(D_X f)\, v \rangle

    in the parameters of `f` and in `x`.

    Parameters
    ----------
    f : Attention or callable
        As for `local_lipschitz`. Gradients reach everything that requires them: the parameters of a module, the tensors
        from which an `Attention` was made.
    x : Tensor, shape (..., n, d), or list of Tensors (n_i, d)
        Tokens; they get a gradient if they require one.
    rtol, max_steps, seed
        As for `lipnb.singular_pair`.

    Returns
    -------
    Tensor, shape of the batch, or (len(x),)
        A lower bound on the constant of each sequence up to the rounding of the type of `x`, in which everything is
        computed; under ``torch.no_grad()`` without gradient. In float32 large logits, or tokens far from zero, can
        change it by more than rtol: give `f` and `x` in float64 then (`local_lipschitz` does so by itself).

    Raises
    ------
    ValueError
        As `lipnb.singular_pair`; if nothing that the constant depends on requires a gradient, or if the map cannot be
        differentiated twice.

    Notes
    -----
    The formula is first-order perturbation theory, for a simple largest singular value. If several singular values are
    largest, the constant has no derivative, and the result is a subgradient, from the pair to which `seed` leads; if
    the constant is 0, it is 0. The gradient is exact for the pair that was found: on the modules of the tests its
    relative error is at most 1e-5 in float32, and 1e-8 if all is float64; more if two values lie within `rtol`, where v
    is not determined (see `SingularPair`).

    Reverse mode goes twice through one run of `f`, with PyTorch's plain attention in place of fused kernels, which
    have no second derivative. An autograd function needs a backward pass that can itself be differentiated; values that
    it computed beforehand and did not save with ``save_for_backward`` count as constant, without a warning. A module
    that checkpoints its attention runs it again in your backward pass: use plain attention for the whole step then,
    under ``torch.nn.attention.sdpa_kernel(SDPBackend.MATH)``, or train without checkpoints.

    Examples
    --------
    >>> import torch
    >>> from lipnb import differentiable_lipschitz
    >>> layer = torch.nn.Linear(2, 2, bias=False)
    >>> x = torch.eye(3, 2)
    >>> constant = differentiable_lipschitz(layer, x)  # the largest singular value of the weight
    >>> (1e-2 * constant).backward()  # with the loss: loss + 1e-2 * constant
    >>> round(layer.weight.grad.norm().item(), 4)
    0.01
    """
    if isinstance(x, (list, tuple)):
        check_list(list(x))
        own = [differentiable_lipschitz(f, one[None], rtol=rtol, max_steps=max_steps, seed=seed) for one in x]
        return torch.cat(own)
    pair = singular_pair(f, x, rtol=rtol, max_steps=max_steps, seed=seed)
    if not torch.is_grad_enabled():
        return pair.value.to(x.dtype)
    with gemm.full_precision(x.dtype, x.device) if isinstance(f, Attention) else nullcontext():
        return bilinear_form(f, x, pair.input, pair.output)


@dataclass
class Options:
    """Validated options of `local_lipschitz`; ValueError or TypeError for an invalid one."""

    method: str
    rtol: float
    max_steps: int | None
    seed: int
    confidence: float | None
    memory: float | None

    def __post_init__(self) -> None:
        self.rtol, self.seed = number("rtol", self.rtol), whole("seed", self.seed)
        self.max_steps = None if self.max_steps is None else whole("max_steps", self.max_steps)
        self.confidence = None if self.confidence is None else number("confidence", self.confidence)
        self.memory = None if self.memory is None else number("memory", self.memory)
        if self.method not in (*STEPS, "dense"):
            raise ValueError(f"method must be 'lanczos', 'power' or 'dense', got {self.method!r}.")
        if self.max_steps is not None and self.max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {self.max_steps}.")
        if self.confidence is not None and not 0 < self.confidence < 1:
            raise ValueError(f"confidence must lie strictly between 0 and 1, or be None, got {self.confidence}.")
        if self.memory is not None and not self.memory >= 1:
            raise ValueError(f"memory must be a positive number of bytes, got {self.memory}.")
        # whether to form the matrix; None: that of an Attention, if it is small
        self.dense: bool | None = {"dense": True, "power": False}.get(self.method)
        self.certified = self.method == "lanczos" and self.confidence is not None

    def start(self, x: Tensor) -> Tensor:
        """Start vectors (b, n d) for tokens x (..., n, d)."""
        return start_vectors(x.shape[:-2].numel(), x.shape[-2:].numel(), seed=self.seed, dtype=x.dtype, device=x.device)


class _Group(NamedTuple):
    """Inputs x (..., n, d) solved together, their weights, and their places in the batch or list; () for one input."""

    x: Tensor
    weights: Tensor | None
    places: Sequence[int]


def _checked(f, x, weights, options):
    """Validate map, inputs, weights and tolerance; group a list of inputs by length."""
    if not isinstance(f, Attention):
        check_map(f)
    if isinstance(x, (list, tuple)):
        groups = _by_length(x, weights)
    else:
        if isinstance(x, Tensor):
            as_tensor("x", x)
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise ValueError(
                "x must be a floating point tensor of shape (..., n, d), or a list of such: "
                "use torch.as_tensor(x).double()."
            )
        groups = [_Group(x, weights, () if x.ndim <= 2 else range(x.shape[:-2].numel()))]
    for group in groups:
        check_tolerance(options.rtol, group.x)
        if isinstance(f, Attention):
            f.check_input(group.x, group.weights)
        elif group.weights is not None:
            check_weights(group.weights, group.x)
    return groups


def _by_length(x, weights):
    """The sequences of a list in groups of one length, the shortest first."""
    check_list(x)
    if weights is not None:
        check_list_of_weights(weights, x)
    return [_stacked(x, weights, length) for length in sorted({len(one) for one in x})]


def _stacked(x, weights, length):
    """The `_Group` of all sequences of one length in a list: tokens (b, n, d) and weights (b, n)."""
    places = [place for place, one in enumerate(x) if len(one) == length]
    own = None if weights is None else torch.stack([weights[place] for place in places])
    return _Group(torch.stack([x[place] for place in places]), own, places)


def _in_order(found, groups):
    """The answers of all groups in the order of the list."""
    order = torch.tensor([place for group in groups for place in group.places], device="cpu").argsort()
    return each_field(found, lambda field: field[order.to(field.device)])


class _How(NamedTuple):
    route: str
    precision: str


class _Answers(NamedTuple):
    """Answers for the items of a batch, and how each was computed."""

    found: SpectralNorm
    how: list[_How]

    @classmethod
    def joined(cls, parts: list[Self]) -> Self:
        """Concatenate the answers of several parts."""
        if len(parts) == 1:
            return parts[0]
        return cls(joined([part.found for part in parts]), [how for part in parts for how in part.how])

    def replaced(self, limited: Tensor, again: Self) -> Self:
        """Replace the answers of the items `limited` by the answers of a float64 run; the numbers of steps add up."""
        steps = self.found.steps[limited] + again.found.steps
        how, new = list(self.how), iter(again.how)
        for item in limited.nonzero()[:, 0].tolist():
            how[item] = next(new)._replace(precision="float64")
        return type(self)(put(self.found, limited, again.found._replace(steps=steps)), how)


def _solve_attention(f, x, weights, options):
    """Answers for sequences x (..., n, d), in parts that fit in memory; in float64 if float32 proves too little.

    Too little is proved, too, where what float32 rounds of attention may change the constant by more than rtol.
    """
    weights = None if weights is None else weights.expand(x.shape[:-1]).reshape(-1, x.shape[-2])
    x, start, parts = x.reshape(-1, *x.shape[-2:]), options.start(x), []
    with gemm.full_precision(x.dtype, x.device):
        for some, operator in operators_of(
            f, x, weights, memory=options.memory, dense=options.dense, rtol=options.rtol
        ):
            try:
                parts.append(_solve(operator, start[some], options))
            except NotFinite as error:
                raise error.among(range(len(x))[some]) from None
        answers = _Answers.joined(parts)
        limited = answers.found.precision_limited
        if limited.any() and x.dtype != torch.float64:
            weights = None if weights is None else weights[limited].double()
            again = _solve_attention(f.to(dtype=torch.float64), x[limited].double(), weights, options)
            answers = answers.replaced(limited, again)
    return answers


def _solve_callable(f, x, weights, options):
    """Answers for a batch of a callable, in float64 if float32 proves too little and `f` accepts float64."""
    operator = operator_of(f, x, weights, dense=options.dense)
    start = x
    if isinstance(operator, AutodiffGram):
        operator.check(options.rtol, options.certified)
        start = x.to(operator.vectors)
    answers = _solve(operator, options.start(start), options)
    if operator.precision != x.dtype:
        name = str(operator.precision).removeprefix("torch.")
        answers = answers._replace(how=[one._replace(precision=name) for one in answers.how])
    limited = answers.found.precision_limited
    if not limited.any():
        return answers
    start = options.start(x.double())
    if double := double_operator(f, x, weights, start, dense=bool(options.dense)):
        again = _solve(double, start, options)  # all items: `f` may depend on the size of the batch
        again = _Answers(each_field(again.found, lambda field: field[limited]), again.how[: limited.sum()])
        answers = answers.replaced(limited, again)
    return answers


def _solve(operator, start, options):
    """The answers of the chosen solver for an operator, from `start`, shape (b, N)."""
    steps = options.max_steps or STEPS.get(options.method)
    if isinstance(operator, DenseGram):
        found = dense_norm(operator.matrix)
    elif options.method == "power":
        found = power_iteration(operator, start, rtol=options.rtol, max_steps=steps)
    else:
        if options.confidence is None and (likely := operator.heuristic_start()) is not None:
            start = start + likely  # without a certificate the start need not be all random; part of it stays random
        found = lanczos(operator, start, rtol=options.rtol, max_steps=steps, confidence=options.confidence)
    # values zero or nearly so in float32 may exist in float64. Lanczos and power iteration mark underflow themselves
    kind = torch.finfo(start.dtype)
    least = kind.tiny / kind.eps if isinstance(operator, DenseGram) else 0
    found = found._replace(precision_limited=found.precision_limited | (found.value <= least))
    found = found._replace(value=found.value * operator.unit, upper=found.upper * operator.unit + operator.error)
    if options.certified:  # what was rounded before the products must be small too
        large = operator.error > options.rtol * found.value
        found = found._replace(precision_limited=found.precision_limited | large)
    return _Answers(found, [_How(operator.name, "input")] * len(found.value))
