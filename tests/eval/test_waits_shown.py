"""What a run's figures say of waiting."""

import math
import re
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from longshore.eval.table import print_run
from tests.eval.runs import CLUSTER_GPUS, finishes, outcome, scenarios

HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("ageing_s", "expected"),
    [(math.inf, None), (2 * HOUR_S, "1 of 4 jobs (bound: 2 h)"), (0.5 * HOUR_S, "3 of 4 jobs (bound: 0.5 h)")],
)
def test_the_longest_wait_is_shown_and_how_many_waited_over_the_bound(ageing_s: float, expected: str | None) -> None:
    waits_s = np.array([[0.0, HOUR_S, 2 * HOUR_S * (1 + 1e-15), 5 * HOUR_S]])  # one is at the bound but for rounding
    shown = StringIO()
    run = outcome(finishes(1))._replace(wait_s=waits_s)
    print_run(Console(file=shown, width=200), run, scenarios(1), CLUSTER_GPUS, ageing_s)
    rows = dict(re.split(" {2,}", line, maxsplit=1) for line in shown.getvalue().splitlines())
    assert rows["longest wait"] == "5.00 h"
    assert rows.get("waited over the bound") == expected
