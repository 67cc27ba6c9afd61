"""One workload through the simulator and through the real scheduler: the same decisions in the same order."""

from pathlib import Path

import numpy as np
import pytest

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.protocol import Policy
from longshore.cluster.outcome import Event
from longshore.scheduler.backends.simulated import SimulatedBackend
from longshore.scheduler.book import Parts
from longshore.scheduler.deciding import Deciding
from longshore.scheduler.layout import Layout
from longshore.scheduler.loop import Scheduler
from longshore.scheduler.states import AttemptState
from longshore.scheduler.store.attempts import get_attempt
from longshore.scheduler.store.events import events_after
from longshore.scheduler.store.jobs import NewJob, insert_job
from longshore.scheduler.store.opening import Store, open_store
from tests.compiled_runs import compiled, play_policy, read_out
from tests.plain_run import busy_case
from tests.scheduler.test_live import site_of
from tests.strategies import Case


def layout_of(case: Case) -> Layout:
    sizes = np.diff(case.cluster.first_gpu).tolist()
    return Layout([f"node{number}" for number in range(len(sizes))], sizes)


class Twin:
    """The real scheduler on a simulated clock and a simulated backend."""

    def __init__(self, case: Case, store: Store, deciding: Deciding) -> None:
        self.case, self.store = case, store
        self.backend = SimulatedBackend(compiled(case), layout_of(case))
        self.parts = Parts(
            store, self.backend, "simulated", site_of(case), layout_of(case), deciding, self.now_s, "twin"
        )  # fmt: skip
        self.scheduler = Scheduler(self.parts)

    def now_s(self) -> float:
        return self.backend.now_s

    def play(self) -> list[Event]:
        sim = self.backend.sim
        assert self.scheduler.tick()
        while sim.state.finished[0] < sim.scenarios.jobs[0]:
            submitted = int(sim.state.submitted[0])
            self.backend.live_through(self.backend.next_s())
            for job in range(submitted, int(sim.state.submitted[0])):
                self.submit(job)
            assert self.scheduler.tick()
        return read_out(sim)[0]

    def submit(self, job: int) -> None:
        of, row = self.case.scenarios, self.case.row
        gpus, estimate_s = int(of.gpus[row, job]), float(of.estimate_s[row, job])
        spec = {
            "gpus": gpus, "command": ["true"], "estimate_s": estimate_s,
            "compute_s": float(of.compute_s[row, job]), "parameter_bytes": float(of.parameter_bytes[row, job]),
            "retry": {"infra": 1000},
        }  # fmt: skip
        name = f"{job:026d}"
        self.backend.of_job[name] = job
        new = NewJob(name, "job", "me", spec, 0, gpus, estimate_s, self.backend.now_s)
        self.store.write(lambda tx: insert_job(tx, new, writer="api"))


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

    events = Twin(case, store, Deciding(HEURISTICS[name])).play()
    decisions = decided(store, layout_of(case))
    store.close()

    assert decisions == simulated(case, HEURISTICS[name])
    assert sorted(decisions) == sorted((it.time_s, it.job, it.gpus) for it in events if it.kind == "start")
