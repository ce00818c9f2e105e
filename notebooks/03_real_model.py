# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Measured on a real model
#
# The theorem allows $\sqrt n$, and special inputs reach it. What does a trained layer do on text? Below are two layers
# of MiniLM, a small encoder without a {term}`mask`, on *Alice's Adventures in Wonderland*, and one of a GPT-2 with
# random weights, a model of the paper. Up to {glue:text}`three-longest` {term}`tokens <token>`, the
# length of MiniLM's training texts, the constant of its first layer, layer 0, hardly grows. That of layer 3 grows, more
# slowly than $\sqrt n$.

# %% tags=["parameters"]
layer = 3  # which layer is measured now
length = 32  # tokens in the window
starts, rounds = 12, 60  # random pushes, and how often each is pulled
seed = 0
texts = ["alice", "python_reference"]  # the first that is available is used

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import pandas as pd
import torch
from myst_nb import glue
from scipy import stats

from lab import figures, growth, results
from lipnb import AttentionJacobian, corpora, local_lipschitz, models

figures.house_style()

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-03-growth", "caption": "{term}`Local Lipschitz constants <local Lipschitz constant>` on Alice, one mark for each {term}`window` of text, from random places; the lines join the means; dotted, the slope $\\frac12$ of $\\sqrt n$. The random GPT-2 (layer 6) is masked."}, "image": {"alt": "Marks and a line through their means against the number of tokens, for three layers. Those of MiniLM's layer 3 rise, less steeply than a dotted line; those of its layer 0 stay nearly level; those of the random GPT-2 lie far below and rise a little."}}
longest, laws = 128, []  # MiniLM's training texts had no more tokens
series = {
    "MiniLM, layer 0": ("atlas-minilm", "pretrained", 0, "C0", "o"),
    "MiniLM, layer 3": ("atlas-minilm", "pretrained", 3, "C1", "D"),
    "random GPT-2": ("atlas-gpt2-random", "random", 6, "C6", "s"),
}
ax = plt.subplots(figsize=(6.2, 4.2))[1]
for name, (table, weights, place, colour, marker) in series.items():
    rows = results.load(table).query("corpus == 'alice' and order == 'text' and length <= @longest")
    rows = rows[(rows.weights == weights) & (rows.layer == place)]
    law, means = growth.slope(rows), rows.groupby("length").lipschitz.apply(stats.gmean)
    steps = growth.octaves(rows).slope
    known = {"name": name, "flattest": steps.min(), "steepest": steps.max(), "low": law.interval[0]}
    laws.append(law._asdict() | known | {"converged": rows.converged.all(), "high": law.interval[1]})
    ax.plot(rows.length, rows.lipschitz, marker, color=colour, ms=4, alpha=0.5, mew=0)
    ax.plot(means, color=colour, lw=2)
    ax.annotate(name, (longest, means[longest]), (6, 0), textcoords="offset points", color=colour, va="center")
n = means.index.to_numpy()
ax.plot(n, 0.7 * n**0.5, color="black", ls=":", lw=1.5)
ax.annotate(r"like $\sqrt{n}$", (longest, 0.7 * longest**0.5), (6, 0), textcoords="offset points", va="center")
ax.set(xscale="log", yscale="log", xlabel="tokens n", ylabel="local Lipschitz constant", xlim=(7, 400))
ax.set_xticks(n, n)
ax.set_yticks([0.2, 0.5, 1, 2, 5, 10, 20], [0.2, 0.5, 1, 2, 5, 10, 20])
ax.minorticks_off()
plt.show()

# %% [markdown]
# ## From a text to one number
#
# A layer sees vectors, not words. We take those that its {term}`attention` receives in the running model. The
# theorem is about one head; the map measured here is all heads of the layer, with their biases and the output
# projection. {term}`Bounds <bound>` on heads add up ({doc}`26_multi_head`).

# %%
text = corpora.available(*texts)
model = models.load("minilm")
tokens = corpora.windows(model.token_ids(corpora.read(text)), length, count=1)
x = model.activations(tokens, layer)  # what this layer's attention receives
attention = model.attention(layer)
lip = local_lipschitz(attention, x)

# %% tags=["hide-input"]
words = model.tokenizer.convert_ids_to_tokens(tokens[0])
print("text:", corpora.describe(text))
print("tokens:", *words)
print(f"token norms between {x.norm(dim=-1).min():.1f} and {x.norm(dim=-1).max():.1f}; {x[0].numel():,} coordinates")
print(f"constant at least {lip.value.item():.4f}, attained by a push")
print(f"and at most {lip.upper.item():.4f}, with probability {lip.confidence:.6f}")

# %% [markdown]
# The probability of this {term}`certificate` is over the solver's random start, not over texts
# ({doc}`12_local_lipschitz`).
#
# How is the worst push found among thousands of directions? Apply the {term}`Jacobian` to any push, its transpose to
# the result, and repeat. This *power iteration* pulls it
# towards the top {term}`singular vector`.

# %%
J = AttentionJacobian(attention, x[0])
u = torch.randn(starts, *x[0].shape, generator=torch.Generator().manual_seed(seed))
gains = []
for _ in range(rounds + 1):
    u = u / u.flatten(1).norm(dim=1)[:, None, None]
    image = J.jvp(u)  # J u: how the outputs move
    gains.append(image.flatten(1).norm(dim=1))
    u = J.vjp(image)  # the transpose pulls the push towards the worst one

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-03-pulled", "caption": "The layer and the window above: random pushes (left end) start far below the constant and come up to it as they are pulled towards the worst one."}, "image": {"alt": "A dozen curves that start together near the bottom and rise within a few rounds towards a horizontal line, the constant."}}
gains = torch.stack(gains)
ax = plt.subplots(figsize=(6.2, 3.2))[1]
ax.plot(gains[:21], color="C0", alpha=0.3, lw=0.9)
ax.axhline(lip.value.item(), color="C1", lw=2)
ax.annotate(
    "constant", (20, lip.value.item()), (0, -5), textcoords="offset points", ha="right", va="top", color="#b34700"
)
ax.set(xlabel="rounds", ylabel="amplification", ylim=(0, None), xlim=(0, 20))
ax.set_xticks([0, 5, 10, 15, 20])
ax.set_yticks([0, 5, 10, 15])
plt.show()

# %% [markdown]
# ## How the constant grows
#
# {numref}`fig-03-growth` shows stored measurements, a few windows at each length ({doc}`41_real_text`).

# %% tags=["hide-input"]
laws = pd.DataFrame(laws).set_index("name")
flat, deep, random = (laws.loc[name] for name in series)
for key, row in {"flat": flat, "deep": deep, "control": random}.items():
    glue(f"three-{key}", float(row.slope), display=False)
glue("three-longest", longest, display=False)
names = {"name": "layer", "slope": "slope", "low": "95 % from", "high": "to", "windows": "fewest windows at a length"}
names |= {"flattest": "least slope of an octave", "steepest": "largest"}
figures.table(laws, names, digits=2)

# %% [markdown]
# The slope is that of a line through the means of the logarithms: the {term}`exponent` of a {term}`power law`, if there
# is one. Intervals are over windows. The last columns have the least and the largest slope over one doubling.
#
# Layer 0 has the slope {glue:text}`three-flat:.2f`: the constant rises by a few percent at each doubling. Layer 3 has
# {glue:text}`three-deep:.2f`, about the paper's $n^{1/4}$; its interval lies below $\frac12$. Other layers differ
# ({doc}`41_real_text`). The random GPT-2 has {glue:text}`three-control:.3f`.

# %% tags=["hide-input", "nbval-check-output"]
worst = u[gains[-1].argmax()] / u[gains[-1].argmax()].norm()
assert lip.converged.all() and laws.converged.all() and (laws.windows >= 4).all()
assert flat.high < growth.FLAT < deep.low and deep.high < 0.5, "layer 0 grows, or layer 3 as fast as the theorem"
assert 0 < random.low and random.high < growth.FLAT and 0.7 * longest**0.5 > 7
assert abs(gains[-1].max() / lip.value.item() - 1) < 1e-3, "the worst push does not reach the value"
assert (gains[-1] / lip.value.item() - 1).abs().max() < 1e-2, "a pulled push ends below the constant"
assert gains[0].max() < 0.5 * gains[-1].min(), "a random push comes near the value"
assert gains.max() < lip.value.item() * (1 + 1e-4), "a push beats the value"
x64, attention64 = x.double(), attention.to(dtype=torch.float64)
step = 1e-4 * worst.double()
quotient = (attention64(x64[0] + step) - attention64(x64[0] - step)).norm() / (2 * step.norm())
assert abs(quotient / lip.value.item() - 1) < 1e-3, "finite differences disagree"
print("✓ checked: the pulled pushes end at the constant, random ones stay below half of it; all windows converged")

# %% [markdown]
# ## What this shows and does not show
#
# - A slope describes one layer, one text and one range of lengths. On windows longer than the texts of MiniLM's
#   training, the constant of layer 0 jumps to more than twice its value ({doc}`41_real_text`).
# - This does not show the worst *input*. {term}`Tokens <token>` built against a head reach the rate $\sqrt n$
#   ({doc}`42_adversarial_inputs`).
# - The map is attention alone, without the residual connection and the {term}`layer normalisation` around it.
#
# **One thing to try.** Set `layer = 0`: is the constant of this window larger or smaller than that of layer 3?
#
# **Next:** {doc}`04_one_index`.
