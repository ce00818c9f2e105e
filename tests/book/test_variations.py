"""Pages with other parameters: the list is whole, a page that needs the book's values is found and named."""

import shutil
from pathlib import Path

import pytest

from lab.pages import variations
from lab.pages.sources import sources
from lipscan.sweeps import source

ROOT = Path(__file__).parents[2]
PAGE = """\
# %% tags=["parameters"]
size, names = 2, ["alice"]  # two at once
seed = 0

# %%
assert size < 4, f"{size} is too many"
print(size, names, seed)
"""


@pytest.fixture
def root(tmp_path):
    """A repository of one page."""
    for folder in ("notebooks", "book"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "notebooks" / "00_page.py").write_text(PAGE)
    return tmp_path


def tried(root, text):
    (root / variations.LIST).write_text(text)
    return root


def test_every_page_of_the_book_has_others():
    listed = variations.listed(ROOT)
    assert list(listed) == [source.stem for source in sources(ROOT)]
    alone = [page for page, sets in listed.items() if not sets]
    assert not alone, f"{alone}: without seed and texts, give it other parameters in book/variations.yml"
    for path in sources(ROOT):
        page = source.read(path)
        source.check(page, [variations.defaults(ROOT, path)])


def test_another_seed_and_text_are_tried_unasked(root):
    assert variations.listed(tried(root, "{}")) == {"00_page": [{"seed": 1}]}
    assert variations.listed(tried(root, "00_page: [{size: 3}]")) == {"00_page": [{"seed": 1}, {"size": 3}]}
    page = root / "notebooks/00_page.py"
    page.write_text(page.read_text().replace("names = 2, [", "texts = 2, [").replace("seed = 0", "seed = 1"))
    assert variations.listed(tried(root, "{}")) == {"00_page": [{"texts": ["python_reference"]}]}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("01_other: [{seed: 2}]", "there is no page 01_other"),
        ("00_page: [{sead: 1}]", "sead = 1 is what the book shows, or no parameter"),
    ],
)
def test_a_list_that_is_wrong_is_one_sentence(root, text, sentence):
    with pytest.raises(ValueError, match=sentence):
        variations.listed(tried(root, text))


def test_what_fails_is_named_and_the_rest_runs(root, capsys):
    tried(root, "00_page: [{size: 7}, {size: 3, names: [bob]}]")
    assert variations.report(root, workers=1) == 1
    said = capsys.readouterr()
    assert "3 points of 1 pages: 3 run now, 1 failed" in said.out
    assert "00_page, {'size': 7}: " in said.err and "7 is too many" in said.err
    tried(root, "00_page: [{size: 3, names: [bob]}]")
    assert variations.report(root, ["00"], workers=1) == 0
    assert "2 points of 1 pages: 0 run now, 0 failed" in capsys.readouterr().out
