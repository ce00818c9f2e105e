"""The frame of the book: what heads and feet say, formulas with their full stops, the reference."""

import importlib.util
import re
from enum import Enum
from pathlib import Path
from types import SimpleNamespace

import pytest
from docutils import nodes
from sphinx import addnodes
from sphinx.ext.napoleon import NumpyDocstring

ROOT = Path(__file__).parents[2]


def extension(name):
    """An extension, which Sphinx loads by its path."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "book" / "_ext" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def frame():
    return extension("frame")


@pytest.fixture(scope="module")
def docstrings():
    return extension("docstrings")


def paragraph(*parts):
    """A paragraph of texts, and of formulas where a part is in dollars."""
    made = nodes.paragraph()
    for part in parts:
        made += nodes.math("", part.strip("$")) if part.startswith("$") else nodes.Text(part)
    return made


def test_a_page_is_described_by_its_first_sentence_and_formulas_are_plain_or_left_out(frame):
    said = "The constant ", r"$\norm V_2$", ", of all ", "$n$", ", grows like ", r"$n^{1/4} \sqrt n$", " in .table."
    page = nodes.section("", paragraph("Too short."), paragraph(*said))
    assert frame.description(page) == "The constant, of all n, grows like n^(1/4) √n in .table."


def test_a_formula_keeps_its_brackets_and_its_full_stop(frame):
    page = nodes.section("", paragraph("of order (", "$n$", "), and ", "$m$", " or ", "$k$", "."), paragraph("$d$"))
    frame.keep_together(None, page)
    kept = [one.astext() for one in page.findall(nodes.inline) if one["classes"] == ["together"]]
    assert kept == ["(n),", "k."] and page[0].astext() == "of order (n), and m or k."
    assert len(list(page.findall(nodes.math))) == 4


@pytest.mark.parametrize("address", ["", "https://example.org/a"])
def test_the_foot_names_the_address_that_is_set_and_invents_none(frame, address):
    config = SimpleNamespace(html_theme_options={"repository_url": address, "extra_footer": "<p>Ours.</p>"})
    frame.say_where(None, config)
    foot = config.html_theme_options["extra_footer"]
    assert foot.startswith("<p>Ours.</p>") and "mistake found" in foot
    assert re.findall('href="([^"]*)"', foot) == [address][: bool(address)]


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


def test_fields_that_share_a_description_are_described_one_by_one(docstrings):
    lines = [
        "Low, high : no fields.",
        "",
        "low, high : float",
        "    Bounds,",
        "    with rounding.",
        "a, b",
        "    Others.",
    ]
    docstrings.divide_fields(None, "class", "", None, {}, lines)
    bounds = ["    Bounds,", "    with rounding."]
    single = ["low : float", *bounds, "high : float", *bounds, "a", "    Others.", "b", "    Others."]
    assert lines == ["Low, high : no fields.", "", *single]


@pytest.mark.parametrize("what", ["property", "function"])
def test_a_colon_in_the_first_sentence_of_a_property_makes_no_type(docstrings, what):
    """Before Sphinx reads it; a function's first sentence is read as it stands."""
    lines = ["Where it holds: on a ball."]
    docstrings.keep_colons(None, what, "", None, {}, lines)
    assert str(NumpyDocstring(lines, None, None, what, "x", None)).strip() == "Where it holds: on a ball."


def test_a_page_of_source_leads_back_to_the_name_that_is_described(docstrings):
    known = {"lipnb.a.windows": "book/api_a", "lipnb.corpora.windows": "book/api_models"}
    known |= {"lipnb.a.Kept.of": "book/api_a", "lipnb.a.of": "book/api_a"}
    objects = {name: SimpleNamespace(docname=page) for name, page in known.items()}
    app = SimpleNamespace(env=SimpleNamespace(get_domain=lambda name: SimpleNamespace(objects=objects)))
    link = '<a class="viewcode-back" href="../../book/{}.html#{}">'
    for page, named, described in (
        ("api_models", "lipnb.models.windows", "lipnb.corpora.windows"),
        ("api_a", "lipnb.b.Kept.of", "lipnb.a.Kept.of"),
        ("api_a", "lipnb.a.of", "lipnb.a.of"),
    ):
        context = {"body": link.format(page, named)}
        docstrings.lead_back(app, "_modules/lipnb/a", "page.html", context, None)
        assert context["body"] == link.format(page, described)


def test_an_enumeration_shows_its_members_and_no_arguments(docstrings):
    kind, lines = Enum("Kind", {"A": "one", "B": "two"}), ["Kinds."]
    docstrings.list_values(None, "class", "Kind", kind, {}, lines)
    assert [*filter(None, lines)] == ["Kinds.", "- ``A``: one", "- ``B``: two"]
    assert docstrings.no_arguments(None, "class", "Kind", kind, {}, "(value, *, names=None)", None) == ("", None)
    assert docstrings.no_arguments(None, "class", "int", int, {}, "(x)", None) is None
