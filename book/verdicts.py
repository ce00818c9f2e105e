"""The ledger: every page's verdicts gathered, checked against the list of statements, shown and stored."""

import csv
import json
from collections import Counter

import nbformat
from pages import sources, write_if_changed

MIME = "application/vnd.lipnb.verdicts+json"
LISTED, STORED = "lipnb/statements.csv", "data/results/ledger.json"
MARK = "<!-- the ledger -->"
ORDER = ("refuted", "holds", "not checkable here")
SAME = 1e-2  # ratios found by ascent differ a little between processors


def listed(root):
    """The statements that need a verdict: id -> row of the list; none where there is no list."""
    path = root / LISTED
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as lines:
        return {row["id"]: row for row in csv.DictReader(lines)}


def gather(root, notebooks):
    """What all executed pages recorded, in the order of the list, then of the pages."""
    statements, rows = listed(root), []
    for source in sources(root):
        notebook = notebooks / f"{source.stem}.ipynb"
        if not notebook.exists():
            continue
        for cell in nbformat.read(notebook, as_version=4).cells:
            for output in cell.get("outputs", []):
                for row in output.get("data", {}).get(MIME, []):
                    known = statements.get(row["id"], {})
                    rows.append({"source": known.get("source"), "statement": known.get("name"), **row,
                                 "page": source.stem})
    order = list(statements)
    return sorted(rows, key=lambda row: order.index(row["id"]) if row["id"] in order else len(order))


def verdict_of(rows):
    """The verdict on one statement: that of its own form, not of variants; one refutation is enough."""
    own = {row["verdict"] for row in rows if not row["variant"]}
    return next((verdict for verdict in ORDER if verdict in own), None)


def by_statement(root, rows):
    """id -> its rows."""
    return {id: [row for row in rows if row["id"] == id] for id in listed(root)}


def complaints(root, rows):
    """What is wrong with the ledger, one sentence each."""
    for id, mine in by_statement(root, rows).items():
        if verdict_of(mine) is None:
            yield f"ledger: {id} has no verdict on any page"
        forms = [row["form"] for row in mine]
        for form in sorted({form for form in forms if forms.count(form) > 1}):
            yield f"ledger: {id}, {form!r}, stands on two pages"
    for id in sorted({row["id"] for row in rows} - set(listed(root))):
        yield f"ledger: {id} is not in {LISTED}"


def same(stored, rows):
    """Whether the stored ledger says the same, ratios to `SAME`."""
    def words(row):
        return {key: value for key, value in row.items() if key not in ("worst_ratio", "counter_example")}

    def close(a, b):
        return a == b if a is None or b is None else abs(a - b) <= SAME * max(abs(a), abs(b))

    return len(stored) == len(rows) and all(
        words(old) == words(new) and close(old["worst_ratio"], new["worst_ratio"])
        for old, new in zip(stored, rows, strict=True))


def read_stored(root):
    """The stored ledger, or None."""
    path = root / STORED
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def store(root, rows):
    """Write the ledger unless the stored one says the same."""
    if rows and not same(read_stored(root) or [], rows):
        text = "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"
        write_if_changed(root / STORED, text.encode())


def worst(row):
    """The worst ratio as a reader wants it."""
    if row["worst_ratio"] is None:
        return ""
    if row["kind"] != "equal":
        return f"{row['worst_ratio']:.4g}"
    return f"1 ± {row['worst_ratio'] - 1:.0e}" if row["worst_ratio"] > 1 else "exact"


def cell(text):
    """Text in a cell of a Markdown table."""
    return str(text).replace("|", r"\|").replace("\n", " ")


def line(row):
    """One row of the table."""
    form = f"*{row['form']}*" if row["variant"] else row["form"]
    cases = f"{row['cases']:,d}" if row["cases"] else ""
    page = f"{{doc}}`{row['page'].split('_')[0]} <../notebooks/{row['page']}>`"
    cells = (row["statement"], form, f"**{row['verdict']}**" if row["verdict"] == "refuted" else row["verdict"],
             worst(row), cases, page)
    return "| " + " | ".join(map(cell, cells)) + " |"


def section(root, rows):
    """The ledger as Markdown: how many hold, what is refuted and by what, and the whole table folded away."""
    groups = by_statement(root, rows)
    counted = Counter(verdict_of(mine) for mine in groups.values())
    said = "; ".join(f"**{counted[verdict]}** {words}" for verdict, words in
                     (("holds", "hold"), ("refuted", "are refuted as recovered"),
                      ("not checkable here", "cannot be checked here")))
    refuted = [row for row in rows if row["verdict"] == "refuted"]
    text = [f"Of **{len(groups)}** statements, {said}. Every verdict is computed on the page it links to.", ""]
    if refuted:
        text += ["| refuted | form tested | smallest counter-example | page |", "| --- | --- | --- | --- |"]
        text += ["| " + " | ".join(map(cell, (
            row["statement"], row["form"], row["counter_example"],
            f"{{doc}}`{row['page'].split('_')[0]} <../notebooks/{row['page']}>`"))) + " |" for row in refuted]
    head = ["| statement | form tested | verdict | worst | cases | page |", "| --- | --- | --- | --- | --- | --- |"]
    text += ["", ":::::{dropdown} All verdicts", "*Worst*: measured over stated, the largest for an upper bound, the "
             "smallest for a lower one; for an identity the largest relative error. *Italic*: variants, sharper, "
             "corrected or with fewer hypotheses than the statement's own form.", "", *head,
             *map(line, rows), ":::::"]
    return "\n".join(text)
