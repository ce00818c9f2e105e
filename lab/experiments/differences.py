"""Differences between the released code and the paper's text, one a line, for the audit."""

import html
import re

from lab.statistics.growth import slope
from lab.statistics.power_laws import power_law

POWER = re.compile(r"\bn\^\(?([-0-9./]*[0-9])\)?")  # n^0.25 or n^(1/4)

# key: (group, what the code does, the effect); file and line are those of commit 60da456, as we read it
DIFFERENCES = {
    "block": (
        "the map",
        "BERT on text: the whole attention block is measured, with residual connection and LayerNorm.",
        "Another map than the one of the theorems. With a LayerNorm of gain 1 all outputs have one norm, so the "
        "released value is 0.",
    ),
    "mask": (
        "the map",
        "BERT as a decoder: the layer is called without its mask, which lives outside of it.",
        "The inputs come from a masked network, the map that is measured is not masked.",
    ),
    "tuple": (
        "the map",
        "BERT as a decoder, adversarial: the inner module returns outputs, keys and values.",
        "All three are pulled back and added.",
    ),
    "heads": (
        "the map",
        "BERT, adversarial: the heads alone, without output projection.",
        "The two rows of Figure 1 show different maps.",
    ),
    "rows": (
        "the map",
        "GPT-2: a head is cut from rows of the fused weights; heads are columns.",
        "The adversarial tokens follow an eigenvector that belongs to no head.",
    ),
    "biases": (
        "the map",
        "Biases are left out of A, and so of the adversarial tokens and of the bound.",
        "The map that is measured has them. In the random GPT-2 they are 0.",
    ),
    "bound": (
        "the map",
        "The bound in the code has no factor sqrt 3 and no output matrices, and uses A x_i alone.",
        "It is no bound in general; it is returned, but drawn nowhere.",
    ),
    "types": (
        "the inputs",
        "GPT-2 is given token types 0.",
        "The network then adds the embedding of token 0 at every position: all tokens share a part.",
    ),
    "dropout": (
        "the inputs",
        "The random GPT-2 stays in training mode.",
        "Dropout of 0.1 in its inputs and, drawn anew at each call, in the map.",
    ),
    "overlap": (
        "the inputs",
        "BERT encoder on Alice: a guard against the end of the text is always true.",
        "Every length starts again at the first token, as those of this page do.",
    ),
    "pieces": (
        "the inputs",
        "The text is tokenised once and then cut.",
        "Only the first window has the token [CLS] in front; windows start within sentences.",
    ),
    "lengths": (
        "the inputs",
        "Lengths 2, 4, ..., 98 (AG_NEWS, encoder: 2, 12, ..., 502; adversarial: 2, 7, ..., 97).",
        "The text says up to 100. A fit hardly depends on it.",
    ),
    "articles": ("the inputs", "AG_NEWS: the first 1,000 articles (encoder: all 7,600).", "Which text is read."),
    "stop": (
        "the loop",
        "The loop stops at an absolute change of the squared value.",
        "Too early where the constant is small. As released, it stops at its first step by chance, with a value "
        "that depends on the start, or nan.",
    ),
    "dropped": (
        "the loop",
        "Random GPT-2: values of at most 0.1 are left out of the figure.",
        "Exactly the values that the first-step stop spoiled.",
    ),
    "start": ("the loop", "One start vector, not seeded on text.", "Nothing, unless the loop stops at its first step."),
    "eigenvectors": (
        "the loop",
        "Eigenvectors of a matrix of rank 64 and width 768, in float32; an eigenvalue counts "
        "as real if its imaginary part is exactly 0.",
        "Rounding decides which zero eigenvalues count.",
    ),
    "root": (
        "the figures",
        "Random GPT-2 on AG_NEWS: a second square root in the figure over the radius.",
        "The vertical axis, and which points pass the threshold.",
    ),
    "constants": (
        "the figures",
        "The curves are typed constants with exponent 1/4 or 1/2; 0.24 is labelled 1/4.",
        "They are not fits.",
    ),
    "radius": (
        "the figures",
        "The radius is the root mean square of the token norms.",
        "The theorems use the largest norm, to the second power.",
    ),
    "missing": ("the figures", "There is no code for Figures 2 and 3.", "They cannot be compared."),
}


def effects_table(effects):
    """The differences with their measured effects, as an HTML table.

    `effects`: for each key of `DIFFERENCES` the measured effect, or the reason why it was not measured.
    """
    if missing := DIFFERENCES.keys() - effects.keys():
        raise ValueError(f"no effect is given for {', '.join(sorted(missing))}: say why nothing was measured.")
    if unknown := effects.keys() - DIFFERENCES.keys():
        raise ValueError(f"there is no difference {', '.join(sorted(unknown))}.")
    lines, last = [], None
    for key, (group, what, changes) in DIFFERENCES.items():
        if group != last:
            lines.append(f'<tr><th colspan="3">{html.escape(group.capitalize())}</th></tr>')
        last = group
        cells = "".join(
            f"<td>{cell}</td>"
            for cell in (f"<b>{html.escape(what)}</b>", html.escape(changes), html.escape(effects[key]))
        )
        lines.append("<tr>" + POWER.sub(r"n<sup>\1</sup>", cells) + "</tr>")
    head = "".join(f"<th>{name}</th>" for name in ("What the code does", "What that changes", "Measured here"))
    return f'<table class="verdicts"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def _rate(rows, column):
    return f"n^{power_law(rows.length, rows[column]).exponent:.2f}"


def _rates(rows):
    return f"defined {_rate(rows, 'lipschitz')}, released {_rate(rows, 'released')}"


def stored_effects(text, layers, worst):
    """Effects that the stored tables determine, one sentence for each; the others have to be measured.

    `text`, `layers`, `worst`: the tables "released-text", "released-layers" and "released-adversarial". Covers only
    some keys of `DIFFERENCES`.
    """
    maps = dict(list(layers.groupby(["windows", "map_masked", "object", "layer"])))
    first, block, apart = (
        maps[key]
        for key in (
            ("restart", False, "heads+output", 0),
            ("restart", False, "block", 0),
            ("apart", False, "heads+output", 0),
        )
    )
    kept, lost, whole = (
        maps["restart", masked, name, 3]
        for masked, name in ((True, "heads+output"), (False, "heads+output"), (False, "block"))
    )
    ours = worst[worst.model == "minilm"].pivot(
        index="length", columns=["layer", "object"], values=["lipschitz", "released"]
    )
    three = ours["released"][3]["heads, keys, values"] / ours["released"][3]["heads"] - 1
    projected = ours["lipschitz"][0]["heads+output"] / ours["lipschitz"][0]["heads"]
    gpt2 = dict(list(worst[worst.model != "minilm"].groupby("cut")))
    drawn = text[text.text == "random"]
    plain, shared, dropped = (
        drawn[(drawn.embedding == embedding) & (drawn.dropout == dropout)]
        for embedding, dropout in (("plain", False), ("token 0 added", False), ("token 0 added", True))
    )
    some = shared[shared.length.isin(dropped.length) & shared.window.isin(dropped.window)]
    loops = [rows[rows.loop_steps > 1] for rows in (dropped, some)]
    hasty, later = text[text.loop_steps == 1], text[(text.loop_steps > 1) & ~text.dropout]
    spread = (later.loop / later.released - 1).abs().max()
    wide = (layers.radius / layers.mean_radius).max()
    low, high = shared.released.min(), shared.released.max()
    law = power_law(shared.length, shared.released)
    # windows are resampled within each length, as for the atlas
    fit, fourth = (
        "{0.slope:.3f} [{0.interval[0]:.3f}, {0.interval[1]:.3f}]".format(slope(rows, "released"))
        for rows in (shared, shared[shared.length.isin(dropped.length)])
    )
    curve = (0.445 * shared.length**0.25 / law(shared.length) - 1).abs().max()
    used = [10 * int(length) for length in sorted(text.length.unique())]
    spoiled = text.loop.isna() | (text.loop <= 0.1)
    return {
        "block": f"MiniLM, first layer: {_rates(first)}; its block: {_rates(block)}.",
        "mask": f"MiniLM, middle layer, masked: {_rates(kept)}; not masked: {_rates(lost)}; block, "
        f"not masked: {_rates(whole)}.",
        "tuple": f"MiniLM, middle layer: the released value changes by {three.iloc[0]:+.0%} at n = {three.index[0]}, "
        f"by {three.iloc[-1]:+.0%} at n = {three.index[-1]}.",
        "heads": f"MiniLM, first layer: the projection multiplies the constant by {projected.min():.2f} to "
        f"{projected.max():.2f}.",
        "rows": f"Random GPT-2, one line through 2 to 97 tokens, rows: {_rates(gpt2['rows'])}; columns: "
        f"{_rates(gpt2['columns'])}. No curve is straight.",
        "types": f"Random GPT-2, with: {_rates(shared)}; without: {_rates(plain)}.",
        "dropout": f"Random GPT-2, few inputs, loop with dropout: {_rate(loops[0], 'loop')}, without: "
        f"{_rate(loops[1], 'loop')}; it takes {loops[0].loop_steps.mean():.0f} steps in place of "
        f"{loops[1].loop_steps.mean():.0f}. Defined, with fixed masks: {_rate(dropped, 'lipschitz')}, "
        f"without: {_rate(some, 'lipschitz')}.",
        "overlap": f"{max(used):,} tokens are read in place of {sum(used):,}. MiniLM, first layer: {_rates(first)}; "
        f"with windows that share nothing: {_rates(apart)}.",
        "lengths": f"Released slope {fit}; on every fourth length alone {fourth}: the curve bends a little.",
        "dropped": f"{spoiled.sum()} of {len(text)} values: {(spoiled & (text.loop_steps == 1)).sum()} of the "
        f"{len(hasty)} that stopped at once, {(spoiled & (text.loop_steps > 1)).sum()} others.",
        "start": f"Past the first step, starts differ by {spread:.0e} at most.",
        "root": f"Values of {low:.2f} to {high:.2f} appear as {low**0.5:.2f} to {high**0.5:.2f}.",
        "constants": f"Random GPT-2: 0.445 n^(1/4) is within {curve:.0%} of the fit to the released values, "
        f"{law.constant:.2f} n^{law.exponent:.3f}.",
        "radius": f"Largest over mean: up to {wide:.2f} on MiniLM; 1.00 in GPT-2, whose tokens come from a LayerNorm.",
    }
