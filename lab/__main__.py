"""Entry point of `python -m lab VERB`, the command that makes the book."""

import sys

from lab.cli import main

if __name__ == "__main__":  # the workers of a pool import this file again
    sys.exit(main())
