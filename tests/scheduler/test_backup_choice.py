"""What a scheduler makes of what a ring says of its slow members: the ring may say anything."""

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduler.control.health import backups
from longshore.scheduler.control.health.live_ring import LiveRing
from longshore.scheduler.failover.wire import Coming, Empty, NoneComing, Slow, Want
from longshore.scheduler.health.reports import GpuReport, NodeReport, Report
from longshore.scheduler.model.gpu_index import Layout
from longshore.scheduler.model.job_spec import StoredJob
from longshore.scheduler.store.rows.attempts import AttemptRow


class Told:
    """A desk that heard something once."""

    def __init__(self, want: Want | None) -> None:
        self.want = want

    def say(self, message: Coming | NoneComing) -> bool:
        return False

    def hints(self) -> list[str]:
        return []

    def close(self) -> None:
        """Do nothing."""


MEMBERS = st.integers(-3, 6)
TIMES = st.floats(-1e9, 1e9)  # what a message may hold
WANTS = st.builds(
    Want,
    empty=st.just([]),
    order=st.lists(MEMBERS, max_size=5),
    step_s=TIMES,
    compute_s=st.dictionaries(MEMBERS.map(str) | st.text(max_size=3), TIMES, max_size=5),
    nodes=st.dictionaries(MEMBERS.map(str), st.sampled_from(["a", "nowhere"]), max_size=5),
    slow=st.lists(st.builds(Slow, MEMBERS, MEMBERS, MEMBERS, MEMBERS), max_size=4),
    relieved=st.lists(MEMBERS, max_size=4),
)


@given(st.none() | WANTS, st.integers(0, 4))
def test_a_ring_has_no_more_members_beside_its_seats_than_its_job_asked_for(want: Want | None, most: int) -> None:
    spec = StoredJob.model_validate({"command": ["true"], "failover": "switch", "backups": most})
    ring = LiveRing(cast("AttemptRow", None), Told(want))
    assert 0 <= backups.relieved(ring, spec) + len(backups.wanted(ring, spec)) <= most


@given(WANTS.filter(lambda it: it.slow), st.data())
def test_what_a_ring_says_of_a_slow_member_is_turned_into_an_empty_seat_whatever_it_says(
    want: Want, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(want.slow) - 1))
    left, empty = backups.without(want, want.slow, at)
    slow = {it.member for it in want.slow}
    assert not slow & set(left.order)
    assert not slow & set(map(int, left.compute_s))
    assert empty == Empty(want.slow[at].seat, want.slow[at].before, want.slow[at].after)
    assert left.step_s >= 0.0


def test_without_the_slow_member_an_iteration_takes_as_much_less_as_it_computes_longer() -> None:
    times = {"0": 1.0, "1": 5.0, "2": 1.5}
    want = Want(3, [], [0, 1, 2], 5.5, times, {}, [Slow(1, 1, 0, 2)], [])
    left, empty = backups.without(want, want.slow, 0)
    assert (left.step_s, left.order, left.compute_s) == (2.0, [0, 2], {"0": 1.0, "2": 1.5})
    assert empty == Empty(1, 0, 2)


@pytest.mark.parametrize(("age_s", "utilisation", "busy"), [(0.0, 0.5, [5]), (0.0, 0.1, []), (121.0, 0.5, [])])
def test_gpus_of_slow_nodes_and_those_that_somebody_uses_get_no_backup(
    age_s: float, utilisation: float, busy: list[int]
) -> None:
    layout = Layout(["a", "b", "c"], [2, 2, 2])
    want = Want(3, [], [0, 1], 1.0, {}, {"0": "a", "1": "b", "7": "nowhere"}, [Slow(0, 0, 1, 1)], [7])
    told = NodeReport(gpus=(GpuReport(index=1, healthy=True, utilisation=utilisation, free_bytes=0),))
    assert backups.unfit(want, layout, {"c": Report(1000.0, told)}, 1000.0 + age_s) == [0, 1, *busy]
