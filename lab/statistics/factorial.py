"""Effect of each factor of a small factorial design on the loss, seed by seed.

Runs of one seed read the same windows in the same order, so effects are differences within a seed, and their intervals
are Student's over seeds, corrected for their number: all hold together.
"""

import pandas as pd
from scipy import stats

CROSSED = {"dot": "dot products", "l2-untied": "untied L2", "l2-tied": "tied L2"}  # kinds in every cell of the design


def contrasts(losses):
    """Differences between halves of the design, one for each seed.

    `losses`: columns attention, start, norm, seed, nats: one row for each run. The kinds of `CROSSED` have two starts,
    and "l2-divided" and "none" one; all have both positions of LayerNorm. Returns one row for each effect, one column
    for each seed; nats.
    """
    cells = losses.pivot(index=["attention", "start", "norm"], columns="seed", values="nats")
    if cells.isna().any(axis=None):
        raise ValueError(f"{int(cells.isna().sum().sum())} runs are missing from the design: finish the table first.")
    mean = cells.groupby("attention").mean()
    low, high = (cells.xs(at, level="norm").groupby("attention").mean() for at in ("after", "before"))
    starts = cells.groupby(["attention", "start"]).mean()
    little, much = starts.groupby("attention").first(), starts.groupby("attention").last()
    found = {
        "distances in place of dot products": mean.loc["l2-untied"] - mean.loc["dot"],
        "tied: keys are queries, values pass through A": mean.loc["l2-tied"] - mean.loc["l2-untied"],
    }
    for kind, name in CROSSED.items():
        found[f"a start that adds much: {name}"] = much.loc[kind] - little.loc[kind]
    for kind, name in CROSSED.items():
        found[f"LayerNorm before: {name}"] = high.loc[kind] - low.loc[kind]
    found["tied L2 divided by its bound"] = mean.loc["l2-divided"] - little.loc["l2-tied"]
    found["tied L2 that adds little, for no attention"] = little.loc["l2-tied"] - mean.loc["none"]
    return pd.DataFrame(found).T


def effects(losses):
    """Means of the `contrasts` with their intervals, one row for each effect.

    Columns change (mean over seeds, nats), low, high (95 % for all effects together, by Bonferroni), up (seeds in
    which it is positive), seeds.
    """
    each = contrasts(losses)
    seeds = each.shape[1]
    half = stats.t.ppf(1 - 0.025 / len(each), seeds - 1) * each.sem(axis=1)
    middle = each.mean(axis=1)
    found = {"change": middle, "low": middle - half, "high": middle + half, "up": (each > 0).sum(axis=1)}
    return pd.DataFrame(found).assign(seeds=seeds).rename_axis("effect")
