"""Automatic differentiation at its edges: what has no derivative, or two that differ, is refused."""

import functools
import math

import numpy as np
import pytest
import torch
from cases import normal, random_case, relative
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from lipnb import Attention, AttentionJacobian, AutodiffJacobian, block_norms, certify, local_lipschitz, singular_pair
from lipnb.jacobian.autodiff import RecordedJacobian


def test_autodiff_goes_through_fused_attention():
    x = normal(2, 5, 4)
    twin = AutodiffJacobian(lambda y: scaled_dot_product_attention(y, y, y), x)
    step = normal(x.shape, seed=1)
    difference = (twin.f(x + 1e-6 * step) - twin.f(x - 1e-6 * step)) / 2e-6
    assert relative(twin.jvp(step), difference) < 1e-7


def test_bad_inputs():
    case = random_case(1, n=4)
    jacobian = AttentionJacobian(case.attention, case.x)
    with pytest.raises(ValueError, match="u must have shape"):
        jacobian.jvp(case.x[:, :2])
    with pytest.raises(ValueError, match="w must have shape"):
        jacobian.vjp(case.x[..., :0])
    with pytest.raises(ValueError, match="x holds NaN"):
        AttentionJacobian(case.attention, case.x * torch.nan)
    with pytest.raises(ValueError, match="x holds NaN"):
        AutodiffJacobian(case.attention, case.x * torch.nan)
    with pytest.raises(ValueError, match="at least one token"):
        AutodiffJacobian(case.attention, case.x[:, :0])
    with pytest.raises(ValueError, match="the map must return one tensor"):
        AutodiffJacobian(lambda x: x.sum(), case.x)
    wide = Attention(*(torch.zeros(1, 1, 4000) for _ in range(2)), torch.zeros(1, 4000, 4000))
    with pytest.raises(ValueError, match="use jvp and vjp"):
        AttentionJacobian(wide, torch.zeros(20, 4000)).dense()


def test_an_output_cut_off_from_its_input_is_refused():
    for f in [lambda z: z.detach(), lambda z: z.data * 2, torch.no_grad()(lambda z: z * 2), torch.ones_like]:
        x = torch.ones(2, 3)
        with pytest.raises(ValueError, match="no way from the map's output to its input"):
            AutodiffJacobian(f, x)
        with pytest.raises(ValueError, match="no way from the map's output to its input"):
            local_lipschitz(f, x)
        assert (AutodiffJacobian(lambda z: 0 * z, x).dense() == 0).all()


class Once(torch.autograd.Function):
    """The square, which nobody can differentiate twice."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, w):
        return 2 * ctx.saved_tensors[0] * w

    @staticmethod
    def jvp(ctx, u):
        return 2 * ctx.saved_tensors[0] * u


def test_products_of_one_recorded_run_are_those_of_forward_and_reverse_mode():
    case, calls = random_case(3), []

    def f(x):
        calls.append(len(x))
        return torch.tanh(case.attention(torch.nn.functional.gelu(x)))

    twin, recorded = AutodiffJacobian(f, case.x), RecordedJacobian(f, case.x)
    generator = torch.Generator().manual_seed(0)
    u, w = (torch.randn(shape, generator=generator).double() for shape in (case.x.shape, f(case.x).shape))
    calls.clear()
    for _ in range(3):
        forward, back = recorded.jvp(u), recorded.vjp(w)
    assert not calls  # the map itself is not run again
    assert relative(forward, twin.jvp(u)) < 1e-13 and relative(back, twin.vjp(w)) < 1e-13
    assert relative(recorded.dense(), twin.dense()) < 1e-13


class WrongTwice(Once):
    """The square, whose backward pass is linear in the cotangent in name only."""

    @staticmethod
    def backward(ctx, w):
        return 2 * ctx.saved_tensors[0] * (3 * w - 2 * w.detach())


class RaisesTwice(Once):
    """The square, whose backward pass refuses to be recorded by an error of its own."""

    @staticmethod
    def backward(ctx, w):
        if torch.is_grad_enabled() and w.requires_grad:
            raise ValueError("no second derivative here")
        return 2 * ctx.saved_tensors[0] * w


SQUARES = {"not twice": Once.apply, "wrong twice": WrongTwice.apply, "raises twice": RaisesTwice.apply}


def test_what_cannot_be_differentiated_twice_goes_by_forward_mode():
    for name in SQUARES:
        f, x = SQUARES[name], torch.linspace(0.1, 1, 6, dtype=torch.float64).view(2, 3)
        J, u = RecordedJacobian(f, x), x.flip(1) - 0.3
        assert relative(J.jvp(u), 2 * x * u) < 1e-13 and relative(J.vjp(u), 2 * x * u) < 1e-13
        assert abs(local_lipschitz(f, x).value - 2) < 1e-3


def test_the_record_is_compared_in_each_sequence_and_in_small_parts():
    """A wrong derivative beside a large right one, in the map or in the batch, is still a wrong one."""
    x = torch.ones(2, 2, 3, dtype=torch.float64)
    large = torch.tensor([1e5, 0.0], dtype=torch.float64)[:, None, None]
    lip = local_lipschitz(lambda t: large * t + WrongTwice.apply(t), x)
    assert torch.allclose(lip.value, torch.tensor([1e5 + 2, 2.0], dtype=torch.float64), rtol=1e-4)
    small = local_lipschitz(lambda t: t + 1e-4 * WrongTwice.apply(t), x[0].float(), rtol=1e-5)
    assert small.value <= 1.0002 * (1 + 1e-6) and 1.0002 <= small.upper * (1 + 1e-6)


def test_squares_of_tiny_and_huge_constants_stay_in_range():
    for scale in [1e-200, 1e-160, 1e-30, 1e-23, 1e25, 1e150]:
        dtype = torch.float64 if abs(math.log10(scale)) > 35 else torch.float32
        x = torch.ones(2, 3, 4, dtype=dtype)
        sizes = torch.tensor([scale, 3e3 * scale], dtype=dtype)[:, None, None]
        lip = local_lipschitz(lambda t: sizes * t * torch.arange(1, 5), x)
        assert torch.allclose(lip.value / (4 * scale), torch.tensor([1, 3e3]).to(lip.value), rtol=1e-3)
        assert (lip.upper >= 4 * sizes.flatten().double() * (1 - 1e-5)).all() and lip.converged.all()


def test_the_dense_jacobian_of_a_map_that_hands_its_cotangent_back():
    for f in [lambda t: t, lambda t: t + 1, lambda t: t.reshape(4, 3), lambda t: t + (t.round() - t).detach()]:
        x = torch.linspace(0, 1, 12, dtype=torch.float64).view(3, 4)
        assert torch.equal(AutodiffJacobian(f, x).dense(), torch.eye(12, dtype=torch.float64))
        assert abs(local_lipschitz(f, x, method="dense").value - 1) < 1e-12


class OldStyle(torch.autograd.Function):
    """A sine as extensions write it: forward with a context, no forward mode, nothing for `torch.func`."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, w):
        return ctx.saved_tensors[0].cos() * w


class OldStyleOnce(OldStyle):
    """And one whose backward pass is a kernel of its own, as that of FlashAttention."""

    @staticmethod
    @once_differentiable
    def backward(ctx, w):
        assert math.isfinite(w.sum().item())  # which many cotangents at once are not asked
        return ctx.saved_tensors[0].cos() * w


class OldStyleWrong(OldStyle):
    """And one whose backward pass cannot be recorded as a whole."""

    @staticmethod
    def backward(ctx, w):
        return ctx.saved_tensors[0].cos() * (3 * w - 2 * w.detach())


def test_maps_without_forward_mode_go_by_reverse_mode_twice():
    x = normal(2, 4, 3)
    matrix = normal(3, 3, seed=1)

    def inner(z):
        return torch.sin(z @ matrix)

    expected = local_lipschitz(inner, x, method="dense").value
    for f in (
        lambda z: OldStyle.apply(z @ matrix),
        lambda z: torch.utils.checkpoint.checkpoint(inner, z, use_reentrant=False),
    ):
        lip, pair = local_lipschitz(f, x), singular_pair(f, x)
        assert torch.allclose(lip.value, expected, rtol=1e-4) and (lip.upper >= expected * (1 - 1e-9)).all()
        assert torch.allclose(pair.value, expected, rtol=1e-4)
        assert relative(AutodiffJacobian(f, x).jvp(x), AutodiffJacobian(inner, x).jvp(x)) < 1e-13
        assert torch.allclose(block_norms(f, x), block_norms(inner, x), rtol=1e-12)
    once = lambda z: OldStyleOnce.apply(z @ matrix)  # noqa: E731
    for call in (local_lipschitz, singular_pair, lambda f, x: AutodiffJacobian(f, x).jvp(x)):
        with pytest.raises(ValueError, match="neither forward mode .* nor reverse mode twice .* method='dense'"):
            call(once, x)
    assert torch.allclose(local_lipschitz(once, x, method="dense").value, expected, rtol=1e-12)
    assert block_norms(once, x).isfinite().all()
    with pytest.raises(ValueError, match="forward and reverse mode disagree"):
        local_lipschitz(lambda z: OldStyleWrong.apply(z @ matrix), x)
    with pytest.raises(ValueError, match="reverse mode fails on this map.*use_reentrant=False"):
        local_lipschitz(lambda z: torch.utils.checkpoint.checkpoint(inner, z, use_reentrant=True), x)


def test_a_map_that_mixes_its_sequences_is_refused():
    x = normal(4, 5, 8)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        mixing, fine = (torch.nn.MultiheadAttention(8, 2, batch_first=first).double() for first in (False, True))
    for f in (
        lambda z: mixing(z, z, z)[0],
        lambda z: z - z.mean(0),
        lambda z: z.cumsum(0),
        lambda z: z.flip(0).cumsum(0),
        lambda z: z + 1e-9 * z.roll(1, 0),
    ):
        for call in (local_lipschitz, singular_pair, block_norms, AutodiffJacobian):
            for some in (x, x[:2]):
                with pytest.raises(ValueError, match="the map mixes the sequences of its batch"):
                    call(f, some)
    for f in (lambda z: z - z.mean(0), lambda z: z.softmax(0), lambda z: mixing(z, z, z)[0]):
        for one in ([x[0]], [x[0], x[1, :3]], x[:1]):  # each a batch of one sequence
            with pytest.raises(ValueError, match="the map mixes the sequences of its batch"):
                local_lipschitz(f, one)
    for i, j in ((0, 1), (0, 2), (1, 2), (3, 0), (3, 2)):  # one sequence moves one other alone
        matrix = torch.eye(4, dtype=torch.float64)
        matrix[i, j] = 1
        with pytest.raises(ValueError, match="the map mixes the sequences of its batch"):
            local_lipschitz(lambda z, matrix=matrix: torch.einsum("ab,bnd->and", matrix, z), x)
    for f in (lambda z: fine(z, z, z)[0], lambda z: z - z.mean(-2, keepdim=True)):
        whole, alone = local_lipschitz(f, x), [local_lipschitz(f, one[None]).value[0] for one in x]
        assert torch.allclose(whole.value, torch.stack(alone), rtol=1e-6)


def test_the_dense_method_compares_the_two_modes_too():
    """Random parts behind one large activation, a part under no_grad, a hook that changes gradients."""
    x = normal(5, 4)
    large, dropout = x.clone(), torch.nn.Dropout(0.5)
    large[0, 0] = 1e9

    def hooked(z):
        out = 3 * z
        if out.requires_grad:
            out.register_hook(lambda gradient: 2 * gradient)
        return out

    with torch.random.fork_rng():
        torch.manual_seed(0)
        for f, at in (
            (lambda z: z + dropout(z.tanh()), large),
            (lambda z: z + torch.no_grad()(torch.sin)(z), x),
            (hooked, x),
        ):
            with pytest.raises(ValueError, match="forward and reverse mode disagree"):
                local_lipschitz(f, at, method="dense")


def test_maps_that_write_into_what_they_are_given_or_leave_pytorch():
    x = normal(5, 4)
    before = x.clone()
    for method in ("lanczos", "power", "dense"):
        lip = local_lipschitz(lambda z: z.mul_(2), x, method=method)
        assert lip.value.item() == pytest.approx(2) and torch.equal(x, before)
        with pytest.raises(ValueError, match="goes through NumPy"):
            local_lipschitz(lambda z: torch.from_numpy(np.tanh(z.numpy())), x, method=method)
        with pytest.raises(ValueError, match="must return one tensor"):
            local_lipschitz(lambda z: z[..., :0], x, method=method)


def test_rows_that_are_masked_wholly():
    """PyTorch's own attention gives such rows zeros, and so a Jacobian that is 0; a softmax of -inf alone is NaN."""
    x = normal(5, 4)
    seen = torch.ones(5, 5, dtype=torch.bool).tril()
    seen[2] = False

    def logits(z):
        return (z @ z.mT).masked_fill(~seen, -torch.inf)

    def zeros(z):
        return torch.where(seen.any(-1, keepdim=True), logits(z).softmax(-1), 0) @ z

    for f in (lambda z: torch.nn.functional.scaled_dot_product_attention(z, z, z, attn_mask=seen), zeros):
        found = block_norms(f, x)
        assert (found[2] == 0).all() and (found[[0, 1, 3, 4]].amax(-1) > 0).all()
        exact = local_lipschitz(f, x, method="dense").value
        assert local_lipschitz(f, x).value == pytest.approx(exact.item(), rel=1e-4)
    for f, said in (
        (lambda z: logits(z).softmax(-1) @ z, "the map gives NaN at this input.*masked wholly"),
        (lambda z: torch.nan_to_num(logits(z).softmax(-1)) @ z, "product is NaN.*hides the NaN inside.*masked wholly"),
    ):
        with pytest.raises(ValueError, match=said):
            local_lipschitz(f, x)
    with pytest.raises(ValueError, match="the map gives NaN"):
        block_norms(lambda z: logits(z).softmax(-1) @ z, x)
    # an output of -inf that does not move has no part in the Jacobian
    half = local_lipschitz(lambda z: torch.cat([z.sin(), torch.full_like(z, -torch.inf)], -1), x).value
    assert half == pytest.approx(x.cos().abs().max().item(), rel=1e-4)


def test_sixteen_bits_are_refused_and_the_sentence_says_float():
    for dtype in [torch.bfloat16, torch.float16]:
        case = random_case(5)
        f, x = case.attention.to(dtype=dtype), case.x.to(dtype)
        for g in (f, torch.sin):
            for call in (local_lipschitz, singular_pair, block_norms, AutodiffJacobian):
                with pytest.raises(ValueError, match=r"use \.to\(torch.float32\) on the tokens and on the map"):
                    call(g, x)
        for call in (lambda: AttentionJacobian(f, x), lambda: local_lipschitz(f, [x[0], x[0]])):
            with pytest.raises(ValueError, match=r"use \.to\(torch.float32\) on the tokens and on the map"):
                call()
        assert local_lipschitz(f.to(torch.float32), x.to(torch.float32)).converged.all()  # as it says
        assert (certify(f, x).lower > 0).all()  # of the same numbers in float64


class Constant(torch.autograd.Function):
    """A map of derivative 0, whose forward mode gives what `tangent` makes of a change."""

    tangent = None

    @staticmethod
    def forward(z):
        return torch.ones_like(z)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, w):
        return torch.zeros_like(w)

    @staticmethod
    def jvp(ctx, u):
        return Constant.tangent(u)


def test_where_all_cancels_rounding_is_no_disagreement_of_the_two_modes(monkeypatch):
    x = torch.linspace(1, 2, 12, dtype=torch.float64).view(3, 4)
    monkeypatch.setattr(Constant, "tangent", lambda u: (1e4 / 3 * u + 1e4 / 7 * u) - (1e4 / 3 + 1e4 / 7) * u)
    assert local_lipschitz(Constant.apply, x, method="dense").value == 0
    monkeypatch.setattr(Constant, "tangent", lambda u: 1e-17 * u)  # linear, and nothing that an output could show
    assert local_lipschitz(Constant.apply, x, method="dense").value == 0
    monkeypatch.setattr(Constant, "tangent", lambda u: 1e-12 * u)  # as small as the first, and linear: no rounding
    with pytest.raises(ValueError, match="forward and reverse mode disagree"):
        local_lipschitz(Constant.apply, x, method="dense")


def test_two_modes_that_disagree_are_refused():
    x = torch.linspace(0, 1, 12, dtype=torch.float64).view(3, 4)
    with pytest.raises(ValueError, match="forward and reverse mode disagree about this map"):
        local_lipschitz(lambda t: t + torch.no_grad()(lambda z: 100 * z)(t), x)


def test_a_random_map_is_refused():
    x = torch.linspace(0, 1, 64, dtype=torch.float64).view(2, 4, 8)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for f in (torch.nn.Dropout(0.5).train(), lambda t: t @ torch.randn(8, 8, dtype=t.dtype)):
            with pytest.raises(ValueError, match=r"two different outputs for one input: call \.eval\(\)"):
                local_lipschitz(f, x)
        assert abs(local_lipschitz(torch.nn.Dropout(0.5).eval(), x).value - 1).max() < 1e-4


def test_the_fast_path_of_a_transformer_layer_is_left_alone():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval().double()
    for parameter in layer.parameters():
        parameter.requires_grad_(False)  # only then the fast path is taken
    x, before = (
        torch.linspace(-1, 1, 80, dtype=torch.float64).view(2, 5, 8).sin(),
        torch.backends.mha.get_fastpath_enabled(),
    )
    lip = local_lipschitz(layer, x)
    assert torch.backends.mha.get_fastpath_enabled() == before
    J = AutodiffJacobian(layer, x)
    exact = torch.linalg.matrix_norm(J.dense(), 2)
    assert torch.allclose(lip.value, exact, rtol=1e-4) and (lip.upper >= exact * (1 - 1e-9)).all()
    with torch.no_grad():  # forward mode itself: without it reverse mode twice would stand in, unseen
        pushed = J._pushed(x)
    assert relative(pushed.flatten(1), (J.dense() @ x.flatten(1)[..., None])[..., 0]) < 1e-12


def function(forward, backward):
    """An autograd function without forward mode."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z):
            ctx.save_for_backward(z)
            return forward(z)

        @staticmethod
        def backward(ctx, w):
            return backward(ctx.saved_tensors[0], w)

    return Function.apply


SAME = function(torch.clone, lambda z, w: w.clone())  # it takes forward mode away


def test_a_backward_pass_that_is_not_the_derivative_is_found_by_the_values_of_the_map():
    x, matrix = normal(2, 6, 8, seed=5), normal(8, 8, seed=1)
    for dtype, factors in ((torch.float64, (1.1, 1.001, 0.5, -1, 0.0)), (torch.float32, (1.1, 0.5, 2, -1, 0.0))):
        y, weight = x.to(dtype), matrix.to(dtype)
        for factor in factors:
            sine = function(torch.sin, lambda z, w, factor=factor: factor * w * z.cos())
            double = function(lambda z: 2 * z, lambda z, w, factor=factor: 2 * factor * w)
            for f in (sine, double, lambda z, f=sine, weight=weight: f(z @ weight).softmax(-1) @ weight):
                for call in (
                    local_lipschitz,
                    singular_pair,
                    block_norms,
                    lambda f, x: local_lipschitz(f, x, method="dense"),
                ):
                    with pytest.raises(ValueError, match="values of this map around x do not change as its reverse"):
                        call(f, y)
    # the effect of one part: 3e-5 of the constant
    small = function(torch.tanh, lambda z, w: 1.1 * w * (1 - z.tanh() ** 2))
    with pytest.raises(ValueError, match="values of this map around x do not change as its reverse"):
        local_lipschitz(lambda z: z + 1e-3 * small(z), x)


def test_a_right_map_without_forward_mode_is_not_refused_at_kinks_jumps_and_extremes():
    x = normal(2, 6, 8, seed=5)
    padded, large = x.clone(), x.clone()
    padded[:, 3:], large[0, 0, 0] = 0, 1e6
    matrix, other = normal(8, 32, seed=1), normal(32, 8, seed=2)

    def relu(z):
        return (z @ matrix.to(z)).relu() @ other.to(z)

    def chosen(z):
        logits = z @ z.mT
        best = logits.topk(2, -1)
        return torch.full_like(logits, -1e30).scatter(-1, best.indices, best.values).softmax(-1) @ z

    def norm(z):
        return torch.nn.functional.layer_norm(z, (8,))

    cases = [(relu, x), (relu, padded), (relu, 0 * x), (chosen, x), (chosen, padded), (torch.abs, padded)]
    cases += [(norm, x + 1000), (norm, 1e-6 * x), (norm, large), (lambda z: (z @ z.mT).softmax(-1) @ z, 30 * x)]
    cases += [(lambda z: torch.nn.functional.max_pool1d(z, 2), padded), (lambda z: z + z.round(), x)]
    cases += [
        (lambda z: 1e20 * z.sin(), x),
        (torch.sin, 1e-20 * x),
        (torch.sin, 1e15 * x),
        (lambda z: (1e3 * z).sin(), x),
    ]
    cases += [(lambda z: (20 * z).exp(), x), (lambda z: (z + 1e4) - 1e4, x), (lambda z: 0 * z, x)]
    cases += [(lambda z: torch.cat([z.sin(), torch.full_like(z, -torch.inf)], -1), x)]
    for i, (f, at) in enumerate(cases):
        for dtype in (torch.float64, torch.float32):
            found = local_lipschitz(lambda z, f=f: f(SAME(z)), at.to(dtype), rtol=1e-2, confidence=None)
            assert found.value.isfinite().all(), i


def test_a_straight_through_estimator_is_measured_as_its_surrogate():
    x = normal(2, 6, 8, seed=5)

    def rounded(z):
        return (4 * z).round() / 4

    def scaled(z):  # in steps of a share of each token's largest entry, which moves with it
        largest = z.abs().amax(-1, keepdim=True)
        return (4 * z / largest).round() / 4 * largest

    def attention(z):
        return (z @ z.mT).softmax(-1) @ z

    def detached(z, round_):
        return z + (round_(z) - z).detach()

    quantised = functools.partial(
        torch.fake_quantize_per_tensor_affine, scale=0.25, zero_point=0, quant_min=-128, quant_max=127
    )
    for values, round_ in (
        (rounded, functools.partial(detached, round_=rounded)),
        (rounded, function(rounded, lambda z, w: w.clone())),
        (rounded, quantised),
        (scaled, function(scaled, lambda z, w: w.clone())),
    ):
        assert local_lipschitz(round_, x).value == pytest.approx([1, 1], rel=1e-4)
        exact = local_lipschitz(lambda z, values=values: attention(detached(z, values)), x, method="dense").value
        for method in ("lanczos", "dense"):
            value = local_lipschitz(lambda z, f=round_: attention(f(z)), x, method=method).value
            assert torch.allclose(value, exact, rtol=1e-4), (round_, method)


def test_two_derivatives_of_one_function_that_differ_are_found_in_both_precisions():
    """The backward pass too long by a tenth, in all of the map or in a part of it; forward mode is right."""
    for dtype in (torch.float64, torch.float32):
        x = normal(6, 8).to(dtype)
        for f in (Tenth.apply, lambda z: z + 0.1 * Tenth.apply(z)):
            for call in (local_lipschitz, singular_pair, block_norms):
                with pytest.raises(ValueError, match="forward and reverse mode disagree"):
                    call(f, x)


class Tenth(torch.autograd.Function):
    """A sine whose forward mode is right, and whose backward pass is a tenth too long."""

    @staticmethod
    def forward(z):
        return z.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, w):
        return 1.1 * w * ctx.saved_tensors[0].cos()

    @staticmethod
    def jvp(ctx, u):
        return u * ctx.saved_tensors[0].cos()


def test_values_that_a_step_cannot_move_speak_against_no_backward_pass():
    """A quantised map between two of its steps, and one that is saturated up to rounding."""
    x = 0.01 * normal(4, 5)
    found = local_lipschitz(lambda t: torch.fake_quantize_per_tensor_affine(t, 0.1, 0, -128, 127), x.float())
    assert found.value.item() == pytest.approx(1)

    class Exponential(torch.autograd.Function):
        @staticmethod
        def forward(context, t):
            context.save_for_backward(t.exp())
            return t.exp()

        @staticmethod
        def backward(context, change):
            return change * context.saved_tensors[0]

    weight = normal(5, 5)
    for scale in (1e-3, 1):
        assert local_lipschitz(lambda t: torch.tanh(Exponential.apply(5 * t @ weight)), scale * normal(4, 5)).value >= 0
