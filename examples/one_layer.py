# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # One attention layer on one length of text
#
# The local Lipschitz constant of a layer of a pretrained model on windows of real text, beside the general bound of
# its heads at the radius of these tokens. Swept by `layers.yml`.

# %% tags=["parameters"]
model_name = "minilm"
layer = 0
length = 32  # tokens in a window
count = 4  # windows
texts = ["alice", "python_reference"]  # the first that is at hand is used
seed = 0

# %%
from lipnb import corpora, local_lipschitz, models
from lipnb.sweeps import record

# %%
model = models.load(model_name)
name = corpora.available(*texts)
tokens = corpora.windows(model.token_ids(corpora.read(name)), length, count)
x = model.activations(tokens, layer)
print(f"{model_name}, layer {layer}, on {corpora.describe(name)}: {tuple(x.shape)}")

# %%
lip = local_lipschitz(model.attention(layer), x, seed=seed)
print(lip.value.tolist())

# %%
record(text=name, mean=lip.value.mean(), largest=lip.value.max(), upper=lip.upper.max())
record(residual=lip.residual.max(), converged=bool(lip.converged.all()), radius=x.norm(dim=-1).max())
