"""What the events of a store teach of fault rates, hostile and repeated ones included."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.state.beliefs import HALF_LIFE_S
from longshore.scheduler.health.fault_report import (
    FAULTS_KEPT_S,
    MAX_FAULT_EVENTS,
    FaultHistory,
    learn_beliefs,
    read_fault_history,
)
from longshore.scheduler.mirror.cluster_mirror import Beliefs
from longshore.scheduler.model.job import NewEvent
from longshore.scheduler.store.database import open_store
from longshore.scheduler.store.events import EventRow, append_all
from longshore.scheduler.store.nodes import CHANGE
from tests.scheduler.health.fault_events import DAY_S, LAYOUT, RATE_PER_S, SITE, event


def learned(*events: EventRow, days: float = 30.0) -> Beliefs:
    found = learn_beliefs(SITE, LAYOUT, FaultHistory(0.0, events, days * DAY_S))
    assert found is not None
    return found


def test_without_faults_the_cluster_file_is_believed() -> None:
    found = learned()

    assert found.node_hazard_per_s == (RATE_PER_S,) * 3
    assert found.observed_faults == (0.0, 0.0, 0.0)


def test_a_node_that_failed_is_believed_to_fail_more_often_than_others() -> None:
    found = learned(
        event(3, "b", "faulty", 1),
        event(4, "b", "healthy", 1),
        event(9, "b", "down"),
        event(9.5, "b", "up"),
    )

    # It was observed last when it came back, half a day after its second fault.
    weights = [0.5 ** (age * DAY_S / HALF_LIFE_S) for age in (6.5, 0.5)]
    assert list(found.observed_faults) == pytest.approx([0.0, sum(weights), 0.0])
    assert found.node_hazard_per_s[1] > 3.0 * RATE_PER_S
    assert found.node_hazard_per_s[0] == found.node_hazard_per_s[2] < found.node_hazard_per_s[1] / 3.0


def test_all_gpus_of_a_node_that_fail_together_are_one_fault() -> None:
    both = learned(event(3, "b", "faulty", 0), event(3, "b", "faulty", 1))
    one = learned(event(3, "b", "down"))

    assert both.node_hazard_per_s == one.node_hazard_per_s
    assert both.observed_faults == (0.0, 1.0, 0.0)


def test_what_an_operator_does_to_a_node_is_no_fault_nor_what_becomes_of_it_meanwhile() -> None:
    found = learned(
        event(3, "b", "out of service"), event(3.5, "b", "suspect"), event(3.6, "b", "down"),
        event(3.7, "b", "faulty", 0), event(3.8, "b", "healthy", 0), event(3.9, "b", "up"), event(4, "b", "in service"),
    )  # fmt: skip

    assert found.observed_faults == (0.0, 0.0, 0.0)
    assert found.node_hazard_per_s == (RATE_PER_S,) * 3


def test_a_silent_node_that_answers_again_did_not_fail() -> None:
    assert learned(event(3, "b", "suspect"), event(3.1, "b", "up")).observed_faults == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("rule", [True, False])
def test_nothing_is_learned_where_rates_are_known(*, rule: bool) -> None:
    site = SITE._replace(rules=SITE.rules._replace(estimated_hazards=rule))
    assert (learn_beliefs(site, LAYOUT, FaultHistory(0.0, (), 1.0)) is None) is not rule


WORDS = ("faulty", "healthy", "up", "suspect", "down", "out of service", "in service", "alarm", "")
NODES = st.sampled_from(["a", "b", "c", "gone", ""])
GPUS: st.SearchStrategy[object] = st.integers(-2, 3) | st.none() | st.just("0")


@given(
    st.lists(
        st.builds(
            event, st.floats(-5.0, 60.0), st.sampled_from(["a", "b", "c", "gone", ""]), st.sampled_from(WORDS), GPUS
        )
    )
)
def test_any_events_teach_rates_that_can_be_and_twice_the_same_one_teaches_no_more(events: list[EventRow]) -> None:
    found = learned(*events)

    assert all(0.0 < rate < 1.0 for rate in (*found.node_hazard_per_s, *found.gpu_hazard_per_s))
    assert all(0.0 <= faults <= len(events) for faults in found.observed_faults)
    assert max(found.observed_s) <= 30.0 * DAY_S
    assert learned(*(event for event in events for _ in range(2))) == found


def history(folder: Path, events: Iterable[NewEvent], now_s: float) -> FaultHistory:
    store = open_store(f"sqlite:///{folder / 'store.db'}")
    store.write(lambda tx: append_all(tx, list(events)))
    with store.read() as tx:
        found = read_fault_history(tx, now_s)
    store.close()
    return found


def test_events_of_nodes_are_read_as_far_back_as_they_teach_something(tmp_path: Path) -> None:
    now_s = FAULTS_KEPT_S + 10 * DAY_S
    new = [NewEvent(CHANGE, "monitor", day * DAY_S, now="faulty", data={"node": "a", "gpu": 0}) for day in (1, 20, 30)]
    other = NewEvent("job", "scheduler", 25 * DAY_S, "job", now="queued")

    found = history(tmp_path, [new[0], other, *new[1:]], now_s)

    assert [event.at_s / DAY_S for event in found.events] == [20.0, 30.0]
    assert found.since_s == now_s - FAULTS_KEPT_S


def test_a_new_store_begins_now_and_a_young_one_with_its_first_event(tmp_path: Path) -> None:
    assert history(tmp_path, [], 5 * DAY_S) == FaultHistory(5 * DAY_S, [], 5 * DAY_S)
    job = NewEvent("job", "scheduler", 3 * DAY_S, "job", now="queued")
    assert history(tmp_path, [job], 5 * DAY_S).since_s == 3 * DAY_S


def test_of_very_many_events_the_last_are_read(tmp_path: Path) -> None:
    new = [
        NewEvent(CHANGE, "monitor", float(second), now="up", data={"node": "a"})
        for second in range(MAX_FAULT_EVENTS + 5)
    ]

    found = history(tmp_path, new, 1e4)

    assert (len(found.events), found.since_s) == (MAX_FAULT_EVENTS, 5.0)
