"""Figure of the convergence of solvers."""

from itertools import cycle

import matplotlib.pyplot as plt


def residuals(history, *, title=None):
    """Relative error of solvers against the number of products.

    `history`: columns `method`, `products` and `error` (relative, positive).
    """
    ax = plt.subplots()[1]
    # markers and colours have different periods, so that many methods still look different
    for (method, rows), marker in zip(history.groupby("method", sort=False), cycle("osD^vPX*"), strict=False):
        ax.plot(rows.products, rows.error, marker=marker, label=method)
    ax.set(yscale="log", xlabel="products with the Jacobian and its transpose", ylabel="relative error", title=title)
    ax.legend()
    return ax
