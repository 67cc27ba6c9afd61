"""A ring's files say which GPUs it has. Its job may write them, and gets nothing by it; nor does it hold up others."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.scheduler.model.states import JobState
from tests.scheduler.backends.attempts import end_all
from tests.scheduler.ring_trials import RingTrial


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[RingTrial]:
    it = RingTrial(tmp_path, {"a": 4, "b": 4, "c": 4})
    yield it
    it.scheduler.close_ring_connections()
    it.close()
    end_all(tmp_path)


@pytest.mark.full
def test_a_ring_that_names_free_gpus_gets_no_more_than_a_ring_may_and_others_start(trial: RingTrial) -> None:
    (trial.folder / "waits.py").write_text("import time; time.sleep(600)")
    job = trial.submit_ring(1, command=[sys.executable, "waits.py"])
    places = trial.folder / "attempts"
    trial.until(lambda: trial.attempts(job) and (places / trial.name(job) / "ring/places-0.json").exists())
    places = places / trial.name(job) / "ring/places-0.json"
    trial.until(lambda: trial.way.backend.ring_places(trial.name(job)))
    (own,) = json.loads(places.read_text())
    others = [[node, gpu] for node in "abc" for gpu in range(4) if [node, gpu] != own[1:3]]

    for more in (others, others[::-1], [own[1:3]] * 3 + others):
        reported = [own, *([rank, *place, True, False, -1, 0] for rank, place in enumerate(more, 1))]
        places.write_text(json.dumps(reported))
        trial.crash()  # what the store does not know is looked for when a scheduler begins
        for _ in range(20):
            trial.tick()
        assert len(trial.holds(job)) <= 1 + 3
        beside = trial.submit("true", gpus=1)
        trial.until(lambda beside=beside: trial.job(beside).state is JobState.SUCCEEDED)  # type: ignore[misc]
    held = [(it.node, it.gpu) for it in trial.held()]
    assert len(held) == len(set(held))
