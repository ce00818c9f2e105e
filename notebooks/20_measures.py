# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Attention on measures (Definition 2.4)
#
# A {term}`sequence` of {term}`tokens <token>` is also a cloud of points, a {term}`measure`.
# {term}`Attention <attention>` without a {term}`mask` ignores the order of the points, so it is a map of clouds. The
# outputs of the two maps agree. Their {term}`local Lipschitz constants <local Lipschitz constant>` agree too, in the
# {term}`Wasserstein distance` $W_2$ for clouds, as long as the points are distinct and their weights stay the same.

# %% tags=["parameters", "hide-input"]
measures_count = 50  # random measures with equal weights, and as many with unequal ones
step = 1e-7  # length of the perturbation, in W2
seed = 0

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from myst_nb import glue

from lab import figures, ledger
from lipnb import Attention, AttentionJacobian, local_lipschitz
from lipnb.measures import mean_field_map, repeat, uniform, wasserstein
from lipnb.worst_case import gaussian

figures.house_style()
generator = torch.Generator().manual_seed(seed)
normal = gaussian(generator)


def integer_in(low, high):
    return int(torch.randint(low, high + 1, (), generator=generator))


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-20-clouds", "caption": "A measure of seven points (blue, area is weight) and its image under attention (orange). Arrows: the small move to which attention is most sensitive, enlarged, and the resulting move of the output. For a short move the ratio of the two lengths, in $W_2$, tends to the local Lipschitz constant; at the length drawn it is smaller."}, "image": {"alt": "Seven blue discs of different sizes in the plane and seven orange diamonds, their images under attention. Arrows on the discs show a small move, arrows on the diamonds the resulting move, which is longer for some of them."}}
drawn = gaussian(torch.Generator().manual_seed(seed))
cloud_map = Attention.from_matrices(torch.diag(torch.tensor([1.5, -1.0])).double(), 2 * torch.eye(2).double())
cloud, masses = 0.8 * drawn(7, 2), drawn(7).softmax(0)
root = masses.sqrt().repeat_interleave(2)
M = root[:, None] * AttentionJacobian(cloud_map, cloud, masses).dense() / root
worst = (torch.linalg.svd(M).Vh[0] / root).reshape(7, 2)
after = cloud_map(cloud, masses), cloud_map(cloud + worst / 6, masses)
ax = plt.subplots(figsize=(5.6, 4.6))[1]
for start, end, color, marker, label in (
    (cloud, cloud + worst / 6, "C0", "o", r"$\mu$, the input"),
    (*after, "C1", "D", r"$F(\mu)$, the output"),
):
    ax.scatter(*start.T, s=900 * masses, color=color, marker=marker, alpha=0.4, lw=0)
    ax.annotate(label, start[start[:, 1].argmin()], (-20, -24), textcoords="offset points", color=color)
    arrows = {"angles": "xy", "scale_units": "xy", "scale": 1, "width": 0.007}
    ax.quiver(*start.T, *(end - start).T, color=color, **arrows)
    ax.scatter(*end.T, s=0)  # room for the arrows
ax.set(xlabel="first coordinate", ylabel="second coordinate")
ax.set_aspect("equal", adjustable="datalim")
ax.margins(0.15)
plt.show()

# %% [markdown]
# ## By hand: two tokens on a line
#
# We take the tokens $0$ and $1$ with weights $\frac14$ and $\frac34$, and $A = V = 1$, and write out the Jacobian.

# %% tags=["hide-input"]
x, a = torch.tensor([[0.0], [1.0]]).double(), torch.tensor([0.25, 0.75]).double()
one = torch.ones(1, 1).double()
f = Attention.from_matrices(one, one)
P = torch.stack([a, a * torch.tensor([1.0, np.e])])
P = P / P.sum(1, keepdim=True)
m = P @ x
spread = (P * (x.T - m) ** 2).sum(1)  # the variances Sigma_i
J = P * (1 + (x.T - m) * x) + torch.diag(spread)
M = a.sqrt()[:, None] * J / a.sqrt()
top = torch.linalg.svd(M).Vh[0][:, None] / a.sqrt()[:, None]  # of weighted length 1
y = x + step * top
norm_by_hand = torch.linalg.matrix_norm(M, 2).item()
quotient_by_hand = wasserstein(f(x, a), f(y, a), a, a) / wasserstein(x, y, a, a)
glue("page-20-norm", norm_by_hand, display=False)
glue("page-20-quotient", quotient_by_hand, display=False)

# %% [markdown]
# The weighted Jacobian has norm {glue:text}`page-20-norm:.6f`; when the points move along its worst direction, the
# output moves {glue:text}`page-20-quotient:.6f` times as far as the input, in $W_2$.
#
# ## The statements
#
# {bdg-success}`text of the paper` {ref}`what is this? <badges>`
#
# :::{prf:definition} Mean-field attention {cite}`castin2024smooth`, Def. 2.3, 2.4
# :label: mean-field-attention
#
# The *pushforward* $\varphi_\sharp \mu$ gives a set $B$ the mass that $\mu$ gives to the points sent into it,
# $(\varphi_\sharp \mu)(B) = \mu(\varphi^{-1}(B))$. Attention of one head without a mask to a measure $\mu$ with compact
# support is the field
#
# $$\Gamma_\mu(x) = \frac{\int e^{x^\top A^\top y}\, V y \, d\mu(y)}{\int e^{x^\top A^\top y}\, d\mu(y)},
# \qquad F(\mu) = (\Gamma_\mu)_\sharp\, \mu .$$
# :::
#
# Write $m(X) = \frac1n \sum_i \delta_{x_i}$ for the cloud of a sequence. Then $F(m(X)) = m(f(X))$ (Appendix B.1).
# With weights $a$ in place of $1/n$ the points move by $f_a$, where $P_{ij} \propto a_j e^{x_i^\top A^\top x_j}$
# (Def. C.4).
#
# {bdg-warning}`reconstructed` {ref}`what is this? <badges>`
#
# :::{prf:theorem} Constants agree {cite}`castin2024smooth`, Lemmas 3.2, B.3, C.5
# :label: constants-agree
#
# Let $f$ be one head without a mask and let the points $x_i$ be distinct. Among measures $\sum_i a_i \delta_{y_i}$ with
# the weights $a$, the local Lipschitz constant of $F$ in $W_2$ at $\sum_i a_i \delta_{x_i}$ is
#
# $$\norm{D_a^{1/2}\, (D_X f_a)\, D_a^{-1/2}}_2, \qquad D_a = \diag(a) \otimes I .$$
#
# With equal weights it is $\norm{D_X f}_2$, and points may coincide. On a convex set $\mathcal X$ the global
# constants agree as well: $\Lip^{W_2}$ of $F$ on clouds of $n$ points is $\Lip$ of $f$ on $\mathcal X^n$.
# :::
#
# We do not know whether Lemma 3.2 is about the local or the global constant; both are tested.
#
# ## Measured: the maps agree
#
# We compare points with whole-number weights and the same points repeated that many times. A {term}`pushforward` is
# checked on random boxes, also for a map that sends two points to one.

# %% tags=["hide-input"]
errors = {name: [] for name in ("push", "field", "map", "weights", "jacobian", "dense")}
for _ in range(measures_count):
    n, d = integer_in(2, 6), integer_in(1, 3)
    A, V, x, z = normal(d, d), normal(d, d), normal(n, d), normal(4, d)
    counts = torch.randint(1, 4, (n,), generator=generator)
    a, copies = counts.double() / counts.sum(), repeat(x, counts)
    f = Attention.from_matrices(A, V)
    # rounding as the map: mass of a box, and of what is sent there
    image, place = x.round().unique(dim=0, return_inverse=True)
    mass = torch.zeros(len(image)).double().index_add_(0, place, a)
    box, before = (((points - z[0]).abs() < 1).all(1) for points in (image, x.round()))
    errors["push"].append((mass[box].sum() - a[before].sum()).abs())
    kernel = (z @ A.T @ copies.T).exp()
    by_hand = kernel @ copies @ V.T / kernel.sum(1, keepdim=True)
    field = mean_field_map(f, x, a, z)
    errors["field"].append((field - by_hand).norm() / by_hand.norm())
    shuffled = f(copies[torch.randperm(len(copies), generator=generator)])
    images, equal = mean_field_map(f, x, a, x), uniform(len(copies))
    errors["map"].append(wasserstein(images, shuffled, a, equal) / shuffled.norm())
    again, outputs = repeat(f(x, a), counts), f(copies)
    errors["weights"].append((again - outputs).norm() / outputs.norm())

# %% tags=["hide-input"]
for _ in range(measures_count):
    n, d = integer_in(2, 6), integer_in(1, 3)
    f = Attention.from_matrices(normal(d, d), normal(d, d))
    x, counts = normal(n, d), torch.randint(1, 4, (n,), generator=generator)
    a, copies = counts.double() / counts.sum(), repeat(x, counts)
    closed = AttentionJacobian(f, x, a).dense()
    twin = torch.func.jacrev(lambda y, f=f, a=a: f(y, a))(x).reshape(closed.shape)
    errors["jacobian"].append((closed - twin).norm() / twin.norm())
    # orthonormal directions that move all copies of a point together
    together = repeat(torch.eye(n).double(), counts) / counts.double().sqrt()
    basis = torch.kron(together, torch.eye(d).double())
    restricted = torch.linalg.matrix_norm(AttentionJacobian(f, copies).dense() @ basis, 2)
    weighted = local_lipschitz(f, x, weights=a, method="dense").value
    errors["dense"].append((weighted / restricted - 1).abs())
errors = {name: np.array([float(e) for e in found]) for name, found in errors.items()}

# %% tags=["hide-input"]
meaning = {
    "push": "mass of a box after a map, and of its preimage before",
    "field": "attention at other points, and the sums written out",
    "map": "the image of a measure, and of its repeated tokens, in W₂",
    "weights": "outputs with weights, and of repeated tokens",
    "jacobian": "Jacobian with weights (Lemma C.6), and automatic differentiation",
    "dense": "the norm of this Jacobian, and that of repeated tokens moved together",
}
told = pd.DataFrame({"what": meaning.values(), "largest": [errors[name].max() for name in meaning]})
figures.table(told, names={"what": "compared", "largest": "largest relative difference"}, digits=1)

# %% [markdown]
# ## Measured: the constants agree
#
# For each measure we move the points along the worst direction of the weighted Jacobian, transport exactly on both
# sides, and compare the quotient with the norm: with equal weights (Lemma B.3) and with random weights (Lemma C.5).


# %%
def transport_quotient(f, x, a, length):
    """Outputs over inputs in W2, along the worst direction, and the weighted norm."""
    root = a.sqrt().repeat_interleave(x.shape[1])
    out = a.sqrt().repeat_interleave(f.output_width)
    M = out[:, None] * AttentionJacobian(f, x, a).dense() / root
    values = torch.linalg.svd(M)
    y = x + length * (values.Vh[0] / root).reshape(x.shape)
    outputs = wasserstein(f(x, a), f(y, a), a, a)
    return outputs / wasserstein(x, y, a, a), values.S[0].item()


# %% tags=["hide-input"]
local_errors = {"equal": [], "random": []}
for kind, found in local_errors.items():
    for _ in range(measures_count):
        n, d = integer_in(2, 8), integer_in(1, 4)
        f = Attention.from_matrices(normal(d, d), normal(d, d))
        a = uniform(n) if kind == "equal" else normal(n).softmax(0)
        quotient, norm = transport_quotient(f, normal(n, d), a, step)
        found.append(quotient / norm - 1)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-20-reach", "caption": "The worst move of {numref}`fig-20-clouds` at growing lengths: the quotient of the distances over the weighted norm of the Jacobian. It is one for small moves, as the lemma says. For large moves it may be smaller or larger, because the constant is local. Dotted: up to here the proof guarantees that points keep their partners."}, "image": {"alt": "A curve against the length of the move on a logarithmic axis. It is flat at one for small moves, sinks below one before a dotted vertical line, and rises above one for the largest moves."}}
for kind, found in local_errors.items():
    glue(f"page-20-{kind}", ledger.written(np.abs(found).max(), 1), display=False)
glue("page-20-measures", measures_count, display=False)
lengths = np.geomspace(1e-6, 30, 60)
curve = np.array([transport_quotient(cloud_map, cloud, masses, length) for length in lengths])
halfway = (torch.cdist(cloud, cloud) + 1e9 * torch.eye(7)).min(1).values / 2
kept = (halfway / worst.norm(dim=1)).min().item()
ax = plt.subplots(figsize=(6.0, 3.6))[1]
ax.semilogx(lengths, curve[:, 0] / curve[:, 1], color="C0")
ax.axvline(kept, color="black", lw=1, ls=":")
ax.text(1.2 * kept, 0.1, "here partners\nmay change")
ax.set(xlabel="length of the move, in $W_2$", ylabel="quotient in $W_2$ over the norm", ylim=(0, None))
plt.show()

# %% [markdown]
# Over {glue:text}`page-20-measures` measures of each kind the largest difference of the quotient from the norm is
# {glue:text}`page-20-equal` (equal weights) and {glue:text}`page-20-random` (random weights).
#
# **Large moves.** For two points on a line, $A$ a number and $V = 1$, the clouds in $[-2, 2]$ can be searched on a
# grid. On a line the best {term}`transport plan` keeps the order, so $W_2$ is the distance of sorted points over
# $\sqrt 2$. By the theorem the supremum of the quotients is the largest norm of a Jacobian. For five numbers $A$ we
# take the largest
# quotient over pairs of clouds on the grid and the largest quotient close to the cloud with the largest norm. The
# larger of the two agrees with the largest norm to {glue:text}`page-20-global`, relatively; the far quotients are all
# below it.

# %% tags=["hide-input"]
places = torch.linspace(-2, 2, 41).double()
clouds = torch.cartesian_prod(places, places)
clouds = clouds[clouds[:, 0] <= clouds[:, 1]][:, :, None]
fine = torch.cartesian_prod(*[torch.linspace(-2, 2, 201).double()] * 2)[:, :, None]
before = torch.cdist(clouds.flatten(1), clouds.flatten(1))
suprema = []
for size in (-2, -1, 0.5, 1, 2):
    f = Attention.from_matrices(size * one, one)
    images = f(clouds).sort(1).values.flatten(1)
    far = (torch.cdist(images, images) / before)[before > 0].max().item()
    norms = local_lipschitz(f, fine, method="dense").value
    rough = fine[norms.argmax()]
    move = torch.linalg.svd(AttentionJacobian(f, rough).dense()).Vh[0].reshape(2, 1)
    moved = rough - 1e-6 * torch.sign((move * rough).sum()) * move  # into the square
    near = wasserstein(f(rough), f(moved)) / wasserstein(rough, moved)
    suprema.append((size, far, near, norms.max().item()))
suprema = np.array(suprema)
global_errors = suprema[:, 1:3].max(1) / suprema[:, 3] - 1
glue("page-20-global", ledger.written(np.abs(global_errors).max(), 1), display=False)

# %% [markdown]
# ::::{dropdown} Proof
# :::{prf:proof}
# *Small moves keep their partners.* Let $\abs{\varepsilon_i} \le \frac12 \abs{x_i - x_j}$ whenever $x_i \ne x_j$.
# Then sending each $x_i$ to its own $x_i + \varepsilon_i$ is optimal. Indeed, a plan is optimal if no cycle of
# partners does better, that is, if $\sum_i \langle x_i, y_i - y_{\sigma(i)} \rangle \ge 0$ for all permutations
# $\sigma$ of any points. With $y = x + \varepsilon$ this sum is
#
# $$\begin{aligned} \tfrac12 \sum_i \abs{x_i - x_{\sigma(i)}}^2
# &+ \sum_i \langle x_i - x_{\sigma^{-1}(i)}, \varepsilon_i \rangle \\
# &\ge \sum_i \abs{x_i - x_{\sigma^{-1}(i)}} \big( \tfrac12 \abs{x_i - x_{\sigma^{-1}(i)}} - \abs{\varepsilon_i} \big)
# \ge 0 . \end{aligned}$$
#
# *Quotients.* So $W_2^2 = \sum_i a_i \abs{\varepsilon_i}^2$ for small moves, and the same holds for the outputs, equal
# ones included. The quotient of the two is the quotient of weighted norms, and its supremum over $\varepsilon$ tends to
# the weighted norm of the Jacobian.
#
# *No other measure is near.* Among measures with the weights $a$, each of $n$ distinct points must keep an atom close
# by, and there are $n$ atoms. (With equal weights coinciding points are no exception, up to relabelling.)
#
# *Large moves.* Relabel $Y$ so that $W_2(m(X), m(Y)) = \norm{X - Y}_F / \sqrt n$. Relabelling changes $f(Y)$ in the
# same way, so $W_2(m(f(X)), m(f(Y))) \le \norm{f(X) - f(Y)}_F / \sqrt n$, at most $\Lip(f)$ times the former.
# Conversely, at each point $Z$ of the segment from $X$ to $Y$, which lies in $\mathcal X^n$, the quotient in $W_2$ of
# $Z$ and $Z + h (Y - X)$ tends, for $h \to 0$, to $\norm{(D_Z f)(Y - X)}_F / \norm{Y - X}_F$, as above. By the mean value
# inequality the supremum of these over $Z$ is at least $\norm{f(X) - f(Y)}_F / \norm{X - Y}_F$.
# :::
# ::::
#
# ## Why the points must be distinct
#
# Let the weights be $\frac12, \frac14, \frac14$, with the second and third token at one place. If the heavy
# {term}`atom` and the two light atoms exchange their places, the measure stays the same; but then the two light atoms
# may separate.

# %%
f = Attention.from_matrices(-one, one)
a = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
x = torch.tensor([[-0.45], [-4], [-4]], dtype=torch.float64)
y = torch.tensor([[-4], [-0.45 + step], [-0.45 - step]], dtype=torch.float64)
parted = wasserstein(f(x, a), f(y, a), a, a) / wasserstein(x, y, a, a)
blind = local_lipschitz(f, x, weights=a, method="dense").value.item()

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-20-parting", "caption": "Before: two light atoms (green) at one place, a heavy atom (black) at the other. After: they have exchanged places, and the light atoms have separated (enlarged). The measure has hardly moved; the sequence of tokens has moved far."}, "image": {"alt": "Two lines. On the upper one, two small discs at the left place and one large disc at the right place. Crossing arrows lead to the lower line, where the large disc is on the left and the two small ones are on the right, slightly apart."}}
glue("page-20-parted", parted, display=False)
glue("page-20-blind", blind, display=False)
ax = plt.subplots(figsize=(6.4, 2.6))[1]
light, heavy = [(-4, 1.13), (-4, 0.87), (-0.58, 0), (-0.32, 0)], [(-0.45, 1), (-4, 0)]
ax.hlines([0, 1], -4.7, 0.3, color="#b0b0b0", lw=1, zorder=0)
for atoms, mass, color in ((light, 0.25, "C2"), (heavy, 0.5, "C6")):
    ax.scatter(*zip(*atoms, strict=True), s=900 * mass, color=color, lw=0)
ax.annotate("", (-3.85, 0.12), (-0.6, 0.88), arrowprops={"arrowstyle": "->", "color": "C6", "lw": 1.5})
ax.annotate("", (-0.65, 0.12), (-3.8, 0.88), arrowprops={"arrowstyle": "->", "color": "C2", "lw": 1.5})
ax.set(yticks=[1, 0], yticklabels=["before", "after"], ylim=(-0.4, 1.4), xlim=(-4.7, 0.3), xlabel="place of the token")
ax.grid(visible=False)
plt.show()

# %% [markdown]
# This move has the quotient {glue:text}`page-20-parted:.4f` in $W_2$; the weighted norm of the Jacobian at the three
# tokens is {glue:text}`page-20-blind:.4f` and misses it.

# %% tags=["hide-input", "nbval-check-output"]
assert abs(quotient_by_hand / norm_by_hand - 1) < 1e-5
assert all(found.max() < 1e-10 for found in errors.values())
assert all(np.abs(found).max() < 1e-5 for found in local_errors.values())
assert np.abs(global_errors).max() < 1e-4 and (suprema[:, 1] < suprema[:, 3]).all()
assert parted > 1.4 * blind
assert abs(curve[0, 0] / curve[0, 1] - 1) < 1e-5
print(f"✓ {2 * measures_count} measures: the quotient in W2 is the Jacobian norm, to 1e-5;")
print(f"  two points on a line: largest quotient = largest norm for {len(suprema)} maps")

# %% tags=["hide-input"]
equal, random = local_errors["equal"], local_errors["random"]
transport, local = "exact transport, worst direction", "local constants, equal weights"
known, formulas = "text of the paper", "reconstructed"
same = {
    "def-2.3": ("boxes and their preimages", "a map that merges points", "push", known),
    "def-2.4": ("the field at any point", "the sums written out", "field", known),
    "eq-3": ("F(m(X)) = m(f(X))", "W2, tokens repeated and shuffled", "map", known),
    "def-c.4": ("weights are repetitions", "repeated tokens", "weights", formulas),
    "lem-c.6": ("closed form", "automatic differentiation", "jacobian", formulas),
}
worst_way = {"within": 1e-5, "grounds": transport, "seen": formulas, "effort": "proved"}
search = {"within": 1e-4, "grounds": "two points in [-2, 2], every pair of clouds on a grid"}
# fmt: off
parting = ledger.upper(
    "castin.lem-c.5", "points may coincide", parted / blind, grounds="two atoms at one place part", variant=True,
    counter_example=f"{parted:.4g} against {blind:.4g}: a = (1/2, 1/4, 1/4) at (-0.45, -4, -4), A = -1",
    seen="reconstructed", effort="structured")
rows = [ledger.equal(f"castin.{id}", form, errors[name], within=1e-10, seen=seen, effort="random", grounds=grounds)
        for id, (form, grounds, name, seen) in same.items()]
glob = ledger.equal("castin.lem-3.2", "global: both suprema", global_errors, seen=formulas, effort="proved", **search)
# fmt: on

# %% tags=["hide-input"]
ledger.record(
    *rows,
    ledger.equal("castin.lem-c.5", "in W2, distinct points", random, **worst_way),
    parting,
    ledger.equal("castin.lem-b.3", local, equal, **worst_way),
    glob,
    ledger.equal("castin.lem-3.2", local, equal, **worst_way),
)

# %% [markdown]
# ## What this shows and does not show
#
# - Reading tokens as measures *of the same weights* changes nothing: at distinct points,
#   `local_lipschitz(f, x, weights=a)` computes the constant for $W_2$.
# - Lemma C.5 is shown for distinct points; without this hypothesis it fails. The paper's text speaks of "an input
#   sequence", and we do not know whether its formulas ask for distinct points.
# - The restriction to fixed weights is essential. A move may also divide an atom and send its parts apart
#   ({term}`mass splitting`). The Jacobian at $n$ tokens does not see such a move, and it can change $F(\mu)$ by more.
# - The global form is proved for every convex set; the search covers two points on a line only.
# - For thousands of tokens use the norm in place of exact transport, as the theorem allows.
#
# **One thing to try.** In the code of {numref}`fig-20-clouds`, put all but one of the seven points at the same place:
# what is the constant then?
#
# **Next:** {doc}`21_general_bound`: how large the constant can be on a ball.
