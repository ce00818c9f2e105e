"""Singular values of matrices that are there as a whole: what small cases are solved by, and tests compare with."""

import torch
from torch import Tensor

from lipnb.spectral.answer import SpectralNorm, evaluate

__all__ = ["dense_norm"]


def dense_norm(matrices: Tensor) -> SpectralNorm:
    """Largest singular values of matrices, by a singular value decomposition of each.

    Parameters
    ----------
    matrices : Tensor, shape (b, M, N)
        One matrix an item, of any unit.

    Returns
    -------
    SpectralNorm
        `steps` is 0 and `converged` true. `upper` is the value and the rounding of a decomposition, 8 (M + N) eps.

    Raises
    ------
    ValueError
        "the Jacobian holds NaN or infinite values ...".

    Examples
    --------
    >>> import torch
    >>> from lipnb.spectral import dense_norm
    >>> found = dense_norm(torch.tensor([[[0.0, 2.0], [1.0, 0.0]]]))
    >>> found.value.item(), found.steps.item()
    (2.0, 0)
    """
    if not torch.isfinite(matrices).all():
        raise ValueError(
            "the Jacobian holds NaN or infinite values: the map is not differentiable at this input, or "
            "overflows or underflows in its precision."
        )
    rounding = torch.finfo(matrices.dtype)
    unit = matrices.abs().amax((-2, -1)).clamp_min(rounding.tiny)  # squares of what is left are representable
    matrices = matrices / unit[:, None, None]
    _, values, vectors = torch.linalg.svd(matrices, full_matrices=False)
    _, residual = evaluate(lambda u: (matrices.mT @ (matrices @ u[..., None]))[..., 0], vectors[..., 0, :])
    value = values[..., 0].double() * unit
    return SpectralNorm(
        value,
        residual,
        steps=torch.zeros_like(value, dtype=torch.int64),
        converged=torch.ones_like(value, dtype=torch.bool),
        upper=value * (1 + 8 * sum(matrices.shape[-2:]) * rounding.eps),
        precision_limited=torch.zeros_like(value, dtype=torch.bool),
    )
