"""A character-level Transformer with four kinds of attention, small enough to train on a processor.

Each layer returns its trained attention as an `lipnb.Attention`, so that trained maps can be measured
(kim2021lipschitz, the language model).
"""

import math

import torch
from torch.nn.functional import scaled_dot_product_attention

from lab.invertible import ContractiveFeedForward, largest_singular_value
from lipnb import bounds
from lipnb.attention import Attention

__all__ = ["ATTENTIONS", "DIVIDED", "WITHOUT", "CausalHeads", "CharacterTransformer"]

ATTENTIONS = ("dot", "l2-untied", "l2-tied", "contractive")
WITHOUT = ("none", "none-contractive")  # controls: attention deleted from the first and from the last kind
DIVIDED = "l2-divided"  # a control: tied and divided by its bound like the last kind, otherwise like the first
STRENGTH = 0.9  # c in x + c f(x), for f with a Lipschitz constant of at most 1


def _matrix(rows, columns):
    """A matrix uniform in plus or minus one over the root of the number of columns, as in torch.nn.Linear."""
    return torch.nn.Parameter(torch.empty(rows, columns).uniform_(-1, 1) / math.sqrt(columns))


class CausalHeads(torch.nn.Module):
    r"""Causal multi-head attention with trained matrices and without biases, as a fast module.

    Squared distances are products with one more column,
    :math:`-s |q_i - k_j|^2 = (2 s q_i, 1) \cdot (k_j, -s |k_j|^2) - s |q_i|^2`, and the last term has no effect.

    Parameters
    ----------
    kind : {"dot", "l2-untied", "l2-tied", "contractive", "l2-divided"}
        Dot products; squared distances, with separate keys or keys tied to the queries; or (the last two) tied, and
        divided by the bound on the Lipschitz constant at `length` tokens (`lipnb.bounds.l2_upper`, p = 2), for all
        weights.
    width, heads : int
        d and h; each head has d / h rows.
    length : int
        Largest number of tokens.

    Notes
    -----
    kim2021lipschitz, L2 and contractive attention.
    """

    def __init__(self, kind, width, heads, length):
        super().__init__()
        self.kind, self.heads, self.rows, self.length = kind, heads, width // heads, length
        self.query, self.value, self.output = (_matrix(width, width) for _ in range(3))
        self.key = _matrix(width, width) if kind in ("dot", "l2-untied") else None

    def _split(self, matrix):
        """Rows of each head: shape (..., h, k, d)."""
        return matrix.unflatten(-2, (self.heads, self.rows))

    def bound(self):
        """Bound on the constant of the tied kind, a differentiable scalar: `lipnb.bounds.l2_upper` for p = 2."""
        query, value = largest_singular_value(self._split(torch.stack([self.query, self.value])))
        heads = (query**4 * value**2).sum().sqrt() * largest_singular_value(self.output)
        return bounds.l2_growth(self.length) / math.sqrt(self.rows) * heads

    def divisor(self):
        """Divisor of the divided kinds: the bound with a margin for its rounding; 1 for the others."""
        if self.kind not in ("contractive", DIVIDED):
            return 1.0
        precision = torch.finfo(self.query.dtype)
        return (self.bound() * (1 + 16 * self.query.shape[1] * precision.eps)).clamp_min(precision.tiny)

    def forward(self, x):
        """Output tokens, shape (b, n, d), of tokens `x`, shape (b, n, d)."""
        scale = self.rows**-0.5

        def heads_of(tokens):
            return tokens.unflatten(-1, (self.heads, self.rows)).transpose(-3, -2)

        query = heads_of(x @ self.query.T)
        if self.key is None:  # P X A_h W_V, where x A_h W_V is a small matrix times the query
            key, value = query, query @ (self._split(self.query) @ self._split(self.value).mT * scale)
        else:
            key, value = heads_of(x @ self.key.T), heads_of(x @ self.value.T)
        if self.kind == "dot":
            mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            size = -scale * key.square().sum(-1, keepdim=True)
            query, key = torch.cat([2 * scale * query, torch.ones_like(size)], -1), torch.cat([key, size], -1)
            later = x.new_full((x.shape[-2], x.shape[-2]), -math.inf).triu(1)
            mixed = torch.softmax(query @ key.mT + later, -1) @ value
        return mixed.transpose(-3, -2).flatten(-2) @ self.output.T / self.divisor()

    @torch.no_grad()
    def attention(self, dtype=torch.float64):
        """The same map, with the current weights, as an `lipnb.Attention`."""
        query, value = (self._split(matrix.detach()).to(dtype) for matrix in (self.query, self.value))
        output = self.output.detach().to(dtype).unflatten(1, (self.heads, self.rows)).movedim(1, 0)
        if self.key is None:
            return Attention.l2(query, value, output / self.divisor(), masked=True)
        key = self._split(self.key.detach()).to(dtype)
        return Attention(query, key, value, output, masked=True, score="dot" if self.kind == "dot" else "l2")


class Block(torch.nn.Module):
    """Attention and feed-forward, each added to its input with a factor; normalised after, before, or not at all.

    The kinds of `WITHOUT` only have the feed-forward part.
    """

    def __init__(self, kind, width, heads, hidden, length, strength, norm):
        super().__init__()
        self.strength, self.norm = strength, norm
        self.attention = None if kind in WITHOUT else CausalHeads(kind, width, heads, length)
        if kind.endswith("contractive"):
            self.mixing = ContractiveFeedForward(width, hidden, seed=None)
        else:
            first, second = torch.nn.Linear(width, hidden), torch.nn.Linear(hidden, width)
            self.mixing = torch.nn.Sequential(first, torch.nn.ReLU(), second)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) if norm else torch.nn.Identity() for _ in range(2))

    def receives(self, x):
        """Input of the attention when the block receives `x`."""
        return self.norms[0](x) if self.norm == "before" else x

    def forward(self, x):
        """Output tokens, shape (b, n, d), of tokens `x`, shape (b, n, d)."""
        for part, norm in zip((self.attention, self.mixing), self.norms, strict=True):
            if part is not None:
                x = x + self.strength * part(norm(x)) if self.norm == "before" else norm(x + self.strength * part(x))
        return x


def sinusoids(length, width):
    r"""Positions as sines and cosines of :math:`i / 10000^{2j/d}`, shape (length, width) (vaswani2017attention)."""
    angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width]


class CharacterTransformer(torch.nn.Module):
    """A causal Transformer over characters: embedding and positions, blocks, linear output.

    Positions are sinusoids and LayerNorm follows each addition, as in the first Transformer; or they are learned, and
    it precedes each part. The contractive kind has no LayerNorm: its blocks are x + c f(x) with f of a Lipschitz
    constant of at most 1: attention divided by its bound, and `lab.invertible.ContractiveFeedForward`.

    Parameters
    ----------
    vocabulary : int
        Number of characters.
    attention : {"dot", "l2-untied", "l2-tied", "contractive", "none", "none-contractive", "l2-divided"}
        Kind of every layer, see `CausalHeads`. The last three are controls: the first and the fourth kind with
        attention deleted, so that no character receives information from another; and the attention of the fourth kind,
        of constant at most 1, in the network of the first, with LayerNorm.
    length, width, heads, hidden, layers : int
        Most characters in a window; d; h; width of the feed-forward part; depth.
    positions : {"sinusoids", "learned"}
        Positions added to the embedding.
    norm : {"after", "before"}
        Position of LayerNorm; ignored for the contractive kind.
    start : float
        Factor of the output matrices of attention at the start of training.
    strength : float
        The factor c of the contractive kind, below 1, so that each part of it is invertible.
    seed : int
        Seed of the weights. The global random state is not changed.

    Raises
    ------
    ValueError
        `attention`, `positions` or `norm` is unknown, `width` is not a multiple of `heads`, or `strength` is out of
        range.

    Notes
    -----
    kim2021lipschitz, the language model; positions and LayerNorm as in vaswani2017attention.
    """

    def __init__(
        self,
        vocabulary,
        *,
        attention,
        length=64,
        width=64,
        heads=4,
        hidden=256,
        layers=2,
        positions="sinusoids",
        norm="after",
        start=1.0,
        strength=STRENGTH,
        seed=0,
    ):
        super().__init__()
        if attention not in (known := (*ATTENTIONS, *WITHOUT, DIVIDED)):
            raise ValueError(f"attention must be one of {', '.join(known)}, got {attention!r}.")
        if positions not in ("sinusoids", "learned"):
            raise ValueError(f"positions must be 'sinusoids' or 'learned', got {positions!r}.")
        if norm not in ("after", "before"):
            raise ValueError(f"norm must be 'after' or 'before', got {norm!r}.")
        if width % heads:
            raise ValueError(f"width must be a multiple of heads, got {width} and {heads}.")
        if not 0 < strength < 1:
            raise ValueError(f"strength must lie strictly between 0 and 1, got {strength}.")
        self.kind, self.length = attention, length
        if attention.endswith("contractive"):
            norm = None  # dividing by the size of a token would break the guarantee
        else:
            strength = 1.0
        self.normalised = norm is not None
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.embedding = torch.nn.Embedding(vocabulary, width)
            if positions == "learned":
                self.positions = torch.nn.Parameter(torch.randn(length, width))
            else:
                self.register_buffer("positions", sinusoids(length, width), persistent=False)
            self.blocks = torch.nn.ModuleList(
                Block(attention, width, heads, hidden, length, strength, norm) for _ in range(layers)
            )
            self.norm = torch.nn.LayerNorm(width) if norm == "before" else torch.nn.Identity()
            self.output = torch.nn.Linear(width, vocabulary)
        with torch.no_grad():
            for block in self.blocks:
                if block.attention is not None:
                    block.attention.output.mul_(start)

    def forward(self, token_ids):
        """Logits of the next character, shape (b, n, vocabulary), of characters (b, n), n <= length."""
        x = self.embedding(token_ids) + self.positions[: token_ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.output(self.norm(x))

    @torch.no_grad()
    def activations(self, token_ids):
        """Input of the attention of each layer: a list of Tensors (b, n, d)."""
        x, received = self.embedding(token_ids) + self.positions[: token_ids.shape[1]], []
        for block in self.blocks:
            received.append(block.receives(x))
            x = block(x)
        return received

    def attention(self, layer, dtype=torch.float64):
        """Trained attention of a layer, counted from 0, as an `lipnb.Attention`."""
        return self.blocks[layer].attention.attention(dtype)
