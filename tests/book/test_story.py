"""Typed numbers and strong words: toy pages with each fault, a real page with one number changed."""

import csv
import shutil
from pathlib import Path

import nbformat
import pytest

from lab.pages import evidence, prose, story, strong_words, typed_numbers

ROOT = Path(__file__).parents[2]


def typed(text):
    """The values of the numbers that count in a text."""
    return [number.value for number in prose.numbers(prose.clean(text, formulas=True))]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("fifty random starts at forty-nine lengths", [50, 49]),
        ("three hundred and twenty of ten\nthousand, a million, two dozen", [320, 10_000, 24]),
        ("1,024 tokens, 0.34, 95.5 %, 1e-6 and 1/4", [1024, 0.34, 95.5, 1e-6, 0.25]),
        ("from 8 to 256, 40–70 %", [8, 256, 40, 70]),
        ("it grows like $n^{0.34}$, which $\\frac14 \\le 5$ is not", [0.34]),
        ("one, two, three, 3, 1/2 and 1.0", []),
        ("Theorem 3.3, Figures 4, 5 and 6, sections 5.2 to 5.4, page 41, Python 3.11 (3.12 and 3.13 should do)", []),
        ("GPT-2, float32, L2, MiniLM-L6, n64, `lengths=512`, {doc}`41_real_text`, [it](x_77.md), in 2021", []),
        ("<!-- 99 -->\n```\n17 lines\n```\n", []),
        ("```{figure} a.png\n14 dots\n```\nof 15\n```\n16\n```\n", [14, 15]),
        (":::{prf:theorem} Ten\n:label: a-9\nat most 17\n:::\nthen 18", [18]),
        ("*Proof.* Take 17. $\\square$ Of 18", [18]),
        ("a 95 % interval, one part in ten thousand, powers of ten", []),
    ],
)
def test_numbers_are_found(text, values):
    assert typed(text) == values


@pytest.mark.parametrize(("text", "value", "agrees"), [
    ("19 layers", 19, True), ("19 layers", 19.2, False), ("about 19 layers", 19.2, True),
    ("0.34", 0.3432, True), ("0.34", 0.3451, False), ("0.340", 0.3432, False), ("-0.34", 0.3432, True),
    ("12,000 rows", 12_345, True), ("12,000 rows", 12_600, False), ("10 rows", 12, False),
    ("more than 40", 41, True), ("more than 40", 39, False), ("up to 40", 39, True), ("up to 40", 41, False),
    ("75 %", 0.75, True), ("75 %", 0.76, False), ("1/4", 0.25, True), ("1/4", 0.26, False),
])  # fmt: skip
def test_numbers_agree_to_their_digits(text, value, agrees):
    [number] = prose.numbers(prose.clean(text))
    assert typed_numbers.agrees(number, value) is agrees


def test_the_body_of_a_printed_table_is_not_said():
    table = "layer  exponent   n\n    0      0.12  64\n    1      0.45  128\n19 layers, R = 7"
    assert prose.told(table) == {19, 7} and prose.read(table) >= {0.12, 0.45, 64, 128, 19, 7}


def cell(source, text):
    """A code cell that printed something."""
    return nbformat.v4.new_code_cell(source, outputs=[nbformat.v4.new_output("stream", text=text)])


def complaints_about(tmp_path, prose_text, source, printed):
    """What is wrong with one part of prose beside one cell."""
    known = evidence.of_cells([cell(source, printed)])
    return typed_numbers.number_complaints(tmp_path, "toy", [(prose_text, known)])


def test_a_typed_number_needs_a_source(tmp_path):
    assert complaints_about(tmp_path, "In 19 layers.", "print(f'{len(rows)} layers')", "19 layers\n") == []
    assert complaints_about(tmp_path, "In 19 layers.", "rows = 19", "") == []
    assert complaints_about(tmp_path, "In {glue:text}`layers` layers.", "", "") == []
    [said] = complaints_about(tmp_path, "In 18 layers.", "print(f'{len(rows)} layers')", "19 layers\n")
    assert said == "toy: typed number '18': In 18 layers."


def test_an_echo_is_no_source(tmp_path):
    source = "print('found in 19 layers of it')"
    [said] = complaints_about(tmp_path, "In 19 layers.", source, "found in 19 layers of it\n")
    assert "'19'" in said
    known = evidence.of_cells([cell(source, "found in 19 layers of it\n")])
    [said] = typed_numbers.code_complaints(tmp_path, "toy", evidence.spelled([cell(source, "")]), known)
    assert "in the code's text" in said


@pytest.mark.parametrize("source", ["plt.subplots(figsize=(19, 4))", "x[19]", "x.round(19)", "ax.text(0, 19, s)"])
def test_the_look_of_a_plot_is_no_source(source, tmp_path):
    assert complaints_about(tmp_path, "In 19 layers.", source, "")


def test_numbers_belong_to_their_part():
    page = nbformat.v4.new_notebook(cells=[
        nbformat.v4.new_markdown_cell("# Title"), cell("a = 5", ""),
        nbformat.v4.new_markdown_cell("## One"), cell("b = 66", ""),
        nbformat.v4.new_markdown_cell("*Caption*\n\n## Two"), cell("c = 777", ""),
        nbformat.v4.new_markdown_cell("## What this shows"),
    ])  # fmt: skip
    texts, known = zip(*((text, known["code"]) for text, known in parts_of(page)), strict=True)
    assert [text.split("\n")[0] for text in texts] == ["# Title", "## One", "## Two", "## What this shows"]
    assert "*Caption*" in texts[1] and known == ({5, 66, 777}, {5, 66}, {5, 777}, {5, 66, 777})


def parts_of(page):
    """The parts of a page that loads no table."""
    return evidence.of_sections(ROOT, ROOT / "notebooks" / "13_jacobian.py", page)


def test_a_table_tells_its_size_ends_and_categories(tmp_path):
    rows = [f"{n},{n / 7}" for n in range(8, 108)]
    (tmp_path / "t.csv").write_text("\n".join(["n,x", *rows]))
    assert evidence.of_table(tmp_path / "t.csv") == {100, 2, 8, 107, 8 / 7, 107 / 7}


def write(path, header, *lines):
    """One of the two lists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header.split(","), *lines])


@pytest.mark.parametrize(("row", "said"), [
    (("In 19 layers", "10 + 9", ""), None),
    (("In 19 layers", "10 + 8", ""), "says 19, but 10 + 8 gives [18]"),
    (("In 19 ... 4 heads", "(19, 4)", ""), None),
    (("In 19 ... 4 heads", "(19, 5)", ""), "gives [19, 5]"),
    (("In 19 layers", "", "measured by hand"), None),
    (("In 19 layers", "", ""), "neither expression nor reason"),
    (("In 20 layers", "", "measured by hand"), "stands 0 times"),
    (("layers", "", "measured by hand"), "holds no number"),
])  # fmt: skip
def test_the_list_of_typed_numbers(tmp_path, row, said):
    write(tmp_path / typed_numbers.NUMBERS, "page,text,expression,reason", ("toy", *row))
    found = typed_numbers.number_complaints(tmp_path, "toy", [("In 19 layers of\n4 heads.", {"words": {4.0}})])
    if row[0] == "layers":
        assert len(found) == 2  # and 19 is still typed
    assert any(said in sentence for sentence in found) if said else found == []


def test_a_row_may_quote_what_code_spells_out(tmp_path):
    write(tmp_path / typed_numbers.NUMBERS, "page,text,expression,reason", ("toy", "found in 19", "20", ""))
    spelled = evidence.spelled([cell("print('found in 19 layers of it')", "")])
    _, [said] = typed_numbers.listed_numbers(tmp_path, "toy", "", spelled)
    assert "says 19, but 20 gives [20]" in said
    assert list(typed_numbers.code_complaints(tmp_path, "toy", spelled, {})) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It is proved, exactly, and always holds.", ["proved", "exactly", "always"]),
        ("The bound is new. A new theorem (new).", ["new", "new", "new"]),
        ("A new file, on a new page.", []),
        ("This is not proved, nothing is guaranteed, it isn't exact; a wish to prove it.", []),
        ("What it does not show\n\n- It is exact.", ["exact"]),
        ("It proves nothing. How exactly it fits.", []),
        ("`always` and $never$ and {doc}`proved`", []),
        (":::{prf:lemma} Exact\nalways\n:::\n*Proof.* Always. $\\square$", []),
        ("Never above it: guaranteed optimal.", ["never", "guaranteed", "optimal"]),
    ],
)
def test_claims_are_found(text, words):
    assert [word for _, word in strong_words.claims(text)] == words


CLAIM = ("toy", "It is exact", "exact", "test", "tests/book/test_story.py::test_claims_are_found")


@pytest.mark.parametrize(("text", "row", "said"), [
    ("It is exact.", CLAIM, None),
    ("It is exact.", None, "toy: 'exact' without a reason: It is exact."),
    ("It is close.", CLAIM, "no claim 'exact' in 'It is exact' on toy"),
    ("It is exact. It is exact.", CLAIM, "no claim"),
    ("It is exact, always.", CLAIM, "toy: 'always' without a reason"),
    ("It is exact. It is exact.", ("*", *CLAIM[1:]), None),
])  # fmt: skip
def test_claims_and_reasons_match(tmp_path, text, row, said):
    write(tmp_path / strong_words.WORDS, "page,sentence,word,kind,reason", *([row] if row else []))
    found = strong_words.word_complaints(tmp_path, "toy", text)
    assert any(said in sentence for sentence in found) if said else found == []


@pytest.mark.parametrize(("kind", "reason", "said"), [
    ("test", "tests/book/test_story.py::test_claims_are_found", None),
    ("test", "tests/book/test_story.py::test_nothing", "there is no test"),
    ("test", "surely", "name the test"),
    ("test", "verdict castin.thm-3.3", None),
    ("test", "verdict castin.thm-9.9", "there is no statement"),
    ("proof", "13_jacobian", None), ("proof", "`two-clusters`", None),
    ("proof", "`no-such-label`", "name the page"), ("proof", "obvious", "name the page"),
    ("belief", "13_jacobian", "the kind is one of"), ("proof", "", "it has a reason"),
])  # fmt: skip
def test_reasons_name_what_is_there(monkeypatch, kind, reason, said):
    monkeypatch.setattr(
        strong_words,
        "rows",
        lambda path, rows=strong_words.rows: (
            [dict(page="toy", sentence="s", word="exact", kind=kind, reason=reason)]
            if path.name == "strong_words.csv"
            else rows(path)
        ),
    )
    found = list(strong_words.reason_complaints(ROOT))
    assert any(said in sentence for sentence in found) if said else found == []


@pytest.fixture
def real(tmp_path):
    """A repository of one real page, which has nothing typed that does not come from its run."""
    for name in ("pyproject.toml", "notebooks/13_jacobian.py", "notebooks/13_jacobian.ipynb"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("needs no automatic differentiation", "needs none in 210 maps", "typed number '210'"),
        ("a sum of three terms", "a sum of nineteen terms", "typed number 'nineteen'"),
        ("## What this shows", "## This is proved. What this shows", "'proved' without a reason"),
    ],
)
def test_a_real_page_with_one_thing_changed_is_found(real, old, new, said):
    page = real / "notebooks" / "13_jacobian.py"
    before = story.page_complaints(real, "13_jacobian")
    assert page.read_text().count(old) >= 1
    page.write_text(page.read_text().replace(old, new, 1))
    found = set(story.page_complaints(real, "13_jacobian")) - set(before)
    assert any(said in sentence for sentence in found), found
