"""Random rings that lost a member, and how often the choice of its replacement keeps what it promises.

A ring has 4 to 16 members of five types, and 3 to 12 candidates. Links are all about equal, of two kinds, or anything
between. Two or three of the five types have a record; each type reaches between 0.25 and 0.55 of its peak. The truth is
the iteration time of the whole ring. So what is measured of the formula `ring` is what missing records cost it.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longshore.cluster.switching import (
    FORMULAS,
    RING,
    Candidates,
    Vacancy,
    choose_replacement,
    compute_times_s,
    ring_iteration_s,
)

from .harness import Row

RINGS = 10_000
PEAK_FLOPS = np.array([65.0, 125.0, 125.0, 312.0, 990.0]) * 1e12  # T4, A10, V100, A100, H100
LEAST_KEPT = 99.5  # percent

Floats = NDArray[np.float64]


class Lost(NamedTuple):
    """A ring that lost a member, and its candidates."""

    vacancy: Vacancy
    compute_s: Floats  # of each type, in truth
    demand_flops: float
    has_record: NDArray[np.bool_]  # of each type
    types: NDArray[np.int64]  # of the candidates
    links: tuple[Floats, Floats]  # of the candidates

    def among(self, formula: int) -> Candidates:
        """Return the candidates as a formula takes them."""
        peak = PEAK_FLOPS[self.types]
        recorded_s = np.where(self.has_record[self.types], self.compute_s[self.types], np.nan)
        records = [(float(self.compute_s[i]), float(PEAK_FLOPS[i])) for i in np.flatnonzero(self.has_record)]
        usual_s, sure_s = compute_times_s(recorded_s, peak, self.demand_flops, records, formula)
        return Candidates(usual_s, sure_s, peak, *self.links, np.zeros(peak.size))

    def times_s(self) -> Floats:
        """Return the iteration time of the ring with each candidate in it, in truth."""
        rows = zip(self.compute_s[self.types], *self.links, strict=True)
        return np.array([ring_iteration_s(self.vacancy, *row) for row in rows])


def random_ring(rng: np.random.Generator) -> Lost:
    """Return a ring whose first member failed."""
    demand_flops, volume = rng.uniform(1e12, 1e14), rng.uniform(0.25e9, 4e9)
    compute_s = demand_flops / (PEAK_FLOPS * rng.uniform(0.25, 0.55, PEAK_FLOPS.size))
    seats, count, kind = int(rng.integers(4, 17)), int(rng.integers(3, 13)), int(rng.integers(3))

    def links(how_many: int) -> Floats:
        if kind == 0:
            return rng.uniform(9e9, 11e9, how_many)
        if kind == 1:
            return rng.choice([1.2e9, 12e9], how_many) * rng.uniform(0.9, 1.1, how_many)
        return np.exp(rng.uniform(np.log(0.5e9), np.log(25e9), how_many))

    members, own = rng.integers(0, PEAK_FLOPS.size, seats), links(seats)  # own[i]: from member i - 1 to member i
    whole = Vacancy(seats, volume, 0.0, float(compute_s[members].max()), float(own.min()))
    average_s = ring_iteration_s(whole, 0.0, np.inf, np.inf)
    rest = Vacancy(seats, volume, average_s, float(compute_s[members[1:]].max()), float(own[2:].min()))
    has_record = np.zeros(PEAK_FLOPS.size, dtype=np.bool_)
    has_record[rng.permutation(PEAK_FLOPS.size)[: rng.integers(2, 4)]] = True
    types = rng.integers(0, PEAK_FLOPS.size, count)
    return Lost(rest, compute_s, demand_flops, has_record, types, (links(count), links(count)))


def measure_choices() -> Iterator[Row]:
    """Choose in RINGS rings by each formula, and yield what came of it."""
    rng = np.random.default_rng(20)
    lost = [random_ring(rng) for _ in range(RINGS)]
    times = [ring.times_s() for ring in lost]
    could = np.array([(time_s <= ring.vacancy.average_s).any() for ring, time_s in zip(lost, times, strict=True)])
    for name, formula in FORMULAS.items():
        chosen = [choose_replacement(ring.vacancy, ring.among(formula), formula) for ring in lost]
        took_s = np.array([time_s[i] for time_s, i in zip(times, chosen, strict=True)])
        kept = took_s <= np.array([ring.vacancy.average_s for ring in lost])
        slower = took_s / np.array([time_s.min() for time_s in times]) - 1.0
        least = LEAST_KEPT if formula == RING else None
        yield Row(f"average kept where a candidate could, {name}", 100.0 * float(kept[could].mean()), "%", least=least)
        yield Row(f"slower than the fastest choice, {name}", 100.0 * float(slower.mean()), "%")
