"""A run of the pages by nbval also compares their verdicts, whose measured numbers may differ between machines."""

import pytest
from nbval.plugin import IPyNbCell

from lab.ledger import MIME


def verdicts(outputs):
    """Verdicts in the outputs of a cell: (statement, form) -> verdict."""
    rows = [row for output in outputs for row in output.get("data", {}).get(MIME, ())]
    return {(row["id"], row["form"]): row["verdict"] for row in rows}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fail a cell that gives another verdict than the committed page shows."""
    yield
    if isinstance(item, IPyNbCell):
        now, shown = verdicts(item.test_outputs), verdicts(item.cell.outputs)
        assert now == shown, "the verdicts differ from those of the committed page: `make notebooks` makes it anew"
