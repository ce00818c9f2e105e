"""How the command reads its words, and answers what it does not understand: one sentence, with the likely meaning."""

import argparse
import re
from difflib import get_close_matches
from pathlib import Path

from lipscan.scanning import options

__all__ = ["Parser", "Unknown", "count", "folder_named", "known", "lengths"]


class Unknown(ValueError):
    """What was asked for by name does not exist, or cannot be: exit code 2."""


class Stopped(KeyboardInterrupt):
    """Stopped by Ctrl-C, with a sentence on what is kept: exit code 130."""


def nearest(word, words):
    """``: did you mean ...?`` with the nearest of `words`, or all of them where none is near."""
    near = get_close_matches(word, words, n=3, cutoff=0.6)
    return f": did you mean {' or '.join(near)}?" if near else f": choose from {', '.join(words)}"


def known(what, asked, names, every=False):
    """Refuse names that do not exist, with the nearest one; with `every`, all there are are said too."""
    for name in asked:
        if name not in names:
            near = nearest(name, names)
            rest = f" There are {', '.join(names)}" if every and near.startswith(": did") else ""
            raise Unknown(f"there is no {what} {name!r}{near}{rest}")


def count(text):
    """A whole number from 1 on, as argparse's `type`."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"give a whole number from 1 on; got {text!r}")
    return int(text)


def folder_named(text):
    """The path of a folder, as argparse's `type`; an empty one was the current folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"give the name of a folder; got {text!r}")
    return Path(text)


def lengths(text):
    """Comma-separated lengths as a tuple, as argparse's `type`."""
    try:
        return tuple(options.lengths_of(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parameter(text):
    """``NAME=VALUE`` as a pair, the value read as in the spec of a sweep, as argparse's `type`.

    Examples
    --------
    >>> [parameter(f"x={value}")[1] for value in ("3", "1e-3", "True", "null", "minilm", "a=b", "[1, 2]")]
    [3, 0.001, True, None, 'minilm', 'a=b', [1, 2]]
    """
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        raise argparse.ArgumentTypeError(f"give a parameter and its value, such as -p layer=3; got {text!r}")
    from lipnb.extras import extra

    try:
        with extra("sweeps"):
            from lipscan.sweeps.spec import value_of
    except ModuleNotFoundError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    try:
        return name, value_of(value)
    except ValueError as error:
        quotes = f" (the shell takes one pair away: -p \"{name}='{value}'\")" if "quotes" in str(error) else ""
        raise argparse.ArgumentTypeError(f"{name}: {error}{quotes}; got {value!r}") from None


class Parser(argparse.ArgumentParser):
    """Argument parser with help laid out as it was written, and errors of one sentence.

    Its epilog may be a function that gives the text, called when help is asked for.
    """

    def __init__(self, **options):
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**{"allow_abbrev": False, **options})  # a script must not break when options are added
        self._negative_number_matcher = re.compile(r"-[\d.]")  # "-5,16" is a value too, for its type to refuse

    def format_help(self):
        """The help, as text."""
        if callable(self.epilog):
            self.epilog = self.epilog()
        return super().format_help()

    def error(self, message):
        """Say what was not understood, and where help is; exit code 2."""
        self.exit(2, f"{self.prog}: {message} (`{self.prog} --help`)\n")

    def refuse(self, words):
        """Answer words that no option or argument takes."""
        word = next((word for word in words if word.startswith("-")), words[0]).split("=")[0]
        if word.startswith("-"):
            options = [option for action in self._actions for option in action.option_strings if option[1] == "-"]
            self.error(f"there is no option {word}{nearest(word, options)}")
        self.error(f"{word!r} is one word too many")
