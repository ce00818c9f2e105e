"""The frame of the book: what heads say, numbers in the contents, the reference."""

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from docutils import nodes
from sphinx import addnodes

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def frame():
    """The extension, which Sphinx loads by its path."""
    spec = importlib.util.spec_from_file_location("frame", ROOT / "book" / "_ext" / "frame.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def paragraph(*parts):
    """A paragraph of texts, and of formulas where a part is in dollars."""
    made = nodes.paragraph()
    for part in parts:
        made += nodes.math("", part.strip("$")) if part.startswith("$") else nodes.Text(part)
    return made


def test_a_page_is_described_by_its_first_sentence_without_formulas(frame):
    parts = paragraph("Too short."), paragraph("The constant ", "$n^2$", ", of all that we measured, grows.")
    page = nodes.section("", *parts)
    assert frame.description(page) == "The constant, of all that we measured, grows."


def test_pages_are_numbered_by_their_files_once(frame):
    def toc(title):
        return nodes.bullet_list("", nodes.list_item("", nodes.paragraph("", "", nodes.reference("", title))))

    env = SimpleNamespace(tocs={"notebooks/41_text": toc("Text"), "book/notation": toc("Notation")})
    for _ in range(2):  # an environment that was kept holds the number already
        frame.number(None, env)
    assert env.tocs["notebooks/41_text"].astext().split() == ["41", "Text"]
    assert env.tocs["book/notation"].astext() == "Notation"


def test_a_term_is_linked_once_on_a_page_and_not_in_a_title(frame):
    """Whatever its first letter; the glossary itself keeps its links."""

    def page(docname):
        def term(target, said):
            link = addnodes.pending_xref("", nodes.inline("", said), reftype="term", reftarget=target)
            return nodes.paragraph("", "", link)

        title = nodes.title("", "", *term("bound", "bound").children)
        folded = nodes.rubric("", "", *term("token", "token").children)
        body = [term("Attention", "Attention"), term("attention", "attention"), term("bound", "bounds")]
        made = nodes.section("", title, folded, *body)
        frame.link_once(SimpleNamespace(env=SimpleNamespace(docname=docname)), made)
        return made, [link["reftarget"] for link in made.findall(addnodes.pending_xref)]

    made, kept = page("notebooks/41_text")
    assert kept == ["Attention", "bound"] and made.astext().split() == "bound token Attention attention bounds".split()
    assert len(page("book/glossary")[1]) == 5


def test_a_head_escapes_what_the_page_says(frame):
    front = nodes.section("", nodes.image(uri="book/figures/fig-01-push.png"))
    env = SimpleNamespace(get_doctree=lambda name: front)
    app = SimpleNamespace(env=env, config=SimpleNamespace(html_title="A book", root_doc="book/intro"))
    context = {"title": "<em>A</em> &amp; B", "pathto": lambda path, resource: f"../{path}", "metatags": "kept"}
    page = nodes.section("", paragraph('It is "so" & so, as everyone here knows.'))
    frame.describe(app, "page", "page.html", context, page)
    for said in ("kept", 'content="A &amp; B"', "&quot;so&quot; &amp; so", "../_images/fig-01-push.png"):
        assert said in context["metatags"]


def test_every_module_is_described_once_and_the_index_names_only_those():
    pages = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "book").glob("api*.md")}
    modules = [name for text in pages.values() for name in re.findall(r"automodule:: ([\w.]+)", text)]
    assert len(modules) == len(set(modules)) and len(pages) <= 12
    assert {"lipnb.bounds", *re.findall(r"\{py:mod\}`([\w.]+)`", pages["api.md"])} <= set(modules)
    assert re.search(r"automodule:: lipnb.bounds\n   :members:\n", pages["api_bounds.md"])  # all that it exports
