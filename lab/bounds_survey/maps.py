"""Attentions outside the library that some bounds apply to: cosine scores, and a sigmoid instead of the softmax."""

import torch


class CosineAttention:
    r"""One head of scaled cosine attention: unit queries, keys and values, up to :math:`\epsilon`.

    .. math:: f(X)_i = \nu \sum_j \mathrm{softmax}_j (\tau\, \hat q_i \cdot \hat k_j)\, \hat v_j, \qquad
        \hat y = y / \sqrt{|y|^2 + \epsilon}

    qi2023lipsformer, as transcribed by others.

    `query`, `key`, `value` (k, d), (k, d), (v, d).
    """

    masked, kind = False, "cosine attention"

    def __init__(self, query, key, value, *, tau=1.0, nu=1.0, eps=1e-2):
        self.query, self.key, self.value, self.tau, self.nu, self.eps = query, key, value, tau, nu, eps

    def __call__(self, x):
        """Output tokens (n, v) of tokens (n, d)."""
        q, k, v = (self._unit(x @ W.mT) for W in (self.query, self.key, self.value))
        return self.nu * (self.tau * q @ k.mT).softmax(-1) @ v

    def _unit(self, y):
        return y / (y.square().sum(-1, keepdim=True) + self.eps).sqrt()


class SigmoidAttention:
    r"""One head of sigmoid attention: rows do not sum to one.

    .. math:: f(X)_i = \sum_j \sigma(x_i^\top A^\top x_j + b)\, V x_j, \qquad \sigma(z) = 1 / (1 + e^{-z})

    ramapuram2024theory.

    `A`, `V` (d, d), (m, d). `bias`: b; - log n is usual.
    """

    masked, kind = False, "sigmoid attention"

    def __init__(self, A, V, *, bias=0.0):
        self.A, self.V, self.bias = A, V, bias

    def __call__(self, x):
        """Output tokens (n, m) of tokens (n, d)."""
        return torch.sigmoid(x @ self.A.mT @ x.mT + self.bias) @ x @ self.V.mT


def softmax(x):
    """The softmax of logits (1, n), as a map of one token."""
    return x.softmax(-1)


softmax.kind = "the softmax"
