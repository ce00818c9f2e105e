"""The first token of a text against the median one, in trained layers and in controls.

C0 is the trained model on a text, C1 its first token a special one, C3 shuffled text, C6 random weights.
"""

import matplotlib.pyplot as plt
import numpy as np

from lab.figures.registry import figure

__all__ = ["NAMES", "against_median", "sinks"]

CASES = {  # weights, order, special -> how it is called and drawn
    "as read": ("trained", "text", "none", "C0", "o"),
    "special token before": ("trained", "text", "first", "C1", "D"),
    "shuffled": ("trained", "shuffled", "none", "C3", "^"),
    "random weights": ("random", "text", "none", "C6", "s"),
}
NAMES = {"minilm": "MiniLM", "gpt2-mini": "gpt2-mini, masked", "smollm2": "SmolLM2, masked"}


def against_median(table):
    """How many times harder the first token pushes, and is looked at, than the median one, by case and layer.

    Parameters
    ----------
    table : DataFrame
        The stored ``token-sinks``.

    Returns
    -------
    DataFrame
        Columns model, case, layer, push, look: geometric means over windows, or over the seeds of random weights.
    """
    rows = table.assign(
        weights=table.weights.str.split().str[0],
        push=np.log(table.first_push / table.median_push),
        look=np.log(table.first_look / table.median_look),
    )
    known = {case[:3]: name for name, case in CASES.items()}
    rows["case"] = [known.get(case) for case in zip(rows.weights, rows.order, rows.special, strict=True)]
    means = rows.dropna(subset="case").groupby(["model", "case", "layer"], as_index=False)[["push", "look"]].mean()
    return means.assign(push=np.exp(means.push), look=np.exp(means["look"]))


@figure(
    "token-sinks",
    page="46_which_token_matters",
    tables=("token-sinks",),
    about="how hard the first token pushes the others, with and without a special token, and in controls",
)
def sinks(table):
    """How many times harder than the median token the first one pushes the others, layer by layer, with controls.

    Parameters
    ----------
    table : DataFrame
        The stored ``token-sinks``.

    Returns
    -------
    Figure
    """
    means = against_median(table)
    models = [name for name in NAMES if name in set(means.model)]
    figure, axes = plt.subplots(1, len(models), figsize=(3.3 * len(models), 3.5), sharey=True, layout="constrained")
    for ax, model in zip(np.atleast_1d(axes), models, strict=True):
        for case, (*_, colour, marker) in CASES.items():
            rows = means[(means.model == model) & (means.case == case)]
            ax.plot(rows.layer, rows.push, marker, color=colour, ms=6, ls="-", lw=1, label=case)
        ax.axhline(1, color="black", lw=0.8)
        ax.set(yscale="log", xlabel="layer", title=NAMES[model])
        ax.set_yticks([0.5, 1, 2, 5, 10], ["½", "1", "2", "5", "10"])
        ax.minorticks_off()
    np.atleast_1d(axes)[0].set_ylabel("push of the first token\nover that of the median one")
    figure.legend(*np.atleast_1d(axes)[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure
