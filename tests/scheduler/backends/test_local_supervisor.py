import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from longshore.cluster.files.processes import children, find
from longshore.scheduler.backends.local.backend import LocalBackend
from longshore.scheduler.backends.local.ranks import _TOGETHER_S
from longshore.scheduler.backends.local.supervisor import STARTED_BEFORE, TWIN
from longshore.scheduler.backends.protocol import Attempt
from longshore.scheduler.model.states import Run
from tests.scheduler.backends.attempts import (
    NODES,
    ONE_GPU,
    THREE_GPUS,
    command_attempt,
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

WAIT_FOR_GO = "while [ ! -e go ]; do sleep 0.05; done; "

LAUNCHER = """
import sys, time
from pathlib import Path
from longshore.scheduler.backends.local.backend import LocalBackend
from longshore.cluster.model.placement import Share
from longshore.scheduler.backends.protocol import Attempt
name, script = sys.argv[2:]
attempt = Attempt(name, "job", 1, ("sh", "-c", script), "", {})
LocalBackend(Path(sys.argv[1]), {"a": 4}).launch(attempt, (Share("a", (2,)),))
print("launched", flush=True)
time.sleep(1000)
"""


def work_of(folder: Path, attempt: Attempt) -> Path:
    return own_folder(folder, attempt) / "work"


def start_again(folder: Path, attempt: Attempt) -> int:
    module = "longshore.scheduler.backends.local.supervisor"
    code = f"import os, sys; from {module} import main; os._exit(main(sys.argv[1]))"
    return processes.run([sys.executable, "-c", code, str(own_folder(folder, attempt))], check=False).returncode


def test_a_job_outlives_its_scheduler_and_is_adopted_by_the_next(tmp_path: Path, backend: LocalBackend) -> None:
    attempt = shell_attempt(WAIT_FOR_GO + "exit 9")
    command = [sys.executable, "-c", LAUNCHER, str(tmp_path), attempt.name, attempt.command[2]]
    with processes.start(command, stdout=processes.PIPE) as scheduler:
        assert scheduler.stdout is not None
        assert scheduler.stdout.readline() == b"launched\n"
        scheduler.kill()
    wait_until_running(backend, attempt)
    (work_of(tmp_path, attempt) / "go").touch()
    assert [end.code for end in wait_for_end(backend, attempt).ends] == [9]


def test_a_supervisor_is_no_child_of_the_scheduler(tmp_path: Path, backend: LocalBackend) -> None:
    attempt = shell_attempt(WAIT_FOR_GO)
    backend.launch(attempt, ONE_GPU)
    supervisor = find(supervisor_of(tmp_path, attempt).pid)
    assert supervisor is not None
    assert supervisor.parent != os.getpid()


def test_a_second_start_is_refused_while_the_first_runs_and_after_it(tmp_path: Path, backend: LocalBackend) -> None:
    attempt = shell_attempt("echo started >> starts; " + WAIT_FOR_GO)
    backend.launch(attempt, ONE_GPU)
    wait_until_running(backend, attempt)
    assert start_again(tmp_path, attempt) == TWIN
    until((work_of(tmp_path, attempt) / "starts").exists)
    (work_of(tmp_path, attempt) / "go").touch()
    wait_for_end(backend, attempt)
    assert start_again(tmp_path, attempt) == STARTED_BEFORE
    assert (work_of(tmp_path, attempt) / "starts").read_text() == "started\n"


def test_ranks_that_ignore_sigterm_are_killed_after_the_grace(tmp_path: Path, backend: LocalBackend) -> None:
    script = (
        "trap '' TERM; echo $$ > rank$RANK.pid; "
        "setsid sh -c 'echo $$ > far$RANK.pid; while :; do sleep 1; done' & while :; do sleep 1; done"
    )
    attempt = shell_attempt(script, grace_s=0.2)
    backend.launch(attempt, THREE_GPUS)
    pids = [
        number_in(work_of(tmp_path, attempt) / f"{kind}{rank}.pid") for kind in ("rank", "far") for rank in range(3)
    ]
    backend.cancel(attempt.name, "no longer wanted")
    status = wait_for_end(backend, attempt)
    assert not [pid for pid in pids if lives(pid)]
    assert status.reason == "cancelled"
    assert {end.signal for end in status.ends} == {9}


def test_ranks_are_killed_at_once_where_there_is_no_grace(tmp_path: Path, backend: LocalBackend) -> None:
    attempt = shell_attempt("trap '' TERM; touch ready; while :; do sleep 1; done", grace_s=0.0)
    backend.launch(attempt, ONE_GPU)
    until((work_of(tmp_path, attempt) / "ready").exists)
    backend.cancel(attempt.name, "no longer wanted")
    assert [end.signal for end in wait_for_end(backend, attempt).ends] == [9]


def test_a_supervisor_that_is_asked_to_end_cancels_its_attempt(tmp_path: Path, backend: LocalBackend) -> None:
    attempt = shell_attempt("exec sleep 1000")
    backend.launch(attempt, THREE_GPUS)
    wait_until_running(backend, attempt)
    os.kill(supervisor_of(tmp_path, attempt).pid, signal.SIGTERM)
    status = wait_for_end(backend, attempt)
    assert (status.run, status.reason) == (Run.EXITED, "cancelled")


@pytest.mark.parametrize("trap", ["", "trap 'exit 0' TERM;", "trap 'exit 3' TERM;"])
def test_a_rank_that_is_asked_to_end_before_its_supervisor_did_not_end_by_itself(
    tmp_path: Path, backend: LocalBackend, trap: str
) -> None:
    for number in range(60):
        attempt = replace(
            shell_attempt(f"{trap} touch ready; while :; do sleep 0.001; done"), name=f"ls-together-{number}"
        )
        backend.launch(attempt, ONE_GPU)
        until((work_of(tmp_path, attempt) / "ready").exists)
        wait_until_running(backend, attempt)
        supervisor = supervisor_of(tmp_path, attempt)
        began = time.monotonic()
        for child in children(supervisor.pid):
            os.kill(child.pid, signal.SIGTERM)
        time.sleep(0.01)  # in which it ends
        with suppress(ProcessLookupError):  # this process was kept waiting for so long that all is over
            os.kill(supervisor.pid, signal.SIGTERM)
        together = time.monotonic() - began < _TOGETHER_S / 2.0
        reason = wait_for_end(backend, attempt).reason
        if together:  # else this process was kept waiting, and the two signals were too far apart
            break
    assert together
    assert reason == "cancelled"


def test_a_job_may_end_by_itself_within_the_grace(tmp_path: Path, backend: LocalBackend) -> None:
    attempt = shell_attempt("trap 'echo saved > saved; exit 42' TERM; touch ready; while :; do sleep 0.05; done")
    backend.launch(attempt, ONE_GPU)
    until((work_of(tmp_path, attempt) / "ready").exists)
    backend.cancel(attempt.name, "moved")
    status = wait_for_end(backend, attempt)
    assert [(end.code, end.signal) for end in status.ends] == [(42, 0)]
    assert (work_of(tmp_path, attempt) / "saved").exists()


def test_when_one_rank_fails_the_others_are_stopped_and_the_cause_is_the_first(
    tmp_path: Path, backend: LocalBackend
) -> None:
    attempt = shell_attempt("touch up$RANK; if [ $RANK = 1 ]; then " + WAIT_FOR_GO + "exit 3; fi; sleep 1000")
    backend.launch(attempt, THREE_GPUS)
    until(lambda: all((work_of(tmp_path, attempt) / f"up{rank}").exists() for rank in range(3)))
    (work_of(tmp_path, attempt) / "go").touch()
    status = wait_for_end(backend, attempt)
    assert status.reason == "rank failed"
    assert (status.ends[0].rank, status.ends[0].code) == (1, 3)
    assert sorted((end.rank, end.code, end.signal) for end in status.ends[1:]) == [(0, 0, 15), (2, 0, 15)]


def test_ranks_that_are_done_are_reported_while_others_run(tmp_path: Path, backend: LocalBackend) -> None:
    attempt = shell_attempt("if [ $RANK = 1 ]; then exit 0; fi; " + WAIT_FOR_GO)
    backend.launch(attempt, THREE_GPUS)
    ends = until(lambda: backend.status(attempt.name).ends)
    assert [(end.rank, end.code) for end in ends] == [(1, 0)]
    assert backend.status(attempt.name).run is Run.RUNNING
    (work_of(tmp_path, attempt) / "go").touch()
    status = wait_for_end(backend, attempt)
    assert sorted((end.rank, end.code, end.signal) for end in status.ends) == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]
    assert status.reason == ""


def test_a_job_is_stopped_at_its_time_limit(backend: LocalBackend) -> None:
    attempt = shell_attempt("exec sleep 1000", limit_s=0.3)
    backend.launch(attempt, ONE_GPU)
    status = wait_for_end(backend, attempt)
    assert status.reason == "time limit"
    assert [(end.code, end.signal) for end in status.ends] == [(0, 15)]


def test_a_job_that_leaves_daemons_behind_leaves_nothing(tmp_path: Path, backend: LocalBackend) -> None:
    attempt = python(
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        os.environ.clear()\n"
        "        open('daemon.tmp', 'w').write(str(os.getpid()))\n"
        "        os.rename('daemon.tmp', 'daemon.pid')\n"
        "        os.execv('/bin/sleep', ['sleep', '1000'])\n"
        "    os._exit(0)\n"
        "while not os.path.exists('daemon.pid'):\n"
        "    time.sleep(0.02)\n"
    )
    backend.launch(attempt, ONE_GPU)
    status = wait_for_end(backend, attempt)
    assert [(end.code, end.signal) for end in status.ends] == [(0, 0)]
    assert not lives(number_in(work_of(tmp_path, attempt) / "daemon.pid"))


def test_twenty_attempts_start_at_once(backend: LocalBackend) -> None:
    attempts = [shell_attempt(f"exit {code}") for code in range(20)]
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda attempt: backend.launch(attempt, ONE_GPU), attempts))
    assert [wait_for_end(backend, attempt).ends[0].code for attempt in attempts] == list(range(20))


def test_an_attempt_that_is_launched_twenty_times_at_once_starts_once(tmp_path: Path, backend: LocalBackend) -> None:
    attempt = shell_attempt("echo started >> starts")
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda _: backend.launch(attempt, ONE_GPU), range(20)))
    wait_for_end(backend, attempt)
    assert (work_of(tmp_path, attempt) / "starts").read_text() == "started\n"


def test_no_shell_meets_the_command_or_the_environment(tmp_path: Path, backend: LocalBackend) -> None:
    trap = f"$(touch {tmp_path}/trapped) `touch {tmp_path}/trapped`; touch {tmp_path}/trapped\n"
    attempt = command_attempt(("printenv", "TRAP"), environment={"TRAP": trap})
    backend.launch(attempt, ONE_GPU)
    wait_for_end(backend, attempt)
    assert backend.logs(attempt.name, 0, 0, 1 << 20)[0].decode() == trap + "\n"
    spoken = command_attempt(("printf", "%s", trap))
    backend.launch(spoken, ONE_GPU)
    wait_for_end(backend, spoken)
    assert backend.logs(spoken.name, 0, 0, 1 << 20)[0].decode() == trap
    assert not (tmp_path / "trapped").exists()


def test_a_program_that_vanishes_before_its_start_ends_with_127_and_the_reason(
    tmp_path: Path, backend: LocalBackend
) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    attempt = command_attempt((str(script),))
    backend.launch(attempt, ONE_GPU)
    assert [end.code for end in wait_for_end(backend, attempt).ends] == [127]
    assert b"cannot start" in backend.logs(attempt.name, 0, 0, 1000)[0]


def test_a_rank_begins_with_no_signal_blocked_or_ignored(backend: LocalBackend) -> None:
    attempt = command_attempt(("grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"))
    backend.launch(attempt, ONE_GPU)
    wait_for_end(backend, attempt)
    lines = backend.logs(attempt.name, 0, 0, 1000)[0].decode().splitlines()
    # The C library keeps the signals 32 and 33 for its threads: nobody can ask or set how they are taken.
    ours = sum(1 << number - 1 for number in signal.valid_signals())
    assert [int(line.split()[1], 16) & ours for line in lines] == [0, 0]


def test_a_rank_has_no_descriptors_but_its_streams(backend: LocalBackend) -> None:
    attempt = command_attempt(("ls", "-l", "/proc/self/fd"))
    backend.launch(attempt, ONE_GPU)
    wait_for_end(backend, attempt)
    links = [line.split()[-3] for line in backend.logs(attempt.name, 0, 0, 4000)[0].decode().splitlines()[1:]]
    assert links == ["0", "1", "2", "3"]  # 3: the folder that ls reads


def test_the_end_is_written_as_soon_as_it_can_be(tmp_path: Path, backend: LocalBackend) -> None:
    attempt = shell_attempt("mkdir ../exit.json; exit 5")
    backend.launch(attempt, ONE_GPU)
    until(lambda: backend.status(attempt.name).run is Run.UNREACHABLE)
    assert not backend.is_proven_gone(attempt.name)
    (own_folder(tmp_path, attempt) / "exit.json").rmdir()
    assert [end.code for end in wait_for_end(LocalBackend(tmp_path, NODES), attempt).ends] == [5]
