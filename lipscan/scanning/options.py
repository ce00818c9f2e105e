"""Options of a scan: one record that defines the options of the command and the stored settings."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from numbers import Integral, Real
from operator import index
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def _option(default: Any, about: str = "", **argument: Any) -> Any:
    """A field with its text for `lipnb scan --help`; without a text it is an option in Python only."""
    return field(default=default, metadata={"help": about, **argument} if about else {})


@dataclass(frozen=True, kw_only=True)
class ScanOptions:
    """Options of `lipnb.scan`, explained there; an invalid option raises ValueError or TypeError."""

    layers: str | int | Sequence[int] = _option("all", "all (default), or such as 0,3,5-7", metavar="L,L,...")
    lengths: str | Sequence[int] | int | None = _option(
        None,
        "tokens of a window (default: those of 32,128,512 that the model can read and the text is long enough for)",
        metavar="N,N,...",
    )
    windows: int = _option(
        2,
        "disjoint windows for each length, at random places of the text; no more is tokenized (default 2)",
        type=int,
        metavar="N",
    )
    special: bool = _option(
        True, "windows without the special tokens of the model's own convention, such as [CLS] and [SEP]"
    )
    object: str = _option(
        "heads+output",
        "attention with its output projection (default), without it, or with residual and norm",
        choices=("heads+output", "heads", "block"),
    )
    masked: bool | None = _option(None, "make a causal decoder of a BERT", action="store_true")
    random: bool = _option(False, "draw the weights at random, with --seed", action="store_true")
    tokenizer: Any = _option(None, "read with another tokenizer than the model's own", metavar="NAME")
    part: str | None = _option(
        None, "which network of a model with two (CLIP, SigLIP) to measure", choices=("text", "vision")
    )
    device: Any = _option(None, "such as cuda (default: the CPU)", metavar="NAME")
    dtype: str = _option("float32", "default float32", choices=("float32", "float64"))
    upper: bool = _option(True, "no certified bounds: they take most of the time")
    upper_windows: int = _option(1)
    upper_work: float = _option(
        1e11,
        "most operations for one certified bound (default 1e11: some seconds); costlier bounds are left out, with a "
        "note",
        type=float,
        metavar="X",
    )
    close: bool = _option(True, "no close look at heads, tokens, whole layers and the network")
    rtol: float = _option(1e-4, "relative tolerance, from 1e-6 to below 1 (default 1e-4)", type=float, metavar="X")
    seed: int = _option(0, "seed of windows, start vectors and random weights", type=int, metavar="N")

    def __post_init__(self):
        numbers_of(self.layers)
        if self.lengths is not None:
            object.__setattr__(self, "lengths", lengths_of(self.lengths))
        for one in fields(self):
            given, default = getattr(self, one.name), one.default
            if isinstance(default, bool) or one.name == "masked":
                if not any(given is known for known in (True, False, default)):
                    raise ValueError(f"{one.name} must be True or False, got {given!r}.")
            elif isinstance(default, int) and (isinstance(given, bool) or not isinstance(given, Integral)):
                raise TypeError(f"{one.name} must be a whole number, got {given!r}.")
            elif isinstance(default, float) and (isinstance(given, bool) or not isinstance(given, Real)):
                raise TypeError(f"{one.name} must be a number, got {given!r}.")
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"seed must lie between -2**63 and 2**63, got {self.seed}.")
        for name in ("windows", "upper_windows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}.")
        if self.upper_windows > self.windows:
            raise ValueError(
                f"upper_windows must be at most windows, {self.windows}, got {self.upper_windows}: measure more "
                "windows, or certify fewer."
            )
        for one in fields(self):
            known, given = one.metadata.get("choices"), getattr(self, one.name)
            if known and given not in (*known, one.default):
                raise ValueError(f"{one.name} must be one of {', '.join(known)}, got {given!r}.")
        if not 1e-6 <= self.rtol < 1:
            raise ValueError(f"rtol must lie between 1e-6 and 1, got {self.rtol}.")
        if not self.upper_work > 0:
            raise ValueError(f"upper_work must be a positive number of operations, got {self.upper_work:g}.")

    @property
    def loading(self) -> dict[str, Any]:
        """Arguments for `lipnb.models.load`."""
        names = ("masked", "random", "tokenizer", "part", "device", "seed")
        return {name: getattr(self, name) for name in names}

    @property
    def recorded(self) -> dict[str, Any]:
        """Options recorded in the settings of a table as requested; the others are recorded as resolved."""
        return {name: getattr(self, name) for name in ("windows", "object", "rtol", "seed", "upper_work")}


def named(function: Callable[P, R]) -> Callable[P, R]:
    """The same function, with a TypeError that names the nearest valid keyword instead of an unknown one."""
    known = [*signature(function).parameters]

    @wraps(function)
    def call(*given: P.args, **options: P.kwargs) -> R:
        for name in options:
            if name not in known:
                raise TypeError(f"lipnb.{function.__name__} has no option {name!r}{nearest(name, known)}.")
        return function(*given, **options)

    return call


def nearest(word: str, words: Iterable[str]) -> str:
    """``: did you mean ...?`` with the names nearest to `word`, or a list of all `words` if none is near."""
    near = get_close_matches(word, [*words], n=3, cutoff=0.6)
    return f": did you mean {' or '.join(near)}?" if near else f": choose from {', '.join(words)}"


def numbers_of(layers: str | int | Sequence[int]) -> set[int] | None:
    """Numbers in a text such as "0,3,5-7", a number or a sequence; None for "all"."""
    asked = ",".join(map(str, layers)) if isinstance(layers, Iterable) and not isinstance(layers, str) else str(layers)
    if asked.strip() == "all":
        return None
    wanted: set[int] = set()
    for part in asked.split(","):
        ends = part.strip().split("-")
        if len(ends) > 2 or not all(end.isdecimal() and len(end) < 6 for end in ends) or int(ends[0]) > int(ends[-1]):
            raise ValueError(f"layers are 'all', numbers or ranges such as 0,3,5 or 0-5; got {asked!r}.")
        wanted |= {*range(int(ends[0]), int(ends[-1]) + 1)}
    return wanted


def lengths_of(lengths: str | int | Sequence[int]) -> list[int]:
    """Distinct positive integers from a sequence, one integer, or a text such as "32,128"."""
    parts = (
        lengths.split(",") if isinstance(lengths, str) else [*lengths] if isinstance(lengths, Iterable) else [lengths]
    )
    try:
        found = [int(part) if isinstance(part, str) else index(part) for part in parts]
    except (TypeError, ValueError):
        found = []
    if not found or min(found) < 1 or len({*found}) < len(found):
        raise ValueError(
            f"lengths must be different positive whole numbers, such as 2,8,32, got "
            f"{','.join(map(str, parts)) or repr(lengths)}."
        )
    return found


def in_words(key: str, value: Any) -> str:
    """A setting of a scan in words.

    Examples
    --------
    >>> in_words("lengths", [4, 9]), in_words("special", [["[CLS]"], []]), in_words("masked", True)
    ('4,9', '[CLS] ...', 'yes')
    """
    if key == "special" and value:
        return " ".join([*value[0], "...", *value[1]]) if any(value) else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
