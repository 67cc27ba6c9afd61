"""What is known of silent nodes, over any sequence of observations, against a plain machine that keeps all of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduler.health.evidence import (
    MAX_AGAIN_S,
    PORT_PROBE_ORDER_S,
    PROBE_AGAIN_S,
    VERIFY_S,
    AgentReport,
    NodeReport,
    PortProbe,
    PortProbeOrder,
    PortState,
    Witnesses,
    verdict_of,
)
from longshore.scheduler.health.monitor import judge_nodes, troubled_together
from longshore.scheduler.model.states import ProbeVerdict
from longshore.scheduler.store.nodes import NodeRow
from longshore.scheduler.store.schema import Liveness

POLL_S = 5.0
FAILED = (PortState.REFUSED, PortState.NO_ROUTE, PortState.TIMED_OUT)


def report_of(node: str, at_s: float, agent_port: int = 7000) -> AgentReport:
    return AgentReport(at_s, NodeReport(agent_port=agent_port), None, f"10.0.0.{node[1:]}", at_s)


class Cluster:
    """Nodes n0, n1, ... whose agents report and probe as a test sets; both machines are told the same.

    Args:
        nodes: How many.
    """

    def __init__(self, nodes: int) -> None:
        self.names = [f"n{number}" for number in range(nodes)]
        self.now_s, self.witnesses, self.plain = 1000.0, Witnesses(), Plain(self.names)
        self.rows = [NodeRow(name, "b", "a100", False, Liveness.UP, 1000.0, 1000.0, 0) for name in self.names]  # noqa: FBT003
        self.reports = {name: report_of(name, 1000.0) for name in self.names}
        self.probes: list[tuple[PortProbe, float]] = []  # the scheduler's own that are under way, and since when

    def report(self, node: str) -> None:
        self.reports[node] = report_of(node, self.now_s)

    def look(self, *, polls: bool = True) -> None:
        """Let time pass, and look."""
        self.now_s += POLL_S
        found = self.witnesses.update(self.reports, self.now_s, polls=polls)
        answered = {name: it.at_s for name, it in self.reports.items()}
        self.rows = judge_nodes(self.rows, answered, self.now_s, polls=polls, found=found)[0]
        self.plain.look({name: it.at_s for name, it in self.reports.items()}, self.now_s, polls=polls)
        for who in self.names:
            self.plain.orders(who, [it.id for it in self.witnesses.orders_for(who)], self.now_s)
        self.probes += [(it, self.now_s) for it in self.witnesses.take_due_probes(self.now_s)]

    def see(self, node: str, result: PortState) -> None:
        """Let all probes of the scheduler at a agent_port come to their end."""
        for probe, asked_s in [it for it in self.probes if it[0].node == node]:
            self.witnesses.record_own_result(probe, result, asked_s)
            self.plain.seen("", node, result, asked_s)
        self.probes = [it for it in self.probes if it[0].node != node]

    def answer(self, who: str, result: PortState) -> None:
        """Let an agent carry out all that it was asked for."""
        for order in self.witnesses.orders_for(who):
            assert order.probe.node != who
            assert self.witnesses.record_result(who, order.id, result)
            self.plain.seen(who, order.probe.node, result, self.plain.asked_s[order.id])

    def answer_all(self, result: PortState = PortState.ANSWERED) -> None:
        for name in self.names:
            self.see(name, result)
            self.answer(name, result)

    def row(self, node: str) -> NodeRow:
        return next(row for row in self.rows if row.name == node)

    def asked(self) -> dict[str, list[str]]:
        """Return who is asked to probe at whose agent_ports."""
        return {who: [it.probe.node for it in self.witnesses.orders_for(who)] for who in self.names}


@dataclass
class Plain:
    """The same by definition: all that ever happened is kept, and gone through anew at each look."""

    names: Sequence[str]
    history: list[tuple[object, ...]] = field(default_factory=list)
    asked_s: dict[str, float] = field(default_factory=dict)
    states: dict[str, tuple[Liveness, ProbeVerdict]] = field(default_factory=dict)

    def look(self, answered_s: dict[str, float], now_s: float, *, polls: bool) -> None:
        self.history.append(("look", dict(answered_s), now_s, polls))
        silent = {name: since for name in self.names if (since := self.silent_since(name)) is not None}
        misses = {name: self.misses(name) for name in self.names}
        many = troubled_together(
            [(answered_s[name], name) for name in self.names if misses[name] >= 3], len(self.names)
        )
        for name in self.names:
            was, stood = self.states.get(name, (Liveness.UP, ProbeVerdict.NONE))
            verdict = self.verdict(name, silent) if name in silent else ProbeVerdict.NONE
            down = was is Liveness.DOWN or misses[name] >= 6 or verdict is ProbeVerdict.GONE
            if misses[name] < 3:
                now = Liveness.UP
            elif name in many or (many and was is not Liveness.DOWN) or not down:
                now = Liveness.SUSPECT
            else:
                now = Liveness.DOWN
            dead = {ProbeVerdict.GONE, ProbeVerdict.SILENT}
            if now is not Liveness.DOWN:
                stands = ProbeVerdict.NONE
            elif was is Liveness.DOWN and (verdict is ProbeVerdict.NONE or {stood, verdict} <= dead):
                stands = stood
            else:
                stands = verdict
            self.states[name] = now, stands

    def orders(self, who: str, ids: Sequence[str], now_s: float) -> None:
        for it in ids:
            self.asked_s.setdefault(it, now_s)

    def seen(self, who: str, node: str, result: PortState, asked_s: float) -> None:
        self.history.append(("seen", who, node, result, asked_s))

    def looks(self, name: str) -> list[tuple[float, float, bool]]:
        """Return when the looks were, and what was the last answer of a node at each."""
        found = []
        for it in self.history:
            if it[0] == "look":
                answered, now_s, polls = it[1:]
                found.append((float(now_s), float(answered[name]), bool(polls)))  # type: ignore[arg-type,index]
        return found

    def misses(self, name: str) -> int:
        last_s, missed = 1000.0, 0
        for _, answered_s, polls in self.looks(name):
            missed = 0 if answered_s != last_s else missed + polls
            last_s = answered_s
        return missed

    def silent_since(self, name: str) -> float | None:
        """Return the time of the third look in a row, the first one of all aside, that found no new report."""
        known, missed, since = None, 0, None
        for now_s, answered_s, polls in self.looks(name):
            if known is None or answered_s != known:
                known, missed, since = answered_s, 0, None
            elif polls:
                missed += 1
                since = now_s if missed == 3 else since
        return since

    def verdict(self, name: str, silent: dict[str, float]) -> ProbeVerdict:
        seen = [it[1:] for it in self.history if it[0] == "seen" and it[2] == name]
        been_in = {who for who, _, result, _ in seen if result is PortState.ANSWERED}
        late = [(who, result) for who, _, result, asked_s in seen if asked_s >= silent[name]]  # type: ignore[operator]
        own = [result for who, result in late if who == ""]
        other = [(who, result) for who, result in late if who != ""]
        last = [*[("", it) for it in own[-1:]], *other[-1:]]
        results = [result for _, result in last]
        if PortState.ANSWERED in results:
            return ProbeVerdict.REACHED
        if PortState.ACCEPTED in results:
            return ProbeVerdict.STUCK
        failed = {who: result for who, result in last if who in been_in and result in FAILED}
        if "" not in failed:
            return ProbeVerdict.NONE
        if not other:
            alone = len(silent) == len(self.names)
            return ProbeVerdict.GONE if alone and failed[""] is PortState.REFUSED else ProbeVerdict.NONE
        if len(failed) < 2:
            return ProbeVerdict.NONE
        return ProbeVerdict.GONE if set(failed.values()) == {PortState.REFUSED} else ProbeVerdict.SILENT


LIKELY = st.sampled_from([*PortState, *[PortState.ANSWERED] * 3, *[PortState.REFUSED] * 2])
NUMBERS = st.integers(0, 5)
STEPS = st.one_of(
    st.tuples(st.just("report"), st.sets(NUMBERS, max_size=6)), st.tuples(st.just("look"), st.booleans()),
    st.tuples(st.just("quiet"), st.integers(1, 5)), st.tuples(st.just("see"), NUMBERS, LIKELY),
    st.tuples(st.just("answer"), NUMBERS, LIKELY), st.tuples(st.just("answer all"), LIKELY),
)  # fmt: skip


def take(cluster: Cluster, step: tuple[object, ...], names: Sequence[str]) -> None:
    kind, what = step[0], step[1]
    if kind == "report":
        assert isinstance(what, set)
        for number in what:
            cluster.report(names[number % len(names)])
    elif kind == "look":
        cluster.look(polls=bool(what))
    elif kind == "quiet":
        assert isinstance(what, int)
        for _ in range(what):
            for name in names[1:]:
                cluster.report(name)
            cluster.look()
    elif kind == "answer all":
        cluster.answer_all(PortState(str(what)))
    else:
        assert isinstance(what, int)
        act = cluster.see if kind == "see" else cluster.answer
        act(names[what % len(names)], PortState(str(step[2])))


BEGINNINGS: list[list[tuple[object, ...]]] = [[], [("look", True)], [("look", True), ("answer all", "answered")]]


@given(st.integers(1, 6), st.sampled_from(BEGINNINGS), st.lists(STEPS, max_size=40))
def test_any_sequence_of_observations_ends_where_the_plain_machine_ends(
    nodes: int, first: list[tuple[object, ...]], steps: list[tuple[object, ...]]
) -> None:
    cluster = Cluster(nodes)
    for step in (*first, *steps):
        take(cluster, step, cluster.names)
        cluster.look()
        assert {row.name: (row.liveness, row.verdict) for row in cluster.rows} == cluster.plain.states


@given(st.integers(2, 6), st.lists(STEPS, max_size=30))
def test_a_node_that_reports_is_alive_by_any_evidence(nodes: int, steps: list[tuple[object, ...]]) -> None:
    cluster = Cluster(nodes)
    for step in steps:
        take(cluster, step, cluster.names)
        cluster.report("n0")
        cluster.look()
        assert (cluster.row("n0").liveness, cluster.row("n0").verdict) == (Liveness.UP, ProbeVerdict.NONE)
        assert cluster.row("n0").found == ""


@given(st.integers(3, 6), st.data())
def test_while_many_are_silent_at_once_no_node_is_declared_by_any_evidence(nodes: int, data: st.DataObject) -> None:
    cluster = Cluster(nodes)
    cluster.look()
    cluster.answer_all()
    silent = data.draw(st.integers(nodes // 2 + 1, nodes))
    for _ in range(12):
        for name in cluster.names[silent:]:
            cluster.report(name)
        cluster.look()
        result = data.draw(st.sampled_from([PortState.REFUSED, PortState.TIMED_OUT]))
        cluster.answer_all(result)
        assert {row.liveness for row in cluster.rows[:silent]} <= {Liveness.UP, Liveness.SUSPECT}
        assert {row.verdict for row in cluster.rows} == {ProbeVerdict.NONE}
    assert {row.liveness for row in cluster.rows[:silent]} == {Liveness.SUSPECT}


def silenced(nodes: int = 4) -> Cluster:
    """A cluster whose n0 was let in while it lived, and has just become silent."""
    cluster = Cluster(nodes)
    for _ in range(4):
        for name in cluster.names:
            cluster.report(name)
        cluster.look()
        cluster.answer_all()
    quiet(cluster, 3)
    return cluster


def quiet(cluster: Cluster, looks: int) -> None:
    for _ in range(looks):
        for name in cluster.names[1:]:
            cluster.report(name)
        cluster.look()


def agent_ports(cluster: Cluster, node: str = "n0") -> list[tuple[str, PortProbeOrder]]:
    return [(who, it) for who in cluster.names for it in cluster.witnesses.orders_for(who) if it.probe.node == node]


def test_a_silent_node_is_dead_at_once_if_all_are_refused_and_after_six_misses_if_no_probe_gets_through() -> None:
    for result, verdict, after in (
        (PortState.REFUSED, ProbeVerdict.GONE, 4),
        (PortState.TIMED_OUT, ProbeVerdict.SILENT, 6),
    ):
        cluster = silenced()
        misses = 3
        while not cluster.row("n0").verdict.is_dead:
            cluster.answer_all(result)
            quiet(cluster, 1)
            misses += 1
        assert (cluster.row("n0").verdict, cluster.row("n0").liveness, misses) == (verdict, Liveness.DOWN, after)


def test_a_dead_node_is_only_unreachable_once_a_prober_reaches_it_and_alive_once_it_reports() -> None:
    cluster = silenced()
    cluster.answer_all(PortState.TIMED_OUT)
    quiet(cluster, 4)
    assert cluster.row("n0").verdict is ProbeVerdict.SILENT
    while not agent_ports(cluster):
        quiet(cluster, 1)
    cluster.answer(agent_ports(cluster)[0][0], PortState.ANSWERED)
    quiet(cluster, 1)
    assert (cluster.row("n0").liveness, cluster.row("n0").verdict) == (Liveness.DOWN, ProbeVerdict.REACHED)
    assert "reaches it: the link between it and the scheduler is broken" in cluster.row("n0").found
    cluster.report("n0")
    cluster.look()
    assert (cluster.row("n0").liveness, cluster.row("n0").found) == (Liveness.UP, "")


def test_only_other_living_nodes_probe_and_those_that_reached_it_come_first() -> None:
    cluster = silenced()
    ((who, _),) = agent_ports(cluster)
    been_in = {it for it in cluster.names if it != "n0"}
    assert who in been_in
    for _ in range(100):
        quiet(cluster, 1)
        for asked, order in agent_ports(cluster):
            assert asked != order.probe.node
            cluster.answer(asked, PortState.TIMED_OUT)


def test_another_node_probes_if_one_does_not_report_or_falls_silent_itself() -> None:
    cluster = silenced()
    ((first, order),) = agent_ports(cluster)
    quiet(cluster, int(PORT_PROBE_ORDER_S / POLL_S) + 2)
    ((second, later),) = agent_ports(cluster)
    assert second != first
    assert not cluster.witnesses.record_result(first, order.id, PortState.ANSWERED)
    assert not cluster.witnesses.record_result("n0", later.id, PortState.ANSWERED)
    assert cluster.row("n0").verdict is ProbeVerdict.NONE


def test_a_late_result_from_a_time_in_which_the_node_lived_is_no_evidence() -> None:
    cluster = Cluster(3)
    cluster.look()
    ((who, order),) = agent_ports(cluster)
    own = [it for it in cluster.probes if it[0].node == "n0"]
    quiet(cluster, 3)
    assert not cluster.witnesses.record_result(who, order.id, PortState.ANSWERED)
    for probe, asked_s in own:
        cluster.witnesses.record_own_result(probe, PortState.ANSWERED, asked_s)
    found = cluster.witnesses.update(cluster.reports, cluster.now_s, polls=False)
    assert (found["n0"].own, found["n0"].other, verdict_of(found["n0"])) == (None, None, ProbeVerdict.NONE)


def test_an_agent_without_a_port_is_not_probed_and_probes_no_other() -> None:
    cluster = Cluster(3)
    for _ in range(20):
        for name in ("n1", "n2"):
            cluster.report(name)
        for name in ("n0", "n1"):
            cluster.reports[name] = report_of(name, cluster.reports[name].at_s, agent_port=0)
        cluster.look()
        assert cluster.asked() == {"n0": [], "n1": [], "n2": []}
        assert {probe.node for probe, _ in cluster.probes} <= {"n2"}
    assert (cluster.row("n0").liveness, cluster.row("n0").verdict) == (Liveness.DOWN, ProbeVerdict.NONE)


def test_ports_of_living_nodes_are_probed_once_and_again_only_where_no_prober_reached_them() -> None:
    for result, most in ((PortState.ANSWERED, 1), (PortState.TIMED_OUT, 2)):
        cluster = Cluster(2)
        begun = []
        for _ in range(int(1.5 * VERIFY_S / POLL_S)):
            for name in cluster.names:
                cluster.report(name)
            cluster.look()
            begun += [probe.node for probe, _ in cluster.probes]
            cluster.answer_all(result)
        assert sorted(begun) == ["n0"] * most + ["n1"] * most


def test_a_silent_node_is_probed_less_and_less_often_but_at_least_once_a_minute() -> None:
    cluster = silenced()
    times_s = []
    for _ in range(400):
        times_s += [asked_s for probe, asked_s in cluster.probes if probe.node == "n0"]
        cluster.answer_all(PortState.TIMED_OUT)
        quiet(cluster, 1)
    gaps = [after - before for before, after in pairwise(times_s)]
    assert gaps == sorted(gaps)
    assert (gaps[0], gaps[-1]) == (PROBE_AGAIN_S, MAX_AGAIN_S)


def test_a_new_port_has_not_been_reached_by_any_prober() -> None:
    cluster = silenced()
    cluster.reports["n0"] = report_of("n0", cluster.now_s, agent_port=7001)
    cluster.look()
    quiet(cluster, 3)
    cluster.answer_all(PortState.REFUSED)
    quiet(cluster, 6)
    assert cluster.row("n0").verdict is ProbeVerdict.NONE
    assert "never reached it before" in cluster.row("n0").found
