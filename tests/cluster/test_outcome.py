"""The figures of a run, on outcomes made by hand."""

import numpy as np
import pytest

from longshore.cluster.model.outcome import Outcome, metrics


def test_a_job_that_never_ended_counts_until_the_run_was_cut_off() -> None:
    jobs = np.zeros((1, 3))
    outcome = Outcome(
        finish_s=np.array([[10.0, 0.0, 0.0]]), first_start_s=jobs, stops=jobs.astype(np.int32), lost_s=jobs,
        wait_s=jobs, makespan_s=np.array([100.0]), busy_gpu_s=np.zeros(1),
        down_gpu_s=np.zeros(1), overhead_gpu_s=np.zeros(1), finished=np.ones(1, np.int32),
        job_events=np.ones(1, np.int64), decisions=np.ones(1, np.int64),
        switches=np.zeros(1, np.int64), slowed=np.zeros(1, np.int64),
        backups=np.zeros(1, np.int64), backup_gpu_s=np.zeros(1),
    )  # fmt: skip
    submit_s = np.array([[0.0, 40.0, 0.0]])  # the third is no job of this scenario
    found = metrics(outcome, np.array([2], np.int32), np.ones((1, 3), np.int32), submit_s, 4, np.ones((1, 3)))
    assert found.mean_jct_s[0] == pytest.approx((10.0 + 60.0) / 2)
