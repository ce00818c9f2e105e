"""What the laboratory cannot do is said in a sentence with the word that helps, before anything is measured."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from lab import experiments, figures, ledger, released, results, training
from lab.benchmarks import layers
from lab.benchmarks.tiled import TiledJacobian
from lab.bounds_survey import ENTRIES, draw
from lab.bounds_survey.maps import CosineAttention, SigmoidAttention
from lab.experiments import brackets, differences, interventions, moving, two_clusters
from lab.figures import objects
from lab.invertible import ContractiveAttention, ContractiveFeedForward, InvertibleStack, Residual, predicted_iterations
from lab.statistics import growth, power_laws
from lipnb import Attention, bounds
from lipscan import models

EYE = torch.eye(2, dtype=torch.float64)
ONE = torch.ones(1, 1, 2, dtype=torch.float64)
HEAD, MASKED = (Attention.from_matrices(EYE, EYE, masked=masked) for masked in (False, True))
TURN = Attention(torch.tensor([[[0.0, -1.0], [1.0, 0.0]]], dtype=torch.float64), EYE[None], EYE[None])
TWO = Attention(*torch.ones(3, 2, 1, 2).double())
SHARED = Attention(torch.ones(2, 1, 2).double(), ONE, ONE)
L2 = Attention.l2(EYE[None], EYE[None])
X = torch.tensor([[1.0, 0.2], [-0.4, 0.9], [-0.8, -0.6]]).double()
RESIDUAL = Residual(ContractiveAttention(4, 2, dtype=torch.float64))
TOKENS = torch.ones(3, 4, dtype=torch.float64)
OTHER_NORM = Residual(ContractiveAttention(4, 2, p=math.inf, dtype=torch.float64))
KNOWN = {"seen": "text of the paper", "effort": "random", "grounds": "tests"}
ID = "castin.thm-3.3"
ROWS = pd.DataFrame({"length": [8, 8, 16, 16], "window": [0, 1, 0, 1], "lipschitz": [1.0, 1.1, 1.4, 1.5]})
BOTH = pd.concat([ROWS.assign(layer=0), ROWS.assign(layer=1)])
FRAME = pd.DataFrame({"n": [4, 65536], "value": [0.5, 2.5]})
CURVE = np.arange(1.0, 5.0)


class Steep(torch.nn.Module):
    """A layer that says it allows a constant of 2."""

    p, width, dtype = 2, 4, torch.float64

    def lipschitz_upper(self, n):
        return 2.0


def upper(ratios, id=ID, **more):
    return ledger.upper(id, "a form", ratios, **KNOWN | more)


def twice():
    row = upper([0.5])
    return ledger.record(row, row)


def trained(**changes):
    ids, network = torch.arange(50).repeat(30), training.new_gpt2(60, positions=8, width=16, layers=1, heads=2)
    options = {"steps": 5, "batch": 2, "length": 8, "rate": 1e-2, "progress": False, **changes}
    return training.train(network, ids, ids[:200], None, state="none", **options)


def characters(**changes):
    small = {"attention": "dot", "length": 12, "width": 16, "heads": 2, "hidden": 24, "layers": 2}
    return training.CharacterTransformer(30, **small | changes)


def work(**options):
    return experiments.TABLES["real-text-embedded"].work(**options)


REFUSALS = [
    # statements and their verdicts
    ("a statement that is not listed", lambda: upper([0.5], id="castin.thm-9.9"), "no statement"),
    ("how a form is known", lambda: upper([0.5], seen="printed"), "seen must be one of"),
    ("how hard a form was tried", lambda: upper([0.5], effort="printed"), "effort must be one of"),
    ("the same without numbers", lambda: ledger.depends(ID, "a", "why", seen="recalled"), "seen must be one of"),
    ("a ratio that is none", lambda: upper([0.5, math.nan]), "finite"),
    ("no ratio", lambda: upper([]), "finite"),
    ("ratios that are all one", lambda: upper([1 + 1e-12, 1 - 1e-12]), "no test"),
    ("no counter-example", lambda: upper([2.0]), "counter-example"),
    ("no tolerance", lambda: ledger.equal(ID, "a", [0.0], within=0, **KNOWN), "within"),
    ("a form twice", twice, "twice"),
    # tables
    ("an absent table", lambda: results.load("x"), "data/README.md"),
    ("an option of no table", lambda: experiments.make(["l2-tightness"], count=3), "option 'count'"),
    ("no corpus", lambda: work(corpus="no corpus"), "not found"),
    ("no length", lambda: work(lengths=()), "lengths is empty"),
    ("more than the text has", lambda: work(lengths=(2, 400), count=1000), "the text has"),
    ("another edition", lambda: experiments.remeasure(ROWS, lambda row: None), "same edition"),
    ("no weights of GPT-2", lambda: next(brackets.inputs("gpt2", True, 4)), "set LIPNB_DATA"),
    ("no weights in a folder", lambda: models.load_positions("lab"), "attention.safetensors"),
    ("a layer of no benchmark", lambda: layers.layer("bert:3"), "mini:L"),
    ("a mask", lambda: ENTRIES["mean_field"].check(MASKED), "use masked_mean_field"),
    ("no mask", lambda: ENTRIES["masked_mean_field"].check(HEAD), "use mean_field"),
    ("two heads", lambda: ENTRIES["general"].check(TWO), "multi_head"),
    ("another score", lambda: ENTRIES["general"].check(L2), "use l2_sharp"),
    ("another map", lambda: ENTRIES["sigmoid"].check(CosineAttention(EYE, EYE, EYE)), "not for cosine"),
    ("another map still", lambda: ENTRIES["cosine"].check(SigmoidAttention(EYE, EYE)), "not for sigmoid"),
    ("no family", lambda: draw("none", "random", 0), "family"),
    ("no real eigenvalue", lambda: two_clusters.head_of(TURN, 0), "eigenvalue"),
    ("no such head", lambda: two_clusters.head_of(TURN, 1), "head must be"),
    ("shift of another shape", lambda: bounds.layer_norm_radius(X[0], X[:, 0]), "one shape"),
    ("scaling of distances", lambda: interventions.scaled(L2, 2), "dot-product"),
    ("a place that is known", lambda: interventions.without_most_attended(HEAD.replace(window=2), X[None]), "places"),
    ("odd lengths", lambda: moving.from_uniform_to_sharp([3], [0.0]), "even"),
    ("no effect of a difference", lambda: differences.effects_table({}), "no effect is given for"),
    # the released quantity
    ("a batch", lambda: released.estimate(HEAD, X[None]), "one sequence"),
    ("a threshold below 0", lambda: released.estimate(HEAD, X, threshold=-1), "at least 0"),
    ("no head", lambda: released.head_matrix(HEAD, 3), "no head 3"),
    ("a matrix of distances", lambda: released.head_matrix(L2, 0), "dot-product"),
    ("all dropped", lambda: released.DropoutAttention(HEAD, rate=1), "rate"),
    # layers that are inverted
    ("no contraction", lambda: Residual(ContractiveAttention(4, 2), 1.0), "c must lie"),
    ("c that is none", lambda: Residual(ContractiveAttention(4, 2), math.nan), "c must lie"),
    ("a rate of 1.8", lambda: Residual(Steep(), 0.9).inverse(TOKENS), "not below 1"),
    ("another width", lambda: RESIDUAL.inverse(X), "y must have shape"),
    ("no token", lambda: RESIDUAL.inverse(TOKENS[:0]), "y must be"),
    ("NaN", lambda: RESIDUAL.inverse(TOKENS * math.nan), "NaN"),
    ("an error below rounding", lambda: RESIDUAL.inverse(TOKENS, rtol=1e-16), "rtol"),
    ("x of another width", lambda: ContractiveFeedForward(4, 8)(X), "x must have shape"),
    ("a width that heads do not share", lambda: ContractiveAttention(5, 2), "width"),
    ("no norm", lambda: ContractiveAttention(4, 2, p=1), "p must be"),
    ("no sharp bound", lambda: ContractiveAttention(4, 2, p=math.inf, bound="sharp"), "bound"),
    ("no activation", lambda: ContractiveFeedForward(4, 8, activation="gelu"), "activation"),
    ("a rate of 1", lambda: predicted_iterations(1.0, 1e-10), "rate"),
    ("two norms", lambda: InvertibleStack(RESIDUAL, OTHER_NORM).inverse(TOKENS), "share"),
    # tiles
    ("u of another length", lambda: TiledJacobian(HEAD, X).jvp(X[:2]), "u must have shape"),
    ("w of another width", lambda: TiledJacobian(HEAD, X).vjp(X[:, :1]), "w must have shape"),
    ("too few scales", lambda: TiledJacobian(HEAD, X).gram(X, torch.ones(2).double()), "one entry per token"),
    ("tiles of a batch", lambda: TiledJacobian(HEAD, X[None]), "one set"),
    ("tiles of NaN", lambda: TiledJacobian(HEAD, X * math.nan), "NaN"),
    ("weights of zero", lambda: TiledJacobian(HEAD, X, torch.zeros(3).double()), "positive"),
    ("shared keys", lambda: TiledJacobian(SHARED, X), "shared keys"),
    ("tiles of distances", lambda: TiledJacobian(L2, X), "dot-product"),
    # training
    ("no text", lambda: training.split_text([" \n", ""]), "no text"),
    ("no characters", lambda: training.character_ids(("", "abc")), "no text"),
    ("no bytes", lambda: training.train_tokenizer(["some text"], 100), "257"),
    ("no schedule", lambda: trained(schedule="zigzag"), "schedule"),
    ("a warm-up below 0", lambda: trained(warmup=-1), "warmup"),
    ("a text too short", lambda: trained(length=3000), "1500 tokens"),
    ("no positions of twins", lambda: training.new_twin("alibi", 50, length=8, width=16, layers=1, heads=2), "alibi"),
    ("no attention", lambda: characters(attention="linear"), "attention must be one of"),
    ("heads that do not divide", lambda: characters(heads=3), "multiple of heads"),
    ("no strength", lambda: characters(strength=1.0), "between 0 and 1"),
    ("no norm of a network", lambda: characters(norm="twice"), "norm"),
    ("no positions", lambda: characters(positions="none"), "positions"),
    ("fewer tokens than the order", lambda: training.KneserNey([0, 1], 4, 3), "at least 3"),
    ("order 0", lambda: training.KneserNey([0, 1] * 9, 4096, 0), "63"),
    ("an order too high", lambda: training.KneserNey([0, 1] * 9, 4096, 6), "63"),
    ("grams too long", lambda: training.KneserNey([0, 1, 2], 4, 2).probabilities([[0, 1, 2]]), "got 3"),
    # fits
    ("several series", lambda: growth.slope(BOTH), "one series"),
    ("octaves of several series", lambda: growth.octaves(BOTH), "one series"),
    ("a fit of several series", lambda: power_laws.rate(BOTH), "one series"),
    ("a window twice", lambda: growth.slope(pd.concat([ROWS, ROWS])), "twice"),
    ("no lengths", lambda: growth.slope(ROWS.drop(columns="length")), "column length"),
    ("one length", lambda: growth.slope(ROWS[:2]), "two positive lengths"),
    ("one window", lambda: growth.octaves(ROWS[1:]), "two windows"),
    ("a constant of zero", lambda: growth.slope(ROWS.assign(lipschitz=0.0)), "positive finite"),
    ("confidence in per cent", lambda: growth.intervals([CURVE, CURVE], [[-1, 1]], 95), "between 0 and 1"),
    ("two points", lambda: power_laws.power_law([1, 2], [1, 2]), "three points"),
    ("one place", lambda: power_laws.power_law([2, 2, 2], [1, 2, 3]), "two different x"),
    ("a value of zero", lambda: power_laws.power_law(CURVE, CURVE - 1), "positive finite"),
    ("another number of values", lambda: power_laws.power_law(CURVE, CURVE[1:]), "as many"),
    ("a confidence above 1", lambda: power_laws.power_law(CURVE, CURVE, confidence=1.5), "confidence"),
    ("one cluster", lambda: power_laws.power_law(CURVE, CURVE, clusters=[np.zeros(4)]), "two groups"),
    # pictures and tables
    ("a format", lambda: figures.redraw("l2-exponents", ".", "jpg"), "png, svg, pdf"),
    ("no figure", lambda: figures.draw("x"), "choose from"),
    ("two layers", lambda: figures.bounds_survey.medians(results.load("bounds-survey-text")), "one layer"),
    ("seven heads", lambda: figures.two_clusters.growth_ends(dict.fromkeys("abcdefg", (CURVE,) * 4)), "at most 6"),
    ("13 tokens", lambda: objects.tokens_and_attention(np.zeros((13, 2)), np.eye(13)), "1 to 12 tokens"),
    ("rows above 1", lambda: objects.tokens_and_attention(X, np.ones((3, 3))), "add up to 1"),
    ("attention of fewer", lambda: objects.tokens_and_attention(X, np.eye(2)), "attention must have shape"),
    ("a move without outputs", lambda: objects.tokens_and_attention(X, np.eye(3), moved=X), "outputs"),
    ("too few labels", lambda: objects.tokens_and_attention(X, np.eye(3), labels="ab"), "3 labels"),
    ("infinite tokens", lambda: objects.tokens_and_attention(X * np.inf, np.eye(3)), "finite"),
    ("two heads of a picture", lambda: objects.tokens_and_attention(X, TWO), "one head"),
    ("13 groups", lambda: objects.clusters(np.arange(26.0).reshape(13, 2), np.ones((13, 2))), "1 to 12 groups"),
    ("a move of fewer", lambda: objects.clusters(X, np.zeros((2, 2))), "move must have shape"),
    ("13 outputs", lambda: objects.fan(np.ones(13), 1.0, np.ones(13)), "1 to 12 tokens"),
    ("25 tokens", lambda: objects.who_chooses(np.eye(25)), "1 to 24 tokens"),
    ("no square", lambda: objects.who_chooses(np.zeros((2, 3))), "square"),
    ("half of the weights", lambda: objects.atoms([[0.0]], [[1.0]], [0.5]), "add up to 1"),
    ("no frame", lambda: figures.table([[1, 2]]), "DataFrame"),
    ("eight columns", lambda: figures.table(pd.DataFrame({str(i): [i] for i in range(8)})), "at most 7"),
    ("no column", lambda: figures.table(FRAME, {"lengths": "n"}), "lengths"),
    ("one bold row", lambda: figures.table(FRAME, bold=[True]), "2 rows"),
    ("bold rows of others", lambda: figures.table(FRAME, bold=pd.Series([True, False], index=[1, 2])), "index"),
    ("digits of nothing", lambda: figures.table(FRAME, {"n": "n"}, digits={"value": 2}), "digits"),
    ("two columns of a name", lambda: figures.table(pd.DataFrame([[1, 2]], columns=["n", "n"])), "called n"),
    ("fewer shares", lambda: figures.token_line.TokenLine(["a", "b"], [1.0], [1.0, 1.0]), "as many"),
]


@pytest.mark.parametrize(("call", "word"), [pytest.param(*row, id=id) for id, *row in REFUSALS])
def test_it_is_refused(call, word, monkeypatch, tmp_path):
    monkeypatch.setenv("LIPNB_DATA", str(tmp_path))
    with pytest.raises((ValueError, TypeError, OSError)) as refused:
        call()
    assert word in str(refused.value) and "\n" not in str(refused.value)
