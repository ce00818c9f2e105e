"""Pictures shown outside their page, on the front page and in README.md: each by the name that its caption gives it."""

import re
from base64 import b64decode

import nbformat

from lab.pages import captions

README = re.compile(r"!\[(?P<alt>[^\]]*)\]\(book/figures/(?P<name>[\w-]+)\.png\)")
PROSE = re.compile(r"```\{figure\} figures/(?P<name>[\w-]+)\.png\n(?::alt: (?P<alt>[^\n]*))?")


def shown(root):
    """Where which figure is shown, and with what words in its place: (file, name, alternative text)."""
    for path, pattern in [(root / "README.md", README), *((path, PROSE) for path in sorted(root.glob("book/*.md")))]:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        yield from ((path, found["name"], found["alt"] or "") for found in pattern.finditer(text))


def picture(root, notebooks, name):
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


def complaints(root):
    """What is shown outside its page and is missing, another picture, or not told in words: one sentence each."""
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
        if len(alt.split()) < captions.FEWEST_WORDS:
            yield f"{where}: {name} has no alternative text that says what is seen"
