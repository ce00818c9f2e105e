"""The verb `lipnb scan`: local Lipschitz constants of each layer of a model on a text."""

import sys
from argparse import Action
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path

from lipscan.cli.words import Stopped, Unknown, folder_named, known
from lipscan.scanning.options import ScanOptions

TEXT = "python_reference"  # ships with Python, so always available

EXAMPLES = """\
  lipnb scan minilm --text python_reference --lengths 32    the embedded model, on a text that is always there
  lipnb scan smollm2 --text story.txt                       after `lipnb fetch smollm2`: all 30 layers
  lipnb scan ./my-llama --layers 0,5-7 --windows 4 --output scan-of-mine
  lipnb scan ./before --against ./after                     two models, or folders of two scans
  lipnb scan ./my-model --dry-run                           what would be measured, and about how long
  lipnb scan dinov2-small --text pictures                   a vision model; or a folder of images
"""

DESCRIPTION = """\
Measure how much each attention layer of a model can amplify a small change of what it reads: its local Lipschitz
constant. Beside it stand a certified upper bound, every published bound that applies to the layer, and two baselines:
random weights of the same shape, and the same text in random order. The shortest length is looked at closely: each
head, each token, each whole layer, and the network from end to end.

MODEL is a name that lipnb knows (minilm, gpt2-mini, smollm2), a name on the Hugging Face hub, or a folder with
config.json and model.safetensors. No code of a model is ever run.

A table is printed; the folder given by --output gets
  report.html    plots and words; one file, opens offline
  scan.csv       one row for each layer, length and window        summary.csv    one row for each layer and length
  heads.csv, tokens.csv, whole.csv    the close look              against.csv    with --against
  *.json         how each was made: model, text, hashes, versions, seed, seconds
  SHA256SUMS     checksums of these tables, written last; a table that was changed since is not read again
  *.partial.jsonl  of a scan with gaps: what is there already; the same command tries the rest again
  .*.partial.lock    empty; they keep two scans out of one folder and may be deleted when none runs
"""

READING = """\
how to read the table (`lipnb scan --columns` explains those of all files):
  constant      a small change of the tokens comes out at most this many times larger; a lower bound, solved to --rtol,
                mean over windows; with "!" where the solver did not reach its tolerance
  certified     x 1.7: proved, rounding included, to be at most 1.7 times the constant, in each window certified
  relative      the constant for changes in units of their tokens, |x| / |f(x)| times larger: so layers compare
  / random      in the first window, how many times the constant of random weights of the same shape, on the same tokens
  / shuffled    in the first window, how many times that of the same weights on the same tokens in random order
  column        the largest column sum of the attention matrix: how much attention one token gets, at most n
  bound         the closest bound in closed form of that layer and length: x 340 is 340 times too high, geometric mean
                over windows; a letter names it below the table, where several come closest
  check         the layer was taken out of the network correctly: same output, same mask; else nothing is measured;
                "1 of 2": one window of two could be measured, "gap": none could, and below it says why

A scan that is stopped, even by kill -9, continues where it was when the same command is given again. What cannot be
measured (a product that overflows, a derivative that a layer does not have) is named and ends nothing; the exit code is
then 1, and the same command tries it again.
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
    from lipscan import corpora

    texts = "\n".join(f"  {name:18}{about}" for name, about in corpora.NAMES.items())
    return f"built-in texts, for --text:\n{texts}\n\n{READING}\nexamples:\n{EXAMPLES}"


def add(verbs):
    """Add the verb; its options are the fields of `ScanOptions` that carry metadata for argparse."""
    about = "measure every layer of a model on a text, beside the published bounds"
    verb = verbs.add_parser("scan", help=about, description=DESCRIPTION, epilog=_epilog)
    verb.add_argument("model", metavar="MODEL", help="a name, a folder or a .gguf file, see above")
    verb.add_argument(
        "--text",
        default=TEXT,
        metavar="FILE",
        help="a text file (UTF-8), or alice, ag_news, ptb, reactions, python_reference (default); for a vision "
        "model an image, a folder of images, pictures (some that packages ship) or random",
    )
    for one in fields(ScanOptions):
        if one.metadata:
            name, switch = one.name.replace("_", "-"), {"action": "store_false"} if one.default is True else {}
            flag = f"--no-{name}" if switch else f"--{name}"
            verb.add_argument(flag, dest=one.name, default=one.default, **switch, **one.metadata)
    verb.add_argument(
        "--against",
        metavar="OTHER",
        help="compare with another model, scanned likewise, or with the folder of a scan: MODEL is before, OTHER after",
    )
    verb.add_argument(
        "--output",
        type=folder_named,
        metavar="FOLDER",
        help="default scan-MODEL (with --part scan-MODEL-PART); with --against, the scan of OTHER lies in scan-OTHER, "
        "within FOLDER where that is "
        "given or both have one name; two folders are compared in FIRST-against-SECOND",
    )
    verb.add_argument("--again", action="store_true", help="measure anew what the folder holds already")
    verb.add_argument("--dry-run", action="store_true", help="say what would be measured and about how long it takes")
    verb.add_argument("--columns", nargs=0, action=Explain, help="explain the columns of all tables, and exit")
    verb.set_defaults(run=run)


def run(arguments):
    """Scan, write the report, print the table; 1 if a layer failed its self-check or was not measured."""
    model, text, against, output = (getattr(arguments, name) for name in ("model", "text", "against", "output"))
    try:
        options = ScanOptions(**_asked(arguments))
    except ValueError as error:
        raise Unknown(str(error).rstrip(".")) from None
    if output is not None and output.is_file():
        raise FileExistsError(f"--output {output} is a file: name a folder.")

    from lipnb.extras import extra

    with extra("scan"):
        from lipscan.scanning import compare, terminal
        from lipscan.scanning.folder import folder_of, refuse_foreign, state
        from lipscan.scanning.run import begin, refuse_another
        from lipscan.scanning.summary import check_alike, check_common

    _check_text(text)
    places = [place for place in (model, against) if place is not None]
    stored = [_stored(place) for place in places]
    for place, one in zip(places, stored, strict=True):
        if one is None:
            _check_model(place, options.random, other=place is against)
    if None not in stored and (arguments.again or arguments.dry_run or text != TEXT or options != ScanOptions()):
        raise Unknown(
            f"finished scans are shown as they are ({' and '.join(places)}); --text, --lengths, --layers, --again and "
            "the like are of a scan to be made: leave them out, or name the model"
        )
    first = Path(model) if stored[0] is not None else output or folder_of(model, options.part)
    if arguments.again and against is not None and stored[1] is not None and Path(against).resolve() == first.resolve():
        raise ValueError(
            f"--again would delete the scan {against}, with which {model} is to be compared: name another folder for "
            "the new scan with --output."
        )
    folder = first
    if output is not None or (stored[0] is not None and against is not None):  # the given folder is not modified
        folder = output or Path(
            f"{Path(model).resolve().name}-against-{folder_of(against, options.part).name.removeprefix('scan-')}"
        )
    refuse_foreign(first)
    refuse_foreign(folder)
    folders = [first]
    if against is not None:
        second = folder_of(against, options.part)
        if output is not None or second.resolve() == first.resolve():  # two models of the same name need two folders
            second = folder / second
        folders.append(second)
        if None not in stored:
            compare(*stored)
    settings, plans = [], []
    for place, one, where in zip(places, stored, folders, strict=True):
        if one is not None:
            settings.append(one.about["settings"])
        elif against is not None or arguments.dry_run:  # refuse what cannot be compared before measuring it
            begun = begin(place, text, options)
            refuse_foreign(where)
            if not arguments.again:
                refuse_another(where, begun.settings)
                state(where)  # report damage before the other model is measured
            settings.append(begun.settings)
            if arguments.dry_run:
                plans += [f"{place}:"] * (stored.count(None) == 2) + _plan(begun, where, arguments.again)
    if against is not None:
        check_alike(*settings)
        check_common(*settings)
        for line in _in_vain(places, stored, settings):
            print(line, file=sys.stderr)
    if arguments.dry_run:
        print("\n".join(plans))
        return 0
    found = stored[0] or _scanned(arguments, model, first)
    folder.mkdir(parents=True, exist_ok=True)
    report = found.report(folder)
    if against is not None:
        print(f"Below: {model}. Its comparison with {against} comes last.\n")
    terminal.show(found)
    print(f"\nReport: {report}")
    scans = [found]
    if against is not None:
        scans.append(stored[1] or _scanned(arguments, against, second))
        _compare(scans, places, folder)
    return 0 if all(scan.summary.passed.all() and scan.gaps.empty for scan in scans) else 1


def _plan(begun, folder, again):
    """Sentences on what a scan would measure and what its folder already holds of it."""
    from lipscan.scanning import load
    from lipscan.scanning.folder import SUMS, state
    from lipscan.scanning.planning import planned

    held = None if again else state(folder)
    if held is None:
        return planned(begun)
    if (folder / SUMS).is_file() and load(folder).gaps.empty:
        return [f"{folder} holds {held}", "Nothing would be measured again (--again does)."]
    return [f"{folder} holds {held}", "The whole of it:", *planned(begun)]


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
            f"the text {text!r} was not found: it is no file, and no folder of images; built-in texts are "
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
        hint += " OTHER may also be the folder of a scan, with its SHA256SUMS." * other
        if place in DEMOS or not hint:
            raise
        raise FileNotFoundError(f"{error}{hint}") from None


def _stored(place):
    """The scan stored in a folder; None for the folder of a model, or any other."""
    from lipscan.scanning.folder import SUMS, load

    return load(place) if (Path(place) / SUMS).is_file() and not (Path(place) / "config.json").is_file() else None


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


def _scanned(arguments, model, output):
    """The scan of a model, stored in the folder `output`."""
    from lipscan.scanning import folder, scan

    sums, options = output / folder.SUMS, {"again": arguments.again, "progress": True}
    before = sums.stat().st_mtime_ns if sums.is_file() else None
    try:
        found = scan(model, arguments.text, **_asked(arguments), output=output, **options)
    except KeyboardInterrupt:
        said = folder.state(output)
        raise Stopped(f"stopped; {output} holds {said}" if said else "stopped; nothing was measured yet") from None
    if sums.stat().st_mtime_ns == before:
        print(f"{output} held this scan already: nothing was measured again (--again does).", file=sys.stderr)
    return found


def _compare(scans, places, folder):
    """Print the comparison of two scans, store its table in `folder`, and add it to the report in that folder."""
    from lipscan import recording
    from lipscan.recording.table import FLOAT_FORMAT
    from lipscan.scanning import compare, terminal
    from lipscan.scanning.report import write_report
    from lipscan.scanning.summary import unpaired

    names = [Path(place).resolve().name if Path(place).exists() else place for place in places]  # no path in a report
    names = names if names[0] != names[1] else places
    table = compare(*scans)
    recording.write(folder / "against.csv", table.to_csv(index=False, float_format=FLOAT_FORMAT))
    print()
    terminal.show_comparison(table, *names, more=unpaired(*scans))
    print(f"\nReport, with the comparison: {write_report(scans[0], folder, scans[1], names)}")
