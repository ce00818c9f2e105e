# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Why the constant grows
#
# In trained layers the {term}`local Lipschitz constant` grows with the number $n$ of {term}`tokens <token>`, in
# untrained ones hardly ({doc}`41_real_text`). What does training change? Layers of {term}`attention` learn to attend to
# the same few tokens: if all $n$ attend to one, and go on doing so, moving that one moves $n$ outputs. The
# {term}`spectral norm` $\norm{P}_2$ of the {term}`attention matrix` measures this, between 1 and $\sqrt n$. Its slope
# predicts that of the constant without a fitted parameter, with a median error of {glue:text}`why-error:.3f` over
# {glue:text}`why-layers:.0f` layers ({numref}`fig-43-slopes`). Our goal, an error of at most {glue:text}`why-goal:.2f`
# for {glue:text}`why-asked:.0f` % of the layers, is missed: {glue:text}`why-within:.0f` %. And at the longest
# {term}`windows <window>` only {glue:text}`why-frozen:.0f` % of the constant (median over layers) comes through this
# part, with attention held fixed: the agreement of the slopes is a correlation, not an explanation. In gpt2-mini the
# constant grows for another reason.

# %% tags=["parameters", "hide-input"]
texts = ["alice", "python_reference"]  # for the live cells, best first
goal, asked = 0.05, 0.8  # chosen before the measurement: error of a slope, share of the layers
seed = 0

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from myst_nb import glue

from lab import figures, layer_growth, results
from lab.experiments import interventions, positions
from lab.growth import forecast
from lipnb import Attention, corpora, local_lipschitz, models

figures.house_style()
table = layer_growth.stored()
own = table[table.case == "as read"]
own = own[own.corpus == own["map"].map(own.groupby("map").corpus.first())]
rates = layer_growth.rates(own, along=("attention_norm", "column"))
error = (rates.attention_norm - rates.slope).abs()

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-43-slopes", "caption": "One mark for each trained layer: how fast the largest $\\norm P_2$ of its heads grows (across), and how fast its constant does (up). The line is no fit but equality, the band the error aimed at. In layers above the band something else adds to the growth; most of ALBERT lies below it: its constant grows less than $\\norm P_2$."}, "image": {"alt": "Scatter of the slope of the constant against the slope of the largest spectral norm of the attention matrices, one mark for each layer. Many marks lie near the diagonal; those of gpt2-mini and MiniLM's first layer lie far above it, most of ALBERT's well below."}}
drawn = figures.points(figures.atlas.mechanism(rates, goal))
plt.show()

# %% [markdown]
# ## Everyone looks at one
#
# Let each of $n$ tokens give the share $s$ of its attention to the first one and divide the rest evenly. For $s = 0$
# {term}`attention <uniform attention>` is uniform, for $s = 1$ all attend to one token:

# %%
lengths = (16, 64, 256, 1024)
norms = []
for share in (0.0, 0.1, 0.5, 1.0):
    row = {"share": share}
    for n in lengths:
        P = np.full((n, n), (1 - share) / n)
        P[:, 0] += share
        row[str(n)] = np.linalg.norm(P, 2)
    norms.append(row)
names = {"share": "share s of the first token"} | {str(n): f"norm of P, n = {n}" for n in lengths}
figures.table(pd.DataFrame(norms), names=names, digits=3)

# %% [markdown]
# {bdg-secondary}`ours` {ref}`what is this? <badges>`
#
# :::{prf:proposition} The popular token
# :label: popular-token
#
# Let $P \in \mathbb R^{n \times n}$ be the attention matrix of one head with value matrix $V$ at an input, and
# $c = \max_j \sum_i P_{ij}$ the attention that its most attended token gets.
#
# 1. If attention is held fixed, the {term}`Jacobian` of $X \mapsto P X V^\top$ has the norm $\norm P_2 \norm V_2$.
# 2. $\max(1, c / \sqrt n) \le \norm P_2 \le \sqrt c \le \sqrt n$.
# :::
#
# ::::{dropdown} Proof
# :::{prf:proof}
# 1: The Jacobian is the Kronecker product of $P$ and $V$, whose norm is the product of the norms.
#
# 2: Rows of $P$ add up to 1, so $P \mathbf 1 = \mathbf 1$ and $\norm P_2 \ge 1$.
#
# With $e_j$ the unit vector of the most attended token, $\norm P_2 \ge \mathbf 1^\top P e_j / \sqrt n = c / \sqrt n$.
#
# The square of the spectral norm is at most the largest row sum times the largest column sum, $1 \cdot c$, and
# $c \le n$.
# :::
# ::::
#
# The whole Jacobian also moves attention, through keys and queries. Whether the frozen part decides the growth is
# therefore a question for measurements. One head of a trained layer, with the two parts by hand:

# %%
model = models.load("minilm")
corpus = corpora.available(*texts)
tokens = models.random_windows(model, corpora.read(corpus), length=16, count=1, seed=seed)
f, x = model.attention(4), model.activations(tokens, 4)
one = Attention(f.query[:1], f.key[:1], f.value[:1]).to(dtype=torch.float64)
P = one.probabilities(x.double())[0, 0]
frozen = torch.linalg.matrix_norm(P, 2) * torch.linalg.matrix_norm(one.value[0], 2)
whole = local_lipschitz(one, x[0].double()).value
c = P.sum(0).max()
print(f"most attended token: {c:.2f} of {len(P)}; norm of P: {torch.linalg.matrix_norm(P, 2):.3f}")
print(f"attention held fixed: {frozen:.3f}; whole constant: {whole:.3f}")

# %% [markdown]
# ## Measured: the slope of the constant from the slope of $\norm P_2$
#
# For each layer the prediction is the slope of the largest $\norm P_2$ over its heads. It looks at attention alone, at
# no value matrix and at no derivative, and nothing is fitted. Two controls: the mean slope of all layers, and the
# slope of $\sqrt c$.

# %% tags=["hide-input"]
longest = own[own.length == own["map"].map(own.groupby("map").length.max())]
by_value = longest.groupby(["map", "layer"]).by_value.median()
rates["error"], rates["values"] = error, by_value.loc[list(zip(rates["map"], rates.layer, strict=True))].to_numpy()
rates["root"] = (rates.column / 2 - rates.slope).abs()
rates["mean"] = (rates.slope - rates.slope.mean()).abs()


def errors_of(rows):
    """How well the slopes of some layers are predicted."""
    line = {"layers": len(rows), "error": rows.error.median(), "within": (rows.error <= goal).mean()}
    line |= {"root": rows.root.median(), "mean": rows["mean"].median(), "values": rows["values"].median()}
    return pd.Series(line)


shown = pd.concat({name: errors_of(rows) for name, rows in rates.groupby("map", sort=False)}, axis=1).T
shown.loc["all"] = errors_of(rates)
shown["within"] = (100 * shown.within).map("{:.0f} %".format)
shown["layers"] = shown.layers.astype(int)
headings = {"map": "model", "layers": "layers", "error": "median error", "within": f"error at most {goal}"}
headings |= {"root": "median error of √c", "mean": "of the mean slope", "values": "share of the values"}
figures.table(shown.rename_axis("map").reset_index(), names=headings, digits=2, bold=shown.index == "all")

# %% [markdown]
# The last column is the share of the constant that comes through the values, with attention held fixed, along the
# steepest direction at the longest windows (median over layers). Where it is small, moving a token acts by moving
# attention, and {prf:ref}`popular-token` need not say anything. It is smallest in gpt2-mini, where the prediction
# fails.
#
# Would a fit do better? Least squares with the slopes of $\norm P_2$ and $\sqrt c$, fitted to random halves of the
# layers, or to all models but one, and asked for the rest:

# %% tags=["hide-input"]
features = rates[["attention_norm", "column"]].reset_index(drop=True)
found = forecast(features, rates.slope.to_numpy(), rates["map"].to_numpy(), layers=rates.layer.to_numpy(), within=goal)
summary = found.summary.assign(within=(100 * found.summary.within).map("{:.0f} %".format))
summary = summary.replace({"half": "half of the layers", "group": "a model", "features": "both slopes"})
summary = summary.replace({"mean": "mean slope", "permuted": "both slopes, permuted"})
headings = {"held_out": "held out", "predictor": "predicted by", "median": "median error"}
figures.table(summary, names=headings | {"within": f"error at most {goal}"}, digits=3)

# %% [markdown]
# No: the equality without a fit has a smaller error than the fits, on layers that they have not seen.
#
# In SmolLM2 the popular token is the first one, a sink. Its layer {glue:text}`why-sink-layer:.0f` is the extreme: at
# {glue:text}`why-sink-length:,.0f` tokens one token gets {glue:text}`why-sink-column:,.1f` units of attention, so
# $\norm P_2$ is {glue:text}`why-sink-norm:.2f`, where $\sqrt n$ is {glue:text}`why-sink-root:.2f`, and
# {glue:text}`why-sink-share:.1f` % of the squared steepest direction lies on that token.
#
# ## Changed attention, changed slopes
#
# Correlation over layers is no cause. So we change the attention of a layer at the inputs that it receives, and measure
# both slopes again on the same windows: *uniform* multiplies the queries by 0, *softer* by 1/2, *sharper* by 2; one
# change deletes the most attended token, one gives every place the same learned position.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-43-changes", "caption": "Each mark is a layer of MiniLM, gpt2-mini or stories260K after one change of its attention: how much the slope of $\\norm P_2$ changed (across) and how much that of the constant did (up); the band allows a difference of {glue:text}`why-goal:.2f`. Sharper attention mostly makes both steeper, softer both flatter; marks below the band lose growth that $\\norm P_2$ does not account for."}, "image": {"alt": "Scatter of the change of one slope against that of the other, one mark for each layer and change, in five colours. Many marks lie near the diagonal; uniform and softer attention leave a group far below it, where two marks of one position for all places lie too."}}
changed = interventions.changes(results.load("interventions"))
figures.interventions.changes(changed, goal)
plt.show()

# %% tags=["hide-input"]
agreed = interventions.agreement(changed, by=("intervention",), limits=(goal,))
agreed["close"] = (100 * agreed[f"within {goal:g}"]).map("{:.0f} %".format)
headings = {"intervention": "change", "layers": "layers", "change": "median change, constant"}
headings |= {"norm_change": "median change, norm of P", "gap": "median difference", "close": f"within {goal}"}
figures.table(agreed, names=headings, digits=2)

# %% [markdown]
# Sharpness is a cause of the growth: in {glue:text}`why-sharp-signs:.0f` of the {glue:text}`why-sharp-layers:.0f`
# layers sharper attention makes both slopes steeper, and uniform attention leaves the constant a slope
# of {glue:text}`why-uniform:.2f` in the median. But $\norm P_2$ is not the whole of it: over all changes
# {glue:text}`why-agreed:.0f` % of the pairs agree within {glue:text}`why-goal:.2f`.
#
# ## A jump where training ended
#
# The first layer of MiniLM has another reason still. In this form MiniLM was trained on texts of at most 128 tokens.
# We measure its first layer on windows around that length, and once with the same tokens moved to later places.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-43-jump", "caption": "The first layer of MiniLM, unmasked; the dashed line marks the length at which its training texts ended. Blue: one dot for each stored window. Orange: medians of the windows measured when this page runs. The constant more than doubles there, so no single {term}`exponent` describes lengths on both sides of the line."}, "image": {"alt": "Constant of the first layer of MiniLM against the number of tokens up to 512, flat at first, with a sudden rise at a dashed line at 128 tokens and larger values beyond."}}
token_ids = model.token_ids(corpora.read(corpus))


def first_layer_constant(model, n, count=4):
    """Median local constant of the first layer over a few windows."""
    x = model.activations(corpora.windows(token_ids, n, count), 0)
    return local_lipschitz(model.attention(0), x).value.median().item()


jump = {n: first_layer_constant(model, n) for n in (64, 96, 120, 126, 130, 132, 136, 160)}
one_place = positions.variant(model, "constant")
without_places = {n: first_layer_constant(one_place, n) for n in (64, 126, 160)}
later = first_layer_constant(positions.variant(model, 100), 64)
figures.real_text.jump(results.load("atlas-minilm"), jump, corpus)
plt.show()

# %% [markdown]
# The median constant is {glue:text}`why-before:.1f` at 120 tokens and {glue:text}`why-beyond:.1f` at 160. The same 64
# tokens have {glue:text}`why-same:.1f` at the first places and {glue:text}`why-moved:.1f` at places larger by 100. With
# one position for all places the medians of all lengths lie between {glue:text}`why-one-low:.1f` and
# {glue:text}`why-one-high:.1f`. So the jump comes with places beyond those that training reached.

# %% tags=["hide-input"]
sink = longest[(longest["map"] == "SmolLM2")].groupby("layer").median(numeric_only=True)
top = sink.loc[sink.attention_norm.idxmax()]
mini = rates[rates["map"] == "gpt2-mini"]
correlation = rates.slope.corr(rates.attention_norm)
said = {"error": error.median(), "layers": len(rates), "goal": goal, "asked": 100 * asked}
others = rates["map"].to_numpy() != "SmolLM2"
said |= {
    "within": 100 * (error <= goal).mean(),
    "correlation": correlation,
    "others": 100 * (error[others] <= goal).mean(),
}
said |= {"sink-layer": top.name, "sink-length": top.length, "sink-column": top.column, "sink-norm": top.attention_norm}
said |= {"sink-root": top.length**0.5, "sink-share": 100 * top.most_in}
said |= {"before": jump[120], "beyond": jump[160], "same": jump[64], "moved": later}
said |= {"one-low": min(without_places.values()), "one-high": max(without_places.values())}
sharper, uniform = (changed[changed.intervention == name] for name in ("sharper", "uniform"))
said |= {"sharp-layers": len(sharper), "sharp-signs": int(((sharper.change > 0) & (sharper.norm_change > 0)).sum())}
said |= {"uniform": uniform.slope.median(), "agreed": 100 * (changed.gap.abs() <= goal).mean()}
said |= {"frozen": 100 * rates["values"].median()}
for name, value in said.items():
    glue(f"why-{name}", float(value), display=False)

# %% tags=["hide-input", "nbval-check-output"]
for row in norms:
    for n in lengths:
        s, norm = row["share"], row[str(n)]
        popular = 1 + s * (n - 1)
        assert max(1, popular / n**0.5) <= norm * (1 + 1e-12) and norm <= popular**0.5 * (1 + 1e-12)
by_hand = torch.kron(P, one.value[0])
assert abs(torch.linalg.matrix_norm(by_hand, 2) / frozen - 1) < 1e-9 and frozen > 0.2 * whole
assert drawn == len(rates) and table.converged.all()
assert (own.attention_norm <= own.column**0.5 * (1 + 1e-4)).all() and (own.attention_norm > 1 - 1e-3).all()
assert error.median() < 0.06 and (error <= goal).mean() < asked
assert error.median() < rates["mean"].median() / 2 and rates["root"].median() > error.median()
assert mini.error.median() > 0.15 and mini["values"].median() == shown["values"].min()
albert = rates[rates["map"] == "ALBERT"]
assert (albert.attention_norm - albert.slope > goal).mean() > 0.5
assert said["sharp-signs"] >= len(sharper) - 1 and abs(said["uniform"]) < 0.1
assert changed.change.corr(changed.norm_change) > 0.5 and 30 < said["agreed"] < 80
fits = found.summary[found.summary.predictor == "features"]
assert (fits["median"] > error.median()).all()
assert top.place_in == 0 and top.most_in > 0.99 and top.attention_norm > 0.9 * top.length**0.5
assert jump[160] > 2 * jump[120] and later > 2 * jump[64]
assert max(without_places.values()) < 1.5 * min(without_places.values())
print("✓ norms of attention lie where the proposition says; the sentences on slopes hold for the stored tables")

# %% [markdown]
# ## What this shows and does not show
#
# - In most models the growth goes along with attention to the same few tokens, and mostly has its size: the slopes have
#   correlation {glue:text}`why-correlation:.2f`. The goal that we had set is missed: without SmolLM2
#   {glue:text}`why-others:.0f` % of the layers agree, in gpt2-mini and ALBERT few.
# - The proposition gives the frozen part its reason; the part through keys and queries has none here, and in gpt2-mini
#   it is what grows. The largest disagreements under changed attention are there too.
# - $\norm P_2$ is measured at the same inputs as the constant, so the prediction is of a derivative from attention,
#   not of long windows from short ones.
# - The layers of one model are not independent, and {glue:text}`why-layers:.0f` layers are of a few models only.
#
# **One thing to try.** Give the head above sharper attention, with `Attention(4 * f.query[:1], ...)`. Does the frozen
# part keep its share of the constant?
#
# **Next:** {doc}`48_independent_tokens`.
