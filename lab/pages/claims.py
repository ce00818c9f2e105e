"""The verdicts as data: data/claims.json, one object for each statement with the forms in which it was tested.

`data/claims.schema.json` is its JSON Schema and says what each field means; the page `book/claims.md` shows it.
"""

import json
import re
from pathlib import Path

from lab.ledger import anchor
from lab.pages.sources import write_if_changed
from lab.pages.verdicts import by_statement, listed, table, verdict_of

STORED, SCHEMA = "data/claims.json", "data/claims.schema.json"
MARK = "<!-- the fields of a claim -->"
SAME = 1e-2  # ratios found by ascent differ slightly between processors
MEASURED = ("worst_ratio", "median_ratio", "spread", "counter_example")
FORM = {  # a form's field -> the field of the ledger's row
    "form": "form",
    "known_from": "seen",
    "variant": "variant",
    "comparison": "kind",
    "verdict": "verdict",
    "effort": "effort",
    "cases": "cases",
    "worst_ratio": "worst_ratio",
    "median_ratio": "median_ratio",
    "spread": "spread",
    "grounds": "grounds",
    "counter_example": "counter_example",
}


def claims(root: Path, rows: list[dict]) -> dict:
    """The document: every statement of the list, its verdict, and the forms of it that pages recorded.

    Parameters
    ----------
    root : Path
        Folder of the repository.
    rows : list of dict
        The ledger, from `lab.pages.verdicts.gather`.

    Returns
    -------
    dict
        As `data/claims.schema.json` says.
    """
    statements, groups = listed(root), by_statement(root, rows)
    return {
        "$schema": Path(SCHEMA).name,
        "statements": [
            {
                "id": id,
                "source": statement["source"],
                "name": statement["name"],
                "claim": statement["claim"],
                "printed": statement["printed"],
                "verdict": verdict_of(groups[id]),
                "forms": [_form(root, row) for row in groups[id]],
            }
            for id, statement in statements.items()
        ],
    }


def _form(root, row):
    """A form of a statement with the page that tested it and the line at which the page records its verdict."""
    source = f"notebooks/{row['page']}.py"
    lines = (root / source).read_text(encoding="utf-8").splitlines()
    line = next((number for number, text in enumerate(lines, 1) if re.match(r"\s*ledger\.record\(", text)), 1)
    return {field: row.get(key) for field, key in FORM.items()} | {
        "page": f"notebooks/{row['page']}.html#verdict-{anchor(row['id'], row['form'])}",
        "code": f"{source}#L{line}",
    }


def same(stored: dict | None, made: dict) -> bool:
    """Whether a stored document agrees with one made now, with ratios up to `SAME`."""
    if stored is None:
        return False
    old, new = (_flat(document) for document in (stored, made))
    return len(old) == len(new) and all(
        {key: value for key, value in a.items() if key not in MEASURED}
        == {key: value for key, value in b.items() if key not in MEASURED}
        and all(_close(a.get(key), b.get(key)) for key in ("worst_ratio", "median_ratio"))
        for a, b in zip(old, new, strict=True)
    )


def _flat(document):
    """Statements and forms of a document, one after the other."""
    found = []
    for statement in document["statements"]:
        found += [{key: value for key, value in statement.items() if key != "forms"}, *statement["forms"]]
    return found


def _close(a, b):
    return a == b if a is None or b is None else abs(a - b) <= SAME * max(abs(a), abs(b))


def read_stored(root: Path) -> dict | None:
    """The stored document, or None."""
    path = root / STORED
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def store(root: Path, rows: list[dict]) -> None:
    """Write the document unless the stored one agrees, or there are no rows."""
    made = claims(root, rows)
    if rows and not same(read_stored(root), made):
        write_if_changed(root / STORED, (json.dumps(made, ensure_ascii=False, indent=1) + "\n").encode())


def fields(root: Path) -> str:
    """The schema's fields as two tables in Markdown, of a statement and of a form."""
    schema = json.loads((root / SCHEMA).read_text(encoding="utf-8"))
    parts = (("statement", "A statement"), ("form", "A form of it"))
    return "\n\n".join(
        "\n".join(
            [
                f"## {title}",
                "",
                *table(
                    ("field", "values", "meaning"),
                    [(f"`{name}`", _values(field), field["description"]) for name, field in found.items()],
                ),
            ]
        )
        for part, title in parts
        for found in [schema["$defs"][part]["properties"]]
    )


def _values(field):
    """Values that a field of the schema takes, in words."""
    if "enum" in field:
        return ", ".join("null" if value is None else f"`{value}`" for value in field["enum"])
    kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
    return " or ".join(kinds)
