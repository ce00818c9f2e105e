"""Networks and tokenizers in memory, written to a temporary folder, from which they are read as any others."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from textwrap import shorten
from typing import Any, NamedTuple
from weakref import finalize

import torch

from lipscan.models.files import quiet

LONGEST = 800  # characters of what transformers says, which lists each fault
WRAPPERS = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)


class Written(NamedTuple):
    """What was written: the temporary folder, and the places of model and tokenizer."""

    folder: str
    model: str | os.PathLike
    tokenizer: str | os.PathLike | None


def in_memory(thing: Any) -> bool:
    """Whether something is a network or tokenizer of transformers in memory, not the name or folder of one."""
    return callable(getattr(_unwrapped(thing), "save_pretrained", None))


def written(model: Any, tokenizer: Any) -> Written:
    """Write what is in memory of a model and a tokenizer, as `save_pretrained` does, to a temporary folder.

    The network itself stays as it is: its mode, gradients and configuration, and the global random state.

    Parameters
    ----------
    model : PreTrainedModel, str or path
        Parallel and compiled networks are unwrapped.
    tokenizer : PreTrainedTokenizerBase, str, path or None
        Tokenizer.

    Raises
    ------
    ValueError
        The library cannot write it, or there is no room.
    """
    folder = mkdtemp(prefix="lipnb-")
    with deleted_on_failure(folder):
        return Written(folder, *(_place(thing, Path(folder)) for thing in (model, tokenizer)))


@contextmanager
def deleted_on_failure(folder: str) -> Iterator[None]:
    """Context that deletes a temporary folder if it fails."""
    try:
        yield
    except BaseException:
        rmtree(folder, ignore_errors=True)
        raise


def deleted_with(model: Any, folder: str) -> None:
    """Delete a temporary folder when nothing refers to the model any more, or Python ends."""
    finalize(model, rmtree, folder, ignore_errors=True)


def _unwrapped(thing):
    """The network inside of one that is compiled or runs in parallel."""
    thing = thing.module if isinstance(thing, WRAPPERS) else thing
    return getattr(thing, "_orig_mod", thing)


def _place(thing, folder):
    """The folder in which a thing in memory was written, named for its class; other things as they are."""
    if not in_memory(thing):
        return thing
    thing = _unwrapped(thing)
    kind, config = type(thing).__name__, getattr(thing, "config", None)
    before = dict(vars(config)) if config is not None else {}
    try:
        with quiet():
            thing.save_pretrained(folder / kind)
    except Exception as error:  # the library raises many kinds of errors
        from safetensors import SafetensorError

        why = shorten(str(error) or type(error).__name__, LONGEST, placeholder=" ...").rstrip(".")
        if isinstance(error, OSError | SafetensorError):
            raise ValueError(
                f"this {kind} is in memory, and its copy in the folder for temporary files (TMPDIR) could not be "
                f"written ({why}): make room, or save it with save_pretrained('mine'), then give 'mine'."
            ) from error
        raise ValueError(
            f"this {kind} is in memory, and transformers does not write it ({why}): mend that, until its "
            "save_pretrained('mine') succeeds."
        ) from error
    finally:
        if config is not None:  # the library notes type and class in it
            vars(config).clear()
            vars(config).update(before)
    return folder / kind
