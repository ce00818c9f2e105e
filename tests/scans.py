"""A quick scan of a small model, and the words that it reads."""

from functools import cache

import torch

from lipscan import models, scanning

WORDS = " ".join(["the alice rabbit sat by her sister on the bank and had nothing to do ."] * 60)
QUIET = {"progress": False}
BRIEF = {"lengths": [4], "windows": 1, "upper": False}  # the quickest scan


@cache
def small(folder):
    return models.load(folder, dtype=torch.float64)


def scanned(model, text, folder, **options):
    given = {"lengths": [4, 9], "close": False, "output": folder / "out", "dtype": "float64", **QUIET, **options}
    return scanning.scan(model, text, **given)
