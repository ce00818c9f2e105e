"""The folder of a scan: its tables, verified against their checksums when read."""

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lipscan import recording
from lipscan.recording.table import FLOAT_FORMAT, GAP
from lipscan.scanning.fmt import many
from lipscan.scanning.summary import TABLES, summarise

__all__ = ["Scan", "load"]

SUMMARY, SUMS = "summary.csv", "SHA256SUMS"
REPORT, AGAINST = "report.html", "against.csv"
OURS = b"Made by <code>lipnb scan</code>"  # in every report
NEEDED = {
    "scan": ["layer", "length", "window", "passed", "self_check", "radius", "mean_radius"],
    "heads": ["layer", "head", "lipschitz"],
    "tokens": ["layer", "place", "token", "written", "moves"],
    "whole": ["part", "composed", "layer", "lipschitz"],
}


@dataclass(frozen=True)
class Scan:
    """Results of a scan.

    Attributes
    ----------
    table : DataFrame
        One row for each layer, length and window. `lipscan.scanning.summary.COLUMNS` explains its columns and
        those below.
    summary : DataFrame
        One row for each layer and length: means, ranges, and how many times too high each bound is.
    about : dict
        Provenance: `settings`, `rows`, `seconds`, `finished`, `versions`.
    heads, tokens, whole : DataFrame
        Details at the shortest length, first window: one row for each head; for each token; for each whole layer and
        for the network. Empty if not requested.
    gaps : DataFrame
        One row for each gap: the `table` that lacks it, `gap` (a description) and `reason`.
    """

    table: pd.DataFrame
    summary: pd.DataFrame
    about: dict
    heads: pd.DataFrame
    tokens: pd.DataFrame
    whole: pd.DataFrame
    gaps: pd.DataFrame

    def report(self, path: str | os.PathLike, against: "Scan | None" = None) -> Path:
        """Write the report, one HTML file that opens offline, to `path` (a folder: report.html in it).

        Parameters
        ----------
        path : str or path
            A file, or an existing folder.
        against : Scan, optional
            Another scan, of the same windows, to compare with; see `lipscan.scanning.compare`.

        Returns
        -------
        Path
            The written file.
        """
        from lipscan.scanning.report import write_report  # only now: plots take a second to import

        return write_report(self, path, against)


def folder_of(model: str | os.PathLike, part: str | None = None) -> Path:
    """Default folder for a scan of a model: ``scan-<model>`` or ``scan-<model>-<part>``, in plain characters."""
    name = Path(str(model)).name if Path(str(model)).is_dir() else str(model)
    name = f"{name}-{part}" if part else name
    return Path(f"scan-{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('-.') or 'model'}")


def state(folder: str | os.PathLike) -> str | None:
    """Contents of a scan's folder and how to continue it, in sentences; None if it holds no scan."""
    folder = Path(folder)
    if (folder / SUMS).is_file():
        found = load(folder)
        said = (
            f"a finished scan of {_of_what(found.about['settings'])}: {many(len(found.summary), 'row')} in summary.csv."
        )
        if len(found.gaps):
            said += f" Not measured: {len(found.gaps)}; the same command tries again."
        there = (folder / "report.html").is_file()
        return said + (" report.html shows it." if there else f" No report.html: lipnb scan {folder} writes it.")
    begun = {table: _begun(folder, table) for table in TABLES}
    settings = next((settings for settings, _ in begun.values() if settings), None)
    running = any(recording.held(folder / f".{table}.partial.lock") for table in TABLES)
    if settings is None:
        return None
    layers = len(settings["layers_scanned"])
    most = {"scan": layers * len(settings["lengths"]), "heads": layers, "tokens": layers}
    what = {"scan": "layers and lengths", "heads": "layers' heads", "tokens": "layers' tokens", "whole": "whole layers"}
    kept = []
    for table, (there, count) in begun.items():
        if there and table in most:
            kept.append(f"{most[table] if count is None else count} of {most[table]} {what[table]}")
        elif there:
            kept.append(what[table] if count is None else f"{count} {what[table]} or ends of the network")
    said = f"a scan of {_of_what(settings)} that {'is running' if running else 'has not ended'}: it keeps "
    return f"{said}{', '.join(kept)}." + ("" if running else " The same command goes on.")


def settings_in(folder: Path) -> list[dict]:
    """Settings of each table present, finished or begun; in one scan they agree."""
    return [settings for settings, count in (_begun(folder, table) for table in TABLES) if settings and count != 0]


def refuse_foreign(folder: Path) -> None:
    """Raise ValueError if files with a scan's names lie in the folder without any sign that a scan wrote them."""
    written = [f"{name}.{kind}" for name in TABLES for kind in ("csv", "json")] + [SUMMARY, REPORT, AGAINST]
    there = [name for name in written if (folder / name).exists()]
    traces = [SUMS, *(f"{dot}{name}.partial.{kind}" for name in TABLES for dot, kind in (("", "jsonl"), (".", "lock")))]
    if not there or settings_in(folder) or any((folder / name).exists() for name in traces):
        return
    if not ((folder / REPORT).is_file() and OURS in (folder / REPORT).read_bytes()):
        raise ValueError(
            f"the folder {folder.resolve().name!r} holds {there[0]}, which no scan of lipnb wrote: name another folder "
            "with --output."
        )


def _begun(folder, table):
    """Settings of a table and its number of finished units; None instead of a number if the table is finished."""
    partial, about = folder / f"{table}.partial.jsonl", folder / f"{table}.json"
    try:
        if not partial.is_file():
            return json.loads(about.read_text(encoding="utf-8"))["settings"], None
        raw = partial.read_text(encoding="utf-8")
        lines = [json.loads(line) for line in raw[: raw.rfind("\n") + 1].splitlines()]  # the last may be incomplete
        return lines[0]["settings"], len({line["unit"] for line in lines[1:]})
    except (OSError, ValueError, LookupError, TypeError):
        return None, None


def _of_what(settings):
    """Phrase for the model, text and lengths of a scan."""
    return f"{settings['model']} on {settings['text']} at n = {', '.join(map(str, settings['lengths']))}"


class _Damaged(ValueError):
    """Why a stored file is rejected."""


def _digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def clear(folder: Path, other: bool) -> None:
    """Delete the tables in this folder, and the partial tables of a finished scan or of another one (`other`)."""
    endings = ("csv", "json", "partial.jsonl") if other or (folder / SUMS).is_file() else ("csv", "json")
    for name in (SUMS, *(f"{table}.{ending}" for table in TABLES for ending in endings)):
        (folder / name).unlink(missing_ok=True)


def seal(folder: Path) -> None:
    """Write the summary, and the checksums that mark the scan as complete."""
    table = pd.read_csv(folder / "scan.csv")
    with recording.kept(folder / SUMS):
        text = summarise(table).to_csv(index=False, float_format=FLOAT_FORMAT)
        recording.write(folder / SUMMARY, text)
        files = [f"{name}.{kind}" for name in TABLES for kind in ("csv", "json")] + [SUMMARY]
        there = [file for file in files if (folder / file).is_file()]
        recording.write(folder / SUMS, "".join(f"{_digest(folder / file)}  {file}\n" for file in there))


def load(folder: str | os.PathLike) -> Scan:
    """A finished scan from its folder, as `scan` returned it.

    Parameters
    ----------
    folder : str or path
        Contains scan.csv, scan.json and SHA256SUMS.

    Returns
    -------
    Scan

    Raises
    ------
    FileNotFoundError
        The folder holds no finished scan.
    ValueError
        A file differs from what the scan wrote, or is missing.
    """
    folder = Path(folder)
    if not (folder / SUMS).is_file():
        raise FileNotFoundError(
            f"the folder {folder.name!r} holds no finished scan (scan.csv and {SUMS}): give the command of that scan "
            "again, which finishes it, or name another folder."
        )
    file = SUMS
    try:
        lines = [line.split("  ", 1) for line in (folder / SUMS).read_text(encoding="utf-8").splitlines()]
        sums = {name: digest for digest, name in lines}
        for needed in ("scan.csv", "scan.json", SUMMARY):
            if needed not in sums:
                raise _Damaged(f"it does not name {needed}")
        if not (folder / SUMMARY).exists():  # `scan` recomputes it from the table
            del sums[SUMMARY]
        for file, digest in sums.items():
            if Path(file).name != file or _digest(folder / file) != digest:
                raise _Damaged("it is not the file that the scan wrote")
        tables = {}
        for name in TABLES:
            file = f"{name}.csv"
            tables[name] = pd.read_csv(folder / file) if file in sums else pd.DataFrame(columns=NEEDED[name])
            if missing := {*NEEDED[name]} - {*tables[name]}:
                raise _Damaged(f"it has no column {sorted(missing)[0]!r}")
        file = "scan.json"
        births = {
            name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
            for name in TABLES
            if f"{name}.json" in sums
        }
        about = births["scan"]
        about["settings"]["layers_scanned"], about["versions"]
        about["seconds"] = round(sum(birth["seconds"] for birth in births.values()), 1)
        there = [{"table": name, **gap} for name, birth in births.items() for gap in birth.get("gaps", ())]
        return Scan(
            **{"table" if name == "scan" else name: table for name, table in tables.items()},
            summary=summarise(tables["scan"]),
            about=about,
            gaps=pd.DataFrame(there, columns=["table", GAP, "reason"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = "it is missing" if isinstance(error, FileNotFoundError) else "it cannot be read"
        anew = f"measure its model anew (lipnb scan MODEL --output {folder} --again; again=True in Python)"
        ways = "delete it, and the command of that scan makes it from scan.csv" if file == SUMMARY else anew
        raise ValueError(
            f"{file} in the folder {folder.name!r} is damaged ({error if isinstance(error, _Damaged) else why}): "
            f"{ways}, or name another folder."
        ) from None
