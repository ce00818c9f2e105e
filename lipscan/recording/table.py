"""Tables in the making: what is measured is kept, whatever stops the run.

A table is ``NAME.csv`` with ``NAME.json`` beside it. While it is made, finished units of work are appended to
``NAME.partial.jsonl``, one line each, so that a killed run continues where it was. A unit may say that it could not
measure all: its gaps stand in ``NAME.json``, the partial file stays, and the next run tries that unit again.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lipnb.extras import extra
from lipscan.origin import versions
from lipscan.recording.files import Lines, alone, kept, replacing

with extra("scan"):
    import pandas as pd
    from tqdm import tqdm

__all__ = ["FLOAT_FORMAT", "Recording", "Unit", "bar", "make", "recording", "remeasure"]

SELDOM = 10.0  # seconds between two lines of progress in a file
FLOAT_FORMAT = "%.6g"  # more digits differ between processors
GAP = "gap"  # key of a row that is no row of the table: it says what could not be measured


@dataclass(frozen=True)
class Unit:
    """A piece of a table that is measured in one go.

    Parameters
    ----------
    key : str
        Names the unit within its table; a run that is continued passes over the keys it finds.
    measure : callable
        Gives its rows, a list of dictionaries. Called once, and only when the unit is not there yet. A row with the key
        ``gap`` says what could not be measured: it goes into the provenance, and the next run measures the unit again.
    size : int
        How much of the progress bar it is, such as how many rows it gives.
    """

    key: str
    measure: Callable[[], list[dict]]
    size: int = 1


class Recording:
    """A table in the making; see `recording`."""

    def __init__(self, path: Path, settings: dict):
        self._path, self._settings, self._lines = path, settings, Lines(path)
        self._units: dict[str, dict] = {}
        self._read()

    def _read(self):
        if not self._path.exists():
            self._append({"settings": self._settings})
            return
        try:
            lines = self._lines.read()
            begun = [line["settings"] for line in lines[:1]]
            units = {line["unit"]: {name: line[name] for name in ("unit", "seconds", "rows")} for line in lines[1:]}
        except (ValueError, TypeError, KeyError):
            raise ValueError(
                f"{self._path} is damaged: a line of it is no JSON of a table in the making. Mend or delete that line "
                "and give the same command again, or delete the file to begin again."
            ) from None
        if begun and begun[0] != self._settings:
            if units:
                other = _differing(begun[0], self._settings)
                raise ValueError(
                    f"{self._path} was begun with other settings ({other}): finish it with those, or delete it to "
                    "begin again."
                )
            begun, lines = [], []  # nothing was measured yet
        self._lines.keep(len(lines))
        if not begun:
            self._append({"settings": self._settings})
        self._units = {key: unit for key, unit in units.items() if not _gaps(unit)}

    def _append(self, line):
        self._lines.append(line, _plain)

    def rows(self, unit: str) -> list[dict] | None:
        """Rows of a finished unit, as dictionaries, or None when it is still to be measured."""
        line = self._units.get(unit)
        return None if line is None else line["rows"]

    def add(self, unit: str, rows: list[dict], seconds: float) -> None:
        """Save the rows of a finished unit at once.

        Parameters
        ----------
        unit : str
            Key of the unit of work.
        rows : list of dict
            Its measurements.
        seconds : float
            What they took.
        """
        line = {"unit": unit, "seconds": seconds, "rows": rows}
        self._append(line)
        self._units[unit] = line

    def keep(self, units: Sequence[Unit]) -> None:
        """Forget what was measured before of all but these units.

        Parameters
        ----------
        units : sequence of Unit
            All that the table is to have.
        """
        asked = {unit.key for unit in units}
        self._units = {key: unit for key, unit in self._units.items() if key in asked}

    def fill(self, units: Sequence[Unit], progress: tqdm, *, title: str = "", pool: Executor | None = None) -> None:
        """Measure the units that are not there yet, each saved as soon as it is done.

        Parameters
        ----------
        units : sequence of Unit
            In the order of the rows.
        progress : tqdm
            A progress bar from `bar` with room for their sizes.
        title : str
            What the bar calls the table.
        pool : Executor, optional
            Measures them at the same time; rows are then in the order in which units end.
        """
        if len({unit.key for unit in units}) < len(units):
            raise ValueError("two units have one key: each needs its own.")
        todo = [unit for unit in units if self.rows(unit.key) is None]
        if not progress.disable:  # found, not measured: not part of the rate
            found = sum(unit.size for unit in units) - sum(unit.size for unit in todo)
            progress.initial += found
            progress.n += found
            progress.last_print_n += found
        if pool is None:
            runs = ((unit, lambda unit=unit: _timed(unit.measure)) for unit in todo)
        else:
            waiting = {pool.submit(_timed, unit.measure): unit for unit in todo}
            runs = ((waiting[run], run.result) for run in as_completed(waiting))
        failed = None
        for unit, result in runs:
            progress.set_description(f"{title}: {unit.key}" if title else unit.key)
            try:
                measured = result()
            except Exception as error:
                if pool is None:
                    raise
                failed = failed or error  # what runs beside it is still kept, what waits does not begin
                for run in waiting:
                    run.cancel()
                continue
            self.add(unit.key, *measured)
            progress.update(unit.size)
        if failed is not None:
            raise failed

    def finish(self, join: Callable[[pd.DataFrame], pd.DataFrame] | None = None) -> pd.DataFrame:
        """Write the table and its provenance; drop the partial file, but where there are gaps.

        Parameters
        ----------
        join : callable, optional
            Makes the table from that of all units' rows, in the order they were added; default: that table itself.
        """
        gaps = [row for unit in self._units.values() for row in _gaps(unit)]
        table = pd.DataFrame([row for unit in self._units.values() for row in unit["rows"] if GAP not in row])
        table = table if join is None else join(table)
        seconds = sum(unit["seconds"] for unit in self._units.values())
        birth = {
            "settings": self._settings,
            "rows": len(table),
            "seconds": round(seconds, 1),
            "finished": time.strftime("%Y-%m-%d", time.gmtime()),
            "versions": versions(),
            **({"gaps": gaps} if gaps else {}),
        }
        final = self._path.with_name(self._path.name.replace(".partial.jsonl", ".csv"))
        with kept(final):
            with replacing(final, final.with_suffix(".json")) as (csv, about):
                csv.write_text(table.to_csv(index=False, float_format=FLOAT_FORMAT), encoding="utf-8")
                about.write_text(json.dumps(birth, indent=1) + "\n", encoding="utf-8")
            if not gaps:
                self._path.unlink()
        return table


def _gaps(unit):
    """What a unit could not measure."""
    return [row for row in unit["rows"] if GAP in row]


def _plain(value):
    """A number of NumPy or torch as Python's own."""
    if callable(item := getattr(value, "item", None)):
        return item()
    raise TypeError(f"a row holds a {type(value).__name__}: give numbers, strings, booleans or None.")


def _timed(measure):
    """What `measure` gives, and the seconds it took."""
    began = time.perf_counter()
    return measure(), time.perf_counter() - began


def bar(total: int, unit: str, shown: bool = True) -> tqdm:
    """A progress bar over `total` of what `unit` names, for `Recording.fill`; in a file seldom."""
    often = 0.1 if sys.stderr.isatty() else SELDOM
    return tqdm(total=total, unit=unit, disable=not shown, smoothing=0.05, mininterval=often)


def _differing(old, new):
    """Where two settings differ, in words, the first three places."""
    keys = [key for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)]
    said = [f"{key} {_short(old.get(key))}, now {_short(new.get(key))}" for key in keys[:3]]
    return "; ".join(said) + (f"; and {len(keys) - 3} more" if len(keys) > 3 else "")


def _short(value):
    text = json.dumps(value, default=_plain)
    return text if len(text) <= 60 else f"{text[:57]}..."


@contextmanager
def recording(
    name: str, settings: dict[str, Any], where: str | os.PathLike, *, fix: str = "name another one"
) -> Iterator[Recording]:
    """Make or continue a table, one process at a time.

    Parameters
    ----------
    name : str
        Name of the table, without ending.
    settings : dict
        What the rows depend on; a partial table with other settings is refused, never mixed.
    where : str or path
        Folder of the table.
    fix : str
        What to do where that folder cannot be written, for the sentence that says so.

    Yields
    ------
    Recording
        `fill` measures what is missing (`rows` tells what is there, `add` saves a unit), `finish` writes the table.

    Raises
    ------
    OSError
        "the folder ... cannot be written".
    ValueError
        "... was begun with other settings".
    RuntimeError
        "another run is making the table ...".
    """
    where = Path(where)
    busy = f"another run is making {name!r} in the folder {where.name!r}: wait for it, or stop it first."
    with alone(where, f".{name}.partial.lock", fix=fix, busy=busy):
        yield Recording(where / f"{name}.partial.jsonl", json.loads(json.dumps(settings)))


def make(
    name: str,
    settings: dict[str, Any],
    units: Sequence[Unit],
    where: str | os.PathLike,
    *,
    join: Callable[[pd.DataFrame], pd.DataFrame] | None = None,
    unit: str = "unit",
    progress: bool = True,
    pool: Executor | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Make a table whole: what is missing is measured; options as of `recording`, `Recording.fill` and `finish`.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> units = [Unit(f"n={n}", lambda n=n: [{"n": n, "square": n * n}]) for n in (2, 3)]
    >>> with TemporaryDirectory() as folder:
    ...     list(make("squares", {"seed": 0}, units, folder, progress=False).square)
    [4, 9]
    """
    with (
        recording(name, settings, where, **options) as record,
        bar(sum(part.size for part in units), unit, progress) as shown,
    ):
        record.fill(units, shown, title=name, pool=pool)
        return record.finish(join)


def remeasure(
    table: pd.DataFrame,
    again: Callable[[dict], dict | None],
    *,
    rows: int = 4,
    seed: int = 0,
    by: list[str] | None = None,
) -> pd.DataFrame:
    """Measure a few random rows of a stored table again, now.

    Parameters
    ----------
    table : DataFrame
        A finished table; all its rows are candidates.
    again : callable
        Of a row, a dictionary: what is measured now, column -> number, or None where the row cannot be measured here.
        Such rows are passed over.
    rows : int
        How many rows; there may be fewer.
    seed : int
        Seed of the choice.
    by : list of str, optional
        Columns: rows that are equal in all of them are chosen together, and `rows` counts these groups.

    Returns
    -------
    DataFrame
        The chosen rows, with ``X again`` and ``X difference`` (relative) for every column X measured.

    Raises
    ------
    ValueError
        "no row of this table can be measured here ...".

    Examples
    --------
    >>> table = pd.DataFrame({"n": [2, 3], "square": [4, 10]})
    >>> found = remeasure(table, lambda row: {"square": row["n"] ** 2}).sort_values("n")
    >>> found["square again"].tolist(), found["square difference"].round(3).tolist()
    ([4, 9], [0.0, 0.1])
    """
    shuffled, chosen, count = table.reset_index(drop=True).sample(frac=1, random_state=seed), [], 0
    for _, group in shuffled.groupby(shuffled.index if by is None else by, sort=False):
        measured = [(row, again(row)) for row in group.sort_index().to_dict("records")]
        pairs = [(row, found) for row, found in measured if found is not None]
        if len(pairs) < len(measured):
            continue
        for row, found in pairs:
            now = {f"{name} again": value for name, value in found.items()}
            gaps = {f"{name} difference": _apart(value, row[name]) for name, value in found.items()}
            chosen.append(row | now | gaps)
        count += 1
        if count == rows:
            break
    if not chosen:
        raise ValueError("no row of this table can be measured here: its texts are not at hand in the same edition.")
    return pd.DataFrame(chosen)


def _apart(now, stored):
    """Relative difference; 0 where both are 0."""
    return 0.0 if now == stored else abs(now / stored - 1) if stored else float("inf")
