"""One workload through the simulator and through the real scheduler: the same decisions in the same order."""

from pathlib import Path

import numpy as np
import pytest

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.protocol import Policy
from longshore.scheduler.deciding import Deciding
from longshore.scheduler.layout import Layout
from longshore.scheduler.store.opening import open_store
from longshore.scheduler.twin import Start, Twin, starts_of
from tests.compiled_runs import compiled, play_policy, read_out
from tests.plain_run import busy_case
from tests.scheduler.test_live import site_of
from tests.strategies import Case


def layout_of(case: Case) -> Layout:
    sizes = np.diff(case.cluster.first_gpu).tolist()
    return Layout([f"node{number}" for number in range(len(sizes))], sizes)


def simulated(case: Case, policy: Policy) -> list[Start]:
    events, _ = play_policy(case, policy)
    return [(event.time_s, event.job, event.gpus) for event in events if event.kind == "start"]


@pytest.mark.parametrize("name", ["pack", "eft-hazard", "patient", "replacement"])
@pytest.mark.parametrize("ring", [False, True])
def test_the_scheduler_decides_as_the_simulator(name: str, ring: bool, tmp_path: Path) -> None:  # noqa: FBT001
    case = busy_case(ring=ring)
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")

    twin = Twin(compiled(case), site_of(case), layout_of(case), store, Deciding(HEURISTICS[name]))
    twin.play()
    events, _ = read_out(twin.backend.sim)
    decisions = starts_of(store, layout_of(case))
    store.close()

    assert decisions == simulated(case, HEURISTICS[name])
    assert sorted(decisions) == sorted((it.time_s, it.job, it.gpus) for it in events if it.kind == "start")
