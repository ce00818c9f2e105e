"""What a scan of a vision model reads: its own size, or for DINOv2 squares of several lengths; pictures by name."""

import pytest
import torch
from test_families import SIZES, written

from lipnb import scan
from lipscan import models
from lipscan.scanning import inputs, report


@pytest.fixture(scope="module")
def dino(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vision") / "dino"
    written(folder, "Dinov2", dict(SIZES, image_size=28, patch_size=4))
    return models.load(folder, dtype=torch.float64)


def test_lengths_of_a_model_that_interpolates_are_squares_and_one_token(dino):
    assert inputs.sides(dino, [50, 5], ()) == {5: (8, 8), 50: (28, 28)}
    assert inputs.sides(dino, None, (11, 12, 10**6)) == {
        10: (12, 12),
        50: (28, 28),
    }  # the largest within; none twice, none beyond
    assert inputs.sides(dino, None, (1,)) == {2: (4, 4)}
    for n in (1, 6, 65):
        with pytest.raises(ValueError, match=f"not {n} tokens?; take lengths such as 26,50, at most 50"):
            inputs.sides(dino, [n], (32, 128))


def test_the_same_pictures_are_scanned_at_each_length(dino, tmp_path):
    pytest.importorskip("PIL"), pytest.importorskip("sklearn")
    found = scan(dino, "pictures", lengths=[5, 26], output=tmp_path / "out", close=False, upper=False, progress=False)
    assert found.table.passed.all() and found.table.converged.all() and set(found.table.length) == {5, 26}
    assert found.about["settings"]["text"] == "grace_hopper, china"
    page = report.html(found)
    assert "No baseline of shuffled tokens: this model reads images" in page and "over shuffled" not in page
    assert "random weights of the same shape" in page and "the same tokens in random order" not in page
    again = scan(dino, "china", lengths=[26], windows=1, output=tmp_path / "one", close=False, progress=False).table
    second = found.table[(found.table.length == 26) & (found.table.window == 1)]
    assert again.lipschitz.to_numpy() == pytest.approx(second.lipschitz.to_numpy(), rel=1e-3)


def test_too_few_images_and_other_channels_are_answered(dino, tmp_path):
    for source in ("flower", str(tmp_path), str(tmp_path / "none")):
        with pytest.raises(
            ValueError, match="(holds fewer than 2|is none, and no folder) of them.*--windows 1 for one image"
        ):
            inputs.windows_of_images(dino, source, {5: (8, 8)}, 2, 0)
    written(tmp_path / "grey", "Dinov2", dict(SIZES, image_size=28, patch_size=4, num_channels=1))
    grey = models.load(tmp_path / "grey")
    assert inputs.windows_of_images(grey, "random", {5: (8, 8)}, 2, 0)[2][5].shape == (2, 1, 8, 8)
    with pytest.raises(ValueError, match="images of 1 channels, not of three: use 'random'"):
        inputs.windows_of_images(grey, "flower", {5: (8, 8)}, 1, 0)


def test_a_picture_is_read_at_every_side():
    pytest.importorskip("PIL"), pytest.importorskip("sklearn")
    for side in range(14, 519, 56):  # a side at which the part to keep came out wider than the picture: 70
        assert models.picture("china", side).shape == (1, 3, side, side)
