"""`lipnb scan`: stopped and explained in sentences; what it refuses is in test_refusals."""

import pytest

from lipscan import cli, corpora
from lipscan.scanning import measure


def test_stopped_by_ctrl_c_it_says_what_is_kept_and_status_does(bert, tmp_path, story, said, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["scan", str(bert), "--text", str(story), *"--lengths 3,5 --no-close --no-upper --output out".split()]
    calls = []

    def stopped(*given, **options):
        calls.append(given)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return measure.measure(*given, **options)

    monkeypatch.setattr("lipscan.scanning.run.measure", stopped)
    code, _, error = said(cli, *command)
    kept = "a scan of bert on story.txt at n = 3, 5 that has not ended: it keeps 3 of 4 layers and lengths. "
    assert code == 130 and error.endswith(f"lipnb: stopped; out holds {kept}The same command goes on.\n")
    assert kept in said(cli, "status", "out")[1]
    with (tmp_path / "out" / "scan.partial.jsonl").open("a") as file:
        file.write('{"unit": "1/5", "rows": [{"lay')  # half a line
    assert "3 of 4" in said(cli, "status", "out")[1]
    assert said(cli, *command)[0] == 0 and len(calls) == 5
    done = "out: a finished scan of bert on story.txt at n = 3, 5: 4 rows in summary.csv. "
    assert said(cli, "status", "out") == (0, f"{done}report.html shows it.\n", "")
    (tmp_path / "out" / "report.html").unlink()
    assert said(cli, "status", "out")[1] == f"{done}No report.html: lipnb scan out writes it.\n"
    assert said(cli, "scan", "out")[0] == 0 and (tmp_path / "out" / "report.html").is_file()
    assert "a model, not the folder" in said(cli, "status", str(bert))[1]

    def begun(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("lipscan.scanning.run.begin", begun)
    code, _, error = said(cli, *command[:-1], "new")
    assert (code, error) == (130, "lipnb: stopped; nothing was measured yet\n")


def test_a_name_of_the_hub_is_no_slip(monkeypatch):
    """Without a network gpt2 was answered with "Did you mean gpt2-mini?"."""

    def absent(*given):
        raise FileNotFoundError("could not be found on the hub.")

    monkeypatch.setattr("lipscan.models.loading.layer_count", absent)
    with pytest.raises(FileNotFoundError, match="on the hub.$"):
        cli.scan._check_model("gpt2", False, other=False)


def test_the_help_says_which_columns_are_logarithms_and_which_texts_there_are(said):
    columns, told = (said(cli, "scan", option)[1] for option in ("--columns", "--help"))
    assert "over_NAME logarithm to base 10" in " ".join(columns.split())
    assert ".*.partial.lock" in told and all(f"\n  {name} " in told for name in corpora.NAMES)
