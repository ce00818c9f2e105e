"""The ledger: verdicts follow from numbers, travel in executed notebooks, and gaps are complained about."""

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch

from lipnb import ledger

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "book"))
import pages  # noqa: E402
import verdicts  # noqa: E402

ID, OTHER = "castin.thm-3.3", "castin.lem-3.8"
LISTED = ("id,source,name,claim,printed\n"
          "a.one,paper,Statement 1,first,certain\na.two,paper,Statement 2,second,likely\n")


# verdicts from numbers

@pytest.mark.parametrize(("kind", "ratios", "verdict", "worst"), [
    ("upper", [0.2, 0.9], "holds", 0.9),
    ("upper", [1 + 5e-10], "holds", 1.0),
    ("upper", [0.2, 1.1], "refuted", 1.1),
    ("upper", [1 + 1e-8], "refuted", 1.0),
    ("lower", [1.3, 1.01], "holds", 1.01),
    ("lower", [1 - 5e-10], "holds", 1.0),
    ("lower", [1.3, 0.99], "refuted", 0.99),
])
def test_a_bound_is_judged_by_its_worst_case(kind, ratios, verdict, worst):
    row = getattr(ledger, kind)(ID, "a form", ratios, grounds="tests", counter_example="x = 1")
    assert (row.verdict, row.kind, row.cases) == (verdict, kind, len(ratios))
    assert row.worst_ratio == pytest.approx(worst, rel=1e-6)
    assert row.counter_example == ("x = 1" if verdict == "refuted" else None)


@pytest.mark.parametrize(("errors", "verdict"), [([1e-13, -9e-13], "holds"), ([0.0, -2e-12], "refuted")])
def test_an_identity_is_judged_by_its_largest_error_of_either_sign(errors, verdict):
    row = ledger.equal(ID, "a form", errors, within=1e-12, grounds="tests", counter_example="n = 2")
    assert row.verdict == verdict and row.grounds == "tests (within 1e-12)"
    assert row.worst_ratio - 1 == pytest.approx(max(map(abs, errors)), rel=1e-3)  # not rounded away


def test_what_cannot_be_checked_has_no_number():
    row = ledger.unchecked(ID, "a form", "no weights here")
    assert (row.verdict, row.cases, row.worst_ratio, row.grounds) == ("not checkable here", 0, None, "no weights here")
    assert not row.variant


@pytest.mark.parametrize(("ratios", "cases"), [
    (0.5, 1), ([0.5], 1), (np.full((2, 3), 0.5), 6), (torch.full((4,), 0.5, dtype=torch.float64), 4)])
def test_any_array_is_a_list_of_cases(ratios, cases):
    assert ledger.upper(ID, "a form", ratios, grounds="tests").cases == cases


@pytest.mark.parametrize("kind", ["upper", "lower", "equal"])
@pytest.mark.parametrize("bad", [[0.5, math.nan], [math.inf], []])
def test_numbers_that_are_none_are_refused(kind, bad):
    options = {"within": 1e-9} if kind == "equal" else {}
    with pytest.raises(ValueError, match="ratios must be finite numbers.*castin.thm-3.3"):
        getattr(ledger, kind)(ID, "a form", bad, grounds="tests", **options)


@pytest.mark.parametrize(("kind", "worst"), [("upper", 2.0), ("lower", 0.5), ("equal", 0.5)])
@pytest.mark.parametrize("example", [None, ""])
def test_a_refuted_form_needs_its_counter_example(kind, worst, example):
    options = {"within": 1e-9} if kind == "equal" else {}
    with pytest.raises(ValueError, match="refuted.*needs its counter-example"):
        getattr(ledger, kind)(ID, "a form", [worst], grounds="tests", counter_example=example, **options)


@pytest.mark.parametrize("make", [
    lambda id: ledger.upper(id, "a form", [0.5], grounds="tests"),
    lambda id: ledger.lower(id, "a form", [1.5], grounds="tests"),
    lambda id: ledger.equal(id, "a form", [0.0], within=1, grounds="tests"),
    lambda id: ledger.unchecked(id, "a form", "why"),
])
def test_an_unknown_statement_is_refused(make):
    assert make(ID).id == ID
    with pytest.raises(ValueError, match="there is no statement 'castin.thm-9.9'"):
        make("castin.thm-9.9")


def test_the_list_of_statements_is_whole():
    listed = ledger.statements()
    assert listed.index.is_unique and not listed.isna().any().any()
    assert {ID, OTHER, "castin-v1.def-splitting"} <= set(listed.index)
    assert set(listed.printed) <= {"certain", "likely", "uncertain"}
    bibliography = (ROOT / "book" / "references.bib").read_text()
    assert all(f"{{{source}," in bibliography for source in listed.source)
    assert list(verdicts.listed(ROOT)) == list(listed.index)


# what a page records

def rows():
    return [ledger.upper(ID, "as <printed>", [0.5, 0.25], grounds="random inputs"),
            ledger.upper(ID, "wrong", [2.0], grounds="tests", counter_example="x = 1 & y < 2", variant=True),
            ledger.equal(OTHER, "by hand", [1e-14], within=1e-12, grounds="two tokens"),
            ledger.unchecked("castin.fig-1", "the figure", "no weights")]


def test_the_same_form_twice_is_refused_and_two_forms_are_not():
    first, second, *_ = rows()
    assert ledger.record(first, second)[ID] == [first, second]
    assert ledger.record(first, second)[OTHER] == []
    with pytest.raises(ValueError, match="'as <printed>', is recorded twice"):
        ledger.record(first, second, first)


def test_a_page_shows_its_verdicts_and_carries_them_as_data():
    shown = ledger.record(*rows())._repr_mimebundle_()
    assert shown[ledger.MIME] == [asdict(row) for row in rows()]
    assert json.loads(json.dumps(shown[ledger.MIME])) == shown[ledger.MIME]
    text, table = shown["text/plain"].splitlines(), shown["text/html"]
    assert len(text) == 4 and "1 ± 1e-14" in text[2] and "2 cases" in text[0]
    assert table.count("<tr>") == 5 and "Theorem 3.3" in table and "<b>refuted</b>" in table
    assert "as &lt;printed&gt;" in table and "x = 1 &amp; y &lt; 2" in table  # the counter-example, escaped


# the book gathers them

def test_both_modules_agree():
    """The book's script does not import the package; what the two share is written twice."""
    assert verdicts.MIME == ledger.MIME
    assert set(verdicts.ORDER) == {ledger.HOLDS, ledger.REFUTED, ledger.UNCHECKED}
    assert ROOT / verdicts.LISTED == Path(ledger.__file__).with_name("statements.csv")
    for row in rows():
        assert verdicts.worst(asdict(row)) == ledger._worst(row)


def row(id="a.one", form="as printed", verdict="holds", variant=False, **more):
    """A row as a notebook carries it."""
    example = "x = 1 | y = 2" if verdict == "refuted" else None
    cases, ratio = (0, None) if verdict == "not checkable here" else (1200, 0.5)
    return {"id": id, "form": form, "cases": cases, "worst_ratio": ratio, "verdict": verdict, "kind": "upper",
            "grounds": "tests", "counter_example": example, "variant": variant} | more


@pytest.fixture
def book(tmp_path):
    """A repository of a list of statements and a function that adds an executed page."""
    (tmp_path / "lipnb").mkdir()
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "data" / "results").mkdir(parents=True)
    (tmp_path / verdicts.LISTED).write_text(LISTED)

    def page(name, *recorded):
        (tmp_path / "notebooks" / f"{name}.py").write_text("# %%\n")
        out = nbformat.v4.new_output("execute_result", {verdicts.MIME: list(recorded), "text/plain": "a table"})
        cells = [nbformat.v4.new_markdown_cell("# A page"), nbformat.v4.new_code_cell("1", outputs=[
            nbformat.v4.new_output("stream", name="stdout", text="1")]), nbformat.v4.new_code_cell("2", outputs=[out])]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "notebooks" / f"{name}.ipynb")

    return tmp_path, page


def gathered(root):
    return verdicts.gather(root, root / "notebooks")


def test_rows_are_gathered_in_the_order_of_the_list_then_of_the_pages(book):
    root, page = book
    page("02_later", row("a.one", "sharper", variant=True), row("b.unknown"))
    page("01_first", row("a.two"), row("a.one"))
    (root / "notebooks" / "03_never_run.py").write_text("# %%\n")
    assert [(r["id"], r["page"]) for r in gathered(root)] == [
        ("a.one", "01_first"), ("a.one", "02_later"), ("a.two", "01_first"), ("b.unknown", "02_later")]
    assert gathered(root)[0] == {"source": "paper", "statement": "Statement 1", **row(), "page": "01_first"}


def test_a_whole_ledger_has_no_complaint(book):
    root, page = book
    page("01_first", row("a.one"), row("a.two", verdict="not checkable here"))
    assert list(verdicts.complaints(root, gathered(root))) == []


@pytest.mark.parametrize(("recorded", "sentence"), [
    ([row("a.one")], "ledger: a.two has no verdict on any page"),
    ([row("a.one"), row("a.two", variant=True)], "ledger: a.two has no verdict on any page"),
    ([row("a.one"), row("a.two"), row("a.three")], f"ledger: a.three is not in {verdicts.LISTED}"),
    ([row("a.one"), row("a.two"), row("a.two")], "ledger: a.two, 'as printed', stands on two pages"),
])
def test_each_gap_is_a_complaint(book, recorded, sentence):
    root, page = book
    page("01_first", *recorded[:-1])
    page("02_second", *recorded[-1:])
    assert list(verdicts.complaints(root, gathered(root))) == [sentence]


def test_a_repository_without_a_list_has_no_complaint(tmp_path):
    assert verdicts.listed(tmp_path) == {}
    assert list(verdicts.complaints(tmp_path, [])) == []


@pytest.mark.parametrize(("rows", "verdict"), [
    ([], None),
    ([row(variant=True)], None),
    ([row(), row(form="b", verdict="refuted", variant=True)], "holds"),
    ([row(), row(form="b", verdict="refuted")], "refuted"),
    ([row(verdict="not checkable here"), row(form="b")], "holds"),
    ([row(verdict="not checkable here")], "not checkable here"),
])
def test_a_statement_is_judged_by_its_own_forms_and_one_refutation_is_enough(rows, verdict):
    assert verdicts.verdict_of(rows) == verdict


@pytest.mark.parametrize(("change", "is_same"), [
    ({}, True), ({"worst_ratio": 0.5 * 1.009}, True), ({"worst_ratio": 0.5 * 1.02}, False),
    ({"worst_ratio": None}, False), ({"counter_example": "other digits"}, True), ({"cases": 7}, False),
    ({"verdict": "refuted"}, False), ({"grounds": "other"}, False), ({"page": "02_second"}, False),
])
def test_a_stored_ledger_is_the_same_up_to_a_percent(change, is_same):
    assert verdicts.same([row(page="01_first")], [row(page="01_first") | change]) is is_same


def test_ledgers_of_different_length_differ():
    assert not verdicts.same([row()], []) and not verdicts.same([row()], [row(), row("a.two")])
    nothing = row(verdict="not checkable here")
    assert verdicts.same([nothing], [nothing]) and verdicts.same([], [])


def test_the_ledger_is_written_only_when_it_says_something_else(book):
    root, _ = book
    path = root / verdicts.STORED
    assert verdicts.read_stored(root) is None
    verdicts.store(root, [])
    assert not path.exists()
    verdicts.store(root, [row()])
    assert verdicts.read_stored(root) == [row()]
    verdicts.store(root, [row(worst_ratio=0.501)])
    assert verdicts.read_stored(root) == [row()]
    verdicts.store(root, [row(worst_ratio=0.6)])
    assert verdicts.read_stored(root) == [row(worst_ratio=0.6)]


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
    assert pages.stage(root, root / "_build" / "notebooks", root / "_build" / "source") == 0
    assert verdicts.read_stored(root) is None
    assert pages.pair(root) == 0
    assert len(verdicts.read_stored(root)) == 2
    (root / verdicts.STORED).unlink()
    assert pages.stage(root, root / "notebooks", root / "_build" / "source") == 0
    assert len(verdicts.read_stored(root)) == 2


def test_the_section_counts_statements_and_shows_counter_examples(book):
    root, page = book
    page("01_first", row("a.one", verdict="refuted"), row("a.one", "corrected", variant=True),
         row("a.two", kind="equal", worst_ratio=1 + 3e-13))
    text = verdicts.section(root, gathered(root))
    assert text.startswith("Of **2** statements, **1** hold; **1** are refuted as recovered; **0** cannot be checked")
    lines = text.splitlines()
    link = "{doc}`01 <../notebooks/01_first>`"
    assert rf"| Statement 1 | as printed | x = 1 \| y = 2 | {link} |" in lines
    assert f"| Statement 1 | *corrected* | holds | 0.5 | 1,200 | {link} |" in lines
    assert f"| Statement 1 | as printed | **refuted** | 0.5 | 1,200 | {link} |" in lines
    assert f"| Statement 2 | as printed | holds | 1 ± 3e-13 | 1,200 | {link} |" in lines
    assert lines.count(":::::") == 1 and lines[-1] == ":::::"


def test_the_section_without_refutations_has_one_table(book):
    root, page = book
    page("01_first", row("a.one"), row("a.two", verdict="not checkable here"))
    text = verdicts.section(root, gathered(root))
    assert "counter-example" not in text and text.count("| --- |") >= 1
    assert "| Statement 2 | as printed | not checkable here |  |  | {doc}`01 <../notebooks/01_first>` |" in text
