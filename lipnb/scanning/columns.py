"""What every column of a scan's tables holds, in words: for `lipnb scan --columns` and for the report."""

__all__ = ["COLUMNS", "explained"]

WINDOW = {
    "layer, length, window": "layer from 0, tokens n of the window, number of the window from 0",
    "self_check": "largest difference between our map of the layer and the network's, over its largest entry",
    "leak": "how far earlier outputs move when later tokens change: 0 under a causal mask; blank with one token",
    "passed": "whether both are as they should be; else nothing is measured",
    "radius, mean_radius": "norms of the tokens that are received: largest, and root mean square",
    "lipschitz": "local Lipschitz constant, from below: the largest singular value of the Jacobian",
    "relative": "lipschitz |x| / |f(x)|: the constant for changes in units of their tokens, so that layers compare",
    "residual, converged, steps": "of the singular pair (relative), whether the solver met --rtol, its products",
    "probable": "upper bound on the constant, which fails with probability 10^-6 over the solver's random start",
    "route": "how products with the Jacobian were made",
    "column": "largest column sum of the attention matrix over heads: how much attention one token gets, at most n",
    "certified_lower, certified": "the constant lies between the two, proved, rounding included",
    "random": "lipschitz of random weights of the same shape, same tokens, first window",
    "shuffled": "lipschitz of the same weights on the tokens of the first window in random order",
    "log10_NAME": "logarithm to base 10 of the bound NAME, which the report explains",
}
SUMMARY = {
    "layer, length, windows": "one row for each layer and length, over so many windows",
    "measured": "in how many of them the constant could be measured; what could not is in the json files, under gaps",
    "lipschitz, low, high": "mean, least and largest constant of the windows",
    "passed, converged, route": "whether all windows passed, whether all converged, all routes",
    "relative, column, mean_radius": "means over windows",
    "self_check, leak, residual, radius": "largest over windows",
    "certified, certified_lower": "means of the windows that have them",
    "certified_over": "largest ratio certified / lipschitz, each of the same window; a plain ratio",
    "certified_constant": "mean constant of those windows",
    "over_random, over_shuffled": "lipschitz over that of the baseline, both of the first window; plain ratios",
    "over_NAME": "logarithm to base 10 of bound NAME / lipschitz, mean over windows: 2 means 100 times too high",
}
HEADS = {
    "layer, length, head": "at the first window of the shortest length, each head alone",
    "shares_keys_with": "number of the keys and values that the head reads; heads of one number share them",
    "lipschitz, relative, converged": "as above, of the head with its part of the output matrix",
}
TOKENS = {
    "layer, length, place, token": "at the first window of the shortest length: place from 0, and the token there",
    "written": "the same token as a reader would write it, in quotes: a space or the end of a line is seen",
    "radius": "norm of the token that the layer receives",
    "own": "norm of the block of the Jacobian from the token to its own output",
    "moves, moves_most": "root of the sum of squared norms of the blocks to other outputs; place of the largest",
    "moved, moved_most_by": "the same for the blocks from other tokens to this output",
    "in_steepest, out_steepest": "norm here of the top singular vector of inputs, and of outputs",
}
WHOLE = {
    "part": "layer: with norms, residuals and MLP; layers, hidden, logits: the network from its first layer's input to "
    "what its last layer gives (where a norm follows), to its last hidden states, to its logits",
    "composed": "whether this is the layers one after another and no more: then their constants multiply to a bound",
    "layer, length": "at the first window of the shortest length; layer -1 for the network",
    "lipschitz, relative, residual, converged, steps": "as above, by automatic differentiation, to 0.1 %",
}
COLUMNS = {"scan.csv": WINDOW, "summary.csv": SUMMARY, "heads.csv": HEADS, "tokens.csv": TOKENS, "whole.csv": WHOLE}


def explained() -> str:
    """All columns of all tables, one a line or two.

    Examples
    --------
    >>> "largest singular value of the Jacobian" in explained()
    True
    """
    lines: list[str] = []
    for file, columns in COLUMNS.items():
        lines += ["", file] if lines else [file]
        lines += [f"  {names}\n      {words}" for names, words in columns.items()]
    return "\n".join(lines)
