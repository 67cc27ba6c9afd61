import numpy as np

from longshore.cluster.model.outcome import Event
from longshore.eval.figures import DOWN, gpu_use_over_time, shares_by_node, spells_of
from tests.eval.runs import CLUSTER_GPUS, EVENTS, GPU_NODE


def listed(events: list[Event]) -> list[tuple[int, int, float, float]]:
    found = spells_of(events, CLUSTER_GPUS)
    return sorted(zip(*(column.tolist() for column in found), strict=True))


def test_spells_of_a_hand_worked_schedule() -> None:
    assert listed(EVENTS) == [
        (0, DOWN, 10.0, 25.0),
        (0, 0, 0.0, 10.0),
        (1, 0, 0.0, 10.0),
        (1, 0, 10.0, 50.0),
        (2, 0, 10.0, 50.0),
        (3, 1, 0.0, 30.0),
    ]


def test_a_job_that_switches_holds_the_gpus_that_it_keeps_in_one_spell() -> None:
    kinds = [(0.0, "start", (0, 1)), (5.0, "switch", (0, 2)), (8.0, "switch", (0,)), (9.0, "finish", (0,))]
    found = listed([Event(time_s, kind, 4, gpus) for time_s, kind, gpus in kinds])
    assert found == [(0, 4, 0.0, 9.0), (1, 4, 0.0, 5.0), (2, 4, 5.0, 8.0)]


def test_a_gpu_with_two_faults_is_down_until_both_are_repaired() -> None:
    times = [(1.0, "fault"), (2.0, "fault"), (4.0, "repair"), (8.0, "repair"), (9.0, "fault"), (9.0, "repair")]
    assert listed([Event(time_s, kind, -1, (5,)) for time_s, kind in times]) == [(5, DOWN, 1.0, 8.0)]


def test_what_is_open_at_the_end_ends_with_the_last_event() -> None:
    events = [Event(1.0, "fault", -1, (5,)), Event(2.0, "start", 3, (0,)), Event(6.0, "submit", 4, ())]
    assert listed(events) == [(0, 3, 2.0, 6.0), (5, DOWN, 1.0, 6.0)]


def test_no_event_is_no_spell() -> None:
    assert listed([]) == []


def test_busy_and_down_gpu_time_is_that_of_the_spells() -> None:
    time_s, busy, down = gpu_use_over_time(spells_of(EVENTS, CLUSTER_GPUS))
    width_s = np.diff(time_s)
    assert (busy[:-1] * width_s).sum() == 2 * 10 + 2 * 40 + 30
    assert (down[:-1] * width_s).sum() == 15
    assert busy[-1] == down[-1] == 0


def test_shares_by_node_add_up_to_the_same_gpu_time() -> None:
    found = spells_of(EVENTS, CLUSTER_GPUS)
    busy, down = shares_by_node(found, GPU_NODE, np.linspace(0.0, 50.0, 51))
    assert busy.shape == (4, 50)
    assert 2 * busy.sum() == 130
    assert 2 * down.sum() == 15
    assert busy[0, 5] == 1.0
    assert (busy[0, 15], down[0, 15]) == (0.5, 0.5)
