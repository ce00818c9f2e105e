"""Entry point of `python -m lipnb`, the same command as `lipnb`."""

import sys

from lipscan.cli import main

sys.exit(main())
