"""Where the last lines of an output begin."""

import re
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from longshore.scheduler.api.logs import EVERY_LINE, with_rank_prefix
from longshore.scheduler.logs import BLOCK_BYTES, Read, tail_offset

WHOLE = 1 << 30
OUTPUTS = st.lists(st.sampled_from([b"", b"x", b"loss 0.31", b"y" * 40_000]), max_size=30).flatmap(
    lambda lines: st.sampled_from([b"\n".join(lines), b"\n".join([*lines, b""])])
)


def reading(output: bytes, begins: int = 0) -> Read:
    """Return what reads an output as a backend does, whose beginning was given back."""

    def read(offset: int, most: int) -> tuple[bytes, int]:
        begin = max(offset, begins)
        data = output[begin : begin + most]
        return data, begin + len(data) if data else offset

    return read


@given(OUTPUTS, st.integers(0, 40))
@example(b"a\nb\nc", 2)
@example(b"a\nb\nc\n", 2)
@example(b"\n\n\n", 2)
def test_the_last_lines_are_those_that_splitting_all_of_it_gives(output: bytes, lines: int) -> None:
    whole = re.findall(rb"[^\n]*\n|[^\n]+", output)
    expected = b"".join(whole[-lines:] if lines else [])
    assert output[tail_offset(reading(output), lines, WHOLE) :] == expected


@given(OUTPUTS, st.integers(1, 40), st.integers(1, 3 * BLOCK_BYTES))
def test_they_are_at_most_a_number_of_bytes_and_begin_with_a_line(output: bytes, lines: int, most: int) -> None:
    offset = tail_offset(reading(output), lines, most)
    assert len(output) - offset <= most
    begins_a_line = offset in (0, len(output)) or output[offset - 1 : offset] == b"\n"
    assert begins_a_line or b"\n" not in output[-most:]


@pytest.mark.parametrize("lines", [100_000, EVERY_LINE])
def test_a_million_empty_lines_are_not_looked_at_one_by_one(lines: int) -> None:
    output, steps = b"\n" * (1 << 20), 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    before = sys.getprofile()
    sys.setprofile(count)  # called for each call, of functions in C too
    try:
        offset = tail_offset(reading(output), lines, WHOLE)
        text = with_rank_prefix(3, output[offset:])
    finally:
        sys.setprofile(before)

    assert steps < 1000
    assert (offset, text) == (max(0, len(output) - lines), "[3] \n" * min(lines, len(output)))


@given(st.integers(1, 20))
def test_what_was_given_back_is_no_line(lines: int) -> None:
    output = b"old\n" * 1000 + b"new\n" * 3
    offset = tail_offset(reading(output, begins=4000), lines, WHOLE)
    assert output[max(offset, 4000) :] == b"new\n" * min(lines, 3)
