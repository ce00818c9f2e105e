"""The lines for a layer of one's own, as page 04 prints them, on models of several families."""

import tempfile
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from lab.pages.sources import sources
from lab.verification import families
from lipnb import local_lipschitz

ROOT = Path(__file__).parents[2]
MODULES = {
    "bert": "encoder.layer.1.attention.self",
    "modernbert": "layers.1.attn",
    "gpt2": "h.1.attn",
    "llama": "layers.1.self_attn",
    "gpt_neox": "layers.1.attention",
}


@pytest.fixture(scope="module")
def lines():
    """Both cells, up to the prose after them, less the first lines, which say what is the reader's."""
    page = next(source for source in sources(ROOT) if "import AutoModel" in source.read_text(encoding="utf-8"))
    _, found, rest = page.read_text(encoding="utf-8").partition("import torch\nfrom transformers import AutoModel")
    return (found + rest).partition("# %% [markdown]")[0]


@pytest.mark.parametrize("family", MODULES)
def test_the_lines_run_as_they_stand(lines, family, monkeypatch):
    ids = {"input_ids": torch.arange(3, 15)[None]}
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda folder: lambda text, **options: ids)
    with tempfile.TemporaryDirectory() as folder:
        families.written(folder, family, deepcopy(families.SMALL[family][0]))
        names = {"folder": folder, "name": MODULES[family], "text": ""}
        with torch.random.fork_rng():
            torch.manual_seed(0)
            exec(lines, names)
    assert names["x"].shape == (1, 12, 32) and len(names["found"]) == 3
    constant = local_lipschitz(lambda x: names["f"](x[None])[0], names["x"][0], method="dense").value.item()
    assert max(names["found"]) == pytest.approx(constant, rel=2e-3)
