"""Networks in other types: float64 throughout, frequencies of rotations, and sums in another order."""

import torch
from scans import small

from lipscan import models
from lipscan.drift import precision
from lipscan.drift.passes import network_of
from lipscan.drift.runs import one_pass

IDS = torch.arange(2, 11)[None]


def test_a_float64_network_computes_its_norms_and_rotations_in_float64(families):
    network = network_of(models.load(families / "llama")).to(torch.float64)
    norm, x = network.layers[0].input_layernorm, torch.linspace(-1, 2, 160, dtype=torch.float64).view(5, 32).sin()
    wanted = norm.weight * x / (x.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()
    with precision.exact():
        found = norm(x)
        cosines, _ = network.inner.rotary_emb(x[None], torch.arange(5)[None])
    assert (found - wanted).norm() < 1e-14 * wanted.norm() < (norm(x) - wanted).norm()
    base, d = network.inner.config.rope_parameters["rope_theta"], network.layers[0].self_attn.head_dim
    angles = torch.arange(5)[:, None] * base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    assert (cosines[0, :, : d // 2] - angles.cos()).abs().max() < 1e-14


def test_a_network_in_a_low_type_keeps_its_frequencies_and_the_model_stays_as_it_was(families):
    model = models.load(families / "llama")
    low = network_of(model).to(torch.bfloat16)
    assert low.inner.rotary_emb.inv_freq.dtype == torch.float32 and low.dtype == torch.bfloat16
    assert model.module.dtype == torch.float32


def test_sums_in_another_order_are_the_same_map_and_other_roundings(families):
    for name in ("bert", "gpt2", "llama"):
        network = network_of(models.load(families / name))
        plain, other = (one_pass(network, IDS, by).hidden[-1] for by in ("eager", "order"))
        assert 0 < (plain - other).norm() < 1e-5 * plain.norm()
        assert network.inner.config._attn_implementation == "eager"


def test_another_kernel_is_used_inside_the_block_alone(families):
    model = small(families / "gpt2")
    with precision.kernel(model.module, "sdpa"):
        assert model.module.config._attn_implementation == "sdpa"
    assert model.module.config._attn_implementation == "eager"
