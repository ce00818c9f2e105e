"""Lay the book out: the executed pages beside their sources, and everything that the book is rendered from."""

import re
import sys

from lab.pages import execution, glued, pictures, verdicts
from lab.pages.sources import EXECUTED, sources, write_if_changed

QUOTED = re.compile(r"^```\{literalinclude\} \.\./(\S+)$", re.MULTILINE)  # code that a prose page shows


def pair(root):
    """Write each executed page beside its source, the figures of README.md and the ledger; return the exit status."""
    for source in sources(root):
        executed = root / EXECUTED / f"{source.stem}.ipynb"
        write_if_changed(source.with_suffix(".ipynb"), executed.read_bytes())
        print(f"  {source.with_suffix('.ipynb').relative_to(root)}")
    drawn = pictures.written(root, root / "notebooks")
    for path, image in drawn.items():
        write_if_changed(path, image)
    for path in {*(root / "book" / "figures").glob("*.png")} - {*drawn}:
        path.unlink()  # no longer shown
    ledger = verdicts.gather(root, root / "notebooks")
    verdicts.store(root, ledger)
    execution.store(root, execution.gather(root, root / EXECUTED, ledger))
    return 0


def book_files(root, notebooks):
    """Everything the book is rendered from: path in the staged folder -> content; a ValueError where a number lacks."""
    files = {name: (root / name).read_bytes() for name in ("_config.yml", "_toc.yml")}
    prose = [*(root / "book").glob("*.md"), *(root / "book").glob("*.bib")]
    assets = [*(root / "book" / "_ext").glob("*.py"), *(root / "book" / "_static").rglob("*")]
    assets = [path for path in assets if path.is_file()]
    files |= {str(path.relative_to(root)): path.read_bytes() for path in [*prose, *assets]}
    for source in sources(root):
        page = notebooks / f"{source.stem}.ipynb"
        files[f"notebooks/{page.name}"] = page.read_bytes()
    # the prose pages show figures by name, as the pages that are rendered here drew them
    prose = [path for path in prose if path.suffix == ".md"]
    for name, image in pictures.pictures(root, notebooks, *prose).items():
        files[f"book/figures/{name}.png"] = image
    runs, ledger = glued.Runs(root, notebooks), verdicts.gather(root, notebooks)
    for name in (str(path.relative_to(root)) for path in prose):
        text = glued.filled(runs, name, files[name].decode())
        files |= {quoted: (root / quoted).read_bytes() for quoted in QUOTED.findall(text)}
        if verdicts.MARK in text:
            text = text.replace(verdicts.MARK, verdicts.section(root, ledger))
        if execution.MARK in text:
            text = text.replace(execution.MARK, execution.section(execution.gather(root, notebooks, ledger)))
        files[name] = text.encode()
    return files


def stage(root, notebooks, target):
    """Lay the book out in a folder of its own, from the given executed notebooks.

    A gap in the ledger, or a number of a prose page that no page glued, fails it.
    """
    ledger = verdicts.gather(root, notebooks)
    if gaps := [*verdicts.complaints(root, ledger), *glued.complaints(root, notebooks)]:
        print("\n".join(gaps), file=sys.stderr)
        return 1
    if notebooks == root / "notebooks":  # other runs, on other texts, leave what git tracks alone
        verdicts.store(root, ledger)
    files = book_files(root, notebooks)
    for name, content in files.items():
        write_if_changed(target / name, content)
    for path in [path for path in target.rglob("*") if path.is_file()]:
        if str(path.relative_to(target)) not in files and "__pycache__" not in path.parts:
            path.unlink()
    return 0
