"""Machine and conditions of a benchmark, recorded without names of hosts or paths; timing and memory."""

import platform
import resource
import statistics
import sys
import time
from pathlib import Path

import torch

from lab import results
from lab.benchmarks import ours
from lipscan.cli.words import Parser, Unknown, count
from lipscan.recording import Unit

__all__ = ["FLAGS", "enter", "held", "make", "parser", "peak", "processor", "spread", "start", "timed"]

FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_tile", "asimd", "bf16", "sve")


def processor():
    """Vendor, instruction sets and threads, as plain values."""
    said = {}
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            said.setdefault(name.strip(), value.strip())
    except OSError:  # not Linux
        pass
    flags = (said.get("flags") or said.get("Features") or "").split()
    return {
        "architecture": platform.machine(),
        "vendor": said.get("vendor_id", "unknown"),
        "flags": [flag for flag in FLAGS if flag in flags],
        "torch_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def parser(description, examples):
    """Parser with the options that all scripts share: --quick, --threads, --again."""
    command = Parser(prog=_called(), description=description, epilog=examples)
    command.add_argument(
        "--quick", action="store_true", help="a trial with few and small inputs; the table says that it is one"
    )
    command.add_argument(
        "--threads",
        type=count,
        metavar="N",
        default=torch.get_num_threads(),
        help="threads of torch (default %(default)s)",
    )
    command.add_argument(
        "--again", action="store_true", help="forget the unfinished table of an earlier run instead of continuing it"
    )
    return command


def _called():
    return f"python -m lab bench {Path(sys.argv[0]).stem}"


def enter(main):
    """Run the entry point of a script; expected failures print one sentence and exit with code 1 or 2.

    Ctrl-C exits with code 130 and prints nothing: `lab bench`, which receives it too, prints the message.
    """
    try:
        code = main()
    except KeyboardInterrupt:
        code = 130
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        print(f"{_called()}: {error}", file=sys.stderr)
        code = 2 if isinstance(error, Unknown) else 1
    sys.exit(code)


def start(arguments):
    """Apply the shared options, and print a notice if the installed lipnb makes this run a trial."""
    torch.set_num_threads(arguments.threads)
    if missing := ours.left_out():
        print(f"this lipnb has no option {', '.join(missing)}: what needs it is measured without, as a trial")
    ours.warm_up()


def make(name, settings, arguments, units, unit, pool=None):
    """The table ``bench-NAME``, or ``bench-NAME-trial``, see `lab.results.make`.

    Parameters
    ----------
    name : str
        Name of the script.
    settings : dict
        Settings on which the rows depend; machine, modes and trial are added.
    arguments : Namespace
        Parsed by the result of `parser`.
    units : dict
        Key of each unit of work -> callable that returns its rows.
    unit : str
        Name of a unit in the progress bar.
    pool : concurrent.futures.Executor, optional
        Measures several units concurrently.

    Returns
    -------
    DataFrame
    """
    settings = {
        **settings,
        "trial": arguments.quick or bool(ours.left_out()),
        "left_out": ours.left_out(),
        "modes": ours.OURS,
        "processor": processor(),
    }
    table = f"bench-{name}-trial" if settings["trial"] else f"bench-{name}"  # a trial replaces no result
    if arguments.again:
        (results.folder() / f"{table}.partial.jsonl").unlink(missing_ok=True)
    work = [Unit(key, measure) for key, measure in units.items()]
    return results.make(table, settings, work, unit=unit, pool=pool)


def timed(run, repeats=3):
    """Run `repeats` times; returns the last answer, and the seconds: median, fastest, slowest."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        answer = run()
        seconds.append(time.perf_counter() - began)
    return answer, spread(seconds)


def spread(seconds):
    """Median, fastest and slowest of some seconds, as columns of a row."""
    return {"seconds": statistics.median(seconds), "fastest": min(seconds), "slowest": max(seconds)}


def held():
    """Megabytes of memory that this process holds; also resets `peak` if the system allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:  # not Linux: the peak counts from the start of the process
        pass
    return peak()


def peak():
    """Peak megabytes of memory of this process, since `held` was called or since it started."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(status.partition("VmHWM:")[2].split()[0]) / 2**10
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
