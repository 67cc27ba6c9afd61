"""Which idle GPU takes the seat of one that failed in a ring: bandwidth of links, iteration times, and the choice.

The simulator and the live scheduler call the same functions. Source: SPEC F4, F6, F7.
"""

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .kernels.compiled import kernel
from .model.topology import Cluster

SURE_BYTES_PER_S = 1e9  # a probe over one connection measures no faster link


@kernel
def link_bytes_per_s(cluster: Cluster, node: int, other: int) -> float:
    """Return the bandwidth between a GPU of one node and a GPU of another, or between two GPUs of one node."""
    if node == other:
        return float(cluster.intra_bytes_per_s[node])
    link = min(cluster.nic_bytes_per_s[node], cluster.nic_bytes_per_s[other])
    rack, other_rack = cluster.node_rack[node], cluster.node_rack[other]
    if rack != other_rack:
        link = min(link, cluster.uplink_bytes_per_s[rack], cluster.uplink_bytes_per_s[other_rack])
    return float(link)


def believed_bytes_per_s(by_file_bytes_per_s: float, probed_bytes_per_s: float) -> float:
    """Return the bandwidth of a link that was probed; a probe shows of a fast link only that it is fast.

    Args:
        by_file_bytes_per_s: What follows from the cluster file.
        probed_bytes_per_s: What a probe measured.
    """
    return probed_bytes_per_s if probed_bytes_per_s < SURE_BYTES_PER_S else max(by_file_bytes_per_s, SURE_BYTES_PER_S)


Floats = NDArray[np.float64]

SOURCE, RING = 0, 1  # formulas of a candidate's iteration time
FORMULAS = {"source": SOURCE, "ring": RING}
TYPICAL_EFFICIENCY = 0.4  # of the peak that training reaches, where the job has no record on any type


class Vacancy(NamedTuple):
    """A ring with one seat to fill."""

    seats: int  # the one to fill counted
    volume_bytes: float  # parameters as they are sent in an iteration
    average_s: float  # iteration time of the ring before the fault (SPEC F3)
    rest_compute_s: float  # the longest compute time among the others; 0 if there are none
    rest_bytes_per_s: float  # the smallest bandwidth between neighbours among the others; inf if there are none


class Candidates(NamedTuple):
    """Idle GPUs that could take the seat, each array of shape (candidates,); equal ones stand in the order of nodes."""

    compute_s: Floats  # of an iteration, as `compute_times_s` has it
    sure_compute_s: (
        Floats  # the same without luck, which decides whether one keeps the average; equal where there is a record
    )
    peak_flops: Floats
    from_previous_bytes_per_s: Floats  # bandwidth from the ring neighbour before the seat
    to_next_bytes_per_s: Floats  # and to the one after it
    hazard_per_s: Floats


def compute_times_s(
    recorded_s: Floats, peak_flops: Floats, demand_flops: float, records: Sequence[tuple[float, float]], formula: int
) -> tuple[Floats, Floats]:
    """Return the compute times of candidates in an iteration, usual ones and ones without luck; inf if unknown.

    By the formula SOURCE a type without a record reaches its whole peak, as SPEC F6 has it. That is 2 to 4 times too
    fast. By RING it reaches as much of its peak as the recorded types do in the median, without luck as the least of
    them does.

    Args:
        recorded_s: Mean compute time of the job on each candidate's type, nan where there is none.
        peak_flops: Of each candidate, FLOP/s.
        demand_flops: FLOPs of an iteration; nan if they are not known. With a record, RING does not need them.
        records: Compute time in seconds and peak FLOP/s of each type with a record.
        formula: SOURCE or RING.
    """
    demands = [compute_s * peak for compute_s, peak in records] or [demand_flops / TYPICAL_EFFICIENCY]
    usual, most = (demand_flops, demand_flops) if formula == SOURCE else (median(demands), max(demands))
    missing = np.isnan(recorded_s)
    times_s = (np.where(missing, demand / peak_flops, recorded_s) for demand in (usual, most))
    usual_s, sure_s = (np.where(np.isnan(column_s), np.inf, column_s) for column_s in times_s)
    return usual_s, sure_s


def typical_flops(records: Sequence[tuple[float, float]]) -> float:
    """Return the FLOPs of an iteration where they are not known: what training typically reaches on the recorded types.

    Args:
        records: As `compute_times_s` takes them; nan if there are none.
    """
    return TYPICAL_EFFICIENCY * median(compute_s * peak for compute_s, peak in records) if records else math.nan


@kernel
def _transfer_s(volume_bytes: float, bytes_per_s: float) -> float:
    """Return how long a link takes for so much; one that is cut takes for ever."""
    if not bytes_per_s > 0.0:
        return math.inf
    return volume_bytes / bytes_per_s


@kernel
def source_iteration_s(vacancy: Vacancy, compute_s: float, from_previous: float, to_next: float) -> float:
    """Return a candidate's iteration time as SPEC F6 has it: the slower of its two links, and its own compute time."""
    return max(_transfer_s(vacancy.volume_bytes, from_previous), _transfer_s(vacancy.volume_bytes, to_next)) + compute_s


@kernel
def ring_iteration_s(vacancy: Vacancy, compute_s: float, from_previous: float, to_next: float) -> float:
    """Return the iteration time of the whole ring with a candidate in it.

    All wait for the slowest member. Then each link carries 2 (n - 1) / n of the parameters, and all wait for the
    slowest link.
    """
    slowest_s = max(vacancy.rest_compute_s, compute_s)
    if vacancy.seats < 2:
        return slowest_s
    link = min(vacancy.rest_bytes_per_s, from_previous, to_next)
    return slowest_s + _transfer_s(2.0 * (vacancy.seats - 1) / vacancy.seats * vacancy.volume_bytes, link)


@kernel
def iteration_by_formula_s(
    vacancy: Vacancy, compute_s: float, from_previous: float, to_next: float, formula: int
) -> float:
    """Return a candidate's iteration time by a formula, SOURCE or RING."""
    if formula == SOURCE:
        return source_iteration_s(vacancy, compute_s, from_previous, to_next)
    return ring_iteration_s(vacancy, compute_s, from_previous, to_next)


@kernel
def choose_replacement(vacancy: Vacancy, candidates: Candidates, formula: int) -> int:
    """Return the index of the candidate that takes the seat, -1 if there is none.

    Among those that keep the ring's average iteration time it is the one of the lowest peak, so that no strong GPU is
    wasted; among equal ones the shortest iteration time decides, then the lowest hazard. If none keeps the average, it
    is the one of the shortest iteration time; among equal ones the lowest peak decides, then the lowest hazard.

    Source: SPEC F7.
    """
    best, best_key = -1, (math.inf, math.inf, math.inf, math.inf)
    for i in range(candidates.compute_s.size):
        from_previous, to_next = candidates.from_previous_bytes_per_s[i], candidates.to_next_bytes_per_s[i]
        time_s = iteration_by_formula_s(vacancy, candidates.compute_s[i], from_previous, to_next, formula)
        sure_s = iteration_by_formula_s(vacancy, candidates.sure_compute_s[i], from_previous, to_next, formula)
        peak, hazard = candidates.peak_flops[i], candidates.hazard_per_s[i]
        key = (0.0, peak, time_s, hazard) if sure_s <= vacancy.average_s else (1.0, time_s, peak, hazard)
        if key < best_key:
            best, best_key = i, key
    return best


@kernel
def is_faster_with(
    joined: Vacancy,
    alone: Vacancy,
    compute_s: float,
    is_alike: bool,  # noqa: FBT001 - a property of the candidate
    from_previous: float,
    to_next: float,
    closing: float,
) -> bool:
    """Return whether a ring that goes on without a seat would be faster with a candidate on it.

    A GPU of the type of a member counts as no slower than the slowest member: that times were measured at other moments
    is to keep no ring small.

    Args:
        joined: The ring with the seat.
        alone: The ring without it; its other members compute more each.
        compute_s: Of the candidate.
        is_alike: Whether it is of the type of a member.
        from_previous: Bandwidth to the candidate.
        to_next: And from it.
        closing: Bandwidth between the neighbours of the seat, which are linked without it.
    """
    if is_alike:
        compute_s = min(compute_s, joined.rest_compute_s)
    return ring_iteration_s(joined, compute_s, from_previous, to_next) < ring_iteration_s(alone, 0.0, closing, closing)
