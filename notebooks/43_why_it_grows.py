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
# Trained {term}`attention` looks at the same few {term}`tokens <token>`. Moving one of those moves many outputs: by its
# value, and by its key, which changes how much attention it gets. Over {glue:text}`why-layers:.0f` trained layers these
# two effects account for the growth of the {term}`local Lipschitz constant` with the number $n$ of tokens: their slope
# differs from that of the constant by {glue:text}`why-rmse:.3f` (root mean square), the slope of the norm of the
# {term}`attention matrix` by {glue:text}`why-P-rmse:.3f`. On two models that the form was not chosen on, the two errors
# cannot be told apart. With independent tokens the constant grows, too, so a part of the growth needs no text.

# %% tags=["parameters", "hide-input"]
texts = ["alice", "python_reference"]  # for the live cells, best first
sentence = "The little girl fell down the well because she had followed a rabbit."
close = 0.05  # error of a slope that counts as close: 3.5 % an octave
at_most, as_rival = 0.10, 0.02  # written down in lab/experiments/unseen.toml before the two models were measured
seed = 0

# %% tags=["hide-input"]
import math
from importlib.resources import files

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from myst_nb import glue

from lab import figures, ledger, results
from lab.experiments import independent_tokens, interventions, positions
from lab.experiments.head_terms import head_terms
from lab.statistics import growth, layer_growth
from lab.statistics.predicted_slopes import bends, compared, neighbours, with_terms
from lipnb import Attention, AttentionJacobian, corpora, local_lipschitz, models
from lipnb.jacobian import block_norms

figures.house_style()
atlas = layer_growth.stored()
own = with_terms(atlas[atlas.case == "as read"], results.load("head-terms"))
of_window = ["model", "masked", "corpus", "layer", "length", "window", "text"]

# %% tags=["hide-input"]
seen = results.load("attention-received")[[*of_window, "received", "squares"]]
own = own.merge(seen, on=of_window, validate="one_to_one")
own[["received", "squares"]] **= 0.5
along = ["attention_norm", "both", "value", "key", "received"]
rates = layer_growth.rates(own, along=along).assign(flat=0.0)
rates["neighbours"] = neighbours(rates)
shown_terms = {
    "attention_norm": "slope of the largest $\\|P\\|_2$",
    "both": "slope of largest $F$ + largest $\\|S\\|_2$",
}

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-43-slopes", "caption": "One mark for each trained layer, 8 to 512 tokens (of MiniLM, too, beyond its training): how fast its constant grows (up) against the slope of another quantity, without a fit (across). The lines are equality, the bands an error of {glue:text}`why-close:.2f`. Above: the norm of the attention matrix, which knows where attention goes, but neither values nor keys. Below: values and keys. Five of the six layers of gpt2-mini, above the upper line, lie near the lower one, and the first layer of MiniLM comes nearer."}, "image": {"alt": "Two scatter plots, one below the other, of the slope of the constant for each layer of seven models, against the slope of the norm of attention and against that of the terms of values and keys. In the upper one several marks lie far above the diagonal; in the lower one all lie within about a tenth of it, more below than above."}}
drawn = figures.points(figures.atlas.mechanism(rates, close, shown_terms))
plt.show()


# %% [markdown]
# ## Everyone looks at one
#
# Let $n - 1$ equal tokens $b$ on a line each give half of their attention to one token $a$, with $A = V = 1$; this is so
# if $b(a - b) = \log(n-1)$. Moving $a$ by a little moves each of the $n-1$ outputs, first because half of each is the
# value of $a$: this gives $\frac12\sqrt{n-1}$. And a larger $a$ gets more attention, which moves each output by another
# $\frac14\log(n-1)$. That is the effect of the key of $a$; it grows with the number of tokens.

# %%
rows, b = [], 40.0
for n in (8, 32, 128, 512):
    x = torch.full((n, 1), b, dtype=torch.float64)
    x[0] += np.log(n - 1) / b
    head = Attention.from_matrices(*torch.ones(2, 1, 1, dtype=torch.float64))
    found = {name: one.item() for name, one in head_terms(head, x[None]).items()}
    found["constant"] = torch.linalg.matrix_norm(AttentionJacobian(head, x).dense(), 2).item()
    rows.append({"n": n} | found)
example = pd.DataFrame(rows)
names = {"n": "tokens", "attention_norm": "norm of P", "value": "values", "key": "keys", "query": "queries"}
figures.table(example, names | {"constant": "constant"}, digits=3)

# %% [markdown]
# {bdg-secondary}`ours` {ref}`what is this? <badges>`
#
# :::{prf:proposition} Values, keys and queries
# :label: three-terms
#
# One head, with a {term}`mask` or without, has queries $q_i = Q x_i$, keys $k_j = K x_j$ and values $v_j = V x_j$ (with
# biases or without), outputs $o_i = \sum_j P_{ij} v_j$ and the output matrix $W$. Let
#
# $$\begin{gathered}
# F = \norm P_2 \norm{WV}_2, \qquad S_{ij} = P_{ij}\, \abs{W(v_j - o_i)}\, \frac{\abs{K^\top q_i}}{\sqrt k}, \\
# C_i = \frac1{\sqrt k}\, W \sum_j P_{ij} (v_j - o_i) k_j^\top Q .
# \end{gathered}$$
#
# 1. $\norm{D_X f}_2 \le F + \norm S_2 + \max_i \norm{C_i}_2$.
# 2. The part of the {term}`Jacobian` through the values has the norm $F$, that through the queries
#    $\max_i \norm{C_i}_2$, that through the keys at most $\norm S_2$, with equality for some tokens.
# 3. With $c_j = \sum_i P_{ij}$, the attention that token $j$ receives, $c$ the largest of them and $U = \max_i \sum_j
#    P_{ij} c_j$, $\max(1, c/\sqrt n) \le \norm P_2 \le \sqrt U \le \sqrt c \le \sqrt n$ and $\max_j \sum_i P_{ij}^2 \le
#    \norm P_2^2$.
# 4. For a head with $A = K^\top Q / \sqrt k$, no biases and tokens of norm at most $R$, with $t = \norm A_2 R^2$:
#    $\norm{D_X f}_2 \le \norm{WV}_2 \big(t + \sqrt U + t \min(\sqrt c, 2 \sqrt U)\big)$.
#
# The constant of a layer is at most the sum over its heads. Where keys are rotated by their places,
# $\norm K_2 \abs{q_i}$ stands for $\abs{K^\top q_i}$, and $C_i$ is measured with $\norm Q_2$.
# :::
#
# ::::{dropdown} Proof
# :::{prf:proof}
# The logits are $l_{ij} = q_i \cdot k_j / \sqrt k$. Where they change by $\dot l_{ij}$, the softmax changes by
# $\dot P_{ij} = P_{ij} (\dot l_{ij} - \sum_r P_{ir} \dot l_{ir})$. So output $i$ changes, for a push $\varepsilon$ of
# the tokens, by
#
# $$W \sum_j P_{ij} V \varepsilon_j + W \sum_j P_{ij} (v_j - o_i)\, \dot l_{ij}, \qquad
# \dot l_{ij} = \frac{(Q \varepsilon_i) \cdot k_j + q_i \cdot (K \varepsilon_j)}{\sqrt k} .$$
#
# The first sum is $P \otimes WV$ applied to $\varepsilon$, and the norm of a Kronecker product is the product of the
# norms.
#
# The part with $Q \varepsilon_i$ is $C_i \varepsilon_i$, block diagonal: its norm is the largest of the blocks.
#
# The part with $K \varepsilon_j$ has the blocks $P_{ij} W(v_j - o_i)(K^\top q_i)^\top / \sqrt k$ of rank one, whose
# norms are $S_{ij}$, and the norm of a matrix is at most that of the norms of its blocks ({prf:ref}`block-norms`).
# Equality: for two tokens $t$ and $-t$ on a line and $A = V = 1$ the blocks are $s, -s$ in the first row and $-s, s$ in
# the second, with the norm $2s$, which is that of their sizes.
#
# 3: Rows of $P$ add up to 1, so $P \mathbf 1 = \mathbf 1$ and $\norm P_2 \ge 1$. With $e_j$ the unit vector of the
# most popular token, $\norm P_2 \ge \mathbf 1^\top P e_j / \sqrt n = c / \sqrt n$. The square of the norm is that of
# $P P^\top$, at most its largest row sum, and row $i$ of $P P^\top$ has the sum $\sum_j P_{ij} c_j \le c$. A column of
# $P$ is no longer than $\norm P_2$.
#
# 4: Queries and values as before. The blocks of the key part are at most $\norm{WV}_2 P_{ij} \cdot 2 R \cdot \norm A_2
# R$, so it is at most $2 t \norm P_2$; by Cauchy-Schwarz, as the variance of tokens is at most $R^2$, row $i$ is also
# at most $t\, (\sum_j P_{ij} \abs{\varepsilon_j}^2)^{1/2}$, and the squares add up to at most $t^2 c$. $\square$
# :::
# ::::
#
# In the example the sum of the three terms is nearly reached ({glue:text}`why-reached:.1f` % at 512 tokens). For random
# heads of width 2, gradient ascent finds tokens whose constant is {glue:text}`why-ascended:.4f` of the sum, and none
# beyond it.


# %% tags=["hide-input"]
def constant(A, V, x):
    """Local constants of one head at tokens x (b, n, d), by automatic differentiation."""

    def f(x):
        return (x @ A.mT @ x.mT).softmax(-1) @ x @ V.mT

    return torch.linalg.matrix_norm(torch.vmap(torch.func.jacrev(f))(x).flatten(3).flatten(1, 2), 2)


def terms(A, V, x):
    """The sum of the three terms, in the letters of the proposition with Q = A, K = W = 1."""
    P, v = (x @ A.mT @ x.mT).softmax(-1), x @ V.mT
    o = P @ v
    F = torch.linalg.matrix_norm(P, 2) * torch.linalg.matrix_norm(V, 2)
    apart = v[:, None, :, :] - o[:, :, None, :]
    S = P * torch.linalg.vector_norm(apart, dim=-1) * torch.linalg.vector_norm(x @ A.mT, dim=-1)[..., None]
    C = torch.einsum("bij,bijv,bjd->bivd", P, apart, x) @ A
    return F + torch.linalg.matrix_norm(S, 2) + torch.linalg.matrix_norm(C, 2).amax(-1)


# %% tags=["hide-input"]
generator = torch.Generator().manual_seed(seed)
shares = {"random": [], "ascended": []}
for _ in range(8):
    A, V = torch.randn(2, 2, 2, generator=generator, dtype=torch.float64)
    x = torch.randn(32, 5, 2, generator=generator, dtype=torch.float64).requires_grad_()
    shares["random"].append((constant(A, V, x) / terms(A, V, x)).detach())
    adam = torch.optim.Adam([x], lr=0.05)
    for _ in range(60):
        adam.zero_grad()
        (-constant(A, V, x) / terms(A, V, x)).sum().backward()
        adam.step()
    shares["ascended"].append((constant(A, V, x) / terms(A, V, x)).detach())
shares = {name: torch.cat(found).numpy() for name, found in shares.items()}
for name, found in shares.items():
    print(
        f"{name} tokens, {found.size} inputs: constant over the sum {np.median(found):.2f}, at most {found.max():.4f}"
    )


# %% [markdown]
# ## Slopes next to slopes
#
# A layer has several heads, and the sum over all of them is far too large: {glue:text}`why-loose:.0f` times the
# constant in the median, up to {glue:text}`why-loose-to:.0f` tokens. So we compare growth, not size. We take the slope
# of
#
# $$\max_h F^{(h)} + \max_h \norm{S^{(h)}}_2$$
#
# over the {term}`windows <window>` of 8 to 512 tokens at which the constant was measured, and fit nothing. *Distinct
# weights* count MiniLM without its mask only, and ALBERT, whose depths share one attention, as one layer. *Octaves* go
# from each length to the next, less their mean in the layer: only the bends of a curve count there, not its level.

# %% tags=["hide-input"]
PREDICTORS = {
    "attention_norm": "norm of P",
    "both": "values and keys",
    "value": "values alone (largest F)",
    "key": "keys alone (largest norm of S)",
    "received": "√U, attention received",
    "neighbours": "neighbouring layers",
    "flat": "no growth; no bend",
}
once = rates[rates["map"] != "MiniLM, masked"]
once = once.assign(layer=once.layer.where(once["map"] != "ALBERT", 0)).groupby(["map", "layer"], sort=False)
weights = once[["slope", *PREDICTORS]].mean().reset_index()
bent = bends(own, along).assign(flat=0.0)
scores, by_weights = (compared(some, [*PREDICTORS], seed=seed).set_index("predictor") for some in (rates, weights))
by_octave = compared(bent, [*along, "flat"], seed=seed).set_index("predictor")
shown = scores[["rmse", "median", "largest"]].assign(weights=by_weights.rmse, octaves=by_octave.rmse)
shown["bends"] = [f"{one:.2f}" if np.isfinite(one) else "–" for one in by_octave.correlation.reindex(shown.index)]
names = {"predictor": "slope of", "rmse": f"RMS error, {len(rates)} layers", "median": "median error"}
names |= {"largest": "largest error", "weights": f"RMS error, {len(weights)} distinct weights"}
names |= {"octaves": f"RMS error, {len(bent)} octaves", "bends": "correlation, octaves within layers"}
shown = shown.reset_index().assign(predictor=[*PREDICTORS.values()])
figures.table(shown, names, digits=2, bold=shown.predictor == "values and keys")

# %% [markdown]
# The RMS error of values and keys, less that of the norm of $P$, is {glue:text}`why-less:.3f`
# [{glue:text}`why-less-low:.3f`, {glue:text}`why-less-high:.3f`] over the layers, and {glue:text}`why-octave-less:.3f`
# [{glue:text}`why-octave-less-low:.3f`, {glue:text}`why-octave-less-high:.3f`] over the octaves. The intervals resample
# the {glue:text}`why-models:.0f` models and are wide. The terms follow the bends within layers with a correlation of
# {glue:text}`why-octave:.2f` [{glue:text}`why-octave-low:.2f`, {glue:text}`why-octave-high:.2f`], the norm with
# {glue:text}`why-octave-P:.2f` [{glue:text}`why-octave-P-low:.2f`, {glue:text}`why-octave-P-high:.2f`].
#
# Three reservations. Most of the gain is in {glue:text}`why-gainers`; in {glue:text}`why-worse:.0f` of the
# {glue:text}`why-layers:.0f` layers the norm of $P$ is nearer. The terms lie too high, by {glue:text}`why-bias:.2f` in
# the mean, because $S$ ignores directions. And the mean slope of the neighbouring layers is not clearly worse: the RMS
# error of values and keys less theirs is {glue:text}`why-beside:.3f` [{glue:text}`why-beside-low:.3f`,
# {glue:text}`why-beside-high:.4f`].
#
# *The terms account for growth; they do not forecast it.* Their slope below 64 tokens foretells that of the constant from
# 64 tokens on with an RMS error of {glue:text}`why-forecast-both:.2f`, the constant's own slope with
# {glue:text}`why-forecast-own:.2f`.
#
# (held-out)=
# ## Two models that the form was not chosen on
#
# The form was chosen by looking: of some thirteen forms this one was the best on these layers. So we took two models
# that no page was written with, e5-small (12 layers) and minilm-l3 (3), on two texts from 8 to 128 tokens. Before
# measuring the constants we stored the slopes of the terms and wrote down what we expected: an error of values and keys
# below {glue:text}`why-at-most:.2f`, and within {glue:text}`why-as-rival:.2f` of that of the norm of $P$, either way. This
# was not blind: a first look at other windows of the same models had shown two errors of about the same size.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show all errors on these two models", "code_prompt_hide": "Hide the errors"}
unseen = layer_growth.stored("unseen-atlas-")
unseen = with_terms(unseen[unseen.case == "as read"], results.load("unseen-head-terms"))
fresh = layer_growth.rates(unseen, along=along[:4]).assign(mean=rates.slope.mean(), flat=0.0)
fresh["neighbours"] = neighbours(fresh)
predicted = pd.read_csv(files("lab.experiments") / "unseen-predictions.csv").rename(columns={"model": "map"})
both_ways = fresh.merge(predicted, on=["map", "corpus", "layer"], suffixes=("", "_before"), validate="one_to_one")
unseen_bent = bends(unseen, along[:4]).assign(flat=0.0)
HELD = [*along[:4], "neighbours", "mean", "flat"]
held, held_bends = (
    compared(some, columns, together=["map", "layer"], seed=seed).set_index("predictor")
    for some, columns in ((fresh, HELD), (unseen_bent, [*along[:4], "flat"]))
)
shown = held[["rmse", "median", "mean", "largest"]].assign(octaves=held_bends.rmse)
shown["bends"] = [f"{one:.2f}" if np.isfinite(one) else "–" for one in held_bends.correlation.reindex(shown.index)]
words = PREDICTORS | {"mean": f"mean slope of the {len(rates)} layers"}
shown = shown.reset_index().assign(predictor=[words[name] for name in HELD])
names = {"predictor": "slope of", "rmse": f"RMS error, {len(fresh)} layers on a text", "median": "median error"}
names |= {"mean": "mean error (signed)", "largest": "largest error"}
names |= {"octaves": f"RMS error, {len(unseen_bent)} octaves", "bends": "correlation, octaves within layers"}
figures.table(shown, names, digits=2, bold=shown.predictor == "values and keys")

# %% [markdown]
# Both expectations came true. The error of values and keys is {glue:text}`why-held:.3f`; less that of the norm of $P$
# it is {glue:text}`why-held-less:.3f` [{glue:text}`why-held-less-low:.3f`, {glue:text}`why-held-less-high:.3f`]. That
# interval resamples the {glue:text}`why-held-layers:.0f` layers, since two models are too few.
#
# - The *level* carries over: the error is near that on the layers above, and a third below that of their mean slope.
#   The largest error is {glue:text}`why-held-largest:.3f`; it was {glue:text}`why-largest:.3f`.
# - The *advantage over the norm of $P$* is not decided here. Over all eight models, resampled, the difference is
#   {glue:text}`why-eight-less:.3f` [{glue:text}`why-eight-less-low:.3f`, {glue:text}`why-eight-less-high:.3f`].
#
# :::{dropdown} Three smaller findings on these two models
# *Keys alone* were nearer than values alone on the layers above. Here they are the farthest of the terms, and values
# alone the nearest.
#
# *Bends.* These curves are nearly straight. The terms follow their octaves with a correlation of
# {glue:text}`why-held-bends:.2f` [{glue:text}`why-held-bends-low:.2f`, {glue:text}`why-held-bends-high:.2f`]; the norm of
# $P$ does not. By their errors, "no bend" is as good as the terms. We had not written this test down.
#
# *Within e5-small*, whose slopes differ little, the correlation over layers is {glue:text}`why-e5-alice:.2f` on Alice and
# {glue:text}`why-e5-ag_news:.2f` on AG News; for the norm of $P$ it is {glue:text}`why-e5-P-alice:.2f` and
# {glue:text}`why-e5-P-ag_news:.2f`, for values alone {glue:text}`why-e5-value-alice:.2f` and
# {glue:text}`why-e5-value-ag_news:.2f`.
# :::
#
# ## Changed attention, changed slopes
#
# Correlation over layers does not show a cause. So we change the attention of a layer at the inputs that it receives, and
# measure all slopes again on the same windows, of 16 to 256 tokens. *Softer* multiplies the queries by 1/2, *sharper* by
# 2. One change deletes the most attended token, and one gives every place the same learned position.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-43-changes", "caption": "Each mark is a layer of MiniLM, gpt2-mini or stories260K after one change of its attention: how much the slope of values and keys changed (across) and how much that of the constant did (up); the band allows a difference of {glue:text}`why-close:.2f`. Softer attention makes both flatter, sharper attention makes both steeper in nearly all layers, and values and keys follow the effect of deleting a token in most."}, "image": {"alt": "Scatter of the change of one slope against that of the other, one mark for each layer and change, in four colours, along the diagonal: softer attention at the lower left, sharper at the upper right."}}
stored = with_terms(results.load("interventions"), results.load("head-terms-changed"), also=["intervention"])
evidence = stored[stored.intervention != "uniform"]
by_norm = interventions.changes(evidence)
changed = interventions.changes(evidence.assign(attention_norm=evidence.both))
figures.interventions.changes(changed, close)
plt.show()


# %% tags=["hide-input"]
misses = changed[["intervention"]].assign(both=changed.gap, norm=by_norm.gap, none=changed.change)
misses = pd.concat([misses, misses.assign(intervention="all four")])
lines, columns = [], {"both": "values and keys", "norm": "norm of P", "none": "“no change”"}
for name, some in misses.groupby("intervention", sort=False):
    line = {"change": f"{name} ({len(some)} layers)"}
    line |= {column: (some[column] ** 2).mean() ** 0.5 for column in columns}
    lines.append(line | {f"{column} close": int((some[column].abs() <= close + 1e-12).sum()) for column in columns})
foretold = pd.DataFrame(lines)
inside = {
    name: (some.change.corr(some.norm_change), by_norm.loc[some.index].change.corr(by_norm.loc[some.index].norm_change))
    for name, some in changed.groupby("intervention", sort=False)
}
names = {"change": "change"} | {name: f"RMS error, {words}" for name, words in columns.items()}
names |= {f"{name} close": f"within {close}, {words}" for name, words in columns.items()}
figures.table(foretold, names, digits=2, bold=foretold.change.str.startswith("all"))

# %% [markdown]
# **Sharpness is a cause of the growth.** In {glue:text}`why-sharp-signs:.0f` of {glue:text}`why-sharp-layers:.0f` layers
# sharper attention makes the constant grow faster; in {glue:text}`why-soft-signs:.0f` softer attention makes it grow
# slower. The terms tell by how much better than the norm of $P$: the correlation of the changes is
# {glue:text}`why-changes:.2f` against {glue:text}`why-P-changes:.2f`, and it is larger within each of the four changes,
# too. Where a token is deleted, most slopes move little: "no change" is within {glue:text}`why-close:.2f` in
# {glue:text}`why-deleted-none:.0f` of {glue:text}`why-deleted:.0f` layers, values and keys in
# {glue:text}`why-deleted-both:.0f`.
#
# ## The null model: independent tokens
#
# What is the growth on text to be compared with? If tokens are drawn independently from one law, the constant tends to a
# number.
#
# {bdg-secondary}`ours` {ref}`what is this? <badges>`
#
# :::{prf:theorem} Independent tokens (ours)
# :label: independent-tokens
#
# Let $f$ be attention by dot products without a {term}`mask <mask (causal)>`, with any heads and biases, and
# $x_1, x_2, \dots$ drawn independently from a law $\mu$ with compact support. Write $A_h = K_h^\top Q_h / \sqrt k$,
# $M_h = W_h V_h$ and $g_h(x)$ for $A_h x$ plus the share of the query bias, so that a token at $x$ gives $y$ the logit
# $g_h(x) \cdot y$ up to a number that is the same for all $y$. Almost surely
#
# $$\norm{D_{(x_1, \dots, x_n)} f}_2 \to \max\Big( \norm{D F_\mu}_{L^2(\mu)},\
#   \max_{x \in \operatorname{supp} \mu} \norm{\textstyle\sum_h M_h \Sigma^h_\mu(x) A_h}_2 \Big) ,$$
#
# where $\Sigma^h_\mu(x)$ is the covariance that a token at $x$ sees in head $h$ among $\mu$, and $D F_\mu$ the Jacobian
# of the mean-field map, as an operator on perturbations in $L^2(\mu)$. No number of tokens enters.
# :::
#
# The same is true of any tokens whose empirical measures tend to $\mu$, if they lie in its support. For the constant to
# grow, new tokens must be unlike those before, or the law must change with the length: for instance by one token that an
# ever longer text attends to.
#
# ::::{dropdown} Proof
# :::{prf:proof}
# Everything on the way converges uniformly, so that a limit is left to compute.
#
# 1. The Jacobian is $D_n + K_n$: the blocks $D_n(x_i) = \sum_h M_h \Sigma^h_{\mu_n}(x_i) A_h$ on the diagonal, and
#    $\frac1n k_n(x_i, x_j)$ with $k_n(x, y) = \sum_h \frac{e^{g_h(x) \cdot y}}{Z^h_n(x)} M_h (I + (y - m^h_n(x))\,
#    g_h(x)^\top)$. Here $Z^h_n, m^h_n, \Sigma^h_n$ are averages over the first $n$ tokens.
# 2. They tend to those of $\mu$, almost surely and uniformly on the support, because the functions that are averaged
#    are uniformly Lipschitz. So $D_n \to D$ and $k_n \to k$ uniformly. As $\norm{K}_2$ of a matrix with blocks
#    $\frac1n k(x_i, x_j)$ is at most the largest $\norm{k}_2$, the norm of the Jacobian differs by a number that tends
#    to 0 from that of $T_n = D + K$ on $L^2(\mu_n)$, or, if tokens coincide, from the larger of that and their
#    $\norm{D(x_i)}_2$: pushes of equal tokens whose sum is 0 meet $D$ alone.
# 3. *Below.* For a continuous $u$ the quotient $\norm{T_n u} / \norm u$ in $L^2(\mu_n)$ tends to that in $L^2(\mu)$, by
#    the law of large numbers. And if one token moves, the part through $K$ is of
#    order $1 / \sqrt n$, so that $\norm{D(x_i)}_2$ is left; tokens come near every point of the support.
# 4. *Above.* Uniformly up to any $\delta$, $k$ is a finite sum of products of continuous functions of $x$ and of $y$
#    (Stone and Weierstrass); let it be one. Then $T_n^* T_n = D^\top D + F_n$, where the range of $F_n$ is spanned by
#    finitely many continuous functions that do not depend on $n$. Its eigenvalues $\lambda > \max \norm D_2^2$ are
#    the zeros of the determinant of a finite matrix, whose entries are averages over $\mu_n$ of continuous functions:
#    products of these with $(D^\top D - \lambda)^{-1}$. They converge, locally uniformly in $\lambda$, to those of
#    $\mu$; so do the zeros. $\square$
# :::
# ::::


# %% tags=["hide-input"]
alice = results.load("atlas-minilm").query("corpus == 'alice' and weights == 'pretrained'")
kinds = {
    "text": alice[alice.order == "text"],
    "shuffled": alice[alice.order == "shuffled"],
    "beside": results.load("independent-beside-special"),
}
looks = {"text": ("C0", "o", "text"), "shuffled": ("C4", "s", "shuffled"), "beside": ("C1", "^", "independent")}
layers = sorted(kinds["text"].layer.unique())

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-43-null", "caption": "Small marks: single texts and draws; large marks: geometric means. [CLS] and [SEP] are kept at every length; all other independent tokens are drawn with replacement from what the layer receives at {glue:text}`null-pool:,d` tokens of Alice. In layer 0 independent tokens are far above text; elsewhere they begin higher or alike, and text catches up with them."}, "image": {"alt": "Six log-log panels, one for each layer of MiniLM, of the local constant against the number of tokens for text in order, shuffled text and independent tokens, with their means, from 8 to 512 tokens. Text in order and shuffled lie together. Independent tokens begin higher or alike; in layer 0 they stay above, in the others text meets or passes them on the way."}}
axes = figures.panels(2, rows=3, width=3, height=2.6)
for ax, layer in zip(axes, layers, strict=True):
    for kind, (colour, marker, label) in looks.items():
        some = kinds[kind][kinds[kind].layer == layer]
        middle = np.exp(np.log(some.lipschitz).groupby(some.length).mean())
        ax.plot(some.length, some.lipschitz, marker, color=colour, ms=2.5, alpha=0.35)
        ax.plot(middle.index, middle, marker=marker, ms=4, color=colour, label=label)
    ax.set(xscale="log", yscale="log", xlabel="tokens n", ylabel=f"constant, layer {layer}")
    ax.set_xticks([10, 100, 1000], ["10", "100", "1,000"])
    ax.set_yticks([5, 10, 20, 40], ["5", "10", "20", "40"])
    ax.minorticks_off()
figures.named_at_the_end(axes[1], apart=11)
plt.show()


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the slopes with intervals, layer by layer", "code_prompt_hide": "Hide the slopes with intervals"}
def rows_of(kind, layer, low=32):
    """Rows of one layer from `low` to 512 tokens."""
    return kinds[kind][(kinds[kind].layer == layer) & kinds[kind].length.between(low, 512)]


slopes = pd.DataFrame({kind: [growth.slope(rows_of(kind, layer))[:2] for layer in layers] for kind in kinds})
slopes = slopes.assign(layer=layers)
for name, low in (("less", 32), ("late", 128)):
    slopes[name] = [growth.difference(rows_of("text", one, low), rows_of("beside", one, low)) for one in layers]


def signs(name):
    """Layers in which a difference of slopes is above 0, below 0, and neither, by its interval."""
    low, high = np.array([ends for _, ends in slopes[name]]).T
    return [slopes.layer[which].tolist() for which in (low > 0, high < 0, (low <= 0) & (high >= 0))]


columns = {"text": "text", "shuffled": "shuffled", "beside": "independent", "less": "text less independent"}
columns |= {"late": "the same, 128 to 512"}
told = slopes[[*columns]].map(lambda cell: f"{cell[0]:.2f} ({cell[1][0]:.2f} to {cell[1][1]:.2f})")
figures.table(told.assign(layer=slopes.layer), {"layer": "layer"} | columns)

# %% [markdown]
# **From 32 to 512 tokens, text grows more in {glue:text}`null-more:.0f` of {glue:text}`null-layers:.0f` layers of MiniLM**
# (95 % intervals, Student's, one layer at a time, over windows of text and {glue:text}`null-draws:.0f` draws at each
# length from one pool). From 128 tokens on it grows more in {glue:text}`null-late:.0f` and less in
# {glue:text}`null-late-fewer:.0f`. In all layers but the first, independent tokens have at least
# {glue:text}`null-share:.0f` % of the slope on text. So a part of the growth needs neither order nor a coherent text, only
# a larger sample. If the special tokens are drawn like all others, the limit of the theorem is the constant at the whole
# pool; the mean of the draws is {glue:text}`null-reached-least:.2f` to {glue:text}`null-reached-most:.2f` of it at 2,048
# tokens.
#
# ## Which token moves which
#
# The Jacobian is a matrix of blocks, one for each pair of tokens. Let $D_j f_i$ be the block that maps a push of token $j$
# to the change of output $i$, and $N_{ij} = \norm{D_j f_i}_2$.
#
# :::{prf:lemma} The matrix of block norms
# :label: block-norms
#
# For any differentiable map $f$ of sequences, with or without a mask (a standard inequality),
#
# $$\max_{i,j} N_{ij} \;\le\; \norm{D_X f}_2 \;\le\; \norm{N}_2 .$$
# :::
#
# :::{dropdown} Proof
# :::{prf:proof}
# A push of token $j$ alone moves output $i$ by at most what it moves all outputs: the left inequality.
#
# For a push $u = (u_1, \dots, u_n)$, output $i$ moves by at most $\sum_j N_{ij} \abs{u_j}$, which is entry $i$ of
# $N$ times the vector of the $\abs{u_j}$. That vector is as long as $u$, which gives the right inequality. $\square$
# :::
# :::
#
# Here is $N$ for one sentence, next to attention:

# %% tags=["hide-input"]
model, corpus = models.load("minilm"), corpora.available(*texts)

# %%
layer = 3
ids = model.tokenizer(sentence, return_tensors="pt")["input_ids"]
attention, x = model.attention(layer), model.activations(ids, layer)
norms = block_norms(attention, x)[0]
looks = attention.probabilities(x[0]).mean(0)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-43-maps", "caption": "One layer of MiniLM on a sentence. Above: the attention, averaged over heads, shows one token that all look at. Below: its column stands out among the norms of the blocks, too, which also show that each token moves itself, and which words move others."}, "image": {"alt": "Two square maps of the same tokens. In both the column of the first token is dark; in the map of block norms the diagonal and several other columns are visible too, which are pale in the attention."}}
words = model.tokenizer.convert_ids_to_tokens(ids[0])
figures.influence.maps(looks, norms, words)
plt.show()


# %% [markdown]
# The layer has the constant {glue:text}`why-here:.2f`; the blocks of the first token together give
# {glue:text}`why-column:.1f` of it. The norm of $N$ is {glue:text}`why-blocks:.1f`, too large because it ignores
# directions, as $S$ does.
#
# ## Beyond one layer, beyond training
#
# *Sub-layers*, with residual connection and {term}`layer normalisation`, are counted in {ref}`one table <all-counts>`
# with all others.
#
# *Whole networks.* The constant of a network is at most the product of those of its whole layers, with norms and MLP,
# but that grows far faster. From 8 to 128 tokens the network of MiniLM has the slope {glue:text}`why-net-minilm:.2f`
# [{glue:text}`why-net-minilm-low:.2f`, {glue:text}`why-net-minilm-high:.2f`] and the product
# {glue:text}`why-product-minilm:.2f`; gpt2-mini has {glue:text}`why-net-gpt2:.2f` [{glue:text}`why-net-gpt2-low:.2f`,
# {glue:text}`why-net-gpt2-high:.2f`] and {glue:text}`why-product-gpt2:.2f`.
#
# *A jump where training ended.* MiniLM was trained on texts of at most 128 tokens. Its first layer jumps there, from
# {glue:text}`why-before:.1f` at 120 tokens to {glue:text}`why-beyond:.1f` at 160 ({numref}`fig-43-jump`). For the
# same 64 tokens the constant is {glue:text}`why-same:.1f` at the first places and {glue:text}`why-moved:.1f` at places 100
# further on. If all places have one position, the constant jumps at no length that we tried.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-43-jump", "caption": "The first layer of MiniLM, unmasked: one dot for each stored window, and medians of the windows measured when this page runs. The constant more than doubles where its training texts ended, so no single {term}`exponent` describes lengths on both sides."}, "image": {"alt": "Constant of the first layer of MiniLM against the number of tokens up to 512, flat at first, with a sudden rise at a dashed line at 128 tokens and larger values beyond."}}
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


# %% tags=["hide-input"]
lip = local_lipschitz(attention, x)
loose = torch.linalg.matrix_norm(norms, 2).item()
dense = AttentionJacobian(attention.to(dtype=torch.float64), x[0].double()).dense()
of_first = torch.linalg.matrix_norm(dense[:, : x.shape[-1]], 2).item()
blocks = dense.view(len(words), x.shape[-1], len(words), x.shape[-1]).transpose(1, 2)
exact = torch.linalg.matrix_norm(blocks, 2)
whole_networks = results.load("whole-networks").assign(excess=lambda rows: rows["product"] / rows.lipschitz)
net = layer_growth.rates(whole_networks, along=("product",), key=["model"]).set_index("model")
halves = {}
for cut in (64, 128):
    low, high = (layer_growth.rates(some, along=along[:2]) for some in (own[own.length < cut], own[own.length >= cut]))
    halves[cut] = {one: ((low[one] - high.slope) ** 2).mean() ** 0.5 for one in ("slope", "both")}
    assert low[layer_growth.KEY].equals(high[layer_growth.KEY])
longest = own[own.length == own["map"].map(own.groupby("map").length.max())]
through = longest.groupby(["map", "layer"])[["by_value", "by_key"]].median()
nearer = (rates.attention_norm - rates.slope) ** 2 - (rates.both - rates.slope) ** 2  # above 0: the terms are
gains = nearer.groupby(rates["map"], sort=False).sum()
gainers = gains.nlargest(3).index
called = [{"MiniLM": "MiniLM without a mask"}.get(name, name) for name in gainers]
glue("why-gainers", f"{', '.join(called[:-1])} and {called[-1]}", display=False)
beside = compared(rates, ["neighbours", "both"], seed=seed).set_index("predictor").loc["both"]
eight = compared(pd.concat([rates, fresh]), along[:2], seed=seed).set_index("predictor").loc["both"]

# %% tags=["hide-input"]
best, past, last = scores.loc["both"], scores.loc["attention_norm"], example.iloc[-1]
said = {"layers": len(rates), "models": rates["map"].str.removesuffix(", masked").nunique(), "close": close}
said |= {"rmse": best.rmse, "P-rmse": past.rmse, "bias": best["mean"], "largest": best.largest}
said |= {"worse": (nearer < 0).sum(), "ascended": shares["ascended"].max(), "at-most": at_most, "as-rival": as_rival}
said |= {"reached": 100 * last.constant / (last.value + last.key + last["query"])}
said |= {"loose": (own.bound / own.lipschitz).median(), "loose-to": own.length[own.bound.notna()].max()}
for name, row in {"": best, "octave-": by_octave.loc["both"], "held-": held.loc["both"], "eight-": eight}.items():
    said |= {f"{name}less": row.less, f"{name}less-low": row.less_low, f"{name}less-high": row.less_high}
said |= {"beside": beside.less, "beside-low": beside.less_low, "beside-high": beside.less_high}
of_bends = {"octave": by_octave.loc["both"], "octave-P": by_octave.loc["attention_norm"]}
for name, row in (of_bends | {"held-bends": held_bends.loc["both"]}).items():
    said |= {name: row.correlation, f"{name}-low": row.low, f"{name}-high": row.high}
said |= {"forecast-own": halves[64]["slope"], "forecast-both": halves[64]["both"]}
said |= {"held": held.rmse["both"], "held-largest": held.largest["both"], "held-layers": len(fresh) / 2}
for corpus, some in fresh[fresh["map"] == "e5-small"].groupby("corpus"):
    for name, column in (("", "both"), ("P-", "attention_norm"), ("value-", "value")):
        said[f"e5-{name}{corpus}"] = some[column].corr(some.slope)

# %% tags=["hide-input"]
sharper, softer = (changed[changed.intervention == name] for name in ("sharper", "softer"))
said |= {
    "sharp-layers": len(sharper),
    "sharp-signs": (sharper.change > 0).sum(),
    "soft-signs": (softer.change < 0).sum(),
}
deleted = foretold[foretold.change.str.startswith("without")].iloc[0]
said |= {"deleted": (changed.intervention == "without the most attended").sum()}
said |= {"deleted-both": deleted["both close"], "deleted-none": deleted["none close"]}
said |= {"changes": changed.change.corr(changed.norm_change), "P-changes": by_norm.change.corr(by_norm.norm_change)}

# %% tags=["hide-input"]
said |= {"here": lip.value.item(), "column": of_first, "blocks": loose}
for name, key in (("minilm", "minilm"), ("gpt2", "gpt2-mini")):
    row = net.loc[key]
    said |= {f"net-{name}": row.slope, f"net-{name}-low": row.low, f"net-{name}-high": row.high}
    said |= {f"product-{name}": row["product"]}
said |= {"before": jump[120], "beyond": jump[160], "same": jump[64], "moved": later}
(more, fewer, same), (late_more, late_fewer, _) = signs("less"), signs("late")
drawn_all = results.load("independent-tokens")
limit = results.load("independent-limit").set_index("layer").lipschitz
reached = drawn_all[drawn_all.length == 2048].groupby("layer").lipschitz.mean() / limit
share = min(row.beside[0] / row.text[0] for row in slopes.itertuples() if row.layer > 0)
of_null = {"more": len(more), "layers": len(layers), "late": len(late_more), "late-fewer": len(late_fewer)}
of_null |= {"share": np.floor(100 * share), "reached-least": reached.min(), "reached-most": reached.max()}
of_null["draws"] = independent_tokens.DRAWS_BESIDE
for name, value in ({f"why-{n}": v for n, v in said.items()} | {f"null-{n}": v for n, v in of_null.items()}).items():
    glue(name, float(value), display=False)
glue("null-pool", math.prod(independent_tokens.POOL), display=False)

# %% tags=["hide-input", "nbval-check-output"]
assert all(found.max() <= 1 + 1e-9 for found in shares.values()) and shares["ascended"].max() > 0.9
assert 0.99 < said["reached"] / 100 <= 1
assert drawn == 2 * len(rates) and own.converged.all() and not (own.lipschitz > own.bound * (1 + 1e-2)).any()
assert (own.attention_norm <= own.column**0.5 * (1 + 1e-4)).all() and (own.attention_norm > 1 - 1e-3).all()
assert (own.squares <= own.attention_norm * (1 + 1e-3)).all() and (own.received <= own.column**0.5 * (1 + 1e-4)).all()
assert (own.attention_norm <= own.received * (1 + 1e-3)).all()
assert best.rmse < 0.75 * past.rmse and by_weights.rmse["both"] < 0.75 * by_weights.rmse["attention_norm"]
assert best["mean"] > 0 and best["median"] > 0.75 * past["median"]
assert by_octave.correlation["both"] > by_octave.correlation["attention_norm"]
assert beside.less_low < 0 and beside.less_high > -0.005 and scores.rmse["value"] > past.rmse > scores.rmse["key"]
assert 0.9 * gains.sum() < gains[gainers].sum(), "the gain is told by three models"
assert own.bound.isna().eq(own.length > said["loose-to"]).all() and not (own["query"] >= own.value + own.key).any()
assert all(table["both"] > table["slope"] for table in halves.values()), "no forecast"
assert (foretold.both < foretold[["norm", "none"]].min(axis=1)).all() and said["changes"] > said["P-changes"] + 0.1
assert all(ours > of_norm for ours, of_norm in inside.values())
assert by_norm[["intervention", "layer"]].equals(changed[["intervention", "layer"]])
print("✓ the sum of the three terms bounds the constant; the sentences on slopes hold for the stored tables")

# %% tags=["hide-input", "nbval-check-output"]
assert unseen.converged.all() and not (unseen.lipschitz > unseen.bound * (1 + 1e-2)).any()
assert len(both_ways) == len(fresh) == len(predicted) == 30, "as many as were predicted"
for name in ("both", "attention_norm"):
    assert (both_ways[name] - both_ways[f"{name}_before"]).abs().max() < 1e-4, "the slopes that were stored before"
assert held.rmse["both"] < at_most and abs(held.less["both"]) < as_rival, "both expectations came true"
assert held.less_low["both"] < 0 < held.less_high["both"], "the advantage is not decided"
terms_alone = held.rmse[["both", "value", "key"]]
assert terms_alone.idxmin() == "value" and terms_alone.idxmax() == "key" and held.rmse["both"] < 0.7 * held.rmse["mean"]
assert abs(held_bends.rmse["both"] - held_bends.rmse["flat"]) < 0.01
print("✓ two models that the form was not chosen on: both expectations came true, the advantage is not decided")

# %% tags=["hide-input", "nbval-check-output"]
assert norms.max() <= lip.upper.item() * (1 + 1e-6) and lip.value.item() <= loose * (1 + 1e-3)
assert (
    of_first <= lip.value.item() * (1 + 1e-6) and whole_networks.converged.all() and (whole_networks.excess > 1).all()
)
assert jump[160] > 2 * jump[120] and later > 2 * jump[64]
assert max(without_places.values()) < 1.5 * min(without_places.values())
middles = {kind: np.log(table.lipschitz).groupby([table.layer, table.length]).mean() for kind, table in kinds.items()}
assert (middles["beside"] > middles["text"])[0].all() and kinds["beside"].converged.all() and drawn_all.converged.all()
assert all(abs(row.text[0] - row.shuffled[0]) < 0.1 for row in slopes.itertuples()) and not fewer
assert (reached - 1).abs().max() < 0.12
assert independent_tokens.POOL[1] == 512, "the pool: windows of 512, with two special tokens each"
print(
    f"✓ text grows more in {len(more)} of {len(layers)} layers, 32 to 512; from 128 on in {len(late_more)}, "
    f"less in {len(late_fewer)}"
)

# %% tags=["hide-input"]
ledger.record(
    ledger.equal("castin.lem-c.2", "norms of its blocks, token by token", (norms.double() / exact - 1)[exact > 0],
                 within=2e-3, seen="reconstructed", effort="structured", variant=True,
                 grounds=f"one layer of {model.name} at a sentence of {len(words)} tokens, against the dense Jacobian in"
                         " float64"),
    ledger.depends("castin.sec-5.3-text", "independent tokens beside the special ones: slope below that of text (ours)",
                   f"32 to 512 tokens: yes in {len(more)} of {len(layers)} layers (not shown:"
                   f" {', '.join(map(str, same)) or 'none'}); 128 to 512: yes in {len(late_more)}, above it in"
                   f" {len(late_fewer)}; {independent_tokens.DRAWS_BESIDE} draws a length, one pool",
                   seen="ours", cases=len(layers), variant=True),
)  # fmt: skip

# %% [markdown]
# ## What this shows and does not show
#
# - For one head the three terms bound the constant, by proof. That the slope of a layer follows two of them is an
#   observation on {glue:text}`why-layers:.0f` layers, on which the form was chosen. On two further models its level holds
#   and its advantage is not decided.
# - The query term is not small at every input: where a token sees others far apart on both sides, as in
#   {doc}`51_dot_product_is_not_lipschitz`, it is nearly all of the constant.
# - The null model is one model, unmasked, and one pool. It leaves open how longer windows differ from larger samples. In
#   layer 0 independent tokens have larger constants than text at every length; we do not know why.
#
# **One thing to try.** In the example at the top, let the tokens give a tenth of their attention to $a$ instead of
# half: which of the two terms is then the larger one?
#
# **Next:** {doc}`46_released_code`.
