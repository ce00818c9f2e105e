"""Networks and tokenizers in memory, written to a temporary folder, from which they are read like any others."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from textwrap import shorten
from typing import Any, NamedTuple, NoReturn
from weakref import finalize

import torch

from lipscan.models.files import quiet

LONGEST = 800  # characters of what transformers says, which lists each fault
WRAPPERS = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)


class Written(NamedTuple):
    """Record of written objects: the temporary folder, and the paths of model and tokenizer."""

    folder: str
    model: str | os.PathLike
    tokenizer: str | os.PathLike | None


def in_memory(thing: Any) -> bool:
    """Whether an object is a network or tokenizer of transformers in memory, not the name or folder of one."""
    return callable(getattr(_unwrapped(thing), "save_pretrained", None))


def written(model: Any, tokenizer: Any) -> Written:
    """Write the in-memory parts of a model and a tokenizer to a temporary folder, as `save_pretrained` does.

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
        return Written(folder, _place(model, Path(folder), False), _place(tokenizer, Path(folder), True))


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
    while (inner := thing.module if isinstance(thing, WRAPPERS) else getattr(thing, "_orig_mod", thing)) is not thing:
        thing = inner
    return thing


def refuse_module(module: torch.nn.Module) -> NoReturn:
    """Refuse a module that is not a network of transformers; the message names a network inside it."""
    inside = (path for path, one in module.named_modules() if path and in_memory(one))
    mend = "measure a module of your own with lipnb.local_lipschitz(module.eval(), x)"
    mend = f"give the network inside it, model.get_submodule({path!r})" if (path := next(inside, "")) else mend
    raise ValueError(
        f"this {type(module).__name__} is not a network of transformers, and lipnb reads no others: {mend}."
    )


def _check_kind(thing, tokenizer):
    """Refuse what transformers can save but is not a network or, for `tokenizer`, not a tokenizer."""
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    kind, noun = type(thing).__name__, "tokenizer" if tokenizer else "model"
    wanted = PreTrainedTokenizerBase if tokenizer else PreTrainedModel
    if isinstance(thing, wanted):
        if not tokenizer and any(one.is_meta for one in thing.parameters()):
            raise ValueError(f"this {kind} lies on the meta device and holds no numbers: load its weights first.")
        return
    if callable(getattr(thing, "merge_and_unload", None)):
        mend = "merge its adapter into the weights, and give what merge_and_unload() returns"
    elif isinstance(getattr(thing, noun, None), wanted):
        mend = f"give its .{noun}"
    elif tokenizer:
        mend = "give a tokenizer, or the name or folder of one"
    elif isinstance(thing, torch.nn.Module):
        refuse_module(thing)
    else:
        mend = "give the network, or the name or folder of a model; a tokenizer is given as tokenizer="
    raise ValueError(f"this {kind} is not a {noun} of transformers: {mend}.")


def _place(thing, folder, tokenizer):
    """The folder in which an object in memory was written, named after its class; other things as they are."""
    if not in_memory(thing):
        return thing
    thing = _unwrapped(thing)
    _check_kind(thing, tokenizer)
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
            f"this {kind} is in memory, and transformers cannot write it ({why}): correct it until its "
            "save_pretrained('mine') succeeds."
        ) from error
    finally:
        if config is not None:  # the library notes type and class in it
            vars(config).clear()
            vars(config).update(before)
    return folder / kind
