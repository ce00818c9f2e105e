"""Loading by hub name: against a hub on this machine, then with that hub gone."""

import json
import os
import shutil
import subprocess
import sys

import huggingface_hub
import pandas as pd
import pytest
import torch
from hub import COMMIT, serve, tiny_bert, tiny_gpt2
from safetensors.torch import load_file

from lipscan import hub, models

# Run in a process of its own, because the hub client reads its address when imported.
CLIENT = """
import json, sys, time, warnings
warnings.simplefilter("error")
from lipnb import models

answers = {}
for name in json.loads(sys.argv[1]):
    slept = []
    time.sleep = slept.append  # the client waits between its own attempts
    try:
        model = models.load(name)
        ids = model.token_ids("the alice")[None] if model.tokenizer_name else None
        answers[name] = {"ids": ids.tolist(), "tokenizer": model.tokenizer_name, "name": model.name,
                         "output": model.attention(1)(model.activations(ids, 1)).tolist()}
    except Exception as error:
        answers[name] = {"kind": type(error).__name__, "sentence": str(error)}
    answers[name]["waited"] = sum(slept)
print(json.dumps(answers))
"""


def asked(code, address, home, *words):
    """A fresh process that knows only this hub and this cache."""
    own = ("HF_", "TRANSFORMERS_", "LIPNB_DATA")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(own) and "proxy" not in key.lower()}
    kept |= {"HF_ENDPOINT": address, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        env=kept | {"HF_HUB_DISABLE_TELEMETRY": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def client(address, home, names):
    """What `models.load` gives for each name, in a fresh process that knows only this hub and this cache."""
    return json.loads(asked(CLIENT, address, home, json.dumps(names)).stdout)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Answers with the hub there, with it gone, and what was asked of it."""
    folder = tmp_path_factory.mktemp("repositories")
    tiny_bert(folder / "bert")
    tiny_bert(folder / "shards")
    (folder / "shards" / "model.safetensors").rename(folder / "shards" / "model-00001-of-00001.safetensors")
    keys = load_file(folder / "shards" / "model-00001-of-00001.safetensors")
    (folder / "shards" / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": {key: "model-00001-of-00001.safetensors" for key in keys}})
    )
    shutil.copytree(folder / "bert", folder / "damaged")
    whole = (folder / "damaged" / "model.safetensors").read_bytes()
    (folder / "damaged" / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    shutil.copytree(folder / "bert", folder / "bare")
    (folder / "bare" / "model.safetensors").unlink()
    tiny_gpt2(folder / "other")
    config = json.loads((folder / "other" / "config.json").read_text()) | {"model_type": "no_such_family"}
    (folder / "other" / "config.json").write_text(json.dumps(config))

    home = tmp_path_factory.mktemp("cache")
    repositories = {f"some/{name}": folder / name for name in ("bert", "shards", "damaged", "bare", "other")}
    with serve(repositories) as (address, requests):
        there = client(address, home, [*repositories, "some/nothing", "some/bert"])
    gone = client(address, home, ["some/bert", "some/shards", "some/never"])
    return folder, there, gone, requests


def test_a_hub_name_is_downloaded_once_and_equals_the_folder_with_the_hub_and_without(answers):
    folder, there, gone, requests = answers
    local = models.load(folder / "bert")
    ids = local.token_ids("the alice")[None]
    expected = local.attention(1)(local.activations(ids, 1))
    for name in ("some/bert", "some/shards"):
        answer = there[name]
        assert answer.get("ids") == ids.tolist(), answer
        torch.testing.assert_close(torch.tensor(answer["output"]), expected, rtol=1e-6, atol=1e-7)
        assert answer["name"] == answer["tokenizer"] == name
        assert gone[name].get("output") == answer["output"], gone[name]
    assert local.name == local.tokenizer_name == "bert"
    assert "some/nothing" in requests[-1]  # although some/bert was loaded once more after it
    assert requests.count(f"GET /some/bert/resolve/{COMMIT}/model.safetensors") == 1
    assert requests.count(f"GET /some/shards/resolve/{COMMIT}/model-00001-of-00001.safetensors") == 1


def test_what_the_hub_has_not_whole_or_not_at_all_is_named(answers):
    _, there, gone, requests = answers
    for answer, kind, word in (
        (there["some/damaged"], "ValueError", "download or copy it again"),
        (there["some/bare"], "FileNotFoundError", "random=True"),
        (there["some/other"], "ValueError", "no_such_family"),
        (there["some/nothing"], "FileNotFoundError", "minilm"),
        (gone["some/never"], "FileNotFoundError", "minilm"),
    ):
        assert answer["kind"] == kind and word in answer["sentence"]
        assert answer["waited"] < 12  # one attempt: between its own the client would wait 20 seconds and more
    # one that is not supported is refused before its weights are fetched
    assert not any("some/other" in request and request.endswith("/model.safetensors") for request in requests)


def test_ag_news_comes_from_the_hub_where_no_folder_has_it(tmp_path):
    table = tmp_path / "ag_news" / "data" / "test-00000-of-00001.parquet"
    table.parent.mkdir(parents=True)
    pd.DataFrame({"text": ["first item", "second item"], "label": [2, 3]}).to_parquet(table)
    code = "from lipnb import corpora; print(repr(corpora.read('ag_news')))"
    with serve({"datasets/fancyzhx/ag_news": tmp_path / "ag_news"}) as (address, _):
        for _ in ("downloaded", "cached"):
            run = asked(code, address, tmp_path / "cache")
            assert run.stdout == "'first item\\nsecond item'\n", run.stderr
    # asked once: the hub's client would try again, and wait for half a minute of its own before that
    waited = (
        "import time, pandas, huggingface_hub; from lipnb import corpora; slept = []; time.sleep = slept.append\n"
        "try: corpora.read('ag_news')\nfinally: print(sum(slept))"
    )
    run = asked(waited, address, tmp_path / "empty")
    assert "'ag_news' was not found" in run.stderr and float(run.stdout) < 20


def test_a_gated_model_is_there_and_its_terms_are_named(monkeypatch):
    def refused(*words, local_files_only=False, **options):
        if local_files_only:
            raise FileNotFoundError
        gated = huggingface_hub.errors.GatedRepoError
        raise gated.__new__(gated)  # as it is, without the answer that each version of the client wants

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refused)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", refused)
    with pytest.raises(PermissionError, match="accept its terms"):
        hub.snapshot("some/gated", ["*.json"], all)


def test_a_part_of_a_model_in_the_cache_is_not_taken_for_the_whole(tmp_path, monkeypatch):
    asked = []

    def download(name, *, allow_patterns, local_files_only=False):
        asked.append(local_files_only)
        (tmp_path / ("config.json" if local_files_only else "model.safetensors")).touch()
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(hub, "reached", lambda address: True)
    for _ in range(2):
        assert hub.snapshot("someone/tiny", ["*"], lambda there: there("model.safetensors")) == tmp_path
    assert asked == [True, False, True]
