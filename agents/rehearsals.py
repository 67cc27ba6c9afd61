"""What compiled code of policies and environments commands call: compiled ahead of them, `longshore compile`."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, get_args

import numpy as np

from ..cluster.candidates.candidates import pick_candidate
from ..cluster.files.plugins import is_ours, registered
from ..cluster.kernels.ahead import Rehearsal
from ..cluster.model.outcome import Objective
from ..cluster.model.problem import ORDERS, Problem
from ..cluster.presets.drawn import hetero64
from ..cluster.simulator.engine import advance, reset
from ..cluster.simulator.simulation import simulation_of
from ..cluster.state.state import Simulation
from .heuristics import PATIENT, Heuristic, run, run_on
from .learned.schema import network_in
from .protocol import Policy
from .registry import ROLLOUT, checkpoint_in

HEURISTICS, NETWORKS, CANDIDATES = "heuristics", "networks", "candidates"  # kinds of policies of ours
# As `compile_ahead` names them. Each group is what belongs together for a user.
_HERE = "longshore.agents.rehearsals"
GROUPS = {
    "heuristics": [f"{_HERE}:heuristics"],
    "environments": [f"{_HERE}:environments"],
    "networks": [f"{_HERE}:networks", f"{_HERE}:decisions:networks"],
    "candidates": [
        f"{_HERE}:candidates", f"{_HERE}:decisions:candidates", f"{_HERE}:rollouts:heuristics",
        f"{_HERE}:rollouts:candidates",
    ],
}  # fmt: skip


def rehearsals_of(policies: Iterable[Policy]) -> list[str]:
    """Return what `compile_ahead` compiles for runs by the heuristics and by some policies of ours."""
    others = [policy for policy in policies if not isinstance(policy, Heuristic)]
    return list(dict.fromkeys([*GROUPS["heuristics"], *(name for policy in others for name in _rehearsals_by(policy))]))


def _rehearsals_by(policy: Policy) -> list[str]:
    """Return what a policy that is no heuristic needs, nothing for a kind that is not ours."""
    from .learned.step_policy import LearnedPolicy  # with PyTorch, which such a policy has imported
    from .networks.candidates import CandidatePolicy
    from .rollouts import Rollout

    if isinstance(policy, Rollout):
        return [f"{_HERE}:rollouts:{HEURISTICS if isinstance(policy.base, Heuristic) else CANDIDATES}"]
    if isinstance(policy, CandidatePolicy):
        return [f"{_HERE}:candidates"]
    return [f"{_HERE}:networks"] if isinstance(policy, LearnedPolicy) else []


def decisions_by(name: str) -> list[str]:
    """Return what `compile_ahead` compiles for live decisions by a policy of ours that is no heuristic.

    Its name says that, and the schema of its checkpoint: nothing is loaded, as that takes PyTorch. Nothing is returned
    for what others have made, and for a heuristic.
    """
    path, alone = checkpoint_in(name), name.removeprefix(ROLLOUT).partition("@")[0]
    if path is not None:
        network = network_in(path)
        kind = CANDIDATES if network == CANDIDATES else NETWORKS if _is_ours("networks", network) else ""
    else:
        kind = HEURISTICS if name.startswith(ROLLOUT) and _is_ours("heuristics", alone) else ""
    if name.startswith(ROLLOUT):
        return [f"{_HERE}:rollouts:{kind}"] if kind in (CANDIDATES, HEURISTICS) else []
    return [f"{_HERE}:decisions:{kind}"] if kind else []


def _is_ours(group: str, name: str) -> bool:
    point = registered(group).get(name)
    return point is not None and is_ours(point)


def heuristics() -> Rehearsal:
    """Whole runs by heuristics, all of which are one program."""
    sim = _small()
    return Rehearsal([run], [sim], lambda: PATIENT.run(sim, np.array([0])))


def environments() -> Rehearsal:
    """Steps of environments, of which all actions and observations are one program, and what a reward compares with."""
    from ..cluster.candidates.offers import least_random_makespans_s
    from ..envs.batch import Batch, View
    from ..envs.rewards import random_makespan_s
    from ..envs.stepping import begin_rows, step_rows

    batch = Batch(_problem(), View("node", "full", "dt"), 1)

    def play() -> None:
        batch.reset()
        batch.step(batch.masks.argmax(axis=1))
        random_makespan_s(batch.sim, 1)

    return Rehearsal([begin_rows, step_rows, least_random_makespans_s], [batch.sim], play)


def networks() -> Rehearsal:
    """Runs and decisions by networks that PyTorch runs."""
    from ..envs.stepping import begin_rows, choose, continue_rows, show

    sim, policy = _small(), _untrained("set", "node")

    def play() -> None:
        policy.run(sim, np.array([0]))
        policy.place(_due(sim), 0)

    return Rehearsal([begin_rows, choose, continue_rows, show], [sim], play)


def candidates() -> Rehearsal:
    """Runs and decisions by the network `candidates`."""
    from .networks.candidate_run import decide_by_network, run_by_network

    sim, policy = _small(), _untrained("candidates", "candidate")

    def play() -> None:
        policy.run(sim, np.array([0]))
        policy.place(_due(sim), 0)

    return Rehearsal([run_by_network, decide_by_network, pick_candidate], [sim, policy.weights], play)


def rollouts(kind: str) -> Rehearsal:
    """Runs and decisions by rollouts of heuristics or of the network `candidates`."""
    from .networks import candidate_run
    from .rollouts import Rollout, Search

    sim, search = _small(), Search(futures=1, width=2)
    kernels, samples = list[object](), list[object]([sim])
    if kind == HEURISTICS:
        found, kernels = [Rollout(PATIENT, search)], [run_on]
    else:  # what a base foresees is used where it tells of the objective of the run
        bases = [_untrained(CANDIDATES, "candidate", objective) for objective in get_args(Objective)]
        found = [Rollout(base, it) for base in bases for it in (search, replace(search, horizon=1))]
        kernels = [candidate_run.run_on_by_network, candidate_run.run_for_by_network, candidate_run.value_by_network]
        samples = [sim, bases[0].weights]

    def play() -> None:
        for policy in found:
            policy.run(sim, np.array([0]))

    return Rehearsal([*kernels, candidate_run.take_candidate, pick_candidate], samples, play)


def decisions(kind: str) -> Rehearsal:
    """Decisions by networks that PyTorch runs, or by the network `candidates`, without whole runs."""
    from ..envs.stepping import choose, show
    from .networks.candidate_run import decide_by_network

    sim = _small()
    if kind == CANDIDATES:
        policy = _untrained(CANDIDATES, "candidate")
        kernels, samples = [decide_by_network, pick_candidate], [sim, policy.weights]
    else:
        policy, kernels, samples = _untrained("set", "node"), [show, choose], [sim]
    return Rehearsal(kernels, samples, lambda: policy.place(_due(sim), 0))


def _problem() -> Problem:
    problem = hetero64(1, 0, jobs=4)
    return problem._replace(rules=problem.rules._replace(waiting=True, order=ORDERS["easy"]))


def _small() -> Simulation:
    return simulation_of(_problem())


def _due(sim: Simulation) -> Simulation:
    """Return a simulation whose first row stands at its first decision."""
    reset(sim, 0, 0)
    advance(sim, 0)
    return sim


def _untrained(network: str, action: str, time_to_go: Objective = "jct") -> Any:
    from .learned.checkpoint import network_of, policy_of, schema_of

    schema = schema_of(
        algorithm="group", network=network, action=action, observation="full", waiting=True, node_gpus=(8,) * 8,
        time_to_go=time_to_go,
    )  # fmt: skip
    return policy_of(f"untrained {network}", schema, network_of(schema))
