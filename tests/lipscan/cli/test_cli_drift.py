"""`lipnb drift`: verdict, exit code, dumps."""

import torch
from safetensors.torch import load_file, save_file

from lipscan import cli


def test_rounding_alone_is_no_failure(families, story, tmp_path, said, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["drift", str(families / "bert"), "--text", str(story), *"--length 6 --windows 1 --dtype bfloat16".split()]
    code, out, _ = said(cli, *words)
    assert code == 0 and "\nrounding: all 2 layers within 1" in out
    assert (tmp_path / "drift-bert-bfloat16" / "report.html").is_file()
    assert [line.split()[0] for line in out.splitlines() if line.split()][3:6] == ["embedding", "0", "1"]


def test_from_a_dump_to_the_layer_of_a_fault(families, story, tmp_path, said, monkeypatch):
    """As a porter goes about it: dump, write one's own states, compare."""
    monkeypatch.chdir(tmp_path)
    words = ["drift", str(families / "bert"), "--text", str(story), *"--length 6 --windows 2".split()]
    code, out, _ = said(cli, *words, "--dump", "own.safetensors")
    assert code == 0 and "2 x 6 tokens of story.txt, hidden_states.0 to .2;" in out and len(out.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["own.safetensors"]
    states = load_file("own.safetensors")
    for wrong, verdict in (("mlp.1", "): mlp.1 is not what "), ("hidden_states.2", "not rounding: layer 1, ")):
        save_file(states | {wrong: states[wrong] * 1.01}, "mine.safetensors")
        code, out, _ = said(cli, "drift", str(families / "bert"), "--against", "mine.safetensors", "--out", "here")
        assert code == 3 and verdict in out
    assert (tmp_path / "here" / "drift.csv").is_file()


def test_neither_rounding_nor_a_bug_has_its_own_exit_code(families, story, tmp_path, said, monkeypatch):
    """A script that goes on after 0 must not take a comparison that tells nothing for a pass."""
    monkeypatch.chdir(tmp_path)
    words = ["drift", str(families / "bert"), "--text", str(story), *"--length 6 --windows 1".split()]
    said(cli, *words, "--dtype", "float32", "--dump", "fine.safetensors")
    code, out, _ = said(cli, *words[:2], "--against", "fine.safetensors", "--dtype", "bfloat16", "--out", "here")
    assert code == 4 and "\ncannot tell: bfloat16 is coarser" in out


def test_the_worst_gain_has_a_column(families, story, tmp_path, said, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["drift", str(families / "bert"), "--text", str(story), *"--length 4 --windows 1 --worst".split()]
    code, out, _ = said(cli, *words, "--dtype", "float16")
    assert code == 0 and "worst" in out.splitlines()[2]
    assert torch.get_default_dtype() == torch.float32
