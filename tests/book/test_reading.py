"""What can be kept of a readable page: each rule is broken once, and a good page has no complaint."""

import json
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from lab.cli import main
from lab.pages import reading
from lab.pages.reading import Page

ROOT = Path(__file__).parents[2]
HEAD = """# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

"""
GLOSSARY = """# Glossary

:::{glossary}
token
  One vector.

attention
attention head
  A map.

two clusters
  An input.
:::
"""
ALIGNED = """     n  constant  bound
     2      1.50   12.2
    10      3.25   41.0
   100     11.75  400.5
"""
SPACED = "a     b    c\n1  2   3\n4     5   6\n"
PNG = v4.new_output("display_data", {"image/png": "iVBORw0KGgo="})


def page(text="", *cells, name="notebooks/41_growth"):
    """A page of Markdown and code cells."""
    return Page(name, text, v4.new_notebook(cells=[v4.new_markdown_cell(text), *cells]))


def code(source="1", tags=(), *outputs):
    return v4.new_code_cell(source, metadata={"tags": [*tags]}, outputs=[*outputs])


def printed(text):
    return v4.new_output("stream", name="stdout", text=text)


def said(rule, *arguments):
    return [*rule(*arguments)]


def words(count):
    return " ".join(["word"] * count)


def test_words_are_those_a_reader_meets():
    counted = page(
        "# A title\n\n<!-- figure fig-41-a: not counted at all -->\n*A caption counts.*\n\n"
        "Where $x + y$ is {term}`one thing <token>` and `code`.\n\n$$\na + b\n$$\n\n"
        "```python\nnot = counted\n```\n\n:::{dropdown} Proof\nNot counted.\n:::\n\n"
        ":::{prf:theorem} The bound\n:label: bound\n\nIt holds.\n:::\n"
    )
    # A title | A caption counts | Where formula is one thing and code | formula | The bound It holds
    assert counted.words == 2 + 3 + 7 + 1 + 4


@pytest.mark.parametrize(("count", "fine"), [(599, False), (600, True), (1500, True), (1501, False)])
def test_a_page_has_600_to_1500_words(count, fine):
    found = said(reading.limits, page(f"# Title\n\n{words(count - 1)}"), {})
    assert found == ([] if fine else [f"{count} words, outside 600 to 1500"])


def test_an_exception_gives_another_limit_or_none():
    short, long = page(f"# T\n\n{words(3)}"), page(f"# T\n\n{words(1600)}")
    assert said(reading.limits, short, {("41_growth", "words"): [""]}) == []
    assert said(reading.limits, long, {("*", "words"): ["1700"]}) == []
    assert said(reading.limits, long, {("41_growth", "words"): ["1600"]}) == ["1601 words, outside 600 to 1600"]
    assert len(said(reading.limits, long, {("42_other", "words"): [""]})) == 1


def test_folded_code_and_blank_lines_are_out_of_sight():
    shown = code("a = 1\n\nb = 2"), code("c = 3", ["hide-input"]), code("d = 4", ["nbval-check-output"])
    assert page("# T", *shown).lines == 3
    many = page(f"# T\n\n{words(700)}", code("\n".join(["x = 1"] * 81)))
    assert said(reading.limits, many, {}) == ["81 lines of code in sight, outside 0 to 80"]


def test_a_title_fits_the_sidebar():
    fine, long = (page(f"# {'t' * size}\n\n{words(700)}") for size in (45, 46))
    assert said(reading.limits, fine, {}) == []
    assert said(reading.limits, long, {}) == ["46 characters in its title, outside 1 to 45"]
    assert len(said(reading.limits, page(words(700)), {})) == 1


@pytest.mark.parametrize("text", [ALIGNED, SPACED, "x\n" + ALIGNED])
def test_a_table_as_text_is_found(text):
    assert len(page("", code("1", [], printed(text))).printed) == 1
    frame = v4.new_output("execute_result", {"text/plain": text})
    assert len(page("", code("1", [], frame)).printed) == 1
    assert "table is printed as text" in said(reading.tables, page("", code("1", [], frame)), {})[0]
    assert said(reading.tables, page("", code("1", [], frame)), {("41_growth", "table"): [""]}) == []
    shown = v4.new_output("execute_result", {"text/plain": text, "text/html": "<table></table>"})
    assert page("", code("1", [], shown)).printed == []


@pytest.mark.parametrize(
    "text",
    [
        "text: alice, 5 windows of 64 tokens\n12 inputs, largest error 2e-12\n✓ 12 assertions hold\n",
        "[[ 1.0  0.0  0.0]\n [ 0.0  1.0  0.0]\n [ 0.0  0.0  1.0]]\n",
        "layer 2: 1.5\nlayer 10: 22.5\nall 12 layers: 7\n",
    ],
)
def test_sentences_and_small_arrays_are_no_tables(text):
    assert page("", code("1", [], printed(text))).printed == []


ORDER = ["book/intro", "notebooks/41_growth", "notebooks/42_inputs", "book/solver"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("No next.", None),
        ("**Next:** {doc}`42_inputs`, the inputs.", None),
        ("**Next:** {doc}`the inputs <42_inputs>`.", None),
        ("**Next:** {doc}`44_positions`.", "names notebooks/44_positions, the table of contents goes on with"),
        ("**Next:** {doc}`../book/solver`.", "names book/solver"),
        ("**Next:** {doc}`42_inputs`.\n\nAnd more.", "in the last paragraph"),
    ],
)
def test_next_is_the_next_page(text, complaint):
    found = said(reading.following, page(f"# T\n\n{text}"), ORDER, {})
    assert found == [] if complaint is None else complaint in found[0]


def test_next_crosses_folders_and_the_last_page_has_none():
    assert said(reading.following, page("**Next:** {doc}`../book/solver`", name=ORDER[2]), ORDER, {}) == []
    last = said(reading.following, page("**Next:** {doc}`../notebooks/41_growth`", name=ORDER[3]), ORDER, {})
    assert "goes on with None" in last[0]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("We used the text at hand.", "at hand"),
        ("As we\nrecovered it.", "recovered"),
        ("The heat of a head.", "heat"),
        ("A heat map of heads.", None),
        ("It hangs on the radius.", "hangs on"),
        ("It climbed.", "climbed"),
        ("The printed bound.", "printed bound"),
        ("On double-logarithmic axes.", "double-logarithmic"),
        ("In `heat = 2` and {func}`climbed` and $heat$.", None),
        (":::{prf:theorem} As recovered\nIt holds.\n:::", "recovered"),
        ("<!-- figure fig-41-a: axes that are double logarithmic -->\n*Seen.*", "double logarithmic"),
    ],
)
def test_the_words_that_the_book_does_without(text, found):
    complaints = said(reading.words, ROOT, page(text), {})
    assert complaints == [] if found is None else complaints[0].startswith(f"it says \u201c{found}\u201d; say ")
    assert said(reading.words, ROOT, page(text), {("41_growth", "word"): [""]}) == []


TERMS = {"token", "attention", "attention head", "two clusters", "seen"}


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("A {term}`token` and tokens.", {"token": True}),
        ("Tokens, and then a {term}`token`.", {"token": False}),
        ("Some {term}`tokens <token>`.", {"token": True}),
        ("# Token\n\n`token` and $token$ and {doc}`token` and a {term}`token`.", {"token": True}),
        ("An attention head.", {"attention head": False}),
        ("An {term}`attention head`; attention.", {"attention head": True, "attention": False}),
        (":::{prf:theorem} Token\nA token.\n:::\n\nNothing.", {}),
        (":::{prf:theorem} Token\nA {term}`token`.\n:::\n\nA token.", {"token": True}),
        ("```python\ntoken = 1\n```", {}),
        ("Two\nclusters.", {"two clusters": False}),
        ("An {term}`attention` of `code`, a {term}`token` and tokens.", {"attention": True, "token": True}),
        ("```{figure} a.png\n:alt: Tokens apart\nSome {term}`tokens <token>`.\n```", {"token": True}),
    ],
)
def test_terms_are_linked_at_their_first_use(text, used):
    assert reading.uses(text, TERMS) == used
    one = Page("notebooks/41_growth", text, None, reading.uses(text, TERMS))
    bare = sorted(term for term, link in used.items() if not link)
    assert said(reading.links, one, {}) == (
        [f"not linked to the glossary at their first use: {', '.join(bare)}"] if bare else []
    )
    assert said(reading.links, one, {("*", "term"): bare}) == []


def repository(folder, **sources):
    """A book of these pages."""
    for name in ("notebooks", "book/story"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, text in sources.items():
        (folder / "notebooks" / f"{name}.py").write_text(HEAD + text)
    (folder / "book" / "intro.md").write_text("# Intro\n")
    (folder / "book" / "glossary.md").write_text(GLOSSARY)
    (folder / "book" / "story" / "reading.csv").write_text(
        "page,rule,text,reason\nintro,words,,short\nglossary,words,,list\n"
    )
    (folder / "_toc.yml").write_text(
        json.dumps({"root": "book/intro", "chapters": [{"file": f"notebooks/{name}"} for name in sources]})
    )
    return folder


def test_the_terms_are_those_of_the_glossary(tmp_path):
    assert reading.glossary(repository(tmp_path)) == {"token", "attention", "attention head", "two clusters"}


def test_a_good_book_has_no_complaint_and_its_counts_are_printed(tmp_path, capsys):
    good = f"# %% [markdown]\n# # A page\n#\n# A {{term}}`token`. {words(700)}\n\n# %%\nn = 2\n"
    root = repository(tmp_path, **{"11_good": good})
    assert [*reading.complaints(root)] == []
    assert main(["pages", "--root", str(root), "count"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "3 pages counted, 0 complaint(s)"
    assert next(line for line in lines if line.startswith("11_good")).split() == (
        ["11_good", "704", "1", "0", "0", "of", "0", "1", "of", "1", "6"]
    )


def test_each_fault_of_a_book_is_said_with_its_page(tmp_path, capsys):
    bad = "# %% [markdown]\n# # A page\n#\n# A token.\n#\n# **Next:** {doc}`13_other`\n\n# %%\nplt.show()\n"
    root = repository(tmp_path, **{"11_bad": bad})
    pair = v4.new_notebook(cells=[v4.new_markdown_cell("# A page"), v4.new_code_cell("plt.show()", outputs=[PNG])])
    nbformat.write(pair, root / "notebooks" / "11_bad.ipynb")
    found = [*reading.complaints(root)]
    for part in ("6 words, outside", "Next:** names notebooks/13_other", "first use: token", "no caption block"):
        assert sum(part in sentence and sentence.startswith("11_bad: ") for sentence in found) == 1, (part, found)
    assert main(["pages", "--root", str(root), "count"]) == 1
    assert "complaint(s)" in capsys.readouterr().out


def test_the_first_four_pages_are_short_together(tmp_path):
    four = {
        f"0{i}_page": f"# %% [markdown]\n# # A page\n#\n# {words(640)}\n\n# %%\n" + "n = 2\n" * 21 for i in (1, 2, 3, 4)
    }
    found = [*reading.complaints(repository(tmp_path, **four))]
    assert found == [
        "the first four pages have 2568 words together, more than 2500",
        "the first four pages have 84 lines together, more than 80",
    ]
    for name in four:
        (tmp_path / "notebooks" / f"{name}.py").write_text(HEAD + f"# %% [markdown]\n# # A page\n#\n# {words(300)}\n")
    assert [*reading.complaints(tmp_path)] == []  # short pages, which are read as one


def test_an_exception_may_be_of_many_pages():
    text, known = "A token.", {("41_*", "term"): [""]}
    assert said(reading.links, Page("notebooks/41_growth", text, None, reading.uses(text, TERMS)), known) == []
    assert said(reading.links, Page("notebooks/42_other", text, None, reading.uses(text, TERMS)), known)


def test_the_lists_name_rules_that_there_are():
    rules = {"words", "lines", "title", "table", "next", "word", "term"}
    for row in reading.rows(ROOT / reading.EXCEPTIONS):
        assert row["rule"] in rules and row["reason"], row
    for row in reading.rows(ROOT / reading.WORDS):
        assert row["word"] and row["but"], row
