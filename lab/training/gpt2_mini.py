"""Training of gpt2-mini: a small GPT-2 with learned positions that is available offline."""

import json
from pathlib import Path

from lab import results
from lab.training.baselines import bigram_loss, unigram_loss
from lab.training.gpt2 import new_gpt2
from lab.training.kneser_ney import kneser_ney_loss
from lab.training.loop import fast_precision, train
from lab.training.text import END, gutenberg_or_embedded, split_text, token_ids, train_tokenizer
from lipscan import corpora, models

__all__ = ["SIZES", "STEPS", "make_gpt2_mini"]

SIZES = {"vocabulary": 4096, "positions": 512, "width": 256, "layers": 6, "heads": 4}
STEPS = 2400
BATCH = 8
RATE = 1.5e-3

FACTS = (
    "loss",
    "unigram",
    "bigram",
    "kneser_ney_3",
    "kneser_ney_4",
    "parameters",
    "training_tokens",
    "validation_tokens",
)

CARD = """# gpt2-mini

A GPT-2 (learned positions, LayerNorm first, causal) trained from random weights by this project, so that a trained
decoder with learned positions is at hand offline. It is made for measurements of its attention layers; the texts it
writes are of no use.

- {parameters:,} parameters: {layers} layers, {heads} heads, width {width}, {positions} positions, and a byte-level
  byte-pair vocabulary of its own, of {vocabulary:,} entries. Weights in float16.
- Text: {text}.
  The last 2 % of each were held out. {training_tokens:,} tokens to train on, {validation_tokens:,} held out.
- Training: {steps:,} steps of {batch} windows of {positions} tokens ({seen:,} tokens), AdamW, rate {rate:g} with cosine
  decay, seed {seed}, products in {precision}.
- Loss on the held-out text, nats per token: {loss:.3f}.
  Token frequencies give {unigram:.3f}, frequencies after the token before {bigram:.3f}; smoothed by Kneser and Ney's
  method, as Chen and Goodman modified it, trigrams give {kneser_ney_3:.3f} and 4-grams {kneser_ney_4:.3f}.

The loss curve is `data/results/{table}.csv`. `make model` trains it again where this folder is missing.
The texts are in the public domain; the weights are under the licence of the project.
"""


def make_gpt2_mini(
    *,
    steps=STEPS,
    seed=0,
    folder=None,
    table="gpt2-mini-training",
    sizes=SIZES,
    batch=BATCH,
    rate=RATE,
    precision=None,
    evaluate_every=50,
    texts=None,
    progress=True,
):
    """Train gpt2-mini and write its checkpoint and card; a killed run continues where it was.

    Parameters
    ----------
    steps, batch, rate, evaluate_every : int, int, float, int
        As for `lab.training.train`.
    seed : int
        Seed of the weights and of the windows.
    folder : path, optional
        Folder of the checkpoint; default where `lipnb.models.load("gpt2-mini")` looks.
    table : str
        Name of the table of losses.
    sizes : dict
        Keys vocabulary, positions, width, layers and heads.
    precision : {"float32", "bfloat16"}, optional
        Default: the fast precision on this machine, see `lab.training.fast_precision`.
    texts : dict of str to str, optional
        Name -> text; default NLTK's Gutenberg texts without Alice, on which the book measures, or otherwise the text
        that ships with Python.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    Path
        The folder of the checkpoint.

    Raises
    ------
    OSError
        The folder cannot be written; raised before training.
    ValueError, RuntimeError
        As for `lab.results.recording` and `lab.training.train`.
    """
    folder = Path(folder) if folder is not None else models.mini_folder()
    _writable(folder)
    source, texts = gutenberg_or_embedded() if texts is None else (", ".join(texts), texts)
    precision = precision or fast_precision()
    settings = {
        "texts": {name: corpora.fingerprint(text) for name, text in texts.items()},
        "sizes": dict(sizes),
        "steps": steps,
        "batch": batch,
        "rate": rate,
        "seed": seed,
        "precision": precision,
        "evaluate_every": evaluate_every,
    }
    with results.recording(table, settings) as record:
        beginnings, ends = split_text(list(texts.values()))
        tokenizer = train_tokenizer(beginnings, sizes["vocabulary"])
        vocabulary = tokenizer.get_vocab_size()
        training, validation = token_ids(tokenizer, beginnings), token_ids(tokenizer, ends)
        network = new_gpt2(
            vocabulary,
            **{k: v for k, v in sizes.items() if k != "vocabulary"},
            end=tokenizer.token_to_id(END),
            seed=seed,
        )
        state = results.folder().parent / "cache" / f"{table}.pt"
        loss = train(
            network,
            training,
            validation,
            record,
            state=state,
            steps=steps,
            batch=batch,
            length=sizes["positions"],
            rate=rate,
            warmup=max(1, steps // 12),
            evaluate_every=evaluate_every,
            seed=seed,
            precision=precision,
            progress=progress,
        )
        facts = {
            **settings,
            **sizes,
            "vocabulary": vocabulary,
            "text": source,
            "loss": loss,
            "parameters": sum(p.numel() for p in network.parameters()),
            "training_tokens": len(training),
            "validation_tokens": len(validation),
            "seen": steps * batch * sizes["positions"],
            "table": table,
            "unigram": unigram_loss(training, validation, vocabulary),
            "bigram": bigram_loss(training, validation, vocabulary),
        }
        for order in (3, 4):  # in the windows of the network
            facts[f"kneser_ney_{order}"] = kneser_ney_loss(training, validation, vocabulary, order, sizes["positions"])
        models.save_gpt2(network, tokenizer, END, folder)
        (folder / "README.md").write_text(CARD.format(**facts))
        kept = {name: facts[name] for name in FACTS}
        (folder / "training.json").write_text(json.dumps({"text": source, **kept}, indent=1) + "\n")
        record.finish()
    return folder


def _writable(folder):
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OSError(
            f"the folder {folder} cannot be written ({error.strerror}): choose another with --folder."
        ) from None
