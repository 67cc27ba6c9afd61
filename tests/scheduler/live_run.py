"""A live cluster that gets the events of a simulation, and decides beside it."""

from collections.abc import Callable, Iterator

import numpy as np

from longshore.agents.protocol import Policy
from longshore.cluster.model.outcome import EVENT_KINDS
from longshore.cluster.placing import undo_picks
from longshore.cluster.simulator.engine import advance, reset, start, wait
from longshore.cluster.state.state import Simulation
from longshore.scheduler.mirror.cluster_mirror import ROW, ClusterMirror, ClusterSite, JobRequest, MirrorOrigin, Spread
from tests.compiled_runs import picks
from tests.strategies import Case

Decided = tuple[str | None, bool, str, list[int]]  # the job that was due, whether it started, what did, and its GPUs


def site_of(case: Case) -> ClusterSite:
    scenarios = case.scenarios
    cluster = case.cluster._replace(speed=scenarios.speed[case.row])
    return ClusterSite(cluster, case.rules, case.process, scenarios.hazard_per_s[case.row])


def request_in(case: Case, job: int) -> JobRequest:
    it, row = case.scenarios, case.row
    kind = it.needs[row, job]
    types = tuple(np.flatnonzero(case.cluster.suits[kind]).tolist()) if kind else ()  # each node is a type of its own
    return JobRequest(
        str(job), int(it.gpus[row, job]), float(it.estimate_s[row, job]), float(it.submit_s[row, job]),
        compute_s=float(it.compute_s[row, job]), parameter_bytes=float(it.parameter_bytes[row, job]), types=types,
        spread=spread_in(case, job), user=f"user {it.line[row, job]}" if it.line.size else "",
    )  # fmt: skip


def spread_in(case: Case, job: int) -> Spread | None:
    columns = [getattr(case.scenarios, name) for name in Spread._fields]
    if not columns[0].size or not columns[0][case.row, job]:
        return None
    return Spread(*(it[case.row, job].item() for it in columns))


class LiveCopy:
    """A live cluster that is given the events of a simulation's log, one after the other."""

    def __init__(self, case: Case, world: Simulation) -> None:
        self.case, self.world, self.read = case, world, 0
        self.mirror = ClusterMirror(site_of(case), MirrorOrigin(0.0))

    def catch_up(self) -> None:
        """Apply all that has happened since the last decision, moment by moment."""
        log, mirror = self.world.log, self.mirror
        for at in range(self.read, int(log.size[0])):
            kind = EVENT_KINDS[int(log.kind[at])]
            if kind == "start":
                continue  # the scheduler's own doing
            if at == 0 or log.time_s[at] > mirror.now_s:
                mirror.begin(float(log.time_s[at]))
            gpus = log.gpus[log.first_gpu[at] : log.first_gpu[at + 1]]
            self.apply(kind, int(log.job[at]), gpus.tolist())
        self.read = int(log.size[0])
        if mirror.now_s < self.world.state.now_s[0]:
            mirror.begin(float(self.world.state.now_s[0]))  # a job has reached the ageing bound

    def apply(self, kind: str, job: int, gpus: list[int]) -> None:
        mirror = self.mirror
        if kind == "submit":
            mirror.submit(request_in(self.case, job))
        elif kind == "finish":
            mirror.finish(str(job))
        elif kind == "stop":
            mirror.stop(str(job))
        else:
            for gpu in gpus:
                (mirror.take_out if kind == "fault" else mirror.bring_back)(gpu)
            if kind == "fault":
                mirror.fail(gpus)


def decided(
    live: LiveCopy, policy: Policy, before: Callable[[], None] = lambda: None
) -> Iterator[tuple[Decided, Decided]]:
    """Yield what is decided in the simulation and on the live cluster, decision by decision."""
    world = live.world
    reset(world, 0, live.case.row)
    while advance(world, 0):
        live.catch_up()
        before()
        job, due = str(world.state.current[0]), live.mirror.find_due_job()
        placed, live_placed = policy.place(world, 0), policy.place(live.mirror.sim, ROW)
        yield (
            (job, placed, str(world.state.current[0]), picks(world)),
            (due, live_placed, live.mirror.current_job, sorted(live.mirror.gpus_of_job(live.mirror.current_job))),
        )
        if placed:
            assert start(world, 0) == live.mirror.start_current_job()
        else:
            undo_picks(world, 0)
            wait(world, 0)
            live.mirror.wait(rests=live.mirror.all_jobs_wait)
