"""Docstrings in the book: keys of the bibliography are citations, modules list what they hold, fields are whole."""

import re
from enum import EnumType
from pathlib import Path

KEY = re.compile(r"^@\w+\{([^,\s]+),", re.MULTILINE)
SPECIAL_TOKEN = re.compile(r"(?<!`)<\|\w+\|>")
SEVERAL = re.compile(r"(\w+(?:, \w+)+)( : .*)?")  # "low, high : float", fields that share a description
BACK = re.compile(r'(?<=class="viewcode-back" href=")([^"#]*/)?([^"#/]+)\.html#([\w.]+)(?=")')


def read_keys(app, config):
    """Learn the keys from the bibliography itself."""
    text = "".join(Path(app.srcdir, name).read_text(encoding="utf-8") for name in config.bibtex_bibfiles)
    app.known_keys = re.compile(rf"(?<![`\w])({'|'.join(map(re.escape, KEY.findall(text)))})(?![`\w])")


def cite_keys(app, what, name, obj, options, lines):
    """Make each known key in a docstring a citation; quote tokens that look like substitutions."""
    lines[:] = [app.known_keys.sub(r":cite:t:`\1`", SPECIAL_TOKEN.sub(r"``\g<0>``", line)) for line in lines]


def divide_fields(app, what, name, obj, options, lines):
    """Describe each of several fields that share a description: Sphinx takes the comma for a type."""
    whole, at = [], 0
    while at < len(lines):
        end = at + 1
        if several := SEVERAL.fullmatch(lines[at]):
            while end < len(lines) and lines[end].startswith(" "):
                end += 1
        about = lines[at + 1 : end]
        names = several[1].split(", ") if about else ()
        whole += [line for one in names for line in (one + (several[2] or ""), *about)] or lines[at:end]
        at = end
    lines[:] = whole


def keep_colons(app, what, name, obj, options, lines):
    """Let the first sentence of a property have a colon, before which Sphinx expects a type."""
    if what in ("property", "attribute", "data") and lines and ":" in lines[0]:
        lines[0] = f": {lines[0]}"


def list_values(app, what, name, obj, options, lines):
    """End the description of an enumeration with its members."""
    if isinstance(obj, EnumType):
        lines += ["", *(f"- ``{one.name}``: {one.value}" for one in obj), ""]


def no_arguments(app, what, name, obj, options, signature, returned):
    """An enumeration is not called: the arguments that Python would show make another one."""
    return ("", None) if isinstance(obj, EnumType) else None


def lead_back(app, pagename, templatename, context, doctree):
    """Let a page of source lead back to the entry of an object, under whichever module that names it."""
    known = app.env.get_domain("py").objects

    def mended(found):
        folder, page, name = found[1] or "", found[2], found[3]
        here = {one for one, entry in known.items() if entry.docname.rpartition("/")[2] == page}
        ends = [name.split(".", start)[-1] for start in range(name.count(".") + 1)]
        same = (one for end in ends for one in sorted(here) if one == end or one.endswith(f".{end}"))
        return f"{folder}{page}.html#{next(same, name)}"

    if pagename.startswith("_modules/") and "body" in context:
        context["body"] = BACK.sub(mended, context["body"])


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
    for before_napoleon in (divide_fields, keep_colons):
        app.connect("autodoc-process-docstring", before_napoleon, priority=400)
    app.connect("autodoc-process-docstring", cite_keys)
    app.connect("autodoc-process-docstring", list_members)
    app.connect("autodoc-process-docstring", list_values)
    app.connect("autodoc-process-signature", no_arguments)
    app.connect("autodoc-skip-member", skip_generated)
    app.connect("html-page-context", lead_back)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
