"""A wheel built from this tree, installed into an empty environment outside it: does it work for a stranger?

    python tests/smoke.py             the base install alone, then with the extra `scan` (`make nightly`)
    python tests/smoke.py --base      the base install alone (on each change)

Exit status 0 when all of it works. Versions are those of constraints.txt.
"""

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
# map, Jacobian, constant, certificate and bounds, with torch, NumPy and SciPy alone
BASE = """
import sys
from importlib.util import find_spec
import torch
import lipnb

print("lipnb", lipnb.__version__, "beside", [name for name in ("pandas", "tqdm", "transformers") if find_spec(name)])
assert "site-packages" in lipnb.__file__ and find_spec("pandas") is None and find_spec("lab") is None
normal = lambda *shape: torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)
f, x = lipnb.Attention(normal(2, 3, 6), normal(2, 3, 6), normal(2, 4, 6), normal(2, 6, 4)), normal(5, 6)
assert f(x).shape == (5, 6)
exact = torch.linalg.matrix_norm(lipnb.AttentionJacobian(f, x).dense(), 2).item()
found, bracket = lipnb.local_lipschitz(f, x), lipnb.certify(f, x)
assert abs(found.value.item() / exact - 1) < 1e-4 and found.converged.item()
assert bracket.lower.item() <= exact <= bracket.upper.item()
assert bracket.upper.item() <= lipnb.bounds.yudin_upper(f, x).item() * (1 + 1e-9)
one = lipnb.Attention.from_matrices(normal(6, 6), normal(6, 6))
assert lipnb.local_lipschitz(one, x).value.item() <= lipnb.bounds.general_upper(
    normal(6, 6), normal(6, 6), 5, x.norm(dim=-1).max().item())
lipnb.measures, lipnb.worst_case, lipnb.spectral
worst = lipnb.worst_case.on_ball(one, 5, 1.0)  # no tqdm here: no bar
assert worst.value <= lipnb.bounds.ball_upper(one, 5, 1.0)
known = lipnb.reference_cases()[0]
assert abs(lipnb.local_lipschitz(known.attention, known.x).value.item() / known.value - 1) < 1e-4
assert len(lipnb.corpora.read("python_reference")) > 300_000
for call, extra in ((lambda: lipnb.scan("minilm"), "scan"), (lambda: lipnb.sweeps.run("a.yml"), "sweeps"),
                    (lambda: lipnb.models.load("minilm"), "models")):
    try:
        call()
    except ModuleNotFoundError as error:
        assert str(error).endswith(f"pip install '.[{extra}]' in a clone of lipnb."), error
        print(error)
    else:
        raise AssertionError(extra)
heavy = {name.split(".")[0] for name in sys.modules} & {"pandas", "tqdm", "transformers", "matplotlib", "nltk"}
assert not heavy, heavy
"""
# where the embedded model lies: a folder like anybody's
FOLDER = "from lipscan.models.files import minilm_folder; print(minilm_folder())"


def run(*command, **options):
    """Run a command, its output on the terminal; its failure ends this script."""
    return subprocess.run([str(word) for word in command], check=True, text=True, **options)


def main():
    """Build, install, try."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", action="store_true", help="the base install alone")
    given, began = parser.parse_args(), time.monotonic()

    def done(what):
        print(f"{what}: {time.monotonic() - began:.0f} s", flush=True)

    with TemporaryDirectory() as place:
        tree, wheels, home = (Path(place, name) for name in ("tree", "wheels", "home"))
        # a copy, so that building leaves nothing in the tree
        for name in ("lipnb", "lipscan"):
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, tree)
        run(sys.executable, "-m", "build", "--wheel", "--outdir", wheels, tree, stdout=subprocess.DEVNULL)
        (wheel,) = wheels.glob("*.whl")
        home.mkdir()
        run(sys.executable, "-m", "venv", home / "env")
        python = home / "env" / "bin" / "python"
        install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-compile"]
        install += ["-c", ROOT / "constraints.txt"]
        run(*install, wheel)
        done(f"{wheel.name} installed")
        run(python, "-I", "-c", BASE, cwd=home)
        done("base install works")
        if given.base:
            return 0
        run(*install, f"{wheel}[scan]")
        done("extra scan installed")
        model = run(python, "-I", "-c", FOLDER, cwd=home, stdout=subprocess.PIPE).stdout.strip()
        scan = [home / "env" / "bin" / "lipnb", "scan", model, "--text", "python_reference", "--layers", "0,5"]
        run(*scan, "--lengths", "8,16", "--output", "out", cwd=home)
        report = (home / "out" / "report.html").read_text(encoding="utf-8")
        assert report.count("<svg") >= 3 and len((home / "out" / "scan.csv").read_text().splitlines()) == 9
        done("a folder scanned, its report written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
