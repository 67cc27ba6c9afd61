"""A member that leaves a process behind which cannot be looked into, as the user of its host: HOW KIND LOG.

HOW the process hangs on the member: by its `session`, as an `orphan` in a session of its own, or by a `parent` that is
known. KIND says why it cannot be looked into: it has `closed` itself, or is of another user (`other`, for root alone).
Printed are its pid, and then at some moments whether it lives and whether nothing is reported to be left.
"""

import ctypes
import json
import os
import sys
import time
from pathlib import Path

from longshore.scheduler.backends.local.ring_host import MemberTraces, SparedProcesses, kill_members

NAME, DUMPABLE, SUBREAPER, NOBODY = "ls-job-1", 4, 36, 65534
libc = ctypes.CDLL(None)


def become_user() -> None:
    """Be no longer root, and as a process that was started so."""
    if os.getuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    libc.prctl(DUMPABLE, 1, 0, 0, 0)


def hide(how: str, kind: str, pipe: int) -> None:
    """Be the process that is left behind."""
    if how != "session":
        os.setsid()
    if kind == "closed":
        become_user()
        libc.prctl(DUMPABLE, 0, 0, 0, 0)
    os.write(pipe, b"%d" % os.getpid())
    quiet = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):  # or the reader of what this program prints would wait for the end of this process
        os.dup2(quiet, descriptor)
    time.sleep(1000)


def member(how: str, kind: str, pipe: int) -> None:
    """Be the member: it ends at once, or a known process takes its place."""
    os.setsid()
    if os.fork() == 0:
        hide(how, kind, pipe)
    if how == "parent":
        marks = {"LONGSHORE_ATTEMPT": NAME, "LONGSHORE_RING_MEMBER": "1"}
        become_user()
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.execve("/bin/sleep", ["sleep", "1000"], marks)
    os._exit(0)


def main(how: str, kind: str, log: str) -> None:
    """Check the process as its host, again and again."""
    libc.prctl(SUBREAPER, 1, 0, 0, 0)
    ready, pipe = os.pipe()
    leader = os.fork()
    if leader == 0:
        member(how, kind, pipe)
    left = int(os.read(ready, 20))
    if how != "parent":
        os.waitpid(leader, 0)
    time.sleep(0.2)
    become_user()
    traces = MemberTraces(NAME, [1], [leader] if how == "session" else [], Path(log))
    found = []
    for _ in range(10):
        is_left = kill_members([traces], SparedProcesses(-1, os.getpid(), [], []))
        time.sleep(0.1)
        lives = True
        while lives:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                lives = False
            else:
                if pid == 0:
                    break
        found.append((lives, is_left[0]))
    sys.stdout.write(json.dumps([left, found]))


main(*sys.argv[1:])
