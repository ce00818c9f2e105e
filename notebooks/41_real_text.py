# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Real text: how the constant grows with length
#
# The theorems allow growth like $\sqrt n$. What do trained layers do on real sentences? This page repeats the top
# row of Figure 1 of {cite:t}`castin2024smooth` with every model and layer at hand, with the quantity that the paper
# defines, and beside it with the quantity that the released experiments report.
#
# :::{prf:observation} The claim {cite}`castin2024smooth`, section 5 and Figure 1
# :label: quarter-power
#
# On text, the local Lipschitz constant of the attention layers of BERT (encoder, and masked as a decoder) and of a
# randomly initialised GPT-2 grows like $n^{1/4}$ with the number $n$ of tokens.
# :::
#
# *Defined*: $\norm{D_X f}_2$ of multi-head attention with its output projection, without residual and LayerNorm.
# *Released*: $\norm{J^\top f(X)}_F^{1/2}$ with $J = D_X f$, of the same map. {doc}`45_released_code` tells why the
# released code reports that.

# %% tags=["parameters"]
tables = ["real-text", "real-text-embedded"]  # for the live checks, best first
claimed_exponent = 0.25
rows_to_check = 2  # of each model
seed = 0

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import pandas as pd
import torch

from lipnb import corpora, experiments, figures, ledger, local_lipschitz, results
from lipnb.experiments import positions
from lipnb.scaling import power_law

figures.house_style()
keys = ["corpus", "model", "weights", "masked", "layer"]

# %% [markdown]
# ## The stored measurements
#
# Three texts: *Alice's Adventures in Wonderland* and AG_NEWS, as in the paper, and the language reference that comes
# with Python, so that anyone can measure rows again without any download. For each length, ten windows from the
# beginning of the text, none overlapping another. A table `real-text-MODEL-...` that you made yourself joins in.

# %%
names = [name for name in results.names() if name.startswith("real-text")]
stored = pd.concat([results.load(name) for name in names], ignore_index=True)
stored["attention"] = stored.model + stored.masked.map(
    {True: " masked", False: " unmasked"}
)
for name in names:
    birth = results.provenance(name)
    print(f"{name}: {birth['rows']} rows, {birth['seconds']:.0f} s")
print(
    stored.groupby(["corpus", "attention"], sort=False)
    .agg(
        layers=("layer", "nunique"),
        n=("length", "max"),
        rows=("length", "size"),
        converged=("converged", "mean"),
        steps=("steps", "mean"),
    )
    .round(1)
    .to_string()
)

# %% [markdown]
# ## The smallest case, by hand
#
# Two tokens: the Jacobian is small enough to write out by autograd and to decompose densely. The stored row must
# be its largest singular value, and the released quantity must follow from the same matrix.

# %%
here, corpus, models_here = experiments.measurable(*tables)
model = models_here[0]
tokens = corpora.windows(model.token_ids(corpora.read(corpus)), length=2, count=1)
x = model.activations(tokens, layer=0)[0]
f = model.attention(0)
J = torch.func.jacrev(f)(x).reshape(x.numel(), x.numel())
by_hand = torch.linalg.svdvals(J)[0].item()
released_by_hand = (J.T @ f(x).flatten()).norm().sqrt().item()
chosen = "corpus == @corpus and attention == 'minilm unmasked' and layer == 0"
first = stored.query(f"{chosen} and length == 2 and window == 0").iloc[0]
now = local_lipschitz(f, x).value.item()
print(f"text at hand: {corpora.describe(corpus)}")
print("tokens:", model.tokenizer.convert_ids_to_tokens(tokens[0]))
print(f"defined: by hand {by_hand:.4f}, stored {first.lipschitz:.4f}, now {now:.4f}")
print(f"released: by hand {released_by_hand:.4f}, stored {first.released:.4f}")

# %% [markdown]
# ## A few rows, measured again now
#
# Random rows of every model on the text at hand, with the models loaded afresh. The random GPT-2 is drawn again
# from its seed.

# %%
again = pd.concat(
    experiments.remeasure(results.load(here), each, rows=rows_to_check, seed=seed)
    for each in models_here
)
shown = ["model", "masked", "layer", "length", "lipschitz", "again"]
print(again[[*shown, "released", "released again"]].round(4).to_string(index=False))

# %% [markdown]
# ## The panels of Figure 1
#
# A power law fitted to all windows of a panel, with its 95 % interval, and the fit to the released quantity beside
# it.

# %%
figures.real_text.figure_1(stored)
plt.show()

# %% [markdown]
# *On Alice, one mark for each window: the local Lipschitz constant as defined (dots) and what the released estimator
# reports on the same input (crosses), with fitted power laws. MiniLM is trained; the decoder is MiniLM masked.
# Logarithmic axes.*
#
# ## Every layer
#
# The exponents of all layers at hand, as defined, with intervals; then on the shorter and on the longer half of the
# lengths alone. Where the halves disagree, one power law is not the right curve.

# %%
rates = []
for key, rows in stored.groupby([*keys, "attention"], sort=False):
    fit = power_law(rows.length, rows.lipschitz)
    middle = (rows.length.min() * rows.length.max()) ** 0.5
    halves = [
        power_law(half.length, half.lipschitz).exponent
        for half in (rows[rows.length <= middle], rows[rows.length > middle])
    ]
    beside = power_law(rows.length, rows.released).exponent
    slower, faster = fit.high < claimed_exponent, fit.low > claimed_exponent
    verdict = "slower" if slower else "faster" if faster else "as claimed"
    rates.append([*key, fit.exponent, fit.low, fit.high, *halves, beside, verdict])
columns = ["exponent", "low", "high", "short n", "long n", "released", "growth"]
rates = pd.DataFrame(rates, columns=[*keys, "attention", *columns])
print(rates[["corpus", "attention", "layer", *columns]].round(3).to_string(index=False))

# %%
figures.real_text.layers(stored)
plt.show()

# %% [markdown]
# *Small multiples, Alice: one row for each trained map, one column for each layer, the fitted exponent above.
# Logarithmic axes, one vertical scale in each row.*

# %%
alice = rates[rates.corpus == "alice"]
figures.real_text.rates(stored, claimed_exponent)
plt.show()

# %% [markdown]
# *Fitted exponents on Alice by layer, with 95 % intervals: as defined (full marks) and of what the released estimator
# reports (open marks).*

# %% [markdown]
# ## A jump where training ended
#
# On AG_NEWS, where windows are longer, the flat first layer of MiniLM is flat no more. MiniLM in this form was trained
# on texts of at most 128 tokens. Its constant, live, for windows around that length, and with the same tokens moved to
# other places:

# %%
plain = models_here[0]
token_ids = plain.token_ids(corpora.read(corpus))


def first_layer_constant(model, n, count=4):
    """Median local constant of the first layer over a few windows."""
    x = model.activations(corpora.windows(token_ids, n, count), 0)
    return local_lipschitz(model.attention(0), x).value.median().item()


jump = {
    n: first_layer_constant(plain, n) for n in (64, 96, 120, 126, 130, 132, 136, 160)
}
print("median constant by n:", {n: round(value, 1) for n, value in jump.items()})
one_place = positions.variant(plain, "constant")
print(
    "one place for all:",
    {n: round(first_layer_constant(one_place, n), 1) for n in (64, 126, 160)},
)
crossing = positions.variant(plain, 100)
later = first_layer_constant(crossing, 64)
print(f"64 tokens, places 0 to 63: {jump[64]:.1f}, 100 to 163: {later:.1f}")

# %%
figures.real_text.jump(stored, jump, corpus)
plt.show()

# %% [markdown]
# *The first layer of MiniLM, unmasked. Dashed: 128 tokens, where its training texts ended. A power law through these
# points would say nothing.*

# %% tags=["nbval-check-output"]
assert abs(by_hand / first.lipschitz - 1) < 1e-3
assert abs(released_by_hand / first.released - 1) < 1e-3
assert again.difference.max() < 1e-3, "a stored row does not hold"
assert again["released difference"].max() < 1e-3, "a stored row does not hold"
mine = stored[stored.model.isin(["minilm", "gpt2", "gpt2-mini"])]
assert mine.converged.all() and (mine.upper >= mine.lipschitz).all()
# the sentences at the end, checked
e = rates[rates.corpus == "alice"].set_index(["attention", "layer"]).exponent
deeper = e[["minilm unmasked", "minilm masked"]].drop(0, level="layer")
assert deeper.between(0.245, 0.345).all() and e["gpt2 masked"].max() < 0.1
assert (
    jump[160] > 1.8 * jump[120] and first_layer_constant(crossing, 64) > 1.8 * jump[64]
)
assert e.xs(0, level="layer").max() < 0.1 and e["gpt2-mini masked"].max() > 0.5
print("stored rows hold when measured again; all of them converged")

# %% [markdown]
# ## What survives of "close to $n^{1/4}$"?
#
# The next cell says it with the numbers of the table above, so that the sentence cannot go stale.

# %%
trained = alice[alice.weights != "random"]
near = trained[(trained.exponent - claimed_exponent).abs() <= 0.05]
random = alice[alice.weights == "random"].iloc[0]
inside = (alice.growth == "as claimed").sum()
spans = {
    name: f"{column.min():.2f} to {column.max():.2f}"
    for name, column in {
        "unmasked": trained[~trained.masked].exponent,
        "masked": trained[trained.masked].exponent,
        "released": alice.released,
    }.items()
}
print(f"of {len(alice)} layers on Alice, {inside} have 1/4 inside their interval;")
print(f"of {len(trained)} trained ones, {len(near)} come within 0.05 of it")
print(f"trained and unmasked: exponents {spans['unmasked']}")
print(f"trained and masked: exponents {spans['masked']}")
print(f"random GPT-2: {random.exponent:.2f}, and {random.released:.2f} as released")
print(f"released quantity, all layers: exponents {spans['released']}")

# %% [markdown]
# The figures themselves cannot be checked here: their weights are not at hand. The ledger says so, and gives what was
# measured in their place.

# %%
panels = [panel[:2] for panel in figures.real_text.PANELS]
fitted = [
    f"{row.attention}, layer {row.layer}, {row.corpus}: "
    f"{row.exponent:.2f} [{row.low:.2f}, {row.high:.2f}]"
    for row in rates.itertuples()
    if (row.attention, row.layer) in panels
]  # fmt: skip
ledger.record(
    ledger.unchecked(
        "castin.fig-1",
        "n^(1/4) and n^(1/2), all six panels",
        f"BERT-base is not at hand; fitted exponents instead: {'; '.join(fitted)}; "
        "adversarial tokens on page 42",
    ),
)

# %% [markdown]
# ## What this shows and does not show
#
# - **No single rate fits all layers.** Up to a hundred tokens, the constant of the first layers hardly grows with the
#   length at all. In the other layers of MiniLM, with the mask or without, it grows like $n^{0.25}$ to $n^{0.34}$: for
#   these, "close to $n^{1/4}$" is a fair summary, and it holds for the quantity that the paper defines.
# - Beyond the lengths that a model was trained on, a rate is no property of attention alone: in the first layer of
#   MiniLM the learned positions after place 127 more than double the constant at once.
# - In the random GPT-2 the constant is nearly flat. There $1/4$ is a property of the estimator
#   ({doc}`45_released_code`).
# - In the middle of gpt2-mini it grows faster than $\sqrt n$ over these lengths, and faster yet for the longer ones.
#   This contradicts no theorem: the constants are far below the bounds. {doc}`44_gpt2_positions` looks for the
#   reason.
# - The released quantity is a poor guide to the rate of a layer: it is too steep for most layers of MiniLM, and too
#   flat for the steep ones of gpt2-mini.
# - The claim was made for BERT-base; these are a smaller BERT-architecture model, a small GPT-2 trained here, and the
#   same random GPT-2. The table says nothing about BERT-base itself. With a network,
#   `make results MODEL=bert-base-uncased` measures it, and this page shows it beside the others.
# - The interval is for independent errors around a straight line. Windows of different lengths share text, and the
#   two halves do not always agree, so read it as the uncertainty of the line, not of the law.
# - MiniLM may have read Alice when it was trained; gpt2-mini has not.
#
# **One thing to try.** Is it the mask or the depth that makes the constant grow? The masked and the unmasked MiniLM
# have the same weights: compare them layer by layer, then put the released quantity of the same rows beside them.
#
# **Next:** {doc}`42_adversarial_inputs`.
