# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Self-attention, the map
#
# One map serves the whole book. This page writes it down, computes it by hand on two tokens, and checks that what
# we take out of a pretrained model is the model's own attention.
#
# :::{prf:definition} Self-attention {cite}`castin2024smooth`, Def. 2.1, 2.2 and 2.5
# :label: self-attention
#
# One head with matrices $Q, K \in \R^{k \times d}$ and $V$ sends tokens $x_1, \dots, x_n \in \R^d$ to
#
# $$f(X)_i = V \sum_j P_{ij}\, x_j, \qquad P_{i\cdot} = \softmax_j\big(x_i^\top A^\top x_j\big), \qquad
# A = K^\top Q / \sqrt k .$$
#
# Several heads are summed after output matrices: $f(X) = \sum_h W^{(h)} f^{(h)}(X)$. Masked attention lets token
# $i$ see only $j \le i$: $f^m(X)_i = f(x_1, \dots, x_i)_i$.
# :::

# %% tags=["parameters"]
model_name = "minilm"
layer = 2
head = 9
length = 14  # tokens in the window
seed = 0
texts = ["alice", "python_reference"]  # the first that is available is used

# %% tags=["hide-input"]
import torch
from torch.nn.functional import scaled_dot_product_attention

from lab import figures, ledger
from lipnb import Attention, corpora, models
from lipnb.worst_case import gaussian

figures.house_style()
generator = torch.Generator().manual_seed(seed)
normal = gaussian(generator)

# %% [markdown]
# ## By hand: two tokens in the plane
#
# With $n = 2$ the softmax has one free number for each token: how much it looks at the other one.

# %%
A = torch.tensor([[1.0, 0.5], [0.0, -1.0]], dtype=torch.float64)
V = torch.eye(2, dtype=torch.float64)
x = torch.tensor([[1.0, 0.0], [0.5, 1.0]], dtype=torch.float64)
logits = torch.tensor([[x[i] @ A.T @ x[j] for j in range(2)] for i in range(2)])
P = logits.exp() / logits.exp().sum(dim=1, keepdim=True)
by_hand = P @ x @ V.T
print("P =", P.numpy().round(4).tolist())
print("f(X) by hand   ", by_hand.numpy().round(4).tolist())
print("f(X) by lipnb  ", Attention.from_matrices(A, V)(x).numpy().round(4).tolist())

# %% [markdown]
# The transpose in $x_i^\top A^\top x_j$ matters: here $A$ is not symmetric, and exchanging $Q$ and $K$ gives
# another map.

# %%
swapped = Attention.from_matrices(A.T, V)(x)
change = (swapped - by_hand).norm() / by_hand.norm()
print(f"exchanging Q and K changes the output by {change:.2f} (relative)")

# %% [markdown]
# PyTorch has its own attention, which shares no code with ours. A hundred random heads through both, written as $A$ and
# $V$ for ours. The same tokens in another order give the same outputs in that order: attention is *permutation
# equivariant*. With a mask it is not.

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
        found.append(((f(tokens[order]) - f(tokens)[order]).norm() / ours.norm()).item())
print(f"largest relative difference {max(pytorch_errors):.0e}")
print(f"other order: unmasked at most {max(order_errors):.0e}, ", end="")
print(f"masked up to {max(order_felt):.1f} (relative)")

# %% [markdown]
# ## Four facts that later pages use
#
# 1. Without a mask, permuting tokens permutes outputs. With a mask it does not.
# 2. A masked output depends on the prefix alone.
# 3. A key bias changes nothing; a query bias does.
# 4. Integer weights are repeated tokens. This is how one map also acts on measures.

# %%
query, key, value, output = (normal(3, *shape) for shape in [(4, 8), (4, 8), (4, 8), (8, 4)])
bias, tokens = normal(3, 4), normal(7, 8)
plain = Attention(query, key, value, output)
masked = Attention(query, key, value, output, masked=True)
shuffle = torch.randperm(7, generator=generator)
copies = torch.tensor([1, 2, 3, 1, 1, 2, 1])
repeated = plain(tokens.repeat_interleave(copies, 0))[copies.cumsum(0) - 1]

# %%
facts = {
    "permutation, unmasked": (plain(tokens[shuffle]), plain(tokens)[shuffle]),
    "permutation, masked": (masked(tokens[shuffle]), masked(tokens)[shuffle]),
    "prefix, masked": (masked(tokens)[:4], masked(tokens[:4])),
    "key bias": (Attention(query, key, value, output, key_bias=bias)(tokens), plain(tokens)),
    "query bias": (Attention(query, key, value, output, query_bias=bias)(tokens), plain(tokens)),
    "weights as copies": (plain(tokens, copies.double()), repeated),
}
gaps = {name: ((left - right).norm() / right.norm()).item() for name, (left, right) in facts.items()}
for name, gap in gaps.items():
    print(f"{name:22s} {'equal' if gap < 1e-12 else f'differs by {gap:.2f}'}")

# %% [markdown]
# ## Taken out of a pretrained model
#
# The heads, biases and mask of a layer become one `Attention`. On the activations that the layer really receives, it
# must give what the model itself computes, in all layers, with and without the mask.

# %%
corpus = corpora.available(*texts)
encoder = models.load(model_name, dtype=torch.float64)
decoder = models.load(model_name, dtype=torch.float64, masked=True)
ids = corpora.windows(encoder.token_ids(corpora.read(corpus)), length, count=12)[-1:]
print("text:", corpora.describe(corpus))
errors = []
for model in (encoder, decoder):
    states = model.network(input_ids=ids, output_hidden_states=True).hidden_states
    for i, rest in enumerate(model.network.encoder.layer):
        ours = model.attention(i, object="block")(model.activations(ids, i))
        following = rest.output(rest.intermediate(ours), ours)  # the model's own feed-forward part
        errors.append(((following - states[i + 1]).norm() / states[i + 1].norm()).item())
print(f"worst relative difference from the model's next states: {max(errors):.0e}")

# %% tags=["hide-input"]
words = encoder.tokenizer.convert_ids_to_tokens(ids[0])
axes = figures.panels(2, width=4.6, height=4.2)
for ax, model in zip(axes, (encoder, decoder), strict=True):
    P = model.attention(layer).probabilities(model.activations(ids, layer))[0, head]
    title = f"layer {layer}, head {head}, {'masked' if model.masked else 'unmasked'}"
    figures.probabilities(P, words, ax=ax, title=title)

# %% [markdown]
# *Attention probabilities $P_{ij}$ of one pretrained head on a line of text: row $i$ is how token $i$ spreads its
# attention. Look for words that occur twice. The mask removes everything above the diagonal, and each row sums to
# one again.*

# %% tags=["nbval-check-output"]
assert torch.allclose(Attention.from_matrices(A, V)(x), by_hand, rtol=1e-13)
expected_equal = {"permutation, unmasked", "prefix, masked", "key bias", "weights as copies"}
assert {name for name, gap in gaps.items() if gap < 1e-12} == expected_equal
assert max(errors) < 1e-10 and max(pytorch_errors) < 1e-12
assert max(order_errors) < 1e-12 and max(order_felt) > 0.1
print(f"by hand, the four facts, and {len(errors)} layers of the model agree with the map")

# %%
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
# - It shows that the maps of the theorems and the maps of the experiments are one and the same code.
# - A masked MiniLM is a pretrained encoder with a causal mask put on, as the paper does with BERT. It was never
#   trained that way, so it stands for the shape of a decoder, not for a good one.
# - It does not say yet how smooth the map is.
#
# **One thing to try.** Other heads look elsewhere: change `layer` and `head` and see which ones are almost uniform.
#
# **Next:** {doc}`12_local_lipschitz`, how its smoothness is measured.
