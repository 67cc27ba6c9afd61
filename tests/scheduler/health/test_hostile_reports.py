"""What agents report of GPUs, true or not: one report takes nothing away, and all of them not the cluster."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from longshore.scheduler.backends.protocol import Capabilities, GpuView, NodeView
from longshore.scheduler.health.evidence import GpuReport, NodeReport
from longshore.scheduler.health.monitor import EASE_S, Monitor
from longshore.scheduler.model.gpu_index import Layout
from longshore.scheduler.store.database import open_store
from longshore.scheduler.store.events import SCHEDULER_LEASE, acquire_lease, events_after
from longshore.scheduler.store.nodes import ALARM
from tests.support.budgets import examples

NODES, GPUS, SHARE = 10, 4, 0.3
NAMES = [f"n{number}" for number in range(NODES)]
FINE = (True,) * GPUS
BROKEN, EVERY_S = (False, *FINE[1:]), 5.0
Healthy = tuple[bool | None, ...]
REPORTS = st.lists(st.sampled_from([True, False, None]), min_size=GPUS, max_size=GPUS).map(tuple)  # None: is not in it
BAD = REPORTS.filter(lambda gpus: False in gpus)
PHASES = st.lists(st.floats(0.0, EVERY_S, exclude_max=True), min_size=NODES, max_size=NODES)


class Nodes:
    """Nodes whose GPUs are all well, as their backend sees them."""

    capabilities = Capabilities(exact_gpus=True, atomic_gang=True, enforced=True)

    def __init__(self) -> None:
        self.now_s = 1000.0

    def observe(self) -> tuple[NodeView, ...]:
        gpus = tuple(GpuView(index, healthy=True) for index in range(GPUS))
        return tuple(NodeView(name, gpus, self.now_s, slots=False) for name in NAMES)


class AgentCluster:
    """A monitor whose agents report what a test sets."""

    def __init__(self, folder: Path) -> None:
        self.store, self.nodes = open_store(f"sqlite:///{folder / 'store.db'}"), Nodes()
        fence = self.store.write(lambda tx: acquire_lease(tx, SCHEDULER_LEASE, "test", now_s=0.0, ttl_s=1e9))
        assert fence is not None
        self.fence = fence
        self.begin()

    def begin(self) -> None:
        """Begin as the next scheduler does, without any reports."""
        layout = Layout(NAMES, [GPUS] * NODES)
        self.monitor = Monitor(self.nodes, "b", layout, dict.fromkeys(NAMES, "a100"))  # type: ignore[arg-type]
        self.monitor.load(self.store, self.fence, self.nodes.now_s)

    def report(self, node: str, healthy: tuple[bool | None, ...]) -> None:
        gpus = [
            GpuReport(index=index, healthy=fine, utilisation=0.0, free_bytes=1)
            for index, fine in enumerate(healthy)
            if fine is not None
        ]
        self.monitor.reports.add(node, NodeReport(gpus=tuple(gpus)), self.nodes.now_s)

    def look(self, later_s: float = 1.0) -> set[str]:
        """Return the nodes with GPUs that are faulty."""
        self.nodes.now_s += later_s
        return {NAMES[gpu // GPUS] for gpu in self.monitor.poll(self.store, self.nodes.now_s).faulty}

    def alarms(self) -> int:
        with self.store.read() as tx:
            return sum(event.now == ALARM for event in events_after(tx, 0, 1 << 40))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[AgentCluster]:
    it = AgentCluster(tmp_path)
    with closing(it.store):
        yield it


@given(st.lists(st.tuples(st.sampled_from(NAMES), REPORTS, st.booleans()), max_size=60))
@settings(max_examples=examples(60))
def test_no_reports_of_a_minute_take_more_than_thirty_percent_of_the_nodes_away(
    reports: list[tuple[str, tuple[bool | None, ...], bool]],
) -> None:
    with TemporaryDirectory() as folder:
        cluster = AgentCluster(Path(folder))
        with closing(cluster.store):
            for node, healthy, looks in reports:
                cluster.report(node, healthy)
                if looks:
                    assert len(cluster.look(later_s=0.9)) <= SHARE * NODES
            assert len(cluster.look(later_s=0.9)) <= SHARE * NODES


@pytest.mark.parametrize("bad", [(False, *FINE[1:]), (None, *FINE[1:]), (False,) * GPUS, (None, None, None, True)])
def test_two_reports_in_a_row_are_needed(cluster: AgentCluster, bad: tuple[bool | None, ...]) -> None:
    for healthy in (bad, FINE, bad, FINE, bad):
        cluster.report("n3", healthy)
        assert cluster.look() == set()
    cluster.report("n3", bad)
    assert cluster.look() == {"n3"}
    cluster.report("n3", FINE)
    assert cluster.look() == set()


def test_a_driver_that_breaks_everywhere_is_one_alarm_and_takes_no_gpu_away(cluster: AgentCluster) -> None:
    for _ in range(5):
        for name in NAMES:
            cluster.report(name, (False,) * GPUS)
        assert cluster.look(later_s=5.0) == set()

    assert cluster.alarms() == 1
    for name in NAMES[1:]:
        cluster.report(name, FINE)
    assert cluster.look() == set()  # it may be the last to say so
    assert cluster.look(later_s=EASE_S) == {"n0"}  # the fault that is left is its own


def test_an_agent_that_withdraws_its_reports_does_not_discredit_others(cluster: AgentCluster) -> None:
    others = NAMES[:3]  # together with one more they would be too many at once
    for turn in range(4):
        for name in others:
            cluster.report(name, (False, *FINE[1:]) if turn % 2 else FINE)
        cluster.report("n9", (False, *FINE[1:]) if turn > 1 else FINE)
        gone = cluster.look(later_s=5.0)

    assert gone == {"n9"}
    assert cluster.alarms() == 0


def rounds(cluster: AgentCluster, phases_s: list[float], turns: int, says: Callable[[str, int], Healthy]) -> set[str]:
    """Let each agent report in its time, with a look after each report; return the nodes that ever were faulty."""
    begin_s, found = cluster.nodes.now_s, set[str]()
    times = sorted((turn * EVERY_S + phases_s[at], at, turn) for turn in range(turns) for at in range(NODES))
    for at_s, at, turn in times:
        cluster.nodes.now_s = begin_s + at_s
        cluster.report(NAMES[at], says(NAMES[at], turn))
        found |= cluster.look(later_s=0.0)
    cluster.nodes.now_s = begin_s + turns * EVERY_S
    return found


@given(PHASES, BAD, BAD)
@settings(max_examples=examples(15), phases=[Phase.generate])  # to make it smaller takes minutes
def test_a_driver_that_breaks_everywhere_takes_no_gpu_away_whenever_each_agent_reports(
    phases_s: list[float], bad: Healthy, again: Healthy
) -> None:
    with TemporaryDirectory() as folder:
        cluster = AgentCluster(Path(folder))
        with closing(cluster.store):
            assert rounds(cluster, phases_s, 3, lambda _node, _turn: bad) == set()
            assert rounds(cluster, phases_s, 3, lambda _node, _turn: FINE) == set()
            assert rounds(cluster, phases_s, 3, lambda _node, _turn: again) == set()  # it is tried once more


@given(PHASES, st.lists(REPORTS, min_size=2, max_size=4), st.integers(0, 11))
@settings(max_examples=examples(15), phases=[Phase.generate])  # to make it smaller takes minutes
def test_agents_that_withdraw_their_reports_delay_a_true_fault_by_seconds_only(
    phases_s: list[float], says: list[Healthy], begins: int
) -> None:
    def report_of(node: str, turn: int) -> Healthy:
        if node == "n9":
            return BROKEN if turn >= begins else FINE
        return says[turn // 2 % len(says)] if turn % 2 else FINE  # all others, and none of them twice

    with TemporaryDirectory() as folder:
        cluster = AgentCluster(Path(folder))
        with closing(cluster.store):
            assert rounds(cluster, phases_s, begins + 6, report_of) == {"n9"}


@pytest.mark.parametrize("late", [(), ((False, *FINE[1:]), (True, False, *FINE[2:]))], ids=["silent", "others"])
def test_agents_that_report_once_only_delay_a_true_fault_by_a_minute_only(
    late: tuple[Healthy, ...], cluster: AgentCluster
) -> None:
    for name in NAMES:
        cluster.report(name, BROKEN)
    gone = set[str]()
    for turn in range(18):
        gone |= cluster.look(later_s=EVERY_S)
        cluster.report("n9", BROKEN)
        for name in NAMES[:-1] if late else ():
            cluster.report(name, late[(turn + 1) % 2])  # never the same GPU twice

    assert gone == {"n9"}


def test_earlier_faults_stay_while_too_many_are_reported(cluster: AgentCluster) -> None:
    for _ in range(2):
        cluster.report("n0", (False, *FINE[1:]))
    assert cluster.look() == {"n0"}
    for _ in range(2):
        for name in NAMES[1:]:
            cluster.report(name, (False,) * GPUS)

    assert cluster.look(later_s=120.0) == {"n0"}


def test_a_fault_is_not_forgotten_when_another_scheduler_goes_on(cluster: AgentCluster) -> None:
    for _ in range(2):
        cluster.report("n0", (False, *FINE[1:]))
    cluster.report("n1", FINE)
    assert cluster.look() == {"n0"}

    cluster.begin()

    assert cluster.look() == {"n0"}  # nobody has said that it is well
    cluster.report("n0", (False, *FINE[1:]))
    assert cluster.look() == {"n0"}
    cluster.report("n0", FINE)
    assert cluster.look() == set()


def has_long_had(cluster: AgentCluster, nodes: list[str]) -> None:
    """Let nodes have a faulty GPU since one day after the other."""
    for name in nodes:
        for _ in range(2):
            cluster.report(name, BROKEN)
            cluster.look(later_s=5.0)
        cluster.look(later_s=86400.0)


@pytest.mark.parametrize("phases_s", [[0.0] * NODES, [0.4 * number for number in range(NODES)]])
@pytest.mark.parametrize("first", [False, True])
def test_known_faults_keep_no_new_one_from_being_believed_when_another_scheduler_goes_on(
    cluster: AgentCluster, first: bool, phases_s: list[float]  # noqa: FBT001
) -> None:  # fmt: skip
    old, new = NAMES[:5], NAMES[7]
    has_long_had(cluster, old)
    cluster.begin()

    def says(node: str, turn: int) -> Healthy:
        return BROKEN if node in old or (node == new and (turn > 3 or first)) else FINE

    assert rounds(cluster, phases_s, 7, says) == {*old, new}
    assert cluster.alarms() == 0


def test_a_known_fault_that_was_mended_counts_again_when_it_comes_back(cluster: AgentCluster) -> None:
    has_long_had(cluster, NAMES[:3])
    cluster.begin()
    for turn in range(7):
        for name in NAMES[:4]:
            cluster.report(name, FINE if turn in (2, 3) else BROKEN)
        gone = cluster.look(later_s=5.0)

    assert gone == set()  # they began together
    assert cluster.alarms() == 1


@given(PHASES, st.sets(st.sampled_from(NAMES), max_size=3))
@settings(max_examples=examples(25))
def test_another_scheduler_distinguishes_a_broken_driver_from_known_faults(
    phases_s: list[float], old: set[str]
) -> None:
    with TemporaryDirectory() as folder:
        cluster = AgentCluster(Path(folder))
        with closing(cluster.store):
            has_long_had(cluster, sorted(old))
            cluster.begin()
            gone = rounds(cluster, phases_s, 5, lambda _node, _turn: (False,) * GPUS)

            assert len(gone - old) <= SHARE * NODES
            assert old <= gone


def test_a_report_without_any_gpu_accuses_none(cluster: AgentCluster) -> None:
    for _ in range(3):
        cluster.report("n0", (None,) * GPUS)
        assert cluster.look() == set()
