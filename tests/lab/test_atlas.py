"""The growth atlas: windows as they are said to be drawn, rows that dense differentiation gives too."""

import numpy as np
import pandas as pd
import pytest
import torch

from lab import figures, results
from lab.experiments import atlas, attention_summary
from lab.experiments.atlas import Condition, windows_of
from lab.experiments.loading import load
from lipnb import singular_pair
from lipnb.attention import Attention
from lipscan import corpora

TEXT = Condition("python_reference")


def drawn(heads, width=6, head_width=3, *, seed=0, **options):
    """A layer with all that a summary must take into account: several heads, biases, an output matrix."""
    draw = torch.Generator().manual_seed(seed)
    matrices = [torch.randn(heads, head_width, width, generator=draw, dtype=torch.float64) for _ in range(3)]
    biases = {f"{name}_bias": torch.randn(heads, head_width, generator=draw).double() for name in ("query", "key")}
    output = torch.randn(heads, width, head_width, generator=draw).double()
    return Attention(*matrices, output=output, **biases, **options)


def tokens(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("masked", [False, True])
def test_parts_are_those_of_dense_differentiation(masked):
    f, x = drawn(2, masked=masked), tokens(3, 5, 6)
    pair = singular_pair(f, x, rtol=1e-9)
    found = attention_summary.parts(f, x, pair)
    for i, one in enumerate(x):

        def output(query, key, value, one=one):
            projected = [f.project(source)[place] for place, source in enumerate((query, key, value))]
            return f.combine(f.average(f.probabilities_of(*projected[:2]), projected[2]))

        J = torch.func.jacrev(output, argnums=(0, 1, 2))(one, one, one)
        u, v = pair.output[i].flatten(), pair.input[i].flatten()
        for name, dense in zip(("by_query", "by_key", "by_value"), J, strict=True):
            part = u @ dense.reshape(len(u), len(v)) @ v / pair.value[i]
            assert found[name][i] == pytest.approx(part.item(), abs=1e-7)
    assert sum(found.values()) == pytest.approx(torch.ones(3).double(), abs=1e-7)


@pytest.mark.parametrize("masked", [False, True])
def test_popularity_is_that_of_dense_matrices(masked):
    f, x = drawn(3, masked=masked), tokens(4, 7, 6)
    found = attention_summary.popularity(f, x)
    for i, one in enumerate(x):
        P = f.probabilities(one).numpy()
        columns = P.sum(1).max(1)
        assert found["column"][i] == pytest.approx(columns.max()) and found["popular"][i] == pytest.approx(
            columns.mean()
        )
        assert found["attention_norm"][i] == pytest.approx(np.linalg.norm(P, 2, (1, 2)).max(), rel=2e-3)
        assert found["sink"][i] == pytest.approx(P[:, :, 0].mean())
        entropy = -np.where(P > 0, P * np.log(np.where(P > 0, P, 1)), 0).sum(-1).mean()
        assert found["entropy"][i] == pytest.approx(entropy)
    assert (found["attention_norm"] <= found["column"].sqrt() * (1 + 1e-9)).all()


def test_concentration_counts_tokens():
    factors = torch.tensor([[1.0], [1], [3], [1], [1]]).double()
    moved_alone = singular_pair(lambda x: x * factors, tokens(5, 4))
    assert moved_alone.moving.argmax() == 2
    found = attention_summary.concentration(
        type(moved_alone)(*(getattr(moved_alone, name)[None] for name in moved_alone.__dataclass_fields__))
    )
    assert found["place_in"].item() == 2 and found["most_in"].item() > 0.999
    assert found["tokens_in"].item() == pytest.approx(1, abs=1e-3) == found["tokens_out"].item()


def test_windows_lie_elsewhere_at_every_length_and_never_overlap(minilm, monkeypatch):
    monkeypatch.setattr(corpora, "read", lambda name: " ".join(map(str, range(10_000, 40_000))))
    places = {}
    for length in (16, 32):
        ids = windows_of(minilm, TEXT, length)
        assert ids.shape == (8, length) and (ids[:, 0] == 101).all() and (ids[:, -1] == 102).all()
        words = [minilm.tokenizer.decode(one[1:-1]).split()[1:-1] for one in ids]  # words at the ends may be cut
        held = sorted((int(one[0]), int(one[-1])) for one in words)
        assert all(last < first for (_, last), (first, _) in zip(held, held[1:], strict=False))
        places[length] = np.array([first for first, _ in held])
    nearest = [np.abs(places[16] - place).min() for place in places[32]]
    assert np.median(nearest) > 300, "windows of two lengths lie at the same places"
    assert windows_of(minilm, TEXT, 512).shape[0] == 4 and windows_of(minilm, TEXT._replace(count=4), 16).shape[0] == 4
    assert torch.equal(windows_of(minilm, TEXT, 16), windows_of(minilm, TEXT, 16))
    assert not torch.equal(windows_of(minilm, TEXT, 16), windows_of(minilm, TEXT, 16, seed=1))


def test_shuffled_windows_are_the_same_tokens_in_orders_of_their_own(minilm):
    plain, mixed = (windows_of(minilm, TEXT._replace(order=order), 32) for order in ("text", "shuffled"))
    assert not torch.equal(plain, mixed)
    assert torch.equal(plain[:, [0, -1]], mixed[:, [0, -1]])
    assert torch.equal(plain.sort(1).values, mixed.sort(1).values)
    order = [[one.index(token) for token in set(one)] for one in (plain[0].tolist(), plain[1].tolist())]
    assert order[0] != order[1]


def test_a_row_is_what_dense_differentiation_gives(minilm):
    row = pd.DataFrame(atlas._rows({"name": "minilm", "dtype": "float32"}, TEXT._replace(count=3), 8, 0))
    assert list(row.layer) == sorted(row.layer) and row.window.max() == 2  # never fewer than three windows
    first = row[(row.layer == 2) & (row.window == 1)].iloc[0]
    f = minilm.attention(2).to(dtype=torch.float64)
    x = minilm.activations(windows_of(minilm, TEXT._replace(count=3), 8)[1:2], 2)[0].double()
    J = torch.func.jacrev(f)(x).reshape(x.numel(), x.numel())
    assert first.lipschitz == pytest.approx(torch.linalg.matrix_norm(J, 2).item(), rel=1e-3)
    assert first.relative == pytest.approx(first.lipschitz * (x.norm() / f(x).norm()).item(), rel=1e-3)
    assert first.released == pytest.approx((J.T @ f(x).flatten()).norm().sqrt().item(), rel=1e-3)
    assert row.certified.isna().all(), "only the first window of Alice is certified"


def test_random_weights_are_another_network_on_the_same_windows():
    conditions = [TEXT._replace(count=3), TEXT._replace(count=3, weights="random")]
    own, random = (pd.DataFrame(atlas._rows({"name": "minilm", "dtype": "float32"}, c, 8, 0)) for c in conditions)
    assert (own.text == random.text).all() and (own.weights != random.weights).all()
    assert (abs(own.lipschitz / random.lipschitz - 1) > 0.1).all()


def test_random_weights_of_a_decoder_are_not_those_of_the_encoder_before_it():
    """Two tables made in one process: the second one took the network of the first, without its mask."""
    for masked in (False, True):
        assert atlas._twin(load("minilm", masked=masked), 0).masked == masked


@pytest.mark.parametrize("name", [name for name in results.names() if name.startswith(("atlas-", "unseen-atlas-"))])
def test_stored_rows_hold_what_theory_says(name):
    table = results.load(name)
    assert (
        table.converged.all()
        and not table.duplicated(["corpus", "order", "weights", "layer", "length", "window"]).any()
    )
    assert (table.by_value + table.by_key + table.by_query - 1).abs().max() < 1e-3
    assert table.attention_norm.ge(1 - 1e-3).all() and (table.attention_norm <= table.column**0.5 * (1 + 1e-4)).all()
    assert table.tokens_in.between(1 - 1e-6, table.length + 1e-3).all()
    assert table.entropy.between(-1e-6, np.log(table.length) + 1e-4).all() and table.sink.between(0, 1).all()
    proved = table.dropna(subset="certified")
    assert (proved.certified >= proved.lipschitz * (1 - 1e-6)).all()
    assert table.groupby(["corpus", "order", "weights", "layer", "length"]).window.nunique().min() >= atlas.LEAST


def test_a_mark_for_every_layer():
    beside = pd.DataFrame({"map": ["MiniLM"] * 3 + ["ALBERT"], "slope": [0.1, 0.2, 0.3, 0.0], "released": 0.25})
    drawn = figures.atlas.two_quantities(beside, 0.25, 0.1)
    assert figures.points(drawn) == 4 and [line.get_label() for line in drawn.axes[0].lines[1:]] == ["MiniLM", "ALBERT"]


def test_each_map_has_its_name_next_to_one_of_its_marks_and_over_no_other():
    one, two = "one model", "another"
    crossed = [(one, 0.1, 0.2), (one, 0.2, 0.2), (two, 0.15, 0.2), (two, 0.23, 0.2), (one, 0.25, 0.4), (two, 0.5, 0.4)]
    ax = figures.atlas.two_quantities(pd.DataFrame(crossed, columns=["map", "slope", "released"]), 0.25, 0.1).axes[0]
    assert [name.get_text() for name in ax.texts] == [one, two]
    assert all((name.get_text(), *name.xy) in crossed for name in ax.texts)
    ax.figure.canvas.draw()
    boxes = [name.get_window_extent() for name in ax.texts]
    assert all(ax.bbox.x0 <= box.x0 < box.x1 <= ax.bbox.x1 for box in boxes)
    dots = ax.transData.transform([(slope, released) for _, slope, released in crossed])
    assert not any(box.contains(*dot) for box in boxes for dot in dots) and not boxes[0].overlaps(boxes[1])
