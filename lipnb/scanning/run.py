"""The whole scan: length by length and layer by layer, each saved as soon as it is measured."""

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from lipnb import recording
from lipnb.lipschitz import local_lipschitz
from lipnb.models import OBJECTS, Model, readings, whole_network
from lipnb.models.network import why_no_logits
from lipnb.scanning import closely
from lipnb.scanning.catalogue import applicable
from lipnb.scanning.folder import KEYS, NEEDED, SUMS, Scan, clear, folder_of, in_words, load, seal
from lipnb.scanning.gaps import tried
from lipnb.scanning.inputs import chosen_layers, prepare
from lipnb.scanning.measure import closed_form_work, measure
from lipnb.scanning.planning import Begun, shorter
from lipnb.scanning.reader import Reader
from lipnb.scanning.summary import ENDS

__all__ = ["UPPER_WORK", "begin", "remeasure", "scan"]

UPPER_WORK = 1e11  # operations of one certified bound, up to which it is computed by default: some seconds
LEFT_OUT = "left_out"
WORDS = (LEFT_OUT, "no_logits", "reasons")  # settings that explain, and on which no number depends
PARTS = ["layer", *ENDS]
ASKED = ("layers_scanned", "lengths", "windows", "object", "random", "rtol", "seed")


def scan(
    model: str | os.PathLike | Model,
    text: str | os.PathLike = "python_reference",
    *,
    layers: str | Sequence[int] = "all",
    lengths: str | Sequence[int] | int | None = None,
    windows: int = 2,
    special: bool = True,
    object: str = "heads+output",
    masked: bool | None = None,
    random: bool = False,
    tokenizer: str | os.PathLike | None = None,
    device: torch.device | str | None = None,
    dtype: str = "float32",
    upper: bool = True,
    upper_windows: int = 1,
    upper_work: float = UPPER_WORK,
    close: bool = True,
    rtol: float = 1e-4,
    seed: int = 0,
    output: str | os.PathLike | None = None,
    again: bool = False,
    progress: bool = True,
) -> Scan:
    """Measure the local Lipschitz constants of the layers of a model on a text, and bound them.

    Parameters
    ----------
    model : str, path or lipnb.models.Model
        As for `lipnb.models.load`; `masked`, `random`, `tokenizer`, `device` and `dtype` are for loading it.
    text : str or path
        A text file, a corpus of `lipnb.corpora`, or a text itself (of several lines or over 255 characters); for a
        model of images an image, a folder of them, "pictures", one of `lipnb.models.PICTURES`, or "random".
    layers : str or sequence of int
        "all", "0,3,5", "0-5".
    lengths : sequence of int, int or str, optional
        Tokens n of the windows, as a text "32,128"; default those of 32, 128 and 512 that the model reads and the
        text allows. Images have one length, but for a model that reads squares of any size, such as DINOv2: by default
        the largest within these.
    windows : int
        Windows for each length, at random places of the text, never overlapping.
    special : bool
        Whether each window stands between the special tokens of the model's own convention, which count among its n.
    object : {"heads+output", "heads", "block"}
        What is measured, see `lipnb.models`.
    upper : bool
        Whether to certify.
    upper_windows : int
        How many windows of each length are certified, the first ones.
    upper_work : float
        Most floating point operations for one certified bound; costlier ones are passed over, and it is said.
    close : bool
        Whether to look closely at the first window of the shortest length: each head, each token, each whole layer,
        the network from end to end.
    rtol, seed : float, int
        Of the solver; the seed also draws windows, random weights and random images.
    output : str or path, optional
        Folder of the result, default ``scan-<model>``.
    again : bool
        Whether to measure anew what the folder holds already.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    Scan
        Also saved in `output`; a scan that was stopped continues where it was. What cannot be measured, such as a layer
        whose products overflow, ends nothing: it stands in `Scan.gaps`, and the same call tries it again.

    Raises
    ------
    ValueError, FileNotFoundError, OSError, RuntimeError
        One sentence each, before anything is measured.
    """
    begun = begin(
        model,
        text,
        layers=layers,
        lengths=lengths,
        windows=windows,
        special=special,
        object=object,
        masked=masked,
        random=random,
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
        upper=upper,
        upper_windows=upper_windows,
        upper_work=upper_work,
        close=close,
        rtol=rtol,
        seed=seed,
    )
    name, settings = begun.reader.model.name, begun.settings
    output = folder_of(name) if output is None else Path(output)
    if again:
        clear(output)
    elif (output / SUMS).is_file():
        found = load(output)
        if _numbers(found.about["settings"]) != _numbers(settings):
            raise ValueError(
                f"the folder {output.name!r} holds another scan "
                f"({_difference(found.about['settings'], settings)}): name another folder with --output, or "
                "measure anew with --again (again=True in Python)."
            )
        if found.gaps.empty:
            found.about["settings"] |= {key: settings[key] for key in WORDS[1:] if key in settings}  # as said today
            return found
        (output / SUMS).unlink()  # what could not be measured is tried again
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


def begin(
    model: str | os.PathLike | Model,
    text: str | os.PathLike = "python_reference",
    *,
    layers: str | Sequence[int] = "all",
    lengths: str | Sequence[int] | int | None = None,
    windows: int = 2,
    special: bool = True,
    object: str = "heads+output",
    upper: bool = True,
    upper_windows: int = 1,
    upper_work: float = UPPER_WORK,
    close: bool = True,
    rtol: float = 1e-4,
    seed: int = 0,
    **loading: Any,
) -> Begun:
    """Load the model and draw the windows; parameters and refusals are those of `scan`."""
    if object not in OBJECTS:
        raise ValueError(f"object must be one of {', '.join(OBJECTS)}, got {object!r}.")
    if not 1e-6 <= rtol < 1:
        raise ValueError(f"rtol must lie between 1e-6 and 1, got {rtol}.")
    choice = {"lengths": lengths, "windows": windows, "seed": seed, "layers": layers, "special": special}
    material = prepare(model, text, **choice, **loading)
    network, (before, after) = material.model, material.special
    reader = Reader(network, material.inputs, (len(before), len(after)), seed)
    wanted = chosen_layers(layers, network.layers, network.name, network.attending)
    if not wanted:
        raise ValueError(f"{network.name} has no layer that holds attention: there is nothing to scan.")
    first = network.attention(wanted[0], object, min(material.inputs))
    left_out = " ".join(filter(None, [material.left_out, _without_attention(network)]))
    settings = {
        **network.describe(),
        "weights_sha256": _fingerprint(network, wanted),
        "text": material.source,
        "text_sha256": material.sha256,
        "special": [before, after],
        "layers_scanned": wanted,
        "lengths": list(material.inputs),
        "windows": windows,
        "baselines": list(reader.baselines),
        "close": min(material.inputs) if close else None,
        "object": object,
        "rtol": rtol,
        "seed": seed,
        "certified": min(upper_windows, windows) if upper else 0,
        "upper_work": upper_work,
        "reasons": applicable(first)[1],
        "work": {n: closed_form_work(first, n) for n in material.inputs},
        **({LEFT_OUT: left_out} if left_out else {}),
        **({"no_logits": f"No logits of {network.name}: {why}."} if (why := why_no_logits(network)) else {}),
    }
    return Begun(reader, json.loads(json.dumps(settings)))


def _without_attention(network):
    """Which layers of a hybrid are not measured, in a sentence; empty where all hold attention."""
    others = sorted({*range(network.layers)} - {*network.attending})
    if not others:
        return ""
    which, verb = ("Layer", "holds") if len(others) == 1 else ("Layers", "hold")
    return f"{which} {', '.join(map(str, others))} of {network.name} {verb} no attention: not measured."


def _in_order(name, table):
    """A table as it is saved; one without rows, as of heads that no closed form tells apart, says its columns still."""
    if table.empty:
        return pd.DataFrame(columns=NEEDED[name])
    # what was missing and measured later came last
    by = {"scan": ["layer", "length", "window"], "whole": ["part", "layer"]}.get(name, ["layer"])
    places = {part: place for place, part in enumerate(PARTS)}
    return table.sort_values(by, key=lambda column: column.replace(places), kind="stable", ignore_index=True)


def _units(reader: Reader, settings: dict) -> dict[str, list[recording.Unit]]:
    """The units of each table, those of one length together: the network reads each length once."""
    wanted, n = settings["layers_scanned"], settings["close"]
    three = {name: settings[name] for name in ("object", "rtol", "seed")}
    options = three | {name: settings[name] for name in ("certified", "upper_work")}
    units = {
        "scan": [
            recording.Unit(f"{layer}/{n}", partial(measure, reader, layer, n, **options), len(inputs))
            for n, inputs in reader.inputs.items()
            for layer in wanted
        ]
    }
    if n is None:
        return units

    def unit(key, what, look, *given, **options):
        return recording.Unit(key, partial(_or_gap, f"{what} at n = {n}", partial(look, reader, *given, **options)))

    seed = {"seed": settings["seed"]}
    units["heads"] = [unit(str(i), f"heads of layer {i}", closely.heads, i, n, **three) for i in wanted]
    units["tokens"] = [unit(str(i), f"tokens of layer {i}", closely.tokens, i, n, **three) for i in wanted]
    units["whole"] = [unit(str(i), f"whole layer {i}", closely.layer, i, n, **seed) for i in wanted]
    units["whole"] += [
        unit(to, f"the network to its {ENDS[to]}", closely.network, n, to, **seed)
        for to in ENDS
        if to == "layers" or _reaches(reader, n, to)
    ]
    return units


def _or_gap(what, look):
    """The rows of a look, or what it could not measure."""
    rows: list[dict] = []
    with tried(rows, what):
        rows += look()
    return rows


def _reaches(reader, n, to):
    """Whether the network has such an end."""
    try:
        whole_network(reader.model, reader.inputs[n][:1], to)
    except ValueError:
        return False
    return True


def _finished(path, settings):
    """Whether this table of an unfinished scan is there already, with the same settings and without gaps."""
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
    """Measure a few random rows of a scan again, live.

    Parameters
    ----------
    table : DataFrame
        Of a `Scan`.
    settings : dict
        Its ``about["settings"]``.
    model, text
        As for `scan`.
    rows : int
        How many.
    seed : int
        Of the choice.

    Returns
    -------
    DataFrame
        The rows, with `lipschitz again` and `lipschitz difference` (relative).

    Raises
    ------
    ValueError
        "... is another edition ...": the text or the weights here are not those of the table.
    """
    material = prepare(
        model,
        text,
        lengths=settings["lengths"],
        windows=settings["windows"],
        seed=settings["seed"],
        special=any(settings["special"]),
        masked=settings["masked"],
        random=settings["weights"] == "random",
        dtype=settings["dtype"],
    )
    if (material.sha256, _fingerprint(material.model, settings["layers_scanned"])) != (
        settings["text_sha256"],
        settings["weights_sha256"],
    ):
        raise ValueError(
            "the text or the weights here are another edition than those of the table: no row can be compared."
        )

    def again(row):
        inputs = material.inputs[row["length"]][row["window"] : row["window"] + 1]
        read = readings(material.model, inputs)[row["layer"]]
        f = material.model.attention(row["layer"], settings["object"], int(row["length"]))
        x = read.stream if settings["object"] == "block" else read.received
        return {"lipschitz": local_lipschitz(f, x, rtol=settings["rtol"], seed=settings["seed"]).value.item()}

    return recording.remeasure(table[table.lipschitz.notna()], again, rows=rows, seed=seed)


def _fingerprint(model, layers):
    """SHA-256 of the weights of the layers' attention, the first 12 digits: which edition of a model was scanned."""
    digest = hashlib.sha256()
    for layer in layers:
        f = model.attention(layer, n=1)
        for tensor in getattr(f, "attention", f)._tensors().values():
            digest.update(tensor.to(device="cpu", dtype=torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def _numbers(settings):
    """The settings on which numbers depend."""
    return {key: value for key, value in settings.items() if key not in WORDS}


def _difference(old, new):
    """Where two settings differ first, in words."""
    old, new = _numbers(old), _numbers(new)
    # weights, texts and windows follow from what was asked for: that is named first
    keys = [*(key for key in ASKED if key in new), *new]
    key = next((key for key in keys if old.get(key) != new[key]), "settings")
    return f"{KEYS.get(key, key)} {in_words(key, old.get(key))}, not {in_words(key, new.get(key))}"
