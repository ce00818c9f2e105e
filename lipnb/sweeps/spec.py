"""What to sweep, read from YAML: checked whole, with a sentence for each mistake, before anything runs."""

import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lipnb.sweeps.clusters import checked
from lipnb.sweeps.documents import document
from lipnb.sweeps.points import canonical

__all__ = ["COLUMNS", "Spec", "overridden", "read"]

COLUMNS = ("point", "stale")  # of the table itself: no parameter and no recorded value has one of these names


@dataclass(frozen=True)
class Spec:
    """A sweep: a notebook, values for its parameters, and how to run it.

    Parameters
    ----------
    notebook : Path
        Jupytext percent script (.py) or .ipynb; in a file, its path from the folder of that file.
    parameters : dict
        The same in every point.
    grid : dict
        Name -> list of values, or ``{range: ...}``, ``{linspace: ...}``, ``{geomspace: ...}``, ``{logspace: ...}``.
    zipped : list of dict
        Groups (``zip`` in a file): name -> values, lists of one length that go together.
    exclude : list of dict
        Partial points; whatever agrees with one of them is left out.
    sample : dict or None
        ``count`` and ``seed`` of a random sample.
    output : Path
        Folder of the results.
    workers, threads : int or None
        Notebooks at the same time; threads of each. Default: what the machine has.
    gpus : int, list or None
        How many, or which: None takes those that there are, 0 hides them.
    timeout : float or None
        Seconds for a point, the start of its kernel included.
    kernel : str or None
        Jupyter kernel; default: the notebook's.
    cluster : dict or None
        ``kind``, ``jobs`` and ``options`` of a Dask cluster.
    text : str
        The file as it was read, for the provenance.
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


KEYS = (
    "notebook",
    "parameters",
    "grid",
    "zip",
    "exclude",
    "sample",
    "output",
    "workers",
    "threads",
    "gpus",
    "timeout",
    "kernel",
    "cluster",
)


def read(path: str | os.PathLike, base: str | os.PathLike | None = None) -> Spec:
    """Read a sweep from a file and check everything that can be checked without its notebook.

    Parameters
    ----------
    path : path-like
        YAML; the keys are those of `Spec`, with ``zip`` for ``zipped``. Or a notebook, .py or .ipynb: a sweep of one
        point, with the notebook's own defaults.
    base : path-like, optional
        The folder in which ``output`` must lie; default: the current one.

    Returns
    -------
    Spec
        Its output folder and its notebook resolved.

    Raises
    ------
    FileNotFoundError
        "there is no file ...".
    ValueError
        "SPEC: ...": the key and what it takes.
    """
    path = Path(path)
    if path.suffix in (".py", ".ipynb"):
        return Spec(notebook=path.resolve(), output=_inside(f"sweeps/{path.stem}", Path(base or Path.cwd())))
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}: a sweep is described in YAML, see `lipnb sweep --help`.")
    text, given = document(path)
    try:
        return _checked(given, path, Path(base or Path.cwd()), text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _checked(given, path, base, text):
    """The spec, or a ValueError that names the key."""
    if not isinstance(given, dict):
        raise ValueError(f"a mapping is wanted, with the keys {', '.join(KEYS)}.")
    for key in given:
        if key not in KEYS:
            raise ValueError(f"there is no key {key!r}: the keys are {', '.join(KEYS)}.")
    given = {key: value for key, value in given.items() if value is not None}
    if not isinstance(given.get("notebook"), str):
        raise ValueError("'notebook' is missing: the path of a .py or .ipynb from the folder of this file.")
    groups = given.get("zip", [])
    groups = [groups] if isinstance(groups, dict) else groups
    parameters = {key: _mapping(given, key) for key in ("parameters", "grid")}
    if not (isinstance(groups, list) and all(isinstance(group, dict) and group for group in groups)):
        raise ValueError("'zip' takes name: list pairs, or a list of such groups.")
    for group in groups:
        lengths = {name: len(values) if isinstance(values, list) else None for name, values in group.items()}
        if None in lengths.values() or len(set(lengths.values())) > 1 or 0 in lengths.values():
            shown = ", ".join(f"{name} {'no list' if n is None else n}" for name, n in lengths.items())
            raise ValueError(f"'zip': the lists of a group must be equally long and not empty; here: {shown}.")
    named = [*parameters["parameters"], *parameters["grid"], *(name for group in groups for name in group)]
    for name in named:
        _name(name)
        if named.count(name) > 1:
            raise ValueError(f"the parameter {name!r} is there twice: in one of 'parameters', 'grid' and 'zip' only.")
    for name, value in [
        *parameters["parameters"].items(),
        *parameters["grid"].items(),
        *(pair for group in groups for pair in group.items()),
    ]:
        _plain(name, value)
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
        output=_inside(given.get("output", f"sweeps/{path.stem}"), base),
        workers=_count(given, "workers"),
        threads=_count(given, "threads"),
        gpus=_gpus(given.get("gpus")),
        timeout=_seconds(given.get("timeout")),
        kernel=_text(given, "kernel"),
        cluster=checked(cluster) if (cluster := _mapping(given, "cluster")) else None,
        text=text,
    )


def _mapping(given, key):
    if not isinstance(value := given.get(key, {}), dict):
        raise ValueError(f"{key!r} takes name: value pairs.")
    return value


def overridden(spec: Spec, parameters: dict[str, Any]) -> Spec:
    """The sweep in which some parameters have one value in every point, whatever the spec says of them.

    Parameters
    ----------
    spec : Spec
        What to sweep.
    parameters : dict
        Name -> value. An axis of the grid with that name is gone, and so is the name in a zipped group; of the
        exclusions those stay that agree with the value.

    Returns
    -------
    Spec
        The same where `parameters` is empty.

    Raises
    ------
    ValueError
        "... is not the name of a parameter", "...: ... is a ...; parameters are numbers, ...".

    Examples
    --------
    >>> spec = Spec(Path("page.ipynb"), parameters={"seed": 0}, grid={"layer": [0, 1, 2], "length": [32, 64]})
    >>> one = overridden(spec, {"seed": 7, "layer": 2})
    >>> one.parameters, one.grid
    ({'seed': 7, 'layer': 2}, {'length': [32, 64]})
    """
    for name, value in parameters.items():
        _name(name)
        _plain(name, value)
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


def _name(name):
    if not (isinstance(name, str) and name.isidentifier()):
        raise ValueError(f"{name!r} is not the name of a parameter.")
    if name in COLUMNS:
        raise ValueError(f"{name!r} is a column of every table: give the parameter of the notebook another name.")


def _plain(name, value):
    """Refuse what papermill cannot write into a notebook."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            _plain(name, part)
    elif not (value is None or isinstance(value, bool | int | float | str)):
        raise ValueError(
            f"{name}: {value!r} is a {type(value).__name__}; parameters are numbers, strings, booleans, "
            "null and lists or mappings of them (put a date in quotes)."
        )


def _count(given, key):
    value = given.get(key)
    if value is not None and not (type(value) is int and value >= 1):
        raise ValueError(f"{key!r} is a whole number from 1 on; got {value!r}.")
    return value


def _text(given, key):
    value = given.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{key!r} is a name; got {value!r}.")
    return value


def _seconds(value):
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (number and 0 < value < math.inf):
        raise ValueError(f"'timeout' is a number of seconds for each point; got {value!r}.")
    return value


def _gpus(value):
    whole = type(value) is int and value >= 0
    listed = isinstance(value, list) and all(type(device) in (int, str) for device in value)
    if value is not None and not (whole or listed):
        raise ValueError(f"'gpus' is how many, or a list of which; got {value!r}.")
    return value


def _sample(given):
    sample = _mapping(given, "sample") or None
    if sample and not (
        "count" in sample
        and set(sample) <= {"count", "seed"}
        and all(type(number) is int and number >= 0 for number in sample.values())
        and sample["count"]
    ):
        raise ValueError("'sample' takes a count from 1 on and, if wanted, a seed: {count: 20, seed: 0}.")
    return sample


def _inside(name, base):
    """The output folder, which a spec can only have below the folder where the command runs."""
    folder = base.resolve() / name if isinstance(name, str) and name else base.resolve()
    if folder.resolve() == base.resolve() or not folder.resolve().is_relative_to(base.resolve()):
        raise ValueError(
            f"'output' is a folder below the current one; got {name!r}. Any other folder can be said on "
            "the command line, with --output."
        )
    return folder
