"""What a reader of the code meets, printed; no test holds a number: `python tests/gauges.py`.

Of one call, made for the second time: the files and functions of the package that it enters, their lines of code, and
how often the file changes from one first entry to the next. With -v each of them is named. Lines of code are those that
hold more than blanks, comments and docstrings.
"""

import ast
import io
import os
import re
import subprocess
import sys
import tokenize
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = [name for name in ("lipnb", "lipscan") if (ROOT / name).is_dir()]
READERS = ("notebooks", "lab", "book", "README.md")  # of public names
SKIPPED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


@cache
def code_lines(path):
    """Numbers of the lines of code of a file."""
    text = path.read_text(encoding="utf-8")
    found = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SKIPPED:
            found |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and body:
            first = body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                found -= set(range(first.lineno, first.end_lineno + 1))
    return found


@cache
def functions(path):
    """Number of the last line of each function of a file, by name and first line, decorators included."""
    found = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            found[node.name, first] = node.end_lineno
    return found


def entered(call):
    """The functions of the package that `call` enters: (file, name, first line), in the order of first entries."""
    package, seen = str(ROOT / "lipnb"), {}

    def enter(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package):
            path = Path(code.co_filename)
            if (code.co_name, code.co_firstlineno) in functions(path):  # neither modules, classes nor lambdas
                seen.setdefault((path, code.co_name, code.co_firstlineno))

    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(seen)


def reading_set(call):
    """Files, functions, lines of code of these functions, and changes of file at first entries."""
    found = entered(call)
    files = [path for path, *_ in found]
    lines = sum(
        len(code_lines(path) & set(range(first, functions(path)[name, first] + 1))) for path, name, first in found
    )
    return len({*files}), len(found), lines, sum(a != b for a, b in zip(files, files[1:], strict=False)), found


def calls():
    """The calls that are followed, by name: those of one sequence in float64."""
    import torch

    from lipnb import Attention, AttentionJacobian, certify, local_lipschitz

    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    f, x = Attention(*normal(3, 4, 8, 32) / 6, normal(4, 32, 8) / 3), normal(16, 32)
    return {
        "f(x)": lambda: f(x),
        "AttentionJacobian(f, x).jvp(x)": lambda: AttentionJacobian(f, x).jvp(x),
        "local_lipschitz(f, x)": lambda: local_lipschitz(f, x),
        "certify(f, x, columns=0)": lambda: certify(f, x, columns=0),
        "certify(f, x)": lambda: certify(f, x),
    }


def imported():
    """Lines of code that ``from lipnb import local_lipschitz`` brings, and their files."""
    code = (
        "from lipnb import local_lipschitz\nimport sys\n"
        "print(*(m.__file__ for name, m in sys.modules.items() if name.partition('.')[0] in ('lipnb', 'lipscan')))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    return [Path(name) for name in out.stdout.split()]


def modules(package):
    """Its files."""
    return sorted((ROOT / package).rglob("*.py"))


def public_names():
    """The names in `__all__` of all modules of the packages, once each, but for names of modules."""
    found = set()
    for package in PACKAGES:
        for path in modules(package):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Assign) and any(getattr(one, "id", "") == "__all__" for one in node.targets):
                    found |= {one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant)}
    return {name for name in found if isinstance(name, str)}


def unused(names):
    """The names that neither pages nor README, book and laboratory have as a word."""
    files = [ROOT / name for name in READERS if (ROOT / name).is_file()]
    for name in READERS:
        files += [path for path in (ROOT / name).rglob("*") if path.suffix in (".py", ".md")]
    words = {word for path in files for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    return sorted(names - words)


def tested():
    """Modules of the packages, and those of them with a test file of their name, or of their folder and name."""
    tests = {path.stem.removeprefix("test_") for path in (ROOT / "tests").rglob("test_*.py")}
    paths = [path for package in PACKAGES for path in modules(package) if not path.name.startswith("__")]
    return paths, [path for path in paths if {path.stem, f"{path.parent.name}_{path.stem}"} & tests]


def main():
    """Print all."""
    import warnings

    warnings.filterwarnings("ignore")
    sys.path.insert(0, str(ROOT))
    print("one call                         files  functions  lines  changes of file")
    each = calls()
    for name, call in each.items():
        call()  # what is made once and kept does not count
        files, count, lines, changes, found = reading_set(call)
        print(f"{name:32} {files:5}  {count:9}  {lines:5}  {changes:15}")
        if "-v" in sys.argv:
            for path, function, first in found:
                print(f"    {path.relative_to(ROOT)}:{first} {function}")
    files = imported()
    print(
        f"from lipnb import local_lipschitz: {sum(len(code_lines(path)) for path in files):,} lines, {len(files)} files"
    )
    for package in PACKAGES:
        paths = modules(package)
        print(f"{package}: {sum(len(code_lines(path)) for path in paths):,} lines, {len(paths)} files")
    names = public_names()
    idle = unused(names)
    print(f"public names: {len(names)}; {len(idle)} that no page, no book, no laboratory and not README has")
    if "-v" in sys.argv:
        print("   ", *idle)
    paths, with_test = tested()
    print(f"modules with a test file of their name: {len(with_test)} of {len(paths)}")


if __name__ == "__main__":
    main()
