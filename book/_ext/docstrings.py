"""Docstrings in the book: bibliography keys are citations, modules list what they hold, a field is listed once."""

import re
from pathlib import Path

KEY = re.compile(r"^@\w+\{([^,\s]+),", re.MULTILINE)
SPECIAL_TOKEN = re.compile(r"(?<!`)<\|\w+\|>")


def read_keys(app, config):
    """Learn the keys from the bibliography itself."""
    text = "".join(Path(app.srcdir, name).read_text(encoding="utf-8") for name in config.bibtex_bibfiles)
    app.known_keys = re.compile(rf"(?<![`\w])({'|'.join(map(re.escape, KEY.findall(text)))})(?![`\w])")


def cite_keys(app, what, name, obj, options, lines):
    """Make each known key in a docstring a citation; quote tokens that look like substitutions."""
    lines[:] = [app.known_keys.sub(r":cite:t:`\1`", SPECIAL_TOKEN.sub(r"``\g<0>``", line)) for line in lines]


def list_members(app, what, name, obj, options, lines):
    """End the description of a module with a table of what it holds."""
    listed = options.get("members")
    names = listed if isinstance(listed, list) else getattr(obj, "__all__", ()) if listed else ()
    names = [one for one in names if callable(getattr(obj, one))] if what == "module" else ()
    if len(names) > 1:
        lines += ["", ".. autosummary::", "   :nosignatures:", "", *(f"   {one}" for one in names), ""]


def skip_generated(app, what, name, obj, skip, options):
    """Leave out the entries Python writes for a named tuple's fields; the class describes them."""
    return True if (getattr(obj, "__doc__", None) or "").startswith("Alias for field number") else None


def setup(app):
    """Sphinx calls this when it loads the extension."""
    app.connect("config-inited", read_keys)
    app.connect("autodoc-process-docstring", cite_keys)
    app.connect("autodoc-process-docstring", list_members)
    app.connect("autodoc-skip-member", skip_generated)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
