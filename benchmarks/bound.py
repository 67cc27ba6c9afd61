"""What bounds a policy of one pass: true gains of candidates beside predicted ones, and what would predict better."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longshore.agents.networks.candidates import CandidatePolicy, objective_unit_s
from longshore.agents.protocol import Policy
from longshore.agents.rollouts import Rollout, Search
from longshore.cluster.kernels.structures import uniform
from longshore.cluster.model.problem import Problem
from longshore.cluster.placing import undo_picks
from longshore.cluster.simulator.engine import advance, reset, start, wait
from longshore.cluster.simulator.simulation import simulation_of
from longshore.cluster.state.state import Simulation

from .harness import Row

SEED, SHARE = 2028, 0.1  # of the decisions that are checked
FUTURES, NEAR = 24, 0.5  # units that a candidate may lie behind
NAME = "beyond one pass"


class Seen(NamedTuple):
    """Candidates beside the policy's own, in units of `objective_unit_s`; shape (candidates,) each."""

    predicted_gains: NDArray[np.float64]  # gain over the own choice, by the network
    calm: NDArray[np.float64]  # in a future without faults
    mean: NDArray[np.float64]  # in drawn futures
    noise: NDArray[np.float64]  # variance of that mean
    foreseen: NDArray[np.float64]  # as `mean`, by what is foreseen on the way
    foreseen_noise: NDArray[np.float64]
    off_noise: NDArray[np.float64]  # variance of the difference of the two means


def seen_by(policy: CandidatePolicy, problem: Problem, scenarios: int) -> Seen:
    """Run scenarios and measure what candidates gain at some of their decisions."""
    sim = simulation_of(problem, rows=1)
    rollout = Rollout(policy, Search(FUTURES, width=3), "makespan", SEED)
    parts = [np.zeros((len(Seen._fields), 0))]
    for scenario in range(scenarios):
        reset(sim, 0, scenario)
        while advance(sim, 0):
            if uniform(SEED, scenario, int(sim.state.decisions[0])) < SHARE:
                parts.append(_look(rollout, policy, sim))
            if policy.place(sim, 0):
                start(sim, 0)
            else:
                undo_picks(sim, 0)
                wait(sim, 0)
    return Seen(*np.concatenate(parts, axis=1))


def _look(rollout: Rollout, base: CandidatePolicy, sim: Simulation) -> NDArray[np.float64]:
    unit_s = objective_unit_s(sim, 0, "makespan")
    gains, foreseen = (each / unit_s for each in rollout.end_and_foreseen_gains(sim, 0))
    if len(gains) == 0:
        return np.zeros((len(Seen._fields), 0))
    predicted_gains = base.predicted_gains(sim, 0)
    predicted_gains -= predicted_gains.max()
    near = (predicted_gains < 0.0) & (predicted_gains > -NEAR) & ~np.isnan(gains[0])
    drawn, observations = gains[1:, near], foreseen[1:, near]
    noise, seen_noise, off_noise = (
        each.var(axis=0, ddof=1) / FUTURES for each in (drawn, observations, observations - drawn)
    )
    return np.stack(
        (
            predicted_gains[near],
            gains[0, near],
            drawn.mean(axis=0),
            noise,
            observations.mean(axis=0),
            seen_noise,
            off_noise,
        )
    )


def rows(policy: Policy, problem: Problem, scenarios: int) -> Iterator[Row]:
    """Yield how far candidates' true gains lie from the predicted ones, and how much of that one playout explains."""
    assert isinstance(policy, CandidatePolicy)
    yield from rows_of(seen_by(policy, problem, scenarios))


def rows_of(observations: Seen) -> Iterator[Row]:
    """Yield the same of what was seen."""
    gap = -float(observations.predicted_gains.mean())
    beyond, more = observations.mean - observations.predicted_gains, observations.calm - observations.predicted_gains
    variance = max(float((beyond**2 - observations.noise).mean()), 0.0)
    explained = float((beyond * more).mean() ** 2 / (more**2).mean())
    yield Row(f"{NAME}: candidates", observations.predicted_gains.size, "candidates")
    yield Row(f"{NAME}: predicted gap, mean", gap, "units")
    yield Row(f"{NAME}: standard deviation of the true gain", float(np.sqrt(variance)), "units")
    yield Row(f"{NAME}: its variance over the gap", variance / gap, "units")
    yield Row(f"{NAME}: explained by one playout without faults", 100.0 * explained / variance, "%")
    # Late in a run nothing is foreseen, and the ends stand in its place.
    is_foreseen = observations.foreseen != observations.mean
    noise, foreseen_noise = (
        FUTURES * each[is_foreseen].mean() for each in (observations.noise, observations.foreseen_noise)
    )
    off = float(((observations.foreseen - observations.mean) ** 2 - observations.off_noise)[is_foreseen].mean())
    name = "gain of a candidate in one future"
    yield Row(f"{name}: candidates that are foreseen", int(is_foreseen.sum()), "candidates")
    yield Row(f"{name}: noise by its end", float(np.sqrt(noise)), "units")
    yield Row(f"{name}: noise as foreseen on the way", float(np.sqrt(foreseen_noise)), "units")
    yield Row(f"{name}: error of what is foreseen", float(np.sqrt(max(off, 0.0))), "units")
