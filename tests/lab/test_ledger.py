"""The ledger: verdicts follow from numbers, travel in executed notebooks, and gaps are complained about."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import jsonschema
import nbformat
import numpy as np
import pytest
import torch

from lab import ledger
from lab.pages import claims, layout, verdicts

ROOT = Path(__file__).parents[2]

ID, OTHER = "castin.thm-3.3", "castin.lem-3.8"
TEXT = {"seen": "text of the paper", "effort": "random"}
OURS = {"seen": "ours", "effort": "structured"}
LISTED = "id,source,name,claim,printed\na.one,paper,Statement 1,first,certain\na.two,paper,Statement 2,second,likely\n"


# verdicts from numbers


@pytest.mark.parametrize(
    ("kind", "ratios", "verdict", "worst"),
    [
        ("upper", np.array([[0.2, 0.9]]), "holds", 0.9),
        ("upper", torch.tensor([1 + 5e-10, 0.5]).double(), "holds", 1.0),
        ("upper", [1 + 1e-8], "refuted", 1.0),
        ("lower", [1 - 5e-10, 2], "holds", 1.0),
        ("lower", [1.3, 0.99], "refuted", 0.99),
        ("equal", [1e-13, -9e-13], "holds", 1.0),
        ("equal", [0.0, -2e-12], "refuted", 1.0),
    ],
)
def test_a_form_is_judged_by_its_worst_case(kind, ratios, verdict, worst):
    """That of an identity is its largest error of either sign, which is not rounded away."""
    within = {"within": 1e-12} if kind == "equal" else {}
    row = getattr(ledger, kind)(ID, "a form", ratios, grounds="tests", counter_example="x = 1", **TEXT, **within)
    assert (row.verdict, row.kind, row.cases) == (verdict, kind, np.asarray(ratios).size)
    assert row.worst_ratio == pytest.approx(worst, rel=1e-6)
    assert row.counter_example == ("x = 1" if verdict == "refuted" else None)
    assert kind != "equal" or row.worst_ratio - 1 == pytest.approx(np.abs(np.asarray(ratios)).max(), rel=1e-3)


@pytest.mark.parametrize(
    ("kind", "verdict"), [("unchecked", "not checkable here"), ("depends", "depends"), ("undecided", "not decided")]
)
def test_what_was_not_measured_has_no_number_and_decides_nothing_of_a_variant(kind, verdict):
    row = getattr(ledger, kind)(ID, "a form", "why", seen="ours")
    assert (row.verdict, row.kind, row.cases, row.worst_ratio, row.grounds) == (verdict, kind, 0, None, "why")
    assert not row.variant and row.effort is None and list(verdicts.gaps(asdict(row))) == []
    assert verdicts.verdict_of([asdict(row) | {"variant": True}]) is None and verdicts.worst(asdict(row)) == ""


# what a page must say of each row


@pytest.mark.parametrize("kind", ["upper", "lower"])
def test_a_stored_bound_whose_every_ratio_is_one_is_no_test(kind):
    row = asdict(getattr(ledger, kind)(ID, "a form", [0.5 if kind == "upper" else 2.0], grounds="tests", **TEXT))
    assert list(verdicts.gaps(row)) == []
    assert ["no test" in gap for gap in verdicts.gaps(row | {"worst_ratio": 1, "spread": 0})] == [True]


@pytest.mark.parametrize(("kind", "good", "bad"), [("upper", 0.9, 1.1), ("lower", 1.1, 0.9), ("equal", 0.0, 0.1)])
def test_only_the_papers_own_claim_in_a_form_that_it_shows_is_refuted(kind, good, bad):
    for seen, variant, verdict, is_variant in [
        ("text of the paper", False, "refuted", False),
        ("text of the paper", True, "fails", True),
        ("reconstructed", False, "fails", False),
        ("ours", False, "fails", True),
    ]:
        tried = {"seen": seen, "effort": "random", "variant": variant, "grounds": "tests", "counter_example": "x = 1"}
        tried |= {"within": 1e-9} if kind == "equal" else {}
        row = getattr(ledger, kind)(ID, "a form", [bad, 1.0], **tried)
        assert (row.verdict, row.variant) == (verdict, is_variant)
        row = getattr(ledger, kind)(ID, "a form", [good], **tried)
        assert (row.verdict, row.variant, row.seen, row.effort) == ("holds", is_variant, seen, "random")


@pytest.mark.parametrize(
    ("row", "numbers", "shown"),
    [
        (ledger.upper(ID, "a form", [0.1, 0.2, 0.9], grounds="tests", **TEXT), (0.9, 0.2, 0.8), "0.9 (0.2)"),
        (ledger.lower(ID, "a form", [1.1, 2.0, 9.0], grounds="tests", **TEXT), (1.1, 2.0, 7.9), "1.1 (2)"),
        (ledger.equal(ID, "a form", [1e-3, -2e-3, 0], within=1, grounds="tests", **TEXT), (1.002, 1.001, 0.002), None),
        # 1 + 6.2e-16 is a number of its own only to 2.2e-16
        (ledger.equal(ID, "a form", [6.2e-16], within=1, grounds="tests", **TEXT), (1, 1, 6.2e-16), "1 ± 6 · 10⁻¹⁶"),
        (ledger.equal(ID, "a form", [0.0], within=1, grounds="tests", **TEXT), (1, 1, 0), "exact"),
        (ledger.equal(ID, "a form", [0.127], within=1, grounds="tests", **TEXT), (1.13, 1.13, 0.13), "1 ± 0.13"),
    ],
)
def test_a_row_shows_its_typical_case_beside_the_worst(row, numbers, shown):
    """On its page and in the book alike."""
    assert (row.worst_ratio, row.median_ratio, row.spread) == pytest.approx(numbers)
    assert ledger.worst(row) == verdicts.worst(asdict(row)) and shown in (None, ledger.worst(row))


def test_the_list_of_statements_is_whole():
    listed = ledger.statements()
    assert listed.index.is_unique and not listed.isna().any().any()
    assert {ID, OTHER, "castin-v1.def-splitting"} <= set(listed.index)
    other = listed.index[~listed.printed.isin(["certain", "likely", "uncertain"])]
    assert other.empty, f"{list(other)}: the last column of lab/statements.csv is certain, likely or uncertain"
    bibliography = (ROOT / "book" / "references.bib").read_text()
    unknown = {source for source in listed.source if f"{{{source}," not in bibliography}
    assert not unknown, f"{sorted(unknown)}: no entry of book/references.bib has this key"
    assert list(verdicts.listed(ROOT)) == list(listed.index)


# what a page records


def rows():
    return [
        ledger.upper(ID, "as <stated>", [0.5, 0.25], grounds="random inputs", **TEXT),
        ledger.upper(ID, "wrong", [2.0], grounds="tests", counter_example="x = 1 & y < 2", **OURS),
        ledger.upper(ID, "wrong in the text", [2.0], grounds="tests", counter_example="x = 3", **TEXT),
        ledger.equal(OTHER, "by hand", [1e-14], within=1e-12, grounds="two tokens", **TEXT),
        ledger.depends("castin-v1.finite-splitting", "a question", "two readings", seen="ours"),
        ledger.undecided("castin.fig-4", "a comparison", "3 of 3 seeds", seen="ours", variant=True),
        ledger.unchecked("castin.fig-1", "the figure", "no weights", seen="text of the paper"),
    ]


def test_a_page_shows_its_verdicts_and_carries_them_as_data():
    shown = ledger.record(*rows())._repr_mimebundle_()
    assert shown[ledger.MIME] == [asdict(row) for row in rows()]
    assert json.loads(json.dumps(shown[ledger.MIME])) == shown[ledger.MIME]
    text, table = shown["text/plain"].splitlines(), shown["text/html"]
    assert len(text) == 7 and "2 cases" in text[0] and "0.5 (0.38)" in text[0]
    assert table.count("<tr") == 8 and "Theorem 3.3" in table
    assert [table.count(f"<b>{word}</b>") for word in verdicts.ORDER] == [1, 1, 1, 2, 1, 1]
    assert "as &lt;stated&gt;" in table and "x = 1 &amp; y &lt; 2" in table  # the counter-example, escaped


# the book gathers them


def row(id="a.one", form="as stated", verdict="holds", variant=False, **more):
    """A row as a notebook carries it."""
    kind = {"not checkable here": "unchecked", "depends": "depends", "not decided": "undecided"}.get(verdict, "upper")
    example = "x = 1 | y = 2" if verdict in ("refuted", "fails") else None
    made = {"id": id, "form": form, "verdict": verdict, "kind": kind, "variant": variant, "counter_example": example}
    made |= {"cases": 0, "worst_ratio": None, "grounds": "tests", "seen": "text of the paper"}
    tried = {"cases": 1200, "worst_ratio": 0.5, "median_ratio": 0.25, "spread": 0.2, "effort": "random"}
    return asdict(ledger.Row(**made | (tried if kind == "upper" else {}))) | more


@pytest.fixture
def book(tmp_path):
    """A repository of a list of statements and a function that adds an executed page."""
    (tmp_path / "lab").mkdir()
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "data" / "results").mkdir(parents=True)
    (tmp_path / verdicts.LISTED).write_text(LISTED)

    def page(name, *recorded):
        (tmp_path / "notebooks" / f"{name}.py").write_text("# %% [markdown]\n# # A <page>\n")
        out = nbformat.v4.new_output("execute_result", {verdicts.MIME: list(recorded), "text/plain": "a table"})
        cells = [
            nbformat.v4.new_markdown_cell("# A page"),
            nbformat.v4.new_code_cell("1", outputs=[nbformat.v4.new_output("stream", name="stdout", text="1")]),
            nbformat.v4.new_code_cell("2", outputs=[out]),
        ]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "notebooks" / f"{name}.ipynb")

    return tmp_path, page


def gathered(root):
    return verdicts.gather(root, root / "notebooks")


def test_rows_are_gathered_in_the_order_of_the_list_then_of_the_pages(book):
    root, page = book
    page("02_later", row("a.one", "sharper", variant=True), row("b.unknown"))
    page("01_first", row("a.two"), row("a.one"))
    (root / "notebooks" / "03_never_run.py").write_text("# %% [markdown]\n# # A <page>\n")
    places = [f"{row['id']} {row['page']}" for row in gathered(root)]
    assert places == ["a.one 01_first", "a.one 02_later", "a.two 01_first", "b.unknown 02_later"]
    assert gathered(root)[0] == {"source": "paper", "statement": "Statement 1", **row(), "page": "01_first"}


def test_each_gap_is_a_complaint(book):
    root, page = book
    for second, sentence in [
        ([row("a.two", variant=True)], "without variant=True"),
        ([row("a.two"), row("a.three")], "a.three is not in"),
        ([row("a.two"), row("a.two")], "stands on two pages"),
        ([row("a.two", seen="printed")], "how the form is known"),
        ([row("a.two", effort=None)], "how hard it was tried"),
        ([row("a.two", worst_ratio=1.0, spread=0.0)], "every ratio is 1"),
    ]:
        page("01_first", row("a.one"), *second[:-1])
        page("02_second", *second[-1:])
        [said] = verdicts.complaints(root, gathered(root))
        assert said.startswith("ledger: a.t") and sentence in said
    page("02_second", row("a.two", verdict="not checkable here"))
    assert list(verdicts.complaints(root, gathered(root))) == []


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([], None),
        ([row(variant=True)], None),
        ([row(), row(form="b", verdict="refuted", variant=True)], "holds"),
        ([row(), row(form="b", verdict="refuted")], "refuted"),
        ([row(verdict="fails"), row(form="b", verdict="refuted")], "refuted"),
        ([row(verdict="depends"), row(form="b", verdict="fails")], "fails"),
        ([row(verdict="not checkable here"), row(form="b", verdict="depends")], "depends"),
        ([row(verdict="not checkable here"), row(form="b", verdict="not decided")], "not decided"),
        ([row(), row(form="b", verdict="not decided")], "holds"),
        ([row(verdict="not checkable here"), row(form="b")], "holds"),
    ],
)
def test_a_statement_is_judged_by_its_own_forms_and_one_that_fails_is_enough(rows, verdict):
    assert verdicts.verdict_of(rows) == verdict


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({}, True),
        ({"worst_ratio": 0.5 * 1.009}, True),
        ({"worst_ratio": 0.5 * 1.02}, False),
        ({"median_ratio": 0.25 * 1.02}, False),
        ({"spread": 7.0}, True),
        ({"seen": "ours"}, False),
        ({"counter_example": "other digits"}, True),
        ({"verdict": "refuted"}, False),
        ({"page": "02_second"}, False),
    ],
)
def test_stored_claims_are_the_same_up_to_a_percent(book, change, is_same):
    root, page = book
    page("01_first"), page("02_second")
    stored, made = (claims.claims(root, [row(page="01_first") | more]) for more in ({}, change))
    assert claims.same(stored, made) is is_same and not claims.same(None, made)
    assert not claims.same(stored, claims.claims(root, [row(page="01_first"), row("a.two", page="01_first")]))


def test_the_claims_are_written_only_when_they_say_something_else(book):
    root, page = book
    page("01_first")

    def kept():
        return claims.read_stored(root)["statements"][0]["forms"][0]["worst_ratio"]

    claims.store(root, [])
    assert claims.read_stored(root) is None
    for ratio, written in ((0.5, 0.5), (0.501, 0.5), (0.6, 0.6)):
        claims.store(root, [row(page="01_first", worst_ratio=ratio)])
        assert kept() == written


def test_the_claims_are_those_of_the_ledger_and_fit_their_schema():
    """Each statement has its verdict, each form stands there once with the line of code that decides and its page."""
    schema = json.loads((ROOT / claims.SCHEMA).read_text(encoding="utf-8"))
    stored, rows = claims.read_stored(ROOT), verdicts.gather(ROOT, ROOT / "notebooks")
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    assert [error.message for error in validator.iter_errors(stored)] == []
    same = claims.same(stored, claims.claims(ROOT, rows))
    assert same, "data/claims.json is not what the pages recorded: `python -m lab pages pair NN` writes it"
    mine = verdicts.by_statement(ROOT, rows)
    assert [(one["id"], one["verdict"]) for one in stored["statements"]] == [
        (id, verdicts.verdict_of(forms)) for id, forms in mine.items()
    ]
    forms = [form for one in stored["statements"] for form in one["forms"]]
    assert [form["form"] for form in forms] == [row["form"] for forms in mine.values() for row in forms]
    for form in forms:
        name, line = form["code"].split("#L")
        assert (ROOT / name).read_text().splitlines()[int(line) - 1].lstrip().startswith("ledger.record(")
        assert form["page"].partition("#")[0] == name.replace(".py", ".html")
    broken = json.loads(json.dumps(stored))
    broken["statements"][0]["forms"][0]["verdict"] = "proved"
    assert not validator.is_valid(broken)


def test_other_runs_of_the_pages_leave_the_stored_ledger_alone(book):
    """Pages run on other texts record other ratios; only the committed pages are what git tracks."""
    root, page = book
    page("01_first", row("a.one"), row("a.two"))
    for name in ("_config.yml", "_toc.yml"):
        (root / name).write_text("root: nothing\n")
    (root / "_build").mkdir()
    (root / "notebooks").rename(root / "_build" / "notebooks")
    (root / "notebooks").mkdir()
    (root / "_build" / "notebooks" / "01_first.py").rename(root / "notebooks" / "01_first.py")
    assert layout.stage(root, root / "_build" / "notebooks", root / "_build" / "source") == 0
    assert claims.read_stored(root) is None
    unrun = root / "notebooks" / "02_unrun.py"
    unrun.write_text("# %% [markdown]\n# # A <page>\n")
    with pytest.raises(ValueError, match="not run yet: 1, the first 02_unrun.*make notebooks"):
        layout.pair(root)
    assert claims.read_stored(root) is None and not (root / "notebooks" / "01_first.ipynb").exists()
    unrun.unlink()
    assert layout.pair(root) == 0
    assert len(claims.read_stored(root)["statements"]) == 2
    (root / claims.STORED).unlink()
    assert layout.stage(root, root / "notebooks", root / "_build" / "source") == 0
    assert len(claims.read_stored(root)["statements"]) == 2


def test_prose_has_its_counts_from_the_ledger(book):
    """Statements, forms, statements by verdict, and the most cases of a statement; a variant decides nothing."""
    root, page = book
    page("01_first", row("a.one", cases=1200), row("a.one", "tighter", variant=True, seen="ours", verdict="fails"))
    text = "{ledger}`statements` {ledger}`forms` {ledger}`holds` {ledger}`fails` {ledger}`a.one:,d` {ledger}`none`"
    filled = verdicts.filled(root, gathered(root), text)
    assert filled == f"{len(verdicts.listed(root))} 2 1 0 1,200 {{ledger}}`none`"


def test_each_mark_of_prose_gives_way_to_its_part(book):
    root, page = book
    page("01_first", row("a.one"))
    rows = gathered(root)
    text = f"{verdicts.COUNTS}\n{verdicts.EVERY}"
    assert verdicts.filled(root, rows, text) == section(root, rows) != text


def test_the_section_counts_statements_and_shows_counter_examples(book):
    root, page = book
    ours = row("a.one", "corrected", variant=True, seen="ours")
    page("01_first", row("a.one", verdict="refuted"), ours, row("a.two", verdict="refuted"))
    text = section(root, gathered(root))
    assert "the **2** refuted rest on **1** counter-example." in text
    assert "| {cite:t}`paper` | 2 | 0 | 0 | 0 " in text and "| ours | 0 | 0 | 0 | 1 " in text
    refuted, corrected, _ = table_lines(text)
    assert 'data-paper="paper" data-verdict="refuted" data-effort="random"' in refuted
    assert "as stated<br><small>x = 1 | y = 2</small>" in refuted and "<b>refuted</b>" in refuted
    assert "<i>corrected</i><br><small>tests</small>" in corrected and "0.5 (0.25)" in corrected
    name = ledger.anchor("a.one", "as stated")
    assert f'<tr id="row-{name}"' in refuted and f'01_first.html#verdict-{name}">A &lt;page&gt;</a>' in refuted


def section(root, rows):
    """Both parts of the ledger, as the pages on evidence and on every verdict show them."""
    return f"{verdicts.counts_section(root, rows)}\n{verdicts.every_section(root, rows)}"


def table_lines(text):
    """The rows of the table of all forms."""
    return [line for line in text.splitlines() if line.startswith('<tr id="row-')]


def test_a_row_is_found_from_its_page_and_back():
    """Two forms of one statement, and one form of two statements, have anchors of their own."""
    row = ledger.upper(ID, "as <stated>", [0.5, 0.25], grounds="tests", **TEXT)
    table = ledger.record(row).table()
    name = ledger.anchor(ID, "as <stated>")
    assert name.startswith("castin-thm-3-3-") and re.fullmatch(r"[a-z0-9-]+", name)
    assert f'<tr id="verdict-{name}">' in table and f'href="../book/verdicts.html#row-{name}"' in table
    assert len({name, ledger.anchor(ID, "other"), ledger.anchor(OTHER, "as <stated>")}) == 3


def test_the_words_of_a_form_cannot_break_the_table(book):
    root, page = book
    page("01_first", row("a.one", "|x| < 1 & y"), row("a.two", seen="ours", grounds="<script>"))
    text = section(root, gathered(root))
    assert "|x| &lt; 1 &amp; y" in text and "&lt;script&gt;" in text and "<small><script>" not in text


def test_a_paper_is_named_as_in_the_bibliography(tmp_path):
    assert verdicts.paper(tmp_path, "castin2024smooth") == "castin2024smooth"
    for source in set(ledger.statements().source):
        assert re.fullmatch(r"[A-Z][a-z]+( and others)?, 20\d\d", verdicts.paper(ROOT, source)), source


def numbers(text):
    """The counts that the words give, and those that the tables add up to."""
    words, rest = text.split(". *Refuted*")
    said = [int(number) for number in re.findall(r"\*\*(\d+)\*\*", words)]
    tables = [line for line in rest.splitlines() if line.startswith("| all |")]
    return said, [[int(number) for number in re.findall(r"\d+", line)] for line in tables]


def test_the_words_the_counts_and_the_table_of_the_section_are_of_one_making(book):
    """Each change of one row changes the section; words, sums and lines agree in each state."""
    root, page = book
    first = [row("a.one"), row("a.two", "b", "fails", effort="ascended"), row("a.two", "c", variant=True)]
    others = [{"verdict": verdict} for verdict in ("refuted", "fails", "depends", "not decided", "not checkable here")]
    for change in ({}, *others, {"id": "a.two"}, {"variant": True}, {"seen": "ours"}, {"effort": "proved"}):
        page("01_first", *first)
        before = section(root, gathered(root))
        page("01_first", row(**{"id": "a.one"} | change), *first[1:])
        rows = gathered(root)
        text = section(root, rows)
        assert (text == before) is (change == {})
        said, (statements, seen, effort) = numbers(text)
        assert said[0] == 2 == sum(said[1:]) and statements[:-1] == said[1:7]
        assert sum(seen[:-1]) == sum(effort[:-1]) == seen[-1] == effort[-1] == len(rows)
        lost = sum(one["verdict"] in ("refuted", "fails", "depends") for one in rows)
        assert [seen[0] + seen[1] + seen[2], text.count("<td><b>")] == [lost] * 2  # bold in the whole table
        assert f"**{lost}** forms do not hold" in text and len(table_lines(text)) == len(rows)
        own = [verdicts.verdict_of(mine) for mine in verdicts.by_statement(root, rows).values()]
        assert said[1:] == [own.count(verdict) for verdict in (*verdicts.ORDER, *({None} & set(own)))]
