"""What every test needs: quiet threads, no network, and the book's own folder of results left alone."""

import os
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

# before torch is imported: spinning threads beside a busy core make small products up to 100 times slower
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["PIP_NO_INDEX"] = "1"  # no test asks the package registry
os.environ.setdefault("MPLBACKEND", "Agg")

import pytest
import torch

SLOWEST = ("test_sweeps_execution", "test_book", "test_experiments", "test_verification", "test_notebooks")


def pytest_collection_modifyitems(items):
    """The slowest files first: at the end no worker is left alone with one of them."""
    items.sort(key=lambda item: item.path.stem not in SLOWEST)


@pytest.fixture
def results_folder(tmp_path, monkeypatch):
    """An empty results folder of the test's own."""
    monkeypatch.setenv("LIPNB_RESULTS", str(tmp_path))
    return tmp_path


@pytest.fixture
def said(capsys):
    """Exit code of a command's words, what it printed and what it said of errors."""

    def run(door, *words):
        try:
            code = door.main(list(words))
        except SystemExit as stop:
            code = stop.code
        out, error = capsys.readouterr()
        return code, out, error

    return run


@pytest.fixture(scope="session")
def minilm():
    """The embedded model, loaded once; no test changes it."""
    from lipscan import models

    return models.load("minilm")


@pytest.fixture(scope="module")
def apart():
    """Calls a function in a process that has the pretended device; what it raises is raised here."""
    from pretend_device import begin
    from torch.utils import backend_registration

    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("a backend in Python alone needs PyTorch 2.9")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=begin) as pool:
        yield lambda check, *arguments: pool.submit(check, *arguments).result()


@pytest.fixture(scope="module")
def browser():
    """A browser that is installed on this machine."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        reason = "no browser: install one, for example `apt-get install chromium`"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # containers run tests as root, which Chromium's sandbox refuses
        launched = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(autouse=True)
def global_seed_untouched():
    """No code of ours may read or move the global random state."""
    before = torch.get_rng_state()
    yield
    assert torch.equal(before, torch.get_rng_state()), "the global random state was moved"


@pytest.fixture(autouse=True)
def no_figure_left_open():
    """Pyplot warns from the 21st open figure on, and warnings fail: which test it would be depends on the worker."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")
