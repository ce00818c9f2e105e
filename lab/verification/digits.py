"""Guarantees that include rounding, against truth in fifty digits: `lipnb.certify` and `lipnb.bounds.nearby_upper`."""

import math
from typing import NamedTuple

import torch

from lab.experiments.table import table
from lab.verification.cancelling import CANCELLING, IN_USE, draw_cancelling, draw_in_use
from lipnb.bounds import nearby_upper
from lipnb.certified import certify
from lipnb.jacobian import AttentionJacobian

BLOCK, BLOCK_IN_USE = 500, 200  # cases
BLOCKS = {"certify": 200, "nearby_upper": 40}  # shared by the kinds in turn


class Outcome(NamedTuple):
    """Outcome of a case: the smallest bound / truth - 1 over its guarantees, and whether it guarantees nothing."""

    margin: float
    unknown: bool


def bracketed(case):
    """Outcome of a case for `lipnb.certify`: both ends against the norm in fifty digits."""
    import flint

    from lab.verification import truth

    found = certify(case.attention, case.x, weights=case.weights, columns=case.columns)
    lower, upper = found.lower.item(), found.upper.item()
    if upper == math.inf:
        return Outcome(math.inf if lower == 0 else -math.inf, True)
    J, bits = truth.jacobian(case.attention, case.x, case.weights)
    norm = truth.largest_stretch(J, bits)
    return Outcome(min(truth.margin(norm, flint.arb(upper)), truth.margin(flint.arb(lower), norm)), False)


def moved(case, seed):
    """Outcome of a case for `nearby_upper`: its bounds against the exact change along a move chosen to be large."""
    import flint

    from lab.verification import truth

    f, x = case.attention, case.x
    g = torch.Generator().manual_seed(seed)
    moves = _moves(f.to(dtype=torch.float64), x.double(), g)
    with torch.no_grad():
        wide = f.to(dtype=torch.float64)
        apart = torch.stack([torch.linalg.vector_norm(wide(x.double() + one) - wide(x.double())) for one in moves])
    move = moves[int(apart.nan_to_num(-1).argmax())]
    radius = truth.above(truth.radius_of(move))
    if not 0 < radius < math.inf:
        return Outcome(math.inf, True)
    found = nearby_upper(f, x, [radius])
    exact = truth.change(f, x, move)
    bounds = [one.item() for one in (found.jacobian, found.taylor, found.outputs, found.general, found.best)]
    if any(math.isnan(one) for one in bounds):
        return Outcome(-math.inf, False)
    return Outcome(
        min(truth.margin(exact, flint.arb(one)) if one < math.inf else math.inf for one in bounds),
        found.best.item() == math.inf,
    )


def _moves(f, x, g):
    """Moves with large changes: along the singular vector, at random, and to ties of a token's best scores."""
    scale = x.abs().max().clamp_min(1e-300)
    radius = scale * 10 ** (torch.rand((), generator=g, dtype=torch.float64) * 9 - 8)
    J = AttentionJacobian(f, x).dense()
    moves = [torch.randn(x.shape, generator=g, dtype=torch.float64)]
    if torch.isfinite(J).all():
        moves.append(torch.linalg.svd(J / J.abs().max().clamp_min(1e-300)).Vh[0].view_as(x))
    query, key, _ = f.project(x)
    best = (query[0] @ key[0].mT).nan_to_num().topk(min(2, len(x)), dim=-1).indices
    turn = (key[0][best[:, -1]] - key[0][best[:, 0]]) @ f.query[0]
    one = torch.zeros_like(x)
    one[int(torch.randint(0, len(x), (), generator=g))] = 1
    moves += [turn, turn * one, -turn * one]
    units = [move / move.abs().max().clamp_min(1e-300) for move in moves]
    units = [radius * move / torch.linalg.vector_norm(move).clamp_min(1e-300) for move in units]
    return [move for move in units if torch.isfinite(move).all()]


def joined(rows):
    """Rows of blocks joined: for each bound and kind the sums, and the smallest margin with its seed."""
    keys, sums = ["bound", "kind"], ["cases", "violations", "errors", "unknown"]
    groups = rows.groupby(keys, sort=False)
    worst = rows.loc[groups.margin.idxmin()].set_index(keys)[[*sums, "margin", "seed"]]
    worst[sums] = groups[sums].sum()
    return worst.reset_index()


HOW = {"settings": {"digits": 50, "dtype": "float32 and float64", "device": "cpu"}, "join": joined}


def _block(kind, seeds, tried):
    """Outcomes of some cases, as a row."""
    violations = errors = unknown = 0
    margin, worst = math.inf, -1
    for seed in seeds:
        try:
            outcome = tried(seed)
        except Exception:  # of any kind: an answer was due
            errors += 1
            continue
        violations, unknown = violations + (outcome.margin < 0), unknown + outcome.unknown
        if outcome.margin < margin:
            margin, worst = outcome.margin, seed
    counts = {"cases": len(seeds), "violations": violations, "errors": errors, "unknown": unknown}
    return {"kind": kind, **counts, "margin": margin, "seed": worst}


def _tried(bound, kind, seed):
    case = draw_cancelling(kind, seed, name=bound)
    return bracketed(case) if bound == "certify" else moved(case._replace(weights=None), seed)


# blocks for each bound, the kinds taking turns: 100,000 cases for `certify`; cases of a block
@table(
    "verify-digits",
    "guarantees that include rounding, against fifty digits",
    over=lambda blocks: [(bound, block) for bound, count in blocks.items() for block in range(count)],
    blocks=BLOCKS,
    command="make verify",
    **HOW,
)
def measure(bound, block, *, cases=BLOCK):
    """Row of one block of cases of one kind against one bound.

    Returns bound, kind; cases, violations, errors (exceptions raised), unknown (answers that guarantee nothing, such
    as a bracket [0, inf]); margin, the smallest bound / truth - 1 (over both sides of a bracket), and its seed.
    """
    kind = CANCELLING[block % len(CANCELLING)]
    return _block(kind, range(block * cases, (block + 1) * cases), lambda seed: _tried(bound, kind, seed))


@table(
    "verify-in-use",
    "brackets of attention as models have it, against fifty digits",
    over=lambda blocks: [("certify", block) for block in range(blocks)],
    blocks=30,
    command="make verify",
    **HOW,
)
def in_use(bound, block, *, cases=BLOCK_IN_USE):
    """As `measure`, for cases of `draw_in_use`; the bound is `lipnb.certify`."""
    kind = IN_USE[block % len(IN_USE)]
    seeds = range(block * cases, (block + 1) * cases)
    return _block(kind, seeds, lambda seed: bracketed(draw_in_use(kind, seed)))


def again(row):
    """The tightest case of a row of `verify-digits` measured again; for `lab.experiments.remeasure`."""
    return {"margin": _tried(row["bound"], row["kind"], int(row["seed"])).margin}
