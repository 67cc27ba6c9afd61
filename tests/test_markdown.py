"""Parts of pages that benchmarks write: they are wrapped, and stand between markers."""

from pathlib import Path

from benchmarks.markdown import wrapped, write_part


def test_prose_is_wrapped_and_tables_headings_and_code_are_left_whole() -> None:
    row, command = f"| {'word ' * 40}|", "`make bench-learning SEEDS=3`"
    page = wrapped(["# " + "word " * 40, "", "- " + "word " * 22 + command + " end", "", row])
    assert page.splitlines() == [
        "# " + "word " * 40, "", "- " + ("word " * 22).strip(), f"  {command} end", "", row
    ]  # fmt: skip


def test_no_line_of_prose_begins_as_a_list_would() -> None:
    page = wrapped(["x" * 117 + " - a 95 % interval " + "y" * 100])
    assert page.splitlines() == ["x" * 117 + " -", "a 95 % interval " + "y" * 100]


def test_a_part_is_replaced_between_its_markers_and_the_rest_of_the_page_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n")
    write_part(page, "speeds", "Fast.\n")
    write_part(page, "sizes", "Small.\n")
    page.write_text(page.read_text() + "\nThe end.\n")
    write_part(page, "speeds", "Faster.\n")
    assert page.read_text() == (
        "# Page\n\n<!-- speeds: begin -->\n\nFaster.\n\n<!-- speeds: end -->\n"
        "<!-- sizes: begin -->\n\nSmall.\n\n<!-- sizes: end -->\n\nThe end.\n"
    )
