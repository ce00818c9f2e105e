"""Resumable tables: finished units of work survive any interruption.

A table is ``NAME.csv`` with its provenance ``NAME.json``. While it is made, finished units of work are appended to
``NAME.partial.jsonl``, one line each, so that a killed run can continue. A unit may report gaps, which it could not
measure: they are listed in ``NAME.json``, the partial file stays, and the next run tries that unit again.
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from pathlib import Path
from typing import Any

from lipnb.extras import extra
from lipscan.origin import versions
from lipscan.recording.files import Lines, alone, kept, replacing, write

with extra("scan"):
    import pandas as pd
    from tqdm import tqdm

__all__ = ["Recording", "Unit", "bar", "make", "outward", "recording", "remeasure"]

SELDOM = 10.0  # seconds between two updates of the progress in a file
DIGITS = 6  # more differ between processors
FLOAT_FORMAT = f"%.{DIGITS}g"
GAP = "gap"  # key of a row that does not belong to the table but describes what could not be measured


@dataclass(frozen=True)
class Unit:
    """A part of a table that is measured in one call.

    Parameters
    ----------
    key : str
        Name of the unit within its table; a continued run skips the keys it finds.
    measure : callable
        Returns its rows, a list of dictionaries. Called once, and only if the unit is missing. A row with the key
        ``gap`` describes what could not be measured: it goes into the provenance, and the next run tries again.
    size : int
        Its share of the progress bar, for example its number of rows.
    """

    key: str
    measure: Callable[[], list[dict]]
    size: int = 1


class Recording:
    """A table that is being made; see `recording`."""

    def __init__(self, path: Path, settings: dict, extends: Callable[[dict], bool] | None = None):
        self._path, self._settings, self._lines, self._extends = path, settings, Lines(path), extends
        self._beyond = False  # whether the partial file holds finished units of a longer table
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
                f"{self._path} is damaged: one of its lines is not a JSON record of an unfinished table. Correct or "
                "delete that line and run the same command again, or delete the file to begin again."
            ) from None
        if begun and begun[0] != self._settings:
            if units and self._extends is not None and self._extends(begun[0]):
                texts = [json.dumps(line) + "\n" for line in ({"settings": self._settings}, *lines[1:])]
                with kept(self._path):
                    write(self._path, "".join(texts))
            elif units:
                other = _differing(begun[0], self._settings)
                raise ValueError(
                    f"{self._path} was begun with other settings ({other}): finish it with those, or delete it to "
                    "begin again."
                )
            else:
                begun, lines = [], []  # nothing was measured yet
        self._lines.keep(len(lines))
        if not begun:
            self._append({"settings": self._settings})
        self._units = {key: unit for key, unit in units.items() if not _gaps(unit)}

    def _append(self, line):
        self._lines.append(line, _plain)

    def rows(self, unit: str) -> list[dict] | None:
        """Rows of a finished unit, as dictionaries, or None if it is not finished."""
        line = self._units.get(unit)
        return None if line is None else line["rows"]

    def add(self, unit: str, rows: list[dict], seconds: float) -> None:
        """Save the rows of a finished unit immediately.

        Parameters
        ----------
        unit : str
            Key of the unit.
        rows : list of dict
            Its measurements.
        seconds : float
            Time that they took.
        """
        line = {"unit": unit, "seconds": seconds, "rows": rows}
        self._append(line)
        self._units[unit] = line

    def keep(self, units: Sequence[Unit]) -> None:
        """Forget finished units other than these; the file keeps them if a longer table may be made later.

        Parameters
        ----------
        units : sequence of Unit
            All units of the table.
        """
        asked = {unit.key for unit in units}
        self._beyond = self._extends is not None and not {*self._units} <= asked
        self._units = {key: unit for key, unit in self._units.items() if key in asked}

    def fill(self, units: Sequence[Unit], progress: tqdm, *, title: str = "", pool: Executor | None = None) -> None:
        """Measure the missing units; each is saved as soon as it is done.

        Parameters
        ----------
        units : sequence of Unit
            In the order of the rows.
        progress : tqdm
            Progress bar from `bar`, with the sum of their sizes as total.
        title : str
            Name of the table in the bar.
        pool : Executor, optional
            Measures units concurrently; rows then follow the order in which units finish.
        """
        if len({unit.key for unit in units}) < len(units):
            raise ValueError("two units have one key: each needs its own.")
        todo = [unit for unit in units if self.rows(unit.key) is None]
        if not progress.disable:  # found, not measured: exclude them from the rate
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
                failed = failed or error  # running units are still saved, waiting ones are cancelled
                for run in waiting:
                    run.cancel()
                continue
            self.add(unit.key, *measured)
            progress.update(unit.size)
        if failed is not None:
            raise failed

    def finish(
        self, join: Callable[[pd.DataFrame], pd.DataFrame] | None = None, more: Callable[[str], dict] = lambda text: {}
    ) -> pd.DataFrame:
        """Write the table and its provenance; delete the partial file unless there are gaps.

        Parameters
        ----------
        join : callable, optional
            Maps the table of all units' rows, in the order they were added, to the final table; default: no change.
        more : callable, optional
            Maps the text of the table to more entries of its provenance.
        """
        gaps = [row for unit in self._units.values() for row in _gaps(unit)]
        table = pd.DataFrame([row for unit in self._units.values() for row in unit["rows"] if GAP not in row])
        table = table if join is None else join(table)
        seconds = sum(unit["seconds"] for unit in self._units.values())
        text = table.to_csv(index=False, float_format=FLOAT_FORMAT)
        birth = {
            "settings": self._settings,
            "rows": len(table),
            "seconds": round(seconds, 1),
            "finished": time.strftime("%Y-%m-%d", time.gmtime()),
            "versions": versions(),
            **more(text),
            **({"gaps": gaps} if gaps else {}),
        }
        final = self._path.with_name(self._path.name.replace(".partial.jsonl", ".csv"))
        with kept(final):
            with replacing(final, final.with_suffix(".json")) as (csv, about):
                csv.write_text(text, encoding="utf-8")
                about.write_text(json.dumps(birth, indent=1) + "\n", encoding="utf-8")
            if not gaps and not self._beyond:
                self._path.unlink()
        return table


def outward(bound: float, *, up: bool) -> float:
    """A bound rounded to the digits of a table so that it remains a bound: upper bounds up, lower bounds down.

    Examples
    --------
    >>> outward(34.85010001, up=True), outward(34.85019999, up=False)
    (34.8502, 34.8501)
    """
    if not math.isfinite(bound):
        return bound
    rounded = Context(prec=DIGITS, rounding=ROUND_CEILING if up else ROUND_FLOOR)
    return float(rounded.create_decimal(repr(float(bound))))  # in its shortest digits: what is rounded already stays


def _gaps(unit):
    """Rows of a unit that describe gaps."""
    return [row for row in unit["rows"] if GAP in row]


def _plain(value):
    """A NumPy or torch number as a Python number."""
    if callable(item := getattr(value, "item", None)):
        return item()
    raise TypeError(f"a row holds a {type(value).__name__}: give numbers, strings, booleans or None.")


def _timed(measure):
    """Result of `measure` and its run time in seconds."""
    began = time.perf_counter()
    return measure(), time.perf_counter() - began


def bar(total: int, unit: str, shown: bool = True) -> tqdm:
    """Progress bar over `total` units called `unit`, for `Recording.fill`; updated rarely if stderr is a file."""
    often = 0.1 if sys.stderr.isatty() else SELDOM
    return tqdm(total=total, unit=unit, disable=not shown, smoothing=0.05, mininterval=often)


def _differing(old, new):
    """Differences between two settings, in words, at most three."""
    keys = [key for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)]
    said = [f"{key} {_short(old.get(key))}, now {_short(new.get(key))}" for key in keys[:3]]
    return "; ".join(said) + (f"; and {len(keys) - 3} more" if len(keys) > 3 else "")


def _short(value):
    text = json.dumps(value, default=_plain)
    return text if len(text) <= 60 else f"{text[:57]}..."


@contextmanager
def recording(
    name: str,
    settings: dict[str, Any],
    where: str | os.PathLike,
    *,
    fix: str = "name another one",
    extends: Callable[[dict], bool] | None = None,
) -> Iterator[Recording]:
    """Context to make or continue a table, one process at a time.

    Parameters
    ----------
    name : str
        Name of the table, without ending.
    settings : dict
        Everything the rows depend on; a partial table with other settings is refused, never mixed.
    where : str or path
        Folder of the table.
    fix : str
        Fix named in the message if that folder is not writable.
    extends : callable, optional
        Whether finished units of a partial table with the given, other settings are units of this table or of a longer
        one; by default other settings are refused.

    Yields
    ------
    Recording
        `fill` measures missing units (`rows` returns finished ones, `add` saves one), `finish` writes the table.

    Raises
    ------
    OSError
        The folder cannot be written.
    ValueError
        The partial table was begun with other settings, or is damaged.
    RuntimeError
        Another run is making the table.
    """
    where = Path(where)
    busy = f"another run is making {name!r} in the folder {where.name!r}: wait for it, or stop it first."
    with alone(where, f".{name}.partial.lock", fix=fix, busy=busy):
        yield Recording(where / f"{name}.partial.jsonl", json.loads(json.dumps(settings)), extends)


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
    """Make a complete table; options as for `recording`, `Recording.fill` and `Recording.finish`.

    Only missing units are measured.

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
    """Measure a few random rows of a stored table again.

    Parameters
    ----------
    table : DataFrame
        A finished table; all its rows are candidates.
    again : callable
        Maps a row, as a dictionary, to new measurements, column -> number, or to None if the row cannot be measured on
        this machine; such rows are skipped.
    rows : int
        Number of rows, or fewer if the table has fewer.
    seed : int
        Seed of the random choice.
    by : list of str, optional
        Columns: rows that are equal in all of them are chosen together, and `rows` counts these groups.

    Returns
    -------
    DataFrame
        The chosen rows, with ``X again`` and ``X difference`` (relative) for every column X measured.

    Raises
    ------
    ValueError
        No row of the table can be measured on this machine.

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
        raise ValueError("no row of this table can be measured here: its texts are not available in the same edition.")
    return pd.DataFrame(chosen)


def _apart(now, stored):
    """Relative difference; 0 if both are 0."""
    return 0.0 if now == stored else abs(now / stored - 1) if stored else float("inf")
