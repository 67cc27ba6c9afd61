import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from longshore.cluster.files.processes import boot_id, find, is_alive
from longshore.scheduler.backends.local.backend import LocalBackend
from longshore.scheduler.backends.local.ranks import confine_to_cgroup, remove_cgroup
from longshore.scheduler.backends.protocol import Attempt
from longshore.scheduler.model.states import Run
from tests.scheduler.backends.attempts import (
    NODES,
    ONE_GPU,
    THREE_GPUS,
    end_all,
    kill_guard,
    kill_supervisor,
    lives,
    number_in,
    own_folder,
    python,
    shell_attempt,
    supervisor_of,
    until,
    wait_for_end,
    wait_until_running,
)
from tests.support import processes


@pytest.fixture
def other_process() -> Iterator[processes.Process[bytes]]:
    with processes.start(["sleep", "1000"]) as process:
        yield process
        process.kill()


def ended(folder: Path, backend: LocalBackend) -> tuple[Attempt, Path]:
    """Return an attempt that ended well, and its folder."""
    attempt = shell_attempt("true")
    backend.launch(attempt, ONE_GPU)
    wait_for_end(backend, attempt)
    return attempt, own_folder(folder, attempt)


def test_an_attempt_whose_supervisor_was_killed_is_lost_and_leaves_nothing(
    tmp_path: Path, backend: LocalBackend
) -> None:
    attempt = shell_attempt(
        "sleep 1000 & echo $! > near.pid; env -i sleep 1000 & echo $! > bare.pid; "
        "setsid sh -c 'echo $$ > far.pid; sleep 1000; true' & wait"
    )
    backend.launch(attempt, ONE_GPU)
    work = own_folder(tmp_path, attempt) / "work"
    pids = [number_in(work / f"{kind}.pid") for kind in ("near", "bare", "far")]
    kill_supervisor(tmp_path, attempt)
    until(lambda: backend.is_proven_gone(attempt.name))
    assert not [pid for pid in pids if lives(pid)]
    status = backend.status(attempt.name)
    assert (status.run, status.reason) == (Run.LOST, "supervisor lost: it was killed")
    assert not (own_folder(tmp_path, attempt) / "exit.json").exists()


ESCAPES = {
    "another session, nothing in its environment": "setsid env -i sh -c 'echo $$ > far.pid; exec sleep 777' &",
    "no output either": "setsid env -i sh -c 'echo $$ > far.pid; exec sleep 777 > /dev/null 2>&1' &",
    "a parent that has ended": "setsid env -i sh -c '(sleep 777 > /dev/null 2>&1 & echo $! > far.pid)';",
    "children of its own": "setsid env -i sh -c 'echo $$ > far.pid; while :; do sleep 0.01; done' > /dev/null 2>&1 &",
}
THEN = "until [ -s far.pid ]; do sleep 0.01; done; guard=$(cut -d ' ' -f 4 /proc/$PPID/stat); "


@pytest.fixture
def confined() -> None:
    """Where attempts get control groups of their own."""
    group = confine_to_cgroup("ls-test", [])
    if not group:
        pytest.skip("no control group of version 2 can be made here: that takes root, or one that was delegated")
    remove_cgroup(group)


@pytest.fixture
def forget_group() -> Iterator[Callable[[Path], None]]:
    """What lets nobody know any more of the control group of an attempt, by its folder."""
    groups = []

    def forget(folder: Path) -> None:
        ranks = json.loads((folder / "ranks.json").read_text())
        groups.append(ranks["cgroup"])
        (folder / "ranks.json").write_text(json.dumps({**ranks, "cgroup": ""}))

    yield forget
    for group in groups:
        remove_cgroup(group)


@pytest.mark.parametrize("escape", ESCAPES)
def test_nothing_outlives_a_job_that_kills_its_supervisor(
    tmp_path: Path, backend: LocalBackend, forget_group: Callable[[Path], None], escape: str
) -> None:
    attempt = shell_attempt(f"{ESCAPES[escape]} {THEN} kill -9 $PPID")
    backend.launch(attempt, ONE_GPU)
    folder = own_folder(tmp_path, attempt)
    far = number_in(folder / "work" / "far.pid")
    until(lambda: not is_alive(supervisor_of(tmp_path, attempt), boot_id()))
    forget_group(folder)
    until(lambda: backend.is_proven_gone(attempt.name))
    assert not lives(far)
    assert backend.status(attempt.name).run is Run.LOST


@pytest.mark.usefixtures("confined")
@pytest.mark.parametrize("escape", ESCAPES)
def test_nothing_outlives_a_job_in_a_control_group_that_kills_its_guard_and_its_supervisor(
    tmp_path: Path, backend: LocalBackend, escape: str
) -> None:
    attempt = shell_attempt(f"{ESCAPES[escape]} {THEN} kill -9 $guard $PPID")
    backend.launch(attempt, ONE_GPU)
    folder = own_folder(tmp_path, attempt)
    far = number_in(folder / "work" / "far.pid")
    until(lambda: not is_alive(supervisor_of(tmp_path, attempt), boot_id()))
    group = Path(json.loads((folder / "ranks.json").read_text())["cgroup"])
    assert group.is_dir()
    until(lambda: backend.is_proven_gone(attempt.name))
    assert not lives(far)
    assert not group.exists()


@pytest.mark.parametrize("trace", ["setsid", "env -i", "setsid env -i", "setsid env -i setsid"])
def test_a_process_that_keeps_any_trace_is_found_without_a_control_group_and_a_guard(
    tmp_path: Path, backend: LocalBackend, forget_group: Callable[[Path], None], trace: str
) -> None:
    attempt = shell_attempt(f"{trace} sh -c 'echo $$ > far.pid; exec sleep 777' & {THEN} kill -9 $guard $PPID")
    backend.launch(attempt, ONE_GPU)
    folder = own_folder(tmp_path, attempt)
    far = number_in(folder / "work" / "far.pid")
    until(lambda: not is_alive(supervisor_of(tmp_path, attempt), boot_id()))
    forget_group(folder)
    until(lambda: backend.is_proven_gone(attempt.name))
    assert not lives(far)


def test_nothing_is_released_while_a_guard_has_not_seen_to_what_is_left(
    tmp_path: Path, backend: LocalBackend, forget_group: Callable[[Path], None]
) -> None:
    attempt = shell_attempt("setsid env -i sh -c 'echo $$ > far.pid; exec sleep 777 > /dev/null 2>&1' & wait")
    backend.launch(attempt, ONE_GPU)
    far = number_in(own_folder(tmp_path, attempt) / "work" / "far.pid")
    guard, _ = json.loads((own_folder(tmp_path, attempt) / "started.json").read_text())["guard"]
    os.kill(guard, signal.SIGSTOP)
    kill_supervisor(tmp_path, attempt)
    forget_group(own_folder(tmp_path, attempt))
    assert backend.status(attempt.name).run is Run.UNREACHABLE
    assert not backend.is_proven_gone(attempt.name)
    os.kill(guard, signal.SIGCONT)
    until(lambda: backend.is_proven_gone(attempt.name))
    assert not lives(far)


NAMESPACE = ["unshare", *(["--user", "--map-root-user"] if os.geteuid() else []), "--pid", "--fork", "--mount-proc"]
SEEN = """
import sys
from pathlib import Path
from longshore.scheduler.backends.local.backend import LocalBackend

backend, name = LocalBackend(Path(sys.argv[1]), {"a": 4}), sys.argv[2]
print(backend.status(name).run, backend.is_proven_gone(name))
"""


@pytest.mark.parametrize("killed", [(), ("guard",), ("supervisor",)], ids=" and ".join)
def test_another_pid_namespace_sees_an_attempt_live_until_its_guard_and_its_supervisor_are_gone(
    tmp_path: Path, backend: LocalBackend, forget_group: Callable[[Path], None], killed: tuple[str, ...]
) -> None:
    def seen_from_there() -> list[str]:
        line = [*NAMESPACE, "--kill-child", sys.executable, "-c", SEEN, str(tmp_path), attempt.name]
        return processes.run(line, capture_output=True, check=True).stdout.split()

    if processes.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no PID namespace can be made here")
    attempt = shell_attempt("echo $$ > rank.pid; until [ -e go ]; do sleep 0.02; done")
    backend.launch(attempt, ONE_GPU)
    wait_until_running(backend, attempt)
    folder = own_folder(tmp_path, attempt)
    rank, (guard, _) = number_in(folder / "work/rank.pid"), json.loads((folder / "started.json").read_text())["guard"]
    forget_group(folder)
    if "guard" in killed:
        kill_guard(tmp_path, attempt)
    if "supervisor" in killed:
        os.kill(guard, signal.SIGSTOP)
        kill_supervisor(tmp_path, attempt)
    try:
        assert seen_from_there() == ["running", "False"]
        assert "supervisor" in killed or lives(rank)
    finally:
        if "supervisor" in killed:
            os.kill(guard, signal.SIGCONT)

    (folder / "work/go").touch()
    until(lambda: backend.is_proven_gone(attempt.name))
    assert seen_from_there() == ["lost" if "supervisor" in killed else "exited", "True"]


def test_an_attempt_goes_on_without_its_guard(tmp_path: Path, backend: LocalBackend) -> None:
    attempt = shell_attempt("until [ -e go ]; do sleep 0.02; done; exit 3")
    backend.launch(attempt, ONE_GPU)
    wait_until_running(backend, attempt)
    kill_guard(tmp_path, attempt)
    assert backend.status(attempt.name).run is Run.RUNNING
    (own_folder(tmp_path, attempt) / "work" / "go").touch()
    assert [end.code for end in wait_for_end(backend, attempt).ends] == [3]


@pytest.mark.usefixtures("confined")
def test_a_control_group_is_removed_with_what_the_job_made_inside_it(tmp_path: Path, backend: LocalBackend) -> None:
    attempt = shell_attempt("until [ -e go ]; do sleep 0.02; done")
    backend.launch(attempt, ONE_GPU)
    wait_until_running(backend, attempt)
    folder = own_folder(tmp_path, attempt)
    group = Path(json.loads((folder / "ranks.json").read_text())["cgroup"])
    (group / "inner").mkdir()
    (folder / "work" / "go").touch()
    assert wait_for_end(backend, attempt).run is Run.EXITED
    until(lambda: not group.exists())


def test_ranks_are_killed_for_memory_before_their_supervisor(tmp_path: Path, backend: LocalBackend) -> None:
    attempt = shell_attempt("cat /proc/self/oom_score_adj > rank; cat /proc/$PPID/oom_score_adj > supervisor")
    backend.launch(attempt, ONE_GPU)
    wait_for_end(backend, attempt)
    work = own_folder(tmp_path, attempt) / "work"
    rank, supervisor = (int((work / name).read_text()) for name in ("rank", "supervisor"))
    assert rank == min(supervisor + 500, 1000)


def test_ranks_do_not_outlive_their_supervisor(tmp_path: Path, backend: LocalBackend) -> None:
    attempt = shell_attempt("trap '' TERM; echo $$ > rank$RANK.pid; while :; do sleep 1; done")
    backend.launch(attempt, THREE_GPUS)
    work = own_folder(tmp_path, attempt) / "work"
    ranks = [number_in(work / f"rank{rank}.pid") for rank in range(3)]
    kill_supervisor(tmp_path, attempt)
    until(lambda: not [pid for pid in ranks if lives(pid)])


def test_nothing_of_an_attempt_lives_once_it_is_reported_lost(tmp_path: Path, backend: LocalBackend) -> None:
    attempt = shell_attempt("setsid sh -c 'echo $$ > far.pid; sleep 1000; true' & wait")
    backend.launch(attempt, ONE_GPU)
    far = number_in(own_folder(tmp_path, attempt) / "work" / "far.pid")
    kill_supervisor(tmp_path, attempt)
    until(lambda: backend.status(attempt.name).run is Run.LOST)
    assert not lives(far)


def test_a_lost_attempt_never_starts_again(tmp_path: Path, backend: LocalBackend) -> None:
    attempt = shell_attempt("echo started >> starts; sleep 1000")
    backend.launch(attempt, ONE_GPU)
    starts = own_folder(tmp_path, attempt) / "work" / "starts"
    until(starts.exists)
    kill_supervisor(tmp_path, attempt)
    backend.launch(attempt, ONE_GPU)
    assert wait_for_end(backend, attempt).run is Run.LOST
    assert starts.read_text() == "started\n"
    backend.forget(attempt.name)
    backend.launch(attempt, ONE_GPU)
    assert backend.status(attempt.name).run is Run.LOST


def test_a_process_that_lives_on_without_its_first_thread_is_not_gone(tmp_path: Path, backend: LocalBackend) -> None:
    attempt = python(
        "import ctypes, os, threading, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    def go_on():\n"
        "        time.sleep(0.2)\n"
        "        open('pid.tmp', 'w').write(str(os.getpid()))\n"
        "        os.rename('pid.tmp', 'half.pid')\n"
        "        time.sleep(1000)\n"
        "    threading.Thread(target=go_on).start()\n"
        "    ctypes.CDLL(None).pthread_exit(None)\n"
        "time.sleep(1000)\n"
    )
    backend.launch(attempt, ONE_GPU)
    half = number_in(own_folder(tmp_path, attempt) / "work" / "half.pid")
    seen = find(half)
    assert seen is not None
    assert seen.alive
    kill_supervisor(tmp_path, attempt)
    until(lambda: backend.is_proven_gone(attempt.name))
    assert not lives(half)


def test_a_process_that_got_the_supervisors_pid_lives(
    tmp_path: Path, backend: LocalBackend, other_process: processes.Process[bytes]
) -> None:
    attempt, folder = ended(tmp_path, backend)
    (folder / "exit.json").unlink()
    seen = find(other_process.pid)
    assert seen is not None
    started = json.loads((folder / "started.json").read_text())
    doctored = {**started, "pid": seen.pid, "start_ticks": seen.start_ticks - 1}
    (folder / "started.json").write_text(json.dumps(doctored))
    ranks = json.loads((folder / "ranks.json").read_text())
    ranks["ranks"] = [[seen.pid, seen.start_ticks - 1]]
    (folder / "ranks.json").write_text(json.dumps(ranks))
    backend.cancel(attempt.name, "no longer wanted")
    until(lambda: backend.is_proven_gone(attempt.name))
    assert backend.status(attempt.name).run is Run.LOST
    assert other_process.poll() is None


def test_after_a_restart_of_the_machine_an_attempt_is_lost_and_no_number_is_believed(
    tmp_path: Path, backend: LocalBackend, other_process: processes.Process[bytes]
) -> None:
    attempt, folder = ended(tmp_path, backend)
    (folder / "exit.json").unlink()
    seen = find(other_process.pid)
    assert seen is not None
    doctored = {
        "attempt": attempt.name, "pid": seen.pid, "start_ticks": seen.start_ticks, "boot": "another",
        "session": seen.session,
    }  # fmt: skip
    (folder / "started.json").write_text(json.dumps(doctored))
    ranks = {"attempt": attempt.name, "started_s": 1.0, "ranks": [[seen.pid, seen.start_ticks]]}
    (folder / "ranks.json").write_text(json.dumps(ranks))
    assert backend.is_proven_gone(attempt.name)
    status = backend.status(attempt.name)
    assert (status.run, status.reason) == (Run.LOST, "supervisor lost: the machine was restarted")
    assert other_process.poll() is None


def test_an_attempt_of_the_same_name_under_another_scheduler_lives(tmp_path: Path, backend: LocalBackend) -> None:
    (tmp_path / "other").mkdir()
    other = LocalBackend(tmp_path / "other", NODES)
    attempt = shell_attempt("setsid sleep 1000 & echo $! > far.pid; wait")
    try:
        for one in (backend, other):
            one.launch(attempt, ONE_GPU)
            wait_until_running(one, attempt)
        kill_supervisor(tmp_path, attempt)
        until(lambda: backend.is_proven_gone(attempt.name))
        assert lives(number_in(own_folder(tmp_path / "other", attempt) / "work" / "far.pid"))
        assert other.status(attempt.name).run is Run.RUNNING
    finally:
        end_all(tmp_path / "other")


@pytest.mark.parametrize("torn", [0.0, 0.5, 0.99])
def test_a_torn_exit_marker_is_not_success(tmp_path: Path, backend: LocalBackend, torn: float) -> None:
    attempt, folder = ended(tmp_path, backend)
    whole = (folder / "exit.json").read_bytes()
    (folder / "exit.json").write_bytes(whole[: int(len(whole) * torn)])
    assert backend.status(attempt.name).run is Run.UNREACHABLE
    assert not backend.is_proven_gone(attempt.name)


def test_a_half_written_exit_marker_is_a_loss(tmp_path: Path, backend: LocalBackend) -> None:
    attempt, folder = ended(tmp_path, backend)
    (folder / "exit.json").rename(folder / ".exit.json.0123456789abcdef")
    assert backend.status(attempt.name).run is Run.LOST


def test_the_exit_marker_of_another_attempt_is_not_believed(tmp_path: Path, backend: LocalBackend) -> None:
    (one, folder), (_, other) = ended(tmp_path, backend), ended(tmp_path, backend)
    (other / "exit.json").replace(folder / "exit.json")
    assert backend.status(one.name).run is Run.UNREACHABLE


def test_where_the_folder_of_all_attempts_is_away_nothing_is_known(tmp_path: Path, backend: LocalBackend) -> None:
    attempt, _ = ended(tmp_path, backend)
    (tmp_path / "attempts").rename(tmp_path / "away")
    try:
        assert backend.status(attempt.name).run is Run.UNREACHABLE
        assert not backend.is_proven_gone(attempt.name)
    finally:
        (tmp_path / "away").rename(tmp_path / "attempts")
