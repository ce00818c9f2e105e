"""Pictures of packages, cut and normalised, at every side."""

import pytest
import torch

from lipscan import models


def test_a_picture_is_read_at_every_side():
    pytest.importorskip("PIL"), pytest.importorskip("sklearn")
    for side in range(14, 519, 56):  # a side at which the part to keep came out wider than the picture: 70
        assert models.picture("china", side).shape == (1, 3, side, side)


def test_pictures_are_those_of_packages():
    assert torch.equal(models.picture("china", 28), models.picture("china", (28, 28)))
    tall = models.picture("flower", (56, 28))
    assert tall.shape == (1, 3, 56, 28) and tall.dtype == torch.float32 and 0.5 < tall.std() < 2
    assert all(known.licence and known.title for known in models.PICTURES.values())


def test_pictures_are_cut_from_the_middle_and_normalised(tmp_path):
    from PIL import Image

    wide = Image.new("RGB", (60, 20), (0, 255, 0))
    wide.paste((255, 0, 0), (20, 0, 40, 20))
    wide.save(tmp_path / "wide.png")
    found = models.picture(tmp_path / "wide.png", 10, mean=(0.5, 0.5, 0.5), deviation=(0.5, 0.5, 0.5))
    assert torch.equal(found[0, :, 5, 5], torch.tensor([1.0, -1.0, -1.0])) and found[0, 0].min() > 0.8


def test_a_package_of_pictures_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr("lipscan.models.demo.pictures.find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="matplotlib"):
        models.picture("grace_hopper")
