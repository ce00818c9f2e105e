"""Where this package comes from: a checkout of its own or an installation, which versions, which commit."""

import os
import platform
import subprocess
import tomllib
from functools import cache
from importlib.metadata import version
from pathlib import Path

import lipnb

__all__ = ["checkout", "versions"]


@cache
def checkout():
    """The folder of lipnb's own checkout, or None for a package that is installed, wherever that lies."""
    home = Path(lipnb.__file__).resolve().parent.parent
    try:
        project = tomllib.loads((home / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return home if project["name"] == "lipnb" else None
    except (OSError, ValueError, KeyError, TypeError):  # none, or another one's
        return None


def versions():
    """Versions of what computes the numbers, and the commit of lipnb's own checkout; None where there is none."""
    packages = {package: version(package) for package in ("torch", "transformers", "numpy", "scipy")}
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "lipnb": lipnb.__version__,
        **packages,
        "commit": _commit(),
    }


def _commit():
    """The commit of the repository that tracks this package as its own, or None: never that of another one."""
    if (home := checkout()) is None:
        return None
    # a variable such as GIT_DIR, set inside a hook, would point to another repository
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def git(*words):
        done = subprocess.run(["git", "-C", home, *words], capture_output=True, text=True, check=False, env=own)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        top = git("rev-parse", "--show-toplevel")
        if not top or Path(top).resolve() != home or not git("ls-files", "lipnb/__init__.py"):
            return None
        return git("describe", "--always", "--dirty") or None
    except OSError:  # no git here
        return None
