"""When the launcher gives back what it asked of Ray, by what Ray's table of groups tells; only that is a stand-in."""

from types import SimpleNamespace
from typing import Any

import pytest

from longshore.scheduler.backends.ray.launcher import RayCluster


class Table:
    """Ray's table of one group, and how often its removal was requested."""

    def __init__(self, state: str, scheduling: str, tries: int) -> None:
        self.reported: dict[str, Any] = {}
        self.removed = 0
        self.report(state, scheduling, tries)

    def report(self, state: str, scheduling: str, tries: int) -> None:
        self.reported = {"state": state, "stats": {"scheduling_state": scheduling, "scheduling_attempt": tries}}

    def placement_group_table(self, group: object) -> dict[str, Any]:
        return self.reported

    def remove_placement_group(self, group: object) -> None:
        self.removed += 1


def cluster_of(table: Table) -> RayCluster:
    cluster = RayCluster.__new__(RayCluster)
    cluster._ray, cluster._tries = SimpleNamespace(util=table), {}
    return cluster


GROUP: Any = SimpleNamespace(id="one")


def test_what_was_given_is_given_back_at_once() -> None:
    table = Table("CREATED", "FINISHED", 1)
    assert cluster_of(table).free(GROUP)
    assert table.removed == 1


@pytest.mark.parametrize("state", ["QUEUED", "SCHEDULING_STARTED"])
def test_what_ray_may_be_giving_is_waited_for(state: str) -> None:
    table = Table("PENDING", state, 0)
    cluster = cluster_of(table)
    assert [cluster.free(GROUP) for _ in range(3)] == [False, False, False]
    table.report("PREPARED", "NO_RESOURCES", 1)
    assert [cluster.free(GROUP) for _ in range(3)] == [False, False, False]
    assert table.removed == 0
    table.report("CREATED", "FINISHED", 1)
    assert cluster.free(GROUP)
    assert table.removed == 1


@pytest.mark.parametrize("state", ["NO_RESOURCES", "INFEASIBLE", "FAILED_TO_COMMIT_RESOURCES"])
def test_what_waits_in_vain_is_given_up_once_no_try_came_between_two_looks(state: str) -> None:
    table = Table("PENDING", state, 1)
    cluster = cluster_of(table)
    assert not cluster.free(GROUP)
    table.report("PENDING", state, 2)
    assert not cluster.free(GROUP)
    assert cluster.free(GROUP)
    assert table.removed == 1


def test_what_ray_does_not_know_any_more_is_given_back() -> None:
    table = Table("", "", 0)
    table.reported = {}
    assert cluster_of(table).free(GROUP)
