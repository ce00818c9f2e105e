"""The radius of the ball that a LayerNorm imposes on tokens, exactly."""

import math

import torch
from scipy.optimize import brentq

__all__ = ["layer_norm_radius"]


def layer_norm_radius(gain: torch.Tensor, shift: torch.Tensor) -> float:
    r"""Largest norm of a token that a LayerNorm can give.

    .. math:: R_*^2 = \max_{|u| = 1} |G u + \beta|^2
        = |\beta|^2 + \min_{\lambda > h_{\max}} \Big(\lambda + \sum_k \frac{g_k^2}{\lambda - h_k}\Big),
        \qquad G = \sqrt d\, \mathrm{diag}(\gamma)\, (I - \tfrac1d \mathbf 1 \mathbf 1^\top),

    with the eigenvalues :math:`h_k` of :math:`G^\top G` and the coordinates :math:`g_k` of :math:`G^\top \beta` in its
    eigenvectors.

    Parameters
    ----------
    gain, shift : Tensor, shape (d,)
        Gain :math:`\gamma` and shift :math:`\beta`, d at least 2.

    Returns
    -------
    float
        It is attained, and at most :math:`\sqrt d \max_k |\gamma_k| + |\beta|`.

    Raises
    ------
    ValueError
        "gain and shift must have one shape (d,) ...".

    Notes
    -----
    Ours; the ellipsoid is that of castin2024smooth, section 2.3.

    Examples
    --------
    >>> round(layer_norm_radius(torch.ones(4), torch.zeros(4)), 6)
    2.0
    """
    gain, shift = torch.as_tensor(gain).double(), torch.as_tensor(shift).double()
    fits = gain.ndim == 1 and gain.shape == shift.shape and len(gain) > 1
    if not fits or not torch.isfinite(torch.cat([gain, shift])).all():
        raise ValueError(
            f"gain and shift must have one shape (d,) with d >= 2 and finite entries, got "
            f"{tuple(gain.shape)} and {tuple(shift.shape)}."
        )
    d = len(gain)
    G = math.sqrt(d) * gain[:, None] * (torch.eye(d, dtype=gain.dtype) - 1 / d)
    h, basis = torch.linalg.eigh(G.mT @ G)
    h, g = h.clamp_min(0), basis.mT @ (G.mT @ shift)
    top, reach = h[-1].item(), g.norm().item()

    def slope(step):  # of the bracket, at lambda = h_max + step; increasing in step
        return 1 - (g / (top + step - h)).square().sum().item()

    least = 1e-13 * (top + reach) + 1e-300
    step = least if slope(least) >= 0 else brentq(slope, least, 2 * reach, rtol=1e-14)
    value = shift.square().sum() + top + step + (g.square() / (top + step - h)).sum()
    return value.sqrt().item()
