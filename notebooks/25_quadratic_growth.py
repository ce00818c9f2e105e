# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Growth like R² from three tokens (Figure 3)
#
# Three {term}`tokens <token>` are enough for a {term}`local Lipschitz constant` of order $R^2$: one at the origin, one
# on each side of it. The token at the origin has equal {term}`logits <logit>` with all others, so it never makes a
# choice, however large the others are. If it is moved a little along the line, the growth stops at a finite
# {term}`radius` ({numref}`fig-25-radius`).

# %% tags=["parameters"]
numbers = [3, 5, 9, 33]  # tokens, odd
radii = [8, 16, 32, 64, 128, 256, 512]
shifts = [1e-1, 1e-2, 1e-3, 1e-4]  # how far the first token is moved, in units of R
seed = 0

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from myst_nb import glue

from lab import figures, ledger, power_laws
from lipnb import Attention, AttentionJacobian, bounds
from lipnb import local_lipschitz as constant
from lipnb.worst_case import quadratic_input

figures.house_style()
generator = torch.Generator().manual_seed(seed)
eye = torch.eye(2, dtype=torch.float64)
f = Attention.from_matrices(eye, eye)
u = torch.tensor([0.6, 0.8], dtype=torch.float64)

# %% tags=["hide-input"]
tokens, sizes = 5, np.geomspace(0.5, 512, 61)
curves = {}
for shift in [0, *shifts]:
    base = quadratic_input(tokens, 1, u)
    base[0] = shift * u
    inputs = torch.stack([R * base for R in sizes])
    curves[shift] = constant(f, inputs, method="dense").value.numpy()
generic = torch.randn(tokens, 2, generator=generator, dtype=torch.float64)
generic /= generic.norm(dim=1).max()
generic_curve = constant(f, torch.stack([R * generic for R in sizes]), method="dense").value.numpy()
plateau = bounds.large_radius_limit(f, generic).item()
upper = np.array([bounds.general_upper_sharp(eye, eye, tokens, R) for R in sizes])

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-25-radius", "caption": "The local constant of five tokens scaled to radius $R$. With the first token at 0 it grows like $R^2$ without end. A first token at $\\delta R u$ follows the same line until $R \\approx 1/\\sqrt\\delta$; then it chooses one side, and the constant falls to a plateau, as at a random input. The dashed line is the upper {term}`bound` on the whole ball, {prf:ref}`general-sharp`."}, "image": {"alt": "Log-log curves of the local constant against the radius. One rises without end, below a dashed upper bound; others follow it and fall back to a plateau, sooner the farther the first token was moved."}}
ax = plt.subplots(figsize=(6.4, 4.6))[1]
ax.plot(sizes, upper, color="#d55e00", lw=1.4, ls="--", label="upper bound on the ball, ours")
ax.plot(sizes, curves[0], color="#0072b2", lw=2.4, label="first token at 0")
shades = ("#56b4e9", "#009e73", "#e69f00", "#cc79a7")
for shift, shade in zip(shifts, shades, strict=True):
    ax.plot(sizes, curves[shift], color=shade, label=f"moved by {shift:g} R")
ax.plot(sizes, generic_curve, color="#606060", ls=":", lw=2, label="random input")
ax.set(xscale="log", yscale="log", xlabel="radius R", ylim=(0.5, 1e6))
ax.set(ylabel="local Lipschitz constant", xticks=[1, 4, 16, 64, 256])
ax.xaxis.set_major_formatter("{x:g}")
ax.xaxis.minorticks_off()
ax.legend(loc="upper left", fontsize=9, ncols=2)
plt.show()

# %% [markdown]
# ## Three tokens on a line
#
# With $d = 1$ the {term}`Jacobian` is three by three. At $R = 4$ the entry of the first token is
# $\frac23 \cdot 16 + \frac13 = 11$, and no other entry is above 1 by more than $10^{-5}$.

# %%
line = torch.ones(1, 1, dtype=torch.float64)
x = quadratic_input(3, 4, [1.0])  # the tokens 0, 4, -4
J = AttentionJacobian(Attention.from_matrices(line, line), x).dense()
by_hand = torch.linalg.matrix_norm(J, 2).item()
print(f"largest singular value {by_hand:.4f}")

# %% tags=["hide-input"]
rows_of = pd.DataFrame(J.numpy().round(5) + 0.0, columns=["x₁ = 0", "x₂ = 4", "x₃ = −4"])
rows_of.insert(0, "output of", ["x₁ = 0", "x₂ = 4", "x₃ = −4"])
figures.table(rows_of, bold=[True, False, False])

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-25-three", "caption": "Three tokens of norm 0, $R$ and $R$ with $R = 2$. The middle one attends to both sides equally; a small push makes it prefer one side, and its output moves by a multiple of the push that grows like $R^2$."}, "image": {"alt": "Two panels. Left, three tokens on a slanted line, the middle one with equal arrows to the two outer ones; it is pushed a little along the line. Right, its output moves much farther along the line, the other two outputs hardly."}}
small = quadratic_input(3, 2, u)
push = torch.zeros_like(small)
push[0] = 0.25 * u
figures.objects.tokens_and_attention(small, f, moved=small + push)
plt.show()

# %% [markdown]
# ## The statement
#
# {bdg-warning}`reconstructed` {ref}`what is this? <badges>`
#
# :::{prf:theorem} Quadratic growth at few tokens {cite}`castin2024smooth`, section C.7 and Figure 3
# :label: quadratic-growth
#
# Let $f$ be one head without a mask, $A = V = I$, $n \ge 3$ odd, $R > 0$, $u$ a unit vector and
#
# $$X = (0,\ \underbrace{Ru, \dots, Ru}_{(n-1)/2},\ \underbrace{-Ru, \dots, -Ru}_{(n-1)/2}) .$$
#
# Then the Jacobian block of the first token is exactly
#
# $$J_{11} = \frac{n-1}{n}\, R^2\, u u^\top + \frac 1n I ,$$
#
# so that
#
# $$\norm{D_X f}_2 \ge \frac{n-1}{n}\, R^2 + \frac 1n \qquad \text{and} \qquad
#   \frac{\norm{D_X f}_2}{R^2} \to \frac{n-1}{n} .$$
# :::
#
# The text of the paper, which we have without formulas, promises quadratic growth and a factor close to 1. The token
# at 0 is the one with which {cite:t}`kim2021lipschitz` show that {term}`attention` is not Lipschitz on the whole space.
#
# ## Measured against stated
#
# We take tokens in the plane along a slanted direction, several odd $n$, radii from 8 to 512, and the singular values
# of the dense Jacobian. The block agrees with the statement up to {term}`rounding`. The table has the {term}`exponent`
# of the norm in $R$ and its factor:

# %% tags=["hide-input"]
rows = []
for n in numbers:
    for R in radii:
        x = quadratic_input(n, R, u)
        block = AttentionJacobian(f, x).dense()[:2, :2]
        stated = (n - 1) / n * R**2 * torch.outer(u, u) + eye / n
        measured = constant(f, x, method="dense").value.item()
        error = (block - stated).abs().max().item() / R**2
        lower = (n - 1) / n * R**2 + 1 / n
        rows.append((n, R, measured, measured / R**2, measured / lower, error))
columns = ["n", "R", "constant", "over R^2", "over lower", "block error"]
table = pd.DataFrame(rows, columns=columns)
fits = {n: power_laws.power_law(t.R, t.constant) for n, t in table.groupby("n")}
at_64 = table[table.R == 64].set_index("n")
limits = {n: (n - 1) / n for n in numbers}
found = [(n, fit.exponent, at_64["over R^2"][n], limits[n]) for n, fit in fits.items()]
found = pd.DataFrame(found, columns=["n", "slope", "at 64", "limit"])
names = {"n": "tokens n", "slope": "exponent in R, 8 to 512", "at 64": "constant / R² at R = 64"}
figures.table(found, names=names | {"limit": "(n − 1)/n"}, digits=6)

# %% [markdown]
# The relative distance from the limit falls like $\frac1{(n-1) R^2}$, which comes from the $\frac1n I$ of the block.
# The same term, at the smallest radius, accounts for the small error of the exponent.
#
# ## Why the large-radius limit does not apply
#
# {prf:ref}`large-radius` says that scaling up a generic input leads to at most $\norm V_2 \sqrt n$. It assumes that
# each token has its largest logit at a single token. Here the first token has no such token, and the code refuses to
# name a limit:

# %%
try:
    bounds.large_radius_limit(f, quadratic_input(5, 1, u))
except ValueError as refusal:
    said = str(refusal)
    print(said)

# %% [markdown]
# Now move the first token to $\delta R u$, which makes a generic input. For the outer tokens its logits are
# $\pm \delta R^2$. While $\delta R^2 < 1$ its attention hardly changes; beyond that it goes to one side. The largest
# constant is about {glue:text}`page-25-factor:.2f` divided by $\delta$, at $R \approx 1 / \sqrt\delta$:

# %% tags=["hide-input"]
tops = {shift: curves[shift].argmax() for shift in shifts}
moved = [(shift, curves[shift][top], sizes[top], shift**-0.5) for shift, top in tops.items()]
moved = pd.DataFrame(moved, columns=["shift", "largest", "at", "root"])
glue("page-25-factor", float((moved.largest * moved["shift"]).median()), display=False)
names = {"shift": "moved by δ", "largest": "largest constant", "at": "at radius R", "root": "1/√δ"}
figures.table(moved, names=names)

# %% [markdown]
# ::::{dropdown} Proof of the quadratic growth
# :::{prf:proof}
# The first token has the logits $x_1^\top A^\top x_j = 0$, so $P_{1j} = 1/n$, the mean it sees is 0 and the covariance
# is $\Sigma_1 = \frac1n \sum_j x_j x_j^\top = \frac{n-1}n R^2 uu^\top$.
#
# In $J_{ij} = V[P_{ij}(I + (x_j - m_i)(A x_i)^\top) + \delta_{ij} \Sigma_i A]$ the middle part vanishes for $i = 1$,
# because $A x_1 = 0$. A block is never larger than the whole matrix.
#
# For the limit: row 1 holds $J_{1j} = I/n$ besides $J_{11}$. In every other row the attention to the tokens that differ
# from $x_i$ falls like $e^{-R^2}$, so these rows stay bounded.
# :::
# ::::

# %% tags=["nbval-check-output", "hide-input"]
slopes = np.array([fit.exponent for fit in fits.values()])
relative = np.array([at_64["over R^2"][n] / limits[n] - 1 for n in numbers])
late = {shift: curves[shift][-1] for shift in shifts}
assert abs(by_hand - 11) < 0.02 and "more than one token" in said
assert np.abs(slopes - 2).max() < 0.01 and np.abs(relative).max() < 1e-3
assert table["block error"].max() < 1e-12 and table["over lower"].min() > 1 - 1e-12
assert all(value <= tokens**0.5 + 1e-6 for value in late.values())
assert abs(generic_curve[-1] / plateau - 1) < 1e-6
assert (curves[0] <= upper).all() and curves[0][-1] > 1e5 * max(late.values())
assert all(0.4 < curves[s].max() * s < 0.45 for s in shifts)
print(f"✓ {len(table)} inputs: slope 2 within 0.01, limit within 1e-3 (relative) at R = 64")

# %% tags=["hide-input"]
where = f"n = {numbers}, R = {radii[0]} to {radii[-1]}, dense singular values"
id, limit = "castin.fig-3", "constant / R^2 is (n - 1) / n at R = 64"
slope, block = "log-log slope of the constant in R is 2", "the first block is exact (ours)"
# fmt: off
ledger.record(
    ledger.equal(id, slope, slopes / 2 - 1, within=5e-3, seen="text of the paper",
                 effort="structured", grounds=f"{where}, by regression"),
    ledger.equal(id, limit, relative, within=1e-3, seen="reconstructed",
                 effort="proved", grounds=f"n = {numbers}, relative error"),
    ledger.equal(id, block, table["block error"], within=1e-12, seen="ours",
                 effort="proved", grounds=where),
)
# fmt: on

# %% [markdown]
# ## What this shows and does not show
#
# - The factor $R^2$ in the general upper bound is needed, even for three tokens: it does not come from long
#   {term}`sequences <sequence>`. Every odd number of tokens from three on is enough.
# - Such inputs are a thin set: if the first token is moved along $u$, however little, the growth ends at a finite
#   radius. Yet on a *ball* of radius $R$ the growth is real: a supremum does not depend on how thin the set is. A token
#   within $1/R$ of the origin is enough. On balls, therefore, no bound of smaller order in $R$ than that of
#   {doc}`21_general_bound` can hold.
# - Only $A = V = I$ is measured. In general the same proof gives
#   $J_{11} = V \big(\frac{n-1}n R^2\, u u^\top A + \frac1n I\big)$, so the constant grows at least like $R^2$ for all
#   $A$ and $V$ other than 0, with a suitable $u$.
# - The page says nothing about trained layers. The normalised tokens of text that {doc}`14_normalisation` shows stay
#   away from the origin.
#
# **One thing to try.** Leave the token at the origin out: `constant(f, quadratic_input(5, 64, u)[1:])`. Then only the
# equal tokens on each side are left, and the constant is 1.
#
# **Next:** {doc}`26_multi_head`.
