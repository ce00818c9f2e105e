"""The browser in which the tests open the book."""

import os
import shutil

import pytest


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
