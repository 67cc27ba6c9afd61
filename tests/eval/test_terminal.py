"""What the terminal shows of a trace."""

import io

import numpy as np
import pytest
from rich.console import Console

from longshore.cluster.model.workload import describe, workload_of
from longshore.eval.table import print_trace_statistics


def shown(submit_s: list[float]) -> dict[str, str]:
    jobs = len(submit_s)
    ids = tuple(map(str, range(jobs)))
    workload = workload_of(ids, np.ones(jobs, dtype=np.int32), np.full(jobs, 60.0), np.array(submit_s))
    console = Console(file=io.StringIO(), width=200)
    print_trace_statistics(console, "longshore", describe(workload), 8)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return {title: text.strip() for title, _, text in (line.partition("  ") for line in lines)}


@pytest.mark.parametrize("submit_s", [[0.0], [0.0, 0.0], [5.0, 5.0, 5.0]])
def test_a_batch_arrives_at_once_and_has_no_load(submit_s: list[float]) -> None:
    rows = shown(submit_s)
    assert rows["arrivals"] == "all at once"
    assert not [text for text in rows.values() if "nan" in text or "inf" in text]


def test_arrivals_over_time_have_a_coefficient_and_a_load() -> None:
    rows = shown([0.0, 10.0, 30.0])
    assert rows["arrivals"] == "coefficient of variation of gaps 0.3 (1 is Poisson)"
    assert rows["load"] == "0.75 on 8 GPUs"
