"""The steps of one attempt by hand: what is slow, what hangs, and who is to blame."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from longshore.cluster.model.placement import Placement, Share
from longshore.scheduler.backends.local.backend import LocalBackend
from longshore.scheduler.backends.protocol import StepLines
from longshore.scheduler.health.step_monitor import (
    SILENT_POLL_S,
    STEPS_POLL_S,
    RunningAttempt,
    StepMonitor,
    jobs_slow_together,
    nodes_at_fault,
)
from longshore.scheduler.health.step_watch import Begun, Cusum, Slowness, StepKind, StepWatch
from longshore.scheduler.model.job_spec import Watching

TRAIN, CHECKPOINT, OTHER, DONE = StepKind.TRAIN, StepKind.CHECKPOINT, StepKind.OTHER, StepKind.DONE
TWO_NODES: Placement = (Share("a", (0, 1)), Share("b", (0, 1)))


def watch(ranks: int = 1, hang_s: float | None = None) -> StepWatch:
    return StepWatch(ranks, Cusum(), hang_s, 0.0)


def train(it: StepWatch, steps: int, step_s: float = 1.0, begin_s: float = 0.0, first: int = 0) -> float:
    """Let all ranks begin steps, and return when the last of them began."""
    for at in range(steps):
        now_s = begin_s + at * step_s
        it.add_steps([[Begun(TRAIN, first + at, now_s, None)]] * len(it._ranks), now_s)
    return begin_s + (steps - 1) * step_s


@pytest.mark.parametrize(("step_s", "limit_s"), [(0.2, 60.0), (1.0, 60.0), (10.0, 100.0)])
def test_a_step_hangs_after_a_minute_or_ten_of_its_like(step_s: float, limit_s: float) -> None:
    it = watch()
    last_s = train(it, 50, step_s)
    assert it.find_hang(last_s + limit_s - 1.0) is None
    hang = it.find_hang(last_s + limit_s + 1.0)
    assert hang is not None
    assert (hang.rank, hang.kind, hang.step, hang.since_s) == (0, TRAIN, 49, last_s)


def test_a_step_may_take_twice_the_longest_before_it() -> None:
    it = watch()
    last_s = train(it, 2, 100.0)
    last_s = train(it, 50, 1.0, last_s + 100.0, 2)
    assert it.find_hang(last_s + 199.0) is None
    assert it.find_hang(last_s + 201.0) is not None


@pytest.mark.parametrize("kind", [CHECKPOINT, OTHER])
def test_a_step_of_unknown_duration_may_take_a_quarter_of_an_hour(kind: StepKind) -> None:
    it = watch()
    last_s = train(it, 50) + 1.0
    it.add_steps([[Begun(kind, 50, last_s, None)]], last_s)
    assert it.find_hang(last_s + 899.0) is None
    assert it.find_hang(last_s + 901.0) is not None


def test_ranks_that_wait_for_one_that_saves_a_checkpoint_do_not_hang() -> None:
    it = watch(2)
    last_s = train(it, 50) + 1.0
    it.add_steps([[Begun(CHECKPOINT, 50, last_s, None)], [Begun(TRAIN, 50, last_s, None)]], last_s)
    assert it.find_hang(last_s + 899.0) is None


def test_a_job_that_is_done_may_take_as_long_as_it_likes() -> None:
    it = watch(2)
    last_s = train(it, 50) + 1.0
    it.add_steps([[Begun(DONE, 0, last_s, None)]] * 2, last_s)
    assert it.find_hang(last_s + 1e6) is None


def test_without_reports_no_rank_hangs() -> None:
    assert watch().find_hang(1e6) is None


@pytest.mark.parametrize("took_s", [5.0, 840.0])
def test_how_long_a_checkpoint_takes_is_learnt_from_the_one_rank_that_saves(took_s: float) -> None:
    it, now_s = watch(2), 0.0
    for at in range(30):
        both = Begun(TRAIN, at, now_s, None)
        it.add_steps([[both], [both]], now_s)
        now_s += 1.0
        saver, saves = at % 2, Begun(CHECKPOINT, at, now_s, None)  # in turns
        it.add_steps([[saves] if rank == saver else [] for rank in (0, 1)], now_s)
        now_s += took_s
    assert it.step_limit_s(CHECKPOINT) == max(60.0, 10.0 * took_s)


def test_a_rank_that_is_done_is_not_waited_for() -> None:
    it = watch(2)
    last_s = train(it, 50) + 1.0
    it.add_steps([[Begun(DONE, 0, last_s, None)], [Begun(TRAIN, 50, last_s, None)]], last_s)
    for at in range(51, 150):
        last_s += 2.0
        it.add_steps([[], [Begun(TRAIN, at, last_s, None)]], last_s)
    assert it.present_step_s() == 2.0


def test_a_training_step_waits_for_a_rank_that_is_behind() -> None:
    it = watch(2)
    for at in range(50):
        behind = [Begun(TRAIN, at - 3, 2.0 * at, None)] if at >= 3 else []
        it.add_steps([[Begun(TRAIN, at, 1.0 * at, None)], behind], 2.0 * at)
    assert set(it.recent_train_steps_s()[5:]) == {2.0}


def test_a_wrong_clock_makes_no_rank_hang_earlier_or_later() -> None:
    for wrong_s in (-1e6, 1e6):
        it = watch()
        for at in range(50):
            it.add_steps([[Begun(TRAIN, at, 2e6 + at + wrong_s, None)]], float(at))
        assert it.find_hang(49.0 + 59.0) is None
        assert it.find_hang(49.0 + 62.0) is not None


def test_a_step_takes_as_long_as_on_the_slowest_rank() -> None:
    it = watch(2)
    for at in range(30):
        it.add_steps([[Begun(TRAIN, at, at * 1.0, None)], [Begun(TRAIN, at, at * 1.5, None)]], at * 1.5)
    assert it.present_step_s() == 1.5


def test_each_reported_step_counts_as_all_since_the_last_one() -> None:
    it = watch()
    for at in range(30):
        it.add_steps([[Begun(TRAIN, 10 * at, at * 1.0, None)]], at * 1.0)
    assert it.present_step_s() == pytest.approx(0.1)


def slow_after(it: StepWatch, ranks: int, slow: dict[int, float]) -> Slowness:
    """Let steps take 1.5 times as long after 300 of them, by the computing of some ranks."""
    now_s = 0.0
    for at in range(600):
        factor = 1.5 if at >= 300 else 1.0
        computed = [0.5 * (slow.get(rank, 1.0) if at > 300 else 1.0) for rank in range(ranks)]
        it.add_steps([[Begun(TRAIN, at, now_s, computed_s)] for computed_s in computed], now_s)
        now_s += factor
    found = it.check_slowness(now_s)
    assert found is not None
    return found


def test_the_rank_that_computes_longer_is_to_blame_and_not_those_that_wait_for_it() -> None:
    found = slow_after(watch(4), 4, {2: 1.8})
    assert (found.ranks, found.checks) == ((2,), 1)
    assert (found.usual_s, found.present_s) == (1.0, 1.5)
    assert abs(found.since_s - 300.0) <= 5.0


def test_slow_steps_are_returned_once_a_minute() -> None:
    it = watch()
    slow_after(it, 1, {0: 1.5})
    assert it.check_slowness(1e4 - 1.0) is not None
    assert it.check_slowness(1e4 + 50.0) is None
    again = it.check_slowness(1e4 + 60.0)
    assert again is not None
    assert again.checks == 3


@pytest.mark.parametrize(
    ("placement", "ranks", "nodes"),
    [
        (TWO_NODES, (2, 3), {"b"}),
        (TWO_NODES, (1,), {"a"}),
        (TWO_NODES, (0, 1, 2, 3), set()),  # the job itself has changed
        (TWO_NODES, (), set()),  # something else than computing has
        (TWO_NODES, None, set()),
        (TWO_NODES[:1], (0,), {"a"}),
        (TWO_NODES[:1], None, {"a"}),
        (TWO_NODES[:1], (), set()),
    ],
)
def test_nodes_are_to_blame_whose_ranks_compute_longer(
    placement: Placement, ranks: tuple[int, ...] | None, nodes: set[str]
) -> None:
    by_rank = dict(enumerate(share.node for share in placement for _ in share.gpus))
    assert nodes_at_fault(by_rank, ranks) == nodes


def slow(since_s: float, *nodes: str) -> Slowness:
    return Slowness(since_s, 1.0, 1.3, None, 3, frozenset(nodes))


@pytest.mark.parametrize(
    ("others", "ready", "is_shared"),
    [
        ({"b": slow(50.0, "n1"), "c": slow(-50.0, "n2")}, 4, True),
        ({"b": slow(50.0)}, 4, True),
        ({"b": slow(50.0, "n0"), "c": slow(50.0, "n0")}, 3, False),  # all on one node, which is to blame
        ({"b": slow(70.0, "n1"), "c": slow(math.inf, "n2")}, 3, False),  # not at the same time
        ({"b": slow(50.0, "n1")}, 10, False),  # two of ten
        ({}, 1, False),
    ],
)
def test_many_that_become_slow_at_once_have_another_cause_than_a_node(
    others: dict[str, Slowness], ready: int, is_shared: bool  # noqa: FBT001
) -> None:  # fmt: skip
    one = slow(0.0, "n0")
    assert bool(jobs_slow_together(one, {"a": one, **others}, ready)) is is_shared


def test_checkpoints_are_returned_until_they_are_written(tmp_path: Path) -> None:
    monitor = StepMonitor(LocalBackend(tmp_path, {"a": 1}), {})
    running = [RunningAttempt("j", "ls-j-1", (Share("a", (0,)),))]
    saved = tmp_path / "attempts" / "ls-j-1" / "saved-0"
    saved.parent.mkdir()
    reported = []
    for at in range(3):
        with saved.open("a") as file:
            file.write(f"{at} 5.0 - /ckpt/{at}\n")
        found = monitor.poll(running, {"ls-j-1"}, lambda _: Watching(), 100.0 * at, lambda _: nullcontext())
        reported.append([it.step for it in found.saved.get("ls-j-1", [])])
        if at == 1:
            monitor.mark_written()
    assert reported == [[0], [0, 1], [2]]


class Noting(LocalBackend):
    """A backend that notes when it is asked what an attempt tells, of which there is always something."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, {"a": 1})
        self.asked: list[str] = []

    def step_lines(self, name: str, placement: Placement, before: Sequence[StepLines]) -> list[StepLines]:
        self.asked.append(name)
        return [StepLines(b"train 5 100.0\n", b"", 14, 0)]


def test_attempts_that_are_taken_up_together_are_looked_at_by_turns(tmp_path: Path) -> None:
    backend = Noting(tmp_path)
    monitor = StepMonitor(backend, {})
    running = [RunningAttempt(str(job), f"ls-{job}-1", (Share("a", (0,)),)) for job in range(16)]
    asked = []
    for half_s in range(8):
        monitor.poll(
            running, {it.name for it in running}, lambda _: Watching(), 100.0 + half_s / 2.0, lambda _: nullcontext()
        )
        asked.append(len(backend.asked))
    assert asked == list(range(2, 18, 2))


@pytest.mark.parametrize("began_s", [0.5, 3.0, 10.0, 25.0, 100.0, 1000.0])
@pytest.mark.parametrize("set_s", [0.0, -3600.0, 3600.0])
def test_reports_that_begin_late_are_read_as_fast_as_the_silence_was_long(
    tmp_path: Path, began_s: float, set_s: float
) -> None:
    monitor = StepMonitor(LocalBackend(tmp_path, {"a": 1}), {})
    steps = tmp_path / "attempts" / "ls-0-1" / "steps-0"
    steps.parent.mkdir()
    running = [RunningAttempt("0", "ls-0-1", (Share("a", (0,)),))]
    late_s, now_s = 0.0, 10_000.0
    while not monitor.figures:
        if now_s >= 10_000.0 + began_s:
            steps.write_text("train 5 10000.0\n")
        shown_s = now_s + (set_s if now_s > 10_008.0 else 0.0)  # by a clock that is set after some looks
        monitor.poll(running, {"ls-0-1"}, lambda _: Watching(), shown_s, lambda _: nullcontext())
        late_s, now_s = now_s - 10_000.0 - began_s, now_s + 0.25
    most_s = SILENT_POLL_S if set_s > 0.0 else min(max(STEPS_POLL_S, began_s), SILENT_POLL_S)
    assert late_s <= most_s + 0.25


def test_steps_are_read_though_a_clock_is_set_back(tmp_path: Path) -> None:
    backend = Noting(tmp_path)
    monitor = StepMonitor(backend, {})
    running = [RunningAttempt("0", "ls-0-1", (Share("a", (0,)),))]
    for now_s in (10_000.0, 10_004.0, *(6_400.0 + 4.0 * at for at in range(10))):
        found = monitor.poll(running, {"ls-0-1"}, lambda _: Watching(hang_s=30.0), now_s, lambda _: nullcontext())
    assert len(backend.asked) == 12
    assert not found.hangs


@pytest.mark.parametrize("set_s", [3600.0, -3600.0])
@pytest.mark.parametrize("told_before", ["", "train 4 9999.0\n"])
def test_a_clock_that_is_set_between_two_looks_is_no_hang(tmp_path: Path, told_before: str, set_s: float) -> None:
    monitor = StepMonitor(LocalBackend(tmp_path, {"a": 1}), {})
    steps = tmp_path / "attempts" / "ls-0-1" / "steps-0"
    steps.parent.mkdir()
    steps.write_text(told_before)
    running = [RunningAttempt("0", "ls-0-1", (Share("a", (0,)),))]

    def hangs(now_s: float) -> bool:
        watching = Watching(hang_s=60.0)
        return bool(monitor.poll(running, {"ls-0-1"}, lambda _: watching, now_s, lambda _: nullcontext()).hangs)

    assert not hangs(10_000.0)
    steps.write_text(told_before + "train 5 10001.0\n")  # by the clock as it was
    first_s = 10_035.0 + set_s
    hung = [now_s - first_s for now_s in (first_s + 4.0 * at for at in range(20)) if hangs(now_s)]
    assert hung[0] == 64.0


def test_a_step_that_lasts_behind_a_clock_that_was_set_back_hangs_by_the_new_time(tmp_path: Path) -> None:
    monitor = StepMonitor(LocalBackend(tmp_path, {"a": 1}), {})
    steps = tmp_path / "attempts" / "ls-0-1" / "steps-0"
    steps.parent.mkdir()
    steps.write_text("train 5 100.0\n")
    running = [RunningAttempt("0", "ls-0-1", (Share("a", (0,)),))]
    hung = [
        now_s
        for now_s in (10_000.0, 10_004.0, *(6_400.0 + 4.0 * at for at in range(10)))
        if monitor.poll(running, {"ls-0-1"}, lambda _: Watching(hang_s=30.0), now_s, lambda _: nullcontext()).hangs
    ]
    assert hung == [6_432.0, 6_436.0]


def test_slow_steps_are_looked_at_behind_a_clock_that_was_set_back() -> None:
    it = watch()
    slow_after(it, 1, {0: 1.5})
    assert it.check_slowness(-3600.0) is not None
    assert it.check_slowness(-3550.0) is None
    assert it.check_slowness(-3540.0) is not None


class Broken(LocalBackend):
    """A backend with a mistake in it."""

    def step_lines(self, name: str, placement: Placement, before: Sequence[StepLines]) -> list[StepLines]:
        if name == "ls-a-1":
            raise RuntimeError("a mistake")
        return [StepLines()] * (len(before) + 1)


def test_a_bug_of_a_backend_stops_no_other_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    monitor = StepMonitor(Broken(tmp_path, {"a": 2}), {})
    running = [RunningAttempt(job, f"ls-{job}-1", (Share("a", (0,)),)) for job in "ab"]
    for at in range(3):
        assert not any(
            monitor.poll(
                running, {it.name for it in running}, lambda _: Watching(), 100.0 * at, lambda _: nullcontext()
            )
        )
    assert monitor.read_end(running[0]) == ([], False, None)
    assert "ls-a-1" in caplog.text
