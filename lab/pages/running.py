"""Execution of the pages, several at a time; one failure never stops the others."""

import json
import os
import sys
import time
from base64 import b64decode, b64encode
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from importlib.metadata import version
from io import BytesIO
from multiprocessing import get_context
from platform import python_version

import nbformat

from lab.pages.sources import EXECUTED, convert, fingerprint, is_fresh, sources

# only results in the outputs of a page, even if make does not run it
QUIET = {
    "PYTHONWARNINGS": "ignore:IProgress not found",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
PACKAGES = ("lipnb", "torch", "transformers", "numpy", "scipy")


def lighter(png):
    """A base64 PNG in 256 colours if that is smaller: a figure looks the same at a quarter of its size."""
    from PIL import Image

    out = BytesIO()
    picture = Image.open(BytesIO(b64decode(png))).convert("RGB")
    picture.quantize(256, dither=Image.Dither.NONE).save(out, "png", optimize=True)
    return min(png, b64encode(out.getvalue()).decode(), key=len)


def with_outputs(notebook, executed):
    """The converted notebook with the outputs of its run, without traces of when or where it ran."""
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
    """Execute one page with papermill; returns its seconds and, if it failed, a sentence with the location.

    A record of the run is stored next to the executed page: its inputs, date, duration and versions.
    """
    import papermill  # only here: other commands start faster without it

    out = root / EXECUTED / f"{source.stem}.ipynb"
    failed = root / "_build" / "failed" / out.name
    note, log = out.with_suffix(".run.json"), failed.with_suffix(".log")
    for folder in (out.parent, failed.parent):
        folder.mkdir(parents=True, exist_ok=True)
    note.unlink(missing_ok=True)
    inputs, started, notebook = fingerprint(root, source), time.monotonic(), convert(root, source)
    nbformat.write(notebook, failed)
    os.environ.update({name: os.environ.get(name, value) for name, value in QUIET.items()})
    # messages of the kernel (interrupted, crashed) go to a file, not into the progress bar
    with log.open("w") as said:
        os.dup2(said.fileno(), 2)
    try:
        executed = papermill.execute_notebook(
            failed, failed, kernel_name="python3", cwd=source.parent, progress_bar=False, coalesce_streams=True
        )
    except papermill.PapermillExecutionError as error:
        what = f"{error.ename}: {error.evalue}".splitlines()[0][:200]
        return time.monotonic() - started, f"{source.name}, code cell {error.exec_count}: {what}"
    except Exception as error:  # a kernel that died, or a timeout: the other pages go on
        return (time.monotonic() - started, f"{source.name}: {type(error).__name__}: {str(error).strip()[:200]}")
    nbformat.write(with_outputs(notebook, executed), out)
    seconds = time.monotonic() - started
    facts = {"inputs": inputs, "finished": datetime.now(UTC).strftime("%Y-%m-%d"), "seconds": round(seconds, 1)}
    facts["versions"] = {"python": python_version(), **{name: version(name) for name in PACKAGES}}
    note.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    for path in (failed, log):
        path.unlink(missing_ok=True)
    return seconds, None


def execute(root, workers=2, names=()):
    """Run every page whose inputs changed; with `names`, only pages whose name contains one of them.

    One failure never stops the others. Returns the exit status.
    """
    from filelock import FileLock

    (root / "_build").mkdir(exist_ok=True)
    # a second run waits, and then finds its pages done
    with FileLock(root / "_build" / "execute.lock"):
        pages = sources(root, names)
        todo = [source for source in pages if not is_fresh(root, source)]
        print(f"{len(pages)} pages: {len(pages) - len(todo)} unchanged, {len(todo)} to run", flush=True)
        failures = run_all(root, todo, workers) if todo else []
    if failures:
        print(f"\n{len(failures)} page(s) failed:", *sorted(failures), sep="\n  ", file=sys.stderr)
        print("The notebooks with their tracebacks are in _build/failed/", file=sys.stderr)
    return 1 if failures else 0


def run_all(root, todo, workers):
    """Run pages in separate processes, with a progress bar; returns a sentence for each that failed."""
    from tqdm import tqdm

    failures = []
    # spawned, not forked: papermill changes the folder of its process and runs an event loop
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        runs = {pool.submit(run_page, root, source): source for source in todo}
        with tqdm(total=len(todo), unit="page", ncols=78, mininterval=0) as bar:
            for run in as_completed(runs):
                crash = run.exception()  # the process died, or the page could not even be read
                failed = f"{runs[run].name}: {type(crash).__name__}: {crash}"
                seconds, failure = (0, failed) if crash else run.result()
                failures += [failure] if failure else []
                bar.write(f"  {'FAILED' if failure else 'ran   '} {runs[run].stem}  {seconds:.1f} s")
                bar.update()
    return failures
