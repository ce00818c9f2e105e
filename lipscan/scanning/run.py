"""Running a scan, length by length and layer by layer; each result is saved as soon as it is measured."""

import hashlib
import inspect
import itertools
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from lipnb.lipschitz import local_lipschitz
from lipscan import recording
from lipscan.models import Model, readings
from lipscan.models.lm_head import why_no_logits
from lipscan.scanning.catalogue import applicable
from lipscan.scanning.folder import SUMMARY, SUMS, Scan, clear, folder_of, load, refuse_foreign, seal, settings_in
from lipscan.scanning.inputs import chosen_layers, prepare
from lipscan.scanning.measure import PAIRS, block_work, closed_form_work, heads, layer, measure, network, tokens, tried
from lipscan.scanning.options import ScanOptions, in_words
from lipscan.scanning.planning import Begun, shorter
from lipscan.scanning.summary import COLUMNS
from lipscan.scanning.words import ENDS

__all__ = ["remeasure", "scan"]

EXPLAIN = (
    "attention",
    "left_out",
    "no_logits",
    "no_norms",
    "reasons",
    "token_ids",
)  # settings on which no number depends
NO_NORMS = (
    "How far each token moves the others was not measured: by automatic differentiation that is a pass for each number "
    "that a layer gives; of each layer's steepest change tokens.csv has the part that lies on each token."
)
PARTS = ["layer", *ENDS]
# weights, texts and windows follow from these requested settings, so name a difference in these first
ASKED = ("model", "text", "layers_scanned", "lengths", "windows", "object", "random", "rtol", "seed")
KEYS = {  # settings of a scan, in words
    "layers_scanned": "layers",
    "weights_sha256": "weights and rotary frequencies (SHA-256)",
    "text_sha256": "text (SHA-256)",
    "special": "special tokens",
    "masked": "causal mask",
    "certified": "windows certified",
    "upper_work": "most operations of a certified bound",
    "close": "length of the close look",
}


def scan(
    model: str | os.PathLike | Model,
    text: str | os.PathLike = "python_reference",
    *,
    output: str | os.PathLike | None = None,
    again: bool = False,
    progress: bool = True,
    **options: Any,
) -> Scan:
    """Measure the local Lipschitz constants of the layers of a model on a text, and bound them.

    Parameters
    ----------
    model : str, path or lipnb.models.Model
        As for `lipnb.models.load`.
    text : str or path
        A text file, a corpus of `lipnb.corpora`, or a text itself (of several lines or over 255 characters); for a
        model of images an image, a folder of them, "pictures", one of `lipnb.models.PICTURES`, or "random".
    output : str or path, optional
        Folder of the result, default ``scan-<model>``, or ``scan-<model>-<part>``.
    again : bool
        Whether to measure again what the folder already holds.
    progress : bool
        Whether to show a progress bar.
    **options
        Layers, lengths, windows and so on: the fields of `ScanOptions`, which explains them.

    Returns
    -------
    Scan
        Also saved in `output`; a stopped scan continues where it was. What cannot be measured, such as a layer whose
        products overflow, does not stop the scan: `Scan.gaps` lists it, and the same call tries it again.

    Raises
    ------
    ValueError, FileNotFoundError, OSError, RuntimeError
        The model, text, options or folder cannot be used; raised before anything is measured.
    """
    if output is not None:  # before a model is loaded
        if not os.fspath(output).strip():
            raise ValueError(f"output must be the name of a folder, got {output!r}.")
        refuse_foreign(Path(output))
    begun = begin(model, text, ScanOptions(**options))
    name, settings = begun.reader.model.name, begun.settings
    output = folder_of(name, options.get("part")) if output is None else Path(output)
    refuse_foreign(output)
    if again:
        clear(output, bool(_others(output, settings)))
    else:
        refuse_another(output, settings)
    if (output / SUMS).is_file():
        found = load(output)
        if found.gaps.empty:
            if not (output / SUMMARY).is_file():
                seal(output)
            return found
        (output / SUMS).unlink()  # try again what could not be measured
    todo = {
        table: units
        for table, units in _units(begun.reader, settings).items()
        if not _finished(output / f"{table}.json", settings)
    }
    if progress and todo:
        for sentence in shorter(begun):
            print(sentence, file=sys.stderr)
    count = sum(unit.size for units in todo.values() for unit in units)
    with recording.bar(count, "step", progress) as bar:
        for table, units in todo.items():
            with recording.recording(table, settings, output) as record:
                record.fill(units, bar, title=f"{name}, {table}")
                record.finish(partial(_in_order, table))
    seal(output)
    return load(output)


def refuse_another(folder: Path, settings: dict) -> None:
    """Raise ValueError if the folder holds a scan with other settings."""
    if others := _others(folder, settings):
        ended = "" if (folder / SUMS).is_file() else " that has not ended"
        raise ValueError(
            f"the folder {folder.name!r} holds another scan{ended} ({_difference(others[0], settings)}): name another "
            "folder with --output, or measure anew with --again (again=True in Python)."
        )


def _others(folder, settings):
    """Settings of another scan in a folder, one for each of its tables."""
    return [one for one in settings_in(folder) if _numbers(one) != _numbers(settings)]


def _signature():
    """Signature of `scan`, with each option by name."""
    own = inspect.signature(scan)
    fields = [one.replace(kind=one.KEYWORD_ONLY) for one in inspect.signature(ScanOptions).parameters.values()]
    given = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
    return own.replace(parameters=[*given[:2], *fields, *given[2:]])


scan.__signature__ = _signature()  # type: ignore[attr-defined]


def begin(model, text, options):
    """Load the model and draw the windows; raises the errors of `scan`."""
    reader, read = prepare(model, text, options)
    model, lengths = reader.model, [*reader.inputs]
    wanted = chosen_layers(options.layers, model.layers, model.name, model.attending)
    first = model.attention(wanted[0], options.object, min(lengths))
    said = [read.pop("left_out"), model.left_out, options.masked and _causal_anyway(model)]
    left_out = " ".join(filter(None, said))
    why = why_no_logits(model) if options.close else ""  # reads the output layer of the model
    settings = {
        **model.describe(),
        **options.recorded,
        **read,
        "weights_sha256": _fingerprint(model, wanted),
        "layers_scanned": wanted,
        "lengths": lengths,
        "baselines": reader.baselines,
        "close": min(lengths) if options.close else None,
        "certified": min(options.upper_windows, options.windows) if options.upper else 0,
        "reasons": applicable(first)[1],
        "work": {n: closed_form_work(first, n) for n in lengths},
        **({"token_ids": _written(reader.inputs)} if model.architecture.reads == "input_ids" else {}),
        **({"left_out": left_out} if left_out else {}),
        **({"no_norms": NO_NORMS} if options.close and block_work(first, min(lengths)) > PAIRS else {}),
        **({"no_logits": f"No logits of {model.name}: {why}."} if why else {}),
    }
    return Begun(reader, json.loads(json.dumps(settings)))


def _written(windows):
    """Token ids of windows: length -> one text of numbers for each window, so that they can be read back."""
    return {n: [" ".join(map(str, window.tolist())) for window in ids] for n, ids in windows.items()}


def _causal_anyway(model):
    """A sentence if --masked made no difference; empty if it may have made one."""
    kind = model.architecture
    if not kind.masks[0] or getattr(model.module.config, kind.mask_setting or "", None):
        return ""
    return f"{model.name} is causal by itself: --masked changed nothing."


def _in_order(name, table):
    """A table in its stored order; an empty one, as for heads without a closed form, still gets its columns."""
    if table.empty:
        return pd.DataFrame(columns=[one for names in COLUMNS[f"{name}.csv"] for one in names.split(", ")])
    # rows that were missing and measured later came last
    by = {"scan": ["layer", "length", "window"], "whole": ["part", "layer"]}.get(name, ["layer"])
    places = {part: place for place, part in enumerate(PARTS)}
    return table.sort_values(by, key=lambda column: column.replace(places), kind="stable", ignore_index=True)


def _units(reader, settings):
    """Units of each table, ordered by length, so that the network reads each length once."""
    wanted, n = settings["layers_scanned"], settings["close"]
    three = {name: settings[name] for name in ("object", "rtol", "seed")}
    options = three | {name: settings[name] for name in ("certified", "upper_work")}
    units = {
        "scan": [
            recording.Unit(f"{i}/{n}", partial(measure, reader, i, n, **options), len(inputs))
            for n, inputs in reader.inputs.items()
            for i in wanted
        ]
    }
    if n is None:
        return units

    def unit(key, what, look, *given, **options):
        return recording.Unit(key, partial(_or_gap, f"{what} at n = {n}", partial(look, reader, *given, **options)))

    seed = {"seed": settings["seed"]}
    units["heads"] = [unit(str(i), f"heads of layer {i}", heads, i, n, **three) for i in wanted]
    units["tokens"] = [unit(str(i), f"tokens of layer {i}", tokens, i, n, **three) for i in wanted]
    units["whole"] = [unit(str(i), f"whole layer {i}", layer, i, n, **seed) for i in wanted]
    units["whole"] += [
        unit(to, f"the network to its {ENDS[to]}", network, n, to, **seed)
        for to in ENDS
        if to != "logits" or not settings.get("no_logits")
    ]
    return units


def _or_gap(what, look):
    """Rows of `look`, or a row that describes the gap."""
    rows: list[dict] = []
    with tried(rows, what):
        rows += look()
    return rows


def _finished(path, settings):
    """Whether a table of an unfinished scan exists with the same settings and without gaps."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        return _numbers(about["settings"]) == _numbers(settings) and not about.get("gaps")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def remeasure(
    table: pd.DataFrame,
    settings: dict,
    model: str | os.PathLike | Model,
    text: str | os.PathLike,
    *,
    rows: int = 2,
    seed: int = 0,
) -> pd.DataFrame:
    """Measure a few random rows of a scan again.

    Parameters
    ----------
    table : DataFrame
        The table of a `Scan`.
    settings : dict
        Its ``about["settings"]``.
    model, text
        As for `scan`.
    rows : int
        Number of rows.
    seed : int
        Seed of the choice.

    Returns
    -------
    DataFrame
        The chosen rows, with `lipschitz again` and `lipschitz difference` (relative).

    Raises
    ------
    ValueError
        The text or the weights differ from those of the table.
    """
    options = ScanOptions(
        **{name: settings[name] for name in ("lengths", "windows", "seed", "masked", "dtype")},
        special=any(settings["special"]),
        random=settings["weights"] == "random",
    )
    reader, read = prepare(model, text, options)
    read["weights_sha256"] = _fingerprint(reader.model, settings["layers_scanned"])
    if any(read[name] != settings[name] for name in ("text_sha256", "weights_sha256")):
        raise ValueError(
            "the text or the weights here are another edition than those of the table: no row can be compared."
        )

    def again(row):
        inputs = reader.inputs[row["length"]][row["window"] : row["window"] + 1]
        read = readings(reader.model, inputs)[row["layer"]]
        f = reader.model.attention(row["layer"], settings["object"], int(row["length"]))
        x = read.stream if settings["object"] == "block" else read.received
        return {"lipschitz": local_lipschitz(f, x, rtol=settings["rtol"], seed=settings["seed"]).value.item()}

    return recording.remeasure(table[table.lipschitz.notna()], again, rows=rows, seed=seed)


def _fingerprint(model, layers):
    """First 12 hexadecimal digits of the SHA-256 of a network's weights and its attention's rotary frequencies."""
    attentions = (model.attention(number, n=1) for number in layers)
    own = itertools.chain.from_iterable(getattr(f, "attention", f).tensors().values() for f in attentions)
    digest = hashlib.sha256()
    for tensor in itertools.chain(model.module.state_dict().values(), own):
        if tensor is not None:
            digest.update(tensor.to(device="cpu", dtype=torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def _numbers(settings):
    """Settings on which the numbers depend."""
    return {key: value for key, value in settings.items() if key not in EXPLAIN}


def _difference(old, new):
    """First difference between two settings, in words."""
    old, new = _numbers(old), _numbers(new)
    keys = [*(key for key in ASKED if key in new), *new]
    key = next((key for key in keys if old.get(key) != new[key]), "settings")
    return f"{KEYS.get(key, key)} {in_words(key, old.get(key))}, not {in_words(key, new.get(key))}"
