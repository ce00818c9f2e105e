"""Two scans compared, or refused in words."""

import shutil
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file, save_file

from lipscan import cli, scanning
from lipscan.cli import main
from lipscan.recording.table import FLOAT_FORMAT, outward
from lipscan.scanning import comparison, figures, report, run, terminal


@pytest.fixture(scope="module")
def after(bert, tmp_path_factory):
    """A BERT whose second layer has twice its values."""
    after = shutil.copytree(bert, tmp_path_factory.mktemp("changed") / "after")
    tensors = load_file(after / "model.safetensors")
    name = next(name for name in tensors if "layer.1.attention.output.dense.weight" in name)
    save_file({**tensors, name: 2 * tensors[name]}, after / "model.safetensors", metadata={"format": "pt"})
    return after


def test_scans_are_compared(bert, after, story, tmp_path, capsys, monkeypatch):
    options = ["--text", str(story), "--no-upper", "--no-close", "--dtype", "float64"]
    command = ["scan", str(bert), *options, "--lengths", "4,6"]
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main([*command, "--output", str(tmp_path / "first"), "--against", str(after)]) == 0
    assert not list((tmp_path / "here").iterdir())  # all lies where --output says
    second, said = tmp_path / "first" / "scan-after", capsys.readouterr().out
    assert "Farthest: layer 1 at length" in said and (higher := "may have left open: 2 of 4 layers") in said
    page = (tmp_path / "first" / "report.html").read_text(encoding="utf-8")
    section = page[page.index('id="against"') : page.index("<h2>Every layer")]
    assert section.count("<svg") == 1 and section.count('<td class="text">higher</td>') == 2
    assert section.count('<td class="main">2</td>') == 2 and higher in section
    assert page.index("Farthest: layer 1") < page.index(higher) < page.index('class="tiles"')
    assert 'href="#against"' in page and str(tmp_path) not in page
    table = pd.read_csv(tmp_path / "first" / "against.csv", keep_default_na=False)
    assert table.differs.tolist() == ["", "", "higher", "higher"]
    assert table.ratio.tolist() == pytest.approx([1, 1, 2, 2], rel=1e-4)
    before, other = (scanning.load(folder) for folder in (tmp_path / "first", second))
    assert scanning.compare(other, before).differs.tolist() == ["", "", "lower", "lower"]
    assert comparison.unpaired(before, other) == []
    fewer = SimpleNamespace(summary=other.summary[other.summary.layer == 0])
    for key, scans in (("unpaired_first", (before, fewer)), ("unpaired_second", (fewer, before))):
        [told] = comparison.unpaired(*scans)
        assert (told.key, told.value, told.where) == (key, 1, {"layers": 2})
    with pytest.raises(ValueError, match="got 'first'"):
        before.report(tmp_path / "both.html", against="first")
    assert 'id="against"' not in report.html(before)
    assert 'id="against"' in before.report(tmp_path / "both.html", against=other).read_text(encoding="utf-8")
    # folders of scans, without the models, which stay as they are
    kept = (tmp_path / "first" / "report.html").read_bytes()
    for where, words in (("first-against-scan-after", []), ("third", ["--output", "third"])):
        assert main(["scan", str(tmp_path / "first"), "--against", str(second), *words]) == 0
        assert higher in capsys.readouterr().out and (tmp_path / "first" / "report.html").read_bytes() == kept
        assert {path.name for path in (tmp_path / "here" / where).iterdir()} == {"against.csv", "report.html"}
    for words in (["--lengths", "4"], ["--text", str(story)], ["--no-upper"], ["--again"], ["--dry-run"]):
        assert main(["scan", str(tmp_path / "first"), "--against", str(second), *words]) == 2
        assert "of a new scan" in capsys.readouterr().err
    # lengths that the other scan lacks; where there is none in common nothing is measured
    assert main([*command, "--lengths", "4,6,8", "--output", "more", "--against", str(second)]) == 0
    assert "--lengths 4,6 measures what is compared" in capsys.readouterr().err
    monkeypatch.setattr(run, "measure", lambda *given, **options: pytest.fail("measured"))
    assert main([*command, "--lengths", "8", "--output", "none", "--against", str(second)]) == 1
    assert "none in both" in capsys.readouterr().err and not (tmp_path / "here" / "none").exists()


def test_a_difference_is_told_where_every_window_shows_it_beyond_the_solvers_error():
    """Constants known to one percent: of two windows both differ, one each way, or neither by enough."""
    alike = [((0.9, 5), ""), ((1.005, 1.005), ""), ((0.995, 0.995), "")]
    for factors, differs in [((2, 3), "higher"), ((0.5, 0.3), "lower"), *alike]:

        def scan(constants):
            table = pd.DataFrame({"layer": 0, "length": 8, "window": [0, 1], "passed": True, "relative": 1.0})
            table = table.assign(lipschitz=constants, probable=[1.01 * one for one in constants])
            return SimpleNamespace(table=table, about={"settings": dict.fromkeys(comparison.SAME)})

        row = scanning.compare(scan((1.0, 7.0)), scan((factors[0], 7.0 * factors[1]))).iloc[0]
        assert row.differs == differs
        said = [one.key for one in comparison.compared(pd.DataFrame([row]))]
        assert said == (["farthest", differs] if differs else ["same"])
        assert row.ratio == pytest.approx(sum(factors) / 2) and row.error == pytest.approx(0.01)


def stored(constants, over=0.0):
    """Scans of one window for each constant, each a layer, as their tables are written: to six digits."""
    rows = {"layer": range(len(constants)), "length": 8, "window": 0, "passed": True, "relative": 1.0}
    table = pd.DataFrame(rows).assign(
        lipschitz=[float(FLOAT_FORMAT % one) for one in constants],
        probable=[outward(one * (1 + over), up=True) for one in constants],
    )
    return SimpleNamespace(table=table, about={"settings": dict.fromkeys(comparison.SAME)})


def test_no_difference_is_told_that_the_rounding_of_stored_numbers_may_have_made():
    """Constants were taken to be exact to 1e-6, and are stored to six digits: off by up to 5e-6."""
    generator = np.random.default_rng(0)
    before = 10 ** generator.uniform(-3, 5, 300)
    after = before * (1 + generator.uniform(-3e-5, 3e-5, len(before)))
    after[:2], before[:2] = (1.0000051, 1.0000149), (1.0000049, 1.0000151)
    told = scanning.compare(stored(before), stored(after)).differs.to_numpy()
    assert (after > before)[told == "higher"].all() and (after < before)[told == "lower"].all()
    assert (told == "higher").mean() > 0.1 < (told == "lower").mean()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("before", "after", "keys"),
    [
        ((0.0, 2.0), (3.0, 4.0), ["farthest_zero", "higher"]),
        ((3.0, 2.0), (0.0, 4.0), ["farthest_zero", "higher", "lower"]),
        ((0.0, 2.0), (0.0, 4.0), ["farthest", "higher", "others"]),
        ((0.0, 0.0), (0.0, 0.0), ["same"]),
    ],
)
def test_a_constant_of_zero_has_no_ratio(before, after, keys):
    """It was infinite, or not a number, and warned."""
    table = scanning.compare(stored(before), stored(after))
    assert np.isfinite(table.ratio).tolist() == [one > 0 for one in before]
    said = comparison.compared(table)
    assert [one.key for one in said] == keys and not any(word in str(said[0]) for word in ("inf", "nan"))
    out = StringIO()
    terminal.show_comparison(table, "a", "b", file=out)
    assert "inf" not in out.getvalue() and "nan" not in out.getvalue()
    figures.in_report(figures.comparison, table, ("a", "b"))


def test_the_farthest_layer_is_the_farthest_either_way():
    rows = {"layer": [0, 1, 2], "length": 8, "before": 1.0, "after": [3.0, 0.1, 1.0], "ratio": [3.0, 0.1, 1.0]}
    told = comparison.compared(pd.DataFrame(rows | {"differs": ["higher", "lower", ""]}))
    assert [(one.key, one.value) for one in told] == [("farthest", 0.1), ("higher", 1), ("lower", 1), ("others", 1)]
    assert told[0].where["layer"] == 1


def test_a_report_without_an_earlier_comparison_says_so(copied, said):
    for there in (False, True):
        if there:
            (copied / "against.csv").touch()
        code, out, _ = said(cli, "scan", str(copied))
        assert code == 0 and ("of an earlier comparison; --against OTHER" in out) == there
