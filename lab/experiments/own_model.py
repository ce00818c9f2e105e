"""Tables for a model of the reader, such as BERT-base or GPT-2 from a hub: its atlas, and its sub-layers."""

from functools import partial

from lab.experiments.around_attention import LENGTHS, sublayers
from lab.experiments.atlas import IMAGES, SMALL, prepared
from lab.experiments.table import Table
from lipscan import models

__all__ = ["of_model"]


def of_model(name):
    """Tables of all layers of a model on three texts, or three pictures, with controls, and of its sub-layers on one.

    Parameters
    ----------
    name : str
        A name on the hub such as "bert-base-uncased" or "gpt2", or a folder, as for `lipnb.models.load`.

    Returns
    -------
    tuple of Table
        ``atlas-NAME`` and ``released-map-NAME``, and for a BERT both again with ``-masked``, as a decoder.
    """
    model = models.load(name)
    conditions = SMALL if model.architecture.reads == "input_ids" else IMAGES
    masks = (None,) if model.masked else model.architecture.masks  # decoder: its mask; BERT: both
    tables = []
    for masked in masks:
        title = model.name.replace("/", "-") + "-masked" * bool(masked)
        options = {"name": str(name), "masked": masked}
        tables += [
            Table(
                f"atlas-{title}", partial(prepared, options, conditions), {"lengths": None, "count": None, "seed": 0}
            ),
            Table(
                f"released-map-{title}", partial(sublayers, [(options, conditions[0])]), {"lengths": LENGTHS, "seed": 0}
            ),
        ]
    return tuple(tables)
