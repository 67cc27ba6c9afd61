from collections.abc import Iterator

import pytest

from longshore.planner.execution import launching
from longshore.planner.profile import profiling
from tests.support.warm import Warm

PREPARE = (
    "longshore.planner.execution.worker", "longshore.planner.profile.worker", "torch.utils.flop_counter",
    "torch.distributed.pipelining",
)  # fmt: skip


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    made = Warm(*PREPARE)
    yield made
    made.end()


@pytest.fixture(autouse=True)
def _forked(warm: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes with PyTorch be forked; those of commands that tests start are started as ever."""
    monkeypatch.setattr(launching, "subprocess", warm)
    monkeypatch.setattr(profiling, "subprocess", warm)
