"""Mass splitting: the criterion against dense Jacobians of copies; far splitting against exact transport."""

import pytest
import torch
from cases import constant, normal, normals, random_case
from scipy.sparse.csgraph import shortest_path

from lipnb import Attention
from lipnb.measures import mean_field_map, wasserstein
from lipnb.measures.splitting import Splitting, _chain_costs, far_splitting, query_blocks, splitting

ONE = torch.ones(1, 1, dtype=torch.float64)


HALF = torch.tensor([0.5, 0.5], dtype=torch.float64)


def scalar(A):
    return Attention.from_matrices(A * ONE, ONE)


def column(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def unmasked(seed):
    """An unmasked map with any heads and biases, a few atoms and weights of total one."""
    case = random_case(2 * seed, n=1 + seed % 5, spread=(0.5, 1.5, 4.0)[seed % 3])
    x = case.x[0]
    return case.attention, x, normal(len(x), seed=seed).softmax(0)


def test_the_criterion_is_the_norm_of_copies_of_any_weights():
    for copies in (2, 3):
        for seed in range(8):
            attention, x, weights = unmasked(seed)
            parts = normal(len(x), copies, seed=100 + seed).softmax(1)
            exact = constant(attention, x.repeat_interleave(copies, 0), (weights[:, None] * parts).flatten()).item()
            found = splitting(attention, x, weights, rtol=1e-12)
            assert max(found.together, found.apart) == pytest.approx(exact, rel=1e-12)
            assert found.together == pytest.approx(constant(attention, x, weights).item(), rel=1e-12)


def test_parting_one_atom_only_uses_the_derivative_at_that_atom():
    x, found = column(-0.45, -4.0), splitting(scalar(-1.0), column(-0.45, -4.0))
    for atom, expected in ((0, found.apart), (1, found.together)):  # the other atom is not steep
        counts = torch.tensor([1, 1])
        counts[atom] = 2
        exact = constant(scalar(-1.0), x.repeat_interleave(counts, 0), (HALF / counts).repeat_interleave(counts)).item()
        assert exact == pytest.approx(expected, rel=1e-4)


def test_the_example_is_split_and_its_mirror_in_A_is_not():
    found = splitting(scalar(-1.0), column(-0.45, -4.0), HALF)
    assert found.split and found.token == 0
    assert found.together == pytest.approx(1.2263, abs=1e-4)
    assert found.apart == pytest.approx(1.7643, abs=1e-4)
    assert not splitting(scalar(1.0), column(-0.45, -4.0), HALF).split


def test_weights_count_by_their_ratios_and_default_to_equal_ones():
    attention, x, weights = unmasked(7)
    for left, right in (
        (splitting(attention, x, weights), splitting(attention, x, 5 * weights)),
        (splitting(attention, x, weights), splitting(attention, x, 1e308 * weights)),
        (splitting(attention, x, weights), splitting(attention, x, 1e-300 * weights)),
        (splitting(attention, x), splitting(attention, x, torch.ones_like(weights))),
    ):
        assert left == pytest.approx(right, rel=1e-9)


WRITTEN = {
    "first atom twice": ((0, 0, 1), (0.25, 0.25, 0.5)),
    "second atom twice": ((0, 1, 1), (0.5, 0.25, 0.25)),
    "both twice": ((0, 1, 1, 0), (0.1, 0.25, 0.25, 0.4)),
    "thrice, in disorder": ((1, 0, 1, 0, 1), (0.2, 0.3, 0.2, 0.2, 0.1)),
}


def test_a_measure_is_judged_alike_however_it_is_written():
    """Atoms written several times, at exactly one place or nearly: the weights add, the answer stays."""
    for written in WRITTEN:
        for apart in [0.0, 1e-9, 3e-7]:
            places, weights = WRITTEN[written]
            x = column(-0.45, -4.0)[list(places)] + apart * torch.arange(len(places))[:, None]
            expected = splitting(scalar(-1.0), column(-0.45, -4.0), HALF)
            found = splitting(scalar(-1.0), x, torch.tensor(weights, dtype=torch.float64))
            assert found.split is expected.split is True and found.token == places.index(0)
            assert found.together == pytest.approx(expected.together, rel=1e-12 + 10 * apart)
            assert found.apart == pytest.approx(expected.apart, rel=1e-12 + 10 * apart)
            line = torch.linspace(-4.001, 4, 100, dtype=torch.float64)[:, None]
            far = far_splitting(scalar(-1.0), column(-0.45, -4.0), HALF, line)
            assert far_splitting(scalar(-1.0), x, torch.tensor(weights, dtype=torch.float64), line) == pytest.approx(
                far, rel=1e-9 + 10 * apart
            )


def test_copies_of_atoms_never_change_whether_a_random_measure_is_split():
    for seed in range(8):
        attention, x, weights = unmasked(seed)
        counts = torch.randint(1, 4, (len(x),), generator=torch.Generator().manual_seed(seed))
        expected = splitting(attention, x, weights, rtol=1e-9)
        copies = x.repeat_interleave(counts, 0), (weights / counts).repeat_interleave(counts)
        found = splitting(attention, *copies, rtol=1e-9)
        assert found[:2] == pytest.approx(expected[:2], rel=1e-8, abs=1e-12)
        assert found.split == expected.split
        equal = splitting(attention, x.repeat_interleave(counts, 0))  # without weights: the copies are the weights
        assert equal[:2] == pytest.approx(splitting(attention, x, counts.double())[:2], rel=1e-5, abs=1e-12)


def test_atoms_further_apart_than_the_tolerance_are_two():
    """Close atoms that are two may part: their constant is that of copies, so nothing gains by dividing them."""
    x, thirds = column(-0.45, -0.45 + 5e-6, -4.0), torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
    found = splitting(scalar(-1.0), x, thirds)
    assert found.together == pytest.approx(splitting(scalar(-1.0), column(-0.45, -4.0), HALF).apart, rel=1e-4)


def test_a_gain_within_the_tolerance_is_none():
    assert not Splitting(1.0, 1.0 + 7e-16, 0, 1e-6).split and not Splitting(1.0, 1.0 + 9e-7, 0, 1e-6).split
    assert Splitting(1.0, 1.0 + 2e-6, 0, 1e-6).split


def test_query_blocks_are_the_derivative_of_the_field_at_the_atoms():
    for seed in range(6):
        attention, x, weights = unmasked(seed)
        blocks, step = query_blocks(attention, x, weights), 1e-6
        for c, unit in enumerate(torch.eye(attention.width, dtype=torch.float64)):
            ahead, behind = (mean_field_map(attention, x, weights, x + s * step * unit) for s in (1, -1))
            difference = (ahead - behind) / (2 * step)
            assert (blocks[..., c] - difference).abs().max() <= 1e-6 * (1 + blocks.abs().max())


def test_for_one_head_query_blocks_are_value_covariance_A():
    A, V, x = normals(3, *[(4, 4)] * 3)
    P = (x @ A.T @ x.T).softmax(-1)
    for i, block in enumerate(query_blocks(Attention.from_matrices(A, V), x)):
        centred = x - P[i] @ x
        assert torch.allclose(block, V @ (centred.T * P[i]) @ centred @ A, rtol=1e-12, atol=1e-13)


def test_a_speck_sent_far_moves_the_output_by_far_splitting():
    """The quotient of exact transport costs, for the best atom, is far splitting at one z."""
    for seed in range(8):
        attention, x, weights = unmasked(6 * seed + 4)
        x = x / x.norm(dim=1).max()  # small logits, so that the speck stays small beside the rest
        z = normal(1, attention.width, seed=seed)
        images = mean_field_map(attention, x, weights, x)
        speck, best = 1e-9, 0.0
        for i in range(len(x)):
            moved = torch.cat([weights, weights.new_tensor([speck])])
            moved[i] -= speck
            y = torch.cat([x, z])
            out = mean_field_map(attention, y, moved, y)
            best = max(best, wasserstein(images, out, weights, moved) / wasserstein(x, y, weights, moved))
        assert far_splitting(attention, x, weights, z) == pytest.approx(best, rel=2e-2, abs=1e-3)


def test_transport_may_pass_the_speck_on():
    """With atoms in a row, the cheapest way is a chain: three steps of one in place of one step of three."""
    x = column(0.0, 1.0, 2.0)
    f, third = scalar(-0.3), torch.full((3,), 1 / 3, dtype=torch.float64)
    field = mean_field_map(f, x, third, column(0.0, 1.0, 2.0, 3.0))[:, 0]
    steps = field.diff().square().sum()  # the images lie in order too: all of their steps
    found = far_splitting(f, x, third, column(3.0))
    assert found == pytest.approx(
        max(
            (steps / 3).sqrt(), (field[2:].diff().square().sum()).sqrt(), (field[1:].diff().square().sum() / 2).sqrt()
        ).item(),
        rel=1e-12,
    )


def test_far_splitting_of_the_example_and_near_an_atom():
    f, x = scalar(-1.0), column(-0.45, -4.0)
    line = torch.linspace(-4, 4, 1601, dtype=torch.float64)[:, None]  # holds both atoms
    assert far_splitting(f, x, HALF, line) == pytest.approx(2.7425, abs=1e-4)
    close = far_splitting(f, x, HALF, x[:1] + 1e-5)
    assert close == pytest.approx(splitting(f, x, HALF).apart, rel=1e-3)
    assert far_splitting(f, x, HALF, line[::100]) <= far_splitting(f, x, HALF, line)


def test_units_of_the_tokens_do_not_decide_what_an_atom_is():
    for unit, dtype in [
        (1e160, torch.float64),
        (1e-170, torch.float64),
        (1e100, torch.float64),
        (1e20, torch.float32),
        (1e-25, torch.float32),
    ]:
        A, V, x = normals(3, (2, 2), (2, 2), (4, 2))
        eye = torch.eye(2, dtype=torch.float64)

        def judged(c, kind):
            f = Attention((3 * A / c)[None].to(kind), (eye / c)[None].to(kind), V[None].to(kind), scale=1.0)
            return splitting(f, (x * c).to(kind))

        plain, scaled = judged(1, torch.float64), judged(unit, dtype)
        assert plain.apart > 0.1
        assert scaled.together == pytest.approx(plain.together, rel=1e-4)
        assert scaled.apart == pytest.approx(plain.apart, rel=1e-4)


def test_a_chain_of_near_points_is_one_atom_in_any_order():
    line = torch.tensor([[1.0], [1 + 8e-7], [1 + 16e-7], [-0.5]], dtype=torch.float64)
    f = Attention.from_matrices(-torch.ones(1, 1).double(), torch.ones(1, 1).double())
    found = [splitting(f, line[list(order)]) for order in ((0, 1, 2, 3), (1, 0, 2, 3), (3, 2, 0, 1))]
    plain = splitting(f, line[[0, 3]], torch.tensor([3.0, 1]).double())
    assert all(one[:2] == pytest.approx(plain[:2], rel=1e-5) for one in found)


def test_the_token_counts_the_rows_as_they_were_given():
    for seed in range(1, 5):
        attention, x, weights = unmasked(seed)
        x, weights = torch.cat([x[:1], x]), torch.cat([weights[:1], weights])
        norms = torch.linalg.matrix_norm(query_blocks(attention, x, weights), 2)
        assert norms[splitting(attention, x, weights).token].item() == pytest.approx(norms.max().item())


def test_mass_goes_along_the_cheapest_chain_of_atoms():
    x, z = normal(7, 2, seed=3), normal(4, 2, seed=4)
    both = torch.cat([x, z])
    squares = (both[:, None] - both).square().sum(-1)
    squares[7:] = 0  # nothing goes on from z
    expected = shortest_path(squares.numpy(), method="D")[:7, 7:]
    assert torch.allclose(_chain_costs(x, z), torch.from_numpy(expected), rtol=1e-12)
    assert (_chain_costs(x, z) < squares[:7, 7:]).any()
