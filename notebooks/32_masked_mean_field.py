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
# Without a {term}`mask` one {term}`bound` holds for every number of {term}`tokens <token>` ({doc}`23_mean_field`).
# With a {term}`mask (causal)` there
# is one too, but not the same: the early tokens of a text are averaged over few others, and in the distance $d_2$
# below this alone can nearly double a perturbation. Theorem 4.4 as we reconstruct it, $(1 + 3t)\, e^{2t}$, fails for
# $t$ up
# to {glue:text}`fails_below:.3f`; the corrected bound of this page is at most twice as large and holds. Against our
# own bound for no mask the mask costs more, $e^{2t}$ for $e^t$, and we do not know whether it must.

# %% tags=["parameters"]
measures_count = 50  # random masked measures for the transport check
lengths = [2, 10, 100, 1000]  # of the averaging operator
tokens, step = 2000, 0.02  # two clusters, each weight e^step times the one before
ascents = 6  # gradient ascents for each value of t
seed = 0

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from myst_nb import glue
from scipy.optimize import brentq

from lab import figures, ledger
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

# %% tags=["hide-input"]
ax, right = figures.panels(2, width=4.5, height=3.8)
ax.plot(averages.index, averages.norm, "o-", color="#0072b2", label="measured")
ax.axhline(2, color="#009e73", lw=1, ls="--", label="corrected bound at $t = 0$: 2")
ax.axhline(1, color="#d55e00", lw=1, label="reconstructed form at $t = 0$: 1")
for n in lengths:
    look = {"textcoords": "offset points", "ha": "right", "fontsize": 9}
    ax.annotate(f"{averages.norm[n]:.3f}", (n, averages.norm[n]), (0, 7), **look)
ax.set(xscale="log", xlabel="tokens n", ylabel="Lipschitz constant in $d_2$", ylim=(0.9, 2.15))
ax.legend(loc="lower right", bbox_to_anchor=(1, 0.1), fontsize=9)
columns = {"norm in l1": 1, "p = 1.5": 1.5, "norm": 2, "p = 3": 3}
colours = ("#000000", "#cc79a7", "#0072b2", "#e69f00")
for (name, p), colour, marker in zip(columns.items(), colours, "so^D", strict=True):
    right.plot(averages.index, averages[name], marker + "-", color=colour, label=f"p = {p:g}")
    if p > 1:
        right.axhline(p / (p - 1), color=colour, lw=1, ls="--")
right.set(xscale="log", xlabel="tokens n", ylim=(0.9, 8.5), ylabel="Lipschitz constant in $d_p$")
right.legend(loc="upper left", title="dashed: p / (p - 1)", fontsize=9)
for one in (ax, right):
    one.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
plt.show()

# %% [markdown]
# <!-- figure fig-32-averages: Two panels against the number of tokens. Left, the constant of averaging over the past
# rises from 1 to about 1.77 and stays below the line at 2. Right, the same for four orders p: for p above one the
# curves stay below dashed limits, for p equal to one the curve keeps rising. -->
# *Averages over the past, the masked map with $A = 0$. Left: in $d_2$ the constant tends to 2, slowly, so a bound for
# all $n$ must be at least 2 here. Right: in $d_p$ it tends to $p/(p - 1)$ for $p > 1$, and at $p = 1$ it grows like
# $\log n$ without end.*
#
# ## The smallest case: two tokens, no logits
#
# Put $A = 0$ and $V = 1$. The first token stays, the second becomes the average of both. The reconstructed bound is
# $\norm V_2 (1 + 0)\,e^0 = 1$. The {term}`Jacobian` has the norm $\varphi/\sqrt 2$, with $\varphi = (1 + \sqrt 5)/2$
# the
# golden ratio. Two tokens moved along its top direction show it as distances.

# %%
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
# of norm at most $R$,
#
# $$\Lip^{d_p}(F^m) \le \norm V_2 \Big(t + \frac{p}{p - 1}\,(1 + 2 t)\, e^{2 t}\Big) .$$
# :::
#
# As we reconstruct it, the theorem has the constant of the unmasked case, $\norm V_2 (1 + 3t)\, e^{2t}$, for every
# $p$: the text of the paper says that its proof follows the same computations, and its formula is lost. That form
# fails.
#
# {bdg-secondary}`ours` {ref}`what is this? <badges>`
#
# :::{prf:theorem} How far it fails (ours)
# :label: masked-mean-field-lower
#
# With one masked head, $V = I$ and $A = \norm A_2 I$, and the same $t$ and $p$,
#
# $$\Lip^{d_p}(F^m) \ge \frac{p}{p - 1} + \frac{t}{\cosh^2 t} .$$
#
# So the reconstructed form fails in $d_2$ for all $t \le 0.175$. In $d_p$ it fails at *every* $t$, once $p$ is close
# enough to 1. The corrected bound is tight at $t = 0$, for every $p$.
# :::
#
# ## Measured: the map, the distance, Lemma 4.2
#
# We write the map down as in the definition, for pairs in any order. It must give what masked {term}`attention` gives,
# whatever the increasing positions are. The distance must be $\norm{X - Y}_F/\sqrt n$ when all positions differ,
# $W_2$ when all are one, and infinite when the laws of positions differ. Lemma 4.2 says that the constants of $f^m$
# and $F^m$ agree: along the worst small move, the quotient of distances is the norm of the masked Jacobian; globally,
# for two tokens on a line, both suprema agree.


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
elsewhere = measures.conditional_wasserstein(s, x, s + 0.1, y)
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
checks = facts.abs().max().to_list() + [max(quotients), max(map(abs, suprema))]
what = ["the field is masked attention", "it moves with shuffled pairs", "distance, all positions differ",
        "distance, one position", "Lemma 4.2, local", "Lemma 4.2, global"]  # fmt: skip
cases = [len(facts)] * 4 + [len(quotients), len(suprema)]
checks = pd.DataFrame({"what": what, "cases": cases, "error": checks})
figures.table(checks, {"what": "what", "cases": "cases", "error": "largest relative error"}, digits=1)

# %% [markdown]
# ## Measured: averages over the past
#
# With $A = 0$ and $V = I$ token $i$ becomes the average of the first $i$ tokens: the Cesàro operator. The same
# happens for *every* $A$ where all tokens are equal, since then $P_{ij} = 1/i$. Norms in $d_2$ are exact, and in
# $d_1$ too: there the norm is the largest column sum, $1 + \frac12 + \dots + \frac1n$. For other $p$ a power
# iteration approaches them from below. The last column is our solver on masked attention.

# %% tags=["hide-input"]
shown = averages.loc[lengths].assign(solver=pd.Series(by_solver))
names = {"n": "tokens n", "norm": "in d_2", "norm in l1": "in d_1", "p = 1.5": "in d_1.5", "p = 3": "in d_3",
         "solver": "in d_2, by the solver"}  # fmt: skip
figures.table(shown, names, digits=4)

# %% [markdown]
# ## Measured: both forms against hard inputs
#
# Random masked measures with random weights, then {term}`gradient ascent` in the unit ball, at growing $t$; and equal
# tokens, where the constant is that of averaging a thousand. (For $p = \infty$ the largest row sum of block norms is
# compared with the bound; it is at least the constant.)

# %%
hard, eye = [], torch.eye(2, dtype=torch.float64)
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
        J = AttentionJacobian(f, x[0]).dense().view(6, 2, 6, 2)
        rows = torch.linalg.matrix_norm(J, 2, dim=(1, 3)).sum(1).max().item()
        found = max(best.max().item(), random)
        uppers = [bounds.masked_mean_field_upper(t * eye, eye, 1.0, p=p) for p in (2, np.inf)]  # fmt: skip
        hard.append((t, found, reconstructed, uppers[0], rows / uppers[1]))
hard = pd.DataFrame(hard, columns=["t", "found", "reconstructed", "corrected", "p inf"])

# %% tags=["hide-input"]
worst = hard.groupby("t").max()
worst["equal tokens"] = averages.norm[1000]
worst["worst / reconstructed"] = worst[["found", "equal tokens"]].max(axis=1) / worst.reconstructed
worst["worst / corrected"] = worst[["found", "equal tokens"]].max(axis=1) / worst.corrected  # fmt: skip
names = {"t": "logit range t", "found": "found", "equal tokens": "equal tokens", "reconstructed": "reconstructed",
         "corrected": "corrected", "worst / reconstructed": "worst / reconstructed",
         "worst / corrected": "worst / corrected"}  # fmt: skip
figures.table(worst, names, digits={"t": 2}, bold=worst["worst / reconstructed"] > 1)

# %% [markdown]
# In the rows in bold the reconstructed form fails. One {term}`sequence` comes close to the lower bound: tokens $1,
# -1, 1,
# -1, \dots$, with {term}`token weights` that grow geometrically, so that the averages reach far into the past.

# %%
x = torch.ones(tokens, 1, dtype=torch.float64)
x[1::2] = -1
a = (step * torch.arange(1.0 - tokens, 1.0, dtype=torch.float64)).exp()
clusters = []
for t in (0.01, 0.03, 0.1, 0.16, 0.17, 0.2, 0.3, 1.0):
    f = Attention.from_matrices(torch.full((1, 1), t).double(), x[:1], masked=True)
    norm = local_lipschitz(f, x, weights=a / a.sum(), rtol=1e-6).value.item()
    reconstructed = (1 + 3 * t) * np.exp(2 * t)
    clusters.append((t, norm, 2 + t / np.cosh(t) ** 2, reconstructed, norm / reconstructed))

# %% tags=["hide-input"]
names = ["t", "measured", "2 + t / cosh(t)^2", "reconstructed", "ratio"]
clusters = pd.DataFrame(clusters, columns=names)
at = [bounds.masked_mean_field_upper(t * eye, eye, 1.0) for t in clusters.t]
under = [*clusters.measured / at, *averages["p = 1.5"] / 3, *averages["p = 3"] / 1.5]
limit = brentq(lambda t: (1 + 3 * t) * np.exp(2 * t) - 2 - t / np.cosh(t) ** 2, 0, 1)
beyond = worst[worst.index > limit]["worst / reconstructed"].max()
beyond = max(beyond, clusters.ratio[clusters.t > limit].max())
glue("fails_below", float(np.floor(1000 * limit) / 1000), display=False)
glue("beyond", float(beyond), display=False)
names = {"t": "logit range t", "measured": "measured", "2 + t / cosh(t)^2": "lower bound",
         "reconstructed": "reconstructed", "ratio": "measured / reconstructed"}  # fmt: skip
figures.table(clusters, names, digits=dict.fromkeys(names, 4) | {"t": 2}, bold=clusters.ratio > 1)

# %% tags=["hide-input"]
fig, ax = plt.subplots(figsize=(6.4, 4))
t = np.geomspace(0.008, 4, 200)
ax.plot(t, (1 + 3 * t) * np.exp(2 * t), color="#d55e00", label="reconstructed form")
ax.plot(t, t + 2 * (1 + 2 * t) * np.exp(2 * t), color="#009e73", label="corrected, p = 2")
ax.plot(t, 2 + t / np.cosh(t) ** 2, color="#0072b2", lw=1, ls="--", label="lower bound")
ax.plot(clusters.t, clusters.measured, "^", color="#0072b2", label="two clusters")
shown = worst[worst.index > 0]
ax.plot(shown.index, shown.found, "o", color="#e69f00", label="ascent, 6 tokens")
ax.axvspan(t[0], limit, color="#d55e00", alpha=0.12)
ax.set(xscale="log", yscale="log", xlabel="logit range $t$", ylim=(0.9, 100))
ax.set(ylabel="Lipschitz constant in $d_2$", xlim=(t[0], t[-1]))
ax.legend(fontsize=9)
ax.set_xticks([0.01, 0.1, 1], ["0.01", "0.1", "1"])
ax.set_yticks([1, 10, 100], ["1", "10", "100"])
plt.show()

# %% [markdown]
# <!-- figure fig-32-both-forms: Bounds and measured constants against the logit range, log-log. In a shaded range of
# small t the reconstructed form lies below the two clusters; the corrected bound lies above everything. -->
# *In the shaded range the reconstructed form fails at {term}`two clusters`. Beyond it no case was found above it (the
# largest is {glue:text}`beyond:.2f` of it), which is no proof. The corrected bound has nothing above it.*
#
# The lower bound of the theorem is a limit: two thousand tokens reach nearly all of it. (At $t = 1$ another direction
# is worse than the one of the proof.)
#
# The two steps of the proof (Section D.2) are also tested one by one, on random sequences: the slope of
# $\Gamma_{\bar\mu}(s, \cdot)$ over $\norm V_2\, t$; and the difference of two fields at one point, over its bound
# with the average over the past.

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
figures.table(steps.max().rename("largest").rename_axis("step").reset_index(),
              {"step": "step", "largest": "largest, over its bound"})  # fmt: skip

# %% tags=["hide-input", "nbval-check-output"]
assert facts.abs().max().max() < 1e-9 and elsewhere == float("inf")
assert max(quotients) < 1e-5 and np.abs(suprema).max() < 1e-4
expected = {2: 1.144, 10: 1.410, 100: 1.630, 1000: 1.748}
assert all(abs(averages.norm[n] - v) < 5e-4 for n, v in expected.items() if n in lengths)
assert all(abs(by_solver[n] / averages.norm[n] - 1) < 1e-3 for n in lengths)
harmonic = (1 / np.arange(1, 1001)).sum()
assert abs(after / before - golden) < 1e-9 and abs(averages.norm[2] - golden) < 1e-12
assert max(under) < 1
assert clusters.ratio[clusters.t < limit].min() > 1 and 0.175 < limit < 0.176
assert steps.max().max() <= 1 + 1e-9
assert abs(averages["norm in l1"][1000] / harmonic - 1) < 1e-12
assert worst["worst / corrected"].max() < 1 and hard["p inf"].max() <= 1 + 1e-9
assert worst["worst / reconstructed"].iloc[0] > 1.7 and beyond < 1
print("✓ averages over the past: 1.144, 1.410, 1.630, 1.748; the corrected bound holds")

# %% tags=["hide-input"]
read, own = ({"seen": seen, "effort": "proved"} for seen in ("reconstructed", "ours"))
text, over = {"seen": "text of the paper", "effort": "random"}, worst["worst / reconstructed"]
drawn, thm, d2 = text | {"seen": "reconstructed"}, "castin.thm-4.4", "castin.sec-d.2"
# fmt: off
ledger.record(
    ledger.equal("castin.def-2.6", "any positions, any order of the pairs", field_errors,
                 within=1e-9, grounds="masked attention, random", **drawn),
    ledger.equal("castin.def-4.1", "distinct positions, and one position", distance_errors,
                 within=1e-9, grounds="Euclidean distance and W_2", **text),
    ledger.equal("castin.lem-4.2", "local form, fixed positions", quotients, within=1e-5,
                 grounds="exact transport against the Jacobian", **drawn),
    ledger.equal("castin.lem-4.2", "global: both suprema", suprema, within=1e-4,
                 grounds="two tokens in [-2, 2], every pair on a grid", **drawn),
    ledger.upper(thm, "the constant of Theorem 3.5", [*over, *clusters.ratio],
                 grounds="equal tokens, two clusters, ascent", seen="reconstructed", effort="ascended",
                 counter_example=f"A = 0, V = 1, n = 2: constant {golden:.3f}, bound 1"),
    ledger.upper(thm, "corrected: t + p/(p-1) (1 + 2t) exp(2t)",
                 [*worst["worst / corrected"], *hard["p inf"], *under], grounds="ascent, clusters, averages", **own),
    ledger.upper(d2, "step 1: Gamma(s, .) is |V| t Lipschitz", steps["step 1"], grounds="random sequences", **read),
    ledger.upper(d2, "step 2 without the average over the past", averages.norm[lengths],
                 counter_example=f"A = 0, V = 1, n = 2: {golden:.3f} times as far",
                 grounds="A = 0", variant=True, seen="reconstructed", effort="structured"),
    ledger.upper(d2, "step 2 with the average over the past", steps["step 2, averaged"], grounds="random", **own),
)
# fmt: on

# %% [markdown]
# ## Proofs
#
# ::::{dropdown} Proof of the corrected bound
# :::{prf:proof}
# Let $\bar\mu, \bar\nu$ have the same positions, and couple their tokens at each position at the least cost. At a
# position $s$ and for coupled tokens $x, y$, split
#
# $$\begin{aligned} \abs{\Gamma_{\bar\mu}(s, x) - \Gamma_{\bar\nu}(s, y)} &\le
#   \abs{\Gamma_{\bar\mu}(s, x) - \Gamma_{\bar\mu}(s, y)} \\
#   &\quad + \abs{\Gamma_{\bar\mu}(s, y) - \Gamma_{\bar\nu}(s, y)} . \end{aligned}$$
#
# *Step 1.* $\Gamma_{\bar\mu}(s, \cdot)$ has the derivative $V \Sigma A$, with $\Sigma$ a covariance in the ball: at
# most $\norm V_2\, t$. Its share of $d_p$ is at most $\norm V_2\, t\, d_p(\bar\mu, \bar\nu)$.
#
# *Step 2.* Let $c = A y$, $\abs c \le \norm A_2 R$, $o = \Gamma_{\bar\nu}(s, y)$ and
# $D = \int_{r \le s} e^{c \cdot z} d\bar\mu$. Then
#
# $$\Gamma_{\bar\mu}(s, y) - \Gamma_{\bar\nu}(s, y) = \frac1D \int_{r \le s} e^{c \cdot z}\,(V z - o)\;
#   d(\bar\mu - \bar\nu)(r, z) .$$
#
# The integrand has a gradient of norm at most $e^t \norm V_2 (1 + 2t)$, and $D \ge e^{-t}\, \theta([0, s])$. So the
# second part is at most
#
# $$\begin{aligned} \norm V_2\, (1 + 2t)\, e^{2t} \cdot (H g)(s), \qquad g(r) &= W_1(\mu^r, \nu^r), \\
#   (H g)(s) &= \frac{1}{\theta([0, s])} \int_{[0, s]} g\, d\theta . \end{aligned}$$
#
# *Step 3, Hardy's inequality* {cite}`hardy1934inequalities`: $\norm{H g}_{L^p(\theta)} \le \frac{p}{p-1}
# \norm{g}_{L^p(\theta)}$.
#
# 1. Let positions have weights $\lambda_i$, and put $\Lambda_i = \sum_{j \le i} \lambda_j$, with averages $\alpha_i$.
#    Then $\lambda_i g_i = \Lambda_i \alpha_i - \Lambda_{i-1} \alpha_{i-1}$, and
#    $\alpha_i^{p-1} \alpha_{i-1} \le \frac{p-1}p \alpha_i^p + \frac1p \alpha_{i-1}^p$.
# 2. So
#
#    $$\lambda_i \alpha_i^p - \tfrac{p}{p-1}\, \lambda_i\, \alpha_i^{p-1} g_i \;\le\;
#      \tfrac{1}{p-1} \big(\Lambda_{i-1} \alpha_{i-1}^p - \Lambda_i \alpha_i^p\big) .$$
# 3. Summed over $i$ the right side is at most 0; Hölder's inequality on $\sum \lambda_i \alpha_i^{p-1} g_i$ does the
#    rest.
# 4. Any other $\theta$: cut $[0, 1]$ into intervals, with $\lambda_i$ the mass of each and $g_i$ the mean of $g$ on
#    it. Means make the right side no larger (Jensen). The averages up to the right ends tend to $H g$ as the
#    intervals shrink, and Fatou's lemma carries the inequality over.
# 5. For $p = \infty$ the factor is 1, as averages are at most the largest value.
#
# With $W_1 \le W_p$ the three steps give the theorem. $\square$
# :::
# ::::
#
# ::::{dropdown} Proof of the lower bound
# :::{prf:proof}
# 1. Let $\theta$ be uniform, and at each position put half of the mass at $R u$ and half at $-R u$, $u$ a unit
#    vector.
# 2. A token then sees tokens of its own sign with total weight $e^t/(2 \cosh t)$, whatever its position. So its mean
#    is $\pm R \tanh(t)\, u$ and its variance $R^2/\cosh^2 t$.
# 3. Now move both tokens at $s$ by $\epsilon\, g(s)\, u$. In the Jacobian the key terms of $R u$ and $-R u$ at one
#    position cancel, the value terms give $H g$, and the query term $\frac{t}{\cosh^2 t}\, g$.
# 4. To first order both output tokens move by $\epsilon\, \big(H g + \frac{t}{\cosh^2 t}\, g\big)(s)\; u$.
# 5. For $g(s) = s^{-\beta}$ with $\beta < 1/p$, $H g = g/(1 - \beta)$. Cut $g$ off at a large value, take tokens a
#    little inside the ball, and let $\beta \to 1/p$. $\square$
# :::
# ::::
#
# The gap in the reconstructed form is $H$, in step 2: the mask renormalises by $\theta([0, s])$, so a perturbation of
# the first tokens is not divided by the length of the whole text. At $p = 1$ there is no bound for all measures.
#
# ## What this shows and does not show
#
# - The reconstructed form of Theorem 4.4 is false for small $t$. The smallest case is two tokens and no
#   {term}`logits <logit>`. We
#   have the theorem without its formula: if it reads otherwise, this page says nothing against it.
# - The corrected bound is proved above. In $d_2$ it is larger than the reconstructed form by a factor of at most two,
#   and it is tight at $t = 0$.
# - For $t$ beyond the shaded range the reconstructed form may or may not hold in $d_2$. No case against it was found
#   there.
# - The sequences on which it fails at larger $t$ here have two thousand tokens and very uneven weights.
# - At real radii $t$ is in the hundreds ({doc}`23_mean_field`): there both bounds are of no practical use for a
#   layer.
#
# **One thing to try.** Give the first position half of all the weight. Does the norm of averaging come down to 1?
#
# **Next:** {doc}`41_real_text`, the constant on real text, length by length.
