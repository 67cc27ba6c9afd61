"""Tables of the command line."""

from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduler.commands.options import MIN_COLUMN_CHARACTERS, TableColumn, table_lines

COLUMNS = (TableColumn("JOB"), TableColumn("GPUS", right=True), TableColumn("REASON", gives=True))
ROWS = [("0123456789", "4", "it asks for 4 GPUs, and 2 are free"), ("b", "128", "")]


def test_a_table_that_is_piped_is_whole() -> None:
    assert table_lines(COLUMNS, ROWS, None) == [
        "JOB         GPUS  REASON",
        "0123456789     4  it asks for 4 GPUs, and 2 are free",
        "b            128",
    ]


def test_only_a_column_that_gives_is_cut_to_the_terminal_and_says_so() -> None:
    assert table_lines(COLUMNS, ROWS, 36)[1] == "0123456789     4  it asks for 4 GPU…"


def test_what_would_steer_a_terminal_is_left_out() -> None:
    assert table_lines(COLUMNS, [("a", "1", "\x1b[31mred\nnext\tend")], None)[1] == "a       1  [31mred next end"


@given(st.lists(st.tuples(st.text(max_size=30), st.text(max_size=5), st.text(max_size=200))), st.integers(1, 200))
def test_no_line_is_wider_than_the_terminal_where_the_columns_allow_it(
    rows: list[tuple[str, str, str]], width: int
) -> None:
    whole = table_lines(COLUMNS, rows, None)
    cut = table_lines(COLUMNS, rows, width)
    least = (
        max(len(line) for line in table_lines(COLUMNS[:2], [row[:2] for row in rows], None)) + 2 + MIN_COLUMN_CHARACTERS
    )
    fixed = [max([len(COLUMNS[at].title), *(len(row[at]) for row in rows)]) for at in (0, 1)]
    assert len(cut) == len(whole)
    assert max(map(len, cut)) <= max(width, least, sum(fixed) + 4 + MIN_COLUMN_CHARACTERS)
