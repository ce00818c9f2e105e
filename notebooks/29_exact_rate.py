# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The rate for every A (ours)
#
# Over all {term}`measures <measure>` in a ball of {term}`radius` $R$, the constant of {term}`attention` grows
# exponentially in $R^2$, at a rate that we know for any matrix $A$.
#
# $$\gamma^*(A) = \tfrac12 \max_{\abs x \le 1} \big(\abs{A x} - x \cdot A x\big)$$
#
# To leading order the logarithm of the constant is $\gamma^* R^2$. The published lower {term}`bound` has a rate
# $\gamma \le \gamma^*$ that sees only the real eigenvalues of $A$. That rate may vanish ({numref}`fig-29-rate`), and in
# the median {term}`head <attention head>` of MiniLM $\gamma^*$ is {glue:text}`middle_minilm:.1f` times $\gamma$. For
# $V = I$ we know the constant within a factor of {glue:text}`order_most:.0f`, for every $A$ and $R$ and in every width.

# %% tags=["parameters"]
s_far = 100.0  # gamma* R^2 at which exponents are compared
random_cases = 200
starts = 16
seed = 0

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from myst_nb import glue

from lab import figures, ledger, results
from lab.verification.ascent import Norm
from lipnb import Attention, bounds, local_lipschitz
from lipnb.worst_case import gaussian

figures.house_style()
generator = torch.Generator().manual_seed(seed)
normal, eye = gaussian(generator), torch.eye(2).double()
nilpotent = torch.tensor([[0.0, 1.0], [0.0, 0.0]]).double()


def constant_at_measure(A, V, x, a):
    """Local constant in W2 at a measure."""
    return local_lipschitz(Attention.from_matrices(A, V), x, weights=a, method="dense").value.item()


# %% tags=["hide-input"]
def pair_of_atoms(A, R, odds=1 / 3):
    """The two atoms of the theorem, the light one first, and their weights."""
    rate = bounds.mean_field_rate(A)
    light = odds * np.exp(-2 * rate.lower * R**2)
    return R * torch.stack([rate.y, rate.x]), torch.tensor([light, 1.0]).double() / (1 + light)


heads = results.load("exact-rates")
heads["ratio"], heads["share"], heads["paper"] = (heads.lower / heads.gamma, heads.lower / heads.norm,
                                                  heads.gamma / heads.norm)  # fmt: skip
names = {"minilm": "MiniLM", "gpt2-mini": "gpt2-mini", "smollm2": "SmolLM2", "gpt2-124m-attention": "GPT-2"}
rising = pd.DataFrame([
    {"R": R, "norm": bounds.mean_field_upper_sharp(nilpotent, eye, R, log=True),
     "upper": bounds.mean_field_upper_exact(nilpotent, eye, R, log=True),
     "lower": bounds.mean_field_lower_exact(nilpotent, eye, R, log=True),
     "measured": np.log(constant_at_measure(nilpotent, eye, *pair_of_atoms(nilpotent, R)))}
    for R in np.linspace(0.5, 6, 23)
])  # fmt: skip

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-29-rate", "caption": "Above: $A = e_1 e_2^\\top$ has the one eigenvalue 0, so $\\gamma = 0$. Its constant grows all the same, like $e^{\\gamma^* R^2}$ with $\\gamma^* =$ {glue:text}`nilpotent_rate:.2f`. Below: all heads of four trained models (SmolLM2 without its rotations). The height above the diagonal is what the eigenvectors miss."}, "image": {"alt": "Two panels. Above, logarithms of the constant of a nilpotent matrix against the radius: the measured marks rise like the square of the radius and lie between a dotted horizontal line at zero and two upper bounds, the nearer of which has the same curvature. Below, one mark for each trained head, its exact rate against that of the paper, both over the norm of A: all marks lie above the diagonal, most of them far above."}}
left, right = figures.panels(1, rows=2, width=6.4, height=3.9)
left.plot(rising.R, rising.norm, color="0.45", ls="--")
left.plot(rising.R, rising.upper, color="#e69f00")
left.plot(rising.R, rising.measured, "ko", ms=4.5)
left.axhline(0, color="0.3", lw=1, ls=":")
ends = rising.iloc[-1]
for height, text, colour in ((ends.norm - 2, "bound by the norm of A", "0.35"), (ends.upper + 0.8, "bound with γ*", "#a06d00"),
                             (ends.measured - 1.8, "measured at two atoms", "k"), (1.2, "γ = 0: no growth", "0.3")):  # fmt: skip
    left.text(6.15, height, text, color=colour, va="center", fontsize=10)
left.set(xlabel="radius R", ylabel="logarithm of the constant", xlim=(0.2, 8.6))
looks = (("minilm", "#0072b2", "o"), ("gpt2-mini", "#d55e00", "D"), ("smollm2", "#009e73", "^"),
         ("gpt2-124m-attention", "#cc79a7", "s"))  # fmt: skip
for name, colour, marker in looks:
    own = heads[heads.model == name]
    right.plot(own.paper, own.share, marker, color=colour, ms=4, alpha=0.7, label=names[name], ls="")
right.plot([0, 1], [0, 1], color="0.3", lw=1)
right.text(0.4, 0.36, "γ* = γ", color="0.3")
right.axhline(1 / 8, color="0.5", lw=1, ls=":")
right.text(0.25, 0.06, "the least possible γ*", color="0.3")
right.set(xlabel=r"$\gamma / \Vert A \Vert_2$", ylabel=r"$\gamma^* / \Vert A \Vert_2$", xlim=(-0.02, 1), ylim=(0, 1.02))
right.legend(loc="lower right", fontsize=10, bbox_to_anchor=(1, 0.14))
plt.show()

# %% [markdown]
# ## The smallest case: a matrix whose eigenvalues are all 0
#
# Take $A = e_1 e_2^\top$, so that $A x = x_2 e_1$. The query of a heavy {term}`atom` at $x = R(-\frac12,
# \frac{\sqrt3}2)$ points along $e_1$, away from the atom itself. It gives a light atom at $y = R e_1$ the score
# $\frac{\sqrt 3}2 R^2$, and itself $-\frac{\sqrt 3}4 R^2$. So the light atom gets half of the attention if its weight
# is at least $e^{-2s}$, with $2s = \frac{3 \sqrt 3}4 R^2$. When it moves, the output at $x$ follows, and with it nearly
# all mass.

# %%
R = 3.0
s = 3 * np.sqrt(3) / 8 * R**2
x = R * torch.tensor([[1.0, 0.0], [-0.5, np.sqrt(3) / 2]]).double()  # light, heavy
a = torch.tensor([np.exp(-2 * s), 1 - np.exp(-2 * s)])
f = Attention.from_matrices(nilpotent, eye)
paid = f.probabilities(x, a)[0, 1, 0]  # of the heavy atom to the light one
print(f"the light atom has the weight {a[0]:.2e} and {paid:.3f} of the attention")
print(f"constant {constant_at_measure(nilpotent, eye, x, a):,.0f}, e^s = {np.exp(s):,.0f}")

# %% [markdown]
# ## The statements
#
# The published rate is $\gamma = \max(-\gamma_{\min}, \gamma_{\max} / 8)$, where $\gamma_{\min}$ and $\gamma_{\max}$
# are the smallest and the largest real eigenvalue of $A$.
#
# {bdg-secondary}`ours` {ref}`what is this? <badges>`
#
# :::{prf:proposition} No point is too popular (ours)
# :label: popularity
#
# Let tokens $x_i$ of the ball of radius $R$ have the weights $a_i$ of total 1, and let $Z_i = \sum_l a_l\, e^{A x_i
# \cdot x_l}$. For every point $y$ of the ball
#
# $$T(y) = \sum_i a_i \frac{e^{A x_i \cdot y}}{Z_i} \le \exp \max_m A m \cdot (y - m) \le e^{2 \gamma^* R^2} ,$$
#
# where $m$ runs through the convex hull of the tokens. For $A \ne 0$ both are equalities at $y = R\, A x / \abs{A x}$
# if one token $R x$ has all the weight, where $x$ attains the maximum in $\gamma^*$. With a query
# bias $A m + b$ stands for $A m$, $b = K^\top b_Q / \sqrt k$, and $2 \gamma^* R^2 + 2 \abs b R$ for $2 \gamma^* R^2$;
# then only the first equality remains.
# :::
#
# $T(x_j)$ is the attention that the token $x_j$ receives from all tokens, over its weight. For $n$ tokens of weight
# $1 / n$ it is a column sum of $P$.
#
# {bdg-secondary}`ours` {ref}`what is this? <badges>`
#
# :::{prf:theorem} The rate of the mean-field constant (ours)
# :label: exact-rate
#
# Let $F$ be one head without a {term}`mask <mask (causal)>`, with matrices $A$ and $V$, as a map of measures in the
# ball of radius $R > 0$ with the distance $W_2$, and $t = \norm A_2 R^2$. In every width
#
# $$\Lip(F) \le \norm V_2 \big(t + \sqrt{1 + t^2}\; e^{\gamma^* R^2}\big) .$$
#
# For $A x \ne 0$ with $\abs x \le 1$, $y = A x / \abs{A x}$, $2s = R^2 A x \cdot (y - x)$, and every $c > 0$
#
# $$\Lip(F) \ge e^s\, \frac{\sqrt c}{1 + c}\, \Big| V \Big(y + \frac{R^2 \abs{A x}}{1 + c}\, (y - x)\Big) \Big| .$$
#
# Hence, for $A, V \ne 0$, $\ \log \Lip(F) / R^2 \to \gamma^*(A)$ as $R \to \infty$. For $V = I$ and all $A$ and $R$
#
# $$\Lip(F) \ge \frac{\sqrt 3}4 \Big(1 + \frac32\, \gamma^* R^2\Big)\, e^{\gamma^* R^2} \ge
#   \frac{3 \sqrt 3}{64} \big(t + \sqrt{1 + t^2}\; e^{\gamma^* R^2}\big) .$$
# :::
#
# The best $x$ gives $s = \gamma^* R^2$. So for $V = I$ the two bounds differ by a factor of at most
# $64 / (3 \sqrt 3) =$ {glue:text}`order_exact:.2f`, and for $A = I$ their ratio tends to it as $R$ grows. Also
# $\Lip(F) \ge \norm V_2$, because a single token sees only itself. With a query bias $b$ the same proof gives the upper
# bound with $t + \abs b R$ for $t$ under the root and $\gamma^* R^2 + \abs b R$ in the exponent.
#
# {bdg-secondary}`ours` {ref}`what is this? <badges>`
#
# :::{prf:proposition} Computing the rate (ours)
# :label: rate-duality
#
# Let $A \ne 0$. With $\lambda^+$ the largest eigenvalue or 0, whichever is larger,
#
# $$\gamma^*(A) = \tfrac12 \min_{\mu > 0} \Big( \frac\mu2 + \lambda^+\Big(\frac{A^\top A}{2 \mu} - \frac{A +
#   A^\top}2\Big) \Big) ,$$
#
# a convex problem in $1 / \mu$; every $\mu$ gives an upper bound. Moreover $\norm A_2 / 8 \le \gamma^* \le \norm A_2$
# and $\gamma \le \gamma^*$. The lower bound is attained if $A$ is symmetric and positive semidefinite, the upper one
# exactly if $-\norm A_2$ is an eigenvalue.
# :::
#
# {bdg-secondary}`ours` {ref}`what is this? <badges>`
#
# :::{prf:proposition} Sequences (ours)
# :label: rate-sequences
#
# Let $m$ of $n \ge 2$ {term}`tokens <token>` be at $R y$ and the others at $R x$, with $x, y$ as above, $1 \le m < n$,
# and $q = m / (m + (n - m) e^{-2s})$. There
#
# $$\norm{D_X f}_2 \ge \sqrt{\frac{n - m}m}\; q\, \big| V \big( y + (1 - q)\, R^2 \abs{A x} (y - x) \big) \big| .$$
#
# Let $V = I$ and $s = \gamma^* R^2$, and let $m$ be the whole number from 1 on that is nearest to $n / (1 + e^{2s})$.
# Up to $n = 1 + e^{2s}$ this is at least $\frac12 \sqrt{n - 1}$, with $m = 1$; for all larger $n$ it is at least
# $\frac{\sqrt 2}3 (1 + \frac23 s)\, e^s$.
# :::
#
# So for $V = I$, beyond $1 + e^{2 \gamma^* R^2}$ tokens the constant of $n$ tokens has the order of the constant on
# measures. `bounds.general_lower_pair` has this bound.
#
# Without a mask no column of $P$ has a sum above $e^{2 \gamma^* R^2}$ ({prf:ref}`popularity`), so $\norm P_2$ is at most
# the smaller of $\sqrt n$ and $e^{\gamma^* R^2}$. Through the values, growth like $\sqrt n$ therefore ends at
# $e^{2 \gamma^* R^2}$ tokens. Keys add the factor $\sqrt{1 + t^2}$, with which other inputs last longer. For $A = -1$,
# $V = 1$ and $R = 2$, take eight tokens at $-R$ and {glue:text}`others:,d` at $R$, {glue:text}`times_promise:.0f` times
# $e^8$ in all: their constant is still {glue:text}`still:.2f` $\sqrt{n - 1}$.
#
# {bdg-secondary}`ours` {ref}`what is this? <badges>`
#
# :::{prf:theorem} The leading constant (ours)
# :label: mean-field-constant
#
# In the setting of {prf:ref}`exact-rate`
#
# $$\Lip(F) \le \norm V_2 \Big(t + \cosh t + t \min\big(e^t, \sqrt{\tfrac{27}{64} e^{2t} + 1}\,\big)\Big) .$$
#
# If $A u = -\norm A_2 u \ne 0$ and $\abs{V u} = \norm V_2 \ne 0$ for a unit vector $u$, then $\Lip(F) \sim \frac{3
# \sqrt 3}8\, \norm V_2\, t\, e^t$ as $R \to \infty$.
# :::
#
# `lipnb.bounds.mean_field_upper_exact` takes the smaller of both theorems term by term.
#
# ## Measured against stated
#
# At the two atoms, with $\gamma^* R^2 = 100$ and $V = I$, the logarithm of the constant lies between the two bounds.
# Divided by $\gamma^* R^2$, all three tend to 1.

# %% tags=["hide-input"]
matrices = {
    "−I": -eye, "I": eye, "diag(1, −1/8)": torch.diag(torch.tensor([1.0, -1 / 8])).double(),
    "a quarter turn": torch.tensor([[0.0, -1.0], [1.0, 0.0]]).double(), "e₁e₂ᵀ": nilpotent,
    "not symmetric": torch.tensor([[-0.3, 2.0], [0.0, 0.7]]).double(), "random": normal(3, 3),
}  # fmt: skip
rows = []
for name, A in matrices.items():
    V, rate = torch.eye(len(A)).double(), bounds.mean_field_rate(A)
    real = torch.linalg.eigvals(A).imag.abs().min() < 1e-12
    R = float(np.sqrt(s_far / rate.lower))
    row = {"A": name, "norm": torch.linalg.matrix_norm(A, 2).item()}
    row |= {"gamma": bounds.growth_rate(A) if real else np.nan, "rate": rate.lower}
    row["low"] = bounds.mean_field_lower_exact(A, V, R, log=True) / s_far
    row["measured"] = np.log(constant_at_measure(A, V, *pair_of_atoms(A, R))) / s_far
    row["high"] = bounds.mean_field_upper_exact(A, V, R, log=True) / s_far
    row["gap"] = (rate.upper - rate.lower) / row["norm"]
    rows.append(row)
exponents = pd.DataFrame(rows)
shown = {"A": "matrix A", "norm": "‖A‖₂", "gamma": "γ", "rate": "γ*", "low": "ln lower / γ*R²",
         "measured": "ln measured / γ*R²", "high": "ln upper / γ*R²"}  # fmt: skip
figures.table(exponents.drop(columns="gap"), shown, digits=4)

# %% [markdown]
# How much of the bounds is reached? For each matrix and three {term}`logit ranges <logit range>` we maximise the
# popularity $T(y)$, and the constant with $V = I$, by {term}`gradient ascent` over four points and their weights, from
# {glue:text}`starts:d` starts.


# %% tags=["hide-input"]
def log_popularity(A):
    """Logarithm of T(y) at a batch of points, logarithms of their weights, and y."""

    def value(x, log_a, y):
        asked = x @ A.T
        Z = torch.logsumexp(asked @ x.mT + log_a[:, None], 2)
        return torch.logsumexp(log_a + (asked @ y[..., None])[..., 0] - Z, 1)

    return value


def log_constant(A):
    """Logarithm of the constant with V = I, of the same."""
    norm = Norm(Attention.from_matrices(A, torch.eye(len(A)).double()), torch.empty(starts, 4, len(A)).double())
    return lambda x, log_a, y: norm(x, log_a.exp()).log()


# %% tags=["hide-input"]
def ascend(value, A, steps=150):
    """The largest value found over four points of the unit ball, half of the starts random and half near the pair."""
    rate, half = bounds.mean_field_rate(A), starts // 2
    near = torch.stack([rate.y, *[rate.x] * 3]).expand(half, -1, -1)
    uneven = torch.tensor([2 * rate.lower, 0, 0, 0]) * torch.rand(starts, 1, generator=generator)
    free = [torch.cat([normal(half, 4, len(A)), near + 0.1 * normal(half, 4, len(A))]),
            normal(starts, 4) - uneven, rate.y + 0.3 * normal(starts, len(A))]  # fmt: skip
    free = [one.requires_grad_() for one in free]
    optimizer, best = torch.optim.Adam(free, lr=0.05), -np.inf
    for _ in range(steps):
        x, y = (one / one.norm(dim=-1, keepdim=True).clamp_min(1) for one in (free[0], free[2]))
        found = value(x, free[1].log_softmax(1), y)
        best = max(best, found.max().item())
        optimizer.zero_grad()
        (-found.sum()).backward()
        optimizer.step()
    return best


# %% tags=["hide-input"]
rows = []
for name, M in matrices.items():
    for t in (1.0, 4.0, 16.0):
        A = t * M / torch.linalg.matrix_norm(M, 2)
        V, rate = torch.eye(len(A)).double(), bounds.mean_field_rate(A)
        upper = bounds.mean_field_upper_exact(A, V, 1.0, log=True)
        rows.append({
            "A": name, "t": t, "popularity": ascend(log_popularity(A), A) / (2 * rate.lower),
            "found": np.exp(ascend(log_constant(A), A) - upper),
            "low": np.exp(bounds.mean_field_lower_exact(A, V, 1.0, log=True) - upper),
        })  # fmt: skip
reached = pd.DataFrame(rows)
shown = {"A": "matrix A", "t": "t", "popularity": "ln T(y) / 2γ*R², largest found", "found": "constant found / upper",
         "low": "lower / upper"}  # fmt: skip
figures.table(reached, shown, digits={"t": 2, "popularity": 4, "found": 2, "low": 2})

# %% tags=["hide-input"]
order = 64 / (3 * 3**0.5)
glue("order_exact", order, display=False)
glue("order_most", float(np.ceil(order)), display=False)
glue("starts", starts, display=False)
for name, column in {"popular": "popularity", "found": "found"}.items():
    glue(f"{name}_least", float(reached[column].min()), display=False)
    glue(f"{name}_most", float(reached[column].max()), display=False)

# %% [markdown]
# Nothing exceeds them. The largest $\ln T$ is {glue:text}`popular_least:.4f` to {glue:text}`popular_most:.4f` of
# $2 \gamma^* R^2$, and the largest constant {glue:text}`found_least:.2f` to {glue:text}`found_most:.2f` of the upper
# bound.

# %% tags=["hide-input"]
drawn = []
for case in range(random_cases):
    n, d, t = 2 + case % 5, 1 + case % 3, 10.0 ** (-2 + 3 * case / random_cases)
    A, V, x = normal(d, d), normal(d, d), normal(n, d)
    A, x = t * A / torch.linalg.matrix_norm(A, 2), x / x.norm(dim=1).max()
    a = (t * normal(n)).softmax(0)
    measured = np.log(constant_at_measure(A, V, x, a))
    drawn.append(np.exp(measured - bounds.mean_field_upper_exact(A, V, 1.0, log=True)))
minus = []
for t in (3.0, 10.0, 30.0, 100.0, 300.0):
    R = t**0.5
    found = np.log(constant_at_measure(-eye, eye, *pair_of_atoms(-eye, R)))
    minus.append(np.exp(found - bounds.mean_field_upper_exact(-eye, eye, R, log=True)))
verified = results.load("verify").query("bound == 'mean_field_upper_exact'")
glue("verified", int(verified.cases.sum()), display=False)
glue("verified_most", float(verified.worst_hot.max()), display=False)
glue("nearly", float(max(minus)), display=False)
light, others = 8, 71_535
beyond = constant_at_measure(-eye[:1, :1], eye[:1, :1], torch.tensor([[-2.0], [2.0]]).double(),
                             torch.tensor([light, others]).double() / (light + others)) / (light + others - 1) ** 0.5  # fmt: skip
glue("others", others, display=False)
glue("times_promise", float((light + others) / np.exp(8)), display=False)
glue("still", float(beyond), display=False)

# %% [markdown]
# {doc}`71_verification` compares the constant at {glue:text}`verified:,d` random, degenerate, structured and ascended
# measures with `mean_field_upper_exact`. None exceeds it, and for $t > 1$ the largest ratio is
# {glue:text}`verified_most:.4f`. At $A = -I$ and two atoms the constant is {glue:text}`nearly:.4f` of the bound.
#
# ## Trained heads

# %% tags=["hide-input"]
rows = []
for name, own in heads.groupby("model", sort=False):
    low, middle, high = own.ratio.quantile([0, 0.5, 1])
    share, paper = own.share.quantile([0, 0.5, 1]), own.paper.quantile([0, 0.5, 1])
    rows.append({"model": names[name], "heads": len(own), "low": low,
                 "middle": middle, "high": high, "share": " to ".join(f"{v:.2f}" for v in share.iloc[[0, 2]]),
                 "paper": " to ".join(f"{v:.2f}" for v in paper.iloc[[0, 2]])})  # fmt: skip
trained = pd.DataFrame(rows)
shown = {"model": "model", "heads": "heads", "low": "γ*/γ, least", "middle": "median", "high": "largest",
         "share": "γ*/‖A‖₂", "paper": "γ/‖A‖₂"}  # fmt: skip
figures.table(trained, shown, digits=3)

# %% tags=["hide-input"]
minilm = heads[heads.model == "minilm"].assign(
    promised=lambda of: 2 * of.gamma * of.R**2 / np.log(10), true=lambda of: 2 * of.lower * of.R**2 / np.log(10)
)
short = minilm.nsmallest(4, "promised")
shorter = short.assign(pair=short["at pair"] / 1e4, clusters=short["at clusters"] / 1e4)
shown = {"layer": "layer", "head": "head", "promised": "log₁₀ length by γ", "true": "log₁₀ length by γ*",
         "pair": "at the pair, over √n", "clusters": "at two clusters, over √n"}  # fmt: skip
glue("nilpotent_rate", bounds.mean_field_rate(nilpotent).lower, display=False)
for name, value in trained.set_index("model").middle.items():
    glue(f"middle_{name.lower()}", float(value), display=False)
promised = np.sort(1 + 10.0**minilm.promised)
glue("short_positions", int((promised < 512).sum()), display=False)
glue("short_first", float(promised[0]), display=False)
glue("short_next", float(promised[1]), display=False)
glue("most", float(heads.ratio.max()), display=False)
glue("clusters", float(short["at clusters"].iloc[0]), display=False)
glue("clusters_next", float(short["at clusters"].iloc[1]), display=False)
glue("shortest", float(minilm.true.min()), display=False)
glue("pair_least", float(minilm["at pair"].min() / 1e4), display=False)
figures.table(shorter[list(shown)], shown, digits={"promised": 1, "true": 1, "pair": 2, "clusters": 6})

# %% [markdown]
# In the median head of MiniLM $\gamma^*$ is {glue:text}`middle_minilm:.1f` times $\gamma$; the first table has the other
# models, SmolLM2 without its rotations. In one head it is {glue:text}`most:.0f` times $\gamma$.
#
# Proposition 3.4 promises $\frac12 \sqrt{n - 1}$ up to the length $1 + e^{2 \gamma R^2}$. The second table has the
# heads of MiniLM for which this length is shortest, with the mean token norm on text for $R$. Its last two columns are
# constants with $V = I$ at $n = 10^8$ tokens. The {term}`two clusters` of that proposition have fallen to
# {glue:text}`clusters:.2f` and {glue:text}`clusters_next:.2f` in the first two heads. The pair $(x, y)$ keeps at least
# {glue:text}`pair_least:.2f` $\sqrt n$ in all heads of the model: $\gamma^*$ promises this rate up to 10 to the power
# {glue:text}`shortest:.0f` tokens or more. So the rate $\sqrt n$ holds at all practical lengths in these heads, as the
# paper says. But its condition, with $\gamma$, fails in {glue:text}`short_positions:d` head at the model's 512
# positions: that head is promised {glue:text}`short_first:,.0f` tokens, the next head {glue:text}`short_next:,.0f`.
#
# ## Rotary positions
#
# A head with rotary positions ({prf:ref}`scan-rotary`) has a matrix $A_m = K^\top \Theta_m Q / \sqrt k$ for every
# offset $m = i - j$. The exact rate is neither the rate of $A_0$ nor the largest rate of any $A_m$.
#
# {bdg-secondary}`ours` {ref}`what is this? <badges>`
#
# :::{prf:theorem} The rate with rotary positions (ours)
# :label: rotary-rate
#
# Let a head with rotary positions and $V = I$, masked or not, act on measures of pairs (position, token in the ball of
# radius $R$), with the distance $d_2$ ({prf:ref}`masked-mean-field`). The offsets $m$ are those between a position and
# one that it may attend to: with a mask of one sign, and 0. Let
#
# $$\gamma^*_{\mathrm{rot}} = \tfrac12 \max_{\abs x \le 1} \big(\sup_m \abs{A_m x} - x \cdot A_0 x\big), \qquad
#   t = \sup_m \norm{A_m}_2 R^2, \qquad t' = \norm Q_2 \norm K_2 R^2 / \sqrt k .$$
#
# For every $\kappa > 0$
#
# $$\tfrac12\, e^{\gamma^*_{\mathrm{rot}} R^2} \le \Lip \le t + (2 + \sqrt 6\, t)\, \Big(1 + \frac{t' \sqrt
#   k}{\kappa}\Big)^{k/2}\, e^{3 \kappa + \gamma^*_{\mathrm{rot}} R^2} .$$
# :::
#
# So $\log \Lip / R^2 \to \gamma^*_{\mathrm{rot}}$. The smallest case has tokens on a line, one pair of coordinates for
# queries and keys, $Q = e_1$, $K = e_2$, and positions a quarter turn apart, so that $A_0 = 0$ and $A_{\pm 1} = \pm 1$
# (times a scale). A token gives its own position the score 0, and a neighbour of the right sign the full score.

# %% tags=["hide-input"]
R2 = 100.0  # R^2; the scale is 1
turned = Attention(torch.tensor([[[1.0], [0.0]]]).double(), torch.tensor([[[0.0], [1.0]]]).double(), eye[None, :1, :1],
                   scale=1.0, frequencies=torch.tensor([np.pi / 2]).double())  # fmt: skip
light = np.exp(-R2)
quarter = [
    local_lipschitz(turned, R2**0.5 * torch.tensor([[1.0], [side]]).double(), method="dense",
                    weights=torch.tensor([1 - light, light]).double()).value.log().item() / R2
    for side in (1.0, -1.0)
]  # fmt: skip
glue("quarter", max(quarter), display=False)
print(f"logarithm of the constant over R²: {max(quarter):.3f}")
print(f"rate of A_0: 0, largest rate of an A_m: {bounds.mean_field_rate(-eye[:1, :1]).lower:g}, the exact rate: 0.5")

# %% [markdown]
# The measured exponent is {glue:text}`quarter:.2f`, up to a power of $R$: $\gamma^*_{\mathrm{rot}} = \frac12$, where
# $A_0$ promises 0 and $A_{-1}$ alone 1. If weights are equal, as in a text without copies, the mass of the heavy token
# must be spread over many positions, and the rate can be smaller. We do not treat that case.
#
# ## Proofs
#
# ::::{dropdown} Proof that no point is too popular
# :::{prf:proof}
# Let $r_i = \frac{a_i}{T(y)} e^{A x_i \cdot y} / Z_i$, a probability on the tokens, $m = \sum_i r_i x_i$ its mean, and
# $D = \sum_i r_i \log \frac{r_i}{a_i}$. Tokens of weight 0 are left out.
#
# 1. The logarithm of $r_i / a_i$, averaged with the weights $r_i$, is $D = A m \cdot y - \sum_i r_i \log Z_i - \log
#    T(y)$.
# 2. By Jensen's inequality $\log Z_i = \log \sum_l r_l \frac{a_l}{r_l} e^{A x_i \cdot x_l} \ge A x_i \cdot m - D$ for
#    every $i$, so $\sum_i r_i \log Z_i \ge A m \cdot m - D$.
# 3. Both together: $\log T(y) \le A m \cdot y - A m \cdot m$. And $A m \cdot (y - m) \le R \abs{A m} - m \cdot A m
#    \le 2 \gamma^* R^2$.
# 4. Equality: with all weight at $x$, $T(y) = e^{A x \cdot (y - x)}$. For other measures sums become integrals; with a
#    bias $A x_i + b$, an affine function, stands for $A x_i$. $\square$
# :::
# ::::
#
# ::::{dropdown} Proof of the rate, upper bound
# :::{prf:proof}
# Let tokens $x_j$ of weights $a_j$ move by $\varepsilon_j$, and $v$ be a unit vector. As in the proof of
# {prf:ref}`mean-field-sharp`, output $i$ moves along $v$, before $V$, by at most $t \abs{\varepsilon_i}$ through its
# query and by $\sum_j P_{ij}\, (v + u_j A x_i) \cdot \varepsilon_j$ through values and keys, $u_j = v \cdot (x_j -
# m_i)$.
#
# 1. Under $P_i$ the mean of $u_j$ is 0 and that of $u_j^2$ at most $R^2$. So $\sum_j P_{ij} \abs{v + u_j A x_i}^2 \le 1 +
#    t^2$.
# 2. By Cauchy-Schwarz the square of the second part is at most $(1 + t^2) \sum_j P_{ij} \abs{\varepsilon_j}^2$.
# 3. Weighted with $a_i$ and added, as $\sum_i a_i P_{ij} = a_j T(x_j)$, that is $(1 + t^2) \sum_j a_j T(x_j)
#    \abs{\varepsilon_j}^2$, and $T \le e^{2 \gamma^* R^2}$ ({prf:ref}`popularity`). $\square$
# :::
# ::::
#
# ::::{dropdown} Proof of the lower bounds, and the limit
# :::{prf:proof}
# Let the atom at $R y$ have the odds $w$ against the one at $R x$, and $c = w e^{2s}$.
#
# 1. At $R x$ the scores of the two atoms differ by $2s$, so the light one gets $q = c / (1 + c)$ of the attention.
# 2. The block from the light to the heavy atom is $V q\, (I + (1 - q) R (y - x) (R A x)^\top)$. Along $y$ it is $V q\,
#    (y + (1 - q) R^2 \abs{A x} (y - x))$.
# 3. In the weighted norm it is multiplied by $w^{-1/2} = e^s c^{-1/2}$. The light atom moves inwards, along $-y$. The
#    outputs of the two atoms either differ, and after a short move each is coupled with itself, or are one point, with
#    which there is one coupling only: to first order $W_2$ is the weighted norm. This is the bound.
# 4. For sequences $w = m / (n - m)$, and the $m$ tokens move together. With $V = I$ the length is at least that of the
#    component along $y$, which is $q\, (1 + (1 - q)\, 2s) \ge q$, as $R^2 \abs{A x}\, y \cdot (y - x) = 2s$. If
#    $n / (1 + e^{2s}) \le 1$, then $m = 1$ and $q \ge \frac12$. Otherwise $m$ is between $\frac23$ and $\frac43$ of
#    that number. So $c$ lies between $\frac12$ and 2, $\frac{\sqrt c}{1 + c} \ge \frac{\sqrt 2}3$, and $1 - q =
#    \frac1{1 + c} \ge \frac13$.
# 5. *The limit.* If $V(y - x) \ne 0$ at a best $x$, both sides have the exponent $\gamma^*$. Otherwise take $x'$ near
#    it with $V(y' - x') \ne 0$. There is one: if $V A x / \abs{A x} = V x$ on an open set, the left side does not
#    change as $x$ is scaled and the right side does, so $V x = 0$ on an open set and $V = 0$.
# 6. *The order for $V = I$.* Take $c = \frac13$ and $s = g = \gamma^* R^2$. By step 4 the bound is at least
#    $\frac{\sqrt 3}4 (1 + \frac32 g)\, e^g$. As $t \le 8g$ ({prf:ref}`rate-duality`), the upper bound over $e^g$ is at
#    most $8 g e^{-g} + \sqrt{1 + 64 g^2} \le \frac8e + 1 + 8g < \frac{16}3 + 8g$, which is $\frac{64}{3 \sqrt 3}$ times
#    $\frac{\sqrt 3}4 (1 + \frac32 g)$. For $A = 0$ the constant is 1. $\square$
# :::
# ::::
#
# ::::{dropdown} Proof of the rate with rotary positions
# :::{prf:proof}
# *Below.* Put the light atom at $R A_m x / \abs{A_m x}$ and the heavy one at $R x$, at positions of the best offset
# $m$. The own score of the heavy one is $R^2 x \cdot A_0 x$ and its score for the light one $R^2 \abs{A_m x}$. From
# here on the proof is that of the lower bounds, with $A_m x$ for $A x$ and $c = 1$. (If every $A_m x$ is 0, the bound is
# $\frac12$, and a single token has 1. If the supremum is not attained, take offsets that tend to it.)
#
# *Above.* The proof of {prf:ref}`masked-rate`, with cells for the rotated queries $\Theta_i Q x_i$: cubes of side
# $2 \kappa / (\norm K_2 R)$ in place of boxes, so that in a cell the logits differ by at most $\kappa$
# from those of its centre $q$, and $w(j) = e^{q \cdot \Theta_j K x_j / \sqrt k}$: the position enters through the token
# alone. Query and key terms have $\norm{A_m}_2$ for $\norm A_2$: a row takes covariances of $x_j$ with $A_m^\top x_j$.
#
# One step changes. That proof bounds $w(j) / w(i)$ for all tokens $j$, and here this is possible only if $i$ may attend
# to $j$: other offsets are not among those of the theorem.
#
# 1. For a cell $c$ let $W_j$ be the largest $1 / w(l)$ of tokens $l$ of $c$ that are not before $j$, and 0 if there is
#    none. It does not increase with $j$, so it is a sum of non-negative multiples of indicators of initial segments. On
#    each segment Hardy's inequality with weights holds. So
#    $\sum_{i \in c} b_i M_i^p / w(i) \le \sum_i b_i W_i M_i^p \le (\frac p{p-1})^p \sum_j b_j W_j f_j^p$.
# 2. As $b_j = a_j w(j)$, $b_j W_j$ is 0 or $a_j w(j) / w(l)$ with a token $l$ of $c$ that may attend to $j$, at an
#    offset $m$ of the theorem. The logarithm of $w(j) / w(l)$ is at most $2 \kappa + R \abs{A_m x_l} - x_l \cdot A_0 x_l \le 2
#    \kappa + 2 \gamma^*_{\mathrm{rot}} R^2$, as a token has the offset 0 to itself.
#
# Without a mask averages over all tokens, with the weights $b_j$, take the place of those over the past, and Jensen's
# inequality that of Hardy's. Then every token may attend to every other. $\square$
# :::
# ::::
#
# ::::{dropdown} Proof of how the rate is computed
# :::{prf:proof}
# The first step holds for every $\mu$, the second finds one with equality.
#
# 1. *Upper bound.* $\abs{A x} \le \frac12 (\mu + \abs{A x}^2 / \mu)$ for every $\mu > 0$. So $\abs{A x} - x \cdot A x
#    \le \frac\mu2 + x^\top M_\mu x$ with the matrix $M_\mu$ of the statement, and $x^\top M_\mu x \le
#    \lambda^+(M_\mu)$ on the ball.
# 2. *Equality.* In $\nu = 1 / \mu$ the right side is convex, infinite at both ends if $A \ne 0$, and so has a least
#    point. There 0 is in its subdifferential: $\abs{A x} = \mu$ for some $x$ in the ball with $x^\top M_\mu x =
#    \lambda^+$, because the values of $\abs{A x}^2$ at the unit vectors of an eigenspace form an interval, as do those
#    on the way from 0 to them if $\lambda^+ = 0$. At this $x$ both inequalities of step 1 are equalities.
# 3. *Range.* Along a right singular vector, $x = v / 2$ gives $\frac12 (\frac12 \norm A_2 - \frac14 v \cdot A v) \ge
#    \frac18 \norm A_2$. The upper bound and its case of equality are those of $\abs{A x} - x \cdot A x \le 2 \norm
#    A_2$. If $A = M^2$ with $M$ symmetric, $\abs{A x} - \abs{M x}^2 \le \norm M_2 \abs{M x} - \abs{M x}^2 \le \frac14
#    \norm A_2$. An eigenvector of a real eigenvalue $\lambda < 0$ gives $\abs\lambda$, half of one with $\lambda > 0$
#    gives $\lambda / 8$. $\square$
# :::
# ::::
#
# ::::{dropdown} Proof of the leading constant
# :::{prf:proof}
# In row $i$ let $P_j = a_j w_j / Z$ with $w_j = e^{A x_i \cdot x_j} \in [e^{-t}, e^t]$. Then $1 / Z = E[1 / w]$, with
# $E$ the average under $P$.
#
# 1. *Value term.* By Cauchy-Schwarz it is at most $\norm V_2 (\sum_j P_j^2 / a_j)^{1/2} = \norm V_2\, (E[w]\, E[1 /
#    w])^{1/2}$ times the length of the move in $L^2(a)$; and this is at most $\cosh t$, Kantorovich's inequality.
# 2. *Key term.* It has the length $\sum_j P_j\, v \cdot (x_j - m_i)\, A x_i \cdot \varepsilon_j$ for some unit vector
#    $v$, before $V$. With $z_j = v \cdot (x_j - m_i) / R$, which has mean 0 and lies in an interval of length 2, it is
#    at most $t \sqrt S$ times that length, $S = \sum_j P_j^2 z_j^2 / a_j = E[z^2 w]\, E[1 / w]$.
# 3. *Two values of w.* Divide an atom of $P$ into two, with $w = e^{\pm t}$ and the mean of $w$ kept: $E[z^2 w]$ stays,
#    $E[1 / w]$ does not fall. So let $w = e^t$ on a set $H$ of mass $q$ and $e^{-t}$ elsewhere.
# 4. Let $L$ be the complement of $H$, $M_H = E[z^2; H]$ and $M_L = E[z^2; L]$, together at most 1. Then $S = M_H (q +
#    (1 - q) e^{2t}) + M_L (1 - q + q e^{-2t}) \le (1 - q) M_H\, e^{2t} + 1$.
# 5. *The largest $M_H$.* It is a convex function of the positions, so these are at the ends $\pm 1$. It is also convex
#    in the mass of $L$ at $+1$, so by symmetry $L$ is at $-1$. With the mass $h$ of $H$ at $+1$, $M_H = 4 h - (8 - 4 q)
#    h^2$. For $q \le 1 - 1 / \sqrt 2$ it is largest at $h = q$, where it is $4 q (1 - q)^2$; else it is at most
#    $\frac1{2 - q}$.
# 6. So $(1 - q) M_H$ is at most the larger of $\frac{27}{64}$, at $q = \frac14$, and $\sqrt 2 - 1$. This is $\frac{27}
#    {64}$.
# 7. Rows have total weight one: the query, value and key terms add up to the bound. The other bound of the key term is
#    that of {prf:ref}`mean-field-sharp`.
# 8. *It is reached:* {prf:ref}`exact-rate` with $x = -y = u$ and $c = \frac13$. $\square$
# :::
# ::::

# %% tags=["hide-input", "nbval-check-output"]
assert abs(paid - 0.5) < 1e-3 and (rising.lower <= rising.measured.clip(0) * (1 + 1e-12)).all()
assert (rising.measured <= rising.upper).all() and (rising.upper <= rising.norm + 1e-9).all()
assert (exponents.low <= exponents.measured + 1e-9).all() and (exponents.measured <= exponents.high).all()
assert (exponents.gap < 1e-12).all() and exponents.high.max() < 1.2 and exponents.low.min() > 1
assert max(drawn) <= 1 and 0.999 < max(minus) <= 1 and verified.violations.sum() == 0
assert (heads.upper / heads.lower - 1).max() < 1e-9 and (heads.ratio.dropna() >= 1 - 1e-9).all()
assert heads.share.between(1 / 8, 1 + 1e-9).all()
assert trained.middle.min() > 2 and heads.gamma.notna().all() and (promised < 512).sum() == 1
assert beyond > 0.6 and (light + others) > 23 * np.exp(8)
assert (minilm["at pair"] >= 0.5 * (1e8 - 1) ** 0.5).all() and minilm.true.min() > 10
assert (short["at clusters"].iloc[:2] < 10).all()
assert (reached.popularity <= 1 + 1e-9).all() and reached.popularity.max() > 0.9999
assert (reached.found <= 1).all() and (reached.low <= reached.found * (1 + 1e-6)).all()
assert reached.low.min() > 1 / order
assert 0.5 <= max(quarter) < 0.56 and min(quarter) < 0.05
print(f"✓ {len(heads)} heads: the interval of the rate is narrow, no rate below the paper's; bounds hold")

# %% tags=["hide-input"]
own = {"seen": "ours", "effort": "proved"}
two_atoms, some = f"two atoms, {len(matrices)} matrices", f"{len(matrices)} matrices, t to 16"
over = 2 * exponents.norm / exponents.rate
least, worst_control = exponents.iloc[over.argmin()], reached.iloc[reached.popularity.argmax()]
equal = (f"equal exponents: no, {over.min():.3g} ({least.A}) to {over.max():.3g} times the true one, {len(over)} "
         "matrices; up to a constant in the exponent, as section 3.2 says: yes, 2 to 16 times. The bound is that of "
         "Geshkovski et al. (2023a), whose form is lost in our text, as is that of Theorem 3.5")  # fmt: skip
control = f"A = {worst_control.A}, t = {worst_control.t:g}, four points"

# %% tags=["hide-input"]
matching, theorem = "castin.abstract-matching", "castin.thm-3.5"
ledger.record(
    ledger.depends(matching, "exponent of Theorem 3.5 against that of the constant", equal, seen="reconstructed",
                   cases=len(over)),
    ledger.upper(matching, "exponent gamma* (ours)", exponents.measured / exponents.high,
                 grounds=f"{two_atoms}, gamma* R^2 = {s_far:g}", **own),
    ledger.lower(matching, "the same from below (ours)", exponents.measured / exponents.low, grounds=two_atoms, **own),
    ledger.upper(theorem, "exponent gamma*, in every width: the smaller of both theorems (ours)", reached.found,
                 grounds=f"ascent over four points and weights, V = I, {some}", **own),
    ledger.upper(theorem, "popularity: ln T(y) / 2 gamma* R^2 (ours)", reached.popularity,
                 grounds=f"ascent over four points, weights and y, {some}", **own),
    ledger.upper(theorem, "a control: the same with 0.9 gamma* for gamma*", reached.popularity / 0.9,
                 grounds="the same measures", seen="ours", effort="ascended", counter_example=control),
    ledger.lower(theorem, "order: 3 sqrt(3) / 64 of it is reached, V = I (ours)", order * reached.found,
                 grounds=f"ascent, {some}", **own),
    ledger.upper(theorem, "3 sqrt(3) / 8 t exp(t) (ours)", [*drawn, *minus],
                 grounds="random measures; two atoms at A = -I, t to 300", **own),
    ledger.equal("castin.sec-3.2-edge", "log of Theorem 3.5 over log of the constant on the ball: 2 norm(A) / gamma*",
                 exponents.measured - 1, within=0.1, grounds=f"two atoms, gamma* R^2 = {s_far:g}", **own),
    ledger.lower("castin.sec-3-window", "the conclusion: sqrt(n - 1) / 2, MiniLM on text",
                 minilm["at pair"] / (1e8 - 1) ** 0.5 * 2, seen="reconstructed", effort="structured",
                 grounds=f"{len(minilm)} heads, V = I, n = 1e8"),
)  # fmt: skip

# %% [markdown]
# ## What this shows and does not show
#
# - The abstract calls the bounds *matching*, and contribution 3 says that the upper one, obtained by Geshkovski et
#   al. (2023a), cannot be significantly improved. The formula of that bound is lost in our text. As reconstructed, its
#   {term}`exponent` is too large by a factor of $2 \norm A_2 / \gamma^*$, between 2 and 16 for every $A$. So the
#   exponents match only up to a factor, as section 3.2 allows. The lower bound is the best only if $\gamma = \gamma^*$.
# - The exponent is settled for every $A$, and the order for $V = I$. The best constant is known only where
#   $-\norm A_2$ is an eigenvalue. For other $V$ the lower bound needs $V(y - x) \ne 0$ for its factor $t$.
# - With a {term}`mask <mask (causal)>` the exponent is the same ({prf:ref}`masked-rate`), but the factor next to it, in
#   our bound, grows with the rank of $A$. A query bias $b$ adds $\abs b R$ to $\gamma^* R^2$ in our bound, which need not
#   be the best.
# - Heads are taken as in the theorems. The pair is built against one head and is far from any text.
#
# ::::{dropdown} Tried without success
# - *A given number of tokens.* {prf:ref}`popularity` caps what $\sqrt n$ can do, and below the cap it says nothing
#   new. There {doc}`21_general_bound` is exact to leading order: from width 3 on, for large $t$ and every $n$, an
#   input attains both its lemma on one row and its cross term of query and key. A better bound has to use more of a
#   head than its norms.
# - *Whole layers.* Popularity holds for each head, with biases, so it improves the bounds of {doc}`21_general_bound`
#   where $2 \gamma^* R^2 < \log n$. That is not so in any head of MiniLM, even at $10^{10}$ tokens. We did not try a
#   semidefinite program for each row of all heads.
# - *The strip of {doc}`32_masked_mean_field`.* For $t$ between
#   {glue:text}`../notebooks/32_masked_mean_field.ipynb::fails_below:.4f` and
#   {glue:text}`../notebooks/32_masked_mean_field.ipynb::settled:.4f` the reconstructed bound in $d_2$ stays open. By a
#   sketch, not a proof, the constant is at most $2 + 1.04\, t$ to first order in $t$, <!-- typed: a sketch, maximised
#   once by gradient ascent and not certified --> where the lower bound has $2 + t$. A proof would need explicit
#   remainders.
# ::::
#
# **One thing to try.** Which unit vector $x$ is best for $A = \operatorname{diag}(1, -1/8)$, and why is it not an
# eigenvector? `bounds.mean_field_rate` returns it.
#
# **Next:** {doc}`31_masked_bound`.
