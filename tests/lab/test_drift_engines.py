"""Programs that are not PyTorch: what is written into their sources and graphs, and what is read of their states."""

import shutil
import subprocess

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from lab.experiments import drift_engine, drift_onnx, onnx_states
from lab.experiments.loading import load
from lipscan import drift

# an engine of one layer that has the lines which the real one has: width 4, weights 1, 2, 3 ... in blocks of 2
ENGINE = """
#include <stdio.h>
#include <stdlib.h>
#define QK 2
#define H 4
#define FF 4
typedef struct { float q[QK]; } block_q4_0;
typedef struct { block_q4_0 *aow, *fow; float *aob, *fob, *oln_w, *oln_b; } layer;
typedef struct { layer ly; float *eln_w, *eln_b; float eps; } e5_model;
static float ONES[] = {1, 1, 1, 1}, ZEROS[] = {0, 0, 0, 0};
static block_q4_0 WEIGHT[8];
static void deq_row(const block_q4_0 *row, int n, float *out) {
    for (int i = 0; i < n; i++) out[i] = row[i / QK].q[i % QK];
}
static void quantize_acts(const float *X, int T, int n, float *aq, float *ad, float *as) { *aq = 0; }
static void matmul_q4q8(const block_q4_0 *W, const float *b, float *aq, float *ad, float *as, float *Y,
                        int T, int no, int ni) {
    for (int i = 0; i < T * no; i++) Y[i] = -1;
}
static void add_layernorm(float *x, float *y, float *w, float *b, int T, int h, float eps) {
    for (int i = 0; i < T * h; i++) x[i] += y ? y[i] : 0.5f;
}
e5_model *e5_load(const char *path) {
    e5_model *m = calloc(1, sizeof *m);
    for (int i = 0; i < 16; i++) WEIGHT[i / 2].q[i % 2] = i + 1;
    m->ly.aow = m->ly.fow = WEIGHT; m->ly.aob = ZEROS; m->ly.fob = ONES;
    return m;
}
static int forward_batch(e5_model *m, int *ids, int *pos, int *a, int *b, int *off, int count, int T,
                         float *out, void *no) {
    int TH = T * H; layer *ly = &m->ly;
    float x[64], ctx[64], mid[64], ao[64], fo[64], aq[1], ad[1], as[1];
    #define QUANT(X, NIN) quantize_acts((X), T, (NIN), aq, ad, as)
    #define MAT(W, B, Y, NOUT, NIN) matmul_q4q8((W), (B), aq, ad, as, (Y), T, NOUT, NIN)
    for (int i = 0; i < TH; i++) x[i] = ids[i / H];
    add_layernorm(x, NULL, m->eln_w, m->eln_b, T, H, m->eps);
    for (int i = 0; i < TH; i++) ctx[i] = x[i];
    QUANT(ctx, H); MAT(ly->aow, ly->aob, ao, H, H);
    for (int i = 0; i < TH; i++) { x[i] += ao[i]; mid[i] = 1; }
    QUANT(mid, FF); MAT(ly->fow, ly->fob, fo, H, FF);
    add_layernorm(x, fo, ly->oln_w, ly->oln_b, T, H, m->eps);
    return 0;
}
#ifdef E5_MAIN
this is left out
#endif
"""
IDS = torch.tensor([[3, 5], [2, 7]])
ROWS = torch.arange(1.0, 17).view(4, 4)  # the weight


def written(folder, plain):
    """States that the engine, compiled with our lines in it, writes of some ids."""
    (folder / "run.c").write_text(drift_engine.source(ENGINE, plain))
    subprocess.run(["cc", *drift_engine.PLAIN, "run.c", "-o", "run", "-lm"], cwd=folder, check=True)
    parts = []
    for one in IDS:
        (folder / "ids").write_bytes(one.int().numpy().tobytes())
        subprocess.run([folder / "run", "weights", "ids", "2", "states"], cwd=folder, check=True)
        parts.append((folder / "states").read_bytes())
    return drift_engine.parsed(parts, IDS, 4, {"by": "test"})


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_engine_writes_its_states_and_computes_with_plain_products(tmp_path):
    first = (IDS + 0.5).float()[..., None].expand(2, 2, 4)
    plain, own = written(tmp_path, True), written(tmp_path, False)
    attention, mlp = first @ ROWS.T, ROWS.sum(1).expand(2, 2, 4) + 1
    assert torch.equal(plain.hidden[0], first) and torch.equal(plain.ids, IDS)
    assert torch.equal(plain.attention[0], attention) and torch.equal(plain.mlp[0], mlp)
    assert torch.equal(plain.hidden[1], first + attention + mlp) and len(plain.hidden) == 2
    assert torch.equal(own.attention[0], -torch.ones(2, 2, 4)) and torch.equal(own.hidden[1], first - 2)


def test_another_engine_is_refused():
    with pytest.raises(ValueError, match="0 times, not once: it is another version"):
        drift_engine.source(ENGINE.replace("QUANT(ctx, H);", "QUANT(ctx, 4);"), False)


def test_the_keys_of_the_graphs_states_are_those_that_are_read(tmp_path):
    states = {key: torch.zeros(1, 2, 4) for key in onnx_states.NODES}
    save_file({"input_ids": IDS[:1], **states}, tmp_path / "states.safetensors")
    found = drift.read(tmp_path / "states.safetensors")
    assert len(found.hidden) == 1 + onnx_states.LAYERS == 1 + len(found.attention)
    assert len(set(onnx_states.NODES.values())) == len(onnx_states.NODES)


def test_states_of_a_graph_are_further_outputs_of_it(tmp_path):
    onnx = pytest.importorskip("onnx")
    names = [onnx_states.PLACE + node for node in onnx_states.NODES.values()]
    nodes = [onnx.helper.make_node("Identity", ["x"], [f"of {name}"], name=name) for name in names]
    ends = [onnx.helper.make_tensor_value_info(one, onnx.TensorProto.FLOAT, [2]) for one in ("x", f"of {names[0]}")]
    graph = onnx.helper.make_graph(nodes, "graph", ends[:1], ends[1:])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "in.onnx")
    given = onnx_states.with_outputs(tmp_path / "in.onnx", tmp_path / "out.onnx")
    outputs = [one.name for one in onnx.load(tmp_path / "out.onnx").graph.output]
    assert sorted(outputs) == sorted(given.values()) and given == dict(
        zip(onnx_states.NODES, (f"of {name}" for name in names), strict=True)
    )


def test_rows_of_another_program_are_its_parts_and_the_whole():
    model = load("gpt2-mini")
    other = drift.states(model, torch.tensor([[5, 6, 7, 8, 9, 10]]), torch.float32)
    other.about["by"] = "a test"
    other.hidden[3] = other.hidden[3] * 1.01
    *parts, whole = drift_onnx.rows_of("gpt2-mini", other)
    assert set(parts[0]) == set(drift_onnx.SAID) and len(parts) == 2 + 3 * model.layers
    assert all(row["floor"] < 1e-5 * row["size"] for row in parts)  # that of float32
    assert (whole["verdict"], whole["named_layer"], whole["named_part"]) == ("bug", 2, "layer")
    assert whole["engine"] == "a test" and whole["part"] == "whole" and np.isfinite(whole["angle"])
