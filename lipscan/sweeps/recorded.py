"""Values that a notebook records: stored in its output, so that the executed notebook is the record."""

import math
from typing import Any

__all__ = ["record"]

MIME = "application/vnd.lipnb.record+json"


def record(**values: Any) -> None:
    """Record values of this run of the notebook; a sweep gathers them into its table.

    They are stored as an output of the cell, with a line for readers. Several calls add up; each name is recorded once.

    Parameters
    ----------
    **values
        Numbers, strings, booleans or None; also arrays and tensors that hold one number.

    Raises
    ------
    TypeError
        No value is given, or a value is not a number, string, boolean or None.

    Examples
    --------
    >>> record(slope=0.5, converged=True)
    recorded: slope = 0.5, converged = True
    """
    if not values:
        raise TypeError("record needs a name and a value, such as record(slope=slope).")
    values = {name: _scalar(name, value) for name, value in values.items()}
    text = "recorded: " + ", ".join(f"{name} = {_shown(value)}" for name, value in values.items())
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:  # a plain script
        print(text)
        return
    if get_ipython() is None:
        print(text)
        return
    display({MIME: {name: _packed(value) for name, value in values.items()}, "text/plain": text}, raw=True)


def _scalar(name, value):
    """The value as a plain Python scalar."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    item = getattr(value, "item", None)  # NumPy, torch, JAX: anything that holds exactly one number
    if item is not None and math.prod(getattr(value, "shape", (2,))) == 1:
        value = item()
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            return plain(value)
    shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
    raise TypeError(
        f"record takes numbers, strings, booleans and None; {name!r} is a {type(value).__name__}{shape}: "
        "record its parts one by one, each under its own name."
    )


def _shown(value):
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


def _packed(value):
    """A value for JSON, which cannot express numbers that are not finite."""
    return {"float": str(value)} if isinstance(value, float) and not math.isfinite(value) else value


def recorded(notebook: Any) -> dict[str, Any]:
    """Values that an executed notebook recorded.

    Parameters
    ----------
    notebook : nbformat.NotebookNode
        The notebook with its outputs.

    Returns
    -------
    dict
        Name -> value, in the order of recording.

    Raises
    ------
    ValueError
        A name is recorded twice.
    """
    values = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            for name, value in output.get("data", {}).get(MIME, {}).items():
                if name in values:
                    raise ValueError(f"{name!r} is recorded twice: give each value its own name.")
                values[name] = float(value["float"]) if isinstance(value, dict) else value
    return values
