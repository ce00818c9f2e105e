"""`python -m lipnb.cli` is the command `lipnb`."""

import sys

from lipnb.cli import main

sys.exit(main())
