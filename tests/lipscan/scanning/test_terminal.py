"""The table on a terminal fits it, and names the closest bounds."""

import dataclasses
import re
from io import StringIO

import numpy as np

from lipscan.scanning import sentences, terminal
from lipscan.scanning.summary import TITLES


def test_the_table_names_the_closest_bound_of_each_row(finished):
    summary = finished.summary.assign(over_general=[1.0, 3.0, 3.0, 3.0], over_yudin=[2.0, 2.0, np.nan, np.nan])
    others = [name for name in summary if name in {f"over_{key}" for key in TITLES} - {"over_general", "over_yudin"}]
    out, only = StringIO(), StringIO()
    terminal.show(dataclasses.replace(finished, summary=summary.drop(columns=others)), file=out, width=100)
    rows = [line for line in out.getvalue().splitlines() if line.endswith(" ok")]
    named = [re.search(r"x \d+ \w", row.split("certified")[-1][-25:])[0] for row in rows]
    assert named == ["x 10 a", "x 100 b", "x 1000 a", "x 1000 a"]
    assert f"\nbound: a {TITLES['general']}; b {TITLES['yudin']}\n" in out.getvalue()
    terminal.show(
        dataclasses.replace(finished, summary=summary.drop(columns=[*others, "over_yudin"])), file=only, width=100
    )
    assert "bound: a" not in only.getvalue() and "x 1000 a" not in only.getvalue()


def test_the_table_fits_the_terminal_and_a_pipe_gets_lines_of_a_length_to_read(finished, monkeypatch):
    for width, columns, longest in (
        *((None, columns, most) for columns, most in (("", 100), ("70", 70), ("none", 100), ("0", 100), ("160", 100))),
        *((width, "", min(width, 100)) for width in (40, 80, 160)),
    ):
        monkeypatch.setenv("COLUMNS", columns)
        out = StringIO()
        terminal.show(finished, file=out, width=width)
        table = out.getvalue().split(sentences.WHERE[:20])[0].splitlines()
        assert longest - 30 < max(map(len, table)) <= longest and any("constant" in line for line in table)
        assert all(line == line.rstrip() for line in out.getvalue().splitlines())
