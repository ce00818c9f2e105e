# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Self-attention as a map (Definition 2.1)
#
# Self-{term}`attention` sends every {term}`token` to a weighted average of the tokens it sees, times a matrix, and the
# weights depend on the tokens themselves. One such map serves the whole book: the maps of the theorems and the layers
# of the experiments are the same code. {numref}`fig-11-attention` is the {term}`attention matrix` of one
# {term}`attention head` of a pretrained model on a line of text, without and with a {term}`mask <mask (causal)>`,
# computed with this code.

# %% tags=["parameters"]
model_name = "minilm"  # a BERT: it can be masked or not
layer = 2
head = 9
length = 14  # tokens in the window
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
from lipnb import Attention, corpora, models
from lipnb.worst_case import gaussian

figures.house_style()
generator = torch.Generator().manual_seed(seed)
normal = gaussian(generator)
corpus = corpora.available(*texts)
encoder = models.load(model_name, dtype=torch.float64)
decoder = models.load(model_name, dtype=torch.float64, masked=True)
ids = corpora.windows(encoder.token_ids(corpora.read(corpus)), length, count=12)[-1:]
print("text:", corpora.describe(corpus))

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-11-attention", "caption": "The attention matrix $P$ of one pretrained head: row $i$ shows how token $i$ spreads its attention. Most rows put most of their weight on the first token; a word that occurs twice also attends to its other occurrence. The {term}`mask` removes everything above the diagonal, and each row still sums to one."}, "image": {"alt": "Two square grids of shaded cells, one row and one column for each token of a line of text. On the left, without a mask, tokens that occur twice attend to each other. On the right, with a mask, all cells above the diagonal are empty."}}
words = encoder.tokenizer.convert_ids_to_tokens(ids[0])
axes = figures.panels(2, width=4.6, height=4.2)
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

# %% tags=["hide-input"]
swapped = Attention.from_matrices(A.T, V)(x)
glue("page-11-swapped", ((swapped - by_hand).norm() / by_hand.norm()).item(), display=False)
glue("page-11-other", P[0, 1].item(), display=False)
glue("page-11-itself", P[1, 1].item(), display=False)
two = pd.DataFrame({"token": ["first", "second"], "to first": P[:, 0], "to second": P[:, 1]})
two["by hand"] = [f"({a:.4f}, {b:.4f})" for a, b in by_hand.tolist()]
two["by lipnb"] = [f"({a:.4f}, {b:.4f})" for a, b in by_lipnb.tolist()]
figures.table(
    two,
    names={
        "token": "token",
        "to first": "attention to first",
        "to second": "attention to second",
        "by hand": "output by hand",
        "by lipnb": "output by lipnb",
    },
)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-11-two-tokens", "caption": "Two tokens and their outputs. Because $V = I$, attention moves each token to a point of the segment between them, and the token's row of $P$ gives its place there."}, "image": {"alt": "Two tokens in the plane joined by a line. An arrow leads from each to its output, a diamond on that line between the two tokens."}}
ax = plt.subplots(figsize=(4.6, 3.8))[1]
ax.plot(*x.T, color="#b0b0b0", lw=1, zorder=0)
for i, (color, side) in enumerate((("C0", "right"), ("C1", "left"))):
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
# {glue:text}`page-11-itself:.2f` for itself. The transpose in $x_i^\top A^\top x_j$ matters: here $A$ is not symmetric,
# and exchanging queries and keys makes a relative change of {glue:text}`page-11-swapped:.2f` in the output.
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
# $$f(X)_i = V \sum_{j=1}^n P_{ij}\, x_j, \qquad P_{i\cdot} = \softmax_j\big(x_i^\top A^\top x_j\big), \qquad
# A = K^\top Q / \sqrt k .$$
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
    pytorch_errors.append(((ours - theirs).norm() / theirs.norm()).item())
    order = torch.randperm(n, generator=generator)
    for masked, found in ((False, order_errors), (True, order_felt)):
        f = Attention.from_matrices(K.T @ Q / k**0.5, W, masked=masked)
        out = f(tokens)[order]
        found.append(((f(tokens[order]) - out).norm() / out.norm()).item())

# %% [markdown]
# The heads, biases and mask of a pretrained layer become one `Attention`. On the activations that the layer receives in
# the model, it must give what the model itself computes, in all layers, with and without the mask.

# %%
errors = []
for model in (encoder, decoder):
    states = model.module(input_ids=ids, output_hidden_states=True).hidden_states
    for i, rest in enumerate(model.module.encoder.layer):
        ours = model.attention(i, object="block")(model.activations(ids, i))
        following = rest.output(rest.intermediate(ours), ours)  # the model's own feed-forward part
        errors.append(((following - states[i + 1]).norm() / states[i + 1].norm()).item())

# %% tags=["hide-input"]
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
# The differences are {term}`rounding`. So the theorems, which speak of the definition, and the experiments, which run
# pretrained layers, are about one map.
#
# ## Four facts that later pages use
#
# 1. Without a mask, permuting tokens permutes outputs (the map is *permutation equivariant*). With a mask this fails:
#    in the random heads above, another order changed the output by up to {glue:text}`page-11-order:.1f` times its norm.
# 2. A masked output depends on the prefix alone, because the sums stop at $j = i$.
# 3. A key bias changes nothing: it adds the same number to all logits of a row, which the softmax does not see. A query
#    bias adds a number that depends on $j$, and changes the output.
# 4. Integer {term}`token weights` are repeated tokens: equal tokens have equal logits, and the sum has one term for
#    each copy. This is how one map also acts on {term}`measures <measure>` ({doc}`20_measures`).

# %%
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
gaps = {name: ((left - right).norm() / right.norm()).item() for name, (left, right) in facts.items()}

# %% tags=["hide-input"]
told = pd.DataFrame({"fact": gaps.keys(), "gap": gaps.values()})
told["outputs"] = ["equal, up to rounding" if gap < 1e-12 else f"differ by {gap:.2f}" for gap in told.gap]
figures.table(told, names={"fact": "fact", "outputs": "the two outputs (relative difference)"})

# %% tags=["hide-input", "nbval-check-output"]
assert torch.allclose(by_lipnb, by_hand, rtol=1e-13)
expected_equal = {"permutation, unmasked", "prefix, masked", "key bias", "weights as copies"}
assert {name for name, gap in gaps.items() if gap < 1e-12} == expected_equal
assert max(errors) < 1e-10 and max(pytorch_errors) < 1e-12
assert max(order_errors) < 1e-12 and max(order_felt) > 0.1
print("✓ by hand, the four facts, and the layers of the model, with both masks, agree with the map")

# %% tags=["hide-input"]
single = "one head, against PyTorch's own program"
layers = "whole layers, against what the pretrained model computes"
sizes, text = "random heads of any size", f"{model_name}, both masks, a line of text"
id = "castin.def-2.1"
code = {"seen": "released code", "effort": "random"}
said = {"seen": "text of the paper", "effort": "random"}
ledger.record(
    ledger.equal(id, single, pytorch_errors, within=1e-12, grounds=sizes, **code),
    ledger.equal(id, layers, errors, within=1e-10, grounds=text, variant=True, **code),
    ledger.equal(
        "castin.sec-2.1", "outputs in another order, unmasked", order_errors, within=1e-12, grounds=sizes, **said
    ),
)

# %% [markdown]
# ## What this shows and does not show
#
# - It shows that the maps of the theorems and the maps of the experiments are the same code.
# - A masked MiniLM is a pretrained encoder to which we add a causal mask, as the paper does with BERT. It was never
#   trained that way: it has the form of a decoder and need not behave like a trained one.
# - It does not yet say how smooth the map is.
#
# **One thing to try.** Other heads look elsewhere: change `layer` and `head` and see which ones are almost uniform.
#
# **Next:** {doc}`12_local_lipschitz`: how the smoothness of this map is measured.
