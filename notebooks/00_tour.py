# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A tour: from a text to one number
#
# This page goes the whole way once: a text, its tokens, what a layer's attention receives, and how much that
# attention can amplify a small change. The other pages look at each step.
#
# :::{prf:definition} The number this book is about
# :label: tour-local-constant
#
# At a sequence $X$ of tokens, the local Lipschitz constant of a map $f$ is the largest factor by which a small change
# of $X$ is amplified,
#
# $$\Lip_X(f) = \norm{D_X f}_2 = \max_{u \ne 0} \frac{\norm{(D_X f)\,u}_F}{\norm{u}_F} .$$
#
# This is {cite:t}`castin2024smooth`, section 3.1.
# :::

# %% tags=["parameters"]
model_name = "minilm"
layer = 0
length = 32  # tokens in the window
starts, rounds = 50, 60  # random directions, and how often each is pulled
seed = 0
texts = ["alice", "python_reference"]  # the first that is available is used

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import torch

from lab import figures, power_laws, results
from lipnb import AttentionJacobian, corpora, local_lipschitz, models

figures.house_style()

# %% [markdown]
# ## A text and its tokens
#
# The page takes the first of its texts that is available, and prints which. The model is a small pretrained one that a
# Python package carries, so nothing is downloaded. The windows are plain text: no `[CLS]` and no `[SEP]` stands in
# them.

# %%
corpus = corpora.available(*texts)
model = models.load(model_name)
tokens = corpora.windows(model.token_ids(corpora.read(corpus)), length, count=1)
print("text:", corpora.describe(corpus))
print("model:", ", ".join(f"{key} {value}" for key, value in model.describe().items()))
print("tokens:", *model.tokenizer.convert_ids_to_tokens(tokens[0]))

# %% [markdown]
# ## What the attention of one layer receives
#
# A layer sees vectors, not words. Layer normalisation bounds their norms: the theorems speak of a ball of radius $R$
# that holds them all.

# %%
x = model.activations(tokens, layer)
attention = model.attention(layer)
norms = x.norm(dim=-1)
print(attention)
print(f"x has shape {tuple(x.shape)}")
print(f"token norms lie between {norms.min():.1f} and {norms.max():.1f}")

# %% [markdown]
# ## How much it can amplify a small change

# %%
lip = local_lipschitz(attention, x)
print(f"local Lipschitz constant {lip.value.item():.4f}")
print(f"at most {lip.upper.item():.4f}, with probability {lip.confidence:.6f}")
print(f"relative residual {lip.residual.item():.0e}, {lip.steps.item()} products")
print(f"converged: {lip.converged.item()}")

# %% [markdown]
# The value is a lower bound, attained by a direction; the upper bound holds with the stated probability over the
# solver's random start ({doc}`12_local_lipschitz`). Both are about *all* directions at once. A random direction shows
# almost nothing of it. Applying the Jacobian and its transpose in turn pulls any direction towards the worst one.
# Below, from many random starts.

# %%
J = AttentionJacobian(attention, x[0])
u = torch.randn(starts, *x[0].shape, generator=torch.Generator().manual_seed(seed))
gains = []
for _ in range(rounds + 1):
    u = u / u.flatten(1).norm(dim=1)[:, None, None]
    image = J.jvp(u)
    gains.append(image.flatten(1).norm(dim=1))
    u = J.vjp(image)
gains = torch.stack(gains)
worst = u[gains[-1].argmax()] / u[gains[-1].argmax()].norm()

# %%
ax = plt.subplots(figsize=(6.4, 3.4))[1]
ax.plot(gains[: rounds // 2 + 1], color="#0072b2", alpha=0.25, linewidth=0.8)
ax.axhline(lip.value.item(), color="#d55e00", label="local Lipschitz constant")
ax.set(xlabel="rounds of the Jacobian and its transpose", ylabel="amplification", ylim=(0, None))
ax.legend(loc="lower right")
plt.show()
# %% [markdown]
# *How much one layer amplifies small changes of one text, along random directions (left end) that are pulled towards
# the worst one. The random ones all look alike and harmless. Smoothness is a singular value; sampled directions miss
# it.*
#
# ## Every window, from the stored table
#
# The same number, for several windows at each of many lengths, was measured once and stored, with everything needed to
# measure it again. {doc}`41_real_text` does that for every layer of two trained models and for a random one. Here is
# the layer of this page. Windows of one length share no token, but windows of different lengths begin at the same token
# of the text, so the interval of the fit is clustered by window and by length.

# %%
table = results.load("real-text")
panel = table[(table.model == "minilm") & ~table.masked & (table.layer == layer)]
fit, lengths, windows = power_laws.rate(panel), panel.length.nunique(), panel.window.nunique()
print(f"{windows} windows at each of {lengths} lengths, {panel.length.min()} to", end=" ")
print(f"{panel.length.max()} tokens: {len(panel)}, {panel.converged.sum()} converged")
print(f"fitted law {fit}, R^2 = {fit.r2:.2f}")

# %%
first = panel.iloc[0]
mask = "masked" if first.masked else "unmasked"
title = f"{first.model}, layer {first.layer}, {mask}, on {first.corpus}"
ax = figures.against_length(panel, fit, title=title)
plt.show()
# %% [markdown]
# *Local Lipschitz constants of one encoder layer on real text, one dot for each window, against the number of tokens.
# The line is a fitted power law with a 95 % interval for its exponent.*

# %%
span = panel.groupby("length").lipschitz.median()
grows = "does not show growth" if fit.low <= 0 <= fit.high else "moves with the length"
print(f"layer {layer} {grows}: exponent {fit.exponent:.3f} [{fit.low:.3f}, {fit.high:.3f}]")
print(f"the length explains {fit.r2:.0%} of the variance (of the logarithm)")
print(f"medians by length lie between {span.min():.1f} and {span.max():.1f}")

# %% tags=["nbval-check-output"]
assert lip.converged.all() and panel.converged.all()
assert layer != 0 or fit.low <= 0 <= fit.high, "the first layer grows or falls"
assert figures.points(ax) == len(panel) == lengths * windows, "not one dot a window"
assert abs(gains[-1].max() / lip.value.item() - 1) < 1e-3, "the worst direction does not reach the value"
assert gains[0].max() < 0.5 * gains[-1].min(), "a random direction comes near the value"
assert gains.max() < lip.value.item() * (1 + 1e-4), "a direction beats the value"
x64, attention64 = x.double(), attention.to(dtype=torch.float64)
step = 1e-4 * worst.double()
quotient = (attention64(x64[0] + step) - attention64(x64[0] - step)).norm() / (2 * step.norm())
assert abs(quotient / lip.value.item() - 1) < 1e-3, "finite differences disagree"
print("the worst direction reaches the value, random ones do not; differences agree")

# %% [markdown]
# ## What this shows and does not show
#
# - It shows the whole path on real input, and that the number is attained by a direction we can name.
# - This layer, the first of its model, is no example of growth: the exponent of its fit is not distinguishable from 0.
#   Deeper layers do grow ({doc}`41_real_text`).
# - It does not show the worst *input*: another text, or tokens chosen by an adversary, can have a larger constant.
# - It is about one attention layer with its output projection, without the residual connection or LayerNorm around
#   it.
#
# **One thing to try.** Set `layer = 3`, or ask for the whole block with `model.attention(layer, object="block")` and
# `model.activations(tokens, layer, object="block")`.
#
# **Next:** {doc}`11_self_attention`, the map itself.
