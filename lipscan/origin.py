"""Where this package comes from: a checkout of its own or an installation, with which versions and commit."""

import os
import platform
import subprocess
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import lipnb

__all__ = ["cache_folder", "checkout", "versions"]


def cache_folder() -> Path:
    """Where what was fetched lies: ``$LIPNB_CACHE``, else ``lipnb`` in the user's own cache."""
    chosen = os.environ.get("LIPNB_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lipnb"


@cache
def checkout() -> Path | None:
    """The folder of lipnb's own checkout, or None for a package that is installed, wherever that lies."""
    home = Path(lipnb.__file__).resolve().parent.parent
    try:
        project = tomllib.loads((home / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return home if project["name"] == "lipnb" else None
    except (OSError, ValueError, KeyError, TypeError):  # none, or another one's
        return None


def versions() -> dict[str, Any]:
    """Versions of what computes the numbers, and the commit of lipnb's own checkout; None where there is none."""
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
        # tables that the same run wrote before leave the code as it was committed
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)data/results")
        return git("describe", "--always") + "-dirty" * bool(changed) or None
    except OSError:  # no git here
        return None
