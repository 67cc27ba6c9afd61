"""Which ranks compute far longer than the others, and what ranks tell that came while the attempt ran."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.model.placement import Share
from longshore.ring.membership import MIN_EXCESS_S, SLOW_RATIO
from longshore.scheduler.backends.local.backend import LocalBackend
from longshore.scheduler.health.step_monitor import RunningAttempt, StepMonitor, Stragglers, find_stragglers
from longshore.scheduler.health.step_watch import SKIPPED_STEPS, RankStepTimes
from longshore.scheduler.model.job_spec import Watching

COMPUTE_S = st.lists(st.none() | st.floats(1e-4, 100.0), max_size=12)


def times_of(compute_s: Sequence[float | None]) -> list[RankStepTimes]:
    """Return ranks with as many steps as there have to be; None of one that does not tell how long it computes."""
    ranks = [RankStepTimes() for _ in compute_s]
    for rank, computed_s in zip(ranks, compute_s, strict=True):
        for _ in range(SKIPPED_STEPS + 1):
            rank.add(100.0, computed_s)
    return ranks


@pytest.mark.parametrize(
    ("compute_s", "slow"),
    [
        ([0.1, 0.1, 1.0, 0.1], [2]),
        ([0.1, 0.1, 0.29, 0.1], []),
        ([0.1, 1.0], [1]),  # the other of two
        ([0.1, 0.1, 1.0, 1.0], [2, 3]),
        ([0.1, 1.0, 1.0], []),  # most are slow
        ([0.1] * 5 + [1.0, 1.0], [5, 6]),
        ([0.2, 0.1, 0.1], []),  # who has two shards
        ([0.001, 0.009], []),  # a busy machine
        ([1.0, None, None], []),  # nobody tells
        ([None, 0.1, 0.1, 9.0], [3]),
        ([], []),
    ],
)
def test_a_straggler_computes_three_times_as_long_as_the_median_of_the_others(
    compute_s: list[float | None], slow: list[int]
) -> None:
    assert [it.rank for it in find_stragglers(times_of(compute_s), range(len(compute_s)))] == slow


@given(COMPUTE_S)
def test_at_most_half_of_the_ranks_are_stragglers_and_each_is_slower_than_all_that_are_none(
    compute_s: list[float | None],
) -> None:
    found = find_stragglers(times_of(compute_s), range(len(compute_s)))
    reported = [it for it in compute_s if it is not None]
    rest = [it for at, it in enumerate(compute_s) if it is not None and at not in {one.rank for one in found}]
    assert len(found) <= len(reported) / 2
    for it in found:
        assert it.compute_s >= max(SLOW_RATIO * it.others_s, it.others_s + MIN_EXCESS_S) * (1.0 - 1e-9)
        assert it.compute_s >= max(rest)


def test_a_rank_that_ended_is_not_compared() -> None:
    ranks = times_of([0.1, 0.1, 1.0, 1.0, 1.0])
    assert [it.rank for it in find_stragglers(ranks, [0, 1, 2])] == [2]
    assert find_stragglers(ranks, [0, 1]) == []


def test_each_counts_once_after_three_comparisons_in_a_row_and_again_only_if_it_was_none_meanwhile() -> None:
    it, slow, well = Stragglers(0.0), times_of([0.1, 0.1, 1.0]), times_of([0.1, 0.1, 0.1])
    seen = [slow, slow, well, slow, slow, slow, slow, slow, well, slow, slow, slow]
    returned = [bool(it.newly_straggling(ranks, range(3), 61.0 * (at + 1))) for at, ranks in enumerate(seen)]
    assert [at for at, was in enumerate(returned) if was] == [5, 11]
    assert it.newly_straggling(slow, range(3), 61.0 * 12 + 1.0) == []  # not yet


def test_ranks_are_compared_though_a_clock_was_set_back() -> None:
    it, slow = Stragglers(10_000.0), times_of([0.1, 0.1, 1.0])
    assert [len(it.newly_straggling(slow, range(3), 6_400.0 + 61.0 * at)) for at in range(3)] == [0, 0, 1]


def test_ranks_that_came_later_are_read_from_then_on_and_at_the_end(tmp_path: Path) -> None:
    monitor = StepMonitor(LocalBackend(tmp_path, {"a": 1, "b": 1, "c": 1}), {"a": "slow", "b": "fast", "c": "fast"})
    first = RunningAttempt("j", "ls-j-1", (Share("a", (0,)),))
    folder = tmp_path / "attempts" / "ls-j-1"
    folder.mkdir(parents=True)

    def write(rank: int, steps: range, computed_s: float) -> None:
        lines = "".join(f"train {step} {1000.0 + step:.1f} {computed_s}\n" for step in steps)
        (folder / f"steps-{rank}").write_text(lines)

    def look(running: RunningAttempt, now_s: float) -> list[str]:
        found = monitor.poll([running], {"ls-j-1"}, lambda _: Watching(), now_s, lambda _: nullcontext())
        return [it.path for it in found.saved.get("ls-j-1", [])]

    write(0, range(10), 0.1)
    assert look(first, 2000.0) == []
    write(2, range(5, 20), 0.5)
    (folder / "saved-2").write_text("9 1009.0 - /ckpt/9\n")
    later = first._replace(later=("b", "c"))
    assert look(later, 2010.0) == ["/ckpt/9"]
    assert monitor.figures["j"].slowest == "c"
    means_s = {kind: it.mean_s for kind, it in monitor.unrecorded_compute_times(3000.0)["j"].items()}
    assert means_s == pytest.approx({"slow": 0.1, "fast": 0.5})
    assert look(first, 2020.0) == ["/ckpt/9"]  # for a moment nobody can tell who came later
    end = monitor.read_end(later)
    assert ([it.path for it in end.saved], end.step) == (["/ckpt/9"], 19)
