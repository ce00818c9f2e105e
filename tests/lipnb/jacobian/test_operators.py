"""The route is chosen by the memory: batches split by it give the values of the whole."""

import torch
from cases import random_case

from lipnb import local_lipschitz
from lipnb.jacobian.operators import cached_bytes


def test_batches_split_by_memory_give_the_values_of_the_whole():
    for at_once in [1, 2, 3, 4, 7]:
        for seed in [2, 5]:
            case = random_case(seed, n=13)
            x = torch.stack([case.x * factor for factor in (0.3, 1.0, 2.0, 4.0)]).flatten(0, 1)[:7]
            weights = None
            if case.weights is not None:
                weights = torch.cat([case.weights, case.weights.flip(1), case.weights**2, 1 + case.weights])[:7]
            whole = local_lipschitz(case.attention, x, weights=weights)
            part = local_lipschitz(
                case.attention, x, weights=weights, memory=at_once * cached_bytes(case.attention, 13)
            )
            assert part.route == whole.route == "cached" and part.value.shape == (7,)
            assert torch.equal(part.steps, whole.steps)
            for name in ("value", "upper"):
                assert ((getattr(part, name) / getattr(whole, name) - 1).abs() < 1e-10).all()
