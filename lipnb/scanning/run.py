"""The whole scan: layer by layer and length by length, each saved as soon as it is measured."""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from lipnb import recording
from lipnb.models import OBJECTS, Model
from lipnb.scanning.catalogue import applicable
from lipnb.scanning.inputs import chosen_layers, prepare
from lipnb.scanning.measure import closed_form_work, measure
from lipnb.scanning.summary import summarise

__all__ = ["UPPER_WORK", "Scan", "folder_of", "load", "remeasure", "scan"]

UPPER_WORK = 1e11  # operations of one certified bound, up to which it is computed by default: some seconds
NAME, SUMMARY, LEFT_OUT = "scan", "summary.csv", "left_out"


@dataclass(frozen=True)
class Scan:
    """What a scan found.

    Attributes
    ----------
    table : DataFrame
        One row for each layer, length and window.
    summary : DataFrame
        One row for each layer and length: means, ranges, and how many times too high each bound is.
    about : dict
        How it was made: `settings`, `rows`, `seconds`, `finished`, `versions`.
    """

    table: pd.DataFrame
    summary: pd.DataFrame
    about: dict


def scan(
    model: str | os.PathLike | Model,
    text: str | os.PathLike = "python_reference",
    *,
    layers: str | Sequence[int] = "all",
    lengths: Sequence[int] | None = None,
    windows: int = 2,
    object: str = "heads+output",
    masked: bool | None = None,
    random: bool = False,
    tokenizer: str | os.PathLike | None = None,
    device: torch.device | str | None = None,
    dtype: str = "float32",
    upper: bool = True,
    upper_windows: int = 1,
    upper_work: float = UPPER_WORK,
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
        A text file, a corpus of `lipnb.corpora`, or, for a model of images, an image, a folder of them or "random".
    layers : str or sequence of int
        "all", "0,3,5", "0-5".
    lengths : sequence of int, optional
        Tokens n of the windows; default those of 32, 128 and 512 that the model reads and the text allows.
    windows : int
        Windows for each length, from the beginning of the text, never overlapping.
    object : {"heads+output", "heads", "block"}
        What is measured, see `lipnb.models`.
    upper : bool
        Whether to certify.
    upper_windows : int
        How many windows of each length are certified, the first ones.
    upper_work : float
        Most floating point operations for one certified bound; costlier ones are passed over, and it is said.
    rtol, seed : float, int
        Of the solver; the seed also draws random weights and random images.
    output : str or path, optional
        Folder of the result, default ``scan-<model>``.
    again : bool
        Whether to measure anew what the folder holds already.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    Scan
        Also saved in `output`: scan.csv, scan.json, summary.csv; a scan that was stopped continues where it was.

    Raises
    ------
    ValueError, FileNotFoundError, OSError, RuntimeError
        One sentence each, before anything is measured.
    """
    if object not in OBJECTS:
        raise ValueError(f"object must be one of {', '.join(OBJECTS)}, got {object!r}.")
    if not 1e-6 <= rtol < 1:
        raise ValueError(f"rtol must lie between 1e-6 and 1, got {rtol}.")
    material = prepare(
        model,
        text,
        lengths=lengths,
        windows=windows,
        seed=seed,
        layers=layers,
        masked=masked,
        random=random,
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
    )
    network = material.model
    wanted = chosen_layers(layers, network.layers, network.name)
    certified = min(upper_windows, windows) if upper else 0
    settings = json.loads(
        json.dumps(
            {
                **network.describe(),
                "weights_sha256": _fingerprint(network, wanted),
                "text": material.source,
                "text_sha256": material.sha256,
                "layers_scanned": wanted,
                "lengths": list(material.inputs),
                "windows": windows,
                "object": object,
                "rtol": rtol,
                "seed": seed,
                "certified": certified,
                "upper_work": upper_work,
                "reasons": applicable(network.attention(wanted[0], object))[1],
                "work": {n: closed_form_work(network.attention(wanted[0], object), n) for n in material.inputs},
                **({LEFT_OUT: material.left_out} if material.left_out else {}),
            }
        )
    )
    output = folder_of(network.name) if output is None else Path(output)
    if not again and (output / f"{NAME}.json").is_file():
        found = load(output)
        if {**found.about["settings"], LEFT_OUT: 0} == {**settings, LEFT_OUT: 0}:
            return _summarised(found, output)
        raise ValueError(
            f"the folder {output.name!r} holds another scan "
            f"({_difference(found.about['settings'], settings)}): name another folder with --output, or "
            "measure anew with --again (again=True in Python)."
        )
    options: dict[str, Any] = {
        "object": object,
        "rtol": rtol,
        "seed": seed,
        "certified": certified,
        "upper_work": upper_work,
    }
    units = [
        recording.Unit(f"{layer}/{n}", partial(measure, network, layer, x, **options), len(x))
        for layer in wanted
        for n, x in material.inputs.items()
    ]
    with (
        recording.recording(NAME, settings, output) as record,
        recording.bar(sum(unit.size for unit in units), "window", progress) as bar,
    ):
        record.fill(units, bar, title=f"{network.name}, layer/tokens")
        (output / SUMMARY).unlink(missing_ok=True)  # of an earlier scan
        record.finish()
    return _summarised(load(output), output)


def _summarised(found, output):
    """The scan, with its summary beside the table."""
    if not (output / SUMMARY).is_file():
        with recording.kept(output / SUMMARY):
            recording.write(output / SUMMARY, found.summary.to_csv(index=False, float_format=recording.FLOAT_FORMAT))
    return found


def folder_of(model: str | os.PathLike) -> Path:
    """Where a scan of a model goes by default: ``scan-<model>``, with plain characters only."""
    name = Path(str(model)).name if Path(str(model)).is_dir() else str(model)
    return Path(f"scan-{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('-.') or 'model'}")


def load(folder: str | os.PathLike) -> Scan:
    """A finished scan from its folder, as `scan` returned it.

    Parameters
    ----------
    folder : str or path
        Holds scan.csv and scan.json.

    Returns
    -------
    Scan

    Raises
    ------
    FileNotFoundError
        "the folder ... holds no finished scan ...".
    ValueError
        "... is damaged ...": one of the two files is not what a scan wrote.
    """
    folder = Path(folder)
    for file in (f"{NAME}.csv", f"{NAME}.json"):
        if not (folder / file).is_file():
            raise FileNotFoundError(
                f"the folder {folder.name!r} holds no finished scan (scan.csv and scan.json): run "
                "the scan that makes it, or name another folder."
            )
    try:
        about = json.loads((folder / file).read_text(encoding="utf-8"))
        about["settings"]["layers_scanned"], about["versions"], about["seconds"]
        file = f"{NAME}.csv"
        table = pd.read_csv(folder / file)
        if len(table) != about["rows"]:
            raise ValueError(f"it has {len(table)} rows, of {about['rows']}")
        # whether a layer converged is blank where it was not measured
        told = table.drop(columns="route", errors="ignore").replace({True: 1, False: 0})
        words = [name for name in told if pd.to_numeric(told[name], errors="coerce").isna().ne(told[name].isna()).any()]
        if words:
            raise ValueError(f"its column {words[0]!r} does not hold numbers")
        return Scan(table, summarise(table), about)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{file} in the folder {folder.name!r} is damaged ({error!r:.90}): measure anew with --again "
            "(again=True in Python), or name another folder."
        ) from None


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
    options = {name: settings[name] for name in ("object", "rtol", "seed")}

    def again(row):
        inputs = material.inputs[row["length"]][row["window"] : row["window"] + 1]
        (now,) = measure(material.model, row["layer"], inputs, certified=0, upper_work=0, **options)
        return {"lipschitz": now["lipschitz"]}

    return recording.remeasure(table, again, rows=rows, seed=seed)


def _fingerprint(model, layers):
    """SHA-256 of the weights of the layers' attention, the first 12 digits: which edition of a model was scanned."""
    digest = hashlib.sha256()
    for layer in layers:
        f = model.attention(layer)
        for tensor in getattr(f, "attention", f)._tensors().values():
            digest.update(tensor.to(device="cpu", dtype=torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def _difference(old, new):
    """Where two settings differ first, in words."""
    key = next((key for key in new if old.get(key) != new[key]), "settings")
    return f"{key} {old.get(key)!r}, not {new.get(key)!r}"
