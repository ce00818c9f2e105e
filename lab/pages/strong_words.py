"""Strong words have their reasons: a sentence that says proved, exact, always, never, guaranteed, optimal or new.

Each stands in book/story/strong_words.csv with its page, enough of the sentence to find it (` ... ` for anything
between), the word and its reason: *proof* (and the page or label where it stands), *test* (tests/HOUSE/FILE.py::NAME,
or verdict ID), *search* (what was looked through), *definition* (true by what the words mean here) or *code* (what the
named program does). Left out: statements in boxes, their proofs, denials ("not proved"), purposes ("to prove"), and
"new" of things that are new to a page and not to the world; and the forms of verdicts, which their rows test.
"""

import re

from lab.pages import prose
from lab.pages.sources import page_names, rows, sources

WORDS = "book/story/strong_words.csv"
STRONG = re.compile(
    r"\b(?:prove[sdn]?|exact(?:ly)?|always|never|guarantee[sd]?|optimal(?:ly)?|"
    # other new things (a file, a row) are not claimed to be new to the world
    r"(?:(?<=is )|(?<=are )|(?<=seems )|(?<=\())new|new(?= (?:theorem|bound|lemma|result|proof|statement|form|"
    r"inequality|estimate|certificate|method|algorithm)s?\b))\b(?! nothing)",
    re.I,
)
# a denial claims nothing; a purpose, a task or a question is not an answer
DENIED = re.compile(
    r"(?:\b(?:not|no|nothing|none|cannot|neither|nor|without|hardly|\w+n['’]t)\b[^.;:]{0,18}|"
    r"\b(?:to|would|could|should|can|must be|whether|how) )$",
    re.I,
)
KINDS = ("proof", "test", "search", "definition", "code")


def claims(text):
    """The strong words of a text: (place, word)."""
    masked = prose.clean(text)
    for match in STRONG.finditer(masked):
        before = re.split(r"\n\s*\n|\n\s*[-*|#]", masked[max(0, match.start() - 40) : match.start()])[-1]
        if not DENIED.search(re.sub(r"\s+", " ", before)):
            yield match.start(), match[0].lower()


def word_complaints(root, page, text):
    """Strong words without a reason, and reasons without their word. A row of page * excuses its phrase on all."""
    open_claims, wrong = dict(claims(text)), []
    for row in (row for row in rows(root / WORDS) if row["page"] in (page, "*")):
        places = prose.span(text, row["sentence"])
        said = [p for start, end in places for p in open_claims if start <= p < end]
        said = [p for p in said if open_claims[p] == row["word"]]
        if row["page"] == page and (len(places) != 1 or not said):
            wrong.append(f"{WORDS}: no claim '{row['word']}' in '{row['sentence']}' on {page}")
        for place in said:
            del open_claims[place]
    for place, word in sorted(open_claims.items()):
        wrong.append(f"{page}: '{word}' without a reason: {prose.sentence(text, place)}")
    return wrong


def reason_complaints(root):
    """Reasons that name a proof, a test or a work which does not exist."""
    for row in rows(root / WORDS):
        said = f"{WORDS}: '{row['sentence']}' ({row['page']})"
        if row["kind"] not in KINDS or not row["reason"]:
            yield f"{said}: the kind is one of {', '.join(KINDS)}, and it has a reason"
        for path, test in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", row["reason"]):
            if not (root / path).exists() or (test and f"def {test}(" not in (root / path).read_text()):
                yield f"{said}: there is no test {path}::{test}"
        if row["kind"] == "test" and "tests/" not in row["reason"] and "verdict " not in row["reason"]:
            yield f"{said}: name the test, tests/HOUSE/FILE.py::NAME, or the verdict, 'verdict ID'"
        known = {verdict["id"] for verdict in rows(root / "lab/statements.csv")}
        for id in re.findall(r"\bverdict ([\w.-]+\w)", row["reason"]):
            if id not in known:
                yield f"{said}: there is no statement {id}"
        if row["kind"] == "proof" and not proof_exists(root, row["reason"]):
            yield f"{said}: name the page or the label where the proof stands"


def proof_exists(root, reason):
    """Whether a reason names a page, or a labelled statement, that is there."""
    if any(name in reason for name in (*page_names(root), "lipnb/")):
        return True
    texts = [path.read_text(encoding="utf-8") for path in [*sources(root), *(root / "book").glob("*.md")]]
    return any(f":label: {label}\n" in text for label in re.findall(r"`([\w-]+)`", reason) for text in texts)
