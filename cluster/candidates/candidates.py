"""The candidates at a decision: each is a job with a whole placement, or waiting (docs/policies.md, Candidates).

The first candidate is that of the base heuristic, `patient` (`eft-hazard` where no job may wait). The others are the
sets of nodes with the earliest finish, the tightest sets, sets of slow nodes only, sets for other jobs that may start
at this moment, and waiting. Only minimal sets count, of which every node is needed, and nodes that are alike are
one group: equal sets appear once. The sets that may become candidates are first listed as offers, best first.
"""

import math

from ..kernels.compiled import kernel
from ..model.problem import lets_jobs_pass
from ..placing import slowdown_of, take_node
from ..queue.expected import expected_fault_loss_s, expected_run_s, sort_expected_ends
from ..queue.order import delays_no_job, list_other_jobs, may_turn_to_other, may_wait, turn_to
from ..state.holding import need_class_of, suit_same_jobs
from ..state.state import FINISH_OFFERS, MAX_CANDIDATES, OFFERS, TIGHT_OFFERS, Simulation, has_need_classes
from .node_sets import (
    ALL_SETS,
    RUN_TIE,
    WAIT_PATIENCE,
    FoundSet,
    find_best_set,
    find_tight_set,
    imagine_ends,
    keep_better_set,
    least_run_on_free_s,
    least_run_s,
    list_free_nodes,
    lowest_speed_level,
    no_set,
    node_set_cost,
    reset_trial_free,
)

TIGHT, SLOW = FINISH_OFFERS, FINISH_OFFERS + TIGHT_OFFERS  # places of those offers
SLACK = 1.0 + 1e-6  # far above all ties of a list of offers together
MULTIPLIER = 0x2545F4914F6CDD1D  # odd, so that sums of its multiples differ between sets of groups


@kernel
def _are_nodes_alike(sim: Simulation, row: int, a: int, b: int) -> bool:
    """Return whether two nodes with `trial_free` GPUs give the same placement, as far as policies know."""
    cluster, speeds, lemon = sim.cluster, sim.scenarios.speed[sim.state.scenario[row]], sim.state.lemon[row]
    return bool(
        sim.scratch.trial_free[row, a] == sim.scratch.trial_free[row, b]
        and speeds[a] == speeds[b]
        and lemon[a] == lemon[b]
        and cluster.node_rack[a] == cluster.node_rack[b]
        and cluster.nic_bytes_per_s[a] == cluster.nic_bytes_per_s[b]
        and cluster.intra_bytes_per_s[a] == cluster.intra_bytes_per_s[b]
        and suit_same_jobs(sim, a, b)
    )


@kernel
def _number_alike_groups(sim: Simulation, row: int, nodes: int) -> int:
    """Number the groups of alike nodes in `trial_order`; return their number."""
    scratch = sim.scratch
    order, first_node = scratch.trial_order, scratch.group_node
    groups, begin = 0, 0  # groups of nodes with as many free GPUs begin there, as these stand together
    for place in range(nodes):
        node = order[row, place]
        if scratch.trial_free[row, node] != scratch.trial_free[row, order[row, place - 1 if place > 0 else 0]]:
            begin = groups
        found = -1
        for known in range(begin, groups):
            if _are_nodes_alike(sim, row, node, first_node[row, known]):
                found = known
                break
        if found < 0:
            found = groups
            first_node[row, groups] = node
            groups += 1
        scratch.alike_group[row, node] = found
    return groups


@kernel
def number_all_alike_groups(sim: Simulation, row: int) -> None:
    """Number the groups of all alike nodes with free GPUs, for the signatures of sets of any job."""
    _number_alike_groups(sim, row, list_free_nodes(sim, row, 0))


@kernel
def node_set_signature(sim: Simulation, row: int, count: int) -> int:
    """Return a number of the set in `trial_set` that depends on the groups of its nodes only.

    They must have been numbered since `trial_free` last changed: by `offer_sets` for a job of the same needs, or by
    `number_all_alike_groups`.
    """
    total = 0
    for place in range(count):
        number = int(sim.scratch.alike_group[row, sim.scratch.trial_set[row, place]]) + 1
        mixed = (number * MULTIPLIER) & 0xFFFFFFFFFFFF  # compiled code wraps at 64 bits, plain Python does not
        total += mixed ^ (mixed >> 29)
    return total


@kernel
def _insert_offer(sim: Simulation, row: int, first: int, after: int, tight: int, count: int, run_s: float, hole: int,
            signature: int) -> None:  # fmt: skip
    """Put the set in `trial_set` among the offers `first` to `after` - 1, best first, unless its like is there.

    The best has the shortest run time, then the smallest hole; the other way round where `tight` is 1.
    """
    state, scratch = sim.state, sim.scratch
    nodes = state.free.shape[1]
    at = after
    for place in range(first, after):
        if scratch.offer_sign[row, place] == signature:
            return
        if at == after:
            sooner = run_s < scratch.offer_s[row, place] * (1.0 - RUN_TIE)
            same = not sooner and run_s <= scratch.offer_s[row, place] * (1.0 + RUN_TIE)
            tighter = hole < scratch.offer_hole[row, place]
            level = hole == scratch.offer_hole[row, place]
            if (tight and (tighter or (level and sooner))) or (not tight and (sooner or (same and tighter))):
                at = place
    if at == after:
        return
    for place in range(after - 1, at, -1):
        scratch.offer_s[row, place] = scratch.offer_s[row, place - 1]
        scratch.offer_hole[row, place] = scratch.offer_hole[row, place - 1]
        scratch.offer_size[row, place] = scratch.offer_size[row, place - 1]
        scratch.offer_sign[row, place] = scratch.offer_sign[row, place - 1]
        for i in range(scratch.offer_size[row, place]):
            scratch.offer_node[row, place * nodes + i] = scratch.offer_node[row, (place - 1) * nodes + i]
    scratch.offer_s[row, at] = run_s
    scratch.offer_hole[row, at] = hole
    scratch.offer_size[row, at] = count
    scratch.offer_sign[row, at] = signature
    for i in range(count):
        scratch.offer_node[row, at * nodes + i] = scratch.trial_set[row, i]


@kernel
def _offer_set(sim: Simulation, row: int, job: int, count: int, fault_loss_s: float) -> None:
    """Offer the set in `trial_set`, of nodes that each give something and together hold the job."""
    scenario = sim.state.scenario[row]
    run_s, hole = node_set_cost(sim, row, job, count, fault_loss_s)
    signature = node_set_signature(sim, row, count)
    _insert_offer(sim, row, 0, TIGHT, 0, count, run_s, hole, signature)
    _insert_offer(sim, row, TIGHT, SLOW, 1, count, run_s, hole, signature)
    speed = 0.0
    for place in range(count):
        speed = max(speed, sim.scenarios.speed[scenario, sim.scratch.trial_set[row, place]])
    if speed < sim.traits.max_speed[scenario]:
        _insert_offer(sim, row, SLOW, OFFERS, 0, count, run_s, hole, signature)


@kernel
def _offer_all_sets(sim: Simulation, row: int, job: int, nodes: int, fault_loss_s: float) -> None:
    """Offer every minimal set of the nodes in `trial_order`, one of each kind."""
    state, scratch = sim.state, sim.scratch
    gpus = sim.scenarios.gpus[state.scenario[row], job]
    for chosen in range(1, 1 << nodes):
        count, total, last, skipped = 0, 0, 0, False
        for place in range(nodes):
            node = scratch.trial_order[row, place]
            if (chosen >> place) & 1:
                # Of nodes that are alike the first ones are taken: other choices would come to the same.
                skipped = skipped or (
                    place > 0
                    and not (chosen >> (place - 1)) & 1
                    and scratch.alike_group[row, scratch.trial_order[row, place - 1]] == scratch.alike_group[row, node]
                )
                scratch.trial_set[row, count] = node
                last = scratch.trial_free[row, node]
                total += last
                count += 1
        if not skipped and total >= gpus and total - last < gpus:
            _offer_set(sim, row, job, count, fault_loss_s)


@kernel
def _sort_nodes_by_group(sim: Simulation, row: int, nodes: int, groups: int) -> None:
    """Write the nodes in `trial_order` into `group_node` by group, and where each group begins into `group_first`."""
    scratch = sim.scratch
    first, order, of_node = scratch.group_first, scratch.trial_order, scratch.alike_group
    for known in range(groups + 1):
        first[row, known] = 0
    for place in range(nodes):
        first[row, of_node[row, order[row, place]] + 1] += 1
    for known in range(1, groups + 1):
        first[row, known] += first[row, known - 1]
    for place in range(nodes):
        node = order[row, place]
        scratch.group_node[row, first[row, of_node[row, node]]] = node
        first[row, of_node[row, node]] += 1
    for known in range(groups, 0, -1):  # each has moved on to where the next begins
        first[row, known] = first[row, known - 1]
    first[row, 0] = 0


@kernel
def _take_nodes_of_group(sim: Simulation, row: int, alike_group: int, count: int, nodes: int) -> None:
    """Write the first `nodes` nodes of a group into `trial_set`, behind `count` others."""
    scratch, first = sim.scratch, sim.scratch.group_first[row, alike_group]
    for i in range(nodes):
        scratch.trial_set[row, count + i] = scratch.group_node[row, first + i]


@kernel
def _group_figures(sim: Simulation, row: int, alike_group: int) -> tuple[int, int, float]:
    """Return how many nodes a group has, how many GPUs each has free, and their speed."""
    first, after = sim.scratch.group_first[row, alike_group], sim.scratch.group_first[row, alike_group + 1]
    node = sim.scratch.group_node[row, first]
    return (
        int(after - first),
        int(sim.scratch.trial_free[row, node]),
        float(sim.scenarios.speed[sim.state.scenario[row], node]),
    )


@kernel
def _may_enter_offers(
    sim: Simulation, row: int, job: int, nodes: int, hole: int, slowest: float, fastest: float
) -> bool:
    """Return whether a set of that many nodes could be among the offers, going by the speeds of its nodes alone."""
    scratch, scenario = sim.scratch, sim.state.scenario[row]
    slowdown = slowdown_of(sim, scenario, job, nodes, slowest, math.inf, math.inf, math.inf, 0)
    least_s = expected_run_s(sim, row, job, slowdown)
    last_s, most_hole = scratch.offer_s[row], scratch.offer_hole[row, SLOW - 1]
    return bool(
        least_s <= last_s[TIGHT - 1] * SLACK
        or (fastest < sim.traits.max_speed[scenario] and least_s <= last_s[OFFERS - 1] * SLACK)
        or hole < most_hole
        or (hole == most_hole and least_s <= last_s[SLOW - 1] * SLACK)
    )


@kernel
def _offer_one_or_two_groups(sim: Simulation, row: int, job: int, groups: int, fault_loss_s: float) -> None:
    """Offer the sets of one group, and those of two of which the one that has more free GPUs goes first."""
    gpus = sim.scenarios.gpus[sim.state.scenario[row], job]
    for first in range(groups):
        nodes, free, speed = _group_figures(sim, row, first)
        all_of_it = (gpus + free - 1) // free
        if all_of_it <= nodes and _may_enter_offers(sim, row, job, all_of_it, all_of_it * free - gpus, speed, speed):
            _take_nodes_of_group(sim, row, first, 0, all_of_it)
            _offer_set(sim, row, job, all_of_it, fault_loss_s)
        # As many nodes of the first group as are needed in full, and the rest from the second
        some = min(nodes, (gpus - 1) // free)
        left = gpus - some * free
        for second in range(first + 1, groups if some > 0 else 0):
            others, gives, other_speed = _group_figures(sim, row, second)
            rest = (left + gives - 1) // gives
            slowest, fastest = min(speed, other_speed), max(speed, other_speed)
            if rest <= others and _may_enter_offers(sim, row, job, some + rest, rest * gives - left, slowest, fastest):
                _take_nodes_of_group(sim, row, first, 0, some)
                _take_nodes_of_group(sim, row, second, some, rest)
                _offer_set(sim, row, job, some + rest, fault_loss_s)


@kernel
def _offer_tight_sets(sim: Simulation, row: int, job: int, fault_loss_s: float) -> None:
    """Offer the tight sets of each speed, with and without lemons, in the whole cluster and in each rack."""
    cluster = sim.cluster
    scenario = sim.state.scenario[row]
    levels, nodes = sim.traits.levels[scenario], sim.scenarios.speed.shape[1]
    racks = cluster.first_node.size - 1
    level = 0
    while levels[level] > 0.0:
        for lemons in (1, 0):
            for rack in range(-1, racks if racks > 1 else 0):
                first = 0 if rack < 0 else cluster.first_node[rack]
                after = nodes if rack < 0 else cluster.first_node[rack + 1]
                count = find_tight_set(sim, row, job, level, first, after, lemons)
                if count > 0:
                    _offer_set(sim, row, job, count, fault_loss_s)
        level += 1


@kernel
def offer_sets(sim: Simulation, row: int, job: int, fault_loss_s: float) -> None:
    """Fill the offers with sets of the nodes in `trial_free`; the size of an empty offer is 0."""
    scratch = sim.scratch
    for place in range(OFFERS):
        scratch.offer_s[row, place] = math.inf
        scratch.offer_hole[row, place] = 1 << 30
        scratch.offer_size[row, place] = 0
        scratch.offer_sign[row, place] = -1
    nodes = list_free_nodes(sim, row, need_class_of(sim, row, job))
    groups = _number_alike_groups(sim, row, nodes)
    if nodes <= ALL_SETS:
        _offer_all_sets(sim, row, job, nodes, fault_loss_s)
    else:
        _sort_nodes_by_group(sim, row, nodes, groups)
        _offer_one_or_two_groups(sim, row, job, groups, fault_loss_s)
        _offer_tight_sets(sim, row, job, fault_loss_s)


@kernel
def _write_candidate(
    sim: Simulation, row: int, candidate: int, job: int, delay_s: float, found: FoundSet, signature: int
) -> None:
    """Write the set that was found as a candidate."""
    state = sim.state
    first = candidate * state.free.shape[1]
    state.candidate_job[row, candidate] = job
    state.candidate_delay_s[row, candidate] = delay_s
    state.candidate_s[row, candidate] = found.run_s
    state.candidate_hole[row, candidate] = found.hole
    state.candidate_size[row, candidate] = found.nodes
    state.candidate_sign[row, candidate] = signature
    for place in range(found.nodes):
        state.candidate_node[row, first + place] = sim.scratch.best_set[row, place]


@kernel
def _write_best_wait(sim: Simulation, row: int, candidate: int, job: int, run_s: float, fault_loss_s: float) -> float:
    """Write the best wait for an expected end as a candidate; return its gain, as of `patient` (docs/policies.md).

    A wait that gains nothing is written all the same.
    """
    state = sim.state
    count = sort_expected_ends(sim, row)
    reset_trial_free(sim, row)
    largest_s = WAIT_PATIENCE * (run_s - least_run_s(sim, row, job, sim.traits.levels[state.scenario[row], 0]))
    most_s = -math.inf
    at = 0
    while at < count:
        delay_s = state.ends_s[row, at] - state.now_s[row]
        at = imagine_ends(sim, row, at, count)
        if most_s > -math.inf and (
            WAIT_PATIENCE * run_s - delay_s <= max(most_s, 0.0) or largest_s - delay_s <= most_s
        ):
            break  # no later end gains anything if the job then takes no time at all, or more on the fastest GPUs
        if most_s > -math.inf and WAIT_PATIENCE * (run_s - least_run_on_free_s(sim, row, job)) - delay_s <= most_s:
            continue
        found = find_best_set(sim, row, job, fault_loss_s)
        gain_s = WAIT_PATIENCE * (run_s - found.run_s) - delay_s
        if gain_s > most_s:
            most_s = gain_s
            _write_candidate(sim, row, candidate, job, delay_s, found, -1)
    return most_s


@kernel
def _copy_candidate(sim: Simulation, row: int, source: int, target: int) -> None:
    state = sim.state
    nodes = state.free.shape[1]
    state.candidate_job[row, target] = state.candidate_job[row, source]
    state.candidate_delay_s[row, target] = state.candidate_delay_s[row, source]
    state.candidate_s[row, target] = state.candidate_s[row, source]
    state.candidate_hole[row, target] = state.candidate_hole[row, source]
    state.candidate_size[row, target] = state.candidate_size[row, source]
    state.candidate_sign[row, target] = state.candidate_sign[row, source]
    for place in range(state.candidate_size[row, source]):
        state.candidate_node[row, target * nodes + place] = state.candidate_node[row, source * nodes + place]


@kernel
def _reserved_gpus_in_set(sim: Simulation, row: int, job: int, count: int) -> int:
    """Return how many GPUs of use to the holder of the reservation a job takes of the first nodes of `trial_set`."""
    gpus = int(sim.scenarios.gpus[sim.state.scenario[row], job])
    if not has_need_classes(sim):
        return gpus
    held, suits = 0, sim.cluster.suits[sim.state.reserved_class[row]]
    for place in range(count):
        node = sim.scratch.trial_set[row, place]
        gives = min(gpus, sim.scratch.trial_free[row, node])
        gpus -= gives
        held += gives * suits[node]
    return held


@kernel
def _best_set_may_start(sim: Simulation, row: int, job: int, count: int) -> bool:
    """Copy `best_set` to `trial_set`; return whether the job may start on it now, by the reservation in the state."""
    state = sim.state
    for place in range(count):
        sim.scratch.trial_set[row, place] = sim.scratch.best_set[row, place]
    if state.shadow_s[row] == math.inf:
        return True
    return delays_no_job(
        sim, row, job, node_set_cost(sim, row, job, count, 0.0)[0], _reserved_gpus_in_set(sim, row, job, count)
    )


@kernel
def _add_offers(sim: Simulation, row: int, candidates: int, max_candidates: int, job: int) -> int:
    """Write the offers as further candidates, but none that is alike to one so far; return the number.

    Those that break the reservation are omitted.
    """
    state, scratch = sim.state, sim.scratch
    nodes = state.free.shape[1]
    for place in range(OFFERS):
        size = scratch.offer_size[row, place]
        known = size == 0 or candidates == max_candidates
        for candidate in range(candidates):
            known = known or state.candidate_sign[row, candidate] == scratch.offer_sign[row, place]
        if known:
            continue
        for i in range(size):
            scratch.best_set[row, i] = scratch.offer_node[row, place * nodes + i]
        if _best_set_may_start(sim, row, job, size):
            found = FoundSet(scratch.offer_s[row, place], int(scratch.offer_hole[row, place]), int(size))
            _write_candidate(sim, row, candidates, job, 0.0, found, scratch.offer_sign[row, place])
            candidates += 1
    return candidates


@kernel
def _add_best_set(sim: Simulation, row: int, candidates: int, job: int, found: FoundSet) -> int:
    """Write `best_set` as a further candidate of another job, unless it is listed or breaks the reservation."""
    state = sim.state
    if not _best_set_may_start(sim, row, job, found.nodes):
        return candidates
    signature = node_set_signature(sim, row, found.nodes)
    for candidate in range(candidates):
        if state.candidate_job[row, candidate] == job and state.candidate_sign[row, candidate] == signature:
            return candidates
    _write_candidate(sim, row, candidates, job, 0.0, found, signature)
    return candidates + 1


@kernel
def _add_other_jobs(
    sim: Simulation, row: int, candidates: int, max_candidates: int, others: int, fault_loss_s: float
) -> int:
    """Write candidates of jobs that the policy may turn to: the best set of each, then the tightest."""
    state, lowest = sim.state, lowest_speed_level(sim, row)
    for place in range(others):
        if candidates < max_candidates:
            job = sim.scratch.other_job[row, place]
            candidates = _add_best_set(sim, row, candidates, job, find_best_set(sim, row, job, fault_loss_s))
    for place in range(others):
        if candidates < max_candidates:
            job = sim.scratch.other_job[row, place]
            count = find_tight_set(sim, row, job, lowest, 0, state.free.shape[1], 1)
            found = keep_better_set(sim, row, job, count, fault_loss_s, no_set())
            candidates = _add_best_set(sim, row, candidates, job, found)
    return candidates


@kernel
def _add_candidates(sim: Simulation, row: int, candidates: int, max_candidates: int, fault_loss_s: float) -> int:
    """Write the offers and the candidates of other jobs, each under the reservation it must keep; return the number."""
    state = sim.state
    own = state.shadow_s[row], state.extra[row], state.reserved_class[row]
    others = list_other_jobs(sim, row) if may_turn_to_other(sim, row) else 0
    theirs = state.shadow_s[row], state.extra[row], state.reserved_class[row]
    state.shadow_s[row], state.extra[row], state.reserved_class[row] = own
    candidates = _add_offers(sim, row, candidates, max_candidates - others, state.current[row])
    if others > 0 and has_need_classes(sim):
        number_all_alike_groups(sim, row)  # they may take nodes that do not suit the job that is due
    state.shadow_s[row], state.extra[row], state.reserved_class[row] = theirs
    candidates = _add_other_jobs(sim, row, candidates, max_candidates, others, fault_loss_s)
    state.shadow_s[row], state.extra[row], state.reserved_class[row] = own
    return candidates


@kernel
def _sign_candidate(sim: Simulation, row: int, candidate: int) -> None:
    """Write the signature of a candidate of the job that the alike nodes were numbered for."""
    state, size = sim.state, sim.state.candidate_size[row, candidate]
    first = candidate * state.free.shape[1]
    for place in range(size):
        sim.scratch.trial_set[row, place] = state.candidate_node[row, first + place]
    state.candidate_sign[row, candidate] = node_set_signature(sim, row, size)


@kernel
def list_candidates(sim: Simulation, row: int) -> int:
    """Write the candidates of the decision that is due, the base heuristic's first; return their number, at least 1.

    1. Find the set where the job finishes first if it starts at once (`find_best_set`).
    2. Where the job may wait, find the wait for an expected end that gains most (`_write_best_wait`).
    3. The base heuristic's own goes first: the wait if it gains enough, and the set at once second; else that set.
    4. List the sets that may become candidates (`offer_sets`).
    5. Add those that keep the reservation, and the sets of other jobs (`_add_candidates`).
    6. Add the wait. Not where it goes first and no job passes another: to wait is then the same for one job and all.

    `ends_s` and `ends_job` then hold the expected ends of the running jobs.
    """
    state, wait = sim.state, MAX_CANDIDATES - 1  # the wait is kept at that place until step 6
    job, fault_loss_s = state.current[row], expected_fault_loss_s(sim)
    reset_trial_free(sim, row)
    found = find_best_set(sim, row, job, fault_loss_s)
    _write_candidate(sim, row, 0, job, 0.0, found, 0)
    state.base_refused[row] = 0 if _best_set_may_start(sim, row, job, found.nodes) else 1
    waiting, gain_s = may_wait(sim, row), -math.inf
    if waiting:
        gain_s = _write_best_wait(sim, row, wait, job, found.run_s, fault_loss_s)
        reset_trial_free(sim, row)
    else:
        sort_expected_ends(sim, row)
    waits_first = gain_s > RUN_TIE * found.run_s
    state.base_waits[row] = 1 if waits_first else 0
    at_once = 1 if waits_first else 0
    if waits_first:
        _copy_candidate(sim, row, 0, at_once)
        _copy_candidate(sim, row, wait, 0)
    offer_sets(sim, row, job, fault_loss_s)
    _sign_candidate(sim, row, at_once)
    candidates = _add_candidates(sim, row, at_once + 1, wait, fault_loss_s)
    if waiting and (not waits_first or lets_jobs_pass(sim.rules.order)):
        _copy_candidate(sim, row, wait, candidates)
        candidates += 1
    state.candidates[row] = candidates
    return candidates


@kernel
def is_wait(sim: Simulation, row: int, candidate: int) -> bool:
    """Return whether a candidate of the list is to wait."""
    return bool(sim.state.candidate_delay_s[row, candidate] > 0.0)


@kernel
def lets_all_jobs_wait(sim: Simulation, row: int, candidate: int) -> bool:
    """Return whether a candidate lets all jobs wait; the base's own wait passes over the job that is due alone."""
    return bool(candidate > 0 and lets_jobs_pass(sim.rules.order) and is_wait(sim, row, candidate))


@kernel
def pick_candidate(sim: Simulation, row: int, candidate: int) -> bool:
    """Pick the GPUs of a candidate of the list; False, with nothing picked, if it is to wait.

    The candidate's job is then the one that is due. After a candidate that lets all jobs wait, `wait` ends the moment.
    """
    state = sim.state
    if is_wait(sim, row, candidate):
        if lets_all_jobs_wait(sim, row, candidate):
            state.rested[row] = state.moment[row]
        return False
    if state.candidate_job[row, candidate] != state.current[row]:
        turn_to(sim, row, state.candidate_job[row, candidate])
    first = candidate * state.free.shape[1]
    for place in range(state.candidate_size[row, candidate]):
        take_node(sim, row, state.candidate_node[row, first + place])
    return True
