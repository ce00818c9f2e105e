"""The verb `python -m lab train`: train gpt2-mini (`make model`)."""

import os
from pathlib import Path

from lipscan.cli.words import count

EXAMPLES = """\
  python -m lab train                              train gpt2-mini if it is missing (an hour on two cores)
  python -m lab train --again --seed 1             train it again from other weights
  python -m lab train --steps 20 --folder trial    a trial of some minutes, elsewhere

A run that is stopped, even by kill -9, continues where it was when the same command is given again.
"""


def add(verbs):
    """Add the verb to the parser."""
    verb = verbs.add_parser(
        "train",
        help="train gpt2-mini, the small GPT-2 of data/models",
        epilog=f"examples:\n{EXAMPLES}",
        description="Train gpt2-mini, a small GPT-2, on NLTK's Gutenberg texts (set NLTK_DATA),\n"
        "or without them on the text that Python carries.",
    )
    verb.add_argument("--steps", type=count, help="training steps (default: as for the checkpoint in data/models)")
    verb.add_argument("--seed", type=int, default=0, help="seed of weights and windows (default 0)")
    verb.add_argument("--folder", help="where the checkpoint and its table go (default: where load('gpt2-mini') looks)")
    verb.add_argument("--again", action="store_true", help="train again even if the checkpoint exists")
    verb.set_defaults(run=run)


def run(arguments):
    """Train, unless the checkpoint exists."""
    from lab.training.gpt2_mini import STEPS, make_gpt2_mini
    from lipscan import models

    folder = arguments.folder or models.mini_folder()
    if arguments.folder:  # a trial is not a result: its table goes with it
        os.environ.setdefault("LIPNB_RESULTS", str(Path(arguments.folder) / "training"))
    if models.holds_model(folder) and not arguments.again:
        return print("gpt2-mini is there already (--again trains it anew)")
    steps = STEPS if arguments.steps is None else arguments.steps
    folder = make_gpt2_mini(steps=steps, seed=arguments.seed, folder=folder, table=f"{Path(folder).name}-training")
    return print((folder / "README.md").read_text())
