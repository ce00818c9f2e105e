"""One sentence for a tensor that does not fit: parameters, tokens and token weights."""

import torch

__all__ = ["check_tokens", "check_weights", "holds", "real_tensor"]


def holds(condition):
    """Whether a boolean tensor is true everywhere; True inside `torch.func.vmap`, where values cannot be read."""
    try:
        return bool(condition.all())
    except RuntimeError as error:
        if "vmap" not in str(error):
            raise
        return True


def real_tensor(name, value, dimensions):
    """`value` as a floating point tensor, or one sentence saying what is wrong with it."""
    tensor = torch.as_tensor(value)
    if not tensor.is_floating_point():
        raise ValueError(f"{name} must be a real floating point tensor, got {tensor.dtype}: use .float() or .double().")
    if tensor.ndim != len(dimensions):
        raise ValueError(
            f"{name} must have shape ({', '.join(dimensions)}), got {tuple(tensor.shape)}: "
            f"{len(dimensions)} dimensions are needed."
        )
    if not holds(torch.isfinite(tensor)):
        raise ValueError(f"{name} holds NaN or infinite values: remove them first.")
    return tensor


def check_tokens(x, width, dtype, device):
    """Raise one clear sentence unless `x` holds tokens of this width, shape (..., n, d), type and device."""
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"x must be a torch tensor, got {type(x).__name__}: use torch.as_tensor(x).")
    if x.ndim < 2 or x.shape[-1] != width:
        raise ValueError(f"x must have shape (..., n, d) with d = {width}, got {tuple(x.shape)}.")
    if x.numel() == 0:
        raise ValueError(f"x has shape {tuple(x.shape)} and holds no token: give at least one sequence, n >= 1.")
    if (x.dtype, x.device) != (dtype, device):
        raise ValueError(f"x is {x.dtype} on {x.device} but the attention is {dtype} on {device}: "
                         "use x.to(...) or attention.to(...).")
    if not holds(torch.isfinite(x)):
        raise ValueError("x holds NaN or infinite values: remove them first.")


def check_weights(weights, x):
    """Raise one clear sentence unless `weights` (n,) or (..., n) are positive finite weights of the tokens `x`."""
    if not isinstance(weights, torch.Tensor) or weights.shape[-1:] != x.shape[-2:-1]:
        raise ValueError(f"weights must be a tensor with one entry per token (n = {x.shape[-2]}).")
    if weights.ndim > 1 and weights.shape != x.shape[:-1]:
        shapes = f"{(x.shape[-2],)} or {tuple(x.shape[:-1])}"
        raise ValueError(f"weights must have shape {shapes}, got {tuple(weights.shape)}.")
    if (weights.dtype, weights.device) != (x.dtype, x.device):
        raise ValueError(f"weights are {weights.dtype} on {weights.device} but x is {x.dtype} on {x.device}.")
    if not holds(torch.isfinite(weights) & (weights > 0)):
        raise ValueError("weights must be positive and finite: leave out the tokens of weight zero.")
