"""Attention maps: dot-product or L2 heads, masked or not, biased or not, on tokens or on weighted tokens.

One class serves the theorems and the experiments. A measure is a set of tokens with ``weights``, so the
mean-field map of a discrete measure is this map, not a second implementation (castin2024smooth, Def. C.4).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lipnb.checks import check_tokens, check_weights, head_tensors, real_tensor

__all__ = ["Attention"]

SCORES = ("dot", "l2")


def _copy_of(name):
    """A parameter, as a copy that is the caller's to change."""
    return property(
        lambda self: None if self._own[name] is None else self._own[name].clone(),
        doc=f"A copy of the parameter `{name}`, or None.",
    )


class Attention:
    r"""Multi-head attention, by dot products or by distances.

    .. math::
        f(X)_i = b_O + \sum_{h} W_O^{(h)} \sum_j P^{(h)}_{ij} v^{(h)}_j, \qquad
        P^{(h)}_{i\cdot} = \mathrm{softmax}_j\big(s\, q^{(h)}_i \cdot k^{(h)}_j + \log a_j\big)

    with :math:`q = W_Q x + b_Q`, :math:`k = W_K x + b_K`, :math:`v = W_V x + b_V`, token weights :math:`a`
    (all equal unless given), and :math:`j \le i` only when the map is masked. With L2 scores,
    :math:`-s\, |q_i - k_j|^2` stands in place of :math:`s\, q_i \cdot k_j`.

    Parameters
    ----------
    query, key : Tensor, shape (h, k, d)
        Query and key matrices of the heads.
    value : Tensor, shape (h, v, d)
        Value matrices of the heads.
    output : Tensor, shape (h, m, v), optional
        Output matrices. Without them the heads are concatenated, so that ``m = h v``.
    query_bias, key_bias : Tensor, shape (h, k), optional
        Biases of the queries and keys. With dot products the key bias never changes the map.
    value_bias : Tensor, shape (h, v), optional
        Bias of the values.
    output_bias : Tensor, shape (m,), optional
        Bias added to each output token.
    scale : float, optional
        Factor of the logits; default ``1 / sqrt(k)``.
    masked : bool
        Whether token ``i`` sees only tokens ``j <= i`` (causal attention).
    score : {"dot", "l2"}
        How a query meets a key: their product, or the square of their distance.
    window : int, optional
        With a mask: how many tokens each one sees, itself included, ``i - window < j <= i`` (sliding window).

    Raises
    ------
    ValueError
        "key must have shape ..., as query has", and the like: shapes that do not fit, NaN, mixed dtypes.

    Notes
    -----
    A map does not change once made: its attributes cannot be set, it owns copies of the tensors it was given (gradients
    reach those), and ``f.query`` and the like are new copies each time. `replace` makes another map of it.

    castin2024smooth, Def. 2.1 (one head), 2.2 (several heads), 2.5 (masked), C.4 (weights), E.3 (biases);
    kim2021lipschitz, L2 scores.

    Examples
    --------
    >>> import torch
    >>> from lipnb import Attention
    >>> f = Attention(torch.zeros(2, 3, 4), torch.zeros(2, 3, 4), torch.eye(4).expand(2, 4, 4))
    >>> f
    Attention(2 heads, width 4, key width 3, output width 8, unmasked, no bias, float32)
    >>> f(torch.tensor([[1.0, 0.0, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0]]))[0]  # no logits: two heads of means
    tensor([2., 0., 0., 0., 2., 0., 0., 0.])
    """

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        output: Tensor | None = None,
        *,
        query_bias: Tensor | None = None,
        key_bias: Tensor | None = None,
        value_bias: Tensor | None = None,
        output_bias: Tensor | None = None,
        scale: float | None = None,
        masked: bool = False,
        score: str = "dot",
        window: int | None = None,
    ) -> None:
        if score not in SCORES:
            raise ValueError(f"score must be one of {SCORES}, got {score!r}.")
        if window is not None and not (masked and isinstance(window, int) and window > 0):
            raise ValueError(
                "window must be None or, with masked=True, how many tokens each one sees, 1 or more, got "
                f"{window!r} with masked={bool(masked)}."
            )
        own = head_tensors(
            dict(
                query=query,
                key=key,
                value=value,
                output=output,
                query_bias=query_bias,
                key_bias=key_bias,
                value_bias=value_bias,
                output_bias=output_bias,
            )
        )
        (h, k, d), v = own["query"].shape, own["value"].shape[1]
        settings = {
            "scale": k**-0.5 if scale is None else float(scale),
            "masked": bool(masked),
            "score": score,
            "window": window,
        }
        # its own, and never changed: what is made of them can be kept
        vars(self).update(settings, _own=own, _settings=settings, _kept={})
        vars(self).update(
            heads=h,
            key_width=k,
            width=d,
            value_width=v,
            output_width=h * v if own["output"] is None else own["output"].shape[1],
        )

    scale: float
    masked: bool
    score: str
    window: int | None
    heads: int
    key_width: int
    width: int
    value_width: int
    output_width: int
    _own: dict[str, Any]
    _settings: dict
    _kept: dict

    query, key, value, output = (_copy_of(name) for name in ("query", "key", "value", "output"))
    query_bias, key_bias, value_bias, output_bias = (
        _copy_of(f"{name}_bias") for name in ("query", "key", "value", "output")
    )

    def __setattr__(self, name, value):
        raise AttributeError(f"an Attention does not change once made: make a new one, e.g. f.replace({name}=...).")

    def __delattr__(self, name):
        self.__setattr__(name, None)

    def __getstate__(self):
        return {**vars(self), "_kept": {}}  # made again where it is needed

    def __deepcopy__(self, memo):
        return self

    def replace(self, **changes) -> "Attention":
        """A new map with other arguments: ``f.replace(value=2 * f.value, masked=True)``; the others stay."""
        return type(self)(**{**self._own, **self._settings, **changes})

    def kept(self, name, make: Callable):
        """What `make` makes of this map, made once for each `name` and kept with it: the map never changes."""
        if name not in self._kept:
            self._kept[name] = make(self)
        return self._kept[name]

    def _tensors(self):
        return {name: tensor for name, tensor in self._own.items() if tensor is not None}

    @property
    def dtype(self) -> torch.dtype:
        """Floating point type of the parameters; inputs must have the same."""
        return self._own["query"].dtype

    @property
    def device(self) -> torch.device:
        """Device of the parameters; inputs must lie on the same."""
        return self._own["query"].device

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Attention":
        """The same map on another device or in another floating point type."""
        return self.replace(**{name: tensor.to(device=device, dtype=dtype) for name, tensor in self._tensors().items()})

    @classmethod
    def from_matrices(cls, A: Tensor, V: Tensor, *, masked: bool = False) -> "Attention":
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
        A = real_tensor("A", A, ("d", "d"))
        V = real_tensor("V", V, ("m", "d"))
        if A.shape[0] != A.shape[1]:
            raise ValueError(f"A must be square, got shape {tuple(A.shape)}.")
        identity = torch.eye(A.shape[0], dtype=A.dtype, device=A.device)
        return cls(A[None], identity[None], V[None], scale=1.0, masked=masked)

    @classmethod
    def l2(cls, query: Tensor, value: Tensor, output: Tensor | None = None, *, masked: bool = False) -> "Attention":
        r"""L2 attention with tied queries and keys: the map that is Lipschitz on all inputs.

        .. math::
            f^h(X) = P^h X A_h, \qquad P^h_{ij} \propto e^{-|q_i - q_j|^2 / \sqrt k}, \qquad
            A_h = W_Q^\top W_Q / \sqrt k, \qquad F(X)_i = \sum_h W_O^{(h)} W_V^{(h)} f^h(X)_i

        Parameters
        ----------
        query : Tensor, shape (h, k, d)
            Query matrices :math:`W_Q` of the heads, which are the key matrices too.
        value : Tensor, shape (h, v, d)
            Value matrices :math:`W_V`. In the map returned, :math:`W_V A_h` takes their place.
        output : Tensor, shape (h, m, v), optional
            Output matrices.
        masked : bool
            Whether token ``i`` sees only tokens ``j <= i``.

        Returns
        -------
        Attention
            With ``score="l2"`` and ``scale = 1 / sqrt(k)``.

        Notes
        -----
        kim2021lipschitz, L2 multi-head attention. `lipnb.bounds.l2_upper` bounds its Lipschitz constant.
        """
        query, value = real_tensor("query", query, ("h", "k", "d")), real_tensor("value", value, ("h", "v", "d"))
        folded = value @ query.mT @ query * query.shape[1] ** -0.5 if value.shape[2] == query.shape[2] else value
        return cls(query, query, folded, output, masked=masked, score="l2")

    def __repr__(self) -> str:
        biases = [name for name in self._tensors() if name.endswith("_bias")]
        kind = "L2 heads" if self.score == "l2" else "heads"
        mask = "unmasked" if not self.masked else "masked" if self.window is None else f"window {self.window}"
        return (
            f"Attention({self.heads} {kind}, width {self.width}, key width {self.key_width}, "
            f"output width {self.output_width}, {mask}, "
            f"{', '.join(biases) or 'no bias'}, {str(self.dtype).removeprefix('torch.')})"
        )

    def check_dot(self, what: str) -> None:
        """Raise one clear sentence unless scores are dot products, the only ones that `what` knows."""
        if self.score != "dot":
            raise ValueError(f"{what} knows dot-product scores only, not score={self.score!r}.")

    def check_input(self, x: Tensor, weights: Tensor | None = None) -> None:
        """Raise one clear sentence unless tokens `x`, shape (..., n, d), and `weights`, (..., n), fit this map."""
        check_tokens(x, self.width, self.dtype, self.device)
        if weights is not None:
            check_weights(weights, x)

    @property
    def slope(self) -> float:
        """Factor of the products q . k in the logits: `scale`, or twice that with L2 scores."""
        return self.scale if self.score == "dot" else 2 * self.scale

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (slope folded in), keys and values: shapes (..., h, n, k), (..., h, n, k) and (..., h, n, v)."""

        def heads_of(name):
            rows, bias = torch.einsum("...nd,hkd->...hnk", x, self._own[name]), self._own[f"{name}_bias"]
            return rows if bias is None else rows + bias[:, None, :]

        return self.slope * heads_of("query"), heads_of("key"), heads_of("value")

    def centred(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys seen from the mean key, where L2 scores lose the fewest digits; others as they are."""
        if self.score == "dot":
            return query, key
        centre = key.mean(-2, keepdim=True)
        return query - self.slope * centre, key - centre

    def added_to_logits(self, key: Tensor, weights: Tensor | None = None) -> Tensor | None:
        """What each key adds to its column of logits, (..., h or 1, 1, n), or None: log weight, ``-s |k|^2``."""
        added = None if weights is None else weights.log()[..., None, None, :]
        if self.score == "dot":
            return added
        size = -self.scale * key.square().sum(-1)[..., None, :]
        return size if added is None else size + added

    def hidden(self, n: int, rows=slice(None), columns=slice(None)) -> Tensor | None:
        """Which of n tokens j token i does not see, boolean, shape (n, n); None without a mask: all are seen.

        Hidden are ``j > i`` and, with a window, ``j <= i - window``. `rows` and `columns`, slices or tensors of
        integers, choose i and j; only their part is made.
        """
        if not self.masked:
            return None
        places = torch.arange(n, device=self.device)
        i, j = places[rows][:, None], places[columns]
        return j > i if self.window is None else (j > i) | (j <= i - self.window)

    def hide(self, logits: Tensor, n: int, rows=slice(None), columns=slice(None)) -> Tensor:
        """The `logits` of these rows and columns of n tokens, shape (..., rows, columns), with the mask, in place.

        Minus infinity where `hidden`. The one place where a mask is applied.
        """
        if not self.masked:
            return logits
        first = columns.start or 0
        if self.window is None and isinstance(rows, slice):  # tokens before the first row are seen by all
            first = max(first, rows.start or 0)
        part = logits[..., first - (columns.start or 0) :]
        part.masked_fill_(self.hidden(n, rows, slice(first, columns.stop)), -torch.inf)
        return logits

    def seen(self, n: int, first: int, last: int) -> slice:
        """The slice of n tokens outside which tokens first <= i < last see none."""
        if not self.masked:
            return slice(0, n)
        return slice(0 if self.window is None else max(0, first + 1 - self.window), last)

    def probabilities_of(self, query: Tensor, key: Tensor, weights: Tensor | None = None) -> Tensor:
        """Attention probabilities, shape (..., h, n, n), of queries (slope folded in) and keys (..., h, n, k)."""
        query, key = self.centred(query, key)
        logits, added = query @ key.mT, self.added_to_logits(key, weights)
        logits = logits if added is None else logits + added
        return self.hide(logits, key.shape[-2]).softmax(-1)

    def probabilities(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Attention probabilities P, shape (..., h, n, n), at tokens `x`, shape (..., n, d)."""
        self.check_input(x, weights)
        query, key, _ = self.project(x)
        return self.probabilities_of(query, key, weights)

    def combine(self, heads: Tensor) -> Tensor:
        """Output tokens without the output bias, shape (..., n, m), of head outputs (..., h, n, v)."""
        if self._own["output"] is None:
            return heads.movedim(-3, -2).flatten(-2)
        return torch.einsum("...hnv,hmv->...nm", heads, self._own["output"])

    def combine_transposed(self, w: Tensor) -> Tensor:
        """Transpose of `combine`: head outputs (..., h, n, v) of output tokens `w`, shape (..., n, m)."""
        if self._own["output"] is None:
            return w.unflatten(-1, (self.heads, self.value_width)).movedim(-2, -3)
        return torch.einsum("...nm,hmv->...hnv", w, self._own["output"])

    def __call__(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Output tokens, shape (..., n, m), of tokens `x`, shape (..., n, d), with optional `weights` (..., n)."""
        self.check_input(x, weights)
        query, key, value = self.project(x)
        out = self.combine(self.probabilities_of(query, key, weights) @ value)
        return out if self._own["output_bias"] is None else out + self._own["output_bias"]
