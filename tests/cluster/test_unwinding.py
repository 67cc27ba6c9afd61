"""Ctrl-C and SIGTERM end a program wherever they come, and say no traceback of what they leave half done."""

import os
import signal
import sys

import pytest

from longshore.cluster.files.unwinding import unwound_by_signals
from tests.support import processes

PROGRAM = """
import gc, os, signal, sys, time, weakref
from longshore.cluster.files.unwinding import unwound_by_signals

ask = lambda *_: (os.kill(os.getpid(), int(sys.argv[1])), time.sleep(0.01))

class Asks:
    __del__ = ask

class Plain:
    pass

class HalfMade:
    def __init__(self):
        ask()
        self.made = True

    def __del__(self):
        assert self.made

try:
    with unwound_by_signals():
        {what}
        time.sleep(60)
except KeyboardInterrupt:
    print("kept", flush=True)
    sys.exit(130)
finally:
    print("kept", flush=True)
"""
PLACES = {
    "anywhere": "ask()",
    "deleted": "Asks()",
    "deleted, often": "[Asks() for _ in range(3)]",
    "as garbage": "one, other = Asks(), Plain(); one.other, other.one = other, one; del one, other; gc.collect()",
    "as a weak reference dies": "it = Plain(); refers = weakref.ref(it, ask); del it",
    "half made": "HalfMade()",
    "half made, deleted later": "kept = [HalfMade.__new__(HalfMade)]; ask()",
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("place", PLACES)
def test_a_wish_to_end_is_never_lost_and_leaves_no_traceback(place: str, number: signal.Signals) -> None:
    line = [sys.executable, "-c", PROGRAM.replace("{what}", PLACES[place]), str(number.value)]
    done = processes.run(line, capture_output=True, check=False, timeout_s=30)
    assert (done.returncode, done.stderr) == (128 + number, "")
    assert "kept" in done.stdout


def test_ctrl_c_stays_ignored_where_it_is_and_all_is_as_before_afterwards() -> None:
    of_signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hook = sys.unraisablehook
    try:
        with unwound_by_signals():
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        for number, handler in of_signals.items():
            signal.signal(number, handler)
    assert sys.unraisablehook is hook


def test_what_fails_as_it_is_deleted_is_told_as_ever_while_nobody_wished_to_end() -> None:
    code = PROGRAM.replace("{what}", "HalfMade.__new__(HalfMade); sys.exit(3)")
    done = processes.run([sys.executable, "-c", code, "15"], capture_output=True, check=False, timeout_s=30)
    assert done.returncode == 3
    assert "AttributeError" in done.stderr
