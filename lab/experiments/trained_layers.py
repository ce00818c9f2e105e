"""Measurements on the trained layers of a character model: local constants at text, and bounds from their weights."""

import math

import torch

from lipnb.lipschitz import local_lipschitz


@torch.no_grad()
def layer_rows(network, token_ids):
    """Rows of each trained attention layer at real text.

    `token_ids` (b, n): windows of text. For each layer: the local Lipschitz constant of its attention (median, smallest
    and largest over the windows), whether all solves converged, the bound of the theorem if one applies, the largest
    token norm, and the spread of tokens, root mean square distance from the mean token, at its input and its output.
    The bound is 1 for the contractive kind, which is divided by its bound.
    """
    rows = []
    for layer, x in enumerate(network.activations(token_ids)):
        f, x = network.attention(layer), x.double()
        lip = local_lipschitz(f, x, rtol=1e-3)
        spreads = [(y - y.mean(-2, keepdim=True)).square().sum(-1).mean().sqrt().item() for y in (x, f(x))]
        bound = math.nan
        if network.kind in ("l2-tied", "contractive"):
            heads = network.blocks[layer].attention
            bound = 1.0 if network.kind == "contractive" else heads.bound().item()
        rows.append(
            {
                "row": "layer",
                "layer": layer,
                "lipschitz": lip.value.median().item(),
                "lowest": lip.value.min().item(),
                "highest": lip.value.max().item(),
                "converged": lip.converged.all().item(),
                "bound": bound,
                "radius": x.norm(dim=-1).max().item(),
                "input_spread": spreads[0],
                "output_spread": spreads[1],
            }
        )
    return rows


@torch.no_grad()
def feed_forward_rows(network):
    """Bounds on the trained feed-forward parts of a contractive network, computed from their weights.

    `network`: a trained network of contractive kind. For each layer `bound`, the product of the norms of its two
    matrices in float64; only if it is at most 1 does the guarantee hold.
    """
    rows = []
    for layer, block in enumerate(network.blocks):
        norms = [torch.linalg.matrix_norm(matrix.double(), 2) for matrix in block.mixing.matrices()]
        rows.append({"row": "feed-forward", "layer": layer, "bound": math.prod(norms).item()})
    return rows
