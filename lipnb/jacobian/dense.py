"""What every dense Jacobian shares: the refusal of a matrix that would not fit."""

import math

__all__ = ["refuse_large_dense"]

DENSE_ENTRIES = 2**28  # 2 GiB in float64; above it a dense Jacobian is refused


def refuse_large_dense(shape):
    """Raise before a dense Jacobian of more than `DENSE_ENTRIES` entries is built."""
    if math.prod(shape) > DENSE_ENTRIES:
        raise ValueError(
            f"a dense Jacobian of shape {tuple(shape)} would hold {math.prod(shape):.1e} entries: "
            "use jvp and vjp, or local_lipschitz(method='lanczos')."
        )
