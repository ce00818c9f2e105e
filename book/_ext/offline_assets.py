"""MathJax from the installed package, inside the book: its formulas are drawn without a network."""

from importlib.util import find_spec
from pathlib import Path
from shutil import copyfile

# one file that draws with SVG and therefore needs no fonts
MATHJAX = "tex-svg.js"


def copy_mathjax(app, failure):
    """Put the one script that the pages load into the finished book."""
    if failure or app.builder.format != "html":
        return
    package = Path(find_spec("sphinx-mathjax-offline").origin).parent
    vendor = Path(app.outdir, "_static", "vendor")
    vendor.mkdir(parents=True, exist_ok=True)
    copyfile(package / "static" / "mathjax" / MATHJAX, vendor / MATHJAX)


def setup(app):
    """Sphinx calls this when it loads the extension."""
    app.config.mathjax_path = f"vendor/{MATHJAX}"
    app.connect("build-finished", copy_mathjax)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
