"""Figures of attacks on the input of a layer, and of their relation to the local constant."""

import numpy as np

from lab.figures.registry import figure
from lab.figures.style import named_among_marks, named_at_the_end, panels

ATTACKS = (
    ("random", "random", "C6", "x", ":"),
    ("singular", "singular vector", "C0", "o", "-"),
    ("aligned", "aligned", "C4", "s", "--"),
    ("one_token", "one token", "C2", "^", "-."),
    ("parting_pgd", "parting copies", "C3", "v", "--"),
    ("pgd", "PGD", "C1", "D", "-"),
)
BANDS = (
    ("bound_general", "Thm 3.3, summed over heads", "0.2", "P", "-."),
    ("bound", "bound of this page", "0.5", "X", "--"),
    ATTACKS[-1],
)
ATTACKED = {"vector 0.01": "1 %", "vector 0.1": "10 %", "vector 1": "100 %", "word": "one word"}


@figure(
    "robustness-attacks",
    page="63_robustness",
    tables=("robustness",),
    about="attacks and bounds over the first-order prediction",
)
def attacks(table):
    """Change of the output over its first-order prediction, for each attack and bound, against the size of the move.

    Lines are medians over inputs; a band is drawn for PGD only, from the smallest to the largest.

    `table`: ``robustness``: columns relative, epsilon, lipschitz, and one for each attack and bound.
    """
    axes = panels(1, rows=2, width=6.4, height=3.3)
    for ax, lines in zip(axes, (ATTACKS, BANDS), strict=True):
        for name, label, colour, marker, dashes in lines:
            rows = (table[name] / (table.lipschitz * table.epsilon)).groupby(table.relative)
            ax.plot(rows.median(), color=colour, marker=marker, ls=dashes, ms=5, label=label)
            if name == "pgd":
                ax.fill_between(rows.min().index, rows.min(), rows.max(), color=colour, alpha=0.2, lw=0)
        ax.set(xscale="log")
        ax.set_xticks([0.0001, 0.001, 0.01, 0.1, 1], ["0.0001", "0.001", "0.01", "0.1", "1"])
    axes[0].axhline(1, color="0.5", lw=0.8)
    axes[0].set(ylabel=r"change of the output / ($\mathrm{Lip}_X\,\epsilon$)", ylim=(0, None))
    axes[1].set(yscale="log", ylim=(0.5, 2e5), ylabel="the same, log axis")
    axes[1].set_yticks([1, 10, 100, 1e3, 1e4, 1e5], ["1", "10", "100", "1,000", "10,000", "100,000"])
    axes[1].set_xlabel(r"relative length $\epsilon$ / token norm")
    for ax in axes:
        ax.minorticks_off()
        named_at_the_end(ax, apart=11)
    return axes[0].figure


def worst(table):
    """The stored ``one-word`` with outcome and predictors, relative to the output and to the tokens.

    Adds `worst`, the largest change found (for words by the search or by equally many random words), `relative_change`,
    that over the norm of the output, and `certified`, the bound of this input for relative changes.
    """
    found = table[["change", "random_best"]].max(axis=1)
    certified = table.closed_form * table.received / table.given
    return table.assign(worst=found, relative_change=found / table.given, certified=certified)


@figure(
    "robustness-ranks",
    page="63_robustness",
    tables=("one-word",),
    about="how far a vector and a word move every layer, against the constant times the length of the change",
)
def ranks(table, attacks=("vector 1", "word")):
    """Moves of each input of two models under attacks, against the constant times the length of the change.

    `table`: the stored ``one-word``. `attacks`: one for each panel, of `ATTACKED`.
    """
    titles = {name: f"vectors, {said} of a token norm" for name, said in ATTACKED.items()} | {"word": "one word"}
    axes = panels(1, rows=len(attacks), width=6, height=3.3)
    rows = worst(table).assign(first=lambda rows: rows.lipschitz * rows.epsilon)
    for ax, attack in zip(axes, attacks, strict=True):
        for model, name, colour, marker in (("minilm", "MiniLM", "C5", "o"), ("gpt2-mini", "gpt2-mini", "0.35", "s")):
            dots = rows[(rows.attack == attack) & (rows.model == model)]
            ax.plot(dots["first"], dots.worst, marker, color=colour, ms=5, alpha=0.6, label=name)
        drawn = rows[rows.attack == attack]
        ends = np.array([drawn["first"].min(), drawn["first"].max()])
        ax.plot(ends, ends, color="0.5", lw=0.8)
        ax.set(xscale="log", yscale="log", title=titles[attack], ylabel="largest change found")
        ax.set_xlabel("constant × length of the change")
        ax.set_xticks([20, 100, 500], ["20", "100", "500"])
        ax.set_yticks([5, 20, 100, 500], ["5", "20", "100", "500"])
        ax.minorticks_off()
        named_among_marks(ax)
    return axes[0].figure
