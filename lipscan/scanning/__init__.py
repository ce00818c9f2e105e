"""Scan of a model: every layer's local constant on a text, with certificates and the published bounds.

``scan`` measures and stores a folder with the table, its provenance and a report that opens offline.
"""

from importlib import import_module

HOMES = {
    "Scan": "folder",
    "ScanOptions": "options",
    "compare": "comparison",
    "load": "folder",
    "remeasure": "run",
    "scan": "run",
}
__all__ = [*HOMES]


def __getattr__(name):
    """Import a name on first use, so that the style of the figures can be used without a model and without torch."""
    if name in HOMES:
        from lipnb.extras import extra

        with extra("scan"):
            return getattr(import_module(f"lipscan.scanning.{HOMES[name]}"), name)
    raise AttributeError(f"module 'lipscan.scanning' has no attribute {name!r}")


def __dir__():
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
