"""Benchmarks of speed and errors: this project's solver against the released method and other solvers.

Each script runs as ``python -m lab bench NAME`` from the root of the checkout, documents itself with ``--help``, and
writes one table, ``bench-NAME``, with `lab.results`. Only ratios within one interleaved run are meaningful.
"""

import os

# before torch is imported: spinning threads next to a busy core make small products up to 100 times slower
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
