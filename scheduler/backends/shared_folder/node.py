"""The part of an attempt on one of its nodes: it runs under a supervisor, or is swept. Standard library only.

The parts of a ring are its *pieces*: each starts and ends by itself, and a GPU that the ring gets later is a piece too.

Everything is in the attempt's folder, which all nodes and the scheduler share:

    spec.json        what is to be run
    claim.json       what runs it, or that nothing may; the first writer wins, so it starts once
    cancel.json      a request to stop
    stop.json        why all its ranks are stopped; the first reason counts
    meet.json        the port where the ranks meet
    part-N/          of its N-th node: the markers and logs of a local supervisor, and
    part-N/gone.json the proof that nothing is left there, where no exit marker was written

A sweep ends, on its node, what is left of a part whose supervisor wrote no exit marker, and writes that proof.
"""

import json
import os
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ....cluster.files.durable import is_there, make_folder, open_folder, read_whole, write_first
from ....cluster.files.processes import Identity, Process, boot_id, find, free_port, is_alive, kill
from ..local.ranks import AttemptTraces, RankGroup, Spec, adopt_orphans, kill_all, read_spec
from ..local.ring_files import RING, RingPart, encode_part, is_ring_over, piece_of, with_added_ranks
from ..local.supervision import (
    TIME_LIMIT,
    StopRequests,
    ring_host_spec,
    run_guarded,
    run_ranks,
    started_marker,
    write_exit_marker_patiently,
)
from ..local.supervisor import STARTED_BEFORE

STOPPED_BY_PREFIX = "stopped by "
MISPLACED = "misplaced: "
RING_IS_OVER = STOPPED_BY_PREFIX + "the end of its ring"
SWITCHED_OFF, NEVER_STARTED = "the node is switched off", "it was never started there"  # proofs

_BEAT_S = 2.0  # between two updates of its marker
_MEET_WITHIN_S = 300.0  # the nodes of a job start together
_MEET_POLL_S = 0.1
_MAX_MARKER_BYTES = 1 << 20
_END_WITHIN_S = 10.0  # for a supervisor that is to end
_SWEEP_POLL_S = 0.1


class Grant(NamedTuple):
    """What Slurm or Ray gives an attempt on a node."""

    by: str  # Slurm or Ray
    node: str
    gpus: list[int]
    visible: list[str]  # what each of these is called in CUDA_VISIBLE_DEVICES


def claim_attempt(
    folder: int, attempt: str, *, job: int, parts: int, ranks: int, address: str, has_pieces: bool = False
) -> str:
    """Claim an attempt, to run it.

    Args:
        folder: Descriptor of the attempt's folder.
        attempt: Its name.
        job: Number of what runs it, above 0.
        parts: Its nodes.
        ranks: Its GPUs.
        address: Of its first node, for its ranks on others.
        has_pieces: Whether it is a ring, whose parts start and end by themselves.

    Returns:
        A token for its supervisors; "" if it was claimed before.

    Raises:
        OSError: If it cannot be stored.
    """
    token = os.urandom(8).hex()
    where = address if parts > 1 else "127.0.0.1"
    content = {"job": job, "parts": parts, "ranks": ranks, "token": token, "address": where, "revoked": ""}
    return token if _write_claim(folder, attempt, {**content, "has_pieces": has_pieces}) else ""


def revoke_unclaimed(folder: int, attempt: str, reason: str) -> bool:
    """Claim an attempt so that nothing may run it, and return whether that succeeded.

    Raises:
        OSError: If it cannot be stored.
    """
    return _write_claim(
        folder, attempt, {"job": 0, "parts": 0, "ranks": 0, "token": "", "address": "", "revoked": reason}
    )


def _write_claim(folder: int, attempt: str, content: dict[str, object]) -> bool:
    return write_first(folder, "claim.json", json.dumps({"attempt": attempt, **content}).encode())


def nodes_of(spec: Spec) -> list[str]:
    """Return the nodes of an attempt, in the order of its ranks."""
    return list(dict.fromkeys(rank.node for rank in spec.ranks))


def gpus_on(spec: Spec, node: str) -> tuple[int, ...]:
    """Return the GPUs of an attempt on a node, in the order of its ranks."""
    return tuple(rank.gpu for rank in spec.ranks if rank.node == node)


def run_part(path: str, token: str, grant: Grant) -> int:
    """Run the ranks of an attempt on this node.

    Returns:
        0 if all of them ended well; on one of several nodes 0 once their end is written.

    Raises:
        OSError: If there can be no further process.
    """
    return run_guarded(partial(_supervise_part, path, token, grant))


def _supervise_part(path: str, token: str, grant: Grant, guard: Process | None) -> int:
    folder = open_folder(path)
    claimed = json.loads(read_whole(folder, "claim.json", _MAX_MARKER_BYTES))
    spec = read_spec(folder)
    number = nodes_of(spec).index(grant.node)
    make_folder(folder, f"part-{number}")
    part_path = f"{path}/part-{number}"
    part_folder = open_folder(part_path)
    adopt_orphans()
    if claimed["token"] != token or not write_first(part_folder, "started.json", started_marker(spec.attempt, guard)):
        return STARTED_BEFORE
    requests = SharedStopRequests(folder, part_folder, spec.attempt, STOPPED_BY_PREFIX + grant.by)
    ended_well = _run_ranks_unless_stopped(spec, grant, claimed["address"], requests, part_folder, part_path)
    return 0 if claimed["parts"] > 1 else int(not ended_well)


def run_piece(path: str, number: int, job: int, address: str, grant: Grant) -> int:
    """Run a piece of a ring on this node.

    Args:
        path: The attempt's folder.
        number: Of the piece.
        job: Number of what runs it, above 0.
        address: Of this node, for members on others.
        grant: What it was given here.

    Returns:
        0 if its members ended well, or all were given up while the ring goes on.

    Raises:
        OSError: If there can be no further process.
    """
    return run_guarded(partial(_supervise_piece, path, number, job, address, grant))


def _supervise_piece(path: str, number: int, job: int, address: str, grant: Grant, guard: Process | None) -> int:
    folder, ring = open_folder(path), Path(path) / RING
    spec = read_spec(folder)
    piece, parts, ranks = piece_of(spec, ring, number), len(nodes_of(spec)), len(spec.ranks)
    # The first piece that begins claims the attempt for all.
    claim_attempt(folder, spec.attempt, job=job, parts=parts, ranks=ranks, address=address, has_pieces=True)
    if json.loads(read_whole(folder, "claim.json", _MAX_MARKER_BYTES))["revoked"]:
        return STARTED_BEFORE
    make_folder(folder, f"part-{number}")
    part_path = f"{path}/part-{number}"
    part_folder = open_folder(part_path)
    adopt_orphans()
    if not write_first(part_folder, "started.json", started_marker(spec.attempt, guard)):
        return STARTED_BEFORE
    requests = PieceStopRequests(folder, part_folder, spec, STOPPED_BY_PREFIX + grant.by)
    reason = requests.reason() or (RING_IS_OVER if is_ring_over(Path(path)) else "")
    if not reason and (grant.gpus != [*piece.gpus.values()] or len(grant.visible) != len(grant.gpus)):
        reason = f"{MISPLACED}{grant.node} gives GPUs {grant.gpus}, not {[*piece.gpus.values()]}"
    if reason:
        write_exit_marker_patiently(part_folder, spec.attempt, reason, 0.0, [])
        return 0
    part = RingPart(number, dict(zip(piece.gpus, grant.visible, strict=True)), part_path, address)
    extended = with_added_ranks(spec, ring, max(piece.gpus) + 1)
    host = ring_host_spec(extended, path, encode_part(part))._replace(limit_s=None)  # the requests have the limit
    first = min(piece.gpus)
    ends = run_ranks(host, RankGroup({first: ",".join(grant.visible)}, address, 0), part_folder, part_path, requests)
    return int(any(code or signal_number for _, code, signal_number, _ in ends))


class SharedStopRequests(StopRequests):
    """Stop requests of the scheduler and of the supervisors of other nodes, in the attempt's folder.

    A file system that does not answer for a while is no reason to stop anything.

    Args:
        folder: Descriptor of the attempt's folder.
        part_folder: Descriptor of this node's part of it.
        attempt: The attempt's name.
        term_reason: Why the ranks are stopped when their supervisor gets SIGTERM.
    """

    def __init__(self, folder: int, part_folder: int, attempt: str, term_reason: str) -> None:
        super().__init__(folder)
        self.term_reason = term_reason
        self._part_folder, self._attempt = part_folder, attempt
        self._beat_at_s = 0.0

    def reason(self) -> str:
        """Return why the ranks are to be stopped, "" if they are not, and refresh the started marker."""
        with suppress(OSError):
            if time.monotonic() >= self._beat_at_s:
                self._beat_at_s = time.monotonic() + _BEAT_S
                os.utime("started.json", dir_fd=self._part_folder)
            if is_there(self.folder, "stop.json"):
                return read_stop(self.folder)
            return super().reason()
        return ""

    def record_stop(self, reason: str) -> str | None:
        """Stop the ranks on all nodes, and return the first reason; None if the folder cannot be written now."""
        with suppress(OSError):
            write_stop(self.folder, self._attempt, reason)
            return read_stop(self.folder)
        return None


class PieceStopRequests(SharedStopRequests):
    """Stop requests of a piece of a ring: the ring goes on without a piece that is stopped by itself.

    The time limit is of the whole ring: the first piece that reaches it stops all.
    """

    def __init__(self, folder: int, part_folder: int, spec: Spec, term_reason: str) -> None:
        super().__init__(folder, part_folder, spec.attempt, term_reason)
        self._until_s = float("inf") if spec.limit_s is None else time.monotonic() + spec.limit_s

    def reason(self) -> str:
        """Return why the piece is to be stopped, "" if it is not."""
        if time.monotonic() >= self._until_s:
            super().record_stop(TIME_LIMIT)
        return super().reason()

    def record_stop(self, reason: str) -> str:
        """Return the reason to report: other pieces go on."""
        return reason


def write_stop(folder: int, attempt: str, reason: str) -> None:
    """Stop all ranks of an attempt, unless there is a reason already.

    Raises:
        OSError: If it cannot be stored.
    """
    write_first(folder, "stop.json", json.dumps({"attempt": attempt, "reason": reason}).encode())


def read_stop(folder: int) -> str:
    """Return why all ranks of an attempt are stopped.

    Raises:
        OSError: If they are not, or that cannot be read.
        ValueError: If it makes no sense.
    """
    try:
        return str(json.loads(read_whole(folder, "stop.json", _MAX_MARKER_BYTES))["reason"])
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"stop.json is damaged: {type(error).__name__}: {error}") from error


def _run_ranks_unless_stopped(
    spec: Spec, grant: Grant, address: str, requests: SharedStopRequests, part_folder: int, path: str
) -> bool:
    """Run this node's ranks unless they must not start, and return whether all of them ended well."""
    gpus = list(gpus_on(spec, grant.node))
    ranks = [rank for rank, place in enumerate(spec.ranks) if place.node == grant.node]
    reason = requests.reason()
    if not reason and (grant.gpus != gpus or len(grant.visible) != len(gpus)):
        misplaced = f"{MISPLACED}{grant.node} gives GPUs {grant.gpus}, not {gpus}"
        reason = requests.record_stop(misplaced) or misplaced
    port = None if reason else _agree_on_port(requests, is_first=0 in ranks)
    if port is None:
        write_exit_marker_patiently(part_folder, spec.attempt, reason or requests.reason(), 0.0, [])
        return False
    part = RankGroup(dict(zip(ranks, grant.visible, strict=True)), address, port)
    ends = run_ranks(spec, part, part_folder, path, requests)
    return all(code == 0 and number == 0 for _, code, number, _ in ends)


def _agree_on_port(requests: SharedStopRequests, *, is_first: bool) -> int | None:
    """Return the rendezvous port of the ranks, which the first node chooses; None if they are to stop before."""
    if is_first:
        write_first(requests.folder, "meet.json", json.dumps({"port": free_port("")}).encode())
    until_s = time.monotonic() + _MEET_WITHIN_S
    while not is_there(requests.folder, "meet.json"):
        if requests.reason():
            return None
        if time.monotonic() > until_s:
            raise TimeoutError(f"the attempt's first node did not start within {_MEET_WITHIN_S:.0f} s")
        time.sleep(_MEET_POLL_S)
    return int(json.loads(read_whole(requests.folder, "meet.json", _MAX_MARKER_BYTES))["port"])


def sweep(path: str, part: str) -> int:
    """End what is left on this node of an attempt that may not run any more, and write the proof.

    Returns:
        0.

    Raises:
        OSError: If that is not known or written down.
        ValueError: If a marker makes no sense.
    """
    attempt = Path(path).name
    make_folder(open_folder(path), f"part-{part}")
    part_folder = open_folder(f"{path}/part-{part}")
    if is_there(part_folder, "gone.json"):
        return 0
    # The first writer of this marker has the part: a late supervisor finds it and ends.
    if not write_first(part_folder, "started.json", started_marker(attempt)):
        _end_part(part_folder, attempt)
    if not is_there(part_folder, "exit.json"):
        write_proof(part_folder, attempt, "no process of it is left on the node")
    return 0


def sweep_unless_alive(path: str, part: str) -> int:
    """Do what `sweep` does, unless a supervisor of the attempt lives here.

    Returns:
        0.

    Raises:
        OSError: If that is not known or written down.
        ValueError: If a marker makes no sense.
    """
    folder = open_folder(path)
    make_folder(folder, f"part-{part}")
    part_folder = open_folder(f"part-{part}", inside=folder)
    if is_there(part_folder, "started.json") and is_alive(_supervisor_identity(_read_started(part_folder)), boot_id()):
        return 0
    return sweep(path, part)


def write_proof(part_folder: int, attempt: str, proof: str) -> None:
    """Write the proof that nothing is left of an attempt's part.

    Raises:
        OSError: If it cannot be written.
    """
    write_first(part_folder, "gone.json", json.dumps({"attempt": attempt, "proof": proof}).encode())


def prove_never_started(folder: int, attempt: str, part: int) -> bool:
    """Return whether an attempt's part has never started, and keep it from starting; if so, write the proof.

    Raises:
        OSError: If it cannot be written.
    """
    make_folder(folder, f"part-{part}")
    part_folder = open_folder(f"part-{part}", inside=folder)
    try:
        no_process = {"attempt": attempt, "pid": 1, "start_ticks": 0, "boot": "", "session": 0}
        if not write_first(part_folder, "started.json", json.dumps(no_process).encode()):
            return False
        write_proof(part_folder, attempt, NEVER_STARTED)  # a late supervisor finds the marker and ends
        return True
    finally:
        os.close(part_folder)


def _read_started(part_folder: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(read_whole(part_folder, "started.json", _MAX_MARKER_BYTES))
    return found


def _supervisor_identity(started: dict[str, Any]) -> Identity:
    return Identity(started["pid"], started["start_ticks"], started["boot"])


def _end_part(part_folder: int, attempt: str) -> None:
    started, boot = _read_started(part_folder), boot_id()
    supervisor = _supervisor_identity(started)
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
    if started["boot"] == boot and is_there(part_folder, "ranks.json"):
        groups = dict(json.loads(read_whole(part_folder, "ranks.json", _MAX_MARKER_BYTES))["ranks"])
    while not kill_all(AttemptTraces(attempt, part_folder, started["session"], groups), _END_WITHIN_S):
        pass
