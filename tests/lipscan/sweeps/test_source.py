"""The notebook of a sweep and the package it runs on."""

from pathlib import Path

import pytest
from sweeping import NOTEBOOK

from lipscan import sweeps
from lipscan.sweeps import source


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("gone.py", None, "there is no notebook .*gone.py"),
        ("text.txt", "x", "text.txt is no notebook"),
        ("torn.ipynb", '{"cells": [', "torn.ipynb is no notebook"),
        ("prose.py", "# %% [markdown]\n# x", "no code cell"),
        ("bare.py", "# %%\nn = 1", "no parameter 'n': it has no cell tagged 'parameters'"),
        ("lacks.py", NOTEBOOK.replace("n, ", ""), "lacks.py has no parameter 'n': it has slope, who, words, m"),
        ("other.py", NOTEBOOK, "there is no kernel 'fortran' here .there are: .*python3"),
    ],
)
def test_a_notebook_that_is_none_is_answered_before_anything_runs(place, name, content, sentence):
    if content is not None:
        Path(name).write_text(content)
    kernel = "kernel: fortran" if "fortran" in sentence else ""
    Path("spec.yml").write_text(f"notebook: {name}\ngrid: {{n: [1]}}\n{kernel}")
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        sweeps.run("spec.yml")
    assert not (place / "sweeps").exists()
    with pytest.raises(FileNotFoundError, match="there is no file nowhere.yml"):
        sweeps.run("nowhere.yml")


def test_the_package_hash_sees_a_changed_file(tmp_path, monkeypatch):
    (tmp_path / "lipnb").mkdir()
    (tmp_path / "lipnb" / "__init__.py").write_text("")
    monkeypatch.setattr(source.lipnb, "__file__", str(tmp_path / "lipnb" / "__init__.py"))
    monkeypatch.setattr(source, "checkout", source.checkout.__wrapped__)  # which remembers its answer
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'another'")
    plain = source.package.__wrapped__()
    assert plain == source.lipnb.__version__
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'lipnb'")
    hashed = source.package.__wrapped__()
    found = {plain, hashed}
    for house in ("lipnb", "lipscan"):
        (tmp_path / house).mkdir(exist_ok=True)
        (tmp_path / house / "new.py").write_text("x = 1")
        found.add(source.package.__wrapped__())
    assert plain in hashed and len(found) == 4


def test_examples_can_be_swept():
    for path in sorted((Path(__file__).parents[3] / "examples").glob("*.py")):
        known = source.read(path)
        source.check(known, [dict.fromkeys(known.defaults)])
