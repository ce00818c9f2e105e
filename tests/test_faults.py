"""The list of faults stays alive: each one can still be planted, and changes what it is planted in."""

import pytest
from plant import ROOT, faults, planted


def test_each_fault_can_be_planted():
    for fault in faults():
        assert planted(fault, ROOT) != (ROOT / fault["file"]).read_text(encoding="utf-8"), fault
        compile(planted(fault, ROOT), fault["file"], "exec")
        assert fault["tests"], fault
        for name in fault["tests"]:
            file, _, test = name.partition("::")
            text = (ROOT / "tests" / file).read_text(encoding="utf-8")
            assert not test or f"def {test.partition('[')[0]}(" in text, name


def test_a_fault_that_stands_nowhere_is_said(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    with pytest.raises(ValueError, match="2 times, not once"):
        planted({"file": "a.py", "old": "x = 1", "new": "x = 2"}, tmp_path)
    assert len({(fault["file"], fault["old"], fault["new"]) for fault in faults()}) == len(faults()) >= 80
