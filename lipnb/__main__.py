"""`python -m lipnb` is `lipnb`."""

import sys

from lipscan.cli import main

sys.exit(main())
