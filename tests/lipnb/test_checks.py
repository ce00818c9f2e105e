"""What a stranger gives by mistake is answered by one sentence that names the mend, at every door of the same kind."""

import math
import pickle

import numpy as np
import pytest
import torch

from lipnb import (
    Attention,
    AttentionJacobian,
    bounds,
    certify,
    differentiable_lipschitz,
    local_lipschitz,
    singular_pair,
)
from lipnb.jacobian import AutodiffJacobian, block_norms, infinity_norm
from lipnb.measures import transport
from lipnb.worst_case import climb, constructions, on_ball

EYE = torch.eye(2).double()


F, X = Attention.from_matrices(EYE, EYE), torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.5]]).double()


HEADS = EYE.expand(2, 2, 2)


BIASED = Attention(HEADS, HEADS, HEADS, query_bias=EYE)


TURNED = Attention(HEADS, HEADS, HEADS, frequencies=torch.ones(1))


NORMS = bounds.head_norms(F)


ATTENTION_ONLY = {
    "AttentionJacobian": lambda f: AttentionJacobian(f, X),
    "ball_upper": lambda f: bounds.ball_upper(f, 3, 1.0),
    "certify": lambda f: certify(f, X),
    "climb": lambda f: climb(f, X, 1.0),
    "chosen_tokens": lambda f: bounds.large_radius_limit(f, X),
    "head_norms": bounds.head_norms,
    "heads_at_input": lambda f: bounds.heads.heads_at_input(f, NORMS, X),
    "infinity_norm": lambda f: infinity_norm(f, X),
    "max_token_terms": lambda f: bounds.heads.max_token_terms(f, X),
    "max_token_upper": lambda f: bounds.max_token_upper(f, 1.0),
    "nearby_upper": lambda f: bounds.nearby_upper(f, X, [0.1]),
    "on_ball": lambda f: on_ball(f, 3, 1.0),
    "rotary_terms": lambda f: bounds.rotary_terms(f, X),
    "rotary_upper": lambda f: bounds.rotary_upper(f, 3, 1.0),
    "the mean-field map": lambda f: transport.mean_field_map(f, X, X.new_ones(3), X),
    "without_query_bias": lambda f: bounds.without_query_bias(f, X, 1.0),
    "yudin_upper": lambda f: bounds.yudin_upper(f, X),
    "yudin_upper_sharp": lambda f: bounds.yudin.yudin_upper_sharp(f, X),
}


def test_what_is_no_attention():
    for name in ATTENTION_ONLY:
        for f, kind in ((None, "NoneType"), (3, "int"), ("a", "str"), (lambda x: x, "function")):
            with pytest.raises(ValueError, match=f"^{name} needs a lipnb.Attention, .*, got {kind}: .*local_lipschitz"):
                ATTENTION_ONLY[name](f)


def test_what_is_no_map_at_all():
    for measure in [local_lipschitz, singular_pair, block_norms, AutodiffJacobian]:
        for f in (None, 3, "a"):
            with pytest.raises(ValueError, match="^f must be an Attention or a callable, got"):
                measure(f, X)


class ThreeDimensions(torch.nn.Module):
    """Attention that unpacks the shape of a batch."""

    def forward(self, x):
        b, n, d = x.shape
        return torch.nn.functional.scaled_dot_product_attention(x, x, x).view(b, n, d)


def two_dimensions(x):
    n, d = x.shape
    return (x @ x.mT).softmax(-1).view(n, n) @ x.view(n, d)


def test_whatever_a_map_raises_at_first_is_one_sentence_with_its_cause():
    batch = torch.stack([X, X + 1])
    linear = torch.nn.utils.skip_init(torch.nn.Linear, 2, 2)
    cases = [
        (ThreeDimensions(), X, ValueError, r"does not take tokens of shape \(3, 2\) .*\(1, 3, 2\): give x\[None\]"),
        (two_dimensions, batch, ValueError, r"does not take tokens of shape \(2, 3, 2\) .*one sequence at a time"),
        (
            lambda x: {}["key"],
            X,
            KeyError,
            r"does not take tokens of shape \(3, 2\) .*KeyError: 'key'.*f\(x\) has to run",
        ),
        (lambda x: x.no_such_name, X, AttributeError, "does not take tokens .*no_such_name"),
        (lambda x: x[..., 5] + x, X, IndexError, "does not take tokens .*IndexError"),
        (linear, X, RuntimeError, "does not take tokens .*float64 .*give tokens of its width and type"),
        (torch.nn.functional.linear, X, TypeError, "takes more than the tokens"),
    ]
    for measure in [local_lipschitz, singular_pair, block_norms, AutodiffJacobian, differentiable_lipschitz]:
        for f, x, kind, said in cases:
            with pytest.raises(ValueError, match=said) as caught:
                measure(f, x)
            assert isinstance(caught.value.__cause__, kind)
        with pytest.raises(ValueError, match="^x must have shape") as caught:  # a sentence of ours stays as it is
            measure(lambda x: F(x[..., :1]), X)
    assert local_lipschitz(ThreeDimensions(), X[None]).converged.all()  # as it says


def test_flex_attention_on_a_processor():
    from torch.nn.attention.flex_attention import flex_attention

    def f(x):
        return flex_attention(x[:, None], x[:, None], x[:, None])[:, 0]

    x = torch.linspace(-1, 1, 256).view(1, 16, 16).sin()
    for measure in (local_lipschitz, singular_pair, block_norms):
        with pytest.raises(
            ValueError, match="flex_attention cannot be differentiated here .*scaled_dot_product_attent"
        ):
            measure(f, x)


def test_results_of_other_functions_are_asked_for_by_name():
    with pytest.raises(ValueError, match=r"norms must be those of head_norms\(attention\), got Attention"):
        bounds.heads_on_ball(F, 3, 1.0, False)
    with pytest.raises(ValueError, match=r"three_terms\(RoundedLinearization\(attention, x\)\), got Attention"):
        bounds.three_terms(F)


def test_what_no_jacobian_multiplies():
    for product in ["jvp", "vjp", "gram", "jvp by autodiff", "vjp by autodiff", "vjps by autodiff"]:
        product, _, autodiff = product.partition(" by ")
        J = (AutodiffJacobian if autodiff else AttentionJacobian)(F, X)
        wrong = (X.float(), X.long(), X.to(torch.complex128), X[:2], X[None][:0], X.to_sparse(), X.to("meta"))
        for u in (X.tolist(), None, "a", X.numpy(), *wrong):
            with pytest.raises(ValueError, match=r"^[uw] must have shape \(3, 2\).* in torch.float64 on cpu, .* got "):
                getattr(J, product)(u)


NO_NUMBERS = {
    "tensor of real numbers, got NoneType: use torch.as_tensor": None,
    "tensor of real numbers, got str": "a",
    "tensor of real numbers, got object": object(),
    "real, got complex numbers: use .real": EYE * (1 + 1j),
    r"dense, got a sparse or nested tensor: use .to_dense\(\)": EYE.to_sparse(),
    "on a device, got a meta tensor": EYE.to("meta"),
}


MATRIX_DOORS = {
    "A": [lambda A: Attention.from_matrices(A, EYE), lambda A: bounds.general_upper(A, EYE, 3, 1.0)]
    + [bounds.growth_rate, lambda A: constructions.tight_input(A, 3, 1.0)],
    "V": [lambda V: Attention.from_matrices(EYE, V), lambda V: bounds.mean_field_upper(EYE, V, 1.0)]
    + [lambda V: constructions.fork_input(EYE, V, 3, 1.0)],
    "query": [lambda W: Attention(W, HEADS, HEADS), lambda W: bounds.l2_upper(W, HEADS, None, 3)],
    "output": [lambda W: bounds.multi_head_upper(W, [1.0])],
    "head_bounds": [lambda b: bounds.multi_head_upper(HEADS, b)],
    "c": [lambda c: bounds.biased_upper(EYE, EYE, 3, 1.0, c)],
    "x": [lambda x: bounds.spread_upper(EYE, EYE, x), lambda x: bounds.column_upper(EYE, EYE, x)],
    "p": [bounds.yudin.softmax_norm],
    "gain": [lambda g: bounds.layer_norm.norm_layer_upper(g, 0.1), lambda g: bounds.layer_norm_radius(g, None)],
    "radii": [lambda r: bounds.nearby_upper(F, X, r)],
}


def test_what_is_no_tensor_of_real_numbers():
    for name in MATRIX_DOORS:
        for door in MATRIX_DOORS[name]:
            for sentence, value in NO_NUMBERS.items():
                with pytest.raises(ValueError, match=f"^{name} must be (a )?{sentence}"):
                    door(value)
        assert bounds.general_upper([[1, 0], [0, 1]], np.eye(2), 3, 1.0) == bounds.general_upper(EYE, EYE, 3, 1.0)
        with pytest.raises(ValueError, match="complex numbers"):
            bounds.growth_rate(np.eye(2) * 1j)


NUMBERS = {
    "scale": [lambda s: F.replace(scale=s if s is not None else "None")],
    "cap": [lambda c: F.replace(cap=c if c is not None else "None")],
    "norm_eps": [lambda e: F.replace(norm_eps=e)],
    "rtol": [lambda r: certify(F, X, rtol=r), lambda r: block_norms(F, X, rtol=r)]
    + [lambda r: singular_pair(F, X, rtol=r), lambda r: local_lipschitz(F, X, rtol=r)],
    "y": [bounds.phi_inverse],
    "share": [lambda s: constructions.two_diracs(EYE, 1.0, share=s)],
    "size": [lambda s: bounds.without_query_bias(BIASED, X, s)],
    "p": [
        lambda p: bounds.masked_mean_field_upper(EYE, EYE, 1.0, p=p),
        lambda p: bounds.l2_upper(HEADS, HEADS, None, 3, p),
    ],
    "eps": [lambda e: bounds.layer_norm.norm_layer_upper(torch.ones(2), e)],
    "n": [lambda n: bounds.rotary_upper(TURNED, n, 1.0), lambda n: bounds.l2_growth(n)],
    "R": [lambda R: bounds.rotary_upper(TURNED, 3, R), lambda R: bounds.max_token_upper(F, R)],
}


WHOLE = {
    "seed": [
        lambda s: certify(F, X, seed=s),
        lambda s: local_lipschitz(F, X, seed=s),
        lambda s: on_ball(F, 3, 1.0, seed=s),
    ]
    + [lambda s: singular_pair(F, X, seed=s), lambda s: block_norms(F, X, seed=s)],
    "columns": [lambda c: certify(F, X, columns=c if c is not None else "None")],
    "max_steps": [lambda m: singular_pair(F, X, max_steps=m)]
    + [lambda m: local_lipschitz(F, X, max_steps=m if m is not None else "None")],
    "angles": [lambda a: constructions.fork_input(EYE, EYE, 3, 1.0, angles=a)],
}


def test_what_is_no_number():
    for name in [*NUMBERS, *WHOLE]:
        kind, doors = ("number", NUMBERS[name]) if name in NUMBERS else ("whole number", WHOLE[name])
        for door in doors:
            for value in (True, "a", None, 1j, torch.ones(2), *([1.5, math.inf] if name in WHOLE else [])):
                with pytest.raises(TypeError, match=f"^{name} must be a {kind}, got "):
                    door(value)


def test_numbers_beyond_all_floats_are_infinite():
    for name in ("scale", "cap", "norm_eps"):
        with pytest.raises(ValueError, match=f"^{name} must be .*, got inf"):
            F.replace(**{name: 10**400})
    for call in (
        lambda: bounds.general_upper(EYE, EYE, 3, 10**400),
        lambda: bounds.general_upper(EYE, EYE, 10**400, 1),
    ):
        with pytest.raises(ValueError, match="^[Rn] must be .*, got inf"):
            call()
    with pytest.raises(ValueError, match="^scale must be .*, got -inf"):
        F.replace(scale=-(10**400))
    assert local_lipschitz(F, X, memory=10**400).converged


def test_the_item_of_a_batch_that_is_not_finite_is_named():
    x = X.repeat(4, 1, 1)
    x[2, 1, 1] = math.inf
    calls = (lambda x: local_lipschitz(F, x), lambda x: local_lipschitz(torch.sin, x), lambda x: certify(F, x))
    for door in (*calls, lambda x: AttentionJacobian(F, x), lambda x: bounds.spread_upper(EYE, EYE, x)):
        for batch, said in ((x, r" in x\[2\]"), (x.view(2, 2, 3, 2), r" in x\[1, 0\]"), (x[2], "")):
            with pytest.raises(ValueError, match=f"^x holds NaN or infinite values{said}: remove them"):
                door(batch)
    for f in (F, torch.sin):
        with pytest.raises(ValueError, match=r"^x holds NaN or infinite values in x\[1\]: remove them"):
            local_lipschitz(f, [X[:2], x[2], X])


def test_the_item_whose_product_is_not_finite_is_named():
    """In a batch that memory splits, in a list that is sorted by length, of one alone."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(5, 30, 2, generator=g, dtype=torch.float64)
    x[3] *= 1e200
    said = "a Jacobian product is NaN or infinite, of item 3: "
    for options in ({}, {"memory": 1}, {"method": "power"}, {"method": "dense"}):
        with pytest.raises(ValueError, match=said):
            local_lipschitz(F, x, **options)
    with pytest.raises(ValueError, match=said):
        local_lipschitz(F, [x[0], x[1, :25], x[2], x[3, :25]])
    with pytest.raises(ValueError, match="a Jacobian product is NaN or infinite: ") as caught:
        local_lipschitz(F, x[3])
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # as it comes from another process


def test_values_that_make_no_sense():
    for call, sentence in [
        (lambda: F.replace(scale=math.nan), "scale must be None or a finite number, got nan"),
        (lambda: F.replace(scale=math.inf), "scale must be None or a finite number, got inf"),
        *((lambda v=v: F.replace(masked=v), "masked must be True or False, got") for v in ("no", None, torch.ones(2))),
        *((lambda v=v: F.replace(joint_norm=v), "joint_norm must be True or False, got") for v in ("a", 1)),
        (lambda: Attention.from_matrices(EYE, EYE, masked="no"), "masked must be True or False, got 'no'"),
        (lambda: F.replace(output=EYE[None, :0]), "output needs at least one head, one row and one column"),
        (lambda: Attention(HEADS.to(torch.float8_e4m3fn), HEADS, HEADS), "query must be .* got torch.float8_e4m3fn"),
        (lambda: Attention.l2(HEADS.float(), HEADS), "all parameters must share one dtype"),
        (lambda: Attention.l2(HEADS, HEADS[:1]), r"value must have shape \(2, v, 2\).*, got \(1, 2, 2\)"),
        (lambda: F(X.to_sparse()), "x must be dense, got a sparse"),
        *((lambda f=f: local_lipschitz(f, X.to("meta")), "x must be on a device, got a meta") for f in (F, torch.sin)),
        *((lambda f=f: local_lipschitz(f, X.to_sparse()), "x must be dense, got a sparse") for f in (F, torch.sin)),
        *(
            (lambda f=f: local_lipschitz(f, torch.nested.nested_tensor([X, X[:2]])), "dense, .* nested")
            for f in (F, sum)
        ),
        (lambda: local_lipschitz(F, X + 0j), "x must be real, got complex numbers: use .real"),
        (lambda: local_lipschitz(F, [X, X.to_sparse()]), r"x\[1\] must be dense"),
        (lambda: local_lipschitz(lambda x: x.to_sparse(), X), "the output of the map must be dense"),
        (
            lambda: local_lipschitz(lambda x: x @ EYE.float(), X),
            r"shape \(3, 2\) in torch.float64 .*x.float\(\), or a module",
        ),
        (lambda: local_lipschitz(lambda x: x @ X, X), "tokens of its width and type"),
        (lambda: certify(F, X, columns=-1), "columns must be 0 or more, got -1"),
        (lambda: singular_pair(F, X, max_steps=0), "max_steps must be 1 or more, got 0"),
        (lambda: constructions.fork_input(EYE, EYE, 3, 1.0, angles=0), "angles must be 1 or more, got 0"),
        (lambda: constructions.fork_input(EYE, EYE, 3, 1e200), r"the bound at R = 1e\+200 is above the largest float"),
        (lambda: constructions.two_diracs(EYE, 1e200), "below the smallest float: take a smaller R"),
        (lambda: bounds.nearby_upper(F, X, []), "radii must be finite numbers, .* with r >= 1"),
        (lambda: bounds.without_query_bias(BIASED, X[:, :1], 1.0), "x must have shape"),
        (lambda: bounds.without_query_bias(F, None, 1.0), "x must be a torch tensor, got NoneType"),
        (lambda: bounds.without_query_bias(BIASED, X, math.inf), "size must be positive and finite, got inf"),
        (lambda: bounds.yudin.softmax_norm([0.5, 0.6]), "p must hold probabilities, .* with a sum of at most 1"),
        (lambda: bounds.rotary_terms(TURNED, X[None]), "x must hold one sequence"),
        (lambda: bounds.heads.heads_at_input(F, NORMS, X[None]), "x must hold one sequence"),
        (lambda: bounds.rotary_upper(TURNED, 3, -1.0), "R must be a finite number, 0 or more"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            call()


def test_what_means_the_same_is_taken():
    """One number in a tensor or of NumPy, a truth value of NumPy, probabilities beside a sink or of 16 bits."""
    f = F.replace(scale=torch.tensor(0.5), cap=np.float32(2.0), masked=np.True_)
    assert (f.scale, f.cap, f.masked) == (0.5, 2.0, True) and type(f.masked) is bool
    assert bounds.phi_inverse(torch.tensor(15.0)) == bounds.phi_inverse(15)
    long, rtol = X.repeat(20, 1), torch.tensor(1e-3)  # by Lanczos, not dense
    assert local_lipschitz(F, long, rtol=rtol, confidence=torch.tensor(0.99)).converged
    assert certify(F, long, rtol=rtol).lower > 0 and singular_pair(F, long, rtol=rtol).converged
    assert block_norms(F, X, rtol=rtol).shape == (3, 3)
    assert torch.equal(certify(F, X, seed=np.int64(1)).upper, certify(F, X, seed=1).upper)
    assert bounds.yudin.softmax_norm([0.25, 0.25]) > 0
    assert bounds.yudin.softmax_norm(torch.linspace(0, 5, 300).softmax(-1).bfloat16()) > 0
