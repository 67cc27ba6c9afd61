"""What happens to a live cluster, once on a small one: so it is compiled and loaded before anything really happens."""

import numpy as np

from ...agents.heuristics import PICKS, Heuristic
from ...agents.registry import HEURISTIC_NAMES, PATIENT, find_policy
from ...agents.rehearsals import decision_rehearsals_of
from ...cluster.kernels.ahead import Rehearsal
from ...cluster.model.problem import ORDERS
from ...cluster.presets.drawn import hetero64
from ...cluster.queue.order import may_wait, turn_to
from ...cluster.simulator import engine, faults, jobs
from ...cluster.simulator.simulation import simulation_of
from ...cluster.state.state import Simulation
from . import cluster_mirror
from .cluster_mirror import ROW, ClusterMirror, ClusterSite, JobRecord, JobRequest, MirrorOrigin, expected_start

_REHEARSAL_MODULE = "longshore.scheduler.mirror.rehearsal"
HOUR_S = 3600.0


def rehearsals_of(*policies: str) -> list[str]:
    """Return what `compile_ahead` compiles for a scheduler with some policies.

    Those of others, and of unknown names, are loaded for that: see `needs_no_plugin`.
    """
    decisions = [decision_rehearsals_of(name) or [f"{_REHEARSAL_MODULE}:policy_rehearsal:{name}"] for name in policies]
    return list(
        dict.fromkeys([f"{_REHEARSAL_MODULE}:mirror_rehearsal", *(each for of_one in decisions for each in of_one)])
    )


def needs_no_plugin(policy: str) -> bool:
    """Whether what a policy needs is known without loading any plug-in."""
    return policy in HEURISTIC_NAMES or policy.startswith(PATIENT) or bool(decision_rehearsals_of(policy))


def mirror_rehearsal() -> Rehearsal:
    """All that the scheduler does to its copy of a cluster."""
    kernels = [
        *vars(cluster_mirror).values(), engine.reset, engine.move_clock, engine.submit_next_job,
        engine.find_due_job, engine.start, engine.wait, jobs.finish, jobs.stop, jobs.checkpointed_run_s,
        faults.take_gpus_out, faults.bring_gpus_back,
    ]  # fmt: skip
    return Rehearsal(kernels, [_small_simulation()], rehearse_mirror_calls)


def policy_rehearsal(name: str) -> Rehearsal:
    """The decisions of a policy.

    Raises:
        LongshoreError: If it cannot be loaded.
    """
    policy = find_policy(name)
    kernels = [PICKS[policy.rule]] if isinstance(policy, Heuristic) else []

    def play() -> None:
        mirror = _small_mirror()
        for job in "ab":
            mirror.submit(JobRequest(job, 1, HOUR_S, 0.0))
            if mirror.find_due_job() is not None and policy.place(mirror.sim, ROW):
                mirror.start_current_job()

    return Rehearsal(kernels, [_small_simulation()], play)


def rehearse_mirror_calls() -> None:
    """Do all once that is done to a cluster's copy."""
    mirror = _small_mirror()
    mirror.begin(1.0)
    for job, user in zip("abcde", "xxyyx", strict=True):
        mirror.submit(JobRequest(job, 1, HOUR_S, 1.0, user=user))
    for gpu, job in enumerate("ab"):
        mirror.find_due_job()
        expected_start(mirror, job, [gpu])
        mirror.carry_out(job, [gpu])
    mirror.find_due_job()
    turn_to(mirror.sim, ROW, mirror.slot("d"))
    mirror.undo_picks()
    mirror.find_due_job()
    if may_wait(mirror.sim, ROW):
        mirror.wait(rests=False)
    mirror.pass_over()
    mirror.claim("a", 2)
    mirror.give_up("a", 2)
    mirror.take_out(3)
    mirror.fail([3])
    mirror.bring_back(3)
    mirror.hide([1])
    mirror.show([1])
    mirror.has_job_aged(2.0)
    mirror.stop("b")
    mirror.give_place("b", 1, None)
    mirror.withdraw("c")
    mirror.finish("a")
    mirror.come_back(JobRequest("f", 1, HOUR_S, 1.0), JobRecord(HOUR_S, 1.0))
    mirror.rejoin(JobRequest("g", 1, HOUR_S, 1.0), JobRecord(HOUR_S, 1.0))
    mirror.find_due_job()
    mirror.carry_out(mirror.current_job, [0])
    ClusterMirror.from_snapshot(mirror.snapshot())
    ClusterMirror(mirror.site, mirror.origin_now())


def _small_simulation() -> Simulation:
    return simulation_of(hetero64(1, 0, nodes=4, jobs=1))


def _small_mirror() -> ClusterMirror:
    cluster, _, process, rules = hetero64(1, 0, nodes=4, jobs=1)
    rules = rules._replace(waiting=True, order=ORDERS["easy"], turns=True)
    return ClusterMirror(ClusterSite(cluster, rules, process, np.zeros(cluster.gpu_node.size)), MirrorOrigin(0.0))
