"""Whatever is done to tensors, all that is computed with a map speaks of one map: no answer is of an earlier one."""

import copy
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from cases import constant, normal, relative

from lipnb import Attention, AttentionJacobian, certify, local_lipschitz
from lipnb.jacobian import infinity_norm
from lipnb.jacobian.cached import CachedGram
from lipnb.jacobian.streamed import StreamedGram
from lipnb.jacobian.weights import ScaledWeights

NAMES = ("query", "key", "value", "output", "query_bias", "value_bias", "output_bias")


def parts(seed=0, n=20, h=2, k=3, d=4):
    """Parameters of a map, and tokens, too many for the dense route."""
    shapes = (h, k, d), (h, k, d), (h, k, d), (h, 5, k), (h, k), (h, k), (5,)
    drawn = (normal(*shape, seed=10 * seed + i) for i, shape in enumerate(shapes))
    return dict(zip(NAMES, drawn, strict=True)), normal(n, d, seed=999 + seed)


def answers(f, x):
    """What every route says of a map at tokens x, as one vector."""
    u, flat = normal(*x.shape, seed=5), AttentionJacobian(f, x)
    streamed = StreamedGram(f, x[None], rows=7)
    bracket = certify(f, x, columns=4)
    said = [f(x), f.probabilities(x), flat.gram(u), flat.jvp(u), flat.dense(), flat.infinity_norm()]
    said += [streamed.gram(u[None].flatten(1)) * streamed.unit**2, bracket.lower, bracket.upper]
    said += [local_lipschitz(f, x).value, local_lipschitz(f, x, memory=1).value, local_lipschitz(f, x[:3]).value]
    said += [local_lipschitz(lambda x: f(x), x).value, *(getattr(f, name) for name in NAMES)]
    return torch.cat([part.flatten() for part in said])


CHANGES = {
    "in place": lambda tensor: tensor.mul_(2),
    "one entry": lambda tensor: tensor.view(-1)[1:2].add_(1),
    "heads in another order": lambda tensor: tensor.copy_(tensor.flip(0)),
    "through .data": lambda tensor: tensor.data.mul_(2),
    "a numpy array that shares the memory": lambda tensor: tensor.numpy().fill(1.0),
    "storages exchanged": lambda tensor: setattr(tensor, "data", 2 * tensor),
    "in inference mode": torch.inference_mode()(lambda tensor: tensor.data.neg_()),
}


def test_no_change_of_the_callers_tensors_reaches_the_map():
    """After the weights were prepared by a first solve."""
    for change in CHANGES:
        given, x = parts()
        f = Attention(**given)
        expected = answers(f, x)
        for tensor in given.values():
            CHANGES[change](tensor)
        assert torch.equal(answers(f, x), expected), change


def test_what_is_written_into_the_tensors_of_a_map_changes_all_that_it_answers():
    """As a map made anew of these numbers does; all tensors, or one entry of one."""
    for change, names in [
        *((change, NAMES) for change in CHANGES),
        ("one entry", NAMES[:1]),
        ("one entry", NAMES[3:4]),
    ]:
        given, x = parts()
        f = Attention(**given)
        before = answers(f, x)
        for name in names:
            CHANGES[change](getattr(f, name))
        new = {name: torch.from_numpy(getattr(f, name).numpy().copy()) for name in NAMES}
        found = answers(f, x)
        assert torch.equal(found, answers(Attention(**new), x)), (change, names)
        assert not torch.equal(found, before), (change, names)


def test_a_jacobian_stays_that_of_the_map_at_the_time():
    for change in CHANGES:
        given, x = parts()
        f, u = Attention(**given), normal(20, 4, seed=3)
        J, other = AttentionJacobian(f, x), AttentionJacobian(f, x)
        expected = [other.jvp(u), other.gram(u), other.dense(), other.infinity_norm()]
        for name in NAMES:
            CHANGES[change](getattr(f, name))
        assert all(map(torch.equal, [J.jvp(u), J.gram(u), J.dense(), J.infinity_norm()], expected)), change


def test_an_attribute_cannot_be_set_and_the_sentence_says_what_to_do():
    given, _ = parts()
    f = Attention(**given)
    for name in (*NAMES, "key_bias", "scale", "masked", "score", "window", "heads", "anything"):
        with pytest.raises(AttributeError, match=rf"does not change once made: make a new one.*replace\({name}=...\)"):
            setattr(f, name, getattr(f, name, None))
        with pytest.raises(AttributeError, match="does not change once made"):
            delattr(f, name)


def test_a_map_with_other_values_is_solved_with_these():
    """Twice the values twice, with solves between: four times the constant, and that of autograd."""
    for seed in range(8):
        given, x = parts(seed)
        f = Attention(**given)
        first = local_lipschitz(f, x, rtol=1e-8).value
        g = f.replace(value=f.value * 2)
        local_lipschitz(g, x)
        g = g.replace(value=g.value * 2)
        found = local_lipschitz(g, x, rtol=1e-8).value
        assert relative(found, 4 * first) < 1e-7
        assert relative(found, constant(g, x)) < 1e-7


def test_replace_keeps_the_rest():
    given, x = parts()
    f = Attention(**given, scale=0.3, masked=True, window=3)
    again, other = f.replace(), f.replace(scale=0.7, output=None, output_bias=None)
    assert again is not f and repr(again) == repr(f) and torch.equal(again(x), f(x))
    assert (other.scale, other.masked, other.window, other.score, other.output) == (0.7, True, 3, "dot", None)
    assert other.output_width == 6 and f.scale == 0.3
    assert torch.equal(f.replace(masked=False, window=None)(x), Attention(**given, scale=0.3)(x))
    with pytest.raises(TypeError, match="values"):
        f.replace(values=f.value)


def test_gradients_reach_the_tensors_that_a_map_was_made_of():
    given, x = parts(n=5)
    leaves = {name: tensor.requires_grad_() for name, tensor in given.items()}
    Attention(**leaves)(x).square().sum().backward()
    found = {name: leaf.grad for name, leaf in leaves.items()}
    for name, leaf in leaves.items():
        others = {key: tensor.detach() for key, tensor in given.items()}
        expected = torch.func.grad(
            lambda t, name=name, others=others: Attention(**{**others, name: t})(x).square().sum()
        )(leaf.detach())
        assert relative(found[name], expected) < 1e-12 and expected.abs().max() > 0
    f = Attention(**leaves)
    assert local_lipschitz(f, x.repeat(4, 1)).converged and not any(
        getattr(ScaledWeights.of(f, f.dtype), name).requires_grad for name in ("projection", "output")
    )
    leaves["value"].grad = None
    infinity_norm(f, x).sum().backward()  # by the map without idle biases, which the solve made
    assert leaves["value"].grad.abs().max() > 0
    f(x).sum().backward()  # after a solve too


def test_prepared_weights_are_made_once_for_each_type_and_go_with_the_map(monkeypatch):
    given, x = parts()
    f, made = Attention(**given), []
    inner = ScaledWeights.__init__
    monkeypatch.setattr(ScaledWeights, "__init__", lambda self, *rest: made.append(rest[1]) or inner(self, *rest))
    for _ in range(3):
        local_lipschitz(f, x)
    assert made == [torch.float64]
    assert ScaledWeights.of(f, torch.float32).projection.dtype == torch.float32
    assert ScaledWeights.of(f, torch.float64).projection.dtype == torch.float64
    assert made == [torch.float64, torch.float32]


def test_many_threads_solve_with_one_map():
    given, x = parts(n=40)
    xs = [(1 + i / 10) * x for i in range(8)]
    expected = [local_lipschitz(Attention(**given), one).value for one in xs]
    f = Attention(**given)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda one: local_lipschitz(f, one).value, xs))
    assert torch.equal(torch.stack(found), torch.stack(expected))


def test_many_threads_multiply_with_one_jacobian(monkeypatch):
    """Its products share buffers; here each product lets the others run between its two halves."""
    given, x = parts()
    J, us = AttentionJacobian(Attention(**given), x), [normal(20, 4, seed=seed) for seed in range(6)]
    products = [lambda u: J.jvp(u), lambda u: J.gram(u), lambda u: J.vjp(J.jvp(u))]
    expected = [torch.cat([product(u) for product in products], -1) for u in us]
    inner = CachedGram.join
    monkeypatch.setattr(CachedGram, "join", lambda self, heads: time.sleep(0.002) or inner(self, heads))
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda u: torch.cat([product(u) for product in products], -1), us))
    assert all(map(torch.equal, found, expected))
    for again in (pickle.loads(pickle.dumps(J)), copy.copy(J), copy.deepcopy(J)):
        assert torch.equal(again.gram(x), J.gram(x)) and again._products is not J._products


def test_a_map_is_pickled_copied_and_moved():
    given, x = parts()
    f = Attention(**given, masked=True, window=4)
    local_lipschitz(f, x)
    stored = pickle.dumps(f)
    assert len(stored) < 1.5 * sum(t.numel() * 8 for t in given.values()) + 4000  # without what was prepared
    for again in (pickle.loads(stored), copy.copy(f), copy.deepcopy(f), f.to(dtype=torch.float64), f.to("cpu")):
        assert torch.equal(answers(again, x), answers(f, x)) and repr(again) == repr(f)
        with pytest.raises(AttributeError, match="does not change"):
            again.value = f.value
    half = f.to(dtype=torch.float32)
    assert half.dtype == torch.float32 and (half.window, half.masked) == (4, True)
    assert relative(local_lipschitz(half, x.float()).value.double(), local_lipschitz(f, x).value) < 1e-3
    trained = Attention(**{name: torch.nn.Parameter(tensor) for name, tensor in given.items()})
    assert torch.equal(copy.deepcopy({"map": trained})["map"](x), trained(x))


def test_inference_mode_before_and_after():
    given, x = parts()
    expected = local_lipschitz(Attention(**given), x).value
    with torch.inference_mode():
        f = Attention(**given)
        assert torch.equal(local_lipschitz(f, x).value, expected)
    assert torch.equal(local_lipschitz(f, x).value, expected)
    f = Attention(**given)
    with torch.inference_mode():
        local_lipschitz(f, x)
    assert torch.equal(local_lipschitz(f, x).value, expected)
    assert torch.isfinite(torch.func.jacrev(f)(x)).all()


def test_a_jacobian_stays_at_its_input():
    from lipnb.jacobian import AutodiffJacobian

    for closed in [True, False]:
        given, x = parts(n=6)
        f, u = Attention(**given), normal(6, 4, seed=3)
        jacobian = AttentionJacobian(f, x) if closed else AutodiffJacobian(f, x)
        expected = jacobian.jvp(u), jacobian.infinity_norm() if closed else jacobian.jvp(2 * u)
        x.mul_(3)
        got = jacobian.jvp(u), jacobian.infinity_norm() if closed else jacobian.jvp(2 * u)
        assert all(map(torch.equal, got, expected))
