from longshore.scheduler.dashboard.charts import MAX_GANTT_LINES, gantt_chart
from longshore.scheduler.store.events import EventRow


def event(seq: int, kind: str, was: str, now: str, at_s: float, number: int | None = None) -> EventRow:
    return EventRow(seq, kind, "scheduler", at_s, "x", number, 1, was, now, 1, "", None)


def attempt(number: int, at_s: float, lasts_s: float = 10.0) -> list[EventRow]:
    """Return the events of an attempt that starts for 2 s, runs, and drains for 1 s."""
    end_s = at_s + lasts_s
    return [
        event(1, "job", "queued", "starting", at_s),
        event(2, "attempt", "", "reserved", at_s, number),
        event(3, "attempt", "reserved", "launched", at_s + 1.0, number),
        event(4, "attempt", "launched", "running", at_s + 2.0, number),
        event(5, "job", "starting", "running", at_s + 2.0),
        event(6, "attempt", "running", "draining", end_s - 1.0, number),
        event(7, "job", "running", "stopping", end_s - 1.0),
        event(8, "attempt", "draining", "released", end_s, number),
    ]


SUBMITTED = event(0, "job", "", "queued", 100.0)


def test_phases_stand_where_they_were_on_the_axis() -> None:
    events = [SUBMITTED, *attempt(1, 110.0), event(9, "job", "stopping", "succeeded", 120.0)]

    picture = gantt_chart(events, now_s=1000.0)

    assert [line.label for line in picture.lines] == ["queue", "attempt 1"]
    queue, first = (line.bars for line in picture.lines)
    assert [(bar.phase, bar.x, bar.width) for bar in queue] == [("waiting", 0.0, 50.0)]
    assert [(bar.phase, bar.x, bar.took_s) for bar in first] == [
        ("starting", 50.0, 1.0), ("starting", 55.0, 1.0), ("running", 60.0, 7.0), ("draining", 95.0, 1.0),
    ]  # fmt: skip


def test_a_job_that_is_tried_again_waits_between_its_attempts() -> None:
    events = [
        SUBMITTED, *attempt(1, 110.0), event(9, "job", "stopping", "queued", 120.0), *attempt(2, 130.0),
        event(10, "job", "stopping", "failed", 140.0),
    ]  # fmt: skip

    queue, first, second = gantt_chart(events, now_s=1000.0).lines

    assert [(bar.x, bar.took_s) for bar in queue.bars] == [(0.0, 10.0), (50.0, 10.0)]
    assert first.bars[-1].x + first.bars[-1].width == 50.0
    assert second.bars[-1].x + second.bars[-1].width == 100.0


def test_what_goes_on_reaches_to_the_present() -> None:
    picture = gantt_chart([SUBMITTED, *attempt(1, 110.0)[:5]], now_s=200.0)

    assert picture.lines[1].bars[-1] == ("running", 12.0, 88.0, 88.0)


def test_a_job_that_waits_has_a_line_for_the_queue_alone() -> None:
    (line,) = gantt_chart([SUBMITTED], now_s=130.0).lines

    assert [(bar.phase, bar.width, bar.took_s) for bar in line.bars] == [("waiting", 100.0, 30.0)]


def test_a_wish_changes_no_phase() -> None:
    body = event(3, "desired", "run", "cancel", 105.0)

    assert gantt_chart([SUBMITTED, body], now_s=130.0) == gantt_chart([SUBMITTED], now_s=130.0)


def test_of_many_attempts_the_last_are_drawn() -> None:
    events = [SUBMITTED]
    for number in range(1, MAX_GANTT_LINES + 4):
        events += [
            *attempt(number, 100.0 + 20.0 * number),
            event(9, "job", "stopping", "queued", 110.0 + 20.0 * number),
        ]

    picture = gantt_chart(events, now_s=1000.0)

    assert picture.left_out == 3
    assert [line.label for line in picture.lines][:2] == ["queue", "attempt 4"]


def test_ticks_are_round_and_few() -> None:
    picture = gantt_chart([SUBMITTED], now_s=100.0 + 3 * 3600.0)

    assert [tick.label for tick in picture.ticks] == ["0 s", "30 min", "1 h", "1 h 30 min", "2 h", "2 h 30 min", "3 h"]
    assert picture.ticks[-1].x == 100.0


def test_a_job_without_events_has_no_picture() -> None:
    assert gantt_chart([], now_s=1.0).lines == ()
