# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Two clusters of tokens
#
# Tokens at $R$ and at $-R$ on a line, $m$ of them on each side, and attention with $A = V = 1$: how large is its local
# Lipschitz constant? NumPy alone, so that a sweep of hundreds of points takes minutes. Swept by `quick.yml`.

# %% tags=["parameters"]
radius = 1.0
tokens = 4  # on both sides together

# %%
import numpy as np

from lipnb.sweeps import record

# %% [markdown]
# The Jacobian of $x_i \mapsto \sum_j P_{ij} x_j$, with $P$ the softmax of the rows of $x x^\top$.

# %%
x = radius * np.repeat([1.0, -1.0], tokens // 2)
logits = np.outer(x, x)
P = np.exp(logits - logits.max(1, keepdims=True))
P /= P.sum(1, keepdims=True)
mean = P @ x
variance = P @ x**2 - mean**2
J = P + P * (x[None] - mean[:, None]) * x[:, None] + np.diag(variance)

# %%
lipschitz = np.linalg.norm(J, 2)
record(lipschitz=lipschitz, variance=variance[0])
