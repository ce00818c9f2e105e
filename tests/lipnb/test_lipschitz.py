"""The solvers against the dense singular value, the definitions, and every bad input with its sentence."""

import dataclasses
import math
import re

import numpy as np
import pytest
import torch
from cases import normal, random_case, relative

from lipnb import Attention, bounds, certify, local_lipschitz, singular_pair, spectral, worst_case
from lipnb.measures.splitting import splitting
from lipnb.worst_case import attacks


def test_power_iteration_reports_a_singular_value():
    for seed in range(1, 16):
        case = random_case(seed)
        lip = local_lipschitz(case.attention, case.x, weights=case.weights, method="power", rtol=1e-5, max_steps=5000)
        assert lip.converged.all()
        dense = local_lipschitz(case.attention, case.x, weights=case.weights, method="dense").value
        assert ((lip.value / dense - 1).abs() <= 2e-5).all()
        assert (lip.residual <= 2e-5).all()


def test_a_close_second_value_does_not_fool_lanczos():
    """Start vectors that nearly miss the top vector: the guard goes on where a residual alone would stop."""
    values = torch.cat([torch.tensor([1.0]), torch.linspace(0, 0.98, 399)]).double()
    start = normal(1, 400, seed=3)
    start[:, 0] = 1e-6
    found = spectral.lanczos(lambda u: values**2 * u, start, rtol=1e-3)
    assert found.converged.all() and abs(found.value.item() - 1) <= 1e-3
    # what the residual rule would have said: settled on the second value, far earlier
    early = spectral.lanczos(lambda u: values**2 * u, start, rtol=1e-3, max_steps=found.steps.item() // 3)
    assert early.value.item() < 0.99 and not early.converged.all()


def test_clusters_repeats_zeros_and_one_dimension():
    def solve(values, **options):
        values = torch.as_tensor(values, dtype=torch.float64)
        start = spectral.start_vectors(1, len(values), seed=0, dtype=values.dtype, device="cpu")
        return spectral.lanczos(lambda u: values**2 * u, start, **options)

    for values in ([3.0], [0.0], [0.0] * 5, [2.0] * 7, [5.0, 5.0, 1e-9], [1.0, 1 - 1e-9, 1 - 1e-7, 0.5]):
        found = solve(values)
        assert found.converged.all()
        assert abs(found.value.item() - max(values)) <= 1e-7 * max(values)
        assert found.residual.item() <= 1e-6
    # more steps than the space has dimensions are never taken
    assert solve([3.0, 2.0, 1.0]).steps.item() <= 3


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


def test_every_answer_is_a_table():
    """One row for each item, radius or input; of one sequence, of a batch of batches, and of a list."""
    eye = torch.eye(3, dtype=torch.float64)
    f, x = Attention.from_matrices(eye, eye), normal(2, 2, 4, 3)
    one, batch = x[0, 0], x[0]
    answers = [
        (local_lipschitz(f, one), 1), (local_lipschitz(f, batch), 2), (local_lipschitz(f, x), 4),
        (local_lipschitz(f, [one, one[:2], one]), 3), (certify(f, one), 1), (certify(f, batch), 2),
        (singular_pair(f, one), 1), (singular_pair(f, batch), 2), (singular_pair(torch.sin, x), 4),
        (bounds.nearby_upper(f, one, [0.1, 0.2, 0.3]), 3), (splitting(f, one), 1), (attacks.singular(f, one), 1),
        (spectral.baselines.dense_norm(batch), 2), (worst_case.WorstCase(one, 1.0, "fork"), 1),
    ]  # fmt: skip
    for answer, rows in answers:
        table = answer.table
        assert len(table) == rows and len(table.columns) >= 2, type(answer)
        assert all(not getattr(entry, "shape", ()) for entry in table.to_numpy().flatten()), "numbers and words alone"
    table, lip = local_lipschitz(f, x).table, local_lipschitz(f, x)
    assert table.value.tolist() == lip.value.flatten().tolist() and table.steps.dtype == int
    assert set(table.columns) == {field.name for field in dataclasses.fields(lip)}
    assert [*singular_pair(f, one).table] == ["value", "upper", "residual", "converged"]
    assert [*worst_case.WorstCase(one, 1.0, "fork").table] == ["value", "kind"]
