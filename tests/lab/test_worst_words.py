"""Words moved toward a worst input: the first-order gain, what may stand in a text, greedy steps, stored rows."""

import needs
import pytest
import torch

from lab import figures, results
from lab.experiments import adversarial, worst_words
from lab.experiments.worst_inputs import LENGTH
from lipnb import AttentionJacobian, local_lipschitz
from lipnb.worst_case.attacks import singular
from lipscan.recording import remeasure

SENTENCE = "The rabbit looked unhurriedly at its watch, and Alice ran after it."


@pytest.fixture(scope="module")
def text():
    model = adversarial.network_of("minilm", False)
    return worst_words.Text(model, 1, model.token_ids(SENTENCE), worst_words.read_back(model))


def constant(text, x):
    return local_lipschitz(text.model.attention(text.layer), x, rtol=1e-10).value.item()


@pytest.mark.parametrize("layer", [0, 2, 5])
def test_the_differentiable_route_is_the_network(text, layer):
    words = text.model.module.embeddings.word_embeddings.weight
    x = worst_words.below(text.model, layer, words[text.ids][None])
    assert torch.equal(x, text.model.activations(text.ids[None], layer))


def test_gains_are_differences_of_the_constant(text):
    attention, x = text.model.attention(text.layer), text.received(text.ids[None])[0]
    right = singular(attention, x, rtol=1e-10).direction
    left = AttentionJacobian(attention, x).jvp(right)
    gains = worst_words.first_order(text, attention, text.ids, left / left.norm(), right)
    words = text.model.module.embeddings.word_embeddings.weight
    assert gains.shape == (len(text.ids), len(words)) and gains.gather(1, text.ids[:, None]).abs().max() < 1e-12
    for place, token in [(1, 2054), (5, 9999), divmod(gains.argmax().item(), len(words))]:
        e, step = words[text.ids], torch.zeros(len(text.ids), words.shape[1], dtype=torch.float64)
        step[place] = words[token] - e[place]
        ends = [constant(text, worst_words.below(text.model, 1, (e + t * step)[None])[0]) for t in (1e-4, -1e-4)]
        assert gains[place, token].item() == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-4, abs=1e-6)


def test_words_are_read_back(text):
    tokens = text.model.tokenizer.convert_tokens_to_ids(["rabbit", ",", "##s", "[CLS]", "[unused1]"])
    assert text.words[tokens].tolist() == [True, True, False, False, False]
    pieces, places = text.model.tokenizer.convert_ids_to_tokens(text.ids.tolist()), text.places()
    broken = [i for i, piece in enumerate(pieces) if piece.startswith("##")]
    assert broken and not places[broken].any() and not places[broken[0] - 1] and places[broken[-1] + 1]
    for seed in range(5):
        made = worst_words._substituted(text.ids, worst_words._random(text, 12, seed))
        assert (made != text.ids).sum() > 8
        assert torch.equal(text.model.token_ids(text.model.tokenizer.decode(made)), made)


def test_greedy_words_make_the_layer_rougher(text):
    changes = worst_words.greedy(text, 3, tried=4)
    assert len({place for place, _ in changes}) == 3
    ids = torch.stack([worst_words._substituted(text.ids, changes[:count]) for count in range(4)])
    found = [constant(text, x) for x in text.received(ids)]
    assert found == sorted(found) and found[-1] > 1.05 * found[0]
    few = text._replace(ids=text.ids[:2])  # no place is taken twice
    assert len(worst_words.greedy(few, 5, tried=2)) <= 2


def test_stored_rows():
    table = results.load("worst-words")
    start, end = (table.groupby("layer").nth(place).set_index("layer") for place in (0, -1))
    worst = results.load("worst-layers").query("model == 'minilm'").set_index("layer")
    assert set(end.index) == set(worst.index) and (start.changed == 0).all() and (start.greedy == start.random).all()
    assert (start.greedy <= worst.text * (1 + 1e-5)).all() and (end.greedy < worst.upper).all()
    assert (end.greedy > end.random).all() and (table.length == LENGTH).all()
    assert (table.groupby("layer").radius.max() < 1.01 * worst.R).all()
    repeats = results.load("worst-repeats")
    assert set(repeats.layer) == set(worst.index) and (repeats.changed <= worst_words.FEW).all()
    figure = figures.worst_inputs.words(table, repeats, worst.ascended)
    assert len(figure.axes) == len(worst) and all(len(ax.lines) == 4 for ax in figure.axes)


@needs.ALICE
def test_a_stored_row_is_measured_again():
    table = results.load("worst-words")
    now = remeasure(table[table.layer == 3].tail(1), worst_words.again, rows=1)
    assert now["greedy difference"].max() < 1e-3
    made = worst_words.text_of(table.groupby("layer").nth(-1).set_index("layer").reset_index().iloc[3])
    assert torch.equal(made.model.token_ids(made.model.tokenizer.decode(made.ids)), made.ids)
