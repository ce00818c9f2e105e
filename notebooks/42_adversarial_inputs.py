# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Adversarial tokens: heads reach the square-root rate
#
# On text, constants grow slowly ({doc}`41_real_text`). The theorems say that some inputs are worse. This page builds
# them for every head of three models, MiniLM, GPT-2's attention and a layer of a random GPT-2, and measures the rate.
# The radius is what the layer's own normalisation allows. Then it asks how far these inputs are from the worst.
#
# :::{prf:observation} The claim {cite}`castin2024smooth`, section 5 and Figure 1, bottom row
# :label: adversarial-rate
#
# On tokens built against one head, the local Lipschitz constant of the attention layers of BERT (encoder, and masked as
# a decoder) and of a random GPT-2 grows like $\sqrt n$. Smaller radii make it grow more slowly. Gradient ascent on the
# local constant gives poor results.
# :::
#
# The tokens are the two clusters of {prf:ref}`tightness`: one token alone, $n - 1$ together, all on the line of an
# eigenvector $u$ of $A = K^\top Q / \sqrt k$ with a real eigenvalue $\lambda$. A real head makes this cheap.
#
# :::{prf:lemma} A head of low rank (ours)
# :label: low-rank-head
#
# 1. The eigenvalues of $A$ other than 0 are those of the $k \times k$ matrix $B = Q K^\top / \sqrt k$. If
#    $B w = \lambda w$ with $\lambda \ne 0$, then $u = K^\top w$ is an eigenvector of $A$.
# 2. At tokens on the line of $u$, the Jacobian of the head vanishes on all perturbations that are orthogonal to
#    $u$, $A^\top u$ and the rows of $V$.
# :::
#
# *Proof.* 1: $A K^\top w = K^\top B w = \lambda K^\top w$, and $u \ne 0$ because $Q u = \sqrt k\, \lambda w$.
# Conversely, $A u = \lambda u$ gives $B\, Q u = Q A u = \lambda\, Q u$. 2: the block is ({doc}`13_jacobian`)
#
# $$J_{ij} = V \big[P_{ij} (I + (x_j - m_i)(A x_i)^\top) + \delta_{ij} \Sigma_i A\big] .$$
#
# Here $A x_i$ is a multiple of $u$, and $\Sigma_i$ of $u u^\top$. $\square$
#
# So a head of GPT-2 is attacked in $k + 2$ dimensions in place of $d$, to rounding. Without a mask, two weighted
# tokens stand for any number ({prf:ref}`repeated-tokens`).
#
# :::{prf:theorem} The same tokens against a masked head (ours)
# :label: masked-clusters
#
# Put the lonely token first. With the $s$, $p$ of {prf:ref}`two-clusters`, masked attention has
#
# $$\norm{D_X f^m}_2 \ge \abs{V u} \sqrt{n - 1}\; p .$$
#
# As $R \to \infty$ the constant tends to $\norm V_2 \sqrt N$ with $N$ the number of tokens that attend to the lonely
# one: $N = n$ if there is a mask or $\lambda > 0$, else $N = n - 1$.
# :::
#
# *Proof.* Row $i$ is attention to the first $i$ tokens, so it pays $p_i = 1 / (1 + (i - 1) e^{-s}) \ge p$ to the
# first, and its block is $J_{i1} u = V u\, p_i\, (1 + s (1 - p_i))$. There are $n - 1$ such rows. In the limit each
# token attends to one token only ({doc}`24_large_radius`); the lonely one attends to itself if it may see no
# other, or if it is the longest, which it is for $\lambda > 0$. $\square$

# %% tags=["parameters"]
rows_to_check = 4  # of each model, measured again now
released_lengths = [7, 22, 47, 97]
ascent_steps = 15
seed = 0

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from myst_nb import glue

from lab import figures, ledger, released, results
from lab.experiments import adversarial
from lab.experiments.two_clusters import cluster_constants, cluster_input, fork_constant, head_of, in_subspace, matrices
from lab.power_laws import power_law
from lipnb import bounds, local_lipschitz, models
from lipnb.attention import Attention
from lipnb.worst_case import climb

figures.house_style()
panel_of = ["model", "masked", "at"]
keys = [*panel_of, "layer", "head"]  # one series
names = {"minilm": "MiniLM", "gpt2": "random GPT-2", adversarial.GPT2: "GPT-2"}

# %% [markdown]
# ## By hand: two tokens against one head of MiniLM
#
# The head in float64, its eigenpair by the lemma; the Jacobian of two tokens by autograd; and the same number from a
# few dimensions.

# %%
minilm = models.load("minilm", dtype=torch.float64)
head = head_of(minilm.attention(0), 3)
f = head.attention
A = f.scale * f.key[0].T @ f.query[0]
x = cluster_input(head, 2, 1.0)
J = torch.func.jacrev(f)(x).reshape(2 * 32, 2 * 384)
by_hand = torch.linalg.matrix_norm(J, 2).item()
reduced = cluster_constants(head, [2], 1.0).item()
off = ((A @ head.u - head.eigenvalue * head.u).norm() / abs(head.eigenvalue)).item()
print(f"eigenvalue {head.eigenvalue:.4f}, A u = lambda u to {off:.0e}")
print(f"dense {by_hand:.8f}, in {in_subspace(head)[0].width} dimensions {reduced:.8f}")

# %% [markdown]
# ## The stored measurements, and a few again now
#
# Two tables. `adversarial` has every head alone, as in the theorems: its own $V$, no biases; also with $V = I$.
# `adversarial-layers` has whole layers with all heads, output projection and biases, at the tokens built against one
# of the heads.

# %%
alone = results.load("adversarial")
alone["N"] = alone.length - ((alone.eigenvalue < 0) & ~alone.masked)
alone["s"] = 2 * alone.rate * alone.R**2
layers = results.load("adversarial-layers")
clusters = results.load("released-adversarial")
clusters = clusters[clusters.model == "gpt2, random"]
present = {"minilm", "gpt2", adversarial.GPT2}
try:
    models.gpt2_attention_folder()
except FileNotFoundError:
    present -= {adversarial.GPT2}
    print("GPT-2's attention weights are not available: its rows stay as stored")
again = []
short = alone[(alone.length < 98) & alone.model.isin(present)]
for _, rows in short[short["at"] != "text"].groupby("model"):
    for row in rows.sample(rows_to_check, random_state=seed).itertuples():
        panel = row.model, row.masked, row.at
        one = head_of(adversarial.layer_of(*panel, row.layer).attention, row.head)
        now = cluster_constants(one, [row.length], row.R).item()
        again.append([*panel, row.layer, row.head, row.length, row.constant, now])
row = layers[(layers.model == "minilm") & (layers.length == 97)].iloc[0]
whole = adversarial.layer_row(tuple(row[panel_of]), row.layer, row["head"], 97)
again = pd.DataFrame(again, columns=[*panel_of, "layer", "head", "n", "stored", "now"])
print(again.round(4).to_string(index=False))
print(f"a whole layer: {row.lipschitz:.4f}, now {whole['lipschitz']:.4f}")

# %% [markdown]
# ## The rate of each model's worst head
#
# The worst head of a model is here the one with the largest constant at $n = 97$ under these inputs, with its own value
# matrix. Its exponent is fitted three times: against $n$ over the lengths of the figure, $2, 7, \dots, 97$; against the
# number $N$ of tokens that attend to the lonely one, over the same lengths; and against $n$ from 97 up to $10^5$ (997
# with a mask). One input a length and no chance in it: the exponents have no error bars, only a range of $n$.
#
# The column *window* is $1 + e^{2 \gamma R^2}$, as a power of ten: the theorem promises growth up to there.


# %%
def exponents(rows):
    """Three fitted exponents of one head, and its ratios at n = 97."""
    drawn, far = rows[rows.length < 98], rows[rows.length >= 97]
    last = rows[rows.length == 97].iloc[0]
    facts = {"R": last.R, "window": f"1e{last.s / np.log(10):.0f}"}
    pairs = (drawn.length, drawn), (drawn.N, drawn), (far.length, far)
    for name, (n, at) in zip(("in n", "in N", "n > 96"), pairs, strict=True):
        facts[name] = power_law(n, at.constant).exponent
    facts["constant"], facts["/ Prop 3.4"] = last.constant, last.identity / last.lower
    facts["3.3 /"], facts["tighter /"] = last[["upper", "sharp"]] / last.constant
    return pd.Series(facts)


full = alone.groupby(keys).filter(lambda rows: len(rows) > 20)
each = full.groupby(keys, sort=False).apply(exponents, include_groups=False)
each = each.reset_index().astype(each.dtypes[["R"]].to_dict() | {"in N": float})
worst = each.loc[each.groupby(panel_of, sort=False)["constant"].idxmax()]
rates = worst.drop(columns=["constant", "/ Prop 3.4", "3.3 /", "tighter /"])
print(rates.replace(names).round(3).to_string(index=False))
ratios = worst.drop(columns=["layer", "R", "window", "in n", "in N", "n > 96"])
print("At n = 97: constant; with V = I, over Prop 3.4; upper bounds over constant")
print(ratios.replace(names).round(3).to_string(index=False))

# %% [markdown]
# Here the windows are longer than any text, and every token of the cluster attends to the lonely one only. Then the
# constant *is* $\norm V_2 \sqrt N$: among heads of such windows the worst of a layer is the one with the largest value
# matrix, whatever its $A$. (A head with a short window can be worse, as in MiniLM's first layer at the radius of text.)
# Where $N = n - 1$ the law is $\sqrt{n - 1}$. A line through it in log-log axes over
# $2, \dots, 97$ has a slope above one half, because at $n = 2$ the curve is still bending. Against $N$, or against $n$
# beyond 96, it is one half.
#
# ## Every head
#
# The exponent against $N$ over $n = 7, 22, 47, 97$, for all heads of all panels, and the bounds for all rows.

# %%
heads = []
for key, rows in alone[alone.length.isin((7, 22, 47, 97))].groupby(keys, sort=False):
    last = rows[rows.length == 97].iloc[0]
    fit = power_law(rows.N, rows.constant)
    saturated = last.constant / (last.V_norm * last.N**0.5)
    heads.append([*key, last.s, fit.exponent, last.constant, saturated])
columns = [*keys, "s", "exponent", "constant", "saturated"]
heads = pd.DataFrame(heads, columns=columns)
heads["half"] = (heads.exponent - 0.5).abs() < 0.02
summary = heads.groupby(panel_of, sort=False).agg(
    heads=("half", "size"),
    half=("half", "sum"),
    least=("exponent", "min"),
    most=("exponent", "max"),
    least_s=("s", "min"),
    median_s=("s", "median"),
)
print(summary.round(3).reset_index().replace(names).to_string(index=False))
outside = heads[~heads.half].sort_values("s")
columns = [*keys, "s", "exponent", "saturated"]
print(outside[columns].replace(names).round(3).head(8).to_string(index=False))

# %% [markdown]
# Heads with an exponent other than one half are those with a small $s = 2 \gamma R^2$: their window ends near or
# before $n = 97$, and inside it they first grow faster than $\sqrt n$ (the factor that {prf:ref}`two-clusters` keeps).
#
# ## Whole layers, and the released quantity
#
# The figure in the paper shows whole layers. There the other heads see the same tokens, with other matrices and with
# biases. For each layer: the tokens of the head that makes the layer roughest, fitted against $n$ over
# $2, \dots, 97$; the same for what the released code reports in place of the constant
# (`lab.released.reported`).

# %%
fitted = []
for key, rows in layers.groupby([*panel_of, "layer"], sort=False):
    rows = rows[rows["head"] == rows["head"].value_counts().idxmax()]
    last = rows[rows.length == 97].iloc[0]
    two = [power_law(rows.length, rows[c]).exponent for c in ("lipschitz", "released")]
    below = (rows.upper / rows.lipschitz).min()
    fitted.append([*key, last["head"], *two, last.lipschitz, last.released, below])
columns = [*panel_of, "layer", "head", "as defined", "released", "constant"]
fitted = pd.DataFrame(fitted, columns=[*columns, "reported", "upper / constant"])
print(fitted.drop(columns="at").replace(names).round(2).to_string(index=False))
steep, ends = fitted[(fitted.model == "minilm") & ~fitted.masked], (7, 97)
steep = steep.loc[steep["as defined"].idxmax()]
whole_layer, R = adversarial.layer_of(*steep[panel_of], steep.layer)
chosen = [adversarial.worst_input(whole_layer, steep["head"], n, R) for n in ends]
chosen = [local_lipschitz(whole_layer, x).value.item() for x in chosen]
largest = [adversarial.worst_of_layer(whole_layer, n, R) for n in ends]
slopes = [np.log(b / a) / np.log(ends[1] / ends[0]) for a, b in (chosen, largest)]
print(f"MiniLM, layer {steep.layer}, slope from {ends[0]} to {ends[1]} tokens:", end=" ")
print("{:.2f}, with all heads and both signs {:.2f}".format(*slopes))

# %% [markdown]
# These exponents differ from layer to layer, and say little: for each layer one head is selected at the longest length
# and followed down, and the sign of $u$ comes from a rule. Where other heads are worse at small $n$, the selected one
# starts low and its exponent is too large. The last line shows it for the steepest layer of MiniLM: the largest
# constant over all heads and both signs, at each of two lengths, has another slope.
#
# The released panel of the random GPT-2 has one thing more: its $A$ is cut from rows of the weight where heads are
# columns, so its $u$ belongs to no head. With seed 320 we can repeat it.

# %%
random = models.load("gpt2", random=True, seed=320, dtype=torch.float64)
layer = random.attention(6)
weight = random.network.h[6].attn.c_attn.weight
sliced = [weight[:64, i * 768 : (i + 1) * 768][None] for i in range(3)]
no_head = head_of(Attention(*sliced), 0)
repeated = []
for n in released_lengths:
    x = cluster_input(no_head, n, 100.0)
    y = adversarial.worst_input(layer, 0, n, 100.0)
    of_x = released.reported(layer, x).item(), local_lipschitz(layer, x).value.item()
    of_y = released.reported(layer, y).item(), local_lipschitz(layer, y).value.item()
    repeated.append([n, 0.92 * n**0.5, *of_x, *of_y])
columns = ["n", "curve drawn", "released", "constant", "head 0: released", "constant "]
repeated = pd.DataFrame(repeated, columns=columns)
print(repeated.round(2).to_string(index=False))
smaller, one = {}, head_of(layer, 0)
for R in (3.0, 10.0, 100.0):
    alike = [adversarial.worst_input(layer, 0, m, R) for m in (7, 97)]
    alike = [local_lipschitz(layer, x).value.item() for x in alike]
    both = alike, [cluster_constants(one, [m], R).item() for m in (7, 97)]
    smaller[R] = [np.log(b / a) / np.log(97 / 7) for a, b in both]
    print(f"radius {R:g}: slope of the layer {smaller[R][0]:.2f}, head {smaller[R][1]:.2f}")

# %%
figures.adversarial.worst_heads(alone, layers)
plt.show()

# %% [markdown]
# *One head of a layer under attack, the one with the largest constant at 97 tokens. Full blue dots: the head with its
# own value matrix. Hollow dots: with $V = I$. Squares: the whole layer, at the tokens of the head that is worst for it.
# Top and bottom left: the window ends beyond all lengths; full dots lie on the law $\norm V_2 \sqrt N$, hollow ones on
# the lower bound, or with a mask above it by $\sqrt{n / (n - 1)}$. Bottom right: at the mean radius of text this head
# has a short window. Inside it both grow faster than $\sqrt n$, and the full dots rise above the law; past it both
# fall, the full dots below the law.*

# %%
figures.adversarial.head_rates(alone)
plt.show()

# %% [markdown]
# *Left: the exponent of every head against $N$, from $n = 7$ to 97; white is near one half. Right: the constant at
# $n = 97$, the worst head of each layer in bold. Real heads of GPT-2 are all at one half: what tells them apart is the
# size of their value matrices.*
#
# ## How far from the worst are two clusters?
#
# The authors call their inputs a heuristic, and gradient ascent poor. There are worse inputs, in closed form, for a
# head with any matrix $A$: the *fork* of {prf:ref}`regimes-fork`, built on a singular pair $A v = \sigma k$ in place of
# an eigenvector (`lipnb.worst_case.fork_input`, with its bound). Two prongs $R(c k \pm s e)$, and $n - 2$ tokens at
# $R v$ that attend to both. For all heads of MiniLM, at the radius of text; for a few heads with the mask; and for the
# random GPT-2, beside gradient ascent from random tokens on the sphere.

# %%
on_text = alone[(alone.model == "minilm") & (alone["at"] == "text")]
radii, forks, n = on_text.groupby(["masked", "layer"]).R.first(), [], 98
few = [(True, layer, 0) for layer in range(minilm.layers)]
decoder = models.load("minilm", masked=True, dtype=torch.float64)
for is_masked, layer, h in [(False, *place) for place in np.ndindex(6, 12)] + few:
    R, model = radii[is_masked, layer], decoder if is_masked else minilm
    one = head_of(model.attention(layer), h)
    (A, V), two = matrices(one), cluster_constants(one, [n], R).item()
    bound = bounds.general_upper(A, V, n, R), bounds.general_upper_sharp(A, V, n, R)
    forks.append([is_masked, layer, h, *fork_constant(one, n, R), two, *bound])
columns = ["masked", "layer", "head", "fork", "stated", "clusters", "upper", "tighter"]
forks = pd.DataFrame(forks, columns=columns)
over = pd.DataFrame({name: forks.fork / forks[name] for name in columns[4:]})
print(f"fork over its own bound, two clusters, Thm 3.3 and its tighter form, n = {n}:")
print(over.groupby(forks.masked).agg(["min", "median", "max"]).T.round(3).to_string())
one, tokens = head_of(random.attention(6), 0), 4
f = Attention.from_matrices(*matrices(one), masked=True)
x = torch.randn(2, tokens, f.width, generator=torch.Generator().manual_seed(seed)).double()
x = climb(f, 100 * x / x.norm(dim=-1, keepdim=True), 100.0, steps=ascent_steps)[1]
tried = {"two clusters": cluster_constants(one, [tokens], 100.0).item()}
tried |= {"ascent": x.max().item(), "fork": fork_constant(one, tokens, 100.0)[0]}
tried = {name: round(value, 1) for name, value in tried.items()}
print(f"random GPT-2, head 0, {tokens} tokens at radius 100: {tried}")

# %% [markdown]
# Forks are tens of times worse than two clusters on every head that was compared, on some hundreds of times. Ascent
# from a few random tokens finds more than two clusters and much less than a fork: it is poor, and the heuristic is
# poorer. Smaller radii do make this head of the random GPT-2 and its layer grow more slowly: the window ends before the
# longest inputs.

# %% tags=["nbval-check-output"]
assert off < 1e-10 and abs(by_hand / reduced - 1) < 1e-9
assert (again.stored / again.now - 1).abs().max() < 1e-3
assert abs(row.lipschitz / whole["lipschitz"] - 1) < 1e-3 and layers.converged.all()
assert abs(row.released / whole["released"] - 1) < 1e-3
# each model's worst head, and all heads of GPT-2, real and random: one half
best = worst[worst["at"] != "text"]
assert (best["in N"] - 0.5).abs().max() < 0.02 and len(best) == 5
assert (best["n > 96"] - 0.5).abs().max() < 0.02
assert heads[heads.model != "minilm"].half.all()
assert heads[heads["at"] == "layer norm"].half.all() and outside.s.max() < 10
assert (heads[heads.s > 60].saturated - 1).abs().max() < 1e-3
# the bounds, in all rows
low, high = alone.identity / alone.lower, alone.constant / alone.upper
tighter, on_layers = alone.constant / alone.sharp, layers.lipschitz / layers.upper
assert low.min() > 1 - 1e-6 and max(high.max(), tighter.max(), on_layers.max()) < 1
seen = repeated[["released", "constant"]].to_numpy()
table = [[2.66, 2.84], [4.37, 2.87], [6.35, 4.16], [9.07, 6.92]]
assert np.abs(seen / table - 1).max() < 0.01
assert (over.stated >= 1 - 1e-6).all() and over.upper.max() < 1
assert over.clusters.min() > 20 and over.tighter.median() > 0.6
assert 0.1 < over.upper.median() < 0.25
assert tried["two clusters"] < tried["ascent"] < tried["fork"] / 2
assert slopes[1] < slopes[0] - 0.1
print(f"{len(alone)} rows of heads, {len(layers)} of layers, inside both bounds")
print("worst heads: exponent one half within 0.02; released panel repeated")

# %%
masked, unmasked = alone[alone.masked], alone[~alone.masked]
where, hidden = (
    {"grounds": f"{part.groupby(keys).ngroups} heads, n to {part.length.max()}", "seen": "ours",
     "effort": "structured"} for part in (unmasked, masked)
)  # fmt: skip
at_heads, text = "at the heads of trained and random layers", "text of the paper"
columns, sliced = (clusters[clusters.cut == cut] for cut in ("columns", "rows"))
half, flat = (power_law(rows.length, rows.lipschitz) for rows in (columns, sliced))
print(f"random GPT-2, tokens of its true head 0, as defined: {half}")
print(f"tokens from rows, as released, as defined: {flat}")
six, as_released = (
    {"effort": "structured", "grounds": f"{len(rows)} lengths to {rows.length.max()}; {law}"}
    for rows, law in ((columns, half), (sliced, flat))
)
as_released["counter_example"] = f"tokens from rows, n to {sliced.length.max()}: {flat}"
worst_of = {name: {"grounds": f"forks, {len(rows)} heads of MiniLM", "effort": "structured",
                   "seen": "reconstructed", "variant": True}
            for name, rows in forks.groupby("masked")}  # fmt: skip
p34, on, off = "castin.prop-3.4", over[~forks.masked], over[forks.masked]

# %%
longest = alone[alone.length == 97]
excess = (longest.upper / longest.constant).groupby(longest.model).agg(["min", "max"])
print("at n = 97, Thm 3.3 over the constant of a head:")
print(excess.round().to_string())
numbers = {"over_minilm": excess.loc["minilm"], "over_gpt2": excess.loc[adversarial.GPT2]}
numbers = {f"{name}_{end}": pair[at] for name, pair in numbers.items() for end, at in (("low", "min"), ("high", "max"))}
numbers |= {"rows_exponent": flat.exponent, "rows_low": flat.low, "rows_high": flat.high}
for name, number in numbers.items():
    glue(name, float(number), display=False)

# %%
ledger.record(
    ledger.lower(p34, at_heads, unmasked.identity / unmasked.lower, **where),
    ledger.lower(p34, f"masked, {at_heads}", masked.identity / masked.lower, **hidden),
    ledger.upper("castin.thm-3.3", "at the worst inputs known of heads", on.upper, **worst_of[False]),
    ledger.upper("castin.thm-4.3", "at the worst inputs known of heads", off.upper, **worst_of[True]),
    ledger.lower("castin.fig-1", "adversarial, panel 6: n^(1/2), random GPT-2, tokens as released, as defined",
                 flat.high / 0.5, seen="released code", **as_released),
    ledger.equal("castin.fig-1", "adversarial, panel 6: n^(1/2), random GPT-2, true head",
                 half.exponent / 0.5 - 1, within=0.15, seen="ours", **six),
    ledger.unchecked("castin.fig-1", "adversarial, panels 4 and 5: n^(1/2), BERT",
                     "its weights are not available", seen="released code"),
    ledger.depends("castin.sec-5.2-ascent", "ascent of one head of the random GPT-2",
                   f"poor beside a fork, better than the two clusters: {tried}", seen=text),
    ledger.upper("castin.sec-5.2-radius", "random GPT-2 at radii 3 and 10: slower than sqrt(n)",
                 np.ravel([smaller[3.0], smaller[10.0]]) / 0.5, seen=text, effort="structured",
                 grounds="slopes from 7 to 97 tokens, head 0 alone and its layer"),
)  # fmt: skip

# %% [markdown]
# ## What this shows and does not show
#
# - Each head of these layers has inputs on which its constant grows like $\sqrt n$, in balls that real normalisation
#   allows. The rate of the theorem is no artefact of special matrices.
# - At $n = 97$ the general bound is far above two clusters, for single heads: {glue:text}`over_minilm_low:.0f` to
#   {glue:text}`over_minilm_high:,.0f` times for MiniLM, {glue:text}`over_gpt2_low:.0f` to
#   {glue:text}`over_gpt2_high:,.0f` for GPT-2. That is mostly the inputs' fault. Forks reach about a fifth of the
#   bound, and more than half of its tighter form, on most heads: the constant of a head *on the ball* is as large as
#   the theorem says, to a small factor.
# - The released panel of the random GPT-2 is no evidence for $\sqrt n$: on its tokens, which belong to no head, the
#   constant as defined has the exponent {glue:text}`rows_exponent:.2f` (95 % interval {glue:text}`rows_low:.2f` to
#   {glue:text}`rows_high:.2f`). The rate is seen at the tokens of a true head.
# - It does not show that a text could come near. The tokens lie in the ball, not on the ellipsoid of the LayerNorm
#   ({doc}`14_normalisation`), and no earlier layer need be able to make them.
# - Against one head is not against the layer: the whole layer is rougher, and its exponents in the table are those of a
#   selection. Comparing all heads and both signs finds better attacks on whole layers; no rate of a whole layer is
#   claimed here.
# - The weights of BERT are not available to us: what its panels would show as defined stays open.
#
# **One thing to try.** Use an eigenvector of another real eigenvalue of the same head: `torch.linalg.eig` of
# $Q K^\top / \sqrt k$ lists them. The window shrinks, the law stays.
#
# **Next:** {doc}`43_scaling_factor`, the window of every head.
