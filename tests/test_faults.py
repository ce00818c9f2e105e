"""The list of faults stays alive: each one can still be planted. What it names is found again as the code moves on."""

from textwrap import dedent

import pytest
from faults import ROOT, faults, planted


def plant(folder, old, new, place="lipnb/a.py::f", **files):
    """The file in which a fault is planted, and its faulty text, among files of a package named here."""
    for name, text in files.items():
        (folder / "lipnb").mkdir(exist_ok=True)
        (folder / "lipnb" / f"{name}.py").write_text(dedent(text), encoding="utf-8")
    file, text = planted({"place": place, "old": old, "new": new}, folder)
    return file.name, text


def test_each_fault_can_be_planted():
    for fault in faults():
        file, text = planted(fault, ROOT)
        compile(text, file, "exec")
        assert fault["tests"], fault
        for name in fault["tests"]:
            file, _, test = name.partition("::")
            text = (ROOT / "tests" / file).read_text(encoding="utf-8")
            assert not test or f"def {test.partition('[')[0]}(" in text, name
    assert len({(fault["place"], fault["old"], fault["new"]) for fault in faults()}) == len(faults()) >= 80


def test_a_fault_finds_its_place_whatever_its_layout_and_names(tmp_path):
    code = """
        def f(tokens):  # kept
            y = g(
                tokens,  'é',
                (2) * tokens,  # twice
            )
            return y  # kept
        """
    file, text = plant(tmp_path, 'out = g(x, "é", 2 * x)', 'out = g(x, "é", 3 * x)', b=code)
    assert (file, text.split("\n", 2)[2]) == ("b.py", "    y = g(tokens, 'é', 3 * tokens)\n    return y  # kept\n")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("h(x, t)", "1", "0 times, not once"),
        ("g(t, t)", "1", "0 times, not once"),
        ("y", "1", "2 times, not once"),
        ("t * t", "(t)*t", "changes nothing"),
        ("x * x", "x * z", "does not know z"),
    ],
)
def test_a_fault_without_one_place_and_one_meaning_is_refused(tmp_path, old, new, sentence):
    with pytest.raises(ValueError, match=sentence):
        plant(tmp_path, old, new, a="def f(x, y):\n    return x * x + g(x, y) + y\n")
