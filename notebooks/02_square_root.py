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
# How large can the constant be on $n$ {term}`tokens <token>` in a ball of {term}`radius` $R$? For large $R$ at most of
# order $\sqrt n\, R^2$ (Theorem 3.3), and the $\sqrt n$ is real. It comes from {term}`two clusters`: one token alone,
# and all others in another place, attending to it. Move the lone token by 1, and $n - 1$ outputs move by about
# 1 each. In the Frobenius norm that is $\sqrt{n - 1}$.

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
from scipy.optimize import brentq, minimize_scalar

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

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-02-clusters", "caption": "Two clusters and the worst push. Left, the inputs: nearly all of the push is on the lone token. Right, the outputs: each output of the cluster moves about as far as the lone token did."}, "image": {"alt": "Left, one token alone and nine in one place; the push moves almost only the one alone. Right, nine outputs in one place, each moved by about one, and the output of the lone token, almost unmoved."}}
picture = figures.objects.clusters(x, push, (head(x), moved))
left, right = picture.axes
left.set_title("inputs: moved by 1 in all", fontsize=11, loc="center")
right.set_title(f"outputs: moved by {moved.norm():.2f} in all", fontsize=11, loc="center")
middle = (left.get_position().x1 + right.get_position().x0) / 2
picture.add_artist(plt.Line2D([middle] * 2, [0.3, 0.7], color="0.6", lw=1, transform=picture.transFigure))
plt.show()

# %% [markdown]
# ## Who chooses whom
#
# As on the last page $A = -I$: a token attends to its opposite. The lone token is at $-Ru$ and the cluster at $Ru$,
# with $\abs u = 1$. For a token of the cluster, the lone token has the {term}`logit` $R^2$ and every token of the
# cluster has $-R^2$. So it gives the lone token the weight
#
# $$p = \frac{1}{1 + (n - 1)\, e^{-2 R^2}} ,$$
#
# close to 1 while $n$ is small compared with $e^{2R^2}$. Move the lone token by $\varepsilon$ along $u$. Two things
# happen to each of the $n - 1$ outputs. What it attends to has moved, which gives $p\,\varepsilon$. And the logit of
# the lone token has fallen by $R\,\varepsilon$, so $p$ falls by $p(1 - p)\,R\,\varepsilon$, and that weight goes to
# tokens that lie $2R$ further along $u$. To first order, each output moves by
#
# $$p\,\varepsilon + 2R \cdot p(1-p)\,R\,\varepsilon = p\,\big(1 + 2R^2(1-p)\big)\,\varepsilon ,$$
#
# and the constant is at least $p\,(1 + 2R^2(1-p)) \sqrt{n - 1}$.
#
# ## The theorem
#
# The {term}`Lipschitz constant on a ball`, $\Lip(f_{|B_R^n})$, is the supremum of $\Lip_X(f)$ over the
# {term}`sequences <sequence>` $X$ of $n$ tokens in the ball.
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
# For large $n$ and $R$ the sum is of order $\norm V_2\, t \sqrt n$: the key term, not the value term, brings the $R^2$.
#
# ::::{dropdown} Proof: from the three lines to the {term}`bound`
# :::{prf:proof}
# The norm of each term, then of the sum, before $V$ is applied:
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
# Tokens in one place can be replaced by one token with a weight: here two tokens with {term}`token weights` $\frac1n$
# and $\frac{n-1}n$ have the constant of all $n$ ({doc}`22_tightness`).


# %%
def constant(n, R):
    """Local Lipschitz constant of the two clusters."""
    weights = torch.tensor([1, n - 1]).double() / n
    pair = tight_input(A, 2, R)
    return local_lipschitz(head, pair, weights=weights, method="dense").value.item()


table = pd.DataFrame({"n": lengths})
table["p"] = 1 / (1 + (table.n - 1) * math.exp(-2 * R**2))
table["constant"] = [constant(n, R) for n in lengths]
table["lone"] = table.p * (1 + 2 * R**2 * (1 - table.p)) * (table.n - 1) ** 0.5
table["root"] = table.constant / table.n**0.5
table["bound"] = [bounds.general_upper(A, V, n, R) for n in lengths]

# %% tags=["hide-input"]
end = 1 + math.exp(2 * R**2)
top = minimize_scalar(lambda m: -constant(m, R), bounds=(2, 30 * end), method="bounded")
lost = brentq(lambda m: constant(m, R) - 0.5 * (m - 1) ** 0.5, end, 100 * end)
highest = minimize_scalar(lambda m: -constant(m, R) / m**0.5, bounds=(2, 30 * end), method="bounded")
known = {"end": end, "top": round(top.x, -2), "top-constant": -top.fun, "lost": round(lost, -3)}
known |= {"at": round(highest.x, -2), "hump": (1 + 2 * R**2) ** 2 / (8 * R**2)}
known |= {"off": 100 * (table.constant / table.lone - 1).max()}
for key, value in known.items():
    glue(f"root-{key}", float(value), display=False)
names = {"n": "tokens n", "p": "weight p of the lone token", "constant": "local constant"}
names |= {"lone": "push of the lone token alone", "root": "constant / √n", "bound": "Theorem 3.3"}
figures.table(table, names=names, digits=3)

# %% [markdown]
# Pushing the lone token alone gives the constant to within {glue:text}`root-off:.1f` %, and its formula explains the
# column constant / √n. While $p$ is very close to 1, the constant is near $\sqrt n$. Where $p$ falls, the factor
# $2R^2(1-p)$ counts: $p\,(1 + 2R^2(1-p))$ rises, for $R^2 \ge \frac12$, to $(1 + 2R^2)^2 / (8R^2)$, of order $R^2$:
# {glue:text}`root-hump:.2f` here, near {glue:text}`root-at:,.0f` tokens. There the order $R^2 \sqrt n$ of the theorem
# is
# reached.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-02-growth", "caption": "Local constants of two clusters for three radii, on log-log axes. The larger the radius, the longer a curve stays near or above $\\sqrt n$ (dotted) before it falls. A bar is where $p = \\frac12$. The bound for $R = 2$ (dashed) lies above all three."}, "image": {"alt": "Three curves that rise near or above the line root n, each to a peak that lies further to the right for a larger radius, and then fall. On each a short bar stands left of the peak. A dashed line lies above them all."}}
ax = plt.subplots(figsize=(6.2, 4.0))[1]
n = np.unique(np.geomspace(2, 1e6, 60).round())
looks, near = {1.0: "s", 1.5: "D", 2.0: "o"}, {"textcoords": "offset points"}
for radius, marker in looks.items():
    measured = np.array([constant(m, radius) for m in n])
    ax.plot(n, measured, color="C0", marker=marker, ms=4, markevery=5)
    half = 1 + math.exp(2 * radius**2)
    ax.plot(half, constant(half, radius), "|", color="black", ms=14, mew=2, zorder=5)
    at = np.searchsorted(n, 50 * math.exp(2 * radius**2))
    ax.annotate(f"R = {radius:g}", (n[at], measured[at]), (6, 4), color="C0", **near)
at = (3e3, bounds.general_upper(A, V, 3e3, 2.0))
ax.plot(n, [bounds.general_upper(A, V, m, 2.0) for m in n], color="C1", ls="--")
ax.annotate("Theorem 3.3, R = 2", at, (-8, 6), ha="right", color="#b34700", **near)
ax.plot(n, n**0.5, color="black", ls=":", lw=1.5)
ax.annotate(r"$\sqrt{n}$", (n[-1], n[-1] ** 0.5), (4, -4), color="black", **near)
ax.set(xscale="log", yscale="log", xlabel="tokens n", ylabel="Lipschitz constant", ylim=(0.7, 1e5))
ax.set_xticks(10.0 ** np.arange(7), ["1", "10", "100", "1,000", "10,000", "10⁵", "10⁶"])
ax.set_yticks(10.0 ** np.arange(6), ["1", "10", "100", "1,000", "10,000", "10⁵"])
plt.show()

# %% [markdown]
# ## How far the rate goes
#
# We say that the *rate* $\sqrt n$ is kept while the constant is at least $\frac12 \sqrt{n - 1}$. For that
# $p \ge \frac12$ is enough, which means $n$ up to $1 + e^{2R^2}$: for $R = 2$, to {glue:text}`root-end:,.0f` tokens.
# The curve peaks later, near {glue:text}`root-top:,.0f` tokens, at
# {glue:text}`root-top-constant:.0f`, and the rate is kept up to about {glue:text}`root-lost:,.0f`. Far beyond, $p$
# falls like $1/n$, faster than $\sqrt n$ grows, and the constant falls towards 1.
#
# For any $A$ with a real eigenvalue, and $V = I$, Proposition 3.4 of {cite:t}`castin2024smooth` (reconstructed) gives
# inputs whose constant is
#
# $$\text{at least } \tfrac12 \sqrt{n - 1} \quad \text{while} \quad n \le 1 + e^{2 \gamma R^2} .$$
#
# Here $\gamma = \max(-\gamma_{\min}, \gamma_{\max}/8)$, over the real eigenvalues of $A$ ({doc}`22_tightness`); for
# $A = -I$ it is 1. This length is **exponential in $R^2$**.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-02-movable", "caption": "To be moved: two clusters of $n$ tokens at radius $R$. The number beside a cluster says how far each of its tokens moves. Where does the constant rise above $\\sqrt n$, and where does it peak?"}, "image": {"alt": "On the left the lone token and the cluster on a line, with their outputs and how far each moves; on the right the constant against the number of tokens, with the bound and the line root n."}}
steps = [int(m) for m in np.unique(np.geomspace(3, 1e5, 28).round())]
figures.movable.two_clusters(moving.two_clusters(steps, [0.5, 1, 1.25, 1.5, 1.75, 2.0]))

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
lone, p = torch.zeros_like(x), head.probabilities(x)[0, 1, 0].item()
lone[0] = -x[0] / R  # one unit along u
each = (J @ lone.flatten()).reshape(drawn, 2)[1:]
assert torch.allclose(each, p * (1 + 2 * R**2 * (1 - p)) * lone[0].expand_as(each), rtol=1e-10), "value plus key"
assert (table.lone <= table.constant * (1 + 1e-12)).all()
if R == 2:  # the page says these of its own radius
    assert table.root.iloc[0] > 0.95 and table.constant.iloc[-1] < 0.5 * table.constant.iloc[-2], "both ends"
    assert push[0].norm() > 0.98 and 0.9 < moved[1:].norm(dim=1).min() and (table.constant < 1.01 * table.lone).all()
    assert abs(-highest.fun / known["hump"] - 1) < 0.01 and end < top.x < lost, "the peak, where the rate ends"
print("✓ checked: tokens with weights against copies; how far each output moves; the rate; no bound is exceeded")

# %% [markdown]
# ## What this shows and does not show
#
# - $\sqrt n$ is reached by inputs built for the purpose. Text need not look like them.
# - The bound is not tight: {doc}`21_general_bound` has a tighter one.
# - With a {term}`mask`, token $i$ sees only tokens $j \le i$. The same bound holds ({doc}`31_masked_bound`), and a
#   lone token that stands first is still seen by all.
# - Far past the peak *this* input loses the rate. Others may keep it longer; none keeps it at all lengths, because
#   the constant of an unmasked head on the ball has a bound without $n$ ({doc}`23_mean_field`).
#
# **One thing to try.** Set `R = 1.0`: which of the five lengths still keep the rate?
#
# **Next:** {doc}`03_real_model`.
