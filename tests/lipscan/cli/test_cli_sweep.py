"""`lipnb sweep`: dry runs and its help; what it refuses is in test_refusals."""

from sweeping import written

from lipscan import cli
from lipscan.sweeps import point, spec


def test_the_command_shows_a_dry_run_and_writes_nothing(place, said):
    code, out, _ = said(cli, "sweep", written("grid: {n: [1, 2, 3]}"), "--dry-run", "--limit", "2")
    lines = out.splitlines()
    assert code == 0 and [line[:4] for line in lines] == ["run ", "run ", "    ", "3 po"] and "n=3  [new]" in lines[2]
    assert not (place / "sweeps").exists()


def test_the_help_says_every_key_of_a_spec_and_what_is_dropped_and_kept(said):
    told = said(cli, "sweep", "--help")[1]
    assert f"more than {point.KEPT / 1e6:g} MB" in told and f"fills {point.OUTPUT / 1e6:g} MB" in told
    assert "stale.csv" in told and "--keep-stale" in told and all(f"{key}:" in told for key in spec.KEYS)
