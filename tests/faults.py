"""Faults for the package, as tests/faults.toml lists them, and the text of a file in which one is planted.

An entry names a place and, in it, an expression or statements (`old`) and what takes their place (`new`). A place is a
file and the qualified name of a function, class or constant there: `lipnb/spectral/krylov.py::Krylov.extend`; nothing
after `::` is the whole file. Trees are compared, not text: layout, quotes and comments count for nothing. Nor do names
of local variables: a name in `old` that the function no longer holds stands for any other of its local variables. A
place that has left its file is looked for in all of lipnb, lipscan and lab; what is not in its place, in the whole of
its file.
"""

import ast
import builtins
import symtable
import tomllib
from functools import cache
from itertools import accumulate
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
VARIABLE = {ast.Name: "id", ast.arg: "arg", ast.ExceptHandler: "name"}  # nodes that name one, and the field that does


def faults():
    """All faults of the list: dictionaries with place, old, new and tests."""
    return tomllib.loads((ROOT / "tests" / "faults.toml").read_text(encoding="utf-8"))["fault"]


def definitions(node, prefix=""):
    """Pairs (qualified name, tree) of the functions, classes and constants of a module."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FUNCTION | ast.ClassDef):
            yield prefix + child.name, child
            if isinstance(child, ast.ClassDef):
                yield from definitions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.Assign | ast.AnnAssign):
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            yield from ((prefix + target.id, child) for target in targets if isinstance(target, ast.Name))
        elif isinstance(child, ast.stmt):  # what stands under an if or a try
            yield from definitions(child, prefix)


@cache
def places(text):
    """Trees of a file by qualified name: several for a property and its setter; that of the whole file under ""."""
    tree = ast.parse(text)
    found = {"": [tree]}
    for name, node in definitions(tree):
        found.setdefault(name, []).append(node)
    return found


def below(node):
    """A node and those below it, without the pieces of an f-string: before Python 3.12 these have no true position."""
    yield node
    if not isinstance(node, ast.JoinedStr):
        for child in ast.iter_child_nodes(node):
            yield from below(child)


def variables(trees, bound=False):
    """Names of the variables in trees; if asked, of those alone that are given a value there."""
    nodes = [node for tree in trees for node in ast.walk(tree) if type(node) in VARIABLE]
    if bound:
        nodes = [node for node in nodes if not isinstance(getattr(node, "ctx", None), ast.Load)]
    return {getattr(node, VARIABLE[type(node)]) for node in nodes}


def alike(old, node, names, free):
    """Whether a tree is that of an entry; `names` gains free names in place of those it does not know."""
    if type(old) is not type(node):
        return False
    if isinstance(old, list):
        return len(old) == len(node) and all(alike(*pair, names, free) for pair in zip(old, node, strict=True))
    if not isinstance(old, ast.AST):
        return old == node
    variable = VARIABLE.get(type(old))
    if variable:
        name, there = getattr(old, variable), getattr(node, variable)
        if name not in names and there in free and there not in names.values():
            names[name] = there
        if names.get(name, name) != there:
            return False
    fields = [field for field in old._fields if field not in (variable, "ctx", "kind", "type_comment")]
    return all(alike(getattr(old, field), getattr(node, field), names, free) for field in fields)


def matches(old, place):
    """Pairs (nodes, names there by names of the entry), one for each time that a place holds `old`."""
    named = variables(old)
    names = {name: name for name in named & variables([place])}
    free = variables([place], bound=True) - named if isinstance(place, FUNCTION) else set()
    for node in below(ast.Module([place], [])):
        if isinstance(old[0], ast.expr):
            runs = [[node]]
        else:
            bodies = [getattr(node, field, None) for field in ("body", "orelse", "finalbody")]
            bodies = [body for body in bodies if isinstance(body, list)]
            runs = [body[i : i + len(old)] for body in bodies for i in range(len(body) - len(old) + 1)]
        for run in runs:
            if alike(old, run, here := dict(names), free):
                yield run, here


def replaced(text, run, new):
    """Text of a file in which other trees take the place of some; all else stays as it is."""
    source, first = text.encode(), min([run[0], *getattr(run[0], "decorator_list", [])], key=lambda node: node.lineno)
    starts = [0, *accumulate(map(len, source.splitlines(keepends=True)))]
    start, end = starts[first.lineno - 1] + run[0].col_offset, starts[run[-1].end_lineno - 1] + run[-1].end_col_offset
    if isinstance(run[0], ast.expr):
        said = f"({ast.unparse(new[0])})"
    else:
        lines = [line for node in new for line in ast.unparse(node).splitlines()]
        if source[start:].startswith(b"elif"):
            lines = ["else:", *(f"    {line}" for line in lines)]
        said = ("\n" + " " * run[0].col_offset).join(lines)
    return (source[:start] + said.encode() + source[end:]).decode()


def unbound(text):
    """Names that a file uses and nothing in it binds."""
    top = symtable.symtable(text, "", "exec")
    tables = [top]
    for table in tables:
        tables += table.get_children()
    bound = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    symbols = [symbol for table in tables for symbol in table.get_symbols()]
    used = {symbol.get_name() for symbol in symbols if symbol.is_global() and symbol.is_referenced()}
    return used - bound - set(dir(builtins))


def planted(fault, package):
    """The file of a fault, below `package`, and its faulty text; a ValueError unless there is one place for it."""
    file, _, name = fault["place"].partition("::")
    own = {path: path.read_text(encoding="utf-8") for path in [package / file] if path.exists()}
    texts = own
    if not any(name in places(text) for text in own.values()):  # moved
        paths = sorted(path for top in ("lipnb", "lipscan", "lab") for path in (package / top).rglob("*.py"))
        texts = {path: path.read_text(encoding="utf-8") for path in paths}
    trees = [(path, tree) for path, text in texts.items() for tree in places(text).get(name, [])]
    old, new = ast.parse(fault["old"]).body, ast.parse(fault["new"]).body
    if all(len(body) == 1 and isinstance(body[0], ast.Expr) for body in (old, new)):
        old, new = [old[0].value], [new[0].value]
    wholes = [(path, places(text)[""][0]) for path, text in own.items()]  # for what was renamed, or split
    found = [(path, *match) for path, tree in trees for match in matches(old, tree)]
    found = found or [(path, *match) for path, tree in wholes for match in matches(old, tree)]
    if len(found) != 1:
        where = "; ".join(f"{path.relative_to(package)}, line {run[0].lineno}" for path, run, _ in found[:4])
        told = (
            f"{fault['place']} holds {fault['old']!r} {len(found)} times, not once: copy `old` from the code. {where}"
        )
        raise ValueError(told)
    path, run, names = found[0]
    for node in [node for tree in new for node in ast.walk(tree) if type(node) in VARIABLE]:
        there = getattr(node, VARIABLE[type(node)])
        setattr(node, VARIABLE[type(node)], names.get(there, there))
    if [ast.unparse(node) for node in new] == [ast.unparse(node) for node in run]:
        raise ValueError(f"{fault['place']}: {fault['new']!r} changes nothing.")
    text = replaced(texts[path], run, new)
    added = variables(new) - variables(run)
    if added and (unknown := added & unbound(text)):  # every test would fail, whatever it looks at
        raise ValueError(f"{fault['place']} does not know {', '.join(sorted(unknown))} of {fault['new']!r}.")
    return path.relative_to(package), text
