"""The command `python -m lab`: each verb is a module of this package, as for the command `lipnb`."""

from lipscan.cli import enter

__all__ = ["main"]

# in the order of the help; each is lab/cli/VERB.py
VERBS = ("tables", "cases", "figures", "train", "verify", "bench", "pages")


def main(argv=None):
    """Entry point; see `lipscan.cli.enter`."""
    return enter(
        "python -m lab",
        "Make the book: its tables, figures, models, checks, timings and pages.",
        "lab.cli",
        VERBS,
        argv,
    )
