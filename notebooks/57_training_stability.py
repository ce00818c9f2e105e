# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Training deep networks at a fixed rate
#
# A paper claims that networks with Lipschitz {term}`attention` train deeper than those with dot products. At our size and
# rate they do not. A run *trains* if its test loss falls below that of the bigram, the best that a network without
# attention can reach. In {glue:text}`longer-steps` steps at {glue:text}`deepest` layers, dot products, untied and tied
# {term}`L2 attention` train in every run, tied with the highest loss. Contractive attention, the tied kind divided by its
# {term}`bound`, trains in none and gains at most {glue:text}`longer-contractive-gain:.4f` nats over the same network
# without attention.

# %% tags=["parameters", "hide-input"]
names = ["training-stability", "training-controls"]
margin = 0.1  # nats below the frequencies of characters: what counts as not collapsed
live_steps = 24

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from myst_nb import glue

from lab import figures, ledger, results
from lab.experiments import language_model
from lab.statistics.factorial import effects
from lab.training import ATTENTIONS, WITHOUT, CharacterTransformer, batch_of
from lipnb import bounds, corpora, local_lipschitz

figures.house_style()
kinds, lipschitz_or_dot = list(ATTENTIONS), ["dot", "l2-tied", "contractive"]  # the latter: those of the claim
shown = [*kinds, *WITHOUT]
names_of = {kind: kind.replace("none-", "none, ") for kind in shown}
partner = {"dot": "none", "l2-untied": "none", "l2-tied": "none", "contractive": "none-contractive"}

# %% tags=["hide-input"]
stored, controls = (results.load(name) for name in names)
birth = results.provenance(names[0])
settings, sizes = birth["settings"], birth["settings"]["sizes"]
frequencies, pairs = (stored[stored.part == p].nats.item() for p in ("unigram", "bigram"))
alive = frequencies - margin  # a run that diverged has no loss, and is not below it
runs = stored[stored.part == "fixed"].astype({"layers": int, "seed": int})
ends, layers = (runs[runs.row == row] for row in ("test", "layer"))
layers = layers.assign(layer=layers.layer.astype(int) + 1, passed=layers.output_spread / layers.input_spread)
seeds, depths = sorted(set(ends.seed.tolist())), sorted(set(ends.layers.tolist()))
deepest, short_end = depths[-1], int(settings["training"]["steps"])
longer, later = results.load("training-longer"), ends[ends.seed >= 3]
corpus = corpora.available("alice", "python_reference")  # of the steps that are trained live
(text, _, _), vocabulary = language_model.texts(corpus)
for key, value in {"steps": short_end, "deepest": int(deepest), "seeds-most": len(seeds)}.items():
    glue(key, value, display=False)
for key, value in {"rate": settings["rate"], "margin": margin, "loss-pairs": pairs}.items():
    glue(key, float(value), display=False)
glue("page-57-corpus", corpora.describe(corpus), display=False)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-57-longer", "caption": "{glue:text}`longer-steps` steps at the rate {glue:text}`rate`, a line or a dot for each run. Above: validation loss; dotted, the end of the short runs below. Below: the first evaluation, one every {glue:text}`longer-every` steps, that lies below the bigram. Dot products and untied L2 attention pass it first and end lowest. Tied L2 attention passes it later. Contractive networks never pass it and lie on those without attention."}, "image": {"alt": "Three panels. Two with validation loss against steps, for 10 and 18 layers: curves of dot products and untied L2 attention fall below the dashed line within some hundred steps and end lowest, together; those of tied L2 attention follow later and end between; contractive and no attention stay level just above the line. The third has a dot for each run of the three kinds that pass the line: the step at which it does."}}
figures.training.longer(longer, stored)
plt.show()

# %% [markdown]
# ## The claim, and what counts as trained
#
# {bdg-warning}`reconstructed` {ref}`what is this? <badges>`
#
# :::{prf:observation} The claim {cite}`kim2021lipschitz`
# :label: training-stability-claim
#
# With Adam at a fixed rate on the characters of the Penn Treebank, Transformers of dot-product attention train up to 10
# layers, those of tied L2 and of contractive L2 attention up to 18, the most that fitted. The best test losses are
# nearly equal.
# :::
#
# :::{dropdown} Test losses of the paper, as recalled and not verified; nothing here is compared with them
# <!-- typed: test losses of the paper as recalled and not verified -->
# | layers | dot product | L2, tied | contractive L2 |
# | --- | --- | --- | --- |
# | 2 | 1.061 | 1.168 | 1.246 |
# | 4 | 1.032 | 1.040 | 1.135 |
# | 6 | 1.021 | 1.023 | 1.103 |
# | 8 | 1.017 | 1.024 | 1.079 |
# | 10 | 1.025 | 1.019 | 1.072 |
# | 12 | – | 1.008 | 1.060 |
# | 14 | – | 1.018 | 1.039 |
# | 16 | – | 1.027 | 1.029 |
# | 18 | – | 1.034 | 1.031 |
# :::
#
# The kinds, and the controls without attention, are those of {doc}`56_language_model`. A {term}`LayerNorm <layer
# normalisation>` follows each addition, except in the contractive kind, which has none. Untied L2 attention has no
# constant and is not part of the claim. The *bigram*, the frequencies after the preceding character, has the loss
# {glue:text}`loss-pairs:.3f` nats.
#
# **We chose the criterion with results in view.** At first, on 21 November 2026, a run counted as trained
# {glue:text}`margin` nats below the frequencies of single characters. Every run was, even without attention. So the bigram
# took its place on 22 November. Two more seeds, run on 23 November for the kinds of the claim at three depths, agree with
# the first three in all but one run: one of two runs of dot products with {glue:text}`deepest` layers trains, where none of
# the first three does. In all, {glue:text}`later-dot` of the new runs of dot products train, {glue:text}`later-lipschitz`
# of tied and contractive networks. We chose the rate because dot products of 16 layers trained at it in the first run.
#
# ## Measured: the long runs
#
# All kinds were trained with {glue:text}`longer-depths` layers for {glue:text}`longer-steps` steps at the rate
# {glue:text}`rate`, with three seeds each, on a GPU ({glue:text}`longer-device`). The table has the smallest and the
# largest value over the seeds.

# %% tags=["hide-input"]
born = results.provenance("training-longer")["settings"]
key = ["layers", "attention", "seed"]
evaluations = longer[longer.row == "evaluation"]
curves = evaluations.pivot(index="step", columns=key, values="validation_loss").sort_index(axis=1)
long_ends = longer[longer.row == "test"].set_index(key).nats.sort_index()
longest, far = int(curves.index.max()), sorted(longer.layers.unique())
first = (curves < pairs).idxmax().where((curves < pairs).any())
trained_long = long_ends < pairs
gains = {kind: long_ends.xs(none, level=1) - long_ends.xs(kind, level=1) for kind, none in partner.items()}
gain = pd.concat(gains, names=["attention"]).reorder_levels(key).sort_index()
slow_tied = long_ends.xs("l2-tied", level=1) - long_ends.xs("dot", level=1)
harder = curves.loc[longest] - long_ends

# %% tags=["hide-input"]
for name, value in {
    "contractive-gain": gain[:, "contractive"].max(), "contractive-least": gain[:, "contractive"].min(),
    "tied-gain": gain[:, "l2-tied"].min(), "ahead": slow_tied.min(),
    "harder-least": harder.min(), "harder-most": harder.max(),
}.items():  # fmt: skip
    glue(f"longer-{name}", float(value), display=False)
glue("longer-steps", f"{longest:,}", display=False)
glue("longer-depths", " and ".join(map(str, far)), display=False)
glue("longer-every", int(born["training"]["evaluate_every"]), display=False)
glue("longer-device", born["device"], display=False)


# %% tags=["hide-input"]
def ranged(values, form):
    """Least and most of some numbers, as a word; a dash where there is none."""
    low, high = values.min(), values.max()
    return "–" if np.isnan(low) else form.format(low) if low == high else f"{form} to {form}".format(low, high)


rows = [
    {"layers": depth, "attention": names_of[kind], "trained": f"{trained_long[depth, kind].sum()} of 3",
     "end": ranged(long_ends[depth, kind], "{:.3f}"), "first": ranged(first[depth, kind], "{:.0f}"),
     "gain": ranged(gain[depth, kind], "{:.4f}") if kind in partner else "–"}
    for depth in far for kind in shown
]  # fmt: skip
heads = {"layers": "layers", "attention": "attention", "trained": "seeds that train", "end": "test loss, nats"}
heads |= {"gain": "gain over no attention, nats", "first": "first below the bigram at step"}
for name, chosen in {"dot": ["dot"], "lipschitz": lipschitz_or_dot[1:]}.items():
    of = later[later.attention.isin(chosen)]
    glue(f"later-{name}", f"{(of.nats < pairs).sum()} of {len(of)}", display=False)
figures.table(pd.DataFrame(rows), names=heads)

# %% [markdown]
# Tied L2 attention trains, and gains {glue:text}`longer-tied-gain:.2f` nats or more over no attention. Dot products are
# {glue:text}`longer-ahead:.3f` nats or more ahead of it, so the best losses are not nearly equal here. Contractive
# attention gains at least {glue:text}`longer-contractive-least:.4f` nats over its control in every seed, which is next to
# nothing.
#
# :::{dropdown} Two reservations on these curves
# The curves are losses of validation windows, the bigram's is that of the test text. At the end the validation loss is
# {glue:text}`longer-harder-least:.3f` to {glue:text}`longer-harder-most:.3f` nats higher, so that a run may pass the
# bigram earlier than is shown.
#
# Up to {glue:text}`steps:s` steps these should be the runs of the next section, up to rounding. In
# {glue:text}`again-small-kinds` of {glue:text}`again-all-kinds` pairs of kind and depth the validation losses agree
# within {glue:text}`again-small:.4f` nats. Dot products and untied L2 attention with {glue:text}`deepest` layers are off
# by up to {glue:text}`again-large:.2f`. On a processor, with sums in another order, such dot products end up to
# {glue:text}`again-processor:.2f` nats from the stored runs. The GPU also had another release of PyTorch; which of both
# is the cause is not settled. So at this depth and step a single loss says little. No count changes: all three runs
# of such dot products fail after {glue:text}`steps:s` steps, each way.
# :::

# %% tags=["hide-input"]
same = [*key, "step"]
before = runs[runs.row == "evaluation"].astype({"step": int}).set_index(same).validation_loss.sort_index()
now = evaluations.set_index(same).validation_loss
both_ways = pd.concat({"above": before, "GPU": now}, axis=1).dropna()
off = (both_ways["GPU"] - both_ways.above).abs().groupby(["layers", "attention", "step"]).max().unstack("step")
wild = pd.MultiIndex.from_product([[deepest], ["dot", "l2-untied"]])
tame = off.drop(index=wild)
rounded = results.load("training-rounding")
assert rounded.layers.eq(deepest).all() and rounded.attention.eq("dot").all()
rounded = rounded[rounded.row == "evaluation"].set_index(same).validation_loss
three = pd.concat({"above": before, "other": rounded, "GPU": now}, axis=1).dropna().xs(short_end, level="step")
glue("again-small", float(tame[short_end].max()), display=False)
glue("again-small-kinds", len(tame), display=False)
glue("again-all-kinds", len(off), display=False)
glue("again-large", float(off.loc[wild].max(axis=None)), display=False)
glue("again-processor", float((three.other - three.above).abs().max()), display=False)
assert len(three) == 3 and len(off) == 12 and list(off.columns) == [100, 200, 300]
assert tame[short_end].max() < 0.005 < 0.1 < off.loc[wild].max(axis=None) and (three > pairs).all(axis=None)

# %% [markdown]
# ## Short runs, each kind at its best rate
#
# One rate for all is not a fair race, since the kinds start differently. Other rates are stored for {glue:text}`steps:s`
# steps only, at three depths, with one seed, and not for untied L2 attention ({numref}`fig-57-stability`). The table has
# the test loss at the rate with the lowest validation loss; the kind that trains at all three depths is bold.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-57-stability", "caption": "Test loss after {glue:text}`steps:s` steps by depth at three fixed rates: a dot for each run, lines through the means; dotted and dashed, the losses of frequencies of characters and of the bigram. Above: all runs of dot products lie below the bigram to {glue:text}`dot_to` layers, and one of {glue:text}`seeds-most` at {glue:text}`deepest`. Below: the smaller rate is better for them there, the larger one better for two layers. So each depth asks for another rate."}, "image": {"alt": "Three panels, one for each fixed rate, of the test loss against depth. In the upper panel only dot products and untied L2 attention lie below the dashed line of the bigram; at the largest depth all but one run of dot products lie above it, some of them higher than all other kinds. Tied L2 and contractive L2 networks lie between the dashed and the dotted line at every depth, on the grey marks of networks without attention."}}
figures.training.stability(stored, controls)
plt.show()

# %% tags=["hide-input"]
other = controls[controls.part == "rate"].astype({"layers": int, "seed": int})
race = pd.concat([runs[runs.layers.isin(other.layers) & runs.attention.isin(other.attention)], other])
race = race[race.seed == 0]  # the only seed at all three rates
place = ["attention", "layers", "rate"]
last = race[race.row == "evaluation"].sort_values("step").groupby(place).validation_loss.last()
at_best = pd.DataFrame(last.groupby(["attention", "layers"]).idxmin().tolist(), columns=place)
at_best["nats"] = race[race.row == "test"].set_index(place).nats.loc[pd.MultiIndex.from_frame(at_best)].to_numpy()

# %% tags=["hide-input"]
best_loss = at_best.pivot(index="attention", columns="layers", values="nats")
said = at_best.assign(said=[f"{row.nats:.3f} at {row.rate:g}" for row in at_best.itertuples()])
said = said.pivot(index="attention", columns="layers", values="said").loc[[k for k in shown if k in best_loss.index]]
best_loss = best_loss.loc[said.index]
heads = {"attention": "attention"} | {depth: f"{depth} layers" for depth in said.columns}
glue("best-margin", float(pairs - best_loss.loc["dot", deepest]), display=False)
said = said.reset_index()
said["attention"] = said.attention.map(names_of)
figures.table(said, names=heads, bold=(best_loss < pairs).all(axis=1).to_numpy())

# %% [markdown]
# At their best rates dot products train at all three depths, though at {glue:text}`deepest` layers only by
# {glue:text}`best-margin:.3f` nats, in one run. Tied and contractive networks train at none.
#
# **At the largest rate, {glue:text}`rate-fast`, the order at 10 layers is the paper's.** Dot products lose there
# what a network without attention keeps, and tied L2 attention keeps it. At {glue:text}`deepest` layers all three lose it,
# tied attention a little more than no attention. Contractive networks keep it at every depth.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show how many seeds train at the rate 0.001, by depth", "code_prompt_hide": "Hide how many seeds train"}
by = ends.groupby(["layers", "attention"]).nats
mean = by.mean().unstack().reindex(columns=shown)
whole = by.agg(lambda nats: (nats < pairs).all()).unstack().reindex(columns=shown)
glue("dot_to", int(max(d for d in depths if whole.loc[:d, "dot"].all())), display=False)
seed_by_seed = ends.pivot_table(index=["layers", "seed"], columns="attention", values="nats")
behind = pd.DataFrame({kind: seed_by_seed[kind] - seed_by_seed[partner[kind]] for kind in lipschitz_or_dot})
deep_dot, deep_none = (seed_by_seed.loc[deepest, kind].dropna() for kind in ("dot", "none"))
fails, above = deep_dot > pairs, deep_dot > deep_none.max()  # pairing by seed would add nothing: these lie close
glue("dot-margin", float(pairs - deep_dot.min()), display=False)
for name, runs_so in {"dot-fails": fails, "dot-above": above}.items():
    glue(f"{name}-count", int(runs_so.sum()), display=False)
    glue(f"{name}-runs", len(runs_so), display=False)
glue("l2-behind", float(behind.drop(columns="dot").max(axis=None)), display=False)
below = by.agg(lambda nats: (nats < pairs).sum()).astype(int).astype(str) + " of " + by.size().astype(str)
below = below.unstack().reindex(columns=shown).fillna("–").reset_index()
figures.table(below, names={"layers": "layers"} | names_of)

# %% [markdown]
# At {glue:text}`deepest` layers and the rate {glue:text}`rate`, {glue:text}`dot-fails-count:s` of
# {glue:text}`dot-fails-runs:s` runs of dot products fail, and one passes by {glue:text}`dot-margin:.3f` nats.
# {glue:text}`dot-above-count:s` of {glue:text}`dot-above-runs:s` end worse than without any attention. Tied and
# contractive networks never fall behind theirs by more than {glue:text}`l2-behind:.3f` nats. So another criterion, not to
# be worse than no attention, would speak for the claim in these short runs.
#
# ## One layer at the start, by hand
#
# How large is what an attention layer adds at random weights, compared with the token it is added to? Let {term}`tokens
# <token>` have length $\sqrt d$, as LayerNorm leaves them. With entries uniform in $\pm 1/\sqrt d$, of variance
# $1/(3d)$, two matrices turn a token of size 1 into one of size $1/3$. Tied values pass through
# $A = W_Q^\top W_Q / \sqrt k$ first. Where a token attends mostly to itself, this multiplies the size by
# $\big(\mathbb E\, \norm{A}_F^2 / d\big)^{1/2} \approx \frac1{3\sqrt d}\sqrt{1 + k / d}$.

# %%
size, k = sizes["width"], sizes["width"] // sizes["heads"]
windows = corpora.windows(text, sizes["length"], 4)
added, start = {}, []
for kind in kinds:
    network = CharacterTransformer(vocabulary, attention=kind, layers=4, **sizes)
    x = network.activations(windows)[-1].double()
    added[kind] = (network.attention(3)(x).norm() / x.norm()).item()
    local = local_lipschitz(network.attention(3), x).value.median().item()
    start.append({"attention": kind, "added": added[kind], "local": local})
W = network.blocks[0].attention.query[:k].double()
A = W.T @ W / k**0.5
expected = (1 + k / size) ** 0.5 / (3 * size**0.5)

# %% tags=["hide-input"]
glue("A-size", A.norm().item() / size**0.5, display=False)
glue("A-expected", float(expected), display=False)
glue("times", added["dot"] / added["l2-tied"], display=False)
headings = {"attention": "attention", "added": "added / token", "local": "local constant"}
figures.table(pd.DataFrame(start), names=headings, digits=3)

# %% [markdown]
# The estimate for $A$ is {glue:text}`A-expected:.3f`, measured {glue:text}`A-size:.3f`. At the start dot products add
# {glue:text}`times:.0f` times as much to a token as tied L2 attention.
#
# What delays the deepest networks? We train one for a few steps on {glue:text}`page-57-corpus`. After each step we measure
# how different the tokens are that the last layer receives: their root mean square distance from their mean over their
# size. Once all tokens coincide, the network learns no more than frequencies until they separate.


# %%
def spread_while_training(kind, **changes):
    """Relative spread of the tokens that the last layer receives, after each step."""
    network = CharacterTransformer(vocabulary, attention=kind, layers=deepest, **changes)
    adam = torch.optim.Adam(network.parameters(), lr=settings["rate"], betas=(0.9, 0.98))
    spreads = []
    for step in range(live_steps + 1):
        x = network.activations(windows)[-1]
        spreads.append(((x - x.mean(1, keepdim=True)).norm() / x.norm()).item())
        inputs, targets = batch_of(text, 8, windows.shape[1], 0, step)
        logits = network(inputs).flatten(0, 1)
        adam.zero_grad()
        torch.nn.functional.cross_entropy(logits, targets.flatten()).backward()
        adam.step()
    return spreads


shapes = {"dot": {}, "l2-tied": {}, "dot, small start": {"start": 1 / 16}}
live = pd.DataFrame({name: spread_while_training(name.split(",")[0], **s) for name, s in shapes.items()})

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-57-spread", "caption": "Spread of the tokens that the last layer receives, in the first steps of training; one network each. All three lose spread at first. With tied L2 attention or a small start the tokens separate again; with dot products they do not."}, "image": {"alt": "Relative spread of the tokens against training steps, logarithmic. The curve of dot products falls at every step; those of tied L2 attention and of dot products with a small start fall at first, rise again and end far higher."}}
fig, ax = plt.subplots(figsize=(6.2, 3.5))
for (label, values), look in zip(live.items(), ("C0-", "C2-", "C0--"), strict=True):
    ax.plot(values, look, label=label)
ax.set(yscale="log", xlabel="steps", ylabel="relative spread of tokens")
ax.set_yticks([0.001, 0.01, 0.1, 1], ["0.001", "0.01", "0.1", "1"])
ax.minorticks_off()
figures.named_at_the_end(ax, apart=11)
plt.show()

# %% [markdown]
# ## What hinders tied attention
#
# Tied L2 attention differs from dot products in three ways. Its {term}`logits <logit>` are distances; its keys are its
# queries, with values that pass through $A$; and it adds little at the start. A factorial design takes them apart at
# {glue:text}`factorial-layers:.0f` layers, after {glue:text}`steps:s` steps at the rate {glue:text}`rate`: three kinds
# of attention, two starts, LayerNorm after or before each part, {glue:text}`factorial-seeds:.0f` seeds. The table has
# Student's intervals over seeds, widened until all {glue:text}`factorial-count:.0f` hold together at 95 % (Bonferroni).
# Those that exclude 0 are bold.

# %% tags=["hide-input"]
factorial = results.load("training-factorial")
settings_of = results.provenance("training-factorial")["settings"]
effect = effects(factorial[factorial.row == "test"])
clear = (effect.low > 0) | (effect.high < 0)
small = effect[effect.index.str.startswith(("a start", "LayerNorm"))].change
words = {"distances": "distances in place of dot products", "tying": "tied: keys are queries, values pass through A"}
words |= {"divided": "tied L2 divided by its bound", "over-none": "tied L2 that adds little, for no attention"}
for name, label in words.items():
    glue(name, float(effect.change[label]), display=False)
for name, value in {"seeds": effect.seeds.iloc[0], "layers": settings_of["layers"], "count": len(effect)}.items():
    glue(f"factorial-{name}", int(value), display=False)
exchanged = effect.assign(up=[f"{row.up:.0f} of {row.seeds:.0f}" for row in effect.itertuples()]).reset_index()
headings = {"effect": "exchanged", "change": "change of the loss, nats", "low": "95 % together, from", "high": "to"}
figures.table(exchanged, names=headings | {"up": "seeds with a larger loss"}, digits=3, bold=clear.to_numpy())

# %% [markdown]
# **The tying hinders**: it costs {glue:text}`tying:.3f` nats. Distances by themselves help a little
# ({glue:text}`distances:+.3f`). No interval of a start excludes 0, and the place of LayerNorm matters little. Tied
# attention gains a little over no attention ({glue:text}`over-none:+.4f` in the loss) and loses it again when it is
# divided by its bound ({glue:text}`divided:+.4f`). This is one depth, one rate and short runs.

# %% tags=["hide-input"]
by_rate = other[other.row == "test"].set_index(["attention", "rate", "layers"]).nats
slow, fast = (by_rate["dot"][rate] for rate in by_rate["dot"].index.unique("rate").sort_values())
slow_rate, fastest = by_rate["dot"].index.unique("rate").sort_values()
falls = fast - by_rate["none"][fastest]  # the same network without attention
worse = by_rate.xs(fastest, level="rate").unstack()
worse = worse[deepest] - worse.drop(columns=deepest).max(axis=1)
deep = controls[(controls.part == "control") & (controls.row == "test") & (controls.attention == "dot")]
deep = deep[deep.start == 1].assign(trained=deep.nats < pairs).groupby("norm").trained.agg(["sum", "size"])
at = layers[layers.layers == deepest].groupby("attention")
passes = {kind: f"{kind} {at.get_group(kind).passed.median():.2g}" for kind in kinds}
measured = layers[layers.bound.notna()]
guaranteed = runs[runs.row == "feed-forward"].bound
again, same_text = language_model.first_steps("fixed", stored, settings)
difference = (again.now / again.stored - 1).abs().max()
glue("rate-fast", float(fastest), display=False)
glue("text-share", float(100 * (measured.highest / measured.bound).max()), display=False)
glue("guaranteed", float(guaranteed.max()), display=False)
for norm in ("after", "before"):
    glue(f"deep-{norm}", "{} of {}".format(*deep.loc[norm]), display=False)

# %% tags=["hide-input"]
# the long runs, and the best rates
learners, stuck_kinds = ["dot", "l2-untied", "l2-tied"], ["contractive", *WITHOUT]
by_kind = trained_long.groupby("attention")
assert by_kind.all()[learners].all() and not by_kind.any()[stuck_kinds].any() and not long_ends.isna().any()
assert (long_ends.groupby(["layers", "attention"]).size() == 3).all() and far == [10, deepest]
assert longer.rate.eq(settings["rate"]).all() and born["training"]["batch"] == settings["training"]["batch"]
assert (gain > 0).all() and gain[:, "l2-tied"].min() > 10 * gain[:, "contractive"].max()
assert slow_tied.min() > 0.2 and harder.min() > 0
assert longest == 10 * short_end, "ten times as many steps"
assert all(first[depth][learners[:2]].max() < first[depth]["l2-tied"].min() for depth in far), "pass it first"
assert all(long_ends[depth][learners[:2]].max() < long_ends[depth]["l2-tied"].min() for depth in far), "end lowest"
assert (best_loss.loc["dot"] < pairs).all() and (best_loss.drop(index="dot") > pairs).all(axis=None), "at best rates"
assert (last.groupby(["attention", "layers"]).size() == 3).all() and best_loss.shape == (5, 3)
assert at_best[at_best.attention == "dot"].sort_values("layers").rate.is_monotonic_decreasing, "another rate"
assert "l2-untied" not in by_rate.index.unique("attention"), "one of each kind but the untied one"
assert (by_rate.groupby(level=["attention", "rate", "layers"]).size() == 1).all()

# %% tags=["hide-input"]
# the short runs
assert np.ptp(deep_none) < 0.02 < (deep_dot[above] - deep_none.max()).min()
assert (~fails).sum() == 1 and 2 * above.sum() > above.size and (deep_dot[~above] < deep_none.min()).all()
assert behind.drop(columns="dot").abs().max(axis=None) < 0.01, "they stay beside those without attention"
assert (ends.nats < alive).all()  # so this threshold tells nothing
per = ends.groupby(["layers", "attention"]).seed.nunique().unstack()
assert (per.loc[depths[::4], lipschitz_or_dot] == len(seeds)).all(axis=None) and per.min(axis=None) >= 3
assert (len(seeds), len(depths[::4]), len(deep_none)) == (5, 3, 3), "five seeds at three depths; three without"
both_more = later[later.attention.isin(lipschitz_or_dot)].groupby(["layers", "attention"]).seed.nunique()
assert len(both_more) == 9 and (both_more == 2).all(), "two seeds more, for the kinds of the claim at three depths"
assert list(ends[(ends.layers == deepest) & (ends.nats < pairs)].attention) == ["dot"]
assert not (ends[ends.attention.isin(lipschitz_or_dot[1:])].nats < pairs).any(), "tied, contractive: at no depth"
assert whole.loc[depths[:-1], kinds[:2]].astype(bool).all(axis=None)
assert (ends[(ends.attention == "dot") & (ends.layers == 16) & (ends.seed == 0)].nats < pairs).all(), "first run, 16"
falling = before.xs((deepest, "dot"), level=("layers", "attention")).groupby("step").mean()
assert falling.is_monotonic_decreasing, "the loss of deep dot products was still falling"
assert (slow < pairs).sum() == (fast < pairs).sum() == 1 and (falls[1:] > 0.1).all()
assert (fast > by_rate["contractive"][fastest])[1:].all() and worse["dot"] > 0.1
tied, alone = by_rate["l2-tied"][fastest], by_rate["none"][fastest]
assert tied[10] < alone[10] + 0.01 < fast[10] - 0.4 and alone[deepest] > alone[10] + 0.3, "the order of the paper"
assert np.ptp(by_rate["contractive"][fastest]) < 0.01, "contractive networks keep their loss"
assert worse[["l2-tied", "none"]].min() > 0.3 and worse[["contractive", "none-contractive"]].max() < 0.01

# %% tags=["hide-input", "nbval-check-output"]
assert added["dot"] > 8 * added["l2-tied"] > 0
assert abs(A.norm() / size**0.5 / expected - 1) < 0.2
assert not same_text or (len(again) == 2 * len(kinds) and difference < 1e-3)
assert live["dot"].iloc[-1] < 0.1 * min(live["l2-tied"].iloc[-1], live.iloc[-1, 2])
assert live["dot"].is_monotonic_decreasing, "the spread of dot products falls at every step"
assert (live.iloc[1] < live.iloc[0]).all() and (live.iloc[-1, 1:] > 2 * live.iloc[:, 1:].min()).all(), "part again"
cell = factorial[factorial.row == "test"]
cell = cell.pivot_table(index=["norm", "seed"], columns=["attention", "start"], values="nats")
assert (cell[["dot", "l2-untied"]] < pairs).all(axis=None), "the kind decides on the side of the bigram"
assert (cell[["l2-tied", "l2-divided", "none"]] > pairs).all(axis=None), "the kind decides on the side of the bigram"
assert (cell["l2-untied"] < cell["dot"]).all(axis=None), "untied the lower"
assert effect.high.iloc[0] < 0 < effect.low.iloc[1] and effect.change.iloc[1] > 4 * small.abs().max()
assert not clear[clear.index.str.startswith("a start")].any() and clear.iloc[-2:].all()
assert factorial.start.max() == 1 / factorial.start.min()
assert (effect.seeds == 5).all() and abs(effect.change.iloc[-2:].sum()) < 1e-3
assert deep["sum"]["after"] == 0 and deep["sum"]["before"] == deep["size"]["before"], "there its place does decide"
assert len(guaranteed) and guaranteed.between(0.998, 1).all()
assert layers.converged.all() and (measured.highest <= measured.bound).all()
assert (measured.highest / measured.bound).max() < 0.05, "text stays far below the bounds"
assert bounds.l2_growth(sizes["length"]) == settings["growth"]
print("✓ the first steps come out again; no layer exceeds its bound; deep dot-product tokens coincide")

# %% tags=["hide-input"]
size = f"width {size}, {settings['training']['steps']} steps, rate {settings['rate']:g}"
loss = ends.set_index(["attention", "layers", "seed"]).nats.fillna(frequencies)
lipschitz, dot = loss[["l2-tied", "contractive"]], loss["dot"]
without = {"l2-tied": "none", "contractive": "none-contractive"}
better = pd.concat({k: loss[k] / loss[n] for k, n in without.items()}).dropna()
ten, most = dot[dot.index.get_level_values("layers") <= 10], dot.xs(deepest, level="layers")
gained = "{}, {} layers, seed {}: ".format(*better.idxmax()) + f"{better.max():.4f} of the loss without attention"
worst = "{}, {} layers, seed {}: ".format(*lipschitz.idxmax()) + f"{lipschitz.max():.3f} nats"
stuck = "{} layers, seed {}: ".format(*ten.idxmax()) + f"{ten.max():.3f} nats"
which = f"test loss over {pairs:.3f}, the bigram's; {size}"
beside = f"test loss over that without attention; {size}"
table, figure = "kim.tab-stability", "kim.fig-spread"
at = f"at our size, in {settings['training']['steps']} steps at the rate {settings['rate']:g},"
train = f"{at} tied and contractive train at every depth to {deepest}"
attend = f"{at} tied and contractive beat the same network without attention"
shallow = f"{at} dot products train at every depth to 10"
deep = f"{at} dot products do not train with {deepest} layers"
why = f"sizes are not known, losses not certain; counts at {size} instead"
in_time = f"on the steps: in {settings['training']['steps']} no tied run and {(most < pairs).sum()} of {len(most)} of "
in_time += f"dot products; in {longest:,} all 3 of dot products, of untied and of tied L2, and no contractive one"
by_seed = f"on the seed: {(most < pairs).sum()} of {len(most)} trains, by {pairs - most.min():.3f} nats (seed "
by_seed += f"{most.idxmin()}); and on the steps: in {longest:,} {trained_long[deepest, 'dot'].sum()} of 3 do; "
by_seed += f"and on the rate: at {slow_rate:g} one of one trains, by {pairs - slow[deepest]:.3f} nats"

# %% tags=["hide-input"]
own = "not known; spread of outputs over that of inputs, median over layers: "
own += ", ".join(passes.values())
ours = {"seen": "ours", "effort": "structured"}
ledger.record(
    ledger.unchecked(table, "its losses, at its size", why, seen="reconstructed"),
    ledger.upper(table, train, lipschitz / pairs, grounds=which, counter_example=worst, **ours),
    ledger.upper(table, attend, better, grounds=beside, counter_example=gained, **ours),
    ledger.upper(table, shallow, ten / pairs, grounds=which, counter_example=stuck, **ours),
    ledger.depends(table, deep, by_seed, seen="ours", cases=len(most)),
    ledger.depends(table, f"at our size, which kinds train with {deepest} layers", in_time, seen="ours"),
    ledger.unchecked(figure, "its values", own, seen="reconstructed"),
)

# %% [markdown]
# ## What this shows and does not show
#
# - The networks are small and saw little text; the paper's were larger and trained to the end. So this does not refute
#   its table. Ten times the steps already changed what is counted here.
# - The long runs have one rate, chosen for dot products, and two depths. A rate that suits tied L2 attention better may
#   bring it nearer.
# - At the rate {glue:text}`rate-fast` the contractive network with {glue:text}`deepest` layers stays stable, and so does
#   its control. In one run each, this stability is not due to attention.
# - At that rate and depth the place of LayerNorm decides: dot products train in {glue:text}`deep-after` runs with it
#   after each part, in {glue:text}`deep-before` with it before. We do not know where the paper had it.
# - Each part of the contractive networks has a constant of at most 1 on every input; the largest product of norms of
#   the trained feed-forward parts is {glue:text}`guaranteed:.5f`. At the test text no tied or contractive layer uses
#   more than {glue:text}`text-share:.1f` % of its bound.
#
# **One thing to try.** Give `spread_while_training` the kind `"contractive"`, or dot products with `norm="before"`.
#
# **Next:** {doc}`58_euclidean_growth`
