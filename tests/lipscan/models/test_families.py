"""Small networks of a few families, and what is theirs alone; all maps are compared in tests/lab."""

from functools import cache

import pytest
import torch
from cases import relative
from hub import given

from lipscan import models


@cache
def loaded(root, name, dtype=torch.float64, **options):
    return models.load(root / name, dtype=dtype, **options)


def some_input(model, n=12, b=2):
    generator = torch.Generator().manual_seed(0)
    if model.architecture.reads == "pixel_values":
        return torch.randn(b, 3, 16, 16, generator=generator)
    return torch.randint(5, model.module.config.vocab_size, (b, n), generator=generator)


def test_a_roberta_can_be_a_decoder(families):
    for name in ["roberta", "xlm-roberta"]:
        model = loaded(families, name, masked=True)
        inputs = some_input(model)
        x, out = given(model, inputs, 1)
        assert model.masked and relative(model.attention(1)(x), out) <= 1e-10


def test_how_long_a_sequence_may_be(families):
    for name, most in [("bert", 40), ("roberta", 38), ("mistral", 40), ("llama", 40)]:
        model = loaded(families, name)
        assert model.longest == most
        assert model.activations(some_input(model, n=most), 1).shape[1] == most
        with pytest.raises(ValueError, match=f"{most} positions"):
            model.activations(some_input(model, n=most + 1), 1)


def test_a_vit_reads_images_of_its_size(families):
    model = loaded(families, "vit")
    assert model.longest == 17 and model.tokenizer is None
    assert model.activations(some_input(model), 0).shape == (2, 17, 32)
