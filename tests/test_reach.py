"""Which changes of a line leave machine code as it is: a fault that is tried with stale code would count as missed.

And which of the recorded data can be read.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks import reach
from tests.checkout import ROOT

PART_OF_KERNELS = (
    "cluster/kernels/structures.py:push", "cluster/simulator/event_log.py:_poll_in_kernel",
    "cluster/kernels/pointer_table.py:_read_field",
    "cluster/kernels/compiled.py:_leaf", "cluster/model/problem.py:lets_jobs_pass",
    "envs/batch.py:_reward_or_placeholder", "cluster/simulator/engine.py:advance",
)  # fmt: skip
PLAIN = ("agents/learned/archive.py:_is_stored", "cluster/traces/read.py:format_description")


def line_of(name: str) -> tuple[str, int]:
    path, _, function = name.partition(":")
    (found,) = {it.first for it in reach._graph(ROOT).functions if (it.path, it.name) == (path, function)}
    return path, found + 1


@pytest.mark.full
@pytest.mark.parametrize("name", PART_OF_KERNELS)
def test_what_is_compiled_or_decides_what_is_does_not_leave_it(name: str) -> None:
    assert not reach.leaves_kernels(ROOT, *line_of(name))


@pytest.mark.full
@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_function_leaves_it(name: str) -> None:
    assert reach.leaves_kernels(ROOT, *line_of(name))


@pytest.mark.parametrize("bytes_left", [0, 100, 3000, 10_000, 20_000])
def test_data_that_a_full_disk_or_a_kill_has_cut_is_removed(tmp_path: Path, bytes_left: int) -> None:
    for name in ("whole", "cut"):
        with closing(sqlite3.connect(tmp_path / name)) as connection, connection:
            connection.execute("CREATE TABLE lines (bits BLOB)")
            connection.executemany("INSERT INTO lines VALUES (?)", [(bytes(1000),) for _ in range(30)])
    with (tmp_path / "cut").open("r+b") as cut:
        cut.truncate(bytes_left)
    removed = reach.remove_damaged(tmp_path)
    assert (tmp_path / "whole").exists()
    assert removed == ([] if bytes_left == 0 else ["cut"])  # an empty file is a database without tables
