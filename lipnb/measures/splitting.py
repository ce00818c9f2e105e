"""Mass splitting: whether dividing atoms of a measure changes the output more than moving whole atoms."""

from typing import Any, NamedTuple

import torch
from scipy.sparse.csgraph import connected_components

from lipnb.attention import Attention
from lipnb.lipschitz import local_lipschitz
from lipnb.measures.transport import check_field, mean_field_map, uniform
from lipnb.spectral.answer import table_of

__all__ = ["Splitting", "far_splitting", "splitting"]

SAME_POINT = 1e-6  # relative to the largest atom: nearer points are one


class Splitting(NamedTuple):
    """Largest change of the output per unit of W_2, for moving whole atoms and for dividing them.

    Attributes
    ----------
    together : float
        The local constant for moves of whole atoms with fixed weights, a lower bound within the solver's tolerance.
    apart : float
        The largest norm of `query_blocks` over the atoms: the constant for copies of one atom that separate.
    token : int
        Index of the atom that attains it; for an atom listed several times, the first index.
    rtol : float
        Relative tolerance on `together`.
    """

    together: float
    apart: float
    token: int
    rtol: float

    @property
    def table(self) -> Any:
        """The numbers as a pandas table with one row."""
        return table_of(self)

    @property
    def split(self):
        """Whether the measure is split: dividing an atom beats every motion of whole atoms, by more than `rtol`."""
        return self.apart > self.together * (1 + self.rtol)


@torch.no_grad()
def query_blocks(attention: Attention, x: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    r"""Derivative of the mean-field map at the atoms, with the measure fixed: one matrix for each atom.

    .. math:: D_z \Gamma_\mu(x_i) = \sum_h s\, W_O^{(h)} C_i^{(h)} W_Q^{(h)}, \qquad
        C_i^{(h)} = \sum_l P^{(h)}_{il} (v_l - o_i)\, k_l^\top ;

    for one head :math:`V \Sigma_i A`.

    Parameters
    ----------
    attention : Attention
        Any heads and biases, without a mask.
    x : Tensor, shape (n, d)
        Atoms.
    weights : Tensor, shape (n,), optional
        Their weights; only ratios matter. Default: equal ones.

    Returns
    -------
    Tensor, shape (n, m, d)

    Raises
    ------
    ValueError
        As `Attention.check_input`; if the map is masked or has features beyond plain heads, or `x` is not one measure
        (n, d).
    """
    check_field(attention, x, weights)
    query, key, value = attention.project(x)
    P = attention.probabilities_of(query, key, weights)
    spread = P[..., None] * (value[:, None] - (P @ value)[:, :, None])  # P_il (v_l - o_i), (h, n, l, v)
    C = torch.einsum("hilv,hlk->hivk", spread, key)
    heads = attention.slope * torch.einsum("hivk,hkd->hivd", C, attention.query)
    if attention.output is None:
        return heads.movedim(0, 1).flatten(1, 2)
    return torch.einsum("hmv,hivd->imd", attention.output, heads)


@torch.no_grad()
def splitting(
    attention: Attention, x: torch.Tensor, weights: torch.Tensor | None = None, *, rtol: float = 1e-6
) -> Splitting:
    r"""Decide whether a measure is split, by the exact criterion for small moves of copies.

    .. math:: \max\big(\|D_X f_a\|_a,\ \max_i \|D_z \Gamma_\mu(x_i)\|_2\big)

    is the local constant in W_2 once every atom may be divided into two or more copies, whatever their weights.

    The criterion concerns the measure, not its notation: points joined by steps of at most 1e-6 of the largest atom
    count as one atom, at the first of them and with their weights added. At equal points the choice makes no
    difference, at nearly equal ones a difference of this size.

    Parameters
    ----------
    attention : Attention
        Any heads and biases, without a mask.
    x : Tensor, shape (n, d)
        Atoms, in any order, possibly repeated.
    weights : Tensor, shape (n,), optional
        Their weights; only ratios matter. Default: equal ones.
    rtol : float
        Relative tolerance of the solver on `together`.

    Returns
    -------
    Splitting
        Both constants, and whether the second exceeds the first (`split`).

    Notes
    -----
    castin2024smooth, version 1 (definitions as reconstructed); the criterion is ours.
    """
    check_field(attention, x, weights)
    first, weights = _atoms(x, weights)
    x = x[first]
    blocks = query_blocks(attention, x, weights)
    gram = blocks.mT @ blocks if blocks.shape[1] > blocks.shape[2] else blocks @ blocks.mT
    apart = torch.linalg.eigvalsh(gram)[:, -1].clamp_min(0).sqrt()  # accurate for the largest
    together = local_lipschitz(attention, x, weights=weights, rtol=rtol).value
    return Splitting(together.item(), apart.max().item(), int(first[apart.argmax()]), rtol)


@torch.no_grad()
def far_splitting(attention: Attention, x: torch.Tensor, weights: torch.Tensor, z: torch.Tensor) -> float:
    r"""A lower bound on the local constant of the mean-field map in W_2, from a small mass moved far away.

    .. math:: \sup_{i,\, z} \Big(\frac{c(\Gamma_\mu(x_i), \Gamma_\mu(z))}{c(x_i, z)}\Big)^{1/2}, \qquad
        c(x_i, z) = \min_{i = j_0, j_1, \dots, j_r} \sum_{s < r} |x_{j_s} - x_{j_{s+1}}|^2 + |x_{j_r} - z|^2 ,

    and likewise for the images. A mass :math:`\eta \to 0` that moves from atom i to z moves the measure by exactly
    :math:`(\eta\, c(x_i, z))^{1/2}`: transport may pass it from atom to atom. If no detour is shorter, the
    quotient is :math:`|\Gamma_\mu(z) - \Gamma_\mu(x_i)| / |z - x_i|`.

    Parameters
    ----------
    attention : Attention
        Any heads and biases, without a mask.
    x : Tensor, shape (n, d)
        Atoms.
    weights : Tensor, shape (n,)
        Their weights; only ratios matter.
    z : Tensor, shape (c, d)
        Destinations of the mass. Points nearer to an atom than 1e-6 of the largest atom are left out, where the
        quotient is a derivative with large rounding errors.

    Returns
    -------
    float
        The largest quotient over all atoms and all z: a lower bound on the supremum over all z.

    Raises
    ------
    ValueError
        As `query_blocks`; if every z is (nearly) an atom.

    Notes
    -----
    Ours, on a question of castin2024smooth, version 1.
    """
    check_field(attention, x, weights)
    attention.check_input(z)
    gaps = (z - x[:, None]).norm(dim=-1).amin(0)
    z = z[gaps > SAME_POINT * max(x.norm(dim=-1).max(), torch.finfo(x.dtype).tiny)]
    if not len(z):
        raise ValueError("every z is an atom: give points that carry no mass yet.")
    weights = uniform(len(x), x.dtype).to(x.device) if weights is None else weights
    images = mean_field_map(attention, x, weights, torch.cat([x, z]))
    cost, gain = _chain_costs(x, z), _chain_costs(images[: len(x)], images[len(x) :])
    return (gain / cost).max().sqrt().item()


def _chain_costs(x, z):
    """Least sums of squared steps from each x to each z along any of the x, shape (n, c)."""
    between = (x[:, None] - x).square().sum(-1)
    for k in range(len(x)):
        between = torch.minimum(between, between[:, k : k + 1] + between[k])
    last = (x[:, None] - z).square().sum(-1)
    return torch.stack([(row[:, None] + last).amin(0) for row in between])


def _atoms(x, weights):
    """First index in `x` of each atom of the measure, and the weights of the atoms, the largest between 1 and n."""
    weights = uniform(len(x), x.dtype).to(x.device) if weights is None else weights
    largest = x.abs().amax()
    z = x / torch.where(largest > 0, largest, 1)  # squares of very large or small tokens leave the range of a float
    near = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist") <= SAME_POINT * z.norm(dim=-1).max()
    # points joined by a chain of near ones are one atom, independent of their order
    count, labels = connected_components(near.cpu().numpy(), directed=False)
    place = torch.from_numpy(labels).to(x.device, torch.long)
    first = torch.full((count,), len(x), device=x.device).scatter_reduce_(
        0, place, torch.arange(len(x), device=x.device), "amin"
    )
    return first, weights.new_zeros(count).index_add_(
        0, place, (weights / weights.amax()).clamp_min(torch.finfo(x.dtype).tiny)
    )
