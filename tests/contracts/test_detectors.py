"""What every detector of slow steps must do, whoever wrote it."""

from collections.abc import Callable
from functools import partial

import pytest

from longshore.cluster.files.plugins import registered
from longshore.scheduler.health.detectors import new_detector
from longshore.testing import check_detector


@pytest.mark.parametrize("name", registered("detectors"))
def test_a_detector_says_what_follows_from_the_steps_alone(name: str) -> None:
    check_detector(partial(new_detector, name))


class Never:
    """A detector that is always calm."""

    is_ready, is_slow, slow_steps = True, False, 0

    def tell(self, step_s: float) -> bool:
        return False


class Shy(Never):
    is_ready = False


class Mute(Never):
    def tell(self, step_s: float) -> bool:
        return None  # type: ignore[return-value]


class Contradicting(Never):
    def tell(self, step_s: float) -> bool:
        return step_s > 0.4


class Jumpy(Never):
    """Calls every step slow."""

    def tell(self, step_s: float) -> bool:
        self.is_slow, self.slow_steps = True, 1
        return True


class Hasty(Jumpy):
    is_ready = False


class Uncounted(Jumpy):
    def tell(self, step_s: float) -> bool:
        self.is_slow = True
        return True


class Stuck(Never):
    is_slow = True


class Remembering(Never):
    """Counts the steps of all that were ever made."""

    steps = 0

    def tell(self, step_s: float) -> bool:
        Remembering.steps += 1
        self.is_slow = Remembering.steps % 7 == 0 and step_s > 0.26
        self.slow_steps = int(self.is_slow)
        return self.is_slow


@pytest.mark.parametrize("calm", [Never, Shy])
def test_a_detector_need_not_notice_anything(calm: Callable[[], Never]) -> None:
    check_detector(calm)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (object, "object lacks part of the detector protocol"),
        (Stuck, "a new detector says that steps are slow"),
        (Mute, "`tell` gave None, not True or False"),
        (Contradicting, "`tell` gave True, and `is_slow` is False"),
        (Hasty, "step 0 is slow, and the detector is not ready to say so"),
        (Uncounted, "step 0 is slow, and slow_steps is 0"),
        (Jumpy, "step 0 of equal steps is slow"),
        (Remembering, "a second detector with the same steps says something else"),
    ],
)
def test_the_check_says_what_is_broken(broken: Callable[[], Never], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        check_detector(broken)
