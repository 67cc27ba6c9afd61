"""What a scheduler makes of what a ring says of its slow members: the ring may say anything."""

from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.files.errors import BackendError
from longshore.ring.wire import EmptySeat, MemberOffer, NoMemberOffer, SeatRequest, SlowSeat
from longshore.scheduler.backends.local.backend import LocalBackend
from longshore.scheduler.backends.protocol import MemberPlace
from longshore.scheduler.control import seat_choice
from longshore.scheduler.health.evidence import AgentReport, GpuReport, NodeReport
from longshore.scheduler.model.gpu_index import Layout
from longshore.scheduler.model.job_spec import StoredJob
from longshore.scheduler.model.states import JobState
from tests.scheduler.obedient import Obedient
from tests.scheduler.ring_trials import RingWay
from tests.scheduler.trials import Trial


class Restless(Obedient):
    """Jobs that are rings of two on one node, and one of whose members is slow until another has its seat.

    What the ring reports changes at any time, also between two reads of one pass. There are no processes, and
    nothing is refused.

    Args:
        after: Reads after a third GPU was added, until the member there is reported to have a seat.
    """

    def __init__(self, nodes: Mapping[str, int], after: int) -> None:
        super().__init__(nodes)
        self.given = [MemberPlace("a", 0), MemberPlace("a", 1)]
        self._left = after

    @property
    def seat_request(self) -> SeatRequest:
        is_relieved = len(self.given) > 2 and self._left <= 0
        self._left -= len(self.given) > 2
        compute_s = {"0": 0.1, "1": 0.8, "2": 0.1}
        said = SeatRequest(1, [], [0, 2] if is_relieved else [0, 1], 0.9, compute_s, {"0": "a", "1": "a", "2": "b"})
        return replace(said, relieved=[1]) if is_relieved else replace(said, slow=[SlowSeat(1, 1, 0, 0)])

    @property
    def is_open(self) -> bool:
        return True

    def send(self, message: MemberOffer | NoMemberOffer) -> bool:
        return True

    def hints(self) -> list[str]:
        return []

    def close(self) -> None:
        """Do nothing."""

    def ring_report(self, name: str) -> None:
        """Return nothing, as a coordinator that does not answer."""

    def retire_members(self, name: str, gpus: Collection[tuple[str, int]], reason: str) -> bool:
        return True

    def connect_to_ring(self, name: str, wake: Callable[[], object]) -> "Restless":
        return self

    def ring_places(self, name: str) -> list[MemberPlace]:
        return list(self.given)

    def add_to_ring(self, name: str, rank: int, node: str, gpu: int) -> None:
        if rank == len(self.given):
            self.given.append(MemberPlace(node, gpu))


@pytest.mark.parametrize("after", range(12))
def test_a_request_that_changes_in_the_midst_of_a_look_brings_one_backup(after: int, tmp_path: Path) -> None:
    ring = Restless({"a": 2, "b": 2}, after)
    with closing(Trial(tmp_path, ring.nodes, lambda: ring, "obedient")) as trial:
        trial.way = RingWay(cast("LocalBackend", ring))
        trial.scheduler = trial.another()
        job = trial.submit("true", 2, failover="switch", backups=1)
        trial.tick(12)
        seats = [it.now for it in trial.events(job) if it.kind == "seat"]
        assert (seats, len(trial.held())) == (["backup"], 3)


def test_a_ring_goes_on_while_its_backend_cannot_retire_the_members_on_faulty_gpus(tmp_path: Path) -> None:
    ring, calls = Restless({"a": 2}, 0), list[str]()

    def fail(call: str) -> None:
        calls.append(call)
        if call == "retire_members":
            raise BackendError("status 500")

    with closing(Trial(tmp_path, ring.nodes, lambda: ring, "obedient")) as trial:
        way = trial.way = RingWay(cast("LocalBackend", ring))
        trial.scheduler = trial.another()
        job = trial.submit("true", 2, failover="switch")
        trial.runs(job)
        way.before, way.broken = fail, {("a", 0)}
        trial.wait(30.0)
        assert "retire_members" in calls
        assert trial.job(job).state is JobState.RUNNING


MEMBERS = st.integers(-3, 6)
TIMES = st.floats(-1e9, 1e9)  # what a message may hold
WANTS = st.builds(
    SeatRequest,
    empty=st.just([]),
    order=st.lists(MEMBERS, max_size=5),
    step_s=TIMES,
    compute_s=st.dictionaries(MEMBERS.map(str) | st.text(max_size=3), TIMES, max_size=5),
    nodes=st.dictionaries(MEMBERS.map(str), st.sampled_from(["a", "nowhere"]), max_size=5),
    slow=st.lists(st.builds(SlowSeat, MEMBERS, MEMBERS, MEMBERS, MEMBERS), max_size=4),
    relieved=st.lists(MEMBERS, max_size=4),
)


@given(st.none() | WANTS, st.integers(0, 4))
def test_a_ring_has_no_more_members_beside_its_seats_than_its_job_asked_for(
    want: SeatRequest | None, most: int
) -> None:
    spec = StoredJob.model_validate({"command": ["true"], "failover": "switch", "backups": most})
    assert 0 <= seat_choice.relieved_members(want, spec) + len(seat_choice.members_to_back_up(want, spec)) <= most


@given(WANTS.filter(lambda it: it.slow), st.data())
def test_what_a_ring_says_of_a_slow_member_is_turned_into_an_empty_seat_whatever_it_says(
    want: SeatRequest, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(want.slow) - 1))
    left, empty = seat_choice.request_without_slow(want, want.slow, at)
    slow = {it.member for it in want.slow}
    assert not slow & set(left.order)
    assert not slow & set(map(int, left.compute_s))
    assert empty == EmptySeat(want.slow[at].seat, want.slow[at].before, want.slow[at].after)
    assert left.step_s >= 0.0


def test_without_the_slow_member_an_iteration_takes_as_much_less_as_it_computes_longer() -> None:
    times = {"0": 1.0, "1": 5.0, "2": 1.5}
    want = SeatRequest(3, [], [0, 1, 2], 5.5, times, {}, [SlowSeat(1, 1, 0, 2)], [])
    left, empty = seat_choice.request_without_slow(want, want.slow, 0)
    assert (left.step_s, left.order, left.compute_s) == (2.0, [0, 2], {"0": 1.0, "2": 1.5})
    assert empty == EmptySeat(1, 0, 2)


@pytest.mark.parametrize(("age_s", "utilisation", "busy"), [(0.0, 0.5, [5]), (0.0, 0.1, []), (121.0, 0.5, [])])
def test_gpus_of_slow_nodes_and_those_that_someone_uses_get_no_backup(
    age_s: float, utilisation: float, busy: list[int]
) -> None:
    layout = Layout(["a", "b", "c"], [2, 2, 2])
    want = SeatRequest(3, [], [0, 1], 1.0, {}, {"0": "a", "1": "b", "7": "nowhere"}, [SlowSeat(0, 0, 1, 1)], [7])
    told = NodeReport(gpus=(GpuReport(index=1, healthy=True, utilisation=utilisation, free_bytes=0),))
    assert seat_choice.gpus_unfit_for_backup(want, layout, {"c": AgentReport(1000.0, told)}, 1000.0 + age_s) == [
        0,
        1,
        *busy,
    ]
