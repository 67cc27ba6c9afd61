"""Rounds on real processes: nodes that hang, compute wrong values, die or are slow are named, and no others."""

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import faulty_nodes
from longshore.cluster.files.errors import BackendError
from longshore.cluster.model.placement import Share
from longshore.preflight.check import CheckedJob, CheckOutcome, CheckStage, RoundReport, all_checks, find_check
from longshore.preflight.context import NodeSetup
from longshore.preflight.rounds import clean_up, run_round
from longshore.preflight.warm import MAX_GROUPS, LocalNode
from longshore.preflight.warm_worker import (
    MAX_CHECK_MESSAGE_BYTES,
    MAX_FINDINGS,
    Target,
    decode_reply,
    encode_reply,
    serve_node,
)
from tests.scheduler.served import until
from tests.support import processes

FIVE = ("n0", "n1", "n2", "n3", "n4")


@contextmanager
def started(
    folder: Path, faults: Mapping[str, Target], names: tuple[str, ...] = FIVE
) -> Iterator[dict[str, LocalNode]]:
    nodes = {name: LocalNode(NodeSetup(name, folder, slots=True), faults.get(name, serve_node)) for name in names}
    try:
        yield nodes
    finally:
        for node in nodes.values():
            node.close()


def checked(nodes: Mapping[str, LocalNode], level: int = 1) -> RoundReport:
    return run_round(tuple(Share(name, (0, 1)) for name in nodes), CheckedJob(), nodes, level=level)


def evidence(report: RoundReport, node: str) -> tuple[str, str]:
    (result,) = [it for it in report.bad_results if it.node == node]
    assert result.wanted
    assert result.action
    return result.check, result.got


def test_nodes_that_are_well_pass_every_check_that_applies(tmp_path: Path) -> None:
    with started(tmp_path, {}) as nodes:
        report = checked(nodes)
    assert report.diagnostics() == ()
    assert report.passed
    reported = {name: {it.check for it in report.results if it.node == name} for name in FIVE}
    asked = {
        it.name for it in all_checks() if it.level <= 1 and it.stage not in (CheckStage.AFTER, CheckStage.ON_REQUEST)
    }
    assert reported == dict.fromkeys(FIVE, asked)
    assert all(it.reason for it in report.results if it.outcome is CheckOutcome.SKIPPED)


def test_one_round_names_nodes_that_hang_is_slow_wrong_or_dead_with_evidence(tmp_path: Path) -> None:
    faults = {
        "n0": faulty_nodes.hung, "n1": faulty_nodes.slow, "n2": faulty_nodes.wrong, "n3": faulty_nodes.dead,
        "n4": faulty_nodes.speaks_nonsense,
    }  # fmt: skip
    names = (*FIVE, "n5", "n6", "n7")
    with started(tmp_path, faults, names) as nodes:
        report = checked(nodes)
    assert report.bad_nodes == set(faults)
    assert evidence(report, "n0")[0] == "gemm.ref"
    assert evidence(report, "n0")[1].startswith("no answer for 1 s; it ")  # killed, as soon as the machine gets to it
    assert evidence(report, "n1")[0] == "job.sample"
    assert evidence(report, "n2")[0] == "gemm.ref"
    assert "at [17, 23], 1 wrong in all" in evidence(report, "n2")[1]
    assert evidence(report, "n3") == ("gemm.ref", "its process has ended")
    assert "reply" in evidence(report, "n4")[1]
    skipped = [it.reason for it in report.results if it.node == "n5" and it.check == "reduce.answer"]
    assert skipped == ["not run, as not every node has passed"]


def test_a_flipped_bit_is_named_by_its_check_and_its_place(tmp_path: Path) -> None:
    with started(tmp_path, {"n1": faulty_nodes.flipped}, ("n0", "n1")) as nodes:
        report = checked(nodes)
    assert report.bad_nodes == {"n1"}
    check, got = evidence(report, "n1")
    assert check == "gemm.ref"
    assert "at [17, 23]" in got


@pytest.mark.parametrize("names", [FIVE, FIVE[:3]])
def test_a_node_that_sends_a_wrong_value_is_isolated(names: tuple[str, ...], tmp_path: Path) -> None:
    with started(tmp_path, {"n1": faulty_nodes.adds_one}, names) as nodes:
        report = checked(nodes)
    assert report.bad_nodes == {"n1"}
    assert {it.check for it in report.bad_results} == {"reduce.answer", "pair.isolate"}
    assert all("[1000]" in it.got for it in report.bad_results if it.check == "reduce.answer")
    assert {it.node for it in report.warnings} == set(names) - {"n1"}


def test_of_two_nodes_whose_sum_is_wrong_neither_is_used(tmp_path: Path) -> None:
    with started(tmp_path, {"n1": faulty_nodes.adds_one}, ("n0", "n1")) as nodes:
        assert checked(nodes).bad_nodes == {"n0", "n1"}


@pytest.mark.full
def test_a_node_that_never_joins_a_reduction_is_killed_and_the_others_are_not(tmp_path: Path) -> None:
    with started(tmp_path, {"n1": faulty_nodes.hangs_in_reduction}, ("n0", "n1", "n2")) as nodes:
        report = checked(nodes)
        outcomes = {it.node: it.outcome for it in report.results if it.check == "reduce.answer"}
        assert outcomes == {"n0": CheckOutcome.SKIPPED, "n1": CheckOutcome.FAIL, "n2": CheckOutcome.SKIPPED}
        assert report.bad_nodes == {"n1"}
        assert {it.reason for it in report.results if it.check == "link.bw"} == {
            "not run, as reduce.answer did not pass"
        }
        until(nodes["n1"].is_gone)
        assert not nodes["n0"].is_gone()


def test_a_node_that_does_not_start_is_named(tmp_path: Path) -> None:
    with started(tmp_path, {"n1": faulty_nodes.never_warm}, ("n0", "n1")) as nodes:
        report = checked(nodes, level=0)
    assert report.bad_nodes == {"n1"}
    assert evidence(report, "n1")[0] == "response"


def test_a_node_that_was_killed_is_started_again_for_the_next_round(tmp_path: Path) -> None:
    with started(tmp_path, {}, ("n0", "n1")) as nodes:
        assert checked(nodes, level=0).passed
        pid = nodes["n0"].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        while not nodes["n0"].is_gone():
            time.sleep(0.01)
        assert checked(nodes, level=0).passed
        assert nodes["n0"].pid != pid


class Unkillable(LocalNode):
    """A process that no signal reaches, as one that waits for a driver."""

    def _send_signal(self, number: int) -> None:
        del number

    def close(self) -> None:
        if self.pid is not None and not self.is_gone():
            os.kill(self.pid, signal.SIGKILL)


def test_a_process_that_cannot_be_killed_is_reported_and_not_waited_for(tmp_path: Path) -> None:
    nodes = {"n0": Unkillable(NodeSetup("n0", tmp_path, slots=True), faulty_nodes.hung)}
    try:
        report = checked(nodes)
        assert "it had not ended 0.1 s after SIGKILL" in evidence(report, "n0")[1]
        assert not nodes["n0"].is_gone()
    finally:
        nodes["n0"].close()


def test_a_process_that_has_joined_many_groups_is_replaced(tmp_path: Path) -> None:
    with started(tmp_path, {}, ("n0", "n1")) as nodes:
        pids = set()
        for _ in range(MAX_GROUPS // 2 + 1):  # two groups in each round
            assert checked(nodes).passed
            pids.add(nodes["n0"].pid)
        assert len(pids) == 2


@pytest.mark.full
def test_no_process_of_a_node_outlives_its_runner(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from longshore.preflight.context import NodeSetup
from longshore.preflight.warm import LocalNode
if __name__ == "__main__":
    node = LocalNode(NodeSetup("n0", Path({str(tmp_path)!r}), slots=True))
    node.start()
    assert node.wait_until_warm()
    print(node.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    script = tmp_path / "runner.py"
    script.write_text(code)
    done = processes.run([sys.executable, script], capture_output=True, check=False)
    pid, until_s = int(done.stdout), time.monotonic() + 30.0
    while Path(f"/proc/{pid}").exists() and "State:\tZ" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < until_s
        time.sleep(0.05)


@pytest.mark.parametrize("gpus", [(0,), ()])  # none where a ring has given up those that it had on a node
def test_leftovers_of_a_job_are_killed_and_its_scratch_is_removed(gpus: tuple[int, ...], tmp_path: Path) -> None:
    scratch, kept = tmp_path / "scratch", tmp_path / "kept"
    (scratch / "deep").mkdir(parents=True)
    (scratch / "deep" / "file").write_text("x")
    kept.mkdir()
    (kept / "file").write_text("x")
    (scratch / "link").symlink_to(kept)
    sleep = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"]
    left, other = (
        processes.start(sleep, env={**os.environ, "LONGSHORE_ATTEMPT": name}) for name in ("ls-a-1", "ls-a-11")
    )
    try:
        with started(tmp_path, {}, ("n0",)) as nodes:
            report = clean_up((Share("n0", gpus),), CheckedJob(), nodes, attempt="ls-a-1", scratch=str(scratch))
        assert report.passed
        assert left.wait(10.0) == -signal.SIGKILL
        assert other.poll() is None
        assert not scratch.exists()
        assert (kept / "file").exists()
    finally:
        for process in (left, other):
            process.kill()
            process.wait()


@pytest.mark.parametrize("scratch", ["/", "/tmp", "relative", "/proc/self/mem", "/proc/self"])
def test_a_scratch_folder_that_is_invalid_is_refused_and_nothing_is_deleted(scratch: str, tmp_path: Path) -> None:
    with started(tmp_path, {}, ("n0",)) as nodes:
        report = clean_up((Share("n0", (0,)),), CheckedJob(), nodes, attempt="", scratch=scratch)
    assert report.bad_nodes == {"n0"}
    assert Path("/tmp").is_dir()


@pytest.mark.parametrize("scratch", ["link", "file", "nowhere/at/all", "folder"])
def test_what_a_job_left_in_place_of_its_scratch_folder_is_removed_and_what_it_points_to_stays(
    scratch: str, tmp_path: Path
) -> None:
    for name in ("real", "folder"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "real")
    shares = (Share("n0", (0,)), Share("n1", (0,)))  # both on this machine, and so of one folder
    with started(tmp_path, {}, ("n0", "n1")) as nodes:
        report = clean_up(shares, CheckedJob(), nodes, attempt="", scratch=str(tmp_path / scratch))
    assert report.passed
    assert not (tmp_path / scratch).is_symlink()
    assert not (tmp_path / scratch).exists()
    assert (tmp_path / "real" / "file").exists()


NO_ANSWERS = [
    b"", b"{}", b"[]", b"\xff", b'{"number": 1, "seconds": NaN}', b'{"number": 1, "x": 1}',
    b'{"number": 1, "findings": [{"outcome": "great"}]}',
]  # fmt: skip


@pytest.mark.parametrize("content", NO_ANSWERS)
def test_an_answer_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(BackendError):
        decode_reply(content)


def test_an_answer_survives_its_way_and_is_bounded() -> None:
    from longshore.preflight.check import failed

    many = [failed("gpu 1", "x" * 10**6, "y", "z")] * (MAX_FINDINGS + 5)
    answer = decode_reply(encode_reply(3, many, 0.5))
    assert (answer.number, answer.seconds) == (3, 0.5)
    assert 0 < len(answer.findings) <= MAX_FINDINGS
    assert answer.findings[0].outcome is CheckOutcome.FAIL
    assert len(answer.findings[0].got) == 1000


@pytest.mark.parametrize("length", [1, 10**4])
def test_a_fault_is_reported_behind_any_number_of_warnings(length: int) -> None:
    from longshore.preflight.check import failed, warned

    many = [warned(f"gpu {it}", "\0" * length, "\U0001f525" * length, "z") for it in range(3 * MAX_FINDINGS)]
    reply = encode_reply(3, [*many, failed("gpu 1", "x", "y", "z")], 0.5)
    assert len(reply) <= MAX_CHECK_MESSAGE_BYTES
    assert [it.device for it in decode_reply(reply).findings if it.outcome is CheckOutcome.FAIL] == ["gpu 1"]


def test_every_check_of_the_catalogue_has_a_limit_and_words() -> None:
    for check in all_checks():
        assert find_check(check.name) is check
        assert 0.0 < check.limit_s <= check.limit_s_at(2) <= check.limit_s_at(3)
        assert check.about
