"""Recording of what a page reads while it runs: the texts and models whose files its kernel opens.

Runs inside the kernel, before the first cell, and imports only the standard library.
"""

import json
import os
import platform
import sys
import tempfile
from pathlib import Path

EMBEDDED = "pydoc_data.topics"  # the text that ships with Python is a module, and differs between releases
ALICE = "carroll-alice.txt"  # the same text from NLTK's corpus and from the cache
TEXTS = (".txt", ".csv", ".tsv", ".parquet", ".zip")


def startup(folder, target):
    """Make a folder for ``IPYTHONDIR`` whose kernels write what they read to the file `target`."""
    script = folder / "profile_default" / "startup" / "00-watch.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(f"from lab.pages import dependencies\ndependencies.begin({str(target)!r})\ndel dependencies\n")


def begin(target):
    """Start writing what this process reads to the file `target`, as lists "texts" and "models"."""
    folders = [Path(os.environ[name]).resolve() for name in ("NLTK_DATA", "LIPNB_DATA") if os.environ.get(name)]
    found = {"texts": [], "models": []}

    def listen(event, arguments):
        if event not in ("open", "import") or not isinstance(arguments[0], str):
            return
        kind, name = named(event, arguments[0], folders)
        if name and name not in found[kind]:
            found[kind].append(name)  # first, because writing opens a file, too
            with open(target, "w", encoding="utf-8") as file:
                json.dump(found, file)

    sys.addaudithook(listen)


def named(event, what, folders):
    """Kind, "texts" or "models", and name of what an audit event ("open", "import") reads; otherwise None, None."""
    if event == "import":
        edition = f"python_reference of Python {platform.python_version()}"
        return ("texts", edition) if what == EMBEDDED else (None, None)
    path = Path(what)
    if path.name == ALICE:
        return "texts", "alice"
    if path.suffix == ".txt" and path.parent.parent.name == "texts":  # fetched, in the cache
        return "texts", path.parent.name
    if path.name == "config.json":
        hub = [part.removeprefix("models--").replace("--", "/") for part in path.parts if part.startswith("models--")]
        folder = path.parent.parent if path.parent.name == "model" else path.parent  # the folder name in some wheels
        made_here = path.is_relative_to(tempfile.gettempdir())
        return (None, None) if made_here else ("models", hub[0] if hub else folder.name)
    for folder in folders if path.suffix in TEXTS else ():
        if path.is_absolute() and path.is_relative_to(folder):
            return "texts", path.relative_to(folder).as_posix()
    return None, None
