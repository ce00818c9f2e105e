"""The constant as a tensor with a gradient, against autograd through the singular values of the dense Jacobian."""

import pytest
import torch
from cases import function, normal
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaModel

from lipnb import Attention, differentiable_lipschitz, local_lipschitz
from lipnb.jacobian.autodiff import plain_kernels


class Heads(nn.Module):
    """Attention as people write it: three dimensions, a fused projection, a fused kernel."""

    def __init__(self, width=8, heads=2, *, causal=False, norm=False):
        super().__init__()
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.heads, self.causal = nn.LayerNorm(width) if norm else nn.Identity(), heads, causal

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.project(self.norm(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        heads = scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(heads.transpose(1, 2).reshape(b, n, d))


def llama():
    config = LlamaConfig(hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                         num_key_value_heads=1, vocab_size=10)  # fmt: skip
    model = LlamaModel(config).eval()

    def layer(x):
        places = model.rotary_emb(x, torch.arange(x.shape[-2])[None])
        out = model.layers[0](x, position_embeddings=places, attention_mask=None)
        return out[0] if isinstance(out, tuple) else out

    return model.layers[0], layer


def transposed(module):
    return module, lambda x: module(x.mT).mT


def multihead(**options):
    module = nn.MultiheadAttention(8, 2, batch_first=True, **options)
    return module, lambda x: module(x, x, x, need_weights=False)[0]


def with_weights():
    module = nn.MultiheadAttention(8, 2, batch_first=True)
    return module, lambda x: module(x, x, x)[0]


def alone(module):
    return module, module


def first_of(module):
    return module, lambda x: module(x)[0]


def kept():
    module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    return module, lambda x: checkpoint(module, x, use_reentrant=False)


def encoder(**options):
    return alone(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options).eval())


MODULES = {
    "SDPA": lambda: alone(Heads()),
    "SDPA, causal": lambda: alone(Heads(causal=True)),
    "SDPA after LayerNorm": lambda: alone(Heads(norm=True)),
    "SDPA, four heads": lambda: alone(Heads(heads=4)),
    "MultiheadAttention": multihead,
    "MultiheadAttention with weights": with_weights,
    "MultiheadAttention without bias": lambda: multihead(bias=False, add_zero_attn=True),
    "encoder layer": encoder,
    "encoder layer, GELU, norm first": lambda: encoder(activation="gelu", norm_first=True),
    "decoder's norm and feed-forward": lambda: alone(nn.Sequential(nn.RMSNorm(8), nn.Linear(8, 9), nn.SiLU())),
    "Llama layer": llama,
    "convolution": lambda: transposed(nn.Sequential(nn.Conv1d(8, 6, 3, padding=1), nn.Tanh(), nn.Conv1d(6, 8, 3))),
    "strided convolution": lambda: transposed(nn.Sequential(nn.Conv1d(8, 6, 3, stride=2), nn.SiLU())),
    "depthwise convolution": lambda: transposed(nn.Sequential(nn.Conv1d(8, 8, 3, groups=8), nn.Softplus())),
    "ReLU": lambda: alone(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))),
    "GELU": lambda: alone(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))),
    "linear": lambda: alone(nn.Linear(8, 8)),
    "recurrent": lambda: first_of(nn.GRU(8, 8, batch_first=True)),
    "LSTM": lambda: first_of(nn.LSTM(8, 8, batch_first=True)),
    "softmax of tokens": lambda: alone(nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1), nn.Linear(8, 8))),
    "checkpoint": kept,
}  # fmt: skip


def drawn(made):
    """What `made` gives, its weights drawn from a seed of their own."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return made()


def through_singular_values(f, x):
    """The constants of a batch by autograd through the singular values of dense Jacobians."""
    values = []
    for one in x:
        J = torch.autograd.functional.jacobian(lambda z: f(z[None])[0], one, create_graph=True)
        values.append(torch.linalg.matrix_norm(J.flatten(0, 1).flatten(1), 2))
    return torch.stack(values)


def gradient(constants, module, x):
    """Of a weighted sum of the constants, in parameters and tokens: one vector, float64."""
    inputs = [*module.parameters(), x]
    weights = torch.linspace(1, 0.3, len(constants), dtype=constants.dtype)
    found = torch.autograd.grad(weights @ constants, inputs, allow_unused=True)
    parts = [torch.zeros_like(one) if part is None else part for one, part in zip(inputs, found, strict=True)]
    return torch.cat([part.double().flatten() for part in parts])


def test_the_gradient_is_that_of_the_largest_singular_value():
    """Of a batch, in parameters and tokens, in both precisions; Llama's norms and angles are of float32 in both."""
    for dtype, allowed in ((torch.float64, 1e-7), (torch.float32, 3e-5)):
        for name, made in MODULES.items():
            module, f = drawn(made)
            module.to(dtype)
            x = normal(2, 4, 8).to(dtype).requires_grad_()
            constants = differentiable_lipschitz(f, x)
            assert constants.shape == (2,) and constants.dtype == dtype
            own = gradient(constants, module, x)
            module.double()
            y = x.detach().double().requires_grad_()
            with plain_kernels():
                exact = through_singular_values(f, y)
                true = gradient(exact, module, y)
            assert torch.allclose(constants.double(), exact, rtol=allowed, atol=0), name
            assert (own - true).norm() <= (3e-5 if name == "Llama layer" else allowed) * true.norm(), (name, dtype)


def test_attention_of_tensors_that_require_a_gradient():
    matrices, x = normal(3, 2, 3, 4).requires_grad_(), normal(5, 4, seed=1)
    found = torch.autograd.grad(differentiable_lipschitz(Attention(*matrices), x), matrices)[0]
    J = torch.autograd.functional.jacobian(Attention(*matrices), x, create_graph=True).flatten(2).flatten(0, 1)
    true = torch.autograd.grad(torch.linalg.matrix_norm(J, 2), matrices)[0]
    assert (found - true).norm() < 1e-7 * true.norm()


def test_lists_no_grad_and_gradients_that_are_zero():
    module, x = drawn(lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).double()), normal(2, 6, 8)
    mixed = [x[0], x[1, :3]]
    found, expected = differentiable_lipschitz(module, mixed), local_lipschitz(module, mixed).value
    assert torch.allclose(found, expected) and found.requires_grad
    for wrong in ({"rtol": -1.0}, {"max_steps": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            differentiable_lipschitz(module, mixed, **wrong)
    with torch.no_grad():
        assert not differentiable_lipschitz(module, x).requires_grad
    tokens = x.requires_grad_()
    assert (torch.autograd.grad(differentiable_lipschitz(lambda z: 2 * z, tokens).sum(), tokens)[0] == 0).all()
    nothing = drawn(lambda: nn.Linear(8, 8).double())
    nn.init.zeros_(nothing.weight)
    constants = differentiable_lipschitz(nothing, x.detach())
    constants.sum().backward()
    assert (constants == 0).all() and (nothing.weight.grad == 0).all()


def test_the_number_has_no_gradient():
    module = drawn(lambda: nn.Linear(8, 8))
    assert not local_lipschitz(module, normal(6, 8).float().requires_grad_()).value.requires_grad


ONCE = function(torch.sin, lambda z, w: w * z.cos(), lambda z, u: u * z.cos(), once_differentiable)


def test_what_would_train_nothing_or_wrongly_is_refused():
    module, x = drawn(lambda: nn.Linear(8, 8).double()), normal(6, 8)
    frozen = Attention(*normal(3, 2, 3, 8))
    module.requires_grad_(False)
    for f in (torch.sin, frozen, module, lambda z: z @ module.weight):
        with pytest.raises(ValueError, match=r"^nothing that the constant depends on .*local_lipschitz\(f, x\)"):
            differentiable_lipschitz(f, x)
    module.requires_grad_(True)
    for tokens in (x, x.clone().requires_grad_()):
        with pytest.raises(ValueError, match="the gradient of the constant cannot be taken.*only once"):
            differentiable_lipschitz(lambda z: ONCE(module(z)), tokens)


def test_a_checkpoint_of_fused_attention_is_refused_with_a_way_out():
    module, x = drawn(Heads).double(), normal(2, 6, 8)

    def f(z):
        return checkpoint(module, z, use_reentrant=False)

    with pytest.raises(ValueError, match=r"the gradient of the constant cannot be taken.*sdpa_kernel\(SDPBackend.MATH"):
        differentiable_lipschitz(f, x)
    parameters = [module.project.weight, module.out.weight]
    with sdpa_kernel(SDPBackend.MATH):  # as it says
        found = torch.autograd.grad(f(x).sum() + differentiable_lipschitz(f, x).sum(), parameters)
    expected = torch.autograd.grad(module(x).sum() + differentiable_lipschitz(module, x).sum(), parameters)
    assert all(torch.allclose(one, other) for one, other in zip(found, expected, strict=True))
