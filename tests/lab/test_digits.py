"""Guarantees that include rounding, of `certify` and of `nearby_upper`, against fifty digits."""

from fractions import Fraction

import flint
import pytest
import torch
from cases import drawn, extreme_case, random_case

from lab.verification import digits, truth
from lab.verification.cancelling import Case
from lipnb import Attention, certify
from lipnb.bounds import nearby_upper
from lipnb.bounds.rounded_linearization import RoundedLinearization
from lipnb.bounds.rounding import RoundingErrors
from lipnb.spectral.upper_norms import length


def test_nearly_hard_attention_keeps_its_variance():
    """Moments minus the square of the mean lost it: 0.165 was the bound on a change of 2.828."""
    query, key, value = torch.eye(3, dtype=torch.float64)[:, None, None]
    f = Attention(1900 * query, key, value, scale=1.0)
    x = torch.tensor([[0.01, 1.0, 1.0], [0.01, -1.0, -1.0]], dtype=torch.float64)
    move = torch.zeros_like(x)
    move[:, 0] = -0.02
    radius = truth.above(truth.radius_of(move))
    exact = float(truth.change(f, x, move))
    assert exact == pytest.approx(8**0.5, rel=1e-6)
    bound = nearby_upper(f, x, [radius])
    for upper in (bound.jacobian, bound.taylor, bound.outputs, bound.general, bound.best):
        assert exact <= upper.item()


def test_bounds_hold_at_the_ends_of_float64():
    for start in range(0, 24, 6):
        held = 0
        for seed in range(start, start + 6):
            f, x, *_ = extreme_case(seed)
            outcome = digits.moved(Case(f, x, None, None), seed)
            assert outcome.margin >= 0, seed
            held += not outcome.unknown
        assert held >= 2


def cancelling_case(power=55):
    """Queries and keys that are 1 at the end of sums of 2^55: float64 finds neither, their product decides."""
    query, key, value = torch.zeros(3, 1, 1, 7, dtype=torch.float32)
    query[0, 0, :3] = key[0, 0, 3:6] = torch.tensor([1.0, 3.0, -1.0])
    value[0, 0, 6] = 1.0
    x = torch.zeros(4, 7)
    x[:, :3] = torch.tensor([2.0**power, 1.0, 2.0**power])
    x[0, 3:6] = x[0, :3]
    return Attention(query, key, value, scale=1.0), x


def test_products_of_errors_of_logits_are_counted():
    """The first order alone answered [1 - 4e-13, 1 + 4e-13]."""
    attention, x = cancelling_case()
    J, bits = truth.jacobian(attention, x)
    exact = float(truth.largest_stretch(J, bits))
    assert exact == pytest.approx(1.99926, abs=1e-5)
    for columns in (0, None):
        found = certify(attention, x, columns=columns)
        assert found.lower <= exact <= found.upper
    near = certify(*cancelling_case(power=20))  # where the sums are exact the bracket closes
    assert near.ratio < 1 + 1e-6


def test_weights_however_far_apart():
    """Ratios above 1e150 raised."""
    for exponent in [100, 300, 600]:
        case = random_case(3, n=4)
        weights = torch.tensor([-0.5, 0.5, 0.1, -0.3], dtype=torch.float64) * exponent
        weights = torch.exp(weights * 2.302585092994046).clamp_min(5e-324)
        for columns in (0, None):
            found = certify(case.attention, case.x[0], weights=weights, columns=columns)
            assert 0 <= found.lower <= found.upper and not torch.isnan(found.upper)
            if found.upper < torch.inf:
                norm = truth.largest_stretch(*truth.jacobian(case.attention, case.x[0], weights))
                assert found.lower.item() <= norm <= found.upper.item()


def test_a_raised_head_is_no_lower_bound_where_nothing_else_moves():
    """A sink hides the strong head, and a norm of rows near zero makes the steepest Jacobian of the faint one."""
    one, two = torch.eye(2, dtype=torch.float64)
    query, key = one.expand(2, 1, 2), two.expand(2, 1, 2)  # all tokens are zero where keys look
    x = torch.tensor([[1.0, 0.0], [0.5, 0.0], [0.25, 0.0]], dtype=torch.float64)
    for faint in (2.0**-350, 2.0**-450):
        size = torch.tensor([1.0, faint], dtype=torch.float64)[:, None, None]
        more = {"key_norm": torch.tensor([[0.0], [1.0]]).double(), "norm_eps": 2.0**-780}
        more |= {"sinks": torch.tensor([1e4, 0.0]).double()}
        f = Attention(query, key, size * one, size * one[:, None], scale=2.0**140, **more)
        norm = truth.largest_stretch(*truth.jacobian(f, x))
        for columns in (0, None):
            found = certify(f, x, columns=columns)
            assert found.lower.item() <= norm <= found.upper.item()
            assert faint < 2.0**-400 or columns == 0 or found.lower.item() > 0.99 * norm


def test_heads_far_apart_with_logits_hardly_resolved():
    """Values and outputs of 2^-540 and 2^-500: their squares underflow, and with them what rounding takes."""
    for seed in range(8):
        normal = drawn(seed)
        query = 2.0**46 * torch.tensor([[[1.0, -1.0, 0.0]]], dtype=torch.float64).expand(
            2, 1, 3
        )  # what is left of 2^46
        key, value, output = normal(2, 1, 3) * torch.tensor([0.0, 0.0, 1.0]), normal(2, 1, 3), normal(2, 2, 1)
        output[0] *= 2.0**-500
        value[1] *= 2.0**-540
        x = normal(3, 3)
        x[:, 1] = x[:, 0] + 2.0**-46 * normal(3)
        weights = 2.0 ** torch.tensor([149.0, -149.0, 0.0], dtype=torch.float64)
        f = Attention(query, key, value, output, scale=1.0)
        norm = truth.largest_stretch(*truth.jacobian(f, x, weights))
        for columns in (0, None):
            found = certify(f, x, weights=weights, columns=columns)
            assert found.lower.item() <= norm <= found.upper.item()


def test_a_length_counts_the_rounding_of_its_sum():
    """64 ones hide 2^16 squares of 2^-54, each below half a unit of the sum: it was 8, below the truth."""
    entries = torch.full((256, 256), 2.0**-27, dtype=torch.float64)
    entries.view(-1)[:64] = 1
    truth = 64 + (2**16 - 64) * Fraction(1, 2**54)
    assert Fraction(length(entries, (-2, -1)).item()) ** 2 >= truth


def test_no_probability_errs_by_more_than_its_bound():
    """Every entry, the largest of its row too, against the same attention in many digits."""
    rounded = 0
    with flint.ctx.workprec(400):
        for seed in range(40):
            case = random_case(seed, n=2 + seed % 5, spread=(0.3, 3.0, 30.0)[seed % 3])
            f, x = case.attention.replace(key_bias=None, value_bias=None, output_bias=None), case.x[0]
            at = RoundedLinearization(f, x)
            errors, largest = RoundingErrors(at).E, at.P.argmax(-1)
            tokens = [[flint.arb(one) for one in row] for row in x.tolist()]
            query, key = (truth._rows(f, name, tokens) for name in ("query", "key"))
            for h, i in [(h, i) for h in range(f.heads) for i in range(len(x))]:
                seen = truth.seen_by(f, len(x), i)
                exact = dict.fromkeys(range(len(x)), flint.arb(0))
                row = truth._attention(f, truth._scaled(f, query[h]), key[h], h, i, seen, None)[0]
                exact |= zip(seen, row, strict=True)
                for j in range(len(x)):
                    apart = abs(exact[j] - flint.arb(at.P[h, i, j].item()))
                    assert apart <= flint.arb(errors[h, i, j].item()), (seed, h, i, j)
                    rounded += j == largest[h, i] and bool(apart > 0)
    assert rounded > 100  # so that zero is no bound for the largest entries
