"""What runs on the nodes of an attempt: its leader claims the attempt, and one supervisor a node runs the ranks there.

Standard library only. Everything is in the attempt's folder, which all nodes and the scheduler share:

    spec.json        what is to be run
    claim.json       which Slurm job runs it, or that none may; the first who writes it wins, so it starts once
    cancel.json      the wish that it stops
    stop.json        why all its ranks are stopped; the first reason counts
    meet.json        the port where the ranks meet
    slurm.log        what Slurm and the supervisors have to say
    part-N/          of its N-th node: markers and logs as of the local backend's supervisor, and
    part-N/gone.json the proof that nothing is left there, where nobody wrote how it ended
"""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from ..local.durable import is_there, make_folder, open_folder, read_whole, write_first
from ..local.gang import free_port
from ..local.spec import Part, Spec, decode
from ..local.supervision import SPEC_BYTES, own_marker, prepare, run_ranks, write_exit_patiently
from .python import python_line

STARTED_BEFORE = 76  # exit code of a start that is one too many
CANCELLED = "cancelled"
STOPPED = "stopped by Slurm"
MISPLACED = "misplaced: "
TIME_LIMIT = "time limit"

_BEAT_S = 2.0  # between two signs of life
_MEET_WITHIN_S = 300.0  # the nodes of a job start together
_LOOK_AGAIN_S = 0.1
_MOST_BYTES = 1 << 16


def lead(path: str, address: str, srun: str) -> int:
    """Claim an attempt for this Slurm job and run it; another job, or this one started again, does nothing.

    Args:
        path: The attempt's folder.
        address: Of its first node, for its ranks on others.
        srun: Path of that program.

    Returns:
        Exit code of the Slurm job: 0 if all ranks ended well.

    Raises:
        OSError: If the folder cannot be used.
    """
    folder = open_folder(path)
    spec = decode(read_whole(folder, "spec.json", SPEC_BYTES))
    nodes, token = nodes_of(spec), os.urandom(8).hex()
    claim = {
        "attempt": spec.attempt, "job": int(os.environ["SLURM_JOB_ID"]), "parts": len(nodes), "ranks": len(spec.ranks),
        "token": token, "address": address if len(nodes) > 1 else "127.0.0.1", "revoked": "",
    }  # fmt: skip
    if not write_first(folder, "claim.json", json.dumps(claim).encode()):
        return STARTED_BEFORE
    if len(nodes) == 1:
        return run_part(path, token)
    signal.signal(signal.SIGTERM, lambda *_: None)  # The supervisors get it too, and end what srun waits for.
    code = subprocess.run(srun_line(srun, len(nodes), path, token), check=False).returncode
    return code or int(not all(_ended_well(path, part) for part in range(len(nodes))))


def srun_line(srun: str, nodes: int, path: str, token: str) -> list[str]:
    """Return the command that starts a supervisor on each node of this Slurm job."""
    het = os.environ.get("SLURM_HET_SIZE")
    where = [f"--het-group=0-{nodes - 1}"] if het else [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    # A supervisor fails only without a record of how its ranks ended: then the others must end too.
    how = ["--mpi=none", "--cpu-bind=none", "--input=none", "--kill-on-bad-exit=1", "--wait=0"]
    return [srun, *where, *how, *python_line("node", "run_part", path, token)]


def run_part(path: str, token: str) -> int:
    """Run the ranks of an attempt on this node.

    Args:
        path: The attempt's folder.
        token: Of the claim that this is done for.

    Returns:
        0 if all of them ended well; on one of several nodes 0 once their end is written down.

    Raises:
        OSError: If the folder cannot be used.
        ValueError: If the attempt has nothing to run on this node.
    """
    folder = open_folder(path)
    claim = json.loads(read_whole(folder, "claim.json", _MOST_BYTES))
    spec = decode(read_whole(folder, "spec.json", SPEC_BYTES))
    number = nodes_of(spec).index(os.environ["SLURMD_NODENAME"])
    make_folder(folder, f"part-{number}")
    part_path = f"{path}/part-{number}"
    own = open_folder(part_path)
    prepare()
    if claim["token"] != token or not write_first(own, "started.json", own_marker(spec.attempt)):
        return STARTED_BEFORE
    ended_well = _supervise(spec, number, claim["address"], SharedWishes(folder, own, spec.attempt), own, part_path)
    return 0 if claim["parts"] > 1 else int(not ended_well)


def nodes_of(spec: Spec) -> list[str]:
    """Return the nodes of an attempt, in the order of its ranks."""
    return list(dict.fromkeys(rank.node for rank in spec.ranks))


class SharedWishes:
    """What the scheduler and the supervisors of other nodes want, as the attempt's folder tells.

    A file system that does not answer for a while is no reason to stop anything.

    Args:
        folder: Descriptor of the attempt's folder.
        own: Descriptor of this node's part of it.
        attempt: The attempt's name.
    """

    of_term = STOPPED

    def __init__(self, folder: int, own: int, attempt: str) -> None:
        self.folder, self._own, self._attempt = folder, own, attempt
        self._beat_at_s = 0.0

    def asked(self) -> str:
        """Return why the ranks are to be stopped, "" if they are not; and show that this supervisor lives."""
        with suppress(OSError):
            if time.monotonic() >= self._beat_at_s:
                self._beat_at_s = time.monotonic() + _BEAT_S
                os.utime("started.json", dir_fd=self._own)
            if is_there(self.folder, "stop.json"):
                return self._told()
            if is_there(self.folder, "cancel.json"):
                return CANCELLED
        return ""

    def stopped(self, reason: str) -> str:
        """Let all nodes stop, and return the reason that was the first."""
        with suppress(OSError):
            write_first(
                self.folder, "stop.json", json.dumps({"attempt": self._attempt, "reason": reason}).encode()
            )  # fmt: skip
            return self._told()
        return reason

    def _told(self) -> str:
        return str(json.loads(read_whole(self.folder, "stop.json", _MOST_BYTES))["reason"])


def _supervise(spec: Spec, number: int, address: str, wishes: SharedWishes, own: int, path: str) -> bool:
    """Run this node's ranks unless they must not start, and return whether all of them ended well."""
    node = os.environ["SLURMD_NODENAME"]
    ranks = {rank: place.gpu for rank, place in enumerate(spec.ranks) if place.node == node}
    reason, visible = wishes.asked(), visible_devices(list(ranks.values()))
    if not reason and visible is None:
        reason = wishes.stopped(f"{MISPLACED}{node} gives GPUs {_granted()}, not {list(ranks.values())}")
    port = None if reason else _meet(wishes, is_first=number == 0)
    if port is None or visible is None:
        write_exit_patiently(own, spec.attempt, reason or wishes.asked(), 0.0, [])
        return False
    part = Part(dict(zip(ranks, visible, strict=True)), address, port)
    ends = run_ranks(spec, part, own, path, wishes)
    return all(code == 0 and number == 0 for _, code, number, _ in ends)


def visible_devices(gpus: list[int]) -> list[str] | None:
    """Return how each of these GPUs is called in CUDA_VISIBLE_DEVICES, None if Slurm does not give exactly these.

    Where it shuts off all others, by cgroups, their numbers begin at 0.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    granted = _granted()
    if granted != gpus or len(visible) != len(granted):
        return None
    return visible


def _granted() -> list[int]:
    told = os.environ.get("SLURM_STEP_GPUS") or os.environ.get("SLURM_JOB_GPUS") or ""
    return [int(index) for index in told.split(",") if index]


def _meet(wishes: SharedWishes, *, is_first: bool) -> int | None:
    """Return the port where the ranks meet, which the first node chooses; None if they are to stop before."""
    if is_first:
        write_first(wishes.folder, "meet.json", json.dumps({"port": free_port("")}).encode())
    until_s = time.monotonic() + _MEET_WITHIN_S
    while not is_there(wishes.folder, "meet.json"):
        if wishes.asked():
            return None
        if time.monotonic() > until_s:
            raise TimeoutError(f"the attempt's first node did not start within {_MEET_WITHIN_S:.0f} s")
        time.sleep(_LOOK_AGAIN_S)
    return int(json.loads(read_whole(wishes.folder, "meet.json", _MOST_BYTES))["port"])


def _ended_well(path: str, part: int) -> bool:
    ends = json.loads(Path(f"{path}/part-{part}/exit.json").read_bytes())["ends"]
    return bool(ends) and all(code == 0 and number == 0 for _, code, number, _ in ends)
