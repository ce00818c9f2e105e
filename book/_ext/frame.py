"""The frame of a page: what its head says of it, where to write, each term linked once, formulas with their full stop.

A page's description is its first paragraph. The preview image is the picture of the front page.
"""

import re
from html import escape, unescape

from docutils import nodes
from sphinx import addnodes

PREVIEW = re.compile(r"figures/([\w-]+\.png)")
GLOSSARY = "book/glossary"  # whose own terms may be linked wherever they help
LONGEST = 200  # characters that previews show
OPENS, CLOSES = re.compile(r"[(\[“‘]*$"), re.compile(r"^[.,;:!?)\]”’…]*")
ASK = "<p>A mistake found, or a question? {}, and name the page and the sentence.</p>"


def plain(formula):
    """A short formula as it is read in a line of text, n^(1/4) or √n; nothing of one that needs more."""
    text = re.sub(r"\\sqrt\s*(\w)", r"√\1", formula)
    text = re.sub(r"\^\{([\w/]+)\}", r"^(\1)", text)
    return text if re.fullmatch(r"[\w√^()/ +=.,-]+", text) else " "


def words(node):
    """The text of a paragraph, formulas in plain text, without notes."""
    if isinstance(node, nodes.math):
        return plain(node.astext())
    if isinstance(node, nodes.raw | nodes.footnote_reference | nodes.image):
        return " "
    return node.astext() if isinstance(node, nodes.Text) else "".join(words(child) for child in node.children)


def description(doctree):
    """The beginning of the first paragraph that is a sentence."""
    for paragraph in doctree.findall(nodes.paragraph):
        said = re.sub(r"\s+([,.;:])(?!\w)", r"\1", " ".join(words(paragraph).split()))
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


def title_once(app, pagename, templatename, context, doctree):
    """The front page is called as the book, which its title names once."""
    if pagename == app.config.root_doc:
        context["docstitle"] = ""


def search(app, pagename, templatename, context, doctree):
    """Give the page of results summaries that are sentences."""
    if pagename == "search":
        app.add_js_file("search.js", loading_method="defer")


def say_where(app, config):
    """End the foot with where the source is and where to write: the address of `repository`, if it is set."""
    options = config.html_theme_options
    if address := escape(options.get("repository_url", "")):
        said = f'<p>Source: <a href="{address}">{address}</a></p>' + ASK.format("Write there")
    else:
        said = ASK.format("This copy names no address: write to whoever published it")
    options["extra_footer"] = options.get("extra_footer", "") + said


def keep_together(app, doctree):
    """Keep a formula on one line with the bracket before it and the punctuation after it."""
    for formula in list(doctree.findall(nodes.math)):
        around, at = formula.parent, formula.parent.index(formula)
        before, after = (around[one] if 0 <= one < len(around) else None for one in (at - 1, at + 1))
        opens = OPENS.search(before)[0] if isinstance(before, nodes.Text) else ""
        closes = CLOSES.search(after)[0] if isinstance(after, nodes.Text) else ""
        if opens:
            around[at - 1] = nodes.Text(before.removesuffix(opens))
        if closes:
            around[at + 1] = nodes.Text(after.removeprefix(closes))
        if opens or closes:
            kept = nodes.Text(opens), formula, nodes.Text(closes)
            around[at] = nodes.inline("", "", *kept, classes=["together"])


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
    app.connect("config-inited", say_where)
    app.connect("html-page-context", describe)
    app.connect("html-page-context", title_once)
    app.connect("html-page-context", search)
    app.connect("doctree-read", link_once)
    app.connect("doctree-read", keep_together)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
