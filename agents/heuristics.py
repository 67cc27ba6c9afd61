"""Heuristic policies: their compiled rules, the table of all of them, and compiled runs of whole scenarios by them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..cluster.candidates.node_sets import RUN_TIE, WAIT_PATIENCE, find_best_set, gain_of_waiting_s, reset_trial_free
from ..cluster.kernels.compiled import kernel, kernel_of_numbered
from ..cluster.model.problem import Rules
from ..cluster.placing import (
    DRAWS_PER_PLACEMENT,
    pick_by_draws,
    picked_slowdown,
    safest_gpu,
    take_gpu,
    take_node,
    undo_picks,
)
from ..cluster.queue.expected import expected_fault_loss_s
from ..cluster.queue.order import may_wait
from ..cluster.simulator.engine import advance, reset, start, wait
from ..cluster.state.border import checked_scenario_indices
from ..cluster.state.holding import need_class_of
from ..cluster.state.state import Simulation
from ..cluster.switching import link_bytes_per_s
from .protocol import TO_THE_END, Check, decisions_between_checks

# A rule gets a simulation, a row in which a job is due, and the patience: how much waiting a second of saved run time
# is worth, which rules that never wait ignore. It picks the GPUs of the job and returns True; or it returns False to
# wait, where `may_wait` allows that, and what it has picked then is undone.
Rule: TypeAlias = Callable[[Simulation, int, float], bool]

RANDOM_ATTEMPTS = 8  # placements that best-of-random compares


@kernel
def pick_random(sim: Simulation, row: int, patience: float) -> bool:
    """Pick all GPUs of the current job from random nodes."""
    pick_by_draws(sim, row, 0)
    return True


@kernel
def pick_best_of_random(sim: Simulation, row: int, patience: float) -> bool:
    """Pick the random placement with the smallest slowdown of several."""
    best, least = 0, math.inf
    for attempt in range(RANDOM_ATTEMPTS):
        pick_by_draws(sim, row, attempt * DRAWS_PER_PLACEMENT)
        slowdown = picked_slowdown(sim, row)
        if slowdown < least:
            best, least = attempt, slowdown
        undo_picks(sim, row)
    pick_by_draws(sim, row, best * DRAWS_PER_PLACEMENT)
    return True


@kernel
def first_fit_node(sim: Simulation, row: int) -> int:
    """Return the first node with free GPUs."""
    free = sim.state.free
    node = 0
    while free[row, node] == 0:
        node += 1
    return node


@kernel
def pick_first_fit(sim: Simulation, row: int, patience: float) -> bool:
    """Pick all GPUs of the current job node by node."""
    while sim.state.need[row] > 0:
        take_node(sim, row, first_fit_node(sim, row))
    return True


@kernel
def best_fit_node(sim: Simulation, row: int) -> int:
    """Return the node where the GPUs still needed leave the smallest hole; else the one with most free."""
    free = sim.state.free
    need = sim.state.need[row]
    speed = sim.scenarios.speed[sim.state.scenario[row]]
    best = -1
    for node in range(free.shape[1]):
        here = free[row, node]
        if here <= 0:
            continue
        if best < 0:
            best = node
            continue
        there = free[row, best]
        if here == there:
            better = speed[node] > speed[best]
        elif here >= need and there >= need:
            better = here < there
        else:
            better = here > there
        if better:
            best = node
    return best


@kernel
def best_fit_healthy_node(sim: Simulation, row: int) -> int:
    """Return what `best_fit_node` would without lemons; a lemon only when no other node has free GPUs."""
    free = sim.state.free
    lemon = sim.state.lemon[row]
    healthy = 0
    for node in range(free.shape[1]):
        if lemon[node] == 0:
            healthy += free[row, node]
    if healthy == 0:
        return best_fit_node(sim, row)
    # The lemons' free GPUs are hidden for one call, so that the rule itself stands once.
    for node in range(free.shape[1]):
        free[row, node] *= 1 - 2 * lemon[node]
    best = best_fit_node(sim, row)
    for node in range(free.shape[1]):
        free[row, node] *= 1 - 2 * lemon[node]
    return best


@kernel
def pick_pack(sim: Simulation, row: int, patience: float) -> bool:
    """Pick all GPUs of the current job node by node."""
    while sim.state.need[row] > 0:
        take_node(sim, row, best_fit_node(sim, row))
    return True


@kernel
def pick_pack_hazard(sim: Simulation, row: int, patience: float) -> bool:
    """Pick all GPUs of the current job node by node."""
    while sim.state.need[row] > 0:
        take_node(sim, row, best_fit_healthy_node(sim, row))
    return True


@kernel
def worst_fit_node(sim: Simulation, row: int) -> int:
    """Return the node with most free GPUs (worst fit)."""
    free = sim.state.free
    best = 0
    for node in range(1, free.shape[1]):
        if free[row, node] > free[row, best]:
            best = node
    return best


@kernel
def pick_spread(sim: Simulation, row: int, patience: float) -> bool:
    """Pick all GPUs of the current job node by node."""
    while sim.state.need[row] > 0:
        take_node(sim, row, worst_fit_node(sim, row))
    return True


@kernel
def fewest_nodes(sim: Simulation, gpus: int, needs: int) -> int:
    """Return how many nodes a job of some GPUs and of a class of needs takes on an empty cluster."""
    first_gpu, suits = sim.cluster.first_gpu, sim.cluster.suits
    nodes, size = 0, sim.cluster.gpu_node.size
    while gpus > 0 and size > 0:
        smaller = 0  # the next size that a node has: to try all in between would take minutes beside a huge node
        for node in range(first_gpu.size - 1):
            own = (first_gpu[node + 1] - first_gpu[node]) * suits[needs, node]
            if own < size:
                smaller = max(smaller, own)
            elif own == size and gpus > 0:
                gpus -= size
                nodes += 1
        size = smaller
    return nodes


@kernel
def pick_consolidated(sim: Simulation, row: int, patience: float) -> bool:
    """Pick as `pack` does; False if that takes more nodes than needed and waiting is allowed."""
    pick_pack(sim, row, patience)
    if not may_wait(sim, row):
        return True
    job = sim.state.current[row]
    gpus = sim.scenarios.gpus[sim.state.scenario[row], job]
    return bool(sim.state.picked_nodes[row] <= fewest_nodes(sim, gpus, need_class_of(sim, row, job)))


@kernel
def best_free_node(sim: Simulation, row: int, value: NDArray[np.float64], sign: float) -> int:
    """Return the node with free GPUs whose value times a sign is largest, among equals the one with most of them."""
    free = sim.state.free
    best = -1
    for node in range(free.shape[1]):
        if free[row, node] > 0 and (
            best < 0
            or sign * value[node] > sign * value[best]
            or (value[node] == value[best] and free[row, node] > free[row, best])
        ):
            best = node
    return best


@kernel
def pick_fastest(sim: Simulation, row: int, patience: float) -> bool:
    """Pick all GPUs of the current job from the fastest nodes."""
    speed = sim.scenarios.speed[sim.state.scenario[row]]
    while sim.state.need[row] > 0:
        take_node(sim, row, best_free_node(sim, row, speed, 1.0))
    return True


@kernel
def pick_reliable(sim: Simulation, row: int, patience: float) -> bool:
    """Pick all GPUs of the current job from the nodes of lowest hazard."""
    while sim.state.need[row] > 0:
        take_node(sim, row, best_free_node(sim, row, sim.state.node_hazard_per_s[row], -1.0))
    return True


@kernel
def pick_by_finish(sim: Simulation, row: int, fault_loss_s: float, patience: float) -> bool:
    """Pick the GPUs of the set where the current job finishes first; False if waiting is better.

    Args:
        sim: The simulation.
        row: Row of the decision.
        fault_loss_s: What an expected fault costs; 0 leaves faults out of account.
        patience: Seconds of run time that a second of waiting must save, inverted; 0 never waits.
    """
    state = sim.state
    job = state.current[row]
    reset_trial_free(sim, row)
    run_s, _, count = find_best_set(sim, row, job, fault_loss_s)
    if patience > 0.0 and may_wait(sim, row):
        if gain_of_waiting_s(sim, row, job, run_s, fault_loss_s, patience) > RUN_TIE * run_s:
            return False
        reset_trial_free(sim, row)
        _, _, count = find_best_set(sim, row, job, fault_loss_s)
    for place in range(count):
        take_node(sim, row, sim.scratch.best_set[row, place])
    return True


@kernel
def pick_eft(sim: Simulation, row: int, patience: float) -> bool:
    """Pick where the job finishes first, faults left out of account."""
    return pick_by_finish(sim, row, 0.0, patience)


@kernel
def pick_eft_hazard(sim: Simulation, row: int, patience: float) -> bool:
    """Pick where the job finishes first, faults reckoned with; False if waiting is better by the patience."""
    return pick_by_finish(sim, row, expected_fault_loss_s(sim), patience)


@kernel
def reference_iteration_s(sim: Simulation, row: int, job: int) -> float:
    """Return a job's iteration time on the reference placement, which stands for F3's measured one."""
    scenario = sim.state.scenario[row]
    compute_s = sim.scenarios.compute_s[scenario, job]
    gpus = sim.scenarios.gpus[scenario, job]
    if gpus == 1:
        return compute_s
    link = sim.rules.reference_intra_bytes_per_s
    if gpus > sim.rules.reference_gpus:
        link = sim.rules.reference_nic_bytes_per_s
    return compute_s + 2.0 * (gpus - 1) / gpus * sim.scenarios.parameter_bytes[scenario, job] / link


@kernel
def replacement_node(sim: Simulation, row: int, first: int, last: int) -> int:
    """Return the node that gives the next GPU of a ring from node `last` to node `first` (both -1 for the first GPU).

    Among nodes with T(x) at most the job's average iteration time the slowest, then the one of least T; if there is
    none, the one of least T. A node's peak FLOP/s is its speed.

    Source: SPEC F6, F7.
    """
    state = sim.state
    scenario, job = state.scenario[row], state.current[row]
    speed = sim.scenarios.speed
    allowed_s = reference_iteration_s(sim, row, job)
    volume = sim.scenarios.parameter_bytes[scenario, job]
    best, best_s, best_allowed = -1, math.inf, False
    for node in range(state.free.shape[1]):
        if state.free[row, node] == 0:
            continue
        time_s = sim.scenarios.compute_s[scenario, job] / speed[scenario, node]
        if first >= 0:
            link = min(link_bytes_per_s(sim.cluster, last, node), link_bytes_per_s(sim.cluster, node, first))
            time_s += volume / link
        allowed = time_s <= allowed_s
        better = time_s < best_s
        if allowed and best_allowed:
            slower = speed[scenario, node] < speed[scenario, best]
            better = slower or (speed[scenario, node] == speed[scenario, best] and better)
        elif allowed != best_allowed:
            better = allowed
        if best < 0 or better:
            best, best_s, best_allowed = node, time_s, allowed
    return best


@kernel
def pick_replacements(sim: Simulation, row: int, patience: float) -> bool:
    """Pick the GPUs of the current job one by one, each as a faulty ring member's replacement."""
    first, last = -1, -1
    while sim.state.need[row] > 0:
        node = replacement_node(sim, row, first, last)
        take_gpu(sim, row, safest_gpu(sim, row, node))
        first = node if first < 0 else first
        last = node
    return True


# Name, rule, one line for `longshore policy list`, patience (0 never waits), and whether it differs where waiting is
# allowed. In alphabetical order, in which the first of equally good ones is the best. registry.py has the names too.
TABLE: tuple[tuple[str, Rule, str, float, bool], ...] = (
    ("best-of-random", pick_best_of_random, "the fastest of 8 random placements", 0.0, False),
    ("consolidate", pick_consolidated, "pack, but waits until the job fits on as few nodes as possible", 0.0, True),
    ("eft", pick_eft, "earliest expected finish of the job", 0.0, False),
    ("eft-hazard", pick_eft_hazard, "the same, reckoning with faults, restarts and checkpoints", 0.0, False),
    ("eft-wait", pick_eft_hazard, "eft-hazard now or after a running job's end, whichever finishes first", 1.0, True),
    ("fastest", pick_fastest, "the fastest nodes", 0.0, False),
    ("first-fit", pick_first_fit, "the first nodes with free GPUs", 0.0, False),
    ("pack", pick_pack, "best fit: the smallest hole on a node, else most free GPUs", 0.0, False),
    ("pack-hazard", pick_pack_hazard, "pack, lemon nodes last", 0.0, False),
    (
        "patient",
        pick_eft_hazard,
        "eft-hazard that waits while the wait is short for what it saves",
        WAIT_PATIENCE,
        True,
    ),
    ("random", pick_random, "random nodes with free GPUs", 0.0, False),
    ("reliable", pick_reliable, "the nodes of lowest hazard", 0.0, False),
    ("replacement", pick_replacements, "each GPU chosen as a faulty ring member's replacement", 0.0, False),
    ("spread", pick_spread, "worst fit: the node with most free GPUs", 0.0, False),
)
PICKS = [rule for _, rule, *_ in TABLE]
_pick = kernel_of_numbered("heuristic", PICKS)


@kernel
def pick_by_rule(sim: Simulation, row: int, rule: int, patience: float) -> bool:
    """Pick the GPUs of the current job by a rule; False if the rule would rather wait."""
    return bool(_pick(rule, sim, row, patience) != 0.0)


@kernel
def run_on_by_rule(sim: Simulation, row: int, rule: int, patience: float, decisions: int) -> bool:
    """Run a row on for at most N decisions by a rule; False if it has ended before."""
    for _ in range(decisions):
        if not advance(sim, row):
            return False
        if pick_by_rule(sim, row, rule, patience):
            start(sim, row)
        else:
            wait(sim, row)
    return True


@kernel
def run_by_rule(sim: Simulation, scenarios: NDArray[np.int64], rule: int, patience: float) -> None:
    """Run one scenario in each row, from its beginning to its end."""
    for row in range(scenarios.size):
        reset(sim, row, scenarios[row])
        run_on_by_rule(sim, row, rule, patience, TO_THE_END)


HEURISTIC_CHECK_NODES = 512  # nodes that heuristics read in some milliseconds


@dataclass(frozen=True, slots=True)
class Heuristic:
    """A compiled rule under the policy protocol.

    Args:
        name: Its name in tables.
        rule: Its number in PICKS.
        about: One line for `longshore policy list`.
        patience: How much waiting a second of saved run time is worth; 0 never waits.
        waits: Whether it differs where waiting is allowed.
        check: As in `interruptible`.
    """

    name: str
    rule: int
    about: str
    patience: float = 0.0
    waits: bool = False
    check: Check | None = None

    def place(self, sim: Simulation, row: int) -> bool:
        """Pick the GPUs of the job that is due in a row; False, with nothing picked, to wait."""
        if PICKS[self.rule](sim, row, self.patience):  # without all other rules, so that less is compiled
            return True
        undo_picks(sim, row)
        return False

    def run_on(self, sim: Simulation, row: int) -> None:
        """Run a row to its end."""
        decisions = TO_THE_END if self.check is None else decisions_between_checks(sim, HEURISTIC_CHECK_NODES)
        while run_on_by_rule(sim, row, self.rule, self.patience, decisions):
            if self.check is not None:
                self.check()

    def interruptible(self, check: Check) -> "Heuristic":
        """Return the same policy, which calls `check` every few decisions while it runs on."""
        return replace(self, check=check)

    def run(self, sim: Simulation, scenarios: NDArray[np.int64]) -> None:
        """Run one scenario in each row, from its beginning to its end."""
        run_by_rule(sim, checked_scenario_indices(sim, scenarios), self.rule, self.patience)


HEURISTICS = {
    name: Heuristic(name, number, about, patience, waits)
    for number, (name, _, about, patience, waits) in enumerate(TABLE)
}
PACK, EFT, EFT_HAZARD, PATIENT = (HEURISTICS[name] for name in ("pack", "eft", "eft-hazard", "patient"))
# Factors of `patient` that are tried on the past of a workload, to find the best one for it.
FACTORS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25)


def patient_with_factor(factor: float) -> Heuristic:
    """Return `patient` with another factor, named as in `patient@0.8`."""
    about = f"patient with the factor {factor:g} in place of {PATIENT.patience:g}"
    return replace(PATIENT, name=f"{PATIENT.name}@{factor:g}", about=about, patience=factor)


def patient_of_least_cost(cost: Callable[[Heuristic], float]) -> Heuristic:
    """Return `patient` with the factor of least cost, the smallest of equals."""
    return min(map(patient_with_factor, FACTORS), key=cost)


def rival_heuristics(rules: Rules) -> list[Heuristic]:
    """Return the heuristics that have the same actions: without those that differ by waiting where it is off."""
    return [policy for policy in HEURISTICS.values() if rules.waiting or not policy.waits]
