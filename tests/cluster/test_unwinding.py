"""Ctrl-C and SIGTERM end a program wherever they come, without a traceback of what they leave half done."""

import os
import signal
import sys

import pytest

from longshore.cluster.files.signals import unwound_by_signals
from tests.support import processes

PROGRAM = """
import gc, os, signal, sys, time, weakref
from longshore.cluster.files.signals import unwound_by_signals

ask = lambda *_: (os.kill(os.getpid(), int(sys.argv[1])), time.sleep(0.01))

class Asks:
    __del__ = ask

class Fails:
    def __del__(self):
        raise ValueError

class Shown:  # a file
    write = ask

    def flush(self):
        time.sleep(0.15)  # a signal that was dropped is sent again meanwhile

class AsksTwice:
    def __del__(self):
        numbers = {signal.SIGINT, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        for number in numbers:
            os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)

class Plain:
    pass

class HalfMade:
    def __init__(self):
        ask()
        self.made = True

    def __del__(self):
        assert self.made

stays_s = 60.0
try:
    with unwound_by_signals():
        try:
            {what}
            time.sleep(stays_s)
        finally:
            time.sleep(min(stays_s, 0.2))  # which one more signal would cut
            print("kept", flush=True)
except KeyboardInterrupt:
    sys.exit(130)
"""
PLACES = {
    "anywhere": "ask()",
    "deleted": "Asks()",
    "deleted, often": "[Asks() for _ in range(3)]",
    "deleted, and once more by a signal": "Asks(); ask()",
    "deleted as the block ends": "Asks(); stays_s = 0.0",
    "deleted before another error": "Asks(); stays_s = 0.0; raise ValueError",
    "as garbage": "one, other = Asks(), Plain(); one.other, other.one = other, one; del one, other; gc.collect()",
    "as a weak reference dies": "it = Plain(); refers = weakref.ref(it, ask); del it",
    "as a failure is shown": "sys.stderr = Shown(); Fails()",
    "half made": "HalfMade()",
    "half made, deleted later": "kept = [HalfMade.__new__(HalfMade)]; ask()",
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("place", PLACES)
def test_a_wish_to_end_is_never_lost_and_leaves_no_traceback(place: str, number: signal.Signals) -> None:
    line = [sys.executable, "-c", PROGRAM.replace("{what}", PLACES[place]), str(number.value)]
    done = processes.run(line, capture_output=True, check=False, timeout_s=30)
    assert (done.returncode, done.stderr, done.stdout) == (128 + number, "", "kept\n")


@pytest.mark.parametrize("stays", ["", "stays_s = 0.0", "stays_s = 0.0; raise ValueError"])
def test_of_two_wishes_in_one_moment_one_ends_the_program(stays: str) -> None:
    line = [sys.executable, "-c", PROGRAM.replace("{what}", f"AsksTwice(); {stays}"), "15"]
    done = processes.run(line, capture_output=True, check=False, timeout_s=30)
    assert (done.returncode in (130, 143), done.stderr, done.stdout) == (True, "", "kept\n")


@pytest.mark.parametrize("ignored", [(), (signal.SIGINT,), (signal.SIGTERM,), (signal.SIGINT, signal.SIGTERM)])
def test_what_is_ignored_stays_so_and_all_is_as_before_afterwards(ignored: tuple[signal.Signals, ...]) -> None:
    numbers, hook = (signal.SIGINT, signal.SIGTERM), sys.unraisablehook
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    try:
        found = [signal.getsignal(number) for number in numbers]
        with unwound_by_signals():
            for number in ignored:
                os.kill(os.getpid(), number)
            changed = {number for number, was in zip(numbers, found, strict=True) if signal.getsignal(number) != was}
            assert changed == set(numbers) - set(ignored)
        assert [signal.getsignal(number) for number in numbers] == found
        assert sys.unraisablehook is hook
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_what_fails_as_it_is_deleted_is_told_as_ever_while_nobody_wished_to_end() -> None:
    code = PROGRAM.replace("{what}", "HalfMade.__new__(HalfMade); sys.exit(3)")
    done = processes.run([sys.executable, "-c", code, "15"], capture_output=True, check=False, timeout_s=30)
    assert done.returncode == 3
    assert "AttributeError" in done.stderr
