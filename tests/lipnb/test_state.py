"""The state of PyTorch around a call: own answers do not depend on it, and a user's map is measured as it is."""

from contextlib import ExitStack, contextmanager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lipnb import (
    Attention,
    AttentionJacobian,
    AutodiffJacobian,
    block_norms,
    bounds,
    certify,
    differentiable_lipschitz,
    local_lipschitz,
    singular_pair,
    worst_case,
)
from lipnb.jacobian import gemm, infinity_norm

aten = torch.ops.aten
ADDED = {aten.addmm, aten.addmm_, aten.baddbmm, aten.baddbmm_, aten.addmv, aten.addmv_}  # to their first argument
PRODUCTS = {aten.mm, aten.bmm, aten.mv, aten.dot, *ADDED}
DIGITS = {"bf16": 16, "tf32": 13}  # of the 23 that float32 has behind the point, those that are rounded off


class Units(TorchDispatchMode):
    """The matrix units of every machine: float32 products rounded to what the settings of PyTorch allow."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in PRODUCTS:
            allowed = max((DIGITS.get(now, 0) for now in gemm._settings().values()), default=0)
            first = func.overloadpacket in ADDED
            args = [*args[:first], *(rounded(one, allowed) for one in args[first:])]
        return func(*args, **(kwargs or {}))


def rounded(one, digits):
    if not digits or not isinstance(one, torch.Tensor) or one.dtype != torch.float32:
        return one
    near = one.view(torch.int32) + (1 << (digits - 1))
    return (near >> digits << digits).view(torch.float32)


@contextmanager
def setting(name):
    """One state of PyTorch, and the one before it afterwards."""
    mkldnn, cuda = torch.backends.mkldnn.matmul, torch.backends.cuda.matmul
    before = torch.get_default_dtype(), mkldnn.fp32_precision, cuda.fp32_precision
    with ExitStack() as stack:
        if name in ("medium", "high"):
            torch.set_float32_matmul_precision(name)
        elif name == "allow_tf32":
            cuda.allow_tf32 = True
        elif name == "onednn":
            mkldnn.fp32_precision = "bf16"
        elif name == "deterministic":
            torch.use_deterministic_algorithms(True)
        elif isinstance(name, torch.dtype):
            torch.set_default_dtype(name)
        else:
            stack.enter_context(name())
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)
            torch.set_default_dtype(before[0])
            torch.set_float32_matmul_precision("highest")
            mkldnn.fp32_precision, cuda.fp32_precision = before[1:]


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, device="cpu").float()


LOWERED = ("medium", "high", "allow_tf32", "onednn", autocast)
OTHER = (
    *(torch.float64, torch.bfloat16, torch.float16, "deterministic", torch.inference_mode),
    lambda: torch.device("meta"),
)
ATTENTION, X = Attention(*normal(3, 2, 8, 16) / 3), normal(2, 20, 16, seed=1)
WIDE, FEW = Attention(*normal(3, 1, 8, 80) / 9), normal(3, 80, seed=2)
EXACT = Attention(*normal(3, 2, 3, 4, seed=3).double(), masked=True)
OWN = {
    "cached": lambda: local_lipschitz(ATTENTION, X).value,
    "streamed": lambda: local_lipschitz(ATTENTION, X, memory=1).upper,
    "without certificate": lambda: local_lipschitz(ATTENTION, X, confidence=None).value,
    "power": lambda: local_lipschitz(ATTENTION, X, method="power").value,
    "dense": lambda: local_lipschitz(ATTENTION, X, method="dense").value,
    "a list": lambda: local_lipschitz(ATTENTION, [X[0], X[1, :5]]).value,
    "jvp": lambda: AttentionJacobian(ATTENTION, X).jvp(X),
    "vjp": lambda: AttentionJacobian(ATTENTION, X).vjp(X),
    "gram": lambda: AttentionJacobian(ATTENTION, X).gram(X),
    "matrix": lambda: AttentionJacobian(ATTENTION, X).dense(),
    "operator": lambda: torch.from_numpy(AttentionJacobian(ATTENTION, X[0]).linear_operator() @ X[0].numpy().ravel()),
    "row sums": lambda: AttentionJacobian(ATTENTION, X).infinity_norm(),
    "row sums of a map": lambda: infinity_norm(ATTENTION, X),
    "blocks": lambda: block_norms(ATTENTION, X),
    "wide blocks": lambda: block_norms(WIDE, FEW),
    "pair": lambda: singular_pair(ATTENTION, X).value,
    "moved": lambda: singular_pair(ATTENTION, X).moved,
    "certify": lambda: certify(ATTENTION, X[:1]).upper,
    "ball": lambda: torch.tensor(bounds.ball_upper(EXACT, 300, 2.0), dtype=torch.float64, device="cpu"),
    "spread": lambda: bounds.spread_upper(*normal(2, 16, 16), X[0]),
    "nearby": lambda: bounds.nearby_upper(EXACT, X[0, :6, :4].double(), [0.1]).taylor,
    "general": lambda: torch.tensor(
        bounds.general_upper([[0.1, 0.2], [0.3, 0.4]], [[0.7, 0.6]], 4, 1.5), dtype=torch.float64, device="cpu"
    ),
    "worst case": lambda: worst_case.on_ball(EXACT, 4, 1.5, seed=0, effort=1).x,
}


def test_the_constant_with_a_gradient_does_not_depend_on_autocast():
    f = Attention(*(part.requires_grad_() for part in normal(3, 2, 8, 16) / 3))
    expected = differentiable_lipschitz(f, X)
    with autocast():
        found = differentiable_lipschitz(f, X)
    found.sum().backward()
    assert torch.allclose(found, expected, rtol=1e-5) and found.dtype == torch.float32


def test_own_answers_do_not_depend_on_the_state_of_pytorch():
    for call in OWN:
        expected = OWN[call]()
        for name in LOWERED if call != "worst case" else ():  # its products are in float64
            before = gemm._settings()
            with setting(name), Units():
                inside = gemm._settings()
                found = OWN[call]()
                assert gemm._settings() == inside
            assert gemm._settings() == before
            assert torch.allclose(found.double(), expected.double(), rtol=2e-6, atol=1e-6 * expected.abs().max()), name
        for name in OTHER:
            with setting(name):
                assert torch.equal(OWN[call](), expected), name


class Convolutions(TorchDispatchMode):
    """What cuDNN does unless told otherwise: convolutions round to TF32, on the way back some do not."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket is aten.convolution:
            args = [*(rounded(one, DIGITS["tf32"]) for one in args[:2]), *args[2:]]
        return func(*args, **(kwargs or {}))


def test_a_map_that_rounds_on_the_way_forward_alone_is_found_out():
    filters = normal(16, 16, 3, seed=5) / 7

    def convolved(x):
        return torch.tanh(torch.conv1d(x.mT, filters, padding=1)).mT

    assert local_lipschitz(convolved, X).precision == "input"
    with Convolutions(), pytest.raises(ValueError, match="computes in float16 precision or less"):
        local_lipschitz(convolved, X)


def layer(x):
    return torch.tanh(x @ MATRIX) @ MATRIX.mT + x


MATRIX = normal(16, 16, seed=4) / 3


def test_a_map_of_the_user_is_measured_as_it_is_and_the_answer_says_in_which_precision():
    exact = local_lipschitz(layer, X, method="dense").value
    for name, precision, near in (
        *((one, "bfloat16", 1e-2) for one in ("medium", "onednn", autocast)),
        *((one, "float16", 1e-3) for one in ("high", "allow_tf32")),
    ):
        with setting(name), Units():
            with pytest.raises(ValueError, match=f"computes in {precision} precision or less.*: leave torch.autocast"):
                local_lipschitz(layer, X)
            with pytest.raises(ValueError, match=f"computes in {precision} precision or less"):
                singular_pair(layer, X)
            rtol = 8.1 * torch.finfo(getattr(torch, precision)).eps
            loose = local_lipschitz(layer, X, rtol=rtol, confidence=None)
            dense, pair = local_lipschitz(layer, X, method="dense"), singular_pair(layer, X, rtol=rtol)
            matrix = AutodiffJacobian(layer, X)
            assert block_norms(layer, X).isfinite().all()
        assert loose.precision == dense.precision == precision == str(matrix.precision).partition(".")[2], name
        assert loose.converged.all() and 1e-6 < (dense.value / exact - 1).abs().max() < near
        assert (loose.value < exact * (1 + near)).all() and ((pair.value / exact - 1).abs() < near).all()
    for name in OTHER:
        with setting(name):
            lip = local_lipschitz(layer, X)
        assert lip.precision == "input" and torch.allclose(lip.value, exact, rtol=1e-4) and lip.converged.all()


def test_the_solver_keeps_its_own_digits_where_a_map_without_products_is_measured():
    """Lanczos vectors of float32 are orthogonal to bfloat16 only where PyTorch rounds float32 products to it."""
    factors = torch.linspace(0.1, 1, 640, device="cpu").view(1, 40, 16) ** 0.2
    for name in LOWERED:
        with setting(name), Units():
            lip = local_lipschitz(lambda z: factors * z, normal(1, 40, 16), rtol=1e-5)
        assert abs(lip.value.item() - 1) < 1e-5 and 1 - 1e-6 <= lip.upper.item() < 1 + 2e-5, name


def test_cancellation_is_not_called_a_setting_of_pytorch():
    """float32 throughout: what is left of tokens near 1e5 has three digits, and there is no autocast to leave."""
    x = normal(1, 8, 16)
    with pytest.raises(ValueError, match="(?!.*autocast).*or large numbers cancel in it; give the map and its tokens"):
        local_lipschitz(lambda z: torch.nn.functional.layer_norm(z + 1e5, (16,)), x)


def test_a_float64_map_with_a_float32_part_is_measured_to_the_digits_of_float32():
    """As networks whose library takes the softmax in float32: forward and reverse mode differ by its rounding."""
    for seed in range(3):
        weights = normal(3, 16, 16, seed=seed).double()

        def f(x, w=weights):
            logits = (x @ w[0]) @ (x @ w[1]).mT
            return logits.softmax(-1, dtype=torch.float32).to(x.dtype) @ x @ w[2]

        x = normal(1, 24, 16, seed=100 + seed).double()
        lip, exact = local_lipschitz(f, x), local_lipschitz(f, x, method="dense")
        assert lip.precision == exact.precision == "float32" and lip.converged.all()
        assert abs(lip.value / exact.value - 1) < 1.1e-4 and lip.upper > exact.value * (1 - 1e-6)
        with pytest.raises(
            ValueError, match="computes in float32 precision or less .*: a part of it is in such a type"
        ):
            local_lipschitz(f, x, rtol=1e-8)
    with pytest.raises(ValueError, match="forward and reverse mode disagree"):  # a lie is one in any precision
        local_lipschitz(lambda z: f(z) + torch.no_grad()(lambda y: 100 * y)(z), x)


def test_modules_in_other_states():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        hooked, changed, normed = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16), torch.nn.BatchNorm1d(20)
        with torch.inference_mode():
            inferring = torch.nn.Linear(16, 16)
    hooked.register_forward_hook(lambda module, given, out: 2 * out)
    hooked.register_full_backward_hook(lambda module, into, out: None)
    norm = torch.linalg.matrix_norm(hooked.weight.detach(), 2).item()
    assert local_lipschitz(hooked, X).value[1].item() == pytest.approx(2 * norm, rel=1e-4)
    compiled = torch.compile(hooked, backend="aot_eager")
    assert local_lipschitz(compiled, X).value[1].item() == pytest.approx(2 * norm, rel=1e-4)
    changed.register_full_backward_hook(lambda module, into, out: (2 * into[0],))
    for module, said in (
        (changed, "forward and reverse mode disagree.*backward hook"),
        (normed, r"mixes the sequences.*\.eval\(\)"),
        (inferring, r"made under torch\.inference_mode"),
    ):
        with pytest.raises(ValueError, match=said):
            local_lipschitz(module, X)
    assert local_lipschitz(normed.eval(), X).value[0].item() == pytest.approx(
        (normed.running_var + normed.eps).rsqrt().max().item(), rel=1e-4
    )
