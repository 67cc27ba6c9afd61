"""The order of the queue that is shown, against the order in which a scheduler turns to jobs."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longshore.agents.heuristics import HEURISTICS
from longshore.cluster.model.orders import ORDER_REGIMES
from longshore.cluster.model.problem import ORDERS
from longshore.cluster.presets.cluster_file import read_cluster
from longshore.scheduler.control.state_cache import queue_key
from longshore.scheduler.mirror.cluster_mirror import ClusterMirror, JobRecord, JobRequest, MirrorOrigin, QueueTurn
from longshore.scheduler.placement.placer import Placer
from longshore.scheduler.rules.jobs import LastTurn, WaitingJob, in_queue_order, queue_places
from longshore.scheduler.service.own_cluster import QUICKSTART
from longshore.scheduler.service.service import site_of
from longshore.scheduler.settings import SchedulerSettings

NOW_S, GPUS = 1000.0, 16
MOST = 8  # jobs of one GPU: all fit at once, so that each is turned to in its turn
RUNS = JobRequest("runs", 1, 1e9, 0.0), JobRecord(1e9, 0.0, gpus=(0,))


@st.composite
def waiting_jobs(draw: st.DrawFn, owners: tuple[str, ...] = ("ada",)) -> list[WaitingJob]:
    found = []
    for number in range(draw(st.integers(1, MOST))):
        attempt = draw(st.integers(0, 1))
        entered_s = float(number * 100 + draw(st.integers(0, 99)))
        guess_s, saved_s, wait_s = (float(draw(st.integers(least, 4)) * 100) for least in (1, 0, 0))
        priority, has_run = draw(st.integers(-1, 1)), float(attempt)
        times = (entered_s, entered_s * has_run, wait_s * has_run, guess_s, saved_s * has_run)
        found.append(WaitingJob(str(number), draw(st.sampled_from(owners)), priority, 1, number, *times))
    return found


def turns_of(waiting: list[WaitingJob]) -> dict[tuple[str, int], LastTurn]:
    """Return turns to lead that some of the users have had, some of them at the same time."""
    users = sorted({(it.owner, it.priority) for it in waiting if it.submit_seq % 3})
    return {user: LastTurn(float(number // 2 * 150), number + 1) for number, user in enumerate(users)}


def turned_to(
    waiting: list[WaitingJob],
    order: str,
    ageing_s: float,
    folder: Path,
    turns: dict[tuple[str, int], LastTurn] | None = None,
) -> list[str]:
    """Return jobs in the order in which a scheduler gives them GPUs that has just taken up its store."""
    cluster = folder / "cluster.yaml"
    cluster.write_text(QUICKSTART)
    site = site_of(read_cluster(cluster), SchedulerSettings())
    site = site._replace(rules=site.rules._replace(order=ORDERS[order], ageing_s=ageing_s, waiting=False))
    site = site._replace(rules=site.rules._replace(turns=turns is not None))
    jobs = [
        (
            JobRequest(it.id, it.gpus, it.guess_s, it.entered_s, -it.priority, user=it.owner),
            JobRecord(
                it.guess_s,
                it.entered_s,
                it.saved_s,
                it.wait_s,
                int(it.not_before_s > 0.0),
                came_back=it.not_before_s > 0.0,
            ),
        )
        for it in waiting
    ]
    queue = [it.id for it in sorted(waiting, key=queue_key)]  # type: ignore[arg-type]
    had = [QueueTurn(user, -priority, *led, *led) for (user, priority), led in (turns or {}).items()]
    mirror = ClusterMirror(site, MirrorOrigin(NOW_S, [RUNS, *jobs], queue, turns=had))
    placer = Placer(HEURISTICS["pack"])
    placer.follow_mirror(mirror)
    found = []
    while mirror.find_due_job() is not None:
        found.append(placer.decide(mirror).job)
    return found


# Under easy-shortest the first one goes first whenever it fits; what is shown is the order while it does not.
@pytest.mark.parametrize("order", sorted(set(ORDERS) - {"easy-shortest"}))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(waiting=waiting_jobs(), ageing_s=st.sampled_from([0.0, 300.0, 700.0, float("inf")]))
def test_the_order_that_is_shown_is_that_of_the_scheduler(
    tmp_path: Path, order: str, waiting: list[WaitingJob], ageing_s: float
) -> None:
    shown = [it.id for it in in_queue_order(reversed(waiting), ORDER_REGIMES[order], ageing_s, NOW_S, GPUS)]
    assert shown == turned_to(waiting, order, ageing_s, tmp_path)


@pytest.mark.parametrize("order", ["easy", "easy-shortest"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(waiting=waiting_jobs())
def test_jobs_pass_the_first_one_in_the_order_that_is_shown(
    tmp_path: Path, order: str, waiting: list[WaitingJob]
) -> None:
    first = WaitingJob("first", "ada", 2, GPUS, 99, 0.0, 0.0, 0.0, 100.0, 0.0)  # it waits for the one that runs
    shown = [it.id for it in in_queue_order([*waiting, first], ORDER_REGIMES[order], float("inf"), NOW_S, GPUS)]
    assert shown == ["first", *turned_to([*waiting, first], order, float("inf"), tmp_path)]


@pytest.mark.parametrize("order", sorted(set(ORDERS) - {"easy-shortest"}))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(waiting=waiting_jobs(("ada", "bob", "eve")), ageing_s=st.sampled_from([300.0, 700.0, float("inf")]))
def test_users_take_turns_in_the_order_that_is_shown(
    tmp_path: Path, order: str, waiting: list[WaitingJob], ageing_s: float
) -> None:
    turns, ageing_s = turns_of(waiting), float("inf") if order == "fifo" else ageing_s
    shown = [it.id for it in in_queue_order(reversed(waiting), ORDER_REGIMES[order], ageing_s, NOW_S, GPUS, turns)]
    assert shown == turned_to(waiting, order, ageing_s, tmp_path, turns)


@pytest.mark.parametrize("order", ["easy", "easy-shortest", "shortest"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(waiting=waiting_jobs(("ada", "bob", "eve")))
def test_users_take_turns_in_passing_the_first_one(tmp_path: Path, order: str, waiting: list[WaitingJob]) -> None:
    waiting = [it._replace(not_before_s=0.0, wait_s=0.0, saved_s=0.0) for it in waiting]
    first = WaitingJob("first", "ada", 2, GPUS, 99, 0.0, 0.0, 0.0, 100.0, 0.0)  # it waits for the one that runs
    turns = turns_of([*waiting, first])
    every = [*waiting, first]
    shown = [it.id for it in in_queue_order(every, ORDER_REGIMES[order], float("inf"), NOW_S, GPUS, turns)]
    assert shown == ["first", *turned_to(every, order, float("inf"), tmp_path, turns)]


@pytest.mark.parametrize("order", sorted(ORDERS))
@given(waiting=waiting_jobs(), ageing_s=st.sampled_from([300.0, float("inf")]))
def test_of_one_user_alone_the_order_is_that_without_turns(
    order: str, waiting: list[WaitingJob], ageing_s: float
) -> None:
    rules = ORDER_REGIMES[order], ageing_s, NOW_S, GPUS
    assert in_queue_order(waiting, *rules, turns_of(waiting)) == in_queue_order(waiting, *rules)


@pytest.mark.parametrize("order", sorted(ORDERS))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(waiting=waiting_jobs())
def test_no_job_goes_before_one_of_higher_priority_unless_it_ages(
    tmp_path: Path, order: str, waiting: list[WaitingJob]
) -> None:
    priority = {it.id: it.priority for it in waiting}
    found = [priority[job] for job in turned_to(waiting, order, float("inf"), tmp_path)]
    assert found == sorted(found, reverse=True)


def test_a_job_that_asks_for_more_than_is_in_service_does_not_age() -> None:
    small = WaitingJob("small", "ada", 0, 4, 2, 900.0, 0.0, 0.0, 100.0, 0.0)
    large = WaitingJob("large", "ada", -1, 16, 1, 0.0, 0.0, 0.0, 100.0, 0.0)
    assert [it.id for it in in_queue_order([large, small], ORDER_REGIMES["easy"], 500.0, NOW_S, 16)] == [
        "large",
        "small",
    ]
    assert queue_places(in_queue_order([large, small], ORDER_REGIMES["easy"], 500.0, NOW_S, 8)) == {
        "small": 1,
        "large": 2,
    }
