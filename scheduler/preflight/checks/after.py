"""What is put in order after a job: leftovers ended, scratch cleared, clocks restored.

Source: SPEC C6.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ...files.processes import Process, environment, kill, living
from ..check import Check, Finding, Stage, failed, passed, skipped
from ..context import Context

GONE_S, LOOK_S = 5.0, 0.02
OUT = "keep the node out of service until it is put right"


def put_in_order(context: Context) -> Iterator[Finding]:
    """End what the job left, remove its scratch folder, restore clocks, and tell what did not work."""
    yield _end_leftovers(context.chosen.attempt)
    if context.chosen.scratch:
        yield _clear(Path(context.chosen.scratch))
    reader = context.gpu_reader
    for gpu in context.chosen.gpus if reader is not None else ():
        told = None if reader is None else reader.holders(gpu)
        holders = [it for it in told or () if it.pid != os.getpid()]  # this process may have made products there
        if holders:
            pids = ", ".join(f"process {it.pid} with {it.bytes / 1e9:.2g} GB" for it in holders[:10])
            yield failed(f"gpu {gpu}", pids, "no process holds its memory", OUT)
        yield _restored(f"gpu {gpu}", None if reader is None else reader.reset_clocks(gpu))


def _end_leftovers(attempt: str) -> Finding:
    """Kill the processes of an attempt, and those only."""
    if not attempt:
        return skipped("no attempt is named, so that nothing is known to be left of it", "leftovers")
    until_s, ended = time.monotonic() + GONE_S, set[int]()
    while left := _left_of(attempt):
        if time.monotonic() > until_s:
            pids = ", ".join(str(process.pid) for process in left[:10])
            return failed("leftovers", f"processes {pids} live on", "none, after they were killed", OUT)
        for process in left:
            ended.add(process.pid)
            kill(process)
        time.sleep(LOOK_S)
    return passed("leftovers", got=f"{len(ended)} processes killed")


def _left_of(attempt: str) -> list[Process]:
    told = attempt.encode()
    return [
        process
        for process in living()
        if process.pid != os.getpid() and environment(process, b"LONGSHORE_ATTEMPT").get(b"LONGSHORE_ATTEMPT") == told
    ]


def _clear(folder: Path) -> Finding:
    """Remove a folder; links are removed, and what they point to stays. Nodes of one machine may do so at once."""
    if not folder.is_absolute() or len(folder.parts) < 3:
        return failed("scratch", str(folder), "an absolute path below another folder", "correct the settings")

    def pass_over_what_is_gone(_call: object, _path: str, error: tuple[type, BaseException, object]) -> None:
        if not isinstance(error[1], FileNotFoundError):
            raise error[1]

    try:
        if folder.is_symlink() or folder.is_file():
            folder.unlink(missing_ok=True)
        else:
            _open_up(folder)
            shutil.rmtree(folder, onerror=pass_over_what_is_gone)
    except OSError as error:
        return failed("scratch", f"{error.filename or folder}: {error.strerror}", "no such folder", OUT)
    return passed("scratch")


def _open_up(folder: Path) -> None:
    """Let what is in a folder be removed, where a job has taken its own folders the right to be written."""
    with suppress(OSError):
        folder.chmod(0o700)
    for inside, folders, _ in os.walk(folder):
        for name in folders:
            path = Path(inside, name)
            with suppress(OSError):  # it is gone, or another user's, which the removal will tell
                if not path.is_symlink() and path.stat().st_mode & 0o700 != 0o700:
                    path.chmod(0o700)


def _restored(device: str, done: bool | None) -> Finding:  # noqa: FBT001  # a third value says that it is not known
    if done is None:
        return skipped("clocks are left as they are, without the right to set them", device)
    return passed(device) if done else failed(device, "clocks that cannot be reset", "those by default", OUT)


# Scratch folders of a million small files take a minute to remove.
RESET = Check(
    "post.reset", 0, "leftovers ended, scratch cleared, clocks restored", 120.0, put_in_order, (), Stage.AFTER
)
