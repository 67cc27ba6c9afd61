"""Rehearsals: small runs that compile the kernels of policies and environments ahead (`longshore compile`)."""

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
from .heuristics import PATIENT, Heuristic, run_by_rule, run_on_by_rule
from .learned.schema import network_name_in
from .protocol import Policy
from .registry import HEURISTIC_NAMES, ROLLOUT, checkpoint_in, split_rollout

HEURISTICS, NETWORKS, CANDIDATES = "heuristics", "networks", "candidates"  # kinds of our policies
# By the names of `compile_ahead`, in the groups that users choose.
_REHEARSALS = "longshore.agents.rehearsals"
POLICY_GROUPS = {
    "heuristics": [f"{_REHEARSALS}:heuristics"],
    "environments": [f"{_REHEARSALS}:environments"],
    "networks": [f"{_REHEARSALS}:networks", f"{_REHEARSALS}:decisions:networks"],
    "candidates": [
        f"{_REHEARSALS}:candidates", f"{_REHEARSALS}:decisions:candidates", f"{_REHEARSALS}:rollouts:heuristics",
        f"{_REHEARSALS}:rollouts:candidates",
    ],
}  # fmt: skip


def rehearsals_of(policies: Iterable[Policy]) -> list[str]:
    """Return what `compile_ahead` compiles for runs by the heuristics and by some of our policies."""
    others = [policy for policy in policies if not isinstance(policy, Heuristic)]
    return list(
        dict.fromkeys(
            [*POLICY_GROUPS["heuristics"], *(name for policy in others for name in _compile_rehearsals_of(policy))]
        )
    )


def _compile_rehearsals_of(policy: Policy) -> list[str]:
    """Return what a policy other than a heuristic needs, nothing for a kind of a plug-in."""
    from .learned.network import LearnedPolicy  # with PyTorch, which such a policy has imported
    from .networks.candidates import CandidatePolicy
    from .rollouts import Rollout

    if isinstance(policy, Rollout):
        return [f"{_REHEARSALS}:rollouts:{HEURISTICS if isinstance(policy.base, Heuristic) else CANDIDATES}"]
    if isinstance(policy, CandidatePolicy):
        return [f"{_REHEARSALS}:candidates"]
    return [f"{_REHEARSALS}:networks"] if isinstance(policy, LearnedPolicy) else []


def decision_rehearsals_of(name: str) -> list[str]:
    """Return what `compile_ahead` compiles for live decisions by one of our policies other than a heuristic.

    The name and the schema of its checkpoint are enough: nothing is loaded, as that takes PyTorch. The list is empty
    for policies of plug-ins, and for a heuristic.
    """
    path, (alone, _) = checkpoint_in(name), split_rollout(name)
    if path is not None:
        network = network_name_in(path)
        kind = CANDIDATES if network == CANDIDATES else NETWORKS if _is_our_network(network) else ""
    else:
        is_heuristic = alone.partition("@")[0] in HEURISTIC_NAMES  # patient@0.8, too
        kind = HEURISTICS if name.startswith(ROLLOUT) and is_heuristic else ""
    if name.startswith(ROLLOUT):
        return [f"{_REHEARSALS}:rollouts:{kind}"] if kind in (CANDIDATES, HEURISTICS) else []
    return [f"{_REHEARSALS}:decisions:{kind}"] if kind else []


def _is_our_network(name: str) -> bool:
    point = registered("networks").get(name)
    return point is not None and is_ours(point)


def heuristics() -> Rehearsal:
    """Whole runs by heuristics, all of which are one program."""
    sim = _small_simulation()
    return Rehearsal([run_by_rule], [sim], lambda: PATIENT.run(sim, np.array([0])))


def environments() -> Rehearsal:
    """Steps of environments, one program for all actions and observations, and the random runs of a reward."""
    from ..envs.batch import AgentView, Batch, begin_rows, step_rows
    from ..envs.rewards import least_random_makespan_s, write_random_makespans

    batch = Batch(_small_problem(), AgentView("node", "full", "dt"), 1)

    def play() -> None:
        batch.reset()
        batch.step(batch.masks.argmax(axis=1))
        least_random_makespan_s(batch.sim, 1)

    return Rehearsal([begin_rows, step_rows, write_random_makespans], [batch.sim], play)


def networks() -> Rehearsal:
    """Runs and decisions by networks that PyTorch runs."""
    from ..envs.batch import begin_rows, continue_rows, pick_by_action, write_observation

    sim, policy = _small_simulation(), _untrained_policy("set", "node")

    def play() -> None:
        policy.run(sim, np.array([0]))
        policy.place(_advance_to_decision(sim), 0)

    return Rehearsal([begin_rows, continue_rows, write_observation, pick_by_action], [sim], play)


def candidates() -> Rehearsal:
    """Runs and decisions by the network `candidates`."""
    from .networks.candidates import decide_by_network, run_by_network

    sim, policy = _small_simulation(), _untrained_policy("candidates", "candidate")

    def play() -> None:
        policy.run(sim, np.array([0]))
        policy.place(_advance_to_decision(sim), 0)

    return Rehearsal([run_by_network, decide_by_network, pick_candidate], [sim, policy.weights], play)


def rollouts(kind: str) -> Rehearsal:
    """Runs and decisions by rollouts of heuristics or of the network `candidates`."""
    from .networks.candidates import run_for_by_network, run_on_by_network, take_candidate, value_by_network
    from .rollouts import Rollout, Search

    sim, search = _small_simulation(), Search(futures=1, width=2)
    kernels, samples = list[object](), list[object]([sim])
    if kind == HEURISTICS:
        found, kernels = [Rollout(PATIENT, search)], [run_on_by_rule]
    else:  # a base predicts on the way only by the objective of the run
        bases = [_untrained_policy(CANDIDATES, "candidate", objective) for objective in get_args(Objective)]
        found = [Rollout(base, each) for base in bases for each in (search, replace(search, horizon=1))]
        kernels = [run_on_by_network, run_for_by_network, value_by_network]
        samples = [sim, bases[0].weights]

    def play() -> None:
        for policy in found:
            policy.run(sim, np.array([0]))

    return Rehearsal([*kernels, take_candidate, pick_candidate], samples, play)


def decisions(kind: str) -> Rehearsal:
    """Decisions by networks that PyTorch runs, or by the network `candidates`, without whole runs."""
    from ..envs.batch import pick_by_action, write_observation
    from .networks.candidates import decide_by_network

    sim = _small_simulation()
    if kind == CANDIDATES:
        policy = _untrained_policy(CANDIDATES, "candidate")
        kernels, samples = [decide_by_network, pick_candidate], [sim, policy.weights]
    else:
        policy, kernels, samples = _untrained_policy("set", "node"), [write_observation, pick_by_action], [sim]
    return Rehearsal(kernels, samples, lambda: policy.place(_advance_to_decision(sim), 0))


def _small_problem() -> Problem:
    problem = hetero64(1, 0, jobs=4)
    return problem._replace(rules=problem.rules._replace(waiting=True, order=ORDERS["easy"]))


def _small_simulation() -> Simulation:
    return simulation_of(_small_problem())


def _advance_to_decision(sim: Simulation) -> Simulation:
    """Return a simulation whose first row is at its first decision."""
    reset(sim, 0, 0)
    advance(sim, 0)
    return sim


def _untrained_policy(network: str, action: str, time_to_go: Objective = "jct") -> Any:
    from .learned.checkpoint import policy_of, schema_of, untrained_network

    schema = schema_of(
        algorithm="group", network=network, action=action, observation="full", waiting=True, node_gpus=(8,) * 8,
        time_to_go=time_to_go,
    )  # fmt: skip
    return policy_of(f"untrained {network}", schema, untrained_network(schema))
