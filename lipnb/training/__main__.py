"""`python -m lipnb.training`: train gpt2-mini (`make model`)."""

import argparse
import sys
from pathlib import Path

from lipnb import models
from lipnb.training.gpt2_mini import STEPS, make_gpt2_mini

EXAMPLES = """examples:
  python -m lipnb.training                              train it where it is not there yet (an hour on two cores)
  python -m lipnb.training --again --seed 1             train it anew from other weights
  python -m lipnb.training --steps 20 --folder trial    a trial of a minute, elsewhere

A run that is stopped, even by kill -9, continues where it was when the same command is given again.
"""


def main(argv=None):
    """Train, unless the checkpoint is there; an expected failure is one sentence on stderr and exit code 1."""
    parser = argparse.ArgumentParser(prog="python -m lipnb.training", epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description="Train gpt2-mini, a small GPT-2, on NLTK's Gutenberg texts (set "
                                     "NLTK_DATA), or without them on the text that Python carries.")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"training steps (default {STEPS})")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and windows (default 0)")
    parser.add_argument("--folder", help="where the checkpoint goes (default: where load('gpt2-mini') looks)")
    parser.add_argument("--again", action="store_true", help="train anew even where the checkpoint is there")
    arguments = parser.parse_args(argv)
    folder = arguments.folder or models.mini_folder()
    try:
        if models.holds_model(folder) and not arguments.again:
            print("gpt2-mini is there already (--again trains it anew)")
            return 0
        table = f"{Path(folder).name}-training"
        folder = make_gpt2_mini(steps=arguments.steps, seed=arguments.seed, folder=folder, table=table)
        print((folder / "README.md").read_text())
    except (ValueError, OSError, RuntimeError, FloatingPointError) as error:
        print(f"lipnb: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lipnb: stopped; the same command continues from the last evaluation", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
