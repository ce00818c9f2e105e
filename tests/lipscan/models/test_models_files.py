"""Where files of models lie: links that are followed, a folder too high, a wheel that is missing."""

import shutil

import pytest

from lipscan import models
from lipscan.models import files
from lipscan.scanning import scan


def test_the_links_of_the_hubs_cache_are_followed(folder, tmp_path):
    home = tmp_path / "models--a--b"
    (home / "blobs").mkdir(parents=True)
    snapshot = home / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    for file in folder.iterdir():
        shutil.copy(file, home / "blobs" / file.name)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    assert models.load(snapshot).layers == 2 and files.holds_model(snapshot)


def test_a_folder_one_level_up_names_the_one_that_is_meant(bert, tmp_path):
    (tmp_path / "1_Pooling").mkdir()
    for place in ("0_Transformer", "checkpoint-900", "checkpoint-1000"):
        shutil.rmtree(tmp_path / "0_Transformer", ignore_errors=True)
        shutil.copytree(bert, tmp_path / place)
        with pytest.raises(FileNotFoundError, match=f"its folder {place}, which does"):
            models.load(tmp_path)
    with pytest.raises(FileNotFoundError, match="its folder checkpoint-1000, which does"):
        scan(tmp_path, progress=False)
