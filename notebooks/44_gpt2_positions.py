# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Learned positions (Figures 4 to 6)
#
# In a trained GPT-2, the paper reports, the {term}`local Lipschitz constant` can grow faster than $\sqrt n$, because
# learned positions make the norms of the {term}`tokens <token>` depend on their number $n$. In gpt2-mini, a smaller
# model trained for this book, we find the first half of this in one of six layers and over part of the lengths: the
# fitted {term}`exponent` of layer {glue:text}`positions-layer:.0f` is {glue:text}`positions-top:.2f` (95 % interval
# {glue:text}`positions-low:.2f` to {glue:text}`positions-high:.2f`, 2 to 512 tokens; as the best of six layers, at 95 %
# for all at once, {glue:text}`positions-wide-low:.2f` to {glue:text}`positions-wide-high:.2f`), but its slope beyond
# 128 tokens is {glue:text}`positions-last:.2f`. The second half we do not find. Between 2 and 512 tokens the norms that
# {term}`attention` receives change by at most {glue:text}`positions-moved:.1f` % ({numref}`fig-44-answer`), and those
# before {term}`layer normalisation` fall. Removing the positions changes the exponent of that layer by
# {glue:text}`positions-change:.2f`, which is less than the error of the change; with one position for all places it
# falls by {glue:text}`positions-one:.2f` (95 % interval of the change {glue:text}`positions-one-low:.2f` to
# {glue:text}`positions-one-high:.2f`).

# %% tags=["parameters", "hide-input"]
variants = ["trained", "late", "constant", "removed"]
rows_to_check = 3
compared = 64  # length at which late and first places are compared
seed = 0

# %% tags=["hide-input"]
import json

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from myst_nb import glue

from lab import figures, ledger, results
from lab.experiments import mini_baselines, positions
from lab.power_laws import local_slopes, power_law, rate
from lipnb import corpora, local_lipschitz, models

figures.house_style()
table = results.load("positions")
spans = {}
for layer, rows in table[table.positions == "trained"].groupby("layer"):
    found = local_slopes(rows.length, rows.lipschitz, factor=4)
    spans[layer] = {f"{s.low:.0f}-{s.high:.0f}": s.exponent for s in found}
spans = pd.DataFrame(spans).T

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-44-answer", "caption": "gpt2-mini on Alice. Left: {term}`local slopes <local slope>` of the constant in each layer, over factors of four in length; above the dotted line it grows faster than $\\sqrt n$. Right: mean norm of the tokens that attention receives (solid) and of the same tokens before layer normalisation (dashed), relative to two tokens. The constant outgrows $\\sqrt n$ over a range of lengths only, and the norms do not explain it: they hardly change, or fall."}, "image": {"alt": "Left, local slopes of the constant for six layers over four ranges of length. Layer 3 lies above one half from 8 to 128 tokens, and every layer below one half beyond. Right, token norms relative to two tokens. After layer normalisation they stay within a few per cent of one; before it they fall."}}
left, right = figures.panels(2, width=4.7, height=3.9)
as_trained = table[table.positions == "trained"]
means = as_trained.groupby(["layer", "length"])[["mean_radius", "stream_radius"]].mean()
for layer, marker in zip(spans.index, "os^DvP", strict=True):
    look = {"color": plt.get_cmap("viridis")(layer / 6.5), "marker": marker, "lw": 1.4}
    left.plot(range(len(spans.columns)), spans.loc[layer], label=f"layer {layer}", **look)
    norms = means.loc[layer] / means.loc[layer].iloc[0]
    right.plot(norms.mean_radius, **look)
    right.plot(norms.stream_radius, **look | {"ls": "--", "mfc": "none"})
left.axhline(0.5, color="0.4", ls=":", lw=1.2)
left.annotate("1/2", (3.1, 0.505), color="0.3")
left.set_xticks(range(len(spans.columns)), [name.replace("-", " to ") for name in spans.columns])
left.set(xlabel="tokens n", ylabel="local slope of the constant", xlim=(-0.2, 3.4), ylim=(0, 0.92))
left.legend(ncols=3, fontsize=9, loc="upper left")
right.annotate("received by attention", (12, 1.04), color="0.3")
right.annotate("before layer normalisation", (2.2, 0.62), color="0.3")
right.set(xscale="log", xlabel="tokens n", ylabel="token norm, over that at n = 2", ylim=(0.45, 1.15))
right.set_xticks([2, 8, 32, 128, 512], [2, 8, 32, 128, 512])
right.minorticks_off()
plt.show()

# %% [markdown]
# ## Two tokens, with places and without
#
# GPT-2 adds a learned vector to each token, one for each place. In gpt2-mini these vectors can be removed, or replaced
# by their mean (*constant*). For two tokens the {term}`Jacobian` of the first layer is small enough to decompose
# densely:

# %%
text = corpora.available("alice", "python_reference")
model = models.load("gpt2-mini")
token_ids = model.token_ids(corpora.read(text))
pair, by_hand = corpora.windows(token_ids, 2, 1), []
for name in ("trained", "constant", "removed"):
    changed = positions.variant(model, name)
    f, x = changed.attention(0), changed.activations(pair, 0)[0]
    J = torch.func.jacrev(f)(x).reshape(x.numel(), x.numel())
    stream = changed.activations(pair, 0, object="block")[0].norm(dim=1)
    dense, solved = torch.linalg.matrix_norm(J, 2).item(), local_lipschitz(f, x).value.item()
    by_hand.append({"positions": name, "first": stream[0].item(), "second": stream[1].item()})
    by_hand[-1] |= {"dense": dense, "solver": solved}
headings = {"positions": "positions", "first": "norm of token 1", "second": "norm of token 2"}
headings |= {"dense": "constant, dense", "solver": "constant, by the solver"}
figures.table(pd.DataFrame(by_hand), names=headings, digits=4)

# %% [markdown]
# Without positions of their own the tokens are shorter, but the constant is slightly larger: the norms
# are taken before layer normalisation, the constant after it.
#
# ## The claim
#
# {bdg-success}`text of the paper` {ref}`what is this? <badges>`
#
# :::{prf:observation} The claim {cite}`castin2024smooth`, section E.2 and Figures 4 to 6
# :label: position-norms
#
# In the trained GPT-2 on text, the growth rate of the local Lipschitz constant can be faster than $\sqrt n$. The reason
# given: learned positions make the norm of the tokens depend on $n$ ("after going through LayerNorm").
# :::
#
# Of the trained GPT-2 only the attention layers, the layer normalisations and the positions are available to us, and
# these cannot read text. So we use the GPT-2 architecture at a small size: six layers, trained from one seed on NLTK's
# Gutenberg texts without *Alice*.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-44-training", "caption": "The loss of gpt2-mini during training, and what n-grams of the same tokens reach on the same held-out text. It passes the smoothed ones only after most of the training, and ends a little below them."}, "image": {"alt": "Training and held-out loss against millions of tokens read. The held-out loss falls below four horizontal lines, for unigrams, bigrams, smoothed trigrams and smoothed 4-grams, the last two of them late."}}
facts = json.loads((models.mini_folder() / "training.json").read_text())
baselines = results.load("gpt2-mini-baselines").set_index(["part", "corpus", "model", "first"])
loss = baselines.loss["all"].droplevel("first")
lead = baselines.loc["octave"].xs("kneser-ney 4", level="model")
cost = baselines.loc["octave"].xs(f"network, {mini_baselines.SHORT} tokens", level="model")
glue("positions-parameters", facts["parameters"], display=False)
short = mini_baselines.SHORT
glue("positions-short", short, display=False)
glue("positions-least", short // 2 + 1, display=False)
where = {"start": lead.xs(0, level="first"), "early": lead.xs(8, level="first")}
where |= {"cost": cost.xs(256, level="first")}
for name, rows in where.items():
    for corpus, row in rows.iterrows():
        place = f"positions-{name}-{corpus.split()[0]}"  # alice or held
        glue(place, abs(float(row.lead)), display=False)
        glue(f"{place}-error", float(row.lead_error), display=False)
figures.positions.training(results.load("gpt2-mini-training"), baselines.reset_index())
plt.show()

# %% [markdown]
# The model has {glue:text}`positions-parameters:,.0f` parameters. Its baselines are frequencies and, as a higher bar,
# trigrams and 4-grams with modified Kneser-Ney smoothing {cite}`chen1999empirical`, counted on the same training text.
# All read the same {term}`windows <window>` of 512 tokens, and none knows what comes before its window: the token after
# place $p$, from 0, is predicted from at most $p + 1$ tokens. In nats a token:

# %% tags=["hide-input"]
shown = loss.unstack().loc[["held out", "alice"], list(figures.positions.COMPARED)]
headings = {"corpus": "text", **figures.positions.COMPARED}
shown = shown.rename({"held out": "held-out ends of the training texts", "alice": "Alice, not read"})
figures.table(shown.reset_index(), names=headings, digits=3)

# %% [markdown]
# It beats 4-grams on both texts, but by little, and not at every place ({numref}`fig-44-places`):

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-44-places", "caption": "Mean loss by place in disjoint windows; bars are two standard errors over windows to each side. Much of that error is the text, which all three read: their differences are known better. Where few tokens come before, the network is the worse model."}, "image": {"alt": "Two panels, held-out text and Alice, of the loss by place in the window, in octaves. The network lies above the 4-grams up to place 15 and below them from place 16 on. From place 64 on, the network with few tokens lies slightly above the network."}}
figures.positions.places(baselines.reset_index())
plt.show()

# %% [markdown]
# At place 0, where both know one token, the network is behind by {glue:text}`positions-start-held:.2f` nats on the
# held-out text (standard error {glue:text}`positions-start-held-error:.2f`) and by
# {glue:text}`positions-start-alice:.2f` on *Alice* ({glue:text}`positions-start-alice-error:.2f`); at places 8 to 15
# still by {glue:text}`positions-early-held:.2f` ({glue:text}`positions-early-held-error:.2f`) and
# {glue:text}`positions-early-alice:.2f` ({glue:text}`positions-early-alice-error:.2f`). Does it use more than the last
# few tokens? Yes, but little beyond {glue:text}`positions-short:.0f`: from place 256 on, to know only the last
# {glue:text}`positions-least:.0f` to {glue:text}`positions-short:.0f` tokens costs it
# {glue:text}`positions-cost-held:.3f` nats on the held-out text ({glue:text}`positions-cost-held-error:.3f`) and
# {glue:text}`positions-cost-alice:.3f` on *Alice* ({glue:text}`positions-cost-alice-error:.3f`). What follows is about
# one checkpoint.
#
# ## Does the constant outgrow the square root?
#
# Ten windows of *Alice* for each length, with no token for the beginning of text, in four ways:
# with the positions as
# trained; *late*, at the last $n$ places instead of the first; with the mean position at every place (*constant*); and
# with positions *removed*. The network was not trained for the last three. Choose a layer and one of the four:

# %%
rows = table.query("positions == 'trained' and layer == 3")
print("fit over all lengths:", rate(rows))
for slope in local_slopes(rows.length, rows.lipschitz, factor=4):
    print(f"{slope.low:.0f} to {slope.high:.0f} tokens: slope {slope.exponent:.2f}")

# %% tags=["hide-input"]
growth, place = [], ["layer", "length", "window"]
plain = table[table.positions == "trained"].set_index(place).lipschitz
for (name, layer), rows in table.groupby(["positions", "layer"], sort=False):
    fits = [rate(rows, c) for c in ("lipschitz", "mean_radius", "stream_radius")]
    row = [*fits[0][1:4], fits[1].exponent, fits[2].exponent, fits[1].high]
    paired = (rows.set_index(place).lipschitz / plain.loc[[layer]]).reset_index()
    moved = rate(paired)[1:4] if name != "trained" else [0.0, 0.0, 0.0]
    growth.append([name, layer, *row, *moved])
columns = ["constant", "low", "high", "radius", "stream", "radius high"]
columns += ["change", "change low", "change high"]
growth = pd.DataFrame(growth, columns=["positions", "layer", *columns])
by = growth.set_index(["positions", "layer"])
trained = by.loc["trained"]
faster = trained.index[trained.low > 0.5].tolist()
shown = spans.map("{:.2f}".format).rename_axis("layer").reset_index()
shown["exponent"] = trained.constant.map("{:.2f}".format).to_numpy()
shown["interval"] = [f"{row.low:.2f} to {row.high:.2f}" for row in trained.itertuples()]
headings = {"layer": "layer", "exponent": "exponent, all lengths", "interval": "95 % interval"}
headings |= {name: f"slope, n = {name.replace('-', ' to ')}" for name in spans}
figures.table(shown, names=headings, bold=shown.layer.isin(faster))

# %% [markdown]
# The row in bold is the layer whose interval lies above one half. The curves are not
# {term}`power laws <power law>`: their slopes change with the length. In {glue:text}`positions-above:.0f` layers some
# local slope exceeds one half; in all of them the slope falls below one half at the longest windows.
#
# ## Are the norms the reason?
#
# If they were, three things would have to hold. The norms would grow with $n$. The growth of the constant would
# disappear with the positions. And at one length, a larger norm would come with a larger constant. The {term}`bound`
# $R^2 \sqrt n$ gives the first a number: where $R$ grows like $n^r$, it allows the constant an exponent of
# $\frac12 + 2r$. In the next table the last three columns are exponents of a ratio: the constant with changed positions
# over the constant as trained, window by window, with an interval clustered by window and by length.

# %% tags=["hide-input"]
tests = pd.DataFrame({
    "radius": trained.radius,
    "stream": trained.stream,
})  # fmt: skip
said = "{0.change:.2f} ({0[change low]:.2f} to {0[change high]:.2f})".format
two_digits = by.round(2) + 0.0  # no minus zero
for name in variants[1:]:
    tests[f"change, {name}"] = two_digits.loc[name].apply(said, axis=1).str.replace("-", "−")
shown = tests.rename_axis("layer").reset_index()
shown[["radius", "stream"]] = shown[["radius", "stream"]].map("{:.3f}".format).replace("-", "−", regex=True)
headings = {"layer": "layer", "radius": "exponent r, norm received by attention"}
headings |= {"stream": "exponent, norm before normalisation"}
headings |= {f"change, {name}": f"change of the exponent, {name}" for name in variants[1:]}
figures.table(shown, names=headings, bold=shown.layer.isin(faster))

# %% [markdown]
# The exponents of the norms are close to zero or negative. Without positions the middle layers keep their
# exponents within the error of the change; with one position for all places they fall by about 0.1, and the outer
# layers rise. For the third test, the same tokens are placed first and late:

# %% tags=["hide-input"]
mean = table.groupby(["positions", "layer", "length"])[["lipschitz", "mean_radius"]].mean()
late = (mean.loc["late"] / mean.loc["trained"]).xs(compared, level="length")
headings = {"layer": "layer", "lipschitz": "constant, late over first places"}
headings |= {"mean_radius": "norm received by attention, late over first"}
figures.table(late.reset_index(), names=headings, digits=3, bold=(late.lipschitz < 1).to_numpy())

# %% [markdown]
# In the rows in bold, late places give slightly larger norms and *smaller* constants. The same comparison
# at all lengths:

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-44-growth", "caption": "Means over the windows of a length, by layer: the constant (top), the root mean square token norm that attention receives (middle), and the same before layer normalisation (bottom). The constant on one logarithmic scale; the norms on scales of their own that begin at 0. From layer 2 on, late windows have small constants until they reach back to the first few hundred places, while the norm that attention receives is nearly the same."}, "image": {"alt": "Small panels for six layers, three rows, against the number of tokens. Top, the constant rises, less for late windows from layer 2 on. Middle, norms received by attention are flat. Bottom, norms before layer normalisation: with the positions as trained they fall; late ones rise first and then fall from layer 2 on; with one position or none they change little."}}
figures.positions.growth(table)
plt.show()

# %% [markdown]
# The learned positions themselves do differ in length:

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-44-norms", "caption": "Norm of the learned position embedding of each place; logarithmic axes. In both models the first place has the longest vector."}, "image": {"alt": "Two log-log panels, for GPT-2 and for gpt2-mini, of the norm of each place's position vector. The first place has the largest norm in both. In GPT-2 the norm then stays nearly level and drops at the last place; in gpt2-mini it keeps falling, to less than a third, and rises a little at the end."}}
norms = results.load("position-norms")
live = models.position_embeddings(model).double().norm(dim=1).numpy()
mine = norms[norms.model == "gpt2-mini"]
stale = np.abs(mine.norm.to_numpy() / live - 1).max()
figures.positions.norms(norms)
plt.show()

# %% [markdown]
# ## The real GPT-2, on positions alone
#
# The first attention layer of the trained GPT-2 can be given the positions without any token: real weights, but not
# what it receives on text.

# %% tags=["hide-input"]
alone = results.load("positions-alone")
fit, radius = (power_law(alone.length, alone[c]) for c in ("lipschitz", "mean_radius"))
again = []
if text == "alice":
    chosen = table.sample(rows_to_check, random_state=seed)
    for row in chosen.itertuples():
        places = model.module.config.n_positions
        name = places - row.length if row.positions == "late" else row.positions
        changed = positions.variant(model, name)
        tokens = corpora.windows(token_ids, row.length, row.window + 1)[row.window :]
        x = changed.activations(tokens, row.layer)
        lip = local_lipschitz(changed.attention(row.layer), x).value.item()
        again.append(abs(lip / row.lipschitz - 1))
top = trained.loc[trained.low.idxmax()]
ends = means.mean_radius.unstack()
grown = ends[ends.columns.max()] / ends[ends.columns.min()]
said = {"alone": fit.exponent, "alone-low": fit.low, "alone-high": fit.high, "alone-r": radius.exponent}
said |= {"layer": int(top.name), "top": top.constant, "low": top.low, "high": top.high}

# %% tags=["hide-input"]
said["moved"] = 100 * ends.sub(ends.iloc[:, 0], axis=0).div(ends.iloc[:, 0], axis=0).abs().max().max()
said |= {"last": spans.loc[top.name].iloc[-1], "change": by.loc["removed", top.name].change}
said["above"] = (spans > 0.5).any(axis=1).sum()
at_once = 1 - 0.05 / len(trained)  # of each interval, so that all of them hold at 95 %
wide = rate(table[(table.positions == "trained") & (table.layer == top.name)], confidence=at_once)
one_place = by.loc["constant", top.name]
said |= {"wide-low": wide.low, "wide-high": wide.high, "one": -one_place.change}
said |= {"one-low": one_place["change low"], "one-high": one_place["change high"]}
for name, value in said.items():
    glue(f"positions-{name}", float(value), display=False)

# %% [markdown]
# Its constant grows with exponent {glue:text}`positions-alone:.2f` ({glue:text}`positions-alone-low:.2f`
# to {glue:text}`positions-alone-high:.2f`), at a norm whose exponent is {glue:text}`positions-alone-r:.3f`. So here,
# too, the constant grows without the norms.

# %% tags=["hide-input", "nbval-check-output"]
off = [abs(row["solver"] / row["dense"] - 1) for row in by_hand]
assert max(off) < 1e-3 and stale < 1e-3
assert abs(loss["held out", "network"] / facts["loss"] - 1) < 1e-3
ngrams = loss.unstack()[list(figures.positions.BASELINES)]
assert (ngrams.min(axis=1) - loss.xs("network", level="model")).min() > 0.1
by_place = lead.lead.unstack("corpus")
assert (by_place.loc[:8] < 0).all(axis=None) and (by_place.loc[16:] > 0).all(axis=None)
assert (cost.lead - 3 * cost.lead_error).xs(256, level="first").min() > 0
assert tests.radius.max() < 0.01 and tests.radius.abs().max() < 0.02 and faster and tests.stream.max() < 0
moved = {name: by.loc[name].change.abs().max() for name in variants[1:]}
assert moved["removed"] < 0.06 and moved["constant"] < 0.125
middle = by.loc["removed"].loc[[2, 3, 4]]
assert (middle["change low"] < 0).all() and (middle["change high"] > 0).all()
assert wide.low < 0.5 < top.low and one_place["change high"] < 0
assert spans.loc[3].max() > 0.6 and spans.loc[3].iloc[-1] < 0.35 and (spans.iloc[:, -1] < 0.5).all()
assert (late[2:].lipschitz < 0.65).all() and (late[2:].mean_radius > 1).all()
assert table.converged.all() and alone.converged.all() and max(again, default=0) < 1e-3
print("✓ stored norms and constants agree with those measured again; gpt2-mini beats 4-grams from place 16 on")

# %% tags=["hide-input"]
span = ", ".join(f"{value:.2f}" for value in trained.constant)
radii = ", ".join(f"{value:.2f}" for value in trained.radius)
instead = f"GPT-2 reads no text here; gpt2-mini on Alice instead: exponents {span}"
paper = {"seen": "text of the paper"}
ours = paper | {"variant": True, "effort": "structured"}
of_layers = table[table.positions == "trained"].groupby("layer")
lows = pd.Series({number: rate(rows, confidence=at_once).low for number, rows in of_layers})
explained = lows / (0.5 + 2 * trained["radius high"].clip(lower=0))
law = f"layer {top.name}: {top.constant:.3f}, at 95 % by itself [{top.low:.3f}, {top.high:.3f}], r = {top.radius:.3f}"
chosen_best = f"layer {top.name}, the best of {len(trained)}; at 95 % for all at once [{wide.low:.2f}, {wide.high:.2f}]"
chosen_best += ", which contains one half; its slopes are not constant"

# %% tags=["hide-input"]
ledger.record(
    ledger.unchecked("castin.fig-4", "pretrained GPT-2, rates of two layers", instead, **paper),
    ledger.unchecked("castin.fig-5", "pretrained GPT-2, norms", f"{instead}; r {radii}", **paper),
    ledger.unchecked("castin.fig-6", "norms and constant", f"{instead}; r {radii}", **paper),
    ledger.lower("castin.fig-4", f"gpt2-mini: one of {len(trained)} intervals, each at 95 %, lies above one half",
                 top.low / 0.5, **ours, grounds=chosen_best),
    ledger.lower("castin.fig-5", "gpt2-mini: what attention receives gets longer with n",
                 grown, **ours, grounds="mean norms, longest over shortest window",
                 counter_example=f"layer {grown.idxmin()}: a factor {grown.min():.3f}"),
    ledger.upper("castin.fig-6", "gpt2-mini: exponents at most 1/2 + 2 r, where R grows like n^r",
                 explained, **ours, counter_example=law if explained.max() > 1 else None,
                 grounds=f"{len(explained)} layers, intervals to the claim's favour, 95 % for all at once; {law}"),
)  # fmt: skip

# %% [markdown]
# ## What this shows and does not show
#
# - "Faster than $\sqrt n$" is true of one layer of gpt2-mini, by the interval of its fit over 2 to 512 tokens taken by
#   itself; an interval that allows for the choice among six layers contains one half. Its local slopes show that it is
#   not true beyond 128. This is one network from one seed.
# - The explanation by norms does not carry over to gpt2-mini. That attention receives tokens of nearly equal norms is
#   no finding: layer normalisation ensures it, nearly by construction. Before it, the norms *fall* with $n$.
# - Places do matter, but not through the norm.
# - A small network is not GPT-2, and its {term}`verdicts <verdict>` are recorded as variants; Figures 4 to 6
#   themselves stay unchecked.
# - Changed positions lead the network to inputs that it was not trained for. Networks trained without positions, and
#   more seeds, are a cleaner test ({doc}`47_trained_without`). Equal exponents can also hide curves of different shape.
# - What makes the middle layers grow is not answered here.
#
# **One thing to try.** How much do the tokens of a window attend to one and the same token? Take the column sums of
# the attention probabilities (`model.attention(3).probabilities(x)`) at $n = 32$ and at $n = 512$.
#
# **Next:** {doc}`47_trained_without`.
