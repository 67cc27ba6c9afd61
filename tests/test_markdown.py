"""Pages that benchmarks write are wrapped."""

from benchmarks.markdown import wrapped


def test_prose_is_wrapped_and_tables_headings_and_code_are_left_whole() -> None:
    row, command = f"| {'word ' * 40}|", "`make bench-learning SEEDS=3`"
    page = wrapped(["# " + "word " * 40, "", "- " + "word " * 22 + command + " end", "", row])
    assert page.splitlines() == [
        "# " + "word " * 40, "", "- " + ("word " * 22).strip(), f"  {command} end", "", row
    ]  # fmt: skip


def test_no_line_of_prose_begins_as_a_list_would() -> None:
    page = wrapped(["x" * 117 + " - a 95 % interval " + "y" * 100])
    assert page.splitlines() == ["x" * 117 + " -", "a 95 % interval " + "y" * 100]
