"""Upper bounds: against thousands of inputs, and as brackets of single ones."""

import pandas as pd

from lipnb.scanning.style import panels

__all__ = ["TITLES", "brackets", "worst_cases"]

TITLES = {
    "general_upper": "Theorem 3.3, 4.3",
    "general_upper_sharp": "Theorem 3.3, tighter (ours)",
    "general_upper_optimal": "Theorem 3.3, exact leading constant (ours)",
    "column_upper": "by column sums, at an input (ours)",
    "spread_upper": "by the spread, at an input (ours)",
    "yudin_upper": "Yudin et al., at an input",
    "yudin_upper_sharp": "Yudin et al., norm of the softmax",
    "biased_upper": "Theorem E.3, with biases",
    "multi_head_upper": "Lemma 3.8, several heads",
    "mean_field_upper": "Theorem 3.5, mean field",
    "mean_field_upper_sharp": "Theorem 3.5, tighter (ours)",
    "masked_mean_field_upper": "Theorem 4.4, corrected (ours)",
    "masked_mean_field_upper_sharp": "Theorem 4.4, half the exponent (ours)",
    "large_radius_upper": "Theorem 3.7, 4.5, limit",
    "certify": "certificate, upper side (ours)",
    "certify_no_column": "certificate, closed form (ours)",
    "three_terms": "closed form, no rounding (ours)",
    "nearby_upper": "change near an input (ours)",
    "heads_on_ball": "all heads on a ball",
    "ball_upper": "a whole layer on a ball (ours)",
    "max_token_upper": "largest token, ball (ours)",
    "max_token_terms": "largest token, input (ours)",
    "heads_at_input": "all heads at an input",
    "rotary_upper": "rotary attention, ball (ours)",
    "rotary_terms": "rotary attention, input (ours)",
    "l2_upper": "L2 attention, 2-norm",
    "l2_upper_maximum": "L2 attention, maximum norm",
    "l2_upper_sharp": "L2 attention, tighter (ours)",
}
BOUNDS = {
    "general": ("Thm 3.3", "C1", "s"),
    "yudin": ("Yudin et al.", "C4", "^"),
    "closed_form": ("three terms", "C2", "D"),
}


def worst_cases(table):
    """Largest measured over bound, for every upper bound: over all inputs, and where attention is not nearly uniform.

    Parameters
    ----------
    table : DataFrame
        ``verify``: columns bound, worst, worst_hot.

    Returns
    -------
    Figure
        Two marks a bound.
    """
    worst = table.groupby("bound", sort=False)[["worst", "worst_hot"]].max()
    ax, place = panels(1, width=6.6, height=7)[0], range(len(worst))
    ax.hlines(place, worst.worst_hot, worst.worst, color="#cccccc", lw=1)
    ax.plot(worst.worst, place, "o", ms=9, mfc="none", color="C0", label="all inputs")
    ax.plot(worst.worst_hot, place, "D", ms=5, color="C1", label="logit range t ≥ 1 only")
    ax.axvline(1, color="black", lw=1, zorder=0)
    ax.set_yticks(place, [TITLES.get(name, name.replace("_", " ")) for name in worst.index], fontsize=9)
    ax.set(xlim=(0, 1.03), ylim=(len(worst) - 0.5, -0.5), xlabel="largest measured / bound")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=9)
    return ax.figure


def brackets(*tables):
    """The bracket of every layer, at the longest inputs, with published upper bounds above it.

    Parameters
    ----------
    *tables : DataFrame
        ``bracket-minilm``, ``bracket-gpt2``: columns model, masked, length, layer, lower, upper, closed_form, yudin,
        general.

    Returns
    -------
    Figure
    """
    stored = pd.concat(tables, ignore_index=True)
    longest = stored[stored.length == stored.groupby("model").length.transform("max")]
    groups = longest.groupby(["model", "masked"], sort=False)
    axes = panels(len(groups), width=3.7, height=3.9)
    for ax, ((model, masked), rows) in zip(axes, groups, strict=True):
        if not rows.layer.is_unique:
            raise ValueError(f"{model}: more than one row of a layer at n = {rows.length.iloc[0]}.")
        for name, (label, colour, marker) in BOUNDS.items():
            ax.plot(rows.layer, rows[name], color=colour, marker=marker, label=label)
        ax.fill_between(rows.layer, rows.lower, rows.upper, color="C0", alpha=0.55)
        ax.plot(rows.layer, rows.upper, color="C0", lw=1, label="bracket: lower, upper")
        ax.plot(rows.layer, rows.lower, color="C0", lw=1)
        named = {"minilm": "MiniLM", "gpt2": "GPT-2"}.get(model, model)
        title = f"{named}, {'masked' if masked else 'unmasked'}, n = {rows.length.iloc[0]}"
        ax.set(yscale="log", ylim=(1, 1e8))
        ax.set_title(title, fontsize=14)
        ax.set_xlabel("layer", fontsize=14)
        ax.set_xticks(rows.layer[:: 1 + len(rows) // 8])
        ax.tick_params(labelsize=13)
    axes[0].set_ylabel("bound on the local constant", fontsize=14)
    axes[0].figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=13)
    return axes[0].figure
