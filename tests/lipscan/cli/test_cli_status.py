"""`lipnb status` of a scan at work."""

import json
import shutil

import pytest
from scans import scanned

from lipscan.cli import main
from lipscan.scanning import measure, run
from lipscan.scanning.folder import state


def test_status_of_a_scan_at_work_does_not_send_for_its_command(bert, tmp_path, text, monkeypatch):
    said = []
    monkeypatch.setattr(run, "digest", lambda texts: pytest.fail("ended"))

    def looked(*given, **options):
        said.append(state(tmp_path / "out"))
        return measure.measure(*given, **options)

    monkeypatch.setattr(run, "measure", looked)
    with pytest.raises(pytest.fail.Exception):
        scanned(bert, text, tmp_path, upper=False)
    assert said[1] == "a scan of bert on story.txt at n = 4, 9 that is running: it keeps 1 of 4 layers and lengths."
    assert state(tmp_path / "out").endswith(
        "that has not ended: it keeps 4 of 4 layers and lengths. The same command goes on."
    )


@pytest.mark.parametrize("name", ["brief", "found"])
@pytest.mark.parametrize("left", ["{}", "[]", '{"settings": {', '{"finished": "2026-01-01"}'])
def test_status_of_a_damaged_scan_is_the_scans_own_sentence(request, tmp_path, capsys, name, left):
    """It was taken for a sweep, or sent for a command that refuses."""
    given = request.getfixturevalue(name)
    folder = shutil.copytree(given if name == "brief" else given[1], tmp_path / "out")
    (folder / "scan.json").write_text(left)
    assert main(["status", str(folder)]) == 1
    assert "the tables in the folder 'out' were changed or damaged since the scan wrote them" in capsys.readouterr().err


def test_status_of_a_scan_of_an_older_edition_without_its_settings(brief, tmp_path, capsys):
    folder = shutil.copytree(brief, tmp_path / "out")
    (folder / "SHA256SUMS").write_text("")
    for left in (json.dumps({}), None):
        (folder / "scan.json").write_text(left) if left else (folder / "scan.json").unlink()
        assert main(["status", str(folder)]) == 1 and "edition 0.3 of lipnb" in capsys.readouterr().err
