"""`lipnb scan`: how Lipschitz is each layer of a model, on a text."""

import sys
from argparse import Action

from lipnb.cli.words import Stopped, Unknown, count, known, layers, lengths, tolerance, whole

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
  / random      how many times the constant of random weights of the same shape, on the same tokens
  / shuffled    how many times the constant of the same weights on the same tokens in random order
  column        the largest column sum of the attention matrix: how much attention one token gets, at most n
  bound         the closest bound in closed form: x 340 is 340 times too high, geometric mean over windows
  check         the layer was taken out of the network correctly: same output, same mask; else nothing is measured;
                "1 of 2": one window of two could be measured, "gap": none could, and below it says why

A scan that is stopped, even by kill -9, continues where it was when the same command is given again. What cannot be
measured (a product that overflows, a derivative that a layer does not have) is named and ends nothing; the exit code is
then 1, and the same command tries it again.
"""


class Explain(Action):
    """`--columns`: what every column of every table holds, and no more."""

    def __call__(self, parser, namespace, values, option=None):
        """Print it and end, as `--help` does."""
        from lipnb.scanning.columns import explained

        print(explained())
        parser.exit()


def _epilog():
    """The end of the help: the built-in texts, how to read the table, examples."""
    from lipnb import corpora

    texts = "\n".join(f"  {name:18}{about}" for name, about in corpora.NAMES.items())
    return f"built-in texts, for --text:\n{texts}\n\n{READING}\nexamples:\n{EXAMPLES}"


def add(verbs):
    """Describe the verb."""
    verb = verbs.add_parser(
        "scan",
        help="measure every layer of a model on a text, beside the published bounds",
        description=DESCRIPTION,
        epilog=_epilog,
    )
    verb.add_argument("model", metavar="MODEL", help="a name, a folder or a .gguf file, see above")
    verb.add_argument(
        "--text",
        default="python_reference",
        metavar="FILE",
        help="a text file (UTF-8), or alice, ag_news, ptb, reactions, python_reference (default); for a vision "
        "model an image, a folder of images, pictures (some that packages ship) or random",
    )
    verb.add_argument(
        "--layers", type=layers, default="all", metavar="L,L,...", help="all (default), or such as 0,3,5-7"
    )
    verb.add_argument(
        "--lengths",
        type=lengths,
        metavar="N,N,...",
        help="tokens of a window (default: those of 32,128,512 that the model can read and the text is "
        "long enough for)",
    )
    verb.add_argument(
        "--windows",
        type=count,
        default=2,
        metavar="N",
        help="windows for each length, at random places of the text, disjoint; no more is tokenized (default 2)",
    )
    verb.add_argument(
        "--no-special",
        action="store_true",
        help="windows without the special tokens of the model's own convention, such as [CLS] and [SEP]",
    )
    verb.add_argument(
        "--object",
        choices=("heads+output", "heads", "block"),
        default="heads+output",
        help="attention with its output projection (default), without it, or with residual and norm",
    )
    verb.add_argument("--masked", action="store_true", default=None, help="make a causal decoder of a BERT")
    verb.add_argument("--random", action="store_true", help="draw the weights at random, with --seed")
    verb.add_argument("--tokenizer", metavar="NAME", help="read with another tokenizer than the model's own")
    verb.add_argument("--no-upper", action="store_true", help="no certified bounds: they take most of the time")
    verb.add_argument(
        "--upper-windows",
        type=count,
        default=1,
        metavar="N",
        help="windows of each length that are certified (default 1)",
    )
    verb.add_argument(
        "--upper-work",
        type=float,
        default=1e11,
        metavar="X",
        help="most operations for one certified bound (default 1e11: some seconds); costlier ones are "
        "left out, and it is said",
    )
    verb.add_argument(
        "--no-close", action="store_true", help="no close look at heads, tokens, whole layers and the network"
    )
    verb.add_argument(
        "--against",
        metavar="OTHER",
        help="compare with another model, scanned likewise, or with the folder of a scan: MODEL is before, OTHER after",
    )
    verb.add_argument(
        "--rtol",
        type=tolerance,
        default=1e-4,
        metavar="X",
        help="relative tolerance, from 1e-6 to below 1 (default 1e-4)",
    )
    verb.add_argument("--device", metavar="NAME", help="such as cuda (default: the CPU)")
    verb.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="default float32")
    verb.add_argument("--seed", type=whole, default=0, metavar="N", help="of windows, start vectors, random weights")
    verb.add_argument(
        "--output",
        metavar="FOLDER",
        help="default scan-MODEL; with --against, the scan of OTHER lies in FOLDER/scan-OTHER",
    )
    verb.add_argument("--again", action="store_true", help="measure anew what the folder holds already")
    verb.add_argument("--dry-run", action="store_true", help="say what would be measured and about how long it takes")
    verb.add_argument("--columns", nargs=0, action=Explain, help="explain the columns of all tables, and exit")
    verb.set_defaults(run=run)


def run(arguments):
    """Scan, write the report, print the table; 1 where a layer failed its self-check or was not measured."""
    from pathlib import Path

    from lipnb import corpora
    from lipnb.origin import extra

    # what a look at the disk can tell is said before anything is loaded
    if ("/" in arguments.text or Path(arguments.text).suffix) and not Path(arguments.text).exists():
        raise FileNotFoundError(
            f"the text {arguments.text!r} was not found: it is no file, and no folder of images; built-in texts are "
            f"{', '.join(corpora.NAMES)}."
        )
    if arguments.output is not None and Path(arguments.output).is_file():
        raise FileExistsError(f"--output {arguments.output} is a file: name a folder.")
    with extra("scan"):
        from lipnb import scanning
        from lipnb.models import PICTURES
        from lipnb.models.loading import layer_count
        from lipnb.scanning import terminal
        from lipnb.scanning.comparing import check_alike

    text = Path(arguments.text)
    images = ("random", "pictures", *PICTURES)
    if not text.exists() and not text.suffix and "/" not in arguments.text and arguments.text not in images:
        known("file or corpus", [arguments.text], [*corpora.NAMES, "pictures", "random"], every=True)
    if not arguments.upper_work > 0:
        raise Unknown(f"--upper-work is a positive number of operations, got {arguments.upper_work:g}")
    if arguments.against is not None and not _is_scan(arguments.against):
        layer_count(arguments.against, arguments.random)  # what is not there is said before anything is measured
    if arguments.dry_run:
        print("\n".join(scanning.planned(scanning.begin(arguments.model, **_options(arguments)))))
        if arguments.against is not None and not _is_scan(arguments.against):
            print(f"{arguments.against} is scanned likewise, in about as much time.")
        return 0
    if arguments.against is not None and _is_scan(arguments.against) and _is_scan(arguments.model):
        scanning.compare(scanning.load(arguments.model), scanning.load(arguments.against))  # refused before it is shown
    elif arguments.against is not None:  # or before it is measured
        check_alike(*(_settings(arguments, model) for model in (arguments.model, arguments.against)))
    found, output = _scanned(arguments, arguments.model, arguments.output)
    if arguments.output is not None:  # the folder of a scan that was given as MODEL stays as it is
        output = Path(arguments.output)
        output.mkdir(parents=True, exist_ok=True)
    passed = found.summary.passed.all() and found.gaps.empty
    report = found.report(output)
    terminal.show(found)
    print(f"\nReport: {report}")
    if arguments.against is not None:
        beside = None if arguments.output is None else output / scanning.folder_of(arguments.against)
        other, _ = _scanned(arguments, arguments.against, beside)
        _against(found, other, (arguments.model, arguments.against), output)
        passed &= other.summary.passed.all() and other.gaps.empty
    return 0 if passed else 1


def _options(arguments):
    """What the verb was given, as `lipnb.scan` calls it."""
    names = ("text", "layers", "lengths", "windows", "object", "masked", "random", "tokenizer", "device", "dtype")
    given = {name: getattr(arguments, name) for name in (*names, "upper_windows", "upper_work", "rtol", "seed")}
    switches = {"upper": "no_upper", "special": "no_special", "close": "no_close"}
    return given | {name: not getattr(arguments, switch) for name, switch in switches.items()}


def _is_scan(model):
    """Whether this is the folder of a scan, and not of a model."""
    from pathlib import Path

    from lipnb import scanning

    return (Path(model) / scanning.SUMS).is_file() and not (Path(model) / "config.json").is_file()


def _settings(arguments, model):
    """The settings of the scan of a model, or of that in a folder; nothing is measured."""
    from lipnb import scanning

    scan = scanning.load(model).about["settings"] if _is_scan(model) else None
    return scan or scanning.begin(model, **_options(arguments)).settings


def _scanned(arguments, model, output):
    """The scan of a model, or that of a folder of one; and where it lies."""
    from pathlib import Path

    from lipnb import scanning

    if _is_scan(model):
        return scanning.load(model), Path(model)
    output = scanning.folder_of(model) if output is None else Path(output)
    sums, options = output / scanning.SUMS, {"again": arguments.again, "progress": sys.stderr.isatty()}
    before = sums.stat().st_mtime_ns if sums.is_file() else None
    try:
        found = scanning.scan(model, **_options(arguments), output=output, **options)
    except KeyboardInterrupt:
        said = scanning.state(output)
        raise Stopped(f"stopped; {output} holds {said}" if said else "stopped; nothing was measured yet") from None
    if sums.stat().st_mtime_ns == before:
        print(f"{output} held this scan already: nothing was measured again (--again does).", file=sys.stderr)
    return found, output


def _against(before, after, names, output):
    """Print how two scans compare; keep the table in the folder of the first, and show it in the report there."""
    from pathlib import Path

    from lipnb import recording, scanning
    from lipnb.scanning.comparing import Comparison, show_comparison
    from lipnb.scanning.report import write

    short = [Path(name).resolve().name if Path(name).exists() else name for name in names]  # never a path in a report
    comparison = Comparison(scanning.compare(before, after), *(short if short[0] != short[1] else names))
    text = comparison.table.to_csv(index=False, float_format=recording.FLOAT_FORMAT)
    recording.write(output / "against.csv", text)
    print()
    show_comparison(comparison)
    print(f"\nReport, with the comparison: {write(before, output, comparison)}")
