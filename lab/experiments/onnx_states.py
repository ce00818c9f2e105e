"""States of the exported paraphrase-MiniLM-L3-v2 in ONNX Runtime, written as `lipnb drift --against` reads them.

It runs in a Python of its own, which has the packages numpy, onnx, onnxruntime and safetensors; of this project it
needs nothing: ``python onnx_states.py GRAPH.onnx REFERENCE.safetensors FOLDER``. The token ids are those of the
reference, a file of ``lipnb drift minilm-l3 --dump REFERENCE.safetensors``. It writes FOLDER/RUN.safetensors for each
of `RUNS`.
"""

import sys
from pathlib import Path

PLACE = "/model/model.0/auto_model/"
LAYERS = 3
RUNS = ("float32", "float32, not optimised", "int8")
# key of a state -> node of the export that gives it
NODES = {"hidden_states.0": "embeddings/LayerNorm/LayerNormalization"}
for _layer in range(LAYERS):
    _at = f"encoder/layer.{_layer}/"
    NODES[f"attention.{_layer}"] = f"{_at}attention/output/dense/Add"
    NODES[f"mlp.{_layer}"] = f"{_at}output/dense/Add"
    NODES[f"hidden_states.{_layer + 1}"] = f"{_at}output/LayerNorm/LayerNormalization"


def with_outputs(graph, path):
    """Write a graph that gives the states of `NODES` as further outputs; returns their names: key -> name."""
    import onnx

    model = onnx.load(graph)
    gives, outputs = {node.name: node.output[0] for node in model.graph.node}, model.graph.output
    names = {key: gives[PLACE + node] for key, node in NODES.items()}
    for name in names.values():
        if name not in [one.name for one in outputs]:
            outputs.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    onnx.save(model, path)
    return names


def states(graph, names, ids, *, optimised=True):
    """States of a run on token ids (b, n), one sequence after the other: key -> array (b, n, d).

    `names`: of its outputs, from `with_outputs`.
    """
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    fed = [{"input_ids": one[None], "attention_mask": np.ones_like(one[None])} for one in ids]
    runs = [session.run([*names.values()], one) for one in fed]
    return {key: np.concatenate(parts) for key, parts in zip(names, zip(*runs, strict=True), strict=True)}


def main(graph, reference, folder):
    """Write the states of all runs."""
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from safetensors.numpy import load_file, save_file

    ids, folder = load_file(reference)["input_ids"], Path(folder)
    plain, small = folder / "plain.onnx", folder / "int8.onnx"
    names = with_outputs(graph, plain)
    quantize_dynamic(plain, small, weight_type=QuantType.QInt8)
    for name in RUNS:
        found = states(small if name == "int8" else plain, names, ids, optimised="not" not in name)
        about = {"model": "paraphrase-MiniLM-L3-v2", "dtype": name, "by": f"onnxruntime {onnxruntime.__version__}"}
        save_file({"input_ids": ids} | found, folder / f"{name}.safetensors", about)


if __name__ == "__main__":
    main(*sys.argv[1:])
