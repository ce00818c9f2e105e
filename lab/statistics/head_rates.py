"""Growth of the constants of heads and layers at adversarial tokens, computed from the stored tables."""

import numpy as np
import pandas as pd

from lab.statistics.power_laws import power_law

__all__ = [
    "FEW",
    "GPT2",
    "HEAD",
    "LENGTHS",
    "PANEL",
    "attending",
    "head_rates",
    "one_head",
    "own_slopes",
    "slopes",
    "worst_rates",
]

GPT2 = "gpt2-124m-attention"
PANEL = ["model", "masked", "at"]  # one model in one ball
HEAD = [*PANEL, "layer", "head"]  # one series
LENGTHS = tuple(range(2, 98, 5))  # of Figure 1
FEW = (2, 7, 22, 47, 97)  # for every head; all lengths for the worst head of a layer


def attending(alone):
    """Number N of tokens that attend to the lonely one, and the logarithm s of the window."""
    attending = alone.length - ((alone.eigenvalue < 0) & ~alone.masked)
    return alone.assign(N=attending, s=2 * alone.rate * alone.R**2)


def head_rates(alone):
    """Growth of every head at two clusters, from n = 7 to 97.

    Parameters
    ----------
    alone : DataFrame
        The table ``adversarial``.

    Returns
    -------
    DataFrame
        `HEAD`, s (2 gamma R^2), exponent against the number N of tokens that attend to the lonely one, constant at
        n = 97, saturated (that constant over ||V|| sqrt(N)), half (whether the exponent is within 0.02 of one half).
    """
    rows = []
    for key, head in attending(alone[alone.length.isin(FEW[1:])]).groupby(HEAD, sort=False):
        last = head[head.length == FEW[-1]].iloc[0]
        exponent = power_law(head.N, head.constant).exponent
        rows.append([*key, last.s, exponent, last.constant, last.constant / (last.V_norm * last.N**0.5)])
    heads = pd.DataFrame(rows, columns=[*HEAD, "s", "exponent", "constant", "saturated"])
    return heads.assign(half=(heads.exponent - 0.5).abs() < 0.02)


def worst_rates(alone):
    """The head of each panel with the largest constant at n = 97, and its exponents.

    Parameters
    ----------
    alone : DataFrame
        The table ``adversarial``.

    Returns
    -------
    DataFrame
        `HEAD`, R, s, constant at n = 97; exponents "in n" and "in N" over the lengths of Figure 1, and "n > 96" over
        those from 97 on; Theorem 3.3 and its tighter form over that constant, "upper" and "sharp".
    """
    rows = []
    full = attending(alone).groupby(HEAD).filter(lambda head: len(head) > len(LENGTHS))
    for key, head in full.groupby(HEAD, sort=False):
        drawn, far = head[head.length <= FEW[-1]], head[head.length >= FEW[-1]]
        last = drawn[drawn.length == FEW[-1]].iloc[0]
        pairs = ((drawn.length, drawn), (drawn.N, drawn), (far.length, far))
        slopes = [power_law(n, at.constant).exponent for n, at in pairs]
        rows.append([*key, last.R, last.s, last.constant, *slopes, *(last[["upper", "sharp"]] / last.constant)])
    columns = ["R", "s", "constant", "in n", "in N", "n > 96", "upper", "sharp"]
    each = pd.DataFrame(rows, columns=[*HEAD, *columns])
    return each.loc[each.groupby(PANEL, sort=False)["constant"].idxmax()]


def one_head(layer):
    """Rows of one layer of ``adversarial-layers`` at the head that makes it roughest at the longest input.

    That head was measured at every length, the others only at the longest.
    """
    return layer[layer["head"].isin(layer["head"].mode()[:1])]


def own_slopes(own, layers):
    """Slopes of whole layers at their own worst inputs and at the controls, over the whole range and its two halves.

    Parameters
    ----------
    own : DataFrame
        The table ``adversarial-worst``.
    layers : DataFrame
        The table ``adversarial-layers``: for each layer one head is followed, see `one_head`.

    Returns
    -------
    DataFrame
        `PANEL`, layer, kind ("clusters", "fork", "random", "text", "followed"), slope (least squares in log-log axes
        over all lengths of `own`), early and late (the same up to and from the middle length), constant (at the longest
        input).
    """
    lengths = sorted(own.length.unique())
    middle, place = lengths[len(lengths) // 2], [*PANEL, "layer"]
    whole = own.melt([*place, "length"], ["clusters", "fork", "random", "text"], "kind", "constant")
    followed = pd.concat([one_head(rows) for _, rows in layers.groupby(place, sort=False)])
    followed = followed.assign(kind="followed").rename(columns={"lipschitz": "constant"})
    both = pd.concat([whole.dropna(), followed[[*place, "length", "kind", "constant"]]])
    grid = both[both.length.isin(lengths)].pivot_table(index=[*place, "kind"], columns="length", values="constant")
    parts = {"slope": grid, "early": grid.loc[:, :middle], "late": grid.loc[:, middle:]}
    found = {name: slopes(part) for name, part in parts.items()}
    return pd.DataFrame(found, grid.index).assign(constant=grid[lengths[-1]]).reset_index()


def slopes(grid):
    """Slopes in log-log axes, by least squares, of the rows of a table whose columns are lengths: an array."""
    return np.polyfit(np.log(grid.columns.astype(float)), np.log(grid).T, 1)[0]
