"""What cells do with a parameter: a value that the notebook would not get is refused before any run."""

import gc
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import nbformat
import pytest
from sweeping import written

from lipscan import sweeps
from lipscan.sweeps import cells, running

HEAD = '# %% tags=["parameters"]\nn, slope, who, quick = 1, 2.0, "a", False\n'


LOST = {  # what the third code cell does before anything reads `n`, and how it is shown
    "n = 3": "n = 3", "n: int = 3": "n: int = 3", "m, (n, *k) = 1, (2, 3)": "m, (n, *k) = ", "m = n = 3": "m = n = 3",
    "for n in range(3):\n    m = n": "for n in", "for m in range(3):\n    n = m": "for m in", "del n": "del n",
    "with open('x') as n:\n    pass": "with open", "import numpy as n": "import numpy as n", "(n := 3)": "(n := 3)",
    "from math import e as n": "from math", "def n():\n    pass": "def n()", "class n:\n    pass": "class n",
    "if m:\n    n = 2\nelse:\n    n = 3": "if m", "try:\n    n = m + 1\nexcept KeyError:\n    n = 3": "try",
    "[n for n in range(3)]\nf = lambda n: n + 1\nn = 3": "n = 3", "%%time\nn = 3": "n = 3", "await m\nn = 3": "n = 3",
}  # fmt: skip
REFUSED = [
    (HEAD + "# %%\nx = n\n" + HEAD, "2 cells are tagged 'parameters', code cell 1 and code cell 3"),
    ('# %% [markdown] tags=["parameters"]\n# n\n\n' + HEAD, "holds no code"),
    (HEAD + '# %% tags=["injected-parameters"]\nn = 5', "code cell 2 is tagged 'injected-parameters'"),
    ("# %%\nn = 2\nx = 10 * n\n" + HEAD, "code cell 1 reads 'n' (`x = 10 * n`)"),
    ("# %%\nx = [n * i for i in range(3)]\n" + HEAD, "code cell 1 reads 'n'"),
    (HEAD + "twice = 2 * n", "computes 'twice' from the default of 'n' (`twice = 2 * n`)"),
    (HEAD + "if n:\n    m = 3", "computes 'm' from the default of 'n'"),
    (HEAD + "many = [n * i for i in range(3)]", "computes 'many' from the default of 'n'"),
]
REFUSED += [
    (f"{HEAD}# %%\nm = 1\n# %% [markdown]\n# prose\n# %%\n{line}\nprint(n)", f"code cell 3 sets 'n' (`{said}")
    for line, said in LOST.items()
]


@pytest.mark.parametrize(("text", "sentence"), REFUSED)
def test_a_value_that_the_notebook_would_not_get_is_refused_before_any_run(place, text, sentence):
    """Of two tagged cells the second overrode what was injected after the first, and the table said otherwise."""
    (place / "odd.py").write_text(text)
    with pytest.raises(ValueError, match=f"^odd.py: .*{re.escape(sentence)}"):
        sweeps.run("odd.py", parameters={"n": 5})
    assert not (place / "sweeps").exists()


USED = [  # lines that use `n`, or may, before it is set
    "n += 1", "n = 2 * n", "m, n = n, 3", "def f():\n    return n\nf()", "class f:\n    a = n", "f = lambda: n",
    "[n for i in range(3)]", "[i for i in range(n)]", "print(f'{n}')", "if m:\n    n = 2", "while m:\n    n = 2",
    "try:\n    n = 2\nexcept KeyError:\n    pass", "def f():\n    global n\n    n = 3\nf()", "eval('n + 1')",
    "globals()['n']", "!echo $n", "%%time\nprint(n)", "%timeit n + 1", "%run -i other.py", "%%bash\nn=3", "x[n] = 3",
    "def f(a=n):\n    pass", "match m:\n    case 3:\n        n = 3",
]  # fmt: skip
FINE = [f"{HEAD}# %%\n{line}\nn = 3" for line in USED] + [
    HEAD + "# %%\nn: int\nprint(n)\nn = 3",
    HEAD + "# %%\ndef f(n):\n    n = 3\n    return n",
    HEAD + "# %%\nx = {}\nx['n'] = slope = 3",  # no value is given to this one
    "# %%\nfor n in range(3):\n    print(n)\n" + HEAD,  # another n
    "# %%\nfrom math import *\nprint(n)\n" + HEAD,
    "# %%\ndef f():\n    return n\n" + HEAD,
    "# %%\nprint('n')\n" + HEAD,
    HEAD + "m = 2 * slope\nassert n > 0\nprint(n)\ndef f():\n    return n\nn = n + 1",
    HEAD.replace("n, slope", "%matplotlib inline\nn, slope"),
]


def test_a_value_that_is_used_or_may_be_is_not_refused(place):
    for text in FINE:
        (place / "odd.py").write_text(text)
        assert len(running.plan("odd.py", parameters={"n": 5}).todo) == 1, text


def test_a_notebook_that_papermill_has_run_is_refused_with_any_parameters(place):
    """Without some, the values of that run counted; with some, the others of it went."""
    cells = [nbformat.v4.new_code_cell(text) for text in ("n = 1", "n = 5", "print(n)")]
    cells[0].metadata.tags, cells[1].metadata.tags = ["parameters"], ["injected-parameters"]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), "ran.ipynb")
    for given in ({}, {"n": 7}):
        with pytest.raises(ValueError, match="code cell 2 is tagged 'injected-parameters'"):
            sweeps.run("ran.ipynb", parameters=given)


def test_a_text_for_what_is_true_or_false_is_refused(place):
    """Every such text counts as true in Python."""
    (place / "small.py").write_text(HEAD)
    for value in ("n", "No", "off", "y", "true", "F"):
        with pytest.raises(ValueError, match=f"'quick' is true or false there, and the text '{value}'"):
            running.plan(written(f"grid: {{quick: [true, '{value}'], who: ['{value}']}}"))
    assert len(running.plan(written("grid: {quick: [true, fast], who: ['no']}")).todo) == 2


def test_cells_count_as_in_the_notebook_of_their_author():
    new = [nbformat.v4.new_markdown_cell("x"), *(nbformat.v4.new_code_cell("x") for _ in range(4))]
    new[2].metadata.tags = ["injected-parameters"]
    said = [cells.shown(new, n) for n in (1, 2, 3, 4)]
    assert said == ["code cell 1", "the parameters", "code cell 2", "code cell 3"]


def test_cells_are_read_while_another_thread_reads_code():
    """CPython 3.11 raises SystemError where two threads build trees: a sweep on Dask does, whose threads log errors."""
    book = nbformat.v4.new_notebook()
    long = "\n".join(f"x{i} = f(a, b[{i}], [1, 2, (3, {{4: 5}})])" for i in range(60))
    book.cells = [nbformat.v4.new_code_cell(text) for text in ("a = 1", long)]
    book.cells[0].metadata["tags"] = ["parameters"]

    class Left:
        """Garbage whose end takes a while: the other thread's turn, in the midst of a tree."""

        def __init__(self):
            self.itself = self

        def __del__(self):
            sum(range(50))

    def read(_):
        Left()
        cells.refuse(book, ["a"])

    before, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(read, range(40)))
    finally:
        sys.setswitchinterval(before)
        gc.set_threshold(*threshold)
