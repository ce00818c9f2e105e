"""Attention maps: dot-product or L2 heads, plain or with features of transformers, on tokens or weighted tokens.

One class serves the theorems and the experiments. A measure is a set of tokens with ``weights``, so the
mean-field map of a discrete measure is this map, not a second implementation (castin2024smooth, Def. C.4).
"""

from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, Self

import torch
from torch import Tensor

from lipnb.attention.features import Feature, features, irrelevant_biases
from lipnb.attention.parameters import AXES, KEPT_DTYPE, checked_settings, checked_tensors
from lipnb.attention.rope_norm import Norm, Rotation, RowJacobian, rotation
from lipnb.checks import check_tokens, check_weights, real_tensor

__all__ = ["Attention"]

ALL = slice(None)


@dataclass(eq=False, repr=False)
class Attention:
    r"""Multi-head attention with dot-product or L2 scores.

    .. math::
        f(X)_i = b_O + \sum_{h} W_O^{(h)} \sum_j P^{(h)}_{ij} v^{(h)}_j, \qquad
        P^{(h)}_{i\cdot} = \mathrm{softmax}_j\big(s\, q^{(h)}_i \cdot k^{(h)}_j + \log a_j\big)

    with :math:`q = W_Q x + b_Q`, :math:`k = W_K x + b_K`, :math:`v = W_V x + b_V`, token weights :math:`a`
    (all equal unless given), and :math:`j \le i` only when the map is masked. With L2 scores,
    :math:`-s\, |q_i - k_j|^2` stands in place of :math:`s\, q_i \cdot k_j`. With the features of today's transformers

    .. math::
        q_i = R_i N_Q(W_Q x_i + b_Q), \qquad k_j = R_j N_K(W_K x_j + b_K), \qquad
        \text{logits } \kappa(s\, q_i \cdot k_j) + B_{j - i} + \log a_j,

    R rotates rows by their positions, N normalises them, :math:`\kappa(l) = c \tanh(l / c)` caps logits, B is added to
    them by distance, and several query heads share one head of keys and values.

    Parameters
    ----------
    query : Tensor, shape (h, k, d)
        Query matrices of the heads.
    key, value : Tensor, shape (g, k, d) and (g, v, d)
        Key and value matrices. g divides h: query heads 0 to h / g - 1 share the first, and so on; usually g = h.
    output : Tensor, shape (h, m, v), optional
        Output matrices. Without them the heads are concatenated, so that ``m = h v``.
    query_bias, key_bias : Tensor, shape (h, k) and (g, k), optional
        Biases of the queries and keys. With plain dot products the key bias never changes the map.
    value_bias : Tensor, shape (g, v), optional
        Bias of the values.
    output_bias : Tensor, shape (m,), optional
        Bias added to each output token.
    scale : float, optional
        Factor of the logits; default ``1 / sqrt(k)``.
    masked : bool
        Whether token ``i`` sees only tokens ``j <= i`` (causal attention).
    score : {"dot", "l2"}
        Score of a query and a key: their product, or minus the square of their distance.
    window : int, optional
        Sliding window: each token sees ``i - window < j <= i``, without a mask ``|i - j| < window`` (ModernBERT).
    frequencies : Tensor, shape (p,), float32 or float64, optional
        Rotary positions: :math:`R_i` rotates coordinates c and c + p of a query or key by the angle :math:`i \omega_c`,
        :math:`p \le k / 2`. Angles, cosines and sines are computed in the type of the frequencies, as in networks.
    query_norm, key_norm : Tensor, shape (h, k) and (g, k), optional
        Weights w of RMSNorm in the head, :math:`N(y) = w \circ y / \sqrt{|y|^2 / k + \epsilon}`.
    norm_eps : float
        The :math:`\epsilon` of the norms; if it is 0, no row may be zero.
    joint_norm : bool
        Whether :math:`|y|^2 / k` is the mean square of all heads together.
    cap : float, optional
        Soft-capping: the c of :math:`\kappa`.
    relative : Tensor, shape (h, 2 w + 1), optional
        B at the distances j - i from -w to w; beyond w, the value at w or -w (ALiBi, learned relative biases).
        Distances may share a number, as in T5: ``table[:, bucket(torch.arange(-w, w + 1))]`` with a table (h, buckets)
        and w at least the first distance of the last bucket; gradients add up in the table.
    sinks : Tensor, shape (h,), optional
        Logits of one additional token of value zero, visible to all tokens: rows of P then sum to less than one.

    Attributes
    ----------
    more : tuple of Feature
        Features beyond the plain heads of the theorems, such as "rotary positions".

    Raises
    ------
    ValueError
        If shapes do not fit together, entries are not finite, dtypes or devices differ, a setting is out of range, or
        a cap or sinks come with L2 scores.
    TypeError
        If `scale`, `cap` or `norm_eps` is not a number.

    Notes
    -----
    Attributes cannot be set; `replace` makes a new map. A map holds copies of its arguments, and gradients reach the
    original tensors. ``f.query`` and the like are the tensors of the map itself: writing into them, as in
    ``f.query *= 2``, changes the map and everything computed with it afterwards, but no `AttentionJacobian` and no
    answer that already exists. Shapes and types must stay as they are.

    castin2024smooth, Def. 2.1 (one head), 2.2 (several heads), 2.5 (masked), C.4 (weights), E.3 (biases);
    kim2021lipschitz, L2 scores; su2024roformer, rotary positions.

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

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor | None = None
    _: KW_ONLY
    query_bias: Tensor | None = None
    key_bias: Tensor | None = None
    value_bias: Tensor | None = None
    output_bias: Tensor | None = None
    scale: float = None  # type: ignore[assignment]  # a number after construction
    masked: bool = False
    score: str = "dot"
    window: int | None = None
    frequencies: Tensor | None = None
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    norm_eps: float = 1e-6
    joint_norm: bool = False
    cap: float | None = None
    relative: Tensor | None = None
    sinks: Tensor | None = None

    # derived from shapes and settings
    heads: int = field(init=False)
    groups: int = field(init=False)
    key_width: int = field(init=False)
    width: int = field(init=False)
    value_width: int = field(init=False)
    output_width: int = field(init=False)
    slope: float = field(init=False)  # of the products q . k in the logits
    dtype: torch.dtype = field(init=False)  # of the tensors; inputs must have the same
    device: torch.device = field(init=False)
    more: tuple[Feature, ...] = field(init=False)
    irrelevant_biases: tuple[str, ...] = field(init=False)  # names of the biases that change no derivative
    kept: dict = field(init=False)  # derived tensors, kept by modules that check the numbers of the map

    def __post_init__(self) -> None:
        vars(self).update(checked_tensors(vars(self)))
        vars(self).update(checked_settings(vars(self)))
        self._derive()
        self.kept = {}

    def _derive(self):
        """Set the attributes derived from shapes and settings."""
        (h, k, d), (g, v, _) = self.query.shape, self.value.shape
        m = h * v if self.output is None else self.output.shape[1]
        vars(self).update(heads=h, groups=g, key_width=k, width=d, value_width=v, output_width=m)
        vars(self).update(dtype=self.query.dtype, device=self.query.device, more=features(self))
        slope = self.scale if self.score == "dot" else 2 * self.scale
        vars(self).update(slope=slope, irrelevant_biases=irrelevant_biases(self))

    def __setattr__(self, name, value):
        # f.query *= 2 has written into the tensor, and then sets the same tensor
        if "kept" in vars(self) and not (isinstance(value, Tensor) and vars(self).get(name) is value):
            raise AttributeError(f"an Attention cannot be changed: make a new one, e.g. f.replace({name}=...).")
        super().__setattr__(name, value)

    def __delattr__(self, name):
        self.__setattr__(name, None)

    def __getstate__(self):
        return {**vars(self), "kept": {}}

    def __setstate__(self, state):
        if {one.name for one in fields(self)} - {*state}:
            raise ValueError("this Attention was pickled by another version of lipnb: make it again from its matrices.")
        vars(self).update(state)

    def __deepcopy__(self, memo):
        memo[id(self)] = new = self.replace()  # tensors with a history refuse to be copied deeply
        return new

    def replace(self, **changes: Any) -> Self:
        """A new map with some arguments changed: ``f.replace(value=2 * f.value, masked=True)``."""
        return type(self)(**{one.name: getattr(self, one.name) for one in fields(self) if one.init} | changes)

    def changed(self, **changes: Any) -> Self:
        """As `replace`, but sharing the tensors of this map and of `changes`: neither copied nor checked.

        The dictionary of derived tensors is shared too, unless ``kept={}`` is among the changes. That is right for any
        change, because each use compares the stored values with the tensors.
        """
        new = object.__new__(type(self))
        vars(new).update(vars(self), **changes)
        new._derive()
        return new

    def tensors(self) -> dict[str, Tensor]:
        """Tensors of the map by the names of its arguments, except None."""
        found = {name: getattr(self, name) for name in AXES}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def to(self, device: torch.device | torch.dtype | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """The same map on another device or in another floating point type; frequencies keep their type.

        As for a tensor: ``f.to(torch.float64)``; tensors that already have the type and device are shared, not copied.
        """
        if isinstance(device, torch.dtype) and dtype is None:
            device, dtype = None, device
        moved = {
            name: tensor.to(device=device, dtype=None if name == KEPT_DTYPE else dtype)
            for name, tensor in self.tensors().items()
        }
        if dtype is None or torch.promote_types(self.dtype, dtype) == dtype:  # no number can overflow
            return self.changed(**moved, kept={})
        return self.replace(**moved)

    @classmethod
    def from_matrices(cls, A: Tensor, V: Tensor, *, masked: bool = False) -> "Attention":
        r"""One head in the notation of the theorems: logits :math:`x_i^\top A^\top x_j`, output :math:`V m_i`.

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
            Map with ``scale = 1``, the query matrix `A` and the identity as the key matrix.

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
            Query matrices :math:`W_Q` of the heads, also used as key matrices.
        value : Tensor, shape (h, v, d)
            Value matrices :math:`W_V`; the returned map has :math:`W_V A_h` in their place.
        output : Tensor, shape (h, m, v), optional
            Output matrices.
        masked : bool
            Whether token ``i`` sees only tokens ``j <= i``.

        Returns
        -------
        Attention
            Map with ``score="l2"`` and ``scale = 1 / sqrt(k)``.

        Notes
        -----
        kim2021lipschitz, L2 multi-head attention. `lipnb.bounds.l2_upper` bounds its Lipschitz constant.
        """
        query, value = real_tensor("query", query, ("h", "k", "d")), real_tensor("value", value, ("h", "v", "d"))
        kinds = ((one.shape[0], one.shape[2], one.dtype, one.device) for one in (query, value))
        same = len({*kinds}) == 1  # else the constructor names the difference
        folded = value @ query.mT @ query * query.shape[1] ** -0.5 if same else value
        return cls(query, query, folded, output, masked=masked, score="l2")

    def __repr__(self) -> str:
        biases = [name for name in self.tensors() if name.endswith("_bias")]
        kind = ("L2 " if self.score == "l2" else "") + "heads"
        kind += "" if self.groups == self.heads else f" on {self.groups} of keys"
        mask = ("masked" if self.masked else "unmasked") if self.window is None else f"window {self.window}"
        return (
            f"Attention({self.heads} {kind}, width {self.width}, key width {self.key_width}, "
            f"output width {self.output_width}, {mask}, "
            f"{', '.join([*biases, *self.more]) or 'no bias'}, {str(self.dtype).removeprefix('torch.')})"
        )

    def check_score(self, what: str, scores: tuple[str, ...] = ("dot",)) -> None:
        """Raise ValueError unless `what` supports the scores of this map."""
        if self.score not in scores:
            raise ValueError(f"{what} supports dot-product scores only, not score={self.score!r}.")

    def check_plain(self, what: str, scores: tuple[str, ...] = ("dot",), also: tuple[str, ...] = ()) -> None:
        """Raise ValueError if the map has scores or a feature that `what` does not support; it supports `also`."""
        self.check_score(what, scores)
        if more := ", ".join(word for word in self.more if word not in also):
            known = ", ".join(["plain heads", *also])
            raise ValueError(f"{what} supports {known} only, not {more}: use lipnb.local_lipschitz.")

    def check_input(self, x: Tensor, weights: Tensor | None = None) -> None:
        """Raise ValueError unless tokens `x`, shape (..., n, d), and `weights`, (n,) or (..., n), fit this map."""
        check_tokens(x, self.width, self.dtype, self.device)
        if weights is not None:
            check_weights(weights, x)

    def rows(self, name: str, x: Tensor) -> Tensor:
        """Projected rows (..., h or g, n, .) of "query", "key" or "value": with bias, before norm and rotation."""
        rows, bias = torch.einsum("...nd,hkd->...hnk", x, getattr(self, name)), getattr(self, f"{name}_bias")
        return rows if bias is None else rows + bias[:, None, :]

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (slope folded in), keys and values: shapes (..., h, n, k), (..., g, n, k) and (..., g, n, v)."""
        return self.project_with_derivatives(x)[:3]

    def local(self, x: Tensor) -> tuple[RowJacobian | None, RowJacobian | None]:
        """Jacobians of queries and keys in their projections at tokens `x` (..., n, d), without the slope."""
        return self.project_with_derivatives(x)[3:]

    def project_with_derivatives(
        self, x: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, RowJacobian | None, RowJacobian | None]:
        """Queries (slope folded in), keys and values, and the Jacobians of queries and keys in their rows.

        A Jacobian is None for plain rows, which are the queries or keys themselves.
        """
        query, key, value = (self.rows(name, x) for name in ("query", "key", "value"))
        of_query = of_key = None
        if self.frequencies is not None or self.query_norm is not None or self.key_norm is not None:
            turn = rotation(self.frequencies, x.shape[-2], x.dtype)
            of_query, of_key = self._local(turn, self.query_norm, query), self._local(turn, self.key_norm, key)
        query, key = (rows if of is None else of.value(rows) for of, rows in ((of_query, query), (of_key, key)))
        return self.slope * query, key, value, of_query, of_key

    def _local(self, turn: Rotation | None, weight: Tensor | None, rows: Tensor) -> RowJacobian | None:
        """Jacobian of norm and rotation at these rows; None without either."""
        if turn is None and weight is None:
            return None
        return RowJacobian(turn, None if weight is None else Norm(weight, self.norm_eps, self.joint_norm), rows)

    def grouped(self, rows: Tensor) -> Tensor:
        """Rows (..., h, n, w), stacked for the heads that share keys: (..., g, h / g n, w)."""
        return rows.unflatten(-3, (self.groups, -1)).flatten(-3, -2)

    def ungrouped(self, rows: Tensor, n: int) -> Tensor:
        """Inverse of `grouped`: (..., h, n, w) from (..., g, h / g n, w)."""
        return rows.unflatten(-2, (-1, n)).flatten(-4, -3)

    def products(self, query: Tensor, key: Tensor) -> Tensor:
        """Products (..., h, n, n) of queries (..., h, n, k) and keys (..., g, n, k)."""
        if self.groups == self.heads:
            return query @ key.mT
        return self.ungrouped(self.grouped(query) @ key.mT, query.shape[-2])

    def average(self, probabilities: Tensor, value: Tensor) -> Tensor:
        """Head outputs, shape (..., h, n, v), of probabilities (..., h, n, n) and values (..., g, n, v)."""
        if self.groups == self.heads:
            return probabilities @ value
        return self.ungrouped(self.grouped(probabilities) @ value, probabilities.shape[-2])

    def centred(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys relative to the mean key, where L2 scores lose the fewest digits; dot products unchanged."""
        if self.score == "dot":
            return query, key
        centre = key.mean(-2, keepdim=True)
        each = self.slope * centre.repeat_interleave(self.heads // self.groups, -3)
        return query - each, key - centre

    def added_to_logits(self, key: Tensor, weights: Tensor | None = None) -> Tensor | None:
        """Terms added to each column of logits, (..., h or 1, 1, n), or None: log weights, and ``-s |k|^2`` for L2."""
        added = None if weights is None else weights.log()[..., None, None, :]
        if self.score == "dot":
            return added
        size = -self.scale * key.square().sum(-1)[..., None, :]
        size = size.repeat_interleave(self.heads // self.groups, -3)
        return size if added is None else size + added

    def capped(self, logits: Tensor, slopes: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Capped logits, and the slopes of the cap there; the map must have a cap.

        With a buffer `slopes` both are written in place, the slopes into it and the capped logits over `logits`.
        """
        if slopes is None:
            ratio = logits / self.cap
            return self.cap * ratio.tanh(), ratio.cosh().square().reciprocal()  # more digits than 1 - tanh^2
        slopes = torch.cosh(logits.div_(self.cap), out=slopes).square_().reciprocal_()
        return logits.tanh_().mul_(self.cap), slopes

    def bias_at(self, distance: Tensor) -> Tensor:
        """B at integer distances j - i, shape (h, ...); the map must have relative positions."""
        relative: Any = self.relative
        reach = self.bias_reach
        return relative[:, distance.clamp(-reach, reach) + reach]

    @property
    def bias_reach(self) -> int:
        """Largest distance with its own bias; beyond it the last value applies."""
        relative: Any = self.relative
        return relative.shape[1] // 2

    def hidden(self, n: int, rows=ALL, columns=ALL) -> Tensor | None:
        """Mask of the tokens j that token i does not see, boolean, shape (n, n); None if all are seen.

        Hidden are ``j > i`` with a mask, ``j <= i - window`` with a window, ``j >= i + window`` with a window alone.
        `rows` and `columns`, slices or tensors of integers, choose i and j; only that part is computed.
        """
        if not self.masked and self.window is None:
            return None
        places = torch.arange(n, device=self.device)
        i, j = places[rows][:, None], places[columns]
        if self.window is None:
            return j > i
        return (j > i if self.masked else j >= i + self.window) | (j <= i - self.window)

    def hide(self, logits: Tensor, n: int, rows=ALL, columns=ALL) -> Tensor:
        """Apply the mask to `logits` of these rows and columns of n tokens, shape (..., rows, columns), in place.

        Minus infinity where `hidden`. Masks are applied nowhere else.
        """
        if not self.masked and self.window is None:
            return logits
        first = columns.start or 0
        if self.window is None and isinstance(rows, slice):  # all rows see the tokens before the first row
            first = max(first, rows.start or 0)
        part = logits[..., first - (columns.start or 0) :]
        part.masked_fill_(self.hidden(n, rows, slice(first, columns.stop)), -torch.inf)
        return logits

    def logits(
        self, products: Tensor, added: Tensor | None, n: int, rows=ALL, columns=ALL, slopes: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits of these rows and columns, (..., h, rows, columns), from products q . k, and the slopes of the cap.

        Logits are computed nowhere else: products are capped, then come the terms of each key (`added_to_logits`), the
        biases by distance and the mask. The products may be overwritten. With a buffer `slopes` they always are: the
        logits are returned in their memory, without gradients.
        """
        logits, cap_slope = (products, None) if self.cap is None else self.capped(products, slopes)
        if added is not None:
            added = added[..., columns]
            logits = logits + added if slopes is None else logits.add_(added)
        if self.relative is not None:
            places = torch.arange(n, device=self.device)
            logits += self.bias_at(places[columns] - places[rows][:, None])
        if self.masked or self.window is not None:
            logits = self.hide(logits, n, rows, columns)
        return logits, cap_slope

    def with_sinks(self, logits: Tensor) -> Tensor:
        """The logits (..., h, rows, columns) with the logits of the sinks as a last column."""
        sinks: Any = self.sinks
        return torch.cat([logits, sinks[:, None, None].expand(*logits.shape[:-1], 1)], -1)

    def seen(self, n: int, first: int, last: int) -> slice:
        """A slice of the n tokens that contains all those seen by tokens first <= i < last."""
        if self.window is None:
            return slice(0, last if self.masked else n)
        return slice(max(0, first + 1 - self.window), last if self.masked else min(n, last - 1 + self.window))

    def attend(self, query: Tensor, key: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """P and the slopes of the cap, (..., h, n, n), and the attention to sinks, (..., h, n, 1); None if absent.

        From `centred` queries and keys and from `added_to_logits`. The attention to sinks comes from the softmax
        itself: 1 minus the sum of a row of P would have no correct digits if it is small.
        """
        logits, cap_slope = self.logits(self.products(query, key), added, key.shape[-2])
        if self.sinks is None:
            return logits.softmax(-1), cap_slope, None
        # not exp(logits - logsumexp): its error, eps times the logits, would be common to a whole row
        whole = self.with_sinks(logits).softmax(-1)
        return whole[..., :-1], cap_slope, whole[..., -1:]

    def probabilities_of(self, query: Tensor, key: Tensor, weights: Tensor | None = None) -> Tensor:
        """Attention probabilities, shape (..., h, n, n), of queries (slope folded in) and keys (..., g, n, k)."""
        query, key = self.centred(query, key)
        return self.attend(query, key, self.added_to_logits(key, weights))[0]

    def probabilities(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Attention probabilities P, shape (..., h, n, n), at tokens `x`, shape (..., n, d)."""
        self.check_input(x, weights)
        return self.probabilities_of(*self.project(x)[:2], weights)

    def output_matrices(self) -> Tensor:
        """Output matrices, shape (h, m, v); by default the matrices that concatenate the heads."""
        if self.output is not None:
            return self.output
        eye = torch.eye(self.output_width, dtype=self.dtype, device=self.device)
        return eye.unflatten(1, (self.heads, -1)).movedim(1, 0)

    def expand_groups(self) -> "Attention":
        """The same map with keys and values repeated for each of the heads that share them.

        Examples
        --------
        >>> eye = torch.eye(2)[None]
        >>> Attention(torch.cat([eye, -eye]), eye, eye).expand_groups()
        Attention(2 heads, width 2, key width 2, output width 4, unmasked, no bias, float32)
        """
        times = self.heads // self.groups
        if times == 1:
            return self
        shared = {name: part for name, part in self.tensors().items() if AXES[name].startswith("g")}
        return self.changed(**{name: part.repeat_interleave(times, 0) for name, part in shared.items()}, kept={})

    def without_irrelevant_biases(self) -> "Attention":
        """The same map without the biases that change no derivative but would cost digits if large."""
        return self.changed(**dict.fromkeys(self.irrelevant_biases)) if self.irrelevant_biases else self

    def combine(self, heads: Tensor) -> Tensor:
        """Output tokens without the output bias, shape (..., n, m), from head outputs (..., h, n, v)."""
        if self.output is None:
            return heads.movedim(-3, -2).flatten(-2)
        return torch.einsum("...hnv,hmv->...nm", heads, self.output)

    def combine_transposed(self, w: Tensor) -> Tensor:
        """Transpose of `combine`: cotangents of heads (..., h, n, v) from cotangents `w` of outputs (..., n, m)."""
        if self.output is None:
            return w.unflatten(-1, (self.heads, self.value_width)).movedim(-2, -3)
        return torch.einsum("...nm,hmv->...hnv", w, self.output)

    def __call__(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Output tokens, shape (..., n, m), at tokens `x`, shape (..., n, d), with optional `weights` (..., n)."""
        self.check_input(x, weights)
        query, key, value = self.project(x)
        out = self.combine(self.average(self.probabilities_of(query, key, weights), value))
        return out if self.output_bias is None else out + self.output_bias


def check_attention(f, what: str) -> None:
    """Raise ValueError unless `f` is an `Attention`; `what` names the caller."""
    if not isinstance(f, Attention):
        raise ValueError(
            f"{what} needs a lipnb.Attention (its Jacobian has a closed form), got {type(f).__name__}: use "
            "model.attention(layer) for a layer of a model, and lipnb.local_lipschitz for any other map of tokens."
        )
