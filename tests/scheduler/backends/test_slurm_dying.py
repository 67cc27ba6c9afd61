"""Jobs on a real Slurm under the live scheduler, while parts of it die: the benchmark with fewer, but for its times."""

import pytest

from benchmarks.slurm import measure
from benchmarks.slurm_cluster import why_not

JOBS = 20

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.mark.full
@pytest.mark.long
@pytest.mark.timeout(240)  # nearly all of it waiting: 35 to 85 s, by when Slurm's own timers meet the faults
def test_jobs_run_on_exactly_the_gpus_that_were_decided_while_parts_of_slurm_die() -> None:
    bars = {row.name: row.ok for row in measure(JOBS) if not row.name.startswith("launch")}

    assert len(bars) > 3
    assert all(bars.values()), bars
