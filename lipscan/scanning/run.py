"""Running a scan, length by length and layer by layer; each result is saved as soon as it is measured."""

import hashlib
import itertools
import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
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
from lipscan.scanning.folder import (
    LAYOUT,
    SUMMARY,
    Scan,
    clear,
    columns_of,
    digest,
    finished,
    folder_of,
    load,
    refuse_foreign,
    refuse_old,
    settings_in,
    tables_of,
    write_summary,
)
from lipscan.scanning.inputs import chosen_layers, prepare
from lipscan.scanning.measure import PAIRS, block_work, closed_form_work, heads, layer, measure, network, tokens, tried
from lipscan.scanning.options import ScanOptions, in_words, named
from lipscan.scanning.planning import Begun, shorter
from lipscan.scanning.words import ENDS

__all__ = ["remeasure", "scan"]

EXPLAIN = (
    "attention",
    "config",
    "config_defaults",
    "left_out",
    "no_logits",
    "no_norms",
    "pixels_sha256",
    "reasons",
    "token_ids",
)  # settings on which no number depends, and those that are compared by themselves
NO_NORMS = (
    "How far each token moves the others was not measured: by automatic differentiation this takes one pass for each "
    "output number of a layer; tokens.csv has each token's share of the steepest change."
)
PARTS = ["layer", *ENDS]
# weights, texts and windows follow from these requested settings, so name a difference in these first
ASKED = ("model", "text", "windows", "object", "random", "rtol", "seed")
GROWS = {"layers_scanned": "layers", "lengths": "lengths"}  # settings by which a scan is lengthened, and their options
NAMES = {  # entries of a configuration on which no number of a scan depends, or which other settings record
    "_commit_hash",
    "_name_or_path",
    "architectures",
    "dtype",
    "id2label",
    "label2id",
    "name_or_path",
    "output_attentions",
    "output_hidden_states",
    "problem_type",
    "return_dict",
    "task_specific_params",
    "torch_dtype",
    "transformers_version",
    "use_cache",
}
STATE = ("gradient_checkpointing", "max_seq_len_cached", "training")  # numbers of modules that change by use
INPUTS = ("token_ids", "pixels_sha256")  # settings with the windows of each length
KEYS = {  # settings of a scan, in words
    "weights_sha256": "weights and rotary frequencies (SHA-256)",
    "modules_sha256": "numbers that the modules of the network keep, in this version of transformers (SHA-256)",
    "text_sha256": "text (SHA-256)",
    "special": "special tokens",
    "masked": "causal mask",
    "certified": "windows certified",
    "upper_work": "most operations of a certified bound",
}


@named
def scan(
    model: str | os.PathLike | Model | torch.nn.Module,
    text: str | os.PathLike = "python_reference",
    *,
    layers: str | int | Sequence[int] = "all",
    lengths: str | int | Sequence[int] | None = None,
    windows: int = 2,
    special: bool = True,
    object: str = "heads+output",
    masked: bool | None = None,
    random: bool = False,
    tokenizer: Any = None,
    part: str | None = None,
    device: str | torch.device | None = None,
    dtype: str = "float32",
    upper: bool = True,
    upper_windows: int = 1,
    upper_work: float = 1e11,
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
    model : str, path, lipnb.models.Model or transformers.PreTrainedModel
        As for `lipnb.models.load`; a loaded `Model` keeps its mask, weights, tokenizer, part, device and type.
    text : str or path
        A text file, a corpus of `lipnb.corpora`, or a text itself (of several lines or over 255 characters); for a
        model of images an image, a folder of them, "pictures", one of `lipnb.models.PICTURES`, or "random".
    layers : str, int or sequence of int
        "all", "0,3,5", "0-5".
    lengths : sequence of int, int or str, optional
        Tokens n of the windows, or a text such as "32,128"; default 32, 128 and 512 as far as the model reads them and
        the text is long enough. Images have one length, except for models that read squares of any size, such as
        DINOv2: by default the largest squares within these lengths.
    windows : int
        Windows for each length, at random positions in the text, never overlapping.
    special : bool
        Whether special tokens of the model's convention surround each window; they count among its n tokens.
    object : {"heads+output", "heads", "block"}
        Object to measure, see `lipnb.models`.
    masked, random, tokenizer, part, device
        For loading the model, see `lipnb.models.load`.
    dtype : {"float32", "float64"}
        Type of the computation.
    upper : bool
        Whether to certify.
    upper_windows : int
        Number of windows of each length that are certified, counted from the first.
    upper_work : float
        Most floating point operations for one certified bound; more expensive ones are skipped and reported.
    close : bool
        Whether to measure details in the first window of the shortest length: each head, each token, each whole layer,
        and the network from end to end.
    rtol, seed : float, int
        Tolerance and seed of the solver; the seed also draws windows, random weights and random images.
    output : str or path, optional
        Folder of the result, default ``scan-<model>``, or ``scan-<model>-<part>``.
    again : bool
        Whether to measure again what the folder already holds.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    Scan
        All that the folder holds; it is saved there. A stopped scan continues where it was. If the scan in the folder
        differs only in layers, lengths and the close look, missing measurements are added and finished ones kept. A
        layer that cannot be measured, for example because its products overflow, does not stop the scan: `Scan.gaps`
        lists it, and the same call tries it again.

    Raises
    ------
    ValueError, TypeError, FileNotFoundError, OSError, RuntimeError
        The model, text, options or folder cannot be used; raised before anything is measured.
    """
    asked = ScanOptions(
        layers=layers,
        lengths=lengths,
        windows=windows,
        special=special,
        object=object,
        masked=masked,
        random=random,
        tokenizer=tokenizer,
        part=part,
        device=device,
        dtype=dtype,
        upper=upper,
        upper_windows=upper_windows,
        upper_work=upper_work,
        close=close,
        rtol=rtol,
        seed=seed,
    )
    for name, given in (("again", again), ("progress", progress)):
        if given is not True and given is not False:
            raise ValueError(f"{name} must be True or False, got {given!r}.")
    if output is not None:  # before a model is loaded
        if not isinstance(output, str | os.PathLike):
            raise TypeError(f"output must be the name of a folder, got {output!r}.")
        if not os.fspath(output).strip():
            raise ValueError(f"output must be the name of a folder, got {output!r}.")
        refuse_foreign(Path(output))
        if not again:
            refuse_old(Path(output))
    begun = begin(model, text, asked)
    output = folder_of(begun.reader.model.name, asked.part) if output is None else Path(output)
    refuse_foreign(output)
    if again:
        clear(output, bool(_others(output, begun.settings)))
    else:
        begun = beside(output, begun, text, asked)
    if begun.held is not None and ended(begun):
        if progress and begun.said:
            print(begun.said, file=sys.stderr)
        if not (output / SUMMARY).is_file():
            write_summary(output, begun.held.table)
        return begun.held
    if progress:
        for sentence in filter(None, [begun.said, *shorter(begun)]):
            print(sentence, file=sys.stderr)
    _fill(begun, output, progress)
    found = load(output)
    write_summary(output, found.table)
    return found


def ended(begun: Begun) -> bool:
    """Whether a scan from `beside` has nothing left to measure."""
    held = begun.held
    return held is not None and held.gaps.empty and _numbers(held.about["settings"]) == _numbers(begun.settings)


def beside(folder: Path, begun: Begun, text: str | os.PathLike, options: ScanOptions) -> Begun:
    """The requested scan, joined with the scan that a folder holds.

    Parameters
    ----------
    folder : Path
        Folder of the result.
    begun : Begun
        What was requested, from `begin`.
    text, options
        As given to `begin`.

    Returns
    -------
    Begun
        With the layers and lengths of both, the finished scan and a sentence on the two.

    Raises
    ------
    ValueError
        The folder holds another scan, or one of 0.3, or its tables were changed.
    """
    refuse_old(folder)
    refuse_another(folder, begun.settings)
    try:
        held = load(folder)
    except FileNotFoundError:
        return begun
    old, new = held.about["settings"], begun.settings
    added = {name: [one for one in new[name] if one not in old[name]] for name in GROWS}
    more = any(one not in new[name] for name in GROWS for one in old[name])
    close = new["close"] is not None and old["close"] is None
    if more or (old["close"] is not None and new["close"] is None):
        layers, lengths = (sorted({*old[name], *new[name]}) for name in GROWS)
        grown = replace(options, layers=layers, lengths=lengths, close=options.close or old["close"] is not None)
        begun = begin(begun.reader.model, text, grown)
    words = [f"{option} {in_words(name, added[name])}" for name, option in GROWS.items() if added[name]]
    words += ["the close look"] * close
    if words:
        said = f"New in the folder {folder.name!r}: {' and '.join(words)}."
        if None is not old["close"] != begun.settings["close"]:
            said += f" The close look is repeated, at n = {begun.settings['close']}."
    else:
        holds = " and ".join(f"{option} {in_words(name, old[name])}" for name, option in GROWS.items())
        said = f"The folder {folder.name!r} holds more, {holds}: all of it is shown." if more else ""
    return begun._replace(held=held, said=said)


def _fill(begun, output, progress):
    """Measure what the folder lacks, then write the tables; scan.json, which says that it is finished, comes last."""
    settings, held, title = begun.settings, begun.held, begun.reader.model.name
    units = {
        table: some
        for table, some in _units(begun.reader, settings).items()
        if table == "scan" or not _finished(output / f"{table}.json", settings)
    }
    with ExitStack() as stack:
        records = {}
        for table, some in units.items():
            opened = recording.recording(table, settings, output, extends=partial(_alike, settings))
            records[table] = stack.enter_context(opened)
            kept = _kept(held, table)
            for unit in some:
                if unit.key in kept and records[table].rows(unit.key) is None:
                    records[table].add(unit.key, *kept[unit.key])
            records[table].keep(some)
        count = sum(unit.size for some in units.values() for unit in some)
        bar = stack.enter_context(recording.bar(count, "step", progress))
        for table, record in records.items():
            record.fill(units[table], bar, title=f"{title}, {table}")
        for table in [table for table in records if table != "scan"]:
            records[table].finish(partial(_in_order, table))
        others = [(output / f"{table}.csv").read_bytes() for table in tables_of(settings)[1:]]
        records["scan"].finish(
            partial(_in_order, "scan"),
            lambda text: {"sha256": digest([text.encode(), *others]), **_earlier(held, settings)},
        )


def _kept(held, table):
    """Units of the finished scan in the folder, key -> rows and seconds; with gaps, its partial file has them."""
    if held is None or table not in tables_of(held.about["settings"]) or (held.gaps.table == table).any():
        return {}
    old, rows = held.about["settings"], held.table if table == "scan" else getattr(held, table)
    lengths = old["lengths"] if table == "scan" else [old["close"]]
    units = {
        f"{layer}/{n}": rows[(rows.layer == layer) & (rows.length == n)]
        for n in lengths
        for layer in old["layers_scanned"]
    }
    if table == "whole":
        units |= {f"{end}/{old['close']}": rows[rows.part == end] for end in ENDS}
    seconds = held.about["seconds"] / len(tables_of(old)) / len(units)
    return {key: (some.to_dict("records"), seconds) for key, some in units.items()}


def _earlier(held, settings):
    """Provenance of the scan before each time it was lengthened, one entry each."""
    if held is None or _numbers(held.about["settings"]) == _numbers(settings):
        return {}
    before = {name: held.about[name] for name in ("finished", "versions", "rows")}
    before |= {name: held.about["settings"][name] for name in GROWS}
    return {"earlier": [*held.about.get("earlier", ()), before]}


def refuse_another(folder: Path, settings: dict) -> None:
    """Raise ValueError if the folder holds a scan that these settings do not lengthen."""
    if others := _others(folder, settings):
        ended = "" if finished(folder) else " that has not ended"
        raise ValueError(
            f"the folder {folder.name!r} holds another scan{ended} ({_difference(others[0], settings)}): name another "
            "folder with --output, or measure again with --again (again=True in Python)."
        )


def _others(folder, settings):
    """Settings of another scan in a folder, one for each of its tables."""
    return [one for one in settings_in(folder) if not _alike(settings, one)]


def _alike(one, other):
    """Whether two scans differ in nothing but layers, lengths and the close look."""
    same = _fixed(one) == _fixed(other) and not _reconfigured(one, other)
    return same and _inputs(one, other) == _inputs(other, one)


def _fixed(settings):
    """Settings that must be equal for one scan to lengthen another."""
    grows = {*GROWS, "close", "work", *(["text_sha256"] if "pixels_sha256" in settings else ())}
    return {key: value for key, value in _numbers(settings).items() if key not in grows}


def _inputs(one, other):
    """Windows of a scan at the lengths that another scan has too."""
    return [one[name][n] for name in INPUTS for n in one.get(name, {}) if n in other.get(name, {})]


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
        "layout": LAYOUT,
        **_identity(model),
        "layers_scanned": wanted,
        "lengths": lengths,
        "baselines": reader.baselines,
        "close": min(lengths) if options.close else None,
        "certified": min(options.upper_windows, options.windows) if options.upper else 0,
        "reasons": applicable(first)[1],
        "work": {n: closed_form_work(first, n) for n in lengths},
        **_written(reader.inputs, model.architecture.reads),
        **({"left_out": left_out} if left_out else {}),
        **({"no_norms": NO_NORMS} if options.close and block_work(first, min(lengths)) > PAIRS else {}),
        **({"no_logits": f"No logits of {model.name}: {why}."} if why else {}),
    }
    return Begun(reader, json.loads(json.dumps(settings)))


def _written(inputs, reads):
    """Windows of each length, as settings: token ids in one text for each window, or a checksum of the pixels."""
    if reads == "input_ids":
        return {"token_ids": {n: [" ".join(map(str, window.tolist())) for window in ids] for n, ids in inputs.items()}}
    return {"pixels_sha256": {n: hashlib.sha256(one.numpy().tobytes()).hexdigest() for n, one in inputs.items()}}


def _causal_anyway(model):
    """A sentence if --masked made no difference; empty if it may have made one."""
    kind = model.architecture
    if not kind.masks[0] or getattr(model.module.config, kind.mask_setting or "", None):
        return ""
    return f"{model.name} is causal by itself: --masked changed nothing."


def _in_order(name, table):
    """A table in its stored order; an empty one, as for heads without a closed form, still gets its columns."""
    if table.empty:
        return pd.DataFrame(columns=columns_of(name))
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
        return recording.Unit(
            f"{key}/{n}", partial(_or_gap, f"{what} at n = {n}", partial(look, reader, *given, **options))
        )

    seed = {"seed": settings["seed"]}
    units["heads"] = [unit(i, f"heads of layer {i}", heads, i, n, **three) for i in wanted]
    units["tokens"] = [unit(i, f"tokens of layer {i}", tokens, i, n, **three) for i in wanted]
    units["whole"] = [unit(i, f"whole layer {i}", layer, i, n, **seed) for i in wanted]
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
        The text, the weights or the configuration differ from those of the table.
    """
    options = ScanOptions(
        **{name: settings[name] for name in ("lengths", "windows", "seed", "masked", "dtype")},
        special=any(settings["special"]),
        random=settings["weights"] == "random",
    )
    reader, read = prepare(model, text, options)
    read |= _identity(reader.model)
    names = ("text_sha256", "weights_sha256", "modules_sha256")  # tables of 0.3 lack the last, and the configuration
    words, *network = (read[name] != settings.get(name, read[name]) for name in names)
    if any(network) or ("config" in settings and _reconfigured(settings, read)):
        raise ValueError("the weights or the configuration here differ from the table's: no row can be compared.")
    if words:
        raise ValueError("the text here is another, or another edition, than the table's: no row can be compared.")

    def again(row):
        inputs = reader.inputs[row["length"]][row["window"] : row["window"] + 1]
        read = readings(reader.model, inputs)[row["layer"]]
        f = reader.model.attention(row["layer"], settings["object"], int(row["length"]))
        x = read.stream if settings["object"] == "block" else read.received
        return {"lipschitz": local_lipschitz(f, x, rtol=settings["rtol"], seed=settings["seed"]).value.item()}

    return recording.remeasure(table[table.lipschitz.notna()], again, rows=rows, seed=seed)


def _fingerprint(model):
    """First 12 hexadecimal digits of the SHA-256 of a network's weights and its attention's rotary frequencies."""
    attentions = (model.attention(number, n=1) for number in model.attending)
    own = itertools.chain.from_iterable(getattr(f, "attention", f).tensors().values() for f in attentions)
    digest = hashlib.sha256()
    for tensor in itertools.chain(model.module.state_dict().values(), own):
        if tensor is not None:
            digest.update(tensor.to(device="cpu", dtype=torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def _identity(model):
    """Settings that tell a network from another: its weights, what its modules keep, and its configuration.

    Equal weights compute something else with another activation, window, scale or epsilon.
    """
    kept = [(name, type(module).__name__, _kept_in(module)) for name, module in model.module.named_modules()]
    config = model.module.config
    entries, usual = _entries(config.to_dict()), {}
    with suppress(Exception):  # of a class that has no defaults every entry is one that was given
        usual = _entries(type(config)().to_dict())
    return {
        "weights_sha256": _fingerprint(model),
        "modules_sha256": hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12],
        "config": entries,
        "config_defaults": [key for key in entries if key in usual and usual[key] == entries[key]],
    }


def _kept_in(module):
    """Numbers that a module keeps as attributes."""
    held = {key: value for key, value in vars(module).items() if isinstance(value, int | float)}
    return {key: value for key, value in held.items() if not key.startswith("_") and key not in STATE}


def _entries(config, prefix=""):
    """Entries of a configuration on which what the network computes may depend; nested ones as ``outer.inner``."""
    found = {}
    for key, value in config.items():
        if key in NAMES:
            continue
        if isinstance(value, dict) and value:
            found |= _entries(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = json.loads(json.dumps(value, default=lambda other: type(other).__name__))
    return found


def _reconfigured(old, new):
    """Entries in which the configurations of two scans differ.

    Versions of transformers write different entries: one that the other scan lacks must only be at its default.
    """
    one, other = (settings.get("config", {}) for settings in (old, new))
    apart = [key for key in one if key in other and str(one[key]) != str(other[key])]  # as texts: NaN is like NaN
    for mine, theirs, settings in ((one, other, old), (other, one, new)):
        apart += [key for key in mine if key not in theirs and key not in settings["config_defaults"]]
    return apart


def _numbers(settings):
    """Settings on which the numbers depend."""
    return {key: value for key, value in settings.items() if key not in EXPLAIN}


def _difference(old, new):
    """First difference between two scans, in words."""
    one, other, apart = _fixed(old), _fixed(new), _reconfigured(old, new)
    differ = [key for key in (*ASKED, *other, *one) if one.get(key) != other.get(key)]
    if apart and (not differ or differ[0] not in ASKED):
        was, now = (in_words(apart[0], settings["config"].get(apart[0])) for settings in (old, new))
        return f"configuration: {apart[0]} {was}, not {now}"
    if not differ:
        return "other windows of the text"
    key = differ[0]
    return f"{KEYS.get(key, key)} {in_words(key, one.get(key))}, not {in_words(key, other.get(key))}"
