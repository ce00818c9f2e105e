# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The Jacobian in closed form (Lemma C.2)
#
# A pushed {term}`token` moves the output in three ways: through its query, its key and its value. So the
# {term}`Jacobian` of {term}`attention` is a sum of three terms, in a closed form that costs a few matrix products and
# needs no automatic differentiation. It agrees with automatic differentiation to {term}`rounding`, on
# {glue:text}`page-13-maps` random maps, with and without a {term}`mask`, biases, an output matrix and weights.

# %% tags=["parameters"]
model_name = "minilm"
layer = 0
seed = 0
texts = ["alice", "python_reference"]  # the first that is available is used

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import pandas as pd
import torch
from myst_nb import glue

from lab import figures, ledger
from lipnb import Attention, AttentionJacobian, AutodiffJacobian, corpora, local_lipschitz, models
from lipnb.worst_case import gaussian

figures.house_style()
generator = torch.Generator().manual_seed(seed)
normal = gaussian(generator)


def relative_error(left, right):
    return ((left - right).norm() / right.norm()).item()


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-13-blocks", "caption": "The Jacobian of one head at four tokens of width six, in blocks: rows are output tokens, columns are input tokens. A diagonal block has one more term, from the token's own query; such a block need not be the largest of its row. The mask empties the blocks above the diagonal, so that an output depends on its own and earlier tokens only."}, "image": {"alt": "Two coloured square matrices, each divided into four by four blocks. On the right, with a mask, the blocks above the diagonal are empty."}}
axes = figures.panels(2, width=4.4, height=3.8)
shown = gaussian(torch.Generator().manual_seed(seed))
A, V, x = shown(6, 6) / 2, torch.eye(6).double(), shown(4, 6)
diagonal_leads = []
for ax, masked in zip(axes, (False, True), strict=True):
    J = AttentionJacobian(Attention.from_matrices(A, V, masked=masked), x).dense()
    norm = torch.linalg.matrix_norm(J, 2)
    title = f"{'masked' if masked else 'unmasked'}, largest singular value {norm:.2f}"
    figures.matrix(J, ax=ax, block=(6, 6), title=title, label="entry of the Jacobian")
    sizes = J.reshape(4, 6, 4, 6).square().sum((1, 3))
    diagonal_leads.append((sizes.argmax(1) == torch.arange(4)).all().item())
plt.show()

# %% [markdown]
# ## By hand: two tokens in the plane
#
# Two tokens give four blocks $J_{ij}$: how output $i$ moves when token $j$ is pushed. A diagonal block is the sum of
# three terms, any other the sum of two. The tokens and $A$ are those of {doc}`11_self_attention`, with $V = I$.


# %%
def three_terms(A, V, x):
    """The blocks [i, j] of each term of the Jacobian of one head at two tokens."""
    P = (x @ A.T @ x.T).softmax(dim=1)
    m = P @ x
    value, key, query = torch.zeros(3, 2, 2, 2, 2, dtype=torch.float64)
    for i in range(2):
        covariance = sum(P[i, j] * torch.outer(x[j] - m[i], x[j] - m[i]) for j in range(2))
        query[i, i] = V @ covariance @ A
        for j in range(2):
            key[i, j] = V @ (P[i, j] * torch.outer(x[j] - m[i], A @ x[i]))
            value[i, j] = V * P[i, j]
    return {"value": value, "key": key, "query": query}


A = torch.tensor([[1.0, 0.5], [0.0, -1.0]], dtype=torch.float64)
x = torch.tensor([[1.0, 0.0], [0.5, 1.0]], dtype=torch.float64)
terms = three_terms(A, torch.eye(2).double(), x)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-13-terms", "caption": "The first token is pushed along the first axis. Its own output moves by three terms; the output of the other token has no query term, because the query that makes it did not move. The terms add up as vectors and may cancel."}, "image": {"alt": "Two panels of arrows. In each, coloured arrows for the terms are joined tip to tail and a dashed arrow leads from the first start to the last tip. The panel of output 1 has three terms, that of output 2 has no query term."}}
push = torch.tensor([1.0, 0.0]).double()
for i, ax in enumerate(figures.panels(2, width=4.6, height=3.2)):
    place = torch.zeros(2).double()
    for (name, term), color in zip(terms.items(), ("C2", "C1", "C0"), strict=True):
        move = term[i, 0] @ push
        if move.norm() > 0:
            ax.annotate("", place + move, place, arrowprops={"arrowstyle": "->", "color": color, "lw": 2.5})
            side = (0, 8) if name == "value" else (8, -4)
            look = {"ha": "center" if name == "value" else "left", "color": color, "textcoords": "offset points"}
            ax.annotate(name, place + move / 2, side, **look)
        place = place + move
    ax.annotate("", place, (0, 0), arrowprops={"arrowstyle": "->", "color": "black", "ls": "--"})
    ax.annotate("all together", place / 2, (-4, -14), textcoords="offset points", ha="right")
    ax.set(title=f"output {i + 1}, for a unit push of token 1", xlim=(-0.1, 1.05), ylim=(-0.45, 0.15))
    ax.set(xlabel="first coordinate", ylabel="second coordinate")
    ax.set_aspect("equal")
plt.show()

# %% [markdown]
# ## The statement
#
# {bdg-warning}`reconstructed` {ref}`what is this? <badges>`
#
# :::{prf:theorem} Jacobian of one head {cite}`castin2024smooth`, Lemma C.2
# :label: jacobian-closed-form
#
# Let $f$ be one head without a mask or biases, $f(X)_i = V m_i$ with $m_i = \sum_j P_{ij} x_j$, and let
# $\Sigma_i = \sum_j P_{ij} (x_j - m_i)(x_j - m_i)^\top$. At every $X$ and for every $\varepsilon$,
#
# $$(D_X f)(\varepsilon)_i = V\Big[\Sigma_i A\,\varepsilon_i
#   + \sum_j P_{ij} (x_j - m_i)(A x_i)^\top \varepsilon_j + \sum_j P_{ij}\,\varepsilon_j\Big].$$
#
# With a mask the sums stop at $j = i$ (Lemma D.1). With biases, $A x_i$ becomes $A x_i + K^\top b_Q/\sqrt k$
# (Lemma E.2). With token weights only $P$ changes (Lemma C.6).
# :::
#
# In the first term, token $i$ shifts its attention because its *query* moved; in the second, because the *key* of token
# $j$ moved; in the third, the *value* of token $j$ moves what is averaged.
#
# ## Measured against automatic differentiation
#
# Sizes, heads, masks, biases, output projections and weights are drawn at random. For each map the closed form and
# autograd must give the same products $J\varepsilon$ (`jvp`) and $J^\top w$ (`vjp`), and the two must be transposes of
# each other. `gram` is both in one, $J^\top J u$, and all that the solvers need. With {term}`token weights` $a$ it is
# the product in the norm they define, with $D_a^{1/2} J D_a^{-1/2}$ for $J$.


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


# %% tags=["hide-input"]
by_hand, by_lipnb, by_autograd = [], [], []
for case in [(A, torch.eye(2).double(), x), (normal(2, 2), normal(2, 2), normal(2, 2))]:
    f = Attention.from_matrices(*case[:2])
    by_hand.append(sum(three_terms(*case).values()).permute(0, 2, 1, 3).reshape(4, 4))
    by_lipnb.append(AttentionJacobian(f, case[2]).dense())
    by_autograd.append(torch.func.jacrev(f)(case[2]).reshape(4, 4))
blocks = [relative_error(*pair) for other in (by_lipnb, by_autograd) for pair in zip(by_hand, other, strict=True)]

# %% tags=["hide-input"]
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
glue("page-13-maps", len(errors), display=False)

# %% tags=["hide-input"]
meaning = ["J ε against autograd", "Jᵀ w against autograd", "Jᵀ J u against autograd", "J and Jᵀ are transposes"]
worst = pd.DataFrame({"product": errors.columns, "meaning": meaning, "largest": errors.max().tolist()})
figures.table(
    worst,
    names={"product": "product", "meaning": "what is compared", "largest": "largest relative difference"},
    digits=1,
)

# %% [markdown]
# ::::{dropdown} Proof
# :::{prf:proof}
# The logit $\ell_{ij} = (A x_i)^\top x_j$ moves by
# $\dot\ell_{ij} = x_j^\top A \varepsilon_i + (A x_i)^\top \varepsilon_j$.
#
# The softmax moves by $\dot P_{ij} = P_{ij} \big(\dot\ell_{ij} - \sum_l P_{il} \dot\ell_{il}\big)$.
#
# So $\dot m_i = \sum_j P_{ij} \varepsilon_j + \sum_j \dot P_{ij} x_j
# = \sum_j P_{ij} \varepsilon_j + \sum_j P_{ij} (x_j - m_i)\, \dot\ell_{ij}$:
# this is the value term and a second part, which splits in two.
#
# The part of $\dot\ell_{ij}$ with $\varepsilon_j$ gives the key term.
#
# The part with $\varepsilon_i$ gives $\sum_j P_{ij} (x_j - m_i)\, x_j^\top A \varepsilon_i = \Sigma_i A \varepsilon_i$,
# because $\sum_j P_{ij} (x_j - m_i) = 0$ allows $x_j - m_i$ in place of the second $x_j$.
#
# A mask fixes some $P_{ij}$ at 0; a query bias changes $A x_i$ in $\ell_{ij}$; weights change $P$ alone. The steps stay
# the same.
# :::
# ::::
#
# ## Which of the three terms matters on real text?
#
# On a layer of a pretrained model, we let only the queries move with the tokens, or only the keys, or only the values.
# The Jacobian of such a map is one of the three terms, and its norm can be measured.


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
parts = []
for n in (4, 8, 16, 32, 64):
    x = model.activations(corpora.windows(token_ids, n, 1), layer)[0]
    norms = {part: local_lipschitz(only(part, attention, x), x).value.item() for part in ("query", "key", "value")}
    parts.append({"n": n, **norms, "all three": local_lipschitz(attention, x).value.item()})
parts = pd.DataFrame(parts)

# %% tags=["hide-input"]
print("text:", corpora.describe(corpus))
figures.table(
    parts,
    names={
        "n": "tokens n",
        "query": "query term",
        "key": "key term",
        "value": "value term",
        "all three": "whole Jacobian",
    },
)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-13-real-text", "caption": "Norms of the three terms and of their sum on real text, one {term}`window` for each length. The key term is the largest at each length, no term is negligible, and the norm of the whole is about half the sum of the three."}, "image": {"alt": "Four curves against the sequence length, one for the norm of each term and one for the norm of the whole Jacobian, on one layer of a pretrained model."}}
ax = plt.subplots(figsize=(6.4, 3.8))[1]
for part, look in zip(("query", "key", "value", "all three"), ("C0o-", "C1s-", "C2^-", "kD--"), strict=True):
    ax.plot(parts.n, parts[part], look, label=part)
ax.set(xscale="log", xlabel="sequence length n", ylabel="norm", ylim=(0, None), title=f"{model.name} layer {layer}")
ax.legend(loc="lower right", ncols=2)
ax.set_xticks(parts.n, parts.n)
ax.minorticks_off()
plt.show()

# %% tags=["hide-input", "nbval-check-output"]
assert max(blocks) < 1e-13
assert (
    errors.jvp.max() < 1e-10 and errors.vjp.max() < 1e-10 and errors.gram.max() < 1e-10 and errors.adjoint.max() < 1e-12
)
assert not all(diagonal_leads), "the caption says that a diagonal block need not lead its row"
total = parts[["query", "key", "value"]].sum(axis=1)
largest = parts[["query", "key", "value"]].max(axis=1)
assert (parts["all three"] <= total * (1 + 1e-3)).all()
if layer == 0 and corpus == "alice":  # the caption says these of the layer and the text that the page shows
    assert (parts.key == largest).all() and (parts["all three"] < 0.6 * total).all()
print(f"✓ {len(errors)} random maps: closed form and autograd agree; the three terms add up")

# %% tags=["hide-input"]
form, options = "the closed form is the derivative", "with masks, biases, weights"
ground = f"blocks by hand and {len(errors)} random maps against autograd"
both = [*errors.jvp, *errors.vjp, *errors.gram]
plain = [*blocks, *errors.jvp[::16], *errors.vjp[::16]]  # every 16th has no option
known = {"seen": "reconstructed", "effort": "random", "grounds": ground}
first = known | {"grounds": f"blocks by hand and {len(errors.jvp[::16])} random maps without options, against autograd"}
ledger.record(
    ledger.equal("castin.lem-c.2", form, plain, within=1e-12, **first),
    ledger.equal("castin.lem-c.2", options, both, within=1e-10, variant=True, **known),
)

# %% [markdown]
# ## What this shows and does not show
#
# - It shows that the closed form is the derivative, with these options, to rounding.
# - Which term is largest may differ on other layers and texts; one {term}`window` for each length is an illustration.
# - It says nothing about speed: {doc}`../book/solver` counts the operations and gives the times.
#
# **One thing to try.** Set `layer = 3`: is the query term or the value term the largest there?
#
# **Next:** {doc}`14_normalisation`.
