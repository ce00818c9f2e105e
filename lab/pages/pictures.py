"""Pictures shown outside their page, on the front page and in README.md: each by its name.

A name of `lab.figures.FIGURES` says which page draws it and by which call, what stands below it, and what it looks like
in words. A name like ``fig-01-push`` is the one that the page's own caption gives (`lab.pages.captions`).
"""

import re
from base64 import b64decode

import nbformat

from lab.pages import captions

README = re.compile(r"!\[(?P<alt>[^\]]*)\]\(book/figures/(?P<name>[\w-]+)\.png\)")
SHORTEST = 6  # words of an alternative text
PROSE = re.compile(r"```\{figure\} figures/(?P<name>[\w-]+)\.png\n(?::alt: (?P<alt>[^\n]*))?")


def registry():
    """Every figure that has a name."""
    from lab.figures import FIGURES  # here: most commands draw nothing

    return FIGURES


def shown(root):
    """Where which figure is shown, and with what words in its place: (file, name, alternative text)."""
    for path, pattern in [(root / "README.md", README), *((path, PROSE) for path in sorted(root.glob("book/*.md")))]:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        yield from ((path, found["name"], found["alt"] or "") for found in pattern.finditer(text))


def picture(root, notebooks, name):
    """The one picture that the cell which draws this figure shows, decoded; a ValueError says why there is none."""
    if captions.NAME.fullmatch(name):
        return captioned(root, notebooks, name)
    if name not in registry():
        raise ValueError(f"there is no figure {name!r}: lab.figures.FIGURES has the names")
    call, found = registry()[name].call, []
    for source in sorted((root / "notebooks").glob("[0-9]*.py")):
        page = notebooks / f"{source.stem}.ipynb"
        if call in source.read_text(encoding="utf-8") and page.exists():
            cells = [cell for cell in nbformat.read(page, as_version=4).cells if call in cell.source]
            outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
            found += [data["image/png"] for data in outputs if "image/png" in data]
    if len(found) != 1:
        raise ValueError(f"{call}...) shows {len(found)} pictures in all pages, not one")
    return b64decode(found[0])


def captioned(root, notebooks, name):
    """The picture to which its page gives this name, decoded; a ValueError where there is none."""
    for source in sorted((root / "notebooks").glob(f"{name[4:6]}_*.py")):
        page = notebooks / f"{source.stem}.ipynb"
        cells = captions.drawn(nbformat.read(page, as_version=4)) if page.exists() else ()
        for cell in (cell for cell, _, block in cells if block and block["name"] == name):
            data = [output.get("data", {}) for output in cell.outputs]
            return b64decode(next(one["image/png"] for one in data if "image/png" in one))
    raise ValueError(f"no page that was run calls a figure {name!r}")


def pictures(root, notebooks, *files):
    """Name -> picture, of the figures that these files show; those without a picture are left to `complaints`."""
    made = {}
    for path, name, _ in shown(root):
        if path in files:
            try:
                made[name] = picture(root, notebooks, name)
            except ValueError:
                continue
    return made


def written(root, notebooks):
    """The pictures that git keeps for README.md: path -> content."""
    return {
        root / f"book/figures/{name}.png": image
        for name, image in pictures(root, notebooks, root / "README.md").items()
    }


def words(text):
    """A text with its white space and emphasis evened out, to be compared."""
    return " ".join(text.replace("*", "").split())


def complaints(root):
    """What is shown outside its page and is not what the registry says, one sentence each."""
    for path, name, alt in shown(root):
        where = path.relative_to(root)
        try:
            image = picture(root, root / "notebooks", name)
        except ValueError as error:
            yield f"{where}: {error}"
            continue
        kept = root / f"book/figures/{name}.png"
        if path.name == "README.md" and (not kept.exists() or kept.read_bytes() != image):
            yield f"{where}: {kept.relative_to(root)} is not what its page shows as {name}"
        if captions.NAME.fullmatch(name):  # its page says what stands below it there; here the words are its own
            if len(words(alt).split()) < SHORTEST:
                yield f"{where}: {name} has no alternative text that says what is seen"
            continue
        figure = registry()[name]
        if not figure.caption or words(figure.caption) not in words(path.read_text(encoding="utf-8")):
            yield f"{where}: below {name} stands another caption than lab.figures.FIGURES has"
        if not figure.alt or words(alt) != words(figure.alt):
            yield f"{where}: {name} has another alternative text than lab.figures.FIGURES has"
    for figure in registry().values():
        source = root / "notebooks" / f"{figure.page}.py"
        if figure.caption and source.exists():
            prose = re.sub(r"^# ?", "", source.read_text(encoding="utf-8"), flags=re.MULTILINE)
            if words(figure.caption) not in words(prose):
                yield f"{source.name}: {figure.name} has another caption than lab.figures.FIGURES has"
