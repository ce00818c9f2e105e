"""YAML as a spec is written in: plain values, no surprises, and nothing that grows when it is read."""

import re
from collections import Counter

import yaml

__all__ = ["document"]

LARGEST = 1_000_000  # characters of a file, and values that it stands for once its aliases are written out


class _Loader(yaml.SafeLoader):
    """Safe YAML in which 1e-3 is a number, as everywhere else, and a key given twice is an error."""

    def construct_mapping(self, node, deep=False):
        names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<")
        if twice := [name for name, count in names.items() if count > 1]:
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice[0]!r} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def document(path):
    """Text and content of a YAML file.

    Parameters
    ----------
    path : Path
        Of the file.

    Returns
    -------
    str, object
        As it is written, and what it means.

    Raises
    ------
    ValueError
        "... is not a text file", "... has more than ... characters", "...: not YAML: ...", "... stands for more than
        ... values".
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LARGEST + 1)
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file: a sweep is described in YAML.") from None
    if len(text) > LARGEST:
        raise ValueError(f"{path} has more than {LARGEST:,} characters: ranges and linspace make long lists.")
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is not None and _written_out(node, {}, set()) > LARGEST:
            raise ValueError(f"{path} stands for more than {LARGEST:,} values, by its aliases (*name): write fewer.")
        return text, None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"{path}{where}: not YAML: {getattr(error, 'problem', None) or error}.") from None
    except RecursionError:
        raise ValueError(f"{path}: its lists and mappings are nested too deeply, or within themselves.") from None
    except (TypeError, AttributeError, OverflowError) as error:  # of odd values, such as a key that is a list
        raise ValueError(f"{path}: not YAML that a sweep can be made of: {error}.") from None
    except ValueError as error:  # a date that there is not, a number of thousands of digits
        raise (
            error if str(error).startswith(str(path)) else ValueError(f"{path}: a value cannot be read: {error}.")
        ) from None
    finally:
        if loader is not None:
            loader.dispose()


def _written_out(node, known, above):
    """How many values a node stands for, aliases counted each time."""
    if id(node) in above:
        raise RecursionError
    if id(node) not in known:
        parts = [] if isinstance(node, yaml.ScalarNode) else node.value
        parts = [part for pair in parts for part in pair] if isinstance(node, yaml.MappingNode) else parts
        known[id(node)] = 1 + sum(_written_out(part, known, above | {id(node)}) for part in parts)
    return known[id(node)]
