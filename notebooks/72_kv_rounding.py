# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Rounded caches: what ranks the layers?
#
# A language model keeps the keys and values of past {term}`tokens <token>` in a cache, often with few bits. Does the
# {term}`local Lipschitz constant` say which layers tolerate that rounding? In general it does not. In SmolLM2, with one
# layer at a time rounded to {glue:text}`page-72-bits:d` bits, its rank correlation with the change of the predictions is
# {glue:text}`page-72-keys:.2f` for keys, which is chance, and {glue:text}`page-72-values:.2f` for values, the wrong
# sign. What ranks the layers is the relative change of the residual stream ({numref}`fig-72-ranks`), which has to be
# measured with the rounding on.

# %% tags=["parameters"]
bits = 3
layer = 3  # of gpt2-mini, rounded when this page runs
length = 128  # tokens, those of the tables
vector = [0.0, 1.2, 2.9, 6.0]  # of the case by hand
rows_to_check = 1  # stored rows measured again
draws = 500  # of the bootstrap
seed = 0

# %% tags=["hide-input"]
import math

import matplotlib.pyplot as plt
import pandas as pd
import torch
from myst_nb import glue

from lab import figures, results
from lab.experiments import kv_rounding, remeasure
from lab.figures.kv_rounding import PREDICTORS, by_layer, predicted
from lab.statistics import ranking
from lipnb import corpora, models

figures.house_style()
table = predicted(results.load("kv-rounding"))
smol = table[table.model == "smollm2"]

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-72-ranks", "caption": "Loss from rounding the keys or the values of one layer of SmolLM2, one mark for each layer, geometric means over {term}`windows <window>`. Top: against the constant of the layer, keys show no order and values fall. Bottom: against the relative change of the residual stream after the layer, keys and values lie on one line; but that change is not known before the rounding is tried."}, "image": {"alt": "Two panels with one mark for each layer, circles for keys and squares for values. At the top, against the local constant, the circles form a cloud, and the squares a band that falls to the right. At the bottom, against the change of the residual stream, all marks lie along one rising line."}}
figures.kv_rounding.ranks(table, bits)
plt.show()

# %% [markdown]
# ## By hand: one vector
#
# Each key and each value is a vector, rounded to equal steps between its smallest and its largest entry. With two bits
# there are four levels:

# %%
print(kv_rounding.rounded(torch.tensor(vector), bits=2))

# %% [markdown]
# The error depends on the range of the entries, and not on what the layer does with them. The constant depends on what
# the layer does with the worst change of its tokens, and not on the rounding. Neither accounts for what the layers above
# do with the result.
#
# ## One layer of gpt2-mini
#
# We round the keys of one layer and let the rest of the network run as it is. The loss is the Kullback-Leibler
# divergence (KL) between the predictions of the next token before and after, in nats, averaged over positions. The text
# is {glue:text}`page-72-corpus`.

# %%
model, corpus = models.load("gpt2-mini"), corpora.available("alice", "python_reference")
start = kv_rounding.begin(model, models.random_windows(model, corpora.read(corpus), length, 1))
here = kv_rounding.round_layer(start, layer, "keys", bits)
shown_here = {"relative_error": "error of the keys", "stream_change": "change of the stream", "carried": "carried"}
shown_here |= {"hidden": "change of the hidden states", "kl": "KL, nats"}
figures.table(pd.DataFrame({name: [here[name].item()] for name in shown_here}), names=shown_here, digits=4)

# %% [markdown]
# All changes are relative: for each token, in relation to its length. *Carried* is what the {term}`Jacobian` of the
# layers above makes of the change of the stream: we let a small part of it through and scale the result.
#
# ## What may rank the layers
#
# {bdg-secondary}`ours` {ref}`what is this? <badges>`
#
# :::{prf:observation} What is compared
# :label: rounded-caches
#
# We round the keys or values of one layer at a time, after rotation, with one scale for each vector, in gpt2-mini
# ({glue:text}`page-72-mini-layers:d` layers) and SmolLM2-135M as shipped ({glue:text}`page-72-layers:d` layers, weights
# of four bits). There are {glue:text}`page-72-windows:d` windows of {glue:text}`page-72-length:d` tokens from each of
# {glue:text}`page-72-texts:d` texts ({glue:text}`page-72-names`). For each predictor we compute Spearman's rank
# correlation with the KL over the layers, both averaged over windows.
# :::
#
# Two yardsticks judge a correlation:
#
# - The 95 % interval says what other texts would give on the same layers. It is a bootstrap that draws the
#   {glue:text}`page-72-texts:d` texts, and the windows within each, with replacement. It is worth little, since
#   {glue:text}`page-72-texts:d` texts can be drawn in only {glue:text}`page-72-draws:d` ways.
# - Chance: nineteen in twenty random orders of SmolLM2's layers have a correlation within
#   ±{glue:text}`page-72-chance:.2f`, those of gpt2-mini's within ±{glue:text}`page-72-mini-chance:.2f`.
#
# The page has {glue:text}`page-72-tried:d` correlations. With Holm's correction for so many,
# {glue:text}`page-72-held:d` of SmolLM2's {glue:text}`page-72-smol-tried:d` are beyond chance, among them that of the
# constant for values, but not that for keys. Of gpt2-mini's {glue:text}`page-72-mini-held:d` are: with
# {glue:text}`page-72-mini-layers:d` layers not even a perfect order would be.


# %% tags=["hide-input"]
def compared(rows, outcome="kl"):
    """Correlations of all predictors with what rounding does, by kind and bits."""
    parts = rows.groupby(["kind", "bits"])
    found = {key: ranking.of_layers(part, [*PREDICTORS], outcome, draws=draws, seed=seed) for key, part in parts}
    return pd.concat(found, names=["kind", "bits"])


def partial(rows, predictor, fixed):
    """Partial rank correlation of a predictor with the KL over the layers, another one held fixed."""
    r = by_layer(rows, [predictor, "kl", fixed]).corr("spearman")
    with_kl, with_fixed, kl_fixed = r.loc[predictor, "kl"], r.loc[predictor, fixed], r.loc["kl", fixed]
    return (with_kl - with_fixed * kl_fixed) / ((1 - with_fixed**2) * (1 - kl_fixed**2)) ** 0.5


def shown(found):
    """The same as a table to be read."""
    said = found.assign(text=[f"{row.rho:.2f} [{row.low:.2f}, {row.high:.2f}]" for row in found.itertuples()])
    said = said.text.unstack(["kind", "bits"]).loc[[*PREDICTORS]].rename(index=PREDICTORS)
    said.columns = [f"{kind}, {bits} bits" for kind, bits in said.columns]
    return said.rename_axis("predictor").reset_index()


found = compared(smol)
figures.table(shown(found), bold=[name in ("lipschitz", "stream_change") for name in PREDICTORS])

# %% [markdown]
# The table is of SmolLM2. The *relative constant* is $L\,\lvert x\rvert / \lvert f(x)\rvert$, and the *relative rounding
# error* is divided by the norm of what was rounded. *Error × constant* is that error times the constant times the norm
# of the tokens received. The last three rows need a run with the rounding on: the relative change of the residual stream
# after the layer, and that times the gain of the layers above, for a random change and for the change itself.
#
# Nothing known in advance ranks both keys and values well. The constant adds nothing to the index of the layer: with the
# index held fixed, its partial correlation is {glue:text}`page-72-partial-keys:.2f` for keys and
# {glue:text}`page-72-partial-values:.2f` for values, within chance. Nor does the index add to the constant. The two have
# a rank correlation of {glue:text}`page-72-together:.2f`, so these layers cannot tell them apart.
#
# ## Why the constant fails
#
# - The output of attention is added to a residual stream ({numref}`fig-72-depth`) whose norm lies between
#   {glue:text}`page-72-stream-low:,.0f` and {glue:text}`page-72-stream-high:,.0f`; for the median token it rises from
#   {glue:text}`page-72-token-low:.0f` in the first layer to {glue:text}`page-72-token-high:.0f` in the last. What is
#   large for the layer is small for the stream.
# - The constant is attained by one change of the tokens. A rounding error is spread over all tokens and heads, and it
#   changes keys or values, not both through the same token.
# - The error of keys passes through the softmax, and the error of values does not. One number for the layer cannot be
#   right for both.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-72-depth", "caption": "SmolLM2 by layer, geometric means over windows. The constant grows with depth, with dips, and so does the residual stream of the median token; the loss does not. One long token makes the jump in the middle panel, so changes have to be compared token by token."}, "image": {"alt": "Three panels against the layer. The constant rises, with dips. The norm of the residual stream of all tokens jumps in the middle and falls at the end, that of the median token rises. The loss by rounding falls from the second layer on, with humps, keys above values."}}
figures.kv_rounding.depth(table, bits)
plt.show()

# %% [markdown]
# ## The same on gpt2-mini
#
# Here the constant reaches {glue:text}`page-72-mini-keys:.2f` for keys and {glue:text}`page-72-mini-values:.2f` for
# values (table folded). The norm of the residual stream, which needs no constant, reaches
# {glue:text}`page-72-mini-stream:.2f` for keys. Corrected for the number of correlations, none of this is beyond chance.

# %% tags=["hide-input", "hide-output"]
mini = compared(table[table.model == "gpt2-mini"])
figures.table(shown(mini), bold=[name in ("lipschitz", "stream_change") for name in PREDICTORS])

# %% [markdown]
# The rows of one layer and one text of gpt2-mini are measured again here:

# %% tags=["hide-input"]
rows = table[table.model == "gpt2-mini"]
drift = pd.Series(0.0, list(kv_rounding.COMPARED))
try:
    again = remeasure(rows, kv_rounding.again, rows=rows_to_check, seed=seed, by=kv_rounding.PLACE)
    drift = pd.Series({name: again[f"{name} difference"].max() for name in kv_rounding.COMPARED})
    place = again.iloc[0]
    print(
        f"layer {place.layer} of {place.model} on {place.corpus}: {len(again)} rows, off by {drift.max():.1g} at most"
    )
except ValueError as why:  # offline, on a Python with another text
    print(f"no row was measured again: {why}")

# %% tags=["hide-input"]
rho, small = found.rho, mini.rho
told = {name: rho[name, bits, "lipschitz"] for name in ("keys", "values")}
told |= {"mini-stream": abs(small["keys", bits, "by_residual"])}
of_model = table.groupby("model").layer.nunique()
adjusted = ranking.holm(pd.concat({"smollm2": rho, "gpt2-mini": small}), of_model)
beyond = adjusted < 0.05
for kind in ("keys", "values"):
    told[f"partial-{kind}"] = partial(of_kind := smol[(smol.kind == kind) & (smol.bits == bits)], "lipschitz", "depth")
told |= {"together": by_layer(of_kind, ["lipschitz", "depth"]).corr("spearman").lipschitz.depth}
told |= {f"mini-{kind}": small[kind, bits, "lipschitz"] for kind in ("keys", "values")}
norms = by_layer(smol, ["residual", "residual_token"])
told |= {"stream-low": norms.residual.min(), "stream-high": norms.residual.max()}
told |= {"token-low": norms.residual_token.min(), "token-high": norms.residual_token.max()}
glue("page-72-corpus", corpora.describe(corpus), display=False)
counts = {"layers": smol.layer.nunique(), "mini-layers": table[table.model == "gpt2-mini"].layer.nunique()}
told |= {"chance": ranking.by_chance(counts["layers"]), "mini-chance": ranking.by_chance(counts["mini-layers"])}
glue("page-72-names", ", ".join(sorted(table.corpus.unique())), display=False)
counts["draws"] = math.comb(2 * table.corpus.nunique() - 1, table.corpus.nunique())  # multisets of texts
counts |= {"tried": len(beyond), "smol-tried": len(rho), "held": beyond["smollm2"].sum()}
counts |= {"mini-held": beyond["gpt2-mini"].sum()}
counts |= {"windows": table.window.nunique(), "texts": table.corpus.nunique(), "bits": bits, "length": length}
for key, value in told.items():
    glue(f"page-72-{key}", float(value), display=False)
for key, value in counts.items():
    glue(f"page-72-{key}", int(value), display=False)

# %% tags=["hide-input", "nbval-check-output"]
assert rho.xs("depth", level="predictor").lt(0).all(), "the index has the sign of the constant"
assert max(abs(told[f"partial-{kind}"]) for kind in ("keys", "values")) < told["chance"], "the constant adds to depth"
assert (
    max(
        abs(partial(smol[(smol.kind == kind) & (smol.bits == bits)], "depth", "lipschitz"))
        for kind in ("keys", "values")
    )
    < told["chance"]
    < told["together"]
)
assert abs(told["keys"]) < told["chance"] and not beyond["smollm2", "keys", bits, "lipschitz"]
assert beyond["smollm2", "values", bits, "lipschitz"] and rho["values", bits, "lipschitz"] < 0
assert drift.max() < 0.02, "a stored row does not hold"
assert (table.length == length).all()
assert norms.residual_token.idxmin() == 0 and norms.residual_token.idxmax() == norms.index.max()
high = found.high.xs("lipschitz", level="predictor")
assert (high < 0).all(), "the constant ranks the layers of SmolLM2 after all"
assert (found.low.xs("stream_change", level="predictor") > 0.8).all()
before = [name for name in PREDICTORS if name not in ("stream_change", "carried_random", "carried")]
best = rho.unstack("predictor")[before].groupby("kind").mean().min()
assert best.max() < 0.5, "something known in advance ranks keys and values"
assert rho.xs("carried_random", level="predictor").max() < rho.xs("stream_change", level="predictor").min()
assert told["mini-keys"] > told["mini-chance"] > abs(told["mini-values"])
print("✓ in SmolLM2 the constant ranks neither keys nor values, the change of the residual stream both")

# %% [markdown]
# ## What this shows and does not show
#
# - This is a negative result for one use of one number: the constants of layers need not say where a cache can be
#   rounded.
# - The change of the residual stream is a measurement of the rounding itself, not a prediction. It is cheaper than the
#   loss, because the layers above need not run.
# - We tried one rounding: equal steps for each vector, in one layer at a time, for all tokens including the present one.
#   Rounding errors of several layers may add up or cancel.
# - Two networks are not a sample of networks, and {glue:text}`page-72-texts:d` texts are few. SmolLM2's weights had
#   already been rounded to four bits. Its rows are stored; this page runs without the model.
#
# **One thing to try.** Is the first token the reason? Round all tokens but the first: in `Cache.update` of
# `lab/experiments/kv_rounding.py`, put the first token's keys back before they are returned.
#
# **Next:** {doc}`../book/read_and_run`.
