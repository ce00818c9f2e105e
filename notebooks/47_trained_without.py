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
# Do learned positions make the {term}`local Lipschitz constant` grow faster with the number $n$ of
# {term}`tokens <token>`? In {doc}`44_gpt2_positions` we took them out of a network that was trained with them. Here
# nine small networks are trained that differ in nothing else: with learned, without, and with rotary positions, each
# from three seeds. RESULT

# %% tags=["parameters"]
layer, seed = 3, 0  # of the twins that are compared by hand
lengths = [8, 32, 128]  # of the untrained twins measured now

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from myst_nb import glue
from scipy import stats

from lab import figures, growth, ledger, results
from lab.training import KINDS, new_twin
from lipnb import Attention, local_lipschitz

figures.house_style()
stored, birth = results.load("twins"), results.provenance("twins")
losses = stored[stored.row == "loss"].astype({"seed": int, "step": int})
baselines = stored[stored.row == "baseline"].set_index("positions").loss
measured = stored[stored.row == "layer"].astype(dict.fromkeys(["seed", "step", "layer", "length", "window"], int))
network = ["positions", "seed", "step"]
slopes = []
for place, rows in measured.groupby([*network, "layer"]):
    found = growth.slope(rows)
    octave = growth.octaves(rows).slope
    of_P = growth.slope(rows, "attention_norm").slope
    line = dict(zip([*network, "layer"], place, strict=True)) | {"slope": found.slope, "low": found.interval[0]}
    slopes.append(line | {"high": found.interval[1], "last": octave.iloc[-1], "of_P": of_P})
slopes = pd.DataFrame(slopes)
steps = int(slopes.step.max())
trained, untrained = slopes[slopes.step == steps], slopes[slopes.step == 0]

# %% tags=["hide-input"]
figures.positions.twins(slopes)
plt.show()
