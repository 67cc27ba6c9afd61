"""Output of jobs as a page shows it."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduler.dashboard.views import SHOWN_OUTPUT_BYTES, OutputPart, last_part, part_after, plain_text
from longshore.scheduler.logs import Read


def reading(output: bytes) -> Read:
    """Return what reads an output as a backend does."""
    return lambda offset, most: (
        output[offset : offset + most],
        min(len(output), offset + most) if offset < len(output) else offset,
    )


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("\x1b[32mok\x1b[0m", "ok"),
        ("\x1b[38;5;214mwarm\x1b[m \x1b[1;4mbold\x1b[22m", "warm bold"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]8;;https://example.org\x1b\\a link\x1b]8;;\x1b\\", "a link"),
        ("\x1bP1$r0m\x1b\\after", "after"),
        ("\x9b31mred", "red"),
        ("\x1b(Bplain\x1b7\x1b8", "plain"),
        ("10 %\r20 %\r30 %\n", "30 %\n"),
        ("10 %\r20 %\r", "20 %\n"),
        ("\r30 %", "\n30 %"),
        ("\x1b]never ends\nmore", "\nmore"),
        ("dos\r\nlines\r\n", "dos\nlines\n"),
        ("a\x08b\x00c\x07d", "abcd"),
        ("left\u202eright", "leftright"),
        ("tab\tstays\n", "tab\tstays\n"),
    ],
)
def test_escape_sequences_and_control_characters_are_gone(written: str, shown: str) -> None:
    assert plain_text(written) == shown


@given(st.text())
def test_nothing_but_text_tabs_and_newlines_is_ever_shown(written: str) -> None:
    assert not [each for each in plain_text(written) if unicodedata.category(each) == "Cc" and each not in "\t\n"]


@given(st.text(alphabet=st.characters(exclude_categories=("Cc", "Cf", "Cs"), include_characters="\n\t")), st.data())
def test_output_that_is_followed_in_parts_is_shown_as_it_would_be_in_one(written: str, data: st.DataObject) -> None:
    output = written.encode()
    shown, offset = "", 0
    for end in sorted(data.draw(st.lists(st.integers(0, len(output)), max_size=5))):
        part = part_after(reading(output[:end]), offset, is_over=False)
        shown, offset = shown + part.text, part.offset

    assert shown + part_after(reading(output), offset, is_over=True).text == written


def test_an_escape_sequence_that_is_cut_off_is_held_back_until_it_is_whole() -> None:
    output = b"step 1\n\x1b[32mok\x1b[0m\n"
    first = part_after(reading(output[:10]), 0, is_over=False)

    assert first == OutputPart("step 1\n", 7)
    assert part_after(reading(output), first.offset, is_over=False).text == "ok\n"


def test_the_rest_of_an_output_that_is_over_is_shown_even_if_it_is_cut_off() -> None:
    assert part_after(reading(b"caf\xc3"), 0, is_over=True) == OutputPart("caf\ufffd", 4)


def test_a_short_output_is_shown_as_a_whole() -> None:
    assert last_part(reading(b"a\nb\n"), is_over=True) == OutputPart("a\nb\n", 4)


@given(st.integers(SHOWN_OUTPUT_BYTES, 40 * SHOWN_OUTPUT_BYTES))
def test_of_a_long_output_its_last_lines_are_shown(size: int) -> None:
    output = b"".join(b"%09d\n" % line for line in range(size // 10))

    part = last_part(reading(output), is_over=True)

    assert part.offset == len(output)
    assert output.decode().endswith("\n" + part.text) or not part.is_cut
    assert min(len(output) - 20, SHOWN_OUTPUT_BYTES - 20) <= len(part.text) <= 3 * SHOWN_OUTPUT_BYTES
