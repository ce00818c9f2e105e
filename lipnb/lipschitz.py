"""Local Lipschitz constant of a map of tokens: the largest singular value of its Jacobian at an input."""

from dataclasses import dataclass, fields

import torch

from lipnb.attention import Attention
from lipnb.checks import check_weights
from lipnb.jacobian import AttentionJacobian, AutodiffJacobian, gemm, routes
from lipnb.jacobian.routes import DENSE_SIZE, batches, dense_answer, memory_allowance, products_of
from lipnb.spectral import mixed_lanczos, share, start_vectors

__all__ = ["LocalLipschitz", "local_lipschitz"]

STEPS = {"lanczos": 300, "power": 1000}
PRECISIONS = ("input", "mixed")
DENSE = ("dense", "input")


@dataclass(frozen=True)
class LocalLipschitz:
    """Local Lipschitz constants of a batch of inputs, and how the computation went.

    Attributes
    ----------
    value : Tensor, shape of the batch
        Lower bound on the local constant, up to rounding; within the tolerance where `converged`.
    residual : Tensor, shape of the batch
        Relative residual of the singular pair, see `lipnb.spectral.SpectralNorm`.
    steps : Tensor of int, shape of the batch
        Products with the Jacobian and its transpose that the item took; 0 for the dense method.
    converged : Tensor of bool, shape of the batch
        Whether the stopping rule was met. A value that did not converge is still a lower bound.
    upper : Tensor, shape of the batch
        Upper bound on the local constant, up to a relative rounding of 16 eps: it fails with probability at most
        ``1 - confidence`` over the random start. In float32 this rests on an assumption, that rounding acts like
        noise: what it adds along the top singular vector does not depend on the start (see `lipnb.spectral.lanczos`).
        Where float32 can prove no more, an `Attention` goes on in float64, as does a callable that can; else `upper`
        is what is still proved, and the item has not converged. Infinite if nothing was certified. Not counted: the
        rounding of the attention probabilities themselves, which `lipnb.certify` counts. The start follows from `seed`
        and is the same for all items.
    confidence : float or None
        Probability that goes with `upper`; 1.0 for the dense method, where nothing is random; None where no
        certificate was asked for.
    route : str
        How the products were made: "cached", "streamed" (rows of the attention matrix made again at each product,
        for long sequences), "separable" (a separable kernel, for many particles in few dimensions), "dense" or
        "autodiff"; several names where the inputs took several routes.
    precision : str
        Of the products: "input", "mixed", or "float64" where float32 could prove no more; or several of these.
    """

    value: torch.Tensor
    residual: torch.Tensor
    steps: torch.Tensor
    converged: torch.Tensor
    upper: torch.Tensor
    confidence: float | None = None
    route: str = "cached"
    precision: str = "input"


@torch.no_grad()
def local_lipschitz(
    f,
    x,
    *,
    weights=None,
    rtol=1e-4,
    max_steps=None,
    seed=0,
    method="lanczos",
    confidence=1 - 1e-6,
    precision="input",
    memory=None,
):
    r"""Local Lipschitz constant of `f` at tokens `x`, in the Euclidean norm of all coordinates.

    .. math::
        \mathrm{Lip}_X(f) = \|D_X f\|_2, \qquad
        \text{and with weights } a: \quad \|D_a^{1/2} (D_X f_a) D_a^{-1/2}\|_2 ,

    the local constant for the 2-Wasserstein distance on measures with these weights, at distinct tokens.

    Parameters
    ----------
    f : Attention or callable
        An attention map (closed-form Jacobian), or any differentiable map from tokens (..., n, d) to (..., n, m)
        (automatic differentiation). A callable must treat the sequences of a batch independently.
    x : Tensor, shape (..., n, d), or list of Tensors (n_i, d)
        Tokens; leading dimensions are a batch. Sequences of mixed lengths come as a list: those of equal length
        are solved together, and every field of the answer has shape (len(x),).
    weights : Tensor, shape (n,) or (..., n), or list of Tensors (n_i,), optional
        Positive token weights. A callable must already hold them: only the norm is weighted for it.
    rtol : float
        Relative tolerance on the value.
    max_steps : int, optional
        Most products with the Jacobian and its transpose, of each part of a mixed-precision solve; default 300
        ("lanczos") or 1000 ("power"); "dense" ignores it.
    seed : int
        Seed of the start vector, which is the same for all items of a batch.
    method : {"lanczos", "power", "dense"}
        Lanczos with a certificate (very small inputs are solved by the dense method); power iteration; or the
        singular values of the dense Jacobian.
    confidence : float, optional
        Probability with which `upper`, and so the tolerance on the value, holds over the random start (in float32
        if rounding acts like noise, see `LocalLipschitz`). None stops by the residual alone: about 40 % cheaper, and
        sometimes wrong by percents. "power" ignores it and answers None, "dense" ignores it and answers 1.0.
    precision : {"input", "mixed"}
        Products in the precision of `x`; or most of them in a cheaper one (float32 for float64, bfloat16 for
        float32 where this machine multiplies it faster), with the value and its residual finished in that of `x`.
        "mixed" needs method "lanczos" and an `Attention`; the answer's `precision` tells where it was of no use.
    memory : int, optional
        Bytes that cached matrices may take, default 2 GiB (on a GPU half of its free memory). Batches are split to
        fit; a sequence too long to fit is streamed, or taken by a separable kernel where its key dimension is small.

    Returns
    -------
    LocalLipschitz
        `value`, `residual`, `steps`, `converged`, `upper`, each of the batch shape; `confidence`, `route`, `precision`.

    Raises
    ------
    ValueError
        "x must have shape ...", "weights must be ...", "method must be ...", "rtol must lie ...",
        "precision='mixed' needs ...": see the sentence.

    Notes
    -----
    castin2024smooth, section 3.1 (definition), Lemma C.5 (weights), appendix E.1 (power iteration).
    """
    options = {
        "rtol": rtol,
        "max_steps": max_steps,
        "seed": seed,
        "method": method,
        "confidence": confidence,
        "precision": precision,
        "memory": memory,
    }
    if isinstance(x, (list, tuple)):
        return _mixed_lengths(f, x, weights, options)
    _check_options(x, **options)
    if memory is None:
        memory = memory_allowance(x.device)
    solve = {"rtol": rtol, "max_steps": max_steps or STEPS.get(method), "confidence": confidence}
    if isinstance(f, Attention):
        f.check_input(x, weights)
        n, d = x.shape[-2:]
        flat = x.reshape(-1, n, d)
        flat_weights = None if weights is None else weights.expand(x.shape[:-1]).reshape(-1, n)
        if method == "dense" or (method == "lanczos" and n * d <= DENSE_SIZE):
            found, names = dense_answer(AttentionJacobian(f, flat, flat_weights), flat, flat_weights), [DENSE]
        else:
            found, names = _in_parts(f, flat, flat_weights, memory, method, precision, seed, solve)
    elif callable(f):
        if precision != "input":
            raise ValueError(f"precision={precision!r} needs an Attention, got {type(f).__name__}.")
        if method == "dense":
            found, names = dense_answer(AutodiffJacobian(f, x), x, weights), [DENSE]
        else:
            found, names = _solve_callable(f, x, weights, method, seed, solve)
    else:
        raise ValueError(f"f must be an Attention or a callable, got {type(f).__name__}.")
    confidence = {"power": None, "dense": 1.0}.get(method, confidence)
    passed, precisions = (" + ".join(sorted(set(column))) for column in zip(*names, strict=True))
    return LocalLipschitz(*(field.reshape(x.shape[:-2]) for field in found), confidence, passed, precisions)


def _check_options(x, rtol, max_steps, seed, method, confidence, precision, memory):
    """Raise one clear sentence for an option that makes no sense, before any work."""
    if method not in (*STEPS, "dense"):
        raise ValueError(f"method must be 'lanczos', 'power' or 'dense', got {method!r}.")
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        raise ValueError(
            "x must be a floating point tensor of shape (..., n, d), or a list of such: "
            "use torch.as_tensor(x).double()."
        )
    least = 8 * torch.finfo(x.dtype).eps
    if not least <= rtol < 1:
        raise ValueError(f"rtol must lie between {least:.1e} (what {x.dtype} resolves) and 1, got {rtol}.")
    if max_steps is not None and max_steps < 1:
        raise ValueError(f"max_steps must be at least 1, got {max_steps}.")
    if confidence is not None and not 0 < confidence < 1:
        raise ValueError(f"confidence must lie strictly between 0 and 1, or be None, got {confidence}.")
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {PRECISIONS}, got {precision!r}.")
    if precision == "mixed" and method != "lanczos":
        raise ValueError(f"precision='mixed' needs method='lanczos', got method={method!r}.")
    if memory is not None and memory < 1:
        raise ValueError(f"memory must be a positive number of bytes, got {memory}.")


def _mixed_lengths(f, x, weights, options):
    """Sequences of mixed lengths, those of equal length solved together; fields of shape (len(x),)."""
    if not x or not all(isinstance(one, torch.Tensor) and one.ndim == 2 for one in x):
        raise ValueError("x must be a floating point tensor of shape (..., n, d), or a list of tensors (n, d).")
    if len({(one.shape[1], one.dtype, one.device) for one in x}) > 1:
        raise ValueError(
            "x must be a list of tensors (n, d) of one width, dtype and device, got "
            f"{sorted({f'd = {one.shape[1]} in {one.dtype} on {one.device}' for one in x})}."
        )
    if weights is not None:
        if not isinstance(weights, (list, tuple, torch.Tensor)) or len(weights) != len(x):
            raise ValueError(f"weights must be a list with one tensor for each of the {len(x)} inputs.")
        for heavy, one in zip(weights, x, strict=True):
            check_weights(heavy, one)
    lengths = {}
    for i, one in enumerate(x):
        lengths.setdefault(one.shape[0], []).append(i)
    answers = {}
    for length in sorted(lengths):
        together = torch.stack([x[i] for i in lengths[length]])
        heavy = None if weights is None else torch.stack([weights[i] for i in lengths[length]])
        answers[length] = local_lipschitz(f, together, weights=heavy, **options)
    order = torch.tensor([i for length in answers for i in lengths[length]])
    joined = {}
    for name in (field.name for field in fields(LocalLipschitz)[:5]):
        values = torch.cat([getattr(lip, name) for lip in answers.values()])
        joined[name] = torch.empty_like(values).index_copy_(0, order.to(values.device), values)
    names = (
        " + ".join(sorted({one for lip in answers.values() for one in getattr(lip, name).split(" + ")}))
        for name in ("route", "precision")
    )
    return LocalLipschitz(*joined.values(), next(iter(answers.values())).confidence, *names)


def _in_parts(f, x, weights, memory, method, precision, seed, solve):
    """Fields for a batch (b, n, d), in parts that fit in memory and in float64 where float32 is stuck; their names."""
    at_once = max(1, batches(f, x.shape[1], len(x), memory))
    parts, names = [], []
    for i in range(0, len(x), at_once):
        part, name = _solve_attention(
            f,
            x[i : i + at_once],
            None if weights is None else weights[i : i + at_once],
            memory,
            method,
            precision,
            seed,
            solve,
        )
        parts.append([*part[:5], torch.zeros_like(part.converged) if part.stuck is None else part.stuck])
        names.append(name)
    *found, stuck = (torch.cat(field) for field in zip(*parts, strict=True))
    if stuck.any() and x.dtype != torch.float64:
        if precision == "mixed":
            solve = {**solve, "confidence": share(solve["confidence"])}
        again, more = _in_parts(
            f.to(dtype=torch.float64),
            x[stuck].double(),
            None if weights is None else weights[stuck].double(),
            memory,
            method,
            "input",
            seed,
            solve,
        )
        again[2] += found[2][stuck]
        for field, new in zip(found, again, strict=True):
            field[stuck] = new
        names = ([] if stuck.all() else names) + [(route, "float64") for route, _ in more]
    return found, names


def _solve_attention(f, x, weights, memory, method, precision, seed, solve):
    """Answer, and route with precision, for a batch (b, n, d) that fits in memory together."""
    products, route = products_of(f, x, weights, memory)
    start = start_vectors(len(x), x[0].numel(), seed=seed, dtype=x.dtype, device=x.device)
    low = gemm.low_precision(x.dtype, x.device) if precision == "mixed" else x.dtype
    with gemm.fastest(x.dtype, x.device):
        if low != x.dtype and route == "cached":
            second = start_vectors(len(x), x[0].numel(), seed=seed + 1, dtype=x.dtype, device=x.device)
            found = mixed_lanczos(products.to(low), products, start, second, **solve)
            return routes.in_units(found, products.unit), (route, "mixed")
        return routes.solved(products, start, method, solve), (route, "input")


def _solve_callable(f, x, weights, method, seed, solve):
    """Fields for a batch of a callable, in float64 where float32 is stuck and `f` can; their names."""
    start = start_vectors(x.shape[:-2].numel(), x.shape[-2:].numel(), seed=seed, dtype=torch.float64, device=x.device)
    *found, _, stuck = routes.solved(routes.AutodiffProducts(f, x, weights), start.to(x.dtype), method, solve)
    names = [("autodiff", "input")]
    if stuck is not None and stuck.any() and (double := routes.double_products(f, x, weights, start)):
        again = routes.solved(double, start, method, solve)  # all of them: `f` may know how many they are
        again = again._replace(steps=found[2] + again.steps)
        for field, new in zip(found, again[:5], strict=True):
            field[stuck] = new[stuck].to(field.dtype)
        names = ([] if stuck.all() else names) + [("autodiff", "float64")]
    return found, names
