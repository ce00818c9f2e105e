"""The committed pages agree with their sources; each rule is broken once; failures are reported."""

import json
import os
import shutil
import subprocess
import sys
from base64 import b64decode
from pathlib import Path

import nbformat
import pytest

from lab.ledger import MIME
from lab.pages import checks, sources

ROOT = Path(__file__).parents[2]

# a picture of one black point
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
GOOD = """\
# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A page

# %% tags=["parameters"]
n = 2

# %% tags=["nbval-check-output"]
def double(n):
    return 2 * n


print(double(n))

# %% mystnb=OF_DOT
from base64 import b64decode

from IPython.display import Image

Image(b64decode(DOT))
"""
DOT_CELL = "# %% mystnb="
DRAWN = """# %% mystnb=OF_NORMS
import matplotlib.pyplot as plt
import pandas as pd

from lab import figures

layers = pd.DataFrame({"map": ["a", "a"], "slope": [0.1, 0.2], "released": [0.1, 0.3]})
figures.atlas.two_quantities(layers, 0.25, 0.1)
plt.show()

"""
SAID = '{"figure": {"name": "fig-00-%s", "caption": "%s."}, "image": {"alt": "%s"}}'
OF_NORMS = SAID % ("norms", "Norms of two places", "a line that rises from one point to another")
OF_DOT = SAID % ("dot", "A point", "one black point, and nothing beside it")
GOOD = GOOD.replace("OF_DOT", OF_DOT).replace("(DOT)", f'("{DOT}")')
DRAWN = DRAWN.replace("OF_NORMS", OF_NORMS)
TABLE = (
    GOOD.replace("fig-00", "fig-01")
    + '\n# %%\nfrom lab import results  # noqa\n\nif False:\n    results.load("steps")\n'
)


def test_committed_pages_hold_every_rule():
    assert checks.complaints(ROOT) == []


def test_jupytext_finds_nothing_to_update(tmp_path):
    """An author who pairs by hand, as jupytext documents it, changes no committed byte."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    pages = [str(source) for source in sources.sources(tmp_path)]
    subprocess.run([sys.executable, "-m", "jupytext", "-q", "--to", "ipynb", "--update", *pages], check=True)
    for source in sources.sources(ROOT):
        committed = source.with_suffix(".ipynb")
        assert committed.exists(), f"{committed.name} is not there: `make notebooks` makes it"
        assert (tmp_path / "notebooks" / committed.name).read_bytes() == committed.read_bytes()


def repository(folder, **pages):
    """A repository with these pages and nothing else."""
    for name in ("notebooks", "lipnb", "data/results", "book"):
        (folder / name).mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "constraints.txt").write_text("")
    (folder / "lipnb" / "__init__.py").write_text("")
    (folder / "data" / "results" / "steps.csv").write_text("n\n1\n")
    chapters = [{"file": f"notebooks/{name}"} for name in pages]
    (folder / "_toc.yml").write_text(json.dumps({"format": "jb-book", "root": "book/intro", "chapters": chapters}))
    (folder / "book" / "intro.md").write_text("# Intro\n")
    (folder / "README.md").write_text("![A line that rises from left to right](book/figures/fig-00-norms.png)\n")
    for name, text in pages.items():
        (folder / "notebooks" / f"{name}.py").write_text(text)
    return folder


def command(root, *arguments):
    """The command line of the book's pages, on that repository."""
    # the unit tests draw on Agg; a page draws into itself
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    script = [sys.executable, "-m", "lab", "pages", "--root", str(root), *arguments]
    return subprocess.run(script, capture_output=True, text=True, env=environment, check=False)


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A good page, a page with a table, both executed and paired."""
    root = repository(
        tmp_path_factory.mktemp("good"),
        # a picture with a name, and after it one without
        **{"00_good": GOOD.replace(DOT_CELL, f"{DRAWN}{DOT_CELL}"), "01_table": TABLE.replace("2 * n", "3 * n")},
    )
    assert command(root, "execute").returncode == 0
    assert command(root, "pair").returncode == 0
    return root


@pytest.fixture
def good(executed, tmp_path):
    """A copy of the executed repository, to break."""
    return shutil.copytree(executed, tmp_path / "copy")


def test_a_good_repository_has_no_complaint(good):
    assert checks.complaints(good) == []
    assert command(good, "check").returncode == 0


def edit_source(root, old, new):
    """Change the source of the good page."""
    source = root / "notebooks" / "00_good.py"
    assert old in source.read_text()
    source.write_text(source.read_text().replace(old, new))


def edit_readme(root, old, new):
    """Change README.md."""
    readme = (root / "README.md").read_text()
    assert old in readme
    (root / "README.md").write_text(readme.replace(old, new))


def edit_pair(root, change):
    """Change the executed pair of the good page through its first and second code cell."""
    path = root / "notebooks" / "00_good.ipynb"
    notebook = nbformat.read(path, as_version=4)
    change(*[cell for cell in notebook.cells if cell.cell_type == "code"][:2])
    nbformat.write(notebook, path)


def edit_drawing(root, change):
    """Change the last cell of the executed pair, which draws."""
    path = root / "notebooks" / "00_good.ipynb"
    notebook = nbformat.read(path, as_version=4)
    change(notebook.cells[-1])
    nbformat.write(notebook, path)


def edit_glued(root, number):
    """A number that the pair glues and shows with two digits."""
    edit_source(root, "# # A page", "# # A page\n#\n# {glue:text}`small:.2f`")
    data = {"application/papermill.record/text/plain": number}
    glued = output("display_data", data=data, metadata={"scrapbook": {"name": "small"}})
    edit_pair(root, lambda cell, _: cell.outputs.append(glued))


def output(kind, **fields):
    """An output of a cell."""
    return nbformat.v4.new_output(kind, **fields)


def shows(kind, **fields):
    """A break: the first cell of the pair has one more output."""
    return lambda root: edit_pair(root, lambda cell, _: cell.outputs.append(output(kind, **fields)))


def draws(change):
    """A break: the drawing cell of the pair is changed."""
    return lambda root: edit_drawing(root, change)


def contents(change):
    """A break: the table of contents is another text."""
    return lambda root: (root / "_toc.yml").write_text(change((root / "_toc.yml").read_text()))


MINE = {"application/papermill.record/text/plain": "np.int64(8)"}
SEEN = "Seen: one black point, and nothing beside it."
BREAKS = {
    "is not what its page shows as fig-00-norms": lambda root: (root / "book/figures/fig-00-norms.png").write_bytes(
        b64decode(DOT)
    ),
    "fig-00-norms has no alternative text": lambda root: edit_readme(root, "![A line that rises from left", "![A line"),
    "calls a figure 'fig-00-none'": lambda root: edit_readme(root, "fig-00-norms", "fig-00-none"),
    "its cells differ": lambda root: edit_source(root, "n = 2", "n = 3"),
    "the table steps changed": lambda root: (root / "data/results/steps.csv").write_text("n\n2\n"),
    "which does not exist": lambda root: (root / "data/results/steps.csv").unlink(),
    "never executed": lambda root: edit_pair(root, lambda _, cell: cell.update(execution_count=None)),
    "once each, in order": lambda root: edit_pair(root, lambda _, cell: cell.update(execution_count=7)),
    "is an error": shows("error", ename="ValueError", evalue="", traceback=[]),
    "is a warning": shows("stream", name="stderr", text="deprecated"),
    "an absolute path": lambda root: shows("stream", name="stdout", text=f"in {root}/data")(root),
    "a memory address": shows("stream", name="stdout", text="<f at 0x7f12ab34cd>"),
    "Python's words for an object": shows("stream", name="stdout", text="<bound method map of 3>"),
    "a NumPy scalar": shows("display_data", data=MINE),
    "which would read '-0.00'": lambda root: edit_glued(root, "-0.004"),
    "one cell shows 2 figures": draws(lambda cell: cell.outputs.append(cell.outputs[0])),
    "these without a figure": draws(lambda cell: cell.outputs.clear()),
    "figure without name": draws(lambda cell: cell.metadata.pop("mystnb")),
    "is fig-00-words, not fig-01-dot": draws(lambda cell: cell.metadata.mystnb.figure.update(name="fig-01-dot")),
    "in words of its own": draws(lambda cell: cell.metadata.mystnb.figure.update(caption=SEEN)),
    "it glues 'unread', which no text shows": shows("display_data", metadata={"scrapbook": {"name": "unread"}}),
    "kB, more than": shows("stream", name="stdout", text="x" * 400_000),
    "**Next:** names notebooks/07_other": lambda root: edit_source(
        root, "# # A page", "# # A page\n#\n# **Next:** {doc}`07_other`"
    ),
    "0.75 is typed": lambda root: edit_source(root, "# # A page", "# # A page\n#\n# It is 0.75."),
    "it does not exist": lambda root: (root / "notebooks/00_good.ipynb").unlink(),
    "notebooks/00_good is missing": contents(lambda text: "{format: jb-book, root: book/intro}"),
    "notebooks/02_gone has no source": contents(lambda text: text.replace("00_good", "02_gone")),
    "stands twice": contents(lambda text: text.replace("01_table", "00_good")),
    "00_good follows notebooks/01_table: numbers": contents(
        lambda text: text.replace("00_good", "9").replace("01_table", "00_good").replace("9", "01_table")
    ),
    "it has no source": lambda root: (root / "notebooks/00_good.py").unlink(),
}


@pytest.mark.parametrize("complaint", BREAKS)
def test_each_rule_sees_its_break(good, complaint):
    BREAKS[complaint](good)
    assert any(complaint in sentence for sentence in checks.complaints(good))


def test_a_complaint_is_printed_and_fails_the_command(good):
    edit_source(good, "n = 2", "n = 3")
    checked = command(good, "check")
    assert checked.returncode == 1
    assert "00_good.ipynb: its cells differ from the source" in checked.stdout
    assert "make notebooks" in checked.stdout


def fresh(root):
    """Which pages would not run again."""
    return [sources.is_fresh(root, source) for source in sources.sources(root)]


def test_nothing_unchanged_runs_twice(good):
    assert "2 unchanged, 0 to run" in command(good, "execute").stdout
    assert fresh(good) == [True, True]
    (good / "data/results/steps.csv").write_text("n\n2\n")
    assert fresh(good) == [True, False]
    (good / "lipnb" / "__init__.py").write_text("# a comment\n\n")
    (good / "lipnb" / "lipnb.egg-info").mkdir()
    (good / "lipnb" / "lipnb.egg-info" / "SOURCES.txt").write_text("as pip wrote them\n")
    assert fresh(good) == [True, False]
    (good / "lipnb" / "__init__.py").write_text("changed = True\n")
    assert fresh(good) == [False, False]


def test_a_statement_is_an_input_of_the_pages_that_name_it_alone(good):
    lines = [
        "id,source,name,claim,printed",
        "a.thm-1,paper,Statement 1,first,certain",
        "a.thm-2,paper,Two,second,certain",
    ]
    (good / "lab").mkdir()
    (good / "lab/statements.csv").write_text("\n".join(lines[:2]))
    assert fresh(good) == [True, True]
    edit_source(good, "n = 2", 'n = "a.thm-2"')
    before = [sources.fingerprint(good, source) for source in sources.sources(good)]
    (good / "lab/statements.csv").write_text("\n".join(lines))
    after = [sources.fingerprint(good, source) for source in sources.sources(good)]
    assert before[0] != after[0] and before[1] == after[1]


def test_a_page_whose_prose_alone_changed_runs_again(good):
    edit_source(good, "# # A page", "# # Another page")
    assert fresh(good) == [False, True]
    assert command(good, "execute").returncode == command(good, "pair").returncode == 0
    assert checks.complaints(good) == []


def test_one_page_can_be_run_alone(good):
    (good / "lipscan").mkdir()
    (good / "lipscan" / "__init__.py").write_text("new = True\n")
    assert "1 pages: 0 unchanged, 1 to run" in command(good, "execute", "01").stdout
    assert fresh(good) == [False, True]
    assert "no page has '99' in its name" in command(good, "execute", "99").stderr


def test_a_new_page_can_be_paired_alone(good):
    pair, run = good / "notebooks/01_table.ipynb", good / sources.EXECUTED / "00_good.ipynb"
    before = pair.read_bytes()
    pair.unlink()
    for path in (run, run.with_suffix(".run.json")):  # nobody has run the others here
        path.unlink()
    assert "pages not run yet: 1, the first 00_good" in command(good, "pair").stderr and not pair.exists()
    assert command(good, "pair", "01").returncode == 0 and pair.read_bytes() == before


def test_a_table_named_through_a_variable_counts(good):
    edit_source(good, "n = 2", 'n = "steps"')
    assert list(sources.tables(good, sources.sources(good)[0])) == ["steps"]


def test_a_table_counts_whose_name_a_page_forms(good):
    edit_source(good, "n = 2", 'results.load(f"st{n}s")')
    assert list(sources.tables(good, sources.sources(good)[0])) == ["steps"]


def test_all_tables_of_a_kind_count_where_a_page_loads_them_together(good):
    for name in ("atlas-some", "released-map-own", "unseen-map"):
        (good / "data" / "results" / f"{name}.csv").write_text("n\n1\n")
    edit_source(good, "n = 2", "layer_growth.stored()")
    assert list(sources.tables(good, sources.sources(good)[0])) == ["atlas-some"]
    edit_source(good, "layer_growth.stored()", "layer_growth.of_other_models(0.25)")
    assert list(sources.tables(good, sources.sources(good)[0])) == ["atlas-some", "released-map-own"]
    edit_source(good, "layer_growth.of_other_models(0.25)", "all_counts()")
    assert list(sources.tables(good, sources.sources(good)[0])) == ["atlas-some", "released-map-own", "unseen-map"]


def test_the_environment_counts_as_an_input(good, monkeypatch):
    source = sources.sources(good)[0]
    before = sources.fingerprint(good, source)
    monkeypatch.setenv("NLTK_DATA", "elsewhere")
    assert sources.fingerprint(good, source) != before


def test_a_second_run_gives_the_same_bytes(good):
    before = [source.with_suffix(".ipynb").read_bytes() for source in sources.sources(good)]
    shutil.rmtree(good / "_build")
    assert command(good, "execute").returncode == 0
    assert command(good, "pair").returncode == 0
    assert [source.with_suffix(".ipynb").read_bytes() for source in sources.sources(good)] == before


def test_a_failing_page_is_named_and_kept_and_stops_no_other(tmp_path):
    bad = GOOD.replace("n = 2", "n = 1 / 0")
    root = repository(tmp_path / "bad", **{"00_bad": bad, "01_good": GOOD})
    tracked = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    ran = command(root, "execute")
    assert ran.returncode == 1
    assert "00_bad.py, code cell 1: ZeroDivisionError: division by zero" in ran.stderr
    assert "Traceback" not in ran.stderr
    kept = nbformat.read(root / "_build" / "failed" / "00_bad.ipynb", as_version=4)
    assert any(out.output_type == "error" for cell in kept.cells for out in cell.get("outputs", []))
    assert (root / "_build" / "notebooks" / "01_good.ipynb").exists()
    assert all(path.read_bytes() == content for path, content in tracked.items())
    assert fresh(root) == [False, True]


def test_a_book_of_pages_edited_since_says_which_and_how_to_bring_them_up_to_date(good):
    """`make html` showed the old text without a word."""
    (good / "_config.yml").write_text("title: x\n")
    (good / "data/results/steps.csv").write_text("n\n2\n")  # a page that is stale otherwise shows its own text
    assert command(good, "stage").stderr == ""
    edit_source(good, "# # A page", "# # A page with another title")
    told = command(good, "stage")
    line = (
        "00_good: shown as before the last edit of the .py. `.venv/bin/python -m lab pages execute 00` and "
        "`.venv/bin/python -m lab pages pair 00` bring the .ipynb up to date.\n"
    )
    assert told.returncode == 0 and told.stderr == line
    (good / "notebooks/01_table.py").write_text(TABLE)
    assert "00_good, 01_table: shown as" in (said := command(good, "stage").stderr) and "pages pair 00 01`" in said
    (good / "_build/notebooks").mkdir(parents=True, exist_ok=True)
    assert command(good, "stage", "--notebooks", "_build/notebooks").stderr == ""  # their last runs, as `make book`


def test_staging_shows_the_figure_and_rewrites_nothing(good):
    assert command(good, "stage").returncode == 1  # no _config.yml in this small repository
    (good / "_config.yml").write_text("title: a book\n")
    assert command(good, "stage").returncode == 0
    staged = good / "_build" / "source" / "notebooks" / "00_good.ipynb"
    before = staged.stat().st_mtime_ns
    (staged.parent / "09_old.ipynb").write_text("left from a page that is gone")
    assert command(good, "stage").returncode == 0
    assert staged.stat().st_mtime_ns == before
    assert not (staged.parent / "09_old.ipynb").exists()


def test_prose_shows_a_figure_by_its_name_not_the_last_of_its_page(good):
    """The page's last picture is one black point; the front page and README.md mean the norms."""
    (good / "_config.yml").write_text("title: a book\n")
    (good / "book" / "intro.md").write_text("# Intro\n\n```{figure} figures/fig-00-norms.png\n:alt: x\nNorms\n```\n")
    assert command(good, "stage").returncode == 0
    staged = {path.name: path.read_bytes() for path in (good / "_build/source/book/figures").glob("*")}
    assert list(staged) == ["fig-00-norms.png"] and staged["fig-00-norms.png"] != b64decode(DOT)
    assert staged["fig-00-norms.png"] == (good / "book/figures/fig-00-norms.png").read_bytes()
    (good / "book/figures/01_old.png").write_bytes(b"shown once")
    assert command(good, "pair").returncode == 0
    assert [path.name for path in (good / "book/figures").glob("*")] == ["fig-00-norms.png"]
    said = [sentence for sentence in checks.complaints(good) if "intro.md" in sentence]
    assert [sentence.split(": ")[1][:34] for sentence in said] == ["fig-00-norms has no alternative te"]


def nbval(root):
    """The committed pages of a repository, run and compared as `make test` does it."""
    shutil.copy(ROOT / "notebooks" / "conftest.py", root / "notebooks")
    words = ["-m", "pytest", "--nbval-lax", "--nbval-current-env", "notebooks", "-q", "-p", "no:cacheprovider"]
    return subprocess.run([sys.executable, *words], cwd=root, capture_output=True, text=True, check=False)


def test_a_committed_page_that_shows_something_else_than_its_run_fails(good):
    assert nbval(good).returncode == 0
    edit_pair(good, lambda _, cell: cell.outputs[0].update(text="5\n"))
    told = nbval(good)
    assert told.returncode == 1 and "1 failed" in told.stdout and "00_good.ipynb" in told.stdout


def test_a_verdict_that_a_run_turns_fails_and_one_whose_numbers_differ_does_not(good):
    """Measured ratios differ between machines; what they say does not."""
    row = {"id": "a.thm-1", "form": "as printed", "verdict": "holds", "worst_ratio": 0.5}
    shows = f"from IPython.display import display\ndisplay({{{MIME!r}: [{row}]}}, raw=True)"

    def verdict(cell, **other):
        cell.source, cell.outputs = f"n = 2\n{shows}", [output("display_data", data={MIME: [{**row, **other}]})]

    edit_pair(good, lambda cell, _: verdict(cell, worst_ratio=0.6))
    assert nbval(good).returncode == 0
    edit_pair(good, lambda cell, _: verdict(cell, verdict="refuted"))
    told = nbval(good)
    assert told.returncode == 1 and "the verdicts differ from those of the committed page" in told.stdout
