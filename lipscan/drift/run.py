"""From a model, a text and a type, a file or a second model to their difference, kept window by window in a folder."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from lipscan import models, recording
from lipscan.drift.comparison import Bench, Drift, joined, type_of
from lipscan.drift.files import read, sha256_of, weights_of
from lipscan.drift.precision import TYPES
from lipscan.drift.runs import States, states
from lipscan.drift.words import lead
from lipscan.models import Model
from lipscan.models.files import read_config
from lipscan.models.loading import name_of
from lipscan.recording.files import Lines
from lipscan.recording.table import FLOAT_FORMAT
from lipscan.scanning.inputs import prepare
from lipscan.scanning.options import ScanOptions

__all__ = ["drift"]

TABLE = "windows"
ENDING = ".safetensors"
FINER = 0.1  # floors up to which errors of most layers are those of a finer type


def drift(
    model: Any,
    text: str | os.PathLike = "python_reference",
    *,
    dtype: torch.dtype | str | None = None,
    against: str | os.PathLike | Model | None = None,
    length: int = 128,
    windows: int = 2,
    seed: int = 0,
    worst: bool = False,
    output: str | os.PathLike | None = None,
    progress: bool = True,
) -> Drift:
    """Where another computation of a model differs from it, layer by layer, and whether rounding explains that.

    Parameters
    ----------
    model : Model, str or path
        The reference, or its name or folder as for `lipnb.models.load`; computed in float64.
    text : str or path
        A text, a file or a corpus, as for `lipnb.scan`; not read if `against` is a file, which has its own tokens.
    dtype : torch.dtype or str, optional
        "bfloat16", "float16" or "float32": the type of the other computation. By default that of the file or folder.
    against : str, path or Model, optional
        What to compare with: a file of states (see `lipscan.drift.read`), or a second model, by its name or folder. By
        default the model itself, computed in `dtype`, which shows what rounding alone does: of weights, too, where the
        checkpoint has finer ones.
    length, windows, seed : int
        Tokens of a window, number of windows, and the seed of their places and of random errors.
    worst : bool
        Whether to measure the largest gain of any error too, which takes minutes.
    output : str or path, optional
        Folder for the tables, the report, and what is measured so far: a stopped comparison continues there.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    Drift

    Raises
    ------
    ValueError, FileNotFoundError, OSError, RuntimeError
        The model, text, type, file or folder cannot be used, or states do not fit the model; raised before anything is
        measured.
    """
    dtype = _type(dtype)
    _check_given(dtype, against)
    if output is not None and Path(output).is_file():
        raise FileExistsError(f"{output} is a file: name a folder.")
    if output is not None:
        _check_folder(Path(output))
    settings: dict[str, Any] = {"worst": worst, "seed": seed}
    if isinstance(against, str | os.PathLike) and is_file(against):
        other, model = read(against), _loaded(model)
        if dtype is None:
            _check_type(other)
            dtype = type_of(other)
        settings |= {"against": Path(against).name, "states": _name(other.dtype), "sha256": _digest(other)}
    else:
        second = None if against is None else _loaded(against)
        dtype = _own_type(second) if dtype is None else dtype
        model, ids, read_ = windows_of(model, text, length, windows, seed)
        settings |= read_ | {"against": None if second is None else second.name}
        other = _of_model(model if second is None else second, model, ids, dtype)
        settings |= {"sha256": _digest(other)}
    bench = Bench(model, dtype, other, worst=worst, seed=seed)
    settings |= {"reference": sha256_of(weights_of(model))}
    about = {"model": model.name, "windows": len(other.ids), "length": other.ids.shape[1], **settings}
    about["dtype"] = _name(dtype)
    if output is not None:
        return _kept(bench, Path(output), about, dtype, progress)
    with recording.bar(bench.steps, "step", progress) as bar:
        rows = [row for number in range(len(other.ids)) for row in bench.measured(number, bar.update)]
    return _noted(joined(pd.DataFrame(rows), dtype, about))


def _check_folder(folder):
    """Refuse a folder with the results of another command, or with a report of the user's own."""
    ours = any((folder / name).is_file() for name in (f"{TABLE}.json", f"{TABLE}.partial.jsonl"))
    for name in ("scan.json", "scan.csv", "report.html", "points.jsonl"):
        if (folder / name).is_file() and not (ours and name == "report.html"):
            raise FileExistsError(f"the folder {folder} holds {name} of something else: name another folder.")


def _kept(bench, folder, about, dtype, progress):
    """The comparison, with each window stored as soon as it is measured; a finished one is read again."""
    rows = _stored(folder, about)
    if rows is None:
        rows = _measured(bench, folder, about, progress)
    found = _noted(joined(rows, dtype, about))
    recording.write(folder / "drift.csv", found.table.to_csv(index=False, float_format=FLOAT_FORMAT))
    found.report(folder)
    return found


def load(folder: str | os.PathLike) -> Drift:
    """The finished comparison in a folder; ValueError if it holds none."""
    settings = _settings(Path(folder))
    rows = None if settings is None else _stored(Path(folder), settings)
    if rows is None:
        raise ValueError(f"{folder} holds no finished comparison: `lipnb status {folder}` tells what it holds.")
    return _noted(joined(rows, TYPES[settings["dtype"]], settings))


def state(folder: str | os.PathLike) -> str | None:
    """What the folder of a comparison holds, in sentences; None if it holds none."""
    folder = Path(folder)
    begun = folder / f"{TABLE}.partial.jsonl"
    if begun.is_file():
        try:
            first, *units = Lines(begun).read()
            said, count, done = lead(first["settings"]).rstrip("."), first["settings"]["windows"], len(units)
        except (ValueError, KeyError, TypeError):
            return f"a comparison of which {begun.name} is damaged: delete that file, and give the same command again."
        running = recording.held(folder / f".{TABLE}.partial.lock")
        ends = "is running" if running else "has not ended"
        more = "" if running else " The same command goes on."
        return f"a comparison that {ends}, {done} of {count} windows: {said}.{more}"
    if _settings(folder) is None:
        return None
    found = load(folder)
    there = "report.html shows it." if (folder / "report.html").is_file() else "The same command writes report.html."
    return f"a finished comparison: {lead(found.about)} Verdict: {found.verdict.sentence}. {there}"


def _settings(folder):
    """Settings of the finished comparison in a folder, or None."""
    try:
        found = dict(json.loads((folder / f"{TABLE}.json").read_text(encoding="utf-8"))["settings"])
        return found if found["dtype"] in TYPES and found["windows"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _stored(folder, about):
    """Rows of the finished comparison in a folder; None if it holds none of these settings."""
    try:
        same = _settings(folder) == json.loads(json.dumps(about))
        return pd.read_csv(folder / f"{TABLE}.csv") if same else None
    except (OSError, ValueError):
        return None


def _measured(bench, folder, about, progress):
    """Rows of all windows, each stored as soon as it is measured."""
    with recording.recording(TABLE, about, folder) as record, recording.bar(bench.steps, "step", progress) as bar:
        units = [
            recording.Unit(f"window {number}", lambda number=number: bench.measured(number, bar.update), 0)
            for number in range(len(bench.other.ids))
        ]
        bar.update(
            sum(bench.steps_of(number) for number, unit in enumerate(units) if record.rows(unit.key) is not None)
        )
        record.fill(units, bar)
        return record.finish()


def windows_of(model: Any, text: str | os.PathLike, length: int, windows: int, seed: int) -> tuple[Model, Tensor, dict]:
    """The model, token ids (windows, length) of a text, and what was read; ValueError if the text is too short."""
    try:
        reader, about = prepare(model, text, ScanOptions(lengths=[length], windows=windows, seed=seed))
    except ValueError as error:  # a scan has several lengths, a comparison one
        raise ValueError(str(error).replace("--lengths", "--length")) from None
    if reader.model.architecture.reads != "input_ids":
        raise ValueError(f"{reader.model.name} does not read text: drift compares networks that read token ids.")
    return reader.model, reader.inputs[length], {name: about[name] for name in ("text", "text_sha256")}


def folder_of(model: str, dtype: str | None, against: str | Model | None) -> Path:
    """Default folder of a comparison, in plain characters: both sides, and the type that the other is held against."""
    _check_given(dtype, against)
    if against is None:
        other, kind = "", dtype
    elif isinstance(against, Model):
        other, kind = f"-against-{_short(against.name)}", dtype or _name(_own_type(against))
    else:
        other, kind = f"-against-{Path(against).stem}", dtype or _name(type_of(read(against)))
    return Path(f"drift-{re.sub(r'[^A-Za-z0-9._-]+', '-', f'{_short(model)}{other}-{kind}').strip('-.')}")


def _short(model):
    """Name of a model, of a path its last part."""
    return Path(model).resolve().name if Path(model).exists() else model


def _check_given(dtype, against):
    if dtype is None and against is None:
        raise ValueError(
            "there is nothing to compare with: give dtype (--dtype bfloat16), to see what rounding alone does, or "
            "against (--against FILE or FOLDER)."
        )


def is_file(against):
    return isinstance(against, str | os.PathLike) and (Path(against).is_file() or str(against).endswith(ENDING))


def _type(dtype):
    """The type of a name or a torch.dtype, None for None."""
    if dtype is None or dtype in TYPES.values():
        return dtype
    if dtype not in TYPES:
        raise ValueError(f"dtype must be one of {', '.join(TYPES)}, got {dtype}.")
    return TYPES[dtype]


def _loaded(model):
    return model if isinstance(model, Model) else models.load(model)


def _own_type(model):
    """Type in which a checkpoint says that it is meant to be computed; float32 if it says none."""
    folder = model.source.folder
    entries = {} if folder is None else read_config(folder, name_of(model.name))
    said = entries.get("dtype", entries.get("torch_dtype"))
    return TYPES.get(said, torch.float32)


def _of_model(second, model, ids, dtype):
    """States of a second model, or of the model itself, by fused attention if it has that, as usual."""
    if second is not model:
        for what, one, other in (("layers", second.layers, model.layers), ("width", second.width, model.width)):
            if one != other:
                raise ValueError(f"{second.name} has {what} {one}, and {model.name} {other}: they are not one model.")
    try:
        found = states(second, ids, dtype, "sdpa")
    except (ValueError, NotImplementedError, TypeError):
        found = states(second, ids, dtype)
    for place, one in enumerate(found.hidden):
        if not torch.isfinite(one).all():
            where = "the embedding" if place == 0 else f"layer {place - 1}"
            raise ValueError(
                f"{second.name} overflows in {found.about['dtype']} on this text, in {where}: take bfloat16 or float32."
            )
    return found


def _noted(found):
    """The comparison, with a note in `about` if a file is of another type than the one that it is held against.

    Errors of a type reach its floor in every layer: where most layers stay far below it, a layer that does not may be
    faulty in a finer type.
    """
    held, dtype = found.about.get("states"), found.about["dtype"]
    usual = found.table.token_ratio[found.table.part == "layer"].median()
    if held is not None and found.verdict.kind == "bug" and _finer(dtype, held):
        found.about["note"] = (
            f"{found.about['against']} holds {held} numbers, coarser than {dtype}, whose floor they cannot reach. "
            f"Give --dtype {held}, or leave --dtype out."
        )
    if held is None or not usual < FINER or not _finer(held, dtype):
        return found
    said = (
        f"{found.about['against']} holds {held} numbers, and most layers err by {usual:.1g} floors of {dtype} or less: "
    )
    if dtype == "float32":
        said += "it was computed in a finer type; float32 is the finest whose floor is known here."
    else:
        own = "float32" if held == "float64" else held
        said += f"it was computed in a finer type than {dtype}. Give --dtype {own}, or leave --dtype out."
        if found.verdict.kind == "rounding":
            sentence = f"cannot tell: {dtype} is coarser than the type of the file, so its floor hides faults"
            found.verdict = found.verdict._replace(kind="cannot tell", sentence=sentence)
    found.about["note"] = said
    return found


def _finer(one, other):
    return torch.finfo(getattr(torch, one)).eps < torch.finfo(getattr(torch, other)).eps


def _name(dtype):
    return str(dtype).removeprefix("torch.")


def _digest(other: States) -> str:
    """SHA-256 of token ids and all states, which tells two dumps of one name apart."""
    halves = [half[layer] for half in (other.attention, other.mlp) for layer in sorted(half)]
    return sha256_of([other.ids, *other.hidden, *halves, *([] if other.logits is None else [other.logits])])


def _check_type(other: States) -> None:
    """Refuse states of a low type that are stored in a wider one, whose floor is far below theirs."""
    name = other.about.get("file", "the other")
    if other.dtype not in (torch.float32, torch.float64):
        return
    for low in (torch.bfloat16, torch.float16):
        filled = any(bool(state.any()) for state in other.hidden[1:])  # zeros are refused as such, later
        if filled and all(torch.equal(state, state.to(low).to(state.dtype)) for state in other.hidden[1:]):
            held = _name(low)
            raise ValueError(
                f"the states of {name} are {held} numbers stored in {_name(other.dtype)}: say "
                f"--dtype {held} if they were computed in it, or write them before they are rounded."
            )
