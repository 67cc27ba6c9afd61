"""A cluster file that lacks what jobs run on is refused, before anything is done about them."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from sqlalchemy import Connection

from longshore.cluster.files.errors import InputError
from longshore.cluster.files.processes import this_process_name
from longshore.scheduler.model.states import JobState
from tests.scheduler.obedient import WELL, Obedient
from tests.scheduler.trials import Trial

NODES = {"a": 2, "b": 2}


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    made = trial_of(tmp_path, NODES, Obedient(NODES))
    yield made
    made.close()


def trial_of(folder: Path, nodes: Mapping[str, int], backend: Obedient) -> Trial:
    return Trial(folder, nodes, lambda: backend, "obedient")


@pytest.mark.parametrize("fewer", [{"a": 2}, {"a": 2, "b": 1}], ids=["no node", "a smaller node"])
def test_a_cluster_file_without_a_node_of_a_running_job_is_refused_with_their_names(
    fewer: dict[str, int], trial: Trial
) -> None:
    jobs = [trial.submit("one", gpus=2), trial.submit("two", gpus=2)]
    for job in jobs:
        trial.runs(job)
    (lost,) = {it.job_id for it in trial.held() if it.node == "b"}
    backend = trial.way.backend
    assert isinstance(backend, Obedient)
    trial.scheduler.close()
    before = trial.events()

    smaller = trial_of(trial.folder, fewer, backend)
    for _ in range(5):
        with pytest.raises(InputError, match=f"lacks GPUs of node b on which job {lost} may run"):
            smaller.tick()
    smaller.close()
    assert trial.events() == before

    trial.scheduler = trial.another()  # with the node
    backend.end(WELL)
    trial.wait(3.0, 1.0)
    assert {trial.job(job).state for job in jobs} == {JobState.SUCCEEDED}


def test_a_node_on_which_nothing_runs_can_go(trial: Trial) -> None:
    job = trial.submit("one")
    trial.runs(job)
    backend = trial.way.backend
    assert isinstance(backend, Obedient)
    ((node, _, _, _, _),) = trial.held()

    smaller = trial_of(trial.folder, {node: 2}, backend)
    smaller.tick()
    backend.end(WELL)
    smaller.wait(3.0, 1.0)

    assert smaller.job(job).state is JobState.SUCCEEDED
    smaller.close()


def test_what_the_last_scheduler_writes_just_before_it_is_followed_counts_against_a_smaller_cluster_file(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = trial.way.backend
    assert isinstance(backend, Obedient)
    trial.tick()
    jobs = [trial.submit("one", gpus=2), trial.submit("two", gpus=2)]
    smaller = trial_of(trial.folder, {"a": 2}, backend)
    smaller.scheduler = smaller.another(this_process_name())  # its lease can be taken only once it gives it up
    write = smaller.store.write

    def write_late(work: Callable[[Connection], object]) -> object:
        monkeypatch.undo()
        trial.until(lambda: {it.node for it in trial.held()} == {"a", "b"})  # the last one reserves GPUs of both
        return write(work)

    monkeypatch.setattr(smaller.store, "write", write_late)
    with pytest.raises(InputError, match="lacks GPUs of node b"):
        smaller.tick()
    with pytest.raises(InputError, match="lacks GPUs of node b"):
        smaller.tick()

    trial.scheduler = trial.another()  # the one with all nodes leads at once
    assert trial.scheduler.tick()
    backend.end(WELL)
    trial.wait(3.0, 1.0)
    assert {trial.job(job).state for job in jobs} == {JobState.SUCCEEDED}
    smaller.close()
