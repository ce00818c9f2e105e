"""Origin of the package: a checkout or an installation, the versions and the commit."""

import os
import platform
import subprocess
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import lipnb


def cache_folder() -> Path:
    """Folder of fetched files: ``$LIPNB_CACHE``, else ``lipnb`` in the user's cache."""
    chosen = os.environ.get("LIPNB_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lipnb"


@cache
def checkout() -> Path | None:
    """Folder of lipnb's own checkout, or None for an installed package."""
    home = Path(lipnb.__file__).resolve().parent.parent
    try:
        project = tomllib.loads((home / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return home if project["name"] == "lipnb" else None
    except (OSError, ValueError, KeyError, TypeError):  # no pyproject, or that of another project
        return None


def versions() -> dict[str, Any]:
    """Versions of the packages that compute the numbers, and the commit of lipnb's checkout; None if unknown."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "lipnb": lipnb.__version__,
        **{package: _version(package) for package in ("torch", "transformers", "numpy", "scipy")},
        "commit": _commit(),
    }


def _version(package):
    try:
        return version(package)
    except PackageNotFoundError:  # it belongs to an extra
        return None


def _commit():
    """Commit of lipnb's checkout, or None; never that of another repository around it."""
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
        # exclude tables, which the same run may have written before: they do not change the code
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)data/results")
        return git("describe", "--always") + "-dirty" * bool(changed) or None
    except OSError:  # git is not installed
        return None
