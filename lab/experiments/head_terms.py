r"""Three terms of the Jacobian of one head, and the bound that they give: values, keys and queries.

The proposition of the page *why the constant grows*, for a head with rows q, k and v, outputs o, key matrix K and
output matrix W:

.. math::
    \|D_X f\|_2 \le F + \|S\|_2 + \max_i |C_i|_2, \qquad F = \|P\|_2 \|W V\|_2, \qquad
    S_{ij} = P_{ij}\, |W (v_j - o_i)|\, |K^\top q_i| / \sqrt k ,

with C_i the derivative of output i by its own query. Slopes of F and of the norm of S predict that of a layer.
"""

import itertools
import math
from functools import partial

import torch
from torch import Tensor

from lab.experiments import interventions
from lab.experiments.atlas import ENTRIES, Condition, lengths_of, named, windows_of
from lab.experiments.loading import edition, load, place
from lab.experiments.positions import variant
from lab.experiments.table import by_window, table
from lipnb.attention import Attention, Feature
from lipnb.spectral import MatrixGram, lanczos, start_vectors
from lipscan import corpora, models
from lipscan.recording import Unit

MODELS = (  # the trained models of the atlas, with their first inputs in it
    ({"name": "minilm", "masked": False}, Condition("alice")),
    ({"name": "minilm", "masked": True}, Condition("alice")),
    ({"name": "gpt2-mini"}, Condition("alice")),
    ({"name": "stories260K"}, Condition("alice")),
    ({"name": "smollm2"}, Condition("alice", count=6)),
    ({"name": "dinov2-small"}, Condition("grace_hopper", count=4)),
    ({"name": "rxnmapper-albert"}, Condition("reactions")),
)
LONGEST = 512
QUERIES_TO = 128  # tokens up to which the third term and the bound are measured: it takes most of the time
NORM_RTOL = 1e-4  # of the norms of P and S


def _reduced(matrices: Tensor) -> Tensor:
    """Small matrices R (h, r, r) with ``|R y| = |matrix y|``, for matrices (h, m, r), also if m is less than r."""
    return torch.linalg.qr(matrices, mode="r").R


def _norms(matrices: Tensor) -> Tensor:
    """Spectral norms (b, h) of square matrices (b, h, n, n), from below (relative `NORM_RTOL`)."""
    b, h, n, _ = matrices.shape
    start = start_vectors(b * h, n, seed=0, dtype=matrices.dtype, device=matrices.device)
    return lanczos(MatrixGram(matrices.reshape(b * h, n, n)), start, rtol=NORM_RTOL).value.view(b, h)


@torch.no_grad()
def head_terms(f: Attention, x: Tensor, queries: bool = True) -> dict[str, Tensor]:
    r"""The three terms of each head: F, the norm of S, and the largest :math:`|C_i|_2`.

    `f`: dot products, plain or with shared keys and rotary positions. These rotate keys by position: then
    :math:`\|K\|_2 |q_i|` replaces :math:`|K^\top q_i|`, and likewise for the queries, which keeps the inequality.
    `x` (b, n, d): tokens; use float64, because distances of values to their means cancel.
    `queries`: whether to measure the third term, which takes most of the time; otherwise it is NaN.
    Returns (b, h): ``value``, ``key``, ``query``: their sum over the heads is at least the constant of the layer, up to
      the relative `NORM_RTOL` by which the norms of P and S are too small; ``attention_norm``, that of P.
    """
    f.check_plain("the terms of a head", also=(Feature.SHARED_KEYS, Feature.ROTARY))
    f = f.expand_groups()
    query, key, value = f.project(x)  # slope folded into the queries
    P = f.probabilities_of(query, key)
    of_value, of_key, of_query = _reduced(f.output_matrices()), _reduced(f.key.mT), _reduced(f.query.mT)
    attention_norm = _norms(P)
    frozen = attention_norm * torch.linalg.matrix_norm(of_value @ _reduced(f.value.mT).mT, 2)

    if turned := Feature.ROTARY in f.more:
        pull = torch.linalg.matrix_norm(of_key, 2)[:, None] * query.norm(dim=-1)
    else:
        pull = torch.einsum("hrk,bhnk->bhnr", of_key, query).norm(dim=-1)
    value = torch.einsum("hrv,bhnv->bhnr", of_value, value - value.mean(-2, keepdim=True))
    mean = P @ value
    away = value.square().sum(-1)[..., None, :] + mean.square().sum(-1)[..., None] - 2 * mean @ value.mT
    keys = P * away.clamp(min=0).sqrt() * pull[..., None]

    if turned:
        of_query = torch.linalg.matrix_norm(of_query, 2)[:, None, None] * torch.eye(f.key_width, dtype=x.dtype)
    largest = x.new_full((len(x), f.heads), math.nan)
    for window, head in itertools.product(*map(range, largest.shape)) if queries else ():
        largest[window, head] = _largest(*(one[window, head] for one in (P, value, mean, key)), of_query[head])
    return {"value": frozen, "key": _norms(keys), "query": f.slope * largest, "attention_norm": attention_norm}


def _largest(P, value, mean, key, query):
    """Largest norm of ``sum_j P_ij (v_j - m_i) k_j^T query^T`` over tokens i, for one head; values include W."""
    key = (key - key.mean(-2)) @ query.mT  # a vector common to all keys does not change attention
    n, products = len(P), value[:, :, None] * key[:, None, :]
    blocks = (P @ products.view(n, -1)).view_as(products) - mean[:, :, None] * (P @ key)[:, None, :]
    sizes = torch.linalg.matrix_norm(blocks)
    least = torch.linalg.matrix_norm(blocks[sizes.argmax()], 2)
    return torch.linalg.matrix_norm(blocks[sizes >= (1 - 1e-9) * least], 2).amax()  # no other has a larger norm


def _layer(f, x):
    """Columns of one layer at windows x (b, n, d), name -> Tensor (b,): the largest over heads, and sums over them."""
    found = head_terms(f, x, queries=x.shape[1] <= QUERIES_TO)
    both = found["value"] + found["key"]
    return {name: terms.amax(-1) for name, terms in found.items()} | {
        "one_head": both.amax(-1),
        "bound": (both + found["query"]).sum(-1),
    }


def received(f: Attention, x: Tensor) -> dict[str, Tensor]:
    r"""Bounds on the norm of P from the attention that tokens receive: the largest over heads, shape (b,).

    ``received``, of a head :math:`\max_i \sum_j P_{ij} c_j` with the column sums :math:`c_j` of P, is an upper bound on
    :math:`\|P\|_2^2`, never above the largest :math:`c_j`; ``squares``, :math:`\max_j \sum_i P_{ij}^2`, is a lower one.
    """
    f = f.expand_groups()
    P = f.probabilities_of(*f.project(x)[:2])
    found = {"received": P @ P.sum(-2)[..., None], "squares": P.square().sum(-2)}
    return {name: one.flatten(1).amax(1) for name, one in found.items()}


def _rows(options, condition, length, terms=_layer):
    """Rows of all layers at the windows of one length, as in the atlas."""
    model = load(**options)
    inputs = windows_of(model, condition, length)
    rows, step = [], max(1, ENTRIES // (8 * model.heads * length**2))
    for first in range(0, len(inputs), step):
        some = inputs[first : first + step]
        for layer, read in enumerate(models.readings(model, some)):
            found = terms(model.attention(layer).to(dtype=torch.float64), read.received.double())
            at = {"corpus": condition.corpus, "order": condition.order, **named(model, layer), "length": length}
            rows += [
                at | {"text": edition(ids)} | row | {"window": first + i}
                for i, (ids, row) in enumerate(zip(some, by_window(found), strict=True))
            ]
    return rows


def at_windows(longest, terms=_layer, read_by=MODELS):
    """Settings and units of `_rows` at the windows of the atlas of up to `longest` tokens, of models as in `MODELS`."""
    described, read, work = [], {}, []
    for options, condition in read_by:
        options = {**options, "name": place(options["name"]), "dtype": "float32"}
        model = load(**options)
        described.append(model.describe())
        for length in lengths_of(model, longest):
            windows = windows_of(model, condition, length)
            read[condition.corpus] = edition(windows.flatten()[:4096])
            key = f"{model.name}/{model.masked}/{condition.corpus}/{length}"
            work.append(Unit(key, partial(_rows, options, condition, length, terms), len(windows) * model.layers))
    return {"models": described, "read": read, "longest": longest}, work


@table("head-terms", "terms of the heads of every trained layer of the atlas, at its windows of up to 512 tokens")
def _prepare(longest=LONGEST):
    settings, work = at_windows(longest)
    return settings | {"queries_to": QUERIES_TO, "norm_rtol": NORM_RTOL}, work


@table("attention-received", "attention that tokens of trained layers receive, at the windows of the terms of heads")
def _prepare_received(longest=LONGEST):
    return at_windows(longest, received)


def _changed_rows(options, condition, length):
    """Rows of all layers and interventions at the windows of one length, as in the table of interventions."""
    model = load(**options)
    ids, rows = windows_of(model, condition, length), []
    own = models.readings(model, ids)
    for name in interventions.of_model(model):
        moved = name == interventions.ONE_POSITION
        read = models.readings(variant(model, "constant"), ids) if moved else own
        for layer in range(model.layers):
            f, x, _ = interventions.altered(name, model.attention(layer), read[layer].received)
            found = _layer(f.to(dtype=torch.float64), x.double())
            at = {"corpus": condition.corpus, **named(model, layer), "length": length, "intervention": name}
            rows += [at | {"text": edition(one)} | row for one, row in zip(ids, by_window(found), strict=True)]
    return rows


@table("head-terms-changed", "terms of the heads after changes of attention, at the windows of the interventions")
def _prepare_changed(lengths=interventions.LENGTHS, count=6):
    condition, described, work = Condition("alice", count=count), [], []
    for options in interventions.MODELS:
        options = {**options, "name": place(options["name"]), "dtype": "float32"}
        model = load(**options)
        described.append(model.describe())
        size = count * model.layers * len(interventions.of_model(model))
        windows_of(model, condition, max(lengths))  # fail early if the text is missing or too short
        work += [
            Unit(f"{model.name}/{length}", partial(_changed_rows, options, condition, length), size)
            for length in lengths
        ]
    text = corpora.fingerprint(corpora.read(condition.corpus))
    settings = {"models": described, "text": text, "lengths": list(lengths), "count": count}
    return settings | {"queries_to": QUERIES_TO, "norm_rtol": NORM_RTOL}, work
