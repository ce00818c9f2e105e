"""Run the pages, several at a time; one failure never stops the others."""

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import nbformat

from lab.pages import execution, watching
from lab.pages.sources import EXECUTED, convert, fingerprint, is_fresh, sources

# nothing but results in the outputs of a page, also where it is not make that runs it
QUIET = {
    "PYTHONWARNINGS": "ignore:IProgress not found",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}


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
    reads = failed.with_suffix(".reads.json")
    reads.unlink(missing_ok=True)
    kernels = root / "_build" / "ipython"
    watching.startup(kernels / source.stem, reads)
    os.environ["IPYTHONDIR"] = str(kernels / source.stem)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    # what the kernel itself says (it was interrupted, it crashed) goes to a file, not into the progress bar
    with failed.with_suffix(".log").open("w") as log:
        os.dup2(log.fileno(), 2)
    try:
        executed = papermill.execute_notebook(
            failed, failed, kernel_name="python3", cwd=source.parent, progress_bar=False, coalesce_streams=True
        )
    except papermill.PapermillExecutionError as error:
        what = f"{error.ename}: {error.evalue}".splitlines()[0][:200]
        return time.monotonic() - started, f"{source.name}, code cell {error.exec_count}: {what}"
    except Exception as error:  # a kernel that died, a page that took too long: the other pages go on
        return (time.monotonic() - started, f"{source.name}: {type(error).__name__}: {str(error).strip()[:200]}")
    nbformat.write(with_outputs(notebook, executed), out)
    execution.note(out, time.monotonic() - started, reads)
    reads.unlink(missing_ok=True)
    failed.unlink()
    failed.with_suffix(".log").unlink()
    stamp.write_text(before)
    return time.monotonic() - started, None


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
