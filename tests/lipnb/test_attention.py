"""The maps: against PyTorch's own attention, the definitions, and every bad input with its sentence."""

import dataclasses
import inspect

import pytest
import torch
from cases import normal, random_case, relative

from lipnb import Attention
from lipnb.attention.parameters import AXES


def test_transforms_and_casting():
    case = random_case(5)
    one_by_one = torch.stack([case.attention(x) for x in case.x])
    assert relative(torch.func.vmap(case.attention)(case.x), one_by_one) < 1e-13
    single = case.attention.to(torch.float32)  # the type at its place, as of a tensor
    assert relative(single(case.x.float()).double(), case.attention(case.x)) < 1e-4
    assert repr(case.attention).startswith("Attention(")


def test_bad_parameters_are_said_in_one_sentence():
    for change, sentence in [
        ({"key": normal(2, 4, 4)}, "key must have shape"),
        ({"value": normal(3, 3, 4)}, "value must have shape"),
        ({"query": normal(3, 4)}, "query must have shape"),
        ({"output": normal(2, 5, 4)}, "output must have shape"),
        ({"query_bias": normal(2, 4)}, "query_bias must have shape"),
        ({"output_bias": normal(5)}, "output_bias must have shape"),
        ({"query": normal(2, 3, 4) * torch.nan}, "query holds NaN"),
        ({"value": normal(2, 3, 4).float()}, "must share one dtype"),
        ({"query": torch.ones(2, 3, 4, dtype=torch.int64)}, "floating point"),
        ({"score": "cosine"}, "score must be one of"),
        ({"query": normal(0, 3, 4), "key": normal(0, 3, 4), "value": normal(0, 3, 4)}, "at least one head"),
    ]:
        good = {"query": normal(2, 3, 4), "key": normal(2, 3, 4, seed=1), "value": normal(2, 3, 4, seed=2)}
        with pytest.raises(ValueError, match=sentence):
            Attention(**{**good, **change})


def test_bad_inputs_are_said_in_one_sentence():
    for x, weights, sentence in [
        (normal(5, 3), None, "x must have shape .* d = 4"),
        (normal(4), None, "x must have shape"),
        (normal(0, 4), None, "holds no token"),
        (normal(5, 4) * torch.inf, None, "x holds NaN or infinite"),
        (normal(5, 4).float(), None, "x is torch.float32"),
        ([[1.0, 2.0, 3.0, 4.0]], None, "x must be a torch tensor"),
        (normal(5, 4), torch.ones(4).double(), "one entry per token"),
        (normal(5, 4), torch.ones(2, 5).double(), r"weights must have shape \(5,\), got \(2, 5\)"),
        (normal(3, 5, 4), torch.ones(2, 5).double(), r"weights must have shape \(5,\) or \(3, 5\), got \(2, 5\)"),
        (normal(5, 4), torch.zeros(5).double(), "weights must be positive"),
        (normal(5, 4), torch.ones(5), "weights are torch.float32"),
    ]:
        attention = Attention(normal(2, 3, 4), normal(2, 3, 4, seed=1), normal(2, 3, 4, seed=2))
        with pytest.raises(ValueError, match=sentence):
            attention(x, weights)


def test_what_a_map_keeps_is_what_it_was_made_of():
    """`replace`, pickles and copies go through these: a new argument that is not kept would be lost there."""
    eye = torch.eye(2)[None]
    f = Attention(eye, eye, eye)
    arguments = set(inspect.signature(Attention).parameters)
    assert {one.name for one in dataclasses.fields(f) if one.init} == arguments and {*AXES} < arguments
    assert all(getattr(f.replace(), name) is not getattr(f, name) for name in f._tensors())
