"""What is rebuilt of pasts that are made up: claims of jobs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduler.mirror.cluster_mirror import ClusterMirror, JobRequest, MirrorOrigin
from longshore.scheduler.mirror.journal import encode_opening
from longshore.training.history import MIN_WORK_S, ClusterPast
from tests.training.written_history import line, site_of_types, written

SITE = site_of_types(["a"], ["a"])
TIMES_S = st.floats(0.0, 1e5)


@given(stops=st.lists(st.tuples(TIMES_S, st.none() | st.floats()), max_size=4), last_s=TIMES_S)
def test_the_work_that_a_job_claims_counts_as_it_does_in_the_scheduler(
    stops: list[tuple[float, float | None]], last_s: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Oracle: the scheduler's own arrays."""
    mirror, now_s, lines = ClusterMirror(SITE, MirrorOrigin(0.0)), 0.0, list[str]()
    mirror.journal = []
    mirror.begin(now_s)
    mirror.submit(JobRequest("job", 1, 60.0, 0.0))
    for run_s, kept_s in [*stops, (last_s, None)]:
        assert mirror.find_due_job() == "job"
        mirror.carry_out("job", [0])
        progress, opening = mirror.progress("job"), encode_opening(mirror.site, mirror.origin) if not lines else ""
        explanation = {"expected": {"slowdown": progress.slowdown}}
        end = {"number": len(lines) + 1, "ended_s": now_s + run_s, "outcome": "success"}
        lines.append(line(len(lines), mirror.journal, opening, job_id="job", explanation=explanation, **end))
        mirror.journal, now_s = [], now_s + run_s
        mirror.begin(now_s)
        if len(lines) <= len(stops):
            mirror.stop("job", kept_s)
    file = written(tmp_path_factory.mktemp("claims") / "decisions.jsonl", lines)
    done_s = max(last_s - progress.overhead_s, 0.0) / progress.slowdown
    expected_s = max(mirror.progress("job").saved_s + done_s, MIN_WORK_S)
    assert ClusterPast(file).work_s["job"] == pytest.approx(expected_s, abs=1e-6)
