"""The proof, made on its node, that nothing of an attempt is left where no exit marker was written."""

import json
import time
from pathlib import Path

from ....cluster.files.durable import is_there, make_folder, open_folder, read_whole, write_first
from ....cluster.files.processes import Identity, boot_id, find, is_alive, kill
from ..local.leftovers import Traces, kill_all
from ..local.supervision import own_marker

SWITCHED_OFF = "the node is switched off"  # a proof


_END_WITHIN_S = 10.0  # for a supervisor that is to end


_SWEEP_POLL_S = 0.1


_MAX_MARKER_BYTES = 1 << 20


def sweep(path: str, part: str) -> int:
    """End what is left on this node of an attempt that may not run any more, and write the proof.

    Args:
        path: The attempt's folder.
        part: Number of this node in it.

    Returns:
        0.

    Raises:
        OSError: If that is not known or written down.
        ValueError: If a marker makes no sense.
    """
    attempt = Path(path).name
    make_folder(open_folder(path), f"part-{part}")
    own = open_folder(f"{path}/part-{part}")
    if is_there(own, "gone.json"):
        return 0
    # The first writer of this marker has the part: a late supervisor finds it and ends.
    if not write_first(own, "started.json", own_marker(attempt)):
        _end(own, attempt)
    if not is_there(own, "exit.json"):
        write_gone(own, attempt, "no process of it is left on the node")
    return 0


def sweep_unless_alive(path: str, part: str) -> int:
    """Do what `sweep` does, unless a supervisor of the attempt lives here.

    Args:
        path: The attempt's folder.
        part: Number of this node in it.

    Returns:
        0.

    Raises:
        OSError: If that is not known or written down.
        ValueError: If a marker makes no sense.
    """
    folder = open_folder(path)
    make_folder(folder, f"part-{part}")
    own = open_folder(f"part-{part}", inside=folder)
    if is_there(own, "started.json") and is_alive(_supervisor_of(own), boot_id()):
        return 0
    return sweep(path, part)


def write_gone(own: int, attempt: str, proof: str) -> None:
    """Write the proof that nothing is left of an attempt's part.

    Args:
        own: Descriptor of the part's folder.
        attempt: The attempt's name.
        proof: How that is known.

    Raises:
        OSError: If it cannot be written.
    """
    write_first(own, "gone.json", json.dumps({"attempt": attempt, "proof": proof}).encode())


def _supervisor_of(own: int) -> Identity:
    started = json.loads(read_whole(own, "started.json", _MAX_MARKER_BYTES))
    return Identity(started["pid"], started["start_ticks"], started["boot"])


def _end(own: int, attempt: str) -> None:
    started, boot, supervisor = (
        json.loads(read_whole(own, "started.json", _MAX_MARKER_BYTES)),
        boot_id(),
        _supervisor_of(own),
    )
    until_s = time.monotonic() + _END_WITHIN_S
    while is_alive(supervisor, boot) and time.monotonic() < until_s:
        time.sleep(_SWEEP_POLL_S)
    while is_alive(supervisor, boot):
        if (process := find(supervisor.pid)) is not None:
            kill(process)
        time.sleep(_SWEEP_POLL_S)
    # Its guard adopts what it leaves, and ends when nothing is left.
    guard_pid, guard_start_ticks = started.get("guard", (0, 0))
    while is_alive(Identity(guard_pid, guard_start_ticks, started["boot"]), boot):
        time.sleep(_SWEEP_POLL_S)
    groups: dict[int, int] = {}
    # After a restart of the node the numbers of groups and sessions are other processes'.
    if started["boot"] == boot and is_there(own, "ranks.json"):
        groups = dict(json.loads(read_whole(own, "ranks.json", _MAX_MARKER_BYTES))["ranks"])
    while not kill_all(Traces(attempt, own, started["session"], groups), _END_WITHIN_S):
        pass
