"""A small notebook, its specs, and what it would answer without a kernel."""

import re
from pathlib import Path

NOTEBOOK = """\
# %% tags=["parameters"]
n, slope, who = 1, 2.0, "a"
words, m = ["a"], 0

# %%
from lipscan.sweeps import record
record(value=10 * n)
"""


def answer(point, text):
    """What the notebook would record, with its code read for the factor; a point of n = 13 fails."""
    n = point.parameters.get("n", 1)
    factor = int(re.search(r"(\d+) \* n", text)[1])
    told = {"notebook": text, "seconds": 0.5 + n, "host": "there", "finished": "2026-01-01T00:00:00Z"}
    if n == 13:
        return told | {"ok": False, "values": {}, "error": "ValueError: 13"}
    return told | {"ok": True, "values": {"value": factor * n}, "error": None}


def written(text, name="small.yml", notebook="small.py"):
    Path(name).write_text(f"notebook: {notebook}\n{text}")
    return name


def edited(factor=100):
    Path("small.py").write_text(NOTEBOOK.replace("10 * n", f"{factor} * n"))
