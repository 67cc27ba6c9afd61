"""Checkpoints among events, as pages show them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduler.dashboard.views import MIN_EVENT_LINES, folded_events, page_of_events, with_checkpoints
from longshore.scheduler.store.attempts import SAVED
from longshore.scheduler.store.events import EventRow


def event(seq: int, job: str | None, kind: str = SAVED, number: int | None = 1) -> EventRow:
    return EventRow(seq, kind, "scheduler", 1e9 + seq, job, number, None, "", "", 1, f"step {seq} is saved", None)


def events(text: str) -> list[EventRow]:
    """Return events from words such as a1 (a checkpoint of attempt 1 of job a) and a! (another event of it)."""
    return [
        event(seq, word[0], "job", None) if word.endswith("!") else event(seq, word[0], number=int(word[1:]))
        for seq, word in enumerate(text.split(), start=1)
    ]


@pytest.mark.parametrize(
    ("letters", "lines"),
    [
        ("", []),
        ("a1", [(1, 1)]),
        ("a1 a1 a1", [(3, 3)]),
        ("a1 b1 a1 b1", [(4, 2), (3, 2)]),
        ("a1 a! a1 a1", [(4, 2), (2, 1), (1, 1)]),
        ("a1 a1 a2 a2", [(4, 2), (2, 2)]),
        ("a! a! b!", [(3, 1), (2, 1), (1, 1)]),
    ],
)
def test_checkpoints_of_an_attempt_are_one_line(letters: str, lines: list[tuple[int, int]]) -> None:
    assert [(line.event.seq, line.events) for line in folded_events(events(letters)[::-1])] == lines


def test_a_line_tells_how_many_checkpoints_it_stands_for_and_the_last_of_them() -> None:
    (line,) = folded_events(events("a1 a1 a1")[::-1])
    assert line.cause == "3 checkpoints; the last: step 3 is saved"


@given(st.lists(st.sampled_from(["a1", "a2", "a!", "b1", "b!"]), max_size=900))
def test_pages_hold_every_event_once(words: list[str]) -> None:
    received = events(" ".join(words))[::-1]

    def read(before: int | None) -> list[EventRow]:
        return [each for each in received if before is None or each.seq < before][:MIN_EVENT_LINES]

    counted, before = 0, None
    while True:
        lines, before = page_of_events(read, before)
        counted += sum(line.events for line in lines)
        assert before is None or len(lines) >= MIN_EVENT_LINES
        if before is None:
            break
    assert counted == len(received)


def test_checkpoints_stand_among_the_other_events_of_a_job() -> None:
    others = [event(1, "a", "job", None), event(900, "a", "job", None)]

    lines = with_checkpoints(others, [(event(700, "a"), 650)])

    assert [(line.event.seq, line.events) for line in lines] == [(900, 1), (700, 650), (1, 1)]
