"""The verb `lipnb scan`: local Lipschitz constants of each layer of a model on a text."""

import sys
from argparse import Action
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from lipscan.cli.words import Stopped, Unknown, folder_named, known
from lipscan.scanning.options import ScanOptions

TEXT = "python_reference"  # ships with Python, so always available

EXAMPLES = """\
  lipnb scan minilm --text python_reference --lengths 32    twenty seconds, needs no model hub
  lipnb scan smollm2 --text story.txt                       after `lipnb fetch smollm2`: all 30 layers
  lipnb scan ./my-llama --layers 0,5-7 --windows 4 --output scan-of-mine
  lipnb scan ./before --against ./after                     two models, or folders of two scans
  lipnb scan ./my-model --dry-run                           what would be measured, and about how long
  lipnb scan dinov2-small --text pictures                   a vision model; or a folder of images
"""

DESCRIPTION = """\
Measure how much each attention layer of a model can amplify a small change of its input: its local Lipschitz
constant. The scan compares it with a certified upper bound, with every published bound that applies to the layer, and
with two baselines: random weights of the same shape, and the same text in random order. At the shortest length it also
measures each head, each token, each whole layer, and the network from end to end.

MODEL is a name that lipnb knows (minilm, gpt2-mini, smollm2), a name on the Hugging Face hub, or a folder with
config.json and model.safetensors. No code of a model is ever run.

The scan prints a table, and writes to the folder given by --output
  report.html    plots and words; one file, opens offline
  scan.csv       one row for each layer, length and window        summary.csv    one row for each layer and length
  heads.csv, tokens.csv, whole.csv    the close look              against.csv    with --against
  *.json         how each was made: model, text, windows, versions, seed, seconds. scan.json is written last, with a
                 checksum of all these tables except the summary: a table changed since is not read again
  *.partial.jsonl  only after a scan with gaps: what was measured; the same command tries the rest again
  .*.partial.lock    empty; they keep two scans out of one folder, and may be deleted when no scan runs
"""

READING = """\
A scan that is stopped, even by kill -9, continues when you run the same command again. Where something cannot be
measured (a product overflows, a layer has no derivative), the scan reports it and goes on; the exit code is then 1, and
the same command tries it again.
"""


class Explain(Action):
    """The option `--columns`: explain every column of every table, then exit."""

    def __call__(self, parser, namespace, values, option=None):
        """Print the explanation and exit, as `--help` does."""
        from lipnb.extras import extra

        try:
            with extra("scan"):
                from lipscan.scanning.summary import explained
        except ModuleNotFoundError as error:
            parser.exit(1, f"lipnb scan: {error}\n")
        print(explained())
        parser.exit()


def _epilog():
    """Last part of the help: the built-in texts, how to read the table, examples."""
    from textwrap import fill

    from lipscan import corpora
    from lipscan.scanning.words import TABLE

    texts = "\n".join(f"  {name:18}{about}" for name, about in corpora.NAMES.items())
    keys = "\n".join(
        fill(words, 120, initial_indent=f"  {name:17}", subsequent_indent=19 * " ") for name, words in TABLE.items()
    )
    reading = f"how to read the table (`lipnb scan --columns` explains those of all files):\n{keys}\n\n{READING}"
    return f"built-in texts, for --text:\n{texts}\n\n{reading}\nexamples:\n{EXAMPLES}"


def add(verbs):
    """Add the verb; its options are the fields of `ScanOptions` that carry metadata for argparse."""
    about = "find the layer that blows up a small change: each measured on a text, with a proved bound"
    verb = verbs.add_parser("scan", help=about, description=DESCRIPTION, epilog=_epilog)
    verb.add_argument("model", metavar="MODEL", help="a name, a folder or a .gguf file, see above")
    verb.add_argument(
        "--text",
        default=TEXT,
        metavar="FILE",
        help="a text file (UTF-8), or alice, ag_news, ptb, reactions, python_reference (default); for a vision "
        "model an image, a folder of images, pictures (a few that installed packages ship) or random",
    )
    for one in fields(ScanOptions):
        if one.metadata:
            name, switch = one.name.replace("_", "-"), {"action": "store_false"} if one.default is True else {}
            flag = f"--no-{name}" if switch else f"--{name}"
            verb.add_argument(flag, dest=one.name, default=one.default, **switch, **one.metadata)
    verb.add_argument(
        "--against",
        metavar="OTHER",
        help="compare with another model, scanned with the same options, or with the folder of a scan: MODEL is "
        "before, OTHER after",
    )
    verb.add_argument(
        "--output",
        type=folder_named,
        metavar="FOLDER",
        help="default scan-MODEL (with --part scan-MODEL-PART); with --against, the scan of OTHER is in scan-OTHER, "
        "inside FOLDER if you give one or if both models have the same name; the comparison of two folders is in "
        "FIRST-against-SECOND",
    )
    verb.add_argument(
        "--again", action="store_true", help="measure everything again, even what the folder holds already"
    )
    verb.add_argument(
        "--dry-run", action="store_true", help="print what would be measured and about how long it would take"
    )
    verb.add_argument("--columns", nargs=0, action=Explain, help="explain the columns of all tables, then exit")
    verb.set_defaults(run=run)


class Side(NamedTuple):
    """One of the scans of a command: the given name, its scan if one is stored already, and its folder."""

    place: str
    stored: Any
    folder: Path


def run(arguments):
    """Scan, write the report, print the table; 1 if a layer failed its self-check or was not measured."""
    options = _options(arguments)
    from lipnb.extras import extra

    with extra("scan"):
        from lipscan.scanning import terminal

    _check_text(arguments.text)
    places = [place for place in (arguments.model, arguments.against) if place is not None]
    stored = _all_stored(arguments, options, places)
    folders, folder = _folders(arguments, places, stored, options.part)
    sides = [Side(*side) for side in zip(places, stored, folders, strict=True)]
    _check_folders(arguments, sides, folder)
    begun = _begun(arguments, options, sides)
    _check_comparable(sides, begun)
    if arguments.dry_run:
        _show_plans(sides, begun, arguments.again)
        return 0
    found = _scanned(arguments, sides[0])
    folder.mkdir(parents=True, exist_ok=True)
    report = found.report(folder)
    if len(sides) > 1:
        print(f"Below: {places[0]}. Its comparison with {places[1]} comes last.\n")
    terminal.show(found)
    print(f"\nReport: {report}")
    if arguments.against is None and (Path(report).parent / "against.csv").is_file():
        print("against.csv beside it is of an earlier comparison; --against OTHER puts it into the report again.")
    scans = [found]
    if len(sides) > 1:
        scans.append(_scanned(arguments, sides[1]))
        _compare(scans, places, folder)
    return 0 if all(scan.summary.passed.all() and scan.gaps.empty for scan in scans) else 1


def _options(arguments):
    """The options of `lipnb.scan` that the command line sets; refuse invalid ones."""
    try:
        options = ScanOptions(**_asked(arguments))
    except ValueError as error:
        raise Unknown(str(error).rstrip(".")) from None
    if arguments.output is not None and arguments.output.is_file():
        raise FileExistsError(f"--output {arguments.output} is a file: name a folder.")
    return options


def _all_stored(arguments, options, places):
    """The stored scan of each place, None for a model; refuse a model that does not exist, and options of no use."""
    stored = [_stored(place) for place in places]
    for place, one in zip(places, stored, strict=True):
        if one is None:
            _check_model(place, options.random, other=place is arguments.against)
    asked = arguments.again or arguments.dry_run or arguments.text != TEXT or options != ScanOptions()
    if None not in stored and asked:
        raise Unknown(
            f"finished scans are shown as they are ({' and '.join(places)}); leave out --text, --lengths, --layers, "
            "--again and the other options of a new scan, or name the model"
        )
    return stored


def _folders(arguments, places, stored, part):
    """The folders of the scans and of the report: two for models of one name; a stored scan keeps its folder."""
    from lipscan.scanning.folder import folder_of

    output, (place, *others) = arguments.output, places
    first = Path(place) if stored[0] is not None else output or folder_of(place, part)
    folder = output or first
    if not others:
        return [first], folder
    second = folder_of(others[0], part)
    if output is None and stored[0] is not None:
        folder = Path(f"{first.resolve().name}-against-{second.name.removeprefix('scan-')}")
    apart = output is not None or second.resolve() == first.resolve()
    return [first, folder / second if apart else second], folder


def _check_folders(arguments, sides, folder):
    """Refuse folders that hold something else, and a new scan in place of the scan that it is compared with."""
    from lipscan.scanning.folder import refuse_foreign

    first, others = sides[0].folder, [side for side in sides[1:] if side.stored is not None]
    if arguments.again and any(Path(side.place).resolve() == first.resolve() for side in others):
        raise ValueError(
            f"--again would delete the scan {arguments.against}, which {arguments.model} is compared with: name "
            "another folder for the new scan with --output."
        )
    for one in (first, folder, *(side.folder for side in sides if side.stored is None)):
        refuse_foreign(one)


def _begun(arguments, options, sides):
    """Plan of each side, if it must be known beforehand: for a comparison and for a dry run."""
    from lipscan.scanning.run import begin, beside

    found = []
    for side in sides:
        needed = side.stored is None and (len(sides) > 1 or arguments.dry_run)
        plan = begin(side.place, arguments.text, options) if needed else None
        if plan is not None and not arguments.again:  # names damage before the other model is measured
            plan = beside(side.folder, plan, arguments.text, options)
        found.append(plan)
    return found


def _check_comparable(sides, begun):
    """Refuse two scans that cannot be compared, and warn about measurements without a counterpart."""
    if len(sides) == 1:
        return
    from lipscan.scanning import compare
    from lipscan.scanning.comparison import check_alike, check_common

    stored = [side.stored for side in sides]
    if None not in stored:
        compare(*stored)
    settings = [
        one.settings if side.stored is None else side.stored.about["settings"]
        for side, one in zip(sides, begun, strict=True)
    ]
    check_alike(*settings)
    check_common(*settings)
    for line in _in_vain([side.place for side in sides], stored, settings):
        print(line, file=sys.stderr)


def _show_plans(sides, begun, again):
    """Print the plan of each scan, and the part that its folder already holds."""
    from lipscan.scanning import terminal
    from lipscan.scanning.folder import state
    from lipscan.scanning.planning import planned
    from lipscan.scanning.run import ended

    for side, one in zip(sides, begun, strict=True):
        if side.stored is not None:
            continue
        if not again and (held := state(side.folder)) is not None:
            print(f"{side.folder} holds {held}")
        if ended(one):
            print("Nothing would be measured again (--again does).")
            continue
        if one.said:
            print(one.said)
        lengths = ", ".join(map(str, one.settings["lengths"]))
        terminal.show_plan(planned(one), f"A whole scan of {side.place} at length {lengths}")


def _asked(arguments):
    """The options of `lipnb.scan` that the command line sets."""
    return {one.name: getattr(arguments, one.name) for one in fields(ScanOptions) if one.metadata}


def _check_text(text):
    """Refuse a text that does not exist, before a model is loaded."""
    from lipscan import corpora
    from lipscan.models import PICTURES

    if Path(text).exists():
        return
    if "/" in text or Path(text).suffix:
        raise FileNotFoundError(
            f"the text {text!r} was not found: it is neither a file nor a folder of images; the built-in texts are "
            f"{', '.join(corpora.NAMES)}."
        )
    if text not in PICTURES:
        known("file or corpus", [text], [*corpora.NAMES, "pictures", "random"], every=True)


def _check_model(place, random, other):
    """Refuse a model that does not exist before anything is measured, and suggest the nearest known name."""
    from lipscan.models.demo.fetching import DEMOS
    from lipscan.models.loading import PLAIN, layer_count

    try:
        layer_count(place, random)
    except FileNotFoundError as error:
        near = [] if place in PLAIN else get_close_matches(place, DEMOS, n=1)  # a plain word, not a misspelt name
        hint = f" Did you mean {near[0]}?" if near else ""
        hint += " OTHER may also be the folder of a scan, with its scan.json." * other
        if place in DEMOS or not hint:
            raise
        raise FileNotFoundError(f"{error}{hint}") from None


def _stored(place):
    """The scan stored in a folder; None for the folder of a model, or any other."""
    from lipscan.scanning.folder import finished, load, refuse_old

    if (Path(place) / "config.json").is_file():
        return None
    refuse_old(Path(place))
    return load(place) if finished(Path(place)) else None


def _in_vain(places, stored, settings):
    """Warnings for lengths and layers that will be measured but are not in the stored scan to compare with."""
    for new, old in ((0, 1), (1, 0)):
        if stored[new] is None and stored[old] is not None:
            for name, option in (("lengths", "--lengths"), ("layers_scanned", "--layers")):
                there = settings[old][name]
                if lacking := [str(n) for n in settings[new][name] if n not in there]:
                    both = ",".join(str(n) for n in settings[new][name] if n in there)
                    yield (
                        f"{places[old]} has no {name.split('_')[0]} {', '.join(lacking)}: measured, but not compared; "
                        f"{option} {both} measures what is compared."
                    )


def _scanned(arguments, side):
    """The scan of a side: the stored one, or a new one in its folder."""
    from lipscan.scanning import folder, scan

    if side.stored is not None:
        return side.stored
    output, options = side.folder, {"again": arguments.again, "progress": True}
    written = output / "scan.json"
    before = written.stat().st_mtime_ns if written.is_file() else None
    try:
        found = scan(side.place, arguments.text, **_asked(arguments), output=output, **options)
    except KeyboardInterrupt:
        said = folder.state(output)
        raise Stopped(f"stopped; {output} holds {said}" if said else "stopped; nothing was measured yet") from None
    if written.stat().st_mtime_ns == before:
        print(f"{output} held this scan already: nothing was measured again (--again does).", file=sys.stderr)
    return found


def _compare(scans, places, folder):
    """Print the comparison of two scans, store its table in `folder`, and add it to the report in that folder."""
    from lipscan import recording
    from lipscan.recording.table import FLOAT_FORMAT
    from lipscan.scanning import compare, terminal
    from lipscan.scanning.comparison import unpaired
    from lipscan.scanning.report import write_report

    names = [Path(place).resolve().name if Path(place).exists() else place for place in places]  # no path in a report
    names = names if names[0] != names[1] else places
    table = compare(*scans)
    recording.write(folder / "against.csv", table.to_csv(index=False, float_format=FLOAT_FORMAT))
    print()
    terminal.show_comparison(table, *names, more=unpaired(*scans))
    print(f"\nReport, with the comparison: {write_report(scans[0], folder, scans[1], names)}")
