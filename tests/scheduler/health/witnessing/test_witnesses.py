"""What is known of silent nodes, over any sequence of observations, against a plain machine that keeps all of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduler.health.liveness import Knock, NodeReport, Report, Sight, at_once, judge, verdict_of
from longshore.scheduler.health.witnesses import AGAIN_S, MOST_AGAIN_S, ORDER_S, VERIFY_S, Order, Witnesses
from longshore.scheduler.model.states import ProbeVerdict
from longshore.scheduler.store.nodes import NodeRow
from longshore.scheduler.store.schema import Liveness

POLL_S = 5.0
FAILED = (Sight.REFUSED, Sight.NO_ROUTE, Sight.TIMED_OUT)


def report_of(node: str, at_s: float, door: int = 7000) -> Report:
    return Report(at_s, NodeReport(door=door), None, f"10.0.0.{node[1:]}", at_s)


class Cluster:
    """Nodes n0, n1, ... whose agents report, knock and tell as a test says; both machines are told the same.

    Args:
        nodes: How many.
    """

    def __init__(self, nodes: int) -> None:
        self.names = [f"n{number}" for number in range(nodes)]
        self.now_s, self.witnesses, self.plain = 1000.0, Witnesses(), Plain(self.names)
        self.rows = [NodeRow(name, "b", "a100", False, Liveness.UP, 1000.0, 1000.0, 0) for name in self.names]  # noqa: FBT003
        self.reports = {name: report_of(name, 1000.0) for name in self.names}
        self.knocks: list[tuple[Knock, float]] = []  # the scheduler's own that are under way, and since when

    def report(self, node: str) -> None:
        self.reports[node] = report_of(node, self.now_s)

    def look(self, *, polls: bool = True) -> None:
        """Let time pass, and look."""
        self.now_s += POLL_S
        found = self.witnesses.look(self.reports, self.now_s, polls=polls)
        answered = {name: it.at_s for name, it in self.reports.items()}
        self.rows = judge(self.rows, answered, self.now_s, polls=polls, found=found).nodes
        self.plain.look({name: it.at_s for name, it in self.reports.items()}, self.now_s, polls=polls)
        for who in self.names:
            self.plain.orders(who, [it.id for it in self.witnesses.fetch(who)], self.now_s)
        self.knocks += [(it, self.now_s) for it in self.witnesses.due(self.now_s)]

    def see(self, node: str, sight: Sight) -> None:
        """Let all knocks of the scheduler at a door come to their end."""
        for knock, asked_s in [it for it in self.knocks if it[0].node == node]:
            self.witnesses.saw(knock, sight, asked_s)
            self.plain.seen("", node, sight, asked_s)
        self.knocks = [it for it in self.knocks if it[0].node != node]

    def tell(self, who: str, sight: Sight) -> None:
        """Let an agent carry out all that it was asked for."""
        for order in self.witnesses.fetch(who):
            assert order.knock.node != who
            assert self.witnesses.settle(who, order.id, sight)
            self.plain.seen(who, order.knock.node, sight, self.plain.asked_s[order.id])

    def settle_all(self, sight: Sight = Sight.ANSWERED) -> None:
        for name in self.names:
            self.see(name, sight)
            self.tell(name, sight)

    def row(self, node: str) -> NodeRow:
        return next(row for row in self.rows if row.name == node)

    def asked(self) -> dict[str, list[str]]:
        """Return who is asked to knock at whose doors."""
        return {who: [it.knock.node for it in self.witnesses.fetch(who)] for who in self.names}


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
        many = at_once([(answered_s[name], name) for name in self.names if misses[name] >= 3], len(self.names))
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

    def seen(self, who: str, node: str, sight: Sight, asked_s: float) -> None:
        self.history.append(("seen", who, node, sight, asked_s))

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
        been_in = {who for who, _, sight, _ in seen if sight is Sight.ANSWERED}
        late = [(who, sight) for who, _, sight, asked_s in seen if asked_s >= silent[name]]  # type: ignore[operator]
        own = [sight for who, sight in late if who == ""]
        other = [(who, sight) for who, sight in late if who != ""]
        last = [*[("", it) for it in own[-1:]], *other[-1:]]
        sights = [sight for _, sight in last]
        if Sight.ANSWERED in sights:
            return ProbeVerdict.REACHED
        if Sight.ACCEPTED in sights:
            return ProbeVerdict.STUCK
        failed = {who: sight for who, sight in last if who in been_in and sight in FAILED}
        if "" not in failed:
            return ProbeVerdict.NONE
        if not other:
            alone = len(silent) == len(self.names)
            return ProbeVerdict.GONE if alone and failed[""] is Sight.REFUSED else ProbeVerdict.NONE
        if len(failed) < 2:
            return ProbeVerdict.NONE
        return ProbeVerdict.GONE if set(failed.values()) == {Sight.REFUSED} else ProbeVerdict.SILENT


LIKELY = st.sampled_from([*Sight, *[Sight.ANSWERED] * 3, *[Sight.REFUSED] * 2])
NUMBERS = st.integers(0, 5)
STEPS = st.one_of(
    st.tuples(st.just("report"), st.sets(NUMBERS, max_size=6)), st.tuples(st.just("look"), st.booleans()),
    st.tuples(st.just("quiet"), st.integers(1, 5)), st.tuples(st.just("see"), NUMBERS, LIKELY),
    st.tuples(st.just("tell"), NUMBERS, LIKELY), st.tuples(st.just("settle"), LIKELY),
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
    elif kind == "settle":
        cluster.settle_all(Sight(str(what)))
    else:
        assert isinstance(what, int)
        act = cluster.see if kind == "see" else cluster.tell
        act(names[what % len(names)], Sight(str(step[2])))


BEGINNINGS: list[list[tuple[object, ...]]] = [[], [("look", True)], [("look", True), ("settle", "answered")]]


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
def test_a_node_that_is_heard_is_alive_whatever_is_told_of_it(nodes: int, steps: list[tuple[object, ...]]) -> None:
    cluster = Cluster(nodes)
    for step in steps:
        take(cluster, step, cluster.names)
        cluster.report("n0")
        cluster.look()
        assert (cluster.row("n0").liveness, cluster.row("n0").verdict) == (Liveness.UP, ProbeVerdict.NONE)
        assert cluster.row("n0").found == ""


@given(st.integers(3, 6), st.data())
def test_while_many_are_silent_at_once_nobody_is_declared_whatever_is_found(nodes: int, data: st.DataObject) -> None:
    cluster = Cluster(nodes)
    cluster.look()
    cluster.settle_all()
    silent = data.draw(st.integers(nodes // 2 + 1, nodes))
    for _ in range(12):
        for name in cluster.names[silent:]:
            cluster.report(name)
        cluster.look()
        sight = data.draw(st.sampled_from([Sight.REFUSED, Sight.TIMED_OUT]))
        cluster.settle_all(sight)
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
        cluster.settle_all()
    quiet(cluster, 3)
    return cluster


def quiet(cluster: Cluster, looks: int) -> None:
    for _ in range(looks):
        for name in cluster.names[1:]:
            cluster.report(name)
        cluster.look()


def doors(cluster: Cluster, node: str = "n0") -> list[tuple[str, Order]]:
    return [(who, it) for who in cluster.names for it in cluster.witnesses.fetch(who) if it.knock.node == node]


def test_a_silent_node_is_dead_at_once_if_all_are_refused_and_after_six_misses_if_nobody_gets_through() -> None:
    for sight, verdict, after in ((Sight.REFUSED, ProbeVerdict.GONE, 4), (Sight.TIMED_OUT, ProbeVerdict.SILENT, 6)):
        cluster = silenced()
        misses = 3
        while not cluster.row("n0").verdict.is_dead:
            cluster.settle_all(sight)
            quiet(cluster, 1)
            misses += 1
        assert (cluster.row("n0").verdict, cluster.row("n0").liveness, misses) == (verdict, Liveness.DOWN, after)


def test_a_node_that_is_dead_is_only_unreachable_once_somebody_reaches_it_and_alive_once_it_reports() -> None:
    cluster = silenced()
    cluster.settle_all(Sight.TIMED_OUT)
    quiet(cluster, 4)
    assert cluster.row("n0").verdict is ProbeVerdict.SILENT
    while not doors(cluster):
        quiet(cluster, 1)
    cluster.tell(doors(cluster)[0][0], Sight.ANSWERED)
    quiet(cluster, 1)
    assert (cluster.row("n0").liveness, cluster.row("n0").verdict) == (Liveness.DOWN, ProbeVerdict.REACHED)
    assert "reaches it: the link between it and the scheduler is broken" in cluster.row("n0").found
    cluster.report("n0")
    cluster.look()
    assert (cluster.row("n0").liveness, cluster.row("n0").found) == (Liveness.UP, "")


def test_only_who_lives_and_is_another_node_is_asked_and_who_was_let_in_first() -> None:
    cluster = silenced()
    ((who, _),) = doors(cluster)
    been_in = {it for it in cluster.names if it != "n0"}
    assert who in been_in
    for _ in range(100):
        quiet(cluster, 1)
        for asked, order in doors(cluster):
            assert asked != order.knock.node
            cluster.tell(asked, Sight.TIMED_OUT)


def test_another_is_asked_if_one_does_not_tell_or_falls_silent_itself() -> None:
    cluster = silenced()
    ((first, order),) = doors(cluster)
    quiet(cluster, int(ORDER_S / POLL_S) + 2)
    ((second, later),) = doors(cluster)
    assert second != first
    assert not cluster.witnesses.settle(first, order.id, Sight.ANSWERED)
    assert not cluster.witnesses.settle("n0", later.id, Sight.ANSWERED)
    assert cluster.row("n0").verdict is ProbeVerdict.NONE


def test_what_is_told_late_of_a_time_in_which_the_node_lived_is_no_evidence() -> None:
    cluster = Cluster(3)
    cluster.look()
    ((who, order),) = doors(cluster)
    own = [it for it in cluster.knocks if it[0].node == "n0"]
    quiet(cluster, 3)
    assert not cluster.witnesses.settle(who, order.id, Sight.ANSWERED)
    for knock, asked_s in own:
        cluster.witnesses.saw(knock, Sight.ANSWERED, asked_s)
    found = cluster.witnesses.look(cluster.reports, cluster.now_s, polls=False)
    assert (found["n0"].own, found["n0"].other, verdict_of(found["n0"])) == (None, None, ProbeVerdict.NONE)


def test_an_agent_without_a_door_is_not_knocked_at_and_knocks_nowhere() -> None:
    cluster = Cluster(3)
    for _ in range(20):
        for name in ("n1", "n2"):
            cluster.report(name)
        for name in ("n0", "n1"):
            cluster.reports[name] = report_of(name, cluster.reports[name].at_s, door=0)
        cluster.look()
        assert cluster.asked() == {"n0": [], "n1": [], "n2": []}
        assert {knock.node for knock, _ in cluster.knocks} <= {"n2"}
    assert (cluster.row("n0").liveness, cluster.row("n0").verdict) == (Liveness.DOWN, ProbeVerdict.NONE)


def test_doors_of_nodes_that_live_are_knocked_at_once_and_again_only_where_nobody_was_let_in() -> None:
    for sight, most in ((Sight.ANSWERED, 1), (Sight.TIMED_OUT, 2)):
        cluster = Cluster(2)
        begun = []
        for _ in range(int(1.5 * VERIFY_S / POLL_S)):
            for name in cluster.names:
                cluster.report(name)
            cluster.look()
            begun += [knock.node for knock, _ in cluster.knocks]
            cluster.settle_all(sight)
        assert sorted(begun) == ["n0"] * most + ["n1"] * most


def test_a_silent_node_is_knocked_at_less_and_less_often_but_never_less_than_once_a_minute() -> None:
    cluster = silenced()
    times_s = []
    for _ in range(400):
        times_s += [asked_s for knock, asked_s in cluster.knocks if knock.node == "n0"]
        cluster.settle_all(Sight.TIMED_OUT)
        quiet(cluster, 1)
    gaps = [after - before for before, after in pairwise(times_s)]
    assert gaps == sorted(gaps)
    assert (gaps[0], gaps[-1]) == (AGAIN_S, MOST_AGAIN_S)


def test_a_new_door_is_another_one_and_who_was_let_in_at_the_old_one_counts_no_more() -> None:
    cluster = silenced()
    cluster.reports["n0"] = report_of("n0", cluster.now_s, door=7001)
    cluster.look()
    quiet(cluster, 3)
    cluster.settle_all(Sight.REFUSED)
    quiet(cluster, 6)
    assert cluster.row("n0").verdict is ProbeVerdict.NONE
    assert "never reached it before" in cluster.row("n0").found
