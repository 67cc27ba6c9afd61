"""The candidates of a decision and what they lead to once more: slow and plain, from docs/policies.md."""

import math
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from itertools import chain, combinations, islice
from typing import NamedTuple

import numpy as np

from longshore.cluster.model.problem import Problem, Rules
from longshore.cluster.state.state import Simulation
from longshore.envs.batch import AgentView, Batch
from tests.envs.plain_features import Decision
from tests.envs.random_run import steps_of_episode
from tests.reference_policies import TIE, earlier, greedy_set
from tests.strategies import Case

AHEAD = 33  # jobs that are imagined, the candidate's own among them
SHOWN = 7  # of which so many are seen one by one
LOOKS = 4  # ends that a job looks at, to wait for better GPUs
DECISIONS = 40  # of one random episode


class Candidate(NamedTuple):
    """A candidate of the list."""

    job: int
    delay_s: float
    run_s: float
    hole: int
    nodes: list[int]  # in the order in which they give


class Ahead(NamedTuple):
    """A job that is imagined to start; both times are inf if it never does."""

    job: int
    start_s: float
    end_s: float


def decisions(problem: Problem, scenario: int, seed: int) -> Iterator[Batch]:
    """Run random candidates; yields a batch of one row at each of the first decisions, its candidates listed."""
    batch = Batch(problem, AgentView(action="candidate"), 1)
    steps = steps_of_episode(batch, scenario, np.random.default_rng(seed))
    for _ in zip(range(DECISIONS), steps, strict=False):
        if batch.masks[0].any():
            yield batch


def listed(sim: Simulation, row: int) -> list[Candidate]:
    state = sim.state
    nodes = state.candidate_node[row].reshape(state.candidate_size.shape[1], -1)
    return [
        Candidate(
            job=int(state.candidate_job[row, candidate]),
            delay_s=float(state.candidate_delay_s[row, candidate]),
            run_s=float(state.candidate_s[row, candidate]),
            hole=int(state.candidate_hole[row, candidate]),
            nodes=nodes[candidate, : state.candidate_size[row, candidate]].tolist(),
        )
        for candidate in range(int(state.candidates[row]))
    ]


def for_job(seen: Decision, job: int) -> Decision:
    """Return the same decision as if another job were due."""
    other = copy(seen)
    other.job = job
    return other


def end_s(seen: Decision, job: int) -> float:
    """Return a running job's expected end."""
    seen.time_left_s(job)  # doubles an estimate that was outlived
    start_s, overhead_s, slowdown = seen.started[job]
    return start_s + (overhead_s + seen.work_left_s(job) * slowdown)


def held(seen: Decision, job: int) -> dict[int, int]:
    """Return how many GPUs of each node a running job holds."""
    nodes = [seen.gpu_node[gpu] for gpu, holder in enumerate(seen.gpu_job) if holder == job]
    return {node: nodes.count(node) for node in nodes}


def usable_after(seen: Decision, delay_s: float) -> dict[int, int]:
    """Return the usable GPUs of each node once the jobs have left whose expected ends come within a delay."""
    free = {node: seen.usable(node) for node in seen.nodes}
    for job in seen.started:
        if end_s(seen, job) - seen.now_s <= delay_s:
            add(free, held(seen, job), 1)
    return free


def add(free: dict[int, int], gpus: Mapping[int, int], sign: int) -> None:
    for node, count in gpus.items():
        free[node] += sign * count


def given_by(free: Mapping[int, int], nodes: Iterable[int], need: int) -> dict[int, int]:
    """Return how many GPUs each node gives, one after the other."""
    given = {}
    for node in nodes:
        given[node] = min(need, free[node])
        need -= given[node]
    assert need == 0, "the set does not hold the job"
    return given


def node_hazard_per_s(seen: Decision, node: int) -> float:
    hazards = [hazard for hazard, at in zip(seen.hazard_per_s, seen.gpu_node, strict=True) if at == node]
    return float(sum(hazards) / len(hazards))


def fault_loss_s(rules: Rules) -> float:
    return (1.5 * rules.checkpoint_s if rules.checkpoint_s < math.inf else 0.0) + rules.restart_s


def finish_s(seen: Decision, job: int, given: dict[int, int]) -> float:
    """Return the run time of a job with what faults are expected to cost it."""
    faults = sum(count * node_hazard_per_s(seen, node) for node, count in given.items())
    return for_job(seen, job).run_s(given) * (1 + faults * fault_loss_s(seen.rules))


def smallest_sets(free: Mapping[int, int], need: int) -> Iterator[list[int]]:
    """Yield all sets of nodes that hold so many GPUs and of which none could be left out, most free first."""
    nodes = sorted((node for node in free if free[node]), key=lambda node: (-free[node], node))
    for count in range(1, len(nodes) + 1):
        for chosen in map(list, combinations(nodes, count)):
            total = sum(free[node] for node in chosen)
            if total >= need > total - free[chosen[-1]]:
                yield chosen


def suiting(seen: Decision, job: int, free: Mapping[int, int]) -> dict[int, int]:
    """Return the usable GPUs of each node that suits a job."""
    return {node: gpus for node, gpus in free.items() if seen.suits[job][node]}


def least_finish_s(seen: Decision, job: int, free: Mapping[int, int]) -> float:
    """Return the shortest run time of a job, expected faults included, over all sets of nodes."""
    need, free = seen.gpus[job], suiting(seen, job, free)
    return min(finish_s(seen, job, given_by(free, nodes, need)) for nodes in smallest_sets(free, need))


Kind = tuple[object, ...]


def kind_of(seen: Decision, job: int, nodes: Iterable[int]) -> Kind:
    """Return what tells a set from others, the names of its nodes aside."""
    return job, *sorted(class_of(seen, node) for node in nodes)


def class_of(seen: Decision, node: int) -> tuple[float, ...]:
    """Return what tells a node from others, its name aside, most free GPUs first."""
    cluster, hazards = seen.cluster, [node_hazard_per_s(seen, it) for it in seen.nodes]
    is_lemon = hazards[node] > 5 * sorted(hazards)[(len(hazards) - 1) // 2]
    links = float(cluster.nic_bytes_per_s[node]), float(cluster.intra_bytes_per_s[node])
    suits = map(float, cluster.suits[:, node])
    return seen.free(node), seen.speed[node], float(is_lemon), float(cluster.node_rack[node]), *links, *suits


def sets_of_two_classes(seen: Decision) -> Iterator[list[int]]:
    """Yield the sets of one class, and of two of which the one with more free GPUs gives as many as are needed."""
    classes: dict[tuple[float, ...], list[int]] = {}
    for node in seen.most_usable_first():
        classes.setdefault(class_of(seen, node), []).append(node)
    need, listed = seen.gpus[seen.job], list(classes.values())
    for at, first in enumerate(listed):
        yield first[: -(-need // seen.free(first[0]))]
        full = first[: (need - 1) // seen.free(first[0])]
        for second in listed[at + 1 :] if full else []:
            left = need - len(full) * seen.free(first[0])
            yield [*full, *second[: -(-left // seen.free(second[0]))]]


def tight_sets(seen: Decision) -> Iterator[list[int]]:
    """Yield a set for each speed, with and without lemons, in the whole cluster and in each rack."""
    free = {node: seen.free(node) for node in seen.nodes if seen.free(node)}
    of_rack = seen.cluster.node_rack.tolist()
    racks = [set(seen.nodes), *({n for n in seen.nodes if of_rack[n] == rack} for rack in range(max(of_rack) + 1))]
    for speed in sorted(set(seen.speed), reverse=True):
        for lemons in (1.0, 0.0):
            for rack in racks:
                some = {n: g for n, g in free.items() if n in rack and seen.speed[n] >= speed}
                some = {n: g for n, g in some.items() if class_of(seen, n)[2] <= lemons}
                if sum(some.values()) >= seen.gpus[seen.job]:
                    yield greedy_set(some, seen.gpus[seen.job])


def offered(seen: Decision) -> set[Kind]:
    """Return the kinds of sets that are offered for the job that is due where more than 8 nodes have free GPUs."""
    free, need = {node: seen.free(node) for node in seen.nodes}, seen.gpus[seen.job]
    found: dict[Kind, tuple[float, int, float]] = {}
    for nodes in chain(sets_of_two_classes(seen), tight_sets(seen)):
        total = sum(free[node] for node in nodes)
        if total >= need:
            run_s = float(
                f"{finish_s(seen, seen.job, given_by(free, nodes, need)):.9e}"
            )  # what differs by less is equal
            found.setdefault(kind_of(seen, seen.job, nodes), (run_s, total - need, max(seen.speed[n] for n in nodes)))
    slow = [kind for kind in found if found[kind][2] < max(seen.speed)]
    earliest = sorted(found, key=lambda kind: found[kind][:2])[:7]
    tightest = sorted(found, key=lambda kind: (found[kind][1], found[kind][0]))[:3]
    return {*earliest, *tightest, *sorted(slow, key=lambda kind: found[kind][:2])[:2]}


def quick_set(seen: Decision, job: int, free: Mapping[int, int]) -> tuple[float, list[int]]:
    """Return run time and nodes of the best tight set of nodes of at least each speed, faults left out of account."""
    best: tuple[float, int, list[int]] | None = None
    free = suiting(seen, job, free)
    for speed in sorted(set(seen.speed), reverse=True):
        fast = {node: gpus for node, gpus in free.items() if gpus and seen.speed[node] >= speed}
        if sum(fast.values()) < seen.gpus[job]:
            continue
        nodes = greedy_set(fast, seen.gpus[job])
        run_s = for_job(seen, job).run_s(given_by(free, nodes, seen.gpus[job]))
        hole = sum(free[node] for node in nodes) - seen.gpus[job]
        if best is None or earlier(run_s, hole, *best[:2]):
            best = (run_s, hole, nodes)
    assert best is not None
    return best[0], best[2]


class Moment(NamedTuple):
    """A moment that is imagined."""

    now_s: float
    free: dict[int, int]  # usable GPUs of each node
    leaving: list[tuple[float, dict[int, int]]]  # end of each job that runs, and its GPUs of each node


def moments(moment: Moment) -> Iterator[Moment]:
    """Yield the moments after each of the next ends."""
    while moment.leaving:
        end_s, free = min(time_s for time_s, _ in moment.leaving), dict(moment.free)
        for time_s, gpus in moment.leaving:
            add(free, gpus if time_s == end_s else {}, 1)
        moment = Moment(end_s, free, [(time_s, gpus) for time_s, gpus in moment.leaving if time_s > end_s])
        yield moment


def best_moment(seen: Decision, job: int, first: Moment) -> Moment:
    """Return the moment at which a job starts that could start at the first: one that gains, or the first itself."""
    if not seen.rules.waiting:
        return first
    run_s = quick_set(seen, job, first.free)[0]
    gains_s = {first.now_s: TIE * run_s}
    afterwards = {first.now_s: first}
    for later in islice(moments(first), LOOKS):
        later_s = quick_set(seen, job, later.free)[0]
        gains_s[later.now_s] = 0.4 * (run_s - later_s) - (later.now_s - first.now_s)
        afterwards[later.now_s] = later
    return afterwards[max(gains_s, key=gains_s.__getitem__)]


def look_ahead(seen: Decision, candidate: Candidate) -> tuple[dict[int, int], list[Ahead]]:
    """Imagine a candidate and the next jobs of the queue in order, each on its quick set.

    Returns:
        The GPUs of each node that are usable when the candidate has started, and the jobs, the candidate's own first; a
        job that never starts is the last.
    """
    left = usable_after(seen, candidate.delay_s)
    now_s = seen.now_s + candidate.delay_s
    given = given_by(left, candidate.nodes, seen.gpus[candidate.job])
    add(left, given, -1)
    leaving = [
        (end_s(seen, job), held(seen, job)) for job in seen.started if end_s(seen, job) - seen.now_s > candidate.delay_s
    ]
    ahead = [Ahead(candidate.job, now_s, now_s + candidate.run_s)]
    moment = Moment(now_s, dict(left), [*leaving, (now_s + candidate.run_s, given)])
    for job in [job for job in seen.queue if job != candidate.job][: AHEAD - 1]:
        afterwards = chain([moment], moments(moment))
        first = next((it for it in afterwards if sum(suiting(seen, job, it.free).values()) >= seen.gpus[job]), None)
        if first is None:
            return left, [*ahead, Ahead(job, math.inf, math.inf)]
        moment = best_moment(seen, job, first)
        run_s, nodes = quick_set(seen, job, moment.free)
        given = given_by(moment.free, nodes, seen.gpus[job])
        add(moment.free, given, -1)
        moment.leaving.append((moment.now_s + run_s, given))
        ahead.append(Ahead(job, moment.now_s, moment.now_s + run_s))
    return left, ahead


def without_faults(case: Case) -> Case:
    """Return the case with neither faults nor belief in any, exact estimates, and all jobs there at the start."""
    scenarios = case.scenarios
    process = case.process._replace(
        outage_first=np.zeros_like(case.process.outage_first), outage_start_s=np.zeros(0), outage_end_s=np.zeros(0)
    )
    return case._replace(
        process=process,
        scenarios=scenarios._replace(
            source_rate_per_s=np.zeros_like(scenarios.source_rate_per_s),
            hazard_per_s=np.zeros_like(scenarios.hazard_per_s),
            estimate_s=scenarios.work_s.copy(),
            submit_s=np.zeros_like(scenarios.submit_s),
        ),
    )
