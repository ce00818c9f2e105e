"""`lipnb scan`: how Lipschitz is each layer of a model, on a text."""

import sys

from lipnb.cli.words import Unknown, count, known, layers, lengths, tolerance

EXAMPLES = """\
  lipnb scan minilm --text python_reference --lengths 32    the embedded model, on a text that is always there
  lipnb scan bert-base-uncased --text story.txt --layers all --lengths 32,128,512
  lipnb scan ./my-llama --text story.txt --layers 0,5-7 --windows 4 --output scan-of-mine
  lipnb scan gpt2 --random --text python_reference          the same layers before training
  lipnb scan ./my-vit --text photographs                    a folder of images; or --text random
"""

DESCRIPTION = """\
Measure how much each attention layer of a model can amplify a small change of what it reads: its local Lipschitz
constant. Beside it stand a certified upper bound and every published bound that applies to the layer.

MODEL is a name that lipnb knows (minilm, gpt2-mini), a name on the Hugging Face hub, or a folder with config.json and
model.safetensors. Families: BERT, RoBERTa, XLM-RoBERTa, DistilBERT, GPT-2, ViT, Llama, Mistral, Qwen2. No code of a
model is ever run.

A table is printed; the folder given by --output gets
  report.html    plots and words; one file, opens offline
  scan.csv       one row for each layer, length and window        summary.csv    one row for each layer and length
  scan.json      how it was made: model, text, hashes, versions, seed, seconds
  .scan.partial.lock   empty; it keeps two scans out of one folder and may be deleted when none runs

In scan.csv and summary.csv, log10_* and over_* are logarithms to base 10: log10_* of a bound, over_* of how many times
higher than the constant it is (over_yudin = 2 means 100 times). certified_over is that ratio itself, no logarithm.
"""

READING = """\
how to read it:
  constant       a small change of the tokens comes out at most this many times larger; a lower bound, solved to --rtol
  certified <=   proved from above, rounding included; so the constant lies between the two
  x 340          a published bound, 340 times higher than the constant
  radius         norms of the tokens that the layer receives: bounds grow with the square of the largest
  check          the layer was taken out of the network correctly: same output, same mask; else nothing is measured

A scan that is stopped, even by kill -9, continues where it was when the same command is given again.
"""


def add(verbs):
    """Describe the verb."""
    verb = verbs.add_parser(
        "scan",
        help="measure every layer of a model on a text, beside the published bounds",
        description=DESCRIPTION,
        epilog=f"{READING}\nexamples:\n{EXAMPLES}",
    )
    verb.add_argument("model", metavar="MODEL", help="a name or a folder, see above")
    verb.add_argument(
        "--text",
        default="python_reference",
        metavar="FILE",
        help="a text file (UTF-8), or alice, ag_news, ptb, python_reference (default); for a ViT an "
        "image, a folder of images or random",
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
        help="windows for each length, from the beginning of the text, of which no more is tokenized (default 2)",
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
        "--rtol",
        type=tolerance,
        default=1e-4,
        metavar="X",
        help="relative tolerance, from 1e-6 to below 1 (default 1e-4)",
    )
    verb.add_argument("--device", metavar="NAME", help="such as cuda (default: the CPU)")
    verb.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="default float32")
    verb.add_argument("--seed", type=int, default=0, metavar="N", help="of start vectors, random weights and images")
    verb.add_argument("--output", metavar="FOLDER", help="default scan-MODEL")
    verb.add_argument("--again", action="store_true", help="measure anew what the folder holds already")
    verb.set_defaults(run=run)


def run(arguments):
    """Scan, write the report, print the table; 1 where a layer failed its self-check."""
    from pathlib import Path

    from lipnb import corpora
    from lipnb.origin import extra

    with extra("scan"):
        from lipnb.scanning import folder_of, scan
        from lipnb.scanning.report import write
        from lipnb.scanning.terminal import show

    options = {
        name: value
        for name, value in vars(arguments).items()
        if name not in ("run", "verb", "model", "no_upper", "output")
    }
    text = Path(arguments.text)
    if not text.exists() and not text.suffix and "/" not in arguments.text and arguments.text != "random":
        known("file or corpus", [arguments.text], corpora.NAMES)
    if arguments.upper_work <= 0:
        raise Unknown(f"--upper-work is a positive number of operations, got {arguments.upper_work:g}")
    output = folder_of(arguments.model) if arguments.output is None else Path(arguments.output)
    found = scan(arguments.model, upper=not arguments.no_upper, output=output, progress=sys.stderr.isatty(), **options)
    report = write(found, output)
    show(found)
    print(f"\nReport: {report}")
    return 0 if found.summary.passed.all() else 1
