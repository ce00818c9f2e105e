"""Words on a comparison: keys to the columns of its table, and what was compared with what."""

from typing import Any

COLUMNS = {
    "size": "length (root of the sum of squares over windows, tokens and coordinates) of what the reference gives",
    "error": "local error: length of the other's output less the reference's, both from the other's input",
    "floor": "length of the error that the type alone makes there: median over eager, fused and reordered kernels, and "
    "another batch",
    "floor_low": "smallest floor over kernels and windows",
    "floor_high": "largest floor over kernels and windows",
    "ratio": "error over floor, of the lengths over all tokens, which a few large states decide; the verdict takes it "
    "token by token",
    "token_ratio": "floors: error over floor token by token, median, so that large states of a few tokens do not hide "
    "the others",
    "token_tenth": "the ratio that a tenth of the tokens (at least two) is above: a fault may hit some of them",
    "token_worst": "the largest over tokens: a fault may hit few of them",
    "height": "these three over their thresholds, the largest: above 1 is not rounding",
    "signed": "sum(e sign(h)) / sum|e|: an error that leans to one side adds up over layers, rounding does not",
    "signed_noise": "difference of signed share and that of the floor by chance, with tokens as what is independent",
    "floor_signed": "signed share of the floor",
    "switching": "tokens left out of these because rounding alone may send them to other experts",
    "made": "length of what the error of a half changes in the output of its layer",
    "gain": "factor by which this error grows from there to the last state, to first order",
    "gain_random": "the same for a random error, root mean square",
    "gain_worst": "the same at worst (with --worst)",
    "share": "share of the final difference that comes from there; they add up to 1 where first order holds",
}
HEADINGS = {  # of the terminal and the report: what they mean, and the columns of drift.csv that they are made of
    "error": "local error: what the other makes of its own input, less what the reference makes of that same input; "
    "over the size of the latter (error / size)",
    "floor": "what rounding alone makes there, over the same (floor / size)",
    "floors": "error over floor token by token, the median (token_ratio): about 1 is rounding",
    "tenth of tokens": "the same, which a tenth of the tokens is above (token_tenth)",
    "worst token": "the same for the token where it is largest (token_worst)",
    "leans": "share of the error that leans to one side, sum(e sign(h)) / sum|e|, less that of the floor (signed - "
    "floor_signed), so from -2 to 2: rounding leans to no side, cutting digits off does",
    "gain": "factor by which this error grows from there to the last layer (gain)",
    "random": "the same for a random error (gain_random)",
    "at worst": "the same for the error that grows most (gain_worst, with --worst)",
    "share": "share of the final difference (share)",
}


def lead(about: dict[str, Any]) -> str:
    """Sentence on what was compared with what."""
    against, dtype = about.get("against"), about["dtype"]
    other = f"{against}, by the floor of {dtype}" if against else f"its own run in {dtype}"
    read = f" on {about['text']}" if about.get("text") else ""
    much = f", {about['windows']} x {about['length']} tokens" if "windows" in about else ""
    return f"{about['model']} in float64 against {other}{read}{much}."
