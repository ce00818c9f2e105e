"""Attention maps: dot-product heads, masked or not, biased or not, on tokens or on weighted tokens.

One class serves the theorems and the experiments. A measure is a set of tokens with ``weights``, so the
mean-field map of a discrete measure is this map, not a second implementation (castin2024smooth, Def. C.4).
"""

import torch

__all__ = ["Attention"]

SCORES = ("dot",)


def _holds(condition):
    """Whether a boolean tensor is true everywhere; True inside `torch.func.vmap`, where values cannot be read."""
    try:
        return bool(condition.all())
    except RuntimeError:
        return True


def _real_tensor(name, value, dimensions):
    """`value` as a floating point tensor, or one sentence saying what is wrong with it."""
    tensor = torch.as_tensor(value)
    if not tensor.is_floating_point():
        raise ValueError(f"{name} must be a real floating point tensor, got {tensor.dtype}: use .float() or .double().")
    if tensor.ndim != len(dimensions):
        raise ValueError(
            f"{name} must have shape ({', '.join(dimensions)}), got {tuple(tensor.shape)}: "
            f"{len(dimensions)} dimensions are needed."
        )
    if not _holds(torch.isfinite(tensor)):
        raise ValueError(f"{name} holds NaN or infinite values: remove them first.")
    return tensor


class Attention:
    r"""Multi-head dot-product attention.

    .. math::
        f(X)_i = b_O + \sum_{h} W_O^{(h)} \sum_j P^{(h)}_{ij} v^{(h)}_j, \qquad
        P^{(h)}_{i\cdot} = \mathrm{softmax}_j\big(s\, q^{(h)}_i \cdot k^{(h)}_j + \log a_j\big)

    with :math:`q = W_Q x + b_Q`, :math:`k = W_K x + b_K`, :math:`v = W_V x + b_V`, token weights :math:`a`
    (all equal unless given), and :math:`j \le i` only when the map is masked.

    Parameters
    ----------
    query, key : Tensor, shape (h, k, d)
        Query and key matrices of the heads.
    value : Tensor, shape (h, v, d)
        Value matrices of the heads.
    output : Tensor, shape (h, m, v), optional
        Output matrices. Without them the heads are concatenated, so that ``m = h v``.
    query_bias, key_bias : Tensor, shape (h, k), optional
        Biases of the queries and keys. The key bias never changes the map.
    value_bias : Tensor, shape (h, v), optional
        Bias of the values.
    output_bias : Tensor, shape (m,), optional
        Bias added to each output token.
    scale : float, optional
        Factor of the logits; default ``1 / sqrt(k)``.
    masked : bool
        Whether token ``i`` sees only tokens ``j <= i`` (causal attention).
    score : {"dot"}
        How a query meets a key.

    Raises
    ------
    ValueError
        "key must have shape ..., as query has", and the like: shapes that do not fit, NaN, mixed dtypes.

    Notes
    -----
    castin2024smooth, Def. 2.1 (one head), 2.2 (several heads), 2.5 (masked), C.4 (weights), E.3 (biases).
    """

    def __init__(self, query, key, value, output=None, *, query_bias=None, key_bias=None, value_bias=None,
                 output_bias=None, scale=None, masked=False, score="dot"):
        if score not in SCORES:
            raise ValueError(f"score must be one of {SCORES}, got {score!r}.")
        self.query = _real_tensor("query", query, ("h", "k", "d"))
        self.key = _real_tensor("key", key, ("h", "k", "d"))
        self.value = _real_tensor("value", value, ("h", "v", "d"))
        h, k, d = self.query.shape
        if 0 in self.query.shape or 0 in self.value.shape:
            raise ValueError("query, key and value need at least one head, one row and one column.")
        v = self.value.shape[1]
        if self.key.shape != (h, k, d):
            raise ValueError(f"key must have shape {(h, k, d)}, as query has, got {tuple(self.key.shape)}.")
        if self.value.shape != (h, v, d):
            raise ValueError(f"value must have shape ({h}, v, {d}) to go with query, got {tuple(self.value.shape)}.")
        self.output = None if output is None else _real_tensor("output", output, ("h", "m", "v"))
        if self.output is not None and (self.output.shape[0], self.output.shape[2]) != (h, v):
            raise ValueError(f"output must have shape ({h}, m, {v}) to go with value, got {tuple(self.output.shape)}.")
        m = h * v if self.output is None else self.output.shape[1]
        self.heads, self.key_width, self.width, self.value_width, self.output_width = h, k, d, v, m
        for name, bias, shape in (("query_bias", query_bias, (h, k)), ("key_bias", key_bias, (h, k)),
                                  ("value_bias", value_bias, (h, v)), ("output_bias", output_bias, (m,))):
            if bias is not None:
                bias = _real_tensor(name, bias, [str(size) for size in shape])
                if bias.shape != shape:
                    raise ValueError(f"{name} must have shape {shape}, got {tuple(bias.shape)}.")
            setattr(self, name, bias)
        kinds = {(t.dtype, t.device) for t in self._tensors().values()}
        if len(kinds) > 1:
            raise ValueError(f"all parameters must share one dtype and device, got {sorted(map(str, kinds))}.")
        self.scale = k**-0.5 if scale is None else float(scale)
        self.masked = bool(masked)
        self.score = score

    @classmethod
    def from_matrices(cls, A, V, *, masked=False):
        r"""One head as the theorems write it: logits :math:`x_i^\top A^\top x_j`, output :math:`V m_i`.

        Parameters
        ----------
        A : Tensor, shape (d, d)
            :math:`A = K^\top Q / \sqrt k`. The transpose matters when `A` is not symmetric.
        V : Tensor, shape (m, d)
            Value matrix.
        masked : bool
            Whether token ``i`` sees only tokens ``j <= i``.

        Returns
        -------
        Attention
            With ``scale = 1``, the query matrix `A` and the identity as the key matrix.

        Notes
        -----
        castin2024smooth, Def. 2.1 and 2.5.
        """
        A = _real_tensor("A", A, ("d", "d"))
        V = _real_tensor("V", V, ("m", "d"))
        if A.shape[0] != A.shape[1]:
            raise ValueError(f"A must be square, got shape {tuple(A.shape)}.")
        identity = torch.eye(A.shape[0], dtype=A.dtype, device=A.device)
        return cls(A[None], identity[None], V[None], scale=1.0, masked=masked)

    def _tensors(self):
        names = ("query", "key", "value", "output", "query_bias", "key_bias", "value_bias", "output_bias")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @property
    def dtype(self):
        """Floating point type of the parameters; inputs must have the same."""
        return self.query.dtype

    @property
    def device(self):
        """Device of the parameters; inputs must lie on the same."""
        return self.query.device

    def to(self, device=None, dtype=None):
        """The same map on another device or in another floating point type."""
        tensors = {name: tensor.to(device=device, dtype=dtype) for name, tensor in self._tensors().items()}
        return Attention(**tensors, scale=self.scale, masked=self.masked, score=self.score)

    def __repr__(self):
        biases = [name for name in self._tensors() if name.endswith("_bias")]
        return (f"Attention({self.heads} heads, width {self.width}, key width {self.key_width}, "
                f"output width {self.output_width}, {'masked' if self.masked else 'unmasked'}, "
                f"{', '.join(biases) or 'no bias'}, {str(self.dtype).removeprefix('torch.')})")

    def check_input(self, x, weights=None):
        """Raise one clear sentence if `x` (and `weights`) cannot be an input of this map.

        Parameters
        ----------
        x : Tensor, shape (..., n, d)
            Tokens.
        weights : Tensor, shape (n,) or (..., n), optional
            Positive token weights.

        Raises
        ------
        ValueError
            "x must have shape (..., n, d) with d = ...", "x holds no token", "x holds NaN", "weights must be ...".
        """
        if not isinstance(x, torch.Tensor):
            raise ValueError(f"x must be a torch tensor, got {type(x).__name__}: use torch.as_tensor(x).")
        if x.ndim < 2 or x.shape[-1] != self.width:
            raise ValueError(f"x must have shape (..., n, d) with d = {self.width}, got {tuple(x.shape)}.")
        if x.numel() == 0:
            raise ValueError(f"x has shape {tuple(x.shape)} and holds no token: give at least one sequence, n >= 1.")
        if (x.dtype, x.device) != (self.dtype, self.device):
            raise ValueError(f"x is {x.dtype} on {x.device} but the attention is {self.dtype} on {self.device}: "
                             "use x.to(...) or attention.to(...).")
        if not _holds(torch.isfinite(x)):
            raise ValueError("x holds NaN or infinite values: remove them first.")
        if weights is not None:
            check_weights(weights, x)

    def project(self, x):
        """Queries (scale folded in), keys and values: shapes (..., h, n, k), (..., h, n, k) and (..., h, n, v)."""
        def heads_of(matrix, bias):
            rows = torch.einsum("...nd,hkd->...hnk", x, matrix)
            return rows if bias is None else rows + bias[:, None, :]
        return (self.scale * heads_of(self.query, self.query_bias), heads_of(self.key, self.key_bias),
                heads_of(self.value, self.value_bias))

    def probabilities_of(self, query, key, weights=None):
        """Attention probabilities, shape (..., h, n, n), of queries (scale folded in) and keys (..., h, n, k)."""
        logits = query @ key.mT
        if weights is not None:
            logits = logits + weights.log()[..., None, None, :]
        if self.masked:
            n = logits.shape[-1]
            later = torch.ones(n, n, dtype=torch.bool, device=logits.device).triu(1)
            logits = logits.masked_fill(later, -torch.inf)
        return logits.softmax(-1)

    def probabilities(self, x, weights=None):
        """Attention probabilities P, shape (..., h, n, n), at tokens `x`, shape (..., n, d)."""
        self.check_input(x, weights)
        query, key, _ = self.project(x)
        return self.probabilities_of(query, key, weights)

    def combine(self, heads):
        """Output tokens without the output bias, shape (..., n, m), of head outputs (..., h, n, v)."""
        if self.output is None:
            return heads.movedim(-3, -2).flatten(-2)
        return torch.einsum("...hnv,hmv->...nm", heads, self.output)

    def combine_transposed(self, w):
        """Transpose of `combine`: head outputs (..., h, n, v) of output tokens `w`, shape (..., n, m)."""
        if self.output is None:
            return w.unflatten(-1, (self.heads, self.value_width)).movedim(-2, -3)
        return torch.einsum("...nm,hmv->...hnv", w, self.output)

    def __call__(self, x, weights=None):
        """Output tokens, shape (..., n, m), of tokens `x`, shape (..., n, d), with optional `weights` (..., n)."""
        self.check_input(x, weights)
        query, key, value = self.project(x)
        out = self.combine(self.probabilities_of(query, key, weights) @ value)
        return out if self.output_bias is None else out + self.output_bias


def check_weights(weights, x):
    """Raise one clear sentence unless `weights` (n,) or (..., n) are positive finite weights of the tokens `x`."""
    if not isinstance(weights, torch.Tensor) or weights.shape[-1:] != x.shape[-2:-1]:
        raise ValueError(f"weights must be a tensor with one entry per token (n = {x.shape[-2]}).")
    if weights.ndim > 1 and weights.shape != x.shape[:-1]:
        shapes = f"{(x.shape[-2],)} or {tuple(x.shape[:-1])}"
        raise ValueError(f"weights must have shape {shapes}, got {tuple(weights.shape)}.")
    if (weights.dtype, weights.device) != (x.dtype, x.device):
        raise ValueError(f"weights are {weights.dtype} on {weights.device} but x is {x.dtype} on {x.device}.")
    if not _holds(torch.isfinite(weights) & (weights > 0)):
        raise ValueError("weights must be positive and finite: leave out the tokens of weight zero.")
