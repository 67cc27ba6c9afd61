"""Which GPU takes an empty seat: the live scheduler's choice beside the simulator's, in the same states.

At each replacement of a simulation the live scheduler gets the input that a real ring would give it: the
coordinator's request, and the job's records. Both sides run as plain Python, where the simulator can be watched.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import numpy as np

from longshore.agents.registry import find_policy
from longshore.cluster.model.problem import ORDERS, Problem
from longshore.cluster.presets.drawn import PresetSite as Preset
from longshore.cluster.presets.drawn import hetero64
from longshore.cluster.simulator import faults, seats
from longshore.cluster.simulator.seats import compute_s, find_replacement
from longshore.cluster.simulator.simulation import simulation_of
from longshore.cluster.state.holding import held_gpus
from longshore.cluster.state.state import Simulation
from longshore.cluster.switching import FORMULAS
from longshore.ring.wire import EmptySeat, SeatRequest
from longshore.scheduler.control.seat_choice import RingJob, ring_gap_of
from longshore.scheduler.mirror.cluster_mirror import OF_JOBS, ClusterMirror, ClusterSite, MirrorSnapshot
from longshore.scheduler.mirror.vacant_seats import choose_seat_gpu, free_gpus_for, gpus_making_ring_faster
from longshore.scheduler.model.gpu_index import Layout
from longshore.scheduler.model.job_spec import stored_job
from longshore.scheduler.store.nodes import ComputeRecord

from .harness import Row

ROOT = Path(__file__).parent.parent
CASES = 1000
JOBS, LOAD, FAULTS = 60, 0.6, 60.0  # of one simulation, and how many more faults it has than the preset


class _Enough(Exception):  # noqa: N818 - it is no error
    """As many replacements were compared as were to be."""


class Watcher:
    """Compares each replacement of simulations.

    Args:
        most: After how many it ends.
    """

    def __init__(self, most: int) -> None:
        self.most, self.compared, self.equal, self.filled = most, 0, 0, 0
        self._patches = ExitStack()
        self._mirror: tuple[Simulation, ClusterMirror] | None = None  # of the present simulation

    def __enter__(self) -> "Watcher":
        for module in (faults, seats):
            self._patches.enter_context(patch.object(module, "find_replacement", self._find))
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()

    def _find(self, sim: Simulation, row: int, job: int, place: int, before_s: float, types: int) -> int:
        found = int(find_replacement(sim, row, job, place, before_s, types))
        self.compared += 1
        if self._mirror is None or self._mirror[0] is not sim:
            self._mirror = sim, mirror_of(sim)
        snapshot_of(sim).copy_into(self._mirror[1].sim)
        self.equal += found == live_choice(self._mirror[1], sim, job, place, (before_s, types))
        self.filled += found >= 0
        if self.compared >= self.most:
            raise _Enough
        return found


def live_choice(mirror: ClusterMirror, sim: Simulation, job: int, place: int, noted: tuple[float, int]) -> int:
    """Return the GPU that the live scheduler would give to a ring, -1 for none; as `find_replacement` takes it."""
    layout, kinds = _layout_of(sim), _kinds_of(sim)
    name, of = str(job), sim.scenarios
    spec = stored_job(
        {
            "command": ["true"],
            "parameter_bytes": float(of.parameter_bytes[0, job]),
            "gpus": int(of.gpus[0, job]),
            "failover": "switch",
        }
    )
    want, seats, records = _want_of(sim, job, place, noted[0]), _seats(sim, job, place), _records_of(sim, job, noted[1])
    free = free_gpus_for(mirror, name)
    ring = ring_gap_of(RingJob(mirror, layout, kinds, name, spec), want, want.empty[0], seats, records)
    if place == sim.cluster.gpu_node.size:
        free = gpus_making_ring_faster(sim.cluster, ring, free)
    return choose_seat_gpu(sim.cluster, ring, free, sim.rules.replacement).gpu


def _layout_of(sim: Simulation) -> Layout:
    return Layout([f"n{node}" for node in range(sim.cluster.speed.size)], np.diff(sim.cluster.first_gpu).tolist())


def _kinds_of(sim: Simulation) -> dict[str, str]:
    return {f"n{node}": f"type {kind}" for node, kind in enumerate(sim.cluster.node_type.tolist())}


def mirror_of(sim: Simulation) -> ClusterMirror:
    """Return what a live scheduler knows of a cluster in the state of a simulation."""
    return ClusterMirror.from_snapshot(snapshot_of(sim))


def snapshot_of(sim: Simulation) -> MirrorSnapshot:
    """Return the state of a simulation as a live cluster's."""
    site = ClusterSite(sim.cluster, sim.rules, sim.process, sim.scenarios.hazard_per_s[0])
    names = [str(job) for job in range(sim.scenarios.gpus.shape[1])]
    scenarios = {name: getattr(sim.scenarios, name) for name in OF_JOBS}
    slots = {name: at for at, name in enumerate(names)}
    return MirrorSnapshot(site, names, [()], {}, slots, scenarios, sim.state._asdict())


def _seats(sim: Simulation, job: int, place: int) -> int:
    return held_gpus(sim, 0, job) + (place == sim.cluster.gpu_node.size)


def _want_of(sim: Simulation, job: int, place: int, before_s: float) -> SeatRequest:
    """Return the seat request of a ring's coordinator; a member's number is that of its GPU."""
    mine = np.flatnonzero(sim.state.gpu_job[0] == job)
    living = [int(gpu) for gpu in mine if sim.state.gpu_down[0, gpu] == 0]
    before = max((gpu for gpu in living if gpu < place), default=living[-1])
    after = min((gpu for gpu in living if gpu > place), default=living[0])
    return SeatRequest(
        generation=1,
        empty=[EmptySeat(0, before, after)] * (_seats(sim, job, place) - len(living)),
        order=living,
        step_s=before_s,
        compute_s={str(gpu): float(compute_s(sim, 0, job, gpu)) for gpu in living},
        nodes={str(gpu): f"n{sim.cluster.gpu_node[gpu]}" for gpu in living},
    )


def _records_of(sim: Simulation, job: int, types: int) -> list[ComputeRecord]:
    """Return what is recorded of a job by node type: what the simulation has noted."""
    noted = zip(sim.scratch.record_type[0, :types].tolist(), sim.scratch.record_s[0, :types].tolist(), strict=True)
    return [ComputeRecord(str(job), f"type {kind}", 1, mean_s, ()) for kind, mean_s in noted]


def watch(cases: int) -> dict[str, int]:
    """Run simulations until a number of replacements were compared, half of them by each formula; return the counts."""
    counts = {"compared": 0, "equal": 0, "filled": 0}
    for formula in FORMULAS.values():
        watcher, seed = Watcher(cases // len(FORMULAS)), 0
        with watcher:
            while watcher.compared < watcher.most:
                seed += 1
                try:
                    find_policy("pack").run(_simulation(formula, seed), np.zeros(1, dtype=np.int64))
                except _Enough:
                    break
        counts = {name: value + getattr(watcher, name) for name, value in counts.items()}
    return counts


def _simulation(formula: int, seed: int) -> Simulation:
    cluster, scenarios, process, rules = hetero64(1, seed, jobs=JOBS, load=LOAD, site=Preset(faults=FAULTS))
    rules = rules._replace(
        switching=True, detection_s=12.0, switch_s=30.0, ring=True, replacement=formula, order=ORDERS["easy-shortest"],
        checkpoint_s=600.0, limit_s=math.inf,
    )  # fmt: skip
    # The types of the preset's nodes are drawn with their speeds.
    speed = scenarios.speed[0]
    cluster = cluster._replace(
        speed=speed, node_type=np.unique(speed, return_inverse=True)[1].astype(np.int32), peak_flops=speed * 1e14
    )
    return simulation_of(Problem(cluster, scenarios, process, rules))


def measured(cases: int) -> dict[str, int]:
    """Return the counts of `watch`, from a process in which nothing is compiled."""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    line = [sys.executable, "-m", "benchmarks.seat_twin", str(cases)]
    done = subprocess.run(line, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


def measure_twin() -> Iterator[Row]:
    """Yield how many choices are equal."""
    counts = measured(CASES)
    yield Row("seats that the live scheduler fills as the simulator", counts["equal"], "replacements", least=CASES)
    yield Row("of them with a GPU, not with none", counts["filled"], "replacements", least=CASES // 4)


if __name__ == "__main__":
    print(json.dumps(watch(int(sys.argv[1]))))
