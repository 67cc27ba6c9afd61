"""Which links are probed at once, how long an outcome counts, and that nobody waits for longer than a second."""

import threading
import time
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduler.control.seat_choice import neighbour_links
from longshore.scheduler.health.link_probes import (
    LINK_AGAIN_S,
    LINK_KEPT_S,
    ROUND_S,
    WHOLE_PROBE_S,
    LinkOutcome,
    LinkState,
    LinkTable,
    Pair,
    ProbePlace,
    startable_pairs,
)
from tests.scheduler.served import until

NODES = [f"n{it}" for it in range(12)]
PLACES = {it: ProbePlace(address="10.0.0.1", port=at + 1, key="0" * 64) for at, it in enumerate(NODES)}
NAMES = {place: node for node, place in PLACES.items()}
FAST = LinkOutcome(LinkState.MEASURED, 1e8)


def nothing() -> None: ...


def share(one: Pair, other: Pair) -> bool:
    return not set(one).isdisjoint(other)


pairs = st.tuples(st.sampled_from(NODES), st.sampled_from(NODES)).filter(lambda it: it[0] != it[1])


@given(st.lists(pairs, unique=True), st.lists(pairs, max_size=3))
def test_as_many_are_probed_at_once_as_share_no_node(waiting: list[Pair], running: list[Pair]) -> None:
    found = startable_pairs(waiting, running)
    together = [*found, *running]
    assert not any(share(it, other) for at, it in enumerate(found) for other in [*running, *found[:at]])
    assert all(any(share(it, other) for other in together) for it in waiting if it not in found)


class Probes:
    """Stands for agents: notes which probes are under way at once."""

    def __init__(self, outcome: LinkOutcome = FAST) -> None:
        self.outcome, self.running, self.done = outcome, set[Pair](), list[Pair]()
        self.clashes = list[tuple[Pair, Pair]]()
        self._lock = threading.Lock()

    def __call__(self, sender: ProbePlace, receiver: ProbePlace) -> LinkOutcome:
        mine = NAMES[sender], NAMES[receiver]
        with self._lock:
            self.clashes += [(mine, it) for it in self.running if share(mine, it)]
            self.running.add(mine)
        time.sleep(0.001)
        with self._lock:
            self.running.discard(mine)
            self.done.append(mine)
        return self.outcome


nodes = st.sampled_from(range(12))
rings = st.tuples(nodes, nodes, st.lists(nodes, unique=True, max_size=3))


@given(st.lists(rings, min_size=1, max_size=3))
def test_of_any_rings_at_once_no_two_probes_share_a_node_and_all_are_done_once(
    asked: list[tuple[int, int, list[int]]],
) -> None:
    probes = Probes()
    table = LinkTable(PLACES.copy, probed=probes)
    wanted = [neighbour_links(NODES, (before, after), candidates) for before, after, candidates in asked]
    until_s = time.monotonic() + 60.0
    while True in {table.request_probes(it, until_s, nothing) for it in wanted}:
        time.sleep(0.001)
    assert probes.clashes == []
    assert sorted(probes.done) == sorted({pair for it in wanted for pair in it})
    expected = {
        pair
        for before, after, candidates in asked
        for node in candidates
        for pair in ((NODES[before], NODES[node]), (NODES[node], NODES[after]))
        if pair[0] != pair[1]
    }
    assert set(table.fresh_outcomes()) == expected


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def done(table: LinkTable, wanted: list[Pair], until_s: float) -> None:
    until(lambda: not table.request_probes(wanted, until_s, nothing))


def test_what_was_measured_counts_for_ten_minutes_and_what_is_not_known_is_probed_again_after_one() -> None:
    for outcome, kept_s in (
        (FAST, LINK_KEPT_S),
        (LinkOutcome(LinkState.BROKEN), LINK_AGAIN_S),
        (LinkOutcome(LinkState.UNKNOWN), LINK_AGAIN_S),
    ):
        clock, probes = Clock(), Probes(outcome)
        table, wanted = LinkTable(PLACES.copy, clock, probes), [("n0", "n1")]
        done(table, wanted, clock.now_s + ROUND_S)
        clock.now_s += kept_s
        assert table.fresh_outcomes()["n0", "n1"][:3] == outcome[:3]
        assert not table.request_probes(wanted, clock.now_s + ROUND_S, nothing)
        clock.now_s += 0.1
        assert table.fresh_outcomes() == {}
        done(table, wanted, clock.now_s + ROUND_S)
        assert len(probes.done) == 2


def test_a_node_without_an_agent_and_a_node_with_itself_are_not_probed() -> None:
    probes = Probes()
    table = LinkTable(lambda: {"n0": PLACES["n0"]}, probed=probes)
    assert not table.request_probes([("n0", "n1"), ("n1", "n0"), ("n0", "n0")], time.monotonic() + ROUND_S, nothing)
    assert (probes.done, table.fresh_outcomes()) == ([], {})


class Hanging:
    """Probes that end when they are let."""

    def __init__(self) -> None:
        self.begun, self.go = list[Pair](), threading.Event()

    def __call__(self, sender: ProbePlace, receiver: ProbePlace) -> LinkOutcome:
        self.begun.append((NAMES[sender], NAMES[receiver]))
        self.go.wait(60.0)
        return FAST


def test_what_would_not_end_in_time_is_not_begun_and_what_ends_late_is_kept() -> None:
    clock, probes, woken = Clock(), Hanging(), threading.Event()
    table, until_s = LinkTable(PLACES.copy, clock, probes), clock.now_s + ROUND_S
    wanted = [("n0", "n1"), ("n0", "n2"), ("n3", "n4")]
    assert table.request_probes(wanted, until_s, woken.set)
    until(lambda: len(probes.begun) == 2)
    assert set(probes.begun) == {("n0", "n1"), ("n3", "n4")}
    clock.now_s = until_s - WHOLE_PROBE_S + 0.01
    assert table.request_probes(wanted, until_s, woken.set)  # two may still end
    assert not woken.is_set()
    probes.go.set()
    until(lambda: len(table.fresh_outcomes()) == 2)
    assert woken.wait(60.0)
    assert not table.request_probes(wanted, until_s, woken.set)
    assert set(probes.begun) == set(table.fresh_outcomes()) == {("n0", "n1"), ("n3", "n4")}


def test_a_probe_that_raises_leaves_a_link_that_is_not_known() -> None:
    def fail(sender: ProbePlace, receiver: ProbePlace) -> LinkOutcome:
        raise ValueError("a bug")

    reported: list[object] = []
    hook: Callable[[object], None] = reported.append
    before, threading.excepthook = threading.excepthook, hook
    try:
        table = LinkTable(PLACES.copy, probed=fail)
        done(table, [("n0", "n1")], time.monotonic() + 60.0)
    finally:
        threading.excepthook = before
    assert table.fresh_outcomes()["n0", "n1"].state is LinkState.UNKNOWN
