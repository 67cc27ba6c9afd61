"""What the backends whose nodes share a folder with the scheduler have in common: how attempts are written and read.

`read_records` reads strictly what an attempt's folder has of it; `proven_status` and `is_proven_gone` return what that
proves.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from ....cluster.files.durable import is_there, open_file, write_first
from ....cluster.files.errors import BackendError, error_line
from ....cluster.model.placement import Placement
from ....ring.folder import Appointment, appoint, read_appointment
from ...model.states import EndedBy, RankEnd, Run, Status, parse_reason_line
from ..local.folders import (
    AttemptFolders,
    EndsMarker,
    ExitMarker,
    Marker,
    RanksMarker,
    as_backend_error,
    delete_all_but,
    launched_attempts,
    opened_folder,
    rank_ends,
    read_marker,
    read_progress,
    read_rank_log,
    read_step_lines,
    write_spec,
)
from ..local.ranks import SPEC_FILE, Spec, read_spec
from ..local.ring_files import (
    OVER_FILES,
    RING,
    Piece,
    coordinators_piece,
    count_added_ranks,
    done_file,
    given_file,
    is_ring_over,
    orphaned_file,
    pieces_of,
    read_lost_members,
    read_places,
    ring_phase,
)
from ..local.rings import FolderRings
from ..local.supervision import CANCELLED
from ..protocol import Attempt, MemberPlace, StepLines
from .node import MISPLACED, NEVER_STARTED, STOPPED_BY_PREFIX, SWITCHED_OFF, nodes_of, read_stop, revoke_unclaimed

ALIVE_S = 30.0  # a supervisor updates its marker every 2 s; a file system may delay that
# Without an answer of its coordinator, and without a new marker of that one's supervisor, after which both are lost.
UNANSWERED_S, NO_SIGN_S = 5.0, 6.0
CUT_OFF_S = 30.0  # without an answer of a coordinator whose supervisor lives


class ClaimMarker(Marker):
    """What runs an attempt, or why nothing may."""

    file_name = "claim.json"

    job: Annotated[int, Field(ge=0)]  # number of the job of Slurm or Ray, 0 if none may run it
    parts: Annotated[int, Field(ge=0)]  # nodes
    ranks: Annotated[int, Field(ge=0)]
    token: str
    address: str
    revoked: str  # why nothing may run it; "" of what does
    has_pieces: bool = False  # it is a ring, whose parts start and end by themselves


class GoneMarker(Marker):
    """The proof that nothing is left on a node where no exit marker was written."""

    file_name = "gone.json"

    proof: str


class PartRecord(NamedTuple):
    """What is known of an attempt on one of its nodes."""

    is_alive: bool = False  # its supervisor has updated its marker lately
    started_s: float = 0.0  # Unix time at which its ranks started, 0 if they have not
    ends: tuple[RankEnd, ...] = ()
    exited: bool = False  # its supervisor has written how they ended
    nothing_left: bool = False  # it has not, and that nothing is left is proven
    switched_off: bool = False  # with its node
    never_started: bool = False
    reason: str = ""
    progress: Mapping[str, float] = {}
    is_begun: bool = False  # it has a supervisor, or had one, or never will
    saw_done: bool = False  # it is a piece that was in its ring when that was done

    @property
    def is_over(self) -> bool:
        """Whether nothing is left of it for certain."""
        return self.exited or self.nothing_left


class AttemptRecords(NamedTuple):
    """What is known of an attempt from its folder alone."""

    is_launched: bool
    claim: ClaimMarker | None
    parts: tuple[PartRecord, ...]  # by node, once it is claimed; of a ring, by piece
    stop: str = ""  # why all its ranks are stopped
    ring_phase: str = ""  # of an attempt with a ring that has begun
    coordinator: int = 0  # the piece that ran the coordinator last

    @property
    def is_ring(self) -> bool:
        """Whether its parts are pieces, which start and end by themselves."""
        return bool(self.ring_phase)


class SharedFolderBackend(FolderRings):
    """Writes what is to be run, and reads what supervisors on the nodes write.

    Args:
        folder: Where the attempts' folders are, under the same path on all nodes; created if missing.
        nodes: GPUs of each node, in cluster-file order.
    """

    def __init__(self, folder: Path, nodes: Mapping[str, int]) -> None:
        self._folders = AttemptFolders(folder)
        self._nodes = dict(nodes)

    def status(self, name: str) -> Status:
        """Return what is known of an attempt."""
        return self.statuses((name,))[name]

    def is_proven_gone(self, name: str) -> bool:
        """Return whether all processes of an attempt are proven gone, by their supervisors or by a sweep."""
        self._folders.path(name)
        try:
            records = self._read_records(name)
        except (OSError, ValueError):
            return False
        return records is None or is_proven_gone(records)

    def logs(self, name: str, rank: int, offset: int, max_bytes: int) -> tuple[bytes, int]:
        """Return at most `max_bytes` of a rank's output from an offset on, and the offset after them."""
        return read_rank_log(self._folders, name, rank, offset, max_bytes, _part_names)

    def step_lines(self, name: str, placement: Placement, before: Sequence[StepLines]) -> list[StepLines]:
        """Return what each rank has reported of its steps and checkpoints since the last call."""
        self._folders.path(name)
        found = list[StepLines]()
        with as_backend_error(name), self._folders.open(name) as folder:
            if folder is None:
                return found
            sizes, is_ring = [len(share.gpus) for share in placement], is_there(folder, RING)
            for part, size in enumerate([*sizes, *[1] * (len(before) - sum(sizes))]):
                first = len(found)
                own = before[first : first + size]
                if is_there(folder, f"part-{part}"):
                    with opened_folder(f"part-{part}", folder) as part_folder:
                        found += read_step_lines(part_folder, first, own)
                elif is_ring:
                    found += [StepLines(steps_end=last.steps_end, saved_end=last.saved_end) for last in own]
                else:
                    return []
        return found

    def add_to_ring(self, name: str, rank: int, node: str, gpu: int) -> None:
        """Add a GPU to a ring as a piece of its own; again, this does nothing."""
        super().add_to_ring(name, rank, node, gpu)
        with as_backend_error(name), opened_folder(str(self._ring_folder(name))) as ring:
            write_first(ring, given_file(rank), b"")

    def move_coordinator(self, name: str, silent_s: float) -> str:
        """Let another node run the coordinator of a ring, if that of the present one is lost."""
        ring = self._ring_folder(name)
        with as_backend_error(name), self._folders.open(name) as folder:
            if folder is None or not all(is_there(folder, each) for each in (SPEC_FILE, RING)):
                return ""
            if is_ring_over(self._folders.path(name)):
                return ""
            try:
                appointed, pieces = read_appointment(ring), pieces_of(read_spec(folder), ring)
            except ValueError as error:
                raise BackendError(f"{name}: who runs its coordinator is not known: {error_line(error)}") from error
            following = _next_coordinator(folder, ring, pieces, appointed.piece, silent_s)
            if following is None:
                return ""
            piece, gone = following
            # Of those before it, too: it may have been lost before it has read them.
            gone = tuple(sorted({*appointed.gone, *gone}))
            return piece.node if appoint(ring, Appointment(appointed.epoch + 1, piece.number, gone)) else ""

    def _read_ring_places(self, name: str) -> list[MemberPlace]:
        """Return the GPUs that a ring was given, by rank; one is left once nothing is left of its piece.

        A GPU counts once the piece that runs it has been handed over, so that a failure is tried again.
        """
        ring, places = self._ring_folder(name), list[MemberPlace]()
        with as_backend_error(name), self._folders.open(name) as folder:
            if folder is None or not is_there(folder, SPEC_FILE):
                return []
            try:
                spec = read_spec(folder)
            except ValueError as error:
                raise BackendError(f"{name}: its {SPEC_FILE} cannot be read: {error_line(error)}") from error
            nodes, lost, pieces = nodes_of(spec), read_lost_members(ring), pieces_of(spec, ring)
            if count_added_ranks(ring, len(spec.ranks)) > len(pieces) - len(nodes):
                raise BackendError(f"{name}: it is not known where GPUs are that its ring was given")
            for piece in pieces:
                if piece.number >= len(nodes) and not (ring / given_file(min(piece.gpus))).exists():
                    break
                is_over = any(is_there(folder, f"part-{piece.number}/{file}") for file in OVER_FILES)
                is_silent = _has_silent_supervisor(folder, piece.number)
                reported = read_places(ring, piece.number)
                for rank, gpu in piece.gpus.items():
                    place = MemberPlace(*reported.get(rank, (piece.node, gpu)))
                    used = place.is_used and not (is_over or is_silent or place.member in lost)
                    places.append(place._replace(node=piece.node, gpu=gpu, is_used=used, is_left=is_over))
        return places

    def launched(self) -> dict[str, tuple[Attempt, Placement]]:
        """Return all attempts that were launched and not forgotten, with their GPUs, by name."""
        return launched_attempts(self._folders)

    def forget(self, name: str) -> None:
        """Delete what an attempt that ended left here, except its logs and the proof that it ended."""
        if not self.is_proven_gone(name):
            raise BackendError(f"{name} cannot be forgotten: its processes are not proven gone")
        with as_backend_error(name), self._folders.open(name) as folder:
            if folder is None:
                return
            parts = _part_names(folder)
            for part in parts:
                with opened_folder(part, folder) as part_folder:
                    delete_all_but(part_folder, {"exit.json", "gone.json"})
            # Without a claim it never began: a late launch must find that it was cancelled.
            delete_all_but(folder, {"claim.json" if is_there(folder, "claim.json") else "cancel.json", *parts})

    def _write_spec(self, attempt: Attempt, placement: Placement) -> tuple[Spec, bool] | None:
        """Write what is to be run, as `write_spec` does, unless the attempt was cancelled before."""
        name = attempt.name
        if attempt.seats and not self._may_start_pieces(name):
            return None
        # Pieces of a ring are handed over one by one: the claim of the first is no sign that the others were.
        begun = () if attempt.seats else ("claim.json",)
        written = write_spec(self._folders, attempt, placement, self._nodes, begun)
        with as_backend_error(name), self._folders.open(name) as folder:
            if written is None or folder is None or not is_there(folder, "cancel.json"):
                return written
            revoke_unclaimed(folder, name, CANCELLED)
        return None

    def _may_start_pieces(self, name: str) -> bool:
        """Return whether pieces of a ring may start: not once it was forgotten, revoked, or is over."""
        try:
            with self._folders.open(name) as folder:
                claim = None if folder is None else read_marker(folder, name, ClaimMarker)
                if folder is None or claim is None:
                    return True
                return is_there(folder, SPEC_FILE) and not claim.revoked and not is_ring_over(self._folders.path(name))
        except (OSError, ValueError) as error:
            raise BackendError(f"{name}: {error}") from error

    @contextmanager
    def _store_stop_request(self, name: str, reason: str) -> Iterator[int | None]:
        """Store the request that an attempt stops, and open its folder if it was launched and may run."""
        self._folders.path(name)
        with as_backend_error(name), self._folders.open_or_create(name) as folder:
            if is_there(folder, "claim.json") and self.is_proven_gone(name):
                yield None
                return
            write_first(folder, "cancel.json", json.dumps({"attempt": name, "reason": reason}).encode())
            yield folder if is_there(folder, SPEC_FILE) else None

    def _read_proven_statuses(self, names: tuple[str, ...]) -> tuple[dict[str, Status], dict[str, AttemptRecords]]:
        """Return the statuses that records prove, and the records of the attempts of which they do not prove any."""
        found: dict[str, Status] = {}
        unclear: dict[str, AttemptRecords] = {}
        for name in names:
            try:
                records = self._read_records(name)
            except (OSError, ValueError) as error:
                found[name] = Status(Run.UNREACHABLE, words=str(error))
                continue
            status = Status(Run.ABSENT) if records is None else proven_status(records)
            if status is not None:
                found[name] = status
            elif records is not None:
                unclear[name] = records
        return found, unclear

    def _read_records(self, name: str) -> AttemptRecords | None:
        with self._folders.open(name) as folder:
            return None if folder is None else read_records(folder, name, self._ring_folder(name))


def _part_names(folder: int) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.startswith("part-"))


def read_records(folder: int, attempt: str, ring: Path) -> AttemptRecords:
    """Return what is known of an attempt from its folder alone, in which `ring` is that of its ring, if it has one.

    Raises:
        OSError: If a marker cannot be read.
        ValueError: If a marker makes no sense.
    """
    claim = read_marker(folder, attempt, ClaimMarker)
    number, phase, coordinator = 0 if claim is None else claim.parts, "", 0
    if claim is not None and claim.has_pieces:
        known = [int(name.removeprefix("part-")) + 1 for name in _part_names(folder)]  # whatever became of other files
        number = max(number + count_added_ranks(ring, claim.ranks), *known, 0)
        phase, coordinator = ring_phase(ring), coordinators_piece(ring)
    parts = tuple(_read_part(folder, attempt, each) for each in range(number))
    stop = read_stop(folder) if is_there(folder, "stop.json") else ""
    return AttemptRecords(is_there(folder, SPEC_FILE), claim, parts, stop, phase, min(coordinator, number - 1))


def proven_status(records: AttemptRecords) -> Status | None:
    """Return the status that records prove; None if they prove none."""
    claim, parts = records.claim, records.parts
    if claim is None:
        return None if records.is_launched else Status(Run.ABSENT)
    if claim.revoked:
        by, words = parse_reason_line(claim.revoked)
        return Status(Run.EXITED if by is EndedBy.CANCEL else Run.LOST, (), by, words)
    return _ended_status(records, claim.ranks) if all(part.is_over for part in parts) else None


def status_of_running(records: AttemptRecords) -> Status:
    """Return the status of an attempt whose supervisors run or are about to; a ring runs once it is coordinated."""
    parts = records.parts
    if records.is_ring:
        started_s = parts[0].started_s or parts[records.coordinator].started_s
        run = Run.RUNNING if started_s else Run.PENDING
        return Status(run, started_s=started_s, progress=_merged_progress(parts))
    run = Run.RUNNING if all(part.started_s > 0.0 for part in parts) else Run.PENDING
    return Status(run, _rank_ends(parts), started_s=_started_s(parts), progress=_merged_progress(parts))


def is_proven_gone(records: AttemptRecords) -> bool:
    """Return whether all processes of an attempt are proven gone, and none can start."""
    if records.claim is None:
        return not records.is_launched
    return all(part.is_over for part in records.parts)


def _ended_status(records: AttemptRecords, ranks: int) -> Status:
    parts = records.parts
    if records.ring_phase == "done":  # whatever became of pieces that it went on without
        kept = tuple(part for part in parts if part.saw_done) or (parts[records.coordinator],)
        return Status(Run.EXITED, _rank_ends(kept), started_s=_started_s(kept), progress=_merged_progress(parts))
    if records.is_ring:
        parts = (parts[records.coordinator],)  # as the piece with the coordinator ended, the ring did
    ends, started_s, progress = _rank_ends(parts), _started_s(parts), _merged_progress(parts)
    reasons = [part.reason for part in parts if part.reason]
    reason = next(iter(reasons), "")
    by, words = parse_reason_line(reason)
    found = [parse_reason_line(text) for text in (records.stop, *reasons)]
    fault = next((end for end in found if end[0] is EndedBy.NODE_FAULT), None)
    if fault is not None and (reasons or any(part.nothing_left for part in parts)):
        by, words = fault  # also where the node is back, and has the exit marker of the ranks that were stopped for it
    elif any(part.nothing_left and part.switched_off for part in parts):
        by, words = EndedBy.NODE_FAULT, "a node of it is switched off"
    elif records.is_ring and parts[0].never_started:
        by, words = EndedBy.NODE_FAULT, "the node of its coordinator did not start"
    elif any(part.nothing_left for part in parts):
        by, words = EndedBy.NONE, "a supervisor was lost" + (f"; {reason}" if reason else "")
    elif not any(end.code or end.signal for end in ends) and (not reason if records.is_ring else 0 < len(ends) < ranks):
        # These ended well, but they are not the whole job: a ring that is done says so.
        ran = f"only {len(ends)} of {ranks} ranks ran; {reason}"
        by, words = EndedBy.NONE, "nothing is left of its ring, which was not done" if records.is_ring else ran
    elif words.startswith(MISPLACED):
        by = EndedBy.NODE_FAULT  # The job did nothing wrong.
    elif not words.startswith(STOPPED_BY_PREFIX):
        return Status(Run.EXITED, ends, by, words, started_s, progress)
    # Ranks that got SIGTERM may have ended with 0: that is no proof that they were done.
    return Status(Run.LOST, ends, by, words, started_s, progress)


def _read_part(folder: int, attempt: str, number: int) -> PartRecord:
    if not is_there(folder, f"part-{number}"):
        return PartRecord()
    saw_done = is_there(folder, f"{RING}/{done_file(number)}")
    with opened_folder(f"part-{number}", folder) as part_folder:
        is_alive = _is_marker_fresh(part_folder)
        proof = read_marker(part_folder, attempt, GoneMarker)
        exited = read_marker(part_folder, attempt, ExitMarker)
        ranks = read_marker(part_folder, attempt, RanksMarker)
        return PartRecord(
            is_alive,
            0.0 if ranks is None else ranks.started_s,
            rank_ends(exited or read_marker(part_folder, attempt, EndsMarker)),
            exited is not None,
            proof is not None and exited is None,
            proof is not None and proof.proof == SWITCHED_OFF,
            proof is not None and proof.proof == NEVER_STARTED,
            "" if exited is None else exited.reason,
            read_progress(part_folder),
            is_there(part_folder, "started.json"),
            saw_done,
        )


def _next_coordinator(
    folder: int, ring: Path, pieces: Sequence[Piece], present: int, silent_s: float
) -> tuple[Piece, tuple[int, ...]] | None:
    """Return the piece that is to run the coordinator of a ring, and the members that are lost with the present one.

    Args:
        folder: Descriptor of the attempt's folder.
        ring: Folder of its ring.
        pieces: All of it.
        present: The piece that is to run the coordinator now.
        silent_s: For how long the scheduler has had no connection to the coordinator.

    Returns:
        Nothing if that piece still is to run it, or there is no other.
    """

    def is_over(piece: int) -> bool:
        return any(is_there(folder, f"part-{piece}/{file}") for file in OVER_FILES)

    def has_begun(piece: int) -> bool:
        return is_there(folder, f"part-{piece}/started.json")

    def lives(piece: int) -> bool:
        return has_begun(piece) and _marker_age_s(folder, piece) < ALIVE_S and not is_over(piece)

    others = [piece for piece in pieces if piece.number != present and lives(piece.number)]
    if not others or not (is_over(present) or has_begun(present)):
        return None
    # All markers have the time of the file system: by another clock, machines would seem silent that are not.
    ages_s = {piece.number: _marker_age_s(folder, piece.number) for piece in pieces if has_begun(piece.number)}
    silent = {piece for piece, age_s in ages_s.items() if age_s - min(ages_s.values()) > NO_SIGN_S}
    orphaned = {piece.number for piece in others if (ring / orphaned_file(piece.number)).exists()}
    is_lost = is_over(present) or present in silent
    limit_s = UNANSWERED_S if is_lost else CUT_OFF_S
    if not is_over(present) and not (orphaned and silent_s > limit_s):
        return None
    # Those of a machine that seems to live may be in reach of the next coordinator.
    places = read_places(ring, present).values() if is_lost else ()
    others.sort(key=lambda piece: (piece.number in silent, piece.number not in orphaned))
    return others[0], tuple(place[4] for place in places if place[4] >= 0)


def _has_silent_supervisor(folder: int, part: int) -> bool:
    return is_there(folder, f"part-{part}/started.json") and _marker_age_s(folder, part) >= ALIVE_S


def _marker_age_s(folder: int, part: int) -> float:
    """Return how long ago the supervisor of a part has updated its marker."""
    with opened_folder(f"part-{part}", folder) as part_folder:
        file = open_file(part_folder, "started.json")  # a file system of the network asks its server when it is opened
        try:
            return time.time() - os.fstat(file).st_mtime
        finally:
            os.close(file)


def _is_marker_fresh(part_folder: int) -> bool:
    with suppress(FileNotFoundError):
        return time.time() - os.stat("started.json", dir_fd=part_folder, follow_symlinks=False).st_mtime < ALIVE_S
    return False


def _rank_ends(parts: tuple[PartRecord, ...]) -> tuple[RankEnd, ...]:
    return tuple(sorted((end for part in parts for end in part.ends), key=lambda end: end.ended_s))


def _started_s(parts: tuple[PartRecord, ...]) -> float:
    started = [part.started_s for part in parts]
    return max(started) if all(started) else 0.0


def _merged_progress(parts: tuple[PartRecord, ...]) -> dict[str, float]:
    progress: dict[str, float] = {}
    for part in reversed(parts):  # The first node has precedence.
        progress |= part.progress
    return progress
