"""The book as a reader meets it: rendered from the committed pages, opened from the disk in a browser."""

import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from lab.pages import checks, layout

ROOT = Path(__file__).parents[2]

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

# what the tests ask of a page: it is asked once and the page closed, for seventy open pages are a machine's memory
FACTS = r"""() => {
  const all = (selector, read) => [...document.querySelectorAll(selector)].map(read);
  // formulas whose beginning lies left of the box that they scroll in, or that stick out on the right without a box
  const cut = (box) => {
    const drawn = box.querySelector('svg').getBoundingClientRect(), frame = box.getBoundingClientRect();
    const rooms = [box, box.querySelector('mjx-container')].filter((one) => getComputedStyle(one).overflowX === 'auto');
    const room = Math.max(frame.width, ...rooms.map((one) => one.scrollWidth));
    return drawn.left < frame.left - 1 || drawn.right > frame.left + room + 1;
  };
  // words as a reader sees them when all boxes are open: no formulas, no code
  const words = document.querySelector('article').cloneNode(true);
  words.querySelectorAll('.math, mjx-container, code, pre, script, style').forEach((one) => one.remove());
  return {
    title: document.title,
    raw: words.textContent.match(/.{0,40}\\[a-zA-Z]{2,}.{0,40}/g) ?? [],
    heading: document.querySelector('h1').innerText,
    text: document.querySelector('article').innerText,
    foot: document.querySelector('.bd-footer-content').innerText,
    meta: Object.fromEntries(all('meta[property]', (one) => [one.getAttribute('property'), one.content])),
    description: document.querySelector('meta[name="description"]').content,
    links: all('a[href]', (one) => one.href),
    sidebar: all('.bd-sidebar-primary a[href]', (one) => one.href),
    sources: all('a.btn-download-source-button', (one) => one.href),
    broken_images: [...document.images].filter((one) => one.naturalWidth === 0).map((one) => one.src),
    width: document.documentElement.scrollWidth,
    height: document.documentElement.scrollHeight,
    undrawn: all('.math', (one) => one).filter((one) => !one.querySelector('mjx-container svg'))
      .map((one) => one.innerText),
    // MathJax frames what it cannot parse and paints unknown macros red
    unparsed: all('mjx-container :is([data-mml-node=merror], [fill=red])', (one) => one.outerHTML),
    cut: all('.bd-article div.math, .bd-article span.math.too-wide', (one) => one)
      .filter((box) => box.querySelector('svg') && box.getClientRects().length && cut(box)).map((box) => box.innerText),
    stick_out: (STICKS_OUT)(),
  };
}""".replace("STICKS_OUT", STICKS_OUT)


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


class Visits(dict):
    """What every page says of itself, by name and width, asked when it is first wanted."""

    def __init__(self, browser, book):
        self.browser, self.book = browser, book

    def __missing__(self, key):
        name, width = key
        opened = Visit(self.browser, self.book / f"{name}.html", width)
        opened.page.eval_on_selector_all("img", "all => all.forEach(one => one.loading = 'eager')")
        opened.page.wait_for_function("[...document.images].every(one => one.complete)")
        facts = opened.page.evaluate(FACTS)
        self[key] = SimpleNamespace(name=name, requests=opened.requests, errors=opened.errors, **facts)
        opened.page.close()
        return self[key]


@pytest.fixture(scope="module")
def visits(book, browser):
    """Every page of the book, opened wide and narrow."""
    return Visits(browser, book)


@pytest.fixture(params=TOC)
def visit(visits, request):
    """One page, wide."""
    return visits[request.param, 1300]


def test_title_is_the_first_heading(visit):
    heading = visit.heading.rstrip("#").strip()
    assert heading
    assert visit.title.startswith(heading)


def test_every_formula_is_drawn(visit):
    assert visit.undrawn == []
    assert visit.unparsed == []
    shown = re.search(r"\\\(|\\\[|\$\$|\{(cite|prf:ref|doc|eq|numref)[:}]", visit.text)
    assert not shown, "raw markup is shown"
    assert visit.raw == [], "a formula that begins or ends where no formula can: a line of it opens with + or -"


def test_nothing_is_asked_from_outside(visit):
    assert [url for url in visit.requests if not url.startswith(("file:", "data:"))] == []
    assert visit.errors == []


def test_the_head_says_what_the_page_is_about(book, visit):
    assert visit.title.startswith(visit.meta["og:title"])
    assert len(visit.meta["og:description"].split()) > 3
    assert visit.description == visit.meta["og:description"]
    preview = ((book / f"{visit.name}.html").parent / visit.meta["og:image"]).resolve()
    assert preview.is_relative_to(book) and preview.is_file()


def test_the_foot_says_licence_citation_and_where_to_ask(visit):
    assert "BSD 3-Clause" in visit.foot and "CITATION.cff" in visit.foot and "mistake found" in visit.foot


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
        # not the row of the last round: to name it again changes nothing in the address
        hidden = page.evaluate(
            "[...document.querySelectorAll('table.ledger tbody tr[hidden]')]"
            ".find(row => '#' + row.id !== location.hash).id"
        )
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
    assert visit.broken_images == []


@cache
def anchors(path):
    """The places of a page that a link may name."""
    return set(re.findall(r'id="([^"]+)"', path.read_text(encoding="utf-8")))


def test_every_link_inside_the_book_leads_somewhere(book, visit):
    inside = [link for link in visit.links if link.startswith(book.as_uri())]
    assert inside
    for link in inside:
        path, _, anchor = link.removeprefix(book.as_uri() + "/").partition("#")
        assert (book / path).is_file(), link
        assert not anchor or anchor in anchors(book / path), link


def test_every_page_is_in_the_sidebar(book, visit):
    reached = {link.partition("#")[0] for link in visit.sidebar}
    assert {(book / f"{name}.html").as_uri() for name in TOC} <= reached


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_notebook_can_be_downloaded(book, visits, name):
    target = visits[name, 1300].sources[0]
    downloaded = book / target.removeprefix(book.as_uri() + "/")
    assert downloaded.read_bytes() == (ROOT / f"{name}.ipynb").read_bytes()


@pytest.mark.parametrize("width", [1300, 420])
@pytest.mark.parametrize("name", TOC)
def test_nothing_sticks_out(visits, name, width):
    assert visits[name, width].stick_out == []
    assert visits[name, width].width <= width


@pytest.mark.parametrize("width", [1300, 420])
@pytest.mark.parametrize("name", TOC)
def test_no_formula_is_cut(visits, name, width):
    assert visits[name, width].cut == []


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
