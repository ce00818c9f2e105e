# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Where do tokens live? On an ellipsoid
#
# The bounds ask for a radius: all tokens in a ball $B_R$. A transformer provides one. Layer normalisation puts every
# token on one ellipsoid, whatever the text. This page computes its radius for real layers, and takes the ellipsoid out
# of the way altogether by changing the matrices of attention.
#
# :::{prf:theorem} Normalised tokens {cite}`castin2024smooth`, section 2.3
# :label: normalised-tokens
#
# LayerNorm $x \mapsto \gamma \odot \frac{x - m_x}{\sigma_x} + \beta$, with the mean and standard deviation of the
# entries of $x \in \R^d$, sends tokens to an ellipsoid with centre $\beta$ and half-axes $\sqrt d\, \abs{\gamma_k}$. So
# all tokens have norm at most
#
# $$R \le \sqrt d\, \max_k \abs{\gamma_k} + \abs{\beta} .$$
#
# RMSNorm $x \mapsto \sqrt d\, \gamma \odot x / \abs{x}$ is absorbed by attention: with unit tokens
# $u_i = x_i / \abs{x_i}$,
#
# $$f_{A, V}(\mathrm{RMS}(X)) = f_{\tilde A, \tilde V}(U), \qquad \tilde A = d\, \diag(\gamma)\, A \diag(\gamma),
#   \quad \tilde V = \sqrt d\, V \diag(\gamma) .$$
# :::
#
# *Proof.* $z = (x - m_x)/\sigma_x$ has $\abs{z}^2 = d$, and $\abs{\gamma \odot z} \le \max_k \abs{\gamma_k} \abs{z}$.
# For RMSNorm, the logit of $\sqrt d\, \gamma \odot u_i$ and $\sqrt d\, \gamma \odot u_j$ is
# $d\, u_i^\top \diag(\gamma) A^\top \diag(\gamma)\, u_j$. $\square$
#
# :::{prf:theorem} LayerNorm, exactly (ours)
# :label: layer-norm-exactly
#
# Let $C = I - \frac1d \mathbf 1 \mathbf 1^\top$, $G = \sqrt d\, \diag(\gamma)\, C$ and $u = Cx / \abs{Cx}$. LayerNorm
# is $x \mapsto G u + \beta$.
#
# 1. Attention absorbs it, as matrices *and biases*: $Q$ becomes $Q G$ with the bias $b_Q + Q \beta$, and likewise for
#    keys and values.
# 2. With eigenvalues $h_k$ of $G^\top G$ and coordinates $g_k$ of $G^\top \beta$ in its eigenvectors, the largest norm
#    $R_*$ of a token is given by the formula below, and $R_* \le \sqrt d\, \max_k \abs{\gamma_k} + \abs{\beta}$.
#
# $$R_*^2 = \abs{\beta}^2 + \min_{\lambda > h_{\max}} \Big(\lambda + \sum_k \frac{g_k^2}{\lambda - h_k}\Big)$$
# :::
#
# *Proof.* 1 is $Q (G u + \beta) + b_Q$. For 2, let $\abs u \le 1$ and $\lambda > h_{\max}$. Then
# $\abs{G u + \beta}^2 \le \abs{G u + \beta}^2 + \lambda (1 - \abs{u}^2)$, a concave quadratic in $u$ whose maximum, at
# $u = (\lambda I - G^\top G)^{-1} G^\top \beta$, is $\abs{\beta}^2$ plus the bracket. At the minimum over $\lambda$
# this $u$ is a unit vector (or, if the sum stays bounded at $h_{\max}$, becomes one by adding a top eigenvector), and
# it is orthogonal to $\mathbf 1$ because $G \mathbf 1 = 0$. So it is a token, and the bound is attained. $\square$

# %% tags=["parameters"]
model_name = "minilm"
length, count = 64, 8  # tokens in a window, windows
texts = ["alice", "python_reference"]  # the first that is available is used
noise_tokens = 256  # for GPT-2, which has no text here
seed = 0

# %% tags=["hide-input"]
import math

import matplotlib.pyplot as plt
import pandas as pd
import torch
from scipy.optimize import brentq
from torch.nn.functional import layer_norm

from lab import figures, ledger
from lipnb import Attention, bounds, corpora, local_lipschitz, models
from lipnb.worst_case import gaussian

figures.house_style()
generator = torch.Generator().manual_seed(seed)
normal = gaussian(generator)

# %% [markdown]
# ## By hand: three entries
#
# Subtract the mean, divide by the standard deviation, stretch, shift.

# %%
x = torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64)
gain, shift = x.new_tensor([1.0, 0.6, 1.5]), x.new_tensor([0.4, 0.0, -0.3])
z = (x - x.mean()) / (x - x.mean()).square().mean().sqrt()
by_hand = gain * z + shift
print("z =", z.numpy().round(4), "with squares adding up to", z.square().sum().numpy())
print("token by hand", by_hand.numpy().round(4))
by_torch = layer_norm(x, (3,), gain, shift, eps=0)
print("by torch     ", by_torch.numpy().round(4))
bound = math.sqrt(3) * gain.abs().max() + shift.norm()
print(f"norm {by_hand.norm():.4f}, bound {bound:.4f}")


# %% [markdown]
# ## The largest norm of a token
#
# One root of one increasing function gives $R_*$, and the input that reaches it.


# %%
def centred_gain(gain):
    """The matrix G of LayerNorm with this gain, shape (d, d)."""
    d = len(gain)
    return math.sqrt(d) * gain[:, None] * (torch.eye(d, dtype=gain.dtype) - 1 / d)


def largest_token(gain, shift):
    """Largest norm of G u + shift over unit vectors u, and where it is."""
    G = centred_gain(gain)
    h, basis = torch.linalg.eigh(G.T @ G)
    g = basis.T @ (G.T @ shift)
    low, high = h[-1].item() * (1 + 1e-12), h[-1].item() + g.norm().item() + 1e-9
    root = brentq(lambda t: 1 - (g / (t - h)).square().sum().item(), low, high)
    u = basis @ (g / (root - h))
    return (G @ u + shift).norm().item(), u


# %%
reached, never_above, simple, package = [], [], [], []
for d in (3, 4, 8, 32, 128) * 8:
    g, b = normal(d).exp() * normal(d).sign(), 2 * normal(d)
    largest, u = largest_token(g, b)
    package.append(abs(bounds.layer_norm_radius(g, b) / largest - 1))
    reached.append(layer_norm(u, (d,), g, b, eps=0).norm().item() / largest - 1)
    tokens = layer_norm(normal(2000, d), (d,), g, b, eps=0)
    never_above.append(tokens.norm(dim=1).max().item() / largest)
    simple.append(largest / (math.sqrt(d) * g.abs().max() + b.norm()).item())
print(f"{len(reached)} gains and shifts: R* is reached up to {max(map(abs, reached)):.0e}")
print(f"random tokens come up to {max(never_above):.4f} R*")
print(f"R* is between {min(simple):.2f} and {max(simple):.2f} of the simple bound")
print(f"lipnb.bounds.layer_norm_radius gives the same up to {max(package):.0e}")

# %% [markdown]
# ## Absorbed, on random heads
#
# Attention after the norm, against attention of unit tokens with the changed matrices.


# %%
def absorb(f, G, shift):
    """Attention of u that equals attention `f` of G u + shift."""
    changed = {"output": f.output, "output_bias": f.output_bias}
    for name in ("query", "key", "value"):
        matrix, bias = getattr(f, name), getattr(f, f"{name}_bias")
        changed[name] = matrix @ G
        changed[f"{name}_bias"] = matrix @ shift + (0 if bias is None else bias)
    return Attention(**changed, scale=f.scale, masked=f.masked)


def centred_units(x):
    """Tokens less their mean entry, divided by their norm."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / centred.norm(dim=-1, keepdim=True)


# %%
rms_errors, norm_errors = [], []
for _ in range(100):
    d, n = torch.randint(2, 12, (2,), generator=generator).tolist()
    A, V, x, g, b = normal(d, d) / d, normal(d, d), normal(n, d), normal(d), normal(d)
    units = x / x.norm(dim=1, keepdim=True)
    plain = Attention.from_matrices(A, V)(math.sqrt(d) * g * units)
    changed = d * g[:, None] * A * g, math.sqrt(d) * V * g
    absorbed = Attention.from_matrices(*changed)(units)
    rms_errors.append(((absorbed - plain).norm() / plain.norm()).item())
    heads = (normal(2, 3, d), normal(2, 3, d), normal(2, 3, d), normal(2, d, 3))
    f = Attention(*heads, query_bias=normal(2, 3), value_bias=normal(2, 3))
    plain = f(layer_norm(x, (d,), g, b, eps=0))
    absorbed = absorb(f, centred_gain(g), b)(centred_units(x))
    norm_errors.append(((absorbed - plain).norm() / plain.norm()).item())
print(f"RMSNorm {max(rms_errors):.0e}, LayerNorm {max(norm_errors):.0e} (relative)")

# %% [markdown]
# ## The norm has a derivative, too
#
# Section 2.3 bounds the constant of $f \circ \mathrm{RMSNorm}$ "by directly applying" the bounds to
# $f_{\tilde A, \tilde V}$ at unit tokens. The step from $x_i$ to $u_i$ has the derivative
# $(I - u_i u_i^\top) / \abs{x_i}$, of norm $1 / \abs{x_i}$. So by the chain rule
#
# $$\Lip_X(f \circ \mathrm{RMSNorm}) \le \frac{\Lip_U(f_{\tilde A, \tilde V})}{\min_i \abs{x_i}},$$
#
# and for LayerNorm, with the standard deviation $\sigma_i$ of the entries of $x_i$ and $\abs{\gamma_k} \le g$, the
# factor is $g / \min_i \sigma_i$. Without the factor, tokens shorter than 1 break the bound: one token in the plane
# with $A = 0$, $\tilde V = I$ has the constant $1 / \abs x$, and Theorem 3.3 says $\sqrt 3$. Random heads and tokens of
# all sizes, the norm differentiated with the rest:

# %%
composed = []
for _ in range(200):
    d, n = torch.randint(2, 7, (2,), generator=generator).tolist()
    A, V, g = normal(d, d), normal(d, d), normal(d)
    x = 10 ** normal(1) * normal(n, d)
    f = Attention.from_matrices(A, V)
    units = x / x.norm(dim=1, keepdim=True)
    absorbed = d * g[:, None] * A * g, math.sqrt(d) * V * g

    def after(y, f=f, g=g, d=d):
        return f(math.sqrt(d) * g * y / y.norm(dim=1, keepdim=True))

    J = torch.func.jacrev(after)(x).reshape(n * d, n * d)
    norm = torch.linalg.matrix_norm(J, 2).item()
    shortest = x.norm(dim=1).min().item()
    at_units = local_lipschitz(Attention.from_matrices(*absorbed), units, method="dense")
    local = norm * shortest / at_units.value.item()
    bound = bounds.general_upper(*absorbed, n, 1.0)
    composed.append((norm / bound, norm * shortest / bound, local))
composed = pd.DataFrame(composed, columns=["no factor", "factor", "factor, local"])
print(composed.max().round(4).to_string())

# %% [markdown]
# ## Real layers
#
# What each attention of MiniLM receives on a text comes out of a LayerNorm. Its radius beside both bounds; how far
# the tokens lie from the ellipsoid; and the layer's attention against the absorbed one on unit vectors. The *logit
# range* is the number $\norm{A}_2 R^2$ of the worst head, on which all bounds depend: with the simple radius, and
# absorbed, $\norm{\tilde A}_2$, where the radius is 1 and what was $\beta$ is in the biases.


# %%
def widest_range(f):
    """Largest spectral norm of A over the heads, from triangular factors."""
    query, key = (torch.linalg.qr(w.mT, mode="r").R for w in (f.query, f.key))
    return abs(f.scale) * torch.linalg.matrix_norm(key @ query.mT, 2).max().item()


def radii(f, gain, shift):
    """The simple bound, the exact radius, and the logit range before and after absorption."""
    simple = (math.sqrt(len(gain)) * gain.abs().max() + shift.norm()).item()
    row = {"simple bound": simple, "exact R*": bounds.layer_norm_radius(gain, shift)}
    absorbed = widest_range(absorb(f, centred_gain(gain), shift))
    return row | {"logit range": widest_range(f) * simple**2, "range absorbed": absorbed}


def two_hypotheses(f, tokens, gain, shift):
    """Distances from the shift and lengths of A x, over what the norm alone says."""
    r = math.sqrt(len(gain)) * gain.abs().max()
    slopes = torch.einsum("hkd,hke,bne->hbnd", f.key, f.query, tokens).norm(dim=-1)
    widest = widest_range(f) * bounds.layer_norm_radius(gain, shift)
    lengths = (tokens - shift).norm(dim=-1).max() / r, abs(f.scale) * slopes.max() / widest
    return [length.item() for length in lengths]


# %%
model = models.load(model_name, dtype=torch.float64)
corpus = corpora.available(*texts)
ids = corpora.windows(model.token_ids(corpora.read(corpus)), length, count)
network = model.network
norms = [network.embeddings.LayerNorm, *(a.output.LayerNorm for a in network.encoder.layer)]
real, measured, off, layer_errors, hypotheses = [], {}, [], [], []
for layer, norm in enumerate(norms[:-1]):
    f, tokens = model.attention(layer), model.activations(ids, layer)
    z = (tokens - norm.bias) / norm.weight
    off += [(z.norm(dim=-1) / math.sqrt(model.width) - 1).abs().max().item()]
    off += [(z.sum(-1).abs() / math.sqrt(model.width)).max().item()]
    changed = absorb(f, centred_gain(norm.weight), norm.bias)(centred_units(z))
    layer_errors.append(((changed - f(tokens)).norm() / f(tokens).norm()).item())
    measured[layer] = tokens.norm(dim=-1).flatten()
    hypotheses += two_hypotheses(f, tokens, norm.weight, norm.bias)
    row = {"layer": layer, "mean": measured[layer].mean().item()}
    row |= {"max": measured[layer].max().item()}
    real.append(row | radii(f, norm.weight, norm.bias))
real = pd.DataFrame(real)
print(f"{model.name}, {ids.numel()} tokens of: {corpora.describe(corpus)}")
print(real.round(1).to_string(index=False))
print(f"off the ellipsoid by {max(off):.0e}; absorbed layers {max(layer_errors):.0e}")

# %% [markdown]
# GPT-2 normalises before attention. If its attention weights are available, the same for its layers: radii from
# the true gains and shifts, and Gaussian noise, because the rest of the network is not there to read text.

# %%
gpt2, noise = pd.DataFrame(), {}
try:
    layers = models.load_attention(models.gpt2_attention_folder())
except FileNotFoundError as absent:
    print(f"MiniLM only: {absent}")
else:
    for i, layer in enumerate(layers):
        noise[i] = layer.noise(noise_tokens, seed=seed + i).norm(dim=1)
    gpt2 = pd.DataFrame(
        {"layer": i, "noise max": noise[i].max().item()} | radii(*layer) for i, layer in enumerate(layers)
    )
    print("GPT-2 (124M), noise in place of text")
    print(gpt2.round(1).to_string(index=False))
    share = gpt2["noise max"] / gpt2["exact R*"]
    print(f"noise max over R*: {share.iloc[0]:.2f} in layer 0, at most {share.iloc[1:].max():.2f} beyond")
print(f"text max over R*: {(real['max'] / real['exact R*']).min():.2f} or more")

# %% tags=["hide-input"]
groups = [(f"{model.name}, {corpus}", real, measured), ("GPT-2, noise", gpt2, noise)]
groups = [group for group in groups if len(group[1])]
figure = plt.figure(figsize=(8.4, 3.0 * len(groups)))
ax = figure.add_subplot(1, 2, 1, projection="3d")
sphere = normal(900, 3)
sphere = math.sqrt(3) * gain * sphere / sphere.norm(dim=1, keepdim=True) + shift
ellipse = layer_norm(normal(200, 3), (3,), gain, shift)
ax.scatter(*sphere.T, s=2, color="#b0b0b0", label="RMSNorm and shift")
ax.scatter(*ellipse.T, s=7, color="#d55e00", label="LayerNorm")
ax.set(title="d = 3: same gain, same shift", box_aspect=(1, 0.7, 1.3))
ax.legend(loc="lower center", bbox_to_anchor=(0.5, -0.12), ncols=2, markerscale=2)
for place, (title, rows, norms_of) in enumerate(groups):
    ax = figure.add_subplot(len(groups), 2, 2 * place + 2)
    look = {"whis": (0, 100), "widths": 0.5, "manage_ticks": False}
    ax.boxplot([norms_of[i].numpy() for i in rows.layer], positions=rows.layer, **look)
    for name, style in (("simple bound", "s-"), ("exact R*", "D-")):
        colour = {"s-": "#d55e00", "D-": "#0072b2"}[style]
        ax.plot(rows.layer, rows[name], style, color=colour, label=name)
    ax.set(title=title, xlabel="layer", ylabel="norm of a token", ylim=(0, 37))
    ax.set_xticks(rows.layer[:: 1 + len(rows) // 8])
    ax.legend(loc="upper left", ncols=2)
plt.show()

# %% [markdown]
# *Left: normalised tokens in three dimensions. RMSNorm fills the ellipsoid; LayerNorm, which also subtracts the mean,
# reaches only an ellipse on it. Right: norms of the tokens that each attention receives (box: quartiles, whiskers: all
# of them) below the radius that any text can reach.*
#
# Real tokens come near the radius, so the balls of the theorems are the right size within a factor of two or so. Beyond
# GPT-2's first layer noise does not come near: in high dimension it meets no long axis of the ellipsoid. (The
# shares are printed above.)

# %% tags=["nbval-check-output"]
assert torch.allclose(by_hand, by_torch)
assert max(package) < 1e-9
assert max(map(abs, reached)) < 1e-9 and max(never_above) < 1 + 1e-12 and max(simple) <= 1
assert max(rms_errors) < 1e-12 and max(norm_errors) < 1e-11
assert composed[["factor", "factor, local"]].max().max() <= 1 + 1e-9
assert composed["no factor"].max() > 1 and max(hypotheses) <= 1
assert max(off) < 1e-8 and max(layer_errors) < 1e-8
assert (real["max"] <= real["exact R*"]).all()
assert (real["exact R*"] <= real["simple bound"]).all()
assert (real["max"] > real["simple bound"] / 2).all()
assert (real["range absorbed"] < real["logit range"]).all()
if len(gpt2):
    assert (gpt2["noise max"] <= gpt2["exact R*"]).all()
    assert (gpt2["range absorbed"] < gpt2["logit range"]).all()
print(f"{len(real)} layers: tokens on the ellipsoid, below both radii, above half of them")
print("RMSNorm and LayerNorm are absorbed")

# %%
id, after_norm = "castin.sec-2.3", "castin.sec-2.3-norm"
said, read, own = ({"seen": seen, "effort": "proved"} for seen in
                   ("text of the paper", "reconstructed", "ours"))  # fmt: skip
text, sizes = "tokens of all layers of MiniLM on text", "random heads, tokens of all sizes"
sharp = [*never_above, *real["max"] / real["exact R*"]]
hand = "one token, A = 0: any |x| < 1 / sqrt(3)"
# fmt: off
ledger.record(
    ledger.equal(id, "tokens on the ellipsoid", off, within=1e-8, grounds=text, **said),
    ledger.upper(id, "R <= sqrt(d) max gamma + |beta|", real["max"] / real["simple bound"],
                 grounds=text, **read),
    ledger.equal(id, "RMSNorm absorbed", rms_errors, within=1e-12, grounds="random heads",
                 **read),
    ledger.equal(id, "LayerNorm absorbed, with biases", [*norm_errors, *layer_errors],
                 within=1e-8, grounds=f"random heads; {text}", **own),
    ledger.upper(id, "exact largest norm R*", sharp, grounds=f"random gains; {text}", **own),
    ledger.upper(after_norm, "the bound at unit tokens, as it is", composed["no factor"],
                 counter_example=hand, grounds=sizes, **read | {"effort": "random"}),
    ledger.upper(after_norm, "over the shortest token (ours)", composed["factor, local"],
                 grounds=sizes, **own),
    ledger.upper("castin.rem-c.3", "r = sqrt(d) max gamma about beta, |A x| <= |A| R*",
                 hypotheses, grounds=text, **said),
)
# fmt: on

# %% [markdown]
# ## What this shows and does not show
#
# - The radius of a normalised layer is a number of the layer, known before any text. $R_*$ is the smallest such number.
# - Absorbing the norm makes the logit range smaller than the simple radius suggests, because large gains and large
#   entries of $A$ need not meet. It is then the range for *unit* tokens.
# - The constant in the original tokens also counts the norm itself, a factor of $1 / \min_i \abs{x_i}$. Without that
#   factor, section 2.3 of the paper as we read it fails at short tokens. We have its text without formulas: if its
#   bound carries the factor, this page says nothing against it.
# - Query biases matter to the bounds ({doc}`27_biases`), and absorbing a shift creates them.
# - A fresh network has $\gamma = 1$ and $\beta = 0$: every token has norm $\sqrt d$.
# - In the last layers of GPT-2 the long axes are there, but without its other weights we cannot say whether its text
#   uses them.
# - The small number $\varepsilon$ in $\sigma_x$ moves tokens inside the ellipsoid, here by less than $10^{-8}$.
#
# **One thing to try.** Which entries of $\gamma$ make $R$? Clip the largest one and look at the simple bound and $R_*$.
#
# **Next:** {doc}`20_measures`, attention as a map of measures.
