# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Two tokens, a push, a number
#
# {term}`Attention` replaces each {term}`token` by a weighted mean of all tokens. Push the tokens a little, and the
# outputs move. This book is about one number: **the largest factor by which attention amplifies a small push**. For
# the two tokens that these lines make and {numref}`fig-01-push` draws, it is {glue:text}`two-constant:.2f`.

# %% tags=["parameters"]
radius = 1.2  # the tokens lie in the ball of this radius
copies = 99  # of the second token, in the last section
pushes = 1000  # random ones
seed = 0

# %%
import torch

from lipnb import Attention, AttentionJacobian, local_lipschitz

A, V = -torch.eye(2).double(), torch.eye(2).double()  # A = -I: a token looks for its opposite
head = Attention.from_matrices(A, V)
x = radius * torch.tensor([[-1.0, 0.0], [0.8, 0.6]]).double()
J = AttentionJacobian(head, x).dense()  # 4 by 4: two tokens, two coordinates

# %% tags=["remove-input"]
import matplotlib.pyplot as plt
import seaborn as sns
from myst_nb import glue

from lab import figures
from lipnb.worst_case import gaussian

figures.house_style()
normal = gaussian(torch.Generator().manual_seed(seed))

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-01-push", "caption": "Left: two tokens, whom they attend to (grey), and the worst push of both (orange), of length 1/2 in all. Right: the outputs (squares), each near the place of the *other* token (faint), because that is what it attends to. To first order the outputs move {glue:text}`two-constant:.2f` times as far as the tokens."}, "image": {"alt": "Two tokens far apart in the plane, each with a grey arrow of attention to the other and an orange arrow for its push; beside them the two outputs, each next to the faint place of the other token, with longer orange arrows."}}
push = 0.5 * torch.linalg.svd(J).Vh[0].reshape(2, 2)  # the worst one
outputs, moved = head(x), (J @ push.flatten()).reshape(2, 2)
figures.objects.tokens_and_attention(x, head, moved=x + push, outputs=(outputs, outputs + moved))
plt.show()

# %% [markdown]
# ## The map
#
# One {term}`attention head` has matrices $Q, K, V$; $Q$ and $K$ have $k$ rows. From tokens $x_1, \dots, x_n$ in $\R^d$
# it computes
#
# $$f(X)_i = V \sum_{j=1}^n P_{ij}\, x_j, \qquad P_{i\cdot} = \softmax_j\big(x_i^\top A^\top x_j\big), \qquad
# A = K^\top Q / \sqrt k .$$
#
# The matrix $A$ says who looks for whom: the score $x_i^\top A^\top x_j$ is $(Q x_i) \cdot (K x_j) / \sqrt k$. Row $i$
# of the {term}`attention matrix` $P$ says how token $i$ spreads its attention; it sums to one. Here $A = -I$: a token
# attends most to what points away from it, and token 1 gives token 2 the weight {glue:text}`two-weight:.2f`.

# %%
P = (x @ A.T @ x.T).softmax(dim=1)
by_hand = P @ x @ V.T  # the two outputs

# %% [markdown]
# ## The number
#
# How far do $n$ tokens move? Take the root of the sum of squares over all of them, the *Frobenius norm*. If one token
# moves by 1, that is 1; if $n$ tokens move by 1 each, it is $\sqrt n$: this is the $\sqrt n$ of the next page.
#
# :::{prf:definition} Local Lipschitz constant ({cite:t}`castin2024smooth`, section 3.1)
# :label: spine-constant
# :nonumber:
#
# At a {term}`sequence` $X$ of tokens, the {term}`local Lipschitz constant` of a differentiable map $f$ is the norm of
# its {term}`Jacobian` $D_X f$,
#
# $$\Lip_X(f) = \norm{D_X f}_2 = \max_{u \ne 0} \frac{\norm{(D_X f)\,u}_F}{\norm{u}_F} .$$
# :::
#
# To first order a push $u$ moves the outputs by $J u$, with $J = D_X f$. So the constant is the largest singular value
# of a matrix, and the worst push is its {term}`singular vector`: {numref}`fig-01-push` draws it. The constant promises
# something about *small* pushes only; for a long push the factor can be larger or smaller.

# %%
print(f"largest singular value: {torch.linalg.svdvals(J)[0]:.4f}")
print(f"local_lipschitz:        {local_lipschitz(head, x).value:.4f}")

# %% [markdown]
# **Notation of these four pages.** There are $n$ tokens, each of norm at most $R$. $\abs x$ is the Euclidean norm of a
# vector, $\norm A_2$ the largest singular value of a matrix, $\norm X_F$ the Frobenius norm, and $t = \norm A_2 R^2$
# the largest score that a token can give.
#
# ## A random push sees little
#
# Could we push at random and take the largest factor? With two tokens, nearly. Now put {glue:text}`two-copies` copies
# where the second token stands, and push each token at random.


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-01-random", "caption": "Amplification of {glue:text}`two-pushes:,d` random pushes (bars) and the constant (line). With two tokens random pushes come close to it; with a hundred they do not."}, "image": {"alt": "Two histograms of amplification. With two tokens the bars reach the vertical line of the constant; with a hundred tokens they stand far to its left."}}
def gains(x):
    """Amplification of random pushes, to first order."""
    u = normal(pushes, *x.shape)
    return AttentionJacobian(head, x).jvp(u).flatten(1).norm(dim=1) / u.flatten(1).norm(dim=1)


crowd = torch.cat([x[:1], x[1:].expand(copies, -1)])
axes = figures.panels(2, width=3.2, height=2.8)
best = []
for ax, tokens, (off, side) in zip(axes, (x, crowd), ((4, "left"), (-4, "right")), strict=True):
    largest, seen = local_lipschitz(head, tokens).value.item(), gains(tokens)
    best.append((seen.max().item() / largest, largest, seen.median().item()))
    bins = torch.arange(0, largest + 0.1, 0.05).numpy()
    sns.histplot(x=seen.numpy(), bins=bins, ax=ax, color="C0", stat="percent", linewidth=0, alpha=0.9)
    ax.axvline(largest, color="C1", lw=2.5)
    at = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "ha": side}
    ax.annotate("constant", (largest, 0.9), (off, 0), color="#b34700", **at)
    ax.set(xlabel="amplification", title=f"{len(tokens)} tokens")
for ax in axes:
    ax.set(xlim=(0, 1.08 * best[1][1]), ylim=(0, max(one.get_ylim()[1] for one in axes)))
axes[0].set_ylabel("% of the pushes")
axes[1].set_ylabel("")
plt.show()

# %% [markdown]
# The best random push reaches {glue:text}`two-best:.0f` % of the constant with two tokens. With a hundred it reaches
# {glue:text}`crowd-best:.0f` %: the constant is {glue:text}`crowd-constant:.1f`, a typical factor
# {glue:text}`crowd-median:.1f`. In many dimensions a random vector is nearly orthogonal to any fixed direction, the
# worst one too. So we compute the constant and do not sample it.
#
# ## What this shows and does not show
#
# - The number belongs to *one input*. The next page asks how large it can be over all inputs in a ball.
# - It is about small pushes. It does not say how far a large push carries.
#
# **One thing to try.** Set `A = torch.eye(2).double()` in the second cell of this page: now each token prefers what
# resembles it. Is the constant of the hundred tokens still larger than the constant of two?
#
# :::{dropdown} The answer
# No: it falls to {glue:text}`crowd-alike:.2f`, while the constant of two tokens stays at {glue:text}`two-alike:.2f`.
# The {glue:text}`two-copies` equal tokens now attend to one another, and nobody looks at the lone token: its push moves
# its output alone. So the growth came from a crowd that looks at one token.
# :::
#
# **Next:** {doc}`02_square_root`.

# %% tags=["remove-input"]
alike = Attention.from_matrices(torch.eye(2).double(), V)
known = {"two-constant": local_lipschitz(head, x).value, "two-weight": P[0, 1], "two-pushes": pushes}
known |= {"two-copies": copies, "two-best": 100 * best[0][0], "crowd-best": 100 * best[1][0]}
known |= {"crowd-constant": best[1][1], "crowd-median": best[1][2]}
known |= {"two-alike": local_lipschitz(alike, x).value, "crowd-alike": local_lipschitz(alike, crowd).value}
for key, value in known.items():
    glue(key, value.item() if torch.is_tensor(value) else value, display=False)

# %% tags=["remove-input", "nbval-check-output"]
assert torch.allclose(head(x), by_hand, rtol=1e-12), "the formula is not what head(x) computes"
assert abs((moved.norm() / push.norm()).item() / known["two-constant"] - 1) < 1e-9, "the picture is not to first order"
for tokens, one in zip((x, crowd), best, strict=True):
    dense = torch.linalg.matrix_norm(AttentionJacobian(head, tokens).dense(), 2)
    assert abs(one[1] / dense - 1) < 1e-4 and one[0] < 1 + 1e-4, "the constant, or a random push beats it"
small = 1e-5 * push
quotient = (head(x + small) - head(x - small)).norm() / (2 * small.norm())
assert abs(quotient / known["two-constant"] - 1) < 1e-6, "finite differences disagree"
if (radius, copies) == (1.2, 99):  # the page says these of its own
    assert known["crowd-alike"] < 1.1 and abs(known["two-alike"] / known["two-constant"] - 1) < 0.01
    assert (outputs - x.flip(0)).norm() < (outputs - x).norm(), "each output lies near the other token"
print("✓ checked: the map written by hand; the constant by differences; no random push exceeds it")
