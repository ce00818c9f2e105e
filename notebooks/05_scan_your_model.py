# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Scan your model: read the report
#
# You have a transformer and a text. By what factor can each {term}`attention` layer amplify a small change of its
# input? That factor is the layer's {term}`local Lipschitz constant`. One command measures it in every layer and proves
# an upper bound. This page says which columns to read first, what each means, and what to do next.
#
# ## The command
#
# ```
# lipnb scan minilm --text python_reference --lengths 32
# ```
#
# The model is MiniLM, an encoder of the BERT type; the text is the language reference that Python carries. Instead of
# them, name your model's folder, or a model of a hub, and a file. The command needs the extra `scan`. It reads two
# {term}`windows <window>` of 32 {term}`tokens <token>`, answers in sentences, prints the table below, and leaves a
# folder with `report.html` and all tables. From Python:

# %% tags=["parameters"]
live_model = "minilm"
text = "python_reference"
lengths = [32]  # tokens

# %%
import tempfile
from pathlib import Path

from lipnb import scan

found = scan(
    live_model,
    text,
    lengths=lengths,
    close=False,  # True: each head and token, too
    output=Path(tempfile.mkdtemp(), "scan"),
    progress=False,
)

# %% tags=["hide-input"]
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from myst_nb import glue

from lab import figures, results
from lab.figures.scans import CLOSE_TO, first
from lab.figures.tables import number
from lipnb.models import ARCHITECTURES
from lipscan import scanning
from lipscan.scanning.summary import TITLES, first_window, summarise

figures.house_style()

# %% tags=["hide-input"]
columns = {"certified_over": "proved below, ×", "over_random": "over random, ×", "typical": "typical"}
columns |= {"relative": "relative", "over_shuffled": "over shuffled, ×"}
headings = {"layer": "layer", "lipschitz": "constant"} | columns
roughest = found.summary.lipschitz.idxmax()
printed = found.summary.assign(certified_over=np.ceil(100 * found.summary.certified_over) / 100)  # upward
figures.table(printed, names=headings, digits=3, bold=printed.index == roughest)

# %% tags=["remove-input"]
roughest = found.summary.loc[roughest]
at = found.table[(found.table.layer == roughest.layer) & (found.table.length == roughest.length)]
proved = at[at.certified.notna()].iloc[0]
glue("live_layer", int(roughest.layer), display=False)
glue("live_constant", float(proved.lipschitz), display=False)
glue("live_over", float(np.ceil(100 * proved.certified / proved.lipschitz) / 100), display=False)
glue("live_bound", float(np.ceil(10 * proved.certified) / 10), display=False)
glue("live_usual", float(roughest.lipschitz / roughest.typical), display=False)
glue("live_random", float(roughest.over_random), display=False)
glue("families", len(ARCHITECTURES), display=False)

# %% [markdown]
# ## The columns, in the order to read them
#
# Read three first: `self-check`, `constant` and `proved below`. The others explain them. (`self-check` and `closest
# formula` stand in the report, not in the table above.)
#
# | column | what it says, and how to read it |
# | --- | --- |
# | `self-check` | `ok` if `lipnb` computes what the network itself computes on these tokens, under the same {term}`mask <mask (causal)>`. A layer that fails is reported and not measured. (Above, all pass.) |
# | `constant` | By what factor the worst small change of the tokens grows, as a mean over the windows. It is measured from below: the true constant is at least as large, up to rounding. |
# | `proved below` | In the first window: the proved upper bound, divided by the constant measured there. The true constant of that window lies between the two. (Do not multiply it by the mean on its left.) |
# | `over random` | The constant, divided by that of random weights of the same shape on the same tokens. Near 1, the shape alone explains it; far above 1, training made the layer rough. |
# | `typical` | By what factor a small change in a random direction grows (root mean square). |
# | `relative` | The {term}`relative constant`, $\Lip_X(f)\, \norm X_F / \norm{f(X)}_F$. Compare layers and models by this column. |
# | `over shuffled` | The constant, divided by that on the same tokens in random order. Near 1, the order matters little. |
# | `closest formula` | The closest bound in closed form, divided by the constant. It is far above 1, because such a bound holds for other inputs, too. |
#
# <!-- typed: an example -->
# **What "proved below × 2.4" means.** The upper bound that we proved at this input, rounding included, is 2.4 times the
# measured constant. The truth is between. In layer {glue:text}`live_layer:d` the factor is
# {glue:text}`live_over:.2f`. It belongs to the first window, which alone has a proof unless you ask for more: there the
# measured constant is {glue:text}`live_constant:.1f`, so the true one lies between that number and
# {glue:text}`live_bound:.1f`. The report and the tables below call this bound *certified* ({doc}`62_certified_bracket`).
#
# <!-- typed: an example -->
# **What "relative" means.** At 20, a change of 1 % of the input can change the output by 20 %, to first order.
#
# Layer {glue:text}`live_layer:d` is the roughest here. Its constant is {glue:text}`live_random:.0f` times that of random
# weights, so training made it rough. Its worst change grows {glue:text}`live_usual:.0f` times as much as a random one:
# most small errors do far less than the constant allows.
#
# ## What to do next
#
# | your model | what to do |
# | --- | --- |
# | a decoder, such as a Llama | Measure at the lengths that you use, `--lengths 32,128,512`, since the constant may grow with the length ({doc}`41_real_text`). The mask is part of the map. With rotary positions, read *three terms, rotary* (value, key and query bounded one by one) in place of the published bounds, which are not stated for them ({doc}`33_rotary_positions`). |
# | an encoder | Look at `[CLS]`: the report shows which token moves the others most. `--no-special` scans without special tokens. |
# | a vision model | Give pictures, `--text FOLDER`. Tokens are patches, so there is no shuffled baseline. |
# | a model before and after a change | `lipnb scan BEFORE --against AFTER` compares layer by layer. |
#
# If a layer is much rougher than with random weights, look at its heads in the report. (In every layer of SmolLM2 the
# roughest head has at most {glue:text}`head_spread:.1f` times the median constant of its heads.) If a bound is missing,
# the report gives the reason; at long windows it costs more operations than `--upper-work` allows.
#
# :::{dropdown} Which models it reads
# The scan knows {glue:text}`families:d` model types in closed form. For any other language model it tries their layouts,
# by the names and shapes of the tensors. It keeps such a closed form only if the network's own modules agree with it to
# rounding, in every layer, and the report says that the form was found by trial. This works for Qwen3-MoE, gpt-oss,
# OLMo 3 and Cohere 2. Attention that fits no layout, such as attention with gates or with keys of low rank, is measured
# by automatic differentiation. In a hybrid, such as Jamba, LFM2 or Qwen3-Next, only layers with attention are measured,
# and the scan names the others. Decoders that read in both directions are measured without a mask: EmbeddingGemma, and
# embedding models built on Llama or Qwen2, if their `config.json` says `"is_causal": false` or the call from Python says
# `masked=False`.
# :::
#
# ## Two larger models
#
# These scans were made with the same command and stored: SmolLM2, a small Llama, on *Alice*, and DINOv2, a vision
# transformer, on two photographs that Python packages ship.

# %% tags=["hide-input"]
models = ["smollm2", "dinov2-small", "minilm", "gpt2-mini", "stories260k"]
large = models[:2]
stored = {name: results.load(f"scan-{name}") for name in models}
made = {name: results.provenance(f"scan-{name}")["settings"] for name in models}
whole = {name: results.load(f"scan-{name}-whole") for name in models}
heads = {name: results.load(f"scan-{name}-heads") for name in large}
shown = {}
for name, each in stored.items():
    summary = summarise(each)
    length = min(summary.length.unique(), key=lambda n: abs(n - CLOSE_TO))
    shown[name] = summary[summary.length == length]

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-05-layers", "caption": "Each layer at about 128 tokens, in the first window or picture; short bars span both. The true constant lies in the shaded band. The certified bound is nearer to the measured constant than any bound in closed form, in every layer."}, "image": {"alt": "Two panels, SmolLM2 above and DINOv2 below, of bounds by layer on a logarithmic scale. The measured constants lie lowest, with a dashed certified bound a little above; the bounds in closed form lie higher, by factors of tens to thousands."}}
figures.scans.layers(*(stored[name] for name in large))
plt.show()

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-05-baselines", "caption": "The constants of the first window or picture against their baselines. In SmolLM2 the trained weights make them large: random weights give about one, and another order of the same tokens changes little. Pictures have no shuffled baseline."}, "image": {"alt": "Two panels, SmolLM2 above and DINOv2 below, of the constant by layer. With trained weights it lies above that of random weights; for SmolLM2 the curve of shuffled text follows that of the text."}}
figures.scans.baselines(*(stored[name] for name in large))
plt.show()

# %% [markdown]
# ## Five models side by side
#
# MiniLM, gpt2-mini (trained for this book) and stories260K (of the Llama type, trained on children's stories by
# A. Karpathy) read Python's language reference.

# %% tags=["hide-input"]
names = {key: TITLES[key] for key in ("yudin", "spread", "general", "rotary_terms", "rotary_upper")}
columns = {}
for name, rows in shown.items():
    ends = whole[name].set_index("part").lipschitz
    columns[name] = [
        f"{len(rows)} layers, {rows.length.iloc[0]} tokens",
        f"{number(rows.lipschitz.min(), 3)} to {number(rows.lipschitz.max(), 3)}",
        f"{number(rows.high.max(), 3)} (layer {rows.layer[rows.high.idxmax()]})",
        f"{number(rows.relative.min(), 2)} to {number(rows.relative.max(), 2)}",
        f"× {number(10 ** np.log10(rows.over_random).mean(), 2)}",
        f"× {number(rows.certified_over.max(), 2)}",
        *(f"× {number(10 ** rows[f'over_{key}'].mean(), 2)}" if f"over_{key}" in rows else None for key in names),
        number(ends.hidden, 3),
        number(ends.get("layers", ends.hidden), 3),  # the same where no norm follows
        number(ends.layer.prod(), 2),
    ]
said = ["read", "constants, mean of two windows", "largest constant, single window"]
said += ["relative constants, mean of two windows", "over random weights, first window"]
said += ["certified bound, largest factor", *names.values(), "network to its last hidden states"]
said += ["all its layers, without the final norm", "product of its layers, likewise"]
beside = pd.DataFrame(columns).assign(what=said)
headings = {"what": "what"} | {name: f"{name} ({made[name]['architecture']})" for name in models}
figures.table(beside, names=headings, digits=2, bold=beside.what == "certified bound, largest factor")

# %% [markdown]
# Rows of bounds say how many times too high a bound is: the bold row has the largest factor, the others a geometric mean
# over layers, as the row on random weights. A dash marks a bound that is not stated for such layers. The bound of
# {cite:t}`yudin2025attention` uses the {term}`attention matrix` at the input; our form of Theorem C.3 of
# {cite:t}`castin2024smooth` ({prf:ref}`spread-upper`) uses how far apart the tokens lie. Every bound in closed form is
# at least {glue:text}`closed_low:.0f` times too high on average; the certified bound is at most
# {glue:text}`certified_high:.1f` times too high in every layer and window where it was computed.
#
# The last three rows are about the network at the shortest length. Networks are often bounded by the product of the
# constants of their layers. The layers one after another have a constant that is at least
# {glue:text}`product_least:,.0f` times smaller, because they do not amplify the same change.

# %% tags=["hide-input"]
ends = [each.set_index("part").lipschitz for each in whole.values()]
glue("product_least", float(min(one.layer.prod() // one.get("layers", one.hidden) for one in ends)), display=False)
rows = pd.concat([each.assign(model=name) for name, each in stored.items()])
logs = rows.filter(like="log10_").assign(log10_certified=np.log10(rows.certified))
logs = logs.sub(np.log10(rows.lipschitz), axis=0).rename(columns=lambda name: name.removeprefix("log10_"))
glue("certified_high", float(10 ** logs.certified.max()), display=False)
closed = min(each[f"over_{key}"].mean() for each in shown.values() for key in names if f"over_{key}" in each)
glue("closed_low", float(10**closed), display=False)
alone = heads["smollm2"].groupby("layer").lipschitz
glue("head_spread", float((alone.max() / alone.median()).max()), display=False)

# %% tags=["hide-input"]
places = {"minilm": "minilm", "gpt2-mini": "gpt2-mini"}
if (data := os.environ.get("LIPNB_DATA")) and Path(data, "models/stories260K").is_dir():
    places["stories260k"] = Path(data, "models/stories260K")
drift, missing = [], {}
for name, place in places.items():
    short = stored[name][stored[name].length == min(stored[name].length)]
    try:
        again = scanning.remeasure(short, made[name], place, text, rows=2)
        drift.extend(again["lipschitz difference"])
    except (FileNotFoundError, ModuleNotFoundError, ValueError) as error:
        missing[name] = error
        print(f"{name} could not be measured again: {error}")
edition = f"{text}, SHA-256 {found.about['settings']['text_sha256'][:12]}"
again = ", ".join(name for name in places if name not in missing) or "no model"
print(f"{len(drift)} stored rows of {again} measured again ({edition})")

# %% tags=["hide-input", "nbval-check-output"]
assert max(drift, default=0) < 1e-3, "a stored row does not hold"
# another Python carries another text; other weights would be a fault
assert all("another edition" in str(why) for why in missing.values() if isinstance(why, ValueError))
for table in (found.table, *stored.values()):
    assert table.passed.all() and table.converged.all()
    logs = table.filter(like="log10_").sub(np.log10(table.lipschitz), axis=0)
    assert (logs.stack().dropna() > 0).all()  # those of the first window alone are blank elsewhere
    proved = table[table.certified.notna()]
    assert (proved.certified_lower <= proved.lipschitz * (1 + 1e-4)).all()
    assert (proved.certified >= proved.lipschitz * (1 - 1e-4)).all()
for name in large:
    mine, drawn = first_window(stored[name]), first(stored[name])
    assert (mine[mine.length == drawn.length.iloc[0]].lipschitz.to_numpy() == drawn.lipschitz.to_numpy()).all()
    closest = np.log10(drawn.certified) < drawn.filter(like="log10_").min(axis=1)
    assert closest.all(), "the certified bound is the nearest"
assert found.summary.passed.all() and (found.summary.lipschitz >= found.summary.typical).all()
print("✓ every constant lies below every bound that applies; stored rows measured again agree")

# %% tags=["hide-input", "nbval-check-output"]
assert all(table.converged.all() for table in heads.values())
assert len(found.table) == 2 * len(found.summary)
assert all(each.converged.all() for each in whole.values())
assert [name for name, each in whole.items() if "layers" not in [*each.part]] == ["minilm"]
assert all(each[each.part.isin(["layer", "layers"])].composed.all() for each in whole.values())
print("✓ heads and whole networks converged")

# %% [markdown]
# ## What this shows and does not show
#
# - A constant is about the worst small change of one layer's tokens. Replacing a word is not a small change.
# - Two windows of one text, or two pictures, are an illustration, not statistics.
# - The numbers of a whole network are measured<!-- typed: the scan's own rtol -->, to 0.1 %, and not certified.
# - SmolLM2's weights are those of its package, rounded to few bits; the package of the ViT with DINOv2's shapes does
#   not say whether it was trained further. The rows of both are stored and not measured here. For the small models a
#   few rows, drawn at random, are measured again if the model is available.
#
# **One thing to try.** Compare a model before and after your fine-tune: `lipnb scan ./before --against ./after`.
#
# **Next:** {doc}`11_self_attention`.
