"""Run the notebooks, pair them with their sources, lay the book out, check the pairs.

python book/pages.py execute    run every page whose inputs changed, two at a time
python book/pages.py pair       write those runs beside their sources in notebooks/
python book/pages.py stage      lay the book out in _build/source, ready for jupyter-book
python book/pages.py check      say what is stale, broken or too long
python book/pages.py story      say which numbers in prose come from nowhere and which strong words have no reason
                                (story 41 README: of these pages; story 41 --run: run them first)
"""

import argparse
import hashlib
import os
import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import jupytext
import nbformat

ROOT = Path(__file__).resolve().parents[1]
EXECUTED = "_build/notebooks"
LOADED_TABLE = re.compile(r"""results\.load\(\s*["']([\w.-]+)["']""")
# where a page may read from outside the repository
ENVIRONMENT = ("NLTK_DATA", "LIPNB_DATA", "LIPNB_RESULTS", "HF_HOME", "HF_HUB_CACHE")


def sources(root):
    """Every page's source, in the order of the book."""
    return sorted((root / "notebooks").glob("[0-9]*.py"))


def digest(path):
    """sha256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tables(root, source):
    """The tables that a page loads, by name, where lipnb.results looks for them."""
    folder = Path(os.environ.get("LIPNB_RESULTS") or root / "data" / "results")
    text = source.read_text(encoding="utf-8")
    # a name may reach the call through a variable: every quoted name of a table counts
    named = [
        path.stem for path in folder.glob("*.csv") if re.search(rf"""["']{re.escape(path.stem)}["']""", text)
    ]
    return {name: folder / f"{name}.csv" for name in sorted({*named, *LOADED_TABLE.findall(text)})}


def provenance(root, source):
    """What a pair was made from: the sha256 of its source and of each table it loads."""
    made_from = {name: digest(path) if path.exists() else None for name, path in tables(root, source).items()}
    return {"source": digest(source), "tables": made_from}


def inputs(root, source):
    """Every file whose content can change what a page shows."""
    package = [path for path in (root / "lipnb").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    made = tables(root, source).values()
    results = [path for table in made for path in (table, table.with_suffix(".json")) if path.exists()]
    models = [path for path in (root / "data" / "models").rglob("*") if path.is_file()]
    return sorted([source, root / "constraints.txt", *package, *results, *models])


def fingerprint(root, source):
    """One hash of a page's inputs; equal hashes mean that running it again would show the same."""
    known = hashlib.sha256(sys.version.encode())
    for name in ENVIRONMENT:
        known.update(f"{name}={os.environ.get(name, '')}\0".encode())
    for path in inputs(root, source):
        known.update(f"{os.path.relpath(path, root)}\0{digest(path)}\0".encode())
    return known.hexdigest()


def convert(root, source):
    """A page's source as a notebook without outputs, the same bytes every time."""
    notebook = jupytext.read(source, config=jupytext.config.load_jupytext_config(str(source)))
    notebook.metadata.setdefault(
        "kernelspec", {"display_name": "Python 3", "language": "python", "name": "python3"}
    )
    # how the text was read, with jupytext's version; the rest is what jupytext itself puts into a pair
    notebook.metadata.get("jupytext", {}).pop("text_representation", None)
    notebook.metadata["lipnb"] = provenance(root, source)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:03d}"
    return notebook


def lighter(png):
    """A base64 PNG in 256 colours where that is smaller: a figure keeps its look at a quarter of its weight."""
    from base64 import b64decode, b64encode
    from io import BytesIO

    from PIL import Image

    out = BytesIO()
    picture = Image.open(BytesIO(b64decode(png))).convert("RGB")
    picture.quantize(256, dither=Image.Dither.NONE).save(out, "png", optimize=True)
    return min(png, b64encode(out.getvalue()).decode(), key=len)


def with_outputs(notebook, executed):
    """The converted notebook carrying what its run produced, and nothing of when or where it ran."""
    language = dict(executed.metadata.get("language_info", {}))
    language.pop("version", None)
    notebook.metadata["language_info"] = language
    for cell, run in zip(notebook.cells, executed.cells, strict=True):
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = run.outputs, run.execution_count
            for data in (output.get("data", {}) for output in cell.outputs):
                if "image/png" in data:
                    data["image/png"] = lighter(data["image/png"])
    return notebook


def run_page(root, source):
    """Execute one page with papermill; return its seconds and, if it failed, one sentence on where."""
    import papermill  # here, not above: the other commands need none of it and start faster

    out = root / EXECUTED / f"{source.stem}.ipynb"
    failed = root / "_build" / "failed" / out.name
    for folder in (out.parent, failed.parent):
        folder.mkdir(parents=True, exist_ok=True)
    stamp = out.with_suffix(".sha256")
    stamp.unlink(missing_ok=True)
    before, started = fingerprint(root, source), time.monotonic()
    notebook = convert(root, source)
    nbformat.write(notebook, failed)
    # what the kernel itself says (it was interrupted, it crashed) goes to a file, not into the progress bar
    with failed.with_suffix(".log").open("w") as log:
        os.dup2(log.fileno(), 2)
    try:
        executed = papermill.execute_notebook(
            failed,
            failed,
            kernel_name="python3",
            cwd=source.parent,
            progress_bar=False,
            coalesce_streams=True,
        )
    except papermill.PapermillExecutionError as error:
        what = f"{error.ename}: {error.evalue}".splitlines()[0][:200]
        return time.monotonic() - started, f"{source.name}, code cell {error.exec_count}: {what}"
    except Exception as error:  # a kernel that died, a page that took too long: the other pages go on
        return (
            time.monotonic() - started,
            f"{source.name}: {type(error).__name__}: {str(error).strip()[:200]}",
        )
    nbformat.write(with_outputs(notebook, executed), out)
    failed.unlink()
    failed.with_suffix(".log").unlink()
    stamp.write_text(before)
    return time.monotonic() - started, None


def is_fresh(root, source):
    """Whether the last run of a page in _build saw the same inputs as now."""
    stamp = root / EXECUTED / f"{source.stem}.sha256"
    return stamp.exists() and stamp.read_text() == fingerprint(root, source)


def execute(root, workers=2):
    """Run every page whose inputs changed; one failure never stops the others. Return the exit status."""
    from filelock import FileLock

    (root / "_build").mkdir(exist_ok=True)
    # a second run waits, and then finds its pages done
    with FileLock(root / "_build" / "execute.lock"):
        pages = sources(root)
        todo = [source for source in pages if not is_fresh(root, source)]
        print(f"{len(pages)} pages: {len(pages) - len(todo)} unchanged, {len(todo)} to run", flush=True)
        return report_failures(run_all(root, todo, workers)) if todo else 0


def run_all(root, todo, workers):
    """Run pages in processes of their own, with a progress bar; return a sentence for each that failed."""
    from tqdm import tqdm

    failures = []
    # spawned, not forked: papermill changes its process's folder and runs an event loop of its own
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        runs = {pool.submit(run_page, root, source): source for source in todo}
        with tqdm(total=len(todo), unit="page", ncols=78, mininterval=0) as bar:
            for run in as_completed(runs):
                name = runs[run].name
                crash = run.exception()  # the process died, or the page could not even be read
                seconds, failure = (0, f"{name}: {type(crash).__name__}: {crash}") if crash else run.result()
                failures += [failure] if failure else []
                bar.write(f"  {'FAILED' if failure else 'ran   '} {runs[run].stem}  {seconds:.1f} s")
                bar.update()
    return failures


def report_failures(failures):
    """Name each failed page, its cell and its error; return the exit status."""
    if failures:
        print(f"\n{len(failures)} page(s) failed:", file=sys.stderr)
        for failure in sorted(failures):
            print(f"  {failure}", file=sys.stderr)
        print("The notebooks with their tracebacks are in _build/failed/", file=sys.stderr)
    return 1 if failures else 0


def write_if_changed(path, content):
    """Write bytes only where they differ, so that Sphinx reads again only what changed."""
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def pair(root):
    """Write each executed page beside its source, the figures of README.md and the ledger; return the exit status."""
    import page_figures
    import verdicts

    for source in sources(root):
        executed = root / EXECUTED / f"{source.stem}.ipynb"
        write_if_changed(source.with_suffix(".ipynb"), executed.read_bytes())
        print(f"  {source.with_suffix('.ipynb').relative_to(root)}")
    pictures = page_figures.written(root, root / "notebooks")
    for path, image in pictures.items():
        write_if_changed(path, image)
    for path in {*(root / "book" / "figures").glob("*.png")} - {*pictures}:
        path.unlink()  # no longer shown
    verdicts.store(root, verdicts.gather(root, root / "notebooks"))
    return 0


def book_files(root, notebooks):
    """Everything the book is rendered from: path in the staged folder -> content."""
    import page_figures
    import verdicts

    files = {name: (root / name).read_bytes() for name in ("_config.yml", "_toc.yml")}
    prose = [*(root / "book").glob("*.md"), *(root / "book").glob("*.bib")]
    assets = [*(root / "book" / "_ext").glob("*.py"), *(root / "book" / "_static").glob("*")]
    files |= {str(path.relative_to(root)): path.read_bytes() for path in [*prose, *assets]}
    for source in sources(root):
        page = notebooks / f"{source.stem}.ipynb"
        files[f"notebooks/{page.name}"] = page.read_bytes()
    # the prose pages show figures by name, as the pages that are rendered here drew them
    prose = [path for path in prose if path.suffix == ".md"]
    for name, image in page_figures.pictures(root, notebooks, *prose).items():
        files[f"book/figures/{name}.png"] = image
    intro = files.get("book/intro.md", b"")
    if verdicts.MARK.encode() in intro:
        ledger = verdicts.section(root, verdicts.gather(root, notebooks))
        files["book/intro.md"] = intro.replace(verdicts.MARK.encode(), ledger.encode())
    return files


def stage(root, notebooks, target):
    """Lay the book out in a folder of its own, from the given executed notebooks; fail on a gap in the ledger."""
    import verdicts

    ledger = verdicts.gather(root, notebooks)
    if gaps := list(verdicts.complaints(root, ledger)):
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


def read_story(root, names, run):
    """Run the pages whose story is asked for, if told to; return the exit status."""
    chosen = [source for source in sources(root) if any(name in source.stem for name in names) or not names]
    (root / "_build").mkdir(exist_ok=True)
    return report_failures(run_all(root, chosen, 1)) if run else 0


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository to work on")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("execute").add_argument("--workers", type=int, default=2)
    commands.add_parser("pair")
    commands.add_parser("check")
    story = commands.add_parser("story")
    story.add_argument("pages", nargs="*", help="parts of their names; all without")
    story.add_argument("--run", action="store_true", help="run them first")
    staging = commands.add_parser("stage")
    staging.add_argument("--notebooks", default="notebooks", help="the executed notebooks, from the root")
    staging.add_argument("--target", default="_build/source", help="where to lay the book out, from the root")
    return parser.parse_args()


def main():
    """Do one command; its status is the exit status."""
    given = arguments()
    root = given.root.resolve()
    if given.command == "execute":
        return execute(root, given.workers)
    if given.command == "pair":
        return pair(root)
    if given.command == "stage":
        return stage(root, root / given.notebooks, root / given.target)
    if given.command == "story":
        from story_checks import report

        return read_story(root, given.pages, given.run) or report(root, given.pages)
    from page_checks import report

    return report(root)


if __name__ == "__main__":
    sys.exit(main())
