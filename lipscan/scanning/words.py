"""Words of a scan: the fixed sentence of each kind of finding, from words.toml, and the record that fills it."""

import math
import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from lipscan.scanning import fmt

__all__ = ["Finding"]

# pages of the book that findings refer to, by their files in notebooks/, with their titles
PAGES = {
    "12_local_lipschitz": "The local Lipschitz constant",
    "41_real_text": "Growth on real text (Figure 1)",
    "43_why_it_grows": "Why the constant grows",
    "67_every_bound": "Every bound side by side",
    "62_certified_bracket": "A certified bracket of the local constant",
    "05_scan_your_model": "Scan your model: read the report",
    "63_robustness": "How far an attack moves the output",
    "72_kv_rounding": "Rounded caches: what ranks the layers?",
}
ENDS = {"layers": "output of the last layer", "hidden": "last hidden states", "logits": "logits"}  # of the network
QUESTIONS = {  # that the first findings answer, by their section
    "rough": "How rough is it?",
    "much": "Is that much?",
    "usual": "What does a usual change do?",
    "error": "What becomes of a small error?",
}
WRITERS = {  # how a template writes a number: {value}, {value:4}, {value:up} ...
    "": fmt.short,
    "4": partial(fmt.short, digits=4),
    "factor": fmt.factor,
    "percent": lambda part: f"{100 * part:.3g} %",
    "times": fmt.times,
    "up": fmt.up,
}


class Template(NamedTuple):
    """The sentences of a kind of finding, the part of the answer that they belong to, their unit and a page."""

    section: str
    words: str
    unit: str = ""
    page: str | None = None


WORDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TABLE = WORDS.pop("table")  # heading of a column -> its key
TEMPLATES = {key: Template(section, **words) for section, kinds in WORDS.items() for key, words in kinds.items()}


class _Number(float):
    """A number that a template writes by one of `WRITERS`."""

    def __format__(self, spec):
        return WRITERS[spec](float(self)) if spec in WRITERS else format(float(self), spec)


class Finding(NamedTuple):
    """A finding of a scan; ``str(finding)`` is its sentence.

    Attributes
    ----------
    key : str
        Its kind, a key of `TEMPLATES`.
    value : float
        The number found; NaN if there is none.
    unit : str
        Unit of the number: "times" (output over input), "ratio", "share", "count" ...
    where : mapping
        What it is a number of (layer, length, head, token), and other numbers that its sentence names.
    page : str or None
        The page of the book that explains it, by its file in notebooks/.
    """

    key: str
    value: float
    unit: str
    where: Mapping[str, Any]
    page: str | None

    @property
    def section(self) -> str:
        """The part of the answer that it belongs to, such as a key of `QUESTIONS`."""
        return TEMPLATES[self.key].section

    def __str__(self):
        where = {name: _Number(at) if isinstance(at, float) else at for name, at in self.where.items()}
        return TEMPLATES[self.key].words.format(value=_Number(self.value), **where)


def finding(key: str, value: float = math.nan, **where: Any) -> Finding:
    """A finding with the unit and page of its kind.

    Examples
    --------
    >>> str(finding("smoothest", 3.9, layer=0))
    'The smoothest is layer 0: 3.9 times.'
    """
    plain = {name: at.item() if hasattr(at, "item") else at for name, at in where.items()}  # no numbers of NumPy
    return Finding(key, float(value), TEMPLATES[key].unit, plain, TEMPLATES[key].page)
