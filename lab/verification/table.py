"""Table of all checks: one row for each bound and kind of input, with the worst case and its seed."""

import json
import math

import pandas as pd
import torch

from lab import results
from lab.experiments.table import make, table
from lab.ledger import SLACK
from lab.verification.ascent import worsened
from lab.verification.checks import CHECKS
from lab.verification.draws import KINDS, draw
from lipscan.recording import Unit
from lipscan.recording.files import replacing
from lipscan.recording.table import FLOAT_FORMAT

MAPS = {"random": 40, "degenerate": 40, "structured": 40, "ascended": 20}  # of one block
BLOCKS = {"random": 8, "degenerate": 4, "structured": 8, "ascended": 10}
HOT = 1.0  # largest logit from which attention is not just an average


def measure(check, kind, block, *, masked=False, maps=None, factor=1.0):
    """Row of one block of problems of one kind against one bound.

    `check`: one of `CHECKS`.
    `kind` ("random", "degenerate", "structured", "ascended").
    `block`: index of the block, from 0; it determines the seeds of its maps.
    `masked`: whether attention is masked.
    `maps`: maps of a block, each with twelve inputs; default 40, or 20 if each takes an ascent.
    `factor`: multiplies the bound. Below 1 it spoils the bound on purpose, to see that the check detects it.
    Returns bound, masked, kind; cases, violations (ratio above 1 beyond rounding), worst_hot (the largest measured /
    bound over inputs with heat `HOT` or more, NaN without any), worst (the largest of all); for the worst case: seed
    and item, n, d, m, heads, radius, heat (norm of A times radius squared), measured, stated (the bound).
    """
    maps = MAPS[kind] if maps is None else maps
    cases, violations, hottest, worst = 0, 0, math.nan, None
    for seed in range(block * maps, (block + 1) * maps):
        problem, measured, stated = _problem(check, kind, seed, masked)
        stated = factor * stated
        counts = ~torch.isnan(measured)
        ratios = torch.where(measured > 0, measured / stated, 0.0)
        if torch.isnan(ratios).any() or not (counts.all() or check.family == "choice"):
            raise ArithmeticError(f"{check.name}, {kind}, seed {seed}: NaN in the measured values or the bound.")
        cases, violations = cases + int(counts.sum()), violations + int((ratios > 1 + SLACK).sum())
        heat = torch.linalg.matrix_norm(problem.A, 2).amax() * problem.radii.square()
        hot = ratios[counts & (heat >= HOT)]
        hottest = max([*hot.tolist(), hottest], key=lambda ratio: -1 if math.isnan(ratio) else ratio)
        item = int(ratios.argmax())
        if worst is None or ratios[item] > worst["worst"]:
            n, d = problem.x.shape[-2:]
            worst = {
                "worst": ratios[item].item(),
                "seed": seed,
                "item": item,
                "n": n,
                "d": d,
                "m": problem.attention.output_width,
                "heads": problem.attention.heads,
                "radius": problem.radii[item].item(),
                "heat": heat[item].item(),
                "measured": measured[item].item(),
                "stated": stated[item].item(),
            }
    counted = {"cases": cases, "violations": violations, "worst_hot": hottest}
    return {"bound": check.name, "masked": masked, "kind": kind, **counted, **worst}


def _problem(check, kind, seed, masked):
    """A problem, after its ascent if it has one, with the measured values and the bounds."""
    problem = draw(check.name, check.family, kind, seed, masked=masked)
    if kind == "ascended":
        problem = worsened(problem, check.goal(problem), keep=seed % 4 < 2)
    return problem, check.measured(problem), check.bound(problem)


def worst_of_blocks(table):
    """Rows of blocks joined: for each bound, mask and kind the sums of cases and violations, and the worst case."""
    keys = ["bound", "masked", "kind"]
    groups = table.groupby(keys, sort=False)
    worst = table.loc[groups.worst.idxmax()].set_index(keys)
    worst[["cases", "violations"]] = groups[["cases", "violations"]].sum()
    worst["worst_hot"] = groups.worst_hot.max()
    return worst.reset_index()


# blocks: of each kind, a quarter of them for slow checks: more than 10,000 inputs against a bound, 3,000 for slow ones,
# for each mask; maps of a block: see `measure`
@table("verify", "every upper bound against thousands of inputs", join=worst_of_blocks, command="make verify")
def _prepare(checks=None, blocks=BLOCKS, maps=MAPS):
    """Settings and units, one for each block of a bound, a mask and a kind; `checks`: names of `CHECKS`, or all."""
    known = [check.name for check in CHECKS]
    if unknown := sorted(set(checks or ()) - set(known)):
        raise ValueError(f"there is no check {unknown[0]!r}: choose from {', '.join(known)}.")
    chosen = [check for check in CHECKS if check.name in (checks or known)]
    settings = {"checks": [check.name for check in chosen], "blocks": blocks, "maps": maps, "slack": SLACK, "hot": HOT}

    def unit(check, masked, kind, block):
        key = f"{check.name}/{masked}/{kind}/{block}"
        count = maps[kind] if isinstance(maps, dict) else maps
        return Unit(key, lambda: [measure(check, kind, block, masked=masked, maps=count)], 1)

    return settings | {"dtype": "float64", "device": "cpu"}, [
        unit(check, masked, kind, block)
        for check in chosen
        for masked in check.masked
        for kind in KINDS
        for block in range(math.ceil(blocks.get(kind, 0) / (4 if check.slow else 1)))
    ]


def put(checks, **options):
    """Measure only these bounds, and replace their rows in the stored table."""
    few = make(["verify"], save_as="verify-some", checks=checks, **options)["verify-some"]
    stored, birth, some = results.load("verify"), results.provenance("verify"), results.provenance("verify-some")
    order = [check.name for check in CHECKS]
    whole = pd.concat([stored[~stored.bound.isin(few.bound)], few])
    whole = whole.sort_values("bound", key=lambda names: names.map(order.index), kind="stable")
    birth["settings"]["checks"] = [*whole.bound.unique()]
    again = {"rows": ", ".join(few.bound.unique()), "date": some["finished"], "seconds": some["seconds"]}
    again["commit"] = some["versions"]["commit"]
    birth |= {"rows": len(whole), "made again": [*birth.get("made again", ()), again]}
    final = results.folder() / "verify.csv"
    with replacing(final, final.with_suffix(".json")) as (csv, about):
        csv.write_text(whole.to_csv(index=False, float_format=FLOAT_FORMAT), encoding="utf-8")
        about.write_text(json.dumps(birth, indent=1) + "\n", encoding="utf-8")
    for ending in (".csv", ".json"):
        final.with_name(f"verify-some{ending}").unlink()
    return results.load("verify")


def worst_case(row):
    """The worst case of a row, made again from its seed.

    `row`: a row of the table. Returns lab.verification.Problem, its map with the one input; the measured value; and
    the bound.
    """
    check = next(check for check in CHECKS if check.name == row["bound"])
    problem, measured, stated = _problem(check, row["kind"], int(row["seed"]), bool(row["masked"]))
    one = slice(int(row["item"]), int(row["item"]) + 1)
    weights = None if problem.weights is None else problem.weights[one]
    return problem.at(problem.x[one], weights), measured[one].item(), stated[one].item()


def again(row):
    """The worst case of a row, made and measured again; for `lab.experiments.remeasure`."""
    _, measured, stated = worst_case(row)
    return {"worst": measured / stated}
