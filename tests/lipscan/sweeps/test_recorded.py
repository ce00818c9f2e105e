"""Values that a notebook records come back, and what is no scalar is refused."""

import json
import math
import subprocess
import sys

import nbformat
import numpy as np
import torch

from lipscan import sweeps
from lipscan.sweeps import recorded


def test_recorded_scalars_of_every_kind_come_back():
    plain = {"a": 1, "b": 0.1, "c": "x", "d": True, "e": None, "j": -math.inf}
    others = {"f": np.float32(0.5), "g": torch.tensor(2.5), "h": np.array([[7]]), "k": np.bool_(False)}
    values = plain | others | {"i": float("nan")}
    packed = {name: recorded._packed(recorded._scalar(name, value)) for name, value in values.items()}
    output = nbformat.v4.new_output(
        "display_data", data={recorded.MIME: json.loads(json.dumps(packed, allow_nan=False))}
    )
    cell = nbformat.v4.new_code_cell(outputs=[output])
    got = recorded.recorded(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("x"), cell]))
    assert math.isnan(got.pop("i"))
    assert got == plain | {"f": 0.5, "g": 2.5, "h": 7, "k": False}
    assert type(got["d"]) is bool and type(got["h"]) is int


def test_record_outside_a_notebook_prints_a_line(capsys):
    sweeps.record(slope=1 / 3, name="x")
    assert capsys.readouterr().out == "recorded: slope = 0.333333, name = 'x'\n"


def test_importing_record_imports_nothing_heavy():
    code = (
        "import sys; from lipnb.sweeps import record; "
        "print([m for m in ('papermill', 'distributed', 'yaml', 'pandas', 'nbformat') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
