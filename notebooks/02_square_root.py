# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Why the square root of n (Theorem 3.3)
#
# How large can the constant be on $n$ tokens in a ball of {term}`radius` $R$? At most of order $\sqrt n\, R^2$ (Theorem
# 3.3), and the $\sqrt n$ is real. It comes from {term}`two clusters`: one token alone, and all others in one place,
# attending to it. Move the lone token by 1, and $n - 1$ outputs move by about 1 each. In the Frobenius norm that is
# $\sqrt{n - 1}$.

# %% tags=["parameters"]
R = 2.0  # radius of the ball
drawn = 10  # tokens in the picture
lengths = [10, 100, 1000, 10_000, 100_000]

# %% tags=["hide-input"]
import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from myst_nb import glue

from lab import figures
from lab.experiments import moving
from lipnb import Attention, AttentionJacobian, bounds, local_lipschitz
from lipnb.worst_case import tight_input

figures.house_style()

# %%
A, V = -torch.eye(2).double(), torch.eye(2).double()
head = Attention.from_matrices(A, V)
x = tight_input(A, drawn, R)  # one token at -R u, the others at R u
J = AttentionJacobian(head, x).dense()
push = torch.linalg.svd(J).Vh[0].reshape(drawn, 2)  # the worst push
moved = (J @ push.flatten()).reshape(drawn, 2)  # what it does to the outputs

# %% tags=["hide-input"]
figures.objects.clusters(x, push, (head(x), moved))
plt.show()

# %% [markdown]
# <!-- figure fig-02-clusters: Left, one token alone and nine in one place; the push moves only the one alone. Right,
# nine outputs in one place, each moved by about one. -->
# *Two clusters and the worst push. Left, the inputs: nearly all of the push moves the lone token. Right, the outputs:
# the whole cluster follows, each token by as much.*
#
# ## Who chooses whom
#
# As on the last page $A = -I$: a token attends to its opposite. The lone token is at $-Ru$ and the cluster at $Ru$,
# with $\abs u = 1$. A token of the cluster has the {term}`logit` $R^2$ for the lone token and $-R^2$ for each of its
# own place. So it gives the lone token the weight
#
# $$p = \frac{1}{1 + (n - 1)\, e^{-2 R^2}} ,$$
#
# close to 1 while $n$ is small compared with $e^{2R^2}$. Move the lone token by $\varepsilon$ along $u$, and each of
# the $n - 1$ outputs moves by at least $p\,\varepsilon$: the constant is at least $p \sqrt{n - 1}$.
#
# ## The theorem
#
# {bdg-warning}`reconstructed` {ref}`what is this? <badges>`
#
# :::{prf:theorem} General upper bound ({cite:t}`castin2024smooth`, Theorem 3.3)
# :label: spine-upper
#
# Let $f$ be one head of attention with matrices $A$ and $V$, without a mask, and $t = \norm A_2 R^2$ the
# {term}`logit range`. On the set $B_R^n$ of sequences of $n$ tokens of norm at most $R$, with the Frobenius norm,
#
# $$\Lip(f_{|B_R^n}) \le \sqrt3\, \norm V_2 \sqrt{t^2 (4n + 1) + n} .$$
# :::
#
# **The idea in three lines.** Let $m_i = \sum_j P_{ij} x_j$ and $\Sigma_i$ be the mean and the covariance that token
# $i$ sees. Under a push $\varepsilon$ of the tokens, output $i$ moves by $V$ times the sum of three terms:
#
# 1. **Value** $\sum_j P_{ij}\, \varepsilon_j$: *what is attended to moves*. If all $n$ rows attend to one token, all
#    $n$ outputs follow its push: at most $\sqrt n\, \norm\varepsilon_F$.
# 2. **Key** $\sum_j P_{ij}\, (x_j - m_i)\,(A x_i)^\top \varepsilon_j$: *a token that moves is chosen more, or less*, by
#    everyone. Here $\abs{x_j - m_i} \le 2R$ and $\abs{A x_i} \le \norm A_2 R$: at most
#    $2t \sqrt n\, \norm\varepsilon_F$.
# 3. **Query** $\Sigma_i A\, \varepsilon_i$: *a token that moves chooses differently*. Only its own output changes: at
#    most $t\, \norm\varepsilon_F$, without $\sqrt n$.
#
# For large $n$ and $R$ the sum is of order $t \sqrt n$: the key term, not the value term, brings the $R^2$.
#
# ::::{dropdown} Proof: from the three lines to the bound
# :::{prf:proof}
# The norm of each term, then of the sum, before $V$.
#
# - Value and key: $\sum_i \big(\sum_j P_{ij} \abs{\varepsilon_j}\big)^2 \le \sum_i \sum_j P_{ij} \abs{\varepsilon_j}^2
#   \le n \norm\varepsilon_F^2$, since each column of $P$ sums to at most $n$.
# - Query: $\norm{\Sigma_i}_2$ is at most the variance that token $i$ sees, so at most $R^2$.
# - The sum: $(a + b + c)^2 \le 3\,(a^2 + b^2 + c^2)$, so the norm is at most
#   $\sqrt3\, (n + 4 t^2 n + t^2)^{1/2}\, \norm\varepsilon_F$. $\square$
# :::
# ::::
#
# ## Measured against stated
#
# Tokens in one place can be counted by a weight: two tokens with {term}`token weights` $\frac1n$ and $\frac{n-1}n$ have
# the constant of all $n$ ({doc}`22_tightness`).


# %%
def constant(n, R):
    """Local Lipschitz constant of the two clusters."""
    weights = torch.tensor([1, n - 1]).double() / n
    pair = tight_input(A, 2, R)
    return local_lipschitz(head, pair, weights=weights, method="dense").value.item()


table = pd.DataFrame({"n": lengths})
table["p"] = 1 / (1 + (table.n - 1) * math.exp(-2 * R**2))
table["constant"] = [constant(n, R) for n in lengths]
table["root"] = table.constant / table.n**0.5
table["bound"] = [bounds.general_upper(A, V, n, R) for n in lengths]

# %% tags=["hide-input"]
end = 1 + math.exp(2 * R**2)
glue("end", end, display=False)
names = {"n": "tokens n", "p": "weight p of the lone token", "constant": "local constant"}
names |= {"root": "constant / √n", "bound": "Theorem 3.3"}
figures.table(table, names=names, digits=3)

# %% tags=["hide-input"]
ax = plt.subplots(figsize=(6.2, 4.0))[1]
n = np.unique(np.geomspace(2, 1e6, 60).round())
looks = {1.0: ("C2", "s"), 1.5: ("C1", "D"), 2.0: ("C0", "o")}
for radius, (colour, marker) in looks.items():
    measured = np.array([constant(m, radius) for m in n])
    ax.plot(n, measured, color=colour, marker=marker, ms=4, markevery=5)
    at = np.searchsorted(n, 50 * math.exp(2 * radius**2))
    ax.annotate(f"R = {radius:g}", (n[at], measured[at]), (6, 4), textcoords="offset points", color=colour)
ax.plot(n, [bounds.general_upper(A, V, m, 2.0) for m in n], color="C0", ls="--")
ax.annotate(
    "Theorem 3.3, R = 2",
    (3e3, bounds.general_upper(A, V, 3e3, 2.0)),
    (-8, 6),
    textcoords="offset points",
    ha="right",
    color="C0",
)
ax.plot(n, n**0.5, color="0.5", lw=1)
ax.annotate(r"$\sqrt{n}$", (n[-1], n[-1] ** 0.5), (4, -4), textcoords="offset points", color="0.4")
ax.set(xscale="log", yscale="log", xlabel="tokens n", ylabel="Lipschitz constant", ylim=(0.7, 1e5))
ax.set_xticks(10.0 ** np.arange(7), ["1", "10", "100", "1,000", "10,000", "10⁵", "10⁶"])
ax.set_yticks(10.0 ** np.arange(6), ["1", "10", "100", "1,000", "10,000", "10⁵"])
plt.show()

# %% [markdown]
# <!-- figure fig-02-growth: Three curves that rise along the line root n, each to a peak that lies further to the right
# for a larger radius, and then fall; a dashed line above them all. -->
# *Local constants of two clusters for three radii, on logarithmic axes. The larger the radius, the further a curve
# follows the line $\sqrt n$, or rises above it, before it falls. The bound, dashed for $R = 2$, lies above.*
#
# Towards the peak the key term helps: a push of the lone token also changes how much the others attend to it.
#
# ## Where it stops
#
# Each token of the cluster attends a little to its own place as well. Once $n - 1$ reaches $e^{2R^2}$, that is half of
# its attention; for $R = 2$, at {glue:text}`end:.0f` tokens. Beyond, $p$ falls like $1/n$, faster than $\sqrt n$ grows,
# and the constant falls. For other matrices {cite:t}`castin2024smooth` (Proposition 3.4, reconstructed; $V = I$) have
# inputs with a constant of at least
#
# $$\tfrac12 \sqrt{n - 1} \quad \text{while} \quad n \le 1 + e^{2 \gamma R^2} ,$$
#
# where $\gamma$ comes from the real eigenvalues of $A$; here $\gamma = 1$. The length is **exponential in $R^2$**.

# %% tags=["hide-input"]
steps = [int(m) for m in np.unique(np.geomspace(3, 1e5, 28).round())]
figures.movable.two_clusters(moving.two_clusters(steps, [0.5, 1, 1.25, 1.5, 1.75, 2.0]))

# %% [markdown]
# <!-- figure fig-02-movable: On the left the lone token and the cluster on a line, with their outputs and how far each
# moves; on the right the constant against the number of tokens, with the bound and the line root n. -->
# *To be moved: two clusters of $n$ tokens at radius $R$. Where does the constant leave the line $\sqrt n$?*

# %% tags=["hide-input", "nbval-check-output"]
for m in (3, 10, 40):
    dense = local_lipschitz(head, tight_input(A, m, R), method="dense").value.item()
    assert abs(constant(m, R) / dense - 1) < 1e-9, "two weighted tokens are not n tokens"
for radius in looks:
    inside = [m for m in n if m <= 1 + math.exp(2 * radius**2)]
    assert all(constant(m, radius) >= 0.5 * (m - 1) ** 0.5 for m in inside)
    assert all(constant(m, radius) <= bounds.general_upper_sharp(A, V, m, radius) for m in n)
assert (table.constant >= (table.n - 1) ** 0.5 * table.p * (1 - 1e-12)).all()
assert (table.constant <= table.bound).all()
assert table.root.iloc[0] > 0.95 and table.constant.iloc[-1] < 0.5 * table.constant.iloc[-2], "both ends"
assert push[0].norm() > 0.98 and 0.9 < moved[1:].norm(dim=1).min()
print("✓ two weighted tokens are n tokens; half the root is kept to the stated length; no bound is crossed")

# %% [markdown]
# ## What this shows and does not show
#
# - $\sqrt n$ is reached by inputs built for the purpose. Text need not look like them: the next page measures it.
# - The bound is not tight: {doc}`21_general_bound` has a lower one, {doc}`76_regimes` has inputs with larger constants.
#   With a mask the bound is the same (Theorem 4.3, {doc}`31_masked_bound`).
# - Past the peak *this* input loses the rate. Another may keep it.
#
# **One thing to try.** Set `R = 1.0`: how long does the rate last?
#
# **Next:** {doc}`03_real_model`.
