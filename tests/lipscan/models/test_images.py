"""Networks that read pictures: their maps against the library's own modules, in a pass of a network loaded afresh."""

import re

import model_types
import pytest
import torch
from cases import relative
from hub import small_model

import lipnb
from lipscan import models
from lipscan.models import files
from lipscan.models.hooks import capture
from lipscan.models.network import run

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


SINGLE = 1e-6  # relative error: the library computes softmax in float32


IMAGE = SIZES | {"image_size": 16, "patch_size": 4}


LISTS = SIZES | {"image_size": [16, 24], "patch_size": [4, 6]}


VIDEO = SIZES | {"image_size": 8, "num_frames": 4}


RADIO = IMAGE | {"num_cls_tokens": 2, "num_registers": 3, "max_img_size": 64}


# model type -> settings, class of its attention, tokens of a picture of its own size
CLOSED = {
    "deit": (IMAGE, "DeiTAttention", 18),
    "vit": (LISTS, "ViTAttention", 17),
    "ijepa": (LISTS, "IJepaAttention", 16),
    "vit_msn": (IMAGE, "ViTMSNAttention", 17),
    "vit_mae": (IMAGE, "ViTMAEAttention", 17),
    "pixio": (IMAGE | {"n_cls_tokens": 3}, "PixioAttention", 19),
    "dinov2_with_registers": (IMAGE | {"num_register_tokens": 3}, "Dinov2WithRegistersAttention", 20),
    "tipsv2_vision_model": (IMAGE | {"num_register_tokens": 2}, "Tipsv2VisionAttention", 19),
    "radio": (RADIO, "RadioAttention", 21),
    "siglip2_vision_model": (SIZES | {"num_patches": 16, "patch_size": 4}, "Siglip2Attention", 16),
    "chinese_clip_vision_model": (IMAGE, "ChineseCLIPVisionAttention", 17),
    "aimv2_vision_model": (IMAGE, "Aimv2Attention", 16),
    "dpt": (IMAGE, "DPTViTAttention", 17),
    "yolos": (IMAGE | {"image_size": [8, 12], "num_detection_tokens": 3}, "YolosAttention", 10),
    "videomae": (VIDEO | {"patch_size": 4, "tubelet_size": 2}, "VideoMAEAttention", 8),
    "vivit": (VIDEO | {"tubelet_size": [2, 4, 4]}, "VivitAttention", 9),
}


RELATIVE = IMAGE | {"use_relative_position_bias": True}


BY_ITSELF = {
    "dinov3_vit": (IMAGE | {"num_register_tokens": 2, "key_bias": False}, "DINOv3ViTAttention", 19),
    "beit": (RELATIVE, "BeitAttention", 17),
    "data2vec-vision": (RELATIVE, "Data2VecVisionAttention", 17),
    "mlcd_vision_model": (IMAGE | {"num_key_value_groups": 1}, "MLCDAttention", 17),
}


SECOND = {"layernorm_before": "layernorm_after", "norm1": "norm2", "layer_norm1": "layer_norm2"}
SECOND |= {"rms_norm1": "rms_norm2"}
EVERY = CLOSED | BY_ITSELF


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """model type -> folder of a small random network."""
    made = {}

    def folder(model_type, settings=None):
        key = (model_type, str(settings))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("vision") / model_type
            small_model(made[key], model_type, dict(settings or EVERY[model_type][0]))
        return made[key]

    return folder


def given_to(model_type, images):
    """What the library's network is called with to read these pictures, as its own preparation of them gives it."""
    if model_type == "siglip2_vision_model":
        high, wide = images.shape[-2] // 4, images.shape[-1] // 4
        cut = torch.nn.functional.unfold(images, 4, stride=4)  # (b, c p p, n), and each patch is read as (p, p, c)
        patches = cut.unflatten(1, (-1, 16)).permute(0, 3, 2, 1).flatten(2)
        shape = torch.tensor([[high, wide]] * len(images))
        return {"pixel_values": patches, "spatial_shapes": shape, "pixel_attention_mask": torch.ones(patches.shape[:2])}
    if model_type == "vit_mae":
        return {"pixel_values": images, "noise": torch.arange(16.0).repeat(len(images), 1)}
    return {"pixel_values": images}


class Fresh:
    """The library's network in float64, and each of its attention modules in a pass of it."""

    def __init__(self, folder, model_type, images, name):
        from transformers import AutoModel

        options = {"mask_ratio": 0.0} if model_type == "vit_mae" else {}
        options |= {"dtype": torch.float64, "attn_implementation": "eager"}
        with files.quiet():
            self.network = AutoModel.from_pretrained(folder, **options).eval()
        self.modules = [module for module in self.network.modules() if type(module).__name__ == name]
        self.calls = {}
        handles = [
            module.register_forward_hook(lambda *call: self.calls.update({call[0]: call[1:]}), with_kwargs=True)
            for module in self.modules
        ]
        with torch.no_grad():
            self.hidden = self.network(**given_to(model_type, images)).last_hidden_state
        for handle in handles:
            handle.remove()

    def layer(self, number):
        """What the attention of a layer received, gave, and is: x, y, and the map from (1, n, d)."""
        module = self.modules[number]
        args, kwargs, given = self.calls[module]
        named = "hidden_states" if not args else None
        x = kwargs["hidden_states"] if named else args[0]

        def attention(x):
            out = module(x, *args[1:], **kwargs) if named is None else module(**kwargs | {named: x})
            return out[0] if isinstance(out, tuple) else out

        return x, given[0] if isinstance(given, tuple) else given, attention


def pictures(model, count=1, sides=None, seed=0):
    own = models.images.picture_shape(model.module.config)
    shape = (count, *own[:-2], *(sides or own[-2:]))
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("model_type", EVERY)
def test_attention_of_every_family_is_that_of_the_library(folders, model_type):
    _, name, tokens = EVERY[model_type]
    model = models.load(folders(model_type), dtype=torch.float64)
    images = pictures(model)
    fresh = Fresh(folders(model_type), model_type, images, name)
    assert (model.layers, model.heads, model.width, model.longest) == (2, 4, 32, tokens)
    assert isinstance(model.attention(0), lipnb.Attention) == (model_type in CLOSED)
    for layer in range(2):
        x, y, own = fresh.layer(layer)
        assert x.shape == (1, tokens, 32)
        assert relative(model.activations(images, layer), x) <= SINGLE
        assert relative(model.attention(layer)(x), y) <= SINGLE
    if model_type in CLOSED:  # the sub-layer with residual, norm and LayerScale ends where the second norm reads
        stream, end = model.activations(images, 1, "block"), SECOND[model.architecture.norm]
        with capture(model.architecture.layers_of(model.module)[1].get_submodule(end)) as ends:
            run(model.module, "pixel_values", images)
        assert relative(model.attention(1, "block")(stream), ends[0].args[0]) <= SINGLE
    J = torch.autograd.functional.jacobian(own, x).reshape(y.numel(), x.numel())
    exact = torch.linalg.matrix_norm(J, 2).item()
    found = lipnb.local_lipschitz(model.attention(1), x, rtol=1e-6)
    assert found.value.item() == pytest.approx(exact, rel=1e-5) and found.converged.all()
    if model_type in ("deit", "dinov2_with_registers", "siglip2_vision_model"):
        bracket = lipnb.certify(model.attention(1), x)
        assert bracket.lower.item() <= exact * (1 + SINGLE) and exact * (1 - SINGLE) <= bracket.upper.item()


@pytest.mark.parametrize("model_type", ["vit_mae", "dinov3_vit", "siglip2_vision_model", "beit"])
def test_the_whole_network_is_that_of_the_library(folders, model_type):
    model = models.load(folders(model_type), dtype=torch.float64)
    images = pictures(model, seed=1)
    network = model.network(inputs=torch.zeros_like(images))
    stream = models.readings(model, images)[0].stream
    fresh = Fresh(folders(model_type), model_type, images, EVERY[model_type][1])
    assert relative(network(stream), fresh.hidden) <= SINGLE
    assert relative(model.activations(images, 0, "block"), stream) <= 1e-12


@pytest.mark.parametrize("model_type", ["dinov2_with_registers", "siglip2_vision_model", "pixio"])
def test_pictures_of_other_sides_where_positions_are_interpolated(folders, model_type):
    model = models.load(folders(model_type), dtype=torch.float64)
    images = pictures(model, count=2, sides=(8, 12))
    fresh = Fresh(folders(model_type), model_type, images, EVERY[model_type][1])
    x, y, _ = fresh.layer(1)
    assert x.shape[1] == EVERY[model_type][2] - 10  # 2 x 3 patches in place of 4 x 4
    assert relative(model.activations(images, 1), x) <= SINGLE and relative(model.attention(1)(x), y) <= SINGLE
    with pytest.raises(ValueError, match="multiples of 4"):
        model.activations(pictures(model, sides=(8, 10)), 1)


def test_a_module_known_by_itself_is_not_called_with_another_number_of_tokens(folders):
    model = models.load(folders("dinov3_vit"), dtype=torch.float64)
    with pytest.raises(ValueError, match=r"reads images: .* of shape \(b, 3, 16, 16\)"):
        model.activations(pictures(model, sides=(8, 8)), 0)
    with pytest.raises(ValueError, match="19 tokens"):
        model.attention(0)(torch.zeros(1, 7, 32, dtype=torch.float64))


def test_a_scan_of_pictures(folders, tmp_path):
    pytest.importorskip("PIL"), pytest.importorskip("sklearn")
    where, options = folders("dinov3_vit"), {"windows": 1, "layers": "1", "dtype": "float64", "progress": False}
    found = lipnb.scan(where, "pictures", output=tmp_path / "out", **options)
    assert found.table.passed.all() and found.table.converged.all() and set(found.table.length) == {19}
    image = models.picture("grace_hopper", 16, mean=(0.5,) * 3, deviation=(0.5,) * 3).double()
    x, _, _ = Fresh(where, "dinov3_vit", image, EVERY["dinov3_vit"][1]).layer(1)
    exact = lipnb.local_lipschitz(models.load(where, dtype=torch.float64).attention(1), x).value.item()
    assert found.table.lipschitz.item() == pytest.approx(exact, rel=1e-4)
    found.report(tmp_path)


def test_videos_are_read_and_pictures_are_not_enough(folders, tmp_path):
    options = {"windows": 1, "layers": "0", "close": False, "progress": False}
    found = lipnb.scan(folders("videomae"), "random", output=tmp_path / "out", **options)
    assert found.about["settings"]["text"].startswith("random videos") and found.table.passed.all()
    with pytest.raises(ValueError, match="videos of 4 images"):
        lipnb.scan(folders("videomae"), "pictures", output=tmp_path / "two", **options)
    with pytest.raises(ValueError, match=r"\(b, 4, 3, 8, 8\)"):
        models.load(folders("videomae")).activations(torch.zeros(1, 3, 8, 8), 0)


STAGES = {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2, "image_size": 16, "patch_size": 2}


@pytest.mark.parametrize(
    ("model_type", "settings", "word"),
    [
        ("swin", STAGES, "stages"),
        ("vitdet", IMAGE, "not map a sequence of tokens"),
        ("pixtral", IMAGE | {"head_dim": 8}, "two inputs"),
        ("video_llama_3_vision", SIZES | {"patch_size": 4}, "grid_thw and merge_sizes"),
    ],
)
def test_what_reads_pictures_in_another_way_is_refused_in_a_sentence(folders, model_type, settings, word):
    with pytest.raises(ValueError, match=word):
        models.load(folders(model_type, settings))


def test_two_towers_of_which_one_reads_pictures(folders):
    towers = {
        "text_config": SIZES | {"vocab_size": 40, "max_position_embeddings": 40},
        "vision_config": SIZES | {"num_patches": 16, "patch_size": 4},
    }
    folder = folders("siglip2", towers)
    with pytest.raises(ValueError, match="part='text'"):
        models.load(folder)
    for part, title, n in (("text", "SigLIP 2 text", 40), ("vision", "SigLIP 2 vision", 16)):
        model = models.load(folder, part=part)
        assert model.describe()["architecture"] == title and model.longest == n
        assert isinstance(model.attention(0), lipnb.Attention)


SHARED = SIZES | {
    **{"vocab_size": 40, "max_position_embeddings": 40, "num_key_value_heads": 2, "head_dim": 6},
    **{"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None},
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 4,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 40,
    "global_head_dim": 6,
}


OF_3N = {"activation_sparsity_pattern": [0.0] * 4, "laurel_rank": 4}


@pytest.mark.parametrize("model_type", ["gemma3n_text", "gemma4_text"])
def test_layers_that_read_the_keys_of_others_are_left_out_and_named(folders, model_type):
    folder = folders(model_type, SHARED | (OF_3N if model_type == "gemma3n_text" else {}))
    model = models.load(folder, dtype=torch.float64)
    why = "Layers 2, 3 of .* read the keys and values of another layer, in addition to tokens: not measured"
    assert model.attending == [0, 1] and model.masked
    assert re.match(why, model.describe()["left_out"])
    with pytest.raises(
        ValueError, match="layer 3 of .* reads the keys and values of .* the layers that do not are 0, 1"
    ):
        model.attention(3)
    ids = torch.randint(3, 40, (1, 9), generator=torch.Generator().manual_seed(0))
    for layer in (0, 1):
        found = lipnb.local_lipschitz(model.attention(layer), model.activations(ids, layer), rtol=1e-6)
        assert found.value.item() == pytest.approx(model_types.constant(model, ids, layer), rel=1e-5)
    stream, hidden = models.readings(model, ids)[0].stream, model.module(ids).last_hidden_state
    assert relative(model.network(inputs=ids)(stream), hidden) <= 1e-12
    with pytest.raises(ValueError, match="depends on the token ids, .* give inputs="):
        model.network()(stream)  # each layer has embeddings of its own
