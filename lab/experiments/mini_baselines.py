"""Table of gpt2-mini's loss and those of token frequencies and smoothed n-grams, as a whole and by position."""

from functools import lru_cache

import numpy as np
import torch

from lab import results
from lab.experiments.table import table
from lab.training import KneserNey, gutenberg_or_embedded, split_text, token_ids, token_losses
from lab.training.baselines import bigram_losses, unigram_losses
from lab.training.gpt2 import load_gpt2
from lab.training.text import END
from lipscan import models
from lipscan.corpora import fingerprint, read
from lipscan.recording import Unit

SHORT = 64
MODELS = ("network", f"network, {SHORT} tokens", "unigram", "bigram", "kneser-ney 3", "kneser-ney 4")
CORPORA = ("held out", "alice")


def octaves(length):
    """Positions 0 to ``length - 1`` in bins 0, 1, 2 to 3, 4 to 7, and so on: pairs of first and last position."""
    ends = [2**k for k in range((length - 1).bit_length())]
    return [(0, 0), *((first, min(2 * first, length) - 1) for first in ends)]


@lru_cache(maxsize=1)
def _texts():
    """Training tokens and those of each text, in gpt2-mini's vocabulary."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(models.mini_folder() / "tokenizer.json"))
    beginnings, ends = split_text(list(gutenberg_or_embedded()[1].values()))
    alice = token_ids(tokenizer, [read("alice")])[:-1]
    assert tokenizer.token_to_id(END) == token_ids(tokenizer, [""])[0]
    texts = {"held out": token_ids(tokenizer, ends), "alice": alice}
    return token_ids(tokenizer, beginnings), texts, tokenizer.get_vocab_size()


def short_sighted(network, ids, length, short=SHORT):
    """Losses of a network that sees only the last few tokens.

    `network`: from token ids (b, n) to logits (b, n, vocabulary).
    `ids` (windows * length + 1,): token ids.
    `length`: tokens in a window, a multiple of ``short // 2``.
    `short`: it sees at most that many tokens, and at least half as many or the whole window so far; even.
    Returns (windows, length): losses of the same tokens as `lab.training.token_losses` of these windows, equal to it up
    to position ``short - 1``.
    """
    pieces = ids.unfold(0, length + 1, length).unfold(1, short + 1, short // 2)
    count, each, _ = pieces.shape
    # as one text; the token after each piece is the first one of the next
    losses = token_losses(network, torch.cat([pieces.flatten(), ids[:1]]), short + 1)[:, :short]
    losses = losses.view(count, each, short)
    return torch.cat([losses[:, 0, : short // 2], losses[:, :, short // 2 :].flatten(1)], dim=1)


def _losses(name, corpus, length):
    """Loss of each token of disjoint windows, shape (windows, length); the tokens are the same for all models."""
    training, texts, vocabulary = _texts()
    ids = texts[corpus]
    ids = ids[: (len(ids) - 1) // length * length + 1]
    if name.startswith("network"):
        network = load_gpt2(models.mini_folder())
        return (
            token_losses(network, ids, length) if name == "network" else short_sighted(network, ids, length)
        ).numpy()
    if name == "unigram":
        return unigram_losses(training, ids[1:], vocabulary).reshape(-1, length)
    if name == "bigram":
        return bigram_losses(training, ids, vocabulary).reshape(-1, length)
    return KneserNey(training, vocabulary, int(name.split()[1])).losses(ids, length)


def _mean(windows):
    """Mean over windows and its standard error."""
    return float(windows.mean()), float(windows.std(ddof=1) / np.sqrt(len(windows)))


def _rows(corpus, length):
    """Rows of all models on one text: loss, advantage of the network, and its growth since positions 32 to 63."""
    losses = {name: _losses(name, corpus, length) for name in MODELS}
    rows = []
    begin, end = octaves(length)[-4]  # positions 32 to 63 of 512
    for name, found in losses.items():
        reference = (found - losses["network"])[:, begin : end + 1].mean(axis=1)
        for part, first, last in [("all", 0, length - 1), *(("octave", *places) for places in octaves(length))]:
            mine, network = (x[:, first : last + 1].mean(axis=1) for x in (found, losses["network"]))
            loss, error = _mean(mine)
            lead, lead_error = _mean(mine - network)
            gained, gained_error = _mean(mine - network - reference)
            row = {"corpus": corpus, "model": name, "part": part, "first": first, "last": last, "windows": len(found)}
            row |= {"loss": loss, "error": error, "lead": lead, "lead_error": lead_error}
            rows.append(row | {"gained": gained, "gained_error": gained_error})
    return rows


@table("gpt2-mini-baselines", "gpt2-mini's loss beside smoothed n-grams, by place", told=("corpus",))
def _prepare(corpora=CORPORA):
    source, texts = gutenberg_or_embedded()
    if "gpt2-mini-training" in results.names():
        trained = results.provenance("gpt2-mini-training")["settings"]["texts"]
        if trained != {name: fingerprint(text) for name, text in texts.items()}:
            raise FileNotFoundError(
                f"gpt2-mini was trained on other texts than those found here ({source}): install NLTK's Gutenberg "
                "corpus with `python -m nltk.downloader gutenberg`."
            )
    length = models.load("gpt2-mini").module.config.n_positions
    settings = {"model": "gpt2-mini", "corpora": list(corpora), "length": length, "models": list(MODELS)}
    settings |= {"alice": fingerprint(read("alice")), "dtype": "float32"}
    size = len(MODELS) * (1 + len(octaves(length)))
    return settings, [Unit(name, lambda name=name: _rows(name, length), size) for name in corpora]
