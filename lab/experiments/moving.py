"""Data of three of the movable figures: two clusters, one head from uniform to sharp, even forks."""

import pandas as pd
import torch

from lab.released import reported
from lipnb import Attention, AttentionJacobian, bounds, local_lipschitz
from lipnb.worst_case import tight_input


def two_clusters(lengths, radii):
    r"""One token at -R, n - 1 at R, on a line, with A = -1 and V = 1: constants, the bound and the worst move.

    `lengths`: numbers of tokens n, 3 or more. One token of weight (n - 1) / n replaces the n - 1 tokens, so any n costs
    the same. Returns one row for each n and R. Columns: n; R; constant, the local Lipschitz constant, exact to
    rounding; bound, Theorem 3.3; root, the square root of n; attention, from a token of the cluster to the lonely one.
    Also the positions of tokens and outputs, and their moves when the input moves by one in its worst direction:
    lonely, cluster (tokens), lonely_out, cluster_out (outputs), each with _move.
    """
    one = torch.ones(1, 1, dtype=torch.float64)
    f, rows = Attention.from_matrices(-one, one), []
    for R in radii:
        x = tight_input(-one, 2, R)
        x = x * -x[0].sign()  # the lonely one on the left
        for n in lengths:
            a = torch.tensor([1.0, n - 1.0], dtype=torch.float64) / n
            left, size, right = torch.linalg.svd(AttentionJacobian(f, x, a).dense() * a.sqrt()[:, None] / a.sqrt())
            p, y = f.probabilities(x, a)[0, 1, 0].item(), f(x, a)
            move, out = (part * right[0, 0].sign() / (n * a).sqrt() for part in (right[0], left[:, 0] * size[0]))
            apart = p * (1 - p) * 4 * R**2  # gain if the tokens of the cluster separate: the variance that they see
            row = {"n": n, "R": R, "constant": max(size[0].item(), apart)}
            row |= {"bound": bounds.general_upper(-one, one, n, R), "root": n**0.5, "attention": p}
            for suffix, at, by in (("", x, move), ("_out", y, out)):
                for place, name in enumerate(("lonely", "cluster")):
                    row |= {name + suffix: at[place].item(), f"{name}{suffix}_move": by[place].item()}
            rows.append(row)
    return pd.DataFrame(rows)


def from_uniform_to_sharp(lengths, logit_ranges, *, draws=5):
    r"""One random head at n tokens with the same mean for every n, from uniform attention to sharp attention.

    The tokens are pairs m + z, m - z with z random, so that their mean is m for every n. The matrix A has a random
    direction and the norm :math:`t / R^2`, R the largest norm of a token, so that t is the logit range.

    `lengths`: even numbers of tokens. `logit_ranges`: values of t, 0 for uniform attention. `draws`: how many heads and
    inputs, of width 4. Returns one row for each t, draw and n. Columns: logit_range, draw, n; defined, the local
    Lipschitz constant; released, what the released estimator reports; largest, the mean over tokens of their largest
    attention.
    """
    if any(n % 2 for n in lengths):
        raise ValueError(f"tokens come in pairs: lengths must be even, got {list(lengths)}.")
    rows, width = [], 4
    for draw in range(draws):
        generator = torch.Generator().manual_seed(draw)
        B, V = torch.randn(2, width, width, generator=generator, dtype=torch.float64)
        V = V / torch.linalg.matrix_norm(V, 2)
        mean = torch.randn(width, generator=generator, dtype=torch.float64)
        half = torch.randn(max(lengths) // 2, width, generator=generator, dtype=torch.float64)
        tokens = mean / mean.norm() + torch.stack([half, -half], 1).flatten(0, 1) / width**0.5
        A = B / torch.linalg.matrix_norm(B, 2) / tokens.norm(dim=1).max() ** 2
        for t in logit_ranges:
            f = Attention.from_matrices(t * A, V)
            for n in lengths:
                x = tokens[:n]
                row = {"logit_range": t, "draw": draw, "n": n}
                row |= {"defined": local_lipschitz(f, x, method="dense").value.item()}
                row |= {"released": reported(f, x).item(), "largest": f.probabilities(x)[0].amax(1).mean().item()}
                rows.append(row)
    return pd.DataFrame(rows)


def even_forks(lengths, logit_ranges, components):
    r"""Even forks in the unit ball, :math:`A = t (e w^\top + w e^\top - f f^\top)`, V = I: constants and bounds.

    The prongs are at :math:`\pm s_1 w + b_1 f`, the n - 2 others at :math:`s w + b f`, all of length 1, with
    :math:`b_1 = b / 4`.

    `lengths`: numbers of tokens n, 3 or more; `logit_ranges`: values of t; `components`: values of b, at most 1. One
    weighted token replaces the n - 2, so any n costs the same. Returns one row for each n, t and b. Columns: n; t; b;
    constant, the local Lipschitz constant, exact to rounding; bound, `general_upper_exact`; others and prongs, the
    attention that each of the n - 2 others, and each prong, gives to one prong.
    """
    A, eye = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, -1]], dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    rows = []
    for t in logit_ranges:
        f = Attention.from_matrices(t * A, eye)
        for n in lengths:
            a = torch.tensor([1.0, 1.0, n - 2.0], dtype=torch.float64) / n
            bound = bounds.general_upper_exact(t * A, eye, n, 1.0)
            for b in components:
                x = torch.tensor([[1.0, 0.0, b / 4], [-1.0, 0.0, b / 4], [1.0, 0.0, b]], dtype=torch.float64)
                x[:, 0] *= (1 - x[:, 2].square()).clamp_min(0).sqrt()
                P = f.probabilities(x, a)[0]
                row = {"n": n, "t": t, "b": b, "bound": bound, "others": P[2, 0].item(), "prongs": P[0, 0].item()}
                apart = torch.linalg.matrix_norm(t * _covariance(P[2], x) @ A, 2)  # the others, moved apart
                whole = local_lipschitz(f, x, weights=a, method="dense").value
                rows.append(row | {"constant": max(whole.item(), apart.item())})
    return pd.DataFrame(rows)


def _covariance(p, x):
    """Covariance matrix of tokens (n, d) under the probabilities (n,)."""
    apart = x - p @ x
    return apart.mT @ (p[:, None] * apart)
