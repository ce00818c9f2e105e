"""Layout of the book: the executed pages next to their sources, and all files that the book is rendered from."""

import re
import sys
from base64 import b64decode

import nbformat

from lab.pages import claims, execution, verdicts
from lab.pages.sources import EXECUTED, sources, write_if_changed

QUOTED = re.compile(r"^```\{literalinclude\} \.\./(\S+)$", re.MULTILINE)  # code that a prose page shows
# a picture shown outside its page, in README.md or in prose, named by its caption
PICTURE = re.compile(
    r"!\[(?P<alt>[^\]]*)\]\(book/figures/(?P<name>[\w-]+)\.png\)"
    r"|```\{figure\} figures/(?P<prose_name>[\w-]+)\.png\n(?::alt: (?P<prose_alt>[^\n]*))?"
)


def pictures(path):
    """Pictures that a text shows: (name, alternative text)."""
    for found in PICTURE.finditer(path.read_text(encoding="utf-8")) if path.exists() else ():
        yield found["name"] or found["prose_name"], found["alt"] or found["prose_alt"] or ""


def shown(notebooks, name):
    """Outputs of an executed page for the figure `name`: media type -> content, or nothing."""
    for page in sorted(notebooks.glob(f"{name[4:6]}_*.ipynb")):
        for cell in nbformat.read(page, as_version=4).cells:
            if cell.metadata.get("mystnb", {}).get("figure", {}).get("name") == name:
                data = (output.get("data", {}) for output in cell.outputs)
                return next((one for one in data if "image/png" in one), {})
    return {}


def picture(notebooks, name):
    """Picture of an executed page with this name, as PNG; None if missing."""
    data = shown(notebooks, name)
    return b64decode(data["image/png"]) if data else None


def pair(root, pages=()):
    """Write executed pages next to their sources, the pictures of README.md and the ledger; returns the exit status."""
    chosen = sources(root, pages)
    unrun = [source.stem for source in chosen if not (root / EXECUTED / f"{source.stem}.ipynb").exists()]
    if unrun:
        raise ValueError(f"pages not run yet: {len(unrun)}, the first {unrun[0]}; `make notebooks` runs and pairs all.")
    for source in chosen:
        executed = root / EXECUTED / f"{source.stem}.ipynb"
        write_if_changed(source.with_suffix(".ipynb"), executed.read_bytes())
        print(f"  {source.with_suffix('.ipynb').relative_to(root)}")
    names = {name for name, _ in pictures(root / "README.md")}
    drawn = {root / f"book/figures/{name}.png": picture(root / "notebooks", name) for name in names}
    for path, image in drawn.items():
        if image is not None:
            write_if_changed(path, image)
    for path in {*(root / "book" / "figures").glob("*.png")} - {*drawn}:
        path.unlink()  # no longer shown
    ledger = verdicts.gather(root, root / "notebooks")
    claims.store(root, ledger)
    execution.store(root, execution.gather(root, root / EXECUTED, ledger))
    return 0


def book_files(root, notebooks):
    """All files that the book is rendered from: path in the staged folder -> content."""
    files = {name: (root / name).read_bytes() for name in ("_config.yml", "_toc.yml")}
    book = [*(root / "book").glob("*.bib"), *(root / "book/_ext").glob("*.py"), *(root / "book/_static").rglob("*")]
    files |= {str(path.relative_to(root)): path.read_bytes() for path in book if path.is_file()}
    files |= {f"notebooks/{page.stem}.ipynb": (notebooks / f"{page.stem}.ipynb").read_bytes() for page in sources(root)}
    ledger = verdicts.gather(root, notebooks)
    for path in (root / "book").glob("*.md"):
        # pictures as drawn by the rendered pages
        for name, _ in pictures(path):
            if data := shown(notebooks, name):
                files[f"book/figures/{name}.png"] = b64decode(data["image/png"])
            if "text/html" in data:  # movable figures, on this page too
                files[f"book/figures/{name}.html"] = data["text/html"].encode()
        text = verdicts.filled(root, ledger, path.read_text(encoding="utf-8"))
        files |= {quoted: (root / quoted).read_bytes() for quoted in QUOTED.findall(text)}
        if execution.MARK in text:
            text = text.replace(execution.MARK, execution.section(execution.gather(root, notebooks, ledger)))
        if claims.MARK in text:
            text = text.replace(claims.MARK, claims.fields(root))
            files |= {name: (root / name).read_bytes() for name in (claims.STORED, claims.SCHEMA)}
        files[f"book/{path.name}"] = text.encode()
    return files


def stage(root, notebooks, target):
    """Write the files of the book to a folder, from the given executed notebooks; a gap in the ledger fails it."""
    ledger = verdicts.gather(root, notebooks)
    if gaps := [*verdicts.complaints(root, ledger)]:
        print("\n".join(gaps), file=sys.stderr)
        return 1
    if notebooks == root / "notebooks":  # other runs, on other texts, do not change what git tracks
        claims.store(root, ledger)
    files = book_files(root, notebooks)
    for name, content in files.items():
        write_if_changed(target / name, content)
    for path in [path for path in target.rglob("*") if path.is_file()]:
        if str(path.relative_to(target)) not in files and "__pycache__" not in path.parts:
            path.unlink()
    return 0
