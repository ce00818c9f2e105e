"""The reference cases: right by independent implementations of the Jacobian, and fatal to wrong ones."""

import itertools
import math

import torch

from lipnb import certify, local_lipschitz, reference, reference_cases
from lipnb.worst_case import climb

CASES = reference_cases()


BY_NAME = {case.name: case for case in CASES}


MOVING = [case for case in CASES if case.kind == "ball" and ("one-query" in case.name or case.family == "L2")]


def eager(f, x, weights=None, wrong=""):
    """Outputs (n, m) of tokens (n, d), step by step, with nothing of the package; `wrong` plants a fault."""

    def heads(name):
        W, bias = getattr(f, name), None if wrong == f"no {name} bias" else getattr(f, f"{name}_bias")
        W = W.mT if wrong == f"{name} transposed" and W.shape[-1] == W.shape[-2] else W
        flat = x @ W.flatten(0, 1).T + (0 if bias is None else bias.flatten())
        return (
            flat.view(len(W), len(x), -1) if wrong == "heads by rows" else flat.view(len(x), len(W), -1).movedim(1, 0)
        )

    query, key, value = heads("query"), heads("key"), heads("value")
    query, key = (key, query) if wrong == "keys for queries" else (query, key)
    logits = query @ key.mT if f.score == "dot" else -(query[:, :, None] - key[:, None]).square().sum(-1)
    logits = logits * (1 if wrong == "no scale" else f.scale) + (0 if weights is None else weights.log())
    if f.masked and wrong != "no mask":
        places = torch.arange(len(x))
        back = places[:, None] - places
        logits = logits.masked_fill((back < 0) | (back >= (f.window or len(x))), -math.inf)
    P = logits.softmax(-1)
    P = P.detach() if wrong == "probabilities constant" else P
    parts = P @ value
    return torch.cat([*parts], 1) if f.output is None else torch.einsum("hnv,hmv->nm", parts, f.output)


def by_autograd(case, dtype=torch.float64, wrong=""):
    """The constant of a case from the dense Jacobian of `eager`."""
    f, x = case.attention.to(dtype=dtype), case.x.to(dtype)
    weights = None if case.weights is None or wrong == "no weights" else case.weights.to(dtype)
    J = torch.autograd.functional.jacobian(lambda tokens: eager(f, tokens, weights, wrong), x)
    if weights is not None:
        J = J * weights.sqrt()[:, None, None, None] / weights.sqrt()[:, None]
    J = J.flatten(2).flatten(0, 1)
    if wrong == "no transpose":
        return outputs_fed_back(J)
    return torch.linalg.matrix_norm(J, 2).item()


def outputs_fed_back(J, steps=200):
    """Power iteration that goes on from J u, without the transpose; nan where outputs are no inputs."""
    u, size = torch.randn(J.shape[1], generator=torch.Generator().manual_seed(0), dtype=J.dtype), math.nan
    for _ in range(steps if len(J) == J.shape[1] else 0):
        u = J @ (u / u.norm())
        size = u.norm().item()
    return size


def error(found, case, precision="float64"):
    """Relative, in units of the tolerance."""
    return abs(found / case.value - 1) / case.tolerance[precision]


def caught(wrong):
    """Names of the cases that a wrong implementation fails."""
    return {case.name for case in CASES if not error(by_autograd(case, wrong=wrong), case) <= 1}


def test_the_suite_is_large_and_its_names_are_its_own():
    assert len(CASES) == len(BY_NAME) >= 30
    assert {case.kind for case in CASES} == {"local", "limit", "ball"}
    assert max(len(case.x) for case in CASES) <= 80 and max(case.x.numel() for case in CASES) <= 132
    assert all(case.proof and case.source and case.radius is None or case.kind == "ball" for case in CASES)


def test_ours_is_right():
    for case, method in itertools.product(CASES, ("dense", "lanczos")):
        for precision, dtype in (("float64", torch.float64), ("float32", torch.float32)):
            f, x = case.attention.to(dtype=dtype), case.x.to(dtype)
            weights = None if case.weights is None else case.weights.to(dtype)
            found = local_lipschitz(f, x, weights=weights, method=method, rtol=case.tolerance[precision] / 2)
            assert found.converged and error(found.value.item(), case, precision) <= 1, (case.name, method, precision)


def test_autograd_on_plain_attention_is_right():
    for case in CASES:
        assert error(by_autograd(case), case) <= 1, case.name
        assert error(by_autograd(case, torch.float32), case, "float32") <= 1, case.name


def test_brackets_hold_the_value():
    for case in CASES:
        if case.weights is None and case.attention.score == "dot":
            found = certify(case.attention, case.x)
            assert found.lower.item() <= case.value * (1 + 1e-15), case.name
            assert case.value <= found.upper.item() * (1 + 1e-15), case.name


# the faults that must be caught, and cases without which they would not be
FAULTS = {
    "no mask": {"averages-of-2", "pair-masked", "hard-rising-masked", "window-2", "two-heads-masked"},
    "heads by rows": {"heads-apart", "heads-apart-outputs", "hard-heads-added", "two-heads-weights"},
    "keys for queries": {"opposite-in-the-plane", "queries-cancelled", "one-query"},
    "no scale": {"opposite-scale"},
    "no query bias": {"one-query", "queries-cancelled", "blind-pair-one-query", "l2-pair-biases"},
    "no key bias": {"l2-pair-biases"},
    "query transposed": {"opposite-in-the-plane", "opposite-square-keys"},
    "key transposed": {"opposite-square-keys"},
    "no weights": {"averages-of-2-weights", "pair-weights", "two-heads-weights"},
    "probabilities constant": {"opposite", "pair", "square", "fork", "l2-pair"},
    "no transpose": {"uniform", "averages-of-2", "hard-leader", "fork"},
}


def test_wrong_implementations_fail():
    for wrong in FAULTS:
        assert caught(wrong) >= FAULTS[wrong]


def test_no_input_of_the_ball_exceeds_the_largest_constant():
    for case in MOVING:
        generator = torch.Generator().manual_seed(0)
        radius = case.radius or 3.0
        x = torch.randn(4000, *case.x.shape, generator=generator, dtype=torch.float64)
        length = radius * torch.rand(4000, 1, 1, generator=generator, dtype=torch.float64)
        tried = local_lipschitz(case.attention, x / x.norm(dim=-1, keepdim=True) * length, method="dense").value
        climbed = climb(case.attention, x[:8], radius, steps=100)[1]
        assert tried.max() <= case.value * (1 + 1e-12) and climbed.max() <= case.value * (1 + 1e-12)
        assert climbed.max() >= case.value * (1 - 1e-4)


def test_inputs_are_exact_in_float32():
    for case in CASES:
        rounded = not torch.equal(case.x.float().double(), case.x)
        assert rounded == case.name.endswith("-everywhere")
        tensors = (getattr(case.attention, name) for name in reference.HEADS)
        assert all(one is None or torch.equal(one.float().double(), one) for one in tensors)
