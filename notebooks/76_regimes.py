# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Which bound rules where?
#
# The constant of attention on a ball has three upper bounds. One grows like $\sqrt n$, one does not know $n$ at all,
# and one holds at the end of every ray of inputs. This page draws the plane of length $n$ and radius $R$, says which of
# them is the smallest at each point, and puts measured worst cases on top, up to $n = 10^5$.
#
# :::{prf:theorem} The map of the upper bounds {cite}`castin2024smooth`
# :label: regimes-border
#
# Let $t = \norm A_2 R^2$. In the tighter forms of {cite:t}`castin2024smooth`, Thm 3.3 and 3.5 (ours),
#
# $$\Lip(f_{|B_R^n}) \le \norm V_2 \big(t + (1 + t) \min(\sqrt n,\, e^t)\big).$$
#
# The $\sqrt n$ bound is the smaller one exactly for $n \le e^{2t}$. And for almost every fixed $X$, the local constant
# at $RX$ tends to at most $\norm V_2 \sqrt n$ as $R \to \infty$ (Thm 3.7): without the factor $t$.
# :::
#
# *Proof.* Give token $i$ the weight $a_i$, of total one; $a_i = 1/n$ for sequences. The derivative at token $i$ is
#
# $$V \Big[ \Sigma_i A\, \varepsilon_i + \sum_j P_{ij}\, (x_j - m_i)(A x_i)^\top \varepsilon_j
#   + \sum_j P_{ij}\, \varepsilon_j \Big] .$$
#
# Tokens in a ball have a variance of at most $R^2$. So the first term is at most $t \abs{\varepsilon_i}$ long, and by
# Cauchy-Schwarz with the weights $P_{ij}$ the second at most $t\, p_i$ and the third at most $p_i$, with
# $p_i^2 = \sum_j P_{ij} \abs{\varepsilon_j}^2$. Now $\sum_i a_i p_i^2 \le C \sum_j a_j \abs{\varepsilon_j}^2$ with
# $C = \max_j \sum_i a_i P_{ij} / a_j$. For equal weights $C \le n$. For all weights $C \le e^{2t}$, because logits lie
# between $-t$ and $t$, so that $P_{ij} \le a_j e^{2t}$. Both give a factor $\sqrt C$, and
# $\sqrt n \le e^t$ is the border. $\square$
#
# The border is where the lower bound lets go, too: Prop. 3.4, in our reconstruction, gives $\frac12 \sqrt{n - 1}$ up to
# $n = 1 + e^{2 \gamma R^2}$, and $\gamma = \norm A_2$ if $-\norm A_2$ is an eigenvalue of $A$. Between $\sqrt n$ and
# $t \sqrt n$ a factor $t$ is left. It is real:
#
# :::{prf:theorem} The fork (ours)
# :label: regimes-fork
#
# Let $A e_1 = -\gamma e_1$, $\gamma > 0$, with orthonormal $e_1, e_2$, let $c^2 + s^2 = 1$, $0 \le c$, and
# $\tau = \gamma R^2$. At the tokens $R(-c\, e_1 + s\, e_2)$, $R(-c\, e_1 - s\, e_2)$ and $n - 2$ times $R e_1$,
#
# $$\begin{gathered}
# \norm{D_X f}_2 \ge \sqrt 2\, s\, \tau\, q\, \sqrt{n - 2}\; \abs{V e_2}, \\
# q = \frac{1}{2 + (n - 2)\, e^{-(1 + c) \tau}} .
# \end{gathered}$$
# :::
#
# *Proof.* A token $i$ at $R e_1$ has logits $\tau c$ to both prongs and $-\tau$ to its own kind, so it gives each prong
# the attention $q$. Move the prongs by $\pm e_1 / \sqrt 2$. From the blocks
# $J_{ij} = V P_{ij} (I + (x_j - m_i)(A x_i)^\top)$ with $A x_i = -\gamma R\, e_1$, the averages cancel and output token
# $i$ moves by $-q \gamma R\, V (2 R s\, e_2) / \sqrt 2$. All $n - 2$ of them do. $\square$
#
# With $c = \frac12$ this is at least $0.3\, \tau \sqrt{n - 2}\, \abs{V e_2}$ up to $n = 2 + 2 e^{3\tau/2}$: the growth
# $R^2 \sqrt n$ of Thm 3.3 is that of attention, in $n$ and $R$ together.

# %% tags=["parameters"]
seed = 0
longest = 100_000  # tokens
cut = 2.0  # radius of the cut through the map

# %% tags=["hide-input"]
import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from lab import figures
from lab.verification import Problem
from lab.verification.ascent import Norm, worsened
from lipnb import Attention, AttentionJacobian, bounds, local_lipschitz
from lipnb.worst_case import tight_input, two_diracs

figures.house_style()
generator = torch.Generator().manual_seed(seed)
A, V = -torch.eye(2).double(), torch.eye(2).double()  # gamma = 1, so that t = R^2
e1, e2 = torch.eye(2).double()
f = Attention.from_matrices(A, V)

# %% [markdown]
# ## By hand: three tokens, a fork with a straight angle
#
# With $c = 0$ and $n = 3$: one token at $R e_1$, prongs at $\pm R e_2$. It gives each of them nearly half of its
# attention, and turns by what they do.

# %%
R = 2.0
x = R * torch.stack([e2, -e2, e1])
J = AttentionJacobian(f, x).dense()
push = torch.cat([e1, -e1, 0 * e1]) / math.sqrt(2)
stated = math.sqrt(2) * R**2 / (2 + math.exp(-(R**2)))
print("attention of the third token:", f.probabilities(x)[0, 2].numpy().round(4))
print(f"it moves by {(J @ push)[4:].norm():.4f}, stated {stated:.4f}")
norm = torch.linalg.matrix_norm(J, 2)
print(f"norm of the Jacobian {norm:.4f}, tighter bound {R**2 + (1 + R**2) * 3**0.5:.4f}")

# %% [markdown]
# The statement of the fork is for any $A$ with a negative eigenvalue, symmetric or not. Sixty random ones, with random
# $V$, angles, lengths and radii:

# %%
fork_ratios = []
for case in range(60):
    B, W = torch.randn(2, 3, 3, generator=generator, dtype=torch.float64)
    u, v = torch.linalg.qr(W @ B).Q.T[:2]
    gamma, R, n = 0.1 + case / 20, 0.3 + 0.05 * case, 3 + case % 7
    S = B - torch.outer(B @ u + gamma * u, u)  # S u = - gamma u
    c, s = abs(math.cos(case + 1)), abs(math.sin(case + 1))
    x = R * torch.cat([torch.stack([-c * u + s * v, -c * u - s * v]), u.expand(n - 2, 3)])
    found = local_lipschitz(Attention.from_matrices(S, W), x, method="dense").value
    tau = gamma * R**2
    stated = math.sqrt(2) * s * tau * math.sqrt(n - 2) * (W @ v).norm()
    stated = stated / (2 + (n - 2) * math.exp(-(1 + c) * tau))
    fork_ratios.append((found / stated).item())
print(f"measured / stated: {min(fork_ratios):.4f} or more in {len(fork_ratios)} cases")

# %% [markdown]
# ## A hundred thousand tokens by three
#
# Every input here has at most three distinct tokens, so that its constant is that of a tiny weighted problem:
#
# :::{prf:proposition} Copies (ours)
# :label: regimes-copies
#
# Let $X$ hold $c_i$ copies of $y_i$, $n = \sum c_i$, and $a = c / n$. Then
#
# $$\norm{D_X f}_2 = \max\Big( \norm{D_a^{1/2}\, (D_Y f_a)\, D_a^{-1/2}}_2,\;
#   \max_{c_i \ge 2} \norm{V \Sigma_i A}_2 \Big).$$
# :::
#
# *Proof.* Copies attend alike and are attended to alike. Split a perturbation into its mean over the copies of each
# $y_i$ and the rest, which sums to zero over them. The rest does not reach other tokens: each copy only feels its own
# $V \Sigma_i A$. Means move means. Both parts, in and out, are orthogonal; on the means, $c_i$ equal entries have
# $c_i$ times the square of one, which gives the weights. $\square$


# %%
def constant_of_copies(f, points, counts):
    """Local constant where token i stands counts[i] times; batches (b, r, d), (b, r)."""
    weights = counts / counts.sum(-1, keepdim=True)
    value = local_lipschitz(f, points, weights=weights, method="dense").value
    P = f.probabilities(points, weights)[:, 0]
    gaps = points[:, None] - (P @ points)[:, :, None]  # (b, i, j, d)
    covariance = torch.einsum("bij,bijd,bije->bide", P, gaps, gaps)
    A, V = f.scale * f.key[0].T @ f.query[0], f.value[0]
    alone = torch.linalg.matrix_norm(V @ covariance @ A, 2)
    return torch.maximum(value, torch.where(counts >= 2, alone, 0).amax(-1))


def tight_constant(n, R):
    """The paper's input at any n: one token -R u, the others R u."""
    pair = tight_input(A, 2, R)
    return constant_of_copies(f, pair[None], torch.tensor([[1.0, n - 1]]).double())


# %%
copies = []
for n in (2, 3, 5, 9, 17, 33, 400):
    for R in (0.3, 1.0, 2.0):
        way = "dense" if n < 100 else "lanczos"
        whole = local_lipschitz(f, tight_input(A, n, R), method=way, rtol=1e-10)
        ratio = tight_constant(n, R) / whole.value
        copies.append((n, R, whole.value.item(), ratio.item() - 1))
copies = pd.DataFrame(copies, columns=["n", "R", "n tokens", "difference"])
worst = copies.difference.abs().max()
print(copies[copies.R == 2].iloc[:, :3].to_string(index=False))
print(f"{len(copies)} inputs, weighted problem and n tokens agree: {worst < 1e-8}")

# %% [markdown]
# ## The worst fork at each point of the map
#
# Prongs of $k$ copies each, at any angle; $c = 1$ closes the fork into the two points of Prop. 3.4 and 3.6. The best of
# 33 angles and of up to 15 numbers $k$, and of the paper's input, is measured at each $(n, R)$.


# %%
def worst_fork(n, R, angles=33, most=15):
    """Largest constant over forks of n tokens, and its angle and share of prongs."""
    best = tight_constant(n, R).item(), 1.0, 1 / n
    if n < 3:
        return best
    k = np.unique(np.geomspace(1, (n - 1) // 2, most).round())
    c, k = np.meshgrid(np.cos(np.linspace(0, np.pi / 2, angles)), k)
    c, k = (torch.from_numpy(one.ravel()) for one in (c, k))
    s = (1 - c**2).clamp_min(0).sqrt()
    prongs = -c[:, None, None] * e1 + torch.stack([s, -s], 1)[:, :, None] * e2
    points = R * torch.cat([prongs, e1.expand(len(c), 1, 2)], 1)
    found = constant_of_copies(f, points, torch.stack([k, k, n - 2 * k], 1))
    at = found.argmax()
    return max(best, (found[at].item(), c[at].item(), 2 * k[at].item() / n))


def smallest_upper(n, R):
    """The smaller of the two tighter upper bounds, and whether it is that of sqrt(n)."""
    root = bounds.general_upper_sharp(A, V, n, R)
    field = math.exp(min(700, bounds.mean_field_upper_sharp(A, V, R, log=True)))
    return min(root, field), root <= field


# %%
lengths = [3, 6, 12, 30, 100, 300, 1000, 3000, 10_000, 30_000, longest]
radii = np.geomspace(0.2, 30, 16)
grid = []
for n in lengths:
    for R in radii.tolist():
        upper, rooted = smallest_upper(n, R)
        value, c, share = worst_fork(n, R)
        grid.append((n, R, value, upper, rooted, c, share, value / upper))
names = ["n", "R", "measured", "upper", "rooted", "c", "share", "ratio"]
grid = pd.DataFrame(grid, columns=names)
for rooted, rows in grid.groupby("rooted"):
    law = "sqrt(n) bound" if rooted else "mean-field bound"
    print(f"{law:17s} {len(rows):3d} points, ratio", end=" ")
    print(f"{rows.ratio.min():.3f} to {rows.ratio.max():.3f}")

# %% [markdown]
# ## Few tokens: does an ascent find worse?
#
# For $n \le 8$, gradient ascent from random inputs of the disc; it knows of no fork.

# %%
climbed = []
for n in (2, 3, 4, 6, 8):
    for R in (0.32, 0.63, 1.0, 1.6, 2.5):
        x = torch.randn(24, n, 2, generator=generator, dtype=torch.float64)
        start = Problem(f, R * x / x.norm(dim=-1, keepdim=True))
        norm = Norm(f, start.x)
        top = worsened(start, lambda x, _, norm=norm: norm(x).log())
        found = local_lipschitz(f, top.x, method="dense").value.max().item()
        climbed.append((n, R, found, worst_fork(n, R)[0], smallest_upper(n, R)[0]))
climbed = pd.DataFrame(climbed, columns=["n", "R", "ascent", "fork", "upper"])
climbed["ratio"] = climbed[["ascent", "fork"]].max(axis=1) / climbed.upper
climbed["gain"] = climbed.ascent / climbed.fork
print(climbed.pivot(index="n", columns="R", values="gain").round(3).to_string())

# %% [markdown]
# The table is ascent over fork. With two tokens there is no room for a fork, and where $R > 1$ the ascent
# wins clearly.
# With more, the two are close, and where the ascent falls behind it has stopped short of a fork.
#
# ## From where on is a given input below $\sqrt n$?
#
# Thm 3.7 is about one input, scaled up. Twelve random inputs of the disc for each $n$: the radius from which the local
# constant stays below $\norm V_2 \sqrt n$.

# %%
settled, rays = [], np.geomspace(0.2, 500, 64)
scales = torch.from_numpy(rays)[:, None, None]
for n in (3, 6, 12, 24, 48):
    for _ in range(12):
        x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
        x = x / x.norm(dim=-1, keepdim=True)
        x = x * torch.rand(n, 1, generator=generator, dtype=torch.float64).sqrt()
        x = x / x.norm(dim=-1).max()
        limit = bounds.large_radius_limit(f, x).item() / math.sqrt(n)
        along = local_lipschitz(f, scales * x, method="dense").value / math.sqrt(n)
        above = np.flatnonzero(along.numpy() > 1)
        after = np.append(rays, np.inf)  # infinite: above to the end
        radius = after[above[-1] + 1] if len(above) else rays[0]
        settled.append((n, radius, limit, along.max().item(), along[-1].item() / limit))
settled = pd.DataFrame(settled, columns=["n", "radius", "limit", "peak", "end"])
summary = settled.groupby("n")[["radius", "peak", "limit"]].median()
print(summary.round(2).to_string())

# %% [markdown]
# Medians; *peak* and *limit* are divided by $\sqrt n$. A generic input ends well below $\sqrt n$, because few tokens
# choose the same one. But on the way it exceeds $\sqrt n$ several times over, and it takes a radius that grows with $n$
# to come back: until then, two tokens that compete for the attention of many are a fork. The limit is no bound on a
# ball.
#
# ## The transition in $n$
#
# One cut through the map, at a fixed radius, from three tokens to a hundred thousand.

# %%
cut_lengths = np.unique(np.geomspace(3, longest, 40).round().astype(int)).tolist()
published_field = bounds.mean_field_upper(A, V, cut)
through = pd.DataFrame(
    {
        "n": cut_lengths,
        "paper": [tight_constant(n, cut).item() for n in cut_lengths],
        "fork": [worst_fork(n, cut)[0] for n in cut_lengths],
        "upper": [smallest_upper(n, cut)[0] for n in cut_lengths],
        "published": [min(bounds.general_upper(A, V, n, cut), published_field) for n in cut_lengths],
    }
)
peak = through.n[through.paper.idxmax()]
pair, weights = two_diracs(A, cut, share=1 / 3)
plateau = local_lipschitz(f, pair, weights=weights).value.item()
edge = math.exp(2 * cut**2)
print(f"paper's input: largest at n = {peak}; border e^(2t) = {edge:.0f}")
print(f"two points of the best weights: {plateau:.1f}; forks reach", end=" ")
print(f"{through.fork.max():.1f} of {through.upper.max():.1f}")

# %% tags=["hide-input"]
line = np.geomspace(0.15, 130, 500)
border = np.exp(np.minimum(2 * line**2, 50)).clip(1.5, 3e5)
small = climbed[["n", "R", "ratio"]]
both = pd.concat([grid[~grid.n.isin(small.n)][["n", "R", "ratio"]], small])

# %% tags=["hide-input"]
left, right = figures.panels(2, width=5.6, height=4.8)
left.fill_between(line, 1.5, border, color="#dbe9f5", lw=0)
left.fill_between(line, border, 3e5, color="#fbe6d3", lw=0)
left.plot(line[border < 3e5], border[border < 3e5], color="#404040", lw=1)
dots = left.scatter(both.R, both.n, c=both.ratio, s=24, vmin=0, vmax=1, zorder=3)
plt.colorbar(dots, ax=left, label="worst measured / smallest upper bound")
left.plot(summary.radius, summary.index, color="#cc3311", marker="s", ls="--")
words = {"bbox": {"fc": "white", "ec": "none", "alpha": 0.9, "pad": 1.5}, "zorder": 4}
left.text(0.2, 170, "mean-field bound", color="#a04000", **words)
left.text(4.5, 5500, "$\\sqrt{n}$ bound", color="#0072b2", **words)
left.text(9, 60, "generic inputs:\nbelow $\\sqrt{n}$ from here", color="#cc3311", **words)
left.set(xscale="log", yscale="log", ylim=(1.6, 2e5), xlim=(0.17, 130))
left.set(xlabel="radius R", ylabel="tokens n", title="The smallest upper bound")
left.set_xticks([0.2, 0.5, 1, 2, 5, 10, 30, 100], [0.2, 0.5, 1, 2, 5, 10, 30, 100])
right.plot(through.n, through.published, "k:", lw=1.2, label="smaller published bound")
right.plot(through.n, through.upper, color="#404040", label="smaller tighter bound")
right.plot(through.n, through.fork, "o-", color="#009e73", label="worst fork, measured")
right.plot(through.n, through.paper, "s-", color="#d55e00", ms=3, label="paper's input")
right.axvline(edge, color="#808080", lw=0.8, ls="--")
right.set(xscale="log", yscale="log", xlabel="tokens n", ylabel="local constant")
right.set(title=f"The cut at R = {cut:g}", ylim=(1, 1e5))
right.legend(fontsize=9, loc="upper left")
plt.show()

# %% [markdown]
# *Left: which of the two tighter upper bounds is the smaller, with $A = -I$, $V = I$ in the plane; the line is
# $n = e^{2t}$ with $t = R^2$. Dots: the worst constant that was measured there, over that bound. Red: random inputs of
# the disc, scaled up, stay below $\sqrt n$ from there on (median). Right: at fixed radius the worst constant
# grows like $\sqrt n$ up to $n = e^{2t}$ (dashed), then no more. The paper's input, one token against all others, falls
# back beyond its window; forks keep their share of prongs and stay.*

# %% tags=["nbval-check-output"]
assert min(fork_ratios) >= 1 - 1e-12 and worst < 1e-8
assert grid.ratio.max() <= 1 and climbed.ratio.max() <= 1 and 1 / 3 < grid.ratio.min()
assert ((grid.n <= np.exp(np.minimum(2 * grid.R**2, 700))) == grid.rooted).all()
assert (through.fork <= through.upper).all() and edge < peak < 10 * edge
assert through.paper.iloc[-1] < 0.6 * through.paper.max()
assert abs(plateau / through.fork.iloc[-1] - 1) < 0.05
assert (settled.end - 1).abs().median() < 0.01 and settled.limit.max() <= 1
print(f"{len(grid)} grid points up to n = {longest}: no bound exceeded, all within a factor 3")

# %% [markdown]
# ## What this shows and does not show
#
# - For this $A$ and $V$ the smaller of the two tighter bounds is within a factor 3 of the truth at every point of the
#   *grid* that was measured, with $n \ge 3$; between its points nothing was. There, neither $\sqrt n$, nor $R^2$ in
#   front of it, nor the plateau can be improved but for constants.
# - At two tokens a bound is left that no input comes near, once $R$ is large: there is no room for a fork.
# - $A = -I$ is the best case for the map. If $-\norm A_2$ is not an eigenvalue, the forks' border $e^{2 \gamma R^2}$
#   and that of the bounds, $e^{2 \norm A_2 R^2}$, fall apart, and nothing here says which one is real in between.
# - The worst inputs are the worst *found*: forks and a short ascent. The true worst constants lie between dots and
#   bounds.
# - Generic means a random input of the disc, unmasked. With other laws the red line moves.
#
# **One thing to try.** Set `cut` to 1 or 3: the plateau begins at $n = e^{2}$ or at $n = e^{18}$, beyond the page.
#
# **Next:** {doc}`77_solver_speed`, where such constants are computed for inputs of thousands of tokens.
