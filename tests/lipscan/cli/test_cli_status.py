"""`lipnb status` of a scan at work, and of one that is damaged."""

from types import SimpleNamespace

import pytest
from scans import scanned

from lipscan import cli
from lipscan.cli import status
from lipscan.scanning import measure, run
from lipscan.scanning.folder import state


def test_status_of_a_scan_at_work_does_not_send_for_its_command(bert, tmp_path, story, monkeypatch):
    said = []
    monkeypatch.setattr(run, "digest", lambda texts: pytest.fail("ended"))

    def looked(*given, **options):
        said.append(state(tmp_path / "out"))
        return measure.measure(*given, **options)

    monkeypatch.setattr(run, "measure", looked)
    with pytest.raises(pytest.fail.Exception):
        scanned(bert, story, tmp_path, upper=False)
    assert said[1] == "a scan of bert on story.txt at n = 4, 9 that is running: it keeps 1 of 4 layers and lengths."
    assert "not ended: it keeps 4 of 4 layers and lengths. The same command goes on." in state(tmp_path / "out")


@pytest.mark.parametrize("left", ["{}", "[]", '{"settings": {', '{"finished": "2026-01-01"}'])
def test_status_of_a_damaged_scan_is_the_scans_own_sentence(copied, said, left):
    """It was taken for a sweep, or sent for a command that refuses."""
    (copied / "scan.json").write_text(left)
    code, _, error = said(cli, "status", str(copied))
    assert code == 1 and "the tables in the folder 'out' were changed or damaged" in error


@pytest.mark.parametrize(("alive", "word"), [(True, "run by"), (False, "killed"), (None, "cannot see")])
def test_of_a_run_on_another_machine_it_is_not_said_that_it_ended(alive, word):
    begun = {"user": "ann", "host": "far", "process": 7, "since": 0.0, "where": "two workers"}
    told = status._by_whom(SimpleNamespace(run=begun, alive=alive))
    assert word in told and "ann on far (process 7)" in told
    assert sum(other in told for other in ("run by", "killed", "cannot see")) == 1


def test_status_of_a_comparison_of_two_scans(tmp_path, said):
    (tmp_path / "against.csv").touch()
    code, out, _ = said(cli, "status", str(tmp_path))
    assert code == 0 and "the comparison of two scans; report.html shows it" in out
