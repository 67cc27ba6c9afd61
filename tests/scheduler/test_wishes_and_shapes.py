"""Wishes that come while a job is being stopped, and jobs whose shape nothing in service has."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from longshore.cluster.files.errors import BackendError
from longshore.scheduler.backends.protocol import NodeView
from longshore.scheduler.model.job import new_job_id
from longshore.scheduler.model.job_spec import StoredJob
from longshore.scheduler.model.states import FINAL, Desired, JobState
from longshore.scheduler.store.jobs import NewJob, insert_job
from tests.scheduler.trials import Trial


class Sick(Trial):
    """A cluster some of whose GPUs are faulty."""

    def __init__(self, folder: Path, nodes: dict[str, int]) -> None:
        super().__init__(folder, nodes)
        self.bad: set[tuple[str, int]] = set()
        observe = self.way.observe

        def seen() -> tuple[NodeView, ...]:
            return tuple(
                replace(
                    node,
                    gpus=tuple(replace(gpu, healthy=(node.name, gpu.index) not in self.bad) for gpu in node.gpus),
                )
                for node in observe()
            )

        self.way.observe = seen  # type: ignore[method-assign]


@pytest.fixture
def two_nodes(tmp_path: Path) -> Iterator[Sick]:
    trial = Sick(tmp_path, {"n0": 1, "n1": 1})
    yield trial
    trial.close()


def test_a_cancel_while_a_job_is_stopped_to_be_tried_again_does_not_wait_for_a_gpu(two_nodes: Sick) -> None:
    trial = two_nodes
    unlucky, other = trial.submit("trap '' TERM; sleep 1000", grace_s=1.0), trial.submit("sleep 1000")
    trial.runs(unlucky)
    trial.runs(other)
    trial.bad.add((trial.attempts(unlucky)[0].placement[0].node, 0))
    trial.until(lambda: trial.job(unlucky).state is JobState.STOPPING)
    trial.wish(unlucky, Desired.CANCEL)

    trial.until(lambda: trial.job(unlucky).state is JobState.CANCELLED)

    assert trial.job(other).state is JobState.RUNNING
    trial.wish(other, Desired.CANCEL)
    trial.ends(other)


def test_what_cannot_be_removed_is_tried_again_after_a_while_and_reported_once(two_nodes: Sick) -> None:
    calls: list[str] = []

    def fail(call: str) -> None:
        if call == "forget":
            calls.append(call)
            raise BackendError(f"status 500, request {len(calls)}")

    two_nodes.way.before = fail
    job = two_nodes.submit("exit 0")
    two_nodes.until(lambda: two_nodes.job(job).state in FINAL)
    two_nodes.tick(50)

    assert 1 <= len(calls) < 5
    assert sum(event.kind == "cleanup" for event in two_nodes.events(job)) == 1
    two_nodes.way.before = lambda call: None


@pytest.fixture
def four_nodes(tmp_path: Path) -> Iterator[Sick]:
    trial = Sick(tmp_path, {f"n{node}": 4 for node in range(4)})
    yield trial
    trial.close()


def of_shape(trial: Trial, nodes: int, gpus: int, script: str = "exit 0") -> str:
    """Submit a job of so many nodes with the same GPUs each."""
    spec = StoredJob.model_validate(
        {"shape": {"nodes": nodes, "gpus_per_node": gpus // nodes}, "command": ("sh", "-c", script)}
    )
    now_s = trial.now_s()
    new = NewJob(new_job_id(now_s), "x", "ada", spec.model_dump(mode="json"), 0, gpus, 60.0, now_s)
    trial.store.write(lambda tx: insert_job(tx, new, writer="backend"))
    return new.id


def test_an_aged_job_of_a_shape_that_is_out_of_service_holds_up_no_one_and_starts_after_the_repair(
    four_nodes: Sick,
) -> None:
    trial = four_nodes
    trial.bad = {("n0", 0), ("n1", 0), ("n2", 0)}  # 13 GPUs in service, and one node of 4
    shaped = of_shape(trial, nodes=2, gpus=8)
    trial.tick(3)
    trial.later_s += 7 * 3600.0
    small = trial.submit("exit 0")
    trial.ends(small)
    assert trial.job(shaped).state is JobState.QUEUED

    trial.bad.clear()
    trial.until(lambda: trial.attempts(shaped))


def test_a_job_waits_for_nodes_of_its_shape_and_others_start_meanwhile(four_nodes: Sick) -> None:
    trial = four_nodes
    holder = of_shape(trial, nodes=2, gpus=2, script="sleep 1000")
    trial.until(lambda: trial.job(holder).state is JobState.RUNNING)
    shaped = of_shape(trial, nodes=3, gpus=12)  # 14 are free, and two nodes have 4
    small = trial.submit("exit 0")
    trial.ends(small)
    assert trial.job(shaped).state is JobState.QUEUED

    trial.wish(holder, Desired.CANCEL)
    trial.ends(shaped)
    assert [len(share.gpus) for share in trial.attempts(holder)[0].placement] == [1, 1]
    assert [len(share.gpus) for share in trial.attempts(shaped)[0].placement] == [4, 4, 4]
