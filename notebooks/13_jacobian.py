# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The Jacobian of attention, in closed form
#
# Moving one token changes the output in three ways. This page writes them down, draws them for a few tokens, and
# compares the products that the solvers use with automatic differentiation.
#
# :::{prf:theorem} Jacobian of one head {cite}`castin2024smooth`, Lemma C.2
# :label: jacobian-closed-form
#
# With $m_i = \sum_j P_{ij} x_j$ and $\Sigma_i = \sum_j P_{ij} (x_j - m_i)(x_j - m_i)^\top$,
#
# $$(D_X f)(\varepsilon)_i = V\Big[\Sigma_i A\,\varepsilon_i
#   + \sum_j P_{ij} (x_j - m_i)(A x_i)^\top \varepsilon_j + \sum_j P_{ij}\,\varepsilon_j\Big].$$
#
# With a mask the sums stop at $j = i$ (Lemma D.1). With biases, $A x_i$ becomes $A x_i + K^\top b_Q/\sqrt k$
# (Lemma E.2). With token weights only $P$ changes (Lemma C.6).
# :::
#
# The first term is token $i$ looking elsewhere because its *query* moved; the second, token $i$ looking elsewhere
# because the *key* of token $j$ moved; the third, the *value* of token $j$ moving what is averaged.

# %% tags=["parameters"]
model_name = "minilm"
layer = 0
seed = 0
texts = ["alice", "python_reference"]  # the first that is available is used

# %% tags=["hide-input"]
import pandas as pd
import torch

from lab import figures, ledger
from lipnb import Attention, AttentionJacobian, AutodiffJacobian, corpora, local_lipschitz, models
from lipnb.worst_case import gaussian

figures.house_style()
generator = torch.Generator().manual_seed(seed)
normal = gaussian(generator)


def relative_error(left, right):
    return ((left - right).norm() / right.norm()).item()


# %% [markdown]
# ## By hand: two tokens in the plane
#
# The blocks $J_{ij}$ (rows of output token $i$, columns of input token $j$), each the sum of the three terms:

# %%
A, V, x = normal(2, 2), normal(2, 2), normal(2, 2)
P = (x @ A.T @ x.T).softmax(dim=1)
m = P @ x
blocks = torch.zeros(2, 2, 2, 2, dtype=torch.float64)  # i, j, then the two by two block
for i in range(2):
    covariance = sum(P[i, j] * torch.outer(x[j] - m[i], x[j] - m[i]) for j in range(2))
    for j in range(2):
        key, value = (P[i, j] * torch.outer(x[j] - m[i], A @ x[i]), P[i, j] * torch.eye(2).double())
        blocks[i, j] = V @ ((covariance @ A if i == j else 0) + key + value)
by_hand = blocks.permute(0, 2, 1, 3).reshape(4, 4)

# %%
f = Attention.from_matrices(A, V)
by_lipnb, by_autograd = (AttentionJacobian(f, x).dense(), torch.func.jacrev(f)(x).reshape(4, 4))
print(by_hand.numpy().round(4))
print(
    f"against lipnb {relative_error(by_hand, by_lipnb):.0e}, against autograd "
    f"{relative_error(by_hand, by_autograd):.0e}"
)

# %% [markdown]
# ## Products against autograd, over every option
#
# Sizes, heads, masks, biases, output projections and weights at random: 200 maps. For each, the closed form and
# autograd must give the same products, and the two products must be transposes of each other. `gram` is both in one,
# $J^\top J u$: it applies $W_O^\top W_O$ once in place of $W_O$ twice, writes into buffers made once, and is all that
# the solvers ask for. With token weights it is the product in the norm they define, $D_a^{1/2} J D_a^{-1/2}$ for $J$.


# %%
def random_case(case):
    """Map number `case` with its tokens; the bits of the number are its options."""
    h, k, d, v, m, n = torch.randint(1, 9, (6,), generator=generator).tolist()
    projected, biased, masked, weighted = (bool(case >> bit & 1) for bit in range(4))
    query, key, value = (normal(h, k, d), normal(h, k, d), normal(h, v, d))
    output = normal(h, m, v) if projected else None
    biases = {"query_bias": normal(h, k), "value_bias": normal(h, v)}
    f = Attention(query, key, value, output, masked=masked, **(biases if biased else {}))
    return f, normal(n, d), normal(n).exp() if weighted else None


# %%
rows = []
for case in range(200):
    f, x, weights = random_case(case)
    closed = AttentionJacobian(f, x, weights)
    twin = AutodiffJacobian(lambda y, f=f, weights=weights: f(y, weights), x)
    u, w = normal(*x.shape), normal(len(x), f.output_width)
    left, right = (closed.jvp(u) * w).sum(), (u * closed.vjp(w)).sum()
    root = 1 if weights is None else weights.sqrt()[:, None]
    both = twin.vjp(root**2 * twin.jvp(u / root)) / root
    rows.append(
        (
            relative_error(closed.jvp(u), twin.jvp(u)),
            relative_error(closed.vjp(w), twin.vjp(w)),
            relative_error(closed.gram(u), both),
            ((left - right).abs() / (closed.jvp(u).norm() * w.norm())).item(),
        )
    )
errors = pd.DataFrame(rows, columns=["jvp", "vjp", "gram", "adjoint"])

# %%
print(errors.max().map("{:.0e}".format).to_string())

# %% [markdown]
# ## What the blocks look like
#
# Four tokens of width six, with and without the mask.

# %% tags=["hide-input"]
axes = figures.panels(2, width=4.4, height=3.8)
A, V, x = normal(6, 6) / 2, torch.eye(6).double(), normal(4, 6)
for ax, masked in zip(axes, (False, True), strict=True):
    J = AttentionJacobian(Attention.from_matrices(A, V, masked=masked), x).dense()
    norm = torch.linalg.matrix_norm(J, 2)
    title = f"{'masked' if masked else 'unmasked'}, largest singular value {norm:.2f}"
    figures.matrix(J, ax=ax, block=(6, 6), title=title, label="entry of the Jacobian")

# %% [markdown]
# *The Jacobian of one head at four tokens, in blocks of six: rows are outputs, columns are inputs. A diagonal
# block has one term more, the move of the token's own query; it need not be the largest of its row. The mask empties
# the blocks above the diagonal.*
#
# ## Which of the three terms matters on real text?
#
# On a layer of a pretrained model, let only the queries move with the tokens, or only the keys, or only the
# values: each of the three terms is then the whole Jacobian, and has a norm of its own.


# %%
def only(part, attention, x):
    """The map in which only one of query, key and value moves away from `x`."""

    def f(y):
        query, key, value = (
            moved if name == part else still
            for name, moved, still in zip(
                ("query", "key", "value"), attention.project(y), attention.project(x), strict=True
            )
        )
        return attention.combine(attention.probabilities_of(query, key) @ value)

    return f


# %%
corpus = corpora.available(*texts)
model = models.load(model_name)
token_ids, attention = model.token_ids(corpora.read(corpus)), model.attention(layer)
terms = []
for n in (4, 8, 16, 32, 64):
    x = model.activations(corpora.windows(token_ids, n, 1), layer)[0]
    norms = {part: local_lipschitz(only(part, attention, x), x).value.item() for part in ("query", "key", "value")}
    terms.append({"n": n, "all three": local_lipschitz(attention, x).value.item(), **norms})
terms = pd.DataFrame(terms)
print("text:", corpora.describe(corpus))
print(terms.round(3).to_string(index=False))

# %%
ax = terms.plot(x="n", logx=True, marker="o")
ax.set(xlabel="sequence length n", ylabel="norm", ylim=(0, None), title=f"{model.name} layer {layer}")
ax.set_xticks(terms.n, terms.n)
ax.minorticks_off()
# %% [markdown]
# *Norms of the three terms and of their sum on real text, one window for each length. The sum is at most what the
# three add up to, and at least what the largest leaves after the other two.*

# %% tags=["nbval-check-output"]
assert relative_error(by_hand, by_lipnb) < 1e-13 and relative_error(by_hand, by_autograd) < 1e-13
assert (
    errors.jvp.max() < 1e-10 and errors.vjp.max() < 1e-10 and errors.gram.max() < 1e-10 and errors.adjoint.max() < 1e-12
)
total = terms[["query", "key", "value"]].sum(axis=1)
largest = terms[["query", "key", "value"]].max(axis=1)
assert (terms["all three"] <= total * (1 + 1e-3)).all()
assert (terms["all three"] >= (2 * largest - total) * (1 - 1e-3)).all()
print(f"{len(errors)} random maps: closed form and autograd agree; the three terms add up")

# %%
blocks = [relative_error(by_hand, by_lipnb), relative_error(by_hand, by_autograd)]
form, options = "the closed form is the derivative", "with masks, biases, weights"
ground = "blocks by hand and 200 random maps against autograd"
both = [*errors.jvp, *errors.vjp, *errors.gram]
plain = [*blocks, *errors.jvp[::16], *errors.vjp[::16]]  # every 16th has no option
known = {"seen": "reconstructed", "effort": "random", "grounds": ground}
ledger.record(
    ledger.equal("castin.lem-c.2", form, plain, within=1e-12, **known),
    ledger.equal("castin.lem-c.2", options, both, within=1e-10, variant=True, **known),
)

# %% [markdown]
# ## What this shows and does not show
#
# - It shows that the closed form is the derivative, with every option, to rounding.
# - Which term leads depends on the layer and on the text; one window for each length is a look, not a law.
# - It says nothing of speed: {doc}`../book/solver` counts the operations, {doc}`77_solver_speed` measures.
#
# **One thing to try.** Set `layer = 3`: do the queries or the values lead there?
#
# **Next:** {doc}`14_normalisation`, where the tokens of a transformer live.
