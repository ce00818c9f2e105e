"""The folder of a scan: its tables, verified against their checksum when read."""

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from lipscan import recording
from lipscan.recording.table import FLOAT_FORMAT, GAP
from lipscan.scanning.fmt import many
from lipscan.scanning.summary import COLUMNS, TABLES, summarise

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Scan", "load"]

LAYOUT = 2  # of a scan's folder; 0.3 wrote none
SUMMARY, OLD_SUMS = "summary.csv", "SHA256SUMS"  # the second in finished scans of 0.3
REPORT, AGAINST = "report.html", "against.csv"
OTHERS = {"sweep.json": "a sweep", "windows.json": "a comparison of lipnb drift", "config.json": "a model"}
OURS = b"Made by <code>lipnb scan</code>"  # in every report


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
        Provenance: `settings`, `rows`, `seconds`, `finished`, `versions`; `earlier`, the same entries before the scan
        was lengthened.
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

    def token_ids(self, length: int) -> "Tensor":
        """Token ids of the windows of this length, special tokens included.

        With the model, ``lipnb.models.load``, they are all that is needed to measure a row again.

        Parameters
        ----------
        length : int
            One of the lengths of the scan.

        Returns
        -------
        LongTensor, shape (windows, n)

        Raises
        ------
        ValueError
            The scan has no windows of this length, or its model reads no text.
        """
        import torch

        kept = self.about["settings"].get("token_ids", {})
        if str(length) not in kept:
            held = f"it has those of {', '.join(kept)} tokens" if kept else "its model reads no text"
            raise ValueError(f"the scan holds no token ids of windows of {length!r} tokens: {held}.")
        return torch.tensor([[int(one) for one in window.split()] for window in kept[str(length)]])

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
    refuse_old(folder)
    sound = finished(folder) and _about(folder, "scan").get("settings")
    if (folder / "scan.json").is_file() and not sound and not (folder / "scan.partial.jsonl").is_file():
        load(folder)  # says that it is damaged
    begun = {table: _begun(folder, table) for table in TABLES}
    settings = next((settings for settings, _ in begun.values() if settings), None)
    if settings is None:
        return None
    if finished(folder) and settings == _about(folder, "scan").get("settings"):
        found = load(folder)
        said = f"a finished scan of {_of_what(settings)}: {many(len(found.summary), 'row')} in summary.csv."
        if len(found.gaps):
            said += f" Not measured: {len(found.gaps)}; the same command tries again."
        there = (folder / "report.html").is_file()
        return said + (" report.html shows it." if there else f" No report.html: lipnb scan {folder} writes it.")
    running = any(recording.held(folder / f".{table}.partial.lock") for table in TABLES)
    layers = len(settings["layers_scanned"])
    most = {"scan": layers * len(settings["lengths"]), "heads": layers, "tokens": layers}
    what = {"scan": "layers and lengths", "heads": "layers' heads", "tokens": "layers' tokens", "whole": "whole layers"}
    kept = []
    for table, (there, count) in begun.items():
        if there and table in most and (count != 0 or table == "scan"):
            kept.append(f"{most[table] if count is None else count} of {most[table]} {what[table]}")
        elif there and count != 0:
            kept.append(what[table] if count is None else f"{count} {what[table]} or ends of the network")
    said = f"a scan of {_of_what(settings)} that {'is running' if running else 'has not ended'}: it keeps "
    return f"{said}{', '.join(kept)}." + ("" if running else " The same command goes on.")


def settings_in(folder: Path) -> list[dict]:
    """Settings of each table present, begun before finished."""
    found = [_begun(folder, table) for table in TABLES]
    ended = [(_about(folder, table) or {}).get("settings") for table in TABLES]
    begun = [settings for settings, count in found if settings and count != 0]
    return [one for one in begun + ended if one and isinstance(one, dict)]


def refuse_foreign(folder: Path) -> None:
    """Raise ValueError for the folder of a sweep, a drift or a model, or if no scan wrote the files with its names."""
    for name, what in OTHERS.items():
        # another program's config.json is no model's
        if (folder / name).is_file() and (what != "a model" or b"model_type" in (folder / name).read_bytes()):
            raise ValueError(f"the folder {folder.resolve().name!r} holds {what} ({name}): name another with --output.")
    written = [f"{name}.{kind}" for name in TABLES for kind in ("csv", "json")] + [SUMMARY, REPORT, AGAINST]
    there = [name for name in written if (folder / name).exists()]
    traces = [
        OLD_SUMS,
        *(f"{dot}{name}.partial.{kind}" for name in TABLES for dot, kind in (("", "jsonl"), (".", "lock"))),
    ]
    if not there or settings_in(folder) or any((folder / name).exists() for name in traces):
        return
    if not ((folder / REPORT).is_file() and OURS in (folder / REPORT).read_bytes()):
        raise ValueError(
            f"the folder {folder.resolve().name!r} holds {there[0]}, which no scan of lipnb wrote: name another folder "
            "with --output."
        )


def _begun(folder, table):
    """Settings of a table and its number of finished units; None instead of a number if the table is finished."""
    begun = folder / f"{table}.partial.jsonl"
    try:
        if not begun.is_file():
            return json.loads((folder / f"{table}.json").read_text(encoding="utf-8"))["settings"], None
        raw = begun.read_text(encoding="utf-8")
        lines = [json.loads(line) for line in raw[: raw.rfind("\n") + 1].splitlines()]  # the last may be incomplete
        settings = lines[0]["settings"]
        lengths = settings["lengths"] if table == "scan" else [settings["close"]]
        units = {tuple(line["unit"].split("/")) for line in lines[1:]}  # some may be of a longer scan
        others = {str(layer) for layer in range(settings["layers"])} - {*map(str, settings["layers_scanned"])}
        return settings, sum(layer not in others and int(n) in lengths for layer, n in units)
    except (OSError, ValueError, LookupError, TypeError):
        return None, None


def _of_what(settings):
    """Phrase for the model, text and lengths of a scan."""
    return f"{settings['model']} on {settings['text']} at n = {', '.join(map(str, settings['lengths']))}"


def _about(folder, table):
    """Provenance of a table, from its json file; None if there is none that can be read."""
    try:
        about = json.loads((folder / f"{table}.json").read_text(encoding="utf-8"))
        return about if isinstance(about, dict) else None
    except (OSError, ValueError):
        return None


def finished(folder: Path) -> bool:
    """Whether the folder holds a finished scan: its settings file, which is written last."""
    return "finished" in (_about(folder, "scan") or ())


def refuse_old(folder: Path) -> None:
    """Raise ValueError if the folder holds a scan that lipnb 0.3 began or finished."""
    sealed = (folder / OLD_SUMS).is_file() and any((folder / f"scan.{kind}").exists() for kind in ("csv", "json"))
    if sealed or any(one.get("layout") != LAYOUT for one in settings_in(folder)):
        raise ValueError(
            f"the folder {folder.resolve().name!r} holds a scan made by lipnb 0.3, which this version does not read: "
            "name another folder with --output, or measure again with --again (again=True in Python)."
        )


def clear(folder: Path, other: bool) -> None:
    """Delete the tables in this folder, and the partial tables of a finished scan or of another one (`other`)."""
    endings = ("csv", "json", "partial.jsonl") if other or finished(folder) else ("csv", "json")
    for name in (OLD_SUMS, *(f"{table}.{ending}" for table in TABLES for ending in endings)):
        (folder / name).unlink(missing_ok=True)


def tables_of(settings: dict) -> tuple[str, ...]:
    """Names of the tables of a scan with these settings; the first is written last."""
    return TABLES if settings["close"] is not None else TABLES[:1]


def columns_of(table: str) -> list[str]:
    """Names of the columns of a table, as `COLUMNS` explains them."""
    return [one for names in COLUMNS[f"{table}.csv"] for one in names.split(", ")]


def digest(texts: Iterable[bytes]) -> str:
    """SHA-256 of the tables of a scan, in the order of `tables_of`."""
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def write_summary(folder: Path, table: pd.DataFrame) -> None:
    """Write summary.csv of a table scan.csv; for human readers: lipnb never reads it."""
    with recording.kept(folder / SUMMARY):
        recording.write(folder / SUMMARY, summarise(table).to_csv(index=False, float_format=FLOAT_FORMAT))


def load(folder: str | os.PathLike) -> Scan:
    """A finished scan from its folder, as `scan` returned it.

    Parameters
    ----------
    folder : str or path
        Contains scan.csv and scan.json.

    Returns
    -------
    Scan

    Raises
    ------
    FileNotFoundError
        The folder holds no finished scan.
    ValueError
        A table is not what the scan wrote, by the checksum in scan.json; or lipnb 0.3 made the scan.
    """
    folder = Path(folder)
    refuse_old(folder)
    unfinished = FileNotFoundError(
        f"the folder {folder.name!r} holds no finished scan (scan.csv and scan.json): give the command of that scan "
        "again, which finishes it, or name another folder."
    )
    if not (folder / "scan.json").is_file():
        raise unfinished
    about = _about(folder, "scan") or {}
    try:
        names = tables_of(about["settings"])
        texts = {name: (folder / f"{name}.csv").read_bytes() for name in names}
        births = [about, *(json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in names[1:])]
        if digest(texts.values()) != about["sha256"]:
            raise ValueError("a digit was changed")
        about["settings"]["layers_scanned"], about["versions"], about["finished"]
        about["seconds"] = round(sum(birth["seconds"] for birth in births), 1)
        gaps = [
            {"table": name, **gap} for name, birth in zip(names, births, strict=True) for gap in birth.get("gaps", ())
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        if (folder / "scan.partial.jsonl").is_file():  # stopped while it wrote the tables anew
            raise unfinished from None
        raise ValueError(
            f"the tables in the folder {folder.name!r} were changed or damaged since the scan wrote them: measure "
            f"its model again (lipnb scan MODEL --output {folder} --again; again=True in Python), or name another "
            "folder."
        ) from None
    # tokens may be the words null and nan
    read = partial(pd.read_csv, keep_default_na=False, na_values=[""])
    tables = {
        name: read(BytesIO(texts[name])) if name in texts else pd.DataFrame(columns=columns_of(name)) for name in TABLES
    }
    return Scan(
        table=tables.pop("scan"),
        summary=summarise(read(BytesIO(texts["scan"]))),
        about=about,
        gaps=pd.DataFrame(gaps, columns=["table", GAP, "reason"]),
        **tables,
    )
