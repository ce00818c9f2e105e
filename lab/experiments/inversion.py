"""Table of inverted layers: a thousand random contractive layers, as drawn and after training, and their constants.

The layers of one group have one shape, so that they are trained together, each on its own tokens with its own Adam.
"""

import copy
import math

import torch
from torch.func import functional_call, stack_module_state, vmap

from lab.bounds_survey.draws import integer
from lab.experiments.table import table
from lab.invertible import ContractiveAttention, Residual, predicted_iterations
from lipnb.jacobian import infinity_norm
from lipnb.lipschitz import local_lipschitz

NORMS = ((2, "theorem"), (2, "sharp"), (math.inf, "theorem"))
RTOL = 1e-10


def denoising_batch(words, n, generator, *, batch=4):
    """Sequences of noisy words and the words without the noise, shapes (c, b, n, d), for c layers.

    `words` (c, w, d): tokens without noise. `n`: tokens in a sequence. `generator`: chooses words and noise.
    `batch`: sequences b of each layer.
    """
    c, w, d = words.shape
    which = torch.randint(w, (c, batch * n), generator=generator)
    clean = torch.gather(words, 1, which[..., None].expand(-1, -1, d)).unflatten(1, (batch, n))
    size = 0.3 * words.square().mean((1, 2)).sqrt()
    return clean + size[:, None, None, None] * torch.randn(clean.shape, generator=generator, dtype=words.dtype), clean


def fit(residuals, words, n, *, steps=500, rate=1e-2, demand=1.0, seed=0):
    """Train residual maps to denoise their words: mean squared error, Adam, fresh sequences in each step.

    `residuals`: maps of one shape, trained in place, each with its own Adam.
    `words` (len(residuals), w, d): as for `denoising_batch`.
    `n`: tokens in a sequence.
    `demand`: the target is the clean words times this factor; much more than 1 is beyond the reach of a residual map.
    Returns (steps, len(residuals)): mean squared errors, relative to the mean square of the words.
    """
    generator = torch.Generator().manual_seed(seed)
    stacked, _ = stack_module_state(residuals)
    stacked = {name: value.detach().requires_grad_() for name, value in stacked.items()}
    shell, factors = copy.deepcopy(residuals[0]), torch.tensor([g.c for g in residuals], dtype=words.dtype)

    def error(parameters, c, noisy, clean):
        moved = functional_call(
            shell.layer, {name.removeprefix("layer."): value for name, value in parameters.items()}, (noisy,)
        )
        return (noisy + c * moved - demand * clean).square().mean() / clean.square().mean()

    optimizer, losses = torch.optim.Adam(stacked.values(), lr=rate), []
    for _ in range(steps):
        loss = vmap(error)(stacked, factors, *denoising_batch(words, n, generator))
        optimizer.zero_grad()
        loss.sum().backward()
        optimizer.step()
        losses.append(loss.detach())
    with torch.no_grad():
        for i, residual in enumerate(residuals):
            for name, parameter in residual.named_parameters():
                parameter.copy_(stacked[name][i])
    return torch.stack(losses)


def drawn_layers(group, count):
    """Random contractive layers of one shape and the words for their training, determined by the number of the group.

    Returns `residuals`: their weights multiplied by 10^-1 to 10^1, c between 0.5 and 0.95; `words` (count, 5, d): of
    root mean square 10^-1 to 10^1; `n`: number of tokens, 2 to 16.
    """
    generator = torch.Generator().manual_seed(7919 + group)
    heads, n, masked = integer(generator, 1, 4), integer(generator, 2, 16), group % 2 == 1
    width, (p, bound) = heads * integer(generator, 1, 3), NORMS[group % 3]
    draws = torch.rand(3, count, generator=generator, dtype=torch.float64)
    residuals = []
    for i, (c, size) in enumerate(zip(0.5 + 0.45 * draws[0], 10 ** (2 * draws[1] - 1), strict=True)):
        layer = ContractiveAttention(
            width, heads, p=p, bound=bound, masked=masked, seed=10_000 * group + i, dtype=torch.float64
        )
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.mul_(size)
        residuals.append(Residual(layer, c.item()))
    spread = 10 ** (2 * draws[2] - 1)
    return residuals, spread[:, None, None] * torch.randn(count, 5, width, generator=generator, dtype=torch.float64), n


def largest_constant(layer, x):
    """Largest local constant of a contractive layer over sequences, shape (b, n, d), in the norm p of its guarantee."""
    attention = layer.attention(x.shape[-2])
    with torch.no_grad():
        found = local_lipschitz(attention, x, method="dense").value if layer.p == 2 else infinity_norm(attention, x)
    return found.max().item()


def tried(residual, x):
    """Invert a residual map at known sequences, and report the effort and the errors.

    `residual`: map of a contractive layer.
    `x` (b, n, d): tokens.
    Returns constant (the largest local one of the layer), iterations (most), predicted, error (largest, relative to x,
    in the norm of the layer), certified (largest bound on it that was returned), and failed: whether the constant
    exceeds 1, an inverse did not converge or is farther off than certified, or took more iterations than predicted.
    """
    with torch.no_grad():
        found = residual.inverse(residual(x), rtol=RTOL)
        size = torch.linalg.vector_norm(x, residual.p, dim=(-2, -1))
        error = torch.linalg.vector_norm(found.x - x, residual.p, dim=(-2, -1)) / size
        certified = found.error_bound / size
    constant, predicted = largest_constant(residual.layer, x), predicted_iterations(residual.c, RTOL)
    failed = (
        constant > 1
        or not found.converged.all()
        or (error > certified).any()
        or error.max() > RTOL
        or found.iterations.max() > predicted
    )
    return {
        "constant": constant,
        "iterations": found.iterations.max().item(),
        "predicted": predicted,
        "error": error.max().item(),
        "certified": certified.max().item(),
        "failed": bool(failed),
    }


@table(
    "inversion",
    "random contractive layers inverted, before and after training",
    over=lambda groups: range(groups),
    size=lambda count: 2 * count,
    settings={"rtol": RTOL, "dtype": "float64"},
    groups=25,
)
def group_rows(group, count=40, *, steps=500, rate=1e-2):
    """Rows of one group: each layer as drawn and after training; with `steps` = 0 only as drawn.

    Two groups in four are trained to denoise, the others to return three times the clean words, out of reach.
    """
    residuals, words, n = drawn_layers(group, count)
    generator, demand = torch.Generator().manual_seed(group), 1.0 if group % 4 < 2 else 3.0
    x, _ = denoising_batch(words, n, generator, batch=3)
    rows, losses = [], torch.full((1, count), torch.nan)
    for trained in (0, steps) if steps else (0,):
        if trained:
            losses = fit(residuals, words, n, steps=steps, rate=rate, demand=demand, seed=group)
        for i, g in enumerate(residuals):
            layer = g.layer
            shape = {"layer": i, "width": layer.width, "heads": layer.heads, "n": n, "p": layer.p, "bound": layer.bound}
            shape |= {"masked": layer.masked, "c": g.c, "demand": demand, "trained": trained}
            means = {"loss_first": losses[:20, i].mean().item(), "loss": losses[-20:, i].mean().item()}
            rows.append({**shape, "divisor": layer.divisor(n).item(), **means, **tried(g, x[i])})
    return rows
