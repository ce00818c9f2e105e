"""How the command answers what it does not understand: one sentence, with the word that was likely meant."""

import argparse
from difflib import get_close_matches

__all__ = [
    "Parser",
    "Stopped",
    "Unknown",
    "count",
    "known",
    "layers",
    "lengths",
    "nearest",
    "parameter",
    "tolerance",
    "whole",
]


class Unknown(ValueError):
    """What was asked for by name does not exist: exit code 2."""


class Stopped(KeyboardInterrupt):
    """Stopped by Ctrl-C, with a sentence on what is kept: exit code 130."""


def nearest(word, words):
    """``: did you mean ...?`` with the nearest of `words`, or all of them where none is near."""
    near = get_close_matches(word, words, n=3, cutoff=0.6)
    return f": did you mean {' or '.join(near)}?" if near else f": choose from {', '.join(words)}"


def known(what, asked, names, every=False):
    """Refuse names that do not exist.

    Parameters
    ----------
    what : str
        What the names are of, as "table".
    asked : sequence of str
        Names that were given.
    names : sequence of str
        Names there are.
    every : bool
        Whether all of them are said where one is near, too.

    Raises
    ------
    Unknown
        "there is no table 'x': did you mean ...?"
    """
    for name in asked:
        if name not in names:
            near = nearest(name, names)
            rest = f" There are {', '.join(names)}" if every and near.startswith(": did") else ""
            raise Unknown(f"there is no {what} {name!r}{near}{rest}")


def whole(text):
    """A whole number, as argparse's `type`."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"give a whole number; got {text!r}") from None


def count(text):
    """A whole number from 1 on, as argparse's `type`."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"give a whole number from 1 on; got {text!r}")
    return int(text)


def lengths(text):
    """Comma-separated lengths as a tuple, as argparse's `type`."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = (0,)
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"lengths are whole numbers from 1 on, such as 2,8,32; got {text!r}")
    return found


def layers(text):
    """Layers such as all, 0,3,5 or 0-5, still as text, as argparse's `type`; a model knows how many it has."""
    for part in [] if text.strip() == "all" else text.split(","):
        ends = part.strip().split("-")
        if not (len(ends) <= 2 and all(end.isdecimal() for end in ends) and int(ends[0]) <= int(ends[-1])):
            raise argparse.ArgumentTypeError(f"layers are 'all', numbers or ranges such as 0,3,5 or 0-5; got {text!r}")
    return text


def parameter(text):
    """``NAME=VALUE`` as a pair, the value typed as ``papermill -p`` does, as argparse's `type`.

    Examples
    --------
    >>> [parameter(f"x={value}")[1] for value in ("3", "1e-3", "True", "None", "minilm", "a=b")]
    [3, 0.001, True, None, 'minilm', 'a=b']
    """
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        raise argparse.ArgumentTypeError(f"give a parameter and its value, such as -p layer=3; got {text!r}")
    words = {"True": True, "False": False, "None": None}
    if value in words:
        return name, words[value]
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


def tolerance(text):
    """A relative tolerance from 1e-6 to below 1, as argparse's `type`."""
    try:
        if 1e-6 <= float(text) < 1:
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"a tolerance lies between 1e-6 and 1; got {text!r}")


class Parser(argparse.ArgumentParser):
    """Argument parser with help laid out as it was written, and errors of one sentence.

    Its epilog may be a function that gives the text, called when help is asked for.
    """

    def __init__(self, **options):
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**{"allow_abbrev": False, **options})  # a script must not break when options are added

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
