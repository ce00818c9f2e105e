"""Static analysis of a notebook's cells: refuses parameters whose values would be lost or come too late.

Papermill injects values after the first cell tagged ``parameters``, and in place of a cell that it once injected. A
refusal is certain: nothing reads the value before another one replaces it, or it comes too late.
"""

import ast
import builtins
import re
import symtable
from typing import Any

INJECTED = "injected-parameters"
SET, READ = "set", "read"  # what a statement does first with a name; "read" also if unknown
LOOKS = {"eval", "exec", "globals", "locals", "vars"}  # functions that may read any name
AT_ONCE = ("genexpr",)  # scopes that run where they are written
PLAIN = (ast.Assign, ast.AnnAssign)


def _tags(cell):
    return cell.metadata.get("tags", [])


def shown(cells: list, position: int) -> str:
    """Name of a cell for messages: "code cell 3", counting written ones; "the parameters" for papermill's own.

    `cells` are the cells of a notebook, and `position` is the index of this cell.
    """
    if INJECTED in _tags(cells[position]):
        return "the parameters"
    written = [cell for cell in cells[: position + 1] if cell.cell_type == "code" and INJECTED not in _tags(cell)]
    return f"code cell {len(written)}"


def _statements(source):
    """Statements of a cell, with its magics as calls; None if it is not Python."""
    if re.match(r"\s*%%(time|capture)\b", source):  # these run the cell itself
        source = source.lstrip().partition("\n")[2]
    try:
        return _parsed(source)
    except (SyntaxError, ValueError):
        from IPython.core.inputtransformer2 import TransformerManager
    try:
        return _parsed(TransformerManager().transform_cell(source))
    except (SyntaxError, ValueError):
        return None


def _parsed(source, tries=100):
    """Statements of a source, parsed again if another thread was parsing at the same time.

    CPython 3.11 counts the depth of all trees in one number and raises SystemError if two threads meet (Dask parses
    too, whenever it prints a traceback).
    """
    for _ in range(tries):
        try:
            return ast.parse(source).body
        except SystemError:
            pass
    return ast.parse(source).body


class _Generators(ast.NodeTransformer):
    """Writes each comprehension as a generator, which reads and binds the same names in a scope of its own.

    Python 3.12 and later compile comprehensions into the scope around them, whose symbols then hold their variables.
    """

    def visit_ListComp(self, node):
        self.generic_visit(node)
        return ast.GeneratorExp(node.elt, node.generators)

    visit_SetComp = visit_ListComp

    def visit_DictComp(self, node):
        self.generic_visit(node)
        return ast.GeneratorExp(ast.Tuple([node.key, node.value], ast.Load()), node.generators)


def _table(statements):
    """Symbol table of statements, with the scopes inside."""
    plain = [_Generators().visit(ast.parse(ast.unparse(one)).body[0]) for one in statements]
    return symtable.symtable(ast.unparse(ast.Module(plain, [])), "a cell", "exec")


def _scopes(table, at_once=False):
    """A scope and all scopes inside; with `at_once` only scopes that run where they are written, not functions."""
    yield table
    for inner in table.get_children():
        if not at_once or inner.get_type() == "class" or inner.get_name() in AT_ONCE:
            yield from _scopes(inner, at_once)


def _reads(table, name, at_once=False):
    """Whether a scope, or one inside it, reads a global name."""
    for scope in _scopes(table, at_once):
        if name in scope.get_identifiers():
            symbol = scope.lookup(name)
            if symbol.is_referenced() if scope is table else symbol.is_global():
                return True
    return False


def _assigned(table):
    return {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}


def _simple(statement, name):
    """First effect on a name of a statement without nested statements: `SET`, `READ` or None."""
    if isinstance(statement, ast.AnnAssign) and statement.value is None:
        return None
    words = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    texts = " ".join(str(node.value) for node in ast.walk(statement) if isinstance(node, ast.Constant))
    if words & LOOKS or ("get_ipython" in words and {name, "run"} & {*re.findall(r"\w+", texts)}):  # %run -i
        return READ
    if isinstance(statement, ast.AugAssign) and getattr(statement.target, "id", None) == name:
        return READ
    table = _table([statement])
    return READ if _reads(table, name) else SET if name in _assigned(table) else None


def _first(name, *parts):
    """First effect on a name among several parts; a part is a list of statements, an expression or a target."""
    for part in parts:
        if isinstance(part, ast.expr):
            target = isinstance(getattr(part, "ctx", None), ast.Store)
            part = [ast.Assign([part], ast.Constant(None), lineno=0) if target else ast.Expr(part)]
        for statement in part or ():
            if did := _does(statement, name):
                return did
    return None


def _does(statement, name):
    """First effect of a statement on a name: `SET` if certain, else `READ` or None."""
    match statement:
        case ast.If(test=test, body=body, orelse=orelse):
            ways = {_first(name, body), _first(name, orelse)}
            return _first(name, test) or (ways.pop() if len(ways) == 1 else READ)
        case ast.While(test=test, body=body, orelse=orelse):
            return _first(name, test) or (_first(name, body, orelse) and READ)
        case ast.For(iter=read, target=target) | ast.AsyncFor(iter=read, target=target):
            return _first(name, read, target, statement.body, statement.orelse)
        case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
            heads = [part for item in items for part in (item.context_expr, item.optional_vars)]
            return _first(name, *heads, body)
        case ast.Try(body=body, handlers=handlers) | ast.TryStar(body=body, handlers=handlers):
            ways = {_first(name, body, statement.orelse), *(_first(name, handler.body) for handler in handlers)}
            if any(handler.name == name for handler in handlers):
                return READ
            return (ways.pop() if len(ways) == 1 else READ) or _first(name, statement.finalbody)
        case ast.Match():
            return _simple(statement, name) and READ
    return _simple(statement, name)


def _tagged(notebook):
    """Index of the cell tagged `parameters`, or None; ValueError if it is not unique or not a code cell."""
    cells = notebook.cells
    for position, cell in enumerate(cells):
        if INJECTED in _tags(cell):
            number = sum(other.cell_type == "code" for other in cells[: position + 1])
            raise ValueError(
                f"code cell {number} is tagged '{INJECTED}': papermill wrote it with the values of an earlier run; "
                "sweep the original notebook, or delete that cell"
            )
    places = [position for position, cell in enumerate(cells) if "parameters" in _tags(cell)]
    if any(cells[place].cell_type != "code" for place in places):
        raise ValueError("a cell tagged 'parameters' holds no code: tag the cell that sets the defaults")
    if len(places) > 1:
        named = " and ".join(shown(cells, place) for place in places)
        raise ValueError(
            f"{len(places)} cells are tagged 'parameters', {named}: the values of the sweep come after the first of "
            "them, and later ones would reset them; leave one such cell"
        )
    return places[0] if places else None


def defaults(notebook: Any, language: str) -> dict | None:
    """Defaults set in the cell tagged `parameters`: name -> its default as an `ast` node, or None.

    `notebook` is as read by nbformat. None if they cannot be determined, as in another language; ValueError if more
    than one such cell exists, or one without code, or one that papermill has written.
    """
    place, found = _tagged(notebook), dict[str, ast.expr | None]()
    if place is None:
        return {}
    statements = _statements(notebook.cells[place].source) if language.lower() == "python" else None
    if statements is None:
        return None
    for line in (line for line in statements if isinstance(line, PLAIN)):
        for target in getattr(line, "targets", [getattr(line, "target", None)]):
            parts, values = (getattr(side, "elts", [side]) for side in (target, line.value))
            pairs = zip(parts, values, strict=True) if len(parts) == len(values) else [(target, None)]
            for part, value in pairs:
                names = [node.id for node in ast.walk(part) if isinstance(node, ast.Name)]
                found |= dict.fromkeys(names, value if isinstance(part, ast.Name) else None)
    return found


def refuse(notebook: Any, names: list[str]) -> None:
    """Raise ValueError if values of a sweep for these parameters would be lost, or would come too late.

    `notebook` is as read by nbformat, in Python.
    """
    place = _tagged(notebook)
    code = [(n, _statements(cell.source)) for n, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    lines = [(n, line) for n, known in code for line in (known if known is not None else [None])]
    for name in names if place is not None else ():
        for n, line in _too_early([(n, line) for n, line in lines if n < place], name):
            raise ValueError(
                f"{shown(notebook.cells, n)} reads {name!r} (`{line}`), and the values of the sweep come after the "
                f"cell tagged 'parameters', {shown(notebook.cells, place)}: move that cell up"
            )
        for line in (line for n, line in lines if n == place):
            table = _table([line])
            if (made := _assigned(table) - {*names}) and _reads(table, name, at_once=True):
                raise ValueError(
                    f"{shown(notebook.cells, place)}, tagged 'parameters', computes {min(made)!r} from the default of "
                    f"{name!r} (`{_brief(line)}`), before the value of the sweep is set: move that line to a later "
                    "cell"
                )
        for n, line in ((n, line) for n, line in lines if n > place):
            did = READ if line is None else _does(line, name)
            if did == SET:
                raise ValueError(
                    f"{shown(notebook.cells, n)} sets {name!r} (`{_brief(line)}`) before anything reads it, so the "
                    "value of the sweep is lost: delete that line, or leave the parameter out of the sweep"
                )
            if did:
                break


def _brief(line):
    return ast.unparse(line).splitlines()[0][:60]


def _too_early(lines, name):
    """First line that reads a parameter before its cell, with the cell; empty if it may mean another variable."""
    found = [(n, _brief(line)) for n, line in lines if line is not None and _reads(_table([line]), name, at_once=True)]
    nodes = [node for _, line in lines if line is not None for node in ast.walk(line)]
    parts = [part for node in nodes if isinstance(node, PLAIN) for part in getattr(node, "targets", [node])]
    plain = sum(getattr(node, "id", None) == name for part in parts for node in ast.walk(getattr(part, "target", part)))
    stored = sum(isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store) for node in nodes)
    named = {getattr(node, "name", None) for node in nodes}  # names of functions and imports
    named |= {node.asname or node.name.partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    other = stored > plain or {name, "*"} & named or (not stored and hasattr(builtins, name))
    return [] if other or None in [line for _, line in lines] else found[:1]
