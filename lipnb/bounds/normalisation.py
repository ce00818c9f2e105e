"""The norm layers before attention: how much LayerNorm and RMSNorm stretch a token."""

import torch

from lipnb.checks import as_double, real_tensor

__all__ = ["norm_layer_upper"]


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
        Whether the mean of the coordinates is taken off: True for LayerNorm, False for RMSNorm.

    Returns
    -------
    Tensor, shape (...) or ()
        An upper bound in the Euclidean norm, float64, up to rounding; infinite where :math:`s^2 + \epsilon` is 0.

    Raises
    ------
    ValueError
        "gain must ...", "eps must be ...", "x must have shape ...".

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
    if not gain.numel() or not 0 <= eps < float("inf"):
        raise ValueError(f"eps must be a finite number, 0 or more, and gain not empty, got eps = {eps!r}.")
    if x is None:
        return gain.abs().amax() / as_double(eps).sqrt()
    x = as_double(x)
    if not x.ndim or x.shape[-1] != len(gain) or not torch.isfinite(x).all():
        raise ValueError(
            f"x must have shape (..., {len(gain)}), as gain has, and finite entries, got {tuple(x.shape)}."
        )
    size = x.abs().amax(-1, keepdim=True)
    x = x / torch.where(size > 0, size, 1)  # squares neither overflow nor underflow
    for _ in range(2 if centred else 0):  # twice: the first mean is rounded
        x = x - x.mean(-1, keepdim=True)
    spread = size[..., 0] * x.square().mean(-1).sqrt()
    return gain.abs().amax() / torch.hypot(spread, as_double(eps).sqrt())
