"""The tables of worst inputs: what stands in a row, how tables come out, stored rows in order."""

import pytest
import torch

from lab import figures, results
from lab.experiments import worst_inputs
from lab.experiments.two_clusters import cluster_input, head_of
from lipnb import Attention, bounds, local_lipschitz


def layer(seed, *, masked=False, h=2):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    biases = {"query_bias": normal(h, 3), "key_bias": normal(h, 3), "value_bias": normal(h, 3)}
    return Attention(normal(h, 3, 8), normal(h, 3, 8), normal(h, 3, 8), normal(h, 5, 3), masked=masked, **biases)


def test_one_head_alone_is_that_head_of_the_layer():
    f = layer(0)
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    heads = [worst_inputs.one_head(f, h) for h in range(2)]
    shift = torch.einsum("hmv,hv->m", f.output, f.value_bias)
    together = sum(one(x) @ W.mT for one, W in zip(heads, f.output, strict=True)) + shift
    assert torch.allclose(together, f(x))


@pytest.mark.parametrize("masked", [False, True])
def test_a_row_is_in_order_and_below_its_bound(masked):
    f = layer(2, masked=masked)
    x = torch.randn(3, 7, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    R = x.norm(dim=-1).max().item()
    for one in (f, worst_inputs.one_head(f, 1)):
        clusters = torch.stack([cluster_input(head_of(f, h), 7, R) for h in range(one.heads)])
        row = worst_inputs.measure(one, clusters, 7, R, x)
        assert row["text"] == pytest.approx(local_lipschitz(one, x).value.max().item())
        top = bounds.ball_upper(one, 7, R)
        assert max(row["heuristic"], row["fork"]) <= row["ascended"] * (1 + 1e-3) and row["ascended"] <= top
        assert row["text"] <= top


@pytest.mark.parametrize("name", ["worst-inputs", "worst-layers"])
def test_stored_rows_are_in_order(name):
    table = results.load(name)
    assert (table.ascended <= table.upper).all() and (table.fork <= table.ascended * (1 + 2e-4)).all()
    assert (table.text < table.heuristic).mean() > 0.5 and (table.heuristic < table.fork).all()
    assert not table.duplicated(["model", "layer", *(["head"] if name == "worst-inputs" else [])]).any()
    assert len(table) == (96 if name == "worst-inputs" else 12)
    panels = dict(list(table.groupby("model")))
    figure = figures.worst_inputs.between(panels, thing="rows")
    assert [len(ax.lines) for ax in figure.axes] == [5, 5] and all(ax.get_yscale() == "log" for ax in figure.axes)
