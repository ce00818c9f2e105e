"""What the process shares: one thread at a time, taken again, lent and given back, also after a fork."""

import concurrent.futures
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from lipnb.threads import Shared, aside, turn

PATIENCE = 120  # seconds after which a thread is taken to wait for ever


def test_settings_that_cannot_be_made_leave_nobody_inside():
    def refused():
        raise ZeroDivisionError

    shared = Shared(refused)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), shared():
            pass


def test_a_turn_is_taken_again_lent_and_given_back():

    def other():
        with turn():
            return 3

    with ThreadPoolExecutor(1) as pool:
        with turn(), turn():
            assert aside(lambda: aside(other)) == 3
            with pytest.raises(ZeroDivisionError):
                aside(lambda: 1 / 0)
            waits = pool.submit(other)
            with pytest.raises(concurrent.futures.TimeoutError):
                waits.result(timeout=0.2)
        assert waits.result(timeout=PATIENCE) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_process_forked_while_another_thread_has_its_turn_has_one_too():
    script = """
import os, sys, threading, warnings
from lipnb.threads import turn
warnings.simplefilter("ignore")
begun, leave = threading.Event(), threading.Event()
def other():
    with turn():
        begun.set(); leave.wait()
threading.Thread(target=other).start(); begun.wait()
child = os.fork()
if child == 0:
    with turn():
        os._exit(0)
print(os.waitpid(child, 0)[1]); leave.set()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "0\n"
