from pathlib import Path

import pytest

from longshore.agents.heuristics import PATIENT
from longshore.cluster.cluster_file import read_cluster
from longshore.cluster.errors import PluginError
from longshore.scheduler.deciding import Deciding
from longshore.scheduler.live import Asked, Known, LiveCluster
from longshore.scheduler.misses import Miss, miss_of
from longshore.scheduler.plugins.answer import read_message
from longshore.scheduler.service import Settings, default_cluster, site_of


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    path = default_cluster(tmp_path)
    cluster = LiveCluster(site_of(read_cluster(path), Settings(path, tmp_path)), Known(0.0))
    cluster.begin(1.0)
    cluster.submit(Asked("x", 2, 60.0, 1.0))
    return cluster


@pytest.mark.parametrize("gpus", [(0,), (0, 0), (0, 16), (0, 1)])
@pytest.mark.parametrize("job", ["x", "y"])
def test_what_is_refused_counts_as_refused(live: LiveCluster, job: str, gpus: tuple[int, ...]) -> None:
    live.take_out(1)
    with pytest.raises(PluginError) as refused:
        live.check(job, gpus)

    assert miss_of(str(refused.value)) is Miss.REFUSED


def test_what_is_no_answer_counts_as_nonsense() -> None:
    with pytest.raises(PluginError) as refused:
        read_message(b"nonsense")

    assert miss_of(str(refused.value)) is Miss.NONSENSE


def test_a_policy_that_cannot_be_loaded_counts_first_as_loading_then_as_resting(live: LiveCluster) -> None:
    deciding = Deciding(PATIENT, "no-such-policy")
    deciding.begin(live)
    assert live.due() == "x"
    loading = deciding.settle(live).miss
    while deciding.is_ready(1.0) or not deciding.misses:
        pass
    live.begin(2.0)
    live.submit(Asked("y", 2, 60.0, 2.0))
    assert live.due() == "y"
    resting = deciding.settle(live).miss
    deciding.end()

    (unloadable,) = deciding.misses
    assert [miss_of(text) for text in (loading, unloadable, resting)] == [Miss.LOADING, Miss.UNLOADABLE, Miss.RESTING]


def test_a_policy_that_was_heard_has_no_miss_and_an_unknown_reason_is_an_error() -> None:
    assert miss_of("") is None
    assert miss_of("ValueError: the network broke") is Miss.ERROR
