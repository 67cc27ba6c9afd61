"""Whole runs with faults and switching: the live scheduler fills the seats that the simulator fills, as it does."""

import pytest

from benchmarks.switching_twin import NODE_GPUS, NODES, Compared, compared, trace
from longshore.cluster.files.errors import BackendError
from longshore.cluster.switching import RING, SOURCE
from longshore.ring.wire import NoMemberOffer
from longshore.scheduler.backends.protocol import Attempt
from longshore.scheduler.model.gpu_index import Layout
from longshore.testing.simulated import SimulatedBackend

JOBS = 15  # of a trace that takes seconds
SEED = 6  # of the trace in which `Launched` has a member whose GPU fails and stays so
NAME = "ls-0-1"


@pytest.mark.few(1)
@pytest.mark.parametrize("formula", [SOURCE, RING])
@pytest.mark.parametrize("transient", [False, True])
def test_a_run_with_faults_has_the_replacements_of_the_simulator(formula: int, *, transient: bool) -> None:
    it = compared(1, formula, JOBS, transient=transient)
    assert_equal(it)
    kinds = {(one.left >= 0, one.came >= 0) for one in it.simulated}
    assert kinds == {(True, True), (True, False), (False, True)}  # filled, left empty, won back


@pytest.mark.full
def test_a_ring_that_goes_on_short_and_stands_still_again_wins_seats_back_in_its_turn() -> None:
    """Of the traces that `make bench-switching_twin` runs this one has many such moments."""
    it = compared(4, SOURCE)
    assert_equal(it)
    assert len(it.simulated) > 200


def assert_equal(it: Compared) -> None:
    assert it.scheduled == it.simulated
    assert it.stored == sorted((one.time_s, one.job, one.came) for one in it.simulated if one.came >= 0)
    assert it.other_events == 0


class Launched:
    """A backend with one attempt of the first job that asks for several GPUs, on the first GPUs of the cluster."""

    def __init__(self, seats: int = 4) -> None:
        sim = trace(SEED, RING, JOBS)
        layout = Layout([f"n{node}" for node in range(NODES)], [NODE_GPUS] * NODES)
        self.backend, self.seats = SimulatedBackend(sim, layout), seats
        self.job = next(job for job, gpus in enumerate(sim.scenarios.gpus[0].tolist()) if gpus == seats)
        while sim.state.submitted[0] <= self.job:
            self.pass_on()
        self.backend.of_job["job"] = self.job
        free = [gpu for gpu in range(NODES * NODE_GPUS) if sim.state.gpu_down[0, gpu] == 0][:seats]
        attempt = Attempt(NAME, "job", 1, ("true",), "", {}, seats=seats)
        self.backend.launch(attempt, layout.placement(free))

    def pass_on(self) -> None:
        """Let the next moment come."""
        self.backend.process_moment(self.backend.next_event_time_s())

    def until_a_seat_is_empty(self) -> None:
        """Let time pass until the fault of a member is found."""
        connection = self.backend.connect_to_ring(NAME, lambda: None)
        while connection.seat_request is None or not connection.seat_request.empty:
            self.pass_on()
            report = self.backend.ring_report(NAME)
            assert report is not None
            assert report.phase in ("running", "stopping")  # not over without a fault that stays

    def free(self) -> tuple[str, int]:
        """Return a GPU that is free."""
        state = self.backend.sim.state
        gpus = [gpu for gpu in range(NODES * NODE_GPUS) if state.gpu_job[0, gpu] < 0 and state.gpu_down[0, gpu] == 0]
        return self.backend.layout.node_and_index(gpus[-1])

    @property
    def used(self) -> int:
        """GPUs on which the ring has members."""
        return sum(it.is_used for it in self.backend.ring_places(NAME) or ())


@pytest.fixture(scope="module")
def struck() -> Launched:
    """Return a ring of which a member is found gone."""
    case = Launched()
    case.until_a_seat_is_empty()
    return case


def test_the_simulated_backend_has_rings() -> None:
    backend = Launched().backend
    assert backend.capabilities.runs_rings
    report = backend.ring_report(NAME)
    assert report is not None
    assert (report.phase, report.order) == ("running", [0, 1, 2, 3])
    assert backend.ring_report("ls-1-1") is None


def test_a_member_is_gone_once_its_fault_is_found_and_its_gpu_is_proven_left(struck: Launched) -> None:
    places = struck.backend.ring_places(NAME) or []
    gone = [it for it in places if not it.is_used]
    assert gone
    assert all(it.is_left for it in gone)
    want = struck.backend.connect_to_ring(NAME, lambda: None).seat_request
    assert want is not None
    assert len(want.empty) == len(gone)
    assert len(want.order) == struck.seats - len(gone)
    assert struck.backend.retire_members(NAME, [(it.node, it.gpu) for it in gone], "faulty")


def test_a_member_on_a_healthy_gpu_does_not_leave(struck: Launched) -> None:
    healthy = next(it for it in struck.backend.ring_places(NAME) or () if it.is_used)
    with pytest.raises(BackendError, match=healthy.node):
        struck.backend.retire_members(NAME, [(healthy.node, healthy.gpu)], "wanted elsewhere")


def test_a_rank_is_given_once_and_in_turn(struck: Launched) -> None:
    node, gpu = struck.free()
    with pytest.raises(BackendError, match="is next"):
        struck.backend.add_to_ring(NAME, struck.seats + 1, node, gpu)
    first = (struck.backend.ring_places(NAME) or [])[0]
    struck.backend.add_to_ring(NAME, 0, first.node, first.gpu)  # as it was
    with pytest.raises(BackendError, match="cannot be of rank 0"):
        struck.backend.add_to_ring(NAME, 0, node, gpu)
    with pytest.raises(BackendError, match="not free"):
        struck.backend.add_to_ring(NAME, struck.seats, first.node, first.gpu)


@pytest.mark.full
def test_a_ring_that_is_not_answered_has_shrunk_when_time_goes_on() -> None:
    case = Launched()
    case.until_a_seat_is_empty()
    used = case.used
    case.pass_on()
    report = case.backend.ring_report(NAME)
    assert report is not None
    assert report.phase == "running"
    assert case.used == used < case.seats


def test_a_ring_goes_on_once_it_knows_that_no_member_comes_and_grows_when_one_does() -> None:
    case = Launched()
    case.until_a_seat_is_empty()
    used, woken = case.used, list[int]()
    connection = case.backend.connect_to_ring(NAME, lambda: woken.append(1))
    assert connection.send(NoMemberOffer("no GPU is free"))
    assert woken
    want = connection.seat_request
    assert want is not None
    node, gpu = case.free()
    case.backend.add_to_ring(NAME, case.seats, node, gpu)
    assert case.used == used + 1
    assert connection.seat_request is not None
    assert len(connection.seat_request.empty) == len(want.empty) - 1
    assert connection.seat_request.generation > want.generation


def test_a_ring_that_lacks_no_member_takes_none() -> None:
    case = Launched()
    node, gpu = case.free()
    with pytest.raises(BackendError, match="no seat"):
        case.backend.add_to_ring(NAME, case.seats, node, gpu)
