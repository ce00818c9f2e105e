"""Where a typed number may come from: what its page printed, typed into its code, or loaded."""

import ast
import json
import re
from pathlib import Path

import pandas as pd

from lab.pages import prose
from lab.pages.sources import tables

__all__ = ["of_cells", "of_sections", "of_table", "of_tables", "shown", "spelled", "values"]

MOST_CATEGORIES = 60  # a column with more distinct values is a measurement, told by its ends
LOOKS = set(
    "round subplots panels set legend text annotate tick_params set_major_formatter subplots_adjust axhline axvline "
    "figsize fontsize size lw ls ms mew markersize linewidth linewidths alpha zorder width height ncols nrows pad "
    "xlim ylim xticks yticks head tail abs decimals dim axis sum view reshape".split()
)
FOLDED = {ast.Add: "__add__", ast.Sub: "__sub__", ast.Mult: "__mul__", ast.Pow: "__pow__", ast.Div: "__truediv__"}


def values(node):
    """The numbers of one node of code: literals, what two literals make, how many items a display has."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield abs(node.value)
    elif isinstance(node, ast.List | ast.Tuple | ast.Set) and len(node.elts) > 2:
        yield len(node.elts)
    elif isinstance(node, ast.Dict) and len(node.keys) > 2:
        yield len(node.keys)
    elif isinstance(node, ast.BinOp) and type(node.op) in FOLDED:
        sides = node.left, node.right
        if all(isinstance(side, ast.Constant) and type(side.value) in (int, float) for side in sides):
            left, right = (float(side.value) for side in sides)
            try:
                yield abs(getattr(left, FOLDED[type(node.op)])(right))
            except (ArithmeticError, TypeError):
                return


def telling(tree):
    """The nodes of code whose numbers mean something to a reader: not an index, a rounding, the look of a plot."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant | ast.Slice | ast.Tuple):
            waiting.append(node.value)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in LOOKS:
            waiting.append(node.func)
        elif not (isinstance(node, ast.keyword) and node.arg in LOOKS):
            waiting.extend(ast.iter_child_nodes(node))


def trees(cells):
    """The parsed code cells; a cell of shell commands or magics counts for nothing."""
    for cell in cells:
        try:
            yield ast.parse(cell.source)
        except SyntaxError:
            continue


def prose_strings(tree):
    """Literal text in code that a reader will see as prose, pieces of f-strings too; no docstrings."""
    hidden = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if getattr(call.func, "attr", "") in ("query", "eval", "compile", "sub", "match", "search"):
            hidden |= {id(node) for node in ast.walk(call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in hidden:
            text = node.value
            if re.search(r"\d|" + prose.SPELLED.pattern, text) and len(re.findall(r"[A-Za-z]{2,}", text)) > 1:
                yield text


def spelled(cells):
    """All that some cells spell out for readers."""
    return [text for tree in trees(cells) for text in prose_strings(tree)]


def shown(cells):
    """All text in outputs, images left out: ("stream" or its type, text)."""
    for output in (output for cell in cells for output in cell.get("outputs", [])):
        yield "stream", output.get("text", "")
        yield from ((kind, str(text)) for kind, text in output.get("data", {}).items() if kind.startswith("text/"))


def printed(cells, typed):
    """All text in outputs, the pieces that the code spelled out taken away: an echo proves nothing."""
    tags = re.compile(r"<(style|script)\b.*?</\1>|<[^<>]*>", re.S)
    text = "\n".join(text if kind == "stream" else tags.sub(" ", text) for kind, text in shown(cells))
    for piece in sorted(typed, key=len, reverse=True):
        text = text.replace(piece, " ")
    return text


def of_table(path):
    """The numbers that tell a table: its size, and of each column the ends and, where they are few, the values."""
    frame = pd.read_csv(path)
    found = {float(len(frame)), float(len(frame.columns))}
    for _, column in frame.items():
        distinct = column.dropna().unique()
        found.add(float(len(distinct)))
        if pd.api.types.is_numeric_dtype(column) and len(distinct) and column.dtype != bool:
            few = distinct if len(distinct) <= MOST_CATEGORIES else [column.min(), column.max()]
            found |= {abs(float(value)) for value in few}
    birth = Path(path).with_suffix(".json")
    if birth.exists():
        found |= prose.read(json.dumps(json.loads(birth.read_text(encoding="utf-8")).get("settings", {})))
    return found


def of_cells(cells):
    """What some code cells say: numbers printed, those of them said in words, numbers typed as code."""
    parsed = list(trees(cells))
    text = printed(cells, spelled(cells))
    typed = {float(value) for tree in parsed for node in telling(tree) for value in values(node)}
    return {"outputs": prose.read(text), "words": prose.told(text), "code": typed}


def of_tables(root, source):
    """What the tables that a page loads say."""
    return {f"table {name}": of_table(path) for name, path in tables(root, source).items() if path.exists()}


def sections(notebook):
    """A page by its headings: (text, code cells) of each part; its text in one piece is their texts joined."""
    parts = [("", [])]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            parts[-1][1].append(cell)
        elif cell.cell_type == "markdown":
            first, *others = re.split(r"^(?=## )", cell.source + "\n\n", flags=re.M)
            parts[-1] = (parts[-1][0] + first, parts[-1][1])
            parts += [(text, []) for text in others]
    return parts


def of_sections(root, source, notebook):
    """For each part of a page: its text, and the numbers it may state.

    They are those of its own cells, of the cells before the first heading and of the tables; introduction and
    conclusion may state all.
    """
    parts, loaded = sections(notebook), of_tables(root, source)
    everything = [cell for _, cells in parts for cell in cells]
    for place, (text, cells) in enumerate(parts):
        ends = place in (0, len(parts) - 1)
        yield text, of_cells(everything if ends else [*parts[0][1], *cells]) | loaded
