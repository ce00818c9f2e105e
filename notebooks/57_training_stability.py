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
# Which kinds of {term}`attention` still train when the network is deep and the rate is fixed from the first step? **A
# run counts as trained when its test loss is below that of the bigram**, the frequencies after the character before,
# the lowest loss of a network in which no position sees another one. By this count, after {glue:text}`steps:s` steps at
# the rate {glue:text}`rate`, tied {term}`L2 attention` and contractive attention, which is tied too, train at no depth,
# and dot products at every depth to {glue:text}`dot_to`: the opposite of the claim, at our size. With
# {glue:text}`deepest` layers dot products fail at the same rate in {glue:text}`dot-fails` runs, one passing by
# {glue:text}`dot-margin:.3f` nats. In {glue:text}`dot-above` runs they end above all networks without attention, in the
# others below all, while tied and contractive networks stay beside those. Untied L2 attention, which is no part of the
# claim, trains to {glue:text}`untied_to` layers.
#
# **These counts are of short runs.** In ten times as many steps, {glue:text}`longer-steps`, with
# {glue:text}`longer-depths` layers and three seeds, all runs of dot products, of untied and of tied L2 attention pass
# the bigram, dot products farther than tied ones ({numref}`fig-57-longer`): at this rate these kinds were slow, and
# none was stuck. No contractive network passes it, and none ends more than {glue:text}`longer-contractive-gain:.3f`
# nats below the same network without attention.
#
# At two other rates, {glue:text}`rate-slow` and {glue:text}`rate-fast`, one network of each kind but the untied one was
# trained at {glue:text}`rate-depths` layers. At the smaller rate dot products train with {glue:text}`slow-trained`
# layers alone, by {glue:text}`barely:.3f` nats; at the larger with {glue:text}`fast-trained` alone. There, with
# {glue:text}`collapse:.0f` and more, they end at least {glue:text}`collapse-by:.1f` nats above networks without
# attention.
#
# A factorial design at {glue:text}`factorial-layers:.0f` layers, the rate {glue:text}`rate` and as few steps shows what
# hinders training there: the tying (of keys, and of values through $A$, together), not the distances, the start or the
# place of LayerNorm.

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

# %% tags=["hide-input"]
stored = results.load(names[0])
controls = results.load(names[1])
birth = results.provenance(names[0])
settings, sizes = birth["settings"], birth["settings"]["sizes"]
frequencies, pairs = (stored[stored.part == p].nats.item() for p in ("unigram", "bigram"))
alive = frequencies - margin  # a run that diverged has no loss, and is not below it
runs = stored[stored.part == "fixed"].astype({"layers": int, "seed": int})
ends, layers = (runs[runs.row == row] for row in ("test", "layer"))
layers = layers.assign(layer=layers.layer.astype(int) + 1)
layers["passed"] = layers.output_spread / layers.input_spread
seeds, depths = sorted(set(ends.seed.tolist())), sorted(set(ends.layers.tolist()))
deepest = depths[-1]
corpus = corpora.available("alice", "python_reference")  # of the steps that are trained live
(text, _, _), vocabulary = language_model.texts(corpus)
glue("page-57-corpus", corpora.describe(corpus), display=False)
settings_of = results.provenance("training-factorial")["settings"]

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-57-stability", "caption": "Test loss by depth at three fixed rates: a dot for each run, lines through the means. At the outer rates there is one run for each kind at {glue:text}`rate-depths` layers, and none of untied L2. Grey: no attention. Dotted: frequencies of characters, the loss of a network that has learned nothing else. Dashed: frequencies after the character before, which need no attention. In the middle panel tied and contractive networks lie above the dashed line at every depth, beside those without attention. With {glue:text}`deepest` layers {glue:text}`dot-fails` runs of dot products lie above it too; {glue:text}`dot-above` end above all runs without attention, the others below all."}, "image": {"alt": "three panels, one for each fixed rate, of the test loss against depth. In the middle panel only dot products and untied L2 attention lie below the dashed line of the bigram; at the largest depth all but one run of dot products lie above it, some of them higher than all other kinds. Tied L2 and contractive L2 networks lie between the dashed and the dotted line at every depth, on the grey marks of networks without attention."}}
figures.training.stability(stored, controls)
plt.show()

# %% [markdown]
# ## The claim, and what counts as trained
#
# Neither threshold nor rates were fixed before the first runs. When the first three seeds were stored, on 21 November
# 2026, a run counted as trained if it was *alive*, as defined below. Every one of them was, even without attention. So
# the bigram took its place on 22 November, with the results in view; two seeds more were run on 23 November, for the
# kinds of the claim at three depths. By themselves these two give the same order: {glue:text}`later-dot` runs of dot
# products train, {glue:text}`later-lipschitz` of tied and contractive networks do. The rates were chosen because in the
# first run dot products of 16 layers trained at the middle one.
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
# A run is *alive* {glue:text}`margin` nats below the frequencies of single characters, as {glue:text}`alive-runs` of
# {glue:text}`all-runs` runs are at this rate. In this weak sense all kinds are stable at this rate, even without
# attention; passing the bigram asks for more. The kinds and
# the controls without attention are those of {doc}`56_language_model`: {term}`LayerNorm <layer normalisation>` after
# each addition, none in the contractive kind. Where the paper had it we do not know.
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
# ## One layer at the start, by hand
#
# Take one attention layer at random weights, and {term}`tokens <token>` of length about $\sqrt d$ as LayerNorm leaves
# them. How large is what attention adds, compared with the token it is added to? With entries uniform in
# $\pm 1/\sqrt d$, of variance $1/(3d)$, two matrices turn a token of size 1 into one of size $1/3$, and averaging over
# tokens makes it smaller. Tied values pass through $A = W_Q^\top W_Q / \sqrt k$ first. Where a token attends mostly to
# itself, this multiplies the size by another factor: $\mathbb E\, A = \frac{\sqrt k}{3 d} I$, and all of $A$ has the
# size $\big(\mathbb E\, \norm{A}_F^2 / d\big)^{1/2} \approx \frac1{3\sqrt d}\sqrt{1 + k / d}$.

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
glue("steps", int(settings["training"]["steps"]), display=False)
glue("margin", float(margin), display=False)
glue("rate", float(settings["rate"]), display=False)
glue("A-size", A.norm().item() / size**0.5, display=False)
glue("A-expected", float(expected), display=False)
glue("times", added["dot"] / added["l2-tied"], display=False)
headings = {"attention": "attention", "added": "added / token", "local": "local constant"}
figures.table(pd.DataFrame(start), names=headings, digits=3)

# %% [markdown]
# The measured size of $A$ is {glue:text}`A-size:.3f`, estimated {glue:text}`A-expected:.3f`. At the start dot
# products add {glue:text}`times:.0f` times as much to a token as tied L2 attention.
#
# ## Measured: which networks train, and how deep
#
# The first table has the test loss in nats per character, as the mean over the seeds; frequencies of characters alone
# give {glue:text}`loss-single:.3f`, the bigram {glue:text}`loss-pairs:.3f`.

# %% tags=["hide-input"]
by = ends.groupby(["layers", "attention"]).nats
adam = settings["training"]
print(
    f"text: {corpora.describe(settings['corpus'])}; {len(ends)} runs, {birth['seconds'] / 3600:.1f} hours of one core"
)
print(f"width {sizes['width']}, {sizes['heads']} heads; {adam['steps']} steps, batches of {adam['batch']} windows")


def counted(limit):
    """How many of the seeds of each depth and kind are below a loss."""
    share = by.agg(lambda nats: (nats < limit).sum()).astype(int).astype(str)
    said = (share + " of " + by.size().astype(str)).unstack()
    return said.reindex(columns=shown).fillna("–").reset_index()


mean = by.mean().unstack().reindex(columns=shown)
whole = by.agg(lambda nats: (nats < pairs).all()).unstack().reindex(columns=shown)
glue("dot_to", int(max(d for d in depths if whole.loc[:d, "dot"].all())), display=False)
glue("untied_to", int(max(d for d in depths if whole.loc[:d, "l2-untied"].all())), display=False)
glue("loss-single", float(frequencies), display=False)
glue("loss-pairs", float(pairs), display=False)
glue("alive-runs", int((ends.nats < alive).sum()), display=False)
glue("all-runs", len(ends), display=False)
names_of = {"layers": "layers"} | {kind: kind.replace("none-", "none, ") for kind in shown}
figures.table(mean.reset_index(), names=names_of, digits=4)

# %% [markdown]
# The next table counts the seeds that trained. The kinds of the claim have five seeds at three of the depths:

# %% tags=["hide-input"]
seed_by_seed = ends.pivot_table(index=["layers", "seed"], columns="attention", values="nats")
partner = {"dot": "none", "l2-tied": "none", "contractive": "none-contractive"}
behind = pd.DataFrame({kind: seed_by_seed[kind] - seed_by_seed[none] for kind, none in partner.items()})
deep_dot, deep_none = (seed_by_seed.loc[deepest, kind].dropna() for kind in ("dot", "none"))
fails, above = deep_dot > pairs, deep_dot > deep_none.max()  # pairing by seed would add nothing: these lie close
assert np.ptp(deep_none) < 0.02 < (deep_dot[above] - deep_none.max()).min()
assert (~fails).sum() == 1 and 2 * above.sum() > above.size and (deep_dot[~above] < deep_none.min()).all()
assert behind.drop(columns="dot").max(axis=None) < 0.02
glue("dot-margin", float(pairs - deep_dot.min()), display=False)
for key, group in {"above": deep_dot[above], "below": deep_dot[~above], "none": deep_none}.items():
    glue(f"range-{key}", f"{group.min():.3f} to {group.max():.3f}", display=False)
assert (ends.nats < alive).all()  # so this threshold tells nothing
glue("deepest", int(deepest), display=False)
for key, runs_so in {"dot-fails": fails, "dot-above": above}.items():
    glue(key, f"{runs_so.sum()} of {runs_so.size}", display=False)
    glue(f"{key}-count", int(runs_so.sum()), display=False)  # for the front page
    glue(f"{key}-runs", len(runs_so), display=False)
glue("l2-behind", float(behind.drop(columns="dot").max(axis=None)), display=False)
figures.table(counted(pairs), names=names_of)

# %% [markdown]
# With {glue:text}`deepest` layers the runs without attention end at {glue:text}`range-none` nats (three seeds),
# {glue:text}`dot-above` runs of dot products at {glue:text}`range-above` and the others at {glue:text}`range-below`: at
# this depth the seed decides on which side dot products end.
#
# ## Ten times as many steps
#
# {glue:text}`steps:s` steps are few, and the loss of deep dot products was still falling. We trained all kinds and both
# controls with {glue:text}`longer-depths` layers for {glue:text}`longer-steps` steps at the same rate, with three
# seeds, on a GPU ({glue:text}`longer-device`). Networks, windows and steps are those above; sums are in another order.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-57-longer", "caption": "Ten times as many steps at the rate {glue:text}`rate`. Left and middle: learning curves, a line for each run. Dotted: where the runs of the other figures end. Dashed: the bigram, on the test text. Right: the first evaluation, one every {glue:text}`longer-every` steps, at which a run lies below the bigram, a dot for each seed; hollow at the right edge: in no evaluation. Dot products and untied L2 attention pass it first and end lowest, tied L2 attention passes it later, and contractive networks stay on those without attention."}, "image": {"alt": "three panels. Two with validation loss against steps, for 10 and 18 layers: curves of dot products and untied L2 attention fall below the dashed line within some hundred steps and end lowest, together; those of tied L2 attention follow later and end between; contractive and no attention stay level just above the line. The third has a dot for each run: the step at which it passes the line, hollow and at the edge for contractive and no attention."}}
longer, later = results.load("training-longer"), ends[ends.seed >= 3]
figures.training.longer(longer, stored)
plt.show()

# %% tags=["hide-input"]
born = results.provenance("training-longer")["settings"]
key = ["layers", "attention", "seed"]
curves = (
    longer[longer.row == "evaluation"].pivot(index="step", columns=key, values="validation_loss").sort_index(axis=1)
)
long_ends = longer[longer.row == "test"].set_index(key).nats.sort_index()
longest, far = int(curves.index.max()), sorted(longer.layers.unique())
first = (curves < pairs).idxmax().where((curves < pairs).any())
trained_long = long_ends < pairs
learners, stuck_kinds = ["dot", "l2-untied", "l2-tied"], ["contractive", *WITHOUT]
by_kind = trained_long.groupby("attention")
assert by_kind.all()[learners].all() and not by_kind.any()[stuck_kinds].any() and not long_ends.isna().any()
assert (long_ends.groupby(["layers", "attention"]).size() == 3).all() and far == [10, deepest]
assert longer.rate.eq(settings["rate"]).all() and born["training"]["batch"] == settings["training"]["batch"]
gain = pd.concat({k: long_ends.xs(n, level=1) - long_ends.xs(k, level=1) for k, n in partner.items()})
assert (gain > 0).all() and (gain["l2-tied"] > 10 * gain["contractive"].max()).all()
slow_dot = long_ends.xs("l2-tied", level=1) - long_ends.xs("dot", level=1)
assert slow_dot.min() > 0.2
harder = curves.loc[longest] - long_ends
assert harder.min() > 0
glue("longer-harder-least", float(harder.min()), display=False)
glue("longer-harder-most", float(harder.max()), display=False)
glue("longer-steps", f"{longest:,}", display=False)
glue("longer-depths", " and ".join(map(str, far)), display=False)
glue("longer-every", int(born["training"]["evaluate_every"]), display=False)
glue("longer-device", born["device"], display=False)
for name, table_of in {"longer": "training-longer", "short": "training-stability"}.items():
    glue(f"{name}-torch", results.provenance(table_of)["versions"]["torch"].split("+")[0], display=False)
for name, chosen in {"dot": ["dot"], "lipschitz": lipschitz_or_dot[1:]}.items():
    of = later[later.attention.isin(chosen)]
    glue(f"later-{name}", f"{(of.nats < pairs).sum()} of {len(of)}", display=False)
glue("longer-contractive-gain", float(np.ceil(1000 * gain["contractive"].max()) / 1000), display=False)
glue("longer-contractive-least", float(gain["contractive"].min()), display=False)
glue("longer-tied-gain", float(np.floor(100 * gain["l2-tied"].min()) / 100), display=False)
glue("longer-ahead", float(np.floor(100 * slow_dot.min()) / 100), display=False)
for name, kind in {"dot": "dot", "tied": "l2-tied"}.items():
    glue(f"longer-{name}-first", f"{first.xs(kind, level=1).max():.0f}", display=False)


def ranged(values, form):
    """Least and most of some numbers, as a word; a dash where there is none."""
    low, high = values.min(), values.max()
    return "–" if np.isnan(low) else form.format(low) if low == high else f"{form} to {form}".format(low, high)


rows = [
    {"layers": depth, "attention": names_of[kind], "trained": f"{trained_long[depth, kind].sum()} of 3",
     "end": ranged(long_ends[depth, kind], "{:.3f}"), "first": ranged(first[depth, kind], "{:.0f}")}
    for depth in far for kind in shown
]  # fmt: skip
heads = {"layers": "layers", "attention": "attention", "trained": "seeds below the bigram"}
figures.table(pd.DataFrame(rows), names=heads | {"end": "test loss, nats", "first": "first below it at step"})

# %% [markdown]
# Every run of dot products is below the bigram by step {glue:text}`longer-dot-first`, every one of tied L2 attention by
# step {glue:text}`longer-tied-first`, and so the counts above show how fast these kinds learn, not how deep they can
# be. (The curves are losses of validation windows, the bigram's is that of the test text. At the end of these runs the
# validation loss is {glue:text}`longer-harder-least:.3f` to {glue:text}`longer-harder-most:.3f` nats higher, so that a
# run may pass the bigram earlier than is shown.) Dot products stay ahead, by {glue:text}`longer-ahead:.2f` nats at
# least. Tied L2 attention gains {glue:text}`longer-tied-gain:.2f` nats or more over no attention; contractive attention
# gains {glue:text}`longer-contractive-least:.4f` to {glue:text}`longer-contractive-gain:.4f` over its own control, in
# every seed, and no more.
#
# Are these the runs above? Up to {glue:text}`steps:s` steps they should be, up to rounding. After
# {glue:text}`longer-every` steps no validation loss is off by more than {glue:text}`again-early:.3f` nats, and in
# {glue:text}`again-small-kinds` of {glue:text}`again-all-kinds` pairs of kind and depth none is off by more than
# {glue:text}`again-small:.4f` after {glue:text}`steps:s`. Dot products and untied L2 attention with
# {glue:text}`deepest` layers are off by up to {glue:text}`again-large:.2f` on the way. Rounding alone need not be the
# cause, which is not settled: on a processor, with sums in another order, dot products with {glue:text}`deepest` layers
# end up to {glue:text}`again-processor:.2f` nats from the runs above, and within {glue:text}`again-both:.2f` of the GPU
# (both are ahead of those above in {glue:text}`again-ahead` seeds). The runs on the GPU used another release of PyTorch
# ({glue:text}`longer-torch`, not {glue:text}`short-torch`). So at this depth and step a loss says little by itself. The
# counts are the same: {glue:text}`again-fails` runs on the GPU had a validation loss above the bigram after
# {glue:text}`steps:s` steps, and {glue:text}`again-processor-fails` of those on the processor.

# %% tags=["hide-input"]
same = [*key, "step"]
before = runs[runs.row == "evaluation"].astype({"step": int}).set_index(same).validation_loss.sort_index()
now = longer[longer.row == "evaluation"].set_index(same).validation_loss
beside = pd.concat({"above": before, "GPU": now}, axis=1).dropna()
off = (beside["GPU"] - beside.above).abs().groupby(["layers", "attention", "step"]).max().unstack("step")
short_end = int(settings["training"]["steps"])
wild = pd.MultiIndex.from_product([[deepest], ["dot", "l2-untied"]])
tame = off.drop(index=wild)
rounded = results.load("training-rounding")
assert rounded.layers.eq(deepest).all() and rounded.attention.eq("dot").all()
rounded = rounded[rounded.row == "evaluation"].set_index(same).validation_loss
three = pd.concat({"above": before, "other": rounded, "GPU": now}, axis=1).dropna().xs(short_end, level="step")
assert len(three) == 3 and len(off) == 12 and list(off.columns) == [100, 200, 300]
glue("again-early", float(off[off.columns[0]].max()), display=False)
glue("again-small", float(tame[short_end].max()), display=False)
glue("again-small-kinds", len(tame), display=False)
glue("again-all-kinds", len(off), display=False)
glue("again-large", float(off.loc[wild].max(axis=None)), display=False)
glue("again-processor", float((three.other - three.above).abs().max()), display=False)
glue("again-both", float((three.other - three.GPU).abs().max()), display=False)
glue("again-ahead", f"{(three.drop(columns='above').max(axis=1) < three.above).sum()} of {len(three)}", display=False)
for name, of in {"again-fails": three.GPU, "again-processor-fails": three.other}.items():
    glue(name, f"{(of > pairs).sum()} of {len(of)}", display=False)
assert tame[short_end].max() < 0.005 < 0.1 < off.loc[wild].max(axis=None) and (three > pairs).all(axis=None)
off = off.reset_index()
off["attention"] = off.attention.map(names_of)
off.columns = [str(name) for name in off.columns]
heads = {"layers": "layers", "attention": "attention"} | {str(step): f"step {step}" for step in (100, 200, 300)}
figures.table(off, names=heads, digits=2)

# %% [markdown]
# The table has the largest difference of the validation loss between the runs on the GPU and those above, in nats.
#
# ## What goes wrong at the largest depth
#
# We train the deepest network for a few steps on {glue:text}`page-57-corpus`. After each step, how different are
# the tokens that the last layer receives? We divide their root mean square distance from their mean by their size: 1
# for tokens without a common part, 0 where all are the same. Once all tokens coincide, the network learns no more than
# frequencies until they separate.


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

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-57-spread", "caption": "Spread of the tokens that the last of the layers receives, in the first steps of training, of one network each. All three lose spread at first. With tied L2 attention or a small start the tokens separate again; with dot products they do not."}, "image": {"alt": "relative spread of the tokens against training steps, logarithmic. The curve of dot products falls at every step; those of tied L2 attention and of dot products with a small start fall at first, rise again and end far higher."}}
fig, ax = plt.subplots(figsize=(6.2, 3.5))
looks = (("#0072b2", "-"), ("#009e73", "-"), ("#0072b2", "--"))
for (label, values), (colour, line) in zip(live.items(), looks, strict=True):
    ax.plot(values, color=colour, ls=line, label=label)
ax.set(yscale="log", xlabel="steps", ylabel="relative spread of tokens")
ax.legend()
plt.show()

# %% [markdown]
# ## Is it the distances, the start, or the place of LayerNorm?
#
# Tied L2 attention differs from dot products in three ways: its {term}`logits <logit>` are distances, its keys are its
# queries with values that pass through $A$, and it adds little at the start. A factorial design takes them
# apart. Three kinds of attention start so that they add little or much (output matrices of tied
# L2 times {glue:text}`factor:.0f`, those of the others divided by it, or as they are), with LayerNorm after or before
# each part, with {glue:text}`factorial-seeds:.0f` seeds for each. Beside them: tied L2 attention divided by its
# {term}`bound`, so that its constant is at most 1 while all else stays; and no attention.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-57-factorial", "caption": "Test loss of {glue:text}`factorial-layers:.0f` layers, a mark for each seed. Full: LayerNorm after each part; hollow: before. Dashed: the bigram. The kind decides on which side of it a run lies; start and LayerNorm move the loss less."}, "image": {"alt": "test losses in eight groups. Dot products and untied L2 attention lie below the dashed line of the character before, untied the lower, whatever the start and the place of LayerNorm. Tied, divided and no attention lie above it, close together."}}
factorial = results.load("training-factorial")
assert factorial.start.max() == 1 / factorial.start.min()
glue("factor", float(factorial.start.max()), display=False)
by_rate = controls[(controls.part == "rate") & (controls.row == "test")].set_index(["attention", "rate", "layers"]).nats
slow, fast = (by_rate["dot"][rate] for rate in by_rate["dot"].index.unique("rate").sort_values())
glue("barely", float(pairs - slow.min()), display=False)
fastest = by_rate["dot"].index.get_level_values("rate").max()
falls = fast - by_rate["none"][fastest]  # the same network without attention
collapsed = falls[falls > 0.1]
assert [*collapsed.index] == [*falls.index[-len(collapsed) :]] and (fast > by_rate["contractive"][fastest])[1:].all()
glue("collapse", float(collapsed.index.min()), display=False)
glue("collapse-by", float(collapsed.min()), display=False)
assert (by_rate.groupby(level=["attention", "rate", "layers"]).size() == 1).all()
glue("rate-slow", float(by_rate["dot"].index.get_level_values("rate").min()), display=False)
glue("rate-fast", float(fastest), display=False)
tried_depths = [int(depth) for depth in fast.index]
glue("rate-depths", f"{', '.join(map(str, tried_depths[:-1]))} and {tried_depths[-1]}", display=False)
for name, at in {"slow": slow, "fast": fast}.items():
    glue(f"{name}-trained", int(at[at < pairs].index.item()), display=False)
worse = by_rate.xs(fastest, level="rate").unstack()
worse = worse[deepest] - worse.drop(columns=deepest).max(axis=1)
assert worse[["l2-tied", "none"]].min() > 0.3 and worse[["contractive", "none-contractive"]].max() < 0.01
figures.training.factorial(factorial)
plt.show()

# %% [markdown]
# The table has the change of the loss that each exchange makes, as a mean over all runs that differ in nothing else,
# with Student's interval over seeds for each. Where it depends on the kind, it is given for each kind.

# %% tags=["hide-input"]
effect = effects(factorial[factorial.row == "test"])
deep = controls[(controls.part == "control") & (controls.row == "test") & (controls.attention == "dot")]
deep = deep[deep.start == 1].assign(trained=deep.nats < pairs).groupby("norm")
deep = deep.trained.agg(["sum", "size"]).assign(mean=deep.nats.mean())
for norm in ("after", "before"):
    glue(f"deep-{norm}", "{} of {}".format(*deep.loc[norm, ["sum", "size"]].astype(int)), display=False)
    glue(f"deep-{norm}-loss", float(deep.loc[norm, "mean"]), display=False)
small = effect[effect.index.str.startswith(("a start", "LayerNorm"))].change
words = {"distances": "distances in place of dot products", "tying": "tied: keys are queries, values pass through A"}
words |= {"divided": "tied L2 divided by its bound", "over-none": "tied L2 that adds little, for no attention"}
words |= {"much": "a start that adds much: tied L2"}
for key, label in words.items():
    glue(key, float(effect.change[label]), display=False)
glue("others", float(np.ceil(1000 * small.abs().max()) / 1000), display=False)
cell = factorial[factorial.row == "test"].pivot_table(
    index=["norm", "seed"], columns=["attention", "start"], values="nats"
)
gaps = {"gained-much": cell["none"][1] - cell["l2-tied"][16], "divided-none": cell["l2-divided"][1] - cell["none"][1]}
for key, gap in gaps.items():
    glue(key, float(gap.mean()), display=False)
glue("factorial-seeds", int(effect.seeds.iloc[0]), display=False)
glue("factorial-layers", int(settings_of["layers"]), display=False)
said = effect.assign(up=[f"{row.up:.0f} of {row.seeds:.0f}" for row in effect.itertuples()]).reset_index()
headings = {"effect": "exchanged", "change": "change of the loss, nats", "low": "95 % from"}
figures.table(said, names=headings | {"high": "to", "up": "seeds with a larger loss"}, digits=3)

# %% [markdown]
# Distances in place of dot products change the loss by {glue:text}`distances:+.3f` nats, tying by
# {glue:text}`tying:+.3f`; no start and no place of LayerNorm changes it by more than {glue:text}`others:.3f`. A
# start that adds much helps tied L2 ({glue:text}`much:+.3f`; it then gains {glue:text}`gained-much:.3f` over no
# attention), and hurts the other two.
#
# What does the constant do by itself? Tied L2 attention that adds little changes the loss of no attention by
# {glue:text}`over-none:+.4f` nats, its division by the bound, with all else kept, by {glue:text}`divided:+.4f`:
# divided, it differs from no attention by {glue:text}`divided-none:+.4f`.
#
# At the largest depth and rate, dot products train in {glue:text}`deep-after` runs with LayerNorm after each part and
# in {glue:text}`deep-before` with LayerNorm before (test losses of {glue:text}`deep-after-loss:.2f`
# and {glue:text}`deep-before-loss:.2f` nats in the mean): there its place does decide.
#
# ## Every trained layer, measured
#
# The solver measures each attention layer of the deepest networks after training, at {term}`windows <window>` of the
# test text. The spread of a layer's outputs over that of its inputs tells how much of the tokens' differences it passes
# on.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-57-layers", "caption": "Attention layers of the deepest networks after training. Left: local constants at real text, with the {term}`bounds <bound>` of the tied and the contractive kind, valid for all inputs, dashed; text stays far below them. Dot products and untied L2 attention have no such bound. Right: how much of the spread of tokens attention passes on. Lines: medians; shades: all seeds."}, "image": {"alt": "two panels against the layer of the deepest networks. Left, local Lipschitz constants on a logarithmic axis, with dashed bounds for tied L2 and contractive L2 attention far above. Right, spread of the outputs over spread of the inputs, on a logarithmic axis, for the four kinds."}}
figures.training.trained_layers(stored)
plt.show()

# %% tags=["hide-input"]
passes, rows = {}, []
for kind in mean.dropna(axis=1, how="all"):
    trained = max((d for d in depths if whole.loc[:d, kind].eq(True).all()), default=0)
    row = {"attention": kind, "trained": str(trained or "none"), "best": mean[kind].min(), "at": mean[kind].idxmin()}
    at = layers[(layers.attention == kind) & (layers.layers == deepest)]
    if not at.empty:  # there is attention
        used = (at.highest / at.bound).max()
        passes[kind] = f"{kind} {at.passed.median():.2g}"
        row["constants"] = f"{at.lowest.min():.2g} to {at.highest.max():.2g}"
        row["used"] = None if np.isnan(used) else f"{used:.2g}"
        row["passed"] = f"{at.passed.min():.2g} to {at.passed.max():.2g}"
    rows.append(row)
headings = {"attention": "attention", "trained": "all seeds train to layers", "best": "best mean loss, nats"}
headings |= {"at": "with layers", "constants": "local constants", "used": "largest share of the bound"}
rows = pd.DataFrame(rows).astype(object).where(lambda frame: frame.notna(), None)
figures.table(rows, names=headings | {"passed": "spread passed on"}, digits=4)

# %% [markdown]
# The first steps of one run of each kind are trained again when this page runs, and must give the stored losses.

# %% tags=["hide-input", "nbval-check-output"]
again, same_text = language_model.first_steps("fixed", stored, settings)
difference = (again.now / again.stored - 1).abs().max()
assert added["dot"] > 8 * added["l2-tied"] > 0
assert abs(A.norm() / size**0.5 / expected - 1) < 0.2
other = controls[(controls.part == "rate") & (controls.row == "test") & (controls.attention == "dot")]
assert (other.assign(trained=other.nats < pairs).groupby("rate").trained.sum() == 1).all()
assert not same_text or (len(again) == 2 * len(kinds) and difference < 1e-3)
per = ends.groupby(["layers", "attention"]).seed.nunique().unstack()
assert (per.loc[depths[::4], lipschitz_or_dot] == len(seeds)).all(axis=None) and per.min(axis=None) >= 3
guaranteed = runs[runs.row == "feed-forward"].bound
assert len(guaranteed) and guaranteed.between(0.998, 1).all()
measured = layers[layers.bound.notna()]
assert layers.converged.all() and (measured.highest <= measured.bound).all()
assert bounds.l2_growth(sizes["length"]) == settings["growth"]
assert effect.high.iloc[0] < 0 < effect.low.iloc[1] and effect.change.iloc[1] > 4 * small.abs().max()
assert list(ends[(ends.layers == deepest) & (ends.nats < pairs)].attention) == ["dot"]
assert whole.loc[depths[:-1], kinds[:2]].astype(bool).all(axis=None)
assert (effect.seeds == 5).all() and abs(effect.change.iloc[-2:].sum()) < 1e-3
assert live["dot"].iloc[-1] < 0.1 * min(live["l2-tied"].iloc[-1], live.iloc[-1, 2])
assert live["dot"].is_monotonic_decreasing, "the spread of dot products falls at every step"
assert (live.iloc[1] < live.iloc[0]).all() and (live.iloc[-1, 1:] > 2 * live.iloc[:, 1:].min()).all(), "part again"
# the sentences and captions, checked
assert not (ends[ends.attention.isin(lipschitz_or_dot[1:])].nats < pairs).any(), "tied, contractive: at no depth"
assert behind.drop(columns="dot").abs().max(axis=None) < 0.01, "they stay beside those without attention"
assert (len(seeds), len(depths[::4]), len(deep_none)) == (5, 3, 3), "five seeds at three depths; three without"
both_more = later[later.attention.isin(lipschitz_or_dot)].groupby(["layers", "attention"]).seed.nunique()
assert len(both_more) == 9 and (both_more == 2).all(), "two seeds more, for the kinds of the claim at three depths"
assert (ends[(ends.attention == "dot") & (ends.layers == 16) & (ends.seed == 0)].nats < pairs).all(), "first run, 16"
falling = before.xs((deepest, "dot"), level=("layers", "attention")).groupby("step").mean()
assert falling.is_monotonic_decreasing, "the loss of deep dot products was still falling"
assert longest == 10 * short_end, "ten times as many steps"
assert all(first[depth][learners[:2]].max() < first[depth]["l2-tied"].min() for depth in far), "pass it first"
assert all(long_ends[depth][learners[:2]].max() < long_ends[depth]["l2-tied"].min() for depth in far), "end lowest"
assert "l2-untied" not in by_rate.index.unique("attention"), "one of each kind but the untied one"
assert worse["dot"] > 0.1, "dot products lose the loss of shallow ones"
assert (cell[["dot", "l2-untied"]] < pairs).all(axis=None), "the kind decides on the side of the bigram"
assert (cell[["l2-tied", "l2-divided", "none"]] > pairs).all(axis=None), "the kind decides on the side of the bigram"
assert (cell["l2-untied"] < cell["dot"]).all(axis=None), "untied the lower"
assert effect.change[[f"a start that adds much: {kind}" for kind in ("dot products", "untied L2")]].min() > 0, "hurts"
assert deep["sum"]["after"] == 0 and deep["sum"]["before"] == deep["size"]["before"], "there its place does decide"
assert (measured.highest / measured.bound).max() < 0.05, "text stays far below the bounds"
glue("guaranteed", float(guaranteed.max()), display=False)
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
by_seed += f"{most.idxmin()}); and on the steps: in {longest:,} {trained_long[deepest, 'dot'].sum()} of 3 do"
own = "not known; spread of outputs over that of inputs, median over layers: "
own += ", ".join(passes.values())
ours = {"seen": "ours", "effort": "structured"}

# %% tags=["hide-input"]
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
# ## Which recalled sentences hold at this size

# %% tags=["hide-input"]
past = dot[dot.index.get_level_values("layers") > 10]
rows = [("dot products train up to 10 layers", ten < pairs, True), ("and not with more", past < pairs, False)]
rows += [(f"{name} trains up to {deepest} layers", loss[kind] < pairs, True)
         for kind, name in (("l2-tied", "tied L2"), ("contractive", "contractive L2"))]  # fmt: skip
found = [
    {"said": said, "here": "holds" if (trained == wanted).all() else "does not hold",
     "number": f"{trained.sum()} of {len(trained)} runs train"}
    for said, trained, wanted in rows
]  # fmt: skip
best, apart = mean.min(), (by.max() - by.min()).unstack()
for kind in ("l2-tied", "contractive"):
    gap, seen = best[kind] - best["dot"], apart.loc[mean["dot"].idxmin(), "dot"]
    near = "holds" if abs(gap) <= seen else "does not hold"
    number = f"{gap:+.3f} nats; seeds of the best dot products differ by {seen:.3f}".replace("-", "−")
    found.append({"said": f"the best loss of {kind} is near that of dot", "here": near, "number": number})
asked = ("the losses themselves", "18 layers as the most that fit in memory", "what training to the end does")
found += [{"said": what, "here": "cannot be asked", "number": None} for what in asked]
figures.table(pd.DataFrame(found), names={"said": "recalled", "here": "at this size", "number": "number"})

# %% [markdown]
# ## What this shows and does not show
#
# - The networks are small and saw little text; the paper's were larger and trained to the end. So this does not refute
#   its table. Ten times the steps already change what is counted here.
# - By our threshold, chosen after the first runs, the order of the claim is reversed. It is not if we ask which
#   networks fall behind those without attention after {glue:text}`steps:s` steps: at the largest depth dot products do
#   in {glue:text}`dot-above` runs, and tied and contractive networks at no depth by more than
#   {glue:text}`l2-behind:.3f` nats. At a higher and falling rate, too, tied L2 does pass the bigram
#   ({doc}`56_language_model`).
# - The factorial design is of one depth and one rate; elsewhere its effects may differ.
# - At the rate {glue:text}`rate` these runs are no evidence that a Lipschitz constant helps deep networks to train.
#   What hinders training there is the tying, which the constant needs; and once the constant is divided out, what tied
#   attention gained is gone.
# - At the rate {glue:text}`rate-fast` the contractive network with {glue:text}`deepest` layers keeps the loss of
#   shallow ones, where dot products, tied L2 and no attention lose it. So does the contractive network without
#   attention: this stability, of one run each, is not owed to attention.
# - Each part of the contractive networks has a constant of at most 1 on every input, up to the
#   rounding that the margin covers: {glue:text}`guaranteed:.5f` is the largest product of norms of the trained
#   feed-forward parts, computed from their weights.
#
# **One thing to try.** Give `spread_while_training` the kind `"contractive"`, or dot products with `norm="before"`.
#
# **Next:** {doc}`58_euclidean_growth`
