"""The book as one PDF: a book of three small pages, printed by a real browser."""

import os
import shutil
from pathlib import Path

import pytest

from lab.pages import paper

ROOT = Path(__file__).parents[2]
PAGES = {
    "book/front": '<h1>The front</h1><p>See <a href="../notebooks/01_one.html#claim">one</a>, not '
    '<a href="../genindex.html">the index</a> nor <a href="https://example.org/x">elsewhere</a>.</p>',
    "notebooks/01_one": '<h1 id="top">One page<a class="headerlink" href="#top">#</a></h1>'
    '<p id="claim">A norm <span class="math">\\(\\norm{x}\\)</span>. <a href="02_two.html">two</a></p>'
    '<details class="sd-dropdown"><summary>Proof</summary><p>It is proved.</p></details>'
    '<details class="hide"><summary>Show code</summary><pre>hidden = 1</pre></details>',
    "notebooks/02_two": '<h1>Another</h1><h2 id="claim">A claim</h2><p><a href="#claim">here</a></p>'
    "<p><strong>Next:</strong> nothing follows.</p>"
    '<img src="../_images/dot.png">',
}
HEAD = """<head><link rel="stylesheet" href="../_static/custom.css" />
<script>window.MathJax = {"tex": {"macros": {"norm": ["\\\\lVert #1 \\\\rVert", 1]}}}</script></head>"""
TOC = """root: book/front
parts:
  - caption: First part
    chapters:
      - file: notebooks/01_one
        sections: [{file: notebooks/02_two}]
"""


@pytest.fixture
def small(tmp_path):
    """A repository with a rendered book of three pages."""
    html = tmp_path / "_build" / "html"
    for name, body in PAGES.items():
        (html / name).parent.mkdir(parents=True, exist_ok=True)
        (html / f"{name}.html").write_text(f"<html>{HEAD}<body><article>{body}</article></body></html>")
    (html / "_static").mkdir()
    (html / "_static" / "custom.css").write_text("")
    (html / "_images").mkdir()
    shutil.copy(ROOT / "book" / "figures" / "fig-01-push.png", html / "_images" / "dot.png")
    (tmp_path / "_toc.yml").write_text(TOC)
    (tmp_path / "_config.yml").write_text("title: A small book\nauthor: Nobody\n")
    (tmp_path / paper.STYLE).parent.mkdir(parents=True)
    shutil.copy(ROOT / paper.STYLE, tmp_path / paper.STYLE)
    return tmp_path


def test_one_document(small):
    text = paper.one_document(small, small / "_build" / "html", {name: 7 for name in PAGES})
    # links between pages stay in the document, ids are those of their pages, and the rest is words
    assert 'href="#notebooks-01_one--claim"' in text and 'id="notebooks-01_one--claim"' in text
    assert 'href="#notebooks-02_two"' in text and 'id="notebooks-02_two--claim"' in text
    assert 'href="https://example.org/x"' in text and "genindex" not in text
    assert '<span class="sheet-number">7</span>' in text and "First part</h1>" in text
    assert '<details class="sd-dropdown" open="">' in text and "hidden = 1" not in text and "headerlink" not in text
    assert "<h2>Another</h2>" in text and "<h3" in text and "<h1>The front</h1>" in text
    assert 'src="_images/dot.png"' in text and "macros" in text and "nothing follows" not in text


def test_a_page_that_is_not_rendered(small):
    (small / "_build" / "html" / "notebooks" / "02_two.html").unlink()
    with pytest.raises(FileNotFoundError, match=r"notebooks/02_two is not rendered: run `make html`"):
        paper.one_document(small, small / "_build" / "html")


def test_no_browser(small, monkeypatch):
    monkeypatch.setattr(paper.shutil, "which", lambda _: None)
    with pytest.raises(RuntimeError, match="no browser prints the book: install one"):
        paper.write(small, small / "_build" / "html", small / "book.pdf")


def test_the_print(small):
    if paper.browser_path() is None:
        reason = "no browser: install one, for example `apt-get install chromium`"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    import pikepdf

    said, html = [], small / "_build" / "html"
    sheets = paper.write(small, html, small / "book.pdf", say=said.append)
    assert len(said) == 2 and not list(html.glob("whole*")) and not list(small.glob("*.loose.pdf"))
    with pikepdf.open(small / "book.pdf") as pdf:
        assert len(pdf.pages) == sheets == 6  # title, contents, front, part, two pages
        assert paper.starts(pdf, PAGES) == {"book/front": 3, "notebooks/01_one": 5, "notebooks/02_two": 6}
        with pdf.open_outline() as outline:
            assert [item.title.startswith(("The front", "First part")) for item in outline.root] == [True, True]
            assert len(outline.root[1].children) == 2
        links = [note for page in pdf.pages for note in page.get("/Annots", ()) if note.get("/Subtype") == "/Link"]
        outside = [str(note.A.URI) for note in links if "/A" in note and "/URI" in note.A]
        assert outside == ["https://example.org/x"]
        assert len(links) >= 3 + 4  # of the contents, and of the pages
