"""Numbers of prose pages: what a page glued stands in the staged text, and what is missing stops the staging."""

import subprocess
import sys
from dataclasses import asdict

import nbformat
import pytest

from lab import ledger
from lab.pages import glued, layout


def glue(key, value, prefix="application/papermill.record/"):
    """An output as `myst_nb.glue` leaves it, shown or not."""
    scrapbook = {"mime_prefix": prefix, "name": key}
    return nbformat.v4.new_output("display_data", {f"{prefix}text/plain": value}, metadata={"scrapbook": scrapbook})


@pytest.fixture
def root(tmp_path):
    """A repository of one executed page, which glued some numbers and a word, and a front page."""
    for name in ("notebooks", "book", "lab", "data/results"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "_config.yml").write_text("title: a book\n")
    (tmp_path / "_toc.yml").write_text("{format: jb-book, root: book/intro}\n")
    (tmp_path / "notebooks" / "41_text.py").write_text("# %%\n")
    outputs = [glue("slope", "0.2718"), glue("layers", "19"), glue("word", "'high'"), glue("shown", "7.5", "")]
    outputs += [glue("small", "-0.004"), glue("none", "0")]
    cells = [nbformat.v4.new_code_cell("1", outputs=outputs)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "notebooks" / "41_text.ipynb")
    return tmp_path


def stage(root, text):
    """The staged front page of that text."""
    (root / "book" / "intro.md").write_text(text)
    assert layout.stage(root, root / "notebooks", root / "_build" / "source") == 0
    return (root / "_build" / "source" / "book" / "intro.md").read_text()


def test_a_mark_becomes_the_number_of_the_page(root):
    marks = "layers", "slope:.2f", "shown:.0f", "slope:.0%"
    text = "# Front\n\n" + ", ".join(f"{{from}}`41_text:{mark}`" for mark in marks) + "\n"
    assert stage(root, text) == "# Front\n\n19, 0.27, 8, 27%\n"
    assert (root / "book" / "intro.md").read_text() == text  # the source keeps its marks


def test_the_ledger_has_its_counts(root):
    (root / "lab" / "statements.csv").write_text("id,source,name,claim,printed\n")
    assert stage(root, "# Front\n\n{from}`ledger:statements` of {from}`ledger:holds`\n") == "# Front\n\n0 of 0\n"


def test_the_ledger_counts_statements_forms_verdicts_and_the_cases_of_each(root):
    """One statement, tested in two forms on 1,200 and on 30 inputs; the variant does not decide."""
    (root / "lab" / "statements.csv").write_text(
        "id,source,name,claim,printed\ncastin.thm-3.3,one,Theorem 1,a claim,certain\n"
    )
    how = {"seen": "reconstructed", "effort": "random", "grounds": "drawn"}
    rows = [
        ledger.upper("castin.thm-3.3", "as stated", [0.5, 0.7] * 600, **how),
        ledger.upper("castin.thm-3.3", "tighter", [0.9, 1.1] * 15, variant=True, counter_example="x = 1", **how),
    ]
    path = root / "notebooks" / "41_text.ipynb"
    notebook = nbformat.read(path, as_version=4)
    output = nbformat.v4.new_output("display_data", {ledger.MIME: [asdict(row) for row in rows]})
    notebook.cells.append(nbformat.v4.new_code_cell("ledger.record()", outputs=[output]))
    nbformat.write(notebook, path)
    keys = "statements", "forms", "holds", "fails", "refuted", "castin.thm-3.3:,d"
    text = "# Front\n\n" + " ".join(f"{{from}}`ledger:{key}`" for key in keys) + "\n"
    assert stage(root, text) == "# Front\n\n1 2 1 0 0 1,200\n"


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("42_other:slope:.2f", "there is no executed page '42_other'"),
        ("41_text:slop:.2f", "page 41_text glues no 'slop'"),
        ("41_text", "page 41_text glues no ''"),
        ("41_text:word", "page 41_text glues 'word' as 'high', which is no number"),
        ("41_text:slope:d", "0.2718, glued by page 41_text as 'slope', cannot be written as 'd'"),
        ("41_text:layers:nonsense", "cannot be written as 'nonsense'"),
        ("ledger:theorems", "page ledger glues no 'theorems'"),
        ("41_text:slope:.0f", "0.2718, glued by page 41_text as 'slope', is not zero but would read '0'"),
        ("41_text:small:.2f", "is not zero but would read '-0.00'"),
        ("41_text:small:.0%", "is not zero but would read '-0%'"),
    ],
)
def test_a_mark_without_its_number_stops_the_staging_with_one_sentence(root, mark, said):
    (root / "book" / "intro.md").write_text(f"# Front\n\nAll of {{from}}`{mark}` layers.\n")
    [sentence] = glued.complaints(root, root / "notebooks")
    assert sentence.startswith(f"book/intro.md: {{from}}`{mark}`: ") and said in sentence
    ran = subprocess.run(
        [sys.executable, "-m", "lab", "pages", "--root", str(root), "stage"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1 and ran.stderr.strip() == sentence
    assert not (root / "_build").exists()
    with pytest.raises(ValueError, match="intro.md"):
        layout.book_files(root, root / "notebooks")


def test_a_zero_may_read_zero(root):
    marks = "none:.2f", "none", "small:.1e"
    text = "# Front\n\n" + ", ".join(f"{{from}}`41_text:{mark}`" for mark in marks) + "\n"
    assert stage(root, text) == "# Front\n\n0.00, 0, -4.0e-03\n"


def test_a_key_glued_twice_has_one_value(root, capsys):
    path = root / "notebooks" / "41_text.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell("2", outputs=[glue("layers", "19")]))
    nbformat.write(notebook, path)
    assert stage(root, "# Front\n\n{from}`41_text:layers`\n") == "# Front\n\n19\n"
    notebook.cells.append(nbformat.v4.new_code_cell("3", outputs=[glue("layers", "20")]))
    nbformat.write(notebook, path)
    (root / "book" / "intro.md").write_text("# Front\n\nNo mark.\n")
    said = "notebooks/41_text.py: page 41_text: 'layers' is glued as 19 and as 20; give each number a key of its own"
    assert [*glued.complaints(root, root / "notebooks")] == [said]
    assert layout.stage(root, root / "notebooks", root / "_build" / "source") == 1
    assert capsys.readouterr().err.strip() == said
