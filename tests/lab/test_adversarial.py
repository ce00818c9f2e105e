"""Adversarial tokens against heads of low rank: eigenpairs, fewer dimensions, windows, whole layers, tables."""

import math

import numpy as np
import pytest
import torch
from cases import random_case

from lab import released, results
from lab.experiments import adversarial, scaling_factor
from lab.experiments.two_clusters import (
    ball_bounds,
    cluster_constants,
    cluster_input,
    fork_constant,
    head_of,
    in_subspace,
    matrices,
)
from lab.statistics import head_rates
from lipnb import Attention, bounds, local_lipschitz, worst_case

MASKS = pytest.mark.parametrize("masked", [False, True])


def layer(seed, *, masked=False, h=2, k=3, d=8, m=5, bias=True):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    biases = {"query_bias": normal(h, k), "key_bias": normal(h, k), "value_bias": normal(h, k)} if bias else {}
    return Attention(normal(h, k, d), normal(h, k, d), normal(h, k, d), normal(h, m, k), masked=masked, **biases)


def dense_matrices(head):
    f = head.attention
    return f.scale * f.key[0].mT @ f.query[0], f.value[0]


def dense_constant(head, n, R, identity):
    A, V = dense_matrices(head)
    f = Attention.from_matrices(A, torch.eye(len(A)).double() if identity else V, masked=head.attention.masked)
    return local_lipschitz(f, cluster_input(head, n, R), method="dense").value.item()


@pytest.mark.parametrize("seed", range(12))
def test_the_eigenpair_of_the_small_matrix_is_that_of_the_large_one(seed):
    head = head_of(layer(seed), seed % 2)
    A, V = dense_matrices(head)
    eigenvalue, u = worst_case.eigenvector(A)
    assert head.eigenvalue == pytest.approx(eigenvalue, rel=1e-8)
    assert abs(head.u @ u).item() == pytest.approx(1, abs=1e-8) and head.u.norm().item() == pytest.approx(1)
    assert head.u[head.u.abs().argmax()] > 0
    assert head.rate == pytest.approx(bounds.growth_rate(A), rel=1e-8)
    x = cluster_input(head, 5, 2.0)
    tight = worst_case.tight_input(A, 5, 2.0)
    assert min((x - tight).norm(), (x + tight).norm()) < 1e-7
    for n, R in ((2, 0.3), (9, 1.5)):
        assert ball_bounds(head, n, R) == pytest.approx(
            (bounds.general_lower(A, n, R), bounds.general_upper(A, V, n, R), bounds.general_upper_sharp(A, V, n, R))
        )


@MASKS
@pytest.mark.parametrize("seed", range(6))
def test_few_dimensions_give_the_constant_of_the_dense_jacobian(seed, masked):
    head = head_of(layer(seed, masked=masked), 0)
    assert in_subspace(head)[0].width == 5 and in_subspace(head, identity=True)[0].width == 2
    for R in (0.2, 0.7, 2.0):
        for identity in (False, True):
            lengths = [2, 3, 7, 20]
            found = cluster_constants(head, lengths, R, identity=identity)
            dense = [dense_constant(head, n, R, identity) for n in lengths]
            assert np.allclose(found, dense, rtol=1e-6), (R, identity)


@MASKS
@pytest.mark.parametrize("seed", range(6))
def test_constants_lie_between_the_bounds_and_end_at_the_norm_of_the_values(seed, masked):
    head = head_of(layer(seed, masked=masked), 1)
    for R in (0.3, 1.0, 30.0):
        for n in (2, 10, 40):
            lower, upper, sharp = ball_bounds(head, n, R)
            own, plain = (cluster_constants(head, [n], R, identity=identity).item() for identity in (False, True))
            assert plain >= lower * (1 - 1e-9) and own <= sharp <= upper
    followers = 40 - (head.eigenvalue < 0 and not masked)
    assert own == pytest.approx(head.V_norm * math.sqrt(followers), rel=1e-5)


@pytest.mark.parametrize("seed", range(8))
def test_the_sign_is_the_one_for_which_the_query_bias_helps(seed):
    f = layer(seed)
    x = adversarial.worst_input(f, 0, 6, 0.4)
    assert f.probabilities(x)[0, 1, 0] >= f.probabilities(-x)[0, 1, 0]
    plain = layer(seed, bias=False)
    assert torch.equal(adversarial.worst_input(plain, 0, 6, 0.4), cluster_input(head_of(plain, 0), 6, 0.4))


@pytest.mark.parametrize("seed", range(0, 40, 3))
def test_the_bound_on_a_layer_with_biases_is_one(seed):
    f, x, _ = random_case(seed, n=6)
    if f.output is not None:
        upper = adversarial.ball_upper(f, 6, x.norm(dim=-1).max().item())
        assert local_lipschitz(f, x, method="dense").value.item() <= upper < math.inf


@pytest.mark.parametrize("d", [2, 3, 8, 40])
def test_the_radius_of_a_layer_norm_is_reached_and_never_passed(d):
    generator = torch.Generator().manual_seed(d)
    for _ in range(10):
        gain, shift = torch.randn(2, d, generator=generator, dtype=torch.float64)
        R = bounds.layer_norm_radius(gain, shift)
        assert R <= math.sqrt(d) * gain.abs().max() + shift.norm() + 1e-9
        z = torch.randn(500, d, generator=generator, dtype=torch.float64)
        for _ in range(200):  # ascent of a convex function on a sphere: follow its gradient
            z = z - z.mean(-1, keepdim=True)
            z = z * math.sqrt(d) / z.norm(dim=-1, keepdim=True)
            token = gain * z + shift
            assert token.norm(dim=-1).max() <= R * (1 + 1e-9)
            z = z + 5 * gain * token
        assert token.norm(dim=-1).max().item() == pytest.approx(R, rel=1e-2)


@pytest.mark.parametrize("s", [0.0, 0.5, 2.0, 10.0, 40.0])
def test_the_lower_bound_stops_growing_where_it_is_said(s):
    def bound(n):
        p = 1 / (1 + (n - 1) * np.exp(-s))
        return np.sqrt(n - 1) * p * (1 + s * (1 - p))

    n = 1 + np.exp(s) * np.geomspace(1e-2, 1e2, 20_001)
    best = (n[bound(n).argmax()] - 1) / np.exp(s)
    assert best == pytest.approx(scaling_factor.peak_factor(s), rel=1e-3)
    assert 1 <= scaling_factor.peak_factor(s) < 3


def test_the_measured_growth_ends_there_too():
    head = head_of(layer(3), 0)
    s = 14.0
    n, largest = scaling_factor.growth_ends(head, math.sqrt(s / (2 * head.rate)))
    assert n == pytest.approx(1 + scaling_factor.peak_factor(s) * math.exp(s), rel=1e-2)
    assert largest > math.sqrt(n - 1) / 2


def test_stored_rows_are_measured_again():
    table = results.load("adversarial")
    rows = table[(table.model == "minilm") & (table["at"] == "layer norm") & (table.length < 98)]
    for row in rows.sample(2, random_state=1).itertuples():
        f, R = adversarial.layer_of(row.model, row.masked, row.at, row.layer)
        head = head_of(f, row.head)
        assert pytest.approx(row.R, rel=1e-5) == R
        assert cluster_constants(head, [row.length], R).item() == pytest.approx(row.constant, rel=1e-4)
        assert ball_bounds(head, row.length, R) == pytest.approx((row.lower, row.upper, row.sharp), rel=1e-4)
    layers = results.load("adversarial-layers")
    row = layers[layers.model == "minilm"].sample(1, random_state=1).iloc[0]
    again = adversarial.layer_row((row.model, row.masked, row["at"]), row.layer, row["head"], row.length)
    for name in ("lipschitz", "released", "upper"):
        assert again[name] == pytest.approx(row[name], rel=1e-4)
    f, R = adversarial.layer_of(row.model, row.masked, row["at"], row.layer)
    assert again["released"] == released.reported(f, adversarial.worst_input(f, row["head"], row.length, R)).item()


@MASKS
def test_a_head_on_the_span_of_its_rows_has_its_forks(masked):
    """Fewer dimensions and weighted copies give the constant of all tokens in all of them."""
    head = head_of(layer(3, masked=masked, d=12, k=3, bias=False), 1)
    A, V = dense_matrices(head)
    small_A, small_V = matrices(head)
    assert len(small_A) == 9
    assert torch.linalg.svdvals(small_A)[:3].tolist() == pytest.approx(torch.linalg.svdvals(A)[:3].tolist())
    for n, R in ((3, 0.7), (8, 1.3)):
        found, stated = fork_constant(head, n, R)
        x, same = worst_case.fork_input(A, V, n, R)
        dense = local_lipschitz(Attention.from_matrices(A, V, masked=masked), x, method="dense").value.item()
        assert stated == pytest.approx(same, rel=1e-6) and stated <= found * (1 + 1e-6)
        assert found == pytest.approx(dense, rel=1e-3)
    assert torch.linalg.svdvals(small_V)[0].item() == pytest.approx(torch.linalg.svdvals(V)[0].item())


def test_the_worst_heads_and_their_exponents_are_those_of_the_table():
    alone = results.load("adversarial")
    worst, heads = head_rates.worst_rates(alone), head_rates.head_rates(alone)
    assert len(worst) == alone.groupby(head_rates.PANEL).ngroups
    assert len(heads) == alone.groupby(head_rates.HEAD).ngroups
    for row in worst.itertuples():
        panel = alone[(alone.model == row.model) & (alone.masked == row.masked) & (alone["at"] == row.at)]
        assert row.constant == panel[panel.length == 97].constant.max()
        own = panel[(panel.layer == row.layer) & (panel["head"] == row.head)]
        attending = own.length - (own.eigenvalue.iloc[0] < 0 and not row.masked)
        drawn = own.length <= 97
        slope = np.polyfit(np.log(attending[drawn]), np.log(own.constant[drawn]), 1)[0]
        assert worst.loc[row.Index, "in N"] == pytest.approx(slope, rel=1e-6)


def test_a_head_is_counted_once_for_each_kind_of_radius():
    table = results.load("scaling-factor")
    mean = scaling_factor.mean_factors(table)
    assert not mean.duplicated(["model", "masked", "layer", "head", "radius"]).any()
    assert len(mean) == len(table) - 4 / 5 * (table.radius == "text").sum()
    assert (mean.s == 2 * mean.factor).all()
