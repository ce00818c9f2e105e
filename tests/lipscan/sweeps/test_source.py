"""The notebook of a sweep and the package it runs on."""

from pathlib import Path

from lipscan.sweeps import source


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
