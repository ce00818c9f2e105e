"""Measured numbers in prose are glued: each way to type one is found, and what is no measurement is left alone."""

import pytest

from lab.pages.typed_numbers import typed


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("It is 0.34, or 95.5 %, of 1,024 tokens; 20% of them.", ["0.34", "95.5 %", "1,024", "20%"]),
        ("In a list\n\n- of 0.5\n\n| a | 0.75 |", ["0.5", "0.75"]),
        ("```{figure} figures/a.png\n:alt: seen\nA caption of 0.5\n```", ["0.5"]),
        ("{glue:text}`slope:.2f` of 19 layers in 2021, 1/4 of them", []),
        ("Theorem 3.3, sections 5.2, 5.3 and 5.4, Python 3.11, 3.12 or 3.13, Apache-2.0", []),
        ("`0.5`, $n^{0.34}$, $$0.5$$, [it](page-0.5.md), arXiv:2312.14820\n\n```python\nx = 0.5\n```", []),
        (":::{prf:theorem} A bound\nAt most 0.5.\n:::", []),
        ("<!-- typed: as printed -->\n| 0.5 |\n| 0.6 |\n\nAnd 0.7.", ["0.7"]),
        ("It is 0.5<!-- typed: --> and 0.6.", ["0.5", "0.6"]),
    ],
)
def test_typed_numbers_are_found(text, numbers):
    assert [number for _, number in typed(text)] == numbers


def test_what_stands_in_the_code_of_the_page_may_be_said():
    code = "radius, share, count, other = 0.5, 0.05, 1000, 12.25"
    assert list(typed("At 0.5, for 5 % of 1,000.", code)) == []
    found = typed("At 0.51 or 2.25, for 6 % of 10,000.", code)
    assert [number for _, number in found] == ["0.51", "2.25", "6 %", "10,000"]
