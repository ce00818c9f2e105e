"""The table on a terminal fits it, and names the closest bounds."""

import dataclasses
import re
from io import StringIO

import numpy as np

from lipscan.scanning import terminal
from lipscan.scanning.summary import TITLES


def test_the_table_names_the_closest_bound_of_each_row(finished):
    summary = finished.summary.assign(over_general=[1.0, 3.0, 3.0, 3.0], over_yudin=[2.0, 2.0, np.nan, np.nan])
    others = [name for name in summary if name in {f"over_{key}" for key in TITLES} - {"over_general", "over_yudin"}]
    out = StringIO()
    terminal.show(dataclasses.replace(finished, summary=summary.drop(columns=others)), file=out, width=100)
    rows = [line for line in out.getvalue().splitlines() if line.endswith(" ok")]
    assert [re.search(r"x \d+ [ab](?= +ok)", row)[0] for row in rows] == ["x 10 a", "x 100 b", "x 1000 a", "x 1000 a"]
    assert f"a letter names it: a {TITLES['general']}; b {TITLES['yudin']}\n" in out.getvalue()


def test_the_table_fits_the_terminal_and_a_pipe_gets_lines_of_a_length_to_read(finished, monkeypatch):
    for width, columns, longest in (
        *((None, columns, most) for columns, most in (("", 100), ("70", 70), ("none", 100), ("0", 100), ("160", 100))),
        *((width, "", min(width, 100)) for width in (40, 80, 160)),
    ):
        monkeypatch.setenv("COLUMNS", columns)
        out = StringIO()
        wide = finished.summary.assign(typical=1234.5, over_random=1.5e-5, column=123456.0)
        terminal.show(dataclasses.replace(finished, summary=wide), file=out, width=width)
        lines = out.getvalue().splitlines()
        [head] = [n for n, line in enumerate(lines) if line.split()[:3] == ["layer", "tokens", "constant"]]
        end = next(n for n, line in enumerate(lines) if line.startswith("constant: "))
        table = lines[head - 1 : end]
        assert longest - 30 < max(map(len, table)) <= longest and "…" not in "".join(table)
        assert all(line == line.rstrip() for line in lines)
        assert lines[end - 2].endswith(" ok") and lines[end + 1].startswith("proved below: x 2.4 means ")
