"""What every backend must do, on the real thing. A backend's test cluster has nodes a and b, with 4 and 2 GPUs."""

from importlib.metadata import entry_points
from pathlib import Path

import pytest
from pydantic import BaseModel

from longshore.scheduler.backends.local.backend import LocalBackend
from longshore.testing.backends import BACKEND_CHECKS, BackendTrial, check_backend
from tests.contracts.backend_trials import TRIALS
from tests.scheduler.backends.attempts import NODES


def test_every_registered_backend_is_tried() -> None:
    assert {point.name for point in entry_points(group="longshore.backends")} <= set(TRIALS)


def test_every_registered_backend_can_be_chosen_in_a_configuration() -> None:
    for point in entry_points(group="longshore.backends"):
        kind = point.load()
        assert issubclass(kind.Settings, BaseModel), point.name
        assert callable(kind.build), point.name


@pytest.mark.few(14)
@pytest.mark.parametrize("check", BACKEND_CHECKS)
def test_it_keeps_the_contract(check: str, trial: BackendTrial) -> None:
    BACKEND_CHECKS[check](trial)


@pytest.mark.full
def test_all_checks_pass_one_after_the_other_and_leave_no_process(tmp_path: Path) -> None:
    check_backend(lambda: LocalBackend(tmp_path, NODES))


class Twice(LocalBackend):
    """A backend that is broken in one way."""

    def is_proven_gone(self, name: str) -> bool:
        return True


def test_a_backend_that_frees_gpus_too_early_does_not_pass(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"a launch that comes after a cancel|a cancelled attempt"):
        check_backend(lambda: Twice(tmp_path, NODES))
