"""The ledger: verdicts follow from numbers, travel in executed notebooks, and gaps are complained about."""

import json
import math
import re
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch

from lab import ledger
from lab.pages import layout, verdicts

ROOT = Path(__file__).parents[2]

ID, OTHER = "castin.thm-3.3", "castin.lem-3.8"
TEXT = {"seen": "text of the paper", "effort": "random"}
OURS = {"seen": "ours", "effort": "structured"}
LISTED = "id,source,name,claim,printed\na.one,paper,Statement 1,first,certain\na.two,paper,Statement 2,second,likely\n"


# verdicts from numbers


@pytest.mark.parametrize(
    ("kind", "ratios", "verdict", "worst"),
    [
        ("upper", [0.2, 0.9], "holds", 0.9),
        ("upper", [1 + 5e-10, 0.5], "holds", 1.0),
        ("upper", [0.2, 1.1], "refuted", 1.1),
        ("upper", [1 + 1e-8], "refuted", 1.0),
        ("lower", [1.3, 1.01], "holds", 1.01),
        ("lower", [1 - 5e-10, 2], "holds", 1.0),
        ("lower", [1.3, 0.99], "refuted", 0.99),
    ],
)
def test_a_bound_is_judged_by_its_worst_case(kind, ratios, verdict, worst):
    row = getattr(ledger, kind)(ID, "a form", ratios, grounds="tests", counter_example="x = 1", **TEXT)
    assert (row.verdict, row.kind, row.cases) == (verdict, kind, len(ratios))
    assert row.worst_ratio == pytest.approx(worst, rel=1e-6)
    assert row.counter_example == ("x = 1" if verdict == "refuted" else None)


@pytest.mark.parametrize(("errors", "verdict"), [([1e-13, -9e-13], "holds"), ([0.0, -2e-12], "refuted")])
def test_an_identity_is_judged_by_its_largest_error_of_either_sign(errors, verdict):
    row = ledger.equal(ID, "a form", errors, within=1e-12, grounds="tests", counter_example="n = 2", **TEXT)
    assert row.verdict == verdict and row.grounds == "tests (within 1e-12)"
    assert row.worst_ratio - 1 == pytest.approx(max(map(abs, errors)), rel=1e-3)  # not rounded away


def test_a_tolerance_and_a_large_error_keep_their_second_digit():
    row = ledger.equal(ID, "a form", [0.127, 0.06], within=0.15, grounds="tests", **OURS)
    assert row.verdict == "holds" and row.grounds == "tests (within 0.15)"
    assert "1 ± 0.13" in str(ledger.record(row)) and verdicts.worst(asdict(row)) == "1 ± 0.13"
    assert ledger.equal(ID, "a form", [4.4e-16], within=1e-9, grounds="tests", **OURS).grounds == "tests (within 1e-09)"


def test_a_variant_of_what_the_paper_shows_fails_and_is_not_refuted():
    tried = {"grounds": "tests", "counter_example": "x = 1", **TEXT}
    assert ledger.upper(ID, "as stated", [1.1], **tried).verdict == "refuted"
    assert ledger.upper(ID, "on other models", [1.1], variant=True, **tried).verdict == "fails"


def test_what_cannot_be_checked_has_no_number():
    row = ledger.unchecked(ID, "a form", "no weights here", seen="text of the paper")
    assert (row.verdict, row.cases, row.worst_ratio, row.grounds) == ("not checkable here", 0, None, "no weights here")
    assert not row.variant and row.effort is None and row.seen == "text of the paper"


def test_what_depends_on_the_definition_says_so_and_has_no_number():
    row = ledger.depends(ID, "a question", "true of one reading, false of another", seen="ours", cases=7)
    assert (row.verdict, row.kind, row.cases, row.worst_ratio) == ("depends", "depends", 7, None)
    assert not row.variant and row.grounds.startswith("true of one reading")


def test_what_a_test_could_not_tell_is_counted_as_no_success():
    row = ledger.undecided(ID, "a comparison", "3 of 3 seeds, by chance 1 in 8", seen="ours", cases=3, variant=True)
    assert (row.verdict, row.kind, row.cases, row.worst_ratio) == ("not decided", "undecided", 3, None)
    assert row.variant and row.effort is None and list(verdicts.gaps(asdict(row))) == []
    assert verdicts.verdict_of([asdict(row)]) is None  # of a variant: the statement itself is not touched
    assert verdicts.worst(asdict(row)) == ""


# what a page must say of each row


@pytest.mark.parametrize(("kind", "good", "bad"), [("upper", 0.9, 1.1), ("lower", 1.1, 0.9), ("equal", 0.0, 0.1)])
def test_only_the_papers_own_claim_in_a_form_that_it_shows_is_refuted(kind, good, bad):
    for seen, variant, verdict, is_variant in [
        ("text of the paper", False, "refuted", False),
        ("released code", False, "refuted", False),
        ("text of the paper", True, "fails", True),
        ("released code", True, "fails", True),
        ("reconstructed", False, "fails", False),
        ("ours", False, "fails", True),
        ("ours", True, "fails", True),
    ]:
        tried = {"seen": seen, "effort": "random", "variant": variant, "grounds": "tests", "counter_example": "x = 1"}
        tried |= {"within": 1e-9} if kind == "equal" else {}
        row = getattr(ledger, kind)(ID, "a form", [bad, 1.0], **tried)
        assert (row.verdict, row.variant) == (verdict, is_variant)
        row = getattr(ledger, kind)(ID, "a form", [good], **tried)
        assert (row.verdict, row.variant, row.seen, row.effort) == ("holds", is_variant, seen, "random")


@pytest.mark.parametrize("missing", ["seen", "effort"])
@pytest.mark.parametrize("kind", ["upper", "lower", "equal"])
def test_a_row_that_does_not_say_how_it_is_known_and_tried_is_refused(kind, missing):
    options = {"within": 1e-9} if kind == "equal" else {}
    make = partial(getattr(ledger, kind), ID, "a form", [0.5, 2.0], grounds="tests", counter_example="x", **options)
    assert make(**TEXT).id == ID
    with pytest.raises(TypeError, match=f"missing.*'{missing}'"):
        make(**{key: value for key, value in TEXT.items() if key != missing})
    with pytest.raises(ValueError, match=f"{missing} must be one of .*got 'printed'"):
        make(**TEXT | {missing: "printed"})


@pytest.mark.parametrize("make", [ledger.unchecked, ledger.depends])
def test_a_row_without_numbers_says_how_its_form_is_known(make):
    with pytest.raises(TypeError, match="missing.*'seen'"):
        make(ID, "a form", "why")
    with pytest.raises(ValueError, match="seen must be one of .*got 'recalled'"):
        make(ID, "a form", "why", seen="recalled")


def test_a_large_ratio_is_written_as_a_person_does():
    row = ledger.lower(ID, "a form", [32_490.0, 65_000.0], grounds="tests", **TEXT)
    assert ledger.worst(row) == "3.249 · 10⁴ (4.9 · 10⁴)"


@pytest.mark.parametrize("kind", ["upper", "lower"])
@pytest.mark.parametrize("ratios", [[1.0], [1.0, 1.0, 1.0], [1 + 1e-12, 1 - 1e-12]])
def test_a_bound_whose_every_ratio_is_one_is_no_test(kind, ratios):
    """A limit over the bound that defines it is 1 whatever is measured."""
    with pytest.raises(ValueError, match="every ratio is 1, which is no test"):
        getattr(ledger, kind)(ID, "a form", ratios, grounds="tests", **TEXT)
    within = [*ratios, 0.9 if kind == "upper" else 1.1]
    assert getattr(ledger, kind)(ID, "a form", within, grounds="tests", **TEXT).verdict == "holds"


@pytest.mark.parametrize("within", [0, -1e-9, math.nan])
def test_an_identity_allows_for_rounding(within):
    with pytest.raises(ValueError, match="within must be above 0"):
        ledger.equal(ID, "a form", [0.0], within=within, grounds="tests", **TEXT)


def test_a_row_shows_its_typical_case_beside_the_worst():
    row = ledger.upper(ID, "a form", [0.1, 0.2, 0.9], grounds="tests", **TEXT)
    assert (row.worst_ratio, row.median_ratio) == (0.9, 0.2) and row.spread == pytest.approx(0.8)
    row = ledger.lower(ID, "a form", [1.1, 2.0, 9.0], grounds="tests", **TEXT)
    assert (row.worst_ratio, row.median_ratio) == (1.1, 2.0) and ledger.worst(row) == "1.1 (2)"
    row = ledger.equal(ID, "a form", [1e-3, -2e-3, 0.0], within=1, grounds="tests", **TEXT)
    assert (row.worst_ratio, row.median_ratio, row.spread) == (1.002, 1.001, 0.002)


@pytest.mark.parametrize(("error", "shown"), [(6.2e-16, "1 ± 6 · 10⁻¹⁶"), (8.3e-16, "1 ± 8 · 10⁻¹⁶"), (0.0, "exact")])
def test_an_error_near_rounding_is_shown_as_it_was_measured(error, shown):
    """1 + 6.2e-16 is a number of its own only to 2.2e-16: a page's table would show 6e-16, the ledger 7e-16."""
    row = ledger.equal(ID, "a form", [error, 0.0], within=1e-12, grounds="tests", **TEXT)
    assert ledger.worst(row) == verdicts.worst(asdict(row)) == shown
    old = asdict(row) | {"spread": None}  # as a page kept it before
    assert verdicts.worst(old) == ledger.worst(ledger.Row(**old)) and (error == 0 or "± " in verdicts.worst(old))


@pytest.mark.parametrize(
    ("ratios", "cases"),
    [(0.5, 1), ([0.5], 1), (np.full((2, 3), 0.5), 6), (torch.full((4,), 0.5, dtype=torch.float64), 4)],
)
def test_any_array_is_a_list_of_cases(ratios, cases):
    assert ledger.upper(ID, "a form", ratios, grounds="tests", **TEXT).cases == cases


@pytest.mark.parametrize("kind", ["upper", "lower", "equal"])
@pytest.mark.parametrize("bad", [[0.5, math.nan], [math.inf], []])
def test_numbers_that_are_none_are_refused(kind, bad):
    options = {"within": 1e-9} if kind == "equal" else {}
    with pytest.raises(ValueError, match="ratios must be finite numbers.*castin.thm-3.3"):
        getattr(ledger, kind)(ID, "a form", bad, grounds="tests", **TEXT, **options)


@pytest.mark.parametrize(("kind", "worst"), [("upper", 2.0), ("lower", 0.5), ("equal", 0.5)])
@pytest.mark.parametrize("example", [None, ""])
def test_a_form_that_does_not_hold_needs_its_counter_example(kind, worst, example):
    options = {"within": 1e-9} if kind == "equal" else {}
    for known, word in ((TEXT, "refuted"), (OURS, "fails")):
        with pytest.raises(ValueError, match=f"{word}.*does not hold needs its counter-example"):
            getattr(ledger, kind)(ID, "a form", [worst], grounds="tests", counter_example=example, **known, **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda id: ledger.upper(id, "a form", [0.5], grounds="tests", **TEXT),
        lambda id: ledger.lower(id, "a form", [1.5], grounds="tests", **TEXT),
        lambda id: ledger.equal(id, "a form", [0.0], within=1, grounds="tests", **TEXT),
        lambda id: ledger.unchecked(id, "a form", "why", seen="ours"),
        lambda id: ledger.depends(id, "a form", "why", seen="ours"),
    ],
)
def test_an_unknown_statement_is_refused(make):
    assert make(ID).id == ID
    with pytest.raises(ValueError, match="there is no statement 'castin.thm-9.9'"):
        make("castin.thm-9.9")


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


def test_the_same_form_twice_is_refused_and_two_forms_are_not():
    first, second, *_ = rows()
    assert ledger.record(first, second)[ID] == [first, second]
    assert ledger.record(first, second)[OTHER] == []
    with pytest.raises(ValueError, match="'as <stated>', is recorded twice"):
        ledger.record(first, second, first)


def test_a_page_shows_its_verdicts_and_carries_them_as_data():
    shown = ledger.record(*rows())._repr_mimebundle_()
    assert shown[ledger.MIME] == [asdict(row) for row in rows()]
    assert json.loads(json.dumps(shown[ledger.MIME])) == shown[ledger.MIME]
    text, table = shown["text/plain"].splitlines(), shown["text/html"]
    assert len(text) == 7 and "1 ± 1 · 10⁻¹⁴" in text[3] and "2 cases" in text[0] and "0.5 (0.38)" in text[0]
    assert table.count("<tr") == 8 and "Theorem 3.3" in table
    assert [table.count(f"<b>{word}</b>") for word in verdicts.ORDER] == [1, 1, 1, 2, 1, 1]
    assert table.count("text of the paper · random") == 3 and table.count("ours · structured") == 1
    assert "as &lt;stated&gt;" in table and "x = 1 &amp; y &lt; 2" in table  # the counter-example, escaped


# the book gathers them


def test_the_book_gathers_by_the_list_of_the_pages():
    assert ROOT / verdicts.LISTED == Path(ledger.__file__).with_name("statements.csv")
    for row in rows():
        assert verdicts.worst(asdict(row)) == ledger.worst(row)


def row(id="a.one", form="as stated", verdict="holds", variant=False, **more):
    """A row as a notebook carries it."""
    kind = {"not checkable here": "unchecked", "depends": "depends", "not decided": "undecided"}.get(verdict, "upper")
    example = "x = 1 | y = 2" if verdict in ("refuted", "fails") else None
    cases, ratio, effort = (1200, 0.5, "random") if kind == "upper" else (0, None, None)
    made = {"id": id, "form": form, "cases": cases, "worst_ratio": ratio, "verdict": verdict, "kind": kind}
    made |= {"grounds": "tests", "seen": "text of the paper", "counter_example": example, "variant": variant}
    made |= {"effort": effort, "median_ratio": ratio and ratio / 2, "spread": ratio and ratio / 3}
    return made | more


def test_a_row_of_the_tests_has_the_fields_of_a_row():
    assert list(row()) == [field.name for field in fields(ledger.Row)]


@pytest.fixture
def book(tmp_path):
    """A repository of a list of statements and a function that adds an executed page."""
    (tmp_path / "lab").mkdir()
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "data" / "results").mkdir(parents=True)
    (tmp_path / verdicts.LISTED).write_text(LISTED)

    def page(name, *recorded):
        (tmp_path / "notebooks" / f"{name}.py").write_text("# %%\n")
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
    (root / "notebooks" / "03_never_run.py").write_text("# %%\n")
    places = [f"{row['id']} {row['page']}" for row in gathered(root)]
    assert places == ["a.one 01_first", "a.one 02_later", "a.two 01_first", "b.unknown 02_later"]
    assert gathered(root)[0] == {"source": "paper", "statement": "Statement 1", **row(), "page": "01_first"}


def test_a_whole_ledger_has_no_complaint(book):
    root, page = book
    page("01_first", row("a.one"), row("a.two", verdict="not checkable here"))
    assert list(verdicts.complaints(root, gathered(root))) == []


def test_each_gap_is_a_complaint(book):
    root, page = book
    for second, sentence in [
        ([], 'without variant=True (a measured row with seen="ours" is a variant)'),
        ([row("a.two", variant=True)], 'without variant=True (a measured row with seen="ours" is a variant)'),
        ([row("a.two"), row("a.three")], f"a.three is not in {verdicts.LISTED}"),
        ([row("a.two"), row("a.two")], "stands on two pages"),
        ([row("a.two", seen=None)], "does not say how the form is known"),
        ([row("a.two", seen="printed")], "does not say how the form is known"),
        ([row("a.two", effort=None)], "does not say how hard it was tried"),
        ([row("a.two", worst_ratio=1.0, spread=0.0)], "is no test: every ratio is 1"),
    ]:
        page("01_first", row("a.one"), *second[:-1])
        page("02_second", *second[-1:])
        [said] = verdicts.complaints(root, gathered(root))
        assert said.startswith("ledger: a.t") and said.endswith(sentence)


def test_a_repository_without_a_list_has_no_complaint(tmp_path):
    assert verdicts.listed(tmp_path) == {}
    assert list(verdicts.complaints(tmp_path, [])) == []


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([], None),
        ([row(variant=True)], None),
        ([row(), row(form="b", verdict="refuted", variant=True)], "holds"),
        ([row(), row(form="b", verdict="refuted")], "refuted"),
        ([row(), row(form="b", verdict="fails")], "fails"),
        ([row(verdict="fails"), row(form="b", verdict="refuted")], "refuted"),
        ([row(), row(form="b", verdict="depends")], "depends"),
        ([row(verdict="depends"), row(form="b", verdict="fails")], "fails"),
        ([row(verdict="not checkable here"), row(form="b", verdict="depends")], "depends"),
        ([row(verdict="not checkable here"), row(form="b", verdict="not decided")], "not decided"),
        ([row(), row(form="b", verdict="not decided")], "holds"),
        ([row(verdict="not checkable here"), row(form="b")], "holds"),
        ([row(verdict="not checkable here")], "not checkable here"),
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
        ({"worst_ratio": None}, False),
        ({"median_ratio": 0.25 * 1.02}, False),
        ({"median_ratio": 0.2501}, True),
        ({"spread": 7.0}, True),
        ({"seen": "ours"}, False),
        ({"effort": "proved"}, False),
        ({"counter_example": "other digits"}, True),
        ({"cases": 7}, False),
        ({"verdict": "refuted"}, False),
        ({"grounds": "other"}, False),
        ({"page": "02_second"}, False),
    ],
)
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
    assert layout.stage(root, root / "_build" / "notebooks", root / "_build" / "source") == 0
    assert verdicts.read_stored(root) is None
    unrun = root / "notebooks" / "02_unrun.py"
    unrun.write_text("# %%\n")
    with pytest.raises(ValueError, match="not run yet: 1, the first 02_unrun.*make notebooks"):
        layout.pair(root)
    assert verdicts.read_stored(root) is None and not (root / "notebooks" / "01_first.ipynb").exists()
    unrun.unlink()
    assert layout.pair(root) == 0
    assert len(verdicts.read_stored(root)) == 2
    (root / verdicts.STORED).unlink()
    assert layout.stage(root, root / "notebooks", root / "_build" / "source") == 0
    assert len(verdicts.read_stored(root)) == 2


def test_prose_has_its_counts_from_the_ledger(book):
    """Statements, forms, statements by verdict, and the most cases of a statement; a variant decides nothing."""
    root, page = book
    page("01_first", row("a.one", cases=1200), row("a.one", "tighter", variant=True, seen="ours", verdict="fails"))
    text = "{ledger}`statements` {ledger}`forms` {ledger}`holds` {ledger}`fails` {ledger}`a.one:,d` {ledger}`none`"
    filled = verdicts.filled(root, gathered(root), text)
    assert filled == f"{len(verdicts.listed(root))} 2 1 0 1,200 {{ledger}}`none`"


def test_one_counter_example_behind_two_refuted_statements_is_said(book):
    root, page = book
    page("01_first", row("a.one", verdict="refuted"), row("a.two", verdict="refuted"))
    text = verdicts.section(root, gathered(root))
    assert "the **2** refuted rest on **1** counter-example. *Refuted*" in text


def test_the_section_counts_statements_and_shows_counter_examples(book):
    root, page = book
    ours, equal = row("a.one", "corrected", variant=True, seen="ours"), {"kind": "equal", "worst_ratio": 1 + 3e-13}
    page("01_first", row("a.one", verdict="refuted"), ours, row("a.two", **equal, spread=3e-13))
    text = verdicts.section(root, gathered(root))
    assert text.startswith(
        "Verdicts on **2** statements: refuted **1**, fails **0**, depends **0**, "
        "holds **1**, not decided **0**, not checkable here **0**. *Refuted* is said only of"
    )
    lines = text.splitlines()
    paper = "{cite:t}`paper`"
    assert f"| {paper} | 1 | 0 | 0 | 1 | 0 | 0 | 2 |" in lines  # the statements of the paper by verdict
    assert (
        "| text of the paper | 1 | 0 | 0 | 1 | 0 | 0 | 2 |" in lines and "| ours | 0 | 0 | 0 | 1 | 0 | 0 | 1 |" in lines
    )
    assert "| random inputs | 1 | 0 | 0 | 2 | 0 | 0 | 3 |" in lines
    refuted, corrected, second = table_lines(text)
    assert 'data-paper="paper" data-verdict="refuted" data-effort="random"' in refuted
    assert "as stated<br><small>x = 1 | y = 2</small>" in refuted and "<b>refuted</b>" in refuted
    assert "<i>corrected</i><br><small>tests</small>" in corrected and "<td>holds</td>" in corrected
    assert "0.5 (0.25)" in corrected and "random <br><small>1,200 cases</small>" in corrected
    assert "1 ± 3 · 10⁻¹³" in second
    name = ledger.anchor("a.one", "as stated")
    assert (
        f'<tr id="row-{name}"' in refuted and f'<a href="../notebooks/01_first.html#verdict-{name}">01</a>' in refuted
    )
    assert '<span class="sd-badge sd-bg-secondary sd-bg-text-secondary">ours</span>' in corrected


def table_lines(text):
    """The rows of the table of all forms."""
    return [line for line in text.splitlines() if line.startswith('<tr id="row-')]


def test_a_row_is_found_from_its_page_and_back():
    """Two forms of one statement, and one form of two statements, have anchors of their own."""
    row = ledger.upper(ID, "as <stated>", [0.5, 0.25], grounds="tests", **TEXT)
    table = ledger.record(row).table()
    name = ledger.anchor(ID, "as <stated>")
    assert name.startswith("castin-thm-3-3-") and re.fullmatch(r"[a-z0-9-]+", name)
    assert f'<tr id="verdict-{name}">' in table and f'href="../book/evidence.html#row-{name}"' in table
    assert len({name, ledger.anchor(ID, "other"), ledger.anchor(OTHER, "as <stated>")}) == 3


def test_the_words_of_a_form_cannot_break_the_table(book):
    root, page = book
    page("01_first", row("a.one", "|x| < 1 & y"), row("a.two", seen="ours", grounds="<script>"))
    text = verdicts.section(root, gathered(root))
    assert "|x| &lt; 1 &amp; y" in text and "&lt;script&gt;" in text and "<small><script>" not in text


def test_a_paper_is_named_as_in_the_bibliography(tmp_path):
    assert verdicts.paper(tmp_path, "castin2024smooth") == "castin2024smooth"
    assert verdicts.paper(ROOT, "castin2024smooth") == "Castin and others, 2024"
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
        before = verdicts.section(root, gathered(root))
        page("01_first", row(**{"id": "a.one"} | change), *first[1:])
        rows = gathered(root)
        text = verdicts.section(root, rows)
        assert (text == before) is (change == {})
        said, (statements, seen, effort) = numbers(text)
        assert said[0] == 2 == sum(said[1:]) and statements[:-1] == said[1:7]
        assert sum(seen[:-1]) == sum(effort[:-1]) == seen[-1] == effort[-1] == len(rows)
        lost = sum(one["verdict"] in ("refuted", "fails", "depends") for one in rows)
        assert [seen[0] + seen[1] + seen[2], text.count("<td><b>")] == [lost] * 2  # bold in the whole table
        assert f"**{lost}** forms do not hold" in text and len(table_lines(text)) == len(rows)
        own = [verdicts.verdict_of(mine) for mine in verdicts.by_statement(root, rows).values()]
        assert said[1:] == [own.count(verdict) for verdict in (*verdicts.ORDER, *({None} & set(own)))]


def test_what_was_not_tried_has_no_cases(book):
    root, page = book
    page("01_first", row("a.one"), row("a.two", verdict="not checkable here"))
    text = verdicts.section(root, gathered(root))
    assert "**0** forms do not hold" in text
    _, unchecked = table_lines(text)
    assert 'data-effort="not tried"' in unchecked and "<td>not checkable here</td><td></td><td></td>" in unchecked
