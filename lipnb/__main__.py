"""`python -m lipnb` is `lipnb`."""

import sys

from lipnb.cli import main

sys.exit(main())
