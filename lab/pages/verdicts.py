"""The ledger: every page's verdicts gathered, checked against the list of statements, shown and stored."""

import html
import re
from collections import Counter
from dataclasses import fields

import nbformat

from lab import ledger
from lab.ledger import DEPENDS, FAILS, HOLDS, MIME, REFUTED, SEEN, UNCHECKED, UNDECIDED
from lab.pages.sources import rows as list_rows
from lab.pages.sources import sources

LISTED = "lab/statements.csv"
COUNTS, EVERY = "<!-- the counts of verdicts -->", "<!-- every verdict -->"  # marks of prose pages
COUNT = re.compile(r"\{ledger\}`([^`:]+):?([^`]*)`")
ORDER = (REFUTED, FAILS, DEPENDS, HOLDS, UNDECIDED, UNCHECKED)  # the first decides
LOST = ORDER[:3]
EFFORT = (*ledger.EFFORT, None)
TRIED = "random inputs", "structured inputs", "inputs from gradient ascent", "inputs, and a complete proof on a page"
EFFORT_WORDS = dict(zip(EFFORT, (*TRIED, "nothing, or not rated"), strict=True))
MEANING = (
    "*Refuted* is said only of a paper's own claim, in a form that its text or its released code shows and that is no "
    "variant of it. Every other form that does not hold *fails*: one that we reconstructed or made ourselves, and a "
    "variant (in italics), such as the paper's claim on other models. What *depends* does so on the definition or on "
    "the range: the row says how. *Holds* is not a proof: no case that was tried is against it. *Not decided*: the "
    "test could not tell, such as one of three seeds. Every verdict is computed on the page it links to."
)


def listed(root):
    """Statements that need a verdict: id -> row of the list; empty if the list is missing."""
    return {row["id"]: row for row in list_rows(root / LISTED)}


def gather(root, notebooks):
    """Rows recorded by all executed pages, in the order of the list, then of the pages."""
    statements, rows = listed(root), []
    for source in sources(root):
        notebook = notebooks / f"{source.stem}.ipynb"
        if not notebook.exists():
            continue
        for cell in nbformat.read(notebook, as_version=4).cells:
            for output in cell.get("outputs", []):
                for row in output.get("data", {}).get(MIME, []):
                    known = statements.get(row["id"], {})
                    rows.append(
                        {"source": known.get("source"), "statement": known.get("name"), **row, "page": source.stem}
                    )
    order = list(statements)
    return sorted(rows, key=lambda row: order.index(row["id"]) if row["id"] in order else len(order))


def verdict_of(rows):
    """Verdict on a statement, from its own forms, not variants; a single form that does not hold decides."""
    own = {row["verdict"] for row in rows if not row["variant"]}
    return next((verdict for verdict in ORDER if verdict in own), None)


def by_statement(root, rows):
    """Rows by statement: id -> its rows."""
    return {id: [row for row in rows if row["id"] == id] for id in listed(root)}


def filled(root, rows, text):
    """A prose page with parts of the ledger in place of their marks, and counts in place of ``{ledger}`key:format```.

    A key is ``statements``, ``forms``, a verdict (counts statements with it), or the id of a statement (the largest
    number of cases on which one of its forms was tried).
    """
    mine = by_statement(root, rows)
    own = Counter(map(verdict_of, mine.values()))
    counts = {"statements": len(mine), "forms": len(rows)} | {verdict: own[verdict] for verdict in ORDER}
    counts |= {id: max((row["cases"] for row in rows), default=0) for id, rows in mine.items()}
    text = COUNT.sub(lambda mark: format(counts[mark[1]], mark[2]) if mark[1] in counts else mark[0], text)
    for mark, part in ((COUNTS, counts_section), (EVERY, every_section)):
        text = text.replace(mark, part(root, rows)) if mark in text else text
    return text


def complaints(root, rows):
    """Errors in the ledger, one sentence each."""
    for id, mine in by_statement(root, rows).items():
        if verdict_of(mine) is None:
            yield (
                f"ledger: {id} has no verdict on any page in its own form: its `ledger.record` needs a row "
                'without variant=True (a measured row with seen="ours" is a variant)'
            )
        forms = [row["form"] for row in mine]
        for form in sorted({form for form in forms if forms.count(form) > 1}):
            yield f"ledger: {id}, {form!r}, stands on two pages"
        yield from (f"ledger: {id}, {row['form']!r}, {gap}" for row in mine for gap in gaps(row))
    for id in sorted({row["id"] for row in rows} - set(listed(root))):
        yield f"ledger: {id} is not in {LISTED}"


def gaps(row):
    """Information missing in one row."""
    if row.get("seen") not in SEEN:
        yield "does not say how the form is known"
    if (row.get("effort") is None) != (row["kind"] in ("depends", "undecided", "unchecked")):
        yield "does not say how hard it was tried"
    if row["kind"] in ("upper", "lower") and row.get("spread") == 0 and row["worst_ratio"] == 1:
        yield "is no test: every ratio is 1"


def worst(row):
    """The worst ratio and the median in readable form, as on the page."""
    return ledger.worst(ledger.Row(**{field.name: row.get(field.name) for field in fields(ledger.Row)}))


def cell(text):
    """Text in a cell of a Markdown table."""
    return str(text).replace("|", r"\|").replace("\n", " ")


def link(root, row):
    """Link from a verdict to its row on the page, by the title of the page."""
    title = re.search(r"^# # (.+)$", (root / "notebooks" / f"{row['page']}.py").read_text(encoding="utf-8"), re.M)
    said, name = html.escape(title[1]), ledger.anchor(row["id"], row["form"])
    return f'<a href="../notebooks/{row["page"]}.html#verdict-{name}">{said}</a>'


def paper(root, source):
    """Short form of a paper from the bibliography, such as "Castin and others, 2024"; its key if missing there."""
    path = root / "book" / "references.bib"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    entry = re.search(rf"^@\w+\{{{re.escape(source)},.*?\n\}}", text, re.M | re.S)
    if not entry:
        return source
    authors, year = (re.search(rf"{key}\s*=\s*\{{(.*?)\}},?\n", entry[0])[1] for key in ("author", "year"))
    first, *others = [name.split(",")[0] for name in authors.split(" and ")]
    return f"{first}{' and others' if others else ''}, {year}"


def table(head, rows):
    """A Markdown table."""
    return ["| " + " | ".join(map(cell, cells)) + " |" for cells in (head, ["---"] * len(head), *rows)]


def counted(root, rows):
    """Counts from which the words and tables of the page on evidence are made.

    Statements by verdict and paper: {(verdict, source): count}. Rows by verdict and by how the form is known, and by
    verdict and by how hard it was tried: {(verdict, seen): count}, {(verdict, effort): count}.
    """
    sources = {id: statement["source"] for id, statement in listed(root).items()}
    groups = by_statement(root, rows)
    return (
        Counter((verdict_of(mine), sources[id]) for id, mine in groups.items()),
        *(Counter((row["verdict"], row.get(key)) for row in rows) for key in ("seen", "effort")),
    )


def crossed(count, name, keys, words=str):
    """A count as a table: a row for each of its keys that occurs, a column for each verdict, and sums."""
    keys = [key for key in (*keys, None) if any(key == other for _, other in count)]
    keys = list(dict.fromkeys(keys))
    lines = [[words(key), *(count[verdict, key] for verdict in ORDER)] for key in keys]
    lines += [["all", *(sum(line[column] for line in lines) for column in range(1, len(ORDER) + 1))]]
    return table([name, *ORDER, "all"], [[*line, sum(line[1:])] for line in lines])


BADGES = dict(zip(SEEN, ("success", "info", "warning", "secondary"), strict=True))


def badge(seen):
    """Badge of the pages that tells how a form is known."""
    return f'<span class="sd-badge sd-bg-{BADGES[seen]} sd-bg-text-{BADGES[seen]}">{seen}</span>'


def cases(row):
    """Number of cases of a row, in words."""
    return f"{row['cases']:,d} case{'s' * (row['cases'] != 1)}"


def line(root, row):
    """Row of the table of all rows, with the filterable properties in its data attributes."""
    source, effort, verdict = paper(root, row["source"]), row.get("effort") or "", row["verdict"]
    keys = {"paper": source, "verdict": verdict, "effort": effort or "not tried"}
    data = "".join(f' data-{key}="{html.escape(value)}"' for key, value in keys.items())
    statement, form = html.escape(row["statement"]), html.escape(row["form"])
    note = html.escape(row["counter_example"] or row["grounds"])
    cells = (
        f"{statement}<br><small>{html.escape(source)}</small>",
        f"<i>{form}</i><br><small>{note}</small>" if row["variant"] else f"{form}<br><small>{note}</small>",
        badge(row["seen"]),
        f"<b>{verdict}</b>" if verdict in LOST else verdict,
        worst(row),
        " <br>".join(filter(None, (effort, f"<small>{cases(row)}</small>" if row["cases"] else ""))),
        link(root, row),
    )
    name = ledger.anchor(row["id"], row["form"])
    return f'<tr id="row-{name}"{data}>' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def counts_section(root, rows):
    """The counts of the ledger as Markdown: words and three tables."""
    by_paper, by_seen, by_effort = counted(root, rows)
    total = {verdict: sum(count for (other, _), count in by_paper.items() if other == verdict) for verdict in ORDER}
    said = ", ".join(f"{verdict} **{count}**" for verdict, count in total.items())
    if none := sum(by_paper.values()) - sum(total.values()):
        said += f", without any **{none}**"
    measured = len({row["counter_example"] for row in rows if row["verdict"] == ORDER[0]})
    if measured < total[ORDER[0]]:  # one claim may appear in several places of a paper
        said += f"; the **{total[ORDER[0]]}** refuted rest on **{measured}** counter-example{'s' * (measured > 1)}"
    return "\n".join(
        [
            f"Verdicts on **{sum(by_paper.values())}** statements: {said}. {MEANING}",
            "",
            *crossed(
                by_paper,
                "statements of",
                dict.fromkeys(source for _, source in by_paper),
                lambda source: f"{{cite:t}}`{source}`",
            ),
            "",
            f"These verdicts rest on **{len(rows)}** forms of the statements. The next two tables count forms: by how "
            "we know the form, and by how hard we tried it.",
            "",
            *crossed(by_seen, "forms known from", SEEN),
            "",
            *crossed(by_effort, "forms tried on", EFFORT, EFFORT_WORDS.get),
        ]
    )


def every_section(root, rows):
    """All rows of the ledger as Markdown, in a table that our script filters."""
    lost = [row for row in rows if row["verdict"] in LOST]
    variants = sum(row["variant"] for row in lost)
    head = "statement", "form tested", "known from", "verdict", "worst (median)", "tried on", "page"
    return "\n".join(
        [
            f"**{len(lost)}** forms do not hold, or hold only under one reading. **{variants}** of them are *variants* "
            "of a statement, printed in italics: tighter, corrected, with fewer hypotheses, or about other models and "
            "inputs.",
            "",
            "`````{raw} html",
            '<table class="verdicts ledger"><thead><tr>' + "".join(f"<th>{name}</th>" for name in head),
            "</tr></thead><tbody>",
            *(line(root, row) for row in rows),
            "</tbody></table>",
            '<script src="../_static/verdicts.js"></script>',
            "`````",
        ]
    )
