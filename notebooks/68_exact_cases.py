# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Inputs with known constants
#
# Does your code compute the {term}`local Lipschitz constant` of {term}`attention` correctly? Here are
# {glue:text}`page-68-cases` inputs for which the answer is a formula, with a short proof for each. They are in one
# file that needs none of our code. Our solver has a relative error of at most {glue:text}`page-68-ours:.0e` in double
# precision, and each of three wrong implementations fails on some of the inputs ({numref}`fig-68-errors`).

# %% tags=["parameters"]
random_inputs = 1000  # against the largest constant on a ball
ascents, ascent_steps = 4, 60
seed = 0

# %% tags=["hide-input"]
import json
import math
from importlib.resources import files

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from myst_nb import glue
from scipy.optimize import brentq

from lab import figures, ledger
from lab.experiments import exact
from lab.released import reported
from lipnb import Attention, bounds, local_lipschitz, reference_cases
from lipnb.worst_case import climb

figures.house_style()
cases = reference_cases()
families = list(dict.fromkeys(case.family for case in cases))
cases = sorted(cases, key=lambda case: families.index(case.family))
generator = torch.Generator().manual_seed(seed)

# %% tags=["hide-input"]
rows = []
for case in cases:
    settings = {"weights": case.weights, "rtol": case.tolerance["float64"] / 2}
    f, f32 = case.attention, case.attention.to(dtype=torch.float32)
    found = {
        "closed form, all singular values": local_lipschitz(f, case.x, **settings, method="dense"),
        "closed form, Lanczos": local_lipschitz(f, case.x, **settings),
    }
    if case.weights is None:
        found["autograd"] = local_lipschitz(lambda x, f=f: f(x), case.x, **settings)
    for route, answer in found.items():
        error = abs(answer.value.item() / case.value - 1)
        rows.append((case.name, case.family, route, error, case.tolerance["float64"]))
    weights = None if case.weights is None else case.weights.float()
    single = local_lipschitz(f32, case.x.float(), weights=weights, method="dense").value.item()
    rows.append((case.name, case.family, "float32", abs(single / case.value - 1), case.tolerance["float32"]))
errors = pd.DataFrame(rows, columns=["name", "family", "route", "error", "tolerance"])
ours = errors[errors.route != "float32"]
assert (errors.error <= errors.tolerance).all()


# %% tags=["hide-input"]
def rows_for_heads(f, x):
    """Attention whose heads are cut out of the wrong axis."""

    def heads(name):
        W, bias = getattr(f, name), getattr(f, f"{name}_bias")
        flat = x @ W.flatten(0, 1).T + (0 if bias is None else bias.flatten())
        return flat.view(len(W), len(x), -1)

    return f.combine(f.probabilities_of(f.slope * heads("query"), heads("key")) @ heads("value"))


mistakes = []
for case in cases:
    f, x, weights = case.attention, case.x, case.weights
    J = torch.autograd.functional.jacobian(lambda x, f=f: rows_for_heads(f, x), x)
    found = {"heads by rows": torch.linalg.matrix_norm(J.flatten(2).flatten(0, 1), 2)}
    open_f = f.replace(masked=False, window=None)
    found["no mask"] = local_lipschitz(open_f, x, weights=weights, method="dense").value
    found["released quantity"] = reported(f, x)
    concerned = {"heads by rows": f.heads > 1, "no mask": f.masked, "released quantity": weights is None}
    mistakes += [(case.name, way, abs(one.item() / case.value - 1)) for way, one in found.items() if concerned[way]]
mistakes = pd.DataFrame(mistakes, columns=["name", "route", "error"])

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-68-errors", "caption": "Relative errors in double precision, one column for each input, by family ({ref}`below <families>`). The three correct ways stay below the tolerance, the black line. The three wrong ones are mostly off by a few percent or more, but correct on some of the inputs that they concern. Errors below one unit of rounding are drawn at the lower edge."}, "image": {"alt": "Relative errors on a logarithmic axis, one column of marks for each input, in nine families. Three kinds of marks lie at the bottom near 1e-16, below a black line of steps between 1e-14 and 1e-13. Three other kinds lie at the top, between a hundredth and ten, a few of them at the bottom. Between them there is nothing."}}
figure, ax = plt.subplots(figsize=(5.0, 6.2))
place = {case.name: at for at, case in enumerate(cases)}
both = pd.concat([mistakes, ours[["name", "route", "error"]]])
looks = zip(both.route.unique(), ("C3", "C4", "C6", "C0", "C1", "C2"), "v*Xos^", strict=True)
for route, color, marker in looks:
    part = both[both.route == route]
    drawn = part.error.clip(lower=2e-17)
    ax.plot(part.name.map(place), drawn, marker, color=color, ms=5, mfc="none", label=route)
steps = [case.tolerance["float64"] for case in cases]
ax.step(range(len(cases)), steps, where="mid", color="black", label="tolerance")
middle = [np.mean([place[case.name] for case in cases if case.family == one]) for one in families]
for at in range(1, len(cases)):
    if cases[at].family != cases[at - 1].family:
        ax.axvline(at - 0.5, color="0.75", lw=0.8, zorder=0)
ax.set_xticks(middle, families, rotation=55, ha="right", rotation_mode="anchor")
ax.grid(False, axis="x")
ax.set(yscale="log", ylim=(8e-18, 30), ylabel="relative error")
ax.set_yticks([1e-16, 1e-12, 1e-8, 1e-4, 1])
figure.legend(loc="outside lower left", ncols=2, columnspacing=1)
plt.show()

# %% [markdown]
# ## By hand: averages of two tokens
#
# Two {term}`tokens <token>`, a {term}`causal mask <mask (causal)>`, all {term}`logits <logit>` 0, and $V = 1$. The
# first output is $x_1$, the second is $\frac12 (x_1 + x_2)$. So the {term}`Jacobian` is
# $\begin{pmatrix} 1 & 0 \\ \frac12 & \frac12 \end{pmatrix}$ at every input, and its squared {term}`spectral norm` is
# the larger root of $z^2 - \frac32 z + \frac14$. The constant is $(1 + \sqrt 5) / \sqrt 8$, the golden ratio over
# $\sqrt 2$. The case `averages-of-2` has $V = 2$:

# %%
case = next(case for case in cases if case.name == "averages-of-2")
print(case.formula, "=", case.value)
print("computed:", local_lipschitz(case.attention, case.x).value.item())

# %% [markdown]
# Without the {term}`mask` the answer is 2, so this case exposes an implementation that forgets it.
#
# ## With NumPy alone
#
# The file `reference_cases.json` lies in the package, and in the folder `data` of the repository; its key `about` states
# the conventions. Each case has its `attention` (matrices, biases, scale, mask), the tokens `x` and their `weights` or
# null. Its answer is `value`, with a `tolerance` for each precision, a `formula` and a `proof`. This is all of attention:


# %%
def split(flat, heads):
    return flat.reshape(len(flat), heads, -1).swapaxes(0, 1)


def attention(f, x, weights=None, split=split):
    """Outputs (n, m), without their bias, of tokens (n, d)."""
    parts = []
    for name in ("query", "key", "value"):
        W, bias = np.array(f[name]), f[f"{name}_bias"]
        flat = x @ W.reshape(-1, W.shape[-1]).T
        parts.append(split(flat if bias is None else flat + np.ravel(bias), len(W)))
    query, key, value = parts
    logits = f["scale"] * query @ key.swapaxes(1, 2)
    if f["score"] == "l2":
        logits = -f["scale"] * ((query[:, :, None] - key[:, None]) ** 2).sum(-1)
    logits = logits if weights is None else logits + np.log(weights)
    i, j = np.indices(logits.shape[1:])
    hidden = f["masked"] & ((j > i) | (j <= i - (f["window"] or len(x))))
    P = np.exp(logits - logits.real.max(-1, keepdims=True)) * ~hidden
    heads = P / P.sum(-1, keepdims=True) @ value
    joined = np.hstack(heads)
    return joined if f["output"] is None else joined @ np.hstack(f["output"]).T


# %% [markdown]
# It takes complex tokens, so the imaginary part of the output at $X + i \epsilon E$ is $\epsilon$ times the derivative
# along $E$. No nearby numbers are subtracted, so $\epsilon = 10^{-30}$ will do. Each coordinate gives one column of the
# Jacobian:


# %%
def jacobian(case, **how):
    x, weights, columns = np.array(case["x"], complex), case["weights"], []
    for at in np.ndindex(x.shape):
        moved = x.copy()
        moved[at] += 1e-30j
        outputs = attention(case["attention"], moved, weights, **how)
        columns.append(outputs.imag / 1e-30)
    J = np.reshape(columns, (*x.shape, len(x), -1))  # by input token and coordinate
    a = np.sqrt(np.ones(len(x)) if weights is None else weights)
    J = J / a[:, None, None, None] * a[:, None]
    return J.reshape(x.size, -1).T


def constant(case, **how):
    return np.linalg.norm(jacobian(case, **how), 2)


file = files("lipnb") / "reference_cases.json"
listed = json.loads(file.read_text())["cases"]
errors_here = [abs(constant(case) / case["value"] - 1) for case in listed]
pairs = zip(errors_here, listed, strict=True)
off = [error / case["tolerance"]["float64"] for error, case in pairs]
print(f"{len(listed)} cases, the largest error is {max(off):.2f} of its tolerance")

# %% [markdown]
# ## Three wrong implementations
#
# - {term}`Released quantity <released quantity>`: the loop of the released experiments feeds the output back where a
#   tangent belongs, and returns $\norm{J^\top f(X)}_F^{1/2}$ ({doc}`46_released_code`).
# - *No mask*: the mask is left out.
# - *Heads by rows*: the projected tokens are reshaped into heads without exchanging two axes.


# %%
def released(case):
    output = attention(case["attention"], np.array(case["x"]))
    return np.linalg.norm(jacobian(case).T @ output.ravel()) ** 0.5


def no_mask(case):
    return constant({**case, "attention": {**case["attention"], "masked": False}})


def by_rows(case):
    return constant(case, split=lambda flat, heads: flat.reshape(heads, len(flat), -1))


# %% tags=["hide-input"]
rows = []
for case in listed:
    row = {"family": case["family"], "cases": 1, "masked": case["attention"]["masked"]}
    row["heads"] = len(case["attention"]["query"]) > 1
    for wrong in (released, no_mask, by_rows):
        error = abs(wrong(case) / case["value"] - 1)
        row[wrong.__name__] = not error <= case["tolerance"]["float64"]
    rows.append(row)
verdicts = pd.DataFrame(rows)
twice = mistakes.groupby("route").error.apply(lambda error: (error > 1e-12).sum())
plain = np.array([case["weights"] is None for case in listed])
verdicts.loc[~plain, "released"] = False  # the released loop knows no weights
counts = verdicts.groupby("family", sort=False).sum().astype(int).reset_index()
counts.loc[len(counts)] = {"family": "all", **verdicts.drop(columns="family").sum().astype(int)}
assert list(verdicts[["by_rows", "no_mask", "released"]].sum()) == list(twice) and max(off) <= 1
names = {"family": "family", "cases": "cases", "masked": "with a mask", "heads": "several heads"}
names |= {"released": "fails: released quantity", "no_mask": "fails: no mask", "by_rows": "fails: heads by rows"}
figures.table(counts, names, bold=counts.family == "all")

# %% tags=["hide-input"]
total = counts.iloc[-1]
glue("page-68-cases", int(total.cases), display=False)
glue("page-68-released", int(total.released), display=False)
glue("page-68-unmasked", int(total.no_mask), display=False)
glue("page-68-rows", int(total.by_rows), display=False)
glue("page-68-masked", int(total.masked), display=False)
glue("page-68-heads", int(total["heads"]), display=False)
glue("page-68-longest", max(len(case.x) for case in cases), display=False)
glue("page-68-widest", exact.WIDEST, display=False)
glue("page-68-roundings", exact.ROUNDINGS, display=False)
glue("page-68-plain", int(plain.sum()), display=False)
glue("page-68-ours", float(ours.error.max()), display=False)
glue("page-68-single", float(errors[errors.route == "float32"].error.max()), display=False)
print(f"✓ {len(errors)} errors of four routes and {len(off)} of NumPy are within tolerance; three mistakes are not")

# %% [markdown]
# One correct number says little, because no mistake shows on all the inputs that it concerns. The released quantity fails
# on {glue:text}`page-68-released` of the {glue:text}`page-68-plain` inputs without {term}`token weights`, the missing mask
# on {glue:text}`page-68-unmasked` of {glue:text}`page-68-masked` with a mask, and heads by rows on
# {glue:text}`page-68-rows` of {glue:text}`page-68-heads` with several {term}`heads <attention head>`. Where all tokens
# choose the first one, for example, the mask hides nothing that matters.
#
# (families)=
# ## The families
#
# Each family has its reason why there is a formula. The table has one case of each:

# %% tags=["hide-input"]
shown = ["averages-of-2", "equal-tokens-side-by-side", "blind-pair-one-query", "opposite", "queries-cancelled"]
shown += ["three-heads-side-by-side", "square", "hard-heads-added", "l2-pair"]
why = {
    "uniform": "logits play no part",
    "equal tokens": "all tokens coincide",
    "blind values": "all tokens have the same value",
    "two tokens": "two tokens, or copies of two",
    "query bias": "queries have a bias",
    "heads": "several heads",
    "symmetry": "a square, or a fork",
    "hard": "attention is nearly 0, 1/2 or 1",
    "L2": "logits are minus squared distances",
}
rows = [(c.family, why[c.family], c.name, c.kind, c.value, c.formula.split(" where ")[0]) for c in cases]
examples = pd.DataFrame(rows, columns=["family", "what its inputs have in common", "case", "kind", "value", "formula"])
examples = examples[examples.case.isin(shown)]
assert list(examples.family) == families
figures.table(examples, names={key: key for key in examples}, digits=6)

# %% [markdown]
# In the file each formula is a Python expression, followed by definitions of its names.
#
# Take *opposite*: tokens $x$ and $-x$ on a line, $V = 1$, and $t = A x^2$, here 1. Each gives itself the attention
# $p = 1 / (1 + e^{-2t})$, the mean is $(2p - 1)\, x$ and the variance $4 w x^2$ with $w = p (1 - p)$. By
# {prf:ref}`jacobian-closed-form` the entries of the Jacobian are $p + 6 t w$ on the diagonal and $1 - p - 2 t w$ off
# it. Such a matrix has the eigenvalues $1 + 4 t w$ and $2 p - 1 + 8 t w$, and the constant is the larger modulus.
#
# There are three kinds of value. A *local* value is the norm of the Jacobian at the given tokens. A *limit* is reached
# along multiples of them, as in {doc}`24_large_radius` (for `fork-limit`: as its attention hardens); the tokens are so
# large that the value is within $10^{-20}$ of it. A *ball* case gives the largest constant over all inputs of as many
# tokens, with a bound on their norms or (most of them) without one, and an input that attains it. {numref}`fig-68-six` shows six of the
# {term}`attention matrices <attention matrix>`.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-68-six", "caption": "Attention matrices of six cases, with the constant above each; rows attend to columns. The last one is the first of two heads. The constant depends on more than this matrix: on how it changes with the tokens."}, "image": {"alt": "Six small heat maps. Averages of three tokens under a mask; averages over a window of two; a token and three copies of another; four corners of a square, which attend to themselves most; a fork, whose last four tokens divide their attention between the two prongs and themselves; and a matrix of zeros and ones."}}
chosen = ["averages-of-3", "window-2", "pair-copies", "square", "fork", "hard-heads-added"]
figure, axes = plt.subplots(3, 2, figsize=(4.8, 6.6))
for ax, name in zip(axes.flat, chosen, strict=True):
    case = next(case for case in cases if case.name == name)
    P = case.attention.probabilities(case.x)[0].numpy()
    image = ax.imshow(P, cmap="Blues", vmin=0, vmax=1)
    ax.set_title(f"{name}\n{case.value:.6g}")
    ax.set(xticks=range(len(P)), yticks=range(len(P)))
    ax.set_xticklabels(range(1, len(P) + 1))
    ax.set_yticklabels(range(1, len(P) + 1))
    ax.grid(False)
figure.colorbar(image, ax=axes, label="attention", shrink=0.7)
plt.show()

# %% [markdown]
# ## Two tokens: the largest constant of all
#
# For two tokens of {term}`L2 attention` even the largest constant on a ball is a formula.
#
# {bdg-secondary}`ours` {ref}`what is this? <badges>`
#
# :::{prf:proposition} Two tokens of L2 attention (ours)
# :label: l2-two-tokens
#
# Let $f(X)_i = \sum_j P_{ij} x_j$ with $P_{ij} \propto e^{-\abs{x_i - x_j}^2}$ be one head on two tokens in $\R^d$,
# $d \ge 1$. Let $0 < R \le \infty$, $u_\star$ the positive solution of $u \tanh \frac u2 = \frac32$, and
# $v = \min(4 R^2, u_\star)$. Without a mask
#
# $$\Lip(f_{|B_R^2}) = \max\Big(1,\; \tanh \frac v2 + \frac{v}{\cosh^2 \frac v2}\Big),$$
#
# and with a causal mask, for $a = p + 2 v p (1 - p)$ and $p = 1 / (1 + e^{-v})$,
#
# $$\Lip(f_{|B_R^2}) = \max\bigg(\norm{M(\tfrac12)}_2,\, \norm{M(a)}_2\bigg), \quad
#   M(a) = \begin{pmatrix} 1 & 0 \\ 1 - a & a \end{pmatrix} .$$
# :::

# %% tags=["hide-input"]
root = brentq(lambda u: u * math.tanh(u / 2) - 1.5, 1, 3)


def largest(R, masked):
    v = min(4 * R * R, root)
    if not masked:
        return max(1, math.tanh(v / 2) + v / math.cosh(v / 2) ** 2)
    p = 1 / (1 + math.exp(-v))
    return float(max(np.linalg.norm([[1, 0], [1 - a, a]], 2) for a in (0.5, p + 2 * v * p * (1 - p))))


rows = []
for masked in (False, True):
    for d, R in ((1, 0.3), (2, 0.5), (3, 0.6), (2, 0.8), (3, 2.0)):
        eye = torch.eye(d).double()[None]
        f = Attention(eye, eye, eye, scale=1.0, score="l2", masked=masked)
        x = torch.randn(random_inputs, 2, d, generator=generator, dtype=torch.float64)
        x = R * x / x.norm(dim=-1).amax(-1)[:, None, None]
        x[::2] *= torch.rand(len(x[::2]), 1, 1, generator=generator, dtype=torch.float64)
        tried = local_lipschitz(f, x, method="dense").value
        best = climb(f, x[tried.topk(ascents).indices], R, steps=ascent_steps)[1].max().item()
        rows.append(("yes" if masked else "no", d, R, largest(R, masked), tried.max().item(), best))
balls = pd.DataFrame(rows, columns=["mask", "d", "R", "stated", "random", "ascended"])
balls["ratio"] = balls[["random", "ascended"]].max(axis=1) / balls.stated

# %% tags=["hide-input"]
assert balls.ratio.max() <= 1 + 1e-9 and balls.ratio.min() > 0.99
glue("page-68-tried", len(balls) * random_inputs, display=False)
glue("page-68-climbed", len(balls) * ascents, display=False)
glue("page-68-two", largest(math.inf, False), display=False)
glue("page-68-two-masked", largest(math.inf, True), display=False)
heads = {"mask": "mask", "d": "width d", "R": "radius R", "stated": "proposition", "random": "largest of random"}
heads |= {"ascended": "gradient ascent", "ratio": "largest / proposition"}
figures.table(balls, heads, digits={"stated": 6, "random": 6, "ascended": 6, "ratio": 7, "R": 2})

# %% [markdown]
# None of {glue:text}`page-68-tried:,.0f` random inputs and {glue:text}`page-68-climbed` inputs by
# {term}`gradient ascent` exceeds the proposition. Over all inputs the largest constants are {glue:text}`page-68-two:.4f`
# and, with the mask, {glue:text}`page-68-two-masked:.4f`; two of the cases are such inputs. Where the search stays more
# than a thousandth below, the maximum is at opposite tokens and the ascent ends at equal ones.
#
# ::::{dropdown} Proof
# :::{prf:proof}
# Let $w = x_2 - x_1$, $u = \abs w^2$ and $p = 1 / (1 + e^{-u})$, what a token gives itself.
#
# *Without a mask* $f(X)_1 + f(X)_2 = x_1 + x_2$ and $f(X)_2 - f(X)_1 = (2 p - 1)\, w = \tanh(\frac u2)\, w$. So $D_X f$
# is symmetric, 1 on equal moves and the derivative of $w \mapsto \tanh(\frac{\abs w^2}{2})\, w$ on opposite ones:
# $h(u) = \tanh \frac u2 + u / \cosh^2 \frac u2$ along $w$, $\tanh \frac u2 < 1$ across.
#
# $h'(u) = \cosh^{-2}(\frac u2)\, (\frac32 - u \tanh \frac u2)$, and $u \tanh \frac u2$ increases: $h$ rises up to
# $u_\star$ and falls after it. In the ball $u$ takes all values up to $4 R^2$.
#
# *With the mask* $f(X)_1 = x_1$ and $f(X)_2 = x_1 + p\, w$. In an orthonormal basis that begins along $w$, $D_X f$ is a
# sum of 2 by 2 blocks: $M(p + 2 u p (1 - p))$ along $w$ and $M(p)$ across, where $p \ge \frac12$.
#
# $a(u) = p + 2 u p (1 - p)$ has the derivative $p (1 - p) (3 - 2 u \tanh \frac u2)$, so on the ball it is at most
# $a(v)$; and $\frac12 \le p \le a$. $\norm{M(a)}_2$ is convex in $a$, hence largest at an end of
# $[\frac12, a(v)]$. Both ends are attained, $\frac12$ at equal tokens.
#
# On a convex set the supremum of the local constant is the Lipschitz constant. $\square$
# :::
# ::::

# %% tags=["hide-input"]
hard = [case for case in cases if case.family == "hard" and case.attention.score == "dot"]
limits = []
for case in hard:
    if case.name not in ("hard-tie", "fork-limit"):  # no limit where tokens tie
        there = local_lipschitz(case.attention, case.x, method="dense").value
        limits.append((there / bounds.large_radius_limit(case.attention, case.x)).item() - 1)
free = {"seen": "ours", "effort": "proved"}
two = "two tokens of any width, on any ball: the constant itself"
ledger.record(
    ledger.upper("kim.thm-3.2-two", two, balls.ratio, grounds="random tokens and gradient ascent; A = I", **free),
    ledger.equal(
        "castin.thm-3.7",
        "the limit itself, at reference cases",
        limits,
        within=1e-9,
        grounds="reference cases of large radius, masked or not, one head or two",
        **free,
    ),
)

# %% [markdown]
# ## What this shows and does not show
#
# - An implementation that passes computes these {glue:text}`page-68-cases` numbers. The inputs are small: at most
#   {glue:text}`page-68-longest` tokens, nearly all in width one or two. They do not find a fault that needs a long
#   {term}`sequence`, an ill-conditioned Jacobian or an overflow.
# - They cover dot products and distances, masks, {term}`windows <window>`, biases, several heads, output matrices,
#   scales and token weights, but not rotary positions, grouped keys, or normalised or capped logits.
# - Every formula is evaluated in sixty digits. For inputs of at most {glue:text}`page-68-widest` coordinates it is also
#   compared, in fifty digits, with the definition of the constant, written out apart from the library. For larger inputs
#   of dot products we found, also in many digits, a direction that is stretched as much as the formula says. That no
#   direction is stretched more is checked in double precision only, and so is the only larger input of distances.
# - The tolerance is {glue:text}`page-68-roundings` units of {term}`rounding`, times one plus the largest logit unless
#   attention is nearly hard. In single precision our largest error is {glue:text}`page-68-single:.0e`.
# - Constants at known inputs say nothing about the worst inputs, except in the *ball* cases.
#
# **One thing to try.** Replace `attention` above by your implementation, or leave out one factor: `scale`, a bias, the
# logarithm of the weights. Which cases notice?
#
# **Next:** {doc}`69_rounding_or_bug`, whether two computations of one network differ by rounding or by a bug.
