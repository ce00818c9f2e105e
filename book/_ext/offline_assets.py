"""MathJax and Bokeh from the installed packages, inside the book: nothing is drawn with the help of a network.

A page of prose that shows the picture of a movable figure gets the figure itself, where the book is read as HTML.
"""

import re
from importlib.util import find_spec
from pathlib import Path
from shutil import copyfile

# one file that draws with SVG and therefore needs no fonts
MATHJAX = "tex-svg.js"
# plots alone: the controls of movable figures are plain HTML
BOKEH = "bokeh.min.js"
MOVABLE = 'class="movable"'
STILL = re.compile(r'<img\b[^>]*\bsrc="[^"]*_images/([\w-]+)\.png"[^>]*>')


def installed(package, *parts):
    """A file of an installed package."""
    return Path(find_spec(package).origin).parent.joinpath(*parts)


def copy_scripts(app, failure):
    """Put the scripts that the pages load into the finished book."""
    if failure or app.builder.format != "html":
        return
    vendor = Path(app.outdir, "_static", "vendor")
    vendor.mkdir(parents=True, exist_ok=True)
    copyfile(installed("sphinx-mathjax-offline", "static", "mathjax", MATHJAX), vendor / MATHJAX)
    copyfile(installed("bokeh", "server", "static", "js", BOKEH), vendor / BOKEH)


def wake_movable_figures(app, page, template, context, doctree):
    """Load the scripts and the look of movable figures on the pages that hold one, and on no other."""

    def moving(still):
        kept = Path(app.srcdir, "book", "figures", f"{still[1]}.html")  # laid out by `lab.pages.layout`
        return kept.read_text(encoding="utf-8") if kept.exists() else still[0]

    if "body" in context:
        context["body"] = STILL.sub(moving, context["body"])
    if MOVABLE in context.get("body", ""):
        app.add_css_file("movable.css")
        app.add_js_file(f"vendor/{BOKEH}", loading_method="defer")
        app.add_js_file("movable.js", loading_method="defer")


def setup(app):
    """Sphinx calls this when it loads the extension."""
    app.config.mathjax_path = f"vendor/{MATHJAX}"
    app.connect("html-page-context", wake_movable_figures)
    app.connect("build-finished", copy_scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
