"""The whole book on paper: the rendered pages put into one document, which a browser prints twice.

The first print says on which sheet each page begins; the second has these numbers in its list of contents.
"""

import re
import shutil
from html import escape
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urldefrag

import yaml

from lab.pages.checks import toc_pages
from lipnb import __version__
from lipnb.recording import replacing

__all__ = ["BROWSERS", "browser_path", "one_document", "printed", "write"]

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
STYLE = Path("book") / "_static" / "paper.css"
WHOLE = "whole-book.html"  # beside the rendered pages, whose styles and pictures it uses, while it is printed
UNPRINTED = ".headerlink, .viewcode-link, button, .toggle-button, .ledger-filter, script, nav, details.hide"
FOOT = '<div style="width:100%; text-align:center; font:9px serif; color:#444"><span class="pageNumber"></span></div>'
MARGINS = {"top": "18mm", "bottom": "20mm", "left": "18mm", "right": "18mm"}
MINUTES = 10


def browser_path():
    """The browser that prints the book, or None: the first of `BROWSERS` on the path."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def contents(root):
    """The book's parts in order: (caption, names of pages); the first has no caption and holds the front page."""
    toc = yaml.safe_load((root / "_toc.yml").read_text())
    return [("", [toc["root"]]), *((part["caption"], toc_pages(part["chapters"])) for part in toc["parts"])]


def _mathjax():
    """MathJax with fonts: formulas are text on paper, and a third of the size of drawings."""
    return Path(find_spec("sphinx-mathjax-offline").origin).parent / "static" / "mathjax" / "tex-chtml.js"


def anchor(name, fragment=""):
    """The id, in the one document, of a page or of a place in it."""
    slug = name.replace("/", "-")
    return f"{slug}--{fragment}" if fragment else slug


def _target(name, href, pages):
    """Where a link of the page `name` leads in the one document: an id, or None outside of it."""
    path, fragment = urldefrag(href)
    if not path:
        return anchor(name, fragment)
    there = Path(name).parent.joinpath(unquote(path))
    parts = []
    for part in there.parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    found = "/".join(parts).removesuffix(".html")
    return anchor(found, fragment) if found in pages else None


def _article(html, name, pages, deeper):
    """The text of one rendered page, with ids that are its own and links that stay in the document."""
    from bs4 import BeautifulSoup

    path = html / f"{name}.html"
    if not path.is_file():
        raise FileNotFoundError(f"the page {name} is not rendered: run `make html` or `make book` first.")
    article = BeautifulSoup(path.read_text(), "html.parser").find("article")
    for element in article.select(UNPRINTED):
        element.decompose()
    for element in article.select("p"):
        if element.get_text().startswith("Next:"):  # on paper the next page is the next page
            element.decompose()
    for element in article.select("details"):
        element["open"] = ""  # proofs and answers; folded code was dropped above
    for element in article.select("[id]"):
        element["id"] = anchor(name, element["id"])
    for element in article.select("a[href]"):
        href = element["href"]
        if re.match(r"[a-z]+:", href):
            continue
        target = _target(name, href, pages)
        if target is None:
            element.name = "span"
            del element["href"]
        else:
            element["href"] = f"#{target}"
    for element in article.select("img[src]"):
        if not element["src"].startswith("data:"):
            element["src"] = (
                (html / name).parent.joinpath(element["src"]).resolve().relative_to(html.resolve()).as_posix()
            )
        element["loading"] = "eager"
    if deeper:
        for level in (5, 4, 3, 2, 1):
            for element in article.select(f"h{level}"):
                element.name = f"h{level + 1}"
    title = article.select_one("h2" if deeper else "h1")
    article.name, article["class"], article["id"] = "section", ["sheet"], anchor(name)
    return title.get_text(" ", strip=True), str(article)


def one_document(root, html, numbers=None):
    """The rendered pages as one HTML document: a title, the contents, all pages in the order of the book.

    Parameters
    ----------
    root : Path
        The repository, whose _toc.yml and _config.yml say what is in the book.
    html : Path
        The rendered book.
    numbers : dict, optional
        Name of a page -> the sheet it begins on; without them the contents have blanks of the same width.

    Returns
    -------
    str

    Raises
    ------
    FileNotFoundError
        "the page ... is not rendered: ...".
    """
    from bs4 import BeautifulSoup

    about = yaml.safe_load((root / "_config.yml").read_text())
    parts = contents(root)
    pages = {name for _, names in parts for name in names}
    body, listed = [], []
    for caption, names in parts:
        if caption:
            body.append(f'<h1 class="part" id="{anchor("part", caption.replace(" ", "-"))}">{escape(caption)}</h1>')
            listed.append(f'<li class="part">{escape(caption)}</li>')
        for name in names:
            title, article = _article(html, name, pages, deeper=bool(caption))
            number = "" if numbers is None else numbers[name]
            listed.append(
                f'<li><a href="#{anchor(name)}"><span class="of">{escape(title)}</span>'
                f'<span class="sheet-number">{number}</span></a></li>'
            )
            body.append(article)
    head = BeautifulSoup((html / f"{parts[1][1][0]}.html").read_text(), "html.parser").head
    for element in head.select('[href^="../"], [src^="../"]'):
        key = "href" if element.has_attr("href") else "src"
        element[key] = element[key].removeprefix("../")
    styles = [str(element) for element in head.select('link[rel~="stylesheet"]')]
    macros = [str(element) for element in head.select("script") if "MathJax = " in element.text]
    title = escape(about["title"])
    return f"""<!doctype html>
<html lang="en" data-theme="light"><head><meta charset="utf-8"><title>{title}</title>
{"".join(styles)}
<style>{(root / STYLE).read_text()}</style>
{"".join(macros)}
<script src="{_mathjax().as_uri()}"></script>
</head><body><main class="bd-article">
<div class="title-page"><p class="book-title">{title}</p><p>{escape(about["author"])}</p><p>lipnb {__version__}</p>
<p class="note">The rendered book, page by page. Code that its pages fold away is left out here and is in the
notebooks; figures that a reader can move stand still.</p></div>
<nav class="book-contents"><p class="contents-title">Contents</p><ul>{"".join(listed)}</ul></nav>
{"".join(body)}
</main></body></html>"""


def printed(browser, path, target):
    """Print a document by an open browser to a PDF with links and bookmarks.

    Parameters
    ----------
    browser : playwright.sync_api.Browser
        Chromium, headless.
    path, target : Path
        The HTML, and where the PDF goes.
    """
    page = browser.new_page()
    page.set_default_timeout(MINUTES * 60_000)
    page.goto(path.resolve().as_uri(), wait_until="load")
    page.evaluate("Promise.resolve(window.MathJax?.startup?.promise).then(() => true)")
    page.wait_for_function("[...document.images].every(one => one.complete)")
    page.pdf(
        path=target,
        format="A4",
        margin=MARGINS,
        print_background=True,
        display_header_footer=True,
        header_template="<span></span>",
        footer_template=FOOT,
        outline=True,
        tagged=True,
    )
    page.close()


def starts(pdf, names):
    """The sheet, from 1, on which each page of the book begins.

    Parameters
    ----------
    pdf : pikepdf.Pdf
        The print.
    names : iterable of str
        Names of pages.

    Returns
    -------
    dict of str to int
    """
    from pikepdf import Page

    return {name: Page(pdf.Root.Dests[f"/{anchor(name)}"][0]).index + 1 for name in names}


def write(root, html, target, say=print):
    """Print the rendered book into one PDF.

    Parameters
    ----------
    root, html, target : Path
        The repository, the rendered book in it, and the file to write.
    say : callable
        Told what is done, a line each.

    Returns
    -------
    int
        Sheets.

    Raises
    ------
    RuntimeError
        "no browser prints the book: ...".
    FileNotFoundError
        The sentence of `one_document`.
    """
    program = browser_path()
    if program is None:
        raise RuntimeError("no browser prints the book: install one, for example `apt-get install chromium`.")
    import pikepdf
    from playwright.sync_api import sync_playwright

    whole, names = html / WHOLE, [name for _, names in contents(root) for name in names]
    numbers, loose = None, target.with_suffix(".loose.pdf")
    target.parent.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        # containers run as root, which Chromium's sandbox refuses
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            for pass_ in ("to find where each page begins", "with these numbers in the contents"):
                say(f"printing {len(names)} pages {pass_}: a minute or two")
                whole.write_text(one_document(root, html, numbers))
                printed(browser, whole, loose)
                with pikepdf.open(loose) as pdf:
                    numbers = starts(pdf, names)
        finally:
            whole.unlink(missing_ok=True)
            browser.close()
    with pikepdf.open(loose) as pdf, replacing(target) as (new,):
        # what a screen reader needs is most of the file until it is packed
        pdf.save(new, object_stream_mode=pikepdf.ObjectStreamMode.generate, recompress_flate=True)
        sheets = len(pdf.pages)
    loose.unlink()
    return sheets
