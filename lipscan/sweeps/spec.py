"""Spec of a sweep: read from YAML, checked with a sentence for each mistake, and expanded to points.

A point is one setting of the parameters: every combination of a grid and of zipped groups, less exclusions, or a
sample of them. Each value must arrive in the notebook as written in the spec, so values that papermill would change
(a date or a tuple to text, or a number as a key of a mapping) are refused here.
"""

import hashlib
import json
import math
import os
import re
from collections import Counter
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import yaml

__all__ = ["Point", "Spec", "expand", "read"]

COLUMNS = ("point", "stale")  # columns of the tables: no parameter and no recorded value has one of these names
FAILURES = ("error", "notebook")  # columns of failures.csv, which holds no recorded values
LARGEST = 1_000_000  # most points; more are probably a mistake
DIGITS = 12  # significant digits of a spaced value: equal on every machine, and short to read
# walltimes that are clearly hours: as in most batch systems, and in LSF, which has no seconds
HOURS, HOURS_LSF = r"(\d+-)?\d+:[0-5]\d:[0-5]\d|\d+-\d+(:[0-5]\d)?", r"\d+:[0-5]\d"
SPACED = ("range", "linspace", "geomspace", "logspace")


@dataclass(frozen=True)
class Spec:
    """A sweep: a notebook, values for its parameters, and how to run it.

    Parameters
    ----------
    notebook : Path
        Jupytext percent script (.py) or .ipynb; in a file, its path from the folder of that file.
    parameters : dict
        Values that are the same in every point.
    grid : dict
        Name -> list of values, or ``{range: ...}``, ``{linspace: ...}``, ``{geomspace: ...}``, ``{logspace: ...}``.
    zipped : list of dict
        Groups (``zip`` in a file): name -> values, lists of equal length that vary together.
    exclude : list of dict
        Partial points; points that agree with one of them are left out.
    sample : dict or None
        ``count`` and ``seed`` of a random sample.
    output : Path
        Folder of the results.
    workers, threads : int or None
        Notebooks at the same time; threads of each. Default: what the machine has.
    gpus : int, list or None
        How many, or which: None takes all GPUs found, 0 hides them.
    timeout : float or None
        Seconds for a point, the start of its kernel included.
    kernel : str or None
        Jupyter kernel; default: the notebook's.
    cluster : dict or None
        ``kind``, ``jobs`` and ``options`` of a Dask cluster.
    text : str
        The file as read, for the provenance.
    """

    notebook: Path
    parameters: dict = field(default_factory=dict)
    grid: dict = field(default_factory=dict)
    zipped: list = field(default_factory=list)
    exclude: list = field(default_factory=list)
    sample: dict | None = None
    output: Path = Path("sweeps")
    workers: int | None = None
    threads: int | None = None
    gpus: int | list | None = None
    timeout: float | None = None
    kernel: str | None = None
    cluster: dict | None = None
    text: str = ""

    def __post_init__(self):
        """Raise ValueError for a walltime whose unit depends on the batch system."""
        kind, options = ((self.cluster or {}).get(name) for name in ("kind", "options"))
        time, lsf = (options or {}).get("walltime"), kind == "LSFCluster"
        if time is None or re.fullmatch(HOURS_LSF if lsf else HOURS, str(time)):
            return
        if not isinstance(time, str) or re.fullmatch(r"[\d.:+\s-]+", time):
            wanted = "hours:minutes, such as 12:00" if lsf else "hours:minutes:seconds, such as 12:00:00"
            raise ValueError(
                f"'cluster': a walltime is {wanted}; got {time!r}, whose unit differs between batch systems."
            )


KEYS = tuple("zip" if f.name == "zipped" else f.name for f in fields(Spec) if f.name != "text")


@dataclass(frozen=True)
class Point:
    """One setting of the parameters, injected by papermill, and its id: twelve hexadecimal digits of its hash."""

    id: str
    parameters: dict = field(compare=False)


# --- from a file ------------------------------------------------------------------------------------------------------

TAG = "tag:yaml.org,2002:"
DOUBTFUL = "lipnb:doubtful"  # tag of plain words that YAML readers interpret differently
FLAG = "yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF"
# core schema of YAML 1.2, plus Python's None; DOUBTFUL is text in 1.2 but not for people or YAML 1.1
WORDS = {
    TAG + "null": r"~|null|Null|NULL|None|",
    TAG + "bool": r"true|True|TRUE|false|False|FALSE",
    TAG + "int": r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    TAG + "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    TAG + "merge": "<<",
    DOUBTFUL: rf"{FLAG}|[-+]?(inf|Inf|INF|Infinity|infinity|nan|NaN|NAN)|[-+]?0[bBoOxX][0-9a-fA-F_]+"
    r"|[-+]?\.?[0-9](?=[^_]*_)[0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9_]+)?",
}


class _Doubtful(yaml.MarkedYAMLError):
    """A value with two possible meanings."""


class _Loader(yaml.SafeLoader):
    """Safe YAML loader with the plain words of version 1.2; duplicate keys and doubtful values are errors.

    (PyYAML reads version 1.1, where 12:00:00 is 43200, 010 is 8, and 1e3 is a text.)
    """

    yaml_implicit_resolvers: dict = {}
    # without dates: an invalid tagged date would raise an error of Python
    yaml_constructors = {
        tag: make for tag, make in yaml.SafeLoader.yaml_constructors.items() if tag != TAG + "timestamp"
    }

    def compose_mapping_node(self, anchor):
        node = super().compose_mapping_node(anchor)
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key in keys:
            if key.tag == DOUBTFUL:  # `on` as the name of a parameter is clear
                key.tag = TAG + "str"
        names = Counter(key.value for key in keys)
        if twice := [name for name, count in names.items() if count > 1]:
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice[0]!r} is given twice", node.start_mark)
        return node

    def _word(self, node):
        """The value of a plain word, or of one with a tag."""
        text, kind = self.construct_scalar(node), node.tag.removeprefix(TAG)
        if node.tag != DOUBTFUL and re.fullmatch(WORDS[node.tag], text):
            if kind == "bool":
                return text.lower() == "true"
            if kind == "int":
                return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
            value = float(re.sub(r"\.(?=[in])", "", text.lower()))
            if math.isfinite(value) or text[-1] in "fFnN":
                return value
        flag = kind == "bool" or re.fullmatch(FLAG, text)
        mend = "write true or false" if flag else "write a number in plain digits, .inf or .nan"
        said = f"{text!r} could be meant in two ways"
        if node.tag != DOUBTFUL:
            said = f"{text!r} is not of type {kind} here"
        raise _Doubtful(None, None, f"{said}: {mend}, or put a text in quotes", node.start_mark)


for _tag, _pattern in WORDS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), None)
for _tag in (TAG + "bool", TAG + "int", TAG + "float", DOUBTFUL):
    _Loader.add_constructor(_tag, _Loader._word)


def parse(text: str) -> Any:
    """Value of a YAML text, with words and numbers as in YAML 1.2; yaml.YAMLError if it is not YAML."""
    return yaml.load(text, _Loader)


def read(path: str | os.PathLike) -> Spec:
    """Read a sweep from a file and check everything that can be checked without its notebook.

    Parameters
    ----------
    path : path-like
        YAML; the keys are the fields of `Spec`, with ``zip`` for ``zipped``. Or a notebook, .py or .ipynb: a sweep of
        one point, with the notebook's own defaults.

    Returns
    -------
    Spec
        Its notebook is resolved from the folder of the file, its output folder from the current folder.

    Raises
    ------
    FileNotFoundError
        The file does not exist.
    ValueError
        The file is not valid YAML, or a key is unknown, missing or has an invalid value.
    """
    path = Path(path)
    if path.suffix in (".py", ".ipynb"):
        return Spec(notebook=path.resolve(), output=Path("sweeps", path.stem).resolve())
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}: a sweep is described in YAML, see `lipnb sweep --help`.")
    try:
        text = path.read_text(encoding="utf-8")
        return _checked(parse(text), path, text)
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file: a sweep is described in YAML.") from None
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), str(getattr(error, "problem", None) or error)
        where = (f", line {mark.line + 1}" if mark else "") + (":" if isinstance(error, _Doubtful) else ": not YAML:")
        tab = " (a tab: indent with spaces)" if "'\\t'" in problem else ""
        raise ValueError(f"{path}{where} {problem}{tab}.") from None
    except RecursionError:
        raise ValueError(f"{path}: its lists and mappings are nested too deeply, or contain themselves.") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def value_of(text: str) -> Any:
    """A value written in YAML as in a spec; ValueError if invalid, or if a ``#`` would cut off a part of it."""
    try:
        value = parse(text)
        ends = [mark.end_mark.index for mark in yaml.scan(text) if mark.end_mark.index > mark.start_mark.index]
    except _Doubtful as error:
        raise ValueError(error.problem) from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ValueError("write a value as in YAML, and put a text that begins like something else in quotes") from None
    if text[max(ends, default=0) :].strip():
        raise ValueError("text after a # is a comment in YAML: put the whole text in quotes")
    return value


def _checked(given, path, text):
    """The spec; ValueError that names the key."""
    if not isinstance(given, dict):
        raise ValueError(f"give a mapping with the keys {', '.join(KEYS)}.")
    for key in given:
        if key not in KEYS:
            raise ValueError(f"there is no key {key!r}: the keys are {', '.join(KEYS)}.")
    given = {key: value for key, value in given.items() if value is not None}
    if not isinstance(given.get("notebook"), str):
        raise ValueError("'notebook' is missing: the path of a .py or .ipynb from the folder of this file.")
    parameters = {key: _mapping(given, key) for key in ("parameters", "grid")}
    groups = _groups(given.get("zip", []))
    named = _parameters(*parameters.values(), *groups)
    exclude = given.get("exclude", [])
    if not (isinstance(exclude, list) and all(isinstance(part, dict) and part for part in exclude)):
        raise ValueError("'exclude' takes a list of partial points, such as - {layer: 3, length: 512}.")
    for name in (name for part in exclude for name in part):
        if name not in named:
            raise ValueError(f"'exclude' names {name!r}, which this sweep does not set.")
    return Spec(
        notebook=(path.parent / given["notebook"]).resolve(),
        **parameters,
        zipped=groups,
        exclude=exclude,
        sample=_sample(given),
        output=Path(_take(given, "output", _text, "a folder") or f"sweeps/{path.stem}").resolve(),
        workers=_take(given, "workers", _count, "a whole number, 1 or more"),
        threads=_take(given, "threads", _count, "a whole number, 1 or more"),
        gpus=_take(given, "gpus", _gpus, "a number of GPUs, or a list of their indices"),
        timeout=_take(given, "timeout", _seconds, "a number of seconds for each point"),
        kernel=_take(given, "kernel", _text, "a name"),
        cluster=_cluster(_mapping(given, "cluster")),
        text=text,
    )


def _mapping(given, key):
    if not isinstance(value := given.get(key, {}), dict):
        raise ValueError(f"{key!r} takes name: value pairs.")
    return value


def _take(given, key, good, wanted):
    """The value of a key, or None if the key is missing."""
    if (value := given.get(key)) is not None and not good(value):
        raise ValueError(f"{key!r} must be {wanted}; got {value!r}.")
    return value


def _count(value):
    return type(value) is int and value >= 1


def _text(value):
    return isinstance(value, str) and value != ""


def _seconds(value):
    return type(value) in (int, float) and 0 < value < math.inf


def _gpus(value):
    listed = isinstance(value, list) and all(type(device) in (int, str) for device in value)
    return listed or type(value) is int and value >= 0


def _groups(given):
    groups = [given] if isinstance(given, dict) else given
    if not (isinstance(groups, list) and all(isinstance(group, dict) and group for group in groups)):
        raise ValueError("'zip' takes name: list pairs, or a list of such groups.")
    for group in groups:
        lengths = {name: len(values) if isinstance(values, list) else None for name, values in group.items()}
        if None in lengths.values() or len(set(lengths.values())) > 1 or 0 in lengths.values():
            shown = ", ".join(f"{name} {'no list' if n is None else n}" for name, n in lengths.items())
            raise ValueError(f"'zip': the lists of a group must be equally long and not empty; here: {shown}.")
    return groups


def _sample(given):
    sample = _mapping(given, "sample") or None
    whole = sample and set(sample) <= {"count", "seed"} and all(type(n) is int and n >= 0 for n in sample.values())
    if sample and not (whole and sample.get("count")):
        raise ValueError("'sample' takes a count, 1 or more, and optionally a seed: {count: 20, seed: 0}.")
    return sample


def _cluster(given):
    """``kind``, ``jobs`` and ``options`` of a cluster; the cluster's class checks the options."""
    if not given:
        return None
    kind, jobs, options = given.get("kind"), given.get("jobs", 1), given.get("options") or {}
    if not (_text(kind) and set(given) <= {"kind", "jobs", "options"} and isinstance(options, dict)):
        raise ValueError("'cluster' takes kind (LocalCluster, SLURMCluster, ...), jobs (how many) and options.")
    if not _count(jobs):
        raise ValueError(f"'jobs' must be a whole number, 1 or more; got {jobs!r}.")
    return {"kind": kind, "jobs": jobs, "options": options}


def _parameters(*parts):
    """Names of all parameters; ValueError for an invalid or repeated name, or a value that papermill would change."""
    names = [name for part in parts for name in part]
    for name, value in (pair for part in parts for pair in part.items()):
        if not (isinstance(name, str) and name.isidentifier()):
            raise ValueError(f"{name!r} is not the name of a parameter.")
        if name in COLUMNS + FAILURES:
            raise ValueError(f"{name!r} is a column of the tables: give the parameter of the notebook another name.")
        if names.count(name) > 1:
            raise ValueError(
                f"the parameter {name!r} is given twice: keep it in only one of 'parameters', 'grid' and 'zip'."
            )
        _plain(name, value)
    return names


def _plain(name, value):
    """Refuse values that papermill would write into a notebook differently."""
    if isinstance(value, list | dict):
        for key in value if isinstance(value, dict) else ():
            if not isinstance(key, str):
                raise ValueError(f"{name}: the key {key!r} of a mapping is not text: put it in quotes.")
        for part in value.values() if isinstance(value, dict) else value:
            _plain(name, part)
    elif not (value is None or isinstance(value, bool | int | float | str)):
        raise ValueError(
            f"{name}: {value!r} is a {type(value).__name__}; parameters are numbers, strings, booleans, "
            "null and lists or mappings of them."
        )


def overridden(spec: Spec, parameters: dict[str, Any]) -> Spec:
    """The sweep with fixed values for some parameters in every point, in place of the values in the spec.

    An axis of the grid with that name is removed, and so is the name in a zipped group; exclusions stay if they agree
    with the value. ValueError if a name is invalid, or if papermill would change a value.

    Examples
    --------
    >>> spec = Spec(Path("page.ipynb"), parameters={"seed": 0}, grid={"layer": [0, 1, 2], "length": [32, 64]})
    >>> one = overridden(spec, {"seed": 7, "layer": 2})
    >>> one.parameters, one.grid
    ({'seed': 7, 'layer': 2}, {'length': [32, 64]})
    """
    _parameters(parameters)
    groups = [{name: group[name] for name in group if name not in parameters} for group in spec.zipped]
    agree = [
        part
        for part in spec.exclude
        if all(canonical(part[name]) == canonical(parameters[name]) for name in part if name in parameters)
    ]
    return replace(
        spec,
        parameters={**spec.parameters, **parameters},
        grid={name: values for name, values in spec.grid.items() if name not in parameters},
        zipped=[group for group in groups if group],
        exclude=agree,
    )


# --- to points --------------------------------------------------------------------------------------------------------


def canonical(value):
    """JSON with sorted keys: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _spaced(kind, arguments):
    """Values of a range, named as in Python or NumPy."""
    import numpy as np

    whole = all(type(number) is int for number in arguments)
    if kind == "range":
        if not (1 <= len(arguments) <= 3 and whole and (len(arguments) < 3 or arguments[2])):
            raise ValueError(
                "range takes one to three whole numbers, [start, stop, step], as in Python; "
                "for other numbers use linspace: [first, last, count]"
            )
        return list(range(*arguments)[: LARGEST + 1])
    numbers = all(isinstance(number, int | float) and not isinstance(number, bool) for number in arguments)
    if not (len(arguments) == 3 and numbers and type(arguments[2]) is int and 1 <= arguments[2] <= LARGEST):
        raise ValueError(f"{kind} takes [first, last, count], as in NumPy")
    if kind == "geomspace" and not arguments[0] * arguments[1] > 0:
        raise ValueError("geomspace takes two numbers of the same sign, neither of them zero")
    return [float(f"{value:.{DIGITS}g}") for value in getattr(np, kind)(*arguments)]


def _axis(name: str, values: list | dict) -> list:
    """Values of one axis of a grid, at least one and without repeats: a list, or spaced as by NumPy."""
    if isinstance(values, dict):
        if len(values) != 1 or next(iter(values)) not in SPACED or not isinstance(next(iter(values.values())), list):
            raise ValueError(f"{name}: give a list of values, or one of {', '.join(SPACED)} with a list of numbers.")
        try:
            values = _spaced(*next(iter(values.items())))
        except ValueError as error:
            raise ValueError(f"{name}: {error}.") from None
    if not isinstance(values, list) or not values:
        raise ValueError(
            f"{name}: give a list with at least one value (one value for all points belongs in 'parameters')."
        )
    if len(values) > LARGEST:
        raise ValueError(f"{name}: more than {LARGEST} values are too many.")
    texts = [canonical(value) for value in values]
    if len(set(texts)) < len(texts):
        twice = next(text for text in texts if texts.count(text) > 1)
        raise ValueError(f"{name}: the value {twice} is given twice.")
    return values


def _point(parameters):
    text = canonical(parameters)
    return Point(hashlib.sha256(text.encode()).hexdigest()[:12], parameters)


def _matches(parameters, part):
    return all(canonical(parameters[name]) == canonical(value) for name, value in part.items())


def expand(spec: Spec) -> list[Point]:
    """All points of a sweep, in the order of the grid: its last axis moves fastest; no two have the same parameters.

    Raises
    ------
    ValueError
        The grid has too many points, an exclusion matches no point, no point is left, the sample is larger than
        the grid, or papermill would change a value.
    """
    _parameters(spec.parameters, spec.grid, *spec.zipped)
    axes = [[{name: value} for value in _axis(f"grid: {name}", values)] for name, values in spec.grid.items()]
    for group in spec.zipped:
        rows = [dict(zip(group, row, strict=True)) for row in zip(*group.values(), strict=True)]
        axes.append(_axis(f"zip: {', '.join(group)}", rows))
    size = math.prod(len(values) for values in axes)
    if size > LARGEST:
        raise ValueError(
            f"{size} points are too many: at most {LARGEST}. A sample is drawn from the whole grid, so the grid "
            "itself must be smaller."
        )
    points = []
    used = [False] * len(spec.exclude)
    for combination in product(*axes):
        parameters = dict(spec.parameters)
        for part in combination:
            parameters |= part
        hits = [_matches(parameters, part) for part in spec.exclude]
        used = [old or new for old, new in zip(used, hits, strict=True)]
        if not any(hits):
            points.append(_point(parameters))
    if not all(used):
        idle = canonical(spec.exclude[used.index(False)])
        raise ValueError(f"exclude: {idle} matches no point: correct it, or drop it.")
    if not points:
        raise ValueError("exclude: no point is left, so exclude fewer.")
    return _drawn(points, **spec.sample) if spec.sample else points


def _drawn(points, count, seed=0):
    """A random sample, in the order of the grid; a larger count or a larger grid keeps the points it can."""
    if count > len(points):
        raise ValueError(f"sample: there are only {len(points)} points, not {count}.")
    drawn = sorted(points, key=lambda point: hashlib.sha256(f"{seed} {point.id}".encode()).digest())[:count]
    chosen = {point.id for point in drawn}
    return [point for point in points if point.id in chosen]
