"""Runs of every page with parameters other than the book's: a small sweep for each, with lipscan's sweeps.

Each page is tried with another seed and another text, if it has such parameters, and with its entries in
``book/variations.yml``. Pages that run only with one seed, one text or one model fail here.
"""

import ast
import json
import os
import sys

from lab.pages.running import QUIET
from lab.pages.sources import convert, sources
from lipscan.sweeps.spec import parse

LIST = "book/variations.yml"
FOLDER = "_build/variations"
OTHER = {"seed": 1, "texts": ["python_reference"]}
TIMEOUT = 900  # seconds for a page


def defaults(root, source):
    """Parameters of a page with the values of the book: name -> value."""
    found = {}
    for cell in convert(root, source).cells:
        if "parameters" not in cell.metadata.get("tags", ()):
            continue
        for line in ast.parse(cell.source).body:
            name, value = line.targets[0], line.value
            pairs = zip(name.elts, value.elts, strict=True) if isinstance(name, ast.Tuple) else [(name, value)]
            # as a sweep passes them: papermill would write a tuple as text
            found.update({name.id: json.loads(json.dumps(ast.literal_eval(value))) for name, value in pairs})
    return found


def listed(root):
    """Variations to try: page -> list of sets of parameters, each of which differs from the book's."""
    known = {source.stem: defaults(root, source) for source in sources(root)}
    given = parse((root / LIST).read_text(encoding="utf-8"))
    if wrong := sorted(given.keys() - known.keys()):
        raise ValueError(f"{LIST}: there is no page {wrong[0]}.")
    for page, sets in given.items():
        for name, value in (item for one in sets for item in one.items()):
            if known[page].get(name, value) == value:
                raise ValueError(f"{LIST}: page {page}: {name} = {value!r} is what the book shows, or no parameter.")
    found = {}
    for page, own in known.items():
        other = {name: value for name, value in OTHER.items() if own.get(name, value) != value}
        found[page] = [*([other] if other else []), *given.get(page, [])]
    return found


def report(root, names=(), workers=2):
    """Run the pages whose name contains one of `names`, by default all; print failures and return the exit status.

    Finished variations are not run again unless page or packages change.
    """
    from lipscan.sweeps import Spec, run

    os.environ.update({name: os.environ.get(name, value) for name, value in QUIET.items()})
    chosen = {page: sets for page, sets in listed(root).items() if not names or any(name in page for name in names)}
    if not chosen:
        raise ValueError(f"no page that {LIST} varies has {' or '.join(map(repr, names))} in its name.")
    ran, failures = 0, []
    for page, sets in chosen.items():
        source = root / "notebooks" / f"{page}.py"
        known = defaults(root, source)
        values = {name: [one.get(name, value) for one in sets] for name, value in known.items()}
        options = {"workers": workers, "threads": 1, "gpus": 0, "timeout": TIMEOUT, "output": root / FOLDER / page}
        sweep = run(Spec(notebook=source, zipped=[values], **options), progress=False, retry_failed=True)
        ran += sweep.ran
        for failed in sweep.failures:
            other = {name: failed[name] for name, value in known.items() if failed[name] != value}
            failures.append(f"{page}, {other}: {failed['error']}\n    {failed['notebook']}")
        print(f"  {page}  {len(sets)} points, {len(sweep.failures)} failed", flush=True)
    count = sum(map(len, chosen.values()))
    print(f"{count} points of {len(chosen)} pages: {ran} run now, {len(failures)} failed")
    print("".join(f"  {failure}\n" for failure in failures), end="", file=sys.stderr)
    return 1 if failures else 0
