"""Local constants against dense values: options, precisions, lists, and every bad input with its sentence."""

import itertools
import re

import pytest
import torch
from cases import normal, random_case, relative, truth_of

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
    matrix, x = case.attention.value[0].requires_grad_(), case.x.clone().requires_grad_()
    attention = Attention(case.attention.query.clone().requires_grad_(), case.attention.key, case.attention.value)
    assert local_lipschitz(attention, x).value.isfinite().all()
    for method in ("lanczos", "dense"):
        found = local_lipschitz(lambda x: x @ matrix.T, x, method=method).value
        assert relative(found, torch.linalg.matrix_norm(matrix.detach(), 2).expand(2)) < 1e-6


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


def test_float64_certifies_nothing_whose_squares_underflow():
    generator = torch.Generator().manual_seed(0)
    x, eye = torch.randn(40, 3, generator=generator).double(), torch.eye(3).double()[None]
    A = torch.randn(1, 3, 3, generator=generator).double()
    for sink, method in itertools.product([190.0, 200.0, 210.0, 400.0], ["lanczos", "power"]):
        f = Attention(A, eye, eye, sinks=torch.tensor([sink]).double())
        answer, truth = local_lipschitz(f, x, method=method), truth_of(f, x)
        certified = answer.converged.item() and answer.upper.item() < torch.inf
        assert answer.value.item() == 0 or not answer.converged or answer.value.item() == pytest.approx(truth, rel=1e-4)
        assert not certified or answer.upper.item() >= truth or (answer.value.item() == 0 and truth < 1e-146)


def dense(attention, x, weights=None):
    return local_lipschitz(attention.to(dtype=torch.float64), x.double(), weights=weights, method="dense").value


# types of the input, and the error to expect of the value
PRECISIONS = [pytest.param(torch.float64, 1e-12, id="float64"), pytest.param(torch.float32, 1e-6, id="float32")]
precisions = pytest.mark.parametrize(("dtype", "rounding"), PRECISIONS)
METHODS = [{}, {"memory": 1}, {"method": "power"}, {"method": "dense"}]
methods = pytest.mark.parametrize("method", METHODS, ids=lambda method: "-".join(map(str, method.values())))


@precisions
@pytest.mark.parametrize("spread", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("seed", [2, 5, 10])
def test_every_precision_meets_the_tolerance(seed, spread, dtype, rounding):
    """Of attention, and of the same map as a callable."""
    f, x, heavy = random_case(seed, n=12, spread=spread, dtype=dtype)
    exact = dense(f, x, None if heavy is None else heavy.double())
    for rtol, options in itertools.product((1e-2, 1e-4), ({}, {"memory": 1}, {"method": "dense"})):
        for g in (f, lambda z: f(z, heavy)) if options != {"memory": 1} else (f,):
            lip = local_lipschitz(g, x, weights=heavy, rtol=rtol, **options)
            assert lip.converged.all() and lip.confidence == (1.0 if "method" in options else 1 - 1e-6)
            assert (lip.value >= exact * (1 - rtol - rounding)).all()
            assert (lip.value <= exact * (1 + 4 * rounding)).all() and (lip.upper >= exact * (1 - rounding)).all()
            assert dtype == torch.float32 or (lip.upper <= lip.value * (1 + rtol) * (1 + 1e-8)).all()
    wide = local_lipschitz(f, x, weights=heavy, max_steps=3)
    assert (wide.upper >= exact * (1 - rounding)).all() and (wide.value <= exact * (1 + 4 * rounding)).all()
    assert (wide.upper > wide.value).all() and torch.isfinite(wide.upper).all()


def test_without_confidence_nothing_is_certified_and_more_costs_more_products():
    case = random_case(14, n=30)
    lip = local_lipschitz(case.attention, case.x, confidence=None)
    assert lip.confidence is None and torch.isinf(lip.upper).all() and lip.converged.all()
    every = [local_lipschitz(case.attention, case.x, confidence=c) for c in (0.5, 0.99, 1 - 1e-12)]
    steps = [one.steps.sum() for one in (lip, *every)]
    assert steps[0] <= steps[1] < steps[2] < steps[3]
    assert every[1].confidence == 0.99 and torch.isfinite(every[1].upper).all()
    power = local_lipschitz(case.attention, case.x, method="power", max_steps=9)
    assert power.confidence is None and torch.isinf(power.upper).all()
    few = local_lipschitz(case.attention, case.x, confidence=None, max_steps=2)
    assert torch.isinf(few.upper).all() and not few.converged.any()


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


@precisions
@pytest.mark.parametrize("method", ["lanczos", "power", "dense"])
@pytest.mark.parametrize("name", SPECTRA)
def test_adversarial_spectra(name, method, dtype, rounding):
    """Uniform attention: the singular values of the Jacobian are these, and zeros."""
    left, right = (torch.linalg.qr(normal(20, 20, seed=s))[0] for s in (1, 2))
    zero, power = torch.zeros(1, 2, 20, dtype=torch.float64), method == "power"
    value, top, rtol = left @ torch.diag(torch.tensor(SPECTRA[name]).double()) @ right.mT, max(SPECTRA[name]), 1e-4
    for n, scale in itertools.product((1, 6), (1e-20, 1.0, 1e20)):
        f, x = Attention(zero, zero, scale * value[None]).to(dtype=dtype), normal(2, n, 20).to(dtype)
        lip = local_lipschitz(f, x, method=method, max_steps=100 if power else None)
        assert not torch.stack([lip.value, lip.residual, lip.upper]).isnan().any()
        # many close values: power iteration stops at any of them, as its residual says
        right_ = lip.value >= scale * top * (1 - rtol - 4 * rounding)
        assert (right_ | ~lip.converged | torch.tensor(power)).all()
        assert right_.all() or power and name in ("gap 1e-3", "near")
        assert (lip.value <= scale * top * (1 + 8 * rounding)).all()
        assert (lip.upper >= scale * top * (1 - 8 * rounding)).all()


@precisions
@methods
@pytest.mark.parametrize("seed", [2, 7])
def test_units_change_nothing_but_the_unit_of_the_answer(seed, method, dtype, rounding):
    """Of matrices and of tokens: the same map, up to the unit of the value; and logits of any size are hard or none."""
    case = random_case(seed, n=8)
    f = Attention(*(getattr(case.attention, name) for name in ("query", "key", "value", "output")), masked=seed == 7)
    exact = dense(f, case.x)
    for unit in (1e-20, 1e12):
        others = [({"value": unit}, 1, unit), ({"query": unit, "key": 1 / unit}, 1, 1)]
        if dtype == torch.float64:  # of which float32 has not enough
            others += [({"query": q, "key": k, "value": 1 / unit}, unit, 1 / unit) for q, k in
                       ((1 / unit, 1 / unit), (1 / unit**2, 1), (1, 1 / unit**2))]  # fmt: skip
        for factors, of_tokens, of_answer in others:
            g = f.replace(**{name: getattr(f, name) * factor for name, factor in factors.items()}).to(dtype=dtype)
            lip = local_lipschitz(g, (case.x * of_tokens).to(dtype), **method)
            assert (((lip.value / of_answer / exact - 1).abs() <= 1.1e-4) | ~lip.converged).all()
            assert not lip.value.isnan().any() and (lip.upper >= exact * of_answer * (1 - 1e-4)).all()
    for unit in (1e-20, 30.0, 1e4, 1e20):
        g, x = f.replace(query=f.query * unit).to(dtype=dtype), case.x.to(dtype)
        lip = local_lipschitz(g, x, **method, rtol=1e-3)
        assert not lip.value.isnan().any()
        assert (((lip.value / dense(g, x) - 1).abs() <= 1.1e-3) | ~lip.converged).all()


@pytest.mark.parametrize("options", [*METHODS, {"confidence": None}])
def test_a_list_of_mixed_lengths_gives_each_of_its_answers_in_order(options):
    f = random_case(5).attention
    x = [normal(n, f.width, seed=i) for i, n in enumerate([9, 3, 12, 9, 1, 12, 5, 9])]
    for given, heavy in ((x, None), (tuple(x), tuple(tokens[:, 0].exp() for tokens in x))):
        together, routes = local_lipschitz(f, given, weights=heavy, **options), set()
        assert together.value.shape == together.steps.shape == (8,)
        for i, tokens in enumerate(x):
            alone = local_lipschitz(f, tokens, weights=None if heavy is None else heavy[i], **options)
            routes.add(alone.route)
            assert abs(together.value[i] / alone.value - 1) < 1e-7 and together.converged[i] == alone.converged
            assert together.steps[i] == alone.steps and together.confidence == alone.confidence
            assert together.upper[i] == alone.upper or abs(together.upper[i] / alone.upper - 1) < 1e-7
        assert together.route == " + ".join(sorted(routes))


@pytest.mark.parametrize(("n", "route"), [(3, "dense"), (40, "cached")])
@pytest.mark.parametrize("kind", ["plain", "block"])
def test_the_direction_comes_from_the_same_solve(n, route, kind):
    eye, x = torch.eye(6, dtype=torch.float64), normal(2, n, 6, seed=n)
    f = Attention.from_matrices(eye, eye)
    f = f if kind == "plain" else (lambda x, f=f: x + f(x))
    found, change = lipschitz.with_direction(f, x, seed=3)
    once = local_lipschitz(f, x, seed=3)
    assert found.route == (route if kind == "plain" else "autodiff") and change.shape == x.shape
    assert all(torch.equal(getattr(found, name), getattr(once, name)) for name in ("value", "upper", "steps"))
    assert torch.allclose(torch.linalg.vector_norm(change, dim=(1, 2)), torch.ones(2, dtype=torch.float64))
    images = torch.stack([AutodiffJacobian(f, one).jvp(v) for one, v in zip(x, change, strict=True)])
    assert torch.allclose(torch.linalg.vector_norm(images, dim=(1, 2)), found.value, rtol=1e-8)
