"""The book as a reader meets it: rendered from the committed pages, opened from the disk in a browser."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lab.pages import checks, layout

ROOT = Path(__file__).parents[2]

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
TOC = checks.toc_pages(yaml.safe_load((ROOT / "_toc.yml").read_text()))
NOTEBOOKS = [name for name in TOC if name.startswith("notebooks/")]

# what sticks out of the page, less what scrolls inside a frame of its own
STICKS_OUT = """() => {
  const width = document.documentElement.clientWidth;
  const framed = (element) => {
    for (let up = element.parentElement; up && !up.matches('.bd-article'); up = up.parentElement)
      if (getComputedStyle(up).overflowX !== 'visible') return true;
    return false;
  };
  return [...document.querySelectorAll('.bd-article, .bd-article *')]
    .filter((element) => element.getBoundingClientRect().right > width + 1 && !framed(element))
    .map((element) => element.tagName + '.' + element.className);
}"""


def render(source, output):
    """Render a staged book as `make html` does; warnings are errors."""
    build = [Path(sys.executable).with_name("jupyter-book"), "build", source, "--path-output", output]
    return subprocess.run([*build, "-W", "-n", "--keep-going"], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """The rendered book, made from the committed pages alone."""
    folder = tmp_path_factory.mktemp("book")
    layout.stage(ROOT, ROOT / "notebooks", folder / "source")
    rendered = render(folder / "source", folder)
    assert rendered.returncode == 0, rendered.stderr
    return folder / "_build" / "html"


@pytest.fixture(scope="module")
def browser():
    """A browser that is installed on this machine."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        reason = "no browser: install one, for example `apt-get install chromium`"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # containers run tests as root, which Chromium's sandbox refuses
        launched = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield launched
        launched.close()


class Visit:
    """One page opened from the disk, and what it asked for and complained of meanwhile."""

    def __init__(self, browser, path, width):
        self.requests, self.errors = [], []
        self.page = browser.new_page(viewport={"width": width, "height": 1000})
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(path.as_uri())
        # where MathJax did not load there is nothing to wait for, and the formulas' test fails
        self.page.evaluate("Promise.resolve(window.MathJax?.startup?.promise).then(() => true)")


@pytest.fixture(scope="module")
def visits(book, browser):
    """Every page of the book, opened wide and narrow."""
    return {(name, width): Visit(browser, book / f"{name}.html", width) for name in TOC for width in (1300, 420)}


@pytest.fixture(params=TOC)
def visit(visits, request):
    """One page, wide."""
    return visits[request.param, 1300]


def test_title_is_the_first_heading(visit):
    heading = visit.page.locator("h1").first.inner_text().rstrip("#").strip()
    assert heading
    assert visit.page.title().startswith(heading)


def test_every_formula_is_drawn(visit):
    undrawn = visit.page.eval_on_selector_all(
        ".math", "all => all.filter(one => !one.querySelector('mjx-container svg')).map(one => one.innerText)"
    )
    assert undrawn == []
    # MathJax frames what it cannot parse and paints unknown macros red
    assert visit.page.locator("mjx-container :is([data-mml-node=merror], [fill=red])").count() == 0
    text = visit.page.locator("article").inner_text()
    assert not re.search(r"\\\(|\\\[|\$\$|\{(cite|prf:ref|doc|eq|numref)[:}]", text), "raw markup is shown"


def test_nothing_is_asked_from_outside(visit):
    assert [url for url in visit.requests if not url.startswith(("file:", "data:"))] == []
    assert visit.errors == []


def test_the_head_says_what_the_page_is_about(book, visit):
    meta = dict(
        visit.page.eval_on_selector_all(
            "meta[property]", "all => all.map(one => [one.getAttribute('property'), one.content])"
        )
    )
    assert visit.page.title().startswith(meta["og:title"])
    assert len(meta["og:description"].split()) > 3
    assert visit.page.locator('meta[name="description"]').get_attribute("content") == meta["og:description"]
    here = Path(visit.page.url.removeprefix("file://").partition("#")[0]).parent
    assert (here / meta["og:image"]).resolve().is_relative_to(book) and (here / meta["og:image"]).is_file()


def test_the_foot_says_licence_citation_and_where_to_ask(visit):
    foot = visit.page.locator("footer.bd-footer-content, .bd-footer-content").first.inner_text()
    assert "BSD 3-Clause" in foot and "CITATION.cff" in foot and "issue" in foot


@pytest.mark.parametrize("name", [name for name in TOC if name.startswith("book/api")])
def test_no_page_of_the_reference_is_endless(visits, name):
    assert visits[name, 1300].page.evaluate("document.documentElement.scrollHeight") <= 15_000


def test_the_table_of_verdicts_is_filtered_and_shows_the_row_that_a_page_names(browser, book):
    page = Visit(browser, book / "book/evidence.html", 1300).page
    rows, shown = "table.ledger tbody tr", "table.ledger tbody tr:not([hidden])"
    every = page.locator(rows).count()
    assert page.locator(shown).count() == every > 100
    for label, key in (("paper", "paper"), ("verdict", "verdict"), ("tried on", "effort")):
        chosen = page.locator(".ledger-filter label", has_text=label).locator("select")
        value = chosen.locator("option").last.get_attribute("value")
        chosen.select_option(value)
        kept = page.eval_on_selector_all(shown, f"all => all.map(one => one.dataset.{key})")
        assert 0 < len(kept) < every and set(kept) == {value}
        assert page.locator(".ledger-filter output").inner_text() == f"{len(kept)} of {every} forms"
        hidden = page.locator("table.ledger tbody tr[hidden]").first.get_attribute("id")
        page.evaluate(f"location.hash = '{hidden}'")
        page.wait_for_function(f"!document.getElementById('{hidden}').hidden")
        assert page.locator(shown).count() == every
    page.close()


def test_on_a_dark_page_pictures_lie_on_a_light_card(browser, book):
    page = Visit(browser, book / "book/intro.html", 1300).page
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    card = page.locator(".bd-article figure img").first.evaluate("one => getComputedStyle(one).backgroundColor")
    assert card == "rgb(255, 255, 255)"
    page.close()


def test_every_image_loads(visit):
    visit.page.eval_on_selector_all("img", "all => all.forEach(one => one.loading = 'eager')")
    visit.page.wait_for_function("[...document.images].every(one => one.complete)")
    broken = "all => all.filter(one => one.naturalWidth === 0).map(one => one.src)"
    assert visit.page.eval_on_selector_all("img", broken) == []


def test_every_link_inside_the_book_leads_somewhere(book, visit):
    links = visit.page.eval_on_selector_all("a[href]", "all => all.map(one => one.href)")
    inside = [link for link in links if link.startswith(book.as_uri())]
    assert inside
    for link in inside:
        path, _, anchor = link.removeprefix(book.as_uri() + "/").partition("#")
        assert (book / path).is_file(), link
        assert not anchor or f'id="{anchor}"' in (book / path).read_text(encoding="utf-8"), link


def test_every_page_is_in_the_sidebar(book, visit):
    links = visit.page.eval_on_selector_all(".bd-sidebar-primary a[href]", "all => all.map(one => one.href)")
    reached = {link.partition("#")[0] for link in links}
    assert {(book / f"{name}.html").as_uri() for name in TOC} <= reached


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_notebook_can_be_downloaded(book, visits, name):
    page = visits[name, 1300].page
    target = page.locator("a.btn-download-source-button").first.evaluate("one => one.href")
    downloaded = book / target.removeprefix(book.as_uri() + "/")
    assert downloaded.read_bytes() == (ROOT / f"{name}.ipynb").read_bytes()


@pytest.mark.parametrize("width", [1300, 420])
@pytest.mark.parametrize("name", TOC)
def test_nothing_sticks_out(visits, name, width):
    page = visits[name, width].page
    assert page.evaluate(STICKS_OUT) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_broken_reference_fails_the_build(tmp_path):
    broken = {
        "nowhere": "{doc}`nowhere`",
        "nobody2099": "{cite}`nobody2099`",
        "no-theorem": "{prf:ref}`no-theorem`",
        "none.png": "![](none.png)",
    }
    (tmp_path / "book").mkdir()
    for name in ("_config.yml", "book/references.bib", "book/_ext", "book/_static"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    (tmp_path / "_toc.yml").write_text("{format: jb-book, root: book/intro}")
    intro = tmp_path / "book" / "intro.md"
    intro.write_text("# Intro\n\nA sound page.\n\n```{bibliography}\n```\n")
    assert render(tmp_path, tmp_path / "sound").returncode == 0
    intro.write_text("\n\n".join([intro.read_text(), *broken.values()]))
    rendered = render(tmp_path, tmp_path / "broken")
    said = [line for line in rendered.stderr.splitlines() if "WARNING" in line]  # each of which `-W` makes an error
    assert rendered.returncode != 0
    for name in broken:
        assert any(name in line for line in said), name
