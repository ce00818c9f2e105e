"""Every committed page run by nbval, marked cells and verdicts compared, on what different machines happen to have.

    python tests/environments.py              all that can be made here (half an hour each pair of cores)
    python tests/environments.py nothing nltk  these

A page's compared cells must show the same in each. Of data beside the clone NLTK_DATA and LIPNB_DATA are taken from
the environment; what needs a variable that is not set is left out, and the table says so.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from pydoc_data.topics import topics

ROOT = Path(__file__).resolve().parent.parent
DATA = ("NLTK_DATA", "LIPNB_DATA")
NBVAL = "-m pytest --nbval-lax --nbval-current-env notebooks -n 2 --dist loadfile -q".split()
# "cache": what was fetched before, nothing or the models and Alice; "data": which variables stay; "edition": whether
# the text that comes with Python is that of another Python; the rest is set
ENVIRONMENTS = {
    "nothing": {"cache": "empty", "data": ()},
    "offline": {"cache": "empty", "data": (), "PIP_NO_INDEX": "1"},
    "models": {"cache": "own", "data": ()},
    "nltk": {"cache": "empty", "data": ("NLTK_DATA",), "PIP_NO_INDEX": "1"},
    "lipnb": {"cache": "empty", "data": ("LIPNB_DATA",)},
    "all": {"cache": "own", "data": DATA},
    "python": {"cache": "empty", "data": (), "edition": "another", "PIP_NO_INDEX": "1"},
    # another instruction set and thread count: last digits differ
    "avx2": {
        "cache": "empty",
        "data": (),
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OMP_NUM_THREADS": "2",
    },
}


def surroundings(name, empty):
    """The environment of a name as variables, with an empty folder for its cache; None where it cannot be made."""
    wanted = dict(ENVIRONMENTS[name])
    cache, kept, edition = wanted.pop("cache"), wanted.pop("data"), wanted.pop("edition", "own")
    if any(not os.environ.get(variable) for variable in kept):
        return None
    said = {key: value for key, value in os.environ.items() if key not in DATA or key in kept}
    return (
        said
        | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        | wanted
        | ({"LIPNB_CACHE": empty} if cache == "empty" else {})
        | ({"PYTHONPATH": _other_text(Path(empty, "modules"))} if edition == "another" else {})
    )


def _other_text(folder):
    """Folder with a module that Python reads in place of its own `pydoc_data.topics`, in which other words stand."""
    changed = {key: text.replace("object", "thing") for key, text in topics.items()}
    (folder / "pydoc_data").mkdir(parents=True)
    (folder / "pydoc_data/__init__.py").touch()
    (folder / "pydoc_data/topics.py").write_text(f"topics = {changed!r}\n", encoding="utf-8")
    return str(folder)


def main():
    """Run the environments one after another; the number of those that complain."""
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("names", nargs="*", help=f"of {', '.join(ENVIRONMENTS)}")
    names = command.parse_args().names or [*ENVIRONMENTS]
    if unknown := [name for name in names if name not in ENVIRONMENTS]:
        command.error(f"there is no environment {unknown[0]!r}: {', '.join(ENVIRONMENTS)} are known")
    lines = []
    for name in names:
        with tempfile.TemporaryDirectory() as empty:
            said, started = surroundings(name, empty), time.monotonic()
            if said is None:
                lines.append(f"{name:8} left out: {' and '.join(ENVIRONMENTS[name]['data'])} not set")
                continue
            print(f"== {name}", flush=True)
            text = "from lipnb import corpora; print('text:', corpora.available('alice', 'python_reference'))"
            subprocess.run([sys.executable, "-c", text], cwd=ROOT, env=said, check=True)
            failed = subprocess.run([sys.executable, *NBVAL], cwd=ROOT, env=said, check=False).returncode
            verdict = "FAILED or differs" if failed else "the same"
            lines.append(f"{name:8} {verdict} after {time.monotonic() - started:.0f} s")
    print("", *lines, sep="\n")
    return sum("FAILED" in line for line in lines)


if __name__ == "__main__":
    sys.exit(main())
