"""Which changes of a line leave machine code as it is: a fault that is tried with stale code would count as missed."""

import pytest

from benchmarks import reach
from tests.checkout import ROOT

PART_OF_KERNELS = (
    "cluster/kernels/structures.py:push", "cluster/simulator/event_log.py:_compiled",
    "cluster/kernels/pointer_table.py:_read",
    "cluster/kernels/compiled.py:_leaf", "cluster/queue/order_table.py:_loaded", "agents/heuristics.py:_usable",
    "cluster/simulator/engine.py:advance",
)  # fmt: skip
PLAIN = ("agents/learned/archive.py:_is_stored", "cluster/traces/read.py:format_words")


def line_of(name: str) -> tuple[str, int]:
    path, _, function = name.partition(":")
    (found,) = {it.first for it in reach._graph(ROOT).functions if (it.path, it.name) == (path, function)}
    return path, found + 1


@pytest.mark.parametrize("name", PART_OF_KERNELS)
def test_what_is_compiled_or_decides_what_is_does_not_leave_it(name: str) -> None:
    assert not reach.leaves_kernels(ROOT, *line_of(name))


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_function_leaves_it(name: str) -> None:
    assert reach.leaves_kernels(ROOT, *line_of(name))
