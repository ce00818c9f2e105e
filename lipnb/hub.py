"""The Hugging Face hub, asked once: its client alone would go on asking for half a minute without a network."""

__all__ = ["dataset_file", "reached"]


def reached(address: str) -> bool:
    """Whether the hub answers for the file at `address`, be it that the file is absent or gated; one question."""
    from huggingface_hub import get_hf_file_metadata
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, HTTPError

    try:
        get_hf_file_metadata(address)
    except (EntryNotFoundError, GatedRepoError):
        return True
    except (OSError, HTTPError):
        return False
    return True


def dataset_file(name: str, file: str) -> str:
    """Path of one file of a dataset, from the cache of the hub's client or downloaded into it.

    Parameters
    ----------
    name : str
        Name of the dataset on the hub.
    file : str
        Path of the file in the dataset.

    Returns
    -------
    str

    Raises
    ------
    FileNotFoundError
        "... is neither in the cache nor to be had from the hub".
    """
    from huggingface_hub import hf_hub_download, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import HTTPError

    cached = try_to_load_from_cache(name, file, repo_type="dataset")
    if isinstance(cached, str):
        return cached
    absent = f"{file} of the dataset {name!r} is neither in the cache nor to be had from the Hugging Face hub"
    if not reached(hf_hub_url(name, file, repo_type="dataset")):
        raise FileNotFoundError(absent)
    try:
        return hf_hub_download(name, file, repo_type="dataset")
    except (OSError, HTTPError):
        raise FileNotFoundError(absent) from None
