"""Tables of the language model: four kinds of attention, trained at several depths, rates and seeds.

They train networks: half an hour each on one core. `python -m lab tables` makes them only if requested by name.
"""

import math
from functools import lru_cache, partial

import pandas as pd
import torch

from lab import results
from lab.experiments.table import table
from lab.experiments.trained_layers import feed_forward_rows, layer_rows
from lab.training import (
    ATTENTIONS,
    DIVIDED,
    WITHOUT,
    CharacterTransformer,
    Stacked,
    advance,
    bigram_loss,
    character_ids,
    character_parts,
    train,
    unigram_loss,
    validation_loss,
    windows_of,
)
from lipnb import bounds
from lipscan import corpora
from lipscan.recording import Recording, Unit

__all__ = ["CHECK", "DEPTH", "FIXED", "first_steps", "texts", "train_run"]

SEEDS, MORE_SEEDS = 3, 5  # more if a claim rests on counts: the first at all depths, the others at some
SIZES = {"length": 64, "width": 64, "heads": 4, "hidden": 256}
ADAM = {"decay": 0.0, "betas": (0.9, 0.98), "clip": math.inf}
WINDOWS = {"validation": 64, "test": 256, "measured": 4}  # of `length` characters each
# Depth: warm-up, then the inverse root. The rate is the best for each kind in the scan that is part of the table.
DEPTH = {"schedule": "inverse_sqrt", "warmup": 100, "batch": 16, "steps": 1000, "evaluate_every": 100}
SCAN = {**DEPTH, "warmup": 30, "steps": 300, "evaluate_every": 300}
SCANNED, SCAN_DEPTH, SCAN_SEED = (3e-3, 1e-2, 3e-2), 3, 100
RATE = 1e-2
# Stability: one rate from the first step to the last.
FIXED = {"schedule": "constant", "warmup": 1, "batch": 8, "steps": 300, "evaluate_every": 50}
FIXED_RATE, OTHER_RATES, DEPTHS = 1e-3, (3e-4, 3e-3), tuple(range(2, 19, 2))
LONGER = {**FIXED, "steps": 10 * FIXED["steps"], "evaluate_every": 100}
# A few steps on the text that ships with Python, so that a page can train them again.
CHECK = {"corpus": "python_reference", "layers": 2, "seed": 0, "steps": 20, "evaluate_every": 10}
# Networks with as many parameters as those of dot products: wider feed-forward parts make up for those of attention.
WIDER = {"l2-tied": 32, "contractive": 34, "none": 128, "none-contractive": 130}
# What keeps a network from training: its kind, the scale of its start (factors), or the position of LayerNorm?
STARTS = {"dot": (1 / 16, 1.0), "l2-untied": (1 / 16, 1.0), "l2-tied": (1.0, 16.0), DIVIDED: (1.0,), "none": (1.0,)}
# Controls at the one of the three rates that was too large for deep networks with dot products.
CONTROLS = (
    ("dot", {}),
    ("dot", {"start": 1 / 16}),
    ("dot", {"norm": "before"}),
    ("l2-tied", {}),
    ("l2-tied", {"start": 16.0}),
)


@lru_cache(maxsize=2)
def texts(corpus):
    """Training, validation and test characters as numbers, and the size of the vocabulary."""
    return character_ids(character_parts(corpus))


def _part(ids, windows):
    return ids[: windows * SIZES["length"] + 1]


def train_run(
    part,
    *,
    corpus,
    attention,
    layers,
    rate,
    seed,
    options,
    start=1.0,
    norm="after",
    positions="sinusoids",
    hidden=None,
    measured=True,
    progress=False,
):
    """Train one network and measure it; a killed run continues from its last evaluation.

    Parameters
    ----------
    part : str
        Name of the part of the table, stored in the rows.
    corpus : str
        As for `lab.training.character_parts`.
    attention, layers, start, norm, positions, seed
        As for `lab.training.CharacterTransformer`; `seed` also draws the windows.
    rate, options : float, dict
        As for `lab.training.train`.
    hidden : int, optional
        Width of the feed-forward part, if it differs from that of the other runs.
    measured : bool
        Whether to measure the test loss and the trained layers.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    list of dict
        Rows named by `row`: "evaluation" (the learning curve), "test", "layer" and "feed-forward".
    """
    (training, validation, test), vocabulary = texts(corpus)
    sizes = SIZES if hidden is None else {**SIZES, "hidden": hidden}
    network = CharacterTransformer(
        vocabulary, attention=attention, layers=layers, start=start, norm=norm, positions=positions, seed=seed, **sizes
    )
    run = {
        "part": part,
        "attention": attention,
        "start": start,
        "norm": norm if network.normalised else "none",
        "positions": positions,
        "layers": layers,
        "rate": rate,
        "seed": seed,
        **({} if hidden is None else {"hidden": hidden}),
    }
    cache = results.folder().parent / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    name = "characters-" + "-".join(map(str, run.values()))
    record = Recording(cache / f"{name}.partial.jsonl", {**run, **options, "corpus": corpus, **sizes})
    loss = train(
        network,
        training,
        _part(validation, WINDOWS["validation"]),
        record,
        state=cache / f"{name}.pt",
        length=SIZES["length"],
        rate=rate,
        seed=seed,
        progress=progress,
        on_divergence="record",
        **ADAM,
        **options,
    )
    curve = [row for step in range(options["steps"] + 1) for row in record.rows(f"step {step}") or ()]
    (cache / f"{name}.partial.jsonl").unlink()
    names = ("step", "training_loss", "validation_loss")
    rows = [{**run, "row": "evaluation", **{name: row[name] for name in names}} for row in curve]
    if measured:
        nats = validation_loss(network, _part(test, WINDOWS["test"]), SIZES["length"])
        network.eval()
        test_row = {"row": "test", "step": curve[-1]["step"], "diverged": not math.isfinite(loss)}
        rows.append(run | test_row | {"nats": nats, "bits": nats / math.log(2)})
        if math.isfinite(loss):
            windows = corpora.windows(test, SIZES["length"], WINDOWS["measured"])
            of_layers = [] if attention in WITHOUT else layer_rows(network, windows)
            if attention.endswith("contractive"):
                of_layers += feed_forward_rows(network)
            rows += [{**run, **row} for row in of_layers]
    return rows


def first_steps(part, table, settings, kinds=ATTENTIONS):
    """First steps of a run of each kind, trained again on the text of Python, next to those of a stored table.

    Parameters
    ----------
    part : {"depth", "fixed"}
        The runs of the table to repeat.
    table, settings : DataFrame, dict
        The table, and the settings in its provenance.
    kinds : sequence of str
        The kinds to train, from `ATTENTIONS`.

    Returns
    -------
    again : DataFrame
        attention, step, "now" and "stored", the validation losses.
    same_text : bool
        Whether this Python ships the edition of the text that the table was made with; if not, the losses differ.
    """
    corpus, options = CHECK["corpus"], {name: CHECK[name] for name in ("steps", "evaluate_every")}
    same_text = corpora.fingerprint(corpora.read(corpus)) == settings["text"][corpus]
    options = {**{"depth": DEPTH, "fixed": FIXED}[part], **options}
    runs = [
        train_run(
            "again",
            corpus=corpus,
            attention=kind,
            layers=CHECK["layers"],
            rate=settings["rate"],
            seed=CHECK["seed"],
            options=options,
            measured=False,
        )
        for kind in kinds
    ]
    losses = [
        pd.DataFrame(rows)[["attention", "step", "validation_loss"]].rename(columns={"validation_loss": name})
        for name, rows in (("now", sum(runs, [])), ("stored", table[table.part == f"{part} again"]))
    ]
    return losses[0].merge(losses[1], on=["attention", "step"]), same_text


def _baselines(corpus):
    """Losses of character frequencies, on the test windows."""
    (training, _, test), vocabulary = texts(corpus)
    test = _part(test, WINDOWS["test"])
    return [
        {"part": name, "row": "baseline", "nats": nats, "bits": nats / math.log(2)}
        for name, nats in (
            ("unigram", unigram_loss(training, test, vocabulary)),
            ("bigram", bigram_loss(training, test, vocabulary)),
        )
    ]


def _units(part, options, corpus, runs, **more):
    """A unit for each run; its key lists attention, layers, rate, seed and any other differences."""
    units = []
    for attention, layers, rate, seed, changes in runs:
        key = "/".join(map(str, (part, attention, *changes.values(), layers, rate, seed)))
        run = {"attention": attention, "layers": layers, "rate": rate, "seed": seed, "options": options}
        units.append(Unit(key, partial(train_run, part, corpus=corpus, **run, **changes, **more), options["steps"]))
    return units


def _checks(part, options, rate):
    options = {**options, "steps": CHECK["steps"], "evaluate_every": CHECK["evaluate_every"]}
    return _units(
        f"{part} again",
        options,
        CHECK["corpus"],
        [(kind, CHECK["layers"], rate, CHECK["seed"], {}) for kind in ATTENTIONS],
        measured=False,
    )


def _settings(corpus, options, **more):
    text = {name: corpora.fingerprint("".join(character_parts(name))) for name in (corpus, CHECK["corpus"])}
    (training, validation, test), vocabulary = texts(corpus)
    return {
        "corpus": corpus,
        "text": text,
        "characters": [len(training), len(validation), len(test)],
        "vocabulary": vocabulary,
        "sizes": SIZES,
        "windows": WINDOWS,
        "precision": "float32",
        "training": {name: value for name, value in {**options, **ADAM}.items() if value != math.inf},
        "strength": 0.9,
        "growth": bounds.l2_growth(SIZES["length"]),
        **more,
    }


def _without(count, depths, rate):
    """The controls: the same runs with attention deleted."""
    return [(kind, layers, rate, seed, {}) for seed in range(count) for layers in depths for kind in WITHOUT]


def _runs(seeds, depths, rate, kinds=ATTENTIONS):
    """Runs of some kinds with some seeds; kinds outside the paper's bounds come last."""
    runs = [(kind, layers, rate, seed, {}) for seed in seeds for layers in depths for kind in kinds]
    return sorted(runs, key=lambda run: run[0] == "l2-untied" and run[3] > 0)


@table("language-model", "losses by depth: four kinds of attention, trained on Penn Treebank characters", trains=True)
def _depth(corpus="ptb", count=SEEDS, depths=(1, 2, 3, 4, 5)):
    """Prepare the depth runs; the number of seeds is not a setting, so a begun table can get more seeds."""
    scan = [(kind, SCAN_DEPTH, rate, SCAN_SEED, {}) for kind in ATTENTIONS for rate in SCANNED]
    runs = _runs(range(count), depths, RATE)
    wider = [
        (kind, depths[1], RATE, seed, {"hidden": SIZES["hidden"] + more})
        for seed in range(count)
        for kind, more in WIDER.items()
    ]
    learned = [(kind, 2, RATE, 0, {"positions": "learned"}) for kind in ATTENTIONS]
    units = [
        Unit("baselines", lambda: _baselines(corpus), 1),
        *_checks("depth", DEPTH, RATE),
        *_units("scan", SCAN, corpus, scan),
        *_units("depth", DEPTH, corpus, runs),
        *_units("positions", DEPTH, corpus, learned),
        *_units("depth", DEPTH, corpus, _without(count, depths, RATE)),
        *_units("matched", DEPTH, corpus, wider),
    ]
    return _settings(corpus, DEPTH, scan=SCAN, rate=RATE), units


@table("training-stability", "which of them train at a fixed rate, 2 to 18 layers", trains=True)
def _stability(corpus="ptb", count=MORE_SEEDS, depths=DEPTHS):
    """Prepare the stability runs; extra seeds run the kinds of the claim at some depths, others at the middle one."""
    first, later = range(min(count, SEEDS)), range(SEEDS, count)
    some, middle = depths[::4], depths[len(depths) // 2 :][:1]
    runs = _runs(first, depths, FIXED_RATE)
    runs += _runs(later, some, FIXED_RATE, [kind for kind in ATTENTIONS if kind != "l2-untied"])
    runs += _without(len(first), some, FIXED_RATE)
    runs += _runs(later, middle, FIXED_RATE, ("l2-untied", *WITHOUT))
    units = [
        Unit("baselines", lambda: _baselines(corpus), 1),
        *_checks("fixed", FIXED, FIXED_RATE),
        *_units("fixed", FIXED, corpus, runs),
    ]
    return _settings(corpus, FIXED, rate=FIXED_RATE), units


@lru_cache(maxsize=1)
def _stacks(corpus, count, depths, kinds, steps, device):
    """New networks of these kinds and depths, all seeds of one together: (kind, layers) -> `Stacked`."""
    (training, _, _), vocabulary = texts(corpus)
    length, batch = SIZES["length"], FIXED["batch"]
    windows = windows_of(training, range(count), steps=steps, batch=batch, length=length, device=device)

    def stacked(kind, layers):
        networks = [
            CharacterTransformer(vocabulary, attention=kind, layers=layers, seed=seed, **SIZES) for seed in range(count)
        ]
        return Stacked(networks, windows, rate=FIXED_RATE, betas=ADAM["betas"])

    return {(kind, layers): stacked(kind, layers) for layers in depths for kind in kinds}


def _trained_to(step, part, options, stacks, corpus):
    """Losses of all networks after this step, and after the last step also those on the test part."""
    stacks, since = stacks(), step - options["evaluate_every"]
    (_, *held_out), _ = texts(corpus)
    advance(stacks.values(), step)
    rows = []
    for name, ids in zip(("validation", "test"), held_out, strict=True):
        for (kind, layers), stack in stacks.items() if name == "validation" or step == options["steps"] else ():
            norm = "none" if kind.endswith("contractive") else "after"
            run = {"part": part, "attention": kind, "norm": norm, "layers": layers, "rate": FIXED_RATE}
            losses = stack.validation_losses(_part(ids, WINDOWS[name]), SIZES["length"])
            before = stack.losses[since:step].double().mean(0).tolist()
            for seed, nats in enumerate(losses):
                found = {"row": "test", "nats": nats, "bits": nats / math.log(2)}
                if name == "validation":
                    found = {"row": "evaluation", "training_loss": before[seed], "validation_loss": nats}
                rows.append({**run, "seed": seed, "step": step, **found})
    return rows


def _together(part, options, corpus, count, depths, kinds, device):
    """A unit for each evaluation of runs that are trained together; a killed unit starts over."""
    stacks = partial(_stacks, corpus, count, tuple(depths), kinds, options["steps"], device)
    every = options["evaluate_every"]
    return [
        Unit(f"{part}/{step}", partial(_trained_to, step, part, options, stacks, corpus), every)
        for step in range(every, options["steps"] + 1, every)
    ]


@table("training-longer", "which of them train at that rate in ten times as many steps", trains=True)
def _longer(corpus="ptb", count=SEEDS, depths=DEPTHS[4::4]):
    """Prepare the long runs: minutes on a GPU, hours without; first steps as in training-stability, up to rounding."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = {"rate": FIXED_RATE, "device": torch.cuda.get_device_name() if device == "cuda" else "processor"}
    units = _together("longer", LONGER, corpus, count, depths, (*ATTENTIONS, *WITHOUT), device)
    return _settings(corpus, LONGER, **settings), units


@table("training-rounding", "deep dot products of training-stability again, with sums in another order", trains=True)
def _rounding(corpus="ptb", count=SEEDS, layers=DEPTHS[-1]):
    """Prepare the runs that show the effect of rounding: the same steps of the same networks, on the processor too."""
    units = _together("rounding", FIXED, corpus, count, (layers,), ("dot",), "cpu")
    return _settings(corpus, FIXED, rate=FIXED_RATE), units


@table(
    "training-controls", "which of them train at other rates, other starts and another place of LayerNorm", trains=True
)
def _controls(corpus="ptb", count=SEEDS, depths=(2, 10, 18)):
    other = [
        (kind, layers, rate, 0, {})
        for rate in OTHER_RATES
        for layers in depths
        for kind in (*ATTENTIONS, *WITHOUT)
        if kind != "l2-untied"
    ]
    control = [
        (kind, max(depths), max(OTHER_RATES), seed, changes) for seed in range(count) for kind, changes in CONTROLS
    ]
    units = [*_units("control", FIXED, corpus, control), *_units("rate", FIXED, corpus, other)]
    return _settings(corpus, FIXED, rates=OTHER_RATES), units


@table("training-factorial", "what the kind, the start and the place of LayerNorm each do, at one depth", trains=True)
def _factorial(corpus="ptb", count=MORE_SEEDS, layers=6):
    """Prepare the factorial design: every kind, a small and a large start, LayerNorm after and before."""
    runs = [
        (kind, layers, FIXED_RATE, seed, {"start": start, "norm": norm})
        for seed in range(count)
        for kind, starts in STARTS.items()
        for start in starts
        for norm in ("after", "before")
    ]
    units = [Unit("baselines", lambda: _baselines(corpus), 1), *_units("factorial", FIXED, corpus, runs)]
    return _settings(corpus, FIXED, rate=FIXED_RATE, layers=layers), units
