"""What compiled code of policies and environments commands call: compiled ahead of them, `longshore compile`."""

from collections.abc import Iterable
from typing import Any, get_args

import numpy as np

from ..cluster.candidates.candidates import pick_candidate
from ..cluster.kernels.ahead import Rehearsal
from ..cluster.model.objective import Objective
from ..cluster.model.problem import Problem
from ..cluster.model.scenarios import ORDERS
from ..cluster.presets.hetero64 import hetero64
from ..cluster.simulator.engine import advance, reset
from ..cluster.simulator.simulation import simulation_of
from ..cluster.state.state import Simulation
from .heuristics import run
from .heuristics.heuristics import PATIENT, Heuristic
from .learned.schema import network_in
from .protocol import Policy
from .registry import ROLLOUT, checkpoint_in

# As `compile_ahead` names them. Each group is what belongs together for a user.
_HERE = "longshore.agents.rehearsals"
GROUPS = {
    "heuristics": [f"{_HERE}:heuristics"],
    "environments": [f"{_HERE}:environments"],
    "networks": [f"{_HERE}:networks"],
    "candidates": [f"{_HERE}:candidates", f"{_HERE}:rollouts"],
}


def rehearsals_of(policies: Iterable[Policy]) -> list[str]:
    """Return what `compile_ahead` compiles for runs by the heuristics and by some policies of ours."""
    others = [policy for policy in policies if not isinstance(policy, Heuristic)]
    return list(dict.fromkeys([*GROUPS["heuristics"], *(name for policy in others for name in _rehearsals_by(policy))]))


def _rehearsals_by(policy: Policy) -> list[str]:
    """Return what a policy that is no heuristic needs, nothing for a kind that is not ours."""
    from .learned.step_policy import LearnedPolicy  # with PyTorch, which such a policy has imported
    from .networks.candidates import CandidatePolicy
    from .rollouts.rollout import Rollout

    if isinstance(policy, Rollout):
        return GROUPS["candidates"]
    if isinstance(policy, CandidatePolicy):
        return [f"{_HERE}:candidates"]
    return GROUPS["networks"] if isinstance(policy, LearnedPolicy) else []


def rehearsals_named(name: str) -> list[str]:
    """Return what `compile_ahead` compiles for runs and decisions by a policy that is no heuristic, by its name alone.

    Nothing is loaded, as that takes PyTorch. Nothing is returned for a heuristic, or for what another package made.
    """
    if name.startswith(ROLLOUT):
        return GROUPS["candidates"]
    path = checkpoint_in(name)
    if path is None or not (network := network_in(path)):
        return []
    return [f"{_HERE}:candidates"] if network == "candidates" else GROUPS["networks"]


def rehearsals_for(algorithm: str) -> list[str]:
    """Return what `compile_ahead` compiles for training by an algorithm; only some use environments."""
    return [*GROUPS["heuristics"], *GROUPS["candidates" if algorithm in ("group", "distil") else "environments"]]


def heuristics() -> Rehearsal:
    """Whole runs by heuristics, all of which are one program."""
    sim = _small()
    return Rehearsal([run.run], [sim], lambda: PATIENT.run(sim, np.array([0])))


def environments() -> Rehearsal:
    """Steps of environments, of which all actions and observations are one program."""
    from ..envs.batch import Batch, View
    from ..envs.stepping import begin_rows, step_rows

    batch = Batch(_problem(), View("node", "full", "dt"), 1)

    def play() -> None:
        batch.reset()
        batch.step(batch.masks.argmax(axis=1))

    return Rehearsal([begin_rows, step_rows], [batch.sim], play)


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


def rollouts() -> Rehearsal:
    """Runs by rollouts of a heuristic and of the network `candidates`."""
    from .networks.candidate_run import run_for_by_network, run_on_by_network, take_candidate, value_by_network
    from .rollouts.rollout import Rollout, Search

    # What a base foresees is used where it tells of the objective of the run.
    sim, bases = _small(), [_untrained("candidates", "candidate", objective) for objective in get_args(Objective)]
    searches = Search(futures=1, width=2), Search(futures=1, width=2, horizon=1)
    policies = [Rollout(PATIENT, searches[0]), *(Rollout(base, search) for base in bases for search in searches)]

    def play() -> None:
        for policy in policies:
            policy.run(sim, np.array([0]))

    kernels = [run.run_on, run_on_by_network, run_for_by_network, value_by_network, take_candidate]
    return Rehearsal(kernels, [sim, bases[0].weights], play)


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
