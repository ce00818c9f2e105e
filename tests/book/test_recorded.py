"""nbval compares a committed page with the run that was recorded, and runs it itself where that run is another's."""

import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from lab.pages import sources
from lab.pages.recorded import rounded

ROOT = Path(__file__).parents[2]
PAGE = """\
# %% tags=["nbval-check-output"]
from pathlib import Path

Path("ran").touch()
print(2 * 2)
"""


@pytest.fixture
def page(tmp_path):
    """The source of a committed page whose last run is there, without its having run."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / sources.EXECUTED).mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "constraints.txt").write_text("")
    source = tmp_path / "notebooks" / "00_page.py"
    source.write_text(PAGE)
    notebook = sources.convert(tmp_path, source)
    notebook.cells[0].update(execution_count=1, outputs=[nbformat.v4.new_output("stream", name="stdout", text="4\n")])
    for folder in ("notebooks", sources.EXECUTED):
        nbformat.write(notebook, tmp_path / folder / "00_page.ipynb")
    stamp = tmp_path / sources.EXECUTED / "00_page.sha256"
    stamp.write_text(sources.fingerprint(tmp_path, source))
    return source


def compared(page):
    """Exit code and words of nbval, and whether the page ran."""
    command = [sys.executable, "-m", "pytest", "-p", "lab.pages.recorded", "--nbval-lax", "--nbval-current-env"]
    command += ["-p", "no:cacheprovider", "--rootdir", str(page.parent), str(page.with_suffix(".ipynb"))]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return run.returncode, run.stdout, (page.parent / "ran").exists()


def edit(page, old, new):
    """Change the committed pair by hand."""
    pair = page.with_suffix(".ipynb")
    assert old in pair.read_text()
    pair.write_text(pair.read_text().replace(old, new))


def test_a_recorded_page_is_compared_and_not_run(page):
    code, said, ran = compared(page)
    assert (code, ran) == (0, False) and "1 of 1 pages were run already" in said
    edit(page, '"4\\n"', '"5\\n"')
    code, said, ran = compared(page)
    assert (code, ran) == (1, False) and "Cell outputs differ" in said


@pytest.mark.parametrize("runs", [True, False])
def test_numbers_in_full_are_compared_to_six_digits(page, runs):
    """The last digits differ between processors, whether the run is a recorded one or nbval's."""
    text = PAGE.replace("2 * 2", "0.5**0.5, 1 / 10000, '.'.join(['3', '11', '15'])")
    page.write_text(text)
    notebook = nbformat.read(page.with_suffix(".ipynb"), as_version=4)
    notebook.cells[0].source = text.partition("\n")[2].rstrip()
    shown = "0.7071067811865476 0.0001 3.11.15\n"
    notebook.cells[0].outputs[0].text = shown
    folder = page.parents[1]
    for path in (page.with_suffix(".ipynb"), folder / sources.EXECUTED / "00_page.ipynb"):
        nbformat.write(notebook, path)
    if not runs:
        (folder / sources.EXECUTED / "00_page.sha256").write_text(sources.fingerprint(folder, page))
    edit(page, "0.7071067811865476", "0.7071067811865391")
    code, said, ran = compared(page)
    assert (code, ran) == (0, runs), said
    for old, new in [("0.7071067811865391", "0.7071077811865391"), ("0.0001 ", "0.0001001 "), ("3.11.15", "3.11.14")]:
        edit(page, old, new)
        code, said, ran = compared(page)
        assert (code, ran) == (1, runs) and "Cell outputs differ" in said
        edit(page, new, old)


def test_what_a_number_in_full_is():
    text = "x=-2.836440280984081e-10, 0.000123456789012345 and np.float64(1234567.89012)"
    assert rounded(text) == "x=-2.83644e-10, 0.000123457 and np.float64(1.23457e+06)"
    for kept in ("0.12345678901", "1.2.345678901234567", "v1.234567890123", "12345678901234", 7, None):
        assert rounded(kept) == kept


def test_another_source_is_run(page):
    page.write_text(PAGE + "# later\n")
    code, said, ran = compared(page)
    assert (code, ran) == (0, True) and "0 of 1 pages were run already" in said


def test_a_pair_that_was_edited_is_run(page):
    edit(page, "print(2 * 2)", "print(2 / 0)")
    code, said, ran = compared(page)
    assert (code, ran) == (1, True) and "ZeroDivisionError" in said
