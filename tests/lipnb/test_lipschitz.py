"""Local constants against dense values: options, precisions, lists, and every bad input with its sentence."""

import itertools
import math
import re

import numpy as np
import pytest
import torch
from cases import constant, normal, random_case, relative

from lipnb import Attention, AutodiffJacobian, lipschitz, local_lipschitz


def test_answers_do_not_depend_on_the_batch_and_follow_the_seed():
    case = random_case(9, n=12)
    both = local_lipschitz(case.attention, case.x, seed=3)
    for i in range(2):
        alone = local_lipschitz(case.attention, case.x[i], seed=3)
        assert alone.value.shape == () and alone.steps == both.steps[i]
        assert abs(alone.value / both.value[i] - 1) < 1e-12
    again = local_lipschitz(case.attention, case.x, seed=3)
    assert torch.equal(again.value, both.value) and torch.equal(again.residual, both.residual)
    nested = local_lipschitz(case.attention, case.x[None, :, None], seed=3)
    assert nested.value.shape == (1, 2, 1)


def test_too_few_steps_are_owned_up_to():
    case = random_case(8, n=30)
    for method in ("lanczos", "power"):
        lip = local_lipschitz(case.attention, case.x, method=method, max_steps=2)
        assert not lip.converged.any() and (lip.steps == 2).all() and (lip.residual > 0).all()
        assert (lip.value <= local_lipschitz(case.attention, case.x, method="dense").value * (1 + 1e-12)).all()


def test_a_callable_goes_the_autodiff_route():
    case = random_case(15, n=7)
    assert case.weights is not None
    closed = local_lipschitz(case.attention, case.x, weights=case.weights)
    for method in ("lanczos", "dense"):
        twin = local_lipschitz(lambda x: case.attention(x, case.weights), case.x, weights=case.weights, method=method)
        assert relative(twin.value, closed.value) < 1e-6


def test_a_dense_jacobian_that_is_zero_or_rounding():
    found = local_lipschitz(torch.relu, -torch.ones(5, 2), method="dense")  # float64 might hold what float32 does not
    assert found.value == found.upper == 0 and found.precision == "float64"
    assert local_lipschitz(lambda z: 1e-30 * z, torch.ones(5, 2), method="dense").value > 0
    with pytest.raises(ValueError, match="large numbers cancel in it"):  # 2e6, of squares of 1e14
        local_lipschitz(
            lambda z: (1e6 * z).square() - (1e6 * z - 1).square(), 10 * normal(4, 5).float(), method="dense"
        )


def test_what_cancels_everywhere_is_zero_or_said_to_be_in_both_ways():
    x = normal(5, 2)
    ones = [lambda z: z.softmax(-1).sum(-1, keepdim=True), lambda z: z.sin().square() + z.cos().square()]
    for method in ("lanczos", "dense"):
        assert local_lipschitz(lambda z: z - z, x, method=method).value == 0
        for f in (torch.zeros_like, *ones):
            try:
                assert local_lipschitz(f, x, method=method).value <= 1e-15
            except ValueError as error:  # no tolerance of 6 and no higher precision than float64 is asked for alone
                assert re.search("(constant|answer) is (then )?0", str(error))


def test_parameters_that_require_gradients_are_welcome():
    case = random_case(1, n=6)
    query, matrix = (tensor.clone().requires_grad_() for tensor in (case.attention.query, case.attention.value[0]))
    attention = Attention(query, case.attention.key, case.attention.value)
    x = case.x.clone().requires_grad_()
    assert local_lipschitz(attention, x).value.isfinite().all()
    expected = torch.linalg.matrix_norm(matrix.detach(), 2).expand(2)
    for method in ("lanczos", "dense"):
        assert relative(local_lipschitz(lambda x: x @ matrix.T, x, method=method).value, expected) < 1e-6


def test_weighted_constant_is_that_of_repeated_tokens_moved_together():
    """Lemma C.5 by duplication: with integer weights, perturb the copies of a token together."""
    V = torch.eye(2, dtype=torch.float64)
    A = torch.tensor([[1.0, 0.5], [-0.3, -1.0]], dtype=torch.float64)
    attention = Attention.from_matrices(A, V)
    x = normal(3, 2, seed=1)
    copies = torch.tensor([1, 2, 3])
    big = x.repeat_interleave(copies, 0)
    together = torch.block_diag(*[torch.ones(c, 1) for c in copies]).double() / copies.double().sqrt()
    embed = torch.kron(together, torch.eye(2, dtype=torch.float64))
    dense = torch.func.jacrev(attention)(big).reshape(12, 12)
    expected = torch.linalg.matrix_norm(embed.T @ dense @ embed, 2)
    assert relative(local_lipschitz(attention, x, weights=copies.double()).value, expected) < 1e-10


def test_a_module_that_is_no_map_of_tokens_is_answered_with_the_map_that_was_meant(minilm):
    """It was a TypeError, or an error from inside a network."""
    from transformers import BertConfig, BertModel

    with torch.random.fork_rng():
        mha = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
        decoder = torch.nn.TransformerDecoderLayer(8, 2, batch_first=True).eval()
        sizes = dict(num_hidden_layers=1, hidden_size=8, num_attention_heads=2, intermediate_size=8)
        bert = BertModel(BertConfig(**sizes)).eval()
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=r"give f = lambda x: mha\(x, x, x, need_weights=False\)\[0\]"):
        local_lipschitz(mha, x)
    assert local_lipschitz(lambda x: mha(x, x, x, need_weights=False)[0], x).converged.all()
    with pytest.raises(ValueError, match="takes more than the tokens .*: give one that holds the rest"):
        local_lipschitz(decoder, x)
    instead = r"does not take tokens .*; of a network .*models.load\(folder\) gives model.attention\(layer\)"
    with pytest.raises(ValueError, match=instead):
        local_lipschitz(bert, x)
    with pytest.raises(ValueError, match=r"shape \(2, n, m\), got tuple: give the part .*module\(x\)\[0\]"):
        local_lipschitz(bert.encoder.layer[0].attention, x)
    with pytest.raises(ValueError, match="minilm is a whole model: give one of its layers"):
        local_lipschitz(minilm, x)


def test_numbers_of_numpy_are_numbers():
    options = {"seed": np.int64(3), "max_steps": np.int32(50), "rtol": np.float32(1e-3), "memory": 2e9}
    assert local_lipschitz(torch.tanh, torch.ones(3, 2), **options).converged


ONES = torch.ones(3, 4).double()


REFUSED = {
    "method must be": [{"method": "magic"}],
    "rtol must lie between": [{"rtol": 1e-30}, {"rtol": 2.0}, {"rtol": math.nan}],
    "max_steps must be at least 1": [{"max_steps": 0}],
    "confidence must lie": [{"confidence": 1.5}, {"confidence": 1}, {"confidence": 0}, {"confidence": math.nan}],
    "memory must be a positive number of bytes, got": [{"memory": 0}, {"memory": -5}, {"memory": math.nan}],
    "f must be an Attention or a callable": [{"f": 3}],
    "got list: the map comes first": [{"f": [ONES], "x": torch.tanh}],
    "got Tensor: the map comes first": [{"f": ONES, "x": torch.tanh}],
    "x must be": [{"x": x} for x in ([[[1.0, 2.0, 3.0, 4.0]]], [1.0, 2.0], [torch.ones(3)], [ONES.long()])],
    "this list is empty": [{"x": []}],
    r"x\[1\] is of type ndarray": [{"x": [ONES, ONES.numpy()]}],
    r"x\[0\] has shape \(2, 3, 4\)": [{"x": [ONES.expand(2, 3, 4)]}],
    "holds no token": [{"x": ONES[:0]}, {"x": [ONES[:0]]}],
    "NaN": [{"x": math.nan * ONES}, {"f": lambda x: (-1 - x.abs()).sqrt()}],
    "d = 4|one width": [{"x": ONES[:, :3]}, {"x": [ONES[:, :3]]}, {"x": [ONES, ONES[:, :3]]}],
    "float32": [{"x": [ONES, ONES.float()]}, {"x": [ONES, torch.ones(5, 4)]}],
    "weights must be positive": [
        {"weights": torch.zeros(3).double()},
        {"f": torch.tanh, "weights": torch.zeros(3).double()},
        {"x": [ONES], "weights": [torch.zeros(3).double()]},
    ],
    "weights must be a list with one tensor for each of the 2 inputs": [
        {"x": [ONES, ONES], "weights": weights} for weights in ([ONES[:, 0]], 3.0, ONES[:, 0])
    ],
    "weights must be": [
        {"x": [ONES, ONES], "weights": [ONES[:, 0], other]} for other in (ONES[:2, 0], ONES[0], [1.0, 1.0, 1.0])
    ],
}


OF_THE_WRONG_KIND = {
    "max_steps must be a whole number, got 2.5": {"max_steps": 2.5},
    "seed must be a whole number, got 1.5": {"seed": 1.5},
    "seed must be a whole number, got None": {"seed": None},
    "confidence must be a number, got '0.99'": {"confidence": "0.99"},
    "rtol must be a number, got None": {"rtol": None},
    "memory must be a number, got '2G'": {"memory": "2G"},
}


def test_bad_input_is_said_in_one_sentence():
    good = {"f": Attention.from_matrices(*torch.eye(4).double().expand(2, 4, 4)), "x": ONES}
    for sentence, changes in REFUSED.items():
        for change in changes:
            with pytest.raises(ValueError, match=sentence):
                local_lipschitz(**{**good, **change})
    for sentence, change in OF_THE_WRONG_KIND.items():
        with pytest.raises(TypeError, match=sentence):
            local_lipschitz(**{**good, **change})


def test_padding_counts_unless_its_outputs_are_zero():
    """As the docstring says: a list of the sequences without padding, or a map that sets padded outputs to zero."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).double().eval()
    sequences = [normal(6, 8), normal(4, 8, seed=1)]
    x, padded = normal(2, 6, 8, seed=2), torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    x[0], x[1, :4] = sequences

    def hidden(z):
        return layer(z, src_key_padding_mask=padded)

    def zeroed(z):
        return hidden(z).masked_fill(padded[..., None], 0)

    alone = local_lipschitz(layer, sequences).value
    assert torch.allclose(local_lipschitz(zeroed, x).value, alone, rtol=1e-6)
    assert local_lipschitz(hidden, x).value[1] > 1.001 * alone[1]


def by_autograd(f, x, weights=None):
    """The constant by automatic differentiation in float64."""
    return constant(f.to(dtype=torch.float64), x.double(), None if weights is None else weights.double()).item()


def test_float64_certifies_nothing_whose_squares_underflow():
    generator = torch.Generator().manual_seed(0)
    x, eye = torch.randn(40, 3, generator=generator).double(), torch.eye(3).double()[None]
    A = torch.randn(1, 3, 3, generator=generator).double()
    for sink, method in itertools.product([190.0, 200.0, 210.0, 400.0], ["lanczos", "power"]):
        f = Attention(A, eye, eye, sinks=torch.tensor([sink]).double())
        answer, truth = local_lipschitz(f, x, method=method), by_autograd(f, x)
        certified = answer.converged.item() and answer.upper.item() < torch.inf
        assert answer.value.item() == 0 or not answer.converged or answer.value.item() == pytest.approx(truth, rel=1e-4)
        assert not certified or answer.upper.item() >= truth or (answer.value.item() == 0 and truth < 1e-146)


GRID = [(seed, spread) for seed in (2, 4, 5, 9, 10) for spread in (0.3, 1.0, 4.0)]


def dense(attention, x, weights=None):
    return local_lipschitz(attention.to(dtype=torch.float64), x.double(), weights=weights, method="dense").value


def with_spectrum(values, dtype=torch.float64, masked=False):
    """Uniform attention: the singular values of the Jacobian are these, and zeros."""
    d = len(values)
    left, right = (torch.linalg.qr(normal(d, d, seed=s))[0] for s in (1, 2))
    zero = torch.zeros(1, 2, d, dtype=torch.float64)
    value = left @ torch.diag(torch.as_tensor(values, dtype=torch.float64)) @ right.mT
    return Attention(zero, zero, value[None], masked=masked).to(dtype=dtype)


@pytest.fixture(params=[(torch.float64, 1e-12), (torch.float32, 1e-6)], ids=["float64", "float32"])
def precision(request):
    """Type of the input, and the error to expect of the value."""
    return request.param


def test_every_precision_meets_the_tolerance(precision):
    dtype, rounding = precision
    for seed, spread in GRID:
        f, x, heavy = random_case(seed, n=12, spread=spread, dtype=dtype)
        exact = dense(f, x, None if heavy is None else heavy.double())
        for rtol, options in itertools.product((1e-2, 1e-4), ({}, {"memory": 1}, {"method": "dense"})):
            lip = local_lipschitz(f, x, weights=heavy, rtol=rtol, **options)
            assert lip.converged.all() and lip.confidence == (1.0 if "method" in options else 1 - 1e-6)
            assert (lip.value >= exact * (1 - rtol - rounding)).all() and (
                lip.value <= exact * (1 + 4 * rounding)
            ).all()
            assert (lip.upper >= exact * (1 - rounding)).all()
            assert dtype == torch.float32 or (lip.upper <= lip.value * (1 + rtol) * (1 + 1e-12)).all()
        wide = local_lipschitz(f, x, weights=heavy, max_steps=3)
        assert (wide.upper >= exact * (1 - rounding)).all() and (wide.value <= exact * (1 + 4 * rounding)).all()
        assert (wide.upper > wide.value).all() and torch.isfinite(wide.upper).all()


def test_without_confidence_nothing_is_certified():
    case = random_case(5, n=20)
    lip = local_lipschitz(case.attention, case.x, weights=case.weights, confidence=None)
    sure = local_lipschitz(case.attention, case.x, weights=case.weights, confidence=0.9)
    assert lip.confidence is None and torch.isinf(lip.upper).all() and lip.converged.all()
    assert sure.confidence == 0.9 and torch.isfinite(sure.upper).all()
    assert lip.steps.sum() <= sure.steps.sum()
    power = local_lipschitz(case.attention, case.x, weights=case.weights, method="power")
    assert power.confidence is None and torch.isinf(power.upper).all()
    few = local_lipschitz(case.attention, case.x, weights=case.weights, confidence=None, max_steps=2)
    assert torch.isinf(few.upper).all() and not few.converged.any()


def test_more_confidence_costs_more_products():
    case = random_case(14, n=30)
    steps = [local_lipschitz(case.attention, case.x, confidence=c).steps.sum() for c in (0.5, 0.99, 1 - 1e-12)]
    assert steps[0] < steps[1] < steps[2]


SPECTRA = {
    "repeated": [2.0] * 6 + [1.0] * 14,
    "gap 1e-8": [1.0, 1 - 1e-8] + [0.5] * 18,
    "gap 1e-3": [1.0, 0.999] + [0.5] * 18,
    "rank one": [3.0] + [0.0] * 19,
    "zero": [0.0] * 20,
    "all equal": [1.0] * 20,
    "near": [1 - 1e-4 * i for i in range(20)],
    "graded": [10.0**-i for i in range(20)],
}


def test_adversarial_spectra(precision):
    for method in ["lanczos", "power", "dense"]:
        for name in SPECTRA:
            dtype, rounding = precision
            top, rtol = max(SPECTRA[name]), 1e-4
            for n in (1, 6):
                x = normal(2, n, 20).to(dtype)
                for scale in (1e-20, 1.0, 1e20):
                    attention = with_spectrum([scale * value for value in SPECTRA[name]], dtype)
                    lip = local_lipschitz(attention, x, method=method, max_steps=100 if method == "power" else None)
                    for field in (lip.value, lip.residual, lip.upper):
                        assert not field.isnan().any()
                    # many close values: power iteration stops at any of them, as its residual says
                    right = lip.value >= scale * top * (1 - rtol - 4 * rounding)
                    assert (right | ~lip.converged | torch.tensor(method == "power")).all()
                    assert right.all() or method == "power" and name in ("gap 1e-3", "near")
                    assert (lip.value <= scale * top * (1 + 8 * rounding)).all()
                    assert (lip.upper >= scale * top * (1 - 8 * rounding)).all()


def test_units_of_the_matrices_change_nothing_but_the_unit_of_the_answer(precision):
    """Key and query matrices in inverse units are the same map; values in other units scale the answer."""
    for method in ["lanczos", "power", "dense"]:
        dtype, rounding = precision
        for seed in (2, 4, 7, 9):
            case = random_case(seed, n=8, dtype=torch.float64)
            att = case.attention

            def built(query=1.0, key=1.0, value=1.0, att=att):
                tensors = (att.query * query, att.key * key, att.value * value, att.output)
                return Attention(*tensors, masked=att.masked).to(dtype=dtype)

            exact = dense(built(), case.x.to(dtype))
            for power in (-20, -12, 12, 20):
                unit = 10.0**power
                for options, factor in (({"value": unit}, unit), ({"query": unit, "key": 1 / unit}, 1)):
                    lip = local_lipschitz(built(**options), case.x.to(dtype), method=method)
                    assert ((lip.value / factor / exact - 1).abs() <= 1.1e-4).all() or not lip.converged.all()
                    assert not lip.value.isnan().any() and (lip.upper >= exact * factor * (1 - 1e-4)).all()


def test_logits_of_any_size_give_hard_or_uniform_attention(precision):
    for unit in [1e-20, 1e-3, 30.0, 1e4, 1e6, 1e20]:
        dtype, rounding = precision
        for seed in (2, 4, 7):
            case = random_case(seed, n=8)
            att = case.attention
            scaled = Attention(att.query * unit, att.key, att.value, att.output, masked=att.masked).to(dtype=dtype)
            exact = dense(scaled, case.x.to(dtype))
            for method in ("lanczos", "power", "dense"):
                lip = local_lipschitz(scaled, case.x.to(dtype), method=method, rtol=1e-3)
                assert not lip.value.isnan().any()
                assert (((lip.value / exact - 1).abs() <= 1.1e-3) | ~lip.converged).all()


def test_tokens_in_other_units_are_the_same_map():
    """x / s with the value, query and key matrices times s, and with the query alone times s^2."""
    for power in [-20, -12, 12, 20]:
        for options in [{}, {"memory": 1}, {"method": "power"}, {"method": "dense"}]:
            unit = 10.0**power
            for seed in (2, 7):
                case = random_case(seed, n=8)
                att = case.attention
                plain = Attention(att.query, att.key, att.value, att.output, masked=att.masked)
                exact = dense(plain, case.x)
                for query, key in ((1 / unit, 1 / unit), (1 / unit**2, 1.0), (1.0, 1 / unit**2)):
                    scaled = Attention(
                        att.query * query, att.key * key, att.value / unit, att.output, masked=att.masked
                    )
                    lip = local_lipschitz(scaled, case.x * unit, **options)
                    assert ((lip.value * unit / exact - 1).abs() <= 1.1e-4).all()


def test_a_list_of_mixed_lengths_gives_each_of_its_answers_in_order():
    for number, options in enumerate(
        [{}, {"method": "power"}, {"memory": 1}, {"confidence": None}, {"method": "dense"}]
    ):
        f, x, _ = random_case((0, 2, 5, 7)[number % 4])
        x = [normal(n, f.width, seed=i) for i, n in enumerate([9, 3, 12, 9, 1, 12, 5, 9])]
        weights = [tokens[:, 0].exp() for tokens in x]
        for given, heavy in ((x, None), (x, weights), (tuple(x), tuple(weights))):
            together = local_lipschitz(f, given, weights=heavy, **options)
            assert together.value.shape == together.steps.shape == (8,)
            routes = set()
            for i, tokens in enumerate(x):
                alone = local_lipschitz(f, tokens, weights=None if heavy is None else heavy[i], **options)
                routes.add(alone.route)
                assert abs(together.value[i] / alone.value - 1) < 1e-7 and together.converged[i] == alone.converged
                assert together.steps[i] == alone.steps and together.confidence == alone.confidence
                assert together.upper[i] == alone.upper or abs(together.upper[i] / alone.upper - 1) < 1e-7
            assert together.route == " + ".join(sorted(routes))


def test_lowered_float32_products_are_certified_with_their_own_rounding():
    matrix = torch.randn(400, 400, generator=torch.Generator().manual_seed(0))
    Q, R = (torch.linalg.qr(part).Q for part in (matrix, matrix.mT))
    M = (Q * torch.linspace(0, 1, 400)) @ R.mT
    before, answers = torch.get_float32_matmul_precision(), {}
    try:
        for precision in ("highest", "high"):
            torch.set_float32_matmul_precision(precision)
            answers[precision] = local_lipschitz(lambda x: x @ M, torch.zeros(1, 400), confidence=1 - 1e-9)
    finally:
        torch.set_float32_matmul_precision(before)
    for answer in answers.values():
        assert not answer.converged and answer.upper.isinf()


def test_the_direction_comes_from_the_same_solve():
    """The answer of local_lipschitz, and the change that has it: every route, and a float32 item solved in float64."""
    for kind in ("plain", "block"):
        for n, route in ((3, "dense"), (40, "cached")):
            generator = torch.Generator().manual_seed(n)
            eye = torch.eye(6, dtype=torch.float64)
            f, x = Attention.from_matrices(eye, eye), torch.randn(2, n, 6, generator=generator, dtype=torch.float64)
            f = f if kind == "plain" else (lambda x, f=f: x + f(x))
            found, change = lipschitz.with_direction(f, x, seed=3)
            once = local_lipschitz(f, x, seed=3)
            assert found.route == (route if kind == "plain" else "autodiff") and change.shape == x.shape
            assert all(torch.equal(getattr(found, name), getattr(once, name)) for name in ("value", "upper", "steps"))
            assert torch.allclose(torch.linalg.vector_norm(change, dim=(1, 2)), torch.ones(2, dtype=torch.float64))
            images = torch.stack([AutodiffJacobian(f, one).jvp(v) for one, v in zip(x, change, strict=True)])
            assert torch.allclose(torch.linalg.vector_norm(images, dim=(1, 2)), found.value, rtol=1e-8)
