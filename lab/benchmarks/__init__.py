"""How fast, and how often wrong: this project's solver against the released method and other peers.

Each script is run as ``python -m lab bench NAME`` from the root of the checkout, teaches itself with ``--help``, and
writes one table, ``bench-NAME``, with `lab.results`. Only ratios of one interleaved run mean anything.
"""

import os

# before torch is imported: spinning threads beside a busy core make small products up to 100 times slower
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
