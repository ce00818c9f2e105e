# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A point that takes its time
#
# To try a cluster, and to kill parts of it. Swept by `clock.yml`.

# %% tags=["parameters"]
number = 0
seconds = 1.0

# %%
import time

from lipnb.sweeps import record

# %%
time.sleep(seconds)
record(square=number**2)
