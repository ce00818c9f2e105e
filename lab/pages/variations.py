"""Every page with other parameters than the book's: a small sweep for each, by the library's own sweeps.

What is tried is a list, ``book/variations.yml``: page -> sets of parameters. A page that runs with one seed, one
text or one model only fails here.
"""

import ast
import json
import os
import sys

import yaml

from lab.pages.running import QUIET
from lab.pages.sources import convert, sources

__all__ = ["defaults", "listed", "report"]

LIST = "book/variations.yml"
FOLDER = "_build/variations"
TIMEOUT = 900  # seconds for a page


def defaults(root, source):
    """Parameters of a page, with the values that the book shows: name -> value."""
    found = {}
    for cell in convert(root, source).cells:
        if "parameters" not in cell.metadata.get("tags", ()):
            continue
        for line in ast.parse(cell.source).body:
            name, value = line.targets[0], line.value
            pairs = zip(name.elts, value.elts, strict=True) if isinstance(name, ast.Tuple) else [(name, value)]
            # as a sweep hands them over: papermill would write a tuple as text
            found.update({name.id: json.loads(json.dumps(ast.literal_eval(value))) for name, value in pairs})
    return found


def listed(root):
    """What is tried: page -> list of sets of parameters, only those that differ from the book's.

    Raises
    ------
    ValueError
        "LIST: page ...": a page that is not there or not listed, a parameter it does not have, a value that is the
        book's.
    """
    given = yaml.safe_load((root / LIST).read_text(encoding="utf-8"))
    known = {source.stem: defaults(root, source) for source in sources(root)}
    for page in sorted(known.keys() ^ given.keys()):
        raise ValueError(f"{LIST}: page {page} is " + ("no page." if page in given else "not listed."))
    for page, sets in given.items():
        for name, value in ((name, value) for one in sets for name, value in one.items()):
            if name not in known[page]:
                raise ValueError(f"{LIST}: page {page} has no parameter {name!r}: it has {', '.join(known[page])}.")
            if value == known[page][name]:
                raise ValueError(f"{LIST}: page {page}: {name} = {value!r} is what the book shows.")
    return given


def report(root, names=(), workers=2):
    """Run the pages whose name holds one of `names`, all where there is none; say what failed; return the exit status.

    What has finished is not run again while page and packages stay as they are.
    """
    from tqdm import tqdm

    from lipnb.sweeps import Spec, run

    os.environ.update({name: os.environ.get(name, value) for name, value in QUIET.items()})
    chosen = {page: sets for page, sets in listed(root).items() if not names or any(name in page for name in names)}
    for name in names:
        if not any(name in page for page in chosen):
            raise ValueError(f"no page that {LIST} varies has {name!r} in its name.")
    count, ran, failures = sum(map(len, chosen.values())), 0, []
    with tqdm(total=count, unit="point", ncols=78, mininterval=0) as bar:
        for page, sets in chosen.items():
            source = root / "notebooks" / f"{page}.py"
            known = defaults(root, source)
            spec = Spec(
                notebook=source,
                zipped=[{name: [one.get(name, value) for one in sets] for name, value in known.items()}],
                output=root / FOLDER / page,
                workers=workers,
                threads=1,
                gpus=0,
                timeout=TIMEOUT,
            )
            sweep = run(spec, progress=False, retry_failed=True)
            ran += sweep.ran
            for failed in sweep.failures:
                other = {name: failed[name] for name, value in known.items() if failed[name] != value}
                failures.append(f"{page}, {other}: {failed['error']}\n    {failed['notebook']}")
            bar.write(f"  {page}  {len(sets)} points, {len(sweep.failures)} failed")
            bar.update(len(sets))
    print(f"{count} points of {len(chosen)} pages: {ran} run now, {len(failures)} failed")
    for failure in failures:
        print(f"  {failure}", file=sys.stderr)
    return 1 if failures else 0
