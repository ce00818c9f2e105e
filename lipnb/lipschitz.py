"""Local Lipschitz constant of a map of tokens: the largest singular value of its Jacobian at an input."""

from dataclasses import dataclass

import torch

from lipnb.attention import Attention, check_weights
from lipnb.jacobian import AttentionJacobian, AutodiffJacobian
from lipnb.spectral import evaluate, golub_kahan, power_iteration, start_vectors

__all__ = ["LocalLipschitz", "local_lipschitz"]

METHODS = {"lanczos": (golub_kahan, 300), "power": (power_iteration, 1000)}


@dataclass(frozen=True)
class LocalLipschitz:
    """Local Lipschitz constants of a batch of inputs, and how the computation went.

    Attributes
    ----------
    value : Tensor, shape of the batch
        Lower bound on the local constant, within the tolerance where `converged`.
    residual : Tensor, shape of the batch
        Relative residual of the singular pair, see `lipnb.spectral.SpectralNorm`.
    steps : Tensor of int, shape of the batch
        Products with the Jacobian and its transpose that the item took; 0 for the dense method.
    converged : Tensor of bool, shape of the batch
        Whether the stopping rule was met. A value that did not converge is still a lower bound.
    """

    value: torch.Tensor
    residual: torch.Tensor
    steps: torch.Tensor
    converged: torch.Tensor


@torch.no_grad()
def local_lipschitz(f, x, *, weights=None, rtol=1e-4, max_steps=None, seed=0, method="lanczos"):
    r"""Local Lipschitz constant of `f` at tokens `x`, in the Euclidean norm of all coordinates.

    .. math::
        \mathrm{Lip}_X(f) = \|D_X f\|_2, \qquad
        \text{and with weights } a: \quad \|D_a^{1/2} (D_X f_a) D_a^{-1/2}\|_2 ,

    the local constant for the 2-Wasserstein distance on measures with these weights.

    Parameters
    ----------
    f : Attention or callable
        An attention map (closed-form Jacobian), or any differentiable map from tokens (..., n, d) to (..., n, m)
        (automatic differentiation). A callable must treat the sequences of a batch independently.
    x : Tensor, shape (..., n, d)
        Tokens; leading dimensions are a batch.
    weights : Tensor, shape (n,) or (..., n), optional
        Positive token weights. A callable must already hold them: only the norm is weighted for it.
    rtol : float
        Relative tolerance on the value.
    max_steps : int, optional
        Most products with the Jacobian and its transpose; default 300 ("lanczos") or 1000 ("power").
    seed : int
        Seed of the start vector, which is the same for all items of a batch.
    method : {"lanczos", "power", "dense"}
        Golub-Kahan bidiagonalisation with a guard against early stopping; power iteration; or the singular
        values of the dense Jacobian, for small cases.

    Returns
    -------
    LocalLipschitz
        `value`, `residual`, `steps` and `converged`, each of the batch shape; `value` is a lower bound.

    Raises
    ------
    ValueError
        "x must have shape ...", "weights must be ...", "method must be ...", "rtol must lie ...": see the sentence.

    Notes
    -----
    castin2024smooth, section 3.1 (definition), Lemma C.5 (weights), appendix E.1 (power iteration).
    """
    if method not in (*METHODS, "dense"):
        raise ValueError(f"method must be 'lanczos', 'power' or 'dense', got {method!r}.")
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        raise ValueError("x must be a floating point tensor of shape (..., n, d): use torch.as_tensor(x).double().")
    least = 8 * torch.finfo(x.dtype).eps
    if not least <= rtol < 1:
        raise ValueError(f"rtol must lie between {least:.1e} (what {x.dtype} resolves) and 1, got {rtol}.")
    if max_steps is not None and max_steps < 1:
        raise ValueError(f"max_steps must be at least 1, got {max_steps}.")
    if isinstance(f, Attention):
        jacobian = AttentionJacobian(f, x, weights)
    elif callable(f):
        jacobian = AutodiffJacobian(f, x)
        if weights is not None:
            check_weights(weights, x)
    else:
        raise ValueError(f"f must be an Attention or a callable, got {type(f).__name__}.")
    root = None if weights is None else weights.sqrt().expand(x.shape[:-1])[..., None]

    def jvp(u):
        u = u.reshape(x.shape)
        out = jacobian.jvp(u) if root is None else root * jacobian.jvp(u / root)
        return out.reshape(-1, *out.shape[-2:])

    def vjp(w):
        w = w.reshape(*x.shape[:-1], w.shape[-1])
        out = jacobian.vjp(w) if root is None else jacobian.vjp(root * w) / root
        return out.reshape(-1, *out.shape[-2:])

    batch = x.shape[:-2].numel()
    if method == "dense":
        fields = _dense(jacobian, root, jvp, vjp, x)
    else:
        solve, default_steps = METHODS[method]
        start = start_vectors(batch, x.shape[-2:], seed=seed, dtype=x.dtype, device=x.device)
        fields = solve(jvp, vjp, start, rtol=rtol, max_steps=max_steps or default_steps)
    return LocalLipschitz(*(field.reshape(x.shape[:-2]) for field in fields))


def _dense(jacobian, root, jvp, vjp, x):
    """Value, residual, steps and convergence from the singular value decomposition of the dense Jacobian."""
    matrix = jacobian.dense()
    if root is not None:
        rows = root.expand(*root.shape[:-1], matrix.shape[-2] // x.shape[-2]).flatten(-2)
        columns = root.expand(x.shape).flatten(-2)
        matrix = rows[..., :, None] * matrix / columns[..., None, :]
    _, values, vectors = torch.linalg.svd(matrix, full_matrices=False)
    _, residual = evaluate(jvp, vjp, vectors[..., 0, :].reshape(-1, *x.shape[-2:]))
    value = values[..., 0].reshape(-1).double()
    return value, residual, torch.zeros_like(value, dtype=torch.int64), torch.ones_like(value, dtype=torch.bool)
