"""Detectors of slow steps against plain versions of them, and the bars that the default has to meet."""

import math
import statistics
from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.step_times import NOISES, Noise, step_times
from benchmarks.steps import BARS, CORRELATED_BAR, FALSE_BAR, figures_of
from longshore.scheduler.health.step_watch import DETECTORS, Cusum, mad_rule
from longshore.scheduler.model.job_spec import DetectorName, JobFile, Watching, stored_job

ODD_S = (1e-9, 1e11, 1.0, 1e-9, 1e-9, 1e11, 1e11, 0.3)  # step times if a clock is set back or forward
STEPS = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=130)
Plain = Callable[[list[float]], bool]  # whether the last of these steps, with all before, is slow


def plain_cusum(took_s: list[float]) -> list[bool]:
    """Return for each step whether steps are slow, word for word as it is defined."""
    flags, total, slow, k = list[bool](), 0.0, False, math.log(1.3) / 2
    calm: list[float] = []
    b = h = math.nan
    for number, step_s in enumerate(took_s):
        x = math.log(step_s)
        has_reference = number >= 220
        if has_reference:
            total = min(max(0.0, total + min(max(x - b, -0.5), 0.5) - k), 1.5 * h)
            slow = total > h or (slow and total >= h / 2)
        if number >= 20 and (not has_reference or total < h / 2):
            calm.append(x)
            if len(calm) % 200 == 0:
                reference = calm[-1000:]
                b = statistics.median(reference)
                s = 1.4826 * statistics.median(abs(value - b) for value in reference)
                clipped = np.clip(np.array(reference) - b, -0.5, 0.5)
                rho = min(max(float(np.corrcoef(clipped[1:], clipped[:-1])[0, 1]), 0.0), 0.9)
                h = max(1.0, 1.3 * math.log(10**6) * s**2 * (1 + rho) / (1 - rho) / (2 * k))
        flags.append(slow)
    return flags


@pytest.mark.parametrize("noise", NOISES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_the_default_follows_its_definition(noise: Noise, seed: int) -> None:
    took_s = step_times(1500, noise, np.random.default_rng(seed), slow_from=900).tolist()
    detector = Cusum()
    flags, plain = [detector.update(step_s) for step_s in took_s], plain_cusum(took_s)
    assert any(plain)
    # The correlation is estimated a little differently, so a flag may come or go a few steps earlier.
    assert sum(one is not other for one, other in zip(flags, plain, strict=True)) <= 6


def window(took_s: list[float]) -> list[float]:
    return took_s[:-1][-50:]


def over_median(factor: float) -> Plain:
    return lambda took_s: len(took_s) > 50 and took_s[-1] > factor * statistics.median(window(took_s))


def over_deviations(took_s: list[float]) -> bool:
    if len(took_s) <= 50:
        return False
    middle = statistics.median(window(took_s))
    return took_s[-1] - middle > 3 * 1.4826 * statistics.median(abs(it - middle) for it in window(took_s))


def in_a_row(plain: Plain, needed: int) -> Plain:
    return lambda took_s: all(plain(took_s[: len(took_s) - back]) for back in range(needed))


PLAIN: dict[str, Plain] = {
    "median_k": over_median(1.25),
    "in_a_row": in_a_row(over_median(1.2), 2),
    "mad": in_a_row(over_deviations, 2),
    "patent_mean": lambda took_s: len(took_s) > 1 and took_s[-1] > 2 * statistics.fmean(took_s[:-1]) * (1 + 1e-12),
    "patent_literal": lambda took_s: len(took_s) > 1 and took_s[-1] > 2 * len(took_s) * math.fsum(took_s[:-1]),
}


@pytest.mark.parametrize("name", PLAIN)
@given(took_s=STEPS)
def test_a_simple_rule_follows_its_definition(name: str, took_s: list[float]) -> None:
    detector = DETECTORS[name]()
    flags = [detector.update(step_s) for step_s in took_s]
    assert flags == [PLAIN[name](took_s[: at + 1]) for at in range(len(took_s))]


@given(STEPS, st.floats(0.01, 100.0))
def test_a_moving_mean_takes_a_step_for_slow_only_above_it(took_s: list[float], last_s: float) -> None:
    detector = DETECTORS["ewma"]()
    for step_s in took_s:
        detector.update(step_s)
    if detector.update(last_s):
        assert len(took_s) >= 50
        assert last_s > min(took_s)


@pytest.mark.parametrize("name", DETECTORS)
@given(st.lists(st.floats(1e-9, 1e11), max_size=500))
def test_no_step_time_is_too_odd_for_a_detector(name: str, took_s: list[float]) -> None:
    detector = DETECTORS[name]()
    for step_s in took_s:
        assert detector.update(step_s) is detector.is_slow


def test_steps_that_are_all_the_same_are_never_slow_and_twice_as_long_ones_are_at_once() -> None:
    detector = Cusum()
    assert not any(detector.update(1.0) for _ in range(5000))
    assert any(detector.update(2.0) for _ in range(4))


def test_a_lasting_slowness_stays_one() -> None:
    rng, detector = np.random.default_rng(1), Cusum()
    flags = [detector.update(step_s) for step_s in step_times(2500, Noise(0.15), rng, slow_from=1000).tolist()]
    assert all(flags[1100:])


@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_the_default_meets_its_bars_on_a_few_runs(noise: Noise) -> None:
    found = figures_of(Cusum, noise, runs=8)
    assert found.delay <= (CORRELATED_BAR if noise.rho else BARS[noise.sigma]) * 1.25
    assert (found.false_alarms <= FALSE_BAR, found.missed) == (True, 0)


def test_no_simple_rule_with_so_few_false_alarms_finds_a_slow_node_in_noise() -> None:
    found = figures_of(lambda: mad_rule(3), Noise(0.3), runs=8)
    assert found.missed >= 6


def test_job_files_name_all_detectors() -> None:
    assert get_args(DetectorName) == (*DETECTORS, "off")


@pytest.mark.parametrize("name", [*DETECTORS, "off"])
def test_a_job_file_knows_every_detector_by_its_name(name: str) -> None:
    assert JobFile.model_validate({"command": ["x"], "health": {"slow": name}}).health.watching().slow == name


def test_a_stored_job_whose_detector_does_not_exist_has_the_default() -> None:
    assert stored_job({"command": ["x"], "health": {"slow": "doubled"}}).health.watching() == Watching()


@pytest.mark.parametrize("name", DETECTORS)
@pytest.mark.parametrize("times", ["noisy", "odd"])
def test_the_flags_of_a_detector_agree_and_follow_from_the_steps_alone(name: str, times: str) -> None:
    rng = np.random.default_rng(0)
    noisy = (0.3 * rng.lognormal(0.0, 0.15, 1500) * np.where(np.arange(1500) < 1000, 1.0, 1.5)).tolist()
    detector, second, other = (DETECTORS[name]() for _ in range(3))
    assert (detector.is_slow, detector.slow_steps) == (False, 0)
    for step, step_s in enumerate(ODD_S * 100 if times == "odd" else noisy):
        other.update(2.0 * step_s)
        slow = detector.update(step_s)
        assert type(slow) is bool
        assert slow is detector.is_slow is second.update(step_s)
        assert 0 <= detector.slow_steps <= step + 1
        assert not slow or (detector.is_ready and detector.slow_steps > 0)


@pytest.mark.parametrize("name", DETECTORS)
def test_equal_steps_are_never_slow(name: str) -> None:
    detector = DETECTORS[name]()
    assert not any(detector.update(0.25) for _ in range(1500))
