# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Trained with and without positions
#
# Do learned positions make the {term}`local Lipschitz constant` grow faster with the number $n$ of {term}`tokens
# <token>`? In {doc}`44_gpt2_positions` we took them out of a network that was trained with them. Here small networks
# are trained that differ in nothing else: with learned, without, and with rotary positions. Before training no layer
# has a slope above {glue:text}`twins-before:.2f`. After it the steepest layer of a network has
# {glue:text}`twins-learned-low:.2f` to {glue:text}`twins-learned-high:.2f` with learned positions,
# {glue:text}`twins-none-low:.2f` to {glue:text}`twins-none-high:.2f` without and {glue:text}`twins-rotary-low:.2f` to
# {glue:text}`twins-rotary-high:.2f` with rotary ones. **In these networks the growth comes with training, with
# positions and without**, in all layers but the first.

# %% tags=["parameters", "hide-input"]
lengths = [8, 32, 128]  # of the untrained twins that are measured now
windows, seed = 2, 0

# %% tags=["hide-input"]
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from myst_nb import glue

from lab import figures, layer_growth, ledger, results
from lab.experiments import twins
from lab.training import KINDS, new_twin, train_tokenizer
from lipnb import corpora, models

figures.house_style()
stored, birth = results.load("twins"), results.provenance("twins")
losses = stored[stored.row == "loss"].astype({"seed": int, "step": int})
baselines = stored[stored.row == "baseline"].set_index("positions").loss
measured = stored[stored.row == "layer"].astype(dict.fromkeys(["seed", "step", "layer", "length", "window"], int))
slopes = layer_growth.rates(measured, along=["attention_norm"], key=[*figures.twins.NETWORK, "layer"])
steps = int(slopes.step.max())
trained, untrained = slopes[slopes.step == steps], slopes[slopes.step == 0]
late_key = [*figures.twins.NETWORK, "layer"]

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-47-slopes", "caption": "Slope of the constant with $n$, from {glue:text}`twins-short` to {glue:text}`twins-long` tokens of Alice, in the {term}`attention` layers: a line for each network, grey before training. Dotted: the slopes $\\frac14$ and $\\frac12$."}, "image": {"alt": "Three panels, one for each kind of positions, of the slopes of the layers. Grey lines, from before training, lie level near zero; the coloured ones, from after it, rise with the layer: to a peak in the middle with learned positions, to the last layer without, to a peak behind the middle with rotary ones."}}
figures.twins.slopes(stored)
plt.show()

# %% [markdown]
# ## What is equal, and what is not
#
# The networks of one seed begin with the weights of the same GPT-2, of {glue:text}`twins-layers` layers and width
# {glue:text}`twins-width`, and read the same {term}`windows <window>` of books in the same order for
# {glue:text}`twins-steps` steps. *Learned*: a trained vector for each place is added to the token. *None*: that vector
# is zero and stays so; only the {term}`mask <mask (causal)>` tells places apart. *Rotary*: queries and keys are turned
# by an angle that grows with the place ({doc}`74_scan_your_model`). All layers are measured at five checkpoints, at
# each length on the same {glue:text}`twins-windows` windows for all networks. Turned by nothing, the rotary twin must
# compute what the one without positions does:

# %%
sizes = {name: birth["settings"]["sizes"][name] for name in ("length", "width", "layers", "heads")}
networks = {kind: new_twin(kind, 256, seed=seed, **sizes).eval() for kind in KINDS}
ids = torch.randint(256, (2, 64), generator=torch.Generator().manual_seed(seed))
with torch.no_grad():
    logits = {kind: net(ids) for kind, net in networks.items()}
    networks["rotary"].model.gpt_neox.rotary_emb.inv_freq.zero_()
    logits["rotary, not turned"] = networks["rotary"](ids)
apart = {kind: (values - logits["none"]).abs().max().item() for kind, values in logits.items() if kind != "none"}
for kind, difference in apart.items():
    print(f"{kind}: logits differ from those without positions by at most {difference:.1g}")

# %% [markdown]
# ## Does the growth come with training?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-47-steps", "caption": "Left: slope of the constant, the median over the layers of a network, at five checkpoints. Right: loss on the ends of the books, which are held out, beside frequencies after the token before (bigram) and smoothed n-grams."}, "image": {"alt": "Left, median slope of each network against training steps, from near zero steeply upwards, then level or falling. Right, held-out losses, falling beside horizontal lines of n-grams; rotary lies lowest."}}
figures.twins.while_training(stored)
plt.show()

# %% tags=["hide-input"]
lines = []
for (kind, number), rows in trained.groupby(["positions", "seed"], sort=False):
    steepest = rows.loc[rows.slope.idxmax()]
    end = losses[(losses.positions == kind) & (losses.seed == number)].sort_values("step").loss.iloc[-1]
    line = {"positions": kind, "seed": number, "loss": end, "median": rows.slope.median()}
    line |= {"steepest": steepest.slope, "layer": int(steepest.layer), "low": steepest.low}
    lines.append(line | {"last": steepest["last"]})
lines = pd.DataFrame(lines)
headings = {"positions": "positions", "seed": "seed", "loss": "loss, nats", "median": "median slope"}
headings |= {"steepest": "steepest layer", "low": "95 % from", "last": "its slope from 256 to 512"}
figures.table(lines, names=headings, digits=3)

# %% tags=["hide-input"]
text = corpora.read("python_reference")
tokenizer, now = train_tokenizer([text], 512), []
for kind in KINDS:
    with tempfile.TemporaryDirectory() as folder:
        net = new_twin(kind, tokenizer.get_vocab_size(), seed=seed, **sizes)
        models.save_gpt2(net, tokenizer, twins.END, folder, dtype=None)
        rows = twins.measured_rows(Path(folder), lengths, windows, "python_reference")
    now.append(layer_growth.rates(pd.DataFrame(rows).assign(positions=kind), along=(), key=["positions", "layer"]))
now = pd.concat(now)

# %% tags=["hide-input"]
by = lines.set_index(["positions", "seed"])
steepest, middle = by.steepest.unstack("positions"), by["median"].unstack("positions")
over = {kind: steepest["learned"] / steepest[kind] for kind in ("none", "rotary")}
said = {"short": int(measured.length.min()), "long": int(measured.length.max()), "layers": sizes["layers"]}
said |= {"width": sizes["width"], "steps": steps, "before": np.ceil(100 * untrained.slope.max()) / 100}
said |= {f"{kind}-low": steepest[kind].min() for kind in KINDS}
said |= {f"{kind}-high": steepest[kind].max() for kind in KINDS}
said |= {f"{kind}-loss": by.loss[kind].mean() for kind in KINDS}
said |= {"bigram": baselines["bigram"], "trigram": baselines["kneser-ney 3"]}
said |= {"window": birth["settings"]["sizes"]["length"]}
said |= {"batch": birth["settings"]["training"]["batch"], "windows": birth["settings"]["windows"]}
said |= {"level": int((lines["last"] < 0.1).sum()), "networks": len(lines)}
said["way"] = slopes[slopes.step.between(1, steps - 1) & (slopes.positions == "learned")].slope.max()
said["P"] = trained.slope.corr(trained.attention_norm)
within = trained.groupby(["positions", "seed"]).apply(lambda one: one.slope.corr(one.attention_norm))
said |= {"P-low": within.min(), "P-high": within.max()}
for name, value in said.items():
    glue(f"twins-{name}", value if isinstance(value, int) else float(value), display=False)

# %% [markdown]
# All networks pass the bigram ({glue:text}`twins-bigram:.2f` nats); those with learned positions or none stay above a
# smoothed trigram ({glue:text}`twins-trigram:.2f`). Without positions the loss ends at
# {glue:text}`twins-none-loss:.2f`, with learned ones at {glue:text}`twins-learned-loss:.2f`: so short a training makes
# hardly any use of them, and these twins cannot say what positions of use would do. Rotary positions are of use sooner,
# {glue:text}`twins-rotary-loss:.2f`. The slopes do not follow the loss: the networks that predict best end with the
# smallest median slopes.
#
# ## The claim, and a mechanism
#
# Figure 4 of the paper has layers of GPT-2 that outgrow $\sqrt n$, and ascribes it to the learned positions
# ({doc}`44_gpt2_positions`). If they were its cause, the steepest layer would be steeper with them, seed by seed. The
# table divides its slope by that of the twin of the same seed; we decided on this number before a network without
# positions was measured. What goes along with the growth in other models does so here in part: the slope of the
# {term}`spectral norm` of the {term}`attention matrix` $P$, which says how many tokens attend to the same one
# ({doc}`43_why_it_grows`), has the correlation {glue:text}`twins-P:.2f` with that of the constant over all trained
# layers together; within one network it is between {glue:text}`twins-P-low:.2f` and
# {glue:text}`twins-P-high:.2f`.

# %% tags=["hide-input"]
pairs, pairs_of_middle = pd.DataFrame(over), middle["learned"] / middle["none"]
for name, values in {"none": pairs["none"], "middle": pairs_of_middle}.items():
    glue(f"twins-over-{name}-low", float(values.min()), display=False)
    glue(f"twins-over-{name}-high", float(values.max()), display=False)
glue("twins-seeds", len(pairs), display=False)
late = layer_growth.rates(measured[(measured.step == steps) & (measured.length >= 128)], along=(), key=late_key)
late = late.reset_index().groupby(["positions", "seed"]).slope.max().unstack(0)
for end in ("min", "max"):
    glue(
        f"twins-late-{dict(min='low', max='high')[end]}", float(getattr(late.learned / late.none, end)()), display=False
    )
glue("twins-from", 128, display=False)
top_layers = lines.groupby("positions").layer.agg(set)
last_layer = trained[trained.layer == sizes["layers"] - 1].groupby("positions").slope.agg(["min", "max"])
for end in ("min", "max"):
    glue(f"twins-last-{end}", float(last_layer[end]["learned"]), display=False)
figures.table(
    pairs.rename_axis("seed").reset_index(),
    names={"seed": "seed", "none": "learned over none", "rotary": "learned over rotary"},
    digits=3,
)

# %% [markdown]
# So the steepest layer of a network with learned positions was {glue:text}`twins-over-none-low:.2f` to
# {glue:text}`twins-over-none-high:.2f` times as steep as without, as the claim has it. With {glue:text}`twins-seeds`
# seeds this decides nothing: from {glue:text}`twins-from:.0f` tokens on the ratio is {glue:text}`twins-late-low:.2f` to
# {glue:text}`twins-late-high:.2f`, and the median layer does not agree either, with
# {glue:text}`twins-over-middle-low:.2f` to {glue:text}`twins-over-middle-high:.2f`. The place does differ in the
# networks trained here: without positions the last layer is the steepest of each network; with learned ones it is a
# flat one, of slopes {glue:text}`twins-last-min:.2f` to {glue:text}`twins-last-max:.2f`.

# %% tags=["hide-input", "nbval-check-output"]
assert apart["rotary, not turned"] < 1e-5 and min(apart["learned"], apart["rotary"]) > 1e-3
assert measured.converged.all() and untrained.slope.max() < 0.1 and now.slope.abs().max() < 0.12
assert (steepest.min() > 0.2).all() and (lines.low > 2 * untrained.slope.max()).all()
assert middle["rotary"].max() < middle[["learned", "none"]].min(axis=None)
assert trained[trained.layer == 0].slope.max() < 0.1 < trained[trained.layer > 0].slope.median()
assert top_layers["none"] == {sizes["layers"] - 1} and last_layer["max"]["learned"] < last_layer["min"]["none"] / 1.5
assert pairs.min(axis=None) > 1 and pairs_of_middle.min() < 1 < pairs_of_middle.max()
assert (by.loss < baselines["bigram"]).all() and said["trigram"] < by.loss[["learned", "none"]].min()
assert by.loss["rotary"].max() < by.loss[["learned", "none"]].min()
assert by.index.droplevel("seed").value_counts().nunique() == 1
print("✓ untrained slopes come out again; every network passes the bigram, and in each some layers have come to grow")

# %% tags=["hide-input"]
worst = {kind: f"seed {pairs[kind].idxmin()}: {pairs[kind].min():.2f}" for kind in pairs}
twin = {"seen": "ours", "variant": True, "effort": "structured"}
top = trained[trained.positions == "learned"]
top = top.loc[top.slope.idxmax()]
ledger.record(
    ledger.lower("castin.fig-4", f"small twins, {len(pairs)} seeds: steepest layer steeper with learned positions",
                 pairs["none"], **twin, counter_example=worst["none"],
                 grounds=f"{(pairs['none'] > 1).sum()} of {len(pairs)} seeds after {steps} steps, by chance 1 in"
                         f" {2 ** len(pairs)}: this decides nothing"),
    ledger.lower("castin.fig-4", "small twins: the median layer is steeper with learned positions than without",
                 pairs_of_middle, **twin,
                 counter_example=f"seed {pairs_of_middle.idxmin()}: {pairs_of_middle.min():.2f}",
                 grounds=f"median slopes over the layers, {len(pairs)} seeds, {steps} steps"),
    ledger.lower("castin.fig-4", "small twins with learned positions: a layer outgrows sqrt(n)",
                 top.slope / 0.5, **twin,
                 grounds=f"the steepest of all layers after {steps} steps; {said['way']:.2f} on the way",
                 counter_example=f"seed {top.seed}, layer {top.layer}: {top.slope:.2f}"),
)  # fmt: skip

# %% [markdown]
# ## What this shows and does not show
#
# - The slopes of a few seeds differ by as much as those of two kinds of positions: compare the lines of one panel. A
#   small effect of the positions would not be seen here; they are not needed for the growth.
# - The networks are small, their training windows of {glue:text}`twins-window` tokens and their training brief: batches
#   of {glue:text}`twins-batch` windows. GPT-2 read far more; what its positions do to it is not known from here.
# - A slope over all lengths is no {term}`power law`: in {glue:text}`twins-level` of the {glue:text}`twins-networks`
#   networks even the steepest layer has nearly stopped growing from 256 to 512 tokens.
# - On the way, layers with learned positions had slopes up to {glue:text}`twins-way:.2f`, more than at the end. A slope
#   belongs to a checkpoint.
# - A network without positions still knows places: its {term}`mask <mask (causal)>` lets the first token see one token,
#   the second two.
#
# **One thing to try.** Set `lengths = [8, 128, 512]`: do the untrained twins stay level?
#
# **Next:** {doc}`45_released_code`, what the released experiments report.
