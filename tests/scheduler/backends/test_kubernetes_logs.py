"""Copies of pods' output: complete whatever clocks show and however little a node sends at once, and made in time."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.cluster.files.errors import BackendError
from longshore.scheduler.backends.kubernetes import records
from longshore.scheduler.backends.kubernetes.api import ApiStatusError
from longshore.scheduler.backends.kubernetes.objects import KubernetesPod
from longshore.scheduler.backends.kubernetes.records import BackgroundCopies, PodLogs, RecordError, RecordFolders
from tests.scheduler.backends.attempts import ONE_GPU, shell_attempt, until, wait_until_running
from tests.scheduler.backends.kubernetes_trials import Trial
from tests.support.budgets import examples

NAME = "ls-job-1"
RANKS = 2
START_S = 1_800_000_000.0


def pod_of(name: str = NAME, node: str = "a", *, is_over: bool = False) -> KubernetesPod:
    """Return a pod of two ranks that runs, or has ended."""
    notes = {"longshore.io/pods": "1", "longshore.io/first-rank": "0", "longshore.io/ranks": str(RANKS)}
    labels = {"longshore.io/attempt": NAME}
    meta = {"name": name, "uid": name, "resourceVersion": "1", "annotations": notes, "labels": labels}
    at = "2026-11-22T00:00:00Z"
    state = {"terminated": {"exitCode": 0, "finishedAt": at}} if is_over else {"running": {"startedAt": at}}
    status = {"phase": "Succeeded" if is_over else "Running", "containerStatuses": [{"state": state}]}
    return KubernetesPod.model_validate({"metadata": meta, "spec": {"nodeName": node}, "status": status})


class Node:
    """A kubelet with the log of one container, its clock, and the two clocks of the scheduler's machine."""

    def __init__(self) -> None:
        self.passed_s = 1000.0  # by the scheduler's monotonic clock
        self.ahead_s = self.own_ahead_s = 0.0  # of the right time: the node's clock, and the scheduler's
        self.max_bytes: int | None = None  # that it sends before the deadline
        self.printed = [b""] * RANKS
        self.reads = 0
        self._log: list[tuple[float, bytes]] = []
        self.core = SimpleNamespace(read_namespaced_pod_log=self.read)

    def now_s(self) -> float:
        return START_S + self.passed_s + self.ahead_s

    def own_s(self) -> float:
        return START_S + self.passed_s + self.own_ahead_s

    def print_line(self, rank: int, text: bytes) -> None:
        stamp = datetime.fromtimestamp(self.now_s(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z").encode()
        line = b"%b %d@%d %b\n" % (stamp, rank, len(self.printed[rank]), text)
        self._log.append((self.now_s(), line))
        self.printed[rank] += text + b"\n"

    def read(self, since_seconds: int | None) -> bytes:
        """Return the lines that a kubelet does: those with a time from some moment on, by its own clock."""
        self.reads += 1
        since_s = float("-inf") if since_seconds is None else self.now_s() - since_seconds
        return b"".join(line for at_s, line in self._log if at_s >= since_s)

    def read_until_deadline(
        self, method: Callable[[int | None], bytes], *_: object, limit_bytes: int, since_seconds: int | None = None,
        timestamps: bool,
    ) -> tuple[bytes, bool]:  # fmt: skip
        assert timestamps
        assert since_seconds is None or since_seconds >= 1
        content = method(since_seconds)[:limit_bytes]
        is_cut = self.max_bytes is not None and len(content) > self.max_bytes
        return (content[: self.max_bytes], False) if is_cut else (content, True)


@contextmanager
def copying(node: Node) -> Iterator[tuple[Path, Callable[[], PodLogs]]]:
    """Yield a folder, and what makes a copier, as a scheduler that starts does."""
    clock, api = SimpleNamespace(monotonic=lambda: node.passed_s, time=node.own_s), node
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "time", clock)
        folders = RecordFolders(Path(folder))
        yield Path(folder) / NAME, lambda: PodLogs(api, "longshore", folders)  # type: ignore[arg-type]


SKEWS = st.sampled_from([-3600.0, -60.0, -5.0, -1.0, 0.0, 1.0, 5.0, 60.0, 3600.0])
STEPS = st.one_of(
    st.tuples(st.just("print"), st.floats(0.0, 90.0)),
    st.tuples(st.just("read"), st.sampled_from([None, 0, 50, 130, 400])),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("set own clock"), SKEWS),
    st.tuples(st.just("set node's clock"), SKEWS),
)


@given(SKEWS, SKEWS, st.lists(STEPS, max_size=25))
@settings(max_examples=examples(300))
def test_a_copy_is_complete_whatever_clocks_show_and_however_little_comes_at_once(
    ahead_s: float, own_ahead_s: float, steps: list[tuple[str, Any]]
) -> None:
    node, lines = Node(), 0
    node.ahead_s, node.own_ahead_s = ahead_s, own_ahead_s
    with copying(node) as (folder, make):
        logs = make()
        for action, value in steps:
            if action == "read":
                node.max_bytes = value
                logs.copy_new(NAME, pod_of())
            elif action == "restart":
                logs = make()
            elif action == "set own clock":
                node.own_ahead_s = value
            elif action == "set node's clock":
                node.ahead_s = value
            if action in ("print", "set node's clock"):  # a job that prints nothing after that may lose lines
                node.passed_s += value if action == "print" else 0.5
                for rank in range(RANKS):
                    lines += 1
                    node.print_line(rank, b"line %d" % lines)
        node.max_bytes = None
        logs.copy_rest(NAME, pod_of(is_over=True))
        found = [path.read_bytes() if path.exists() else b"" for path in _copies(folder)]
    assert found == node.printed


@pytest.mark.parametrize("ahead_s", [-60.0, -3.0, 0.0, 3.0, 60.0])
def test_a_log_that_is_longer_than_what_comes_at_once_is_copied_in_parts(ahead_s: float) -> None:
    node = Node()
    node.ahead_s = ahead_s
    with copying(node) as (folder, make):
        for number in range(2000):
            node.passed_s += 0.5
            node.print_line(number % RANKS, b"line %d" % number)
        node.max_bytes = 30_000
        make().copy_rest(NAME, pod_of(is_over=True))
        assert [path.read_bytes() for path in _copies(folder)] == node.printed


@pytest.mark.parametrize("ahead_s", [-60.0, 0.0, 60.0])
def test_each_copy_reads_only_what_may_be_new(ahead_s: float) -> None:
    node = Node()
    node.ahead_s = ahead_s
    with copying(node) as (_, make):
        logs = make()
        for number in range(50):
            node.print_line(0, b"line %d" % number)
            logs.copy_new(NAME, pod_of())
            node.passed_s += 30.0
    assert node.reads == 50


def test_a_log_that_ended_is_read_no_more() -> None:
    node = Node()
    with copying(node) as (_, make):
        logs = make()
        for _ in range(3):
            logs.copy_new(NAME, pod_of(is_over=True))
    assert node.reads == 1


def _copies(folder: Path) -> list[Path]:
    return [folder / f"rank-{rank}.log" for rank in range(RANKS)]


def test_output_is_copied_while_a_job_runs_and_is_read_by_none(trial: Trial) -> None:
    trial.lease_times = {"copy_s": 0.05}
    backend, attempt = trial.make(), shell_attempt("seq 1000; exec sleep 1000")
    backend.launch(attempt, ONE_GPU)
    wait_until_running(backend, attempt)
    wanted = b"".join(b"%d\n" % number for number in range(1, 1001))
    copy = trial.folder / "scheduler" / "kubernetes" / attempt.name / "rank-0.log"
    until(lambda: copy.exists() and copy.stat().st_size == len(wanted))
    trial.cluster.kubelets["a"].alive = False
    assert backend.logs(attempt.name, 0, 0, 1 << 20) == (wanted, len(wanted))


class Asked:
    """Logs of which some cannot be copied."""

    def __init__(self, errors: dict[str, Exception]) -> None:
        self.errors, self.names = errors, list[str]()

    def copy_new(self, _attempt: str, pod: KubernetesPod) -> bool:
        self.names.append(pod.name)
        if pod.name in self.errors:
            raise self.errors[pod.name]
        return False

    def is_due(self, pod: KubernetesPod, _after_s: float) -> bool:
        return not pod.name.startswith("fresh")

    def forget_all_but(self, uids: set[str]) -> None:
        assert uids


PODS = [("p0", "a"), ("p1", "a"), ("p2", "a"), ("p3", "b"), ("p4", "b"), ("fresh", "b"), ("p5", "c")]
FAILURES: list[tuple[dict[str, Exception], str]] = [
    ({}, "p0 p1 p2 p3 p4 p5"),
    ({"p0": BackendError("no answer")}, "p0 p3 p4 p5"),  # the node's others could take as long to fail
    ({"p0": ApiStatusError(500, "no container")}, "p0 p1 p2 p3 p4 p5"),
    ({"p0": RecordError("its folder was deleted")}, "p0 p1 p2 p3 p4 p5"),
    ({name: BackendError("no answer") for name, _ in PODS}, "p0 p3 p5"),
]


@pytest.mark.parametrize(("errors", "asked"), FAILURES)
def test_what_cannot_be_copied_delays_no_other_pod(errors: dict[str, Exception], asked: str, tmp_path: Path) -> None:
    logs: Any = Asked(errors)
    copies = BackgroundCopies(logs, tmp_path, lambda: [(NAME, pod_of(*each)) for each in PODS], 30.0)
    copies._copy_all()
    assert logs.names == asked.split()


def test_no_job_is_kept_from_its_start_by_copies_that_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs: Any = Asked({})
    copies = BackgroundCopies(logs, tmp_path, lambda: [(NAME, pod_of())], 30.0)
    free = SimpleNamespace(f_bavail=1 << 17, f_frsize=1 << 12)  # 512 MiB
    monkeypatch.setattr(os, "statvfs", lambda _: free)
    copies._copy_all()
    assert logs.names == []
