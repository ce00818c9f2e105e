"""Attention with rotary positions (RoPE): queries and keys turned by the places of their tokens."""

import torch

__all__ = ["RotaryAttention"]


class RotaryAttention:
    r"""Multi-head attention whose logits depend on how far apart two tokens stand.

    .. math:: \text{logits}_{ij} = s\, (R_i q_i) \cdot (R_j k_j) = s\, q_i^\top R_{j - i}\, k_j,
        \qquad R_i = g\, \mathrm{diag}_c \begin{pmatrix} \cos i \omega_c & -\sin i \omega_c \\
        \sin i \omega_c & \cos i \omega_c \end{pmatrix}

    on the coordinates c and c + k/2 of a head. No one matrix A stands for all pairs of tokens, so the closed forms of
    `lipnb.Attention` do not apply: `lipnb.local_lipschitz` differentiates this map automatically.

    Parameters
    ----------
    attention : Attention
        The same heads without rotation.
    frequencies : Tensor, shape (k / 2,)
        :math:`\omega`, float32.
    gain : float
        g, 1 for most models.

    Notes
    -----
    su2024roformer. Keys and values that several queries share are repeated in `attention`.
    """

    def __init__(self, attention, frequencies, gain=1.0):
        if frequencies.shape != (attention.key_width // 2,) or attention.key_width % 2:
            raise ValueError(
                f"frequencies must have shape (k / 2,) for keys of an even width k = "
                f"{attention.key_width}, got {tuple(frequencies.shape)}."
            )
        attention.check_plain("RotaryAttention")
        self.attention, self.frequencies, self.gain = attention, frequencies, float(gain)

    def __getattr__(self, name):
        if name in (
            "heads",
            "width",
            "key_width",
            "value_width",
            "output_width",
            "masked",
            "window",
            "hidden",
            "dtype",
            "device",
            "scale",
        ):
            return getattr(self.attention, name)
        raise AttributeError(name)

    def to(self, device=None, dtype=None):
        """The same map on another device or in another floating point type."""
        return RotaryAttention(self.attention.to(device=device, dtype=dtype), self.frequencies.to(device), self.gain)

    def __repr__(self):
        return f"Rotary{self.attention!r}"

    def rotate(self, rows):
        """Queries or keys (..., n, k), each turned by its place; the norm of each is multiplied by the gain."""
        places = torch.arange(rows.shape[-2], device=rows.device, dtype=torch.float32)
        angles = places[:, None] * self.frequencies.to(rows.device)  # in float32, as networks do
        cos, sin = (self.gain * part.to(rows.dtype) for part in (angles.cos(), angles.sin()))
        first, second = rows.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def parts(self, x):
        """Rotated queries (scale folded in), rotated keys, values and probabilities at tokens `x`, (..., n, d)."""
        self.attention.check_input(x)
        query, key, value = self.attention.project(x)
        query, key = self.rotate(query), self.rotate(key)
        return query, key, value, self.attention.probabilities_of(query, key)

    def __call__(self, x):
        """Output tokens, shape (..., n, m), of tokens `x`, shape (..., n, d), at places 0, ..., n - 1."""
        _, _, value, P = self.parts(x)
        out = self.attention.combine(P @ value)
        return out if self.attention.output_bias is None else out + self.attention.output_bias
