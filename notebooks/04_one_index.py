# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Does the fourth root hold?
#
# {cite:t}`castin2024smooth` report that on text the constant grows in all cases considered, at a rate close to
# $n^{1/4}$, for layers of BERT and GPT-2. **On average, yes; as a law, no; and the released code, as we read it,
# measures something else.** We measured six models, one of them with and without a mask, each on its first input. The
# mean {term}`exponent` of these seven is {glue:text}`../notebooks/41_real_text.ipynb::quarter-mean:.2f`; those of single
# layers lie far below and far above it. We begin with the code, because one index in it makes a good story.

# %% tags=["parameters", "remove-input"]
lengths = [4, 16, 64, 256]
d, seed = 4, 0  # width of the tokens
draws = 20  # random heads

# %% tags=["remove-input"]
import matplotlib.pyplot as plt
import pandas as pd
import torch
from myst_nb import glue
from transformers.utils import logging

from lab import figures, released, results
from lab.experiments import moving
from lab.statistics import closeness, growth, layer_growth
from lab.statistics.power_laws import power_law
from lipnb import Attention, local_lipschitz, models
from lipnb.worst_case import gaussian
from lipscan.models.files import minilm_folder

figures.house_style()
logging.disable_progress_bar()
normal = gaussian(torch.Generator().manual_seed(seed))

# %% [markdown]
# ## 1. Eight lines
#
# The authors released the code that drew their plots. It computes the constant by the power iteration of the last page:
# repeat $J^\top (J u)$, with $u$ scaled to length one. The length of the result tends to $\norm J_2^2$, so a square
# root ends it.
#
# The product $J u$, the *tangent*, says how the output moves under $u$. The function that computes it returns a pair,
# *output and tangent*. Here are eight lines of ours, with the choice between the two as a parameter.


# %%
def power_iteration(f, x, index):
    """Index 1: tangent J u. Index 0: f(x)."""
    transpose = torch.func.vjp(f, x)[1]
    u = normal(*x.shape)
    for _ in range(100):
        u = u / u.norm()
        pair = torch.func.jvp(f, (x,), (u,))
        u = transpose(pair[index])[0]
    return u.norm().sqrt().item()


# %% [markdown]
# Index 1 is the method. As we read the released code (commit 60da456; its authors have not confirmed it), it takes index
# 0. Each round then computes $J^\top f(X)$, whatever $u$ is, and the loop reports
#
# $$\begin{aligned} &\rho_X(f) = \sqrt{\norm{J^\top f(X)}_F} \\
#   &\text{instead of } \norm{J}_2 . \end{aligned}$$
#
# We call it the {term}`released quantity`, or *what the code reports*.
#
# ## 2. Uniform attention tells them apart
#
# Give every token the same weight, $A = 0$: then each output is $V$ times the mean. The constant stays level, and the
# reported quantity grows like $n^{1/4}$, as long as the mean token keeps its length.

# %% tags=["hide-input"]
A, V = torch.zeros(d, d).double(), normal(d, d)  # A = 0: uniform attention
uniform = Attention.from_matrices(A, V)
around = normal(4, d)  # four tokens, repeated
inputs = [around.repeat(n // 4, 1) for n in lengths]
table = pd.DataFrame({"n": lengths})
table["defined"] = [power_iteration(uniform, x, index=1) for x in inputs]
table["released"] = [power_iteration(uniform, x, index=0) for x in inputs]

# %% tags=["hide-cell"] mystnb={"figure": {"name": "fig-04-uniform", "caption": "{term}`Uniform attention`: both quantities on the same inputs, log-log. The constant is $\\norm V_2$ at every length. What the code reports rises exactly like $n^{1/4}$."}, "image": {"alt": "Two lines against the number of tokens on logarithmic axes: the constant is level, what the code reports rises along a straight line."}}
ax = plt.subplots(figsize=(6.0, 3.4))[1]
looks = {"defined": ("constant", "C0", "o"), "released": ("reported", "C1", "s")}
for name, (words, colour, marker) in looks.items():
    ax.plot(table.n, table[name], color=colour, marker=marker)
    at = (table.n.iloc[-1], table[name].iloc[-1])
    ax.annotate(words, at, (8, 0), textcoords="offset points", color=colour, va="center")
ax.set(
    xscale="log",
    yscale="log",
    xlabel="tokens n",
    ylabel="both quantities",
    xlim=(3.5, 1100),
    ylim=(0.75 * table.min().min(), None),
)
ax.set_xticks(lengths, lengths)
ticks = [one for one in (0.5, 1, 2, 3, 5, 8, 12, 20) if table.released.min() / 1.5 < one < 1.5 * table.released.max()]
ax.set_yticks(ticks, ticks)
ax.minorticks_off()
plt.show()

# %% [markdown]
# {bdg-secondary}`ours` {ref}`what is this? <badges>`
#
# :::{prf:proposition} Both quantities of uniform attention
# :label: spine-uniform
# :nonumber:
#
# Let $f$ be one head with $A = 0$, without a {term}`mask`, and let $m = \frac1n \sum_j x_j$. Then
#
# $$\begin{aligned} \norm{D_X f}_2 &= \norm V_2 , \\ \rho_X(f) &= n^{1/4}\, \abs{V^\top V m}^{1/2} . \end{aligned}$$
# :::
#
# :::::{dropdown} Proof for the constant
# *The constant.* All weights are $\frac1n$, so every output is $V m$. A push of length 1 moves the mean by at most
# $1/\sqrt n$, when all tokens move alike. Then $n$ outputs move by $V$ times that, which is $\sqrt n$ times as much in
# all. The two factors $\sqrt n$ cancel, and $\norm V_2$ is left.
# :::::
#
# *What the code reports.* Each of the $n$ blocks of $J^\top f(X)$ is $V^\top V m$. Their Frobenius norm is
# $\sqrt n\, \abs{V^\top V m}$, and the final square root turns $\sqrt n$ into $n^{1/4}$.
#
# :::::{dropdown} Not a bound, and how fast it can grow
# The reported number is $0$ for $m = 0$ and grows with $V^\top V m$ without limit, while the constant does not depend on
# $m$. For *any* layer with a constant of at most
# $L$ and outputs of norm at most $M$, it grows at most like $n^{1/4}$:
#
# $$\rho_X(f)^2 \le \norm J_2\, \norm{f(X)}_F \le L\, \sqrt n\, M .$$
#
# If the constant grows like $n^a$, the same line allows $n^{1/4 + a/2}$ in the end. For random heads the reported
# exponent is above $\frac14$ by its interval from a {term}`logit range` of {glue:text}`four-sharp` on. (The logit range is $t$, the largest possible score.)
# :::::
#
# So the reported number is neither an upper nor a lower {term}`bound` on the constant. {numref}`fig-04-movable` has
# both for random heads: as attention gets sharper, both get steeper.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-04-movable", "caption": "From uniform attention (logit range 0) to sharp attention. Left: both quantities for {glue:text}`four-draws` draws of a head and its tokens, with $\\norm V_2 = 1$ and a mean of length 1. Right: the exponents fitted to all draws, with 95 % intervals, the chosen one outlined; dotted, $\\frac14$."}, "image": {"alt": "On the left both quantities against the number of tokens; on the right their exponents with intervals, as attention goes from uniform to sharp; dotted, one quarter."}}
sharp = moving.from_uniform_to_sharp([4, 8, 16, 32, 64], [0, 4, 8, 16, 32, 64], draws=draws)
figures.movable.released(sharp)

# %% [markdown]
# ## 3. Trained layers
#
# So one index can make $n^{1/4}$ out of nothing. Did it do so in trained layers? We measured both quantities on the same
# {term}`windows <window>` of at most 512 tokens, in {glue:text}`four-layers` trained layers and in the twelve layers of a
# random GPT-2, which the paper uses. In {numref}`fig-04-honest` each layer is one mark.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-04-honest", "caption": "One mark for each layer, attention alone. Inside a grey band an exponent is within 0.1 of $\\frac14$; on the thin line both exponents agree. Past its first layer, MiniLM's constant grows about like $n^{1/4}$, its released quantity faster. The constant of the random GPT-2 hardly grows. The other layers are spread out."}, "image": {"alt": "Scattered marks, exponent of the constant to the right and of the released quantity upwards, with an upright and a level grey band around one quarter. Most orange marks lie in the upright band and above its crossing; black ones in the level band far to the left; blue ones all over."}}
stored = layer_growth.stored()
stored = stored[stored.corpus == stored.groupby("map").corpus.transform("first")]  # the first text, or picture
stored = layer_growth.main_range(stored)  # to 512 tokens, MiniLM to the 128 of its training
trained = layer_growth.rates(stored[stored.case == "as read"], along=("released",))
drawn = layer_growth.rates(stored[stored["map"] == "random GPT-2"], along=("released",))
minilm = trained["map"].str.startswith("MiniLM")
ax = plt.subplots(figsize=(5.6, 4.6))[1]
band = 0.25 - layer_growth.CLOSE, 0.25 + layer_growth.CLOSE
ax.axvspan(*band, color="0.9", zorder=0)
ax.axhspan(*band, color="0.8", alpha=0.5, zorder=0)
ax.axline((0, 0), slope=1, color="0.6", lw=0.8, zorder=0)
kinds = {"other trained layers": (trained[~minilm], "C0", "o"), "random GPT-2": (drawn, "black", "s"),
         "MiniLM": (trained[minilm], "C1", "D")}  # fmt: skip
for name, (rows, colour, marker) in kinds.items():
    ax.plot(rows.slope, rows.released, marker, color=colour, ms=5, alpha=0.75, ls="", label=name)
ax.set(xlabel="exponent of the constant", ylabel="exponent of the released quantity", xlim=(0, 0.62), ylim=(0.05, 0.6))
ax.legend(loc="lower right", fontsize=9)
plt.show()

# %% tags=["remove-input"]
counts = closeness.counted(stored[stored.case == "as read"])
maps = trained.groupby("map").slope.mean()
sub = layer_growth.named(results.load("sublayer-texts"))  # attention with residual connection and norm, as in BERT
sub = sub[(sub.corpus == sub.groupby("map").corpus.transform("first")) & (sub.length <= 128)]
sub_counts = closeness.counted(sub)

# %% [markdown]
# - **On average, yes.** We took MiniLM without and with a {term}`mask`, and five other models. Their mean exponents run
#   from {glue:text}`four-flattest:.2f` to {glue:text}`four-steepest:.2f`, with $\frac14$ in the middle. If all layers
#   must share one exponent, $\frac14$ is a good choice: layers are {glue:text}`four-error-quarter:.2f` away from it on
#   average, but {glue:text}`four-error-none:.2f` from $0$ and {glue:text}`four-error-half:.2f` from $\frac12$.
#   (Here each layer counts once; in the mean above, each model does.)
# - **As a law, no.** The 95 % intervals of {glue:text}`four-inside` layers lie wholly within 0.1 of $\frac14$. Those of
#   {glue:text}`four-outside` layers lie wholly outside. The other {glue:text}`four-undecided` layers are undecided. (An
#   interval can lie within 0.1 of $\frac14$ and still exclude $\frac14$.)
# - **The released code, as we read it, measures something else.** In the median layer of the random GPT-2 the constant has the exponent
#   {glue:text}`four-random:.2f`, and the released quantity {glue:text}`four-random-released:.2f`
#   ({glue:text}`../notebooks/46_released_code.ipynb::released-reported:.2f` with the token types that the script adds).
#   There the index makes the rate. In trained layers, each exponent is by its estimate within 0.1 of $\frac14$ in about
#   half of the layers. Both are in {glue:text}`four-both` layers, as many as chance would give. So the reported rate
#   neither shows nor refutes the claim.
#
# **And BERT?** There the code measures attention with its residual connection and {term}`layer normalisation`. We
# measured this larger map in {glue:text}`four-sub-layers` layers built like BERT's: those of MiniLM, with and
# without a mask, and those of an ALBERT, which share one set of weights ({glue:text}`four-sub-weights` different weights
# in all). We went up to {glue:text}`four-sub-longest` tokens. The constant is near $\frac14$ in
# {glue:text}`four-sub-near` of them, and the released quantity in {glue:text}`four-sub-released`. So for such layers the
# published rate may well be right, although the code measured another quantity. We had no access to a
# model hub, and so no weights of BERT; `make results MODEL=bert-base-uncased` measures them. {doc}`41_real_text` has all
# counts, and {doc}`46_released_code` what else in the code differs from the paper.
#
# :::{admonition} What to say instead
# :class: tip
# "In this layer, on this text, from 8 to 128 tokens, the constant has the fitted exponent $s$, with its 95 % interval
# over windows; the curve is (or is not) straight on log-log axes. Layers of one model differ, and training and the
# layer decide more than the text."
# :::
#
# ## A layer of your own
#
# The two folded cells need PyTorch and transformers and nothing of ours; the first three lines are yours. They take any
# text encoder or decoder that transformers loads, and any module of it whose first input and first output are the
# tokens. For layer 3 of MiniLM, without its output projection, three starts give:

# %% tags=["hide-input"]
folder = minilm_folder()  # yours: a folder, or a name on the hub
name = "encoder.layer.3.attention.self"  # yours: a module that print(model) lists
text = "Alice was beginning to get very tired of sitting by her sister on the bank, and of having"

import torch
from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
model.config.use_cache = False
module, calls = model.get_submodule(name), []
hook = module.register_forward_pre_hook(lambda *call: calls.append(call[1:]), with_kwargs=True)
model(**tokenizer(text, return_tensors="pt", truncation=True, max_length=64))
hook.remove()

# %% tags=["hide-input"]
args, others = calls[0]
x = (args[0] if args else others.pop("hidden_states")).detach()
f, found = lambda x: module(x, *args[1:], **others)[0], []
for _ in range(3):
    u = torch.randn_like(x)
    for _ in range(100):
        tangent = torch.func.jvp(f, (x,), (u / u.norm(),))[1]  # [1]: J u, and not the output
        u = torch.func.vjp(f, x)[1](tangent)[0]
    found.append(round(tangent.norm().item(), 3))
print(found)

# %% [markdown]
# `lipnb scan FOLDER --text my.txt --lengths 8,32,128` measures every layer, with certificates, bounds and random weights
# to compare with ({doc}`05_scan_your_model` reads its report; {doc}`../book/read_and_run` installs it).
#
# :::{dropdown} Four rules for a measurement
# 1. Take the *tangent*, not the output.
# 2. Start several times; keep the largest.
# 3. Measure several windows at each length, none longer than the model's training texts. Give the interval.
# 4. Claim nothing about the worst input: that needs a search and a bound ({doc}`66_worst_inputs`).
# :::
#
# **One thing to try.** Section 2 has two folded cells. In the first set `A = -torch.eye(d).double()`; the second draws
# both lines. Attention is no longer uniform, yet neither line changes its slope. Why? Look at how `inputs` makes the tokens.
#
# :::{dropdown} The answer
# The same four tokens are repeated, so each output is what four tokens alone would give, at every length: the constant
# stays, and the $n$ equal groups of blocks make $n^{1/4}$ again. New random tokens at each length keep neither: with
# them the weights change, and the mean shrinks.
# :::
#
# ## Nine questions
#
# :::::{dropdown} All nine, each with its answer
# :::{dropdown} 1. What is the local Lipschitz constant, and why does a random push not show it?
# The largest factor by which a small push is amplified: the top singular value of the Jacobian. A random push is nearly
# orthogonal to any one direction among very many.
# :::
#
# :::{dropdown} 2. Explain the square root of n with two clusters.
# One token stands alone, $n - 1$ others attend to it. Move it by 1, and $n - 1$ outputs move by about 1 each:
# $\sqrt{n - 1}$ in the Frobenius norm.
# :::
#
# :::{dropdown} 3. Which three effects does the proof of Theorem 3.3 add up, and which one carries no square root of n?
# What is attended to moves (value); a token that moves is chosen more or less, by everyone (key); a token that moves
# chooses differently (query). The query term changes one output only, so it has no $\sqrt n$.
# :::
#
# :::{dropdown} 4. Why must the square root end, and where?
# No token has more than $e^{2t}$ times the vote of another, so no column of $P$ sums to more than $e^{2t}$: a large
# enough crowd outvotes the one. At two clusters with $A = -I$ the votes are even at $1 + e^{2R^2}$ tokens; in general $\sqrt n$
# can last up to about $e^{2 \gamma^* R^2}$.
# :::
#
# :::{dropdown} 5. What do you need to bound a layer on a ball?
# The number of tokens, the longest one; of each head $\norm A_2$, $\norm V_2$, $\norm W_2$ of its part of the output
# projection, and what a query bias adds to $t$. Theorem 3.3 for each head, times $\norm W_2$, and the sum over heads. A
# bound on all heads together is smaller.
# :::
#
# :::{dropdown} 6. What does the certificate of a measured constant promise?
# That at this input, for this attention map, the constant lies between two numbers, the upper one with a probability over
# the solver's random start. It promises nothing about other texts, large pushes, the worst input or the whole block.
# :::
#
# :::{dropdown} 7. What do the two quantities give for uniform attention, and why?
# The map is $V$ times the mean, and its constant is $\norm V_2$ at every length. The released quantity is the root of the
# Frobenius norm of $n$ equal blocks: $\sqrt{\sqrt n} = n^{1/4}$ times a number.
# :::
#
# :::{dropdown} 8. Does the constant of trained layers grow like the fourth root of n?
# On average, yes; as a law, no: on the first input of each map, single layers have exponents from
# {glue:text}`../notebooks/41_real_text.ipynb::quarter-least:.2f` to
# {glue:text}`../notebooks/41_real_text.ipynb::quarter-most:.2f`. The released
# code, as we read it, measures something else.
# :::
#
# :::{dropdown} 9. How do you measure a layer of your own?
# Record what its attention receives on your text; iterate $J^\top J$ from several starts, by the tangent; several
# windows at each length within that of training; report a slope with its interval. Or `lipnb scan`.
# :::
# :::::

# %% tags=["remove-input"]
random = drawn[["slope", "released"]].median()
fits = {t: power_law(r.n, r.released, clusters=(r.draw, r.n)) for t, r in sharp.groupby("logit_range")}
steep = {t: power_law(r.n, r.defined, clusters=(r.draw, r.n)) for t, r in sharp.groupby("logit_range")}
near_both = closeness.near(trained.slope), closeness.near(trained.released)
said = {name: counts[name] for name in ("layers", "inside", "outside", "undecided")} | {"draws": draws}
said |= {"sharp": int(min(t for t, law in fits.items() if law.low > 0.25 + 1e-9))}
said |= {f"sub-{name}": sub_counts[name] for name in ("layers", "weights", "near", "released")}
said |= {"sub-longest": sub.length.max(), "both": (near_both[0] & near_both[1]).sum()}
for key, value in said.items():
    glue(f"four-{key}", int(value), display=False)
slopes = {"random": random.slope, "random-released": random.released, "flattest": maps.min(), "steepest": maps.max()}
slopes |= {name.replace("_", "-"): counts[name] for name in closeness.EXPONENTS}
for key, value in slopes.items():
    glue(f"four-{key}", float(value), display=False)

# %% tags=["remove-input"]
for tokens, row in zip(inputs, table.itertuples(), strict=True):
    if A.any():  # no longer uniform attention
        break
    exact = row.n**0.25 * (V.T @ V @ tokens.mean(0)).norm().sqrt().item()
    assert abs(row.defined / torch.linalg.matrix_norm(V, 2).item() - 1) < 1e-6
    assert abs(row.released / exact - 1) < 1e-9
    assert abs(local_lipschitz(uniform, tokens).value.item() / row.defined - 1) < 1e-4
    assert abs(released.reported(uniform, tokens).item() / row.released - 1) < 1e-9
centred = [released.reported(uniform, size * around - shift).item() for size, shift in ((1, around.mean(0)), (9, 0))]
assert A.any() or centred[0] < 1e-6 and centred[1] > 1.5 * torch.linalg.matrix_norm(V, 2), "it bounds the constant"
opposite = Attention.from_matrices(-torch.eye(d).double(), V)
answer = [(power_iteration(opposite, x, 1), power_iteration(opposite, x, 0) / len(x) ** 0.25) for x in inputs]
assert all(abs(a / b - 1) < 1e-6 for one in answer for a, b in zip(one, answer[0], strict=True)), "the answer"

# %% tags=["remove-input", "nbval-check-output"]
assert layer_growth.CLOSE == 0.1, "the text and the caption say within 0.1"
assert abs(maps.mean() - 0.25) < 0.02 and len(maps) == 7, "on average, yes"
assert counts["error_quarter"] < 0.6 * min(counts["error_none"], counts["error_half"])
assert min(counts[name] for name in ("inside", "outside", "undecided")) > counts["layers"] / 5, "no law"
assert abs(random.released - 0.25) < 0.05 and drawn.slope.max() < growth.FLAT, "the index makes the rate"
by_chance = near_both[0].sum() * near_both[1].sum() / len(trained)
assert abs(said["both"] - by_chance) < 3 and all(0.4 < one.mean() < 0.6 for one in near_both), "about half, by chance"
assert min(sub_counts["near"], sub_counts["released"]) > 0.75 * sub_counts["layers"], "may well be right"
of_minilm = minilm & (trained.layer > 0)
assert closeness.near(trained[of_minilm].slope).all() and (trained[of_minilm].released > trained[of_minilm].slope).all()
assert all(law.low > 0.25 for t, law in fits.items() if t >= said["sharp"])
assert steep[64].low > 0.25 and abs(steep[0].exponent) < 1e-9 and abs(fits[0].exponent - 0.25) < 1e-9
own = models.load("minilm").attention(3).replace(output=None, output_bias=None)
assert abs(local_lipschitz(own, x[0]).value.item() / tangent.norm().item() - 1) < 1e-3, "the lines of Monday"
print("✓ checked: both formulas of uniform attention; the counts of layers; the lines against local_lipschitz")
