"""How fast, and how often wrong: this project's solver against the released method and other peers.

Each script is run as ``python -m lab bench NAME`` from the root of the checkout, teaches itself with ``--help``, and
writes one table, ``bench-NAME``, with `lab.results`. Only ratios of one interleaved run mean anything.
"""

import os

# before torch is imported: spinning threads beside a busy core make small products up to 100 times slower
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

BENCHMARKS = {  # a module here for each, and what its table holds
    "workload": "one workload of the book, our solver and its peers",
    "compare": "solvers and peers in one interleaved run",
    "products": "products with the Jacobian",
    "particles": "many particles in few dimensions",
    "misconvergence": "how often each solver is wrong",
    "near_degenerate": "how often the float32 certificate fails where singular values nearly coincide",
    "long": "long inputs",
    "limit": "how far a solve is from the fewest products at the best rate",
    "nearby": "the bound on the change in a ball, beside bound propagation by auto_LiRPA",
}
