"""Parser of the command line: argument types, and messages that name the likely intention."""

import argparse
import re
from pathlib import Path

from lipscan.scanning import options
from lipscan.scanning.options import nearest


class Unknown(ValueError):
    """A requested name or option does not exist or is impossible: exit code 2."""


class Stopped(KeyboardInterrupt):
    """The command was stopped by Ctrl-C; the message tells what is kept. Exit code 130."""


def known(what, asked, names, every=False):
    """Refuse names that do not exist, with the nearest one; with `every`, list all valid names."""
    for name in asked:
        if name not in names:
            near = nearest(name, names)
            rest = f" There are {', '.join(names)}" if every and near.startswith(": did") else ""
            raise Unknown(f"there is no {what} {name!r}{near}{rest}")


def count(text):
    """A whole number, 1 or more, as argparse's `type`."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"give a whole number, 1 or more; got {text!r}")
    return int(text)


def folder_named(text):
    """Path of a folder, as argparse's `type`; refuses an empty name, which would be the current folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"give the name of a folder; got {text!r}")
    return Path(text)


def lengths(text):
    """Lengths as a tuple, from comma-separated text, as argparse's `type`."""
    try:
        return tuple(options.lengths_of(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parameter(text):
    """Name and value from ``NAME=VALUE``, as argparse's `type`; the value is read as in the spec of a sweep.

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
        quotes = f" (the shell removes one pair of quotes: -p \"{name}='{value}'\")" if "quotes" in str(error) else ""
        raise argparse.ArgumentTypeError(f"{name}: {error}{quotes}; got {value!r}") from None


class Parser(argparse.ArgumentParser):
    """Argument parser with a preformatted help and one-sentence errors.

    Its epilog may be a function that returns the text, called only when the help is printed.
    """

    def __init__(self, **options):
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**{"allow_abbrev": False, **options})  # a script must not break when options are added
        self._negative_number_matcher = re.compile(r"-[\d.]")  # "-5,16" is a value too, for its type to refuse

    def format_help(self):
        """The help as text."""
        if callable(self.epilog):
            self.epilog = self.epilog()
        return super().format_help()

    def error(self, message):
        """Print the error and how to get help, then exit with code 2."""
        self.exit(2, f"{self.prog}: {message} (`{self.prog} --help`)\n")

    def refuse(self, words):
        """Exit with a message about words that no option or argument takes."""
        word = next((word for word in words if word.startswith("-")), words[0]).split("=")[0]
        if word.startswith("-"):
            options = [option for action in self._actions for option in action.option_strings if option[1] == "-"]
            self.error(f"there is no option {word}{nearest(word, options)}")
        self.error(f"{word!r} is one word too many")
