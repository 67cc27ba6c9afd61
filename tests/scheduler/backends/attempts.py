"""Real attempts for the tests of backends, and their end."""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

from longshore.cluster.files.processes import Identity, boot_id, find, is_alive, kill
from longshore.cluster.model.placement import Placement
from longshore.scheduler.backends.local.backend import LocalBackend
from longshore.scheduler.backends.protocol import Attempt, Backend
from longshore.scheduler.model.gpu_index import Layout
from longshore.testing.backends import (
    NODES,
    ONE_GPU,
    THREE_GPUS,
    command_attempt,
    shell_attempt,
    until,
    wait_for_end,
    wait_until_running,
)

__all__ = [
    "NODES",
    "ONE_GPU",
    "THREE_GPUS",
    "command_attempt",
    "shell_attempt",
    "until",
    "wait_for_end",
    "wait_until_running",
]


def python(code: str) -> Attempt:
    """Return an attempt that runs a Python program."""
    return command_attempt((sys.executable, "-I", "-S", "-c", code))


def random_placements(rng: np.random.Generator, layout: Layout) -> list[Placement]:
    """Return disjoint placements of 1 to 8 GPUs each that fill the cluster."""
    gpus, placements = rng.permutation(sum(layout.nodes.values())).tolist(), []
    while gpus:
        count = int(rng.integers(1, 9))
        placements.append(layout.placement(gpus[:count]))
        gpus = gpus[count:]
    return placements


def output_of(backend: Backend, attempt: Attempt, ranks: int) -> list[str]:
    """Return what each rank printed."""
    return [backend.logs(attempt.name, rank, 0, 1000)[0].decode().strip() for rank in range(ranks)]


def own_folder(folder: Path, attempt: Attempt) -> Path:
    """Return the folder of an attempt."""
    return folder / "attempts" / attempt.name


def number_in(path: Path) -> int:
    """Return the pid that a job has written to a file, once it has."""
    return int(until(lambda: path.read_text().strip() if path.exists() else ""))


def lives(pid: int) -> bool:
    """Say whether a process lives."""
    process = find(pid)
    return process is not None and process.alive


def supervisor_of(folder: Path, attempt: Attempt, part: str = ".") -> Identity:
    """Return the supervisor of an attempt that has started, or of one node's part of it."""
    path = own_folder(folder, attempt) / part / "started.json"
    until(path.exists)
    marker = json.loads(path.read_text())
    return Identity(marker["pid"], marker["start_ticks"], marker["boot"])


def kill_supervisor(folder: Path, attempt: Attempt, part: str = ".") -> None:
    """Kill the supervisor of an attempt, or of one node's part of it, and see it gone."""
    supervisor = supervisor_of(folder, attempt, part)
    os.kill(supervisor.pid, signal.SIGKILL)
    until(lambda: not is_alive(supervisor, boot_id()))


def kill_guard(folder: Path, attempt: Attempt, part: str = ".") -> None:
    """Kill the guard of a supervisor, and see it gone."""
    marker = json.loads((own_folder(folder, attempt) / part / "started.json").read_text())
    pid, start_ticks = marker["guard"]
    guard = Identity(pid, start_ticks, marker["boot"])
    os.kill(guard.pid, signal.SIGKILL)
    until(lambda: not is_alive(guard, boot_id()))


def age_marker(folder: Path, attempt: Attempt) -> None:
    """Let as much time have passed since a killed supervisor showed that it lives as shows that it does not."""
    os.utime(own_folder(folder, attempt) / "part-0" / "started.json", (0, 0))


def end_all(folder: Path) -> None:
    """End all attempts under a folder, and see their processes gone."""
    backend = LocalBackend(folder, NODES)
    for path in (folder / "attempts").iterdir():
        if (path / "spec.json").exists() and not (path / "exit.json").exists():
            backend.cancel(path.name, "the test is over")
            _see_started_or_ended(path)
        if (path / "started.json").exists():
            _kill_all_of(backend, path)


def _see_started_or_ended(path: Path) -> None:
    until(lambda: (path / "started.json").exists() or (path / "exit.json").exists())


def _kill_all_of(backend: LocalBackend, path: Path) -> None:
    marker = json.loads((path / "started.json").read_text())
    supervisor = Identity(marker["pid"], marker["start_ticks"], marker["boot"])
    found = find(supervisor.pid)
    if found is not None and is_alive(supervisor, boot_id()):
        kill(found)
        until(lambda: not is_alive(supervisor, boot_id()))
    if (path / "exit.json").is_file():
        (path / "exit.json").unlink()  # It may be a torn one.
    until(lambda: backend.is_proven_gone(path.name))
