"""What every backend must do, on the real thing. A backend's test cluster has nodes a and b, with 4 and 2 GPUs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from pydantic import BaseModel

from benchmarks.slurm_cluster import SlurmCluster
from longshore.scheduler.backends.local.backend import LocalBackend
from longshore.scheduler.backends.protocol import Backend
from longshore.scheduler.backends.ray.backend import RayBackend
from longshore.scheduler.backends.slurm.backend import SlurmBackend
from longshore.testing.backends import BACKEND_CHECKS, BackendTrial, check_backend
from tests.scheduler.backends.attempts import (
    NODES,
    end_all,
)
from tests.scheduler.backends.kubernetes_trials import end_double, make_on_double
from tests.scheduler.backends.ray_cluster import RayCluster, end_attempts


@dataclass(frozen=True, slots=True)
class Trial:
    """How to try a backend of ours."""

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
def trial(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BackendTrial]:
    trial = TRIALS[request.param](request)
    yield BackendTrial(partial(trial.make, tmp_path), tmp_path, trial.sees_programs)
    trial.end(tmp_path)


def test_every_registered_backend_is_tried() -> None:
    assert {point.name for point in entry_points(group="longshore.backends")} <= set(TRIALS)


def test_every_registered_backend_can_be_chosen_in_a_configuration() -> None:
    for point in entry_points(group="longshore.backends"):
        kind = point.load()
        assert issubclass(kind.Settings, BaseModel), point.name
        assert callable(kind.build), point.name


@pytest.mark.parametrize("check", BACKEND_CHECKS)
def test_it_keeps_the_contract(check: str, trial: BackendTrial) -> None:
    BACKEND_CHECKS[check](trial)


def test_all_checks_pass_one_after_the_other_and_leave_no_process(tmp_path: Path) -> None:
    check_backend(lambda: LocalBackend(tmp_path, NODES))


class Twice(LocalBackend):
    """A backend that is broken in one way."""

    def released(self, name: str) -> bool:
        return True


def test_a_backend_that_frees_gpus_too_early_does_not_pass(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"a launch that comes after a cancel|a cancelled attempt"):
        check_backend(lambda: Twice(tmp_path, NODES))
