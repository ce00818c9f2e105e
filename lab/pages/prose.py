"""The numbers and the sentences of a page's prose, found in its Markdown: what is markup, name or formula is left out.

A masked text has the length of the original, so a place in it is a place there.
"""

import math
import re
from dataclasses import dataclass

__all__ = ["Number", "clean", "numbers", "read", "sentence", "span", "told"]

STATEMENTS = "theorem|lemma|proposition|corollary|definition|observation|example|remark|conjecture"
BOX = re.compile(rf"^(:{{3,}}|`{{3,}})\{{prf:(?:{STATEMENTS})\}}.*?^\1[ ]*$", re.M | re.S)
PROOF = re.compile(
    r"(?:\*Proof\b|^## Proof)(?:(?!^## ).)*?\$\\square\$|^(:{3,}|`{3,})\{prf:proof\}.*?^\1[ ]*$", re.M | re.S
)
# what is no prose of ours: blocks of code, comments, options of directives, roles, spans of code, links, addresses
FENCED = re.compile(r"^(`{3,})([^\n]*\n.*?)^\1[ ]*$", re.M | re.S)
MARKUP = [
    re.compile(r"<!--.*?-->|<[a-zA-Z/][^<>\n]*>", re.S),
    re.compile(r"^:[\w-]+:(?: .*)?$", re.M),
    re.compile(r"^[`: ]{3,}\{[\w:-]+\}(?: (?:\.\./|figures/|\d).*)?$|^:{3,}(?: |$)", re.M),
    re.compile(r"^[ ]*(?:\([\w-]+\)=|:?-{3,}:?|\|[ |:-]+\|)[ ]*$", re.M),
    re.compile(r"\{[\w:+-]+\}`[^`]*`"),
    re.compile(r"(`+)[^`].*?\1", re.S),
    re.compile(r"\]\([^)\s]*\)|https?://\S+|arXiv[ :]\d+\.\d+"),
]
DISPLAY = re.compile(r"\$\$.*?\$\$|^\\begin\{(\w+\*?)\}.*?^\\end\{\1\}", re.M | re.S)
INLINE = re.compile(r"(?<![\\$])\$(?!\$)((?:[^$\\]|\\.)+)\$(?!\$)")
DECIMAL = re.compile(r"(?<![\d.])\d+\.\d+(?![\d.])")

ONES = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen".split()
)
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
WORDS = {word: n + 1 for n, word in enumerate(ONES)} | {word: 10 * (n + 2) for n, word in enumerate(TENS)}
LARGE = {"dozen": 12, "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}
WORD = "|".join(sorted([*WORDS, *LARGE], key=len, reverse=True))
SPELLED = re.compile(rf"\b(?:{WORD})(?:(?:\s|-)(?:and )?(?:{WORD}))*\b", re.I)
DIGITS = re.compile(
    r"(?<![\w.,/^_\\])(?:(?<=\d-)|(?<!\w-))(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?(e[+-]?\d+)?([ \u00a0\u202f]?%)?"
    r"(?:/(\d+))?([ -](?:thousand|million|billion)\b)?(?![\w^]|\.\d)"
)
FEW = 4  # one, two and three are words of the language more than counts
NAMED = re.compile(
    r"\b(?:theorem|thm|lemma|proposition|prop|corollary|definition|def|remark|question|figure|fig|table|section|sec|"
    r"appendix|page|equation|eq|chapter|part|step|point|line|item|python|pytorch|torch|numpy|cuda|version|release|"
    r"licence|license|bsd|icml|neurips|iclr|jupyter book|reference|app)s?\.?[ \u00a0]+$",
    re.I,
)
LIST = re.compile(r"(?:,? (?:and|to|or|of)|,|–|-| \()[ ]?$")
IDIOM = re.compile(r"\b(?:parts? in|powers? of|factors of|once in|one in)(?: an?)? $", re.I)
# the name of a statistic, not a measurement
STATISTIC = re.compile(r"[ -](?:confidence |bootstrap )?(?:intervals?|quantiles?|percentiles?)\b")
HEDGES = {
    "near": r"about|some|nearly|almost|around|roughly|approximately|close to|near|a factor(?: of)?|order of|"
    r"or so|say|by",
    "above": r"more than|over|at least|above|beyond|exceeds?|from",
    "below": r"less than|under|at most|below|within|up to|fewer than|to",
}
HEDGE = {side: re.compile(rf"\b(?:{words})[ ](?:an? )?$", re.I) for side, words in HEDGES.items()}
LOOSE = 0.05  # how far "about" reaches


@dataclass(frozen=True)
class Number:
    """A number that was typed: where it stands, what it says and how exactly."""

    start: int
    end: int
    text: str
    value: float
    unit: float  # of its last digit
    hedge: str | None = None

    def agrees(self, other):
        """Whether another number, written to these digits, could be this one."""
        other, value = abs(other), self.value
        if other == value or math.isclose(other, value, rel_tol=1e-9):
            return True
        if self.hedge == "near" and abs(other - value) <= max(LOOSE * value, self.unit / 2):
            return True
        if self.hedge == "above" and value <= other <= (1 + LOOSE) * value:
            return True
        if self.hedge == "below" and (1 - LOOSE) * value <= other <= value:
            return True
        # a whole number is a count, and exact, unless the sentence says "about" or it ends in zeros
        return self.unit != 1 and abs(other - value) <= self.unit / 2 * (1 + 1e-9)


def blank(text, pattern):
    """The text with every match of a pattern made blank, line breaks kept."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def without_fence(match):
    """A block of code made blank; of a directive, such as a figure with its caption, only the fences."""
    start, end = (match.end(1), match.end(2)) if match[2].startswith("{") else (match.end(), match.end())
    space = [
        re.sub(r"[^\n]", " ", part) for part in (match.string[match.start() : start], match.string[end : match.end()])
    ]
    return space[0] + match.string[start:end] + space[1]


def keep_decimals(match):
    """A formula made blank but for its decimals: a measured exponent is a number wherever it stands."""
    kept = [place for found in DECIMAL.finditer(match[0]) for place in range(*found.span())]
    return "".join(c if place in kept or c == "\n" else " " for place, c in enumerate(match[0]))


def clean(text, formulas=False):
    """Prose alone. Statements, proofs, markup and displayed formulas are blank; formulas keep decimals if asked."""
    text = FENCED.sub(without_fence, text)
    for pattern in (BOX, PROOF, *MARKUP, DISPLAY):
        text = blank(text, pattern)
    return INLINE.sub(keep_decimals, text) if formulas else blank(text, INLINE)


def spelled(words):
    """The value of a number in words, and the unit of its last digit."""
    total, part = 0, 0
    for word in re.split(r"[\s-]+", words.lower()):
        if word in WORDS:
            part += WORDS[word]
        elif word in LARGE and LARGE[word] > 100:
            total, part = total + (part or 1) * LARGE[word], 0
        elif word in LARGE:
            part = (part or 1) * LARGE[word]
    value = total + part
    return value, last_unit(value)


def last_unit(whole):
    """The unit that a whole number is given to: zeros at its end may be rounding, but two digits are never."""
    zeros = len(str(whole)) - len(str(whole).rstrip("0"))
    return 10 ** max(0, min(zeros, len(str(whole)) - 2))


def is_name(before, start, named):
    """Whether a number that starts here belongs to a name, "Theorem 3.3", or continues a list of such."""
    if NAMED.search(before):
        return True
    return any(end < start and LIST.fullmatch(before[end - start :]) for end in named if start - end < 8)


def hedged(before):
    """How the words before a number loosen it."""
    return next((side for side, pattern in HEDGE.items() if pattern.search(before)), None)


def digits(match):
    """Value and unit of a number in digits."""
    whole, decimals, power, percent, divisor, large = match.groups()
    value = float(whole.replace(",", "") + (decimals or "") + (power or ""))
    scale = 10.0 ** int((power or "e0")[1:])
    if decimals:
        unit = 10.0 ** (1 - len(decimals)) * scale
    else:
        unit = last_unit(int(whole.replace(",", ""))) * scale
    if divisor:
        return value / int(divisor), 0.0
    factor = LARGE[large[1:]] if large else 1
    return value * factor, unit * factor


def numbers(masked):
    """The numbers typed in a masked text, in order."""
    found, named = [], []
    tokens = sorted([*SPELLED.finditer(masked), *DIGITS.finditer(masked)], key=lambda match: match.start())
    for match in tokens:
        start, end = match.span()
        before = re.sub(r"\s+", " ", masked[max(0, start - 40) : start])
        if match.re is SPELLED:
            value, unit = spelled(match[0])
        elif is_name(before, start, named):
            named.append(end)
            continue
        else:
            value, unit = digits(match)
        year = match.re is DIGITS and re.fullmatch(r"(?:19|20)\d\d", match[0])
        if value in range(FEW) or year or STATISTIC.match(masked, end) or match[0].lower() in LARGE:
            continue
        halves = match.re is DIGITS and re.fullmatch(r"[123]/[123]", match[0])
        if halves or IDIOM.search(before):
            continue
        found.append(Number(start, end, match[0], value, unit, hedged(before)))
    return found


READ = re.compile(r"(?<![\w.])-?(\d{1,3}(?:,\d{3})+|\d+)((?:\.\d+)?(?:e[+-]?\d+)?)(?![\w.]*\w)", re.I)


def read(text):
    """Every number in a text that a program wrote, its sign dropped."""
    return {float(match[1].replace(",", "") + match[2]) for match in READ.finditer(text)}


SAID = re.compile(r"(?:[A-Za-z)][=:,]?|[=:(]) ?[(\[]?$"), re.compile(r"[)\]:,;.]* ?[A-Za-z(%]")


def told(text):
    """The whole numbers that a program says in words, "19 layers" or "n = 128": the body of a table says nothing."""
    found = set()
    for line in text.splitlines():
        tokens = list(READ.finditer(line))
        letters = len(re.findall(r"[A-Za-z]", line))
        in_table = len(tokens) > 2 and letters < 3 * len(tokens)
        for match in tokens:
            beside = SAID[0].search(line[: match.start()]), SAID[1].match(line[match.end() :])
            if not in_table and any(beside):
                found.add(float(match[1].replace(",", "") + match[2]))
    return found


def span(text, quoted):
    """Where a quotation stands, white space aside and ` ... ` standing for anything between: all (start, end)."""
    parts = [r"\s+".join(map(re.escape, part.split())) for part in quoted.split(" ... ")]
    return [match.span() for match in re.finditer(r"[\s\S]*?".join(parts), text)]


STOP = re.compile(r"(?<=[.!?:;])[\"')*]*\s+(?=[^a-z])|\n\s*\n|\n(?=\s*(?:[-*|#]|\d+\.) ?)|\|")


def sentence(text, place):
    """The sentence around a place, on one line."""
    stops = [match.span() for match in STOP.finditer(text)]
    start = max((end for _, end in stops if end <= place), default=0)
    finish = min((begin for begin, _ in stops if begin >= place), default=len(text))
    return re.sub(r"\s+", " ", text[start:finish]).strip(" -*#|")
