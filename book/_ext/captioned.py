"""Captions in the book: the paragraph after a figure becomes its numbered caption while a notebook is read.

The notebook itself stays as it is: what a reader downloads has its captions where Jupyter shows them.
"""

import nbformat

from lab.pages import captions


def caption(app, docname, source):
    """Give the figures of a notebook their captions."""
    if str(app.env.doc2path(docname)).endswith(".ipynb"):
        source[0] = nbformat.writes(captions.moved(nbformat.reads(source[0], as_version=4)))


def setup(app):
    """Sphinx calls this when it loads the extension."""
    app.connect("source-read", caption)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
