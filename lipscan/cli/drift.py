"""The verb `lipnb drift`: where another computation of a model differs from it, and whether rounding explains that."""

from pathlib import Path

from lipscan.cli.words import count, folder_named

TEXT = "python_reference"  # ships with Python, so always available
TYPES = ("bfloat16", "float16", "float32")

EXAMPLES = """\
  lipnb drift minilm --dtype bfloat16    what rounding alone does to a model, layer by layer
  lipnb drift smollm2 --dump reference.safetensors          token ids and states, for another program to read
  lipnb drift smollm2 --against mine.safetensors            the states that this program wrote: rounding, or a bug?
  lipnb drift ./before --against ./after --dtype float32    a second checkpoint, or a port of it
"""

DESCRIPTION = """\
Say whether the difference between a model and another computation of it (a port to another framework, a fused kernel,
a lower type) is rounding or a bug, and in which layer.

MODEL is the reference, computed here in float64. Each of its layers is given the *other's* input; what differs after it
is the other's local error. The same layer, computed here in the other's type by several kernels, gives the floor:
what rounding alone does. Rounding is about one floor; a fault stands above it in its own layer. The local errors are
carried to the end by the layers' Jacobians, which tells how much each contributes to the final difference.

MODEL is a name that lipnb knows (minilm, gpt2-mini, smollm2), a name on the Hugging Face hub, or a folder with
config.json and model.safetensors. No code of a model is ever run.

The exit code is 0 for "rounding" and "cannot tell", 1 for "not rounding" or an error, which is said in a sentence.

A verdict and a table are printed; the folder given by --out gets
  report.html    verdict, plots and table; one file, opens offline
  drift.csv      one row for each layer, attention, MLP, the embedding and the logits
  windows.csv, windows.json    the same for each window, and how it was made
A command that is stopped continues where it was when it is given again. The exit code is 1 if it is a bug.
"""

FILE = """\
the file of --dump and --against, in safetensors format (b sequences of n tokens, width d, L layers):
  input_ids          (b, n), integers, special tokens included
  hidden_states.0    (b, n, d): what the first layer receives, positions included
  hidden_states.l    (b, n, d): output of layer l - 1, for l = 1 ... L; hidden_states.L is before the final norm
  attention.l        (b, n, d): what attention of layer l adds to the stream; optional, for l = 0 ... L - 1
  mlp.l              (b, n, d): what the MLP of layer l adds to it; optional; both tell in which half a fault is
  logits             (b, n, vocabulary); optional
All but the ids in one type, the one in which the other program computed. Sequences of one length, without padding: the
reference attends to every token. In Python:
  safetensors.torch.save_file({"input_ids": ids, "hidden_states.0": x, ...}, "mine.safetensors")
The ids of reference.safetensors are there to be read by the other program, so that both see the same text.
"""

READING = """\
how to read the table:
  error, floor     local error and its floor, over what the layer gives
  floors           error over floor: about 1 is rounding, above 2 is not
  attention, MLP   the same for the halves of the layer, where they are known
  leans            sum(e sign(h)) / sum|e|, less that of the floor: rounding leans to no side, cutting off does
  gain             factor by which the error grows from there to the last layer; random: that of a random error
  share            share of the final difference

"""


def add(verbs):
    """Add the verb to the parser."""
    about = "tell rounding from a bug, layer by layer, between a model and another computation of it"
    epilog = f"{FILE}\n{READING}examples:\n{EXAMPLES}"
    verb = verbs.add_parser("drift", help=about, description=DESCRIPTION, epilog=epilog)
    verb.add_argument("model", metavar="MODEL", help="the reference: a name, a folder or a .gguf file, see above")
    verb.add_argument("--dtype", choices=TYPES, help="type of the other (default: that of the file or folder)")
    verb.add_argument(
        "--against",
        metavar="OTHER",
        help="a file of the other's states, see below, or a second model: a folder or a name; without it the model "
        "itself, computed in --dtype",
    )
    verb.add_argument(
        "--dump",
        type=Path,
        metavar="FILE",
        help="write the token ids and the states of MODEL, computed in float64 or --dtype, and compare nothing",
    )
    verb.add_argument(
        "--text",
        default=TEXT,
        metavar="FILE",
        help="a text file (UTF-8), or alice, ag_news, ptb, reactions, python_reference (default); a file of states has "
        "its own",
    )
    verb.add_argument("--length", type=count, default=128, metavar="N", help="tokens of a window (default 128)")
    verb.add_argument("--windows", type=count, default=2, metavar="N", help="windows at random places (default 2)")
    verb.add_argument("--seed", type=int, default=0, metavar="N", help="of the places and of random errors (default 0)")
    verb.add_argument("--worst", action="store_true", help="the largest gain of any error too: minutes")
    verb.add_argument(
        "--out", type=folder_named, metavar="FOLDER", help="default drift-MODEL-DTYPE or drift-MODEL-OTHER"
    )
    verb.set_defaults(run=run)


def run(arguments):
    """Compare, write the report, print the table; 1 if the verdict is a bug."""
    from lipnb.extras import extra

    if arguments.dump is not None and arguments.against is not None:
        raise ValueError("--dump writes the states of MODEL and compares nothing: leave --against out.")
    with extra("scan"):
        from lipscan.drift import terminal
        from lipscan.drift.run import drift, folder_of

    given = {name: getattr(arguments, name) for name in ("length", "windows", "seed")}
    if arguments.dump is not None:
        print(_dumped(arguments, given))
        return 0
    folder = arguments.out or folder_of(arguments.model, arguments.dtype, arguments.against)
    found = drift(
        arguments.model,
        arguments.text,
        dtype=arguments.dtype,
        against=arguments.against,
        worst=arguments.worst,
        output=folder,
        **given,
    )
    terminal.show(found)
    print(f"\nReport: {folder / 'report.html'}")
    return 1 if found.verdict.kind == "bug" else 0


def _dumped(arguments, given):
    """Write the states of the model; returns what was written, in a sentence."""
    from lipscan.drift.files import NORM, dump
    from lipscan.drift.precision import TYPES as KNOWN
    from lipscan.drift.run import windows_of

    model, ids, read = windows_of(arguments.model, arguments.text, **given)
    path = dump(model, ids, arguments.dump, dtype=KNOWN.get(arguments.dtype))
    count, n = ids.shape
    where = NORM.replace(".L", f".{model.layers}")
    return f"{path}: {count} x {n} tokens of {read['text']}, hidden_states.0 to .{model.layers}; {where}."
