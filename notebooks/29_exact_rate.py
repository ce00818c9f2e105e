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
# How fast does the constant on all {term}`measures <measure>` in a ball grow with the {term}`radius` $R$? The
# {term}`bounds <bound>` of {doc}`23_mean_field` leave a gap: the published lower one follows an eigenvector of $A$, and
# its rate $\gamma$ may vanish. This page closes the gap. For {term}`attention` with any $A$, with real eigenvalues or
# without, the logarithm of the constant is $\gamma^* R^2$ to leading order, with
#
# $$\gamma^*(A) = \tfrac12 \max_{\abs x \le 1} \big(\abs{A x} - x \cdot A x\big) .$$
#
# In the median head of MiniLM $\gamma^*$ is {glue:text}`middle_minilm:.1f` times $\gamma$, of GPT-2
# {glue:text}`middle_gpt-2:.1f`, of SmolLM2 {glue:text}`middle_smollm2:.1f` and of the small gpt2-mini
# {glue:text}`middle_gpt2-mini:.1f` times, and in one head {glue:text}`most:.0f` times ({numref}`fig-29-rate`).

# %% tags=["parameters"]
s_far = 100.0  # gamma* R^2 at which exponents are compared
random_cases = 200
seed = 0

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from myst_nb import glue

from lab import figures, ledger, results
from lipnb import Attention, bounds, local_lipschitz
from lipnb.worst_case import gaussian

figures.house_style()
generator = torch.Generator().manual_seed(seed)
normal, eye = gaussian(generator), torch.eye(2).double()
nilpotent = torch.tensor([[0.0, 1.0], [0.0, 0.0]]).double()


def constant_at_measure(A, V, x, a):
    """Local constant in W2 at a measure."""
    return local_lipschitz(Attention.from_matrices(A, V), x, weights=a, method="dense").value.item()


def pair_of_atoms(A, R, odds=1 / 3):
    """The two atoms of the theorem, the light one first, and their weights."""
    rate = bounds.mean_field_rate(A)
    light = odds * np.exp(-2 * rate.lower * R**2)
    return R * torch.stack([rate.y, rate.x]), torch.tensor([light, 1.0]).double() / (1 + light)


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-29-rate", "caption": "Left: $A = e_1 e_2^\\top$, whose one eigenvalue is 0, so that $\\gamma = 0$; its constant grows all the same, like $e^{\\gamma^* R^2}$ with $\\gamma^* =$ {glue:text}`nilpotent_rate:.2f`. Right: all heads of four trained models (SmolLM2 without its rotations). The distance from the diagonal is what the eigenvectors miss; dotted, the least that $\\gamma^*$ can be."}, "image": {"alt": "Two panels. Left, logarithms of the constant of a nilpotent matrix against the radius: the measured marks rise like the square of the radius and lie between a dotted horizontal line at zero and two upper bounds, the nearer of which has the same curvature. Right, one mark for each trained head, its exact rate against that of the paper, both over the norm of A: all marks lie above the diagonal, most of them far above."}}
heads = results.load("exact-rates")
heads["ratio"], heads["share"], heads["paper"] = (heads.lower / heads.gamma, heads.lower / heads.norm,
                                                  heads.gamma / heads.norm)  # fmt: skip
names = {"minilm": "MiniLM", "gpt2-mini": "gpt2-mini", "smollm2": "SmolLM2", "gpt2-124m-attention": "GPT-2"}
looks = {"minilm": ("#0072b2", "o"), "gpt2-mini": ("#d55e00", "D"), "smollm2": ("#009e73", "^"),
         "gpt2-124m-attention": ("#cc79a7", "s")}  # fmt: skip
rising = pd.DataFrame([
    {"R": R, "norm": bounds.mean_field_upper_sharp(nilpotent, eye, R, log=True),
     "upper": bounds.mean_field_upper_exact(nilpotent, eye, R, log=True),
     "lower": bounds.mean_field_lower_exact(nilpotent, eye, R, log=True),
     "measured": np.log(constant_at_measure(nilpotent, eye, *pair_of_atoms(nilpotent, R)))}
    for R in np.linspace(0.5, 6, 23)
])  # fmt: skip
left, right = figures.panels(2, width=4.4, height=4.1)
left.plot(rising.R, rising.norm, color="#d55e00", ls="--", label="upper, by the norm of A")
left.plot(rising.R, rising.upper, color="#e69f00", label="upper, with the rate")
left.plot(rising.R, rising.measured, "o", color="#0072b2", label="measured at two atoms")
left.axhline(0, color="#404040", lw=1, ls=":", label=r"$\gamma = 0$ predicts no growth")
left.set(xlabel="radius R", ylabel="natural logarithm of the constant")
left.legend(loc="upper left", fontsize=9)
for name, (colour, marker) in looks.items():
    own = heads[heads.model == name]
    right.plot(own.paper, own.share, marker, color=colour, ms=4, alpha=0.7, label=names[name], ls="")
right.plot([0, 1], [0, 1], color="#404040", lw=1)
right.axhline(1 / 8, color="#808080", lw=1, ls=":")
right.set(xlabel=r"$\gamma / \Vert A \Vert_2$", ylabel=r"$\gamma^* / \Vert A \Vert_2$", xlim=(-0.02, 1), ylim=(0, 1.02))
right.legend(loc="lower right", fontsize=9)
plt.show()

# %% [markdown]
# ## The smallest case: a matrix whose eigenvalues are all 0
#
# Take $A = e_1 e_2^\top$, so that $A x = x_2 e_1$. A heavy {term}`atom` at $x = R(-\frac12, \frac{\sqrt3}2)$ asks in
# the direction of $e_1$, away from itself. A light atom at $y = R e_1$ has the score $\frac{\sqrt 3}2 R^2$, and the
# heavy one gives itself $-\frac{\sqrt 3}4 R^2$. So the light atom gets half of the attention as long as its weight is
# at least $e^{-2s}$ with $2s = \frac{3 \sqrt 3}4 R^2$; if it moves, the output at $x$ follows, and with it nearly all
# mass.

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
# {bdg-secondary}`ours` {ref}`what is this? <badges>`
#
# :::{prf:theorem} The rate of the mean-field constant (ours)
# :label: exact-rate
#
# Let $F$ be one head without a {term}`mask <mask (causal)>`, with matrices $A$ and $V$, as a map of measures in the
# ball of radius $R$ with the distance $W_2$. Let $t = \norm A_2 R^2$, and let $\sigma_j$ be the singular values of
# $A$. For all whole numbers $N_j \ge 1$
#
# $$\begin{gathered} \Lip(F) \le \norm V_2 \big(t + (1 + t) \min(e^t, \tau)\big), \\
#   \tau = e^{\gamma^* R^2} \prod_j N_j^{1/2}\, \exp\Big(R^2 \big(\textstyle\sum_j \sigma_j^2 / N_j^2\big)^{1/2}\Big) .
#   \end{gathered}$$
#
# For $A x \ne 0$ with $\abs x \le 1$, $y = A x / \abs{A x}$, $2s = R^2 A x \cdot (y - x)$, and every $c > 0$
#
# $$\Lip(F) \ge e^s\, \frac{\sqrt c}{1 + c}\, \Big| V \Big(y + \frac{R^2 \abs{A x}}{1 + c}\, (y - x)\Big) \Big| .$$
#
# Hence, for $A, V \ne 0$, $\ \log \Lip(F) / R^2 \to \gamma^*(A)$ as $R \to \infty$.
# :::
#
# With $N_j \approx \sigma_j R^2$ the factors beside $e^{\gamma^* R^2}$ grow like a power of $t$,
# whose {term}`exponent` is at most one plus half the rank of $A$. The best $x$ gives $s = \gamma^* R^2$.
#
# {bdg-secondary}`ours` {ref}`what is this? <badges>`
#
# :::{prf:proposition} Computing the rate (ours)
# :label: rate-duality
#
# With $\lambda^+$ the largest eigenvalue or 0, whichever is larger,
#
# $$\gamma^*(A) = \tfrac12 \min_{\mu > 0} \Big( \frac\mu2 + \lambda^+\Big(\frac{A^\top A}{2 \mu} - \frac{A +
#   A^\top}2\Big) \Big) ,$$
#
# a convex problem in $1 / \mu$; every $\mu$ gives an upper bound. Moreover $\norm A_2 / 8 \le \gamma^* \le \norm A_2$
# and $\gamma \le \gamma^*$. The lower bound is attained if $A$ is positive semidefinite, the upper one exactly if
# $-\norm A_2$ is an eigenvalue.
# :::
#
# {bdg-secondary}`ours` {ref}`what is this? <badges>`
#
# :::{prf:proposition} Sequences (ours)
# :label: rate-sequences
#
# At the {term}`tokens <token>` $R y, R x, \dots, R x$, with $x, y$ as above, $q = 1 / (1 + (n - 1) e^{-2s})$ and any
# $n \ge 2$,
#
# $$\norm{D_X f}_2 \ge \sqrt{n - 1}\; q\, \big| V \big( y + (1 - q)\, R^2 \abs{A x} (y - x) \big) \big| .$$
#
# With $V = I$ this is at least $\frac12 \sqrt{n - 1}$ up to $n = 1 + e^{2 \gamma^* R^2}$.
# :::
#
# By {prf:ref}`exact-rate` the constant of no length exceeds $e^{\gamma^* R^2}$ times a power of $t$: growth like
# $\sqrt n$ ends near $e^{2 \gamma^* R^2}$ tokens, up to a power of $t$, at these and at all other inputs of the ball.
# Other inputs do last longer: with $A = -1$, $V = 1$ and $R = 2$, eight tokens at $-R$ and {glue:text}`others:,d` at
# $R$, {glue:text}`times_promise:.0f` times $e^8$ in all, still have {glue:text}`still:.2f` $\sqrt{n - 1}$.
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
# If $A u = -\norm A_2 u$ and $\abs{V u} = \norm V_2 \ne 0$ for a unit vector $u$, then $\Lip(F) \sim \frac{3 \sqrt
# 3}8\, \norm V_2\, t\, e^t$.
# :::
#
# `lipnb.bounds.mean_field_upper_exact` takes the smaller of both theorems term by term.
#
# ## Measured against stated
#
# At the two atoms, with $\gamma^* R^2 = 100$ and $V = I$, the logarithm of the constant over $\gamma^* R^2$ lies
# between those of the two bounds; all tend to 1.

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
# The table of {doc}`71_verification` compares the constant at {glue:text}`verified:,d` random, degenerate, structured
# and ascended measures with `mean_field_upper_exact`: none exceeds it, and for $t > 1$ the largest ratio is
# {glue:text}`verified_most:.4f`. At $A = -I$ and two atoms the constant comes to {glue:text}`nearly:.4f` of the bound.
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
# The table has the heads of MiniLM with the shortest lengths $1 + e^{2 \gamma R^2}$ up to which Proposition 3.4
# promises $\frac12 \sqrt{n - 1}$, at their mean radius on text, and two constants with $V = I$ at $n = 10^8$ tokens.
# The {term}`two clusters` of that proposition are down to {glue:text}`clusters:.2f` and {glue:text}`clusters_next:.2f`
# in the first two heads. The pair $(x, y)$ has at least {glue:text}`pair_least:.2f` $\sqrt n$ in all heads of the
# model: the shortest length up to which $\gamma^*$ promises this rate is 10 to the power {glue:text}`shortest:.0f`. So
# the rate $\sqrt n$ holds at all practical lengths, as the paper says, although the condition that it gives for this,
# with $\gamma$, fails in {glue:text}`short_positions:d` head at the model's 512 positions: that head is promised
# {glue:text}`short_first:,.0f` tokens, the next one {glue:text}`short_next:,.0f`.
#
# ## Proofs
#
# ::::{dropdown} Proof of the rate, upper bound
# :::{prf:proof}
# Take weights $a$ and points $x_i$ in the ball. The proof of {prf:ref}`mean-field-sharp` gives
# $\norm V_2 (t + (1 + t) \sqrt T)$ with $T = \max_y T(y)$ over the points $y$,
#
# $$T(y) = \sum_i a_i \frac{e^{A x_i \cdot y}}{Z_i}, \qquad Z_i = \sum_l a_l\, e^{A x_i \cdot x_l} .$$
#
# 1. *Boxes.* Let $A = \sum_j \sigma_j u_j v_j^\top$. Cut $[-R, R]$ along each $u_j$ into $N_j$ equal parts. This cuts
#    the ball into at most $N = \prod_j N_j$ cells.
# 2. *In a cell* scores hardly differ: if $x_i$ and $x_l$ are in the same one, then $\abs{A x_i \cdot (x_l - x_i)} \le
#    \sum_j \sigma_j \abs{v_j \cdot x_i}\, 2 R / N_j \le 2 \kappa$ with $\kappa = R^2 (\sum_j \sigma_j^2 /
#    N_j^2)^{1/2}$.
# 3. So $Z_i \ge a(c)\, e^{A x_i \cdot x_i - 2 \kappa}$ for $x_i$ in the cell $c$ of mass $a(c)$.
# 4. $T(y) \le \sum_c \sum_{i \in c} \frac{a_i}{a(c)}\, e^{A x_i \cdot (y - x_i) + 2 \kappa} \le N e^{2 \gamma^* R^2 + 2
#    \kappa}$, because $A x_i \cdot y \le R \abs{A x_i}$. The root is $\tau$. $\square$
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
# 3. In the weighted norm it is multiplied by $w^{-1/2} = e^s c^{-1/2}$. This is the bound.
# 4. For sequences $w = 1 / (n - 1)$, and the block stands in $n - 1$ rows. With $V = I$ its length is at least that of
#    its component along $y$, which is at least $q$, as $y \cdot (y - x) \ge 0$.
# 5. *The limit.* If $V(y - x) \ne 0$ at a best $x$, both sides have the exponent $\gamma^*$. Otherwise take $x'$ near
#    it with $V(y' - x') \ne 0$. There is one: if $V A x / \abs{A x} = V x$ on an open set, the left side does not
#    change as $x$ is scaled and the right side does, so $V x = 0$ on an open set and $V = 0$. $\square$
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
# 4. Let $M_H = E[z^2; H]$ and $M_L$ be the rest, together at most 1. Then $S = M_H (q + (1 - q) e^{2t}) + M_L (1 -
#    q + q e^{-2t}) \le (1 - q) M_H\, e^{2t} + 1$.
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
assert abs(paid - 0.5) < 1e-3 and (rising.lower <= rising.measured * (1 + 1e-12)).all()
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
print(f"✓ {len(heads)} heads: the interval of the rate is narrow, no rate below the paper's; bounds hold")

# %% tags=["hide-input"]
matching, edge, window = "castin.abstract-matching", "castin.sec-3.2-edge", "castin.sec-3-window"
own = {"seen": "ours", "effort": "proved"}
over = 2 * exponents.norm / exponents.rate
least = exponents.assign(over=over).iloc[over.argmin()]
ledger.record(
    ledger.depends(
        matching, "exponent of Theorem 3.5 against that of the constant",
        f"equal exponents: no, {over.min():.3g} ({least.A}) to {over.max():.3g} times the true one, {len(over)} matrices; "
        "up to a constant in the exponent, as section 3.2 says: yes, 2 to 16 times. The bound is that of Geshkovski et "
        "al. (2023a), whose form is lost in our text, as is that of Theorem 3.5", seen="reconstructed", cases=len(over),
    ),
    ledger.upper(matching, "exponent gamma* (ours)", exponents.measured / exponents.high,
                 grounds=f"two atoms, {len(over)} matrices, gamma* R^2 = {s_far:g}", **own),
    ledger.lower(matching, "the same from below (ours)", exponents.measured / exponents.low,
                 grounds=f"two atoms, {len(over)} matrices", **own),
    ledger.upper("castin.thm-3.5", "3 sqrt(3) / 8 t exp(t) (ours)", [*drawn, *minus],
                 grounds="random measures; two atoms at A = -I, t to 300", **own),
    ledger.equal(edge, "log of Theorem 3.5 over log of the constant on the ball: 2 norm(A) / gamma*",
                 exponents.measured - 1, within=0.1, grounds=f"two atoms, gamma* R^2 = {s_far:g}", **own),
    ledger.lower(window, "the conclusion: sqrt(n - 1) / 2, MiniLM on text", minilm["at pair"] / (1e8 - 1) ** 0.5 * 2,
                 seen="reconstructed", effort="structured", grounds=f"{len(minilm)} heads, V = I, n = 1e8"),
)  # fmt: skip

# %% [markdown]
# ## What this shows and does not show
#
# - The abstract calls the bounds *matching*, and contribution 3 says that the upper one, obtained by Geshkovski et al.
#   (2023a), cannot be significantly improved. The form of that bound is lost in our text; the upper one, as
#   reconstructed, has an {term}`exponent` that is too large by a factor of $2 \norm A_2 / \gamma^* \ge 2$ for every
#   $A$. So exponents do not match; up to a constant in the exponent, which section 3.2 allows for, they do: it is at
#   most 16. Nor is the lower one the best, unless $\gamma = \gamma^*$.
# - The exponent is settled, the factor beside it is not: where $-\norm A_2$ is no eigenvalue, the two bounds differ
#   by a power of $t$ that grows with the rank of $A$.
# - All this is without a {term}`mask <mask (causal)>` and biases. Under masking the proof loses a factor of $\log n$.
# - Not treated in this book: the rate of the masked bound without that factor; the remaining gap between the bound and
#   the worst inputs known at a given number of tokens ({doc}`21_general_bound`); the value of $t$ at which the
#   reconstructed masked bound in $d_2$ turns from false to true ({doc}`32_masked_mean_field` leaves a strip); the exact
#   rate of heads with rotary positions; and a bound of whole layers by a semidefinite program.
# - Heads are taken as the theorems do; the radius of MiniLM's is the mean one on text. The pair is built against one
#   head, and no text is near it.
#
# **One thing to try.** Which unit vector $x$ is best for $A = \operatorname{diag}(1, -1/8)$, and why is it no
# eigenvector? `bounds.mean_field_rate` has it.
#
# **Next:** {doc}`31_masked_bound`.
