"""How rotary queries and keys meet at all distances: the norms that stand where plain heads have that of one matrix."""

import torch

from lipnb.attention import Attention
from lipnb.attention.rope_norm import rotation, turned
from lipnb.bounds.multihead_norms import balanced
from lipnb.bounds.norms import triangle
from lipnb.bounds.rounding import UNIT, largest_singular, largest_singular_of_each

__all__ = ["Turns"]

PLACES = 512  # tokens up to which queries and keys meet at each distance in turn
AT_ONCE = 16  # distances whose norms are computed together


class Turns:
    r"""How queries and keys of n places meet: bounds on :math:`|L^\top R_j^\top R_i Z|` where token i sees token j.

    Two are proved. For any plane-wise weights D, which turns leave alone, it is at most
    :math:`g^2 |D^{-1} L|\, |D Z|`. And it is at most the largest :math:`|L^\top R_m Z|` over distances m, and
    :math:`\eta\, |D^{-1} L|\, |D Z|` more. Cosines and sines are those of the network: g is the largest length of such
    a pair, and :math:`\eta` how far :math:`R_j^\top R_i` is from :math:`R_{i - j}` in any plane. Without rotary
    positions it is :math:`|L^\top Z|`.

    Parameters
    ----------
    att : Attention
        Float64, each head with keys of its own.
    n : int
        Number of tokens; at each distance in turn up to `PLACES`.

    Attributes
    ----------
    gain : float
        g.

    Examples
    --------
    >>> eye = torch.eye(2).double()
    >>> f = Attention.from_matrices(eye, eye).replace(frequencies=torch.tensor([torch.pi / 2]).double())
    >>> left, right = eye[None, :, :1], eye[None, :, 1:]  # two axes that a quarter turn brings together
    >>> [round(Turns(f, n).log_norms(left, right).exp().item(), 6) for n in (1, 2)]
    [0.0, 1.0]
    """

    def __init__(self, att: Attention, n: int) -> None:
        self._weights, self._tables, self.gain, self._off = None, None, 1.0, 0.0
        turn = rotation(att.frequencies, n, torch.float64)
        if turn is None:
            return
        cos, sin = turn
        self._weights = _plane_weights(att)[..., None]
        self.gain = (cos.square() + sin.square()).amax().sqrt().item()
        if n > PLACES:
            return
        reach = n if att.window is None else min(n, att.window)
        place = torch.complex(cos, sin)
        apart = (place[m:] * place[: n - m].conj() - place[m] for m in range(reach))
        self._off = max(gap.abs().amax().item() for gap in apart) + 8 * UNIT
        ahead = slice(1, 1 if att.masked else reach)  # tokens that come later
        self._tables = torch.cat([cos[:reach], cos[ahead]]), torch.cat([sin[:reach], -sin[ahead]])

    def log_norms(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Logarithms of the bounds, shape (h,), on maps L of keys (h, k, a) and Z of queries (h, k, b)."""
        sizes = [part.abs().amax().clamp_min(1e-300) for part in (left, right)]
        left, right = triangle((left / sizes[0]).mT), triangle((right / sizes[1]).mT).mT
        return self._norms(left, right).log() + sizes[0].log() + sizes[1].log()

    def _norms(self, left, right):
        if self._weights is None:
            return largest_singular(left @ right)
        by_planes = largest_singular(left / self._weights.mT) * largest_singular(self._weights * right)
        if self._tables is None:
            return self.gain**2 * by_planes
        at_distances = torch.stack([self._largest(*pair) for pair in zip(left, right, strict=True)])
        return torch.minimum(self.gain**2 * by_planes, at_distances + self._off * by_planes)

    def _largest(self, left, right):
        """The largest norm over all distances, in the order of an upper bound until no later one can be larger."""
        columns = right.mT[:, None].expand(-1, len(self._tables[0]), -1)
        matrices = left @ turned(columns, self._tables).movedim(0, -1)  # (distances, a, b)
        upper = largest_singular_of_each(matrices, lot=10**12)
        best, order = upper.new_zeros(()), upper.argsort(descending=True)
        for some in order.split(AT_ONCE):
            if upper[some[0]] <= best:
                break
            best = torch.maximum(best, largest_singular(matrices[some]).max())
        return best

    def bounding(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        r"""F, (h, r, b), with :math:`|L^\top R_j^\top R_i Z y| \le |F y|` for every y; L (h, k, a), Z (h, k, b)."""
        if self._weights is None:
            return triangle(left.mT) @ right
        return self.gain**2 * largest_singular(left / self._weights)[:, None, None] * self._weights * right


def _plane_weights(att):
    """Positive weights of the coordinates of queries and keys, (h, k), the same for both of a plane that is turned."""
    p, k = len(att.frequencies), att.key_width
    planes = torch.stack([torch.arange(p, device="cpu"), torch.arange(p, 2 * p, device="cpu")], 1).flatten()
    # those that stay follow two by two, the last one once more where they are odd
    order = torch.cat([planes, torch.arange(2 * p, k, device="cpu"), torch.arange(k - k % 2, k, device="cpu")])
    found = torch.ones(att.heads, k, dtype=torch.float64, device="cpu")
    for h, (query, key) in enumerate(zip(att.query[:, order], att.key[:, order], strict=True)):
        weights = balanced(key.unflatten(0, (-1, 2)).mT, query.unflatten(0, (-1, 2)), 0)
        found[h, order] = weights.sqrt().repeat_interleave(2)
    return found
