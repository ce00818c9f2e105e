"""A LayerNorm or RMSNorm before attention: the set of its outputs, and its Lipschitz constant."""

import math

import torch
from scipy.optimize import brentq

from lipnb.checks import as_double, number, real_tensor
from lipnb.scaling import powers_of_two

__all__ = ["layer_norm_radius"]


def norm_ellipsoid(gain, shift):
    r"""Centre (d,) and map (d, d) of the possible outputs :math:`\beta + G u`, :math:`|u| \le 1`, of a LayerNorm."""
    d = len(gain)
    if shift is None:  # an RMSNorm subtracts no mean
        return torch.zeros_like(gain), math.sqrt(d) * gain.diag()
    # G = sqrt(d) diag(gamma) (I - 1 1^T / d)
    return shift, math.sqrt(d) * gain[:, None] * (torch.eye(d, dtype=gain.dtype, device=gain.device) - 1 / d)


def layer_norm_radius(gain: torch.Tensor, shift: torch.Tensor | None) -> float:
    r"""Largest possible norm of an output token of a LayerNorm.

    .. math:: R_*^2 = \max_{|u| = 1} |G u + \beta|^2
        = |\beta|^2 + \min_{\lambda > h_{\max}} \Big(\lambda + \sum_k \frac{g_k^2}{\lambda - h_k}\Big),
        \qquad G = \sqrt d\, \mathrm{diag}(\gamma)\, (I - \tfrac1d \mathbf 1 \mathbf 1^\top),

    with the eigenvalues :math:`h_k` of :math:`G^\top G` and the coordinates :math:`g_k` of :math:`G^\top \beta` in its
    eigenvectors.

    Parameters
    ----------
    gain, shift : Tensor, shape (d,)
        Gain :math:`\gamma` and shift :math:`\beta`, d at least 2. A shift of None stands for an RMSNorm:
        :math:`R_* = \sqrt d \max_k |\gamma_k|`.

    Returns
    -------
    float
        The radius; it is attained, and at most :math:`\sqrt d \max_k |\gamma_k| + |\beta|`.

    Raises
    ------
    ValueError
        If gain and shift are not finite vectors of one shape (d,), d at least 2.

    Notes
    -----
    Ours; the ellipsoid is from castin2024smooth, section 2.3.

    Examples
    --------
    >>> round(layer_norm_radius(torch.ones(4), torch.zeros(4)), 6)
    2.0
    """
    gain = as_double("gain", gain)
    rms, shift = shift is None, torch.zeros_like(gain) if shift is None else as_double("shift", shift)
    fits = gain.ndim == 1 and gain.shape == shift.shape and len(gain) > 1
    if not fits or not torch.isfinite(torch.cat([gain, shift])).all():
        raise ValueError(
            f"gain and shift must have one shape (d,) with d >= 2 and finite entries, got "
            f"{tuple(gain.shape)} and {tuple(shift.shape)}."
        )
    if rms:
        return math.sqrt(len(gain)) * gain.abs().max().item()
    unit = powers_of_two(torch.cat([gain, shift]).abs().amax())
    gain, shift = gain / unit, shift / unit
    G = norm_ellipsoid(gain, shift)[1]
    h, basis = torch.linalg.eigh(G.mT @ G)
    h, g = h.clamp_min(0), basis.mT @ (G.mT @ shift)
    top, reach = h[-1].item(), g.norm().item()

    def slope(step):  # of the bracket, at lambda = h_max + step; increasing in step
        return 1 - (g / (top + step - h)).square().sum().item()

    least = 1e-13 * (top + reach) + 1e-300
    step = least if slope(least) >= 0 else brentq(slope, least, 2 * reach, xtol=least, rtol=1e-14)
    value = shift.square().sum() + top + step + (g.square() / (top + step - h)).sum()
    return (value.sqrt() * unit).item()


def norm_layer_upper(
    gain: torch.Tensor, eps: float, x: torch.Tensor | None = None, *, centred: bool = True
) -> torch.Tensor:
    r"""Lipschitz constant of LayerNorm or RMSNorm for one token, at an input or for all.

    .. math:: \|D_x\, \mathrm{norm}\|_2 \le \frac{\max_k |\gamma_k|}{\sqrt{s(x)^2 + \epsilon}}
        \le \frac{\max_k |\gamma_k|}{\sqrt{\epsilon}},

    with :math:`s^2` the variance of the coordinates of x, or for RMSNorm the mean of their squares. On a sequence the
    constant is that of its worst token.

    Parameters
    ----------
    gain : Tensor, shape (d,)
        The gain :math:`\gamma`; the shift changes no derivative.
    eps : float
        The number added to :math:`s^2`, 0 or more.
    x : Tensor, shape (..., d), optional
        Tokens. Default: the bound for all inputs, attained at equal coordinates (RMSNorm: at 0) up to the centring.
    centred : bool
        Whether the mean of the coordinates is subtracted: True for LayerNorm, False for RMSNorm.

    Returns
    -------
    Tensor, shape (...) or ()
        An upper bound in the Euclidean norm, float64, up to rounding; infinite if :math:`s^2 + \epsilon` is 0.

    Raises
    ------
    ValueError
        If `gain` is not a finite vector, `eps` is negative or infinite, or `x` does not have shape (..., d).

    Notes
    -----
    Elementary. The derivative is :math:`\mathrm{diag}(\gamma)\,(C - z z^\top / (d\, r^2)) / r` with
    :math:`r^2 = s^2 + \epsilon`, z the (centred) token and C the (centring) projection; :math:`|z|^2 = d s^2`, so the
    matrix between has norm at most one.

    Examples
    --------
    >>> norm_layer_upper(torch.tensor([1.0, -2.0]), 0.25).item()
    4.0
    >>> norm_layer_upper(torch.tensor([1.0, -2.0]), 0.0, torch.tensor([1.0, 3.0])).item()
    2.0
    """
    gain = real_tensor("gain", gain, "d").double()
    if not gain.numel() or not 0 <= number("eps", eps) < math.inf:
        raise ValueError(f"eps must be a finite number, 0 or more, and gain not empty, got eps = {eps!r}.")
    if x is None:
        return gain.abs().amax() / as_double("eps", eps).sqrt()
    x = as_double("x", x)
    if not x.ndim or x.shape[-1] != len(gain) or not torch.isfinite(x).all():
        raise ValueError(
            f"x must have shape (..., {len(gain)}), as gain has, and finite entries, got {tuple(x.shape)}."
        )
    size = x.abs().amax(-1, keepdim=True)
    x = x / torch.where(size > 0, size, 1)  # squares neither overflow nor underflow
    for _ in range(2 if centred else 0):  # twice: the first mean is rounded
        x = x - x.mean(-1, keepdim=True)
    spread = size[..., 0] * x.square().mean(-1).sqrt()
    return gain.abs().amax() / torch.hypot(spread, as_double("eps", eps).sqrt())
