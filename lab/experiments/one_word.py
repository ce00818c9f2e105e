"""Table of one word: how far an attack moves every layer of two models, by a vector and by a word of the text.

The vectors are those of `lab.experiments.robustness`, of three lengths. The words are searched to first order through
the layers below, and the most promising ones measured. Each row also holds quantities that might rank the inputs.
"""

from functools import lru_cache
from typing import NamedTuple

import torch

from lab.experiments import robustness
from lab.experiments.loading import edition, load
from lab.experiments.table import table
from lab.experiments.worst_words import below, read_back
from lipnb.worst_case.attacks import length
from lipscan import corpora, models
from lipscan.scanning.measure import relative

MODELS = {"minilm": {"masked": False}, "gpt2-mini": {}}
TEXTS = ("alice", "python_reference")
LENGTH, WINDOWS, SPARE = 32, 5, 4  # SPARE times as many windows are drawn, because some are not read back
RADII = (0.01, 0.1, 1.0)
PROBES = 32  # random outputs; their gradients represent the Jacobian
EACH, PLACES, MORE = 4, 2, 32  # words tried at each position; at the best PLACES positions, MORE words
PLACE = ["model", "corpus", "layer", "window"]  # identifies one input of the table
COMPARED = ("lipschitz", "relative", "change")  # when a row is measured again


class Word(NamedTuple):
    """The word found that moves a layer most, compared with random words.

    `place`, `token`: position in the window, and token of the vocabulary. `change`: norm of the change of the layer's
    output. `moved`: norm of the change of the layer's input. `random`, `random_best`: median and largest change by
    random words at random positions, as many as were tried.
    """

    place: int
    token: int
    change: float
    moved: float
    random: float
    random_best: float


@lru_cache(maxsize=2)
def _words(name):
    """Tokens that may occur in a text, from `read_back`, computed once for each model."""
    return read_back(load(name, **MODELS[name]))


def reads_back(model, ids):
    """Whether the text of token ids (n,) is tokenized back to them."""
    return torch.equal(model.token_ids(model.tokenizer.decode(ids)), ids)


@lru_cache(maxsize=8)
def _windows(name, corpus):
    """Windows (WINDOWS, n) drawn at random from a text, each tokenized back to its own tokens."""
    model = load(name, **MODELS[name])
    drawn = models.random_windows(model, corpora.read(corpus), LENGTH, SPARE * WINDOWS, special=False)
    kept = [ids for ids in drawn if reads_back(model, ids)]
    if len(kept) < WINDOWS:
        raise ValueError(f"only {len(kept)} windows of {corpus} are read back as they are: draw more of them.")
    return torch.stack(kept[:WINDOWS])


def gains(model, layer, ids, *, probes=PROBES, seed=0):
    r"""Squared change of a layer's output by each substitution, to first order, estimated from random probes.

    .. math:: \frac1p \sum_{w} \big(g_{w,i} \cdot (E_t - E_{x_i})\big)^2, \qquad
        g_w = \nabla_E \langle w, f(X) \rangle ,

    with Gaussian w, word embeddings E, and X the layer's input as a function of them: the mean over w is
    :math:`\|J (E_t - E_{x_i})\|^2`, J the Jacobian of the layers up to this one.

    `layer`: index from 0. `ids` (n,): token ids of one window. `probes`, `seed`: number of w, and their seed. Returns
    (n, vocabulary).
    """
    table = model.module.get_input_embeddings().weight.detach()
    e = table[ids].expand(probes, -1, -1).clone().requires_grad_()
    out = model.attention(layer)(below(model, layer, e))
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(out.shape, generator=generator, dtype=out.dtype)
    (slopes,) = torch.autograd.grad((out * w).sum(), e)
    pairs = zip(slopes.unbind(1), table[ids], strict=True)
    return torch.stack([(g @ table.mT - (g @ word)[:, None]).square().mean(0) for g, word in pairs])


@torch.no_grad()
def _changes(model, layer, ids, candidates):
    """Norms of the changes of a layer's output and input, (c,) each, from token ids (n,) to candidates (c, n)."""
    f = model.attention(layer)
    x, moved = model.activations(ids[None], layer), model.activations(candidates, layer)
    return length(f(moved) - f(x)), length(moved - x)


def worst_word(model, layer, ids, words, *, each=EACH, places=PLACES, more=MORE):
    """The word of the vocabulary that moves the output of a layer most when it replaces one word of a window.

    The best words to first order are tried at each position, then more of them at the positions with most effect.
    The change found is a lower bound on the largest one.

    `layer`: index from 0. `ids` (n,): token ids of one window. `words` (vocabulary,): tokens that may occur in a text,
    see
    `lab.experiments.worst_words.read_back`. `each`, `places`, `more`: words tried at each position; number of positions
    at which more are tried; number of words there.
    """
    promise = gains(model, layer, ids)
    promise[:, ~words] = -torch.inf
    promise[torch.arange(len(ids)), ids] = -torch.inf
    best = promise.topk(max(each, more), dim=1).indices
    tried = [(i, t) for i, row in enumerate(best[:, :each].tolist()) for t in row]
    found = _tried(model, layer, ids, tried)
    first = sorted(found, key=lambda one: -found[one][0])
    chosen = list(dict.fromkeys(place for place, _ in first))[:places]
    tried = [(i, t) for i in chosen for t in best[i].tolist()[:more]]
    found |= _tried(model, layer, ids, tried)
    place, token = max(found, key=lambda one: found[one][0])
    generator = torch.Generator().manual_seed(0)
    allowed, count = words.nonzero().flatten(), len(ids) * each + places * more
    anywhere = torch.randint(len(ids), (count,), generator=generator).tolist()
    any_word = allowed[torch.randint(len(allowed), (count,), generator=generator)].tolist()
    random = torch.tensor([one[0] for one in _tried(model, layer, ids, zip(anywhere, any_word, strict=True)).values()])
    return Word(place, token, *found[place, token], random.median().item(), random.max().item())


def _tried(model, layer, ids, pairs):
    """Changes of output and input by each (place, token) that is read back, as a dictionary."""
    made = {}
    for place, token in pairs:
        candidate = ids.clone()
        candidate[place] = token
        if reads_back(model, candidate):
            made[place, token] = candidate
    if not made:
        return {}
    changes = zip(*_changes(model, layer, ids, torch.stack([*made.values()])), strict=True)
    return {pair: (out.item(), moved.item()) for pair, (out, moved) in zip(made, changes, strict=True)}


def _places(texts):
    return [
        (name, corpus, layer, window)
        for name in MODELS
        for corpus in texts
        for layer in range(load(name, **MODELS[name]).layers)
        for window in range(len(_windows(name, corpus)))
    ]


@table(
    "one-word",
    "one word, and vectors, against every layer of two models",
    over=_places,
    size=len(RADII) + 1,
    settings=lambda texts: (
        {"texts": {name: corpora.fingerprint(corpora.read(name)) for name in texts}}
        | {"models": list(MODELS), "length": LENGTH, "windows": WINDOWS, "radii": RADII, "probes": PROBES}
        | {"tried": [EACH, PLACES, MORE], "dtype": "float64, words float32"}
    ),
    texts=TEXTS,
)
def window_rows(model, corpus, layer, window):
    """Rows of one layer at one window: a vector of each length, and a word."""
    network, double = load(model, **MODELS[model]), load(model, dtype="float64", **MODELS[model])
    ids = _windows(model, corpus)[window]
    f, x = double.attention(layer), double.activations(ids[None], layer)[0]
    size, given = length(x).item(), length(f(x)).item()
    at = {"masked": network.masked, "text": edition(ids), "length": LENGTH}
    rows = []
    for row in robustness.attack(f, x, RADII, copies=False):
        same = {
            "lipschitz": row["lipschitz"],
            "relative": relative(row["lipschitz"], x, f(x)),
            "token": row["token"],
            "received": size,
            "given": given,
            "closed_form": row["local_upper"],
        }
        best = max(row["pgd"], row["one_token"])
        found = {"attack": f"vector {row['relative']:g}", "epsilon": row["epsilon"], "change": best}
        rows.append(at | same | found | {"random": row["random_median"], "bound": row["bound"]})
    word = worst_word(network, layer, ids, _words(model))
    found = {"attack": "word", "epsilon": word.moved, "change": word.change, "random": word.random}
    found |= {"random_best": word.random_best, "place": word.place, "word": word.token}
    return [*rows, at | same | found]


def again(row):
    """A stored row measured again, for `lipscan.recording.remeasure`; None if its text is missing or another edition.

    The stored word is substituted again, not searched again.
    """
    name, layer = row["model"], row["layer"]
    model = load(name, dtype="float64", **MODELS[name])
    try:
        ids = _windows(name, row["corpus"])[row["window"]]
    except FileNotFoundError:
        return None
    if edition(ids) != row["text"]:
        return None
    f, x = model.attention(layer), model.activations(ids[None], layer)[0]
    kind, *radius = row["attack"].split()
    (found,) = robustness.attack(f, x, [float(radius[0]) if radius else RADII[0]], copies=False)
    change = max(found["pgd"], found["one_token"])
    if kind == "word":
        candidate = ids.clone()
        candidate[int(row["place"])] = int(row["word"])
        change = _changes(model, layer, ids, candidate[None])[0].item()
    value = found["lipschitz"]
    return {"lipschitz": value, "relative": relative(value, x, f(x)), "change": change}
