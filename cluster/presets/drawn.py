"""The presets whose scenarios are drawn: `hetero64`, and the patent's `patent4` and `patent64`."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..model.problem import ORDERS, FaultProcess, Problem, Rules, Scenarios, fault_sources
from ..model.topology import Cluster, grid_cluster
from ..model.workload import DEFAULT_COMPUTE_S, DEFAULT_PARAMETER_BYTES

HOUR_S = 3600.0
GPUS_PER_NODE = 8
FAST_SPEED = 2.5
JOB_GPUS = np.array([1, 2, 4, 8, 16, 32], dtype=np.int32)
JOB_GPUS_PROBABILITY = np.array([0.30, 0.15, 0.20, 0.18, 0.11, 0.06])
# Adding up in floating point misses 1 by a rounding, and a draw beyond it would find no size.
SIZE_BOUNDS = np.append(np.cumsum(JOB_GPUS_PROBABILITY)[:-1], 1.0)
WORK_MEDIAN_S = 4.1 * HOUR_S
WORK_SIGMA = 0.5
GPU_FAULTS_PER_S = 1.0 / (1500.0 * HOUR_S)
LEMON_FACTOR = 25.0
HETERO64_REPAIR_MEAN_S = 12.0 * HOUR_S
DRAWS_PER_BLOCK = 4  # Philox gives four numbers for each value of its counter


class PresetSite(NamedTuple):
    """A cluster like the preset's, of another size, other speeds or other faults. The default is the preset's own."""

    nodes: int = 8
    node_gpus: int = 8
    speeds: tuple[float, ...] = (FAST_SPEED, 1.0)  # of the GPUs: as many nodes have one as another, drawn anew
    faults: float = 1.0  # times as many as in the preset

    @property
    def gpus(self) -> int:
        """GPUs of the cluster."""
        return self.nodes * self.node_gpus

    @property
    def capacity(self) -> int:
        """GPUs of speed 1 that it is worth."""
        return round(self.node_gpus * float(_speeds_by_rank(self, np.arange(self.nodes)).sum()))


HETERO64_SITE = PresetSite()


def hetero64(
    scenarios: int, seed: int, *, first: int = 0, nodes: int = 8, jobs: int = 64, load: float | None = None,
    site: PresetSite | None = None,
) -> Problem:  # fmt: skip
    """Return scenarios of the preset: 8 nodes of 8 GPUs, 64 jobs that are all submitted at the start, or over time.

    In each scenario a random half of the nodes is 2.5 times as fast as the others, and a random node is a lemon with
    25 times the fault rate. Scenario i depends on `seed`, `first` + i, `nodes`, `jobs` and `load` only, not on how many
    are drawn, so sets with ranges that do not meet share nothing.

    Args:
        scenarios: How many to draw.
        seed: Key of all random numbers, at least 0.
        first: Number of the first scenario, at least 0.
        nodes: Nodes of 8 GPUs each, at least 4, so that the largest job (32 GPUs) fits.
        jobs: Jobs of each scenario.
        site: Another cluster, in place of `nodes` nodes like the preset's; jobs that ask for more than it has get all.
        load: Jobs arrive as a Poisson process that offers this share of the cluster's GPU-time, counted in GPUs of
            speed 1; None submits all at once.

    Raises:
        ValueError: If a number is below its minimum.
    """
    if site is not None:
        nodes = site.nodes
    elif nodes < 4:
        raise ValueError(f"nodes must be at least 4, got {nodes}")
    site = site or PresetSite(nodes)
    if scenarios < 1 or seed < 0 or first < 0 or jobs < 1 or (load is not None and not load > 0.0):
        raise ValueError(
            f"scenarios and jobs must be at least 1, seed and first at least 0, load above 0; "
            f"got {scenarios}, {jobs}, {seed}, {first}, {load}"
        )
    cluster = grid_cluster(nodes, site.node_gpus)
    ends = np.cumsum([nodes, 1, 1, jobs, jobs, jobs, jobs if load is not None else 0])
    rows = numbered_draws(scenarios, seed, first, int(ends[-1]))
    fast, lemon, fault_seed, size, radius, angle, gap, _ = np.split(rows, ends, axis=1)
    is_lemon = (lemon[:, 0] * nodes).astype(np.int32)[:, None] == cluster.gpu_node
    drawn = _batch_scenarios(
        cluster,
        gpus=np.minimum(JOB_GPUS[np.searchsorted(SIZE_BOUNDS, size, side="right")], site.gpus),
        work_s=work_s(radius, angle),
        speed=_speeds_by_rank(site, fast.argsort(axis=1).argsort(axis=1)),
        hazard_per_s=np.where(is_lemon, LEMON_FACTOR * GPU_FAULTS_PER_S, GPU_FAULTS_PER_S) * site.faults,
        fault_seed=fault_seed[:, 0],
    )
    if load is not None:
        drawn = drawn._replace(submit_s=_arrivals_s(gap, load, drawn.speed[0].sum() * site.node_gpus))
    return Problem(cluster, drawn, fault_process(), rules())


def _arrivals_s(gap: NDArray[np.float64], load: float, capacity: float) -> NDArray[np.float64]:
    """Return when jobs are submitted, the first at 0, to a cluster worth `capacity` GPUs of speed 1."""
    gpu_s = float(JOB_GPUS @ JOB_GPUS_PROBABILITY) * WORK_MEDIAN_S * np.exp(WORK_SIGMA**2 / 2.0)
    gaps_s = -np.log1p(-gap) * gpu_s / (load * capacity)
    gaps_s[:, 0] = 0.0
    arrivals_s: NDArray[np.float64] = gaps_s.cumsum(axis=1)
    return arrivals_s


def fault_process() -> FaultProcess:
    """Return the preset's faults: exponential up times and repairs, no transient ones."""
    return FaultProcess(shape=1.0, repair_mean_s=HETERO64_REPAIR_MEAN_S, repair_sigma=0.0, transient_probability=0.0)


def rules() -> Rules:
    """Return the preset's constants: simple run-time model, strict FIFO, no ageing, no waiting."""
    return Rules(
        ring=False,
        node_penalty=0.25,
        reference_gpus=GPUS_PER_NODE,
        reference_intra_bytes_per_s=150e9,
        reference_nic_bytes_per_s=12.5e9,
        checkpoint_s=HOUR_S,
        restart_s=0.25 * HOUR_S,
        order=ORDERS["fifo"],
        ageing_s=float("inf"),
        waiting=False,
    )


def numbered_draws(scenarios: int, seed: int, first: int, count: int) -> NDArray[np.float64]:
    """Return uniform numbers in [0, 1) of scenarios first, first + 1, ..., shape (scenarios, count).

    Each row is of whole blocks, so that it stands at a known value of the counter.
    """
    blocks = -(-count // DRAWS_PER_BLOCK)
    rng = np.random.Generator(np.random.Philox(key=seed, counter=first * blocks))
    return rng.random((scenarios, blocks * DRAWS_PER_BLOCK))[:, :count]


def work_s(radius: NDArray[np.float64], angle: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the work of jobs, log-normal, from two uniform numbers for each."""
    # Box and Muller, 1958; 1 - u is never 0.
    normal = np.sqrt(-2.0 * np.log1p(-radius)) * np.cos(2.0 * np.pi * angle)
    work: NDArray[np.float64] = WORK_MEDIAN_S * np.exp(WORK_SIGMA * normal)
    return work


def _speeds_by_rank(site: PresetSite, rank: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the speed of the nodes of each rank."""
    kinds = len(site.speeds)
    bounds = [site.nodes * kind // kinds for kind in range(1, kinds)]
    speeds: NDArray[np.float64] = np.array(site.speeds)[np.searchsorted(bounds, rank, side="right")]
    return speeds


def _batch_scenarios(
    cluster: Cluster,
    *,
    gpus: NDArray[np.int32],
    work_s: NDArray[np.float64],
    speed: NDArray[np.float64],
    hazard_per_s: NDArray[np.float64],
    fault_seed: NDArray[np.float64],
) -> Scenarios:
    """Return scenarios of jobs that are all submitted at the start; fault seeds come from uniform numbers."""
    shape = work_s.shape
    rates = np.zeros((shape[0], fault_sources(cluster)))
    rates[:, : hazard_per_s.shape[1]] = hazard_per_s
    return Scenarios(
        jobs=np.full(shape[0], shape[1], dtype=np.int32),
        gpus=gpus,
        work_s=work_s,
        estimate_s=work_s.copy(),
        submit_s=np.zeros(shape),
        compute_s=np.full(shape, DEFAULT_COMPUTE_S),
        parameter_bytes=np.full(shape, DEFAULT_PARAMETER_BYTES),
        rank=np.zeros(shape, dtype=np.int64),
        needs=np.zeros(shape, dtype=np.int32),
        speed=speed,
        hazard_per_s=hazard_per_s,
        source_rate_per_s=rates,
        fault_seed=(fault_seed * 2.0**32).astype(np.int64),
    )


PATENT_JOBS = {4: 16, 64: 64}  # jobs of each scenario, by the cluster's GPUs
HIGHEST_PER_S = LEMON_FACTOR * GPU_FAULTS_PER_S  # one fault in 60 h, as on the lemon of `hetero64`
HAZARD_DECADES = 2.0
GOLDEN = (np.sqrt(5.0) - 1.0) / 2.0


def patent(scenarios: int, seed: int, *, gpus: int, first: int = 0) -> Problem:
    """Return scenarios of the preset: a pool of GPUs of speed 1, all jobs submitted at the start, strict FIFO.

    Every GPU is a node of its own and nothing is charged for spreading a job, so that which GPUs a job gets matters
    by their faults alone. The jobs are those of `hetero64` that ask no more than half of the GPUs; faults, checkpoints
    and restarts are as there. Scenario i depends on `seed`, `first` + i and `gpus` only.

    Args:
        scenarios: How many to draw.
        seed: Key of all random numbers, at least 0.
        gpus: 4 or 64.
        first: Number of the first scenario, at least 0.

    Raises:
        ValueError: If a number is none of these.

    Source: SPEC R2 to R5, R11.
    """
    if scenarios < 1 or seed < 0 or first < 0 or gpus not in PATENT_JOBS:
        raise ValueError(
            f"scenarios must be at least 1, seed and first at least 0, gpus one of {list(PATENT_JOBS)}; "
            f"got {scenarios}, {seed}, {first}, {gpus}"
        )
    cluster = grid_cluster(gpus, 1)
    jobs = PATENT_JOBS[gpus]
    rows = numbered_draws(scenarios, seed, first, 1 + 3 * jobs)
    size, radius, angle = np.split(rows[:, 1:], 3, axis=1)
    sizes = JOB_GPUS[gpus >= 2 * JOB_GPUS]
    bounds = np.cumsum(JOB_GPUS_PROBABILITY[: sizes.size])
    drawn = _batch_scenarios(
        cluster,
        gpus=sizes[np.searchsorted(bounds[:-1] / bounds[-1], size, side="right")],
        work_s=work_s(radius, angle),
        speed=np.ones((scenarios, gpus)),
        hazard_per_s=np.broadcast_to(hazards_per_s(gpus), (scenarios, gpus)).copy(),
        fault_seed=rows[:, 0],
    )
    return Problem(cluster, drawn, fault_process(), rules()._replace(node_penalty=0.0))


def hazards_per_s(gpus: int) -> NDArray[np.float64]:
    """Return the fault rate of each GPU, shape (gpus,): spread evenly over two decades of its logarithm.

    The rates belong to the cluster and are the same in all scenarios: [n, t, s] shows no fault rates, so what a policy
    knows of them it must have learned. Their order has no system that a rule by index could use.
    """
    rank = ((np.arange(gpus) + 1.0) * GOLDEN % 1.0).argsort().argsort()
    rates: NDArray[np.float64] = HIGHEST_PER_S * 10.0 ** (-HAZARD_DECADES * rank / (gpus - 1))
    return rates
