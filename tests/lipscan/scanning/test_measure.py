"""What a scan measures of layers, heads and tokens: against definitions, and what cannot be measured is named."""

from dataclasses import replace
from io import StringIO
from itertools import count
from types import SimpleNamespace

import model_types
import numpy as np
import pandas as pd
import pytest
import torch
from cases import KINDS, every_kind
from hub import small_model
from scans import WORDS, scanned, small

import lipnb
from lipnb import certify
from lipnb.jacobian import AutodiffJacobian
from lipscan import models, scanning
from lipscan.cli import main
from lipscan.models.network import some_inputs
from lipscan.scanning import findings, fmt, measure, report, summary, terminal
from lipscan.scanning.inputs import Reader
from lipscan.scanning.measure import self_check
from lipscan.scanning.words import ENDS


def test_a_self_check_sees_other_tokens_through_a_norm_inside(monkeypatch):
    """A norm ignores a shift of a token, and attention the order of tokens: the tokens must change otherwise too."""
    f = lipnb.Attention(*(torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(3)) for _ in range(3)))

    def normed(x):
        return f(torch.nn.functional.layer_norm(x, (8,)))

    x = torch.randn(1, 9, 8, generator=torch.Generator().manual_seed(4))
    monkeypatch.setattr(measure, "answer", lambda model, layer, read, change: normed(change(x)))
    model = SimpleNamespace(attention=lambda layer, n: normed, masked=False)
    _, leak, passed = self_check(model, 0, SimpleNamespace(received=x, given=normed(x)))
    assert leak > 1e-2 and passed


def test_a_layer_that_is_not_the_networks_is_not_measured(bert, tmp_path, text, monkeypatch):
    model = small(bert)
    attention = type(model).attention

    def wrong(self, layer, object="heads+output", n=None):
        f = attention(self, layer, object, n)
        if layer == 1:
            value = f.value
            value[0, 0] += 0.5
            f = f.replace(value=value)
        return f

    monkeypatch.setattr(type(model), "attention", wrong)
    read = models.readings(model, torch.tensor([[5, 6, 7, 8]]))
    assert self_check(model, 0, read[0])[2]
    found = scanned(model, text, tmp_path)
    assert list(found.summary.passed) == [True, True, False, False]
    assert found.table[found.table.layer == 1].lipschitz.isna().all()
    out = StringIO()
    terminal.show(found, file=out)
    assert "Layer 1 failed its self-check at length 4" in report.html(found) and out.getvalue().count("FAILED") == 2


def test_work_beyond_the_limit_is_left_out_and_said(bert, tmp_path, text):
    found = scanned(small(bert), text, tmp_path, upper_work=1e6)
    per_length = found.table.groupby("length").certified.count()
    assert per_length[4] == 2 and per_length[9] == 0
    work = fmt.short(measure.closed_form_work(small(bert).attention(0), 9))
    assert f"No certified bound at length 9: about {work} operations each" in report.html(found)
    x = small(bert).activations(models.random_windows(small(bert), WORDS, 4, 2), 0)[0]
    bracket = certify(small(bert).attention(0), x, columns=0)
    assert found.table.certified.iloc[0] == pytest.approx(bracket.upper.item(), rel=1e-5)


@pytest.mark.parametrize("upper, lower, probable", [(34.85010001, 34.84989999, 34.85010001), (2.0000001, 2.0, np.inf)])
def test_stored_bounds_are_rounded_outward(bert, tmp_path, text, monkeypatch, upper, lower, probable):
    """To the nearest six digits a bound that is nearly exact lay beyond the constant."""
    bracket = SimpleNamespace(upper=torch.tensor(upper, dtype=torch.float64), lower=torch.tensor(lower).double())
    monkeypatch.setattr(measure, "certify", lambda *given, **options: bracket)
    solve = measure.with_direction

    def solved(*given, **options):
        one, worst = solve(*given, **options)
        return replace(one, upper=torch.full_like(one.upper, probable)), worst

    monkeypatch.setattr(measure, "with_direction", solved)
    found = scanned(small(bert), text, tmp_path, lengths=[4], windows=1)
    table = found.table
    assert (table.certified >= upper).all() and (table.certified < upper * 1.00001).all()
    assert (table.certified_lower <= bracket.lower.item()).all() and (table.probable >= probable).all()
    summary = found.summary
    assert (summary.certified == table.certified).all() and (summary.certified_over * table.lipschitz >= upper).all()


def test_numbers_beside_the_constant_are_in_full_precision_under_autocast():
    seed = torch.Generator().manual_seed(5)
    f = lipnb.Attention(*(torch.randn(2, 16, 16, generator=seed) for _ in range(3)))
    x = torch.randn(1, 9, 16, generator=seed)
    found = lipnb.local_lipschitz(f, x)
    expected = [measure._columns(found, f, x)["relative"], measure._largest_column(f, x)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = [measure._columns(found, f, x)["relative"], measure._largest_column(f, x)]
    assert got == pytest.approx(expected, rel=1e-6)


def exact(f, x):
    return torch.linalg.matrix_norm(AutodiffJacobian(f, x).dense(), 2).item()


def test_constants_are_those_of_the_network_itself(bert, finished):
    scan = finished
    model, (n, *_) = small(bert), sorted(set(scan.table.length))
    ids = models.random_windows(model, WORDS, n, 2)
    read = models.readings(model, ids[:1])
    for row in scan.whole.itertuples():
        x = read[max(0, row.layer)].stream
        if row.part == "layer":
            assert row.lipschitz == pytest.approx(exact(read[row.layer].whole, x), rel=2e-3)
    hidden = scan.whole[scan.whole.part == "hidden"].lipschitz.item()
    assert hidden == pytest.approx(exact(models.network.whole_network(model, ids[:1]), read[0].stream), rel=2e-3)
    chain = read[1].whole(read[0].whole(read[0].stream))
    assert torch.allclose(chain, model.module(ids[:1]).last_hidden_state, atol=1e-12)
    for row in scan.table[(scan.table.length == n) & (scan.table.window == 0)].itertuples():
        f, x = model.attention(row.layer), read[row.layer].received
        assert row.relative == pytest.approx(row.lipschitz * (x.norm() / f(x).norm()).item(), rel=1e-4)
        assert row.column == pytest.approx(f.probabilities(x).sum(-2).max().item(), rel=1e-4)


@pytest.mark.parametrize("object", ["heads+output", "block"])
def test_the_usual_change_and_the_place_of_the_worst_are_those_of_the_matrix(bert, tmp_path, text, object):
    """Within three standard errors, which the matrix gives; of many seeds the mean; global random state untouched."""
    model, state = small(bert), torch.get_rng_state()
    found = scanned(model, text, tmp_path, object=object, lengths=[6], upper=False)
    ids = models.random_windows(model, WORDS, 6, 2)
    for row in found.table.itertuples():
        f, x = model.attention(row.layer, object), model.activations(ids, row.layer, object)[row.window][None]
        J = AutodiffJacobian(f, x[0]).dense()
        _, values, vectors = torch.linalg.svd(J)
        share = vectors[0].view(6, -1).square().sum(1)
        assert row.steepest_token == share.argmax().item()
        assert row.steepest_share == pytest.approx(share.max().item(), rel=0.01)
        rest, usual = values[1:].square(), (torch.linalg.matrix_norm(J) / J.shape[1] ** 0.5).item()
        spread = rest.square().sum() - rest.sum() ** 2 / len(rest)
        error = (spread / (2 * measure.DIRECTIONS)).sqrt().item() / values.square().sum().item()
        assert 0.002 < error < 0.1 and abs(row.typical / usual - 1) < 3 * error
        if (row.layer, row.window, object) != (0, 0, "heads+output"):
            continue
        worst = vectors[:1].view_as(x)
        many = [measure.typical(f, x, values[0].item(), worst, seed) ** 2 for seed in range(100)]
        assert abs(np.mean(many) / usual**2 - 1) < 3 * 2 * error / 10
        assert 0.7 < np.std(many) / (2 * error * usual**2) < 1.4
    assert torch.equal(state, torch.get_rng_state())
    for layer, rows in found.table.groupby("layer"):
        row = found.summary[found.summary.layer == layer].iloc[0]
        assert row.typical == pytest.approx(rows.typical.mean())
        assert (row.steepest_token, row.steepest_share) == (rows.steepest_token.iloc[0], rows.steepest_share.iloc[0])


def test_heads_alone_add_up_to_all():
    for kind in KINDS:
        f, x, _ = every_kind(kind)
        if f.output is None:
            alone = [measure.one_head(f, head)(x) for head in range(f.heads)]
            total = sum(alone) if f.joint_norm else torch.cat(alone, -1)
        else:
            total = sum(measure.one_head(f, head)(x) for head in range(f.heads))
        bias = 0 if f.output_bias is None else f.output_bias
        assert torch.allclose(total + bias, f(x), rtol=1e-12, atol=1e-12)


def test_tables_of_heads_and_tokens(bert, finished):
    scan, model = finished, small(bert)
    ids = models.random_windows(model, WORDS, 5, 2)[:1]
    x = models.readings(model, ids)[1].received
    f = model.attention(1)
    heads = scan.heads[scan.heads.layer == 1]
    assert len(heads) == 4
    for row in heads.itertuples():
        assert row.lipschitz == pytest.approx(exact(measure.one_head(f, row.head), x), rel=1e-4)
    tokens, norms = scan.tokens[scan.tokens.layer == 1], lipnb.block_norms(f, x[0]).numpy()
    assert tokens.token.tolist() == model.tokenizer.convert_ids_to_tokens(ids[0].tolist())
    others = norms - np.diag(np.diag(norms))
    assert np.allclose(tokens.moves, np.sqrt((others**2).sum(0)), rtol=1e-5)
    assert np.allclose(tokens.moved, np.sqrt((others**2).sum(1)), rtol=1e-5)
    assert tokens.moves_most.tolist() == others.argmax(0).tolist()
    assert np.isclose((tokens.in_steepest**2).sum(), 1, rtol=1e-4)


def test_tokens_of_a_map_without_closed_form_come_from_its_jacobian(tmp_path, monkeypatch):
    """Families by autodiff had empty tables with other columns."""
    monkeypatch.setattr("lipscan.models.loading.tried", lambda network, architecture, masked: architecture)
    model_types.written(tmp_path / "starcoder2", "starcoder2")
    model = models.load(tmp_path / "starcoder2", dtype=torch.float64)
    reader, options = Reader(model, {5: torch.tensor([[7, 3, 9, 4, 8]])}), {"rtol": 1e-4, "seed": 0}
    x, f = reader.of("text", 5)[1][1].received, model.attention(1)
    blocks = AutodiffJacobian(f, x[0]).dense().unflatten(0, (5, -1)).unflatten(2, (5, -1))
    norms = torch.linalg.matrix_norm(blocks.movedim(1, 2), 2)
    others = norms - norms.diag().diag()
    rows = pd.DataFrame(measure.tokens(reader, 1, 5, object="heads+output", **options))
    assert [*rows] == [name for names in summary.TOKENS for name in names.split(", ")]
    for name, expected in (("own", norms.diag()), ("moves", others.norm(dim=0)), ("moved", others.norm(dim=1))):
        assert np.allclose(rows[name], expected, rtol=1e-4), name
    top = torch.linalg.svd(AutodiffJacobian(f, x[0]).dense())[2][0].view(5, -1).norm(dim=1)
    assert np.allclose(rows.in_steepest, top, atol=1e-2)
    monkeypatch.setattr(measure, "PAIRS", 0)
    alone = pd.DataFrame(measure.tokens(reader, 1, 5, object="heads+output", **options))
    assert [*alone] == [*rows] and alone[[*measure.MAPPED]].isna().all(axis=None)
    assert alone.in_steepest.equals(rows.in_steepest)
    told = next(iter(findings._steepest(findings.steepest(alone))))
    most = alone.loc[alone.in_steepest.idxmax()]
    assert told.where["token"].startswith(f"token {most.place}") and told.value == most.in_steepest**2


class Spelling:
    """A tokenizer of four tokens: GPT's space, SentencePiece's space, the end of a line, and half a character."""

    tokens, texts = ["Ġis", "▁is", "Ċ", "ð"], [" is", "is", "\n", "\ufffd"]

    def convert_ids_to_tokens(self, number):
        return self.tokens[number]

    def decode(self, numbers, clean_up_tokenization_spaces):
        assert not clean_up_tokenization_spaces
        return "".join(self.texts[number] for number in numbers)


def test_tokens_are_shown_as_a_reader_would_write_them(finished):
    model, ids = SimpleNamespace(tokenizer=Spelling()), torch.arange(4)[None]
    words = [measure._word(model, ids, place) for place in range(4)]
    assert [word["token"] for word in words] == Spelling.tokens
    assert [word["written"] for word in words] == ["' is'", "' is'", r"'\n'", "'ð'"]
    table = finished.tokens
    assert table.written.tolist() == [repr(token) for token in table.token]  # words of BERT, through the file


SEVERAL = ("bert", "gpt2", "albert", "dinov2", "t5", "modernbert", "llama", "qwen3")


def test_no_product_of_layers_is_below_the_network_that_it_is_compared_with(tmp_path):
    """With the final norm in one and not in the other it was: here for one that amplifies."""
    ends, above = {}, []
    for name in SEVERAL:
        small_model(tmp_path / name, name, model_types.small(name).to_dict())
        model = models.load(tmp_path / name)
        if name == "qwen3":
            model.module.norm.weight.mul_(100)
        sides = model.architecture.small_sides(model.module.config)
        reader = Reader(model, {6: some_inputs(model.module, model.architecture.reads, 6, seed=1, sides=sides)})
        rows = [row for layer in range(model.layers) for row in measure.layer(reader, layer, 6, seed=0)]
        rows += [row for to in ("layers", "hidden") for row in measure.network(reader, 6, to, seed=0)]
        whole = pd.DataFrame(rows)
        product = whole[whole.part == "layer"].lipschitz.prod()
        compared = whole[whole.composed & (whole.part != "layer")]
        assert len(compared) == 1 and compared.lipschitz.item() <= product * 1.01, name  # each known to 0.1 %
        ends[name] = compared.part.item()
        if whole[whole.part == "hidden"].lipschitz.item() > product:
            above.append(name)
        [told] = [one for one in findings._whole(whole, model.layers) if one.key == "product"]
        assert told.where["end"] == ENDS[ends[name]]
    assert above == ["qwen3"]
    assert [name for name in SEVERAL if ends[name] == "hidden"] == ["bert", "albert"]  # no norm follows


def fails(function, which, error):
    """The function, which raises an error in these of its calls, counted from one."""
    calls = count(1)

    def instead(*given, **options):
        if next(calls) in which:
            raise error
        return function(*given, **options)

    return instead


def test_what_cannot_be_measured_is_named_and_ends_nothing(bert, story, finished, tmp_path, monkeypatch, capsys):
    """Windows, baselines, a head, tokens, whole layers: gaps in every answer, and the same command fills them."""
    command = ["scan", str(bert), "--text", str(story), "--lengths", "5,9", "--dtype", "float64"]
    command += ["--output", str(tmp_path / "out")]
    overflow = FloatingPointError("a Jacobian product is NaN or infinite.")
    with monkeypatch.context() as patched:
        # two windows of a layer and length; two baselines; then heads
        patched.setattr(measure, "with_direction", fails(measure.with_direction, {1, 2, 8}, overflow))
        patched.setattr(measure, "local_lipschitz", fails(measure.local_lipschitz, {8}, overflow))
        patched.setattr(measure, "certify", fails(measure.certify, {2}, MemoryError()))
        patched.setattr(measure, "one_head", fails(measure.one_head, {3}, overflow))
        patched.setattr(measure, "block_norms", fails(measure.block_norms, {1}, NotImplementedError("no rule\nmore")))
        patched.setattr(measure, "_row", fails(measure._row, {1, 3}, overflow))
        assert main(command) == 1
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    out = scanning.load(tmp_path / "out")
    assert sorted(out.gaps.gap) == [
        "baseline (shuffled) of layer 1 at n = 9",
        "certified bound of layer 1 at n = 5, window 0",
        "head 2 of layer 0 at n = 5",
        "layer 0 at n = 5, window 0",
        "layer 0 at n = 5, window 1",
        "layer 1 at n = 9, window 1",
        "the network to its last hidden states at n = 5",
        "tokens of layer 0 at n = 5",
        "whole layer 0 at n = 5",
    ]
    page = report.html(out)
    assert all(gap in said.out and gap in page for gap in out.gaps.gap) and "NotImplementedError: no rule." in page
    rows = [line for line in said.out.splitlines() if line.split()[:2] in (["0", "5"], ["1", "9"])]
    assert rows[0].endswith("gap") and rows[1].endswith("1 of 2")
    whole, there = finished, out.table.lipschitz.notna()
    assert there.tolist() == [False, False, True, True, True, True, True, False]
    assert np.allclose(out.table.lipschitz[there], whole.table.lipschitz[there], rtol=1e-5)
    assert len(out.heads) == 7 and len(out.tokens) == 5 and len(out.whole) == 1
    # the same command measures what is missing, and no more
    again = []
    counted = lambda *given, **options: again.append(given[1:]) or measure.measure(*given, **options)  # noqa: E731
    monkeypatch.setattr("lipscan.scanning.run.measure", counted)
    assert main(command) == 0
    assert again == [(0, 5), (1, 5), (1, 9)] and "Not measured" not in capsys.readouterr().out
    filled = scanning.load(tmp_path / "out")
    assert filled.gaps.empty and not list((tmp_path / "out").glob("*.partial.jsonl"))
    for name in ("table", "heads", "tokens", "whole"):
        pd.testing.assert_frame_equal(getattr(filled, name), getattr(whole, name), rtol=1e-4)
