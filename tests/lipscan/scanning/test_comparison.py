"""Two scans compared, or refused in words."""

import re
import shutil
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lipscan import scanning
from lipscan.cli import main
from lipscan.recording.table import FLOAT_FORMAT, outward
from lipscan.scanning import comparison, figures, report, run, terminal


def test_scans_are_compared(bert, story, tmp_path, capsys, monkeypatch):
    """A layer with twice its values is higher, the others are not."""
    from safetensors.torch import load_file, save_file

    after = shutil.copytree(bert, tmp_path / "after")
    tensors = load_file(after / "model.safetensors")
    name = next(name for name in tensors if "layer.1.attention.output.dense.weight" in name)
    save_file({**tensors, name: 2 * tensors[name]}, after / "model.safetensors", metadata={"format": "pt"})
    command = ["scan", str(bert), "--text", str(story), "--lengths", "4,6", "--no-upper", "--no-close"]
    command += ["--output", str(tmp_path / "first"), "--dtype", "float64", "--against", str(after)]
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main(command) == 0
    assert not list((tmp_path / "here").iterdir())  # all lies where --output says
    second = tmp_path / "first" / "scan-after"
    said = capsys.readouterr().out
    assert "Farthest: layer 1 at length" in said and (higher := "may have left open: 2 of 4 layers") in said
    page = (tmp_path / "first" / "report.html").read_text(encoding="utf-8")
    section = page[page.index('id="against"') : page.index("<h2>Every layer")]
    assert section.count("<svg") == 1 and section.count('<td class="text">higher</td>') == 2
    assert section.count('<td class="main">2</td>') == 2 and higher in section
    assert "<title>small against after</title>".replace("small", bert.name) in page
    assert page.index("Farthest: layer 1") < page.index(higher) < page.index('class="tiles"')
    assert said.startswith(f"Below: {bert}. Its comparison with {after} comes last.\n")
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
    other.about["settings"]["seed"] = 5
    with pytest.raises(ValueError, match="cannot be compared: seed is 0 in the first and 5 in the second"):
        scanning.compare(before, other)
    with pytest.raises(ValueError, match=r"scans are compared, got 'first': lipscan.scanning.load\(folder\)"):
        before.report(tmp_path / "both.html", against="first")
    assert 'id="against"' not in report.html(before)
    other.about["settings"]["seed"] = 0
    assert 'id="against"' in before.report(tmp_path / "both.html", against=other).read_text(encoding="utf-8")
    kept = (tmp_path / "first" / "report.html").read_bytes()
    assert main(["scan", str(tmp_path / "first"), "--against", str(second)]) == 0
    assert higher in capsys.readouterr().out  # folders of scans, without the models, which stay as they are
    assert (tmp_path / "first" / "report.html").read_bytes() == kept
    made = tmp_path / "here" / "first-against-scan-after"
    assert {path.name for path in made.iterdir()} == {"against.csv", "report.html"}
    given = [*command[2:4], "--no-upper", "--no-close", "--dtype", "float64", "--output", str(tmp_path / "more")]
    assert main(["scan", str(bert), *given, "--lengths", "4,6,8", "--against", str(second)]) == 0
    told = "after has no lengths 8: measured, but not compared; --lengths 4,6 measures what is compared.\n"
    assert told.strip() in capsys.readouterr().err
    # all was measured, and then there was nothing to compare
    monkeypatch.setattr(run, "measure", lambda *given, **options: pytest.fail("measured"))
    given[-1] = str(tmp_path / "none")
    assert main(["scan", str(bert), *given, "--lengths", "8", "--against", str(second)]) == 1
    told = "these scans cannot be compared: lengths are 8 in the first and 4,6 in the second, none in both; scan both "
    assert told in capsys.readouterr().err and not (tmp_path / "none").exists()
    with pytest.raises(ValueError, match="layers are 0,1 in the first and 2 in the second, none in both"):
        comparison.check_common(*({"lengths": [4], "layers_scanned": layers} for layers in ([0, 1], [2])))
    third = tmp_path / "third"
    command = ["scan", str(tmp_path / "first"), "--against", str(second), "--output", str(third)]
    for given in (["--lengths", "4"], ["--text", str(story)], ["--no-upper"], ["--again"], ["--dry-run"]):
        assert main([*command, *given]) == 2
        assert "are of a scan to be made: leave them out, or name the model (" in capsys.readouterr().err
    assert main(command) == 0
    assert {path.name for path in third.iterdir()} == {"against.csv", "report.html"}


SETTINGS = {"text": "a.txt", "text_sha256": "0123456789ab", "special": [[], []], "windows": 2, "object": "heads"}
SETTINGS |= {"seed": 0, "masked": False}


def test_scans_that_cannot_be_compared_are_told_apart_in_words():
    for changed, said in [
        ({"text": "b.txt", "text_sha256": "ba9876543210"}, "the first read a.txt (SHA-256 01234567), the second b.txt"),
        ({"special": [["[CLS]"], ["[SEP]"]]}, "are none in the first and [CLS] ... [SEP] in the second; scan both"),
        ({"windows": 3}, "the number of windows is 2 in the first and 3 in the second; scan both with one --windows"),
        ({"object": "block"}, "what is measured is heads in the first and block in the second; scan both with one --o"),
        ({"masked": True}, "only earlier tokens are seen (a causal mask): no in the first, yes in the second"),
    ]:
        before, after = (SimpleNamespace(about={"settings": one}) for one in (SETTINGS, SETTINGS | changed))
        with pytest.raises(ValueError) as refused:
            scanning.compare(before, after)
        assert said in str(refused.value) and not re.search(r"\[\[|'|True|_", str(refused.value))


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
