"""What every detector of slow steps must do (longshore.scheduler.health.detectors)."""

from collections.abc import Callable, Sequence

import numpy as np

from ..scheduler.health.detectors import Detector

STEPS = 1500  # more than a detector may want to see before it says anything
ODD_S = (1e-9, 1e11, 1.0, 1e-9, 1e-9, 1e11, 1e11, 0.3)  # a clock that was set back or forward ends in such times


def check_detector(make: Callable[[], Detector]) -> None:
    """Check a detector of slow steps.

    A new one has seen nothing, and says that nothing is slow. What it says follows from the steps that it was told, and
    from nothing else: no clock, no randomness, and no other detector. Equal steps are never slow. No step time above 0
    is too odd for it. It need not notice anything: how well it does is measured (benchmarks/steps.py).

    Args:
        make: Gives a new one; what is registered.

    Raises:
        AssertionError: Saying what is broken.
    """
    made = make()
    assert isinstance(made, Detector), f"{type(made).__name__} lacks part of the detector protocol"
    assert made.is_slow is False, "a new detector says that steps are slow"
    assert made.slow_steps == 0, "a new detector has seen slow steps"
    rng = np.random.default_rng(0)
    noisy = (0.3 * rng.lognormal(0.0, 0.15, STEPS) * np.where(np.arange(STEPS) < 1000, 1.0, 1.5)).tolist()
    for took_s in (noisy, list(ODD_S) * 100):
        _check_same(_told(make(), took_s), make, took_s)
    slow = _told(make(), [0.25] * STEPS)
    assert not any(slow), f"step {slow.index(True)} of equal steps is slow" if any(slow) else ""


def _told(detector: Detector, took_s: Sequence[float]) -> list[bool]:
    """Return what a detector says of each step; it must fit what it says of itself."""
    said = []
    for step, step_s in enumerate(took_s):
        slow = detector.tell(step_s)
        assert type(slow) is bool, f"`tell` gave {slow!r}, not True or False"
        assert slow is detector.is_slow, f"step {step}: `tell` gave {slow}, and `is_slow` is {detector.is_slow}"
        assert 0 <= detector.slow_steps <= step + 1, f"step {step}: slow_steps is {detector.slow_steps}"
        assert detector.slow_steps > 0 or not slow, f"step {step} is slow, and slow_steps is 0"
        assert detector.is_ready or not slow, f"step {step} is slow, and the detector is not ready to say so"
        said.append(slow)
    return said


def _check_same(said: Sequence[bool], make: Callable[[], Detector], took_s: Sequence[float]) -> None:
    """A second detector that is told the same steps, beside a third that is told others, says the same."""
    again, other = make(), make()
    for step, step_s in enumerate(took_s):
        other.tell(2.0 * step_s)
        differs = again.tell(step_s) is not said[step]
        assert not differs, f"step {step}: a second detector with the same steps says something else"
