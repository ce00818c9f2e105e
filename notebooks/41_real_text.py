# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Growth on real text (Figure 1)
#
# Does the {term}`local Lipschitz constant` of {term}`attention` on text grow like $n^{1/4}$ with the number $n$ of
# {term}`tokens <token>`? **On average, yes; as a law, no; and the released code, as we read it, measures something
# else.** Over seven attention maps of six trained models, each on its first input, the mean exponent is
# {glue:text}`quarter-mean:.2f`. Single layers have exponents from {glue:text}`quarter-least:.2f` to
# {glue:text}`quarter-most:.2f`.

# %% tags=["parameters", "hide-input"]
claimed_exponent = 0.25
texts = ["alice", "python_reference"]  # for the live checks, best first
rows_to_check = 6
seed = 0

# %% tags=["hide-input"]
import json
import tomllib
from importlib.resources import files

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from myst_nb import glue
from scipy import stats

from lab import figures, ledger, results
from lab.experiments import atlas, positions
from lab.experiments.loading import edition
from lab.statistics import layer_growth
from lab.statistics.closeness import all_counts, averages
from lab.statistics.growth import TOLERANCE, slope
from lab.statistics.power_laws import power_law
from lipnb import corpora, local_lipschitz, models

# %% tags=["hide-input"]
figures.house_style()
every_length = layer_growth.stored()
table = layer_growth.main_range(every_length)
rates = layer_growth.rates(table)
first_texts = table.groupby("map").corpus.first()
on_first = rates[rates.corpus == rates["map"].map(first_texts)]
trained = on_first[on_first.case == "as read"].copy()

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-41-atlas", "caption": "Slope of the constant against the number of tokens in log-log axes, layer by layer from the first (left) to the last of each model, on Alice (DINOv2: a picture, ALBERT: chemical reactions), up to 512 tokens, MiniLM up to 128. *As read* is the trained model, with 95 % intervals over windows. The dots lie around 1/4 and not on it. Most of the growth comes with training; most of it does not need the order of the tokens."}, "image": {"alt": "Two rows of models with one mark for each attention layer, in columns by model, at the height of its slope. Full dots of the trained models are scattered from zero to above one half; triangles of shuffled text lie on or next to most of them, and far below those of ALBERT; hollow squares of random weights lie in a row close to zero."}}
drawn = figures.points(figures.atlas.slopes(on_first, claimed_exponent))
plt.show()

# %% [markdown]
# ## The claim
#
# {bdg-info}`released code` {ref}`what is this? <badges>`
#
# :::{prf:observation} The claim {cite}`castin2024smooth`, section 5 and Figure 1
# :label: quarter-power
#
# On text, the local Lipschitz constant of the attention layers of BERT (encoder, and masked as a decoder) and of a
# randomly initialised GPT-2 "grows significantly with the sequence length, in all considered cases, independently of
# the dataset, the depth of the attention layer, and of whether self-attention is masked or not. The observed growth
# rate is close to" $n^{1/4}$. (The text that we have lacks its formulas; this one is from the curves in the released
# code.)
# :::
#
# *As defined* means $\norm{D_X f}_2$ of {term}`multi-head attention <attention head>` with its output projection,
# without residual connection and {term}`layer normalisation`.
#
# ## What was measured
#
# The weights of BERT are not available to us. We used MiniLM, which is built like BERT, and five other trained models:

# %% tags=["hide-input"]
own = every_length[(every_length.case == "as read") | (every_length.model == "gpt2")]
windows = own.groupby(["map", "corpus", "length"]).window.nunique().groupby("map").agg(["min", "max"])
summary = layer_growth.summary(rates, claimed_exponent).set_index("map")
shown = summary.copy()
shown["texts"] = own.groupby("map", sort=False).corpus.agg(lambda names: ", ".join(dict.fromkeys(names)))
shown["texts"] = shown.texts.replace({"alice": "Alice", "ag_news": "AG News", "_": " "}, regex=True)
shown["tokens"] = [f"{row.shortest} to {row.longest}" for row in summary.itertuples()]
windows = windows.loc[summary.index].to_numpy()
shown["windows"] = [f"{low} to {high}" if low < high else f"{low}" for low, high in windows]
shown["range"] = [f"{row.smallest:.2f} to {row.largest:.2f}".replace("-", "−") for row in summary.itertuples()]
shown["mean"] = trained.groupby("map").slope.mean().map("{:.2f}".format).reindex(shown.index, fill_value="–")
controls = summary[["shuffled", "random"]].map("{:.2f}".format).replace({"-0.00": "0.00", "nan": "–"})
shown["controls"] = controls.agg(", ".join, axis=1)
shown = shown.reset_index()
shown["map"] += " (" + shown.layers.astype(str) + ")"
headings = {"map": "map (layers)", "texts": "texts or pictures", "tokens": "tokens, main range"}
headings |= {"windows": "windows a length", "range": "slopes of layers", "mean": "mean slope"}
headings |= {"controls": "median: shuffled, random weights"}
figures.table(shown, names=headings)

# %% [markdown]
# At each length the {term}`windows <window>` of a text lie at random places, without overlap, and are drawn again for
# every length. They carry the special tokens of their model. So an interval says how well a slope is known *for that
# text*. (Windows of DINOv2 are crops of one picture: its intervals say less.) MiniLM was trained on at most 128 tokens, so
# its main range ends there. SmolLM2 is in 4 bits, as shipped. Choose a model and a layer:

# %% mystnb={"figure": {"name": "fig-41-movable", "caption": "The constants of one layer, a dot for each window, and the line of the fitted slope; log-log axes, one scale for all. All lengths are fitted. Where this page is printed, it shows the first layer of MiniLM."}, "image": {"alt": "A dot for each window, the local Lipschitz constant against the number of tokens in log-log axes, and a line with the fitted slope, for one model and one layer at a time."}}
figures.movable.growth(own[(own.corpus == own["map"].map(first_texts)) & (own.model != "gpt2")])

# %% [markdown]
# ## No law for layers, and the best single exponent there is
#
# How far are the slopes from an exponent that one could claim?

# %% tags=["hide-input"]
counts = all_counts()
count = counts.set_index("key")
single = {"0, no growth": 0.0, "1/4, as claimed": 0.25, "0.27": 0.27, "1/2, the general bound": 0.5}
of_maps = trained.groupby("map", sort=False).slope
apart = pd.DataFrame({"exponent": list(single)})
apart["layers"] = [(trained.slope - e).abs().mean() for e in single.values()]
apart["maps"] = [of_maps.apply(lambda slopes, e=e: (slopes - e).abs().mean()).mean() for e in single.values()]
headings = {"exponent": "exponent e", "layers": f"mean |slope − e|, {len(trained)} layers"}
headings |= {"maps": f"the same, each of {of_maps.ngroups} maps counted once"}
figures.table(apart, names=headings, bold=apart.exponent.str.startswith("1/4"))

# %% [markdown]
# **1/4 is about the best single exponent there is.** The smallest mean distance from the {glue:text}`growth-layers:.0f`
# layers is {glue:text}`quarter-best:.3f`, and that of 1/4 is larger by {glue:text}`quarter-loss:.3f`. **It is not a law
# for layers.** Within one model slopes differ by up to {glue:text}`growth-depth:.2f`, and {glue:text}`growth-bent:.0f` of
# the curves are bent or irregular beyond the noise of their windows. Nearly all layers grow: {glue:text}`growth-rising:.0f`
# intervals lie above 0. On all texts and pictures of the main range single layers have slopes from
# {glue:text}`quarter-least-any:.2f` to {glue:text}`quarter-most-any:.2f`.
#
# From 8 tokens up, the mean exponent is between {glue:text}`quarter-low:.2f` and {glue:text}`quarter-high:.2f`, whatever
# is averaged; where only long windows count, it is smaller. If the {glue:text}`growth-models:.0f` models were a sample,
# which they are not, the 95 % interval of their mean would be {glue:text}`quarter-from:.2f` to
# {glue:text}`quarter-to:.2f`. This agrees with 1/4 within a wide error, and does not confirm it.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the mean exponents over other choices of layers and lengths", "code_prompt_hide": "Hide the mean exponents"}
means = averages()
figures.table(means, names={"over": "mean over", "mean": "mean exponent"}, digits=2)

# %% [markdown]
# (all-counts)=
# ## All counts
#
# A layer is *near* if its slope is within {glue:text}`growth-closeness:.1f` of 1/4, a tolerance of ours. In brackets are
# the middle 95 % of the counts over windows drawn again, too narrow where a length has few windows. The next column counts whole 95 % intervals: *inside* the band $1/4 \pm 0.1$, *outside* it, or *undecided*. The
# last column counts the {term}`released quantity` instead of the constant. *Attention alone* is the map of the claim. The
# *sub-layer* adds the residual connection and the norm: on BERT the released code measures that.

# %% tags=["hide-input"]
shown = counts.sort_values("map", kind="stable")
shown["of"] = [f"{row.layers} ({row.weights})" for row in shown.itertuples()]
shown["close"] = [f"{row.near}\u00a0[{row.near_low},\u00a0{row.near_high}]" for row in shown.itertuples()]
shown["where"] = shown[["inside", "outside", "undecided"]].astype(str).agg(" / ".join, axis=1)
shown["code"] = [f"{row.released}\u00a0[{row.released_low},\u00a0{row.released_high}]" for row in shown.itertuples()]
known = ", with and without a mask|, chosen and thresholds set beforehand"  # said below
shown["inputs"] = shown.inputs.str.replace(known, "", regex=True)
headings = {"map": "map", "inputs": "inputs", "tokens": "tokens", "of": "layers (different weights)"}
headings |= {"close": "near", "where": "inside / outside / undecided", "code": "released: near"}
few = [
    "all-main",
    "paper-all",
    "minilm-alice-128",
    "minilm-ag_news-128",
    "others-main",
    "random-gpt2",
    "last-512",
    "first-512",
]
main_counts = shown.set_index("key").loc[few].reset_index()
figures.table(main_counts, names=headings, bold=main_counts.key == "all-main")

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show all counts", "code_prompt_hide": "Hide all counts"}
figures.table(shown[~shown.key.isin(few)], names=headings)

# %% [markdown]
# How to read it:
#
# - **{glue:text}`growth-layers:.0f` layers are not {glue:text}`growth-layers:.0f` draws.** They have
#   {glue:text}`growth-weights:.0f` different weights, of {glue:text}`growth-models:.0f` models. MiniLM counts with and
#   without a {term}`mask`, and was trained without; the depths of ALBERT share their attention. The
#   {glue:text}`counts-last:.0f` sub-layers with the norm last have {glue:text}`counts-last-weights:.0f` different
#   weights.
# - **Range and text matter.** On AG News, a text of the paper, {glue:text}`minilm_news_near:.0f` of the
#   {glue:text}`minilm_layers:.0f` layers of MiniLM are near up to 128 tokens; {glue:text}`counts-edge:.0f` of the others
#   miss by less than {glue:text}`counts-edge-by:.3f`. Up to 512 tokens {glue:text}`counts-news-wide:.0f` are near, and
#   on Python's reference and on *Alice* all. *Alice* owes this in part to a jump: the slope of layer 0 is
#   {glue:text}`growth-short:.2f` up to 128 tokens and {glue:text}`growth-all:.2f` up to 512 ({doc}`43_why_it_grows`).
# - **What the code measures on BERT.** Of the sub-layers with the norm last, the constant is near in
#   {glue:text}`counts-last-128:.0f` up to 128 tokens and the released quantity in
#   {glue:text}`counts-last-released-128:.0f`. Up to 512 tokens they are {glue:text}`counts-last-512:.0f` and
#   {glue:text}`counts-last-released-512:.0f`.
# - **The paper's lengths** are 2 to 98 tokens, for the encoder BERT on AG News 2 to 502. Ours begin at 4, with special tokens. From 4
#   to 98 tokens {glue:text}`counts-paper-alice:.0f` layers of MiniLM are near on *Alice*, and
#   {glue:text}`counts-paper-news:.0f` on AG News.
#
# ## Two models that nobody had looked at
#
# multilingual-e5-small (12 layers) and paraphrase-MiniLM-L3-v2 (3) are built like BERT. Our thresholds and expectations
# were committed before their tables were made (`lab/experiments/unseen.toml`, `cd0ae3b2`). We knew the counts of a
# referee's first look at the same models; they are in brackets below.

# %% tags=["hide-input"]
expected = tomllib.loads((files("lab.experiments") / "unseen.toml").read_text(encoding="utf-8"))["expected"]
lines, found = [], {}
for model_name in ("e5-small", "minilm-l3"):
    for what, part in (("attention alone", ""), ("sub-layer", "sub-")):
        both_texts = count.loc[[f"{part}{model_name}-{corpus}" for corpus in ("alice", "ag_news")]]
        found[model_name, what] = both_texts[["near", "layers"]].sum()
        line = {"what": f"{model_name}, {what}", "expected": expected[f"{model_name}, {what}"]}
        each = ", ".join(map(str, both_texts.near))
        lines.append(line | {"found": "{0.near} of {0.layers}".format(found[model_name, what]) + f" ({each})"})
unseen = layer_growth.rates(layer_growth.stored("unseen-atlas-"), along=())
cases = unseen[unseen.corpus == "alice"].pivot(index=["map", "layer"], columns="case", values="slope")
moved_unseen = (cases.shuffled - cases["as read"]).abs()
lines.append({"what": "shuffled tokens", "expected": "most layers change by less than 0.1"})
lines[-1]["found"] = f"{(moved_unseen < 0.1).sum()} of {len(cases)} do"
lines.append({"what": "random weights", "expected": "slopes below 0.1"})
lines[-1]["found"] = f"{(cases['random weights'] < 0.1).sum()} of {len(cases)} are"

# %% tags=["hide-input"]
of_e5 = unseen[(unseen["map"] == "e5-small") & (unseen.case == "as read")].slope
beyond_band = (of_e5 - claimed_exponent).abs() - layer_growth.CLOSE
said_unseen = {"median": of_e5.median(), "layers": len(of_e5), "edge": beyond_band.between(0, 0.02).sum()}
said_unseen |= count.loc[["e5-small-alice", "e5-small-ag_news"], ["inside", "outside"]].sum().to_dict()
for name, value in said_unseen.items():
    glue(f"unseen-{name}", float(value), display=False)
for name, what in {"alone": "attention alone", "sub": "sub-layer"}.items():
    glue(f"unseen-{name}", float(found["e5-small", what].near), display=False)
headings = {"what": "model and map", "expected": "near, as expected (first look)"}
figures.table(pd.DataFrame(lines), names=headings | {"found": "found (Alice, AG News)"})

# %% [markdown]
# Attention alone is steeper than 1/4 in e5-small: its median slope is {glue:text}`unseen-median:.2f`. By the rule set
# beforehand the claim fails there: {glue:text}`unseen-alone:.0f` of {glue:text}`unseen-layers:.0f` cases are near. The
# tolerance matters, since {glue:text}`unseen-edge:.0f` of the others miss the band by less than 0.02. By intervals
# {glue:text}`unseen-inside:.0f` cases are inside, {glue:text}`unseen-outside:.0f` outside, and the rest undecided. But
# {glue:text}`unseen-sub:.0f` of the cases of its sub-layers are near: there the constant, too, has the paper's rate.
#
# ## As defined, and as released
#
# The released code reports $\norm{J^\top f(X)}_F^{1/2}$ with $J = D_X f$ ({doc}`46_released_code`). For two tokens the
# {term}`Jacobian` is small enough to write out. Change the layer or the number of tokens and run the cell again.

# %%
corpus = corpora.available(*texts)
model = models.load("minilm")
tokens = models.random_windows(model, corpora.read(corpus), length=4, count=1, seed=seed)
x = model.activations(tokens, layer=0)[0, 1:3]  # the two words between [CLS] and [SEP]
f = model.attention(0)
J = torch.func.jacrev(f)(x).reshape(x.numel(), x.numel())
by_hand = torch.linalg.svdvals(J)[0].item()
print("tokens:", *model.tokenizer.convert_ids_to_tokens(tokens[0, 1:3]))
print(f"as defined, the norm of J: {by_hand:.4f}")
print(f"as released, the root of the norm of J^T f(X): {(J.T @ f(x).flatten()).norm().sqrt().item():.4f}")

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-41-two-quantities", "caption": "Slope of the constant as defined, and of the released quantity, both of attention alone, on the same inputs: one mark for each layer, shaded within 0.1 of 1/4. Most marks lie above the line of equal slopes: the released quantity grows faster than the constant. The constant of the random GPT-2, for which the released figure shows $n^{1/4}$, hardly grows."}, "image": {"alt": "A scatter of layers by two slopes. Those of the random GPT-2 stand in a column near zero on the horizontal axis, at a quarter on the vertical one. Most of MiniLM lie inside the vertical band around one quarter and above the horizontal one. Most layers lie above the diagonal; most of gpt2-mini and some of DINOv2 lie below it."}}
both = on_first[(on_first.case == "as read") | (on_first["map"] == "random GPT-2")]
both_drawn = figures.points(figures.atlas.two_quantities(both, claimed_exponent, layer_growth.CLOSE))
plt.show()

# %% [markdown]
# In MiniLM on *Alice* the constant is near 1/4 in {glue:text}`minilm_constant_near:.0f` of
# {glue:text}`minilm_layers:.0f` layers, and the released quantity in {glue:text}`minilm_released_near:.0f`. In a random
# GPT-2 it is the other way round. In its layer 6 the constant has slopes of {glue:text}`random_seeds_low:.3f` to
# {glue:text}`random_seeds_high:.3f` over {glue:text}`random_seeds:.0f` seeds (8 to 98 tokens of *Alice*), and
# {glue:text}`random-news:.3f` on AG News, probably the text of the published panel. The released quantity has
# {glue:text}`random_seeds_released_low:.2f` to {glue:text}`random_seeds_released_high:.2f`.
#
# ## What matters, and what does not
#
# The paper says that the growth does not depend on the dataset, the depth and the mask. We read this as a claim about the
# *rate*, and count differences above {glue:text}`growth-tolerance:.2f`, another tolerance of ours:

# %% tags=["hide-input"]
moved = layer_growth.differences(rates, TOLERANCE)
headings = {"changed": "what differs", "pairs": "layers, on each text (depth: models)"}
headings |= {"median": "median difference of the slope", "largest": "largest", "place": "where"}
figures.table(moved, names=headings | {"beyond": f"more than {TOLERANCE}"}, digits=2)

# %% [markdown]
# The mask never changes a slope by more than that. The text does so once, in {glue:text}`growth-text-place`, a model of
# children's stories that reads news here. Depth matters, and so does training.
#
# ## Faster than $\sqrt n$? One layer of gpt2-mini
#
# {bdg-success}`text of the paper` {ref}`what is this? <badges>`
#
# :::{prf:observation} The claim {cite}`castin2024smooth`, section E.2 and Figures 4 to 6
# :label: position-norms
#
# In the trained GPT-2 on text, the growth rate of the local Lipschitz constant can be faster than $\sqrt n$. The reason
# given: learned positions make the norm of the tokens depend on $n$ ("after going through LayerNorm").
# :::
#
# Of GPT-2 itself we have attention, norms and positions only, so it cannot read. We measured gpt2-mini, a small network
# of its kind ({glue:text}`positions-parameters:,.0f` parameters, one checkpoint; on held-out text it loses
# {glue:text}`positions-loss:.2f` nats a token, smoothed 4-grams {glue:text}`positions-ngram:.2f`), at windows from random
# places.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the slopes of layers 3 and 4 by octaves, with 95 % intervals", "code_prompt_hide": "Hide the slopes by octaves"}
of_mini = table[(table["map"] == "gpt2-mini") & (table.case == "as read")]
titles = {"alice": "Alice", "ag_news": "AG News", "python_reference": "Python"}
octaves = {}
for (layer, text), rows in of_mini[of_mini.layer.isin([3, 4])].groupby(["layer", "corpus"], sort=False):
    for low, high in ((8, 512), (128, 512), (128, 256), (256, 512)):
        octaves[layer, titles[text], low, high] = slope(rows[rows.length.between(low, high)])
said = "{0.slope:.2f} [{0.interval[0]:.2f}, {0.interval[1]:.2f}]".format
shown = pd.Series({key: said(fit).replace("-", "−") for key, fit in octaves.items()}).unstack([2, 3])
shown.columns = [f"{low} to {high} tokens" for low, high in shown.columns]
shown = shown.rename_axis(["layer", "text"]).reset_index()
figures.table(shown, bold=shown.layer == 3)

# %% [markdown]
# **Over 8 to 512 tokens layer 3 is faster than $\sqrt n$** on all three texts: its intervals begin at
# {glue:text}`positions-least:.3f` or above, taken so wide that those of all six layers hold at once. Most of the excess
# is at short lengths: one line over 128 to 512 tokens has at most {glue:text}`positions-later:.2f`. But that line bends.
# From 128 to 256 tokens the slope is still {glue:text}`positions-alice-octave:.2f` on *Alice* and
# {glue:text}`positions-python-octave:.2f` on Python's reference; only from 256 to 512 it is
# {glue:text}`positions-last-low:.2f` to {glue:text}`positions-last-high:.2f`. And layer 4 has
# {glue:text}`positions-four-news:.2f` (AG News) and {glue:text}`positions-four-python:.2f` (Python) over 128 to 512. No
# theorem is contradicted: $\sqrt n$ bounds the constant, not its slope over part of the lengths.
#
# **The norm is not the reason.** The mean norm that attention receives changes by at most
# {glue:text}`positions-moved:.1f` % between 2 and 512 tokens, and before layer normalisation it falls. Without positions layer 3 keeps its slope within
# {glue:text}`positions-change-most:.2f`.
#
# :::{dropdown} Three more measurements of positions
# From layer 2 on, late places give the same tokens larger norms and smaller constants. With one position for all places
# layer 3 loses {glue:text}`positions-one:.2f` of its slope (at random places {glue:text}`positions-lost:.2f`, with an
# interval that contains 0). The first attention of the real GPT-2, fed positions alone, grows with slope
# {glue:text}`positions-alone:.2f` while the norms stay level.
# :::
#
# **Growth does not need positions.** Small networks trained without them grow, too. Our twins do not decide whether
# learned positions make it faster: the steepest layer is steeper with them in all three seeds, by chance one time in
# eight; the median layer in one.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-41-twins", "caption": "Small networks that differ in their positions only: slope of the constant with $n$, from 8 to 512 tokens of Alice; lines are medians over three seeds, bands their range. Growth comes with training, with positions and without."}, "image": {"alt": "Slopes of the layers for three kinds of positions. A grey line, from before training, lies level near zero; the coloured ones, from after it, rise with the layer: to a peak in the middle with learned positions, to the last layer without, to a peak behind the middle with rotary ones."}}
stored_twins = results.load("twins")
figures.twins.slopes(stored_twins)
plt.show()

# %% tags=["hide-input"]
stored = table[(table["map"] == "MiniLM") & (table.corpus == corpus) & (table.case == "as read")]
again, condition = [], atlas.Condition(corpus)
for row in stored[stored.length <= 64].sample(rows_to_check, random_state=seed).itertuples():
    ids = atlas.windows_of(model, condition, row.length)[row.window : row.window + 1]
    if edition(ids) != row.text:  # another edition of this text: what is stored is of other words
        continue
    received = model.activations(ids, row.layer)
    again.append(local_lipschitz(model.attention(row.layer), received, rtol=1e-4).value.item() / row.lipschitz - 1)
print(f"{len(again)} stored rows measured again on {corpus}")

# %% tags=["hide-input"]
changed_places, mini, off = results.load("positions"), models.load("gpt2-mini"), []
if corpus == "alice":
    ids, places = mini.token_ids(corpora.read(corpus)), mini.module.config.n_positions
    for row in changed_places.sample(rows_to_check // 2, random_state=seed).itertuples():
        moved_to = positions.variant(mini, places - row.length if row.positions == "late" else row.positions)
        read = corpora.windows(ids, row.length, row.window + 1)[row.window :]
        lip = local_lipschitz(moved_to.attention(row.layer), moved_to.activations(read, row.layer)).value.item()
        off.append(abs(lip / row.lipschitz - 1))
facts = json.loads((models.mini_folder() / "training.json").read_text())
lengths = models.position_embeddings(mini).norm(dim=1)
print(f"{len(off)} stored rows of gpt2-mini measured again")

# %% tags=["remove-input"]
where = layer_growth.against(trained, claimed_exponent)
distance = (trained.slope - claimed_exponent).abs()
seeds = results.load("released-seeds").query("input == 'text'")
of_seed = seeds.groupby("seed")
seed_slopes = pd.DataFrame({name: of_seed.apply(slope, name) for name in ("lipschitz", "released")})
random_slopes, random_released = (seed_slopes[name].map(lambda fit: fit.slope) for name in seed_slopes)
news_rows = every_length.query("map == 'random GPT-2' and corpus == 'ag_news' and layer == 6 and length <= 128")
on_news = slope(news_rows)
level = 1 - 0.05 / len(trained)  # so that all intervals hold together (Bonferroni)
of_layers = table[(table.case == "as read") & (table.corpus == table["map"].map(first_texts))].groupby(["map", "layer"])
together = {place: slope(rows, confidence=level).interval for place, rows in of_layers}
ends = [together[place] for place in zip(trained["map"], trained.layer, strict=True)]
trained["together_low"], trained["together_high"] = np.transpose(ends)
weights = trained["map"].str.removesuffix(", masked") + " "
weights += trained.layer.astype(str).where(trained["map"] != "ALBERT", "")
pictures = trained["map"] == "DINOv2"
moved, albert = moved.set_index("changed"), summary.loc["ALBERT"]

# %% tags=["remove-input"]
ranges = trained.groupby("map").agg(shortest=("shortest", "min"), longest=("longest", "max"), apart=("slope", np.ptp))
said = {"layers": len(trained), "models": trained["map"].str.removesuffix(", masked").nunique()}
said |= {"weights": int(count.weights["all-main"]), "closeness": layer_growth.CLOSE, "tolerance": TOLERANCE}
said |= {"rising": int((trained.low > 0).sum()), "depth": moved.loc["depth", "largest"]}
said |= {"bent": int((~trained.curve.isin(["power law", "flat"])).sum())}
first_layer = own[(own["map"] == "MiniLM") & (own.layer == 0) & (own.corpus == "alice")]
trained_to = layer_growth.TRAINED["MiniLM"]
parts = (first_layer.length <= trained_to, first_layer.length <= layer_growth.SHARED)
said |= dict(zip(("short", "all"), (slope(first_layer[part]).slope for part in parts), strict=True))
for name, value in said.items():
    glue(f"growth-{name}", float(value), display=False)
glue("growth-text-place", moved.loc["text"].place, display=False)
best = (trained.slope - trained.slope.median()).abs().mean()  # the median is the nearest to all
quarter = {"mean": count.loc["all-main", "mean"], "least": trained.slope.min(), "most": trained.slope.max()}
quarter |= {"best": best, "loss": count.error_quarter["all-main"] - best}
any_input = rates[(rates.case == "as read") & rates["map"].isin(trained["map"])].slope
quarter |= {"least-any": round(any_input.min(), 2) + 0.0, "most-any": any_input.max()}
from_eight = means[~means.over.str.contains("128 to 512")]["mean"]
quarter |= {"low": from_eight.min(), "high": from_eight.max()}
of_models = trained.groupby(trained["map"].str.removesuffix(", masked")).slope.mean()
half = stats.t.ppf(0.975, len(of_models) - 1) * of_models.sem()
quarter |= {"from": of_models.mean() - half, "to": of_models.mean() + half}
for name, value in quarter.items():
    glue(f"quarter-{name}", float(value), display=False)

# %% tags=["remove-input"]
on_news_text = rates[(rates.case == "as read") & rates["map"].str.startswith("MiniLM") & (rates.corpus == "ag_news")]
excess = (on_news_text.slope - claimed_exponent).abs() - layer_growth.CLOSE
edge = excess[excess.between(0, 0.01, inclusive="right")]
counted = {"counts-edge": len(edge), "random-news": on_news.slope, "random_seeds": len(seed_slopes)}
counted["counts-edge-by"] = np.ceil(1000 * edge.max()) / 1000
from_counts = {"minilm_layers": ("layers", "minilm-alice-128"), "minilm_constant_near": ("near", "minilm-alice-128")}
from_counts |= {"minilm_news_near": ("near", "minilm-ag_news-128"), "counts-news-wide": ("near", "minilm-ag_news-512")}
from_counts |= {"minilm_released_near": ("released", "minilm-alice-128"), "counts-last": ("layers", "last-512")}
from_counts |= {"counts-last-weights": ("weights", "last-512"), "counts-paper-alice": ("near", "paper-minilm-alice")}
from_counts |= {"counts-paper-news": ("near", "paper-minilm-ag_news")}
for most in (128, 512):
    from_counts |= {f"counts-last-{most}": ("near", f"last-{most}")}
    from_counts |= {f"counts-last-released-{most}": ("released", f"last-{most}")}
counted |= {name: count.loc[group, column] for name, (column, group) in from_counts.items()}
counted |= {"random_seeds_low": random_slopes.min(), "random_seeds_high": random_slopes.max()}
counted |= {"random_seeds_released_low": random_released.min(), "random_seeds_released_high": random_released.max()}
for name, value in counted.items():
    glue(name, float(value), display=False)

# %% tags=["remove-input"]
at_once, place = 1 - 0.05 / of_mini.layer.nunique(), ["layer", "length", "window"]  # all layers hold together
others = {  # at random places of three texts, drawn anew for every length
    titles[text]: {layer: slope(rows, confidence=at_once) for layer, rows in of_text.groupby("layer")}
    for text, of_text in of_mini.groupby("corpus", sort=False)
}
least = pd.DataFrame(
    {text: {layer: fit.interval[0] for layer, fit in fits.items()} for text, fits in others.items()}
).min(axis=1)
top = int(least.idxmax())
as_trained = changed_places[changed_places.positions == "trained"]
plain, changes = as_trained.set_index(place).lipschitz, {}
for (name, layer), rows in changed_places.groupby(["positions", "layer"], sort=False):
    if name != "trained":
        ratio = (rows.set_index(place).lipschitz / plain.loc[[layer]]).reset_index()
        changes[name, layer] = slope(ratio, confidence=at_once)
from_start = {
    column: pd.Series({layer: slope(rows, column).slope for layer, rows in as_trained.groupby("layer")})
    for column in ("lipschitz", "mean_radius", "stream_radius")
}
norm = as_trained.groupby(["layer", "length"]).mean_radius.mean().unstack()
grown = norm[norm.columns.max()] / norm[norm.columns.min()]
late = changed_places.groupby(["positions", "layer", "length"])[["lipschitz", "mean_radius"]].mean()
late = (late.loc["late"] / late.loc["trained"]).xs(64, level="length")

# %% tags=["remove-input"]
one_by_one = results.load("interventions").query("model == 'gpt2-mini' and layer == @top")
at_window = one_by_one.set_index(["length", "window", "intervention"]).lipschitz.unstack()
anew = slope((at_window["one position"] / at_window["as read"]).rename("lipschitz").reset_index(), confidence=at_once)
alone = results.load("positions-alone")
fits = [power_law(alone.length, alone[column]).exponent for column in ("lipschitz", "mean_radius")]
last_octave = [fit.slope for (layer, _, low, high), fit in octaves.items() if (layer, low, high) == (top, 256, 512)]
beyond = {key[:2]: fit for key, fit in octaves.items() if key[2:] == (128, 512)}
told = {"least": least[top], "later": max(beyond[top, text].slope for text in others)}
told |= {"alice-octave": octaves[top, "Alice", 128, 256].slope, "python-octave": octaves[top, "Python", 128, 256].slope}
told |= {"last-low": min(last_octave), "last-high": max(last_octave)}
told |= {"four-news": beyond[4, "AG News"].slope, "four-python": beyond[4, "Python"].slope}
told |= {"moved": 100 * norm.div(norm.iloc[:, 0], axis=0).sub(1).abs().max().max()}
told["alone"], level_norm = fits
baselines = results.load("gpt2-mini-baselines").query("part == 'all'")
loss = baselines.pivot(index="corpus", columns="model", values="loss")
told |= {"loss": loss.network["held out"], "ngram": loss["kneser-ney 4"]["held out"]}
told |= {"change-most": np.abs(changes["removed", top].interval).max(), "one": -changes["constant", top].slope}
told |= {"lost": -anew.slope, "parameters": facts["parameters"]}
for name, value in told.items():
    glue(f"positions-{name}", float(value), display=False)

# %% tags=["remove-input"]
measured = stored_twins[stored_twins.row == "layer"]
last_step = measured[measured.step == measured.step.max()]
twins = layer_growth.rates(last_step, along=(), key=["positions", "seed", "layer"]).groupby(["positions", "seed"]).slope
over, of_middle = (each["learned"] / each["none"] for each in (twins.max(), twins.median()))
before = layer_growth.rates(measured[measured.step == 0], along=(), key=["positions", "seed", "layer"])
on_the_way = layer_growth.rates(measured[measured.positions == "learned"], along=(), key=["seed", "step", "layer"])

# %% tags=["hide-input", "nbval-check-output"]
assert every_length.converged.all() and seeds.converged.all() and drawn == len(on_first)
assert abs(by_hand / local_lipschitz(f, x).value.item() - 1) < 1e-3
assert max(map(abs, again), default=0) < 2e-3, "a stored row does not hold"
assert both_drawn == len(trained) + len(on_first[on_first["map"] == "random GPT-2"])
known = table[table.certified.notna()]
assert len(known) > 50 and (known.certified >= known.lipschitz * (1 - 1e-3)).all()
# the sentences, checked
assert (layer_growth.CLOSE, trained_to) == (0.1, 128), "the text says so"
assert of_maps.ngroups == 7 and abs(quarter["mean"] - of_maps.mean().mean()) < 1e-9
assert means["mean"].iloc[0] == quarter["mean"] and from_eight.between(0.24, 0.32).all() and means["mean"].min() < 0.2
assert quarter["loss"] < 0.01 and best < 0.6 * apart.layers[[0, 3]].min()
assert said["rising"] == len(trained) - 1 and (trained.low[~pictures] > 0).all()
assert where.nunique() == 3 and distance.le(layer_growth.CLOSE).sum() == count.near["all-main"] < 0.5 * len(trained)
assert moved.loc[["order of the tokens", "text", "mask"], "median"].max() < 0.1
assert moved.loc[["mask", "text"], "beyond"].tolist() == [0, 1] and "stories260K" in moved.loc["text"].place
assert albert["median"] > 2 * albert.shuffled
assert moved.loc["order of the tokens", "median"] < 0.2 * moved.loc["weights", "median"]
assert moved.loc["depth", "largest"] > 0.3 and moved.loc["weights", "median"] > 0.2
random = rates[rates.case == "random weights"]
assert random.slope.max() < 0.1 and random_released.min() > 2 * random_slopes.max() and count.near["random-gpt2"] == 0
assert counted["minilm_constant_near"] > 2 * counted["minilm_released_near"]
assert count.near[["minilm-alice-512", "minilm-python_reference-512"]].eq(counted["minilm_layers"]).all()
assert said["short"] < 0.1 < claimed_exponent - layer_growth.CLOSE < said["all"]
print("✓ all stored rows converged, below their certificates; some of them, measured again, agree")

# %% tags=["hide-input", "nbval-check-output"]
assert abs(loss.network["held out"] / facts["loss"] - 1) < 1e-3 and (loss.idxmin(axis=1) == "network").all()
assert lengths.argmax() == 0 and lengths.max() > 3 * lengths.min()
assert max(off, default=0) < 1e-3 and changed_places.converged.all() and alone.converged.all()
assert least.index[least > 0.5].tolist() == [top] == [3]
assert from_start["mean_radius"].abs().max() < 0.02 and from_start["stream_radius"].max() < 0
low, high = (pd.Series({key: fit.interval[end] for key, fit in changes.items()}) for end in (0, 1))
assert (low["removed"][[2, 3, 4]] < 0).all() and (high["removed"][[2, 3, 4]] > 0).all()
assert (high["constant"][[2, 3, 4]] < 0).all() and (low["constant"][[0, 1, 5]] > 0).all()
assert abs(level_norm) < 0.01 < told["alone"]
assert anew.slope < 0 < anew.interval[1] and anew.windows == 6
assert told["later"] < 0.5 < min(told["alice-octave"], told["python-octave"], told["four-news"], told["four-python"])
assert (late[2:].lipschitz < 0.65).all() and (late[2:].mean_radius > 1).all()
assert measured.converged.all() and before.slope.max() < 0.1 and (twins.max() > 2 * before.slope.max()).all()
assert measured.length.agg(["min", "max"]).tolist() == [8, 512] and seeds.length.max() == 98
assert over.min() > 1 and len(over) == 3 and (of_middle > 1).sum() == 1
assert twins.max()["learned"].max() < 0.5
print("✓ stored norms and constants of gpt2-mini agree with those measured again")

# %% tags=["remove-input"]
law = "{0[map]}, layer {0.layer}, {0.corpus}: slope {0.slope:.3f} [{0.low:.3f}, {0.high:.3f}]".format
read = trained[~pictures]
below = read.together_high < claimed_exponent
flattest, farthest = (law(trained.loc[at]) for at in (read.together_high.idxmin(), distance.idxmax()))
next_to = pd.Series({seed: fit.interval[1] for seed, fit in seed_slopes.lipschitz.items()})
untrained = f"{(next_to < claimed_exponent).sum()} of {len(next_to)} seeds lie below; the closest, {next_to.idxmax()}:"
untrained += f" slope {seed_slopes.lipschitz[next_to.idxmax()]}"
every = f"{len(trained)} layers, {trained.shortest.min()} to {trained.longest.max()} tokens, MiniLM to 128"
drawn_there = "random GPT-2s on Alice, layer 6, as defined"
both_texts = "random GPT-2s on AG News and on Alice, layer 6, as defined"
own = {"seen": "released code", "effort": "structured", "counter_example": untrained}
own |= {"grounds": f"{len(seed_slopes)} seeds, token types as released: the end of each interval next to 1/4, over 1/4"}
printed_panel = {"seen": "released code", "effort": "structured", "counter_example": f"slope {on_news}"}
printed_panel |= {"grounds": "seed 0, no token types: the end of its interval next to 1/4, over 1/4"}
of_both = own | {"grounds": f"AG News: {printed_panel['grounds']}; Alice: {own['grounds']}"}
of_both["counter_example"] = f"AG News: slope {on_news}; Alice: {untrained}"
next_on_both = [on_news.interval[1], *next_to]
ours = {"seen": "text of the paper", "effort": "structured", "variant": True}


# %% tags=["remove-input"]
def alike(changed, few=0.05):
    """A verdict on what the slope is claimed to be independent of: an exception in a few layers decides nothing."""
    row, form = moved.loc[changed], f"the rate is independent of the {changed} (our reading): slopes within {TOLERANCE}"
    counted = f"{row.pairs - row.beyond} of {row.pairs} differ by less, in the median by {row['median']:.2f}"
    most = f"{row.place}: {row.largest:.2f}"
    if 0 < row.beyond <= few * row.pairs:
        why = f"on the layer: {counted}; {most}"
        return ledger.depends("castin.sec-5.3-text", form, why, seen=ours["seen"], cases=row.pairs, variant=True)
    example = f"{counted}; {most}"
    ratios = row.each / TOLERANCE
    return ledger.upper("castin.sec-5.3-text", form, ratios, **ours, grounds=counted, counter_example=example)


# %% tags=["remove-input"]
near_rate = "at a rate close to n^(1/4)"
wide = count.near["minilm-alice-512"]
of_minilm = (
    f"on the range and the text: within {layer_growth.CLOSE} of it in {counted['minilm_constant_near']} of"
    f" {counted['minilm_layers']} layers up to {trained_to} tokens on Alice, where the first is nearly flat, in {wide} up"
    f" to 512; up to {trained_to} on the reference of Python in {count.near['minilm-python_reference-128']}, on AG News in"
    f" {counted['minilm_news_near']}; from 4 to 98 on Alice and AG News in"
    f" {counted['counts-paper-alice']} and {counted['counts-paper-news']}"
)
far = (distance > layer_growth.CLOSE).sum()
on_texts = f"{len(read)} layers that read texts or reactions, {read.shortest.min()} to {read.longest.max()} tokens"
flatter = (
    f"together at 95 % (Bonferroni over {len(trained)}), {below.sum()} of {on_texts}, of {weights[read.index][below].nunique()}"
    f" different weights, have intervals below 1/4 (of {pictures.sum()} layers that read pictures"
    f" {(trained.together_high[pictures] < claimed_exponent).sum()}); one at a time the flattest is {flattest}"
)
rising = (
    f"{on_texts}: half of each interval over its slope, so that less than 1 lies above 0; with {pictures.sum()} layers that"
    f" read pictures {(trained.low > 0).sum()} of {len(trained)}, without {law(trained.loc[trained.low.idxmin()])}; intervals"
    f" that hold together {(read.together_low > 0).sum()} of {len(read)}, without"
    f" {'; '.join(map(law, (row for _, row in read[read.together_low <= 0].iterrows())))}"
)
farther = f"{far} of {every} are farther, the farthest {farthest}"
farther += "".join(f"; than {limit} are {(distance > limit).sum()}" for limit in (0.05, TOLERANCE))
every_case = f"{near_rate}: within {layer_growth.CLOSE} of it, in all cases"

# %% tags=["remove-input"]
span = ", ".join(f"{value:.2f}" for value in from_start["lipschitz"])
radii = ", ".join(f"{value:.2f}" for value in from_start["mean_radius"])
instead = f"GPT-2 reads no text here; gpt2-mini on Alice instead: exponents {span}"
paper, of_ours = {"seen": "text of the paper"}, {"seen": "ours", "variant": True}
explained = pd.DataFrame({  # intervals to the favour of the reading: the least slope at the largest r
    text: {
        layer: others[titles[text]][layer].interval[0]
        / (0.5 + 2 * max(0, slope(rows, "mean_radius", confidence=at_once).interval[1]))
        for layer, rows in of_text.groupby("layer")
    }
    for text, of_text in of_mini.groupby("corpus")
})  # fmt: skip
steeper = explained.index[(explained > 1).all(axis=1)].tolist()
elsewhere = {text: "[{:.2f}, {:.2f}]".format(*fits[top].interval) for text, fits in others.items()}
elsewhere = f"layer {top}, at 95 % for all layers at once: " + ", ".join(map(" ".join, elsewhere.items()))
assert steeper == [top] and not (explained > 1).drop(index=steeper).any(axis=None)

# %% tags=["remove-input"]
on_positions = [
    ledger.unchecked("castin.fig-4", "pretrained GPT-2, rates of two layers", instead, **paper),
    ledger.unchecked("castin.fig-5", "pretrained GPT-2, norms", f"{instead}; r {radii}", **paper),
    ledger.unchecked("castin.fig-6", "norms and constant", f"{instead}; r {radii}", **paper),
    ledger.lower("castin.fig-4", f"gpt2-mini: one of {len(least)} slopes exceeds one half, 8 to 512 tokens",
                 [fits[top].interval[0] / 0.5 for fits in others.values()], **ours,
                 grounds=f"windows at random places; {elsewhere}; one line over 128 to 512 tokens: at most {told['later']:.2f}"),
    ledger.lower("castin.fig-5", "gpt2-mini: what attention receives gets longer with n", grown, **ours,
                 grounds="mean norms, longest over shortest window",
                 counter_example=f"layer {grown.idxmin()}: a factor {grown.min():.3f}"),
    ledger.depends("castin.fig-6", "gpt2-mini: slopes at most 1/2 + 2 r, where R grows like n^r, 8 to 512 tokens",
                   f"on the layer: {len(steeper)} of {len(explained)} is steeper, on each of {len(others)} texts, at"
                   f" random places; {elsewhere}", cases=explained.size, **of_ours),
    ledger.undecided("castin.fig-4", "small twins: steeper with learned positions than without",
                     f"steepest layer in {(over > 1).sum()} of {len(over)} seeds, by chance 1 in {2 ** len(over)};"
                     f" median layer in {(of_middle > 1).sum()}", cases=len(over), **of_ours),
    ledger.depends("castin.fig-4", "small twins with learned positions: a layer outgrows sqrt(n)",
                   f"on the checkpoint: no layer of {len(over)} networks at the end, the steepest"
                   f" {twins.max()['learned'].max():.2f}; up to {on_the_way.slope.max():.2f} on the way",
                   cases=len(over), **of_ours),
]  # fmt: skip

# %% tags=["hide-input"]
ledger.record(
    ledger.lower("castin.fig-1", f"text, panel 3: {near_rate}, random GPT-2 on AG News, layer 6, as defined",
                 [on_news.interval[1] / claimed_exponent], **printed_panel),
    ledger.lower("castin.fig-1", f"text, panel 3: {near_rate}, {drawn_there}", next_to / claimed_exponent, **own,
                 variant=True),
    ledger.unchecked("castin.fig-1", f"text, panels 1 and 2: {near_rate}, BERT",
                     f"its weights are not available; MiniLM instead: median slope {summary.loc['MiniLM', 'median']:.2f}",
                     seen="released code"),
    ledger.lower("castin.sec-5.3-text", f"{near_rate}, {both_texts}", np.divide(next_on_both, claimed_exponent),
                 **of_both),
    ledger.depends("castin.sec-5.3-text", f"{near_rate}, MiniLM, masked and not", of_minilm, seen=ours["seen"],
                   cases=int(counted["minilm_layers"]), variant=True),
    ledger.upper("castin.sec-5.3-text", "grows: interval above 0, trained layers on text", (read.high - read.slope) / read.slope,
                 **ours, grounds=rising, counter_example=rising),
    ledger.equal("castin.sec-5.3-text", every_case, trained.slope / claimed_exponent - 1,
                 within=layer_growth.CLOSE / claimed_exponent, **ours, grounds=every, counter_example=farther),
    *(alike(changed) for changed in ("text", "mask", "depth")),
    ledger.lower("castin.conclusion", f"at least like n^(1/4), {both_texts}",
                 np.divide(next_on_both, claimed_exponent), **of_both),
    ledger.lower("castin.conclusion", "at least like n^(1/4), trained layers", read.together_high / claimed_exponent, **ours,
                 grounds=on_texts, counter_example=flatter),
)  # fmt: skip

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the verdicts on Figures 4 to 6", "code_prompt_hide": "Hide these verdicts"}
ledger.record(*on_positions)

# %% [markdown]
# ## What this shows and does not show
#
# - The four panels of BERT in Figure 1 stay unchecked; the two of a random GPT-2 are tested here and on
#   {doc}`42_adversarial_inputs`. With a hub, `python -m lab tables --model bert-base-uncased` measures BERT, and this
#   page shows the table here:

# %% tags=["hide-input"]
hub = layer_growth.of_other_models(claimed_exponent)
if hub.empty:
    print("No table of another model was there when this page ran.")
else:
    hub["range"] = [f"{row.smallest:.2f} to {row.largest:.2f}" for row in hub.itertuples()]
    hub["near"] = hub.close.astype(str) + " of " + hub.layers.astype(str)
    hub["tokens"] = [f"{row.shortest} to {row.longest}" for row in hub.itertuples()]
headings = {"map": "map", "tokens": "tokens", "range": "slopes", "median": "median slope", "near": "constant: near 1/4"}
headings |= {"released": "released, attention alone: near", "sub-layer": "released, sub-layer: near"}
None if hub.empty else figures.table(hub, names=headings, digits={"median": 2})

# %% [markdown]
# - An interval covers the choice of windows from one text. Neither texts nor models are a sample.
# - What training does to attention so that it grows is the subject of {doc}`43_why_it_grows`.
# - gpt2-mini is one small checkpoint, and Figures 4 to 6 themselves stay unchecked.
#
# **One thing to try.** `python -m lab tables --model FOLDER` measures the layers of your own model at the lengths
# of the paper. Are its layers near 1/4?
#
# **Next:** {doc}`42_adversarial_inputs`.
