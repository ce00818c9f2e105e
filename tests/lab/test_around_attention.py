"""What stands around attention: products with the Jacobian of a sub-layer, and networks as their layers in a row."""

import needs
import pytest
import torch

from lab.experiments import around_attention
from lab.experiments.head_terms import MODELS
from lab.experiments.loading import load
from lab.verification import families
from lipscan import models


@pytest.mark.parametrize("name", ["minilm", "gpt2-mini", "dinov2"])
@pytest.mark.parametrize("inner", [False, True])
def test_products_with_a_sub_layer_are_those_of_automatic_differentiation(tmp_path, name, inner):
    if name == "dinov2":  # with LayerScale after its attention
        families.written(tmp_path / name, name, families.SMALL[name][0])
    model = load(str(tmp_path / name) if name == "dinov2" else name)
    block, x = model.attention(1, "block"), torch.randn(1, 5, model.width, generator=torch.Generator().manual_seed(0))
    if block.pre_norm:
        f = (lambda y: block(y) - y) if inner else block
    else:
        f = (lambda y: y + block.attention(y)) if inner else block
    u, w = torch.randn(2, 1, 5, model.width, generator=torch.Generator().manual_seed(1))
    forward, backward = around_attention.sublayer(block, x, inner)
    assert torch.allclose(forward(u), torch.func.jvp(f, (x,), (u,))[1], rtol=1e-3, atol=1e-4)
    assert torch.allclose(backward(w), torch.func.vjp(f, x)[1](w)[0], rtol=1e-3, atol=1e-4)


def test_layers_in_a_row_are_the_network():
    model = load("minilm")
    ids = model.token_ids("Alice was beginning to get very tired")[None]
    read = models.readings(model, ids)
    with torch.no_grad():
        assert torch.allclose(
            around_attention.composed(read)(read[0].stream), model.module(ids).last_hidden_state, atol=1e-4
        )


@needs.ALICE
@needs.DINOV2
def test_pictures_are_measured_at_the_nearest_lengths_they_have():
    """And every model of the atlas at windows of its own, a decoder beside its encoder."""
    settings, units = around_attention.sublayers([MODELS[0], MODELS[1], MODELS[5]])
    keys = [f"{name}/alice/{n}" for name in ("minilm", "minilm/masked") for n in around_attention.LENGTHS]
    assert [unit.key for unit in units] == [*keys, *(f"dinov2-small/grace_hopper/{n}" for n in (17, 37, 122, 485))]
    assert [model["masked"] for model in settings["models"]] == [False, True, False]
