"""The table of L2 attention against its bounds."""

import math

import torch

from lab.experiments import l2_bounds
from lipnb import Attention, AttentionJacobian, bounds


def test_rows_of_the_table():
    for kind in l2_bounds.KINDS:
        for number in [10000, 10003, 10009]:
            query, value, output, masked, x = l2_bounds.l2_problem(kind, number)
            assert masked == (number % 2 == 1) and x.shape[0] == l2_bounds.INPUTS
            f, n = Attention.l2(query, value, output, masked=masked), x.shape[1]
            dense = AttentionJacobian(f, x).dense()
            assert (l2_bounds.dense_l2(f, x) - dense).abs().max() <= 1e-10 * dense.abs().max()
            rows = l2_bounds.l2_rows(kind, number)
            assert rows == l2_bounds.l2_rows(kind, number) and len(rows) == len(x)
            assert max(row[name] for row in rows for name in ("inf", "two", "sharp")) <= 1 + 1e-12
            starts = {
                "inf": dense.abs().sum(-1).amax(-1) / bounds.l2_upper(query, value, output, n, math.inf),
                "two": torch.linalg.matrix_norm(dense, 2) / bounds.l2_upper(query, value, output, n),
            }
            for name, start in starts.items():
                found = torch.tensor([row[name] for row in rows], dtype=torch.float64)
                if kind != "ascended":
                    assert (found / start - 1).abs().max() < 1e-12
                else:
                    assert (found > 1.05 * start).double().mean() > 0.5


def test_each_norm_is_climbed_for_itself():
    for number, goal in ((10004, 0), (10006, 1)):
        query, value, output, masked, x = l2_bounds.l2_problem("ascended", number)
        f, n = Attention.l2(query, value, output, masked=masked), x.shape[1]
        J = AttentionJacobian(f, l2_bounds._ascended(f, x, goal)).dense()
        said = [row["two"] * bounds.l2_upper(query, value, output, n) for row in l2_bounds.l2_rows("ascended", number)]
        assert (torch.linalg.matrix_norm(J, 2) / torch.tensor(said, dtype=torch.float64) - 1).abs().max() < 1e-9


def test_structured_inputs_reach_what_they_should():
    """A single token attains both bounds; the explicit token between clusters comes near that in the maximum norm."""
    rows = [row for number in range(40) for row in l2_bounds.l2_rows("structured", number)]
    assert max(row["sharp"] for row in rows if row["n"] == 1) > 1 - 1e-9
    assert max(row["inf"] for row in rows if row["n"] > 1) > 0.7
    refuting = [row for row in rows if row["printed"] > 1 + 1e-9]
    assert refuting and all(row["query"] > 1 for row in refuting)
