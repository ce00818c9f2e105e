"""Access to the Hugging Face hub, with one request to test the network: its client alone retries for half a minute."""

from collections.abc import Callable
from pathlib import Path

ABSENT = (
    "{name!r} could not be found on the Hugging Face hub or in its cache, and is not a folder. Without a network "
    "connection take 'minilm', which is embedded, or a local folder holding config.json and model.safetensors."
)


def reached(address: str) -> bool:
    """Whether the hub answers for the file at `address`, even that it is absent or gated; one request."""
    from huggingface_hub import get_hf_file_metadata
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, HTTPError

    try:
        get_hf_file_metadata(address)
    except (EntryNotFoundError, GatedRepoError):
        return True
    except (OSError, HTTPError):
        return False
    return True


def snapshot(name: str, patterns: list[str], enough: Callable[[Callable[[str], bool]], bool]) -> Path:
    """Folder of the hub's cache with the files of a model that match `patterns`, fetched unless `enough` are cached.

    `enough` gets a test whether a file is cached. A model that is neither cached nor available raises
    FileNotFoundError, PermissionError or ConnectionError, with the fix.
    """
    from huggingface_hub import hf_hub_url, snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, HFValidationError, HTTPError

    try:
        folder = Path(snapshot_download(name, allow_patterns=patterns, local_files_only=True))
        if enough(lambda file: (folder / file).is_file()):
            return folder
    except HFValidationError:
        raise FileNotFoundError(ABSENT.format(name=name)) from None
    except OSError:  # nothing or only a part is cached
        pass
    if not reached(hf_hub_url(name, "config.json")):
        if isinstance(config := try_to_load_from_cache(name, "config.json"), str):
            return Path(config).parent  # the readers of the missing files report them
        raise FileNotFoundError(ABSENT.format(name=name))
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except GatedRepoError:
        raise PermissionError(
            f"{name!r} is gated on the Hugging Face hub: accept its terms there, then log in with 'hf auth login'."
        ) from None
    except (OSError, HTTPError) as error:
        raise ConnectionError(
            f"the files of {name!r} could not be fetched from the Hugging Face hub ({type(error).__name__}): "
            "try again with a network connection."
        ) from error


def dataset_file(name: str, file: str) -> str:
    """Path of one file of a dataset in the hub's cache, downloaded if necessary; FileNotFoundError if unavailable."""
    from huggingface_hub import hf_hub_download, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import HTTPError

    cached = try_to_load_from_cache(name, file, repo_type="dataset")
    if isinstance(cached, str):
        return cached
    absent = f"{file} of the dataset {name!r} is not in the cache, and could not be fetched from the Hugging Face hub"
    if not reached(hf_hub_url(name, file, repo_type="dataset")):
        raise FileNotFoundError(absent)
    try:
        return hf_hub_download(name, file, repo_type="dataset")
    except (OSError, HTTPError):
        raise FileNotFoundError(absent) from None
