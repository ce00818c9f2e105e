"""Where a LayerNorm, or an RMSNorm, puts tokens: an ellipsoid, and the ball that holds it, exactly."""

import math

import torch
from scipy.optimize import brentq

from lipnb.checks import as_double

__all__ = ["layer_norm_radius", "norm_ellipsoid"]


def norm_ellipsoid(gain: torch.Tensor, shift: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    r"""Centre and map of the tokens that a LayerNorm can give, :math:`\beta + G u`, :math:`|u| \le 1`.

    Parameters
    ----------
    gain, shift : Tensor, shape (d,)
        Gain and shift, float64; without a shift (None) those of RMSNorm, which takes no mean away.

    Returns
    -------
    Tensor, shape (d,), and Tensor, shape (d, d)
        :math:`\beta` and :math:`G = \sqrt d\, \mathrm{diag}(\gamma)\, (I - \tfrac1d \mathbf 1 \mathbf 1^\top)`; for
        RMSNorm 0 and :math:`\sqrt d\, \mathrm{diag}(\gamma)`.

    Examples
    --------
    >>> centre, matrix = norm_ellipsoid(torch.tensor([1.0, 2.0, 3.0, 4.0]).double(), None)
    >>> centre.tolist(), matrix.diagonal().tolist()
    ([0.0, 0.0, 0.0, 0.0], [2.0, 4.0, 6.0, 8.0])
    """
    d = len(gain)
    if shift is None:
        return torch.zeros_like(gain), math.sqrt(d) * gain.diag()
    return shift, math.sqrt(d) * gain[:, None] * (torch.eye(d, dtype=gain.dtype, device=gain.device) - 1 / d)


def layer_norm_radius(gain: torch.Tensor, shift: torch.Tensor | None) -> float:
    r"""Largest norm of a token that a LayerNorm can give.

    .. math:: R_*^2 = \max_{|u| = 1} |G u + \beta|^2
        = |\beta|^2 + \min_{\lambda > h_{\max}} \Big(\lambda + \sum_k \frac{g_k^2}{\lambda - h_k}\Big),
        \qquad G = \sqrt d\, \mathrm{diag}(\gamma)\, (I - \tfrac1d \mathbf 1 \mathbf 1^\top),

    with the eigenvalues :math:`h_k` of :math:`G^\top G` and the coordinates :math:`g_k` of :math:`G^\top \beta` in its
    eigenvectors.

    Parameters
    ----------
    gain, shift : Tensor, shape (d,)
        Gain :math:`\gamma` and shift :math:`\beta`, d at least 2. Without a shift (None), of an RMSNorm:
        :math:`R_* = \sqrt d \max_k |\gamma_k|`.

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
    gain = as_double(gain)
    rms, shift = shift is None, torch.zeros_like(gain) if shift is None else as_double(shift)
    fits = gain.ndim == 1 and gain.shape == shift.shape and len(gain) > 1
    if not fits or not torch.isfinite(torch.cat([gain, shift])).all():
        raise ValueError(
            f"gain and shift must have one shape (d,) with d >= 2 and finite entries, got "
            f"{tuple(gain.shape)} and {tuple(shift.shape)}."
        )
    if rms:
        return math.sqrt(len(gain)) * gain.abs().max().item()
    G = norm_ellipsoid(gain, shift)[1]
    h, basis = torch.linalg.eigh(G.mT @ G)
    h, g = h.clamp_min(0), basis.mT @ (G.mT @ shift)
    top, reach = h[-1].item(), g.norm().item()

    def slope(step):  # of the bracket, at lambda = h_max + step; increasing in step
        return 1 - (g / (top + step - h)).square().sum().item()

    least = 1e-13 * (top + reach) + 1e-300
    step = least if slope(least) >= 0 else brentq(slope, least, 2 * reach, rtol=1e-14)
    value = shift.square().sum() + top + step + (g.square() / (top + step - h)).sum()
    return value.sqrt().item()
