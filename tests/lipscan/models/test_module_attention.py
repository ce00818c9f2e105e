"""Layers by their own modules."""

import model_types

from lipnb import scan


def test_a_layer_of_own_modules_is_scanned_to_its_report(tmp_path):
    model_types.written(tmp_path / "it", "afmoe")
    options = {"tokenizer": tmp_path / "it" / "tokenizer", "lengths": [5, 9], "progress": False}
    text = " ".join(model_types.WORDS * 4)
    found = scan(tmp_path / "it", text + "\n", output=tmp_path / "out", **options)
    assert found.table.passed.all() and {*found.table.route} == {"autodiff"}
    assert found.heads.empty and {*found.tokens.layer} == {0, 1}
    assert len(found.whole) >= 3 and found.report(tmp_path).is_file()
    assert (tmp_path / "out" / "heads.csv").read_text().startswith("layer,")
    assert scan(tmp_path / "it", text + "\n", output=tmp_path / "out", **options).table.equals(found.table)
    weights = found.about["settings"]["weights_sha256"]
    model_types.written(tmp_path / "it", "afmoe", seed=2)
    other = scan(tmp_path / "it", text + "\n", output=tmp_path / "other", **options)
    assert other.about["settings"]["weights_sha256"] != weights
