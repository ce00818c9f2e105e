"""The closed form against attention modules of transformers, small and random, in float64: outputs and Jacobians.

The library computes some steps in float32 whatever the network's type; `exactly` keeps these in float64. Cosines and
sines are made before, in float32 as the library makes them.
"""

from types import SimpleNamespace

import pytest
import torch
import transformers
from cases import normal, relative
from torch.func import jacrev
from transformers.models.cohere import modeling_cohere as cohere
from transformers.models.gemma2 import modeling_gemma2 as gemma2
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.llama import modeling_llama as llama
from transformers.models.mpt import modeling_mpt as mpt
from transformers.models.olmo2 import modeling_olmo2 as olmo2
from transformers.models.phi import modeling_phi as phi
from transformers.models.qwen3 import modeling_qwen3 as qwen3
from transformers.models.t5 import modeling_t5 as t5

from lab.verification.families import exactly
from lipnb import Attention, AttentionJacobian, local_lipschitz
from lipnb.jacobian.streamed import StreamedGram

CLOSE, N = 1e-12, 7
SIZES = {
    "hidden_size": 24,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 2,
    "attn_implementation": "eager",
}


def randomised(module):
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 3
    return module.double().eval().requires_grad_(False)


def blocked(n, window=None):
    """The mask that the library adds to logits, (1, 1, n, n)."""
    places = torch.arange(n)
    far = places[:, None] - places
    hidden = (far < 0) | (far >= (window or n))
    return torch.zeros(n, n).double().masked_fill(hidden, torch.finfo(torch.float64).min)[None, None]


def run(module, embedding, window=None):
    """The module as a map of tokens (n, d), and its rotation."""
    cos, sin = embedding(torch.zeros(1, N, 1).double(), torch.arange(N)[None])

    def f(x):
        return module(x[None], position_embeddings=(cos, sin), attention_mask=blocked(N, window))[0][0]

    return f


def cut(rows, heads):
    return rows.unflatten(0, (heads, -1))


def projections(module, h=6, g=2):
    """What the four projections of a Llama-like module are in `Attention`."""
    output = getattr(module, "o_proj", None) or module.dense
    given = {"output": output.weight.unflatten(1, (h, -1)).movedim(1, 0), "output_bias": output.bias}
    for name, heads in (("query", h), ("key", g), ("value", g)):
        linear = getattr(module, f"{name[0]}_proj")
        given[name] = cut(linear.weight, heads)
        given[f"{name}_bias"] = None if linear.bias is None else cut(linear.bias, heads)
    return given | {"scale": module.scaling, "masked": True}


def of_llama():
    config = transformers.LlamaConfig(**SIZES, attention_bias=True)
    module, embedding = randomised(llama.LlamaAttention(config, 0)), llama.LlamaRotaryEmbedding(config)
    return run(module, embedding), projections(module) | {"frequencies": embedding.inv_freq}


def of_qwen3():
    config = transformers.Qwen3Config(**SIZES, use_sliding_window=True, sliding_window=3, max_window_layers=0)
    module, embedding = randomised(qwen3.Qwen3Attention(config, 0)), qwen3.Qwen3RotaryEmbedding(config)
    assert module.sliding_window == 3
    return run(module, embedding, 3), projections(module) | {
        "frequencies": embedding.inv_freq,
        "window": 3,
        "query_norm": module.q_norm.weight.expand(6, -1),
        "key_norm": module.k_norm.weight.expand(2, -1),
        "norm_eps": config.rms_norm_eps,
    }


def of_olmo2():
    """The mean square of all heads together."""
    config = transformers.Olmo2Config(**SIZES)
    config.head_dim = 8
    module, embedding = randomised(olmo2.Olmo2Attention(config, 0)), olmo2.Olmo2RotaryEmbedding(config)
    return run(module, embedding), projections(module) | {
        "frequencies": embedding.inv_freq,
        "query_norm": cut(module.q_norm.weight, 6),
        "key_norm": cut(module.k_norm.weight, 2),
        "norm_eps": config.rms_norm_eps,
        "joint_norm": True,
    }


def of_gemma2():
    config = transformers.Gemma2Config(**SIZES, attn_logit_softcapping=1.5, query_pre_attn_scalar=5)
    module, embedding = randomised(gemma2.Gemma2Attention(config, 1)), gemma2.Gemma2RotaryEmbedding(config)
    return run(module, embedding), projections(module) | {"frequencies": embedding.inv_freq, "cap": 1.5}


def of_phi():
    rope = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}
    config = transformers.PhiConfig(**SIZES, rope_parameters=rope)
    config.head_dim = 8
    module, embedding = randomised(phi.PhiAttention(config, 0)), phi.PhiRotaryEmbedding(config)
    assert len(embedding.inv_freq) == 2  # of four planes
    return run(module, embedding), projections(module) | {"frequencies": embedding.inv_freq}


def of_cohere():
    """Pairs of coordinates 2 c and 2 c + 1: the rows of queries and keys are put in our order."""
    config = transformers.CohereConfig(**SIZES)
    module, embedding = randomised(cohere.CohereAttention(config, 0)), cohere.CohereRotaryEmbedding(config)
    given, order = projections(module), torch.arange(8).unflatten(0, (4, 2)).T.flatten()
    for name in ("query", "key"):
        given[name] = given[name][:, order]
    return run(module, embedding), given | {"frequencies": embedding.inv_freq}


def of_gpt_oss():
    """Yarn: the gain g of cosines and sines is g^2 in the scale."""
    config = transformers.GptOssConfig(**SIZES)
    module, embedding = randomised(gpt_oss.GptOssAttention(config, 1)), gpt_oss.GptOssRotaryEmbedding(config)
    gain, embedding.attention_scaling = embedding.attention_scaling, 1.0
    assert gain > 1
    f = run(module, lambda x, places: [gain * part for part in embedding(x, places)])
    given = projections(module)
    given["scale"] *= gain**2
    return f, given | {"frequencies": embedding.inv_freq, "sinks": module.sinks}


def of_mpt():
    config = transformers.MptConfig(d_model=24, n_heads=6, n_layers=1)
    module = randomised(mpt.MptAttention(config, 0))
    alibi = mpt.build_mpt_alibi_tensor(6, N).double()
    query, key, value = module.Wqkv.weight.chunk(3)
    slopes = alibi[:, 0, -1:] - alibi[:, 0, -2:-1]
    given = {"query": cut(query, 6), "key": cut(key, 6), "value": cut(value, 6), "masked": True}
    given["output"] = module.out_proj.weight.unflatten(1, (6, -1)).movedim(1, 0)

    def f(x):
        return module(x[None], position_bias=alibi, attention_mask=blocked(N)[0, 0] < 0)[0][0]

    return f, given | {"relative": -slopes * torch.arange(1 - N, N).abs()}


def of_t5():
    config = transformers.T5Config(d_model=24, d_kv=4, num_heads=6, relative_attention_num_buckets=6)
    config.relative_attention_max_distance = 5
    module = randomised(t5.T5Attention(config, has_relative_attention_bias=True))
    reach = 5
    far = torch.arange(-reach, reach + 1)
    buckets = module._relative_position_bucket(far, True, 6, 5)
    given = {name: cut(getattr(module, name[0]).weight, 6) for name in ("query", "key", "value")}
    given["output"] = module.o.weight.unflatten(1, (6, -1)).movedim(1, 0)
    table = module.relative_attention_bias.weight[buckets].T
    return lambda x: module(x[None])[0][0], given | {"scale": 1.0, "relative": table}


MODULES = {
    "llama": of_llama,
    "qwen3": of_qwen3,
    "olmo2": of_olmo2,
    "gemma2": of_gemma2,
    "phi": of_phi,
    "cohere": of_cohere,
    "gpt_oss": of_gpt_oss,
    "mpt": of_mpt,
    "t5": of_t5,
}


@pytest.fixture(scope="module", params=MODULES)
def twin(request):
    """A module as a function, our map of it, tokens, and the Jacobian of the module by automatic differentiation."""
    theirs, given = MODULES[request.param]()
    f, x = Attention(**given), normal(N, 24, seed=1)
    with exactly():
        y, J = theirs(x), jacrev(theirs)(x).flatten(2).flatten(0, 1)
    return SimpleNamespace(f=f, x=x, y=y, J=J)


def test_outputs(twin):
    assert relative(twin.f(twin.x), twin.y) < CLOSE


def test_jacobians(twin):
    J, u = AttentionJacobian(twin.f, twin.x), twin.x.flip(0).reshape(1, -1)
    assert relative(J.dense(), twin.J) < CLOSE
    expected = (twin.J.T @ (twin.J @ u.T)).T
    assert relative(J.gram(u.view(N, 24)).view(1, -1), expected) < CLOSE
    streamed = StreamedGram(twin.f, twin.x[None], rows=3)
    assert relative(streamed.gram(u) * streamed.unit**2, expected) < CLOSE
    found = local_lipschitz(twin.f, twin.x, rtol=1e-10)
    assert found.route == "cached" and relative(found.value, torch.linalg.matrix_norm(twin.J, 2)) < 1e-10
