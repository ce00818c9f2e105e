"""Tables of a scan: every column explained, the closest bound chosen."""

import numpy as np
import pandas as pd

from lipscan.scanning import summary
from lipscan.scanning.summary import TITLES, closest


def test_the_closest_bound_is_chosen_for_each_layer_and_length():
    """One that is not known at some length was left out everywhere, and a far one stood in its place."""
    table = pd.DataFrame({"over_general": [2.0, 3.0, np.nan, 1.0], "over_yudin": [np.nan, 0.5, np.nan, 2.0]})
    found, (yudin, general) = closest(table), (TITLES[key] for key in ("yudin", "general"))
    assert found.title.tolist() == [general, yudin, general] and found.over.tolist() == [2.0, 0.5, 1.0]
    assert found.index.tolist() == [0, 1, 3] and closest(table[["over_yudin"]].iloc[:1]).empty


def test_every_column_is_explained(finished, scan_folder):
    for file, names in summary.COLUMNS.items():
        told = {name.strip() for names in names for name in names.split(",")}
        for column in pd.read_csv(scan_folder / file):
            generic = {"log10_NAME": "log10_", "over_NAME": "over_"}
            known = column in told or any(column.startswith(start) for name, start in generic.items() if name in told)
            assert known, (file, column)
