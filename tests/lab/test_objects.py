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
    assert f"{(HEAD(moved) - HEAD(TOKENS)).norm():.3g}" in outputs.get_title()
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
    found = torch.linalg.matrix_norm(AttentionJacobian(HEAD, x).dense(), 2)
    assert f"{found:.3g}" in drawn.axes[1].get_title()


def test_coinciding_tokens_that_part_are_two_groups():
    drawn = objects.clusters([[0.0], [0.0], [2.0]], [[1.0], [-1.0], [0.0]])
    assert figures.points(drawn) == 3 and len(arrows(drawn.axes[0])) == 2


def test_who_chooses_draws_an_arc_for_each_choice():
    P = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.01, 0.6, 0.39]])
    ax = objects.who_chooses(P, ["a", "b", "c"]).axes[0]
    assert len(arrows(ax)) == 2 and "attends to the right" not in written(ax)
    assert len(arrows(objects.who_chooses(P.T / P.T.sum(1, keepdims=True)).axes[0])) == 2


def test_a_fan_has_one_arrow_in_and_as_many_out_as_outputs():
    """All at one scale; lines are as wide as the attention."""
    ax = objects.fan([0.9, 0.1, 0.5], 2.0, [1.0, 1.0, 0.5]).axes[0]
    assert figures.points(ax) == 1 + 3 and len(ax.lines) == 3
    lengths = [end[0] - start[0] for start, end in (arrow._posA_posB for arrow in arrows(ax))]
    assert np.allclose(lengths / lengths[-1], [0.5, 0.5, 0.25, 1.0])
    widths = [line.get_linewidth() for line in ax.lines]
    assert widths[0] > widths[2] > widths[1]
    assert "together 1.5" in written(ax)[-1] and "3 outputs" in written(ax)[-1]


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
