"""Which nodes are suspect or down, by the answers that they missed."""

from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduler.health.monitor import judge_nodes
from longshore.scheduler.store.nodes import NodeRow
from longshore.scheduler.store.schema import Liveness

UP, SUSPECT, DOWN = Liveness.UP, Liveness.SUSPECT, Liveness.DOWN
START_S, POLL_S = 1000.0, 5.0


def nodes_of(count: int) -> list[NodeRow]:
    return [NodeRow(f"n{number}", "b", "a100", False, UP, START_S, START_S, 0) for number in range(count)]  # noqa: FBT003


def watched(nodes: list[NodeRow], last_s: list[float], polls: int) -> list[list[NodeRow]]:
    """Nodes at each of so many polls, of which each answers until its last time."""
    found = []
    for poll in range(1, polls + 1):
        now_s = START_S + POLL_S * poll
        answers = {row.name: min(now_s, end_s) for row, end_s in zip(nodes, last_s, strict=True)}
        nodes = judge_nodes(nodes, answers, now_s, polls=True)[0]
        found.append(nodes)
    return found


def test_a_node_is_suspect_after_three_misses_and_down_after_six() -> None:
    seen = watched(nodes_of(10), [START_S, *[1e9] * 9], polls=8)

    assert [rows[0].liveness for rows in seen] == [UP, UP, SUSPECT, SUSPECT, SUSPECT, DOWN, DOWN, DOWN]
    assert {row.liveness for rows in seen for row in rows[1:]} == {UP}
    assert seen[-1][0].since_s == START_S + 6 * POLL_S


@given(misses=st.integers(0, 1000), liveness=st.sampled_from(Liveness), polls=st.booleans())
def test_one_answer_restores_a_node_whatever_it_has_missed(misses: int, liveness: Liveness, polls: bool) -> None:  # noqa: FBT001
    (row,) = nodes_of(1)
    (after,) = judge_nodes([row._replace(misses=misses, liveness=liveness)], {"n0": 2000.0}, 2001.0, polls=polls)[0]

    assert (after.liveness, after.misses, after.seen_s) == (UP, 0, 2000.0)


@given(looks=st.lists(st.floats(0.0, 1e6), max_size=50))
def test_however_long_a_scheduler_was_held_up_a_look_is_one_miss_at_most(looks: list[float]) -> None:
    nodes, now_s = nodes_of(1), START_S
    for looked, wait_s in enumerate(looks, 1):
        now_s += wait_s
        nodes = judge_nodes(nodes, {"n0": START_S}, now_s, polls=True)[0]
        assert nodes[0].misses == looked
    assert (nodes[0].liveness is DOWN) == (len(looks) >= 6)


@given(st.integers(2, 40).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size))), st.data())
def test_of_more_than_thirty_percent_that_fall_silent_in_a_minute_none_is_ever_down(
    sizes: tuple[int, int], data: st.DataObject
) -> None:
    nodes, silent = sizes
    times = st.lists(st.floats(START_S, START_S + 59.0), min_size=silent, max_size=silent)
    last_s = [*data.draw(times), *[1e9] * (nodes - silent)]

    last = watched(nodes_of(nodes), last_s, polls=30)[-1]

    ours = silent >= 2 and silent > 0.3 * nodes
    assert {row.liveness for row in last[:silent]} == {SUSPECT if ours else DOWN}
    assert {row.liveness for row in last[silent:]} <= {UP}


@given(st.lists(st.one_of(st.none(), st.floats(START_S, START_S + 100.0)), min_size=1, max_size=20))
def test_a_node_that_falls_silent_is_up_no_more_and_any_other_always_is(last_s: list[float | None]) -> None:
    seen = watched(nodes_of(len(last_s)), [1e9 if end_s is None else end_s for end_s in last_s], polls=40)

    for number, end_s in enumerate(last_s):
        up = [rows[number].liveness is UP for rows in seen]
        assert up == sorted(up, reverse=True)
        assert up[-1] == (end_s is None)


def test_a_node_that_falls_silent_while_many_are_is_not_taken_to_be_down_and_one_that_was_down_stays_so() -> None:
    last_s = [START_S, *[START_S + 300.0] * 5, START_S + 400.0, *[1e9] * 3]

    last = watched(nodes_of(10), last_s, polls=120)[-1]

    assert [row.liveness for row in last] == [DOWN, *[SUSPECT] * 6, UP, UP, UP]
