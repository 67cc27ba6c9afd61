"""How long jobs wait for a decision while a policy misbehaves, and what it costs to have one in a process of its own.

1,024 GPUs, and 2,000 jobs in the queue. A policy that has missed is started again at once, so that this counts too.
"""

import math
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from longshore.agents.heuristics import HEURISTICS
from longshore.cluster.model.problem import ORDERS, FaultProcess, Rules
from longshore.cluster.model.topology import grid_cluster
from longshore.scheduler.mirror.cluster_mirror import ClusterMirror, ClusterSite, JobRequest, MirrorOrigin
from longshore.scheduler.placement.placer import Decision, Placer
from longshore.scheduler.policy_host import process as policy_process

from .harness import Row, main, progress
from .rogues import NAMES, install

NODES, GPUS_PER_NODE, QUEUED = 128, 8, 2000
DEADLINE_S, ALLOWED_S = 0.1, 0.05
LOADED_S = 300.0
BAD_DECISIONS, GOOD_DECISIONS = 60, 1500
CHECKPOINTS = ("hetero64", "hetero64-wait")
FOLDER = Path(__file__).absolute().parent.parent / "checkpoints"


class Load:
    """A busy cluster on which jobs come and go."""

    def __init__(self, policy: str | None, deadline_s: float) -> None:
        speed = np.resize([1.0, 2.5], NODES)
        process = FaultProcess(1.0, 43200.0, 0.0, 0.0)
        rules = Rules(
            ring=False, node_penalty=0.25, reference_gpus=8, reference_intra_bytes_per_s=150e9,
            reference_nic_bytes_per_s=12.5e9, checkpoint_s=3600.0, restart_s=900.0, order=ORDERS["easy"],
            ageing_s=math.inf, waiting=True,
        )  # fmt: skip
        gpus = NODES * GPUS_PER_NODE
        self.mirror = ClusterMirror(
            ClusterSite(grid_cluster(NODES, GPUS_PER_NODE, speed=speed), rules, process, np.full(gpus, 1 / 5.4e6)),
            MirrorOrigin(0.0),
        )
        self.rng, self.jobs, self.runs = np.random.default_rng(0), 0, list[str]()
        self.mirror.begin(0.0)
        for _ in range(QUEUED):
            self.submit()
        self.placer = Placer(HEURISTICS["patient"], policy, deadline_s)
        self.placer.follow_mirror(self.mirror)
        self.placer.wait_until_ready(LOADED_S)

    def submit(self) -> None:
        """Put one more job into the queue."""
        gpus, estimate_s = int(self.rng.choice([1, 2, 3, 4, 5, 6, 8])), float(self.rng.lognormal(9.0, 1.0))
        self.mirror.submit(JobRequest(f"{self.jobs:026d}", gpus, estimate_s, self.mirror.now_s))
        self.jobs += 1

    def decisions(self, count: int) -> Iterator[tuple[Decision, float]]:
        """Yield decisions and how long each took; after each moment's, three jobs end and three come."""
        made = 0
        while made < count:
            while self.mirror.find_due_job() is not None and made < count:
                began = time.perf_counter()
                decision = self.placer.decide(self.mirror)
                yield decision, time.perf_counter() - began
                made += 1
                if decision.started:
                    self.runs.append(decision.job)
            self.mirror.begin(self.mirror.now_s + 1.0)
            for job in self.runs[:3]:
                self.mirror.finish(job)
                self.submit()
            del self.runs[:3]


def longest_ms(policy: str) -> float:
    """Return the longest decision while a policy misbehaves."""
    load, longest_s = Load(policy, DEADLINE_S), 0.0
    for at, (_, took_s) in enumerate(load.decisions(BAD_DECISIONS)):
        longest_s = max(longest_s, took_s)
        if at % 10 == 9:  # once more, after it has been started again
            load.placer.is_ready(LOADED_S)
    load.placer.end()
    return 1000.0 * longest_s


def typical_us(policy: str | None) -> float:
    """Return the median time of a decision."""
    load = Load(policy, LOADED_S)
    taken_s = [took_s for _, took_s in load.decisions(GOOD_DECISIONS)][GOOD_DECISIONS // 5 :]
    load.placer.end()
    return 1e6 * statistics.median(taken_s)


def measure() -> Iterator[Row]:
    """Yield the rows."""
    # Restarts are part of what is measured, and the rests between them are not.
    policy_process.FIRST_REST_S = policy_process.LONGEST_REST_S = 0.0
    most_ms = 1000.0 * (DEADLINE_S + ALLOWED_S)
    with TemporaryDirectory() as folder:
        install(Path(folder))
        sys.path.insert(0, folder)
        for name in NAMES:
            progress(f"policy {name}")
            yield Row(f"longest decision, policy that does `{name}`", longest_ms(f"rogue-{name}"), "ms", most=most_ms)
    yield Row("a decision of patient alone", typical_us(None), "us")
    yield Row("of pack in a process of its own, beside patient", typical_us("pack"), "us")
    for name in CHECKPOINTS:
        yield Row(f"of {name}.zip, beside patient", typical_us(str(FOLDER / f"{name}.zip")), "us", most=1e6 / 150)


if __name__ == "__main__":
    main(measure)
