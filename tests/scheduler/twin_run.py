"""One workload through the simulator and through the real scheduler."""

from itertools import count
from pathlib import Path

import numpy as np

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.protocol import Policy
from longshore.cluster.presets.problems import Regime, hetero64_problem
from longshore.scheduler.model.gpu_index import Layout
from longshore.scheduler.placement.placer import Placer
from longshore.scheduler.placement.replay import export_decisions
from longshore.scheduler.store.database import Store, open_store
from longshore.testing.simulated import SimulatedBackend
from longshore.testing.twin import Start, Twin
from tests.compiled_runs import compiled, run_policy
from tests.scheduler.live_run import site_of
from tests.strategies import Case


def layout_of(case: Case) -> Layout:
    sizes = np.diff(case.cluster.first_gpu).tolist()
    return Layout([f"node{number}" for number in range(len(sizes))], sizes)


def twin_of(case: Case, store: Store, placer: Placer) -> Twin:
    return Twin(SimulatedBackend(compiled(case), layout_of(case)), site_of(case), store, placer)


def simulated(case: Case, policy: Policy) -> list[Start]:
    events, _ = run_policy(case, policy)
    return [(event.time_s, event.job, event.gpus) for event in events if event.kind == "start"]


def learning_case(jobs: int) -> Case:
    """Return a case of `hetero64` whose policies are not reported which node is the lemon, and learn it."""
    regime = Regime("easy-shortest", 24 * 3600.0, waiting=True)
    cluster, scenarios, process, rules = hetero64_problem(1, 7, regime, jobs=jobs, load=0.85)
    return Case(cluster._replace(speed=scenarios.speed[0]), scenarios, 0, process, rules)


def learning(folder: Path) -> Path:
    """Play a cluster whose policies learn from faults, taken over now and then; return the file of its decisions."""
    store = open_store(f"sqlite:///{folder / 'store.db'}")
    twin = twin_of(learning_case(jobs=60), store, Placer(HEURISTICS["patient"]))
    twin.tick()
    for turn in count():
        if twin.is_over:
            break
        twin.process_next_moment()
        twin.tick()
        if turn % 40 == 20:
            twin.scheduler.cache = None
    file = folder / "decisions.jsonl"
    file.write_text("".join(line + "\n" for line in export_decisions(store)), encoding="utf-8")
    store.close()
    return file
