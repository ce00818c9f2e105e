# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Which attention trains when the network is deep and the rate is fixed?
#
# Deep Transformers are usually started with a small rate that grows. Here the rate is what it is from the first step
# on. Some kinds of attention then train at any depth, others end in a network that knows nothing but how often each
# letter occurs. This page counts which, looks for the reason, and measures every trained layer.
#
# :::{prf:observation} The claim, as recovered {cite}`kim2021lipschitz`
# :label: training-stability-claim
#
# With Adam at a fixed rate on the characters of the Penn Treebank, Transformers of dot-product attention train up to 10
# layers, those of tied L2 and of contractive L2 attention up to 18, the most that fitted. The best test losses are
# nearly equal.
# :::
#
# Test losses of the paper, *as recalled and not verified*; nothing here is compared with them:
#
# | layers | 2 | 4 | 6 | 8 | 10 | 12 | 14 | 16 | 18 |
# | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
# | dot product | 1.061 | 1.032 | 1.021 | 1.017 | 1.025 | – | – | – | – |
# | L2, tied | 1.168 | 1.040 | 1.023 | 1.024 | 1.019 | 1.008 | 1.018 | 1.027 | 1.034 |
# | contractive L2 | 1.246 | 1.135 | 1.103 | 1.079 | 1.072 | 1.060 | 1.039 | 1.029 | 1.031 |
#
# The kinds are those of {doc}`65_language_model`: LayerNorm after each addition, none in the contractive kind. Where
# the paper had it was not recovered.

# %% tags=["parameters"]
names = ["training-stability", "training-controls"]
margin = 0.1  # nats below the frequencies of characters: what counts as trained
live_steps = 24

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from lipnb import bounds, corpora, figures, ledger, local_lipschitz, results
from lipnb.experiments import language_model
from lipnb.training import ATTENTIONS, CharacterTransformer, batch_of

figures.house_style()
kinds = list(ATTENTIONS)
# %% tags=["hide-input"]
stored = results.load(names[0])
there = names[1] in results.names()
controls = results.load(names[1]) if there else stored.iloc[:0].assign(start=1.0)
birth = results.provenance(names[0])
settings, sizes = birth["settings"], birth["settings"]["sizes"]
frequencies, pairs = (
    stored[stored.part == p].nats.item() for p in ("unigram", "bigram")
)
limit = frequencies - margin  # a run that diverged has no loss, and is not below it
runs = stored[stored.part == "fixed"].astype({"layers": int, "seed": int})
ends, layers = (runs[runs.row == row] for row in ("test", "layer"))
good = ends.set_index(["attention", "layers", "seed"]).nats.lt(limit).rename("good")
layers = layers.assign(layer=layers.layer.astype(int) + 1).join(
    good, on=good.index.names
)
layers["passed"] = layers.output_spread / layers.input_spread
seeds, depths = sorted(set(ends.seed.tolist())), sorted(set(ends.layers.tolist()))
deepest = depths[-1]
(text, _, _), vocabulary = language_model.texts("python_reference")

# %% [markdown]
# ## By hand: how far a token moves at the start
#
# One attention layer at random weights, tokens of length about $\sqrt d$ as LayerNorm leaves them. How large is what
# attention adds, compared with the token it is added to? With entries uniform in $\pm 1/\sqrt d$, of variance
# $1/(3d)$, two matrices turn a token of size 1 into one of size $1/3$, and averaging over tokens makes it smaller. Tied
# values pass through $A = W_Q^\top W_Q / \sqrt k$ first. Where a token sees mostly itself, that takes another factor:
# $\mathbb E\, A = \frac{\sqrt k}{3 d} I$, and all of $A$ has the size
# $\big(\mathbb E\, \norm{A}_F^2 / d\big)^{1/2} \approx \frac1{3\sqrt d}\sqrt{1 + k / d}$.

# %%
size, k = sizes["width"], sizes["width"] // sizes["heads"]
windows = corpora.windows(text, sizes["length"], 4)
added = {}
for kind in kinds:
    network = CharacterTransformer(vocabulary, attention=kind, layers=4, **sizes)
    x = network.activations(windows)[-1].double()
    added[kind] = (network.attention(3)(x).norm() / x.norm()).item()
    local = local_lipschitz(network.attention(3), x).value.median().item()
    print(f"{kind:12s} adds {added[kind]:.4f} of a token, local constant {local:.4f}")
W = network.blocks[0].attention.query[:k].double()
A = W.T @ W / k**0.5
expected = (1 + k / size) ** 0.5 / (3 * size**0.5)
print(f"A: size {A.norm().item() / size**0.5:.4f}, expected about {expected:.4f}")
print(f"dot adds {added['dot'] / added['l2-tied']:.0f} times as much as tied L2")

# %% [markdown]
# ## Runs, trained again now
#
# The first steps of one run of each kind, on the text that comes with Python, must give the stored losses again.

# %%
again, same_text = language_model.first_steps("fixed", stored, settings)
print(again.round(4).to_string(index=False))
difference = (again.now / again.stored - 1).abs().max()
if not same_text:
    print("This Python carries another edition of the text: not compared.")

# %% [markdown]
# ## Who trains, and how deep
#
# Test loss in nats per character, mean over the seeds and spread, and how many of the seeds trained. A run counts as
# trained when its loss is clearly below that of the frequencies of characters, which need no network.

# %%
print(f"text: {corpora.describe(settings['corpus'])}; sizes {sizes}")
print(f"{settings['training']}, rate {settings['rate']}; seeds {seeds}")
print(f"{len(ends)} runs, {birth['seconds'] / 3600:.1f} hours of one core\n")
by = ends.groupby(["layers", "attention"]).nats
mean, spread = by.mean().unstack()[kinds], (by.max() - by.min()).unstack()[kinds]
share, count = by.agg(lambda nats: (nats < limit).sum()), by.size()
said = (share.astype(int).astype(str) + " of " + count.astype(str)).unstack()[kinds]
whole = (share == count).unstack()[kinds]
print("nats per character, mean\n" + mean.round(3).to_string())
print("\nlargest less smallest over the seeds\n" + spread.round(3).to_string())
print("\ntrained\n" + said.to_string())
early = runs[(runs.row == "evaluation") & (runs.step == runs.step.min())]
early = early.pivot_table(index="layers", columns="attention", values="validation_loss")
print(f"\nvalidation loss after {runs.step.min():.0f} steps")
print(early[kinds].round(2).to_string())
print(f"\nfrequencies of characters: {frequencies:.3f}; of pairs: {pairs:.3f}")

# %%
figures.training.stability(stored, controls if there else None)
plt.show()

# %% [markdown]
# *Test loss by depth at three fixed rates: a dot for each run, lines through the means. Dotted: frequencies of
# characters, where a network ends that has learned nothing else. Dashed: frequencies after the character before, which
# need no attention.*
#
# ## What goes wrong: all tokens become one
#
# The deepest network, live, for a few steps on the text that comes with Python. After each step, how different are the
# tokens that the last layer receives? The number is their root mean square distance from their mean, over their size:
# 1 for tokens without a common part, 0 where all are the same. Tokens that are all the same can carry nothing but
# frequencies, and until they part again the network learns nothing else.


# %%
def spread_while_training(kind, **changes):
    """Relative spread of the tokens that the last layer receives, after each step."""
    network = CharacterTransformer(
        vocabulary, attention=kind, layers=deepest, **changes
    )
    adam = torch.optim.Adam(
        network.parameters(), lr=settings["rate"], betas=(0.9, 0.98)
    )
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
live = pd.DataFrame(
    {name: spread_while_training(name.split(",")[0], **s) for name, s in shapes.items()}
)
print(live.iloc[:: live_steps // 6].round(4).to_string())

# %% tags=["hide-input"]
fig, ax = plt.subplots(figsize=(6.2, 3.5))
looks = (("#0072b2", "-"), ("#009e73", "-"), ("#0072b2", "--"))
for (label, values), (colour, line) in zip(live.items(), looks, strict=True):
    ax.plot(values, color=colour, ls=line, label=label)
ax.set(yscale="log", xlabel="steps", ylabel="relative spread of tokens")
ax.legend()
plt.show()

# %% [markdown]
# *Spread of the tokens that the last of the layers receives, in the first steps of training at the fixed rate. All
# kinds lose it at first. A network whose tokens are one is lost until they part again; whether they do in time is what
# the table counts.*
#
# ## Is it the distances, or the start?
#
# Tied L2 attention differs from dot products in its scores, and in how little it adds at the start. So we change the
# start alone: dot products with output matrices 16 times smaller, tied L2 with output matrices 16 times larger. And
# dot products as they are, with LayerNorm before each part. All at the largest depth and at the largest of the three
# rates, chosen because dot products of 16 layers trained at the middle one in the first run that was made.

# %%
control = controls[(controls.part == "control") & (controls.row == "test")]
control = control.assign(trained=control.nats < limit)
control = control.groupby(["attention", "norm", "start", "layers", "rate"])
table = control.agg(
    runs=("nats", "size"),
    trained=("trained", "sum"),
    mean=("nats", "mean"),
    smallest=("nats", "min"),
    largest=("nats", "max"),
)
print(table.round(3).to_string())
if not there:
    print(f"{names[1]} is not here: lipnb results {names[1]} makes it.")

# %% [markdown]
# ## Every trained layer, measured
#
# The solver takes each attention layer of the deepest networks that trained, at windows of the test text. The spread of
# a layer's outputs over that of its inputs says how much of the differences between tokens it passes on.

# %%
figures.training.trained_layers(stored, margin)
plt.show()

# %% [markdown]
# *Trained attention layers of the deepest network of each kind that trained. Left: local constants at real text, with
# the bounds, valid for all inputs, dashed. Right: how much of the spread of tokens attention passes on. Lines: medians;
# shades: all seeds.*

# %% tags=["nbval-check-output"]
assert added["dot"] > 8 * added["l2-tied"] > 0
assert abs(A.norm() / size**0.5 / expected - 1) < 0.2
assert not same_text or (len(again) == 2 * len(kinds) and difference < 1e-3)
several = count.unstack()
assert (several == len(seeds)).all(axis=None)
measured = layers[layers.bound.notna()]
assert layers.converged.all() and (measured.highest <= measured.bound).all()
assert bounds.l2_growth(sizes["length"]) == settings["growth"]
assert live["dot"].iloc[-1] < 0.1 * min(live["l2-tied"].iloc[-1], live.iloc[-1, 2])
print("the first steps come out again; no trained layer exceeds its bound")
print("live: the tokens of deep dot-product attention become one, the others' do not")

# %% [markdown]
# What the tables say, in sentences:

# %%
deep_of, passes = {}, {}
for kind in kinds:
    deep_of[kind] = max((d for d in depths if whole.loc[:d, kind].all()), default=0)
    rows = layers[(layers.attention == kind) & layers.good]
    used = (rows.highest / rows.bound).max()
    passes[kind] = f"{kind} {rows.passed.median():.2g}"
    print(f"{kind}: all seeds train up to {deep_of[kind]} layers; best mean loss "
          f"{mean[kind].min():.3f}, with {mean[kind].idxmin()} layers")  # fmt: skip
    print(
        f"  its layers: constants {rows.lowest.min():.2g} to {rows.highest.max():.2g}"
        + ("" if np.isnan(used) else f", at most {used:.2g} of the bound")
        + f"; spread passed on {rows.passed.min():.2g} to {rows.passed.max():.2g}"
    )

# %%
size = f"width {size}, {settings['training']['steps']} steps, rate {settings['rate']:g}"
loss = ends.set_index(good.index.names).nats.fillna(frequencies)
lipschitz, deep = loss[["l2-tied", "contractive"]], loss["dot"][deepest]
worst = f"{lipschitz.idxmax()}: {lipschitz.max():.3f} nats"
lucky = f"seed {deep.idxmin()}: {deep.min():.3f} nats with {deepest} layers"
which = f"loss over {limit:.3f}, frequencies less {margin}; {size}"
table, figure = "kim.tab-stability", "kim.fig-spread"
train = f"at our size, tied and contractive train at every depth to {deepest}"
stuck = f"at our size, dot products do not train with {deepest} layers"
sizes_unknown = f"sizes not recovered, losses not certain; counts at {size} instead"
own = (
    "not recovered; spread of outputs over that of inputs, median over trained layers: "
)
ours = {"variant": True, "grounds": which}
ledger.record(
    ledger.unchecked(table, "its losses, at its size", sizes_unknown),
    ledger.upper(table, train, lipschitz / limit, counter_example=worst, **ours),
    ledger.lower(table, stuck, deep / limit, counter_example=lucky, **ours),
    ledger.unchecked(figure, "as drawn", own + ", ".join(passes.values())),
)

# %% [markdown]
# ## What this shows and does not show
#
# - The networks are small and saw little text: `trains` here means that they left the frequencies of characters behind
#   within these steps, no more. The paper's networks were larger and trained to the end.
# - The rate and the depth decide together: compare the panels. The controls change the start and the place of LayerNorm
#   at the same kind of attention.
# - So the table is no evidence that a Lipschitz constant makes training stable. Tied L2 attention begins with a layer
#   that adds little, because its values pass through $A$, a product of two small matrices. Dot products can be given
#   the same start.
# - What trains here may hardly use attention: compare the losses with the dashed line. A layer that adds little is
#   safe, and slow.
# - The guarantee is not idle: without any LayerNorm, each layer of the contractive kind has a constant of at most 1 on
#   every input, after every step. The solver shows how far below it stays on text.
# - A local constant is a fact about one layer at one window. Nothing here bounds the network as a whole, except in the
#   contractive kind.
#
# **One thing to try.** Give `spread_while_training` the kind `"contractive"`, or dot products with `norm="before"`.
#
# **Next:** {doc}`67_euclidean_growth`, how fast the Euclidean constant grows.
