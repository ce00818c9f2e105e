"""What a sweep has and what it lacks: its points against its folder, before anything is written."""

import os
from dataclasses import dataclass, replace
from typing import Any

from lipnb.sweeps import source
from lipnb.sweeps import spec as specs
from lipnb.sweeps.folder import Folder
from lipnb.sweeps.points import Point, expand

__all__ = ["Plan", "key", "plan", "state"]


@dataclass(frozen=True)
class Plan:
    """What a sweep has and what it lacks.

    Parameters
    ----------
    spec : lipnb.sweeps.Spec
        With the options of this run.
    source : lipnb.sweeps.source.Source
        Its notebook.
    states : dict
        Point -> "done", "failed", "new", or why it runs again: "stale: the notebook changed", "damaged: ...".
    todo : list of Point
        Those to run now.
    keep_stale : bool
        Whether rows of an earlier notebook, package or spec stay in the table.
    """

    spec: specs.Spec
    source: source.Source
    states: dict
    todo: list
    keep_stale: bool = False


def key(notebook: source.Source) -> dict[str, str]:
    """What the points of a notebook are made from; a point made from anything else is stale."""
    return {"notebook": notebook.hash, "package": source.package()}


def plan(
    spec: str | os.PathLike | specs.Spec,
    *,
    parameters: dict[str, Any] | None = None,
    retry_failed: bool = False,
    keep_stale: bool = False,
    limit: int | None = None,
    **options: Any,
) -> Plan:
    """Read a spec, its notebook and its folder: what is there, and what would run.

    Parameters
    ----------
    spec : path-like or Spec
        What to sweep; a notebook is a sweep of one point.
    parameters : dict, optional
        Values for every point that override the spec's, see `lipnb.sweeps.spec.overridden`.
    retry_failed : bool
        Whether points that failed run again.
    keep_stale : bool
        Whether a good row of an earlier notebook or package stays as it is, and its point does not run.
    limit : int, optional
        Run at most so many now.
    **options
        Fields of `Spec` that replace the spec's own, where not None.

    Returns
    -------
    Plan
        Nothing is written.

    Raises
    ------
    FileNotFoundError, ValueError
        The sentences of `lipnb.sweeps.read`, of `expand`, and "... has no parameter ...".
    """
    name = getattr(spec, "notebook", spec)
    spec = spec if isinstance(spec, specs.Spec) else specs.read(spec)
    spec = replace(spec, **{option: value for option, value in options.items() if value is not None})
    try:
        spec = specs.overridden(spec, parameters or {})
        points = expand(spec)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    notebook = source.read(spec.notebook, spec.kernel)
    wanted = list(points[0].parameters)
    if notebook.names is not None and (unknown := [name for name in wanted if name not in notebook.names]):
        known = f"it has {', '.join(notebook.names)}" if notebook.names else "it has no cell tagged 'parameters'"
        raise ValueError(f"{spec.notebook.name} has no parameter {unknown[0]!r}: {known}.")
    folder, made_from = Folder(spec.output), key(notebook)
    states = {point: state(folder, point, made_from) for point in points}
    kept = {"done"} if retry_failed else {"done", "failed"}
    todo = [
        point
        for point, found in states.items()
        if found not in kept and not (keep_stale and found.startswith("stale") and folder.entry(point)["ok"])
    ]
    return Plan(spec, notebook, states, todo if limit is None else todo[:limit], keep_stale)


def state(folder: Folder, point: Point, made_from: dict[str, str]) -> str:
    """What is known of a point: "done", "failed", "new", or why it runs again."""
    try:
        entry = folder.entry(point)
    except ValueError as error:
        return f"damaged: {error}"
    if entry is None:
        return "new"
    changed = [part for part in made_from if entry["key"].get(part) != made_from[part]]
    if changed:
        return f"stale: the {' and the '.join(changed)} changed"
    return "done" if entry["ok"] else "failed"
