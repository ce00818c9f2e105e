# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Which inputs are easy to attack?
#
# Does a larger {term}`local Lipschitz constant` mean an input that is easier to {term}`attack`? For vectors as long as
# a {term}`token`, and changes in relation to the output, the relative constant has a rank correlation of
# {glue:text}`page-78-far:.2f` with the best attack we found, over all layers of two models; the interval is
# [{glue:text}`page-78-far-low:.2f`, {glue:text}`page-78-far-high:.2f`] when {glue:text}`page-78-layers:d` layers and
# {glue:text}`page-78-windows:d` {term}`windows <window>` are drawn again. Between texts in one layer it is
# {glue:text}`page-78-within-far:.2f` [{glue:text}`page-78-within-low:.2f`, {glue:text}`page-78-within-high:.2f`], no
# more than what the division by the norm of the output gives by itself
# ({glue:text}`page-78-within-size:.2f`). How far *one word* moves a layer is another matter ({numref}`fig-78-ranks`):
# {glue:text}`page-78-word:.2f` [{glue:text}`page-78-word-low:.2f`, {glue:text}`page-78-word-high:.2f`].

# %% tags=["parameters"]
hand_radii = [0.1, 0.5, 2.0]  # of the case by hand
rows_to_check = 2  # stored rows measured again
draws = 500  # of the bootstrap
seed = 0

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import pandas as pd
import torch
from myst_nb import glue

from lab import figures, ranking, results
from lab.experiments import one_word, remeasure
from lab.figures.robustness import ATTACKED, worst
from lipnb import Attention, local_lipschitz
from lipnb.worst_case import attacks

figures.house_style()
stored = results.load("one-word")
table = worst(stored).assign(size=lambda rows: rows.received / rows.given)
first_order = "vector 0.01"

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-78-ranks", "caption": "Each mark is one window at one layer. Left: the relative constant orders what vectors of one token norm can do, across layers and models. Right: the same inputs, when one word of the text is replaced by the worst word found."}, "image": {"alt": "Two panels with one mark for each input, circles for MiniLM and squares for gpt2-mini. On the left, for vectors, the marks rise with the relative constant. On the right, for one word, they scatter widely."}}
figures.robustness.ranks(stored)
plt.show()

# %% [markdown]
# ## By hand: three inputs change places
#
# We take two tokens on a line with $A = 2$, $V = 1$, as in {doc}`75_robustness`. For three such inputs we find the
# worst change of a given length on a grid.


# %%
def worst_change(f, x, radius):
    """Largest change of the output over the radius, for two tokens on a line."""
    turn = torch.linspace(0, 2 * torch.pi, 721, dtype=torch.float64)
    circle = torch.stack([turn.cos(), turn.sin()], -1)[:, :, None]
    disc = torch.linspace(0.02, 1, 50).double()[:, None, None, None] * radius * circle
    return (attacks.change(f, x, disc).max() / radius).item()


one = torch.ones(1, 1, dtype=torch.float64)
f, hand = Attention.from_matrices(2 * one, one), []
for tokens in ((1.0, -0.5), (0.5, -0.5), (1.5, -1.5)):
    x = torch.tensor(tokens, dtype=torch.float64)[:, None]
    changes = {f"radius {radius:g}": worst_change(f, x, radius) for radius in hand_radii}
    constant = local_lipschitz(f, x, method="dense").value.item()
    hand.append({"tokens": tokens, "constant": constant} | changes)
hand = pd.DataFrame(hand)

# %% tags=["hide-input"]
shown = hand.assign(tokens=[f"{first:g} and {other:g}".replace("-", "−") for first, other in hand.tokens])
figures.table(shown.rename(columns={"constant": "local constant"}))

# %% [markdown]
# The last three columns are the worst change of the output over its radius. At the shortest radius first order decides,
# and the inputs have the order of their constants. Once the change is longer than a token, the input with the smallest
# constant is the easiest to attack: the tokens can be moved to a place where the constant is larger, which the
# derivative at one point does not show.
#
# ## The question for real text
#
# {bdg-secondary}`ours` {ref}`what is this? <badges>`
#
# :::{prf:observation} What is compared
# :label: ranking-inputs
#
# Inputs are windows of {glue:text}`page-78-length:d` tokens from two texts, {glue:text}`page-78-windows:d` over both
# models, at every one of the {glue:text}`page-78-layers:d` layers of MiniLM and gpt2-mini:
# {glue:text}`page-78-count:d` in all. For each we attack
# the attention of the layer with vectors of three lengths relative to the token norm (PGD, or one token alone, as in
# {doc}`75_robustness`), and with one word. We compute Spearman's rank correlation of a number known in advance with
# $\norm{f(X + \Delta) - f(X)}_F / \norm{f(X)}_F$. The *relative constant* is
# $\Lip_X(f) \norm{X}_F / \norm{f(X)}_F$. *Within* means that both are divided by their mean over the windows of the
# same layer.
# :::
#
# Windows pass through every layer, and layers see every window, so the inputs are not independent. The 95 % intervals
# are of a bootstrap that draws the windows (of each model and text) and the layers (of each model), both with
# replacement. Beside the constants stand controls: the ratio $\norm{X}_F / \norm{f(X)}_F$, which makes a constant
# relative, the token {term}`radius`, a certified {term}`bound` on the relative constant
# ({doc}`72_certified_bracket`), and a random order of the layers.
#
# **One word.** We replace one token by another of the vocabulary. The change of the output to first order, through the
# layers below, is estimated for all places and words at once from random probes of the {term}`Jacobian`; the most
# promising words are then measured. As many random words are measured too, and the larger change is kept.

# %% tags=["hide-input"]
predictors = {"relative": "relative constant", "lipschitz": "local constant"}
predictors |= {"size": "norm of input over output", "token": "token radius", "certified": "certified bound"}


def compared(within):
    """Rank correlations of all predictors with the relative change, by attack."""
    parts = {name: table[table.attack == name] for name in ATTACKED}
    ranks = {
        name: ranking.of_inputs(part, [*predictors], "relative_change", within=within, draws=draws, seed=seed)
        for name, part in parts.items()
    }
    return pd.concat(ranks, names=["attack"])


def shown(found, chance):
    """The same as a table to be read; what is so by construction is no number."""
    said = found.assign(text=[f"{row.rho:.2f} [{row.low:.2f}, {row.high:.2f}]" for row in found.itertuples()])
    said = said.text.unstack("attack")[[*ATTACKED]].loc[[*predictors]].rename(index=predictors)
    said.loc["relative constant", first_order] = "first order"
    said.loc["random order"] = f"0 [−{chance:.2f}, {chance:.2f}]"
    return said.rename(columns=ATTACKED).rename_axis("predictor").reset_index()


# %% tags=["hide-input"]
everywhere, inside = compared(False), compared(True)
layers = table.groupby(["model", "layer"]).ngroups
windows = table.groupby(["model", "corpus", "window"]).ngroups
figures.table(shown(everywhere, ranking.by_chance(layers)), bold=[True] + [False] * len(predictors))

# %% [markdown]
# *Across layers, models and texts. At one per cent the change is the constant times its length, to first order, because
# the attack starts at the top {term}`singular vector`: that entry would be no finding. The random order is one of the
# layers.*

# %% tags=["hide-input"]
figures.table(shown(inside, ranking.by_chance(windows)), bold=[True] + [False] * len(predictors))

# %% [markdown]
# *Within layers, where only the text differs. The random order is one of the windows.*
#
# For vectors the answer is yes across layers, and the right constant is the relative one. At one token norm it has
# {glue:text}`page-78-far:.2f`, where the plain constant has {glue:text}`page-78-plain:.2f` and the token radius
# {glue:text}`page-78-token:.2f`. Part of this may come from the division by $\norm{f(X)}_F$, which the relative
# constant and the change share: the ratio of the norms, with no constant in it, has {glue:text}`page-78-size:.2f`
# [{glue:text}`page-78-size-low:.2f`, {glue:text}`page-78-size-high:.2f`]. Within layers, at one token norm, it has
# {glue:text}`page-78-within-size:.2f`, more than the relative constant ({glue:text}`page-78-within-far:.2f`), so there
# the division may be all; for changes of a tenth of that the constant ranks far better. The certified bound ranks about
# as well ({glue:text}`page-78-certified:.2f`), and needs no attack and no solver.
#
# For one word no interval of the constants excludes zero: neither across layers nor, with
# {glue:text}`page-78-within-word:.2f`, within them. The word found moves the tokens that the layer receives by
# {glue:text}`page-78-long:.1f` token norms in the median, yet the output by only {glue:text}`page-78-predicted:.2f` of
# what the constant would allow at that length. A word cannot choose its direction. It still changes the output by
# {glue:text}`page-78-move:.0%` of its norm (a random word by {glue:text}`page-78-any:.0%`).
#
# First order is a poor guide to words, which lie far apart: the search finds {glue:text}`page-78-gain:.2f` times the
# largest change by as many random words, in the median.

# %% tags=["hide-input"]
words = table[table.attack == "word"]
again = remeasure(table[table.model == "gpt2-mini"], one_word.again, rows=rows_to_check, seed=seed)
drift = pd.Series({name: again[f"{name} difference"].max() for name in one_word.COMPARED})
print(f"{len(again)} stored rows measured again, off by {drift.max():.1g} at most")

# %% tags=["hide-input"]
far, word = everywhere.loc["vector 1"], everywhere.loc["word"]
told = {"far": far.rho, "far-low": far.low, "far-high": far.high}
told = {key: value["relative"] for key, value in told.items()}
told |= {"word": word.rho["relative"], "word-low": word.low["relative"], "word-high": word.high["relative"]}
near = inside.loc["vector 1"].loc["relative"]
told |= {"within-far": near.rho, "within-low": near.low, "within-high": near.high}
told |= {"within-word": inside.rho["word", "relative"], "token": far.rho["token"], "plain": far.rho["lipschitz"]}
told |= {"certified": far.rho["certified"], "size": far.rho["size"], "size-low": far.low["size"]}
told |= {"size-high": far.high["size"], "within-size": inside.rho["vector 1", "size"]}
told |= {"move": (words.worst / words.given).median(), "any": (words.random / words.given).median()}
told |= {"gain": (words.change / words.random_best).median(), "long": (words.epsilon / words.token).median()}
told |= {"predicted": (words.worst / (words.lipschitz * words.epsilon)).median()}
counts = {"layers": layers, "windows": windows, "count": len(words), "length": table.length.max()}
for key, value in told.items():
    glue(f"page-78-{key}", float(value), display=False)
for key, value in counts.items():
    glue(f"page-78-{key}", int(value), display=False)

# %% tags=["hide-input", "nbval-check-output"]
assert drift.max() < 0.01, "a stored row does not hold"
assert far.low["relative"] > 0 and near.low > 0, "vectors are not ranked after all"
assert inside.rho["vector 1", "size"] > near.rho and far.rho["size"] < far.rho["relative"] - 0.3
assert inside.rho["vector 0.1", "relative"] > inside.rho["vector 0.1", "size"] + 0.3
for by in ("relative", "lipschitz"):
    for found in (everywhere, inside):
        assert found.low["word", by] < 0 < found.high["word", by], "words are ranked after all"
assert hand.constant.is_monotonic_decreasing and hand[hand.columns[-1]].idxmax() == 2
assert (hand.iloc[:, 2] / hand.constant - 1).abs().max() < 0.05
vectors = table[table.attack != "word"]
assert (vectors.change <= vectors.bound).all(), "a bound was exceeded"
print(f"✓ {len(words)} inputs, attacked by vectors and by words: no attack above its bound")

# %% [markdown]
# ## What this shows and does not show
#
# - The order over all inputs is that of {glue:text}`page-78-layers:d` layers. Two models are no sample of networks, and
#   the intervals say nothing of a third.
# - The constant of one input belongs to one {term}`sequence` at one layer: it says nothing about the network around it.
# - A rank correlation sees the order alone. How far an attack carries each input beyond its prediction, and what no
#   attack can exceed, is measured in {doc}`75_robustness`.
# - The best attack is the best *found*. Neither vectors nor words were searched exhaustively, and an input that looks
#   hard to attack may only have been attacked badly.
# - A word may be any that the tokenizer reads back as itself. It need not fit the sentence.
#
# **One thing to try.** Which words were found? Column `word` holds the token and `place` where it stands:
# `models.load("gpt2-mini").tokenizer.decode([int(token)])` reads it.
#
# **Next:** {doc}`80_kv_rounding`, whether the constant says which layers bear a rounded cache.
