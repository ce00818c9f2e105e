"""Tables and benchmarks as described in their source, read without importing it, which takes torch and seconds."""

import ast
from functools import cache
from pathlib import Path

LAB = Path(__file__).parent
# tables of `lipnb scan`, copied from its folder: the model, the options, and the table, one of `PARTS`
SCANS = {
    "smollm2": ("SmolLM2", "smollm2 --text alice --lengths 32,128,512", ("", "-heads", "-whole")),
    "dinov2-small": ("DINOv2", "dinov2-small --text pictures --lengths 26,122,485", ("", "-heads", "-whole")),
    "minilm": ("MiniLM", "minilm --text python_reference --lengths 32,128", ("", "-whole")),
    "gpt2-mini": ("gpt2-mini", "gpt2-mini --text python_reference --lengths 32,128,512", ("", "-whole")),
    "stories260k": (
        "stories260K",
        "LIPNB_DATA/models/stories260K --text python_reference --lengths 32,128,512",
        ("", "-whole"),
    ),
}
PARTS = {
    "": "every layer of {}: certified, beside the bounds and baselines",
    "-heads": "every head of {} alone, at the shortest length",
    "-whole": "whole layers of {} and the network from end to end, at the shortest length",
}


def _parsed(pattern):
    for path in sorted(LAB.glob(pattern)):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


@cache
def benchmarks():
    """Each benchmark, a script of `lab.benchmarks`, with the first line of its docstring."""
    return {
        path.stem: ast.get_docstring(tree).splitlines()[0].rstrip(".")
        for path, tree in _parsed("benchmarks/*.py")
        if any(getattr(one, "name", "") == "main" for one in tree.body)
    }


@cache
def tables():
    """Every table of the book: those registered by `lab.experiments.table.table`, and the others.

    Returns name -> command (that makes it), trains (whether networks are trained for it), about (its contents in a few
    words), module (the file that describes it, from the root, or empty).
    """
    found = {}
    for path, tree in (*_parsed("experiments/*.py"), *_parsed("verification/*.py")):
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "table":
                try:
                    name, about = map(ast.literal_eval, call.args)
                    named = {one.arg: one.value for one in call.keywords if one.arg in ("command", "trains")}
                    more = {one: ast.literal_eval(value) for one, value in named.items()}
                except ValueError:
                    raise ValueError(
                        f"{path.name}, line {call.lineno}: write the name of a table, what it holds and its command as "
                        "they are, so that they can be read without running anything."
                    ) from None
                where = {"about": about, "module": path.relative_to(LAB.parent).as_posix()}
                found[name] = {"command": f"python -m lab tables {name}", "trains": False} | more | where
    other = {f"bench-{name.replace('_', '-')}": ("make bench", about) for name, about in benchmarks().items()}
    for name, (model, options, parts) in SCANS.items():
        other |= {f"scan-{name}{part}": (f"lipnb scan {options}", PARTS[part].format(model)) for part in parts}
    other["gpt2-mini-training"] = "make model", "losses of gpt2-mini while it was trained"
    for name, (command, about) in other.items():
        found[name] = {"command": command, "trains": command == "make model", "about": about, "module": ""}
    return found
