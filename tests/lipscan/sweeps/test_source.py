"""The notebook of a sweep and the package it runs on."""

from pathlib import Path

import pytest

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


def test_another_kernel_is_another_source_and_a_text_for_a_truth_is_found_in_any_point(tmp_path, monkeypatch):
    path = tmp_path / "x.py"
    path.write_text('# %% tags=["parameters"]\nmasked = True\n# %%\n1\n')
    specs = dict.fromkeys(("python3", "other"), "")
    monkeypatch.setattr("jupyter_client.kernelspec.KernelSpecManager.find_kernel_specs", lambda self: specs)
    assert source.read(path).hash == source.read(path, "python3").hash != source.read(path, "other").hash
    with pytest.raises(ValueError, match="'masked' is true or false there"):
        source.check(source.read(path), [{"masked": True}, {"masked": "false"}])
