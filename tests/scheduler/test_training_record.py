"""What a scheduler knows of the iterations of a job that tells of its steps, and who is shown it."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from longshore.scheduler.health.step_watch import SKIPPED_STEPS
from longshore.scheduler.model.states import Desired, JobState
from longshore.scheduler.serve.app import create_app
from longshore.scheduler.service.retention import delete_jobs
from longshore.scheduler.store.jobs import set_desired
from longshore.scheduler.store.nodes import compute_records_of
from tests.scheduler.api.conftest import client_of
from tests.scheduler.steps_case import StepsCase, steps_case

STEP_S = 2.0


@pytest.fixture
def case(tmp_path: Path) -> Iterator[StepsCase]:
    with steps_case(tmp_path / "served") as made:
        yield made


def tell(case: StepsCase, job: str, steps: range, computed_s: list[float], step_s: float = STEP_S) -> None:
    """Let ranks tell of steps that all took as long, and time pass with them."""
    for step in steps:
        for rank, each_s in enumerate(computed_s):
            case.tell(job, f"train {step} {case.now_s:.6f} {each_s}\n", rank)
        case.pass_time(step_s)


def training(case: StepsCase, job: str) -> dict[str, object]:
    with client_of(create_app(case.service)) as api:
        found: dict[str, object] = api.get(f"/v1/jobs/{job}/training").json()
    return found


def test_the_iterations_of_a_job_are_reported_while_it_runs_and_recorded_beyond_its_end(case: StepsCase) -> None:
    job = case.submit(gpus=2, iteration_flops=3e12, parameter_bytes=1e9, model="gpt 1.3b")
    before = training(case, job)
    assert (before["average_iteration_s"], before["computed"], before["step"]) == (None, [], None)
    assert (before["model"], before["loss"]) == ("gpt 1.3b", None)
    assert (before["iteration_flops"], before["parameter_bytes"]) == (3e12, 1e9)

    tell(case, job, range(50), [0.5, 1.5])
    case.pass_time(4.0)
    reported = training(case, job)
    node = case.node(job)
    assert reported["average_iteration_s"] == pytest.approx(STEP_S, abs=1e-3)
    assert case.service.control.average_iteration_s(job) == reported["average_iteration_s"]
    assert (reported["steps"], reported["slowest"], reported["step"]) == (32, node, 49)
    assert reported["ring"] == [{"rank": rank, "node": node, "gpu": rank, "type": "slots"} for rank in (0, 1)]

    case.store.write(lambda tx: set_desired(tx, job, Desired.CANCEL, at_s=case.now_s, writer="api"))
    case.tick_until(lambda: case.job(job).state is JobState.CANCELLED)
    case.tick()
    with case.store.read() as tx:
        (record,) = compute_records_of(tx, job)
    counted = 2 * (49 - SKIPPED_STEPS)
    assert (record.kind, record.iterations) == ("slots", counted)
    assert record.mean_s == pytest.approx(1.0)
    assert len(record.last_s) == 32
    ended = training(case, job)
    assert (ended["average_iteration_s"], ended["computed"]) == (
        None, [{"type": "slots", "iterations": counted, "mean_s": record.mean_s, "last_s": list(record.last_s)}],
    )  # fmt: skip
    case.tick_until(lambda: case.attempts(job)[-1].state == "closed")
    case.store.write(lambda tx: delete_jobs(tx, [job], case.now_s + 1.0))
    with case.store.read() as tx:
        assert compute_records_of(tx, job) == []


def test_the_loss_is_that_of_the_last_step_by_the_lowest_rank_that_reported_it(case: StepsCase) -> None:
    job = case.submit(gpus=2)
    step = 0

    def told(*losses: str) -> object:
        nonlocal step
        for rank, loss in enumerate(losses):
            case.tell(job, f"train {step} {case.now_s:.6f}{loss}\n", rank)
        step += 1
        case.pass_time(10.0)
        return training(case, job)["loss"]

    assert told("", "") is None
    assert told(" 0.5 2.5", " - 3.5") == 2.5
    assert told(" 0.5", " - 3.25") == 3.25
    assert told(" - -1e-3", "") == -1e-3
    assert told("", "") == -1e-3
    case.tell(job, f"checkpoint {step} {case.now_s:.6f} - 0.25\n", 1)
    case.pass_time(10.0)
    assert training(case, job)["loss"] == 0.25


@pytest.mark.few(1)
@pytest.mark.parametrize("loss", ["nan", "inf", "-inf", "1e999"])
def test_a_loss_that_is_not_finite_is_reported_by_its_word(case: StepsCase, loss: str) -> None:
    job = case.submit(gpus=1, model="<b>net & co</b>")
    for step in (0, 1):
        case.tell(job, f"train {step} {case.now_s:.6f} - {loss}\n", 0)
        case.pass_time(10.0)
    word = loss.replace("1e999", "inf")
    assert training(case, job)["loss"] == word
    with client_of(create_app(case.service)) as api:
        page = api.get(f"/jobs/{job}").text
    assert f"<dt>Loss</dt><dd>{word}</dd>" in page
    assert ">&lt;b&gt;net &amp; co&lt;/b&gt;</dd>" in page


@pytest.mark.full
def test_one_member_that_is_ten_times_slower_is_reported_as_slow_and_is_no_fault(case: StepsCase) -> None:
    job = case.submit(gpus=8, estimate_s=36000.0)
    tell(case, job, range(300), [1.0] * 8)
    nodes = {share.node: share.gpus for share in case.attempts(job)[-1].placement}
    assert len(nodes) == 2
    slow = sorted(nodes)[1]
    tell(case, job, range(300, 330), [1.0] * 4 + [10.0] * 4, 20.0)
    words = [(event.now, event.data and event.data["nodes"]) for event in case.health() if event.now != "straggler"]
    assert ("slow", [slow]) in words
    assert case.service.control.average_iteration_s(job) or case.job(job).state is not JobState.RUNNING
    monitor = case.service.reconciler.parts.monitor
    assert (monitor.health.faulty, monitor.health.failed) == ((), ())
    with client_of(create_app(case.service)) as api:
        assert {it["state"] for it in api.get("/v1/nodes").json()} == {"alive"}
        assert api.get("/v1/quarantine").json() == []
    assert case.job(job).stops_infra == 0


def test_only_its_owner_and_operators_are_shown_it(refusing: httpx.Client) -> None:
    answer = refusing.get(f"/v1/jobs/{'0' * 26}/training")
    assert (answer.status_code, answer.json()["code"]) == (404, "no-such-job")


@pytest.fixture
def refusing(case: StepsCase) -> Iterator[httpx.Client]:
    with client_of(create_app(case.service)) as api:
        yield api
