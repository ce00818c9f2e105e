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
# On sequences of $n$ tokens in a ball of radius $R$, the Lipschitz constant of one head is at most of order
# $\sqrt n\, R^2$, and the $\sqrt n$ is real: one token stands alone, and all others attend to it. Move that one token
# by 1, and $n - 1$ outputs move by about 1 each. In the Frobenius norm that is $\sqrt{n - 1}$.

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
from lab.power_laws import power_law
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
# *Two clusters and the worst push. Left: the inputs; nearly all of the push moves the lonely token. Right: the outputs;
# the whole crowd follows. One token moves by 1, nine outputs by 1 each, and the root of nine is three.*
#
# ## Who chooses whom
#
# As on the last page $A = -I$: a token attends to its opposite. The lonely token is at $-Ru$ and the crowd at $Ru$,
# with $u$ of length one. A token of the crowd has the {term}`logit` $R^2$ for the lonely token and $-R^2$ for each
# of its own kind. So it gives the lonely one the weight
#
# $$p = \frac{1}{1 + (n - 1)\, e^{-2 R^2}} ,$$
#
# close to 1 as long as the crowd is small compared with $e^{2R^2}$. Each output of the crowd is then $p$ times the
# lonely token, plus the rest. Move the lonely token by $\varepsilon$, and the $n - 1$ outputs move by
# $p\,\varepsilon$ each: the constant is at least $p \sqrt{n - 1}$.
#
# ## The theorem
#
# {bdg-warning}`reconstructed` {ref}`what is this? <badges>`
#
# :::{prf:theorem} General upper bound ({cite:t}`castin2024smooth`, Theorem 3.3)
# :label: spine-upper
#
# Let $f$ be one head of attention with matrices $A$ and $V$, without a mask. On sequences of $n$ tokens of norm at most
# $R$, with the Frobenius norm,
#
# $$\Lip(f_{|B_R^n}) \le \sqrt3\, \norm V_2 \sqrt{\norm A_2^2 R^4 (4n + 1) + n} .$$
# :::
#
# **The idea in three lines.** Let $t = \norm A_2 R^2$, the {term}`logit range`, and let $m_i = \sum_j P_{ij} x_j$ and
# $\Sigma_i$ be the mean and the covariance that token $i$ sees. Under a push $\varepsilon$ of the tokens, output $i$
# moves by $V$ times the sum of three terms:
#
# 1. **Value** $\sum_j P_{ij}\, \varepsilon_j$: *what is attended to moves*. If all $n$ rows attend to one token, its
#    push counts $n$ times: at most $\sqrt n\, \norm\varepsilon_F$.
# 2. **Key** $\sum_j P_{ij}\, (x_j - m_i)\,(A x_i)^\top \varepsilon_j$: *a token that moves is chosen more, or less*, by
#    everyone. Here $\abs{x_j - m_i} \le 2R$ and $\abs{A x_i} \le \norm A_2 R$: at most $2t \sqrt n\,
#    \norm\varepsilon_F$.
# 3. **Query** $\Sigma_i A\, \varepsilon_i$: *a token that moves chooses differently*. Only its own output feels it: at
#    most $t\, \norm\varepsilon_F$, without $\sqrt n$.
#
# :::{dropdown} Proof: from the three lines to the bound
# :::{prf:proof}
# - Value and key: $\sum_i \big(\sum_j P_{ij} \abs{\varepsilon_j}\big)^2 \le \sum_i \sum_j P_{ij} \abs{\varepsilon_j}^2
#   \le n \norm\varepsilon_F^2$, since each column of $P$ sums to at most $n$.
# - Query: $\norm{\Sigma_i}_2$ is at most the variance that token $i$ sees, so at most $R^2$.
# - The sum: $(a + b + c)^2 \le 3\,(a^2 + b^2 + c^2)$, so the norm is at most
#   $\sqrt3\, (n + 4 t^2 n + t^2)^{1/2}\, \norm\varepsilon_F$ before $V$. $\square$
# :::
# :::
#
# ## Measured against stated
#
# The crowd stands in one place, so two tokens with {term}`token weights` $\frac1n$ and $\frac{n-1}n$ stand for all
# $n$ ({doc}`22_tightness`). That reaches any length at the price of two tokens.


# %%
def constant(n, R):
    """Local Lipschitz constant of the two clusters."""
    weights = torch.tensor([1, n - 1]).double() / n
    pair = tight_input(A, 2, R)
    return local_lipschitz(head, pair, weights=weights, method="dense").value.item()


rows = []
for n in lengths:
    p = 1 / (1 + (n - 1) * math.exp(-2 * R**2))
    rows.append({"n": n, "p": p, "constant": constant(n, R), "bound": bounds.general_upper(A, V, n, R)})
table = pd.DataFrame(rows).assign(root=lambda rows: rows.constant / rows.n**0.5)

# %% tags=["hide-input"]
end = 1 + math.exp(2 * R**2)
glue("end", end, display=False)
names = {"n": "tokens n", "p": "weight p of the lonely token", "constant": "local constant"}
names |= {"root": "constant / √n", "bound": "Theorem 3.3"}
figures.table(table, names=names, digits=3)

# %% tags=["hide-input"]
ax = plt.subplots(figsize=(6.2, 4.0))[1]
n = np.unique(np.geomspace(2, 1e6, 60).round())
looks = {1.0: ("C2", "s"), 1.5: ("C1", "D"), 2.0: ("C0", "o")}
for radius, (colour, marker) in looks.items():
    measured = np.array([constant(m, radius) for m in n])
    ax.plot(n, measured, color=colour, marker=marker, ms=4, markevery=5)
    peak = measured.argmax()
    ax.annotate(f"R = {radius:g}", (n[peak], measured[peak]), (0, 6), textcoords="offset points",
                ha="center", color=colour)
ax.plot(n, [bounds.general_upper(A, V, m, 2.0) for m in n], color="C0", ls="--")
ax.annotate("Theorem 3.3, R = 2", (3e3, bounds.general_upper(A, V, 3e3, 2.0)), (-8, 6),
            textcoords="offset points", ha="right", color="C0")
ax.plot(n, n**0.5, color="0.5", lw=1)
ax.annotate(r"$\sqrt{n}$", (n[-1], n[-1] ** 0.5), (4, -4), textcoords="offset points", color="0.4")
ax.set(xscale="log", yscale="log", xlabel="tokens n", ylabel="Lipschitz constant", ylim=(0.7, 1e5))
figures.log_ticks(ax.xaxis, 1, 1e6)
plt.show()

# %% [markdown]
# <!-- figure fig-02-growth: Three curves that rise along the line root n, each to a peak that lies further to the right
# for a larger radius, and then fall; a dashed line above them all. -->
# *Local constants of the two clusters for three radii, on logarithmic axes. Each curve rises at least like the square
# root, as far as its radius allows, and then falls. The theorem's bound, dashed for $R = 2$, is never crossed.*
#
# In {numref}`fig-02-growth` the slope is at first {glue:text}`slope:.2f` ($R = 2$, $n$ from 2 to
# {glue:text}`fit-end:.0f`). Towards the peak the curves rise faster: there the key term helps, as a push of the lonely
# token also changes how many attend to it.
#
# ## Where it stops
#
# The crowd grows, and each of its members takes a little attention for itself. When $n - 1$ reaches $e^{2R^2}$, half of
# the weight is gone. For $R = 2$ that is at {glue:text}`end:.0f` tokens. Beyond, the lonely token is drowned out, and
# this constant falls. In general ({cite:t}`castin2024smooth`, Proposition 3.4; $V = I$ and $\gamma$ from the
# eigenvalues of $A$, here 1) some input has a constant of at least
#
# $$\tfrac12 \sqrt{n - 1} \quad \text{while} \quad n \le 1 + e^{2 \gamma R^2} .$$
#
# The length at which this input fails is **exponential in $R^2$**: no length used in practice, once $R$ is moderate.

# %% tags=["hide-input", "nbval-check-output"]
few = np.arange(2, 101)
fit = power_law(few - 1, [constant(m, 2.0) for m in few[few > 1]])
glue("slope", fit.exponent, display=False)
glue("fit-end", int(few[-1]), display=False)
for m in (3, 10, 40):
    dense = local_lipschitz(head, tight_input(A, m, R), method="dense").value.item()
    assert abs(constant(m, R) / dense - 1) < 1e-9, "two weighted tokens are not n tokens"
for radius in looks:
    inside = [m for m in n if m <= 1 + math.exp(2 * radius**2)]
    assert all(constant(m, radius) >= 0.5 * (m - 1) ** 0.5 for m in inside)
    assert all(constant(m, radius) <= bounds.general_upper_sharp(A, V, m, radius) for m in n)
assert (table.constant >= (table.n - 1) ** 0.5 * table.p * (1 - 1e-12)).all()
assert (table.constant <= table.bound).all() and 0.45 < fit.exponent < 0.65
assert push[0].norm() > 0.98 and 0.9 < moved[1:].norm(dim=1).min()
print("✓ two weighted tokens are n tokens; half the root is kept to the stated length; no bound is crossed")

# %% [markdown]
# ## What this shows and does not show
#
# - $\sqrt n$ is reached by inputs built for the purpose. Text need not look like them: the next page measures it.
# - The bound is not tight: {doc}`21_general_bound` proves one that is lower, {doc}`76_regimes` builds inputs
#   that are worse. With a mask the same bound holds (Theorem 4.3, {doc}`31_masked_bound`).
# - Past the peak *this* input loses the rate. Whether another keeps it is not shown here.
#
# **One thing to try.** Set `R = 1.0`: how long does the rate last?
#
# **Next:** {doc}`03_real_model`.
