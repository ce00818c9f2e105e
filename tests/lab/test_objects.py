"""Pictures of the object: as many marks as tokens, arrows where attention is, a sentence for what cannot be drawn."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.patches import FancyArrowPatch

from lab import figures
from lab.figures import objects
from lipnb import Attention, AttentionJacobian
from lipnb.worst_case import tight_input
from lipnb.worst_case.constructions import fork_input

A, V = -torch.eye(2).double(), torch.eye(2).double()
HEAD = Attention.from_matrices(A, V)
TOKENS = torch.tensor([[1.0, 0.2], [-0.4, 0.9], [-0.8, -0.6]]).double()


@pytest.fixture(autouse=True)
def closed():
    with plt.style.context(figures.STYLE):
        yield
    plt.close("all")


def arrows(ax):
    return [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]


def written(ax):
    return [text.get_text() for text in ax.texts]


def worst(x):
    """The displacement of the top singular vector, and what the outputs do."""
    J = AttentionJacobian(HEAD, x).dense()
    top = torch.linalg.svd(J).Vh[0]
    return top.reshape(x.shape), (HEAD(x), (J @ top).reshape(x.shape))


def test_tokens_are_points_and_attention_arrows():
    drawn = objects.tokens_and_attention(TOKENS, HEAD, labels=["a", "cat", "sat"])
    assert figures.points(drawn) == 3 and {"a", "cat", "sat"} <= set(written(drawn.axes[0]))
    P = HEAD.probabilities(TOKENS)[0]
    assert len(arrows(drawn.axes[0])) == int(((P > objects.FAINT) & ~torch.eye(3, dtype=bool)).sum())
    alone = objects.tokens_and_attention(TOKENS, torch.eye(3))
    assert not arrows(alone.axes[0])
    half = torch.tensor([[0.0, 0.9, 0.1], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    wide, narrow = (arrow.get_linewidth() for arrow in arrows(objects.tokens_and_attention(TOKENS, half).axes[0]))
    assert wide > 2 * narrow


def test_a_push_shows_where_tokens_and_outputs_went():
    moved = TOKENS + torch.tensor([[0.3, 0.0], [0.0, 0.0], [0.0, -0.4]])
    drawn = objects.tokens_and_attention(TOKENS, HEAD, moved=moved)
    inputs, outputs = drawn.axes
    assert figures.points(inputs) == 3 and figures.points(outputs) == 3 + 3  # the tokens, faint behind the outputs
    assert np.allclose(outputs.collections[0].get_offsets(), TOKENS)
    assert inputs.get_title() == "input moves by 0.5"
    assert outputs.get_title() == f"output moves by {(HEAD(moved) - HEAD(TOKENS)).norm():.3g}"
    ends = [arrow._posA_posB for arrow in arrows(outputs)]
    assert np.allclose(ends, np.stack([HEAD(TOKENS), HEAD(moved)], axis=1))


@pytest.mark.parametrize("n", [2, 60])
def test_two_clusters_are_two_marks_with_their_counts(n):
    x = tight_input(A, n, 1.2)
    move, outputs = worst(x)
    drawn = objects.clusters(x, move, outputs)
    for ax, thing in zip(drawn.axes, ("token", "output"), strict=True):
        assert figures.points(ax) == 2 and f"1 {thing}" in written(ax)
        assert n == 2 or f"{n - 1} {thing}s" in written(ax)
    assert drawn.axes[0].get_title() == "input moves by 1"
    found = torch.linalg.matrix_norm(AttentionJacobian(HEAD, x).dense(), 2)
    assert drawn.axes[1].get_title() == f"output moves by {found:.3g}"


def test_a_fork_has_two_prongs_and_a_handle():
    x, _ = fork_input(A, V, 40, 1.5)
    drawn = objects.clusters(x, worst(x)[0])
    assert figures.points(drawn) == 3 and written(drawn.axes[0]).count("1 token") == 2
    assert "38 tokens" in written(drawn.axes[0])


def test_coinciding_tokens_that_part_are_two_groups():
    drawn = objects.clusters([[0.0], [0.0], [2.0]], [[1.0], [-1.0], [0.0]])
    assert figures.points(drawn) == 3 and len(arrows(drawn.axes[0])) == 2


def test_who_chooses_draws_an_arc_for_each_choice():
    P = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.01, 0.6, 0.39]])
    ax = objects.who_chooses(P, ["a", "b", "c"]).axes[0]
    assert len(arrows(ax)) == 2 and "attends to the right" not in written(ax)
    assert len(arrows(objects.who_chooses(P.T / P.T.sum(1, keepdims=True)).axes[0])) == 2


def test_numbers_stand_under_their_dots_and_words_below_the_arcs():
    P = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    numbered, worded = (objects.who_chooses(P, labels).axes[0] for labels in (None, ["a", "cat", "sat"]))
    assert [text.xy for text in numbered.texts[:3]] == [(0, 0), (1, 0), (2, 0)]
    assert all(text.xy[1] < -0.5 for text in worded.texts[:3])


def test_attention_ends_before_a_token_that_is_pushed():
    """Its arrowhead would lie under the mark of the push."""
    moved = TOKENS + torch.tensor([[0.3, 0.0], [0.0, 0.0], [0.0, 0.0]])
    drawn = objects.tokens_and_attention(TOKENS, torch.full((3, 3), 1 / 3), moved=moved, outputs=(TOKENS, moved))
    free = [arrow.shrinkB for arrow in arrows(drawn.axes[0])]
    assert free.count(objects.PUSHED) == 2 and free.count(7) == 4


def test_a_fan_has_one_arrow_in_and_as_many_out_as_outputs():
    """All at one scale; lines are as wide as the attention."""
    ax = objects.fan([0.9, 0.1, 0.5], 2.0, [1.0, 1.0, 0.5]).axes[0]
    assert figures.points(ax) == 1 + 3 and len(ax.lines) == 3
    lengths = [end[0] - start[0] for start, end in (arrow._posA_posB for arrow in arrows(ax))]
    assert np.allclose(lengths / lengths[-1], [0.5, 0.5, 0.25, 1.0])
    widths = [line.get_linewidth() for line in ax.lines]
    assert widths[0] > widths[2] > widths[1]
    assert "together 1.5" in written(ax)[-1] and "3 outputs" in written(ax)[-1]


def test_a_matrix_has_its_words():
    P = HEAD.probabilities(TOKENS)[0]
    ax = objects.attention_matrix(P, ["a", "cat", "sat"]).axes[0]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["a", "cat", "sat"]
    assert np.allclose(ax.collections[0].get_array().ravel(), P.ravel())


def test_an_attack_has_the_length_of_every_move():
    moves = torch.tensor([[0.3, 0.4], [0.0, 0.0], [0.6, 0.8]])
    drawn = objects.attack(TOKENS, moves, ["a", "b", "c"])
    assert [bar.get_width() for bar in drawn.axes[1].patches] == pytest.approx([0.5, 0.0, 1.0])
    assert figures.points(drawn.axes[0]) == 3 and len(arrows(drawn.axes[0])) == 2


def test_atoms_part_with_their_weights():
    ax = objects.atoms([[-1.0], [-1.0], [3.0]], [[-2.0], [0.0], [3.0]], [0.25, 0.25, 0.5]).axes[0]
    assert figures.points(ax) == 2 + 3 and len(arrows(ax)) == 3
    areas = [dots.get_sizes() for dots in ax.collections]
    assert areas[0] == pytest.approx(areas[0][:1].repeat(2)) and sum(areas[0]) == pytest.approx(sum(areas[1]))


def test_a_plane_may_be_given():
    x = torch.tensor([[0.0, 1.0, 2.0], [1.0, 1.0, 0.0]])
    drawn = objects.tokens_and_attention(x, torch.eye(2), plane=[[0, 0, 1], [1, 0, 0]])
    assert np.allclose(drawn.axes[0].collections[0].get_offsets(), [[2, 0], [0, 1]])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: objects.tokens_and_attention(np.zeros((13, 2)), np.eye(13)), "draws 1 to 12 tokens, got 13"),
        (lambda: objects.tokens_and_attention(TOKENS, np.ones((3, 3))), "probabilities that add up to 1"),
        (lambda: objects.tokens_and_attention(TOKENS, np.eye(2)), "attention must have shape"),
        (lambda: objects.tokens_and_attention(TOKENS, np.eye(3), moved=TOKENS), "outputs are needed"),
        (lambda: objects.tokens_and_attention(TOKENS, np.eye(3), labels="ab"), "3 tokens need 3 labels, got 2"),
        (lambda: objects.tokens_and_attention(TOKENS * np.nan, np.eye(3)), "x must be finite"),
        (lambda: objects.clusters(np.arange(26.0).reshape(13, 2), np.ones((13, 2))), "draws 1 to 12 groups"),
        (lambda: objects.clusters(TOKENS, np.zeros((2, 2))), "move must have shape"),
        (lambda: objects.fan(np.ones(13), 1.0, np.ones(13)), "fan draws 1 to 12 tokens, got 13"),
        (lambda: objects.fan([0.5, 0.5], 1.0, [1.0]), "moves must have shape"),
        (lambda: objects.who_chooses(np.eye(25)), "draws 1 to 24 tokens, got 25"),
        (lambda: objects.who_chooses(np.zeros((2, 3))), "must be square"),
        (lambda: objects.attack(np.zeros((25, 2)), np.zeros((25, 2))), "draws 1 to 24 tokens"),
        (lambda: objects.atoms([[0.0]], [[1.0]], [0.5]), "add up to 1"),
        (lambda: objects.attention_matrix([[0.5, 0.4], [1, 0]]), "probabilities that add up to 1"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_a_sentence(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_two_heads_are_refused():
    both = Attention(*torch.randn(3, 2, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    with pytest.raises(ValueError, match="one head is drawn at a time, and this attention has 2"):
        objects.tokens_and_attention(TOKENS, both)
