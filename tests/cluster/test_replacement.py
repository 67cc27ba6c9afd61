"""Which GPU takes the seat of one that failed, against figures made by hand and a plain version."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.switching import (
    RING,
    SOURCE,
    Candidates,
    Vacancy,
    choose_replacement,
    compute_times_s,
    iteration_by_formula_s,
)

NAN = math.nan


def candidates(*rows: tuple[float, float, float, float], hazard: float = 0.0) -> Candidates:
    """Return candidates of known compute times: peak in TFLOP/s, bandwidths in GB/s, compute time in seconds."""
    peak, before, after, compute_s = (np.array(column) for column in zip(*rows, strict=True))
    return Candidates(compute_s, compute_s, peak * 1e12, before * 1e9, after * 1e9, np.full(len(rows), hazard))


def times_s(vacancy: Vacancy, among: Candidates, formula: int) -> list[float]:
    return [
        round(iteration_by_formula_s(vacancy, compute_s, before, after, formula), 3)
        for compute_s, before, after in zip(
            among.compute_s, among.from_previous_bytes_per_s, among.to_next_bytes_per_s, strict=True
        )
    ]


def test_the_sources_formula_promises_an_average_that_a_ring_does_not_keep() -> None:
    vacancy = Vacancy(4, 1e9, 1.0, 0.4, 2.5e9)
    a10_v100_a100_t4 = candidates(
        (125, 2.0, 2.5, 0.45), (125, 4.0, 2.0, 0.40), (312, 10, 10, 0.20), (65, 2.5, 2.5, 0.80)
    )

    assert times_s(vacancy, a10_v100_a100_t4, SOURCE) == [0.95, 0.9, 0.3, 1.2]
    assert times_s(vacancy, a10_v100_a100_t4, RING) == [1.2, 1.15, 1.0, 1.4]
    assert choose_replacement(vacancy, a10_v100_a100_t4, SOURCE) == 1  # of the same peak as the first, and faster
    assert choose_replacement(vacancy, a10_v100_a100_t4, RING) == 2


def test_where_nobody_keeps_the_average_the_fastest_is_taken_and_both_directions_of_a_link_count() -> None:
    vacancy = Vacancy(4, 1e9, 0.7, 0.4, 5e9)
    among = candidates((100, 1.0, 1.0, 0.5), (100, 2.0, 1.0, 0.4), (100, 0.5, 4.0, 0.2))

    assert times_s(vacancy, among, SOURCE) == [1.5, 1.4, 2.2]
    assert times_s(vacancy, among, RING) == [2.0, 1.9, 3.4]
    assert choose_replacement(vacancy, among, SOURCE) == choose_replacement(vacancy, among, RING) == 1


def test_a_missing_record_costs_a_strong_gpu_its_seat_unless_the_efficiency_of_others_is_used() -> None:
    recorded_s, peak = np.array([NAN, 0.076]), np.array([312e12, 990e12])
    vacancy, link = Vacancy(4, 1e9, 0.7, 0.0, math.inf), np.full(2, 2e9)

    found = []
    for formula in (SOURCE, RING):
        usual_s, sure_s = compute_times_s(recorded_s, peak, 30e12, [(0.076, 990e12)], formula)
        among = Candidates(usual_s, sure_s, peak, link, link, np.zeros(2))
        found.append((usual_s.round(3).tolist(), choose_replacement(vacancy, among, SOURCE)))

    assert found == [([0.096, 0.076], 0), ([0.241, 0.076], 1)]


def test_without_a_record_an_efficiency_of_two_fifths_changes_the_times_by_both_formulas() -> None:
    vacancy = Vacancy(4, 1e9, 0.7, 0.0, math.inf)
    by_peak = candidates((312, 2.0, 2.0, 30 / 312), (990, 2.0, 2.0, 0.076))
    by_efficiency = candidates((312, 2.0, 2.0, 30 / (312 * 0.4)), (990, 2.0, 2.0, 0.076))

    assert times_s(vacancy, by_peak, SOURCE) == [0.596, 0.576]
    assert times_s(vacancy, by_efficiency, SOURCE) == [0.74, 0.576]
    assert times_s(vacancy, by_peak, RING) == [0.846, 0.826]
    assert times_s(vacancy, by_efficiency, RING) == [0.99, 0.826]


def test_without_any_record_a_type_reaches_two_fifths_of_its_peak() -> None:
    usual_s, sure_s = compute_times_s(np.array([NAN]), np.array([100e12]), 10e12, [], RING)
    assert usual_s == sure_s == pytest.approx(0.25)


def test_a_type_without_record_may_turn_out_as_slow_as_the_least_of_the_others() -> None:
    usual_s, sure_s = compute_times_s(
        np.array([NAN, 0.5]), np.array([100e12, 50e12]), 10e12, [(0.5, 50e12), (0.2, 100e12), (0.1, 125e12)], RING
    )
    assert usual_s.tolist() == pytest.approx([0.2, 0.5])
    assert sure_s.tolist() == pytest.approx([0.25, 0.5])


def test_a_ring_of_one_has_no_links_and_no_candidate_is_none() -> None:
    alone = Vacancy(1, 1e9, 1.0, 0.0, math.inf)
    among = candidates((100, 1.0, 1.0, 0.5))
    assert times_s(alone, among, RING) == [0.5]
    assert choose_replacement(alone, Candidates(*(np.zeros(0) for _ in Candidates._fields)), RING) == -1


def test_with_a_record_nobody_need_tell_the_flops_of_an_iteration() -> None:
    recorded_s, peak, records = np.array([NAN, 0.5]), np.array([100e12, 50e12]), [(0.5, 50e12)]
    known = compute_times_s(recorded_s, peak, 10e12, records, RING)
    unknown = compute_times_s(recorded_s, peak, NAN, records, RING)
    assert [it.tolist() for it in known] == [it.tolist() for it in unknown] == [[0.25, 0.5], [0.25, 0.5]]


@pytest.mark.parametrize("formula", [SOURCE, RING])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_who_cannot_be_reckoned_or_reached_is_taken_only_if_there_is_nobody_else(formula: int, place: int) -> None:
    vacancy, good = Vacancy(4, 1e9, 0.1, 0.4, 5e9), [(100.0, 1.0, 1.0, 0.5), (100.0, 2.0, 1.0, 0.4)]
    usual_s, sure_s = compute_times_s(np.array([NAN]), np.array([1e12]), NAN, [], formula)
    assert usual_s.tolist() == sure_s.tolist() == [math.inf]
    for bad in ((1.0, 9.0, 9.0, math.inf), (1.0, 0.0, 9.0, 0.1), (1.0, 9.0, 0.0, 0.1)):
        rows = [*good[:place], bad, *good[place:]]
        assert rows[choose_replacement(vacancy, candidates(*rows), formula)] == good[1]
        assert choose_replacement(vacancy, candidates(bad), formula) == 0


FEW = st.sampled_from([0.25, 0.5, 1.0, 2.0])  # so that many are equal


@given(
    st.lists(st.tuples(FEW, FEW, FEW, FEW, FEW, FEW), min_size=1, max_size=6),
    st.integers(1, 4), FEW, FEW, FEW, st.sampled_from([SOURCE, RING]),
)  # fmt: skip
def test_the_choice_is_the_least_by_a_plain_key(
    rows: list[tuple[float, ...]], seats: int, average_s: float, rest_s: float, rest_link: float, formula: int
) -> None:
    vacancy = Vacancy(seats, 0.5, average_s, rest_s, rest_link)

    def plain_s(compute_s: float, before: float, after: float) -> float:
        if formula == SOURCE:
            return max(0.5 / before, 0.5 / after) + compute_s
        passes = 2 * (seats - 1) / seats
        return max(rest_s, compute_s) + passes * 0.5 / min(rest_link, before, after)

    def key(i: int) -> tuple[float, ...]:
        compute_s, later_s, peak, before, after, hazard = rows[i]
        time_s = plain_s(compute_s, before, after)
        if plain_s(compute_s + later_s, before, after) <= average_s:
            return (0, peak, time_s, hazard, i)
        return (1, time_s, peak, hazard, i)

    compute_s, later_s, *others = (np.array(column) for column in zip(*rows, strict=True))
    peak, before, after, hazard = others
    among = Candidates(compute_s, compute_s + later_s, peak, before, after, hazard)

    assert choose_replacement(vacancy, among, formula) == min(range(len(rows)), key=key)
