"""Tables of the bounds survey: every bound over its truth, on drawn and worst inputs of one head, and on text."""

import math

import torch

from lab.bounds_survey import ENTRIES, KINDS, draw, rougher
from lab.experiments.loading import load
from lab.experiments.table import table
from lipnb import Attention, certify, local_lipschitz
from lipnb.bounds.catalogue import CATALOGUE, Case
from lipnb.worst_case import fork_input
from lipscan import corpora, models

COUNTS = {"random": 24, "rough": 12, "ascended": 4}  # of each bound and mask
MASKED = ("head", "bias", "layer", "measure", "rotary", "l2")  # families that may be causal
TEXT = "python_reference"
CURVE = {"layer": 3, "lengths": (8, 16, 32, 64, 128), "windows": 3}  # of the layer that is followed over lengths
LENGTH = 32  # of the inputs of all layers
AT_FORK = {"along n": ((4, 8, 16, 32, 64, 128, 256, 512), (6.0,)), "along R": ((64,), (0.25, 0.5, 1, 2, 4, 8, 16, 32))}


def _cases():
    """Bounds, masks and kinds of input."""
    return [
        (key, masked, kind)
        for key, entry in ENTRIES.items()
        for masked in (entry.masks if entry.family in MASKED else (False,))
        for kind in KINDS
    ]


@table(
    "bounds-survey",
    "every bound over what it bounds, on random, rough and ascended inputs",
    over=_cases,
    size=lambda kind, counts: counts[kind],
    settings={"dtype": "float64"},
)
def survey_rows(bound, masked, kind, *, counts=COUNTS):
    """Rows of the table ``bounds-survey`` for one bound, mask and kind of input.

    `bound`: of `lab.bounds_survey.ENTRIES`. `masked`: whether the maps are causal. `kind`: one of
    `lab.bounds_survey.KINDS`. Returns bound (its key), masked, kind, seed, n, R, truth, stated, and over, stated over
    truth: below one if a formula is exceeded.
    """
    return [_case_row(bound, masked, kind, seed) for seed in range(counts[kind])]


def _case_row(bound, masked, kind, seed):
    entry = ENTRIES[bound]
    case = draw(entry.family, kind, seed, masked=masked)
    case = rougher(case, entry.ratio) if kind == "ascended" else case
    truth, stated = entry.truth(case), entry.at(case)
    over = stated / truth if truth > 0 else math.nan
    return {"seed": seed, "n": case.n, "R": case.R, "truth": truth, "stated": stated, "over": over}


def again(row):
    """A row of the table ``bounds-survey`` measured again; for `lab.experiments.remeasure`."""
    found = _case_row(*(row[name] for name in ("bound", "masked", "kind", "seed")))
    return {name: found[name] for name in ("truth", "stated")}


def layer_bounds(attention, x):
    """Every bound that holds for a whole layer of dot-product heads at one input, Euclidean; natural logarithms.

    `attention`: any heads, biases and mask. `x` (n, d): tokens, float64. Returns key of
    `lab.bounds_survey.ENTRIES` -> logarithm; heads are summed by Lemma 3.8, except for `ball_upper`.
    """
    case = Case(attention, x)
    shown = [bound for bound in CATALOGUE if bound.column or bound.key in ("yudin_sharp", "ball_upper")]
    return {bound.key: bound.log(case) for bound in shown if bound.applies(attention, layer=True) is None}


def _windows(length):
    """Mask, layer, length and window: one layer over lengths, and all layers at one length."""
    curve = [(False, CURVE["layer"], n, window) for n in CURVE["lengths"] for window in range(CURVE["windows"])]
    layers = range(load("minilm", masked=False, dtype="float64").layers)
    return dict.fromkeys([*curve, *((masked, layer, length, 0) for masked in (False, True) for layer in layers)])


@table(
    "bounds-survey-text",
    "bounds of whole layers of MiniLM at text, by length",
    over=_windows,
    size=10,
    settings=lambda: {"text": TEXT, "edition": corpora.fingerprint(corpora.read(TEXT)), "curve": CURVE},
    length=LENGTH,
)
def text_rows(masked, layer, length, window):
    """Rows of the table ``bounds-survey-text``: one layer of MiniLM at one window of Python's reference.

    Returns masked, layer, length, window, R, truth (of the solver), bound and log10, the bound's decimal logarithm.
    """
    network = load("minilm", masked=masked, dtype="float64")
    ids = models.first_tokens(network, corpora.read(TEXT), length * (window + 1))
    tokens = corpora.windows(ids, length, window + 1)[window:]
    attention, x = network.attention(layer), network.activations(tokens, layer)[0]
    truth = local_lipschitz(attention, x).value.item()
    found = {"three_terms": certify(attention, x, columns=0).upper.log().item(), **layer_bounds(attention, x)}
    about = {"R": x.norm(dim=-1).max().item(), "truth": truth}
    return [{**about, "bound": key, "log10": value / math.log(10)} for key, value in found.items()]


def growth_rows(along, n, t, *, width=8):
    """Bounds of one random head at its fork, and at random tokens of the same ball.

    `along`: name of the series. `t`: logit range of the ball. `width`: of the head, with Gaussian A and V of norm one.
    Returns along, n, t, input ("fork" or "random"), truth, bound, log10.
    """
    g = torch.Generator().manual_seed(0)
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


@table(
    "bounds-survey-growth",
    "bounds of one head at its worst inputs, by length and radius",
    over=[(along, n, t) for along, (lengths, ranges) in AT_FORK.items() for n in lengths for t in ranges],
    size=20,
    settings={"at": AT_FORK, "dtype": "float64"},
)
def fork_rows(along, n, t):
    """Rows of the table ``bounds-survey-growth``: `growth_rows` of the head that the book shows."""
    return growth_rows(along, n, t)
