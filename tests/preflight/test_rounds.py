"""Rounds of checks beside a scheduler come to an end, whatever a third party's check does."""

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from longshore.preflight.check import RoundReport
from longshore.preflight.context import NodeSetup
from longshore.preflight.rounds import MAX_ROUNDS, BackgroundRounds
from longshore.preflight.warm import LocalNode, WarmNodes
from tests.scheduler.served import until

REPORT = RoundReport(("a",), (), 0.1)


@pytest.fixture
def rounds(tmp_path: Path) -> BackgroundRounds:
    return BackgroundRounds(WarmNodes(lambda node: NodeSetup(node, tmp_path, slots=True)), lambda: None)


def raising(error: BaseException) -> Callable[[Mapping[str, LocalNode]], RoundReport]:
    def work(nodes: Mapping[str, LocalNode]) -> RoundReport:
        raise error

    return work


@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), MemoryError()])
def test_a_check_that_ends_in_any_way_frees_its_node(rounds: BackgroundRounds, error: BaseException) -> None:
    for number in range(2 * MAX_ROUNDS):
        name = str(number)
        assert rounds.begin(name, ["a"], raising(error))
        until(lambda name=name: name in rounds.abort_late_and_get_ended())  # type: ignore[misc]
        ended = rounds.abort_late_and_get_ended()[name]
        assert ended.report is None
        assert type(error).__name__ in ended.problem
    assert rounds.begin("well", ["a"], lambda _: REPORT)
    until(lambda: "well" in rounds.abort_late_and_get_ended())
    assert rounds.abort_late_and_get_ended()["well"].report == REPORT


def test_a_round_for_which_no_thread_can_be_had_has_ended(
    rounds: BackgroundRounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuses)
        assert rounds.begin("first", ["a"], lambda _: REPORT)
    assert rounds.abort_late_and_get_ended()["first"].report is None
    assert rounds.begin("second", ["a"], lambda _: REPORT)
    until(lambda: "second" in rounds.abort_late_and_get_ended())
    assert sys.exc_info() == (None, None, None)


@pytest.mark.parametrize("error", [OSError(11, "no more processes"), EOFError(), ConnectionResetError()])
def test_a_process_that_could_not_be_forked_is_started_the_next_time(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, begun = LocalNode(NodeSetup("a", tmp_path, slots=True)), list[object]()

    def fail(_: object) -> None:
        raise error

    def begin(process: object) -> None:
        begun.append(process)

    monkeypatch.setattr(ForkServerProcess, "start", fail)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(2):
        with pytest.raises(type(error)):
            node.start()
        assert node.is_gone()
        assert node.waitables() == []
        node.kill()
        node.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    monkeypatch.setattr(ForkServerProcess, "start", begin)
    node.start()
    assert len(begun) == 1


class Kept(WarmNodes):
    """Nodes that cannot be given back."""

    def give_back(self, names: Iterable[str]) -> None:
        super().give_back(names)
        raise OSError("a process cannot be ended")


def test_a_round_ends_also_if_its_processes_cannot_be_ended(tmp_path: Path) -> None:
    rounds = BackgroundRounds(Kept(lambda node: NodeSetup(node, tmp_path, slots=True)), lambda: None)
    for number in range(2 * MAX_ROUNDS):
        name = str(number)
        assert rounds.begin(name, ["a"], lambda _: REPORT)
        until(lambda name=name: name in rounds.abort_late_and_get_ended())  # type: ignore[misc]
        assert rounds.abort_late_and_get_ended()[name].report == REPORT


class Lent(WarmNodes):
    """Nodes of which it is recorded which were killed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(lambda node: NodeSetup(node, folder, slots=True))
        self.killed = threading.Event()

    def kill(self, names: Iterable[str]) -> None:
        self.killed.set()


@pytest.mark.parametrize(("limit_s", "is_killed"), [(0.0, True), (3600.0, False)])
def test_a_round_that_outlasts_its_limit_is_aborted(tmp_path: Path, limit_s: float, *, is_killed: bool) -> None:
    nodes, may_end = Lent(tmp_path), threading.Event()
    rounds = BackgroundRounds(nodes, lambda: None)

    def work(_: Mapping[str, LocalNode]) -> RoundReport:
        assert may_end.wait(60.0)
        return REPORT

    assert rounds.begin("long", ["a"], work, limit_s)
    assert rounds.abort_late_and_get_ended() == {}
    assert nodes.killed.is_set() is is_killed
    may_end.set()
    until(lambda: "long" in rounds.abort_late_and_get_ended())
