"""Problems from what users bring: a cluster file, jobs, recorded faults; or the preset's draws of a cluster.

Each purpose has a stream of random numbers of its own, and training, evaluation and users have keys of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ..faults.recorded import FaultTrace, draw_recorded_process, node_faults_per_s
from ..files.errors import InputError
from ..model.problem import DEFAULT_HAZARD_PER_S, ORDERS, Problem, Rules, Scenarios, fault_sources, stack
from ..model.topology import Cluster, speed_sum, with_classes_of_jobs
from ..model.workload import Workload, sample_windows
from ..state.holding import startable_gpus
from .cluster_file import ClusterSetup, draw_faults
from .drawn import HETERO64_SITE, PATENT_JOBS, PresetSite, hetero64, patent


class Stream(IntEnum):
    """What random numbers are for; each purpose has a stream of its own, whatever else is drawn."""

    JOBS = 0  # workloads that are generated
    WINDOWS = 1  # where windows of a trace begin
    ESTIMATES = 2  # errors of estimates
    FAULTS = 3  # fault seeds of scenarios
    OUTAGES = 4  # nodes of a fault trace


TRAINING_SEED, VALIDATION_SEED = 1_000_000, 1  # keys of training seed 0, and of what all training is validated on
MOST_TRAINING_SEEDS = 1_000_000
_APART = 1 << 64


def training_key(seed: int) -> int:
    """Return the key of the scenarios that a run of a seed from 0 to 999,999 trains on."""
    return TRAINING_SEED + seed


def evaluation_key(seed: int) -> int:
    """Return the key of the scenarios that are evaluated by a seed: the seed itself, unless training draws by that."""
    trained_on = TRAINING_SEED <= seed < TRAINING_SEED + MOST_TRAINING_SEEDS
    return seed + _APART if trained_on or seed == VALIDATION_SEED else seed


def user_key(seed: int) -> int:
    """Return the key of scenarios that users draw for purposes of their own: nothing is evaluated by such a key."""
    return seed + 2 * _APART


def stream(seed: int, purpose: Stream) -> np.random.Generator:
    """Return the random numbers of a seed for one purpose, the same at every call.

    These are the generators that `np.random.default_rng(seed).spawn` gives, in the order of Stream.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(purpose,)))


WINDOW_JOBS = 96
RUNS, LEAST_SCENARIOS = 8, 64
LOAD = 0.85
HETERO64_CAPACITY = 112  # GPUs of speed 1 that 32 of speed 1 and 32 of speed 2.5 are worth
HETERO64_LARGEST = 48  # GPUs; all 64 are up at once about 15 % of the time only
HETERO64_GPUS, HETERO64_JOBS = 64, 64
GIB = 2**30
MAX_PROBLEM_BYTES = 10 * GIB
# For each job of each scenario 44 bytes of what is given, 136 of state, and for each of 14 policies that are compared
# 36 of outcome and 8 of JCT, some of it twice; for each GPU and node also what its fault source holds, and for each
# node what the candidates hold that are compared.
SCENARIO_BYTES, JOB_BYTES, GPU_BYTES, NODE_BYTES = 2300, 950, 72, 530


@dataclass(frozen=True, slots=True)
class Regime:
    """What may be chosen, and by what knowledge.

    Args:
        order: Order of jobs.
        ageing_s: How long one may be overtaken.
        waiting: Whether policies may wait.
        oracle: Whether policies know the true fault rates; else the mean rate, and what faults teach them.
        turns: Whether users take turns in the queue, where the jobs have users.
    """

    order: str = "fifo"
    ageing_s: float = float("inf")
    waiting: bool = False
    oracle: bool = False
    turns: bool = False

    def applied_to(self, rules: Rules) -> Rules:
        """Return rules with this regime."""
        return rules._replace(
            order=ORDERS[self.order], ageing_s=self.ageing_s, waiting=self.waiting,
            estimated_hazards=not self.oracle, turns=self.turns,
        )  # fmt: skip

    def with_known_hazards(self, cluster: Cluster, scenarios: Scenarios) -> Scenarios:
        """Return scenarios with the fault rates that policies may know: the true ones, or the mean of each node type.

        The mean hides which nodes are lemons.
        """
        if self.oracle:
            return scenarios
        of_type, means = cluster.node_type[cluster.gpu_node], np.empty_like(scenarios.hazard_per_s)
        for number in np.unique(of_type):
            means[:, of_type == number] = scenarios.hazard_per_s[:, of_type == number].mean(axis=1, keepdims=True)
        return scenarios._replace(hazard_per_s=means)


def hetero64_problem(
    scenarios: int,
    seed: int,
    regime: Regime,
    *,
    nodes: int = HETERO64_GPUS // 8,
    jobs: int = HETERO64_JOBS,
    load: float | None = None,
) -> Problem:
    """Return scenarios of the preset `hetero64`, or of its like with other sizes (see `hetero64`).

    Raises:
        InputError: If they would take too much memory.
    """
    check_memory(scenarios, jobs, 8 * nodes, nodes)
    return _with_regime(hetero64(scenarios, seed, nodes=nodes, jobs=jobs, load=load), regime)


def patent_problem(gpus: int, scenarios: int, seed: int, regime: Regime) -> Problem:
    """Return scenarios of the preset `patent4` or `patent64`, by the cluster's GPUs.

    Raises:
        InputError: If they would take too much memory.
    """
    check_memory(scenarios, PATENT_JOBS[gpus], gpus, gpus)
    return _with_regime(patent(scenarios, seed, gpus=gpus), regime)


def _with_regime(drawn: Problem, regime: Regime) -> Problem:
    scenarios = regime.with_known_hazards(drawn.cluster, drawn.scenarios)
    return drawn._replace(rules=regime.applied_to(drawn.rules), scenarios=scenarios)


def window_problem(
    workload: Workload,
    regime: Regime,
    *,
    windows: int,
    runs: int | None,
    part: tuple[float, float],
    seed: int,
    load: float | None = LOAD,
    max_gpus: int | None = None,
    disjoint: bool = False,
    site: PresetSite = HETERO64_SITE,
) -> Problem:
    """Return windows of a trace on clusters of the preset `hetero64` or its like, several draws for each window.

    Scenario i runs window i // runs.

    Args:
        workload: The whole trace.
        regime: What may be chosen.
        windows: Windows of 96 consecutive jobs, or of as many as the part has.
        runs: Draws of speeds, lemon and faults for each window; if None, 8, and more where windows are few.
        part: The share of the trace, in order of time, that windows come from.
        seed: Of windows and draws.
        load: Offered load that arrivals are scaled to, on the cluster's speed; left as they are recorded if None.
        max_gpus: Jobs that ask for more get this number; three quarters of the cluster if None.
        disjoint: Take windows that share no job, fewer if there are not enough.
        site: The cluster.

    Raises:
        InputError: If the part has no job, a job asks more GPUs than there are, or it would take too much memory.
    """
    found = draw_windows(
        workload, windows, part=part, seed=seed, load=load, max_gpus=max_gpus or site.gpus * 3 // 4,
        capacity=site.capacity, disjoint=disjoint,
    )  # fmt: skip
    runs = runs or runs_per_window(len(found))
    check_memory(len(found) * runs, found[0].jobs, site.gpus, site.nodes)
    cluster, drawn, process, rules = hetero64(len(found) * runs, seed, jobs=1, site=site)
    check_plans(found, rules)
    for window in found:
        check_jobs_fit(window, cluster)
    scenarios = stack(
        cluster,
        [window for window in found for _ in range(runs)],
        fault_seed=drawn.fault_seed,
        source_rate_per_s=drawn.source_rate_per_s,
        speed=drawn.speed,
    )
    scenarios = regime.with_known_hazards(cluster, scenarios)
    return Problem(cluster, scenarios, process, rules_until_overload(cluster, scenarios, regime.applied_to(rules)))


def runs_per_window(windows: int) -> int:
    """Return how many draws of faults to take for each window: 8, and more where windows are few."""
    return max(RUNS, -(-LEAST_SCENARIOS // windows))


def draw_windows(
    workload: Workload, windows: int, *, part: tuple[float, float], seed: int, load: float | None, max_gpus: int,
    capacity: int, disjoint: bool,
) -> list[Workload]:  # fmt: skip
    """Return windows of 96 consecutive jobs; of all of them if the part of the trace has fewer.

    Raises:
        InputError: If the part has none.
    """
    jobs = min(WINDOW_JOBS, job_count_within(workload, part))
    if jobs == 0:
        problem = f"the part from {part[0]:g} to {part[1]:g} of a trace of {workload.jobs} jobs has none"
        raise InputError(problem, "give a longer trace", field="--trace")
    rng = stream(seed, Stream.WINDOWS)
    return sample_windows(
        workload, jobs, windows, rng, first=part[0], last=part[1], max_gpus=max_gpus, load=load, cluster_gpus=capacity,
        disjoint=disjoint,
    )  # fmt: skip


def disjoint_window_count(workload: Workload, part: tuple[float, float]) -> int:
    """Return how many windows that share no job a part of a workload has room for, at least 1."""
    return max(1, job_count_within(workload, part) // WINDOW_JOBS)


def job_count_within(workload: Workload, part: tuple[float, float]) -> int:
    """Return how many jobs a part of a workload has, given as shares of its jobs in order of submission."""
    return round(part[1] * workload.jobs) - round(part[0] * workload.jobs)


def capacity_of(cluster: Cluster) -> int:
    """Return how many GPUs of speed 1 a cluster is worth, at least 1; by it loads are scaled."""
    return max(1, round(speed_sum(cluster)))


def cluster_problem(
    setup: ClusterSetup,
    workloads: Sequence[Workload],
    regime: Regime,
    *,
    runs: int,
    seed: int,
    faults: FaultTrace | None = None,
) -> Problem:
    """Return workloads on a cluster file's cluster, several draws of its faults for each.

    Scenario i runs workload i // runs. Recorded faults, if given, take the place of the file's fault model; every
    scenario meets the same ones. Policies begin with the hazards of the cluster file. As oracles they know what the
    fault model has drawn; of recorded faults, where the file's hazards are all 0, the mean rate of the fleet.

    Raises:
        InputError: If a job asks more GPUs than the cluster has, or it would take too much memory.
    """
    check_plans(workloads, setup.rules)
    cluster, needs = with_classes_of_jobs(setup.cluster, setup.offers, [workload.node_needs for workload in workloads])
    most_jobs = max(workload.jobs for workload in workloads)
    check_memory(len(workloads) * runs, most_jobs, cluster.gpu_node.size, cluster.speed.size)
    for workload, kinds in zip(workloads, needs, strict=True):
        check_jobs_fit(workload, cluster, kinds, spares=setup.rules.spares)
    count = len(workloads) * runs
    seeds = stream(seed, Stream.FAULTS).integers(0, 2**32, count)
    hazard: NDArray[np.float64] | None = None
    if faults is None:
        draws = [draw_faults(setup, int(one)) for one in seeds]
        rates, process = np.stack([draw[0] for draw in draws]), draws[0][1]
    else:
        rates, process = (
            np.zeros(fault_sources(cluster)),
            draw_recorded_process(faults, cluster, stream(seed, Stream.OUTAGES)),
        )
        hazard = _known_hazard_per_s(setup, faults) if regime.oracle else None
    if not regime.oracle:
        hazard = _starting_hazard_per_s(setup, are_recorded=faults is not None)
    scenarios = stack(
        cluster,
        [workload for workload in workloads for _ in range(runs)],
        fault_seed=seeds,
        source_rate_per_s=rates,
        hazard_per_s=hazard,
        needs=[kinds for kinds in needs for _ in range(runs)],
    )
    return Problem(
        cluster, scenarios, process, rules_until_overload(cluster, scenarios, regime.applied_to(setup.rules))
    )


def _starting_hazard_per_s(setup: ClusterSetup, *, are_recorded: bool) -> NDArray[np.float64]:
    """Return the fault rates that policies start from, shape (gpus,): the file's hazards, before lemons are drawn.

    By a file without hazards nothing fails. Under recorded faults it is then the rate of most fleets.
    """
    if are_recorded and not (setup.hazard_per_s > 0.0).any():
        return np.full_like(setup.hazard_per_s, DEFAULT_HAZARD_PER_S)
    return setup.hazard_per_s


def _known_hazard_per_s(setup: ClusterSetup, faults: FaultTrace) -> NDArray[np.float64]:
    """Return the fault rates that oracles know of recorded faults, shape (gpus,): those of the cluster file, if any.

    The mean rate of the trace comes from what is about to be run; no scheduler knows it beforehand.
    """
    if (setup.hazard_per_s > 0.0).any():
        return setup.hazard_per_s
    # A node's outage takes all its GPUs: each bears its share of the mean rate of a node.
    return node_faults_per_s(faults) / np.diff(setup.cluster.first_gpu)[setup.cluster.gpu_node]


def check_plans(workloads: Sequence[Workload], rules: Rules) -> None:
    """Refuse plans where no run time hangs on links.

    Raises:
        InputError: If a job has a plan, and the model of run times is the simple one.
    """
    if not rules.ring and any(any(workload.plans or ()) for workload in workloads):
        problem = "jobs of the trace have plans, and the simple model of run times knows no links"
        raise InputError(problem, "give a cluster file with run_time: {model: ring}", field="--cluster")


def check_jobs_fit(
    workload: Workload, cluster: Cluster, kinds: NDArray[np.int32] | None = None, *, spares: float = 0.0
) -> None:
    """Refuse a workload with a job that the cluster can never hold.

    Args:
        workload: The jobs.
        cluster: The cluster.
        kinds: Class of what each job needs, a row of the cluster's `suits`; none counts if None.
        spares: Share of each node type's GPUs on which no job may start.

    Raises:
        InputError: Naming the first such job.
    """
    startable, besides = startable_gpus(cluster, spares), " besides its spares" if spares > 0.0 else ""
    for job in np.flatnonzero(workload.gpus > startable.sum())[:1]:
        raise InputError(
            f"job {workload.ids[job]} asks {workload.gpus[job]} GPUs of a cluster that has {startable.sum()}{besides}",
            "give a larger cluster, or cut such jobs with --max-gpus",
        )
    needs = workload.node_needs
    if needs is None or kinds is None:
        return
    room = (cluster.suits @ startable)[kinds]
    for job in np.flatnonzero(workload.gpus > room)[:1]:
        asks = f"{workload.gpus[job]} GPU{'s' if workload.gpus[job] > 1 else ''} {needs[job].words}"
        raise InputError(
            f"job {workload.ids[job]} asks {asks}, and the cluster has {room[job]} of these{besides}",
            "correct the job or the node types of the cluster file, or leave such columns out of the trace",
        )


def memory_bytes(scenarios: int, jobs: int, gpus: int, nodes: int) -> int:
    """Return about how much memory scenarios take that are compared under all heuristics."""
    return scenarios * (SCENARIO_BYTES + jobs * JOB_BYTES + gpus * GPU_BYTES + nodes * NODE_BYTES)


def check_memory(scenarios: int, jobs: int, gpus: int, nodes: int) -> None:
    """Refuse what would take more than some 10 GiB of arrays, before they are made.

    Args:
        scenarios: Workloads times draws of faults.
        jobs: Of the longest workload.
        gpus: Of the cluster.
        nodes: Of the cluster.

    Raises:
        InputError: With what to lower.
    """
    needed_bytes = memory_bytes(scenarios, jobs, gpus, nodes)
    if needed_bytes > MAX_PROBLEM_BYTES:
        raise InputError(
            f"{scenarios:,} scenarios of {jobs:,} jobs on {nodes:,} nodes would take {needed_bytes / GIB:,.0f} GiB of "
            f"memory, more than {MAX_PROBLEM_BYTES // GIB}",
            "lower --workloads, --runs or --jobs",
        )


def rules_until_overload(cluster: Cluster, scenarios: Scenarios, rules: Rules) -> Rules:
    """Return rules that cut a simulation off when it would not end: long after all work could have been done."""
    slowest = float(scenarios.speed.min()) / rules.slow_factor
    # Of a start and a fault. A job holds its GPUs meanwhile, which is most of the time of jobs of some seconds.
    pauses_s = rules.preflight_s + rules.restart_s + rules.detection_s + (rules.switch_s if rules.switching else 0.0)
    run_s = scenarios.work_s / slowest + pauses_s
    gpu_s = float((run_s * scenarios.gpus).sum(axis=1).max(initial=0.0))
    last_s = float(scenarios.submit_s.max(initial=0.0))
    longest_s = float(run_s.max(initial=0.0))
    return rules._replace(limit_s=last_s + 50.0 * gpu_s / cluster.gpu_node.size + 1000.0 * longest_s)
