"""What the folder of a ring whose pieces run on several nodes proves: its end, its GPUs, and what may start."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from longshore.cluster.files.durable import open_folder, write_first
from longshore.cluster.files.errors import BackendError
from longshore.cluster.model.placement import Share
from longshore.ring.folder import Appointment, appoint, read_appointment, state_file
from longshore.scheduler.backends.local.ring_files import (
    RING,
    added_gpu_file,
    done_file,
    given_file,
    orphaned_file,
    places_file,
)
from longshore.scheduler.backends.local.supervision import started_marker, write_exit_marker
from longshore.scheduler.backends.protocol import Attempt, MemberPlace
from longshore.scheduler.backends.shared_folder.backend import (
    CUT_OFF_S,
    UNANSWERED_S,
    SharedFolderBackend,
    is_proven_gone,
    proven_status,
)
from longshore.scheduler.backends.shared_folder.node import (
    STOPPED_BY_PREFIX,
    claim_attempt,
    prove_never_started,
    write_proof,
    write_stop,
)
from longshore.scheduler.model.states import EndedBy, Run

NAME = "ls-job-1"
PLACEMENT = (Share("a", (0, 1)), Share("b", (2,)))
ATTEMPT = Attempt(NAME, "job", 1, ("true",), "", {"PATH": os.environ["PATH"]}, seats=3)


class Records(SharedFolderBackend):
    """A backend that starts nothing itself."""

    def build(self) -> None: ...  # type: ignore[override]
    def observe(self) -> tuple[()]:
        return ()

    def launch(self, attempt: Attempt, placement: object) -> None: ...
    def cancel(self, name: str, reason: str) -> None: ...


class Ring:
    """The folder of a ring that began on two nodes, and whose files the test writes."""

    def __init__(self, folder: Path) -> None:
        self.backend = Records(folder, {"a": 4, "b": 4, "c": 4})
        assert self.backend._write_spec(ATTEMPT, PLACEMENT) is not None
        self.path = folder / "attempts" / NAME
        self.folder = open_folder(str(self.path))
        (self.path / RING).mkdir()
        claim_attempt(self.folder, NAME, job=1, parts=2, ranks=3, address="a", has_pieces=True)

    def part(self, number: int) -> int:
        (self.path / f"part-{number}").mkdir(exist_ok=True)
        part = open_folder(str(self.path / f"part-{number}"))
        write_first(part, "started.json", started_marker(NAME))
        return part

    def ends(self, number: int, reason: str = "", code: int = 0, signal: int = 0, *, saw_done: bool = False) -> None:
        write_exit_marker(self.part(number), NAME, reason, 5.0, [(number, code, signal, time.time())])
        if saw_done:
            (self.path / RING / done_file(number)).touch()

    def is_lost(self, number: int) -> None:
        write_proof(self.part(number), NAME, "no process of it is left on the node")

    def phase(self, phase: str, lost: tuple[int, ...] = ()) -> None:
        (self.path / RING / state_file(1)).write_text(json.dumps({"phase": phase, "lost": lost, "epoch": 0}))

    def places(self, piece: int, rows: Mapping[int, tuple[str, int, bool, int]]) -> None:
        found = [[rank, node, gpu, used, False, member, 7] for rank, (node, gpu, used, member) in rows.items()]
        (self.path / RING / places_file(piece)).write_text(json.dumps(found))

    def add(self, rank: int, node: str, gpu: int) -> None:
        self.backend.add_to_ring(NAME, rank, node, gpu)


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    it = Ring(tmp_path)
    yield it
    os.close(it.folder)


def ended(ring: Ring) -> tuple[Run, EndedBy, list[tuple[int, int]]]:
    records = ring.backend._read_records(NAME)
    assert records is not None
    assert is_proven_gone(records)
    status = proven_status(records)
    assert status is not None
    return status.run, status.by, [(end.code, end.signal) for end in status.ends]


def test_a_ring_that_is_done_is_done_whatever_became_of_pieces_on_the_way(ring: Ring) -> None:
    ring.phase("done")
    ring.ends(0, saw_done=True)
    for reason, code, number in (("rank failed", 0, 9), ("out of memory", 0, 9), (STOPPED_BY_PREFIX + "Slurm", 1, 0)):
        (ring.path / "part-1").mkdir(exist_ok=True)
        (ring.path / "part-1" / "exit.json").unlink(missing_ok=True)
        ring.ends(1, reason, code, number)
        assert ended(ring) == (Run.EXITED, EndedBy.NONE, [(0, 0)])
    (ring.path / "part-1" / "exit.json").unlink()
    ring.is_lost(1)
    assert ended(ring) == (Run.EXITED, EndedBy.NONE, [(0, 0)])


def test_members_that_fail_once_their_ring_is_done_fail_the_attempt(ring: Ring) -> None:
    ring.phase("done")
    ring.ends(0, saw_done=True)
    ring.ends(1, "rank failed", 3, saw_done=True)
    assert ended(ring) == (Run.EXITED, EndedBy.NONE, [(0, 0), (3, 0)])


@pytest.mark.parametrize(
    ("reason", "by"), [("cancelled", EndedBy.CANCEL), ("time limit", EndedBy.TIME_LIMIT), ("rank failed", None)]
)
def test_a_ring_that_is_not_done_ends_as_its_first_piece_did(ring: Ring, reason: str, by: EndedBy | None) -> None:
    ring.phase("running")
    ring.ends(0, reason, 5)
    ring.is_lost(1)
    run, found, ends = ended(ring)
    assert (run, ends) == (Run.EXITED, [(5, 0)])
    assert found is (by or found)


def test_a_ring_without_its_first_piece_is_lost(ring: Ring) -> None:
    ring.phase("running")
    ring.is_lost(0)
    ring.ends(1, "rank failed", 76)
    assert ended(ring)[0] is Run.LOST


def test_a_ring_is_gone_only_with_all_that_it_was_given_later(ring: Ring) -> None:
    ring.phase("done")
    ring.add(3, "c", 1)
    ring.ends(0, saw_done=True)
    ring.ends(1, saw_done=True)
    assert not ring.backend.is_proven_gone(NAME)
    os.close(ring.part(2))
    (ring.path / RING / added_gpu_file(3)).unlink()  # as the job can
    (ring.path / RING / given_file(3)).unlink()
    assert not ring.backend.is_proven_gone(NAME)
    ring.ends(2, saw_done=True)
    assert ring.backend.is_proven_gone(NAME)


@pytest.mark.parametrize("content", [None, "", "{", "[[1, 2]]"])
def test_a_gpu_whose_file_cannot_be_read_is_not_taken_for_none(ring: Ring, content: str | None) -> None:
    ring.phase("done")
    ring.add(3, "c", 1)
    for piece in (0, 1):
        ring.ends(piece, saw_done=True)
    file = ring.path / RING / added_gpu_file(3)
    file.unlink() if content is None else file.write_text(content)
    assert not ring.backend.is_proven_gone(NAME)
    with pytest.raises(BackendError):
        ring.backend.ring_places(NAME)


def test_gpus_of_a_ring_are_used_until_nothing_will_run_there_and_left_once_that_is_proven(ring: Ring) -> None:
    ring.phase("running")
    a, b = MemberPlace("a", 0), MemberPlace("b", 2)
    assert ring.backend.ring_places(NAME) == [a, MemberPlace("a", 1), b]  # none has begun
    for piece in (0, 1):
        os.close(ring.part(piece))
    ring.places(0, {0: ("a", 0, True, 0), 1: ("a", 1, False, 1)})
    ring.places(1, {2: ("b", 2, True, 2)})
    ring.add(3, "c", 1)
    found = ring.backend.ring_places(NAME) or []
    assert [place.is_used for place in found] == [True, False, True, True]
    assert not any(place.is_left for place in found)
    ring.phase("running", lost=(2,))  # its launcher is gone, too
    assert [place.is_used for place in ring.backend.ring_places(NAME) or []] == [True, False, False, True]
    ring.phase("running")
    os.utime(ring.path / "part-1" / "started.json", (0, 0))  # the supervisor has been silent for long
    assert [place.is_used for place in ring.backend.ring_places(NAME) or []] == [True, False, False, True]
    ring.is_lost(1)
    assert [place.is_left for place in ring.backend.ring_places(NAME) or []] == [False, False, True, False]


def test_a_gpu_counts_once_what_runs_it_was_handed_over(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise BackendError("no answer")

    with monkeypatch.context() as patches:
        patches.setattr(ring.backend, "_start_added", refuse)
        with pytest.raises(BackendError):
            ring.add(3, "c", 1)
    assert len(ring.backend.ring_places(NAME) or []) == 3
    ring.add(3, "c", 1)
    assert len(ring.backend.ring_places(NAME) or []) == 4


def test_pieces_that_are_missing_are_handed_over_again_until_the_ring_is_over(ring: Ring) -> None:
    assert ring.backend._write_spec(ATTEMPT, PLACEMENT) is not None  # the first piece has claimed it
    write_stop(ring.folder, NAME, "time limit")
    assert ring.backend._write_spec(ATTEMPT, PLACEMENT) is None
    for piece in (0, 1):
        ring.ends(piece, "time limit")
    ring.backend.forget(NAME)
    assert ring.backend._write_spec(ATTEMPT, PLACEMENT) is None
    assert not (ring.path / "spec.json").exists()


def test_a_ring_whose_first_node_did_not_start_is_no_fault_of_its_job(ring: Ring) -> None:
    assert prove_never_started(ring.folder, NAME, 0)
    ring.ends(1, "rank failed", 76)
    assert ended(ring)[:2] == (Run.LOST, EndedBy.NODE_FAULT)


def test_a_ring_whose_coordinator_has_moved_ends_as_the_piece_did_that_ran_it_last(ring: Ring) -> None:
    ring.phase("lost")
    appoint(ring.path / RING, Appointment(1, 1))
    ring.is_lost(0)
    ring.ends(1, "rank failed", 5)
    run, _, ends = ended(ring)
    assert (run, ends) == (Run.EXITED, [(5, 0)])


GONE = "its piece is proven gone"
SILENT = "its supervisor is silent"
LIVES = "its supervisor lives"


@pytest.mark.parametrize(
    ("piece", "is_orphaned", "silent_s", "moves"),
    [
        (GONE, False, 0.0, True),
        (GONE, True, 100.0, True),
        (SILENT, True, UNANSWERED_S + 1.0, True),
        (SILENT, True, UNANSWERED_S - 1.0, False),  # a coordinator may be restarted meanwhile
        (SILENT, False, 1000.0, False),  # only the scheduler does not reach it
        (LIVES, True, UNANSWERED_S + 1.0, False),
        (LIVES, True, CUT_OFF_S + 1.0, True),
        (LIVES, False, CUT_OFF_S + 1.0, False),
    ],
)
def test_a_coordinator_moves_once_nothing_answers_in_its_place(
    ring: Ring, piece: str, silent_s: float, *, is_orphaned: bool, moves: bool
) -> None:
    ring.phase("running")
    ring.places(0, {0: ("a", 0, True, 0), 1: ("a", 1, False, 4)})
    os.close(ring.part(0))
    os.close(ring.part(1))
    if piece == SILENT:
        os.utime(ring.path / "part-0" / "started.json", (time.time() - 20.0,) * 2)
    elif piece == GONE:
        ring.is_lost(0)
    if is_orphaned:
        (ring.path / RING / orphaned_file(1)).touch()
    assert ring.backend.move_coordinator(NAME, silent_s) == ("b" if moves else "")
    gone = () if piece == LIVES else (0, 4)  # those of a machine that lives may reach the next coordinator
    assert read_appointment(ring.path / RING) == (Appointment(1, 1, gone) if moves else Appointment(0, 0))
    assert ring.backend.move_coordinator(NAME, 0.0) == ""


def test_a_coordinator_moves_to_no_piece_that_is_gone_has_not_begun_or_is_silent(ring: Ring) -> None:
    ring.phase("running")
    for rank, node in ((3, "c"), (4, "c"), (5, "b")):
        ring.add(rank, node, rank - 3)
    ring.is_lost(0)
    assert ring.backend.move_coordinator(NAME, 100.0) == ""  # no other has begun
    ring.is_lost(1)
    os.close(ring.part(2))
    os.utime(ring.path / "part-2" / "started.json", (0, 0))
    assert ring.backend.move_coordinator(NAME, 100.0) == ""
    os.close(ring.part(4))
    assert ring.backend.move_coordinator(NAME, 100.0) == "b"
    assert read_appointment(ring.path / RING).piece == 4
    ring.is_lost(4)
    os.close(ring.part(3))
    assert ring.backend.move_coordinator(NAME, 0.0) == "c"
    assert read_appointment(ring.path / RING)[:2] == (2, 3)


@pytest.mark.parametrize("why", ["done", "lost", "to stop", "it has not begun"])
def test_a_ring_that_is_over_or_has_not_begun_gets_no_other_coordinator(ring: Ring, why: str) -> None:
    os.close(ring.part(1))
    if why == "to stop":
        write_stop(ring.folder, NAME, "time limit")
    elif why != "it has not begun":
        ring.phase(why)
        ring.is_lost(0)
    assert ring.backend.move_coordinator(NAME, 1000.0) == ""


def test_a_ring_that_was_not_done_has_not_succeeded_however_well_its_hosts_ended(ring: Ring) -> None:
    ring.phase("running")
    appoint(ring.path / RING, Appointment(1, 1))
    ring.is_lost(0)
    ring.ends(1)  # the members gave up waiting for a coordinator
    assert ended(ring)[0] is Run.LOST


def test_the_clock_of_the_scheduler_makes_no_machine_silent(ring: Ring) -> None:
    """The markers have the time of the file system, which may be behind."""
    ring.phase("running")
    for piece in (0, 1):
        os.close(ring.part(piece))
        os.utime(ring.path / f"part-{piece}" / "started.json", (time.time() - 15.0,) * 2)
    (ring.path / RING / orphaned_file(1)).touch()
    assert ring.backend.move_coordinator(NAME, UNANSWERED_S + 1.0) == ""


def test_a_machine_that_shows_signs_of_life_comes_before_a_silent_one_and_no_lost_member_is_forgotten(
    ring: Ring,
) -> None:
    ring.phase("running")
    ring.add(3, "c", 1)
    ring.places(0, {0: ("a", 0, True, 0)})
    ring.places(1, {2: ("b", 2, True, 2)})
    ring.is_lost(0)
    for piece in (1, 2):
        os.close(ring.part(piece))
        (ring.path / RING / orphaned_file(piece)).touch()
    assert ring.backend.move_coordinator(NAME, 0.0) == "b"
    os.utime(ring.path / "part-1" / "started.json", (time.time() - 10.0,) * 2)
    assert ring.backend.move_coordinator(NAME, UNANSWERED_S + 1.0) == "c"
    assert read_appointment(ring.path / RING) == Appointment(2, 2, (0, 2))


MADE_UP = [
    "", "{", "[]", "1e999", '{"piece": 99, "gone": []}', '{"piece": 1e999, "gone": []}', '{"piece": -1, "gone": []}',
    '{"piece": null, "gone": []}', f'{{"piece": {"9" * 300}, "gone": []}}', '{"piece": 1, "gone": [1e999]}',
    '{"piece": 1, "gone": [[]]}', '{"piece": 1, "gone": 1}',
]  # fmt: skip


@pytest.mark.parametrize("content", MADE_UP)
def test_an_appointment_that_the_job_has_made_up_moves_nothing(ring: Ring, content: str) -> None:
    ring.phase("running")
    os.close(ring.part(1))
    (ring.path / RING / "appointed-7.json").write_text(content)
    with suppress(BackendError):
        assert ring.backend.move_coordinator(NAME, 1000.0) == ""
    for piece in (0, 1):
        ring.ends(piece, "rank failed", 1)
    assert ended(ring)[0] is Run.EXITED


def test_a_ring_is_one_before_any_host_has_made_its_folder(ring: Ring) -> None:
    (ring.path / RING).rmdir()
    records = ring.backend._read_records(NAME)
    assert records is not None
    assert records.is_ring
