"""Rings of four nodes of a real Slurm and of a real Ray, of which one node is killed: how long until the next step.

A fifth node has a spare. Killed are all processes that the job has on a node, and the engine's daemon there: once the
node of a member, once that of the coordinator. All nodes are processes of one machine, so the connections of a node
that dies break at once. Each trial is a job of its own. Source: SPEC F8 to F10.
"""

import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from longshore.cluster.files.errors import BackendError
from longshore.scheduler.model.states import JobState
from longshore.scheduler.store.events import EventRow
from longshore.scheduler.store.rings import MOVED, RING_ENDED
from tests.scheduler.backends import ray_cluster
from tests.scheduler.backends.ring_nodes import Nodes, ray_nodes, slurm_nodes
from tests.scheduler.ring_trials import RingTrial

from . import slurm_cluster
from .harness import ROOT, Row, main, progress

RUNS = int(os.environ.get("RUNS", "20"))
NODES = dict.fromkeys("abcdef", 1)  # GPUs of each node that may be used, so that each member has a node of its own
SEATS, STEPS, PAUSE_S, KILLED_AT = 4, 500, 0.03, 10
VICTIMS = ("member", "coordinator")
PHASES = ("stop_s", "choose_s", "form_s", "copy_s", "first_step_s")
KNOWN_S, NEXT_MEDIAN_S, NEXT_WORST_S, APPOINTED_S = 1.0, 1.0, 3.0, 3.0  # the bars
MOST_LOG = 1 << 20


@dataclass(frozen=True, slots=True)
class Lost:
    """What came of a ring that has lost a node."""

    known_s: float  # from the death of the node until the ring knew it
    next_s: float  # from there to the first step that was finished after it
    appointed_s: float  # from the appointment of another coordinator to that step; 0 where there was none
    digests: frozenset[str]  # of parameters and Adam's state, at the ends of all seated members
    steps: int
    attempts: int


def play(nodes: Nodes, victim: str) -> Lost:
    """Run a ring to its end; on the way it loses the node of a `member`, of the `coordinator`, or `none`."""
    trial, command = nodes.trial, [sys.executable, str(ROOT / "benchmarks" / "ring_trainer.py")]
    environment = {
        "PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    job = trial.submit(
        "", SEATS, spares=1, failover="switch", command=[*command, str(STEPS), str(PAUSE_S)], environment=environment,
        folder=str(trial.folder),
    )  # fmt: skip
    trial.runs(job)
    trial.until(lambda: trial.is_whole(job) and nodes.report(job).spares)
    places = trial.way.backend.ring_places(trial.name(job)) or ()
    trial.until(lambda: all(_last_step(trial, job, rank) >= KILLED_AT for rank in range(SEATS)))
    began, at_s = nodes.report(job).generation, time.time()
    if victim != "none":
        node = places[0 if victim == "coordinator" else SEATS - 1].node
        nodes.kill(node, job)
        losing = threading.Thread(target=nodes.lose_daemon, args=[node])  # while the scheduler goes on
        losing.start()
        trial.until(lambda: (seen := nodes.report(job)).generation > began and seen.phase in ("running", "done"))
        losing.join()
        nodes.bring_back(node)  # what it ran is proven gone once it is back
    row = trial.ends(job)
    trial.until(lambda: all(view.takes_jobs for view in trial.way.observe()))
    events = trial.events(job)
    assert row.state is JobState.SUCCEEDED, [event.cause for event in events]
    lines = [line for rank in range(SEATS + 4) for line in _lines(trial, job, rank)]
    steps = [(float(line[1]), int(line[2]), int(line[3])) for line in lines if line[0] == "step" and len(line) == 4]
    after_s, _, later = min((step for step in steps if step[2] > began), default=(at_s, 0, began))
    moved_s = next((event.at_s for event in events if event.now == MOVED), after_s)
    took_s = _recovery_s(events, range(began + 1, later + 1))
    return Lost(
        max(after_s - at_s - took_s, 0.0), took_s, after_s - moved_s,
        frozenset(line[1] for line in lines if line[0] == "end"), len({step for _, step, _ in steps}),
        len(trial.attempts(job)),
    )  # fmt: skip


def _recovery_s(events: Sequence[EventRow], generations: range) -> float:
    """Return how long the recoveries of generations took, from when the ring knew of the faults."""
    ends = [event.data or {} for event in events if event.now == RING_ENDED]
    reports: list[Any] = [end["report"] for end in ends]
    recoveries = [recovery for report in reports for recovery in report["recoveries"]]
    found = {recovery["generation"]: recovery for recovery in recoveries if recovery["generation"] in generations}
    assert len(found) == len(generations), recoveries
    return float(sum(max(recovery[phase], 0.0) for recovery in found.values() for phase in PHASES))


def _lines(trial: RingTrial, job: str, rank: int) -> list[list[str]]:
    """Return what members on a rank have printed."""
    with suppress(BackendError):
        text, _ = trial.way.backend.logs(trial.name(job), rank, 0, MOST_LOG)
        return [line.split() for line in text.decode(errors="replace").splitlines()]
    return []


def _last_step(trial: RingTrial, job: str, rank: int) -> int:
    return max((int(line[2]) for line in _lines(trial, job, rank) if line[0] == "step" and len(line) == 4), default=-1)


@contextmanager
def slurm(folder: Path) -> Iterator[Nodes]:
    """Start a Slurm, and yield its nodes."""
    cluster = slurm_cluster.SlurmCluster(folder / "slurm", list(NODES))
    try:
        cluster.start()
        with slurm_nodes(folder, cluster, NODES) as nodes:
            yield nodes
    finally:
        cluster.end()


@contextmanager
def ray(folder: Path) -> Iterator[Nodes]:
    """Start a Ray, and yield its nodes."""
    (folder / "ray").mkdir()
    cluster = ray_cluster.RayCluster(folder / "ray", list(NODES))
    try:
        cluster.start()
        with ray_nodes(folder, cluster, NODES) as nodes:
            yield nodes
    finally:
        cluster.end()


def measure() -> Iterator[Row]:
    """Yield how long rings stand still that lose a node, and whether anything was lost."""
    for name, engine, why in (("Slurm", slurm, slurm_cluster.why_not()), ("Ray", ray, ray_cluster.why_not())):
        if why:
            progress(f"no {name} here: {why}")
            continue
        with TemporaryDirectory(prefix="longshore-") as folder, engine(Path(folder)) as nodes:
            (Path(folder) / "train").mkdir()
            undisturbed = play(nodes, "none")
            for victim in VICTIMS:
                found = list[Lost]()
                for run in range(RUNS):
                    progress(f"{name}, the node of a {victim}: {run} of {RUNS}")
                    found.append(play(nodes, victim))
                yield from rows(f"{name}, the node of a {victim}", victim, found, undisturbed)


def rows(what: str, victim: str, found: Sequence[Lost], undisturbed: Lost) -> Iterator[Row]:
    """Yield what came of the rings that have lost a node."""
    known, later = [lost.known_s for lost in found], [lost.next_s for lost in found]
    bar_s = KNOWN_S if victim == "member" else None
    yield Row(f"{what}: until that is known, median", statistics.median(known), "s", most=bar_s)
    yield Row(f"{what}: until that is known, longest", max(known), "s")
    yield Row(f"{what}: from there to the next step, median", statistics.median(later), "s", most=NEXT_MEDIAN_S)
    yield Row(f"{what}: from there to the next step, longest", max(later), "s", most=NEXT_WORST_S)
    if victim == "coordinator":
        after = [lost.appointed_s for lost in found]
        yield Row(f"{what}: from the appointment to it, longest", max(after), "s", most=APPOINTED_S)
    count, unit = len(found), f"of {len(found)}"
    equal = sum(lost.digests == undisturbed.digests for lost in found)
    yield Row(f"{what}: parameters and Adam's state bit-equal", equal, unit, least=count)
    yield Row(f"{what}: no step lost", sum(lost.steps == STEPS for lost in found), unit, least=count)
    yield Row(f"{what}: in one attempt", sum(lost.attempts == 1 for lost in found), unit, least=count)


if __name__ == "__main__":
    main(measure)
