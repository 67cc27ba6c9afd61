"""What is rebuilt of pasts that are made up: claims of jobs, and clusters that change."""

from base64 import b64encode
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.files.errors import InputError
from longshore.scheduler.mirror.cluster_mirror import ClusterMirror, ClusterSite, JobRequest, MirrorOrigin
from longshore.scheduler.mirror.journal import encode_opening
from longshore.scheduler.rules.attempts import ExitClass
from longshore.training.history import MIN_HISTORY_JOBS, MIN_WORK_S, OBSERVATION_SIZE, ClusterPast, read_history
from longshore.training.problems import history_windows
from tests.training.written_history import NODE_GPUS, line, lines_of_jobs, site_of_types, written

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


@given(sizes=st.lists(st.sampled_from([1, OBSERVATION_SIZE - 1, OBSERVATION_SIZE, OBSERVATION_SIZE + 1, 1 << 17])))
def test_only_observations_of_candidates_are_kept_which_are_small(
    sizes: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    number = {"explanation": {"actions": [0]}, "log_probability": _base64([-1.0])}
    opening = encode_opening(SITE, MirrorOrigin(0.0))
    lines = [line(0, [], opening)]
    lines += [line(at, [], **number, observation=_base64([1.0] * size)) for at, size in enumerate(sizes, 1)]
    past = ClusterPast(written(tmp_path_factory.mktemp("seen") / "decisions.jsonl", lines))
    assert [seen.observation.size for seen in past.observed] == [size for size in sizes if size == OBSERVATION_SIZE]


def _base64(numbers: list[float]) -> str:
    return b64encode(np.array(numbers, dtype="<f4").tobytes()).decode()


@given(outcomes=st.lists(st.sampled_from([*ExitClass]), min_size=1, max_size=8))
def test_jobs_that_failed_or_were_cancelled_have_left_without_work_that_is_known(
    outcomes: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    requests = [JobRequest(f"{job}", 1, 60.0, 100.0 * job) for job in range(len(outcomes))]
    lines = lines_of_jobs(SITE, requests, outcomes)
    past = ClusterPast(written(tmp_path_factory.mktemp("outcomes") / "decisions.jsonl", lines))
    succeeded = {f"{job}" for job, outcome in enumerate(outcomes) if outcome == ExitClass.SUCCESS}
    assert past.work_s.keys() == succeeded
    assert past.left_s.keys() >= {request.job for request in requests[:-1]} | succeeded


NAMES = "abc"


class Site(NamedTuple):
    """A cluster by the names of its node types, in the order of its cluster file, and of its nodes."""

    names: Sequence[str]
    nodes: Sequence[str]

    def room_for(self, types: Sequence[str]) -> int:
        return NODE_GPUS * sum(node in types for node in self.nodes)

    def numbers(self, types: Sequence[str]) -> tuple[int, ...]:
        """Return the numbers of types as the scheduler records them, none if they are all."""
        found = tuple(number for number, name in enumerate(self.names) if name in types)
        return () if len(found) == len(self.names) else found


sites = st.permutations(NAMES).flatmap(
    lambda names: st.integers(1, 3).flatmap(
        lambda count: st.lists(st.sampled_from(names[:count]), min_size=1, max_size=4).map(
            lambda nodes: Site(names[:count], nodes)
        )
    )
)
needs = st.lists(st.tuples(st.integers(1, 4 * NODE_GPUS), st.sets(st.sampled_from(NAMES), min_size=1)), min_size=1)


@given(before=sites, after=sites, wanted=needs)
def test_jobs_of_a_cluster_that_has_changed_run_on_nodes_of_their_types_or_not_at_all(
    before: Site, after: Site, wanted: list[tuple[int, set[str]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    expected, lines, submitted_s = dict[float, list[bool]](), list[str](), 0.0
    for site in (before, after):
        requests = []
        for number in range(MIN_HISTORY_JOBS):
            gpus, types = wanted[number % len(wanted)]
            if gpus > site.room_for(sorted(types)):
                continue
            submitted_s += 1000.0
            work_s = 60.0 + len(expected)
            requests.append(JobRequest(f"{work_s}", gpus, work_s, submitted_s, types=site.numbers(sorted(types))))
            known = types & set(site.names) if requests[-1].types else set(NAMES)  # all that is recorded of it
            expected[work_s] = [node in known for node in after.nodes]
            if gpus > after.room_for(sorted(known)):
                expected[work_s] = []
        if requests:
            lines += lines_of_jobs(_site(site), requests)
    lines += lines_of_jobs(_site(after), [JobRequest("last", 1, 1.0, submitted_s + 1000.0)])
    file = written(tmp_path_factory.mktemp("changed") / "decisions.jsonl", lines)
    fitting = {work_s for work_s, nodes in expected.items() if nodes}
    try:
        history = read_history(file)
    except InputError:
        assert len(fitting) + 1 < MIN_HISTORY_JOBS
        return
    problem = history_windows(history, (0.0, 1.0), 4, 1, 0, disjoint=True)
    scenarios, suits = problem.scenarios, problem.cluster.suits
    for row, count in enumerate(scenarios.jobs):
        for job in range(count):
            work_s = float(np.round(scenarios.work_s[row, job]))
            if work_s >= 60.0:
                assert suits[scenarios.needs[row, job]].tolist() == expected[work_s]


def _site(site: Site) -> ClusterSite:
    return site_of_types(site.names, site.nodes)
