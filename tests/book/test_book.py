"""The book as a reader meets it: rendered from the committed pages, opened from the disk in a browser."""

import re
import shutil
import subprocess
import sys
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from os.path import normpath
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
from playwright.sync_api import TimeoutError

from lab.pages import checks, layout

ROOT = Path(__file__).parents[2]

TOC = checks.toc_pages(ROOT)
WIDE, NARROW = 1300, 420

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

# what does not fit: what sticks out, formulas whose beginning lies left of the box that they scroll in, or that stick
# out on the right without a box, and full stops that begin a line
UNFIT = r"""() => {
  const cut = (box) => {
    const drawn = box.querySelector('svg').getBoundingClientRect(), frame = box.getBoundingClientRect();
    const rooms = [box, box.querySelector('mjx-container')].filter((one) => getComputedStyle(one).overflowX === 'auto');
    const room = Math.max(frame.width, ...rooms.map((one) => one.scrollWidth));
    return drawn.left < frame.left - 1 || drawn.right > frame.left + room + 1;
  };
  const boxes = [...document.querySelectorAll('.bd-article div.math, .bd-article span.math.too-wide')]
    .filter((box) => box.querySelector('svg') && box.getClientRects().length && cut(box)).map((box) => box.innerText);
  const stops = [...document.querySelectorAll('.bd-article span.together')].filter((one) => {
    const formula = one.querySelector('.math').getBoundingClientRect(), stop = document.createRange();
    stop.selectNode(one.lastChild);
    return one.lastChild.nodeType === Node.TEXT_NODE && stop.getBoundingClientRect().left < formula.right - 3;
  }).map((one) => `a line begins with a full stop: ${one.innerText}`);
  const scrolls = document.documentElement.scrollWidth > window.innerWidth ? ['the page scrolls sideways'] : [];
  return [...(STICKS_OUT)(), ...boxes, ...stops, ...scrolls];
}""".replace("STICKS_OUT", STICKS_OUT)

FACTS = r"""() => {
  const all = (selector, read) => [...document.querySelectorAll(selector)].map(read);
  // words as a reader sees them when all boxes are open: no formulas, no code
  const words = document.querySelector('article').cloneNode(true);
  words.querySelectorAll('.math, mjx-container, code, pre, script, style').forEach((one) => one.remove());
  return {
    title: document.title,
    heading: document.querySelector('h1').innerText.replace(/#$/, '').trim(),
    text: words.textContent,
    foot: document.querySelector('.bd-footer-content').innerText,
    meta: Object.fromEntries(all('meta[property]', (one) => [one.getAttribute('property'), one.content])),
    description: document.querySelector('meta[name="description"]').content,
    links: all('a[href]', (one) => one.href),
    sidebar: all('.bd-sidebar-primary a[href]', (one) => one.href.split('#')[0]),
    sources: all('a.btn-download-source-button', (one) => one.href),
    // nothing of these should be there; MathJax frames what it cannot parse and paints unknown macros red
    faults: {
      'raw markup': words.textContent.match(/.{0,40}\\[a-zA-Z]{2,}.{0,40}/g) ?? [],
      'broken image': [...document.images].filter((one) => one.naturalWidth === 0).map((one) => one.src),
      'formula not drawn': all('.math', (one) => one).filter((one) => !one.querySelector('mjx-container svg'))
        .map((one) => one.innerText),
      'formula not parsed': all('mjx-container :is([data-mml-node=merror], [fill=red])', (one) => one.outerHTML),
    },
  };
}"""

# every page of edition 0.2, some of which have moved since
OF_0_2 = """
book/ intro read_and_run licences publish extend sweeps notation solver evidence deviations status execution summary
glossary bibliography api api_measure api_certify api_bounds api_bounds_input api_bounds_layer api_worst_case
api_measures api_models api_texts api_scan api_sweeps api_jacobian api_jacobian_products api_spectral api_inside
api_inside_bracket api_lab api_lab_experiments api_lab_growth api_lab_atlas api_lab_robustness api_lab_l2
api_lab_training api_lab_zoo api_lab_figures api_lab_figures_more api_lab_objects api_lab_more api_lab_book
notebooks/ 01_two_tokens 02_square_root 03_real_model 04_one_index 74_scan_your_model 11_self_attention
12_local_lipschitz 13_jacobian 14_normalisation 20_measures 21_general_bound 22_tightness 23_mean_field 24_large_radius
25_quadratic_growth 26_multi_head 27_biases 28_transport_toolbox 31_masked_bound 32_masked_mean_field 41_real_text
42_adversarial_inputs 43_why_it_grows 44_gpt2_positions 47_trained_without 45_released_code 46_which_token_matters
61_dot_product_is_not_lipschitz 62_l2_attention 68_l2_jacobian 63_l2_tightness 64_invertible_attention
65_language_model 66_training_stability 67_euclidean_growth 51_mass_splitting 77_solver_speed 72_certified_bracket
75_robustness 78_ranking_inputs 80_kv_rounding 76_regimes 73_worst_inputs 71_every_bound 79_exact_cases 29_verification
"""
# names that came and went since
SINCE_0_2 = ["44_independent_tokens", "45_gpt2_positions", "55_invertible_attention", "64_kv_rounding"]


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


def begun(folder, *pages):
    """A book of one sound page, and of others that are written next."""
    for name in ("_config.yml", "book/references.bib", "book/_ext", "book/_static"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (folder / name).parent.mkdir(exist_ok=True)
        copy(ROOT / name, folder / name)
    chapters = [f"- file: {page}" for page in pages]
    toc = ["format: jb-book", "root: book/intro", *(["chapters:", *chapters] if pages else [])]
    (folder / "_toc.yml").write_text("\n".join(toc))
    (folder / "book" / "intro.md").write_text("# Intro\n\nA sound page.\n\n```{bibliography}\n```\n")


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


@cache
def anchors(path):
    """The places of a page that a link may name."""
    return set(re.findall(r'id="([^"]+)"', path.read_text(encoding="utf-8")))


def unfit(page):
    """What does not fit the window, once the page has laid itself out for it."""
    try:
        page.wait_for_function(f"({UNFIT})().length === 0", timeout=10_000)
    except TimeoutError:
        return page.evaluate(UNFIT)
    return []


def complaints(book, browser, name):
    """All that is wrong with one page, which is opened once."""
    visit = Visit(browser, book / f"{name}.html", WIDE)
    page = visit.page
    page.eval_on_selector_all("img", "all => all.forEach(one => one.loading = 'eager')")
    page.wait_for_function("[...document.images].every(one => one.complete)")
    seen = SimpleNamespace(**page.evaluate(FACTS))
    yield from (f"{what}: {one}" for what, found in seen.faults.items() for one in found)
    yield from (f"sticks out or is cut: {one}" for one in unfit(page))
    if not name.startswith("book/api"):  # a reference is read at a desk
        page.set_viewport_size({"width": NARROW, "height": 1000})
        yield from (f"sticks out or is cut on a phone: {one}" for one in unfit(page))
    yield from (f"asked from outside: {url}" for url in visit.requests if not url.startswith(("file:", "data:")))
    yield from (f"the console says: {error}" for error in visit.errors)
    page.close()
    if raw := re.search(r"\\\(|\\\[|\$\$|\{(cite|prf:ref|doc|eq|numref|glue:text|from)[:}]", seen.text):
        yield f"raw markup is shown: {raw[0]}"
    if not seen.heading or not all(map(seen.title.startswith, (seen.heading, seen.meta["og:title"]))):
        yield f"the title {seen.title!r} is not the heading {seen.heading!r}"
    if len(seen.description.split()) <= 3 or seen.description != seen.meta["og:description"]:
        yield f"the head does not say what the page is about: {seen.description!r}"
    if not ((book / f"{name}.html").parent / seen.meta["og:image"]).resolve().is_file():
        yield "the head names no picture"
    if not all(words in seen.foot for words in ("BSD 3-Clause", "CITATION.cff", "mistake found")):
        yield "the foot does not say licence, citation and where to ask"
    inside = [link.removeprefix(book.as_uri() + "/") for link in seen.links if link.startswith(book.as_uri())]
    for path, _, anchor in (link.partition("#") for link in inside):
        if not (book / path).is_file() or (anchor and anchor not in anchors(book / path)):
            yield f"a link leads nowhere: {path}#{anchor}"
    if missing := {(book / f"{other}.html").as_uri() for other in TOC} - {*seen.sidebar}:
        yield f"the sidebar lacks {missing}"
    if name.startswith("notebooks/"):
        offered = book / seen.sources[0].removeprefix(book.as_uri() + "/")
        if offered.read_bytes() != (ROOT / f"{name}.ipynb").read_bytes():
            yield "the notebook that can be downloaded is not the committed one"


@pytest.mark.parametrize("name", TOC)
def test_a_page_as_a_reader_meets_it(book, browser, name):
    assert [*complaints(book, browser, name)] == []


def test_each_fault_of_a_page_is_seen(book, browser):
    faults = {
        "raw markup: ": r"<p>A formula \norm that opens with a sign</p>",
        "raw markup is shown: {cite}": "<p>{cite}nobody</p>",
        "broken image: ": '<img src="none.png" alt="none">',
        "formula not drawn: ": '<svg><text class="math">x</text></svg>',
        "sticks out or is cut: ": '<div style="width: 3000px; height: 1px"></div>',
        "sticks out or is cut on a phone: ": '<div style="width: 500px; height: 1px"></div>',
        "asked from outside: http://outside.invalid/": '<img src="http://outside.invalid/a.png" alt="outside">',
        "the console says: ": "<script>throw Error('one')</script>",
        "a link leads nowhere: book/none.html#": '<a href="none.html">none</a>',
        "a link leads nowhere: book/intro.html#none": '<a href="intro.html#none">none</a>',
    }
    page = (book / "book/intro.html").read_text(encoding="utf-8")
    broken = page.replace("</article>", "\n".join(faults.values()) + "</article>").replace("BSD 3-Clause", "")
    broken = broken.replace("<title>", "<title>Not ").replace("notebooks/01_two_tokens.html", "notebooks/none.html")
    (book / "book/broken.html").write_text(broken, encoding="utf-8")
    found = [*complaints(book, browser, "book/broken")]
    for expected in (*faults, "the foot ", "the title ", "the sidebar lacks "):
        assert any(one.startswith(expected) for one in found), expected


def test_the_table_of_verdicts_is_filtered_and_shows_the_row_that_a_page_names(browser, book):
    page = Visit(browser, book / "book/verdicts.html", 1300).page
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
        rows_hidden = page.eval_on_selector_all(f"{rows}[hidden]", "all => all.map(one => one.id)")
        hidden = next(one for one in rows_hidden if not page.url.endswith(one))  # not that of the last round
        page.evaluate(f"location.hash = '{hidden}'")
        page.wait_for_function(f"!document.getElementById('{hidden}').hidden")
        assert page.locator(shown).count() == every
    page.close()


def test_every_address_of_an_earlier_edition_leads_to_a_page(book, browser):
    """A page that was renamed or went leaves a redirect at its address, and none lies on a page of today."""
    config = (ROOT / "_config.yml").read_text(encoding="utf-8")
    moved = dict(re.findall(r"^      ((?:book|notebooks)/\w+): (\S+)\.html$", config, re.M))
    _, prose, pages = re.split("book/|notebooks/", OF_0_2)
    old = [f"book/{name}" for name in prose.split()] + [f"notebooks/{name}" for name in pages.split()]
    assert len(old) == 91
    old += [f"notebooks/{name}" for name in SINCE_0_2]
    assert not {*moved} & {*TOC} and {*moved} <= {*old}
    for name in old:
        reached = name if name in TOC else normpath(Path(name).parent / moved[name])
        assert reached in TOC, name
        assert (book / f"{name}.html").is_file()
    page = Visit(browser, book / "book/api_measure.html", WIDE).page
    page.goto((book / "book/api_measure.html").as_uri() + "#lipnb.lipschitz")
    page.wait_for_url("**/book/api_attention.html#lipnb.lipschitz")
    page.goto((book / "book/evidence.html").as_uri() + "#row-of-a-verdict")  # where the rows were
    page.wait_for_url("**/book/verdicts.html#row-of-a-verdict")
    page.close()


def test_pages_of_source_lead_back_to_entries_that_exist(book):
    links = {
        normpath(page.parent / link)
        for page in (book / "_modules").rglob("*.html")
        for link in re.findall(r'href="([^"]*/api_\w+\.html#[^"]+)"', page.read_text(encoding="utf-8"))
    }
    lost = [link for link in links if link.partition("#")[2] not in anchors(Path(link.partition("#")[0]))]
    assert len(links) > 100 and lost == []


def test_the_title_of_the_front_page_names_the_book_once(book):
    titles = [(book / f"book/{name}.html").read_text(encoding="utf-8") for name in ("intro", "status")]
    assert [text.partition("<title>")[2].partition("</title>")[0].count("attention?") for text in titles] == [1, 1]


class Quiet(SimpleHTTPRequestHandler):
    """Files of a folder, as a server gives them."""

    def log_message(self, *parts):
        """Say nothing."""


def test_summaries_of_search_results_are_sentences(book, browser):
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=book)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/search.html?q=rotary")
        page.wait_for_function("document.querySelectorAll('ul.search p.context').length > 5")
        said = page.locator("ul.search p.context").all_inner_texts()
        page.close()
        server.shutdown()
    assert all(re.fullmatch(r"\w[^\n]*([.!?]| …)", one) and len(one.split()) > 4 for one in said), said
    assert sum("rotary" in one.lower() for one in said) > len(said) / 3


def test_what_scrolls_shows_where_it_goes_on(book, browser):
    page = Visit(browser, book / "notebooks/05_scan_your_model.html", 390).page
    table = page.locator(".house-table").first
    page.wait_for_function("document.querySelector('.house-table.goes-on')")
    assert "linear-gradient" in table.evaluate("one => getComputedStyle(one).maskImage")
    table.evaluate("one => one.scrollTo(9999, 0)")
    page.wait_for_function("!document.querySelector('.house-table').matches('.goes-on')")
    page.close()


def test_on_a_dark_page_pictures_lie_on_a_light_card(browser, book):
    page = Visit(browser, book / "book/intro.html", 1300).page
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    card = page.locator(".bd-article figure img").first.evaluate("one => getComputedStyle(one).backgroundColor")
    assert card == "rgb(255, 255, 255)"
    page.close()


def test_a_broken_reference_fails_the_build(tmp_path):
    broken = {
        "nowhere": "{doc}`nowhere`",
        "nobody2099": "{cite}`nobody2099`",
        "no-theorem": "{prf:ref}`no-theorem`",
        "none.png": "![](none.png)",
        "no-number": "{glue:text}`nowhere.ipynb::no-number:.2f`",
        "ledger": "{ledger}`none`",
    }
    begun(tmp_path)
    intro = tmp_path / "book" / "intro.md"
    assert render(tmp_path, tmp_path / "sound").returncode == 0
    intro.write_text("\n\n".join([intro.read_text(), *broken.values()]))
    rendered = render(tmp_path, tmp_path / "broken")
    said = [line for line in rendered.stderr.splitlines() if "WARNING" in line]  # each of which `-W` makes an error
    assert rendered.returncode != 0
    for name in broken:
        assert any(name in line for line in said), name
