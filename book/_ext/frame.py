"""The frame of a page: what its head says of it, numbers in the list of contents, each term linked once.

A page's description is its first paragraph. The preview image is the picture of the front page. The number of a page
is that of its file, `41_real_text`, by which other pages name it.
"""

import re
from html import escape, unescape

from docutils import nodes
from sphinx import addnodes

NUMBERED = re.compile(r"notebooks/(\d\d)_")
PREVIEW = re.compile(r"figures/([\w-]+\.png)")
GLOSSARY = "book/glossary"  # whose own terms may be linked wherever they help
LONGEST = 200  # characters that previews show


def words(node):
    """The text of a paragraph without formulas and notes."""
    if isinstance(node, nodes.math | nodes.raw | nodes.footnote_reference | nodes.image):
        return " "
    return node.astext() if isinstance(node, nodes.Text) else "".join(words(child) for child in node.children)


def description(doctree):
    """The beginning of the first paragraph that is a sentence."""
    for paragraph in doctree.findall(nodes.paragraph):
        said = re.sub(r"\s+([,.;:])", r"\1", " ".join(words(paragraph).split()))
        if len(said.split()) > 6:
            return said if len(said) <= LONGEST else said[:LONGEST].rsplit(" ", 1)[0] + " …"
    return ""


def describe(app, pagename, templatename, context, doctree):
    """Say in the head what the page is about: for previews, and for a list of results."""
    if doctree is None:
        return
    said = description(doctree) or app.config.html_title
    front = app.env.get_doctree(app.config.root_doc)
    shown = [PREVIEW.search(image["uri"]) for image in front.findall(nodes.image)]
    tags = {"og:type": "article", "og:site_name": app.config.html_title or app.config.project}
    tags |= {"og:title": unescape(re.sub(r"<[^>]*>", "", context.get("title", ""))), "og:description": said}
    if preview := next(filter(None, shown), None):
        tags["og:image"] = context["pathto"](f"_images/{preview[1]}", resource=True)
    lines = [f'<meta name="description" content="{escape(said)}" />']
    lines += [f'<meta property="{name}" content="{escape(text)}" />' for name, text in tags.items()]
    context["metatags"] = "\n".join([context.get("metatags", ""), *lines])


def number(app, env):
    """Put the number of its file before the title of a page in the list of contents."""
    for docname, toc in env.tocs.items():
        found, first = NUMBERED.match(docname), next(toc.findall(nodes.reference), None)
        if found and first is not None and not first.astext().startswith(found[1]):
            first.insert(0, nodes.Text(f"{found[1]}\N{NO-BREAK SPACE}\N{NO-BREAK SPACE}"))


def link_once(app, doctree):
    """Leave each term of the glossary linked where a page first says it, and never in a title."""
    seen = set()
    for link in list(doctree.findall(addnodes.pending_xref)):
        if link["reftype"] != "term" or app.env.docname == GLOSSARY:
            continue
        above, term = link.parent, link["reftarget"].lower()
        while above is not None and not isinstance(above, nodes.title | nodes.rubric):
            above = above.parent
        if above is None and term not in seen:
            seen.add(term)
        else:
            link.replace_self(nodes.inline("", "", *link.children[0].children))


def setup(app):
    """Sphinx calls this when it loads the extension."""
    app.connect("html-page-context", describe)
    app.connect("env-updated", number)
    app.connect("doctree-read", link_once)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
