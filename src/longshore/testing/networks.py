"""What every network must do (longshore.agents.learned.network)."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..agents.learned.checkpoint import layout_of, load_policy, policy_of, save_policy, schema_of, untrained_network
from ..agents.learned.network import Network, ObservationLayout, find_network
from ..agents.learned.schema import Schema
from ..agents.protocol import Policy
from ..cluster.model.problem import Problem
from ..cluster.presets.drawn import hetero64
from ..cluster.simulator.simulation import outcome_of, simulation_of
from ..envs.batch import ACTIONS, AgentView, Batch
from .policies import check_decisions, check_description, check_reads_no_unknowns, check_waits_only_if_allowed

NODES, JOBS, ROWS = 5, 12, 6
WIDTH = 7  # that no network has by itself
TOLERANCE = 1e-4  # rounding differs with the size of a batch


def check_network(name: str) -> None:
    """Check a registered network for each kind of action that it has, with waiting and without, by random weights.

    Its weights must be floating numbers of the shapes in its layout. Its outputs must be finite, of the right shape,
    the same again and for each observation by itself, and must depend on its weights. As a policy it must do what every
    policy must. A checkpoint of it must decide as it did.

    Args:
        name: Its name.

    Raises:
        AssertionError: With what is broken.
        PluginError: If nothing of that name is registered, or what is registered is no network.
    """
    kind = find_network(name)
    assert kind.actions, "it can choose no action"
    assert set(kind.actions) <= set(ACTIONS), f"its actions are {kind.actions}, expected some of {tuple(ACTIONS)}"
    for action in kind.actions:
        for waiting in (False, True):
            schema = schema_of(
                algorithm="ppo", network=name, action=action, observation="full", waiting=waiting,
                node_gpus=(8,) * NODES,
            )  # fmt: skip
            torch.manual_seed(0)
            network = untrained_network(schema)
            _check_weights(network, layout_of(schema), is_list=action == "candidate")
            _check_forward_passes(network, _first_observations(schema), layout_of(schema))
            _check_policy(schema, network)


def _small_problem(*, waiting: bool) -> Problem:
    problem = hetero64(ROWS, 1, nodes=NODES, jobs=JOBS, load=2.0)
    return problem._replace(rules=problem.rules._replace(waiting=waiting))


def _first_observations(schema: Schema) -> Tensor:
    """Return what is seen at the first decision of each scenario, shape (rows, size)."""
    batch = Batch(_small_problem(waiting=schema.waiting), AgentView(schema.action, schema.observation), ROWS)
    batch.reset()
    return torch.from_numpy(batch.observations)


def _check_weights(network: Network, layout: ObservationLayout, *, is_list: bool) -> None:
    kind, weights = type(network), network.state_dict()
    assert weights, "it has no weights"
    for name, tensor in weights.items():
        assert tensor.is_floating_point(), f"weight {name} is of {tensor.dtype}, and checkpoints hold floating numbers"
    assert _weight_shapes(kind, layout) == {name: tuple(weight.shape) for name, weight in weights.items()}, (
        "its weights have other shapes when it is made again"
    )
    if kind.any_size and not is_list:  # lists of candidates are as long on any cluster
        larger = _weight_shapes(kind, layout._replace(items=layout.items + 3, actions=layout.actions + 3))
        assert larger == _weight_shapes(kind, layout), (
            "`any_size` is True, and the shapes of weights depend on the cluster"
        )
    if kind.sized_by:
        assert kind.sized_by in weights, f"it has no weight {kind.sized_by}, which is its `sized_by`"
        shapes = _weight_shapes(kind, layout, WIDTH)
        assert shapes[kind.sized_by][-1] == WIDTH, f"the last extent of {kind.sized_by} is not its width"
        assert shapes.keys() == weights.keys(), "its weights have other names where its width is another"


def _weight_shapes(kind: type[Network], layout: ObservationLayout, *width: int) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        return {name: tuple(tensor.shape) for name, tensor in kind(layout, *width).state_dict().items()}


def _check_forward_passes(network: Network, observations: Tensor, layout: ObservationLayout) -> None:
    network.eval()
    logits, values = network(observations)
    expected = (ROWS, layout.actions + int(layout.waiting))
    assert logits.shape == expected, f"logits have shape {tuple(logits.shape)}, expected {expected}"
    assert values.shape == (ROWS,), f"values have shape {tuple(values.shape)}, expected {(ROWS,)}"
    assert bool(logits.isfinite().all() and values.isfinite().all()), "a logit or a value is not finite"
    same = map(torch.equal, network(observations), (logits, values))
    assert all(same), "a second call gives another output"
    assert _is_near(network.values(observations), values), "`values` differ from those of a whole pass"
    alone = [network(row[None]) for row in observations]
    assert _is_near(torch.cat([one[0] for one in alone]), logits), "logits depend on the other observations of a batch"
    assert _is_near(torch.cat([one[1] for one in alone]), values), "values depend on the other observations of a batch"
    torch.autograd.backward(logits.square().sum() + values.square().sum())
    gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    assert any(gradient.any() for gradient in gradients), "no weight has a gradient, so it cannot learn"
    assert all(gradient.isfinite().all() for gradient in gradients), "a gradient is not finite"


def _is_near(one: Tensor, other: Tensor) -> bool:
    return bool(torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE))


def _check_policy(schema: Schema, network: Network) -> None:
    policy, problem = policy_of("checked", schema, network), _small_problem(waiting=True)
    check_description(policy)
    check_decisions(policy, problem)
    check_waits_only_if_allowed(policy, problem)
    check_reads_no_unknowns(policy, problem, decisions=3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checked.zip"
        save_policy(path, schema, network)
        again = load_policy(path)
    assert np.array_equal(_finish_s(policy, problem), _finish_s(again, problem)), "a checkpoint of it decides otherwise"


def _finish_s(policy: Policy, problem: Problem) -> NDArray[np.float64]:
    """Return when the jobs of all scenarios end, shape (scenarios, jobs)."""
    sim = simulation_of(problem, rows=ROWS)
    policy.run(sim, np.arange(ROWS))
    return outcome_of(sim).finish_s
