"""Rule for numbers in prose: with a decimal point, a percent sign or thousands they must be glued from the run.

A number may also appear in the code of its page, where a reader sees it set. Other numbers need a reason in a comment,
``<!-- typed: reason -->``, which excuses what follows it up to the next blank line.
"""

import re

import jupytext

from lab.pages.sources import sources

# not prose of ours: excused numbers, comments, statements, code, directives, formulas, roles, links
NO_PROSE = [
    r"<!--\s*typed:\s*\S.*?-->.*?(?=\n\s*\n|\Z)",
    r"<!--.*?-->",
    r"^(`{3,}|:{3,})\{(?:prf:|code|math|literalinclude|raw)[^\n]*\n.*?^\1[ ]*$",
    r"^(`{3,})(?!\{)[^\n]*\n.*?^\1[ ]*$",
    r"^[`:]{3,}[^\n]*$|^:[\w-]+:[^\n]*$",
    r"\$\$.*?\$\$|(?<![\\$])\$[^$]+\$|^\\begin\{(\w+\*?)\}.*?^\\end\{\1\}",
    r"\{[\w:+-]+\}`[^`]*`",
    r"(`+)[^`].*?\1",
    r"\]\([^)\s]*\)|https?://\S+|arXiv[ :][\d.]+",
]
NUMBER = re.compile(r"(?<![\w.,/^-])(?:(?:\d+\.\d+|\d{1,3}(?:,\d{3})+)(?:[ \u00a0]?%)?|\d+[ \u00a0]?%)(?![\w.]*\d)")
# the names of things, "Theorem 3.3" or "Python 3.11, 3.12 and 3.13", and of the usual interval
NAME = re.compile(
    r"\b(?:theorem|thm|lemma|proposition|prop|corollary|definition|def|remark|question|figure|fig|table|section|sec|"
    r"appendix|page|equation|eq|python|pytorch|version|by-sa|attribution)s?\.?[ \u00a0]+"
    r"(?:[\d.]+(?:, |,? and | or | to ))*$",
    re.I,
)
INTERVAL = re.compile(r"95[ \u00a0]%(?= (?:bootstrap )?intervals?\b)")


def typed(text, code=""):
    """Measured numbers typed into a Markdown text but not set in its code: (place, number)."""
    for pattern in NO_PROSE:
        text = re.sub(pattern, lambda found: re.sub(r"[^\n]", " ", found[0]), text, flags=re.M | re.S)
    for found in NUMBER.finditer(text):
        before = re.sub(r"\s+", " ", text[max(0, found.start() - 60) : found.start()])
        digits = re.sub(r"[, \u00a0%]", "", found[0])
        as_share = f"{float(digits) / 100:g}" if "%" in found[0] else digits
        in_code = any(re.search(rf"(?<![\d.]){re.escape(one)}(?!\d)", code) for one in (digits, as_share))
        if not (in_code or NAME.search(before) or INTERVAL.match(text, found.start())):
            yield found.start(), found[0]


def complaints(root):
    """Every number of the pages and of the prose that was typed where it should be glued, a sentence each."""
    texts = {path: (path.read_text(encoding="utf-8"), "") for path in sorted((root / "book").glob("*.md"))}
    for source in sources(root):
        parts = {"markdown": [], "code": []}
        for cell in jupytext.read(source).cells:
            parts.setdefault(cell.cell_type, []).append(cell.source)
            parts["markdown"].append(cell.metadata.get("mystnb", {}).get("figure", {}).get("caption", ""))
        texts[source] = "\n\n".join(parts["markdown"]), "\n".join(parts["code"]).replace("_", "")
    for path, (text, code) in texts.items():
        for place, number in typed(text, code):
            around = re.sub(r"\s+", " ", text[max(0, place - 50) : place + 30])
            yield f"{path.relative_to(root)}: {number} is typed: glue it, or say where it is from ({around})"
