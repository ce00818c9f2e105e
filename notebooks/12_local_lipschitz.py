# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The local Lipschitz constant, and how to compute it
#
# How smooth a map is at an input is the largest singular value of its Jacobian there. This page checks what that
# number means, then how solvers find it without ever forming the Jacobian, and how they can be fooled.
#
# :::{prf:theorem} Local and global {cite}`federer1969geometric`
# :label: local-and-global
#
# On a convex open set $\mathcal X$, the Lipschitz constant of a differentiable map is the supremum of its local ones,
#
# $$\sup_{X \ne Y \in \mathcal X} \frac{\norm{f(X) - f(Y)}_F}{\norm{X - Y}_F}
# = \sup_{X \in \mathcal X} \norm{D_X f}_2 .$$
# :::
#
# {cite:t}`castin2024smooth` (Lemma 3.1) state this for open connected sets, as we recovered it. Connected is not
# enough: on a ring with a slit the angle is a smooth function whose quotients across the slit are unbounded. Balls
# are convex, so nothing that follows is affected.

# %% tags=["parameters"]
model_name = "minilm"
layer = 3
length = 24  # tokens in the window
seed = 0
texts = ["alice", "python_reference"]  # the first that is at hand is used

# %% tags=["hide-input"]
import pandas as pd
import torch

from lipnb import (
    Attention,
    AttentionJacobian,
    corpora,
    figures,
    local_lipschitz,
    models,
    spectral,
)

figures.house_style()
generator = torch.Generator().manual_seed(seed)

# %% [markdown]
# ## By hand: two tokens on a line
#
# With $d = 1$, $A = V = 1$ and tokens $(s, -s)$, attention gives $f(X) = (s \tanh s^2, -s \tanh s^2)$. The
# Jacobian is a two by two matrix, and its singular value can be followed as $s$ grows.

# %%
one = torch.ones(1, 1, dtype=torch.float64)
attention = Attention.from_matrices(one, one)
rows = []
for s in (0.0, 0.5, 1.0, 2.0):
    x = torch.tensor([[s], [-s]], dtype=torch.float64)
    J = torch.func.jacrev(attention)(x).reshape(2, 2)
    rows.append(
        {
            "s": s,
            "J": J.numpy().round(4).tolist(),
            "dense": torch.linalg.matrix_norm(J, 2).item(),
            "lipnb": local_lipschitz(attention, x).value.item(),
        }
    )
print(pd.DataFrame(rows).to_string(index=False))

# %% [markdown]
# At $s = 0$ all tokens agree: attention is a plain average and the constant is $\norm{V}_2 = 1$. In between it is
# larger.
#
# ## Quotients never exceed the largest local constant between two inputs
#
# Take two inputs, walk along the segment from one to the other, and compare the quotient with the largest local
# constant on the way. A hundred pairs, masked and unmasked; the second input lies in the worst direction of the
# first, at many distances, because random directions would be far from the limit:

# %%
ratios = []
for trial in range(100):
    A, V = torch.randn(2, 3, 3, generator=generator, dtype=torch.float64)
    f = Attention.from_matrices(A, V, masked=trial % 2 == 1)
    x = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    worst = torch.linalg.svd(AttentionJacobian(f, x).dense()).Vh[0].reshape(5, 3)
    y = x + 10.0 ** (-4 + 5 * trial / 99) * worst
    quotient = (f(x) - f(y)).norm() / (x - y).norm()
    on_the_way = torch.stack(
        [x + t * (y - x) for t in torch.linspace(0, 1, 101, dtype=torch.float64)]
    )
    ratios.append(
        (quotient / local_lipschitz(f, on_the_way, method="dense").value.max()).item()
    )
print(
    f"quotient / largest local constant on the segment: {len(ratios)} pairs, "
    f"smallest {min(ratios):.3f}, largest {max(ratios):.6f}"
)

# %% [markdown]
# ## Two solvers
#
# A layer on real text has a Jacobian with tens of thousands of rows. Only its products with vectors are
# affordable, and both solvers need nothing else. *Power iteration* applies $J^\top J$ again and again and keeps
# the last vector. *Lanczos* (here Golub-Kahan bidiagonalisation {cite}`golub1965calculating`) keeps them all. Their
# errors are taken against the dense singular value.

# %%
corpus = corpora.available(*texts)
model = models.load(model_name, dtype=torch.float64)
ids = corpora.windows(model.token_ids(corpora.read(corpus)), length, count=1)
# four tokens only, so that the dense matrix is small
x = model.activations(ids, layer)[0, :4]
f = model.attention(layer)
dense = local_lipschitz(f, x, method="dense")
print("text:", corpora.describe(corpus))
print(f"dense singular value {dense.value.item():.6f}, matrix of {x.numel()} columns")

# %%
history = []
for name, label in (("power", "power iteration"), ("lanczos", "Lanczos")):
    for steps in (*range(1, 20), *range(20, 101, 4)):
        lip = local_lipschitz(f, x, method=name, max_steps=steps, rtol=1e-10)
        error = 1 - (lip.value / dense.value).item()
        history.append(
            {"method": label, "products": lip.steps.item(), "error": max(error, 1e-15)}
        )
        if error < 1e-12:
            break
history = pd.DataFrame(history)
answer = {name: local_lipschitz(f, x, method=name) for name in ("power", "lanczos")}

# %%
ax = figures.residuals(history, title=f"{model.name} layer {layer}, {len(x)} tokens")
for name, color in (("power", "#0072b2"), ("lanczos", "#d55e00")):
    ax.axvline(answer[name].steps.item(), color=color, linestyle=":", linewidth=1.2)

# %% [markdown]
# *Relative error of the two solvers against the products they spend. Dotted lines: where each one stops by itself at
# the default tolerance of $10^{-4}$. Lanczos could stop earlier than it does: it goes on until a larger singular
# value is all but excluded.*
#
# ## How a solver is fooled
#
# A small residual says that *some* singular value is near, not that it is the largest. Here the start vector almost
# misses the top direction, and the second value lies close below. A solver that trusts the residual stops at the
# wrong one.

# %%
values = torch.cat([torch.ones(1), torch.linspace(0, 0.98, 399)]).double()
start = torch.randn(1, 400, generator=generator, dtype=torch.float64)
start[:, 0] = 1e-6
solve = {
    "power iteration, residual rule": spectral.power_iteration,
    "Lanczos, certified": spectral.lanczos,
}
fooled = {
    name: run(lambda u: values**2 * u, start, rtol=1e-2)
    for name, run in solve.items()
}
for name, found in fooled.items():
    print(
        f"{name:31s} {found.value.item():.4f} after {found.steps.item():3d} steps, "
        f"residual {found.residual.item():.0e}, converged: {found.converged.item()}"
    )

# %% [markdown]
# The guard uses the law of the random start: its squared component along the top direction is below the $10^{-6}$
# quantile of a Beta distribution only once in a million. The polynomials that Lanczos builds then bound how much
# could hide {cite}`hochstenbach2013probabilistic`. It costs some products, and the default solver
# never stops without it.

# %% tags=["nbval-check-output"]
assert max(abs(row["dense"] / row["lipnb"] - 1) for row in rows) < 1e-4
assert 0.99 < max(ratios) <= 1 + 1e-3, (
    "a quotient exceeds the largest local constant on its segment"
)
for name, lip in answer.items():
    assert lip.converged and abs(lip.value / dense.value - 1) < 1e-4, name
assert (
    fooled["Lanczos, guarded"].value
    > 1 - 1e-2
    > fooled["power iteration, residual rule"].value
)
print("quotients stay below, both solvers agree with the dense value")
print("only the guarded solver is not fooled")

# %% [markdown]
# ## What this shows and does not show
#
# - It shows what the number means and that it is computed to its tolerance, with a residual and a step count.
# - The guard is a statement of probability over the random start, up to rounding, not a proof. A two-sided bound with
#   proof is the subject of a later page.
# - The segment check samples 101 points, so it can miss a peak between them by a little: its tolerance says so.
#
# **One thing to try.** Make the start vector worse, `1e-9` in place of `1e-6`: from where on is the guard fooled
# too, and how improbable is such a start?
#
# **Next:** {doc}`13_jacobian`, where the products come from.
