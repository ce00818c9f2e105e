"""The page on licences names each text, each model that can be fetched, and each that a stored table names."""

import re
from pathlib import Path

import pandas as pd
import pytest

from lipscan import corpora
from lipscan.models.demo.fetching import SOURCES, TEXTS
from lipscan.models.loading import PLAIN

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "book" / "licences.md").read_text()


def in_code(text):
    return set(re.findall(r"`([^`]+)`", text))


def measured(column):
    """Values of a column in all stored tables."""
    found = set()
    for path in sorted((ROOT / "data" / "results").glob("*.csv")):
        if column in pd.read_csv(path, nrows=0).columns:
            found |= set(pd.read_csv(path, usecols=[column], dtype=str)[column].dropna())
    return found


ROWS = [line for line in PAGE.splitlines() if line.startswith("| `")]
OF_NAME = {name: line for line in ROWS for name in in_code(line.split(" | ")[0])}


def test_each_known_name_has_a_row_that_says_everything():
    known = {*corpora.NAMES, *SOURCES, *TEXTS, *PLAIN, "minilm", "gpt2-mini"}
    assert known <= {*OF_NAME}, "no row in book/licences.md"
    assert not [line for line in ROWS if len(cells := line.strip("| ").split(" | ")) != 5 or not all(cells)]


def test_each_text_and_model_of_a_stored_table_is_named():
    found = measured("corpus") | measured("model")
    assert {"alice", "minilm"} <= found
    assert found - in_code(PAGE) == set(), "measured on, and not in book/licences.md"


@pytest.mark.parametrize("name", sorted({*SOURCES, *TEXTS}))
def test_what_can_be_fetched_has_the_licence_and_the_wheel_of_its_source(name):
    source, row = (SOURCES | TEXTS)[name], OF_NAME[name]
    assert f"`{source.package}`" in row and f"lipnb fetch {name}" in row
    licences = re.findall(r"Apache-2\.0|CC BY-SA 4\.0|MIT", source.licence)
    assert licences and all(licence in row for licence in licences)
