"""One workload through the simulator and through the real scheduler: the same decisions in the same order."""

from pathlib import Path

import numpy as np
import pytest

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.protocol import Policy
from longshore.scheduler.deciding import Deciding
from longshore.scheduler.layout import Layout
from longshore.scheduler.states import AttemptState
from longshore.scheduler.store.attempts import get_attempt
from longshore.scheduler.store.events import events_after
from longshore.scheduler.store.opening import Store, open_store
from longshore.scheduler.twin import Twin
from tests.compiled_runs import compiled, play_policy, read_out
from tests.plain_run import busy_case
from tests.scheduler.test_live import site_of
from tests.strategies import Case


def layout_of(case: Case) -> Layout:
    sizes = np.diff(case.cluster.first_gpu).tolist()
    return Layout([f"node{number}" for number in range(len(sizes))], sizes)


Start = tuple[float, int, tuple[int, ...]]  # time, job and its GPUs


def decided(store: Store, layout: Layout) -> list[Start]:
    """Return all starts in the order in which the scheduler decided on them."""
    with store.read() as tx:
        reserved = [event for event in events_after(tx, 0, 1_000_000) if event.now == AttemptState.RESERVED]
        attempts = [(event.at_s, get_attempt(tx, event.job_id or "", event.number or 0)) for event in reserved]
    return [(at_s, int(row.job_id), layout.numbers(row.placement)) for at_s, row in attempts if row is not None]


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
    decisions = decided(store, layout_of(case))
    store.close()

    assert decisions == simulated(case, HEURISTICS[name])
    assert sorted(decisions) == sorted((it.time_s, it.job, it.gpus) for it in events if it.kind == "start")
