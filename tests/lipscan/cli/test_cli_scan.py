"""`lipnb scan`: stopped, refused and explained in sentences."""

import numpy as np
import pytest

from lipscan import cli, corpora
from lipscan.cli import main
from lipscan.scanning import measure, report


def test_stopped_by_ctrl_c_it_says_what_is_kept_and_status_does(bert, tmp_path, text, capsys, monkeypatch):
    command = ["scan", str(bert), "--text", str(text), "--lengths", "3,5", "--no-close", "--no-upper"]
    command += ["--output", str(tmp_path / "out")]
    calls = []

    def stopped(*given, **options):
        calls.append(given)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return measure.measure(*given, **options)

    monkeypatch.setattr("lipscan.scanning.run.measure", stopped)
    monkeypatch.chdir(tmp_path)
    assert main(command) == 130
    kept = "a scan of bert on story.txt at n = 3, 5 that has not ended: it keeps 3 of 4 layers and lengths. "
    assert capsys.readouterr().err.endswith(
        f"lipnb: stopped; {tmp_path / 'out'} holds {kept}The same command goes on.\n"
    )
    assert main(["status", "out"]) == 0 and f"out: {kept}" in capsys.readouterr().out
    with (tmp_path / "out" / "scan.partial.jsonl").open("a") as file:
        file.write('{"unit": "1/5", "rows": [{"lay}')  # half a line
    assert main(["status", "out"]) == 0 and "3 of 4" in capsys.readouterr().out
    assert main(command) == 0 and len(calls) == 5
    capsys.readouterr()
    assert main(["status", "out"]) == 0
    done = "out: a finished scan of bert on story.txt at n = 3, 5: 4 rows in summary.csv. report.html shows it.\n"
    assert capsys.readouterr().out == done
    (tmp_path / "out" / "report.html").unlink()
    assert main(["status", "out"]) == 0
    assert capsys.readouterr().out.endswith("summary.csv. No report.html: lipnb scan out writes it.\n")
    assert main(["scan", "out"]) == 0 and (tmp_path / "out" / "report.html").is_file()
    capsys.readouterr()
    assert main(["status", str(bert)]) == 0 and "a model, not the folder of a sweep or scan" in capsys.readouterr().out
    monkeypatch.setattr(
        "lipscan.scanning.run.begin", lambda *given, **options: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    assert main(["scan", str(bert), "--text", str(text), "--output", str(tmp_path / "new")]) == 130
    assert capsys.readouterr().err == "lipnb: stopped; nothing was measured yet\n"


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["minilm", "--text", "alise"], 2, "there is no file or corpus 'alise': did you mean alice?"),
        (["minilm", "--text", "nowhere/x.txt"], 1, "the text 'nowhere/x.txt' was not found"),
        (["minilm", "--text", "pictures"], 1, "minilm reads text, and 'pictures' is for a model that reads images"),
        (["minilm", "--lengths", "2"], 1, "take longer windows, or leave special tokens out (--no-special; "),
        (["minilm", "--text", "./folder"], 1, "minilm reads text, not images, and './folder' is no text file: give"),
        (["minilm", "--text", "empty.txt"], 1, "the file empty.txt holds only white space: give a text"),
        (["minilm", "--text", "latin.txt"], 1, "the file latin.txt is not UTF-8 text"),
        (["minilm", "--lengths", "32,1024"], 1, "minilm reads at most 512 tokens, but a length of 1024 was asked for"),
        (["minilm", "--lengths", "0,3"], 2, "different positive whole numbers, such as 2,8,32, got 0,3"),
        (["minilm", "--layers", "0-99999999999"], 2, "layers are 'all', numbers or ranges such as 0,3,5 or 0-5; got"),
        (["minilm", "--layers", "0-9"], 1, "minilm has layers 0 to 5, but layer 9 was asked for"),
        (["minilm", "--layers", "3-1"], 2, "layers are 'all', numbers or ranges such as 0,3,5 or 0-5; got '3-1'"),
        (["minilm", "--text", "short.txt"], 1, "2 windows of 32 tokens need 60 beside 2 special ones each: take --l"),
        (["minilm", "--rtol", "nan"], 2, "rtol must lie between 1e-6 and 1, got nan"),
        (["minilm", "--windows", "0"], 2, "windows must be 1 or more, got 0"),
        (["minilm", "--seed", "abc"], 2, "argument --seed: invalid int value: 'abc'"),
        (["minilm", "--upper-work", "nan"], 2, "upper_work must be a positive number of operations, got nan"),
        (["minilm", "--output", ""], 2, "argument --output: give the name of a folder; got ''"),
        (["minilm", "--output", "short.txt"], 1, "is a file: name a folder"),
        (["minilm", "--device", "warp"], 1, "the device 'warp' cannot be used here (there is no such kind)"),
        (["minilm", "--objekt", "heads"], 2, "there is no option --objekt: did you mean --object?"),
        (["nobody/nothing"], 1, "could not be found on the Hugging Face hub"),
        (["smolm2"], 1, "config.json and model.safetensors. Did you mean smollm2?"),
        (["minilm", "--against", "nowhere"], 1, "safetensors. OTHER may also be the folder of a scan"),
        (["gpt2-mini", "--tokenizer", "nobody/nothing"], 1, "no tokenizer 'nobody/nothing' could be found"),
    ],
)
def test_what_cannot_be_scanned_is_said_in_a_sentence(tmp_path, monkeypatch, capsys, arguments, code, sentence):
    monkeypatch.chdir(tmp_path)
    texts = {"empty": b" \n", "latin": "café".encode("latin-1"), "short": b"alice and the rabbit"}
    for name, content in texts.items():
        (tmp_path / f"{name}.txt").write_bytes(content)
    (tmp_path / "folder").mkdir()
    try:
        got = main(["scan", *arguments])
    except SystemExit as stop:
        got = stop.code
    said = capsys.readouterr().err
    assert got == code and sentence in said and len(said.strip().splitlines()) == 1
    assert not list(tmp_path.glob("scan-*/scan.*"))


def test_a_name_of_the_hub_is_no_slip(monkeypatch):
    """Without a network gpt2 was answered with "Did you mean gpt2-mini?"."""

    def absent(*given):
        raise FileNotFoundError("could not be found on the hub.")

    monkeypatch.setattr("lipscan.models.loading.layer_count", absent)
    with pytest.raises(FileNotFoundError, match="on the hub.$"):
        cli.scan._check_model("gpt2", False, other=False)


def test_the_help_and_the_report_say_which_columns_are_logarithms(finished, capsys):
    with pytest.raises(SystemExit):
        main(["scan", "--columns"])
    told = " ".join(capsys.readouterr().out.split())
    assert "over_NAME logarithm to base 10" in told and "each of the same window; a plain ratio" in told
    with pytest.raises(SystemExit):
        main(["scan", "--help"])
    told = capsys.readouterr().out
    assert ".*.partial.lock" in told and all(f"\n  {name} " in told for name in corpora.NAMES)
    found = finished
    said = " ".join(report.html(found).split())
    assert "over_* hold its logarithm to base 10, and certified_over a plain ratio" in said
    row, rows = found.summary.iloc[0], found.table[(found.table.layer == 0) & (found.table.length == 4)]
    assert row.over_general == pytest.approx((rows.log10_general - np.log10(rows.lipschitz)).mean())
    assert row.certified_over == pytest.approx((rows.certified / rows.lipschitz).max(), rel=1e-5)  # six digits, up


@pytest.mark.parametrize("place", ["./nosuch", "/no/such", "no/such/", "a/b/c"])
def test_a_path_that_is_not_there_is_no_name_on_the_hub(place, capsys):
    assert main(["scan", place]) == 1
    assert f"lipnb: there is no folder {place!r}: a model is a folder" in capsys.readouterr().err
