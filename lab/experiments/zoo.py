"""Tables of the zoo: every bound over what it bounds, on drawn inputs, on worst inputs of one head, and on text."""

import math

import torch

from lab.experiments.loading import load
from lab.experiments.table import Table
from lab.zoo import ENTRIES, KINDS, draw, rougher
from lipnb import Attention, certify, corpora, local_lipschitz, models
from lipnb.bounds.catalogue import CATALOGUE, Case
from lipnb.recording import Unit
from lipnb.worst_case import fork_input

__all__ = ["TABLES", "again", "growth_rows", "layer_bounds", "text_rows", "zoo_rows"]

COUNTS = {"random": 24, "rough": 12, "ascended": 4}  # of each bound and mask
MASKED = ("head", "bias", "layer", "measure", "rotary", "l2")  # families that may be causal
TEXT = "python_reference"
CURVE = {"layer": 3, "lengths": (8, 16, 32, 64, 128), "windows": 3}  # of the layer that is followed over lengths
LENGTH = 32  # of the inputs of all layers
AT_FORK = {"along n": ((4, 8, 16, 32, 64, 128, 256, 512), (6.0,)), "along R": ((64,), (0.25, 0.5, 1, 2, 4, 8, 16, 32))}


def zoo_rows(key, masked, kind, count):
    """Rows of the table ``zoo`` for one bound, mask and kind of input.

    Parameters
    ----------
    key : str
        Of `lab.zoo.ENTRIES`.
    masked : bool
        Whether the maps are causal.
    kind : str
        One of `lab.zoo.KINDS`.
    count : int
        Cases.

    Returns
    -------
    list of dict
        bound (its key), masked, kind, seed, n, R, truth, stated, and over, stated over truth: below one where a formula
        is exceeded.
    """
    entry, rows = ENTRIES[key], []
    for seed in range(count):
        case = draw(entry.family, kind, seed, masked=masked)
        if kind == "ascended":
            case = rougher(case, entry.ratio)
        measured, stated = entry.truth(case), entry.at(case)
        about = {"bound": key, "masked": masked, "kind": kind, "seed": seed, "n": case.n, "R": case.R}
        over = stated / measured if measured > 0 else math.nan
        rows.append({**about, "truth": measured, "stated": stated, "over": over})
    return rows


def layer_bounds(attention, x):
    """Every bound that holds for a whole layer of dot-product heads at one input, Euclidean; natural logarithms.

    Parameters
    ----------
    attention : Attention
        Any heads, biases and mask.
    x : Tensor, shape (n, d)
        Tokens, float64.

    Returns
    -------
    dict
        Key of `lab.zoo.ENTRIES` -> logarithm, heads summed by Lemma 3.8 but for `ball_upper`.
    """
    case = Case(attention, x)
    shown = [bound for bound in CATALOGUE if bound.column or bound.key in ("yudin_sharp", "ball_upper")]
    return {bound.key: bound.log(case) for bound in shown if bound.applies(attention, layer=True) is None}


def text_rows(masked, layer, length, window):
    """Rows of the table ``zoo-text``: one layer of MiniLM at one window of Python's reference.

    Returns
    -------
    list of dict
        masked, layer, length, window, R, truth (of the solver), bound and log10, the bound's decimal logarithm.
    """
    network = load("minilm", masked=masked, dtype="float64")
    ids = models.first_tokens(network, corpora.read(TEXT), length * (window + 1))
    tokens = corpora.windows(ids, length, window + 1)[window:]
    attention, x = network.attention(layer), network.activations(tokens, layer)[0]
    truth = local_lipschitz(attention, x).value.item()
    found = {"three_terms": certify(attention, x, columns=0).upper.log().item(), **layer_bounds(attention, x)}
    about = {"masked": masked, "layer": layer, "length": length, "window": window}
    about |= {"R": x.norm(dim=-1).max().item(), "truth": truth}
    return [{**about, "bound": key, "log10": value / math.log(10)} for key, value in found.items()]


def growth_rows(along, n, t, *, width=8, seed=0):
    """Rows of the table ``zoo-growth``: bounds of one random head at its fork, and at random tokens of the same ball.

    Parameters
    ----------
    along : str
        Name of the series.
    n : int
        Number of tokens.
    t : float
        Logit range of the ball.
    width, seed : int
        Of the head: Gaussian A and V, of norm one.

    Returns
    -------
    list of dict
        along, n, t, input ("fork" or "random"), truth, bound, log10.
    """
    g = torch.Generator().manual_seed(seed)
    A, V = torch.randn(2, width, width, generator=g, dtype=torch.float64)
    A, V = A / torch.linalg.matrix_norm(A, 2), V / torch.linalg.matrix_norm(V, 2)
    f, R, rows = Attention.from_matrices(A, V), math.sqrt(t), []
    noise = torch.nn.functional.normalize(torch.randn(n, width, generator=g, dtype=torch.float64), dim=1)
    for name, x in (("fork", fork_input(A, V, n, R)[0]), ("random", R * noise)):
        truth = local_lipschitz(f, x).value.item()
        found = {"three_terms": certify(f, x, columns=0).upper.log().item(), **layer_bounds(f, x)}
        about = {"along": along, "n": n, "t": t, "input": name, "truth": truth}
        rows += [{**about, "bound": key, "log10": value / math.log(10)} for key, value in found.items()]
    return rows


def _prepare_zoo(counts):
    units = [
        Unit(
            f"{key}/{masked}/{kind}",
            lambda key=key, masked=masked, kind=kind: zoo_rows(key, masked, kind, counts[kind]),
            counts[kind],
        )
        for key, entry in ENTRIES.items()
        for masked in (entry.masks if entry.family in MASKED else (False,))
        for kind in KINDS
    ]
    return {"counts": counts, "dtype": "float64"}, units


def _prepare_text(length):
    settings = {"text": TEXT, "edition": corpora.fingerprint(corpora.read(TEXT)), "curve": CURVE, "length": length}
    places = [(False, CURVE["layer"], n, window) for n in CURVE["lengths"] for window in range(CURVE["windows"])]
    layers = range(load("minilm", masked=False, dtype="float64").layers)
    places += [(masked, layer, length, 0) for masked in (False, True) for layer in layers]
    units = [
        Unit("/".join(map(str, place)), lambda place=place: text_rows(*place), 10) for place in dict.fromkeys(places)
    ]
    return settings, units


def _prepare_growth():
    places = [(along, n, t) for along, (lengths, heats) in AT_FORK.items() for n in lengths for t in heats]
    units = [Unit("/".join(map(str, place)), lambda place=place: growth_rows(*place), 20) for place in places]
    return {"at": AT_FORK, "dtype": "float64"}, units


def again(row):
    """A row of the table ``zoo`` measured again; for `lab.experiments.remeasure`."""
    entry = ENTRIES[row["bound"]]
    case = draw(entry.family, row["kind"], row["seed"], masked=row["masked"])
    case = rougher(case, entry.ratio) if row["kind"] == "ascended" else case
    return {"truth": entry.truth(case), "stated": entry.at(case)}


TABLES = (
    Table("zoo", _prepare_zoo, {"counts": COUNTS}),
    Table("zoo-text", _prepare_text, {"length": LENGTH}),
    Table("zoo-growth", _prepare_growth),
)
