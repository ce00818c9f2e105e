"""What a scan reads: lengths, layers, windows and pictures, shuffled tokens, and what is too short or too few."""

from io import StringIO

import pytest
import torch
from hub import small_model
from scans import WORDS, scanned, small

from lipnb import local_lipschitz, scan
from lipscan import models, scanning
from lipscan.scanning import inputs, report, terminal
from lipscan.scanning.inputs import Reader, chosen_layers, shuffled


def test_layers_can_be_named():
    asked = ("all", "0,3,5", "0-2,5", [2, 1], 4)
    expected = [[0, 1, 2, 3, 4, 5], [0, 3, 5], [0, 1, 2, 5], [1, 2], [4]]
    assert [chosen_layers(one, 6, "m") for one in asked] == expected


def test_default_lengths_are_those_that_the_text_allows(bert, tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "DEFAULT", (4, 8, 16))
    short = tmp_path / "short.txt"
    short.write_text("the alice rabbit sat by her sister on the bank")
    found = scanned(bert, short, tmp_path, lengths=None, upper=False)
    tokens = len(models.first_tokens(small(bert), short.read_text(), 99))
    assert 16 <= tokens < 32 and found.about["settings"]["lengths"] == [4, 8]
    need = "2 windows of 16 tokens need 28 besides 2 special tokens each"
    sentence = f"Lengths 4,8 only: the text has {tokens} tokens, but {need}."
    out = StringIO()
    terminal.show(found, file=out)
    assert f"  {sentence}" in out.getvalue().splitlines() and sentence in report.html(found)
    monkeypatch.setattr("lipscan.scanning.run.measure", lambda *a, **k: pytest.fail("measured again"))
    assert len(scanned(bert, short, tmp_path, lengths=[4, 8], upper=False).table) == 8  # the same scan, asked otherwise


def test_text_and_layers_are_checked_before_weights_are_read(bert, tmp_path, text, monkeypatch):
    monkeypatch.setattr(models, "load", lambda *a, **k: pytest.fail("loaded"))
    for given, layers, word in (("alise", "all", "'alise'"), (text, "9", "0 to 1"), (text, "3-1", "all")):
        with pytest.raises((FileNotFoundError, ValueError), match=word):
            scanned(bert, given, tmp_path, layers=layers)


def test_images_are_read_from_a_folder(families, tmp_path):
    Image = pytest.importorskip("PIL.Image")
    for i in range(2):
        Image.new("RGB", (30 + i, 20), (255 * i, 100, 0)).save(tmp_path / f"{i}.png")
    found = scanned(families / "vit", tmp_path, tmp_path, lengths=None)
    assert found.table.passed.all() and set(found.table.length) == {17}


def test_a_row_is_measured_again_from_its_folder_and_its_model_alone(bert, finished, scan_folder):
    scan, model = scanning.load(scan_folder), models.load(bert, dtype=torch.float64)
    for row in scan.table.itertuples():
        x = model.activations(scan.token_ids(row.length), row.layer)[row.window]
        assert local_lipschitz(model.attention(row.layer), x).value.item() == pytest.approx(row.lipschitz, rel=1e-5)
    with pytest.raises(ValueError, match="5, 9 tokens"):
        scan.token_ids(7)


def test_baselines_are_what_they_say(bert, finished):
    scan, model = finished, small(bert)
    ids = models.random_windows(model, WORDS, 9, 2)[:1]
    mixed = shuffled(ids, (1, 1), 0)
    assert not torch.equal(mixed, ids)
    row = scan.table[(scan.table.length == 9) & (scan.table.layer == 1) & (scan.table.window == 0)].iloc[0]
    x = models.readings(model, mixed)[1].received
    assert row.shuffled == pytest.approx(local_lipschitz(model.attention(1), x).value.item(), rel=1e-4)
    twin = models.random_twin(model, 0)
    x = models.readings(twin, ids)[1].received
    assert row.random == pytest.approx(local_lipschitz(twin.attention(1), x).value.item(), rel=1e-4)
    state = torch.get_rng_state()
    again = models.random_twin(model, 0)
    assert torch.equal(state, torch.get_rng_state()) and torch.equal(twin.attention(0).query, again.attention(0).query)
    assert Reader(twin, {}).baselines == ("shuffled",)


def test_special_tokens_do_not_move():
    for seed in range(4):
        mixed = shuffled(torch.arange(7)[None], (1, 2), seed)[0].tolist()
        assert (mixed[0], mixed[5:]) == (0, [5, 6]) and sorted(mixed) == list(range(7))


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


@pytest.fixture(scope="module")
def dino(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vision") / "dino"
    small_model(folder, "dinov2", dict(SIZES, image_size=28, patch_size=4))
    return models.load(folder, dtype=torch.float64)


def test_lengths_of_a_model_that_interpolates_are_squares_and_one_token(dino):
    assert inputs.sides(dino, [50, 5], ()) == {5: (8, 8), 50: (28, 28)}
    # the largest within; none twice, none beyond
    assert inputs.sides(dino, None, (11, 12, 10**6)) == {10: (12, 12), 50: (28, 28)}
    assert inputs.sides(dino, None, (1,)) == {2: (4, 4)}
    for n in (1, 6, 65):
        with pytest.raises(ValueError, match="at most 50"):
            inputs.sides(dino, [n], (32, 128))


def test_the_same_pictures_are_scanned_at_each_length(dino, tmp_path):
    pytest.importorskip("PIL"), pytest.importorskip("sklearn")
    options = {"output": tmp_path / "out", "close": False, "upper": False, "progress": False}
    scan(dino, "pictures", lengths=[26], **options)
    found = scan(dino, "pictures", lengths=[5], **options)  # lengthened
    with pytest.raises(ValueError, match="another scan .text"):
        scan(dino, "flower", lengths=[5], windows=1, **options)
    assert found.table.passed.all() and found.table.converged.all() and set(found.table.length) == {5, 26}
    assert found.about["settings"]["text"] == "grace_hopper, china"
    page = report.html(found)
    assert "No baseline of shuffled tokens: this model reads images" in page and "over shuffled" not in page
    assert "random weights of its shape" in page and "the same tokens in random order" not in page
    again = scan(dino, "china", lengths=[26], windows=1, output=tmp_path / "one", close=False, progress=False).table
    second = found.table[(found.table.length == 26) & (found.table.window == 1)]
    assert again.lipschitz.to_numpy() == pytest.approx(second.lipschitz.to_numpy(), rel=1e-3)


def test_pictures_of_other_channels_are_random_alone(dino, tmp_path):
    for source in ("flower", str(tmp_path)):
        with pytest.raises(ValueError, match="--windows 1"):
            inputs.windows_of_images(dino, source, {5: (8, 8)}, 2, 0)
    small_model(tmp_path / "grey", "dinov2", dict(SIZES, image_size=28, patch_size=4, num_channels=1))
    grey = models.load(tmp_path / "grey")
    assert inputs.windows_of_images(grey, "random", {5: (8, 8)}, 2, 0)[2][5].shape == (2, 1, 8, 8)
    with pytest.raises(ValueError, match="1 channels"):
        inputs.windows_of_images(grey, "flower", {5: (8, 8)}, 1, 0)
