"""The verb `lipnb drift`: where another computation of a model differs from it, and whether rounding explains that."""

import textwrap
from pathlib import Path

from lipscan.cli.words import Unknown, count, folder_named
from lipscan.drift.words import HEADINGS

TEXT = "python_reference"  # ships with Python, so always available
CODES = {"rounding": 0, "bug": 3, "cannot tell": 4}  # exit codes: 1 is an error, 2 a command not understood
OF_TEXT = {"text": TEXT, "length": 128, "windows": 2}  # options that a file of states leaves without a use
TYPES = ("bfloat16", "float16", "float32")

EXAMPLES = """\
  lipnb drift minilm --dtype bfloat16    what rounding alone does to a model, layer by layer
  lipnb drift minilm --dump reference.safetensors   token ids and states for another program to read
  lipnb drift minilm --against mine.safetensors     the states that it wrote: rounding, or a bug?
  lipnb drift ./before --against ./after            a second checkpoint, or a port of it
  lipnb drift drift-minilm-bfloat16                 a finished comparison, shown again
"""

DESCRIPTION = """\
Say whether the difference between a model and another computation of it (a port to another
framework, a fused kernel, a lower type) is rounding or a bug, and in which layer.

MODEL is the reference, computed here in float64. Each of its layers is given the *other's* input;
what differs after it is the other's local error. The same layer, computed here in the other's type
by several kernels, gives the floor: what rounding alone does. Rounding is about one floor; a fault
stands above it in its own layer. The local errors are carried to the end by the layers' Jacobians,
which tells how much each of them contributes to the final difference.

MODEL is a name that lipnb knows (minilm, gpt2-mini, smollm2), a name on the Hugging Face hub, a
folder with config.json and model.safetensors, or the folder of a finished comparison. No code of a
model is ever run. Of transformers these are tried: BERT, RoBERTa, DistilBERT, ALBERT, ModernBERT,
T5's encoder, GPT-2, GPT-NeoX, OPT, BLOOM, MPT, Llama, Mistral, Phi-3, Qwen2, Qwen3, Gemma 1 to 3,
DeepSeek-V3, and mixtures of experts (Mixtral, Qwen3-MoE, gpt-oss). A network that cannot be
compared is refused in a sentence.

A verdict and a table are printed; the folder given by --out gets
  report.html    verdict, plots and table; one file, opens offline
  drift.csv      one row for each layer, attention, MLP, the embedding and the logits
  windows.csv, windows.json    the same for each window, and how it was made
A command that is stopped continues where it was when it is given again; `lipnb status FOLDER` tells
how far it is.

The exit code is 0 for "rounding", 3 for "not rounding", 4 for "cannot tell". As for every verb it is 1
for an error, which is said in a sentence, and 2 for a command that was not understood.
"""

FILE = """\
the file of --dump and --against, in safetensors format (b sequences, n tokens, width d, L layers):
  input_ids          (b, n), integers, special tokens included
  hidden_states.0    (b, n, d): what the first layer receives, positions included
  hidden_states.l    (b, n, d): output of layer l - 1, for l = 1 ... L; the last of them,
                     hidden_states.L, is before the final norm
  attention.l        (b, n, d): what attention of layer l adds to the stream, before the sum;
                     optional, for l = 0 ... L - 1, together with mlp.l
  mlp.l              (b, n, d): what the MLP of layer l adds to it; both tell which half is wrong
  logits             (b, n, vocabulary); optional
All but the ids in one type, the one in which the other program computed: float32, bfloat16 or
float16 (float64 is held against float32). If it computes in a lower type than it writes, say so by
--dtype.
Sequences of one length, without padding: the reference attends to every token. In Python:
  safetensors.torch.save_file({"input_ids": ids, "hidden_states.0": x, ...}, "mine.safetensors")
The ids of reference.safetensors are there to be read by the other program, so that both see the
same text.
"""


def _reading():
    """How to read the table, from the headings that it has."""
    more = {"attention, MLP": "floors of the halves of a layer, where they are known; in the report rows of their own"}
    wide = max(map(len, more)) + 2
    lines = ["how to read the table, in the terminal and in the report; in brackets the columns of drift.csv:"]
    for heading, words in (HEADINGS | more).items():
        indent = " " * (wide + 2)
        lines.append(textwrap.fill(words, 98, initial_indent=f"  {heading:{wide}}", subsequent_indent=indent))
    return "\n".join(lines) + "\n"


def _epilog():
    return f"{FILE}\n{_reading()}\nexamples:\n{EXAMPLES}"


def add(verbs):
    """Add the verb to the parser."""
    about = "tell rounding from a bug, layer by layer, between a model and another computation of it"
    verb = verbs.add_parser("drift", help=about, description=DESCRIPTION, epilog=_epilog)
    verb.add_argument("model", metavar="MODEL", help="the reference: a name, a folder or a .gguf file; see above")
    verb.add_argument(
        "--dtype", choices=TYPES, help="type in which the other computed (default: that of the file or folder)"
    )
    verb.add_argument(
        "--against",
        metavar="OTHER",
        help="what to compare with: a file of states, see below, or a second model, by folder or name (default: the "
        "model itself, computed in --dtype)",
    )
    verb.add_argument(
        "--dump",
        type=Path,
        metavar="FILE",
        help="write the token ids and the states of MODEL, computed in --dtype (default: float64, written in float32), "
        "and compare nothing; a file that holds something else is not replaced",
    )
    verb.add_argument(
        "--text",
        default=TEXT,
        metavar="FILE",
        help="a text file (UTF-8), or alice, ag_news, ptb, reactions, python_reference (default); a file of states has "
        "its own",
    )
    verb.add_argument(
        "--length", type=count, default=OF_TEXT["length"], metavar="N", help="tokens of a window (default 128)"
    )
    verb.add_argument(
        "--windows", type=count, default=OF_TEXT["windows"], metavar="N", help="windows at random places (default 2)"
    )
    verb.add_argument("--seed", type=int, default=0, metavar="N", help="of the places and of random errors (default 0)")
    verb.add_argument("--worst", action="store_true", help="the largest gain of any error too: minutes")
    verb.add_argument(
        "--out",
        type=folder_named,
        metavar="FOLDER",
        help="folder of the results (default drift-MODEL-DTYPE, or drift-MODEL-against-OTHER-DTYPE); a comparison of "
        "another text or other states there is replaced",
    )
    verb.set_defaults(run=run)


def run(arguments):
    """Compare, write the report, print the table; the exit code follows the verdict."""
    from lipnb.extras import extra

    if arguments.dump is not None and arguments.against is not None:
        raise ValueError("--dump writes the states of MODEL and compares nothing: leave --against out.")
    with extra("scan"):
        from lipscan.drift import terminal
        from lipscan.drift.run import drift, folder_of, is_file

    if arguments.against is not None and is_file(arguments.against):
        unread = [f"--{name}" for name, usual in OF_TEXT.items() if getattr(arguments, name) != usual]
        if unread:
            raise ValueError(f"{arguments.against} brings its own tokens: leave {', '.join(unread)} out.")
    given = {name: getattr(arguments, name) for name in ("length", "windows", "seed")}
    if arguments.dump is not None:
        print(_dumped(arguments, given))
        return 0
    found, folder = _stored(arguments), Path(arguments.model)
    if found is None:
        from lipscan import models

        against = arguments.against
        second = against if against is None or is_file(against) else models.load(against)
        folder = arguments.out or folder_of(arguments.model, arguments.dtype, second)
        found = drift(
            arguments.model,
            arguments.text,
            dtype=arguments.dtype,
            against=second,
            worst=arguments.worst,
            output=folder,
            **given,
        )
    terminal.show(found)
    print(f"\nReport: {folder / 'report.html'}")
    return CODES[found.verdict.kind]


def _stored(arguments):
    """The finished comparison in the folder MODEL; None if that is no such folder."""
    from lipscan.drift.run import load, state

    if (Path(arguments.model) / "config.json").is_file() or state(arguments.model) is None:
        return None
    found = load(arguments.model)
    if arguments.against or arguments.dtype or arguments.out or arguments.worst:
        raise Unknown(
            f"{arguments.model} is a comparison, shown as it is: leave --against, --dtype, --out, --worst out"
        )
    if not (Path(arguments.model) / "report.html").is_file():
        found.report(arguments.model)
    return found


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
