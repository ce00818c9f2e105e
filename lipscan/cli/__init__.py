"""The command `lipnb`: each verb is one call of the library.

A verb is a module of this package with a text ``EXAMPLES``, whose first line `lipnb --help` shows, and two functions:
``add(verbs)`` declares its options, ``run(arguments)`` does the work and returns an exit code, or None for success.
Only `run` imports heavy packages, so that the help appears at once.
"""

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module

import lipnb
from lipscan.cli.words import Parser, Unknown
from lipscan.scanning.options import nearest

STOPPED = "stopped; finished work is kept, and the same command continues"
VERBS = ("scan", "drift", "sweep", "status", "fetch")  # in the order of the help; each is lipscan/cli/VERB.py

EPILOG = """examples:
{examples}

`{prog} VERB --help` says what a verb does and which options it has. Exit codes: 0 all is well, 1 something
failed (one message says what and why), 2 the command was not understood, 130 stopped by Ctrl-C;
a verb with further exit codes lists them in its help.
"""


def _parser(prog: str, description: str, package: str, verbs: Sequence[str]):
    """The parser, and the parsers of the verbs by name."""
    modules = [import_module(f"{package}.{verb}") for verb in verbs]
    pairs = [re.split(r" {2,}", module.EXAMPLES.splitlines()[0].strip(), maxsplit=1) for module in modules]
    wide = max(len(command) for command, _ in pairs)
    examples = "\n".join(f"  {command:{wide}}    {about}" for command, about in pairs)
    parser = Parser(prog=prog, epilog=EPILOG.format(examples=examples, prog=prog), description=description)
    parser.add_argument("--version", action="version", version=f"lipnb {lipnb.__version__}")
    choices = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for module in modules:
        module.add(choices)
    return parser, choices.choices


def _arguments(parser, verbs, argv):
    """Parsed arguments; None after printing the help for an empty command line. Exits with a message on bad words."""
    if not argv:
        parser.print_help()
        return None
    if not argv[0].startswith("-") and argv[0] not in verbs:
        parser.error(f"there is no verb {argv[0]!r}{nearest(argv[0], verbs)}")
    arguments, rest = parser.parse_known_args(argv)
    if rest:
        verbs.get(arguments.verb, parser).refuse(rest)
    return arguments if arguments.verb else parser.error("give a verb")


def enter(prog: str, description: str, package: str, verbs: Sequence[str], argv: Sequence[str] | None = None) -> int:
    """Run a command whose `verbs` are modules of `package`, in the order of the help; returns its exit code.

    An expected failure prints one sentence on stderr and returns 1; a name that does not exist returns 2.
    """
    words = sys.argv[1:] if argv is None else argv
    pressed: list[int] = []
    try:
        with _ctrl_c(pressed, last=argv is None):
            parser, choices = _parser(prog, description, package, verbs)
            arguments = _arguments(parser, choices, words)
            return 0 if arguments is None else arguments.run(arguments) or 0
    except KeyboardInterrupt as stop:
        return _stopped(prog, str(stop))
    except Exception as error:
        return _stopped(prog) if pressed else _failed(prog, words[0], error)


@contextmanager
def _ctrl_c(pressed: list[int], last: bool) -> Iterator[None]:
    """Context in which Ctrl-C ends the command wherever it falls, and is noted in a list.

    In a destructor Python would print the interrupt and go on, so it is sent again; an import may turn it into another
    error. With `last` the process ends after the context; Ctrl-C then ends the remainder without a message.
    """
    before, report = signal.getsignal(signal.SIGINT), sys.unraisablehook
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return

    def press(number, frame):
        pressed.append(number)
        raise KeyboardInterrupt

    def lost(found):
        if found.exc_type is not KeyboardInterrupt:
            return report(found)
        main = threading.main_thread().ident
        again = threading.Timer(0.05, lambda: ended or signal.pthread_kill(main, signal.SIGINT))
        again.daemon = True
        return again.start()

    ended: list[bool] = []
    signal.signal(signal.SIGINT, press)
    sys.unraisablehook = lost
    try:
        yield
    finally:
        ended.append(True)
        signal.signal(signal.SIGINT, signal.SIG_DFL if last else before)
        sys.unraisablehook = report


def _stopped(prog, said=""):
    """Print that the command was stopped; returns the exit code."""
    exec("")  # else CPython ends by the signal where this fell into code that it ran from a string
    print(f"{prog}: {said or STOPPED}", file=sys.stderr)
    return 130


def _failed(prog, verb, error):
    """Print an expected failure as one sentence; returns the exit code."""
    if isinstance(error, Unknown):
        print(f"{prog} {verb}: {error} (`{prog} {verb} --help`)", file=sys.stderr)
        return 2
    if isinstance(error, BrokenPipeError):  # the reader, such as `head`, closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if isinstance(error, ValueError | OSError | RuntimeError | ImportError | FloatingPointError):
        print(f"{prog}: {error}", file=sys.stderr)
        return 1
    raise error


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command `lipnb`; see `enter`."""
    return enter(
        "lipnb",
        "How smooth is attention? A local Lipschitz constant is the largest factor by which a layer stretches a small\n"
        "change of its input. It tells which layer blows up a small change and what is proved of that (scan), and\n"
        "whether two runs of a model differ by rounding or by a bug (drift). The first example needs no model hub.",
        "lipscan.cli",
        VERBS,
        argv,
    )
