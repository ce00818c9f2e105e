"""The ALBERT inside the wheel rxnmapper, as a plain folder, and chemical reactions in the notation that it reads.

Its twelve layers share one attention, so that what differs between depths comes from the inputs alone.
"""

import json
from pathlib import Path

from lipnb.models.checked import json_of
from lipnb.origin import extra

__all__ = ["unpack_albert", "unpack_reactions"]

# of config.json what defines the network; the rest is about training and writing text
ENTRIES = """attention_probs_dropout_prob embedding_size hidden_act hidden_dropout_prob hidden_size inner_group_num
intermediate_size layer_norm_eps max_position_embeddings model_type num_attention_heads num_hidden_groups
num_hidden_layers pad_token_id type_vocab_size vocab_size""".split()
# the parts of a SMILES string, as the package itself writes them: atoms in brackets, bare atoms, bonds, rings
PARTS = r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9]"
SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
AGENTS = ("solvent", "co_solvent")


def unpack_albert(path: Path, folder: Path, name: str) -> None:
    """Write the ALBERT of rxnmapper as a folder that `load` reads like any other.

    Parameters
    ----------
    path : Path
        pytorch_model.bin, which `lipnb.models.fetching.fetch` has checked; config.json and vocab.txt lie beside it.
    folder : Path
        Where config.json, model.safetensors and tokenizer.json go.
    name : str
        What sentences call the model.

    Raises
    ------
    ValueError
        "... is not the ALBERT that is known here ...".

    Notes
    -----
    Only tensors are read of the file of weights, which could hold code. The tokenizer cuts at the same places as the
    package's own; white space, which SMILES does not have, is dropped, so that reactions may stand on lines.
    """
    import torch

    with extra("models"):
        from safetensors.torch import save_file
        from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
    held = torch.load(path, map_location="cpu", weights_only=True)
    said = json_of(path.with_name("config.json"), f"config.json of {name!r}")
    words = path.with_name("vocab.txt").read_text(encoding="utf-8").splitlines()
    tensors = {key.removeprefix("albert."): value for key, value in held.items() if key.startswith("albert.")}
    if not tensors or _missing(said, words):
        raise ValueError(
            f"{name!r} is not the ALBERT that is known here: it lacks {', '.join(_missing(said, words)) or 'weights'}."
        )
    config = {key: said[key] for key in ENTRIES} | {"architectures": ["AlbertModel"], "dtype": "float32"}
    save_file({key: value.float().contiguous() for key, value in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    number = {word: place for place, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(number, unk_token=SPECIAL["unk"]))
    tokenizer.normalizer = normalizers.Replace(Regex(r"\s"), "")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PARTS), behavior="isolated")
    first, last = SPECIAL["cls"], SPECIAL["sep"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", special_tokens=[(word, number[word]) for word in (first, last)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {f"{key}_token": word for key, word in SPECIAL.items()}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")


def _missing(said, words):
    """What config.json and the vocabulary lack."""
    return [key for key in ENTRIES if key not in said] + [word for word in SPECIAL.values() if word not in words]


def unpack_reactions(path: Path, folder: Path, name: str) -> None:
    r"""Write reactions.txt: a reaction a line in SMILES, each once, and a dot after each but the last.

    Parameters
    ----------
    path : Path
        JSON, a list of reactions: reactants_smiles, product_smiles, and conditions with solvents and reagents.
    folder : Path
        Where reactions.txt goes.
    name : str
        What sentences call the text.

    Raises
    ------
    ValueError
        "... is not the list of reactions that is known here ...".

    Notes
    -----
    What goes in stands before ``>>``, reactants and agents together in alphabetical order, as the model was trained
    to read them. The dot parts molecules in SMILES, so windows longer than a reaction run on into the next.

    Examples
    --------
    >>> import json, tempfile
    >>> one = {"reactants_smiles": ["OCC", "BrC"], "product_smiles": "CCOC", "conditions": {"solvent": "O"}}
    >>> with tempfile.TemporaryDirectory() as place:
    ...     _ = Path(place, "list").write_text(json.dumps([one, one, one | {"product_smiles": "COCC"}]))
    ...     unpack_reactions(Path(place, "list"), Path(place), "tiny")
    ...     print(Path(place, "reactions.txt").read_text())
    BrC.O.OCC>>CCOC.
    BrC.O.OCC>>COCC
    """
    try:
        found = dict.fromkeys(map(_written, json.loads(path.read_text(encoding="utf-8"))))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{name!r} is not the list of reactions that is known here.") from None
    (folder / "reactions.txt").write_text(".\n".join(found), encoding="utf-8")


def _written(reaction):
    """A reaction as SMILES: what goes in, in alphabetical order, and what comes out."""
    conditions = reaction["conditions"]
    agents = [*(conditions.get(key) for key in AGENTS), *(conditions.get("reagents") or [])]
    return ".".join(sorted({*reaction["reactants_smiles"], *filter(None, agents)})) + ">>" + reaction["product_smiles"]
