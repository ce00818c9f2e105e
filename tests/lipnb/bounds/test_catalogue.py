"""The list of bounds: its names and sources are there, and what it says applies holds."""

import math
from pathlib import Path

import torch
from cases import normal

from lipnb import Attention, bounds, local_lipschitz
from lipnb.bounds import catalogue
from lipnb.bounds.catalogue import CATALOGUE, Case


def test_the_catalogue_names_functions_and_sources_that_are_there():
    assert {bound.name for bound in CATALOGUE} - {*bounds.__all__, "certify"} <= vars(catalogue).keys()
    assert len({bound.key for bound in CATALOGUE}) == len(CATALOGUE)
    known = (Path(__file__).parents[3] / "book" / "references.bib").read_text(encoding="utf-8")
    assert all(bound.source == "ours" or f"{{{bound.source}," in known for bound in CATALOGUE)
    masks = [(bound.column, masked) for bound in CATALOGUE if bound.column for masked in bound.masks]
    assert len(set(masks)) == len(masks)  # one bound fills a column
    assert {bound.instead.split()[0] for bound in CATALOGUE} <= {bound.key for bound in CATALOGUE}


MORE = {
    "plain": {},
    "window": {"masked": True, "window": 2},
    "window on both sides": {"masked": False, "window": 1},
    "rotary": {"frequencies": torch.ones(1).double()},
    "cap": {"cap": 1.0},
    "sinks": {"sinks": torch.zeros(2).double()},
}


def test_what_the_catalogue_says_applies_holds():
    """As stated, and for a whole layer where it has a column; for a map with query biases and for one without."""
    for masked in [False, True]:
        for more in MORE:
            for heads in [1, 2]:
                stated, columns = set(), set()
                for seed in range(6):
                    Q, K, V, x = (
                        normal(*shape, seed=40 * seed + i) for i, shape in enumerate([(heads, 2, 3)] * 3 + [(5, 3)])
                    )
                    added = MORE[more] | ({"sinks": MORE[more]["sinks"][:heads]} if more == "sinks" else {})
                    f = Attention(Q, K, V, normal(heads, 3, 2, seed=seed), masked=masked).replace(**added)
                    if seed % 2:
                        biases = {"key_bias": 3 * normal(heads, 2, seed=seed + 2)}
                        f = f.replace(query_bias=3 * normal(heads, 2, seed=seed + 1), **biases)
                    x = (0.03, 0.3, 1.0)[seed % 3] * x
                    if seed % 4 == 3:  # a large bias that makes no difference between tokens
                        f, c = f.replace(query_bias=100 * f.query_bias), f.query_bias[0] @ K[0]
                        x = x - torch.outer(x @ c, c) / (c @ c)
                    case, norm = Case(f, x), local_lipschitz(f, x, method="dense").value.item()
                    for bound in CATALOGUE:
                        if bound.evaluate is None or bound.norm == "largest token" or bound.scope == "limit":
                            continue
                        if bound.applies(f) is None:
                            stated.add(bound.key)
                            assert norm <= float(bound.evaluate(case)) * (1 + 1e-9), (seed, bound.key)
                        if bound.column and bound.applies(f, layer=True) is None:
                            columns.add(bound.column)
                            assert math.log(norm) <= bound.log(case) + 1e-9, (seed, bound.key)
                assert "three_terms" in stated and (columns == {"rotary_terms", "rotary_upper"}) == (more == "rotary")
                assert len(columns) == {"plain": 7, "window": 5, "rotary": 2}.get(more, 0)
                assert ("general" in stated) == (heads == 1 and more in ("plain", "window"))


def test_no_bound_is_nan_beyond_the_range_of_floats():
    eye = torch.eye(2).double()
    f, turned = Attention.from_matrices(eye, eye), Attention(*[eye[None]] * 3, frequencies=torch.ones(1).double())
    constant = Attention.from_matrices(eye, 0 * eye)
    for value in (
        bounds.yudin_upper(f, eye * 1e160),
        bounds.column_upper(eye, eye, eye * 1e160),
        bounds.spread_upper(0 * eye, eye, eye * 1e200),
        bounds.rotary_terms(turned, eye * 1e200),
        bounds.rotary_upper(Attention(*[eye[None]] * 2, 0 * eye[None], frequencies=torch.ones(1).double()), 3, 1e200),
        bounds.max_token_upper(constant, 1e200),
        bounds.l2_upper(1e200 * eye[None], 0 * eye[None], None, 4),
        bounds.l2_upper_sharp(1e200 * eye[None], 0 * eye[None], None, 4),
        bounds.multi_head_upper(torch.zeros(1, 2, 2), [math.inf]),
    ):
        assert float(value) == math.inf
    tiny = 1e-82 * eye[None]  # whose fourth power is no float
    assert bounds.l2_upper(tiny, eye[None], None, 4) > 0 and bounds.l2_upper_sharp(tiny, tiny, None, 4) > 0
