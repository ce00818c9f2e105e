"""Table of the constant's growth in small networks trained with learned, no or rotary positions.

Nine networks (three kinds of positions, three seeds) are trained alike and measured at checkpoints, on windows of
Alice at random positions, the same for all. Their weights are not kept. `python -m lab tables twins` makes the table;
it is only made if requested by name.
"""

import shutil

from lab import results
from lab.experiments.attention_summary import popularity
from lab.experiments.table import by_window, table
from lab.training import (
    KINDS,
    bigram_loss,
    gutenberg_or_embedded,
    kneser_ney_loss,
    new_twin,
    split_text,
    token_ids,
    train,
    train_tokenizer,
    validation_loss,
)
from lipnb.lipschitz import local_lipschitz
from lipscan import corpora, models
from lipscan.recording import Recording, Unit

SIZES = {"length": 512, "width": 128, "layers": 6, "heads": 4}
VOCABULARY, END = 2048, "<|endoftext|>"
STEPS, BATCH, RATE = 4000, 2, 2e-3
CHECKPOINTS = (0, 500, 1000, 2000, STEPS)
LENGTHS, WINDOWS, CORPUS = (8, 16, 32, 64, 128, 256, 512), 4, "alice"
RTOL = 1e-3


def train_twin(positions, seed, tokenizer, ids, folder, *, sizes=SIZES, steps=STEPS, checkpoints=CHECKPOINTS):
    """Train one network and keep its checkpoints as folders for `lipnb.models.load`.

    `positions`, `seed`: as for `lab.training.new_twin`; `seed` also draws the windows, the same for all kinds.
    `tokenizer`: defines the vocabulary of the network.
    `ids`: training tokens and held-out tokens.
    `folder`: gets a folder for each checkpoint, named by its step; during training also the state for a resumed run.
    `sizes`, `steps`, `checkpoints`: of the networks; training steps; steps after which a checkpoint is kept, 0 for the
    start.
    Returns the held-out loss, nats per token, at each checkpoint.
    """
    training, held_out = ids
    network = new_twin(positions, tokenizer.get_vocab_size(), seed=seed, **sizes)
    every = max(1, steps // 8)
    losses = {0: validation_loss(network, held_out, sizes["length"])}

    def keep(step):
        if step in checkpoints:
            trainable = [p.requires_grad for p in network.parameters()]
            models.save_gpt2(network, tokenizer, END, folder / str(step), dtype=None)
            for parameter, grad in zip(network.parameters(), trainable, strict=True):
                parameter.requires_grad_(grad)

    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "state.pt").exists():
        keep(0)
    record = Recording(folder / "curve.partial.jsonl", {"positions": positions, "seed": seed, "steps": steps, **sizes})
    train(
        network,
        training,
        held_out,
        record,
        state=folder / "state.pt",
        steps=steps,
        batch=BATCH,
        length=sizes["length"],
        rate=RATE,
        warmup=every,
        evaluate_every=every,
        seed=seed,
        progress=False,
        at_evaluation=keep,
    )
    curve = [row for step in range(steps + 1) for row in record.rows(f"step {step}") or ()]
    return losses | {row["step"]: row["validation_loss"] for row in curve}


def measured_rows(folder, lengths=LENGTHS, windows=WINDOWS, corpus=CORPUS):
    """Constants of all layers of one checkpoint, on windows that depend only on the tokenizer and the length.

    Returns one row for each layer, length and window.
    """
    model, rows = models.load(folder), []
    for n in lengths:
        tokens = models.random_windows(model, corpora.read(corpus), n, windows, seed=n, special=False)
        for layer, read in enumerate(models.readings(model, tokens)):
            f, x = model.attention(layer), read.received
            lip, who = local_lipschitz(f, x, rtol=RTOL), popularity(f, x)
            columns = {"lipschitz": lip.value, "converged": lip.converged}
            columns |= {"mean_radius": x.double().square().sum(-1).mean(-1).sqrt()}
            columns |= {name: who[name] for name in ("column", "attention_norm", "entropy")}
            rows += [{"layer": layer, "length": n, **row} for row in by_window(columns)]
    return rows


def _rows(positions, seed, tokenizer, ids, name):
    """Rows of one network: a loss for each evaluation, constants at its checkpoints."""
    folder = results.folder().parent / "cache" / f"{name}-{positions}-{seed}"
    losses = train_twin(positions, seed, tokenizer, ids, folder)
    run = {"positions": positions, "seed": seed}
    rows = [{**run, "row": "loss", "step": step, "loss": loss} for step, loss in losses.items()]
    for step in CHECKPOINTS:
        rows += [{**run, "row": "layer", "step": step, **row} for row in measured_rows(folder / str(step))]
    shutil.rmtree(folder)
    return rows


def _baselines(ids, vocabulary):
    """Losses of baselines without a network, on the held-out tokens."""
    losses = {"bigram": bigram_loss(*ids, vocabulary)}
    losses |= {f"kneser-ney {order}": kneser_ney_loss(*ids, vocabulary, order, SIZES["length"]) for order in (3, 4)}
    return [{"positions": name, "row": "baseline", "loss": loss} for name, loss in losses.items()]


@table(
    "twins", "the growth in small networks trained with learned, no and rotary positions, by checkpoint", trains=True
)
def _prepare(seeds=3):
    source, texts = gutenberg_or_embedded()
    beginnings, ends = split_text(list(texts.values()))
    tokenizer = train_tokenizer(beginnings, VOCABULARY)
    ids = token_ids(tokenizer, beginnings), token_ids(tokenizer, ends)
    vocabulary = tokenizer.get_vocab_size()
    settings = {
        "text": source,
        "texts": {name: corpora.fingerprint(text) for name, text in texts.items()},
        "corpus": corpora.fingerprint(corpora.read(CORPUS)),
        "sizes": {"vocabulary": vocabulary, **SIZES},
        "training": {"steps": STEPS, "batch": BATCH, "rate": RATE, "precision": "float32"},
        "tokens": [len(part) for part in ids],
        "checkpoints": list(CHECKPOINTS),
        "lengths": list(LENGTHS),
        "windows": WINDOWS,
        "rtol": RTOL,
    }

    def unit(positions, seed):
        return Unit(f"{positions}/{seed}", lambda: _rows(positions, seed, tokenizer, ids, "twins"), STEPS)

    work = [unit(positions, seed) for seed in range(seeds) for positions in KINDS]
    return settings, [Unit("baselines", lambda: _baselines(ids, vocabulary), 100), *work]
