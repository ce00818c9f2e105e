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
# outputs move. This book is about one number: **the largest factor by which attention amplifies a small push**. For the
# two tokens of {numref}`fig-01-push` it is {glue:text}`two-constant:.2f`. This page says what the number is; the next
# three say why it can grow like $\sqrt n$ with the number $n$ of tokens, what it is in a trained model, and what a
# published rate, $n^{1/4}$, does and does not measure.

# %% tags=["parameters"]
radius = 1.2  # the tokens lie in the ball of this radius
copies = 99  # of the second token, in the last section
pushes = 1000  # random ones
seed = 0

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import seaborn as sns
import torch
from myst_nb import glue

from lab import figures
from lipnb import Attention, AttentionJacobian, local_lipschitz
from lipnb.worst_case import gaussian

figures.house_style()
normal = gaussian(torch.Generator().manual_seed(seed))

# %%
A, V = -torch.eye(2).double(), torch.eye(2).double()  # a token looks for its opposite
head = Attention.from_matrices(A, V)
x = radius * torch.tensor([[-1.0, 0.0], [0.8, 0.6]]).double()
J = AttentionJacobian(head, x).dense()  # 4 by 4: two tokens, two coordinates
worst = torch.linalg.svd(J).Vh[0].reshape(2, 2)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-01-push", "caption": "Left: two tokens and the worst push of both. Right: the outputs and how they move. Each token attends mostly to the other one, so each output (square) lies near the other token; diamonds show where both move. The push is drawn long; its factor is {glue:text}`two-gain:.2f`."}, "image": {"alt": "Two tokens far apart in the plane, each with a grey arrow of attention to the other and an orange arrow for its push; beside them the two outputs, whose orange arrows are longer in total."}}
small = 0.3 * worst  # long enough to be seen
gain = ((head(x + small) - head(x)).norm() / small.norm()).item()
constant, P = local_lipschitz(head, x).value.item(), head.probabilities(x)[0]
glue("two-gain", gain, display=False)
glue("two-constant", constant, display=False)
glue("two-drawn", small.norm().item(), display=False)
glue("two-weight", P[0, 1].item(), display=False)
figures.objects.tokens_and_attention(x, head, moved=x + small)
plt.show()

# %% [markdown]
# ## The map
#
# One {term}`attention head` has matrices $Q, K, V$; $Q$ and $K$ have $k$ rows. From tokens $x_1, \dots, x_n$ in $\R^d$
# it computes
#
# $$f(X)_i = V \sum_j P_{ij}\, x_j, \qquad P_{i\cdot} = \softmax_j\big(x_i^\top A^\top x_j\big), \qquad
# A = K^\top Q / \sqrt k .$$
#
# Row $i$ of the {term}`attention matrix` $P$ says how token $i$ distributes its attention; its entries sum to one. Here
# $A = -I$, so a token attends most to what points away from it: token 1 gives token 2 the weight
# {glue:text}`two-weight:.2f`.

# %%
P = (x @ A.T @ x.T).softmax(dim=1)
by_hand = P @ x @ V.T  # the two outputs

# %% [markdown]
# ## The number
#
# A push, and the move of the outputs, is measured by the *Frobenius norm*: the root of the sum of squares over all
# tokens. If one token moves by 1, the norm is 1. If $n$ tokens move by 1 each, it is $\sqrt n$.
#
# {bdg-success}`text of the paper` {ref}`what is this? <badges>`
#
# :::{prf:definition} Local Lipschitz constant ({cite:t}`castin2024smooth`, section 3.1)
# :label: spine-constant
#
# At a {term}`sequence` $X$ of tokens, the {term}`local Lipschitz constant` of a differentiable map $f$ is the norm of
# its {term}`Jacobian` $D_X f$,
#
# $$\Lip_X(f) = \norm{D_X f}_2 = \max_{u \ne 0} \frac{\norm{(D_X f)\,u}_F}{\norm{u}_F} .$$
# :::
#
# A small push $u$ moves the outputs by $(D_X f)\,u$, up to terms of higher order. So the constant is the largest
# singular value of a matrix, and its {term}`singular vector` is the worst push to first order. In
# {numref}`fig-01-push` it has length {glue:text}`two-drawn:.1f` and is amplified
# {glue:text}`two-gain:.2f` times; as it shrinks, the factor tends to {glue:text}`two-constant:.2f`.

# %%
largest = torch.linalg.svdvals(J)[0]
print(f"largest singular value {largest:.4f}, local_lipschitz {local_lipschitz(head, x).value:.4f}")

# %% [markdown]
# ## A random push sees little
#
# Could we push at random and take the largest factor? With two tokens, nearly. Now let {glue:text}`two-copies` tokens
# stand where the second one stands, and push each separately.


# %%
def gains(x):
    """Amplification of random pushes, to first order."""
    u = normal(pushes, *x.shape)
    return AttentionJacobian(head, x).jvp(u).flatten(1).norm(dim=1) / u.flatten(1).norm(dim=1)


crowd = torch.cat([x[:1], x[1:].expand(copies, -1)])

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-01-random", "caption": "Amplification of random pushes (bars) and the constant (line). With two tokens random pushes come close to it; with a hundred they do not."}, "image": {"alt": "Two histograms of amplification. With two tokens the bars reach the vertical line of the constant; with a hundred tokens they stand far to its left."}}
axes = figures.panels(2, width=3.2, height=2.8)
best = []
for ax, tokens, (off, side) in zip(axes, (x, crowd), ((4, "left"), (-4, "right")), strict=True):
    largest, seen = local_lipschitz(head, tokens).value.item(), gains(tokens)
    best.append((seen.max().item() / largest, largest, seen.median().item()))
    sns.histplot(x=seen.numpy(), bins=torch.arange(0, largest + 0.1, 0.05).numpy(), ax=ax, color="C0")
    ax.axvline(largest, color="C1", lw=2.5)
    at = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "ha": side}
    ax.annotate("constant", (largest, 0.9), (off, 0), color="#b34700", **at)
    ax.set(xlabel="amplification", title=f"{len(tokens)} tokens")
for ax in axes:
    ax.set(xlim=(0, 1.08 * best[1][1]))
axes[0].set_ylabel("random pushes")
axes[1].set_ylabel("")
known = {"two-copies": copies, "two-best": 100 * best[0][0], "crowd-best": 100 * best[1][0]}
known |= {"crowd-constant": best[1][1], "crowd-median": best[1][2]}
for key, value in known.items():
    glue(key, value, display=False)
plt.show()

# %% [markdown]
# The best random push reaches {glue:text}`two-best:.0f` % of the constant with two tokens, and
# {glue:text}`crowd-best:.0f` % with a hundred, where the constant is {glue:text}`crowd-constant:.1f` and a typical
# factor is {glue:text}`crowd-median:.1f`. A random vector in many dimensions has little of any one direction.

# %% tags=["hide-input", "nbval-check-output"]
assert torch.allclose(by_hand, head(x), rtol=1e-13)
assert abs(torch.linalg.svdvals(J)[0].item() / constant - 1) < 1e-9
step = 1e-5 * worst
quotient = ((head(x + step) - head(x - step)).norm() / (2 * step.norm())).item()
assert abs(quotient / constant - 1) < 1e-6, "finite differences disagree"
assert max(share for share, *_ in best) <= 1 + 1e-4, "a random push exceeds the constant"
if torch.equal(A, -torch.eye(2).double()) and (radius, copies) == (1.2, 99):  # the page says these of its own values
    assert abs(gain / constant - 1) < 0.15 and P[0, 1] > 0.9, (gain, constant)
    assert 0.9 < best[0][0] <= 1 and best[1][0] < 0.5, "what the captions say of random pushes"
print("✓ checked: the map written by hand; the constant by differences; no random push exceeds it")

# %% [markdown]
# ## What this shows and does not show
#
# - The number belongs to *one input*. The next page asks how large it can be over all inputs in a ball.
# - It is about small pushes and does not say how far a large one carries.
#
# **One thing to try.** Set `A = torch.eye(2).double()`: now each token prefers what resembles it. Is the constant of
# the hundred tokens still larger than that of two?
#
# **Next:** {doc}`02_square_root`.
