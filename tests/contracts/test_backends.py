"""What every backend must do, on the real thing. A backend's test cluster has nodes a and b, with 4 and 2 GPUs."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from pydantic import BaseModel

from benchmarks.slurm_cluster import SlurmCluster
from longshore.cluster.files.errors import BackendError
from longshore.scheduler.backends.local.backend import LocalBackend
from longshore.scheduler.backends.protocol import Backend, CannotHonourError, RefusedError, StepLines, WritesSteps
from longshore.scheduler.backends.ray.backend import RayBackend
from longshore.scheduler.backends.slurm.backend import SlurmBackend
from longshore.scheduler.model.placement import Placement, Share
from longshore.scheduler.model.run import Run
from tests.scheduler.backends.attempts import (
    NODES,
    ONE_GPU,
    THREE_GPUS,
    end_all,
    end_of,
    running,
    runs,
    sh,
    until,
)
from tests.scheduler.backends.kubernetes_trials import end_double, make_on_double
from tests.scheduler.backends.ray_cluster import RayCluster, end_attempts


@dataclass(frozen=True, slots=True)
class Trial:
    """How to try a backend."""

    make: Callable[[Path], Backend]  # a fresh object on the same folder knows the attempts of an earlier one
    end: Callable[[Path], None]
    sees_programs: bool = True  # so that it can tell whether one is there before it starts it


def local_trial(request: pytest.FixtureRequest) -> Trial:
    del request
    return Trial(lambda folder: LocalBackend(folder, NODES), end_all)


def kubernetes_trial(request: pytest.FixtureRequest) -> Trial:
    del request
    return Trial(make_on_double, end_double, sees_programs=False)


def slurm_trial(request: pytest.FixtureRequest) -> Trial:
    cluster: SlurmCluster = request.getfixturevalue("slurm_cluster")
    return Trial(lambda folder: SlurmBackend(folder, NODES, conf=cluster.conf), lambda _: cluster.end_jobs())


def ray_trial(request: pytest.FixtureRequest) -> Trial:
    cluster: RayCluster = request.getfixturevalue("ray_cluster")
    # One folder for all tests, as each has a launcher of its own, which takes a while to start.
    make = partial(RayBackend, cluster.folder, NODES, address=cluster.address, token=cluster.token)
    return Trial(lambda _: make(), lambda _: end_attempts(cluster))


TRIALS = {"local": local_trial, "kubernetes": kubernetes_trial, "ray": ray_trial, "slurm": slurm_trial}


@pytest.fixture(params=TRIALS)
def trial(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Trial]:
    trial = TRIALS[request.param](request)
    yield trial
    trial.end(tmp_path)


@pytest.fixture
def backend(trial: Trial, tmp_path: Path) -> Backend:
    return trial.make(tmp_path)


def test_every_registered_backend_is_tried() -> None:
    assert {point.name for point in entry_points(group="longshore.backends")} <= set(TRIALS)


def test_every_registered_backend_can_be_chosen_in_a_configuration() -> None:
    for point in entry_points(group="longshore.backends"):
        kind = point.load()
        assert issubclass(kind.Settings, BaseModel), point.name
        assert callable(kind.build), point.name


def test_it_tells_all_nodes_in_their_order(backend: Backend) -> None:
    before_s = time.time()
    nodes = backend.observe()
    assert [node.name for node in nodes] == ["a", "b"]
    assert [[gpu.index for gpu in node.gpus] for node in nodes] == [[0, 1, 2, 3], [0, 1]]
    assert all(before_s <= node.seen_s <= time.time() for node in nodes)
    assert all(0.0 <= gpu.utilisation <= 1.0 for node in nodes for gpu in node.gpus)


def test_what_was_never_launched_is_absent_and_holds_nothing(backend: Backend) -> None:
    name = sh("true").name
    assert backend.status(name).run is Run.ABSENT
    assert backend.released(name)
    backend.forget(name)


def test_an_attempt_runs_to_its_end_once(backend: Backend, tmp_path: Path) -> None:
    attempt = sh(f"echo rank $RANK >> {tmp_path}/starts; sleep 0.1")
    for _ in range(3):
        backend.launch(attempt, ONE_GPU)
    status = end_of(backend, attempt)
    backend.launch(attempt, ONE_GPU)
    assert (tmp_path / "starts").read_text() == "rank 0\n"
    assert (status.run, status.reason) == (Run.EXITED, "")
    assert [(end.rank, end.code, end.signal) for end in status.ends] == [(0, 0, 0)]
    assert 0.0 < status.started_s <= status.ends[0].ended_s <= time.time()


def test_every_rank_is_told_with_its_exit_code(backend: Backend) -> None:
    attempt = sh("exit 0")
    failing = sh("exit 17")
    killed = sh("kill -KILL $$")
    for one in (attempt, failing, killed):
        backend.launch(one, ONE_GPU)
        end_of(backend, one)
    told = backend.statuses((attempt.name, failing.name, killed.name))
    assert [(told[one.name].ends[0].code, told[one.name].ends[0].signal) for one in (attempt, failing, killed)] == [
        (0, 0), (17, 0), (0, 9),
    ]  # fmt: skip


def test_a_launch_that_comes_after_a_cancel_starts_nothing_even_if_the_attempt_was_forgotten(
    backend: Backend, tmp_path: Path
) -> None:
    attempt = sh(f"touch {tmp_path}/started; exec sleep 1000")
    backend.cancel(attempt.name, "not wanted")
    until(lambda: backend.released(attempt.name))
    backend.forget(attempt.name)
    with suppress(BackendError):
        backend.launch(attempt, ONE_GPU)
    until(lambda: backend.status(attempt.name).run in (Run.ABSENT, Run.EXITED, Run.LOST))
    until(lambda: backend.released(attempt.name))
    assert not (tmp_path / "started").exists()


def test_another_attempt_under_the_same_name_is_an_error(backend: Backend) -> None:
    attempt = sh("exec sleep 1000")
    backend.launch(attempt, ONE_GPU)
    with pytest.raises(BackendError):
        backend.launch(replace(attempt, command=("true",)), ONE_GPU)
    with pytest.raises(BackendError):
        backend.launch(attempt, THREE_GPUS)


def test_ranks_get_exactly_the_gpus_that_were_chosen(backend: Backend) -> None:
    if not backend.capabilities.exact_gpus:
        pytest.skip("this back end does not promise exact GPUs")
    # Either the index or a name that ends with it.
    attempt = sh("echo $LONGSHORE_NODE ${CUDA_VISIBLE_DEVICES##*-}")
    backend.launch(attempt, THREE_GPUS)
    end_of(backend, attempt)
    assert [backend.logs(attempt.name, rank, 0, 100)[0] for rank in range(3)] == [b"a 1\n", b"a 3\n", b"b 0\n"]


@pytest.mark.parametrize(
    "placement",
    [
        (),
        (Share("c", (0,)),),
        (Share("a", ()),),
        (Share("a", (4,)),),
        (Share("a", (-1,)),),
        (Share("a", (1, 1)),),
        (Share("a", (0,)), Share("a", (1,))),
    ],
)
def test_gpus_that_cannot_be_given_are_refused(backend: Backend, placement: Placement) -> None:
    attempt = sh("true")
    with pytest.raises(CannotHonourError):
        backend.launch(attempt, placement)
    assert backend.status(attempt.name).run is Run.ABSENT


def test_a_program_that_is_not_there_is_refused_or_ends_as_a_shell_would_say(trial: Trial, backend: Backend) -> None:
    attempt = running(("no-such-program",))
    if not trial.sees_programs:
        backend.launch(attempt, ONE_GPU)
        assert [(end.rank, end.code) for end in end_of(backend, attempt).ends] == [(0, 127)]
        return
    with pytest.raises(RefusedError):
        backend.launch(attempt, ONE_GPU)
    assert backend.status(attempt.name).run is Run.ABSENT
    assert backend.released(attempt.name)


def test_a_cancelled_attempt_ends_and_may_be_cancelled_again(backend: Backend) -> None:
    attempt = sh("exec sleep 1000")
    backend.launch(attempt, THREE_GPUS)
    runs(backend, attempt)
    assert not backend.released(attempt.name)
    backend.cancel(attempt.name, "no longer wanted")
    backend.cancel(attempt.name, "asked again")
    status = end_of(backend, attempt)
    backend.cancel(attempt.name, "asked once more")
    assert backend.status(attempt.name) == status
    assert (status.run, status.reason) == (Run.EXITED, "cancelled")
    assert sorted((end.rank, end.signal) for end in status.ends) == [(0, 15), (1, 15), (2, 15)]


def test_an_attempt_that_is_cancelled_before_its_start_never_runs(backend: Backend, tmp_path: Path) -> None:
    attempt = sh(f"touch {tmp_path}/started")
    backend.cancel(attempt.name, "no longer wanted")
    backend.launch(attempt, ONE_GPU)
    status = end_of(backend, attempt)
    assert (status.run, status.reason, status.ends) == (Run.EXITED, "cancelled", ())
    assert not (tmp_path / "started").exists()


def test_an_attempt_that_is_cancelled_while_it_starts_ends(backend: Backend) -> None:
    attempt = sh("exec sleep 1000")
    backend.launch(attempt, ONE_GPU)
    backend.cancel(attempt.name, "no longer wanted")
    assert end_of(backend, attempt).reason == "cancelled"


def test_a_fresh_object_knows_what_an_earlier_one_launched(trial: Trial, backend: Backend, tmp_path: Path) -> None:
    attempt = sh(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 9")
    backend.launch(attempt, ONE_GPU)
    fresh = trial.make(tmp_path)
    runs(fresh, attempt)
    fresh.launch(attempt, ONE_GPU)
    (tmp_path / "go").touch()
    assert [end.code for end in end_of(fresh, attempt).ends] == [9]


def test_logs_are_read_piece_by_piece(backend: Backend) -> None:
    attempt = sh("echo out; echo err >&2; seq 1000")
    backend.launch(attempt, ONE_GPU)
    end_of(backend, attempt)
    whole, end = backend.logs(attempt.name, 0, 0, 1 << 20)
    pieces, offset = b"", 0
    while offset < end:
        piece, offset = backend.logs(attempt.name, 0, offset, 100)
        pieces += piece
    assert pieces == whole == b"out\nerr\n" + b"".join(b"%d\n" % i for i in range(1, 1001))
    assert backend.logs(attempt.name, 0, end, 100) == (b"", end)
    assert backend.logs(attempt.name, 0, end + 5, 100) == (b"", end + 5)


def test_logs_are_read_while_it_runs(backend: Backend) -> None:
    attempt = sh("echo early; exec sleep 1000")
    backend.launch(attempt, ONE_GPU)
    assert until(lambda: backend.logs(attempt.name, 0, 0, 100)[0]) == b"early\n"


def test_what_a_python_program_printed_before_it_was_killed_is_in_its_log(backend: Backend, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, signal\nprint('step 1')\nos.kill(os.getpid(), signal.SIGKILL)\n")
    ordinary = running((sys.executable, str(script)))
    buffered = running((sys.executable, str(script)), environment={"PYTHONUNBUFFERED": ""})
    for attempt in (ordinary, buffered):
        backend.launch(attempt, ONE_GPU)
        end_of(backend, attempt)
    assert [backend.logs(it.name, 0, 0, 100)[0] for it in (ordinary, buffered)] == [b"step 1\n", b""]


def test_only_ranks_have_logs(backend: Backend) -> None:
    attempt = sh("true")
    with pytest.raises(BackendError):
        backend.logs(attempt.name, 0, 0, 100)
    backend.launch(attempt, ONE_GPU)
    end_of(backend, attempt)
    for rank in (-1, 1):
        with pytest.raises(BackendError):
            backend.logs(attempt.name, rank, 0, 100)


def test_what_is_forgotten_keeps_its_logs_and_never_starts_again(backend: Backend, tmp_path: Path) -> None:
    attempt = sh(f"echo started; echo started >> {tmp_path}/starts")
    backend.launch(attempt, ONE_GPU)
    end_of(backend, attempt)
    for _ in range(2):
        backend.forget(attempt.name)
    backend.launch(attempt, ONE_GPU)
    assert backend.logs(attempt.name, 0, 0, 100)[0] == b"started\n"
    assert backend.released(attempt.name)
    assert (tmp_path / "starts").read_text() == "started\n"


def test_a_running_attempt_cannot_be_forgotten(backend: Backend) -> None:
    attempt = sh("exec sleep 1000")
    backend.launch(attempt, ONE_GPU)
    runs(backend, attempt)
    with pytest.raises(BackendError):
        backend.forget(attempt.name)
    assert backend.status(attempt.name).run is Run.RUNNING


def test_what_ranks_tell_of_their_steps_comes_rank_by_rank_and_once(backend: Backend) -> None:
    if not isinstance(backend, WritesSteps):
        pytest.skip("jobs tell no steps at this backend")
    tells = 'echo "train $RANK 5.0" >> $LONGSHORE_STEPS; echo "$RANK 5.0 - /ckpt" >> $LONGSHORE_SAVED; exec sleep 1000'
    attempt = sh(tells)
    backend.launch(attempt, THREE_GPUS)
    first: list[StepLines] = []

    def all_told() -> bool:
        first[:] = backend.step_lines(attempt.name, THREE_GPUS, [StepLines()] * 3)
        return len(first) == 3 and all(it.saved for it in first)

    until(all_told)
    assert [it.steps for it in first] == [b"train %d 5.0\n" % rank for rank in range(3)]
    assert [it.saved for it in first] == [b"%d 5.0 - /ckpt\n" % rank for rank in range(3)]
    again = backend.step_lines(attempt.name, THREE_GPUS, first)
    assert [(it.steps, it.saved) for it in again] == [(b"", b"")] * 3
    assert [it.steps_end for it in again] == [it.steps_end for it in first]
    backend.cancel(attempt.name, "cancelled")
    end_of(backend, attempt)


def test_an_attempt_that_never_began_has_told_nothing(backend: Backend) -> None:
    if isinstance(backend, WritesSteps):
        assert backend.step_lines(sh("true").name, THREE_GPUS, [StepLines()] * 3) == []
