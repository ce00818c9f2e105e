"""Rounding or a bug: where two implementations of a network differ, and whether rounding explains it.

``drift`` compares a model in float64 with its own run in a type, with a file that another program wrote, or with a
second model; ``dump`` writes such files and ``read`` reads them.
"""

from importlib import import_module

HOMES = {
    "Closure": "comparison",
    "Drift": "comparison",
    "States": "runs",
    "Verdict": "verdict",
    "compare": "comparison",
    "drift": "run",
    "dump": "files",
    "read": "files",
    "states": "runs",
}
__all__ = [*HOMES]


def __getattr__(name):
    """Import a name on first use."""
    if name in HOMES:
        from lipnb.extras import extra

        with extra("scan"):
            return getattr(import_module(f"lipscan.drift.{HOMES[name]}"), name)
    raise AttributeError(f"module 'lipscan.drift' has no attribute {name!r}")


def __dir__():
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
