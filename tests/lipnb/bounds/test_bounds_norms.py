"""What knows plain heads only refuses all others by name."""

import itertools

import pytest
import torch

from lipnb import Attention, bounds
from lipnb.jacobian.separable import SeparableJacobian
from lipnb.measures import splitting, transport
from lipnb.worst_case.forks import bulk_directions, slopes

MORE = {
    "shared keys": {"query": torch.ones(2, 2, 3).double()},
    "rotary positions": {"frequencies": torch.ones(1)},
    "normalised queries or keys": {"key_norm": torch.ones(1, 2).double()},
    "capped logits": {"cap": 1.0},
    "relative positions": {"relative": torch.ones(1, 3).double()},
    "sinks": {"sinks": torch.ones(1).double()},
}


PLAIN_ONLY = {
    "slopes": lambda f, x: slopes(f, x),
    "bulk_directions": lambda f, x: bulk_directions(f),
    "mean-field map": lambda f, x: transport.mean_field_map(f, x, torch.ones(4).double(), x),
    "the mean-field map": splitting.query_blocks,
    "a separable kernel": SeparableJacobian,
    "head_norms": lambda f, x: bounds.head_norms(f),
    "nearby_upper": lambda f, x: bounds.nearby_upper(f, x, torch.ones(1).double()),
    "max_token_terms": bounds.heads.max_token_terms,
    "yudin_upper": bounds.yudin_upper,
    "yudin_upper_sharp": bounds.yudin.yudin_upper_sharp,
    "chosen_tokens": bounds.chosen_tokens,
    "max_token_upper": lambda f, x: bounds.max_token_upper(f, 1.0),
}


FOLDS = ("head_norms", "nearby_upper", "max_token_terms", "max_token_upper", "yudin_upper", "yudin_upper_sharp")


KNOWN = {(name, "shared keys") for name in (*FOLDS, "chosen_tokens")}


KNOWN |= {(name, "relative positions") for name in ("max_token_terms", "max_token_upper", "chosen_tokens")}


KNOWN |= {("chosen_tokens", "rotary positions")}


def test_what_knows_plain_heads_only_says_so():
    """No bound of the theorems for a map that they do not speak of."""
    one, x = torch.ones(1, 2, 3).double(), torch.eye(4, 3).double()
    for name, more in {*itertools.product(PLAIN_ONLY, MORE)} - KNOWN:
        f = Attention(**{"query": one, "key": one, "value": one, **MORE[more]})
        assert f.more == (more,)
        with pytest.raises(ValueError, match=f"{name} knows plain heads.* only, not {more}"):
            PLAIN_ONLY[name](f, x)
