"""The tables of *which token matters*: norms of Jacobian blocks, of trained layers and of controls.

How much a token pushes the others is the root mean square of the norms of its blocks, over the other tokens that see
it; how much it is looked at, the mean over these of the attention it gets. Both are compared with the median token.
"""

from typing import NamedTuple

import torch

from lab.experiments.loading import load
from lab.experiments.table import by_window, table
from lipnb import AttentionJacobian, block_norms, corpora, models
from lipnb.lipschitz import local_lipschitz
from lipnb.models import pictures

__all__ = ["Push", "again", "embedded", "pushed", "pushes", "received", "row_norms", "with_special"]

CORPUS, LENGTH, APART = "alice", 32, 40
WINDOWS = {"minilm": 3, "gpt2-mini": 1, "smollm2": 1}  # of random weights always one
SEEDS = {"minilm": 3, "gpt2-mini": 1, "smollm2": 1}  # of random weights
RTOL = 1e-2  # of a block's norm
LAYERS = {"minilm": range(6), "gpt2-mini": range(6), "smollm2": (1, 10, 29)}
PICTURE, SIZE, SEEN = "grace_hopper", 224, (0, 5, 11)
SPECIAL = ("none", "first", "middle")


def with_special(model, ids, place="first"):
    """Token ids with the special token that such a text begins with.

    Parameters
    ----------
    model : lipnb.models.Model
        With a tokenizer.
    ids : LongTensor, shape (b, n)
        Without special tokens.
    place : {"none", "first", "middle"}
        Where it stands: nowhere; before the text, as the model was trained, and for BERT a [SEP] after it; or in the
        middle, where it never stood in training.

    Returns
    -------
    LongTensor, shape (b, n), (b, n + 1) or (b, n + 2)
    """
    config, tokenizer = model.module.config, model.tokenizer
    begin = tokenizer.cls_token_id if tokenizer.cls_token_id is not None else config.bos_token_id
    token = torch.full((len(ids), 1), begin)
    if place == "none":
        return ids
    if place == "middle":
        half = (ids.shape[1] + 1) // 2
        return torch.cat([ids[:, :half], token, ids[:, half:]], 1)
    end = [] if tokenizer.sep_token_id is None else [torch.full((len(ids), 1), tokenizer.sep_token_id)]
    return torch.cat([token, ids, *end], 1)


def received(norms, seen):
    """What each token does to the others that see it: root mean square of a matrix (..., n, n) over the rows.

    Parameters
    ----------
    norms : Tensor, shape (..., n, n)
        Row i is moved, column j moves.
    seen : Tensor of bool, shape (n, n)
        Pairs that no mask hides.

    Returns
    -------
    Tensor, shape (..., n)
        Not a number for a token that no other sees.
    """
    others = seen & ~torch.eye(len(seen), dtype=torch.bool)
    return (norms.square() * others).sum(-2).div(others.sum(0)).sqrt()


def _seen(attention, n):
    hidden = attention.hidden(n)
    return torch.ones(n, n, dtype=torch.bool) if hidden is None else ~hidden


def _described(attention, x):
    """A row for each sequence of x (b, n, d): the first token, the median one, the one that pushes most."""
    n, seen = x.shape[1], _seen(attention, x.shape[1])
    norms = block_norms(attention, x, rtol=RTOL)
    looks = torch.stack([attention.probabilities(tokens).mean(0) for tokens in x])
    push, look = received(norms, seen), received(looks.sqrt(), seen).square()  # the mean of what is given
    values = local_lipschitz(attention, x)
    columns = {
        "first_push": push[:, 0],
        "median_push": push[:, 1:].nanmedian(1).values,
        "largest_push": push.nan_to_num().amax(1),
        "pushes_most": push.nan_to_num().argmax(1),
        "first_look": look[:, 0],
        "median_look": look[:, 1:].nanmedian(1).values,
        "middle_push": push[:, n // 2],
        "middle_look": look[:, n // 2],
        "lipschitz": values.value,
        "converged": values.converged,
    }
    return [{"tokens": n, **row} for row in by_window(columns)]


def _windows(model, count):
    """Windows (count, n) of Alice, far from each other."""
    tokens = models.first_tokens(model, corpora.read(CORPUS), LENGTH * APART * count)
    return corpora.windows(tokens, LENGTH, APART * count)[::APART]


def _ids(model, order, special, count):
    ids = _windows(model, count)
    if order == "shuffled":
        orders = [torch.randperm(LENGTH, generator=torch.Generator().manual_seed(window)) for window in range(count)]
        ids = torch.stack([one[order] for one, order in zip(ids, orders, strict=True)])
    return with_special(model, ids, special)


def _count(name, weights):
    """How many windows are measured."""
    return WINDOWS[name] if weights == "trained" else 1


def _model(name, weights):
    """A model as trained, or drawn at random with the seed that its weights are called after."""
    return load(name) if weights == "trained" else load(name, random=True, seed=int(weights.split()[-1]))


def _sinks():
    cases = [("trained", "text", special) for special in SPECIAL]
    cases += [("trained", "shuffled", "none")]
    return [
        (name, *case, layer)
        for name, layers in LAYERS.items()
        for case in [*cases, *((f"random {seed}", "text", "none") for seed in range(SEEDS[name]))]
        for layer in layers
    ]


@table(
    "token-sinks",
    "how much the first token of a window pushes the others, in trained layers and in controls",
    over=_sinks,
    size=lambda model, weights: _count(model, weights),
    settings=lambda: (
        {"corpus": CORPUS, "text": corpora.fingerprint(corpora.read(CORPUS)), "length": LENGTH}
        | {"windows": WINDOWS, "apart": APART, "seeds": SEEDS, "rtol": RTOL, "dtype": "float32"}
    ),
)
def sink_rows(model, weights, order, special, layer):
    """Rows of one layer of a model, one for each window."""
    network = _model(model, weights)
    x = network.activations(_ids(network, order, special, _count(model, weights)), layer)
    return [{"masked": network.masked} | row for row in _described(network.attention(layer), x)]


def again(row):
    """A stored row of `token-sinks` measured again, for `lipnb.recording.remeasure`; None without its model."""
    try:
        rows = sink_rows(*(row[name] for name in ("model", "weights", "order", "special", "layer")))
    except FileNotFoundError:
        return None
    return {name: rows[row["window"]][name] for name in ("first_push", "median_push", "first_look", "lipschitz")}


class Push(NamedTuple):
    """Pushes of one token each, and what they do to first order.

    Attributes
    ----------
    direction : Tensor, shape (n, n, d)
        The j-th moves token j alone, by 1.
    slope : Tensor, shape (n,)
        |J u|: how far the output moves, for each unit of push.
    """

    direction: torch.Tensor
    slope: torch.Tensor


def pushes(jacobian, x, *, rounds=12, seed=0):
    """For each token the push of it alone that moves the output most, by power iteration with the Jacobian.

    Parameters
    ----------
    jacobian : AttentionJacobian or AutodiffJacobian
        At x repeated n times, shape (n, n, d).
    x : Tensor, shape (n, d)
        Tokens.
    rounds : int
        Products with the Jacobian and its transpose.
    seed : int
        Of the start.

    Returns
    -------
    Push
        Slopes lie at or below the norms of the columns of the Jacobian.
    """
    n, d = x.shape
    start = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)
    here = torch.arange(n)
    for _ in range(rounds):
        u = x.new_zeros(n, n, d)
        u[here, here] = start / start.norm(dim=-1, keepdim=True)
        image = jacobian.jvp(u)
        start = jacobian.vjp(image)[here, here]
    return Push(u, image.flatten(1).norm(dim=1))


def pushed(f, x, push, share):
    """How far the output really moves when each token is pushed by a share of its length, for each unit of push.

    Parameters
    ----------
    f : callable
        Tokens (b, n, d) to (b, n, m).
    x : Tensor, shape (n, d)
        Tokens.
    push : Push
        Of `pushes`.
    share : float
        Of the length of the token that is pushed.

    Returns
    -------
    Tensor, shape (n,)
    """
    step = share * x.norm(dim=-1)
    with torch.no_grad():
        moved = f(x + step[:, None, None] * push.direction) - f(x[None])
    return moved.flatten(1).norm(dim=1) / step


def embedded(model, ids):
    """The whole network as a map of token embeddings to its last hidden state, and the embeddings of token ids (b, n).

    Returns
    -------
    f : callable
        Embeddings (b, n, d) to hidden states (b, n, d); positions are added inside.
    x : Tensor, shape (b, n, d)
    """
    network = model.module
    network = getattr(network, network.base_model_prefix, network)

    def f(x):
        shape = x.shape
        return network(inputs_embeds=x.reshape(-1, *shape[-2:]), use_cache=False).last_hidden_state.reshape(shape)

    return f, network.get_input_embeddings()(ids).detach()


def row_norms(attention, x, i=0, at_once=32, rounds=40):
    """Norms (n,) of the blocks of one output token, as `lipnb.block_norms` gives them for all, by n m products.

    Parameters
    ----------
    attention : Attention
    x : Tensor, shape (n, d)
        Tokens.
    i : int
        Whose output is moved.
    at_once : int
        Products in one batch.
    rounds : int
        Of power iteration with each block.

    Returns
    -------
    Tensor, shape (n,)
        From below.
    """
    m, rows = attention.output_width, []
    for part in torch.eye(m, dtype=x.dtype).split(at_once):
        w = x.new_zeros(len(part), len(x), m)
        w[:, i] = part
        rows.append(AttentionJacobian(attention, x.expand(len(part), *x.shape)).vjp(w))
    blocks = torch.cat(rows).movedim(0, 1)
    u = torch.randn(len(x), x.shape[1], 1, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    for _ in range(rounds):
        length = u.norm(dim=1, keepdim=True)
        image = blocks @ (u / torch.where(length > 0, length, 1))  # a hidden block stays zero
        u = blocks.mT @ image
    return image.norm(dim=(1, 2))


@table(
    "token-picture",
    "which patches of a picture move the class token of DINOv2-small",
    over=[(PICTURE, layer) for layer in SEEN],
    size=(SIZE // 14) ** 2,
    settings={"picture": PICTURE, "size": SIZE, "dtype": "float32"},
)
def picture_rows(picture, layer):
    """Rows of one layer, a row for each patch."""
    model = load("dinov2-small")
    attention = model.attention(layer)
    x = model.activations(pictures.picture(picture, SIZE), layer)
    side = round((x.shape[1] - 1) ** 0.5)
    norms, looks = row_norms(attention, x[0]), attention.probabilities(x[0]).mean(0)
    value = local_lipschitz(attention, x).value.item()
    at = {"model": "dinov2-small", "tokens": len(norms), "lipschitz": value, "own": norms[0].item()}
    places = zip(norms[1:].tolist(), looks[0, 1:].tolist(), strict=True)
    return [
        at | {"row": j // side, "column": j % side, "norm": norm, "look": look} for j, (norm, look) in enumerate(places)
    ]
