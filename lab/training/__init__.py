"""Small language models trained here: texts, loop, baselines, the checkpoint gpt2-mini, and models of characters."""

from lab.training.baselines import bigram_loss, unigram_loss
from lab.training.characters import ATTENTIONS, DIVIDED, WITHOUT, CharacterTransformer
from lab.training.gpt2 import NextToken, load_gpt2, new_gpt2
from lab.training.gpt2_mini import make_gpt2_mini
from lab.training.kneser_ney import KneserNey, kneser_ney_loss
from lab.training.loop import batch_of, fast_precision, token_losses, train, validation_loss
from lab.training.stacked import Stacked, advance, windows_of
from lab.training.text import (
    character_ids,
    character_parts,
    gutenberg_or_embedded,
    split_text,
    token_ids,
    train_tokenizer,
)
from lab.training.twins import KINDS, new_twin

__all__ = [
    "ATTENTIONS",
    "DIVIDED",
    "KINDS",
    "WITHOUT",
    "CharacterTransformer",
    "KneserNey",
    "NextToken",
    "Stacked",
    "advance",
    "batch_of",
    "bigram_loss",
    "character_ids",
    "character_parts",
    "fast_precision",
    "gutenberg_or_embedded",
    "kneser_ney_loss",
    "load_gpt2",
    "make_gpt2_mini",
    "new_gpt2",
    "new_twin",
    "split_text",
    "token_ids",
    "token_losses",
    "train",
    "train_tokenizer",
    "unigram_loss",
    "validation_loss",
    "windows_of",
]
