"""The list of faults stays alive: each one can still be planted. What it names is found again as the code moves on."""

import ast
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


def test_layout_and_comments_count_for_nothing_and_the_rest_of_the_file_stays(tmp_path):
    code = """
        def f(x):  # kept
            y = g(
                x,  'é',
                (2) * x,  # twice
            )
            return y  # kept
        def g(x, *y): return x  # kept
        """
    file, text = plant(tmp_path, 'y = g(x, "é", 2 * x)', 'y = g(x, "é", 3 * x)\nh = 1', a=code)
    assert text == dedent("""
        def f(x):  # kept
            y = g(x, 'é', 3 * x)
            h = 1
            return y  # kept
        def g(x, *y): return x  # kept
        """)


def test_an_expression_keeps_its_place_among_others(tmp_path):
    _, text = plant(tmp_path, "a * b", "a + b", a="def f(a, b):\n    return -a * b**2, c * (a * b).d\n")
    assert ast.unparse(ast.parse(text).body[0].body[0]) == "return (-a * b ** 2, c * (a + b).d)"


def test_an_elif_stays_under_its_if(tmp_path):
    code = "def f(a, b):\n    if a:\n        b = 1\n    elif b:\n        b = 2\n    return b\n"
    _, text = plant(tmp_path, "if b: b = 2", "a = 1\nb = 3", a=code)
    assert text == code.replace("elif b:\n        b = 2", "else:\n        a = 1\n        b = 3")


def test_renamed_local_variables_are_found_and_carried_over(tmp_path):
    code = "def f(tokens, rate):\n    both = [rate * one for one in tokens]\n    return both\n"
    _, text = plant(tmp_path, "[t * each for each in x]", "[each - t for each in reversed(x)]", a=code)
    assert "both = ([one - rate for one in reversed(tokens)])" in text


@pytest.mark.parametrize("old", ["g(t, t)", "g(y, t)", "h(x, t)", "g(x, t, key=1)", "self.x(x, y)"])
def test_a_renaming_is_one_to_one_and_of_local_variables_alone(tmp_path, old):
    with pytest.raises(ValueError, match="0 times, not once"):
        plant(tmp_path, old, "1", a="def f(x, y):\n    self.z(x, y)\n    return g(x, y, k=1) + g(x, y)\n")


def test_a_function_that_moved_is_found(tmp_path):
    files = {"a": "def other(): return 1", "b": "class A:\n    def f(self): return 1\ndef f(): return 1"}
    assert plant(tmp_path, "1", "2", place="lipnb/a.py::A.f", **files)[0] == "b.py"
    assert plant(tmp_path, "1", "2", place="lipnb/gone.py::f", **files) == (
        "b.py",
        "class A:\n    def f(self): return 1\ndef f(): return (2)",
    )


def test_a_function_that_was_renamed_or_split_is_found_in_its_file(tmp_path):
    files = {"a": "def new(x): return 1 + x\ndef other(): return 1", "b": "def g(x): return 1 + x"}
    for name in ("old", "other"):
        found = plant(tmp_path, "1 + x", "2", place=f"lipnb/a.py::{name}", **files)
        assert found == ("a.py", "def new(x): return (2)\ndef other(): return 1")
    with pytest.raises(ValueError, match="2 times, not once"):
        plant(tmp_path, "1", "2", **files)


def test_a_constant_is_a_place(tmp_path):
    assert plant(tmp_path, "A = 1", "A = 2", place="lipnb/a.py::A", b="B = 1\nA = 1") == ("b.py", "B = 1\nA = 2")


def test_a_place_in_two_files_is_refused_and_both_are_named(tmp_path):
    with pytest.raises(ValueError, match="2 times, not once. lipnb/b.py, line 1; lipnb/c.py, line 2"):
        plant(tmp_path, "1", "2", b="def f(): return 1", c="\ndef f(): return 1")


def test_what_stands_twice_or_nowhere_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds 'x = 1' 2 times, not once. lipnb/a.py, line 2; lipnb/a.py, line 3"):
        plant(tmp_path, "x = 1", "x = 2", a="def f():\n    x = 1\n    x = 1\n")
    with pytest.raises(ValueError, match="holds 'x = 3' 0 times"):
        plant(tmp_path, "x = 3", "x = 2")
    with pytest.raises(ValueError, match="lipnb/gone.py::gone holds 'x = 1' 0 times"):
        plant(tmp_path, "x = 1", "x = 2", place="lipnb/gone.py::gone")


def test_a_fault_that_changes_nothing_or_names_what_is_unknown_is_refused(tmp_path):
    code = "def f(x, y):\n    return x * x + y"
    with pytest.raises(ValueError, match="changes nothing"):
        plant(tmp_path, "t * t", "(x  *x)", a=code)
    with pytest.raises(ValueError, match="does not know z of"):
        plant(tmp_path, "x * x", "x * z", a=code)
