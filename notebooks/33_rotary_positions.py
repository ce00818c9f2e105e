# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Rotary positions and decoders in use (ours)
#
# Today's decoders rotate queries and keys, normalise them, cap {term}`logits <logit>`, or let {term}`attention` go to a
# sink. Published {term}`bounds <bound>` are stated for a single matrix $A = K^\top Q / \sqrt k$, and such heads do not
# have one. This page proves two bounds for rotary positions, at one input and on a ball, and a third that covers all
# these variants on a ball. On the layers of two Llamas the bound at one input is {glue:text}`rotary_low:.0f` to
# {glue:text}`rotary_high:.0f` times too high.

# %% tags=["parameters", "hide-input"]
seed = 0

# %% tags=["hide-input"]
import numpy as np
import pandas as pd
import torch
from myst_nb import glue

from lab import figures, results
from lipnb import Attention, bounds, local_lipschitz
from lipnb.jacobian import AutodiffJacobian

# %% [markdown]
# ## Two tokens in the plane
#
# A rotary head turns query $i$ and key $j$ by angles that depend on the positions $i$ and $j$ {cite}`su2024roformer`.
# So every distance $m$ between two positions has its own matrix $A_m = K^\top \Theta_m Q / \sqrt k$. The
# {term}`Jacobian` keeps its closed form, with rotated queries and keys. Take two tokens in the plane and the frequency
# 1: the query and the key of the second token are turned by one radian.

# %%
generator = torch.Generator().manual_seed(seed)
Q, K, V, x = (torch.randn(2, 2, generator=generator, dtype=torch.float64) for _ in range(4))
head = Attention(Q[None], K[None], V[None])
turned = head.replace(frequencies=torch.tensor([1.0]))
by_hand = torch.linalg.matrix_norm(AutodiffJacobian(turned, x).dense(), 2).item()
measured = local_lipschitz(turned, x).value.item()
radius = x.norm(dim=-1).max().item()
at_input, on_ball = bounds.rotary_terms(turned, x), bounds.rotary_upper(turned, 2, radius)
least = bounds.ball_upper(turned, 2, radius)
print(f"without rotation {local_lipschitz(head, x).value:.4f}")
print(f"with rotation {by_hand:.4f}, by the solver {measured:.4f}")
print(f"bound at this input {at_input:.4f}")
print(f"bounds on its ball {on_ball:.4f}, by `ball_upper` {least:.4f}")

# %% [markdown]
# ## Rotary positions
#
# Let $\Theta_i$ be the rotation at position $i$, $\tilde q_i = \Theta_i Q x_i$ and $\tilde k_j = \Theta_j K x_j$. The
# logits are $\beta\, \tilde q_i \cdot \tilde k_j$ with $\beta = 1/\sqrt k$; row $i$ of $P$ is their softmax over the
# tokens that $i$ sees, $v_j = V x_j$ are the values, and $o_i = \sum_j P_{ij} v_j$ is output $i$.
#
# {bdg-secondary}`ours` {ref}`what is this? <badges>`
#
# :::{prf:theorem} Rotary positions (ours)
# :label: scan-rotary
#
# For one head with rotary positions and no biases, masked or not, on $n$ tokens in the ball of radius $R$, let
# $t = \beta \norm Q_2 \norm K_2\, R^2$. Then
#
# $$\norm{D_X f}_2 \;\le\; \norm V_2 \big(t + \sqrt n\,(1 + t)\big) .$$
#
# At one input, with $C_i = \sum_j P_{ij} (v_j - o_i)\, \tilde k_j^\top$, $Z_i = (P_{ij} (v_j - o_i))_j$ and
# $\rho_i = \norm{Z_i}_2$,
#
# $$\norm{D_X f}_2 \;\le\; \norm P_2 \norm V_2 + \beta \max_i \norm{C_i \Theta_i Q}_2
#   + \beta \norm{(\rho_i\, \tilde q_i)_i}_2 \norm K_2 .$$
# :::
#
# Here $t$ plays the part of the {term}`logit range`: for every pair of positions the logits lie between $-t$ and $t$.
# The bounds of several heads are added, with $\norm{W V}_2$ in place of $\norm V_2$ and in the second one $W$ before
# $C_i$ and $Z_i^\top$ (compare {prf:ref}`several-heads`).
#
# ::::{dropdown} Proof
# :::{prf:proof}
# A change $\varepsilon$ of the tokens changes output $i$ by
#
# $$\sum_j P_{ij} V \varepsilon_j \;+\; \beta\, C_i \Theta_i Q \varepsilon_i
#   \;+\; \beta \sum_j P_{ij} (v_j - o_i)\; \tilde q_i \cdot \Theta_j K \varepsilon_j .$$
#
# *At one input.* The first sum is $(P \otimes V)\varepsilon$, and the second is block diagonal.
#
# For the third let $U$ have the rows $\Theta_j K \varepsilon_j$: it is $\beta Z_i^\top U \tilde q_i$, at most
# $\beta \rho_i \abs{U \tilde q_i}$.
#
# The squares, summed over $i$, are at most $\beta^2 \norm{(\rho_i \tilde q_i)_i}_2^2 \norm{U}_F^2$, and
# $\norm{U}_F \le \norm{K}_2 \norm{\varepsilon}_F$, since no rotation changes a norm.
#
# *On the ball.* $C_i$ is $V$ times a covariance under $P_i$, of tokens of norm at most $R$ and keys of norm at most
# $\norm K_2 R$, so the second term is at most $\norm V_2\, t\, \abs{\varepsilon_i}$.
#
# By Cauchy-Schwarz with weights $P_{ij}$ the third is at most $\norm V_2\, t\, p_i$ with
# $p_i^2 = \sum_j P_{ij} \abs{\varepsilon_j}^2$.
#
# The first is at most $\norm V_2\, p_i$, and $\sum_i p_i^2 \le n \norm{\varepsilon}_F^2$. $\square$
# :::
# ::::
#
# ## Normalised queries, caps and sinks
#
# One bound covers all the variants, because it uses only how fast a logit changes with either of its two tokens:
#
# {bdg-secondary}`ours` {ref}`what is this? <badges>`
#
# :::{prf:theorem} Attention in use, on a ball (ours)
# :label: scan-in-use
#
# Let a head attend by $P_{ij} = e^{\ell_{ij}} / (\sigma_i + \sum_l e^{\ell_{il}})$ to what token $i$ sees, with
# constants $\sigma_i \ge 0$ and logits $\ell_{ij}(x_i, x_j)$ whose derivatives are at most $c$ in $x_i$ and at most $a$
# in $x_j$, on the ball of radius $R$ and at all places. With values $V x_j$,
#
# $$\norm{D_X f}_2 \;\le\; \norm V_2 \big(R\, c + \sqrt n\,(1 + R\, a / \sqrt 2)\big) .$$
# :::
#
# With rotary positions and no biases, $a$ and $c$ are at most $R \max_m \beta\, \norm{K^\top \Theta_m Q}_2$ over the
# distances $m$ between tokens. A cap has slopes of at most 1, so it makes neither larger, and a term that depends on
# the distance alone has no derivative in the tokens. `bounds.ball_upper` takes these
# numbers head by head, heads jointly as in {prf:ref}`layer-on-ball`, and tokens of an RMSNorm
# (`ellipsoid=(gain, None)`). Where a query or key vanishes before it is
# normalised, its derivative grows like $1 / \sqrt\epsilon$, with the $\epsilon$ of the norm: there the bound is large,
# and the constant can be.
#
# ::::{dropdown} Proof
# :::{prf:proof}
# Output $i$ moves by $\sum_j P_{ij} V \varepsilon_j + \sum_j P_{ij} (v_j - o_i)\, \tau_j$, where $\tau_j$ is the change
# of $\ell_{ij}$: a sink has the value 0, and its logit does not change. By the triangle inequality $\abs{\tau_j}$ is at
# most the sum of a part from $\varepsilon_i$ and a part from $\varepsilon_j$.
#
# Let $u$ be a unit vector. The numbers $w_j = P_{ij}\, u \cdot (v_j - o_i)$, that of the sink among them, have the sum
# 0, and by {prf:ref}`variance-in-ball` their absolute values have a sum of at most $\norm V_2 R$. So the absolute value
# of each is at most half of that.
#
# *Queries.* The part of at most $c \abs{\varepsilon_i}$ gives at most $\norm V_2 R\, c \abs{\varepsilon_i}$.
#
# *Keys.* The part of at most $a \abs{\varepsilon_j}$ gives at most $\frac12 \norm V_2 R\, a$ times the sum of the two
# largest $\abs{\varepsilon_j}$, which is at most $\sqrt 2 \norm{\varepsilon}_F$.
#
# *Values.* The first sum is at most $\norm V_2 \norm{\varepsilon}_F$.
#
# Add the squares over $i$: those of the first part give $(\norm V_2 R\, c)^2 \norm{\varepsilon}_F^2$, the other two
# parts are alike for all $n$ outputs, and norms of the parts add. $\square$
# :::
# ::::
#
# ## Tried on layers
#
# Each case below is a small random layer and an input found for it by {term}`gradient ascent`, in the ball or made by
# an RMSNorm:

# %% tags=["hide-input"]
layers = results.load("verify-ball-in-use")
glue("layers_in_use", int(layers.cases.sum()), display=False)
nearest = layers.pivot_table("worst", "added", "region", "max", sort=False).reset_index()
nearest["added"] = nearest.added.str.replace("all but normalised", "all of these but normalised")
nearest["added"] = nearest.added.replace({"all": "all of these", "normalised": "normalised queries and keys"})
headings = {"added": "beyond plain heads", "ball": "largest ratio, ball", "RMSNorm": "largest ratio, RMSNorm"}
figures.table(nearest, names=headings, digits=2)

# %% [markdown]
# The table has the largest ratio of the constant to `ball_upper` over {glue:text}`layers_in_use:,d` layers: no ratio is
# above one.
#
# Two trained Llamas were scanned, SmolLM2 on *Alice* and stories260K on Python's language reference
# ({doc}`05_scan_your_model`). In each layer and {term}`window` we compare the constant with both bounds of
# {prf:ref}`scan-rotary`: the one at that input, and the one on a ball that holds its tokens. They are too high by these
# factors:

# %% tags=["hide-input"]
stored = {name: results.load(f"scan-{name}") for name in ("smollm2", "stories260k")}
scanned = pd.concat([table.assign(model=name) for name, table in stored.items()])
logs = scanned[["log10_rotary_terms", "log10_rotary_upper"]].sub(np.log10(scanned.lipschitz), axis=0)
factors = (10**logs).groupby(scanned.model).agg(["min", "max"])
factors.columns = [f"{name} {end}" for name, end in factors.columns]
headings = {
    "model": "model",
    "log10_rotary_terms min": "at the input, least",
    "log10_rotary_terms max": "at the input, most",
}
headings |= {"log10_rotary_upper min": "on a ball, least", "log10_rotary_upper max": "on a ball, most"}
glue("rotary_low", float(10 ** logs.log10_rotary_terms.min()), display=False)
glue("rotary_high", float(10 ** logs.log10_rotary_terms.max()), display=False)
figures.table(factors.reset_index(), names=headings, digits=2)

# %% tags=["hide-input", "nbval-check-output"]
assert abs(measured / by_hand - 1) < 1e-4 and by_hand <= at_input <= on_ball and by_hand <= least <= on_ball
assert layers.violations.sum() == 0 and layers.worst.max() <= 1
assert (logs.stack().dropna() > 0).all()
print("✓ no constant exceeds a bound of this page")

# %% [markdown]
# ## What this shows and does not show
#
# - The three terms use the attention matrix at the input and hold at that input alone. A
#   {term}`bracket` ({doc}`62_certified_bracket`) comes closer there: its upper end is at most
#   {glue:text}`../notebooks/05_scan_your_model.ipynb::certified_high:.1f` times the constant in the layers and
#   windows of the scans where it was computed.
# - The ratios of the first table are what gradient ascent found on small random layers; trained ones were not tried.
# - {prf:ref}`scan-rotary` does not cover biases. {prf:ref}`scan-in-use` covers those of queries and keys, through $a$ and
#   $c$.
#
# **One thing to try.** Set the frequency in the code cell to a tenth: how near do the two constants come?
#
# **Next:** {doc}`41_real_text`, the constant on real text, length by length.
