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


def environment(address, home):
    """The environment of a process that knows only this hub and this cache."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("HF_", "TRANSFORMERS_")) and "proxy" not in key.lower()
    }
    kept.pop("LIPNB_DATA", None)
    return kept | {
        "HF_ENDPOINT": address,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "OMP_NUM_THREADS": "1",
    }


def client(address, home, names):
    """What `models.load` gives for each name, in a fresh process that knows only this hub and this cache."""
    run = subprocess.run(
        [sys.executable, "-c", CLIENT, json.dumps(names)],
        env=environment(address, home),
        timeout=900,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


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


@pytest.mark.parametrize("name", ["bert", "shards"])
def test_a_hub_name_is_downloaded_and_equals_the_folder(answers, name):
    folder, there, _, _ = answers
    local = models.load(folder / "bert")
    ids = local.token_ids("the alice")[None]
    expected = local.attention(1)(local.activations(ids, 1))
    answer = there[f"some/{name}"]
    assert answer.get("ids") == ids.tolist(), answer
    torch.testing.assert_close(torch.tensor(answer["output"]), expected, rtol=1e-6, atol=1e-7)
    assert answer["name"] == answer["tokenizer"] == f"some/{name}"
    assert local.name == local.tokenizer_name == "bert"


def test_a_second_load_needs_no_hub(answers):
    _, there, gone, _ = answers
    for name in ("some/bert", "some/shards"):
        assert gone[name].get("output") == there[name]["output"], gone[name]


def test_a_cached_model_is_not_asked_for_again(answers):
    requests = answers[-1]
    assert "some/nothing" in requests[-1]  # although some/bert was loaded once more after it
    assert requests.count(f"GET /some/bert/resolve/{COMMIT}/model.safetensors") == 1
    assert requests.count(f"GET /some/shards/resolve/{COMMIT}/model-00001-of-00001.safetensors") == 1


def test_damaged_weights_are_named(answers):
    answer = answers[1]["some/damaged"]
    assert answer["kind"] == "ValueError"
    assert answer["sentence"].startswith("model.safetensors of 'some/damaged' cannot be read as safetensors")
    assert "download or copy it again" in answer["sentence"]


def test_a_repository_without_weights_is_named(answers):
    answer = answers[1]["some/bare"]
    assert answer["kind"] == "FileNotFoundError" and "random=True" in answer["sentence"]


def test_an_unsupported_model_is_refused_before_its_weights_are_fetched(answers):
    _, there, _, requests = answers
    assert "'some/other' is a no_such_family model" in there["some/other"]["sentence"]
    assert any("some/other" in request for request in requests)
    assert not any("some/other" in request and request.endswith("/model.safetensors") for request in requests)


@pytest.mark.parametrize(("place", "name"), [(1, "some/nothing"), (2, "some/never")])
def test_an_absent_name_and_an_absent_network_have_one_clear_sentence(answers, place, name):
    answer = answers[place][name]
    assert answer["kind"] == "FileNotFoundError"
    assert answer["sentence"] == (
        f"'{name}' could not be found on the Hugging Face hub or in its cache, and is not a folder. Without network "
        "take 'minilm', which is embedded, or a local folder holding config.json and model.safetensors."
    )
    assert answer["waited"] < 12  # one attempt: between its own the client would wait 20 seconds and more


def test_ag_news_comes_from_the_hub_where_no_folder_has_it(tmp_path):
    table = tmp_path / "ag_news" / "data" / "test-00000-of-00001.parquet"
    table.parent.mkdir(parents=True)
    pd.DataFrame({"text": ["first item", "second item"], "label": [2, 3]}).to_parquet(table)
    code = "from lipnb import corpora; print(repr(corpora.read('ag_news')))"
    with serve({"datasets/fancyzhx/ag_news": tmp_path / "ag_news"}) as (address, _):
        for _ in ("downloaded", "cached"):
            run = subprocess.run(
                [sys.executable, "-c", code],
                env=environment(address, tmp_path / "cache"),
                timeout=600,
                capture_output=True,
                text=True,
            )
            assert run.stdout == "'first item\\nsecond item'\n", run.stderr
    # asked once: the hub's client would try again, and wait for half a minute of its own before that
    waited = (
        "import time, pandas, huggingface_hub; from lipnb import corpora; slept = []; time.sleep = slept.append\n"
        "try: corpora.read('ag_news')\nfinally: print(sum(slept))"
    )
    run = subprocess.run(
        [sys.executable, "-c", waited],
        env=environment(address, tmp_path / "empty"),
        timeout=900,
        capture_output=True,
        text=True,
    )
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
