"""Automatic differentiation at its edges: what has no derivative, or two that differ, is refused."""

import functools
import math

import pytest
import torch
from cases import function, normal, random_case, relative
from torch.autograd.function import once_differentiable
from torch.nn.functional import layer_norm, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from lipnb import AutodiffJacobian, block_norms, local_lipschitz, singular_pair
from lipnb.jacobian.autodiff import RecordedJacobian


def raises_twice(z, w):
    if torch.is_grad_enabled() and w.requires_grad:
        raise ValueError("no second derivative here")
    return 2 * z * w


square = functools.partial(function, lambda z: z**2, jvp=lambda z, u: 2 * z * u)
WRONG_TWICE = square(lambda z, w: 2 * z * (3 * w - 2 * w.detach()))  # linear in the cotangent in name only
SQUARES = {
    "not twice": square(lambda z, w: 2 * z * w, wrap=once_differentiable),
    "wrong twice": WRONG_TWICE,
    "raises twice": square(raises_twice),
}
# a backward pass that is a tenth too long, with the right forward mode
TENTH = function(torch.sin, lambda z, w: 1.1 * w * z.cos(), lambda z, u: u * z.cos())
SAME = function(torch.clone, lambda z, w: w.clone())  # it takes forward mode away
X, B, MATRIX = normal(2, 6, 8, seed=5), normal(4, 5, 8), normal(8, 8, seed=1)


def test_autodiff_goes_through_fused_attention():
    x, step = normal(2, 5, 4), normal(2, 5, 4, seed=1)
    twin = AutodiffJacobian(lambda y: scaled_dot_product_attention(y, y, y), x)
    assert relative(twin.jvp(step), (twin.f(x + 1e-6 * step) - twin.f(x - 1e-6 * step)) / 2e-6) < 1e-7


def test_products_of_one_recorded_run_are_those_of_forward_and_reverse_mode():
    case, calls = random_case(3), []

    def f(x):
        calls.append(len(x))
        return torch.tanh(case.attention(torch.nn.functional.gelu(x)))

    twin, recorded = AutodiffJacobian(f, case.x), RecordedJacobian(f, case.x)
    u, w = normal(*case.x.shape), normal(*f(case.x).shape, seed=1)
    calls.clear()
    for _ in range(3):
        forward, back = recorded.jvp(u), recorded.vjp(w)
    assert not calls  # the map itself is not run again
    assert relative(forward, twin.jvp(u)) < 1e-13 and relative(back, twin.vjp(w)) < 1e-13
    assert relative(recorded.dense(), twin.dense()) < 1e-13


@pytest.mark.parametrize("name", SQUARES)
def test_what_cannot_be_differentiated_twice_goes_by_forward_mode(name):
    f, x = SQUARES[name], torch.linspace(0.1, 1, 6, dtype=torch.float64).view(2, 3)
    J, u = RecordedJacobian(f, x), x.flip(1) - 0.3
    assert relative(J.jvp(u), 2 * x * u) < 1e-13 and relative(J.vjp(u), 2 * x * u) < 1e-13
    assert abs(local_lipschitz(f, x).value - 2) < 1e-3


def test_the_record_is_compared_in_each_sequence_and_in_small_parts():
    """A wrong derivative beside a large right one, in the map or in the batch, is still a wrong one."""
    x = torch.ones(2, 2, 3, dtype=torch.float64)
    large = torch.tensor([1e5, 0.0], dtype=torch.float64)[:, None, None]
    lip = local_lipschitz(lambda t: large * t + WRONG_TWICE(t), x)
    assert torch.allclose(lip.value, torch.tensor([1e5 + 2, 2.0], dtype=torch.float64), rtol=1e-4)
    small = local_lipschitz(lambda t: t + 1e-4 * WRONG_TWICE(t), x[0].float(), rtol=1e-5)
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


def sine(z):
    return torch.sin(z @ MATRIX)


@pytest.mark.parametrize(
    "f",
    [
        lambda z: function(torch.sin, lambda z, w: z.cos() * w)(z @ MATRIX),
        lambda z: checkpoint(sine, z, use_reentrant=False),
    ],
    ids=["old style", "checkpoint"],
)
def test_maps_without_forward_mode_go_by_reverse_mode_twice(f):
    expected = local_lipschitz(sine, X, method="dense").value
    lip, pair = local_lipschitz(f, X), singular_pair(f, X)
    assert torch.allclose(lip.value, expected, rtol=1e-4) and (lip.upper >= expected * (1 - 1e-9)).all()
    assert torch.allclose(pair.value, expected, rtol=1e-4)
    assert relative(AutodiffJacobian(f, X).jvp(X), AutodiffJacobian(sine, X).jvp(X)) < 1e-13
    assert torch.allclose(block_norms(f, X), block_norms(sine, X), rtol=1e-12)


def kernel(z, w):
    """A backward pass of its own, as that of FlashAttention, which many cotangents at once are not asked."""
    assert math.isfinite(w.sum().item())
    return z.cos() * w


def test_a_kernel_that_is_differentiated_once_has_the_dense_method_alone():
    once = function(torch.sin, kernel, wrap=once_differentiable)
    for call in (local_lipschitz, singular_pair, lambda f, x: AutodiffJacobian(f, x).jvp(x)):
        with pytest.raises(ValueError, match="neither forward mode .* nor reverse mode twice .* method='dense'"):
            call(lambda z: once(z @ MATRIX), X)
    found = local_lipschitz(lambda z: once(z @ MATRIX), X, method="dense").value
    assert torch.allclose(found, local_lipschitz(sine, X, method="dense").value, rtol=1e-12)
    assert block_norms(lambda z: once(z @ MATRIX), X).isfinite().all()


def layer(kind, *sizes, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind(*sizes, batch_first=options.pop("first", True), **options).double()


ATTENDS, FIRST = (layer(torch.nn.MultiheadAttention, 8, 2, first=first) for first in (True, False))
MIXES, DISAGREE = "the map mixes the sequences of its batch", "forward and reverse mode disagree about this map"
UNLIKE = "values of this map around x do not change as its reverse"
RANDOM = r"two different outputs for one input: call \.eval\(\)"


def pair_of(i, j):
    """A map in which one sequence moves one other alone."""
    matrix = torch.eye(4, dtype=torch.float64).index_put((torch.tensor(i), torch.tensor(j)), torch.tensor(1.0).double())
    return lambda z: torch.einsum("ab,bnd->and", matrix, z)


def too_long(factor):
    return function(torch.sin, lambda z, w: factor * w * z.cos())


WRONG = {  # maps whose derivative is none or wrong: the map, its tokens, what is said
    "batch second": (lambda z: FIRST(z, z, z)[0], B, MIXES),
    "two, batch second": (lambda z: FIRST(z, z, z)[0], B[:2], MIXES),
    "the mean": (lambda z: z - z.mean(0), B, MIXES),
    "the mean of one": (lambda z: z - z.mean(0), B[:1], MIXES),
    "sums": (lambda z: z.cumsum(0), B, MIXES),
    "sums from behind": (lambda z: z.flip(0).cumsum(0), B[:2], MIXES),
    "hardly": (lambda z: z + 1e-9 * z.roll(1, 0), B, MIXES),
    **{f"{i} of {j}": (pair_of(i, j), B, MIXES) for i, j in ((0, 1), (0, 2), (1, 2), (3, 0), (3, 2))},
    "a part without gradient": (lambda z: z + torch.no_grad()(lambda y: 100 * y)(z), X, DISAGREE),
    **{f"a tenth, {x.dtype}": (TENTH, x, DISAGREE) for x in (X, X.float())},
    **{f"a part, {x.dtype}": (lambda z: z + 0.1 * TENTH(z), x, DISAGREE) for x in (X, X.float())},
    "recorded wrongly": (
        lambda z: function(torch.sin, lambda z, w: z.cos() * (3 * w - 2 * w.detach()))(z),
        X,
        DISAGREE,
    ),
    "reentrant": (lambda z: checkpoint(sine, z, use_reentrant=True), X, "reverse mode fails .*use_reentrant=False"),
    "dropout": (torch.nn.Dropout(0.5).train(), X, RANDOM),
    "drawn anew": (lambda z: z @ torch.randn(8, 8, dtype=z.dtype), X, RANDOM),
    **{f"{factor} times": (too_long(factor), X, UNLIKE) for factor in (1.1, 1.001, 0.5, -1, 0.0)},
    **{f"{factor} in float32": (too_long(factor), X.float(), UNLIKE) for factor in (1.1, 0.5, 2, -1, 0.0)},
    "linear": (function(lambda z: 2 * z, lambda z, w: 2.2 * w), X, UNLIKE),
    "within": (lambda z: too_long(1.1)(z @ MATRIX).softmax(-1) @ MATRIX, X, UNLIKE),
    # the effect of one part: 3e-5 of the constant
    "hardly wrong": (lambda z: z + 1e-3 * function(torch.tanh, lambda z, w: 1.1 * w / z.cosh() ** 2)(z), X, UNLIKE),
}
SHOWN_BY_PRODUCTS = {"recorded wrongly", "hardly wrong"}  # which block norms and the dense method do not take


@pytest.mark.parametrize("name", WRONG)
def test_a_derivative_that_is_none_or_wrong_is_refused(name):
    f, x, words = WRONG[name]
    calls = [local_lipschitz, singular_pair, block_norms, functools.partial(local_lipschitz, method="dense")]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for call in calls[:1] if name in SHOWN_BY_PRODUCTS else calls:
            with pytest.raises(ValueError, match=words):
                call(f, x)


def test_sequences_of_a_list_and_of_a_batch_are_each_alone():
    for one in ([B[0]], [B[0], B[1, :3]]):  # each a batch of one sequence
        with pytest.raises(ValueError, match=MIXES):
            local_lipschitz(lambda z: z.softmax(0), one)
    for f in (lambda z: ATTENDS(z, z, z)[0], lambda z: z - z.mean(-2, keepdim=True)):
        whole, alone = local_lipschitz(f, B), [local_lipschitz(f, one[None]).value[0] for one in B]
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


@pytest.mark.parametrize("method", ["lanczos", "power", "dense"])
def test_a_map_that_writes_into_what_it_is_given(method):
    before = X.clone()
    assert local_lipschitz(lambda z: z.mul_(2), X, method=method).value.tolist() == pytest.approx([2, 2])
    assert torch.equal(X, before)


def test_rows_that_are_masked_wholly():
    """PyTorch's own attention gives such rows zeros, and so a Jacobian that is 0; a softmax of -inf alone is NaN."""
    x = normal(5, 4)
    seen = torch.ones(5, 5, dtype=torch.bool).tril()
    seen[2] = False

    def logits(z):
        return (z @ z.mT).masked_fill(~seen, -torch.inf)

    def zeros(z):
        return torch.where(seen.any(-1, keepdim=True), logits(z).softmax(-1), 0) @ z

    for f in (lambda z: scaled_dot_product_attention(z, z, z, attn_mask=seen), zeros):
        found = block_norms(f, x)
        assert (found[2] == 0).all() and (found[[0, 1, 3, 4]].amax(-1) > 0).all()
        exact = local_lipschitz(f, x, method="dense").value
        assert local_lipschitz(f, x).value == pytest.approx(exact.item(), rel=1e-4)
    for f, said in (
        (lambda z: logits(z).softmax(-1) @ z, "the map gives NaN at this input.*fully masked"),
        (lambda z: torch.nan_to_num(logits(z).softmax(-1)) @ z, "product is NaN.*hides the NaN inside.*fully masked"),
    ):
        with pytest.raises(ValueError, match=said):
            local_lipschitz(f, x)
    # an output of -inf that does not move has no part in the Jacobian
    half = local_lipschitz(lambda z: torch.cat([z.sin(), torch.full_like(z, -torch.inf)], -1), x).value
    assert half == pytest.approx(x.cos().abs().max().item(), rel=1e-4)


def test_where_all_cancels_rounding_is_no_disagreement_of_the_two_modes():
    """Of a map of derivative 0, whose forward mode gives what is left of a change."""
    x = torch.linspace(1, 2, 12, dtype=torch.float64).view(3, 4)

    def constant(tangent):
        return function(torch.ones_like, lambda z, w: torch.zeros_like(w), lambda z, u: tangent(u))

    # rounding; and linear, but nothing that an output could show
    for tangent in (lambda u: (1e4 / 3 * u + 1e4 / 7 * u) - (1e4 / 3 + 1e4 / 7) * u, lambda u: 1e-17 * u):
        assert local_lipschitz(constant(tangent), x, method="dense").value == 0
    with pytest.raises(ValueError, match=DISAGREE):  # as small as the first, and linear: no rounding
        local_lipschitz(constant(lambda u: 1e-12 * u), x, method="dense")


def test_the_fast_path_of_a_transformer_layer_is_left_alone():
    encoder = layer(torch.nn.TransformerEncoderLayer, 8, 2, 16).eval().requires_grad_(False)  # only then it is taken
    x, before = X.sin(), torch.backends.mha.get_fastpath_enabled()
    lip, J = local_lipschitz(encoder, x), AutodiffJacobian(encoder, x)
    assert torch.backends.mha.get_fastpath_enabled() == before
    exact = torch.linalg.matrix_norm(J.dense(), 2)
    assert torch.allclose(lip.value, exact, rtol=1e-4) and (lip.upper >= exact * (1 - 1e-9)).all()
    with torch.no_grad():  # forward mode itself: without it reverse mode twice would stand in, unseen
        pushed = J._pushed(x)
    assert relative(pushed.flatten(1), (J.dense() @ x.flatten(1)[..., None])[..., 0]) < 1e-12


PADDED, LARGE = X.clone(), X.clone()
PADDED[:, 3:], LARGE[0, 0, 0] = 0, 1e6


def relu(z):
    return (z @ MATRIX.to(z)).relu() @ MATRIX.to(z)


def chosen(z):
    logits = z @ z.mT
    best = logits.topk(2, -1)
    return torch.full_like(logits, -1e30).scatter(-1, best.indices, best.values).softmax(-1) @ z


def normed(z):
    return layer_norm(z, (8,))


RIGHT = [(relu, X), (relu, PADDED), (relu, 0 * X), (chosen, X), (chosen, PADDED), (torch.abs, PADDED)]
RIGHT += [(normed, X + 1000), (normed, 1e-6 * X), (normed, LARGE), (lambda z: (z @ z.mT).softmax(-1) @ z, 30 * X)]
RIGHT += [(lambda z: torch.nn.functional.max_pool1d(z, 2), PADDED), (lambda z: z + z.round(), X)]
RIGHT += [(lambda z: 1e20 * z.sin(), X), (torch.sin, 1e-20 * X), (torch.sin, 1e15 * X), (lambda z: (1e3 * z).sin(), X)]
RIGHT += [(lambda z: (20 * z).exp(), X), (lambda z: (z + 1e4) - 1e4, X), (lambda z: 0 * z, X)]
RIGHT += [(lambda z: torch.cat([z.sin(), torch.full_like(z, -torch.inf)], -1), X)]
# saturated up to rounding, and a quantised map between two of its steps
RIGHT += [(lambda z: torch.tanh(function(torch.exp, lambda z, w: w * z.exp())(5 * z @ MATRIX.to(z))), X)]
RIGHT += [(lambda z: torch.fake_quantize_per_tensor_affine(z, 0.1, 0, -128, 127), 0.01 * X)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_right_map_without_forward_mode_is_not_refused_at_kinks_jumps_and_extremes(dtype):
    for i, (f, at) in enumerate(RIGHT):
        found = local_lipschitz(lambda z, f=f: f(SAME(z)), at.to(dtype), rtol=1e-2, confidence=None)
        assert found.value.isfinite().all(), i


def test_a_straight_through_estimator_is_measured_as_its_surrogate():

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
        assert local_lipschitz(round_, X).value == pytest.approx([1, 1], rel=1e-4)
        exact = local_lipschitz(lambda z, values=values: attention(detached(z, values)), X, method="dense").value
        for method in ("lanczos", "dense"):
            value = local_lipschitz(lambda z, f=round_: attention(f(z)), X, method=method).value
            assert torch.allclose(value, exact, rtol=1e-4), (round_, method)
