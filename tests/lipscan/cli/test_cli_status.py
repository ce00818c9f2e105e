"""`lipnb status` of a scan at work."""

import pytest
from scans import scanned

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
