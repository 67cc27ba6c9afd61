"""One step of an environment, compiled: `step_rows` is the story, and its steps follow it."""

import numpy as np
from numpy.typing import NDArray

from ..cluster.candidates.candidates import pick_candidate
from ..cluster.files.errors import PluginError
from ..cluster.files.plugins import load_as, registered
from ..cluster.kernels.compiled import check_kernel, kernel, one_of
from ..cluster.placing import take_gpu, take_node
from ..cluster.queue.order import may_wait
from ..cluster.queue.reservation import has_reservation, mark_keeping_nodes
from ..cluster.simulator.engine import advance, pass_over, reset, start, wait
from ..cluster.state.state import MAX_CANDIDATES, Simulation
from .candidate_features import write_candidates
from .features import GLOBAL_COUNT, write_full, write_gpus
from .patent import write_literal_patent, write_patent
from .rewards import Reward, time_s

GPU_ACTION, NODE_ACTION, CANDIDATE_ACTION = 0, 1, 2
PATENT, FULL, PATENT_LITERAL = 0, 1, 2
Rows = NDArray[np.float32]

# Rewards by number, as compiled code calls them. Not in rewards.py, which modules of plug-ins import.
REWARDS = {name: number for number, name in enumerate(registered("rewards"))}


def reward_of(name: str) -> Reward:
    """Return a reward by its name.

    Raises:
        PluginError: If nothing of that name is registered, or it is no reward.
    """
    reward = load_as("rewards", name, Reward)
    check_kernel(f"the cost of reward {name!r}", reward.cost_s, 2)
    return reward


def _compiled(name: str) -> Reward:
    try:
        return reward_of(name)
    except PluginError:  # `reward_of` reports it where the reward is used
        return Reward("", time_s)


_rewards = [_compiled(name) for name in REWARDS]
_AT_END = sum(bool(reward.at_end) << number for number, reward in enumerate(_rewards))  # bit n: of reward n
cost_so_far_s = one_of("reward_cost", [reward.cost_s for reward in _rewards])


@kernel
def is_at_end(reward: int) -> bool:
    """Whether all of a reward is paid at the end of an episode."""
    return bool((_AT_END >> reward) & 1)


@kernel
def step_rows(
    sim: Simulation,
    action: int,
    observation: int,
    reward: int,
    unit_s: NDArray[np.float64],
    chosen: NDArray[np.int64],
    out: Rows,
    masks: NDArray[np.bool_],
    table: Rows,
    paid_s: NDArray[np.float64],
    rewards: NDArray[np.float32],
    ended: NDArray[np.bool_],
) -> None:
    """Carry out one action in every row.

    1. Carry the action out: pick a GPU, a node or a candidate, and start the job once it has all of its GPUs; or wait.
    2. If that completes a decision, advance to the next one at which some placement would start a job.
    3. Pay the reward: by how much the cost of the episode has risen since the last one, or all of it at the end.
    4. Observe: write the observation and the open actions.

    A row whose episode ends stays at its end, without open actions. Its observation is zero or, if it was cut off, that
    of its last decision, from which learners compute the value of the rest.

    Args:
        sim: The simulation.
        action: GPU_ACTION, NODE_ACTION or CANDIDATE_ACTION.
        observation: PATENT, PATENT_LITERAL or FULL.
        reward: A value of REWARDS.
        unit_s: Unit of rewards, shape (scenarios,).
        chosen: Actions, shape (rows,).
        out: Takes the observations, shape (rows, size).
        masks: Holds the masks of the step before and takes the new ones, shape (rows, actions).
        table: Scratch, shape (rows, nodes x features).
        paid_s: Cost of each episode that rewards have paid for, shape (rows,); at its beginning 0, so that time
            before the first decision counts too, or the cost with which the makespan is compared.
        rewards: Takes the rewards, shape (rows,).
        ended: Takes whether the episode is over, shape (rows,).
    """
    for row in range(chosen.size):
        rewards[row] = 0.0
        ended[row] = False
        if carry_out(sim, row, action, chosen[row]):
            ended[row] = not advance_to_choice(sim, row, action)
            if ended[row] or not is_at_end(reward):
                rewards[row] = pay(sim, row, reward, unit_s, paid_s)
        if not ended[row]:
            observe(sim, row, action, observation, out, masks, table, row)
            continue
        if sim.state.finished[row] == sim.scenarios.jobs[sim.state.scenario[row]]:
            out[row] = 0.0
        masks[row] = False


@kernel
def pick_action(sim: Simulation, row: int, action: int, chosen: int) -> bool:
    """Pick a GPU, node or candidate for the job that is due or turned to; False, with nothing picked, to wait."""
    if action == CANDIDATE_ACTION:
        return pick_candidate(sim, row, chosen)
    state = sim.state
    items = state.free.shape[1] if action == NODE_ACTION else state.gpu_job.shape[1]
    if chosen == items:
        return False
    if action == NODE_ACTION:
        take_node(sim, row, chosen)
    else:
        take_gpu(sim, row, chosen)
    return True


@kernel
def carry_out(sim: Simulation, row: int, action: int, chosen: int) -> bool:
    """Carry out an allowed action; True if a decision is complete, so that the clock can advance."""
    if not pick_action(sim, row, action, chosen):
        wait(sim, row)
        return True
    if sim.state.need[row] > 0:
        return False
    start(sim, row)
    return True


@kernel
def advance_to_choice(sim: Simulation, row: int, action: int) -> bool:
    """Run a row until a job is due that some placement would start; False when its episode is over.

    A job is passed over if every placement of it would delay the holder of the reservation. That counts as a decision.
    """
    while advance(sim, row):
        if action == CANDIDATE_ACTION or not has_reservation(sim, row):
            return True
        if mark_keeping_nodes(sim, row, int(action == NODE_ACTION)) > 0:
            return True
        sim.state.decisions[row] += 1
        pass_over(sim, row)
    return False


@kernel
def pay(sim: Simulation, row: int, reward: int, unit_s: NDArray[np.float64], paid_s: NDArray[np.float64]) -> float:
    """Return the reward since the last payment, minus the rise of the episode's cost in its unit; record the cost."""
    cost_s = cost_so_far_s(reward, sim, row)
    amount = (paid_s[row] - cost_s) / unit_s[sim.state.scenario[row]]
    paid_s[row] = cost_s
    return float(amount)


@kernel
def observe(
    sim: Simulation,
    row: int,
    action: int,
    observation: int,
    out: Rows,
    masks: NDArray[np.bool_],
    table: Rows,
    at: int,
) -> None:
    """Write the observation of a decision and its open actions into row `at` of `out` and `masks`.

    Args:
        sim: The simulation; a job must be due in the row.
        row: Row of the decision.
        action: GPU_ACTION, NODE_ACTION or CANDIDATE_ACTION.
        observation: PATENT, PATENT_LITERAL or FULL.
        out: Takes the observation.
        masks: Takes the mask.
        table: Scratch for the features of nodes.
        at: Row of the three.
    """
    if action == CANDIDATE_ACTION:
        candidates = write_candidates(sim, row, out, at)
        for candidate in range(MAX_CANDIDATES):
            masks[at, candidate] = candidate < candidates
        return
    write_mask(sim, row, action, masks, at)
    if observation == PATENT:
        write_patent(sim, row, out, at)
    elif observation == PATENT_LITERAL:
        write_literal_patent(sim, row, out, at)
    elif action == NODE_ACTION:
        write_full(sim, row, out, at, out, GLOBAL_COUNT)
    else:
        write_full(sim, row, out, at, table, 0)
        write_gpus(sim, row, table, out, at)


@kernel
def write_mask(sim: Simulation, row: int, action: int, out: NDArray[np.bool_], at: int) -> None:
    """Write which actions are open: free GPUs, or nodes with free GPUs, and waiting as the last one.

    Waiting is open before the first pick only. The mask is longer by one where the rules allow waiting. Where a
    reservation binds the job, GPUs and nodes of no placement that keeps it are closed. If no placement keeps it, all
    stay open: the job is passed over, whatever is picked.

    Source: SPEC R4.
    """
    state = sim.state
    items = state.free.shape[1] if action == NODE_ACTION else state.gpu_job.shape[1]
    is_bound = has_reservation(sim, row) and mark_keeping_nodes(sim, row, int(action == NODE_ACTION)) > 0
    for item in range(items):
        if action == NODE_ACTION:
            node, is_open = item, state.free[row, item] > 0
        else:
            node = sim.cluster.gpu_node[item]
            is_open = state.free[row, node] > 0 and state.gpu_job[row, item] < 0 and state.gpu_down[row, item] == 0
        out[at, item] = is_open and (not is_bound or sim.scratch.trial_bit[row, node] == 1)
    if sim.rules.waiting:
        out[at, items] = state.picked_nodes[row] == 0 and may_wait(sim, row)


@kernel
def begin_rows(
    sim: Simulation,
    action: int,
    observation: int,
    rows: NDArray[np.int64],
    scenarios: NDArray[np.int64],
    out: Rows,
    masks: NDArray[np.bool_],
    table: Rows,
    ended: NDArray[np.bool_],
) -> None:
    """Put row rows[i] at the first decision of scenario scenarios[i] and observe it."""
    for i in range(rows.size):
        row = rows[i]
        reset(sim, row, scenarios[i])
        ended[row] = not advance_to_choice(sim, row, action)
        if not ended[row]:
            observe(sim, row, action, observation, out, masks, table, row)


@kernel
def continue_rows(
    sim: Simulation,
    action: int,
    observation: int,
    rows: NDArray[np.int64],
    chosen: NDArray[np.int64],
    out: Rows,
    masks: NDArray[np.bool_],
    table: Rows,
    ended: NDArray[np.bool_],
) -> None:
    """Carry out one action in each of some rows and observe the next decision, without rewards."""
    for i in range(rows.size):
        row = rows[i]
        if carry_out(sim, row, action, chosen[i]):
            ended[row] = not advance_to_choice(sim, row, action)
        if not ended[row]:
            observe(sim, row, action, observation, out, masks, table, row)
