# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Self-attention and its Jacobian (Lemma C.2)
#
# Self-{term}`attention` sends every {term}`token` to a weighted average of the tokens it sees, times a matrix, and the
# weights depend on the tokens themselves ({numref}`fig-11-attention`). A pushed token moves the output in three ways:
# through its query, its key and its value. So the {term}`Jacobian` of attention is a sum of three terms, and a few
# matrix products evaluate it. On {glue:text}`page-11-maps` random maps this closed form agrees with automatic
# differentiation to {term}`rounding`. The theorems and the experiments of this book use this same code.

# %% tags=["parameters", "hide-input"]
model_name = "minilm"  # a BERT: it can be masked or not
layer = 2
head = 9
length = 14  # tokens in the window
terms_layer = 0  # the layer whose three terms are measured on text
seed = 0
texts = ["alice", "python_reference"]  # the first that is available is used

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.patches import ConnectionStyle
from myst_nb import glue
from torch.nn.functional import scaled_dot_product_attention

from lab import figures, ledger
from lipnb import Attention, AttentionJacobian, AutodiffJacobian, corpora, local_lipschitz, models
from lipnb.worst_case import gaussian

figures.house_style()
generator = torch.Generator().manual_seed(seed)
normal = gaussian(generator)
corpus = corpora.available(*texts)
encoder = models.load(model_name, dtype=torch.float64)
decoder = models.load(model_name, dtype=torch.float64, masked=True)
ids = corpora.windows(encoder.token_ids(corpora.read(corpus)), length, count=12)[-1:]
print("text:", corpora.describe(corpus))


def relative_error(left, right):
    return ((left - right).norm() / right.norm()).item()


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-11-attention", "caption": "The attention matrix $P$ of one pretrained head: row $i$ shows how token $i$ spreads its attention. Most rows put most of their weight on the first token; a word that occurs twice also attends to its other occurrence. With the mask (below) nothing is left above the diagonal."}, "image": {"alt": "Two square grids of shaded cells, one row and one column for each token of a line of text. Above, without a mask, tokens that occur twice attend to each other. Below, with a mask, all cells above the diagonal are empty."}}
words = encoder.tokenizer.convert_ids_to_tokens(ids[0])
axes = figures.panels(1, rows=2, width=5.2, height=4.4)
for ax, model in zip(axes, (encoder, decoder), strict=True):
    P = model.attention(layer).probabilities(model.activations(ids, layer))[0, head]
    title = f"layer {layer}, head {head}, {'masked' if model.masked else 'unmasked'}"
    figures.probabilities(P, words, ax=ax, title=title)
plt.show()

# %% [markdown]
# ## By hand: two tokens in the plane
#
# With two tokens, each token has two {term}`logits <logit>`, and each row of $P$ has one free number: the weight that a
# token gives to the other one.

# %%
A = torch.tensor([[1.0, 0.5], [0.0, -1.0]], dtype=torch.float64)
V = torch.eye(2, dtype=torch.float64)
x = torch.tensor([[1.0, 0.0], [0.5, 1.0]], dtype=torch.float64)
logits = torch.tensor([[x[i] @ A.T @ x[j] for j in range(2)] for i in range(2)])
P = logits.exp() / logits.exp().sum(dim=1, keepdim=True)
by_hand = P @ x @ V.T
by_lipnb = Attention.from_matrices(A, V)(x)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-11-two-tokens", "caption": "Two tokens and their outputs. Because $V = I$, attention moves each token to a point of the segment between them, and the token's row of $P$ gives its place there."}, "image": {"alt": "Two tokens in the plane joined by a line. An arrow leads from each to its output, a diamond on that line between the two tokens."}}
swapped = Attention.from_matrices(A.T, V)(x)
glue("page-11-swapped", relative_error(swapped, by_hand), display=False)
glue("page-11-other", P[0, 1].item(), display=False)
glue("page-11-itself", P[1, 1].item(), display=False)
ax = plt.subplots(figsize=(4.6, 3.8))[1]
ax.plot(*x.T, color="#b0b0b0", lw=1, zorder=0)
for i, (color, side) in enumerate((("C3", "right"), ("C6", "left"))):
    ax.scatter(*x[i], s=130, color=color, zorder=2)
    ax.annotate(f"$x_{i + 1}$", x[i], (0, -18 if i == 0 else 9), textcoords="offset points", ha="center", color=color)
    bow = {"arrowstyle": "->", "color": color, "lw": 1.6, "connectionstyle": ConnectionStyle("Arc3", rad=-0.4)}
    ax.annotate("", by_hand[i], x[i], arrowprops=bow)
    ax.scatter(*by_hand[i], s=70, marker="D", color=color, zorder=3)
    shift = (14 if side == "left" else -14, -6 if i else 6)
    ax.annotate(f"$f(X)_{i + 1}$", by_hand[i], shift, textcoords="offset points", ha=side, va="center", color=color)
ax.set(xlim=(0, 1.6), ylim=(-0.25, 1.25), xlabel="first coordinate", ylabel="second coordinate")
ax.set_aspect("equal")
plt.show()

# %% [markdown]
# The first token gives {glue:text}`page-11-other:.2f` of its attention to the second; the second keeps
# {glue:text}`page-11-itself:.2f` for itself. The outputs of `lipnb` are the same to {term}`rounding`. The transpose in
# $x_i^\top A^\top x_j$ matters: to exchange queries and keys changes the output by
# {glue:text}`page-11-swapped:.2f` of its norm.
#
# ## The definition
#
# {bdg-info}`released code` {ref}`what is this? <badges>`
#
# :::{prf:definition} Self-attention {cite}`castin2024smooth`, Def. 2.1, 2.2 and 2.5
# :label: self-attention
#
# One head with matrices $Q, K \in \R^{k \times d}$ and $V$ sends a {term}`sequence` of tokens
# $x_1, \dots, x_n \in \R^d$, without a mask, to
#
# $$\begin{aligned} f(X)_i &= V \sum_{j=1}^n P_{ij}\, x_j, \\
#   P_{i\cdot} &= \softmax_j\big(x_i^\top A^\top x_j\big), \\
#   A &= K^\top Q / \sqrt k . \end{aligned}$$
#
# Several heads are summed, each after its output matrix: $f(X) = \sum_h W^{(h)} f^{(h)}(X)$. Masked attention lets
# token $i$ see only $j \le i$: $f^m(X)_i = f(x_1, \dots, x_i)_i$.
# :::
#
# ## Measured: PyTorch's attention, and a pretrained model's
#
# PyTorch has its own attention, which shares no code with ours. We send a hundred random heads through both.

# %%
pytorch_errors, order_errors, order_felt = [], [], []
for _ in range(100):
    d, k, n = torch.randint(1, 9, (3,), generator=generator).tolist()
    Q, K, W, tokens = normal(k, d), normal(k, d), normal(k, d), normal(n, d)
    ours = Attention.from_matrices(K.T @ Q / k**0.5, W)(tokens)
    theirs = scaled_dot_product_attention(tokens @ Q.T, tokens @ K.T, tokens @ W.T)
    pytorch_errors.append(relative_error(ours, theirs))
    order = torch.randperm(n, generator=generator)
    for masked, found in ((False, order_errors), (True, order_felt)):
        f = Attention.from_matrices(K.T @ Q / k**0.5, W, masked=masked)
        out = f(tokens)[order]
        found.append(relative_error(f(tokens[order]), out))

# %% [markdown]
# The heads, biases and mask of a pretrained layer become one `Attention`. On the activations that the layer receives,
# it must give the output of the model, in all layers, with and without the mask.

# %% tags=["hide-input"]
errors = []
for model in (encoder, decoder):
    states = model.module(input_ids=ids, output_hidden_states=True).hidden_states
    for i, rest in enumerate(model.module.encoder.layer):
        ours = model.attention(i, object="block")(model.activations(ids, i))
        following = rest.output(rest.intermediate(ours), ours)  # the model's own feed-forward part
        errors.append(relative_error(following, states[i + 1]))
glue("page-11-order", max(order_felt), display=False)
compared = pd.DataFrame(
    [
        ("random heads", "PyTorch's attention", len(pytorch_errors), max(pytorch_errors)),
        ("layers of the model, both masks", "the model's next states", len(errors), max(errors)),
    ],
    columns=["ours", "against", "cases", "error"],
)
figures.table(
    compared,
    names={"ours": "ours", "against": "against", "cases": "cases", "error": "largest relative difference"},
    digits=1,
)

# %% [markdown]
# The differences are rounding. So the definition of the theorems and the pretrained layers are the same map.
#
# ## Four facts that later pages use
#
# 1. Without a mask, permuting tokens permutes outputs (the map is *permutation equivariant*). With a mask it does not:
#    in the random heads above, another order changed the output by up to {glue:text}`page-11-order:.1f` times its norm.
# 2. A masked output depends on the prefix alone.
# 3. A key bias changes nothing: it adds the same number to all logits of a row, which the softmax does not see. A query
#    bias adds a number that depends on $j$, and changes the output.
# 4. Integer {term}`token weights` are repeated tokens: equal tokens have equal logits, and the sum has one term for
#    each copy. So the map also acts on {term}`measures <measure>` ({doc}`20_measures`).

# %% tags=["hide-input"]
query, key, value, output = (normal(3, *shape) for shape in [(4, 8), (4, 8), (4, 8), (8, 4)])
bias, tokens = normal(3, 4), normal(7, 8)
plain = Attention(query, key, value, output)
masked = Attention(query, key, value, output, masked=True)
shuffle = torch.randperm(7, generator=generator)
copies = torch.tensor([1, 2, 3, 1, 1, 2, 1])
repeated = plain(tokens.repeat_interleave(copies, 0))[copies.cumsum(0) - 1]
facts = {
    "permutation, unmasked": (plain(tokens[shuffle]), plain(tokens)[shuffle]),
    "permutation, masked": (masked(tokens[shuffle]), masked(tokens)[shuffle]),
    "prefix, masked": (masked(tokens)[:4], masked(tokens[:4])),
    "key bias": (Attention(query, key, value, output, key_bias=bias)(tokens), plain(tokens)),
    "query bias": (Attention(query, key, value, output, query_bias=bias)(tokens), plain(tokens)),
    "weights as copies": (plain(tokens, copies.double()), repeated),
}
gaps = {name: relative_error(left, right) for name, (left, right) in facts.items()}
told = pd.DataFrame({"fact": gaps.keys(), "gap": gaps.values()})
told["outputs"] = ["equal, up to rounding" if gap < 1e-12 else f"differ by {gap:.2f}" for gap in told.gap]
figures.table(told, names={"fact": "fact", "outputs": "the two outputs (relative difference)"})


# %% [markdown]
# ## The derivative: query, key and value
#
# Push the two tokens from above. The block $J_{ij}$ says how output $i$ moves when token $j$ is pushed. A diagonal
# block is the sum of three terms, any other block the sum of two.


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


terms = three_terms(A, V, x)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-11-terms", "caption": "The first token is pushed along the first axis. Its own output moves by three terms (above); the other output (below) has no query term, because its query did not move. The terms add up as vectors and may cancel."}, "image": {"alt": "Two panels of arrows. In each, coloured arrows for the terms are joined tip to tail and a dashed arrow leads from the first start to the last tip. The panel of output 1 has three terms, that of output 2 has no query term."}}
push = torch.tensor([1.0, 0.0]).double()
for i, ax in enumerate(figures.panels(1, rows=2, width=5.2, height=2.9)):
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
# {bdg-warning}`reconstructed` {ref}`what is this? <badges>`
#
# :::{prf:theorem} Jacobian of one head {cite}`castin2024smooth`, Lemma C.2
# :label: jacobian-closed-form
#
# Let $f$ be one head without a mask or biases, $f(X)_i = V m_i$ with $m_i = \sum_j P_{ij} x_j$, and let
# $\Sigma_i = \sum_j P_{ij} (x_j - m_i)(x_j - m_i)^\top$. At every $X$ and for every $\varepsilon$,
#
# $$\begin{aligned} &(D_X f)(\varepsilon)_i = V\Big[\Sigma_i A\,\varepsilon_i \\
#   &\quad + \sum_j P_{ij} (x_j - m_i)(A x_i)^\top \varepsilon_j \\
#   &\quad + \sum_j P_{ij}\,\varepsilon_j\Big]. \end{aligned}$$
#
# With a mask the sums stop at $j = i$ (Lemma D.1). With biases, $A x_i$ becomes $A x_i + K^\top b_Q/\sqrt k$
# (Lemma E.2). With token weights only $P$ changes (Lemma C.6).
# :::
#
# In the first term, token $i$ shifts its attention because its *query* moved; in the second, because the *key* of token
# $j$ moved; in the third, the *value* of token $j$ moves the average.


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-11-blocks", "caption": "The Jacobian of one head at four tokens of width six, in blocks: rows are output tokens, columns are input tokens. A diagonal block has one more term, from the token's own query; it need not be the largest of its row. With the mask (below) the blocks above the diagonal are zero."}, "image": {"alt": "Two coloured square matrices, each divided into four by four blocks. Below, with a mask, the blocks above the diagonal are empty."}}
axes = figures.panels(1, rows=2, width=4.8, height=3.9)
shown = gaussian(torch.Generator().manual_seed(seed))
wide, four = shown(6, 6) / 2, shown(4, 6)
diagonal_leads = []
for ax, masked in zip(axes, (False, True), strict=True):
    J = AttentionJacobian(Attention.from_matrices(wide, torch.eye(6).double(), masked=masked), four).dense()
    norm = torch.linalg.matrix_norm(J, 2)
    title = f"{'masked' if masked else 'unmasked'}, largest singular value {norm:.2f}"
    figures.matrix(J, ax=ax, block=(6, 6), title=title, label="entry of the Jacobian")
    sizes = J.reshape(4, 6, 4, 6).square().sum((1, 3))
    diagonal_leads.append((sizes.argmax(1) == torch.arange(4)).all().item())
plt.show()


# %% [markdown]
# ## The closed form, measured against automatic differentiation
#
# Sizes, heads, masks, biases, output projections and weights are drawn at random. For each map the closed form and
# autograd must give the same products $J\varepsilon$ (`jvp`) and $J^\top w$ (`vjp`), and the two must be transposes
# of each other. `gram` combines both into $J^\top J u$, and the solvers need nothing else. With token weights $a$,
# $D_a^{1/2} J D_a^{-1/2}$ takes the place of $J$.


# %% tags=["hide-input"]
def random_case(case):
    """Map number `case` with its tokens; the bits of the number are its options."""
    h, k, d, v, m, n = torch.randint(1, 9, (6,), generator=generator).tolist()
    projected, biased, masked, weighted = (bool(case >> bit & 1) for bit in range(4))
    query, key, value = (normal(h, k, d), normal(h, k, d), normal(h, v, d))
    output = normal(h, m, v) if projected else None
    biases = {"query_bias": normal(h, k), "value_bias": normal(h, v)}
    f = Attention(query, key, value, output, masked=masked, **(biases if biased else {}))
    return f, normal(n, d), normal(n).exp() if weighted else None


hand, closed_form, autograd = [], [], []
for case in [(A, V, x), (normal(2, 2), normal(2, 2), normal(2, 2))]:
    f = Attention.from_matrices(*case[:2])
    hand.append(sum(three_terms(*case).values()).permute(0, 2, 1, 3).reshape(4, 4))
    closed_form.append(AttentionJacobian(f, case[2]).dense())
    autograd.append(torch.func.jacrev(f)(case[2]).reshape(4, 4))
blocks = [relative_error(*pair) for other in (closed_form, autograd) for pair in zip(hand, other, strict=True)]

# %% tags=["hide-input"]
rows = []
for case in range(200):
    f, y, weights = random_case(case)
    closed = AttentionJacobian(f, y, weights)
    twin = AutodiffJacobian(lambda z, f=f, weights=weights: f(z, weights), y)
    u, w = normal(*y.shape), normal(len(y), f.output_width)
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
products = pd.DataFrame(rows, columns=["jvp", "vjp", "gram", "adjoint"])
glue("page-11-maps", len(products), display=False)
meaning = ["J ε against autograd", "Jᵀ w against autograd", "Jᵀ J u against autograd", "J and Jᵀ are transposes"]
worst = pd.DataFrame({"meaning": meaning, "largest": products.max().tolist()})
figures.table(worst, names={"meaning": "what is compared", "largest": "largest relative difference"}, digits=1)

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
# In a layer of a pretrained model we let only the queries move with the tokens, or only the keys, or only the values.
# The Jacobian of such a map is one of the three terms.


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


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-11-real-text", "caption": "Norms of the three terms and of their sum on real text, one window for each length. The key term is the largest at each length, no term is negligible, and the norm of the whole is about half the sum of the three."}, "image": {"alt": "Four curves against the sequence length, one for the norm of each term and one for the norm of the whole Jacobian, on one layer of a pretrained model."}}
token_ids, attention = encoder.token_ids(corpora.read(corpus)), encoder.attention(terms_layer)
parts = []
for n in (4, 8, 16, 32, 64):
    y = encoder.activations(corpora.windows(token_ids, n, 1), terms_layer)[0]
    norms = {part: local_lipschitz(only(part, attention, y), y).value.item() for part in ("query", "key", "value")}
    parts.append({"n": n, **norms, "all three": local_lipschitz(attention, y).value.item()})
parts = pd.DataFrame(parts)
ax = plt.subplots(figsize=(6.4, 3.8))[1]
looks = {"query": ("C0", "o-", -9), "key": ("C1", "s-", 6), "value": ("C2", "^-", 5), "all three": ("C6", "D--", 0)}
for part, (color, style, up) in looks.items():
    ax.plot(parts.n, parts[part], style, color=color)
    end = parts.n.iloc[-1], parts[part].iloc[-1]
    ax.annotate(part, end, (9, up), textcoords="offset points", color=color, va="center")
ax.set(xscale="log", xlabel="sequence length n", ylabel="spectral norm", xlim=(3.6, 110), ylim=(0, None))
ax.set_title(f"{encoder.name} layer {terms_layer}")
ax.set_xticks(parts.n, parts.n)
ax.minorticks_off()
plt.show()

# %% tags=["hide-input", "nbval-check-output"]
assert torch.allclose(by_lipnb, by_hand, rtol=1e-13)
expected_equal = {"permutation, unmasked", "prefix, masked", "key bias", "weights as copies"}
assert {name for name, gap in gaps.items() if gap < 1e-12} == expected_equal
assert max(errors) < 1e-10 and max(pytorch_errors) < 1e-12
assert max(order_errors) < 1e-12 and max(order_felt) > 0.1
print("✓ by hand, the four facts, and the layers of the model, with both masks, agree with the map")
assert max(blocks) < 1e-13
assert (
    products.jvp.max() < 1e-10
    and products.vjp.max() < 1e-10
    and products.gram.max() < 1e-10
    and products.adjoint.max() < 1e-12
)
assert not all(diagonal_leads), "the caption says that a diagonal block need not lead its row"
total = parts[["query", "key", "value"]].sum(axis=1)
largest = parts[["query", "key", "value"]].max(axis=1)
assert (parts["all three"] <= total * (1 + 1e-3)).all()
if terms_layer == 0 and corpus == "alice":  # the caption says these of the layer and the text that the page shows
    assert (parts.key == largest).all() and (parts["all three"] < 0.6 * total).all()
print(f"  {len(products)} random maps: closed form and autograd agree; the three terms add up")

# %% tags=["hide-input"]
single = "one head, against PyTorch's own program"
layers = "whole layers, against what the pretrained model computes"
sizes, text = "random heads of any size", f"{model_name}, both masks, a line of text"
id = "castin.def-2.1"
code = {"seen": "released code", "effort": "random"}
said = {"seen": "text of the paper", "effort": "random"}
form, options = "the closed form is the derivative", "with masks, biases, weights"
ground = f"blocks by hand and {len(products)} random maps against autograd"
both = [*products.jvp, *products.vjp, *products.gram]
plain = [*blocks, *products.jvp[::16], *products.vjp[::16]]  # every 16th has no option
known = {"seen": "reconstructed", "effort": "random", "grounds": ground}
first = known | {
    "grounds": f"blocks by hand and {len(products.jvp[::16])} random maps without options, against autograd"
}
ledger.record(
    ledger.equal(id, single, pytorch_errors, within=1e-12, grounds=sizes, **code),
    ledger.equal(id, layers, errors, within=1e-10, grounds=text, variant=True, **code),
    ledger.equal(
        "castin.sec-2.1", "outputs in another order, unmasked", order_errors, within=1e-12, grounds=sizes, **said
    ),
    ledger.equal("castin.lem-c.2", form, plain, within=1e-12, **first),
    ledger.equal("castin.lem-c.2", options, both, within=1e-10, variant=True, **known),
)

# %% [markdown]
# ## What this shows and does not show
#
# - The maps of the theorems and of the experiments are the same code, and the closed form is the derivative of this
#   map, with all options, to rounding.
# - A masked MiniLM is a pretrained encoder with a causal mask added, as the paper does with BERT. It was not trained
#   that way, and need not behave like a trained decoder.
# - Which term is largest may differ on other layers and texts; one {term}`window` for each length is an illustration.
#   Speed is the subject of {doc}`../book/solver`.
#
# **One thing to try.** In the downloaded notebook, set `terms_layer = 3` in the cell *parameters*: is the query term or
# the value term the largest there?
#
# **Next:** {doc}`12_local_lipschitz`: how the smoothness of this map is measured.
