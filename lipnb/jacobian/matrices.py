"""Weight matrices of an attention map, stacked and scaled for products with its Jacobian."""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from lipnb.scaling import power_of_two
from lipnb.spectral.upper_norms import largest_singular, length

ROUNDS = 20  # steps of the power iteration for the direction of the values, which need not converge


def _tensors(attention):
    """The tensors from which `projection` and `output` are made."""
    output = () if attention.output is None else (attention.output,)
    return attention.query, attention.key, attention.value, *output


class MatrixNorms(NamedTuple):
    """Upper bounds, in float64, on the norms of the matrices of an attention map.

    Attributes
    ----------
    query, key, value : Tensor, shape (h,) or (g,)
        Spectral norms for each head; the norm of the queries is multiplied by the slope of the logits.
    output : Tensor, shape ()
        Spectral norm of the output matrices side by side; 1 without.
    frobenius : tuple of Tensor, shape (h,) or (g,)
        Frobenius norms of the first three; they also bound the matrices of absolute values.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    frobenius: tuple[Tensor, Tensor, Tensor]

    @classmethod
    def of(cls, slope: float, query: Tensor, key: Tensor, value: Tensor, output: Tensor | None = None) -> Self:
        """Norms of the matrices of a map, in float64."""
        each = (abs(slope) * query, key, value)
        whole = query.new_ones(()) if output is None else largest_singular(output.movedim(0, 1).flatten(1))
        first, second, third = (length(one, (-2, -1)) for one in each)
        of_query, of_key, of_value = map(largest_singular, each)
        return cls(of_query, of_key, of_value, whole, (first, second, third))


class ScaledMatrices:
    """Weight matrices of an attention map, stacked for products and scaled to entries near one.

    Attributes
    ----------
    projection : Tensor, shape (d, h k + g (k + v))
        Query (slope folded in), key and value matrices side by side.
    output : Tensor, shape (m, h v), or None
        Output matrices of the heads, side by side.
    value_unit, unit : float
        Powers of two: values are divided by the first, Jacobians by the second.
    """

    @torch.no_grad()
    def __init__(self, attention, dtype):
        self._slope = attention.slope
        self._made_of = [tensor.clone() for tensor in _tensors(attention)]
        # from the copies, because another thread may write into the map meanwhile
        query, key, value, output = (*self._made_of, None)[:4]
        self._steepest, self._norms, self.value_width = None, None, value.shape[-2]
        self.value_unit = power_of_two(value)
        output_unit = 1.0 if output is None else power_of_two(output)
        self.unit = self.value_unit * output_unit
        stacked = torch.cat(
            [self._slope * query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1) / self.value_unit]
        )
        self.projection = stacked.mT.contiguous().to(dtype)
        self.output = None
        if output is not None:
            self.output = (output.movedim(0, 1).flatten(1) / output_unit).to(dtype)

    @classmethod
    def of(cls, attention, dtype):
        """The weights of `attention`, cached in the map as long as its tensors hold the same numbers.

        The numbers themselves are compared, at a small part of the cost of one product: version counters do not notice
        writes through ``.data`` or NumPy.
        """
        found = attention.kept.get(dtype)
        if found is None or not found._fits(attention):
            found = attention.kept[dtype] = cls(attention, dtype)
        return found

    def _fits(self, attention):
        """Whether `attention` has the numbers from which these matrices were made."""
        old, new = self._made_of, _tensors(attention)
        return self._slope == attention.slope and len(old) == len(new) and all(map(torch.equal, old, new))

    @property
    def norms(self) -> "MatrixNorms":
        """Norms of the matrices, as upper bounds. Computed once."""
        if self._norms is None:
            self._norms = MatrixNorms.of(self._slope, *(tensor.double() for tensor in self._made_of))
        return self._norms

    def steepest(self, groups):
        """Approximate token direction, shape (d,), that value and output matrices stretch most, for `groups` of heads.

        It belongs to a token to which all others attend. Computed once; zero if the values are.
        """
        if self._steepest is None:
            d, width = len(self.projection), self.value_width
            matrix = self.projection[:, -groups * width :].mT.double()
            if self.output is not None:
                output = self.output.view(len(self.output), groups, -1, width).sum(2).flatten(1)
                matrix = output.double() @ matrix
            u = torch.randn(d, generator=torch.Generator().manual_seed(0), dtype=torch.float64, device="cpu")
            u = u.to(matrix.device)
            for _ in range(ROUNDS):
                u = matrix.mT @ (matrix @ u)
                u = u / u.norm().clamp_min(torch.finfo(u.dtype).tiny)
            self._steepest = u
        return self._steepest

    def through_output(self, joined, out=None):
        """Product of `joined`, shape (rows, h v), with the output matrices and back.

        The Gram matrix of the output matrices would save one product, but lose the remainder if heads cancel.
        """
        if self.output is None:
            return joined
        return torch.mm(joined @ self.output.mT, self.output, out=out)
