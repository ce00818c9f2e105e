"""A package of an extra that is not installed is named with its extra; what is missing of our own is an error."""

import pytest

from lipnb.extras import extra


def test_the_extra_of_a_missing_package_is_named():
    with pytest.raises(ModuleNotFoundError, match=r"^nobody is not installed: pip install '.\[scan\]' in a clone"):
        with extra("scan"):
            import nobody.inside  # noqa: F401
    for broken in ("lipnb.nothing", "lipscan.nothing"):
        with pytest.raises(ModuleNotFoundError, match=f"No module named '{broken}'"), extra("scan"):
            __import__(broken)
