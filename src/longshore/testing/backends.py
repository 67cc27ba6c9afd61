"""What every backend must do, on the real thing. The cluster has nodes a and b, with 4 and 2 GPUs.

Source: longshore.scheduler.backends.protocol; docs/extending.md, A backend.
"""

import re
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from ..cluster.files.errors import BackendError
from ..cluster.model.placement import Placement, Share
from ..scheduler.backends.protocol import Attempt, Backend, CannotHonourError, RefusedError, StepLines
from ..scheduler.model.states import Run, Status

NODES = {"a": 4, "b": 2}
ONE_GPU: Placement = (Share("a", (2,)),)
THREE_GPUS: Placement = (Share("a", (1, 3)), Share("b", (0,)))

ValueT = TypeVar("ValueT")

_attempts_made: list[str] = []  # names of the attempts that were made and have not ended


def until(check: Callable[[], ValueT], within_s: float = 240.0) -> ValueT:
    """Return the value of a check as soon as it is true; on a busy machine that may take minutes."""
    until_s = time.monotonic() + within_s
    while not (value := check()):
        assert time.monotonic() < until_s, "it did not become true"
        time.sleep(0.02)
    return value


def shell_attempt(
    script: str, *, grace_s: float = 30.0, limit_s: float = float("inf"), environment: Mapping[str, str] | None = None
) -> Attempt:
    """Return an attempt that runs a shell script; its name is unique."""
    return command_attempt(("sh", "-c", script), grace_s=grace_s, limit_s=limit_s, environment=environment)


def command_attempt(
    command: tuple[str, ...],
    *,
    grace_s: float = 30.0,
    limit_s: float = float("inf"),
    environment: Mapping[str, str] | None = None,
) -> Attempt:
    """Return an attempt that runs a command."""
    job = uuid.uuid4().hex[:12]
    _attempts_made.append(f"ls-{job}-1")
    return Attempt(f"ls-{job}-1", job, 1, command, "", environment or {}, grace_s, limit_s)


def wait_for_end(backend: Backend, attempt: Attempt) -> Status:
    """Return the status of an attempt that has ended and left no process."""
    until(lambda: backend.status(attempt.name).run in (Run.EXITED, Run.LOST) and backend.is_proven_gone(attempt.name))
    return backend.status(attempt.name)


def wait_until_running(backend: Backend, attempt: Attempt) -> None:
    """Wait until an attempt runs."""
    until(lambda: backend.status(attempt.name).run is Run.RUNNING)


def end_all_attempts(backend: Backend) -> None:
    """End all attempts that were made, and wait until their processes have exited."""
    for name in _attempts_made:
        backend.cancel(name, "the check is over")
    for name in _attempts_made:
        until(partial(backend.is_proven_gone, name))
    _attempts_made.clear()


IMPOSSIBLE: tuple[Placement, ...] = (
    (),
    (Share("c", (0,)),),
    (Share("a", ()),),
    (Share("a", (4,)),),
    (Share("a", (-1,)),),
    (Share("a", (1, 1)),),
    (Share("a", (0,)), Share("a", (1,))),
)


@dataclass(slots=True)
class BackendTrial:
    """How to try a backend.

    Args:
        make: Returns a fresh object of it, which knows the attempts of an earlier one.
        folder: That checks may write to, on a file system that the nodes share with this process.
        checks_programs: Whether it refuses a program that does not exist, rather than starting it.
    """

    make: Callable[[], Backend]
    folder: Path
    checks_programs: bool = True
    backend: Backend = field(init=False)

    def __post_init__(self) -> None:
        self.backend = self.make()


BACKEND_CHECKS: dict[str, Callable[[BackendTrial], None]] = {}


def check_backend(make: Callable[[], Backend], *, checks_programs: bool = True) -> None:
    """Check a backend of a cluster with nodes a and b, of 4 and 2 GPUs: all checks, one after the other.

    Each check starts small shell programs and sees them end. Those of BACKEND_CHECKS may be called one by one as well.

    Args:
        make: As in BackendTrial.
        checks_programs: As there.

    Raises:
        AssertionError: Naming the check, and what is broken.
    """
    for name, check in BACKEND_CHECKS.items():
        with tempfile.TemporaryDirectory() as folder:
            trial = BackendTrial(make, Path(folder), checks_programs)
            try:
                check(trial)
            except AssertionError as error:
                raise AssertionError(f"{name.replace('_', ' ')}: {error}") from error
            finally:
                end_all_attempts(trial.backend)


def _register_check(function: Callable[[BackendTrial], None]) -> Callable[[BackendTrial], None]:
    BACKEND_CHECKS[function.__name__.removeprefix("_")] = function
    return function


@contextmanager
def _expect_error(error: type[Exception]) -> Iterator[None]:
    """Demand that what is done inside raises an error."""
    try:
        yield
    except error:
        return
    raise AssertionError(f"it raises no {error.__name__}")


@_register_check
def _all_nodes_are_observed_in_their_order(trial: BackendTrial) -> None:
    backend = trial.backend
    before_s = time.time()
    nodes = backend.observe()
    assert [node.name for node in nodes] == ["a", "b"]
    assert [[gpu.index for gpu in node.gpus] for node in nodes] == [[0, 1, 2, 3], [0, 1]]
    assert all(before_s <= node.seen_s <= time.time() for node in nodes)
    assert all(0.0 <= gpu.utilisation <= 1.0 for node in nodes for gpu in node.gpus)


@_register_check
def _what_was_never_launched_is_absent_and_holds_nothing(trial: BackendTrial) -> None:
    backend = trial.backend
    name = shell_attempt("true").name
    assert backend.status(name).run is Run.ABSENT
    assert backend.is_proven_gone(name)
    backend.forget(name)


@_register_check
def _an_attempt_runs_to_its_end_once(trial: BackendTrial) -> None:
    backend, tmp_path = trial.backend, trial.folder
    attempt = shell_attempt(f"echo rank $RANK >> {tmp_path}/starts; sleep 0.1")
    for _ in range(3):
        backend.launch(attempt, ONE_GPU)
    status = wait_for_end(backend, attempt)
    backend.launch(attempt, ONE_GPU)
    assert (tmp_path / "starts").read_text() == "rank 0\n"
    assert (status.run, status.reason) == (Run.EXITED, "")
    assert [(end.rank, end.code, end.signal) for end in status.ends] == [(0, 0, 0)]
    assert 0.0 < status.started_s <= status.ends[0].ended_s <= time.time()


@_register_check
def _the_exit_code_of_every_rank_is_known(trial: BackendTrial) -> None:
    backend = trial.backend
    attempt = shell_attempt("exit 0")
    failing = shell_attempt("exit 17")
    killed = shell_attempt("kill -KILL $$")
    for one in (attempt, failing, killed):
        backend.launch(one, ONE_GPU)
        wait_for_end(backend, one)
    found = backend.statuses((attempt.name, failing.name, killed.name))
    assert [(found[one.name].ends[0].code, found[one.name].ends[0].signal) for one in (attempt, failing, killed)] == [
        (0, 0), (17, 0), (0, 9),
    ]  # fmt: skip


@_register_check
def _a_launch_that_comes_after_a_cancel_starts_nothing_even_if_the_attempt_was_forgotten(trial: BackendTrial) -> None:
    backend, tmp_path = trial.backend, trial.folder
    attempt = shell_attempt(f"touch {tmp_path}/started; exec sleep 1000")
    backend.cancel(attempt.name, "not wanted")
    until(lambda: backend.is_proven_gone(attempt.name))
    backend.forget(attempt.name)
    with suppress(BackendError):
        backend.launch(attempt, ONE_GPU)
    until(lambda: backend.status(attempt.name).run in (Run.ABSENT, Run.EXITED, Run.LOST))
    until(lambda: backend.is_proven_gone(attempt.name))
    assert not (tmp_path / "started").exists()


@_register_check
def _another_attempt_under_the_same_name_is_an_error(trial: BackendTrial) -> None:
    backend = trial.backend
    attempt = shell_attempt("exec sleep 1000")
    backend.launch(attempt, ONE_GPU)
    with _expect_error(BackendError):
        backend.launch(replace(attempt, command=("true",)), ONE_GPU)
    with _expect_error(BackendError):
        backend.launch(attempt, THREE_GPUS)


@_register_check
def _ranks_get_exactly_the_gpus_that_were_chosen(trial: BackendTrial) -> None:
    backend = trial.backend
    if not backend.capabilities.exact_gpus:
        return
    attempt = shell_attempt("echo $LONGSHORE_NODE $LOCAL_RANK $LOCAL_WORLD_SIZE $CUDA_VISIBLE_DEVICES")
    alone = replace(shell_attempt(attempt.command[-1]), visible_gpus="rank")
    # What CUDA calls a GPU is its index or a name that ends with it.
    for each, expected in (
        (attempt, [("a", 0, 2, "1,3"), ("a", 1, 2, "1,3"), ("b", 0, 1, "0")]),
        (alone, [("a", 0, 1, "1"), ("a", 0, 1, "3"), ("b", 0, 1, "0")]),
    ):
        backend.launch(each, THREE_GPUS)
        wait_for_end(backend, each)
        printed = [backend.logs(each.name, rank, 0, 1000)[0].decode().split() for rank in range(3)]
        found = [
            (node, int(local), int(ranks), re.sub(r"[^,]*-", "", visible)) for node, local, ranks, visible in printed
        ]
        assert found == expected


@_register_check
def _gpus_that_cannot_be_given_are_refused(trial: BackendTrial) -> None:
    backend = trial.backend
    for placement in IMPOSSIBLE:
        attempt = shell_attempt("true")
        with _expect_error(CannotHonourError):
            backend.launch(attempt, placement)
        assert backend.status(attempt.name).run is Run.ABSENT


@_register_check
def _a_program_that_is_not_there_is_refused_or_ends_with_the_status_of_a_shell(trial: BackendTrial) -> None:
    backend = trial.backend
    attempt = command_attempt(("no-such-program",))
    if not trial.checks_programs:
        backend.launch(attempt, ONE_GPU)
        assert [(end.rank, end.code) for end in wait_for_end(backend, attempt).ends] == [(0, 127)]
        return
    with _expect_error(RefusedError):
        backend.launch(attempt, ONE_GPU)
    assert backend.status(attempt.name).run is Run.ABSENT
    assert backend.is_proven_gone(attempt.name)


@_register_check
def _a_cancelled_attempt_ends_and_may_be_cancelled_again(trial: BackendTrial) -> None:
    backend = trial.backend
    attempt = shell_attempt("exec sleep 1000")
    backend.launch(attempt, THREE_GPUS)
    wait_until_running(backend, attempt)
    assert not backend.is_proven_gone(attempt.name)
    backend.cancel(attempt.name, "no longer wanted")
    backend.cancel(attempt.name, "again")
    status = wait_for_end(backend, attempt)
    backend.cancel(attempt.name, "once more")
    assert backend.status(attempt.name) == status
    assert (status.run, status.reason) == (Run.EXITED, "cancelled")
    assert sorted((end.rank, end.signal) for end in status.ends) == [(0, 15), (1, 15), (2, 15)]


@_register_check
def _an_attempt_that_is_cancelled_before_its_start_never_runs(trial: BackendTrial) -> None:
    backend, tmp_path = trial.backend, trial.folder
    attempt = shell_attempt(f"touch {tmp_path}/started")
    backend.cancel(attempt.name, "no longer wanted")
    backend.launch(attempt, ONE_GPU)
    status = wait_for_end(backend, attempt)
    assert (status.run, status.reason, status.ends) == (Run.EXITED, "cancelled", ())
    assert not (tmp_path / "started").exists()


@_register_check
def _an_attempt_that_is_cancelled_while_it_starts_ends(trial: BackendTrial) -> None:
    backend = trial.backend
    attempt = shell_attempt("exec sleep 1000")
    backend.launch(attempt, ONE_GPU)
    backend.cancel(attempt.name, "no longer wanted")
    assert wait_for_end(backend, attempt).reason == "cancelled"


@_register_check
def _a_fresh_object_knows_what_an_earlier_one_launched(trial: BackendTrial) -> None:
    backend, tmp_path = trial.backend, trial.folder
    attempt = shell_attempt(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 9")
    backend.launch(attempt, ONE_GPU)
    fresh = trial.make()
    wait_until_running(fresh, attempt)
    fresh.launch(attempt, ONE_GPU)
    (tmp_path / "go").touch()
    assert [end.code for end in wait_for_end(fresh, attempt).ends] == [9]


@_register_check
def _logs_are_read_piece_by_piece(trial: BackendTrial) -> None:
    backend = trial.backend
    attempt = shell_attempt("echo out; echo err >&2; seq 1000")
    backend.launch(attempt, ONE_GPU)
    wait_for_end(backend, attempt)
    whole, end = backend.logs(attempt.name, 0, 0, 1 << 20)
    pieces, offset = b"", 0
    while offset < end:
        piece, offset = backend.logs(attempt.name, 0, offset, 100)
        pieces += piece
    assert pieces == whole == b"out\nerr\n" + b"".join(b"%d\n" % i for i in range(1, 1001))
    assert backend.logs(attempt.name, 0, end, 100) == (b"", end)
    assert backend.logs(attempt.name, 0, end + 5, 100) == (b"", end + 5)


@_register_check
def _logs_are_read_while_it_runs(trial: BackendTrial) -> None:
    backend = trial.backend
    attempt = shell_attempt("echo early; exec sleep 1000")
    backend.launch(attempt, ONE_GPU)
    assert until(lambda: backend.logs(attempt.name, 0, 0, 100)[0]) == b"early\n"


@_register_check
def _what_a_python_program_printed_before_it_was_killed_is_in_its_log(trial: BackendTrial) -> None:
    backend, tmp_path = trial.backend, trial.folder
    script = tmp_path / "train.py"
    script.write_text("import os, signal\nprint('step 1')\nos.kill(os.getpid(), signal.SIGKILL)\n")
    ordinary = command_attempt((sys.executable, str(script)))
    buffered = command_attempt((sys.executable, str(script)), environment={"PYTHONUNBUFFERED": ""})
    for attempt in (ordinary, buffered):
        backend.launch(attempt, ONE_GPU)
        wait_for_end(backend, attempt)
    assert [backend.logs(attempt.name, 0, 0, 100)[0] for attempt in (ordinary, buffered)] == [b"step 1\n", b""]


@_register_check
def _only_ranks_have_logs(trial: BackendTrial) -> None:
    backend = trial.backend
    attempt = shell_attempt("true")
    with _expect_error(BackendError):
        backend.logs(attempt.name, 0, 0, 100)
    backend.launch(attempt, ONE_GPU)
    wait_for_end(backend, attempt)
    for rank in (-1, 1):
        with _expect_error(BackendError):
            backend.logs(attempt.name, rank, 0, 100)


@_register_check
def _what_is_forgotten_keeps_its_logs_and_never_starts_again(trial: BackendTrial) -> None:
    backend, tmp_path = trial.backend, trial.folder
    attempt = shell_attempt(f"echo started; echo started >> {tmp_path}/starts")
    backend.launch(attempt, ONE_GPU)
    wait_for_end(backend, attempt)
    for _ in range(2):
        backend.forget(attempt.name)
    backend.launch(attempt, ONE_GPU)
    assert backend.logs(attempt.name, 0, 0, 100)[0] == b"started\n"
    assert backend.is_proven_gone(attempt.name)
    assert (tmp_path / "starts").read_text() == "started\n"


@_register_check
def _a_running_attempt_cannot_be_forgotten(trial: BackendTrial) -> None:
    backend = trial.backend
    attempt = shell_attempt("exec sleep 1000")
    backend.launch(attempt, ONE_GPU)
    wait_until_running(backend, attempt)
    with _expect_error(BackendError):
        backend.forget(attempt.name)
    assert backend.status(attempt.name).run is Run.RUNNING


@_register_check
def _step_lines_of_each_rank_are_returned_once(trial: BackendTrial) -> None:
    backend = trial.backend
    if not backend.capabilities.reads_steps:
        return
    script = 'echo "train $RANK 5.0" >> $LONGSHORE_STEPS; echo "$RANK 5.0 - /ckpt" >> $LONGSHORE_SAVED; exec sleep 1000'
    attempt = shell_attempt(script)
    backend.launch(attempt, THREE_GPUS)
    first: list[StepLines] = []

    def all_reported() -> bool:
        first[:] = backend.step_lines(attempt.name, THREE_GPUS, [StepLines()] * 3)
        return len(first) == 3 and all(steps.saved for steps in first)

    until(all_reported)
    assert [steps.steps for steps in first] == [b"train %d 5.0\n" % rank for rank in range(3)]
    assert [steps.saved for steps in first] == [b"%d 5.0 - /ckpt\n" % rank for rank in range(3)]
    again = backend.step_lines(attempt.name, THREE_GPUS, first)
    assert [(steps.steps, steps.saved) for steps in again] == [(b"", b"")] * 3
    assert [steps.steps_end for steps in again] == [steps.steps_end for steps in first]
    backend.cancel(attempt.name, "cancelled")
    wait_for_end(backend, attempt)


@_register_check
def _an_attempt_that_never_began_has_no_step_lines(trial: BackendTrial) -> None:
    backend = trial.backend
    if backend.capabilities.reads_steps:
        assert backend.step_lines(shell_attempt("true").name, THREE_GPUS, [StepLines()] * 3) == []
