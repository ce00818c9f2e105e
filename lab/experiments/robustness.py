"""Table of attacks: how far small changes of real tokens move the output of a layer, and the predicted change."""

import math
from functools import lru_cache

import torch

from lab.experiments.loading import edition, load
from lab.experiments.real_text import GPT2_RANDOM, MINILM
from lab.experiments.table import table
from lipnb.bounds import nearby_upper
from lipnb.measures.splitting import query_blocks
from lipnb.worst_case import attacks
from lipscan import corpora, models

RADII = tuple(10.0 ** (-4 + k / 2) for k in range(9))  # relative to the root mean square token norm
DIRECTIONS = 16  # random ones
STEPS = 15  # of each ascent
ATTACKS = ("random", "singular", "aligned", "pgd", "one_token", "parting", "parting_pgd")
COMPARED = ("lipschitz", "singular", "aligned", "pgd", "one_token", "bound")  # when a row is attacked again
PLACE = ["model", "masked", "corpus", "layer", "length", "window"]  # identifies one window of the table
PRECISION = {"dtype": "float64", "device": "cpu"}  # the changes at the smallest radii need float64

PANELS = (
    ({**MINILM, "masked": False}, (0, 3, 5), (32, 98)),
    ({**MINILM, "masked": True}, (3,), (32, 98)),
    ({**GPT2_RANDOM, "tokenizer": "minilm"}, (6,), (32,)),
)


def attack(attention, x, radii=RADII, *, steps=STEPS, seed=0, copies=True):
    r"""Attacks on one input at several radii: the largest change of the output found by each attack.

    `attention`: any heads, biases and mask.
    `x` (n, d): tokens of one sequence.
    `radii`: radii of the balls, in root mean square token norms; in the Euclidean norm of all coordinates.
    `steps`: gradients of each ascent.
    `seed`: seed of the solver and of the random directions.
    `copies`: whether to try separating copies of a token; this takes as long as all other attacks.
    Returns one row for each radius: `lipschitz`, `lipschitz_upper` (with probability 1 - 1e-6), `token` (root mean
    square norm), `relative` and `epsilon` (radius), `local_upper` and the `bound` on the change with its parts
    (`lipnb.bounds.nearby_upper`), and the change by each attack: `random` (largest of 16 directions) and
    `random_median`, `singular` (top singular vector, better sign), `aligned` (fully aligned steps from there), `pgd`
    (projected gradient from the end of `aligned` and from a random direction, the best kept), `pgd_random` (only from
    the random direction), `one_token` (only the token moves that the singular vector moves most) and, without a
    mask, `parting` (one token split into two copies that separate) and `parting_pgd` (projected gradient on the two
    copies from there); these two are NaN with a mask, or if `copies` is false.
    """
    top = attacks.singular(attention, x, seed=seed)
    token = x.norm(dim=-1).square().mean().sqrt()
    eps = token * torch.as_tensor(radii, dtype=x.dtype)
    ball = eps[:, None, None]
    bound = nearby_upper(attention, x, eps)
    around = attacks.random_directions(x, DIRECTIONS, seed=seed + 1)
    random = torch.stack([attacks.change(attention, x, e * around) for e in eps])
    signs = torch.stack([attacks.change(attention, x, sign * ball * top.direction) for sign in (1, -1)])
    signed = torch.where(signs[0] >= signs[1], 1.0, -1.0)[:, None, None] * top.direction
    aligned, by_alignment = attacks.push(attention, x, signed, eps, steps=steps)
    starts = torch.stack([aligned, around[:1].expand_as(aligned)])
    _, climbed = attacks.push(attention, x, starts, eps, steps=steps, size=0.5)
    moved = top.direction.norm(dim=-1)
    _, one = attacks.push(attention, x, signed, eps, steps=steps, movable=moved == moved.max())
    found = {
        "random": random.amax(1),
        "random_median": random.median(1).values,
        "singular": signs.amax(0),
        "aligned": by_alignment,
        "pgd": climbed.amax(0),
        "pgd_random": climbed[1],
        "one_token": one,
        **_parted(attention, x, eps, steps, copies),
        "bound": bound.best,
        "bound_jacobian": bound.jacobian,
        "bound_taylor": bound.taylor,
        "bound_outputs": bound.outputs,
        "bound_general": bound.general,
        "relative": torch.as_tensor(radii, dtype=x.dtype),
        "epsilon": eps,
    }
    same = {
        "lipschitz": top.value,
        "lipschitz_upper": top.upper,
        "token": token.item(),
        "local_upper": bound.local.item(),
    }
    return [{**same, **{name: values[i].item() for name, values in found.items()}} for i in range(len(eps))]


def _parted(attention, x, eps, steps, copies):
    """Changes by two separating copies of one token, in the norm that halves each copy."""
    if attention.masked or not copies:
        return {name: torch.full_like(eps, torch.nan) for name in ("parting", "parting_pgd")}
    copied, weights, moves = attacks.parting(x, query_blocks(attention, x))
    starts = moves.expand(len(eps), *moves.shape)
    plain = attacks.change(attention, copied, eps[:, None, None] * starts, weights)
    _, climbed = attacks.push(
        attention, copied, starts, eps, steps=steps, size=0.5, weights=weights, movable=weights < 1
    )
    return {"parting": plain, "parting_pgd": climbed}


def _load(panel):
    return load(**PRECISION, **panel)


def _panel(model, masked):
    """Arguments of `models.load` for a model of the table, which is named by these two columns."""
    (panel,) = (one for one, *_ in PANELS if (one["name"], one.get("masked", True)) == (model, masked))
    return panel


def _tokens(model, corpus, n, window):
    return corpora.windows(models.first_tokens(model, corpora.read(corpus), n * (window + 1)), n, window + 1)[window:]


def _windows(texts, count):
    """Model, mask, text, layer, length and number of each window; reports what is not available."""
    for panel, _, lengths in PANELS:
        for corpus in texts:
            _tokens(_load(panel), corpus, max(lengths), count - 1)  # report a text that is too short now
    return [
        (panel["name"], panel.get("masked", True), corpus, layer, n, window)
        for panel, layers, lengths in PANELS
        for corpus in texts
        for layer in layers
        for n in lengths
        for window in range(count)
    ]


@table(
    "robustness",
    "attacks on the input of a layer, beside first order and proved bounds",
    over=_windows,
    size=lambda radii: len(radii),
    settings=lambda texts: (
        {"texts": {name: corpora.fingerprint(corpora.read(name)) for name in texts}} | {"panels": PANELS, **PRECISION}
    ),
    texts=("alice", "python_reference"),
    count=3,
)
def window_rows(model, masked, corpus, layer, length, window, *, radii=RADII, steps=STEPS, seed=0):
    """Rows of one window: `attack` on the input of a layer."""
    network = _load(_panel(model, masked))
    tokens = _tokens(network, corpus, length, window)
    x = network.activations(tokens, layer)[0]
    named = {"weights": network.weights, "text": edition(tokens)}
    return [named | row for row in attack(network.attention(layer), x, radii, steps=steps, seed=seed)]


@lru_cache(maxsize=1)
def _attacked(place, radii):
    return window_rows(*place, radii=radii)


def again(row):
    """A row of MiniLM attacked again, for `lab.experiments.remeasure`; None if its text is missing or another edition.

    All stored radii are attacked together, as in the stored run: the tighter bound is used if it is cheap for all of
    them.
    """
    if row["model"] != MINILM["name"]:
        return None
    stored = any(math.isclose(row["relative"], one, rel_tol=1e-4) for one in RADII)
    try:
        rows = _attacked(tuple(row[name] for name in PLACE), RADII if stored else (row["relative"],))
    except FileNotFoundError:
        return None
    (found,) = (one for one in rows if math.isclose(row["relative"], one["relative"], rel_tol=1e-4))
    return {name: found[name] for name in COMPARED} if found["text"] == row["text"] else None
