# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Masked mean-field bound (Theorem 4.4)
#
# Without a {term}`mask` one {term}`bound` holds for every number of {term}`tokens <token>` ({doc}`23_mean_field`). With a
# {term}`mask (causal)` the early tokens of a text are averaged with few others, and in the distance $d_2$ below this
# alone can nearly double a perturbation. So Theorem 4.4, as we reconstruct it, fails for small {term}`logit ranges
# <logit range>` $t$. We prove a bound for every $t$, at most $\norm V_2 \big(t + 2(1 + \sqrt 2\, t)\, e^t\big)$, with the
# {term}`exponent` $t$ instead of $2t$; in terms of $t$ alone no other can be lower by more than a factor of two, at
# every $t$ that we tried. For one given $A$ the exponent is the same as without a mask ({prf:ref}`masked-rate`), but the
# mask can cost a power of $t$ ({prf:ref}`masked-order`).

# %% tags=["parameters", "hide-input"]
measures_count = 50  # random masked measures for the transport check
lengths = [2, 10, 100, 1000]  # of the averaging operator
tokens, step = 2000, 0.02  # two clusters, each weight e^step times the one before
ascents = 6  # gradient ascents for each value of t
drawn = 500  # random masked measures for each of twenty values of t
seed = 0

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from myst_nb import glue
from scipy.optimize import brentq, linprog

from lab import figures, ledger
from lab.verification.ascent import Norm
from lipnb import Attention, AttentionJacobian, bounds, local_lipschitz, measures, worst_case
from lipnb.worst_case import gaussian

figures.house_style()
generator = torch.Generator().manual_seed(seed)
normal = gaussian(generator)


# %% tags=["hide-input"]
def averaging_norm(n, p, steps=500):
    """Norm in l^p of averages over the past of n numbers, by nonlinear power iteration."""
    counts, g = np.arange(1, n + 1), np.arange(1, n + 1) ** (-1 / p)
    for _ in range(steps):
        image = np.cumsum(g / np.linalg.norm(g, p)) / counts
        g = np.cumsum((image ** (p - 1) / counts)[::-1])[::-1] ** (1 / (p - 1))
    return np.linalg.norm(image, p)


averages = []
for n in sorted({*lengths, 1, 3, 5, 20, 50, 200, 500, 2000}):
    matrix = torch.tril(torch.ones(n, n, dtype=torch.float64))
    matrix /= torch.arange(1, n + 1, dtype=torch.float64)[:, None]
    in_l1, in_l2 = matrix.sum(0).max().item(), torch.linalg.matrix_norm(matrix, 2)
    averages.append((n, in_l2.item(), in_l1, averaging_norm(n, 1.5), averaging_norm(n, 3)))  # fmt: skip
names = ["n", "norm", "norm in l1", "p = 1.5", "p = 3"]
averages = pd.DataFrame(averages, columns=names).set_index("n")
still = Attention.from_matrices(torch.zeros(1, 1), torch.eye(1), masked=True)
still = still.to(dtype=torch.float64)
by_solver = {n: local_lipschitz(still, normal(n, 1)).value.item() for n in lengths}
glue("solver_off", ledger.written(max(abs(by_solver[n] / averages.norm[n] - 1) for n in lengths), 1), display=False)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-32-averages", "caption": "Averages over the past, the masked map with $A = 0$. Above: in $d_2$ the constant tends slowly to 2 (Hardy's inequality), so a bound for all $n$ must be at least 2 here. Below: in $d_p$ it tends to $p/(p - 1)$ for $p > 1$ (dashed), and at $p = 1$ it grows like $\\log n$ without end."}, "image": {"alt": "Two panels against the number of tokens. Above, the constant of averaging over the past rises from 1 to about 1.77 and stays below the line at 2. Below, the same for four orders p: for p above one the curves stay below dashed limits, for p equal to one the curve keeps rising."}}
ax, below = figures.panels(1, rows=2, width=6.4, height=3.5)
ax.plot(averages.index, averages.norm, "^-", color="#0072b2")
ax.axhline(2, color="#009e73", lw=1, ls="--")
ax.text(0.8, 2.03, "corrected bound at $t = 0$: 2", color="#009e73")
ax.axhline(1, color="#d55e00", lw=1)
ax.text(300, 1.03, "reconstructed form at $t = 0$: 1", color="#d55e00", ha="center")
for n in lengths:
    look = {"textcoords": "offset points", "ha": "right", "color": "#0072b2"}
    ax.annotate(f"{averages.norm[n]:.3f}", (n, averages.norm[n]), (-1, 7), **look)
ax.set(ylabel="Lipschitz constant in $d_2$", ylim=(0.9, 2.2))
columns = {"norm in l1": 1, "p = 1.5": 1.5, "norm": 2, "p = 3": 3}
for (name, p), colour, marker in zip(columns.items(), ("k", "0.45", "#0072b2", "#56b4e9"), "so^D", strict=True):
    below.plot(averages.index, averages[name], marker + "-", color=colour)
    below.annotate(f"p = {p:g}", (averages.index[-1], averages[name].iloc[-1]), (8, -3 if p == 3 else 0), va="center", color=colour,
                   textcoords="offset points")  # fmt: skip
    if p > 1:
        below.plot([1, 2000], [p / (p - 1)] * 2, color=colour, lw=1, ls="--")
below.set(ylim=(0.9, 8.5), ylabel="Lipschitz constant in $d_p$")
for one in (ax, below):
    one.set(xscale="log", xlabel="tokens n", xlim=(0.7, 6000))
    one.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
plt.show()

# %% [markdown]
# ## The smallest case: two tokens, no logits
#
# Put $A = 0$ and $V = 1$. The first token stays, the second becomes the average of both. The reconstructed bound is 1.
# But the {term}`Jacobian` with rows $(1, 0)$ and $(\frac12, \frac12)$ has the norm $\varphi/\sqrt 2$, with the golden
# ratio $\varphi$. We move the two tokens along its top direction and compare distances.

# %% tags=["hide-input"]
two = torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)  # the Jacobian
f = Attention.from_matrices(0 * two[:1, :1], two[:1, :1], masked=True)
x, s = torch.tensor([[0.2], [-0.4]], dtype=torch.float64), torch.tensor([0.0, 1.0])
y = x + 0.1 * torch.linalg.svd(two)[2][0][:, None]
before = measures.conditional_wasserstein(s, x, s, y)
after = measures.conditional_wasserstein(s, f(x), s, f(y))
golden = (1 + 5**0.5) / 2 / 2**0.5
print(f"d_2 before {before:.4f}, after {after:.4f}: {after / before:.4f} times as far")
print(f"norm of the Jacobian {torch.linalg.matrix_norm(two, 2):.4f} = {golden:.4f}")

# %% [markdown]
# ## The statements
#
# {bdg-warning}`reconstructed` {ref}`what is this? <badges>`
#
# :::{prf:definition} Masked mean-field attention {cite}`castin2024smooth`, Def. 2.6 and 4.1
# :label: masked-mean-field
#
# A masked measure $\bar\mu$ is a measure of pairs (position, token) in $[0, 1] \times \R^d$. It goes to
# $F^m(\bar\mu) = (\Gamma_{\bar\mu})_\sharp \bar\mu$, with
#
# $$\Gamma_{\bar\mu}(s, x) = \Big(s,\ \frac{\int V y\, e^{x^\top A^\top y}\, 1_{r \le s}\, d\bar\mu(r, y)}
#   {\int e^{x^\top A^\top y}\, 1_{r \le s}\, d\bar\mu(r, y)}\Big) .$$
#
# For measures with the same law $\theta$ of positions, and $\mu^s$ the law of the tokens at $s$,
# $d_p(\bar\mu, \bar\nu) = \big(\int W_p(\mu^s, \nu^s)^p\, d\theta(s)\big)^{1/p}$; else $d_p = \infty$.
# :::
#
# {bdg-secondary}`ours` {ref}`what is this? <badges>`
#
# :::{prf:theorem} Masked mean-field bound {cite}`castin2024smooth`, Thm 4.4, corrected
# :label: masked-mean-field-bound
#
# Let $F^m$ be one head with the causal mask, $t = \norm A_2 R^2$ and $1 < p \le \infty$. On masked measures of tokens
# of norm at most $R$, whatever the law of positions,
#
# $$\begin{aligned} \Lip^{d_p}(F^m) &\le \norm V_2 \Big(t + e^{2t/p} \int_0^1 w(q)\,
#   \Big(\frac{1 - (1 - e^{-2t})\, q}{q}\Big)^{1/p} dq\Big) \\
#   &\le \norm V_2 \Big(t + \frac{p}{p - 1}\, \big(1 + 2^{1/p}\, t\big)\, e^{2t/p}\Big) , \end{aligned}$$
#
# with $w(q) = 1 + 2t \max(1 - 2q, 2\rho - 1)$ and $1 + 2t \rho^2 = \sqrt{1 + t^2}$.
# :::
#
# The first line is `bounds.masked_mean_field_upper_sharp`. A query bias $b_Q$ adds $\abs{K^\top b_Q} R / \sqrt k$ to $t$; heads add
# up. The proof does not cover a sliding window, which also hides the early tokens.
#
# The formula of the paper's theorem is lost, but its text says that the proof follows the same computations as without
# a mask. We therefore reconstruct the constant of the unmasked case, $\norm V_2 (1 + 3t)\, e^{2t}$, for every $p$. That
# form fails.
#
# {bdg-secondary}`ours` {ref}`what is this? <badges>`
#
# :::{prf:theorem} How far it fails (ours)
# :label: masked-mean-field-lower
#
# Let $\mu$ be a law of finitely many tokens in the ball. Without a mask, let $P + K$ be the terms of the Jacobian at
# $\mu$ by which tokens act as values and as keys, and $Q$ that of the query. Then
#
# $$\Lip^{d_p}(F^m) \ge \Big\lVert \frac{p}{p - 1}\, (P + K) + Q \Big\rVert_{L^p(\mu)} .$$
#
# For $V = I$, $A = \norm A_2 I$ and half of the mass at each of $\pm R u$, $\abs u = 1$, this is at least
# $\frac{p}{p - 1} + \frac{t}{\cosh^2 t}$.
# :::
#
# So the reconstructed form fails in $d_2$ for all $t \le$ {glue:text}`fails_below:.4f`. In $d_p$ it fails at *every*
# $t$, once $p$ is close enough to 1. From $t =$ {glue:text}`settled:.4f` on the corrected bound is below the
# reconstructed form in $d_2$, which therefore holds there. In $d_\infty$ the corrected bound is $t + \sqrt{1 + t^2}$, so
# the reconstructed form holds for every $t$. The corrected bound is tight at $t = 0$, for every $p$.
#
# ::::{dropdown} Why it fails up to the first value and holds from the second
# $2 + t / \cosh^2 t$ has slope at most 1 and $(1 + 3t)\, e^{2t}$ at least 5, so they cross once. Up to $t = 0.44$ the two
# forms are compared on a fine grid. Both increase: the second because $W$ and $Z$ of its proof increase with $t$ at
# every point, and its integral $\int r^{-1/p}\, d(W \circ Z)$ is, by parts, larger for larger $W \circ Z$. From $0.43$
# on, divided by $e^t$, the reconstructed form has slope above 8 and the second line of the theorem below 4.
# ::::
#
# {bdg-secondary}`ours` {ref}`what is this? <badges>`
#
# :::{prf:theorem} The masked rate (ours)
# :label: masked-rate
#
# In the setting of {prf:ref}`masked-mean-field-bound` let $\gamma^* = \frac12 \max_{\abs x \le 1} (\abs{A x} - x \cdot
# A x)$. Cut the ball of radius $R$ into $\prod_j N_j$ boxes along the right singular vectors of $A$, with any whole
# numbers $N_j \ge 1$ and the singular values $\sigma_j$, and let $E_c$ be the largest $e^{R \abs{A x} - x \cdot A x}$
# in the box $c$. Whatever the law of positions,
#
# $$\Lip^{d_2}(F^m) \le \norm V_2 \big(t + (2 + \sqrt 6\, t)\, \tau\big), \qquad \tau = e^{3 \kappa} \Big(\sum_c
#   E_c\Big)^{1/2} , \qquad \kappa = R^2 \Big(\sum_j \sigma_j^2 / N_j^2\Big)^{1/2} .$$
#
# Hence, for $A, V \ne 0$, $\ \log \Lip^{d_2}(F^m) / R^2 \to \gamma^*$ as $R \to \infty$, as without a mask
# ({prf:ref}`exact-rate`). For $A$ of rank $r$ the bound is of order $t^{1 + r/2 - 1/4}\, e^{\gamma^* R^2}$ at most, and
# at most of order $t^{1 + r/4}\, e^{\gamma^* R^2}$ if finitely many points of the unit ball are best, and around them
# $\abs{A x} - x \cdot A x$ falls at least like the square of the distance.
# :::
#
# Only boxes near a best point have an $E_c$ near $e^{2 \gamma^* R^2}$; that is why both orders are below $t^{1 + r/2}$
# by a power of $t$. The distance in the last condition is along the right singular vectors with $\sigma_j > 0$.
#
# ::::{dropdown} In the code, with a query bias, and for values or keys alone
# `bounds.masked_mean_field_upper` is an older, weaker form of {prf:ref}`masked-mean-field-bound`, with
# $(1 + 2t)\, e^{2t}$ for the last two factors.
#
# The bound has no $\log n$, although column sums have: for $A = 0$ the first column sums to
# $1 + \frac12 + \dots + \frac1n$.
#
# `bounds.masked_mean_field_upper_exact` bounds the sum in closed form, whatever $A$, and has at most the first of the
# two orders; then it takes the smaller of both theorems. Values alone may be bounded by either: by $2 \tau$, or with
# $w = 1$ in {prf:ref}`masked-mean-field-bound`. Keys alone may not: there $w - 1$ is what keys add to values, and
# alone they can be more. A bound for keys alone is never needed (end of the proof of the orders). A query bias $b$
# adds $\abs b R$ to $t$ in the key term, and to $\gamma^* R^2$.
# ::::
#
# For masked {term}`sequences <sequence>` and $V = I$ growth like $\sqrt n$ lasts as long as without a mask. Put the lone
# token of {prf:ref}`rate-sequences` first: every later row gives it at least as much attention as there.
#
# {bdg-secondary}`ours` {ref}`what is this? <badges>`
#
# :::{prf:theorem} With a mask the order is larger (ours)
# :label: masked-order
#
# Let $A = V = I$ in any dimension and $t = R^2 \ge 16$, so that $\gamma^* R^2 = t/8$. There are masked measures of
# tokens on one line with
#
# $$\norm P_2 \ge \frac{t^{1/4}}{\sqrt{8 e}}\, e^{t/8} \qquad \text{and with} \qquad \Lip^{d_2}(F^m) \ge
#   \frac{t^{5/4}}{57}\, e^{t/8} ,$$
#
# where $P$ is the term of the values. Without a mask $\norm P_2 \le e^{t/8}$ and $\Lip(F) \le t + \sqrt{1 + t^2}\,
# e^{t/8}$ ({prf:ref}`exact-rate`).
# :::
#
# In one dimension $t^{5/4} e^{t/8}$ is also the order of the bound of {prf:ref}`masked-rate`, whose $\tau$ is at most
# $\big((6 + \frac1t) \sqrt{\pi t} + 4\big)^{1/2}\, e^{1/2 + t/8}$. So there the order is exact, and the mask costs
# $t^{1/4}$.
#
# ## Measured: the map, the distance, Lemma 4.2
#
# We write down the map of the definition for pairs in any order, and compare it with masked {term}`attention`. The
# distance must be $\norm{X - Y}_F/\sqrt n$ when all positions differ, $W_2$ when all are equal, and infinite when the
# laws of positions differ. Lemma 4.2 says that the constants of $f^m$ and $F^m$ agree. Locally, the quotient of distances
# along the worst small move must be the norm of the masked Jacobian; globally, we compare both suprema for two tokens
# on a line. All agree: the largest relative errors are {glue:text}`error_map` for map and distance,
# {glue:text}`error_local` locally and {glue:text}`error_global` globally.


# %% tags=["hide-input"]
def masked_field(A, V, s, x):
    """Second slot of Gamma at every pair (s_i, x_i) of equal weights, shape (n, m)."""
    sees = s[None, :] <= s[:, None]
    P = (x @ A.T @ x.T).masked_fill(~sees, -torch.inf).softmax(1)
    return P @ x @ V.T


def worst_quotient(f, x):
    """Quotient in d_2 along the worst small move, over the norm of the Jacobian."""
    _, sigma, moves = torch.linalg.svd(AttentionJacobian(f, x).dense())
    inwards = -torch.sign((moves[0] * x.flatten()).sum())
    y = x + 1e-6 * inwards * moves[0].view_as(x)
    s = torch.rand(len(x), generator=generator, dtype=torch.float64).sort().values
    after = measures.conditional_wasserstein(s, f(x), s, f(y))
    return after / measures.conditional_wasserstein(s, x, s, y) / sigma[0].item()


# %% tags=["hide-input"]
rows = []
for _ in range(100):
    n, d = torch.randint(2, 8, (2,), generator=generator).tolist()
    A, V, x, y = normal(d, d), normal(3, d), normal(n, d), normal(n, d)
    s = torch.rand(n, generator=generator, dtype=torch.float64).sort().values
    out, order = masked_field(A, V, s, x), torch.randperm(n, generator=generator)
    same = masked_field(A, V, s[order], x[order])[order.argsort()]
    error = (out - Attention.from_matrices(A, V, masked=True)(x)).norm() / out.norm()
    apart = measures.conditional_wasserstein(s, x, s[order], y[order])
    one = torch.zeros(n, dtype=torch.float64)
    together = measures.conditional_wasserstein(one, x, one, y)
    rows.append(
        {
            "field = attention": error.item(),
            "shuffled pairs": ((out - same).norm() / out.norm()).item(),
            "all positions differ": apart / ((x - y).norm().item() / n**0.5) - 1,
            "one position": together / measures.wasserstein(x, y) - 1,
        }
    )

# %% tags=["hide-input"]
facts = pd.DataFrame(rows)
field_errors = facts[["field = attention", "shuffled pairs"]]
distance_errors = facts[["all positions differ", "one position"]]
kept, plans = [], []
for case in range(40):
    n, d = 3 + case % 4, 1 + case % 3
    x, y, s = normal(n, d), normal(n, d), torch.linspace(0, 1, n).double()
    out = masked_field(normal(d, d), normal(d, d), s, x)
    kept.append(measures.conditional_wasserstein(s, x, s, x + out) / (out.norm().item() / n**0.5) - 1)
    doubled = measures.conditional_wasserstein(s, x, 2 * s, x + out)  # with a first coordinate s, added
    s = torch.randint(0, 2, (n,), generator=generator).double()
    cost = torch.cdist(x, y).square() + torch.where(s[:, None] == s, 0.0, 1e6)  # no mass leaves its position
    rows_and_columns = np.vstack([np.kron(np.eye(n), np.ones(n)), np.kron(np.ones(n), np.eye(n))])
    plan = linprog(cost.flatten().numpy(), A_eq=rows_and_columns, b_eq=np.full(2 * n, 1 / n))
    plans.append(measures.conditional_wasserstein(s, x, s, y) / plan.fun**0.5 - 1)
elsewhere = measures.conditional_wasserstein(s, x, s + 0.1, y)

# %% tags=["hide-input"]
quotients, suprema = [], []
for _ in range(measures_count):
    n, d = torch.randint(2, 7, (2,), generator=generator).tolist()
    f = Attention.from_matrices(normal(d, d), normal(d, d), masked=True)
    quotients.append(abs(worst_quotient(f, normal(n, d)) - 1))
sides = (torch.linspace(-2, 2, count).double() for count in (29, 201))
places, fine = (torch.cartesian_prod(side, side)[:, :, None] for side in sides)
for size in torch.tensor([-2.0, -1.0, 0.5, 1.0, 2.0]).double().view(-1, 1, 1):
    f = Attention.from_matrices(size, torch.ones_like(size), masked=True)
    far = torch.pdist(f(places).flatten(1)) / torch.pdist(places.flatten(1))
    norms = local_lipschitz(f, fine, method="dense").value
    near = worst_quotient(f, fine[norms.argmax()])
    suprema.append(max((far.max() / norms.max()).item(), near) - 1)
for name, errors in {"map": facts.abs().max().max(), "local": max(quotients), "global": max(map(abs, suprema))}.items():
    glue(f"error_{name}", ledger.written(errors, 1), display=False)

# %% [markdown]
# ## Measured: averages over the past
#
# With $A = 0$ and $V = I$ token $i$ becomes the average of the first $i$ tokens ({numref}`fig-32-averages`). The same
# happens for *every* $A$ where all tokens are equal. In $d_2$ the norm of this operator is exact, and our solver on
# masked attention agrees with it to {glue:text}`solver_off`. In $d_1$ it is the largest column sum,
# $1 + \frac12 + \dots + \frac1n$. For other $p$ a power iteration approaches it from below.

# %% [markdown]
# ## Measured: both forms against hard inputs
#
# We search for hard inputs by {term}`gradient ascent` over six tokens of the unit ball with even weights, and with random
# weights at the inputs found. We also take a thousand equal tokens, where the map is averaging.

# %% tags=["hide-input"]
hard, eye = [], torch.eye(2, dtype=torch.float64)
angles = torch.linspace(0, np.pi, 721, dtype=torch.float64)
round_the_circle = torch.stack([angles.cos(), angles.sin()], 1)
for t in (0.0, 0.01, 0.03, 0.1, 0.15, 0.2, 0.3, 1.0, 3.0):
    reconstructed = bounds.mean_field_upper(t * eye, eye, 1.0)
    for case in range(ascents):
        A = normal(2, 2)
        A = t * A / torch.linalg.matrix_norm(A, 2) if case else -t * eye
        f = Attention.from_matrices(A, eye, masked=True)
        starts = torch.stack([normal(6, 2), 1 + 0.1 * normal(6, 2)])
        x, best = worst_case.climb(f, starts, 1.0, steps=60)
        weights = normal(6).exp()
        random = local_lipschitz(f, x[0], weights=weights / weights.sum()).value.item()
        J = AttentionJacobian(f, x[0]).dense().view(6, 2, 6, 2)  # p = inf: sum_j |J_ij^T v|; older form: row sums
        rows = torch.linalg.matrix_norm(J, 2, dim=(1, 3)).sum(1).max().item()
        most = torch.einsum("va,iajb->vijb", round_the_circle, J).norm(dim=-1).sum(-1).max().item()
        found = max(best.max().item(), random)
        older, ours = bounds.masked_mean_field_upper, bounds.masked_mean_field_upper_sharp
        uppers = [bound(t * eye, eye, 1.0, p=p) for bound in (older, ours) for p in (2, np.inf)]
        hard.append((t, found, reconstructed, *uppers[::2], rows / uppers[1], most / uppers[3]))
columns = ["t", "found", "reconstructed", "older", "corrected", "p inf, older", "p inf"]
hard = pd.DataFrame(hard, columns=columns)


# %% tags=["hide-input"]
def worst_share(t):
    """Largest norm of 2 (P + K) + Q at tokens 1 and -1, over shares and signs, V = 1: value, A = +-t, share of 1."""
    x, share = np.array([1.0, -1.0]), 1 / (1 + np.exp(np.linspace(0, 2 * t + 4, 400)))
    a, kinds = np.stack([share, 1 - share], 1), []
    for A in (t, -t):
        P = a[:, None] * np.exp(A * np.outer(x, x) - t)
        P /= P.sum(2, keepdims=True)
        gap = x - P @ x[:, None]
        J = 2 * P * (1 + A * gap * x[:, None]) + A * np.eye(2) * (P * gap**2).sum(2, keepdims=True)
        norms = np.linalg.norm(J * np.sqrt(a[:, :, None] / a[:, None]), 2, axis=(1, 2))
        kinds.append((norms.max(), A, share[norms.argmax()]))
    return max(kinds)


worst = hard.groupby("t").max()
worst["equal tokens"] = averages.norm[1000]
most = worst[["found", "equal tokens"]].max(axis=1)
for form in ("reconstructed", "corrected", "older"):
    worst["worst / " + form] = most / worst[form]
shown = ["t", "found", "equal tokens", "reconstructed", "corrected"]
names = {name: name for name in shown} | {"t": "logit range t"}
figures.table(worst.reset_index()[shown], names, digits={"t": 2}, bold=worst["worst / reconstructed"].to_numpy() > 1)

# %% [markdown]
# In the rows in bold these inputs exceed the reconstructed form. One {term}`sequence` comes close to the lower bound of
# the theorem, by which the form fails at $t = 0.15$ too: tokens $1, -1, 1, -1, \dots$ with {term}`token weights` that grow geometrically, so that the averages reach far into
# the past. We take the share of the weight at $1$ and the sign of $A$ that give the largest lower bound.

# %% tags=["hide-input"]
x = torch.ones(tokens, 1, dtype=torch.float64)
x[1::2] = -1
growing = (step * torch.arange(1.0 - tokens, 1.0, dtype=torch.float64)).exp()
clusters = []
for t in (0.01, 0.03, 0.1, 0.16, 0.17, 0.2, 0.3, 0.6, 1.0, 3.0, 10.0, 30.0):
    limit, A, share = worst_share(t)
    f = Attention.from_matrices(torch.full((1, 1), A).double(), x[:1], masked=True)
    a = growing * torch.where(x[:, 0] > 0, share, 1 - share)
    norm = local_lipschitz(f, x, weights=a / a.sum(), rtol=1e-6).value.item()
    reconstructed = (1 + 3 * t) * np.exp(2 * t)
    ours = bounds.masked_mean_field_upper_sharp(t * eye, eye, 1.0)
    clusters.append((t, norm, limit, ours, norm / reconstructed, norm / ours))

# %% tags=["hide-input"]
names = ["t", "measured", "lower bound", "corrected", "measured / reconstructed", "measured / corrected"]
clusters = pd.DataFrame(clusters, columns=names)
older = [bounds.masked_mean_field_upper(t * eye, eye, 1.0) for t in clusters.t]
under = [*clusters.measured / older, *averages["p = 1.5"] / 3, *averages["p = 3"] / 1.5]
recalled = lambda t: (1 + 3 * t) * np.exp(2 * t)  # noqa: E731
ours = lambda t: bounds.masked_mean_field_upper_sharp(t * eye, eye, 1.0)  # noqa: E731
limit = brentq(lambda t: recalled(t) - 2 - t / np.cosh(t) ** 2, 0, 1)
settled = brentq(lambda t: recalled(t) - ours(t), limit, 1)
beyond = worst[worst.index > limit]["worst / reconstructed"].max()
beyond = max(beyond, clusters["measured / reconstructed"][clusters.t > limit].max())
curve = pd.DataFrame({"t": np.geomspace(0.008, 30, 300)})
curve["lower"] = [worst_share(t)[0] for t in curve.t]
curve["ours"] = [ours(t) for t in curve.t]
glue("curve_from", float(curve.t.min()), display=False)
glue("curve_to", float(curve.t.max()), display=False)
glue("fails_below", float(np.floor(1e4 * limit) / 1e4), display=False)
glue("settled", float(np.ceil(1e4 * settled) / 1e4), display=False)
glue("beyond", float(beyond), display=False)
glue("nearest", float(np.floor(100 * (curve.lower / curve.ours).min()) / 100), display=False)
# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-32-both-forms", "caption": "Constants in $d_2$, divided by the corrected bound. In the orange range two clusters exceed the reconstructed form: it fails. Right of the grey strip it is above the corrected bound, so it holds. In the strip it is open: there the lower bound falls from all of it to two thirds of it. At the ranges tried beyond the orange one, from $t = 0.2$ on, inputs reach at most {glue:text}`beyond:.2f` of it."}, "image": {"alt": "Constants in the distance d_2 over the corrected bound, against the logit range, log-log. The lower bound and the two clusters stay between one half and one, ascents with six tokens fall far below. The reconstructed form begins below them, in a shaded range, crosses a narrow grey strip and leaves the plot upwards."}}
ax = figures.panels(1, width=6.4, height=4)[0]
t, one = curve.t, curve.ours
ax.axhline(1, color="#009e73")
ax.text(1, 1.06, "corrected bound", color="#009e73", va="bottom")
ax.plot(t, recalled(t) / one, color="#d55e00")
ax.text(0.72, 3, "reconstructed form", color="#d55e00", ha="right")
ax.plot(t, curve.lower / one, color="#0072b2", lw=1, ls="--")
ax.plot(clusters.t, clusters["measured / corrected"], "^", color="#0072b2")
ax.text(30, 0.5, "two clusters (dashed: lower bound)", color="#0072b2", ha="right", va="top")
shown = worst[worst.index > 0]
ax.plot(shown.index, shown.found / shown.corrected, "o", color="#e69f00")
ax.text(3.6, 0.0345, "ascent, 6 tokens", color="#a06d00", va="center")
ax.axvspan(t.min(), limit, color="#d55e00", alpha=0.12, lw=0)
ax.text(0.011, 0.025, "reconstructed form fails", color="#d55e00")
ax.axvspan(limit, settled, color="#999999", alpha=0.3, lw=0)
ax.text(0.225, 0.16, "open", color="0.25", ha="center", rotation=90)
ax.set(xscale="log", yscale="log", xlabel="logit range $t$", ylim=(0.02, 6))
ax.set(ylabel="constant / corrected bound", xlim=(t.min(), 1.3 * t.max()))
ax.set_xticks([0.01, 0.1, 1, 10], ["0.01", "0.1", "1", "10"])
ax.set_yticks([0.03, 0.1, 0.3, 1, 3], ["0.03", "0.1", "0.3", "1", "3"])
plt.show()

# %% [markdown]
# The corrected bound cannot be improved much: at every $t$ tried, from {glue:text}`curve_from:g` to
# {glue:text}`curve_to:g`, {term}`two clusters` give a lower bound of more than {glue:text}`nearest:.0%` of it. They also
# show the cost of the mask. At $t = 3$ they approach {glue:text}`masked_three:.0f` with a mask, in $d_2$; without a mask no measure can
# exceed {glue:text}`free_three:.0f` ({doc}`29_exact_rate`).
#
# Random measures stay below the corrected bound too: of {glue:text}`measures_drawn:,.0f`, with one to eight tokens, even
# and very uneven weights and $t$ from 0 to 30, the largest constant is {glue:text}`random_worst:.2f` of the bound.

# %% tags=["hide-input"]
glue("masked_three", float(worst_share(3.0)[0]), display=False)
glue("free_three", float(np.ceil(bounds.mean_field_upper_exact(-3 * eye, eye, 1.0))), display=False)
shares = []
for case, t in enumerate([0.0, *np.geomspace(0.01, 30, 19)]):
    for part in range(5):
        n, d = 1 + (3 * case + part) % 8, 1 + part % 3
        A = normal(d, d)
        A = t * A / torch.linalg.matrix_norm(A, 2)
        x = torch.nn.functional.normalize(normal(drawn // 5, n, d), dim=-1)
        a = (part * normal(drawn // 5, n) + 2 * part * torch.linspace(0, 1, n)).softmax(-1)
        f = Attention.from_matrices(A, torch.eye(d).double(), masked=True)
        values = local_lipschitz(f, x, weights=a, method="dense").value
        shares.append(values / bounds.masked_mean_field_upper_sharp(A, torch.eye(d), 1.0))
shares = torch.cat(shares).numpy()
glue("measures_drawn", len(shares), display=False)
glue("random_worst", float(shares.max()), display=False)

# %% [markdown]
# How near do inputs come to the bound with the exact rate? For six matrices we maximise the constant by gradient ascent
# over eight tokens and their weights, with half of the starts near the best pair of {doc}`29_exact_rate`. We also compare
# the {term}`exponents <exponent>` at that pair, with the light token first, at $\gamma^* R^2 = 100$.


# %% tags=["hide-input"]
def ascended_masked(A, starts=8, n=8, steps=80):
    """The largest masked constant found with V = I, over tokens of the unit ball and their weights."""
    rate, d = bounds.mean_field_rate(A), len(A)
    near = torch.stack([rate.y, *[rate.x] * (n - 1)]).expand(starts // 2, -1, -1)
    x = torch.cat([normal(starts // 2, n, d), near + 0.1 * normal(starts // 2, n, d)])
    logits = normal(starts, n) + torch.linspace(0, 1, n) * 3 * torch.rand(starts, 1, generator=generator)
    logits[:, 0] -= 2 * rate.lower * torch.rand(starts, generator=generator)
    norm, best = Norm(Attention.from_matrices(A, torch.eye(d).double(), masked=True), x), 0.0
    optimizer = torch.optim.Adam([x.requires_grad_(), logits.requires_grad_()], lr=0.05)
    for _ in range(steps):
        found = norm(x / x.norm(dim=-1, keepdim=True).clamp_min(1), logits.softmax(1))
        best = max(best, found.max().item())
        optimizer.zero_grad()
        (-found.log().sum()).backward()
        optimizer.step()
    return best


# %% tags=["hide-input"]
matrices = {"−I": -eye, "I": eye, "diag(1, −1/8)": torch.tensor([[1.0, 0.0], [0.0, -1 / 8]]).double(),
            "a quarter turn": torch.tensor([[0.0, -1.0], [1.0, 0.0]]).double(),
            "e₁e₂ᵀ": torch.tensor([[0.0, 1.0], [0.0, 0.0]]).double(), "random": normal(2, 2)}  # fmt: skip
rates = []
for name, A in matrices.items():
    A, exact = A / torch.linalg.matrix_norm(A, 2), bounds.masked_mean_field_upper_exact
    rate, row = bounds.mean_field_rate(A), {"A": name}
    for t in (1.0, 8.0):
        row[t] = ascended_masked(t * A) / exact(t * A, eye, 1.0)
    R, light = (100 / rate.lower) ** 0.5, np.exp(-200)
    f, pair = Attention.from_matrices(A, eye, masked=True), R * torch.stack([rate.y, rate.x])
    weights = torch.tensor([light, 1 - light]).double()
    row["measured"] = local_lipschitz(f, pair, weights=weights, method="dense").value.log().item() / 100
    row["by rate"], row["by norm"] = (
        bound(A, eye, R, log=True) / 100 for bound in (exact, bounds.masked_mean_field_upper_sharp)
    )
    rates.append(row)
rates = pd.DataFrame(rates)
headings = {"A": "matrix A", 1.0: "found / upper, t = 1", 8.0: "t = 8", "measured": "ln measured / γ*R²",
            "by rate": "ln upper / γ*R²", "by norm": "by t alone"}  # fmt: skip
figures.table(rates, headings, digits=3)

# %% tags=["hide-input"]
slack = 1 / rates.set_index("A")[8.0].drop("−I")
glue("masked-least-slack", float(np.floor(slack.min())), display=False)
glue("masked-most-slack", float(np.ceil(slack.max())), display=False)

# %% [markdown]
# The exponent is right for every $A$. At $t = 8$ the bound is about twice the constant that we found for $-I$, and
# {glue:text}`masked-least-slack:.0f` to {glue:text}`masked-most-slack:.0f` times for the other matrices.
#
# ## Measured: what the mask costs next to the rate
#
# The proof of {prf:ref}`masked-order` puts a light token first, at the point that later rows look for. Then comes a row
# of tokens that are all nearly a best $x$. A step towards the light token costs a row little of its attention to that
# token, but it leaves the others behind: they are no longer the best for each other. We evaluate this measure for $A = 1$, and a similar one for a quarter turn:
# tokens on a short arc, and a light one a quarter turn ahead.


# %% tags=["hide-input"]
def light_first(y, others, light):
    """Tokens and weights: y of the weight `light`, then the others with even weights of total one."""
    weights = torch.tensor([light, *[1 / len(others)] * len(others)], dtype=torch.float64)
    return torch.cat([y[None], others]), weights / weights.sum()


def on_a_line(t, count=160):
    """The measure of the proof for A = 1."""
    s = 1 / 2 + torch.linspace(-1, 1, count, dtype=torch.float64)[:, None] / t**0.5
    return light_first(t**0.5 * torch.ones(1).double(), t**0.5 * s, 2 * np.exp(1 - t / 4) / t**0.5)


def on_an_arc(t, count=160, light=1 / 8):
    """For a quarter turn: angles up to 1.5 / sqrt t, and the light token at a right angle."""
    angle = torch.linspace(-1.5, 1.5, count, dtype=torch.float64) / t**0.5
    arc = t**0.5 * torch.stack([angle.cos(), angle.sin()], 1)
    return light_first(t**0.5 * eye[1], arc, light * np.exp(-t) / t**0.5)


# %% tags=["hide-input"]
def norm_of_values(A, x, a):
    """Norm of the term of the values in L^2 of the weights."""
    later = torch.ones(len(x), len(x)).triu(1).bool()
    P = (x @ A.T @ x.T + a.log()).masked_fill(later, -torch.inf).softmax(1)
    return torch.linalg.matrix_norm(a.sqrt()[:, None] * P / a.sqrt(), 2).item()


quarter, one = matrices["a quarter turn"], eye[:1, :1]
turned = Attention.from_matrices(quarter, eye, masked=True)
mask_costs = []
for t in (9, 16, 25, 36, 64, 100, 200, 400):
    free, row = bounds.mean_field_upper_exact(quarter, eye, t**0.5), {"t": t}
    for count in (20, 40, 160):
        x, a = on_an_arc(t, count)
        row[count] = local_lipschitz(turned, x, weights=a, method="dense").value.item() / free
    row["values"] = norm_of_values(quarter, *on_an_arc(t, light=1.0)) / np.exp(t / 2)
    row["upper"] = bounds.masked_mean_field_upper_exact(quarter, eye, t**0.5) / free
    mask_costs.append(row)
mask_costs = pd.DataFrame(mask_costs)

# %% tags=["hide-input"]
f, orders = Attention.from_matrices(one, one, masked=True), []
for t in (16, 36, 100, 300, 1000, 2500):
    (x, a), stated = on_a_line(t), t**0.25 * np.exp(t / 8)
    values, (y, b) = norm_of_values(one, x, a), light_first(x[0], x[1:], a[0].item() / a[1:].sum().item() / 5)
    full = local_lipschitz(f, y, weights=b, method="dense").value.item()
    upper = bounds.masked_mean_field_upper_exact(one, one, t**0.5)
    orders.append((t, values / np.exp(t / 8), values / stated, full / (t * stated), upper / (t * stated)))
orders = pd.DataFrame(orders, columns=["t", "values", "values / stated", "constant", "upper"])
glue("line_factor", float((orders.upper / orders.constant).max()), display=False)
at = mask_costs.set_index("t")
glue("mask_16", float(at[160][16]), display=False)
glue("mask_200", float(at[160][200]), display=False)
glue("boxes_from", float(at.index[at["values"] > 2].min()), display=False)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-32-mask-costs", "caption": "What the mask costs next to the rate. Above, a quarter turn: the masked constant, divided by an upper bound for all measures without a mask. No measure without a mask lies above the line at 1; with a mask and many tokens the excess grows with $t$. Below, $A = 1$: the norm of the term of the values at the measure of {prf:ref}`masked-order`, in units of $e^{\\gamma^* R^2}$, its bound without a mask. It grows like $t^{1/4}$."}, "image": {"alt": "Two panels against t. Above, three curves for 21, 41 and 161 tokens rise above the line at 1; with few tokens the curve turns down again, with 161 it reaches about 2.7 at t equal to 400. Below, log-log, measured dots lie on a line of slope one quarter that crosses 1, above a dashed line of the same slope and far below another one."}}
ax, below = figures.panels(1, rows=2, width=6.4, height=3.5)
look = {"textcoords": "offset points", "va": "center"}
for count, colour, marker in zip((20, 40, 160), ("#56b4e9", "0.45", "#0072b2"), "s^o", strict=True):
    ax.plot(mask_costs.t, mask_costs[count], marker + "-", color=colour)
    ax.annotate(f"{count + 1} tokens", (400, mask_costs[count].iloc[-1]), (8, 0), color=colour, **look)
ax.axhline(1, color="k", lw=1)
ax.annotate("bound without a mask", (8, 1), (0, -9), **look)
ax.set(xscale="log", xlabel="$t$", ylabel="constant / bound without mask", ylim=(0.8, 3), xlim=(7.5, 1000))
ax.set_xticks([10, 30, 100, 300], ["10", "30", "100", "300"])
line = np.geomspace(16, 2500, 50)
upper = 2 * np.sqrt(np.e * ((6 + 1 / line) * np.sqrt(np.pi * line) + 4))
for values, style, colour, text in ((upper, "-", "#009e73", "upper bound"), (1 + 0 * line, "-", "k", "bound without a mask"),
                                    (line**0.25 / np.sqrt(8 * np.e), "--", "#0072b2", "lower bound")):  # fmt: skip
    below.plot(line, values, style, color=colour, lw=1)
    at, ha, shift = {"k": (-1, "right", (0, -9)), "#009e73": (0, "left", (4, 16))}.get(colour, (0, "left", (4, -12)))
    below.annotate(text, (line[at], values[at]), shift, color=colour, ha=ha, **look)
below.plot(orders.t, orders["values"], "o", color="#0072b2")
below.annotate("measure of the proof", (300, orders["values"].iloc[3]), (0, 14), color="#0072b2", ha="center", **look)
below.set(xscale="log", yscale="log", xlabel="$t$", ylabel=r"$\Vert P\Vert_2\ /\ e^{\gamma^* R^2}$", ylim=(0.2, 200))
below.set_xticks([30, 100, 300, 1000], ["30", "100", "300", "1,000"])
below.set_yticks([1, 10, 100], ["1", "10", "100"])
plt.show()

# %% [markdown]
# For a quarter turn and 161 tokens the masked constant is {glue:text}`mask_16:.2f` times the bound without a mask at
# $t = 16$, and {glue:text}`mask_200:.2f` times at $t = 200$. From $t =$ {glue:text}`boxes_from:.0f` on the values alone
# exceed $2 e^{\gamma^* R^2}$, so the boxes of {prf:ref}`masked-rate` are needed. The upper bound with a mask is still
# hundreds of times larger: in two dimensions its power of $t$ is higher than in the examples, and we do not know which
# is right. On a line the powers agree; there it is at most {glue:text}`line_factor:.0f` times the measured constant.

# %% tags=["hide-input"]
sees = torch.ones(5, 5).tril().bool()
steps = []
for case in range(200):
    x, y = 10 ** (case % 3 - 1) * normal(2, 5, 3)
    if case % 2:
        y = x + 1e-3 * y
    A = normal(3, 3) / x.square().sum(1).max() * (0.01, 0.3, 1, 3)[case % 4]
    P = (x @ A.T @ x.T).masked_fill(~sees, -torch.inf).softmax(1)
    gap = x[None] - (P @ x)[:, None]
    slopes = torch.einsum("ij,ijd,ije->ide", P, gap, gap) @ A
    size = torch.linalg.matrix_norm(A, 2)
    t = size * x.square().sum(1).max()
    one = (torch.linalg.matrix_norm(slopes, 2).max() / t).item()
    logits = torch.stack([y @ A.T @ x.T, y @ A.T @ y.T])  # both fields, asked at y
    fields = logits.masked_fill(~sees, -torch.inf).softmax(2) @ torch.stack([x, y])
    t = size * torch.cat([x, y]).square().sum(1).max()
    past = (x - y).norm(dim=1).cumsum(0) / torch.arange(1, 6)
    second = (fields[0] - fields[1]).norm(dim=1) / ((1 + 2 * t) * (2 * t).exp() * past)
    steps.append((one, second.max().item()))
steps = pd.DataFrame(steps, columns=["step 1", "step 2, averaged"])
for name, column in zip(("step_one", "step_two"), steps, strict=True):
    glue(name, float(steps[column].max()), display=False)

# %% tags=["hide-input"]
assert facts.abs().max().max() < 1e-9 and elsewhere == float("inf")
assert np.abs([*kept, *plans]).max() < 1e-9
assert doubled == float("inf")
assert max(quotients) < 1e-5 and np.abs(suprema).max() < 1e-4
expected = {2: 1.144, 10: 1.410, 100: 1.630, 1000: 1.748}
assert all(abs(averages.norm[n] - v) < 5e-4 for n, v in expected.items() if n in lengths)
assert all(abs(by_solver[n] / averages.norm[n] - 1) < 1e-3 for n in lengths)
harmonic = (1 / np.arange(1, 1001)).sum()
assert abs(after / before - golden) < 1e-9 and abs(averages.norm[2] - golden) < 1e-12
assert max(under) < 1
assert clusters["measured / reconstructed"][clusters.t < limit].min() > 1 and 0.175 < limit < 0.176
assert steps.max().max() <= 1 + 1e-9

# %% tags=["hide-input", "nbval-check-output"]
assert mask_costs.loc[mask_costs.t >= 16, 160].gt(1.4).all() and mask_costs.upper.gt(mask_costs[160]).all()
assert mask_costs[160].is_monotonic_increasing and orders["values / stated"].gt((8 * np.e) ** -0.5).all()
assert orders.constant.gt(1 / 57).all() and orders.upper.gt(orders.constant).all()
assert (rates[[1.0, 8.0]] <= 1).all(axis=None) and (rates.measured <= rates["by rate"]).all()
assert (rates["by rate"] <= rates["by norm"] + 1e-12).all() and (rates.measured - 1).abs().max() < 0.1
assert abs(averages["norm in l1"][1000] / harmonic - 1) < 1e-12
assert worst[["worst / corrected", "worst / older"]].max().max() < 1
assert hard[["p inf", "p inf, older"]].max().max() <= 1 + 1e-9 and shares.max() <= 1 + 1e-9
assert clusters["measured / corrected"].max() < 1 and (clusters.measured <= clusters["lower bound"]).all()
start = np.ceil(1e4 * settled) / 1e4  # both forms grow with t; from 0.43 on the second line of the bound is below
grids = ((start, start + 2e-4, 1e-5), (start + 2e-4, 0.44, 1e-4))
assert all(ours(t + h) <= recalled(t) for low, high, h in grids for t in np.arange(low, high, h)) and start == 0.29
assert 0.43 + 2 * (1 + 2**0.5 * 0.43) * np.exp(0.43) < recalled(0.43)
assert worst["worst / reconstructed"].iloc[0] > 1.7 and beyond < 1
old = [*worst["worst / older"], *hard["p inf, older"], *under]
half = [*worst["worst / corrected"], *hard["p inf"], *clusters["measured / corrected"], *shares]
print("✓ averages over the past: 1.144, 1.410, 1.630, 1.748; the corrected bound holds")

# %% tags=["hide-input"]
text = {"seen": "text of the paper", "effort": "random"}
drawn, d2 = text | {"seen": "reconstructed"}, "castin.sec-d.2"
read, own = ({"seen": seen, "effort": "proved"} for seen in ("reconstructed", "ours"))
# fmt: off
ledger.record(
    ledger.equal("castin.def-2.6", "any positions, any order of the pairs", field_errors,
                 within=1e-9, grounds="masked attention, random", **drawn),
    ledger.equal("castin.def-4.1", "distinct positions, and one position", distance_errors,
                 within=1e-9, grounds="Euclidean distance and W_2", **text),
    ledger.equal("castin.sec-4.1-plans", "plans that keep positions, by linear programmes", plans, within=1e-9,
                 grounds="random tokens at two positions", **text),
    ledger.equal("castin.note-residual", "with 0 first a residual map moves by its length, with s first infinitely far",
                 kept, within=1e-9, grounds="random heads, distinct positions", **text),
    ledger.equal("castin.lem-4.2", "local form, fixed positions", quotients, within=1e-5,
                 grounds="exact transport against the Jacobian", **drawn),
    ledger.equal("castin.lem-4.2", "global: both suprema", suprema, within=1e-4,
                 grounds="two tokens in [-2, 2], every pair on a grid", **drawn),
    ledger.upper(d2, "step 1: Gamma(s, .) is |V| t Lipschitz", steps["step 1"], grounds="random sequences", **read),
    ledger.upper(d2, "step 2 without the average over the past", averages.norm[lengths],
                 counter_example=f"A = 0, V = 1, n = 2: {golden:.3f} times as far",
                 grounds="A = 0", variant=True, seen="reconstructed", effort="structured"),
    ledger.upper(d2, "step 2 with the average over the past", steps["step 2, averaged"], grounds="random", **own),
)
# fmt: on

# %% tags=["hide-input"]
over, thm = [*worst["worst / reconstructed"], *clusters["measured / reconstructed"]], "castin.thm-4.4"
# fmt: off
ledger.record(
    ledger.upper(thm, "the constant of Theorem 3.5", over,
                 grounds="equal tokens, two clusters, ascent", seen="reconstructed", effort="ascended",
                 counter_example=f"A = 0, V = 1, n = 2: constant {golden:.3f}, bound 1"),
    ledger.upper(thm, "corrected: t + p/(p-1) (1 + 2t) exp(2t)", old, grounds="ascent, clusters, averages", **own),
    ledger.upper(thm, "corrected: half the exponent, any law of positions", half,
                 grounds="ascent, clusters, random measures", **own),
    ledger.upper(thm, "exponent gamma*: the smaller of both theorems (ours)", rates[[1.0, 8.0]],
                 grounds=f"ascent over eight tokens and weights, {len(rates)} matrices, V = I, t = 1 and 8", **own),
    ledger.equal(thm, "ln of the constant over gamma* R^2 (ours)", rates.measured - 1, within=0.1,
                 grounds="two atoms at gamma* R^2 = 100, the light one first", **own),
    ledger.equal(thm, "a control: the exponent is t = norm(A) R^2 for every A", rates["by norm"] / rates.measured - 1,
                 within=0.1, grounds="the same atoms", seen="ours", effort="structured",
                 counter_example="A = V = I: an eighth of it"),
    ledger.lower(thm, "with a mask norm(P) reaches t^(1/4) exp(gamma* R^2) / sqrt(8e), A = I (ours)",
                 orders["values / stated"] * (8 * np.e) ** 0.5, grounds="the measure of the proof, 161 tokens", **own),
    ledger.lower(thm, "with a mask the constant reaches t^(5/4) exp(gamma* R^2) / 57, A = V = I (ours)",
                 57 * orders.constant, grounds="the measure of the proof, 161 tokens", **own),
    ledger.upper(thm, "a control: with a mask, what bounds all measures without one", mask_costs[160],
                 grounds="161 tokens on an arc, a quarter turn", seen="ours", effort="structured",
                 counter_example=f"a quarter turn, t = 16: {mask_costs.set_index('t')[160][16]:.2f} times it"),
)
# fmt: on

# %% [markdown]
# ## Proofs
#
# ::::{dropdown} Proof of the corrected bound
# :::{prf:proof}
# Let $\bar\mu, \bar\nu$ have the same positions. Couple their tokens at each position at the least cost, and move each
# token $x$ to its partner $y$ along the segment, with velocity $\epsilon = y - x$. This stays in the ball, and
# $\norm\epsilon_{L^p} = d_p(\bar\mu, \bar\nu)$ throughout. So it is enough to bound, in $L^p$, the velocity of the
# output $\Gamma(s, x)$ by that of the tokens. With $P$ the attention of $(s, x)$, a probability measure on the tokens
# $z$ at positions $r \le s$, $m$ and $\Sigma$ its mean and covariance, and $c = A x$, the velocity is
#
# $$V \Big( \Sigma A\, \epsilon(s, x) + \int \big(\epsilon(z) + (z - m)\; c \cdot \epsilon(z)\big)\, dP(z) \Big) .$$
#
# *Query.* $\Sigma \le R^2$, so the first part is at most $t\, \abs{\epsilon(s, x)}$.
#
# *Values and keys.* Take a unit vector $v$ along the integral. It is at most $\int \phi\, g\, dP$, with
# $g = \abs\epsilon$ and $\phi = \abs{v + u\, c}$, where $u(z) = v \cdot (z - m)$.
#
# 1. *What a set $T$ of tokens carries:* $\int_T \phi\, dP \le W(P(T))$, with the concave $W(q) = \int_0^q w$. Indeed
#    $u$ lies in an interval of length $2R$ and has mean 0, so let it be $[-2\kappa R, 2(1 - \kappa) R]$,
#    $0 \le \kappa \le 1$. As $\phi$ is convex in $u$, it lies below the chord: replace $u$ by a mixture of its two
#    ends, with total mass $\kappa$ at the upper one. With mass $\alpha$ of $T$ there, the integral is linear in
#    $(\alpha, P(T))$, on a parallelogram. At its corners the pair ($P(T)$, integral) is $(0, 0)$; $(\kappa, \cdot)$
#    with at most $\kappa\,(1 + 2t(1 - \kappa))$; $(1 - \kappa, \cdot)$ with at most $(1 - \kappa)(1 + 2t\kappa)$; and
#    $(1, \cdot)$ with at most $(\int \phi^2 dP)^{1/2} \le \sqrt{1 + 4 t^2 \kappa(1 - \kappa)} \le \sqrt{1 + t^2}$, as
#    $u$ has mean 0. All lie below the least concave function above $q\,(1 + 2t(1 - q))$ that is $\sqrt{1 + t^2}$ at 1:
#    this is $W$, the curve up to the tangent from the last point, at $q = 1 - \rho$. Also $W$ increases: for
#    $t \le \frac12$ its slope is at least $1 - 2t + 4 t\rho > 0$; for $t \ge \frac12$ the curve has the maximum
#    $\frac{(1 + 2t)^2}{8t} \le \frac34 + \frac t2 < \sqrt{1 + t^2}$.
# 2. *What attention a set receives:* let $\Lambda = \theta([0, s])$ and $T$ be a share $r$ of the past. Logits differ
#    by at most $2t$, so with $E = e^{2t}$, $P(T)(1 - r) \le E\, r\, (1 - P(T))$: at most
#    $Z(r) = \frac{E r}{1 + (E - 1) r}$.
# 3. *Rearrangement:* let $g^*$ be the decreasing rearrangement of $g$ over all tokens, a function on $[0, 1]$. On the
#    past, as a share, that of $g$ is at most $g^*(\Lambda r)$. Sum 1 and 2 over the sets $\{g > y\}$: the row is at
#    most $h(\Lambda) = \int_0^1 g^*(\Lambda r)\, dW(Z(r))$.
# 4. *Hardy* {cite}`hardy1934inequalities`: $h$ decreases, and $\theta(\{s : \theta([0, s]) \le y\}) \le y$, with atoms
#    or without. So the norm of the rows in $L^p$ is at most $\norm h_{L^p(0, 1)}$, and by Minkowski's inequality at
#    most $\int_0^1 \norm{g^*(r\, \cdot)}_p\, dW(Z(r)) \le \norm g_p \int_0^1 r^{-1/p}\, dW(Z(r))$.
# 5. With $q = Z(r)$, that is $\frac1r = \frac{E - (E - 1) q}{q}$, the last integral is the one of the theorem.
#
# *Second line.* $w - 1 \le 2t$, and $\int_0^q (w - 1) \le \min(2tq, t)$; so against the decreasing $q^{-1/p}$ it
# counts at most as $2t$ on $[0, \frac12]$, which gives $\frac{p}{p - 1}\, 2^{1/p}\, t$. $\square$
# :::
# ::::
#
# ::::{dropdown} Proof of the masked rate
# :::{prf:proof}
# *Hardy's inequality with weights* {cite}`hardy1934inequalities`. For $b_i > 0$, $B_i = b_1 + \dots + b_i$, $f_i \ge
# 0$, $M_i = \frac1{B_i} \sum_{j \le i} b_j f_j$ and $p > 1$
#
# $$\sum_i b_i M_i^p \le \Big(\frac p{p - 1}\Big)^p \sum_i b_i f_i^p .$$
#
# Indeed $b_i f_i = B_i M_i - B_{i-1} M_{i-1}$, and $p\, M_{i-1} M_i^{p-1} \le M_{i-1}^p + (p - 1) M_i^p$. Hence $b_i
# M_i^p - \frac p{p-1} b_i f_i M_i^{p-1} \le \frac1{p-1} (B_{i-1} M_{i-1}^p - B_i M_i^p)$. The sum over $i$ of the right
# sides is not positive, and Hölder's inequality on $\sum b f M^{p-1}$ gives the claim. Tokens at one position, which
# see each other, count as one with the mean of $f$ (Jensen); without atoms sums become integrals.
#
# Let tokens $x_i$ have the weights $a_i$.
#
# 1. *Boxes.* Let $A = \sum_j \sigma_j u_j v_j^\top$. Cut $[-R, R]$ along each $v_j$ into $N_j$ equal parts. With the
#    centre $z$ of the box $c$, and $q = A z$, for $x_i \in c$ and $\abs y \le R$ $\abs{(A x_i - q) \cdot y} \le \sum_j
#    \sigma_j \frac R{N_j} \abs{u_j \cdot y} \le \kappa$.
# 2. So all rows of a box take nearly one average over their past: with $w(y) = e^{q \cdot y}$ and $b_j = a_j w(x_j)$,
#    $P_{ij} \le e^{2 \kappa} b_j / B_i$ for $x_i \in c$.
# 3. With $f \ge 0$ and $a_i = b_i / w(x_i)$, $\sum_{i \in c} a_i (P f)_i^p \le e^{2 p \kappa} \sum_{i \in c} b_i M_i^p
#    / w(x_i) \le e^{2 p \kappa} (\frac p{p-1})^p \max_{i \in c} \sum_j a_j f_j^p\, w(x_j) / w(x_i)$.
# 4. There $w(x_j) / w(x_i) \le e^{2 \kappa + A x_i \cdot (x_j - x_i)} \le e^{2 \kappa} E_c$. Over all boxes $\norm{P
#    f}_p^p \le e^{2 (p + 1) \kappa} \big(\sum_c E_c\big) (\frac p{p-1})^p \norm f_p^p$.
# 5. *Values:* $p = 2$, at most $2 e^{3 \kappa} (\sum_c E_c)^{1/2} = 2 \tau$ times the length of the move.
# 6. *Keys.* Row $i$ is at most $\sum_j P_{ij} \abs{u_j} h_j$ with $u_j = v \cdot (x_j - m_i)$ for a unit vector $v$,
#    and $h_j = \norm A_2 R \abs{\epsilon_j}$; so at most $(\sum P u^4)^{1/4} (\sum P h^{4/3})^{3/4}$. As $u$ has mean 0
#    and lies in an interval of length $2R$, $\sum P u^4$ is largest at its ends, with masses $\alpha, 1 - \alpha$: $16
#    R^4 s (1 -
#    3s)$ with $s = \alpha (1 - \alpha)$, at most $\frac43 R^4$.
# 7. Step 4 with $f = h^{4/3}$ and $p = \frac32$: the norm of $(P f)^{3/4}$ is at most $3^{3/4} e^{5 \kappa / 2} (\sum_c
#    E_c)^{1/2} \norm h_2$. Keys: $(\frac43)^{1/4}\, 3^{3/4}\, t\, \tau = \sqrt 6\, t\, \tau$.
# 8. The query term is at most $t$, and the path of measures is that of the proof above.
# 9. *Below.* Measures with all tokens at one position are measures without a mask: $\Lip^{d_2}(F^m) \ge \Lip(F)$.
#    $\square$
# :::
# ::::
#
# ::::{dropdown} Proof of the orders of the masked rate, and how the sum is bounded
# :::{prf:proof}
# Measure lengths $\rho = R^2 \abs{A x}$ at $\abs x \le 1$, and put $s_j = \sigma_j R^2$.
#
# 1. *A square that is left.* For any $\mu > 0$, $\abs{A x} = \frac\mu2 + \frac{\abs{A x}^2}{2 \mu} - \frac{(\abs{A x} -
#    \mu)^2}{2 \mu}$. Let $H$ be the largest $\frac{\abs{A x}^2}{2 \mu} - x \cdot A x$ in the unit ball. With $m = \mu
#    R^2$, $\log E_c \le R^2 (\frac\mu2 + H) - \min_{x \in c} \frac{(\rho - m)^2}{2 m}$, and $\frac\mu2 + H = 2
#    \gamma^*$ for the best $\mu$ ({prf:ref}`rate-duality`).
# 2. *Means for sums.* In units of $R$ the coordinates of $x$ along the $v_j$, times $s_j$, are a point $y$ of the solid
#    $\prod_j [-s_j, s_j]$ with $\abs y = \rho$. In a box $\rho$ varies by at most $2 \kappa$. So, with $N = \prod_j
#    N_j$, $\sum_c E_c \le N e^{2 \gamma^* R^2}$ times the mean of $e^{-(\abs{\rho - m} - 2 \kappa)_+^2 / 2m}$ over the
#    solid.
# 3. *Density.* With $y$ uniform in the solid, the density of $\abs y$ is at most $S_r \rho^{r - 1} / \prod_j 2 s_j$,
#    the area of the sphere over the volume. For lengths up to $s_1 + 2 \kappa$, those of boxes that meet the ball, this
#    is at most a constant $D / R^2$. So the mean is at most $D (\sqrt{2 \pi m} + 4 \kappa) / R^2$, of order $1/R$.
# 4. *First order.* Take $N_j = \lceil 6 s_j \rceil$: $\kappa$ is bounded, $\sum_c E_c$ of order $R^{2r - 1} e^{2 \gamma^*
#    R^2}$, $\tau$ of order $t^{r/2 - 1/4} e^{\gamma^* R^2}$. For $r = 1$ the density is $1/s_1$, and for $A = 1$ with
#    $\mu = \frac12$, $N = \lceil 6t \rceil$ and $\kappa = t/N$ the sum is at most $e^{t/4} \frac Nt (\sqrt{\pi t} + 4
#    \kappa) \le e^{t/4} \big((6 + \frac1t) \sqrt{\pi t} + 4\big)$.
# 5. *Second order.* If $\abs{A x} - x \cdot A x \le 2 \gamma^* - C \delta^2$ with the distance $\delta$ of the theorem
#    to the nearest best point, the mean over the solid is one of $e^{-C R^2 (\delta - c/R^2)_+^2}$ with some $c$, of
#    order $R^{-r}$. Then $\tau$ is of order $R^{r/2} e^{\gamma^* R^2}$, and $R^{r/2}$ is $t^{r/4}$ up to a constant.
# 6. *In the code.* If directions are cut into one box only ($N_j = 1$) they are left out of the solid. The density is
#    also bounded by that of the first $k$ directions given the others, with lengths in a window around $m$; outside of
#    it $E_c$ is small. A third way is $\abs{A x} - x \cdot A x \le \abs{A x} + H_0$, with $H_0$ the largest $-x \cdot A
#    x$, as good if $-\norm A_2$ is an eigenvalue or $A$ a quarter turn: it saves $\sqrt t$ in place of $t^{1/4}$.
# 7. *Keys alone.* In the proof of {prf:ref}`masked-mean-field-bound`, with its $\kappa$ and $\abs u \abs c$ for
#    $\phi$, the corners are $(\kappa, \cdot)$ and $(1 - \kappa, \cdot)$ with at most $2 t \kappa (1 - \kappa)$, and
#    $(1, \cdot)$ with $4 t \kappa (1 - \kappa) \le t$. They lie below the least concave function above $2 t q (1 -
#    q)$ that is $t$ at 1, whose slope is $2 t \max(1 - 2q, \sqrt 2 - 1)$. For half of the mass at each end of the
#    ball $t$ is attained, while $\int (w - 1) = \sqrt{1 + t^2} - 1$ is less. So keys alone are at most $e^t \int_0^1
#    2 t \max(1 - 2q, \sqrt 2 - 1) f(q)\, dq$ with $f$ the root of {prf:ref}`masked-mean-field-bound` for $p = 2$, and
#    values alone at most $e^t \int_0^1 f$. Where $2 \tau$ is below this bound for values alone, the bound for keys alone is never
#    less than $\sqrt 6\, t\, \tau$: the ratio of the integrals of $\max(1 - 2q, \sqrt 2 - 1) f$ and $f$ is least at $t = 0$, by Chebyshev's
#    inequality for two decreasing functions, and there more than $\frac58 > \frac{\sqrt 6}4$. $\square$
# :::
# ::::
#
# ::::{dropdown} Proof that the order is larger
# :::{prf:proof}
# Let $d = 1$; for other $d$ put the tokens on a line. The measure has in this order: $y = R$ of weight $w = \frac{2
# e}{\sqrt t} e^{-t/4}$; then tokens $R s_u$ with $s_u = \frac12 + \frac u{\sqrt t}$, $u$ from $-1$ to 1, density
# $\frac12$. Norms do not change if all weights are divided by $1 + w$. As $t \ge 16$, $\frac14 \le s_u \le \frac34$.
#
# 1. Row $u$ has the score $t s_u$ for $y$, and for its past in all, as $s_u s_v = s_u^2 - s_u (u - v) / \sqrt t$,
#    $\ Z(u) = \frac12 \int_{-1}^u e^{t s_u s_v} dv \le \frac12 e^{t s_u^2} \int_0^\infty e^{-s_u \sqrt t\, v} dv \le
#    \frac2{\sqrt t} e^{t s_u^2}$.
# 2. Here $s_u - s_u^2 = \frac14 - \frac{u^2}t$. So $Z(u) \le w\, e^{t s_u} e^{u^2 - 1}$, and $y$ gets the attention $q
#    = w e^{t s_u} / (w e^{t s_u} + Z(u)) \ge \frac12$ of every row.
# 3. Move $y$ alone: $\norm P_2^2 \ge \frac1w \int_{-1}^1 q^2\, \frac{du}2 \ge \frac1{4 w} = \frac{\sqrt t}{8 e}
#    e^{t/4}$.
# 4. *Keys.* Take a fifth of $w$. For $u \in [0, 1]$ now $Z / (w e^{t s_u}) \le 5$, and $Z(u) \ge \frac12 e^{t s_u^2}
#    \int_0^1 e^{-s_u \sqrt t v} dv \ge \frac{0.57}{\sqrt t} e^{t s_u^2}$, as $\sqrt t \ge 4$ and $\frac12 \le s_u \le
#    \frac34$; so $Z / (w e^{t s_u}) \ge \frac12$, and $q (1 - q) \ge \frac5{36}$.
# 5. The past of row $u$ but for $y$ is at most $R s_u$, so $y$ less the mean of the row is at least $(1 - q) R (1 -
#    s_u)$. When $y$ moves, row $u$ moves by $q + q\, R s_u (y - m)$ times as much, at least $t q (1 - q) s_u (1 - s_u)
#    \ge \frac5{36} \cdot \frac3{16}\, t$.
# 6. As in step 3, the square of the constant is at least $\frac12 (\frac{5 t}{192})^2 / \frac w5 = (\frac{5 t}{192})^2\,
#    \frac{5 \sqrt t}{4 e} e^{t/4}$, the square of more than $\frac1{57} t^{5/4} e^{t/8}$. Positions differ, so in $d_2$
#    this is the cost of a small move. $\square$
# :::
# ::::
#
# ::::{dropdown} Proof of step 2 with the average over the past
# :::{prf:proof}
# For a token $y$ at $s$ let $c = A y$, $o = \Gamma_{\bar\nu}(s, y)$ and $D = \int_{r \le s} e^{c \cdot z} d\bar\mu$.
# Then
#
# $$\Gamma_{\bar\mu}(s, y) - \Gamma_{\bar\nu}(s, y) = \frac1D \int_{r \le s} e^{c \cdot z}\,(V z - o)\;
#   d(\bar\mu - \bar\nu)(r, z) .$$
#
# The integrand has a gradient of norm at most $e^t \norm V_2 (1 + 2t)$, and $D \ge e^{-t}\, \theta([0, s])$. So the
# difference is at most $\norm V_2\, (1 + 2t)\, e^{2t}$ times the average of $g(r) = W_1(\mu^r, \nu^r)$ over the past.
# $\square$
# :::
#
# On random sequences we also tested both steps of the proof (Section D.2). The slope of $\Gamma_{\bar\mu}(s, \cdot)$ is
# at most {glue:text}`step_one:.2f` of its bound $\norm V_2\, t$. The difference of two fields at one point is at most
# {glue:text}`step_two:.2f` of its bound, which averages over the past.
# ::::
#
# ::::{dropdown} Proof of the lower bound
# :::{prf:proof}
# 1. Let $\theta$ be uniform, with the law $\mu$ of tokens at each position. A token then attends as without a mask,
#    whatever its position: $P$, $K$ and $Q$ are those of $\mu$.
# 2. Move the token $x$ at $s$ by $\epsilon\, g(s)\, \psi(x)$. With $H g(s) = \frac1s \int_0^s g$, its output moves, to
#    first order, by $\epsilon$ times $H g(s)\, (P + K)\psi(x) + g(s)\, Q \psi(x)$.
# 3. For $g(s) = s^{-\beta}$ with $\beta < 1/p$, $H g = g/(1 - \beta)$. Cut $g$ off at a large value, take tokens a
#    little inside the ball, and let $\beta \to 1/p$. Tokens, and outputs, are apart, so for small $\epsilon$ nothing
#    is cheaper than to keep them paired.
# 4. At $\pm R u$ with halves and $A = \norm A_2 I$ a token sees its own sign with weight $e^t/(2 \cosh t)$: the
#    variance is $R^2/\cosh^2 t$. For $\psi = u$ the key terms cancel and $P \psi = \psi$. $\square$
# :::
# ::::
#
# The reconstructed form misses the average over the past: the mask renormalises by $\theta([0, s])$, so a perturbation of
# the first tokens is not divided by the length of the whole text. At $p = 1$ there is no bound for all measures.
#
# ## What this shows and does not show
#
# - The reconstructed form of Theorem 4.4 is false for small $t$. We have the theorem without its formula: if it reads
#   otherwise, this page says nothing against it.
# - The corrected bound is proved, for every law of positions and any weights. The sequences that come close have two
#   thousand tokens and very uneven weights. For one given $A$ the constant can be far below.
# - For $t$ between {glue:text}`fails_below:.4f` and {glue:text}`settled:.4f` the reconstructed form is open in $d_2$.
# - In one dimension and for $A > 0$ the mask costs exactly $t^{1/4}$, up to a constant. In higher dimension it can cost
#   as much; whether it can cost more is open.
# - At real radii $t$ is in the hundreds ({doc}`23_mean_field`), where none of these bounds is of practical use.
#
# **One thing to try.** Give the first position half of all the weight. Does the norm of averaging come down to 1?
#
# **Next:** {doc}`33_rotary_positions`, bounds for heads that rotate queries and keys.
