"""What can be kept of a readable page: its length, the code in sight, tables that are tables, captions, plain words.

Limits are those of a page with one question; `book/story/reading.csv` lists what may differ and why, and
`book/story/plain_words.csv` the words that the book does without.
"""

import re
from dataclasses import dataclass, field
from fnmatch import fnmatch

import nbformat
import yaml

from lab.pages import captions, prose
from lab.pages.sources import rows, sources

__all__ = ["Page", "complaints", "pages", "report"]

FEWEST_WORDS, MOST_WORDS, MOST_LINES, LONGEST_TITLE = 600, 1500, 80, 45
SPINE, SPINE_WORDS, SPINE_LINES = re.compile(r"0[1-4]_"), 2500, 80  # four pages that read as one
EXCEPTIONS, WORDS = "book/story/reading.csv", "book/story/plain_words.csv"
FOLDED = {"hide-input", "hide-cell", "remove-input", "remove-cell"}
COMMENT = re.compile(r"<!--.*?-->", re.S)
FOLDED_TEXT = re.compile(r"^(:{3,}|`{3,})\{dropdown\}.*?^\1[ ]*$", re.M | re.S)
OPTION = re.compile(r"^:[\w-]+:.*$", re.M)  # of a directive, such as an alternative text
HEADING = re.compile(r"^#+ .*$", re.M)
ROLE = re.compile(r"\{[\w:+-]+\}`(?:([^`<]*?)\s*<[^`>]*>|[^`]*)`")
CODE = re.compile(r"(`+)[^`].*?\1", re.S)
# the first branch keeps the closing mark of a linked term from opening a span of code
OTHER_ROLE = re.compile(r"(\{term\}`[^`]*`)|\{[\w:+-]+\}`[^`]*`|(?<![}`])`[^`]+`")
NEXT = re.compile(r"^\*\*Next:?\*\*:?\s*\{doc\}`(?:[^`<]*<)?([^`>]+)>?`", re.M)
GLOSSARY = re.compile(r"^(:{3,}|`{3,})\{glossary\}\n(.*?)^\1[ ]*$", re.M | re.S)
LINKED = r"\{term\}`(?:[^`<]*<\s*([^`>]+?)\s*>|\s*([^`<]+?)\s*)`"


@dataclass
class Page:
    """What is counted of one page.

    Attributes
    ----------
    name : str
        As the table of contents has it, for example notebooks/11_self_attention.
    text : str
        All its Markdown.
    notebook : NotebookNode or None
        With the outputs of its last run.
    """

    name: str
    text: str
    notebook: nbformat.NotebookNode | None = None
    terms: dict = field(default_factory=dict)

    @property
    def stem(self):
        """Its name without the folder, as captions and exceptions have it."""
        return self.name.rpartition("/")[2]

    @property
    def title(self):
        """Its first heading, as the sidebar shows it."""
        found = re.search(r"^# +(.+)$", self.text, re.M)
        return re.sub(r"[*`$]|\\[a-z]+", "", found[1]).strip() if found else ""

    @property
    def words(self):
        """How many words a reader meets: statements, captions, a formula as one; not what is folded, not code."""
        text = prose.blank(COMMENT.sub(" ", self.text), FOLDED_TEXT)
        text = prose.FENCED.sub(prose.without_fence, text)
        text = re.sub(r"^:[\w-]+:.*$|^[:`]{3,}(?:\{[\w:-]+\})?", " ", text, flags=re.M)
        text = prose.INLINE.sub(
            " formula ", prose.DISPLAY.sub(" formula ", ROLE.sub(lambda role: role[1] or " role ", text))
        )
        return sum(bool(re.search(r"\w", word)) for word in text.split())

    @property
    def code(self):
        """Cells of code, with what they showed."""
        return [cell for cell in self.notebook.cells if cell.cell_type == "code"] if self.notebook else []

    @property
    def lines(self):
        """How many lines of code are in sight, blank ones left out."""
        open_cells = (cell for cell in self.code if not FOLDED & {*cell.metadata.get("tags", [])})
        return sum(bool(line.strip()) for cell in open_cells for line in cell.source.splitlines())

    @property
    def printed(self):
        """The first line of each table that is shown as text."""
        return [found for cell in self.code for output in cell.get("outputs", []) if (found := printed_table(output))]

    @property
    def figures(self):
        """For each picture, whether it has a caption and an alternative text."""
        return [block is not None for *_, block in captions.drawn(self.notebook)] if self.notebook else []


def printed_table(output):
    """The first line of a table that this output shows as text, or None."""
    data = output.get("data", {})
    text = output.get("text", "") if output.output_type == "stream" else data.get("text/plain", "")
    if {"text/html", "image/png", "text/latex"} & {*data} or text.lstrip().startswith(("[", "tensor", "array")):
        return None
    lines = [line for line in text.splitlines() if line.strip()]
    wide = [line for line in lines if len(re.split(r"\s{2,}", line.strip())) >= 3]
    if len(wide) >= 3:
        return wide[0].strip()
    for three in zip(lines, lines[1:], lines[2:], strict=False):
        ends = [{match.end() for match in re.finditer(r"\S+", line)} for line in three]
        common = set.intersection(*ends)
        if len(common) >= 3 and all(
            2 * len(common) > len(one) and re.search(r"\d", line) for one, line in zip(ends, three, strict=True)
        ):
            return three[0].strip()
    return None


def executed(root, source):
    """A page's source with the outputs of its last run."""
    from lab.pages import story

    return story.executed(root, source)[0]


def contents(root):
    """The pages in the order of the book."""
    from lab.pages.checks import toc_pages

    return toc_pages(yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8")))


def pages(root):
    """Every page of the book, in its order; pages that the table of contents does not have come last."""
    found = {}
    for source in sources(root):
        notebook = executed(root, source)
        text = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
        found[f"notebooks/{source.stem}"] = Page(f"notebooks/{source.stem}", text, notebook)
    for path in sorted((root / "book").glob("*.md")):
        found[f"book/{path.stem}"] = Page(f"book/{path.stem}", path.read_text(encoding="utf-8"))
    order = [name for name in contents(root) if name in found]
    terms = glossary(root)
    for page in found.values():
        page.terms = uses(page.text, terms) if page.name != "book/glossary" else {}
    return [found[name] for name in [*order, *sorted({*found} - {*order})]]


def glossary(root):
    """The terms of the glossary, in lower case; none where there is no glossary."""
    path = root / "book" / "glossary.md"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = (line for block in GLOSSARY.finditer(text) for line in block[2].splitlines())
    return {line.strip().lower() for line in lines if line.strip() and not line[0].isspace() and line[0] != ":"}


def plain(text):
    """A page's sentences: no code, comments, headings, formulas or markup, but roles as they stand."""
    text = prose.FENCED.sub(prose.without_fence, text)
    for pattern in (COMMENT, OPTION, HEADING, prose.BOX, prose.PROOF, prose.DISPLAY, prose.INLINE):
        text = prose.blank(text, pattern)
    return text


def uses(text, terms):
    """For each term that a page uses, whether the first use is a link; a longer term hides those inside it."""
    if not terms:
        return {}
    words = "|".join(re.escape(term).replace(r"\ ", r"\s+") for term in sorted(terms, key=len, reverse=True))
    either = re.compile(rf"{LINKED}|\b({words})(?:e?s)?\b", re.I)
    linked = [match for box in (prose.BOX, prose.PROOF) for match in box.finditer(text)]
    linked = [
        match for match in re.finditer(LINKED, text) if any(match.start() in range(*box.span()) for box in linked)
    ]
    sentences = OTHER_ROLE.sub(lambda role: role[1] or re.sub(r"[^\n]", " ", role[0]), plain(text))
    first = {}
    for match in sorted([*either.finditer(sentences), *linked], key=lambda found: found.start()):
        target = match[1] or match[2]
        first.setdefault(" ".join((target or match[3]).lower().split()), bool(target))
    return first


def exceptions(root):
    """What may differ: (page, rule) -> texts; a page may be a pattern, "*" for all."""
    found = {}
    for row in rows(root / EXCEPTIONS):
        found.setdefault((row["page"], row["rule"]), []).append(row["text"].lower())
    return found


def allowed(known, page, rule):
    """The texts of a page's exceptions to a rule; an empty one lifts the rule."""
    return [text for (name, of), texts in known.items() if of == rule and fnmatch(page.stem, name) for text in texts]


def limits(page, known):
    """Length: words, code in sight, title."""
    for rule, number, least, most in (
        ("words", page.words, 0 if SPINE.match(page.stem) else FEWEST_WORDS, MOST_WORDS),
        ("lines", page.lines, 0, MOST_LINES),
        ("title", len(page.title), 1, LONGEST_TITLE),
    ):
        texts = allowed(known, page, rule)
        most = max([most, *(int(text) for text in texts if text)])
        if "" not in texts and not least <= number <= most:
            what = {"words": "words", "lines": "lines of code in sight", "title": "characters in its title"}[rule]
            yield f"{number} {what}, outside {least} to {most}"


def tables(page, known):
    """No table as text."""
    for line in page.printed:
        if not any(text in line.lower() for text in allowed(known, page, "table")):
            yield f"a table is printed as text, it begins `{line[:50]}`: end the cell with figures.table(...)"


def following(page, order, known):
    """The last line names the next page, or nothing does."""
    named = [*NEXT.finditer(page.text)]
    if not named or "" in allowed(known, page, "next"):
        return
    target = named[-1][1].strip()
    folder = page.name.rpartition("/")[0]
    full = target.removeprefix("../") if target.startswith("../") else f"{folder}/{target}"
    place = order.index(page.name) if page.name in order else len(order)
    after = order[place + 1] if place + 1 < len(order) else None
    if full != after:
        yield f"**Next:** names {full}, the table of contents goes on with {after}"
    if len(named) > 1 or page.text.strip()[named[-1].start() :].count("\n\n"):
        yield "**Next:** stands once, in the last paragraph"


def words(root, page, known):
    """The words that the book does without."""
    text = COMMENT.sub(lambda match: match[0].replace("`", ""), page.text)
    text = prose.FENCED.sub(prose.without_fence, text)
    for pattern in (ROLE, CODE, prose.DISPLAY, prose.INLINE):
        text = prose.blank(text, pattern)
    for row in rows(root / WORDS):
        for match in re.finditer(row["word"].replace(" ", r"\s+"), text, re.I):
            if not any(kept in prose.sentence(text, match.start()).lower() for kept in allowed(known, page, "word")):
                yield f"it says \u201c{' '.join(match[0].split())}\u201d; say {row['but']}"


def links(page, known):
    """Terms of the glossary are linked where they are used first."""
    bare = [term for term, link in page.terms.items() if not link and term not in allowed(known, page, "term")]
    if bare and "" not in allowed(known, page, "term"):
        yield f"not linked to the glossary at their first use: {', '.join(sorted(bare))}"


def complaints(root):
    """What a reader would stumble over, one sentence each."""
    found, order, known = pages(root), contents(root), exceptions(root)
    for page in found:
        rules = (limits(page, known), tables(page, known), following(page, order, known), words(root, page, known))
        yield from (f"{page.stem}: {said}" for rule in (*rules, links(page, known)) for said in rule)
    spine = [page for page in found if SPINE.match(page.stem)]
    for what, most in (("words", SPINE_WORDS), ("lines", SPINE_LINES)):
        if (total := sum(getattr(page, what) for page in spine)) > most:
            yield f"the first four pages have {total} {what} together, more than {most}"
    yield from captions.complaints({page.stem: page.notebook for page in found if page.notebook})


def report(root):
    """Print the counts of every page and what is wrong; return the exit status."""
    head = ("page", "words", "code lines", "text tables", "figures with caption", "terms linked", "title")
    lines, totals = [], [0] * 7
    for page in pages(root):
        numbers = (page.words, page.lines, len(page.printed), sum(page.figures), len(page.figures))
        numbers = (*numbers, sum(page.terms.values()), len(page.terms))
        totals = [total + number for total, number in zip(totals, numbers, strict=True)]
        lines.append((page.stem, *numbers, str(len(page.title))))
    lines.append(("all", *totals, ""))
    print(f"{head[0]:34}{head[1]:>7}{head[2]:>12}{head[3]:>13}{head[4]:>22}{head[5]:>14}{head[6]:>7}")
    for name, count, code, text, done, drawn, linked, used, title in lines:
        captioned, terms = f"{done} of {drawn}", f"{linked} of {used}"
        print(f"{name:34}{count:>7}{code:>12}{text:>13}{captioned:>22}{terms:>14}{title:>7}")
    found = [*complaints(root)]
    for sentence in found:
        print(f"  {sentence}")
    print(f"{len(lines) - 1} pages counted, {len(found)} complaint(s)")
    return 1 if found else 0
